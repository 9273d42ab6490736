//! The workers of a run: pods come and go while it lasts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use k8s_openapi::api::core::v1::PodStatus;
use outrigger_lifecycle::{Observation, Phase, Plan, StopCause, changes};
use outrigger_manifest::Companions;
use outrigger_runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tokio::task::{Id, JoinSet};

use crate::cause::SandboxFailure;
use crate::clock::Clock;
use crate::control::RestartOrder;
use crate::fields::Host;
use crate::pod::PodContext;
use crate::run::{PlannedPod, RunOptions};
use crate::store::{Found, SavedPod, Store};
use crate::worker::{PodOrder, PodResult, Sinks, StopOrder, Worker, remove_pod};
use outrigger_view::hint::Hints;

/// What a worker tells of its pod: the status, whenever it changed.
pub(crate) struct StatusUpdate {
    /// Whose.
    pub(crate) pod: usize,
    /// What.
    pub(crate) status: Box<PodStatus>,
    /// It was told to go.
    pub(crate) deleted: bool,
}

/// Something failed that will be tried again.
#[derive(Debug)]
pub(crate) struct Failure {
    /// What, for people.
    pub(crate) text: String,
    /// The exit code, if a container has exited.
    pub(crate) code: Option<i64>,
}

/// The workers of a run.
pub(crate) struct Supervisor<R> {
    runtime: Arc<R>,
    companions: Arc<Companions>,
    host: Arc<Host>,
    options: Arc<RunOptions>,
    clock: Clock,
    pub(crate) sinks: Sinks,
    workers: JoinSet<PodResult>,
    members: BTreeMap<Id, Member>,
    /// The number of the next pod; shared by all runs of a node.
    numbers: Arc<AtomicUsize>,
    /// Where pods are written down, so that another process can go on with them.
    store: Option<Store>,
    /// Closed when all pods of another process are taken over.
    resuming: Option<mpsc::Sender<()>>,
    updates: (mpsc::UnboundedSender<StatusUpdate>, mpsc::UnboundedReceiver<StatusUpdate>),
    failures: (mpsc::UnboundedSender<Failure>, mpsc::UnboundedReceiver<Failure>),
    /// A worker failed, which is Outrigger's own fault.
    pub(crate) broken: bool,
}

struct Member {
    number: usize,
    context: Arc<PodContext>,
    stop: watch::Sender<StopOrder>,
    orders: mpsc::UnboundedSender<PodOrder>,
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

/// What happened to the supervisor.
pub(crate) enum Happened {
    /// A pod's status changed.
    Status(StatusUpdate),
    /// A pod is over, and nothing is left of it.
    Ended(usize, PodResult),
    /// Something failed that will be tried again; told only to who stops at the first failure.
    Failed(Failure),
}

impl<R: Runtime> Supervisor<R> {
    pub(crate) fn new(
        runtime: Arc<R>,
        companions: Companions,
        options: RunOptions,
        clock: Clock,
        sinks: Sinks,
    ) -> Self {
        Supervisor {
            runtime,
            companions: Arc::new(companions),
            host: Arc::new(Host::here()),
            options: Arc::new(options),
            clock,
            sinks,
            workers: JoinSet::new(),
            members: BTreeMap::new(),
            numbers: Arc::default(),
            store: None,
            resuming: None,
            updates: mpsc::unbounded_channel(),
            failures: mpsc::unbounded_channel(),
            broken: false,
        }
    }

    /// Has pods written down in a store, and gives them numbers that no other run of the store has. `resuming` is held by
    /// workers until they have taken over what another process left.
    pub(crate) fn durable(
        mut self,
        store: Store,
        numbers: Arc<AtomicUsize>,
        resuming: Option<mpsc::Sender<()>>,
    ) -> Self {
        (self.store, self.numbers, self.resuming) = (Some(store), numbers, resuming);
        self
    }

    /// No more pods are taken over from another process.
    pub(crate) fn is_resumed(&mut self) {
        self.resuming = None;
    }

    fn context(&self, pod: &PlannedPod, number: usize) -> Result<PodContext, String> {
        let (companions, host, options) = (self.companions.clone(), self.host.clone(), self.options.clone());
        PodContext::new(pod.manifest.input.clone(), &pod.plan, companions, host, options, number)
    }

    /// Whether a pod can be run at all.
    pub(crate) fn check(&self, pod: &PlannedPod) -> Result<(), String> {
        let context = self.context(pod, self.numbers.load(Ordering::Relaxed))?;
        self.runtime.check_sandbox(&context.sandbox_spec()?).map_err(|e| {
            let hints = self.sinks.hints.of(&pod.manifest.origin);
            let SandboxFailure { message, cause } = e.into();
            hints.of_sandbox(context.subject(&pod.plan), &message, cause)
        })
    }

