//! Validates a container recreate request and fills in its fields (CRR-7 to CRR-16, KD15, KD16).

use k8s_openapi::api::core::v1::{Container, ContainerStatus, LifecycleHandler, Pod};
use outrigger_lifecycle::{RestartPolicy, Time, rules};
use serde_json::{Value, json};

use super::Refusal;
use super::terminate::{Node, REQUEST_PREFIX};
use crate::api::{Request, StatusContext, Target};
use crate::names;
use crate::view::ObservedPod;

/// The minimum of `activeDeadlineSeconds`.
const DEADLINE_MIN: i64 = 3;
/// The maximum time to wait before a container is stopped and after it was started: a day. Meanwhile the
/// request keeps its pod unready, and later requests wait.
const SECONDS_MAX: i64 = 86_400;
/// The maximum number of containers in a request, which is the maximum of a pod.
const CONTAINERS_MAX: usize = outrigger_lifecycle::CONTAINERS_MAX;

/// The pod and node of a request, as far as they were found.
#[derive(Debug, Clone, Copy)]
pub struct Found<'a> {
    /// The pod, if it exists.
    pub pod: Option<&'a Pod>,
    /// The kind of the pod's node. `None` if the node does not exist.
    pub node: Option<Node>,
}

/// Who writes a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Author {
    /// The operator itself.
    Operator,
    /// Anyone else.
    User,
}

/// Checks the names in a new request. Only the operator may use the names of the sidecar terminator's
/// requests, because another request of that name would take the place of its own.
///
/// # Errors
/// 400 or 403 and a message.
pub fn check_names(object: &Value, author: Author) -> Result<(), Refusal> {
    let pod = object["spec"]["podName"].as_str().unwrap_or_default();
    if !pod.is_empty() && !outrigger_text::name::is_object_name(pod) {
        return Err(Refusal::new(400, format!("spec.podName {pod:?} is not a name of a pod")));
    }
    let begins =
        |field: &str| object["metadata"][field].as_str().is_some_and(|name| name.starts_with(REQUEST_PREFIX));
    if author == Author::User && (begins("name") || begins("generateName")) {
        let message = format!("names that begin with {REQUEST_PREFIX:?} are the operator's; choose another");
        return Err(Refusal::new(403, message));
    }
    Ok(())
}

/// The maximum size of a user's request with all filled-in fields, in bytes. Agents and operator keep every
/// request in memory.
const REQUEST_MAX: usize = 32 << 10;

/// Checks the size of a user's request, both as written and with the filled-in fields. A request that is
/// older than this limit and too large can still be changed.
///
/// # Errors
/// 400 and a message.
pub fn check_size(old: &Value, new: &Value, author: Author) -> Result<(), Refusal> {
    let size = |object: &Value| {
        let of = |part: &str| object["metadata"].get(part).map_or(0, |value| value.to_string().len());
        let metadata: usize =
            ["annotations", "labels", "finalizers", "ownerReferences"].into_iter().map(of).sum();
        metadata + object["spec"].to_string().len()
    };
    let (before, now) = (size(old), size(new));
    if author == Author::Operator || now <= REQUEST_MAX.max(before) {
        return Ok(());
    }
    Err(Refusal::new(
        400,
        format!(
            "the request has {now} bytes, with the preStop hooks of its containers; at most {REQUEST_MAX} are allowed"
        ),
    ))
}

