//! The server side of the control socket: accepts connections, checks credentials and answers requests.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use outrigger_agent::tasks::Task;
use outrigger_lifecycle::{CannotRestart, Outlook};
use outrigger_runtime::Runtime;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::place::{Bound, Place};
use super::registry::{PodRegistry, Progress};
use super::wire::{
    Accepted, Answer, Applied, Frame, Frames, Hello, PodState, REQUEST_MAX, Request, RunState, VERSION,
};
use super::{exec, logs};
use crate::pod_check::CheckError;
use crate::read::ReadError;
use crate::record::RunRecord;

/// Maximum number of connections. For another one, the oldest that has not sent a request is closed. If there
/// is none, the new one is refused with a message.
const CLIENTS_MAX: usize = 64;
/// How long a client may take to send its request and to read an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a closed connection may take to end.
const MOMENT: Duration = Duration::from_secs(1);
/// How long clients may take to read their answers after the last pod has ended.
const FAREWELL: Duration = Duration::from_secs(2);
/// Changes within this time are reported together.
const GATHER: Duration = Duration::from_millis(50);

/// Why an order is not carried out. Clients get the message.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OrderError {
    /// The manifests cannot be read or run.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A pod cannot be run.
    #[error("pod {pod:?}: {source}")]
    Pod { pod: String, source: CheckError },
    /// The objects belong to a file of the manifest directory.
    #[error("the node keeps these objects as {} says; change that file instead", .0.display())]
    ManifestDir(PathBuf),
    /// The objects belong to several runs. Each pair is an object and its run.
    #[error(
        "{} belongs to run {} and {} to run {}; apply the manifests of each run on their own",
        .0.0, .0.1, .1.0, .1.1
    )]
    SeveralRuns((String, String), (String, String)),
    /// Another run has the workload.
    #[error("{object} is already there, in run {run}; stop it first, or change it with `outrigger apply`")]
    WorkloadExists { object: String, run: String },
    /// Another run has a pod of this name.
    #[error("pod {0:?} is already there; stop it first, or change it with `outrigger apply`")]
    PodExists(String),
    /// Only a node can apply changed manifests.
    #[error("this run is in the foreground; only a node can be changed")]
    Foreground,
    /// Only a node accepts more pods.
    #[error("this run takes no more pods; only a node does")]
    NoMorePods,
    /// A container cannot be restarted now.
    #[error(transparent)]
    Restart(#[from] CannotRestart),
    /// The pod of the order has ended.
    #[error("the pod has ended")]
    PodEnded,
    /// The node is stopping and carries out no more orders.
    #[error("the node is ending; try again when it is back")]
    NodeEnding,
    /// The machine is shutting down, so no more orders are carried out.
    #[error("the machine is shutting down; try again when it is back")]
    Shutdown,
    /// The state directory is full or read-only.
    #[error("the node cannot write in its state directory {}: {source}", dir.display())]
    StateDir { dir: PathBuf, source: io::Error },
}

impl From<OrderError> for Answer {
    fn from(error: OrderError) -> Self {
        let text = error.to_string();
        match error {
            OrderError::NodeEnding | OrderError::Shutdown | OrderError::StateDir { .. } => {
                Answer::Failed(text)
            }
            OrderError::Read(_)
            | OrderError::Pod { .. }
            | OrderError::ManifestDir(_)
            | OrderError::SeveralRuns(..)
            | OrderError::WorkloadExists { .. }
            | OrderError::PodExists(_)
            | OrderError::Foreground
            | OrderError::NoMorePods
            | OrderError::Restart(_)
            | OrderError::PodEnded => Answer::Refused(text),
        }
    }
}

/// An order to the run.
#[derive(Debug)]
pub(crate) enum Order {
    /// Stop a pod or a workload.
    Stop(StopOf),
    /// Stop a run, or all runs.
    StopRun {
        /// Its id.
        run: Option<String>,
        /// The grace period; `None` means each pod's own.
        grace_ms: Option<u64>,
    },
    /// Restart a container, or all containers of a pod.
    Restart(RestartOrder),
    /// Apply changed manifests.
    Apply {
        /// The manifests to run.
        record: Box<RunRecord>,
        /// Only report the changes.
        dry_run: bool,
        /// The result.
        reply: oneshot::Sender<Result<Applied, OrderError>>,
    },
    /// Run pods.
    Run {
        /// The pods to run.
        record: Box<RunRecord>,
        /// The result.
        reply: oneshot::Sender<Result<Accepted, OrderError>>,
    },
}

