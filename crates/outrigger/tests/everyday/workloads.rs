//! Pods selected by labels and by workload.

use serde_json::{Value, json};

use crate::command::{must, say};
use crate::run::{Bench, Run, Test};

pub(crate) const ALL: [(&str, Test); 1] = [("pods_go_by_label_and_by_workload", several)];

/// Runs until it is stopped.
const STAY: &str = "trap 'exit 0' TERM; while :; do sleep 0.1; done";

fn deployment(bench: &Bench, name: &str) -> Value {
    let app = bench.container("app", STAY);
    let log =
        bench.container("log", &format!("echo hello from $HOSTNAME; {}", STAY.replace("exit 0", "exit 3")));
    let labels = json!({"app": name, "tier": "front"});
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": labels}, "spec": {"terminationGracePeriodSeconds": 5,
                "containers": [app, log]}}}})
}

fn several(bench: &Bench, _: &str) {
    let name = "selected";
    let mut other = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "bystander", "labels": {"app": "other"}},
        "spec": {"terminationGracePeriodSeconds": 5, "restartPolicy": "Never"}});
    other["spec"]["containers"] = json!([bench.container("app", STAY)]);
    other["spec"]["containers"][0]["ports"] = json!([{"containerPort": 8080}]);
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [deployment(bench, name), other]});
    let mut run = Run::start(bench, name, &list, &[]);
    let names = |args: &[&str]| -> Vec<String> {
        let said = say(bench, &[&["ps", "-o", "name"], args].concat());
        said.out.lines().map(str::to_owned).collect()
    };
    let selected = ["-l", "app=selected,tier in (front,back)"];
    run.wait_for("two pods with logs", |run| {
        names(&selected).len() == 2 && run.output().matches("hello").count() == 2
    });
    let pods = names(&["deploy/selected"]);
    assert_eq!(pods, names(&selected));
    assert_eq!(names(&["-l", "app in (other)"]), ["pod/bystander"]);
    assert!(must(bench, &["ps", "-l", "app=other"]).contains(" 8080/TCP "));
    // Lines of several pods are prefixed.
    let logs = must(bench, &["logs", "deployments.apps/selected", "-c", "log"]);
    let full: Vec<&str> = pods.iter().map(|pod| pod.trim_start_matches("pod/")).collect();
    for pod in &full {
        let end = &pod[pod.len() - 5..];
        let line = logs.lines().find(|line| line.contains(&format!("{end} | hello from {pod}")));
        assert!(line.is_some(), "{logs}");
    }
    assert_eq!(must(bench, &["logs", full[0], "-c", "log"]), format!("hello from {}\n", full[0]));
    // No container was given, so the first main is used, with a note.
    let said = say(bench, &["exec", "deploy/selected", "echo", "-n", "it is", "-c"]);
    assert_eq!((said.code, said.out.as_str()), (0, "it is -c"), "{said:?}");
    assert!(said.err.ends_with("Defaulted container \"app\" out of: app, log\n"), "{said:?}");
    for (args, why) in [
        (&["logs", "deploy/nobody"][..], "no pods of Deployment/nobody; running: Deployment/selected"),
        (&["logs", "svc/web"], "unknown kind \"svc\""),
        (&["logs", "-l", "app=nobody"], "no pods with these labels"),
        (&["stop", "-l", "app is nobody"], "is not a label requirement"),
        (&["stop"], "required"),
    ] {
        let said = say(bench, args);
        assert_eq!(said.code, 2, "{args:?}: {said:?}");
        assert!(said.err.contains(why), "{args:?}: {said:?}");
    }
    // A single pod would be replaced, but a workload is not.
    let said = say(bench, &["stop", "-l", "app=selected"]);
    assert_eq!(said.code, 0, "{said:?}");
    assert!(said.err.contains("Deployment/selected may replace it"), "{said:?}");
    run.wait_for("successors", |_| names(&selected).iter().any(|pod| !pods.contains(pod)));
    let said = say(bench, &["stop", "deploy/selected"]);
    assert_eq!(said.code, 0, "{said:?}");
    assert!(said.err.contains("Deployment/selected is gone\n"), "{said:?}");
    // They have not failed: they were stopped.
    let table = must(bench, &["ps", "-a", "-l", "app=selected"]);
    assert!(table.contains(" Stopped ") && !table.contains(" Failed "), "{table}");
    let live = run.events_named("finished").len();
    let made = run.events_named("pod-created").len();
    assert_eq!(live, made, "all of them are gone\n{}", run.account());
    must(bench, &["stop", "bystander"]);
    assert_eq!(run.end(), 0, "{}", run.account());
}
