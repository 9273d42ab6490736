//! `outrigger operator run`: webhooks on every replica, controllers on the leader.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use futures::future::{AbortHandle, Abortable};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::certificates::{self, Certificate};
use super::controllers::{self, Context};
use super::leader::Leader;
use super::metrics::{self, AgentMetrics, Holds, Metrics};
use super::store::Agents;
use super::webhook::{Requesters, Webhook};
use super::{Error, Launch, connect, now};

/// Options of the operator.
#[derive(Debug, Clone)]
pub struct RunOptions {
    /// The operator's own namespace, for the Lease and the Secret.
    pub namespace: String,
    /// The name of this replica in the Lease.
    pub identity: String,
    /// The address the webhook listens on.
    pub webhook: SocketAddr,
    /// The address of the health and metrics pages.
    pub health: SocketAddr,
    /// Further DNS names of the webhook, besides those of its Service.
    pub names: Vec<String>,
    /// Whether nodes have agents.
    pub agents: Agents,
    /// Who may create container recreate requests.
    pub requesters: Requesters,
    /// How containers of several launch priorities are ordered.
    pub launch: Launch,
    /// How often the certificate is checked.
    pub certificate_check: Duration,
}

/// The maximum size of a review: it contains the object and its old version.
const BODY_MAX: usize = 8 << 20;
/// The maximum size of all reviews in memory. Anyone who can reach the port can announce long ones.
const BODIES_MAX: usize = 32 << 20;
/// Reviews up to this size do not wait behind longer ones. Nearly all reviews are this short.
const SHORT_MAX: usize = 256 << 10;
/// How long a review waits for free memory.
const BODY_WAIT: Duration = Duration::from_secs(2);
/// The maximum number of connections to the webhook. The API server needs a few.
const CONNECTIONS_MAX: usize = 512;
/// The maximum number of connections to a health page.
const PAGE_CONNECTIONS_MAX: usize = 64;
/// The pause after an error of `accept`, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How long to wait for the headers of a request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long to wait for the API server when checking the certificate and the server's version.
const LOOK_TIMEOUT: Duration = Duration::from_secs(10);

/// The answer for other paths.
const PAGES: &str = "there are /healthz, /readyz and /metrics";

/// The state that the health page shows.
struct Health {
    metrics: Arc<Metrics>,
    serving: AtomicBool,
    leading: RwLock<Option<Arc<Context>>>,
}

/// Runs until a signal arrives.
///
/// # Errors
/// The cluster cannot be reached, or a port is in use.
pub async fn run(options: RunOptions) -> Result<(), Error> {
    let client = connect().await?;
    let bind = |address: SocketAddr| async move {
        TcpListener::bind(address)
            .await
            .map_err(|error| Error::Setup(format!("cannot listen at {address}: {error}")))
    };
    let (hooks, health) = (bind(options.webhook).await?, bind(options.health).await?);
    let metrics = Arc::new(Metrics::default());
    let state = Arc::new(Health {
        metrics: metrics.clone(),
        serving: AtomicBool::new(false),
        leading: RwLock::new(None),
    });
    let mut tasks = JoinSet::new();
    tasks.spawn(serve_health(health, state.clone()));
    let mut names = options.names.clone();
    names.extend(
        ["outrigger-webhook", "outrigger-webhook.NS", "outrigger-webhook.NS.svc"]
            .map(|n| n.replace("NS", &options.namespace)),
    );
    let webhook = Arc::new(Webhook {
        client: client.clone(),
        metrics: metrics.clone(),
        own_user: format!("system:serviceaccount:{}:outrigger-operator", options.namespace),
        agents: options.agents,
        requesters: options.requesters,
        launch: options.launch,
        takes_own_policies: AtomicBool::new(false),
        bodies: Bodies::default(),
    });
    let keeper = Keeper {
        client: client.clone(),
        namespace: options.namespace.clone(),
        names,
        pause: options.certificate_check.max(Duration::from_millis(100)),
    };
    tasks.spawn(serve_webhook(hooks, webhook, keeper, state.clone()));
    let mut leading = tokio::spawn(lead(client, options, metrics, state));
    // None of these tasks ends by itself. If one ends, it has crashed, and the whole process is restarted.
    let ended = || Err(Error::Setup("a part of the operator has ended".to_owned()));
    tokio::select! {
        biased;
        () = told_to_stop() => tracing::info!("told to stop"),
        _ = tasks.join_next() => return ended(),
        _ = &mut leading => return ended(),
    }
    // The leader releases its Lease, so that another replica need not wait for it to expire. Reviews are
    // still answered.
    let _ = tokio::join!(tokio::time::timeout(RELEASE_MAX, leading), tokio::time::sleep(LAST_REVIEWS));
    tasks.abort_all();
    Ok(())
}

