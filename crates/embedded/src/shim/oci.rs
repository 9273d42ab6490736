//! The shim of a container that an OCI runtime creates.
//!
//! The shim has its own mount namespace. The root file system and the volumes are mounted there below
//! `bundle` in the container's directory, next to the runtime's own files. The runtime's `create` leaves the
//! container's first process to the shim, which is the nearest subreaper. For processes that `exec` leaves,
//! the subreaper is the process that is forked for each of them.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::termios::{Winsize, tcsetwinsize};

use super::create::{Container, Terminal, begun};
use super::log::{Log, LogStream};
use crate::caps;
use crate::cgroup;
use crate::container::process::{Profile, command_line, environment};
use crate::container::root::{Root, attach, relative};
use crate::container::user::{self, User};
use crate::container::{apparmor, mounts, rootfs};
use crate::fault::{Context, Fault};
use crate::oci::bundle::{self, Contents, Place};
use crate::oci::command::{Calls, PATIENCE};
use crate::oci::console::ConsoleSocket;
use crate::oci_runtime::{OciRuntime, wait};
use crate::protocol::{ProcessRecord, ShimConfig, Streams};
use crate::sys::PidSlot;
use crate::{layout, seccomp, socket, sys};

/// The subdirectory of the bundle in a container's directory.
const BUNDLE: &str = "bundle";

/// What the shim needs for later calls of the runtime.
pub(super) struct OciContainer {
    calls: Calls,
    started: bool,
}

/// The standard streams of the container's first process: its ends and the shim's ends.
struct Stdio3 {
    theirs: [OwnedFd; 3],
    stdout: OwnedFd,
    stderr: OwnedFd,
    keep_stdin: Option<OwnedFd>,
}

/// Creates a container with an OCI runtime, up to the point where it can be started.
pub(super) fn create(
    config: &ShimConfig,
    runtime: &OciRuntime,
    warn: &mut dyn FnMut(String),
) -> Result<Container, Fault> {
    let (spec, sandbox) = (&config.spec, &config.sandbox);
    let mut state = begun(config)?;
    let log = Log::open(&spec.log_path, spec.log_limits)?;
    let command = command_line(spec)?;
    let profile = profile(config)?;
    let limits = cgroup::Prepared::by_runtime(&config.cgroups, &sandbox.id.0, &spec.id.0);

    let dir = config.dir.join(BUNDLE);
    let user = make_bundle(config, runtime, &dir, &profile, &command, warn)?;
    let calls = Calls { runtime: runtime.clone(), dir, id: spec.id.0.clone() };
    let oci = OciContainer { calls, started: false };
    let streams = Stdio3::new(spec.stdin && !spec.tty).creating(|| "cannot make the container's pipes")?;
    let made = oci.create(streams, spec.tty);
    let cgroup = cgroup::container_path(&sandbox.id.0, &spec.id.0);
    let (pid, streams, keep_stdin) = match made {
        Ok(made) => made,
        Err(fault) => {
            oci.delete();
            config.cgroups.kill(&cgroup);
            while sys::reap(-1, false).is_some() {}
            config.cgroups.remove(&cgroup);
            return Err(fault);
        }
    };
    state.init = ProcessRecord::of_pid(pid);
    let pidfd = Pid::from_raw(pid)
        .ok_or(rustix::io::Errno::SRCH)
        .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()))
        .creating(|| "the container's first process ended while the container was made")?;
    let container = Container {
        name: spec.name.clone(),
        dir: config.dir.clone(),
        cgroup,
        hierarchies: config.cgroups.clone(),
        limits,
        profile,
        user,
        oom_score_adj: spec.resources.oom_score_adj,
        userns: None,
        own_pids: !sandbox.host_pid && sandbox.pid.is_none(),
        pid,
        pidfd,
        state,
        log,
        streams,
        waiting: None,
        stdin: keep_stdin,
        terminal: Terminal::of_container(spec),
        mounts: None,
        slot: PidSlot::new().creating(|| "cannot share memory")?,
        null: None,
        oci: Some(oci),
    };
    if let Some(adj) = container.oom_score_adj
        && let Err(error) = fs::write(format!("/proc/{pid}/oom_score_adj"), adj.to_string())
    {
        warn(format!("oom_score_adj {adj} is refused: {}", sys::errno_text(&error)));
    }
    container.save();
    Ok(container)
}

