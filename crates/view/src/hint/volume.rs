//! Hints on volumes that cannot be set up. The most frequent cause is a `hostPath` that does not fit this
//! machine.

use outrigger_lifecycle::FieldPath;

use super::{Hint, Subject};

/// The volume cannot be set up. The message says why, but not where.
pub(super) fn failed(pod: Subject<'_>, volume: usize) -> Hint {
    let path = place(volume);
    Hint::at(
        if host_path_type(pod, volume).is_some() { path.field("hostPath").field("path") } else { path },
        "",
    )
}

/// The host path does not exist.
pub(super) fn missing(pod: Subject<'_>, volume: usize) -> Hint {
    let place = place(volume).field("hostPath");
    match host_path_type(pod, volume).unwrap_or_default() {
        "Directory" => {
            Hint::at(place.field("type"), "create it, or use type DirectoryOrCreate to have it created")
        }
        "File" => Hint::at(place.field("type"), "create it, or use type FileOrCreate to have it created"),
        _ => Hint::at(place.field("path"), "start the program that creates it, or use another path"),
    }
}

/// This user has no permission to use the host path.
pub(super) fn denied(volume: usize) -> Hint {
    Hint::at(
        place(volume).field("hostPath").field("path"),
        "let this user use the path, run it with sudo, or write another path",
    )
}

/// Volumes of this kind are not supported. The message lists the supported kinds.
pub(super) fn unsupported(volume: usize) -> Hint {
    Hint::at(place(volume), "")
}

/// The host path has another type than the volume requires.
pub(super) fn of_another_type(volume: usize) -> Hint {
    Hint::at(
        place(volume).field("hostPath").field("type"),
        "use another path or another type; without a type, nothing is checked",
    )
}

fn place(volume: usize) -> FieldPath {
    FieldPath::spec("volumes").index(volume)
}

/// The type that a volume requires of its host path, empty for any. `None` if it is not a `hostPath`.
fn host_path_type(pod: Subject<'_>, volume: usize) -> Option<&str> {
    let host = pod.pod.spec.as_ref()?.volumes.as_ref()?.get(volume)?.host_path.as_ref()?;
    Some(host.type_.as_deref().unwrap_or_default())
}
