//! Helpers for the tests of several crates: a fake runtime, a separate containerd, images, pods on either
//! runtime, runs of the binary and of the pod cases, and terminals. A dev-dependency only.
#![allow(missing_docs, reason = "helpers of tests; their names and modules say what they are")]

pub mod conformance;
pub mod containerd;
pub mod embedded;
pub mod fake;
pub mod leaks;
pub mod pty;
pub mod rootfs;
pub mod run;
pub mod screen;
pub mod seat;
pub mod server;
pub mod streams;
pub mod trial;
pub mod trials;

use std::path::PathBuf;

/// The binary of the product. Cargo builds it for the tests of `crates/outrigger`, next to their directory.
pub fn binary() -> PathBuf {
    let test = std::env::current_exe().expect("a program");
    let profile = test.parent().and_then(|deps| deps.parent()).expect("the directory of the profile");
    profile.join("outrigger")
}