/// Creates the bundle for the runtime. Returns the user of the container.
fn make_bundle(
    config: &ShimConfig,
    runtime: &OciRuntime,
    dir: &Path,
    profile: &Profile,
    command: &[String],
    warn: &mut dyn FnMut(String),
) -> Result<User, Fault> {
    let (spec, sandbox) = (&config.spec, &config.sandbox);
    let volumes = mount_bundle(config, runtime, dir, warn)?;
    let root = dir.join("rootfs");
    let what = || format!("cannot open {}", root.display());
    let user = user::resolve(spec, &Root::new(layout::open_dir(&root).creating(what)?), &sandbox.pod)?;
    user::check_mapped(&user)?;
    let contents = Contents {
        spec,
        sandbox,
        profile,
        user: &user,
        command,
        seccomp: seccomp::oci_form(&spec.identity, profile.caps)?,
        volumes: &volumes,
        cgroups: &config.cgroups,
    };
    layout::write_json(&dir.join("config.json"), &contents.config())
        .creating(|| format!("cannot write {}", dir.display()))?;
    Ok(user)
}

fn profile(config: &ShimConfig) -> Result<Profile, Fault> {
    let spec = &config.spec;
    let working_dir =
        spec.working_dir.as_ref().or(spec.image.working_dir.as_ref()).filter(|dir| !dir.is_empty());
    Ok(Profile {
        caps: caps::wanted(&spec.identity)?,
        no_new_privileges: spec.identity.no_new_privileges,
        apparmor: apparmor::profile(&spec.identity)?,
        // The runtime compiles the filter itself.
        filter: None,
        env: environment(spec, &config.sandbox.hostname),
        cwd: working_dir.map_or_else(|| "/".to_owned(), Clone::clone),
    })
}

/// Moves the shim to its own mount namespace and mounts the parts of the bundle there. Returns the paths of
/// the volumes, in their order.
fn mount_bundle(
    config: &ShimConfig,
    runtime: &OciRuntime,
    dir: &Path,
    warn: &mut dyn FnMut(String),
) -> Result<Vec<Place>, Fault> {
    let spec = &config.spec;
    spec.mounts.iter().try_for_each(check_target)?;
    // The sources must still have the host's propagation.
    let volumes = mounts::open_volumes(&spec.mounts, false, None)?;
    let what = || format!("cannot mount {}", dir.display());
    sys::unshare(libc::CLONE_NEWNS).creating(|| "cannot make a mount namespace")?;
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)
        .creating(|| "cannot separate the mounts from the host's")?;
    if let Some(unified) = &config.cgroups.unified
        && !config.cgroups.is_unified()
        && runtime.refuses_hybrid_cgroups()
    {
        rustix::mount::unmount(unified, UnmountFlags::DETACH)
            .creating(|| format!("cannot hide {} from {}", unified.display(), runtime.name()))?;
    }
    let rootfs = rootfs::make_rootfs(&config.dir, &config.layer_dir(), &spec.image.layers, None, warn)?;
    // The mount covers the container's directory, which contains the bundle.
    layout::unmount_all(&config.dir);
    fs::create_dir_all(dir).creating(what)?;
    mount("bundle", dir, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, c"mode=700,size=16m")
        .creating(what)?;
    let root = dir.join("rootfs");
    fs::create_dir(&root).creating(what)?;
    attach(rootfs.as_fd(), layout::open_dir(&root).creating(what)?.as_fd()).creating(what)?;
    let base = dir.join("volumes");
    fs::create_dir(&base).creating(what)?;
    let place = |(number, volume): (usize, mounts::Volume<'_>)| -> io::Result<PathBuf> {
        let place = base.join(number.to_string());
        match volume.is_dir {
            true => fs::create_dir(&place)?,
            false => drop(fs::File::create(&place)?),
        }
        let target =
            rustix::fs::open(&place, OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())?;
        attach(volume.tree.as_fd(), target.as_fd())?;
        Ok(place)
    };
    let places: Vec<PathBuf> =
        volumes.into_iter().enumerate().map(place).collect::<io::Result<_>>().creating(what)?;
    places
        .into_iter()
        .map(|path| Ok(Place { is_shared: is_shared(&path).creating(what)?, path }))
        .collect::<Result<_, Fault>>()
}

