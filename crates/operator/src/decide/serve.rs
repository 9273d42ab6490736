//! The node agent's next step for a container recreate request (CRR-29 to CRR-50, KD1 to KD4, KD15).
//!
//! The agent takes one small step at a time. It records each step before it takes it, and reads the result
//! from the runtime. So an agent that is killed at any point finishes its work exactly once.

use crate::api::{Progress, RecreateState, Request, Snapshot, Target};
use crate::names;
use outrigger_lifecycle::Time;

/// One instance of a container on the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instance {
    /// The name of the container.
    pub name: String,
    /// The runtime's id, without the `runtime://` prefix.
    pub id: String,
    /// Its state.
    pub state: InstanceState,
    /// When it was created. Only the newest instance counts (CRR-36).
    pub created_at: u64,
    /// When it was started, by the node's clock.
    pub started_at: Option<Time>,
    /// How often the container was restarted before.
    pub restarts: i32,
}

/// The state of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InstanceState {
    /// It is created but not started, or the runtime has lost track of it.
    Other,
    /// It runs.
    Running,
    /// It has ended.
    Exited,
}

/// The agent's next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServeStep {
    /// Write the phase and the states, then call again.
    Store {
        /// `Pending` or `Recreating`.
        phase: &'static str,
        /// The states to write.
        states: Vec<RecreateState>,
    },
    /// Run the preStop hook of an instance, after [`hook_begun`] is written, then report with [`hook_done`].
    Hook {
        /// The index of the container in the request.
        index: usize,
        /// The id of the instance.
        id: String,
    },
    /// Stop the instance, then report with [`killed`].
    Kill {
        /// The index of the container in the request.
        index: usize,
        /// The id of the instance.
        id: String,
    },
    /// Finish the request.
    Complete {
        /// The final states.
        states: Vec<RecreateState>,
        /// The message, if the request failed or was done only in part.
        message: String,
    },
    /// Wait for an event, at most this long.
    Wait {
        /// The maximum time in milliseconds. `None` means until an event.
        ms: Option<u64>,
    },
}

/// The message for a hook whose agent died, or whose end could not be recorded.
const HOOK_LOST: &str = "the agent was restarted or cut off, so it is not known how the hook ended";
/// Kruise's message for a container that does not exist.
const NOT_FOUND: &str = "not found container on Node";

/// The request of a pod to serve now, and the requests that must be told to wait (CRR-31, CRR-32). It depends
/// on their state, not on events. So the next request gets its turn in every case (CRR-47).
pub fn pick(requests: &[Request]) -> (Option<usize>, Vec<usize>) {
    let open = |i: &usize| {
        let request = &requests[*i];
        !request.is_finished() && request.metadata.deletion_timestamp.is_none()
    };
    let mut order: Vec<usize> = (0..requests.len()).filter(open).collect();
    let rank = |phase: &str| match phase {
        "Recreating" => 0,
        "Pending" => 1,
        _ => 2,
    };
    order.sort_by_key(|&i| {
        let request = &requests[i];
        (rank(&request.status.phase), request.created_ms(), request.metadata.name.clone())
    });
    let Some((&turn, queued)) = order.split_first() else { return (None, Vec::new()) };
    let message = queued_message(&requests[turn]);
    let is_untold =
        |i: &usize| requests[*i].status.phase.is_empty() || requests[*i].status.message != message;
    (Some(turn), queued.iter().copied().filter(is_untold).collect())
}

/// The message of a request that waits for another request of its pod.
pub fn queued_message(turn: &Request) -> String {
    format!("waits for request {}, which is served first", turn.metadata.name.as_deref().unwrap_or_default())
}

/// When the agent first saw these facts about a request, by its own clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct Seen {
    /// The pod was made unready.
    pub unready: Option<Time>,
    /// The request was ready for the pod's result.
    pub asked: Option<Time>,
    /// The pod has its result.
    pub result: Option<Time>,
}

/// The time that the kubelet gets to see a pod's result before its last containers are stopped. Otherwise it
/// would write another result from their exit codes, or restart them. A kubelet on a busy node sees changes
/// late. The Job does not wait for this, because the pod already has its result.
const RESULT_TIME_MS: u64 = 1_000;
/// If the result appears within this time after the request for it, there is no further wait. The result has
/// then passed through the API server twice. The kubelet watches the same API server and has seen the result,
/// too.
const PROMPT_MS: u64 = 300;

