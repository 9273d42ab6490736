//! A node keeps the pods of one machine running, even when its own process is restarted.
//!
//! A node has runs. A run has the manifests of one `run -d`, or of one file of the manifest directory. Each
//! run is saved before it is started, and so is the state of its pods ([`outrigger_agent`]). A later process
//! resumes from there.

mod apply;
mod logind;
mod manifests;
mod notify;
mod run_store;
mod runs;
mod shutdown;
mod warned;

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::hash::{BuildHasher, RandomState};
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use outrigger_agent::Agent;
use outrigger_agent::options::{AgentOptions, Durability, LogLines, OnFailure};
use outrigger_manifest::Workload;
use outrigger_runtime::Runtime;
use outrigger_view::hint::Hints;
use outrigger_view::output::Output;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::control::{Accepted, Listening, Order, OrderError, PodRegistry, RunFacts, Runner, StopOf, listen};
use crate::read::{Checks, Machine, Read, ReadError, RunReadOptions, read};
use crate::record::{RunEnd, RunRecord, SavedWorkloads};
use crate::sinks::Sinks;
use crate::status_file::{EventsFile, StatusContent, StatusFile};
use crate::supervisor::{Afterwards, Supervisor, SupervisorOptions, pod_number};
use crate::work::{PlannedPod, Work};
use crate::workload::Wanted;
use logind::{Announcement, Logind};
pub use manifests::ManifestDir;
use manifests::{Files, Manifests};
use notify::notify;
use run_store::{END, RECORD, RunStore, WORKLOADS};
pub use run_store::{LeftPods, Unfinished, unfinished_runs};
use runs::{Driven, Managed, RunOrder, Standings};
pub use shutdown::ShutdownGrace;
use warned::Warned;

/// How often old ended pods are removed.
const TIDY_EVERY: Duration = Duration::from_secs(60);

/// Options of a node.
#[derive(Debug, Clone)]
pub struct NodeOptions {
    /// The state directory. Absolute, without symbolic links.
    pub state_dir: PathBuf,
    /// The directory of manifests, if there is one.
    pub manifests: Option<ManifestDir>,
    /// What manifests are checked against.
    pub machine: Machine,
    /// Refuse all pods that the Pod Security Standard `restricted` does not allow.
    pub restricted: bool,
    /// Whether pods are stopped when the node stops.
    pub at_exit: AtExit,
    /// How long pods may take to stop when the machine shuts down, by priority.
    pub shutdown: ShutdownGrace,
    /// How long the logs and status of ended pods are kept, and how many bytes of them.
    pub keep: Keep,
}

/// What happens to pods when the node stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AtExit {
    /// They keep running, and the next node resumes them.
    #[default]
    LeavePods,
    /// They are stopped in order.
    StopPods,
}

/// How much is kept of ended pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keep {
    /// Maximum age.
    pub time: Duration,
    /// Maximum total size. The oldest are removed first.
    pub bytes: u64,
}

impl Default for Keep {
    fn default() -> Self {
        Keep { time: Duration::from_secs(24 * 60 * 60), bytes: 1 << 30 }
    }
}

/// Why a node cannot run.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// Its state cannot be used.
    #[error("cannot keep the state of a node in {dir}: {source}")]
    State {
        /// The state directory.
        dir: PathBuf,
        /// The error.
        source: std::io::Error,
    },
    /// The machine refused something that every node needs.
    #[error("cannot run a node: {0}")]
    Machine(#[from] std::io::Error),
}

