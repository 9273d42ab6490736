//! The observation: the current knowledge about a pod.
//!
//! Plain data. [`crate::fold`] updates it after events; [`crate::decide`] only reads it. It is serializable,
//! so that an agent can keep it across its own crash: deadlines, back-offs, hook and probe states survive
//! (G-39, G-44, G-45).

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::plan::{Plan, ProbeKind};
use crate::time::Time;

/// The current knowledge about a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observation {
    /// When the pod was accepted; its active deadline counts from here.
    pub since: Time,
    /// The sandbox.
    pub sandbox: Sandbox,
    /// One entry per container of the plan, same order.
    pub containers: Vec<Container>,
    /// The pod is being stopped.
    pub stop: Option<Stop>,
    /// Everything is being stopped to start over from the first init container.
    pub rerun: Option<Rerun>,
    /// A restart of all containers was requested and has not begun yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub restart_requested: bool,
    /// Back-off between in-place restarts of the whole pod (G-43).
    pub rerun_backoff: Backoff,
    /// The size of each volume of [`Plan::volume_limits`] when it was last measured, same order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volume_bytes: Vec<u64>,
    /// Nothing is running or will run again: the result is final.
    pub over: bool,
}

/// The sandbox of the pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sandbox {
    /// Its state.
    pub state: SandboxState,
    /// How many sandboxes there were before this one.
    pub attempt: u32,
    /// When creating it may be retried, after a failure.
    pub retry_at: Time,
    /// Failures in a row.
    pub failures: u32,
    /// The message of the last failure.
    pub message: Option<Arc<str>>,
}

/// State of the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SandboxState {
    /// It does not exist.
    Absent,
    /// It is being created.
    Creating,
    /// Containers can run in it.
    Ready,
    /// It died, with everything in it.
    Lost,
}

/// The current knowledge about one container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Container {
    /// Its state.
    pub state: State,
    /// Number of the current (or next, while waiting) instance, from 0. Events of other instances are stale.
    pub attempt: u32,
    /// How often it was restarted.
    pub restarts: u32,
    /// How the current instance ended; set while `state` is `Exited`.
    pub exit: Option<Exit>,
    /// How the instance before that ended.
    pub last_exit: Option<Exit>,
    /// Its image.
    pub image: Image,
    /// Failed attempts to pull the image in a row.
    pub image_failures: u32,
    /// The spec's image changed since the current instance was started.
    pub image_changed: bool,
    /// It was started at least once since the pod (re)started: its gates no longer hold it, except those that
    /// apply to every start.
    pub was_run: bool,
    /// Before its first start, all gates that wait for a state of another container were open at the same
    /// time. They no longer hold it: it may only be late because of its image.
    #[serde(default)]
    pub gates_were_open: bool,
    /// Its first start was attempted, postStart included.
    pub was_launched: bool,
    /// Some instance was started in the sense of [`crate::Need::Started`].
    pub was_started: bool,
    /// Some instance was ready.
    pub was_ready: bool,
    /// Some instance exited with success.
    pub was_completed: bool,
    /// Crash-loop back-off.
    pub backoff: Backoff,
    /// The runtime could not create or start it.
    pub start_failure: Option<StartFailure>,
    /// Startup, liveness, readiness; of the current instance only (G-37, G-38).
    pub probes: [Probe; 3],
    /// postStart of the current instance.
    pub post_start: Hook,
    /// preStop of the current instance.
    pub pre_stop: Hook,
    /// The extra preStop at the beginning of the stop, as in the KEP.
    pub first_pre_stop: Hook,
    /// It is being stopped.
    pub kill: Option<Kill>,
    /// Sum of the attempts of the containers it restarts with, at its start.
    pub started_with: u32,
    /// All containers in its fence have been ready since it was started.
    pub fence_was_open: bool,
    /// Number of the sandbox it was last started in.
    #[serde(default)]
    pub sandbox: u32,
    /// A restart was requested since the current instance was started.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub restart_requested: bool,
}

/// The state of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum State {
    /// There is no instance.
    Waiting,
    /// The runtime was told to start it.
    Starting {
        /// When.
        since: Time,
    },
    /// It is running.
    Running {
        /// When it was started.
        since: Time,
    },
    /// It ended; see [`Container::exit`].
    Exited,
    /// The runtime has lost track of it: it may or may not be running.
    Unknown,
}

impl State {
    /// Whether something may be running.
    pub fn is_alive(self) -> bool {
        matches!(self, State::Starting { .. } | State::Running { .. } | State::Unknown)
    }
}

/// How an instance ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// Exit code; 128 + signal when a signal ended it.
    pub code: i32,
    /// The signal, if one ended it.
    pub signal: Option<i32>,
    /// The runtime's reason.
    pub reason: ExitReason,
    /// When it was started; `None` if it never ran.
    pub started_at: Option<Time>,
    /// When it ended.
    pub finished_at: Time,
    /// Its termination message.
    pub message: Option<Arc<str>>,
    /// Why we were stopping it, if we were.
    pub killed_for: Option<KillReason>,
}

