//! The agent runs pods identified by UID and reports events about them.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outrigger_lifecycle::{CannotUpdate, Phase, StopCause, changes};
use outrigger_runtime::{Runtime, SandboxId};
use tokio::sync::{Notify, mpsc, watch};
use tracing::Instrument as _;

use crate::cause::SandboxError;
use crate::clock::Clock;
use crate::event::{AgentEventKind, Emitter, EndCause, Events, PodResult, Scope, Snapshot, Subscribers};
use crate::fields::Host;
use crate::log_follower::LogFollower;
use crate::options::{AgentOptions, Durability, LogLines, NewPod, StatusUpdates};
use crate::pod::{PodContext, PodError, PreparedPod};
use crate::state::{Latest, PodState, StopRequest};
use crate::store::{Found, PodStore, SavedPod, Store};
use crate::tasks::Task;
use crate::uid::PodUid;
use crate::volumes::remove_tree;
use crate::worker::{PodOrder, RestartReply, Worker, WorkerOptions, remove_pod};

/// Why the agent cannot add or change a pod.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// Another pod has this UID.
    #[error("there is a pod with the UID {0} already")]
    Exists(PodUid),
    /// No pod has this UID.
    #[error("there is no pod with the UID {0}")]
    NotFound(PodUid),
    /// The state of an ended pod was lost.
    #[error("nothing is left of the pod")]
    NothingLeft,
    /// The change requires a new pod.
    #[error(transparent)]
    CannotUpdate(#[from] CannotUpdate),
}

/// Runs pods, each with its own worker. Cheap to clone. The workers end when the last clone is dropped.
pub struct Agent<R>(Arc<Inner<R>>);

impl<R> Clone for Agent<R> {
    fn clone(&self) -> Self {
        Agent(self.0.clone())
    }
}

struct Inner<R> {
    runtime: Arc<R>,
    options: AgentOptions,
    host: Arc<Host>,
    clock: Clock,
    /// Where pod state is persisted so that another process can resume the pods.
    store: Option<Store>,
    logs: Option<LogFollower>,
    subscribers: Arc<Subscribers>,
    resuming: Arc<Resuming>,
    members: Mutex<BTreeMap<PodUid, Member>>,
}

/// A pod managed by the agent.
struct Member {
    context: Arc<PodContext>,
    stop: watch::Sender<Option<StopRequest>>,
    orders: mpsc::UnboundedSender<PodOrder>,
    latest: Arc<Latest>,
    store: Option<PodStore>,
    _worker: Option<Task>,
}

/// Counts pods that are being resumed from another process.
#[derive(Default)]
struct Resuming {
    pods: AtomicUsize,
    done: Notify,
}

/// Marks a pod as being resumed until dropped.
struct ResumingPod(Arc<Resuming>);

impl ResumingPod {
    fn new(all: &Arc<Resuming>) -> Self {
        all.pods.fetch_add(1, Ordering::AcqRel);
        ResumingPod(all.clone())
    }
}

impl Drop for ResumingPod {
    fn drop(&mut self) {
        self.0.pods.fetch_sub(1, Ordering::AcqRel);
        self.0.done.notify_waiters();
    }
}

/// The persisted state of a pod left by another process.
enum Left {
    /// No state: the pod is new.
    Nothing,
    /// State that cannot be parsed.
    Damaged,
    /// State of a pod that ended when the machine was shut down. The pod starts again, except for containers
    /// that run only once.
    ShutDown(Box<Found>),
    /// State of a pod that another process was stopping for a shutdown of the machine when that process
    /// ended. The stop is finished with the plan that it began with. The second part has that plan if it
    /// differs from the wanted one. Then the pod starts again.
    ShuttingDown(Box<Found>, Option<Box<PodContext>>),
    /// Complete state. The second part has the plan that the pod was started with, if it differs from the
    /// wanted one.
    State(Box<Found>, Option<Box<PodContext>>),
}

/// What happens before a pod's worker begins.
enum Before<R> {
    Nothing(Left),
    /// Finish a stop that another process began.
    Stop(Box<Stop<R>>),
}

