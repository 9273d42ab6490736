//! Simulates a five-container job a million times on one core: `cargo run --release -p outrigger-simulate
//! --example million`.

use k8s_openapi::api::core::v1::Pod;
use outrigger_lifecycle::{Engine, FeatureGates, PodInput, Time, plan};
use outrigger_simulate::{Ending, Options, Scenario, Script, Simulator};
use serde_json::json;

const LIVES: u64 = 1_000_000;

fn main() {
    let probe = json!({"periodSeconds": 1, "httpGet": {"port": 80}});
    let sidecar =
        |name: &str| json!({"name": name, "image": "i", "restartPolicy": "Always", "startupProbe": probe});
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "job"},
        "spec": {
            "restartPolicy": "Never",
            "initContainers": [{"name": "init", "image": "i"}, sidecar("proxy"), sidecar("logs")],
            "containers": [{"name": "work", "image": "i", "readinessProbe": probe}, {"name": "more", "image": "i"}],
        },
    }))
    .expect("a pod");
    let input = PodInput { pod, ..Default::default() };
    let plan = plan(&input, &FeatureGates::default()).expect("a plan").plan;
    // Some faults make all runs different.
    let script: Script = serde_json::from_value(
        json!({"faults": {"lose": 0.02, "duplicate": 0.02, "delay": 0.05, "jitter": 0.3}}),
    )
    .expect("a script");
    let scenario = Scenario::new(&plan, &script).expect("it fits");
    let mut simulator = Simulator::new();
    let (mut steps, mut events) = (0, 0);
    for seed in 0..LIVES {
        let mut engine = Engine::new(plan.clone(), Time(0));
        let summary = simulator.run(&mut engine, &scenario, seed, &Options::default(), &mut ());
        assert_eq!(summary.ending, Ending::Finished, "seed {seed}");
        steps += summary.counters.steps;
        events += summary.counters.events;
    }
    println!("{LIVES} lives, {events} events, {steps} decisions");
}
