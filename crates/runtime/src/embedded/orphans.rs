//! What happens to the pods of processes that died.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use super::cgroup::Hierarchies;
use super::processes::{self, Process};
use super::protocol::{ContainerState, ProcessRecord};
use super::{layout, sandbox};
use crate::ownership::lock_orphan;
use crate::{SandboxId, mounts};

/// Ends and removes every pod below `pods` that has no owner.
pub(crate) fn clean(pods: &Path, hierarchies: &Hierarchies) -> Vec<SandboxId> {
    let Ok(entries) = fs::read_dir(pods) else { return Vec::new() };
    let mut removed = Vec::new();
    for entry in entries.flatten() {
        let dir = entry.path();
        let Ok(Some(lock)) = lock_orphan(&dir) else { continue };
        let id = entry.file_name().to_string_lossy().into_owned();
        match clean_pod(&id, &dir, hierarchies) {
            Ok(()) => removed.push(SandboxId(id)),
            Err(error) => tracing::warn!(pod = id, %error, "an orphaned pod could not be removed"),
        }
        drop(lock);
    }
    removed
}

fn clean_pod(id: &str, dir: &Path, hierarchies: &Hierarchies) -> io::Result<()> {
    end_processes(dir);
    sandbox::remove(id, dir, hierarchies).map_err(|fault| io::Error::other(fault.text))?;
    mounts::remove_tree(dir)
}

/// Ends the shims and containers of a pod that nobody is connected to.
pub(crate) fn end_processes(dir: &Path) {
    let states: Vec<ContainerState> = layout::containers(dir)
        .iter()
        .filter_map(|container| {
            layout::read_json(&layout::container_dir(dir, &container.0).join("state.json"))
        })
        .collect();
    // Shims first: they would go on writing to the directory.
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
        assert_eq!(clean(dir.path(), &Hierarchies::default()), [SandboxId("full".to_owned())]);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "only the file is left");
    }
}
