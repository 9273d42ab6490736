//! The operator's next step for a container recreate request (CRR-17 to CRR-28, KD3).

use outrigger_lifecycle::{State, Time, rules};
use serde_json::{Value, json};

use super::terminate;
use crate::api::{Progress, RecreateState, Request, Snapshot};
use crate::names;
use crate::view::ObservedPod;

/// One step of the operator for a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OverseeStep {
    /// Remove the request's entry from the pod's readiness condition, if the pod still exists.
    Release,
    /// Remove the finalizer.
    Unlock,
    /// Remove the active label.
    Deactivate,
    /// Delete the request.
    Delete,
    /// Add the finalizer.
    Lock,
    /// Add an entry to the pod's readiness condition.
    Acquire,
    /// Record that the pod was made unready now, or that it has no readiness gate for that.
    Grace {
        /// Whether the pod has the readiness gate.
        gated: bool,
    },
    /// Write the kubelet's status of the containers.
    Snapshot(Vec<Snapshot>),
    /// Record that the pod has its result, so that its last container can be stopped (KD5).
    ResultWritten,
    /// Write into the status what the request is waiting for (KD17).
    Note(String),
    /// Write the states. A container has failed, and the agent decides what that means for the others.
    States(Vec<RecreateState>),
    /// Write the result.
    Complete {
        /// The states, all final.
        states: Vec<RecreateState>,
        /// Why the request ends this way.
        message: String,
    },
}

/// Whether the node of a request has an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Agent {
    /// The agent's pod is ready.
    Ready,
    /// Agents run as pods in this cluster, but there is none on that node.
    Absent {
        /// Since when there is none.
        since: Time,
    },
    /// Agents do not run as pods in this cluster.
    Unknown,
}

/// The steps for a request, and when to check again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Oversight {
    /// The steps, in order.
    pub steps: Vec<OverseeStep>,
    /// When to check again.
    pub again: Option<Time>,
}

/// An agent that has not begun after this time counts as absent (CRR-20).
pub const RESPONSE_MS: u64 = 60_000;
/// The same if the node is known to have no agent: the time it takes to replace one.
const RESPONSE_ABSENT_MS: u64 = 15_000;
/// If the agent has not begun after this time, the status says so.
const SILENT_MS: u64 = 5_000;
/// An agent that is absent for this long is not expected to finish its work (KD3).
const ABSENT_MS: u64 = 60_000;
/// The deadline of a request without one of its own, counted from the end of its grace periods. It ensures
/// that every request ends (KD3).
pub const DEADLINE_MS: u64 = 10 * 60_000;
/// The message of a request that no agent has served.
pub const UNSERVED: &str = "daemon has not responded for a long time";

/// The steps for a request now. `pod` is the pod that it names, if it exists.
pub fn decide(request: &Request, pod: Option<&ObservedPod>, agent: Agent, now: Time) -> Oversight {
    if request.is_finished() || request.metadata.deletion_timestamp.is_some() {
        return finished(request, now);
    }
    let mut out = Oversight::default();
    let Some(pod) = pod.filter(|pod| is_pod_of(request, pod)) else {
        out.steps.push(pod_gone(request));
        return out;
    };
    if request.label(names::CRR_ACTIVE).is_none() {
        let message = format!("its label {} was removed, so no agent serves it", names::CRR_ACTIVE);
        out.steps.push(give_up(request, message));
        return out;
    }
    let created = created(request);
    if let Some(verdict) = out.check_agent(request, agent, now) {
        out.steps.push(verdict);
        return out;
    }
    let (limit, message) = deadline(request);
    if now >= created + limit {
        out.steps.push(give_up(request, message));
        return out;
    }
    out.wake_at(created + limit);
    if let Some(step) = ended_for_good(request, pod) {
        out.steps.push(step);
        return out;
    }
    if request.status.phase == "Recreating"
        && request.strategy().unready_grace_period_seconds.is_some()
        && request.condition(names::CRR_GRACE).is_none_or(|c| c.status != "True")
    {
        if pod.ready_gate.is_some() {
            if !has_finalizer(request) {
                out.steps.push(OverseeStep::Lock);
            }
            out.steps.push(OverseeStep::Acquire);
        }
        out.steps.push(OverseeStep::Grace { gated: pod.ready_gate.is_some() });
    }
    if request.wants_result() && pod.is_over() {
        out.steps.push(OverseeStep::ResultWritten);
    }
    let snapshot = snapshot(request, pod);
    if !snapshot.is_empty() && snapshot != request.status.container_status_snapshot {
        out.steps.push(OverseeStep::Snapshot(snapshot));
    }
    out
}

impl Oversight {
    fn wake_at(&mut self, at: Time) {
        self.again = Some(self.again.map_or(at, |again| again.min(at)));
    }

