//! Ownership of pods. A pod belongs to a process and ends with it, or it belongs to the node of a state
//! directory.
//!
//! Every pod has a directory with a `lock` file, which the process that runs the pod keeps locked (`claims`).
//! The kernel releases the lock in whatever way that process ends. Shims do not inherit it.
//!
//! * If the lock of a process's pod is free, the pod is an orphan, and the next start removes it.
//! * A node's pods outlive its process. Their directories contain a [`MARK`], which is written before
//!   anything else of the pod. Only the node removes these pods, even while it is down. The next process of
//!   the node adopts them. Only one process at a time can be the node of a state directory (`node`).

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
    /// This process. Its pods end with it.
    #[default]
    Process,
    /// The node. Its pods outlive its processes.
    Node(NodeIdentity),
}

impl Owner {
    /// Whether pods end with the process that created them.
    pub fn is_process(&self) -> bool {
        matches!(self, Owner::Process)
    }
}

/// The file that marks the directory of a pod as the node's.
pub const MARK: &str = "node.json";
const MARK_MAX: u64 = 64 << 10;

/// The content of [`MARK`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// The identity of the node.
    pub node: String,
    /// The runtime of the pod: `embedded` or `cri`.
    pub runtime: String,
}

/// Whether a pod's directory is marked as the node's. A damaged mark also counts.
pub fn is_marked(dir: &Path) -> bool {
    fs::symlink_metadata(dir.join(MARK)).is_ok()
}

/// The mark in a pod's directory. `None` if it is missing or damaged.
pub fn read_mark(dir: &Path) -> Option<Mark> {
    serde_json::from_slice(&private::read(&dir.join(MARK), MARK_MAX).ok()?).ok()
}

/// Marks a pod's directory as the node's. The caller holds the directory's lock.
fn write_mark(dir: &Path, mark: &Mark) -> io::Result<()> {
    let temporary = dir.join("node.tmp");
    let mut file = fs::File::create(&temporary)?;
    file.write_all(&serde_json::to_vec(mark)?)?;
    drop(file);
    fs::rename(&temporary, dir.join(MARK))
}
