//! The process that holds a pod's shared pid namespace, and reaps the orphans in it.
//!
//! `shim pause` forks it, pins the namespace, reports its pid and ends. The process itself has an empty root,
//! no capabilities and no descriptors. The containers that share its namespace can inspect it freely.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountAttrFlags, MountPropagationFlags, UnmountFlags, mount_bind, mount_change};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use rustix::thread::{CapabilitySet, CapabilitySets};

use crate::caps::CapSet;
use crate::container::root::{attach, new_filesystem};
use crate::layout::{self, open_dir};
use crate::protocol::ProcessRecord;
use crate::sys::PidSlot;
use crate::{rootless, seccomp, socket, sys};
use outrigger_runtime::processes::Process;

/// The file in the pod's directory with the record of the process.
pub(crate) const NOTE: &str = "pause.json";

/// Runs `shim pause`. The arguments are the pod's directory and, if there is one, its cgroup.
pub(super) fn run(control: OwnedFd, args: &[OsString]) -> io::Result<()> {
    let [dir, rest @ ..] = args else { return Err(io::Error::other("the pod's directory is missing")) };
    let _making = layout::begin_making(Path::new(dir))?;
    let ns = PathBuf::from(dir).join("ns");
    let cgroup = rest.first().map(|path| open_dir(Path::new(path))).transpose()?;
    let open =
        |name: &str| match rustix::fs::open(ns.join(name), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
            Err(Errno::NOENT) => Ok(None),
            result => result.map(Some),
        };
    let namespaces =
        Namespaces { user: open("user")?, net: open("net")?, ipc: open("ipc")?, uts: open("uts")? };
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let slot = PidSlot::new()?;
    match sys::clone3(0, cgroup.as_ref().map(AsFd::as_fd))? {
        sys::Cloned::Child => {
            drop(ours);
            // This comes before joining a user namespace, where the kernel does not let the process write to
            // its own memory.
            let _ = forget_arguments();
            if let Err(error) = namespaces.become_first(&slot).and_then(|()| hold(theirs)) {
                eprintln!("outrigger shim pause: {error}");
            }
            sys::exit_now(1)
        }
        sys::Cloned::Parent { pid: forking, .. } => {
            drop(theirs);
            let mut fds = Vec::new();
            let received = socket::receive(ours.as_fd(), &mut [0], &mut fds);
            sys::reap(forking, true);
            let pid = slot.get().ok_or_else(|| io::Error::other("its first process did not start"))?;
            // This process writes the record, because the agent may be killed before it receives the pid.
            let noted = layout::write_json(&Path::new(dir).join(NOTE), &ProcessRecord::of_pid(pid));
            let pinned = noted
                .and(received)
                .and_then(|_| fds.pop().ok_or_else(|| io::Error::other("there is no /proc of it")))
                .and_then(|proc| mount_proc(&ns, proc.as_fd()))
                .and_then(|()| pin(&ns, pid))
                .and_then(|()| fs::File::from(control).write_all(pid.to_string().as_bytes()));
            if pinned.is_err() {
                Process::child(pid).iter().for_each(Process::kill);
            }
            pinned
        }
    }
}

/// The pod's namespaces, open.
struct Namespaces {
    user: Option<OwnedFd>,
    net: Option<OwnedFd>,
    ipc: Option<OwnedFd>,
    uts: Option<OwnedFd>,
}

impl Namespaces {
    /// Joins the namespaces and continues as the first process of a new pid namespace.
    fn become_first(&self, slot: &PidSlot) -> io::Result<()> {
        if let Some(user) = &self.user {
            sys::setns(user.as_fd(), libc::CLONE_NEWUSER)?;
            sys::become_root()?;
        }
        for (fd, kind) in [
            (&self.net, libc::CLONE_NEWNET),
            (&self.ipc, libc::CLONE_NEWIPC),
            (&self.uts, libc::CLONE_NEWUTS),
        ] {
            if let Some(fd) = fd {
                sys::setns(fd.as_fd(), kind)?;
            }
        }
        sys::unshare(libc::CLONE_NEWPID)?;
        if !sys::fork_sibling(slot)? {
            sys::exit_now(0);
        }
        Ok(())
    }
}

