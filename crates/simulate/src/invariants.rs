//! Checks the six invariants of the engine from outside.
//!
//! The checker sees the events that the agent gets and the actions that the engine requests. It keeps its own
//! records and shares no rule with the engine: it derives gates, restarts and the stop order from the plan
//! alone.

use std::fmt;

use outrigger_lifecycle::{
    Action, Change, Decision, Dialect, Event, Gate, HookKind, KillReason, Need, Observation, Plan,
    PreStopWhen, ProbeKind, ProbeOutcome, RerunCause, RestartPolicy, Role, STOP_MIN_MS, StopCause, Time,
    Wait,
};

use crate::simulator::Watch;

/// A violated invariant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The number of the invariant, from 1 to 6 (see ARCHITECTURE.md).
    pub invariant: u8,
    /// When it was violated.
    pub at: Time,
    /// How it was violated.
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invariant {} broken at {} ms: {}", self.invariant, self.at.0, self.text)
    }
}

/// The maximum number of violations that are kept.
const VIOLATIONS_MAX: usize = 8;

/// Checks one simulated life of a pod.
#[derive(Debug)]
pub struct Checker<'p> {
    plan: &'p Plan,
    /// The plans that the pod is updated to, in this order.
    updates: &'p [(u64, Plan)],
    /// For each container, those that must have ended before it is told to stop.
    before: Vec<Vec<usize>>,
    books: Vec<ContainerHistory>,
    sandbox_ready: bool,
    since: Time,
    stop: Option<StopBook>,
    rerun: Option<RerunBook>,
    over: bool,
    slack_ms: u64,
    /// Whether the pod uses only Kubernetes' own order, which ends with the grace period.
    native_only: bool,
    /// How many stages may be signalled one after another once the grace period has ended.
    late_stages: u64,
    /// The violations so far.
    pub violations: Vec<Violation>,
}

#[derive(Debug, Clone, Copy)]
struct StopBook {
    deadline: Time,
    grace_ms: u64,
}

#[derive(Debug, Clone, Copy)]
struct RerunBook {
    deadline: Time,
    grace_ms: u64,
    sandbox_lost: bool,
}

/// What the checker knows about one container.
#[derive(Debug, Clone, Default)]
struct ContainerHistory {
    attempt: u32,
    /// Whether an instance with this number was started.
    used: bool,
    /// Whether its last pull failed, and no new one has begun.
    no_image: bool,
    /// True from the request to start it until its end is reported.
    alive: bool,
    running: bool,
    ever_ran: bool,
    ever_tried: bool,
    ever_started: bool,
    ever_ready: bool,
    ever_completed: bool,
    /// All its gates were open at some time before its first start.
    gates_were_open: bool,
    exit: Option<ExitHistory>,
    hook: HookHistory,
    probes: [ProbeHistory; 3],
    kill: Option<KillHistory>,
    signalled: Option<Time>,
    /// The KEP's preStop hook that runs before any main is stopped.
    first_pre_stop: HookHistory,
    /// The preStop hook that runs before its own signal.
    pre_stop: HookHistory,
    /// Whether it ended for good in a sandbox that was lost.
    of_lost_sandbox: bool,
}

#[derive(Debug, Clone, Copy)]
struct ExitHistory {
    code: i32,
    failed: bool,
    at: Time,
    killed_for: Option<KillReason>,
}