    /// Why a pod gets no user namespace though the run gives them, with a name for it and all pods like it.
    pub(crate) fn left_out(&self, pod: &PlannedPod) -> Option<(String, String)> {
        if !self.runtime.gives_user_namespaces() {
            return None;
        }
        let origin = &pod.manifest.origin;
        let name = match origin.kind {
            "Pod" => origin.name.clone(),
            kind => format!("{kind}/{}", origin.name),
        };
        Some((name, self.context(pod, self.numbers.load(Ordering::Relaxed)).ok()?.user_namespace().left_out?))
    }

    /// Runs a pod; its number is returned. `told` has changes of its status reported.
    pub(crate) fn add(&mut self, pod: PlannedPod, told: bool) -> Result<usize, String> {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        self.add_as(number, pod, told)?;
        Ok(number)
    }

    /// Runs a pod that has a number. If another process began with it, this one goes on.
    pub(crate) fn add_as(&mut self, number: usize, mut pod: PlannedPod, told: bool) -> Result<(), String> {
        let found = self.find(number, &mut pod)?;
        let context = Arc::new(self.context(&pod, number)?);
        let store = self.store.as_ref().map(|store| store.pod(&context.sandbox_id.0));
        if let (Some(store), Left::Nothing | Left::Damaged | Left::ShutDown(_)) = (&store, &found) {
            let saved = SavedPod {
                run: self.options.run_id.clone(),
                number,
                namespace: context.namespace().to_owned(),
                name: context.name().to_owned(),
                plan: pod.plan.clone(),
            };
            if let Err(e) = store.create(&saved) {
                tracing::warn!(
                    pod = context.name(),
                    "cannot save the pod's state; if the node restarts, the pod is lost: {e}"
                );
            }
        }
        self.join(number, &context, &pod);
        let (stop, stops) = watch::channel(StopOrder::default());
        let (orders, given) = mpsc::unbounded_channel();
        let update = match &found {
            Left::State(_, Some(plan)) => {
                let planned = PlannedPod { plan: (**plan).clone(), manifest: pod.manifest.clone() };
                Some((Arc::new(self.context(&planned, number)?), planned.plan))
            }
            _ => None,
        };
        let mut sinks = self.sinks.clone();
        sinks.updates = told.then(|| self.updates.0.clone());
        sinks.failures = self.options.fail_fast.then(|| self.failures.0.clone());
        sinks.hints = sinks.hints.of(&pod.manifest.origin);
        let (runtime, clock) = (self.runtime.clone(), self.clock);
        let mut worker =
            Worker::new(runtime, context.clone(), pod.plan, number, clock, stops, given, sinks, store);
        let resuming = self.resuming.clone();
        let task = self.workers.spawn(async move {
            match found {
                Left::Nothing => {}
                Left::Damaged => worker.begin_again(),
                Left::ShutDown(before) => worker.begin_after_shutdown(&before),
                Left::State(found, _) => worker.resume(*found).await,
            }
            if let Some((context, plan)) = update {
                worker.update(context, plan);
            }
            drop(resuming);
            worker.run().await
        });
        self.members.insert(task.id(), Member { number, context, stop, orders });
        Ok(())
    }

    fn join(&self, number: usize, context: &Arc<PodContext>, pod: &PlannedPod) {
        let origin = &pod.manifest.origin;
        let workload = (origin.kind != "Pod").then(|| format!("{}/{}", origin.kind, origin.name));
        let run = self.store.is_some().then(|| self.options.run_id.clone());
        self.sinks.output.join(context.name(), workload.clone(), &pod.plan);
        self.sinks.registry.join(number, context.clone(), workload, run, &pod.plan);
    }

