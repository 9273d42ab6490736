//! A container's /dev.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::mount::MountAttrFlags;

use super::root::{Root, attach, clone_mount, new_filesystem};
use crate::embedded::fault::{Context, Fault};
use crate::embedded::sys;

/// Nodes every container has, with their numbers.
const NODES: [(&str, u32, u32); 6] =
    [("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0)];

const LINKS: [(&str, &str); 6] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("core", "/proc/kcore"),
    ("ptmx", "pts/ptmx"),
];

/// Fills /dev and returns its `null`, open, to be trusted whatever the container puts in its place later.
pub(super) fn mount_dev(root: &Root, shm: &Path, all_devices: bool) -> Result<OwnedFd, Fault> {
    let what = || "cannot fill /dev";
    let dev = new_filesystem(
        "tmpfs",
        &[("mode", "755"), ("size", "65536k")],
        MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_STRICTATIME,
    )
    .creating(what)?;
    attach(dev.as_fd(), root.dir(Path::new("dev")).creating(what)?.as_fd()).creating(what)?;

    for (name, major, minor) in NODES {
        make_node(dev.as_fd(), Path::new(name), libc::S_IFCHR | 0o666, libc::makedev(major, minor))
            .creating(what)?;
    }
    for (name, target) in LINKS {
        rustix::fs::symlinkat(target, &dev, name).creating(what)?;
    }
    if all_devices {
        for (path, mode, device) in host_devices(Path::new("/dev")) {
            if let Some(parent) = path.parent().filter(|parent| *parent != Path::new("")) {
                root.dir(&Path::new("dev").join(parent)).creating(what)?;
            }
            // A device that vanished while looking, or a node already made above.
            let _ = make_node(dev.as_fd(), &path, mode, device);
        }
    }

    let quiet = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let options = [("newinstance", ""), ("ptmxmode", "0666"), ("mode", "0620"), ("gid", "5")];
    let pts = new_filesystem("devpts", &options, quiet).creating(|| "cannot make /dev/pts")?;
    let mqueue = new_filesystem("mqueue", &[], quiet | MountAttrFlags::MOUNT_ATTR_NODEV)
        .creating(|| "cannot make /dev/mqueue")?;
    let shm = clone_mount(shm, false).creating(|| "cannot share /dev/shm")?;
    for (name, mounted) in [("dev/pts", pts), ("dev/mqueue", mqueue), ("dev/shm", shm)] {
        let target = root.dir(Path::new(name)).creating(what)?;
        attach(mounted.as_fd(), target.as_fd()).creating(|| format!("cannot mount /{name}"))?;
    }
    rustix::fs::openat(&dev, "null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).creating(what)
}

fn make_node(dir: BorrowedFd<'_>, name: &Path, mode: u32, device: u64) -> io::Result<()> {
    sys::mknodat(dir, name, mode, device)
}

/// Device nodes of the host, relative to /dev, without those a container has its own of.
fn host_devices(base: &Path) -> Vec<(PathBuf, u32, u64)> {
    let mut found = Vec::new();
    let mut pending = vec![PathBuf::new()];
    while let Some(dir) = pending.pop() {
        let Ok(entries) = fs::read_dir(base.join(&dir)) else { continue };
        for entry in entries.flatten() {
            let path = dir.join(entry.file_name());
            let own = ["pts", "shm", "mqueue", "fd", "console", "ptmx"];
            if own.iter().any(|name| path == Path::new(name)) {
                continue;
            }
            let Ok(meta) = fs::symlink_metadata(base.join(&path)) else { continue };
            if meta.is_dir() {
                pending.push(path);
            } else if meta.file_type().is_char_device() || meta.file_type().is_block_device() {
                found.push((path, meta.mode(), meta.rdev()));
            }
        }
    }
    found
}
