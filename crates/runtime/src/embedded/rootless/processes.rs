//! The processes of a container that has no cgroup: those in its mount namespace.

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
