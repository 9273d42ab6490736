//! Resolves paths inside an untrusted root file system.
//!
//! An image may contain symbolic links to anywhere. The kernel resolves every path of a container with the
//! container's root as `/` (`RESOLVE_IN_ROOT`). Mounts are attached to the resulting descriptor, never to a
//! path that could be replaced in between. For the kernel's own file systems, no link is followed at all
//! ([`Root::plain_dir`]). A link there could only serve to make them appear in a place that is not masked.

use std::io::{self, Read as _};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, fsconfig_create, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen, move_mount,
};

/// The maximum number of bytes read of a user or group table.
const TABLE_MAX: u64 = 4 << 20;

/// The maximum number of links followed while directories are created.
const LINKS_MAX: u32 = 40;

/// Resolves only downwards, and without links.
const PLAIN: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

/// The root directory of a container, or of one of its file systems.
pub(crate) struct Root {
    fd: OwnedFd,
}

impl Root {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Root { fd }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Opens the file or directory at `path` without reading it. Links are followed.
    pub(crate) fn find(&self, path: &Path) -> io::Result<OwnedFd> {
        self.open(path, OFlags::PATH)
    }

    /// Reads the beginning of a text file. The limit is larger than any such file should be. Opens only
    /// regular files, because opening some devices has side effects.
    pub(crate) fn read_to_string(&self, path: &str) -> io::Result<String> {
        let found = self.find(Path::new(path))?;
        if FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode) != FileType::RegularFile {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let fd = reopen(found.as_fd(), OFlags::RDONLY | OFlags::NONBLOCK)?;
        io::read_to_string(std::fs::File::from(fd).take(TABLE_MAX))
    }

    /// Opens the directory `name` directly in this one. Creates it if it is missing. Accepts neither a link
    /// nor a mount.
    pub(crate) fn plain_dir(&self, name: &str) -> io::Result<OwnedFd> {
        match rustix::fs::mkdirat(&self.fd, name, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        self.resolve(Path::new(name), OFlags::PATH | OFlags::DIRECTORY, PLAIN | ResolveFlags::NO_XDEV)
    }

    /// Opens `path` in this file system itself, without following links and without reading it.
    pub(crate) fn find_plain(&self, path: &str) -> io::Result<OwnedFd> {
        self.resolve(Path::new(path), OFlags::PATH, PLAIN | ResolveFlags::NO_XDEV)
    }

    /// Opens the mount at `path`, without following links.
    pub(crate) fn find_mounted(&self, path: &str) -> io::Result<OwnedFd> {
        self.resolve(Path::new(path), OFlags::PATH, PLAIN)
    }

    /// Opens a character device for reading and writing, if it is the expected one.
    pub(crate) fn open_device(&self, path: &Path, device: u64) -> io::Result<OwnedFd> {
        let found = rustix::fs::fstat(self.find(path)?)?;
        if FileType::from_raw_mode(found.st_mode) != FileType::CharacterDevice || found.st_rdev != device {
            return Err(io::Error::from_raw_os_error(libc::ENODEV));
        }
        let opened = self.open(path, OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOCTTY)?;
        match rustix::fs::fstat(&opened)?.st_rdev == device {
            true => Ok(opened),
            false => Err(io::Error::from_raw_os_error(libc::ENODEV)),
        }
    }

    fn open(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        self.resolve(path, flags, ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS)
    }

    fn resolve(&self, path: &Path, flags: OFlags, resolve: ResolveFlags) -> io::Result<OwnedFd> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        loop {
            match rustix::fs::openat2(&self.fd, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve) {
                // The kernel saw a rename that could be an escape, and wants the call to be repeated.
                Err(Errno::AGAIN) => continue,
                result => return Ok(result?),
            }
        }
    }

    /// Opens the directory `path`. Creates what is missing.
    pub(crate) fn dir(&self, path: &Path) -> io::Result<OwnedFd> {
        self.dir_following(path, 0)
    }

    fn dir_following(&self, path: &Path, links: u32) -> io::Result<OwnedFd> {
        let wanted = OFlags::PATH | OFlags::DIRECTORY;
        match self.open(path, wanted) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            result => return result,
        }
        if links > LINKS_MAX {
            return Err(io::Error::from_raw_os_error(libc::ELOOP));
        }
        let (parent, name) = split(path)?;
        let parent_fd = self.dir_following(parent, links + 1)?;
        match rustix::fs::mkdirat(&parent_fd, name, Mode::from_raw_mode(0o755)) {
            Ok(()) => {}
            Err(Errno::EXIST) => {
                // A link may point to something that does not exist yet, such as `/var/run` to `/run`. Its
                // target is created.
                if let Ok(target) = rustix::fs::readlinkat(&parent_fd, name, Vec::new()) {
                    let target =
                        target.into_string().map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
                    return self.dir_following(&parent.join(target), links + 1);
                }
            }
            Err(error) => return Err(error.into()),
        }
        self.open(path, wanted)
    }

    /// Opens the file `path` as a mount target. Creates it and its directories if they are missing.
    pub(crate) fn file(&self, path: &Path) -> io::Result<OwnedFd> {
        match self.find(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            result => return result,
        }
        let (parent, name) = split(path)?;
        let parent = self.dir(parent)?;
        match rustix::fs::mknodat(&parent, name, FileType::RegularFile, Mode::from_raw_mode(0o644), 0) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        self.find(path)
    }
}

/// Splits a path into parent and name. The root, and a path that ends in `..`, have no name.
fn split(path: &Path) -> io::Result<(&Path, &std::ffi::OsStr)> {
    match (path.parent(), path.components().next_back()) {
        (Some(parent), Some(Component::Normal(name))) => Ok((parent, name)),
        _ => Err(io::Error::from_raw_os_error(libc::EINVAL)),
    }
}

/// Creates a new, detached instance of a file system.
pub(crate) fn new_filesystem(
    kind: &str,
    options: &[(&str, &str)],
    attributes: MountAttrFlags,
) -> io::Result<OwnedFd> {
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in options {
        if value.is_empty() {
            fsconfig_set_flag(&context, *key)?;
        } else {
            fsconfig_set_string(&context, *key, *value)?;
        }
    }
    fsconfig_create(&context)?;
    Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

/// Reopens an `O_PATH` descriptor for use. The caller's /proc must be the host's.
pub(crate) fn reopen(place: BorrowedFd<'_>, flags: OFlags) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", place.as_raw_fd());
    Ok(rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty())?)
}

/// Mounts a detached mount on an open target.
pub(crate) fn attach(mount: BorrowedFd<'_>, target: BorrowedFd<'_>) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(move_mount(mount, "", target, "", flags)?)
}

/// `path` relative to the root.
pub(crate) fn relative(path: &Path) -> PathBuf {
    path.components().filter(|part| matches!(part, Component::Normal(_))).collect()
}
