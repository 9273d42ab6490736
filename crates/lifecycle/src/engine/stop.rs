//! The rules for stopping one container, or all containers of a pod in order (section 3).
//!
//! Every container that is being stopped goes through the same steps: preStop hook, stop signal, KILL. When
//! the pod stops, a container also waits for its turn: it is not signalled while a container that must stop
//! before it is running.
//!
//! After the grace period, each stage is killed and has ended before the next one is signalled. In pods that
//! use only native sidecars, all remaining containers are then signalled together, as on the kubelet
//! ([`Plan::keeps_order_after_grace`]).

use super::turns::kept_for_later;
use super::{STOP_MIN_MS, run};
use crate::action::Action;
use crate::decision::{Decision, Wait};
use crate::observation::{Container, Hook, HookKind, Kill, KillReason, Observation, State};
use crate::plan::{Plan, PreStopWhen, ProbeKind, Role};
use crate::time::Time;

/// A stop of all containers: for good, or to start the whole pod over. Order and deadlines are the same for
/// every cause.
struct Ending {
    /// Why its containers are stopped.
    reason: KillReason,
    grace_ms: u64,
    deadline: Time,
    /// Whether sidecars that die while they are needed are started again. Once the mains have ended they are
    /// not needed, and those that have ended stay ended (R4.1). In a pod that starts over, all sidecars start
    /// together later (R2.42).
    revives_sidecars: bool,
}

impl Ending {
    fn begun(obs: &Observation) -> Option<Ending> {
        if let Some(stop) = &obs.stop {
            return Some(Ending {
                reason: KillReason::PodStop,
                grace_ms: stop.grace_ms,
                deadline: stop.deadline,
                revives_sidecars: !stop.after_mains,
            });
        }
        let rerun = obs.rerun.as_ref()?;
        Some(Ending {
            reason: KillReason::Rerun,
            grace_ms: rerun.deadline.since(rerun.since),
            deadline: rerun.deadline,
            revives_sidecars: false,
        })
    }

    /// The end of a stage: its containers are killed then.
    fn kill_deadline(&self, plan: &Plan, stage: usize) -> Time {
        self.deadline - kept_for_later(plan, self.grace_ms, stage)
    }

    /// The end of the stage before. From then on it is a stage's turn, even if containers before it are still
    /// being killed.
    fn turn_deadline(&self, plan: &Plan, stage: usize) -> Time {
        self.kill_deadline(plan, stage.saturating_sub(1))
    }
}

/// Stops every container of the pod, in order.
pub(super) fn pod(plan: &Plan, obs: &Observation, now: Time, out: &mut Decision) {
    let Some(ending) = Ending::begun(obs) else { return };
    hold(plan, obs, out);
    let first_hook_of = first_hook(plan, obs, &out.held_by);
    for &i in &plan.stop_order {
        let c = &obs.containers[i];
        if !c.state.is_alive() {
            keep_up(plan, obs, i, &ending, now, out);
            continue;
        }
        match c.kill {
            None => {
                let Ending { reason, deadline, .. } = ending;
                out.actions.push(Action::BeginKill { container: i, reason, deadline });
            }
            Some(kill) => {
                let turn = Turn::new(plan, &ending, i, &kill, out.held_by[i], first_hook_of);
                end(plan, obs, i, &kill, turn, now, out);
            }
        }
        if let State::Running { since } = c.state {
            // Readiness probes continue to the end (R3.51); liveness and startup do not (G-40).
            run::probe_one(&plan.containers[i], c, i, ProbeKind::Readiness, since, now, out);
        }
    }
}

/// Stops one container on its own. It does not wait for a turn (R2.15).
pub(super) fn one(plan: &Plan, obs: &Observation, i: usize, now: Time, out: &mut Decision) {
    if let Some(kill) = obs.containers[i].kill {
        end(plan, obs, i, &kill, Turn::own(plan, i, &kill), now, out);
    }
}

/// Starts a sidecar again that died while the containers it serves are still running, until its own turn
/// comes (G-18). A sidecar whose preStop hook has already run is not started again.
fn keep_up(plan: &Plan, obs: &Observation, i: usize, ending: &Ending, now: Time, out: &mut Decision) {
    let (p, c) = (&plan.containers[i], &obs.containers[i]);
    let died = c.exit.as_ref().is_some_and(|e| e.killed_for.is_none());
    if p.role != Role::Sidecar
        || !died
        || !ending.revives_sidecars
        || out.held_by[i].is_none()
        || now >= ending.turn_deadline(plan, p.stop_stage)
        || c.pre_stop != Hook::Idle
        || c.first_pre_stop != Hook::Idle
        || !run::wants_start(p, c)
    {
        return;
    }
    run::pull(p, c, i, now, out);
    match run::hindrance(plan, obs, i, now) {
        None => out.actions.push(Action::Start { container: i, attempt: run::next_attempt(c) }),
        Some(wait) => {
            if let Wait::Backoff { until: at } | Wait::StartRetry { at } = wait {
                out.wake_at(at);
            }
            out.wait(i, wait);
        }
    }
}

