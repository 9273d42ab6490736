//! Calls to the runtime. Each call has a time limit and is retried if that is safe. The connection is
//! reopened when it breaks.

use std::ffi::OsString;
use std::fmt;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::client::Grpc;
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;

use super::hold::{self, Held};
use super::wire::Rpc;

/// A command may print 16 MiB on each of two streams. Lists of thousands of pods are smaller.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// The first delay before a retry. It doubles up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// Time limits of calls.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Queries, which are answered from memory.
    pub question: Duration,
    /// Creating, starting, stopping and removing.
    pub work: Duration,
    /// How long to wait for a runtime that cannot be reached.
    pub patience: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            question: Duration::from_secs(10),
            work: Duration::from_secs(120),
            patience: Duration::from_secs(60),
        }
    }
}

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The object does not exist.
    NotFound(String),
    /// The runtime does not support the call.
    Unimplemented(String),
    /// The connection broke before the answer. The call may have been carried out.
    Lost(String),
    /// There was no answer in time. The call may have been carried out.
    Late(Duration),
    /// The runtime returned an error.
    Refused(String),
    /// The runtime's own time limit passed.
    Expired,
}

impl Fault {
    /// Whether the call may have been carried out anyway.
    pub(crate) fn is_unclear(&self) -> bool {
        matches!(self, Fault::Lost(_) | Fault::Late(_))
    }

    /// Whether containerd refused to start a container because it is already starting it.
    pub(crate) fn is_under_way(&self) -> bool {
        matches!(self, Fault::Refused(text) if text.contains("already in starting state"))
    }

    /// Whether the image names a user or group that its own tables do not contain.
    pub(crate) fn is_unknown_user(&self) -> bool {
        let words = ["no users found", "no groups found", "no matching entries in"];
        matches!(self, Fault::Refused(text) if words.iter().any(|word| text.contains(word)))
    }

    /// Whether the kernel, or the OCI runtime, refused the sysctl with this name.
    pub(crate) fn is_about_sysctl(&self, name: &str) -> bool {
        let path = format!("/proc/sys/{}", name.replace('.', "/"));
        let words =
            [path, format!("sysctl {name:?}"), format!("sysctl key {name}"), format!("sysctl {name}")];
        matches!(self, Fault::Refused(text) if words.iter().any(|word| text.contains(word)))
    }

    /// Whether a name is already in use. Names of sandboxes and containers are unique in a runtime.
    pub(crate) fn is_name_taken(&self) -> bool {
        matches!(self, Fault::Refused(text) if text.contains("is reserved for"))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::NotFound(text) | Fault::Unimplemented(text) | Fault::Refused(text) => f.write_str(text),
            Fault::Lost(text) => write!(f, "the container runtime cannot be reached: {text}"),
            Fault::Late(limit) => write!(f, "no answer from the container runtime within {limit:?}"),
            Fault::Expired => f.write_str("the container runtime's own time limit passed"),
        }
    }
}

impl From<Status> for Fault {
    fn from(status: Status) -> Self {
        let text = status.message().to_owned();
        // Only errors from our end of the connection have a source.
        let local = std::error::Error::source(&status);
        match status.code() {
            Code::Unavailable => Fault::Lost(local.map_or(text, deepest)),
            _ if local.is_some() => Fault::Lost(local.map_or(text, deepest)),
            Code::NotFound => Fault::NotFound(text),
            Code::Unimplemented => Fault::Unimplemented(text),
            Code::DeadlineExceeded => Fault::Expired,
            _ => Fault::Refused(text),
        }
    }
}

