//! A proxy between a client and containerd that parses calls and answers some of them itself.

use std::collections::HashMap;
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::{Request, Response};
use http_body_util::channel::Channel;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http2::SendRequest;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::broadcast;

type Body = BoxBody<Bytes, hyper::Error>;

/// What the relay does with a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    /// It refuses the call.
    Refuse,
    /// It does not forward the call, and does not answer.
    Hang,
    /// It forwards the call, and answers with a broken connection instead of the real answer.
    Lose,
    /// It forwards the call, and does not answer.
    Withhold,
    /// It ends the call's stream immediately.
    End,
    /// It changes the name of the runtime in the answer, so that it is not containerd.
    Rename,
    /// It sends the events of [`Relay::tell`] on the call's stream.
    Tell,
    /// It forwards the call, but answers that the same call is already in progress.
    UnderWay,
    /// It stores the answer.
    Keep,
    /// It answers with the stored answer.
    Recall,
}

/// The text of refusals.
pub(crate) const REFUSAL: &str = "not in the mood";

/// Events of a forwarded call arrive within this time.
const EVENTS: Duration = Duration::from_millis(500);

const UNKNOWN: &str = "2";
const UNAVAILABLE: &str = "14";

pub(crate) struct Relay {
    path: PathBuf,
    shared: Arc<Shared>,
}

struct Shared {
    to: PathBuf,
    /// Rules by method: those for one call, and permanent ones.
    once: Mutex<HashMap<String, Rule>>,
    always: Mutex<HashMap<String, Rule>>,
    counts: Mutex<HashMap<String, usize>>,
    withheld: Mutex<HashMap<String, usize>>,
    kept: Mutex<Bytes>,
    events: broadcast::Sender<Bytes>,
}

impl Relay {
    pub(crate) fn start(dir: &Path, to: PathBuf) -> Self {
        let path = dir.join("r.sock");
        let listener = UnixListener::bind(&path).expect("a socket");
        let shared = Arc::new(Shared {
            to,
            once: Mutex::default(),
            always: Mutex::default(),
            counts: Mutex::default(),
            withheld: Mutex::default(),
            kept: Mutex::default(),
            events: broadcast::Sender::new(100),
        });
        tokio::spawn(serve(listener, shared.clone()));
        Relay { path, shared }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("unix://{}", self.path.display())
    }

    /// Sets the rule for the next call of a method.
    pub(crate) fn once(&self, method: &str, rule: Rule) {
        lock(&self.shared.once).insert(method.to_owned(), rule);
    }

    /// Sets the rule for all calls of a method from now on.
    pub(crate) fn always(&self, method: &str, rule: Rule) {
        lock(&self.shared.always).insert(method.to_owned(), rule);
    }

    /// Removes the rule of a method.
    pub(crate) fn lift(&self, method: &str) {
        lock(&self.shared.always).remove(method);
    }

    /// How often a method was called.
    pub(crate) fn count(&self, method: &str) -> usize {
        lock(&self.shared.counts).get(method).copied().unwrap_or(0)
    }

    /// How often a method was carried out and its answer withheld.
    pub(crate) fn withheld(&self, method: &str) -> usize {
        lock(&self.shared.withheld).get(method).copied().unwrap_or(0)
    }

    /// The socket clients connect to.
    pub(crate) fn socket(&self) -> PathBuf {
        self.path.clone()
    }

    /// Sends an event to all listeners that a container, by the runtime's id, has stopped.
    pub(crate) fn tell(&self, id: &str) {
        let length = u8::try_from(id.len()).expect("a short name");
        let mut event = vec![0, 0, 0, 0, length + 4, 0x0a, length];
        event.extend(id.as_bytes());
        event.extend([0x10, 2]);
        let _ = self.shared.events.send(event.into());
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn serve(listener: UnixListener, shared: Arc<Shared>) {
    while let Ok((client, _)) = listener.accept().await {
        let shared = shared.clone();
        tokio::spawn(async move {
            let Ok(server) = UnixStream::connect(&shared.to).await else { return };
            let server = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(server));
            let Ok((sender, connection)) = server.await else { return };
            let service = service_fn(|request| answer(request, sender.clone(), shared.clone()));
            let client = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(client), service);
            // If one connection breaks, the other is closed too.
            tokio::select! {
                _ = connection => {}
                _ = client => {}
            }
        });
    }
}

