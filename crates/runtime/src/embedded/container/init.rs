//! A container's first process, from the fork to the user's program.
//!
//! It is forked by the shim into new mount and pid namespaces, builds the container around itself, and tells the shim
//! over a sequenced-packet socket: [`FromInit::Ready`], or [`FromInit::Failed`] and it ends. The shim sends one byte
//! when the process is in all its cgroups ([`IN_CGROUPS`]), and one to start the program ([`START`]). The socket closes
//! by itself when the exec succeeds; a failure is told before the end.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountPropagationFlags, UnmountFlags};
use serde::{Deserialize, Serialize};

use super::process::{Profile, run_program};
use super::root::{Root, relative};
use super::user::{self, User};
use super::{dev, mounts, rootfs, terminal};
use crate::embedded::fault::{Context, Fault};
use crate::embedded::protocol::ShimConfig;
use crate::embedded::{layout, socket, sys};

/// Shim to init: all cgroups are joined.
pub(crate) const IN_CGROUPS: u8 = b'c';
/// Shim to init: exec.
pub(crate) const START: u8 = b's';

/// Init to shim.
#[derive(Serialize, Deserialize)]
pub(crate) enum FromInit {
    /// Everything is in place. Comes with the outer end of the terminal when there is one.
    Ready(User),
    /// It is done otherwise than asked; more follows.
    Warning(String),
    /// It could not be done.
    Failed(Fault),
}

/// What the process was forked with.
pub(crate) struct Init<'a> {
    pub(crate) config: &'a ShimConfig,
    pub(crate) profile: &'a Profile,
    pub(crate) command: &'a [String],
    /// The socket to the shim.
    pub(crate) shim: OwnedFd,
    /// stdin (when kept open), stdout, stderr. Unused with a terminal.
    pub(crate) stdin: Option<OwnedFd>,
    pub(crate) stdout: OwnedFd,
    pub(crate) stderr: OwnedFd,
}

