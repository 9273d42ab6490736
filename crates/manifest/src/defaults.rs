//! Fills in the defaults that the Kubernetes API server fills in.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Container, ContainerPort, EmptyDirVolumeSource, EnvVar, EphemeralContainer, HTTPGetAction, Lifecycle,
    LifecycleHandler, Pod, PodSecurityContext, PodSpec, Probe, ResourceRequirements, Volume,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Images that are local files or directories.
const LOCAL_IMAGE_SCHEMES: [&str; 4] = ["rootfs:", "oci:", "oci-archive:", "docker-archive:"];

/// The default mode of files in ConfigMap, Secret, downward API and projected volumes.
const FILE_MODE: i32 = 0o644;

/// Fills in the fields the author left out.
pub fn apply_defaults(pod: &mut Pod) {
    if let Some(spec) = &mut pod.spec {
        pod_spec(spec);
    }
}

fn pod_spec(spec: &mut PodSpec) {
    default(&mut spec.restart_policy, || "Always".to_owned());
    default(&mut spec.termination_grace_period_seconds, || 30);
    default(&mut spec.dns_policy, || "ClusterFirst".to_owned());
    default(&mut spec.security_context, PodSecurityContext::default);
    default(&mut spec.scheduler_name, || "default-scheduler".to_owned());
    default(&mut spec.enable_service_links, || true);
    default(&mut spec.service_account_name, || "default".to_owned());
    if let Some(resources) = &mut spec.resources {
        requests_from_limits(resources);
    }
    let host_network = spec.host_network == Some(true);
    for list in [spec.init_containers.as_mut(), Some(&mut spec.containers)].into_iter().flatten() {
        for c in list {
            container(c, host_network);
        }
    }
    for c in spec.ephemeral_containers.iter_mut().flatten() {
        ephemeral_container(c, host_network);
    }
    spec.volumes.iter_mut().flatten().for_each(volume);
}

fn container(c: &mut Container, host_network: bool) {
    pull_policy(c.image.as_deref(), &mut c.image_pull_policy);
    default(&mut c.termination_message_path, || "/dev/termination-log".to_owned());
    default(&mut c.termination_message_policy, || "File".to_owned());
    c.resources.iter_mut().for_each(requests_from_limits);
    ports(&mut c.ports, host_network);
    env(&mut c.env);
    c.lifecycle.iter_mut().for_each(lifecycle);
    for p in [&mut c.liveness_probe, &mut c.readiness_probe, &mut c.startup_probe].into_iter().flatten() {
        probe(p);
    }
}

/// The same for an ephemeral container, whose type has the same fields.
fn ephemeral_container(c: &mut EphemeralContainer, host_network: bool) {
    pull_policy(c.image.as_deref(), &mut c.image_pull_policy);
    default(&mut c.termination_message_path, || "/dev/termination-log".to_owned());
    default(&mut c.termination_message_policy, || "File".to_owned());
    c.resources.iter_mut().for_each(requests_from_limits);
    ports(&mut c.ports, host_network);
    env(&mut c.env);
    c.lifecycle.iter_mut().for_each(lifecycle);
    for p in [&mut c.liveness_probe, &mut c.readiness_probe, &mut c.startup_probe].into_iter().flatten() {
        probe(p);
    }
}

fn probe(p: &mut Probe) {
    default(&mut p.period_seconds, || 10);
    default(&mut p.timeout_seconds, || 1);
    default(&mut p.success_threshold, || 1);
    default(&mut p.failure_threshold, || 3);
    p.http_get.iter_mut().for_each(http_get);
    if let Some(grpc) = &mut p.grpc {
        default(&mut grpc.service, String::new);
    }
}

fn lifecycle(l: &mut Lifecycle) {
    let handlers: [&mut Option<LifecycleHandler>; 2] = [&mut l.post_start, &mut l.pre_stop];
    handlers.into_iter().flatten().filter_map(|handler| handler.http_get.as_mut()).for_each(http_get);
}

fn http_get(action: &mut HTTPGetAction) {
    default(&mut action.path, || "/".to_owned());
    default(&mut action.scheme, || "HTTP".to_owned());
}

fn ports(ports: &mut Option<Vec<ContainerPort>>, host_network: bool) {
    for port in ports.iter_mut().flatten() {
        default(&mut port.protocol, || "TCP".to_owned());
        if host_network {
            let number = port.container_port;
            default(&mut port.host_port, || number);
        }
    }
}

