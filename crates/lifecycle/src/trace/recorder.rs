//! Derives the entries of the trace from events, decisions and observations.

use super::event::{ContainerEvent, IgnoredBecause, KillingReason, OpenedGate, PodEvent, RerunReason};
use super::{Entry, wait};
use crate::action::{Action, Event, ProbeOutcome};
use crate::decision::{Decision, Wait};
use crate::engine::Change;
use crate::observation::{Hook, HookKind, Image, Observation, RerunCause, SandboxState, State, Verdict};
use crate::plan::{Gate, Need, Plan, ProbeKind, Role};
use crate::rules;
use crate::status::{Phase, phase, was_stopped};
use crate::time::Time;

/// Records the trace of one pod.
///
/// Call [`Recorder::on_event`] after every applied event, and [`Recorder::on_step`] after every step.
#[derive(Debug, Clone)]
pub struct Recorder {
    sandbox: SandboxState,
    stop_deadline: Option<Time>,
    phase: Phase,
    containers: Vec<Seen>,
}

/// The last recorded state of a container.
#[derive(Debug, Clone)]
struct Seen {
    attempt: u32,
    alive: bool,
    running: bool,
    unknown: bool,
    startup_passed: bool,
    ready: bool,
    pulling: bool,
    hooks: [bool; 3],
    probes: [SeenProbe; 3],
    wait: Option<Wait>,
    /// The gate that was last closed. Once all gates are open, it is the gate that opened last.
    gate: Option<usize>,
    gate_opened_at: Option<Time>,
}

#[derive(Debug, Clone, Copy, Default)]
struct SeenProbe {
    verdict: Verdict,
    run: u32,
    errors: u32,
    failing: bool,
}

impl Seen {
    fn new() -> Self {
        Seen {
            attempt: 0,
            alive: false,
            running: false,
            unknown: false,
            startup_passed: false,
            ready: false,
            pulling: false,
            hooks: [false; 3],
            probes: [SeenProbe::default(); 3],
            wait: None,
            gate: None,
            gate_opened_at: None,
        }
    }
}

type Out<'a> = &'a mut Vec<Entry>;

impl Recorder {
    /// A recorder for a new pod.
    pub fn new(plan: &Plan) -> Self {
        Recorder {
            sandbox: SandboxState::Absent,
            stop_deadline: None,
            phase: Phase::Pending,
            containers: vec![Seen::new(); plan.containers.len()],
        }
    }

    /// A recorder that continues a trace. Everything in `obs` counts as recorded.
    pub fn resume(plan: &Plan, obs: &Observation) -> Self {
        let mut recorder = Recorder::new(plan);
        recorder.record_changes(plan, obs, Time(0), None);
        recorder.sandbox = obs.sandbox.state;
        recorder.stop_deadline = obs.stop.map(|s| s.deadline);
        recorder
    }

