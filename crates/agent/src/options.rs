//! How pods are run.

use std::path::PathBuf;
use std::sync::Arc;

use outrigger_lifecycle::{Companions, Plan, PodInput};
use outrigger_runtime::{LogLimits, NetworkMode, PublishedPort, PullPolicy};
use serde::{Deserialize, Serialize};

use crate::uid::PodUid;

/// How an agent works.
#[derive(Debug, Clone)]
pub struct AgentOptions {
    /// Where pods and claims live. Absolute, free of symbolic links.
    pub state_dir: PathBuf,
    /// What becomes of pods when the process ends.
    pub durability: Durability,
    /// Whether what containers write is among the events.
    pub logs: LogLines,
}

/// What becomes of pods when the process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// They end with it; nothing about them is written down.
    Process,
    /// They go on. Everything about them is written down before it is acted on, and the next agent of the same state
    /// directory takes them over.
    StateDir,
}

/// Whether what containers write is among the events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogLines {
    /// It is.
    Emitted,
    /// It is not; it can be read from the log files.
    Kept,
}

/// Whether changes of a pod's status are among the events. Working one out at every step costs time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatusUpdates {
    /// They are.
    Emitted,
    /// They are not.
    Omitted,
}

/// What a failure that would be tried again does to a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnFailure {
    /// It is tried again.
    Retry,
    /// The pod is stopped, before anything is tried again.
    Stop,
}

/// How pods are run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodOptions {
    /// Grace of a stop that was asked for; `None` is each pod's own.
    pub grace_ms: Option<u64>,
    /// When images are fetched, whatever the manifest says.
    pub pull: Option<PullPolicy>,
    /// The network of pods that do not ask for the host's.
    pub network: NetworkMode,
    /// Whether pods that do not say it themselves get a user namespace of their own.
    pub user_namespaces: UserNamespaces,
    /// Ports of the pod to be reached at the host, besides its `hostPort`s; for runs of one pod at a time.
    pub publish: Vec<PublishedPort>,
    /// Processes and threads each container may have; `None`: any number.
    pub pids_limit: Option<u64>,
    /// How large the log of a container may become.
    pub log_limits: LogLimits,
}

/// Which pods get user namespaces, of those that say nothing about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum UserNamespaces {
    /// All that ask for nothing that excludes it.
    #[default]
    Auto,
    /// None.
    Host,
}

/// A pod for an agent to run.
#[derive(Debug, Clone)]
pub struct NewPod {
    /// No other pod of the agent has it.
    pub uid: PodUid,
    /// What subscriptions can be limited to.
    pub group: Arc<str>,
    /// The pod, Kubernetes' defaults applied.
    pub input: PodInput,
    /// Its plan.
    pub plan: Plan,
    /// What it may refer to.
    pub companions: Arc<Companions>,
    /// How it is run.
    pub options: Arc<PodOptions>,
    /// Whether changes of its status are among the events.
    pub status: StatusUpdates,
    /// What a failure that would be tried again does to it.
    pub on_failure: OnFailure,
}
