//! Explains what a pod in a cluster is waiting for, in the same sentences as the rest of Outrigger.

use std::collections::BTreeSet;

use k8s_openapi::jiff::Timestamp;
use outrigger_lifecycle::{Gate, Need, State, Time, Wait, explain, rules};
use outrigger_text::HumanDuration;
use serde::Serialize;

use super::barrier;
use super::terminate::{self, Node, Past};
use crate::key::Opens;
use crate::view::{ObservedPod, is_served_gate};

/// Why a container's gate is closed, as a phrase whose subject is the container.
pub fn gate(view: &ObservedPod, container: usize, gate: &Gate, now: Time) -> String {
    let on = &view.containers[gate.on];
    // The kubelet's own reason for a container that does not start is more specific than the plan.
    if let (Some((reason, message)), false) = (&on.waiting, on.is_refused() && on.barrier.is_some()) {
        let name = &view.plan.containers[gate.on].name;
        let message = if message.is_empty() { String::new() } else { format!(": {message}") };
        return format!("waits for `{name}` {}: {reason}{message}", need(gate));
    }
    let wait = Wait::Gate { on: gate.on, need: gate.need };
    // The status of a pod does not say whether a probe was tried.
    explain(&view.plan, &view.observation, container, wait, now)
        .replace("probe pending", "probe has not succeeded yet")
}

fn need(gate: &Gate) -> &'static str {
    match gate.need {
        Need::Completed => "to complete",
        Need::Started => "to be started",
        Need::Ready => "to be ready",
        Need::Launched => "to be launched",
    }
}

/// One container, for display.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Line {
    /// The name of the container.
    #[serde(rename = "name")]
    pub container: String,
    /// Its level, or `gates`, or empty.
    pub level: String,
    /// Whether its key is published: `open`, `closed`, or empty if it has no barrier.
    pub barrier: &'static str,
    /// What it is doing or waiting for.
    #[serde(rename = "state")]
    pub doing: String,
    /// Since when it does or waits for that, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
}

/// The state of a barrier whose key is not published.
pub const CLOSED: &str = "closed";

/// Explains a pod: one line for each container, and the next step.
pub fn pod(
    view: &ObservedPod,
    map: &barrier::Map,
    node: Node,
    past: &[Past],
    now: Time,
) -> (Vec<Line>, String) {
    let held = match map {
        barrier::Map::Ours { keys } => keys.clone(),
        _ => Default::default(),
    };
    let lines = (0..view.containers.len()).map(|i| line(view, &held, i, now)).collect();
    (lines, next(view, map, node, past, now))
}

fn line(view: &ObservedPod, held: &BTreeSet<String>, i: usize, now: Time) -> Line {
    let (plan, c) = (&view.plan.containers[i], &view.containers[i]);
    let barrier = match &c.barrier {
        Some(barrier) if held.contains(&barrier.key) => "open",
        Some(_) => CLOSED,
        None => "",
    };
    let level = match c.barrier.as_ref().map(|b| b.opens) {
        Some(Opens::Level(level)) => level.to_string(),
        Some(Opens::Gates) => "gates".to_owned(),
        None => String::new(),
    };
    let state = &view.observation.containers[i];
    let closed = barrier::closed_gate(view, i).filter(|_| !view.is_over());
    let (doing, since) = match (closed, state.state) {
        (_, State::Waiting) if view.node.is_none() && !view.is_over() => {
            ("waits for a node".to_owned(), None)
        }
        (_, State::Waiting) if barrier == CLOSED && view.mains_are_done() && !view.is_over() => {
            ("is not started any more: the mains are done".to_owned(), None)
        }
        // Once its key is published, the container starts, even if the containers it waited for have changed.
        (Some(closed), _) if barrier == CLOSED => {
            let waiting =
                view.started.map(|since| format!("; waiting for {}", HumanDuration(now.since(since))));
            (format!("{}{}", gate(view, i, closed, now), waiting.unwrap_or_default()), view.started)
        }
        // The kubelet itself enforces the gates of init containers and native sidecars.
        (_, State::Waiting) if kubelet_gate(view, i).is_some() && !view.is_over() => {
            (kubelet_gate(view, i).map(|closed| gate(view, i, closed, now)).unwrap_or_default(), view.started)
        }
        // The kubelet also reports an exit code for containers that it never started.
        (_, State::Waiting | State::Exited) if view.is_over() && c.id.is_none() && c.restarts == 0 => {
            ("was never started".to_owned(), None)
        }
        // The kubelet's reason is older than the published key.
        (_, State::Waiting) if barrier == "open" && c.is_refused_for_key() => {
            ("about to start".to_owned(), None)
        }
        (_, State::Running { since }) if c.ready => {
            (format!("ready, running for {}", HumanDuration(now.since(since))), Some(since))
        }
        (_, State::Running { since } | State::Starting { since }) => {
            (format!("not ready, running for {}", HumanDuration(now.since(since))), Some(since))
        }
        (_, State::Exited) => match &state.exit {
            Some(exit) => (format!("ended with exit code {}", exit.code), Some(exit.finished_at)),
            None => ("ended".to_owned(), None),
        },
        // The kubelet reports a container as running when its postStart hook has ended.
        _ if c.is_being_started() && plan.post_start.is_some() => {
            ("about to start, or in its postStart hook".to_owned(), None)
        }
        _ => match &c.waiting {
            Some((reason, message)) if !message.is_empty() => (format!("waits: {reason}: {message}"), None),
            Some((reason, _)) => (format!("waits: {reason}"), None),
            None => ("not started yet".to_owned(), None),
        },
    };
    // Zero means that the kubelet does not report the time.
    let since = since.filter(|time| time.0 > 0).and_then(|time| i64::try_from(time.0).ok());
    let since = since.and_then(|ms| Timestamp::from_millisecond(ms).ok());
    Line { container: plan.name.clone(), level, barrier, doing, since }
}

