//! The events in the trace of a pod, with their details.

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

/// An event of a pod or of one of its containers.
///
/// The JSON does not show which of the two it is, so no event name occurs in both enums.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum TraceEvent {
    /// The event is about the pod as a whole.
    Pod(PodEvent),
    /// The event is about the container that the entry names.
    Container(ContainerEvent),
}

/// An event of a pod as a whole.
///
/// The names and the order of variants and fields are those of the JSON (docs/reference/trace.md). Details
/// that a file can lack are optional or have a default, so that files of other versions can be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum PodEvent {
    /// Lists the containers of the pod. This is the first entry of a trace in a file.
    Planned {
        /// The containers in plan order.
        #[serde(default)]
        containers: Vec<PlannedContainer>,
    },
    /// The sandbox is being created.
    SandboxCreating {
        /// The number of sandboxes before this one.
        #[serde(default)]
        attempt: u32,
    },
    /// The sandbox is ready.
    SandboxReady,
    /// The sandbox could not be created.
    SandboxFailed {
        /// The error, in human-readable form.
        #[serde(default = "nothing")]
        message: Arc<str>,
        /// The time until the next attempt, if there is one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retry_in_ms: Option<u64>,
        /// The error in machine-readable form: `cause` and its details.
        #[serde(flatten)]
        cause: Option<SandboxCause>,
    },
    /// The sandbox died.
    SandboxLost,
    /// The phase changed.
    Phase {
        /// The previous phase.
        #[serde(with = "word")]
        from: Phase,
        /// The new phase.
        #[serde(with = "word")]
        to: Phase,
    },
    /// The pod begins to stop.
    StopBegun {
        /// Why the pod stops.
        cause: StopReason,
        /// The container that caused the stop.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        because_of: Option<String>,
        /// The container that `because_of` waited for.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        waited_for: Option<String>,
        /// The grace period.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        grace_ms: Option<u64>,
        /// The number of containers that are still running.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        running: Option<usize>,
        /// Why the pod stops, in human-readable form.
        #[serde(default)]
        message: String,
    },
    /// The grace period of the stop was shortened.
    StopShortened {
        /// The rest of the grace period.
        #[serde(default)]
        left_ms: u64,
    },
    /// All containers are stopped, in order to start over. The entry names the container whose restart rule
    /// matched.
    RerunBegun {
        /// Why the pod starts over.
        cause: RerunReason,
        /// The grace period of the containers.
        #[serde(default)]
        grace_ms: u64,
        /// The earliest time of the new start, from now.
        #[serde(default)]
        not_before_ms: u64,
    },
    /// The pod starts over from its first init container.
    Rerun,
    /// Nothing is running, and nothing will be started again.
    Finished {
        /// The final phase.
        #[serde(with = "word")]
        phase: Phase,
        /// Whether the phase is `Failed` only because the pod was stopped.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        stopped: bool,
    },
}