/// The source of the webhook's certificate.
struct Keeper {
    client: kube::Client,
    namespace: String,
    names: Vec<String>,
    pause: Duration,
}

impl Keeper {
    /// Returns the current certificate and its TLS configuration.
    async fn obtain(
        &self,
        served: Option<&Certificate>,
    ) -> Result<(Certificate, Arc<rustls::ServerConfig>), Error> {
        let obtained = certificates::obtain(&self.client, &self.namespace, &self.names, served);
        let late = |_| Err(Error::Setup(format!("the API server has not answered within {LOOK_TIMEOUT:?}")));
        let certificate = tokio::time::timeout(LOOK_TIMEOUT, obtained).await.unwrap_or_else(late)?;
        let config = certificate.server_config()?;
        Ok((certificate, config))
    }

    /// Waits for the first certificate, without which nothing can be served.
    async fn first(&self) -> (Certificate, Arc<rustls::ServerConfig>) {
        loop {
            match self.obtain(None).await {
                Ok(first) => return first,
                Err(error) => tracing::warn!(%error, "no certificate yet"),
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}

/// How long a stopping replica waits until its Lease is released.
const RELEASE_MAX: Duration = Duration::from_secs(2);
/// How long a stopping replica still answers reviews.
const LAST_REVIEWS: Duration = Duration::from_millis(200);

/// Runs the controllers while this replica is the leader, until it must stop.
async fn lead(client: kube::Client, options: RunOptions, metrics: Arc<Metrics>, state: Arc<Health>) {
    let mut leader = Leader::new(client.clone(), &options.namespace, options.identity.clone());
    let set = |cx: Option<Arc<Context>>| {
        if let Ok(mut leading) = state.leading.write() {
            *leading = cx;
        }
    };
    let mut stop = std::pin::pin!(told_to_stop());
    loop {
        let since = tokio::select! {
            since = leader.acquire() => since,
            () = &mut stop => return,
        };
        tracing::info!(identity = options.identity, "leading");
        let cx = Context::new(client.clone(), metrics.clone(), &options.namespace, options.agents);
        set(Some(cx.clone()));
        tokio::select! {
            () = controllers::run(cx) => {}
            () = leader.keep(since) => tracing::warn!("no longer leading"),
            () = &mut stop => {
                leader.release().await;
                return;
            }
        }
        set(None);
    }
}

async fn told_to_stop() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut term), Ok(mut int)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
}

async fn serve_webhook(listener: TcpListener, webhook: Arc<Webhook>, keeper: Keeper, state: Arc<Health>) {
    let connections = Connections::new(listener, CONNECTIONS_MAX);
    let (certificate, config) = keeper.first().await;
    check_version(&webhook).await;
    let (changed, current) = watch::channel(TlsAcceptor::from(config));
    state.serving.store(true, Ordering::Relaxed);
    // Both run concurrently, so that reviews do not wait for an API server that answers slowly.
    tokio::join!(renew(&keeper, certificate, &webhook, changed), accept(&connections, &webhook, current));
}

/// Keeps the webhook's certificate and the API server's version up to date.
async fn renew(
    keeper: &Keeper,
    mut certificate: Certificate,
    webhook: &Webhook,
    changed: watch::Sender<TlsAcceptor>,
) {
    loop {
        tokio::time::sleep(keeper.pause).await;
        match keeper.obtain(Some(&certificate)).await {
            Ok((current, config)) if current != certificate => {
                changed.send_replace(TlsAcceptor::from(config));
                certificate = current;
                tracing::info!("the webhook's certificate has changed");
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "the webhook's certificate cannot be looked at"),
        }
        check_version(webhook).await;
    }
}

async fn check_version(webhook: &Webhook) {
    if tokio::time::timeout(LOOK_TIMEOUT, webhook.check_version()).await.is_err() {
        tracing::warn!("the API server's version cannot be read: no answer");
    }
}

async fn accept(connections: &Connections, webhook: &Arc<Webhook>, acceptor: watch::Receiver<TlsAcceptor>) {
    let mut number = 0;
    loop {
        let stream = connections.accept().await;
        let (webhook, acceptor) = (webhook.clone(), acceptor.borrow().clone());
        number += 1;
        connections.serve(number, |proven| async move {
            if let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
                converse(stream, move |request| review(webhook.clone(), proven.clone(), request)).await;
            }
        });
    }
}

