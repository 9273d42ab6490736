//! Renders trace entries as sentences without their subject, the container or the pod: "exited with code 0
//! after 10 ms".

use outrigger_lifecycle::trace::{
    ContainerEvent, IgnoredBecause, KillingReason, OpenedGate, PodEvent, Record, RerunReason, StopReason,
    TraceEvent, WaitReason,
};
use outrigger_lifecycle::{
    ExitReason, KillReason, Need, Phase, ProbeKind, ProbeOutcome, STOP_MIN_MS, Verdict,
};
use outrigger_text::HumanDuration;

/// How important a sentence is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Weight {
    /// An expected event.
    Routine,
    /// An event that stays on the screen even with a live view.
    Notable,
    /// A failure.
    Trouble,
}

/// One entry as a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sentence {
    /// How important it is.
    pub weight: Weight,
    /// The sentence.
    pub text: String,
    /// How to fix a failure.
    pub hint: Option<String>,
}

impl Sentence {
    pub(crate) fn new(weight: Weight, text: String) -> Sentence {
        Sentence { weight, text, hint: None }
    }
}

/// A duration, with milliseconds if it is short.
pub(crate) fn span(ms: u64) -> String {
    match ms {
        0..1_000 => format!("{ms} ms"),
        _ => HumanDuration(ms).to_string(),
    }
}

/// A text such as `grace period 30 s`. Containers have a minimum time to react, which may be longer.
pub(crate) fn grace_period(ms: u64) -> String {
    match ms {
        1..STOP_MIN_MS => {
            format!(
                "grace period {}, but at least {} for each container",
                HumanDuration(ms),
                HumanDuration(STOP_MIN_MS)
            )
        }
        _ => format!("grace period {}", HumanDuration(ms)),
    }
}

/// A duration that keeps growing, with a precision that can be read.
pub(crate) fn age(ms: u64) -> String {
    match ms {
        0..10_000 => HumanDuration(ms / 100 * 100).to_string(),
        _ => HumanDuration(ms / 1_000 * 1_000).to_string(),
    }
}

