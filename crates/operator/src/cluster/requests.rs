//! Carries out the operator's part of a container recreate request.

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use outrigger_lifecycle::Time;
use serde_json::{Value, json};

use super::controllers::Context;
use super::events::Subject;
use super::launch::{patch_status, seconds};
use super::{Error, has_code, now};
use crate::api::{Progress, RecreateState, Request};
use crate::decide::oversee::{OverseeStep, decide, ready_entries, stops_begun};
use crate::names;
use crate::view::ObservedPod;

/// Reconciles a request. Returns when to check again.
pub(crate) async fn reconcile(cx: &Context, request: &Request) -> Result<Option<Time>, Error> {
    let namespace = request.metadata.namespace.clone().unwrap_or_default();
    let pod_name = &request.spec.pod_name;
    let pods: Api<Pod> = Api::namespaced(cx.client.clone(), &namespace);
    let held = cx.store.pod(&format!("{namespace}/{pod_name}"));
    // The store has no pods that use no other feature of the operator. Such a pod is read from the API server
    // while a request for it is open.
    let pod = match (held, request.is_finished()) {
        (Some(view), _) => Some((*view).clone()),
        (None, true) => None,
        // Users can create such a request while the webhook does not answer.
        (None, false) if !outrigger_text::name::is_object_name(pod_name) => None,
        (None, false) => {
            let found = pods.get_opt(pod_name).await.map_err(Error::api(format!("read pod {pod_name}")))?;
            found.and_then(|pod| ObservedPod::always(&pod, now()))
        }
    };
    let agent = cx.store.agent(request.label(names::CRR_NODE).unwrap_or_default());
    let oversight = decide(request, pod.as_ref(), agent, now());
    let api: Api<Request> = Api::namespaced(cx.client.clone(), &namespace);
    if !request.is_finished() {
        tell_stops(cx, request);
    }
    for step in oversight.steps {
        carry_out(cx, &api, request, pod.as_ref(), step).await?;
    }
    Ok(oversight.again)
}

