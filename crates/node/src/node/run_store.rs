//! The saved runs of a node, below `STATE_DIR/node/runs`: the record of each run, the state of its workloads,
//! and its result.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use outrigger_agent::files::{make_dir, missing_is_fine, names, read, replace};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The file with the record of a run.
pub(super) const RECORD: &str = "run.json";
/// The file with the state of the workloads.
pub(super) const WORKLOADS: &str = "workloads.json";
/// The file with the result of the run.
pub(super) const END: &str = "end.json";

/// The number of runs in a state directory that have not ended. Their containers go on without a node.
pub fn unfinished_runs(state_dir: &Path) -> usize {
    let runs = state_dir.join("node/runs");
    let is_unfinished = |id: &&String| {
        let run = runs.join(id);
        run.join(RECORD).exists() && !run.join(END).exists()
    };
    names(&runs).iter().filter(is_unfinished).count()
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
    pub(super) fn save_run(&self, id: &str, what: &str, content: &impl Serialize) -> io::Result<()> {
        let path = self.run(id, what);
        if let Some(dir) = path.parent() {
            make_dir(dir)?;
        }
        replace(&path, content)
    }

    /// Reads a file of a run; `None` if it does not exist.
    pub(super) fn load_run<T: DeserializeOwned>(&self, id: &str, what: &str) -> io::Result<Option<T>> {
        read(&self.run(id, what))
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
