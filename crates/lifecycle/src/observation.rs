//! The observation: what is known about a pod now.
//!
//! This is plain data. [`crate::fold`] updates it after events, and [`crate::decide`] only reads it. It is
//! serializable, so that an agent keeps it when it crashes: deadlines, back-offs, and hook and probe states
//! survive (G-39, G-44, G-45).

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::plan::{Plan, ProbeKind};
use crate::time::Time;

/// What is known about a pod now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observation {
    /// When the pod was accepted. Its active deadline counts from here.
    pub since: Time,
    /// The sandbox.
    pub sandbox: Sandbox,
    /// One entry per container of the plan, in the same order.
    pub containers: Vec<Container>,
    /// Set while the pod is being stopped, and afterwards.
    pub stop: Option<Stop>,
    /// Set while all containers are being stopped, to start over from the first init container.
    pub rerun: Option<Rerun>,
    /// A restart of all containers was requested and has not begun yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub restart_requested: bool,
    /// Back-off between in-place restarts of the whole pod (G-43).
    pub rerun_backoff: Backoff,
    /// The last measured size of each volume of [`Plan::volume_limits`], in the same order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volume_bytes: Vec<u64>,
    /// Nothing is running, and nothing will be started again. The result is final.
    pub over: bool,
}

/// The sandbox of the pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sandbox {
    /// Its state.
    pub state: SandboxState,
    /// How many sandboxes there were before this one.
    pub attempt: u32,
    /// The earliest time of the next attempt to create it, after a failure.
    pub retry_at: Time,
    /// The number of failures in a row.
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

/// What is known about one container now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Container {
    /// Its state.
    pub state: State,
    /// The number of the current instance, from 0; while the container waits, of the next one. Events of
    /// other instances are stale.
    pub attempt: u32,
    /// How often it was restarted.
    pub restarts: u32,
    /// How the current instance ended; set while `state` is `Exited`.
    pub exit: Option<Exit>,
    /// How the instance before that ended.
    pub last_exit: Option<Exit>,
    /// Its image.
    pub image: Image,
    /// The number of failed pulls in a row.
    pub image_failures: u32,
    /// The spec has a new image since the current instance was started.
    pub image_changed: bool,
    /// It was started at least once since the pod started or restarted. Its gates no longer apply, except
    /// those that apply to every start.
    pub was_run: bool,
    /// Before its first start, all gates that wait for a state of another container were open at the same
    /// time. They no longer apply, so that a slow pull of its image does not change the result.
    #[serde(default)]
    pub gates_were_open: bool,
    /// Its first start was attempted, including its postStart hook.
    pub was_launched: bool,
    /// Some instance was started in the sense of [`crate::Need::Started`].
    pub was_started: bool,
    /// Some instance was ready.
    pub was_ready: bool,
    /// Some instance exited with success.
    pub was_completed: bool,
    /// Crash-loop back-off.
    pub backoff: Backoff,
    /// The last start, if the runtime refused it.
    pub start_failure: Option<StartFailure>,
    /// The startup, liveness and readiness probes of the current instance (G-37, G-38).
    pub probes: [Probe; 3],
    /// The postStart hook of the current instance.
    pub post_start: Hook,
    /// The preStop hook of the current instance.
    pub pre_stop: Hook,
    /// The additional preStop hook at the beginning of a stop, as in the KEP.
    pub first_pre_stop: Hook,
    /// Set while the container is being stopped.
    pub kill: Option<Kill>,
    /// The sum of the instance numbers of all containers that it restarts with, when it was started. If the
    /// sum changes, it must restart.
    pub started_with: u32,
    /// All containers in its fence were ready when it was started.
    pub fence_was_open: bool,
    /// The number of the sandbox that it was last started in.
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
    /// The runtime was asked to start it.
    Starting {
        /// The time of the request.
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
    /// Whether a process may be running.
    pub fn is_alive(self) -> bool {
        matches!(self, State::Starting { .. } | State::Running { .. } | State::Unknown)
    }
}

/// How an instance ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// The exit code; 128 plus the signal's number if a signal ended it.
    pub code: i32,
    /// The number of the signal, if one ended it.
    pub signal: Option<i32>,
    /// The reason that a pod status shows.
    pub reason: ExitReason,
    /// When it was started; `None` if it never ran.
    pub started_at: Option<Time>,
    /// When it ended.
    pub finished_at: Time,
    /// Its termination message.
    pub message: Option<Arc<str>>,
    /// Why it was being stopped, if it was.
    pub killed_for: Option<KillReason>,
}

impl Exit {
    /// Whether this exit is a failure. This is the only definition (G-33): a code other than zero, or out of
    /// memory with any code.
    pub fn failed(&self) -> bool {
        self.code != 0 || self.reason == ExitReason::OomKilled
    }
}

/// The reasons of terminated containers (R5.47).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExitReason {
    /// The exit code was 0.
    Completed,
    /// The exit code was not 0.
    Error,
    /// It was killed because it was out of memory.
    OomKilled,
    /// The program could not be exec'd.
    StartError,
    /// The runtime does not know how it ended.
    ContainerStatusUnknown,
    /// It was stopped to restart the pod in place.
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

/// The state of a container's image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Image {
    /// It was not requested yet.
    Unknown,
    /// It is being pulled or looked up.
    Pulling,
    /// It is present.
    Present,
    /// The last attempt failed.
    Failed {
        /// Kubernetes' reason, such as `ErrImagePull` or `InvalidImageName`.
        reason: Arc<str>,
        /// The error, in human-readable form.
        message: Arc<str>,
        /// When it is retried.
        retry_at: Time,
    },
}

