//! The last check before the user's program: the actual state, read from the kernel, compared with the
//! intended state.
//!
//! Everything here was done by code that checks its own errors. This is for what such code cannot see: a
//! forgotten step, an unexpected mount, a leaked descriptor. Any difference ends the container before its
//! program runs. [`mounts::Host`] and [`process`] read the facts; the comparisons are pure.

pub(super) mod mounts;
pub(super) mod process;

use super::caps::CapSet;

/// The beginning of the message about any difference.
const WRONG: &str = "internal error: the container is not as it was meant to be, and was not started";

/// The message about a difference.
fn difference(text: &str) -> String {
    format!("{WRONG}: {text}; please report this")
}

/// Capabilities by name.
fn names(set: u64) -> String {
    let name = |number: u32| CapSet::name(number).map_or_else(|| number.to_string(), str::to_owned);
    let names: Vec<String> = (0..64).filter(|number| set >> number & 1 == 1).map(name).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}
