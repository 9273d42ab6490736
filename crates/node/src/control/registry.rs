//! The pods of a run as other commands see them. The registry is updated from the agent's events and read by
//! clients, and neither waits for the other.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outrigger_agent::clock::Clock;
use outrigger_agent::{LogVisit, PodContext};
use outrigger_lifecycle::{Observation, Outlook, Time, Wait, rules};
use outrigger_runtime::ContainerId;
use outrigger_view::PodView;
use tokio::sync::watch;

use super::pod_state::{pod_state, start_error};
use super::wire::PodState;

/// Maximum number of ended pods listed; older ones are dropped.
const OVER_MAX: usize = 100;
/// The annotation that names the default container.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

/// Why a container has no running instance.
#[derive(Debug, thiserror::Error)]
pub(super) enum InstanceError {
    /// The pod was removed.
    #[error("the pod is gone")]
    PodGone,
    /// The pod has ended.
    #[error("pod {0:?} has ended")]
    PodEnded(String),
    /// The pod has no such container.
    #[error("no such container")]
    NoContainer,
    /// The container is waiting or has ended.
    #[error("container {container:?} is not running ({state}){}", reason.as_ref().map(|reason| format!(": it {reason}")).unwrap_or_default())]
    NotRunning { container: String, state: String, reason: Option<String> },
}

/// The pods of a run. Cheap to clone.
#[derive(Clone)]
pub(crate) struct PodRegistry(Arc<Shared>);

/// The progress of those objects of a run that finish by themselves: Jobs, and pods that are not restarted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Whether at least one of them has not finished.
    pub(crate) is_working: bool,
    /// The exit code of the objects that have finished.
    pub(crate) result: Option<u8>,
}

struct Shared {
    clock: Clock,
    pods: Mutex<BTreeMap<usize, Entry>>,
    /// Ended runs of a node, and their exit codes.
    ends: Mutex<BTreeMap<String, u8>>,
    /// The progress of a node's runs.
    progress: Mutex<BTreeMap<String, Progress>>,
    /// How many changes of the manifests of a node's run are not complete yet.
    changing: Mutex<BTreeMap<String, usize>>,
    /// Notifies about any change of any pod.
    changes: watch::Sender<()>,
}

/// The run of a node that a pod belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OfRun {
    /// Its id.
    pub(crate) id: String,
    /// The manifests that it was started with, or was changed to.
    pub(crate) files: Vec<String>,
}

struct Entry {
    context: Arc<PodContext>,
    view: PodView,
    /// The workload that it belongs to, as written: `Deployment/web`.
    workload: Option<String>,
    /// The run of a node that it belongs to.
    run: Option<OfRun>,
    ips: Vec<String>,
    /// Whether it has ended and nothing of it will run again.
    over: bool,
    /// The running instances.
    running: Vec<Option<ContainerId>>,
    /// Why the last attempt to start the pod (`None`) or a container failed.
    faults: BTreeMap<Option<usize>, StartFault>,
}

/// Why a pod, or one of its containers, could not be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StartFault {
    /// The text for users: what happened, the line of the manifest and how to fix it.
    pub(crate) text: String,
    /// Whether the next attempt can succeed.
    pub(crate) outlook: Outlook,
}

impl PodRegistry {
    /// An empty registry that uses `clock` for ages.
    pub(crate) fn new(clock: Clock) -> Self {
        PodRegistry(Arc::new(Shared {
            clock,
            pods: Mutex::default(),
            ends: Mutex::default(),
            progress: Mutex::default(),
            changing: Mutex::default(),
            changes: watch::Sender::new(()),
        }))
    }

    /// Adds a pod.
    pub(crate) fn join(
        &self,
        number: usize,
        context: Arc<PodContext>,
        workload: Option<String>,
        run: Option<OfRun>,
    ) {
        let now = self.0.clock.now().time;
        let view = PodView::new(context.name().into(), context.plan().clone(), now);
        let running = vec![None; context.containers().len()];
        let entry = Entry {
            context,
            view,
            workload,
            run,
            ips: Vec::new(),
            over: false,
            running,
            faults: BTreeMap::new(),
        };
        self.change(|pods| drop(pods.insert(number, entry)));
    }

    /// Updates the observation of a pod.
    pub(crate) fn observe(&self, number: usize, obs: Arc<Observation>, waits: Arc<[(usize, Wait)]>) {
        self.change_one(number, |entry| {
            entry.view.obs = obs;
            entry.view.waits = waits;
        });
    }

    /// Replaces a pod that was updated in place.
    pub(crate) fn update(&self, number: usize, context: Arc<PodContext>, obs: Arc<Observation>) {
        self.change_one(number, |entry| {
            entry.running.resize(context.containers().len(), None);
            entry.view.update(context.plan().clone(), obs);
            entry.context = context;
            entry.faults.clear();
        });
    }