    /// Records what an event changed.
    pub fn on_event(&mut self, plan: &Plan, obs: &Observation, event: &Event, now: Time, out: Out<'_>) {
        match event {
            Event::SandboxReady if obs.sandbox.state != self.sandbox => {
                push_pod(out, now, PodEvent::SandboxReady);
            }
            Event::SandboxFailed { message, cause } if obs.sandbox.state != self.sandbox => {
                let retry_in_ms = obs.stop.is_none().then(|| obs.sandbox.retry_at.since(now));
                let message = message.clone();
                push_pod(out, now, PodEvent::SandboxFailed { message, retry_in_ms, cause: *cause });
            }
            Event::SandboxLost if obs.sandbox.state != self.sandbox => {
                push_pod(out, now, PodEvent::SandboxLost);
            }
            Event::StopRequested { .. }
            | Event::CannotStart { .. }
            | Event::NotRetried { .. }
            | Event::NodeShutdown { .. } => self.stop(plan, obs, now, out),
            Event::ImageReady { container }
            | Event::ImageFailed { container, .. }
            | Event::ImageChanged { container } => self.image(plan, obs, *container, event, now, out),
            Event::Started { container, attempt }
            | Event::StartFailed { container, attempt, .. }
            | Event::Exited { container, attempt, .. }
            | Event::Lost { container, attempt } => {
                if self.containers.get(*container).is_some_and(|s| s.attempt == *attempt) {
                    self.life(plan, obs, *container, event, now, out);
                }
            }
            Event::Probed { container, attempt, kind, .. } => {
                if self.containers.get(*container).is_some_and(|s| s.attempt == *attempt && s.running) {
                    self.probe(plan, obs, *container, *kind, event, now, out);
                }
            }
            Event::HookEnded { container, attempt, hook, error } => {
                let ran = |s: &Seen| s.attempt == *attempt && s.hooks[*hook as usize];
                if self.containers.get(*container).is_some_and(ran) {
                    let (hook, attempt, error) = (*hook, *attempt, error.clone());
                    push_container(out, now, *container, ContainerEvent::HookEnded { hook, attempt, error });
                }
            }
            Event::SandboxReady
            | Event::SandboxFailed { .. }
            | Event::SandboxLost
            | Event::RestartRequested { .. }
            | Event::VolumeMeasured { .. } => {}
        }
        self.record_changes(plan, obs, now, Some(out));
    }

    /// Records what an update of the pod changed.
    pub fn on_update(&mut self, plan: &Plan, obs: &Observation, changes: &[Change], now: Time, out: Out<'_>) {
        for change in changes {
            if let Change::Image { container, .. } = *change {
                self.image(plan, obs, container, &Event::ImageChanged { container }, now, out);
            }
        }
        self.containers.resize(plan.containers.len(), Seen::new());
        self.record_changes(plan, obs, now, Some(out));
    }

    /// Records what a step did, and why containers wait, if that changed.
    pub fn on_step(&mut self, plan: &Plan, obs: &Observation, decision: &Decision, now: Time, out: Out<'_>) {
        for action in &decision.actions {
            self.action(plan, obs, action, now, out);
        }
        self.record_changes(plan, obs, now, Some(&mut *out));
        for (i, seen) in self.containers.iter_mut().enumerate() {
            let wait = decision.wait_of(i);
            if wait == seen.wait {
                continue;
            }
            seen.wait = wait;
            if let Some(event) = wait.and_then(|wait| wait::waiting(plan, obs, i, wait, now)) {
                push_container(out, now, i, event);
            }
        }
    }

    /// Records the output of a hook, if it has any.
    pub fn on_hook_output(&self, container: usize, hook: HookKind, output: &str, now: Time, out: Out<'_>) {
        if !output.is_empty() {
            let event = ContainerEvent::HookOutput { hook, output: output.to_owned() };
            push_container(out, now, container, event);
        }
    }

    /// Records that a container does not react to its stop signal, and will be killed after `kill_in_ms`.
    pub fn on_ignored_signal(
        &self,
        container: usize,
        signal: &str,
        why: IgnoredBecause,
        kill_in_ms: u64,
        now: Time,
        out: Out<'_>,
    ) {
        let event = ContainerEvent::StopSignalIgnored { signal: signal.to_owned(), why, kill_in_ms };
        push_container(out, now, container, event);
    }