/// The free memory for the bodies of reviews, in KiB.
pub(crate) struct Bodies {
    short: Semaphore,
    long: Semaphore,
}

impl Default for Bodies {
    fn default() -> Self {
        Bodies { short: Semaphore::new(BODIES_MAX >> 10), long: Semaphore::new(BODIES_MAX >> 10) }
    }
}

impl Bodies {
    /// Reserves memory for a body of this size. `None` if there is not enough in time.
    async fn take(&self, size: usize) -> Option<SemaphorePermit<'_>> {
        let room = if size <= SHORT_MAX { &self.short } else { &self.long };
        let taken = room.acquire_many(u32::try_from((size >> 10) + 1).ok()?);
        tokio::time::timeout(BODY_WAIT, taken).await.ok()?.ok()
    }
}

/// A listener with a limited number of connections. When new connections arrive, it closes those that have
/// not sent a valid request, the oldest first. So the API server can always connect.
struct Connections {
    listener: TcpListener,
    open: Arc<Mutex<BTreeMap<u64, Open>>>,
    max: usize,
}

struct Open {
    abort: AbortHandle,
    proven: Proven,
}

/// Set when the connection has sent a valid request.
type Proven = Arc<AtomicBool>;

impl Connections {
    fn new(listener: TcpListener, max: usize) -> Self {
        Connections { listener, open: Arc::default(), max }
    }

    /// Accepts the next connection.
    async fn accept(&self) -> TcpStream {
        loop {
            if let Ok((stream, _)) = self.listener.accept().await {
                // Each answer is one write, so delaying it to send more data at once has no advantage.
                let _ = stream.set_nodelay(true);
                return stream;
            }
            tokio::time::sleep(ACCEPT_PAUSE).await;
        }
    }

    /// Serves a connection in its own task, if there is a free place or an unproven connection can be closed.
    fn serve<F: Future<Output = ()> + Send + 'static>(&self, number: u64, serve: impl FnOnce(Proven) -> F) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.len() >= self.max {
            let oldest = open.iter().find(|(_, other)| !other.proven.load(Ordering::Relaxed));
            let Some(oldest) = oldest.map(|(number, _)| *number) else { return };
            if let Some(other) = open.remove(&oldest) {
                other.abort.abort();
            }
        }
        let (proven, (abort, registration)) = (Proven::default(), AbortHandle::new_pair());
        let served = Abortable::new(serve(proven.clone()), registration);
        open.insert(number, Open { abort, proven });
        let table = self.open.clone();
        tokio::spawn(async move {
            let _ = served.await;
            table.lock().unwrap_or_else(PoisonError::into_inner).remove(&number);
        });
    }
}

