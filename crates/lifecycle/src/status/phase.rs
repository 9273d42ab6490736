//! The phase of a pod (sections 5.1 and 5.2), derived from the observation.
//!
//! Kubernetes distinguishes init containers, sidecars and regular containers by their lists. Here the roles
//! of the plan decide, regardless of the list. A terminal phase is published only when the pod is over
//! (G-31).

use std::fmt;

use serde::{Deserialize, Serialize};

use super::containers::{DisplayedState, face};
use crate::observation::{Container, ExitReason, KillReason, Observation, State, StopCause};
use crate::plan::{ContainerPlan, Counts, Plan, Role};
use crate::rules;

/// The phase of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Phase {
    /// Something has not started yet.
    Pending,
    /// Everything was started, and something is running or will be restarted.
    Running,
    /// Everything that counts succeeded.
    Succeeded,
    /// Something that counts failed.
    Failed,
}

impl Phase {
    /// The name in a pod status.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Pending => "Pending",
            Phase::Running => "Running",
            Phase::Succeeded => "Succeeded",
            Phase::Failed => "Failed",
        }
    }

    /// Whether the phase is final.
    pub fn is_terminal(self) -> bool {
        matches!(self, Phase::Succeeded | Phase::Failed)
    }

    pub(crate) fn from_name(name: &str) -> Option<Phase> {
        [Phase::Pending, Phase::Running, Phase::Succeeded, Phase::Failed]
            .into_iter()
            .find(|p| p.name() == name)
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The phase of a pod, now.
pub fn phase(plan: &Plan, obs: &Observation) -> Phase {
    if obs.over {
        // R5.23: a pod that was stopped before all its mains had ended has failed.
        verdict(plan, obs).unwrap_or(Phase::Failed)
    } else {
        live(plan, obs)
    }
}

/// Whether the phase of a pod is `Failed` only because the pod was stopped, and not because a container
/// failed for good.
pub fn was_stopped(plan: &Plan, obs: &Observation) -> bool {
    let deleted = obs.stop.is_some_and(|stop| stop.cause == StopCause::Deleted);
    let failed = |(p, c): (&ContainerPlan, &Container)| {
        let counts = p.role == Role::Init || p.counts != Counts::No;
        counts && rules::final_exit(p, c).is_some_and(|e| e.failed() && e.killed_for.is_none())
    };
    deleted && phase(plan, obs) == Phase::Failed && !plan.containers.iter().zip(&obs.containers).any(failed)
}

/// Whether a container that counts has failed for good, so that its pod can only fail.
pub fn fails_pod(plan: &Plan, obs: &Observation, index: usize) -> bool {
    let (p, c) = (&plan.containers[index], &obs.containers[index]);
    rules::final_exit(p, c).is_some() && matches!(counted(p, c, false), Count::Exit { failed: true })
}

/// The result of a finished pod, from the cause of its stop and its exit codes. `None` if a main never ran to
/// its end, so that there is no result.
pub(super) fn verdict(plan: &Plan, obs: &Observation) -> Option<Phase> {
    if let Some(stop) = &obs.stop {
        match stop.cause {
            StopCause::InitFailed { .. }
            | StopCause::DeadlineExceeded
            | StopCause::GateNeverOpens { .. }
            | StopCause::SandboxLost
            | StopCause::CannotStart { .. }
            | StopCause::NotRetried { .. }
            | StopCause::NodeShutdown
            | StopCause::VolumeFull { .. } => return Some(Phase::Failed),
            StopCause::Deleted | StopCause::Completed | StopCause::Fatal { .. } => {}
        }
    }
    let ended_by_one = obs.stop.is_some_and(|stop| matches!(stop.cause, StopCause::Fatal { .. }));
    let mut failed = false;
    for (p, c) in plan.containers.iter().zip(&obs.containers) {
        match counted(p, c, ended_by_one) {
            Count::Nothing => {}
            Count::Never => return None,
            Count::Exit { failed: this } => failed |= this,
        }
    }
    Some(if failed { Phase::Failed } else { Phase::Succeeded })
}

/// What a container contributes to the result.
enum Count {
    /// It does not affect the result.
    Nothing,
    /// It should have run to its end, but has not.
    Never,
    /// Its exit counts.
    Exit { failed: bool },
}

fn counted(p: &ContainerPlan, c: &Container, ended_by_one: bool) -> Count {
    if matches!(p.role, Role::Init | Role::Ephemeral) || p.counts == Counts::No {
        return Count::Nothing;
    }
    // If its last restart was refused, the exit of the instance before counts.
    let exit = c.exit.as_ref().or(c.last_exit.as_ref()).filter(|_| c.was_run);
    match exit {
        None if p.role == Role::Main && p.counts == Counts::Yes => Count::Never,
        None => Count::Nothing,
        // A container that was stopped because of another one does not count: that other one determines the
        // result.
        Some(exit)
            if (p.counts == Counts::UnlessStopped || ended_by_one)
                && exit.killed_for == Some(KillReason::PodStop) =>
        {
            Count::Nothing
        }
        // Neither does a container that was about to be restarted when the pod ended: a running one would
        // have been stopped. The last exit of a main always counts (R5.23), and so does that of a sidecar
        // that counts like a main.
        Some(exit)
            if (p.counts == Counts::UnlessStopped || ended_by_one)
                && exit.killed_for != Some(KillReason::PodStop)
                && rules::restarts_after(p, exit) =>
        {
            Count::Nothing
        }
        Some(exit) => Count::Exit { failed: exit.failed() },
    }
}

/// The phase of a pod that is not over: Pending or Running.
pub(super) fn live(plan: &Plan, obs: &Observation) -> Phase {
    let (mut pending_init, mut pending_sidecar) = (false, false);
    let (mut waiting, mut running, mut stopped) = (false, false, false);
    for (i, (p, c)) in plan.containers.iter().zip(&obs.containers).enumerate() {
        let face = face(plan, obs, i);
        match (p.role, face) {
            (Role::Ephemeral, _) => {}
            // An init container that failed for good ends the pod, but the pod is still stopping (G-31).
            (Role::Init, DisplayedState::Terminated(exit)) => {
                pending_init |= exit.failed() && !rules::restarts_after(p, exit)
            }
            (Role::Init, DisplayedState::Waiting) => pending_init |= begins(c),
            (Role::Init, DisplayedState::Running(_) | DisplayedState::Lost) => pending_init = true,
            (Role::Sidecar, DisplayedState::Running(_)) => {
                running = true;
                pending_sidecar |= !rules::is_started(p, c);
            }
            (Role::Sidecar, DisplayedState::Waiting) if c.last_exit.is_none() => {
                waiting = true;
                pending_sidecar = true;
            }
            (Role::Sidecar, DisplayedState::Waiting) => pending_sidecar |= begins(c),
            (Role::Sidecar, _) => {}
            (Role::Main, DisplayedState::Running(_)) => running = true,
            (Role::Main, DisplayedState::Waiting) if c.last_exit.is_none() => waiting = true,
            (Role::Main, _) => stopped = true,
        }
    }
    // R5.2 to R5.4, then R5.5 and R5.8. The cases of R5.6, R5.9 and R5.10 are Running until the pod is over.
    if pending_init || (pending_sidecar && !main_in_sandbox(plan, obs)) || waiting {
        Phase::Pending
    } else if running || stopped {
        Phase::Running
    } else {
        Phase::Pending
    }
}

/// Whether a waiting container has not been started since the pod started in a new sandbox. An in-place
/// restart is not a new start for the phase (R2.43).
fn begins(c: &Container) -> bool {
    match &c.last_exit {
        None => true,
        Some(exit) => !c.was_run && exit.reason != ExitReason::RestartingAllContainers,
    }
}

/// Whether a main was started in the current sandbox. After a lost sandbox everything starts over, except
/// mains that have finished for good. While other mains have not started, these do not count for the new
/// sandbox (R5.15, R2.55).
fn main_in_sandbox(plan: &Plan, obs: &Observation) -> bool {
    let mut finished_only = true;
    for (p, c) in plan.containers.iter().zip(&obs.containers) {
        if p.role != Role::Main || rules::final_exit(p, c).is_some() {
            continue;
        }
        if c.was_run || matches!(c.state, State::Starting { .. }) {
            return true;
        }
        finished_only = false;
    }
    finished_only
}
