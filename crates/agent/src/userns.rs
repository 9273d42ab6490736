//! Decides which pods get a user namespace. Root in such a namespace has no privileges on the host.

use k8s_openapi::api::core::v1::{Container, PodSpec};
use outrigger_lifecycle::NAMESPACE_IDS;
use outrigger_runtime::{NetworkMode, UserNamespace};

use crate::options::UserNamespaces;
use crate::security;

/// Maximum number of pods named in one message.
const NAMED_MAX: usize = 5;

/// Capabilities that have no effect in a user namespace, because the kernel checks them against the initial
/// one. `MKNOD`, which every container has by default, counts only if requested explicitly.
const CAPABILITIES_OF_THE_HOST: [&str; 19] = [
    "ALL",
    "AUDIT_CONTROL",
    "AUDIT_READ",
    "BLOCK_SUSPEND",
    "BPF",
    "IPC_LOCK",
    "LINUX_IMMUTABLE",
    "MAC_ADMIN",
    "MAC_OVERRIDE",
    "MKNOD",
    "PERFMON",
    "SYSLOG",
    "SYS_MODULE",
    "SYS_NICE",
    "SYS_PACCT",
    "SYS_RAWIO",
    "SYS_RESOURCE",
    "SYS_TIME",
    "WAKE_ALARM",
];

/// Whether a pod gets a user namespace, and which of its requests prevents one.
pub(crate) struct Choice {
    pub(crate) wanted: UserNamespace,
    pub(crate) left_out: Option<String>,
}

/// Follows the pod's own setting, else that of the run, unless the pod requests something incompatible.
pub(crate) fn choose(
    spec: &PodSpec,
    containers: &[Container],
    network: NetworkMode,
    of_run: UserNamespaces,
) -> Choice {
    let plain = |wanted| Choice { wanted, left_out: None };
    match (spec.host_users, of_run) {
        (Some(true), _) => plain(UserNamespace::Host),
        (Some(false), _) => plain(UserNamespace::Required),
        (None, UserNamespaces::Host) => plain(UserNamespace::Host),
        (None, UserNamespaces::Auto) => match exclusion(spec, containers, network) {
            None => plain(UserNamespace::Auto),
            left_out => Choice { wanted: UserNamespace::Host, left_out },
        },
    }
}

/// The request of a pod that needs the host's users.
fn exclusion(spec: &PodSpec, containers: &[Container], network: NetworkMode) -> Option<String> {
    let fields = [
        ("hostNetwork", spec.host_network),
        ("hostPID", spec.host_pid),
        ("hostIPC", spec.host_ipc),
        ("privileged", Some(containers.iter().any(security::privileged))),
    ];
    if let Some((name, _)) = fields.into_iter().find(|(_, value)| *value == Some(true)) {
        return Some(name.to_owned());
    }
    if network == NetworkMode::Host {
        return Some("--network host".to_owned());
    }
    let capabilities = containers.iter().flat_map(security::added_capabilities);
    let mut of_host = capabilities.filter(|name| CAPABILITIES_OF_THE_HOST.contains(&name.as_str()));
    if let Some(name) = of_host.next() {
        return Some(format!("capability {name}"));
    }
    large_id(spec, containers).map(|(field, id)| format!("{field} {id}"))
}

/// A user or group id outside the range of a user namespace.
fn large_id(pod: &PodSpec, containers: &[Container]) -> Option<(&'static str, i64)> {
    let of_pod = pod.security_context.iter().flat_map(|c| {
        let one = [("runAsUser", c.run_as_user), ("runAsGroup", c.run_as_group), ("fsGroup", c.fs_group)];
        let more = c.supplemental_groups.iter().flatten().map(|id| ("supplementalGroups", Some(*id)));
        one.into_iter().chain(more)
    });
    let of_containers = containers
        .iter()
        .filter_map(|c| c.security_context.as_ref())
        .flat_map(|c| [("runAsUser", c.run_as_user), ("runAsGroup", c.run_as_group)]);
    let mut set = of_pod.chain(of_containers).filter_map(|(field, id)| Some((field, id?)));
    set.find(|(_, id)| *id >= NAMESPACE_IDS)
}

