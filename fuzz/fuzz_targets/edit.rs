//! Edits any text in any place, and converts it to every dialect: an edit is refused or has the requested
//! result.
#![no_main]

#[path = "../../crates/manifest/tests/exercise/mod.rs"]
#[expect(dead_code, reason = "each target uses its half")]
mod exercise;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    exercise::edit_anywhere(bytes);
    exercise::convert(bytes);
});
