//! Mounts made by the agent itself, and removal of directories that may contain mounts.

use std::ffi::{CString, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use outrigger_runtime::tree;
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind, unmount};

/// Mounts a tmpfs at `path`, unless there is one already.
pub(super) fn tmpfs(path: &Path, size: Option<u64>, mode: u32) -> io::Result<()> {
    let parent = path.parent().unwrap_or(Path::new("/"));
    if fs::metadata(path)?.dev() != fs::metadata(parent)?.dev() {
        return Ok(());
    }
    let mut options = format!("mode={mode:o}");
    if let Some(size) = size {
        options.push_str(&format!(",size={size}"));
    }
    let options = CString::new(options)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    Ok(mount("tmpfs", path, "tmpfs", flags, options.as_c_str())?)
}

/// Bind-mounts `source` at `target`.
pub(super) fn bind(source: &Path, target: &Path) -> io::Result<()> {
    Ok(mount_bind(source, target)?)
}

/// Removes every mount at exactly this path, if any.
pub(super) fn unmount_all(path: &Path) -> io::Result<()> {
    while mounts_below(path)?.iter().any(|m| m == path) {
        unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)?;
    }
    Ok(())
}

/// Removes a directory tree. Mounts in it are unmounted first; if one cannot be unmounted, nothing is
/// deleted, because a mount may contain user data.
pub(crate) fn remove_tree(path: &Path) -> io::Result<()> {
    let Ok(path) = path.canonicalize() else {
        return Ok(());
    };
    for mount in mounts_below(&path)? {
        // Mounts that remain are found below.
        let _ = unmount(&mount, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
    }
    if let Some(left) = mounts_below(&path)?.first() {
        let message = format!("{} is still mounted", left.display());
        return Err(io::Error::new(io::ErrorKind::ResourceBusy, message));
    }
    // The lock is deleted last: a process that finds it free takes over the pod's directory.
    let entries = match fs::read_dir(&path) {
        // Another process already removed it.
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries.flatten().filter(|entry| entry.file_name() != "lock") {
        tree::remove(&entry.path())?;
    }
    tree::remove(&path)
}

/// Mount points at or below `path`, newest first.
fn mounts_below(path: &Path) -> io::Result<Vec<PathBuf>> {
    let table = fs::read("/proc/self/mountinfo")?;
    let points = table.split(|b| *b == b'\n').filter_map(|line| {
        let field = line.split(|b| *b == b' ').nth(4)?;
        Some(PathBuf::from(OsString::from_vec(unescape(field))))
    });
    let mut below: Vec<PathBuf> = points.filter(|p| p.starts_with(path)).collect();
    below.reverse();
    Ok(below)
}

/// mountinfo escapes blanks and backslashes as three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, tail)) = rest.split_first() {
        let octal = (byte == b'\\')
            .then(|| tail.get(..3))
            .flatten()
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match octal {
            Some(byte) => {
                out.push(byte);
                rest = &tail[3..];
            }
            None => {
                out.push(byte);
                rest = tail;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_unescaped() {
        assert_eq!(unescape(b"/a\\040b\\134c"), b"/a b\\c");
        assert_eq!(unescape(b"/plain\\"), b"/plain\\");
    }

    #[test]
    fn a_tree_goes_but_what_is_mounted_in_it_stays() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let precious = tempfile::tempdir().unwrap();
        fs::write(precious.path().join("keep"), "x").unwrap();
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("pod dir");
        fs::create_dir_all(tree.join("bound")).unwrap();
        fs::create_dir_all(tree.join("memory")).unwrap();
        bind(precious.path(), &tree.join("bound")).unwrap();
        tmpfs(&tree.join("memory"), Some(1 << 20), 0o755).unwrap();
        tmpfs(&tree.join("memory"), None, 0o755).unwrap();
        fs::write(tree.join("memory/file"), "x").unwrap();
        assert_eq!(mounts_below(&tree).unwrap().len(), 2, "a second mount changes nothing");
        remove_tree(&tree).unwrap();
        assert!(!tree.exists());
        assert!(precious.path().join("keep").exists());
        remove_tree(&tree).unwrap();
    }
}
