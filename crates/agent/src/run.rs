//! A run: all pods of a manifest, from the first container to the exit code.

use std::path::PathBuf;
use std::sync::Arc;

use outrigger_lifecycle::{Phase, Plan, Span, Time};
use outrigger_manifest::{Companions, PodManifest, SourceFile, Workload};
use outrigger_runtime::{LogLimits, NetworkMode, PublishedPort, PullPolicy, Runtime};
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::clock::Clock;
use crate::control::{Listening, Order, PodRegistry, RunFacts, StopOf, listen};
use crate::logs::Logs;
use crate::status_file::{EventsFile, StatusFile};
use crate::supervisor::{Failure, Happened, Supervisor};
use crate::userns;
use crate::worker::{PodResult, Sinks, StopOrder};
use crate::workload::controllers;
use outrigger_view::hint::Hints;
use outrigger_view::output::Output;

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
    /// Whether pods that do not say it themselves get a user namespace of their own.
    pub user_namespaces: UserNamespaces,
    /// Ports of the pods to be reached at the host, besides their `hostPort`s; for runs of one pod at a time.
    pub publish: Vec<PublishedPort>,
    /// Processes and threads each container may have; `None`: any number.
    pub pids_limit: Option<u64>,
    /// How large the log of a container may become.
    pub log_limits: LogLimits,
    /// How long the run may take: then its pods are stopped in order.
    pub timeout_ms: Option<u64>,
    /// Whether the first failure that would be retried, or the first pod that fails, stops everything.
    pub fail_fast: bool,
    /// What the manifests are called, for whoever asks what runs here.
    pub files: Vec<String>,
}

/// Which pods get user namespaces, of those that say nothing about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum UserNamespaces {
    /// All that ask for nothing that excludes it.
    #[default]
    Auto,
    /// None.
    Host,
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

/// What is run.
#[derive(Debug, Clone, Default)]
pub struct Work {
    /// Pods, in the order written. Those of one workload are alike: the first stands for all it will make.
    pub pods: Vec<PlannedPod>,
    /// What they come out of, as [`outrigger_manifest::Manifest::workloads`] has it.
    pub workloads: Vec<Workload>,
    /// What they may refer to.
    pub companions: Companions,
    /// The text they were read from, so that failures can name their line.
    pub sources: Vec<SourceFile>,
}

/// Whether there is one Pod and nothing else: its status file is that Pod, not a List.
pub(crate) fn is_single_pod(pods: &[PlannedPod]) -> bool {
    matches!(pods, [one] if one.manifest.origin.kind == "Pod")
}

