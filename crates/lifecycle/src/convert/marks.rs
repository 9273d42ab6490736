//! The fields and annotations of the dialects, and how to remove them.

use crate::dialect::annotations::{DEPENDS_ON, SIDECARS};
use crate::plan::Plan;
use crate::source::{ContainerRef, FieldPath, List, PodInput};

use super::{Edit, Target};

pub(super) const PRIORITY: &str = "KRUISE_CONTAINER_PRIORITY";
const PRIORITY_PROPOSED: &str = "KRUISE_CONTAINER_LAUNCH_PRIORITY";
const PRIORITY_ORDERED: &str = "apps.kruise.io/container-launch-priority";
pub(super) const TERMINATE: &str = "KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT";
pub(super) const TERMINATE_WITH_IMAGE: &str = "KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT_WITH_IMAGE";
pub(super) const TERMINATE_IGNORE_EXIT: &str = "KRUISE_TERMINATE_SIDECAR_IGNORE_EXIT_CODE";

/// The edits that remove the fields and annotations of other dialects. `restartPolicy: Always` is not among
/// them, because it moves with its container. The target's own annotation is overwritten later.
pub(super) fn remove(input: &PodInput, plan: &Plan, target: Target) -> Vec<Edit> {
    let mut edits = Vec::new();
    if target != Target::Kep {
        for place in input.lifecycle_types.keys() {
            edits.push(Edit::Prune { path: place.path().field("lifecycle").field("type") });
        }
    }
    let mut names = vec![PRIORITY, PRIORITY_PROPOSED];
    if target != Target::Priority {
        names.extend([TERMINATE, TERMINATE_WITH_IMAGE, TERMINATE_IGNORE_EXIT]);
    }
    for c in &plan.containers {
        envs(input, c.place, &names, &mut edits);
    }
    let mut annotations = vec![PRIORITY_ORDERED, SIDECARS];
    if target != Target::DependsOn {
        annotations.push(DEPENDS_ON);
    }
    let written = input.pod.metadata.annotations.as_ref();
    for name in annotations {
        if written.is_some_and(|a| a.contains_key(name)) {
            edits.push(Edit::Prune { path: FieldPath::annotation(name) });
        }
    }
    edits
}

fn envs(input: &PodInput, place: ContainerRef, names: &[&str], edits: &mut Vec<Edit>) {
    let Some(container) = super::lists::container(input, place) else { return };
    // From the end, so that earlier indexes stay valid.
    for (index, env) in container.env.as_deref().unwrap_or_default().iter().enumerate().rev() {
        if names.contains(&env.name.as_str()) && place.list != List::Ephemeral {
            edits.push(Edit::Prune { path: place.path().field("env").index(index) });
        }
    }
}
