//! The engine: `decide(plan, observation, now)`.
//!
//! `decide` is a pure function and level-triggered: it evaluates the whole observation each time, so a lost
//! event or a restarted observer changes nothing. [`Engine`] bundles a plan with its observation for drivers.

mod run;
mod stop;
mod turns;
mod update;

pub use turns::{StopPlan, StopTurn, stop_stages, stop_turns};
pub use update::{CannotRestart, CannotUpdate, Change, can_restart, changes};

use crate::action::{Action, Event};
use crate::decision::{Decision, Wait};
use crate::observation::{Observation, RerunCause, SandboxState, State, StopCause};
use crate::plan::{Gate, Plan, RestartPolicy, Role};
use crate::rules;
use crate::time::Time;

/// The minimum time between a stop signal and KILL, unless the grace period is zero (R3.16).
pub const STOP_MIN_MS: u64 = 2_000;

/// The maximum grace period of a pod that is evicted (R3.3).
const EVICTION_GRACE_MS: u64 = 1_000;

/// The maximum number of rounds of internal transitions in one step. Each transition happens at most once per
/// container and reason, so a step that needs more is a bug in the rules.
const STEP_ROUNDS_MAX: usize = 16;

/// Decides what to do now.
pub fn decide(plan: &Plan, obs: &Observation, now: Time, out: &mut Decision) {
    out.clear();
    if obs.over {
        return;
    }
    debug_assert_eq!(plan.containers.len(), obs.containers.len());
    cancel_pointless_hooks(obs, out);
    if obs.stop.is_none() && turn_of_events(plan, obs, now, out) {
        return;
    }
    if obs.stop.is_some() {
        stop::pod(plan, obs, now, out);
        if !obs.any_alive() && !out.actions.iter().any(|a| matches!(a, Action::Start { .. })) {
            out.actions.push(Action::Finish);
        }
    } else if let Some(rerun) = obs.rerun {
        stop::pod(plan, obs, now, out);
        if !obs.any_alive() {
            if now >= rerun.not_before {
                out.actions.push(Action::Rerun);
            } else {
                out.wake_at(rerun.not_before);
                for i in 0..plan.containers.len() {
                    out.wait(i, Wait::Rerun { not_before: rerun.not_before });
                }
            }
        }
    } else {
        run::pod(plan, obs, now, out);
    }
}

/// Cancels hooks of containers that are gone (G-27).
fn cancel_pointless_hooks(obs: &Observation, out: &mut Decision) {
    use crate::observation::HookKind::{FirstPreStop, PostStart, PreStop};
    for (i, c) in obs.containers.iter().enumerate() {
        if c.state.is_alive() {
            continue;
        }
        for hook in [PostStart, PreStop, FirstPreStop] {
            if c.hook(hook).is_running() {
                out.actions.push(Action::CancelHook { container: i, attempt: c.attempt, hook });
            }
        }
    }
}

/// Checks for anything that ends the pod or makes it start over. Returns true if there is something; the next
/// round then sees the change.
fn turn_of_events(plan: &Plan, obs: &Observation, now: Time, out: &mut Decision) -> bool {
    let finished = rules::all_keepers(plan, obs, |p, c| rules::final_exit(p, c).is_some());
    if let Some(limit) = plan.active_deadline_ms
        && !finished
    {
        if now >= obs.since + limit {
            begin_stop(plan, StopCause::DeadlineExceeded, out);
            return true;
        }
        out.wake_at(obs.since + limit);
    }
    if let Some(volume) = rules::full_volume(plan, obs).filter(|_| !finished) {
        // A pod that fills the disk has little time to stop (R3.3).
        let grace_ms = plan.grace_ms.min(EVICTION_GRACE_MS);
        out.actions.push(Action::BeginStop { cause: StopCause::VolumeFull { volume }, grace_ms });
        return true;
    }
    if obs.rerun.is_some() {
        return false;
    }
    if obs.sandbox.state == SandboxState::Lost {
        match after_lost_sandbox(plan, obs, finished) {
            Some(cause) => begin_stop(plan, cause, out),
            None => out.actions.push(Action::BeginRerun { cause: RerunCause::Sandbox, deadline: now }),
        }
        return true;
    }
    if obs.restart_requested {
        let cause = RerunCause::Requested;
        out.actions.push(Action::BeginRerun { cause, deadline: now + plan.grace_ms });
        return true;
    }
    for (i, (p, c)) in plan.containers.iter().zip(&obs.containers).enumerate() {
        let Some(exit) = c.exit.as_ref().filter(|_| c.state == State::Exited) else {
            continue;
        };
        if !p.restart.rules.is_empty() && rules::restarts_all(p, exit) {
            let cause = RerunCause::Rule { container: i };
            out.actions.push(Action::BeginRerun { cause, deadline: now + plan.grace_ms });
            return true;
        }
        if rules::restarts_after(p, exit) {
            continue;
        }
        if p.role == Role::Init && exit.failed() {
            begin_stop(plan, StopCause::InitFailed { container: i }, out);
            return true;
        }
        if p.fatal {
            begin_stop(plan, StopCause::Fatal { container: i }, out);
            return true;
        }
    }
    if finished {
        let Some(until) = rules::sidecars_run_until(plan, obs).filter(|until| now < *until) else {
            begin_stop(plan, StopCause::Completed, out);
            return true;
        };
        out.wake_at(until);
        return false;
    }
    if let Some((container, on)) = waits_in_vain(plan, obs) {
        begin_stop(plan, StopCause::GateNeverOpens { container, on }, out);
        return true;
    }
    false
}

