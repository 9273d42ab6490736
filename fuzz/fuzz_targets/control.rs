//! Fuzzes the frames between a run and other commands. See `fuzz/README.md`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| outrigger_node::fuzz::control(bytes));
