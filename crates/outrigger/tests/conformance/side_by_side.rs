//! Compares twelve cases with recordings of a real kubelet v1.36.4. The order of events, the phase, exit
//! codes, restarts and conditions must be the same. The recordings are in `tests/conformance/golden`.
//!
//! In these cases, every event is gated by the one before it. So the complete order is the same on every
//! machine.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use libtest_mimic::Trial;
use serde_json::{Value, json};

use crate::case;
use crate::events::Events;
use crate::run::{self, Bench};
use crate::trials;

const CASES: [&str; 12] = [
    "init-order",
    "init-fail-never",
    "init-fail-onfailure",
    "native-startup-gates-chain",
    "native-poststart-gates",
    "native-liveness-prestop",
    "job-onfailure-sidecar-exit-1",
    "rules-mismatch-fails",
    "rules-restart-all-by-init",
    "stop-mixed-inits",
    "stop-grace-main-deaf",
    "stop-grace-sidecar-deaf",
];

/// A test for each case.
pub(crate) fn all(bench: &Arc<Bench>) -> Vec<Trial> {
    let trial = |name: &'static str| {
        let bench = Arc::clone(bench);
        Trial::test(format!("side_by_side::{name}"), move || one(&bench, name).map_err(trials::failed))
    };
    CASES.into_iter().map(trial).collect()
}

fn one(bench: &Bench, name: &str) -> anyhow::Result<()> {
    let case = case::read(&trials::top().join("cases").join(format!("{name}.yaml")))?;
    let recorded = read(&trials::top().join("golden").join(format!("{name}.json")))?;
    run::case(bench, &case, &|events, status| compare(&recorded, events, status))
}

fn read(path: &Path) -> anyhow::Result<Value> {
    let text = std::fs::read(path).with_context(|| path.display().to_string())?;
    serde_json::from_slice(&text).with_context(|| path.display().to_string())
}

fn compare(recorded: &Value, events: &Events, status: Option<&Value>) -> Vec<String> {
    let mut bad = Vec::new();
    let mut same = |what: &str, ours: &Value, theirs: &Value| {
        if ours != theirs {
            bad.push(format!("{what}: {ours}, on the kubelet {theirs}"));
        }
    };
    let theirs = recorded["events"].as_array().into_iter().flatten().filter_map(|line| {
        let mut words = line.as_str()?.split_whitespace().skip(1);
        Some(format!("{}:{}", words.next()?, words.next()?))
    });
    let ours = events.iter().map(|(_, event)| event.clone());
    same("order", &order(ours), &order(theirs));
    let Some(status) = status else {
        bad.push("there is no pod status".to_owned());
        return bad;
    };
    let kubelet = &recorded["status"];
    same("phase", &status["phase"], &kubelet["phase"]);
    same("reason", &status["reason"], &kubelet["reason"]);
    for (kind, theirs) in kubelet["conditions"].as_object().into_iter().flatten() {
        // There is no scheduler in `outrigger run`.
        if kind != "PodScheduled" {
            same(kind, &condition(status, kind), theirs);
        }
    }
    for list in ["initContainerStatuses", "containerStatuses"] {
        for theirs in kubelet[list].as_array().into_iter().flatten() {
            let name = theirs["name"].as_str().unwrap_or_default();
            let ours = status[list].as_array().into_iter().flatten().find(|c| c["name"] == theirs["name"]);
            let ours = ours.unwrap_or(&Value::Null);
            same(&format!("restarts of {name}"), &ours["restartCount"], &theirs["restartCount"]);
            for state in ["state", "lastState"] {
                same(&format!("{state} of {name}"), &ended(&ours[state]), &ended(&theirs[state]));
            }
        }
    }
    bad
}

/// The containers' events in order. Ticks are left out, because they only show how long a container ran.
fn order(events: impl Iterator<Item = String>) -> Value {
    events.filter(|e| !e.starts_with("runner:") && !e.ends_with(":tick")).collect()
}

/// `True`, or `False` with its reason, as in the recordings.
fn condition(status: &Value, kind: &str) -> Value {
    let conditions = status["conditions"].as_array().map_or(&[][..], Vec::as_slice);
    let Some(found) = conditions.iter().find(|c| c["type"] == json!(kind)) else { return Value::Null };
    let words = [&found["status"], &found["reason"]];
    json!(words.iter().filter_map(|w| w.as_str()).collect::<Vec<_>>().join(" "))
}

/// The exit code and reason of a terminated state, otherwise the kind of state.
fn ended(state: &Value) -> Value {
    let done = &state["terminated"];
    if done.is_null() {
        json!(state.as_object().into_iter().flatten().map(|(kind, _)| kind).next())
    } else {
        json!([done["exitCode"], done["reason"]])
    }
}
