//! Ownership of pods: by a process, as long as it lives, or by the node of a state directory.
//!
//! Every pod has a directory with a `lock` file, which the process that runs the pod keeps locked (`claims`).
//! The kernel releases the lock however that process ends, and shims do not inherit it.
//!
//! * The pod of a process whose lock is free is an orphan, and the next start removes it.
//! * A node's pods outlive its process. Their directories contain a [`MARK`], written before anything of the
//!   pod exists, and only the node removes them, even while it is down. The next process of the node adopts
//!   them. Only one process at a time is the node of a state directory (`node`).

mod claims;
mod node;

pub use claims::{Claims, lock_orphan, remove_dir};
pub use node::{NodeError, NodeIdentity};

use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::private;

/// The owner of a runtime's pods.
#[derive(Debug, Clone, Default)]
pub enum Owner {
    /// This process: they end with it.
    #[default]
    Process,
    /// The node: they outlive its processes.
    Node(NodeIdentity),
}

impl Owner {
    /// Whether pods end with the process that created them.
    pub fn is_process(&self) -> bool {
        matches!(self, Owner::Process)
    }
}

/// In the directory of a pod that belongs to the node.
pub const MARK: &str = "node.json";
const MARK_MAX: u64 = 64 << 10;

/// The content of [`MARK`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// The node, by its identity.
    pub node: String,
    /// The runtime of the pod: `embedded` or `cri`.
    pub runtime: String,
}

/// Whether a pod's directory is marked as the node's. A damaged mark counts too.
pub fn is_marked(dir: &Path) -> bool {
    fs::symlink_metadata(dir.join(MARK)).is_ok()
}

/// The mark in a pod's directory, if there is a readable one.
pub fn read_mark(dir: &Path) -> Option<Mark> {
    serde_json::from_slice(&private::read(&dir.join(MARK), MARK_MAX).ok()?).ok()
}

/// Marks a pod's directory, whose lock the caller holds, as the node's.
fn write_mark(dir: &Path, mark: &Mark) -> io::Result<()> {
    let temporary = dir.join("node.tmp");
    let mut file = fs::File::create(&temporary)?;
    file.write_all(&serde_json::to_vec(mark)?)?;
    drop(file);
    fs::rename(&temporary, dir.join(MARK))
}
