//! The pure heart of Outrigger: what a pod means and what to do next.
//!
//! No I/O, no clock, no randomness, no async. Everything here is a function of its arguments.
#![forbid(unsafe_code)]

mod source;

pub use source::{ContainerRef, FeatureGates, FieldPath, Finding, List, PodInput, Segment, Severity};
