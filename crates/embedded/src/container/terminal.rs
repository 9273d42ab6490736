//! Opens terminals for containers, and for commands in them.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::root::{Root, attach};
use crate::sys::clone_mount_fd;

const DEVPTS_SUPER_MAGIC: u32 = 0x1cd1;

/// Opens a terminal and mounts it as `console` in the given /dev. Returns the outer and the inner end.
pub(super) fn open_terminal(dev: &Root) -> io::Result<(OwnedFd, OwnedFd)> {
    let (outer, inner) = open_pair(dev, "pts/ptmx")?;
    let console = dev.file(Path::new("console"))?;
    attach(clone_mount_fd(inner.as_fd())?.as_fd(), console.as_fd())?;
    Ok((outer, inner))
}

/// Opens a terminal with the `ptmx` at `path`, which must belong to a devpts, because a container may have
/// replaced it. Returns the outer and the inner end.
pub(crate) fn open_pair(root: &Root, path: &str) -> io::Result<(OwnedFd, OwnedFd)> {
    let (parent, name) = path.rsplit_once('/').ok_or(Errno::INVAL)?;
    let pts = root.find_mounted(parent)?;
    if i128::from(rustix::fs::fstatfs(&pts)?.f_type) != i128::from(DEVPTS_SUPER_MAGIC) {
        return Err(io::Error::other(format!("/{parent} is no file system for terminals")));
    }
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let outer = rustix::fs::openat(&pts, name, flags, Mode::empty())?;
    let unlock: libc::c_int = 0;
    // SAFETY: TIOCSPTLCK reads one int; TIOCGPTPEER takes open flags and returns a fresh descriptor or -1.
    let inner = unsafe {
        if libc::ioctl(outer.as_raw_fd(), libc::TIOCSPTLCK, &raw const unlock) < 0 {
            return Err(io::Error::last_os_error());
        }
        let inner = libc::ioctl(
            outer.as_raw_fd(),
            libc::TIOCGPTPEER,
            libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC,
        );
        if inner < 0 {
            return Err(io::Error::last_os_error());
        }
        OwnedFd::from_raw_fd(inner)
    };
    Ok((outer, inner))
}
