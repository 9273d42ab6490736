//! Creates a container: the steps between `Create` and `Created`.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::pipe::{PipeFlags, pipe_with};

use super::clients::Client;
use super::log::{Log, LogStream};
use super::oci::{self, OciContainer};
use crate::cgroup::{self, DeviceLimits, Hierarchies};
use crate::container::init::{FromInit, Init, LIMITED, START};
use crate::container::process::{Profile, command_line, environment};
use crate::container::{apparmor, user::User};
use crate::fault::{Context, Fault};
use crate::protocol::{ContainerState, ProcessRecord, ShimConfig};
use crate::rootless::MountNamespace;
use crate::sys::PidSlot;
use crate::userns::UserNamespace;
use crate::{caps, layout, rootless, seccomp, socket, sys};
use outrigger_runtime::ContainerSpec;
use outrigger_runtime::processes::Process;

/// The maximum length of a message of a container's first process.
const MESSAGE_MAX: usize = 128 * 1024;

/// How the container uses its terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Terminal {
    /// For output only.
    Screen,
    /// For input and output.
    Both,
}

impl Terminal {
    /// The terminal of a container, if it has one.
    pub(super) fn of_container(spec: &ContainerSpec) -> Option<Self> {
        match (spec.tty, spec.stdin) {
            (true, true) => Some(Terminal::Both),
            (true, false) => Some(Terminal::Screen),
            (false, _) => None,
        }
    }
}

/// A container whose first process exists.
pub(super) struct Container {
    pub(super) name: String,
    pub(super) dir: std::path::PathBuf,
    pub(super) cgroup: String,
    pub(super) hierarchies: Hierarchies,
    pub(super) limits: cgroup::Prepared,
    pub(super) profile: Profile,
    pub(super) user: User,
    pub(super) oom_score_adj: Option<i32>,
    /// The pod's user namespace.
    pub(super) userns: Option<UserNamespace>,
    /// Whether the end of the first process ends the pid namespace.
    pub(super) own_pids: bool,
    /// Used to find the container's processes if it has neither a cgroup nor its own pid namespace.
    pub(super) mounts: Option<MountNamespace>,
    /// The first process. Before it exists, this is the process that builds the container and will fork it.
    pub(super) pid: i32,
    pub(super) pidfd: OwnedFd,
    /// The slot in which the builder stores the pid of the first process.
    pub(super) slot: PidSlot,
    /// The container's own /dev/null.
    pub(super) null: Option<OwnedFd>,
    pub(super) state: ContainerState,
    pub(super) log: Log,
    pub(super) streams: Vec<LogStream>,
    /// The socket to the first process, until that has executed the user's program.
    pub(super) waiting: Option<OwnedFd>,
    /// The descriptor that keeps stdin open.
    pub(super) stdin: Option<OwnedFd>,
    /// Its terminal, if it has one.
    pub(super) terminal: Option<Terminal>,
    /// The OCI runtime that created the container, if one did.
    pub(super) oci: Option<OciContainer>,
}

/// Records that a container is being created.
pub(super) fn begun(config: &ShimConfig) -> Result<ContainerState, Fault> {
    let state = ContainerState {
        name: config.spec.name.clone(),
        stop_signal: config.stop_signal,
        shim: ProcessRecord::of_pid(std::process::id() as i32),
        ..Default::default()
    };
    save(&config.dir, &state)?;
    Ok(state)
}

/// The container's cgroup, with warnings about limits that could not be set.
fn limits(config: &ShimConfig) -> cgroup::Prepared {
    let (spec, sandbox) = (&config.spec, &config.sandbox);
    cgroup::Prepared::new(
        &config.cgroups,
        &sandbox.id.0,
        &spec.id.0,
        &sandbox.resources,
        &spec.resources,
        // In a user namespace, a privileged container has privileges only over objects of that namespace.
        // Devices are not among them.
        spec.identity.privileged && sandbox.user.is_none(),
    )
}

/// The pipes for the standard streams of the first process: its ends and the shim's ends.
struct Pipes {
    stdin: Option<OwnedFd>,
    stdout: OwnedFd,
    stderr: OwnedFd,
    keep_stdin: Option<OwnedFd>,
    stdout_r: OwnedFd,
    stderr_r: OwnedFd,
}

