//! The trace: the ordered record of everything that happened to a pod.
//!
//! One format for `run --events`, `timeline`, `simulate` and tests; docs/trace.md describes it for users. The
//! [`Recorder`] sees events and decisions and writes one [`Entry`] per transition (G-50); events that changed
//! nothing (late, repeated) leave no entry.

mod kind;
mod text;

pub use kind::Kind;

use serde_json::{Map, Value, json};

use crate::action::{Action, Event, ProbeOutcome};
use crate::decision::{Decision, Wait};
use crate::engine::Change;
use crate::explain::explain_stop;
use crate::observation::{Hook, HookKind, Image, Observation, RerunCause, SandboxState, State, Verdict};
use crate::plan::{Gate, Need, Plan, ProbeKind, Role};
use crate::rules;
use crate::status::{Phase, phase};
use crate::time::Time;

/// One thing that happened to a pod.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// When.
    pub time: Time,
    /// The container; `None` for the pod as a whole.
    pub container: Option<usize>,
    /// The event, in kebab case: `starting`, `exited`, …; the name of a [`Kind`].
    pub event: &'static str,
    /// The details, depending on the event.
    pub fields: Map<String, Value>,
}

/// The containers of a plan with their roles, in its order: the reader of a trace cannot see them from the
/// events.
pub fn containers(plan: &Plan) -> Value {
    plan.containers.iter().map(|c| json!({"name": c.name, "role": c.role.name()})).collect()
}

/// The first entry of a trace that is written to a file: the containers of the pod.
pub fn planned(plan: &Plan, time: Time) -> Entry {
    let fields = [("containers".to_owned(), containers(plan))].into_iter().collect();
    Entry { time, container: None, event: Kind::Planned.name(), fields }
}

impl Entry {
    /// The entry as one JSON object: `time`, `pod`, `container` if there is one, `event`, then the details.
    pub fn to_json(&self, plan: &Plan, pod: &str, time_text: &str) -> Value {
        let mut object = Map::new();
        object.insert("time".into(), time_text.into());
        object.insert("pod".into(), pod.into());
        if let Some(c) = self.container {
            object.insert("container".into(), plan.containers[c].name.as_str().into());
        }
        object.insert("event".into(), self.event.into());
        for (key, value) in &self.fields {
            object.insert(key.clone(), value.clone());
        }
        Value::Object(object)
    }

    /// A detail as text.
    pub fn text(&self, field: &str) -> Option<&str> {
        self.fields.get(field).and_then(Value::as_str)
    }

    /// A detail as a number.
    pub fn number(&self, field: &str) -> Option<i64> {
        self.fields.get(field).and_then(Value::as_i64)
    }
}

/// Records the trace of one pod.
///
/// Call [`Recorder::on_event`] after every event was applied and [`Recorder::on_step`] after every step.
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
    /// The gate that was last seen closed: the one that opened last, once all are open.
    gate: Option<usize>,
    gate_opened_at: Option<Time>,
}

#[derive(Debug, Clone, Copy, Default)]
struct SeenProbe {
    verdict: Verdict,
    run: u32,
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
    /// For a pod without a trace.
    pub fn new(plan: &Plan) -> Self {
        Recorder {
            sandbox: SandboxState::Absent,
            stop_deadline: None,
            phase: Phase::Pending,
            containers: vec![Seen::new(); plan.containers.len()],
        }
    }

    /// Continues the trace of a pod: everything in `obs` has been recorded.
    pub fn resume(plan: &Plan, obs: &Observation) -> Self {
        let mut recorder = Recorder::new(plan);
        recorder.look(plan, obs, Time(0), None);
        recorder.sandbox = obs.sandbox.state;
        recorder.stop_deadline = obs.stop.map(|s| s.deadline);
        recorder
    }

