//! Turns containers of a pod that is being created into native sidecars: those its author has named, or those with a
//! higher launch priority than others.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, Pod};
use outrigger_lifecycle::convert::{
    Target, apply, compare, convert, in_order, levels_as_sidecars, startup_probe,
};
use outrigger_lifecycle::{
    Dialect, FeatureGates, List, Plan, Planned, PodInput, RestartPolicy, TerminatorMarks, plan,
};
use serde_json::{Value, json};

use super::Refusal;
use super::admit::{Admitted, annotation, priority, refuse, sentence, typed};
use crate::names;

/// Turns the containers named by the annotation into native sidecars.
///
/// # Errors
/// 422 and a message if they cannot be native sidecars.
pub(super) fn named(pod: &Pod, sidecars: &str, admitted: &mut Admitted) -> Result<(), Refusal> {
    let order = order_of(pod, sidecars)?;
    let pod = arrange(pod, order, &mut admitted.pod);
    let before = admitted.pod.clone();
    convert_sidecars(&pod, sidecars, &mut admitted.pod)?;
    admitted.warnings.extend(warnings(&pod, sidecars));
    if is_applied(&pod) && admitted.pod != before {
        let text = "kubectl apply cannot be called again for this pod, because its sidecars are moved to initContainers; use kubectl replace --force";
        admitted.warnings.push(text.to_owned());
    }
    Ok(())
}

/// Turns the containers with a higher launch priority than others into native sidecars, which the kubelet itself
/// starts one after the other. The pod stays as it is where their restart policies or probes do not allow it, or where
/// it has no plan.
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
    let Some(spec) = &pod.spec else { return };
    let names: Vec<&str> = order.iter().map(|&index| spec.containers[index].name.as_str()).collect();
    let sidecars = names.join(",");
    let mut object = admitted.pod.clone();
    let arranged = arrange(pod, order, &mut object);
    if convert_sidecars(&arranged, &sidecars, &mut object).is_ok() {
        if annotation(pod, names::ORDERED) != Some("Ordered") {
            arrange_levels(&mut object);
        }
        admitted.pod = object;
        // What is said of priorities that are ignored would be lost with the containers' places.
        let ignored = planned.warnings.iter().filter(|finding| finding.code == "LP-4");
        admitted.warnings.extend(ignored.map(sentence));
    }
}

/// The next level waits until a native sidecar with a priority is ready, also if another webhook has added its readiness probe since an earlier
/// call.
fn add_startup_probes(object: &mut Value) {
    let list = object.pointer_mut("/spec/initContainers").and_then(Value::as_array_mut);
    for written in list.into_iter().flatten() {
        let Some(container) = native_sidecar(written).filter(|c| priority(c).is_some()) else { continue };
        if let (Some(probe), None) = (&container.readiness_probe, &container.startup_probe) {
            written["startupProbe"] = startup_probe(probe);
        }
    }
}

fn native_sidecar(written: &Value) -> Option<Container> {
    let is_native = written["restartPolicy"] == "Always";
    is_native.then(|| serde_json::from_value(written.clone()).ok()).flatten()
}

/// Puts native sidecars with priorities into their order: some may be from an earlier call, before another webhook added a container.
fn arrange_levels(object: &mut Value) {
    let Some(list) = object["spec"]["initContainers"].as_array_mut() else { return };
    let level = |written: &Value| priority(&native_sidecar(written)?);
    let places: Vec<usize> = (0..list.len()).filter(|&i| level(&list[i]).is_some()).collect();
    let mut sidecars: Vec<Value> = places.iter().map(|&i| list[i].clone()).collect();
    sidecars.sort_by_key(|written| Reverse(level(written)));
    for (place, sidecar) in places.into_iter().zip(sidecars) {
        list[place] = sidecar;
    }
}

/// The containers with a higher launch priority than others, in the order they start in; `None` if there are none, or if
/// they cannot be native sidecars.
fn levels_in_order(pod: &Pod, plan: &Plan) -> Option<Vec<usize>> {
    let containers = &pod.spec.as_ref()?.containers;
    // Native sidecars are restarted whenever they end, and the operator does not supervise their launch.
    let fits = plan.restart_policy == RestartPolicy::Always
        && [names::DEPENDS_ON, names::LAUNCH_TIMEOUT].iter().all(|name| annotation(pod, name).is_none());
    // One that may end for good would end the pod, which sidecars do not keep alive.
    let is_own = |c: &Container| c.restart_policy.is_some() || c.restart_policy_rules.is_some();
    if !fits
        || is_applied(pod)
        || !is_controlled(pod)
        || containers.iter().any(is_own)
        || ports_clash(containers)
    {
        return None;
    }
    let order = levels_as_sidecars(plan)?;
    Some(order.into_iter().map(|i| plan.containers[i].place.index).collect())
}

