//! Finds and kills processes that a runtime has lost track of.
//!
//! If containerd is killed while it creates a sandbox or starts a container, it may forget a shim, or the
//! shim of the whole pod with everything in it. An interrupted kill leaves a container frozen. No call
//! reaches such processes any more. They can still be identified: a container's cgroup contains the runtime's
//! id, and so do a shim's arguments. A shim's bundle also names the pod's directory.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// The minimum length of an id. Ids are long and random, and a shorter text could match anything.
const ID_LENGTH_MIN: usize = 32;

/// The directory of runc's own records of CRI containers.
const RECORDS: &str = "/run/containerd/runc/k8s.io";
/// A process that is about to execute the program waits at this pipe. The pipe exists as long as it waits.
const PIPE: &str = "exec.fifo";

/// Kills what is left of a pod that the runtime claims to have removed: containers and sandboxes with known
/// ids, and those that name the pod's directory. Returns the number of killed processes.
pub(super) fn end(ids: &[String], dir: &Path) -> usize {
    let unheard_of: Vec<String> = pids().filter_map(|pid| shim(pid, dir)).collect();
    let ids = ids.iter().chain(&unheard_of).map(String::as_str);
    end_all(&ids.filter(|id| id.len() >= ID_LENGTH_MIN).collect::<Vec<_>>())
}

fn end_all(ids: &[&str]) -> usize {
    let mut ended = 0;
    for pid in pids().filter(|pid| belongs(*pid, ids)) {
        let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
        // The pid may have been reused before the process was opened.
        if belongs(pid, ids) && pidfd_send_signal(&process, Signal::KILL).is_ok() {
            // A frozen process does not die until it is thawed.
            thaw(pid.as_raw_nonzero().get().unsigned_abs());
            ended += 1;
        }
    }
    ended
}

/// Kills what is left of a container whose start was interrupted, so that it cannot start any more. Returns
/// whether its program has run.
pub(super) fn end_start(id: &str) -> bool {
    if id.len() < ID_LENGTH_MIN {
        return false;
    }
    let runs = |pid: Pid| read(pid, "cgroup").contains(id) && !is_preparing(&read(pid, "cmdline"));
    let was_run = pids().any(runs);
    end_all(&[id]);
    was_run || is_on_record(&Path::new(RECORDS).join(id))
}

/// Whether a process has not executed its program yet.
fn is_preparing(command: &str) -> bool {
    // A process that has ended has no command line any more, so it is unknown what it was.
    command.is_empty() || command.starts_with("runc\0init\0") || command.starts_with("runc:[")
}

/// Whether a program has run, according to runc's record.
fn is_on_record(record: &Path) -> bool {
    record.join("state.json").exists() && !record.join(PIPE).exists()
}

/// Whether a container's program has not run yet, according to runc's record.
pub(super) fn waits(id: &str) -> bool {
    Path::new(RECORDS).join(id).join(PIPE).exists()
}

/// Whether a container's process is frozen. It is frozen while a kill is in progress.
pub(super) fn is_frozen(pid: u32, id: &str) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| belongs(pid, &[id]) && freezers(pid).iter().any(Freezer::is_on))
}

fn pids() -> impl Iterator<Item = Pid> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?))
}

fn read(pid: Pid, file: &str) -> String {
    let bytes = fs::read(format!("/proc/{}/{file}", pid.as_raw_nonzero())).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Whether a process belongs to a container or sandbox, or is the shim of one.
fn belongs(pid: Pid, ids: &[&str]) -> bool {
    let cgroups = read(pid, "cgroup");
    if ids.iter().any(|id| cgroups.contains(id)) {
        return true;
    }
    shim_arguments(pid).is_some_and(|words| words.iter().any(|word| ids.contains(&word.as_str())))
}

/// The arguments of a process, if it is a shim.
fn shim_arguments(pid: Pid) -> Option<Vec<String>> {
    let command = read(pid, "cmdline");
    let mut words = command.split('\0');
    let program = words.next()?.rsplit('/').next()?;
    (program.starts_with("containerd-shim") && is_of_the_host(pid))
        .then(|| words.map(str::to_owned).collect())
}

/// Whether a process is in the host's mount namespace, as shims are. A process in a container could imitate
/// the arguments of a shim to have another container killed.
fn is_of_the_host(pid: Pid) -> bool {
    let mounts = |pid: &str| fs::metadata(format!("/proc/{pid}/ns/mnt")).ok().map(|m| (m.dev(), m.ino()));
    let found = mounts(&pid.as_raw_nonzero().to_string());
    // Process 1 is also compared, for an agent that itself runs in a container.
    found.is_some() && ["self", "1"].into_iter().any(|host| mounts(host) == found)
}

/// The id of a sandbox, if a process is its shim and its pod's logs are in `dir`.
fn shim(pid: Pid, dir: &Path) -> Option<String> {
    let mut words = shim_arguments(pid)?.into_iter().skip_while(|word| word != "-id").skip(1);
    // A shim's working directory is its bundle.
    let bundle: Value = serde_json::from_str(&read(pid, "cwd/config.json")).ok()?;
    let logs = bundle.pointer("/annotations/io.kubernetes.cri.sandbox-log-directory")?.as_str()?;
    words.next().filter(|_| Path::new(logs) == dir)
}

/// The freezer of a cgroup.
struct Freezer {
    dir: PathBuf,
    /// The file with its state, and the text that means frozen.
    says: (&'static str, &'static str),
    /// The file to write to, and the text that thaws it.
    told: (&'static str, &'static str),
}

impl Freezer {
    fn is_on(&self) -> bool {
        let (file, state) = self.says;
        fs::read_to_string(self.dir.join(file)).is_ok_and(|says| says.lines().any(|line| line == state))
    }

    fn let_go(&self) -> bool {
        let (file, word) = self.told;
        fs::write(self.dir.join(file), word).is_ok()
    }
}

/// The freezers of a process, for cgroup v1 and v2.
fn freezers(pid: Pid) -> Vec<Freezer> {
    let root = Path::new("/sys/fs/cgroup");
    let of = |line: &str| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?.trim_start_matches('/'));
        match controllers {
            "freezer" => Some(Freezer {
                dir: root.join("freezer").join(path),
                says: ("freezer.state", "FROZEN"),
                told: ("freezer.state", "THAWED"),
            }),
            "" => Some(Freezer {
                dir: root.join(path),
                says: ("cgroup.events", "frozen 1"),
                told: ("cgroup.freeze", "0"),
            }),
            _ => None,
        }
    };
    read(pid, "cgroup").lines().filter_map(of).collect()
}