/// The name of a signal, if it is a common one.
pub fn signal(number: i32) -> String {
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

/// The sentence of an entry. `None` if another entry describes the same event better.
pub fn tell(entry: &Record) -> Option<Sentence> {
    let mut told = match &entry.event {
        TraceEvent::Pod(event) => tell_pod(event),
        TraceEvent::Container(event) => tell_container(event),
    }?;
    if let Some(hint) = hint(entry) {
        told.weight = Weight::Trouble;
        told.hint = Some(hint);
    }
    Some(told)
}

/// The hint of an entry with the line of the manifest, such as `job.yaml:12: check the name`.
pub(crate) fn hint(entry: &Record) -> Option<String> {
    match (&entry.manifest, &entry.hint) {
        (None, None) => None,
        (None, Some(hint)) => Some(hint.clone()),
        (Some(place), None) => Some(format!("see {place}")),
        (Some(place), Some(hint)) => Some(format!("{place}: {hint}")),
    }
}

fn routine(text: String) -> Option<Sentence> {
    Some(Sentence::new(Weight::Routine, text))
}

fn notable(text: String) -> Option<Sentence> {
    Some(Sentence::new(Weight::Notable, text))
}

fn trouble(text: String) -> Option<Sentence> {
    Some(Sentence::new(Weight::Trouble, text))
}

fn tell_pod(event: &PodEvent) -> Option<Sentence> {
    match event {
        // This event is for programs.
        PodEvent::Planned { .. } => None,
        PodEvent::SandboxCreating { attempt: 0 } => routine("creating sandbox".to_owned()),
        PodEvent::SandboxCreating { attempt: before } => {
            notable(format!("creating sandbox again (number {})", before + 1))
        }
        PodEvent::SandboxReady => routine("sandbox created".to_owned()),
        PodEvent::SandboxFailed { message, retry_in_ms, .. } => {
            trouble(format!("could not create sandbox: {message}{}", next_try(*retry_in_ms)))
        }
        PodEvent::SandboxLost => trouble("lost its sandbox".to_owned()),
        PodEvent::StopBegun { .. } => stop_begun(event),
        PodEvent::StopShortened { left_ms } => {
            notable(format!("{} of the grace period left", HumanDuration(*left_ms)))
        }
        PodEvent::RerunBegun { cause, .. } => notable(match cause {
            RerunReason::Rule => "restarting the whole pod: a restart rule of a container matched".to_owned(),
            RerunReason::Sandbox | RerunReason::Requested => "restarting the whole pod".to_owned(),
        }),
        PodEvent::Rerun => notable("starting again from the first container".to_owned()),
        // `finished` reports the end.
        PodEvent::Phase { to: Phase::Succeeded | Phase::Failed, .. } => None,
        PodEvent::Phase { to, .. } => routine(format!("phase {}", to.name())),
        PodEvent::Finished { phase, stopped } => {
            let text = finished(*phase, *stopped).to_owned();
            if *phase == Phase::Failed && !stopped { trouble(text) } else { routine(text) }
        }
    }
}

fn tell_container(event: &ContainerEvent) -> Option<Sentence> {
    match event {
        // This event is for programs.
        ContainerEvent::Log { .. } => None,
        ContainerEvent::Pulling => routine("pulling image".to_owned()),
        ContainerEvent::Pulled => routine("image ready".to_owned()),
        ContainerEvent::PullFailed { error, message, retry_in_ms, .. } => {
            trouble(format!("could not pull image: {error}: {message}{}", next_try(*retry_in_ms)))
        }
        ContainerEvent::ImageChanged => notable("image has changed".to_owned()),
        ContainerEvent::Waiting { wait, text } => waiting(wait, text),
        ContainerEvent::Starting { restarts, opened_last, .. } => starting(*restarts, opened_last.as_ref()),
        ContainerEvent::Started { .. } => routine("running".to_owned()),
        ContainerEvent::StartupPassed => routine("started: startup probe passed".to_owned()),
        ContainerEvent::Ready => routine("ready".to_owned()),
        ContainerEvent::Unready => notable("no longer ready".to_owned()),
        ContainerEvent::Probe { .. } => probe(event),
        ContainerEvent::HookStarted { hook, limit_ms, .. } => {
            let limit =
                limit_ms.map_or(String::new(), |limit| format!(" (at most {})", HumanDuration(limit)));
            routine(format!("running {} hook{limit}", hook.name()))
        }
        ContainerEvent::HookEnded { hook, error: None, .. } => routine(format!("{} hook done", hook.name())),
        ContainerEvent::HookEnded { hook, error: Some(error), .. } => {
            trouble(format!("{} hook failed: {error}", hook.name()))
        }
        ContainerEvent::HookCancelled { hook, .. } => notable(format!("{} hook cancelled", hook.name())),
        ContainerEvent::HookOutput { hook, output } => {
            notable(format!("{} hook output: {}", hook.name(), output.trim_end()))
        }
        ContainerEvent::Terminating { kill_in_ms, .. } => {
            routine(format!("sent stop signal; SIGKILL in {}", HumanDuration(*kill_in_ms)))
        }
        ContainerEvent::StopSignalIgnored { signal, why, kill_in_ms } => {
            trouble(ignored(signal, *why, HumanDuration(*kill_in_ms)))
        }
        ContainerEvent::Killing { reason, .. } => trouble(match reason {
            Some(KillingReason::ExceededGracePeriod) => "killed: grace period is over".to_owned(),
            None => "killed".to_owned(),
        }),
        // The pod reports it once for all containers, and `terminating` reports when it happens.
        ContainerEvent::KillBegun { cause: KillReason::PodStop, .. } => None,
        ContainerEvent::KillBegun { message, .. } => trouble(format!("stopping: {message}")),
        ContainerEvent::Exited { .. } => exited(event),
        ContainerEvent::StartFailed { error, message, retry_in_ms, .. } => {
            trouble(format!("could not start: {error}: {message}{}", next_try(*retry_in_ms)))
        }
        ContainerEvent::Lost { .. } => {
            trouble("lost: the runtime does not know whether it is running".to_owned())
        }
    }
}

/// The word for the end of a pod. In Kubernetes, a stopped pod has the phase `Failed`, although nothing
/// failed.
pub(crate) fn finished(phase: Phase, stopped: bool) -> &'static str {
    match phase {
        Phase::Succeeded => "succeeded",
        Phase::Failed if stopped => "stopped",
        Phase::Failed => "failed",
        Phase::Pending | Phase::Running => "ended",
    }
}

fn ignored(signal: &str, why: IgnoredBecause, left: HumanDuration) -> String {
    match why {
        IgnoredBecause::Ignored => format!("ignores SIG{signal}, so it will be killed in {left}"),
        IgnoredBecause::NoHandler => {
            format!("is process 1 without a SIG{signal} handler, so it will be killed in {left}")
        }
    }
}

fn next_try(retry_in_ms: Option<u64>) -> String {
    retry_in_ms.map_or(String::new(), |ms| format!("; next try in {}", HumanDuration(ms)))
}

fn waiting(wait: &WaitReason, text: &str) -> Option<Sentence> {
    match wait {
        // The pod reports it once for all containers.
        WaitReason::Sandbox => None,
        // The entry of the failure has the reason, and the time of the next attempt.
        WaitReason::ImageRetry { .. } | WaitReason::StartRetry { .. } => None,
        WaitReason::BackOff { .. } => Some(Sentence::new(Weight::Notable, text.to_owned())),
        WaitReason::Gate { .. }
        | WaitReason::Image
        | WaitReason::StartupProbe
        | WaitReason::ReadinessProbe
        | WaitReason::StopTurn { .. }
        | WaitReason::FirstPreStop { .. }
        | WaitReason::SidecarDelay { .. }
        | WaitReason::Rerun { .. } => Some(Sentence::new(Weight::Routine, text.to_owned())),
    }
}