#[derive(Debug, Clone, Copy)]
struct KillHistory {
    reason: KillReason,
    since: Time,
    deadline: Time,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
enum HookHistory {
    #[default]
    NotRun,
    Runs,
    Succeeded,
    Failed,
}

#[derive(Debug, Clone, Copy, Default)]
struct ProbeHistory {
    good_in_a_row: u32,
    bad_in_a_row: u32,
    good: bool,
}

/// For each container, those that must have ended before it is told to stop.
fn before(plan: &Plan) -> Vec<Vec<usize>> {
    let mut before = vec![Vec::new(); plan.containers.len()];
    for (i, all) in before.iter_mut().enumerate() {
        let mut todo = plan.containers[i].stop_after.clone();
        while let Some(b) = todo.pop() {
            if !all.contains(&b) {
                all.push(b);
                todo.extend(&plan.containers[b].stop_after);
            }
        }
    }
    before
}

impl<'p> Checker<'p> {
    /// A checker for one life of a pod with this plan. `slack_ms` is the longest time that an event may take
    /// to reach the agent.
    pub fn new(plan: &'p Plan, slack_ms: u64) -> Self {
        let native_only = plan.sidecar_grace_ms == 0
            && !plan.dialects.contains(&Dialect::Kep)
            && !plan.dialects.contains(&Dialect::DependsOn);
        let late_stages = if native_only { 1 } else { plan.stop_stages as u64 + 1 };
        Checker {
            plan,
            updates: &[],
            before: before(plan),
            native_only,
            late_stages,
            books: vec![ContainerHistory::default(); plan.containers.len()],
            sandbox_ready: false,
            since: Time(0),
            stop: None,
            rerun: None,
            over: false,
            slack_ms,
            violations: Vec::new(),
        }
    }

    /// Announces that the pod will be updated to these plans; see
    /// [`Scenario::update_at`](crate::Scenario::update_at).
    pub fn expect_updates(mut self, updates: &'p [(u64, Plan)]) -> Self {
        self.updates = updates;
        self
    }

    fn broken(&mut self, invariant: u8, at: Time, text: String) {
        if self.violations.len() < VIOLATIONS_MAX {
            self.violations.push(Violation { invariant, at, text });
        }
    }

    fn name(&self, i: usize) -> &str {
        &self.plan.containers[i].name
    }

    // Conditions that are derived from the records.

    fn started(&self, i: usize) -> bool {
        let (p, b) = (&self.plan.containers[i], &self.books[i]);
        let hook = p.post_start.is_none() || b.hook == HookHistory::Succeeded;
        let probe = p.probe(ProbeKind::Startup).is_none() || b.probes[ProbeKind::Startup as usize].good;
        b.running && hook && probe
    }

    fn ready(&self, i: usize) -> bool {
        let (p, b) = (&self.plan.containers[i], &self.books[i]);
        match p.role {
            Role::Init => b.ever_completed,
            _ => {
                self.started(i)
                    && (p.probe(ProbeKind::Readiness).is_none()
                        || b.probes[ProbeKind::Readiness as usize].good)
            }
        }
    }

    fn note_state(&mut self, i: usize) {
        self.books[i].ever_started |= self.started(i);
        self.books[i].ever_ready |= self.ready(i);
    }

    /// Whether an exited container is started again, according to its policy, its rules and the cause of its
    /// exit.
    fn comes_back(&self, i: usize, exit: ExitHistory) -> bool {
        let p = &self.plan.containers[i];
        let never = p.restart.policy == RestartPolicy::Never;
        // Ephemeral containers run once (R1.10).
        if p.role == Role::Ephemeral || (p.role == Role::Init && !exit.failed) {
            return false;
        }
        match exit.killed_for {
            Some(KillReason::Liveness | KillReason::Startup) => return !never,
            Some(KillReason::Unknown) => return p.role != Role::Init || !never,
            Some(
                KillReason::ImageChanged
                | KillReason::Restart
                | KillReason::Dependency
                | KillReason::Fence
                | KillReason::Rerun,
            ) => return true,
            Some(KillReason::PostStart | KillReason::PodStop) | None => {}
        }
        for rule in &p.restart.rules {
            if rule.values.contains(&exit.code) == rule.is_in {
                return true;
            }
        }
        match p.restart.policy {
            RestartPolicy::Always => true,
            RestartPolicy::OnFailure => exit.failed,
            RestartPolicy::Never => false,
        }
    }

    /// The exit of a container that has ended and will not be started again.
    fn gone_for_good(&self, i: usize) -> Option<ExitHistory> {
        let b = &self.books[i];
        b.exit.filter(|&e| !b.alive && !self.comes_back(i, e))
    }

