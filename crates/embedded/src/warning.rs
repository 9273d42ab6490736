//! Warnings that a process shows only once.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// The maximum number of different warnings of shims that are passed on.
const WARNINGS_MAX: usize = 100;

/// Shows a warning, unless it was already shown. The same warning often applies to all containers of a
/// machine.
pub(crate) fn once(text: String) {
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    if said.len() < WARNINGS_MAX && !said.contains(&text) {
        tracing::warn!("{text}");
        said.insert(text);
    }
}
