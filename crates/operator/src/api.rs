//! The container recreate request: v1beta1 of OpenKruise's `apps.kruise.io`, field by field.
//!
//! Two fields are extensions. `strategy.action` can be `Stop`: then the container is not expected back (KD4).
//! `killedContainerID` is the instance that the agent has decided to stop. It ensures that the instance is
//! stopped only once, even if the agent crashes in between.

use k8s_openapi::api::core::v1::{ContainerPort, LifecycleHandler};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::names;

/// The stored version.
pub const VERSION: &str = "v1beta1";
/// The `kind` of the request.
pub const KIND: &str = "ContainerRecreateRequest";
/// The plural name of the resource, used in API paths.
pub const PLURAL: &str = "containerrecreaterequests";

/// A request to recreate, or stop, containers of a pod.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    /// The API group and version.
    #[serde(default)]
    pub api_version: String,
    /// The kind: [`KIND`].
    #[serde(default)]
    pub kind: String,
    /// The metadata, without the managed fields.
    #[serde(default, deserialize_with = "readable_metadata")]
    pub metadata: ObjectMeta,
    /// The requested change. It is immutable.
    #[serde(default)]
    pub spec: Spec,
    /// The progress, written by the operator and the agent.
    #[serde(default)]
    pub status: Status,
}

/// The requested change. It is immutable.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Spec {
    /// The name of the pod, in the same namespace.
    pub pod_name: String,
    /// The containers to recreate. With `ordered_recreate`, this is their order.
    pub containers: Vec<Target>,
    /// How to recreate the containers; `None` means the defaults.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strategy: Option<Strategy>,
    /// The time after which an unfinished request fails.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active_deadline_seconds: Option<i64>,
    /// The time after which a finished request is deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_seconds_after_finished: Option<i32>,
}

/// One container of a request.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Target {
    /// The name of the container.
    pub name: String,
    /// The container's preStop hook, copied from the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pre_stop: Option<LifecycleHandler>,
    /// The container's ports, copied from the pod if the hook is an HTTP request.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<ContainerPort>,
    /// The maximum time from the stop signal to KILL. It applies only if it is shorter than the rest of the
    /// request's grace period (KD7).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub termination_grace_period_seconds: Option<i64>,
    /// The instance that existed when the request was created.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status_context: Option<StatusContext>,
}

/// An instance of a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StatusContext {
    /// The id of the instance, as `runtime://id`.
    #[serde(rename = "containerID")]
    pub container_id: String,
    /// How often the container was restarted before this instance.
    pub restart_count: i32,
}

/// How containers are recreated.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Strategy {
    /// `Fail` or `Ignore`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure_policy: Option<String>,
    /// Whether each container must succeed before the next one is stopped.
    #[serde(skip_serializing_if = "is_false")]
    pub ordered_recreate: bool,
    /// Whether to recreate a container that was restarted after the request was created.
    #[serde(skip_serializing_if = "is_false")]
    pub force_recreate: bool,
    /// The time for the preStop hook and the stop together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub termination_grace_period_seconds: Option<i64>,
    /// How long the pod is unready before the stop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unready_grace_period_seconds: Option<i64>,
    /// How long the new instance must have run to count as successful.
    #[serde(skip_serializing_if = "is_zero")]
    pub min_started_seconds: i32,
    /// `Recreate` (the default) or `Stop`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
}

fn is_false(value: &bool) -> bool {
    !*value
}

fn is_zero(value: &i32) -> bool {
    *value == 0
}

/// The progress of a request.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    /// One of empty, `Pending`, `Recreating` and `Completed`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub phase: String,
    /// When the request finished.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "readable_time")]
    pub completion_time: Option<Time>,
    /// Why the request ended this way, or what it waits for.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The progress of each container.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub container_recreate_states: Vec<RecreateState>,
    /// The kubelet's status of the containers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub container_status_snapshot: Vec<Snapshot>,
    /// The conditions of the request, such as its result.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "readable_conditions")]
    pub conditions: Vec<Condition>,
}

// Reads metadata without times that cannot be represented, such as the last second of the year 9999. The API
// server accepts such times. A user must not be able to make a request of the operator unreadable with them,
// because its Job would never end.

fn readable_metadata<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let mut metadata = Value::deserialize(deserializer)?;
    if let Some(metadata) = metadata.as_object_mut() {
        metadata.shift_remove("managedFields");
    }
    serde_json::from_value(metadata).map_err(D::Error::custom)
}

/// Reads a time, or `None` if it is invalid.
fn readable_time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Time>, D::Error> {
    let time = Option::<Value>::deserialize(deserializer)?;
    Ok(time.and_then(|time| serde_json::from_value(time).ok()))
}

/// Reads the conditions, without the invalid ones.
fn readable_conditions<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Condition>, D::Error> {
    let conditions = Option::<Vec<Value>>::deserialize(deserializer)?.unwrap_or_default();
    Ok(conditions.into_iter().filter_map(|condition| serde_json::from_value(condition).ok()).collect())
}

