//! What can happen to a pod, with its details.

use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use super::word;
use crate::action::ProbeOutcome;
use crate::cause::{Cause, Outlook, ProbeCause, PullCause, SandboxCause, StartCause};
use crate::observation::{ExitReason, HookKind, KillReason, Verdict};
use crate::plan::{Need, ProbeKind, Role};
use crate::status::Phase;

/// One thing that happened to a pod or to one of its containers.
///
/// The JSON does not show which of the two it is. Every name stands in only one of the enums.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum TraceEvent {
    /// To the pod as a whole.
    Pod(PodEvent),
    /// To the container that the entry names.
    Container(ContainerEvent),
}

/// One thing that happened to a pod as a whole.
///
/// The names of variants and fields are those of the JSON (docs/reference/trace.md), and their order is its order. Details that
/// can be missing in a file are optional or have a default, so that files of other versions can be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum PodEvent {
    /// Who is in the pod; the first entry of a trace that is written to a file.
    Planned {
        /// In the order of the plan.
        #[serde(default)]
        containers: Vec<PlannedContainer>,
    },
    /// The sandbox is being made.
    SandboxCreating {
        /// How many there were before.
        #[serde(default)]
        attempt: u32,
    },
    /// The sandbox is there.
    SandboxReady,
    /// The sandbox could not be made.
    SandboxFailed {
        /// What happened.
        #[serde(default = "nothing")]
        message: Arc<str>,
        /// When it is tried again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retry_in_ms: Option<u64>,
        /// What happened, for programs: `cause` and its details.
        #[serde(flatten)]
        cause: Option<SandboxCause>,
    },
    /// The sandbox died.
    SandboxLost,
    /// The phase changed.
    Phase {
        /// What it was.
        #[serde(with = "word")]
        from: Phase,
        /// What it is.
        #[serde(with = "word")]
        to: Phase,
    },
    /// The pod begins to stop.
    StopBegun {
        /// Why.
        cause: StopReason,
        /// The container behind it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        because_of: Option<String>,
        /// The container that one waited for.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        waited_for: Option<String>,
        /// What it is given.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        grace_ms: Option<u64>,
        /// Containers that still run.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        running: Option<usize>,
        /// Why, for people.
        #[serde(default)]
        message: String,
    },
    /// The grace of the stop became shorter.
    StopShortened {
        /// What is left of it.
        #[serde(default)]
        left_ms: u64,
    },
    /// Everything is ended to begin again. The entry names the container whose rule asks for it.
    RerunBegun {
        /// Why.
        cause: RerunReason,
        /// What containers are given to end.
        #[serde(default)]
        grace_ms: u64,
        /// It begins again not earlier than after this.
        #[serde(default)]
        not_before_ms: u64,
    },
    /// Everything begins again.
    Rerun,
    /// Nothing runs any more and nothing will.
    Finished {
        /// The phase it ended in.
        #[serde(with = "word")]
        phase: Phase,
        /// It has the phase `Failed` only because it was stopped.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        stopped: bool,
    },
}

