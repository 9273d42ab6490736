//! An image that cannot be had.

use k8s_openapi::api::core::v1::Container;
use outrigger_lifecycle::FieldPath;

use super::{Hint, Subject};

pub(super) fn hint(pod: Subject<'_>, container: &Container, path: FieldPath, message: &str) -> Hint {
    let reference = container.image.as_deref().unwrap_or_default();
    let path = path.field("image");
    let local =
        ["rootfs:", "oci:", "oci-archive:", "docker-archive:"].iter().any(|p| reference.starts_with(p));
    let hint = if message.contains("pull policy forbids") {
        "leave `imagePullPolicy: Never` out, or run with --pull missing".to_owned()
    } else if local {
        "use a path that exists; it is a path on this machine, not relative to the manifest".to_owned()
    } else if message.contains("credential") {
        let host = registry(reference);
        let how = match pod.pod.spec.as_ref().and_then(|s| s.image_pull_secrets.as_ref()) {
            Some(secrets) if !secrets.is_empty() => {
                "check the Secrets of imagePullSecrets, which must be in the manifest".to_owned()
            }
            _ => format!(
                "log in with `docker login {host}` or `podman login {host}`, or name a Secret in imagePullSecrets"
            ),
        };
        format!("check the name, it may not exist; if it is private, {how}")
    } else if message.contains("not found") {
        "check the spelling of the name and that the tag exists".to_owned()
    } else if ["cannot connect", "no answer", "connection refused"].iter().any(|m| message.contains(m)) {
        format!(
            "check that {} is a registry this machine can reach; an image on disk needs none: rootfs:/DIR, oci:DIR, docker-archive:FILE",
            registry(reference)
        )
    } else {
        String::new()
    };
    Hint::at(path, hint)
}

/// The registry of a reference, as Kubernetes reads it.
fn registry(reference: &str) -> &str {
    match reference.split_once('/') {
        Some((first, _)) if first.contains(['.', ':']) || first == "localhost" => first,
        _ => "docker.io",
    }
}
