//! Finds and creates directories inside one root directory. Symbolic links cannot lead out of it.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat, XattrFlags, chmodat, fsetxattr, makedev, mkdirat,
    mknodat, openat, openat2, readlinkat, statat, unlinkat,
};
use rustix::io::Errno;

use super::fault::{FailedTo, Fault};
use outrigger_runtime::tree::Descent;

/// The most symbolic links that are followed, as in the kernel.
const LINKS_MAX: usize = 40;

/// A directory that is treated as `/`: absolute symbolic links and `..` do not leave it.
pub(super) struct Tree {
    root: OwnedFd,
    /// The last requested directory. It is kept because archives list the files of a directory together.
    last: Option<(PathBuf, OwnedFd)>,
}

impl Tree {
    pub(super) fn open(root: &Path) -> Result<Self, Fault> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(root, flags, Mode::empty()).failed_to("open", root)?;
        Ok(Tree { root, last: None })
    }

    /// Forgets the last requested directory. Call this before anything is removed, because paths may resolve
    /// differently afterwards.
    pub(super) fn forget(&mut self) {
        self.last = None;
    }

    /// The directory at a clean relative path, which is created if it is missing. The descriptor only refers
    /// to it (`O_PATH`).
    pub(super) fn dir(&mut self, path: &Path) -> rustix::io::Result<OwnedFd> {
        if let Some((known, fd)) = &self.last
            && known == path
        {
            return dup(fd);
        }
        let fd = match self.open_existing_dir(path) {
            Ok(fd) => fd,
            // The directory is missing, or openat2(2) is not available in the kernel or not allowed by a
            // seccomp filter.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::NOSYS | Errno::PERM) => self.walk(path)?,
            Err(errno) => return Err(errno),
        };
        self.last = Some((path.to_owned(), dup(&fd)?));
        Ok(fd)
    }

    /// The directory at a clean relative path, if there is one.
    pub(super) fn open_existing_dir(&self, path: &Path) -> rustix::io::Result<OwnedFd> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        openat2(&self.root, path, flags, Mode::empty(), resolve)
    }

    /// Follows a path and its links step by step, so that the target of a dangling link can be created. A
    /// layer may have `var/run -> /run` and `var/run/x`, and leave `/run` to a lower layer.
    fn walk(&self, path: &Path) -> rustix::io::Result<OwnedFd> {
        let mut way = Descent::new(dup(&self.root)?);
        let mut todo: VecDeque<OsString> = VecDeque::new();
        push_front(&mut todo, path);
        let mut links = 0;
        while let Some(part) = todo.pop_front() {
            if part == ".." {
                way.up().map_err(errno)?;
                continue;
            }
            let here = way.here();
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let next = match openat(here, &part, flags, Mode::empty()) {
                Err(Errno::NOENT) => make(here, &part, false)?,
                other => other?,
            };
            let stat = rustix::fs::fstat(&next)?;
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => way.down(next).map_err(errno)?,
                FileType::Symlink => {
                    links += 1;
                    if links > LINKS_MAX {
                        return Err(Errno::LOOP);
                    }
                    let target = readlinkat(here, &part, Vec::new())?;
                    let target = Path::new(OsStr::from_bytes(target.as_bytes()));
                    if target.has_root() {
                        way.restart();
                    }
                    push_front(&mut todo, target);
                }
                // The name is hidden in lower layers, and this layer creates it again.
                _ if is_whiteout_at(here, &part, &stat) => {
                    unlinkat(here, &part, AtFlags::empty())?;
                    let made = make(here, &part, true)?;
                    way.down(made).map_err(errno)?;
                }
                _ => return Err(Errno::NOTDIR),
            }
        }
        rustix::io::fcntl_dupfd_cloexec(way.here(), 0)
    }

    /// The type of a file, without following links.
    pub(super) fn kind_of(&self, parent: &OwnedFd, name: &OsStr) -> rustix::io::Result<Option<Stat>> {
        match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }
}

/// A path to a directory, for system calls that do not take a descriptor.
pub(super) fn path_of(dir: impl AsFd) -> PathBuf {
    format!("/proc/self/fd/{}", dir.as_fd().as_raw_fd()).into()
}

