//! Pods and states for the tests of status, explanations and resources.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, PodCondition, PodStatus};
use serde_json::{Value, json};

use super::{ContainerFacts, StatusFacts, pod_status};
use crate::action::{Action, Event};
use crate::decision::Decision;
use crate::engine::Engine;
use crate::observation::{
    Container, Exit, ExitReason, Hook, Image, Observation, SandboxState, State, Stop, StopCause, Verdict,
};
use crate::plan::{Plan, ProbeKind, Role};
use crate::resources::Qos;
use crate::source::{ContainerRef, FeatureGates, List, PodInput};
use crate::time::Time;

pub(crate) const T0: Time = Time(1_700_000_000_000);

/// A pod from its spec.
pub(crate) fn pod(spec: Value) -> Pod {
    let whole = json!({"metadata": {"name": "pod"}, "spec": spec});
    serde_json::from_value(whole).expect("a pod")
}

/// The plan of a pod in which these entries of `containers` have `lifecycle.type: Sidecar`.
pub(crate) fn kep_plan(pod: Pod, sidecars: &[usize]) -> Plan {
    let sidecar = |&index: &usize| {
        let list = List::Main;
        (ContainerRef { list, index }, "Sidecar".to_owned())
    };
    let input = PodInput { pod, lifecycle_types: sidecars.iter().map(sidecar).collect::<BTreeMap<_, _>>() };
    crate::plan(&input, &FeatureGates::default()).unwrap_or_else(|findings| panic!("{findings:?}")).plan
}

/// The plan of a pod given by its spec.
pub(crate) fn plan(spec: Value) -> Plan {
    kep_plan(pod(spec), &[])
}

/// An observation of a pod whose sandbox is ready.
pub(crate) fn observed(plan: &Plan) -> Observation {
    let mut obs = Observation::new(plan, T0);
    obs.sandbox.state = SandboxState::Ready;
    for c in &mut obs.containers {
        c.image = Image::Present;
    }
    obs
}

/// The exit of an instance that ran for five seconds from [`T0`].
pub(crate) fn exit(code: i32) -> Exit {
    Exit {
        code,
        signal: None,
        reason: if code == 0 { ExitReason::Completed } else { ExitReason::Error },
        started_at: Some(T0),
        finished_at: T0 + 5_000,
        message: None,
        killed_for: None,
    }
}

/// Puts a container into a state of the tables of section 12: `W`, `Rn`, `St`, `T<code>`, `WL<code>`.
/// `L<code>` means waiting with a last state, in a sandbox (or after an in-place restart) in which it has not
/// run yet.
pub(crate) fn put(plan: &Plan, obs: &mut Observation, name: &str, state: &str) {
    let i = plan.find(name).unwrap_or_else(|| panic!("no container {name}"));
    let p = &plan.containers[i];
    let c = &mut obs.containers[i];
    let code = |prefix: &str| {
        state.strip_prefix(prefix).map(|code| match code {
            "x" => 1,
            code => code.parse().unwrap_or_else(|_| panic!("state {state}")),
        })
    };
    match state {
        "W" | "·" => {}
        "Rn" | "St" => {
            run(c);
            if state == "St" {
                c.probes[ProbeKind::Startup as usize].verdict = Verdict::Success;
                c.was_started = true;
            }
            if p.post_start.is_some() {
                c.post_start = Hook::Done;
            }
        }
        "removed" => {
            c.last_exit = Some(Exit { reason: ExitReason::RestartingAllContainers, ..exit(137) });
            c.restarts = 1;
        }
        _ => {
            if let Some(code) = code("T") {
                end(c, exit(code));
            } else if let Some(code) = code("WL") {
                c.last_exit = Some(exit(code));
                (c.was_run, c.was_launched) = (true, true);
                c.restarts = 1;
            } else if let Some(code) = code("L") {
                c.last_exit = Some(exit(code));
                c.restarts = 1;
            } else {
                panic!("state {state}");
            }
        }
    }
}

pub(crate) fn run(c: &mut Container) {
    c.state = State::Running { since: T0 };
    (c.was_run, c.was_launched) = (true, true);
}

pub(crate) fn end(c: &mut Container, exit: Exit) {
    c.state = State::Exited;
    (c.was_run, c.was_launched) = (true, true);
    c.was_completed = !exit.failed();
    c.exit = Some(exit);
}

/// Ends the pod in its current state: all running containers exit with code 0, and none is started again.
pub(crate) fn finish(obs: &mut Observation, cause: StopCause) {
    for c in &mut obs.containers {
        if c.state.is_alive() {
            end(c, exit(0));
        }
    }
    stop(obs, cause);
    obs.over = true;
}

pub(crate) fn stop(obs: &mut Observation, cause: StopCause) {
    obs.stop = Some(Stop { cause, since: T0, grace_ms: 30_000, deadline: T0 + 30_000, after_mains: false });
}

/// The cause for which the engine would stop a pod in this state, if any.
pub(crate) fn ends_by(plan: &Plan, obs: &Observation) -> Option<StopCause> {
    let mut engine = Engine::resume(plan.clone(), obs.clone());
    engine.handle(&Event::SandboxReady, T0 + 5_000);
    engine.step(T0 + 5_000, &mut Decision::default());
    engine.observation().stop.map(|s| s.cause)
}

/// A spec as the tables use it. Names that begin with `i` are init containers, with `s` sidecars, all others
/// mains.
pub(crate) fn spec(policy: &str, names: &[&str]) -> Value {
    let entry = |name: &&str| {
        let mut c = json!({"name": name, "image": "busybox"});
        if role(name) == Role::Sidecar {
            c["restartPolicy"] = json!("Always");
            c["startupProbe"] = json!({"exec": {"command": ["true"]}});
        }
        c
    };
    let list = |init: bool| -> Vec<Value> {
        let of = |name: &&&str| (role(name) != Role::Main) == init;
        names.iter().filter(of).map(entry).collect()
    };
    json!({"restartPolicy": policy, "initContainers": list(true), "containers": list(false)})
}

