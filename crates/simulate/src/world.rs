//! The world around the engine: a runtime that follows the scenario, and a queue of scheduled events.
//!
//! The world knows the actual state. The agent sees it through the faults of the scenario.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use outrigger_lifecycle::{
    Action, Event, Exit, ExitReason, HookKind, Image, Observation, ProbeKind, ProbeOutcome, SandboxState,
    State, Time,
};

use crate::rng::Rng;
use crate::scenario::Scenario;

/// How an instance actually ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ended {
    code: i32,
    signal: Option<i32>,
    reason: ExitReason,
    started_at: Option<Time>,
    finished_at: Time,
}

/// Why an instance ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// It exits by itself, as scripted.
    Own,
    /// It was told to stop.
    Term,
    /// It was killed.
    Kill,
    /// Its preStop hook ended it.
    Hook,
}

/// A message from the runtime to the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RuntimeMessage {
    SandboxReady,
    SandboxFailed,
    SandboxLost,
    ImageReady(usize),
    ImageFailed(usize),
    ImageChanged(usize),
    Started(usize, u32),
    StartFailed(usize, u32),
    Exited(usize, u32, Ended),
    Lost(usize, u32),
    Probed(usize, u32, ProbeKind, bool),
    HookEnded(usize, u32, HookKind, Option<&'static str>),
    Stop(Option<u64>),
    Restart(Option<usize>),
}

