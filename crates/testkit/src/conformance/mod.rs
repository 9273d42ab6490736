//! Runs the pod cases of `tests/conformance` in real containers.

pub mod case;
pub mod driver;
pub mod events;
pub mod run;
pub mod status;
pub mod trials;
