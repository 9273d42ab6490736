//! Opens the program that is executed as a shim, so that containers cannot change it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::mount::{OpenTreeFlags, open_tree};

use super::sys::{MOUNT_ATTR_RDONLY, MountAttr, errno_text, mount_setattr};
use outrigger_runtime::{RuntimeError, descriptors};

/// The shim's program, opened through its own read-only mount.
///
/// A container can be made to execute `/proc/self/exe` while it is still a copy of the shim. A process in a
/// container may also inspect another one that has not executed its program yet. Both could reach the host's
/// binary. Through a read-only mount, the binary cannot be written to, whatever privileges the container has.
/// The mount is detached before the first container exists, because the kernel does not allow changes to the
/// attributes of such a mount.
pub(crate) struct ShimProgram {
    file: OwnedFd,
}

impl ShimProgram {
    /// Opens a program.
    ///
    /// # Errors
    /// The program cannot be opened or protected.
    pub(crate) fn open(path: &Path) -> Result<Self, RuntimeError> {
        let file = through_read_only_mount(path).or_else(|_| sealed_copy(path)).map_err(|error| {
            RuntimeError::Config(format!(
                "cannot protect {} from being written to by containers: {}",
                path.display(),
                errno_text(&error)
            ))
        })?;
        Ok(ShimProgram { file })
    }

    /// The command that runs the program as a shim in a role.
    pub(crate) fn command(&self, arguments: &[String], role: &str) -> Command {
        let mut command = Command::new(self.path());
        // Containers may see a shim's environment, so it must not contain anything of the host's.
        command.arg0("outrigger").args(arguments).arg(role).env_clear();
        descriptors::with_first_limit(&mut command);
        command
    }

    /// The path to execute.
    pub(crate) fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()))
    }
}

fn through_read_only_mount(path: &Path) -> io::Result<OwnedFd> {
    // The program is opened by its name, because `/proc/self/exe` may lead to a mount of another mount
    // namespace.
    let name = std::fs::canonicalize(path)?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let mount = open_tree(rustix::fs::CWD, name, flags)?;
    let (found, meant) = (rustix::fs::fstat(&mount)?, rustix::fs::stat(path)?);
    if (found.st_dev, found.st_ino) != (meant.st_dev, meant.st_ino) {
        return Err(io::ErrorKind::NotFound.into());
    }
    let attr = MountAttr { set: MOUNT_ATTR_RDONLY, ..MountAttr::default() };
    mount_setattr(mount.as_fd(), false, attr)?;
    let through = format!("/proc/self/fd/{}", mount.as_raw_fd());
    // Closing `mount` removes the mount from every namespace. This descriptor keeps it usable.
    Ok(rustix::fs::open(through, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
}

/// An immutable copy of the program in memory, for a program whose file was deleted.
fn sealed_copy(path: &Path) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let copy = rustix::fs::memfd_create("outrigger", flags)?;
    io::copy(&mut File::open(path)?, &mut File::from(copy.try_clone()?))?;
    let seals = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    rustix::fs::fcntl_add_seals(&copy, seals)?;
    // A program that is open for writing cannot be executed.
    let name = format!("/proc/self/fd/{}", copy.as_raw_fd());
    Ok(rustix::fs::open(name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn neither_way_lets_the_program_be_written_to_as_root() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("true");
        std::fs::copy("/bin/true", &path).unwrap();
        for open in [through_read_only_mount, sealed_copy] {
            let file = open(&path).unwrap();
            let name = format!("/proc/self/fd/{}", file.as_raw_fd());
            assert!(std::process::Command::new(&name).status().unwrap().success());
            let written = File::options().append(true).open(&name).and_then(|mut file| file.write_all(b"x"));
            assert!(written.is_err());
            assert!(
                mount_setattr(
                    file.as_fd(),
                    false,
                    MountAttr { clear: MOUNT_ATTR_RDONLY, ..MountAttr::default() }
                )
                .is_err()
            );
        }
    }
}