impl Pipes {
    fn new(with_stdin: bool) -> rustix::io::Result<Self> {
        let (stdout_r, stdout) = pipe_with(PipeFlags::CLOEXEC)?;
        let (stderr_r, stderr) = pipe_with(PipeFlags::CLOEXEC)?;
        let (stdin, keep_stdin) = match with_stdin {
            true => pipe_with(PipeFlags::CLOEXEC).map(|(read, write)| (Some(read), Some(write)))?,
            false => (None, None),
        };
        Ok(Pipes { stdin, stdout, stderr, keep_stdin, stdout_r, stderr_r })
    }
}

impl Container {
    /// Builds the container up to the point where it can be started.
    pub(super) fn create(config: &ShimConfig, warn: &mut dyn FnMut(String)) -> Result<Self, Fault> {
        if let Some(runtime) = &config.sandbox.oci_runtime {
            return oci::create(config, runtime, warn);
        }
        let spec = &config.spec;
        let sandbox = &config.sandbox;
        let mut state = begun(config)?;
        let log = Log::open(&spec.log_path, spec.log_limits)?;
        let command = command_line(spec)?;
        let limits = limits(config);
        limits.warnings.iter().cloned().for_each(&mut *warn);
        let nodev = limits.devices == DeviceLimits::Missing;
        let profile = profile(config, nodev)?;

        let what = || "cannot make the container's pipes";
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .creating(what)?;
        let pipes = Pipes::new(spec.stdin && !spec.tty).creating(what)?;
        let Pipes { stdin, stdout, stderr, keep_stdin, stdout_r, stderr_r } = pipes;

        let own_pids = !sandbox.host_pid && sandbox.pid.is_none();
        let slot = PidSlot::new().creating(what)?;
        let cloned = sys::clone3(libc::CLONE_NEWNS, limits.unified())
            .creating(|| "cannot fork the process that builds the container")?;
        let (pid, pidfd) = match cloned {
            sys::Cloned::Child => {
                drop(ours);
                Init {
                    config,
                    profile: &profile,
                    command: &command,
                    limits: &limits,
                    shim: theirs,
                    stdin,
                    stdout,
                    stderr,
                    slot: &slot,
                    nodev,
                }
                .run()
            }
            sys::Cloned::Parent { pid, pidfd } => (pid, pidfd),
        };
        drop((theirs, stdin, stdout, stderr));
        state.init = ProcessRecord::of_pid(pid);

        let mut container = Container {
            name: spec.name.clone(),
            dir: config.dir.clone(),
            cgroup: cgroup::container_path(&sandbox.id.0, &spec.id.0),
            hierarchies: config.cgroups.clone(),
            limits,
            profile,
            user: User { uid: 0, gid: 0, groups: Vec::new(), home: String::new() },
            oom_score_adj: spec.resources.oom_score_adj,
            userns: sandbox.user.clone(),
            own_pids,
            mounts: None,
            pid,
            pidfd,
            slot,
            null: None,
            state,
            log,
            streams: Vec::new(),
            waiting: Some(ours),
            stdin: keep_stdin,
            terminal: Terminal::of_container(spec),
            oci: None,
        };
        match container.finish_create(stdout_r, stderr_r, warn) {
            Ok(()) => Ok(container),
            Err(fault) => {
                container.discard();
                Err(fault)
            }
        }
    }