/// Checks a new request and fills it in (CRR-10 to CRR-15).
///
/// # Errors
/// 400 and a message.
pub fn create(object: &Value, found: Found<'_>) -> Result<Value, Refusal> {
    let request = typed(object)?;
    check_fields(&request)?;
    let pod_name = &request.spec.pod_name;
    let bad = |message: String| Refusal::new(400, message);
    let pod = found
        .pod
        .ok_or_else(|| bad(format!("there is no pod {pod_name} in the namespace of the request")))?;
    check_pod(pod)?;
    let spec = pod.spec.as_ref().ok_or_else(|| bad(format!("pod {pod_name} has no spec")))?;
    let node_name = spec.node_name.as_deref().filter(|n| !n.is_empty());
    let node_name = node_name.ok_or_else(|| bad(format!("pod {pod_name} is not on a node yet")))?;
    let node = found.node.ok_or_else(|| bad(format!("there is no node {node_name}")))?;
    let mut out = object.clone();
    let mut labels = vec![
        (names::CRR_ACTIVE, "true"),
        (names::CRR_NODE, node_name),
        (names::CRR_POD_UID, pod.metadata.uid.as_deref().unwrap_or_default()),
    ];
    if node == Node::Virtual {
        labels.push(names::NODE_TYPE);
    }
    for (name, value) in labels {
        set(&mut out, &["metadata", "labels"], name, json!(value));
    }
    let view = ObservedPod::always(pod, Time(0));
    let mut seen = Vec::new();
    for (index, target) in request.spec.containers.iter().enumerate() {
        if seen.contains(&&target.name) {
            return Err(bad(format!("container {:?} is listed twice", target.name)));
        }
        seen.push(&target.name);
        let completed = complete(target, pod)?;
        let ended = view.as_ref().and_then(|view| ended_for_good(view, &target.name));
        if let (Some(policy), false) = (ended, request.only_stops()) {
            return Err(bad(format!(
                "container {:?} has ended, and restartPolicy {policy:?} does not start it again",
                target.name
            )));
        }
        out["spec"]["containers"][index] = serde_json::to_value(completed).unwrap_or_default();
    }
    let strategy = request.strategy();
    if strategy.failure_policy.as_deref().unwrap_or_default().is_empty() {
        set(&mut out, &["spec", "strategy"], "failurePolicy", json!("Fail"));
    }
    if strategy.termination_grace_period_seconds.is_none() {
        let grace = spec.termination_grace_period_seconds.unwrap_or(30).max(0);
        set(&mut out, &["spec", "strategy"], "terminationGracePeriodSeconds", json!(grace));
    }
    Ok(out)
}

/// Warnings for the author of a request about containers that do not start again after the stop.
pub fn warnings(object: &Value, pod: &Pod) -> Vec<String> {
    let (Ok(request), Some(view)) = (typed(object), ObservedPod::always(pod, Time(0))) else {
        return Vec::new();
    };
    let targets = request.spec.containers.iter().filter_map(|target| view.plan.find(&target.name));
    let stays_down = |i: &usize| view.plan.containers[*i].restart.is_never();
    let warning = |i: usize| {
        format!(
            "container `{}` will not be started again: its restartPolicy is Never",
            view.plan.containers[i].name
        )
    };
    match request.only_stops() {
        true => Vec::new(),
        false => targets.filter(stays_down).map(warning).collect(),
    }
}

/// The restart policy of a container that has ended and will not be started again.
fn ended_for_good(view: &ObservedPod, name: &str) -> Option<RestartPolicy> {
    let i = view.plan.find(name)?;
    let plan = &view.plan.containers[i];
    rules::final_exit(plan, &view.observation.containers[i]).map(|_| plan.restart.policy)
}