/// Whether mounts at a path propagate to other mount namespaces.
fn is_shared(path: &Path) -> io::Result<bool> {
    let text = path.to_string_lossy();
    // Mounts that come and go while the list is read can hide others from it.
    for _ in 0..100 {
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let line = mounts.lines().rfind(|line| line.split(' ').nth(4) == Some(&*text));
        if let Some(line) = line {
            let mut options = line.split(' ').skip(5).take_while(|field| *field != "-");
            return Ok(options.any(|field| field.starts_with("shared:")));
        }
    }
    Err(io::Error::other(format!("{} is not in the list of mounts", path.display())))
}

/// Refuses the same targets as the embedded runtime, because not every OCI runtime does.
fn check_target(mount: &outrigger_runtime::Mount) -> Result<(), Fault> {
    let what = format!("cannot mount {} at {}", mount.source.display(), mount.target.display());
    match relative(&mount.target) {
        target if target.as_os_str().is_empty() => {
            let text = format!("{what}: nothing can be mounted over the container's root");
            Err(Fault::mount_point(&mount.target, text))
        }
        target if target.starts_with("proc") => {
            Err(Fault::mount_point(&mount.target, format!("{what}: nothing can be mounted inside /proc")))
        }
        _ => Ok(()),
    }
}

impl Stdio3 {
    fn new(stdin: bool) -> io::Result<Self> {
        let (stdout, their_stdout) = pipe_with(PipeFlags::CLOEXEC)?;
        let (stderr, their_stderr) = pipe_with(PipeFlags::CLOEXEC)?;
        let (their_stdin, keep_stdin) = match stdin {
            true => {
                let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
                (read, Some(write))
            }
            // Runtimes open the container's own /dev/null instead.
            false => (rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?, None),
        };
        Ok(Stdio3 { theirs: [their_stdin, their_stdout, their_stderr], stdout, stderr, keep_stdin })
    }
}

/// The container's first process, its output, and the descriptor that keeps its input open.
type Made = (i32, Vec<LogStream>, Option<OwnedFd>);

impl OciContainer {
    /// Lets the runtime create the container.
    fn create(&self, streams: Stdio3, tty: bool) -> Result<Made, Fault> {
        let calls = &self.calls;
        let what = || "cannot read the container's output";
        let (log, pid_file) = (calls.dir.join("create.log"), calls.dir.join("pid"));
        let mut command = calls.command("create", &log);
        command.arg("--bundle").arg(&calls.dir).arg("--pid-file").arg(&pid_file);
        let console =
            tty.then(|| ConsoleSocket::open(&calls.dir)).transpose().creating(|| "cannot make a terminal")?;
        let Stdio3 { theirs: [stdin, stdout, stderr], stdout: our_stdout, stderr: our_stderr, keep_stdin } =
            streams;
        match &console {
            Some(console) => _ = command.arg("--console-socket").arg(console.name()),
            None => _ = command.stdin(stdin).stdout(stdout).stderr(stderr),
        }
        let mut child = command.arg(&calls.id).spawn().map_err(|error| calls.cannot_run(&error))?;
        // The command holds our copies of the container's streams.
        drop(command);
        let terminal = receive(console, &child)?;
        let status = wait(&mut child, PATIENCE).map_err(|error| calls.cannot_run(&error))?;
        calls.verdict("create", status, &log)?;
        let pid = read_pid(&pid_file)
            .ok_or_else(|| Fault::create(format!("{} create made no process", calls.runtime.name())))?;
        let streams = match (tty, terminal) {
            (true, Some(terminal)) => vec![LogStream::new(terminal, "stdout").creating(what)?],
            (true, None) => {
                return Err(Fault::create(format!("{} create made no terminal", calls.runtime.name())));
            }
            (false, _) => vec![
                LogStream::new(our_stdout, "stdout").creating(what)?,
                LogStream::new(our_stderr, "stderr").creating(what)?,
            ],
        };
        Ok((pid, streams, keep_stdin))
    }

    /// Lets the runtime start the user's program.
    pub(super) fn start(&mut self) -> Result<(), Fault> {
        if std::mem::replace(&mut self.started, true) {
            return Err(Fault::other("the container was started before"));
        }
        self.calls.run("start", &[&self.calls.id]).map_err(|fault| Fault::start(fault.text))
    }

    /// Lets the runtime signal the container's first process. A process that has ended is not an error.
    pub(super) fn signal(&self, signal: i32) {
        let _ = self.calls.run("kill", &[&self.calls.id, &signal.to_string()]);
    }

