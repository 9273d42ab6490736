//! Assembles a root file system from a directory with mounts below it, without root (`rootfs:/`).
//!
//! The kernel does not permit an ordinary user to make an overlay of such a directory, because the user could
//! see what the mounts hide. The root is therefore assembled from pieces. Each directory without mounts below
//! becomes an overlay of its own. Mount points become empty directories, and the directories above them are
//! newly created.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, mount, mount_bind};

use super::root::{Root, relative};
use super::rootfs::escape;
use crate::sys::{MOUNT_ATTR_RDONLY, MountAttr, mount_setattr};
use outrigger_runtime::mounts;

/// The source name of these mounts, used to recognize them.
pub(super) const PIECE: &str = "outrigger-piece";
/// The maximum number of mounts, more than the root of any machine has.
const PIECES_MAX: usize = 512;
/// The maximum size of a file to copy. Larger files are left out.
const FILE_MAX: u64 = 1 << 20;

/// Whether there are mounts below a directory.
pub(super) fn are_needed(layer: &Path) -> bool {
    !points_below(layer).is_empty()
}

fn points_below(layer: &Path) -> BTreeSet<PathBuf> {
    let layer = fs::canonicalize(layer).unwrap_or_else(|_| layer.to_owned());
    mounts::mounts_below(&layer).into_iter().filter(|point| *point != layer).collect()
}

/// Mounts the pieces of `layer` below `own`, the container's own directory for its root. Returns the path.
pub(super) fn mount_pieces(layer: &Path, own: &Path) -> io::Result<PathBuf> {
    let layer = fs::canonicalize(layer)?;
    let target = own.join("rootfs");
    fs::create_dir_all(&target)?;
    mount_bind(&target, &target)?;
    let mut pieces = Pieces { own, points: points_below(&layer), count: 0 };
    pieces.fill(&layer, &target)?;
    Ok(target)
}

struct Pieces<'a> {
    own: &'a Path,
    points: BTreeSet<PathBuf>,
    count: usize,
}

impl Pieces<'_> {
    /// Recreates the contents of `source` in `target`. Descends only into directories with mounts below, so
    /// the depth of the mounts limits the recursion.
    fn fill(&mut self, source: &Path, target: &Path) -> io::Result<()> {
        // Directories that this user cannot read are left out, because mounts may be anywhere.
        let Ok(entries) = fs::read_dir(source) else { return Ok(()) };
        for entry in entries {
            let entry = entry?;
            let (from, to) = (entry.path(), target.join(entry.file_name()));
            let Ok(meta) = fs::symlink_metadata(&from) else { continue };
            if meta.is_symlink() {
                symlink(fs::read_link(&from)?, &to)?;
            } else if meta.is_dir() {
                fs::create_dir(&to)?;
                let mode = meta.permissions().mode() & 0o7777;
                fs::set_permissions(&to, fs::Permissions::from_mode(mode))?;
                if self.points.contains(&from) {
                    continue;
                }
                if self.points.iter().any(|point| point.starts_with(&from)) {
                    self.fill(&from, &to)?;
                } else {
                    self.overlay(&from, &to, mode)?;
                }
            } else if meta.is_file() && meta.len() <= FILE_MAX {
                // Files that this user cannot read are left out too.
                let _ = fs::copy(&from, &to);
            }
        }
        Ok(())
    }

    fn overlay(&mut self, lower: &Path, target: &Path, mode: u32) -> io::Result<()> {
        self.count += 1;
        if self.count > PIECES_MAX {
            return Err(io::Error::other("too many file systems are mounted below it"));
        }
        let part = |kind: &str| self.own.join(kind).join(self.count.to_string());
        let (upper, work) = (part("upper"), part("work"));
        for dir in [&upper, &work] {
            fs::create_dir_all(dir)?;
        }
        fs::set_permissions(&upper, fs::Permissions::from_mode(mode))?;
        let options = format!(
            "lowerdir={},upperdir={},workdir={},userxattr,volatile",
            escape(lower)?,
            escape(&upper)?,
            escape(&work)?
        );
        let options = std::ffi::CString::new(options)?;
        Ok(mount(PIECE, target, "overlay", MountFlags::empty(), options.as_c_str())?)
    }
}

/// Makes the pieces read-only, which are mounts separate from the root's. The caller's root is the
/// container's. `mounts` is the kernel's list of mounts.
pub(super) fn make_read_only(root: &Root, mounts: &str) -> io::Result<()> {
    for line in mounts.lines() {
        let Some((mounted, kind)) = line.split_once(" - ") else { continue };
        if kind.starts_with(&format!("overlay {PIECE} "))
            && let Some(point) = mounted.split(' ').nth(4)
        {
            let piece = root.find(&relative(&outrigger_runtime::mounts::unescape(point)))?;
            let read_only = MountAttr { set: MOUNT_ATTR_RDONLY, ..MountAttr::default() };
            mount_setattr(piece.as_fd(), false, read_only)?;
        }
    }
    Ok(())
}
