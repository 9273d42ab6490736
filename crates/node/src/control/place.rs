//! The directory of control sockets: one directory per user, one socket per run.
//!
//! The directory belongs to the user and is not accessible to others. The name of a socket is never reused. A
//! socket without a listener was left behind by a killed run.

use std::ffi::{CStr, OsString};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use outrigger_runtime::rootless;
use rustix::fs::{AtFlags, Mode, OFlags};

/// The environment variable that overrides the directory.
const VARIABLE: &str = "OUTRIGGER_RUNTIME_DIR";

/// A user's directory of sockets.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    dir: Arc<OwnedFd>,
}

/// The socket of a run. It is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Bound {
    place: Place,
    name: String,
}

impl Drop for Bound {
    fn drop(&mut self) {
        self.place.remove(&self.name);
    }
}

/// The directory of the user's runs.
fn path() -> PathBuf {
    // A run without root is root in its own user namespace, but its clients are not.
    let user = rootless::real_uid();
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    match variable(VARIABLE) {
        Some(path) => path,
        // Root ignores the user's variables, which sudo may have kept.
        None if user == 0 => PathBuf::from("/run/outrigger"),
        None => match variable("XDG_RUNTIME_DIR").filter(|dir| dir.is_absolute()) {
            Some(dir) => dir.join("outrigger"),
            None => PathBuf::from(format!("/tmp/outrigger-{user}")),
        },
    }
}

impl Place {
    /// Opens the directory, creating it if missing.
    pub(crate) fn make() -> io::Result<Self> {
        let path = path();
        match std::fs::DirBuilder::new().mode(0o700).create(&path) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(within(&path, &e)),
            _ => Self::open_at(&path),
        }
    }

    /// Opens the directory if it exists.
    pub(crate) fn find() -> io::Result<Option<Self>> {
        match Self::open_at(&path()) {
            Ok(place) => Ok(Some(place)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    pub(super) fn open_at(path: &Path) -> io::Result<Self> {
        // Below /tmp, other users could create it first. So symbolic links and other owners are rejected.
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
        let dir = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| within(path, &e.into()))?;
        let stat = rustix::fs::fstat(&dir).map_err(|e| within(path, &e.into()))?;
        let mode = stat.st_mode & 0o777;
        if stat.st_uid != rustix::process::geteuid().as_raw() || mode & 0o077 != 0 {
            return Err(io::Error::other(format!(
                "{} belongs to user {} and has mode {mode:03o}: it must be yours, with mode 700; remove it, or name \
                 another with {VARIABLE}",
                path.display(),
                stat.st_uid
            )));
        }
        Ok(Place { dir: Arc::new(dir) })
    }

    /// A path for an entry that is short enough for a socket address (107 bytes).
    fn at(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/{name}", self.dir.as_raw_fd()))
    }

    /// Listens on a new socket. It gets its final name only once it listens, so that nothing takes it for a
    /// socket that was left behind.
    pub(crate) fn bind(&self, run_id: &str) -> io::Result<(UnixListener, Bound)> {
        let name = format!("{}-{run_id}.sock", std::process::id());
        let early = Bound { place: self.clone(), name: format!(".{name}") };
        let listener = UnixListener::bind(self.at(&early.name))?;
        std::fs::set_permissions(self.at(&early.name), PermissionsExt::from_mode(0o600))?;
        rustix::fs::renameat(&*self.dir, &*early.name, &*self.dir, &*name)?;
        listener.set_nonblocking(true)?;
        Ok((listener, Bound { place: self.clone(), name }))
    }

    /// Sockets of runs, lowest pid first.
    pub(crate) fn sockets(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&*self.dir)? {
            let entry = entry?;
            let Some(name) = text(entry.file_name()) else { continue };
            match name.strip_prefix('.') {
                Some(early) if is_dead(early) => self.remove(&name),
                None if name.ends_with(".sock") => names.push(name),
                _ => {}
            }
        }
        names.sort_by_key(|name| (pid(name), name.clone()));
        Ok(names)
    }

    /// Connects to a run. Returns `None` and removes the socket if the run has ended.
    pub(crate) fn connect(&self, name: &str) -> io::Result<Option<UnixStream>> {
        match UnixStream::connect(self.at(name)) {
            Ok(stream) => {
                stream.set_nonblocking(true)?;
                Ok(Some(stream))
            }
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
                self.remove(name);
                Ok(None)
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Removes sockets without a listener.
    pub(crate) fn clean(&self) {
        for name in self.sockets().unwrap_or_default() {
            // A live run only sees a client that connects and disconnects.
            if is_dead(&name) {
                let _gone = self.connect(&name);
            }
        }
    }

    fn remove(&self, name: &str) {
        // A missing socket or directory is fine.
        let _ = rustix::fs::unlinkat(&*self.dir, name, AtFlags::empty());
    }
}

/// The pid in a socket's name.
pub(crate) fn pid(name: &str) -> Option<u32> {
    name.split_once('-')?.0.parse().ok()
}

/// Whether the process in a socket's name has certainly ended.
fn is_dead(name: &str) -> bool {
    pid(name).is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists())
}

fn text(name: &CStr) -> Option<String> {
    name.to_str().ok().map(str::to_owned).filter(|name| !matches!(name.as_str(), "." | ".."))
}

fn within(path: &Path, error: &io::Error) -> io::Error {
    let mut at = OsString::from(path);
    at.push(format!(": {error}"));
    io::Error::new(error.kind(), at.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn dir(mode: u32) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(mode)).unwrap();
        dir
    }

    #[test]
    fn a_socket_is_there_while_its_run_is_and_cleaned_after_a_crash() {
        let dir = dir(0o700);
        let place = Place::open_at(dir.path()).unwrap();
        let (listener, bound) = place.bind("abc").unwrap();
        let name = format!("{}-abc.sock", std::process::id());
        assert_eq!(place.sockets().unwrap(), std::slice::from_ref(&name));
        let mode = std::fs::metadata(dir.path().join(&name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(place.connect(&name).unwrap().is_some());
        drop(bound);
        assert!(place.sockets().unwrap().is_empty());
        let (dead, bound) = place.bind("dead").unwrap();
        drop((dead, listener));
        std::mem::forget(bound);
        let name = place.sockets().unwrap().remove(0);
        assert!(place.connect(&name).unwrap().is_none(), "nobody listens");
        assert!(place.sockets().unwrap().is_empty(), "it was removed");
    }

    #[test]
    fn a_directory_of_others_is_not_trusted() {
        let open = dir(0o750);
        let refused = Place::open_at(open.path()).unwrap_err().to_string();
        assert!(refused.contains("has mode 750: it must be yours"), "{refused}");
        let (own, other) = (dir(0o700), dir(0o700));
        let link = other.path().join("link");
        symlink(own.path(), &link).unwrap();
        assert!(Place::open_at(&link).is_err(), "a link");
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(own.path(), Some(65534), None).unwrap();
            let refused = Place::open_at(own.path()).unwrap_err().to_string();
            assert!(refused.contains("belongs to user 65534"), "{refused}");
        }
    }
}