/// Checks an update of a request. Its spec and its labels never change (CRR-9). Users cannot change what the
/// operator has written into the metadata: another owner or finalizer would make its request ineffective.
/// Returns the request with the fields that were filled in when it was created, because a manifest that is
/// applied again does not have them.
///
/// # Errors
/// 403 and a message.
pub fn update(old: &Value, new: &Value, author: Author) -> Result<Value, Refusal> {
    let forbidden = |message: String| Err(Refusal::new(403, message));
    let spec = |object: &Value| typed(object).map(|request| request.spec);
    let out = filled_in(old, new);
    check_size(old, &out, author)?;
    if spec(old)? != spec(&out)? {
        return forbidden(
            "spec of a container recreate request is immutable; make another request".to_owned(),
        );
    }
    let label = |object: &Value, name: &str| object["metadata"]["labels"].get(name).cloned();
    for name in [names::CRR_POD_UID, names::CRR_NODE] {
        if label(old, name) != label(new, name) {
            return forbidden(format!("label {name} of a container recreate request is immutable"));
        }
    }
    let is_operators = old["metadata"]["name"].as_str().is_some_and(|name| name.starts_with(REQUEST_PREFIX));
    if author == Author::User {
        let annotation =
            |object: &Value| object["metadata"]["annotations"].get(names::CRR_RESULT_FIRST).cloned();
        let finalizers = |object: &Value| -> Vec<Value> {
            let all = object["metadata"]["finalizers"].as_array().into_iter().flatten();
            // These finalizers belong to Kubernetes' garbage collector.
            all.filter(|f| *f != "foregroundDeletion" && *f != "orphan").cloned().collect()
        };
        let is_added = finalizers(new).iter().any(|f| !finalizers(old).contains(f));
        let is_lost = |name: &str| label(old, name).is_some() && label(new, name).is_none();
        // A request without its owners only outlives them. With an owner that does not exist, it is deleted
        // at once.
        let owners = |object: &Value| -> Vec<Value> {
            object["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default()
        };
        let has_new_owner = owners(new).iter().any(|owner| !owners(old).contains(owner));
        let changed = if annotation(old) != annotation(new) {
            format!("annotation {}", names::CRR_RESULT_FIRST)
        } else if is_operators && is_lost(names::CRR_ACTIVE) && !is_done(new) {
            format!("label {}", names::CRR_ACTIVE)
        } else if is_operators && is_added {
            "finalizers".to_owned()
        } else if is_operators && has_new_owner {
            "ownerReferences".to_owned()
        } else {
            String::new()
        };
        if !changed.is_empty() {
            return forbidden(format!(
                "{changed} of this container recreate request may be changed by the operator only"
            ));
        }
    }
    let acquired = |object: &Value| object["metadata"]["annotations"].get(names::CRR_UNREADY).cloned();
    let is_old = |object: &Value| object["apiVersion"].as_str().is_some_and(|v| v.ends_with("/v1alpha1"));
    if is_old(old)
        && acquired(old).is_some_and(|v| v.as_str().is_some_and(|v| !v.is_empty()))
        && acquired(old) != acquired(new)
    {
        return forbidden(format!("annotation {} is immutable once set", names::CRR_UNREADY));
    }
    Ok(out)
}

/// The fields of a container that are filled in from the pod.
const FROM_POD: [&str; 3] = ["preStop", "ports", "statusContext"];

/// Adds the fields that were filled in from the pod to a request that leaves them out.
fn filled_in(old: &Value, new: &Value) -> Value {
    type Object = serde_json::Map<String, Value>;
    let keep = |object: &mut Object, before: &Object, field: &str| {
        if let (None, Some(value)) = (object.get(field), before.get(field)) {
            object.insert(field.to_owned(), value.clone());
        }
    };
    let mut out = new.clone();
    let Some(spec) = out.get_mut("spec").and_then(Value::as_object_mut) else { return out };
    if let Some(before) = old["spec"]["strategy"].as_object() {
        let strategy = spec.entry("strategy").or_insert_with(|| json!({})).as_object_mut();
        if let Some(strategy) = strategy {
            keep(strategy, before, "failurePolicy");
            keep(strategy, before, "terminationGracePeriodSeconds");
        }
    }
    let targets = spec.get_mut("containers").and_then(Value::as_array_mut).into_iter().flatten();
    for target in targets.filter_map(Value::as_object_mut) {
        let mut all = old["spec"]["containers"].as_array().into_iter().flatten().filter_map(Value::as_object);
        let before = all.find(|before| before.get("name") == target.get("name"));
        if let Some(before) = before.filter(|_| FROM_POD.iter().all(|field| !target.contains_key(*field))) {
            FROM_POD.iter().for_each(|field| keep(target, before, field));
        }
    }
    out
}

fn is_done(object: &Value) -> bool {
    object["status"]["completionTime"].is_string()
}

fn typed(object: &Value) -> Result<Request, Refusal> {
    serde_path_to_error::deserialize(object.clone())
        .map_err(|error| Refusal::new(400, format!("the request cannot be read: {error}")))
}

fn check_fields(request: &Request) -> Result<(), Refusal> {
    let (spec, strategy) = (&request.spec, request.strategy());
    let problem = if spec.pod_name.is_empty() {
        "spec.podName must not be empty".to_owned()
    } else if spec.containers.is_empty() {
        "spec.containers must name at least one container".to_owned()
    } else if spec.containers.len() > CONTAINERS_MAX {
        format!("spec.containers has {} entries, more than a pod can have", spec.containers.len())
    } else if spec.active_deadline_seconds.is_some_and(|s| s < DEADLINE_MIN) {
        format!("spec.activeDeadlineSeconds must be at least {DEADLINE_MIN}")
    } else if spec.ttl_seconds_after_finished.is_some_and(|s| s < 0) {
        "spec.ttlSecondsAfterFinished must not be negative".to_owned()
    } else if strategy.termination_grace_period_seconds.is_some_and(|s| s < 0) {
        "spec.strategy.terminationGracePeriodSeconds must not be negative".to_owned()
    } else if request
        .spec
        .containers
        .iter()
        .any(|t| t.termination_grace_period_seconds.is_some_and(|s| s < 0))
    {
        "spec.containers.terminationGracePeriodSeconds must not be negative".to_owned()
    } else if strategy.unready_grace_period_seconds.is_some_and(|s| s < 0) {
        "spec.strategy.unreadyGracePeriodSeconds must not be negative".to_owned()
    } else if strategy.unready_grace_period_seconds.is_some_and(|s| s > SECONDS_MAX) {
        format!("spec.strategy.unreadyGracePeriodSeconds must be at most {SECONDS_MAX}")
    } else if i64::from(strategy.min_started_seconds) > SECONDS_MAX {
        format!("spec.strategy.minStartedSeconds must be at most {SECONDS_MAX}")
    } else if strategy.min_started_seconds < 0 {
        "spec.strategy.minStartedSeconds must not be negative".to_owned()
    } else if !matches!(strategy.failure_policy.as_deref(), None | Some("" | "Fail" | "Ignore")) {
        let policy = strategy.failure_policy.unwrap_or_default();
        format!("spec.strategy.failurePolicy {policy:?} is unknown; write Fail or Ignore")
    } else if !matches!(strategy.action.as_deref(), None | Some("" | "Recreate" | "Stop")) {
        let action = strategy.action.unwrap_or_default();
        format!("spec.strategy.action {action:?} is unknown; write Recreate or Stop")
    } else {
        return Ok(());
    };
    Err(Refusal::new(400, problem))
}

/// CRR-11: a finished pod has no containers to recreate, unless its sidecars are being stopped.
fn check_pod(pod: &Pod) -> Result<(), Refusal> {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let status = pod.status.as_ref();
    let phase = status.and_then(|s| s.phase.as_deref()).unwrap_or_default();
    let ending = status.and_then(|s| s.conditions.as_ref());
    let ending = ending.into_iter().flatten().any(|c| c.type_ == names::SIDECAR_TERMINATED);
    if pod.metadata.deletion_timestamp.is_some() {
        return Err(Refusal::new(400, format!("pod {name} is being deleted")));
    }
    if matches!(phase, "Succeeded" | "Failed") && !ending {
        return Err(Refusal::new(400, format!("pod {name} is over: its phase is {phase}")));
    }
    Ok(())
}

/// Copies the fields that the agent needs from the pod (CRR-13 to CRR-16).
fn complete(target: &Target, pod: &Pod) -> Result<Target, Refusal> {
    let name = &target.name;
    let bad = |message: String| Err(Refusal::new(400, message));
    if target.pre_stop.is_some() || !target.ports.is_empty() || target.status_context.is_some() {
        return bad(format!(
            "preStop, ports and statusContext of container {name:?} are filled in from the pod; leave them out"
        ));
    }
    let spec = pod.spec.as_ref();
    let main = spec.and_then(|s| s.containers.iter().find(|c| c.name == *name));
    let init = spec.and_then(|s| s.init_containers.iter().flatten().find(|c| c.name == *name));
    let Some(container) = main.or(init) else {
        let pod = pod.metadata.name.as_deref().unwrap_or_default();
        return bad(format!("pod {pod} has no container {name:?}"));
    };
    if main.is_none() && container.restart_policy.as_deref() != Some("Always") {
        return bad(format!(
            "{name:?} is an init container; only native sidecars among them can be recreated"
        ));
    }
    let status = pod.status.as_ref();
    let statuses = match main.is_some() {
        true => status.and_then(|s| s.container_statuses.as_deref()),
        false => status.and_then(|s| s.init_container_statuses.as_deref()),
    };
    let status = statuses.unwrap_or_default().iter().find(|s| s.name == *name);
    let Some(context) = status.and_then(context) else {
        return bad(format!("container {name:?} has not been started yet"));
    };
    Ok(Target {
        name: name.clone(),
        pre_stop: pre_stop(container),
        ports: match container.lifecycle.as_ref().and_then(|l| l.pre_stop.as_ref()) {
            Some(LifecycleHandler { http_get: Some(_), .. }) => container.ports.clone().unwrap_or_default(),
            _ => Vec::new(),
        },
        termination_grace_period_seconds: target.termination_grace_period_seconds,
        status_context: Some(context),
    })
}

fn context(status: &ContainerStatus) -> Option<StatusContext> {
    let container_id = status.container_id.clone().filter(|id| !id.is_empty())?;
    Some(StatusContext { container_id, restart_count: status.restart_count })
}

/// The preStop hook, unchanged for every kind of hook (KD15).
fn pre_stop(container: &Container) -> Option<LifecycleHandler> {
    container.lifecycle.as_ref()?.pre_stop.clone()
}

fn set(object: &mut Value, path: &[&str], key: &str, value: Value) {
    let mut place = object;
    for field in path {
        if !place[*field].is_object() {
            place[*field] = json!({});
        }
        place = &mut place[*field];
    }
    place[key] = value;
}