    /// Whether a gate of container `i` is open.
    fn open(&self, i: usize, gate: Gate) -> bool {
        let Gate { on, need, every_start, .. } = gate;
        let b = &self.books[on];
        let gone = self.gone_for_good(on).filter(|_| !every_start);
        let did_its_work = gone.is_some_and(|e| !e.failed);
        let was_ready = gone.is_some() && b.ever_ready;
        match need {
            Need::Completed => b.ever_completed,
            Need::Started if every_start => self.started(on),
            Need::Started => b.ever_started || did_its_work,
            Need::Ready => {
                let passed = || !every_start && self.was_passed(i, gate);
                self.ready(on) || did_its_work || was_ready || passed()
            }
            Need::Launched => {
                // A container whose image cannot be pulled does not block others, once its own gates are open
                // (R1.5, R1.7).
                let passes = |g: &Gate| !self.asked(on, g) || self.open(on, *g);
                let turn = || self.plan.containers[on].gates.iter().all(passes);
                b.ever_tried || (b.no_image && turn())
            }
        }
    }

    /// Whether a gate applies to the next start of its container. Before the first start, it applies until
    /// all gates that need a state of another container were open at the same time. A late image therefore
    /// changes nothing.
    fn asked(&self, i: usize, gate: &Gate) -> bool {
        let b = &self.books[i];
        gate.every_start || !(b.ever_ran || (b.gates_were_open && gate.need != Need::Launched))
    }

    fn note_open_gates(&mut self) {
        for i in 0..self.books.len() {
            let b = &self.books[i];
            let opens_once = |g: &&Gate| !g.every_start && g.need != Need::Launched;
            let mut gates = self.plan.containers[i].gates.iter().filter(opens_once);
            if !b.alive && !b.ever_ran && !b.gates_were_open && gates.all(|g| self.open(i, *g)) {
                self.books[i].gates_were_open = true;
            }
        }
    }

    /// Whether another container has passed the same gate. For launch priority, it must be of the same level.
    /// Mains that ended before the pod restarted do not count.
    fn was_passed(&self, i: usize, gate: Gate) -> bool {
        if !self.books[gate.on].ever_ready && !self.books[gate.on].ever_completed {
            return false;
        }
        let priority = gate.dialect == Some(Dialect::Priority);
        let waits_for = |j: usize| {
            let gates = self.plan.containers[j].gates.iter();
            gates.filter(|g| g.dialect == Some(Dialect::Priority)).map(|g| g.on).collect::<Vec<_>>()
        };
        (0..self.books.len()).any(|j| {
            let same = |g: &Gate| g.on == gate.on && g.need == gate.need;
            (self.books[j].ever_ran || self.books[j].alive)
                && !self.books[j].of_lost_sandbox
                && self.plan.containers[j].gates.iter().any(same)
                && (!priority || waits_for(j) == waits_for(i))
        })
    }

    /// Whether a container that has not started waits for one that will not be started again.
    fn waits_in_vain(&self, i: usize, on: usize) -> bool {
        let closed =
            |g: &Gate| g.on == on && g.need != Need::Launched && self.asked(i, g) && !self.open(i, *g);
        !self.books[i].alive
            && self.gone_for_good(i).is_none()
            && self.gone_for_good(on).is_some()
            && self.plan.containers[i].gates.iter().any(closed)
    }

    fn all_done(&self) -> bool {
        let mut keepers = (0..self.books.len()).filter(|&i| self.plan.containers[i].keeps_alive).peekable();
        keepers.peek().is_some() && keepers.all(|i| self.gone_for_good(i).is_some())
    }

    /// Whether sidecars keep running after the mains (D7).
    fn runs_on(&self, now: Time) -> bool {
        let sidecar = |i: usize| self.plan.containers[i].role == Role::Sidecar && self.books[i].alive;
        let keepers = (0..self.books.len()).filter(|&i| self.plan.containers[i].keeps_alive);
        let last = keepers.filter_map(|i| self.books[i].exit).map(|exit| exit.at).max();
        self.all_done()
            && (0..self.books.len()).any(sidecar)
            && last.is_some_and(|at| now < at + self.plan.sidecar_delay_ms)
    }