    fn action(&mut self, plan: &Plan, obs: &Observation, action: &Action, now: Time, out: Out<'_>) {
        match *action {
            Action::CreateSandbox { attempt } => {
                push_pod(out, now, PodEvent::SandboxCreating { attempt });
            }
            Action::Pull { container } => {
                self.containers[container].pulling = true;
                push_container(out, now, container, ContainerEvent::Pulling);
            }
            Action::Start { container, attempt } => self.starting(plan, obs, container, attempt, now, out),
            Action::RunHook { container, attempt, hook, deadline } => {
                self.containers[container].hooks[hook as usize] = true;
                let limit_ms = deadline.map(|at| at.since(now));
                push_container(out, now, container, ContainerEvent::HookStarted { hook, attempt, limit_ms });
            }
            Action::CancelHook { container, attempt, hook } => {
                self.containers[container].hooks[hook as usize] = false;
                push_container(out, now, container, ContainerEvent::HookCancelled { hook, attempt });
            }
            Action::Probe { .. } => {}
            Action::Terminate { container, attempt, kill_at } => {
                let kill_in_ms = kill_at.since(now);
                push_container(out, now, container, ContainerEvent::Terminating { attempt, kill_in_ms });
            }
            Action::Kill { container, attempt } => {
                let late = obs.stop.is_some_and(|s| s.grace_ms > 0 && now >= s.deadline);
                let reason = late.then_some(KillingReason::ExceededGracePeriod);
                push_container(out, now, container, ContainerEvent::Killing { attempt, reason });
            }
            Action::BeginKill { container, reason, deadline } => {
                let event = ContainerEvent::KillBegun {
                    attempt: self.containers[container].attempt,
                    cause: reason,
                    message: reason.why().to_owned(),
                    grace_ms: deadline.since(now),
                };
                push_container(out, now, container, event);
            }
            Action::BeginStop { .. } => self.stop(plan, obs, now, out),
            Action::BeginRerun { cause, deadline } => {
                let (cause, container) = match cause {
                    RerunCause::Rule { container } => (RerunReason::Rule, Some(container)),
                    RerunCause::Sandbox => (RerunReason::Sandbox, None),
                    RerunCause::Requested => (RerunReason::Requested, None),
                };
                let not_before_ms = obs.rerun.map_or(0, |r| r.not_before.since(now));
                let grace_ms = deadline.since(now);
                let event = PodEvent::RerunBegun { cause, grace_ms, not_before_ms }.into();
                out.push(Entry { time: now, container, event });
            }
            Action::Rerun => push_pod(out, now, PodEvent::Rerun),
            Action::Finish => {
                self.phase(plan, obs, now, Some(&mut *out));
                let stopped = was_stopped(plan, obs);
                push_pod(out, now, PodEvent::Finished { phase: self.phase, stopped });
            }
        }
    }

    fn phase(&mut self, plan: &Plan, obs: &Observation, now: Time, out: Option<Out<'_>>) {
        let to = phase(plan, obs);
        let from = std::mem::replace(&mut self.phase, to);
        if let Some(out) = out
            && from != to
        {
            push_pod(out, now, PodEvent::Phase { from, to });
        }
    }

    fn starting(&mut self, plan: &Plan, obs: &Observation, i: usize, attempt: u32, now: Time, out: Out<'_>) {
        let named = |on: usize, need: Need| OpenedGate { container: plan.containers[on].name.clone(), need };
        let first = !obs.containers[i].was_run;
        let gates = &plan.containers[i].gates;
        let seen = &mut self.containers[i];
        (seen.attempt, seen.alive) = (attempt, true);
        let restarts = obs.containers[i].restarts;
        let event = ContainerEvent::Starting {
            attempt,
            restarts: (restarts > 0).then_some(restarts),
            after: gates.iter().filter(|g| g.every_start || first).map(|g| named(g.on, g.need)).collect(),
            opened_last: seen.gate.take().map(|g| named(gates[g].on, gates[g].need)),
            opened_ms_ago: seen.gate_opened_at.take().map(|at| now.since(at)),
        };
        push_container(out, now, i, event);
    }

    fn stop(&mut self, plan: &Plan, obs: &Observation, now: Time, out: Out<'_>) {
        let Some(stop) = &obs.stop else { return };
        match self.stop_deadline {
            None => push_pod(out, now, wait::stop_begun(plan, obs, stop)),
            Some(deadline) if stop.deadline < deadline => {
                push_pod(out, now, PodEvent::StopShortened { left_ms: stop.deadline.since(now) });
            }
            Some(_) => {}
        }
        self.stop_deadline = Some(stop.deadline);
    }

