//! Simulated lives, one file per subject. Built as one program: each program contains the decoders of a whole
//! pod.

mod common;
mod differential;
mod gates;
mod plain;
mod properties;
mod published;
mod sabotage;
mod script;
mod tables_stop;
