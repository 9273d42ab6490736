//! Options of agents and pods.

use std::path::PathBuf;
use std::sync::Arc;

use outrigger_lifecycle::{Companions, Plan, PodInput};
use outrigger_runtime::{LogLimits, NetworkMode, PublishedPort, PullPolicy};
use serde::{Deserialize, Serialize};

use crate::uid::PodUid;

/// Options of an agent.
#[derive(Debug, Clone)]
pub struct AgentOptions {
    /// Directory of pods and claims. Absolute, without symbolic links.
    pub state_dir: PathBuf,
    /// What happens to pods when the process ends.
    pub durability: Durability,
    /// Whether container output is emitted as events.
    pub logs: LogLines,
}

/// What happens to pods when the process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// They end with it. Nothing is persisted.
    Process,
    /// They keep running. Their state is persisted before it is acted on, and the next agent with the same
    /// state directory resumes them.
    StateDir,
}

/// Whether container output is emitted as events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogLines {
    /// It is emitted.
    Emitted,
    /// It is not emitted. It can be read from the log files.
    Kept,
}

/// Whether changes of a pod's status are emitted as events. Computing the status at every step costs time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatusUpdates {
    /// They are emitted.
    Emitted,
    /// They are not emitted.
    Omitted,
}

/// What a retriable failure does to a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnFailure {
    /// The failed operation is retried, even if a retry cannot help.
    Retry,
    /// The failed operation is retried if waiting may help. Otherwise the pod is stopped.
    StopIfPermanent,
    /// The pod is stopped before anything is retried.
    Stop,
}

/// Options of pods.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodOptions {
    /// Grace period of a requested stop; `None` means each pod's own.
    pub grace_ms: Option<u64>,
    /// When images are pulled; overrides the manifest.
    pub pull: Option<PullPolicy>,
    /// The network of pods that do not use the host's.
    pub network: NetworkMode,
    /// Whether pods that do not set `hostUsers` get a user namespace.
    pub user_namespaces: UserNamespaces,
    /// Ports of the pod to publish on the host, in addition to its `hostPort`s. Only for runs with one pod at
    /// a time.
    pub publish: Vec<PublishedPort>,
    /// Maximum number of processes and threads per container; `None` means no limit.
    pub pids_limit: Option<u64>,
    /// Size limits of a container's log.
    pub log_limits: LogLimits,
}

impl PodOptions {
    /// The defaults, with this network.
    pub fn new(network: NetworkMode) -> Self {
        PodOptions {
            grace_ms: None,
            pull: None,
            network,
            user_namespaces: UserNamespaces::default(),
            publish: Vec::new(),
            pids_limit: None,
            log_limits: LogLimits::default(),
        }
    }
}

/// Which of the pods that do not set `hostUsers` get a user namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum UserNamespaces {
    /// All pods, except those that request something incompatible.
    #[default]
    Auto,
    /// No pods.
    Host,
}

/// A pod to be run by an agent.
#[derive(Debug, Clone)]
pub struct NewPod {
    /// The pod's UID, unique within the agent.
    pub uid: PodUid,
    /// The group for subscriptions.
    pub group: Arc<str>,
    /// The pod, with Kubernetes' defaults applied.
    pub input: PodInput,
    /// The pod's plan.
    pub plan: Plan,
    /// The objects the pod may refer to.
    pub companions: Arc<Companions>,
    /// The pod's options.
    pub options: Arc<PodOptions>,
    /// Whether changes of the pod's status are emitted as events.
    pub status: StatusUpdates,
    /// What a retriable failure does to the pod.
    pub on_failure: OnFailure,
}