impl Exit {
    /// The one definition of failure (G-33): a non-zero code, or out of memory, whatever the code.
    pub fn failed(&self) -> bool {
        self.code != 0 || self.reason == ExitReason::OomKilled
    }
}

/// Terminated reasons (R5.47).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExitReason {
    /// Exit code 0.
    Completed,
    /// Any other.
    Error,
    /// Killed because it was out of memory.
    OomKilled,
    /// The program could not be exec'd.
    StartError,
    /// The runtime has no record of how it ended.
    ContainerStatusUnknown,
    /// Stopped to restart the pod in place.
    RestartingAllContainers,
}

impl ExitReason {
    /// The name in a pod status.
    pub fn name(self) -> &'static str {
        match self {
            ExitReason::Completed => "Completed",
            ExitReason::Error => "Error",
            ExitReason::OomKilled => "OOMKilled",
            ExitReason::StartError => "StartError",
            ExitReason::ContainerStatusUnknown => "ContainerStatusUnknown",
            ExitReason::RestartingAllContainers => "RestartingAllContainers",
        }
    }
}

/// State of a container's image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Image {
    /// Not requested yet.
    Unknown,
    /// Being pulled or looked up.
    Pulling,
    /// Present.
    Present,
    /// The last attempt failed.
    Failed {
        /// Kubernetes' reason: `ErrImagePull`, `InvalidImageName` …
        reason: Arc<str>,
        /// The error.
        message: Arc<str>,
        /// When it is retried.
        retry_at: Time,
    },
}

/// A start the runtime refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartFailure {
    /// Kubernetes' reason: `CreateContainerConfigError` …
    pub reason: Arc<str>,
    /// The error.
    pub message: Arc<str>,
    /// When it is retried.
    pub retry_at: Time,
    /// Failed attempts in a row.
    pub failures: u32,
}

/// Crash-loop back-off state (R1.60 to R1.63).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Backoff {
    /// The current wait; `None` before the first restart.
    pub wait_ms: Option<u64>,
    /// When a restart was last allowed.
    pub let_through: Time,
}

/// The result of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Verdict {
    /// No threshold reached yet.
    #[default]
    Unknown,
    /// Success threshold reached.
    Success,
    /// Failure threshold reached.
    Failure,
}

/// One probe of the current instance.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Probe {
    /// The result so far.
    pub verdict: Verdict,
    /// Since when an attempt is in progress.
    pub in_flight: Option<Time>,
    /// No attempt before this.
    pub next_at: Time,
    /// The last attempt's result.
    pub last_ok: Option<bool>,
    /// Results in a row that count towards the threshold.
    pub run: u32,
    /// When a result last counted.
    pub counted_at: Option<Time>,
    /// Some attempt of this instance succeeded: the fast ramp is over.
    pub was_ok: bool,
    /// Attempts in the ramp so far.
    pub ramp: u32,
    /// Failed attempts in a row, counted or not.
    pub failures: u32,
    /// Attempts in a row that could not be made at all, at most one a period. They count towards no verdict.
    #[serde(default)]
    pub errors: u32,
    /// When the last of them was counted.
    #[serde(default)]
    pub error_at: Option<Time>,
    /// The output of the last attempt.
    pub message: Option<Arc<str>>,
}

/// One run of a hook.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Hook {
    /// It has not run.
    #[default]
    Idle,
    /// It is running.
    Running {
        /// Since when.
        since: Time,
    },
    /// It succeeded.
    Done,
    /// It failed, or was cancelled.
    Failed {
        /// The error.
        message: Arc<str>,
    },
}

impl Hook {
    /// Whether it is running now.
    pub fn is_running(&self) -> bool {
        matches!(self, Hook::Running { .. })
    }

    /// Whether it has ended, successfully or not.
    pub fn is_over(&self) -> bool {
        matches!(self, Hook::Done | Hook::Failed { .. })
    }
}

/// Which hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum HookKind {
    /// postStart.
    PostStart,
    /// preStop.
    PreStop,
    /// The KEP's first preStop, before any main is stopped.
    FirstPreStop,
}

impl HookKind {
    /// The words users know.
    pub fn name(self) -> &'static str {
        match self {
            HookKind::PostStart => "postStart",
            HookKind::PreStop => "preStop",
            HookKind::FirstPreStop => "first preStop",
        }
    }
}

/// Why a single container is being ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KillReason {
    /// Its liveness probe failed.
    Liveness,
    /// Its startup probe failed.
    Startup,
    /// Its postStart hook failed.
    PostStart,
    /// Its image changed.
    ImageChanged,
    /// A restart was requested.
    Restart,
    /// A container it restarts with restarted.
    Dependency,
    /// A container in its fence is not ready.
    Fence,
    /// The runtime lost track of it.
    Unknown,
    /// The pod is stopping.
    PodStop,
    /// The pod is starting over.
    Rerun,
}

/// A container being stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kill {
    /// Why.
    pub reason: KillReason,
    /// Since when.
    pub since: Time,
    /// The end of its grace period. Can only move earlier (G-16).
    pub deadline: Time,
    /// When it was told to stop.
    pub signalled_at: Option<Time>,
    /// When it was killed.
    pub killed_at: Option<Time>,
}

