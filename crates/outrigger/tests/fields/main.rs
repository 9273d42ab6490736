//! Tests the fields of a pod that users expect to work. Each is tried with real containers and checked from
//! outside: probes of every kind, networks and ports, namespaces, volumes, security, faults.

mod dumped;
mod faults;
mod life;
mod network;
mod probes;
mod security;
mod users;
mod volumes;

use outrigger_testkit::{run, server, trials};
use serde_json::{Value, json};

/// Helper functions for scripts.
const LIB: &str = r#"is() { [ "$2" = "$3" ] || { echo "WRONG $1: <$2> instead of <$3>"; exit 9; }; }
"#;

fn main() {
    if server::asked_for() {
        return;
    }
    let all = [
        dumped::ALL,
        faults::ALL,
        life::ALL,
        network::ALL,
        probes::ALL,
        security::ALL,
        users::ALL,
        volumes::ALL,
    ];
    trials::run("fields", trials::RunBy::Root, all.concat());
}

/// A pod that runs once.
fn pod(name: &str, spec: Value) -> Value {
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec});
    let spec = pod["spec"].as_object_mut().expect("a spec");
    spec.entry("restartPolicy").or_insert(json!("Never"));
    spec.entry("terminationGracePeriodSeconds").or_insert(json!(1));
    pod
}

/// `base` with the fields of `more`.
fn with(mut base: Value, more: Value) -> Value {
    let more = more.as_object().expect("fields").clone();
    base.as_object_mut().expect("an object").extend(more);
    base
}

/// Several documents.
fn list(items: &[Value]) -> Value {
    json!({"apiVersion": "v1", "kind": "List", "items": items})
}

/// Runs a pod with one container whose script checks something, and expects success.
fn check(bench: &run::Bench, name: &str, flags: &[&str], container: Value, spec: Value, script: &str) {
    let main = with(bench.container("main", &format!("{LIB}{script}")), container);
    let pod = pod("checked", with(json!({"containers": [main]}), spec));
    let mut run = run::Run::start(bench, name, &pod, flags);
    assert_eq!(run.end(), 0, "{}", run.account());
}
