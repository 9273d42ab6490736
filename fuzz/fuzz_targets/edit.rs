//! Any text edited in any place: an edit is refused or does what it says.
#![no_main]

#[path = "../../crates/manifest/tests/exercise/mod.rs"]
#[expect(dead_code, reason = "each target uses its half")]
mod exercise;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Ok(text) = std::str::from_utf8(input) else { return };
    // Where to edit follows from the text, so that seeds are plain manifests.
    let choice = input.iter().fold(7_u64, |hash, &byte| hash.wrapping_mul(31).wrapping_add(u64::from(byte)));
    exercise::edit(text, choice);
});
