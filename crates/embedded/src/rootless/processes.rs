//! Finds the processes of a container without a cgroup by their mount namespace, and the namespaces to join.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use outrigger_runtime::processes::Process;

/// The maximum number of rounds of killing. A container that keeps forking for longer has no limit that would
/// stop it either.
const ROUNDS_MAX: usize = 64;

/// A mount namespace. It is kept open, because the kernel immediately reuses the number of a deleted one,
/// possibly for another container.
#[derive(Debug)]
pub(crate) struct MountNamespace {
    number: u64,
    _open: fs::File,
}

impl MountNamespace {
    /// The mount namespace of a process.
    pub(crate) fn of_process(pid: i32) -> Option<Self> {
        let open = fs::File::open(format!("/proc/{pid}/ns/mnt")).ok()?;
        Some(MountNamespace { number: open.metadata().ok()?.ino(), _open: open })
    }

    /// All processes in the namespace.
    fn processes(&self) -> Vec<Process> {
        let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
        let is_in = |process: &Path| number(process) == Some(self.number);
        let found = |entry: fs::DirEntry| {
            let (pid, path) = (entry.file_name().to_str()?.parse().ok()?, entry.path());
            if !is_in(&path) {
                return None;
            }
            Process::find(pid, || is_in(&path))
        };
        entries.flatten().filter_map(found).collect()
    }

    /// Kills all processes in the namespace. Never kills in the caller's own namespace.
    pub(crate) fn kill(&self) {
        if number(Path::new("/proc/self")).is_none_or(|own| own == self.number) {
            return;
        }
        for _ in 0..ROUNDS_MAX {
            let found = self.processes();
            if found.is_empty() {
                return;
            }
            found.iter().for_each(Process::kill);
        }
    }
}

/// The number of a process's mount namespace.
fn number(process: &Path) -> Option<u64> {
    Some(fs::metadata(process.join("ns/mnt")).ok()?.ino())
}

/// The namespaces that a process has and the caller does not have, as flags. Joining one that both are
/// already in needs privileges. Nobody has these for the host's namespaces without root.
pub(crate) fn namespaces_to_join(pid: i32) -> i32 {
    let kinds = [
        ("mnt", libc::CLONE_NEWNS),
        ("ipc", libc::CLONE_NEWIPC),
        ("net", libc::CLONE_NEWNET),
        ("uts", libc::CLONE_NEWUTS),
        ("cgroup", libc::CLONE_NEWCGROUP),
        ("pid", libc::CLONE_NEWPID),
    ];
    let inode =
        |whose: &str, name: &str| fs::metadata(format!("/proc/{whose}/ns/{name}")).ok().map(|m| m.ino());
    let differs = |name: &str| {
        let theirs = inode(&pid.to_string(), name);
        theirs.is_none() || theirs != inode("self", name)
    };
    kinds.into_iter().filter(|(name, _)| differs(name)).fold(0, |all, (_, kind)| all | kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};

    /// A process in a new mount namespace. It reports when it is there.
    fn in_new_namespace() -> Child {
        use std::io::Read as _;
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", "echo; exec sleep 600"]).stdout(Stdio::piped());
        let mut child = command.spawn().expect("unshare");
        child.stdout.take().expect("output").read_exact(&mut [0]).expect("these tests need root");
        child
    }

    /// The kernel reuses the number of a deleted mount namespace. A new container that has it must not be
    /// killed instead of the one that ended.
    #[test]
    fn a_namespace_that_is_gone_is_never_another_one_as_root() {
        for _ in 0..20 {
            let mut first = in_new_namespace();
            let namespace = MountNamespace::of_process(first.id() as i32).expect("a namespace");
            first.kill().expect("kill");
            first.wait().expect("its end");
            let mut others: Vec<Child> = (0..3).map(|_| in_new_namespace()).collect();
            namespace.kill();
            for other in &mut others {
                assert!(
                    other.try_wait().expect("a child").is_none(),
                    "a process of another namespace was killed"
                );
                other.kill().expect("kill");
                other.wait().expect("its end");
            }
        }
    }

    #[test]
    fn everybody_in_a_namespace_is_killed_as_root() {
        let mut child = in_new_namespace();
        MountNamespace::of_process(child.id() as i32).expect("a namespace").kill();
        assert!(!child.wait().expect("its end").success());
    }
}