/// One thing that happened to a container. Names and order are those of the JSON, as in [`PodEvent`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum ContainerEvent {
    /// An image is being pulled.
    Pulling,
    /// It is there.
    Pulled,
    /// It could not be pulled.
    PullFailed {
        /// Kubernetes' word.
        #[serde(default = "nothing")]
        error: Arc<str>,
        /// What happened.
        #[serde(default = "nothing")]
        message: Arc<str>,
        /// When it is tried again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retry_in_ms: Option<u64>,
        /// What happened, for programs.
        #[serde(default, deserialize_with = "known", skip_serializing_if = "Option::is_none")]
        cause: Option<PullCause>,
    },
    /// The image of the spec changed.
    ImageChanged,
    /// A container is being started.
    Starting {
        /// Which instance.
        #[serde(default)]
        attempt: u32,
        /// Restarts so far, if there were any.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        restarts: Option<u32>,
        /// The gates that had to open.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        after: Vec<OpenedGate>,
        /// The one that opened last.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        opened_last: Option<OpenedGate>,
        /// How long ago it opened.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        opened_ms_ago: Option<u64>,
    },
    /// Its program was executed.
    Started {
        /// Which instance.
        #[serde(default)]
        attempt: u32,
    },
    /// It could not be started.
    StartFailed {
        /// Which instance.
        #[serde(default)]
        attempt: u32,
        /// Kubernetes' word.
        #[serde(default = "nothing")]
        error: Arc<str>,
        /// What happened.
        #[serde(default = "nothing")]
        message: Arc<str>,
        /// When it is tried again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retry_in_ms: Option<u64>,
        /// What happened, for programs: `cause` and its details.
        #[serde(flatten)]
        cause: Option<StartCause>,
    },
    /// Its startup probe passed.
    StartupPassed,
    /// It is ready.
    Ready,
    /// It is no longer ready.
    Unready,
    /// It exited.
    Exited {
        /// Which instance.
        #[serde(default)]
        attempt: u32,
        /// Its exit code.
        #[serde(default)]
        code: i32,
        /// The signal that ended it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        signal: Option<i32>,
        /// Kubernetes' word.
        #[serde(default, with = "word::option", skip_serializing_if = "Option::is_none")]
        reason: Option<ExitReason>,
        /// Its termination message.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<Arc<str>>,
        /// How long it ran.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ran_ms: Option<u64>,
        /// Why it was ended, if it was.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        killed_for: Option<KillReason>,
    },
    /// The runtime lost track of it.
    Lost {
        /// Which instance.
        #[serde(default)]
        attempt: u32,
    },
    /// A probe attempt that says something new.
    Probe {
        /// Which probe.
        kind: ProbeKind,
        /// How it ended.
        outcome: ProbeOutcome,
        /// What was seen.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<Arc<str>>,
        /// Failures in a row.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failures: Option<u32>,
        /// Those that count.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        counted: Option<u32>,
        /// How many must count for a verdict.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        threshold: Option<u32>,
        /// From one attempt to the next.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        period_ms: Option<u64>,
        /// The verdict, if it changed.
        #[serde(default, with = "word::option", skip_serializing_if = "Option::is_none")]
        verdict: Option<Verdict>,
        /// Why it failed, for programs.
        #[serde(default, deserialize_with = "known", skip_serializing_if = "Option::is_none")]
        cause: Option<ProbeCause>,
    },
    /// A hook runs.
    HookStarted {
        /// Which hook.
        #[serde(with = "word")]
        hook: HookKind,
        /// Which instance.
        #[serde(default)]
        attempt: u32,
        /// How long it may take.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit_ms: Option<u64>,
    },
    /// A hook ended.
    HookEnded {
        /// Which hook.
        #[serde(with = "word")]
        hook: HookKind,
        /// Which instance.
        #[serde(default)]
        attempt: u32,
        /// What went wrong, if something did.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<Arc<str>>,
    },
    /// A hook was given up.
    HookCancelled {
        /// Which hook.
        #[serde(with = "word")]
        hook: HookKind,
        /// Which instance.
        #[serde(default)]
        attempt: u32,
    },
    /// What a hook printed.
    HookOutput {
        /// Which hook.
        #[serde(with = "word")]
        hook: HookKind,
        /// The beginning of what it printed.
        #[serde(default)]
        output: String,
    },
    /// Why a container waits.
    Waiting {
        /// For what.
        #[serde(flatten)]
        wait: WaitReason,
        /// The sentence people see.
        #[serde(default)]
        text: String,
    },
    /// A container is to end.
    KillBegun {
        /// Which instance.
        #[serde(default)]
        attempt: u32,
        /// Why.
        cause: KillReason,
        /// Why, for people.
        #[serde(default)]
        message: String,
        /// What it is given.
        #[serde(default)]
        grace_ms: u64,
    },
    /// It was sent its stop signal.
    Terminating {
        /// Which instance.
        #[serde(default)]
        attempt: u32,
        /// When it will be killed if it is still there.
        #[serde(default)]
        kill_in_ms: u64,
    },
    /// The stop signal is ignored.
    StopSignalIgnored {
        /// Its name, `TERM`.
        signal: String,
        /// Why it does nothing.
        why: IgnoredBecause,
        /// When the container will be killed.
        #[serde(default)]
        kill_in_ms: u64,
    },
    /// It was killed.
    Killing {
        /// Which instance.
        #[serde(default)]
        attempt: u32,
        /// Kubernetes' word, where it has one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<KillingReason>,
    },
    /// A line of output.
    Log {
        /// Where it was written to.
        stream: LogStream,
        /// The line continues in the next entry.
        #[serde(default)]
        partial: bool,
        /// The line.
        #[serde(default)]
        text: String,
    },
}

