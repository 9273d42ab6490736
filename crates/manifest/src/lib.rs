//! Reads manifests: turns YAML and JSON into Kubernetes types, with the source position of every value.
//!
//! [`read()`] turns sources into a [`Manifest`]: the pods to run (including those of Jobs, Deployments and so
//! on), the ConfigMaps, Secrets and claims that they use, and the Services before them. Errors are [`Diagnostics`], each with its
//! position, and [`render`] shows them. [`check()`] plans the pods and reports problems, [`mod@convert`]
//! converts them to another dialect, and [`edit`] changes the text of a manifest without touching the rest.
//!
//! This crate does no I/O and runs nothing.
#![forbid(unsafe_code)]

mod check;
pub mod compare;
pub mod convert;
mod decode;
mod defaults;
mod diagnostic;
pub mod edit;
mod emit;
mod encoding;
mod format;
mod json;
mod keys;
mod kruise;
mod limits;
mod names;
mod not_run;
mod owned;
mod pod;
mod ports;
mod publish;
mod read;
mod references;
mod required;
mod scalar;
mod service;
mod span;
mod tree;
mod workload;
mod yaml;

pub use check::{Checked, check, check_level, check_with_references};
pub use decode::nearest;
pub use defaults::apply_defaults;
pub use diagnostic::{Diagnostic, Diagnostics, render, render_within, to_json};
pub use emit::flow_list;
pub use format::{Format, in_format};
pub use limits::Limits;
pub use outrigger_lifecycle::Severity;
pub use pod::{Origin, PodManifest};
pub use ports::check_host_ports;
pub use publish::to_value;
pub use read::{Manifest, Partial, ReadOptions, Validate, parse, read, read_partial};
pub use references::{MissingReference, check_references, missing_references};
pub use scalar::Scalar;
pub use service::check_services;
pub use span::{Position, SourceFile, Span};
pub use tree::{Document, Entry, Node, Value, Walk};
pub use workload::Workload;