async fn answer(
    request: Request<Incoming>,
    mut sender: SendRequest<Incoming>,
    shared: Arc<Shared>,
) -> Result<Response<Body>, Infallible> {
    let method = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
    *lock(&shared.counts).entry(method.clone()).or_default() += 1;
    let once = lock(&shared.once).remove(&method);
    let rule = once.or_else(|| lock(&shared.always).get(&method).copied());
    match rule {
        Some(Rule::Refuse) => return Ok(status(UNKNOWN, REFUSAL)),
        Some(Rule::Hang) => std::future::pending().await,
        Some(Rule::End) => return Ok(status("0", "")),
        Some(Rule::Tell) => return Ok(stream(shared.events.subscribe())),
        Some(Rule::Recall) => return Ok(whole(lock(&shared.kept).clone())),
        None | Some(Rule::Lose | Rule::Rename | Rule::Withhold | Rule::UnderWay | Rule::Keep) => {}
    }
    let Ok(response) = sender.send_request(request).await else {
        return Ok(status(UNAVAILABLE, "the connection broke"));
    };
    let (head, body) = response.into_parts();
    if rule.is_none() {
        return Ok(Response::from_parts(head, body.boxed()));
    }
    let Ok(body) = body.collect().await else {
        return Ok(status(UNAVAILABLE, "the connection broke"));
    };
    if rule == Some(Rule::Withhold) {
        *lock(&shared.withheld).entry(method).or_default() += 1;
        return std::future::pending().await;
    }
    if rule == Some(Rule::Lose) {
        return Ok(status(UNAVAILABLE, "the answer was lost"));
    }
    if rule == Some(Rule::UnderWay) {
        tokio::time::sleep(EVENTS).await;
        return Ok(status(UNKNOWN, "container is already in starting state"));
    }
    if rule == Some(Rule::Keep) {
        let bytes = body.to_bytes();
        lock(&shared.kept).clone_from(&bytes);
        return Ok(whole(bytes));
    }
    let trailers = body.trailers().cloned();
    let bytes = renamed(&body.to_bytes());
    let body = Full::new(bytes).with_trailers(async { trailers.map(Ok) }).map_err(|never| match never {});
    Ok(Response::from_parts(head, body.boxed()))
}

/// An answer without content.
fn status(code: &str, text: &str) -> Response<Body> {
    let response = Response::builder()
        .header("content-type", "application/grpc")
        .header("grpc-status", code)
        .header("grpc-message", text);
    response.body(Empty::new().map_err(|never| match never {}).boxed()).expect("a response")
}

/// An answer with content.
fn whole(bytes: Bytes) -> Response<Body> {
    let mut trailers = http::HeaderMap::new();
    trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
    let body = Full::new(bytes).with_trailers(async { Some(Ok(trailers)) }).map_err(|never| match never {});
    Response::builder().header("content-type", "application/grpc").body(body.boxed()).expect("a response")
}

fn stream(mut events: broadcast::Receiver<Bytes>) -> Response<Body> {
    let (mut sender, body) = Channel::<Bytes, hyper::Error>::new(1);
    tokio::spawn(async move {
        while let Ok(event) = events.recv().await {
            if sender.send_data(event).await.is_err() {
                return;
            }
        }
    });
    Response::builder().header("content-type", "application/grpc").body(body.boxed()).expect("a response")
}

/// The answer with another name of the same length.
fn renamed(bytes: &[u8]) -> Bytes {
    let (from, to) = (b"containerd", b"some-other");
    let mut bytes = bytes.to_vec();
    while let Some(at) = bytes.windows(from.len()).position(|window| window == from) {
        bytes[at..at + from.len()].copy_from_slice(to);
    }
    bytes.into()
}
