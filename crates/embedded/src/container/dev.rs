//! Creates the contents of a container's /dev.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Uid};
use rustix::mount::MountAttrFlags;

use super::mounts::{mount_kernel_filesystem, new_or_host};
use super::root::{Root, attach, new_filesystem};
use crate::fault::{Context, Fault};
use crate::sys::clone_mount_fd;
use crate::{rootless, sys};

/// The device nodes of every container, with their numbers.
pub(super) const NODES: [(&str, u32, u32); 6] =
    [("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0)];

const LINKS: [(&str, &str); 6] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("core", "/proc/kcore"),
    ("ptmx", "pts/ptmx"),
];

/// A container's /dev.
pub(super) struct Dev {
    /// Its root directory, which stays valid whatever is mounted over it later.
    pub(super) root: Root,
    /// Its open `null` device. It can be trusted, even if the container replaces `/dev/null` later.
    pub(super) null: OwnedFd,
}

/// Creates the file system of /dev with its nodes, without mounting it. `owner` is the id here of the
/// container's root. No nodes can be created in the container's user namespace, so this happens before
/// joining it.
pub(super) fn prepare_dev(owner: u32) -> Result<OwnedFd, Fault> {
    let what = || "cannot make /dev";
    let dev = new_dev(owner).creating(what)?;
    with_modes_as_written(|| make_nodes(dev.as_fd(), owner)).creating(what)?;
    Ok(dev)
}

fn new_dev(owner: u32) -> io::Result<OwnedFd> {
    let id = owner.to_string();
    new_filesystem(
        "tmpfs",
        &[("mode", "755"), ("size", "65536k"), ("uid", &id), ("gid", &id)],
        MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_STRICTATIME,
    )
}

fn make_nodes(dev: BorrowedFd<'_>, owner: u32) -> io::Result<()> {
    for (name, major, minor) in NODES {
        make_node(dev, Path::new(name), libc::S_IFCHR | 0o666, libc::makedev(major, minor))?;
        if owner != 0 {
            let (user, group) = (Uid::from_raw(owner), Gid::from_raw(owner));
            rustix::fs::chownat(dev, name, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW)?;
        }
    }
    Ok(())
}

fn with_modes_as_written<T>(make: impl FnOnce() -> T) -> T {
    let umask = rustix::process::umask(Mode::empty());
    let made = make();
    rustix::process::umask(umask);
    made
}

/// Mounts and fills /dev. `shm` is the pod's /dev/shm.
pub(super) fn mount_dev(
    root: &Root,
    prepared: Option<OwnedFd>,
    shm: OwnedFd,
    all_devices: bool,
) -> Result<Dev, Fault> {
    with_modes_as_written(|| make_dev(root, prepared, shm, all_devices))
}

fn make_dev(root: &Root, prepared: Option<OwnedFd>, shm: OwnedFd, all_devices: bool) -> Result<Dev, Fault> {
    let what = || "cannot fill /dev";
    let is_prepared = prepared.is_some();
    let dev = prepared.map_or_else(|| new_dev(0), Ok).creating(what)?;
    let dev = mount_kernel_filesystem(root, "dev", dev)?;
    if !is_prepared {
        make_nodes(dev.fd(), 0).creating(what)?;
    }
    for (name, target) in LINKS {
        rustix::fs::symlinkat(target, dev.fd(), name).creating(what)?;
    }
    if all_devices {
        for (path, mode, device) in host_devices(Path::new("/dev")) {
            if let Some(parent) = path.parent().filter(|parent| *parent != Path::new("")) {
                dev.dir(parent).creating(what)?;
            }
            // The device has disappeared, or its node was already created above.
            let _ = make_node(dev.fd(), &path, mode, device);
        }
    }

    let quiet = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let options = [("newinstance", ""), ("ptmxmode", "0666"), ("mode", "0620"), ("gid", "5")];
    // Without a group 5, terminals belong to the group of the process that opens them.
    let known = if rootless::standing().gids().contains(5) { &options[..] } else { &options[..3] };
    let pts = new_filesystem("devpts", known, quiet).creating(|| "cannot make /dev/pts")?;
    let mqueue = new_or_host("mqueue", Path::new("/dev/mqueue"), quiet | MountAttrFlags::MOUNT_ATTR_NODEV);
    let mqueue = match mqueue {
        // Without root, the host's queues can be shown only if the host has mounted them.
        Err(error) if error.kind() == io::ErrorKind::NotFound && rootless::standing().is_rootless() => None,
        made => Some(made.creating(|| "cannot make /dev/mqueue")?),
    };
    // The pod's own queues already have these flags, but the host's may not.
    let set = sys::MOUNT_ATTR_NOSUID | sys::MOUNT_ATTR_NODEV | sys::MOUNT_ATTR_NOEXEC;
    sys::mount_setattr(shm.as_fd(), false, sys::MountAttr { set, ..sys::MountAttr::default() })
        .creating(|| "cannot share /dev/shm")?;
    for (name, mounted) in [("pts", Some(pts)), ("mqueue", mqueue), ("shm", Some(shm))] {
        let Some(mounted) = mounted else { continue };
        let target = dev.plain_dir(name).creating(what)?;
        attach(mounted.as_fd(), target.as_fd()).creating(|| format!("cannot mount /dev/{name}"))?;
    }
    let null = rustix::fs::openat(dev.fd(), "null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    Ok(Dev { null: null.creating(what)?, root: dev })
}

/// Creates a device node. The kernel does not permit that in a user namespace. The host's own node is mounted
/// there instead.
fn make_node(dir: BorrowedFd<'_>, name: &Path, mode: u32, device: u64) -> io::Result<()> {
    match sys::mknodat(dir, name, mode, device) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            bind_node(dir, name, host_node(name, mode, device)?.as_fd())
        }
        result => result,
    }
}

