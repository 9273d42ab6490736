//! A volume that cannot be made, most often a path of this machine that is not what its `hostPath` says.

use outrigger_lifecycle::FieldPath;

use super::{Hint, Subject};

/// The message says what is wrong, except where.
pub(super) fn failed(pod: Subject<'_>, volume: usize) -> Hint {
    let path = place(volume);
    Hint::at(
        if host_path_type(pod, volume).is_some() { path.field("hostPath").field("path") } else { path },
        "",
    )
}

/// Nothing is at the host path.
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

/// This user may not use the host path.
pub(super) fn denied(volume: usize) -> Hint {
    Hint::at(
        place(volume).field("hostPath").field("path"),
        "let this user use the path, run it with sudo, or write another path",
    )
}

/// There are no volumes of this kind. The message says which there are.
pub(super) fn unsupported(volume: usize) -> Hint {
    Hint::at(place(volume), "")
}

/// Something else is at the host path.
pub(super) fn of_another_type(volume: usize) -> Hint {
    Hint::at(
        place(volume).field("hostPath").field("type"),
        "use another path or another type; without a type, nothing is checked",
    )
}

fn place(volume: usize) -> FieldPath {
    FieldPath::spec("volumes").index(volume)
}

/// The type a volume wants its host path to have, empty for any; `None` if it is not a `hostPath`.
fn host_path_type(pod: Subject<'_>, volume: usize) -> Option<&str> {
    let host = pod.pod.spec.as_ref()?.volumes.as_ref()?.get(volume)?.host_path.as_ref()?;
    Some(host.type_.as_deref().unwrap_or_default())
}
