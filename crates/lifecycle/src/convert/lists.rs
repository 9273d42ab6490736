//! Moves containers into the right list, in the right order, and marks the sidecars.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, Probe};
use serde_json::{Value, json};

use super::Edit;
use crate::plan::{ContainerPlan, Dialect, Need, Plan, ProbeKind, RestartPolicy, Role};
use crate::source::{ContainerRef, FieldPath, List, PodInput};

/// The failure threshold of a copied startup probe, at one attempt per second. It is high because a failed
/// startup probe kills the container, and a readiness probe never does.
const COPIED_PROBE_TRIES: i64 = 600;

/// The container at a place.
pub(super) fn container(input: &PodInput, place: ContainerRef) -> Option<&Container> {
    let spec = input.pod.spec.as_ref()?;
    match place.list {
        List::Init => spec.init_containers.as_ref()?.get(place.index),
        List::Main => spec.containers.get(place.index),
        List::Ephemeral => None,
    }
}

/// The role of a container in dialects that only know "before", "beside" and "main".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Runs to completion before the others.
    First,
    /// Runs beside the mains, and starts before them.
    Beside,
    /// A main.
    Work,
}

/// Classifies containers by how others depend on them. At least one main is always left: a container that
/// only helpers wait for does not become a helper itself.
pub(super) fn kinds(plan: &Plan) -> Vec<Kind> {
    let n = plan.containers.len();
    let (mut beside, mut first) = (vec![false; n], vec![false; n]);
    // Dependents come before their dependencies.
    for i in in_order(plan, |_| true).into_iter().rev() {
        let c = &plan.containers[i];
        if c.keeps_alive || beside[i] || first[i] {
            for gate in &c.gates {
                beside[gate.on] |= matches!(gate.need, Need::Started | Need::Ready);
                first[gate.on] |= gate.need == Need::Completed;
            }
        }
    }
    let kind = |(i, c): (usize, &ContainerPlan)| match c.role {
        Role::Init => Kind::First,
        Role::Sidecar => Kind::Beside,
        _ if !c.keeps_alive || beside[i] => Kind::Beside,
        _ if first[i] => Kind::First,
        _ => Kind::Work,
    };
    plan.containers.iter().enumerate().map(kind).collect()
}

/// Moves sidecars to `initContainers`, where they start one after the other.
pub(super) fn native(input: &PodInput, plan: &Plan, edits: &mut Vec<Edit>) {
    let kinds = kinds(plan);
    for (i, c) in plan.containers.iter().enumerate().filter(|(i, _)| kinds[*i] == Kind::Beside) {
        if c.place.list != List::Init {
            edits.push(Edit::Insert {
                map: c.place.path(),
                key: "restartPolicy",
                value: json!("Always"),
                after: "image",
            });
        }
        let waited =
            plan.containers.iter().flat_map(|c| &c.gates).any(|g| g.on == i && g.need == Need::Ready);
        let readiness = container(input, c.place).and_then(|c| c.readiness_probe.as_ref());
        if let (true, None, Some(probe)) = (waited, c.probe(ProbeKind::Startup), readiness) {
            edits.push(Edit::Insert {
                map: c.place.path(),
                key: "startupProbe",
                value: startup_probe(probe),
                after: "readinessProbe",
            });
        }
    }
    let inits = in_order(plan, |i| kinds[i] != Kind::Work);
    arrange(plan, &inits, edits);
}

/// Moves sidecars to `containers` and marks them with `lifecycle.type`.
pub(super) fn kep(input: &PodInput, plan: &Plan, edits: &mut Vec<Edit>) {
    let kinds = kinds(plan);
    for (i, c) in plan.containers.iter().enumerate().filter(|(i, _)| kinds[*i] == Kind::Beside) {
        if input.lifecycle_types.get(&c.place).map(String::as_str) != Some("Sidecar") {
            edits.push(Edit::Set {
                path: c.place.path().field("lifecycle").field("type"),
                value: json!("Sidecar"),
            });
        }
        leave_init(plan, i, edits);
    }
    let inits = in_order(plan, |i| kinds[i] == Kind::First);
    arrange(plan, &inits, edits);
}

/// The edit for a native sidecar that leaves `initContainers`: it keeps its own restart policy only if the
/// pod's is different.
pub(super) fn leave_init(plan: &Plan, index: usize, edits: &mut Vec<Edit>) {
    let place = plan.containers[index].place;
    if place.list == List::Init && plan.restart_policy == RestartPolicy::Always {
        edits.push(Edit::Prune { path: place.path().field("restartPolicy") });
    }
}