/// For every container, finds another one that must end before it is signalled. This is transitive: a
/// container that has ended still passes on those before it, so a dead sidecar in the middle does not break
/// the chain (G-22).
fn hold(plan: &Plan, obs: &Observation, out: &mut Decision) {
    out.held_by.clear();
    out.held_by.resize(plan.containers.len(), None);
    for &i in &plan.stop_order {
        out.held_by[i] = plan.containers[i].stop_after.iter().find_map(|&before| {
            if obs.containers[before].state.is_alive() { Some(before) } else { out.held_by[before] }
        });
    }
}

/// When a container may be signalled and must be killed, in a stop of the pod or of the container alone.
struct Turn {
    /// A container that must end first.
    held_by: Option<usize>,
    /// From this time on it no longer waits; `None` if it waits until the others have ended.
    free_at: Option<Time>,
    /// When it is killed, if it has had [`STOP_MIN_MS`] to react by then.
    kill_at: Time,
    /// The time from its signal until it is killed, if that is earlier.
    own_grace_ms: Option<u64>,
    /// The container whose first preStop hook must end before, and how long to wait for it.
    first_hook_of: Option<(usize, Time)>,
    /// Whether the grace period is zero. The container is then killed at its turn, without a signal (G-29).
    at_once: bool,
}

impl Turn {
    /// The turn of a container that is stopped on its own, which has come.
    fn own(plan: &Plan, i: usize, kill: &Kill) -> Turn {
        Turn {
            held_by: None,
            free_at: None,
            kill_at: kill.deadline,
            own_grace_ms: plan.containers[i].stop_grace_ms,
            first_hook_of: None,
            at_once: kill.deadline <= kill.since,
        }
    }

    /// When the container is killed, if it was signalled at this time.
    fn kill_after(&self, signalled: Time) -> Time {
        let kill_at = self.kill_at.max(signalled + STOP_MIN_MS);
        self.own_grace_ms.map_or(kill_at, |own| kill_at.min(signalled + own))
    }

    /// The container that it still waits for.
    fn held(&self, now: Time) -> Option<usize> {
        self.held_by.filter(|_| self.free_at.is_none_or(|at| now < at))
    }

    fn new(
        plan: &Plan,
        ending: &Ending,
        i: usize,
        kill: &Kill,
        held_by: Option<usize>,
        first_hook_of: Option<usize>,
    ) -> Turn {
        let stage = plan.containers[i].stop_stage;
        let turn_ends = ending.turn_deadline(plan, stage);
        Turn {
            held_by,
            free_at: (!plan.keeps_order_after_grace()).then_some(turn_ends),
            kill_at: ending.kill_deadline(plan, stage).min(kill.deadline),
            own_grace_ms: plan.containers[i].stop_grace_ms,
            first_hook_of: first_hook_of.filter(|_| !runs_first_hook(plan, i)).map(|on| (on, turn_ends)),
            at_once: kill.deadline <= kill.since || ending.grace_ms == 0,
        }
    }
}

/// In the KEP, the preStop hooks of all sidecars run before any main is stopped. Returns a sidecar whose hook
/// has not ended.
///
/// A sidecar that waits for no container has no mains left, so its hook runs only at its own turn. A sidecar
/// that is already being stopped on its own runs its hook for that, and not once more.
fn first_hook(plan: &Plan, obs: &Observation, held_by: &[Option<usize>]) -> Option<usize> {
    (0..plan.containers.len()).find(|&other| {
        let c = &obs.containers[other];
        let told = c.kill.is_some_and(|kill| kill.signalled_at.is_some() || kill.killed_at.is_some());
        let due = match (&c.first_pre_stop, &c.pre_stop) {
            (Hook::Running { .. }, _) => true,
            (Hook::Idle, Hook::Idle | Hook::Running { .. }) => held_by[other].is_some(),
            _ => false,
        };
        runs_first_hook(plan, other) && matches!(c.state, State::Running { .. }) && !told && due
    })
}

fn runs_first_hook(plan: &Plan, i: usize) -> bool {
    let p = &plan.containers[i];
    p.pre_stop.is_some() && p.pre_stop_when == PreStopWhen::FirstAndOwnTurn
}

