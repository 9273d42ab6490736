//! A volume that cannot be made, most often a path of this machine that is not what its `hostPath` says.

use outrigger_lifecycle::FieldPath;

use super::{Hint, Subject};

pub(super) fn hint(pod: Subject<'_>, message: &str) -> Option<Hint> {
    let volumes = pod.pod.spec.as_ref()?.volumes.as_ref()?;
    let (i, volume, fault) = volumes.iter().enumerate().find_map(|(i, volume)| {
        let (_, fault) = message.split_once(&format!("volume {:?}: ", volume.name))?;
        Some((i, volume, fault))
    })?;
    let place = FieldPath::spec("volumes").index(i);
    // The message says it all, except where.
    let Some(host) = &volume.host_path else { return Some(Hint::at(place, "")) };
    let (place, is_missing) = (place.field("hostPath"), fault.ends_with("does not exist"));
    Some(match host.type_.as_deref().unwrap_or_default() {
        "Directory" if is_missing => {
            Hint::at(place.field("type"), "create it, or write DirectoryOrCreate to have it created")
        }
        "File" if is_missing => {
            Hint::at(place.field("type"), "create it, or write FileOrCreate to have it created")
        }
        _ if is_missing => Hint::at(place.field("path"), "start what makes it, or write another path"),
        _ if fault.starts_with("hostPath type check failed") => Hint::at(
            place.field("type"),
            "write another path or another type; without a type nothing is checked",
        ),
        _ => Hint::at(place.field("path"), ""),
    })
}
