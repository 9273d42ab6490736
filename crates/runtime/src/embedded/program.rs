//! The program that becomes a shim.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::mount::{OpenTreeFlags, open_tree};

use super::sys::{MOUNT_ATTR_RDONLY, MountAttr, mount_setattr};

/// The shim's program, opened through a read-only mount of its own.
///
/// A container can be made to execute `/proc/self/exe` before it is anything but a copy of the shim, and would then
/// hold the host's binary open. Through a mount that is read-only and that nobody can reach to change, the binary cannot
/// be written to, whatever the container's rights.
pub(crate) struct ShimProgram {
    mount: Option<OwnedFd>,
    path: PathBuf,
}

impl ShimProgram {
    pub(crate) fn open(path: &Path) -> Self {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let mount = open_tree(rustix::fs::CWD, path, flags).map_err(std::io::Error::from).and_then(|mount| {
            let attr = MountAttr { set: MOUNT_ATTR_RDONLY, ..MountAttr::default() };
            mount_setattr(mount.as_fd(), false, attr)?;
            Ok(mount)
        });
        if let Err(error) = &mount {
            tracing::warn!(%error, "the shim's program is not protected from writing");
        }
        ShimProgram { mount: mount.ok(), path: path.to_owned() }
    }

    /// What to execute.
    pub(crate) fn path(&self) -> PathBuf {
        match &self.mount {
            Some(mount) => PathBuf::from(format!("/proc/self/fd/{}", mount.as_raw_fd())),
            None => self.path.clone(),
        }
    }
}
