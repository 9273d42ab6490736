//! The process that ends pasta or slirp4netns when the run ends for any reason.
//!
//! `shim uplink NAMESPACE PROGRAM ARGUMENTS` forks it as the first process of a pid namespace, and ends. It
//! starts the program, and waits until the socket to the run is closed or the program ends. The kernel then
//! ends the program together with its pid namespace, whatever the program does.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;

use rustix::event::{PollFd, PollFlags, poll};

use crate::sys;

/// Runs `shim uplink`. The arguments are the network namespace, the program and its arguments. The program
/// gets the namespace as its standard input, because pasta drops the privilege to see other processes'
/// descriptors before it opens it.
pub(super) fn run(control: OwnedFd, args: &[OsString]) -> io::Result<()> {
    let [namespace, program, arguments @ ..] = args else {
        return Err(io::Error::other("the program is missing"));
    };
    let namespace = File::open(namespace)?;
    match sys::clone3(libc::CLONE_NEWPID, None)? {
        sys::Cloned::Child => {
            let _ = guard(&control, namespace, program, arguments);
            sys::exit_now(1)
        }
        sys::Cloned::Parent { .. } => Ok(()),
    }
}

fn guard(control: &OwnedFd, namespace: File, program: &OsString, arguments: &[OsString]) -> io::Result<()> {
    let signals = sys::signalfd(&[libc::SIGCHLD])?;
    // A reader of the run's standard error would otherwise wait for its end.
    rustix::stdio::dup2_stderr(rustix::stdio::stdin())?;
    rustix::stdio::dup2_stdout(rustix::stdio::stdin())?;
    let child = Command::new(program)
        .args(arguments)
        .stdin(namespace)
        .stdout(control.try_clone()?)
        .stderr(control.try_clone()?)
        .spawn();
    let child = match child {
        Ok(child) => child.id() as i32,
        Err(error) => {
            let _ = rustix::io::write(control, error.to_string().as_bytes());
            return Ok(());
        }
    };
    loop {
        let mut ready =
            [PollFd::new(control, PollFlags::IN), PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN)];
        match poll(&mut ready, None) {
            Err(rustix::io::Errno::INTR) => continue,
            result => result?,
        };
        // Nothing is ever sent here, so this is the end of the run.
        if !ready[0].revents().is_empty() {
            return Ok(());
        }
        let _ = rustix::io::read(&signals, &mut [0; 128]);
        while let Some(reaped) = sys::reap(-1, false) {
            if reaped.pid == child {
                return Ok(());
            }
        }
    }
}
