//! The saved runs of a node, below `STATE_DIR/node/runs`: the record of each run, the state of its workloads,
//! and its result.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use outrigger_agent::files::{Saved, make_dir, missing_is_fine, names, read, replace};
use outrigger_agent::{LeftPod, left_pods};

/// The file with the record of a run.
pub(super) const RECORD: &str = "run.json";
/// The file with the state of the workloads.
pub(super) const WORKLOADS: &str = "workloads.json";
/// The file with the result of the run.
pub(super) const END: &str = "end.json";

/// What a node that is not running left in its state directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unfinished {
    /// The number of runs that have not ended.
    pub runs: usize,
    /// The state of their pods.
    pub pods: LeftPods,
}

/// The state of the pods of a node that is not running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeftPods {
    /// Containers are running, or may be running because the runtime cannot be asked.
    Running,
    /// They were stopped for a shutdown of the machine.
    ShutDown,
    /// None of their containers is running.
    Gone,
}

/// The runs in a state directory that have not ended; `None` if there are none.
pub fn unfinished_runs(state_dir: &Path) -> Option<Unfinished> {
    let runs = state_dir.join("node/runs");
    let is_unfinished = |id: &String| {
        let run = runs.join(id);
        run.join(RECORD).exists() && !run.join(END).exists()
    };
    let unfinished: Vec<String> = names(&runs).into_iter().filter(is_unfinished).collect();
    if unfinished.is_empty() {
        return None;
    }
    let is_of_run = |pod: &String| unfinished.iter().any(|run| pod.starts_with(&format!("{run}-")));
    let pods = left_pods(state_dir).into_iter().filter(|pod| is_of_run(&pod.sandbox));
    // Pods that ended for another reason do not count.
    let pods: Vec<LeftPod> = pods.filter(|pod| !pod.over || pod.shut_down).collect();
    let may_run =
        |pod: &LeftPod| !pod.over && outrigger_embedded::is_running(state_dir, &pod.sandbox) != Some(false);
    let pods = match pods.iter().all(|pod| pod.over) {
        true if !pods.is_empty() => LeftPods::ShutDown,
        _ if pods.iter().any(may_run) => LeftPods::Running,
        _ => LeftPods::Gone,
    };
    Some(Unfinished { runs: unfinished.len(), pods })
}

/// The directory of a node's runs.
#[derive(Debug, Clone)]
pub(super) struct RunStore {
    dir: PathBuf,
}

impl RunStore {
    /// Opens the store of a state directory. No other process may use it
    /// ([`outrigger_runtime::NodeIdentity`]).
    pub(super) fn open(state_dir: &Path) -> io::Result<Self> {
        let dir = state_dir.join("node");
        make_dir(&dir.join("runs"))?;
        Ok(RunStore { dir })
    }

    /// The path of a run's file.
    fn run(&self, id: &str, what: &str) -> PathBuf {
        self.dir.join("runs").join(id).join(what)
    }

    /// Ids of all saved runs.
    pub(super) fn runs(&self) -> Vec<String> {
        names(&self.dir.join("runs"))
    }

    /// Writes a file of a run.
    pub(super) fn save_run(&self, id: &str, what: &str, content: &impl Saved) -> io::Result<()> {
        let path = self.run(id, what);
        if let Some(dir) = path.parent() {
            make_dir(dir)?;
        }
        replace(&path, content)
    }

    /// Reads a file of a run; `None` if it does not exist.
    pub(super) fn load_run<T: Saved>(&self, id: &str, what: &str) -> io::Result<Option<T>> {
        read(&self.run(id, what))
    }

    /// Removes the saved end of a run that continues.
    pub(super) fn forget_end(&self, id: &str) -> io::Result<()> {
        fs::remove_file(self.run(id, END)).or_else(missing_is_fine)
    }

    /// Deletes a run.
    pub(super) fn forget_run(&self, id: &str) {
        let dir = self.dir.join("runs").join(id);
        if let Err(e) = fs::remove_dir_all(&dir).or_else(missing_is_fine) {
            tracing::warn!("cannot remove {}: {e}", dir.display());
        }
    }

    /// Moves the files of an unreadable run aside, so that they can be inspected.
    pub(super) fn set_aside_run(&self, id: &str) {
        let from = self.dir.join("runs").join(id);
        let to = self.dir.join("damaged");
        let moved = make_dir(&to).and_then(|()| fs::rename(&from, to.join(id)));
        if let Err(e) = moved {
            tracing::warn!("cannot put {} aside: {e}", from.display());
        }
    }
}
