//! The messages between the agent and a shim, and the files of a shim.
//!
//! Both directions send frames over a unix stream: four bytes of length (little-endian), then JSON. A frame
//! of [`Request::Exec`] has descriptors with its first byte. The `shim` module describes the order of
//! messages.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::cgroup::Hierarchies;
use super::fault::Fault;
use super::oci_runtime::OciRuntime;
use super::userns::UserNamespace;
use outrigger_runtime::processes::Process;
use outrigger_runtime::{
    ContainerSpec, Exit, PublishedPort, Resources, SandboxId, Started, StopPlan, WindowSize,
};

/// The maximum length of a frame. An environment may be large, but an attack would be larger.
pub(crate) const FRAME_LIMIT: usize = 16 << 20;

/// A message from the agent to the shim.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Prepare the container. This is the first message to a new shim. Answered by `Created` or `Failed`.
    Create(Box<ShimConfig>),
    /// Exec the user's program. Answered by `Started` or `Failed`.
    Start,
    /// Send a signal to the container's first process. No answer.
    Signal(i32),
    /// Kill everything in the container. No answer; `Exited` follows.
    Kill,
    /// Run a command in the container with the attached descriptors. Answered by `ExecDone`.
    Exec {
        /// Chosen by the client, unique on its connection.
        id: u64,
        /// Program and arguments.
        command: Vec<String>,
        /// The meaning of the descriptors.
        streams: Streams,
    },
    /// Copy the output of the container's program from now on to the first two attached descriptors. The
    /// output of a terminal goes to the first. The third is a socket for the answer: one of [`attached_to`],
    /// with the descriptor of standard input or of the terminal.
    Attach,
    /// Kill the command and its children. `ExecDone` follows.
    CancelExec {
        /// As in `Exec`.
        id: u64,
    },
}

/// What a client is attached to, as the byte in the answer.
pub(crate) mod attached_to {
    /// Pipes, without standard input.
    pub(crate) const OUTPUT: u8 = b'o';
    /// Pipes; the descriptor is standard input.
    pub(crate) const PIPES: u8 = b'p';
    /// A terminal that the program does not read; the descriptor is the terminal.
    pub(crate) const SCREEN: u8 = b's';
    /// A terminal; the descriptor is the terminal.
    pub(crate) const TERMINAL: u8 = b't';
}

/// The number of descriptors that come with [`Request::Attach`].
pub(crate) const ATTACH_DESCRIPTORS: usize = 3;

/// The standard streams of a command.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) enum Streams {
    /// One descriptor for standard output and error; standard input is empty.
    Output,
    /// Pipes for standard output and error, and for standard input if `stdin` is set.
    Pipes { stdin: bool },
    /// A new terminal. Its outer end comes back over the attached socket.
    Terminal(WindowSize),
}

impl Streams {
    /// The number of attached descriptors.
    pub(crate) fn descriptors(self) -> usize {
        match self {
            Streams::Output | Streams::Terminal(_) => 1,
            Streams::Pipes { stdin } => 2 + usize::from(stdin),
        }
    }
}

/// A message from the shim to the agent.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    /// The container is ready to be started.
    Created,
    /// The user's program runs.
    Started(StartedRecord),
    /// `Create` or `Start` failed. Nothing is left running, and the shim ends.
    Failed(Fault),
    /// The container ended. This is the last message. A client that connects after the end gets it as the
    /// first one.
    Exited(Exit),
    /// A command ended with this exit code, or could not be run.
    ExecDone {
        /// As in `Exec`.
        id: u64,
        /// The exit code; 128 + signal if a signal ended it.
        result: Result<i32, Fault>,
    },
    /// Something differs from the request, but the container runs.
    Warning(String),
}

/// The configuration of a shim.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ShimConfig {
    /// The container, as requested by the agent.
    pub(crate) spec: ContainerSpec,
    /// Number of the stop signal.
    pub(crate) stop_signal: i32,
    /// The container's own directory.
    pub(crate) dir: PathBuf,
    /// The sandbox it belongs to.
    pub(crate) sandbox: SandboxState,
    /// The machine's cgroup mounts.
    pub(crate) cgroups: Hierarchies,
}

impl ShimConfig {
    /// The directory of the container's own layer.
    pub(crate) fn layer_dir(&self) -> PathBuf {
        super::layout::layer_dir(&self.sandbox.dir, &self.spec.id.0)
    }
}

/// A sandbox as stored in `sandbox.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SandboxState {
    pub(crate) id: SandboxId,
    /// The pod's directory.
    pub(crate) dir: PathBuf,
    /// The pod's user namespace. `None` is the host's.
    #[serde(default)]
    pub(crate) user: Option<UserNamespace>,
    /// The pinned namespaces. `None` is the host's.
    pub(crate) net: Option<PathBuf>,
    pub(crate) ipc: Option<PathBuf>,
    pub(crate) uts: Option<PathBuf>,
    /// The pinned pid namespace that the containers share.
    pub(crate) pid: Option<PathBuf>,
    /// The path of a mounted /proc of the shared pid namespace.
    pub(crate) proc: Option<PathBuf>,
    /// The process that holds the shared pid namespace.
    pub(crate) pause: Option<ProcessRecord>,
    /// Whether containers see the host's processes.
    pub(crate) host_pid: bool,
    /// The value of `$HOSTNAME` in containers.
    pub(crate) hostname: String,
    /// The directory that containers see as /dev/shm.
    pub(crate) shm: PathBuf,
    /// Limits of the pod as a whole.
    pub(crate) resources: Resources,
    /// Addresses of the pod.
    pub(crate) ips: Vec<IpAddr>,
    /// The pod's ports that are reachable at the host.
    pub(crate) ports: Vec<PublishedPort>,
    /// `namespace/name`, for messages.
    pub(crate) pod: String,
    /// The OCI runtime that creates the pod's containers. `None` if the shim creates them.
    #[serde(default)]
    pub(crate) oci_runtime: Option<OciRuntime>,
    /// The process that owns the pod. `None` if the node owns it.
    #[serde(default)]
    pub(crate) owner: Option<ProcessRecord>,
    /// How the pod's containers are stopped if that process dies.
    #[serde(default)]
    pub(crate) stop: StopPlan,
}