/// The root cause of an error, which is the most useful part. The rest only says "transport error".
fn deepest(error: &(dyn std::error::Error + 'static)) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

/// The connection to a runtime.
pub(crate) struct Client {
    path: PathBuf,
    limits: Limits,
    /// The command that keeps connections open, if there is one.
    holder: Vec<OsString>,
    channel: Mutex<Channel>,
    /// Counts the connections that were abandoned because no answers arrived on them.
    renewals: watch::Sender<u64>,
    /// Whether the runtime could not be reached at least once.
    was_lost: AtomicBool,
}

impl Client {
    /// Creates a client, which connects on its first call.
    pub(crate) fn new(path: PathBuf, limits: Limits, holder: Vec<OsString>) -> Self {
        let channel = Mutex::new(channel(&path, limits.patience, &holder));
        Client {
            path,
            limits,
            holder,
            channel,
            renewals: watch::Sender::new(0),
            was_lost: AtomicBool::new(false),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    /// Changes when a connection is abandoned.
    pub(crate) fn renewals(&self) -> watch::Receiver<u64> {
        self.renewals.subscribe()
    }

    /// Whether the runtime went away and came back. It may have lost state then.
    pub(crate) fn was_lost(&self) -> bool {
        self.was_lost.load(Ordering::Relaxed)
    }

    /// Records that the runtime cannot be reached.
    pub(crate) fn note_loss(&self) {
        self.was_lost.store(true, Ordering::Relaxed);
    }

    fn grpc(&self, bytes_max: usize) -> Grpc<Channel> {
        let channel = lock(&self.channel).clone();
        Grpc::new(channel).max_decoding_message_size(bytes_max)
    }

    /// Makes one call with a time limit. Dropping it also cancels it at the runtime.
    pub(crate) async fn call<Q: Rpc>(&self, request: Q, limit: Duration) -> Result<Q::Answer, Fault> {
        let renewal = *self.renewals.borrow();
        let answer = self.call_once(request, limit).await;
        if let Err(Fault::Late(_)) = answer {
            self.renew(renewal);
        }
        answer
    }

    /// Like [`Self::call`], for calls where a missing answer does not mean that the connection is broken.
    pub(crate) async fn call_once<Q: Rpc>(&self, request: Q, limit: Duration) -> Result<Q::Answer, Fault> {
        self.call_within(request, limit, ANSWER_BYTES_MAX).await
    }

    /// Like [`Self::call`], but refuses an answer longer than `bytes_max` before reading it.
    pub(crate) async fn call_within<Q: Rpc>(
        &self,
        request: Q,
        limit: Duration,
        bytes_max: usize,
    ) -> Result<Q::Answer, Fault> {
        let begun = Instant::now();
        let mut pause = PAUSE_MIN;
        loop {
            let mut grpc = self.grpc(bytes_max);
            let request = with_metadata(request.clone());
            let answer = async {
                grpc.ready().await.map_err(|error| Fault::Lost(deepest(&error)))?;
                let path = PathAndQuery::from_static(Q::PATH);
                let answer = grpc.unary(request, path, ProstCodec::default()).await?;
                Ok(answer.into_inner())
            };
            let left = limit.saturating_sub(begun.elapsed());
            match tokio::time::timeout(left, answer).await {
                // containerd listens before it is ready. It has not done anything yet.
                Ok(Err(Fault::Refused(text)))
                    if text.contains("not initialized yet") && begun.elapsed() + pause < limit =>
                {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
                Ok(answer) => {
                    if let Err(Fault::Lost(_)) = answer {
                        self.note_loss();
                    }
                    return answer;
                }
                Err(_) => return Err(Fault::Late(limit)),
            }
        }
    }

    /// Whether the socket accepts connections.
    pub(crate) async fn is_reachable(&self) -> bool {
        UnixStream::connect(&self.path).await.is_ok()
    }

    /// Makes an idempotent call. Retries it until there is an answer or the patience limit is reached.
    pub(crate) async fn call_until_answered<Q: Rpc>(
        &self,
        request: Q,
        limit: Duration,
    ) -> Result<Q::Answer, Fault> {
        let mut retry = self.retry();
        loop {
            match self.call(request.clone(), limit).await {
                Err(fault) if fault.is_unclear() && retry.pause().await => {}
                answer => return answer,
            }
        }
    }

    /// Makes a query. Retries it until there is an answer.
    pub(crate) async fn ask<Q: Rpc>(&self, request: Q) -> Result<Q::Answer, Fault> {
        self.call_until_answered(request, self.limits.question).await
    }

    /// Makes a call with a stream of answers. Returns with the first answer, which may never come.
    pub(crate) async fn stream<Q: Rpc>(&self, request: Q) -> Result<Streaming<Q::Answer>, Fault> {
        let mut grpc = self.grpc(ANSWER_BYTES_MAX);
        grpc.ready().await.map_err(|error| Fault::Lost(deepest(&error)))?;
        let path = PathAndQuery::from_static(Q::PATH);
        let answer = grpc.server_streaming(with_metadata(request), path, ProstCodec::default()).await?;
        Ok(answer.into_inner())
    }

    /// Delays between retries, up to the patience limit.
    pub(crate) fn retry(&self) -> Retry {
        Retry { until: Instant::now() + self.limits.patience, pause: PAUSE_MIN }
    }

    /// Abandons a connection on which no answers arrive. Calls in progress on it may still be answered.
    fn renew(&self, seen: u64) {
        let mut current = lock(&self.channel);
        self.renewals.send_if_modified(|renewals| {
            let first = *renewals == seen;
            if first {
                *current = channel(&self.path, self.limits.patience, &self.holder);
                *renewals += 1;
            }
            first
        });
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The value is always replaced as a whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A request with its metadata.
fn with_metadata<Q: Rpc>(request: Q) -> Request<Q> {
    let mut request = Request::new(request);
    if Q::PATH.starts_with("/containerd.") {
        // containerd's CRI plugin keeps everything in this namespace.
        let namespace = MetadataValue::from_static("k8s.io");
        request.metadata_mut().insert("containerd-namespace", namespace);
    }
    request
}

/// Increasing delays, up to the patience limit.
pub(crate) struct Retry {
    until: Instant,
    pause: Duration,
}

impl Retry {
    /// Waits for the next delay. Returns `false` if the call should not be retried any more.
    pub(crate) async fn pause(&mut self) -> bool {
        if Instant::now() + self.pause > self.until {
            return false;
        }
        tokio::time::sleep(self.pause).await;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        true
    }
}

fn channel(path: &Path, patience: Duration, holder: &[OsString]) -> Channel {
    // The host name is only used in a header.
    let endpoint = Endpoint::from_static("http://localhost");
    let (path, holder) = (path.to_owned(), holder.to_vec());
    endpoint.connect_with_connector_lazy(Connector { path, patience, holder, held: Arc::default() })
}

/// Connects to a unix socket. If the socket does not exist, it waits for it, so that calls during a restart
/// of the runtime take longer instead of failing.
struct Connector {
    path: PathBuf,
    patience: Duration,
    holder: Vec<OsString>,
    /// The process that keeps the current connection open.
    held: Arc<Mutex<Option<Held>>>,
}

impl tower_service::Service<Uri> for Connector {
    type Response = TokioIo<UnixStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let (path, holder, held) = (self.path.clone(), self.holder.clone(), self.held.clone());
        let mut retry = Retry { until: Instant::now() + self.patience, pause: PAUSE_MIN };
        Box::pin(async move {
            loop {
                match UnixStream::connect(&path).await {
                    Ok(stream) => {
                        match hold::hold(&stream, &holder) {
                            Ok(new) => *lock(&held) = new,
                            Err(error) => {
                                tracing::warn!(%error, "a container may be started twice if this process is killed");
                            }
                        }
                        return Ok(TokioIo::new(stream));
                    }
                    Err(error) => {
                        if !retry.pause().await {
                            return Err(io::Error::new(error.kind(), format!("{}: {error}", path.display())));
                        }
                    }
                }
            }
        })
    }
}
