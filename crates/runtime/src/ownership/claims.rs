//! Pod directories, each locked by the process that runs the pod.
//!
//! After a directory is created and before it is locked, another process must not take it for an orphan. A
//! process that creates a directory therefore holds a shared lock on the parent. A process that looks for
//! orphans holds an exclusive lock on the parent while it checks each one.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;

use super::{MARK, Mark, Owner, is_marked, read_mark, write_mark};
use crate::errno::errno_text;
use crate::{RuntimeError, SandboxId, mounts, private};

/// The pod directories of one runtime. Each stays locked until it is removed.
#[derive(Debug)]
pub struct Claims {
    owner: Owner,
    /// The runtime of the pods.
    runtime: &'static str,
    held: Mutex<HashMap<PathBuf, OwnedFd>>,
}

impl Claims {
    /// Creates an empty set. `runtime` is the name that users see.
    pub fn new(owner: Owner, runtime: &'static str) -> Self {
        Claims { owner, runtime, held: Mutex::default() }
    }

    /// The owner of the pods.
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Creates a pod's directory and locks it, unless this runtime already has it.
    pub fn claim(&self, dir: &Path) -> Result<(), RuntimeError> {
        let mut held = self.held();
        if held.contains_key(dir) {
            return Ok(());
        }
        let failed = |error: io::Error| {
            RuntimeError::Create(format!("cannot claim {}: {}", dir.display(), errno_text(&error)))
        };
        let Some(lock) = try_claim(dir).map_err(failed)? else {
            let text = format!("{} belongs to another running outrigger", dir.display());
            return Err(RuntimeError::Create(text));
        };
        match &self.owner {
            Owner::Process if is_marked(dir) => {
                let text = format!("{} belongs to the node of this state directory", dir.display());
                return Err(RuntimeError::Create(text));
            }
            Owner::Process => {}
            Owner::Node(node) => {
                let mark = Mark { node: node.id().to_owned(), runtime: self.runtime.to_owned() };
                if read_mark(dir).as_ref() != Some(&mark) {
                    write_mark(dir, &mark).map_err(failed)?;
                }
            }
        }
        held.insert(dir.to_owned(), lock);
        Ok(())
    }

    /// The pods below a directory that belong to this node and this runtime.
    pub fn marked(&self, pods: &Path) -> io::Result<Vec<SandboxId>> {
        let mut marked = Vec::new();
        for entry in fs::read_dir(pods)? {
            let entry = entry?;
            let (dir, name) = (entry.path(), entry.file_name().into_string());
            let is_ours = is_marked(&dir) && read_mark(&dir).is_none_or(|mark| mark.runtime == self.runtime);
            marked.extend(name.ok().filter(|_| is_ours).map(SandboxId));
        }
        Ok(marked)
    }

    /// Releases a pod's directory and removes it. If the directory contains entries that are not the
    /// runtime's, it stays locked until their owner has removed it. If this process dies before that, the
    /// lock becomes free, and another process removes the directory.
    pub fn release(&self, dir: &Path) {
        let mut held = self.held();
        let own = |entry: fs::DirEntry| ["lock", MARK].iter().any(|own| entry.file_name() == *own);
        if fs::read_dir(dir).is_ok_and(|entries| entries.flatten().all(own)) {
            let _ = fs::remove_file(dir.join(MARK));
            let _ = fs::remove_file(dir.join("lock"));
            let _ = fs::remove_dir(dir);
            held.remove(dir);
        }
    }

    /// The locks of the directories that still exist.
    fn held(&self) -> MutexGuard<'_, HashMap<PathBuf, OwnedFd>> {
        // A panic cannot leave the map in a partly changed state.
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.retain(|dir, _| dir.join("lock").exists());
        held
    }
}

/// Creates a pod's directory and locks it. `None` if another process holds the lock.
fn try_claim(dir: &Path) -> io::Result<Option<OwnedFd>> {
    let parent = dir.parent().unwrap_or(Path::new("/"));
    private::make_all(parent)?;
    let _makers = lock_parent(parent, FlockOperation::LockShared)?;
    // Another round is needed if the locked directory was just removed as an orphan.
    for _ in 0..16 {
        private::make(dir)?;
        match try_lock(dir, OFlags::CREATE) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            result => return result,
        }
    }
    Err(io::Error::from_raw_os_error(libc::EAGAIN))
}

/// Locks a directory's lock file. `None` if another process holds the lock. The error is `NotFound` if the
/// directory no longer exists.
fn try_lock(dir: &Path, flags: OFlags) -> io::Result<Option<OwnedFd>> {
    let path = dir.join("lock");
    let lock = rustix::fs::open(&path, OFlags::RDWR | OFlags::CLOEXEC | flags, Mode::from_raw_mode(0o600))?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => return Ok(None),
        result => result?,
    }
    let held = rustix::fs::fstat(&lock)?;
    let now = fs::metadata(&path)?;
    match now.ino() == held.st_ino && now.dev() == held.st_dev {
        true => Ok(Some(lock)),
        false => Err(io::ErrorKind::NotFound.into()),
    }
}

/// Locks the parent of all pod directories for as long as the returned value exists.
fn lock_parent(parent: &Path, how: FlockOperation) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let parent = rustix::fs::open(parent, flags, Mode::empty())?;
    loop {
        match flock(&parent, how) {
            Err(Errno::INTR) => {}
            result => return Ok(result.map(|()| parent)?),
        }
    }
}

