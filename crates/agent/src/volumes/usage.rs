//! Measures the disk usage of a volume.
//!
//! Containers control the content and may change it concurrently, so links are not followed, other file
//! systems are not entered, and files that disappear meanwhile are not counted.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use outrigger_runtime::tree::{self, Entry, Next, Visitor};

/// The block size used by `stat`, independent of the file system.
const BLOCK_BYTES: u64 = 512;

/// Disk usage of a directory tree in bytes. Files with several hard links are counted once.
pub(super) fn disk_usage(path: &Path) -> io::Result<u64> {
    let mut tally = Tally::default();
    tree::walk(tree::open_root(path)?, &mut tally)?;
    Ok(tally.bytes)
}

#[derive(Default)]
struct Tally {
    bytes: u64,
    /// Files with several hard links that were already counted.
    linked: BTreeSet<u64>,
}

impl Visitor for Tally {
    fn entry(&mut self, entry: &Entry<'_>) -> io::Result<Next> {
        let found = entry.stat;
        if entry.is_dir() || found.st_nlink <= 1 || self.linked.insert(found.st_ino) {
            let blocks = u64::try_from(found.st_blocks).unwrap_or(0);
            self.bytes = self.bytes.saturating_add(blocks.saturating_mul(BLOCK_BYTES));
        }
        Ok(Next::Enter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::fd::AsFd as _;
    use std::os::unix::fs::{MetadataExt, symlink};

    /// Files deeper than the maximum path length must be counted as well.
    #[test]
    fn what_is_too_deep_for_a_path_counts_too() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let mut here = tree::open_root(dir.path()).unwrap();
        for _ in 0..5_000 {
            rustix::fs::mkdirat(&here, "d", rustix::fs::Mode::RWXU).unwrap();
            here = tree::open_child(here.as_fd(), c"d").unwrap();
        }
        let flags = rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY;
        let file = rustix::fs::openat(&here, "hoard", flags, rustix::fs::Mode::RUSR).unwrap();
        std::io::Write::write_all(&mut fs::File::from(file), &vec![1; 3 << 20]).unwrap();
        assert!(disk_usage(dir.path()).unwrap() >= 3 << 20);
        tree::remove(&dir.keep()).unwrap();
    }

    #[test]
    fn everything_counts_once_and_nothing_from_outside() {
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("big"), vec![1; 8 << 20]).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let empty = disk_usage(dir.path()).unwrap();
        fs::create_dir_all(at("a/b")).unwrap();
        fs::write(at("a/b/file"), vec![1; 1 << 20]).unwrap();
        let all = disk_usage(dir.path()).unwrap();
        let disk = |name: &str| fs::metadata(at(name)).unwrap().blocks() * BLOCK_BYTES;
        assert_eq!(all, empty + disk("a") + disk("a/b") + disk("a/b/file"));
        fs::hard_link(at("a/b/file"), at("again")).unwrap();
        symlink(outside.path(), at("way-out")).unwrap();
        symlink(outside.path().join("big"), at("big")).unwrap();
        fs::File::create(at("holes")).unwrap().set_len(1 << 30).unwrap();
        assert!(disk_usage(dir.path()).unwrap() < all + (64 << 10));
        assert!(disk_usage(&at("none")).is_err());
    }
}
