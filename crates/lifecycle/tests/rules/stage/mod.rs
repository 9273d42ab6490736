//! A harness for the unit tables of docs/internals/spec/kubelet-lifecycle.md, section 12. A row has a pod in
//! a given state, one decision, and the actions in the notation of the tables.
//!
//! The kubelet kills and starts in one sync. Here, a start follows only when the kill is known to have
//! worked. The harness therefore simulates a perfect runtime: images are present, sandboxes are created and
//! signals work at once. Mains start at once (R1.5: all in one sync), but init entries do not (R1.4: at most
//! one new entry per sync).
#![allow(unreachable_pub, reason = "a test program has no outside")]

use k8s_openapi::api::core::v1::Pod;
use outrigger_lifecycle::{
    Action, ContainerPlan, Decision, Engine, Event, Exit, ExitReason, FeatureGates, Image, KillReason,
    Observation, Plan, PodInput, ProbeKind, ProbeOutcome, Role, SandboxState, StartFailure, State, Time,
    Verdict, plan,
};
use serde_json::{Value, json};

pub const NOW: Time = Time(1_000_000);
const BEFORE: Time = Time(900_000);

/// The plan of a pod spec.
pub fn planned(spec: Value) -> Plan {
    let mut spec = spec;
    for list in ["initContainers", "containers"] {
        for c in spec[list].as_array_mut().into_iter().flatten() {
            c["image"] = json!("image");
        }
    }
    let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "pod"}, "spec": spec})).expect("a pod");
    let input = PodInput { pod, ..Default::default() };
    plan(&input, &FeatureGates::default()).unwrap_or_else(|e| panic!("refused: {e:#?}")).plan
}

/// A probe as the tables use it.
pub fn probe() -> Value {
    json!({"exec": {"command": ["true"]}, "failureThreshold": 3, "periodSeconds": 10})
}

/// Adds an ephemeral container, as `kubectl debug` does.
pub fn add_ephemeral(plan: &mut Plan, name: &str) {
    let mut c: ContainerPlan = plan.containers[plan.containers.len() - 1].clone();
    c.name = name.into();
    (c.role, c.keeps_alive) = (Role::Ephemeral, false);
    c.counts = outrigger_lifecycle::Counts::No;
    c.restart.policy = outrigger_lifecycle::RestartPolicy::Never;
    c.gates.clear();
    plan.stop_order.push(plan.containers.len());
    plan.containers.push(c);
}

/// The state of a pod, in the notation of the tables.
pub struct Stage {
    pub plan: Plan,
    pub obs: Observation,
}

impl Stage {
    /// The sandbox is ready, images are present, and no container has a record.
    pub fn new(plan: Plan) -> Stage {
        let mut obs = Observation::new(&plan, BEFORE);
        obs.sandbox.state = SandboxState::Ready;
        for c in &mut obs.containers {
            c.image = Image::Present;
        }
        Stage { plan, obs }
    }

    fn index(&self, name: &str) -> usize {
        self.plan.find(name).unwrap_or_else(|| panic!("no container {name}"))
    }

    /// These containers are `running`, and all their probes have succeeded.
    pub fn running(&mut self, names: &[&str]) -> &mut Self {
        for name in names {
            let i = self.index(name);
            let c = &mut self.obs.containers[i];
            c.state = State::Running { since: BEFORE };
            (c.was_run, c.was_launched, c.was_started, c.was_ready) = (true, true, true, true);
            (c.exit, c.was_completed) = (None, false);
            for kind in ProbeKind::ALL {
                if self.plan.containers[i].probe(kind).is_some() {
                    c.probes[kind as usize].verdict = Verdict::Success;
                    c.probes[kind as usize].next_at = NOW + 60_000;
                }
            }
        }
        self
    }

    /// The container has `exited` with this code. It was started before, unless it is an init container.
    pub fn exited(&mut self, name: &str, code: i32) -> &mut Self {
        let i = self.index(name);
        let c = &mut self.obs.containers[i];
        c.state = State::Exited;
        (c.was_run, c.was_launched, c.was_completed) = (true, true, code == 0);
        c.was_started = self.plan.containers[i].role != Role::Init;
        c.exit = Some(exit(code));
        self
    }

