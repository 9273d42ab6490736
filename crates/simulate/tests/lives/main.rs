//! Simulated lives, one file a subject. One program: each would carry the decoders of a whole pod.

mod common;
mod differential;
mod plain;
mod properties;
mod published;
mod sabotage;
mod script;
mod tables_stop;
