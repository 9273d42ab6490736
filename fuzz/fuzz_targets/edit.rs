//! Edits any text at any place, and converts it to every dialect. An edit must be refused or have the
//! requested result.
#![no_main]

#[path = "../../crates/manifest/tests/exercise/mod.rs"]
#[expect(dead_code, reason = "each target uses its half")]
mod exercise;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    exercise::edit_anywhere(bytes);
    exercise::convert(bytes);
});
