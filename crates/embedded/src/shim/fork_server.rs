//! The fork server: the process from which shims are forked.
//!
//! Executing the program for every container would take longer than anything else that a shim does. The
//! binary is large, and must be linked and relocated each time. It is therefore executed once for all
//! containers of an agent, and then forked. A forked shim is like an executed one: [`become_shim`] resets or
//! closes what it inherits.
//!
//! The agent sends the id of a container, together with the control socket of its shim. It gets the shim's
//! pid with a handle of its process, or an error number. The fork server ends with the agent; its shims do
//! not.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use super::server;
use crate::{seccomp, socket, sys};

/// The length of an answer: a pid, or a negative error number.
pub(crate) const ANSWER: usize = 4;

/// The maximum length of the id of a container.
pub(crate) const ID_MAX: usize = 64;

/// The last argument of the fork server. It reserves space for the id of a container in the arguments of its
/// shim.
pub(crate) fn room_for_id() -> String {
    "-".repeat(ID_MAX)
}

/// Forks shims until the agent goes away. Returns in the fork server after that, and in each shim after its
/// container's end.
pub(super) fn run(control: OwnedFd, args: &[OsString]) -> io::Result<()> {
    // The kernel reaps the shims, because their agent has a handle.
    sys::ignore_signal(libc::SIGCHLD);
    // This also works if the fork server is stopped and cannot notice the end of its agent. Shims do not
    // inherit this setting.
    sys::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as u64)?;
    seccomp::prepare();
    let room: usize = args.iter().map(|arg| arg.len() + 1).sum();
    loop {
        let (mut id, mut fds) = ([0; ID_MAX], Vec::new());
        let length = socket::receive(control.as_fd(), &mut id, &mut fds)?;
        if length == 0 {
            return Ok(());
        }
        let Some(of_shim) = fds.pop() else {
            return Err(io::Error::other("a request came without a socket"));
        };
        match sys::clone3(0, None) {
            Ok(sys::Cloned::Child) => {
                drop(control);
                become_shim(&id[..length], room)?;
                return server::run(of_shim);
            }
            Ok(sys::Cloned::Parent { pid, pidfd }) => answer(&control, pid, Some(pidfd)),
            Err(error) => answer(&control, -error.raw_os_error().unwrap_or(libc::EAGAIN), None),
        }
    }
}

fn answer(control: &OwnedFd, number: i32, handle: Option<OwnedFd>) {
    let handle: Vec<_> = handle.iter().map(AsFd::as_fd).collect();
    // If the agent has ended, the next receive notices it.
    let _ = socket::send(control.as_fd(), &number.to_ne_bytes(), &handle);
}

/// Does for a forked shim what [`super::take_control`] does for an executed one. A list of processes shows
/// the container of each shim.
fn become_shim(id: &[u8], room: usize) -> io::Result<()> {
    sys::default_signal(libc::SIGCHLD);
    rustix::process::setsid()?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    // This is not worth failing for.
    let _ = sys::replace_last_arguments(room, &[b"container\0", id].concat());
    Ok(())
}
