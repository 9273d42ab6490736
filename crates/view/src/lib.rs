//! Output for people: plans, traces, the view of a run, hints and analyses.
//!
//! - [`output`]: what a run shows while it runs: the live view, plain lines or JSON, and the closing summary.
//! - [`words`]: a sentence for every entry of a trace. [`hint`]: how to fix a failure, and the line of the
//!   manifest that causes it.
//! - [`plan`]: a plan as text, JSON, Mermaid or SVG.
//! - [`timeline`] and [`analyze`]: what happened to a pod, as a picture, and what it really waited for. They
//!   read traces with [`events`] and [`trace`].
//!
//! The input is data, and the output is text. Nothing here makes decisions or reads a clock.
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