    /// What another process left of a pod. The plan is then the one it was begun with.
    fn find(&self, number: usize, pod: &mut PlannedPod) -> Result<Left, String> {
        let Some(store) = &self.store else { return Ok(Left::Nothing) };
        let id = self.context(pod, number)?.sandbox_id;
        let store = store.pod(&id.0);
        let found = store.pod().and_then(|saved| Ok((saved, store.load()?)));
        let (saved, found) = match found {
            Ok((Some(saved), Some(found))) => (saved, found),
            Ok(_) => return Ok(Left::Nothing),
            Err(e) => {
                tracing::error!(
                    pod = pod.manifest.name(),
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
        let planned = PlannedPod { plan, manifest: pod.manifest.clone() };
        let count = planned.plan.containers.len();
        let fits = found.state.observation.containers.len() == count && found.state.containers.len() == count;
        if !fits || self.context(&planned, number).is_err() {
            tracing::error!(
                pod = pod.manifest.name(),
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

    /// Shows a pod that is over, if there still is anything of it.
    pub(crate) fn show(&mut self, number: usize, mut pod: PlannedPod) {
        let Ok(Left::State(found, _)) = self.find(number, &mut pod) else { return };
        let (Ok(context), Some(store)) = (self.context(&pod, number), &self.store) else { return };
        let context = Arc::new(context);
        context.logs_are_at(store.pod(&context.sandbox_id.0).logs());
        self.join(number, &context, &pod);
        self.sinks.registry.observe(number, &found.state.observation, &[]);
        self.sinks.registry.leave(number);
    }

    /// Tells a pod to go; `None` is its own grace. A pod that is over does not mind.
    pub(crate) fn stop(&self, number: usize, grace_ms: Option<u64>) {
        self.order(number, grace_ms, false);
    }

    /// Tells a pod that the machine shuts down.
    pub(crate) fn shut_down(&self, number: usize, grace_ms: u64) {
        self.order(number, Some(grace_ms), true);
    }

    /// Makes a pod what another manifest says, where it runs.
    pub(crate) fn update(&self, number: usize, pod: PlannedPod) -> Result<(), String> {
        let context = Arc::new(self.context(&pod, number)?);
        for member in self.members.values().filter(|m| m.number == number) {
            // A worker that has ended does not mind.
            let order = PodOrder::Update { pod: context.clone(), plan: Box::new(pod.plan.clone()) };
            let _ = member.orders.send(order);
        }
        Ok(())
    }

    /// Restarts a container of a pod, or all of them in order. The order comes back if the pod is not here.
    pub(crate) fn restart(&self, order: RestartOrder) -> Result<(), RestartOrder> {
        let Some(member) = self.members.values().find(|m| m.number == order.pod) else { return Err(order) };
        let RestartOrder { container, reply, .. } = order;
        let _ = member.orders.send(PodOrder::Restart { container, reply });
        Ok(())
    }

    /// What pods refer to, and the text they come from, when other manifests have taken the place of the first.
    pub(crate) fn now_reads(&mut self, companions: Companions, hints: Hints) {
        self.companions = Arc::new(companions);
        self.sinks.hints = hints;
    }

    fn order(&self, number: usize, grace_ms: Option<u64>, shutdown: bool) {
        for member in self.members.values().filter(|m| m.number == number) {
            member.stop.send_modify(|order| {
                *order = StopOrder { times: order.times + 1, grace_ms, shutdown };
            });
        }
    }

    /// The time by the clock of the run.
    pub(crate) fn now(&self) -> crate::clock::Stamp {
        self.clock.now()
    }

    /// The grace of a stop that was asked for; `None` is each pod's own.
    pub(crate) fn grace_ms(&self) -> Option<u64> {
        self.options.grace_ms
    }

    /// Tells every pod to go.
    pub(crate) fn stop_all(&self, grace_ms: Option<u64>) {
        self.members.values().for_each(|member| self.stop(member.number, grace_ms));
    }

    /// Waits for the next thing that happens; for ever, if nobody works.
    pub(crate) async fn next(&mut self) -> Happened {
        loop {
            tokio::select! {
                // What a worker had to say comes before its end.
                biased;
                Some(update) = self.updates.1.recv() => return Happened::Status(update),
                Some(failure) = self.failures.1.recv() => return Happened::Failed(failure),
                Some(ended) = self.workers.join_next_with_id() => match ended {
                    Ok((id, result)) => {
                        if let Some(member) = self.members.remove(&id) {
                            self.sinks.status_file.is_over(member.number);
                            self.sinks.registry.leave(member.number);
                            return Happened::Ended(member.number, result);
                        }
                    }
                    Err(e) => {
                        tracing::error!("a pod's worker failed: {e}");
                        self.broken = true;
                        if let Some(member) = self.members.remove(&e.id()) {
                            // Nobody looks after its containers any more.
                            remove_pod(&*self.runtime, &member.context).await;
                            self.sinks.registry.leave(member.number);
                            let result = PodResult { phase: Phase::Failed, failed: None };
                            return Happened::Ended(member.number, result);
                        }
                    }
                },
                else => std::future::pending().await,
            }
        }
    }
}

/// Plans that were written before they named images get those of the manifest.
fn name_images(plan: &mut Plan, manifest: &Plan) {
    for (c, wanted) in plan.containers.iter_mut().zip(&manifest.containers) {
        if c.image.is_empty() && c.name == wanted.name {
            c.image.clone_from(&wanted.image);
        }
    }
}
