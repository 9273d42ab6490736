//! How much of the disk a volume takes.
//!
//! What is in it is under the containers' control and changes meanwhile, so no link is followed, no other file system
//! entered, and what is gone when its turn comes is not counted.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, StatxFlags, openat, openat2, statx,
};

/// A block of `stat`, whatever the file system's own blocks are.
const BLOCK_BYTES: u64 = 512;

/// What a directory and everything below it takes of the disk, in bytes. Files with several names count once.
pub(super) fn of(path: &Path) -> io::Result<u64> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = openat(CWD, path, flags, Mode::empty())?;
    let device = rustix::fs::fstat(&root)?.st_dev;
    let mut tally = Tally::default();
    // Paths, not descriptors: a tree may be deeper than a process may have files open.
    let mut left = vec![PathBuf::from(".")];
    while let Some(below) = left.pop() {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let Ok(dir) = openat2(&root, &below, flags, Mode::empty(), resolve) else { continue };
        if rustix::fs::fstat(&dir)?.st_dev == device {
            tally.directory(&dir, &below, &mut left)?;
        }
    }
    Ok(tally.bytes)
}

#[derive(Default)]
struct Tally {
    bytes: u64,
    /// Files with more than one name that were counted.
    linked: BTreeSet<u64>,
}

impl Tally {
    fn directory(&mut self, dir: &OwnedFd, at: &Path, left: &mut Vec<PathBuf>) -> io::Result<()> {
        for entry in Dir::read_from(dir)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            let wanted = StatxFlags::TYPE | StatxFlags::BLOCKS | StatxFlags::NLINK | StatxFlags::INO;
            let Ok(found) = statx(dir, name, AtFlags::SYMLINK_NOFOLLOW, wanted) else { continue };
            let is_dir = FileType::from_raw_mode(found.stx_mode.into()) == FileType::Directory;
            if is_dir {
                left.push(at.join(name));
            }
            if is_dir || found.stx_nlink <= 1 || self.linked.insert(found.stx_ino) {
                self.bytes = self.bytes.saturating_add(found.stx_blocks.saturating_mul(BLOCK_BYTES));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, symlink};

    #[test]
    fn everything_counts_once_and_nothing_from_outside() {
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("big"), vec![1; 8 << 20]).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let empty = of(dir.path()).unwrap();
        fs::create_dir_all(at("a/b")).unwrap();
        fs::write(at("a/b/file"), vec![1; 1 << 20]).unwrap();
        let all = of(dir.path()).unwrap();
        let disk = |name: &str| fs::metadata(at(name)).unwrap().blocks() * BLOCK_BYTES;
        assert_eq!(all, empty + disk("a") + disk("a/b") + disk("a/b/file"));
        fs::hard_link(at("a/b/file"), at("again")).unwrap();
        symlink(outside.path(), at("way-out")).unwrap();
        symlink(outside.path().join("big"), at("big")).unwrap();
        fs::File::create(at("holes")).unwrap().set_len(1 << 30).unwrap();
        assert!(of(dir.path()).unwrap() < all + (64 << 10));
        assert!(of(&at("none")).is_err());
    }
}
