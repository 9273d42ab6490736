//! Converts a pod from one dialect to another.
//!
//! [`convert`] expresses a pod's order in a dialect, as edits of the manifest. The conversion is best effort.
//! [`compare()`] compares the plans before and after: a guarantee that the pod no longer has is a loss, any
//! other difference is a note. The report is therefore correct for every combination of dialects.

mod compare;
mod depends_on;
mod lists;
mod marks;
mod native;
mod object;
mod priority;
mod restarts;

use serde_json::Value;

use crate::plan::{Dialect, Plan};
use crate::source::{FieldPath, PodInput};

pub use compare::{Difference, compare};
pub use lists::{in_order, levels_as_sidecars, startup_probe};
pub use native::{native_levels, native_sidecars};
pub use object::apply;
pub use restarts::{compare_restarts, keep_restarts};

/// One change of a manifest. Paths are relative to the pod, and valid after all earlier edits have been made.
#[derive(Debug, Clone, PartialEq)]
pub enum Edit {
    /// Sets a value; missing parents are added.
    Set {
        /// The path.
        path: FieldPath,
        /// The value.
        value: Value,
    },
    /// Adds an entry to a map, after the entry `after` if that exists.
    Insert {
        /// The map.
        map: FieldPath,
        /// The new entry's key.
        key: &'static str,
        /// Its value.
        value: Value,
        /// The key after which the entry is added.
        after: &'static str,
    },
    /// Adds an entry at the end of a list.
    Append {
        /// The list.
        list: FieldPath,
        /// The new entry.
        value: Value,
    },
    /// Removes a value, and parents that become empty.
    Prune {
        /// The path.
        path: FieldPath,
    },
    /// Moves a list entry.
    Move {
        /// The entry.
        from: FieldPath,
        /// The list it goes to.
        to: FieldPath,
        /// Its new index there, counted before the entry is removed from its old place.
        index: usize,
    },
}

/// A dialect a manifest can be converted to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// `initContainers[].restartPolicy: Always`
    Native,
    /// `containers[].lifecycle.type: Sidecar`
    Kep,
    /// `KRUISE_CONTAINER_PRIORITY`, with the sidecar terminator for pods that end.
    Priority,
    /// `outrigger.dev/depends-on`
    DependsOn,
}

impl Target {
    /// The dialect.
    pub fn dialect(self) -> Dialect {
        match self {
            Target::Native => Dialect::Native,
            Target::Kep => Dialect::Kep,
            Target::Priority => Dialect::Priority,
            Target::DependsOn => Dialect::DependsOn,
        }
    }
}

/// The edits that express a pod's plan in another dialect. Empty if the pod already uses that dialect.
pub fn convert(input: &PodInput, plan: &Plan, target: Target) -> Vec<Edit> {
    let said =
        |d: &Dialect| *d == target.dialect() || (target == Target::Priority && *d == Dialect::Terminator);
    if plan.dialects.iter().all(said) {
        return Vec::new();
    }
    let mut edits = marks::remove(input, plan, target);
    match target {
        Target::Native => lists::native(input, plan, &mut edits),
        Target::Kep => lists::kep(input, plan, &mut edits),
        Target::Priority => priority::write(input, plan, &mut edits),
        Target::DependsOn => depends_on::write(input, plan, &mut edits),
    }
    edits
}
