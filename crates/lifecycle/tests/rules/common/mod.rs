//! Test helper: the real engine of a pod, with containers that the test controls.
#![allow(unreachable_pub, reason = "a test program has no outside")]

use k8s_openapi::api::core::v1::Pod;
use outrigger_lifecycle::{
    Action, CannotRestart, CannotUpdate, Change, ContainerRef, Decision, Engine, Event, Exit, ExitReason,
    FeatureGates, Finding, HookKind, List, Plan, PodInput, ProbeKind, ProbeOutcome, Time, Wait, plan,
};
use serde_json::{Value, json};

/// A pod from JSON. `lifecycle.type` is taken out, as the manifest reader does.
pub fn input(mut pod: Value) -> PodInput {
    let mut input = PodInput::default();
    for (list, field) in [(List::Init, "initContainers"), (List::Main, "containers")] {
        let Some(containers) = pod["spec"][field].as_array_mut() else {
            continue;
        };
        for (index, c) in containers.iter_mut().enumerate() {
            if c.get("image").is_none() {
                c["image"] = json!("i");
            }
            if let Some(kind) = c["lifecycle"].as_object_mut().and_then(|l| l.remove("type")) {
                let kind = kind.as_str().expect("type is text").to_owned();
                input.lifecycle_types.insert(ContainerRef { list, index }, kind);
            }
            if c["lifecycle"].is_null() {
                c.as_object_mut().unwrap().remove("lifecycle");
            }
        }
    }
    input.pod = serde_json::from_value::<Pod>(pod).expect("a pod");
    input
}

/// A pod with this spec.
pub fn pod(spec: Value) -> PodInput {
    input(json!({"metadata": {"name": "p"}, "spec": spec}))
}

/// A pod with annotations.
pub fn annotated(annotations: Value, spec: Value) -> PodInput {
    input(json!({"metadata": {"name": "p", "annotations": annotations}, "spec": spec}))
}

/// The plan of a pod that must be valid.
pub fn planned(input: &PodInput) -> Plan {
    plan(input, &FeatureGates::default()).unwrap_or_else(|e| panic!("refused: {e:#?}")).plan
}

/// The findings about a pod that must be refused.
pub fn refused(input: &PodInput) -> Vec<Finding> {
    plan(input, &FeatureGates::default()).err().unwrap_or_else(|| panic!("accepted"))
}

/// The engine with a runtime in which every start succeeds at once. A container that is told to stop keeps
/// running until the test ends it.
pub struct Play {
    pub engine: Engine,
    pub now: Time,
    pub out: Decision,
    /// All actions so far.
    pub actions: Vec<Action>,
    /// The actions in order, as `start a`, `term a`, `kill a`, `postStart a` …
    pub log: Vec<String>,
    /// Whether hooks end as soon as they are requested.
    pub quick_hooks: bool,
    /// The container whose image is only pulled when the test says so.
    pub late: Option<usize>,
}

impl Play {
    pub fn new(plan: Plan) -> Self {
        Play::with_late(plan, None)
    }

    fn with_late(plan: Plan, late: Option<usize>) -> Self {
        let mut play = Play {
            engine: Engine::new(plan, Time(1_000_000)),
            now: Time(1_000_000),
            out: Decision::default(),
            actions: Vec::new(),
            log: Vec::new(),
            quick_hooks: true,
            late,
        };
        play.settle();
        play
    }

    /// A pod in which the image of one container is pulled late.
    pub fn of_late(input: &PodInput, late: &str) -> Self {
        let plan = planned(input);
        let late = plan.find(late);
        Play::with_late(plan, late)
    }

    /// Reports that the late image is present.
    pub fn image_arrives(&mut self, name: &str) {
        let container = self.ix(name);
        self.event(Event::ImageReady { container });
    }

    pub fn of(input: &PodInput) -> Self {
        Play::new(planned(input))
    }

    fn ix(&self, name: &str) -> usize {
        self.engine.plan().find(name).unwrap_or_else(|| panic!("no container {name}"))
    }

    fn name(&self, container: usize) -> String {
        self.engine.plan().containers[container].name.clone()
    }

    pub fn container(&self, name: &str) -> &outrigger_lifecycle::Container {
        &self.engine.observation().containers[self.ix(name)]
    }

    /// Steps until the engine has no more requests.
    pub fn settle(&mut self) {
        loop {
            let mut out = std::mem::take(&mut self.out);
            self.engine.step(self.now, &mut out);
            let actions = out.actions.clone();
            self.out = out;
            let mut more = false;
            self.actions.extend(actions.iter().cloned());
            for action in actions {
                more |= self.carry_out(action);
            }
            if !more {
                return;
            }
        }
    }

