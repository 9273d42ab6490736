//! The texts of the trace.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::decision::Wait;
use crate::explain::explain;
use crate::observation::{HookKind, Observation, StopCause};
use crate::plan::{Need, Plan};
use crate::time::Time;

/// The name users see.
pub(super) fn hook_name(hook: HookKind) -> &'static str {
    match hook {
        HookKind::PostStart => "postStart",
        HookKind::PreStop => "preStop",
        HookKind::FirstPreStop => "first preStop",
    }
}

/// The name users see.
pub(super) fn need_name(need: Need) -> &'static str {
    match need {
        Need::Completed => "completed",
        Need::Started => "started",
        Need::Ready => "ready",
        Need::Launched => "launched",
    }
}

/// The name an enum without data serializes to, in lower case.
pub(super) fn kebab(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(Value::String(name)) => name.to_lowercase(),
        _ => String::new(),
    }
}

/// The cause of a stop, the container that caused it and the one it waited for.
pub(super) fn stop(cause: StopCause) -> (&'static str, Option<usize>, Option<usize>) {
    match cause {
        StopCause::Deleted => ("deleted", None, None),
        StopCause::Completed => ("completed", None, None),
        StopCause::InitFailed { container } => ("init-failed", Some(container), None),
        StopCause::DeadlineExceeded => ("deadline-exceeded", None, None),
        StopCause::Fatal { container } => ("fatal", Some(container), None),
        StopCause::GateNeverOpens { container, on } => ("gate-never-opens", Some(container), Some(on)),
        StopCause::SandboxLost => ("sandbox-lost", None, None),
        StopCause::NodeShutdown => ("node-shutdown", None, None),
        StopCause::VolumeFull { .. } => ("volume-full", None, None),
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
    put("text", explain(plan, obs, i, wait, now).into());
    fields
}
