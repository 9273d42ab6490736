//! Turns single containers into native sidecars, for webhooks: everything else in the pod stays as it is.

use k8s_openapi::api::core::v1::Container;
use serde_json::json;

use super::lists::{arrange, container, startup_probe};
use super::{Difference, Edit};
use crate::dialect::annotations::SIDECARS;
use crate::dialect::launch_priority;
use crate::plan::{ContainerPlan, Plan};
use crate::source::{FieldPath, List, PodInput};

/// The edits that turn these containers of `spec.containers` into native sidecars, which start in this order, after the
/// init containers. As with the KEP, the other containers start once the sidecars are ready. The plan only says where
/// containers are and what their probes test, so any plan of the pod will do.
///
/// # Errors
/// The container whose readiness the others would no longer wait for: a kubelet starts the next container as soon as a
/// native sidecar has passed its startup probe.
pub fn native_sidecars(input: &PodInput, plan: &Plan, sidecars: &[usize]) -> Result<Vec<Edit>, Difference> {
    let mut edits = Vec::new();
    if sidecars.is_empty() {
        return Ok(edits);
    }
    if input.pod.metadata.annotations.as_ref().is_some_and(|written| written.contains_key(SIDECARS)) {
        edits.push(Edit::Prune { path: FieldPath::annotation(SIDECARS) });
    }
    for &i in sidecars {
        become_native(input, &plan.containers[i], &mut edits)?;
    }
    let inits = (0..plan.containers.len()).filter(|&i| plan.containers[i].place.list == List::Init);
    let inits: Vec<usize> = inits.chain(sidecars.iter().copied()).collect();
    arrange(plan, &inits, &mut edits);
    Ok(edits)
}

fn become_native(input: &PodInput, c: &ContainerPlan, edits: &mut Vec<Edit>) -> Result<(), Difference> {
    let insert = |key, value, after| Edit::Insert { map: c.place.path(), key, value, after };
    edits.push(insert("restartPolicy", json!("Always"), "image"));
    let Some(written) = container(input, c.place) else { return Ok(()) };
    let Some(readiness) = &written.readiness_probe else { return Ok(()) };
    let waits_until_ready = match written.startup_probe {
        Some(_) => c.started_is_ready,
        None => {
            edits.push(insert("startupProbe", startup_probe(readiness), "readinessProbe"));
            // A startup probe passes after one success.
            readiness.success_threshold.is_none_or(|n| n <= 1)
        }
    };
    if waits_until_ready {
        return Ok(());
    }
    let text = format!("the other containers wait for `{}` to be started only, not ready", c.name);
    Err(Difference { loss: true, place: c.place, text })
}

/// The order of these `initContainers` in which native sidecars with launch priorities start one after the other, higher
/// first (LP-23). The others keep their places.
pub fn native_levels(inits: &[Container]) -> Vec<usize> {
    let level = |i: usize| {
        let is_native = inits[i].restart_policy.as_deref() == Some("Always");
        is_native.then(|| launch_priority(&inits[i])).flatten()
    };
    let places: Vec<usize> = (0..inits.len()).filter(|&i| level(i).is_some()).collect();
    let mut by_level = places.clone();
    by_level.sort_by_key(|&i| std::cmp::Reverse(level(i)));
    let mut order: Vec<usize> = (0..inits.len()).collect();
    for (place, from) in places.into_iter().zip(by_level) {
        order[place] = from;
    }
    order
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::convert::{Target, apply, compare, convert};
    use crate::plan::Dialect;
    use crate::source::FeatureGates;

    fn input(pod: &Value) -> PodInput {
        let pod = serde_json::from_value(pod.clone()).expect("a pod");
        PodInput { pod, lifecycle_types: Default::default() }
    }

    /// What the conversion of a whole pod from the KEP's dialect does, and whether something is lost in it.
    fn converted(pod: &Value) -> (Value, bool) {
        let planned = |pod: &Value| crate::plan(&input(pod), &FeatureGates::default()).expect("a plan").plan;
        let before = planned(pod);
        let mut out = pod.clone();
        apply(&mut out, &convert(&input(pod), &before, Target::Native));
        let is_lossy = compare(&before, &planned(&out)).iter().any(|difference| difference.loss);
        (out, is_lossy)
    }

    #[test]
    fn it_does_what_a_conversion_of_the_whole_pod_does() {
        let probe = json!({"httpGet": {"path": "/", "port": 80}});
        let twice = json!({"httpGet": {"path": "/", "port": 80}, "successThreshold": 2});
        let other = json!({"exec": {"command": ["true"]}});
        let probes = [
            json!({}),
            json!({"readinessProbe": probe}),
            json!({"startupProbe": other}),
            json!({"readinessProbe": probe, "startupProbe": probe}),
            json!({"readinessProbe": probe, "startupProbe": other}),
            json!({"readinessProbe": twice}),
            json!({"readinessProbe": twice, "startupProbe": probe}),
        ];
        let inits = [
            json!([]),
            json!([{"name": "setup", "image": "i"}]),
            json!([{"name": "dns", "image": "i", "restartPolicy": "Always", "readinessProbe": probe}, {"name": "setup", "image": "i"}]),
        ];
        let mut losses = 0;
        for policy in ["Always", "OnFailure", "Never"] {
            for init in &inits {
                for probes in &probes {
                    let mut proxy = json!({"name": "proxy", "image": "i"});
                    proxy.as_object_mut().expect("a map").extend(probes.as_object().expect("a map").clone());
                    let pod = json!({
                        "metadata": {"name": "p", "annotations": {SIDECARS: "proxy,log"}},
                        "spec": {
                            "restartPolicy": policy, "initContainers": init,
                            "containers": [{"name": "app", "image": "i"}, proxy, {"name": "log", "image": "i"}],
                        },
                    });
                    let plan = crate::plan(&input(&pod), &FeatureGates::default()).expect("a plan").plan;
                    let is_named = |&i: &usize| plan.containers[i].dialect == Some(Dialect::Kep);
                    let named: Vec<usize> = (0..plan.containers.len()).filter(is_named).collect();
                    let (expected, is_lossy) = converted(&pod);
                    losses += u32::from(is_lossy);
                    match native_sidecars(&input(&pod), &plan, &named) {
                        Ok(edits) => {
                            let mut out = pod.clone();
                            apply(&mut out, &edits);
                            assert_eq!((out, is_lossy), (expected, false), "{pod:#}");
                        }
                        Err(difference) => assert!(is_lossy, "{difference:?} {pod:#}"),
                    }
                }
            }
        }
        assert!(losses > 0);
    }

    #[test]
    fn native_sidecars_with_priorities_change_places_among_each_other() {
        // LP-23
        let container = |name: &str, policy: &str, priority: &str| {
            let env = json!([{"name": "KRUISE_CONTAINER_PRIORITY", "value": priority}]);
            json!({"name": name, "restartPolicy": policy, "env": env})
        };
        let inits = json!([
            container("one", "Always", "1"),
            {"name": "setup"},
            container("init", "OnFailure", "9"),
            {"name": "plain", "restartPolicy": "Always"},
            container("one-more", "Always", "1"),
            container("five", "Always", "5"),
        ]);
        let inits: Vec<Container> = serde_json::from_value(inits).expect("containers");
        assert_eq!(native_levels(&inits), [5, 1, 2, 3, 0, 4]);
    }
}
