//! A run in the foreground: runs all pods of a manifest and determines the exit code.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use outrigger_agent::clock::Clock;
use outrigger_agent::event::{Failure, PodResult};
use outrigger_agent::options::{AgentOptions, Durability, LogLines, OnFailure, PodOptions};
use outrigger_agent::{Agent, userns};
use outrigger_lifecycle::{Phase, Time};
use outrigger_runtime::Runtime;
use outrigger_text::HumanDuration;
use outrigger_view::hint::Hints;
use outrigger_view::output::Output;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::control::{Listening, Order, OrderError, PodRegistry, RunFacts, Runner, StopOf, listen};
use crate::outcome::exit_code;
use crate::pod_check::CheckError;
use crate::sinks::{Happened, Sinks};
use crate::status_file::{EventsFile, StatusContent, StatusFile};
use crate::supervisor::{Afterwards, Supervisor, SupervisorOptions};
use crate::work::Work;
use crate::workload::{Controller, Pods as _, controllers};

/// Options of a run.
#[derive(Debug, Clone)]
pub struct RunOptions {
    /// Directory of pods and claims. Absolute, without symbolic links.
    pub state_dir: PathBuf,
    /// An id of letters and digits, unique on this machine.
    pub run_id: String,
    /// The file for events, as JSON Lines.
    pub events: Option<PathBuf>,
    /// The status file.
    pub status: Option<PathBuf>,
    /// Options of its pods.
    pub pods: PodOptions,
    /// Timeout of the run, after which its pods are stopped in order.
    pub timeout_ms: Option<u64>,
    /// Whether the first retriable failure, or the first failed pod, stops everything.
    pub on_failure: OnFailure,
    /// Names of the manifests, for display.
    pub files: Vec<String>,
}

/// The result of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunResult {
    /// The exit code of the process.
    pub exit_code: u8,
}

/// Why a run failed before anything was started.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A pod of the manifest cannot be run at all.
    #[error("pod {pod:?}: {source}")]
    Pod {
        /// The pod's name.
        pod: String,
        /// The reason.
        source: CheckError,
    },
    /// A file cannot be written.
    #[error("cannot write {path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The error.
        source: std::io::Error,
    },
    /// The machine refused something that every run needs.
    #[error("cannot run pods: {0}")]
    Machine(#[from] std::io::Error),
}

impl RunError {
    /// Whether a pod was refused, so that the manifest or the machine must be changed. Otherwise, an
    /// unexpected error occurred.
    pub fn is_refusal(&self) -> bool {
        matches!(self, RunError::Pod { source, .. } if source.is_refusal())
    }
}

/// Exit code if Outrigger itself fails.
const OWN_FAILURE: u8 = 125;

/// Runs pods to their end, and workloads until they are complete, have failed or are stopped. The first
/// SIGINT, SIGTERM or hang-up of the terminal stops everything gracefully. The second stops everything
/// immediately. The third kills everything.
///
/// # Errors
/// Returns an error only if nothing was started.
pub async fn run<R: Runtime>(
    work: Work,
    options: RunOptions,
    runtime: Arc<R>,
    output: Output,
) -> Result<RunResult, RunError> {
    let Work { pods, workloads, companions, sources, .. } = work;
    let events = EventsFile::create(options.events.as_deref())
        .map_err(|source| RunError::File { path: options.events.clone().unwrap_or_default(), source })?;
    let status_file = StatusFile::new(options.status.as_deref(), StatusContent::for_pods(&pods));
    status_file
        .check()
        .map_err(|source| RunError::File { path: options.status.clone().unwrap_or_default(), source })?;
    let agent_options = AgentOptions {
        state_dir: options.state_dir.clone(),
        durability: Durability::Process,
        logs: LogLines::Emitted,
    };
    let agent = Agent::start(runtime.clone(), agent_options)?;
    let clock = agent.clock();
    let registry = PodRegistry::new(clock);
    let sinks = Sinks {
        registry: registry.clone(),
        output: output.clone(),
        events,
        status_file,
        hints: Hints::new(sources),
        pods: BTreeMap::new(),
    };
    output.begin(Arc::new(move || clock.now().time))?;
    let signals = Signals::listen(options.pods.grace_ms)?;
    let end = EarlyEnd::new(&options, clock.now().time);
    let facts = RunFacts {
        id: options.run_id.clone(),
        files: options.files,
        runner: Runner::Foreground,
        state_dir: options.state_dir,
    };
    let supervised = SupervisorOptions {
        run: options.run_id,
        files: facts.files.clone(),
        pods: options.pods,
        companions,
        numbers: Arc::default(),
        on_failure: options.on_failure,
        afterwards: Afterwards::Forget,
    };
    let supervisor = Supervisor::new(agent, supervised, sinks);
    let mut left_out = Vec::new();
    for pod in &pods {
        let refused = |source| RunError::Pod { pod: pod.manifest.name().to_owned(), source };
        left_out.extend(supervisor.check(pod).map_err(refused)?);
    }
    left_out.dedup();
    if let Some(line) = userns::about(&left_out) {
        tracing::warn!("{line}");
    }
    let control = ControlListener::open(runtime, registry, facts);
    let controllers = controllers(pods, workloads, clock.now());
    let mut foreground = Foreground { supervisor, controllers, control, signals, end, clock, output };
    let results = foreground.until_done().await;
    Ok(RunResult { exit_code: foreground.close(&results).await })
}