/// Thaws the process of a container. Returns whether it was frozen.
pub(super) fn thaw(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| freezers(pid).iter().filter(|freezer| freezer.is_on()).any(Freezer::let_go))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
    use std::process::Command;

    #[test]
    fn only_what_bears_the_id_is_ended() {
        let id = |first: char| format!("{first}123456789abcdef0123456789abcdef");
        let bundle = |logs: &str| {
            let dir = tempfile::tempdir().unwrap();
            let annotations = serde_json::json!({"io.kubernetes.cri.sandbox-log-directory": logs});
            let config = serde_json::json!({"annotations": annotations});
            fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
            dir
        };
        let (own, others) = (bundle("/pods/a"), bundle("/pods/b"));
        let shim = |name: &str, first: char, bundle: &tempfile::TempDir| {
            let mut command = Command::new("sh");
            command.arg0(name).args(["-c", "read line", "-id", &id(first)]).current_dir(bundle.path());
            command.stdin(std::process::Stdio::piped()).spawn().unwrap()
        };
        let program = "/usr/bin/containerd-shim-runc-v2";
        let mut left = [shim(program, '0', &others), shim(program, '1', &own)];
        let mut kept = [shim(program, '2', &others), shim("/usr/bin/sh", '0', &own)];
        assert_eq!(end(&["0123".to_owned()], Path::new("/pods")), 0, "too short to be sure");
        assert_eq!(end(&[id('0')], Path::new("/pods/a")), 2);
        for own in &mut left {
            assert_eq!(own.wait().unwrap().signal(), Some(9));
        }
        for other in &mut kept {
            assert!(other.try_wait().unwrap().is_none(), "it is nobody's to end");
            other.kill().unwrap();
            other.wait().unwrap();
        }
    }

    /// A process in a container imitates the shim of a removed pod, with the id of another pod.
    #[test]
    fn who_only_looks_like_a_shim_has_nobody_ended() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let victim = "fedcba9876543210fedcba9876543210";
        let dir = tempfile::tempdir().unwrap();
        let annotations = serde_json::json!({"io.kubernetes.cri.sandbox-log-directory": "/pods/looks-like"});
        fs::write(
            dir.path().join("config.json"),
            serde_json::json!({"annotations": annotations}).to_string(),
        )
        .unwrap();
        let spawn = |in_container: bool, args: &[&str]| {
            let mut command = Command::new("sh");
            command.arg0("/usr/bin/containerd-shim-runc-v2").args(["-c", "read line"]).args(args);
            command.current_dir(dir.path()).stdin(std::process::Stdio::piped());
            if in_container {
                // SAFETY: a plain system call.
                unsafe {
                    command.pre_exec(|| match libc::unshare(libc::CLONE_NEWNS) {
                        0 => Ok(()),
                        _ => Err(std::io::Error::last_os_error()),
                    })
                };
            }
            command.spawn().unwrap()
        };
        let mut hostile = spawn(true, &["-id", victim]);
        let mut other = spawn(false, &["-id", "no", victim]);
        assert_eq!(end(&[], Path::new("/pods/looks-like")), 0);
        for process in [&mut hostile, &mut other] {
            assert!(process.try_wait().unwrap().is_none());
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    #[test]
    fn a_record_tells_whether_a_program_was_run() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!is_on_record(dir.path()), "nothing is known of it");
        fs::write(dir.path().join("exec.fifo"), "").unwrap();
        assert!(!is_on_record(dir.path()), "it is being made");
        fs::write(dir.path().join("state.json"), "").unwrap();
        assert!(!is_on_record(dir.path()), "it waits");
        fs::remove_file(dir.path().join("exec.fifo")).unwrap();
        assert!(is_on_record(dir.path()));
    }

    #[test]
    fn a_program_is_told_from_what_becomes_one() {
        for (command, expected) in
            [("runc\0init\0", true), ("runc:[2:INIT]\0", true), ("", true), ("sh\0-c\0:\0", false)]
        {
            assert_eq!(is_preparing(command), expected, "{command:?}");
        }
    }

    #[test]
    fn what_runs_is_not_frozen() {
        assert!(!is_frozen(std::process::id(), "0123456789abcdef0123456789abcdef"));
        assert!(!is_frozen(0, "0123456789abcdef0123456789abcdef"));
    }
}