/// Locks a pod's directory if it has no owner. A directory without a lock file has no owner: its creator died
/// before it could lock it, or its remover died before it was done. Directories of the node always have an
/// owner, even while the node is down.
pub fn lock_orphan(dir: &Path) -> io::Result<Option<OwnedFd>> {
    let _alone = lock_parent(dir.parent().unwrap_or(Path::new("/")), FlockOperation::LockExclusive)?;
    if is_marked(dir) {
        return Ok(None);
    }
    match try_lock(dir, OFlags::empty()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => match fs::remove_dir(dir) {
            // The directory was empty. A living owner also leaves it empty for a moment at the end.
            Ok(()) => Ok(None),
            Err(_) => try_lock(dir, OFlags::CREATE),
        },
        result => result,
    }
}

/// Removes the directory of a pod without containers, unless it has an owner.
pub fn remove_dir(dir: &Path) -> io::Result<()> {
    match lock_orphan(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result?.map_or(Ok(()), |_lock| mounts::remove_tree(dir)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{NodeError, NodeIdentity};

    fn of_a_process() -> Claims {
        Claims::new(Owner::Process, "test")
    }

    #[test]
    fn a_claimed_directory_cannot_be_claimed_again() {
        let dir = tempfile::tempdir().unwrap();
        let pod = dir.path().join("pod");
        let claims = of_a_process();
        claims.claim(&pod).unwrap();
        claims.claim(&pod).unwrap();
        assert!(of_a_process().claim(&pod).is_err() && lock_orphan(&pod).unwrap().is_none());
        drop(claims);
        assert!(lock_orphan(&pod).unwrap().is_some());
    }

    #[test]
    fn a_directory_is_its_owner_s_until_it_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let (empty, full) = (dir.path().join("empty"), dir.path().join("full"));
        let claims = of_a_process();
        claims.claim(&empty).unwrap();
        claims.claim(&full).unwrap();
        fs::write(full.join("log"), "x").unwrap();
        claims.release(&empty);
        claims.release(&full);
        assert!(!empty.exists() && lock_orphan(&full).unwrap().is_none());
        fs::remove_dir_all(&full).unwrap();
        assert!(claims.held().is_empty());
    }

    /// A process that creates a directory never finds it locked by a process that looks for orphans.
    #[test]
    fn makers_and_cleaners_do_not_meet() {
        let dir = tempfile::tempdir().unwrap();
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !done.load(std::sync::atomic::Ordering::Relaxed) {
                        for entry in fs::read_dir(dir.path()).unwrap().flatten() {
                            let found = lock_orphan(&entry.path());
                            assert!(!matches!(found, Ok(Some(_))), "{found:?}");
                        }
                    }
                });
            }
            let claims = of_a_process();
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                for n in 0..2_000 {
                    let pod = dir.path().join(n.to_string());
                    claims.claim(&pod).unwrap();
                    claims.release(&pod);
                    assert!(!pod.exists());
                }
            }));
            done.store(true, std::sync::atomic::Ordering::Relaxed);
            result.unwrap();
        });
    }

    #[test]
    fn a_node_s_pods_are_its_own_while_it_is_down() {
        let dir = tempfile::tempdir().unwrap();
        let pods = dir.path().join("pods");
        let (pod, other) = (pods.join("pod"), pods.join("other"));
        // A child process that another test has just forked also holds the lock until it executes its
        // program.
        let open = || match NodeIdentity::open(dir.path()) {
            Err(NodeError::Taken { .. }) => {
                std::thread::yield_now();
                None
            }
            other => Some(other.unwrap()),
        };
        let tries = || std::iter::repeat_with(open).take(1_000_000);
        let node = || Owner::Node(tries().flatten().next().expect("the lock is free"));
        let first = Claims::new(node(), "test");
        first.claim(&pod).unwrap();
        fs::write(pod.join("log"), "x").unwrap();
        of_a_process().claim(&other).unwrap();
        drop(first);
        assert!(lock_orphan(&pod).unwrap().is_none(), "the node is down, and may come back");
        let error = of_a_process().claim(&pod).unwrap_err();
        assert!(error.to_string().contains("belongs to the node"), "{error}");
        remove_dir(&pod).unwrap();
        assert!(pod.join("log").exists());

        let next = Claims::new(node(), "test");
        assert_eq!(next.marked(&pods).unwrap(), [SandboxId("pod".to_owned())]);
        next.claim(&pod).unwrap();
        next.release(&pod);
        assert!(pod.exists(), "its log is left");
        fs::remove_file(pod.join("log")).unwrap();
        next.release(&pod);
        assert!(!pod.exists());
    }

    #[test]
    fn a_mark_that_is_damaged_marks_all_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let (pods, node) = (dir.path().join("pods"), NodeIdentity::open(dir.path()).unwrap());
        for (name, mark) in [("empty", ""), ("garbage", "{{{"), ("cri", r#"{"node":"x","runtime":"cri"}"#)] {
            fs::create_dir_all(pods.join(name)).unwrap();
            fs::write(pods.join(name).join(MARK), mark).unwrap();
            assert!(lock_orphan(&pods.join(name)).unwrap().is_none(), "{name}");
        }
        let claims = Claims::new(Owner::Node(node), "embedded");
        let mut found = claims.marked(&pods).unwrap();
        found.sort();
        assert_eq!(found, ["empty", "garbage"].map(|name| SandboxId(name.to_owned())));
        claims.claim(&pods.join("garbage")).unwrap();
        assert_eq!(read_mark(&pods.join("garbage")).unwrap().runtime, "embedded");
    }
}