    /// Records the effects of an event.
    pub fn on_event(&mut self, plan: &Plan, obs: &Observation, event: &Event, now: Time, out: Out<'_>) {
        match event {
            Event::SandboxReady if obs.sandbox.state != self.sandbox => {
                push(out, now, None, Kind::SandboxReady, [])
            }
            Event::SandboxFailed { message } if obs.sandbox.state != self.sandbox => push(
                out,
                now,
                None,
                Kind::SandboxFailed,
                [
                    ("reason", "FailedCreatePodSandBox".into()),
                    ("message", message.as_ref().into()),
                    ("retry_in_ms", obs.sandbox.retry_at.since(now).into()),
                ],
            ),
            Event::SandboxLost if obs.sandbox.state != self.sandbox => {
                push(out, now, None, Kind::SandboxLost, [])
            }
            Event::StopRequested { .. } | Event::NodeShutdown { .. } => self.stop(plan, obs, now, out),
            Event::ImageReady { container }
            | Event::ImageFailed { container, .. }
            | Event::ImageChanged { container } => self.image(obs, *container, event, now, out),
            Event::Started { container, attempt }
            | Event::StartFailed { container, attempt, .. }
            | Event::Exited { container, attempt, .. }
            | Event::Lost { container, attempt } => {
                if self.containers.get(*container).is_some_and(|s| s.attempt == *attempt) {
                    self.life(obs, *container, event, now, out);
                }
            }
            Event::Probed { container, attempt, kind, outcome, message } => {
                if self.containers.get(*container).is_some_and(|s| s.attempt == *attempt && s.running) {
                    let message = message.as_deref();
                    self.probe(plan, obs, *container, *kind, *outcome, message, now, out);
                }
            }
            Event::HookEnded { container, attempt, hook, error } => {
                let ran = |s: &Seen| s.attempt == *attempt && s.hooks[*hook as usize];
                if self.containers.get(*container).is_some_and(ran) {
                    hook_ended(*container, *attempt, *hook, error.as_deref(), now, out);
                }
            }
            Event::SandboxReady
            | Event::SandboxFailed { .. }
            | Event::SandboxLost
            | Event::RestartRequested { .. }
            | Event::VolumeMeasured { .. } => {}
        }
        self.look(plan, obs, now, Some(out));
    }

    /// Records the effects of an update of the pod.
    pub fn on_update(&mut self, plan: &Plan, obs: &Observation, changes: &[Change], now: Time, out: Out<'_>) {
        for change in changes {
            if let Change::Image { container, .. } = *change {
                self.image(obs, container, &Event::ImageChanged { container }, now, out);
            }
        }
        self.containers.resize(plan.containers.len(), Seen::new());
        self.look(plan, obs, now, Some(out));
    }

    /// Records the actions of a step, and new reasons for waiting.
    pub fn on_step(&mut self, plan: &Plan, obs: &Observation, decision: &Decision, now: Time, out: Out<'_>) {
        for action in &decision.actions {
            self.action(plan, obs, action, now, out);
        }
        self.look(plan, obs, now, Some(&mut *out));
        for (i, seen) in self.containers.iter_mut().enumerate() {
            let wait = decision.wait_of(i);
            if wait == seen.wait {
                continue;
            }
            seen.wait = wait;
            // These two were just recorded as `hook-started` and `terminating`.
            if let Some(wait) = wait
                && !matches!(wait, Wait::Hook { .. } | Wait::Stopping { .. })
            {
                out.push(Entry {
                    time: now,
                    container: Some(i),
                    event: Kind::Waiting.name(),
                    fields: text::wait(plan, obs, i, wait, now),
                });
            }
        }
    }