    fn image(&mut self, plan: &Plan, obs: &Observation, i: usize, event: &Event, now: Time, out: Out<'_>) {
        let (Some(seen), Some(c)) = (self.containers.get_mut(i), obs.containers.get(i)) else {
            return;
        };
        match (event, &c.image) {
            (Event::ImageReady { .. }, Image::Present) if seen.pulling => {
                push_container(out, now, i, ContainerEvent::Pulled);
            }
            (_, Image::Failed { reason, message, retry_at }) if seen.pulling => {
                let failed = ContainerEvent::PullFailed {
                    error: reason.clone(),
                    message: message.clone(),
                    retry_in_ms: may_retry(plan, obs, i).then(|| retry_at.since(now)),
                    cause: match event {
                        Event::ImageFailed { cause, .. } => *cause,
                        _ => None,
                    },
                };
                push_container(out, now, i, failed);
            }
            (Event::ImageChanged { .. }, _) if c.image == Image::Unknown => {
                push_container(out, now, i, ContainerEvent::ImageChanged);
            }
            _ => {}
        }
        seen.pulling = false;
    }

    /// Start and end of an instance.
    fn life(&mut self, plan: &Plan, obs: &Observation, i: usize, event: &Event, now: Time, out: Out<'_>) {
        let (seen, c) = (&self.containers[i], &obs.containers[i]);
        match event {
            Event::Started { attempt, .. } if !seen.running && c.running_since().is_some() => {
                push_container(out, now, i, ContainerEvent::Started { attempt: *attempt });
            }
            Event::StartFailed { attempt, reason, message, cause, .. }
                if seen.alive && !c.state.is_alive() =>
            {
                let event = ContainerEvent::StartFailed {
                    attempt: *attempt,
                    error: reason.clone(),
                    message: message.clone(),
                    retry_in_ms: c
                        .start_failure
                        .as_ref()
                        .filter(|_| may_retry(plan, obs, i))
                        .map(|f| f.retry_at.since(now)),
                    cause: *cause,
                };
                push_container(out, now, i, event);
            }
            Event::Exited { attempt, .. } if seen.alive && c.state == State::Exited => {
                let Some(exit) = &c.exit else { return };
                let event = ContainerEvent::Exited {
                    attempt: *attempt,
                    code: exit.code,
                    signal: exit.signal,
                    reason: Some(exit.reason),
                    message: exit.message.clone(),
                    ran_ms: exit.started_at.map(|at| exit.finished_at.since(at)),
                    killed_for: exit.killed_for,
                };
                push_container(out, now, i, event);
            }
            Event::Lost { attempt, .. } if seen.alive && !seen.unknown => {
                push_container(out, now, i, ContainerEvent::Lost { attempt: *attempt });
            }
            _ => {}
        }
    }

