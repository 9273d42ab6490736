//! The content store on disk, shared by every process that uses the same state directory.
//!
//! ```text
//! images/                   0700, because layers contain set-user-id programs that other users must not reach
//!   blobs/sha256/HEX        manifests and configurations
//!   layers/HEX16/d          a layer in overlayfs' format; HEX16 is the beginning of its diff id
//!   layers/HEX16/id         the whole diff id
//!   layers/HEX16/owners     the highest user or group id of its files
//!   index/HEX               the manifest that a registry name had when it was last pulled
//!   proofs/HEX              records that a file of this machine contains the layer that it names
//!   empty                   the layer for images without layers
//!   locks/…                 files for flock(2)
//!   tmp/N, tmp/N.lock       scratch space of one process; removed when no process holds the lock
//! ```
//!
//! Every entry is complete before one rename(2) gives it its name, so readers need no lock. Locks only
//! prevent two processes from doing the same work twice.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::digest::Digest;
use super::fault::{FailedTo, Fault};
use super::reference::Name;
use outrigger_runtime::private;

/// The number of digits of a diff id in its directory's name. It is small because overlayfs' option string
/// must fit into a page.
const LAYER_NAME_LEN: usize = 16;

/// The file beside a layer with the highest user or group id of the layer's files.
const OWNERS: &str = "owners";

/// The directories of the store, and this process' scratch space in it.
#[derive(Debug)]
pub(super) struct Store {
    root: PathBuf,
    scratch: PathBuf,
    scratch_lock: File,
    counter: AtomicU64,
}

/// A lock, held as long as this value exists.
#[derive(Debug)]
pub(super) struct Lock(#[expect(dead_code, reason = "closing the file releases the lock")] File);

/// A scratch path that is removed when dropped, unless it was renamed away.
#[derive(Debug)]
pub(super) struct Scratch(PathBuf);

/// The record of a name that was pulled.
#[derive(Debug, Serialize, Deserialize)]
struct IndexEntry {
    reference: String,
    manifest: Digest,
}

impl Scratch {
    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        remove_tree(&self.0);
    }
}

/// Removes a file or a directory tree. If that fails, the next process removes it.
fn remove_tree(path: &Path) {
    if let Err(error) = outrigger_runtime::tree::remove(path) {
        tracing::debug!(path = %path.display(), %error, "cannot remove scratch space");
    }
}

impl Store {
    /// Opens the store, creates it if it is missing, and removes leftovers of dead processes.
    pub(super) fn open(root: PathBuf) -> Result<Self, Fault> {
        if let Some(parent) = root.parent() {
            private::make_all(parent).failed_to("create", parent)?;
        }
        private::make(&root).failed_to("create", &root)?;
        for name in ["blobs/sha256", "layers", "index", "proofs", "locks", "empty", "tmp"] {
            let dir = root.join(name);
            fs::create_dir_all(&dir).failed_to("create", &dir)?;
        }
        let tmp = root.join("tmp");
        clear_dead(&tmp);
        let (scratch, scratch_lock) = claim_scratch(&tmp)?;
        Ok(Store { root, scratch, scratch_lock, counter: AtomicU64::new(0) })
    }

    /// The directory of the store.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// A new path for scratch files, on the file system of the store.
    pub(super) fn scratch(&self) -> Scratch {
        Scratch(self.scratch.join(self.counter.fetch_add(1, Ordering::Relaxed).to_string()))
    }

    fn blob_path(&self, digest: &Digest) -> PathBuf {
        self.root.join("blobs/sha256").join(digest.hex())
    }

    /// A blob, if it is present and intact.
    pub(super) fn read_blob(&self, digest: &Digest) -> Result<Option<Vec<u8>>, Fault> {
        let path = self.blob_path(digest);
        match fs::read(&path) {
            Ok(bytes) if Digest::of_bytes(&bytes) == *digest => Ok(Some(bytes)),
            Ok(_) => {
                tracing::warn!(path = %path.display(), "blob is damaged and will be fetched again");
                Ok(None)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).failed_to("read", &path),
        }
    }

    /// Stores a blob whose digest the caller has verified.
    pub(super) fn write_blob(&self, digest: &Digest, bytes: &[u8]) -> Result<(), Fault> {
        self.replace(&self.blob_path(digest), bytes)
    }