    /// Resets the container to before it was ever *passed* (R1.3).
    pub fn never_passed(&mut self, name: &str) -> &mut Self {
        let i = self.index(name);
        (self.obs.containers[i].was_started, self.obs.containers[i].was_ready) = (false, false);
        self
    }

    /// The container is `created` in the runtime, but not running. Here this is a start that was refused and
    /// is due again.
    pub fn created(&mut self, name: &str) -> &mut Self {
        self.no_record(name);
        let i = self.index(name);
        let c = &mut self.obs.containers[i];
        c.was_launched = true;
        c.start_failure = Some(StartFailure {
            reason: "RunContainerError".into(),
            message: "created, not started".into(),
            retry_at: NOW,
            failures: 1,
        });
        self
    }

    pub fn unknown(&mut self, name: &str) -> &mut Self {
        let i = self.index(name);
        self.obs.containers[i].state = State::Unknown;
        self
    }

    /// The container has no record: it has not been started.
    pub fn no_record(&mut self, name: &str) -> &mut Self {
        let i = self.index(name);
        let image = self.obs.containers[i].image.clone();
        self.obs.containers[i] = Observation::new(&self.plan, BEFORE).containers[i].clone();
        self.obs.containers[i].image = image;
        self
    }

    /// The runtime no longer has a record, but the container did run. The engine knows that, while the
    /// kubelet guesses it (G-46).
    pub fn record_deleted(&mut self, name: &str) -> &mut Self {
        let i = self.index(name);
        self.obs.containers[i].state = State::Waiting;
        self.obs.containers[i].exit = None;
        self
    }

    pub fn no_sandbox(&mut self) -> &mut Self {
        self.obs.sandbox.state = SandboxState::Absent;
        self
    }

    /// The newest sandbox is not ready.
    pub fn sandbox_lost(&mut self, attempt: u32) -> &mut Self {
        self.obs.sandbox.state = SandboxState::Lost;
        self.obs.sandbox.attempt = attempt;
        self
    }

    pub fn verdict(&mut self, name: &str, kind: ProbeKind, verdict: Verdict) -> &mut Self {
        let i = self.index(name);
        self.obs.containers[i].probes[kind as usize].verdict = verdict;
        self
    }

    /// The spec has a new image.
    pub fn image_changed(&mut self, name: &str) -> &mut Self {
        let container = self.index(name);
        self.obs.apply(&self.plan, &Event::ImageChanged { container }, NOW);
        self
    }

    /// Makes one decision, and returns its actions.
    pub fn look(&mut self) -> Done {
        let mut engine = Engine::resume(self.plan.clone(), self.obs.clone());
        let mut out = Decision::default();
        let mut done = Done::default();
        for _ in 0..100 {
            engine.step(NOW, &mut out);
            let actions = std::mem::take(&mut out.actions);
            if actions.is_empty() {
                self.obs = engine.observation().clone();
                return done;
            }
            for action in &actions {
                done.note(&self.plan, action);
                if let Some(event) = answer(&self.plan, action) {
                    engine.handle(&event, NOW);
                }
            }
        }
        panic!("the pod does not come to rest: {done}");
    }
}

/// The answer of the perfect runtime.
fn answer(plan: &Plan, action: &Action) -> Option<Event> {
    match *action {
        Action::CreateSandbox { .. } => Some(Event::SandboxReady),
        Action::Pull { container } => Some(Event::ImageReady { container }),
        Action::Start { container, attempt } if plan.containers[container].role == Role::Main => {
            Some(Event::Started { container, attempt })
        }
        Action::Terminate { container, attempt, .. } | Action::Kill { container, attempt } => {
            Some(Event::Exited { container, attempt, exit: exit(137) })
        }
        Action::Probe { container, attempt, kind } => Some(Event::Probed {
            container,
            attempt,
            kind,
            outcome: ProbeOutcome::Error,
            message: None,
            cause: None,
        }),
        _ => None,
    }
}

pub fn exit(code: i32) -> Exit {
    Exit {
        code,
        signal: None,
        reason: if code == 0 { ExitReason::Completed } else { ExitReason::Error },
        started_at: Some(BEFORE),
        finished_at: NOW,
        message: None,
        killed_for: None,
    }
}

