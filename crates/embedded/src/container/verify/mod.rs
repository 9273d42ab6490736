//! The last check before the user's program: the actual state, read from the kernel, compared with the
//! intended state.
//!
//! Everything here was done by code that checks its own errors. This is for what such code cannot see: a
//! forgotten step, an unexpected mount, a leaked descriptor. Any difference ends the container before its
//! program runs. [`mounts::Host`] and [`process`] read the facts; the comparisons are pure.

pub(super) mod mounts;
pub(super) mod process;

use crate::caps::CapSet;

/// A difference, by who can cause it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum Difference {
    /// Only code of ours: a fault in it.
    #[error(
        "internal error: the container is not as it was meant to be, and was not started: {0}; please report this"
    )]
    Setup(String),
    /// Whoever can write to a volume of this container while it is being made. The check is what stops them.
    #[error(
        "refused to start the container: {0}, because a directory or link on the way there was \
         changed while the container was being made. It may be an attack: check which containers and \
         programs can write to its volumes"
    )]
    Changed(String),
}

/// Everything is our own fault unless it is known that others can cause it.
impl From<String> for Difference {
    fn from(text: String) -> Self {
        Difference::Setup(text)
    }
}

/// Capabilities by name.
fn names(set: u64) -> String {
    let name = |number: u32| CapSet::name(number).map_or_else(|| number.to_string(), str::to_owned);
    let names: Vec<String> = (0..64).filter(|number| set >> number & 1 == 1).map(name).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}
