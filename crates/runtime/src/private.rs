//! Directories that only their owner can enter.
//!
//! Containers leave files with the set-user-id bit and with other users' secrets. A directory that ordinary
//! users of the machine cannot enter is therefore on the path to each of them.

use std::fs;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::trusted;
use rustix::fs::{CWD, Dir, Mode, OFlags, Stat, fchmod, fstat, openat};

/// The entries of a state directory. A directory with other entries is not ours, and its mode is not changed.
const OWN_ENTRIES: [&str; 7] = ["pods", "images", "volumes", "seccomp", "runtimes", "ids", "node"];

/// Creates a private directory, or checks an existing one. Its parent must exist.
///
/// # Errors
/// It belongs to another user, others may write to it, or it is a link.
pub fn make(path: &Path) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = openat(CWD, path, flags, Mode::empty())?;
    close(dir.as_fd(), path, &fstat(&dir)?)
}

/// Reads a small file of the state directory. Refuses pipes, which would block, and links and devices, which
/// do not belong there.
pub fn read(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = fs::File::from(openat(CWD, path, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(max).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Creates the missing directories of a path with private modes. Existing directories stay unchanged.
pub fn make_all(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Creates or checks the state directory. The path may contain links; the returned path does not. Nobody else
/// can replace the directory.
///
/// # Errors
/// As for [`make`]. Another user can change a directory on the path. Others can read the directory, and it
/// contains entries that are not state: then it is not changed.
pub fn state_dir(path: &Path) -> io::Result<PathBuf> {
    let dir = trusted::make_dir(path)?;
    let stat = fstat(&dir)?;
    if stat.st_mode & 0o077 != 0 && is_shared(&dir)? {
        return Err(io::Error::other(format!(
            "{} has mode {:o} and holds other things than outrigger's state; name a directory of its own, \
             or close it with chmod 700",
            path.display(),
            stat.st_mode & 0o7777
        )));
    }
    close(dir.as_fd(), path, &stat)?;
    // Use the directory that was checked. A link on the path may point elsewhere by now.
    fs::read_link(format!("/proc/self/fd/{}", dir.as_raw_fd()))
}

/// Whether a directory has entries that are not ours.
fn is_shared(dir: &OwnedFd) -> io::Result<bool> {
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        // `lost+found` exists if a file system is mounted at this directory.
        let own = OWN_ENTRIES.iter().any(|own| own.as_bytes() == name) || name.starts_with(b"images-");
        if !own && !matches!(name, b"." | b".." | b"lost+found") {
            return Ok(true);
        }
    }
    Ok(false)
}

fn close(dir: BorrowedFd<'_>, path: &Path, stat: &Stat) -> io::Result<()> {
    let (own, mode) = (rustix::process::geteuid().as_raw(), stat.st_mode & 0o7777);
    if stat.st_uid != own {
        return Err(io::Error::other(format!(
            "{} belongs to user {}, not to user {own}: what is in it cannot be trusted; name another directory",
            path.display(),
            stat.st_uid
        )));
    }
    if mode & 0o022 != 0 {
        return Err(io::Error::other(format!(
            "{} has mode {mode:o}: other users may have put things into it; name another directory, or look at \
             what is in it and close it with chmod 700",
            path.display()
        )));
    }
    if mode & 0o077 != 0 {
        fchmod(dir, Mode::from_raw_mode(0o700))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    fn directory(path: &Path, mode: u32) {
        fs::create_dir(path).unwrap();
        fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    }

    #[test]
    fn new_ones_are_closed_and_old_ones_are_closed_now() {
        let base = tempfile::tempdir().unwrap();
        let at = |name: &str| base.path().join(name);
        make(&at("new")).unwrap();
        directory(&at("old"), 0o755);
        make(&at("old")).unwrap();
        assert_eq!((mode(&at("new")), mode(&at("old"))), (0o700, 0o700));
        let state = state_dir(&at("deep/er")).unwrap();
        assert_eq!((mode(&at("deep")), mode(&state)), (0o700, 0o700));
    }

    #[test]
    fn what_others_may_have_touched_is_refused() {
        let base = tempfile::tempdir().unwrap();
        let at = |name: &str| base.path().join(name);
        directory(&at("group"), 0o770);
        directory(&at("all"), 0o1777);
        symlink(at("group"), at("link")).unwrap();
        for (name, says) in [("group", "mode 770"), ("all", "mode 1777"), ("link", "")] {
            let error = make(&at(name)).unwrap_err().to_string();
            assert!(error.contains(says), "{name}: {error}");
        }
        // Anyone who can write to a directory on the path can replace our directory.
        for way in ["group", "all"] {
            let (path, inside) = (at(way), at(way).join("state"));
            fs::set_permissions(&path, PermissionsExt::from_mode(0o777)).unwrap();
            let error = state_dir(&inside).unwrap_err().to_string();
            assert!(error.contains(&format!("chmod go-w {}", path.display())), "{way}: {error}");
            assert!(!inside.exists(), "nothing is created there");
        }
        if rustix::process::geteuid().is_root() {
            directory(&at("theirs"), 0o700);
            chown(at("theirs"), Some(65534), None).unwrap();
            let error = state_dir(&at("theirs")).unwrap_err().to_string();
            assert!(error.contains("belongs to user 65534"), "{error}");
        }
    }

    #[test]
    fn a_state_directory_may_be_a_link_and_is_not_somebody_s_home() {
        let base = tempfile::tempdir().unwrap();
        let at = |name: &str| base.path().join(name);
        directory(&at("real"), 0o755);
        directory(&at("real/pods"), 0o755);
        symlink(at("real"), at("link")).unwrap();
        assert_eq!(state_dir(&at("link")).unwrap(), at("real").canonicalize().unwrap());
        assert_eq!(mode(&at("real")), 0o700);
        directory(&at("home"), 0o755);
        fs::write(at("home/letter"), "").unwrap();
        let error = state_dir(&at("home")).unwrap_err().to_string();
        assert!(error.contains("holds other things"), "{error}");
        assert_eq!(mode(&at("home")), 0o755, "left alone");
        fs::set_permissions(at("home"), PermissionsExt::from_mode(0o700)).unwrap();
        state_dir(&at("home")).unwrap();
    }
}
