//! The process that stops a run's pods in order when the run is killed.
//!
//! `shim guard PID TICKS STATE-DIR ARGUMENTS` waits until the process with that pid and start time has ended.
//! Then it does what the next run would do: it stops and removes the pods in the state directory that have no
//! owner. There are none if the run ended normally.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::protocol::{ProcessRecord, SandboxState};
use crate::{EmbeddedConfig, EmbeddedRuntime, hurry, layout};
use outrigger_runtime::Owner;

/// Runs the guard. The arguments are the owner's pid and start time, the state directory, and the arguments
/// that make this binary a shim.
pub(super) fn run(args: &[OsString]) -> io::Result<()> {
    let [pid, start_ticks, state_dir, arguments @ ..] = args else {
        return Err(io::Error::other("the process to watch is missing"));
    };
    let number = |text: &OsString| text.to_str().and_then(|text| text.parse::<u64>().ok());
    let (Some(pid), Some(start_ticks)) =
        (number(pid).and_then(|pid| i32::try_from(pid).ok()), number(start_ticks))
    else {
        return Err(io::Error::other("the process to watch is not a number"));
    };
    wait_for_the_end(ProcessRecord { pid, start_ticks })?;
    let words = arguments.iter().filter_map(|word| word.to_str()).map(str::to_owned);
    let config = EmbeddedConfig {
        state_dir: PathBuf::from(state_dir),
        shim_command: std::iter::once("/proc/self/exe".to_owned()).chain(words).collect(),
        image_limits: Default::default(),
        owner: Owner::Process,
    };
    let executor = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    executor.block_on(async {
        let runtime = EmbeddedRuntime::new(config).map_err(io::Error::other)?;
        runtime.clean_orphans().await;
        Ok(())
    })
}

/// A run that was killed and whose pods are being stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KilledRun {
    /// The pid of its process.
    pub pid: u32,
    /// Its state directory.
    pub state_dir: PathBuf,
    /// The remaining pods, by name.
    pub pods: Vec<KilledPod>,
}

/// A pod of a killed run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct KilledPod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    dir: PathBuf,
}

impl std::fmt::Display for KilledPod {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl KilledPod {
    /// Whether the pod is removed.
    pub fn is_gone(&self) -> bool {
        !self.dir.join("sandbox.json").exists()
    }

    /// Shortens the pod's grace period. The new one counts from now. A longer one has no effect, and zero
    /// kills.
    ///
    /// # Errors
    /// The pod's directory cannot be written.
    pub fn hurry(&self, grace: Duration) -> io::Result<()> {
        match hurry::request_shorter_grace(&self.dir, grace) {
            // The pod is being removed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }
}

/// The runs that were killed and whose pods are still being stopped, as far as this user may see them.
pub fn killed_runs() -> Vec<KilledRun> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut runs: Vec<KilledRun> = processes
        .filter(|process| is_own(&process.path()))
        .filter_map(|process| {
            let line = std::fs::read(process.path().join("cmdline")).ok()?;
            let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
            // `outrigger shim guard PID TICKS STATE-DIR …`
            let at = words.iter().position(|word| *word == b"guard")?;
            let [pid, start_ticks, state_dir] = words.get(at + 1..at + 4)?.try_into().ok()?;
            let text = |word| std::str::from_utf8(word).ok();
            let (pid, start_ticks) = (text(pid)?.parse().ok()?, text(start_ticks)?.parse().ok()?);
            let owner = ProcessRecord { pid, start_ticks };
            if owner.is_alive() {
                return None;
            }
            let state_dir = PathBuf::from(OsStr::from_bytes(state_dir));
            let mut pods = pods_of(owner, &layout::pods_dir(&state_dir));
            pods.sort();
            Some(KilledRun { pid: u32::try_from(pid).ok()?, state_dir, pods })
                .filter(|run| !run.pods.is_empty())
        })
        .collect();
    runs.sort_by_key(|run| run.pid);
    runs.dedup();
    runs
}

/// Whether a process belongs to this user and this pid namespace. A process in a container may imitate the
/// arguments of a guard, with its own directory in them.
fn is_own(process: &Path) -> bool {
    let status = std::fs::read_to_string(process.join("status")).unwrap_or_default();
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    let uid = field("Uid:").split_whitespace().next().and_then(|uid| uid.parse().ok());
    // A process has a pid in each pid namespace below ours that it is in.
    let numbers = field("NSpid:").split_whitespace().count();
    uid == Some(rustix::process::getuid().as_raw()) && numbers == 1
}

fn pods_of(owner: ProcessRecord, pods: &Path) -> Vec<KilledPod> {
    let dirs = std::fs::read_dir(pods).into_iter().flatten().flatten().map(|dir| dir.path());
    let states =
        dirs.filter_map(|dir| Some((layout::read_json::<SandboxState>(&dir.join("sandbox.json"))?, dir)));
    let own = states.filter(|(state, _)| state.owner == Some(owner));
    own.map(|(state, dir)| {
        let (namespace, name) = state.pod.split_once('/').unwrap_or(("default", &state.pod));
        KilledPod { namespace: namespace.to_owned(), name: name.to_owned(), dir }
    })
    .collect()
}

/// Waits for the end of the owner. Its locks are free by then, because the kernel closes a process's files
/// before it reports the end.
fn wait_for_the_end(owner: ProcessRecord) -> io::Result<()> {
    let Some(pid) = Pid::from_raw(owner.pid) else { return Err(io::ErrorKind::InvalidInput.into()) };
    let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else { return Ok(()) };
    // The pid belongs to another process now.
    while owner.is_alive() {
        match poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], None) {
            Ok(_) => break,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