/// Mounts a /proc of the namespace for the containers. Only a process in the namespace can create it.
/// Processes of containers must not be visible there before they have done such work.
fn mount_proc(ns: &Path, proc: BorrowedFd<'_>) -> io::Result<()> {
    let target = ns.join("proc");
    fs::create_dir_all(&target)?;
    attach(proc, open_dir(&target)?.as_fd())
}

fn pin(ns: &Path, pid: i32) -> io::Result<()> {
    let target = ns.join("pid");
    fs::File::create(&target)?;
    Ok(mount_bind(format!("/proc/{pid}/ns/pid"), &target)?)
}

/// Hides the arguments. Containers see this process as their own, and it must not reveal where the pod's
/// files are on the host. If the kernel does not permit this, the pod still works.
fn forget_arguments() -> io::Result<()> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    // The name in parentheses may contain anything. Numbers follow it, and the state is the third field.
    let fields: Vec<&str> =
        stat.rsplit_once(')').map(|(_, rest)| rest.split_whitespace().collect()).unwrap_or_default();
    let field = |number: usize| fields.get(number - 3).and_then(|text| text.parse::<u64>().ok());
    let memory = fs::File::options().write(true).open("/proc/self/mem")?;
    for (start, end, text) in [(48, 49, &b"pause"[..]), (50, 51, b"")] {
        let (Some(start), Some(end)) = (field(start), field(end)) else { continue };
        let mut bytes = text.to_vec();
        bytes.resize(usize::try_from(end.saturating_sub(start)).unwrap_or(0), 0);
        memory.write_all_at(&bytes, start)?;
    }
    fs::write("/proc/self/comm", "pause")
}

fn hold(report: OwnedFd) -> io::Result<()> {
    // A container with CAP_SYS_PTRACE can make this process call the kernel. The filter permits only calls
    // that the container's own processes may make.
    let filter = seccomp::filter(&outrigger_runtime::Identity::default(), CapSet(0))
        .map_err(|fault| io::Error::other(fault.text))?;
    sys::unshare(libc::CLONE_NEWNS)?;
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?;
    let quiet = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let proc = new_filesystem("proc", &[], quiet)?;
    socket::send(report.as_fd(), b"p", &[proc.as_fd()])?;
    let root = new_filesystem("tmpfs", &[("size", "4k")], quiet | MountAttrFlags::MOUNT_ATTR_RDONLY)?;
    attach(root.as_fd(), open_dir(Path::new("/"))?.as_fd())?;
    rustix::process::fchdir(&root)?;
    rustix::process::pivot_root(".", ".")?;
    rustix::mount::unmount(".", UnmountFlags::DETACH)?;
    rustix::process::chdir("/")?;
    // Their destructors must not run.
    std::mem::forget((proc, root, report));
    sys::close_from(3)?;
    for (number, _) in CapSet(0).numbers() {
        let _ = sys::prctl(libc::PR_CAPBSET_DROP, u64::from(number));
    }
    if rootless::standing().is_rootless() {
        // The process keeps the user, so that the user can kill it. It still drops root's privileges.
        let none = CapabilitySet::empty();
        rustix::thread::set_capabilities(
            None,
            CapabilitySets { effective: none, permitted: none, inheritable: none },
        )?;
    } else {
        sys::set_ids(65535, 65535, &[])?;
    }
    sys::prctl(libc::PR_SET_NO_NEW_PRIVS, 1)?;
    sys::prctl(libc::PR_SET_DUMPABLE, 0)?;
    // There is no output from here on, and a reader of the agent's standard error would otherwise wait for
    // its end.
    rustix::stdio::dup2_stderr(rustix::stdio::stdin())?;
    if let Some(filter) = &filter {
        sys::seccomp_load(filter)?;
    }
    loop {
        sys::wait_signal(&[libc::SIGCHLD]);
        while sys::reap(-1, false).is_some() {}
    }
}