/// Serves the requests of one connection.
async fn converse<S, F, R>(stream: S, answer: F)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Fn(Request<Incoming>) -> R + Clone + Send + 'static,
    R: Future<Output = Response<Full<Bytes>>> + Send + 'static,
{
    let service = service_fn(move |request| {
        let answer = answer.clone();
        async move { Ok::<_, Infallible>(answer(request).await) }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(hyper_util::rt::TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a connection broke");
    }
}

fn reply(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert("content-type", http::HeaderValue::from_static(kind));
    response
}

async fn review(webhook: Arc<Webhook>, proven: Proven, request: Request<Incoming>) -> Response<Full<Bytes>> {
    if request.method() != Method::POST {
        return reply(StatusCode::METHOD_NOT_ALLOWED, "text/plain", "POST a review");
    }
    let path = request.uri().path().to_owned();
    let said = request.headers().get("content-length").and_then(|text| text.to_str().ok()?.parse().ok());
    let Some(_room) = webhook.bodies.take(said.unwrap_or(BODY_MAX).min(BODY_MAX)).await else {
        return reply(StatusCode::SERVICE_UNAVAILABLE, "text/plain", "too many reviews at a time");
    };
    let body =
        match tokio::time::timeout(HEADER_TIMEOUT, Limited::new(request.into_body(), BODY_MAX).collect())
            .await
        {
            Ok(Ok(body)) => body.to_bytes(),
            _ => return reply(StatusCode::BAD_REQUEST, "text/plain", "the body is too long or did not come"),
        };
    match webhook.answer(&path, &body).await {
        Some(answer) => {
            proven.store(true, Ordering::Relaxed);
            reply(StatusCode::OK, "application/json", answer.to_string())
        }
        None => reply(StatusCode::BAD_REQUEST, "text/plain", "not a review"),
    }
}

async fn serve_health(listener: TcpListener, state: Arc<Health>) {
    serve_pages(listener, move |path| health(&state, path)).await;
}

/// Serves the health and metrics pages of an operator or agent.
async fn serve_pages(
    listener: TcpListener,
    page: impl Fn(&str) -> Response<Full<Bytes>> + Clone + Send + 'static,
) {
    let connections = Connections::new(listener, PAGE_CONNECTIONS_MAX);
    for number in 0.. {
        let (stream, page) = (connections.accept().await, page.clone());
        connections.serve(number, |_| {
            converse(stream, move |request| std::future::ready(page(request.uri().path())))
        });
    }
}

fn health(state: &Health, path: &str) -> Response<Full<Bytes>> {
    let context = state.leading.read().ok().and_then(|leading| leading.clone());
    match path {
        "/healthz" => reply(StatusCode::OK, "text/plain", "ok"),
        "/readyz" => match state.serving.load(Ordering::Relaxed) {
            true => reply(StatusCode::OK, "text/plain", "ok"),
            false => {
                reply(StatusCode::SERVICE_UNAVAILABLE, "text/plain", "the webhook has no certificate yet")
            }
        },
        "/metrics" => {
            let holds = context.map(|cx| {
                let counts = cx.store.counts(now());
                Holds {
                    leads: true,
                    pods: counts.pods,
                    levels_waiting: counts.levels,
                    longest_wait_seconds: counts.longest_ms / 1_000,
                    queue: cx.queue.len() + cx.wakes.len(),
                }
            });
            let page = state.metrics.page(&holds.unwrap_or_default());
            reply(StatusCode::OK, metrics::CONTENT_TYPE, page)
        }
        _ => reply(StatusCode::NOT_FOUND, "text/plain", PAGES),
    }
}

/// The state that the agent's health page shows.
#[derive(Debug, Default)]
pub(crate) struct AgentPage {
    /// Whether the container runtime has answered.
    pub(crate) runtime: AtomicBool,
    /// Whether the requests of the node are synced.
    pub(crate) watching: AtomicBool,
    /// The metrics of the agent.
    pub(crate) metrics: AgentMetrics,
}

fn agent_page(page: &AgentPage, path: &str) -> Response<Full<Bytes>> {
    let missing = match (page.runtime.load(Ordering::Relaxed), page.watching.load(Ordering::Relaxed)) {
        (false, _) => Some("the container runtime has not answered yet"),
        (true, false) => Some("the requests of this node are not known yet"),
        (true, true) => None,
    };
    match path {
        "/healthz" => reply(StatusCode::OK, "text/plain", "ok"),
        "/readyz" => match missing {
            None => reply(StatusCode::OK, "text/plain", "ok"),
            Some(missing) => reply(StatusCode::SERVICE_UNAVAILABLE, "text/plain", missing),
        },
        "/metrics" => reply(StatusCode::OK, metrics::CONTENT_TYPE, page.metrics.page()),
        _ => reply(StatusCode::NOT_FOUND, "text/plain", PAGES),
    }
}

/// Serves the agent's health and metrics pages.
pub(crate) async fn serve_agent_page(address: SocketAddr, page: Arc<AgentPage>) {
    let listener = match TcpListener::bind(address).await {
        Ok(listener) => listener,
        Err(error) => {
            tracing::warn!(%address, %error, "no health page");
            return std::future::pending().await;
        }
    };
    serve_pages(listener, move |path| agent_page(&page, path)).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    /// Connects, and serves the connection until it is closed. `proven` marks it as if it had sent a valid
    /// request.
    async fn connect(connections: &Connections, number: u64, proven: bool) -> TcpStream {
        let address = connections.listener.local_addr().unwrap();
        let client = TcpStream::connect(address).await.unwrap();
        let mut stream = connections.accept().await;
        connections.serve(number, |is_proven| async move {
            is_proven.store(proven, Ordering::Relaxed);
            let _ = stream.read(&mut [0]).await;
        });
        // Wait until the connection is served.
        tokio::task::yield_now().await;
        client
    }

    #[tokio::test]
    async fn connections_without_a_request_give_way_and_the_api_server_stays() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let connections = Connections::new(listener, 2);
        let mut server = connect(&connections, 0, true).await;
        let mut idle = connect(&connections, 1, false).await;
        let mut newest = connect(&connections, 2, true).await;
        assert_eq!(idle.read(&mut [0]).await.unwrap(), 0, "the idle one is closed");
        let mut refused = connect(&connections, 3, false).await;
        assert_eq!(refused.read(&mut [0]).await.unwrap(), 0, "the others have proven themselves");
        for kept in [&mut server, &mut newest] {
            let waited = tokio::time::timeout(Duration::from_millis(50), kept.read(&mut [0])).await;
            assert!(waited.is_err(), "still open");
        }
        drop(server);
        // The place is free when the listener has seen the end of the connection.
        while connections.open.lock().unwrap().len() == 2 {
            tokio::task::yield_now().await;
        }
        let mut next = connect(&connections, 4, true).await;
        assert!(tokio::time::timeout(Duration::from_millis(50), next.read(&mut [0])).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn long_reviews_are_few_and_do_not_hold_up_short_ones() {
        let bodies = Bodies::default();
        let mut held = Vec::new();
        while let Some(room) = bodies.take(BODY_MAX).await {
            held.push(room);
        }
        assert_eq!(held.len(), BODIES_MAX / BODY_MAX - 1, "each takes a little more than its size");
        assert!(bodies.take(SHORT_MAX).await.is_some());
        held.pop();
        assert!(bodies.take(BODY_MAX).await.is_some(), "there is room again");
    }

    #[tokio::test]
    async fn reviews_do_not_wait_for_an_api_server_that_does_not_answer() {
        super::super::install_crypto();
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", silent.local_addr().unwrap());
        let client = kube::Client::try_from(kube::Config::new(url.parse().unwrap())).unwrap();
        let names = vec!["127.0.0.1".to_owned()];
        let certificate = Certificate::make(&names, None).unwrap();
        let webhook = Arc::new(Webhook {
            client: client.clone(),
            metrics: Arc::default(),
            own_user: "operator".to_owned(),
            agents: Agents::Installed,
            requesters: Requesters::All,
            launch: Launch::Barrier,
            takes_own_policies: AtomicBool::new(false),
            bodies: Bodies::default(),
        });
        let keeper = Keeper { client, namespace: "ns".to_owned(), names, pause: Duration::from_millis(1) };
        let (changed, current) = watch::channel(TlsAcceptor::from(certificate.server_config().unwrap()));
        let connections = Connections::new(TcpListener::bind("127.0.0.1:0").await.unwrap(), 2);
        let address = connections.listener.local_addr().unwrap();
        let caller = async {
            // The certificate is being checked, and the API server does not answer.
            let _asked = silent.accept().await.unwrap();
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(b"this is no TLS\r\n\r\n").await.unwrap();
            let mut answer = Vec::new();
            let read = tokio::time::timeout(HANDSHAKE_TIMEOUT, stream.read_to_end(&mut answer)).await;
            assert!(read.is_ok(), "the connection is neither served nor closed");
        };
        tokio::select! {
            () = renew(&keeper, certificate, &webhook, changed) => {}
            () = accept(&connections, &webhook, current) => {}
            () = caller => {}
        }
    }
}
