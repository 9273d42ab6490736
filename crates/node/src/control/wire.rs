//! What a run and those who ask it say to each other.
//!
//! Both directions carry frames: a byte that says what it is, four bytes of length (little-endian), and the content.
//! The first frame is the client's [`Hello`]; what follows depends on its request.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use outrigger_runtime::WindowSize;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::record::RunRecord;

/// Raised whenever a frame or message changes its meaning.
pub(crate) const VERSION: u32 = 1;

/// Longest frame a run accepts from others: manifests fit, an attack does not.
pub(crate) const REQUEST_MAX: usize = 8 << 20;
/// Bytes of standard input a client may send before the command has taken them; [`Answer::More`] gives room back. So a
/// run always listens, and a command that does not read holds nobody up but whoever writes to it.
pub(crate) const WINDOW: usize = 256 << 10;
/// Longest frame a client accepts from a run: thousands of pods.
pub(crate) const ANSWER_MAX: usize = 64 << 20;

/// The first message of a client.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Hello {
    /// [`VERSION`]. Anything else in the message is understood only by those of the same version.
    pub(crate) version: u32,
    /// What it wants.
    pub(crate) request: serde_json::Value,
}

/// What a client wants. Pods go by their numbers, which [`Request::List`] tells.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Request {
    /// To know who is there. Answered by [`Answer::Run`].
    List,
    /// That a pod goes, in order. Answered by [`Answer::Pod`] whenever something about the pod has changed, and by
    /// [`Answer::Done`] when nothing is left of it.
    Stop {
        /// Its number.
        pod: usize,
        /// The grace; `None` is the pod's own.
        grace_ms: Option<u64>,
    },
    /// That the workload a pod was made for goes with all its pods, in order. Answered like [`Request::Stop`].
    StopWorkload {
        /// The number of any of its pods.
        pod: usize,
        /// The grace; `None` is each pod's own.
        grace_ms: Option<u64>,
    },
    /// What containers wrote. Answered by log frames and [`Answer::Note`], and by [`Answer::Done`] after the last.
    Logs(LogsRequest),
    /// That all pods of a run go, in order; `None` is every run this process has. Answered like [`Request::Stop`].
    StopRun {
        /// Its id.
        run: Option<String>,
        /// The grace; `None` is each pod's own.
        grace_ms: Option<u64>,
    },
    /// That a container of a pod, or all of them in order, are restarted. Answered by [`Answer::Done`] when that is sure to
    /// happen.
    Restart {
        /// The pod's number.
        pod: usize,
        /// The container's place in it; `None`: all.
        container: Option<usize>,
    },
    /// That a node changes what it runs. Answered by [`Answer::Applied`].
    Apply {
        /// What is to run.
        record: Box<RunRecord>,
        /// Only say what would change.
        dry_run: bool,
    },
    /// That a node runs pods. Answered by [`Answer::Accepted`].
    Run(Box<RunRecord>),
    /// To know when all pods of a run are ready ([`Answer::Done`]), or the run is over ([`Answer::Exit`]).
    Await {
        /// Its id.
        run: String,
        /// Only when it is over.
        over: bool,
    },
    /// To run a command in a container. Its streams are frames, see [`WINDOW`]; answered by [`Answer::Exit`] at the end.
    Exec(ExecStart),
}

/// A command to run, its streams at the client's.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ExecStart {
    /// The pod's number.
    pub pod: usize,
    /// The container's place in it.
    pub container: usize,
    /// Program and arguments.
    pub command: Vec<String>,
    /// Give it standard input.
    pub stdin: bool,
    /// Give it a terminal of this size.
    pub terminal: Option<WindowSize>,
}

/// What a client says to a command besides its input.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Word {
    /// The terminal has another size.
    Resize(WindowSize),
}

/// Which logs, and how much of them.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct LogsRequest {
    /// The pod's number.
    pub pod: usize,
    /// Places of the containers in the pod.
    pub containers: Vec<usize>,
    /// Go on as they grow, whatever is started again, until nothing more will come.
    pub follow: bool,
    /// Those of the instance before the last.
    pub previous: bool,
    /// Only the last lines of each.
    pub tail: Option<usize>,
    /// Only what was written from then on, in milliseconds since 1970.
    pub since_ms: Option<i64>,
}

