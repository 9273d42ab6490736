//! Warnings that are shown once for a process.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// The most distinct warnings of shims that are passed on.
const WARNINGS_MAX: usize = 100;

/// The same warning applies to all containers of a machine.
pub(crate) fn once(text: String) {
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    if said.len() < WARNINGS_MAX && !said.contains(&text) {
        tracing::warn!("{text}");
        said.insert(text);
    }
}
