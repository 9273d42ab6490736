//! Hints on images that cannot be pulled.

use k8s_openapi::api::core::v1::Container;
use outrigger_lifecycle::{FieldPath, PullCause};

use super::{Hint, Subject};

pub(super) fn hint(
    pod: Subject<'_>,
    container: &Container,
    path: FieldPath,
    cause: Option<PullCause>,
) -> Hint {
    let reference = container.image.as_deref().unwrap_or_default();
    let hint = match cause {
        Some(PullCause::NeverPull) => {
            "leave `imagePullPolicy: Never` out, or run with --pull missing".to_owned()
        }
        Some(PullCause::NotOnDisk) => {
            "use a path that holds an image; it is a path on this machine, not relative to the manifest"
                .to_owned()
        }
        Some(PullCause::Damaged) => match is_on_disk(reference) {
            true => "the image is damaged: copy, save or build it again".to_owned(),
            false => "the image is damaged: build and push it again".to_owned(),
        },
        Some(PullCause::Unauthorized) => {
            format!("check the name: the image may not exist; if it is private, {}", log_in(pod, reference))
        }
        Some(PullCause::NotFound) => "check the spelling of the name and that the tag exists".to_owned(),
        Some(PullCause::Unreachable) => format!(
            "check that {} is a registry this machine can reach; images on disk need no registry: rootfs:/DIR, oci:DIR, docker-archive:FILE",
            registry(reference)
        ),
        // The message already says how to fix it.
        Some(PullCause::InvalidName | PullCause::NoSpace) | None => String::new(),
    };
    Hint::at(path.field("image"), hint)
}

/// Whether a reference is a path on this machine.
fn is_on_disk(reference: &str) -> bool {
    ["oci:", "oci-archive:", "docker-archive:", "rootfs:"].iter().any(|kind| reference.starts_with(kind))
}

fn log_in(pod: Subject<'_>, reference: &str) -> String {
    let host = registry(reference);
    match pod.pod.spec.as_ref().and_then(|s| s.image_pull_secrets.as_ref()) {
        Some(secrets) if !secrets.is_empty() => {
            "check the Secrets of imagePullSecrets, which must be in the manifest".to_owned()
        }
        _ => format!(
            "log in with `docker login {host}` or `podman login {host}`, or name a Secret in imagePullSecrets"
        ),
    }
}

/// The registry of a reference, as Kubernetes reads it.
fn registry(reference: &str) -> &str {
    match reference.split_once('/') {
        Some((first, _)) if first.contains(['.', ':']) || first == "localhost" => first,
        _ => "docker.io",
    }
}
