//! Mounts below a directory, and removal of trees that contain mounts.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::mount::UnmountFlags;

/// Unmounts everything at `path`, one mount after another. The path may not exist or may not be a mount
/// point.
pub fn unmount_all(path: &Path) {
    // Each round removes one mount. We never stack more mounts than this.
    for _ in 0..16 {
        if rustix::mount::unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW).is_err() {
            return;
        }
    }
}

/// Removes a directory tree with the mounts in it.
///
/// # Errors
/// Something cannot be removed or unmounted. If a mount remains, nothing is removed, because that could
/// delete files that belong to others.
pub fn remove_tree(dir: &Path) -> io::Result<()> {
    let mounts = mounts_below(dir);
    mounts.iter().for_each(|mount| unmount_all(mount));
    // The list of mounts is long on a machine with many pods. It is read again only if something was
    // unmounted.
    if !mounts.is_empty()
        && let Some(mount) = mounts_below(dir).first()
    {
        return Err(io::Error::other(format!("{} cannot be unmounted", mount.display())));
    }
    crate::tree::remove(dir)
}

/// Mount points below a directory, the innermost first.
pub fn mounts_below(dir: &Path) -> Vec<PathBuf> {
    let Ok(dir) = fs::canonicalize(dir) else { return Vec::new() };
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = text.lines().filter_map(|line| line.split(' ').nth(4)).map(unescape);
    let mut below: Vec<PathBuf> = points.filter(|point| point.starts_with(&dir)).collect();
    below.sort_by_key(|point| std::cmp::Reverse(point.as_os_str().len()));
    below
}

/// Decodes a path in mountinfo: spaces, tabs, newlines and backslashes are in octal.
pub fn unescape(field: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let octal =
            tail.get(..3).filter(|_| first == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            None => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_read_as_they_are() {
        assert_eq!(unescape(r"/a\040b\134c"), Path::new(r"/a b\c"));
        assert_eq!(unescape(r"/plain\0"), Path::new(r"/plain\0"));
    }
}
