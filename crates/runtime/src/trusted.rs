//! Opens paths that only root and this user can change.
//!
//! A file that controls what we do is only as safe as every directory on its path. The same holds for a
//! directory whose contents we trust later. Anyone who can write to one of these directories can replace what
//! is below it. Each component is therefore opened relative to the previous one, without following links, and
//! checked through its descriptor. Links are followed by hand, and checked too.

mod groups;

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, mkdirat, openat, readlinkat};
use rustix::io::Errno;

use crate::rootless;

/// The same limit as the kernel's.
const LINKS_MAX: u32 = 40;

/// The maximum number of directories on a path. Each of them is an open descriptor. Real paths have about a
/// dozen.
const DEPTH_MAX: usize = 256;

/// Opens a directory that nobody else can change.
///
/// # Errors
/// It does not exist, or another user could change or replace it. The message has the path and the fix.
pub fn open_dir(path: &Path) -> io::Result<OwnedFd> {
    let found = Walk::from_root()?.to(path, Missing::IsAnError)?;
    let stat = fstat(&found.fd)?;
    check(&found, &stat, WritableBy::Nobody)?;
    readable(&found.fd, OFlags::DIRECTORY)
}

/// Opens a file for reading in a directory that [`open_dir`] has opened. `at` is the path of the directory.
/// Reading the file does not block. Links are followed only inside the directory.
///
/// # Errors
/// The file cannot be read, it is a link that leads out of the directory, it has several names, or another
/// user could change it.
pub fn open_in(dir: BorrowedFd<'_>, at: &Path, name: &OsStr) -> io::Result<File> {
    let found = Walk::below(dir, at)?.to(Path::new(name), Missing::IsAnError)?;
    let stat = fstat(&found.fd)?;
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => {
            check_names(&found, &stat)?;
            return open_checked(&found, &stat);
        }
        FileType::Directory => "directory",
        FileType::Fifo => "fifo",
        FileType::Socket => "socket",
        _ => "device",
    };
    Err(io::Error::other(format!("it is a {kind}, not a file; rename or remove it")))
}

/// Opens a file for reading that nobody else can change or replace.
///
/// # Errors
/// As for [`open_dir`].
pub fn open_file(path: &Path) -> io::Result<File> {
    let found = Walk::from_root()?.to(path, Missing::IsAnError)?;
    let stat = fstat(&found.fd)?;
    open_checked(&found, &stat)
}

/// Opens a directory. Creates missing components for this user only. The caller must check who can write to
/// the directory itself.
pub(crate) fn make_dir(path: &Path) -> io::Result<OwnedFd> {
    readable(&Walk::from_root()?.to(path, Missing::IsCreated)?.fd, OFlags::DIRECTORY)
}

/// Refuses a file with several names (hard links). Someone who once could write to the directory may have
/// linked another user's file there. Its owner and mode would look right, but nobody meant its content to be
/// used or shown.
fn check_names(found: &Place, stat: &Stat) -> io::Result<()> {
    let names = stat.st_nlink;
    if names <= 1 {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "it has {names} names (hard links), so it may be another file of this machine; {}",
        replace(found)
    )))
}

/// The fix for a file. A new owner is not enough: a process that has opened the file for writing can still
/// write.
fn replace(file: &Place) -> String {
    let path = file.path.display();
    format!("look at it, and put a copy in its place: cp {path} {path}.copy && mv {path}.copy {path}")
}

fn open_checked(found: &Place, stat: &Stat) -> io::Result<File> {
    check(found, stat, WritableBy::Nobody)?;
    readable(&found.fd, OFlags::NONBLOCK).map(File::from)
}

fn readable(fd: &OwnedFd, flags: OFlags) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    Ok(rustix::fs::open(path, flags | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

/// What to do with components that do not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Missing {
    IsAnError,
    IsCreated,
}

/// Who else may write to a place, in addition to root and this user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WritableBy {
    Nobody,
    /// Everybody, if they can only remove their own files, as in /tmp.
    AnyoneIfSticky,
}

