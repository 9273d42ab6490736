//! Collects the statistics of a run from its trace entries: how long containers ran, what they waited for,
//! and which of them used the grace period.

use std::collections::BTreeMap;

use outrigger_lifecycle::trace::{
    ContainerEvent, PodEvent, Record, StopReason, TraceEvent, WaitReason, WorkloadEvent, WorkloadRecord,
};
use outrigger_lifecycle::{ExitReason, HookKind, KillReason, Phase, Plan, Role, Time};

use crate::words::hint;

/// What a container waits for before a start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum On {
    /// The container with this index in the plan.
    Container(usize),
    /// The pod's sandbox.
    Sandbox,
    /// The pod's sandbox, after a failure to create it: a volume, a port or a setting was missing.
    SetUp,
    /// Its image.
    Image,
    /// The back-off between restarts.
    Backoff,
    /// The next attempt, after the runtime refused to start it.
    Retry,
}

/// How the last instance of a container ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) signal: Option<i32>,
    pub(crate) reason: Option<ExitReason>,
    /// Whether it was asked to stop.
    pub(crate) told: bool,
}

impl Ended {
    /// Whether it failed, as far as its exit shows.
    pub(crate) fn failed(&self) -> bool {
        self.code != 0 || self.reason == Some(ExitReason::OomKilled)
    }
}

/// The statistics of one container.
#[derive(Debug, Clone)]
pub(crate) struct Account {
    pub(crate) name: String,
    pub(crate) role: Role,
    /// The running time of all instances.
    pub(crate) ran_ms: u64,
    pub(crate) was_started: bool,
    pub(crate) restarts: u64,
    pub(crate) ended: Option<Ended>,
    /// What it waits for now.
    wait: Option<On>,
    /// The time it waited before starts, by cause. In a chain of waits, the last link is the cause.
    pub(crate) waited_ms: BTreeMap<On, u64>,
    /// Whether the last pull of its image failed.
    pub(crate) has_no_image: bool,
    /// The error of the last failed start.
    pub(crate) start_error: Option<String>,
    /// The part of the grace period it used.
    pub(crate) stop: StopUse,
    /// Whether its last instance was killed.
    pub(crate) was_killed: bool,
    /// Why it was stopped before the pod was. The text follows "because".
    pub(crate) ended_because: Option<String>,
}

/// The part of a stop that a container used itself, without the wait for its turn.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct StopUse {
    /// The time in its preStop hooks.
    pub(crate) hooks_ms: u64,
    /// The time from the stop signal, or the kill, to its exit.
    pub(crate) after_signal_ms: u64,
    /// Whether it got a stop signal or ran a hook.
    pub(crate) was_told: bool,
    /// When its running hook began.
    hook: Option<u64>,
    signalled: Option<u64>,
}

impl StopUse {
    /// The time in hooks and after the signal together.
    pub(crate) fn total_ms(&self) -> u64 {
        self.hooks_ms + self.after_signal_ms
    }

    fn hook_begins(&mut self, at: u64) {
        (self.hook, self.was_told) = (Some(at), true);
    }

    fn hook_ends(&mut self, at: u64) {
        self.hooks_ms += self.hook.take().map_or(0, |since| at.saturating_sub(since));
    }

    fn signal(&mut self, at: u64) {
        self.hook_ends(at);
        self.signalled.get_or_insert(at);
        self.was_told = true;
    }

    fn exit(&mut self, at: u64) {
        self.hook_ends(at);
        self.after_signal_ms += self.signalled.take().map_or(0, |since| at.saturating_sub(since));
    }
}

/// The stop of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StopAccount {
    began: u64,
    pub(crate) took_ms: u64,
    pub(crate) grace_ms: u64,
    pub(crate) cause: StopReason,
    pub(crate) message: String,
}

