//! The trace entries for waits and stops, with container names instead of indices.

use super::event::{ContainerEvent, PodEvent, StopReason, WaitReason};
use crate::decision::Wait;
use crate::explain::{explain, explain_stop, first_failed_container};
use crate::observation::{Observation, Stop, StopCause};
use crate::plan::Plan;
use crate::time::Time;

/// The entry for a wait; `None` for hooks and stop signals, which have the entries `hook-started` and
/// `terminating`.
pub(super) fn waiting(
    plan: &Plan,
    obs: &Observation,
    i: usize,
    wait: Wait,
    now: Time,
) -> Option<ContainerEvent> {
    let name = |i: usize| plan.containers[i].name.clone();
    let reason = match wait {
        Wait::Hook { .. } | Wait::Stopping { .. } => return None,
        Wait::Sandbox => WaitReason::Sandbox,
        Wait::Gate { on, need } => WaitReason::Gate { on: name(on), need },
        Wait::Image => WaitReason::Image,
        Wait::ImageRetry { at } => WaitReason::ImageRetry { in_ms: at.since(now) },
        Wait::Backoff { until } => WaitReason::BackOff { in_ms: until.since(now) },
        Wait::StartRetry { at } => WaitReason::StartRetry { in_ms: at.since(now) },
        Wait::StartupProbe => WaitReason::StartupProbe,
        Wait::ReadinessProbe => WaitReason::ReadinessProbe,
        Wait::StopTurn { on } => WaitReason::StopTurn { on: name(on) },
        Wait::FirstPreStop { on } => WaitReason::FirstPreStop { on: name(on) },
        Wait::SidecarDelay { until } => WaitReason::SidecarDelay { in_ms: until.since(now) },
        Wait::Rerun { not_before } => WaitReason::Rerun { in_ms: not_before.since(now) },
    };
    Some(ContainerEvent::Waiting { wait: reason, text: explain(plan, obs, i, wait, now) })
}

/// The entry for the beginning of a stop.
pub(super) fn stop_begun(plan: &Plan, obs: &Observation, stop: &Stop) -> PodEvent {
    let (cause, container, on) = match stop.cause {
        StopCause::Deleted => (StopReason::Deleted, None, None),
        // The containers that have ended may have failed.
        StopCause::Completed => {
            (StopReason::Completed, first_failed_container(plan, obs).map(|(container, _)| container), None)
        }
        StopCause::InitFailed { container } => (StopReason::InitFailed, Some(container), None),
        StopCause::DeadlineExceeded => (StopReason::DeadlineExceeded, None, None),
        StopCause::Fatal { container } => (StopReason::Fatal, Some(container), None),
        StopCause::GateNeverOpens { container, on } => {
            (StopReason::GateNeverOpens, Some(container), Some(on))
        }
        StopCause::SandboxLost => (StopReason::SandboxLost, None, None),
        StopCause::CannotStart { container } => (StopReason::CannotStart, container, None),
        StopCause::NotRetried { container } => (StopReason::NotRetried, container, None),
        StopCause::NodeShutdown => (StopReason::NodeShutdown, None, None),
        StopCause::VolumeFull { .. } => (StopReason::VolumeFull, None, None),
    };
    let name = |i: usize| plan.containers[i].name.clone();
    PodEvent::StopBegun {
        cause,
        because_of: container.map(name),
        waited_for: on.map(name),
        grace_ms: Some(stop.grace_ms),
        running: Some(obs.containers.iter().filter(|c| c.state.is_alive()).count()),
        message: explain_stop(plan, obs, stop.cause),
    }
}