    /// The result of a request that no agent serves, in every phase (CRR-20, KD3, KD17).
    fn check_agent(&mut self, request: &Request, agent: Agent, now: Time) -> Option<OverseeStep> {
        let created = created(request);
        let node = request.label(names::CRR_NODE).unwrap_or_default();
        let has_begun = !request.status.phase.is_empty();
        let (until, message) = match (agent, has_begun) {
            (Agent::Absent { since }, true) => {
                (since.max(created) + ABSENT_MS, format!("the agent of node {node} has gone"))
            }
            (Agent::Absent { since }, false) => {
                (since.max(created) + RESPONSE_ABSENT_MS, format!("no agent is ready on node {node}"))
            }
            (_, true) => return None,
            (_, false) => (created + RESPONSE_MS, UNSERVED.to_owned()),
        };
        if now >= until {
            return Some(give_up(request, message));
        }
        self.wake_at(until);
        if !request.status.message.is_empty() {
            return None;
        }
        match agent {
            Agent::Absent { .. } => {
                self.steps.push(OverseeStep::Note(format!(
                    "waits for the agent of node {node}, which is not ready"
                )));
            }
            Agent::Ready | Agent::Unknown if now < created + SILENT_MS => self.wake_at(created + SILENT_MS),
            Agent::Ready | Agent::Unknown => {
                self.steps.push(OverseeStep::Note(format!(
                    "waits for the agent of node {node}, which has not answered"
                )));
            }
        }
        None
    }
}

/// The precision of creation times: the API server stores full seconds.
const CREATION_PRECISION_MS: u64 = 1_000;

/// The latest time at which a request may have been created. Periods that are counted from here never end too
/// early.
fn created(request: &Request) -> Time {
    Time(request.created_ms()) + CREATION_PRECISION_MS
}

/// The result of a request whose pod is deleted. If a Job is deleted when it is done, its sidecars have ended
/// with their pod, as requested.
fn pod_gone(request: &Request) -> OverseeStep {
    let name = request.metadata.name.as_deref().unwrap_or_default();
    if !(name.starts_with(terminate::REQUEST_PREFIX) && request.only_stops()) {
        return give_up(request, "pod has gone".to_owned());
    }
    let stored = &request.status.container_recreate_states;
    let states = request.spec.containers.iter().map(|target| {
        let state = stored.iter().find(|state| state.name == target.name).cloned();
        let mut state =
            state.unwrap_or_else(|| RecreateState { name: target.name.clone(), ..Default::default() });
        if !state.phase.is_final() {
            (state.phase, state.message) = (Progress::Succeeded, "it has ended with its pod".to_owned());
        }
        state
    });
    OverseeStep::Complete { states: states.collect(), message: String::new() }
}

/// The containers whose stop has begun, including the preStop hook. The agent has recorded their instance.
pub fn stops_begun(request: &Request) -> impl Iterator<Item = &str> {
    let states = request.status.container_recreate_states.iter();
    let begun = states.filter(|state| state.is_killed || !state.killed_container_id.is_empty());
    begun.map(|state| state.name.as_str())
}

fn is_pod_of(request: &Request, pod: &ObservedPod) -> bool {
    !pod.deleting && request.label(names::CRR_POD_UID) == Some(pod.uid.as_str())
}

fn has_finalizer(request: &Request) -> bool {
    request.metadata.finalizers.iter().flatten().any(|f| f == names::CRR_UNREADY)
}

/// The steps for a finished request (CRR-18).
fn finished(request: &Request, now: Time) -> Oversight {
    let mut out = Oversight::default();
    if has_finalizer(request) {
        out.steps.extend([OverseeStep::Release, OverseeStep::Unlock]);
    }
    if request.metadata.deletion_timestamp.is_some() {
        return out;
    }
    if request.label(names::CRR_ACTIVE).is_some() {
        out.steps.push(OverseeStep::Deactivate);
    }
    let ended = request.status.completion_time.as_ref();
    if let (Some(ttl), Some(ended)) = (request.spec.ttl_seconds_after_finished, ended) {
        let ended = Time(u64::try_from(ended.0.as_millisecond()).unwrap_or(0));
        let at = ended + u64::try_from(ttl).unwrap_or(0).saturating_mul(1_000);
        if now >= at && out.steps.is_empty() {
            out.steps.push(OverseeStep::Delete);
        } else {
            out.wake_at(at.max(now));
        }
    }
    out
}

