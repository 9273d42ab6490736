//! The worker of one pod: passes events to the engine and executes its actions.
//!
//! The loop waits for four things only: a report from one of its tasks, a stop request, another request, and
//! the time of the engine's next step. Each action runs in its own task.
//!
//! If there is a store, the state and the planned actions are written before they are executed, so that
//! another process can resume the pod: see [`resume`].

mod resume;
mod tasks;
mod update;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::PodStatus;
use outrigger_lifecycle::trace::{self, Entry, IgnoredBecause, Recorder};
use outrigger_lifecycle::{
    Action, ContainerFacts, Decision, Engine, Event, HookKind, Outlook, ProbeKind, StatusFacts, StopCause,
    Time, pod_status, verdict,
};
use outrigger_runtime::{ContainerId, Image, Runtime};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tracing::Instrument as _;

use crate::clock::{Clock, Stamp};
use crate::event::{AgentEventKind, Deletion, Emitter, PodResult, Snapshot, StatusUpdate};
use crate::log_follower::LogFollower;
use crate::options::{OnFailure, StatusUpdates};
use crate::pod::{PodContext, PodSandbox};
use crate::state::{Latest, StopRequest};
use crate::store::{PodStore, SavedContainer, SavedInstance};
use crate::tasks::Task;
use crate::volumes::remove_tree;
use tasks::{Instance, Report, Tasks};
pub(crate) use update::PodOrder;
pub use update::RestartReply;

/// How long the end of a pod waits for a subscriber to read log lines.
const READER_PATIENCE: Duration = Duration::from_secs(2);

/// How often saving the end of a pod is retried.
const SAVE_AGAIN: Duration = Duration::from_secs(1);

/// The options of a worker, besides its pod and the runtime.
pub(crate) struct WorkerOptions {
    pub(crate) clock: Clock,
    /// The latest stop request.
    pub(crate) stop: watch::Receiver<Option<StopRequest>>,
    /// Other requests.
    pub(crate) orders: mpsc::UnboundedReceiver<PodOrder>,
    /// Where events are emitted.
    pub(crate) events: Emitter,
    /// Where the latest state is published.
    pub(crate) latest: Arc<Latest>,
    /// Follows the containers' logs, if they are emitted as events.
    pub(crate) logs: Option<LogFollower>,
    /// Where state is persisted, if another process may resume the pod.
    pub(crate) store: Option<PodStore>,
    pub(crate) status: StatusUpdates,
    pub(crate) on_failure: OnFailure,
}

/// Maximum number of containers created ahead. Creating one is mostly waiting for the kernel
/// (namespaces and mounts), and several can wait together.
const MADE_AHEAD_MAX: usize = 3;

/// The worker's state of one container.
#[derive(Default)]
struct Slot {
    image: Option<Image>,
    current: Option<Current>,
    /// Number of attempts to start it so far; names are not reused.
    tries: u32,
    /// Whether its logs are being followed.
    followed: bool,
    /// Its first instance, if it was created ahead or is being created ahead.
    ahead: Option<Ahead>,
    /// The instance that is about to be started.
    planned: Option<Planned>,
}

/// An instance that has a name but was not created yet.
struct Planned {
    instance: Instance,
    /// Set if it is being created ahead.
    ahead: Option<oneshot::Receiver<bool>>,
}

/// An instance created ahead, and the prepared pod it uses.
struct Ahead {
    id: ContainerId,
    prepared: Arc<PodSandbox>,
    is_made: oneshot::Receiver<bool>,
}

/// The existing instance and its tasks, which end with it.
struct Current {
    instance: Instance,
    life: Option<Task>,
    is_running: bool,
    /// Whether its stop signal was sent.
    signalled: bool,
    /// The host pid of its first process, if known.
    pid: Option<u32>,
    probes: BTreeMap<ProbeKind, Task>,
    hooks: Vec<(HookKind, Task)>,
}

