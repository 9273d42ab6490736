//! Commands run inside a container: probes, hooks, and what people want to see.

use std::fs;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::pipe::{PipeFlags, pipe_with};
use rustix::termios::{Winsize, tcsetwinsize};

use super::create::Container;
use crate::embedded::container::process::run_program;
use crate::embedded::container::root::Root;
use crate::embedded::container::terminal;
use crate::embedded::container::user::User;
use crate::embedded::fault::{Context, Fault};
use crate::embedded::protocol::Streams;
use crate::embedded::{layout, socket, sys};

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
        streams: Streams,
        fds: &[OwnedFd],
    ) -> Result<Self, Fault> {
        if command.is_empty() {
            return Err(Fault::start("the command is empty"));
        }
        let what = || "cannot fork into the container";
        let (failure, report) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).creating(what)?;
        match sys::clone3(0, container.limits.unified()).creating(what)? {
            sys::Cloned::Child => {
                let fault = become_command(container, command, streams, fds);
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
        kill_tree(self.pid);
    }
}

/// Kills a process that leads its own session, and what it started.
pub(crate) fn kill_tree(pid: i32) {
    for child in descendants(pid) {
        let _ = sys::kill(child, libc::SIGKILL);
    }
    // Whatever stayed in its group goes with it.
    let _ = sys::kill(-pid, libc::SIGKILL);
    let _ = sys::kill(pid, libc::SIGKILL);
}

fn become_command(container: &Container, command: &[String], streams: Streams, fds: &[OwnedFd]) -> Fault {
    let mut profile = container.profile.clone();
    if matches!(streams, Streams::Terminal(_)) && !profile.env.iter().any(|(name, _)| name == "TERM") {
        profile.env.push(("TERM".to_owned(), "xterm".to_owned()));
    }
    match join(container, streams, fds) {
        Ok(()) => run_program(&profile, &container.user, command),
        Err(fault) => fault,
    }
}

fn join(container: &Container, streams: Streams, fds: &[OwnedFd]) -> Result<(), Fault> {
    let what = || "cannot join the container";
    sys::prctl(libc::PR_SET_DUMPABLE, 0).creating(what)?;
    rustix::process::setsid().creating(what)?;
    // Refused for the container's first process means refused here; that was told then.
    let _ = container.limits.adopt(0);
    if let Some(adj) = container.oom_score_adj {
        let _ = fs::write("/proc/self/oom_score_adj", adj.to_string());
    }
    let namespaces = libc::CLONE_NEWNS
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWNET
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWCGROUP;
    sys::setns(container.pidfd.as_fd(), namespaces).creating(what)?;
    connect(&container.user, streams, fds).creating(what)?;
    sys::cloexec_from(3).creating(what)?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    sys::reset_signals();
    Ok(())
}

/// Connects the standard streams. They belong to the user, so that /dev/stdout can be opened by name.
fn connect(user: &User, streams: Streams, fds: &[OwnedFd]) -> io::Result<()> {
    let (uid, gid) = (rustix::fs::Uid::from_raw(user.uid), rustix::fs::Gid::from_raw(user.gid));
    // Standard input is /dev/null since the shim's own start.
    let (stdin, stdout, stderr) = match (streams, fds) {
        (Streams::Output, [output]) => (None, output, output),
        (Streams::Pipes { stdin: false }, [stdout, stderr]) => (None, stdout, stderr),
        (Streams::Pipes { stdin: true }, [stdout, stderr, stdin]) => (Some(stdin), stdout, stderr),
        (Streams::Terminal(size), [socket]) => {
            let root = Root::new(layout::open_dir(Path::new("/"))?);
            let (outer, inner) = terminal::open_pair(&root)?;
            let size = Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 };
            tcsetwinsize(&outer, size)?;
            rustix::fs::fchown(&inner, Some(uid), None)?;
            socket::send(socket.as_fd(), &[0], &[outer.as_fd()])?;
            rustix::stdio::dup2_stdin(&inner)?;
            rustix::stdio::dup2_stdout(&inner)?;
            rustix::stdio::dup2_stderr(&inner)?;
            return sys::set_controlling_terminal(inner.as_fd());
        }
        _ => return Err(io::Error::from_raw_os_error(libc::EBADF)),
    };
    for fd in stdin.into_iter().chain([stdout, stderr]) {
        rustix::fs::fchown(fd, Some(uid), Some(gid))?;
    }
    if let Some(stdin) = stdin {
        rustix::stdio::dup2_stdin(stdin)?;
    }
    rustix::stdio::dup2_stdout(stdout)?;
    rustix::stdio::dup2_stderr(stderr)?;
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
