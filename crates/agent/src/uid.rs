//! Pod UIDs.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Identifies a pod within an agent. No two pods share a UID, even if they have the same name. Sandboxes,
/// containers and directories are named after it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct PodUid(Arc<str>);

impl PodUid {
    /// Creates a UID, which must consist of letters, digits and dashes.
    pub fn new(uid: impl Into<Arc<str>>) -> Self {
        PodUid(uid.into())
    }

    /// The UID as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for PodUid {
    fn from(uid: String) -> Self {
        PodUid(uid.into())
    }
}

impl From<PodUid> for String {
    fn from(uid: PodUid) -> Self {
        uid.0.as_ref().to_owned()
    }
}

impl fmt::Display for PodUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