/// A run in the foreground.
struct Foreground<R: Runtime> {
    supervisor: Supervisor<R>,
    controllers: Vec<Box<dyn Controller>>,
    control: ControlListener,
    signals: Signals,
    end: EarlyEnd,
    clock: Clock,
    output: Output,
}

impl<R: Runtime> Foreground<R> {
    /// Runs until every workload has a result.
    async fn until_done(&mut self) -> Vec<PodResult> {
        loop {
            let wake = self.step();
            let results: Vec<PodResult> = self.controllers.iter().filter_map(|c| c.result()).collect();
            if results.len() == self.controllers.len() {
                return results;
            }
            let clock = self.clock;
            let wake = async {
                match wake {
                    Some(at) => clock.reach(at).await,
                    None => std::future::pending().await,
                }
            };
            let reason = tokio::select! {
                happened = self.supervisor.next() => self.take_in(&happened),
                (name, nth, grace_ms) = self.signals.next() => {
                    self.signalled(name, nth, grace_ms);
                    None
                }
                order = self.control.next() => {
                    self.carry_out(order);
                    None
                }
                () = wake => self.end.time_is_up(self.clock.now().time),
            };
            if let Some(reason) = reason {
                self.output.note(&reason);
                let grace_ms = self.supervisor.grace_ms();
                self.controllers.iter_mut().for_each(|c| c.stop(grace_ms));
            }
        }
    }

    /// Steps all workloads. Returns the time of the next step, if any.
    fn step(&mut self) -> Option<Time> {
        let mut wake: Option<Time> = self.end.wake();
        for controller in &mut self.controllers {
            if let Err(e) = controller.step(&mut self.supervisor, self.clock.now()) {
                // The first pod of the workload could be run, so this is an internal error.
                tracing::error!("cannot run a pod: {e}");
                self.supervisor.broken = true;
                controller.stop(None);
            }
            wake = wake.into_iter().chain(controller.wake()).min();
        }
        wake
    }

    /// Passes an event to the workloads. Returns the reason if everything must be stopped.
    fn take_in(&mut self, happened: &Happened) -> Option<String> {
        let now = self.clock.now().time;
        match happened {
            Happened::Status(pod, update) => {
                self.controllers.iter_mut().for_each(|c| c.status_changed(*pod, update, now));
                None
            }
            Happened::Ended(pod, result, _) => {
                self.controllers.iter_mut().for_each(|c| c.ended(*pod, *result, now));
                self.end.pod_ended(result)
            }
            Happened::Failed(pod, failure) => {
                if let Some(note) = self.end.hopeless(failure) {
                    self.output.note(&note);
                    // The workload would only create another pod that cannot start. Other workloads continue.
                    let grace_ms = self.supervisor.grace_ms();
                    self.controllers.iter_mut().filter(|c| c.owns(*pod)).for_each(|c| c.stop(grace_ms));
                }
                self.end.failure(failure)
            }
        }
    }

    fn signalled(&mut self, name: &str, nth: u32, grace_ms: Option<u64>) {
        self.end.is_over = true;
        self.output.note(&signal_note(name, nth));
        match nth {
            1 => self.controllers.iter_mut().for_each(|c| c.stop(grace_ms)),
            // A second signal stops all pods immediately, without any order between them.
            _ => self.supervisor.stop_all(grace_ms),
        }
    }

    fn carry_out(&mut self, order: Order) {
        match order {
            Order::Stop(StopOf { pod, workload, grace_ms }) => {
                let owner = self.controllers.iter_mut().find(|c| workload && c.owns(pod));
                match owner {
                    Some(controller) => controller.stop(grace_ms),
                    None => self.supervisor.stop(pod, grace_ms),
                }
            }
            Order::StopRun { grace_ms, .. } => {
                let grace_ms = grace_ms.or(self.supervisor.grace_ms());
                self.controllers.iter_mut().for_each(|c| c.stop(grace_ms));
            }
            Order::Restart(order) => self.supervisor.restart(order),
            Order::Apply { reply, .. } => {
                // The client may be gone.
                let _ = reply.send(Err(OrderError::Foreground));
            }
            Order::Run { reply, .. } => {
                let _ = reply.send(Err(OrderError::NoMorePods));
            }
        }
    }

