//! The agent: pods in by UID, events out.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outrigger_lifecycle::{Observation, Phase, Plan, StopCause, changes};
use outrigger_runtime::{Runtime, SandboxId};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tracing::Instrument as _;

use crate::cause::SandboxFailure;
use crate::clock::Clock;
use crate::event::{Emitter, EndCause, Events, PodEventKind, PodResult, Scope, Snapshot, Subscribers};
use crate::fields::Host;
use crate::log::LogFollower;
use crate::options::{AgentOptions, Durability, LogLines, NewPod};
use crate::pod::PodContext;
use crate::state::{Latest, PodState, StopRequest};
use crate::store::{Found, PodStore, SavedPod, Store};
use crate::tasks::Task;
use crate::uid::PodUid;
use crate::volumes::remove_tree;
use crate::worker::{PodOrder, Worker, WorkerOptions, remove_pod};

/// Runs pods, each in the hands of a worker. Cheap to clone; workers end when the last clone is dropped.
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
    /// Where pods are written down, so that another process can go on with them.
    store: Option<Store>,
    logs: Option<LogFollower>,
    subscribers: Arc<Subscribers>,
    resuming: Arc<Resuming>,
    members: Mutex<BTreeMap<PodUid, Member>>,
}

/// A pod of the agent.
struct Member {
    context: Arc<PodContext>,
    stop: watch::Sender<Option<StopRequest>>,
    orders: mpsc::UnboundedSender<PodOrder>,
    latest: Arc<Latest>,
    store: Option<PodStore>,
    _worker: Option<Task>,
}

/// Counts pods that are being taken over from another process.
#[derive(Default)]
struct Resuming {
    pods: AtomicUsize,
    done: Notify,
}

/// A pod that is being taken over, until this is dropped.
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

/// What another process left of a pod.
enum Left {
    /// Nothing: it begins here.
    Nothing,
    /// Something nobody understands.
    Damaged,
    /// Something that ended when the machine was shut down: it begins anew, except for what is run once.
    ShutDown(Box<Observation>),
    /// All there is to know, and the plan the pod is to have now if that is not the one it was written with.
    State(Box<Found>, Option<Box<Plan>>),
}

/// A pod that is over and of which something is left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FinishedPod {
    /// Which.
    pub uid: PodUid,
    /// When it ended, in milliseconds since 1970.
    pub ended_at_ms: u64,
    /// What it takes on the disk.
    pub bytes: u64,
}

impl<R: Runtime> Agent<R> {
    /// Starts an agent. The runtime's pods must be nobody else's, and with [`Durability::StateDir`] no other process may use
    /// the state directory ([`outrigger_runtime::NodeIdentity`]).
    ///
    /// # Errors
    /// The state directory cannot be used, or log files cannot be followed.
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

    /// The clock all its pods go by.
    pub fn clock(&self) -> Clock {
        self.0.clock
    }

    /// The runtime its pods are on.
    pub fn runtime(&self) -> &Arc<R> {
        &self.0.runtime
    }

    /// Events of pods, from now on.
    pub fn subscribe(&self, scope: Scope) -> Events {
        self.0.subscribers.subscribe(scope)
    }

    /// Puts together what a pod needs, and does nothing about it yet.
    ///
    /// # Errors
    /// The pod cannot be run: why.
    pub fn describe(&self, pod: &NewPod) -> Result<PodContext, String> {
        PodContext::new(pod, self.0.host.clone(), &self.0.options.state_dir)
    }

    /// Whether a pod could be made now.
    ///
    /// # Errors
    /// It could not, and most likely not later either: why.
    pub fn check(&self, pod: &PodContext) -> Result<(), SandboxFailure> {
        Ok(self.0.runtime.check_sandbox(&pod.sandbox_spec()?)?)
    }