    fn action(&mut self, plan: &Plan, obs: &Observation, action: &Action, now: Time, out: Out<'_>) {
        match *action {
            Action::CreateSandbox { attempt } => {
                let changed = (attempt > 0).then_some("SandboxChanged");
                push(
                    out,
                    now,
                    None,
                    Kind::SandboxCreating,
                    [("attempt", attempt.into()), ("reason", changed.into())],
                );
            }
            Action::Pull { container } => {
                self.containers[container].pulling = true;
                push(out, now, Some(container), Kind::Pulling, [("reason", "Pulling".into())]);
            }
            Action::Start { container, attempt } => self.starting(plan, obs, container, attempt, now, out),
            Action::RunHook { container, attempt, hook, deadline } => {
                self.containers[container].hooks[hook as usize] = true;
                let limit = deadline.map(|at| at.since(now));
                push(
                    out,
                    now,
                    Some(container),
                    Kind::HookStarted,
                    [
                        ("hook", text::hook_name(hook).into()),
                        ("attempt", attempt.into()),
                        ("limit_ms", limit.into()),
                    ],
                );
            }
            Action::CancelHook { container, attempt, hook } => {
                self.containers[container].hooks[hook as usize] = false;
                push(
                    out,
                    now,
                    Some(container),
                    Kind::HookCancelled,
                    [("hook", text::hook_name(hook).into()), ("attempt", attempt.into())],
                );
            }
            Action::Probe { .. } => {}
            Action::Terminate { container, attempt, kill_at } => push(
                out,
                now,
                Some(container),
                Kind::Terminating,
                [("attempt", attempt.into()), ("kill_in_ms", kill_at.since(now).into())],
            ),
            Action::Kill { container, attempt } => {
                let late = obs.stop.is_some_and(|s| s.grace_ms > 0 && now >= s.deadline);
                push(
                    out,
                    now,
                    Some(container),
                    Kind::Killing,
                    [("attempt", attempt.into()), ("reason", late.then_some("ExceededGracePeriod").into())],
                );
            }
            Action::BeginKill { container, reason, deadline } => push(
                out,
                now,
                Some(container),
                Kind::KillBegun,
                [
                    ("attempt", self.containers[container].attempt.into()),
                    ("reason", "Killing".into()),
                    ("cause", text::kebab(&reason).into()),
                    ("message", reason.why().into()),
                    ("grace_ms", deadline.since(now).into()),
                ],
            ),
            Action::BeginStop { .. } => self.stop(plan, obs, now, out),
            Action::BeginRerun { cause, deadline } => {
                let (cause, container) = match cause {
                    RerunCause::Rule { container } => ("rule", Some(container)),
                    RerunCause::Sandbox => ("sandbox", None),
                    RerunCause::Requested => ("requested", None),
                };
                let wait = obs.rerun.map_or(0, |r| r.not_before.since(now));
                push(
                    out,
                    now,
                    container,
                    Kind::RerunBegun,
                    [
                        ("cause", cause.into()),
                        ("grace_ms", deadline.since(now).into()),
                        ("not_before_ms", wait.into()),
                    ],
                );
            }
            Action::Rerun => push(out, now, None, Kind::Rerun, []),
            Action::Finish => {
                self.phase(plan, obs, now, Some(&mut *out));
                push(out, now, None, Kind::Finished, [("phase", self.phase.name().into())]);
            }
        }
    }

    fn phase(&mut self, plan: &Plan, obs: &Observation, now: Time, out: Option<Out<'_>>) {
        let to = phase(plan, obs);
        let from = std::mem::replace(&mut self.phase, to);
        if let Some(out) = out
            && from != to
        {
            push(out, now, None, Kind::Phase, [("from", from.name().into()), ("to", to.name().into())]);
        }
    }

    fn starting(&mut self, plan: &Plan, obs: &Observation, i: usize, attempt: u32, now: Time, out: Out<'_>) {
        let named = |on: usize, need: Need| json!({"container": plan.containers[on].name, "need": need});
        let first = !obs.containers[i].was_run;
        let gates = &plan.containers[i].gates;
        let after: Vec<Value> =
            gates.iter().filter(|g| g.every_start || first).map(|g| named(g.on, g.need)).collect();
        let seen = &mut self.containers[i];
        let last = seen.gate.take().map(|g| named(gates[g].on, gates[g].need));
        let opened = seen.gate_opened_at.take().map(|at| now.since(at));
        (seen.attempt, seen.alive) = (attempt, true);
        let restarts = obs.containers[i].restarts;
        push(
            out,
            now,
            Some(i),
            Kind::Starting,
            [
                ("attempt", attempt.into()),
                ("restarts", (restarts > 0).then_some(restarts).into()),
                ("after", if after.is_empty() { Value::Null } else { after.into() }),
                ("opened_last", last.into()),
                ("opened_ms_ago", opened.into()),
            ],
        );
    }

