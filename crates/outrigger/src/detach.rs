//! `outrigger run -d`: submits pods to the node of this machine.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use outrigger_node::control::{Accepted, Answer, PodState, Request, Run};
use outrigger_node::record::RunRecord;

use crate::outcome::Failure;
use crate::{runs, runtime, terminal};

/// How long to wait for a new node to answer.
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long the node of another command may take to answer after ours has ended in its favour.
const ANOTHER_MAX: Duration = Duration::from_secs(5);

/// What `--wait` waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum WaitArg {
    /// Jobs and pods with restartPolicy Never or OnFailure have finished, everything else is ready.
    Done,
    /// All pods are running, or have finished.
    Running,
}

/// The options for submitting pods to the node.
pub(crate) struct Detach {
    /// The state directory, if given.
    pub(crate) state_dir: Option<PathBuf>,
    /// Additional flags for a node that must be started.
    pub(crate) flags: Vec<OsString>,
    /// What to wait for.
    pub(crate) wait: Option<WaitArg>,
    /// Whether to print nothing.
    pub(crate) quiet: bool,
}

impl Detach {
    /// Submits the pods to the node. Returns the exit code.
    pub(crate) fn hand_over(&self, record: RunRecord) -> Result<u8, Failure> {
        runs::block_on(async {
            let node = self.node().await?;
            let mut connection = node.ask(&Request::Run(Box::new(record))).await.map_err(runs::refused)?;
            let Accepted { run, objects } = match connection.next().await.map_err(runs::refused)? {
                Answer::Accepted(accepted) => accepted,
                other => return Err(Failure::Own(anyhow!("unexpected answer from the node: {other:?}"))),
            };
            if !self.quiet {
                terminal::print(&objects.iter().map(|object| format!("{object}\n")).collect::<String>())?;
            }
            match self.wait {
                Some(until) => wait(&node, &run, until).await,
                None => Ok(0),
            }
        })
    }

    /// Finds the node of the state directory.
    pub(crate) async fn find(&self) -> Result<Option<Run>, Failure> {
        find(&runtime::state_dir(self.state_dir.as_deref())?).await
    }

    /// Finds the node of the state directory, or starts one.
    pub(crate) async fn node(&self) -> Result<Run, Failure> {
        let state_dir = runtime::state_dir(self.state_dir.as_deref())?;
        if let Some(node) = find(&state_dir).await? {
            return Ok(node);
        }
        let log = state_dir.join("node/log");
        let mut child = self.start(&state_dir, &log).context("cannot start a node").map_err(Failure::Own)?;
        let (began, mut gave_up) = (Instant::now(), None);
        loop {
            if let Some(node) = find(&state_dir).await? {
                return Ok(node);
            }
            let ended = child.try_wait()?;
            // Our node ends at once if another command has just started a node. That node will answer soon.
            let is_over = ended.is_some() && gave_up.get_or_insert_with(Instant::now).elapsed() > ANOTHER_MAX;
            if is_over || began.elapsed() > PATIENCE {
                let said = std::fs::read_to_string(&log).unwrap_or_default();
                let last =
                    said.lines().rev().take(5).collect::<Vec<_>>().into_iter().rev().collect::<Vec<_>>();
                let what = if ended.is_some() { "the node ended" } else { "the node does not answer" };
                return Err(Failure::Own(anyhow!("{what}; {} says: {}", log.display(), last.join("; "))));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    fn start(&self, state_dir: &Path, log: &Path) -> std::io::Result<Child> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(state_dir.join("node"))?;
        let log = File::options().create(true).append(true).mode(0o600).open(log)?;
        Command::new("/proc/self/exe")
            .arg0("outrigger")
            .arg("node")
            .arg("--state-dir")
            .arg(state_dir)
            .args(&self.flags)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            // Ctrl-C in the terminal must not reach it.
            .process_group(0)
            .current_dir("/")
            .spawn()
    }
}

/// Finds the node of a state directory.
async fn find(state_dir: &Path) -> Result<Option<Run>, Failure> {
    let found = runs::find_quietly().await?;
    Ok(found.runs.into_iter().find(|run| run.state.node.as_deref() == Some(state_dir)))
}

/// Waits for a run. Returns the exit code of what has finished, otherwise 0.
pub(crate) async fn wait(node: &Run, run: &str, until: WaitArg) -> Result<u8, Failure> {
    let running = until == WaitArg::Running;
    let request = Request::Await { run: run.to_owned(), over: false, running, faults: true };
    let mut connection = node.ask(&request).await.map_err(runs::refused)?;
    loop {
        let answer = tokio::select! {
            answer = connection.next() => answer.map_err(runs::refused)?,
            _ = tokio::signal::ctrl_c() => return Ok(runs::left_running(run)),
        };
        match answer {
            Answer::Note(text) => terminal::say(&text),
            Answer::Done => return Ok(0),
            Answer::Exit(code, why) => {
                if let Some(why) = why {
                    terminal::say(&why);
                }
                if code != 0 {
                    tell_failures(node, run).await;
                }
                return Ok(u8::try_from(code).unwrap_or(1));
            }
            other => return Err(Failure::Own(anyhow!("unexpected answer from the node: {other:?}"))),
        }
    }
}

/// The pods of a run.
pub(crate) async fn pods(node: &Run, run: &str) -> Result<Vec<PodState>, Failure> {
    let mut connection = node.ask(&Request::List).await.map_err(runs::refused)?;
    let mut pods = match connection.next().await.map_err(runs::refused)? {
        Answer::Run(state) => state.pods,
        other => return Err(Failure::Own(anyhow!("unexpected answer from the node: {other:?}"))),
    };
    pods.retain(|pod| pod.run.as_deref() == Some(run));
    Ok(pods)
}

/// Prints on standard error which pods of a run have failed, and why.
pub(crate) async fn tell_failures(node: &Run, run: &str) {
    for pod in pods(node, run).await.unwrap_or_default() {
        if pod.phase == "Failed" {
            terminal::say(&failure(&pod));
        }
    }
}

/// Why a pod has failed, for people.
fn failure(pod: &PodState) -> String {
    if pod.stopped {
        return format!("{} was stopped", pod.name);
    }
    let why = pod.reason.as_deref().map(|reason| format!(": {reason}")).unwrap_or_default();
    // These details are not in the container's log.
    let details = pod.containers.iter().filter_map(|c| Some(format!("; {}: {}", c.name, c.reason.as_ref()?)));
    format!("{} failed{why}{}", pod.name, details.collect::<String>())
}
