//! `securityContext` and `resources` of pod and container, translated to the runtime's types.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{AppArmorProfile, Container, PodSpec, ResourceRequirements, SeccompProfile};
use outrigger_lifecycle::{QuantityError, app_armor_profile, selinux_options};
use outrigger_runtime::{AppArmor, Identity, Resources, Seccomp, SelinuxLabel};

use crate::quantity;

/// What is wrong with a `securityContext` or with `resources`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SecurityError {
    /// A group id is out of range.
    #[error("group id {0} is out of range")]
    Group(i64),
    /// An unknown `supplementalGroupsPolicy`.
    #[error("supplementalGroupsPolicy {0:?} is not known; use Merge or Strict")]
    GroupsPolicy(String),
    /// The type of an AppArmor profile is unknown or does not match its name.
    #[error("appArmorProfile of type {kind:?} with localhostProfile {name:?} is not valid")]
    AppArmor {
        /// `type`.
        kind: String,
        /// `localhostProfile`.
        name: Option<String>,
    },
    /// The name of a seccomp profile leads out of the directory of profiles.
    #[error("localhostProfile {0:?} must be a relative path without `..`")]
    SeccompPath(String),
    /// There is no seccomp profile at this path.
    #[error("seccomp profile {} does not exist", .0.display())]
    NoSeccompProfile(PathBuf),
    /// An unknown type of a seccomp profile.
    #[error("seccompProfile.type {0:?} is not known; use RuntimeDefault, Unconfined or Localhost")]
    SeccompType(String),
    /// A limit or a request is invalid.
    #[error(transparent)]
    Quantity(#[from] QuantityError),
}

/// Directory of `localhostProfile` files, below the state directory.
const SECCOMP_DIR: &str = "seccomp";

/// The user and groups of a container: its own settings, else the pod's.
pub(crate) fn identity(
    annotations: Option<&BTreeMap<String, String>>,
    spec: &PodSpec,
    container: &Container,
    state_dir: &Path,
) -> Result<Identity, SecurityError> {
    let pod = spec.security_context.as_ref();
    let own = container.security_context.as_ref();
    let privileged = privileged(container);
    let capabilities = own.and_then(|c| c.capabilities.as_ref());
    let profile =
        own.and_then(|c| c.seccomp_profile.as_ref()).or(pod.and_then(|p| p.seccomp_profile.as_ref()));
    let mut groups = Vec::new();
    let pod_groups = pod.and_then(|p| p.supplemental_groups.as_deref()).unwrap_or(&[]);
    let fs_group = pod.and_then(|p| p.fs_group);
    for group in pod_groups.iter().copied().chain(fs_group) {
        let group = u32::try_from(group).map_err(|_| SecurityError::Group(group))?;
        if !groups.contains(&group) {
            groups.push(group);
        }
    }
    Ok(Identity {
        run_as_user: own.and_then(|c| c.run_as_user).or(pod.and_then(|p| p.run_as_user)),
        run_as_group: own.and_then(|c| c.run_as_group).or(pod.and_then(|p| p.run_as_group)),
        run_as_non_root: own
            .and_then(|c| c.run_as_non_root)
            .or(pod.and_then(|p| p.run_as_non_root))
            .unwrap_or(false),
        supplemental_groups: groups,
        strict_groups: match pod.and_then(|p| p.supplemental_groups_policy.as_deref()) {
            None | Some("Merge") => false,
            Some("Strict") => true,
            Some(other) => return Err(SecurityError::GroupsPolicy(other.to_owned())),
        },
        add_capabilities: added_capabilities(container),
        drop_capabilities: names(capabilities.and_then(|c| c.drop.as_deref())),
        privileged,
        no_new_privileges: own.and_then(|c| c.allow_privilege_escalation) == Some(false),
        seccomp: seccomp(profile, privileged, state_dir)?,
        apparmor: app_armor_profile(annotations, spec, container)
            .map(|(profile, _)| app_armor(&profile))
            .transpose()?,
        selinux: selinux_options(spec, container).map(|(label, _)| SelinuxLabel {
            user: label.user,
            role: label.role,
            kind: label.type_,
            level: label.level,
        }),
    })
}

