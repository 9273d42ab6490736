//! Trace entries as sentences. The container, or the pod, is the unnamed subject: "exited with code 0 after 10 ms".

use outrigger_lifecycle::Span;
use serde_json::Value;

/// How much a sentence matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Weight {
    /// Part of the usual course.
    Routine,
    /// Worth keeping on the screen even where a view shows the state of things.
    Notable,
    /// Something went wrong.
    Trouble,
}

/// One entry, told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// How much it matters.
    pub weight: Weight,
    /// The sentence.
    pub text: String,
    /// What is to be learned from it.
    pub hint: Option<String>,
}

impl Told {
    pub(crate) fn new(weight: Weight, text: String) -> Told {
        Told { weight, text, hint: None }
    }
}

/// A length of time, to the millisecond while it is short.
pub(crate) fn span(ms: u64) -> String {
    match ms {
        0..1_000 => format!("{ms} ms"),
        _ => Span(ms).to_string(),
    }
}

/// A length of time that goes on: no finer than what an eye can follow.
pub(crate) fn age(ms: u64) -> String {
    match ms {
        0..10_000 => Span(ms / 100 * 100).to_string(),
        _ => Span(ms / 1_000 * 1_000).to_string(),
    }
}

/// The name of a signal, as far as people know them.
pub fn signal(number: i64) -> String {
    let known = match number {
        1 => "HUP",
        2 => "INT",
        3 => "QUIT",
        4 => "ILL",
        6 => "ABRT",
        7 => "BUS",
        8 => "FPE",
        9 => "KILL",
        11 => "SEGV",
        13 => "PIPE",
        14 => "ALRM",
        15 => "TERM",
        _ => return format!("signal {number}"),
    };
    known.to_owned()
}

/// Tells an entry, given as the JSON object of the events file. `None` for entries that say nothing a neighbour does
/// not say better.
pub fn tell(entry: &Value) -> Option<Told> {
    let mut told = tell_event(entry)?;
    if let Some(hint) = hint(entry) {
        told.weight = Weight::Trouble;
        told.hint = Some(hint);
    }
    Some(told)
}

/// The hint of an entry: where the manifest asks for what went wrong, and what to do. `job.yaml:12: check the name`.
pub(crate) fn hint(entry: &Value) -> Option<String> {
    let e = Entry(entry);
    match (e.text("manifest"), e.text("hint")) {
        ("", "") => None,
        ("", hint) => Some(hint.to_owned()),
        (place, "") => Some(format!("see {place}")),
        (place, hint) => Some(format!("{place}: {hint}")),
    }
}