/// An open file or directory, and its path without links.
struct Place {
    fd: OwnedFd,
    path: PathBuf,
}

/// A walk along a path.
struct Walk {
    /// The directories from the start to the current one. `..` returns to the previous one.
    stack: Vec<Place>,
    /// Whether the walk must stay below its start.
    is_confined: bool,
}

impl Walk {
    fn from_root() -> io::Result<Self> {
        let fd = rustix::fs::open("/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Walk { stack: vec![Place { fd, path: PathBuf::from("/") }], is_confined: false })
    }

    fn below(dir: BorrowedFd<'_>, at: &Path) -> io::Result<Self> {
        let start = Place { fd: dir.try_clone_to_owned()?, path: at.to_owned() };
        Ok(Walk { stack: vec![start], is_confined: true })
    }

    fn to(mut self, path: &Path, missing: Missing) -> io::Result<Place> {
        let path = if self.is_confined { path.to_owned() } else { std::path::absolute(path)? };
        let mut rest = VecDeque::new();
        add_components(&mut rest, &path);
        let mut links = 0;
        let mut last_target = path.clone();
        while let Some(name) = rest.pop_front() {
            if name == ".." {
                self.up(&last_target)?;
                continue;
            }
            let here = self.here();
            // This is checked before anything is created there. In a directory like /tmp, the owner of the
            // next component matters.
            check(here, &fstat(&here.fd)?, WritableBy::AnyoneIfSticky)?;
            let next = self.step(&name, missing)?;
            let stat = fstat(&next.fd)?;
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Symlink => {
                    check_owner(&next, &stat)?;
                    links += 1;
                    let target = readlinkat(&next.fd, "", Vec::new())?.into_bytes();
                    let target = PathBuf::from(OsString::from_vec(target));
                    if links > LINKS_MAX {
                        return Err(Errno::LOOP.into());
                    }
                    if target.is_absolute() {
                        let below = self.below_start(&target).ok_or_else(|| leads_out(&target))?;
                        add_components(&mut rest, &below);
                        self.stack.truncate(1);
                    } else {
                        add_components(&mut rest, &target);
                    }
                    last_target = target;
                }
                FileType::Directory => {
                    check_owner(&next, &stat)?;
                    self.push(next)?;
                }
                // Anything that is not a directory or a link must be the last component.
                _ if rest.is_empty() => return Ok(next),
                _ => return Err(Errno::NOTDIR.into()),
            }
        }
        self.stack.pop().ok_or_else(|| Errno::NOENT.into())
    }

    /// Turns an absolute path into one relative to the start of the walk. `None` if it is not below the
    /// start.
    fn below_start(&self, path: &Path) -> Option<PathBuf> {
        let start = &self.stack[0];
        // The path that named the directory may contain links.
        let real = || std::fs::read_link(format!("/proc/self/fd/{}", start.fd.as_raw_fd())).ok();
        let below = |dir: &Path| path.strip_prefix(dir).map(Path::to_owned).ok();
        below(&start.path).or_else(|| below(&real()?))
    }

    fn here(&self) -> &Place {
        &self.stack[self.stack.len() - 1]
    }

    fn push(&mut self, next: Place) -> io::Result<()> {
        if self.stack.len() >= DEPTH_MAX {
            return Err(Errno::NAMETOOLONG.into());
        }
        self.stack.push(next);
        Ok(())
    }

    fn up(&mut self, path: &Path) -> io::Result<()> {
        match (self.stack.len(), self.is_confined) {
            (1, true) => Err(leads_out(path)),
            (1, false) => Ok(()),
            _ => {
                self.stack.pop();
                Ok(())
            }
        }
    }