/// Why a pod is being stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StopCause {
    /// A stop was requested.
    Deleted,
    /// Everything that keeps it alive is finished.
    Completed,
    /// An init container failed for good.
    InitFailed {
        /// Which.
        container: usize,
    },
    /// `activeDeadlineSeconds` has passed.
    DeadlineExceeded,
    /// A fatal container ended.
    Fatal {
        /// Which.
        container: usize,
    },
    /// A container waits for something that can no longer happen.
    GateNeverOpens {
        /// The container that waits.
        container: usize,
        /// The container it waits for.
        on: usize,
    },
    /// The sandbox was lost and must not be created again.
    SandboxLost,
    /// It, or one of its containers, can never start, and is not tried again.
    CannotStart {
        /// Which; `None`: the pod itself.
        container: Option<usize>,
    },
    /// The machine is shutting down.
    NodeShutdown,
    /// A volume exceeds its limit (R5.21).
    VolumeFull {
        /// Which, of [`Plan::volume_limits`].
        volume: usize,
    },
}

/// A pod being stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stop {
    /// Why.
    pub cause: StopCause,
    /// Since when.
    pub since: Time,
    /// The grace period.
    pub grace_ms: u64,
    /// The end of the grace period. Can only move earlier (G-16).
    pub deadline: Time,
    /// All mains were finished for good when it began.
    pub after_mains: bool,
}

/// Why everything starts over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RerunCause {
    /// A restart rule matched (R2.40).
    Rule {
        /// The container whose exit matched.
        container: usize,
    },
    /// The sandbox was lost (R2.53).
    Sandbox,
    /// It was requested.
    Requested,
}

/// A pod that is starting over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rerun {
    /// Why.
    pub cause: RerunCause,
    /// Since when.
    pub since: Time,
    /// End of the grace period for running containers.
    pub deadline: Time,
    /// Not before this time (G-43).
    pub not_before: Time,
}

impl Observation {
    /// A new pod.
    pub fn new(plan: &Plan, now: Time) -> Self {
        Observation {
            since: now,
            sandbox: Sandbox {
                state: SandboxState::Absent,
                attempt: 0,
                retry_at: Time(0),
                failures: 0,
                message: None,
            },
            containers: plan.containers.iter().map(|_| Container::new()).collect(),
            stop: None,
            rerun: None,
            restart_requested: false,
            rerun_backoff: Backoff::default(),
            volume_bytes: vec![0; plan.volume_limits.len()],
            over: false,
        }
    }

    /// A pod that starts over after the machine was shut down: only the init containers that run once and
    /// have completed are kept from before (G-48).
    pub fn after_shutdown(plan: &Plan, before: &Observation, now: Time) -> Self {
        let mut obs = Observation::new(plan, now);
        if before.containers.len() != plan.containers.len() {
            return obs;
        }
        for ((p, c), before) in plan.containers.iter().zip(&mut obs.containers).zip(&before.containers) {
            if p.run_once && before.was_completed {
                *c = before.clone();
            }
        }
        obs
    }

    /// When the last container ended; when the pod was accepted, if none has.
    pub fn ended_at(&self) -> Time {
        let ends = self.containers.iter().filter_map(|c| Some(c.exit.as_ref()?.finished_at));
        ends.max().unwrap_or(self.since)
    }

    /// Whether any container may be running.
    pub fn any_alive(&self) -> bool {
        self.containers.iter().any(|c| c.state.is_alive())
    }
}

impl Container {
    pub(crate) fn new() -> Self {
        Container {
            state: State::Waiting,
            attempt: 0,
            restarts: 0,
            exit: None,
            last_exit: None,
            image: Image::Unknown,
            image_failures: 0,
            image_changed: false,
            was_run: false,
            gates_were_open: false,
            was_launched: false,
            was_started: false,
            was_ready: false,
            was_completed: false,
            backoff: Backoff::default(),
            start_failure: None,
            probes: Default::default(),
            post_start: Hook::Idle,
            pre_stop: Hook::Idle,
            first_pre_stop: Hook::Idle,
            kill: None,
            started_with: 0,
            fence_was_open: false,
            sandbox: 0,
            restart_requested: false,
        }
    }

    /// The observation of one probe.
    pub fn probe(&self, kind: ProbeKind) -> &Probe {
        &self.probes[kind as usize]
    }

    /// A hook by kind.
    pub fn hook(&self, kind: HookKind) -> &Hook {
        match kind {
            HookKind::PostStart => &self.post_start,
            HookKind::PreStop => &self.pre_stop,
            HookKind::FirstPreStop => &self.first_pre_stop,
        }
    }

    pub(crate) fn hook_mut(&mut self, kind: HookKind) -> &mut Hook {
        match kind {
            HookKind::PostStart => &mut self.post_start,
            HookKind::PreStop => &mut self.pre_stop,
            HookKind::FirstPreStop => &mut self.first_pre_stop,
        }
    }

    /// When the current instance was started, if it is running.
    pub fn running_since(&self) -> Option<Time> {
        match self.state {
            State::Running { since } => Some(since),
            _ => None,
        }
    }
}
