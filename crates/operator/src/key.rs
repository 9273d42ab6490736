//! The keys of a barrier ConfigMap.
//!
//! Three kinds: `p_N` as OpenKruise writes it, `c_N` as its proposal had it, and `g_NAME` for a container whose gates
//! are not levels. A level is an integer, so the first two are read alike.

/// What a key waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opens {
    /// When every container of a higher level is ready.
    Level(i64),
    /// When the gates of its container are open.
    Gates,
}

/// The value every published key has.
pub const OPEN: &str = "true";

/// The key of a level as OpenKruise writes it.
pub fn level_key(level: i64) -> String {
    format!("p_{level}")
}

/// The key of a level as the proposal had it.
pub fn proposed_level_key(level: i64) -> String {
    format!("c_{level}")
}

/// The key of a container whose gates are not levels.
pub fn gate_key(container: &str) -> String {
    format!("g_{container}")
}

/// Reads the key of a container. The prefix of a level is not looked at and text that is no number is level 0, as
/// OpenKruise does (LP-19); what is too short to have a prefix is no key.
pub fn read(key: &str, container: &str) -> Option<Opens> {
    if key.strip_prefix("g_") == Some(container) {
        return Some(Opens::Gates);
    }
    let number = key.get(2..)?;
    Some(Opens::Level(number.parse().unwrap_or(0)))
}