/// A start that the runtime refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartFailure {
    /// Kubernetes' reason, such as `CreateContainerConfigError`.
    pub reason: Arc<str>,
    /// The error.
    pub message: Arc<str>,
    /// When it is retried.
    pub retry_at: Time,
    /// The number of failed attempts in a row.
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

/// The overall result of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Verdict {
    /// No threshold was reached yet.
    #[default]
    Unknown,
    /// The success threshold was reached.
    Success,
    /// The failure threshold was reached.
    Failure,
}

/// The state of one probe of the current instance.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Probe {
    /// The result so far.
    pub verdict: Verdict,
    /// When the attempt in progress began, if there is one.
    pub in_flight: Option<Time>,
    /// The earliest time of the next attempt.
    pub next_at: Time,
    /// Whether the last attempt succeeded.
    pub last_ok: Option<bool>,
    /// The number of equal results in a row that count towards the threshold.
    pub run: u32,
    /// When a result last counted.
    pub counted_at: Option<Time>,
    /// Whether an attempt of this instance has succeeded. The fast attempts after the start then end.
    pub was_ok: bool,
    /// The number of fast attempts so far.
    pub ramp: u32,
    /// Failed attempts in a row, counted or not.
    pub failures: u32,
    /// The number of attempts in a row that could not be made at all, counted at most once per period. They
    /// count towards no verdict.
    #[serde(default)]
    pub errors: u32,
    /// When such an attempt was last counted.
    #[serde(default)]
    pub error_at: Option<Time>,
    /// The output of the last attempt.
    pub message: Option<Arc<str>>,
}

/// The state of one hook.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Hook {
    /// It has not run.
    #[default]
    Idle,
    /// It is running.
    Running {
        /// When it began.
        since: Time,
    },
    /// It succeeded.
    Done,
    /// It failed, or was cancelled.
    Failed {
        /// The error, in human-readable form.
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

/// The kinds of hooks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum HookKind {
    /// The postStart hook.
    PostStart,
    /// The preStop hook.
    PreStop,
    /// The KEP's first preStop, before any main is stopped.
    FirstPreStop,
}

impl HookKind {
    /// The name that users know.
    pub fn name(self) -> &'static str {
        match self {
            HookKind::PostStart => "postStart",
            HookKind::PreStop => "preStop",
            HookKind::FirstPreStop => "first preStop",
        }
    }
}

/// Why a single container is being stopped.
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
    /// Another container that it restarts with was restarted.
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

/// The stop of one container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kill {
    /// The reason for the stop.
    pub reason: KillReason,
    /// When the stop began.
    pub since: Time,
    /// The end of its grace period. It can only become earlier (G-16).
    pub deadline: Time,
    /// When the stop signal was sent.
    pub signalled_at: Option<Time>,
    /// When KILL was sent.
    pub killed_at: Option<Time>,
}

/// Why a pod is being stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StopCause {
    /// A stop was requested.
    Deleted,
    /// All containers that keep it alive have ended for good.
    Completed,
    /// An init container failed for good.
    InitFailed {
        /// The index of the init container in the plan.
        container: usize,
    },
    /// `activeDeadlineSeconds` has passed.
    DeadlineExceeded,
    /// A fatal container ended.
    Fatal {
        /// The index of the fatal container in the plan.
        container: usize,
    },
    /// A container waits for something that can no longer happen.
    GateNeverOpens {
        /// The container that waits.
        container: usize,
        /// The container it waits for.
        on: usize,
    },
    /// The sandbox was lost, and the pod must not run in a new one.
    SandboxLost,
    /// The pod or one of its containers can never start, and is not tried again.
    CannotStart {
        /// The index of the container in the plan; `None` for the pod itself.
        container: Option<usize>,
    },
    /// It, or one of its containers, failed, and is not tried again although that might help.
    NotRetried {
        /// Which; `None`: the pod itself.
        container: Option<usize>,
    },
    /// The machine is shutting down.
    NodeShutdown,
    /// A volume exceeds its limit (R5.21).
    VolumeFull {
        /// The index of the volume in [`Plan::volume_limits`].
        volume: usize,
    },
}

/// The stop of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stop {
    /// The cause of the stop.
    pub cause: StopCause,
    /// When the stop began.
    pub since: Time,
    /// The grace period.
    pub grace_ms: u64,
    /// The end of the grace period. It can only become earlier (G-16).
    pub deadline: Time,
    /// All mains had ended for good when the stop began.
    pub after_mains: bool,
}

/// Why the whole pod starts over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RerunCause {
    /// A restart rule matched (R2.40).
    Rule {
        /// The index of the container whose exit matched.
        container: usize,
    },
    /// The sandbox was lost (R2.53).
    Sandbox,
    /// A restart of all containers was requested.
    Requested,
}

/// The restart of a whole pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rerun {
    /// The cause of the restart.
    pub cause: RerunCause,
    /// When the restart began.
    pub since: Time,
    /// The end of the grace period for running containers.
    pub deadline: Time,
    /// The earliest time of the new start (G-43).
    pub not_before: Time,
}

impl Observation {
    /// The observation of a new pod.
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

    /// The observation of a pod that starts over after the machine was shut down. Only init containers that
    /// run once and have completed keep their state (G-48).
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

    /// When the last container ended. If none has, when the pod was accepted.
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

    /// The state of one probe.
    pub fn probe(&self, kind: ProbeKind) -> &Probe {
        &self.probes[kind as usize]
    }

    /// The state of one hook.
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
