//! Entry points for fuzzing, which accept arbitrary bytes. Not part of the public API.

/// Parses messages from clients to a run, and from a run to clients.
pub fn control(bytes: &[u8]) {
    crate::control::fuzz(bytes);
}
