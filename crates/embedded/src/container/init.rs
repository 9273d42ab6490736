//! The process that builds a container. It becomes, or forks, the container's first process.
//!
//! The shim forks it into a new mount namespace. It joins its cgroups, opens what it needs from the host,
//! joins the pod's namespaces, and builds the container around itself. It reports the result to the shim over
//! a sequenced-packet socket: [`FromInit::Ready`], or [`FromInit::Failed`] before it ends. The shim sends one
//! byte when it has set the limits that only the shim can set ([`LIMITED`]), and another one to start the
//! program ([`START`]).
//!
//! If a container has its own pid namespace, the builder forks the first process in it, and that process
//! builds the container. No other process can see it. If the pid namespace is shared, the builder stays
//! outside until it has closed everything of the host. The process that it then forks there holds only what
//! the program will hold (see [`Launch`]). In both cases the first process is a child of the shim. The socket
//! closes by itself when the exec succeeds. A failure is reported before that.

use std::convert::Infallible;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountPropagationFlags, UnmountFlags};
use serde::{Deserialize, Serialize};

use super::dev::Dev;
use super::one_id::OneId;
use super::process::{Launch, Profile};
use super::root::{Root, attach, relative};
use super::user::{self, User};
use super::verify::mounts::{Built, Host, volume_ids};
use super::{dev, mounts, pieces, rootfs, terminal};
use crate::cgroup::{self, Refusal};
use crate::fault::{Context, Fault};
use crate::protocol::{SandboxState, ShimConfig};
use crate::sys::{PidSlot, clone_mount, errno_text};
use crate::userns;
use crate::{layout, rootless, socket, sys};

/// Sent by the shim: the limits are set.
pub(crate) const LIMITED: u8 = b'l';
/// Sent by the shim: execute the program.
pub(crate) const START: u8 = b's';

/// A message to the shim.
#[derive(Serialize, Deserialize)]
pub(crate) enum FromInit {
    /// Everything is ready. Sent with the container's /dev/null, and with the outer end of the terminal if
    /// there is one.
    Ready(User),
    /// Something is done differently than requested. More messages follow.
    Warning(String),
    /// A cgroup cannot be joined, so its limits do not apply. More messages follow.
    Refused(Refusal),
    /// The container could not be built.
    Failed(Fault),
}

/// The inputs of the building process.
pub(crate) struct Init<'a> {
    pub(crate) config: &'a ShimConfig,
    pub(crate) profile: &'a Profile,
    pub(crate) command: &'a [String],
    /// The cgroups to join.
    pub(crate) limits: &'a cgroup::Prepared,
    /// The socket to the shim.
    pub(crate) shim: OwnedFd,
    /// stdin (if kept open), stdout and stderr. Not used with a terminal.
    pub(crate) stdin: Option<OwnedFd>,
    pub(crate) stdout: OwnedFd,
    pub(crate) stderr: OwnedFd,
    /// Receives the pid of the container's first process.
    pub(crate) slot: &'a PidSlot,
    /// Whether nodes in the image and in volumes must not be opened, because nothing else limits devices.
    pub(crate) nodev: bool,
}

