//! Pods and states for the tests of this crate's views: status, explanations, resources.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::action::Event;
use crate::engine::Engine;
use crate::observation::{
    Container, Exit, ExitReason, Hook, Image, Observation, SandboxState, State, Stop, StopCause, Verdict,
};
use crate::plan::{Plan, ProbeKind, Role};
use crate::source::{ContainerRef, FeatureGates, List, PodInput};
use crate::time::Time;

pub(crate) const T0: Time = Time(1_700_000_000_000);

/// A pod from its spec.
pub(crate) fn pod(spec: Value) -> Pod {
    let whole = json!({"metadata": {"name": "pod"}, "spec": spec});
    serde_json::from_value(whole).expect("a pod")
}

/// The plan of a pod, with `lifecycle.type: Sidecar` for the entries of `containers` named.
pub(crate) fn kep_plan(pod: Pod, sidecars: &[usize]) -> Plan {
    let sidecar = |&index: &usize| {
        let list = List::Main;
        (ContainerRef { list, index }, "Sidecar".to_owned())
    };
    let input = PodInput {
        pod,
        lifecycle_types: sidecars.iter().map(sidecar).collect::<BTreeMap<_, _>>(),
    };
    crate::plan(&input, &FeatureGates::default())
        .unwrap_or_else(|findings| panic!("{findings:?}"))
        .plan
}

/// The plan of a pod given by its spec.
pub(crate) fn plan(spec: Value) -> Plan {
    kep_plan(pod(spec), &[])
}

/// An observation with a sandbox.
pub(crate) fn observed(plan: &Plan) -> Observation {
    let mut obs = Observation::new(plan, T0);
    obs.sandbox.state = SandboxState::Ready;
    for c in &mut obs.containers {
        c.image = Image::Present;
    }
    obs
}

/// The exit of an instance that lived five seconds from [`T0`].
pub(crate) fn exit(code: i32) -> Exit {
    Exit {
        code,
        signal: None,
        reason: if code == 0 {
            ExitReason::Completed
        } else {
            ExitReason::Error
        },
        started_at: Some(T0),
        finished_at: T0 + 5_000,
        message: None,
        killed_for: None,
    }
}

/// Puts a container into a state of the tables of section 12: `W`, `Rn`, `St`, `T<code>`, `WL<code>`; and
/// `L<code>`, waiting with a last state in a sandbox (or after an in-place restart) in which it has not run yet.
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
            c.last_exit = Some(Exit {
                reason: ExitReason::RestartingAllContainers,
                ..exit(137)
            });
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

/// Ends the pod where it stands: what runs is gone with code 0, and nothing comes after.
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
    obs.stop = Some(Stop {
        cause,
        since: T0,
        grace_ms: 30_000,
        deadline: T0 + 30_000,
        after_mains: false,
    });
}

/// What ends a pod that stands like this, if anything does: asked of the engine.
pub(crate) fn ends_by(plan: &Plan, obs: &Observation) -> Option<StopCause> {
    let mut engine = Engine::resume(plan.clone(), obs.clone());
    engine.handle(&Event::SandboxReady, T0 + 5_000);
    engine.step(T0 + 5_000, &mut crate::Decision::default());
    engine.observation().stop.map(|s| s.cause)
}

/// A spec of the shape tables use: init entries by first letter (`i` init, `s` sidecar), the rest mains.
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
