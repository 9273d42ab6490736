use super::*;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use rustix::fs::mkdirat;

/// Deeper than a tree that once overflowed the stack.
const DEEP: usize = 40_000;

/// Creates nested directories, with a file at the bottom.
fn deep(root: &Path, depth: usize) {
    let mut here = open_root(root).unwrap();
    for _ in 0..depth {
        mkdirat(&here, "d", Mode::RWXU).unwrap();
        here = open_child(here.as_fd(), c"d").unwrap();
    }
    openat(&here, "bottom", OFlags::CREATE | OFlags::WRONLY, Mode::RUSR).unwrap();
}

fn open_descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

#[derive(Default)]
struct Count {
    entries: usize,
    depth: usize,
    deepest: usize,
    descriptors: usize,
}

impl Visitor for Count {
    fn entry(&mut self, _: &Entry<'_>) -> io::Result<Next> {
        self.entries += 1;
        self.deepest = self.deepest.max(self.depth);
        if self.entries.is_multiple_of(1000) {
            self.descriptors = self.descriptors.max(open_descriptors());
        }
        Ok(Next::Enter)
    }

    fn enter(&mut self, _: BorrowedFd<'_>, _: &CStr, _: BorrowedFd<'_>) -> io::Result<()> {
        self.depth += 1;
        Ok(())
    }

    fn leave(&mut self) -> io::Result<()> {
        self.depth -= 1;
        Ok(())
    }
}

#[test]
fn a_tree_of_any_depth_is_walked_and_removed_with_few_descriptors() {
    // In memory, because some disks take milliseconds to remove a directory.
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    deep(&tree, DEEP);
    let before = open_descriptors();
    let mut count = Count::default();
    walk(open_root(&tree).unwrap(), &mut count).unwrap();
    assert_eq!((count.entries, count.deepest, count.depth), (DEEP + 1, DEEP, 0));
    // Other tests of this process have descriptors too.
    assert!(count.descriptors < before + OPEN_MAX + 200, "{} of {before}", count.descriptors);
    remove(&tree).unwrap();
    assert!(!tree.exists());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing was left beside it");
}

#[test]
fn a_wide_and_deep_tree_goes_with_all_branches() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    let mut at = tree.clone();
    for level in 0..OPEN_MAX * 3 {
        for side in ["a", "b"] {
            fs::create_dir_all(at.join(side).join("leaf")).unwrap();
            fs::write(at.join(side).join("file"), "x").unwrap();
        }
        // The removal itself uses this name.
        fs::create_dir(at.join(format!(".outrigger-removed-{level}"))).unwrap();
        at = at.join("a");
    }
    fs::create_dir_all(tree.join(".outrigger-removed-3/deep")).unwrap();
    remove(&tree).unwrap();
    assert!(!tree.exists());
}

#[test]
fn links_are_removed_and_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, precious) = (dir.path().join("tree"), dir.path().join("precious"));
    for path in [&tree, &precious] {
        fs::create_dir(path).unwrap();
    }
    fs::write(precious.join("keep"), "x").unwrap();
    symlink(&precious, tree.join("link")).unwrap();
    symlink("/", tree.join("root")).unwrap();
    let mut count = Count::default();
    walk(open_root(&tree).unwrap(), &mut count).unwrap();
    assert_eq!(count.entries, 2);
    let link = dir.path().join("to-tree");
    symlink(&precious, &link).unwrap();
    remove(&link).unwrap();
    remove(&tree).unwrap();
    remove(&tree).unwrap();
    assert!(precious.join("keep").exists() && !link.exists() && !tree.exists());
    assert!(open_root(&PathBuf::from("/proc/self/root")).is_err(), "the root itself may not be a link");
}

#[test]
fn no_mount_is_entered_as_root() {
    assert!(rustix::process::geteuid().is_root(), "this test needs root");
    let dir = tempfile::tempdir().unwrap();
    let (tree, precious) = (dir.path().join("tree"), dir.path().join("precious"));
    fs::create_dir_all(tree.join("a/mounted")).unwrap();
    fs::create_dir(&precious).unwrap();
    fs::write(precious.join("keep"), "x").unwrap();
    // It is on the same file system, so the device number does not reveal the mount.
    rustix::mount::mount_bind(&precious, tree.join("a/mounted")).unwrap();
    let mut count = Count::default();
    walk(open_root(&tree).unwrap(), &mut count).unwrap();
    let refused = remove(&tree).unwrap_err();
    rustix::mount::unmount(tree.join("a/mounted"), rustix::mount::UnmountFlags::DETACH).unwrap();
    assert_eq!(count.entries, 2, "not what is in the mount");
    assert!(refused.to_string().contains("mounted is a mount point"), "{refused}");
    assert!(precious.join("keep").exists());
    remove(&tree).unwrap();
}

#[test]
fn a_directory_that_is_moved_away_ends_the_walk() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    deep(&tree, OPEN_MAX * 2);
    let mut descent = Descent::new(open_root(&tree).unwrap());
    for _ in 0..OPEN_MAX * 2 {
        let child = open_child(descent.here(), c"d").unwrap();
        descent.down(child).unwrap();
    }
    // A container could do this, to make the walk continue outside of its volume.
    let moved: PathBuf = std::iter::once(tree.clone()).chain((0..20).map(|_| "d".into())).collect();
    fs::rename(moved, dir.path().join("elsewhere")).unwrap();
    let mut result = Ok(());
    while result.is_ok() && descent.depth() > 0 {
        result = descent.up();
    }
    assert!(result.unwrap_err().to_string().contains("was moved"));
}

#[test]
fn two_may_remove_the_same() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    for turn in 0..20 {
        let tree = dir.path().join(turn.to_string());
        for n in 0..50 {
            fs::create_dir_all(tree.join(format!("{n}/a/b"))).unwrap();
        }
        // So deep that its directories are moved up before they are removed.
        let part = tree.join("0");
        deep(&part, OPEN_MAX * 20);
        std::thread::scope(|scope| {
            // One removes a part of what the other removes.
            for path in [&tree, &part] {
                scope.spawn(|| remove(path).unwrap());
            }
        });
        assert!(!tree.exists());
    }
}
