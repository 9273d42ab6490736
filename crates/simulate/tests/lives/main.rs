//! Tests with simulated lives, one file per subject. They are one program, because every test program
//! contains the decoders of a whole pod and takes long to build.

mod common;
mod differential;
mod gates;
mod plain;
mod properties;
mod published;
mod sabotage;
mod script;
mod tables_stop;