/// A stop for a shutdown of the machine that another process did not finish.
struct Stop<R> {
    worker: Worker<R>,
    found: Found,
    store: Option<PodStore>,
    /// The pod that is started afterwards.
    saved: SavedPod,
}

impl<R: Runtime> Stop<R> {
    /// Finishes the stop. The pod is then in the state of one that was shut down with the machine.
    async fn finish(mut self, resuming: ResumingPod) -> Left {
        let mut last = self.found.clone();
        self.worker.resume(self.found).await;
        drop(resuming);
        self.worker.run().await;
        if let Some(store) = self.store {
            last = store.load().ok().flatten().unwrap_or(last);
            store.forget_state();
            if let Err(e) = store.create(&self.saved) {
                tracing::warn!("cannot save the pod's state; if the node restarts, the pod is lost: {e}");
            }
        }
        Left::ShutDown(Box::new(last))
    }
}

/// A pod that has ended and still has state on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FinishedPod {
    /// The pod's UID.
    pub uid: PodUid,
    /// When the pod ended, in milliseconds since 1970.
    pub ended_at_ms: u64,
    /// Disk space used by the pod's state, in bytes.
    pub bytes: u64,
}

impl<R: Runtime> Agent<R> {
    /// Starts an agent. No other process may manage the runtime's pods, and with [`Durability::StateDir`] no
    /// other process may use the state directory ([`outrigger_runtime::NodeIdentity`]).
    ///
    /// # Errors
    /// Returns an error if the state directory cannot be used or log files cannot be followed.
    pub fn start(runtime: Arc<R>, options: AgentOptions) -> io::Result<Self> {
        let store = match options.durability {
            Durability::Process => None,
            Durability::StateDir => Some(Store::open(&options.state_dir)?),
        };
        let logs = match options.logs {
            LogLines::Emitted => Some(LogFollower::start()?),
            LogLines::Kept => None,
        };
        Ok(Agent(Arc::new(Inner {
            runtime,
            host: Arc::new(Host::here()),
            clock: store.as_ref().map_or_else(Clock::start, Store::clock),
            store,
            logs,
            subscribers: Arc::default(),
            resuming: Arc::default(),
            members: Mutex::default(),
            options,
        })))
    }

    /// The clock used by all pods.
    pub fn clock(&self) -> Clock {
        self.0.clock
    }

    /// The runtime used by all pods.
    pub fn runtime(&self) -> &Arc<R> {
        &self.0.runtime
    }

    /// Subscribes to pod events from now on.
    pub fn subscribe(&self, scope: Scope) -> Events {
        self.0.subscribers.subscribe(scope)
    }

    /// Translates a pod to the runtime's types. The result holds everything that does not change while the
    /// pod runs.
    ///
    /// # Errors
    /// Returns the reason if the pod cannot be run.
    pub fn prepare(&self, pod: NewPod) -> Result<PreparedPod, PodError> {
        PreparedPod::new(pod, self.0.host.clone(), &self.0.options.state_dir)
    }

    /// Checks whether a pod could be created now.
    ///
    /// # Errors
    /// Returns the reason if it cannot be created. A retry is unlikely to help.
    pub fn check(&self, pod: &PreparedPod) -> Result<(), SandboxError> {
        let checked = self.0.runtime.check_sandbox(&pod.context.sandbox_spec()?);
        checked.map_err(|error| SandboxError::runtime(error, pod.context.spec()))
    }