impl Seen {
    /// When the kubelet is expected to know the pod's result.
    fn kubelet_knows_at(self) -> Option<Time> {
        let result = self.result?;
        let is_prompt = self.asked.is_some_and(|asked| result.since(asked) <= PROMPT_MS);
        Some(if is_prompt { result } else { result + RESULT_TIME_MS })
    }
}

/// The next step for a request, from its recorded state and the instances on the node.
pub fn step(
    request: &Request,
    runtimes: &[&str],
    instances: &[Instance],
    seen: Seen,
    now: Time,
) -> ServeStep {
    if let Err(e) = check_runtime(request, runtimes) {
        let message = e.to_string();
        return ServeStep::Complete { states: request.status.container_recreate_states.clone(), message };
    }
    let has_begun = request.status.phase == "Recreating";
    let strategy = request.strategy();
    if let Some(seconds) = strategy.unready_grace_period_seconds {
        if !has_begun {
            // The operator then makes the pod unready.
            let states = request.status.container_recreate_states.clone();
            return ServeStep::Store { phase: "Recreating", states };
        }
        let acquired = request.condition(names::CRR_GRACE).is_some_and(|c| c.status == "True");
        let (true, Some(unready)) = (acquired, seen.unready) else { return ServeStep::Wait { ms: None } };
        let until = unready + u64::try_from(seconds).unwrap_or(0).saturating_mul(1_000);
        if now < until {
            return ServeStep::Wait { ms: Some(until.since(now)) };
        }
    }
    let all: Vec<ContainerProgress> =
        request.spec.containers.iter().map(|t| container_progress(request, t, instances, now)).collect();
    let mut states: Vec<RecreateState> = all.iter().map(|progress| progress.state.clone()).collect();
    mark_next(request, instances, &mut states);
    if !has_begun || states != request.status.container_recreate_states {
        // Everything goes into one write, because the container waits for it.
        return ServeStep::Store { phase: "Recreating", states };
    }
    walk(request, instances, &all, states, seen, now)
}

/// Marks the next instance to stop, because it must be recorded before it is stopped.
fn mark_next(request: &Request, instances: &[Instance], states: &mut [RecreateState]) {
    let strategy = request.strategy();
    let ignores = strategy.failure_policy.as_deref() == Some("Ignore");
    for state in states {
        match state.phase {
            Progress::Succeeded => {}
            Progress::Failed if ignores => {}
            Progress::Recreating if !strategy.ordered_recreate => {}
            Progress::Failed | Progress::Recreating => return,
            Progress::Pending => {
                let Some(newest) = newest(instances, &state.name) else { return };
                if state.killed_container_id != newest.id {
                    state.killed_container_id.clone_from(&newest.id);
                    (state.pre_stop_begun, state.pre_stop_done) = (false, false);
                    state.pre_stop_error.clear();
                    return;
                }
                // It waits for the pod's result. The hooks of the other containers run before that.
                let waits = request.is_result_first() && !strategy.ordered_recreate;
                if !waits || (is_hook_due(request, state) && newest.state == InstanceState::Running) {
                    return;
                }
            }
        }
    }
}

/// Checks the containers in order and stops at most one per pass (CRR-38, CRR-39).
fn walk(
    request: &Request,
    instances: &[Instance],
    all: &[ContainerProgress],
    states: Vec<RecreateState>,
    seen: Seen,
    now: Time,
) -> ServeStep {
    let strategy = request.strategy();
    let mut again_ms = all.iter().filter_map(|progress| progress.again_ms).min();
    let ignores = strategy.failure_policy.as_deref() == Some("Ignore");
    for (index, state) in states.iter().enumerate() {
        match state.phase {
            Progress::Succeeded => {}
            Progress::Failed if ignores => {}
            Progress::Failed => {
                let message = format!("container {} failed: {}", state.name, state.message);
                let mut states = states;
                states.iter_mut().for_each(|state| state.fail_if_open(&message));
                return ServeStep::Complete { states, message };
            }
            Progress::Recreating if strategy.ordered_recreate => break,
            Progress::Recreating => {}
            Progress::Pending => {
                let Some(newest) = newest(instances, &state.name) else { break };
                if state.killed_container_id != newest.id {
                    break;
                }
                match stop(request, &states, index, newest, seen, now) {
                    // It waits for the pod's result. The hooks of the other containers run before that.
                    ServeStep::Wait { ms } if !strategy.ordered_recreate => {
                        again_ms = again_ms.into_iter().chain(ms).min()
                    }
                    step => return step,
                }
            }
        }
    }
    if states.iter().all(|s| s.phase.is_final()) {
        return ServeStep::Complete { states, message: String::new() };
    }
    ServeStep::Wait { ms: again_ms }
}