    /// Prints the result of the run and returns the exit code.
    async fn close(self, results: &[PodResult]) -> u8 {
        self.control.close().await;
        let sinks = &self.supervisor.sinks;
        sinks.status_file.finish();
        // The output must not mention a file that is incomplete.
        for (what, is_missing) in
            [("events", sinks.events.is_incomplete()), ("status", sinks.status_file.is_stale())]
        {
            if is_missing {
                self.output.retract(what);
            }
        }
        self.output.finish().await;
        match self.signals.first {
            _ if self.supervisor.broken => OWN_FAILURE,
            Some(code) => code,
            // A workload that is stopped has succeeded, but not if its pods could never start.
            None => match self.end.exit_code.unwrap_or_else(|| exit_code(results)) {
                0 => u8::from(self.end.has_hopeless),
                code => code,
            },
        }
    }
}

/// Exit code after `--timeout`, as in timeout(1).
const TIMED_OUT: u8 = 124;

/// Conditions that end a run before its pods are done.
struct EarlyEnd {
    deadline: Option<Time>,
    /// The requested timeout.
    timeout_ms: u64,
    on_failure: OnFailure,
    /// Whether everything is already being stopped.
    is_over: bool,
    /// The exit code in this case.
    exit_code: Option<u8>,
    /// Whether a pod could never start.
    has_hopeless: bool,
}

impl EarlyEnd {
    fn new(options: &RunOptions, now: Time) -> Self {
        EarlyEnd {
            deadline: options.timeout_ms.map(|ms| now + ms),
            timeout_ms: options.timeout_ms.unwrap_or_default(),
            on_failure: options.on_failure,
            is_over: false,
            exit_code: None,
            has_hopeless: false,
        }
    }

    fn wake(&self) -> Option<Time> {
        self.deadline.filter(|_| !self.is_over)
    }

    /// Ends the run. Returns the message to print.
    fn end(&mut self, code: u8, reason: String) -> Option<String> {
        self.is_over = true;
        self.exit_code = Some(code);
        Some(reason)
    }

    fn time_is_up(&mut self, now: Time) -> Option<String> {
        self.wake().filter(|deadline| *deadline <= now)?;
        let time = HumanDuration(self.timeout_ms);
        self.end(TIMED_OUT, format!("--timeout: {time} passed; stopping in order"))
    }

    /// Records a pod that ends because it can never start. Returns the message to print.
    fn hopeless(&mut self, failure: &Failure) -> Option<String> {
        if self.on_failure != OnFailure::StopIfPermanent {
            return None;
        }
        self.has_hopeless = true;
        (!self.is_over).then(|| format!("{}; trying again cannot help: its pod ends", failure.text))
    }

    fn failure(&mut self, failure: &Failure) -> Option<String> {
        if self.on_failure != OnFailure::Stop || self.is_over {
            return None;
        }
        let code = failure.code.and_then(|code| u8::try_from(code).ok()).filter(|code| *code > 0);
        self.end(code.unwrap_or(1), format!("--fail-fast: {}; stopping in order", failure.text))
    }

    fn pod_ended(&mut self, result: &PodResult) -> Option<String> {
        if self.on_failure != OnFailure::Stop || self.is_over || result.phase != Phase::Failed {
            return None;
        }
        let code = exit_code(std::slice::from_ref(result));
        self.end(code, "--fail-fast: a pod failed; stopping in order".to_owned())
    }
}

/// The control socket of the run, if it could be opened.
struct ControlListener(Option<(Listening, mpsc::Receiver<Order>)>);

impl ControlListener {
    /// Opens the socket. Pods are run even if that fails.
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

/// Converts SIGINT, SIGTERM and SIGHUP to stop requests.
struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    /// `None` if hang-ups are ignored: under nohup, and after the first one, because several sources send it
    /// at the same time.
    hangup: Option<tokio::signal::unix::Signal>,
    grace_ms: Option<u64>,
    times: u32,
    /// The exit code for the first signal.
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

    /// Waits for a signal. Returns its name, its count, and the grace period.
    async fn next(&mut self) -> (&'static str, u32, Option<u64>) {
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
        (name, self.times, grace_ms)
    }
}

/// The message for the first, second or third signal.
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

/// Whether the process was started with SIGHUP ignored, as by nohup.
fn ignores_hangups() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    // Bit 0 of the mask is signal 1, which is SIGHUP.
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
}
