//! The keys of a barrier ConfigMap.
//!
//! There are three kinds: `p_N` as OpenKruise writes it, `c_N` as in its proposal, and `g_NAME` for a
//! container whose gates are not levels. A level is an integer, so the first two are parsed in the same way.

/// When a key is published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opens {
    /// When every container of a higher level is ready.
    Level(i64),
    /// When the gates of its container are open.
    Gates,
}

/// The value of every published key.
pub const OPEN: &str = "true";

/// The key of a level as OpenKruise writes it.
pub fn level_key(level: i64) -> String {
    format!("p_{level}")
}

/// The key of a level as in the proposal.
pub fn proposed_level_key(level: i64) -> String {
    format!("c_{level}")
}

/// The key of a container whose gates are not levels.
pub fn gate_key(container: &str) -> String {
    format!("g_{container}")
}

/// Parses the key of a container. As in OpenKruise, the prefix of a level is ignored, and text that is not a
/// number is level 0 (LP-19). Text that is too short to have a prefix is not a key.
pub fn read(key: &str, container: &str) -> Option<Opens> {
    if key.strip_prefix("g_") == Some(container) {
        return Some(Opens::Gates);
    }
    let number = key.get(2..)?;
    Some(Opens::Level(number.parse().unwrap_or(0)))
}