    /// Runs a pod. If another process began with it, this one goes on.
    ///
    /// # Errors
    /// The pod cannot be run: why.
    pub fn add(&self, mut pod: NewPod) -> Result<Arc<PodContext>, String> {
        let inner = &*self.0;
        if self.state(&pod.uid).is_some_and(|state| !state.over) {
            return Err(format!("there is a pod with the UID {} already", pod.uid));
        }
        let found = self.find(&mut pod)?;
        let context = Arc::new(self.describe(&pod)?);
        let store = inner.store.as_ref().map(|store| store.pod(&context.sandbox_id.0));
        if let (Some(store), Left::Nothing | Left::Damaged | Left::ShutDown(_)) = (&store, &found) {
            let saved = SavedPod { uid: pod.uid.clone(), plan: pod.plan.clone() };
            if let Err(e) = store.create(&saved) {
                tracing::warn!(
                    pod = context.name(),
                    "cannot save the pod's state; if the node restarts, the pod is lost: {e}"
                );
            }
        }
        let update = match &found {
            Left::State(_, Some(plan)) => {
                let changed = NewPod { plan: (**plan).clone(), ..pod.clone() };
                Some(Arc::new(self.describe(&changed)?.succeeding(&context)))
            }
            _ => None,
        };
        let (stop, stops) = watch::channel(None);
        let (orders, given) = mpsc::unbounded_channel();
        let latest: Arc<Latest> = Arc::default();
        let events = Emitter {
            pod: pod.uid.clone(),
            group: pod.group.clone(),
            subscribers: inner.subscribers.clone(),
        };
        let options = WorkerOptions {
            clock: inner.clock,
            stop: stops,
            orders: given,
            events: events.clone(),
            latest: latest.clone(),
            logs: inner.logs.clone(),
            store: store.clone(),
            status: pod.status,
            on_failure: pod.on_failure,
        };
        let worker = Worker::new(inner.runtime.clone(), context.clone(), pod.plan, options);
        let span = tracing::info_span!("pod", name = context.name(), uid = %pod.uid);
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
        self.members().insert(pod.uid, member);
        Ok(context)
    }

    /// Knows a pod that is over, if there still is anything of it.
    ///
    /// # Errors
    /// Nothing is left of it that could be read.
    pub fn add_finished(&self, mut pod: NewPod) -> Result<Arc<PodContext>, String> {
        let Left::State(found, _) = self.find(&mut pod)? else {
            return Err("nothing is left of the pod".to_owned());
        };
        let context = Arc::new(self.describe(&pod)?);
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
        self.members().insert(pod.uid, member);
        Ok(context)
    }

    /// What another process left of a pod. The plan is then the one it was begun with.
    fn find(&self, pod: &mut NewPod) -> Result<Left, String> {
        let Some(store) = &self.0.store else { return Ok(Left::Nothing) };
        let described = self.describe(pod)?;
        let store = store.pod(&described.sandbox_id.0);
        let found = store.pod().and_then(|saved| Ok((saved, store.load()?)));
        let (saved, found) = match found {
            Ok((Some(saved), Some(found))) => (saved, found),
            Ok(_) => return Ok(Left::Nothing),
            Err(e) => {
                tracing::error!(
                    pod = described.name(),
                    "cannot read the pod's state, starting it again: {e}"
                );
                return Ok(Left::Damaged);
            }
        };
        let mut plan = found.state.plan.clone().unwrap_or(saved.plan);
        name_images(&mut plan, &pod.plan);
        // What was asked for before the process ended is done by the next. What else is different is the doing of another
        // version: a pod is ended by the plan it was begun with (G-30).
        let is_changed = changes(&plan, &pod.plan).is_ok_and(|changes| !changes.is_empty());
        let update = is_changed.then(|| Box::new(pod.plan.clone()));
        let planned = NewPod { plan, ..pod.clone() };
        let count = planned.plan.containers.len();
        let fits = found.state.observation.containers.len() == count && found.state.containers.len() == count;
        if !fits || self.describe(&planned).is_err() {
            tracing::error!(
                pod = described.name(),
                "the saved state belongs to another pod, starting it again"
            );
            return Ok(Left::Damaged);
        }
        let obs = &found.state.observation;
        let is_shut_down = obs.stop.is_some_and(|stop| stop.cause == StopCause::NodeShutdown);
        if is_shut_down && (obs.over || found.rebooted) {
            store.forget_state();
            return Ok(Left::ShutDown(Box::new(found.state.observation)));
        }
        *pod = planned;
        Ok(Left::State(Box::new(found), update))
    }

    /// Waits until all pods that another process began with are taken over.
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

    /// Tells a pod to go, gracefully and in order. A pod that is over does not mind; an order that comes later can only
    /// shorten the grace.
    pub fn stop(&self, uid: &PodUid, request: StopRequest) {
        if let Some(member) = self.members().get(uid) {
            member.stop.send_replace(Some(request));
        }
    }

