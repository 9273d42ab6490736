//! Everything for people to look at.
//!
//! - [`output`]: what a run shows while it runs: the live view, plain lines or JSON, and the closing summary.
//! - [`words`]: a sentence for every entry of a trace. [`hint`]: what to do about a failure, and the line of the manifest
//!   behind it.
//! - [`plan`]: a plan as text, JSON, Mermaid or SVG.
//! - [`timeline`] and [`analyze`]: what happened to a pod, as a picture, and what it really waited for. They read traces as
//!   [`events`] and [`trace`] have them.
//!
//! Input is data, output is text. Nothing here makes decisions or reads a clock.
#![forbid(unsafe_code)]

pub mod analyze;
mod chunk;
pub mod events;
mod frame;
pub mod hint;
mod ledger;
mod line;
#[allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "paces its drawing")]
mod live;
pub mod output;
mod painter;
pub mod plan;
mod pod;
mod row;
pub mod style;
mod summary;
pub mod table;
pub mod text;
mod timed;
pub mod timeline;
pub mod trace;
pub mod words;
pub mod workload_words;

#[cfg(test)]
mod tests;

pub use pod::{ContainerWords, PodView};