/// What an entry does not say.
fn nothing() -> Arc<str> {
    "".into()
}

/// A value that may be of a newer version: what is not known is none.
fn known<'de, T: DeserializeOwned, D: Deserializer<'de>>(from: D) -> Result<Option<T>, D::Error> {
    Ok(serde_json::from_value(Value::deserialize(from)?).ok())
}

/// A container of the plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedContainer {
    /// Its name.
    pub name: String,
    /// Its role; `None` if this version does not know it.
    #[serde(default, with = "word::option")]
    pub role: Option<Role>,
}

/// A gate that has opened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenedGate {
    /// The container that was waited for.
    pub container: String,
    /// What it had to be.
    pub need: Need,
}

/// Why a pod stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StopReason {
    /// It was asked to.
    Deleted,
    /// Its mains are done.
    Completed,
    /// An init container failed for good.
    InitFailed,
    /// It was active for too long.
    DeadlineExceeded,
    /// A container ended whose end is the pod's.
    Fatal,
    /// A container waits for one that will never be what it waits for.
    GateNeverOpens,
    /// Its sandbox died, and it may not begin again.
    SandboxLost,
    /// It, or one of its containers, can never start.
    CannotStart,
    /// The machine shuts down.
    NodeShutdown,
    /// A volume holds more than it may.
    VolumeFull,
}

impl StopReason {
    /// As it stands in the trace.
    pub fn name(self) -> &'static str {
        match self {
            StopReason::Deleted => "deleted",
            StopReason::Completed => "completed",
            StopReason::InitFailed => "init-failed",
            StopReason::DeadlineExceeded => "deadline-exceeded",
            StopReason::Fatal => "fatal",
            StopReason::GateNeverOpens => "gate-never-opens",
            StopReason::SandboxLost => "sandbox-lost",
            StopReason::CannotStart => "cannot-start",
            StopReason::NodeShutdown => "node-shutdown",
            StopReason::VolumeFull => "volume-full",
        }
    }
}

/// Why everything begins again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RerunReason {
    /// A container ended in a way that asks for it.
    Rule,
    /// The sandbox is another.
    Sandbox,
    /// Somebody asked for it.
    Requested,
}

/// What a container waits for. A hook that runs and a signal that was sent have entries of their own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "for", rename_all = "kebab-case")]
pub enum WaitReason {
    /// The pod's sandbox.
    Sandbox,
    /// Another container.
    Gate {
        /// Which.
        on: String,
        /// What it must be.
        need: Need,
    },
    /// Its image.
    Image,
    /// The next try to get its image.
    ImageRetry {
        /// When.
        #[serde(default)]
        in_ms: u64,
    },
    /// The end of its crash-loop back-off.
    BackOff {
        /// When.
        #[serde(default)]
        in_ms: u64,
    },
    /// The next try to start it.
    StartRetry {
        /// When.
        #[serde(default)]
        in_ms: u64,
    },
    /// Its startup probe.
    StartupProbe,
    /// Its readiness probe.
    ReadinessProbe,
    /// To be stopped: another must be gone first.
    StopTurn {
        /// Which.
        on: String,
    },
    /// To be stopped: another's first preStop hook runs.
    FirstPreStop {
        /// Whose.
        on: String,
    },
    /// To be stopped: it runs on for a while after the mains.
    SidecarDelay {
        /// When it is stopped.
        #[serde(default)]
        in_ms: u64,
    },
    /// The rest of the pod to end, so that all begins again.
    Rerun {
        /// Not before this.
        #[serde(default)]
        in_ms: u64,
    },
}

/// Why a stop signal does nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IgnoredBecause {
    /// It is process 1 and has no handler, and the kernel keeps such signals from it.
    NoHandler,
    /// It ignores the signal.
    Ignored,
}

/// Kubernetes' words for a kill.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum KillingReason {
    /// The grace period of the pod was over.
    ExceededGracePeriod,
}

