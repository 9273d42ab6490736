//! Fuzzes the frames between agent and shim. See `fuzz/README.md`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| outrigger_embedded::fuzz::shim(bytes));