    /// Sets why a container, or the pod itself, could not be started. `None` clears it after a successful
    /// start.
    pub(crate) fn start_fault(&self, number: usize, container: Option<usize>, fault: Option<StartFault>) {
        self.change_one(number, |entry| match fault {
            // Only the first of several equal failures has a hint, so it is kept.
            Some(fault)
                if entry.faults.get(&container).is_some_and(|old| old.text.starts_with(&fault.text)) => {}
            Some(fault) => drop(entry.faults.insert(container, fault)),
            None => drop(entry.faults.remove(&container)),
        });
    }

    /// Why pods of a run cannot be started.
    pub(super) fn start_faults(&self, run: &str) -> Vec<StartFault> {
        let pods = self.lock();
        let of_run = |entry: &&Entry| !entry.over && entry.run.as_ref().is_some_and(|of| of.id == run);
        pods.values().filter(of_run).flat_map(|entry| entry.faults.values().cloned()).collect()
    }

    /// Sets the addresses of a pod.
    pub(crate) fn addresses(&self, number: usize, ips: Vec<String>) {
        self.change_one(number, |entry| entry.ips = ips);
    }

    /// Sets the running instance of a container.
    pub(crate) fn runs(&self, number: usize, container: usize, instance: Option<ContainerId>) {
        self.change_one(number, |entry| entry.running[container] = instance);
    }

    /// The running instance of a container. The error says why there is none.
    pub(super) fn instance(&self, number: usize, container: usize) -> Result<ContainerId, InstanceError> {
        let pods = self.lock();
        let entry = pods.get(&number).ok_or(InstanceError::PodGone)?;
        if entry.over {
            return Err(InstanceError::PodEnded(entry.context.name().to_owned()));
        }
        let running = entry.running.get(container).ok_or(InstanceError::NoContainer)?;
        running.clone().ok_or_else(|| {
            let state = entry.state(number, self.0.clock.now().time);
            let c = &state.containers[container];
            InstanceError::NotRunning {
                container: c.name.clone(),
                state: c.state.clone(),
                reason: c.reason.clone(),
            }
        })
    }

    /// Starts reading a pod's logs, if it has any.
    pub(super) fn visit(&self, number: usize) -> Option<Visit> {
        let context = self.lock().get(&number)?.context.clone();
        Some(Visit { registry: self.clone(), number, logs: context.visit_logs()? })
    }

    /// Marks a pod as ended.
    pub(crate) fn leave(&self, number: usize) {
        self.change(|pods| {
            if let Some(entry) = pods.get_mut(&number) {
                entry.over = true;
            }
            // Pods with kept logs are removed together with their logs.
            let is_nothing = |e: &Entry| e.over && !e.context.keeps_logs();
            let over: Vec<usize> = pods.iter().filter(|(_, e)| is_nothing(e)).map(|(n, _)| *n).collect();
            for oldest in over.iter().take(over.len().saturating_sub(OVER_MAX)) {
                pods.remove(oldest);
            }
        });
    }

    /// Removes a pod from the registry.
    pub(crate) fn forget(&self, number: usize) {
        self.change(|pods| drop(pods.remove(&number)));
    }

    /// Numbers and priorities of the pods that have not ended.
    pub(crate) fn priorities(&self) -> Vec<(usize, i32)> {
        let pods = self.lock();
        let alive = pods.iter().filter(|(_, entry)| !entry.over);
        alive.map(|(number, entry)| (*number, entry.context.priority())).collect()
    }

    /// Records the exit code of an ended run.
    pub(crate) fn run_ended(&self, run: &str, exit_code: u8) {
        self.0.ends.lock().unwrap_or_else(PoisonError::into_inner).insert(run.to_owned(), exit_code);
        self.0.changes.send_replace(());
    }

    /// Records that an ended run continues.
    pub(crate) fn run_continues(&self, run: &str) {
        self.0.ends.lock().unwrap_or_else(PoisonError::into_inner).remove(run);
    }

    /// Records the progress of a run.
    pub(crate) fn run_progresses(&self, run: &str, progress: Progress) {
        let mut all = self.0.progress.lock().unwrap_or_else(PoisonError::into_inner);
        let before = all.insert(run.to_owned(), progress);
        drop(all);
        if before != Some(progress) {
            self.0.changes.send_replace(());
        }
    }

    /// The progress of a run, once it is known.
    pub(super) fn progress(&self, run: &str) -> Option<Progress> {
        self.0.progress.lock().unwrap_or_else(PoisonError::into_inner).get(run).copied()
    }

    /// Records that the manifests of a run were changed.
    pub(crate) fn run_changes(&self, run: &str) {
        *self.changing().entry(run.to_owned()).or_default() += 1;
    }

    /// Records that some of these changes are complete: the replaced workloads are gone, and their successors
    /// exist.
    pub(crate) fn run_changed(&self, run: &str, changes: usize) {
        let mut changing = self.changing();
        if let Some(left) = changing.get_mut(run) {
            *left = left.saturating_sub(changes);
            if *left == 0 {
                changing.remove(run);
            }
        }
        drop(changing);
        self.0.changes.send_replace(());
    }