/// The statistics of one pod.
#[derive(Debug, Clone)]
pub(crate) struct PodAccount {
    pub(crate) name: String,
    pub(crate) containers: Vec<Account>,
    pub(crate) stop: Option<StopAccount>,
    /// The phase, set at the end.
    pub(crate) phase: Option<Phase>,
    /// Whether it has the phase `Failed` only because it was stopped.
    pub(crate) was_stopped: bool,
    /// The error of the last failure to set it up.
    pub(crate) set_up_error: Option<String>,
    /// Hints on its failures.
    pub(crate) hints: Vec<String>,
    began: Option<u64>,
    last: u64,
}

/// The statistics of one Job.
#[derive(Debug, Clone, Default)]
pub(crate) struct JobAccount {
    /// The kind and name, such as `Job/report`.
    pub(crate) name: String,
    /// The number of pods it has created.
    pub(crate) pods: usize,
    /// How long it waited after failures before it created the next pod.
    pub(crate) back_off_ms: u64,
    /// Whether it succeeded, how long it took, and why it ended.
    pub(crate) end: Option<(bool, u64, String)>,
    began: u64,
    back_off: Option<BackOff>,
}

/// A Job that waits before it creates its next pod.
#[derive(Debug, Clone, Copy)]
struct BackOff {
    since: u64,
    until: u64,
}

/// The statistics of a run.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ledger {
    pub(crate) pods: Vec<PodAccount>,
    pub(crate) jobs: Vec<JobAccount>,
}

impl Ledger {
    /// Creates the statistics of pods without entries.
    #[cfg(test)]
    pub(crate) fn new<'a>(pods: impl IntoIterator<Item = (&'a str, &'a Plan)>) -> Self {
        let mut ledger = Ledger::default();
        pods.into_iter().for_each(|(name, plan)| ledger.join(name, plan));
        ledger
    }

    /// Adds a pod.
    pub(crate) fn join(&mut self, name: &str, plan: &Plan) {
        self.pods.push(PodAccount::new(name, plan));
    }

    /// Adds an entry of a pod.
    pub(crate) fn enter(&mut self, pod: usize, at_ms: u64, entry: &Record) {
        if let Some(pod) = self.pods.get_mut(pod) {
            pod.enter(at_ms, entry);
        }
    }

    /// Adds an entry of a workload. Only Jobs are in the summary, because other workloads do not end.
    pub(crate) fn enter_workload(&mut self, at_ms: u64, record: &WorkloadRecord) {
        if matches!(record.event, WorkloadEvent::JobStarted { .. }) {
            let name = record.workload.clone();
            self.jobs.push(JobAccount { name, began: at_ms, ..JobAccount::default() });
        }
        if let Some(job) = self.jobs.iter_mut().rfind(|job| job.name == record.workload) {
            job.enter(at_ms, &record.event);
        }
    }

    /// The Jobs that wait before they create their next pod, with the time at which they create it.
    pub(crate) fn next_pods(&self) -> impl Iterator<Item = (&str, Time)> {
        self.jobs.iter().filter_map(|job| Some((job.name.as_str(), Time(job.back_off?.until))))
    }

    /// The index of a container in the plan of the first pod that has it. It is the same in all pods of a
    /// workload.
    pub(crate) fn place(&self, container: &str) -> usize {
        let in_pod = |p: &PodAccount| p.find(container);
        self.pods.iter().find_map(in_pod).unwrap_or(0)
    }
}

impl JobAccount {
    fn enter(&mut self, at: u64, event: &WorkloadEvent) {
        match event {
            WorkloadEvent::JobBackOff { wait_ms } => {
                let since = self.back_off.map_or(at, |before| before.since);
                self.back_off = Some(BackOff { since, until: at.saturating_add(*wait_ms) });
            }
            WorkloadEvent::PodCreated { .. } => {
                self.pods += 1;
                self.waited(at);
            }
            WorkloadEvent::JobComplete(how) => self.ended(true, at, &how.message),
            WorkloadEvent::JobFailed(how) => self.ended(false, at, &how.message),
            WorkloadEvent::JobStopped => self.waited(at),
            WorkloadEvent::JobStarted { .. }
            | WorkloadEvent::WorkloadStarted { .. }
            | WorkloadEvent::PodWaiting { .. }
            | WorkloadEvent::PodDeleted { .. }
            | WorkloadEvent::SuccessCriteriaMet { .. }
            | WorkloadEvent::FailureTarget { .. }
            | WorkloadEvent::JobSuspended(_) => {}
        }
    }