    /// Lets the runtime delete the container, and removes its mounts.
    pub(super) fn delete(&self) {
        let _ = self.calls.run("delete", &["--force", &self.calls.id]);
        // The mounts become private, so that they are unmounted only here. What the container has mounted in
        // a volume with bidirectional propagation stays on the host, as it does when a mount namespace ends.
        let _ = mount_change(&self.calls.dir, MountPropagationFlags::PRIVATE | MountPropagationFlags::REC);
        layout::unmount_all(&self.calls.dir);
    }

    /// Runs a command in the container until it ends, and exits with its exit code. Called in a process that
    /// was forked for it, with the descriptors of its streams. Errors before that go to `report`.
    pub(super) fn exec_and_exit(
        &self,
        container: &Container,
        command: &[String],
        streams: Streams,
        fds: &[OwnedFd],
        report: &OwnedFd,
    ) -> ! {
        match self.exec(container, command, streams, fds, report) {
            Ok(code) => sys::exit_now(code),
            Err(fault) => {
                if let Ok(message) = serde_json::to_vec(&fault) {
                    let _ = rustix::io::write(report, &message);
                }
                sys::exit_now(128)
            }
        }
    }

    /// Runs the command and returns its exit code.
    fn exec(
        &self,
        container: &Container,
        command: &[String],
        streams: Streams,
        fds: &[OwnedFd],
        report: &OwnedFd,
    ) -> Result<i32, Fault> {
        let what = || "cannot run a command in the container";
        // This process becomes the parent of processes that the runtime leaves behind. It dies with the shim.
        rustix::process::set_child_subreaper(Some(rustix::process::getpid())).creating(what)?;
        sys::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as u64).creating(what)?;
        rustix::process::setsid().creating(what)?;
        if let Some(adj) = container.oom_score_adj {
            let _ = fs::write("/proc/self/oom_score_adj", adj.to_string());
        }
        let client = keep_only(container, streams, fds, report).creating(what)?;
        let pid = self.start_command(container, command, streams, client)?;
        // The streams must end when those of the command end.
        release_streams().creating(what)?;
        loop {
            match sys::reap(-1, true) {
                Some(reaped) if reaped.pid == pid => return Ok(reaped.code),
                Some(_) => {}
                None => return Err(Fault::other("the command's process is not there")),
            }
        }
    }

    /// The files of the process that was forked for a command: the command, its pid, and the runtime's
    /// messages.
    fn command_files(&self, forked: i32) -> [PathBuf; 3] {
        ["json", "pid", "log"].map(|name| self.calls.dir.join(format!("exec-{forked}.{name}")))
    }

    /// Removes the files of such a process, however it ended, because the next one may get its pid.
    pub(super) fn forget_command(&self, forked: i32) {
        for file in self.command_files(forked) {
            let _ = fs::remove_file(file);
        }
        ConsoleSocket::remove(&self.calls.dir, forked);
    }

    /// Lets the runtime start a command with this process's standard streams, or with a terminal. Returns the
    /// command's process.
    fn start_command(
        &self,
        container: &Container,
        command: &[String],
        streams: Streams,
        client: Option<OwnedFd>,
    ) -> Result<i32, Fault> {
        let calls = &self.calls;
        let what = || "cannot run a command in the container";
        let [file, pid_file, log] = self.command_files(std::process::id() as i32);
        let mut profile = container.profile.clone();
        let terminal = matches!(streams, Streams::Terminal(_));
        if terminal && !profile.env.iter().any(|(name, _)| name == "TERM") {
            profile.env.push(("TERM".to_owned(), "xterm".to_owned()));
        }
        let mut process = bundle::process(&profile, &container.user, command, terminal);
        if let Streams::Terminal(size) = streams {
            // The command may read the size before we can set it.
            process["consoleSize"] = serde_json::json!({ "height": size.rows, "width": size.columns });
        }
        layout::write_json(&file, &process).creating(what)?;
        let console = terminal.then(|| ConsoleSocket::open(&calls.dir)).transpose().creating(what)?;
        let mut call: Command = calls.command("exec", &log);
        call.args(["--detach", "--process"]).arg(&file).arg("--pid-file").arg(&pid_file);
        match &console {
            Some(console) => _ = call.arg("--console-socket").arg(console.name()),
            None => _ = call.stdin(Stdio::inherit()).stdout(Stdio::inherit()).stderr(Stdio::inherit()),
        }
        let mut child = call.arg(&calls.id).spawn().map_err(|error| calls.cannot_run(&error))?;
        if let (Some(terminal), Some(client), Streams::Terminal(size)) =
            (receive(console, &child)?, client, streams)
        {
            let size = Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 };
            tcsetwinsize(&terminal, size).creating(what)?;
            socket::send(client.as_fd(), &[0], &[terminal.as_fd()]).creating(what)?;
        }
        let status = wait(&mut child, PATIENCE).map_err(|error| calls.cannot_run(&error))?;
        let result = calls.verdict("exec", status, &log).and_then(|()| {
            read_pid(&pid_file)
                .ok_or_else(|| Fault::other("the runtime does not say which process the command is"))
        });
        // Any error of a command means that it could not be started.
        result.map_err(|fault| Fault::start(fault.text))
    }
}

