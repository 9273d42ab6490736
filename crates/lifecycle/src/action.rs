//! The events that a pod's observer reports ([`Event`]), and the actions that the engine requests
//! ([`Action`]).

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::cause::{ProbeCause, PullCause, SandboxCause, StartCause};
use crate::observation::{Exit, HookKind, KillReason, RerunCause, StopCause};
use crate::plan::ProbeKind;
use crate::time::Time;

/// An event. An event about an instance has the number of that instance, so that late and repeated events can
/// be detected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "event")]
pub enum Event {
    /// The sandbox is ready.
    SandboxReady,
    /// The sandbox could not be created.
    SandboxFailed {
        /// The error, in human-readable form.
        message: Arc<str>,
        /// The error, in machine-readable form, if it is known.
        #[serde(default)]
        cause: Option<SandboxCause>,
    },
    /// The sandbox died.
    SandboxLost,
    /// An image is present.
    ImageReady {
        /// The index of the container in the plan.
        container: usize,
    },
    /// An image could not be pulled.
    ImageFailed {
        /// The index of the container in the plan.
        container: usize,
        /// Kubernetes' reason.
        reason: Arc<str>,
        /// The error, in human-readable form.
        message: Arc<str>,
        /// The error, in machine-readable form, if it is known.
        #[serde(default)]
        cause: Option<PullCause>,
    },
    /// The container has a new image in the spec.
    ImageChanged {
        /// The index of the container in the plan.
        container: usize,
    },
    /// The program was exec'd.
    Started {
        /// The index of the container in the plan.
        container: usize,
        /// The number of the instance, from 0.
        attempt: u32,
    },
    /// The runtime could not create or start the container.
    StartFailed {
        /// The index of the container in the plan.
        container: usize,
        /// The number of the instance, from 0.
        attempt: u32,
        /// Kubernetes' reason.
        reason: Arc<str>,
        /// The error, in human-readable form.
        message: Arc<str>,
        /// The error, in machine-readable form, if it is known.
        cause: Option<StartCause>,
    },
    /// The container ended. A program that could not be exec'd is reported like this too, with reason
    /// `StartError`.
    Exited {
        /// The index of the container in the plan.
        container: usize,
        /// The number of the instance, from 0.
        attempt: u32,
        /// How it ended.
        exit: Exit,
    },
    /// The runtime lost track of the container.
    Lost {
        /// The index of the container in the plan.
        container: usize,
        /// The number of the instance, from 0.
        attempt: u32,
    },
    /// A probe attempt ended.
    Probed {
        /// The index of the container in the plan.
        container: usize,
        /// The number of the instance, from 0.
        attempt: u32,
        /// The kind of the probe.
        kind: ProbeKind,
        /// The result.
        outcome: ProbeOutcome,
        /// The probe's output, for people to read.
        message: Option<Arc<str>>,
        /// Why the attempt failed, in machine-readable form.
        #[serde(default)]
        cause: Option<ProbeCause>,
    },
    /// A hook ended.
    HookEnded {
        /// The index of the container in the plan.
        container: usize,
        /// The number of the instance, from 0.
        attempt: u32,
        /// The kind of the hook.
        hook: HookKind,
        /// The error; `None` if the hook succeeded.
        error: Option<Arc<str>>,
    },
    /// A volume was measured.
    VolumeMeasured {
        /// The index of the volume in [`crate::Plan::volume_limits`].
        volume: usize,
        /// The size of its content.
        bytes: u64,
    },
    /// A restart of one container, or of all of them in order, was requested; see
    /// [`crate::Engine::can_restart`].
    RestartRequested {
        /// The index of the container in the plan; `None` for all, from the first init container on.
        container: Option<usize>,
    },
    /// A stop of the pod was requested. A later request can only shorten the grace period.
    StopRequested {
        /// The grace period; `None` for the plan's.
        grace_ms: Option<u64>,
    },
    /// The last failure is permanent and is not retried: the pod ends.
    CannotStart {
        /// The index of the container that failed; `None` if the sandbox did.
        container: Option<usize>,
        /// The grace period; `None` for the plan's.
        grace_ms: Option<u64>,
    },
    /// The last failure might heal, but nothing is tried again: the pod ends.
    NotRetried {
        /// What failed; `None`: the sandbox.
        container: Option<usize>,
        /// The grace period; `None` is the plan's.
        grace_ms: Option<u64>,
    },
    /// The machine is shutting down.
    NodeShutdown {
        /// The maximum grace period; the plan's may be shorter.
        grace_ms: u64,
    },
}

