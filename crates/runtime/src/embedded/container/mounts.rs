//! What a container sees besides its image: kernel file systems, the pod's volumes, and the covers over what it must
//! not see.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::FileType;
use rustix::mount::{MountAttrFlags, OpenTreeFlags, open_tree};

use super::root::{Root, attach, clone_mount, clone_mount_fd, new_filesystem, relative};
use crate::embedded::fault::{Context, Fault};
use crate::embedded::rootless;
use crate::embedded::sys::{MOUNT_ATTR_RDONLY, MountAttr, mount_setattr};
use crate::{Mount, Propagation};

/// Hidden altogether: what they tell is the host's.
const MASKED: [&str; 12] = [
    "proc/asound",
    "proc/acpi",
    "proc/interrupts",
    "proc/kcore",
    "proc/keys",
    "proc/latency_stats",
    "proc/timer_list",
    "proc/timer_stats",
    "proc/sched_debug",
    "proc/scsi",
    "sys/firmware",
    "sys/devices/virtual/powercap",
];

/// Readable only: what they change is the host's.
const READ_ONLY: [&str; 5] = ["proc/bus", "proc/fs", "proc/irq", "proc/sys", "proc/sysrq-trigger"];

/// A volume whose source is open and waits for its place.
pub(super) struct Volume<'a> {
    mount: &'a Mount,
    tree: OwnedFd,
    is_dir: bool,
}

/// Opens the sources of all volumes, while the host's tree is still the root and its propagation still the host's.
pub(super) fn open_volumes(mounts: &[Mount]) -> Result<Vec<Volume<'_>>, Fault> {
    mounts
        .iter()
        .map(|mount| {
            let what = || format!("cannot mount {} at {}", mount.source.display(), mount.target.display());
            let tree = clone_mount(&mount.source, true).configuring(what)?;
            let kind = rustix::fs::fstat(&tree).configuring(what)?.st_mode;
            let is_dir = FileType::from_raw_mode(kind) == FileType::Directory;
            let propagation = match mount.propagation {
                Propagation::Private => libc::MS_PRIVATE,
                Propagation::HostToContainer => libc::MS_SLAVE,
                // Stays in the peer group the host's mount is in.
                Propagation::Bidirectional => 0,
            };
            let set = if mount.read_only { MOUNT_ATTR_RDONLY } else { 0 };
            let attr = MountAttr { set, propagation, ..MountAttr::default() };
            if set != 0 || propagation != 0 {
                mount_setattr(tree.as_fd(), true, attr).creating(what)?;
            }
            Ok(Volume { mount, tree, is_dir })
        })
        .collect()
}

/// Mounts the volumes in their order.
pub(super) fn mount_volumes(root: &Root, volumes: Vec<Volume<'_>>) -> Result<(), Fault> {
    for Volume { mount, tree, is_dir } in volumes {
        let what = || format!("cannot mount {} at {}", mount.source.display(), mount.target.display());
        let target = relative(&mount.target);
        if target.as_os_str().is_empty() {
            return Err(Fault::config(format!(
                "{}: nothing can be mounted over the container's root",
                what()
            )));
        }
        let target = if is_dir { root.dir(&target) } else { root.file(&target) }.creating(what)?;
        if is_on_proc(target.as_fd()) {
            return Err(Fault::config(format!("{}: nothing can be mounted inside /proc", what())));
        }
        attach(tree.as_fd(), target.as_fd()).creating(what)?;
    }
    Ok(())
}

fn is_on_proc(fd: BorrowedFd<'_>) -> bool {
    rustix::fs::fstatfs(fd).is_ok_and(|stat| i128::from(stat.f_type) == i128::from(libc::PROC_SUPER_MAGIC))
}

/// Mounts /proc and /sys.
pub(super) fn mount_kernel_filesystems(root: &Root, writable_sys: bool) -> Result<(), Fault> {
    let quiet = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let proc = new_or_host("proc", Path::new("/proc"), quiet).creating(|| "cannot make /proc")?;
    let sys_attributes = if writable_sys { quiet } else { quiet | MountAttrFlags::MOUNT_ATTR_RDONLY };
    let sys = new_or_host("sysfs", Path::new("/sys"), sys_attributes).creating(|| "cannot make /sys")?;
    for (name, mounted) in [("proc", proc), ("sys", sys)] {
        let what = || format!("cannot mount /{name}");
        let target = root.dir(Path::new(name)).creating(what)?;
        attach(mounted.as_fd(), target.as_fd()).creating(what)?;
    }
    Ok(())
}

/// A new instance of a kernel file system. Without root that is refused for what shows namespaces of the host (/proc with
/// `hostPID`, /sys with `hostNetwork`): the container is to see the host's there, and gets the host's mounts.
pub(super) fn new_or_host(kind: &str, host: &Path, attributes: MountAttrFlags) -> std::io::Result<OwnedFd> {
    match new_filesystem(kind, &[], attributes) {
        Err(error)
            if error.kind() == std::io::ErrorKind::PermissionDenied && rootless::standing().is_rootless() =>
        {
            let tree = clone_mount(host, true)?;
            let attr = MountAttr {
                set: attributes.bits().into(),
                propagation: libc::MS_PRIVATE,
                ..MountAttr::default()
            };
            mount_setattr(tree.as_fd(), true, attr)?;
            Ok(tree)
        }
        result => result,
    }
}

/// Shows the container its own cgroup. The caller is in a cgroup namespace rooted there.
pub(super) fn mount_cgroup(root: &Root, writable: bool) -> Result<(), Fault> {
    let what = || "cannot mount /sys/fs/cgroup";
    let quiet = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let attributes = if writable { quiet } else { quiet | MountAttrFlags::MOUNT_ATTR_RDONLY };
    let mounted = new_filesystem("cgroup2", &[], attributes).creating(what)?;
    let target = root.find(Path::new("sys/fs/cgroup")).creating(what)?;
    attach(mounted.as_fd(), target.as_fd()).creating(what)
}

/// Covers the masked paths and makes the read-only ones so. `null` is the container's own /dev/null, open.
pub(super) fn cover_paths(root: &Root, null: BorrowedFd<'_>) -> Result<(), Fault> {
    for path in READ_ONLY {
        let Ok(target) = root.find(Path::new(path)) else { continue };
        let what = || format!("cannot make /{path} read-only");
        let flags = OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_RECURSIVE
            | OpenTreeFlags::AT_EMPTY_PATH;
        let tree = open_tree(&target, "", flags).creating(what)?;
        mount_setattr(tree.as_fd(), true, MountAttr { set: MOUNT_ATTR_RDONLY, ..MountAttr::default() })
            .creating(what)?;
        attach(tree.as_fd(), target.as_fd()).creating(what)?;
    }
    for path in MASKED {
        let Ok(target) = root.find(Path::new(path)) else { continue };
        let what = || format!("cannot mask /{path}");
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&target).creating(what)?.st_mode);
        let cover = if kind == FileType::Directory {
            new_filesystem("tmpfs", &[("size", "0k")], MountAttrFlags::MOUNT_ATTR_RDONLY)
        } else {
            clone_mount_fd(null)
        };
        attach(cover.creating(what)?.as_fd(), target.as_fd()).creating(what)?;
    }
    Ok(())
}