fn env(env: &mut Option<Vec<EnvVar>>) {
    for from in env.iter_mut().flatten().filter_map(|var| var.value_from.as_mut()) {
        if let Some(field) = &mut from.field_ref {
            default(&mut field.api_version, || "v1".to_owned());
        }
    }
}

fn requests_from_limits(resources: &mut ResourceRequirements) {
    let Some(limits) = &resources.limits else { return };
    let requests: &mut BTreeMap<String, Quantity> = resources.requests.get_or_insert_default();
    for (name, quantity) in limits {
        requests.entry(name.clone()).or_insert_with(|| quantity.clone());
    }
}

fn volume(volume: &mut Volume) {
    if let Some(config_map) = &mut volume.config_map {
        default(&mut config_map.default_mode, || FILE_MODE);
    }
    if let Some(secret) = &mut volume.secret {
        default(&mut secret.default_mode, || FILE_MODE);
    }
    if let Some(host_path) = &mut volume.host_path {
        default(&mut host_path.type_, String::new);
    }
    if let Some(image) = &mut volume.image {
        pull_policy(image.reference.as_deref(), &mut image.pull_policy);
    }
    if let Some(downward) = &mut volume.downward_api {
        default(&mut downward.default_mode, || FILE_MODE);
        for field in downward.items.iter_mut().flatten().filter_map(|item| item.field_ref.as_mut()) {
            default(&mut field.api_version, || "v1".to_owned());
        }
    }
    if let Some(projected) = &mut volume.projected {
        default(&mut projected.default_mode, || FILE_MODE);
        for source in projected.sources.iter_mut().flatten() {
            if let Some(token) = &mut source.service_account_token {
                default(&mut token.expiration_seconds, || 3600);
            }
            let downward = source.downward_api.iter_mut().flat_map(|d| d.items.iter_mut().flatten());
            for field in downward.filter_map(|item| item.field_ref.as_mut()) {
                default(&mut field.api_version, || "v1".to_owned());
            }
        }
    }
    // A volume with only a name is an empty directory.
    if *volume == (Volume { name: volume.name.clone(), ..Volume::default() }) {
        volume.empty_dir = Some(EmptyDirVolumeSource::default());
    }
}

fn pull_policy(image: Option<&str>, policy: &mut Option<String>) {
    if let Some(image) = image.filter(|image| !image.is_empty()) {
        default(policy, || if is_latest(image) { "Always" } else { "IfNotPresent" }.to_owned());
    }
}

/// Whether an image reference means "latest": no tag, or `:latest`, and no digest.
fn is_latest(image: &str) -> bool {
    if LOCAL_IMAGE_SCHEMES.iter().any(|scheme| image.starts_with(scheme)) || image.contains('@') {
        return false;
    }
    // A colon before the last slash belongs to the registry's port.
    match image.rsplit('/').next().unwrap_or(image).split_once(':') {
        None => true,
        Some((_, tag)) => tag == "latest",
    }
}

fn default<T>(field: &mut Option<T>, value: impl FnOnce() -> T) {
    if field.is_none() {
        *field = Some(value());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pull_policy_follows_the_tag() {
        let table = [
            ("busybox", "Always"),
            ("busybox:latest", "Always"),
            ("busybox:1.36", "IfNotPresent"),
            ("localhost:5000/busybox", "Always"),
            ("localhost:5000/busybox:1", "IfNotPresent"),
            ("busybox@sha256:0123", "IfNotPresent"),
            ("busybox:latest@sha256:0123", "IfNotPresent"),
            ("rootfs:/srv/root", "IfNotPresent"),
            ("oci:/srv/image", "IfNotPresent"),
            ("oci-archive:/srv/image.tar", "IfNotPresent"),
            ("docker-archive:/srv/image.tar", "IfNotPresent"),
        ];
        for (image, expected) in table {
            let mut policy = None;
            pull_policy(Some(image), &mut policy);
            assert_eq!(policy.as_deref(), Some(expected), "{image}");
        }
        let mut policy = Some("Never".to_owned());
        pull_policy(Some("busybox"), &mut policy);
        assert_eq!(policy.as_deref(), Some("Never"));
        let mut none = None;
        pull_policy(None, &mut none);
        assert_eq!(none, None);
    }
}