/// The progress of one container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RecreateState {
    /// The name of the container.
    pub name: String,
    /// How far the container is.
    pub phase: Progress,
    /// Why the container is in this phase.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Whether the agent has sent the stop signal.
    #[serde(skip_serializing_if = "is_false")]
    pub is_killed: bool,
    /// The instance that is being stopped. It is written before the stop.
    #[serde(rename = "killedContainerID", skip_serializing_if = "String::is_empty")]
    pub killed_container_id: String,
    /// Whether the preStop hook of that instance was about to start. An agent that takes over does not run it
    /// again.
    #[serde(skip_serializing_if = "is_false")]
    pub pre_stop_begun: bool,
    /// Whether the hook has ended, or the agent that ran it has died.
    #[serde(skip_serializing_if = "is_false")]
    pub pre_stop_done: bool,
    /// The failure of the hook, if it failed. The container is stopped anyway (CRR-40).
    #[serde(skip_serializing_if = "String::is_empty")]
    pub pre_stop_error: String,
}

/// The progress of one container. Unknown values are read as `Pending`, because users who may write the
/// status can write any value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String")]
pub enum Progress {
    /// Nothing has been done yet.
    #[default]
    Pending,
    /// The container is being stopped or restarted.
    Recreating,
    /// The container was recreated or stopped as requested.
    Succeeded,
    /// The container was not recreated or stopped.
    Failed,
}

impl From<String> for Progress {
    fn from(text: String) -> Self {
        match text.as_str() {
            "Recreating" => Progress::Recreating,
            "Succeeded" => Progress::Succeeded,
            "Failed" => Progress::Failed,
            _ => Progress::Pending,
        }
    }
}

impl RecreateState {
    /// Fails a container that has no result yet because its request ends (KD3).
    pub fn fail_if_open(&mut self, message: &str) {
        if !self.phase.is_final() {
            (self.phase, self.message) = (Progress::Failed, message.to_owned());
        }
    }
}

impl Progress {
    /// Whether this is a final state: succeeded or failed.
    pub fn is_final(self) -> bool {
        matches!(self, Progress::Succeeded | Progress::Failed)
    }
}

/// The kubelet's status of a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Snapshot {
    /// The name of the container.
    pub name: String,
    /// Whether the container is ready.
    pub ready: bool,
    /// How often the container was restarted.
    pub restart_count: i32,
    /// The id of the newest instance, as `runtime://id`.
    #[serde(rename = "containerID")]
    pub container_id: String,
}

impl Request {
    /// Returns the strategy, or the defaults if there is none.
    pub fn strategy(&self) -> Strategy {
        self.spec.strategy.clone().unwrap_or_default()
    }

    /// Whether containers are only stopped, not recreated.
    pub fn only_stops(&self) -> bool {
        self.strategy().action.as_deref() == Some("Stop")
    }

    /// Whether the request has a final result.
    pub fn is_finished(&self) -> bool {
        self.status.completion_time.is_some()
    }

    /// The value of a label.
    pub fn label(&self, name: &str) -> Option<&str> {
        self.metadata.labels.as_ref()?.get(name).map(String::as_str)
    }

    /// Removes fields that this program does not read. Users can write a lot into them, and the agent keeps
    /// every request of its node in memory.
    pub fn trim(&mut self) {
        self.metadata.owner_references = None;
        if let Some(annotations) = &mut self.metadata.annotations {
            annotations.retain(|name, _| name == names::CRR_RESULT_FIRST);
        }
    }

    /// The condition of this type.
    pub fn condition(&self, kind: &str) -> Option<&Condition> {
        self.status.conditions.iter().find(|c| c.type_ == kind)
    }

    /// Whether its last container must not be stopped before the pod's result is written.
    pub fn is_result_first(&self) -> bool {
        let annotation = self.metadata.annotations.as_ref().and_then(|a| a.get(names::CRR_RESULT_FIRST));
        annotation.is_some_and(|value| value == "true")
    }

    /// Whether the pod's result must be written before the last container stops, and is not reported as
    /// written yet.
    pub fn wants_result(&self) -> bool {
        self.is_result_first() && self.condition(names::CRR_RESULT_WRITTEN).is_none_or(|c| c.status != "True")
    }

    /// The creation time, in milliseconds.
    pub fn created_ms(&self) -> u64 {
        let created = self.metadata.creation_timestamp.as_ref();
        created.map_or(0, |t| u64::try_from(t.0.as_millisecond()).unwrap_or(0))
    }
}

impl k8s_openapi::Resource for Request {
    const API_VERSION: &'static str = "apps.kruise.io/v1beta1";
    const GROUP: &'static str = crate::names::GROUP;
    const KIND: &'static str = KIND;
    const VERSION: &'static str = VERSION;
    const URL_PATH_SEGMENT: &'static str = PLURAL;
    type Scope = k8s_openapi::NamespaceResourceScope;
}

impl k8s_openapi::Metadata for Request {
    type Ty = ObjectMeta;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