async fn carry_out(
    cx: &Context,
    api: &Api<Request>,
    request: &Request,
    pod: Option<&ObservedPod>,
    step: OverseeStep,
) -> Result<(), Error> {
    let name = request.metadata.name.clone().unwrap_or_default();
    let version = &request.metadata.resource_version;
    match step {
        OverseeStep::Release => {
            let uid = request.label(names::CRR_POD_UID);
            let pods: Api<Pod> =
                Api::namespaced(cx.client.clone(), request.metadata.namespace.as_deref().unwrap_or_default());
            if !outrigger_text::name::is_object_name(&request.spec.pod_name) {
                return Ok(());
            }
            let found = pods.get_opt(&request.spec.pod_name).await.map_err(Error::api("read a pod"))?;
            let view = found.and_then(|pod| ObservedPod::always(&pod, now()));
            match view.filter(|view| Some(view.uid.as_str()) == uid && !view.deleting) {
                Some(view) => set_ready(cx, &view, request, false).await,
                None => Ok(()),
            }
        }
        OverseeStep::Unlock => {
            let left: Vec<&String> =
                request.metadata.finalizers.iter().flatten().filter(|f| *f != names::CRR_UNREADY).collect();
            let patch = json!({"metadata": {"finalizers": left, "resourceVersion": version}});
            write(api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await.map(|_| ()), &name)
        }
        OverseeStep::Deactivate => {
            tell_stops(cx, request);
            tell_verdict(cx, request);
            let patch = json!({"metadata": {"labels": {names::CRR_ACTIVE: Value::Null}}});
            write(api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await.map(|_| ()), &name)
        }
        OverseeStep::Delete => {
            let uid = request.metadata.uid.clone();
            let only = DeleteParams::default().preconditions(Preconditions { uid, resource_version: None });
            write(api.delete(&name, &only).await.map(|_| ()), &name)
        }
        OverseeStep::Lock => {
            let mut finalizers = request.metadata.finalizers.clone().unwrap_or_default();
            finalizers.push(names::CRR_UNREADY.to_owned());
            let patch = json!({"metadata": {"finalizers": finalizers, "resourceVersion": version}});
            write(api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await.map(|_| ()), &name)
        }
        OverseeStep::Acquire => match pod {
            Some(view) => set_ready(cx, view, request, true).await,
            None => Ok(()),
        },
        OverseeStep::Grace { gated } => {
            let message = match gated {
                true => "the pod was made unready".to_owned(),
                false => format!("the pod has no readiness gate {}: it stays ready", names::POD_READY),
            };
            let condition = condition(names::CRR_GRACE, "True", "UnreadyAcquired", &message);
            let conditions = with_condition(request, condition);
            patch_request(api, &name, json!({"conditions": conditions})).await
        }
        OverseeStep::ResultWritten => {
            let condition =
                condition(names::CRR_RESULT_WRITTEN, "True", "PodIsOver", "the pod has its result");
            let conditions = with_condition(request, condition);
            let patch =
                json!({"metadata": {"resourceVersion": version}, "status": {"conditions": conditions}});
            let patch = Patch::Merge(patch);
            write(api.patch_status(&name, &PatchParams::default(), &patch).await.map(|_| ()), &name)
        }
        OverseeStep::Note(message) => {
            let patch = json!({"metadata": {"resourceVersion": version}, "status": {"message": message}});
            let patch = Patch::Merge(patch);
            write(api.patch_status(&name, &PatchParams::default(), &patch).await.map(|_| ()), &name)
        }
        OverseeStep::States(states) => {
            // The patch includes the version, because the agent writes the states as well.
            let patch = json!({"metadata": {"resourceVersion": version}, "status": {"containerRecreateStates": states}});
            let patch = Patch::Merge(patch);
            write(api.patch_status(&name, &PatchParams::default(), &patch).await.map(|_| ()), &name)
        }
        OverseeStep::Snapshot(snapshot) => {
            patch_request(api, &name, json!({"containerStatusSnapshot": snapshot})).await
        }
        OverseeStep::Complete { states, message } => complete(api, request, &states, &message).await,
    }
}

fn pod_of(request: &Request) -> Subject<'_> {
    Subject {
        namespace: request.metadata.namespace.as_deref().unwrap_or_default(),
        name: &request.spec.pod_name,
        uid: request.label(names::CRR_POD_UID).unwrap_or_default(),
    }
}

/// Sends one event for each stop that has begun, as the kubelet and Kruise do.
fn tell_stops(cx: &Context, request: &Request) {
    let name = request.metadata.name.as_deref().unwrap_or_default();
    for container in stops_begun(request) {
        let message = format!("Stopping container {container} by ContainerRecreateRequest {name}");
        cx.events.tell_of(pod_of(request), false, "Killing", &message);
    }
}

/// Sends an event about the result of a request. It tells users that the containers were restarted on purpose
/// and did not crash.
fn tell_verdict(cx: &Context, request: &Request) {
    let done = if request.only_stops() { "stopped" } else { "recreated" };
    let state = |s: &RecreateState| match (s.phase, s.message.as_str()) {
        (Progress::Succeeded, _) => format!("`{}` was {done}", s.name),
        (_, "") => format!("`{}` failed", s.name),
        (_, why) => format!("`{}` failed: {why}", s.name),
    };
    let states = &request.status.container_recreate_states;
    let is_warning = states.iter().any(|s| s.phase != Progress::Succeeded);
    let each: Vec<String> = states.iter().map(state).collect();
    let name = request.metadata.name.as_deref().unwrap_or_default();
    let pod = pod_of(request);
    for state in states.iter().filter(|s| !s.pre_stop_error.is_empty()) {
        let message = format!("the preStop hook of `{}` failed: {}", state.name, state.pre_stop_error);
        cx.events.tell_of(pod, true, "FailedPreStopHook", &message);
    }
    let message = format!("container recreate request {name}: {}", each.join(", "));
    cx.events.tell_of(pod, is_warning, "ContainerRecreateRequest", &message);
}