/// The next step for an instance that must be stopped.
fn stop(
    request: &Request,
    states: &[RecreateState],
    index: usize,
    newest: &Instance,
    seen: Seen,
    now: Time,
) -> ServeStep {
    let id = newest.id.clone();
    if is_hook_due(request, &states[index]) && newest.state == InstanceState::Running {
        if states[index].pre_stop_begun {
            // The hook was begun by an agent that has died. It is not known how far it got.
            let mut states = states.to_vec();
            states[index].pre_stop_done = true;
            states[index].pre_stop_error = HOOK_LOST.to_owned();
            return ServeStep::Store { phase: "Recreating", states };
        }
        return ServeStep::Hook { index, id };
    }
    let is_turn = !request.strategy().ordered_recreate || is_last(states, index);
    if !request.is_result_first() || !is_turn {
        return ServeStep::Kill { index, id };
    }
    match seen.kubelet_knows_at() {
        Some(at) if !request.wants_result() && at <= now => ServeStep::Kill { index, id },
        Some(at) if !request.wants_result() => ServeStep::Wait { ms: Some(at.since(now)) },
        // The operator writes the pod's result and records it.
        _ => ServeStep::Wait { ms: None },
    }
}

fn is_hook_due(request: &Request, state: &RecreateState) -> bool {
    let grace = request.strategy().termination_grace_period_seconds.unwrap_or(30);
    let target = request.spec.containers.iter().find(|t| t.name == state.name);
    grace > 0 && !state.pre_stop_done && target.is_some_and(|t| t.pre_stop.is_some())
}

fn is_last(states: &[RecreateState], index: usize) -> bool {
    states.iter().enumerate().all(|(i, state)| i == index || state.phase.is_final())
}

/// Whether the pod needs its result now (KD5). This is so when the agent stops, or is about to stop, the last
/// container of a request, or all remaining ones if they have no order. It stays true after the result is
/// written, because a kubelet that is just writing an older status overwrites the result.
pub fn needs_result(request: &Request) -> bool {
    let states = &request.status.container_recreate_states;
    let open: Vec<&RecreateState> = states.iter().filter(|state| !state.phase.is_final()).collect();
    let is_prepared =
        |state: &&RecreateState| !state.killed_container_id.is_empty() && !is_hook_due(request, state);
    request.is_result_first()
        && !request.is_finished()
        && states.len() == request.spec.containers.len()
        && !open.is_empty()
        && (open.len() == 1 || !request.strategy().ordered_recreate)
        && open.iter().all(is_prepared)
}

/// The instances to stop together with this one. Once the pod has its result, all containers without an order
/// are stopped before the kubelet stops them.
pub fn stopped_together(request: &Request, index: usize, id: &str) -> Vec<(usize, String)> {
    let states = request.status.container_recreate_states.iter().enumerate();
    let is_prepared = |state: &RecreateState| {
        request.is_result_first()
            && !request.strategy().ordered_recreate
            && state.phase == Progress::Pending
            && !state.killed_container_id.is_empty()
    };
    let others = states.filter(|(i, state)| *i != index && is_prepared(state));
    let others = others.map(|(i, state)| (i, state.killed_container_id.clone()));
    std::iter::once((index, id.to_owned())).chain(others).collect()
}

/// The states after an attempt to stop a container.
pub fn killed(request: &Request, index: usize, result: Result<(), String>) -> Vec<RecreateState> {
    let mut states = request.status.container_recreate_states.clone();
    if let Some(state) = states.get_mut(index) {
        match result {
            Ok(()) => {
                (state.phase, state.is_killed) = (Progress::Recreating, true);
                state.message.clear();
            }
            Err(message) => (state.phase, state.message) = (Progress::Failed, message),
        }
    }
    states
}

