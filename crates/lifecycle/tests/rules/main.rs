//! Tests of the engine's rules, one file per subject. They are one program, because every test program
//! contains the decoders of a whole pod and takes long to build.

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