/// Whether two containers ask for the same port of the node, which the API server refuses in `containers` and does not look for in init
/// containers; or give ports the same name, of which a Service takes the first, and those of init containers last.
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

/// Whether a controller has made the pod. Others (Helm, for example) may compare it with a manifest later, and would find containers moved.
fn is_controlled(pod: &Pod) -> bool {
    pod.metadata.owner_references.iter().flatten().any(|owner| owner.controller == Some(true))
}

/// Whether a pod was made with `kubectl apply`: it compares the pod with the manifest when it is called again, and would find containers moved.
fn is_applied(pod: &Pod) -> bool {
    let by_client = annotation(pod, "kubectl.kubernetes.io/last-applied-configuration").is_some();
    let managers = pod.metadata.managed_fields.iter().flatten();
    by_client || managers.into_iter().any(|manager| manager.operation.as_deref() == Some("Apply"))
}

/// The containers named by the annotation, in the order that `depends-on` and their priorities ask for: the kubelet
/// starts native sidecars one after the other.
fn order_of(pod: &Pod, sidecars: &str) -> Result<Vec<usize>, Refusal> {
    let mut only = pod.clone();
    only.metadata
        .annotations
        .get_or_insert_default()
        .retain(|name, _| name == names::SIDECARS || name == names::DEPENDS_ON);
    for c in &mut only.spec.get_or_insert_default().containers {
        c.env.iter_mut().for_each(|env| env.retain(|e| names::PRIORITY_ENVS.contains(&e.name.as_str())));
    }
    let input = PodInput { pod: only, lifecycle_types: Default::default() };
    let planned = plan(&input, &FeatureGates::default()).map_err(|findings| refuse(&findings))?;
    let all = &planned.plan.containers;
    let is_named = |name: &str| sidecars.split(',').any(|named| named.trim() == name);
    let order = in_order(&planned.plan, |i| all[i].place.list == List::Main && is_named(&all[i].name));
    Ok(order.into_iter().map(|i| all[i].place.index).collect())
}

/// Puts containers into this order. Only they change places among each other.
fn arrange(pod: &Pod, order: Vec<usize>, object: &mut Value) -> Pod {
    let mut arranged = pod.clone();
    let mut places = order.clone();
    places.sort_unstable();
    let written = object.clone();
    let (Some(spec), Some(old)) = (&mut arranged.spec, &pod.spec) else { return arranged };
    for (place, from) in places.into_iter().zip(order) {
        spec.containers[place] = old.containers[from].clone();
        object["spec"]["containers"][place] = written["spec"]["containers"][from].clone();
    }
    arranged
}

/// Turns these containers into native sidecars, in the order of the KEP. Everything else in the pod about order stays.
fn convert_sidecars(pod: &Pod, sidecars: &str, object: &mut Value) -> Result<(), Refusal> {
    let mut only = pod.clone();
    only.metadata.annotations = Some([(names::SIDECARS.to_owned(), sidecars.to_owned())].into());
    let spec = only.spec.get_or_insert_default();
    for c in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
        (c.env, c.lifecycle) = (None, None);
    }
    let input = PodInput { pod: only, lifecycle_types: Default::default() };
    let planned = plan(&input, &FeatureGates::default()).map_err(|findings| refuse(&findings))?;
    if !planned.plan.containers.iter().any(|c| c.dialect == Some(Dialect::Kep)) {
        return Ok(());
    }
    let edits = convert(&input, &planned.plan, Target::Native);
    let mut converted = json!(input.pod);
    apply(&mut converted, &edits);
    let converted = PodInput { pod: typed(&converted)?, lifecycle_types: Default::default() };
    let after = plan(&converted, &FeatureGates::default()).map_err(|findings| refuse(&findings))?;
    if let Some(lost) = compare(&planned.plan, &after.plan).into_iter().find(|d| d.loss) {
        let text = format!(
            "annotation {}: native sidecars cannot do this: {}; leave the startupProbe of a sidecar with a readinessProbe out, or make it test the same, and use a successThreshold of 1",
            names::SIDECARS,
            lost.text
        );
        return Err(Refusal::new(422, text));
    }
    apply(object, &edits);
    Ok(())
}

/// What becomes different for the containers of `spec.containers` that are named.
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
    // The KEP runs them once more, when it is the sidecar's turn to stop.
    let hooked = those(|c| c.lifecycle.as_ref().is_some_and(|hooks| hooks.pre_stop.is_some()));
    if !hooked.is_empty() {
        warnings.push(format!(
            "the kubelet runs the preStop hooks of native sidecars when the pod begins to stop, before the mains have ended: {hooked}"
        ));
    }
    warnings
}
