//! The Pod Security Standards: one row for each control.

use serde_json::{Value, json};

use super::{merge, pod, pod_of};
use crate::validate::{PodSecurityLevel, validate_level};
use PodSecurityLevel::{Baseline, Restricted};

/// A pod that `restricted` allows, with additional fields in the pod and in its container.
fn hardened(spec: Value, container: Value) -> Value {
    let mut own = json!({"name": "app", "image": "i:1", "securityContext": {
        "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}});
    if let Some(context) = container.get("securityContext").cloned() {
        merge(&mut own["securityContext"], context);
    }
    let mut rest = container;
    rest.as_object_mut().expect("an object").remove("securityContext");
    merge(&mut own, rest);
    let mut whole = json!({"containers": [own], "securityContext": {
        "runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}}});
    if let Some(context) = spec.get("securityContext").cloned() {
        merge(&mut whole["securityContext"], context);
    }
    let mut rest = spec;
    rest.as_object_mut().expect("an object").remove("securityContext");
    merge(&mut whole, rest);
    whole
}

/// The paths of all findings.
fn refused(spec: Value, level: PodSecurityLevel) -> Vec<String> {
    let found = validate_level(&pod(spec), level);
    for finding in &found {
        assert!(finding.hint.is_some() && finding.code == "pod-security", "{finding:?}");
        assert!(finding.message.contains(level.name()), "{finding:?}");
    }
    found.iter().map(|finding| finding.path.to_string()).collect()
}

#[test]
fn what_baseline_refuses_restricted_refuses_too() {
    let none = || json!({});
    let context = |fields: Value| json!({"securityContext": fields});
    for (spec, container, path) in [
        (
            context(json!({"windowsOptions": {"hostProcess": true}})),
            none(),
            "spec.securityContext.windowsOptions.hostProcess",
        ),
        (
            none(),
            context(json!({"windowsOptions": {"hostProcess": true}})),
            "spec.containers[0].securityContext.windowsOptions.hostProcess",
        ),
        (json!({"hostNetwork": true}), none(), "spec.hostNetwork"),
        (json!({"hostPID": true}), none(), "spec.hostPID"),
        (json!({"hostIPC": true}), none(), "spec.hostIPC"),
        (none(), context(json!({"privileged": true})), "spec.containers[0].securityContext.privileged"),
        (
            none(),
            context(json!({"capabilities": {"add": ["NET_BIND_SERVICE", "NET_RAW"], "drop": ["ALL"]}})),
            "spec.containers[0].securityContext.capabilities.add[1]",
        ),
        (json!({"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}), none(), "spec.volumes[0].hostPath"),
        (
            none(),
            json!({"ports": [{"containerPort": 80, "hostPort": 80}]}),
            "spec.containers[0].ports[0].hostPort",
        ),
        (
            none(),
            json!({"livenessProbe": {"httpGet": {"port": 80, "host": "10.0.0.1"}}}),
            "spec.containers[0].livenessProbe.httpGet.host",
        ),
        (
            none(),
            json!({"readinessProbe": {"tcpSocket": {"port": 80, "host": "127.0.0.1"}}}),
            "spec.containers[0].readinessProbe.tcpSocket.host",
        ),
        (
            none(),
            json!({"lifecycle": {"preStop": {"httpGet": {"port": 80, "host": "h"}}}}),
            "spec.containers[0].lifecycle.preStop.httpGet.host",
        ),
        (
            context(json!({"appArmorProfile": {"type": "Unconfined"}})),
            none(),
            "spec.securityContext.appArmorProfile.type",
        ),
        (
            none(),
            context(json!({"appArmorProfile": {"type": "Unconfined"}})),
            "spec.containers[0].securityContext.appArmorProfile.type",
        ),
        (
            context(json!({"seLinuxOptions": {"type": "spc_t"}})),
            none(),
            "spec.securityContext.seLinuxOptions.type",
        ),
        (
            context(json!({"seLinuxOptions": {"user": "u"}})),
            none(),
            "spec.securityContext.seLinuxOptions.user",
        ),
        (
            none(),
            context(json!({"seLinuxOptions": {"role": "r"}})),
            "spec.containers[0].securityContext.seLinuxOptions.role",
        ),
        (none(), context(json!({"procMount": "Unmasked"})), "spec.containers[0].securityContext.procMount"),
        (
            context(json!({"seccompProfile": {"type": "Unconfined"}})),
            none(),
            "spec.securityContext.seccompProfile.type",
        ),
        (
            none(),
            context(json!({"seccompProfile": {"type": "Unconfined"}})),
            "spec.containers[0].securityContext.seccompProfile.type",
        ),
        (
            context(json!({"sysctls": [{"name": "net.ipv4.tcp_syncookies", "value": "1"},
                {"name": "kernel.msgmax", "value": "1"}]})),
            none(),
            "spec.securityContext.sysctls[1].name",
        ),
        // This control is our own: such an image reads the host like a hostPath volume.
        (none(), json!({"image": "rootfs:/"}), "spec.containers[0].image"),
    ] {
        for level in [Baseline, Restricted] {
            assert_eq!(refused(hardened(spec.clone(), container.clone()), level), [path], "{level:?}");
        }
    }
    let annotated = |value: &str| {
        pod_of(
            json!({"metadata": {"annotations": {"container.apparmor.security.beta.kubernetes.io/app": value}},
            "spec": hardened(json!({}), json!({}))}),
        )
    };
    assert_eq!(validate_level(&annotated("unconfined"), Baseline).len(), 1);
    assert_eq!(validate_level(&annotated("localhost/x"), Baseline).len(), 0);
}

#[test]
fn what_only_restricted_refuses() {
    let none = || json!({});
    let context = |fields: Value| json!({"securityContext": fields});
    for (spec, container, path) in [
        (json!({"volumes": [{"name": "v", "nfs": {"server": "s", "path": "/"}}]}), none(), "spec.volumes[0]"),
        (
            none(),
            context(json!({"allowPrivilegeEscalation": true})),
            "spec.containers[0].securityContext.allowPrivilegeEscalation",
        ),
        (none(), context(json!({"runAsNonRoot": false})), "spec.containers[0].securityContext.runAsNonRoot"),
        (context(json!({"runAsUser": 0})), none(), "spec.securityContext.runAsUser"),
        (none(), context(json!({"runAsUser": 0})), "spec.containers[0].securityContext.runAsUser"),
        (context(json!({"seccompProfile": null})), none(), "spec.containers[0].securityContext"),
        (
            none(),
            context(json!({"capabilities": {"drop": ["NET_RAW"]}})),
            "spec.containers[0].securityContext.capabilities",
        ),
        (
            none(),
            context(json!({"capabilities": {"add": ["CHOWN"], "drop": ["ALL"]}})),
            "spec.containers[0].securityContext.capabilities.add[0]",
        ),
    ] {
        let spec = hardened(spec, container);
        assert_eq!(refused(spec.clone(), Baseline), [] as [String; 0], "{spec}");
        assert_eq!(refused(spec.clone(), Restricted), [path], "{spec}");
    }
    let bare = json!({"containers": [{"name": "app", "image": "i"}]});
    assert_eq!(refused(bare.clone(), Baseline), [] as [String; 0]);
    assert_eq!(refused(bare, Restricted), vec!["spec.containers[0]"; 4]);
    let volumes = json!({"volumes": [{"name": "a", "emptyDir": {}}, {"name": "b", "secret": {"secretName": "s"}},
        {"name": "c"}, {"name": "d", "image": {"reference": "i"}}]});
    assert_eq!(refused(hardened(volumes, json!({})), Restricted), [] as [String; 0]);
}

#[test]
fn root_of_a_user_namespace_is_allowed() {
    let root = |host_users: bool| {
        let spec =
            json!({"hostUsers": host_users, "securityContext": {"runAsUser": 0, "runAsNonRoot": null}});
        refused(hardened(spec, json!({})), Restricted)
    };
    assert_eq!(root(false), [] as [String; 0]);
    assert_eq!(root(true), ["spec.containers[0].securityContext", "spec.securityContext.runAsUser"]);
    let unmasked =
        || hardened(json!({"hostUsers": false}), json!({"securityContext": {"procMount": "Unmasked"}}));
    assert_eq!(refused(unmasked(), Baseline), [] as [String; 0]);
    assert_eq!(refused(unmasked(), Restricted), ["spec.containers[0].securityContext.procMount"]);
}