    fn waited(&mut self, at: u64) {
        self.back_off_ms += self.back_off.take().map_or(0, |wait| at.saturating_sub(wait.since));
    }

    fn ended(&mut self, is_success: bool, at: u64, why: &str) {
        self.waited(at);
        self.end = Some((is_success, at.saturating_sub(self.began), why.to_owned()));
    }
}

impl PodAccount {
    fn new(name: &str, plan: &Plan) -> Self {
        let account = |c: &outrigger_lifecycle::ContainerPlan| Account {
            name: c.name.clone(),
            role: c.role,
            ran_ms: 0,
            was_started: false,
            restarts: 0,
            ended: None,
            wait: None,
            waited_ms: BTreeMap::new(),
            has_no_image: false,
            start_error: None,
            stop: StopUse::default(),
            was_killed: false,
            ended_because: None,
        };
        PodAccount {
            name: name.to_owned(),
            containers: plan.containers.iter().map(account).collect(),
            stop: None,
            phase: None,
            was_stopped: false,
            set_up_error: None,
            hints: Vec::new(),
            began: None,
            last: 0,
        }
    }

    /// The time from the first entry to the last.
    pub(crate) fn took_ms(&self) -> u64 {
        self.began.map_or(0, |began| self.last.saturating_sub(began))
    }

    /// The first container that failed without being asked to stop.
    pub(crate) fn culprit(&self) -> Option<&Account> {
        let failed = |c: &&Account| c.ended.as_ref().is_some_and(|e| e.failed() && !e.told);
        let main = |c: &&Account| c.role == Role::Main;
        self.containers.iter().filter(failed).find(main).or_else(|| self.containers.iter().find(failed))
    }

    fn find(&self, container: &str) -> Option<usize> {
        self.containers.iter().position(|c| c.name == container)
    }

    fn enter(&mut self, at: u64, entry: &Record) {
        self.pass(at);
        self.hints.extend(hint(entry));
        match &entry.event {
            TraceEvent::Pod(event) => self.pod(at, event),
            TraceEvent::Container(event) => {
                if let Some(i) = entry.container.as_deref().and_then(|name| self.find(name)) {
                    self.container(i, at, event);
                }
            }
        }
    }

    /// Adds the time since the last entry to the causes of the current waits.
    fn pass(&mut self, at: u64) {
        let began = *self.began.get_or_insert(at);
        let passed = at.saturating_sub(self.last.max(began));
        self.last = self.last.max(at);
        if passed == 0 {
            return;
        }
        for i in 0..self.containers.len() {
            if let Some(on) = self.really_waits_for(i) {
                *self.containers[i].waited_ms.entry(on).or_default() += passed;
            }
        }
    }

    /// The last link of the chain of waits that begins with a container.
    fn really_waits_for(&self, i: usize) -> Option<On> {
        let mut on = self.containers[i].wait?;
        // Plans have no cycles. If a trace has one, it is followed only once.
        for _ in 0..self.containers.len() {
            match on {
                On::Container(next) => match self.containers[next].wait {
                    Some(On::Container(further)) => on = On::Container(further),
                    Some(On::Sandbox) => on = On::Sandbox,
                    // That container waits for its image or back-off, so it is the cause.
                    _ => break,
                },
                _ => break,
            }
        }
        match on {
            On::Sandbox if self.set_up_error.is_some() => Some(On::SetUp),
            on => Some(on),
        }
    }