    fn replace(&self, path: &Path, bytes: &[u8]) -> Result<(), Fault> {
        let scratch = self.scratch();
        let write = || {
            let mut file = File::create_new(scratch.path())?;
            file.write_all(bytes)?;
            file.sync_all()?;
            fs::rename(scratch.path(), path)?;
            sync_dir(path)
        };
        write().failed_to("write", path)
    }

    fn index_path(&self, name: &Name) -> PathBuf {
        self.root.join("index").join(Digest::of_bytes(name.to_string().as_bytes()).hex())
    }

    /// The manifest that a name had when it was last pulled.
    pub(super) fn lookup(&self, name: &Name) -> Result<Option<Digest>, Fault> {
        let path = self.index_path(name);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).failed_to("read", &path),
        };
        match serde_json::from_slice::<IndexEntry>(&bytes) {
            Ok(entry) if entry.reference == name.to_string() => Ok(Some(entry.manifest)),
            _ => {
                tracing::warn!(path = %path.display(), "index entry is damaged and will be replaced");
                Ok(None)
            }
        }
    }

    /// Records the manifest of a name.
    pub(super) fn set_manifest(&self, name: &Name, manifest: &Digest) -> Result<(), Fault> {
        let entry = IndexEntry { reference: name.to_string(), manifest: manifest.clone() };
        let text = serde_json::to_vec(&entry).map_err(|error| Fault::new(error.to_string()))?;
        self.replace(&self.index_path(name), &text)
    }

    fn layer_home(&self, diff_id: &Digest) -> PathBuf {
        self.root.join("layers").join(&diff_id.hex()[..LAYER_NAME_LEN])
    }

    /// The directory of an unpacked layer, if it is present.
    pub(super) fn layer(&self, diff_id: &Digest) -> Result<Option<PathBuf>, Fault> {
        let home = self.layer_home(diff_id);
        match fs::read_to_string(home.join("id")) {
            Ok(id) if id == diff_id.to_string() => Ok(Some(home.join("d"))),
            Ok(id) => Err(Fault::new(format!(
                "layers {diff_id} and {id} are different but share the directory {}; remove it and try again",
                home.display()
            ))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).failed_to("read", &home),
        }
    }

    fn proof_path(&self, diff_id: &Digest, stamp: &str) -> PathBuf {
        self.root.join("proofs").join(Digest::of_bytes(format!("{diff_id} {stamp}").as_bytes()).hex())
    }

    /// Whether the bytes with this stamp were read before, and were this layer.
    pub(super) fn has_proof(&self, diff_id: &Digest, stamp: Option<&str>) -> bool {
        stamp.is_some_and(|stamp| self.proof_path(diff_id, stamp).exists())
    }

    /// Records that the bytes with this stamp are this layer.
    pub(super) fn note_proof(&self, diff_id: &Digest, stamp: Option<&str>) {
        // If this fails, the bytes are read again next time.
        let _ = stamp.map(|stamp| File::create(self.proof_path(diff_id, stamp)));
    }

    /// An empty directory. Overlayfs needs at least one layer.
    pub(super) fn empty_layer(&self) -> PathBuf {
        self.root.join("empty")
    }

    /// The highest user or group id of the files of an unpacked layer. `None` if the layer is not in this
    /// store, or if an earlier version unpacked it, which did not record the id.
    pub(super) fn greatest_id(&self, layer: &Path) -> Option<u32> {
        let home = layer.parent().filter(|home| home.parent() == Some(&self.root.join("layers")))?;
        fs::read_to_string(home.join(OWNERS)).ok()?.trim().parse().ok()
    }

    /// Moves a layer into place. `scratch` contains it in `d`, and its files belong to ids up to
    /// `greatest_id`. The caller must hold the layer's lock.
    pub(super) fn keep_layer(
        &self,
        diff_id: &Digest,
        scratch: Scratch,
        greatest_id: u32,
    ) -> Result<PathBuf, Fault> {
        let home = self.layer_home(diff_id);
        let keep = || {
            fs::write(scratch.path().join(OWNERS), greatest_id.to_string())?;
            fs::write(scratch.path().join("id"), diff_id.to_string())?;
            // This is one call for the whole tree. Syncing each file takes many times as long.
            rustix::fs::syncfs(File::open(scratch.path())?)?;
            // If there were a complete layer, it would have been used, so this can be removed.
            remove_tree(&home);
            fs::rename(scratch.path(), &home)?;
            sync_dir(&home)
        };
        keep().failed_to("write", &home)?;
        Ok(home.join("d"))
    }

    /// Waits for the layer's lock. Dropping the call stops waiting.
    pub(super) async fn lock_layer(&self, diff_id: &Digest) -> Result<Lock, Fault> {
        let path = self.root.join("locks").join(diff_id.hex());
        let file = open_lock(&path).failed_to("open", &path)?;
        let mut pause = Duration::from_millis(5);
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Lock(file)),
                // This polls instead of blocking. A thread in flock(2) cannot be interrupted, and would
                // prevent the program from ending.
                Err(Errno::WOULDBLOCK | Errno::INTR) => tokio::time::sleep(pause).await,
                Err(errno) => return Err(errno).failed_to("lock", &path),
            }
            pause = (pause * 2).min(Duration::from_millis(200));
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        remove_tree(&self.scratch);
        let lock = self.scratch.with_extension("lock");
        // The lock file is removed only if it is still this process' own.
        if same_file(&self.scratch_lock, &lock) {
            remove_tree(&lock);
        }
    }
}

