//! The KEP's sidecars: `containers[].lifecycle.type: Sidecar`, or container names in the annotation
//! `outrigger.dev/sidecars`. Sidecars start together after the init containers, and mains start once every
//! sidecar is ready. Sidecars stop last, and their preStop hooks run before anything else.

use super::Draft;
use super::annotations::SIDECARS;
use crate::plan::{CONTAINERS_MAX, Counts, Dialect, Need, PreStopWhen, Role};
use crate::source::{ContainerRef, FieldPath, Finding, List};

pub(super) fn apply(draft: &mut Draft<'_>) {
    let mut sidecars = marked(draft);
    named(draft, &mut sidecars);
    if sidecars.is_empty() {
        return;
    }
    let mains: Vec<usize> = draft.mains().into_iter().filter(|m| !sidecars.contains(m)).collect();
    if mains.is_empty() {
        let (message, hint) = match draft.annotation(SIDECARS) {
            None => ("every container is `type: Sidecar`", "remove `lifecycle.type` from the main container"),
            Some(_) => ("every container is a sidecar", "do not mark or name the main container"),
        };
        draft.findings.push(
            Finding::error("kep-standard", FieldPath::spec("containers"), message)
                .hint(format!("at least one container must be standard: {hint}")),
        );
        return;
    }
    order(draft, &sidecars, &mains);
}

/// The containers that are marked as sidecars.
fn marked(draft: &mut Draft<'_>) -> Vec<usize> {
    let input = draft.input;
    let mut sidecars = Vec::new();
    for (&place, value) in &input.lifecycle_types {
        let path = place.path().field("lifecycle").field("type");
        if !draft.features.sidecar_lifecycle_type {
            draft.findings.push(
                Finding::warning(
                    "kep-gate",
                    path,
                    "`lifecycle.type` is ignored: the feature gate SidecarLifecycleType is off",
                )
                .hint(
                    "every container is a standard container; pass --feature-gates SidecarLifecycleType=true",
                ),
            );
            continue;
        }
        if place.list != List::Main {
            let list = if place.list == List::Init { "an init" } else { "an ephemeral" };
            let message = format!("`lifecycle.type: {value}` on {list} container");
            let hint = init_hint(draft, place, value);
            draft.findings.push(Finding::error("kep-init", path, message).hint(hint));
            continue;
        }
        match value.as_str() {
            // Kubernetes treats an empty string as absent, and the default is Standard.
            "" => {}
            "Standard" => draft.uses(Dialect::Kep),
            "Sidecar" => {
                let name = &draft.spec.containers[place.index].name;
                if let Some(index) = draft.plan.containers.iter().position(|c| c.place == place) {
                    sidecars.push(index);
                    own_policy(draft, index, name, path);
                }
            }
            other => {
                let meant = ["Sidecar", "Standard"].into_iter().find(|v| v.eq_ignore_ascii_case(other));
                let hint = match meant {
                    Some(value) => format!("write `type: {value}`"),
                    None => "the values are `Standard` and `Sidecar`".to_owned(),
                };
                let message = format!("`lifecycle.type` is {other:?}");
                draft.findings.push(Finding::error("kep-type", path, message).hint(hint));
            }
        }
    }
    sidecars
}

