//! The words of the trace.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::decision::Wait;
use crate::observation::{HookKind, KillReason, Observation, StopCause};
use crate::plan::{Need, Plan, ProbeKind};
use crate::time::Time;

/// The word users know.
pub(super) fn hook_name(hook: HookKind) -> &'static str {
    match hook {
        HookKind::PostStart => "postStart",
        HookKind::PreStop => "preStop",
        HookKind::FirstPreStop => "first preStop",
    }
}

/// The word users know.
pub(super) fn need_name(need: Need) -> &'static str {
    match need {
        Need::Completed => "completed",
        Need::Started => "started",
        Need::Ready => "ready",
        Need::Launched => "launched",
    }
}

/// The name an enum without data serialises to, in lower case.
pub(super) fn kebab(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(Value::String(name)) => name.to_lowercase(),
        _ => String::new(),
    }
}

/// Why a container is ended, as the message of the `Killing` event.
pub(super) fn kill(reason: KillReason) -> &'static str {
    match reason {
        KillReason::Liveness => "its liveness probe failed",
        KillReason::Startup => "its startup probe failed",
        KillReason::PostStart => "its postStart hook failed",
        KillReason::ImageChanged => "its image changed",
        KillReason::Dependency => "a container it restarts with was restarted",
        KillReason::Fence => "a container it must not run without is not ready",
        KillReason::Unknown => "the runtime lost track of it",
        KillReason::PodStop => "the pod stops",
        KillReason::Rerun => "all containers are restarted",
    }
}

/// The cause of a stop, the container behind it and the one that was waited for.
pub(super) fn stop(cause: StopCause) -> (&'static str, Option<usize>, Option<usize>) {
    match cause {
        StopCause::Deleted => ("deleted", None, None),
        StopCause::Completed => ("completed", None, None),
        StopCause::InitFailed { container } => ("init-failed", Some(container), None),
        StopCause::DeadlineExceeded => ("deadline-exceeded", None, None),
        StopCause::Fatal { container } => ("fatal", Some(container), None),
        StopCause::GateNeverOpens { container, on } => ("gate-never-opens", Some(container), Some(on)),
        StopCause::SandboxLost => ("sandbox-lost", None, None),
    }
}

/// The details of a `waiting` entry.
pub(super) fn wait(plan: &Plan, obs: &Observation, i: usize, wait: Wait, now: Time) -> Map<String, Value> {
    let name = |i: usize| Value::from(plan.containers[i].name.as_str());
    let in_ms = |at: Time| Value::from(at.since(now));
    let mut fields = Map::new();
    let mut put = |key: &str, value: Value| fields.insert(key.into(), value);
    match wait {
        Wait::Sandbox => drop(put("for", "sandbox".into())),
        Wait::Gate { on, need } => {
            put("for", "gate".into());
            put("on", name(on));
            put("need", need_name(need).into());
        }
        Wait::Image => drop(put("for", "image".into())),
        Wait::ImageRetry { at } => {
            put("for", "image-retry".into());
            put("reason", "BackOff".into());
            put("in_ms", in_ms(at));
        }
        Wait::Backoff { until } => {
            put("for", "back-off".into());
            put("reason", "BackOff".into());
            put("in_ms", in_ms(until));
        }
        Wait::StartRetry { at } => {
            put("for", "start-retry".into());
            put("in_ms", in_ms(at));
        }
        Wait::Hook { hook } => {
            put("for", "hook".into());
            put("hook", hook_name(hook).into());
        }
        Wait::StartupProbe => drop(put("for", "startup-probe".into())),
        Wait::ReadinessProbe => drop(put("for", "readiness-probe".into())),
        Wait::StopTurn { on } => {
            put("for", "stop-turn".into());
            put("on", name(on));
        }
        Wait::FirstPreStop { on } => {
            put("for", "first-pre-stop".into());
            put("on", name(on));
        }
        Wait::Stopping { kill_at } => {
            put("for", "stopping".into());
            put("in_ms", in_ms(kill_at));
        }
        Wait::Rerun { not_before } => {
            put("for", "rerun".into());
            put("in_ms", in_ms(not_before));
        }
    }
    put("text", wait_text(plan, obs, i, wait, now).into());
    fields
}

/// Why a container waits, as one sentence.
fn wait_text(plan: &Plan, obs: &Observation, i: usize, wait: Wait, now: Time) -> String {
    let name = |i: usize| plan.containers[i].name.as_str();
    let seconds = |at: Time| format!("{}.{} s", at.since(now) / 1000, at.since(now) % 1000 / 100);
    let probe = |kind: ProbeKind| {
        let state = obs.containers[i].probe(kind);
        let mut text = format!("waits for its {} probe to pass", kind.name());
        if state.failures > 0 {
            text.push_str(&format!(": it has failed {} times", state.failures));
            if let Some(message) = &state.message {
                text.push_str(&format!(", last: {message}"));
            }
        }
        text
    };
    match wait {
        Wait::Sandbox => "waits for the pod's sandbox".into(),
        Wait::Gate { on, need } => format!("waits for `{}` to be {}", name(on), need_name(need)),
        Wait::Image => "waits for its image".into(),
        Wait::ImageRetry { at } => format!("waits {} to try its image again", seconds(at)),
        Wait::Backoff { until } => format!("waits {} in crash-loop back-off", seconds(until)),
        Wait::StartRetry { at } => format!("waits {} to try its start again", seconds(at)),
        Wait::Hook { hook } => format!("waits for its {} hook to end", hook_name(hook)),
        Wait::StartupProbe => probe(ProbeKind::Startup),
        Wait::ReadinessProbe => probe(ProbeKind::Readiness),
        Wait::StopTurn { on } => format!("will be stopped once `{}` is gone", name(on)),
        Wait::FirstPreStop { on } => format!(
            "will be stopped once the preStop hook of `{}` has ended",
            name(on)
        ),
        Wait::Stopping { kill_at } => format!("was told to stop and will be killed in {}", seconds(kill_at)),
        Wait::Rerun { not_before } => format!("waits {} for the pod to begin again", seconds(not_before)),
    }
}