    /// Opens one component of any type.
    fn step(&self, name: &OsStr, missing: Missing) -> io::Result<Place> {
        let here = self.here();
        let path = here.path.join(name);
        let open =
            || openat(&here.fd, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
        let fd = match open() {
            Err(Errno::NOENT) if missing == Missing::IsCreated => {
                match mkdirat(&here.fd, name, Mode::from_raw_mode(0o700)) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(error) => return Err(said(&path, "create", error)),
                }
                open()
            }
            other => other,
        };
        match fd {
            Ok(fd) => Ok(Place { fd, path }),
            // The path as it was written is more useful in a message than the path without links.
            Err(Errno::NOENT) => Err(Errno::NOENT.into()),
            Err(error) => Err(said(&path, "open", error)),
        }
    }
}

/// Puts the components of a path before the remaining ones.
fn add_components(rest: &mut VecDeque<OsString>, path: &Path) {
    for component in path.components().rev() {
        match component {
            Component::Normal(name) => rest.push_front(name.to_owned()),
            Component::ParentDir => rest.push_front("..".into()),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
}

fn said(path: &Path, doing: &str, error: Errno) -> io::Error {
    let error = io::Error::from(error);
    io::Error::new(error.kind(), format!("cannot {doing} {}: {error}", path.display()))
}

fn leads_out(target: &Path) -> io::Error {
    io::Error::other(format!(
        "it is a link to {}, which is outside of the directory; put the file itself there",
        target.display()
    ))
}

/// Checks a place. Everything that follows on the path is reached through it.
fn check(place: &Place, stat: &Stat, allowed: WritableBy) -> io::Result<()> {
    check_owner(place, stat)?;
    let mode = stat.st_mode & 0o7777;
    let who = match mode {
        _ if mode & 0o002 != 0 => "every user",
        // In a user namespace, ids are not those of the machine's tables. The same walk was made before the
        // namespace was entered.
        _ if mode & 0o020 == 0 || rootless::standing().is_rootless() => return Ok(()),
        _ if groups::is_private(stat.st_gid, is_trusted) && !has_access_list(&place.fd) => return Ok(()),
        _ => "its group",
    };
    if allowed == WritableBy::AnyoneIfSticky && mode & 0o1000 != 0 {
        return Ok(());
    }
    let path = place.path.display();
    let fix = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => replace(place) + &format!(" && chmod go-w {path}"),
        _ => format!("choose another place, or close it: chmod go-w {path}"),
    };
    Err(io::Error::other(format!("{path} has mode {mode:o}: {who} can change what is there; {fix}")))
}

fn check_owner(place: &Place, stat: &Stat) -> io::Result<()> {
    if is_trusted(stat.st_uid) {
        return Ok(());
    }
    let (path, user) = (place.path.display(), stat.st_uid);
    let new_owner = match rustix::process::geteuid().is_root() {
        true => "root".to_owned(),
        false => rootless::real_uid().to_string(),
    };
    let take_over =
        |link: &str| format!("choose another place, or take it over: chown {link}{new_owner} {path}");
    let fix = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => replace(place),
        FileType::Symlink => take_over("-h "),
        _ => take_over(""),
    };
    Err(io::Error::other(format!("{path} belongs to user {user}, who can change what is there; {fix}")))
}

/// Whether a user is root or this user. In a user namespace, the machine's root has no id of its own.
fn is_trusted(uid: u32) -> bool {
    const UNMAPPED: u32 = 65534;
    uid == 0
        || uid == rustix::process::geteuid().as_raw()
        || uid == UNMAPPED && rootless::standing().is_rootless()
}

/// Whether other users than owner and group may have rights. If so, the bits of the group are the limit of
/// these rights.
fn has_access_list(fd: &OwnedFd) -> bool {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let mut none: [u8; 0] = [];
    let found = rustix::fs::getxattr(path, c"system.posix_acl_access", &mut none[..]);
    !matches!(found, Err(Errno::NODATA | Errno::OPNOTSUPP))
}

#[cfg(test)]
mod tests;
