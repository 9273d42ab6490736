//! Terminals of containers, and of commands in them.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags, ResolveFlags};

use super::root::{Root, attach, clone_mount_fd};

/// Opens a pair and shows it as /dev/console. Returns the outer and the inner end.
pub(super) fn open_terminal(root: &Root) -> io::Result<(OwnedFd, OwnedFd)> {
    let (outer, inner) = open_pair(root)?;
    let console = root.file(Path::new("dev/console"))?;
    attach(clone_mount_fd(inner.as_fd())?.as_fd(), console.as_fd())?;
    Ok((outer, inner))
}

/// Opens a pair in the container's own /dev/pts. Returns the outer and the inner end.
pub(crate) fn open_pair(root: &Root) -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let outer = rustix::fs::openat2(root.fd(), "dev/pts/ptmx", flags, Mode::empty(), resolve)?;
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
