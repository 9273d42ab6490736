//! Runs a container as another user than root if this user namespace has only one id, that is, without root
//! and without subordinate ids.
//!
//! One id is enough for a pod whose containers all run as one user. Root of the run's own user namespace
//! builds its containers, as always. The last step before the program is to join a nested user namespace, in
//! which the one id has the number of the container's user. The process has no power over the pod there,
//! because all namespaces and mounts of the pod belong to the outer user namespace.
//!
//! All files belong to the one id, and so to the container's user. Containers with different users would
//! therefore not be protected from each other, although the pod says so. [`OneId::for_container`] refuses
//! them.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use super::user::User;
use super::verify::process as verify;
use crate::fault::{Context, Fault};
use crate::protocol::SandboxState;
use crate::sys::errno_text;
use crate::userns::Holder;
use crate::{layout, rootless, sys};
use outrigger_runtime::UserFault;

const WHAT: &str = "cannot give the one id of this user to the container's user";

/// What is needed to become the user of a container. Everything that it needs from the host is open.
pub(crate) struct OneId {
    uid: u32,
    gid: u32,
    /// The host's /proc, to check the result.
    proc: OwnedFd,
}

impl OneId {
    /// Prepares the change, in a process that still sees the host's files. `None` if the user can be reached
    /// without it.
    pub(crate) fn needed_for(user: &User) -> Result<Option<Self>, Fault> {
        let (uid, gid) = (user.uid, user.gid);
        if !rootless::one_id_only() || (uid, gid) == (0, 0) {
            return Ok(None);
        }
        let proc = layout::open_dir(Path::new("/proc")).creating(|| WHAT)?;
        Ok(Some(OneId { uid, gid, proc }))
    }

    /// Like [`Self::needed_for`], for the first process of a container. It is refused if another container of
    /// its pod has another user.
    pub(super) fn for_container(user: &User, sandbox: &SandboxState) -> Result<Option<Self>, Fault> {
        if rootless::one_id_only() {
            let other = settle(&sandbox.dir.join("ns/one-id"), (user.uid, user.gid)).creating(|| WHAT)?;
            if let Some((uid, gid)) = other {
                let why = rootless::why_one_id();
                return Err(Fault::user(
                    UserFault::OtherUser,
                    format!(
                        "the container runs as user {} and group {}, and another one of its pod as user {uid} and group \
                         {gid}: {why}; or set the same runAsUser and runAsGroup for the whole pod",
                        user.uid, user.gid
                    ),
                ));
            }
        }
        Self::needed_for(user)
    }

    /// Creates a nested user namespace with one id, which is the caller's own.
    pub(super) fn make(&self) -> Result<OwnedFd, Fault> {
        let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let made =
            Holder::of_one_id((self.uid, self.gid), own).and_then(|holder| holder.open_user_namespace());
        match made {
            // Namespaces are forbidden or limited here. Waiting does not change that.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSPC)) => {
                let why = errno_text(&error);
                let text = format!(
                    "user {} does not exist here: a nested user namespace is refused ({why}); allow more of them with \
                     `sysctl -w user.max_user_namespaces=15000`, or set runAsUser: 0 and runAsGroup: 0",
                    self.uid
                );
                Err(Fault::user(UserFault::NoSuchId, text))
            }
            made => made.creating(|| WHAT),
        }
    }

    /// Joins the nested namespace. `namespace` is the namespace itself, or the pidfd of a process in it.
    pub(crate) fn join(&self, namespace: BorrowedFd<'_>) -> Result<(), Fault> {
        sys::setns(namespace, libc::CLONE_NEWUSER).creating(|| WHAT)?;
        // Joining may have undone both settings.
        sys::prctl(libc::PR_SET_DUMPABLE, 0).creating(|| WHAT)?;
        sys::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as u64).creating(|| WHAT)?;
        verify::check_one_id((self.uid, self.gid), |name| self.read(name))
    }

    /// Reads a file of this process in the host's /proc, because the container's /proc may not show this
    /// process.
    fn read(&self, name: &str) -> io::Result<String> {
        let path = Path::new("self").join(name);
        let file =
            rustix::fs::openat(self.proc.as_fd(), &path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        io::read_to_string(fs::File::from(file))
    }
}

/// Stores the ids of a pod's first container. Returns the stored ids if they are different.
fn settle(path: &Path, ids: (u32, u32)) -> io::Result<Option<(u32, u32)>> {
    // The containers of a pod are created concurrently. A link is used because it never exists with only a
    // part of its text.
    match std::os::unix::fs::symlink(format!("{}:{}", ids.0, ids.1), path) {
        Ok(()) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let noted = fs::read_link(path)?;
            let noted = std::str::from_utf8(noted.as_os_str().as_bytes()).ok().and_then(|text| {
                let (uid, gid) = text.split_once(':')?;
                Some((uid.parse().ok()?, gid.parse().ok()?))
            });
            let noted = noted.ok_or_else(|| io::Error::other(format!("{} is damaged", path.display())))?;
            Ok(Some(noted).filter(|noted| *noted != ids))
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_has_the_ids_of_its_first_container() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("one-id");
        assert_eq!(settle(&path, (1000, 0)).unwrap(), None);
        assert_eq!(settle(&path, (1000, 0)).unwrap(), None);
        assert_eq!(settle(&path, (0, 0)).unwrap(), Some((1000, 0)));
        assert_eq!(settle(&path, (1000, 1000)).unwrap(), Some((1000, 0)));
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("1000", &path).unwrap();
        assert!(settle(&path, (1000, 0)).is_err());
    }
}