fn sync_dir(child: &Path) -> io::Result<()> {
    match child.parent() {
        Some(parent) => File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}

fn open_lock(path: &Path) -> io::Result<File> {
    File::options().read(true).write(true).create(true).truncate(false).open(path)
}

fn same_file(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::metadata(path)) {
        (Ok(a), Ok(b)) => a.ino() == b.ino() && a.dev() == b.dev(),
        _ => false,
    }
}

/// Creates a scratch directory with a lock that this process holds until it ends.
fn claim_scratch(tmp: &Path) -> Result<(PathBuf, File), Fault> {
    for n in 0u64.. {
        let dir = tmp.join(format!("{}-{n}", std::process::id()));
        let lock = dir.with_extension("lock");
        let file = open_lock(&lock).failed_to("create", &lock)?;
        // Before it was locked, another process may have removed the file as a leftover of a dead process.
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() && same_file(&file, &lock) {
            remove_tree(&dir);
            fs::create_dir(&dir).failed_to("create", &dir)?;
            return Ok((dir, file));
        }
    }
    Err(Fault::new("no free name for scratch space"))
}

/// Removes scratch space whose process has ended.
fn clear_dead(tmp: &Path) {
    let Ok(entries) = fs::read_dir(tmp) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.extension().is_none_or(|ext| ext != "lock") {
            // A directory without a lock file has no owner. Otherwise its lock file decides.
            if !path.with_extension("lock").exists() {
                remove_tree(&path);
            }
            continue;
        }
        let Ok(file) = open_lock(&path) else { continue };
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() && same_file(&file, &path) {
            remove_tree(&path.with_extension(""));
            remove_tree(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scratch_of_the_dead_goes_and_of_the_living_stays() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("images");
        let living = Store::open(root.clone()).unwrap();
        fs::write(living.scratch().path(), "x").unwrap();
        let kept = living.scratch.join("kept");
        fs::write(&kept, "x").unwrap();
        // This is the state after a process was killed: the files exist, but the lock is not held.
        for name in ["999999-0", "999999-1"] {
            fs::create_dir_all(root.join("tmp").join(name).join("deep/er")).unwrap();
        }
        fs::write(root.join("tmp/999999-0.lock"), "").unwrap();
        let second = Store::open(root.clone()).unwrap();
        assert!(kept.exists());
        assert_ne!(living.scratch, second.scratch);
        let left = |root: &Path| fs::read_dir(root.join("tmp")).unwrap().count();
        assert_eq!(left(&root), 4, "two directories with a lock each");
        drop((living, second));
        assert_eq!(left(&root), 0);
    }

    #[test]
    fn damaged_blobs_and_entries_count_as_missing() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path().join("images")).unwrap();
        let (digest, name) = (Digest::of_bytes(b"abc"), Name::parse("busybox").unwrap());
        assert_eq!(store.read_blob(&digest).unwrap(), None);
        store.write_blob(&digest, b"abc").unwrap();
        store.set_manifest(&name, &digest).unwrap();
        assert_eq!(store.read_blob(&digest).unwrap().as_deref(), Some(&b"abc"[..]));
        assert_eq!(store.lookup(&name).unwrap(), Some(digest.clone()));
        assert_eq!(store.lookup(&Name::parse("busybox:1").unwrap()).unwrap(), None);
        fs::write(store.blob_path(&digest), "abd").unwrap();
        fs::write(store.index_path(&name), "{").unwrap();
        assert_eq!(store.read_blob(&digest).unwrap(), None);
        assert_eq!(store.lookup(&name).unwrap(), None);
    }
}
