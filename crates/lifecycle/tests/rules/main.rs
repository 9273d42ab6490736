//! Tests of the engine's rules, one file per subject. Built as one program: each program contains the
//! decoders of a whole pod.

mod common;
mod conformance_validates;
mod dialects;
mod edges;
mod job;
mod kep;
mod marks;
mod native;
mod priority;
mod resume;
mod stage;
mod tables_probe;
mod tables_start;
mod terminator;
mod update;
