//! Kills processes that may end by themselves at any moment.
//!
//! A pid is not reliable: the kernel reuses it, within seconds if containers fork endlessly. Nothing here is
//! therefore signalled by its pid. A process is first opened and then checked ([`Process::find`]). If it was
//! the right one at that time, the handle stays right permanently.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read as _;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::signals;

/// How long to wait for the processes of a tree to stop, all together.
const STOP_PATIENCE: Duration = Duration::from_millis(500);

/// How often to check whether they have stopped.
const LOOK: Duration = Duration::from_micros(100);

/// A larger tree is a fork bomb. It ends only when the container itself is stopped.
const TREE_MAX: usize = 4096;

/// A handle of one process that stays valid when its pid is reused.
#[derive(Debug)]
pub struct Process {
    pid: i32,
    handle: OwnedFd,
}

impl Process {
    /// Wraps a process that was forked together with its handle.
    pub fn new(pid: i32, handle: OwnedFd) -> Self {
        Process { pid, handle }
    }

    /// Opens the process with a pid. `is_meant` is called after the process is open. It must check whether
    /// the process that has the pid now is the right one.
    pub fn find(pid: i32, is_meant: impl FnOnce() -> bool) -> Option<Self> {
        let handle = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
        is_meant().then_some(Process { pid, handle })
    }

    /// Opens a child of this process that has not been reaped.
    pub fn child(pid: i32) -> Option<Self> {
        Self::child_of(std::process::id() as i32, pid)
    }

    fn child_of(parent: i32, pid: i32) -> Option<Self> {
        Self::find(pid, || Stat::of_process(pid).is_some_and(|stat| stat.parent == parent))
    }

    /// The pid, for messages and for files below /proc.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Kills it, if it still exists.
    pub fn kill(&self) {
        let _ = signals::pidfd_kill(self.handle.as_fd(), libc::SIGKILL);
    }

    /// Whether the pid still belongs to this process, which then has not been reaped. If so, anything that
    /// was read by pid before this call was about this process.
    fn has_number(&self) -> bool {
        signals::pidfd_kill(self.handle.as_fd(), 0).is_ok()
    }

    /// Waits for the end of the process until `deadline`. Returns whether it has ended.
    fn ends_before(&self, deadline: Instant) -> bool {
        loop {
            let rest = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec { tv_sec: rest.as_secs() as i64, tv_nsec: i64::from(rest.subsec_nanos()) };
            match poll(&mut [PollFd::new(&self.handle, PollFlags::IN)], Some(&timeout)) {
                Err(rustix::io::Errno::INTR) => {}
                result => return matches!(result, Ok(1..)),
            }
        }
    }

    /// Stops the process and waits until it no longer runs, so that it cannot fork any more.
    fn stop(&self, deadline: Instant) {
        let _ = signals::pidfd_kill(self.handle.as_fd(), libc::SIGSTOP);
        // A fork in progress is finished before the process stops.
        while !self.is_still() && self.has_number() && Instant::now() < deadline {
            self.ends_before(Instant::now() + LOOK);
        }
    }

    /// Whether none of its threads is running.
    fn is_still(&self) -> bool {
        let Ok(threads) = fs::read_dir(format!("/proc/{}/task", self.pid)) else { return true };
        threads.flatten().all(|thread| match Stat::read(&thread.path().join("stat")) {
            Some(stat) => matches!(stat.state, 'T' | 't' | 'Z' | 'X'),
            None => true,
        })
    }

    /// The children of its threads that have not been reaped.
    fn children(&self) -> Vec<Process> {
        let Ok(threads) = fs::read_dir(format!("/proc/{}/task", self.pid)) else { return Vec::new() };
        let lists = threads.flatten().filter_map(|thread| {
            let mut list = String::new();
            let file = fs::File::open(thread.path().join("children")).ok()?;
            // A pid and a space need less than eight bytes.
            file.take(8 * TREE_MAX as u64).read_to_string(&mut list).ok().map(|_| list)
        });
        let pids: Vec<i32> = lists
            .flat_map(|list| list.split(' ').filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
            .collect();
        let found = pids.into_iter().filter_map(|pid| Self::child_of(self.pid, pid)).collect();
        if self.has_number() { found } else { Vec::new() }
    }
}

/// Kills processes and waits until they have ended, for at most `patience`. Returns whether all have ended.
pub fn kill_and_wait(processes: &[Process], patience: Duration) -> bool {
    let deadline = Instant::now() + patience;
    processes.iter().for_each(Process::kill);
    processes.iter().all(|process| process.ends_before(deadline))
}

/// Kills a process and all its descendants, and the process groups that these lead.
///
/// All of them are stopped before any is killed, parents before children. Otherwise a process could fork
/// after its children were listed, and the new process would be missed.
pub fn kill_tree(root: &Process) {
    let deadline = Instant::now() + STOP_PATIENCE;
    root.stop(deadline);
    let mut below: Vec<Process> = Vec::new();
    let mut known = BTreeSet::from([root.pid]);
    loop {
        let mut found = Vec::new();
        for process in std::iter::once(root).chain(&below) {
            for child in process.children() {
                if known.len() < TREE_MAX && known.insert(child.pid) {
                    child.stop(deadline);
                    found.push(child);
                }
            }
        }
        // If a process ended before it could be stopped, its children now belong to another process of the
        // tree.
        if found.is_empty() {
            break;
        }
        below.append(&mut found);
    }
    for process in std::iter::once(root).chain(&below) {
        // While the process is stopped, its pid and the id of its group cannot be reused.
        let leads = Stat::of_process(process.pid).is_some_and(|stat| stat.group == process.pid);
        if leads && process.has_number() {
            let _ = signals::kill_group(process.pid, libc::SIGKILL);
        }
        process.kill();
    }
}

/// The kernel's state of a process or thread.
struct Stat {
    state: char,
    parent: i32,
    group: i32,
}

impl Stat {
    fn of_process(pid: i32) -> Option<Self> {
        Self::read(format!("/proc/{pid}/stat").as_ref())
    }