fn role(name: &str) -> Role {
    match name.as_bytes()[0] {
        b'i' => Role::Init,
        b's' => Role::Sidecar,
        _ => Role::Main,
    }
}

/// A pod for tests: sandbox, images and starts succeed at once, and all other events come from the test.
pub(crate) struct Life {
    pub(crate) engine: Engine,
    pub(crate) now: Time,
    pub(crate) decision: Decision,
    pub(crate) published: Option<PodStatus>,
}

impl Life {
    pub(crate) fn new(plan: Plan) -> Life {
        let mut life =
            Life { engine: Engine::new(plan, T0), now: T0, decision: Decision::default(), published: None };
        life.settle();
        life
    }

    fn settle(&mut self) {
        loop {
            self.engine.step(self.now, &mut self.decision);
            let answers: Vec<Event> = self.decision.actions.iter().filter_map(answer).collect();
            if answers.is_empty() {
                return;
            }
            for event in answers {
                self.engine.handle(&event, self.now);
            }
        }
    }

    pub(crate) fn handle(&mut self, event: Event) -> &mut Life {
        self.engine.handle(&event, self.now);
        self.settle();
        self
    }

    pub(crate) fn after(&mut self, ms: u64) -> &mut Life {
        self.now = self.now + ms;
        self.settle();
        self
    }

    pub(crate) fn exits(&mut self, name: &str, code: i32) -> &mut Life {
        let container = self.engine.plan().find(name).expect("a container");
        let attempt = self.engine.observation().containers[container].attempt;
        let exit = Exit { started_at: Some(self.now), finished_at: self.now, ..exit(code) };
        self.handle(Event::Exited { container, attempt, exit })
    }

    pub(crate) fn delete(&mut self) -> &mut Life {
        self.handle(Event::StopRequested { grace_ms: None })
    }

    /// The status as it would be published now.
    pub(crate) fn status(&mut self) -> PodStatus {
        let facts = StatusFacts { now: self.now, ..facts(self.engine.plan()) };
        let (plan, obs) = (self.engine.plan(), self.engine.observation());
        let status = pod_status(plan, obs, &self.decision.waits, &facts, self.published.as_ref());
        self.published = Some(status.clone());
        status
    }
}

fn answer(action: &Action) -> Option<Event> {
    match *action {
        Action::CreateSandbox { .. } => Some(Event::SandboxReady),
        Action::Pull { container } => Some(Event::ImageReady { container }),
        Action::Start { container, attempt } => Some(Event::Started { container, attempt }),
        _ => None,
    }
}

/// Facts of a runtime about the containers of a plan.
pub(crate) fn facts(plan: &Plan) -> StatusFacts {
    let container = |c: &crate::ContainerPlan| ContainerFacts {
        image: "busybox:1".to_owned(),
        image_id: "sha256:1".to_owned(),
        container_id: Some(format!("embedded://{}", c.name)),
        last_container_id: None,
    };
    StatusFacts {
        now: T0,
        namespace: "default".to_owned(),
        uid: "u-1".to_owned(),
        generation: Some(1),
        qos: Some(Qos::BestEffort),
        host_ips: vec!["192.0.2.1".to_owned()],
        pod_ips: vec!["10.0.0.2".to_owned(), "fd00::2".to_owned()],
        readiness_gates: Vec::new(),
        containers: plan.containers.iter().map(container).collect(),
    }
}

/// A container status in one line: `waiting Reason rc=1 ready started last=137/Error`.
pub(crate) fn line(status: &PodStatus, name: &str) -> String {
    let lists = [&status.init_container_statuses, &status.container_statuses];
    let all = lists.into_iter().flatten().flatten();
    let s = all.into_iter().find(|s| s.name == name).expect("a status");
    let state = s.state.as_ref().expect("a state");
    let mut line = match (&state.waiting, &state.running, &state.terminated) {
        (Some(w), None, None) => format!("waiting {}", w.reason.as_deref().unwrap_or("-")),
        (None, Some(_), None) => "running".to_owned(),
        (None, None, Some(t)) => format!("terminated {}/{}", t.exit_code, t.reason.as_deref().unwrap_or("-")),
        other => panic!("{name} has not one state: {other:?}"),
    };
    for (flag, set) in [(" ready", s.ready), (" started", s.started == Some(true))] {
        if set {
            line.push_str(flag);
        }
    }
    line.push_str(&format!(" rc={}", s.restart_count));
    if let Some(t) = s.last_state.as_ref().and_then(|l| l.terminated.as_ref()) {
        line.push_str(&format!(" last={}/{}", t.exit_code, t.reason.as_deref().unwrap_or("-")));
    }
    line
}

/// The message of a waiting container.
pub(crate) fn waiting_message(status: &PodStatus, name: &str) -> Option<String> {
    let lists = [&status.init_container_statuses, &status.container_statuses];
    let s = lists.into_iter().flatten().flatten().find(|s| s.name == name)?;
    s.state.as_ref()?.waiting.as_ref()?.message.clone()
}

/// Conditions in one line each: `Ready=False ContainersNotReady`.
pub(crate) fn conditions(status: &PodStatus) -> Vec<String> {
    let text = |c: &PodCondition| match &c.reason {
        Some(reason) => format!("{}={} {reason}", c.type_, c.status),
        None => format!("{}={}", c.type_, c.status),
    };
    status.conditions.iter().flatten().map(text).collect()
}
