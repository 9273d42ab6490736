//! `fsGroup`: makes the pod's group the owner of a volume's files.
//!
//! Containers control the content of a volume and may change it concurrently. So every file is changed
//! through a descriptor that was opened without following symbolic links. A file therefore cannot be replaced
//! by something outside the volume.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;

use outrigger_runtime::tree::{self, Entry, Next, Visitor};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Stat, chmod, chownat, fstat, openat};
use rustix::io::Errno;

/// The group's access to a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    ReadOnly,
    ReadWrite,
}

/// `fsGroupChangePolicy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChangePolicy {
    Always,
    /// Nothing is changed if the root directory already matches.
    OnRootMismatch,
}

/// Changes the group of everything below `path` to `group`, makes it readable and, if requested, writable by
/// the group, and sets the setgid bit on directories. Nested mounts are skipped.
pub(super) fn chown_to_group(
    path: &Path,
    group: u32,
    access: Access,
    policy: ChangePolicy,
) -> io::Result<()> {
    let root = tree::open_root(path)?;
    if policy == ChangePolicy::OnRootMismatch {
        let top = fstat(&root)?;
        if top.st_gid == group && top.st_mode & 0o7777 == wanted_mode(&top, access) {
            return Ok(());
        }
    }
    let mut giver = Giver { group, access };
    giver.chown(root.as_fd())?;
    tree::walk(root, &mut giver)
}

struct Giver {
    group: u32,
    access: Access,
}

impl Visitor for Giver {
    fn entry(&mut self, entry: &Entry<'_>) -> io::Result<Next> {
        // A directory is changed when it is entered, so that the same descriptor is changed and walked.
        if !entry.is_dir() {
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            match openat(entry.parent, entry.name, flags, Mode::empty()) {
                Err(Errno::NOENT) => {}
                file => self.chown(file?.as_fd())?,
            }
        }
        Ok(Next::Enter)
    }

    fn enter(&mut self, _: BorrowedFd<'_>, _: &CStr, directory: BorrowedFd<'_>) -> io::Result<()> {
        self.chown(directory)
    }
}

impl Giver {
    fn chown(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        let found = fstat(file)?;
        chownat(file, "", None, Some(Gid::from_raw(self.group)), AtFlags::EMPTY_PATH)?;
        if FileType::from_raw_mode(found.st_mode) == FileType::Symlink {
            return Ok(());
        }
        // The mode is set after the group, because changing the group clears setgid bits.
        let mode = Mode::from_raw_mode(wanted_mode(&found, self.access));
        Ok(chmod(format!("/proc/self/fd/{}", file.as_raw_fd()), mode)?)
    }
}

fn wanted_mode(found: &Stat, access: Access) -> u32 {
    let bits = match access {
        Access::ReadOnly => 0o440,
        Access::ReadWrite => 0o660,
    };
    let mode = found.st_mode & 0o7777 | bits;
    match FileType::from_raw_mode(found.st_mode) {
        FileType::Directory => mode | 0o2110,
        _ => mode,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    use std::sync::atomic::{AtomicBool, Ordering};

    fn is_root() -> bool {
        rustix::process::geteuid().is_root()
    }

    #[test]
    fn everything_in_a_volume_is_given_however_deep() {
        if !is_root() {
            return;
        }
        let volume = tempfile::tempdir_in("/dev/shm").unwrap();
        let mut here = tree::open_root(volume.path()).unwrap();
        // This is deeper than the maximum path length.
        for _ in 0..5_000 {
            rustix::fs::mkdirat(&here, "d", Mode::RWXU).unwrap();
            here = tree::open_child(here.as_fd(), c"d").unwrap();
        }
        symlink("/etc/hostname", volume.path().join("link")).unwrap();
        fs::write(volume.path().join("file"), "").unwrap();
        let outside = fs::metadata("/etc/hostname").unwrap();
        chown_to_group(volume.path(), 4242, Access::ReadWrite, ChangePolicy::Always).unwrap();
        let bottom = fstat(&here).unwrap();
        assert_eq!((bottom.st_gid, bottom.st_mode & 0o7777), (4242, 0o2770));
        let file = fs::metadata(volume.path().join("file")).unwrap();
        assert_eq!((file.gid(), file.mode() & 0o660), (4242, 0o660));
        assert_eq!(fs::symlink_metadata(volume.path().join("link")).unwrap().gid(), 4242);
        let now = fs::metadata("/etc/hostname").unwrap();
        assert_eq!((now.gid(), now.mode()), (outside.gid(), outside.mode()), "no link is followed");
        tree::remove(&volume.keep()).unwrap();
    }

    /// An attack: a container replaces a file by a link while the ownership is being changed.
    #[test]
    fn a_file_that_becomes_a_link_meanwhile_changes_nothing_outside() {
        if !is_root() {
            return;
        }
        let (volume, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let secret = outside.path().join("secret");
        fs::write(&secret, "").unwrap();
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
        let dir = volume.path().join("d");
        for name in ["a", "b", "c"] {
            fs::create_dir_all(dir.join(name)).unwrap();
            fs::write(dir.join(name).join("secret"), "").unwrap();
        }
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (link, kept) = (volume.path().join("link"), volume.path().join("kept"));
                symlink(outside.path(), &link).unwrap();
                while !done.load(Ordering::Relaxed) {
                    // Repeatedly and atomically exchanges the directory and a link to the directory of the
                    // secret.
                    for (a, b) in [(&link, &dir.join("b")), (&kept, &dir.join("b"))] {
                        let _ = rustix::fs::renameat_with(
                            rustix::fs::CWD,
                            a,
                            rustix::fs::CWD,
                            b,
                            rustix::fs::RenameFlags::EXCHANGE,
                        );
                    }
                }
            });
            for _ in 0..2_000 {
                // The call may fail because of the exchange, but must not change the secret.
                let _ = chown_to_group(volume.path(), 4242, Access::ReadWrite, ChangePolicy::Always);
            }
            done.store(true, Ordering::Relaxed);
        });
        let found = fs::metadata(&secret).unwrap();
        assert_eq!((found.gid(), found.mode() & 0o777), (0, 0o600));
    }
}
