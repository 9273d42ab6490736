//! Objects that pods refer to, such as ConfigMaps and Secrets.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret};
use k8s_openapi::api::scheduling::v1::PriorityClass;

/// The ConfigMap that a cluster creates in every namespace. Every pod exported from a cluster mounts it
/// beside its token. Here it is optional.
pub const ROOT_CA: &str = "kube-root-ca.crt";

/// Objects that pods refer to, by namespace and name.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Companions {
    /// ConfigMaps.
    pub config_maps: BTreeMap<(String, String), ConfigMap>,
    /// Secrets; `stringData` is merged into `data`, as the API server does.
    pub secrets: BTreeMap<(String, String), Secret>,
    /// PersistentVolumeClaims, including those a StatefulSet creates.
    pub persistent_volume_claims: BTreeMap<(String, String), PersistentVolumeClaim>,
    /// PriorityClasses by name; they have no namespace.
    pub priority_classes: BTreeMap<String, PriorityClass>,
}

impl Companions {
    /// A pod's priority, as a cluster's admission would set it: its own `priority`, or that of its class, or
    /// that of the default class, or 0.
    pub fn priority(&self, pod: &Pod) -> i32 {
        let spec = pod.spec.as_ref();
        if let Some(priority) = spec.and_then(|spec| spec.priority) {
            return priority;
        }
        match spec.and_then(|spec| spec.priority_class_name.as_deref()).filter(|name| !name.is_empty()) {
            // Every cluster has these two classes.
            Some("system-node-critical") => 2_000_001_000,
            Some("system-cluster-critical") => 2_000_000_000,
            Some(name) => self.priority_classes.get(name).and_then(|class| class.value).unwrap_or(0),
            None => {
                let defaults =
                    self.priority_classes.values().filter(|class| class.global_default == Some(true));
                defaults.filter_map(|class| class.value).min().unwrap_or(0)
            }
        }
    }
}
