//! OpenKruise's container launch priority. Containers with higher priorities start first, and a level waits
//! until every higher level is ready (LP-3 to LP-7, LP-23).

use std::num::IntErrorKind;

use k8s_openapi::api::core::v1::Container;

use super::Draft;
use crate::plan::{Dialect, Gate, Need, Plan};
use crate::source::{ContainerRef, FieldPath, Finding, Severity};

pub(super) const ANNOTATION: &str = "apps.kruise.io/container-launch-priority";
/// The name in OpenKruise's releases, and the name in its proposal.
pub(super) const ENVS: [&str; 2] = ["KRUISE_CONTAINER_PRIORITY", "KRUISE_CONTAINER_LAUNCH_PRIORITY"];
/// The documented limit, for positive and negative numbers.
const LIMIT: i64 = 2_147_483_647;

pub(super) fn apply(draft: &mut Draft<'_>) {
    for init in draft.inits() {
        let place = draft.plan.containers[init].place;
        if let Some(path) = draft.env_path(place, &ENVS) {
            draft.findings.push(
                Finding::warning("LP-8", path, "launch priority has no effect on init containers")
                    .hint("init containers start in list order; remove the env"),
            );
        }
    }
    let mains = draft.mains();
    if mains.len() < 2 {
        // LP-3: priorities order nothing in a pod with one container. Invalid ones are still reported.
        let before = draft.findings.len();
        for main in mains {
            let place = draft.plan.containers[main].place;
            of_container(draft, place);
        }
        draft.findings[before..].iter_mut().for_each(|finding| finding.severity = Severity::Warning);
        return;
    }
    let Some(priorities) = priorities(draft, &mains) else {
        return;
    };
    if priorities.iter().all(|p| *p == priorities[0]) {
        return; // LP-7
    }
    draft.uses(Dialect::Priority);
    let levels: Vec<(usize, i64)> = mains.iter().copied().zip(priorities).collect();
    add_levels(&mut draft.plan, &levels);
    // The KEP's sidecars start before all mains. Priorities therefore order the mains, and the sidecars among
    // each other.
    let is_sidecar: Vec<bool> =
        draft.plan.containers.iter().map(|c| c.dialect == Some(Dialect::Kep)).collect();
    for (c, _) in draft.plan.containers.iter_mut().zip(&is_sidecar).filter(|(_, is_sidecar)| **is_sidecar) {
        c.gates.retain(|gate| gate.dialect != Some(Dialect::Priority) || is_sidecar[gate.on]);
    }
}

/// Adds gates by levels: higher levels start first, and a level waits until every higher level is ready
/// (LP-23). Containers of one level start together, not one after another.
pub fn add_levels(plan: &mut Plan, levels: &[(usize, i64)]) {
    let gate = |on| Gate { on, need: Need::Ready, every_start: false, dialect: Some(Dialect::Priority) };
    for &(lower, low) in levels {
        let gates = &mut plan.containers[lower].gates;
        gates.retain(|g| g.need != Need::Launched);
        for &(on, _) in levels.iter().filter(|(_, high)| *high > low) {
            if !gates.iter().any(|g| g.on == on && g.need == Need::Ready) {
                gates.push(gate(on));
            }
        }
    }
    order_marked(plan);
}

/// Marked sidecars of lower levels stop first (KD7): pairs (stops first, stops next).
pub(super) fn stop_edges(plan: &Plan) -> Vec<(usize, usize)> {
    let is_marked = |i: usize| plan.containers[i].dialect == Some(Dialect::Terminator);
    let gates =
        plan.containers.iter().enumerate().flat_map(|(i, c)| c.gates.iter().map(move |gate| (i, gate)));
    let gates = gates
        .filter(|(i, gate)| gate.dialect == Some(Dialect::Priority) && is_marked(*i) && is_marked(gate.on));
    gates.map(|(i, gate)| (i, gate.on)).collect()
}

