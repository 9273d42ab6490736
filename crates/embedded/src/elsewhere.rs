//! Finds pods whose mounts are in another mount namespace.
//!
//! The namespaces of a pod and the state of its containers are in a tmpfs. Only one mount namespace shows
//! this tmpfs, and the namespaces that were copied from it later. To a process in any other mount namespace,
//! the pod seems to have lost everything, although its containers run. Their shims keep that mount namespace
//! alive, so it is found through them.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::fs::{Mode, OFlags, ResolveFlags, fstat, open, openat2};

use super::cgroup::{self, Hierarchies};
use super::protocol::SandboxState;
use super::{layout, rootless, sandbox};
use outrigger_runtime::ownership;

/// Where a pod runs that is not visible from here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Elsewhere {
    /// In the mount namespace of this process.
    WithProcess(i32),
    /// In another pid namespace as well.
    Unseen,
}

/// Where the pod of a directory runs, if it does not run here.
pub(super) fn of_pod(pod_dir: &Path, hierarchies: &Hierarchies) -> Option<Elsewhere> {
    // Without root, only the run itself sees that tmpfs. What others must find is on disk.
    if rootless::standing().is_rootless() {
        return None;
    }
    let state: SandboxState = layout::read_json(&pod_dir.join("sandbox.json"))?;
    let own = open(pod_dir, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let is_here =
        open(&state.dir, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).is_ok_and(|dir| is_same(&dir, &own));
    if is_here && sandbox::is_pinned(&state) {
        return None;
    }
    holder(&state.dir, &own).map(Elsewhere::WithProcess).or_else(|| {
        hierarchies.has_unseen_processes(&cgroup::sandbox_path(&state.id.0)).then_some(Elsewhere::Unseen)
    })
}

/// Refuses to be the node if some of its pods run elsewhere.
pub(super) fn refuse(state_dir: &Path, hierarchies: &Hierarchies) -> io::Result<()> {
    for entry in fs::read_dir(layout::pods_dir(state_dir))?.flatten() {
        let dir = entry.path();
        if !ownership::is_marked(&dir) {
            continue;
        }
        let Some(place) = of_pod(&dir, hierarchies) else { continue };
        let (pod, state_dir) = (dir.file_name().unwrap_or_default().display(), state_dir.display());
        let fix = match place {
            Elsewhere::WithProcess(pid) => format!(
                "start the node there: `nsenter --mount --target {pid} outrigger node --state-dir {state_dir}`"
            ),
            Elsewhere::Unseen => "start the node where it was started before".to_owned(),
        };
        return Err(io::Error::other(format!(
            "pod {pod} of {state_dir} runs in another mount namespace, where the node was started before; from here it cannot \
             be seen, and would be started a second time; {fix}. Options of a systemd unit such as PrivateTmp= or \
             ProtectSystem= give each start a mount namespace of its own: remove them"
        )));
    }
    Ok(())
}

/// Finds a process whose mount namespace shows the mounts of the pod with this directory. The directory has
/// the path `dir` there.
fn holder(dir: &Path, own: &OwnedFd) -> Option<i32> {
    let namespace = |process: &Path, kind: &str| {
        let found = fs::metadata(process.join("ns").join(kind)).ok()?;
        Some((found.dev(), found.ino()))
    };
    let this = Path::new("/proc/self");
    let (users, mut seen) = (namespace(this, "user")?, HashSet::from([namespace(this, "mnt")?]));
    let mut found = None;
    for process in fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let path = process.path();
        // Mounts of ordinary users do not count, because users can mount anything in their own namespaces.
        if namespace(&path, "user") != Some(users) {
            continue;
        }
        let Some(mounts) = namespace(&path, "mnt") else { continue };
        if seen.insert(mounts) && has_mounts(&path.join("root"), dir, own).unwrap_or(false) {
            found = Some((mounts, pid));
        }
        // A shim lives as long as its container. Other processes may be about to end with their node.
        if let Some((holding, _)) = found
            && holding == mounts
            && is_container_shim(&path)
        {
            return Some(pid);
        }
    }
    found.map(|(_, pid)| pid)
}

/// Whether a process is the shim of one container, by its command line.
fn is_container_shim(process: &Path) -> bool {
    let command = fs::read(process.join("cmdline")).unwrap_or_default();
    command.split(|byte| matches!(byte, 0 | b' ')).skip(1).take(2).eq([&b"shim"[..], b"container"])
}

/// Whether the pod's directory with its tmpfs is at this path below a root.
fn has_mounts(root: &Path, dir: &Path, own: &OwnedFd) -> io::Result<bool> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let root = open(root, flags, Mode::empty())?;
    let inside = dir.strip_prefix("/").map_err(io::Error::other)?;
    // A link would lead out of that root.
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let below = |at: BorrowedFd<'_>, path: &Path| openat2(at, path, flags, Mode::empty(), resolve);
    let dir = below(root.as_fd(), inside)?;
    let ns = below(dir.as_fd(), Path::new("ns"))?;
    Ok(is_same(&dir, own) && fstat(&ns)?.st_dev != fstat(&dir)?.st_dev)
}

fn is_same(one: &OwnedFd, other: &OwnedFd) -> bool {
    matches!((fstat(one), fstat(other)), (Ok(a), Ok(b)) if (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino))
}