/// Why a run of another process cannot be resumed.
#[derive(Debug, thiserror::Error)]
enum ResumeError {
    /// Its record was not saved.
    #[error("its manifest is missing")]
    NoRecord,
    /// Its saved files cannot be read.
    #[error(transparent)]
    File(#[from] std::io::Error),
    /// Its manifests cannot be run any more.
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// A new run id of letters and digits.
pub fn new_id() -> String {
    const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
    let mut random = RandomState::new().hash_one(std::process::id());
    let mut id = String::with_capacity(8);
    for _ in 0..8 {
        id.push(char::from(ALPHABET[(random % 32) as usize]));
        random /= 32;
    }
    id
}

/// A node that has resumed its runs.
pub struct Node<R: Runtime> {
    agent: Agent<R>,
    options: NodeOptions,
    store: RunStore,
    output: Output,
    registry: PodRegistry,
    numbers: Arc<AtomicUsize>,
    runs: BTreeMap<String, Run<R>>,
    tasks: JoinSet<(Driven<R>, RunEnd)>,
    /// Files of the manifest directory that cannot be run, with their text; each is reported once.
    refused: BTreeMap<PathBuf, String>,
    /// Files that are refused only until a pod of the same name is gone.
    awaiting_names: BTreeSet<PathBuf>,
    warned: Warned,
}

/// One run.
struct Run<R: Runtime> {
    record: RunRecord,
    orders: mpsc::UnboundedSender<RunOrder>,
    /// Whether it was asked to stop.
    is_stopping: bool,
    /// Whether its file was changed or removed.
    is_superseded: bool,
    /// Set if it has ended.
    ended: Option<Box<Ended<R>>>,
    /// The progress of its workloads.
    standings: Standings,
}

/// A run that has ended.
struct Ended<R: Runtime> {
    result: RunEnd,
    /// Kept because `apply` may continue it.
    driven: Driven<R>,
}

impl<R: Runtime> Run<R> {
    /// Gives an order. An ended run gets none, because it would carry the order out when it continues.
    fn order(&self, order: RunOrder) {
        if self.ended.is_none() {
            let _ = self.orders.send(order);
        }
    }
}

impl<R: Runtime> Node<R> {
    /// Opens the state and resumes all pods. Orphans may be cleaned up only after this. The runtime's pods
    /// belong to the node ([`outrigger_runtime::Owner::Node`]), and only one process may be the node.
    ///
    /// # Errors
    /// Returns an error if the state cannot be used.
    pub async fn start(runtime: Arc<R>, options: NodeOptions, output: Output) -> Result<Self, NodeError> {
        let failed = |source| NodeError::State { dir: options.state_dir.clone(), source };
        let agent_options = AgentOptions {
            state_dir: options.state_dir.clone(),
            durability: Durability::StateDir,
            logs: LogLines::Kept,
        };
        let agent = Agent::start(runtime, agent_options).map_err(failed)?;
        let store = RunStore::open(&options.state_dir).map_err(failed)?;
        let next = agent.saved().iter().filter_map(pod_number).max().map_or(0, |number| number + 1);
        let mut node = Node {
            registry: PodRegistry::new(agent.clock()),
            numbers: Arc::new(AtomicUsize::new(next)),
            agent,
            options,
            store,
            output,
            runs: BTreeMap::new(),
            tasks: JoinSet::new(),
            refused: BTreeMap::new(),
            awaiting_names: BTreeSet::new(),
            warned: Warned::default(),
        };
        for id in node.store.runs() {
            if let Err(e) = node.resume(&id) {
                tracing::error!(run = id, "the run cannot be resumed: {e}");
                node.store.set_aside_run(&id);
            }
        }
        node.agent.resumed().await;
        node.agent.remove_unknown().await;
        Ok(node)
    }

    /// Resumes a run of another process.
    fn resume(&mut self, id: &str) -> Result<(), ResumeError> {
        let record: RunRecord = self.store.load_run(id, RECORD)?.ok_or(ResumeError::NoRecord)?;
        let end: Option<RunEnd> = self.store.load_run(id, END)?;
        let work = self.read(&record, Checks::Accepted).map(|read| self.warn(&record, read))?;
        let saved: Option<SavedWorkloads> = self.store.load_run(id, WORKLOADS).unwrap_or_else(|e| {
            tracing::error!(run = id, "cannot read the state of its workloads, starting them again: {e}");
            None
        });
        let (mut driven, orders) = self.drive(id, &record, work);
        driven.workloads.extend(self.retired(id, &record));
        driven.restore(saved.unwrap_or_default());
        let standings = driven.standings.clone();
        let mut ended = None;
        if let Some(result) = end {
            self.registry.run_ended(id, result.exit_code);
            ended = Some(Box::new(Ended { result, driven }));
        } else {
            self.tasks.spawn(driven.run());
        }
        let run = Run { record, orders, is_stopping: false, is_superseded: false, ended, standings };
        self.runs.insert(id.to_owned(), run);
        Ok(())
    }

    /// Reads the manifests of a run with the restrictions of this node.
    fn read(&self, record: &RunRecord, checks: Checks<'_>) -> Result<Read, ReadError> {
        let restricted = self.options.restricted || record.reading.restricted;
        let reading = RunReadOptions { restricted, ..record.reading.clone() };
        let record = RunRecord { reading, ..record.clone() };
        read(&record, checks)
    }

    /// Reads the manifests of a run that will be started or changed.
    fn read_new(&mut self, record: &RunRecord) -> Result<Work, ReadError> {
        self.read(record, Checks::New(&self.options.machine)).map(|read| self.warn(record, read))
    }

    /// Reads the manifests of a run that was already accepted.
    fn read_accepted(&self, record: &RunRecord) -> Result<Work, ReadError> {
        self.read(record, Checks::Accepted).map(|read| read.work)
    }

    /// Shows the warnings about a file of the manifest directory, unless they were shown before. `outrigger
    /// run -d` and `apply` show their own warnings.
    fn warn(&mut self, record: &RunRecord, read: Read) -> Work {
        if let Some(file) = &record.manifest {
            let news = self.warned.news(file, &read.warnings, &read.work.sources);
            // Standard error may be closed.
            let _ = news.map(|text| self.output.writer().write_all(text.as_bytes()));
        }
        read.work
    }

    /// Saves and starts a new run.
    fn add(&mut self, record: RunRecord, work: Work) -> Result<Accepted, OrderError> {
        self.names_are_free(&work, None)?;
        let objects = objects(&work);
        let id = new_id();
        let record = RunRecord { names: id.clone(), ..record };
        let (mut driven, orders) = self.drive(&id, &record, work.clone());
        for pod in &work.pods {
            check(&driven, pod)?;
        }
        if let Err(e) = self.store.save_run(&id, RECORD, &record) {
            self.store.forget_run(&id);
            return Err(self.cannot_write(e));
        }
        // The first step reserves the names of its pods and workloads.
        driven.step();
        let standings = driven.standings.clone();
        self.tasks.spawn(driven.run());
        let run = Run { record, orders, is_stopping: false, is_superseded: false, ended: None, standings };
        self.runs.insert(id.clone(), run);
        Ok(Accepted { run: id, objects })
    }

    /// The error if the state directory is full or read-only.
    fn cannot_write(&self, source: std::io::Error) -> OrderError {
        OrderError::StateDir { dir: self.options.state_dir.clone(), source }
    }

    fn drive(
        &self,
        id: &str,
        record: &RunRecord,
        work: Work,
    ) -> (Driven<R>, mpsc::UnboundedSender<RunOrder>) {
        let keys = record.keys(&work);
        let Work { pods, workloads, companions, sources, .. } = work;
        let sinks = Sinks {
            output: self.output.clone(),
            events: EventsFile::none(),
            status_file: StatusFile::new(record.status.as_deref(), StatusContent::for_pods(&pods)),
            registry: self.registry.clone(),
            hints: Hints::new(sources),
            pods: BTreeMap::new(),
        };
        let options = SupervisorOptions {
            run: id.to_owned(),
            files: record.files.clone(),
            pods: record.pods.clone(),
            companions,
            numbers: self.numbers.clone(),
            on_failure: OnFailure::Retry,
            afterwards: Afterwards::Keep,
        };
        let (orders, given) = mpsc::unbounded_channel();
        let clock = self.agent.clock();
        let driven = Driven {
            id: id.to_owned(),
            names: record.names.clone(),
            supervisor: Supervisor::new(self.agent.clone(), options, sinks),
            workloads: self.managed(pods, &workloads, &keys, &record.names),
            store: self.store.clone(),
            clock,
            orders: given,
            saved: SavedWorkloads::default(),
            is_frozen: false,
            changes: 0,
            gone: Vec::new(),
            standings: Standings::default(),
        };
        (driven, orders)
    }

    fn managed(
        &self,
        pods: Vec<PlannedPod>,
        workloads: &[Workload],
        keys: &BTreeMap<String, String>,
        names: &str,
    ) -> Vec<Managed> {
        let managed = |wanted: Wanted| {
            let object = wanted.key.id();
            let key = keys.get(&object).unwrap_or(&object).clone();
            let instance = RunRecord::instance(names, &key);
            Managed {
                key,
                object,
                is_finite: wanted.is_finite(),
                controller: wanted.controller(self.agent.clock().now(), instance),
                is_retired: false,
            }
        };
        Wanted::all(pods, workloads).into_iter().map(managed).collect()
    }

    /// Objects that were replaced or removed in a run and may not be gone yet.
    fn retired(&self, id: &str, record: &RunRecord) -> Vec<Managed> {
        let mut out = Vec::new();
        for retired in &record.retired {
            let work = match self.read_accepted(&record.before(retired)) {
                Ok(work) => work,
                Err(e) => {
                    tracing::error!(run = id, "{} was removed and cannot be read any more: {e}", retired.key);
                    continue;
                }
            };
            let is_it = |workload: &Managed| workload.object == retired.object();
            let keys = BTreeMap::from([(retired.object().to_owned(), retired.key.clone())]);
            let found =
                self.managed(work.pods, &work.workloads, &keys, &record.names).into_iter().find(is_it);
            out.extend(found.map(|workload| Managed { is_retired: true, ..workload }));
        }
        out
    }

    /// Runs the node until it is asked to stop.
    ///
    /// # Errors
    /// Returns an error if signal handlers or sockets cannot be set up.
    pub async fn run(mut self) -> Result<NodeEnd, NodeError> {
        let mut signals = Signals::listen()?;
        let facts = RunFacts {
            id: new_id(),
            files: Vec::new(),
            runner: Runner::Node,
            state_dir: self.options.state_dir.clone(),
        };
        let (listening, mut orders): (Listening, _) =
            listen(self.agent.runtime().clone(), self.registry.clone(), facts)?;
        let manifests = self.options.manifests.clone().map(Manifests::new);
        if let Some(manifests) = &manifests {
            self.reconcile(manifests);
        }
        notify("READY=1");
        let mut logind = Logind::watch(self.options.shutdown.total());
        let mut tidy = tokio::time::interval(TIDY_EVERY);
        tidy.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let end = loop {
            tokio::select! {
                Some(order) = orders.recv() => self.carry_out(order),
                Some(ended) = self.tasks.join_next() => {
                    self.run_ended(ended);
                    manifests.iter().for_each(|manifests| self.reconcile(manifests));
                }
                () = changed(manifests.as_ref()) => {
                    manifests.iter().for_each(|manifests| self.reconcile(manifests));
                }
                _ = tidy.tick() => self.tidy(manifests.as_ref()),
                announcement = logind.next() => match announcement {
                    Announcement::ShutdownBegins => break End::Shutdown,
                    Announcement::ShutdownCancelled => {}
                },
                end = signals.next() => break end,
            }
        };
        notify("STOPPING=1");
        let refuses = refuse_all(&mut orders, end);
        let ends = async {
            if self.options.at_exit == AtExit::StopPods || end != End::Asked {
                tracing::info!("stopping all pods in order");
                self.shut_down().await;
            }
            match end {
                // Commands of users are answered until the machine shuts down.
                End::Shutdown => until_the_end(logind, signals).await,
                End::Asked | End::PowerFailure => NodeEnd::Stopped,
            }
        };
        let end = tokio::select! {
            end = ends => end,
            never = refuses => match never {},
        };
        drop(orders);
        listening.close().await;
        if end == NodeEnd::Stopped {
            self.output.finish().await;
        }
        Ok(end)
    }

    fn carry_out(&mut self, order: Order) {
        match order {
            Order::Stop(StopOf { pod, workload, grace_ms }) => {
                for run in self.runs.values() {
                    // Runs that do not have the pod ignore the order.
                    run.order(RunOrder::Stop { pod, workload, grace_ms });
                }
            }
            Order::StopRun { run, grace_ms } => self.stop_runs(run.as_deref(), grace_ms),
            Order::Restart(order) => {
                let run = self.registry.pod(order.pod).and_then(|pod| pod.run);
                if let Some(run) = run.and_then(|run| self.runs.get(&run)) {
                    run.order(RunOrder::Restart(order));
                }
            }
            Order::Apply { record, dry_run, reply } => {
                let _ = reply.send(self.apply(*record, dry_run));
            }
            Order::Run { record, reply } => {
                // The client may be gone.
                let added = self.read_new(&record).map_err(OrderError::from);
                let _ = reply.send(added.and_then(|work| self.add(*record, work)));
            }
        }
    }

    fn stop_runs(&mut self, which: Option<&str>, grace_ms: Option<u64>) {
        for (_, run) in self.runs.iter_mut().filter(|(id, _)| which.is_none_or(|which| which == *id)) {
            run.is_stopping = true;
            run.order(RunOrder::StopAll { grace_ms });
        }
    }

    fn run_ended(&mut self, ended: Result<(Driven<R>, RunEnd), tokio::task::JoinError>) {
        let (driven, result) = match ended {
            Ok(ended) => ended,
            Err(e) => return tracing::error!("a run failed, which is a fault of outrigger: {e}"),
        };
        // Only the node gives orders, so no order can arrive between this check and the end.
        if driven.has_orders() {
            self.tasks.spawn(driven.run());
            return;
        }
        driven.finish(result);
        let id = driven.id.clone();
        if let Some(run) = self.runs.get_mut(&id) {
            run.ended = Some(Box::new(Ended { result, driven }));
        }
        self.registry.run_ended(&id, result.exit_code);
        for path in std::mem::take(&mut self.awaiting_names) {
            self.refused.remove(&path);
        }
    }

    /// Adjusts runs to the files in the manifest directory.
    fn reconcile(&mut self, manifests: &Manifests) {
        let Files { texts: mut files, unreadable } = match manifests.files() {
            Ok(files) => files,
            Err(e) => return tracing::error!("cannot read the manifest directory: {e}"),
        };
        // Until these files can be read again, their pods keep running unchanged.
        for run in self.runs.values().filter(|run| !run.is_superseded) {
            if let (Some(path), Some((_, text))) = (&run.record.manifest, run.record.sources.first())
                && unreadable.contains(path)
            {
                files.insert(path.clone(), text.clone());
            }
        }
        self.refused.retain(|path, text| files.get(path) == Some(text));
        self.apply_files(manifests, &files);
        let mut there = BTreeSet::new();
        for (id, run) in &mut self.runs {
            let Some(path) = &run.record.manifest else { continue };
            let is_same = files.get(path) == run.record.sources.first().map(|(_, text)| text);
            run.is_superseded |=
                !is_same && (run.ended.is_some() || run.is_stopping || !files.contains_key(path));
            if !run.is_superseded {
                there.insert(path.clone());
            } else if run.ended.is_none() {
                // The new run starts when this one has ended.
                there.insert(path.clone());
                if !std::mem::replace(&mut run.is_stopping, true) {
                    tracing::info!(run = id, "{} is gone: stopping its pods", path.display());
                    run.order(RunOrder::StopAll { grace_ms: None });
                }
            }
        }
        for (path, text) in files {
            if there.contains(&path) || self.refused.contains_key(&path) {
                continue;
            }
            let record = manifests.record(&path, &text);
            let added = self.read_new(&record).map_err(OrderError::from).and_then(|work| {
                if self.names_are_free(&work, None).is_err() {
                    self.awaiting_names.insert(path.clone());
                }
                self.add(record, work)
            });
            if let Err(e) = added {
                tracing::error!("{}: {e}", path.display());
                self.refused.insert(path, text);
            }
        }
    }

    /// Applies changed files to their pods. A file that cannot be run changes nothing.
    fn apply_files(&mut self, manifests: &Manifests, files: &BTreeMap<PathBuf, String>) {
        let is_changed = |run: &Run<R>| {
            let path = run.record.manifest.as_ref().filter(|_| run.ended.is_none() && !run.is_stopping)?;
            let text = files.get(path).filter(|text| self.refused.get(path) != Some(text))?;
            let was = run.record.sources.first().map(|(_, text)| text);
            (was != Some(text)).then(|| (path.clone(), text.clone()))
        };
        let changed: Vec<(String, (PathBuf, String))> =
            self.runs.iter().filter_map(|(id, run)| Some((id.clone(), is_changed(run)?))).collect();
        for (id, (path, text)) in changed {
            let record = manifests.record(&path, &text);
            let applied = self
                .read_new(&record)
                .map_err(OrderError::from)
                .and_then(|work| self.apply_to(&id, record, work, false));
            match applied {
                Ok(applied) => {
                    for object in applied.objects.iter().filter(|object| object.change != "unchanged") {
                        let details = object.details.join("; ");
                        tracing::info!("{}: {} {} {details}", path.display(), object.object, object.change);
                    }
                }
                Err(e) => {
                    tracing::error!("{} has changed, its pods go on as they are: {e}", path.display());
                    self.refused.insert(path, text);
                }
            }
        }
    }

    fn now_ms(&self) -> u64 {
        self.agent.clock().now().time.0
    }

    /// Removes ended pods that are too old, or that use too much space.
    fn tidy(&mut self, manifests: Option<&Manifests>) {
        let now = self.now_ms();
        let keep = self.options.keep;
        let limit = u64::try_from(keep.time.as_millis()).unwrap_or(u64::MAX);
        let mut bytes = 0;
        for pod in self.agent.finished() {
            bytes += pod.bytes;
            if now.saturating_sub(pod.ended_at_ms) > limit || bytes > keep.bytes {
                self.agent.remove(&pod.uid);
                if let Some(number) = pod_number(&pod.uid) {
                    self.registry.forget(number);
                }
            }
        }
        self.tidy_runs(manifests, now.saturating_sub(limit));
    }

    /// Removes ended runs without pods. A run whose file still exists in the manifest directory is kept,
    /// otherwise the file would be run again.
    fn tidy_runs(&mut self, manifests: Option<&Manifests>, before_ms: u64) {
        let files = manifests.and_then(|manifests| manifests.files().ok()).unwrap_or_default();
        let pods = self.registry.pods();
        let is_wanted = |id: &String, run: &Run<R>| {
            let is_file = run
                .record
                .manifest
                .as_ref()
                .is_some_and(|path| files.texts.contains_key(path) || files.unreadable.contains(path));
            let is_recent = run.ended.as_ref().is_none_or(|ended| ended.result.at_ms >= before_ms);
            is_file || is_recent || pods.iter().any(|pod| pod.run.as_ref() == Some(id))
        };
        let (store, registry) = (&self.store, &self.registry);
        self.runs.retain(|id, run| {
            let keep = is_wanted(id, run);
            if !keep {
                store.forget_run(id);
                registry.forget_run(id);
            }
            keep
        });
    }
}

/// Checks whether a pod of a run can be run at all.
fn check<R: Runtime>(driven: &Driven<R>, pod: &PlannedPod) -> Result<(), OrderError> {
    let refused = |source| OrderError::Pod { pod: pod.manifest.name().to_owned(), source };
    driven.supervisor.check(pod).map(drop).map_err(refused)
}

/// Refuses all orders, because the node is ending. Never returns.
async fn refuse_all(orders: &mut mpsc::Receiver<Order>, end: End) -> Infallible {
    let why = || match end {
        End::Asked => OrderError::NodeEnding,
        End::PowerFailure | End::Shutdown => OrderError::Shutdown,
    };
    while let Some(order) = orders.recv().await {
        // The client may be gone.
        match order {
            Order::Run { reply, .. } => drop(reply.send(Err(why()))),
            Order::Apply { reply, .. } => drop(reply.send(Err(why()))),
            Order::Restart(order) => drop(order.reply.send(Err(why()))),
            // The pods are being stopped already, and the client waits for that.
            Order::Stop(_) | Order::StopRun { .. } => {}
        }
    }
    std::future::pending().await
}

/// Waits for a change of the manifest directory. Waits forever if there is none.
async fn changed(manifests: Option<&Manifests>) {
    match manifests {
        Some(manifests) => manifests.changed().await,
        None => std::future::pending().await,
    }
}

/// The pods and workloads, for display.
fn objects(work: &Work) -> Vec<String> {
    let name = |pod: &PlannedPod| {
        let origin = &pod.manifest.origin;
        format!("{}/{}", origin.kind.to_lowercase(), origin.name)
    };
    work.pods.iter().map(name).collect()
}

/// Why a node stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The node was asked to stop.
    Asked,
    /// The machine is about to lose its power.
    PowerFailure,
    /// The machine is about to shut down.
    Shutdown,
}

/// What to do after a node has stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeEnd {
    /// Nothing.
    Stopped,
    /// Its pods were stopped for a shutdown of the machine that was then cancelled: start another node.
    ShutdownCancelled,
}

/// Lets the machine shut down after all pods are stopped, and waits for the shutdown. systemd would restart a
/// service that exits earlier.
async fn until_the_end(mut logind: Logind, mut signals: Signals) -> NodeEnd {
    logind.release();
    loop {
        tokio::select! {
            announcement = logind.next() => if announcement == Announcement::ShutdownCancelled {
                tracing::info!("the machine does not shut down: starting the pods again");
                return NodeEnd::ShutdownCancelled;
            },
            _ = signals.next() => return NodeEnd::Stopped,
        }
    }
}

/// The signals that stop a node.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
    power: Signal,
    /// This signal is received and ignored, because a node does not depend on a terminal.
    hangup: Signal,
}

impl Signals {
    fn listen() -> std::io::Result<Self> {
        Ok(Signals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            power: signal(SignalKind::from_raw(rustix::process::Signal::POWER.as_raw()))?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) -> End {
        loop {
            tokio::select! {
                _ = self.interrupt.recv() => return End::Asked,
                _ = self.terminate.recv() => return End::Asked,
                _ = self.power.recv() => return End::PowerFailure,
                _ = self.hangup.recv() => {}
            }
        }
    }
}

#[cfg(test)]
mod tests;
