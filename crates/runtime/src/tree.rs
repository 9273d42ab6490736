//! Walks and removes untrusted directory trees.
//!
//! Files left by containers and images may be hostile: thousands of nested directories, links that point
//! elsewhere, names that are swapped at any moment. The code here therefore does not recurse, build paths or
//! follow links, and does not enter mounts. It works with descriptors, and keeps a fixed number of them open,
//! no matter how deep the tree is.

use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, openat, openat2, statat, unlinkat,
};
use rustix::io::Errno;

/// The maximum number of open directories on the path from the root of a tree to the current directory.
const OPEN_MAX: usize = 32;
/// Rounds of a removal if someone fills the tree at the same time. Another removal does so too: it moves directories of a
/// deep tree up, once for every [`OPEN_MAX`] levels.
const TURNS_MAX: usize = 4096;

/// The path from the root of a tree down to the current directory.
///
/// Only the last few directories are open. To return to one that is not, `..` of its child is opened and must
/// be the same directory as before. A tree that is moved in the meantime can therefore not lead elsewhere.
#[derive(Debug)]
pub struct Descent {
    root: OwnedFd,
    levels: Vec<Level>,
}

#[derive(Debug)]
struct Level {
    fd: Option<OwnedFd>,
    id: (u64, u64),
}

impl Descent {
    /// Starts at an open directory.
    pub fn new(root: OwnedFd) -> Self {
        Descent { root, levels: Vec::new() }
    }

    /// The current directory.
    pub fn here(&self) -> BorrowedFd<'_> {
        // The last level is always open: `down` opens it and `up` opens the one it returns to.
        self.levels.last().and_then(|level| level.fd.as_ref()).unwrap_or(&self.root).as_fd()
    }

    /// The depth of the current directory below the root.
    pub fn depth(&self) -> usize {
        self.levels.len()
    }

    /// Enters a child of the current directory.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn down(&mut self, child: OwnedFd) -> io::Result<()> {
        let id = identity(&fstat(&child)?);
        if let Some(far) = self.levels.len().checked_sub(OPEN_MAX) {
            self.levels[far].fd = None;
        }
        self.levels.push(Level { fd: Some(child), id });
        Ok(())
    }

    /// Returns to the parent directory. Does nothing at the root.
    ///
    /// # Errors
    /// The directory was moved elsewhere in the meantime.
    pub fn up(&mut self) -> io::Result<()> {
        let Some(left) = self.levels.pop() else { return Ok(()) };
        if let Some(level) = self.levels.last_mut()
            && level.fd.is_none()
        {
            let child = left.fd.ok_or_else(moved)?;
            let parent = openat(&child, "..", directory_flags(), Mode::empty())?;
            if identity(&fstat(&parent)?) != level.id {
                return Err(moved());
            }
            level.fd = Some(parent);
        }
        Ok(())
    }

    /// Returns to the root.
    pub fn restart(&mut self) {
        self.levels.clear();
    }
}

fn moved() -> io::Error {
    io::Error::other("a directory was moved while its tree was walked")
}

fn identity(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

fn directory_flags() -> OFlags {
    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC
}

/// Opens a child directory by name. Does not follow a link and does not enter a mount.
///
/// # Errors
/// It does not exist, it is something else (`NotADirectory`, `FilesystemLoop`), or it is a mount
/// (`CrossesDevices`).
pub fn open_child(parent: BorrowedFd<'_>, name: &CStr) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    match openat2(parent, name, directory_flags(), Mode::empty(), resolve) {
        // The kernel is old, or a system call filter does not know this call.
        Err(Errno::NOSYS | Errno::PERM) => {
            let child = openat(parent, name, directory_flags(), Mode::empty())?;
            match fstat(&child)?.st_dev == fstat(parent)?.st_dev {
                true => Ok(child),
                false => Err(Errno::XDEV.into()),
            }
        }
        result => Ok(result?),
    }
}

/// Opens a directory as the root of a tree. If the last component of the path is a link, it is not followed.
///
/// # Errors
/// It does not exist, or is not a directory.
pub fn open_root(path: &Path) -> io::Result<OwnedFd> {
    Ok(openat(CWD, path, directory_flags(), Mode::empty())?)
}

/// An entry of a tree.
#[derive(Debug)]
pub struct Entry<'a> {
    /// The directory it is in.
    pub parent: BorrowedFd<'a>,
    /// Its name there.
    pub name: &'a CStr,
    /// Its type and attributes. For a link, these are the link's own.
    pub stat: &'a Stat,
}