    fn stop(&mut self, plan: &Plan, obs: &Observation, now: Time, out: Out<'_>) {
        let Some(stop) = &obs.stop else { return };
        match self.stop_deadline {
            None => {
                let (cause, container, on) = text::stop(stop.cause);
                let name = |i: usize| plan.containers[i].name.as_str();
                let running = obs.containers.iter().filter(|c| c.state.is_alive()).count();
                push(
                    out,
                    now,
                    None,
                    Kind::StopBegun,
                    [
                        ("cause", cause.into()),
                        ("because_of", container.map(name).into()),
                        ("waited_for", on.map(name).into()),
                        ("grace_ms", stop.grace_ms.into()),
                        ("running", running.into()),
                        ("message", explain_stop(plan, obs, stop.cause).into()),
                    ],
                );
            }
            Some(deadline) if stop.deadline < deadline => {
                let left = stop.deadline.since(now);
                push(out, now, None, Kind::StopShortened, [("left_ms", left.into())]);
            }
            Some(_) => {}
        }
        self.stop_deadline = Some(stop.deadline);
    }

    fn image(&mut self, obs: &Observation, i: usize, event: &Event, now: Time, out: Out<'_>) {
        let (Some(seen), Some(c)) = (self.containers.get_mut(i), obs.containers.get(i)) else {
            return;
        };
        match (event, &c.image) {
            (Event::ImageReady { .. }, Image::Present) if seen.pulling => {
                push(out, now, Some(i), Kind::Pulled, [("reason", "Pulled".into())]);
            }
            (_, Image::Failed { reason, message, retry_at }) if seen.pulling => push(
                out,
                now,
                Some(i),
                Kind::PullFailed,
                [
                    ("reason", "Failed".into()),
                    ("error", reason.as_ref().into()),
                    ("message", message.as_ref().into()),
                    ("retry_in_ms", retry_at.since(now).into()),
                ],
            ),
            (Event::ImageChanged { .. }, _) if c.image == Image::Unknown => {
                push(out, now, Some(i), Kind::ImageChanged, [])
            }
            _ => {}
        }
        seen.pulling = false;
    }

    /// Start and end of an instance.
    fn life(&mut self, obs: &Observation, i: usize, event: &Event, now: Time, out: Out<'_>) {
        let (seen, c) = (&self.containers[i], &obs.containers[i]);
        match event {
            Event::Started { attempt, .. } if !seen.running && c.running_since().is_some() => {
                push(
                    out,
                    now,
                    Some(i),
                    Kind::Started,
                    [("attempt", (*attempt).into()), ("reason", "Started".into())],
                );
            }
            Event::StartFailed { attempt, reason, message, .. } if seen.alive && !c.state.is_alive() => {
                let retry = c.start_failure.as_ref().map(|f| f.retry_at.since(now));
                push(
                    out,
                    now,
                    Some(i),
                    Kind::StartFailed,
                    [
                        ("attempt", (*attempt).into()),
                        ("reason", "Failed".into()),
                        ("error", reason.as_ref().into()),
                        ("message", message.as_ref().into()),
                        ("retry_in_ms", retry.into()),
                    ],
                );
            }
            Event::Exited { attempt, .. } if seen.alive && c.state == State::Exited => {
                let Some(exit) = &c.exit else { return };
                let ran = exit.started_at.map(|at| exit.finished_at.since(at));
                push(
                    out,
                    now,
                    Some(i),
                    Kind::Exited,
                    [
                        ("attempt", (*attempt).into()),
                        ("code", exit.code.into()),
                        ("signal", exit.signal.into()),
                        ("reason", exit.reason.name().into()),
                        ("message", exit.message.as_deref().into()),
                        ("ran_ms", ran.into()),
                        ("killed_for", exit.killed_for.map(|k| text::kebab(&k)).into()),
                    ],
                );
            }
            Event::Lost { attempt, .. } if seen.alive && !seen.unknown => {
                push(out, now, Some(i), Kind::Lost, [("attempt", (*attempt).into())]);
            }
            _ => {}
        }
    }