fn errno(error: std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::STALE, Errno::from_raw_os_error)
}

fn dup(fd: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    rustix::io::fcntl_dupfd_cloexec(fd, 0)
}

fn push_front(todo: &mut VecDeque<OsString>, path: &Path) {
    for component in path.components().rev() {
        match component {
            Component::Normal(part) => todo.push_front(part.to_owned()),
            Component::ParentDir => todo.push_front("..".into()),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
}

/// Creates a directory that the archive uses but does not list.
fn make(parent: BorrowedFd<'_>, name: &OsStr, opaque: bool) -> rustix::io::Result<OwnedFd> {
    mkdirat(parent, name, Mode::from_raw_mode(0o755))?;
    chmodat(parent, name, Mode::from_raw_mode(0o755), AtFlags::empty())?; // independent of the umask
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = openat(parent, name, flags, Mode::empty())?;
    if opaque {
        set_opaque(&dir)?;
    }
    Ok(dir)
}

/// Whether a file is a whiteout, which hides its name in lower layers.
pub(super) fn is_whiteout_at(parent: impl AsFd, name: &OsStr, stat: &Stat) -> bool {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::CharacterDevice => stat.st_rdev == 0,
        FileType::RegularFile => stat.st_size == 0 && has(&path_of(parent).join(name), "whiteout", b"y"),
        _ => false,
    }
}

/// Creates a whiteout, which hides a name in lower layers.
pub(super) fn make_whiteout(parent: &OwnedFd, name: &OsStr) -> rustix::io::Result<()> {
    match mknodat(parent, name, FileType::CharacterDevice, Mode::empty(), makedev(0, 0)) {
        // This happens on overlayfs itself, for example in the root of a container. Newer kernels support
        // another form there: an empty file with an attribute, in a directory with an attribute.
        Err(Errno::PERM) => {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            mark(&openat(parent, name, flags, Mode::empty())?, "whiteout", b"y")?;
            if !is_opaque(&path_of(parent)) {
                mark(&open_readable(parent)?, "opaque", b"x")?;
            }
            Ok(())
        }
        other => other,
    }
}

/// Hides the content of this directory in lower layers.
pub(super) fn set_opaque(dir: impl AsFd) -> rustix::io::Result<()> {
    mark(&open_readable(dir)?, "opaque", b"y")
}

/// A readable descriptor from one that may only refer to a directory (`O_PATH`).
pub(super) fn open_readable(dir: impl AsFd) -> rustix::io::Result<OwnedFd> {
    openat(dir, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// Sets one of overlayfs' attributes.
fn mark(fd: &OwnedFd, key: &str, value: &[u8]) -> rustix::io::Result<()> {
    match fsetxattr(fd, format!("trusted.overlay.{key}"), value, XattrFlags::empty()) {
        // Without privileges, overlayfs is mounted with `userxattr` and reads this attribute.
        Err(Errno::PERM | Errno::NOTSUP) => {
            fsetxattr(fd, format!("user.overlay.{key}"), value, XattrFlags::empty())
        }
        other => other,
    }
}

fn has(path: &Path, key: &str, wanted: &[u8]) -> bool {
    ["trusted", "user"].into_iter().any(|space| {
        let mut value = [0u8; 4];
        let length = rustix::fs::getxattr(path, format!("{space}.overlay.{key}"), &mut value[..]);
        length.is_ok_and(|length| value[..length] == *wanted)
    })
}

/// Whether a directory of a layer hides its content in lower layers.
pub fn is_opaque(dir: &Path) -> bool {
    has(dir, "opaque", b"y")
}

/// Whether a file of a layer is a whiteout, which hides its name in lower layers. Overlayfs has two forms: a
/// device, and a file with an attribute for places where no device can be created.
pub fn is_whiteout(path: &Path) -> bool {
    match std::fs::symlink_metadata(path) {
        Ok(meta) if meta.file_type().is_char_device() => meta.rdev() == 0,
        Ok(meta) if meta.is_file() && meta.len() == 0 => has(path, "whiteout", b"y"),
        _ => false,
    }
}
