//! The protocol between a run and its clients.
//!
//! Both directions carry frames: one byte for the kind, four bytes for the length (little-endian), and the
//! content. The first frame is the client's [`Hello`]; the following ones depend on its request.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use outrigger_runtime::WindowSize;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::record::RunRecord;

/// The version of the protocol. Increment it when a frame or message changes its meaning.
pub(crate) const VERSION: u32 = 1;

/// Maximum size of a frame that a run accepts. It is large enough for manifests and for any command line of
/// the kernel (2 MiB, which JSON can make six times as long). It is small enough to prevent abuse.
pub(crate) const REQUEST_MAX: usize = 16 << 20;
/// Bytes of standard input that a client may send before the command has read them. [`Answer::More`] grants
/// more. So a run always reads from the connection, and a command that does not read its input blocks only
/// its own client.
pub(crate) const WINDOW: usize = 256 << 10;
/// Maximum size of a frame that a client accepts: enough for thousands of pods.
pub(crate) const ANSWER_MAX: usize = 64 << 20;

/// The first message of a client.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Hello {
    /// [`VERSION`]. The rest of the message is defined only within the same version.
    pub(crate) version: u32,
    /// The request.
    pub(crate) request: serde_json::Value,
}

/// A request of a client. Pods are identified by the numbers returned by [`Request::List`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Request {
    /// List the pods. Answered by [`Answer::Run`].
    List,
    /// Stop a pod in order. Answered by [`Answer::Pod`] whenever the pod changes, and by [`Answer::Done`]
    /// when it is gone.
    Stop {
        /// The pod's number.
        pod: usize,
        /// The grace period; `None` means the pod's own.
        grace_ms: Option<u64>,
    },
    /// Stop the workload of a pod with all its pods, in order. Answered like [`Request::Stop`].
    StopWorkload {
        /// The number of any of its pods.
        pod: usize,
        /// The grace period; `None` means each pod's own.
        grace_ms: Option<u64>,
    },
    /// Read logs. Answered by log frames and [`Answer::Note`], and at the end by [`Answer::Done`].
    Logs(LogsRequest),
    /// Stop all pods of a run in order; `None` means every run of this process. Answered like
    /// [`Request::Stop`].
    StopRun {
        /// The run's id.
        run: Option<String>,
        /// The grace period; `None` means each pod's own.
        grace_ms: Option<u64>,
    },
    /// Restart one container of a pod, or all of them in order. Answered by [`Answer::Done`] when the restart
    /// is certain to happen.
    Restart {
        /// The pod's number.
        pod: usize,
        /// The container's index in the pod; `None` means all.
        container: Option<usize>,
    },
    /// Apply changed manifests on a node. Answered by [`Answer::Applied`].
    Apply {
        /// The manifests to run.
        record: Box<RunRecord>,
        /// Only report the changes.
        dry_run: bool,
    },
    /// Run pods on a node. Answered by [`Answer::Accepted`].
    Run(Box<RunRecord>),
    /// Wait until a run has reached its goal: Jobs and pods that are not restarted have finished, and
    /// everything else is ready. Answered by [`Answer::Exit`] with the result if anything has finished, else
    /// by [`Answer::Done`]. With `faults`, each start that fails is reported before, as an [`Answer::Note`].
    /// If waiting for such a start cannot help, the answer is [`Answer::Exit`] with code 1.
    Await {
        /// The run's id.
        run: String,
        /// Wait only for the end of the run.
        over: bool,
        /// Wait only until its pods are running or have ended.
        #[serde(default)]
        running: bool,
        /// Report starts that fail, and do not wait for those that can never succeed.
        #[serde(default)]
        faults: bool,
    },
    /// Run a command in a container. Its streams are frames, see [`WINDOW`]. Answered by [`Answer::Exit`] at
    /// the end.
    Exec(ExecStart),
}

/// A command to run with its streams connected to the client.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ExecStart {
    /// The pod's number.
    pub pod: usize,
    /// The container's index in the pod.
    pub container: usize,
    /// Program and arguments.
    pub command: Vec<String>,
    /// Whether to connect standard input.
    pub stdin: bool,
    /// The size of its terminal, if it gets one.
    pub terminal: Option<WindowSize>,
}

/// A message to a command, besides its input.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Word {
    /// The terminal size changed.
    Resize(WindowSize),
}

/// A request for logs.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct LogsRequest {
    /// The pod's number.
    pub pod: usize,
    /// Indexes of the containers in the pod.
    pub containers: Vec<usize>,
    /// Follow the logs across restarts until the containers have ended for good.
    pub follow: bool,
    /// Show the previous instance.
    pub previous: bool,
    /// Show only this many last lines of each.
    pub tail: Option<usize>,
    /// Show only lines written since then, in milliseconds since 1970.
    pub since_ms: Option<i64>,
}