fn starting(restarts: Option<u32>, opened: Option<&OpenedGate>) -> Option<Sentence> {
    if let Some(restarts) = restarts {
        let text = format!("starting again (restart {restarts})");
        return Some(Sentence::new(Weight::Notable, text));
    }
    let text = match opened {
        None => "starting".to_owned(),
        Some(OpenedGate { container, need: Need::Launched }) => format!("starting after `{container}`"),
        Some(OpenedGate { container, need: Need::Completed }) => {
            format!("starting: `{container}` has completed")
        }
        Some(OpenedGate { container, need }) => format!("starting: `{container}` is {}", need.name()),
    };
    Some(Sentence::new(Weight::Routine, text))
}

fn probe(event: &ContainerEvent) -> Option<Sentence> {
    let ContainerEvent::Probe { kind, outcome, message, failures, counted, threshold, verdict, .. } = event
    else {
        return None;
    };
    let (name, message) = (kind.name(), message.as_deref().unwrap_or_default());
    match outcome {
        ProbeOutcome::Success => {
            // `started` and `ready` already report these.
            let text = format!("{name} probe passes");
            return (*kind == ProbeKind::Liveness).then_some(Sentence::new(Weight::Routine, text));
        }
        ProbeOutcome::Error => {
            let why = message.trim_end();
            let times = match (counted, threshold) {
                (Some(count), Some(of)) if count >= of && *count > 1 => format!(" {count} times in a row"),
                _ => String::new(),
            };
            let text = format!("{name} probe could not run{times}, which does not count as a failure: {why}");
            return Some(Sentence::new(Weight::Trouble, text));
        }
        ProbeOutcome::Failure => {}
    }
    let mut text = match (counted.or(*failures), threshold) {
        (Some(count), Some(of)) if count > 0 => format!("{name} probe failed ({count} of {of})"),
        _ => format!("{name} probe failed"),
    };
    if !message.is_empty() {
        text = format!("{text}: {}", message.trim_end());
    }
    let turned = *verdict == Some(Verdict::Failure);
    let weight = if turned && *kind != ProbeKind::Readiness { Weight::Trouble } else { Weight::Routine };
    Some(Sentence::new(weight, text))
}

fn exited(event: &ContainerEvent) -> Option<Sentence> {
    let ContainerEvent::Exited { code, signal: by, reason, message, ran_ms, killed_for, .. } = event else {
        return None;
    };
    let after = ran_ms.map_or(String::new(), |ms| format!(" after {}", span(ms)));
    let message = message.as_deref().unwrap_or_default().trim_end();
    let said = if message.is_empty() { String::new() } else { format!(": {message}") };
    let text = match (reason, by) {
        (Some(ExitReason::OomKilled), _) => format!("killed: out of memory (code {code}){after}{said}"),
        (Some(ExitReason::StartError), _) => format!("could not start (code {code}){said}"),
        (Some(ExitReason::ContainerStatusUnknown), _) => {
            format!("gone, exit status unknown (code {code}){after}{said}")
        }
        (_, Some(number)) => format!("killed by SIG{} (code {code}){after}{said}", signal(*number)),
        (_, None) => format!("exited with code {code}{after}{said}"),
    };
    // After a stop signal, a code other than 0 is expected.
    let expected = *code == 0 || killed_for.is_some();
    let is_good = expected && *reason != Some(ExitReason::OomKilled);
    Some(Sentence::new(if is_good { Weight::Notable } else { Weight::Trouble }, text))
}

fn stop_begun(event: &PodEvent) -> Option<Sentence> {
    let PodEvent::StopBegun { cause, because_of, grace_ms, running, message: why, .. } = event else {
        return None;
    };
    let grace = grace_period(grace_ms.unwrap_or(0));
    // The mains have ended, but may have failed.
    let is_good = *cause == StopReason::Completed && because_of.is_none();
    let weight = match cause {
        StopReason::Completed if is_good => Weight::Routine,
        StopReason::Deleted => Weight::Notable,
        _ => Weight::Trouble,
    };
    let text = match running {
        Some(0) if is_good => why.clone(),
        Some(0) => format!("has ended: {why}"),
        _ if is_good => format!("{why}; stopping the remaining containers ({grace})"),
        _ => format!("stopping: {why} ({grace})"),
    };
    Some(Sentence::new(weight, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_lifecycle::trace::Line;
    use serde_json::{Value, json};

    fn tell(entry: &Value) -> Option<Sentence> {
        super::tell(&Line::from_json(entry).unwrap().pod().unwrap())
    }

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
                json!({"event": "waiting", "for": "gate", "on": "a", "need": "ready", "text": "waits for `a` to be ready: x"}),
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
                json!({"event": "probe", "kind": "startup", "outcome": "error", "counted": 3, "threshold": 3, "message": "no such file"}),
                "startup probe could not run 3 times in a row, which does not count as a failure: no such file",
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
                json!({"event": "stop-begun", "cause": "completed", "because_of": "app", "grace_ms": 30_000, "message": "container `app` failed with code 1"}),
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
