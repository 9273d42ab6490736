//! The container recreate request: v1beta1 of OpenKruise's `apps.kruise.io`, field by field.
//!
//! Two fields are extensions: `strategy.action` (KD4: with `Stop` the container is not expected back) and the
//! id of the container an agent has decided to stop, so that it is stopped only once, even if the agent
//! crashes in between.

use k8s_openapi::api::core::v1::{ContainerPort, LifecycleHandler};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::names;

/// The stored version.
pub const VERSION: &str = "v1beta1";
/// `kind`.
pub const KIND: &str = "ContainerRecreateRequest";
/// The resource's name in paths.
pub const PLURAL: &str = "containerrecreaterequests";

/// A request to recreate, or stop, containers of a pod.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    /// Group and version.
    #[serde(default)]
    pub api_version: String,
    /// Kind.
    #[serde(default)]
    pub kind: String,
    /// Metadata, without the managed fields.
    #[serde(default, deserialize_with = "readable_metadata")]
    pub metadata: ObjectMeta,
    /// The requested change.
    #[serde(default)]
    pub spec: Spec,
    /// The progress.
    #[serde(default)]
    pub status: Status,
}

/// The requested change. Immutable.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Spec {
    /// The pod, in the same namespace.
    pub pod_name: String,
    /// Its containers, in this order.
    pub containers: Vec<Target>,
    /// The strategy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strategy: Option<Strategy>,
    /// The request fails after this long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active_deadline_seconds: Option<i64>,
    /// The request is deleted this long after it is finished.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_seconds_after_finished: Option<i32>,
}

/// One container of a request.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Target {
    /// Its name.
    pub name: String,
    /// Copied from the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pre_stop: Option<LifecycleHandler>,
    /// Copied from the pod, if the hook is an HTTP request.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<ContainerPort>,
    /// The longest time from its stop signal to KILL, if it is shorter than what the request's grace period leaves (KD7).
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
    /// `runtime://id`.
    #[serde(rename = "containerID")]
    pub container_id: String,
    /// How often it was restarted.
    pub restart_count: i32,
}

/// How containers are recreated.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Strategy {
    /// `Fail` or `Ignore`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure_policy: Option<String>,
    /// Wait for each container to succeed before the next one.
    #[serde(skip_serializing_if = "is_false")]
    pub ordered_recreate: bool,
    /// Recreate the container even if it was restarted since the request was created.
    #[serde(skip_serializing_if = "is_false")]
    pub force_recreate: bool,
    /// Time for the preStop hook and the stop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub termination_grace_period_seconds: Option<i64>,
    /// The pod is made unready this long before the stop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unready_grace_period_seconds: Option<i64>,
    /// The new instance must have run for this long.
    #[serde(skip_serializing_if = "is_zero")]
    pub min_started_seconds: i32,
    /// `Recreate`, the default, or `Stop`.
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
    /// Empty, `Pending`, `Recreating`, `Completed`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub phase: String,
    /// When it was finished.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "readable_time")]
    pub completion_time: Option<Time>,
    /// Why it ended this way.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Container by container.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub container_recreate_states: Vec<RecreateState>,
    /// The kubelet's status of the containers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub container_status_snapshot: Vec<Snapshot>,
    /// Conditions.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "readable_conditions")]
    pub conditions: Vec<Condition>,
}

// The API server takes times that no clock can show, such as the last second of the year 9999. A user who may write them must
// not make a request of the operator unreadable: its Job would never end.

fn readable_metadata<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let mut metadata = Value::deserialize(deserializer)?;
    if let Some(metadata) = metadata.as_object_mut() {
        metadata.shift_remove("managedFields");
    }
    serde_json::from_value(metadata).map_err(D::Error::custom)
}

/// A time that cannot be read is none.
fn readable_time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Time>, D::Error> {
    let time = Option::<Value>::deserialize(deserializer)?;
    Ok(time.and_then(|time| serde_json::from_value(time).ok()))
}

