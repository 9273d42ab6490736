//! Holds the connection of a node that died open for a while.
//!
//! A runtime gives up what it is doing for a client that goes away: containerd kills a program that it has just started,
//! and the next node could not tell such a start from one that never was. So another process has the connection open
//! too, and what was asked for last is done to its end.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::process::Stdio;
use std::time::Duration;

use rustix::io::Errno;
use tokio::net::UnixStream;
use tokio::process::{Child, Command};

/// Longer than any call takes that must not be broken off.
const HOLD: Duration = Duration::from_secs(30);

/// A process that holds a connection, as long as this is there, and a while longer.
pub(super) struct Held {
    _pipe: io::PipeWriter,
    _child: Child,
}

/// Starts a process that holds a connection.
pub(super) fn hold(connection: &UnixStream, command: &[OsString]) -> io::Result<Option<Held>> {
    let Some((program, arguments)) = command.split_first() else { return Ok(None) };
    let connection = connection.as_fd().try_clone_to_owned()?;
    let (ours, pipe) = io::pipe()?;
    let mut command = Command::new(program);
    command.args(arguments).env_clear().process_group(0);
    command.stdin(Stdio::from(connection)).stdout(Stdio::from(ours)).stderr(Stdio::null());
    Ok(Some(Held { _pipe: pipe, _child: command.spawn()? }))
}

/// What the process does: waits for the end of whoever started it, and then a while. Its standard input is the connection, its
/// standard output the end of a pipe that is closed at that end.
pub fn hold_connection() {
    let mut byte = [0];
    while let Ok(1..) | Err(Errno::INTR) = rustix::io::read(io::stdout(), &mut byte) {}
    let end = std::time::Instant::now() + HOLD;
    while let Some(left) = end.checked_duration_since(std::time::Instant::now()) {
        std::thread::park_timeout(left.max(Duration::from_millis(1)));
    }
}
