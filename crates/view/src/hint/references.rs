//! Hints on ConfigMaps and Secrets that are not in the manifest. `run` refuses such a manifest. These hints
//! are for pods from other sources.

use outrigger_lifecycle::FieldPath;
use outrigger_manifest::missing_references;

use super::{Hint, Subject};

/// The first reference below a path that cannot be resolved.
pub(super) fn below(pod: Subject<'_>, place: &FieldPath) -> Option<Hint> {
    let mut found = missing_references(pod.pod, pod.companions).into_iter();
    let missing = found.find(|missing| missing.path.0.starts_with(&place.0))?;
    Some(Hint::at(missing.path, missing.hint))
}
