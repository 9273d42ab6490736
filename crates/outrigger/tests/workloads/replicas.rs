//! Tests workloads whose pods are kept running.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::run::{Bench, Run, Test};

pub(crate) const ALL: [(&str, Test); 5] = [
    (
        "a_stateful_set_starts_in_order_and_stops_in_reverse",
        a_stateful_set_starts_in_order_and_stops_in_reverse,
    ),
    ("a_parallel_stateful_set_waits_for_nobody", a_parallel_stateful_set_waits_for_nobody),
    ("a_deployment_runs_until_it_is_stopped", a_deployment_runs_until_it_is_stopped),
    ("a_daemon_set_has_one_pod", a_daemon_set_has_one_pod),
    ("replicas_need_something_to_replicate", replicas_need_something_to_replicate),
];

/// Becomes ready a moment after its start, and prints a message at its end.
const SERVER: &str =
    "trap 'echo bye $(hostname); exit 0' TERM; sleep 0.3; touch /tmp/ready; sleep 600 & wait";

fn workload(bench: &Bench, kind: &str, spec: Value) -> Value {
    let mut container = bench.container("main", SERVER);
    container["readinessProbe"] =
        json!({"exec": {"command": ["/bin/test", "-f", "/tmp/ready"]}, "periodSeconds": 1});
    let mut object =
        json!({"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "web"}, "spec": spec});
    object["spec"]["selector"] = json!({"matchLabels": {"app": "web"}});
    object["spec"]["template"] =
        json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [container]}});
    if kind == "StatefulSet" {
        object["spec"]["serviceName"] = json!("web");
    }
    object
}

fn ready(run: &Run) -> usize {
    run.events_named("ready").len()
}

fn a_stateful_set_starts_in_order_and_stops_in_reverse(bench: &Bench, name: &str) {
    let set = workload(bench, "StatefulSet", json!({"replicas": 3}));
    let mut run = Run::start(bench, name, &set, &[]);
    run.wait_for("all to be ready", |run| ready(run) == 3);
    run.wait_for("the status", |run| {
        run.objects("StatefulSet").first().is_some_and(|s| s["status"]["readyReplicas"] == 3)
    });
    for ordinal in 1..3 {
        let before = format!("web-{}", ordinal - 1);
        let made = run.must(json!({"event": "pod-created", "pod": format!("web-{ordinal}")}));
        let ready = run.must(json!({"event": "ready", "pod": before}));
        assert!(ready < made, "web-{ordinal} waits for {before}\n{}", run.account());
    }
    run.signal(Signal::INT);
    assert_eq!(run.end(), 130, "{}", run.account());
    for ordinal in 0..2 {
        let after = format!("web-{}", ordinal + 1);
        let told = run.must(json!({"event": "pod-deleted", "pod": format!("web-{ordinal}")}));
        let gone = run.must(json!({"event": "finished", "pod": after}));
        assert!(gone < told, "web-{ordinal} stops after {after}\n{}", run.account());
    }
    for ordinal in 0..3 {
        assert!(run.output().contains(&format!("bye web-{ordinal}\n")), "{}", run.account());
    }
}

fn a_parallel_stateful_set_waits_for_nobody(bench: &Bench, name: &str) {
    let set = workload(
        bench,
        "StatefulSet",
        json!({"replicas": 2, "podManagementPolicy": "Parallel", "ordinals": {"start": 5}}),
    );
    let mut run = Run::start(bench, name, &set, &[]);
    run.wait_for("all to be ready", |run| ready(run) == 2);
    let made = run.must(json!({"event": "pod-created", "pod": "web-6"}));
    assert!(made < run.must(json!({"event": "ready"})), "{}", run.account());
    run.must(json!({"event": "pod-created", "pod": "web-5"}));
    run.signal(Signal::TERM);
    assert_eq!(run.end(), 143, "{}", run.account());
}

fn a_deployment_runs_until_it_is_stopped(bench: &Bench, name: &str) {
    let deployment = workload(bench, "Deployment", json!({"replicas": 1}));
    let mut run = Run::start(bench, name, &deployment, &["--replicas", "2"]);
    run.wait_for("both pods", |run| ready(run) == 2);
    run.wait_for("the status", |run| {
        run.objects("Deployment").first().is_some_and(|d| d["status"]["availableReplicas"] == 2)
    });
    run.signal(Signal::TERM);
    assert_eq!(run.end(), 143, "{}", run.account());
    assert_eq!(run.output().matches("bye").count(), 2, "{}", run.account());
    assert_eq!(run.objects("Pod").len(), 2, "nothing is made again");
    let owner = &run.objects("Pod")[0]["metadata"]["ownerReferences"][0];
    assert_eq!(owner["kind"], "ReplicaSet");
}

fn a_daemon_set_has_one_pod(bench: &Bench, name: &str) {
    let mut run = Run::start(bench, name, &workload(bench, "DaemonSet", json!({})), &[]);
    run.wait_for("the status", |run| {
        run.objects("DaemonSet").first().is_some_and(|d| d["status"]["numberReady"] == 1)
    });
    assert_eq!(run.objects("Pod").len(), 1);
    run.signal(Signal::INT);
    assert_eq!(run.end(), 130, "{}", run.account());
}

fn replicas_need_something_to_replicate(bench: &Bench, name: &str) {
    let job = bench.job("j", json!({}), "true");
    let mut run = Run::start(bench, name, &job, &["--replicas", "2"]);
    assert_eq!(run.end(), 2, "{}", run.account());
    assert!(run.said().contains("--replicas needs a Deployment"), "{}", run.account());
}
