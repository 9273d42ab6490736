//! What can happen to a pod ([`Event`]) and what the engine can do about it ([`Action`]).

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::cause::{ProbeCause, PullCause, SandboxCause, StartCause};
use crate::observation::{Exit, HookKind, KillReason, RerunCause, StopCause};
use crate::plan::ProbeKind;
use crate::time::Time;

/// An event. Events of an instance carry its attempt, so that late and repeated ones can be detected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "event")]
pub enum Event {
    /// The sandbox is ready.
    SandboxReady,
    /// The sandbox could not be created.
    SandboxFailed {
        /// The error.
        message: Arc<str>,
        /// The same for programs, where it is known.
        #[serde(default)]
        cause: Option<SandboxCause>,
    },
    /// The sandbox died.
    SandboxLost,
    /// An image is present.
    ImageReady {
        /// The container.
        container: usize,
    },
    /// An image could not be pulled.
    ImageFailed {
        /// The container.
        container: usize,
        /// Kubernetes' reason.
        reason: Arc<str>,
        /// The error.
        message: Arc<str>,
        /// The same for programs, where it is known.
        #[serde(default)]
        cause: Option<PullCause>,
    },
    /// The spec has a new image.
    ImageChanged {
        /// The container.
        container: usize,
    },
    /// The program was exec'd.
    Started {
        /// Which container.
        container: usize,
        /// Which instance.
        attempt: u32,
    },
    /// The runtime could not create or start it.
    StartFailed {
        /// Which container.
        container: usize,
        /// Which instance.
        attempt: u32,
        /// Kubernetes' reason.
        reason: Arc<str>,
        /// The error.
        message: Arc<str>,
        /// The error, for programs.
        cause: Option<StartCause>,
    },
    /// It ended. Also used for a program that could not be exec'd, with reason `StartError`.
    Exited {
        /// Which container.
        container: usize,
        /// Which instance.
        attempt: u32,
        /// How it ended.
        exit: Exit,
    },
    /// The runtime lost track of it.
    Lost {
        /// Which container.
        container: usize,
        /// Which instance.
        attempt: u32,
    },
    /// A probe attempt ended.
    Probed {
        /// Which container.
        container: usize,
        /// Which instance.
        attempt: u32,
        /// Which probe.
        kind: ProbeKind,
        /// The result.
        outcome: ProbeOutcome,
        /// The probe's output, for people.
        message: Option<Arc<str>>,
        /// The same for programs, of a failure.
        #[serde(default)]
        cause: Option<ProbeCause>,
    },
    /// A hook ended.
    HookEnded {
        /// Which container.
        container: usize,
        /// Which instance.
        attempt: u32,
        /// Which hook.
        hook: HookKind,
        /// `None` on success, else the error.
        error: Option<Arc<str>>,
    },
    /// A volume was measured.
    VolumeMeasured {
        /// Which, of [`crate::Plan::volume_limits`].
        volume: usize,
        /// The bytes it holds.
        bytes: u64,
    },
    /// A request to restart a container, or all of them in order; see [`crate::Engine::can_restart`].
    RestartRequested {
        /// Which; `None`: all, from the first init container.
        container: Option<usize>,
    },
    /// A request to stop the pod. A later one can only shorten the grace period.
    StopRequested {
        /// The grace period; `None` is the plan's.
        grace_ms: Option<u64>,
    },
    /// The last failure cannot heal, and nothing is tried again: the pod ends.
    CannotStart {
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
    /// No result; it is not counted (R6.12).
    Error,
}

impl ProbeOutcome {
    /// As it stands in the trace.
    pub fn name(self) -> &'static str {
        match self {
            ProbeOutcome::Success => "success",
            ProbeOutcome::Failure => "failure",
            ProbeOutcome::Error => "error",
        }
    }
}

/// Something to do now. The first group is the driver's to carry out; the second only changes the observation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "action")]
pub enum Action {
    /// Create the sandbox.
    CreateSandbox {
        /// How many there were before.
        attempt: u32,
    },
    /// Make the image available.
    Pull {
        /// The container.
        container: usize,
    },
    /// Create and start an instance.
    Start {
        /// Which container.
        container: usize,
        /// Which instance.
        attempt: u32,
    },
    /// Run a hook.
    RunHook {
        /// Which container.
        container: usize,
        /// Which instance.
        attempt: u32,
        /// Which hook.
        hook: HookKind,
        /// Cancel it at this time, if it has not ended.
        deadline: Option<Time>,
    },
    /// Cancel a running hook; no event is expected.
    CancelHook {
        /// Which container.
        container: usize,
        /// Which instance.
        attempt: u32,
        /// Which hook.
        hook: HookKind,
    },
    /// Make one probe attempt.
    Probe {
        /// Which container.
        container: usize,
        /// Which instance.
        attempt: u32,
        /// Which probe.
        kind: ProbeKind,
    },
    /// Send the stop signal.
    Terminate {
        /// Which container.
        container: usize,
        /// Which instance.
        attempt: u32,
        /// When it will be killed if it is still running.
        kill_at: Time,
    },
    /// Kill it.
    Kill {
        /// Which container.
        container: usize,
        /// Which instance.
        attempt: u32,
    },
    /// Begin to stop one container.
    BeginKill {
        /// Which container.
        container: usize,
        /// Why.
        reason: KillReason,
        /// End of its grace period.
        deadline: Time,
    },
    /// Begin to stop the pod.
    BeginStop {
        /// Why.
        cause: StopCause,
        /// The grace period.
        grace_ms: u64,
    },
    /// Begin to stop everything and start over.
    BeginRerun {
        /// Why.
        cause: RerunCause,
        /// End of the grace period for running containers.
        deadline: Time,
    },
    /// Everything has ended; start again from the first init container.
    Rerun,
    /// Nothing is running or will run again: the result is final.
    Finish,
}

impl Action {
    /// Whether the action only changes the observation, with nothing for the driver to do.
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
