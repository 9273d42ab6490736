//! What can happen to a pod ([`Event`]) and what can be done about it ([`Action`]).

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::cause::{ProbeCause, PullCause, SandboxCause};
use crate::observation::{Exit, HookKind, KillReason, RerunCause, StopCause};
use crate::plan::ProbeKind;
use crate::time::Time;

/// Something that happened. Events of an instance carry its attempt, so that late and repeated ones are recognised.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "event")]
pub enum Event {
    /// The sandbox is ready.
    SandboxReady,
    /// The sandbox could not be made.
    SandboxFailed {
        /// What happened.
        message: Arc<str>,
        /// The same for programs, where it is known.
        #[serde(default)]
        cause: Option<SandboxCause>,
    },
    /// The sandbox died.
    SandboxLost,
    /// An image is here.
    ImageReady {
        /// Whose.
        container: usize,
    },
    /// An image is not to be had, for now.
    ImageFailed {
        /// Whose.
        container: usize,
        /// Kubernetes' word.
        reason: Arc<str>,
        /// What happened.
        message: Arc<str>,
        /// The same for programs, where it is known.
        #[serde(default)]
        cause: Option<PullCause>,
    },
    /// The spec names another image now.
    ImageChanged {
        /// Whose.
        container: usize,
    },
    /// The program was exec'd.
    Started {
        /// Which container.
        container: usize,
        /// Which instance.
        attempt: u32,
    },
    /// The runtime refused to make or start it.
    StartFailed {
        /// Which container.
        container: usize,
        /// Which instance.
        attempt: u32,
        /// Kubernetes' word.
        reason: Arc<str>,
        /// What happened.
        message: Arc<str>,
    },
    /// It ended. Also said of a program that could not be exec'd, with reason `StartError`.
    Exited {
        /// Which container.
        container: usize,
        /// Which instance.
        attempt: u32,
        /// How.
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
        /// How.
        outcome: ProbeOutcome,
        /// What was seen, for people.
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
        /// `None` on success, else what happened.
        error: Option<Arc<str>>,
    },
    /// A volume was measured.
    VolumeMeasured {
        /// Which, of [`crate::Plan::volume_limits`].
        volume: usize,
        /// What it holds.
        bytes: u64,
    },
    /// A container is to be restarted, or all of them in order; see [`crate::Engine::can_restart`].
    RestartRequested {
        /// Which; `None`: all, from the first init container.
        container: Option<usize>,
    },
    /// The pod is to be stopped. A later one may only shorten the grace.
    StopRequested {
        /// Grace; `None` is the plan's.
        grace_ms: Option<u64>,
    },
    /// The machine shuts down.
    NodeShutdown {
        /// The most grace there is; the plan's may be less.
        grace_ms: u64,
    },
}

/// How a probe attempt ended (section 6.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProbeOutcome {
    /// It answered well.
    Success,
    /// It did not.
    Failure,
    /// Nothing was learned; counts for nothing (R6.12).
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
    /// Make the sandbox.
    CreateSandbox {
        /// How many there were before.
        attempt: u32,
    },
    /// Make the image available.
    Pull {
        /// Whose.
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
        /// Give up at this time, if it has not ended.
        deadline: Option<Time>,
    },
    /// Give a running hook up; its end needs no event.
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
        /// When it will be killed if it is still there.
        kill_at: Time,
    },
    /// Kill it.
    Kill {
        /// Which container.
        container: usize,
        /// Which instance.
        attempt: u32,
    },
    /// One container is to end.
    BeginKill {
        /// Which container.
        container: usize,
        /// Why.
        reason: KillReason,
        /// End of its grace.
        deadline: Time,
    },
    /// The pod is to stop.
    BeginStop {
        /// Why.
        cause: StopCause,
        /// With how much grace.
        grace_ms: u64,
    },
    /// Everything is to end and begin again.
    BeginRerun {
        /// Why.
        cause: RerunCause,
        /// End of the grace for what still runs.
        deadline: Time,
    },
    /// Everything has ended; begin again from the first init container.
    Rerun,
    /// Nothing runs and nothing will: the result stands.
    Finish,
}

impl Action {
    /// Whether the driver has to do something, or the action only changes the observation.
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

    /// The container it is about, if one.
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
