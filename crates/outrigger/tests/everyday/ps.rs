//! `outrigger ps`.

use serde_json::{Value, json};

use crate::command::{is_up, must, say, start};
use crate::run::{Bench, Test};

pub(crate) const ALL: [(&str, Test); 3] = [
    ("ps_says_why_a_container_waits", why),
    ("a_pod_in_two_runs_is_chosen_by_its_run", two_runs),
    ("a_run_is_found_by_its_state_directory", state_dir),
];

/// The option and the variable have the same meaning, also for runs in the foreground.
fn state_dir(bench: &Bench, name: &str) {
    let name = &name.replace('_', "-");
    let spec = json!({"terminationGracePeriodSeconds": 1, "containers": [bench.container("app", "echo up; sleep 600")]});
    let run = start(bench, name, spec, is_up);
    let all: Value = serde_json::from_str(&must(bench, &["ps", "-o", "json", name])).expect("JSON");
    let own = all[0]["state_dir"].as_str().expect("its state directory").to_owned();
    let other = tempfile::tempdir().expect("a directory");
    let other = other.path().to_str().expect("a path");
    let ask = |args: &[&str], dir: &str| {
        let mut with_variable = crate::command::outrigger(bench, args);
        let by_variable = with_variable.env("OUTRIGGER_STATE_DIR", dir).output().expect("outrigger runs");
        let said = say(bench, &[args, &["--state-dir", dir]].concat());
        assert_eq!(by_variable.status.code(), Some(said.code), "{args:?}: {said:?}");
        assert_eq!(String::from_utf8_lossy(&by_variable.stdout), said.out, "{args:?}");
        said
    };
    assert_eq!(ask(&["ps", "-o", "name", name], &own).out, format!("pod/{name}\n"));
    assert_eq!(ask(&["logs", name], &own).out, "up\n");
    assert_eq!(ask(&["ps", "-o", "name"], other).out, "");
    for command in [&["logs", name][..], &["stop", name], &["ps", name]] {
        let said = ask(command, other);
        assert_eq!(said.code, 2, "{command:?}: {said:?}");
    }
    // `--all` means all pods with that state directory.
    let said = ask(&["stop", "--all"], other);
    assert!(said.err.contains("nothing to stop"), "{said:?}");
    assert!(is_up(&crate::command::pod(bench, name).expect("it is there")));
    drop(run);
}

fn why(bench: &Bench, name: &str) {
    let name = &name.replace('_', "-");
    let mut proxy = bench.container("proxy", "while [ ! -e /tmp/up ]; do sleep 0.1; done; sleep 600");
    proxy["restartPolicy"] = json!("Always");
    proxy["startupProbe"] =
        json!({"exec": {"command": ["test", "-e", "/tmp/up"]}, "periodSeconds": 1, "failureThreshold": 600});
    let spec = json!({"terminationGracePeriodSeconds": 1, "initContainers": [proxy],
        "containers": [bench.container("app", "sleep 600")]});
    let reason = |pod: &Value| pod["containers"][1]["reason"].as_str().unwrap_or_default().to_owned();
    let run = start(bench, name, spec, |pod| reason(pod).contains("startup probe failed"));
    let table = must(bench, &["ps", name]);
    let app = table.lines().find(|line| line.contains(" app ")).expect("a line for app");
    let words: Vec<&str> = app.split_whitespace().collect();
    assert_eq!(words[..5], [name.as_str(), "app", "main", "waiting", "0"], "{table}");
    assert!(app.contains("waits for `proxy` to be started: "), "{table}");
    let table = must(bench, &["ps"]);
    let line = table.lines().find(|line| line.starts_with(name.as_str())).expect("a line for the pod");
    assert!(line.contains(" Pending ") && line.contains(" 0/2 "), "{table}");
    assert!(line.contains(&format!(" {} ", run.pid())) && line.contains("manifest.json"), "{table}");
    assert!(line.contains("`proxy` running, startup probe"), "{table}");
    let all: Value = serde_json::from_str(&must(bench, &["ps", "-o", "json"])).expect("JSON");
    let own = all.as_array().expect("runs").iter().find(|r| r["pid"] == run.pid()).expect("this run");
    assert_eq!((&own["pods"][0]["name"], &own["pods"][0]["phase"]), (&json!(name), &json!("Pending")));
}

fn two_runs(bench: &Bench, _: &str) {
    let spec =
        json!({"terminationGracePeriodSeconds": 1, "containers": [bench.container("app", "sleep 600")]});
    let first = start(bench, "twin", spec.clone(), is_up);
    let manifest = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "twin"}, "spec": spec});
    let mut second = crate::run::Run::start(bench, "twin-again", &manifest, &[]);
    second.wait_for("second of two runs", |_| say(bench, &["ps", "twin"]).code == 2);
    let said = say(bench, &["stop", "twin"]);
    assert_eq!(said.code, 2, "{said:?}");
    assert!(said.err.contains("pod \"twin\" is in several runs: "), "{said:?}");
    assert!(said.err.contains("choose one with --run RUN"), "{said:?}");
    let pid = second.pid().to_string();
    must(bench, &["stop", "twin", "--run", &pid, "--grace-period", "0"]);
    second.end();
    let left: Value = serde_json::from_str(&must(bench, &["ps", "-o", "json", "pod/twin"])).expect("JSON");
    assert_eq!(left[0]["pid"], first.pid());
    let said = say(bench, &["ps", "nobody"]);
    assert_eq!(said.code, 2, "{said:?}");
    assert!(said.err.contains("no pod \"nobody\"; running: ") && said.err.contains("twin"), "{said:?}");
}
