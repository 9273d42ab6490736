//! The on-disk state of a node, from which another process can resume its pods.
//!
//! Everything is below `STATE_DIR/node`, separate from the runtime's directories, so that deleting those does
//! not delete the history. Files are replaced by renaming and never synced: they have to survive a crash of
//! the process, not of the machine, and after a reboot the containers are gone anyway.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use outrigger_lifecycle::{Observation, Plan, StopCause};
use outrigger_runtime::{ContainerId, Image};
use serde::{Deserialize, Serialize};

use crate::clock::Clock;
use crate::files::{Saved, make_dir, missing_is_fine, names, read, replace, replace_bytes, to_bytes};
use crate::uid::PodUid;

/// The part of a pod's state that does not change.
const POD: &str = "pod.json";
/// The file with the current state of a pod. (Shims write a `state.json` for each container, which is another
/// file.)
const OBSERVATION: &str = "observation.json";

/// The directory of a node's files.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    dir: PathBuf,
    boot: String,
}

impl Store {
    /// Opens the store of a state directory. No other process may use it
    /// ([`outrigger_runtime::NodeIdentity`]).
    pub(crate) fn open(state_dir: &Path) -> io::Result<Self> {
        let dir = state_dir.join("node");
        make_dir(&dir.join("pods"))?;
        Ok(Store { boot: boot_id()?, dir })
    }

    /// A clock that continues that of the previous process, unless the machine was rebooted since. Deadlines
    /// are kept even if the wall clock was changed.
    pub(crate) fn clock(&self) -> Clock {
        let path = self.dir.join("clock.json");
        let saved = read::<SavedClock>(&path).ok().flatten();
        match saved.filter(|saved| saved.boot == self.boot) {
            Some(saved) => Clock::since_boot(Duration::from_nanos(saved.wall_at_boot_ns)),
            None => {
                let clock = Clock::start();
                let wall_at_boot_ns = u64::try_from(clock.wall_at_boot().as_nanos()).unwrap_or(u64::MAX);
                let saved = SavedClock { boot: self.boot.clone(), wall_at_boot_ns };
                if let Err(e) = replace(&path, &saved) {
                    tracing::warn!("cannot save the clock; deadlines will follow the time of day: {e}");
                }
                clock
            }
        }
    }

    /// The directory of a pod's files.
    pub(crate) fn pod(&self, sandbox: &str) -> PodStore {
        PodStore {
            dir: self.dir.join("pods").join(sandbox),
            boot: self.boot.clone(),
            last: Vec::new(),
            lost: false,
        }
    }

    /// Names of all pods in the store.
    pub(crate) fn pods(&self) -> Vec<String> {
        names(&self.dir.join("pods"))
    }
}

#[derive(Serialize, Deserialize)]
struct SavedClock {
    boot: String,
    wall_at_boot_ns: u64,
}

impl Saved for SavedClock {
    const VERSION: u32 = 1;
}

/// The files of one pod.
#[derive(Debug, Clone)]
pub(crate) struct PodStore {
    dir: PathBuf,
    boot: String,
    /// The last state that was written.
    last: Vec<u8>,
    /// Whether the last write failed. A warning is logged only for the first failure.
    lost: bool,
}

/// The part of a pod's state that does not change.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SavedPod {
    /// Its UID.
    pub(crate) uid: PodUid,
    /// The pod's plan. A pod is stopped by the plan it was started with, even if a later version would build
    /// another one from the manifest (G-30).
    pub(crate) plan: Plan,
}

impl Saved for SavedPod {
    const VERSION: u32 = 1;
}

/// The state a worker needs to resume a pod.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SavedState {
    /// The boot id of the machine when this was written. After a reboot nothing of the pod is running.
    boot: String,
    pub(crate) observation: Observation,
    /// The current plan, if the pod was updated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) plan: Option<Plan>,
    /// In the order of the plan.
    pub(crate) containers: Vec<SavedContainer>,
}

impl Saved for SavedState {
    const VERSION: u32 = 1;
}

/// The state of one container.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct SavedContainer {
    /// Number of attempts to start it so far.
    pub(crate) tries: u32,
    pub(crate) image: Option<Image>,
    /// The instance that exists or is about to be created.
    pub(crate) instance: Option<SavedInstance>,
    pub(crate) container_id: Option<String>,
    pub(crate) last_container_id: Option<String>,
}

/// One instance of a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedInstance {
    pub(crate) id: ContainerId,
    pub(crate) attempt: u32,
    /// Whether its stop signal was sent.
    pub(crate) signalled: bool,
}

/// The state found for a pod.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    pub(crate) state: SavedState,
    /// Whether the machine was rebooted since the state was written.
    pub(crate) rebooted: bool,
}

impl PodStore {
    /// Writes the part that does not change.
    pub(crate) fn create(&self, pod: &SavedPod) -> io::Result<()> {
        make_dir(&self.dir)?;
        replace(&self.dir.join(POD), pod)
    }

