//! Texts that every part of the program reads or writes in the same way.
//!
//! - [`terminal`]: output that cannot control a terminal; [`SafeStream`] does the same for output in pieces.
//! - [`log_line`]: the lines of a container's log.
//! - [`duration`] and [`quantity`]: durations and sizes, with one grammar for flags, annotations and scripts.
//! - [`name`]: names of objects, ports and labels.
#![forbid(unsafe_code)]

pub mod duration;
pub mod log_line;
pub mod name;
pub mod quantity;
mod stream;
pub mod terminal;

pub use duration::{HumanDuration, duration_ms};
pub use stream::SafeStream;
