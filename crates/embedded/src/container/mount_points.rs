//! Adds mount points that are missing in a root file system of another user.
//!
//! Without root, nothing can be created in a directory whose owner is not mapped, not even in the container's
//! own layer above it. An additional layer in between has the missing mount points and the directories that
//! they are in.

use std::fs;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Component, Path, PathBuf};

use super::root::{Root, relative};
use crate::layout;
use crate::userns::NOBODY;

/// The mount points that every container needs.
const KERNEL: [&str; 3] = ["proc", "sys", "dev"];

/// Creates the layer at `points` if mount points are missing. Returns whether it did.
pub(super) fn make(layer: &Path, points: &Path, targets: &[(&Path, bool)]) -> io::Result<bool> {
    let root = Root::new(layout::open_dir(layer)?);
    let base = fs::read_link(format!("/proc/self/fd/{}", root.fd().as_raw_fd()))?;
    let kernel = KERNEL.iter().map(|name| (Path::new(*name), true));
    let mut is_made = false;
    for (target, is_dir) in kernel.chain(targets.iter().copied()) {
        if let Some(missing) = missing(&root, &base, &relative(target))? {
            is_made = true;
            create(layer, points, &missing, is_dir)?;
        }
    }
    if is_made {
        copy_mode(layer, points)?;
    }
    Ok(is_made)
}

/// The path of a target, without links, if it is missing and cannot be created where it belongs.
fn missing(root: &Root, base: &Path, target: &Path) -> io::Result<Option<PathBuf>> {
    if target.as_os_str().is_empty() || root.find(target).is_ok() {
        return Ok(None);
    }
    for parent in target.ancestors().skip(1) {
        let Ok(found) = root.find(parent) else { continue };
        let stat = rustix::fs::fstat(&found)?;
        let is_foreign = stat.st_uid == NOBODY || stat.st_gid == NOBODY;
        let is_dir = rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::Directory;
        if !is_foreign || !is_dir {
            return Ok(None);
        }
        let real = fs::read_link(format!("/proc/self/fd/{}", found.as_fd().as_raw_fd()))?;
        // The path was resolved inside the root.
        let Ok(inside) = real.strip_prefix(base) else { return Ok(None) };
        let rest = target.strip_prefix(parent).unwrap_or(target);
        // The container itself must deal with a link to nothing.
        let is_plain = rest.components().all(|part| matches!(part, Component::Normal(_)));
        let first = rest.components().next();
        let is_link = first.is_some_and(|first| fs::symlink_metadata(real.join(first)).is_ok());
        return Ok((is_plain && !is_link).then(|| inside.join(rest)));
    }
    Ok(None)
}

/// Creates a mount point, and the directories above it with the attributes that they have in the layer below.
fn create(layer: &Path, points: &Path, path: &Path, is_dir: bool) -> io::Result<()> {
    let parents: Vec<&Path> = path.ancestors().skip(1).collect();
    for parent in parents.into_iter().rev() {
        let dir = points.join(parent);
        if !dir.is_dir() {
            fs::create_dir_all(&dir)?;
            copy_mode(&layer.join(parent), &dir)?;
        }
    }
    let point = points.join(path);
    if is_dir {
        fs::create_dir_all(&point)
    } else {
        fs::File::options().create(true).append(true).open(&point).map(drop)
    }
}

fn copy_mode(from: &Path, to: &Path) -> io::Result<()> {
    let mode = fs::symlink_metadata(from).map_or(0o755, |like| like.mode() & 0o7777);
    fs::set_permissions(to, fs::Permissions::from_mode(mode))
}