    /// Runs a pod, or resumes it if another process started it.
    ///
    /// # Errors
    /// Returns the reason if the pod cannot be run.
    pub fn add(&self, pod: PreparedPod) -> Result<Arc<PodContext>, AgentError> {
        let inner = &*self.0;
        let uid = pod.context.uid().clone();
        if self.state(&uid).is_some_and(|state| !state.over) {
            return Err(AgentError::Exists(uid));
        }
        let found = self.find(&pod.context);
        let PreparedPod { context: wanted, group, status, on_failure } = pod;
        let wanted = Arc::new(wanted);
        let store = inner.store.as_ref().map(|store| store.pod(&wanted.sandbox_id.0));
        if let (Some(store), Left::ShutDown(_)) = (&store, &found) {
            store.forget_state();
        }
        let saved = SavedPod { uid: uid.clone(), plan: (**wanted.plan()).clone() };
        if let (Some(store), Left::Nothing | Left::Damaged | Left::ShutDown(_)) = (&store, &found)
            && let Err(e) = store.create(&saved)
        {
            tracing::warn!(
                pod = wanted.name(),
                "cannot save the pod's state; if the node restarts, the pod is lost: {e}"
            );
        }
        let (stop, stops) = watch::channel(None);
        let (orders, given) = mpsc::unbounded_channel();
        let latest: Arc<Latest> = Arc::default();
        let events = Emitter { pod: uid.clone(), group, subscribers: inner.subscribers.clone() };
        let options = WorkerOptions {
            clock: inner.clock,
            stop: stops,
            orders: given,
            events: events.clone(),
            latest: latest.clone(),
            logs: inner.logs.clone(),
            store: store.clone(),
            status,
            on_failure,
        };
        let (mut context, mut update) = (wanted.clone(), None);
        let found = match found {
            Left::ShuttingDown(found, stopped) => {
                // The machine requested this stop, not the workload, so subscribers get no events about it.
                let quiet = WorkerOptions {
                    clock: inner.clock,
                    stop: options.stop.clone(),
                    orders: mpsc::unbounded_channel().1,
                    events: Emitter { subscribers: Arc::default(), ..events.clone() },
                    latest: Arc::default(),
                    logs: None,
                    store: store.clone(),
                    status: StatusUpdates::Omitted,
                    on_failure,
                };
                let stopped = stopped.map_or_else(|| wanted.clone(), |stopped| Arc::new(*stopped));
                let worker = Worker::new(inner.runtime.clone(), stopped, quiet);
                Before::Stop(Box::new(Stop { worker, found: *found, store: store.clone(), saved }))
            }
            Left::State(found, started) => {
                if let Some(started) = started {
                    // If the difference is an update that was requested before the process ended, it is
                    // applied now. Any other difference comes from another version of Outrigger: a pod is
                    // stopped by the plan that it was started with (G-30).
                    let is_update = changes(started.plan(), wanted.plan()).is_ok_and(|all| !all.is_empty());
                    update = is_update.then(|| wanted.clone());
                    context = Arc::new(*started);
                }
                Before::Nothing(Left::State(found, None))
            }
            found => Before::Nothing(found),
        };
        let worker = Worker::new(inner.runtime.clone(), context.clone(), options);
        let span = tracing::info_span!("pod", name = context.name(), uid = %uid);
        let work = work(worker, found, update.clone(), ResumingPod::new(&inner.resuming));
        let work = work.instrument(span.clone());
        let watched = watch_worker(work, inner.runtime.clone(), context.clone(), events, latest.clone());
        let _worker = Some(Task::spawn(watched.instrument(span)));
        let member = Member {
            context: update.unwrap_or_else(|| context.clone()),
            stop,
            orders,
            latest,
            store,
            _worker,
        };
        self.members().insert(uid, member);
        Ok(context)
    }

    /// Registers a pod that has ended, if any of its state is left.
    ///
    /// # Errors
    /// Returns an error if no readable state is left.
    pub fn add_finished(&self, pod: PreparedPod) -> Result<Arc<PodContext>, AgentError> {
        let (found, started) = match self.find(&pod.context) {
            Left::State(found, started) => (found, started),
            Left::ShutDown(found) => (found, None),
            Left::Nothing | Left::Damaged | Left::ShuttingDown(..) => {
                return Err(AgentError::NothingLeft);
            }
        };
        let uid = pod.context.uid().clone();
        let context = Arc::new(started.map_or(pod.context, |started| *started));
        let store = self.0.store.as_ref().map(|store| store.pod(&context.sandbox_id.0));
        if let Some(store) = &store {
            context.logs_are_at(store.logs());
        }
        let snapshot =
            Snapshot { observation: Arc::new(found.state.observation.clone()), waits: Arc::from([]) };
        let state = PodState { snapshot: Some(snapshot), over: true };
        let member = Member {
            context: context.clone(),
            stop: watch::Sender::new(None),
            orders: mpsc::unbounded_channel().0,
            latest: Arc::new(Latest::new(state)),
            store,
            _worker: None,
        };
        self.members().insert(uid, member);
        Ok(context)
    }

