//! Processes and their namespaces: who is in a container that has no cgroup, and what there is to join.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::embedded::sys;

/// A container that forks faster than this many rounds of killing has no limit that would stop it either.
const ROUNDS_MAX: usize = 64;

/// A mount namespace, by the number the kernel gave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MountNamespace(u64);

impl MountNamespace {
    /// That of a process.
    pub(crate) fn of(pid: i32) -> Option<Self> {
        Self::at(&Path::new("/proc").join(pid.to_string()))
    }

    fn at(process: &Path) -> Option<Self> {
        Some(MountNamespace(fs::metadata(process.join("ns/mnt")).ok()?.ino()))
    }

    /// Everybody in it.
    fn processes(self) -> Vec<i32> {
        let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
        let pid = |entry: fs::DirEntry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            (Self::at(&entry.path()) == Some(self)).then_some(pid)
        };
        entries.flatten().filter_map(pid).collect()
    }

    /// Kills everybody in it. Never the caller's own.
    pub(crate) fn kill(self) {
        if Self::at(Path::new("/proc/self")).is_none_or(|own| own == self) {
            return;
        }
        for _ in 0..ROUNDS_MAX {
            let pids = self.processes();
            if pids.is_empty() {
                return;
            }
            for pid in pids {
                let _ = sys::kill(pid, libc::SIGKILL);
            }
        }
    }
}

/// The namespaces a process has and the caller has not, as flags. Joining one that both are in already takes the right to
/// it, which nobody without root has for the host's.
pub(crate) fn namespaces_to_join(pid: i32) -> i32 {
    let kinds = [
        ("mnt", libc::CLONE_NEWNS),
        ("ipc", libc::CLONE_NEWIPC),
        ("net", libc::CLONE_NEWNET),
        ("uts", libc::CLONE_NEWUTS),
        ("cgroup", libc::CLONE_NEWCGROUP),
        ("pid", libc::CLONE_NEWPID),
    ];
    let inode =
        |whose: &str, name: &str| fs::metadata(format!("/proc/{whose}/ns/{name}")).ok().map(|m| m.ino());
    let differs = |name: &str| {
        let theirs = inode(&pid.to_string(), name);
        theirs.is_none() || theirs != inode("self", name)
    };
    kinds.into_iter().filter(|(name, _)| differs(name)).fold(0, |all, (_, kind)| all | kind)
}