impl Init<'_> {
    /// Runs the process. Never returns to the shim's code that forked it.
    pub(crate) fn run(self) -> ! {
        let fault = match self.build_and_exec() {
            Ok(never) => match never {},
            Err(fault) => fault,
        };
        report(self.shim.as_fd(), fault);
        sys::exit_now(128)
    }

    /// Sends a warning to the shim. Errors are ignored.
    fn warn(&self, text: String) {
        self.tell(&FromInit::Warning(text));
    }

    fn tell(&self, news: &FromInit) {
        if let Ok(message) = serde_json::to_vec(news) {
            let _ = socket::send(self.shim.as_fd(), &message, &[]);
        }
    }

    fn build_and_exec(&self) -> Result<Infallible, Fault> {
        self.settle()?;
        self.join_cgroups()?;
        self.profile.confine_on_exec()?;
        rustix::process::umask(Mode::from_raw_mode(0o022));

        let namespaces = Namespaces::open(&self.config.sandbox)?;
        let mut parts = self.open_parts(&namespaces)?;
        let user = self.find_user(&parts.root)?;
        let one_id = OneId::for_container(&user, &self.config.sandbox)?;
        let one_id = one_id.map(|one_id| Ok((one_id.make()?, one_id))).transpose()?;
        self.give_streams(&user)?;
        self.await_byte(LIMITED)?;
        namespaces.join()?;
        if namespaces.user.is_some() {
            mounts::take_staged_volumes(&mut parts.volumes)?;
        }
        self.hide()?;
        let fork = self.enter_pid_namespace(&namespaces)?;
        let (dev, terminal) = self.build(parts)?;

        let inner = terminal.as_ref().map(|(_, inner)| inner.as_fd());
        self.connect_stdio(inner, &dev.null, &user)?;
        let message = serde_json::to_vec(&FromInit::Ready(user.clone())).creating(|| "cannot report")?;
        let outer = terminal.as_ref().map(|(outer, _)| outer.as_fd());
        let fds: Vec<BorrowedFd<'_>> = [Some(dev.null.as_fd()), outer].into_iter().flatten().collect();
        socket::send(self.shim.as_fd(), &message, &fds).creating(|| "cannot report")?;
        self.await_byte(START)?;
        if let Some((namespace, one_id)) = &one_id {
            one_id.join(namespace.as_fd())?;
        }
        let launch = Launch {
            profile: self.profile,
            user: &user,
            command: self.command,
            terminal: self.config.spec.tty,
            fork: fork.then_some(self.slot),
            report_to: self.shim.as_fd(),
        };
        launch.run(report)
    }

    /// Opens everything of the host that goes into the container, while it can still be reached.
    fn open_parts(&self, namespaces: &Namespaces) -> Result<Parts<'_>, Fault> {
        let config = self.config;
        let spec = &config.spec;
        let userns = namespaces.user.as_ref().map(AsFd::as_fd);
        let volumes = mounts::open_volumes(&spec.mounts, self.nodev, userns)?;
        let slave = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
        rustix::mount::mount_change("/", slave).creating(|| "cannot separate the mounts from the host's")?;
        let ids = userns.map(|namespace| rootfs::Ids { namespace, first: self.host_id(0) });
        let mut targets: Vec<(&Path, bool)> =
            spec.mounts.iter().zip(&volumes).map(|(mount, v)| (mount.target.as_path(), v.is_dir)).collect();
        targets.push((Path::new(&self.profile.cwd), true));
        let layers = rootfs::with_mount_points(&spec.image.layers, &config.layer_dir(), &targets)?;
        let rootfs = rootfs::make_rootfs(&config.dir, &config.layer_dir(), &layers, ids.as_ref(), |text| {
            self.warn(text)
        })?;
        let shm = clone_mount(&config.sandbox.shm, false).creating(|| "cannot share /dev/shm")?;
        let proc = config.sandbox.proc.as_ref().map(|path| clone_mount(path, false));
        let proc = proc.transpose().creating(|| "cannot share /proc")?;
        let dev = userns.map(|_| dev::prepare_dev(self.host_id(0))).transpose()?;
        if userns.is_some() {
            // This comes last, because it covers the container's directory.
            mounts::stage_volumes(&volumes, &config.dir)?;
        }
        Ok(Parts { root: Root::new(rootfs), volumes, dev, shm, proc })
    }

    /// Mounts everything, enters the container's root, and verifies it. Returns the container's /dev, and
    /// both ends of its terminal if there is one.
    fn build(&self, parts: Parts<'_>) -> Result<(Dev, Option<(OwnedFd, OwnedFd)>), Fault> {
        let Parts { root, volumes, dev, shm, proc } = parts;
        let config = self.config;
        let spec = &config.spec;
        let privileged = spec.identity.privileged;
        self.mount_root(&root)?;
        let kernel = mounts::mount_kernel_filesystems(&root, proc, privileged)?;
        let dev = dev::mount_dev(&root, dev, shm, privileged && config.sandbox.user.is_none())?;
        if spec.mask_paths && !privileged {
            mounts::cover_paths(&kernel, dev.null.as_fd())?;
        }
        let volume_ids = volume_ids(&volumes)?;
        mounts::mount_volumes(&root, volumes)?;
        let cwd = relative(Path::new(&self.profile.cwd));
        if !cwd.as_os_str().is_empty() {
            root.dir(&cwd).map_err(|error| {
                let text =
                    format!("cannot make working directory {}: {}", self.profile.cwd, errno_text(&error));
                match error.raw_os_error() {
                    Some(libc::ENOTDIR) => Fault::working_dir(text),
                    _ => Fault::create(text),
                }
            })?;
        }
        let own_cgroup = config.cgroups.is_unified().then(|| mounts::mount_cgroup(&kernel, privileged));
        let own_cgroup = own_cgroup.transpose()?;
        let terminal = spec.tty.then(|| terminal::open_terminal(&dev.root));
        let terminal = terminal.transpose().creating(|| "cannot make a terminal")?;
        let host = Host::open()?;
        enter_root(&root)?;
        if spec.read_only_rootfs {
            let read_only = sys::MountAttr { set: sys::MOUNT_ATTR_RDONLY, ..sys::MountAttr::default() };
            sys::mount_setattr(root.fd(), false, read_only).creating(|| "cannot make the root read-only")?;
            if rootless::standing().is_rootless() {
                // If the pid namespace is shared, the pod's own /proc does not show this process.
                host.mountinfo()
                    .and_then(|mounts| pieces::make_read_only(&root, &mounts))
                    .creating(|| "cannot make the root read-only")?;
            }
        }
        host.check(&Built {
            config,
            root: &root,
            kernel: &kernel,
            dev: &dev,
            volumes: &volume_ids,
            cgroup_target: own_cgroup.as_ref(),
            nodev: self.nodev,
        })?;
        Ok((dev, terminal))
    }

    /// Joins the cgroups. This must happen before anything of the image or the pod is opened, because it
    /// limits devices.
    fn join_cgroups(&self) -> Result<(), Fault> {
        let refused = self
            .limits
            .join_first()
            .creating(|| "cannot put the container into the cgroup that limits its devices")?;
        refused.into_iter().for_each(|refusal| self.tell(&FromInit::Refused(refusal)));
        Ok(())
    }

    /// The first step of each of these processes.
    fn settle(&self) -> Result<(), Fault> {
        self.hide()?;
        rustix::process::setsid().creating(|| "cannot start a session")?;
        Ok(())
    }

    /// Protects the process from inspection. Every change of the user or the user namespace undoes this.
    fn hide(&self) -> Result<(), Fault> {
        // This process still has the host's files open, so the container must not inspect it.
        sys::prctl(libc::PR_SET_DUMPABLE, 0).creating(|| "cannot become undumpable")?;
        sys::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as u64)
            .creating(|| "cannot tie the process to its shim")
    }

    fn host_id(&self, id: u32) -> u32 {
        userns::host_id(self.config.sandbox.user.as_ref(), id)
    }

    /// The user of the container, according to the files of its image.
    fn find_user(&self, root: &Root) -> Result<User, Fault> {
        let mut user = user::resolve(&self.config.spec, root, &self.config.sandbox.pod)?;
        if let Some(text) = user::limit_groups(&mut user) {
            self.warn(text);
        }
        if !rootless::one_id_only() {
            user::check_mapped(&user)?;
        }
        if self.config.sandbox.user.is_some() {
            user::check_in_namespace(&user, &self.config.spec)?;
        }
        Ok(user)
    }

    /// Gives the pipes to the user, so that /dev/stdout can be opened by name.
    fn give_streams(&self, user: &User) -> Result<(), Fault> {
        let uid = rustix::fs::Uid::from_raw(self.host_id(user.uid));
        let gid = rustix::fs::Gid::from_raw(self.host_id(user.gid));
        for fd in [Some(&self.stdout), Some(&self.stderr), self.stdin.as_ref()].into_iter().flatten() {
            rustix::fs::fchown(fd, Some(uid), Some(gid))
                .creating(|| "cannot hand over standard input and output")?;
        }
        Ok(())
    }

    /// Continues as the first process of the container's own pid namespace, if it has one. If its pid
    /// namespace already has other processes, the first process must still be forked: then it returns `true`.
    fn enter_pid_namespace(&self, namespaces: &Namespaces) -> Result<bool, Fault> {
        let what = || "cannot make the container's pid namespace";
        match &namespaces.pid {
            _ if self.config.sandbox.host_pid => return Ok(true),
            Some(shared) => {
                sys::setns(shared.as_fd(), libc::CLONE_NEWPID).creating(what)?;
                return Ok(true);
            }
            None => sys::unshare(libc::CLONE_NEWPID).creating(what)?,
        }
        if !sys::fork_sibling(self.slot).creating(what)? {
            sys::exit_now(0);
        }
        self.settle()?;
        Ok(false)
    }

    /// Mounts the container's root over the current root, which every process can reach. There it can become
    /// the root of the mount namespace.
    fn mount_root(&self, root: &Root) -> Result<(), Fault> {
        let what = || "cannot mount the root file system";
        if self.nodev {
            let nodev = sys::MountAttr { set: sys::MOUNT_ATTR_NODEV, ..sys::MountAttr::default() };
            sys::mount_setattr(root.fd(), false, nodev).creating(what)?;
        }
        let host = layout::open_dir(Path::new("/")).creating(what)?;
        attach(root.fd(), host.as_fd()).creating(what)
    }

    /// Waits for a byte from the shim. If the shim has ended, this process is not needed any more.
    fn await_byte(&self, expected: u8) -> Result<(), Fault> {
        let mut byte = [0];
        match socket::receive(self.shim.as_fd(), &mut byte, &mut Vec::new()) {
            Ok(1) if byte[0] == expected => Ok(()),
            Ok(0) | Err(_) => sys::exit_now(128),
            Ok(_) => Err(Fault::create(format!(
                "expected {:?} from the shim, got {:?}",
                expected as char, byte[0] as char
            ))),
        }
    }

    fn connect_stdio(
        &self,
        terminal: Option<BorrowedFd<'_>>,
        null: &OwnedFd,
        user: &User,
    ) -> Result<(), Fault> {
        let what = || "cannot connect standard input and output";
        let (stdin, stdout, stderr) = match terminal {
            Some(inner) => (inner, inner, inner),
            None => (self.stdin.as_ref().unwrap_or(null).as_fd(), self.stdout.as_fd(), self.stderr.as_fd()),
        };
        if let Some(inner) = terminal {
            // This process is in the pod's user namespace, if there is one.
            let uid = rustix::fs::Uid::from_raw(userns::host_id(None, user.uid));
            rustix::fs::fchown(inner, Some(uid), None).creating(what)?;
        }
        rustix::stdio::dup2_stdin(stdin).creating(what)?;
        rustix::stdio::dup2_stdout(stdout).creating(what)?;
        rustix::stdio::dup2_stderr(stderr).creating(what)?;
        Ok(())
    }
}

