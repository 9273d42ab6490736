//! The mounts of a container in addition to its image: kernel file systems, the pod's volumes, and masked
//! paths.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::FileType;
use rustix::mount::{MountAttrFlags, OpenTreeFlags, open_tree};

use super::root::{Root, attach, new_filesystem, relative};
use crate::fault::{Context, Fault};
use crate::sys::{
    MOUNT_ATTR_NODEV, MOUNT_ATTR_RDONLY, MountAttr, clone_mount, clone_mount_fd, errno_text, mount_setattr,
};
use crate::userns::map_ids;
use crate::{layout, rootless};
use outrigger_runtime::{Mount, Propagation};

/// Masked paths, which reveal information about the host.
pub(crate) const MASKED_PROC: [&str; 10] = [
    "asound",
    "acpi",
    "interrupts",
    "kcore",
    "keys",
    "latency_stats",
    "timer_list",
    "timer_stats",
    "sched_debug",
    "scsi",
];
pub(crate) const MASKED_SYS: [&str; 2] = ["firmware", "devices/virtual/powercap"];

/// Read-only paths, which could change the host.
pub(crate) const READ_ONLY_PROC: [&str; 5] = ["bus", "fs", "irq", "sys", "sysrq-trigger"];

/// The kernel file systems of a container, opened at their own roots, so that later mounts do not affect
/// these descriptors.
pub(super) struct Kernel {
    pub(super) proc: Root,
    pub(super) sys: Root,
}

/// A volume whose source is open, not mounted yet.
pub(crate) struct Volume<'a> {
    mount: &'a Mount,
    pub(crate) tree: OwnedFd,
    pub(crate) is_dir: bool,
}

impl Volume<'_> {
    /// Whether the volume is mounted before the mounts are copied. This preserves a read-only mount, or
    /// mounts below the volume. It must not happen to a volume in a peer group with the host's mounts, which
    /// it would separate from them.
    fn is_staged(&self) -> bool {
        let has_something_to_keep = self.mount.read_only || self.is_dir;
        has_something_to_keep && self.mount.propagation != Propagation::Bidirectional
    }
}

/// Opens the sources of all volumes, while the host's tree is still the root and still has its propagation.
/// With `nodev`, devices in them cannot be opened. With a user namespace, they are mapped to its ids.
pub(crate) fn open_volumes<'a>(
    mounts: &'a [Mount],
    nodev: bool,
    userns: Option<BorrowedFd<'_>>,
) -> Result<Vec<Volume<'a>>, Fault> {
    mounts
        .iter()
        .map(|mount| {
            let what = || format!("cannot mount {} at {}", mount.source.display(), mount.target.display());
            let tree = clone_mount(&mount.source, true).map_err(|error| match error.raw_os_error() {
                // The source exists, but this user may not use it.
                Some(libc::EACCES) => Fault::config(format!("{}: {}", what(), errno_text(&error))),
                _ => Fault::create(format!("{}: {}", what(), errno_text(&error))),
            })?;
            let kind = rustix::fs::fstat(&tree).creating(what)?.st_mode;
            let is_dir = FileType::from_raw_mode(kind) == FileType::Directory;
            let propagation = match mount.propagation {
                Propagation::Private => libc::MS_PRIVATE,
                Propagation::HostToContainer => libc::MS_SLAVE,
                // The volume stays in the peer group of the host's mount.
                Propagation::Bidirectional => 0,
            };
            let set = if mount.read_only { MOUNT_ATTR_RDONLY } else { 0 }
                | if nodev { MOUNT_ATTR_NODEV } else { 0 };
            let attr = MountAttr { set, propagation, ..MountAttr::default() };
            if set != 0 || propagation != 0 {
                mount_setattr(tree.as_fd(), true, attr).creating(what)?;
            }
            if let Some(userns) = userns {
                map_ids(tree.as_fd(), userns, true).configuring(|| {
                    format!("{}: its file system cannot be mounted with the ids of the pod's user namespace; set hostUsers: true, or use --userns host", what())
                })?;
            }
            Ok(Volume { mount, tree, is_dir })
        })
        .collect()
}