/// The states of a request that got its result before an instance was stopped. They only record the stop, and
/// the result stays. `None` if nothing is to be added.
pub fn killed_after_verdict(request: &Request, index: usize, id: &str) -> Option<Vec<RecreateState>> {
    let mut states = request.status.container_recreate_states.clone();
    let state = states.get_mut(index).filter(|state| !state.is_killed && state.killed_container_id == id)?;
    state.is_killed = true;
    Some(states)
}

/// The states before the preStop hook of an instance is run.
pub fn hook_begun(request: &Request, index: usize, id: &str) -> Vec<RecreateState> {
    let mut states = request.status.container_recreate_states.clone();
    if let Some(state) = states.get_mut(index).filter(|state| state.killed_container_id == id) {
        state.pre_stop_begun = true;
    }
    states
}

/// The maximum length of the description of a failed hook.
const HOOK_ERROR_MAX: usize = 200;

/// The states after the preStop hook of an instance was run.
pub fn hook_done(
    request: &Request,
    index: usize,
    id: &str,
    result: &Result<(), String>,
) -> Vec<RecreateState> {
    let mut states = request.status.container_recreate_states.clone();
    if let Some(state) = states.get_mut(index).filter(|state| state.killed_container_id == id) {
        state.pre_stop_done = true;
        if let Err(error) = result {
            state.pre_stop_error = outrigger_text::terminal::safe_text(&without_middle(error)).to_string();
        }
    }
    states
}

/// Shortens a long description by leaving out its middle. A runtime's error begins with the operation and
/// ends with the cause.
fn without_middle(text: &str) -> String {
    let length = text.chars().count();
    if length <= HOOK_ERROR_MAX {
        return text.to_owned();
    }
    let end = HOOK_ERROR_MAX / 2;
    let first = text.chars().take(HOOK_ERROR_MAX - end - 1);
    first.chain(['…']).chain(text.chars().skip(length - end)).collect()
}

/// Whether to stop an instance whose hook has just run although its request has a result or is deleted
/// (CRR-E-05). The hook has told the container to shut down. The exception is the last sidecar of a pod
/// without a result: the operator ends that pod in another way.
pub fn stops_after_verdict(request: &Request) -> bool {
    !request.is_result_first()
}

/// The seconds that a hook may take. The hook and the stop after it share one budget (CRR-40). With a grace
/// period of 0, no hook runs and the container is killed at once.
pub fn hook_seconds(grace: i64) -> u64 {
    u64::try_from(grace).unwrap_or(0)
}

/// The seconds from a container's stop signal to KILL, after its hook took this long. `own` is the
/// container's own limit (KD7).
pub fn stop_seconds(grace: i64, own: Option<i64>, hook_took_ms: u64) -> u64 {
    let left = match u64::try_from(grace).unwrap_or(0) {
        0 => 0,
        grace => grace.saturating_sub(hook_took_ms / 1_000).max(outrigger_lifecycle::STOP_MIN_MS / 1_000),
    };
    own.map_or(left, |own| left.min(u64::try_from(own).unwrap_or(0)))
}

struct ContainerProgress {
    state: RecreateState,
    /// When to check again, if the container only needs to run a little longer.
    again_ms: Option<u64>,
}

fn newest<'i>(instances: &'i [Instance], name: &str) -> Option<&'i Instance> {
    instances.iter().filter(|i| i.name == name).max_by_key(|i| (i.created_at, i.restarts))
}