    /// Records probe attempts that are worth reporting: the first failure in a row, every failure that counts
    /// before there is a verdict, every change of the verdict, and the success that ends a row of failures.
    /// Errors are recorded once, when as many failures would have made a verdict.
    #[expect(clippy::too_many_arguments, reason = "the fields of one event")]
    fn probe(
        &mut self,
        plan: &Plan,
        obs: &Observation,
        i: usize,
        kind: ProbeKind,
        event: &Event,
        now: Time,
        out: Out<'_>,
    ) {
        let Event::Probed { outcome, message, cause, .. } = event else { return };
        let outcome = *outcome;
        let (seen, after) = (&mut self.containers[i].probes[kind as usize], obs.containers[i].probe(kind));
        let failed = outcome != ProbeOutcome::Success;
        let turned = after.verdict != seen.verdict;
        let counted = after.run > seen.run && after.verdict != Verdict::Failure;
        let probe = plan.containers[i].probe(kind);
        // There are now as many errors as failures that would make a verdict, so a user must be told.
        let stuck = after.errors > seen.errors && probe.is_some_and(|p| after.errors == p.failure_threshold);
        let news = turned || failed != seen.failing || (failed && counted) || stuck;
        *seen = SeenProbe { verdict: after.verdict, run: after.run, errors: after.errors, failing: failed };
        if !news {
            return;
        }
        let counting = match outcome {
            ProbeOutcome::Error => after.errors,
            _ if after.last_ok == Some(false) => after.run,
            _ => 0,
        };
        let event = ContainerEvent::Probe {
            kind,
            outcome,
            message: message.clone(),
            failures: failed.then_some(after.failures),
            counted: failed.then_some(counting),
            threshold: probe.map(|p| p.failure_threshold).filter(|_| failed),
            period_ms: probe.map(|p| p.period_ms),
            verdict: turned.then_some(after.verdict),
            cause: *cause,
        };
        push_container(out, now, i, event);
    }

    /// Compares the observation with the last recorded state, and records changes that follow from events
    /// without being events themselves.
    fn record_changes(&mut self, plan: &Plan, obs: &Observation, now: Time, mut out: Option<Out<'_>>) {
        self.sandbox = obs.sandbox.state;
        for (i, (p, c)) in plan.containers.iter().zip(&obs.containers).enumerate() {
            let seen = &mut self.containers[i];
            let running = c.running_since().is_some();
            let same = running && seen.running && seen.attempt == c.attempt;
            if !same {
                seen.probes = Default::default();
                (seen.startup_passed, seen.ready) = (false, false);
            }
            let startup_passed = p.probe(ProbeKind::Startup).is_some() && rules::is_started(p, c);
            let ready = p.role != Role::Init && rules::is_ready(p, c);
            if let Some(out) = &mut out {
                if startup_passed && !seen.startup_passed {
                    push_container(out, now, i, ContainerEvent::StartupPassed);
                }
                if ready && !seen.ready {
                    push_container(out, now, i, ContainerEvent::Ready);
                }
                if !ready && seen.ready {
                    push_container(out, now, i, ContainerEvent::Unready);
                }
            }
            (seen.attempt, seen.running, seen.alive) = (c.attempt, running, c.state.is_alive());
            (seen.startup_passed, seen.ready, seen.unknown) =
                (startup_passed, ready, c.state == State::Unknown);
            for hook in [HookKind::PostStart, HookKind::PreStop, HookKind::FirstPreStop] {
                seen.hooks[hook as usize] = matches!(c.hook(hook), Hook::Running { .. });
            }
            if !c.state.is_alive() && !p.gates.is_empty() {
                let asked = |g: &Gate| rules::gate_is_asked(g, c);
                let closed = p.gates.iter().rposition(|g| asked(g) && !rules::gate_open(plan, obs, i, g));
                match closed {
                    Some(_) => (seen.gate, seen.gate_opened_at) = (closed, None),
                    None if seen.gate.is_some() => {
                        seen.gate_opened_at.get_or_insert(now);
                    }
                    None => {}
                }
            }
        }
        self.phase(plan, obs, now, out);
    }
}

/// Whether what failed may be tried again: a stopping pod starts nothing but sidecars.
fn may_retry(plan: &Plan, obs: &Observation, i: usize) -> bool {
    obs.stop.is_none() || plan.containers[i].role == Role::Sidecar
}

/// Adds an entry about the pod.
fn push_pod(out: &mut Vec<Entry>, time: Time, event: PodEvent) {
    out.push(Entry { time, container: None, event: event.into() });
}

/// Adds an entry about a container.
fn push_container(out: &mut Vec<Entry>, time: Time, container: usize, event: ContainerEvent) {
    out.push(Entry { time, container: Some(container), event: event.into() });
}
