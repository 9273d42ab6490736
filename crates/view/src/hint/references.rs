//! Hints on ConfigMaps and Secrets that the manifest does not have. `run` refuses such a manifest; this is
//! for pods from elsewhere.

use outrigger_lifecycle::FieldPath;
use outrigger_manifest::missing_references;

use super::{Hint, Subject};

/// The first reference below a path that cannot be resolved.
pub(super) fn below(pod: Subject<'_>, place: &FieldPath) -> Option<Hint> {
    let mut found = missing_references(pod.pod, pod.companions).into_iter();
    let missing = found.find(|missing| missing.path.0.starts_with(&place.0))?;
    Some(Hint::at(missing.path, missing.hint))
}
