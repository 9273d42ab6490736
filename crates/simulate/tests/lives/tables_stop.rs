//! Termination order and grace against the clock: table 12.10 and the worked cases of section 3.5 of
//! docs/spec/kubelet-lifecycle.md. Times are milliseconds since the stop began, not whole seconds (G-28).

use k8s_openapi::api::core::v1::Pod;
use outrigger_lifecycle::{FeatureGates, PodInput, plan};
use outrigger_simulate::{Ending, Options, Script, simulate};
use serde_json::{Value, json};

/// What became of a container in a stop: when it was told, when it was gone, with which code.
type Fate = (&'static str, u64, u64, i64);

/// What a container does: seconds it needs after TERM (none: it ignores it), seconds its preStop hook takes.
#[derive(Clone, Copy)]
struct Does {
    name: &'static str,
    needs: Option<f64>,
    hook: Option<f64>,
}

fn needs(name: &'static str, seconds: f64) -> Does {
    Does { name, needs: Some(seconds), hook: None }
}

fn deaf(name: &'static str) -> Does {
    Does { name, needs: None, hook: None }
}

fn hooked(does: Does, seconds: f64) -> Does {
    Does { hook: Some(seconds), ..does }
}

/// Stops a pod of sidecars and one main; `completes`: because the main is done, else by a request at 10 s.
fn fates(grace: u64, sidecars: &[Does], main: Does, completes: bool) -> Vec<(String, u64, u64, i64)> {
    let container = |d: &Does| {
        let mut c = json!({"name": d.name, "image": "i"});
        if d.hook.is_some() {
            c["lifecycle"] = json!({"preStop": {"exec": {"command": ["true"]}}});
        }
        c
    };
    let inits: Vec<Value> = sidecars
        .iter()
        .map(|d| {
            let mut c = container(d);
            c["restartPolicy"] = json!("Always");
            c
        })
        .collect();
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "stop"},
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": grace, "initContainers": inits, "containers": [container(&main)]},
    }))
    .expect("a pod");
    let plan = plan(&PodInput { pod, ..Default::default() }, &FeatureGates::default()).expect("a plan").plan;
    let mut containers = serde_json::Map::new();
    for d in sidecars.iter().chain([&main]) {
        let term = d.needs.map_or(json!({"ignore": true}), |s| json!({"exit_after": s}));
        let mut script = json!({"on_term": term});
        if let Some(takes) = d.hook {
            script["hooks"] = json!({"preStop": {"takes": takes}});
        }
        containers.insert(d.name.into(), script);
    }
    containers[main.name]["runs"] = if completes { json!(5) } else { json!("forever") };
    let stops = if completes { json!([]) } else { json!([{"at": 10}]) };
    let script: Script =
        serde_json::from_value(json!({"containers": containers, "stops": stops})).expect("a script");
    let outcome = simulate(&plan, &script, 1, &Options::default()).expect("the script fits");
    assert_eq!(outcome.ending, Ending::Finished);
    let began = outcome.trace.iter().find(|e| e.event == "stop-begun").expect("it stops").time;
    let mut fates = Vec::new();
    for (i, c) in plan.containers.iter().enumerate().rev() {
        let of = |event: &str| outcome.trace.iter().find(|e| e.container == Some(i) && e.event == event);
        if let (Some(told), Some(gone)) = (of("terminating"), of("exited")) {
            let code = gone.number("code").expect("a code");
            fates.push((c.name.clone(), told.time.since(began), gone.time.since(began), code));
        }
    }
    fates
}

#[track_caller]
fn check(id: &str, fates: Vec<(String, u64, u64, i64)>, expected: &[Fate]) {
    // A killed container is gone a millisecond after the KILL.
    let seen: Vec<(&str, u64, u64, i64)> =
        fates.iter().map(|(n, t, g, c)| (n.as_str(), *t, g - u64::from(*c == 137), *c)).collect();
    assert_eq!(seen, expected, "{id}");
}