/// The parts of the host that go into a container.
struct Parts<'a> {
    root: Root,
    volumes: Vec<mounts::Volume<'a>>,
    /// A /dev with its nodes, if none can be created in the container's user namespace.
    dev: Option<OwnedFd>,
    shm: OwnedFd,
    /// The /proc of a shared pid namespace.
    proc: Option<OwnedFd>,
}

/// The pod's namespaces, open. After joining a user namespace, nothing on the host can be opened by name any
/// more.
struct Namespaces {
    user: Option<OwnedFd>,
    others: Vec<(OwnedFd, i32)>,
    /// The shared pid namespace, if there is one.
    pid: Option<OwnedFd>,
}

impl Namespaces {
    fn open(sandbox: &SandboxState) -> Result<Self, Fault> {
        let open = |path: &PathBuf| {
            rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
                .creating(|| format!("cannot join namespace {}", path.display()))
        };
        let mut others = Vec::new();
        for (path, kind) in [
            (&sandbox.net, libc::CLONE_NEWNET),
            (&sandbox.ipc, libc::CLONE_NEWIPC),
            (&sandbox.uts, libc::CLONE_NEWUTS),
        ] {
            others.extend(path.as_ref().map(open).transpose()?.map(|fd| (fd, kind)));
        }
        let user = sandbox.user.as_ref().map(|user| open(&user.path)).transpose()?;
        Ok(Namespaces { user, others, pid: sandbox.pid.as_ref().map(open).transpose()? })
    }