/// Adds that order to the plan, unless stop numbers say otherwise. If it would cause a cycle, the plan stays
/// as it was.
fn order_marked(plan: &mut Plan) {
    let before: Vec<Vec<usize>> = plan.containers.iter().map(|c| c.stop_after.clone()).collect();
    for (first, next) in stop_edges(plan) {
        if !before[first].contains(&next) && !before[next].contains(&first) {
            plan.containers[next].stop_after.push(first);
        }
    }
    if plan.order_stops().is_err() {
        for (c, after) in plan.containers.iter_mut().zip(before) {
            c.stop_after = after;
        }
    }
}

/// One priority per container. `None` if no container has one, or if one is invalid; that is reported.
fn priorities(draft: &mut Draft<'_>, mains: &[usize]) -> Option<Vec<i64>> {
    let places: Vec<ContainerRef> = mains.iter().map(|&m| draft.plan.containers[m].place).collect();
    match draft.annotation(ANNOTATION) {
        Some("Ordered") => {
            // LP-4: the envs are then ignored and not checked.
            for &place in &places {
                if let Some(path) = draft.env_path(place, &ENVS) {
                    draft.findings.push(
                        Finding::warning("LP-4", path, "this priority is ignored: the pod is `Ordered`")
                            .related(FieldPath::annotation(ANNOTATION), "containers start in list order"),
                    );
                }
            }
            return Some((0..places.len()).map(|i| -(i as i64)).collect());
        }
        Some(other) => draft.findings.push(
            Finding::warning("LP-4", FieldPath::annotation(ANNOTATION), format!("unknown value {other:?}"))
                .hint("the only value is `Ordered`, with a capital O"),
        ),
        None => {}
    }
    let mut bad = false;
    let priorities = places.iter().map(|&place| {
        let parsed = of_container(draft, place);
        bad |= parsed.is_none();
        parsed.unwrap_or(0)
    });
    let priorities: Vec<i64> = priorities.collect();
    (!bad).then_some(priorities)
}

/// The launch priority of a container of a planned pod: its last env entry counts (LP-5), and is known to be a number.
pub fn launch_priority(container: &Container) -> Option<i64> {
    let mut env = container.env.iter().flatten().rev();
    env.find(|e| ENVS.contains(&e.name.as_str()))?.value.as_deref()?.parse().ok()
}

/// The priority of a container: a signed decimal number in its last env entry of these names, or 0 without
/// one (LP-5, LP-6).
fn of_container(draft: &mut Draft<'_>, place: ContainerRef) -> Option<i64> {
    let read = |name| draft.env(place, &[name]);
    if let (Some((_, released)), Some((at, proposed))) = (read(ENVS[0]), read(ENVS[1]))
        && released.value != proposed.value
    {
        let finding = Finding::error(
            "LP-5",
            draft.env_path(place, &[ENVS[0]]).unwrap_or_else(|| place.path()),
            format!("{} and {} have different values", ENVS[0], ENVS[1]),
        )
        .related(place.path().field("env").index(at), "the other one")
        .hint(format!("keep {} and remove {}", ENVS[0], ENVS[1]));
        draft.findings.push(finding);
        return None;
    }
    let Some((index, env)) = draft.env(place, &ENVS) else {
        return Some(0);
    };
    let path = place.path().field("env").index(index);
    let text = env.value.as_deref().unwrap_or_default();
    let problem = match text.parse::<i64>() {
        Ok(n) if (-LIMIT..=LIMIT).contains(&n) => return Some(n),
        Ok(n) => format!("launch priority {n} is out of range"),
        Err(error) if matches!(error.kind(), IntErrorKind::PosOverflow | IntErrorKind::NegOverflow) => {
            format!("launch priority {text:?} is out of range")
        }
        Err(_) if env.value_from.is_some() => {
            "launch priority must be a literal value, not valueFrom".to_owned()
        }
        Err(_) => format!("launch priority {text:?} is not a whole number"),
    };
    let field = if env.value_from.is_some() { "valueFrom" } else { "value" };
    draft.findings.push(
        Finding::error("LP-6", path.field(field), problem)
            .hint(format!("write a number from -{LIMIT} to {LIMIT}, in quotes")),
    );
    None
}