fn write(result: Result<(), kube::Error>, name: &str) -> Result<(), Error> {
    match result {
        Err(error) if has_code(&error, &[404]) => Ok(()),
        result => result.map_err(Error::api(format!("write container recreate request {name}"))),
    }
}

pub(crate) async fn patch_request(api: &Api<Request>, name: &str, status: Value) -> Result<(), Error> {
    let patch = json!({"status": status});
    write(api.patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await.map(|_| ()), name)
}

fn condition(kind: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": seconds()})
}

fn with_condition(request: &Request, condition: Value) -> Vec<Value> {
    let others = request
        .status
        .conditions
        .iter()
        .filter(|c| c.type_ != condition["type"].as_str().unwrap_or_default());
    let mut all: Vec<Value> = others.filter_map(|c| serde_json::to_value(c).ok()).collect();
    all.push(condition);
    all
}

/// Writes the result of the request and a final state of every container (KD3). It never overwrites an
/// earlier result.
pub(crate) async fn complete(
    api: &Api<Request>,
    request: &Request,
    states: &[RecreateState],
    message: &str,
) -> Result<(), Error> {
    let name = request.metadata.name.clone().unwrap_or_default();
    let failed: Vec<&str> =
        states.iter().filter(|s| s.phase == Progress::Failed).map(|s| s.name.as_str()).collect();
    let condition = match failed.is_empty() && message.is_empty() {
        true => condition(names::CRR_SUCCEEDED, "True", "Done", "every container is done"),
        false => {
            condition(names::CRR_SUCCEEDED, "False", "Failed", &format!("not done: {}", failed.join(", ")))
        }
    };
    let patch = json!({
        "metadata": {"resourceVersion": request.metadata.resource_version},
        "status": {
            "phase": "Completed", "completionTime": seconds(), "message": message,
            "containerRecreateStates": states, "conditions": with_condition(request, condition),
        },
    });
    write(api.patch_status(&name, &PatchParams::default(), &Patch::Merge(patch)).await.map(|_| ()), &name)
}

/// Sets the readiness condition of a new pod (CRR-25): a pod with the gate is ready unless a request makes it
/// unready.
pub(crate) async fn set_first_ready(cx: &Context, view: &ObservedPod) -> Result<(), Error> {
    if !view.ready_unset || view.deleting || view.is_over() {
        return Ok(());
    }
    let gate = json!({"type": names::POD_READY, "status": "True", "lastTransitionTime": seconds()});
    // The patch includes the version, because a request may have set the condition in the meantime.
    let patch = json!({
        "metadata": {"uid": view.uid, "resourceVersion": view.version}, "status": {"conditions": [gate]},
    });
    let pods: Api<Pod> = Api::namespaced(cx.client.clone(), &view.namespace);
    let written = pods.patch_status(&view.name, &PatchParams::default(), &Patch::Strategic(patch)).await;
    written.map(|_| ()).map_err(Error::api(format!("write the readiness of pod {}", view.key())))
}

/// Adds a request's entry to the pod's readiness condition, or removes it (CRR-23, CRR-24).
async fn set_ready(cx: &Context, view: &ObservedPod, request: &Request, present: bool) -> Result<(), Error> {
    let Some(message) = &view.ready_gate else { return Ok(()) };
    let (message, is_ready) = ready_entries(message, request, present);
    let status = if is_ready { "True" } else { "False" };
    let gate = json!({"type": names::POD_READY, "status": status, "message": message, "lastTransitionTime": seconds()});
    let mut conditions = vec![gate];
    if !is_ready {
        // Update the condition now, not when the kubelet syncs next.
        let ready = json!({
            "type": "Ready", "status": "False", "reason": "ReadinessGatesNotReady",
            "message": "a container recreate request makes the pod unready", "lastTransitionTime": seconds(),
        });
        conditions.push(ready);
    }
    patch_status(cx, view, json!({"conditions": conditions})).await
}
