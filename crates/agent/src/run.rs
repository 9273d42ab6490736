//! A run: all pods of a manifest, from the first container to the exit code.

use std::path::PathBuf;
use std::sync::Arc;

use outrigger_lifecycle::{Phase, Plan};
use outrigger_manifest::{Companions, PodManifest};
use outrigger_runtime::{NetworkMode, PublishedPort, PullPolicy, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::board::{Board, EventsFile};
use crate::fields::Host;
use crate::logs::Logs;
use crate::output::Output;
use crate::pod::PodContext;
use crate::worker::{PodResult, Sinks, StopOrder, Worker, remove_pod};

/// How a run is done.
#[derive(Debug, Clone)]
pub struct RunOptions {
    /// Where pods and claims live. Absolute, free of symbolic links.
    pub state_dir: PathBuf,
    /// A short name no other run on this machine has: letters and digits.
    pub run_id: String,
    /// Where events go, as JSON Lines.
    pub events: Option<PathBuf>,
    /// Where the status of the pods is kept.
    pub status: Option<PathBuf>,
    /// Grace of a stop that was asked for; `None` is each pod's own.
    pub grace_ms: Option<u64>,
    /// When images are fetched, whatever the manifest says.
    pub pull: Option<PullPolicy>,
    /// The network of pods that do not ask for the host's.
    pub network: NetworkMode,
    /// Ports of the first pod to be reached at the host, besides its `hostPort`s.
    pub publish: Vec<PublishedPort>,
}

/// A pod with its plan.
#[derive(Debug, Clone)]
pub struct PlannedPod {
    /// The pod.
    pub manifest: PodManifest,
    /// Its plan.
    pub plan: Plan,
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunResult {
    /// What the process should exit with.
    pub exit_code: u8,
}

/// Why a run could not be done: Outrigger's own failure, or the machine's.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A pod of the manifest cannot be run at all.
    #[error("pod {pod:?}: {detail}")]
    Pod {
        /// Which.
        pod: String,
        /// Why.
        detail: String,
    },
    /// A file of the run cannot be written.
    #[error("cannot write {path}: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The machine refused something every run needs.
    #[error("cannot run pods: {0}")]
    Machine(#[from] std::io::Error),
}

/// Exit code of a failure of Outrigger itself.
const OWN_FAILURE: u8 = 125;

/// Runs pods to their end. The first SIGINT or SIGTERM stops them gracefully, the second at once, the third kills.
///
/// # Errors
/// Nothing has been started when this fails.
pub async fn run<R: Runtime>(
    pods: Vec<PlannedPod>,
    companions: Companions,
    options: RunOptions,
    runtime: Arc<R>,
    output: Output,
) -> Result<RunResult, RunError> {
    let options = Arc::new(options);
    let companions = Arc::new(companions);
    let host = Arc::new(Host::here());
    let events = EventsFile::create(options.events.as_deref())
        .map_err(|source| RunError::File { path: options.events.clone().unwrap_or_default(), source })?;
    let sinks = Sinks {
        logs: Some(Logs::start(output.clone())?),
        output: output.clone(),
        events: Arc::new(events),
        board: Board::new(options.status.as_deref(), pods.len()),
    };
    output.begin(pods.iter().map(|pod| (pod.manifest.name(), &pod.plan)))?;
    for (what, path) in [("events", &options.events), ("status", &options.status)] {
        path.iter().for_each(|path| output.mention(what, path));
    }
    let mut contexts = Vec::new();
    for (index, pod) in pods.into_iter().enumerate() {
        let name = pod.manifest.name().to_owned();
        let context = PodContext::new(
            pod.manifest.input.pod,
            &pod.plan,
            companions.clone(),
            host.clone(),
            options.clone(),
            index,
        )
        .map_err(|detail| RunError::Pod { pod: name, detail })?;
        contexts.push((Arc::new(context), pod.plan));
    }
    let (orders, stop) = watch::channel(StopOrder::default());
    let mut signals = Signals::listen(orders, options.grace_ms)?;
    let mut workers = JoinSet::new();
    let mut running = Vec::new();
    for (index, (context, plan)) in contexts.into_iter().enumerate() {
        let worker = Worker::new(runtime.clone(), context.clone(), plan, index, stop.clone(), sinks.clone());
        let task = workers.spawn(worker.run());
        running.push((task.id(), context));
    }
    let mut results = Vec::new();
    let mut broken = false;
    loop {
        tokio::select! {
            ended = workers.join_next_with_id() => match ended {
                None => break,
                Some(Ok((_, result))) => results.push(result),
                Some(Err(e)) => {
                    tracing::error!("a pod's worker failed: {e}");
                    broken = true;
                    // Nobody looks after its containers any more.
                    if let Some((_, context)) = running.iter().find(|(id, _)| *id == e.id()) {
                        remove_pod(&*runtime, context).await;
                    }
                }
            },
            name = signals.next() => output.note(&format!("{name}: stopping")),
        }
    }
    sinks.board.finish();
    output.finish().await;
    let exit_code = match signals.first {
        _ if broken => OWN_FAILURE,
        Some(code) => code,
        None => exit_code(&results),
    };
    Ok(RunResult { exit_code })
}

/// 0 if everything succeeded, else the code of the main that failed first; 1 if none has one.
fn exit_code(results: &[PodResult]) -> u8 {
    let failed = results.iter().filter(|r| r.phase != Phase::Succeeded);
    let codes = failed.clone().filter_map(|r| r.failed);
    match codes.min_by_key(|(at, _)| *at) {
        Some((_, code)) => u8::try_from(code).ok().filter(|c| *c > 0).unwrap_or(1),
        None => u8::from(failed.count() > 0),
    }
}

/// SIGINT and SIGTERM, turned into orders.
struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    orders: watch::Sender<StopOrder>,
    grace_ms: Option<u64>,
    /// The exit code the first signal asks for.
    first: Option<u8>,
}

impl Signals {
    fn listen(orders: watch::Sender<StopOrder>, grace_ms: Option<u64>) -> std::io::Result<Self> {
        Ok(Signals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            orders,
            grace_ms,
            first: None,
        })
    }

    /// Waits for a signal and passes the order on; its name is returned.
    async fn next(&mut self) -> &'static str {
        let (name, code) = tokio::select! {
            _ = self.interrupt.recv() => ("SIGINT", 130),
            _ = self.terminate.recv() => ("SIGTERM", 143),
        };
        self.first.get_or_insert(code);
        let asked = self.grace_ms;
        self.orders.send_modify(|order| {
            order.times += 1;
            order.grace_ms = match order.times {
                1 => asked,
                2 => Some(1),
                _ => Some(0),
            };
        });
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_lifecycle::Time;

    #[test]
    fn the_first_failure_is_the_result() {
        let ok = PodResult { phase: Phase::Succeeded, failed: None };
        let failed = |at: u64, code: i32| PodResult { phase: Phase::Failed, failed: Some((Time(at), code)) };
        let without = PodResult { phase: Phase::Failed, failed: None };
        let table = [
            (vec![ok], 0),
            (vec![], 0),
            (vec![ok, failed(5, 7)], 7),
            (vec![failed(5, 7), failed(3, 9)], 9),
            (vec![without], 1),
            (vec![without, failed(5, 7)], 7),
            (vec![failed(1, 300)], 1),
        ];
        for (results, expected) in table {
            assert_eq!(exit_code(&results), expected, "{results:?}");
        }
    }
}
