//! Helpers that several tests of this crate use.
#![allow(unreachable_pub, reason = "a test program has no outside")]

pub mod life;

/// A number from an environment variable.
#[expect(clippy::disallowed_methods, reason = "a test run is told its seed by whoever started it")]
pub fn env_number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is {text:?}, not a number")))
}