    fn read(path: &std::path::Path) -> Option<Self> {
        let text = fs::read_to_string(path).ok()?;
        // The command's name may contain spaces and brackets, so the fields start after the last bracket.
        let mut fields = text.rsplit_once(") ")?.1.split(' ');
        Some(Stat {
            state: fields.next()?.chars().next()?,
            parent: fields.next()?.parse().ok()?,
            group: fields.next()?.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt as _;
    use std::process::{Child, Command};

    /// Starts a shell in its own session, like commands in containers.
    fn shell(script: &str) -> Child {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        // SAFETY: between fork and exec only a system call is made.
        unsafe { command.pre_exec(|| Ok(rustix::process::setsid().map(drop)?)) };
        command.spawn().unwrap()
    }

    /// How many processes run `sleep SECONDS`.
    fn sleepers(seconds: u32) -> usize {
        let wanted = format!("sleep\0{seconds}\0").into_bytes();
        let entries = fs::read_dir("/proc").unwrap().flatten();
        entries
            .filter(|entry| fs::read(entry.path().join("cmdline")).is_ok_and(|line| line == wanted))
            .count()
    }

    fn eventually(what: &str, check: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !check() {
            assert!(Instant::now() < deadline, "not in time: {what}");
            std::thread::park_timeout(Duration::from_millis(1));
        }
    }

    /// A number that nothing else on this machine uses.
    fn mark(test: u32) -> u32 {
        100_000_000 + std::process::id() * 10 + test
    }

    #[test]
    fn a_process_that_is_not_meant_is_not_opened() {
        let mut other = shell("sleep 600");
        let pid = other.id() as i32;
        assert!(Process::find(pid, || false).is_none());
        assert!(Process::child(pid).is_some() && Process::child_of(1, pid).is_none());
        assert!(Process::child(std::process::id() as i32).is_none());
        kill_tree(&Process::child(pid).unwrap());
        other.wait().unwrap();
        assert!(Process::child(pid).is_none());
    }

    /// A process that forks all the time leaves nothing behind, no matter when it is killed.
    #[test]
    fn a_tree_that_grows_is_killed_whole() {
        let mark = mark(1);
        for round in 0..60_u64 {
            // The processes are in their own sessions, where no signal to a group reaches them.
            let script =
                format!("n=0; while [ $n -lt 150 ]; do setsid sleep {mark} & n=$((n+1)); done; wait");
            let mut child = shell(&script);
            std::thread::park_timeout(Duration::from_micros(round * 700));
            kill_tree(&Process::child(child.id() as i32).unwrap());
            child.wait().unwrap();
            eventually("all are gone", || sleepers(mark) == 0);
        }
    }

    /// Processes whose parents have ended are still found by their group.
    #[test]
    fn orphans_in_the_group_are_killed() {
        let mark = mark(2);
        let mut child = shell(&format!("(sleep {mark} & sleep {mark} &); sleep 600"));
        eventually("both sleep", || sleepers(mark) == 2);
        kill_tree(&Process::child(child.id() as i32).unwrap());
        child.wait().unwrap();
        eventually("both are gone", || sleepers(mark) == 0);
    }

    #[test]
    fn the_end_of_all_is_waited_for() {
        let mut children = [shell("exec sleep 600"), shell("exec sleep 600")];
        let processes: Vec<Process> =
            children.iter().map(|child| Process::child(child.id() as i32).unwrap()).collect();
        assert!(kill_and_wait(&processes, Duration::from_secs(20)));
        for child in &mut children {
            assert!(child.try_wait().unwrap().is_some());
        }
        let mut living = shell("exec sleep 600");
        let process = Process::child(living.id() as i32).unwrap();
        assert!(!process.ends_before(Instant::now() + Duration::from_millis(1)));
        assert!(kill_and_wait(&[process], Duration::from_secs(20)));
        living.wait().unwrap();
    }
}
