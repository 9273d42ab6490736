//! Checks the runtime classes of pods against the OCI runtimes of this machine.

use std::path::PathBuf;

use outrigger_embedded::OciRuntimes;
use outrigger_lifecycle::FieldPath;
use outrigger_manifest::{Diagnostic, PodManifest};

/// The OCI runtimes that the embedded runtime may use.
#[derive(Debug, Clone, Default)]
pub struct OciSettings {
    /// The runtimes, by class.
    pub runtimes: OciRuntimes,
    /// The file that configures the classes.
    pub file: PathBuf,
    /// The runtime of pods without a class, as the user wrote it.
    pub default: Option<String>,
}

/// Errors for runtime classes that are not configured, or that cannot do what their pods require.
pub(super) fn check<'a>(
    pods: impl Iterator<Item = &'a PodManifest> + Clone,
    oci: &OciSettings,
) -> Vec<Diagnostic> {
    let mut found = unknown_classes(pods.clone(), oci);
    found.extend(refused_users(pods, oci));
    found
}

/// The runtime class of a pod.
pub fn class_of(pod: &PodManifest) -> Option<String> {
    pod.input.pod.spec.as_ref()?.runtime_class_name.clone().filter(|name| !name.is_empty())
}

fn unknown_classes<'a>(pods: impl Iterator<Item = &'a PodManifest>, oci: &OciSettings) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    for pod in pods {
        let Some(class) = class_of(pod).filter(|class| !oci.runtimes.has_class(class)) else {
            continue;
        };
        let place = pod.point(&FieldPath::spec("runtimeClassName"));
        let hint = format!("set it up in {}, or remove runtimeClassName", oci.file.display());
        found.push(Diagnostic::error(place, oci.runtimes.unknown(&class)).hint(hint));
    }
    found
}

/// Errors for pods that require a user namespace, because OCI runtimes are never asked to create one.
fn refused_users<'a>(pods: impl Iterator<Item = &'a PodManifest>, oci: &OciSettings) -> Vec<Diagnostic> {
    let insists =
        |pod: &&PodManifest| pod.input.pod.spec.as_ref().is_some_and(|spec| spec.host_users == Some(false));
    let mut found = Vec::new();
    for pod in pods.filter(insists) {
        let what = match (class_of(pod), &oci.default) {
            (Some(class), _) => format!("runtimeClassName {class:?}"),
            (None, Some(name)) => format!("--oci-runtime {name}"),
            (None, None) => continue,
        };
        let text = format!(
            "`hostUsers: false` cannot be applied with {what}: containers of an OCI runtime get no user namespace"
        );
        let hint = "remove `hostUsers: false`, or use the embedded runtime";
        found.push(Diagnostic::error(pod.point(&FieldPath::spec("hostUsers")), text).hint(hint));
    }
    found
}
