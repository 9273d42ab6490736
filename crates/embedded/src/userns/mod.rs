//! User namespaces of pods: root in a container has no privileges on the host.
//!
//! Every pod gets 65536 host ids that no other pod on the machine has. Its files keep their ids on the host.
//! The pod sees them through mounts that map the ids.

mod ids;
mod owners;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};

use super::fault::Fault;
use super::sys::{self, MOUNT_ATTR_IDMAP, MountAttr, clone_mount, errno_text, mount_setattr};
use super::{rootless, warning};

pub(crate) use ids::{DIRECTORY as IDS_DIRECTORY, reclaim as reclaim_ids, release, release_all};
pub(crate) use owners::warn_of_owners;

/// The number of ids of a pod. They start at 0.
pub(crate) const IDS: u32 = 65_536;

/// The owner of files whose owner does not exist in a user namespace.
pub(crate) const NOBODY: u32 = 65_534;

/// A pod's user namespace, pinned.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct UserNamespace {
    /// The path at which it is pinned.
    pub(crate) path: PathBuf,
    /// The host's id for the pod's id 0.
    pub(crate) first_id: u32,
}

impl UserNamespace {
    pub(crate) fn open(&self) -> io::Result<OwnedFd> {
        Ok(rustix::fs::open(&self.path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
    }
}

/// The host's id for an id of a container. Without a namespace, the container has the host's ids. An id that
/// a user namespace does not have maps to nobody, because the ids after its last one belong to another pod.
pub(crate) fn host_id(namespace: Option<&UserNamespace>, id: u32) -> u32 {
    match namespace {
        Some(namespace) => namespace.first_id + if id < IDS { id } else { NOBODY },
        // There is only this id, whatever its number in the container is.
        None if rootless::one_id_only() => 0,
        None => id,
    }
}

/// Maps the ids of a detached mount to a user namespace, and of the mounts below it if `recursive`.
pub(crate) fn map_ids(mount: BorrowedFd<'_>, namespace: BorrowedFd<'_>, recursive: bool) -> io::Result<()> {
    let attr =
        MountAttr { set: MOUNT_ATTR_IDMAP, userns_fd: namespace.as_raw_fd() as u64, ..MountAttr::default() };
    mount_setattr(mount, recursive, attr)
}

/// New namespaces of a pod. A process that does nothing keeps them alive, and ends when this value is
/// dropped.
pub(crate) struct Holder {
    pid: i32,
    pidfd: OwnedFd,
}

impl Holder {
    /// Creates a user namespace, and namespaces of these `kinds` that belong to it.
    fn new(kinds: i32, first_id: u32) -> io::Result<Self> {
        let map = format!("0 {first_id} {IDS}\n");
        Self::mapped(kinds, &[("uid_map", &map), ("gid_map", &map)])
    }

    /// Creates a user namespace in which the caller's user and group have these ids, and in which no others
    /// exist.
    pub(crate) fn of_one_id((uid, gid): (u32, u32), (own_uid, own_gid): (u32, u32)) -> io::Result<Self> {
        let (uids, gids) = (format!("{uid} {own_uid} 1\n"), format!("{gid} {own_gid} 1\n"));
        // Without root, groups can be mapped only if they can never be dropped.
        Self::mapped(0, &[("setgroups", "deny"), ("uid_map", &uids), ("gid_map", &gids)])
    }

    /// Creates namespaces. `files` are the files that determine their ids, with their contents.
    fn mapped(kinds: i32, files: &[(&str, &str)]) -> io::Result<Self> {
        let (pid, pidfd) = sys::hold_namespaces(kinds | libc::CLONE_NEWUSER)?;
        let holder = Holder { pid, pidfd };
        for (name, text) in files {
            fs::write(format!("/proc/{pid}/{name}"), text)?;
        }
        Ok(holder)
    }

    pub(crate) fn open_user_namespace(&self) -> io::Result<OwnedFd> {
        let path = format!("/proc/{}/ns/user", self.pid);
        Ok(rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
    }

    pub(crate) fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = outrigger_runtime::signals::pidfd_kill(self.pidfd.as_fd(), libc::SIGKILL);
        sys::reap(self.pid, true);
    }
}

/// Why a user namespace is not possible.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum Unavailable {
    #[error("it takes Linux 5.19 or newer")]
    TooOld,
    #[error("no user ids can be set aside: {}", errno_text(.0))]
    NoIds(#[source] Arc<io::Error>),
    #[error("the kernel refuses it: {}", errno_text(.0))]
    Refused(#[source] Arc<io::Error>),
    #[error("it cannot be opened: {}", errno_text(.0))]
    Unreadable(#[source] Arc<io::Error>),
    #[error("the file system of {} cannot be mounted with other ids ({})", path.display(), errno_text(error))]
    Unmappable {
        path: PathBuf,
        #[source]
        error: Arc<io::Error>,
    },
    #[error("{0} is not asked for one; remove --oci-runtime or runtimeClassName")]
    OciRuntime(String),
    #[error("the pod uses {0}, and that namespace belongs to the host's users")]
    HostNamespace(&'static str),
}

/// Which pods cannot have a user namespace, and why.
#[derive(Debug, Clone)]
pub(crate) struct Refusal {
    /// A description of the pods, in the plural.
    pub(crate) who: String,
    pub(crate) why: Unavailable,
}

impl Refusal {
    /// The refusal for every pod on this machine.
    fn of_all(why: Unavailable) -> Self {
        Refusal { who: "pods".to_owned(), why }
    }

    /// What a pod gets instead of a user namespace: the host's, with one warning, or an error.
    ///
    /// # Errors
    /// The pod requires a user namespace.
    pub(crate) fn settle(
        self,
        wanted: outrigger_runtime::UserNamespace,
    ) -> Result<outrigger_runtime::UserNamespace, Fault> {
        if wanted == outrigger_runtime::UserNamespace::Required {
            return Err(Fault::config(format!("hostUsers: false is refused: {}", self.why)));
        }
        if wanted == outrigger_runtime::UserNamespace::Auto {
            warning::once(format!(
                "{} have no user namespace, so root in their containers is root on this machine: {}",
                self.who, self.why
            ));
        }
        Ok(outrigger_runtime::UserNamespace::Host)
    }
}

/// What a pod gets if the OCI runtime with this name creates its containers. User namespaces are not
/// supported there.
pub(crate) fn with_oci_runtime(
    wanted: outrigger_runtime::UserNamespace,
    name: &str,
) -> Result<outrigger_runtime::UserNamespace, Fault> {
    if rootless::standing().is_rootless() {
        // The runtime is already in a user namespace.
        return Ok(outrigger_runtime::UserNamespace::Host);
    }
    Refusal { who: format!("pods of OCI runtime {name}"), why: Unavailable::OciRuntime(name.to_owned()) }
        .settle(wanted)
}

/// The parts of the host that a pod will see.
pub(crate) struct Seen<'a> {
    /// Directories and files, with all mounts below them.
    pub(crate) volumes: &'a [PathBuf],
    /// Root file systems, without the mounts below them.
    pub(crate) roots: &'a [PathBuf],
}

/// Creates and pins a pod's user namespace with namespaces of `kinds`. The error says why that is not
/// possible here.
pub(crate) fn make(pod_dir: &Path, kinds: i32, seen: &Seen<'_>) -> Result<(Holder, UserNamespace), Refusal> {
    if !kernel_maps_layers() {
        return Err(Refusal::of_all(Unavailable::TooOld));
    }
    let first_id =
        ids::claim(pod_dir).map_err(|error| Refusal::of_all(Unavailable::NoIds(Arc::new(error))))?;
    let path = pod_dir.join("ns/user");
    let made = make_mapped(&path, kinds, first_id)
        .map_err(|error| Refusal::of_all(Unavailable::Refused(Arc::new(error))))
        .and_then(|holder| {
            let namespace = UserNamespace { path: path.clone(), first_id };
            let open = namespace
                .open()
                .map_err(|error| Refusal::of_all(Unavailable::Unreadable(Arc::new(error))))?;
            let mut tried = Tried::default();
            tried.can_map(pod_dir, open.as_fd()).map_err(Refusal::of_all)?;
            let using = |path: &Path, why| Refusal { who: format!("pods that use {}", path.display()), why };
            for root in seen.roots {
                tried.can_map(root, open.as_fd()).map_err(|why| using(root, why))?;
            }
            for volume in seen.volumes {
                if volume.starts_with(pod_dir) {
                    // Before Linux 6.3, no file system in memory supports this.
                    tried.can_map(&pod_dir.join("ns"), open.as_fd()).map_err(|why| Refusal {
                        who: "pods with Secrets or emptyDirs in memory".to_owned(),
                        why,
                    })?;
                    continue;
                }
                // Anything may be mounted below it.
                tried.try_map(volume, open.as_fd(), true).map_err(|why| using(volume, why))?;
            }
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

/// Whether a pod with its directory in `place` could have a user namespace. The error says why not.
pub(crate) fn try_here(place: &Path) -> Result<(), Unavailable> {
    if !kernel_maps_layers() {
        return Err(Unavailable::TooOld);
    }
    // Any ids can be used, because no file will belong to them.
    let holder = Holder::new(0, IDS).map_err(|error| Unavailable::Refused(Arc::new(error)))?;
    let namespace = fs::File::open(format!("/proc/{}/ns/user", holder.pid))
        .map_err(|error| Unavailable::Unreadable(Arc::new(error)))?;
    Tried::default().try_map(place, namespace.as_fd(), false)
}

/// Whether overlayfs supports id-mapped mounts as its layers.
fn kernel_maps_layers() -> bool {
    is_new_enough(&rustix::system::uname().release().to_string_lossy())
}

fn is_new_enough(release: &str) -> bool {
    let mut numbers =
        release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse::<u32>().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (5, 19)
}

/// Mounts that were only made to check whether they are possible. Removing one makes the kernel wait for a
/// grace period, and nobody has to wait for that here.
#[derive(Default)]
struct Tried(Vec<OwnedFd>);

impl Drop for Tried {
    fn drop(&mut self) {
        let mounts = std::mem::take(&mut self.0);
        if !mounts.is_empty() {
            // If no thread can be started, they are dropped here.
            let _ = std::thread::Builder::new().spawn(move || drop(mounts));
        }
    }
}

impl Tried {
    /// Whether the file system of a path supports id-mapped mounts. This is checked once for each file
    /// system.
    fn can_map(&mut self, path: &Path, namespace: BorrowedFd<'_>) -> Result<(), Unavailable> {
        static KNOWN: Mutex<BTreeMap<(i64, u64), Result<(), Unavailable>>> = Mutex::new(BTreeMap::new());
        let path = existing(path);
        let identify = || -> io::Result<(i64, u64)> {
            #[allow(clippy::unnecessary_cast, reason = "the type differs between architectures")]
            let kind = rustix::fs::statfs(path)?.f_type as i64;
            // All file systems in memory behave the same.
            #[allow(clippy::unnecessary_cast, reason = "the type differs between architectures")]
            let is_tmpfs = kind == libc::TMPFS_MAGIC as i64;
            Ok((kind, if is_tmpfs { 0 } else { rustix::fs::stat(path)?.st_dev }))
        };
        let key = identify().map_err(|error| unmappable(path, error))?;
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        known.entry(key).or_insert_with(|| self.try_map(path, namespace, false)).clone()
    }

    /// Whether an existing or future path supports id-mapped mounts, and the mounts below it do if
    /// `recursive`.
    fn try_map(
        &mut self,
        path: &Path,
        namespace: BorrowedFd<'_>,
        recursive: bool,
    ) -> Result<(), Unavailable> {
        let there = existing(path);
        // A path that is created later has no mounts below it.
        let recursive = recursive && there == path;
        let mount = clone_mount(there, recursive).map_err(|error| unmappable(there, error))?;
        let mapped = map_ids(mount.as_fd(), namespace, recursive);
        self.0.push(mount);
        mapped.map_err(|error| unmappable(there, error))
    }
}

/// A path, or its nearest existing parent.
fn existing(path: &Path) -> &Path {
    path.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"))
}

fn unmappable(path: &Path, error: io::Error) -> Unavailable {
    Unavailable::Unmappable { path: path.to_owned(), error: Arc::new(error) }
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