/// The worker of one pod.
pub(crate) struct Worker<R> {
    tasks: Tasks<R>,
    pod: Arc<PodContext>,
    engine: Engine,
    recorder: Recorder,
    reports: mpsc::UnboundedReceiver<Report>,
    stop: watch::Receiver<Option<StopRequest>>,
    /// Whether the sender of stop requests was dropped.
    alone: bool,
    orders: mpsc::UnboundedReceiver<PodOrder>,
    /// Whether the plan differs from the one that the pod was started with.
    is_updated: bool,
    events: Emitter,
    latest: Arc<Latest>,
    logs: Option<LogFollower>,
    status_updates: StatusUpdates,
    on_failure: OnFailure,
    slots: Vec<Slot>,
    prepared: Option<Arc<PodSandbox>>,
    /// Tasks that watch the sandbox and its volumes.
    watchers: Vec<Task>,
    /// Whether the sandbox was requested before.
    sandbox_tried: bool,
    facts: StatusFacts,
    status: Option<Arc<PodStatus>>,
    deleted: Option<Time>,
    entries: Vec<Entry>,
    /// Tasks that only the end of the pod waits for: signals, removals.
    background: JoinSet<()>,
    /// Tasks that are aborted at the end of the pod: pulls, containers created ahead.
    pulls: JoinSet<()>,
    /// Where state is persisted, if another process may resume the pod.
    store: Option<PodStore>,
    /// Ended instances whose runtime records can be removed once their end is saved.
    ended: Vec<ContainerId>,
    /// Whether another process started the pod.
    is_resumed: bool,
}

impl<R: Runtime> Worker<R> {
    /// A worker for a new pod.
    pub(crate) fn new(runtime: Arc<R>, pod: Arc<PodContext>, options: WorkerOptions) -> Self {
        let plan = (**pod.plan()).clone();
        let WorkerOptions { clock, stop, orders, events, latest, logs, store, status, on_failure } = options;
        let (tx, reports) = mpsc::unbounded_channel();
        let recorder = Recorder::new(&plan);
        let slots = plan.containers.iter().map(|_| Slot::default()).collect();
        let facts = StatusFacts {
            namespace: pod.namespace().to_owned(),
            uid: pod.pod.metadata.uid.clone().unwrap_or_default(),
            generation: pod.pod.metadata.generation,
            qos: Some(pod.qos),
            host_ips: pod.host.ip.iter().map(ToString::to_string).collect(),
            readiness_gates: pod
                .pod
                .spec
                .iter()
                .flat_map(|s| s.readiness_gates.iter().flatten())
                .map(|gate| gate.condition_type.clone())
                .collect(),
            containers: pod
                .containers
                .iter()
                .map(|c| ContainerFacts {
                    image: c.image.clone().unwrap_or_default(),
                    ..ContainerFacts::default()
                })
                .collect(),
            ..StatusFacts::default()
        };
        Worker {
            tasks: Tasks { runtime, pod: pod.clone(), clock, reports: tx, durable: store.is_some() },
            engine: Engine::new(plan, clock.now().time),
            pod,
            recorder,
            reports,
            stop,
            alone: false,
            orders,
            is_updated: false,
            events,
            latest,
            logs,
            status_updates: status,
            on_failure,
            slots,
            prepared: None,
            watchers: Vec::new(),
            sandbox_tried: false,
            facts,
            status: None,
            deleted: None,
            entries: Vec::new(),
            background: JoinSet::new(),
            pulls: JoinSet::new(),
            store,
            ended: Vec::new(),
            is_resumed: false,
        }
    }