/// The gate of a container that the kubelet itself enforces, if it is closed.
fn kubelet_gate(view: &ObservedPod, i: usize) -> Option<&Gate> {
    let gates = view.plan.containers[i].gates.iter();
    let mut gates = gates.filter(|gate| !is_served_gate(gate.dialect) && gate.need != Need::Launched);
    gates.find(|gate| !rules::gate_open(&view.plan, &view.observation, i, gate))
}

/// The next step, in one sentence.
fn next(view: &ObservedPod, map: &barrier::Map, node: Node, past: &[Past], now: Time) -> String {
    if let Some(problem) = &view.problem {
        return format!("nothing: the pod cannot be understood: {problem}");
    }
    if view.is_over() {
        let alive = (0..view.containers.len()).filter(|&i| view.observation.containers[i].state.is_alive());
        let alive: Vec<&str> = alive.map(|i| view.plan.containers[i].name.as_str()).collect();
        return match alive.is_empty() {
            true => format!("nothing: the pod is {}", view.phase),
            false => format!("the pod is {}; {} stopped", view.phase, terminate::are(&alive)),
        };
    }
    if view.deleting {
        return "the pod is being deleted".to_owned();
    }
    if let Some(sentence) = terminate::outlook(view, node, past, now) {
        return sentence;
    }
    if view.node.is_none() {
        return "the pod waits for a node".to_owned();
    }
    // A container that waits for no other container.
    let may_be_next = |i: &usize| barrier::closed_gate(view, *i).is_none();
    let mut candidates = (0..view.containers.len()).filter(may_be_next);
    if let Some((i, closed)) = candidates.find_map(|i| Some((i, kubelet_gate(view, i)?))) {
        let (name, on) = (&view.plan.containers[i].name, &view.plan.containers[closed.on].name);
        if view.observation.containers[i].state == State::Waiting {
            return format!("the kubelet starts `{name}` once `{on}` is {}", is(closed));
        }
    }
    if view.barriers().next().is_none() {
        return done(view);
    }
    let Some(name) = barrier::map_name(view) else { return format!("nothing: {}", barrier::IGNORED) };
    let held = match map {
        barrier::Map::Missing => return "the operator creates the barrier ConfigMap".to_owned(),
        barrier::Map::Foreign => return format!("nothing: {}", barrier::foreign(name)),
        barrier::Map::OfPredecessor => return "the operator replaces the barrier ConfigMap".to_owned(),
        barrier::Map::Ours { keys } => keys,
    };
    let due =
        view.barriers().find(|(i, b)| !held.contains(&b.key) && barrier::closed_gate(view, *i).is_none());
    if let Some((i, barrier)) = due {
        let name = &view.plan.containers[i].name;
        return format!(
            "the operator publishes the key {} of `{name}` in ConfigMap {}",
            barrier.key, barrier.map
        );
    }
    next_start(view, held).unwrap_or_else(|| done(view))
}

/// Which container starts next behind the barrier, and when. `None` if no container waits for another one.
pub fn next_start(view: &ObservedPod, held: &BTreeSet<String>) -> Option<String> {
    let closed = view.barriers().filter(|(_, b)| !held.contains(&b.key));
    let waiting: Vec<_> = closed.filter_map(|(i, b)| Some((i, b, barrier::closed_gate(view, i)?))).collect();
    // If there are several, the next one waits for none of the others.
    let is_next = |i: usize| {
        barrier::closed_gates(view, i).all(|gate| waiting.iter().all(|(other, ..)| *other != gate.on))
    };
    let (i, barrier, closed) = waiting.iter().find(|(i, ..)| is_next(*i))?;
    let what = match barrier.opens {
        Opens::Level(level) => format!("level {level}"),
        Opens::Gates => format!("`{}`", view.plan.containers[*i].name),
    };
    Some(format!("{what} starts once `{}` is {}", view.plan.containers[closed.on].name, is(closed)))
}

fn done(view: &ObservedPod) -> String {
    match view.observation.containers.iter().all(|c| c.was_run) {
        true => "nothing: every container was started".to_owned(),
        false => "nothing: every container may start".to_owned(),
    }
}

fn is(gate: &Gate) -> &'static str {
    need(gate).strip_prefix("to be ").unwrap_or("complete")
}
