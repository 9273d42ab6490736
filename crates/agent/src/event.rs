//! What an agent says about its pods: one stream of typed events.
//!
//! Workers never wait for a subscriber. What a pod does is a few events a second at most, and they are kept until they are
//! taken; the lines of its containers' logs are not: they are read from their files only while there is room
//! ([`LOG_ROOM`]), and each batch holds its part of the room until the subscriber drops it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time as MetaTime;
use outrigger_lifecycle::trace::Entry;
use outrigger_lifecycle::{Observation, Phase, Time, Wait};
use outrigger_runtime::ContainerId;
use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use crate::pod::PodContext;
use crate::uid::PodUid;

/// Bytes of log lines that subscribers may hold.
pub const LOG_ROOM: usize = 1 << 20;

/// Something that happened to a pod.
#[derive(Debug, Clone)]
pub struct PodEvent {
    /// Which pod.
    pub pod: PodUid,
    /// What.
    pub kind: PodEventKind,
}

/// What happened to a pod.
#[derive(Debug, Clone)]
pub enum PodEventKind {
    /// An entry of its trace.
    Trace {
        /// The entry.
        entry: Arc<Entry>,
        /// When, since the Unix epoch.
        exact: Duration,
    },
    /// What is known of the pod now.
    Observed(Snapshot),
    /// Its status has changed; said of pods with [`StatusUpdates::Emitted`](crate::options::StatusUpdates::Emitted).
    Status(StatusUpdate),
    /// It has become another where it runs.
    Updated {
        /// What it is now.
        pod: Arc<PodContext>,
        /// What is known of it now.
        observation: Arc<Observation>,
    },
    /// It has addresses.
    Addresses(Vec<String>),
    /// Another instance of a container runs, or none does.
    Instance {
        /// The container's place in the plan.
        container: usize,
        /// The instance that runs.
        id: Option<ContainerId>,
    },
    /// How far the pull of an image is.
    Pulling {
        /// The container's place in the plan.
        container: usize,
        /// The image.
        reference: String,
        /// Bytes that are here.
        done_bytes: u64,
        /// All of them, if known.
        total_bytes: Option<u64>,
    },
    /// Lines a container wrote; said by agents with [`LogLines::Emitted`](crate::options::LogLines::Emitted).
    Log(LogBatch),
    /// Log files of a container that were deleted before they could be read.
    LogsLost {
        /// The container's place in the plan.
        container: usize,
        /// How many.
        files: u64,
    },
    /// Something failed that would be tried again, and the pod stops because of it; said of pods with
    /// [`OnFailure::Stop`](crate::options::OnFailure::Stop).
    Failed(Failure),
    /// The pod is over and nothing of it runs any more. Its last event.
    Ended {
        /// How.
        result: PodResult,
        /// Why nothing more will be heard of it.
        cause: EndCause,
    },
}

/// What is known of a pod at one moment.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// The observation the last decision was made from.
    pub observation: Arc<Observation>,
    /// Why containers wait.
    pub waits: Arc<[(usize, Wait)]>,
}

/// The status of a pod.
#[derive(Debug, Clone)]
pub struct StatusUpdate {
    /// `status`.
    pub status: Arc<PodStatus>,
    /// When the pod was made.
    pub created_at: Time,
    /// It was asked to go.
    pub deletion: Option<Deletion>,
}

impl StatusUpdate {
    /// The pod as the API server of a cluster would have it.
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

/// A pod's stop that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deletion {
    /// When its grace is over.
    pub deadline: Time,
    /// The grace.
    pub grace_ms: u64,
}

/// Whole lines of a log in CRI format. Holds room for as long as it, or a clone of it, is there.
#[derive(Debug, Clone)]
pub struct LogBatch {
    /// The container's place in the plan.
    pub container: usize,
    /// The lines.
    pub lines: Arc<Vec<u8>>,
    /// Given back when the last clone is dropped.
    pub room: Arc<OwnedSemaphorePermit>,
}

/// Something failed that would be tried again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// What, for people.
    pub text: String,
    /// The exit code, if a container has exited.
    pub code: Option<i64>,
}

/// How a pod ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodResult {
    /// Its phase.
    pub phase: Phase,
    /// The first failing main: when it ended, and with which code.
    pub failed: Option<(Time, i32)>,
}

/// Why a pod is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndCause {
    /// It has reached its end.
    Finished,
    /// Its worker failed, which is a fault of Outrigger; the pod was removed.
    WorkerFailed,
}

/// Which pods a subscription is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// All.
    All,
    /// Those added with this group.
    Group(Arc<str>),
}

/// A subscription to the events of pods.
#[derive(Debug)]
pub struct Events(mpsc::UnboundedReceiver<PodEvent>);

impl Events {
    /// The next event. Events of one pod come in their order; nothing more comes when the agent is gone.
    pub async fn next(&mut self) -> Option<PodEvent> {
        self.0.recv().await
    }

    /// The next event, if there is one already.
    pub fn try_next(&mut self) -> Option<PodEvent> {
        self.0.try_recv().ok()
    }
}

/// Those who have subscribed.
#[derive(Debug, Default)]
pub(crate) struct Subscribers(Mutex<Vec<Subscriber>>);

#[derive(Debug)]
struct Subscriber {
    scope: Scope,
    events: mpsc::UnboundedSender<PodEvent>,
}

impl Subscribers {
    pub(crate) fn subscribe(&self, scope: Scope) -> Events {
        let (events, receiver) = mpsc::unbounded_channel();
        self.lock().push(Subscriber { scope, events });
        Events(receiver)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Subscriber>> {
        // The list is never left half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Says what happens to one pod.
#[derive(Debug, Clone)]
pub(crate) struct Emitter {
    pub(crate) pod: PodUid,
    pub(crate) group: Arc<str>,
    pub(crate) subscribers: Arc<Subscribers>,
}

impl Emitter {
    pub(crate) fn emit(&self, kind: PodEventKind) {
        let event = PodEvent { pod: self.pod.clone(), kind };
        let mut subscribers = self.subscribers.lock();
        subscribers.retain(|subscriber| match &subscriber.scope {
            Scope::Group(group) if *group != self.group => !subscriber.events.is_closed(),
            Scope::Group(_) | Scope::All => subscriber.events.send(event.clone()).is_ok(),
        });
    }
}
