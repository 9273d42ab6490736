//! Text formats that all parts of the program read or write in the same way.
//!
//! - [`terminal`]: output that cannot control a terminal. [`SafeStream`] does the same for output that
//!   arrives in pieces.
//! - [`log_line`]: the lines of a container's log.
//! - [`duration`] and [`quantity`]: durations and quantities, with one grammar each for flags, annotations
//!   and scripts.
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