fn tell_event(entry: &Value) -> Option<Told> {
    let e = Entry(entry);
    let routine = |text: String| Some(Told::new(Weight::Routine, text));
    let notable = |text: String| Some(Told::new(Weight::Notable, text));
    let trouble = |text: String| Some(Told::new(Weight::Trouble, text));
    match e.text("event") {
        "sandbox-creating" => match e.number("attempt") {
            Some(n) if n > 0 => notable(format!("creating sandbox again (number {})", n + 1)),
            _ => routine("creating sandbox".to_owned()),
        },
        "sandbox-ready" => routine("sandbox created".to_owned()),
        "sandbox-failed" => {
            trouble(format!("could not create sandbox: {}{}", e.text("message"), e.next_try()))
        }
        "sandbox-lost" => trouble("lost its sandbox".to_owned()),
        "pulling" => routine("pulling image".to_owned()),
        "pulled" => routine("image ready".to_owned()),
        "pull-failed" => trouble(format!(
            "could not pull image: {}: {}{}",
            e.text("error"),
            e.text("message"),
            e.next_try()
        )),
        "image-changed" => notable("image has changed".to_owned()),
        // For programs.
        "planned" => None,
        // The pod says so once, for all.
        "waiting" if e.text("for") == "sandbox" => None,
        // The failure itself has just said why, and when the next try is.
        "waiting" if matches!(e.text("for"), "image-retry" | "start-retry") => None,
        "waiting" => match e.text("for") {
            "back-off" => notable(e.text("text").to_owned()),
            _ => routine(e.text("text").to_owned()),
        },
        "starting" => starting(e),
        "started" => routine("running".to_owned()),
        "startup-passed" => routine("started: startup probe passed".to_owned()),
        "ready" => routine("ready".to_owned()),
        "unready" => notable("no longer ready".to_owned()),
        "probe" => probe(e),
        "hook-started" => routine(match e.number("limit_ms") {
            Some(limit) => format!("running {} hook (at most {})", e.text("hook"), Span(limit)),
            None => format!("running {} hook", e.text("hook")),
        }),
        "hook-ended" => match e.text("error") {
            "" => routine(format!("{} hook done", e.text("hook"))),
            error => trouble(format!("{} hook failed: {error}", e.text("hook"))),
        },
        "hook-cancelled" => notable(format!("{} hook cancelled", e.text("hook"))),
        "hook-output" => notable(format!("{} hook output: {}", e.text("hook"), e.text("output").trim_end())),
        "terminating" => {
            routine(format!("sent stop signal; SIGKILL in {}", Span(e.number("kill_in_ms").unwrap_or(0))))
        }
        "stop-signal-ignored" => {
            let (signal, left) = (e.text("signal"), Span(e.number("kill_in_ms").unwrap_or(0)));
            trouble(match e.text("why") {
                "ignored" => format!("ignores SIG{signal}, so it will be killed in {left}"),
                _ => format!("is process 1 without a SIG{signal} handler, so it will be killed in {left}"),
            })
        }
        "killing" => match e.text("reason") {
            "ExceededGracePeriod" => trouble("killed: grace period is over".to_owned()),
            _ => trouble("killed".to_owned()),
        },
        // The pod says so once, for all; `terminating` says when it really happens.
        "kill-begun" if e.text("cause") == "pod-stop" => None,
        "kill-begun" => trouble(format!("stopping: {}", e.text("message"))),
        "exited" => exited(e),
        "start-failed" => {
            trouble(format!("could not start: {}: {}{}", e.text("error"), e.text("message"), e.next_try()))
        }
        "lost" => trouble("lost: the runtime does not know whether it is running".to_owned()),
        "stop-begun" => stop_begun(e),
        "stop-shortened" => {
            notable(format!("{} of the grace period left", Span(e.number("left_ms").unwrap_or(0))))
        }
        "rerun-begun" => notable(match e.text("cause") {
            "rule" => "restarting the whole pod: a restart rule of a container matched".to_owned(),
            _ => "restarting the whole pod".to_owned(),
        }),
        "rerun" => notable("starting again from the first container".to_owned()),
        // Its end is told by `finished`.
        "phase" if matches!(e.text("to"), "Succeeded" | "Failed") => None,
        "phase" => routine(format!("phase {}", e.text("to"))),
        "finished" => match e.text("phase") {
            "Succeeded" => routine("succeeded".to_owned()),
            "Failed" => trouble("failed".to_owned()),
            other => routine(format!("ended: {other}")),
        },
        other => routine(other.to_owned()),
    }
}

fn starting(e: Entry<'_>) -> Option<Told> {
    if let Some(restarts) = e.number("restarts") {
        let text = format!("starting again (restart {restarts})");
        return Some(Told::new(Weight::Notable, text));
    }
    let opened = &e.0["opened_last"];
    let text = match (opened["container"].as_str(), opened["need"].as_str()) {
        (Some(name), Some("launched")) => format!("starting after `{name}`"),
        (Some(name), Some("completed")) => format!("starting: `{name}` has completed"),
        (Some(name), Some(need)) => format!("starting: `{name}` is {need}"),
        _ => "starting".to_owned(),
    };
    Some(Told::new(Weight::Routine, text))
}

