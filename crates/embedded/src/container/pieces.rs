//! A directory with mounts below it as a root file system, without root: `rootfs:/`.
//!
//! The kernel does not permit an overlay of such a directory to an ordinary user, who could see what those
//! mounts hide. So the root is assembled: each directory without mounts below becomes an overlay of its own,
//! mount points become empty directories, and the directories above them are created new.

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

/// The source of the mounts, used to recognize them.
pub(super) const PIECE: &str = "outrigger-piece";
/// More mounts than any machine's root has.
const PIECES_MAX: usize = 512;
/// Larger files are left out instead of copied.
const FILE_MAX: u64 = 1 << 20;

/// Whether there are mounts below a directory.
pub(super) fn are_needed(layer: &Path) -> bool {
    !points_below(layer).is_empty()
}

fn points_below(layer: &Path) -> BTreeSet<PathBuf> {
    let layer = fs::canonicalize(layer).unwrap_or_else(|_| layer.to_owned());
    mounts::mounts_below(&layer).into_iter().filter(|point| *point != layer).collect()
}

/// Mounts the pieces of `layer` below `own`, a container's own directory for its root. Returns where.
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
    /// Recreates the contents of `source` in `target`. Only directories with mounts below are descended into,
    /// so the depth is limited by that of the mounts.
    fn fill(&mut self, source: &Path, target: &Path) -> io::Result<()> {
        // What this user cannot read is left out: mounts may be anywhere.
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
                // As above.
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

/// Makes the pieces read-only; they are mounts besides that of the root. The caller's root is the
/// container's. `mounts` is the kernel's list of them.
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
