//! Fuzzes the kernel's netlink answers about interfaces and packet filters. See `fuzz/README.md`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| outrigger_embedded::fuzz::netlink(bytes));
