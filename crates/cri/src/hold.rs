//! Keeps the connection of a crashed node open for a while.
//!
//! A runtime abandons the work for a client that goes away. For example, containerd kills a program that it
//! has just started. The next node process could not distinguish such a start from one that never happened.
//! Another process therefore keeps the connection open too, so that the last request is completed.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::process::Stdio;
use std::time::Duration;

use rustix::io::Errno;
use tokio::net::UnixStream;
use tokio::process::{Child, Command};

/// Longer than any call that must not be interrupted.
const HOLD: Duration = Duration::from_secs(30);

/// A process that keeps a connection open while this value exists, and [`HOLD`] longer.
pub(super) struct Held {
    _pipe: io::PipeWriter,
    _child: Child,
}

/// Starts a process that keeps a connection open.
pub(super) fn hold(connection: &UnixStream, command: &[OsString]) -> io::Result<Option<Held>> {
    let Some((program, arguments)) = command.split_first() else { return Ok(None) };
    let connection = connection.as_fd().try_clone_to_owned()?;
    let (ours, pipe) = io::pipe()?;
    let mut command = Command::new(program);
    command.args(arguments).env_clear().process_group(0);
    command.stdin(Stdio::from(connection)).stdout(Stdio::from(ours)).stderr(Stdio::null());
    Ok(Some(Held { _pipe: pipe, _child: command.spawn()? }))
}

/// The main function of that process. It waits until its parent ends, and then a while longer. Its standard
/// input is the connection. Its standard output is the end of a pipe that closes when the parent ends.
pub fn hold_connection() {
    let mut byte = [0];
    while let Ok(1..) | Err(Errno::INTR) = rustix::io::read(io::stdout(), &mut byte) {}
    let end = std::time::Instant::now() + HOLD;
    while let Some(left) = end.checked_duration_since(std::time::Instant::now()) {
        std::thread::park_timeout(left.max(Duration::from_millis(1)));
    }
}
