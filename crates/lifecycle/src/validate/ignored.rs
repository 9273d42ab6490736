//! Reports fields that are valid but have no effect on a single machine without a cluster.

use k8s_openapi::api::core::v1::{PodSpec, Toleration};

use super::{Site, resources};
use crate::source::{FieldPath, Finding};

const SCHEDULING: &str = "there is one machine and no scheduler";

const NO_TOKENS: &str = "there is no API server to issue a token for";

/// Tolerations that the API server adds to every pod.
const TOLERATED_BY_ALL: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];

pub(super) fn check(out: &mut Vec<Finding>, spec: &PodSpec, sites: &[Site<'_>]) {
    let filled = |value: &Option<String>, default: &str| {
        value.as_deref().is_some_and(|v| !v.is_empty() && v != default)
    };
    let own = |t: &Toleration| !t.key.as_deref().is_some_and(|key| TOLERATED_BY_ALL.contains(&key));
    let fields = [
        ("affinity", spec.affinity.is_some(), SCHEDULING),
        ("nodeSelector", some(&spec.node_selector), SCHEDULING),
        ("preemptionPolicy", filled(&spec.preemption_policy, "PreemptLowerPriority"), SCHEDULING),
        ("schedulerName", filled(&spec.scheduler_name, "default-scheduler"), SCHEDULING),
        ("schedulingGates", some(&spec.scheduling_gates), SCHEDULING),
        ("schedulingGroup", spec.scheduling_group.is_some(), SCHEDULING),
        ("tolerations", spec.tolerations.iter().flatten().any(own), SCHEDULING),
        ("topologySpreadConstraints", some(&spec.topology_spread_constraints), SCHEDULING),
        ("overhead", some(&spec.overhead), SCHEDULING),
        ("automountServiceAccountToken", spec.automount_service_account_token == Some(true), NO_TOKENS),
        ("serviceAccountName", filled(&spec.service_account_name, "default"), NO_TOKENS),
        ("resourceClaims", some(&spec.resource_claims), "there are no device drivers"),
    ];
    // A pod exported from a cluster has a node name. Its scheduling fields were used there, so they are not
    // reported.
    let is_from_cluster = filled(&spec.node_name, "");
    for (field, given, why) in fields {
        if given && !(is_from_cluster && [SCHEDULING, NO_TOKENS].contains(&why)) {
            out.push(Finding::warning(
                "ignored",
                FieldPath::spec(field),
                format!("{field} has no effect here: {why}"),
            ));
        }
    }
    let priorities = [
        ("priority", spec.priority.is_some_and(|p| p != 0)),
        ("priorityClassName", filled(&spec.priority_class_name, "")),
    ];
    for (field, _) in priorities.into_iter().filter(|(_, given)| *given && !is_from_cluster) {
        let message = format!(
            "there is no scheduler: {field} only decides which pods a node stops first when the machine shuts down"
        );
        out.push(Finding::warning("ignored", FieldPath::spec(field), message));
    }
    if some(&spec.readiness_gates) {
        out.push(
            Finding::warning(
                "ignored",
                FieldPath::spec("readinessGates"),
                "the pod will never be Ready: nothing here sets the conditions its readinessGates wait for",
            )
            .hint("remove readinessGates to run the pod on one machine"),
        );
    }
    if let Some(pod) = &spec.resources {
        resources::requirements(out, FieldPath::spec("resources"), pod);
    }
    for site in sites {
        container(out, site, is_from_cluster);
    }
}

fn container(out: &mut Vec<Finding>, site: &Site<'_>, is_from_cluster: bool) {
    let c = &site.container;
    let security = c.security_context.as_ref();
    let fields = [
        // The API server adds a resize policy for every container with resources, so that one is not
        // reported.
        (
            "resizePolicy",
            some(&c.resize_policy) && !is_from_cluster,
            "containers are not resized while they run",
        ),
    ];
    for (field, given, why) in fields {
        if given {
            out.push(Finding::warning(
                "ignored",
                site.at(field),
                format!("{field} has no effect here: {why}"),
            ));
        }
    }
    let context =
        [("windowsOptions", security.is_some_and(|s| s.windows_options.is_some()), "this is not Windows")];
    for (field, given, why) in context {
        if given {
            let path = site.at("securityContext").field(field);
            out.push(Finding::warning("ignored", path, format!("{field} has no effect here: {why}")));
        }
    }
    if some(&c.volume_devices) {
        let message = "volumeDevices are not supported: there are no block volumes";
        out.push(
            Finding::error("volume", site.at("volumeDevices"), message)
                .hint("mount the device with a hostPath volume"),
        );
    }
    let Some(resources) = &c.resources else { return };
    let path = site.at("resources");
    if some(&resources.claims) {
        let message = "resource claims have no effect here: there are no device drivers";
        out.push(Finding::warning("ignored", path.clone().field("claims"), message));
    }
    for name in resources.limits.iter().flatten().map(|(name, _)| name) {
        if name.contains('/') || name.starts_with("hugepages-") || name == "ephemeral-storage" {
            let message = format!("{name} has no effect here: only cpu and memory are limited");
            out.push(Finding::warning("ignored", path.clone().field("limits").field(name.clone()), message));
        }
    }
}

/// Whether a list or map is present and not empty.
fn some<T>(value: &Option<T>) -> bool
where
    for<'a> &'a T: IntoIterator,
{
    value.as_ref().is_some_and(|v| v.into_iter().next().is_some())
}