    fn finish_create(
        &mut self,
        stdout: OwnedFd,
        stderr: OwnedFd,
        warn: &mut dyn FnMut(String),
    ) -> Result<(), Fault> {
        if let Some(adj) = self.oom_score_adj
            && let Err(error) = fs::write(format!("/proc/{}/oom_score_adj", self.pid), adj.to_string())
            // Without root, the value can only be raised.
            && !(error.kind() == std::io::ErrorKind::PermissionDenied && rootless::standing().is_rootless())
        {
            warn(format!("oom_score_adj {adj} is refused: {}", sys::errno_text(&error)));
        }
        self.tell(LIMITED);
        let mut fds = Vec::new();
        self.user = loop {
            match self.listen(&mut fds)? {
                Some(FromInit::Ready(user)) => break user,
                Some(FromInit::Warning(text)) => warn(text),
                Some(FromInit::Refused(refusal)) => {
                    self.limits.leave_out(&refusal.cgroup);
                    warn(refusal.warning);
                }
                Some(FromInit::Failed(fault)) => return Err(fault),
                None => {
                    return Err(Fault::create(
                        "the container's first process ended while the container was made",
                    ));
                }
            }
        };
        if self.slot.get().is_some() {
            self.follow()?;
        }
        let what = || "cannot read the container's output";
        let mut fds = fds.into_iter();
        self.null = fds.next();
        self.streams = match fds.next() {
            Some(terminal) => vec![LogStream::new(terminal, "stdout").creating(what)?],
            None => vec![
                LogStream::new(stdout, "stdout").creating(what)?,
                LogStream::new(stderr, "stderr").creating(what)?,
            ],
        };
        if !self.own_pids && !self.hierarchies.exists(&self.cgroup) {
            self.mounts = MountNamespace::of_process(self.pid);
        }
        save(&self.dir, &self.state)
    }

    /// Starts the user's program. Returns when it has been exec'd, or when a client wants it killed before
    /// that. In a shared pid namespace, a process of another container may have stopped it.
    pub(super) fn start(&mut self, clients: &mut [Client]) -> Result<(), Fault> {
        if let Some(oci) = &mut self.oci {
            return oci.start();
        }
        if self.waiting.is_none() {
            return Err(Fault::other("the container was started before"));
        }
        self.tell(START);
        if let Some(socket) = &self.waiting {
            wait_for_answer(socket.as_fd(), clients)
                .creating(|| "cannot hear the container's first process")?;
        }
        match self.listen(&mut Vec::new())? {
            None => {
                self.waiting = None;
                self.follow()
            }
            Some(FromInit::Failed(fault)) => Err(fault),
            Some(FromInit::Ready(_) | FromInit::Warning(_) | FromInit::Refused(_)) => {
                Err(Fault::other("the container's first process went on after it was ready"))
            }
        }
    }

    /// Switches from the builder to the container's first process, which the builder left behind. The builder
    /// has ended or will end soon.
    fn follow(&mut self) -> Result<(), Fault> {
        let ended = || Fault::start("the container's first process exited before it could run the program");
        let first = self.slot.get().ok_or_else(ended)?;
        if first == self.pid {
            return Ok(());
        }
        let name = rustix::process::Pid::from_raw(first).ok_or_else(ended)?;
        // The child has not been reaped, so its pid is still its own.
        let pidfd = rustix::process::pidfd_open(name, rustix::process::PidfdFlags::empty())
            .creating(|| "cannot watch the container's first process")?;
        sys::reap(self.pid, true);
        self.pid = first;
        self.pidfd = pidfd;
        self.state.init = ProcessRecord::of_pid(first);
        Ok(())
    }

    pub(super) fn is_started(&self) -> bool {
        self.state.started.is_some()
    }

    fn tell(&self, word: u8) {
        if let Some(socket) = &self.waiting {
            // If the process has ended, the next receive notices it.
            let _ = socket::send(socket.as_fd(), &[word], &[]);
        }
    }

    fn listen(&self, fds: &mut Vec<OwnedFd>) -> Result<Option<FromInit>, Fault> {
        let Some(socket) = &self.waiting else { return Ok(None) };
        let mut message = vec![0; MESSAGE_MAX];
        let what = || "cannot hear the container's first process";
        let is_reset = |error: &std::io::Error| error.raw_os_error() == Some(libc::ECONNRESET);
        let mut received = socket::receive(socket.as_fd(), &mut message, fds);
        if received.as_ref().is_err_and(is_reset) {
            // The process ended without reading our last message. The kernel reports that once, before the
            // process's own last message.
            received = socket::receive(socket.as_fd(), &mut message, fds);
        }
        match received {
            Ok(0) => Ok(None),
            Err(error) if is_reset(&error) => Ok(None),
            Ok(count) => Ok(Some(serde_json::from_slice(&message[..count]).creating(what)?)),
            Err(error) => Err(error).creating(what),
        }
    }

    /// Writes `state.json`.
    pub(super) fn save(&self) {
        // A failure is not a reason to end the container, because the agent is also told over the socket.
        let _ = self.try_save();
    }

