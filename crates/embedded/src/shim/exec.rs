//! Runs commands in a container: probes, hooks, and `exec`.

use std::fs;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::termios::{Winsize, tcsetwinsize};

use super::create::Container;
use crate::container::one_id::OneId;
use crate::container::process::Launch;
use crate::container::root::{Root, reopen};
use crate::container::terminal;
use crate::fault::{Context, Fault};
use crate::protocol::Streams;
use crate::sys::PidSlot;
use crate::userns::host_id;
use crate::{layout, rootless, socket, sys};
use outrigger_runtime::processes::{Process, kill_tree};

/// A command that is running, or is being started in the container.
pub(super) struct Exec {
    /// The connection that requested it.
    pub(super) client: u64,
    /// Its number on that connection.
    pub(super) id: u64,
    /// The process that joins the container and forks the command there. With an OCI runtime, it is the
    /// process that runs the runtime and is then the command's parent.
    joining: Process,
    /// The slot in which it stores the command's pid.
    slot: PidSlot,
    cancelled: bool,
    /// The pipe with the exec error, if there was one.
    failure: OwnedFd,
}

impl Exec {
    /// Starts the command in the container.
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
        let slot = PidSlot::new().creating(what)?;
        match sys::clone3(0, container.limits.unified()).creating(what)? {
            sys::Cloned::Child => {
                if let Some(oci) = &container.oci {
                    oci.exec_and_exit(container, command, streams, fds, &report)
                }
                let joining = Joining { container, command, streams, fds, slot: &slot, report: &report };
                joining.run()
            }
            sys::Cloned::Parent { pid, pidfd } => {
                let joining = Process::new(pid, pidfd);
                Ok(Exec { client, id, joining, slot, cancelled: false, failure })
            }
        }
    }

    /// Whether the command has ended when the process `pid` has ended.
    pub(super) fn ends_with(&self, pid: i32) -> bool {
        match self.slot.get() {
            Some(command) => command == pid,
            None => self.joining.pid() == pid,
        }
    }

    /// Handles the end of a process that was not the command itself.
    pub(super) fn saw_end_of(&self, pid: i32) {
        // If the process was killed early, it may have forked the command just before.
        if pid == self.joining.pid() && self.cancelled {
            self.kill_command();
        }
    }

    /// The pid of the process that was forked for the command.
    pub(super) fn forked(&self) -> i32 {
        self.joining.pid()
    }

    /// The result, after the command's process was reaped.
    pub(super) fn finish(self, code: i32) -> Result<i32, Fault> {
        let mut message = Vec::new();
        // The pipe does not block. If it is empty, the exec succeeded.
        let _ = fs::File::from(self.failure).read_to_end(&mut message);
        match serde_json::from_slice::<Fault>(&message) {
            Ok(fault) => Err(fault),
            Err(_) => Ok(code),
        }
    }

    /// Kills the command and its children.
    pub(super) fn kill(&mut self) {
        self.cancelled = true;
        kill_tree(&self.joining);
        self.kill_command();
    }

    /// Kills the command. It is a child of the shim until it is reaped, and this value does not exist after
    /// that.
    fn kill_command(&self) {
        if let Some(command) = self.slot.get().and_then(Process::child) {
            kill_tree(&command);
        }
    }
}

/// The process that joins the container's namespaces and forks the command there.
struct Joining<'a> {
    container: &'a Container,
    command: &'a [String],
    streams: Streams,
    fds: &'a [OwnedFd],
    slot: &'a PidSlot,
    report: &'a OwnedFd,
}