/// Mounts the volumes at separate places below `dir`, and makes `dir` the working directory. This happens
/// before the pod's user namespace and a copy of the mounts for it are created. In that namespace, the kernel
/// does not allow changes to the flags that mounts had when they were copied. Read-only mounts therefore stay
/// read-only, whatever capabilities the container has, and files hidden under a mount in a volume stay
/// hidden.
pub(super) fn stage_volumes(volumes: &[Volume<'_>], dir: &Path) -> Result<(), Fault> {
    if !volumes.iter().any(Volume::is_staged) {
        // Without staged volumes, the mounts for it would only cost time.
        return Ok(());
    }
    let what = || "cannot prepare the volumes";
    let quiet = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let staging =
        Root::new(new_filesystem("tmpfs", &[("mode", "755"), ("size", "1m")], quiet).creating(what)?);
    attach(staging.fd(), layout::open_dir(dir).creating(what)?.as_fd()).creating(what)?;
    for (number, volume) in volumes.iter().enumerate().filter(|(_, volume)| volume.is_staged()) {
        let place = place(number);
        let target = if volume.is_dir { staging.dir(&place) } else { staging.file(&place) }.creating(what)?;
        attach(volume.tree.as_fd(), target.as_fd()).creating(what)?;
    }
    rustix::process::fchdir(staging.fd()).creating(what)
}

fn place(number: usize) -> PathBuf {
    PathBuf::from(number.to_string())
}

/// Takes the volumes from the places of [`stage_volumes`], after the mounts were copied.
pub(super) fn take_staged_volumes(volumes: &mut [Volume<'_>]) -> Result<(), Fault> {
    for (number, volume) in volumes.iter_mut().enumerate().filter(|(_, volume)| volume.is_staged()) {
        volume.tree = clone_mount(&place(number), true).creating(|| "cannot prepare the volumes")?;
    }
    Ok(())
}

/// Mounts the volumes in the given order.
pub(super) fn mount_volumes(root: &Root, volumes: Vec<Volume<'_>>) -> Result<(), Fault> {
    for Volume { mount, tree, is_dir } in volumes {
        let what = || format!("cannot mount {} at {}", mount.source.display(), mount.target.display());
        let target = relative(&mount.target);
        if target.as_os_str().is_empty() {
            let text = format!("{}: nothing can be mounted over the container's root", what());
            return Err(Fault::mount_point(&mount.target, text));
        }
        let inside_proc = || {
            let text = format!("{}: nothing can be mounted inside /proc", what());
            Fault::mount_point(&mount.target, text)
        };
        if target.starts_with("proc") {
            return Err(inside_proc());
        }
        let found = if is_dir { root.dir(&target) } else { root.file(&target) };
        let target = found.map_err(|error| refused(mount, &error))?;
        // The target is compared after it was resolved, because a link of the image may lead to the root.
        if is_same(root.fd(), target.as_fd()).creating(what)? {
            let text = format!(
                "{}: a link of the image leads from there to /, and nothing can be mounted over the container's root; \
                 choose another mountPath",
                what()
            );
            return Err(Fault::mount_point(&mount.target, text));
        }
        if is_on_proc(target.as_fd()) {
            return Err(inside_proc());
        }
        attach(tree.as_fd(), target.as_fd()).map_err(|error| refused(mount, &error))?;
    }
    Ok(())
}

/// Why a volume is not mounted. A file at its target does not become a directory, and a directory does not
/// become a file.
fn refused(mount: &Mount, error: &std::io::Error) -> Fault {
    let (source, target) = (mount.source.display(), mount.target.display());
    let text = format!("cannot mount {source} at {target}: {}", errno_text(error));
    match error.raw_os_error() {
        Some(libc::ENOTDIR | libc::EISDIR | libc::EINVAL | libc::EACCES | libc::EPERM | libc::EROFS) => {
            Fault::mount_point(&mount.target, text)
        }
        _ => Fault::create(text),
    }
}

fn is_same(one: BorrowedFd<'_>, other: BorrowedFd<'_>) -> std::io::Result<bool> {
    let (one, other) = (rustix::fs::fstat(one)?, rustix::fs::fstat(other)?);
    Ok((one.st_dev, one.st_ino) == (other.st_dev, other.st_ino))
}

fn is_on_proc(fd: BorrowedFd<'_>) -> bool {
    rustix::fs::fstatfs(fd).is_ok_and(|stat| i128::from(stat.f_type) == i128::from(libc::PROC_SUPER_MAGIC))
}

/// Mounts a kernel file system on the directory `name` of the image, and checks that it is there.
///
/// # Errors
/// For example, the image has a link in that place.
pub(super) fn mount_kernel_filesystem(root: &Root, name: &str, mounted: OwnedFd) -> Result<Root, Fault> {
    let what = || format!("cannot mount /{name}");
    let target = root.plain_dir(name).map_err(|error| match error.raw_os_error() {
        Some(libc::ELOOP) => Fault::image(format!(
            "the image is refused: its /{name} is a symbolic link, which would move a file system of the kernel to where \
             nothing protects it; build the image with a directory there"
        )),
        Some(libc::ENOTDIR) => {
            Fault::image(format!("the image is refused: its /{name} is not a directory"))
        }
        _ => Fault::create(format!("{}: {}", what(), errno_text(&error))),
    })?;
    attach(mounted.as_fd(), target.as_fd()).creating(what)?;
    let found = root.find_mounted(name).creating(what)?;
    let same = rustix::fs::fstat(&found).creating(what)?;
    let meant = rustix::fs::fstat(&mounted).creating(what)?;
    if (same.st_dev, same.st_ino) != (meant.st_dev, meant.st_ino) {
        return Err(Fault::create(format!("{}: something else is in its place", what())));
    }
    Ok(Root::new(mounted))
}

/// Mounts /proc and /sys. `proc` is the /proc of a shared pid namespace. Without it, the new /proc shows the
/// caller's pid namespace.
pub(super) fn mount_kernel_filesystems(
    root: &Root,
    proc: Option<OwnedFd>,
    writable_sys: bool,
) -> Result<Kernel, Fault> {
    let quiet = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let proc = proc
        .map_or_else(|| new_or_host("proc", Path::new("/proc"), quiet), Ok)
        .creating(|| "cannot make /proc")?;
    let sys_attributes = if writable_sys { quiet } else { quiet | MountAttrFlags::MOUNT_ATTR_RDONLY };
    let sys = new_or_host("sysfs", Path::new("/sys"), sys_attributes).creating(|| "cannot make /sys")?;
    Ok(Kernel {
        proc: mount_kernel_filesystem(root, "proc", proc)?,
        sys: mount_kernel_filesystem(root, "sys", sys)?,
    })
}

/// Creates a new instance of a kernel file system. Without root, the kernel does not permit that for file
/// systems that show the host's namespaces (/proc with `hostPID`, /sys with `hostNetwork`). The container
/// should see the host's there, so it gets the host's mounts.
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

/// Mounts the container's own cgroup. The caller is in a cgroup namespace whose root it is. Returns the
/// directory under the mount.
pub(super) fn mount_cgroup(kernel: &Kernel, writable: bool) -> Result<OwnedFd, Fault> {
    let what = || "cannot mount /sys/fs/cgroup";
    let quiet = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let attributes = if writable { quiet } else { quiet | MountAttrFlags::MOUNT_ATTR_RDONLY };
    let mounted = new_filesystem("cgroup2", &[], attributes).creating(what)?;
    // Without root and on the host network, /sys is the host's, with its mounts.
    let target = kernel.sys.find_mounted("fs/cgroup").creating(what)?;
    attach(mounted.as_fd(), target.as_fd()).creating(what)?;
    Ok(target)
}

/// Masks some paths and makes others read-only. `null` is the container's own open /dev/null. This comes
/// before the volumes, because a volume at such a path is what the manifest wants.
pub(super) fn cover_paths(kernel: &Kernel, null: BorrowedFd<'_>) -> Result<(), Fault> {
    for path in READ_ONLY_PROC {
        let what = || format!("cannot make /proc/{path} read-only");
        let Some(target) = find_covered(&kernel.proc, path).creating(what)? else { continue };
        let flags = OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_RECURSIVE
            | OpenTreeFlags::AT_EMPTY_PATH;
        let tree = open_tree(&target, "", flags).creating(what)?;
        mount_setattr(tree.as_fd(), true, MountAttr { set: MOUNT_ATTR_RDONLY, ..MountAttr::default() })
            .creating(what)?;
        attach(tree.as_fd(), target.as_fd()).creating(what)?;
    }
    let proc = MASKED_PROC.map(|path| ("/proc/", &kernel.proc, path));
    let sys = MASKED_SYS.map(|path| ("/sys/", &kernel.sys, path));
    for (at, root, path) in proc.into_iter().chain(sys) {
        let what = || format!("cannot mask {at}{path}");
        let Some(target) = find_covered(root, path).creating(what)? else { continue };
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

/// Opens a path to cover, if this kernel has it.
fn find_covered(root: &Root, path: &str) -> io::Result<Option<OwnedFd>> {
    match root.find_plain(path) {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