/// Identifies one process permanently. Pids are reused, but not together with the start time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessRecord {
    pub(crate) pid: i32,
    pub(crate) start_ticks: u64,
}

impl ProcessRecord {
    /// The process that has this pid now.
    pub(crate) fn of_pid(pid: i32) -> Option<Self> {
        super::sys::start_ticks(pid).map(|start_ticks| ProcessRecord { pid, start_ticks })
    }

    /// Whether the process itself still exists, not just its pid.
    pub(crate) fn is_alive(&self) -> bool {
        super::sys::start_ticks(self.pid) == Some(self.start_ticks)
    }

    /// Opens the process, if it still exists.
    pub(crate) fn open(&self) -> Option<Process> {
        Process::find(self.pid, || self.is_alive())
    }

    /// Waits for the end of the process. Waits forever if the end cannot be observed.
    pub(crate) async fn ended(&self) {
        let watch = || -> io::Result<AsyncFd<OwnedFd>> {
            let pid = rustix::process::Pid::from_raw(self.pid).ok_or(rustix::io::Errno::INVAL)?;
            let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?;
            // SAFETY: the value created here owns the descriptor, which is closed with it and not before.
            Ok(unsafe { AsyncFd::register_with_interest(pidfd, Interest::READABLE)? })
        };
        match watch() {
            // The pid belongs to another process now.
            _ if !self.is_alive() => {}
            Ok(pidfd) => drop(pidfd.readable().await),
            Err(error) => {
                tracing::debug!(pid = self.pid, %error, "a process cannot be watched");
                std::future::pending().await
            }
        }
    }
}

/// A container's `state.json`, which its shim replaces at every step.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct ContainerState {
    /// `name` in the manifest.
    #[serde(default)]
    pub(crate) name: String,
    /// Number of the stop signal.
    pub(crate) stop_signal: i32,
    pub(crate) shim: Option<ProcessRecord>,
    pub(crate) init: Option<ProcessRecord>,
    pub(crate) started: Option<StartedRecord>,
    pub(crate) exit: Option<Exit>,
}

/// The record of a started program, written when it was exec'd.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct StartedRecord {
    pub(crate) at_ns: u64,
    pub(crate) pid: u32,
}

impl From<&StartedRecord> for Started {
    fn from(record: &StartedRecord) -> Self {
        Started { at: time(record.at_ns), pid: record.pid }
    }
}

/// Converts nanoseconds since 1970 to a time.
pub(crate) fn time(ns: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_nanos(ns)
}

/// One frame, ready to be sent.
pub(crate) fn encode(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut frame = vec![0; 4];
    serde_json::to_writer(&mut frame, message)?;
    let length = frame.len() - 4;
    if length > FRAME_LIMIT {
        return Err(io::Error::other(format!(
            "a message of {length} bytes is over the limit of {FRAME_LIMIT}"
        )));
    }
    frame[..4].copy_from_slice(&(length as u32).to_le_bytes());
    Ok(frame)
}

/// Removes one complete frame from the received bytes, if there is one.
pub(crate) fn decode<T: DeserializeOwned>(received: &mut Vec<u8>) -> io::Result<Option<T>> {
    let Some(header) = received.first_chunk::<4>() else { return Ok(None) };
    let length = u32::from_le_bytes(*header) as usize;
    if length > FRAME_LIMIT {
        return Err(io::Error::other(format!(
            "a message of {length} bytes is over the limit of {FRAME_LIMIT}"
        )));
    }
    if received.len() < 4 + length {
        return Ok(None);
    }
    let message = serde_json::from_slice(&received[4..4 + length])?;
    received.drain(..4 + length);
    // A large first message must not use memory for the rest of the shim's life.
    received.shrink_to(4096);
    Ok(Some(message))
}

/// Parses any bytes as messages from either side.
pub(crate) fn fuzz(bytes: &[u8]) {
    fn all<T: DeserializeOwned + std::fmt::Debug>(mut received: Vec<u8>) {
        loop {
            let before = received.len();
            match decode::<T>(&mut received) {
                Ok(Some(message)) => {
                    assert!(received.len() < before, "{message:?} took nothing");
                }
                Ok(None) | Err(_) => return,
            }
        }
    }
    all::<Request>(bytes.to_vec());
    all::<Reply>(bytes.to_vec());
    let _ = serde_json::from_slice::<ContainerState>(bytes);
    let _ = serde_json::from_slice::<SandboxState>(bytes);
}
