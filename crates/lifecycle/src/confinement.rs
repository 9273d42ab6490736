//! The AppArmor profile and SELinux label of a container, and where they are set.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{AppArmorProfile, Container, PodSpec, SELinuxOptions};

/// The prefix of the annotations that set profiles before Kubernetes 1.30. The name of a container follows
/// it.
pub const APP_ARMOR_ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";

/// Where a setting was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SettingOrigin {
    /// In the container's own `securityContext`.
    Container,
    /// In the pod's `securityContext`.
    Pod,
    /// In the annotation of this name.
    Annotation(String),
}

/// The AppArmor profile of a container: its own, or the annotation's, or the pod's. An invalid annotation is
/// ignored here, because validation refuses it.
pub fn app_armor_profile(
    annotations: Option<&BTreeMap<String, String>>,
    spec: &PodSpec,
    container: &Container,
) -> Option<(AppArmorProfile, SettingOrigin)> {
    let own = container.security_context.as_ref().and_then(|c| c.app_armor_profile.clone());
    if let Some(profile) = own {
        return Some((profile, SettingOrigin::Container));
    }
    let key = format!("{APP_ARMOR_ANNOTATION}{}", container.name);
    if let Some(profile) = annotations.and_then(|a| a.get(&key)).and_then(|value| annotated(value)) {
        return Some((profile, SettingOrigin::Annotation(key)));
    }
    let pod = spec.security_context.as_ref().and_then(|c| c.app_armor_profile.clone());
    pod.map(|profile| (profile, SettingOrigin::Pod))
}

/// The profile that the value of an annotation selects.
pub(crate) fn annotated(value: &str) -> Option<AppArmorProfile> {
    let profile = |kind: &str, local: Option<&str>| AppArmorProfile {
        type_: kind.to_owned(),
        localhost_profile: local.map(str::to_owned),
    };
    match value {
        "runtime/default" => Some(profile("RuntimeDefault", None)),
        "unconfined" => Some(profile("Unconfined", None)),
        _ => match value.strip_prefix("localhost/") {
            Some(name) if !name.is_empty() => Some(profile("Localhost", Some(name))),
            _ => None,
        },
    }
}

/// The SELinux label of a container. Each part comes from the container or, if it is not set there, from the
/// pod.
pub fn selinux_options(spec: &PodSpec, container: &Container) -> Option<(SELinuxOptions, SettingOrigin)> {
    let own = container.security_context.as_ref().and_then(|c| c.se_linux_options.clone());
    let pod = || spec.security_context.as_ref().and_then(|c| c.se_linux_options.clone());
    match own {
        Some(own) => Some((own, SettingOrigin::Container)),
        None => pod().map(|pod| (pod, SettingOrigin::Pod)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_containers_own_profile_wins() {
        let profile = |kind: &str| json!({"appArmorProfile": {"type": kind}});
        let spec = |context: serde_json::Value| -> PodSpec {
            serde_json::from_value(json!({"containers": [], "securityContext": context})).unwrap()
        };
        let container = |context: serde_json::Value| -> Container {
            serde_json::from_value(json!({"name": "c", "securityContext": context})).unwrap()
        };
        let key = format!("{APP_ARMOR_ANNOTATION}c");
        let annotations = |value: &str| BTreeMap::from([(key.clone(), value.to_owned())]);
        for (annotation, pod, own, expected) in [
            (None, json!({}), json!({}), None),
            (None, profile("Unconfined"), json!({}), Some(("Unconfined", SettingOrigin::Pod))),
            (
                Some("localhost/web"),
                profile("Unconfined"),
                json!({}),
                Some(("Localhost", SettingOrigin::Annotation(key.clone()))),
            ),
            (
                Some("runtime/default"),
                profile("Unconfined"),
                profile("Unconfined"),
                Some(("Unconfined", SettingOrigin::Container)),
            ),
            (Some("nonsense"), json!({}), json!({}), None),
        ] {
            let annotations = annotation.map(&annotations);
            let got = app_armor_profile(annotations.as_ref(), &spec(pod), &container(own));
            let got = got.map(|(profile, origin)| (profile.type_, origin));
            assert_eq!(got, expected.map(|(kind, origin)| (kind.to_owned(), origin)), "{annotation:?}");
        }
    }
}