    /// Whether a container must still wait for those that stop before it. In a pod that uses only Kubernetes'
    /// own features, no container waits after the grace period (R3.25). In all other pods the order always
    /// holds.
    fn must_wait(&self, i: usize, now: Time) -> bool {
        let kill = self.books[i].kill;
        let for_itself = kill.is_some_and(|k| !matches!(k.reason, KillReason::PodStop | KillReason::Rerun));
        if for_itself && kill.is_some_and(|k| k.deadline <= k.since) {
            return false;
        }
        let spent = match (self.stop, self.rerun) {
            (Some(stop), _) => stop.deadline,
            // A container that was already being stopped on its own has its own grace period.
            (None, Some(rerun)) => kill.map_or(rerun.deadline, |k| k.deadline.min(rerun.deadline)),
            (None, None) => return false,
        };
        !self.native_only || now < spent
    }

    fn served(&self, i: usize) -> Option<usize> {
        self.before[i].iter().copied().find(|&b| self.books[b].alive)
    }

    /// A KEP sidecar whose preStop hook must end before container `i` is told to stop. This holds when the
    /// pod stops and when it starts over.
    fn owed_first_hook(&self, i: usize, now: Time) -> Option<usize> {
        let (deadline, grace_ms) = match (self.stop, self.rerun) {
            (Some(stop), _) => (stop.deadline, stop.grace_ms),
            (None, Some(rerun)) => (rerun.deadline, rerun.grace_ms),
            (None, None) => return None,
        };
        let runs_first = |i: usize| {
            let p = &self.plan.containers[i];
            p.pre_stop.is_some() && p.pre_stop_when == PreStopWhen::FirstAndOwnTurn
        };
        let at_once = grace_ms == 0 || self.books[i].kill.is_some_and(|k| k.deadline <= k.since);
        // The first stage stops waiting when its part of the grace period has ended.
        if runs_first(i) || at_once || now >= deadline - self.plan.sidecar_grace_ms.min(grace_ms) {
            return None;
        }
        (0..self.books.len()).find(|&s| {
            let b = &self.books[s];
            let owed = match (b.first_pre_stop, b.pre_stop) {
                (HookHistory::Runs, _) => true,
                (HookHistory::NotRun, HookHistory::NotRun | HookHistory::Runs) => self.served(s).is_some(),
                _ => false,
            };
            runs_first(s) && b.running && b.signalled.is_none() && owed
        })
    }

    fn check_pre_stop(&mut self, i: usize, hook: HookKind, now: Time) {
        let b = &self.books[i];
        let again = match hook {
            HookKind::FirstPreStop => {
                b.first_pre_stop != HookHistory::NotRun || b.pre_stop != HookHistory::NotRun
            }
            _ => b.pre_stop != HookHistory::NotRun || b.first_pre_stop == HookHistory::Runs,
        };
        if again {
            let name = self.name(i);
            self.broken(2, now, format!("the {} hook of `{name}` runs once too often", hook.name()));
        }
    }

    fn hook_ended(&mut self, i: usize, hook: HookKind, how: HookHistory) {
        let b = &mut self.books[i];
        let book = match hook {
            HookKind::PostStart => &mut b.hook,
            HookKind::FirstPreStop => &mut b.first_pre_stop,
            HookKind::PreStop => &mut b.pre_stop,
        };
        if *book == HookHistory::Runs {
            *book = how;
            b.ever_tried |= hook == HookKind::PostStart;
        }
    }

    // Checks of the engine's actions.