    /// Writes `state.json`, or returns the error.
    pub(super) fn try_save(&self) -> std::io::Result<()> {
        layout::write_json(&self.dir.join("state.json"), &self.state)
    }

    /// Sends a signal to the container's first process.
    pub(super) fn signal(&self, signal: i32) {
        match &self.oci {
            Some(oci) => oci.signal(signal),
            None => _ = outrigger_runtime::signals::pidfd_kill(self.pidfd.as_fd(), signal),
        }
    }

    /// Kills everything in the container.
    pub(super) fn kill(&self) {
        if let Some(oci) = &self.oci {
            oci.signal(libc::SIGKILL);
        }
        let _ = outrigger_runtime::signals::pidfd_kill(self.pidfd.as_fd(), libc::SIGKILL);
        self.kill_rest();
    }

    /// Kills the processes that do not end with the first one.
    pub(super) fn kill_rest(&self) {
        if self.own_pids {
            return;
        }
        self.hierarchies.kill(&self.cgroup);
        if let Some(mounts) = &self.mounts {
            mounts.kill();
        }
    }

    /// Ends a container that could not be created or started.
    pub(super) fn discard(&mut self) {
        self.kill();
        sys::reap(self.pid, true);
        if let Some(first) = self.slot.get().filter(|first| *first != self.pid) {
            if let Some(first) = Process::child(first) {
                first.kill();
            }
            sys::reap(first, true);
        }
        self.remove_cgroup();
    }

    /// Removes the cgroup, if it is empty.
    pub(super) fn remove_cgroup(&self) {
        if let Some(oci) = &self.oci {
            oci.delete();
        }
        self.hierarchies.remove(&self.cgroup);
    }
}

/// Waits until the first process has answered. Fails if a client wants it killed before that, or if no client
/// is left.
fn wait_for_answer(process: BorrowedFd<'_>, clients: &mut [Client]) -> io::Result<()> {
    // The answer usually takes about a millisecond, so wait for it first. A client that wants the program
    // killed in that time then gets a program that has run and was killed.
    let soon = Timespec { tv_sec: 1, tv_nsec: 0 };
    if matches!(poll(&mut [PollFd::from_borrowed_fd(process, PollFlags::IN)], Some(&soon)), Ok(1..)) {
        return Ok(());
    }
    loop {
        if clients.iter().any(Client::wants_kill) || !clients.iter().any(Client::is_open) {
            return Err(io::Error::new(io::ErrorKind::Interrupted, "it was killed before it had started"));
        }
        let mut fds = vec![PollFd::from_borrowed_fd(process, PollFlags::IN)];
        let open = clients.iter().filter(|client| client.is_open());
        fds.extend(open.map(|client| PollFd::new(client.fd(), PollFlags::IN)));
        match poll(&mut fds, None) {
            Err(Errno::INTR) => continue,
            result => result?,
        };
        if !fds[0].revents().is_empty() {
            return Ok(());
        }
        clients.iter_mut().filter(|client| client.is_open()).for_each(Client::receive);
    }
}

/// The settings that all processes of the container share. `nodev` means that nothing else limits its
/// devices.
fn profile(config: &ShimConfig, nodev: bool) -> Result<Profile, Fault> {
    let spec = &config.spec;
    let mut caps = caps::wanted(&spec.identity)?;
    // This also applies in a user namespace, where no node can be created. A process that can undo `nodev`
    // could open nodes of the image.
    if nodev {
        caps = caps::without_devices(&spec.identity, caps)?;
    }
    let working_dir =
        spec.working_dir.as_ref().or(spec.image.working_dir.as_ref()).filter(|dir| !dir.is_empty());
    Ok(Profile {
        caps,
        no_new_privileges: spec.identity.no_new_privileges,
        apparmor: apparmor::profile(&spec.identity)?,
        filter: seccomp::filter(&spec.identity, caps)?,
        env: environment(spec, &config.sandbox.hostname),
        cwd: working_dir.map_or_else(|| "/".to_owned(), Clone::clone),
    })
}

pub(super) fn save(dir: &std::path::Path, state: &ContainerState) -> Result<(), Fault> {
    layout::write_json(&dir.join("state.json"), state)
        .creating(|| format!("cannot write in {}", dir.display()))
}