fn receive(console: Option<ConsoleSocket>, child: &Child) -> Result<Option<OwnedFd>, Fault> {
    let what = || "cannot receive the terminal";
    Ok(match console {
        Some(console) => console.receive(child, PATIENCE).creating(what)?,
        None => None,
    })
}

fn read_pid(file: &Path) -> Option<i32> {
    fs::read_to_string(file).ok()?.trim().parse().ok().filter(|pid| *pid > 1)
}

/// Makes the command's streams this process's own. Closes everything else except `report`, which becomes
/// descriptor 3. Returns the socket for a terminal.
fn keep_only(
    container: &Container,
    streams: Streams,
    fds: &[OwnedFd],
    report: &OwnedFd,
) -> io::Result<Option<OwnedFd>> {
    let null = container_null(container)?;
    let (stdin, stdout, stderr) = match (streams, fds) {
        (Streams::Output, [output]) => (&null, output, output),
        (Streams::Pipes { stdin: false }, [stdout, stderr]) => (&null, stdout, stderr),
        (Streams::Pipes { stdin: true }, [stdout, stderr, stdin]) => (stdin, stdout, stderr),
        (Streams::Terminal(_), [_]) => (&null, &null, &null),
        _ => return Err(io::Error::from_raw_os_error(libc::EBADF)),
    };
    let client = match streams {
        Streams::Terminal(_) => Some(rustix::io::fcntl_dupfd_cloexec(&fds[0], 64)?),
        _ => None,
    };
    rustix::stdio::dup2_stdin(stdin)?;
    rustix::stdio::dup2_stdout(stdout)?;
    rustix::stdio::dup2_stderr(stderr)?;
    drop(null);
    let kept = [report.as_raw_fd()].into_iter().chain(client.as_ref().map(AsRawFd::as_raw_fd));
    sys::close_all_but(3, kept.collect())?;
    Ok(client)
}

/// The container's own /dev/null, or something equally empty. It is not the host's, whose mode and owner must
/// not be changed.
fn container_null(container: &Container) -> io::Result<OwnedFd> {
    let open = || -> io::Result<OwnedFd> {
        let root = Root::new(layout::open_dir(Path::new(&format!("/proc/{}/root", container.pid)))?);
        let null = root.open_device(Path::new("dev/null"), libc::makedev(1, 3))?;
        Ok(null)
    };
    open().or_else(|_| Ok(pipe_with(PipeFlags::CLOEXEC)?.0))
}

/// Closes the standard streams.
fn release_streams() -> io::Result<()> {
    let (empty, _) = pipe_with(PipeFlags::CLOEXEC)?;
    rustix::stdio::dup2_stdin(&empty)?;
    rustix::stdio::dup2_stdout(&empty)?;
    Ok(rustix::stdio::dup2_stderr(&empty)?)
}

/// Creates a container and removes it again, to check whether the runtime can do so. The result is sent over
/// `control`: empty, or the error.
pub(super) fn try_runtime(control: OwnedFd) -> io::Result<()> {
    use std::io::{Read as _, Write as _};
    let mut control = fs::File::from(control);
    let mut text = Vec::new();
    control.read_to_end(&mut text)?;
    let config: ShimConfig = serde_json::from_slice(&text)?;
    match Container::create(&config, &mut |_| {}) {
        Ok(mut container) => {
            container.discard();
            Ok(())
        }
        Err(fault) => control.write_all(&serde_json::to_vec(&fault)?),
    }
}