    /// Runs the pod to its end and removes everything it used.
    pub(crate) async fn run(mut self) -> PodResult {
        let mut decision = Decision::default();
        // A stop request sent before the worker started counts as well.
        self.stop.mark_changed();
        if !self.is_resumed {
            self.entries.push(trace::planned(self.engine.plan(), self.tasks.clock.now().time));
        }
        loop {
            let stamp = self.tasks.clock.now();
            self.engine.step(stamp.time, &mut decision);
            self.name_instances(&decision);
            if self.save() {
                self.remove_ended();
            }
            for action in &decision.actions {
                self.carry_out(action, stamp);
            }
            let (plan, obs) = (self.engine.plan(), self.engine.observation());
            self.recorder.on_step(plan, obs, &decision, stamp.time, &mut self.entries);
            self.write_entries(stamp);
            self.observed(&decision);
            self.publish(&decision, stamp);
            self.make_ahead();
            if self.engine.observation().over {
                break;
            }
            let (wake, clock) = (decision.wake, self.tasks.clock);
            let wake = async {
                match wake {
                    Some(at) => clock.reach(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                report = self.reports.recv() => {
                    let mut next = report;
                    // Reports that are already queued are handled in the same step.
                    while let Some(report) = next {
                        self.take_in(report);
                        next = self.reports.try_recv().ok();
                    }
                }
                changed = self.stop.changed(), if !self.alone => match changed {
                    Ok(()) => self.stop_order(),
                    Err(_) => self.alone = true,
                },
                Some(order) = self.orders.recv() => self.pod_order(order),
                () = wake => {}
                _ = self.background.join_next(), if !self.background.is_empty() => continue,
            }
        }
        let result = verdict::result(self.engine.plan(), self.engine.observation());
        self.wait_until_writable().await;
        self.clear_away().await;
        // If the disk was full, there may be space now.
        self.save();
        result
    }

    fn stop_order(&mut self) {
        let order = *self.stop.borrow_and_update();
        match order {
            None => {}
            Some(StopRequest::NodeShutdown { grace_ms }) => self.handle(Event::NodeShutdown { grace_ms }),
            Some(StopRequest::Delete { grace_ms }) => self.handle(Event::StopRequested { grace_ms }),
        }
    }

    /// Publishes the current state.
    fn observed(&self, decision: &Decision) {
        let snapshot = Snapshot {
            observation: Arc::new(self.engine.observation().clone()),
            waits: decision.waits.as_slice().into(),
        };
        self.latest.observe(snapshot.clone());
        self.events.emit(AgentEventKind::Observed(snapshot));
    }

    /// Handles a report.
    fn take_in(&mut self, report: Report) {
        let event = match report {
            Report::Event(event) => event,
            // The result of the task is unknown. So the worker panics, too, and its pod is removed.
            Report::Panicked => std::panic::resume_unwind(Box::new("a task of the pod panicked")),
            Report::PodSandbox(prepared) => {
                self.facts.pod_ips = prepared.sandbox.ips.iter().map(ToString::to_string).collect();
                self.events.emit(AgentEventKind::Addresses(self.facts.pod_ips.clone()));
                let prepared: Arc<PodSandbox> = Arc::from(prepared);
                self.watchers = self.watch(&prepared);
                self.prepared = Some(prepared);
                Event::SandboxReady
            }
            // A result for an image that was changed meanwhile is ignored.
            Report::Image { container, reference, .. } | Report::PullFailed { container, reference, .. }
                if self.pod.containers[container].image.as_deref().unwrap_or_default() != reference =>
            {
                return;
            }
            Report::PullFailed { container, reason, message, cause, .. } => {
                Event::ImageFailed { container, reason, message, cause }
            }
            Report::Image { container, image, .. } => {
                self.facts.containers[container].image_id.clone_from(&image.id);
                self.slots[container].image = Some(*image);
                Event::ImageReady { container }
            }
            Report::Process { container, attempt, pid } => {
                if let Some(current) = self.current(container, attempt) {
                    current.pid = Some(pid);
                }
                return;
            }
            Report::Signalled { container, attempt } => {
                if let Some(current) = self.current(container, attempt) {
                    current.signalled = true;
                }
                return;
            }
            Report::StopSignalIgnored { container, attempt, signal, why, grace } => {
                if self.current(container, attempt).is_some() {
                    self.stop_signal_ignored(container, &signal, why, grace);
                }
                return;
            }
            Report::Hook { container, attempt, hook, ended } => {
                self.hook_output(container, hook, &ended.output);
                Event::HookEnded { container, attempt, hook, error: ended.error.map(Into::into) }
            }
        };
        match event {
            Event::Started { container, attempt } => {
                if let Some(current) = self.current(container, attempt) {
                    current.is_running = true;
                    let id = current.instance.id.clone();
                    self.events.emit(AgentEventKind::Instance { container, id: Some(id) });
                }
            }
            Event::Exited { container, attempt, .. } | Event::StartFailed { container, attempt, .. } => {
                self.gone(container, attempt);
            }
            _ => {}
        }
        self.handle(event);
    }

    /// Starts the tasks that watch a new sandbox and its volumes.
    fn watch(&self, prepared: &Arc<PodSandbox>) -> Vec<Task> {
        let tasks = &self.tasks;
        let mut watchers = vec![Task::spawn(tasks.guarded(tasks.clone().watch_sandbox()))];
        let limits = &self.engine.plan().volume_limits;
        if !limits.is_empty() {
            let measure = tasks.clone().measure(limits.clone(), prepared.clone());
            watchers.push(Task::spawn(tasks.guarded(measure)));
        }
        watchers
    }

    fn handle(&mut self, event: Event) {
        tracing::debug!(?event, "happened");
        let stamp = self.tasks.clock.now();
        self.engine.handle(&event, stamp.time);
        let (plan, obs) = (self.engine.plan(), self.engine.observation());
        self.recorder.on_event(plan, obs, &event, stamp.time, &mut self.entries);
        self.write_entries(stamp);
    }

    fn current(&mut self, container: usize, attempt: u32) -> Option<&mut Current> {
        let current = self.slots[container].current.as_mut();
        current.filter(|c| c.instance.attempt == attempt)
    }

    /// Handles the end of an instance. Its tasks end and its record is removed. Its log and message are kept.
    fn gone(&mut self, container: usize, attempt: u32) {
        if self.current(container, attempt).is_none() {
            return;
        }
        self.events.emit(AgentEventKind::Instance { container, id: None });
        if let Some(current) = self.slots[container].current.take() {
            self.ended.push(current.instance.id);
        }
    }

    /// Removes the runtime records of instances whose end is saved.
    fn remove_ended(&mut self) {
        for id in self.ended.drain(..) {
            let tasks = self.tasks.clone();
            let remove = async move { tasks.remove(&id).await };
            self.background.spawn(self.tasks.guarded(remove).in_current_span());
        }
    }

    /// Saves the current state and the planned actions. Returns whether the runtime's records of ended
    /// instances can be removed.
    fn save(&mut self) -> bool {
        let Some(store) = &mut self.store else { return true };
        let instance = |slot: &Slot| {
            let planned = slot.planned.as_ref().map(|planned| (&planned.instance, false));
            let current = || slot.current.as_ref().map(|current| (&current.instance, current.signalled));
            let (instance, signalled) = planned.or_else(current)?;
            Some(SavedInstance { id: instance.id.clone(), attempt: instance.attempt, signalled })
        };
        let containers = self.slots.iter().zip(&self.facts.containers).map(|(slot, facts)| SavedContainer {
            tries: slot.tries,
            image: slot.image.clone(),
            instance: instance(slot),
            container_id: facts.container_id.clone(),
            last_container_id: facts.last_container_id.clone(),
        });
        let plan = self.is_updated.then(|| self.engine.plan());
        store.save(self.engine.observation(), plan, containers.collect())
    }

    /// The tracing span of a container.
    fn container_span(&self, container: usize) -> tracing::Span {
        tracing::info_span!("container", name = self.pod.containers[container].name)
    }

    /// Spawns a task that the pod's end waits for. It logs in the current span.
    fn in_background(&mut self, work: impl Future<Output = ()> + Send + 'static) {
        self.background.spawn(self.tasks.guarded(work).in_current_span());
    }

    /// Spawns the task of an action. It logs in the span of the container.
    fn carry_out(&mut self, action: &Action, stamp: Stamp) {
        let span = action.container().map(|container| self.container_span(container));
        let _entered = span.as_ref().map(tracing::Span::enter);
        tracing::debug!(?action, "carrying out");
        let tasks = self.tasks.clone();
        match *action {
            Action::CreateSandbox { .. } => {
                let again = std::mem::replace(&mut self.sandbox_tried, true);
                self.in_background(tasks.create_sandbox(again));
            }
            Action::Pull { container } => {
                while self.pulls.try_join_next().is_some() {}
                let pull = tasks.pull(container, self.events.clone());
                self.pulls.spawn(self.tasks.guarded(pull).in_current_span());
            }
            Action::Start { container, .. } => self.start(container),
            Action::RunHook { container, attempt, hook, deadline } => {
                let limit = deadline.map(|at| Duration::from_millis(at.since(stamp.time)));
                let Some(prepared) = self.prepared.clone() else { return };
                if let Some(current) = self.current(container, attempt) {
                    let instance = current.instance.clone();
                    let task =
                        Task::spawn(tasks.guarded(tasks.clone().hook(instance, hook, limit, prepared)));
                    current.hooks.push((hook, task));
                }
            }
            Action::CancelHook { container, attempt, hook } => {
                if let Some(current) = self.current(container, attempt) {
                    current.hooks.retain(|(kind, _)| *kind != hook);
                }
            }
            Action::Probe { container, attempt, kind } => {
                let plan = self.engine.plan().containers[container].probe(kind);
                let timeout = Duration::from_millis(plan.map_or(1_000, |p| p.timeout_ms));
                let Some(prepared) = self.prepared.clone() else { return };
                if let Some(current) = self.current(container, attempt) {
                    let instance = current.instance.clone();
                    let task =
                        Task::spawn(tasks.guarded(tasks.clone().probe(instance, kind, timeout, prepared)));
                    current.probes.insert(kind, task);
                }
            }
            Action::Terminate { container, attempt, kill_at } => {
                let grace = Duration::from_millis(kill_at.since(stamp.time));
                let signal = self.stop_signal(container);
                if let Some(current) = self.current(container, attempt) {
                    let (instance, pid) = (current.instance.clone(), current.pid);
                    self.in_background(tasks.terminate(instance, signal, pid, grace));
                }
            }
            Action::Kill { container, attempt } => {
                if let Some(current) = self.current(container, attempt) {
                    let instance = current.instance.clone();
                    if current.is_running {
                        self.in_background(tasks.kill(instance.id));
                    } else {
                        current.life = None;
                        self.in_background(tasks.kill_unborn(instance));
                    }
                }
            }
            Action::BeginKill { .. }
            | Action::BeginStop { .. }
            | Action::BeginRerun { .. }
            | Action::Rerun
            | Action::Finish => {}
        }
    }

    /// Creates the next containers ahead, which makes their start faster. Only the engine decides when they
    /// start.
    fn make_ahead(&mut self) {
        while self.slots.iter().filter(|slot| slot.ahead.is_some()).count() < MADE_AHEAD_MAX {
            if !self.make_next_ahead() {
                return;
            }
        }
    }

    /// Creates the next container ahead. Returns false if there is none.
    fn make_next_ahead(&mut self) -> bool {
        let obs = self.engine.observation();
        if obs.stop.is_some() || obs.over {
            return false;
        }
        let Some(container) = self.slots.iter().position(|slot| slot.tries == 0) else { return false };
        let (Some(prepared), Some(image)) = (self.prepared.clone(), self.slots[container].image.clone())
        else {
            return false;
        };
        let id = self.next_id(container);
        let instance = Instance { container, attempt: 0, id: id.clone() };
        let making = self.tasks.clone().make_ahead(instance, image, prepared.clone());
        let (made, is_made) = oneshot::channel();
        self.pulls.spawn(self.tasks.guarded(async move {
            // Fails only if the pod ended first. Then the result is not needed.
            let _ = made.send(making.await);
        }));
        self.slots[container].ahead = Some(Ahead { id, prepared, is_made });
        true
    }

    fn next_id(&mut self, container: usize) -> ContainerId {
        let slot = &mut self.slots[container];
        slot.tries += 1;
        self.pod.container_id(container, slot.tries - 1)
    }

    /// Assigns names to the instances that are about to be started.
    fn name_instances(&mut self, decision: &Decision) {
        for action in &decision.actions {
            let &Action::Start { container, attempt } = action else { continue };
            let ahead = self.slots[container].ahead.take();
            let prepared = self.prepared.as_ref();
            let ahead = ahead
                .filter(|ahead| attempt == 0 && prepared.is_some_and(|g| Arc::ptr_eq(g, &ahead.prepared)));
            let (id, ahead) = match ahead {
                Some(ahead) => (ahead.id, Some(ahead.is_made)),
                None => (self.next_id(container), None),
            };
            let facts = &mut self.facts.containers[container];
            facts.image = self.pod.containers[container].image.clone().unwrap_or_default();
            let shown = format!("{}://{id}", self.tasks.runtime.name());
            facts.last_container_id = facts.container_id.replace(shown);
            self.slots[container].planned =
                Some(Planned { instance: Instance { container, attempt, id }, ahead });
        }
    }

    fn start(&mut self, container: usize) {
        let slot = &mut self.slots[container];
        // The engine starts no container before its sandbox and image exist.
        let (Some(Planned { instance, ahead }), Some(prepared), Some(image)) =
            (slot.planned.take(), self.prepared.clone(), slot.image.clone())
        else {
            return;
        };
        if !std::mem::replace(&mut slot.followed, true)
            && let Some(logs) = &self.logs
        {
            let dir = self.pod.log_dir(container);
            match std::fs::create_dir_all(&dir) {
                Ok(()) => logs.follow(dir, container, self.events.clone()),
                Err(e) => tracing::warn!("cannot make {}: {e}", dir.display()),
            }
        }
        let life = self.tasks.guarded(self.tasks.clone().live(instance.clone(), image, prepared, ahead));
        slot.current = Some(Current {
            life: Some(Task::spawn(life)),
            instance,
            is_running: false,
            signalled: false,
            pid: None,
            probes: BTreeMap::new(),
            hooks: Vec::new(),
        });
    }

    /// The stop signal of a container: `TERM`, unless its spec or its image names another.
    fn stop_signal(&self, container: usize) -> String {
        let lifecycle = self.pod.containers[container].lifecycle.as_ref();
        let written = lifecycle.and_then(|lifecycle| lifecycle.stop_signal.as_deref());
        let image = self.slots[container].image.as_ref();
        let name = written.or_else(|| image.and_then(|image| image.stop_signal.as_deref())).unwrap_or("TERM");
        name.strip_prefix("SIG").unwrap_or(name).to_owned()
    }

    /// Records that a container ignores its stop signal and will use its whole grace period.
    fn stop_signal_ignored(&mut self, container: usize, signal: &str, why: IgnoredBecause, grace: Duration) {
        let stamp = self.tasks.clock.now();
        let kill_in_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        let out = &mut self.entries;
        self.recorder.on_ignored_signal(container, signal, why, kill_in_ms, stamp.time, out);
        self.write_entries(stamp);
    }

    /// Records the output of a hook in the trace (G-53).
    fn hook_output(&mut self, container: usize, hook: HookKind, output: &str) {
        let now = self.tasks.clock.now().time;
        self.recorder.on_hook_output(container, hook, output, now, &mut self.entries);
    }

    fn write_entries(&mut self, stamp: Stamp) {
        let mut end = None;
        let grace_ms = self.pod.options.grace_ms;
        for mut entry in std::mem::take(&mut self.entries) {
            let mut failure = verdict::failure(self.engine.plan(), self.engine.observation(), &entry);
            let container = entry.container;
            let is_hopeless = entry.event.outlook() == Some(Outlook::Permanent);
            match self.on_failure {
                _ if end.is_some() || failure.is_none() => failure = None,
                OnFailure::Stop | OnFailure::StopIfPermanent if is_hopeless => {
                    end = Some(Event::CannotStart { container, grace_ms });
                }
                OnFailure::Stop => end = Some(Event::NotRetried { container, grace_ms }),
                OnFailure::StopIfPermanent | OnFailure::Retry => failure = None,
            }
            if failure.is_some() {
                entry.event.remove_retry();
            }
            let exact = match entry.time == stamp.time {
                true => stamp.exact,
                false => Duration::from_millis(entry.time.0),
            };
            self.events.emit(AgentEventKind::Trace { entry: Arc::new(entry), exact });
            if let Some(failure) = failure {
                self.events.emit(AgentEventKind::Failed(failure));
            }
        }
        if let Some(end) = end {
            // Handled immediately: the next step must not restart the container, and in the trace this
            // precedes all signals.
            self.handle(end);
        }
    }

    /// Emits the pod's status if it changed.
    fn publish(&mut self, decision: &Decision, stamp: Stamp) {
        if self.status_updates == StatusUpdates::Omitted {
            return;
        }
        let (plan, obs) = (self.engine.plan(), self.engine.observation());
        self.facts.now = stamp.time;
        let status = pod_status(plan, obs, &decision.waits, &self.facts, self.status.as_deref());
        let stop = obs.stop.filter(|s| s.cause == StopCause::Deleted);
        if self.status.as_deref() == Some(&status) && self.deleted == stop.map(|s| s.deadline) {
            return;
        }
        self.deleted = stop.map(|s| s.deadline);
        let status = Arc::new(status);
        self.status = Some(status.clone());
        self.events.emit(AgentEventKind::Status(StatusUpdate {
            status,
            created_at: obs.since,
            deletion: stop.map(|stop| Deletion { deadline: stop.deadline, grace_ms: stop.grace_ms }),
        }));
    }

    /// Emits the remaining output of the containers.
    async fn emit_last_logs(&self) {
        if let Some(logs) = &self.logs {
            logs.forget(self.pod.dir.clone()).await;
        }
    }

    /// Waits while the state directory is read-only. The end of the pod cannot be saved then, and nothing of
    /// it can be removed: a later process can still learn about the end from the runtime.
    async fn wait_until_writable(&mut self) {
        while !self.save() && self.store.as_ref().is_some_and(PodStore::is_read_only) {
            tokio::time::sleep(SAVE_AGAIN).await;
        }
    }

    /// Removes everything that the pod used. Nothing of the pod is running at this point.
    async fn clear_away(&mut self) {
        self.watchers.clear();
        self.pulls.shutdown().await;
        while self.background.join_next().await.is_some() {}
        // If a subscriber stalls, only the removal of the logs waits for it.
        let shown = tokio::time::timeout(READER_PATIENCE, self.emit_last_logs()).await;
        remove_sandbox(&*self.tasks.runtime, &self.pod).await;
        if shown.is_err() {
            self.emit_last_logs().await;
        }
        self.pod.seal_logs();
        if let Some(store) = &self.store {
            match store.keep_logs(&self.pod.dir.join("logs")) {
                Ok(()) => self.pod.logs_are_at(store.logs()),
                Err(e) => tracing::warn!(pod = self.pod.name(), "cannot keep its logs: {e}"),
            }
        }
        remove_files(&self.pod).await;
        self.pod.files_are_gone();
    }
}

/// Removes a pod's sandbox, volumes and directory.
pub(crate) async fn remove_pod<R: Runtime>(runtime: &R, pod: &PodContext) {
    remove_sandbox(runtime, pod).await;
    remove_files(pod).await;
}

async fn remove_sandbox<R: Runtime>(runtime: &R, pod: &PodContext) {
    if let Err(e) = runtime.remove_sandbox(&pod.sandbox_id).await {
        tracing::warn!(pod = pod.name(), "cannot remove a sandbox: {e}");
    }
}

async fn remove_files(pod: &PodContext) {
    let dir = pod.dir.clone();
    let removed = tokio::task::spawn_blocking(move || remove_tree(&dir)).await;
    if let Ok(Err(e)) = removed {
        tracing::warn!(pod = pod.name(), "cannot remove {}: {e}", pod.dir.display());
    }
}

#[cfg(test)]
mod tests;