fn probe(e: Entry<'_>) -> Option<Told> {
    let kind = e.text("kind");
    if e.text("outcome") == "success" {
        // Startup and readiness are told by what follows from them.
        let text = format!("{kind} probe passes");
        return (kind == "liveness").then_some(Told::new(Weight::Routine, text));
    }
    if e.text("outcome") == "error" {
        let why = e.text("message").trim_end();
        let text = format!("{kind} probe could not run, which does not count as a failure: {why}");
        return Some(Told::new(Weight::Trouble, text));
    }
    let (count, of) = (e.number("counted").or(e.number("failures")), e.number("threshold"));
    let mut text = match (count, of) {
        (Some(count), Some(of)) if count > 0 => format!("{kind} probe failed ({count} of {of})"),
        _ => format!("{kind} probe failed"),
    };
    if !e.text("message").is_empty() {
        text = format!("{text}: {}", e.text("message").trim_end());
    }
    let turned = e.text("verdict") == "failure";
    let weight = if turned && kind != "readiness" { Weight::Trouble } else { Weight::Routine };
    Some(Told::new(weight, text))
}

fn exited(e: Entry<'_>) -> Option<Told> {
    let code = e.0["code"].as_i64().unwrap_or(0);
    let after = e.number("ran_ms").map_or(String::new(), |ms| format!(" after {}", span(ms)));
    let message = e.text("message").trim_end();
    let said = if message.is_empty() { String::new() } else { format!(": {message}") };
    let signal = e.0["signal"].as_i64().map(signal);
    let text = match (e.text("reason"), signal) {
        ("OOMKilled", _) => format!("killed: out of memory (code {code}){after}{said}"),
        ("StartError", _) => format!("could not start (code {code}){said}"),
        ("ContainerStatusUnknown", _) => format!("gone, exit status unknown (code {code}){after}{said}"),
        (_, Some(signal)) => format!("killed by SIG{signal} (code {code}){after}{said}"),
        _ => format!("exited with code {code}{after}{said}"),
    };
    // One that was told to go may say so in its code.
    let expected = code == 0 || !e.text("killed_for").is_empty();
    let weight = if expected && e.text("reason") != "OOMKilled" { Weight::Notable } else { Weight::Trouble };
    Some(Told::new(weight, text))
}

fn stop_begun(e: Entry<'_>) -> Option<Told> {
    let grace = Span(e.number("grace_ms").unwrap_or(0));
    let why = e.text("message");
    // Mains that are done may have failed.
    let is_good = e.text("cause") == "completed" && !why.starts_with("container ");
    let weight = match e.text("cause") {
        "completed" if is_good => Weight::Routine,
        "deleted" => Weight::Notable,
        _ => Weight::Trouble,
    };
    let text = match e.text("cause") {
        _ if e.number("running") == Some(0) && is_good => why.to_owned(),
        _ if e.number("running") == Some(0) => format!("has ended: {why}"),
        "completed" if is_good => format!("{why}; stopping the remaining containers (grace period {grace})"),
        _ => format!("stopping: {why} (grace period {grace})"),
    };
    Some(Told::new(weight, text))
}

/// An entry as it stands in an events file.
#[derive(Clone, Copy)]
struct Entry<'a>(&'a Value);

