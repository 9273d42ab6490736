//! Reads manifests: YAML and JSON to Kubernetes types, with the source position of everything.
//!
//! [`read`] turns sources into a [`Manifest`]: pods to run (stamped out of Jobs, Deployments and so on), and the
//! ConfigMaps, Secrets and claims they use. Whatever is wrong comes back as [`Diagnostics`], each with its place, and
//! [`render`] shows them. [`check`] plans the pods and says what is wrong with them, [`mod@convert`] writes them in another
//! dialect, and [`edit`] changes a manifest's text and leaves the rest of it alone.
//!
//! Nothing here does I/O or runs anything.
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
mod json;
mod keys;
mod kruise;
mod limits;
mod names;
mod owned;
mod pod;
mod ports;
mod publish;
mod read;
mod references;
mod required;
mod scalar;
mod span;
mod tree;
mod workload;
mod yaml;

pub use check::{Checked, check, check_level, check_with_references};
pub use decode::nearest;
pub use defaults::apply_defaults;
pub use diagnostic::{Diagnostic, Diagnostics, render, render_within, to_json};
pub use emit::flow_list;
pub use limits::Limits;
pub use outrigger_lifecycle::Severity;
pub use pod::{Origin, PodManifest};
pub use ports::check_host_ports;
pub use publish::to_value;
pub use read::{Manifest, Partial, ReadOptions, Validate, parse, read, read_partial};
pub use references::{MissingReference, check_references, missing_references};
pub use scalar::Scalar;
pub use span::{Position, SourceFile, Span};
pub use tree::{Document, Entry, Node, Value, Walk};
pub use workload::Workload;