/// The deadline, and the message for when it passes.
fn deadline(request: &Request) -> (u64, String) {
    if let Some(seconds) = request.spec.active_deadline_seconds {
        let ms = u64::try_from(seconds).unwrap_or(0).saturating_mul(1_000);
        return (ms, format!("not finished within the activeDeadlineSeconds of {seconds}"));
    }
    let strategy = request.strategy();
    let seconds = |s: Option<i64>| u64::try_from(s.unwrap_or(0)).unwrap_or(0).saturating_mul(1_000);
    let each = seconds(strategy.termination_grace_period_seconds)
        .saturating_add(u64::try_from(strategy.min_started_seconds).unwrap_or(0).saturating_mul(1_000));
    let count = u64::try_from(request.spec.containers.len()).unwrap_or(u64::MAX);
    let graces = each.saturating_mul(count).saturating_add(seconds(strategy.unready_grace_period_seconds));
    let limit = graces.saturating_add(DEADLINE_MS);
    (
        limit,
        format!(
            "not finished after {}; requests without activeDeadlineSeconds end then",
            outrigger_text::HumanDuration(limit)
        ),
    )
}

/// A final result: every container without a result has failed (CRR-21, issue 2353 of Kruise).
fn give_up(request: &Request, message: String) -> OverseeStep {
    let message = match request.status.message.as_str() {
        waits if request.status.phase == "Pending" && !waits.is_empty() => format!("{message}: it {waits}"),
        _ => message,
    };
    give_up_from(request, &request.status.container_recreate_states, message)
}

fn give_up_from(request: &Request, states: &[RecreateState], message: String) -> OverseeStep {
    let states: Vec<RecreateState> = request
        .spec
        .containers
        .iter()
        .map(|target| {
            let stored = states.iter().find(|s| s.name == target.name);
            let mut state = stored
                .cloned()
                .unwrap_or_else(|| RecreateState { name: target.name.clone(), ..Default::default() });
            state.fail_if_open(&message);
            state
        })
        .collect();
    OverseeStep::Complete { states, message }
}

/// The result for containers that were stopped or have ended, and that the kubelet will not start again
/// (CRR-43). A pod that has ended is also a result.
fn ended_for_good(request: &Request, pod: &ObservedPod) -> Option<OverseeStep> {
    if request.only_stops() {
        return None;
    }
    let mut states = request.status.container_recreate_states.clone();
    let mut changed = false;
    for state in states.iter_mut().filter(|s| s.phase == Progress::Recreating) {
        let Some(i) = pod.plan.find(&state.name) else { continue };
        let c = &pod.observation.containers[i];
        if c.state == State::Exited && rules::final_exit(&pod.plan.containers[i], c).is_some() {
            let policy = pod.plan.containers[i].restart.policy;
            state.phase = Progress::Failed;
            let what = if state.is_killed { "stopped" } else { "it has ended" };
            state.message = format!("{what}, and restartPolicy {policy:?} does not start it again");
            changed = true;
        }
    }
    if changed && states.iter().all(|s| s.phase.is_final()) {
        return Some(OverseeStep::Complete { states, message: String::new() });
    }
    if pod.is_over() {
        let message = format!("pod {} is over: its phase is {}", pod.name, pod.phase);
        return Some(give_up_from(request, &states, message));
    }
    // The other containers wait for this one.
    (changed && request.strategy().ordered_recreate).then_some(OverseeStep::States(states))
}

/// The kubelet's status of the containers that are newer than the request (CRR-26). It compares instances,
/// not times, because clocks differ (issue 895 of Kruise).
fn snapshot(request: &Request, pod: &ObservedPod) -> Vec<Snapshot> {
    let of = |target: &crate::api::Target| {
        let i = pod.plan.find(&target.name)?;
        let (c, state) = (&pod.containers[i], pod.observation.containers[i].state);
        let before = target.status_context.clone().unwrap_or_default();
        let id = c.id.clone()?;
        let is_new = id != before.container_id || c.restarts > before.restart_count;
        (is_new && matches!(state, State::Running { .. } | State::Starting { .. })).then(|| Snapshot {
            name: target.name.clone(),
            ready: c.ready,
            restart_count: c.restarts,
            container_id: id,
        })
    };
    request.spec.containers.iter().filter_map(of).collect()
}

/// The entry of a request in the message of a pod's readiness condition.
fn entry(request: &Request) -> Value {
    let namespace = request.metadata.namespace.as_deref().unwrap_or_default();
    let name = request.metadata.name.as_deref().unwrap_or_default();
    json!({"userAgent": "ContainerRecreateRequest", "key": format!("{namespace}/{name}")})
}

/// The message of the readiness condition with or without a request's entry, and whether the pod may be ready
/// (CRR-23, CRR-24, CRR-C-11). The message is a JSON list that other programs write as well, so invalid
/// entries are ignored.
pub fn ready_entries(message: &str, request: &Request, present: bool) -> (String, bool) {
    let list: Vec<Value> = serde_json::from_str(message).unwrap_or_default();
    let entry = entry(request);
    let mut list: Vec<Value> = list.into_iter().filter(|e| *e != entry).collect();
    if present {
        list.push(entry);
    }
    match list.is_empty() {
        true => (String::new(), true),
        false => (Value::Array(list).to_string(), false),
    }
}