/// The hint for a `type` on a container that cannot have one.
fn init_hint(draft: &Draft<'_>, place: ContainerRef, value: &str) -> &'static str {
    let policy = draft.container(place).and_then(|c| c.restart_policy.as_deref());
    match (place.list, value, policy) {
        (List::Init, "Sidecar", Some("Always")) => {
            "remove it: `restartPolicy: Always` makes the container a sidecar already"
        }
        (List::Init, "Sidecar", Some(_)) => {
            "remove it, and change the container's restartPolicy to `Always`, which makes it a sidecar"
        }
        (List::Init, "Sidecar", None) => {
            "write `restartPolicy: Always` instead, or move the container to `spec.containers`"
        }
        (List::Init, _, Some("Always")) => {
            "remove it; without `restartPolicy: Always`, too, the container runs to completion"
        }
        _ => "remove it: only containers of `spec.containers` have a type",
    }
}

/// Adds the containers that the annotation names. Native sidecars stay native sidecars.
fn named(draft: &mut Draft<'_>, sidecars: &mut Vec<usize>) {
    let path = || FieldPath::annotation(SIDECARS);
    for name in names(draft) {
        match draft.plan.containers.iter().position(|c| c.name == name) {
            Some(index) if draft.plan.containers[index].place.list == List::Main => {
                if let Some(standard) = standard(draft, index) {
                    let message = format!("`{name}` is a sidecar in {SIDECARS} and `type: Standard` here");
                    let finding = Finding::error("kep-contradiction", standard, message)
                        .related(path(), format!("names `{name}` as a sidecar"))
                        .hint("remove one of the two");
                    draft.findings.push(finding);
                } else if !sidecars.contains(&index) {
                    sidecars.push(index);
                    own_policy(draft, index, name, path());
                }
            }
            Some(index) if draft.plan.containers[index].role == Role::Sidecar => {}
            Some(index) if draft.plan.containers[index].place.list == List::Init => {
                let hint = "write `restartPolicy: Always` into the init container to make it a sidecar, or remove the name here";
                let message = format!("`{name}` is an init container, which runs to completion");
                let finding = Finding::error("kep-name", path(), message)
                    .related(draft.plan.containers[index].place.path(), "the init container")
                    .hint(hint);
                draft.findings.push(finding);
            }
            _ => {
                let names: Vec<&str> = draft.spec.containers.iter().map(|c| c.name.as_str()).collect();
                let finding = Finding::error("kep-name", path(), format!("there is no container `{name}`"))
                    .hint(format!("name containers of `spec.containers`: {}", names.join(", ")));
                draft.findings.push(finding);
            }
        }
    }
}

/// The path of `type: Standard` on a container, if it has that.
pub(super) fn standard(draft: &Draft<'_>, container: usize) -> Option<FieldPath> {
    let place = draft.plan.containers[container].place;
    let value = draft.input.lifecycle_types.get(&place).filter(|_| draft.features.sidecar_lifecycle_type)?;
    (value == "Standard").then(|| place.path().field("lifecycle").field("type"))
}

/// The names in the annotation.
fn names<'a>(draft: &Draft<'a>) -> impl Iterator<Item = &'a str> + use<'a> {
    let names = draft.annotation(SIDECARS).unwrap_or_default().split(',').map(str::trim);
    // A pod has at most this many containers, so any further name is an error or a repetition.
    names.filter(|name| !name.is_empty()).take(CONTAINERS_MAX)
}

/// Sidecars start together and stop last; mains wait for all of them.
fn order(draft: &mut Draft<'_>, sidecars: &[usize], mains: &[usize]) {
    for &sidecar in sidecars {
        draft.make_sidecar(sidecar, Dialect::Kep, Counts::No);
        let c = &mut draft.plan.containers[sidecar];
        c.pre_stop_when = PreStopWhen::FirstAndOwnTurn;
        // Sidecars do not wait for each other to be launched.
        c.gates.retain(|g| g.need != Need::Launched);
    }
    let mut before: Option<usize> = None;
    for &main in mains {
        let gates = &mut draft.plan.containers[main].gates;
        let had = gates.len();
        gates.retain(|g| g.need != Need::Launched || !sidecars.contains(&g.on));
        if gates.len() != had
            && let Some(before) = before
        {
            draft.gate(main, before, Need::Launched, None);
        }
        before = Some(main);
        for &sidecar in sidecars {
            draft.gate(main, sidecar, Need::Ready, Some(Dialect::Kep));
        }
    }
    debug_assert!(mains.iter().all(|&m| draft.plan.containers[m].role == Role::Main));
}

/// Warns about a sidecar with a restart policy of its own. The KEP has no such policy, and the two would
/// contradict each other.
fn own_policy(draft: &mut Draft<'_>, index: usize, name: &str, mark: FieldPath) {
    let place = draft.plan.containers[index].place;
    let own = draft.container(place).and_then(|c| c.restart_policy.as_deref());
    if let Some(policy) = own {
        draft.findings.push(
            Finding::warning(
                "kep-restart",
                place.path().field("restartPolicy"),
                format!("sidecar `{name}` has its own restartPolicy {policy}"),
            )
            .related(mark, "a KEP sidecar follows the pod's restart policy")
            .hint("both apply: it stops after the main containers, and restarts by its own policy"),
        );
    }
}