/// Opens the host's node `name` below /dev as a detached mount. It must have the type in `mode` and the
/// number `device`. Anything else is not what the container should get.
pub(super) fn host_node(name: &Path, mode: u32, device: u64) -> io::Result<OwnedFd> {
    host_node_in(Path::new("/dev"), name, mode, device)
}

fn host_node_in(base: &Path, name: &Path, mode: u32, device: u64) -> io::Result<OwnedFd> {
    let path = base.join(name);
    let node = rustix::fs::open(&path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let stat = rustix::fs::fstat(&node)?;
    let wanted = FileType::from_raw_mode(mode);
    if FileType::from_raw_mode(stat.st_mode) != wanted || stat.st_rdev != device {
        let (major, minor) = (libc::major(device), libc::minor(device));
        return Err(io::Error::other(format!("{} is not the device {major}:{minor}", path.display())));
    }
    let mounted = clone_mount_fd(node.as_fd())?;
    // This protects the host's node itself. Devices can still be written to. Otherwise, if root of this user
    // namespace is the host's root, it could change the node's mode and owner.
    let read_only = sys::MountAttr { set: sys::MOUNT_ATTR_RDONLY, ..sys::MountAttr::default() };
    sys::mount_setattr(mounted.as_fd(), false, read_only)?;
    Ok(mounted)
}

/// Mounts a node that [`host_node`] opened at `name` in `dir`, over an empty file.
pub(super) fn bind_node(dir: BorrowedFd<'_>, name: &Path, node: BorrowedFd<'_>) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    drop(rustix::fs::openat(dir, name, flags, Mode::from_raw_mode(0o600))?);
    let target =
        rustix::fs::openat(dir, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    attach(node, target.as_fd()).inspect_err(|_| {
        // An empty file with the name of a device would be worse than none.
        let _ = rustix::fs::unlinkat(dir, name, AtFlags::empty());
    })
}

/// The device nodes of the host, relative to /dev, except those that every container has itself.
pub(crate) fn host_devices(base: &Path) -> Vec<(PathBuf, u32, u64)> {
    let mut found = Vec::new();
    let mut pending = vec![PathBuf::new()];
    while let Some(dir) = pending.pop() {
        let Ok(entries) = fs::read_dir(base.join(&dir)) else { continue };
        for entry in entries.flatten() {
            let path = dir.join(entry.file_name());
            let own = ["pts", "shm", "mqueue", "fd", "console", "ptmx"];
            if own.iter().any(|name| path == Path::new(name)) {
                continue;
            }
            let Ok(meta) = fs::symlink_metadata(base.join(&path)) else { continue };
            if meta.is_dir() {
                pending.push(path);
            } else if meta.file_type().is_char_device() || meta.file_type().is_block_device() {
                found.push((path, meta.mode(), meta.rdev()));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn only_the_very_device_is_taken_from_the_host() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        symlink("/dev/null", dir.path().join("link")).unwrap();
        let (mode, null) = (libc::S_IFCHR | 0o666, libc::makedev(1, 3));
        for (base, name, mode, device) in [
            (dir.path(), "file", mode, null),
            (dir.path(), "link", mode, null),
            (dir.path(), "missing", mode, null),
            (Path::new("/dev"), "null", mode, libc::makedev(1, 5)),
            (Path::new("/dev"), "null", libc::S_IFBLK | 0o666, null),
        ] {
            assert!(host_node_in(base, Path::new(name), mode, device).is_err(), "{}/{name}", base.display());
        }
    }

    /// A container in a user namespace gets mounted nodes of the host that can be read and written.
    #[test]
    fn nodes_of_the_host_are_mounted_where_they_cannot_be_made() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        std::thread::spawn(|| {
            sys::unshare(libc::CLONE_NEWNS).unwrap();
            let dir = new_filesystem("tmpfs", &[], MountAttrFlags::MOUNT_ATTR_NODEV).unwrap();
            let place = tempfile::tempdir().unwrap();
            let target = crate::layout::open_dir(place.path()).unwrap();
            rustix::mount::mount_change(
                "/",
                rustix::mount::MountPropagationFlags::PRIVATE | rustix::mount::MountPropagationFlags::REC,
            )
            .unwrap();
            attach(dir.as_fd(), target.as_fd()).unwrap();
            for (name, major, minor) in NODES {
                let mode = libc::S_IFCHR | 0o666;
                let node = host_node(Path::new(name), mode, libc::makedev(major, minor)).unwrap();
                bind_node(dir.as_fd(), Path::new(name), node.as_fd()).unwrap();
                let taken = host_node(Path::new(name), mode, libc::makedev(major, minor)).unwrap();
                assert!(bind_node(dir.as_fd(), Path::new(name), taken.as_fd()).is_err(), "{name} is there");
            }
            fs::write(place.path().join("null"), "x").unwrap();
            assert_eq!(fs::read(place.path().join("null")).unwrap(), b"");
            // These are the host's own nodes. Not even root can change them from here.
            let before = fs::metadata("/dev/null").unwrap();
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o666);
            let error = fs::set_permissions(place.path().join("null"), mode).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EROFS));
            assert!(std::os::unix::fs::chown(place.path().join("null"), Some(0), Some(0)).is_err());
            assert_eq!(fs::metadata("/dev/null").unwrap().ctime_nsec(), before.ctime_nsec());
            rustix::mount::unmount(place.path(), rustix::mount::UnmountFlags::DETACH).unwrap();
        })
        .join()
        .unwrap();
    }
}