/// The chosen containers, each after its dependencies, and otherwise in the order of the manifest.
pub fn in_order(plan: &Plan, chosen: impl Fn(usize) -> bool) -> Vec<usize> {
    let mut left: Vec<usize> = (0..plan.containers.len()).filter(|&i| chosen(i)).collect();
    let mut order = Vec::with_capacity(left.len());
    while !left.is_empty() {
        let waits = |i: usize| {
            plan.containers[i].gates.iter().any(|g| g.need != Need::Launched && left.contains(&g.on))
        };
        // A plan has no cycle, so some container waits for no other. The list order is only a fallback.
        let next = left.iter().position(|&i| !waits(i)).unwrap_or(0);
        order.push(left.remove(next));
    }
    order
}

/// The containers that others wait for because of their launch priorities, in an order in which native
/// sidecars can start one after the other.
///
/// `None` if there are none, or if two containers of one level have probes or postStart hooks. Containers of
/// one level start together and may need each other, so as native sidecars they could wait forever.
pub fn levels_as_sidecars(plan: &Plan) -> Option<Vec<usize>> {
    let gates_of =
        |i: usize| plan.containers[i].gates.iter().filter(|g| g.dialect == Some(Dialect::Priority));
    // A level waits for every container of the higher levels.
    let depth = |i: usize| gates_of(i).count();
    let waits = |i: usize| {
        let c = &plan.containers[i];
        c.probe(ProbeKind::Startup).or(c.probe(ProbeKind::Readiness)).is_some() || c.post_start.is_some()
    };
    let on: BTreeSet<usize> = (0..plan.containers.len()).flat_map(gates_of).map(|gate| gate.on).collect();
    let mut order: Vec<usize> = on.into_iter().collect();
    order.sort_by_key(|&i| (depth(i), waits(i)));
    let would_hang = order.windows(2).any(|pair| depth(pair[0]) == depth(pair[1]) && waits(pair[0]));
    (!order.is_empty() && !would_hang).then_some(order)
}

/// Moves containers so that `initContainers` holds `inits`, in this order, and `containers` holds the rest.
pub(super) fn arrange(plan: &Plan, inits: &[usize], edits: &mut Vec<Edit>) {
    let of = |list: List| -> Vec<usize> {
        (0..plan.containers.len()).filter(|&i| plan.containers[i].place.list == list).collect()
    };
    let (mut init, mut main) = (of(List::Init), of(List::Main));
    let (init_list, main_list) = (FieldPath::spec("initContainers"), FieldPath::spec("containers"));
    // Containers move into `initContainers` first. Otherwise one of the lists could be empty in between.
    for (at, &c) in inits.iter().enumerate() {
        if let Some(from) = init.iter().position(|&i| i == c) {
            if from != at {
                edits.push(Edit::Move {
                    from: init_list.clone().index(from),
                    to: init_list.clone(),
                    index: if from < at { at + 1 } else { at },
                });
                init.remove(from);
                init.insert(at.min(init.len()), c);
            }
        } else if let Some(from) = main.iter().position(|&i| i == c) {
            edits.push(Edit::Move { from: main_list.clone().index(from), to: init_list.clone(), index: at });
            main.remove(from);
            init.insert(at, c);
        }
    }
    // The containers that move to `containers` now follow those that stay in `initContainers`, in their own
    // order.
    for _ in inits.len()..init.len() {
        edits.push(Edit::Move {
            from: init_list.clone().index(inits.len()),
            to: main_list.clone(),
            index: main.len(),
        });
        main.push(init.remove(inits.len()));
    }
}

/// Turns a readiness probe into a startup probe, without default values. Its period is one second: the
/// kubelet waits for a whole period before it first runs a startup probe, but runs a readiness probe right
/// after the start.
pub fn startup_probe(probe: &Probe) -> Value {
    let mut value = serde_json::to_value(probe).unwrap_or_default();
    if let Some(map) = value.as_object_mut() {
        map.remove("successThreshold");
        for (key, default) in [("timeoutSeconds", json!(1)), ("initialDelaySeconds", json!(0))] {
            if map.get(key) == Some(&default) {
                map.remove(key);
            }
        }
        if let Some(http) = map.get_mut("httpGet").and_then(Value::as_object_mut)
            && http.get("scheme") == Some(&json!("HTTP"))
        {
            http.remove("scheme");
        }
        map.insert("periodSeconds".to_owned(), json!(1));
        map.insert("failureThreshold".to_owned(), json!(COPIED_PROBE_TRIES));
    }
    value
}
