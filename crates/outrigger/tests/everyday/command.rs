//! Runs commands as if in another terminal.

use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::run::{Bench, Run};

/// The output of a command, and its exit code.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// A command that finds the runs of the tests.
pub(crate) fn outrigger(bench: &Bench, args: &[&str]) -> Command {
    let mut command = Command::new(&bench.binary);
    command.args(args).env("OUTRIGGER_RUNTIME_DIR", bench.sockets()).env_remove("NO_COLOR");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs a command to completion.
pub(crate) fn say(bench: &Bench, args: &[&str]) -> Said {
    let output = outrigger(bench, args).output().expect("outrigger runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    Said { code: output.status.code().unwrap_or(-1), out: text(output.stdout), err: text(output.stderr) }
}

/// Runs a command that must succeed. Returns its standard output.
pub(crate) fn must(bench: &Bench, args: &[&str]) -> String {
    let said = say(bench, args);
    assert_eq!(said.code, 0, "{args:?}: {said:?}");
    said.out
}

/// A pod as shown by `outrigger ps -o json POD`.
pub(crate) fn pod(bench: &Bench, name: &str) -> Option<Value> {
    let said = say(bench, &["ps", "-o", "json", name]);
    let runs: Value = serde_json::from_str(&said.out).ok()?;
    Some(runs[0]["pods"][0].clone()).filter(|_| said.code == 0)
}

/// Starts a run of one pod and waits until a condition holds for it in `outrigger ps`.
pub(crate) fn start(bench: &Bench, name: &str, spec: Value, what: impl Fn(&Value) -> bool) -> Run {
    let manifest = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec});
    let mut run = Run::start(bench, name, &manifest, &[]);
    run.wait_for("pod as wanted", |_| pod(bench, name).is_some_and(|pod| what(&pod)));
    run
}

/// Whether all long-running containers are ready.
pub(crate) fn is_up(pod: &Value) -> bool {
    pod["ready"] == pod["total"]
}