/// An order to restart containers.
#[derive(Debug)]
pub(crate) struct RestartOrder {
    /// The pod.
    pub(crate) pod: usize,
    /// The container; `None` means all, in order.
    pub(crate) container: Option<usize>,
    /// The result.
    pub(crate) reply: oneshot::Sender<Result<(), OrderError>>,
}

/// An order to stop pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StopOf {
    /// The pod to stop.
    pub(crate) pod: usize,
    /// Whether to stop the workload of the pod with all its pods.
    pub(crate) workload: bool,
    /// The grace period; `None` means the pod's own.
    pub(crate) grace_ms: Option<u64>,
}

/// The constant properties of a run.
#[derive(Debug, Clone)]
pub(crate) struct RunFacts {
    /// The run's id.
    pub(crate) id: String,
    /// The manifests it was started with.
    pub(crate) files: Vec<String>,
    /// What runs its pods.
    pub(crate) runner: Runner,
    /// The state directory.
    pub(crate) state_dir: PathBuf,
}

/// What runs the pods: a foreground run or a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Runner {
    /// A run in the foreground.
    Foreground,
    /// The node of a machine.
    Node,
}

struct Server<R> {
    runtime: Arc<R>,
    registry: PodRegistry,
    orders: mpsc::Sender<Order>,
    facts: RunFacts,
}

/// A run that listens on its socket. Dropping this closes the socket.
pub(crate) struct Listening {
    _bound: Bound,
    _task: Task,
    closing: oneshot::Sender<()>,
    closed: oneshot::Receiver<()>,
}

impl Listening {
    /// Accepts no more connections, and waits briefly until accepted requests are answered.
    pub(crate) async fn close(self) {
        drop(self.closing);
        let _ = timeout(FAREWELL, self.closed).await;
    }
}

/// Listens for requests of this user. Orders are sent to the receiver.
pub(crate) fn listen<R: Runtime>(
    runtime: Arc<R>,
    registry: PodRegistry,
    facts: RunFacts,
) -> io::Result<(Listening, mpsc::Receiver<Order>)> {
    let place = Place::make()?;
    place.clean();
    let (listener, bound) = place.bind(&facts.id)?;
    let listener = UnixListener::from_std(listener)?;
    let (orders, given) = mpsc::channel(16);
    let server = Arc::new(Server { runtime, registry, orders, facts });
    let (closing, close) = oneshot::channel();
    let (done, closed) = oneshot::channel();
    let task = Task::spawn(async move {
        serve(server, listener, close).await;
        let _ = done.send(());
    });
    Ok((Listening { _bound: bound, _task: task, closing, closed }, given))
}

/// Serves until asked to close, then until no client is left.
async fn serve<R: Runtime>(server: Arc<Server<R>>, listener: UnixListener, mut close: oneshot::Receiver<()>) {
    let room = Arc::new(Semaphore::new(CLIENTS_MAX));
    // The senders close connections that have not sent a request, the oldest first.
    let mut idle: VecDeque<oneshot::Sender<()>> = VecDeque::new();
    let mut clients = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    idle.retain(|close| !close.is_closed());
                    let (server, room) = (server.clone(), room.clone());
                    let permit = room.clone().try_acquire_owned().ok();
                    let has_room = permit.is_some() || idle.pop_front().is_some();
                    let (close, closed) = oneshot::channel();
                    if has_room {
                        idle.push_back(close);
                    }
                    clients.spawn(async move {
                        let permit = match permit {
                            // A connection was just closed for this one, and its permit becomes free soon.
                            None if has_room => {
                                timeout(MOMENT, room.acquire_owned()).await.ok().and_then(Result::ok)
                            }
                            permit => permit,
                        };
                        // An error affects only this client.
                        let _ = server.serve(stream, permit.is_some(), closed).await;
                    });
                }
                // The process is probably out of file descriptors. Some may be freed soon.
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            },
            Some(_) = clients.join_next() => {}
            _ = &mut close => break,
        }
    }
    drop(listener);
    while clients.join_next().await.is_some() {}
}

