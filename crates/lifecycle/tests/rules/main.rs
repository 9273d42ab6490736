//! The engine held against its rules, one file a subject. One program: each would carry the decoders of a whole pod.

mod common;
mod conformance_validates;
mod dialects;
mod edges;
mod job;
mod kep;
mod marks;
mod native;
mod resume;
mod stage;
mod tables_probe;
mod tables_start;
mod update;
