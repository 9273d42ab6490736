//! `outrigger stop`.

use serde_json::{Value, json};

use crate::command::{is_up, pod, say, start};
use crate::run::{Bench, Run, Test};

pub(crate) const ALL: [(&str, Test); 3] = [
    ("a_pod_is_stopped_in_order", in_order),
    ("a_stop_may_be_left_to_itself", no_wait),
    ("a_run_in_the_foreground_is_stopped_as_a_whole_or_by_namespace", of_run),
];

/// Ends with a message when it gets TERM.
const POLITE: &str = "trap 'echo bye; exit 0' TERM; while :; do sleep 0.1; done";

fn of_run(bench: &Bench, name: &str) {
    let template = |app: &str| {
        json!({"metadata": {"labels": {"app": app}}, "spec": {"terminationGracePeriodSeconds": 30,
            "containers": [bench.container("app", POLITE)]}})
    };
    let set = |namespace: &str| {
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": namespace},
            "spec": {"replicas": 2, "selector": {"matchLabels": {"app": namespace}}, "template": template(namespace)}})
    };
    let mut pod = template("c");
    pod["apiVersion"] = json!("v1");
    pod["kind"] = json!("Pod");
    pod["metadata"] = json!({"name": "alone", "namespace": "b"});
    let manifest = json!({"apiVersion": "v1", "kind": "List", "items": [set("a"), set("b"), pod]});
    let mut run = Run::start(bench, name, &manifest, &[]);
    let pid = run.pid().to_string();
    let of_run = format!("run/{pid}");
    let up = |namespace: &str| {
        let said = say(bench, &["ps", "-o", "json", "--run", &pid, "-n", namespace]);
        let runs: Value = serde_json::from_str(&said.out).unwrap_or_default();
        let pods = runs[0]["pods"].as_array().cloned().unwrap_or_default();
        pods.iter().filter(|pod| pod["over"] != true && pod["phase"] == "Running").count()
    };
    run.wait_for("all pods", |_| (up("a"), up("b")) == (2, 3));
    // With a namespace, workloads and pods of other namespaces continue, and nothing is replaced.
    let said = say(bench, &["stop", "--all", "-n", "nowhere", "--run", &pid]);
    assert_eq!(
        (said.code, said.err.contains("no pods are running in namespace nowhere")),
        (0, true),
        "{said:?}"
    );
    let said = say(bench, &["stop", &of_run, "-n", "b"]);
    assert_eq!(said.code, 0, "{said:?}");
    assert_eq!((up("a"), up("b")), (2, 0), "{said:?}");
    let said = say(bench, &["stop", "run/4194305"]);
    assert_eq!((said.code, said.err.contains("no run 4194305; your runs: ")), (2, true), "{said:?}");
    let said = say(bench, &["stop", &of_run]);
    assert_eq!(said.code, 0, "{said:?}");
    assert!(said.err.ends_with(&format!("run {pid} is gone\n")), "{said:?}");
    run.end();
}

fn in_order(bench: &Bench, name: &str) {
    let name = &name.replace('_', "-");
    let mut proxy = bench.container("proxy", POLITE);
    proxy["restartPolicy"] = json!("Always");
    let slow = "trap 'sleep 1; exit 0' TERM; while :; do sleep 0.1; done";
    let spec = json!({"terminationGracePeriodSeconds": 30, "restartPolicy": "Never", "initContainers": [proxy],
        "containers": [bench.container("app", slow)]});
    let mut run = start(bench, name, spec, is_up);
    let said = say(bench, &["stop", &format!("pod/{name}")]);
    assert_eq!(said.code, 0, "{said:?}\n{}", run.account());
    assert!(said.err.contains("waiting for proxy (to stop), app (stopping)"), "{said:?}");
    assert!(said.err.ends_with(&format!("{name} is gone\n")), "{said:?}");
    assert_eq!(run.end(), 0, "{}", run.account());
    let exited = |container: &str| run.must(json!({"event": "exited", "container": container}));
    let signalled = run.must(json!({"event": "terminating", "container": "proxy"}));
    assert!(exited("app") < signalled && signalled < exited("proxy"), "{}", run.account());
}

fn no_wait(bench: &Bench, name: &str) {
    let name = &name.replace('_', "-");
    let deaf = "trap '' TERM; while :; do sleep 0.1; done";
    let spec = json!({"terminationGracePeriodSeconds": 600, "restartPolicy": "Never",
        "containers": [bench.container("app", deaf)]});
    let mut run = start(bench, name, spec, is_up);
    let said = say(bench, &["stop", name, "--no-wait"]);
    assert_eq!((said.code, said.err.as_str()), (0, ""), "{said:?}");
    run.wait_for("stop", |_| pod(bench, name).is_some_and(|pod| pod["stopping"] == true));
    let said = say(bench, &["stop", name, "--grace-period", "0"]);
    assert_eq!(said.code, 0, "{said:?}");
    assert_eq!(run.end(), 137, "{}", run.account());
}
