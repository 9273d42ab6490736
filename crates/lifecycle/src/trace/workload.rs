//! What can happen to a Job or to a workload that keeps its pods.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// One thing that happened to a workload as a whole. Names and order are those of the JSON, as in
/// [`super::TraceEvent`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum WorkloadEvent {
    /// A Job begins.
    JobStarted {
        /// Successes it wants; `None` for a work queue.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        completions: Option<u32>,
        /// Pods at a time.
        #[serde(default)]
        parallelism: u32,
        /// Whether its pods have indexes.
        mode: CompletionMode,
    },
    /// A workload that keeps pods running begins.
    WorkloadStarted {
        /// How many it keeps.
        #[serde(default)]
        replicas: u32,
    },
    /// A pod was made.
    PodCreated {
        /// Its name.
        pod: String,
        /// Completion index of an Indexed Job, ordinal of a StatefulSet.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        index: Option<u32>,
        /// How many pods it replaces.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        attempt: Option<u32>,
    },
    /// The next pod of a StatefulSet waits for another.
    PodWaiting {
        /// Its name.
        pod: String,
        /// The one that must be ready first.
        on: String,
    },
    /// A pod was told to go.
    PodDeleted {
        /// Its name.
        pod: String,
    },
    /// The next pod is made later, after a failure.
    JobBackOff {
        /// How much later.
        #[serde(default)]
        wait_ms: u64,
    },
    /// The Job will have succeeded: pods that still run are ended.
    SuccessCriteriaMet {
        /// Kubernetes' word.
        #[serde(default)]
        reason: String,
        /// Why.
        #[serde(default)]
        message: String,
    },
    /// The Job will have failed: pods that still run are ended.
    FailureTarget {
        /// Kubernetes' word.
        #[serde(default)]
        reason: String,
        /// Why.
        #[serde(default)]
        message: String,
    },
    /// The Job succeeded and no pod is left.
    JobComplete(JobSummary),
    /// The Job failed and no pod is left.
    JobFailed(JobSummary),
    /// The Job is not to be run.
    JobSuspended(JobSummary),
    /// The run was stopped: no more pods are made.
    JobStopped,
}

/// How a Job ended.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct JobSummary {
    /// Kubernetes' word.
    pub reason: String,
    /// Why.
    pub message: String,
    /// Pods that succeeded.
    pub succeeded: usize,
    /// Pods that failed.
    pub failed: usize,
    /// From its start to its end.
    pub took_ms: u64,
}

/// Whether the pods of a Job have indexes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum CompletionMode {
    /// They are all alike.
    NonIndexed,
    /// Each has an index of its own.
    Indexed,
}

impl WorkloadEvent {
    /// The details as they stand in JSON, in their order.
    pub fn details(&self) -> Map<String, Value> {
        let mut details = super::record::object(self);
        details.shift_remove("event");
        details
    }
}
