//! The run's end: it listens, checks who asks, and answers.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use outrigger_agent::tasks::Task;
use outrigger_runtime::Runtime;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::place::{Bound, Place};
use super::registry::PodRegistry;
use super::wire::{
    Accepted, Answer, Applied, Frame, Frames, Hello, PodState, REQUEST_MAX, Request, RunState, VERSION,
};
use super::{exec, logs};
use crate::record::RunRecord;

/// Connections at a time; more are told so.
const CLIENTS_MAX: usize = 64;
/// A client has this long to say what it wants, and to take an answer that is ready.
const PATIENCE: Duration = Duration::from_secs(5);
/// After the last pod's end, clients have this long to take what was meant for them.
const FAREWELL: Duration = Duration::from_secs(2);
/// Changes within this time are told as one.
const GATHER: Duration = Duration::from_millis(50);

/// Nobody is left to do it.
const ENDING: &str = "the node is ending; try again when it is back";

/// Why an order is not carried out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum OrderError {
    /// What was asked for is not possible.
    #[error("{0}")]
    Refused(String),
    /// It is, but could not be done: the disk is full, for example.
    #[error("{0}")]
    Failed(String),
}

impl From<String> for OrderError {
    fn from(text: String) -> Self {
        OrderError::Refused(text)
    }
}

impl From<OrderError> for Answer {
    fn from(error: OrderError) -> Self {
        match error {
            OrderError::Refused(text) => Answer::Refused(text),
            OrderError::Failed(text) => Answer::Failed(text),
        }
    }
}

/// Something for the run to do.
#[derive(Debug)]
pub(crate) enum Order {
    /// Stop a pod, or a workload.
    Stop(StopOf),
    /// Stop a run, or all there are.
    StopRun {
        /// Its id.
        run: Option<String>,
        /// The grace; `None` is each pod's own.
        grace_ms: Option<u64>,
    },
    /// Restart a container, or all of a pod.
    Restart(RestartOrder),
    /// Change what runs.
    Apply {
        /// What is to run.
        record: Box<RunRecord>,
        /// Only say what would change.
        dry_run: bool,
        /// What became of it.
        reply: oneshot::Sender<Result<Applied, OrderError>>,
    },
    /// Run pods.
    Run {
        /// Which.
        record: Box<RunRecord>,
        /// What became of it.
        reply: oneshot::Sender<Result<Accepted, OrderError>>,
    },
}

/// What is to be restarted.
#[derive(Debug)]
pub(crate) struct RestartOrder {
    /// The pod.
    pub(crate) pod: usize,
    /// The container; `None`: all, in order.
    pub(crate) container: Option<usize>,
    /// What became of it.
    pub(crate) reply: oneshot::Sender<Result<(), String>>,
}

/// What is to be stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StopOf {
    /// The pod that is to go.
    pub(crate) pod: usize,
    /// So is the workload it was made for, with all its pods.
    pub(crate) workload: bool,
    /// Its grace; `None` is its own.
    pub(crate) grace_ms: Option<u64>,
}

/// What does not change about a run.
#[derive(Debug, Clone)]
pub(crate) struct RunFacts {
    /// Its short name.
    pub(crate) id: String,
    /// What it was given to run.
    pub(crate) files: Vec<String>,
    /// The state directory, if this is a node.
    pub(crate) node: Option<PathBuf>,
}

struct Server<R> {
    runtime: Arc<R>,
    registry: PodRegistry,
    orders: mpsc::Sender<Order>,
    facts: RunFacts,
}

/// A run that listens, until this is dropped.
pub(crate) struct Listening {
    _bound: Bound,
    _task: Task,
    closing: oneshot::Sender<()>,
    closed: oneshot::Receiver<()>,
}

impl Listening {
    /// Takes no more requests, and gives those that were taken a moment to be answered.
    pub(crate) async fn close(self) {
        drop(self.closing);
        let _ = timeout(FAREWELL, self.closed).await;
    }
}

/// Listens for this user's requests; orders go to the receiver.
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

