//! Turns containers of a pod that is being created into native sidecars: the containers that its author has
//! named, or those with a higher launch priority than others.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, Pod};
use outrigger_lifecycle::convert::{
    apply, in_order, levels_as_sidecars, native_levels, native_sidecars, startup_probe,
};
use outrigger_lifecycle::{List, Plan, Planned, PodInput, RestartPolicy, TerminatorMarks, launch_priority};
use serde_json::{Value, json};

use super::Refusal;
use super::admit::{Admitted, annotation, planned, refuse, sentence};
use crate::names;

/// Turns the containers that the annotation names into native sidecars. Their order follows `depends-on` and
/// their priorities, because the kubelet starts native sidecars one after the other. All other ordering of
/// the pod stays.
///
/// # Errors
/// 422 and a message if they cannot be native sidecars.
pub(super) fn named(pod: &Pod, sidecars: &str, admitted: &mut Admitted) -> Result<(), Refusal> {
    let input = only_sidecars(pod);
    let plan = planned(&input).map_err(|findings| refuse(&findings))?.plan;
    let is_named = |name: &str| sidecars.split(',').any(|named| named.trim() == name);
    let all = &plan.containers;
    let order = in_order(&plan, |i| all[i].place.list == List::Main && is_named(&all[i].name));
    let edits = native_sidecars(&input, &plan, &order).map_err(|lost| {
        let text = format!(
            "annotation {}: native sidecars cannot do this: {}; leave the startupProbe of a sidecar with a readinessProbe out, or make it test the same, and use a successThreshold of 1",
            names::SIDECARS,
            lost.text
        );
        Refusal::new(422, text)
    })?;
    apply(&mut admitted.pod, &edits);
    admitted.warnings.extend(warnings(pod, sidecars));
    if is_applied(pod) && !edits.is_empty() {
        let text = "kubectl apply cannot be called again for this pod, because its sidecars are moved to initContainers; use kubectl replace --force";
        admitted.warnings.push(text.to_owned());
    }
    Ok(())
}

/// The pod, reduced to what orders its sidecars. Its other annotations and envs concern only the mains.
fn only_sidecars(pod: &Pod) -> PodInput {
    let mut only = pod.clone();
    only.metadata
        .annotations
        .get_or_insert_default()
        .retain(|name, _| name == names::SIDECARS || name == names::DEPENDS_ON);
    for c in &mut only.spec.get_or_insert_default().containers {
        c.env.iter_mut().for_each(|env| env.retain(|e| names::PRIORITY_ENVS.contains(&e.name.as_str())));
    }
    PodInput { pod: only, lifecycle_types: Default::default() }
}

/// Turns the containers with a higher launch priority than others into native sidecars, which the kubelet
/// itself starts one after the other. The pod is unchanged if their restart policies or probes do not allow
/// this, or if it cannot be planned.
pub(super) fn higher_levels(pod: &Pod, planned: Option<&Planned>, admitted: &mut Admitted) {
    if let Some(planned) = planned {
        convert_levels(pod, planned, admitted);
    }
    if is_controlled(pod) {
        add_startup_probes(&mut admitted.pod);
    }
}

fn convert_levels(pod: &Pod, planned: &Planned, admitted: &mut Admitted) {
    let Some(order) = levels_in_order(pod, &planned.plan) else { return };
    let input = PodInput { pod: pod.clone(), lifecycle_types: Default::default() };
    let Ok(edits) = native_sidecars(&input, &planned.plan, &order) else { return };
    apply(&mut admitted.pod, &edits);
    if annotation(pod, names::ORDERED) != Some("Ordered") {
        arrange_levels(&mut admitted.pod);
    }
    // Keep the warnings about ignored priorities now. After the move, the containers are in other places.
    let ignored = planned.warnings.iter().filter(|finding| finding.code == "LP-4");
    admitted.warnings.extend(ignored.map(sentence));
}

/// Copies readiness probes to startup probes, so that the next level waits until a native sidecar with a
/// priority is ready. Another webhook may have added the readiness probe since an earlier call.
fn add_startup_probes(object: &mut Value) {
    let list = object.pointer_mut("/spec/initContainers").and_then(Value::as_array_mut);
    for written in list.into_iter().flatten() {
        let Some(container) = native_sidecar(written).filter(|c| launch_priority(c).is_some()) else {
            continue;
        };
        if let (Some(probe), None) = (&container.readiness_probe, &container.startup_probe) {
            written["startupProbe"] = startup_probe(probe);
        }
    }
}