    /// Loads the state left by another process.
    fn find(&self, pod: &PodContext) -> Left {
        let Some(store) = &self.0.store else { return Left::Nothing };
        let store = store.pod(&pod.sandbox_id.0);
        let found = store.pod().and_then(|saved| Ok((saved, store.load()?)));
        let (saved, found) = match found {
            Ok((Some(saved), Some(found))) => (saved, found),
            Ok(_) => return Left::Nothing,
            Err(e) => {
                tracing::error!(pod = pod.name(), "cannot read the pod's state, starting it again: {e}");
                return Left::Damaged;
            }
        };
        let plan = found.state.plan.clone().unwrap_or(saved.plan);
        let count = plan.containers.len();
        let fits = found.state.observation.containers.len() == count && found.state.containers.len() == count;
        let started = (plan != **pod.plan()).then(|| pod.with_plan(plan).map(Box::new)).transpose();
        let Some(started) = started.ok().filter(|_| fits) else {
            tracing::error!(pod = pod.name(), "the saved state belongs to another pod, starting it again");
            return Left::Damaged;
        };
        let obs = &found.state.observation;
        let is_shut_down = obs.stop.is_some_and(|stop| stop.cause == StopCause::NodeShutdown);
        match is_shut_down {
            true if obs.over || found.rebooted => Left::ShutDown(Box::new(found)),
            true => Left::ShuttingDown(Box::new(found), started),
            false => Left::State(Box::new(found), started),
        }
    }

    /// Waits until all pods started by another process are resumed.
    pub async fn resumed(&self) {
        let resuming = &self.0.resuming;
        loop {
            let done = resuming.done.notified();
            if resuming.pods.load(Ordering::Acquire) == 0 {
                return;
            }
            done.await;
        }
    }

    /// Stops a pod gracefully and in order. Does nothing if the pod has ended. A later request can only
    /// shorten the grace period.
    pub fn stop(&self, uid: &PodUid, request: StopRequest) {
        if let Some(member) = self.members().get(uid) {
            member.stop.send_replace(Some(request));
        }
    }

    /// Updates a pod in place: another image, grace period or deadline, or an additional ephemeral container.
    /// Does nothing if the pod has ended.
    ///
    /// # Errors
    /// Returns the reason if the agent has no such pod or the change requires a new pod.
    pub fn update(&self, pod: PreparedPod) -> Result<(), AgentError> {
        let mut members = self.members();
        let uid = pod.context.uid();
        let member = members.get_mut(uid).ok_or_else(|| AgentError::NotFound(uid.clone()))?;
        changes(member.context.plan(), pod.context.plan())?;
        let context = Arc::new(pod.context.with_logs_of(&member.context));
        member.context = context.clone();
        // Fails only if the worker has ended; then there is nothing to update.
        let _ = member.orders.send(PodOrder::Update(context));
        Ok(())
    }

    /// Restarts one container of a pod, or all of them in order. `reply` is called with the result. It is
    /// dropped without a call if the pod does not exist or has ended.
    pub fn restart(&self, uid: &PodUid, container: Option<usize>, reply: RestartReply) {
        if let Some(member) = self.members().get(uid) {
            let _ = member.orders.send(PodOrder::Restart { container, reply });
        }
    }

    /// Removes a pod that has ended, with its status and logs. Does nothing if the pod has not ended.
    pub fn remove(&self, uid: &PodUid) {
        let mut members = self.members();
        if members.get(uid).is_some_and(|member| member.latest.get().over)
            && let Some(member) = members.remove(uid)
            && let Some(store) = member.store
        {
            store.forget();
        }
    }

    /// The state of a pod; `None` if it was never added or was removed.
    pub fn state(&self, uid: &PodUid) -> Option<PodState> {
        self.members().get(uid).map(|member| member.latest.get())
    }

    /// The state of all pods.
    pub fn states(&self) -> Vec<(PodUid, PodState)> {
        self.members().iter().map(|(uid, member)| (uid.clone(), member.latest.get())).collect()
    }