/// Serves until it is told to close, then until nobody is left.
async fn serve<R: Runtime>(server: Arc<Server<R>>, listener: UnixListener, mut close: oneshot::Receiver<()>) {
    let room = Arc::new(Semaphore::new(CLIENTS_MAX));
    let mut clients = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let (server, permit) = (server.clone(), room.clone().try_acquire_owned());
                    clients.spawn(async move {
                        // A client that is gone or hangs is nobody's trouble but its own.
                        let _ = server.serve(stream, permit.is_ok()).await;
                    });
                }
                // Out of descriptors, most likely: others may be given back.
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
    async fn serve(&self, stream: UnixStream, has_room: bool) -> io::Result<()> {
        // The directory keeps others out already, unless somebody has opened it.
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
        let hello = timeout(PATIENCE, client.frames.next()).await??;
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
                let RunFacts { id, files, node } = self.facts.clone();
                let run = RunState { pid: std::process::id(), id, files, node, pods: self.registry.pods() };
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
                let answer = answer.await.unwrap_or_else(|_| Err(OrderError::Failed(ENDING.to_owned())));
                client.answer(&answer.map_or_else(Answer::from, Answer::Accepted)).await
            }
            Request::Apply { record, dry_run } => {
                let (reply, answer) = oneshot::channel();
                let _ = self.orders.send(Order::Apply { record, dry_run, reply }).await;
                let answer = answer.await.unwrap_or_else(|_| Err(OrderError::Failed(ENDING.to_owned())));
                client.answer(&answer.map_or_else(Answer::from, Answer::Applied)).await
            }
            Request::Restart { pod, container } => {
                let (reply, answer) = oneshot::channel();
                let _ = self.orders.send(Order::Restart(RestartOrder { pod, container, reply })).await;
                let answer = answer.await.unwrap_or_else(|_| Err("the pod has ended".to_owned()));
                client.answer(&answer.map_or_else(Answer::Refused, |()| Answer::Done)).await
            }
            Request::Await { run, over } => self.wait_for_run(&run, over, client).await,
            Request::Exec(start) => exec::run(&*self.runtime, &self.registry, start, client).await,
            Request::Logs(request) => logs::send(&self.registry, request, &mut client).await,
        }
    }

    /// Has something stopped, and tells what is left of it until nothing is.
    async fn stop(
        &self,
        order: Order,
        left: impl Fn() -> Vec<PodState>,
        mut client: Client,
    ) -> io::Result<()> {
        let mut changes = self.registry.changes();
        let _ = self.orders.send(order).await;
        let mut is_taken = false;
        loop {
            let left = left();
            if left.is_empty() {
                break;
            }
            // The first answer is what a client may rely on, so it has to wait until a worker has written the order down.
            is_taken |= left.iter().any(|pod| pod.stopping);
            for pod in left.into_iter().filter(|_| is_taken) {
                client.answer(&Answer::Pod(Box::new(pod))).await?;
            }
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { break },
                // It says nothing more; this is its end.
                _ = client.frames.next() => return Ok(()),
            }
            tokio::time::sleep(GATHER).await;
        }
        client.answer(&Answer::Done).await
    }

    /// The pods an order is about that are not gone. One that was forgotten is gone.
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

    /// The pods of a run, or of all, that are not gone.
    fn left_of_run(&self, run: Option<&str>) -> Vec<PodState> {
        let mut pods = self.registry.pods();
        pods.retain(|pod| !pod.over && (run.is_none() || pod.run.as_deref() == run));
        pods
    }

    async fn wait_for_run(&self, run: &str, over: bool, mut client: Client) -> io::Result<()> {
        let mut changes = self.registry.changes();
        loop {
            if let Some(code) = self.registry.run_end(run) {
                return client.answer(&Answer::Exit(code.into(), None)).await;
            }
            let mut pods = self.registry.pods();
            pods.retain(|pod| pod.run.as_deref() == Some(run));
            let is_up = |pod: &PodState| pod.over || (pod.phase == "Running" && pod.ready == pod.total);
            if !over && pods.iter().any(|pod| !pod.over) && pods.iter().all(is_up) {
                return client.answer(&Answer::Done).await;
            }
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return Ok(()) },
                // It says nothing more; this is its end.
                _ = client.frames.next() => return Ok(()),
            }
        }
    }
}

/// Whoever asked.
pub(super) struct Client {
    pub(super) frames: Frames<OwnedReadHalf>,
    pub(super) write: OwnedWriteHalf,
}

impl Client {
    /// Says something that is taken at once, or never.
    pub(super) async fn answer(&mut self, answer: &Answer) -> io::Result<()> {
        timeout(PATIENCE, self.send(&Frame::message(answer)?)).await?
    }

    /// Says something; whoever reads it may take its time.
    pub(super) async fn send(&mut self, frame: &Frame) -> io::Result<()> {
        frame.write(&mut self.write).await
    }
}