/// A scheduled event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scheduled {
    SandboxDone {
        generation: u32,
    },
    PullDone {
        container: usize,
        epoch: u32,
    },
    StartDone {
        container: usize,
        attempt: u32,
    },
    Exit {
        container: usize,
        attempt: u32,
        cause: Cause,
    },
    HookDone {
        container: usize,
        attempt: u32,
        hook: HookKind,
        run: u32,
        timed_out: bool,
    },
    ProbeDone {
        container: usize,
        attempt: u32,
        kind: ProbeKind,
        epoch: u32,
    },
    Tell {
        note: RuntimeMessage,
        epoch: u32,
    },
    Reconcile,
    SandboxDies,
    AgentDies {
        takes: u64,
    },
    AgentReturns,
    LoseTrack {
        container: usize,
    },
    /// The pod is updated to a plan of the scenario.
    Update {
        nth: usize,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Item {
    at: Time,
    /// The order of events at the same time: they happen in the order in which they were scheduled.
    number: u64,
    what: Scheduled,
}

impl Ord for Item {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl PartialOrd for Item {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// The actual state of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    Absent,
    Refused,
    Starting { told_to_stop: bool },
    Running { since: Time, told_to_stop: bool },
    Ended(Ended),
}

/// The actual state of one container.
#[derive(Debug, Clone, Copy)]
struct ContainerTruth {
    attempt: u32,
    life: Life,
    image_here: bool,
    pulling: bool,
    pulls_failed: u32,
    starts_failed: u32,
    /// Counts hook runs, so that the end of a cancelled run is not reported.
    hook_runs: [u32; 3],
}

/// How often each fault happened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FaultCounters {
    /// The number of events that were lost.
    pub lost: u64,
    /// The number of events that arrived twice.
    pub duplicated: u64,
    /// The number of events that arrived late.
    pub delayed: u64,
    /// The number of crashes of the agent.
    pub agent_restarts: u64,
}

/// The runtime, and all scheduled events.
#[derive(Debug)]
pub(crate) struct World {
    queue: BinaryHeap<Reverse<Item>>,
    number: u64,
    /// The number of updates that were applied or superseded.
    updates_made: usize,
    rng: Rng,
    truths: Vec<ContainerTruth>,
    sandbox_ready: bool,
    sandbox_creating: bool,
    sandbox_generation: u32,
    sandboxes_failed: u32,
    reconcile_due: bool,
    /// Counts restarts of the agent. Replies to an earlier agent are dropped.
    epoch: u32,
    agent_down: bool,
    pub(crate) faults: FaultCounters,
    texts: Texts,
}

/// The texts of events. They are allocated once.
#[derive(Debug)]
struct Texts {
    sandbox: Arc<str>,
    pull_reason: Arc<str>,
    pull: Arc<str>,
    start_reason: Arc<str>,
    start: Arc<str>,
    refused: Arc<str>,
}

impl World {
    pub(crate) fn new() -> World {
        World {
            queue: BinaryHeap::new(),
            number: 0,
            updates_made: 0,
            rng: Rng::new(0),
            truths: Vec::new(),
            sandbox_ready: false,
            sandbox_creating: false,
            sandbox_generation: 0,
            sandboxes_failed: 0,
            reconcile_due: false,
            epoch: 0,
            agent_down: false,
            faults: FaultCounters::default(),
            texts: Texts {
                sandbox: Arc::from("the sandbox could not be made, as scripted"),
                pull_reason: Arc::from("ErrImagePull"),
                pull: Arc::from("the image could not be pulled, as scripted"),
                start_reason: Arc::from("CreateContainerError"),
                start: Arc::from("the start was refused, as scripted"),
                refused: Arc::from("connection refused"),
            },
        }
    }

    /// Resets everything to the beginning, and keeps the buffers.
    pub(crate) fn reset(&mut self, scenario: &Scenario, seed: u64) {
        self.queue.clear();
        self.number = 0;
        self.updates_made = 0;
        self.rng = Rng::new(seed);
        self.truths.clear();
        self.truths.resize(
            scenario.cast.len(),
            ContainerTruth {
                attempt: 0,
                life: Life::Absent,
                image_here: false,
                pulling: false,
                pulls_failed: 0,
                starts_failed: 0,
                hook_runs: [0; 3],
            },
        );
        (self.sandbox_ready, self.sandbox_creating) = (false, false);
        (self.sandbox_generation, self.sandboxes_failed, self.epoch) = (0, 0, 0);
        (self.reconcile_due, self.agent_down) = (false, false);
        self.faults = FaultCounters::default();
        for &(at, grace) in &scenario.stops {
            self.arrange(Time(at), Scheduled::Tell { note: RuntimeMessage::Stop(grace), epoch: 0 });
        }
        for &at in &scenario.sandbox_lost_at {
            self.arrange(Time(at), Scheduled::SandboxDies);
        }
        for &(container, at) in &scenario.image_changes {
            self.arrange(
                Time(at),
                Scheduled::Tell { note: RuntimeMessage::ImageChanged(container), epoch: 0 },
            );
        }
        for &(at, container) in &scenario.restarts {
            self.arrange(Time(at), Scheduled::Tell { note: RuntimeMessage::Restart(container), epoch: 0 });
        }
        for (nth, &(at, _)) in scenario.updates.iter().enumerate() {
            self.arrange(Time(at), Scheduled::Update { nth });
        }
        for &(container, at) in &scenario.lost {
            self.arrange(Time(at), Scheduled::LoseTrack { container });
        }
        for &(at, takes) in &scenario.agent_restarts {
            self.arrange(Time(at), Scheduled::AgentDies { takes });
        }
    }

    fn arrange(&mut self, at: Time, what: Scheduled) {
        // Events that never happen are not queued.
        if at.0 < u64::MAX {
            self.queue.push(Reverse(Item { at, number: self.number, what }));
            self.number += 1;
        }
    }

    /// Records that an update is applied. Returns false if a later one was applied before it.
    pub(crate) fn take_update(&mut self, nth: usize) -> bool {
        let is_next = nth >= self.updates_made;
        self.updates_made = self.updates_made.max(nth + 1);
        is_next
    }

    /// Schedules the update again, because the agent is down.
    pub(crate) fn update_later(&mut self, nth: usize, now: Time) {
        self.arrange(now + 100, Scheduled::Update { nth });
    }

    fn later(&mut self, scenario: &Scenario, now: Time, ms: u64, what: Scheduled) {
        let ms = self.vary(scenario, ms);
        self.arrange(now + ms, what);
    }

    fn vary(&mut self, scenario: &Scenario, ms: u64) -> u64 {
        if scenario.jitter <= 0.0 || ms == u64::MAX {
            return ms;
        }
        let reach = (ms as f64 * scenario.jitter) as u64;
        ms - reach + self.rng.below(2 * reach + 1)
    }

    /// The time of the next event.
    pub(crate) fn next_at(&self) -> Option<Time> {
        self.queue.peek().map(|Reverse(item)| item.at)
    }

    pub(crate) fn pop(&mut self) -> Option<Scheduled> {
        self.queue.pop().map(|Reverse(item)| item.what)
    }

    /// Containers that are actually running.
    pub(crate) fn running(&self) -> impl Iterator<Item = usize> + '_ {
        self.truths
            .iter()
            .enumerate()
            .filter_map(|(i, t)| matches!(t.life, Life::Starting { .. } | Life::Running { .. }).then_some(i))
    }

    pub(crate) fn agent_down(&self) -> bool {
        self.agent_down
    }

    // Requests of the agent.

    pub(crate) fn carry_out(&mut self, scenario: &Scenario, action: &Action, now: Time) {
        let epoch = self.epoch;
        match *action {
            Action::CreateSandbox { .. } => {
                self.sandbox_generation += 1;
                self.sandbox_creating = true;
                let generation = self.sandbox_generation;
                self.later(scenario, now, scenario.sandbox_takes, Scheduled::SandboxDone { generation });
            }
            Action::Pull { container } => {
                self.truths[container].pulling = true;
                let takes = scenario.cast[container].pull_takes;
                self.later(scenario, now, takes, Scheduled::PullDone { container, epoch });
            }
            Action::Start { container, attempt } => {
                let truth = &mut self.truths[container];
                if matches!(truth.life, Life::Starting { .. } | Life::Running { .. }) {
                    // A runtime does not start a container that already exists.
                    return self.tell(scenario, RuntimeMessage::StartFailed(container, attempt), now);
                }
                (truth.attempt, truth.life) = (attempt, Life::Starting { told_to_stop: false });
                let takes = scenario.cast[container].instance(attempt).starts_in;
                self.later(scenario, now, takes, Scheduled::StartDone { container, attempt });
            }
            Action::RunHook { container, attempt, hook, deadline } => {
                let instance = scenario.cast[container].instance(attempt);
                let hooked =
                    if hook == HookKind::PostStart { instance.post_start } else { instance.pre_stop };
                let truth = &mut self.truths[container];
                truth.hook_runs[hook as usize] += 1;
                let run = truth.hook_runs[hook as usize];
                let takes = self.vary(scenario, hooked.takes);
                let timed_out = deadline.is_some_and(|d| d < now + takes);
                let at = deadline.filter(|_| timed_out).unwrap_or(now + takes);
                self.arrange(at, Scheduled::HookDone { container, attempt, hook, run, timed_out });
            }
            Action::CancelHook { container, hook, .. } => {
                self.truths[container].hook_runs[hook as usize] += 1
            }
            Action::Probe { container, attempt, kind } => {
                self.arrange(now + 1, Scheduled::ProbeDone { container, attempt, kind, epoch });
            }
            Action::Terminate { container, attempt, .. } => self.terminate(scenario, container, attempt, now),
            Action::Kill { container, attempt } => self.kill(container, attempt, now),
            Action::BeginKill { .. }
            | Action::BeginStop { .. }
            | Action::BeginRerun { .. }
            | Action::Rerun
            | Action::Finish => {}
        }
    }

    fn terminate(&mut self, scenario: &Scenario, container: usize, attempt: u32, now: Time) {
        let truth = &mut self.truths[container];
        match &mut truth.life {
            Life::Starting { told_to_stop } if truth.attempt == attempt => *told_to_stop = true,
            Life::Running { told_to_stop, .. } if truth.attempt == attempt => {
                if !std::mem::replace(told_to_stop, true) {
                    let after = scenario.cast[container].instance(attempt).term_after;
                    self.later(
                        scenario,
                        now,
                        after,
                        Scheduled::Exit { container, attempt, cause: Cause::Term },
                    );
                }
            }
            _ => self.tell_gone(container, attempt, now),
        }
    }

    fn kill(&mut self, container: usize, attempt: u32, now: Time) {
        let truth = &self.truths[container];
        if truth.attempt == attempt && matches!(truth.life, Life::Starting { .. } | Life::Running { .. }) {
            self.arrange(now + 1, Scheduled::Exit { container, attempt, cause: Cause::Kill });
        } else {
            self.tell_gone(container, attempt, now);
        }
    }

    /// Answers a signal to a container that does not exist. The answer belongs to the call, so it is neither
    /// lost nor late. It can therefore not be mistaken for an event of a later attempt with the same number.
    fn tell_gone(&mut self, container: usize, attempt: u32, now: Time) {
        let truth = &self.truths[container];
        let ended = match truth.life {
            Life::Ended(ended) if truth.attempt == attempt => ended,
            _ => Ended {
                code: 137,
                signal: None,
                reason: ExitReason::ContainerStatusUnknown,
                started_at: None,
                finished_at: now,
            },
        };
        let note = RuntimeMessage::Exited(container, attempt, ended);
        self.arrange(now, Scheduled::Tell { note, epoch: self.epoch });
    }

    // Events.

    /// Processes an event. Returns what the agent sees of it, if anything.
    pub(crate) fn happen(
        &mut self,
        scenario: &Scenario,
        what: Scheduled,
        now: Time,
    ) -> Option<RuntimeMessage> {
        match what {
            Scheduled::SandboxDone { generation } => {
                self.sandbox_done(scenario, generation, now);
                None
            }
            Scheduled::PullDone { container, epoch } => {
                if epoch == self.epoch {
                    self.pulled(scenario, container, now);
                }
                None
            }
            Scheduled::StartDone { container, attempt } => {
                self.start_done(scenario, container, attempt, now);
                None
            }
            Scheduled::Exit { container, attempt, cause } => {
                self.exit(scenario, container, attempt, cause, now);
                None
            }
            Scheduled::HookDone { container, attempt, hook, run, timed_out } => {
                let error = self.hook_done(scenario, container, attempt, hook, timed_out, now);
                let heard = self.truths[container].hook_runs[hook as usize] == run && !self.agent_down;
                heard.then_some(RuntimeMessage::HookEnded(container, attempt, hook, error))
            }
            Scheduled::ProbeDone { container, attempt, kind, epoch } => {
                let ok = self.probe(scenario, container, attempt, kind, now);
                (epoch == self.epoch && !self.agent_down)
                    .then_some(RuntimeMessage::Probed(container, attempt, kind, ok))
            }
            Scheduled::Tell {
                note:
                    note
                    @ (RuntimeMessage::Stop(_) | RuntimeMessage::ImageChanged(_) | RuntimeMessage::Restart(_)),
                ..
            } => {
                // Requests are repeated until the agent is running.
                if self.agent_down {
                    self.arrange(now + 10, what);
                    return None;
                }
                Some(note)
            }
            Scheduled::Tell { note, epoch } => (epoch == self.epoch && !self.agent_down).then_some(note),
            Scheduled::SandboxDies => {
                self.sandbox_dies(scenario, now);
                None
            }
            Scheduled::LoseTrack { container } => {
                let truth = &self.truths[container];
                if matches!(truth.life, Life::Running { .. }) {
                    let note = RuntimeMessage::Lost(container, truth.attempt);
                    self.tell(scenario, note, now);
                }
                None
            }
            Scheduled::AgentDies { takes } => {
                if !self.agent_down {
                    self.agent_down = true;
                    self.epoch += 1;
                    self.faults.agent_restarts += 1;
                    self.arrange(now + takes, Scheduled::AgentReturns);
                }
                None
            }
            // The simulator itself handles these.
            Scheduled::Reconcile | Scheduled::AgentReturns | Scheduled::Update { .. } => None,
        }
    }

    fn sandbox_done(&mut self, scenario: &Scenario, generation: u32, now: Time) {
        if generation != self.sandbox_generation || !self.sandbox_creating {
            return;
        }
        self.sandbox_creating = false;
        if self.sandboxes_failed < scenario.sandbox_fails {
            self.sandboxes_failed += 1;
            self.tell(scenario, RuntimeMessage::SandboxFailed, now);
        } else {
            self.sandbox_ready = true;
            self.tell(scenario, RuntimeMessage::SandboxReady, now);
        }
    }

    /// Ends a hook, and its container if the script says so. Returns the hook's error.
    fn hook_done(
        &mut self,
        scenario: &Scenario,
        container: usize,
        attempt: u32,
        hook: HookKind,
        timed_out: bool,
        now: Time,
    ) -> Option<&'static str> {
        let instance = scenario.cast[container].instance(attempt);
        let hooked = if hook == HookKind::PostStart { instance.post_start } else { instance.pre_stop };
        if hooked.ends_container && !timed_out {
            self.arrange(now, Scheduled::Exit { container, attempt, cause: Cause::Hook });
        }
        match (timed_out, hooked.fails) {
            (true, _) => Some("timed out"),
            (false, true) => Some("failed, as scripted"),
            (false, false) => None,
        }
    }

    fn pulled(&mut self, scenario: &Scenario, container: usize, now: Time) {
        let truth = &mut self.truths[container];
        truth.pulling = false;
        truth.image_here = truth.pulls_failed >= scenario.cast[container].pull_fails;
        let note = if truth.image_here {
            RuntimeMessage::ImageReady(container)
        } else {
            truth.pulls_failed += 1;
            RuntimeMessage::ImageFailed(container)
        };
        self.tell(scenario, note, now);
    }

    fn start_done(&mut self, scenario: &Scenario, container: usize, attempt: u32, now: Time) {
        let truth = &mut self.truths[container];
        let Life::Starting { told_to_stop } = truth.life else {
            return;
        };
        if truth.attempt != attempt {
            return;
        }
        let refused = truth.starts_failed < scenario.cast[container].start_fails;
        if refused || !self.sandbox_ready {
            truth.starts_failed += u32::from(refused);
            truth.life = Life::Refused;
            return self.tell(scenario, RuntimeMessage::StartFailed(container, attempt), now);
        }
        truth.life = Life::Running { since: now, told_to_stop: false };
        let runs = scenario.cast[container].instance(attempt).runs;
        self.later(scenario, now, runs, Scheduled::Exit { container, attempt, cause: Cause::Own });
        self.tell(scenario, RuntimeMessage::Started(container, attempt), now);
        if told_to_stop {
            self.terminate(scenario, container, attempt, now);
        }
    }

    fn exit(&mut self, scenario: &Scenario, container: usize, attempt: u32, cause: Cause, now: Time) {
        let truth = &mut self.truths[container];
        if truth.attempt != attempt {
            return;
        }
        let started_at = match truth.life {
            Life::Running { since, .. } => Some(since),
            Life::Starting { .. } => None,
            _ => return,
        };
        let instance = scenario.cast[container].instance(attempt);
        let (code, signal, oom) = match cause {
            Cause::Own => (instance.exit, None, instance.oom),
            Cause::Term => (instance.term_code, None, false),
            Cause::Kill => (137, Some(9), false),
            Cause::Hook => (0, None, false),
        };
        let reason = match (oom, code) {
            (true, _) => ExitReason::OomKilled,
            (_, 0) => ExitReason::Completed,
            _ => ExitReason::Error,
        };
        let ended = Ended { code, signal, reason, started_at, finished_at: now };
        truth.life = Life::Ended(ended);
        self.tell(scenario, RuntimeMessage::Exited(container, attempt, ended), now);
    }

    fn sandbox_dies(&mut self, scenario: &Scenario, now: Time) {
        if !self.sandbox_ready {
            return;
        }
        self.sandbox_ready = false;
        self.tell(scenario, RuntimeMessage::SandboxLost, now);
        // If the machine went down, its containers have ended. If only the pause process died, they may still
        // run.
        if self.rng.chance(0.5) {
            for container in 0..self.truths.len() {
                let attempt = self.truths[container].attempt;
                self.exit(scenario, container, attempt, Cause::Kill, now);
            }
        }
    }

    fn probe(&self, scenario: &Scenario, container: usize, attempt: u32, kind: ProbeKind, now: Time) -> bool {
        let truth = &self.truths[container];
        let Life::Running { since, .. } = truth.life else {
            return false;
        };
        let instance = scenario.cast[container].instance(attempt);
        let age = now.since(since);
        truth.attempt == attempt
            && match kind {
                ProbeKind::Startup => age >= instance.started_after,
                ProbeKind::Liveness => age < instance.live_until,
                ProbeKind::Readiness => {
                    age >= instance.ready_after
                        && !instance.unready.iter().any(|&(from, to)| (from..to).contains(&age))
                }
            }
    }

    // Reports to the agent.

    /// Sends a message to the agent, subject to faults.
    fn tell(&mut self, scenario: &Scenario, note: RuntimeMessage, now: Time) {
        let what = Scheduled::Tell { note, epoch: self.epoch };
        if self.rng.chance(scenario.lose) {
            self.faults.lost += 1;
            self.reconcile_in(scenario, now);
            return;
        }
        // Only events of an instance can be overtaken by later ones. Answers to requests are never delayed.
        let news = matches!(
            note,
            RuntimeMessage::Started(..) | RuntimeMessage::Exited(..) | RuntimeMessage::Lost(..)
        );
        let late = if news && self.rng.chance(scenario.delay) {
            self.faults.delayed += 1;
            1 + self.rng.below(scenario.delay_max)
        } else {
            0
        };
        self.arrange(now + late, what);
        if self.rng.chance(scenario.duplicate) {
            self.faults.duplicated += 1;
            let again = if news { self.rng.below(scenario.delay_max) } else { 0 };
            self.arrange(now + late + again, what);
        }
    }

    fn reconcile_in(&mut self, scenario: &Scenario, now: Time) {
        if !self.reconcile_due {
            self.reconcile_due = true;
            let wait = 1 + self.rng.below(scenario.resync);
            self.arrange(now + wait, Scheduled::Reconcile);
        }
    }

    /// The agent is running again. Each container that was being started now either exists or does not.
    pub(crate) fn agent_returns(&mut self, scenario: &Scenario, now: Time) {
        self.agent_down = false;
        self.sandbox_creating = false;
        for container in 0..self.truths.len() {
            let truth = &mut self.truths[container];
            truth.pulling = false;
            if matches!(truth.life, Life::Starting { .. }) {
                let attempt = truth.attempt;
                if self.rng.chance(0.5) {
                    self.start_done(scenario, container, attempt, now);
                } else {
                    truth.life = Life::Absent;
                }
            }
        }
    }

    /// Compares the agent's view with the actual state, and reports what the agent has missed.
    pub(crate) fn reconcile(&mut self, obs: &Observation, notes: &mut Vec<RuntimeMessage>) {
        self.reconcile_due = false;
        match obs.sandbox.state {
            SandboxState::Creating if !self.sandbox_creating && !self.sandbox_ready => {
                notes.push(RuntimeMessage::SandboxFailed)
            }
            SandboxState::Creating | SandboxState::Absent if self.sandbox_ready => {
                notes.push(RuntimeMessage::SandboxReady)
            }
            SandboxState::Ready if !self.sandbox_ready => notes.push(RuntimeMessage::SandboxLost),
            _ => {}
        }
        for (i, (truth, c)) in self.truths.iter().zip(&obs.containers).enumerate() {
            if c.image == Image::Pulling && !truth.pulling {
                notes.push(if truth.image_here {
                    RuntimeMessage::ImageReady(i)
                } else {
                    RuntimeMessage::ImageFailed(i)
                });
            }
            let in_doubt = matches!(c.state, State::Starting { .. } | State::Unknown);
            match truth.life {
                _ if !c.state.is_alive() || truth.attempt != c.attempt => {}
                Life::Running { .. } if in_doubt => notes.push(RuntimeMessage::Started(i, c.attempt)),
                Life::Ended(ended) => notes.push(RuntimeMessage::Exited(i, c.attempt, ended)),
                Life::Absent | Life::Refused if in_doubt => {
                    notes.push(RuntimeMessage::StartFailed(i, c.attempt))
                }
                Life::Starting { .. } | Life::Running { .. } | Life::Absent | Life::Refused => {}
            }
        }
    }

    /// Converts a message into an event of the engine.
    pub(crate) fn event(&self, scenario: &Scenario, note: RuntimeMessage) -> Event {
        match note {
            RuntimeMessage::SandboxReady => Event::SandboxReady,
            RuntimeMessage::SandboxFailed => {
                Event::SandboxFailed { message: self.texts.sandbox.clone(), cause: None }
            }
            RuntimeMessage::SandboxLost => Event::SandboxLost,
            RuntimeMessage::ImageReady(container) => Event::ImageReady { container },
            RuntimeMessage::ImageFailed(container) => Event::ImageFailed {
                container,
                reason: self.texts.pull_reason.clone(),
                message: self.texts.pull.clone(),
                cause: None,
            },
            RuntimeMessage::ImageChanged(container) => Event::ImageChanged { container },
            RuntimeMessage::Restart(container) => Event::RestartRequested { container },
            RuntimeMessage::Started(container, attempt) => Event::Started { container, attempt },
            RuntimeMessage::StartFailed(container, attempt) => Event::StartFailed {
                container,
                attempt,
                reason: self.texts.start_reason.clone(),
                message: self.texts.start.clone(),
                cause: None,
            },
            RuntimeMessage::Exited(container, attempt, ended) => Event::Exited {
                container,
                attempt,
                exit: Exit {
                    code: ended.code,
                    signal: ended.signal,
                    reason: ended.reason,
                    started_at: ended.started_at,
                    finished_at: ended.finished_at,
                    message: scenario.cast[container].instance(attempt).message.clone(),
                    killed_for: None,
                },
            },
            RuntimeMessage::Lost(container, attempt) => Event::Lost { container, attempt },
            RuntimeMessage::Probed(container, attempt, kind, ok) => Event::Probed {
                container,
                attempt,
                kind,
                outcome: if ok { ProbeOutcome::Success } else { ProbeOutcome::Failure },
                message: (!ok).then(|| self.texts.refused.clone()),
                cause: None,
            },
            RuntimeMessage::HookEnded(container, attempt, hook, error) => {
                Event::HookEnded { container, attempt, hook, error: error.map(Arc::from) }
            }
            RuntimeMessage::Stop(grace_ms) => Event::StopRequested { grace_ms },
        }
    }
}