/// An event of a container. Names and order are those of the JSON, as in [`PodEvent`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum ContainerEvent {
    /// Its image is being pulled.
    Pulling,
    /// Its image is present.
    Pulled,
    /// Its image could not be pulled.
    PullFailed {
        /// Kubernetes' reason, such as `ErrImagePull`.
        #[serde(default = "nothing")]
        error: Arc<str>,
        /// The error, in human-readable form.
        #[serde(default = "nothing")]
        message: Arc<str>,
        /// The time until the next attempt, if there is one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retry_in_ms: Option<u64>,
        /// The error in machine-readable form.
        #[serde(default, deserialize_with = "known", skip_serializing_if = "Option::is_none")]
        cause: Option<PullCause>,
    },
    /// The spec has a new image.
    ImageChanged,
    /// It is being started.
    Starting {
        /// The number of the instance, from 0.
        #[serde(default)]
        attempt: u32,
        /// The number of restarts so far, if there were any.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        restarts: Option<u32>,
        /// The gates that had to open first.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        after: Vec<OpenedGate>,
        /// The gate that opened last.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        opened_last: Option<OpenedGate>,
        /// How long ago that gate opened.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        opened_ms_ago: Option<u64>,
    },
    /// Its program was exec'd.
    Started {
        /// The number of the instance, from 0.
        #[serde(default)]
        attempt: u32,
    },
    /// It could not be started.
    StartFailed {
        /// The number of the instance, from 0.
        #[serde(default)]
        attempt: u32,
        /// Kubernetes' reason, such as `CreateContainerConfigError`.
        #[serde(default = "nothing")]
        error: Arc<str>,
        /// The error, in human-readable form.
        #[serde(default = "nothing")]
        message: Arc<str>,
        /// The time until the next attempt, if there is one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retry_in_ms: Option<u64>,
        /// The error in machine-readable form: `cause` and its details.
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
        /// The number of the instance, from 0.
        #[serde(default)]
        attempt: u32,
        /// Its exit code.
        #[serde(default)]
        code: i32,
        /// The signal that ended it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        signal: Option<i32>,
        /// Kubernetes' reason.
        #[serde(default, with = "word::option", skip_serializing_if = "Option::is_none")]
        reason: Option<ExitReason>,
        /// Its termination message.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<Arc<str>>,
        /// How long it ran.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ran_ms: Option<u64>,
        /// Why it was stopped, if it was.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        killed_for: Option<KillReason>,
    },
    /// The runtime lost track of it.
    Lost {
        /// The number of the instance, from 0.
        #[serde(default)]
        attempt: u32,
    },
    /// A probe attempt had a result that is worth reporting.
    Probe {
        /// The kind of the probe.
        kind: ProbeKind,
        /// The result of the attempt.
        outcome: ProbeOutcome,
        /// The output of the probe.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<Arc<str>>,
        /// The number of failures in a row.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failures: Option<u32>,
        /// The number of failures that count towards the threshold.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        counted: Option<u32>,
        /// The number of counting failures that makes a verdict.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        threshold: Option<u32>,
        /// The time between attempts.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        period_ms: Option<u64>,
        /// The verdict, if it changed.
        #[serde(default, with = "word::option", skip_serializing_if = "Option::is_none")]
        verdict: Option<Verdict>,
        /// Why the attempt failed, in machine-readable form.
        #[serde(default, deserialize_with = "known", skip_serializing_if = "Option::is_none")]
        cause: Option<ProbeCause>,
    },
    /// A hook was started.
    HookStarted {
        /// The kind of the hook.
        #[serde(with = "word")]
        hook: HookKind,
        /// The number of the instance, from 0.
        #[serde(default)]
        attempt: u32,
        /// The time after which it is cancelled.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit_ms: Option<u64>,
    },
    /// A hook ended.
    HookEnded {
        /// The kind of the hook.
        #[serde(with = "word")]
        hook: HookKind,
        /// The number of the instance, from 0.
        #[serde(default)]
        attempt: u32,
        /// The error, if it failed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<Arc<str>>,
    },
    /// A hook was cancelled.
    HookCancelled {
        /// The kind of the hook.
        #[serde(with = "word")]
        hook: HookKind,
        /// The number of the instance, from 0.
        #[serde(default)]
        attempt: u32,
    },
    /// A hook wrote output.
    HookOutput {
        /// The kind of the hook.
        #[serde(with = "word")]
        hook: HookKind,
        /// The beginning of the output.
        #[serde(default)]
        output: String,
    },
    /// It waits for something.
    Waiting {
        /// What it waits for.
        #[serde(flatten)]
        wait: WaitReason,
        /// The same as a sentence for users.
        #[serde(default)]
        text: String,
    },
    /// A stop of the container begins.
    KillBegun {
        /// The number of the instance, from 0.
        #[serde(default)]
        attempt: u32,
        /// Why it is stopped.
        cause: KillReason,
        /// Why it is stopped, in human-readable form.
        #[serde(default)]
        message: String,
        /// Its grace period.
        #[serde(default)]
        grace_ms: u64,
    },
    /// It was sent its stop signal.
    Terminating {
        /// The number of the instance, from 0.
        #[serde(default)]
        attempt: u32,
        /// The time until it is killed, if it is still running then.
        #[serde(default)]
        kill_in_ms: u64,
    },
    /// It does not react to its stop signal.
    StopSignalIgnored {
        /// The name of the signal, such as `TERM`.
        signal: String,
        /// Why the signal has no effect.
        why: IgnoredBecause,
        /// The time until it is killed.
        #[serde(default)]
        kill_in_ms: u64,
    },
    /// It was killed.
    Killing {
        /// The number of the instance, from 0.
        #[serde(default)]
        attempt: u32,
        /// Kubernetes' reason, if Kubernetes has one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<KillingReason>,
    },
    /// It wrote a line of output.
    Log {
        /// The stream that it wrote to.
        stream: LogStream,
        /// The line continues in the next entry.
        #[serde(default)]
        partial: bool,
        /// The line.
        #[serde(default)]
        text: String,
    },
}

/// The message of an entry that has none.
fn nothing() -> Arc<str> {
    "".into()
}

/// Reads a value of which newer versions may have more kinds. An unknown one becomes `None`.
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
    /// The container that the gate waited for.
    pub container: String,
    /// The state that the container had to reach.
    pub need: Need,
}

