//! Events of an agent's pods: one stream of typed events.
//!
//! Workers never wait for a subscriber. A pod emits a few events per second at most, and these are buffered
//! without a limit. Log lines are not: they are read from the files only while there is room ([`LOG_ROOM`]),
//! and each batch holds its share of the room until the subscriber drops it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time as MetaTime;
use outrigger_lifecycle::trace::Entry;
pub use outrigger_lifecycle::verdict::{Failure, PodResult};
use outrigger_lifecycle::{Observation, Time, Wait};
use outrigger_runtime::ContainerId;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use crate::pod::PodContext;
use crate::uid::PodUid;

/// Maximum number of bytes of log lines held by subscribers.
pub const LOG_ROOM: usize = 1 << 20;

/// Something that happened to a pod.
#[derive(Debug, Clone)]
pub struct AgentEvent {
    /// The pod's UID.
    pub pod: PodUid,
    /// What happened.
    pub kind: AgentEventKind,
}

/// What happened to a pod.
#[derive(Debug, Clone)]
pub enum AgentEventKind {
    /// An entry of the pod's trace.
    Trace {
        /// The entry.
        entry: Arc<Entry>,
        /// When it happened, since the Unix epoch.
        exact: Duration,
    },
    /// The pod's state was observed.
    Observed(Snapshot),
    /// The pod's status changed; emitted for pods with
    /// [`StatusUpdates::Emitted`](crate::options::StatusUpdates::Emitted).
    Status(StatusUpdate),
    /// The pod was updated in place.
    Updated {
        /// The updated pod.
        pod: Arc<PodContext>,
        /// Its observation after the update.
        observation: Arc<Observation>,
    },
    /// The pod's addresses are known.
    Addresses(Vec<String>),
    /// The running instance of a container changed.
    Instance {
        /// The container's index in the plan.
        container: usize,
        /// The running instance; `None` if there is none.
        id: Option<ContainerId>,
    },
    /// Progress of an image pull.
    Pulling {
        /// The container's index in the plan.
        container: usize,
        /// The image.
        reference: String,
        /// Bytes downloaded so far.
        done_bytes: u64,
        /// Total bytes, if known.
        total_bytes: Option<u64>,
    },
    /// Lines written by a container; emitted by agents with
    /// [`LogLines::Emitted`](crate::options::LogLines::Emitted).
    Log(LogBatch),
    /// Log files of a container were deleted before they could be read.
    LogsLost {
        /// The container's index in the plan.
        container: usize,
        /// The number of files.
        files: u64,
    },
    /// A retriable failure occurred and the pod stops because of it; emitted for pods with
    /// [`OnFailure::Stop`](crate::options::OnFailure::Stop).
    Failed(Failure),
    /// The pod has ended and nothing of it is running. This is its last event.
    Ended {
        /// The result of the pod.
        result: PodResult,
        /// Why the pod ended.
        cause: EndCause,
    },
}

/// The state of a pod at one moment.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// The observation used for the last decision.
    pub observation: Arc<Observation>,
    /// Why containers wait.
    pub waits: Arc<[(usize, Wait)]>,
}

/// The status of a pod.
#[derive(Debug, Clone)]
pub struct StatusUpdate {
    /// `status`.
    pub status: Arc<PodStatus>,
    /// When the pod was created.
    pub created_at: Time,
    /// Set if the pod was asked to stop.
    pub deletion: Option<Deletion>,
}

impl StatusUpdate {
    /// The Pod object as the API server of a cluster would return it.
    pub fn object(&self, pod: &PodContext) -> Pod {
        let meta = |time: Time| {
            let ms = i64::try_from(time.0).unwrap_or(i64::MAX);
            jiff::Timestamp::from_millisecond(ms).ok().map(MetaTime)
        };
        let mut object = pod.pod().clone();
        object.metadata.creation_timestamp = meta(self.created_at);
        if let Some(deletion) = self.deletion {
            object.metadata.deletion_timestamp = meta(deletion.deadline);
            object.metadata.deletion_grace_period_seconds = i64::try_from(deletion.grace_ms / 1_000).ok();
        }
        if let Some(spec) = &mut object.spec {
            spec.node_name.get_or_insert_with(|| pod.node_name().to_owned());
        }
        object.status = Some((*self.status).clone());
        object
    }
}

/// A requested stop of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deletion {
    /// When the grace period ends.
    pub deadline: Time,
    /// The grace period.
    pub grace_ms: u64,
}

/// Complete lines of a log in CRI format. Holds its share of [`LOG_ROOM`] until the last clone is dropped.
#[derive(Debug, Clone)]
pub struct LogBatch {
    /// The container's index in the plan.
    pub container: usize,
    /// The lines.
    pub lines: Arc<Vec<u8>>,
    /// Released when the last clone is dropped.
    pub room: Arc<OwnedSemaphorePermit>,
}

/// Why a pod ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndCause {
    /// It ran to its end.
    Finished,
    /// Its worker failed because of a bug in Outrigger; the pod was removed.
    WorkerFailed,
}

/// Which pods a subscription covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// All pods.
    All,
    /// Pods added with this group.
    Group(Arc<str>),
}

/// A subscription to the events of pods.
#[derive(Debug)]
pub struct Events(mpsc::UnboundedReceiver<AgentEvent>);

impl Events {
    /// The next event. Events of one pod arrive in order; `None` once the agent is gone.
    pub async fn next(&mut self) -> Option<AgentEvent> {
        self.0.recv().await
    }

    /// The next event, if one is already available.
    pub fn try_next(&mut self) -> Option<AgentEvent> {
        self.0.try_recv().ok()
    }
}

/// The list of subscribers.
#[derive(Debug, Default)]
pub(crate) struct Subscribers(Mutex<Vec<Subscriber>>);

#[derive(Debug)]
struct Subscriber {
    scope: Scope,
    events: mpsc::UnboundedSender<AgentEvent>,
}

impl Subscribers {
    pub(crate) fn subscribe(&self, scope: Scope) -> Events {
        let (events, receiver) = mpsc::unbounded_channel();
        self.lock().push(Subscriber { scope, events });
        Events(receiver)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Subscriber>> {
        // Each change of the list is atomic, so the list is valid even after a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Emits the events of one pod.
#[derive(Debug, Clone)]
pub(crate) struct Emitter {
    pub(crate) pod: PodUid,
    pub(crate) group: Arc<str>,
    pub(crate) subscribers: Arc<Subscribers>,
}

impl Emitter {
    pub(crate) fn emit(&self, kind: AgentEventKind) {
        let event = AgentEvent { pod: self.pod.clone(), kind };
        let mut subscribers = self.subscribers.lock();
        subscribers.retain(|subscriber| match &subscriber.scope {
            Scope::Group(group) if *group != self.group => !subscriber.events.is_closed(),
            Scope::Group(_) | Scope::All => subscriber.events.send(event.clone()).is_ok(),
        });
    }
}
