//! The socket over which an OCI runtime sends the outer end of a container's terminal.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::Child;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::os::fd::AsRawFd as _;

use crate::{layout, socket};

/// A socket in the bundle, which is the runtime's working directory.
pub(crate) struct ConsoleSocket {
    listener: OwnedFd,
    name: String,
    dir: OwnedFd,
}

impl ConsoleSocket {
    pub(crate) fn open(dir: &Path) -> io::Result<Self> {
        let name = Self::name_for(std::process::id() as i32);
        let dir = layout::open_dir(dir)?;
        let listener =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        // Socket addresses are limited to 107 bytes, but state directories are not.
        let address = SocketAddrUnix::new(format!("/proc/self/fd/{}/{name}", dir.as_raw_fd()))?;
        rustix::net::bind(&listener, &address)?;
        rustix::net::listen(&listener, 1)?;
        Ok(ConsoleSocket { listener, name, dir })
    }

    fn name_for(pid: i32) -> String {
        format!("console-{pid}")
    }

    /// Removes the socket that a process has left.
    pub(crate) fn remove(dir: &Path, pid: i32) {
        let _ = std::fs::remove_file(dir.join(Self::name_for(pid)));
    }

    /// Its name relative to the bundle.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Waits for the terminal. `None` if the runtime ended, or took too long, without sending one.
    pub(crate) fn receive(&self, runtime: &Child, patience: Duration) -> io::Result<Option<OwnedFd>> {
        let pid = rustix::process::Pid::from_child(runtime);
        let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?;
        let mut waiting: OwnedFd = self.listener.try_clone()?;
        let mut accepted = false;
        let deadline = std::time::Instant::now() + patience;
        loop {
            let rest = deadline.saturating_duration_since(std::time::Instant::now());
            if rest.is_zero() {
                return Ok(None);
            }
            let timeout = Timespec { tv_sec: rest.as_secs() as i64, tv_nsec: i64::from(rest.subsec_nanos()) };
            let mut fds = [PollFd::new(&waiting, PollFlags::IN), PollFd::new(&pidfd, PollFlags::IN)];
            match poll(&mut fds, Some(&timeout)) {
                Err(rustix::io::Errno::INTR) => continue,
                result => result?,
            };
            let (readable, ended) = (!fds[0].revents().is_empty(), !fds[1].revents().is_empty());
            if readable && !accepted {
                waiting = rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC)?;
                accepted = true;
            } else if readable {
                let mut fds = Vec::new();
                socket::receive(waiting.as_fd(), &mut [0; 256], &mut fds)?;
                return Ok(fds.pop());
            } else if ended {
                return Ok(None);
            }
        }
    }
}

impl Drop for ConsoleSocket {
    fn drop(&mut self) {
        let _ = rustix::fs::unlinkat(&self.dir, &self.name, rustix::fs::AtFlags::empty());
    }
}