    /// Pods that have ended and were not removed, most recent first.
    pub fn finished(&self) -> Vec<FinishedPod> {
        let members = self.members();
        let finished = |(uid, member): (&PodUid, &Member)| {
            let state = member.latest.get();
            let snapshot = state.snapshot.filter(|_| state.over)?;
            Some(FinishedPod {
                uid: uid.clone(),
                ended_at_ms: snapshot.observation.ended_at().0,
                bytes: member.store.as_ref().map_or(0, PodStore::bytes),
            })
        };
        let mut finished: Vec<FinishedPod> = members.iter().filter_map(finished).collect();
        finished.sort_by_key(|pod| std::cmp::Reverse(pod.ended_at_ms));
        finished
    }

    /// UIDs of all persisted pods, including those of earlier processes.
    pub fn saved(&self) -> Vec<PodUid> {
        let Some(store) = &self.0.store else { return Vec::new() };
        let saved = store.pods().into_iter().filter_map(|id| Some(store.pod(&id).pod().ok()??.uid));
        saved.collect()
    }

    /// Removes pods from the runtime that were not added because their persisted state is damaged or missing.
    /// Nothing else removes them.
    pub async fn remove_unknown(&self) {
        let inner = &*self.0;
        let known: BTreeSet<SandboxId> =
            self.members().values().map(|member| member.context.sandbox_id.clone()).collect();
        let there = inner.runtime.list_sandboxes().await.unwrap_or_else(|e| {
            tracing::error!("cannot list pods that belong to no run: {e}");
            Vec::new()
        });
        for id in there.into_iter().filter(|id| !known.contains(id)) {
            tracing::error!(pod = %id, "the pod belongs to no run, removing it");
            if let Err(e) = inner.runtime.remove_sandbox(&id).await {
                tracing::error!(pod = %id, "the pod cannot be removed: {e}");
                continue;
            }
            let dir = inner.options.state_dir.join("pods").join(&id.0);
            let removed = tokio::task::spawn_blocking(move || remove_tree(&dir)).await;
            if let Ok(Err(e)) = removed {
                tracing::error!(pod = %id, "the files of the pod cannot be removed: {e}");
            }
        }
        let Some(store) = &inner.store else { return };
        for id in store.pods().into_iter().filter(|id| !known.contains(&SandboxId(id.clone()))) {
            store.pod(&id).forget();
        }
    }

    fn members(&self) -> MutexGuard<'_, BTreeMap<PodUid, Member>> {
        // Each insert and remove is atomic, so the map is valid even after a panic.
        self.0.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs a worker from start to end.
async fn work<R: Runtime>(
    mut worker: Worker<R>,
    before: Before<R>,
    update: Option<Arc<PodContext>>,
    resuming: ResumingPod,
) -> PodResult {
    let (found, resuming) = match before {
        Before::Nothing(found) => (found, Some(resuming)),
        Before::Stop(stop) => (stop.finish(resuming).await, None),
    };
    match found {
        Left::Nothing | Left::ShuttingDown(..) => {}
        Left::Damaged => worker.begin_again(),
        Left::ShutDown(before) => worker.begin_after_shutdown(&before.state.observation),
        Left::State(found, _) => worker.resume(*found).await,
    }
    if let Some(context) = update {
        worker.update(context);
    }
    drop(resuming);
    worker.run().await
}

/// Waits for a worker to end and emits the final event.
async fn watch_worker<R: Runtime>(
    work: impl Future<Output = PodResult> + Send + 'static,
    runtime: Arc<R>,
    context: Arc<PodContext>,
    events: Emitter,
    latest: Arc<Latest>,
) {
    // A panic of the worker must not affect other pods. Aborting this task aborts the worker.
    let mut worker = tokio::task::JoinSet::new();
    worker.spawn(work);
    let (result, cause) = match worker.join_next().await {
        Some(Ok(result)) => (result, EndCause::Finished),
        Some(Err(e)) => {
            tracing::error!("the pod's worker failed: {e}");
            // The worker no longer manages the pod's containers.
            remove_pod(&*runtime, &context).await;
            (PodResult { phase: Phase::Failed, failed: None }, EndCause::WorkerFailed)
        }
        None => return,
    };
    latest.end();
    events.emit(AgentEventKind::Ended { result, cause });
}

#[cfg(test)]
mod tests;
