//! The process that holds a pod's shared pid namespace, and adopts the orphans in it.
//!
//! `shim pause` forks it, pins the namespace, says its pid and ends. The process itself has nothing: an empty root, no
//! capabilities, no descriptors; the containers that share its namespace can look at it as they like.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_change};
use rustix::pipe::{PipeFlags, pipe_with};

use rustix::thread::{CapabilitySet, CapabilitySets};

use crate::embedded::container::caps::CapSet;
use crate::embedded::layout::{self, open_dir};
use crate::embedded::protocol::ProcessRecord;
use crate::embedded::{rootless, sys};

/// Where the process is written down in the pod's directory.
pub(crate) const NOTE: &str = "pause.json";

/// Runs with the pod's directory and, where there is one, the cgroup to be in.
pub(super) fn run(control: OwnedFd, args: &[OsString]) -> io::Result<()> {
    let [dir, rest @ ..] = args else { return Err(io::Error::other("the pod's directory is missing")) };
    let ns = PathBuf::from(dir).join("ns");
    let cgroup = rest.first().map(|path| open_dir(Path::new(path))).transpose()?;
    let (ready, report) = pipe_with(PipeFlags::CLOEXEC)?;
    match sys::clone3(libc::CLONE_NEWPID, cgroup.as_ref().map(AsFd::as_fd))? {
        sys::Cloned::Child => {
            drop(ready);
            if let Err(error) = mount_proc(&ns).and_then(|()| {
                rustix::io::write(&report, b"r")?;
                hold(&ns)
            }) {
                eprintln!("outrigger shim pause: {error}");
            }
            sys::exit_now(1)
        }
        sys::Cloned::Parent { pid, pidfd } => {
            drop(report);
            // Written down by whoever is sure to live long enough: the agent may be killed before it hears of it.
            let noted = layout::write_json(&Path::new(dir).join(NOTE), &ProcessRecord::of(pid));
            let pinned = noted
                .and_then(|()| fs::File::from(ready).read_exact(&mut [0]))
                .and_then(|()| pin(&ns, pid))
                .and_then(|()| fs::File::from(control).write_all(pid.to_string().as_bytes()));
            if pinned.is_err() {
                let _ = sys::pidfd_kill(pidfd.as_fd(), libc::SIGKILL);
            }
            pinned
        }
    }
}

/// Mounts a /proc of the namespace for the containers: only a process in it can, and theirs must not be seen there before
/// they are done with all such things.
fn mount_proc(ns: &Path) -> io::Result<()> {
    let target = ns.join("proc");
    fs::create_dir_all(&target)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    Ok(mount("proc", target, "proc", flags, None)?)
}

fn pin(ns: &Path, pid: i32) -> io::Result<()> {
    let target = ns.join("pid");
    fs::File::create(&target)?;
    Ok(mount_bind(format!("/proc/{pid}/ns/pid"), &target)?)
}

/// Containers see this process as theirs: it must not tell them where the pod's files are on the host. A kernel that
/// does not allow this takes nothing from the pod.
fn forget_arguments() -> io::Result<()> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    // The name in parentheses may hold anything; what follows it are numbers, the state being the third field.
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

fn hold(ns: &Path) -> io::Result<()> {
    let _ = forget_arguments();
    for (name, kind) in
        [("net", libc::CLONE_NEWNET), ("ipc", libc::CLONE_NEWIPC), ("uts", libc::CLONE_NEWUTS)]
    {
        if let Ok(fd) = rustix::fs::open(ns.join(name), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
            sys::setns(fd.as_fd(), kind)?;
        }
    }
    sys::unshare(libc::CLONE_NEWNS)?;
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?;
    mount("pause", ns, "tmpfs", MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV, c"size=4k")?;
    rustix::process::chdir(ns)?;
    rustix::process::pivot_root(".", ".")?;
    rustix::mount::unmount(".", UnmountFlags::DETACH)?;
    rustix::process::chdir("/")?;
    sys::close_from(3)?;
    for (number, _) in CapSet(0).numbers() {
        let _ = sys::prctl(libc::PR_CAPBSET_DROP, u64::from(number));
    }
    if rootless::standing().is_rootless() {
        // Stays the user's own, so that the user can end it; what it could do as root goes all the same.
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
    // From here on there is nothing to say, and whoever reads the agent's standard error may wait for its end.
    rustix::stdio::dup2_stderr(rustix::stdio::stdin())?;
    loop {
        sys::wait_signal(&[libc::SIGCHLD]);
        while sys::reap(-1, false).is_some() {}
    }
}
