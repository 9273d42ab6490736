//! `outrigger operator run`: webhooks on every replica, controllers on one.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::certificates::{self, Certificate};
use super::controllers::{self, Context};
use super::leader::Leader;
use super::metrics::Metrics;
use super::webhook::Webhook;
use super::{Error, connect};

/// How the operator runs.
#[derive(Debug, Clone)]
pub struct RunOptions {
    /// Its own namespace: for the Lease and the Secret.
    pub namespace: String,
    /// Who it is among its replicas.
    pub identity: String,
    /// Where the webhook listens.
    pub webhook: SocketAddr,
    /// Where health and metrics are.
    pub health: SocketAddr,
    /// Names the webhook is called by, beside its Service's.
    pub names: Vec<String>,
}

/// The largest review: an object, the one before it, and what is around them.
const BODY_MAX: usize = 8 << 20;
/// Connections at a time; the API server needs a few.
const CONNECTIONS_MAX: usize = 512;
/// A client that says nothing is not waited for longer.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// What the health page knows.
struct Health {
    metrics: Arc<Metrics>,
    serving: AtomicBool,
    leading: RwLock<Option<Arc<Context>>>,
}

/// Runs until a signal ends it.
///
/// # Errors
/// There is no cluster, or a port is taken.
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
    let webhook = Arc::new(Webhook { client: client.clone(), metrics: metrics.clone() });
    tasks.spawn({
        let (client, namespace, state) = (client.clone(), options.namespace.clone(), state.clone());
        async move {
            let first = loop {
                match certificates::obtain(&client, &namespace, &names).await {
                    Ok(certificate) => break certificate,
                    Err(error) => tracing::warn!(%error, "no certificate yet"),
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
            };
            serve_webhook(hooks, webhook, client, namespace, names, first, state).await;
        }
    });
    tasks.spawn(lead(client, options, metrics, state));
    shutdown().await;
    tracing::info!("told to stop");
    tasks.abort_all();
    Ok(())
}

/// Runs the controllers while this replica leads.
async fn lead(client: kube::Client, options: RunOptions, metrics: Arc<Metrics>, state: Arc<Health>) {
    let mut leader = Leader::new(client.clone(), &options.namespace, options.identity.clone());
    let set = |cx: Option<Arc<Context>>| {
        if let Ok(mut leading) = state.leading.write() {
            *leading = cx;
        }
    };
    loop {
        leader.acquire().await;
        tracing::info!(identity = options.identity, "leading");
        let cx = Context::new(client.clone(), metrics.clone());
        set(Some(cx.clone()));
        tokio::select! {
            () = controllers::run(cx) => {}
            () = leader.keep() => tracing::warn!("no longer leading"),
            () = shutdown() => {
                leader.release().await;
                return;
            }
        }
        set(None);
    }
}

async fn shutdown() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut term), Ok(mut int)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
    // The one that leads gives its Lease back in the meantime.
    tokio::time::sleep(Duration::from_millis(200)).await;
}

async fn serve_webhook(
    listener: TcpListener,
    webhook: Arc<Webhook>,
    client: kube::Client,
    namespace: String,
    names: Vec<String>,
    mut certificate: Certificate,
    state: Arc<Health>,
) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut renewal = tokio::time::interval(certificates::PAUSE);
    renewal.tick().await;
    let mut config = certificate.server_config();
    loop {
        let acceptor = match &config {
            Ok(config) => TlsAcceptor::from(config.clone()),
            Err(error) => {
                tracing::error!(%error, "the webhook cannot serve");
                return;
            }
        };
        state.serving.store(true, Ordering::Relaxed);
        tokio::select! {
            _ = renewal.tick() => match certificates::obtain(&client, &namespace, &names).await {
                Ok(current) if current != certificate => {
                    config = current.server_config();
                    certificate = current;
                    tracing::info!("the webhook's certificate has changed");
                }
                Ok(_) => {}
                Err(error) => tracing::warn!(%error, "the webhook's certificate cannot be looked at"),
            },
            accepted = listener.accept() => {
                let Ok((stream, _)) = accepted else { continue };
                let Ok(place) = places.clone().try_acquire_owned() else { continue };
                let webhook = webhook.clone();
                tokio::spawn(async move {
                    let _place = place;
                    if let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
                        converse(stream, move |request| review(webhook.clone(), request)).await;
                    }
                });
            }
        }
    }
}

/// Serves one connection.
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

async fn review(webhook: Arc<Webhook>, request: Request<Incoming>) -> Response<Full<Bytes>> {
    if request.method() != Method::POST {
        return reply(StatusCode::METHOD_NOT_ALLOWED, "text/plain", "POST a review");
    }
    let path = request.uri().path().to_owned();
    let body =
        match tokio::time::timeout(HEADER_TIMEOUT, Limited::new(request.into_body(), BODY_MAX).collect())
            .await
        {
            Ok(Ok(body)) => body.to_bytes(),
            _ => return reply(StatusCode::BAD_REQUEST, "text/plain", "the body is too long or did not come"),
        };
    match webhook.answer(&path, &body).await {
        Some(answer) => reply(StatusCode::OK, "application/json", answer.to_string()),
        None => reply(StatusCode::BAD_REQUEST, "text/plain", "not a review"),
    }
}

async fn serve_health(listener: TcpListener, state: Arc<Health>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let state = state.clone();
        tokio::spawn(converse(stream, move |request| {
            let answer = health(&state, request.uri().path());
            async move { answer }
        }));
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
            let leading = context.is_some();
            let (pods, waiting, queue) = context.map_or((0, 0, 0), |cx| {
                let (pods, waiting) = cx.store.counts();
                (pods, waiting, cx.queue.len())
            });
            let text = state.metrics.text(&[
                ("outrigger_leader", "Whether this replica leads.", usize::from(leading)),
                ("outrigger_pods", "Pods that use something the operator serves.", pods),
                ("outrigger_containers_waiting", "Containers whose barrier is closed.", waiting),
                ("outrigger_queue", "Objects that wait to be looked at.", queue),
            ]);
            reply(StatusCode::OK, "text/plain; version=0.0.4", text)
        }
        _ => reply(StatusCode::NOT_FOUND, "text/plain", "there are /healthz, /readyz and /metrics"),
    }
}

/// Says "ok" to whoever asks, for the agent.
pub(crate) async fn serve_plain_health(address: SocketAddr) {
    let listener = match TcpListener::bind(address).await {
        Ok(listener) => listener,
        Err(error) => {
            tracing::warn!(%address, %error, "no health page");
            return std::future::pending().await;
        }
    };
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        tokio::spawn(converse(stream, |_| async { reply(StatusCode::OK, "text/plain", "ok") }));
    }
}
