//! Finds, stops and removes the pods of processes that died.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::cgroup::Hierarchies;
use super::protocol::{ContainerState, ProcessRecord};
use super::{elsewhere, layout, sandbox, userns};
use outrigger_runtime::ownership::lock_orphan;
use outrigger_runtime::processes::{self, Process};
use outrigger_runtime::{SandboxId, mounts};

/// A pod without an owner. This process may remove it while this value exists.
pub(crate) struct Orphan {
    pub(crate) id: SandboxId,
    pub(crate) dir: PathBuf,
    _lock: OwnedFd,
}

/// The pods below a directory that have no owner. A pod that runs in another mount namespace is left to
/// processes that see it, because it could not be stopped in order from here.
pub(crate) fn find(pods: &Path, hierarchies: &Hierarchies) -> Vec<Orphan> {
    let Ok(entries) = fs::read_dir(pods) else { return Vec::new() };
    let orphan = |entry: fs::DirEntry| {
        let (dir, id) = (entry.path(), SandboxId(entry.file_name().to_string_lossy().into_owned()));
        let lock = lock_orphan(&dir).ok()??;
        elsewhere::of_pod(&dir, hierarchies).is_none().then_some(Orphan { id, dir, _lock: lock })
    };
    entries.flatten().filter_map(orphan).collect()
}

impl Orphan {
    /// Ends and removes everything of the pod. Blocks.
    pub(crate) fn remove(&self, hierarchies: &Hierarchies) -> io::Result<()> {
        let _alone = layout::end_making(&self.dir);
        end_processes(&self.dir);
        sandbox::remove(&self.id.0, &self.dir, hierarchies).map_err(|fault| io::Error::other(fault.text))?;
        userns::release_all(&self.dir);
        mounts::remove_tree(&self.dir)
    }
}

/// Whether a container of a pod is running. `None` if there is no such pod here.
pub fn is_running(state_dir: &Path, pod: &str) -> Option<bool> {
    let dir = layout::pods_dir(state_dir).join(pod);
    if !dir.is_dir() {
        return None;
    }
    let is_alive = |container: &outrigger_runtime::ContainerId| {
        let state = layout::container_dir(&dir, &container.0).join("state.json");
        let state: ContainerState = layout::read_json(&state).unwrap_or_default();
        state.shim.into_iter().chain(state.init).any(|process| process.is_alive())
    };
    let is_elsewhere = || elsewhere::of_pod(&dir, &Hierarchies::detect()).is_some();
    Some(layout::containers(&dir).iter().any(is_alive) || is_elsewhere())
}

/// Ends the shims and containers of a pod to which no agent is connected.
pub(crate) fn end_processes(dir: &Path) {
    let states: Vec<ContainerState> = layout::containers(dir)
        .iter()
        .filter_map(|container| {
            layout::read_json(&layout::container_dir(dir, &container.0).join("state.json"))
        })
        .collect();
    // Shims are killed first, because they would keep writing to the directory.
    kill_and_wait(states.iter().filter_map(|state| state.shim));
    kill_and_wait(states.iter().filter_map(|state| state.init));
}

fn kill_and_wait(records: impl Iterator<Item = ProcessRecord>) {
    let alive: Vec<Process> = records.filter_map(|record| record.open()).collect();
    processes::kill_and_wait(&alive, Duration::from_secs(5));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_half_made_or_half_removed_is_nobody_s() {
        let dir = tempfile::tempdir().unwrap();
        for path in ["empty", "full/containers"] {
            fs::create_dir_all(dir.path().join(path)).unwrap();
        }
        fs::write(dir.path().join("file"), "").unwrap();
        let found = find(dir.path(), &Hierarchies::default());
        assert_eq!(found.iter().map(|orphan| orphan.id.0.as_str()).collect::<Vec<_>>(), ["full"]);
        assert!(find(dir.path(), &Hierarchies::default()).is_empty(), "somebody is at it");
        found[0].remove(&Hierarchies::default()).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "only the file is left");
    }
}