/// Where a container writes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

impl From<PodEvent> for TraceEvent {
    fn from(event: PodEvent) -> Self {
        TraceEvent::Pod(event)
    }
}

impl From<ContainerEvent> for TraceEvent {
    fn from(event: ContainerEvent) -> Self {
        TraceEvent::Container(event)
    }
}

impl TraceEvent {
    /// Reads the event of a line.
    ///
    /// # Errors
    /// This version does not know it, or cannot make sense of its details.
    pub(super) fn from_json(line: &Value) -> Result<TraceEvent, serde_json::Error> {
        // Most lines are about containers.
        ContainerEvent::deserialize(line)
            .map(TraceEvent::Container)
            .or_else(|_| PodEvent::deserialize(line).map(TraceEvent::Pod))
    }

    /// Whether a failure to start can go away while nothing is changed but time; `None` for everything else.
    pub fn outlook(&self) -> Option<Outlook> {
        let cause = match self {
            TraceEvent::Pod(PodEvent::SandboxFailed { cause, .. }) => cause.map(Cause::Sandbox),
            TraceEvent::Container(ContainerEvent::PullFailed { cause, .. }) => cause.map(Cause::Pull),
            TraceEvent::Container(ContainerEvent::StartFailed { cause, .. }) => cause.map(Cause::Start),
            TraceEvent::Pod(_) | TraceEvent::Container(_) => return None,
        };
        Some(cause.map_or(Outlook::MayHeal, Cause::outlook))
    }

    /// Removes the time of the next attempt from a failure to start.
    pub fn remove_retry(&mut self) {
        if let TraceEvent::Pod(PodEvent::SandboxFailed { retry_in_ms, .. })
        | TraceEvent::Container(
            ContainerEvent::PullFailed { retry_in_ms, .. } | ContainerEvent::StartFailed { retry_in_ms, .. },
        ) = self
        {
            *retry_in_ms = None;
        }
    }

    /// The details as they stand in JSON, in their order.
    pub fn details(&self) -> Map<String, Value> {
        let mut details = super::record::object(self);
        details.shift_remove("event");
        let reason = match self {
            TraceEvent::Pod(event) => event.reason(),
            TraceEvent::Container(event) => event.reason(),
        };
        if let Some((place, reason)) = reason {
            details.shift_insert(place, "reason".to_owned(), reason.into());
        }
        details
    }
}

impl PodEvent {
    /// The reason Kubernetes has for such an event where the event itself decides it, and the place it has among the
    /// details.
    fn reason(&self) -> Option<(usize, &'static str)> {
        match self {
            PodEvent::SandboxCreating { attempt } => (*attempt > 0).then_some((1, "SandboxChanged")),
            PodEvent::SandboxFailed { .. } => Some((0, "FailedCreatePodSandBox")),
            // Kubernetes has no such events.
            _ => None,
        }
    }
}

impl ContainerEvent {
    /// As [`PodEvent::reason`].
    fn reason(&self) -> Option<(usize, &'static str)> {
        match self {
            ContainerEvent::Pulling => Some((0, "Pulling")),
            ContainerEvent::Pulled => Some((0, "Pulled")),
            ContainerEvent::PullFailed { .. } => Some((0, "Failed")),
            ContainerEvent::Started { .. } => Some((1, "Started")),
            ContainerEvent::StartFailed { .. } => Some((1, "Failed")),
            ContainerEvent::Probe { outcome, .. } => match outcome {
                ProbeOutcome::Success => None,
                ProbeOutcome::Failure | ProbeOutcome::Error => Some((2, "Unhealthy")),
            },
            ContainerEvent::HookEnded { hook, error: Some(_), .. } => match hook {
                HookKind::PostStart => Some((2, "FailedPostStartHook")),
                HookKind::PreStop | HookKind::FirstPreStop => Some((2, "FailedPreStopHook")),
            },
            ContainerEvent::Waiting {
                wait: WaitReason::ImageRetry { .. } | WaitReason::BackOff { .. },
                ..
            } => Some((1, "BackOff")),
            ContainerEvent::KillBegun { .. } => Some((1, "Killing")),
            // Kubernetes has no such events, or the reason is a detail (`exited`, `killing`).
            _ => None,
        }
    }
}