impl<'a> Entry<'a> {
    /// A detail; empty if it is not there.
    fn text(self, key: &str) -> &'a str {
        self.0[key].as_str().unwrap_or_default()
    }

    fn number(self, key: &str) -> Option<u64> {
        self.0[key].as_u64()
    }

    fn next_try(self) -> String {
        self.number("retry_in_ms").map_or(String::new(), |ms| format!("; next try in {}", Span(ms)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn entries_read_as_sentences() {
        let table = [
            (
                json!({"event": "exited", "code": 0, "reason": "Completed", "ran_ms": 10}),
                "exited with code 0 after 10 ms",
            ),
            (
                json!({"event": "exited", "code": 1, "reason": "Error", "ran_ms": 61_000, "message": "no config\n"}),
                "exited with code 1 after 1 min 1 s: no config",
            ),
            (
                json!({"event": "exited", "code": 137, "signal": 9, "reason": "Error", "ran_ms": 1_500}),
                "killed by SIGKILL (code 137) after 1.5 s",
            ),
            (
                json!({"event": "exited", "code": 137, "signal": 9, "reason": "OOMKilled", "ran_ms": 5}),
                "killed: out of memory (code 137) after 5 ms",
            ),
            (
                json!({"event": "waiting", "for": "gate", "text": "waits for `a` to be ready: x"}),
                "waits for `a` to be ready: x",
            ),
            (
                json!({"event": "starting", "attempt": 0, "opened_last": {"container": "a", "need": "ready"}}),
                "starting: `a` is ready",
            ),
            (json!({"event": "starting", "attempt": 2, "restarts": 2}), "starting again (restart 2)"),
            (
                json!({"event": "probe", "kind": "startup", "outcome": "failure", "failures": 2, "threshold": 3, "message": "exit code 1"}),
                "startup probe failed (2 of 3): exit code 1",
            ),
            (
                json!({"event": "probe", "kind": "liveness", "outcome": "error", "failures": 0, "threshold": 3, "message": "no such file"}),
                "liveness probe could not run, which does not count as a failure: no such file",
            ),
            (
                json!({"event": "pull-failed", "error": "ErrImagePull", "message": "not found", "retry_in_ms": 10_000}),
                "could not pull image: ErrImagePull: not found; next try in 10 s",
            ),
            (
                json!({"event": "stop-begun", "cause": "completed", "grace_ms": 30_000, "message": "has completed"}),
                "has completed; stopping the remaining containers (grace period 30 s)",
            ),
            (
                json!({"event": "stop-begun", "cause": "completed", "grace_ms": 30_000, "running": 0, "message": "has completed"}),
                "has completed",
            ),
            (
                json!({"event": "stop-begun", "cause": "init-failed", "grace_ms": 30_000, "running": 0, "message": "init container `i` failed and is not restarted"}),
                "has ended: init container `i` failed and is not restarted",
            ),
            (
                json!({"event": "stop-begun", "cause": "completed", "grace_ms": 30_000, "message": "container `app` failed with code 1"}),
                "stopping: container `app` failed with code 1 (grace period 30 s)",
            ),
            (
                json!({"event": "kill-begun", "cause": "liveness", "message": "its liveness probe failed"}),
                "stopping: its liveness probe failed",
            ),
            (
                json!({"event": "hook-ended", "hook": "preStop", "error": "exit code 2"}),
                "preStop hook failed: exit code 2",
            ),
        ];
        for (entry, expected) in table {
            assert_eq!(tell(&entry).map(|t| t.text).as_deref(), Some(expected), "{entry}");
        }
    }

    #[test]
    fn what_is_said_twice_is_told_once() {
        for entry in [
            json!({"event": "waiting", "for": "sandbox", "text": "waits for the pod's sandbox: being made"}),
            json!({"event": "kill-begun", "cause": "pod-stop", "message": "the pod stops"}),
            json!({"event": "phase", "from": "Running", "to": "Failed"}),
            json!({"event": "probe", "kind": "readiness", "outcome": "success", "verdict": "success"}),
        ] {
            assert_eq!(tell(&entry), None, "{entry}");
        }
    }

    #[test]
    fn weights_follow_what_went_wrong() {
        let weight = |entry: Value| tell(&entry).map(|t| t.weight);
        assert_eq!(weight(json!({"event": "exited", "code": 0})), Some(Weight::Notable));
        assert_eq!(weight(json!({"event": "exited", "code": 3})), Some(Weight::Trouble));
        assert_eq!(
            weight(json!({"event": "exited", "code": 143, "killed_for": "pod-stop"})),
            Some(Weight::Notable)
        );
        assert_eq!(weight(json!({"event": "started"})), Some(Weight::Routine));
        assert_eq!(weight(json!({"event": "stop-begun", "cause": "fatal"})), Some(Weight::Trouble));
        assert_eq!(weight(json!({"event": "finished", "phase": "Failed"})), Some(Weight::Trouble));
    }

    #[test]
    fn times_are_as_fine_as_they_are_short() {
        assert_eq!((span(7), span(999), span(1_000)), ("7 ms".into(), "999 ms".into(), "1 s".into()));
        assert_eq!((age(990), age(9_960), age(12_900)), ("0.9 s".into(), "9.9 s".into(), "12 s".into()));
        assert_eq!(age(125_900), "2 min 5 s");
    }
}