    /// Whether the pods of a run are still being replaced.
    pub(super) fn is_changing(&self, run: &str) -> bool {
        self.changing().contains_key(run)
    }

    fn changing(&self) -> MutexGuard<'_, BTreeMap<String, usize>> {
        self.0.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes a run.
    pub(crate) fn forget_run(&self, run: &str) {
        self.changing().remove(run);
        self.0.progress.lock().unwrap_or_else(PoisonError::into_inner).remove(run);
        self.0.ends.lock().unwrap_or_else(PoisonError::into_inner).remove(run);
    }

    /// The exit code of an ended run.
    pub(super) fn run_end(&self, run: &str) -> Option<u8> {
        self.0.ends.lock().unwrap_or_else(PoisonError::into_inner).get(run).copied()
    }

    /// The current state of all pods.
    pub(crate) fn pods(&self) -> Vec<PodState> {
        let now = self.0.clock.now().time;
        self.lock().iter().map(|(number, entry)| entry.state(*number, now)).collect()
    }

    /// Whether the registry has a pod.
    pub(crate) fn has(&self, number: usize) -> bool {
        self.lock().contains_key(&number)
    }

    /// The current state of one pod.
    pub(crate) fn pod(&self, number: usize) -> Option<PodState> {
        let now = self.0.clock.now().time;
        self.lock().get(&number).map(|entry| entry.state(number, now))
    }

    /// Subscribes to changes from now on.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.0.changes.subscribe()
    }

    fn change_one(&self, number: usize, change: impl FnOnce(&mut Entry)) {
        self.change(|pods| {
            if let Some(entry) = pods.get_mut(&number) {
                change(entry);
            }
        });
    }

    fn change(&self, change: impl FnOnce(&mut BTreeMap<usize, Entry>)) {
        change(&mut self.lock());
        self.0.changes.send_replace(());
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, Entry>> {
        // Entries are only replaced as a whole. After a panic, an entry may be outdated, but it is valid.
        self.0.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A reader of a pod's logs.
pub(super) struct Visit {
    registry: PodRegistry,
    number: usize,
    pub(super) logs: LogVisit,
}

impl Visit {
    pub(super) fn name(&self, container: usize) -> &str {
        &self.logs.pod().containers()[container].name
    }

    /// The instances of a container that have a log, oldest first.
    pub(super) fn attempts(&self, container: usize) -> Vec<u32> {
        // An instance that was created ahead has an empty log.
        let never_ran = |entry: &Entry| {
            let c = &entry.view.obs.containers[container];
            start_error(c).is_some() || !c.was_run && c.exit.is_none() && c.last_exit.is_none()
        };
        if self.registry.lock().get(&self.number).is_some_and(never_ran) {
            return Vec::new();
        }
        self.logs.attempts(container)
    }

    /// Whether a container will never write anything again.
    pub(super) fn is_final(&self, container: usize) -> bool {
        let pods = self.registry.lock();
        // A pod that was removed has ended.
        let Some(entry) = pods.get(&self.number) else { return true };
        let (plan, obs) = (&entry.view.plan, &entry.view.obs);
        let c = &obs.containers[container];
        let is_going = obs.stop.is_some() && !c.state.is_alive();
        obs.over || is_going || rules::final_exit(&plan.containers[container], c).is_some()
    }

    /// Explains why a container has no log.
    pub(super) fn not_started(&self, container: usize) -> String {
        let pod = self.registry.pod(self.number);
        let reason = pod.and_then(|mut pod| pod.containers.swap_remove(container).reason);
        let reason = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
        format!(
            "container {:?} of pod {:?} has not started{reason}",
            self.name(container),
            self.logs.pod().name()
        )
    }
}

impl Entry {
    fn state(&self, number: usize, now: Time) -> PodState {
        let metadata = &self.context.pod().metadata;
        let mut owners: Vec<String> = self.workload.clone().into_iter().collect();
        let references = metadata.owner_references.iter().flatten();
        owners.extend(references.map(|owner| format!("{}/{}", owner.kind, owner.name)));
        owners.dedup();
        owners.extend(self.run.as_ref().map(|run| format!("Run/{}", run.id)));
        let annotation = |key: &str| metadata.annotations.as_ref()?.get(key).cloned();
        PodState {
            number,
            namespace: self.context.namespace().to_owned(),
            workload: self.workload.clone(),
            run: self.run.as_ref().map(|run| run.id.clone()),
            files: self.run.as_ref().map(|run| run.files.clone()).unwrap_or_default(),
            owners,
            labels: metadata.labels.clone().unwrap_or_default(),
            default_container: annotation(DEFAULT_CONTAINER),
            ips: self.ips.clone(),
            ports: self.context.ports(),
            over: self.over,
            ..pod_state(&self.view, now)
        }
    }
}
