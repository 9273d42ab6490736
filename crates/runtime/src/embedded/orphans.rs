//! Whose a pod is, and what happens to the pods of processes that died.
//!
//! A pod's directory holds a `lock` file that its owner keeps locked for as long as it lives. The kernel gives the lock
//! back however the owner ends, and shims do not inherit it: a pod whose lock is free has no owner.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;

use super::cgroup::Hierarchies;
use super::protocol::{ContainerState, ProcessRecord};
use super::{layout, sandbox, sys};
use crate::{RuntimeError, SandboxId};

/// Makes a pod's directory and locks it. The lock lasts as long as what is returned.
pub(crate) fn claim(dir: &Path) -> Result<OwnedFd, RuntimeError> {
    match try_claim(dir) {
        Ok(Some(lock)) => Ok(lock),
        Ok(None) => {
            Err(RuntimeError::Create(format!("{} belongs to another running outrigger", dir.display())))
        }
        Err(error) => {
            Err(RuntimeError::Create(format!("cannot claim {}: {}", dir.display(), sys::errno_text(&error))))
        }
    }
}

/// Locks a pod's directory; `None` when somebody else has.
fn try_claim(dir: &Path) -> io::Result<Option<OwnedFd>> {
    let path = dir.join("lock");
    // Each turn starts over because a cleaner has just removed what was locked.
    for _ in 0..16 {
        fs::create_dir_all(dir)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        let lock = match rustix::fs::open(&path, flags, Mode::from_raw_mode(0o600)) {
            Err(Errno::NOENT) => continue,
            result => result?,
        };
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Ok(None),
            result => result?,
        }
        let held = rustix::fs::fstat(&lock)?;
        if fs::metadata(&path).is_ok_and(|now| now.ino() == held.st_ino && now.dev() == held.st_dev) {
            return Ok(Some(lock));
        }
    }
    Err(io::Error::from_raw_os_error(libc::EAGAIN))
}

/// Gives a pod's directory up: removes it unless somebody else's files are in it. The lock must still be held.
pub(crate) fn release(dir: &Path) {
    let _ = fs::remove_file(dir.join("lock"));
    let _ = fs::remove_dir(dir);
}

/// Ends and removes every pod below `pods` that has no owner.
pub(crate) fn clean(pods: &Path, hierarchies: &Hierarchies) -> Vec<SandboxId> {
    let Ok(entries) = fs::read_dir(pods) else { return Vec::new() };
    let mut removed = Vec::new();
    for entry in entries.flatten() {
        let dir = entry.path();
        // Without a lock it is somebody's directory about to be claimed, or nothing of ours.
        if !dir.join("lock").exists() {
            continue;
        }
        let Ok(Some(lock)) = try_claim(&dir) else { continue };
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
    match dir.join("lock").exists() {
        true => try_claim(dir)?.map_or(Ok(()), |_lock| remove_tree(dir)),
        false => Ok(()),
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
fn mounts_below(dir: &Path) -> Vec<PathBuf> {
    let Ok(dir) = fs::canonicalize(dir) else { return Vec::new() };
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = text.lines().filter_map(|line| line.split(' ').nth(4)).map(unescape);
    let mut below: Vec<PathBuf> = points.filter(|point| point.starts_with(&dir)).collect();
    below.sort_by_key(|point| std::cmp::Reverse(point.as_os_str().len()));
    below
}

/// A path as mountinfo writes it: blanks, tabs, newlines and backslashes in octal.
fn unescape(field: &str) -> PathBuf {
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
        let held = claim(&pod).unwrap();
        assert!(try_claim(&pod).unwrap().is_none());
        drop(held);
        assert!(try_claim(&pod).unwrap().is_some());
    }
}