#[test]
fn table_12_10_waiting_time_before_the_signal() {
    check(
        "12.10/1",
        fates(30, &[needs("sidecar", 1.0)], needs("main", 1.0), false),
        &[("main", 0, 1_000, 0), ("sidecar", 1_000, 2_000, 0)],
    );
    let three = |s: f64| [needs("sc1", s), needs("sc2", s), needs("sc3", s)];
    check(
        "12.10/2",
        fates(30, &three(1.25), needs("main", 1.25), false),
        &[
            ("main", 0, 1_250, 0),
            ("sc3", 1_250, 2_500, 0),
            ("sc2", 2_500, 3_750, 0),
            ("sc1", 3_750, 5_000, 0),
        ],
    );
    check(
        "12.10/3",
        fates(2, &three(1.0), needs("main", 1.0), false),
        // The grace is over as sc3 is gone: nobody waits for anybody any more.
        &[
            ("main", 0, 1_000, 0),
            ("sc3", 1_000, 2_000, 0),
            ("sc2", 2_000, 3_000, 0),
            ("sc1", 2_000, 3_000, 0),
        ],
    );
}

#[test]
fn section_3_5_sidecars_after_a_finished_main() {
    let five = [needs("s1", 5.0), needs("s2", 5.0), needs("s3", 5.0)];
    check(
        "E120",
        fates(30, &five, needs("main", 1.0), true),
        &[("s3", 0, 5_000, 0), ("s2", 5_000, 10_000, 0), ("s1", 10_000, 15_000, 0)],
    );
    let hooks = [hooked(deaf("s1"), 3_600.0), hooked(deaf("s2"), 3_600.0), hooked(deaf("s3"), 3_600.0)];
    check(
        "E124",
        fates(30, &hooks, needs("main", 1.0), true),
        &[("s3", 30_000, 32_000, 137), ("s2", 30_000, 32_000, 137), ("s1", 30_000, 32_000, 137)],
    );
}

#[test]
fn section_3_5_when_the_grace_runs_out() {
    check(
        "E130",
        fates(5, &[deaf("s1"), needs("s2", 1.0), deaf("s3")], deaf("main"), false),
        &[
            ("main", 0, 5_000, 137),
            ("s3", 5_000, 7_000, 137),
            ("s2", 5_000, 6_000, 0),
            ("s1", 5_000, 7_000, 137),
        ],
    );
    check(
        "E131",
        fates(5, &[needs("s1", 1.0), needs("s2", 20.0), needs("s3", 1.0)], needs("main", 1.0), false),
        &[("main", 0, 1_000, 0), ("s3", 1_000, 2_000, 0), ("s2", 2_000, 5_000, 137), ("s1", 5_000, 6_000, 0)],
    );
    check(
        "E132",
        fates(5, &[needs("s1", 1.0), deaf("s2"), needs("s3", 1.0)], hooked(deaf("main"), 20.0), false),
        &[
            ("main", 5_000, 7_000, 137),
            ("s3", 5_000, 6_000, 0),
            ("s2", 5_000, 7_000, 137),
            ("s1", 5_000, 6_000, 0),
        ],
    );
    check(
        "E133",
        fates(5, &[needs("s1", 1.0), hooked(deaf("s2"), 30.0), needs("s3", 1.0)], needs("main", 1.0), false),
        &[("main", 0, 1_000, 0), ("s3", 1_000, 2_000, 0), ("s2", 5_000, 7_000, 137), ("s1", 5_000, 6_000, 0)],
    );
}

/// A sidecar that pulls at every start comes back all the same while mains drain.
#[test]
fn a_sidecar_that_always_pulls_comes_back_while_mains_drain_g18() {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "drain"},
        "spec": {
            "initContainers": [{"name": "proxy", "image": "i", "imagePullPolicy": "Always", "restartPolicy": "Always"}],
            "containers": [{"name": "main", "image": "i"}],
        },
    }))
    .expect("a pod");
    let plan = plan(&PodInput { pod, ..Default::default() }, &FeatureGates::default()).expect("a plan").plan;
    let script: Script = serde_json::from_value(json!({
        "containers": {"proxy": {"instances": [{"runs": 12, "exit": 1}, {}]}, "main": {"on_term": {"exit_after": 20}}},
        "stops": [{"at": 10}],
    }))
    .expect("a script");
    let outcome = simulate(&plan, &script, 1, &Options::default()).expect("the script fits");
    let proxy = |event: &str| -> Vec<u64> {
        let of = |e: &&outrigger_lifecycle::trace::Entry| e.container == Some(0) && e.event == event;
        outcome.trace.iter().filter(of).map(|e| e.time.0).collect()
    };
    assert_eq!(proxy("exited").len(), 2);
    assert_eq!(proxy("pulling").len(), 2);
    assert_eq!(proxy("starting")[1], proxy("exited")[0] + 100, "as soon as the image is there");
}
