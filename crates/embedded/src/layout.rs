//! Paths under the state directory, and how files are created and removed there.
//!
//! ```text
//! STATE/pods/SANDBOX/lock                 locked by the owning process while it lives
//!                   /node.json            exists if the pod belongs to the node and not to a process
//!                   /sandbox.json         SandboxState
//!                   /ns                   tmpfs with the pod's mounts
//!                      /{user,net,ipc,uts,pid} pinned namespaces (bind mounts)
//!                      /shm               the pod's /dev/shm (tmpfs)
//!                      /proc              /proc of a shared pid namespace
//!                      /containers/ID/state.json, sock
//!                   /layers/ID/{upper,work} (rootfs: a copy, if overlayfs is refused)
//! ```
//!
//! Files that are not needed after a reboot are in memory, because ext4 is slow at creating and deleting
//! files in quick succession. Without root, only one run sees that tmpfs. The next run must find the
//! processes of a killed run, so `containers` is on disk there.

use std::fs;
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{
    CWD, FlockOperation, IFlags, Mode, OFlags, RenameFlags, flock, ioctl_getflags, ioctl_setflags,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::rootless;
use outrigger_runtime::ContainerId;
pub(crate) use outrigger_runtime::mounts::unmount_all;

/// How long a container that is being created may delay the removal of a pod whose owner has died.
const MAKING_PATIENCE: Duration = Duration::from_secs(10);

/// The maximum size of a JSON file that is read.
pub(crate) const JSON_MAX: u64 = 64 << 20;

/// Directory of the pods below the state directory.
pub(crate) fn pods_dir(state_dir: &Path) -> PathBuf {
    state_dir.join("pods")
}

/// Lets ext4 put each directory that is created in this one into another part of the disk.
///
/// ext4 keeps the contents of one directory close together. It does not reuse an inode for some time after
/// its file was deleted. Whenever it creates a file, it looks at each such inode of that part of the disk.
/// With the files of all pods in one part, a run takes up to twice as long if others have ended within the
/// last minute. Other file systems refuse the flag or ignore it.
pub(crate) fn spread(dir: &Path) {
    let set = || -> io::Result<()> {
        let dir = open_dir_for_reading(dir)?;
        let flags = ioctl_getflags(&dir)?;
        if !flags.contains(IFlags::TOPDIR) {
            ioctl_setflags(&dir, flags | IFlags::TOPDIR)?;
        }
        Ok(())
    };
    // A failure only costs time.
    let _ = set();
}

/// Directory of a pod's containers.
pub(crate) fn containers_dir(pod_dir: &Path) -> PathBuf {
    match rootless::standing().is_rootless() {
        true => pod_dir.join("containers"),
        false => pod_dir.join("ns/containers"),
    }
}

/// Directory of one container.
pub(crate) fn container_dir(pod_dir: &Path, id: &str) -> PathBuf {
    containers_dir(pod_dir).join(id)
}

/// Directory of the layers that belong to the containers of a pod.
pub(crate) fn layers_dir(pod_dir: &Path) -> PathBuf {
    pod_dir.join("layers")
}

/// Directory of the layer that belongs to one container.
pub(crate) fn layer_dir(pod_dir: &Path, id: &str) -> PathBuf {
    layers_dir(pod_dir).join(id)
}

/// Marks that something is being created in a pod, for as long as the returned value exists. The removal of a
/// pod whose owner has died waits for this, because otherwise parts of the pod would be created again.
///
/// # Errors
/// The pod is being removed, or no longer exists.
pub(crate) fn begin_making(pod_dir: &Path) -> io::Result<OwnedFd> {
    let dir = open_dir_for_reading(&containers_dir(pod_dir))?;
    flock(&dir, FlockOperation::NonBlockingLockShared)?;
    Ok(dir)
}

/// Waits until nothing is being created in a pod any more, and prevents it for as long as the returned value
/// exists. Does not wait for something that takes too long. Blocks.
#[expect(
    clippy::disallowed_methods,
    reason = "a thread of its own; a lock cannot be waited for with a limit"
)]
pub(crate) fn end_making(pod_dir: &Path) -> Option<OwnedFd> {
    let dir = open_dir_for_reading(&containers_dir(pod_dir)).ok()?;
    let deadline = Instant::now() + MAKING_PATIENCE;
    while flock(&dir, FlockOperation::NonBlockingLockExclusive).is_err() {
        if Instant::now() >= deadline {
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Some(dir)
}

/// The containers that have a directory in a pod's directory.
pub(crate) fn containers(pod_dir: &Path) -> Vec<ContainerId> {
    let entries = fs::read_dir(containers_dir(pod_dir)).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| !name.starts_with('.')).map(ContainerId).collect()
}

/// Removes a container's directory. Moves its layer elsewhere, so that another container can have the same
/// id, and the layer can be removed later. Returns the new path of the layer. Missing directories are not an
/// error.
pub(crate) fn discard_container(pod_dir: &Path, id: &str) -> io::Result<Option<PathBuf>> {
    remove_tree(&container_dir(pod_dir, id))?;
    discard_layer(&layer_dir(pod_dir, id))
}

/// Moves the layer of a container elsewhere, so that another container can have the same id, and the layer
/// can be removed later. Returns its new path. A missing layer is not an error.
pub(crate) fn discard_layer(layer: &Path) -> io::Result<Option<PathBuf>> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let to = layer.with_file_name(format!(".trash-{}-{number}", std::process::id()));
    match fs::rename(layer, &to) {
        Ok(()) => Ok(Some(to)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Replaces a small JSON file atomically: a reader sees the old or the new content, never a part. The file is
/// not synced to disk, because none of the processes in it exist after a power failure.
pub(crate) fn write_json(path: &Path, value: &impl Serialize) -> io::Result<()> {
    let temporary = path.with_extension("tmp");
    let mut file = fs::File::create(&temporary)?;
    file.write_all(&serde_json::to_vec(value)?)?;
    drop(file);
    // The files are exchanged and the old one is removed. If a file were replaced, ext4 would write the new
    // one to the disk at once.
    match rustix::fs::renameat_with(CWD, &temporary, CWD, path, RenameFlags::EXCHANGE) {
        Ok(()) => fs::remove_file(&temporary),
        // There is no old file, or the file system cannot exchange files.
        Err(_) => fs::rename(&temporary, path),
    }
}

/// Reads a file of [`write_json`]. `None` if it is missing or incomplete.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&outrigger_runtime::private::read(path, JSON_MAX).ok()?).ok()
}

/// Opens a directory as a base for relative paths.
pub(crate) fn open_dir(path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::openat(CWD, path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Opens a directory for reading its entries.
pub(crate) fn open_dir_for_reading(path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// A short path of the socket in an open directory. Socket addresses are limited to 107 bytes, but state
/// directories are not.
pub(crate) fn socket_path(dir: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}/sock", dir.as_raw_fd()))
}

/// Removes a directory tree. It may be missing, and others may remove it at the same time.
pub(crate) fn remove_tree(path: &Path) -> io::Result<()> {
    outrigger_runtime::tree::remove(path)
}