/// Runs pods to their end, and workloads until they are complete, have failed or are stopped. The first SIGINT or
/// SIGTERM, or the end of the terminal, stops everything gracefully, the second at once, the third kills.
///
/// # Errors
/// Nothing has been started when this fails.
pub async fn run<R: Runtime>(
    work: Work,
    options: RunOptions,
    runtime: Arc<R>,
    output: Output,
) -> Result<RunResult, RunError> {
    let Work { pods, workloads, companions, sources } = work;
    let events = EventsFile::create(options.events.as_deref())
        .map_err(|source| RunError::File { path: options.events.clone().unwrap_or_default(), source })?;
    let alone = is_single_pod(&pods);
    let registry = PodRegistry::default();
    let sinks = Sinks {
        registry: registry.clone(),
        logs: Some(Logs::start(output.clone())?),
        output: output.clone(),
        events: Arc::new(events),
        status_file: StatusFile::new(options.status.as_deref(), alone),
        updates: None,
        failures: None,
        hints: Hints::new(sources),
    };
    let mut signals = Signals::listen(options.grace_ms)?;
    let facts = RunFacts { id: options.run_id.clone(), files: options.files.clone(), node: None };
    let clock = Clock::start();
    output.begin(Arc::new(move || clock.now().time))?;
    let mut end = EarlyEnd::new(&options, clock.now().time);
    let mut supervisor = Supervisor::new(runtime.clone(), companions, options, clock, sinks);
    for pod in &pods {
        let refused = |detail| RunError::Pod { pod: pod.manifest.name().to_owned(), detail };
        supervisor.check(pod).map_err(refused)?;
    }
    let mut left_out: Vec<_> = pods.iter().filter_map(|pod| supervisor.left_out(pod)).collect();
    left_out.dedup();
    if let Some(line) = userns::about(&left_out) {
        tracing::warn!("{line}");
    }
    let mut control = ControlListener::open(runtime, registry, facts);
    let mut controllers = controllers::<R>(pods, workloads, clock.now());
    let results = loop {
        let mut wake: Option<Time> = None;
        for controller in &mut controllers {
            if let Err(e) = controller.step(&mut supervisor, clock.now()) {
                // The first pod like it could be run: this is nobody's fault but ours.
                tracing::error!("cannot run a pod: {e}");
                supervisor.broken = true;
                controller.stop(None);
            }
            wake = wake.into_iter().chain(controller.wake()).min();
        }
        wake = wake.into_iter().chain(end.wake()).min();
        let results: Vec<PodResult> = controllers.iter().filter_map(|c| c.result()).collect();
        if results.len() == controllers.len() {
            break results;
        }
        let wake = async {
            match wake {
                Some(at) => clock.reach(at).await,
                None => std::future::pending().await,
            }
        };
        let reason = tokio::select! {
            happened = supervisor.next() => match happened {
                Happened::Status(update) => {
                    let now = clock.now().time;
                    controllers.iter_mut().for_each(|c| c.status_changed(&update, now));
                    None
                }
                Happened::Ended(pod, result) => {
                    let now = clock.now().time;
                    controllers.iter_mut().for_each(|c| c.ended(pod, result, now));
                    end.pod_ended(&result)
                }
                Happened::Failed(failure) => end.failure(&failure),
            },
            (name, order) = signals.next() => {
                end.is_over = true;
                output.note(&signal_note(name, order.times));
                match order.times {
                    1 => controllers.iter_mut().for_each(|c| c.stop(order.grace_ms)),
                    // Whoever asks twice cares for no order.
                    _ => supervisor.stop_all(order.grace_ms),
                }
                None
            }
            order = control.next() => {
                match order {
                    Order::Stop(StopOf { pod, workload, grace_ms }) => {
                        let owner = controllers.iter_mut().find(|c| workload && c.owns(pod));
                        match owner {
                            Some(controller) => controller.stop(grace_ms),
                            None => supervisor.stop(pod, grace_ms),
                        }
                    }
                    Order::StopRun { grace_ms, .. } => {
                        let grace_ms = grace_ms.or(supervisor.grace_ms());
                        controllers.iter_mut().for_each(|c| c.stop(grace_ms));
                    }
                    // Whoever asked hears that the pod has ended when the order is dropped.
                    Order::Restart(order) => drop(supervisor.restart(order)),
                    Order::Apply { reply, .. } => {
                        let _ = reply.send(Err("this run is in the foreground; only a node can be changed".to_owned().into()));
                    }
                    Order::Run { reply, .. } => {
                        let _ = reply.send(Err("this run takes no more pods; only a node does".to_owned().into()));
                    }
                }
                None
            }
            () = wake => end.time_is_up(clock.now().time),
        };
        if let Some(reason) = reason {
            output.note(&reason);
            controllers.iter_mut().for_each(|c| c.stop(supervisor.grace_ms()));
        }
    };
    control.close().await;
    supervisor.sinks.status_file.finish();
    output.finish().await;
    let exit_code = match signals.first {
        _ if supervisor.broken => OWN_FAILURE,
        Some(code) => code,
        None => end.exit_code.unwrap_or_else(|| exit_code(&results)),
    };
    Ok(RunResult { exit_code })
}

/// What `--timeout` exits with, as timeout(1) does.
const TIMED_OUT: u8 = 124;

/// What may end a run before its pods are done.
struct EarlyEnd {
    deadline: Option<Time>,
    /// The deadline as it was asked for.
    timeout_ms: u64,
    fail_fast: bool,
    /// Everything is being stopped already.
    is_over: bool,
    /// What the run exits with because of it.
    exit_code: Option<u8>,
}

impl EarlyEnd {
    fn new(options: &RunOptions, now: Time) -> Self {
        EarlyEnd {
            deadline: options.timeout_ms.map(|ms| now + ms),
            timeout_ms: options.timeout_ms.unwrap_or_default(),
            fail_fast: options.fail_fast,
            is_over: false,
            exit_code: None,
        }
    }

    fn wake(&self) -> Option<Time> {
        self.deadline.filter(|_| !self.is_over)
    }

    /// Ends the run; what to say about it.
    fn end(&mut self, code: u8, reason: String) -> Option<String> {
        self.is_over = true;
        self.exit_code = Some(code);
        Some(reason)
    }

    fn time_is_up(&mut self, now: Time) -> Option<String> {
        self.wake().filter(|deadline| *deadline <= now)?;
        let time = Span(self.timeout_ms);
        self.end(TIMED_OUT, format!("--timeout: {time} passed, stopping in order"))
    }

