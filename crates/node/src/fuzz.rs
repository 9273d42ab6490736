//! Entrances for fuzzing: each takes whatever bytes a stranger might send. Not part of the interface.

/// Reads what clients say to a run, and what a run says to them.
pub fn control(bytes: &[u8]) {
    crate::control::fuzz(bytes);
}
