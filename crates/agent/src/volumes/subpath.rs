//! `subPath`, restricted to the volume.
//!
//! Containers control the content of a volume, including symbolic links. So the kernel resolves a path with
//! the volume as its root, and the result is mounted by its descriptor. It cannot be replaced between check
//! and use.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, fchmod, mkdirat, open, openat, openat2};

use super::mounts;
use crate::volume_error::SubPathError;

/// Mounts `sub_path` of `volume` at `at`; a missing path is created as a directory.
pub(super) fn bind(volume: &Path, sub_path: &Path, at: &Path) -> Result<(), SubPathError> {
    let found = resolve(volume, sub_path)?;
    mounts::unmount_all(at)?;
    let by_descriptor = PathBuf::from(format!("/proc/self/fd/{}", found.as_raw_fd()));
    prepare_target(at, fs::metadata(&by_descriptor)?.is_dir())?;
    Ok(mounts::bind(&by_descriptor, at)?)
}

fn prepare_target(at: &Path, directory: bool) -> io::Result<()> {
    if let Some(parent) = at.parent() {
        fs::create_dir_all(parent)?;
    }
    match fs::symlink_metadata(at) {
        Ok(found) if found.is_dir() == directory => return Ok(()),
        Ok(found) if found.is_dir() => fs::remove_dir(at)?,
        Ok(_) => fs::remove_file(at)?,
        Err(_) => {}
    }
    match directory {
        true => fs::create_dir(at),
        false => fs::write(at, ""),
    }
}

/// Opens `sub_path` below `volume`, creating missing directories.
fn resolve(volume: &Path, sub_path: &Path) -> Result<OwnedFd, SubPathError> {
    let root = openat2(CWD, volume, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::empty())?;
    let mode = Mode::from_raw_mode(fs::metadata(volume)?.mode() & 0o7777);
    let mut current = open(volume, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let mut walked = PathBuf::new();
    for component in sub_path.components() {
        let std::path::Component::Normal(name) = component else {
            continue;
        };
        walked.push(name);
        current = match beneath(&root, &walked) {
            Err(rustix::io::Errno::NOENT) => {
                match mkdirat(&current, name, mode) {
                    Ok(()) => set_mode(&current, name, mode)?,
                    // This is a dangling link. Following it could lead out of the volume.
                    Err(rustix::io::Errno::EXIST) => {}
                    Err(e) => return Err(SubPathError::opening(&walked, e)),
                }
                beneath(&root, &walked).map_err(|e| SubPathError::opening(&walked, e))?
            }
            found => found.map_err(|e| SubPathError::opening(&walked, e))?,
        };
    }
    Ok(current)
}

/// Sets the mode of a new directory regardless of the umask.
fn set_mode(parent: &OwnedFd, name: &OsStr, mode: Mode) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let made = openat(parent, name, flags, Mode::empty())?;
    Ok(fchmod(made, mode)?)
}

fn beneath(root: &OwnedFd, path: &Path) -> rustix::io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    // EAGAIN: something was renamed meanwhile, and the kernel does not know whether the path is still inside.
    for _ in 0..32 {
        match openat2(root, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve) {
            Err(rustix::io::Errno::AGAIN) => {}
            other => return other,
        }
    }
    Err(rustix::io::Errno::AGAIN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn no_link_leads_out() {
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("secret"), "s").unwrap();
        let volume = tempfile::tempdir().unwrap();
        fs::set_permissions(volume.path(), std::os::unix::fs::PermissionsExt::from_mode(0o2777)).unwrap();
        let at = |name: &str| volume.path().join(name);
        fs::create_dir_all(at("real/deep")).unwrap();
        fs::write(at("real/file"), "f").unwrap();
        symlink("real", at("inside")).unwrap();
        symlink("..", at("real/up")).unwrap();
        symlink("../..", at("real/out")).unwrap();
        symlink(outside.path(), at("absolute")).unwrap();
        symlink(outside.path().join("not-there"), at("dangling")).unwrap();
        symlink("/proc/self/root", at("magic")).unwrap();
        symlink("not-there", at("nothing")).unwrap();
        symlink("loop", at("loop")).unwrap();
        let table = [
            ("real/deep", None),
            ("real/file", None),
            ("inside/deep", None),
            ("real/up/real", None),
            ("made/by/us", None),
            ("real/out", Some("\"real/out\" in the volume is a symbolic link that leads out")),
            ("absolute", Some("\"absolute\" in the volume is a symbolic link that leads out of the volume")),
            ("absolute/secret", Some("\"absolute\" in the volume is a symbolic link that leads out")),
            ("dangling", Some("\"dangling\" in the volume is a symbolic link that leads out")),
            ("dangling/more", Some("\"dangling\" in the volume is a symbolic link that leads out")),
            ("nothing", Some("\"nothing\" in the volume is a symbolic link to nothing")),
            ("magic/etc", Some("\"magic\" in the volume is a symbolic link")),
            ("loop/x", Some("\"loop\" in the volume is a symbolic link that leads back to itself")),
            ("real/file/below", Some("\"real/file\" in the volume is not a directory")),
        ];
        for (path, fault) in table {
            let got = resolve(volume.path(), Path::new(path));
            let said = got.as_ref().err().map(ToString::to_string);
            assert_eq!(said.is_some(), fault.is_some(), "{path}: {got:?}");
            assert!(said.is_none_or(|said| said.contains(fault.unwrap_or_default())), "{path}: {got:?}");
        }
        assert!(at("made/by/us").is_dir());
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
        assert_eq!(mode(&at("made/by")), mode(volume.path()));
        assert!(!outside.path().join("not-there").exists());
    }

    /// CVE-2017-1002101, CVE-2021-25741: a path component becomes a link between check and use.
    #[test]
    fn no_link_that_comes_and_goes_leads_out() {
        use std::sync::atomic::{AtomicBool, Ordering};
        let outside = tempfile::tempdir().unwrap();
        fs::create_dir(outside.path().join("deep")).unwrap();
        fs::write(outside.path().join("deep/secret"), "s").unwrap();
        let volume = tempfile::tempdir().unwrap();
        let at = |name: &str| volume.path().join(name);
        fs::create_dir_all(at("way/deep")).unwrap();
        symlink(outside.path(), at("link")).unwrap();
        let over = AtomicBool::new(false);
        let is_out = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let flags = rustix::fs::RenameFlags::EXCHANGE;
                    rustix::fs::renameat_with(CWD, at("way"), CWD, at("link"), flags).unwrap();
                }
            });
            let (mut found, mut refused, mut is_out) = (0, 0, false);
            for number in 0.. {
                let path = format!("way/deep/new{number}");
                for path in [Path::new("way/deep"), Path::new(&path)] {
                    match resolve(volume.path(), path) {
                        Ok(place) => {
                            found += 1;
                            is_out |= openat(&place, "secret", OFlags::PATH, Mode::empty()).is_ok();
                        }
                        Err(_) => refused += 1,
                    }
                }
                if is_out || (number >= 2_000 && found > 0 && refused > 0) {
                    break;
                }
            }
            over.store(true, Ordering::Relaxed);
            is_out
        });
        assert!(!is_out, "the host's file was reached");
        assert_eq!(fs::read_dir(outside.path().join("deep")).unwrap().count(), 1, "nothing was made outside");
    }
}
