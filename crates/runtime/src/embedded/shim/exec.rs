//! Commands run inside a container: probes and hooks.

use std::fs;
use std::io::Read as _;
use std::os::fd::{AsFd, OwnedFd};

use rustix::pipe::{PipeFlags, pipe_with};

use super::create::Container;
use crate::embedded::container::process::run_program;
use crate::embedded::fault::{Context, Fault};
use crate::embedded::sys;

/// A command that runs.
pub(super) struct Exec {
    /// The connection that asked for it.
    pub(super) client: u64,
    /// Its number on that connection.
    pub(super) id: u64,
    pub(super) pid: i32,
    /// Why it could not be exec'd, if it could not.
    failure: OwnedFd,
}

impl Exec {
    /// Forks the command into the container.
    pub(super) fn start(
        container: &Container,
        client: u64,
        id: u64,
        command: &[String],
        output: OwnedFd,
    ) -> Result<Self, Fault> {
        if command.is_empty() {
            return Err(Fault::start("the command is empty"));
        }
        let what = || "cannot fork into the container";
        let (failure, report) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).creating(what)?;
        match sys::clone3(0, container.limits.unified()).creating(what)? {
            sys::Cloned::Child => {
                let fault = become_command(container, command, &output);
                if let Ok(message) = serde_json::to_vec(&fault) {
                    let _ = rustix::io::write(&report, &message);
                }
                sys::exit_now(128)
            }
            sys::Cloned::Parent { pid, .. } => Ok(Exec { client, id, pid, failure }),
        }
    }

    /// What came of it, once its process was reaped.
    pub(super) fn finish(self, code: i32) -> Result<i32, Fault> {
        let mut message = Vec::new();
        // The pipe does not block; nothing in it means that the exec succeeded.
        let _ = fs::File::from(self.failure).read_to_end(&mut message);
        match serde_json::from_slice::<Fault>(&message) {
            Ok(fault) => Err(fault),
            Err(_) => Ok(code),
        }
    }

    /// Kills the command and what it started.
    pub(super) fn kill(&self) {
        for pid in descendants(self.pid) {
            let _ = sys::kill(pid, libc::SIGKILL);
        }
        // It leads its own session: whatever stayed in its group goes with it.
        let _ = sys::kill(-self.pid, libc::SIGKILL);
        let _ = sys::kill(self.pid, libc::SIGKILL);
    }
}

fn become_command(container: &Container, command: &[String], output: &OwnedFd) -> Fault {
    match join(container, output) {
        Ok(()) => run_program(&container.profile, &container.user, command),
        Err(fault) => fault,
    }
}

fn join(container: &Container, output: &OwnedFd) -> Result<(), Fault> {
    let what = || "cannot join the container";
    sys::prctl(libc::PR_SET_DUMPABLE, 0).creating(what)?;
    rustix::process::setsid().creating(what)?;
    // Refused for the container's first process means refused here; that was told then.
    let _ = container.limits.adopt(0);
    if let Some(adj) = container.oom_score_adj {
        let _ = fs::write("/proc/self/oom_score_adj", adj.to_string());
    }
    let user = &container.user;
    let (uid, gid) = (rustix::fs::Uid::from_raw(user.uid), rustix::fs::Gid::from_raw(user.gid));
    rustix::fs::fchown(output, Some(uid), Some(gid)).creating(what)?;
    // Standard input is /dev/null since the shim's own start.
    rustix::stdio::dup2_stdout(output).creating(what)?;
    rustix::stdio::dup2_stderr(output).creating(what)?;
    let namespaces = libc::CLONE_NEWNS
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWNET
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWCGROUP;
    sys::setns(container.pidfd.as_fd(), namespaces).creating(what)?;
    sys::cloexec_from(3).creating(what)?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    sys::reset_signals();
    Ok(())
}

/// Children of a process, their children, and so on.
fn descendants(pid: i32) -> Vec<i32> {
    let mut found = Vec::new();
    let mut pending = vec![pid];
    while let Some(pid) = pending.pop() {
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        for child in children.split_whitespace().filter_map(|child| child.parse().ok()) {
            // A tree larger than this is a fork bomb, which only the container's own end can stop.
            if found.len() < 4096 {
                found.push(child);
                pending.push(child);
            }
        }
    }
    found
}
