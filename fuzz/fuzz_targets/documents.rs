//! Fuzzes image documents: manifests, indexes, configurations and names. See `fuzz/README.md`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| outrigger_images::fuzz::documents(bytes));