/// The state of one container (CRR-37). The first matching row of the table applies.
fn container_progress(
    request: &Request,
    target: &Target,
    instances: &[Instance],
    now: Time,
) -> ContainerProgress {
    let stored = request.status.container_recreate_states.iter().find(|s| s.name == target.name);
    let mut state =
        stored.cloned().unwrap_or_else(|| RecreateState { name: target.name.clone(), ..Default::default() });
    let mut progress = |phase, message: &str, again_ms| {
        state.phase = phase;
        message.clone_into(&mut state.message);
        ContainerProgress { state: state.clone(), again_ms }
    };
    if let Some(stored) = stored.filter(|s| s.phase.is_final()) {
        return progress(stored.phase, &stored.message, None);
    }
    let mark = stored.map(|s| s.killed_container_id.as_str()).unwrap_or_default();
    let gone = |id: &str| !instances.iter().any(|i| i.id == id && i.state != InstanceState::Exited);
    let was_killed = (stored.is_some_and(|s| s.is_killed) || !mark.is_empty()) && gone(mark);
    let strategy = request.strategy();
    let forced = strategy.force_recreate || request.only_stops();
    let Some(newest) = newest(instances, &target.name) else {
        return match (request.only_stops(), was_killed) {
            // A container that does not exist does not run (KD4).
            (true, _) => progress(Progress::Succeeded, "", None),
            (false, true) => progress(Progress::Recreating, "", None),
            (false, false) => progress(Progress::Pending, NOT_FOUND, None),
        };
    };
    if was_killed {
        state.is_killed = true;
    }
    let mut progress = |phase, message: &str, again_ms| {
        state.phase = phase;
        message.clone_into(&mut state.message);
        ContainerProgress { state: state.clone(), again_ms }
    };
    if request.only_stops() && (was_killed || newest.state == InstanceState::Exited) {
        let again = newest.state != InstanceState::Exited;
        return progress(
            Progress::Succeeded,
            if again { "stopped, and started again by the kubelet" } else { "" },
            None,
        );
    }
    if newest.state == InstanceState::Exited {
        return progress(Progress::Recreating, "", None);
    }
    if forced && !was_killed {
        return progress(Progress::Pending, "", None);
    }
    let context = target.status_context.clone().unwrap_or_default();
    let id = context.container_id.rsplit_once("://").map_or("", |(_, id)| id);
    if newest.id == id && newest.restarts <= context.restart_count && (!was_killed || newest.id == mark) {
        return progress(Progress::Pending, "", None);
    }
    let snapshot = request.status.container_status_snapshot.iter().find(|s| is_of(s, newest));
    let min_ms = u64::try_from(strategy.min_started_seconds).unwrap_or(0).saturating_mul(1_000);
    let ran_ms = newest.started_at.map_or(0, |at| now.since(at));
    match snapshot.is_some_and(|s| s.ready) {
        true if min_ms == 0 || ran_ms > min_ms => progress(Progress::Succeeded, "", None),
        true => progress(Progress::Recreating, "", Some(min_ms - ran_ms + 50)),
        false => progress(Progress::Recreating, "", None),
    }
}

fn is_of(snapshot: &Snapshot, instance: &Instance) -> bool {
    let id = snapshot.container_id.rsplit_once("://").map_or("", |(_, id)| id);
    snapshot.name == instance.name && id == instance.id
}

/// A request for containers that this agent cannot stop.
#[derive(Debug, thiserror::Error)]
enum RuntimeMismatch {
    #[error("container {container} has no valid id: {id:?}")]
    NoId { container: String, id: String },
    #[error("the containers of the request have different runtimes")]
    Several,
    #[error("the agent has no runtime {wanted:?}, only {}", known.join(", "))]
    Unknown { wanted: String, known: Vec<String> },
}

/// Checks that all containers belong to one runtime and that it is this agent's (CRR-35).
fn check_runtime(request: &Request, runtimes: &[&str]) -> Result<(), RuntimeMismatch> {
    let mut found: Option<&str> = None;
    for target in &request.spec.containers {
        let id = target.status_context.as_ref().map(|c| c.container_id.as_str()).unwrap_or_default();
        let Some((runtime, rest)) = id.split_once("://").filter(|(r, id)| !r.is_empty() && !id.is_empty())
        else {
            return Err(RuntimeMismatch::NoId { container: target.name.clone(), id: id.to_owned() });
        };
        let _ = rest;
        if found.is_some_and(|other| other != runtime) {
            return Err(RuntimeMismatch::Several);
        }
        found = Some(runtime);
    }
    match found {
        Some(runtime) if !runtimes.contains(&runtime) => {
            let known = runtimes.iter().map(ToString::to_string).collect();
            Err(RuntimeMismatch::Unknown { wanted: runtime.to_owned(), known })
        }
        _ => Ok(()),
    }
}
