//! The observation: what is known of a pod now.
//!
//! Plain data. [`crate::fold`] changes it as things happen; [`crate::decide`] only reads it. It serialises, so that an
//! agent can keep it across its own crash: deadlines, back-offs, hook and probe states survive (G-39, G-44, G-45).

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::plan::{Plan, ProbeKind};
use crate::time::Time;

/// What is known of a pod now.
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
    /// Everything is being ended to begin again from the first init container.
    pub rerun: Option<Rerun>,
    /// Somebody asked for all containers to be restarted, and nothing was done about it yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub restart_requested: bool,
    /// Back-off between in-place restarts of the whole pod (G-43).
    pub rerun_backoff: Backoff,
    /// What each volume of [`Plan::volume_limits`] held when it was last measured, same order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volume_bytes: Vec<u64>,
    /// Nothing runs and nothing will: the result stands.
    pub over: bool,
}

/// The sandbox of the pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sandbox {
    /// Its state.
    pub state: SandboxState,
    /// How many sandboxes there were before this one.
    pub attempt: u32,
    /// When creating it may be tried again, after a failure.
    pub retry_at: Time,
    /// Failures in a row.
    pub failures: u32,
    /// What the last failure said.
    pub message: Option<Arc<str>>,
}

/// State of the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SandboxState {
    /// There is none.
    Absent,
    /// It is being made.
    Creating,
    /// Containers can run in it.
    Ready,
    /// It died, and with it all it held.
    Lost,
}

/// What is known of one container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Container {
    /// Where it is in its life.
    pub state: State,
    /// Number of the current (or next, while waiting) instance, from 0. Events of other instances are stale.
    pub attempt: u32,
    /// How often it was started again.
    pub restarts: u32,
    /// How the current instance ended; set while `state` is `Exited`.
    pub exit: Option<Exit>,
    /// How the instance before that ended.
    pub last_exit: Option<Exit>,
    /// Its image.
    pub image: Image,
    /// Tries to get the image that failed in a row.
    pub image_failures: u32,
    /// The spec's image changed since the current instance was started.
    pub image_changed: bool,
    /// It was started at least once since the pod (re)began: its gates no longer hold it, save those of every start.
    pub was_run: bool,
    /// Its first start was tried, postStart included.
    pub was_launched: bool,
    /// Some instance was started in the sense of [`crate::Need::Started`].
    pub was_started: bool,
    /// Some instance was ready.
    pub was_ready: bool,
    /// Some instance exited with success.
    pub was_completed: bool,
    /// Crash-loop back-off.
    pub backoff: Backoff,
    /// The runtime refused to make or start it.
    pub start_failure: Option<StartFailure>,
    /// Startup, liveness, readiness; of the current instance only (G-37, G-38).
    pub probes: [Probe; 3],
    /// postStart of the current instance.
    pub post_start: Hook,
    /// preStop of the current instance.
    pub pre_stop: Hook,
    /// The extra preStop at the beginning of the stop that the KEP asks for.
    pub first_pre_stop: Hook,
    /// It is being ended.
    pub kill: Option<Kill>,
    /// Sum of the attempts of the containers it restarts with, when it was started.
    pub started_with: u32,
    /// All containers it is fenced by have been ready since it was started.
    pub fence_was_open: bool,
    /// Number of the sandbox it was last started in.
    #[serde(default)]
    pub sandbox: u32,
    /// Somebody asked for a restart since the current instance was started.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub restart_requested: bool,
}

/// Where a container is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum State {
    /// There is no instance.
    Waiting,
    /// The runtime was asked to start it.
    Starting {
        /// When.
        since: Time,
    },
    /// It runs.
    Running {
        /// When it was started.
        since: Time,
    },
    /// It ended; see [`Container::exit`].
    Exited,
    /// The runtime has lost track of it: it may or may not run.
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
    /// Why, in the words of the runtime.
    pub reason: ExitReason,
    /// When it was started; `None` if it never ran.
    pub started_at: Option<Time>,
    /// When it ended.
    pub finished_at: Time,
    /// Its termination message.
    pub message: Option<Arc<str>>,
    /// What we were ending it for, if we were.
    pub killed_for: Option<KillReason>,
}