    /// Makes a pod what it is given as, where it runs: another image, grace or deadline, one more ephemeral container. A pod
    /// that is over does not mind.
    ///
    /// # Errors
    /// The agent has no such pod, or the change needs another pod: why.
    pub fn update(&self, pod: &NewPod) -> Result<(), String> {
        let context = self.describe(pod)?;
        let mut members = self.members();
        let member =
            members.get_mut(&pod.uid).ok_or_else(|| format!("there is no pod with the UID {}", pod.uid))?;
        changes(member.context.plan(), &pod.plan).map_err(|e| e.to_string())?;
        let context = Arc::new(context.succeeding(&member.context));
        member.context = context.clone();
        // A worker that has ended does not mind.
        let _ = member.orders.send(PodOrder::Update { pod: context, plan: Box::new(pod.plan.clone()) });
        Ok(())
    }

    /// Restarts a container of a pod, or all of them in order. Whether that is done is said to `reply`, which is dropped if
    /// the pod is not there or over.
    pub fn restart(
        &self,
        uid: &PodUid,
        container: Option<usize>,
        reply: oneshot::Sender<Result<(), String>>,
    ) {
        if let Some(member) = self.members().get(uid) {
            let _ = member.orders.send(PodOrder::Restart { container, reply });
        }
    }

    /// Forgets a pod that is over: its status and its logs can no longer be read. One that is not over is left alone.
    pub fn remove(&self, uid: &PodUid) {
        let mut members = self.members();
        if members.get(uid).is_some_and(|member| member.latest.get().over)
            && let Some(member) = members.remove(uid)
            && let Some(store) = member.store
        {
            store.forget();
        }
    }

    /// What is known of a pod; `None` if it was never added, or was removed.
    pub fn state(&self, uid: &PodUid) -> Option<PodState> {
        self.members().get(uid).map(|member| member.latest.get())
    }

    /// What is known of all pods.
    pub fn states(&self) -> Vec<(PodUid, PodState)> {
        self.members().iter().map(|(uid, member)| (uid.clone(), member.latest.get())).collect()
    }

    /// Pods that are over and not removed, the last one first.
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

    /// UIDs of the pods that were written down, by this process or those before it.
    pub fn saved(&self) -> Vec<PodUid> {
        let Some(store) = &self.0.store else { return Vec::new() };
        let saved = store.pods().into_iter().filter_map(|id| Some(store.pod(&id).pod().ok()??.uid));
        saved.collect()
    }

    /// Removes pods of the runtime that were not added, because what was written down of them is damaged or gone. Nobody
    /// else would.
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
        // Members are inserted and removed whole.
        self.0.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A worker from its first step to its last.
async fn work<R: Runtime>(
    mut worker: Worker<R>,
    found: Left,
    update: Option<Arc<PodContext>>,
    resuming: ResumingPod,
) -> PodResult {
    match found {
        Left::Nothing => {}
        Left::Damaged => worker.begin_again(),
        Left::ShutDown(before) => worker.begin_after_shutdown(&before),
        Left::State(found, _) => worker.resume(*found).await,
    }
    if let Some(context) = update {
        let plan = (**context.plan()).clone();
        worker.update(context, plan);
    }
    drop(resuming);
    worker.run().await
}

/// Plans that were written before they named images get those of the pod.
fn name_images(plan: &mut Plan, pod: &Plan) {
    for (c, wanted) in plan.containers.iter_mut().zip(&pod.containers) {
        if c.image.is_empty() && c.name == wanted.name {
            c.image.clone_from(&wanted.image);
        }
    }
}

/// Waits for the end of a worker's work and says it.
async fn watch_worker<R: Runtime>(
    work: impl Future<Output = PodResult> + Send + 'static,
    runtime: Arc<R>,
    context: Arc<PodContext>,
    events: Emitter,
    latest: Arc<Latest>,
) {
    // A worker that panics takes nothing else with it. Aborting this task aborts that one.
    let mut worker = tokio::task::JoinSet::new();
    worker.spawn(work);
    let (result, cause) = match worker.join_next().await {
        Some(Ok(result)) => (result, EndCause::Finished),
        Some(Err(e)) => {
            tracing::error!("the pod's worker failed: {e}");
            // Nobody looks after its containers any more.
            remove_pod(&*runtime, &context).await;
            (PodResult { phase: Phase::Failed, failed: None }, EndCause::WorkerFailed)
        }
        None => return,
    };
    latest.end();
    events.emit(PodEventKind::Ended { result, cause });
}

#[cfg(test)]
mod tests;