impl<R: Runtime> Server<R> {
    /// Serves a client. Another client may take its place until it has sent its request.
    async fn serve(
        &self,
        stream: UnixStream,
        has_room: bool,
        closed: oneshot::Receiver<()>,
    ) -> io::Result<()> {
        // The directory already keeps other users out, unless its mode was changed.
        let (peer, own) = (stream.peer_cred()?.uid(), rustix::process::geteuid().as_raw());
        let (read, write) = stream.into_split();
        let mut client = Client { frames: Frames::new(read, REQUEST_MAX), write };
        if peer != own && peer != 0 {
            let text = format!("this run belongs to user {own}, not to user {peer}");
            return client.answer(&Answer::Refused(text)).await;
        }
        if !has_room {
            let text = format!("the run already serves {CLIENTS_MAX} other commands; end one of them");
            return client.answer(&Answer::Refused(text)).await;
        }
        let hello = tokio::select! {
            biased;
            hello = timeout(PATIENCE, client.frames.next()) => hello??,
            _ = closed => return Ok(()),
        };
        let Some(hello) = hello else { return Ok(()) };
        let hello: Hello = hello.parse()?;
        if hello.version != VERSION {
            let text = format!(
                "the run speaks version {VERSION} of the protocol, not {}: use the outrigger it was started with \
                 ({})",
                hello.version,
                env!("CARGO_PKG_VERSION")
            );
            return client.answer(&Answer::Refused(text)).await;
        }
        match serde_json::from_value(hello.request) {
            Ok(request) => self.carry_out(request, client).await,
            Err(e) => {
                client.answer(&Answer::Refused(format!("the run does not understand the request: {e}"))).await
            }
        }
    }

    async fn carry_out(&self, request: Request, mut client: Client) -> io::Result<()> {
        match request {
            Request::List => {
                let RunFacts { id, files, runner, state_dir } = self.facts.clone();
                let node = (runner == Runner::Node).then(|| state_dir.clone());
                let run = RunState {
                    pid: std::process::id(),
                    id,
                    files,
                    node,
                    state_dir,
                    pods: self.registry.pods(),
                };
                client.answer(&Answer::Run(run)).await
            }
            Request::Stop { pod, grace_ms } => {
                let of = StopOf { pod, workload: false, grace_ms };
                self.stop(Order::Stop(of), || self.left(of), client).await
            }
            Request::StopWorkload { pod, grace_ms } => {
                let of = StopOf { pod, workload: true, grace_ms };
                self.stop(Order::Stop(of), || self.left(of), client).await
            }
            Request::StopRun { run, grace_ms } => {
                let order = Order::StopRun { run: run.clone(), grace_ms };
                self.stop(order, || self.left_of_run(run.as_deref()), client).await
            }
            Request::Run(record) => {
                let (reply, answer) = oneshot::channel();
                let _ = self.orders.send(Order::Run { record, reply }).await;
                let answer = answer.await.unwrap_or_else(|_| Err(OrderError::NodeEnding));
                client.answer(&answer.map_or_else(Answer::from, Answer::Accepted)).await
            }
            Request::Apply { record, dry_run } => {
                let (reply, answer) = oneshot::channel();
                let _ = self.orders.send(Order::Apply { record, dry_run, reply }).await;
                let answer = answer.await.unwrap_or_else(|_| Err(OrderError::NodeEnding));
                client.answer(&answer.map_or_else(Answer::from, Answer::Applied)).await
            }
            Request::Restart { pod, container } => {
                let (reply, answer) = oneshot::channel();
                let _ = self.orders.send(Order::Restart(RestartOrder { pod, container, reply })).await;
                let answer = answer.await.unwrap_or_else(|_| Err(OrderError::PodEnded));
                client.answer(&answer.map_or_else(Answer::from, |()| Answer::Done)).await
            }
            Request::Await { run, over, running, faults } => {
                self.wait_for_run(&run, Until { over, running }, faults, client).await
            }
            Request::Exec(start) => exec::run(&*self.runtime, &self.registry, start, client).await,
            Request::Logs(request) => logs::send(&self.registry, request, &mut client).await,
        }
    }