    fn carry_out(&mut self, action: Action) -> bool {
        let event = match action {
            Action::CreateSandbox { .. } => Event::SandboxReady,
            Action::Pull { container } if self.late == Some(container) => return false,
            Action::Pull { container } => Event::ImageReady { container },
            Action::Start { container, attempt } => {
                self.log.push(format!("start {}", self.name(container)));
                Event::Started { container, attempt }
            }
            Action::RunHook { container, attempt, hook, .. } => {
                let word = match hook {
                    HookKind::PostStart => "postStart",
                    HookKind::PreStop => "preStop",
                    HookKind::FirstPreStop => "firstPreStop",
                };
                self.log.push(format!("{word} {}", self.name(container)));
                if !self.quick_hooks {
                    return false;
                }
                Event::HookEnded { container, attempt, hook, error: None }
            }
            Action::Terminate { container, .. } => {
                self.log.push(format!("term {}", self.name(container)));
                return false;
            }
            Action::Kill { container, attempt } => {
                self.log.push(format!("kill {}", self.name(container)));
                Event::Exited { container, attempt, exit: exit(137, self.now) }
            }
            Action::BeginStop { cause, .. } => {
                self.log.push(format!("stop {cause:?}"));
                return false;
            }
            Action::CancelHook { .. }
            | Action::Probe { .. }
            | Action::BeginKill { .. }
            | Action::BeginRerun { .. }
            | Action::Rerun
            | Action::Finish => return false,
        };
        self.engine.handle(&event, self.now);
        true
    }

    /// Updates the pod to another manifest.
    pub fn update(&mut self, input: &PodInput) -> Result<Vec<Change>, CannotUpdate> {
        let changes = self.engine.update(planned(input));
        self.settle();
        changes
    }

    /// Requests a restart of a container, or of all containers.
    pub fn restart(&mut self, name: Option<&str>) -> Result<(), CannotRestart> {
        let container = name.map(|name| self.ix(name));
        let can = self.engine.can_restart(container);
        self.event(Event::RestartRequested { container });
        can
    }

    pub fn event(&mut self, event: Event) {
        self.engine.handle(&event, self.now);
        self.settle();
    }

    /// Ends a container.
    pub fn exit(&mut self, name: &str, code: i32) {
        let container = self.ix(name);
        let attempt = self.container(name).attempt;
        let exit = exit(code, self.now);
        self.event(Event::Exited { container, attempt, exit });
    }

    /// Reports the result of one probe attempt.
    pub fn probed(&mut self, name: &str, kind: ProbeKind, ok: bool) {
        let container = self.ix(name);
        let attempt = self.container(name).attempt;
        let outcome = if ok { ProbeOutcome::Success } else { ProbeOutcome::Failure };
        self.event(Event::Probed { container, attempt, kind, outcome, message: None, cause: None });
    }

    /// Ends a hook.
    pub fn hooked(&mut self, name: &str, hook: HookKind, ok: bool) {
        let container = self.ix(name);
        let attempt = self.container(name).attempt;
        let error = (!ok).then(|| "exit code 1".into());
        self.event(Event::HookEnded { container, attempt, hook, error });
    }

    /// Requests a stop of the pod.
    pub fn stop(&mut self, grace_ms: Option<u64>) {
        self.event(Event::StopRequested { grace_ms });
    }

    /// Advances the time; timers fire exactly when they are due.
    pub fn pass(&mut self, ms: u64) {
        let end = self.now + ms;
        while let Some(wake) = self.out.wake.filter(|w| *w <= end) {
            self.now = wake.max(self.now);
            let before = self.out.wake;
            self.settle();
            assert!(
                self.out.wake != before || self.out.wake.is_none_or(|w| w > self.now),
                "timer does not move on"
            );
        }
        self.now = end;
        self.settle();
    }

    /// Returns the log, and clears it.
    pub fn log(&mut self) -> Vec<String> {
        std::mem::take(&mut self.log)
    }

    pub fn wait(&self, name: &str) -> Option<Wait> {
        self.out.wait_of(self.ix(name))
    }

    pub fn over(&self) -> bool {
        self.engine.observation().over
    }
}

/// An exit at this time.
pub fn exit(code: i32, at: Time) -> Exit {
    Exit {
        code,
        signal: None,
        reason: if code == 0 { ExitReason::Completed } else { ExitReason::Error },
        started_at: Some(at),
        finished_at: at,
        message: None,
        killed_for: None,
    }
}