/// An answer of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// The run and its pods.
    Run(RunState),
    /// The current state of a pod.
    Pod(Box<PodState>),
    /// A node accepted pods.
    Accepted(Accepted),
    /// The changes that a node has applied, or would apply in a dry run.
    Applied(Applied),
    /// A message to show before the final answer.
    Note(String),
    /// Lines of a container in CRI format: the container's index in the pod, and the lines. Sent as a
    /// separate frame, not as a message.
    #[serde(skip)]
    Log(usize, Vec<u8>),
    /// Standard output of a command. Sent as a separate frame.
    #[serde(skip)]
    Stdout(Vec<u8>),
    /// Standard error of a command. Sent as a separate frame.
    #[serde(skip)]
    Stderr(Vec<u8>),
    /// A command has read this many bytes of its input.
    More(usize),
    /// The exit code of a command, and the reason if it could not be run.
    Exit(i32, Option<String>),
    /// The request is complete.
    Done,
    /// The request was refused. Contains the reason and how to fix it.
    Refused(String),
    /// The request was valid but failed. Contains the reason.
    Failed(String),
}

/// The result of handing pods to a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accepted {
    /// The id of the run.
    pub run: String,
    /// Pods and workloads: `pod/web`, `job/report`.
    pub objects: Vec<String>,
}

/// The changes of an apply request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Applied {
    /// The id of the run that contains the objects; `None` if a new one would be created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// All objects of the manifests, and the objects that are no longer in them.
    pub objects: Vec<AppliedObject>,
}

/// The change of one object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppliedObject {
    /// The object: `pod/web`.
    pub object: String,
    /// `metadata.namespace`.
    pub namespace: String,
    /// `unchanged`, `updated`, `scaled`, `replaced`, `started again`, `created` or `removed`.
    pub change: String,
    /// Details of the change, one line each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub details: Vec<String>,
    /// Containers that are restarted with a new image.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub restarted: Vec<String>,
}

/// The state of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunState {
    /// The process ID.
    pub pid: u32,
    /// The run's id.
    pub id: String,
    /// The manifests it was started with.
    pub files: Vec<String>,
    /// The state directory of a node; `None` for a run in the foreground.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<PathBuf>,
    /// The state directory, of a node or of a run in the foreground.
    #[serde(default)]
    pub state_dir: PathBuf,
    /// Its current pods, and recently ended ones.
    pub pods: Vec<PodState>,
}

/// The state of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PodState {
    /// Its number in the run.
    pub number: usize,
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// The workload that it belongs to, as written in the manifest: `Deployment/web`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workload: Option<String>,
    /// The run of a node that it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// The manifests of that run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<String>,
    /// The workload, and the intermediate owner of the pod: `Deployment/web`, `ReplicaSet/web-7d4b9`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub owners: Vec<String>,
    /// `metadata.labels`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The annotation `kubectl.kubernetes.io/default-container`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_container: Option<String>,
    /// Its addresses.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ips: Vec<String>,
    /// Its ports: `80/TCP`, or `8080->80/TCP` if published on the host.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<String>,
    /// Pending, Running, Succeeded or Failed.
    pub phase: String,
    /// Whether it is being stopped, or is ending by itself.
    pub stopping: bool,
    /// Whether it failed only because it was stopped: no container failed by itself.
    pub stopped: bool,
    /// Whether it has ended and nothing of it is left.
    pub over: bool,
    /// Number of ready containers among those that keep running.
    pub ready: usize,
    /// Number of containers that keep running: mains and sidecars.
    pub total: usize,
    /// Restarts of all containers.
    pub restarts: u32,
    /// Milliseconds since it was accepted.
    pub age_ms: u64,
    /// Why the whole pod is waiting or ending.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The containers, in the order of the plan.
    pub containers: Vec<ContainerState>,
}

/// The state of a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ContainerState {
    /// Its name.
    pub name: String,
    /// `init`, `sidecar`, `main` or `debug`.
    pub role: String,
    /// A short description of its state, as in the live view.
    pub state: String,
    /// Whether it is running and its probes pass. For an init container, whether it has completed.
    pub ready: bool,
    /// How often it was restarted.
    pub restarts: u32,
    /// The exit code, if it has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Milliseconds in its current state. If it has ended, milliseconds it ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub age_ms: Option<u64>,
    /// What it is waiting for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A JSON message.
    Message,
    /// Two bytes for the container's index, little-endian, and lines of its log.
    Log,
    /// Standard input of a command; empty at the end.
    Stdin,
    /// Standard output of a command.
    Stdout,
    /// Standard error of a command.
    Stderr,
}

impl Kind {
    const ALL: [Kind; 5] = [Kind::Message, Kind::Log, Kind::Stdin, Kind::Stdout, Kind::Stderr];
}

/// One frame.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: Kind,
    pub(crate) content: Vec<u8>,
}

impl Frame {
    pub(crate) fn message(message: &impl Serialize) -> io::Result<Self> {
        Ok(Frame { kind: Kind::Message, content: serde_json::to_vec(message)? })
    }

    pub(crate) fn log(container: usize, lines: &[u8]) -> Self {
        // A plan has no more than 256 containers.
        let place = u16::try_from(container).unwrap_or(u16::MAX).to_le_bytes();
        Frame { kind: Kind::Log, content: [&place, lines].concat() }
    }

