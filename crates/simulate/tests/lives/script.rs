//! Scripts: which are accepted, which are refused, and the defaults.

use k8s_openapi::api::core::v1::Pod;
use outrigger_lifecycle::{FeatureGates, Phase, Plan, PodInput, phase, plan};
use outrigger_manifest::{ReadOptions, SourceFile, parse};
use outrigger_simulate::{Ending, Options, Scenario, Script, ScriptDuration, simulate};
use serde_json::{Value, json};

fn planned(policy: &str) -> Plan {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "p"},
        "spec": {
            "restartPolicy": policy,
            "initContainers": [{"name": "init", "image": "i"}, {"name": "proxy", "image": "i", "restartPolicy": "Always"}],
            "containers": [{"name": "main", "image": "i"}],
        },
    }))
    .expect("a pod");
    plan(&PodInput { pod, ..Default::default() }, &FeatureGates::default()).expect("a plan").plan
}

/// The example in docs/guide/simulate.md is a valid script for a pod.
#[test]
fn the_documented_script_reads() {
    let document = include_str!("../../../../docs/guide/simulate.md");
    let yaml =
        document.split("```yaml\n").nth(1).and_then(|rest| rest.split("```").next()).expect("an example");
    let source = SourceFile { name: "docs/guide/simulate.md".into(), text: yaml.into() };
    let documents = parse(0, &source, &ReadOptions::default()).unwrap_or_else(|e| panic!("{e:?}"));
    let script: Script = serde_json::from_value(documents[0].root.to_json()).expect("a script");
    Scenario::new(&planned("Always"), &script).expect("it fits");
    let again: Script =
        serde_json::from_value(serde_json::to_value(&script).expect("plain data")).expect("as written");
    assert_eq!(again, script, "a script survives being written and read");
}

#[test]
fn bad_scripts_are_refused_with_the_way_out() {
    let refused = |script: Value| match serde_json::from_value::<Script>(script) {
        Err(error) => error.to_string(),
        Ok(script) => Scenario::new(&planned("Never"), &script).expect_err("a bad script").to_string(),
    };
    for (script, words) in [
        (
            json!({"containers": {"porxy": {}}}),
            "the script names the container \"porxy\", the pod has init, proxy, main",
        ),
        (
            json!({"containers": {"main": {"runs": "soon"}}}),
            "expected seconds as a number, text such as \"1m30s\"",
        ),
        (json!({"containers": {"main": {"runz": 1}}}), "unknown field `runz`"),
        (json!({"containers": {"main": {"instances": [{"start_fails": 1}]}}}), "write it one level up"),
        (json!({"faults": {"lose": 1.5}}), "faults.lose is 1.5, it must be between 0 and 1"),
        (json!({"image_changes": [{"container": "nobody", "at": 1}]}), "\"nobody\""),
    ] {
        let message = refused(script);
        assert!(message.contains(words), "{message:?} does not say {words:?}");
    }
}

#[test]
fn without_a_script_jobs_complete_and_services_run_until_stopped() {
    for (policy, ends_at) in [("Never", 0..5_000), ("OnFailure", 0..5_000), ("Always", 30_000..35_000)] {
        let plan = planned(policy);
        let outcome =
            simulate(&plan, &Script::default(), 0, &Options::default()).expect("an empty script fits");
        assert_eq!(outcome.ending, Ending::Finished, "{policy}");
        assert!(ends_at.contains(&outcome.duration_ms), "{policy}: {} ms", outcome.duration_ms);
        assert_eq!(phase(&plan, &outcome.observation), Phase::Succeeded, "{policy}");
    }
}

#[test]
fn what_never_ends_is_reported_with_its_waits() {
    let script = serde_json::from_value(json!({"containers": {"init": {"exit": 1}}})).expect("a script");
    let options = Options { horizon: ScriptDuration::seconds(3_600), ..Options::default() };
    let outcome = simulate(&planned("OnFailure"), &script, 0, &options).expect("it fits");
    assert_eq!(outcome.ending, Ending::OutOfTime);
    let waiting: Vec<usize> = outcome.waits.iter().map(|(c, _)| *c).collect();
    assert_eq!(waiting, [0, 1, 2]);

    let options = Options { steps_max: 10, ..Options::default() };
    let outcome = simulate(&planned("OnFailure"), &script, 0, &options).expect("it fits");
    assert_eq!((outcome.ending, outcome.counters.steps), (Ending::OutOfSteps, 10));
}

#[test]
fn the_trace_has_a_limit() {
    let options = Options { trace_max: 7, ..Options::default() };
    let outcome = simulate(&planned("Never"), &Script::default(), 0, &options).expect("it fits");
    assert_eq!((outcome.trace.len(), outcome.ending), (7, Ending::Finished));
}