/// The result of a probe attempt (section 6.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProbeOutcome {
    /// It succeeded.
    Success,
    /// It failed.
    Failure,
    /// There is no result. The attempt is not counted (R6.12).
    Error,
}

impl ProbeOutcome {
    /// The name in the trace.
    pub fn name(self) -> &'static str {
        match self {
            ProbeOutcome::Success => "success",
            ProbeOutcome::Failure => "failure",
            ProbeOutcome::Error => "error",
        }
    }
}

/// Something to do now. The driver carries out the first group. The second group only changes the
/// observation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "action")]
pub enum Action {
    /// Create the sandbox.
    CreateSandbox {
        /// The number of sandboxes before this one.
        attempt: u32,
    },
    /// Make the image available.
    Pull {
        /// The index of the container in the plan.
        container: usize,
    },
    /// Create and start an instance.
    Start {
        /// The index of the container in the plan.
        container: usize,
        /// The number of the instance, from 0.
        attempt: u32,
    },
    /// Run a hook.
    RunHook {
        /// The index of the container in the plan.
        container: usize,
        /// The number of the instance, from 0.
        attempt: u32,
        /// The kind of the hook.
        hook: HookKind,
        /// Cancel the hook at this time if it has not ended.
        deadline: Option<Time>,
    },
    /// Cancel a running hook. The driver reports no event for it.
    CancelHook {
        /// The index of the container in the plan.
        container: usize,
        /// The number of the instance, from 0.
        attempt: u32,
        /// The kind of the hook.
        hook: HookKind,
    },
    /// Make one probe attempt.
    Probe {
        /// The index of the container in the plan.
        container: usize,
        /// The number of the instance, from 0.
        attempt: u32,
        /// The kind of the probe.
        kind: ProbeKind,
    },
    /// Send the stop signal.
    Terminate {
        /// The index of the container in the plan.
        container: usize,
        /// The number of the instance, from 0.
        attempt: u32,
        /// When the container is killed if it is still running.
        kill_at: Time,
    },
    /// Kill it.
    Kill {
        /// The index of the container in the plan.
        container: usize,
        /// The number of the instance, from 0.
        attempt: u32,
    },
    /// Begin to stop one container.
    BeginKill {
        /// The index of the container in the plan.
        container: usize,
        /// The reason for the stop.
        reason: KillReason,
        /// The end of its grace period.
        deadline: Time,
    },
    /// Begin to stop the pod.
    BeginStop {
        /// The cause of the stop.
        cause: StopCause,
        /// The grace period.
        grace_ms: u64,
    },
    /// Begin to stop all containers, in order to start the pod over.
    BeginRerun {
        /// The cause of the restart.
        cause: RerunCause,
        /// The end of the grace period for running containers.
        deadline: Time,
    },
    /// All containers have ended: start again from the first init container.
    Rerun,
    /// Nothing is running, and nothing will be started again. The result is final.
    Finish,
}

impl Action {
    /// Whether the action only changes the observation, so that the driver has nothing to do.
    pub fn is_internal(&self) -> bool {
        matches!(
            self,
            Action::BeginKill { .. }
                | Action::BeginStop { .. }
                | Action::BeginRerun { .. }
                | Action::Rerun
                | Action::Finish
        )
    }

    /// The container it is about, if any.
    pub fn container(&self) -> Option<usize> {
        match *self {
            Action::Pull { container }
            | Action::Start { container, .. }
            | Action::RunHook { container, .. }
            | Action::CancelHook { container, .. }
            | Action::Probe { container, .. }
            | Action::Terminate { container, .. }
            | Action::Kill { container, .. }
            | Action::BeginKill { container, .. } => Some(container),
            _ => None,
        }
    }
}
