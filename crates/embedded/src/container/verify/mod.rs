//! The last check before the user's program: compares the actual state, as the kernel reports it, with the
//! intended state.
//!
//! All previous steps check their own errors. This check finds what they cannot see: a forgotten step, an
//! unexpected mount, a leaked descriptor. Any difference ends the container before its program runs.
//! [`mounts::Host`] and [`process`] read the facts. The comparisons are pure.

pub(super) mod mounts;
pub(super) mod process;

use crate::caps::CapSet;

/// A difference between the actual and the intended state, by who can cause it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum Difference {
    /// Only our own code can cause it, so it is a bug.
    #[error(
        "internal error: the container is not as it was meant to be, and was not started: {0}; please report this"
    )]
    Setup(String),
    /// Anyone who can write to a volume of this container while it is being created can cause it. This check
    /// stops them.
    #[error(
        "refused to start the container: {0}, because a directory or link on the way there was \
         changed while the container was being made. It may be an attack: check which containers and \
         programs can write to its volumes"
    )]
    Changed(String),
}

/// A difference counts as our own bug unless it is known that others can cause it.
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