    /// Records probe attempts with new information: the first failure in a row, every failure that counts
    /// towards a result not yet reached, every change of the result, and the success that ends a row of
    /// failures.
    #[expect(clippy::too_many_arguments, reason = "the fields of one event")]
    fn probe(
        &mut self,
        plan: &Plan,
        obs: &Observation,
        i: usize,
        kind: ProbeKind,
        outcome: ProbeOutcome,
        message: Option<&str>,
        now: Time,
        out: Out<'_>,
    ) {
        let (seen, after) = (&mut self.containers[i].probes[kind as usize], obs.containers[i].probe(kind));
        let failed = outcome != ProbeOutcome::Success;
        let turned = after.verdict != seen.verdict;
        let counted = after.run > seen.run && after.verdict != Verdict::Failure;
        let news = turned || failed != seen.failing || (failed && counted);
        *seen = SeenProbe { verdict: after.verdict, run: after.run, failing: failed };
        if !news {
            return;
        }
        let counting = if after.last_ok == Some(false) { after.run } else { 0 };
        let probe = plan.containers[i].probe(kind);
        let threshold = probe.map(|p| p.failure_threshold);
        push(
            out,
            now,
            Some(i),
            Kind::Probe,
            [
                ("kind", kind.name().into()),
                ("outcome", text::kebab(&outcome).into()),
                ("reason", failed.then_some("Unhealthy").into()),
                ("message", message.into()),
                ("failures", failed.then_some(after.failures).into()),
                ("counted", failed.then_some(counting).into()),
                ("threshold", threshold.filter(|_| failed).into()),
                ("period_ms", probe.map(|p| p.period_ms).into()),
                ("verdict", turned.then(|| text::kebab(&after.verdict)).into()),
            ],
        );
    }

    /// Compares the observation with the last recorded state, and records changes that are not events
    /// themselves.
    fn look(&mut self, plan: &Plan, obs: &Observation, now: Time, mut out: Option<Out<'_>>) {
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
                    push(out, now, Some(i), Kind::StartupPassed, []);
                }
                if ready && !seen.ready {
                    push(out, now, Some(i), Kind::Ready, []);
                }
                if !ready && seen.ready {
                    push(out, now, Some(i), Kind::Unready, []);
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

fn hook_ended(i: usize, attempt: u32, hook: HookKind, error: Option<&str>, now: Time, out: Out<'_>) {
    let reason = error.map(|_| match hook {
        HookKind::PostStart => "FailedPostStartHook",
        HookKind::PreStop | HookKind::FirstPreStop => "FailedPreStopHook",
    });
    push(
        out,
        now,
        Some(i),
        Kind::HookEnded,
        [
            ("hook", text::hook_name(hook).into()),
            ("attempt", attempt.into()),
            ("reason", reason.into()),
            ("error", error.into()),
        ],
    );
}

/// Adds an entry; details without a value are left out.
fn push<const N: usize>(
    out: &mut Vec<Entry>,
    time: Time,
    container: Option<usize>,
    event: Kind,
    details: [(&str, Value); N],
) {
    let fields = details
        .into_iter()
        .filter(|(_, value)| !value.is_null())
        .map(|(key, value)| (key.to_string(), value))
        .collect();
    out.push(Entry { time, container, event: event.name(), fields });
}
