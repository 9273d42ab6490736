//! The events of a Job, or of a workload that keeps its pods running.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// An event of a workload as a whole. Names and order are those of the JSON, as in [`super::TraceEvent`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum WorkloadEvent {
    /// A Job starts.
    JobStarted {
        /// The number of pods that must succeed; `None` for a work queue.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        completions: Option<u32>,
        /// The number of pods that may run at the same time.
        #[serde(default)]
        parallelism: u32,
        /// Whether its pods have indexes.
        mode: CompletionMode,
    },
    /// A workload that keeps pods running starts.
    WorkloadStarted {
        /// The number of pods that it keeps running.
        #[serde(default)]
        replicas: u32,
    },
    /// A pod was created.
    PodCreated {
        /// Its name.
        pod: String,
        /// The completion index in an Indexed Job, or the ordinal in a StatefulSet.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        index: Option<u32>,
        /// The number of pods that were created before it for the same place.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        attempt: Option<u32>,
    },
    /// The next pod of a StatefulSet waits for another pod.
    PodWaiting {
        /// Its name.
        pod: String,
        /// The pod that must be ready first.
        on: String,
    },
    /// A pod was told to stop.
    PodDeleted {
        /// Its name.
        pod: String,
    },
    /// After a failure, the next pod is created later.
    JobBackOff {
        /// The delay.
        #[serde(default)]
        wait_ms: u64,
    },
    /// The Job meets its success policy or completions. Pods that are still running are stopped.
    SuccessCriteriaMet {
        /// Kubernetes' reason.
        #[serde(default)]
        reason: String,
        /// The message of the condition.
        #[serde(default)]
        message: String,
    },
    /// The Job fails. Pods that are still running are stopped.
    FailureTarget {
        /// Kubernetes' reason.
        #[serde(default)]
        reason: String,
        /// The message of the condition.
        #[serde(default)]
        message: String,
    },
    /// The Job succeeded, and all its pods have ended.
    JobComplete(JobSummary),
    /// The Job failed, and all its pods have ended.
    JobFailed(JobSummary),
    /// The Job is suspended and does not run.
    JobSuspended(JobSummary),
    /// The run was stopped, so no more pods are created.
    JobStopped,
}

/// How a Job ended.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct JobSummary {
    /// Kubernetes' reason.
    pub reason: String,
    /// The message of the condition.
    pub message: String,
    /// Pods that succeeded.
    pub succeeded: usize,
    /// Pods that failed.
    pub failed: usize,
    /// The time from its start to its end.
    pub took_ms: u64,
}

/// Whether the pods of a Job have indexes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum CompletionMode {
    /// The pods have no indexes.
    NonIndexed,
    /// Each pod has a completion index.
    Indexed,
}

impl WorkloadEvent {
    /// The details in the order in which JSON has them.
    pub fn details(&self) -> Map<String, Value> {
        let mut details = super::record::object(self);
        details.shift_remove("event");
        details
    }
}
