//! Finds runs, pods and containers for the commands that talk to runs.

use std::fs;
use std::future::Future;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use outrigger_embedded::rootless;
use outrigger_node::control::{self, AskError, Found, Named, Object, PodState, RunName, Selector, Which};
use outrigger_node::node::{LeftPods, Unfinished, unfinished_runs};

use crate::outcome::Failure;
use crate::terminal;

/// The one pod that is meant.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct PodArgs {
    /// The pod, or a workload whose first pod is meant: POD, deploy/NAME, job/NAME, sts/NAME, ….
    #[arg(value_name = "POD")]
    pod: Object,
    #[command(flatten)]
    place: PlaceArgs,
}

/// The pods that are meant: one by name, those of a workload, or those with some labels.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct PodsArgs {
    /// A pod, or a workload with all its pods: POD, deploy/NAME, job/NAME, sts/NAME, ….
    #[arg(value_name = "POD", required_unless_present = "selector", conflicts_with = "selector")]
    pub(crate) pod: Option<Object>,
    /// The pods with these labels, for example app=web or 'tier in (front,back),!canary'.
    #[arg(long, short = 'l', value_name = "SELECTOR")]
    selector: Option<Selector>,
    #[command(flatten)]
    place: PlaceArgs,
}

/// Where pods are looked for.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct PlaceArgs {
    /// Only pods in this namespace.
    #[arg(long, short = 'n', value_name = "NAME")]
    pub(crate) namespace: Option<String>,
    /// Only pods of this run, as `outrigger ps` shows it: a process ID, or the id of a run of a node.
    #[arg(long, value_name = "RUN")]
    pub(crate) run: Option<RunName>,
    /// Only pods with this state directory, as given to `outrigger run --state-dir DIR` or to the node. Default:
    /// OUTRIGGER_STATE_DIR, if it is set.
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

/// The state directory in the environment variable.
fn dir_of_variable() -> Option<PathBuf> {
    std::env::var_os("OUTRIGGER_STATE_DIR").filter(|dir| !dir.is_empty()).map(PathBuf::from)
}

/// Resolves links in the existing part of a path.
fn resolved(dir: PathBuf) -> PathBuf {
    fs::canonicalize(&dir).unwrap_or(dir)
}

impl PlaceArgs {
    /// Finds the matching runs of this user. Notes which of them do not answer.
    pub(crate) async fn find(&self) -> Result<Found, Failure> {
        let mut found = find().await?;
        if let Some(dir) = self.dir() {
            found.runs.retain(|run| run.state.state_dir == dir);
        }
        match (self.unattended(&found), &self.state_dir) {
            (Some(unattended), _) => terminal::note(&unattended),
            (None, Some(given)) if found.runs.is_empty() && found.silent.is_empty() => {
                terminal::note(&format!("nothing is running with the state directory {}", given.display()));
            }
            _ => {}
        }
        Ok(found)
    }

    /// The state directory from the option or the environment, without links.
    pub(crate) fn dir(&self) -> Option<PathBuf> {
        self.state_dir.clone().or_else(dir_of_variable).map(resolved)
    }

    /// A sentence about the runs of the state directory that have not ended although no node is running.
    pub(crate) fn unattended(&self, found: &Found) -> Option<String> {
        let dir = fs::canonicalize(self.dir().or_else(rootless::default_state_dir)?).ok()?;
        // A run that does not answer may be the node, and was already reported.
        if !found.silent.is_empty() || found.runs.iter().any(|run| run.state.node.as_ref() == Some(&dir)) {
            return None;
        }
        unattended(&dir)
    }

    /// The selection of pods with this name or these labels.
    pub(crate) fn which(&self, what: Named) -> Which {
        Which { what, namespace: self.namespace.clone(), run: self.run.clone() }
    }
}

/// Which container is meant.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ContainerArgs {
    /// The container. Default: the one the pod's kubectl.kubernetes.io/default-container annotation names, else the
    /// first main container.
    #[arg(long, short, value_name = "NAME")]
    container: Option<String>,
}

