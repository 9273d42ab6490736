//! Stops the sidecars of a pod whose mains are done, as `decide::terminate` decides.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use outrigger_lifecycle::Time;
use serde_json::{Value, json};

use super::controllers::Context;
use super::launch::{patch_status, seconds, wake_for_result};
use super::{Error, has_code, now};
use crate::api::{Progress, Request, Spec, Strategy, Target};
use crate::decide::serve::needs_result;
use crate::decide::terminate::{
    Past, ResultTime, TerminateStep, attempt_of, decide, delayed_until, ends_by_kubelet, own_grace_seconds,
    request_name,
};
use crate::names;
use crate::view::ObservedPod;

/// How long finished requests of the terminator are kept.
const TTL_SECONDS: i32 = 3_600;
/// A request that is not served by then fails, and the operator ends the pod in another way.
const DEADLINE_SECONDS: i64 = 120;

/// Reconciles a pod's sidecars. Returns when to check again.
pub(crate) async fn reconcile(cx: &Context, view: &ObservedPod) -> Result<Option<Time>, Error> {
    let node = cx.store.node(view.node.as_deref().unwrap_or_default());
    let requests = cx.store.requests_of(&view.namespace, &view.name);
    let past: Vec<Past> = requests.iter().filter_map(|r| past_of(r, &view.uid)).collect();
    let now = now();
    let steps = decide(view, node, &past, now);
    let ends_by_kubelet = ends_by_kubelet(&steps, &past);
    for step in steps {
        match step {
            TerminateStep::Swap(swaps) => swap(cx, view, swaps).await?,
            TerminateStep::Stop { attempt, containers, ordered, result } => {
                stop(cx, view, attempt, containers, ordered, result).await?;
                cx.metrics.terminations.inc();
            }
            TerminateStep::End { phase, message } => {
                let condition = json!({
                    "type": names::SIDECAR_TERMINATED, "status": "True", "reason": "MainsDone",
                    "message": message, "lastTransitionTime": seconds(),
                });
                patch_status(cx, view, json!({"phase": phase, "conditions": [condition]})).await?;
                cx.events.tell(view, false, "SidecarTerminator", &message);
                cx.metrics.ended.inc();
                if ends_by_kubelet {
                    wake_for_result(cx, view).await?;
                }
            }
            TerminateStep::Event { is_warning, message } => {
                cx.events.tell(view, is_warning, "SidecarTerminator", &message)
            }
        }
    }
    Ok(delayed_until(view).filter(|at| now < *at))
}

/// Summarises a request, if it is one of the terminator's for the pod.
pub(crate) fn past_of(request: &Request, uid: &str) -> Option<Past> {
    let attempt = attempt_of(request.metadata.name.as_deref()?, uid)?;
    let states = &request.status.container_recreate_states;
    let done = states.iter().filter(|s| s.phase == Progress::Succeeded);
    let stopped = done.filter_map(|state| {
        let target = request.spec.containers.iter().find(|t| t.name == state.name)?;
        let id = &target.status_context.as_ref()?.container_id;
        let id = match (id.split_once("://"), state.killed_container_id.as_str()) {
            (Some((runtime, _)), killed) if !killed.is_empty() => format!("{runtime}://{killed}"),
            _ => id.clone(),
        };
        Some((state.name.clone(), id))
    });
    let stopped: Vec<(String, String)> = stopped.collect();
    let targets = request.spec.containers.iter();
    let targets =
        targets.filter_map(|t| Some((t.name.clone(), t.status_context.as_ref()?.container_id.clone())));
    // This includes a request that an agent began and never finished, because a retry would take as long.
    let unserved = request.is_finished() && stopped.is_empty();
    // Agents do not serve a request that is being deleted, even if the deletion takes long. They serve the
    // next one.
    let finished = request.is_finished() || request.metadata.deletion_timestamp.is_some();
    let needs_result = needs_result(request);
    let targets = targets.collect();
    Some(Past { attempt, finished, unserved, targets, stopped, needs_result })
}

async fn swap(cx: &Context, view: &ObservedPod, swaps: Vec<(usize, String, String)>) -> Result<(), Error> {
    // The patch tests the name, so that it never replaces the image of another container.
    let operations: Vec<Value> = swaps
        .iter()
        .flat_map(|(index, name, image)| {
            let path = format!("/spec/containers/{index}");
            [
                json!({"op": "test", "path": format!("{path}/name"), "value": name}),
                json!({"op": "replace", "path": format!("{path}/image"), "value": image}),
            ]
        })
        .collect();
    let operations: json_patch::Patch = serde_json::from_value(Value::Array(operations)).unwrap_or_default();
    let api: Api<Pod> = Api::namespaced(cx.client.clone(), &view.namespace);
    let swapped = api.patch(&view.name, &PatchParams::default(), &Patch::Json::<()>(operations)).await;
    if let Err(kube::Error::Api(status)) = &swapped
        && status.code == 422
    {
        let message = format!("the images of sidecars cannot be replaced: {}", status.message);
        cx.events.tell(view, true, "SidecarTerminator", &message);
    }
    swapped.map(|_| ()).map_err(Error::api(format!("replace images of pod {}", view.key())))
}

async fn stop(
    cx: &Context,
    view: &ObservedPod,
    attempt: u32,
    containers: Vec<String>,
    ordered: bool,
    result: ResultTime,
) -> Result<(), Error> {
    let owner = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        name: view.name.clone(),
        uid: view.uid.clone(),
        controller: Some(true),
        block_owner_deletion: None,
    };
    let count = i64::try_from(containers.len()).unwrap_or(1);
    let target = |name: String| Target {
        termination_grace_period_seconds: own_grace_seconds(view, &name),
        name,
        ..Default::default()
    };
    let request = Request {
        api_version: "apps.kruise.io/v1beta1".to_owned(),
        kind: crate::api::KIND.to_owned(),
        metadata: ObjectMeta {
            name: Some(request_name(&view.uid, attempt)),
            namespace: Some(view.namespace.clone()),
            owner_references: Some(vec![owner]),
            annotations: (result == ResultTime::BeforeLastStop)
                .then(|| [(names::CRR_RESULT_FIRST.to_owned(), "true".to_owned())].into()),
            ..Default::default()
        },
        spec: Spec {
            pod_name: view.name.clone(),
            containers: containers.into_iter().map(target).collect(),
            strategy: Some(Strategy {
                failure_policy: Some("Ignore".to_owned()),
                ordered_recreate: ordered,
                force_recreate: true,
                action: Some("Stop".to_owned()),
                ..Default::default()
            }),
            active_deadline_seconds: Some(
                DEADLINE_SECONDS.saturating_add(view.grace_seconds.max(0).saturating_mul(count)),
            ),
            ttl_seconds_after_finished: Some(TTL_SECONDS),
        },
        ..Default::default()
    };
    let api: Api<Request> = Api::namespaced(cx.client.clone(), &view.namespace);
    match api.create(&PostParams::default(), &request).await {
        Ok(made) => {
            // Store it at once, so that the next reconciliation does not create another one.
            cx.store.set_request(format!("{}/{}", view.namespace, request_name(&view.uid, attempt)), made);
            Ok(())
        }
        Err(error) if has_code(&error, &[409]) => Ok(()),
        Err(error) => Err(Error::api(format!("ask for the sidecars of {} to be stopped", view.key()))(error)),
    }
}
