//! Copies the layers of a root file system, one over the other, if overlayfs is not permitted.

use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, SeekFrom, Stat, Uid, XattrFlags, chmodat, chownat, fgetxattr,
    fsetxattr, fstat, mkdirat, mknodat, openat, readlinkat, seek, statat, symlinkat,
};
use rustix::io::Errno;

use crate::rootless;
use outrigger_images::is_whiteout;
use outrigger_runtime::tree::{self, Descent, Entry, Next, Visitor};

/// Copies the layers, the lowest first, into an empty directory. Whiteouts and opaque directories in
/// overlayfs' own form remove entries of lower layers. Does not leave the file system of each layer's root.
pub(super) fn copy_layers(layers: &[PathBuf], target: &Path) -> io::Result<()> {
    for layer in layers {
        // The path of a layer may be a link. Links in its contents are not followed.
        let source = File::open(layer)?;
        let target = tree::open_root(target)?;
        if is_opaque(source.as_fd()) {
            tree::clear(rustix::io::fcntl_dupfd_cloexec(&target, 0)?)?;
        }
        let root = identity(&fstat(&target)?);
        tree::walk(OwnedFd::from(source), &mut Copy { root, target: Descent::new(target) })?;
    }
    Ok(())
}

/// Tracks the matching directory of the copy while a layer is walked.
struct Copy {
    /// The device and inode of the copy itself.
    root: (u64, u64),
    target: Descent,
}

impl Visitor for Copy {
    fn entry(&mut self, entry: &Entry<'_>) -> io::Result<Next> {
        let to = self.target.here();
        let kind = FileType::from_raw_mode(entry.stat.st_mode);
        if kind == FileType::Directory {
            make_dir(to, entry.name)?;
            apply(to, entry)?;
            // A layer that contains the copy itself (`rootfs:/`) must not be copied into it endlessly.
            return Ok(if identity(entry.stat) == self.root { Next::Skip } else { Next::Enter });
        }
        tree::remove_at(to, OsStr::from_bytes(entry.name.to_bytes()))?;
        if is_whiteout_entry(entry) {
            return Ok(Next::Skip);
        }
        match kind {
            FileType::Symlink => {
                symlinkat(readlinkat(entry.parent, entry.name, Vec::new())?, to, entry.name)?;
            }
            FileType::RegularFile => copy_file(entry, to)?,
            _ => match mknodat(
                to,
                entry.name,
                kind,
                Mode::from_raw_mode(entry.stat.st_mode),
                entry.stat.st_rdev,
            ) {
                // Devices cannot be created without root. Those that a container needs are mounted.
                Err(Errno::PERM) if rootless::standing().is_rootless() => return Ok(Next::Skip),
                result => result?,
            },
        }
        apply(to, entry)?;
        Ok(Next::Skip)
    }

    fn enter(&mut self, _: BorrowedFd<'_>, name: &CStr, source: BorrowedFd<'_>) -> io::Result<()> {
        let target = tree::open_child(self.target.here(), name)?;
        if is_opaque(source) {
            tree::clear(rustix::io::fcntl_dupfd_cloexec(&target, 0)?)?;
        }
        self.target.down(target)
    }

    fn leave(&mut self) -> io::Result<()> {
        self.target.up()
    }
}

fn identity(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

/// Copies owner and mode of an entry, and the capabilities of a program.
fn apply(to: BorrowedFd<'_>, entry: &Entry<'_>) -> io::Result<()> {
    let owner = (Uid::from_raw(entry.stat.st_uid), Gid::from_raw(entry.stat.st_gid));
    match chownat(to, entry.name, Some(owner.0), Some(owner.1), AtFlags::SYMLINK_NOFOLLOW) {
        // With only one id, everything belongs to it.
        Err(Errno::INVAL | Errno::PERM) if rootless::one_id_only() => {}
        result => result?,
    }
    let kind = FileType::from_raw_mode(entry.stat.st_mode);
    if kind != FileType::Symlink {
        // This comes after the owner, because chown removes the set-user-id bit and the capabilities.
        chmodat(to, entry.name, Mode::from_raw_mode(entry.stat.st_mode & 0o7777), AtFlags::empty())?;
    }
    if kind == FileType::RegularFile {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let from = openat(entry.parent, entry.name, flags, Mode::empty())?;
        let mut capabilities = [0_u8; 64];
        let name = "security.capability";
        if let Ok(length) = fgetxattr(&from, name, &mut capabilities) {
            let to = openat(to, entry.name, flags, Mode::empty())?;
            fsetxattr(&to, name, &capabilities[..length], XattrFlags::empty())?;
        }
    }
    Ok(())
}

/// Copies the content of a file. Holes stay holes.
fn copy_file(entry: &Entry<'_>, to: BorrowedFd<'_>) -> io::Result<()> {
    let flags = OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let from = File::from(openat(entry.parent, entry.name, flags | OFlags::RDONLY, Mode::empty())?);
    let new = flags | OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
    let to = File::from(openat(to, entry.name, new, Mode::RUSR | Mode::WUSR)?);
    let size = from.metadata()?.len();
    to.set_len(size)?;
    let mut buffer = vec![0; 128 << 10];
    let mut at = 0;
    while at < size {
        at = match seek(&from, SeekFrom::Data(at)) {
            Ok(data) => data,
            // Only a hole remains.
            Err(Errno::NXIO) => break,
            // This file system does not support finding holes.
            Err(_) => at,
        };
        let end = seek(&from, SeekFrom::Hole(at)).unwrap_or(size).min(size);
        while at < end {
            let most = usize::try_from(end - at).unwrap_or(usize::MAX).min(buffer.len());
            let count = from.read_at(&mut buffer[..most], at)?;
            if count == 0 {
                return Ok(()); // the file has become shorter
            }
            to.write_all_at(&buffer[..count], at)?;
            at += count as u64;
        }
    }
    Ok(())
}

fn make_dir(parent: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => return Ok(()),
        Ok(_) => tree::remove_at(parent, OsStr::from_bytes(name.to_bytes()))?,
        Err(_) => {}
    }
    Ok(mkdirat(parent, name, Mode::RWXU)?)
}

