//! `fsGroup`: a volume's files belong to the pod's group.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::Path;

/// Gives everything below `path` to `group`: readable and, unless `read_only`, writable by it; directories hand the
/// group on. With `if_needed` nothing is done when the top already fits.
pub(super) fn give(path: &Path, group: u32, read_only: bool, if_needed: bool) -> io::Result<()> {
    if if_needed {
        let top = fs::symlink_metadata(path)?;
        let wanted = wanted_mode(&top, read_only);
        if top.gid() == group && top.mode() & 0o7777 == wanted {
            return Ok(());
        }
    }
    walk(path, group, read_only)
}

fn walk(path: &Path, group: u32, read_only: bool) -> io::Result<()> {
    let found = fs::symlink_metadata(path)?;
    lchown(path, None, Some(group))?;
    if found.is_symlink() {
        return Ok(());
    }
    // After the change of group: that takes setgid bits away.
    fs::set_permissions(path, fs::Permissions::from_mode(wanted_mode(&found, read_only)))?;
    if found.is_dir() {
        for entry in fs::read_dir(path)? {
            walk(&entry?.path(), group, read_only)?;
        }
    }
    Ok(())
}

fn wanted_mode(found: &fs::Metadata, read_only: bool) -> u32 {
    let access = if read_only { 0o440 } else { 0o660 };
    let mode = found.mode() & 0o7777 | access;
    match found.is_dir() {
        true => mode | 0o2110,
        false => mode,
    }
}