    /// Joins all namespaces except the pid namespace, and creates the container's own. The current cgroup of
    /// the process becomes the root of the cgroup namespace.
    fn join(&self) -> Result<(), Fault> {
        let what = || "cannot join the pod's namespaces";
        let mut own = libc::CLONE_NEWCGROUP;
        if let Some(user) = &self.user {
            sys::setns(user.as_fd(), libc::CLONE_NEWUSER).creating(what)?;
            sys::become_root().creating(what)?;
            // The existing mounts belong to the host's users.
            own |= libc::CLONE_NEWNS;
        }
        for (fd, kind) in &self.others {
            sys::setns(fd.as_fd(), *kind).creating(what)?;
        }
        sys::unshare(own).creating(|| "cannot make the container's namespaces")
    }
}

/// Reports an error to the shim.
fn report(shim: BorrowedFd<'_>, fault: Fault) {
    if let Ok(message) = serde_json::to_vec(&FromInit::Failed(fault)) {
        let _ = socket::send(shim, &message, &[]);
    }
}

/// Makes `root` the root directory and unmounts the host's.
fn enter_root(root: &Root) -> Result<(), Fault> {
    let what = || "cannot enter the new root";
    rustix::process::fchdir(root.fd()).creating(what)?;
    // The old root is now mounted over the new one. It can be unmounted there without a directory of its own.
    rustix::process::pivot_root(".", ".").creating(what)?;
    rustix::mount::unmount(".", UnmountFlags::DETACH).creating(what)?;
    rustix::process::chdir("/").creating(what)
}