fn begin_stop(plan: &Plan, cause: StopCause, out: &mut Decision) {
    out.actions.push(Action::BeginStop { cause, grace_ms: plan.grace_ms });
}

/// The consequence of a lost sandbox (R2.51, R2.52). `None` means that a new one is created and the pod
/// starts over.
fn after_lost_sandbox(plan: &Plan, obs: &Observation, finished: bool) -> Option<StopCause> {
    if finished {
        return Some(StopCause::Completed);
    }
    // A pod with restartPolicy Never must not run anything twice. If it has run something, it fails instead
    // of waiting forever (G-32).
    let ran = obs.containers.iter().any(|c| c.was_run || c.exit.is_some());
    (plan.restart_policy == RestartPolicy::Never && ran).then_some(StopCause::SandboxLost)
}

/// A container that waits for something that can no longer happen (LP-28, KD10), either for its first start
/// or, with a fence, for a restart.
fn waits_in_vain(plan: &Plan, obs: &Observation) -> Option<(usize, usize)> {
    for (i, (p, c)) in plan.containers.iter().zip(&obs.containers).enumerate() {
        if !run::wants_start(p, c) {
            continue;
        }
        let lost = |g: &&Gate| rules::gate_is_asked(g, c) && rules::gate_can_never_open(plan, obs, i, g);
        if let Some(gate) = p.gates.iter().find(lost) {
            return Some((i, gate.on));
        }
    }
    None
}

/// A plan, the observation of its pod, and the loop that applies decisions until nothing changes.
#[derive(Debug, Clone)]
pub struct Engine {
    plan: Plan,
    obs: Observation,
    scratch: Decision,
}

impl Engine {
    /// The engine of a new pod.
    pub fn new(plan: Plan, now: Time) -> Self {
        let obs = Observation::new(&plan, now);
        Engine::resume(plan, obs)
    }

    /// The engine of a pod that already has an observation.
    pub fn resume(plan: Plan, obs: Observation) -> Self {
        Engine { plan, obs, scratch: Decision::default() }
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The observation.
    pub fn observation(&self) -> &Observation {
        &self.obs
    }

    /// Applies a new plan to the running pod (R8.30): new images, more ephemeral containers, a new grace
    /// period or deadline. Returns the changes. They take effect at the next step, and only on the containers
    /// they concern.
    ///
    /// # Errors
    /// The plan has other differences, so the pod must be replaced.
    pub fn update(&mut self, plan: Plan) -> Result<Vec<Change>, CannotUpdate> {
        let changes = changes(&self.plan, &plan)?;
        self.obs.update(&plan, &changes);
        self.plan = plan;
        Ok(changes)
    }

    /// Whether [`Event::RestartRequested`] would restart a container, or all containers if none is given.
    ///
    /// # Errors
    /// Why it would not.
    pub fn can_restart(&self, container: Option<usize>) -> Result<(), CannotRestart> {
        can_restart(&self.plan, &self.obs, container)
    }

    /// Applies an event to the observation.
    pub fn handle(&mut self, event: &Event, now: Time) {
        self.obs.apply(&self.plan, event, now);
    }

    /// Decides until nothing changes any more. `out.actions` has every action, internal ones included, in
    /// order. All of them are marked in the observation; the driver must carry out those that are not
    /// internal.
    pub fn step(&mut self, now: Time, out: &mut Decision) {
        out.clear();
        for round in 0.. {
            decide(&self.plan, &self.obs, now, &mut self.scratch);
            if self.scratch.actions.is_empty() {
                break;
            }
            assert!(
                round < STEP_ROUNDS_MAX * (1 + self.plan.containers.len()),
                "the engine does not come to rest: {:?}",
                self.scratch.actions
            );
            for action in &self.scratch.actions {
                self.obs.mark(&self.plan, action, now);
            }
            out.actions.append(&mut self.scratch.actions);
        }
        out.wake = self.scratch.wake;
        out.waits.clear();
        out.waits.append(&mut self.scratch.waits);
    }
}
