//! Reads any bytes as a manifest. This must not panic, hang or use too much memory.
#![no_main]

#[path = "../../crates/manifest/tests/exercise/mod.rs"]
#[expect(dead_code, reason = "each target uses its half")]
mod exercise;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| exercise::manifest(bytes));
