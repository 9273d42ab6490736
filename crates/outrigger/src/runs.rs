//! What commands that talk to a run have in common.

use std::fs;
use std::future::Future;
use std::os::unix::fs::MetadataExt;

use anyhow::anyhow;
use outrigger_agent::control::{self, AskError, Found, Which};

use crate::outcome::Failure;
use crate::terminal;

/// Which pod is meant, for every command that asks for one.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct PodArgs {
    /// The pod: NAME or pod/NAME.
    #[arg(value_name = "POD")]
    pod: String,
    /// Its namespace, where two have pods of the same name.
    #[arg(long, short = 'n', value_name = "NAME")]
    namespace: Option<String>,
    /// The process number of its run, where two have pods of the same name; `outrigger ps` shows it.
    #[arg(long, value_name = "PID")]
    run: Option<u32>,
}

/// Which container is meant.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ContainerArgs {
    /// The container; the only main one unless given.
    #[arg(long, short, value_name = "NAME")]
    pub(crate) container: Option<String>,
}

impl PodArgs {
    /// The pod that is meant.
    pub(crate) fn which(&self) -> Which {
        Which { pod: self.pod.clone(), namespace: self.namespace.clone(), run: self.run }
    }
}

/// Runs a future to its end.
pub(crate) fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work)
}

/// The runs of this user. Those that do not answer are mentioned.
pub(crate) async fn find() -> Result<Found, Failure> {
    let found = control::runs().await.map_err(|e| Failure::Own(anyhow!("cannot look for runs: {e}")))?;
    for (pid, error) in &found.silent {
        terminal::note(&format!("run {pid} is left out: {error}"));
    }
    if found.runs.is_empty() && found.silent.is_empty() && has_runs_of_root() {
        terminal::note("runs of root are seen by root only: sudo outrigger …");
    }
    Ok(found)
}

/// Whether somebody may look for runs in the wrong place.
fn has_runs_of_root() -> bool {
    fs::metadata("/run/outrigger").is_ok_and(|dir| dir.uid() == 0)
        && fs::metadata("/proc/self").is_ok_and(|own| own.uid() != 0)
}

/// What the run said against it.
pub(crate) fn refused(error: AskError) -> Failure {
    match error {
        AskError::Refused(text) => Failure::Input(anyhow!(text)),
        error => Failure::Own(error.into()),
    }
}