    /// Handles an event of the pod as a whole.
    fn pod(&mut self, at: u64, event: &PodEvent) {
        match event {
            PodEvent::StopBegun { cause, grace_ms, message, .. } => {
                self.stop.get_or_insert(StopAccount {
                    began: at,
                    took_ms: 0,
                    grace_ms: grace_ms.unwrap_or(0),
                    cause: *cause,
                    message: message.clone(),
                });
                for c in &mut self.containers {
                    // Nothing is started from now on.
                    c.wait = None;
                }
            }
            PodEvent::Finished { phase, stopped } => {
                (self.phase, self.was_stopped) = (Some(*phase), *stopped);
                if let Some(stop) = &mut self.stop {
                    stop.took_ms = at.saturating_sub(stop.began);
                }
            }
            PodEvent::SandboxFailed { message, .. } => self.set_up_error = Some(message.to_string()),
            PodEvent::SandboxReady => self.set_up_error = None,
            // These events take time, which is counted for the containers that wait.
            _ => {}
        }
    }

    /// Handles an event of a container.
    fn container(&mut self, i: usize, at: u64, event: &ContainerEvent) {
        let stopping = self.stop.is_some();
        match event {
            ContainerEvent::Waiting { wait, .. } => self.containers[i].wait = self.lost_on(wait),
            ContainerEvent::Starting { restarts, .. } => {
                let c = &mut self.containers[i];
                c.wait = None;
                // The killed instance was the previous one.
                c.was_killed = false;
                c.restarts = restarts.map_or(c.restarts, u64::from);
            }
            ContainerEvent::Started { .. } => {
                let c = &mut self.containers[i];
                (c.was_started, c.start_error) = (true, None);
            }
            ContainerEvent::StartFailed { message, .. } => {
                self.containers[i].start_error = Some(message.to_string());
            }
            ContainerEvent::KillBegun { cause: KillReason::PodStop, .. } => {}
            ContainerEvent::KillBegun { message, .. } => {
                self.containers[i].ended_because = Some(message.clone());
            }
            ContainerEvent::HookStarted { hook: HookKind::PreStop | HookKind::FirstPreStop, .. }
                if stopping =>
            {
                self.containers[i].stop.hook_begins(at);
            }
            ContainerEvent::HookEnded { hook: HookKind::PreStop | HookKind::FirstPreStop, .. }
            | ContainerEvent::HookCancelled { hook: HookKind::PreStop | HookKind::FirstPreStop, .. } => {
                self.containers[i].stop.hook_ends(at);
            }
            ContainerEvent::Terminating { .. } if stopping => self.containers[i].stop.signal(at),
            ContainerEvent::Killing { .. } => {
                self.containers[i].was_killed = true;
                if stopping {
                    self.containers[i].stop.signal(at);
                }
            }
            ContainerEvent::Pulled => self.containers[i].has_no_image = false,
            ContainerEvent::PullFailed { .. } => self.containers[i].has_no_image = true,
            ContainerEvent::Exited { code, signal, reason, ran_ms, killed_for, .. } => {
                let c = &mut self.containers[i];
                c.ran_ms += ran_ms.unwrap_or(0);
                c.stop.exit(at);
                let told = killed_for.is_some();
                c.ended = Some(Ended { code: *code, signal: *signal, reason: *reason, told });
            }
            // Waits, starts and exits already cover these.
            _ => {}
        }
    }

    /// The cause to which a wait is counted.
    fn lost_on(&self, wait: &WaitReason) -> Option<On> {
        match wait {
            WaitReason::Gate { on, .. } => self.find(on).map(On::Container),
            WaitReason::Sandbox => Some(On::Sandbox),
            WaitReason::Image | WaitReason::ImageRetry { .. } => Some(On::Image),
            WaitReason::BackOff { .. } => Some(On::Backoff),
            WaitReason::StartRetry { .. } => Some(On::Retry),
            WaitReason::StartupProbe
            | WaitReason::ReadinessProbe
            | WaitReason::StopTurn { .. }
            | WaitReason::FirstPreStop { .. }
            | WaitReason::SidecarDelay { .. }
            | WaitReason::Rerun { .. } => None,
        }
    }
}
