//! From one dialect to another.
//!
//! [`convert`] writes a pod's order down in the words of a dialect, as edits of the manifest. It does its best and
//! promises nothing: [`compare`] tells, from the plans before and after, what the pod could rely on and no longer can
//! (a loss), and what is different without being less (a note). So what is reported is what is true of the result, also
//! where dialects meet in unforeseen ways.

mod compare;
mod depends_on;
mod lists;
mod marks;
mod object;
mod priority;

use serde_json::Value;

use crate::plan::{Dialect, Plan};
use crate::source::{FieldPath, PodInput};

pub use compare::{Difference, compare};
pub use object::apply;

/// One change of a manifest. Paths are relative to the pod and hold at the moment the edit is made, after the ones
/// before it.
#[derive(Debug, Clone, PartialEq)]
pub enum Edit {
    /// Sets a value; what is missing on the way is added.
    Set {
        /// Where.
        path: FieldPath,
        /// To what.
        value: Value,
    },
    /// Adds an entry to a map, if there is one behind the entry `after`.
    Insert {
        /// The map.
        map: FieldPath,
        /// The new entry's key.
        key: &'static str,
        /// Its value.
        value: Value,
        /// Its neighbour.
        after: &'static str,
    },
    /// Adds an entry at the end of a list.
    Append {
        /// The list.
        list: FieldPath,
        /// The new entry.
        value: Value,
    },
    /// Removes a value, and what it leaves empty around it.
    Prune {
        /// Which.
        path: FieldPath,
    },
    /// Moves a list entry.
    Move {
        /// The entry.
        from: FieldPath,
        /// The list it goes to.
        to: FieldPath,
        /// The place it then has there, counted before it is taken out of its old one.
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

/// The edits that say a pod's plan in another dialect. None if it is said so already.
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