/// Converts an AppArmor profile to the runtime's type.
///
/// # Errors
/// Returns an error if the profile is invalid.
pub fn app_armor(profile: &AppArmorProfile) -> Result<AppArmor, SecurityError> {
    match (profile.type_.as_str(), profile.localhost_profile.as_deref()) {
        ("RuntimeDefault", None) => Ok(AppArmor::Default),
        ("Unconfined", None) => Ok(AppArmor::Unconfined),
        ("Localhost", Some(name)) if !name.is_empty() => Ok(AppArmor::Localhost(name.to_owned())),
        (kind, name) => Err(SecurityError::AppArmor { kind: kind.to_owned(), name: name.map(str::to_owned) }),
    }
}

/// Names of the capabilities a container adds to the default set.
pub(crate) fn added_capabilities(container: &Container) -> Vec<String> {
    let own = container.security_context.as_ref().and_then(|c| c.capabilities.as_ref());
    names(own.and_then(|c| c.add.as_deref()))
}

/// Whether a container is privileged.
pub(crate) fn privileged(container: &Container) -> bool {
    container.security_context.as_ref().and_then(|c| c.privileged) == Some(true)
}

fn names(list: Option<&[String]>) -> Vec<String> {
    let name = |c: &String| {
        let upper = c.to_ascii_uppercase();
        upper.strip_prefix("CAP_").map_or(upper.clone(), str::to_owned)
    };
    list.unwrap_or(&[]).iter().map(name).collect()
}

/// The path of a `localhostProfile` file.
///
/// # Errors
/// Returns an error if the name leads out of the profile directory.
pub fn seccomp_profile_path(state_dir: &Path, name: &str) -> Result<PathBuf, SecurityError> {
    let inside = |p: &Path| p.components().all(|c| matches!(c, std::path::Component::Normal(_)));
    if name.is_empty() || !inside(Path::new(name)) {
        return Err(SecurityError::SeccompPath(name.to_owned()));
    }
    Ok(state_dir.join(SECCOMP_DIR).join(name))
}

fn seccomp(
    profile: Option<&SeccompProfile>,
    privileged: bool,
    state_dir: &Path,
) -> Result<Seccomp, SecurityError> {
    if privileged {
        return Ok(Seccomp::Unconfined);
    }
    let Some(profile) = profile else {
        return Ok(Seccomp::Default);
    };
    match profile.type_.as_str() {
        "RuntimeDefault" => Ok(Seccomp::Default),
        "Unconfined" => Ok(Seccomp::Unconfined),
        "Localhost" => {
            let path = seccomp_profile_path(state_dir, profile.localhost_profile.as_deref().unwrap_or(""))?;
            match path.is_file() {
                true => Ok(Seccomp::Localhost(path)),
                false => Err(SecurityError::NoSeccompProfile(path)),
            }
        }
        other => Err(SecurityError::SeccompType(other.to_owned())),
    }
}

/// Whether the root file system is read-only.
pub(crate) fn read_only_rootfs(container: &Container) -> bool {
    let own = container.security_context.as_ref();
    own.and_then(|c| c.read_only_root_filesystem) == Some(true)
}

/// Whether the sensitive paths of /proc and /sys are masked.
pub(crate) fn mask_paths(container: &Container) -> bool {
    let own = container.security_context.as_ref();
    own.and_then(|c| c.proc_mount.as_deref()) != Some("Unmasked")
        && own.and_then(|c| c.privileged) != Some(true)
}