fn native_sidecar(written: &Value) -> Option<Container> {
    let is_native = written["restartPolicy"] == "Always";
    is_native.then(|| serde_json::from_value(written.clone()).ok()).flatten()
}

/// Sorts native sidecars by their priorities. Some may be from an earlier call, before another webhook added
/// a container.
fn arrange_levels(object: &mut Value) {
    let Some(list) = object["spec"]["initContainers"].as_array_mut() else { return };
    let Ok(inits) = serde_json::from_value::<Vec<Container>>(json!(list)) else { return };
    *list = native_levels(&inits).into_iter().map(|from| list[from].clone()).collect();
}

/// The containers with a higher launch priority than others, in their starting order. `None` if there are
/// none, or if they cannot be native sidecars.
fn levels_in_order(pod: &Pod, plan: &Plan) -> Option<Vec<usize>> {
    let containers = &pod.spec.as_ref()?.containers;
    // Native sidecars are restarted whenever they end, and the operator does not supervise their launch. So
    // the pod's policy must fit.
    let fits = plan.restart_policy == RestartPolicy::Always
        && [names::DEPENDS_ON, names::LAUNCH_TIMEOUT].iter().all(|name| annotation(pod, name).is_none());
    // A container with a policy of its own may end for good and end the pod. A native sidecar does not keep a
    // pod alive.
    let is_own = |c: &Container| c.restart_policy.is_some() || c.restart_policy_rules.is_some();
    if !fits
        || is_applied(pod)
        || !is_controlled(pod)
        || containers.iter().any(is_own)
        || ports_clash(containers)
    {
        return None;
    }
    levels_as_sidecars(plan)
}

/// Whether moving containers would hide a conflict of ports. The API server refuses two containers with the
/// same host port in `containers`, but does not check init containers. If two ports have the same name, a
/// Service uses the first one, and those of init containers come last.
fn ports_clash(containers: &[Container]) -> bool {
    let ports = || containers.iter().flat_map(|c| c.ports.iter().flatten());
    let (mut taken, mut names) = (BTreeSet::new(), BTreeSet::new());
    let mut of_node = ports().filter_map(|port| Some((port.host_port?, port)));
    let is_taken = of_node.any(|(number, port)| {
        let address = port.host_ip.as_deref().unwrap_or_default();
        !taken.insert((number, port.protocol.as_deref().unwrap_or("TCP"), address))
    });
    is_taken || ports().filter_map(|port| port.name.as_deref()).any(|name| !names.insert(name))
}

/// Whether a controller has made the pod. Other tools, such as Helm, may compare it with a manifest later and
/// find that containers were moved.
fn is_controlled(pod: &Pod) -> bool {
    pod.metadata.owner_references.iter().flatten().any(|owner| owner.controller == Some(true))
}

/// Whether the pod was made with `kubectl apply`. The next `kubectl apply` compares the pod with the manifest
/// and finds that containers were moved.
fn is_applied(pod: &Pod) -> bool {
    let by_client = annotation(pod, "kubectl.kubernetes.io/last-applied-configuration").is_some();
    let managers = pod.metadata.managed_fields.iter().flatten();
    by_client || managers.into_iter().any(|manager| manager.operation.as_deref() == Some("Apply"))
}

/// What changes for the named containers of `spec.containers`.
fn warnings(pod: &Pod, sidecars: &str) -> Vec<String> {
    let is_named = |c: &&Container| sidecars.split(',').any(|named| named.trim() == c.name);
    let those = |test: fn(&Container) -> bool| -> String {
        let containers = pod.spec.iter().flat_map(|spec| &spec.containers).filter(is_named);
        containers.filter(|c| test(c)).map(|c| c.name.as_str()).collect::<Vec<_>>().join(", ")
    };
    let mut warnings = Vec::new();
    let marked = those(|c| TerminatorMarks::of_container(c).is_sidecar());
    if !marked.is_empty() {
        warnings.push(format!(
            "native sidecars end with the mains: the terminator envs of {marked} have no effect"
        ));
    }
    // The KEP runs their hooks again when it is the sidecar's turn to stop.
    let hooked = those(|c| c.lifecycle.as_ref().is_some_and(|hooks| hooks.pre_stop.is_some()));
    if !hooked.is_empty() {
        warnings.push(format!(
            "the kubelet runs the preStop hooks of native sidecars when the pod begins to stop, before the mains have ended: {hooked}"
        ));
    }
    warnings
}