impl Init<'_> {
    /// Runs the process. Never returns to the code of the shim it was forked from.
    pub(crate) fn run(self) -> ! {
        let shim = self.shim.as_raw_fd();
        let fault = match self.build_and_exec() {
            Ok(never) => match never {},
            Err(fault) => fault,
        };
        if let Ok(message) = serde_json::to_vec(&FromInit::Failed(fault)) {
            // SAFETY: the descriptor stays open until the process ends.
            let shim = unsafe { BorrowedFd::borrow_raw(shim) };
            let _ = socket::send(shim, &message, &[]);
        }
        sys::exit_now(128)
    }

    /// Has the shim tell something; whether it does changes nothing.
    fn warn(&self, text: String) {
        if let Ok(message) = serde_json::to_vec(&FromInit::Warning(text)) {
            let _ = socket::send(self.shim.as_fd(), &message, &[]);
        }
    }

    fn build_and_exec(&self) -> Result<std::convert::Infallible, Fault> {
        let config = self.config;
        let spec = &config.spec;
        let privileged = spec.identity.privileged;
        // Nothing of this process, which still has the host's files open, is for the container to look at.
        sys::prctl(libc::PR_SET_DUMPABLE, 0).creating(|| "cannot become undumpable")?;
        sys::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as u64)
            .creating(|| "cannot tie the process to its shim")?;
        rustix::process::setsid().creating(|| "cannot start a session")?;
        // Modes below are meant as written.
        rustix::process::umask(Mode::empty());
        self.join_namespaces()?;

        let volumes = mounts::open_volumes(&spec.mounts)?;
        let slave = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
        rustix::mount::mount_change("/", slave).creating(|| "cannot separate the mounts from the host's")?;
        let path = rootfs::mount_rootfs(&config.dir, &spec.image.layers, |text| self.warn(text))?;
        let root = Root::new(layout::open_dir(&path).creating(|| format!("cannot open {}", path.display()))?);
        let mut user = user::resolve(spec, &root, &config.sandbox.pod)?;
        if let Some(text) = user::limit_groups(&mut user) {
            self.warn(text);
        }
        mounts::mount_kernel_filesystems(&root, privileged)?;
        let null = dev::mount_dev(&root, &config.sandbox.shm, privileged)?;
        mounts::mount_volumes(&root, volumes)?;
        let cwd = relative(Path::new(&self.profile.cwd));
        if !cwd.as_os_str().is_empty() {
            root.dir(&cwd).creating(|| format!("cannot make working directory {}", self.profile.cwd))?;
        }

        self.await_byte(IN_CGROUPS)?;
        sys::unshare(libc::CLONE_NEWCGROUP).creating(|| "cannot make a cgroup namespace")?;
        if config.cgroups.is_unified() {
            mounts::mount_cgroup(&root, privileged)?;
        }
        let terminal = if spec.tty {
            Some(terminal::open_terminal(&root).creating(|| "cannot make a terminal")?)
        } else {
            None
        };
        enter_root(&root)?;
        let root = Root::new(layout::open_dir(Path::new("/")).creating(|| "cannot open the new root")?);
        if spec.mask_paths && !privileged {
            mounts::cover_paths(&root, null.as_fd())?;
        }
        if spec.read_only_rootfs {
            let read_only = sys::MountAttr { set: sys::MOUNT_ATTR_RDONLY, ..sys::MountAttr::default() };
            sys::mount_setattr(root.fd(), false, read_only).creating(|| "cannot make the root read-only")?;
        }

        let inner = terminal.as_ref().map(|(_, inner)| inner.as_fd());
        self.connect_stdio(inner, &null, &user)?;
        let message = serde_json::to_vec(&FromInit::Ready(user.clone())).creating(|| "cannot report")?;
        let outer = terminal.as_ref().map(|(outer, _)| outer.as_fd());
        socket::send(self.shim.as_fd(), &message, outer.as_slice()).creating(|| "cannot report")?;
        // Past this line every descriptor but the standard ones goes at the exec, the host's among them.
        sys::cloexec_from(3).creating(|| "cannot close descriptors")?;
        rustix::process::umask(Mode::from_raw_mode(0o022));
        self.await_byte(START)?;
        sys::reset_signals();
        Err(run_program(self.profile, &user, self.command))
    }

    fn join_namespaces(&self) -> Result<(), Fault> {
        let sandbox = &self.config.sandbox;
        for (path, kind) in [
            (&sandbox.net, libc::CLONE_NEWNET),
            (&sandbox.ipc, libc::CLONE_NEWIPC),
            (&sandbox.uts, libc::CLONE_NEWUTS),
        ] {
            let Some(path) = path else { continue };
            let what = || format!("cannot join namespace {}", path.display());
            let fd =
                rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).creating(what)?;
            sys::setns(fd.as_fd(), kind).creating(what)?;
        }
        Ok(())
    }

    /// Waits for the shim's word. A shim that is gone has no further use for this process.
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
        // A pipe or terminal belongs to the user, so that /dev/stdout can be opened by name.
        let (uid, gid) = (rustix::fs::Uid::from_raw(user.uid), rustix::fs::Gid::from_raw(user.gid));
        for fd in [stdout, stderr] {
            rustix::fs::fchown(fd, Some(uid), if terminal.is_some() { None } else { Some(gid) })
                .creating(what)?;
        }
        rustix::stdio::dup2_stdin(stdin).creating(what)?;
        rustix::stdio::dup2_stdout(stdout).creating(what)?;
        rustix::stdio::dup2_stderr(stderr).creating(what)?;
        if let Some(inner) = terminal {
            sys::set_controlling_terminal(inner).creating(what)?;
        }
        Ok(())
    }
}

/// Makes `root` the root and lets go of the host's.
fn enter_root(root: &Root) -> Result<(), Fault> {
    let what = || "cannot enter the new root";
    rustix::process::fchdir(root.fd()).creating(what)?;
    // The old root ends up mounted over the new one, where it can be taken off without a directory of its own.
    rustix::process::pivot_root(".", ".").creating(what)?;
    rustix::mount::unmount(".", UnmountFlags::DETACH).creating(what)?;
    rustix::process::chdir("/").creating(what)
}