    /// Sends a stop order and reports the remaining pods until there are none.
    async fn stop(
        &self,
        order: Order,
        left: impl Fn() -> Vec<PodState>,
        mut client: Client,
    ) -> io::Result<()> {
        let mut changes = self.registry.changes();
        let _ = self.orders.send(order).await;
        let mut is_taken = false;
        let mut last = usize::MAX;
        loop {
            let mut left = left();
            // Pods that an `apply` starts again after the stop do not count.
            left.retain(|pod| pod.number <= last);
            if left.is_empty() {
                break;
            }
            // Clients rely on the first answer, so it is sent only once a worker has saved the order.
            if !is_taken && left.iter().any(|pod| pod.stopping) {
                is_taken = true;
                last = self.registry.pods().last().map_or(0, |pod| pod.number);
            }
            for pod in left.into_iter().filter(|_| is_taken) {
                client.answer(&Answer::Pod(Box::new(pod))).await?;
            }
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { break },
                // The client sends nothing more, so this is a disconnect.
                _ = client.frames.next() => return Ok(()),
            }
            tokio::time::sleep(GATHER).await;
        }
        client.answer(&Answer::Done).await
    }

    /// The pods of an order that have not ended. A removed pod has ended.
    fn left(&self, order: StopOf) -> Vec<PodState> {
        let Some(pod) = self.registry.pod(order.pod) else { return Vec::new() };
        let pods = match &pod.workload {
            Some(workload) if order.workload => {
                let mut all = self.registry.pods();
                all.retain(|p| {
                    p.workload.as_ref() == Some(workload) && p.namespace == pod.namespace && p.run == pod.run
                });
                all
            }
            _ => vec![pod],
        };
        pods.into_iter().filter(|pod| !pod.over).collect()
    }

    /// The pods of a run, or of all runs, that have not ended.
    fn left_of_run(&self, run: Option<&str>) -> Vec<PodState> {
        let mut pods = self.registry.pods();
        pods.retain(|pod| !pod.over && (run.is_none() || pod.run.as_deref() == run));
        pods
    }

    async fn wait_for_run(
        &self,
        run: &str,
        until: Until,
        faults: bool,
        mut client: Client,
    ) -> io::Result<()> {
        let Until { over, running } = until;
        let mut changes = self.registry.changes();
        let mut said = BTreeSet::new();
        loop {
            if let Some(code) = self.registry.run_end(run) {
                return client.answer(&Answer::Exit(code.into(), None)).await;
            }
            let is_changing = self.registry.is_changing(run);
            if faults && !is_changing {
                let faults = self.registry.start_faults(run);
                let is_hopeless = faults.iter().any(|fault| fault.outlook == Outlook::Permanent);
                for fault in faults {
                    if said.insert(fault.text.clone()) {
                        client.answer(&Answer::Note(fault.text)).await?;
                    }
                }
                if is_hopeless && !over {
                    let text = format!(
                        "trying again cannot help, but the node goes on: end it with `outrigger stop run/{run}`"
                    );
                    return client.answer(&Answer::Exit(1, Some(text))).await;
                }
            }
            let mut pods = self.registry.pods();
            pods.retain(|pod| pod.run.as_deref() == Some(run));
            let is_up =
                |pod: &PodState| pod.over || (pod.phase == "Running" && (running || pod.ready == pod.total));
            if !over && !is_changing && pods.iter().any(|pod| !pod.over) && pods.iter().all(is_up) {
                match self.registry.progress(run) {
                    _ if running => return client.answer(&Answer::Done).await,
                    Some(Progress { is_working: false, result: Some(code) }) => {
                        return client.answer(&Answer::Exit(code.into(), None)).await;
                    }
                    Some(Progress { is_working: false, result: None }) => {
                        return client.answer(&Answer::Done).await;
                    }
                    _ => {}
                }
            }
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return Ok(()) },
                // The client sends nothing more, so this is a disconnect.
                _ = client.frames.next() => return Ok(()),
            }
        }
    }
}

/// What a client waits for.
struct Until {
    /// Wait only for the end of the run.
    over: bool,
    /// Wait only until its pods are running or have ended.
    running: bool,
}

/// A connected client.
pub(super) struct Client {
    pub(super) frames: Frames<OwnedReadHalf>,
    pub(super) write: OwnedWriteHalf,
}

impl Client {
    /// Sends an answer, with a timeout.
    pub(super) async fn answer(&mut self, answer: &Answer) -> io::Result<()> {
        timeout(PATIENCE, self.send(&Frame::message(answer)?)).await?
    }

    /// Sends a frame. The client may take any time to read it.
    pub(super) async fn send(&mut self, frame: &Frame) -> io::Result<()> {
        frame.write(&mut self.write).await
    }
}