/// A condition that cannot be read is left out.
fn readable_conditions<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Condition>, D::Error> {
    let conditions = Option::<Vec<Value>>::deserialize(deserializer)?.unwrap_or_default();
    Ok(conditions.into_iter().filter_map(|condition| serde_json::from_value(condition).ok()).collect())
}

/// The progress of one container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RecreateState {
    /// Its name.
    pub name: String,
    /// The progress.
    pub phase: Progress,
    /// Why.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// It was told to stop.
    #[serde(skip_serializing_if = "is_false")]
    pub is_killed: bool,
    /// The instance that is being stopped: written before the stop.
    #[serde(rename = "killedContainerID", skip_serializing_if = "String::is_empty")]
    pub killed_container_id: String,
    /// The preStop hook of that instance is about to be run: an agent that takes over does not run it again.
    #[serde(skip_serializing_if = "is_false")]
    pub pre_stop_begun: bool,
    /// The hook has run, or was begun by an agent that died.
    #[serde(skip_serializing_if = "is_false")]
    pub pre_stop_done: bool,
    /// Why the hook failed, if it did. The container is stopped all the same (CRR-40).
    #[serde(skip_serializing_if = "String::is_empty")]
    pub pre_stop_error: String,
}

/// The progress of one container. Anything unknown is read as `Pending`: a user who may write the status can write
/// anything there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String")]
pub enum Progress {
    /// Nothing has been done yet.
    #[default]
    Pending,
    /// In progress.
    Recreating,
    /// Done.
    Succeeded,
    /// It has failed.
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
    /// Fails a container that has no result yet, because its request ends (KD3).
    pub fn fail_if_open(&mut self, message: &str) {
        if !self.phase.is_final() {
            (self.phase, self.message) = (Progress::Failed, message.to_owned());
        }
    }
}

impl Progress {
    /// Whether this is a final state.
    pub fn is_final(self) -> bool {
        matches!(self, Progress::Succeeded | Progress::Failed)
    }
}

/// The kubelet's status of a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Snapshot {
    /// Its name.
    pub name: String,
    /// It is ready.
    pub ready: bool,
    /// How often it was restarted.
    pub restart_count: i32,
    /// `runtime://id`.
    #[serde(rename = "containerID")]
    pub container_id: String,
}

impl Request {
    /// The strategy, or the defaults if there is none.
    pub fn strategy(&self) -> Strategy {
        self.spec.strategy.clone().unwrap_or_default()
    }

    /// Containers are stopped, not recreated.
    pub fn only_stops(&self) -> bool {
        self.strategy().action.as_deref() == Some("Stop")
    }

    /// Whether it has a final result.
    pub fn is_finished(&self) -> bool {
        self.status.completion_time.is_some()
    }

    /// A label's value.
    pub fn label(&self, name: &str) -> Option<&str> {
        self.metadata.labels.as_ref()?.get(name).map(String::as_str)
    }

    /// Removes what nothing here reads: users can write a lot into it, and every request of a node is kept in memory.
    pub fn trim(&mut self) {
        self.metadata.owner_references = None;
        if let Some(annotations) = &mut self.metadata.annotations {
            annotations.retain(|name, _| name == names::CRR_RESULT_FIRST);
        }
    }

    /// A condition.
    pub fn condition(&self, kind: &str) -> Option<&Condition> {
        self.status.conditions.iter().find(|c| c.type_ == kind)
    }

    /// Whether its last container may only be stopped after the pod's result is written.
    pub fn is_result_first(&self) -> bool {
        let annotation = self.metadata.annotations.as_ref().and_then(|a| a.get(names::CRR_RESULT_FIRST));
        annotation.is_some_and(|value| value == "true")
    }

    /// The same, and the result has not been reported as written.
    pub fn wants_result(&self) -> bool {
        self.is_result_first() && self.condition(names::CRR_RESULT_WRITTEN).is_none_or(|c| c.status != "True")
    }

    /// When it was created, in milliseconds.
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