/// One step of stopping a container.
fn end(plan: &Plan, obs: &Observation, i: usize, kill: &Kill, turn: Turn, now: Time, out: &mut Decision) {
    let c = &obs.containers[i];
    if kill.killed_at.is_some() {
        return;
    }
    if c.post_start.is_running() {
        out.actions.push(Action::CancelHook { container: i, attempt: c.attempt, hook: HookKind::PostStart });
    }
    // With a grace period of zero, containers are killed without a signal (G-29), one stage after the other.
    if turn.at_once {
        cancel_hooks(c, i, out);
        match turn.held(now) {
            Some(on) => out.wait(i, Wait::StopTurn { on }),
            None => out.actions.push(Action::Kill { container: i, attempt: c.attempt }),
        }
        return;
    }
    if let Some(signalled) = kill.signalled_at {
        let kill_at = turn.kill_after(signalled);
        if now >= kill_at {
            out.actions.push(Action::Kill { container: i, attempt: c.attempt });
        } else {
            out.wake_at(kill_at);
            out.wait(i, Wait::Stopping { kill_at });
        }
        return;
    }
    if !may_signal(plan, obs, i, &turn, now, out) {
        return;
    }
    if matches!(c.state, State::Starting { .. }) {
        // It is signalled as soon as it has started. If the runtime never reports the start, it is killed
        // anyway.
        let kill_at = turn.kill_at + STOP_MIN_MS;
        if now >= kill_at {
            out.actions.push(Action::Kill { container: i, attempt: c.attempt });
        } else {
            out.wake_at(kill_at);
            out.wait(i, Wait::Stopping { kill_at });
        }
        return;
    }
    let kill_at = turn.kill_after(now);
    out.actions.push(Action::Terminate { container: i, attempt: c.attempt, kill_at });
}

/// Whether a container may be signalled now. If not, this has requested its hook or noted what it waits for.
fn may_signal(plan: &Plan, obs: &Observation, i: usize, turn: &Turn, now: Time, out: &mut Decision) -> bool {
    let (p, c) = (&plan.containers[i], &obs.containers[i]);
    if let Some((on, until)) = turn.first_hook_of
        && now < until
    {
        out.wake_at(until);
        out.wait(i, Wait::FirstPreStop { on });
        return false;
    }
    let held = turn.held(now);
    let running = matches!(c.state, State::Running { .. });
    if p.pre_stop.is_some() && running && held.is_some() {
        match p.pre_stop_when {
            PreStopWhen::AtOnce => hook(c, i, HookKind::PreStop, turn.kill_at, now, out),
            PreStopWhen::FirstAndOwnTurn if c.pre_stop == Hook::Idle => {
                hook(c, i, HookKind::FirstPreStop, turn.kill_at, now, out)
            }
            PreStopWhen::FirstAndOwnTurn | PreStopWhen::OwnTurn => true,
        };
    }
    if let Some(on) = held {
        if let Some(at) = turn.free_at {
            out.wake_at(at);
        }
        out.wait(i, Wait::StopTurn { on });
        return false;
    }
    if c.first_pre_stop.is_running() && !hook(c, i, HookKind::FirstPreStop, turn.kill_at, now, out) {
        return false;
    }
    // The second hook of the KEP is for a sidecar that outlived the mains. Otherwise the hook would run twice
    // in a row.
    p.pre_stop.is_none() || !running || hook(c, i, HookKind::PreStop, turn.kill_at, now, out)
}

/// Starts a preStop hook, or waits for it. Returns true when the hook or the grace period has ended.
fn hook(c: &Container, i: usize, kind: HookKind, deadline: Time, now: Time, out: &mut Decision) -> bool {
    let attempt = c.attempt;
    match c.hook(kind) {
        Hook::Idle if now < deadline => {
            out.actions.push(Action::RunHook { container: i, attempt, hook: kind, deadline: Some(deadline) });
            out.wake_at(deadline);
            false
        }
        Hook::Running { .. } if now < deadline => {
            out.wake_at(deadline);
            out.wait(i, Wait::Hook { hook: kind });
            false
        }
        Hook::Running { .. } => {
            out.actions.push(Action::CancelHook { container: i, attempt, hook: kind });
            true
        }
        Hook::Idle | Hook::Done | Hook::Failed { .. } => true,
    }
}

fn cancel_hooks(c: &Container, i: usize, out: &mut Decision) {
    for hook in [HookKind::PreStop, HookKind::FirstPreStop] {
        if c.hook(hook).is_running() {
            out.actions.push(Action::CancelHook { container: i, attempt: c.attempt, hook });
        }
    }
}