/// What a run says.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// The run and its pods.
    Run(RunState),
    /// A pod as it is now.
    Pod(Box<PodState>),
    /// A node has taken pods.
    Accepted(Accepted),
    /// A node has changed what it runs, or would.
    Applied(Applied),
    /// Something to know while the answer is on its way.
    Note(String),
    /// Lines a container wrote, in CRI format: its place in the pod, and the lines. Not a message but a frame of its own.
    #[serde(skip)]
    Log(usize, Vec<u8>),
    /// What a command wrote to standard output. A frame of its own.
    #[serde(skip)]
    Stdout(Vec<u8>),
    /// What a command wrote to standard error. A frame of its own.
    #[serde(skip)]
    Stderr(Vec<u8>),
    /// A command has taken this many bytes of its input.
    More(usize),
    /// A command has ended with this code, or could not be run: the code of that, and why.
    Exit(i32, Option<String>),
    /// It is done.
    Done,
    /// It cannot be done: why, and how to fix it.
    Refused(String),
    /// It could not be done, which is not the fault of what was asked for: why.
    Failed(String),
}

/// What a node has made of what it was given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accepted {
    /// The id of the run.
    pub run: String,
    /// Pods and workloads: `pod/web`, `job/report`.
    pub objects: Vec<String>,
}

/// What changes about what a node runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Applied {
    /// The id of the run that has the objects now; `None` if it would be a new one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// Every object of the manifests, and those that are no longer in them.
    pub objects: Vec<AppliedObject>,
}

/// What happens to one object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppliedObject {
    /// The object: `pod/web`.
    pub object: String,
    /// `metadata.namespace`.
    pub namespace: String,
    /// `unchanged`, `updated`, `scaled`, `replaced`, `created` or `removed`.
    pub change: String,
    /// What is different, or what happens to it, one line each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub details: Vec<String>,
    /// Containers that are restarted with another image.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub restarted: Vec<String>,
}

/// A run, for people and programs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunState {
    /// The process.
    pub pid: u32,
    /// Its short name.
    pub id: String,
    /// What it was given to run.
    pub files: Vec<String>,
    /// The state directory of a node; `None` for a run in the foreground.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<PathBuf>,
    /// Its pods: those that are there, and the last that were.
    pub pods: Vec<PodState>,
}

/// A pod, for people and programs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PodState {
    /// Its number in the run.
    pub number: usize,
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// The workload it was made for, as written in the manifest: `Deployment/web`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workload: Option<String>,
    /// The run of a node it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// The workload, and the object in between that owns the pod: `Deployment/web`, `ReplicaSet/web-7d4b9`.
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
    /// Its ports: `80/TCP`, or `8080->80/TCP` where the host has one for it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<String>,
    /// Pending, Running, Succeeded or Failed.
    pub phase: String,
    /// It has been told to go, or goes by itself.
    pub stopping: bool,
    /// It failed only because somebody stopped it: none of its containers did by itself.
    pub stopped: bool,
    /// Nothing of it is left.
    pub over: bool,
    /// Containers that are ready, of those that stay.
    pub ready: usize,
    /// Containers that stay: mains and sidecars.
    pub total: usize,
    /// Restarts of all containers.
    pub restarts: u32,
    /// Milliseconds since it was accepted.
    pub age_ms: u64,
    /// Why all of it waits or ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// In the order of the plan.
    pub containers: Vec<ContainerState>,
}

/// A container, for people and programs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ContainerState {
    /// Its name.
    pub name: String,
    /// `init`, `sidecar`, `main` or `debug`.
    pub role: String,
    /// Its state in a word or two, as the live view has it.
    pub state: String,
    /// It is up and its probes pass; of an init container: it has completed.
    pub ready: bool,
    /// How often it was started again.
    pub restarts: u32,
    /// The exit code of one that has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Milliseconds it has been in its state; of one that has ended, milliseconds it ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub age_ms: Option<u64>,
    /// What it waits for, if it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What a frame holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A message in JSON.
    Message,
    /// Two bytes for the place of a container, little-endian, and lines of its log.
    Log,
    /// Standard input of a command; empty at its end.
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

    /// The message it holds.
    pub(crate) fn parse<T: DeserializeOwned>(&self) -> io::Result<T> {
        match self.kind {
            Kind::Message => Ok(serde_json::from_slice(&self.content)?),
            kind => Err(io::Error::other(format!("expected a message, got {kind:?}"))),
        }
    }

    /// The answer it holds.
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

/// Takes frames off a stream. A call that is dropped half-way loses nothing.
pub(crate) struct Frames<R> {
    from: R,
    received: Vec<u8>,
    limit: usize,
}

impl<R: AsyncRead + Unpin> Frames<R> {
    pub(crate) fn new(from: R, limit: usize) -> Self {
        Frames { from, received: Vec::new(), limit }
    }

    /// The next frame; `None` is the end.
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

    /// Waits for the end, or for more than there should be before a frame is asked for. What comes is kept.
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

/// Takes whatever bytes as what came from the other end, from both sides.
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

    /// Gives a byte at a time.
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
