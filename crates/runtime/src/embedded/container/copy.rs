//! The root file system where overlayfs is refused: a plain copy of the layers, one over the other.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Gid, Mode, Uid};
use rustix::io::Errno;

use crate::embedded::{rootless, sys};

/// Copies the layers, lowest first, into an empty directory. Whiteouts and opaque directories in overlayfs' own form
/// take away what lower layers had. Stays on the file system each layer's root is on.
pub(super) fn copy_layers(layers: &[PathBuf], target: &Path) -> io::Result<()> {
    for layer in layers {
        let device = fs::metadata(layer)?.dev();
        copy_dir(layer, target, device, target)?;
    }
    Ok(())
}

fn copy_dir(source: &Path, target: &Path, device: u64, root: &Path) -> io::Result<()> {
    if is_opaque(source) {
        clear(target)?;
    }
    for entry in fs::read_dir(source)? {
        let entry = entry?;
        let (from, to) = (entry.path(), target.join(entry.file_name()));
        let meta = fs::symlink_metadata(&from)?;
        // A layer that contains the copy itself (`rootfs:/`) must not be copied into it without end.
        if meta.dev() != device || from == root {
            if meta.is_dir() {
                make_dir(&to)?;
            }
            continue;
        }
        copy_entry(&from, &to, &meta, device, root)?;
    }
    Ok(())
}

fn copy_entry(from: &Path, to: &Path, meta: &fs::Metadata, device: u64, root: &Path) -> io::Result<()> {
    let kind = meta.file_type();
    if kind.is_dir() {
        make_dir(to)?;
        copy_dir(from, to, device, root)?;
    } else {
        remove(to)?;
        if kind.is_char_device() && meta.rdev() == 0 {
            return Ok(());
        }
        if kind.is_symlink() {
            symlink(fs::read_link(from)?, to)?;
        } else if kind.is_file() {
            fs::copy(from, to)?;
        } else {
            let parent = crate::embedded::layout::open_dir(to.parent().unwrap_or(root))?;
            let name = Path::new(to.file_name().unwrap_or_default());
            match sys::mknodat(std::os::fd::AsFd::as_fd(&parent), name, meta.mode(), meta.rdev()) {
                // Nobody makes devices without root; those a container needs are mounted.
                Err(error)
                    if error.raw_os_error() == Some(libc::EPERM) && rootless::standing().is_rootless() =>
                {
                    return Ok(());
                }
                result => result?,
            }
        }
    }
    let (uid, gid) = (Uid::from_raw(meta.uid()), Gid::from_raw(meta.gid()));
    match rustix::fs::chownat(CWD, to, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW) {
        // Where there is one id only everything belongs to it.
        Err(Errno::INVAL | Errno::PERM) if rootless::one_id_only() => {}
        result => result?,
    }
    if !kind.is_symlink() {
        // After the owner: chown takes the set-user-id bit and the capabilities away.
        rustix::fs::chmod(to, Mode::from_raw_mode(meta.mode() & 0o7777))?;
    }
    if kind.is_file() {
        let mut capabilities = [0_u8; 64];
        let name = "security.capability";
        if let Ok(length) = rustix::fs::lgetxattr(from, name, &mut capabilities) {
            rustix::fs::lsetxattr(to, name, &capabilities[..length], rustix::fs::XattrFlags::empty())?;
        }
    }
    Ok(())
}

fn make_dir(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => Ok(()),
        Ok(_) => remove(path).and_then(|()| fs::create_dir(path)),
        Err(_) => fs::create_dir(path),
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(_) => Ok(()),
    }
}

fn clear(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        remove(&entry?.path())?;
    }
    Ok(())
}

fn is_opaque(dir: &Path) -> bool {
    let mut value = [0_u8; 2];
    ["trusted.overlay.opaque", "user.overlay.opaque"].iter().any(|name| {
        rustix::fs::lgetxattr(dir.as_os_str().as_bytes(), *name, &mut value)
            .is_ok_and(|length| value[..length] == *b"y")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whiteouts_and_opaque_directories_take_lower_files_away() {
        let base = std::env::temp_dir().join(format!("outrigger-copy-{}", std::process::id()));
        let (low, high, out) = (base.join("low"), base.join("high"), base.join("out"));
        for dir in [low.join("keep"), low.join("opaque"), high.join("opaque"), out.clone()] {
            fs::create_dir_all(dir).unwrap();
        }
        fs::write(low.join("keep/a"), "low").unwrap();
        fs::write(low.join("gone"), "low").unwrap();
        fs::write(low.join("opaque/old"), "low").unwrap();
        fs::write(high.join("opaque/new"), "high").unwrap();
        let high_fd = crate::embedded::layout::open_dir(&high).unwrap();
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
