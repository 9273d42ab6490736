//! The node of a state directory. Only one process at a time is the node, and its identity outlives the
//! process.

use std::fs;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;

use crate::{SandboxId, private};

/// The length of an identity in hexadecimal digits.
const ID_LENGTH: usize = 32;

/// Proof that this process is the node of a state directory. Another process can take over when the last copy
/// of this is dropped or this process ends.
#[derive(Debug, Clone)]
pub struct NodeIdentity(Arc<Node>);

#[derive(Debug)]
struct Node {
    id: String,
    state_dir: PathBuf,
    /// Locks on the state directory, and on a file in it that contains the pid.
    _locks: [OwnedFd; 2],
}

/// Why a process cannot be the node of a state directory.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// Another process is the node.
    #[error("another outrigger node{} runs on {}; stop it, or name another --state-dir", process(*pid), state_dir.display())]
    Taken {
        /// The state directory.
        state_dir: PathBuf,
        /// The other process, if known.
        pid: Option<u32>,
    },
    /// The state directory is not usable.
    #[error("cannot use {} for a node: {source}", path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

fn process(pid: Option<u32>) -> String {
    pid.map(|pid| format!(" (process {pid})")).unwrap_or_default()
}

impl NodeIdentity {
    /// Becomes the node of a state directory, which must exist.
    ///
    /// # Errors
    /// Another process is the node, or the directory cannot be written.
    pub fn open(state_dir: &Path) -> Result<Self, NodeError> {
        let dir = state_dir.join("node");
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source: io::Error| NodeError::Io { path, source }
        };
        private::make(&dir).map_err(failed(&dir))?;
        let path = dir.join("lock");
        let taken = || {
            let text = private::read(&path, 1024).unwrap_or_default();
            let pid = String::from_utf8_lossy(&text).trim().parse().ok();
            NodeError::Taken { state_dir: state_dir.to_owned(), pid }
        };
        // Somebody who cleans up could remove the file and create it again. The state directory cannot be
        // removed while a node uses it.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let whole = rustix::fs::open(state_dir, flags, Mode::empty())
            .map_err(|error| failed(state_dir)(error.into()))?;
        match flock(&whole, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(taken()),
            Err(error) => return Err(failed(state_dir)(error.into())),
        }
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let lock = rustix::fs::open(&path, flags, Mode::from_raw_mode(0o600))
            .map_err(|error| failed(&path)(error.into()))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(taken()),
            Err(error) => return Err(failed(&path)(error.into())),
        }
        // The pid is only for people. Only the lock counts.
        let _ = fs::write(&path, std::process::id().to_string());
        let path = dir.join("id");
        let id = match read_id(&path) {
            Ok(Some(id)) => id,
            Ok(None) => make_id(&path).map_err(failed(&path))?,
            Err(error) => return Err(failed(&path)(error)),
        };
        Ok(NodeIdentity(Arc::new(Node { id, state_dir: state_dir.to_owned(), _locks: [whole, lock] })))
    }

    /// The identity of the node, the same for all its processes.
    pub fn id(&self) -> &str {
        &self.0.id
    }

    /// The directory of one of the node's pods.
    pub fn pod_dir(&self, id: &SandboxId) -> PathBuf {
        self.0.state_dir.join("pods").join(&id.0)
    }
}

/// Reads an identity from a file. `None` if the file does not exist or has no valid identity.
fn read_id(path: &Path) -> io::Result<Option<String>> {
    let text = match private::read(path, 1024) {
        Ok(text) => String::from_utf8_lossy(&text).into_owned(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let id = text.trim();
    if id.len() == ID_LENGTH && id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Ok(Some(id.to_owned()));
    }
    tracing::warn!(
        "{} does not hold the name of a node: it gets a new one; pods it had on a container runtime are left there",
        path.display()
    );
    Ok(None)
}

/// Generates an identity and stores it, once in the lifetime of the state directory. The file is synced to
/// disk, so that it survives a power failure.
fn make_id(path: &Path) -> io::Result<String> {
    let uuid = fs::read_to_string("/proc/sys/kernel/random/uuid")?;
    let id: String = uuid.chars().filter(char::is_ascii_hexdigit).collect();
    let temporary = path.with_extension("tmp");
    let mut file = fs::File::create(&temporary)?;
    file.write_all(id.as_bytes())?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_node_at_a_time_and_its_name_stays() {
        let dir = tempfile::tempdir().unwrap();
        let node = NodeIdentity::open(dir.path()).unwrap();
        let error = NodeIdentity::open(dir.path()).unwrap_err();
        assert!(matches!(error, NodeError::Taken { pid: Some(pid), .. } if pid == std::process::id()));
        assert!(error.to_string().contains("another outrigger node (process "), "{error}");
        let id = node.id().to_owned();
        assert_eq!(id.len(), ID_LENGTH);
        fs::remove_file(dir.path().join("node/lock")).unwrap();
        let error = NodeIdentity::open(dir.path()).unwrap_err();
        assert!(matches!(error, NodeError::Taken { .. }), "a file that is removed frees nothing: {error}");
        fs::rename(dir.path().join("node"), dir.path().join("moved")).unwrap();
        assert!(NodeIdentity::open(dir.path()).is_err(), "nor does the directory");
        fs::remove_dir_all(dir.path().join("node")).unwrap();
        fs::rename(dir.path().join("moved"), dir.path().join("node")).unwrap();
        let copy = node.clone();
        drop(node);
        assert!(NodeIdentity::open(dir.path()).is_err(), "a copy is left");
        drop(copy);
        assert_eq!(NodeIdentity::open(dir.path()).unwrap().id(), id);
    }

    #[test]
    fn a_name_that_is_damaged_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("node")).unwrap();
        for damage in [&b""[..], b"abc", b"\xff\xfe", &[b'a'; 4096]] {
            fs::write(dir.path().join("node/id"), damage).unwrap();
            let id = NodeIdentity::open(dir.path()).unwrap().id().to_owned();
            assert_eq!(id.len(), ID_LENGTH, "{damage:?}");
            assert_eq!(NodeIdentity::open(dir.path()).unwrap().id(), id);
        }
    }
}