    /// Parses the message in the frame.
    pub(crate) fn parse<T: DeserializeOwned>(&self) -> io::Result<T> {
        match self.kind {
            Kind::Message => Ok(serde_json::from_slice(&self.content)?),
            kind => Err(io::Error::other(format!("expected a message, got {kind:?}"))),
        }
    }

    /// Parses the answer in the frame.
    pub(crate) fn answer(mut self) -> io::Result<Answer> {
        match (self.kind, self.content.first_chunk()) {
            (Kind::Log, Some(place)) => {
                let place = usize::from(u16::from_le_bytes(*place));
                Ok(Answer::Log(place, self.content.split_off(2)))
            }
            (Kind::Stdout, _) => Ok(Answer::Stdout(self.content)),
            (Kind::Stderr, _) => Ok(Answer::Stderr(self.content)),
            _ => self.parse(),
        }
    }

    pub(crate) async fn write(&self, to: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        let length =
            u32::try_from(self.content.len()).map_err(|_| io::Error::other("the frame is too long"))?;
        let kind = Kind::ALL.iter().position(|kind| *kind == self.kind).unwrap_or(0);
        let mut bytes = Vec::with_capacity(5 + self.content.len());
        bytes.push(u8::try_from(kind).unwrap_or(0));
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(&self.content);
        to.write_all(&bytes).await
    }
}

/// Reads frames from a stream. Cancel safe.
pub(crate) struct Frames<R> {
    from: R,
    received: Vec<u8>,
    limit: usize,
}

impl<R: AsyncRead + Unpin> Frames<R> {
    pub(crate) fn new(from: R, limit: usize) -> Self {
        Frames { from, received: Vec::new(), limit }
    }

    /// The next frame; `None` at the end of the stream.
    pub(crate) async fn next(&mut self) -> io::Result<Option<Frame>> {
        loop {
            if let Some(frame) = self.take()? {
                return Ok(Some(frame));
            }
            if self.from.read_buf(&mut self.received).await? == 0 {
                return match self.received.is_empty() {
                    true => Ok(None),
                    false => Err(io::ErrorKind::UnexpectedEof.into()),
                };
            }
        }
    }

    /// Waits for the end of the stream, or until the client has sent more than expected before a frame is
    /// read. The data is kept.
    pub(crate) async fn end(&mut self) {
        while self.received.len() <= self.limit {
            match self.from.read_buf(&mut self.received).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        }
    }

    fn take(&mut self) -> io::Result<Option<Frame>> {
        let Some((header, rest)) = self.received.split_first_chunk::<5>() else { return Ok(None) };
        let [kind, length @ ..] = *header;
        let length = u32::from_le_bytes(length) as usize;
        let kind = Kind::ALL.get(usize::from(kind));
        let (Some(kind), true) = (kind, length <= self.limit) else {
            return Err(io::Error::other("the other end does not speak the protocol of this outrigger"));
        };
        if rest.len() < length {
            return Ok(None);
        }
        let frame = Frame { kind: *kind, content: rest[..length].to_vec() };
        self.received.drain(..5 + length);
        Ok(Some(frame))
    }
}

/// Parses arbitrary bytes as both sides would parse input from the other side.
pub(crate) fn fuzz(bytes: &[u8]) {
    let Ok(executor) = tokio::runtime::Builder::new_current_thread().build() else { return };
    executor.block_on(async {
        let mut frames = Frames::new(bytes, REQUEST_MAX);
        while let Ok(Some(frame)) = frames.next().await {
            assert!(frame.content.len() <= REQUEST_MAX, "a frame over its limit");
            if let Ok(hello) = frame.parse::<Hello>() {
                let _ = serde_json::from_value::<Request>(hello.request);
            }
            let _ = frame.parse::<Word>();
            let _ = frame.answer();
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn frames_arrive_whole_however_they_are_cut() {
        let mut bytes = Vec::new();
        let sent = [Frame::message(&"one").unwrap(), Frame::message(&"").unwrap()];
        for frame in &sent {
            frame.write(&mut bytes).await.unwrap();
        }
        let mut pieces = tokio_test_reader(bytes.clone());
        let mut frames = Frames::new(&mut pieces, REQUEST_MAX);
        for frame in sent {
            assert_eq!(frames.next().await.unwrap(), Some(frame));
        }
        assert_eq!(frames.next().await.unwrap(), None);
        let mut half = Frames::new(&bytes[..7], REQUEST_MAX);
        assert_eq!(half.next().await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    /// Returns one byte at a time.
    fn tokio_test_reader(bytes: Vec<u8>) -> impl AsyncRead + Unpin {
        let (mut tx, rx) = tokio::io::duplex(1);
        tokio::spawn(async move { tx.write_all(&bytes).await });
        rx
    }

    #[tokio::test]
    async fn nonsense_and_giants_are_refused() {
        for bytes in [&[9, 0, 0, 0, 0][..], &[0, 255, 255, 255, 255]] {
            let error = Frames::new(bytes, REQUEST_MAX).next().await.unwrap_err();
            assert!(error.to_string().contains("does not speak the protocol"), "{error}");
        }
    }
}