    fn check_start(&mut self, i: usize, attempt: u32, now: Time) {
        let p = &self.plan.containers[i];
        let b = &self.books[i];
        let text = |what: &str| format!("`{}` (instance {attempt}) starts {what}", p.name);
        let mut found: Vec<(u8, String)> = Vec::new();
        if b.alive {
            found.push((5, text("while an instance of it is alive")));
        }
        if attempt < b.attempt || (attempt == b.attempt && b.used) {
            found.push((5, text("under a number that was used before")));
        }
        if !self.sandbox_ready {
            found.push((1, text("without a sandbox")));
        }
        for gate in &p.gates {
            if self.asked(i, gate) && !self.open(i, *gate) {
                let on = self.name(gate.on);
                found.push((1, text(&format!("before `{on}` is {:?}", gate.need))));
            }
        }
        if let Some(exit) = b.exit
            && !self.comes_back(i, exit)
        {
            found.push((6, text("although it ended for good")));
        }
        if self.rerun.is_some() {
            found.push((4, text("while the pod stops to start over")));
        }
        if self.stop.is_some() {
            if p.role != Role::Sidecar {
                found.push((4, text("while the pod stops")));
            } else if self.served(i).is_none() {
                found.push((4, text("while the pod stops and no container needs it")));
            }
        }
        for (invariant, text) in found {
            self.broken(invariant, now, text);
        }
    }

    fn check_signal(&mut self, i: usize, attempt: u32, kill: bool, now: Time) {
        let b = &self.books[i];
        let word = if kill { "killed" } else { "told to stop" };
        let text = |what: String| format!("`{}` is {word} {what}", self.plan.containers[i].name);
        let mut found: Vec<(u8, String)> = Vec::new();
        if !b.alive || b.attempt != attempt {
            found.push((2, text(format!("as instance {attempt}, which is not there"))));
        }
        let no_grace = match (self.stop, self.rerun) {
            (Some(stop), _) => stop.grace_ms == 0,
            (None, rerun) => rerun.is_some_and(|r| r.grace_ms == 0),
        };
        let zero = no_grace || b.kill.is_some_and(|k| k.deadline <= k.since);
        let time_ms = self.plan.containers[i].stop_grace_ms.map_or(STOP_MIN_MS, |own| own.min(STOP_MIN_MS));
        match b.kill {
            None => found.push((2, text("for no reason".into()))),
            Some(_) if kill && !zero => match b.signalled {
                Some(at) if now.since(at) < time_ms => {
                    found.push((2, text(format!("{} ms after the signal", now.since(at)))));
                }
                None if b.running => found.push((2, text("without having been told to stop".into()))),
                _ => {}
            },
            Some(_) => {}
        }
        if b.signalled.is_none()
            && self.must_wait(i, now)
            && let Some(first) = self.served(i)
        {
            let first = self.name(first);
            found.push((2, text(format!("while `{first}`, which must go first, is alive"))));
        }
        if b.signalled.is_none()
            && let Some(sidecar) = self.owed_first_hook(i, now)
        {
            let sidecar = self.name(sidecar);
            found.push((
                2,
                text(format!("before the preStop hook of `{sidecar}`, which runs first, has ended")),
            ));
        }
        for (invariant, text) in found {
            self.broken(invariant, now, text);
        }
    }

    fn check_cause(&mut self, cause: StopCause, now: Time) {
        let real = match cause {
            StopCause::Completed => self.all_done(),
            StopCause::InitFailed { container } => {
                self.plan.containers[container].role == Role::Init
                    && self.gone_for_good(container).is_some_and(|e| e.failed)
            }
            StopCause::DeadlineExceeded => {
                self.plan.active_deadline_ms.is_some_and(|ms| now >= self.since + ms)
            }
            StopCause::Fatal { container } => {
                self.plan.containers[container].fatal && self.gone_for_good(container).is_some()
            }
            StopCause::GateNeverOpens { container, on } => self.waits_in_vain(container, on),
            StopCause::SandboxLost => !self.sandbox_ready && self.plan.restart_policy == RestartPolicy::Never,
            // No script fills a volume or shuts down the machine, and everything is retried.
            StopCause::VolumeFull { .. }
            | StopCause::CannotStart { .. }
            | StopCause::NotRetried { .. }
            | StopCause::NodeShutdown => false,
            StopCause::Deleted => true,
        };
        if !real {
            self.broken(6, now, format!("the pod stops for {cause:?}, which is not so"));
        }
    }

