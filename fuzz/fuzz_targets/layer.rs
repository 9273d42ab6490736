//! Fuzzes the unpacking of image layers. See `fuzz/README.md`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| outrigger_images::fuzz::layer(bytes));