impl Exit {
    /// The one definition of failure (G-33): a non-zero code, or killed because it ran out of memory, whatever the code says.
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
    /// Killed because it ran out of memory.
    OomKilled,
    /// The program could not be exec'd.
    StartError,
    /// The runtime has no record of how it ended.
    ContainerStatusUnknown,
    /// Ended to restart the pod in place.
    RestartingAllContainers,
}

impl ExitReason {
    /// As it stands in a pod status.
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
    /// Not asked for yet.
    Unknown,
    /// Being fetched or looked up.
    Pulling,
    /// Here.
    Present,
    /// The last try failed.
    Failed {
        /// Kubernetes' word: `ErrImagePull`, `InvalidImageName` …
        reason: Arc<str>,
        /// What happened.
        message: Arc<str>,
        /// When it is tried again.
        retry_at: Time,
    },
}

/// A start the runtime refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartFailure {
    /// Kubernetes' word: `CreateContainerConfigError` …
    pub reason: Arc<str>,
    /// What happened.
    pub message: Arc<str>,
    /// When it is tried again.
    pub retry_at: Time,
    /// Tries that failed in a row.
    pub failures: u32,
}

/// Crash-loop back-off state (R1.60 to R1.63).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Backoff {
    /// The wait in force; `None` before the first restart.
    pub wait_ms: Option<u64>,
    /// When a restart was last let through.
    pub let_through: Time,
}

/// The verdict of a probe.
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
    /// The verdict so far.
    pub verdict: Verdict,
    /// An attempt is under way, since.
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
    /// What the last attempt said.
    pub message: Option<Arc<str>>,
}

/// One run of a hook.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Hook {
    /// It has not run.
    #[default]
    Idle,
    /// It runs.
    Running {
        /// Since when.
        since: Time,
    },
    /// It succeeded.
    Done,
    /// It failed, or was given up.
    Failed {
        /// What happened.
        message: Arc<str>,
    },
}

impl Hook {
    /// Whether it runs now.
    pub fn is_running(&self) -> bool {
        matches!(self, Hook::Running { .. })
    }

    /// Whether it has ended, well or not.
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
    /// Somebody asked for it to be restarted.
    Restart,
    /// A container it restarts with restarted.
    Dependency,
    /// A container it is fenced by is not ready.
    Fence,
    /// The runtime lost track of it.
    Unknown,
    /// The pod stops.
    PodStop,
    /// The pod begins again.
    Rerun,
}

/// A container being ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kill {
    /// Why.
    pub reason: KillReason,
    /// Since when.
    pub since: Time,
    /// The end of its grace. May only move earlier (G-16).
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
    /// Somebody asked for it.
    Deleted,
    /// Everything that keeps it alive is finished.
    Completed,
    /// An init container failed for good.
    InitFailed {
        /// Which.
        container: usize,
    },
    /// `activeDeadlineSeconds` is over.
    DeadlineExceeded,
    /// A container whose end is the pod's ended.
    Fatal {
        /// Which.
        container: usize,
    },
    /// A container waits for something that can no longer happen.
    GateNeverOpens {
        /// Who waits.
        container: usize,
        /// For whom.
        on: usize,
    },
    /// The sandbox was lost and must not be made again.
    SandboxLost,
    /// The machine shuts down.
    NodeShutdown,
    /// A volume holds more than it may (R5.21).
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
    /// The grace it was given.
    pub grace_ms: u64,
    /// The end of the grace. May only move earlier (G-16).
    pub deadline: Time,
    /// All mains were finished for good when it began.
    pub after_mains: bool,
}

/// Why everything begins again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RerunCause {
    /// A restart rule said so (R2.40).
    Rule {
        /// The container whose exit matched.
        container: usize,
    },
    /// The sandbox was lost (R2.53).
    Sandbox,
    /// Somebody asked for it.
    Requested,
}

/// A pod that begins again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rerun {
    /// Why.
    pub cause: RerunCause,
    /// Since when.
    pub since: Time,
    /// End of the grace for what still runs.
    pub deadline: Time,
    /// Not before this (G-43).
    pub not_before: Time,
}

impl Observation {
    /// A pod nothing has happened to yet.
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

    /// A pod that begins anew after another life, which ended with the machine: all that is left of that are the init
    /// containers that are run once and have completed (G-48).
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

    /// When the current instance was started, if it runs.
    pub fn running_since(&self) -> Option<Time> {
        match self.state {
            State::Running { since } => Some(since),
            _ => None,
        }
    }
}