    fn action(&mut self, action: &Action, now: Time) {
        if self.over {
            return self.broken(5, now, format!("{action:?} after the pod was over"));
        }
        match *action {
            Action::Start { container, attempt } => {
                self.check_start(container, attempt, now);
                let b = &mut self.books[container];
                *b = ContainerHistory {
                    attempt,
                    alive: true,
                    ever_ran: b.ever_ran,
                    ever_tried: b.ever_tried,
                    ever_started: b.ever_started,
                    ever_ready: b.ever_ready,
                    ever_completed: b.ever_completed,
                    gates_were_open: b.gates_were_open,
                    ..ContainerHistory::default()
                };
            }
            Action::Pull { container } => {
                if (self.stop.is_some() || self.rerun.is_some()) && self.served(container).is_none() {
                    let name = self.name(container);
                    self.broken(4, now, format!("an image is pulled for `{name}` while the pod stops"));
                }
            }
            Action::CreateSandbox { .. } | Action::BeginRerun { .. } | Action::Rerun
                if self.stop.is_some() =>
            {
                self.broken(4, now, format!("{action:?} while the pod stops"));
            }
            Action::RunHook { container, hook, .. } => {
                if hook != HookKind::PostStart {
                    self.check_pre_stop(container, hook, now);
                }
                let b = &mut self.books[container];
                match hook {
                    HookKind::PostStart => b.hook = HookHistory::Runs,
                    HookKind::PreStop => b.pre_stop = HookHistory::Runs,
                    HookKind::FirstPreStop => b.first_pre_stop = HookHistory::Runs,
                }
                if !self.books[container].alive {
                    let name = self.name(container);
                    self.broken(5, now, format!("a hook of `{name}` runs although it does not"));
                }
            }
            Action::CancelHook { container, hook, .. } => {
                self.hook_ended(container, hook, HookHistory::Failed)
            }
            Action::Terminate { container, attempt, .. } => {
                self.check_signal(container, attempt, false, now);
                self.books[container].signalled.get_or_insert(now);
            }
            Action::Kill { container, attempt } => {
                self.check_signal(container, attempt, true, now);
                self.books[container].signalled.get_or_insert(now);
            }
            Action::BeginKill { container, reason, deadline } => {
                self.books[container].kill = Some(KillHistory { reason, since: now, deadline });
            }
            Action::BeginStop { cause, grace_ms } => {
                self.check_cause(cause, now);
                self.stop_requested(grace_ms, now);
            }
            Action::BeginRerun { cause, deadline } => {
                let sandbox_lost = cause == RerunCause::Sandbox;
                self.rerun = Some(RerunBook { deadline, grace_ms: deadline.since(now), sandbox_lost });
            }
            Action::Rerun => self.begin_again(now),
            Action::Finish => self.finish(now),
            Action::CreateSandbox { .. } | Action::Probe { .. } => {}
        }
    }

    /// Checks that every container that should start, but has not, has a reason to wait, and that the reason
    /// is true.
    fn check_reasons(&mut self, decision: &Decision, now: Time) {
        if self.over || self.stop.is_some() || self.rerun.is_some() || self.runs_on(now) {
            return;
        }
        for i in 0..self.books.len() {
            let waits = !self.books[i].alive && self.gone_for_good(i).is_none();
            match decision.wait_of(i) {
                None if waits => {
                    let name = self.name(i);
                    self.broken(5, now, format!("`{name}` waits without a reason"));
                }
                Some(Wait::Gate { on, .. }) if self.waits_in_vain(i, on) => {
                    let (name, on) = (self.name(i), self.name(on));
                    self.broken(3, now, format!("`{name}` waits for `{on}`, which is gone for good"));
                }
                Some(Wait::Gate { on, need }) => {
                    let mut gates =
                        self.plan.containers[i].gates.iter().filter(|g| g.on == on && g.need == need);
                    if gates.all(|g| self.open(i, *g)) {
                        let (name, on) = (self.name(i), self.name(on));
                        self.broken(1, now, format!("`{name}` waits for `{on}` to be {need:?}, which it is"));
                    }
                }
                _ => {}
            }
        }
    }