    fn failure(&mut self, failure: &Failure) -> Option<String> {
        if !self.fail_fast || self.is_over {
            return None;
        }
        let code = failure.code.and_then(|code| u8::try_from(code).ok()).filter(|code| *code > 0);
        self.end(code.unwrap_or(1), format!("--fail-fast: {}, stopping in order", failure.text))
    }

    fn pod_ended(&mut self, result: &PodResult) -> Option<String> {
        if !self.fail_fast || self.is_over || result.phase != Phase::Failed {
            return None;
        }
        let code = exit_code(std::slice::from_ref(result));
        self.end(code, "--fail-fast: a pod failed, stopping in order".to_owned())
    }
}

/// 0 if everything succeeded, else the code of the main that failed first; 1 if none has one.
pub(crate) fn exit_code(results: &[PodResult]) -> u8 {
    let failed = results.iter().filter(|r| r.phase != Phase::Succeeded);
    let codes = failed.clone().filter_map(|r| r.failed);
    match codes.min_by_key(|(at, _)| *at) {
        Some((_, code)) => u8::try_from(code).ok().filter(|c| *c > 0).unwrap_or(1),
        None => u8::from(failed.count() > 0),
    }
}

/// Where other commands reach the run, if they can.
struct ControlListener(Option<(Listening, mpsc::Receiver<Order>)>);

impl ControlListener {
    /// Opens it. Pods run all the same where that is impossible.
    fn open<R: Runtime>(runtime: Arc<R>, registry: PodRegistry, facts: RunFacts) -> Self {
        let opened = listen(runtime, registry, facts);
        ControlListener(
            opened
                .inspect_err(|e| {
                    tracing::warn!("`outrigger ps`, `logs`, `exec` and `stop` cannot reach this run: {e}")
                })
                .ok(),
        )
    }

    /// Waits for an order.
    async fn next(&mut self) -> Order {
        let order = match &mut self.0 {
            Some((_, orders)) => orders.recv().await,
            None => None,
        };
        match order {
            Some(order) => order,
            None => std::future::pending().await,
        }
    }

    async fn close(self) {
        if let Some((listening, _)) = self.0 {
            listening.close().await;
        }
    }
}

/// SIGINT, SIGTERM and a terminal that is gone, turned into orders.
struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    /// `None` where nobody wants to hear of it: under nohup, and after the first, for it comes from all sides at once.
    hangup: Option<tokio::signal::unix::Signal>,
    grace_ms: Option<u64>,
    times: u32,
    /// The exit code the first signal asks for.
    first: Option<u8>,
}

impl Signals {
    fn listen(grace_ms: Option<u64>) -> std::io::Result<Self> {
        Ok(Signals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: match ignores_hangups() {
                true => None,
                false => Some(signal(SignalKind::hangup())?),
            },
            grace_ms,
            times: 0,
            first: None,
        })
    }

    /// Waits for a signal: its name, and what it orders.
    async fn next(&mut self) -> (&'static str, StopOrder) {
        let (name, code) = tokio::select! {
            _ = self.interrupt.recv() => ("SIGINT", 130),
            _ = self.terminate.recv() => ("SIGTERM", 143),
            () = hung_up(&mut self.hangup) => ("SIGHUP", 129),
        };
        self.first.get_or_insert(code);
        self.times += 1;
        let grace_ms = match self.times {
            1 => self.grace_ms,
            2 => Some(1),
            _ => Some(0),
        };
        (name, StopOrder { times: self.times, grace_ms, shutdown: false })
    }
}

/// What is said about the first, second or third signal.
fn signal_note(name: &str, times: u32) -> String {
    let again = if name == "SIGINT" { "press Ctrl-C again" } else { "send another signal" };
    match times {
        1 => format!("{name}: stopping in order; {again} to stop at once"),
        2 => format!("{name}: stopping at once; {again} to kill"),
        _ => format!("{name}: killing"),
    }
}

/// Waits for the first hang-up.
async fn hung_up(hangup: &mut Option<tokio::signal::unix::Signal>) {
    match hangup {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
    *hangup = None;
}

/// Whether the process was started to outlive its terminal.
fn ignores_hangups() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    // The mask counts from the lowest bit, signals from 1; SIGHUP is 1.
    ignored.is_some_and(|mask| mask & 1 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_keys_are_pressed() {
        assert_eq!(signal_note("SIGINT", 1), "SIGINT: stopping in order; press Ctrl-C again to stop at once");
        assert_eq!(signal_note("SIGTERM", 2), "SIGTERM: stopping at once; send another signal to kill");
        assert_eq!(signal_note("SIGHUP", 3), "SIGHUP: killing");
    }

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