/// One message about all pods without a user namespace, with names and reasons.
pub fn about(left_out: &[(String, String)]) -> Option<String> {
    let whose = match left_out.len() {
        0 => return None,
        1 => "has no user namespace, so root in its containers",
        _ => "have no user namespace, so root in their containers",
    };
    let mut names: Vec<String> =
        left_out.iter().take(NAMED_MAX).map(|(pod, why)| format!("{pod} ({why})")).collect();
    if left_out.len() > NAMED_MAX {
        names.push(format!("{} more", left_out.len() - NAMED_MAX));
    }
    let last = names.pop().unwrap_or_default();
    let names = if names.is_empty() { last } else { format!("{} and {last}", names.join(", ")) };
    let pods = if left_out.len() == 1 { "pod" } else { "pods" };
    Some(format!("{pods} {names} {whose} is root on this machine (hostUsers: true hides this message)"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn choice(spec: serde_json::Value, network: NetworkMode, of_run: UserNamespaces) -> Choice {
        let mut object = json!({"containers": [{"name": "c"}]});
        object.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        let spec: PodSpec = serde_json::from_value(object).unwrap();
        choose(&spec, &spec.containers, network, of_run)
    }

    fn container(context: serde_json::Value) -> serde_json::Value {
        json!({"containers": [{"name": "c", "securityContext": context}]})
    }

    #[test]
    fn what_a_pod_asks_for_decides() {
        use UserNamespace::{Auto, Host, Required};
        for (spec, wanted, why) in [
            (json!({}), Auto, None),
            (json!({"hostUsers": false, "hostNetwork": true}), Required, None),
            (json!({"hostUsers": true, "hostNetwork": true}), Host, None),
            (json!({"hostNetwork": true}), Host, Some("hostNetwork")),
            (json!({"hostPID": true}), Host, Some("hostPID")),
            (json!({"hostIPC": true, "shareProcessNamespace": true}), Host, Some("hostIPC")),
            (json!({"shareProcessNamespace": true}), Auto, None),
            (json!({"securityContext": {"fsGroup": 65_535}}), Auto, None),
            (json!({"securityContext": {"fsGroup": 65_536}}), Host, Some("fsGroup 65536")),
            (
                json!({"securityContext": {"supplementalGroups": [1, 70_000]}}),
                Host,
                Some("supplementalGroups 70000"),
            ),
            (container(json!({"privileged": true})), Host, Some("privileged")),
            (container(json!({"runAsUser": 100_000})), Host, Some("runAsUser 100000")),
            (
                container(json!({"capabilities": {"add": ["CAP_SYS_TIME"]}})),
                Host,
                Some("capability SYS_TIME"),
            ),
            (container(json!({"capabilities": {"add": ["all"]}})), Host, Some("capability ALL")),
            (container(json!({"capabilities": {"add": ["NET_ADMIN", "SYS_ADMIN"]}})), Auto, None),
            (container(json!({"capabilities": {"drop": ["ALL"]}})), Auto, None),
        ] {
            let got = choice(spec.clone(), NetworkMode::Private, UserNamespaces::Auto);
            assert_eq!((got.wanted, got.left_out.as_deref()), (wanted, why), "{spec}");
            let of_host = choice(spec.clone(), NetworkMode::Private, UserNamespaces::Host);
            assert!(of_host.left_out.is_none() && of_host.wanted != Auto, "{spec}");
        }
        let got = choice(json!({}), NetworkMode::Host, UserNamespaces::Auto);
        assert_eq!((got.wanted, got.left_out.as_deref()), (Host, Some("--network host")));
    }

    #[test]
    fn one_line_tells_of_all() {
        let pods = |names: &[&str]| -> Vec<(String, String)> {
            names.iter().map(|name| ((*name).to_owned(), "hostPID".to_owned())).collect()
        };
        assert_eq!(about(&[]), None);
        assert!(
            about(&pods(&["a"]))
                .unwrap()
                .starts_with("pod a (hostPID) has no user namespace, so root in its")
        );
        assert!(
            about(&pods(&["a", "b"])).unwrap().starts_with("pods a (hostPID) and b (hostPID) have no user")
        );
        let many = about(&pods(&["a", "b", "c", "d", "e", "f", "g"])).unwrap();
        assert!(many.contains("e (hostPID) and 2 more have no user namespace"), "{many}");
    }
}