impl Entry<'_> {
    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        FileType::from_raw_mode(self.stat.st_mode) == FileType::Directory
    }
}

/// What to do with a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Enter it, after the other entries of its parent directory.
    Enter,
    /// Skip it.
    Skip,
}

/// Visits a tree.
pub trait Visitor {
    /// Called for each entry. The result only matters for directories.
    ///
    /// # Errors
    /// Any error ends the walk.
    fn entry(&mut self, entry: &Entry<'_>) -> io::Result<Next>;

    /// Called when a directory is entered, before its entries.
    ///
    /// # Errors
    /// Any error ends the walk.
    fn enter(&mut self, parent: BorrowedFd<'_>, name: &CStr, directory: BorrowedFd<'_>) -> io::Result<()> {
        let _ = (parent, name, directory);
        Ok(())
    }

    /// Called when the directory that was entered last is complete.
    ///
    /// # Errors
    /// Any error ends the walk.
    fn leave(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Walks everything below `root`, each directory before its entries. Skips entries that disappear, and
/// directories that turn out to be links or mounts.
///
/// # Errors
/// Errors of the visitor, and errors of the kernel for directories that exist.
pub fn walk(root: OwnedFd, visitor: &mut impl Visitor) -> io::Result<()> {
    let mut descent = Descent::new(root);
    // For each directory on the path: its children that have not been entered yet.
    let mut left = vec![visit_entries(descent.here(), visitor)?];
    while let Some(names) = left.last_mut() {
        let Some(name) = names.pop() else {
            left.pop();
            if descent.depth() > 0 {
                descent.up()?;
                visitor.leave()?;
            }
            continue;
        };
        let child = match open_child(descent.here(), &name) {
            Ok(child) => child,
            Err(error) if is_elsewhere(&error) => continue,
            Err(error) => return Err(error),
        };
        visitor.enter(descent.here(), &name, child.as_fd())?;
        descent.down(child)?;
        left.push(visit_entries(descent.here(), visitor)?);
    }
    Ok(())
}

/// Passes one directory to the visitor and returns the children to enter.
fn visit_entries(directory: BorrowedFd<'_>, visitor: &mut impl Visitor) -> io::Result<Vec<CString>> {
    let mut enter = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = match entry {
            // The directory itself was removed.
            Err(Errno::NOENT) => break,
            entry => entry?,
        };
        let name = entry.file_name();
        if is_dot(name) {
            continue;
        }
        let stat = match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => continue,
            stat => stat?,
        };
        let found = Entry { parent: directory, name, stat: &stat };
        if visitor.entry(&found)? == Next::Enter && found.is_dir() {
            enter.push(name.to_owned());
        }
    }
    Ok(enter)
}

/// Whether an error means that the entry is gone or was replaced.
fn is_elsewhere(error: &io::Error) -> bool {
    let errno = error.raw_os_error();
    [Errno::NOENT, Errno::NOTDIR, Errno::LOOP, Errno::XDEV].iter().any(|e| errno == Some(e.raw_os_error()))
}

fn is_dot(name: &CStr) -> bool {
    matches!(name.to_bytes(), b"." | b"..")
}

/// Removes a file, a link or a directory with everything in it. It may be missing, and others may remove it
/// at the same time.
///
/// # Errors
/// Something is mounted in it, or the kernel refuses. The rest stays.
pub fn remove(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().ok_or(Errno::INVAL)?;
    // Links are followed here, because only the last component of the path is untrusted.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match openat(CWD, parent, flags, Mode::empty()) {
        Err(Errno::NOENT) => Ok(()),
        parent => remove_at(parent?.as_fd(), name),
    }
}

/// Removes the entry with this name in an open directory, like [`remove`].
///
/// # Errors
/// As for [`remove`].
pub fn remove_at(parent: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
    let name = CString::new(name.as_bytes())?;
    let mut result = Ok(());
    for _ in 0..TURNS_MAX {
        result = remove_once(parent, &name);
        match &result {
            // It is being filled at the same time.
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => std::thread::yield_now(),
            _ => break,
        }
    }
    result
}

fn remove_once(parent: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    match unlink(parent, name)? {
        Unlinked::Gone => return Ok(()),
        Unlinked::IsDirectory => {}
    }
    let root = match open_to_empty(parent, name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        root => root?,
    };
    empty(root)?;
    gone(unlinkat(parent, name, AtFlags::REMOVEDIR))
}

enum Unlinked {
    Gone,
    IsDirectory,
}