    /// Reads the part that does not change; `None` if there is none.
    pub(crate) fn pod(&self) -> io::Result<Option<SavedPod>> {
        read(&self.dir.join(POD))
    }

    /// Reads the last state; `None` if there is none.
    pub(crate) fn load(&self) -> io::Result<Option<Found>> {
        let Some(state) = read::<SavedState>(&self.dir.join(OBSERVATION))? else { return Ok(None) };
        let rebooted = state.boot != self.boot;
        Ok(Some(Found { state, rebooted }))
    }

    /// Writes the current state if it changed. A failure does not stop the pod: it is logged once, and a
    /// later process finds the previous state. Returns whether the state is on disk.
    pub(crate) fn save(
        &mut self,
        observation: &Observation,
        plan: Option<&Plan>,
        containers: Vec<SavedContainer>,
    ) -> bool {
        let state = SavedState {
            boot: self.boot.clone(),
            observation: observation.clone(),
            plan: plan.cloned(),
            containers,
        };
        let Ok(bytes) = to_bytes(&state) else { return false };
        if bytes == self.last {
            return true;
        }
        match replace_bytes(&self.dir.join(OBSERVATION), &bytes) {
            Ok(()) => {
                self.last = bytes;
                self.lost = false;
            }
            Err(e) if !std::mem::replace(&mut self.lost, true) => {
                let dir = self.dir.display();
                tracing::warn!("cannot save the state of a pod in {dir}: {e}");
            }
            Err(_) => {}
        }
        !self.lost
    }

    /// Whether the file system is mounted read-only.
    pub(crate) fn is_read_only(&self) -> bool {
        let found = rustix::fs::statvfs(&self.dir);
        found.is_ok_and(|found| found.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY))
    }

    /// Where the pod's logs are kept after it has ended.
    pub(crate) fn logs(&self) -> PathBuf {
        self.dir.join("logs")
    }

    /// Moves the logs of an ended pod out of its directory before that is deleted.
    pub(crate) fn keep_logs(&self, from: &Path) -> io::Result<()> {
        if from.is_dir() {
            // These are logs of the same pod from before the machine was shut down.
            fs::remove_dir_all(self.logs()).or_else(missing_is_fine)?;
        }
        match fs::rename(from, self.logs()) {
            // There are no logs, or the previous process already moved them.
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            moved => moved,
        }
    }

    /// Deletes the pod's state, so that it starts from the beginning.
    pub(crate) fn forget_state(&self) {
        if let Err(e) = fs::remove_file(self.dir.join(OBSERVATION)).or_else(missing_is_fine) {
            tracing::warn!("cannot remove the state in {}: {e}", self.dir.display());
        }
    }

    /// Deletes all files of the pod.
    pub(crate) fn forget(&self) {
        if let Err(e) = fs::remove_dir_all(&self.dir).or_else(missing_is_fine) {
            tracing::warn!("cannot remove {}: {e}", self.dir.display());
        }
    }

    /// Disk space used by the pod's files.
    pub(crate) fn bytes(&self) -> u64 {
        fn below(dir: &Path) -> u64 {
            let entries = fs::read_dir(dir).into_iter().flatten().flatten();
            let size = |entry: fs::DirEntry| match entry.metadata() {
                Ok(meta) if meta.is_dir() => below(&entry.path()),
                Ok(meta) => meta.len(),
                Err(_) => 0,
            };
            entries.map(size).sum()
        }
        below(&self.dir)
    }
}

/// The saved state of a pod whose node is not running.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftPod {
    /// The name of its sandbox.
    pub sandbox: String,
    /// Whether it has ended.
    pub over: bool,
    /// Whether it was stopped for a shutdown of the machine.
    pub shut_down: bool,
}

/// The pods in the state directory of a node that is not running. Unreadable ones are left out.
pub fn left_pods(state_dir: &Path) -> Vec<LeftPod> {
    let dir = state_dir.join("node/pods");
    let left = |sandbox: String| {
        let SavedState { observation, .. } = read(&dir.join(&sandbox).join(OBSERVATION)).ok()??;
        let shut_down = observation.stop.is_some_and(|stop| stop.cause == StopCause::NodeShutdown);
        Some(LeftPod { sandbox, over: observation.over, shut_down })
    };
    names(&dir).into_iter().filter_map(left).collect()
}

/// The boot id of the machine.
fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_garbage_is_an_error_and_what_is_missing_is_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let pod = store.pod("p");
        assert!(pod.load().unwrap().is_none());
        fs::create_dir_all(&pod.dir).unwrap();
        for garbage in ["", "{", "{\"version\":1}", "[]", "\0\0\0\0"] {
            fs::write(pod.dir.join(OBSERVATION), garbage).unwrap();
            assert!(pod.load().is_err(), "{garbage:?}");
        }
    }

    #[test]
    fn the_clock_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let first = store.clock().now().time;
        // The time does not depend on the wall clock.
        let second = store.clock().now().time;
        assert!(second >= first && second.since(first) < 1_000, "{first:?} {second:?}");
    }
}
