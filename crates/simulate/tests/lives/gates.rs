//! When mains may start if they wait for several sidecars.

use k8s_openapi::api::core::v1::Pod;
use outrigger_lifecycle::trace::{ContainerEvent, TraceEvent};
use outrigger_lifecycle::{FeatureGates, Plan, PodInput, Time, explain, plan};
use outrigger_simulate::{Ending, Options, Outcome, Script, ScriptDuration, simulate};
use serde_json::{Value, json};

/// A main that waits for two KEP sidecars, each with a readiness probe.
fn planned() -> Plan {
    let sidecar = |name: &str| {
        let probe = json!({"exec": {"command": ["up"]}, "periodSeconds": 1, "failureThreshold": 1});
        json!({"name": name, "image": "i", "readinessProbe": probe})
    };
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "p", "annotations": {"outrigger.dev/sidecars": "crashes, slow"}},
        "spec": {
            "restartPolicy": "OnFailure",
            "containers": [sidecar("crashes"), sidecar("slow"), {"name": "main", "image": "i"}],
        },
    }))
    .expect("a pod");
    plan(&PodInput { pod, ..Default::default() }, &FeatureGates::default()).expect("a plan").plan
}

fn played(plan: &Plan, second: Value) -> Outcome {
    let script = json!({"containers": {
        "crashes": {"ready_after": "1s", "instances": [{"runs": "4s", "exit": 1}, second]},
        "slow": {"ready_after": "10s"},
    }});
    let script: Script = serde_json::from_value(script).expect("a script");
    let options = Options { horizon: ScriptDuration::seconds(300), ..Options::default() };
    simulate(plan, &script, 0, &options).expect("it fits")
}

/// The KEP: "until they are all ready it will not return the non-sidecars". All sidecars must therefore be
/// ready at the same time, like the levels of Kruise (LP-23, LP-26). If a sidecar was ready and is restarted,
/// the mains wait until it is ready again. Only a sidecar that has ended for good, and can never be ready
/// again, does not block them.
#[test]
fn mains_wait_until_all_sidecars_are_ready_at_the_same_time() {
    let plan = planned();
    let main = plan.find("main").expect("a main");
    // The first sidecar was ready from 1 s to 4 s and is ready again later than the second.
    let back = played(&plan, json!({"ready_after": "20s"}));
    assert_eq!(back.ending, Ending::Finished);
    let began = |outcome: &Outcome| {
        let starts = outcome.trace.iter().filter(|entry| entry.container == Some(main));
        starts
            .filter(|entry| matches!(entry.event, TraceEvent::Container(ContainerEvent::Starting { .. })))
            .map(|e| e.time.0)
            .next()
    };
    let at = began(&back).expect("it starts");
    assert!((24_000..60_000).contains(&at), "{at}");
    // It is never ready again. The mains wait, and the reason is reported.
    let never = played(&plan, json!({"ready_after": "forever"}));
    assert_eq!((began(&never), never.ending), (None, Ending::OutOfTime));
    let (_, wait) = never.waits.iter().find(|(c, _)| *c == main).expect("it waits");
    let why = explain(&plan, &never.observation, main, *wait, Time(never.duration_ms));
    assert!(why.contains("waits for `crashes` to be ready"), "{why}");
    // A sidecar that was ready and has ended for good does not block them.
    let ended = played(&plan, json!({"runs": "4s", "exit": 0}));
    let at = began(&ended).expect("it starts");
    assert!((10_000..60_000).contains(&at), "{at}");
}