    fn stop_requested(&mut self, grace_ms: u64, now: Time) {
        let new = StopBook { deadline: now + grace_ms, grace_ms };
        self.stop = Some(match self.stop {
            Some(old) if old.deadline <= new.deadline && grace_ms > 0 => old,
            Some(old) => {
                StopBook { deadline: old.deadline.min(new.deadline), grace_ms: old.grace_ms.min(grace_ms) }
            }
            None => new,
        });
        self.rerun = None;
    }

    fn begin_again(&mut self, now: Time) {
        if let Some(i) = (0..self.books.len()).find(|&i| self.books[i].alive) {
            let name = self.name(i);
            self.broken(5, now, format!("the pod begins again while `{name}` is alive"));
        }
        let lost = self.rerun.is_some_and(|rerun| rerun.sandbox_lost);
        for i in 0..self.books.len() {
            let role = self.plan.containers[i].role;
            let is_kept = self.plan.containers[i].run_once && self.books[i].ever_completed;
            if role == Role::Ephemeral
                || is_kept
                || (lost && role == Role::Main && self.gone_for_good(i).is_some())
            {
                self.books[i].of_lost_sandbox = lost;
                continue;
            }
            let ContainerHistory { attempt, used, no_image, .. } = self.books[i];
            self.books[i] = ContainerHistory { attempt, used, no_image, ..ContainerHistory::default() };
        }
        self.rerun = None;
    }

    fn finish(&mut self, now: Time) {
        self.over = true;
        for i in 0..self.books.len() {
            if self.books[i].alive {
                let name = self.name(i);
                self.broken(5, now, format!("the pod is over and `{name}` is alive"));
            }
        }
        match self.stop {
            None => self.broken(3, now, "the pod is over and was never stopped".into()),
            // For every stage there is time for a late signal, for the reaction, and for a late report of the
            // end.
            Some(stop) if now > stop.deadline + (STOP_MIN_MS + self.slack_ms) * self.late_stages => {
                let late = now.since(stop.deadline);
                self.broken(3, now, format!("the pod was over {late} ms after the end of its grace"));
            }
            Some(_) => {}
        }
    }
}

impl Watch for Checker<'_> {
    fn event(&mut self, _: &Plan, _: &Observation, event: &Event, now: Time) {
        self.note_open_gates();
        match *event {
            Event::SandboxReady => self.sandbox_ready = true,
            Event::SandboxLost => self.sandbox_ready = false,
            Event::ImageFailed { container, .. } => self.books[container].no_image = true,
            Event::ImageReady { container } => self.books[container].no_image = false,
            Event::StopRequested { grace_ms }
            | Event::CannotStart { grace_ms, .. }
            | Event::NotRetried { grace_ms, .. } => {
                self.stop_requested(grace_ms.unwrap_or(self.plan.grace_ms), now)
            }
            Event::NodeShutdown { grace_ms } => self.stop_requested(grace_ms.min(self.plan.grace_ms), now),
            Event::Started { container, attempt } => {
                let without_hook = self.plan.containers[container].post_start.is_none();
                let b = &mut self.books[container];
                if b.alive && b.attempt == attempt && !b.running {
                    (b.running, b.ever_ran, b.used) = (true, true, true);
                    b.ever_tried |= without_hook;
                }
                self.note_state(container);
            }
            Event::StartFailed { container, attempt, .. } => {
                let b = &mut self.books[container];
                if b.alive && b.attempt == attempt && !b.running {
                    (b.alive, b.ever_tried, b.kill, b.signalled) = (false, true, None, None);
                }
            }
            Event::Exited { container, attempt, ref exit } => {
                let b = &mut self.books[container];
                if b.alive && b.attempt == attempt {
                    let told = b.signalled.is_some() || b.pre_stop != HookHistory::NotRun;
                    let reason = b.kill.map(|k| k.reason);
                    let killed_for = reason.filter(|&r| r != KillReason::PodStop || told);
                    (b.alive, b.running, b.ever_ran, b.ever_tried) = (false, false, true, true);
                    b.used = true;
                    b.ever_completed |= !exit.failed();
                    let (code, failed, at) = (exit.code, exit.failed(), exit.finished_at);
                    b.exit = Some(ExitHistory { code, failed, at, killed_for });
                    (b.kill, b.signalled) = (None, None);
                }
            }
            Event::Lost { container, attempt } => {
                let b = &mut self.books[container];
                if b.attempt == attempt {
                    b.running = false;
                }
            }
            Event::Probed { container, attempt, kind, outcome, .. } => {
                let b = &mut self.books[container];
                if b.running
                    && b.attempt == attempt
                    && let Some(p) = self.plan.containers[container].probe(kind)
                {
                    let book = &mut b.probes[kind as usize];
                    match outcome {
                        ProbeOutcome::Success => {
                            (book.good_in_a_row, book.bad_in_a_row) = (book.good_in_a_row + 1, 0);
                            book.good |= book.good_in_a_row >= p.success_threshold;
                        }
                        ProbeOutcome::Failure => {
                            (book.good_in_a_row, book.bad_in_a_row) = (0, book.bad_in_a_row + 1);
                            book.good &= book.bad_in_a_row < p.failure_threshold;
                        }
                        ProbeOutcome::Error => {}
                    }
                }
                self.note_state(container);
            }
            Event::HookEnded { container, attempt, hook, ref error } => {
                if self.books[container].attempt == attempt {
                    let how = if error.is_none() { HookHistory::Succeeded } else { HookHistory::Failed };
                    self.hook_ended(container, hook, how);
                }
                self.note_state(container);
            }
            Event::SandboxFailed { .. }
            | Event::ImageChanged { .. }
            | Event::RestartRequested { .. }
            | Event::VolumeMeasured { .. } => {}
        }
    }

