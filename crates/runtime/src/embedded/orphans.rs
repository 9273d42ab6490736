//! Whose a pod is, and what happens to the pods of processes that died.
//!
//! A pod's directory holds a `lock` file that its owner keeps locked for as long as it lives. The kernel gives the lock
//! back however the owner ends, and shims do not inherit it: a pod whose lock is free has no owner.
//!
//! Between making a directory and locking it nobody may take it for an orphan. So whoever makes one holds the parent's
//! lock together with others who do, and whoever looks for orphans holds it alone for the look at each.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;

use super::cgroup::Hierarchies;
use super::protocol::{ContainerState, ProcessRecord};
use super::{layout, private, sandbox, sys};
use crate::{RuntimeError, SandboxId};

/// The pod directories of one runtime, each locked until it is gone.
#[derive(Debug, Default)]
pub(crate) struct Claims(Mutex<HashMap<PathBuf, OwnedFd>>);

impl Claims {
    /// Makes a pod's directory and locks it, unless it is this runtime's already.
    pub(crate) fn claim(&self, dir: &Path) -> Result<(), RuntimeError> {
        let mut held = self.held();
        if held.contains_key(dir) {
            return Ok(());
        }
        match try_claim(dir) {
            Ok(Some(lock)) => {
                held.insert(dir.to_owned(), lock);
                Ok(())
            }
            Ok(None) => {
                Err(RuntimeError::Create(format!("{} belongs to another running outrigger", dir.display())))
            }
            Err(error) => Err(RuntimeError::Create(format!(
                "cannot claim {}: {}",
                dir.display(),
                sys::errno_text(&error)
            ))),
        }
    }

    /// Gives a pod's directory up. It is removed, unless there is something in it that is not the runtime's: then it
    /// stays locked until whoever put it there has removed the directory, for if this process dies before that,
    /// somebody else has to do it.
    pub(crate) fn release(&self, dir: &Path) {
        let mut held = self.held();
        let only_lock =
            fs::read_dir(dir).is_ok_and(|entries| entries.flatten().all(|entry| entry.file_name() == "lock"));
        if only_lock {
            let _ = fs::remove_file(dir.join("lock"));
            let _ = fs::remove_dir(dir);
            held.remove(dir);
        }
    }

    /// The locks of directories that are still there.
    fn held(&self) -> MutexGuard<'_, HashMap<PathBuf, OwnedFd>> {
        // No panic leaves a map half-changed.
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.retain(|dir, _| dir.join("lock").exists());
        held
    }
}

/// Makes a pod's directory and locks it; `None` when somebody else has.
fn try_claim(dir: &Path) -> io::Result<Option<OwnedFd>> {
    let parent = dir.parent().unwrap_or(Path::new("/"));
    private::make_all(parent)?;
    let _makers = lock_parent(parent, FlockOperation::LockShared)?;
    // Each turn starts over because a cleaner has just removed what was locked.
    for _ in 0..16 {
        private::make(dir)?;
        match try_lock(dir, OFlags::CREATE) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            result => return result,
        }
    }
    Err(io::Error::from_raw_os_error(libc::EAGAIN))
}

/// Locks a directory's lock file; `None` when somebody else has. Not found if it is gone by then.
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

/// Locks the directory all pods' directories are in, for as long as what is returned lives.
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

/// Locks a pod's directory if it has no owner. One without a lock has none: whoever made it died before it could lock
/// it, or whoever removed it before it had come to the end.
fn lock_orphan(dir: &Path) -> io::Result<Option<OwnedFd>> {
    let _alone = lock_parent(dir.parent().unwrap_or(Path::new("/")), FlockOperation::LockExclusive)?;
    match try_lock(dir, OFlags::empty()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => match fs::remove_dir(dir) {
            // It was empty, which is also what a living owner leaves for a moment at the end.
            Ok(()) => Ok(None),
            Err(_) => try_lock(dir, OFlags::CREATE),
        },
        result => result,
    }
}

/// Ends and removes every pod below `pods` that has no owner.
pub(crate) fn clean(pods: &Path, hierarchies: &Hierarchies) -> Vec<SandboxId> {
    let Ok(entries) = fs::read_dir(pods) else { return Vec::new() };
    let mut removed = Vec::new();
    for entry in entries.flatten() {
        let dir = entry.path();
        let Ok(Some(lock)) = lock_orphan(&dir) else { continue };
        let id = entry.file_name().to_string_lossy().into_owned();
        match clean_pod(&id, &dir, hierarchies) {
            Ok(()) => removed.push(SandboxId(id)),
            Err(error) => tracing::warn!(pod = id, %error, "an orphaned pod could not be removed"),
        }
        drop(lock);
    }
    removed
}