/// The actions, in the notation of section 12: `kill-pod`, `new-sb(n)`, `K:[…]`, `I:[…]`, `C:[…]`, `E:[…]`.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Done {
    pub kill_pod: bool,
    pub sandbox: Option<u32>,
    pub killed: Vec<String>,
    /// The containers, in the order in which they were told to stop.
    pub stopped: Vec<String>,
    pub init: Vec<usize>,
    pub main: Vec<usize>,
    pub ephemeral: Vec<usize>,
}

impl Done {
    fn note(&mut self, plan: &Plan, action: &Action) {
        match *action {
            Action::BeginStop { .. } | Action::BeginRerun { .. } => self.kill_pod = true,
            Action::CreateSandbox { attempt } => self.sandbox = Some(attempt),
            Action::BeginKill { container, reason, .. }
                if !matches!(reason, KillReason::PodStop | KillReason::Rerun) =>
            {
                self.killed.push(plan.containers[container].name.clone());
            }
            Action::Terminate { container, .. } | Action::Kill { container, .. } => {
                self.stopped.push(plan.containers[container].name.clone());
            }
            Action::Start { container, .. } => {
                let role = |c: &ContainerPlan| match c.role {
                    Role::Main => 1,
                    Role::Ephemeral => 2,
                    Role::Init | Role::Sidecar => 0,
                };
                let kind = role(&plan.containers[container]);
                let place = plan.containers[..container].iter().filter(|c| role(c) == kind).count();
                [&mut self.init, &mut self.main, &mut self.ephemeral][kind].push(place);
            }
            _ => {}
        }
    }
}

impl std::fmt::Display for Done {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let list = |letter: &str, numbers: &[usize]| {
            let mut numbers = numbers.to_vec();
            numbers.sort_unstable();
            let numbers: Vec<String> = numbers.iter().map(ToString::to_string).collect();
            (!numbers.is_empty()).then(|| format!("{letter}:[{}]", numbers.join(",")))
        };
        let parts: Vec<String> = [
            self.kill_pod.then(|| "kill-pod".to_owned()),
            self.sandbox.map(|n| format!("new-sb({n})")),
            (!self.killed.is_empty()).then(|| format!("K:[{}]", self.killed.join(","))),
            list("I", &self.init),
            list("C", &self.main),
            list("E", &self.ephemeral),
        ]
        .into_iter()
        .flatten()
        .collect();
        if parts.is_empty() { f.write_str("–") } else { f.write_str(&parts.join(", ")) }
    }
}

/// One row of a table.
pub struct Row {
    /// Its position in section 12.
    pub id: &'static str,
    /// `restartPolicy`.
    pub policy: &'static str,
    /// How the state differs from the base of the table.
    pub state: fn(&mut Stage),
    /// Outrigger's actions.
    pub done: &'static str,
    /// The kubelet's actions, and why Outrigger's differ.
    pub kubelet: Option<(&'static str, &'static str)>,
}

/// A row in which Outrigger and the kubelet do the same.
pub fn same(id: &'static str, policy: &'static str, state: fn(&mut Stage), done: &'static str) -> Row {
    Row { id, policy, state, done, kubelet: None }
}

/// A row in which they differ: Outrigger's actions, the kubelet's actions, and the reason.
pub fn differs(
    id: &'static str,
    policy: &'static str,
    state: fn(&mut Stage),
    done: &'static str,
    kubelet: &'static str,
    why: &'static str,
) -> Row {
    Row { id, policy, state, done, kubelet: Some((kubelet, why)) }
}

/// Plays a table from its base state.
pub fn play(base: impl Fn(&str) -> Stage, rows: &[Row]) {
    let mut wrong = Vec::new();
    for row in rows {
        let mut stage = base(row.policy);
        (row.state)(&mut stage);
        let done = stage.look().to_string();
        if done != row.done {
            wrong.push(format!("{} ({}): expected {}, was {done}", row.id, row.policy, row.done));
        }
        if let Some((kubelet, why)) = row.kubelet {
            assert_ne!(kubelet, row.done, "{}: no difference to explain", row.id);
            assert!(!why.is_empty(), "{}: a difference without a reason", row.id);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
