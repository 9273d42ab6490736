//! Finds the OCI runtimes of a run before anything is started.

use std::collections::BTreeSet;
use std::path::Path;

use outrigger_embedded::{EmbeddedRuntime, OciRuntime, OciRuntimes, rootless};
use outrigger_lifecycle::FieldPath;
use outrigger_manifest::{Diagnostic, PodManifest};
use outrigger_node::work::Work;
use outrigger_runtime::RuntimeError;

use crate::outcome::Failure;

/// The default file of runtime classes.
const RUNTIMES_FILE: &str = "/etc/outrigger/runtimes.toml";

/// The runtimes of a run: the one of the command line, and those of the classes of its pods.
pub(crate) fn runtimes(
    default: Option<&str>,
    file: Option<&Path>,
    work: &Work,
) -> Result<OciRuntimes, Failure> {
    let own = |error: RuntimeError| Failure::Own(error.into());
    let path = file.unwrap_or(Path::new(RUNTIMES_FILE));
    let mut runtimes = OciRuntimes::read(path, file.is_some()).map_err(own)?;
    runtimes.default = default.map(|name| OciRuntime::find(name, &[])).transpose().map_err(own)?;
    let pods = || work.pods.iter().map(|pod| &pod.manifest);
    let mut refused = unknown_classes(pods(), &runtimes, path);
    refused.extend(refused_users(pods(), default));
    if !refused.is_empty() {
        return Err(Failure::Manifest(refused, work.sources.clone()));
    }
    let classes = classes(work);
    if rootless::standing().is_rootless() && (runtimes.default.is_some() || !classes.is_empty()) {
        let error =
            anyhow::anyhow!("OCI runtimes are used by root only: run it with sudo, or without --oci-runtime");
        return Err(Failure::Own(error));
    }
    for class in classes {
        runtimes.find_class(&class).map_err(own)?;
    }
    Ok(runtimes)
}

/// Creates a container with every runtime of a run, so that no pod is started that could not continue.
pub(crate) fn try_all(runtime: &EmbeddedRuntime, work: &Work) -> Result<(), RuntimeError> {
    let names: Vec<Option<String>> = work.pods.iter().map(|pod| class_of(&pod.manifest)).collect();
    let distinct: BTreeSet<Option<String>> = names.into_iter().collect();
    for class in distinct {
        if let Some(oci) = runtime.oci_runtime_of(class.as_deref())? {
            runtime.try_oci_runtime(&oci)?;
        }
    }
    Ok(())
}

/// Errors for runtime classes that are not configured on this machine, or cannot do what their pods insist on.
pub(crate) fn check(pods: &[PodManifest]) -> Result<Vec<Diagnostic>, Failure> {
    if pods.iter().all(|pod| class_of(pod).is_none()) {
        return Ok(Vec::new());
    }
    let given = std::env::var_os("OUTRIGGER_RUNTIMES");
    let path = given.as_ref().map_or(Path::new(RUNTIMES_FILE), Path::new);
    let runtimes = OciRuntimes::read(path, given.is_some()).map_err(|error| Failure::Own(error.into()))?;
    let mut refused = unknown_classes(pods.iter(), &runtimes, path);
    refused.extend(refused_users(pods.iter(), None));
    Ok(refused)
}

/// Errors for pods that insist on a user namespace, which no OCI runtime is asked for.
fn refused_users<'a>(pods: impl Iterator<Item = &'a PodManifest>, default: Option<&str>) -> Vec<Diagnostic> {
    let insists =
        |pod: &&PodManifest| pod.input.pod.spec.as_ref().is_some_and(|spec| spec.host_users == Some(false));
    let mut found = Vec::new();
    for pod in pods.filter(insists) {
        let what = match (class_of(pod), default) {
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

fn class_of(pod: &PodManifest) -> Option<String> {
    pod.input.pod.spec.as_ref()?.runtime_class_name.clone().filter(|name| !name.is_empty())
}

fn classes(work: &Work) -> BTreeSet<String> {
    work.pods.iter().filter_map(|pod| class_of(&pod.manifest)).collect()
}

fn unknown_classes<'a>(
    pods: impl Iterator<Item = &'a PodManifest>,
    runtimes: &OciRuntimes,
    file: &Path,
) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    for pod in pods {
        let Some(class) = class_of(pod).filter(|class| !runtimes.has_class(class)) else {
            continue;
        };
        let place = pod.point(&FieldPath::spec("runtimeClassName"));
        let hint = format!("set it up in {}, or remove runtimeClassName", file.display());
        found.push(Diagnostic::error(place, runtimes.unknown(&class)).hint(hint));
    }
    found
}