/// Limits of a container or of a whole pod.
pub(crate) fn resources(requirements: Option<&ResourceRequirements>) -> Result<Resources, SecurityError> {
    let limit = |name: &str| requirements.and_then(|r| r.limits.as_ref()).and_then(|l| l.get(name));
    let request = |name: &str| requirements.and_then(|r| r.requests.as_ref()).and_then(|l| l.get(name));
    let some = |value: u64| (value > 0).then_some(value);
    Ok(Resources {
        cpu_request_milli: request("cpu").map(quantity::milli_value).transpose()?,
        cpu_limit_milli: limit("cpu").map(quantity::milli_value).transpose()?.and_then(some),
        memory_limit_bytes: limit("memory").map(quantity::value).transpose()?.and_then(some),
        pids_limit: None,
        oom_score_adj: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn both(pod: serde_json::Value, container: serde_json::Value) -> Result<Identity, SecurityError> {
        let spec: PodSpec =
            serde_json::from_value(json!({"containers": [], "securityContext": pod})).unwrap();
        let container: Container =
            serde_json::from_value(json!({"name": "c", "securityContext": container})).unwrap();
        identity(None, &spec, &container, Path::new("/nowhere"))
    }

    #[test]
    fn a_containers_own_settings_win() {
        let id = both(
            json!({"runAsUser": 1000, "runAsGroup": 2000, "runAsNonRoot": true,
                   "supplementalGroups": [5, 6], "fsGroup": 6, "seccompProfile": {"type": "Unconfined"}}),
            json!({"runAsUser": 1234, "runAsNonRoot": false, "allowPrivilegeEscalation": false,
                   "capabilities": {"add": ["NET_ADMIN", "CAP_SYS_TIME"], "drop": ["all"]},
                   "seccompProfile": {"type": "RuntimeDefault"}}),
        )
        .unwrap();
        assert_eq!((id.run_as_user, id.run_as_group), (Some(1234), Some(2000)));
        assert!(!id.run_as_non_root && id.no_new_privileges && !id.privileged);
        assert_eq!(id.supplemental_groups, [5, 6]);
        assert_eq!(id.add_capabilities, ["NET_ADMIN", "SYS_TIME"]);
        assert_eq!(id.drop_capabilities, ["ALL"]);
        assert_eq!(id.seccomp, Seccomp::Default);
    }

    #[test]
    fn privileged_is_unconfined_and_bad_profiles_are_refused() {
        let id = both(json!({}), json!({"privileged": true})).unwrap();
        assert_eq!(id.seccomp, Seccomp::Unconfined);
        for (kind, file) in [("Localhost", "../../etc/passwd"), ("Localhost", "none.json"), ("Odd", "")] {
            let profile = json!({"seccompProfile": {"type": kind, "localhostProfile": file}});
            assert!(both(json!({}), profile).is_err(), "{kind} {file}");
        }
        assert!(both(json!({"supplementalGroups": [-1]}), json!({})).is_err());
    }

    #[test]
    fn confinement_is_passed_on_whole() {
        let id = both(
            json!({"supplementalGroupsPolicy": "Strict", "appArmorProfile": {"type": "Unconfined"},
                   "seLinuxOptions": {"level": "s0:c1"}}),
            json!({"appArmorProfile": {"type": "Localhost", "localhostProfile": "web"}}),
        )
        .unwrap();
        assert!(id.strict_groups);
        assert_eq!(id.apparmor, Some(AppArmor::Localhost("web".into())));
        assert_eq!(id.selinux, Some(SelinuxLabel { level: Some("s0:c1".into()), ..Default::default() }));
        let plain = both(json!({"supplementalGroupsPolicy": "Merge"}), json!({})).unwrap();
        assert!(!plain.strict_groups && plain.apparmor.is_none() && plain.selinux.is_none());
        assert!(both(json!({"supplementalGroupsPolicy": "Odd"}), json!({})).is_err());
        assert!(both(json!({"appArmorProfile": {"type": "Odd"}}), json!({})).is_err());
    }

    #[test]
    fn limits_become_numbers() {
        let requirements: ResourceRequirements = serde_json::from_value(
            json!({"limits": {"cpu": "500m", "memory": "64Mi"}, "requests": {"cpu": "0.1"}}),
        )
        .unwrap();
        let got = resources(Some(&requirements)).unwrap();
        assert_eq!(got.cpu_limit_milli, Some(500));
        assert_eq!(got.cpu_request_milli, Some(100));
        assert_eq!(got.memory_limit_bytes, Some(64 << 20));
        assert_eq!(resources(None).unwrap(), Resources::default());
    }
}
