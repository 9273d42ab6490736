//! The last look before the user's program: what is really there, read from the kernel, against what was meant.
//!
//! Everything here was done by code that checks its own errors. This is for what such code cannot see: a step that was
//! forgotten, a mount that came along with another, a descriptor that somebody leaked. Any difference ends the container
//! before its program runs. Facts are read by [`mounts::Host`] and [`process`]; the comparisons are pure.

pub(super) mod mounts;
pub(super) mod process;

use super::caps::CapSet;

/// What begins the message about any difference.
const WRONG: &str = "internal error: the container is not as it was meant to be, and was not started";

/// A difference in the words people see.
fn difference(text: &str) -> String {
    format!("{WRONG}: {text}; please report this")
}

/// Capabilities by name.
fn names(set: u64) -> String {
    let name = |number: u32| CapSet::name(number).map_or_else(|| number.to_string(), str::to_owned);
    let names: Vec<String> = (0..64).filter(|number| set >> number & 1 == 1).map(name).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}