/// Removes an entry that is not a directory.
fn unlink(parent: BorrowedFd<'_>, name: &CStr) -> io::Result<Unlinked> {
    match unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(Unlinked::Gone),
        Err(Errno::ISDIR) => Ok(Unlinked::IsDirectory),
        // POSIX specifies this error for directories, and some file systems return it.
        Err(Errno::PERM) => match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {
                Ok(Unlinked::IsDirectory)
            }
            _ => Err(named(name, Errno::PERM)),
        },
        Err(errno) => Err(named(name, errno)),
    }
}

fn open_to_empty(parent: BorrowedFd<'_>, name: &CStr) -> io::Result<OwnedFd> {
    match open_child(parent, name) {
        Err(error) if error.kind() == io::ErrorKind::CrossesDevices => Err(io::Error::new(
            io::ErrorKind::ResourceBusy,
            format!("{} is a mount point; unmount it first", name.to_string_lossy()),
        )),
        // The directory has no read permission, which its owner can add.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let fd = openat(parent, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
            let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd));
            rustix::fs::chmod(path, Mode::RWXU)?;
            open_child(parent, name)
        }
        result => result,
    }
}

/// Removes everything in a directory, but not the directory itself.
///
/// # Errors
/// As for [`remove`].
pub fn clear(directory: OwnedFd) -> io::Result<()> {
    empty(directory)
}

/// Empties a tree. Descends only as far as descriptors are kept open. Deeper directories are first moved up
/// to the root, each of them once.
fn empty(root: OwnedFd) -> io::Result<()> {
    let mut descent = Descent::new(root);
    let mut left: Vec<Vec<CString>> = vec![remove_files(descent.here())?];
    let (mut lifted, mut number) = (Vec::new(), 0_u64);
    while let Some(names) = left.last_mut() {
        let Some(name) = names.pop() else {
            if descent.depth() == 0 && !lifted.is_empty() {
                names.append(&mut lifted);
                continue;
            }
            left.pop();
            if let Some(name) = left.last_mut().and_then(Vec::pop) {
                descent.up()?;
                gone(unlinkat(descent.here(), &name, AtFlags::REMOVEDIR)).map_err(|e| named_io(&name, e))?;
            }
            continue;
        };
        if descent.depth() >= OPEN_MAX {
            lifted.extend(lift(descent.here(), &name, descent.root.as_fd(), &mut number)?);
            continue;
        }
        let child = match open_to_empty(descent.here(), &name) {
            Ok(child) => child,
            Err(error) if is_elsewhere(&error) => {
                // It was replaced by something else after it was listed.
                unlink(descent.here(), &name)?;
                continue;
            }
            Err(error) => return Err(error),
        };
        let below = remove_files(child.as_fd())?;
        descent.down(child)?;
        // It is removed after everything below it.
        names.push(name);
        left.push(below);
    }
    Ok(())
}

/// Moves a directory to the top with an unused name, unless someone else has removed it.
fn lift(
    from: BorrowedFd<'_>,
    name: &CStr,
    top: BorrowedFd<'_>,
    number: &mut u64,
) -> io::Result<Option<CString>> {
    loop {
        *number += 1;
        let to = CString::new(format!(".outrigger-removed-{number}"))?;
        match rustix::fs::renameat_with(from, name, top, &to, rustix::fs::RenameFlags::NOREPLACE) {
            Ok(()) => return Ok(Some(to)),
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(named(name, errno)),
        }
    }
}

/// Removes all entries of a directory that are not directories, and returns the directories.
fn remove_files(directory: BorrowedFd<'_>) -> io::Result<Vec<CString>> {
    let mut directories = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = match entry {
            // The directory itself was removed.
            Err(Errno::NOENT) => break,
            entry => entry?,
        };
        let name = entry.file_name();
        if is_dot(name) {
            continue;
        }
        let is_dir = entry.file_type() == FileType::Directory
            || matches!(unlink(directory, name)?, Unlinked::IsDirectory);
        if is_dir {
            directories.push(name.to_owned());
        }
    }
    Ok(directories)
}

fn gone(result: rustix::io::Result<()>) -> io::Result<()> {
    match result {
        Err(Errno::NOENT) => Ok(()),
        result => Ok(result?),
    }
}

fn named(name: &CStr, errno: Errno) -> io::Error {
    named_io(name, errno.into())
}

fn named_io(name: &CStr, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", name.to_string_lossy()))
}

#[cfg(test)]
mod tests;