impl Joining<'_> {
    fn run(&self) -> ! {
        let mut profile = self.container.profile.clone();
        let terminal = matches!(self.streams, Streams::Terminal(_));
        if terminal && !profile.env.iter().any(|(name, _)| name == "TERM") {
            profile.env.push(("TERM".to_owned(), "xterm".to_owned()));
        }
        if let Err(fault) = self.join() {
            report(self.report.as_fd(), fault);
            sys::exit_now(128)
        }
        let launch = Launch {
            profile: &profile,
            user: &self.container.user,
            command: self.command,
            terminal,
            fork: Some(self.slot),
            report_to: self.report.as_fd(),
        };
        launch.run(report)
    }

    /// Joins all namespaces. Only children of this process are in the pid namespace, so no process in the
    /// container sees this process while it holds anything of the host.
    fn join(&self) -> Result<(), Fault> {
        let container = self.container;
        let what = || "cannot join the container";
        sys::prctl(libc::PR_SET_DUMPABLE, 0).creating(what)?;
        sys::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as u64).creating(what)?;
        rustix::process::setsid().creating(what)?;
        container.profile.confine_on_exec()?;
        container.limits.join_self().creating(what)?;
        if let Some(adj) = container.oom_score_adj {
            let _ = fs::write("/proc/self/oom_score_adj", adj.to_string());
        }
        // This is a separate descriptor, because the flags of a shared one would be shared with other
        // commands.
        let null = container.null.as_ref().ok_or(Errno::BADF).creating(what)?;
        let null = reopen(null.as_fd(), OFlags::RDWR).creating(what)?;
        self.give_streams().creating(what)?;
        let one_id = OneId::needed_for(&container.user)?;
        let user = if container.userns.is_some() { libc::CLONE_NEWUSER } else { 0 };
        let namespaces = user | rootless::namespaces_to_join(container.pid);
        sys::setns(container.pidfd.as_fd(), namespaces).creating(what)?;
        if container.userns.is_some() {
            sys::become_root().creating(what)?;
            // Joining has undone both settings.
            sys::prctl(libc::PR_SET_DUMPABLE, 0).creating(what)?;
            sys::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as u64).creating(what)?;
        }
        self.connect(&null).creating(what)?;
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
        // This comes last, because it gives up the power over everything else.
        one_id.map_or(Ok(()), |one_id| one_id.join(container.pidfd.as_fd()))
    }

    /// Gives the pipes to the user, so that /dev/stdout can be opened by name.
    fn give_streams(&self) -> io::Result<()> {
        if matches!(self.streams, Streams::Terminal(_)) {
            return Ok(());
        }
        let Container { user, userns, .. } = self.container;
        let uid = rustix::fs::Uid::from_raw(host_id(userns.as_ref(), user.uid));
        let gid = rustix::fs::Gid::from_raw(host_id(userns.as_ref(), user.gid));
        for fd in self.fds {
            rustix::fs::fchown(fd, Some(uid), Some(gid))?;
        }
        Ok(())
    }

    /// Connects the standard streams. Without input, the container's own /dev/null is used, not the host's.
    fn connect(&self, null: &OwnedFd) -> io::Result<()> {
        // This process is in the pod's user namespace, if there is one.
        let uid = rustix::fs::Uid::from_raw(host_id(None, self.container.user.uid));
        let (stdin, stdout, stderr) = match (self.streams, self.fds) {
            (Streams::Output, [output]) => (None, output, output),
            (Streams::Pipes { stdin: false }, [stdout, stderr]) => (None, stdout, stderr),
            (Streams::Pipes { stdin: true }, [stdout, stderr, stdin]) => (Some(stdin), stdout, stderr),
            (Streams::Terminal(size), [socket]) => {
                let root = Root::new(layout::open_dir(Path::new("/"))?);
                let (outer, inner) = terminal::open_pair(&root, "dev/pts/ptmx")?;
                let size = Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 };
                tcsetwinsize(&outer, size)?;
                rustix::fs::fchown(&inner, Some(uid), None)?;
                socket::send(socket.as_fd(), &[0], &[outer.as_fd()])?;
                rustix::stdio::dup2_stdin(&inner)?;
                rustix::stdio::dup2_stdout(&inner)?;
                return Ok(rustix::stdio::dup2_stderr(&inner)?);
            }
            _ => return Err(io::Error::from_raw_os_error(libc::EBADF)),
        };
        rustix::stdio::dup2_stdin(stdin.unwrap_or(null))?;
        rustix::stdio::dup2_stdout(stdout)?;
        rustix::stdio::dup2_stderr(stderr)?;
        Ok(())
    }
}

/// Reports to the shim why there is no command.
fn report(pipe: BorrowedFd<'_>, fault: Fault) {
    if let Ok(message) = serde_json::to_vec(&fault) {
        let _ = rustix::io::write(pipe, &message);
    }
}