fn is_whiteout_entry(entry: &Entry<'_>) -> bool {
    let path = Path::new("/proc/self/fd").join(entry.parent.as_raw_fd().to_string());
    is_whiteout(&path.join(OsStr::from_bytes(entry.name.to_bytes())))
}

fn is_opaque(dir: BorrowedFd<'_>) -> bool {
    let mut value = [0_u8; 2];
    ["trusted.overlay.opaque", "user.overlay.opaque"]
        .iter()
        .any(|name| fgetxattr(dir, *name, &mut value).is_ok_and(|length| value[..length] == *b"y"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys;
    use std::fs;

    #[test]
    fn a_tree_of_any_depth_is_copied_and_holes_stay_holes() {
        let base = tempfile::tempdir_in("/dev/shm").unwrap();
        let (low, out) = (base.path().join("low"), base.path().join("out"));
        fs::create_dir(&low).unwrap();
        fs::create_dir(&out).unwrap();
        let mut here = tree::open_root(&low).unwrap();
        for _ in 0..10_000 {
            mkdirat(&here, "d", Mode::RWXU).unwrap();
            here = tree::open_child(here.as_fd(), c"d").unwrap();
        }
        let holes = File::create(low.join("holes")).unwrap();
        holes.set_len(1 << 40).unwrap();
        holes.write_all_at(b"x", 1 << 30).unwrap();
        std::os::unix::fs::symlink("/etc", low.join("link")).unwrap();

        copy_layers(&[low.clone(), low], &out).unwrap();

        let copied = File::open(out.join("holes")).unwrap();
        let meta = copied.metadata().unwrap();
        assert_eq!(meta.len(), 1 << 40);
        assert!(std::os::unix::fs::MetadataExt::blocks(&meta) * 512 < 1 << 20, "a hole was filled");
        let mut byte = [0];
        copied.read_at(&mut byte, 1 << 30).unwrap();
        assert_eq!(&byte, b"x");
        let mut there = tree::open_root(&out).unwrap();
        for _ in 0..10_000 {
            there = tree::open_child(there.as_fd(), c"d").unwrap();
        }
        assert!(fs::symlink_metadata(out.join("link")).unwrap().is_symlink());
        tree::remove(&base.keep()).unwrap();
    }

    #[test]
    fn whiteouts_and_opaque_directories_take_lower_files_away_as_root() {
        let base = std::env::temp_dir().join(format!("outrigger-copy-{}", std::process::id()));
        let (low, high, out) = (base.join("low"), base.join("high"), base.join("out"));
        for dir in [low.join("keep"), low.join("opaque"), high.join("opaque"), out.clone()] {
            fs::create_dir_all(dir).unwrap();
        }
        fs::write(low.join("keep/a"), "low").unwrap();
        fs::write(low.join("gone"), "low").unwrap();
        fs::write(low.join("opaque/old"), "low").unwrap();
        fs::write(high.join("opaque/new"), "high").unwrap();
        let high_fd = crate::layout::open_dir(&high).unwrap();
        sys::mknodat(std::os::fd::AsFd::as_fd(&high_fd), Path::new("gone"), libc::S_IFCHR, 0).unwrap();
        rustix::fs::setxattr(
            high.join("opaque"),
            "trusted.overlay.opaque",
            b"y",
            rustix::fs::XattrFlags::empty(),
        )
        .unwrap();

        copy_layers(&[low, high], &out).unwrap();

        assert_eq!(fs::read_to_string(out.join("keep/a")).unwrap(), "low");
        assert!(!out.join("gone").exists());
        assert!(!out.join("opaque/old").exists());
        assert_eq!(fs::read_to_string(out.join("opaque/new")).unwrap(), "high");
        fs::remove_dir_all(base).unwrap();
    }
}
