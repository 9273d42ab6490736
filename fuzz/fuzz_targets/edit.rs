//! Any text edited in any place, and converted to every dialect: an edit is refused or does what it says.
#![no_main]

#[path = "../../crates/manifest/tests/exercise/mod.rs"]
#[expect(dead_code, reason = "each target uses its half")]
mod exercise;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    exercise::edit_anywhere(bytes);
    exercise::convert(bytes);
});