/// Why a pod stops. The same as [`crate::StopCause`], without its details.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StopReason {
    /// A stop was requested.
    Deleted,
    /// All containers that keep it alive have ended for good.
    Completed,
    /// An init container failed for good.
    InitFailed,
    /// `activeDeadlineSeconds` has passed.
    DeadlineExceeded,
    /// A fatal container ended.
    Fatal,
    /// A container waits for something that can no longer happen.
    GateNeverOpens,
    /// The sandbox was lost, and the pod must not run in a new one.
    SandboxLost,
    /// The pod or one of its containers can never start.
    CannotStart,
    /// It, or one of its containers, failed, and is not tried again.
    NotRetried,
    /// The machine is shutting down.
    NodeShutdown,
    /// A volume exceeds its limit.
    VolumeFull,
}

impl StopReason {
    /// The name in the trace.
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
            StopReason::NotRetried => "not-retried",
            StopReason::NodeShutdown => "node-shutdown",
            StopReason::VolumeFull => "volume-full",
        }
    }
}

/// Why the whole pod starts over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RerunReason {
    /// A restart rule matched.
    Rule,
    /// The sandbox was lost.
    Sandbox,
    /// A restart of all containers was requested.
    Requested,
}

/// What a container waits for. Running hooks and sent signals have entries of their own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "for", rename_all = "kebab-case")]
pub enum WaitReason {
    /// The pod's sandbox.
    Sandbox,
    /// Another container.
    Gate {
        /// The name of the other container.
        on: String,
        /// The state that it must reach.
        need: Need,
    },
    /// Its image.
    Image,
    /// The next attempt to pull its image.
    ImageRetry {
        /// The time until the next attempt.
        #[serde(default)]
        in_ms: u64,
    },
    /// The end of its crash-loop back-off.
    BackOff {
        /// The time until the end of the back-off.
        #[serde(default)]
        in_ms: u64,
    },
    /// The next attempt to start it.
    StartRetry {
        /// The time until the next attempt.
        #[serde(default)]
        in_ms: u64,
    },
    /// Its startup probe, which must pass.
    StartupProbe,
    /// Its readiness probe, which must pass.
    ReadinessProbe,
    /// It is being stopped, but another container must end first.
    StopTurn {
        /// The name of the other container.
        on: String,
    },
    /// It is being stopped, but the first preStop hook of another container is still running.
    FirstPreStop {
        /// The name of the other container.
        on: String,
    },
    /// The end of the delay for which it keeps running after the mains.
    SidecarDelay {
        /// The time until the end of the delay.
        #[serde(default)]
        in_ms: u64,
    },
    /// The end of the other containers, before the whole pod starts over.
    Rerun {
        /// The time until the earliest new start.
        #[serde(default)]
        in_ms: u64,
    },
}

/// Why a stop signal has no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IgnoredBecause {
    /// The program is process 1 and has no handler for the signal, so the kernel does not deliver it.
    NoHandler,
    /// The program ignores the signal.
    Ignored,
}

/// Kubernetes' reasons for a kill.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum KillingReason {
    /// The grace period of the pod has ended.
    ExceededGracePeriod,
}

/// The output streams of a container.
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
    /// This version does not know the event, or cannot read its details.
    pub(super) fn from_json(line: &Value) -> Result<TraceEvent, serde_json::Error> {
        // Most lines are about containers, so they are tried first.
        ContainerEvent::deserialize(line)
            .map(TraceEvent::Container)
            .or_else(|_| PodEvent::deserialize(line).map(TraceEvent::Pod))
    }

    /// Whether a failure to start can go away by itself; `None` for all other events.
    pub fn outlook(&self) -> Option<Outlook> {
        let cause = match self {
            TraceEvent::Pod(PodEvent::SandboxFailed { cause, .. }) => cause.map(Cause::Sandbox),
            TraceEvent::Container(ContainerEvent::PullFailed { cause, .. }) => cause.map(Cause::Pull),
            TraceEvent::Container(ContainerEvent::StartFailed { cause, .. }) => cause.map(Cause::Start),
            TraceEvent::Pod(_) | TraceEvent::Container(_) => return None,
        };
        Some(cause.map_or(Outlook::MayRecover, Cause::outlook))
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

    /// The details in the order in which JSON has them.
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
    /// Kubernetes' reason for such an event and its position among the details, if the event itself
    /// determines the reason.
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
    /// The same as [`PodEvent::reason`].
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
            // Kubernetes has no such events, or the reason is already a detail (`exited`, `killing`).
            _ => None,
        }
    }
}