    fn step(&mut self, _: &Plan, obs: &Observation, decision: &Decision, now: Time) {
        for action in &decision.actions {
            self.action(action, now);
        }
        // Actions of one decision are based on the same observation, so the records change only after all of
        // them.
        for action in &decision.actions {
            if let Action::Pull { container } = *action {
                self.books[container].no_image = false;
            }
        }
        if self.over != obs.over {
            self.broken(5, now, "the pod is over without saying so".into());
        }
        if !self.over && decision.wake.is_some_and(|at| at <= now) {
            self.broken(3, now, "the engine wants to be woken in the past".into());
        }
        if self.stop.is_none() && self.rerun.is_none() && self.all_done() && !self.runs_on(now) {
            self.broken(3, now, "all mains have finished, and the pod keeps running".into());
        }
        self.check_reasons(decision, now);
        for i in 0..self.books.len() {
            if self.books[i].alive != obs.containers[i].state.is_alive() {
                let name = self.name(i);
                self.broken(5, now, format!("the engine is wrong about `{name}` being alive"));
            }
        }
    }

    fn updated(&mut self, nth: usize, plan: &Plan, _: &Observation, _: &[Change], now: Time) {
        let Some((_, expected)) = self.updates.get(nth) else {
            return self.broken(6, now, "the pod was changed without a request".into());
        };
        if plan != expected {
            self.broken(6, now, "the pod was changed into another than was asked for".into());
        }
        self.plan = expected;
        self.before = before(expected);
        self.books.resize(expected.containers.len(), ContainerHistory::default());
    }

    fn restarted(&mut self, _: &Plan, _: &Observation, _: Time) {
        for i in 0..self.books.len() {
            // The result of a hook that ran while the agent was down is unknown. The hook does not run again
            // (G-45).
            for hook in [HookKind::PostStart, HookKind::FirstPreStop, HookKind::PreStop] {
                self.hook_ended(i, hook, HookHistory::Succeeded);
            }
            self.note_state(i);
        }
    }

    fn over(&mut self, plan: &Plan, obs: &Observation, running: &[usize], now: Time) {
        if !self.over {
            let waits = running.iter().map(|&i| self.name(i)).collect::<Vec<_>>().join(", ");
            self.broken(3, now, format!("the pod never ended; running: {waits}"));
        } else if !outrigger_lifecycle::phase(plan, obs).is_terminal() {
            self.broken(3, now, "the pod is over and its phase is not terminal".into());
        } else {
            for &i in running {
                let name = self.name(i);
                self.broken(5, now, format!("`{name}` runs although the pod is over"));
            }
        }
    }
}
