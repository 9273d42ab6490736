//! User namespaces of pods: root in a container is nobody on the host.
//!
//! Every pod gets 65536 ids of the host that no other pod on the machine has. Its files keep the ids they have on the
//! host: they are seen through mounts that map the ids of the one side to those of the other.

mod ids;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};

use super::container::root::clone_mount;
use super::oci::OciRuntime;
use super::sys::{self, MOUNT_ATTR_IDMAP, MountAttr, errno_text, mount_setattr};

use super::{link, rootless};
use crate::RuntimeError;

pub(crate) use ids::release;

/// Ids of a pod, counted from 0.
pub(crate) const IDS: u32 = 65_536;

/// A pod's user namespace, pinned.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct UserNamespace {
    /// Where it is pinned.
    pub(crate) path: PathBuf,
    /// The host's id for the pod's id 0.
    pub(crate) first_id: u32,
}

impl UserNamespace {
    pub(crate) fn open(&self) -> io::Result<OwnedFd> {
        Ok(rustix::fs::open(&self.path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
    }
}

/// The host's id for an id of a container; `None` is a container with the host's ids.
pub(crate) fn host_id(namespace: Option<&UserNamespace>, id: u32) -> u32 {
    namespace.map_or(id, |namespace| namespace.first_id.saturating_add(id))
}

/// Gives a mount that is mounted nowhere yet the ids of a user namespace, with the mounts below it when `recursive`.
pub(crate) fn map_ids(mount: BorrowedFd<'_>, namespace: BorrowedFd<'_>, recursive: bool) -> io::Result<()> {
    let attr =
        MountAttr { set: MOUNT_ATTR_IDMAP, userns_fd: namespace.as_raw_fd() as u64, ..MountAttr::default() };
    mount_setattr(mount, recursive, attr)
}

/// New namespaces of a pod, kept alive by a process that does nothing and ends with this value.
pub(crate) struct Holder {
    pid: i32,
    pidfd: OwnedFd,
}

impl Holder {
    /// Makes a user namespace and others of these `kinds` that belong to it.
    fn new(kinds: i32, first_id: u32) -> io::Result<Self> {
        let (pid, pidfd) = sys::hold_namespaces(kinds | libc::CLONE_NEWUSER)?;
        let holder = Holder { pid, pidfd };
        for map in ["uid_map", "gid_map"] {
            fs::write(format!("/proc/{pid}/{map}"), format!("0 {first_id} {IDS}\n"))?;
        }
        Ok(holder)
    }

    pub(crate) fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = sys::pidfd_kill(self.pidfd.as_fd(), libc::SIGKILL);
        sys::reap(self.pid, true);
    }
}

/// What a pod gets whose containers an OCI runtime makes, which is not asked for user namespaces.
pub(crate) fn with_oci_runtime(
    wanted: crate::UserNamespace,
    runtime: &OciRuntime,
) -> Result<crate::UserNamespace, RuntimeError> {
    match wanted {
        // Without root the runtime is in a user namespace already.
        crate::UserNamespace::Required if !rootless::standing().is_rootless() => {
            Err(RuntimeError::Config(format!(
                "hostUsers: false is not supported with OCI runtime {}; remove --oci-runtime or runtimeClassName",
                runtime.name()
            )))
        }
        crate::UserNamespace::Auto => {
            link::warn_once(format!(
                "root in containers is root on this machine: OCI runtime {} is not given user namespaces",
                runtime.name()
            ));
            Ok(crate::UserNamespace::Host)
        }
        _ => Ok(crate::UserNamespace::Host),
    }
}

/// Makes and pins a pod's user namespace with namespaces of `kinds`, or says why it cannot be had here: `paths` are what
/// the pod will see of the host.
pub(crate) fn make(pod_dir: &Path, kinds: i32, paths: &[PathBuf]) -> Result<(Holder, UserNamespace), String> {
    if !kernel_maps_layers() {
        return Err("it needs Linux 5.19 or later".to_owned());
    }
    let first_id = ids::claim(pod_dir).map_err(|error| format!("no user ids are available: {error}"))?;
    let path = pod_dir.join("ns/user");
    let made = make_mapped(&path, kinds, first_id)
        .map_err(|error| format!("the kernel refuses it: {}", errno_text(&error)))
        .and_then(|holder| {
            let namespace = UserNamespace { path: path.clone(), first_id };
            let open = namespace.open().map_err(|error| errno_text(&error))?;
            let own = [pod_dir.join("ns"), pod_dir.to_owned()];
            own.iter().try_for_each(|path| can_map(path, open.as_fd()))?;
            // With everything that is mounted below them, which may be anything.
            paths.iter().try_for_each(|path| try_map(path, open.as_fd(), true))?;
            Ok((holder, namespace))
        });
    if made.is_err() {
        super::layout::unmount_all(&path);
        ids::release(first_id, pod_dir);
    }
    made
}

fn make_mapped(path: &Path, kinds: i32, first_id: u32) -> io::Result<Holder> {
    let holder = Holder::new(kinds, first_id)?;
    fs::File::create(path)?;
    rustix::mount::mount_bind(format!("/proc/{}/ns/user", holder.pid), path)?;
    Ok(holder)
}

/// Whether overlayfs takes mounts with other ids as its layers.
pub(crate) fn kernel_maps_layers() -> bool {
    is_new_enough(&rustix::system::uname().release().to_string_lossy())
}

fn is_new_enough(release: &str) -> bool {
    let mut numbers =
        release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse::<u32>().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (5, 19)
}

/// Whether the file system a path is on can be mounted with other ids. Asked once for each.
fn can_map(path: &Path, namespace: BorrowedFd<'_>) -> Result<(), String> {
    static KNOWN: Mutex<BTreeMap<(i64, u64), Result<(), String>>> = Mutex::new(BTreeMap::new());
    let identify = || -> io::Result<(i64, u64)> {
        #[allow(clippy::unnecessary_cast, reason = "the type differs between architectures")]
        let kind = rustix::fs::statfs(path)?.f_type as i64;
        // File systems in memory are all alike.
        #[allow(clippy::unnecessary_cast, reason = "the type differs between architectures")]
        let is_tmpfs = kind == libc::TMPFS_MAGIC as i64;
        Ok((kind, if is_tmpfs { 0 } else { rustix::fs::stat(path)?.st_dev }))
    };
    let key = identify().map_err(|error| unmapped(path, &error))?;
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    known.entry(key).or_insert_with(|| try_map(path, namespace, false)).clone()
}

/// Whether what is at a path, or will be, can be mounted with other ids, with the mounts below it when `recursive`.
fn try_map(path: &Path, namespace: BorrowedFd<'_>, recursive: bool) -> Result<(), String> {
    let Some(existing) = path.ancestors().find(|path| path.exists()) else { return Ok(()) };
    // What is made later has no mounts below it.
    let recursive = recursive && existing == path;
    clone_mount(existing, recursive)
        .and_then(|mount| map_ids(mount.as_fd(), namespace, recursive))
        .map_err(|error| unmapped(existing, &error))
}

fn unmapped(path: &Path, error: &io::Error) -> String {
    format!("the file system of {} cannot be mounted with other ids ({})", path.display(), errno_text(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_told_apart() {
        for (release, new_enough) in [
            ("6.1.0-13-amd64", true),
            ("5.19.0", true),
            ("5.18.9", false),
            ("4.20", false),
            ("6.18.44-fc", true),
        ] {
            assert_eq!(is_new_enough(release), new_enough, "{release}");
        }
    }
}