fn clean_pod(id: &str, dir: &Path, hierarchies: &Hierarchies) -> io::Result<()> {
    let states: Vec<ContainerState> = layout::containers(dir)
        .iter()
        .filter_map(|container| {
            layout::read_json(&layout::container_dir(dir, &container.0).join("state.json"))
        })
        .collect();
    // Shims first: they would go on writing to the directory.
    kill_and_wait(states.iter().filter_map(|state| state.shim));
    kill_and_wait(states.iter().filter_map(|state| state.init));
    sandbox::remove(id, dir, hierarchies).map_err(|fault| io::Error::other(fault.text))?;
    remove_tree(dir)
}

/// Removes the directory of a pod none of whose containers is left, unless it has an owner.
pub(crate) fn remove_dir(dir: &Path) -> io::Result<()> {
    match lock_orphan(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result?.map_or(Ok(()), |_lock| remove_tree(dir)),
    }
}

fn remove_tree(dir: &Path) -> io::Result<()> {
    for mount in mounts_below(dir) {
        layout::unmount_all(&mount);
    }
    if let Some(mount) = mounts_below(dir).first() {
        // Removing the tree would remove somebody else's files.
        return Err(io::Error::other(format!("{} cannot be unmounted", mount.display())));
    }
    layout::remove_tree(dir)
}

fn kill_and_wait(processes: impl Iterator<Item = ProcessRecord>) {
    let alive: Vec<i32> = processes.filter(ProcessRecord::is_alive).map(|process| process.pid).collect();
    sys::kill_and_wait(&alive, Duration::from_secs(5));
}

/// Mount points below a directory, the innermost first.
pub(crate) fn mounts_below(dir: &Path) -> Vec<PathBuf> {
    let Ok(dir) = fs::canonicalize(dir) else { return Vec::new() };
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = text.lines().filter_map(|line| line.split(' ').nth(4)).map(unescape);
    let mut below: Vec<PathBuf> = points.filter(|point| point.starts_with(&dir)).collect();
    below.sort_by_key(|point| std::cmp::Reverse(point.as_os_str().len()));
    below
}

/// A path as mountinfo writes it: blanks, tabs, newlines and backslashes in octal.
pub(crate) fn unescape(field: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let octal =
            tail.get(..3).filter(|_| first == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            None => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_read_as_they_are() {
        assert_eq!(unescape(r"/a\040b\134c"), Path::new(r"/a b\c"));
        assert_eq!(unescape(r"/plain\0"), Path::new(r"/plain\0"));
    }

    #[test]
    fn a_claimed_directory_cannot_be_claimed_again() {
        let dir = tempfile::tempdir().unwrap();
        let pod = dir.path().join("pod");
        let claims = Claims::default();
        claims.claim(&pod).unwrap();
        claims.claim(&pod).unwrap();
        assert!(Claims::default().claim(&pod).is_err() && lock_orphan(&pod).unwrap().is_none());
        drop(claims);
        assert!(lock_orphan(&pod).unwrap().is_some());
    }

    #[test]
    fn a_directory_is_its_owner_s_until_it_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let (empty, full) = (dir.path().join("empty"), dir.path().join("full"));
        let claims = Claims::default();
        claims.claim(&empty).unwrap();
        claims.claim(&full).unwrap();
        fs::write(full.join("log"), "x").unwrap();
        claims.release(&empty);
        claims.release(&full);
        assert!(!empty.exists() && lock_orphan(&full).unwrap().is_none());
        fs::remove_dir_all(&full).unwrap();
        assert!(claims.held().is_empty());
    }

    #[test]
    fn what_was_half_made_or_half_removed_is_nobody_s() {
        let dir = tempfile::tempdir().unwrap();
        for path in ["empty", "full/containers"] {
            fs::create_dir_all(dir.path().join(path)).unwrap();
        }
        fs::write(dir.path().join("file"), "").unwrap();
        assert_eq!(clean(dir.path(), &Hierarchies::default()), [SandboxId("full".to_owned())]);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "only the file is left");
    }

    /// Nobody who makes a directory ever finds it taken by somebody who looks for orphans.
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
            let claims = Claims::default();
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
}