impl PodArgs {
    /// Finds the runs to search.
    pub(crate) async fn find(&self) -> Result<Found, Failure> {
        self.place.find().await
    }

    /// The selection of the pod.
    pub(crate) fn which(&self) -> Which {
        self.place.which(Named::Object(self.pod.clone()))
    }
}

impl PodsArgs {
    /// Finds the runs to search.
    pub(crate) async fn find(&self) -> Result<Found, Failure> {
        self.place.find().await
    }

    /// The selection of the pods.
    pub(crate) fn which(&self) -> Result<Which, Failure> {
        let by_name = self.pod.clone().map(Named::Object);
        let what = by_name.or_else(|| self.selector.clone().map(Named::Labels));
        let what = what.ok_or_else(|| Failure::Input(anyhow!("name a pod, or select some with -l")))?;
        Ok(self.place.which(what))
    }
}

impl ContainerArgs {
    /// The index of the container to use. If the pod has several and none was named, the choice is printed.
    pub(crate) fn pick(&self, pod: &PodState) -> Result<usize, Failure> {
        let picked = pod.pick(self.container.as_deref()).map_err(|e| Failure::Input(anyhow!(e)))?;
        if picked.by_default {
            terminal::say(&pod.defaulted(picked.container));
        }
        Ok(picked.container)
    }
}

/// Prints that Ctrl-C has ended this command and not the run. Returns the exit code.
pub(crate) fn left_running(run: &str) -> u8 {
    terminal::note_after_interrupt(&format!(
        "the pods keep running; stop them with `outrigger stop run/{run}`"
    ));
    INTERRUPTED
}

/// The exit code of a process ended by SIGINT.
const INTERRUPTED: u8 = 130;

/// Runs a future to completion.
pub(crate) fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work)
}

/// A sentence about the runs of a state directory that have not ended, for use when no node is running.
pub(crate) fn unattended(dir: &Path) -> Option<String> {
    let Unfinished { runs, pods } = unfinished_runs(dir)?;
    let dir = dir.display();
    let start = format!("`outrigger node --state-dir {dir}`");
    Some(match (pods, runs) {
        (LeftPods::Running, 1) => format!(
            "no node is running for {dir}, but 1 run has not ended and its containers keep running; start a node with {start}"
        ),
        (LeftPods::Running, _) => format!(
            "no node is running for {dir}, but {runs} runs have not ended and their containers keep running; start a node with {start}"
        ),
        (LeftPods::ShutDown, _) => format!(
            "the node of {dir} has stopped its pods for a shutdown of the machine; {start} starts them again"
        ),
        (LeftPods::Gone, _) => format!(
            "no node is running for {dir}; its pods have not ended, but none of their containers is running; {start} \
             starts them again"
        ),
    })
}

/// Finds the runs of this user. Notes which of them do not answer.
async fn find() -> Result<Found, Failure> {
    let found = control::runs().await.map_err(|e| Failure::Own(anyhow!("cannot list runs: {e}")))?;
    for (pid, error) in &found.silent {
        terminal::note(&format!("run {pid} is not listed: {error}"));
    }
    if found.runs.is_empty() && found.silent.is_empty() && has_runs_of_root() {
        terminal::note("only root can see runs of root; try `sudo outrigger …`");
    }
    Ok(found)
}

/// Finds the runs of this user that answer.
pub(crate) async fn find_quietly() -> Result<Found, Failure> {
    control::runs().await.map_err(|e| Failure::Own(anyhow!("cannot list runs: {e}")))
}

/// Whether the user may be looking for runs of root.
fn has_runs_of_root() -> bool {
    fs::metadata("/run/outrigger").is_ok_and(|dir| dir.uid() == 0)
        && fs::metadata("/proc/self").is_ok_and(|own| own.uid() != 0)
}

/// Turns a refusal by the run into a failure of the command.
pub(crate) fn refused(error: AskError) -> Failure {
    match error {
        AskError::Refused(text) => Failure::Input(anyhow!(text)),
        error @ AskError::TooLong(_) => Failure::Input(error.into()),
        error => Failure::Own(error.into()),
    }
}
