//! Launches a pod's containers in order: carries out the steps that `decide::barrier` decides.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use outrigger_lifecycle::Time;
use serde_json::{Value, json};

use super::controllers::Context;
use super::store::MapView;
use super::{Error, has_code, now};
use crate::decide::barrier::{BarrierStep, FOREIGN_AGAIN_MS, Map, Memory, decide, map_name};
use crate::decide::explain;
use crate::key::OPEN;
use crate::names;
use crate::view::ObservedPod;

/// Reconciles a pod's barrier. Returns when to check again.
pub(crate) async fn reconcile(
    cx: &Context,
    view: &ObservedPod,
    since: std::time::Instant,
) -> Result<Option<Time>, Error> {
    let Some(name) = map_name(view) else {
        let launch = decide(view, &Map::Missing, Memory::default(), now());
        for step in launch.steps {
            if let BarrierStep::Event { is_warning, reason, message } = step {
                cx.events.tell(view, is_warning, reason, &message);
            }
        }
        return Ok(None);
    };
    let key = view.key();
    let held = cx.store.map(&format!("{}/{name}", view.namespace));
    let map = held.as_ref().map_or(Map::Missing, |held| held.seen_from(view));
    let memory = cx.store.memory(&key);
    let launch = decide(view, &map, memory, now());
    let again = launch.again;
    if map == Map::Foreign {
        // The next reconciliation reads it again.
        cx.store.drop_map(&format!("{}/{name}", view.namespace));
    }
    // Why the ConfigMap cannot be written. Conditions and events are still written, because they explain the
    // problem to the user.
    let mut blocked: Option<Result<Option<Time>, Error>> = None;
    for step in launch.steps {
        if blocked.is_some() && !matches!(step, BarrierStep::Condition { .. } | BarrierStep::Event { .. }) {
            continue;
        }
        match step {
            BarrierStep::Create { map, keys } => {
                blocked = unwritten(create(cx, view, &map, keys.iter()).await, 0);
                if blocked.is_none() {
                    cx.metrics.publish_seconds.observe(since.elapsed().as_secs_f64());
                    tell_opened(cx, view, &keys);
                }
            }
            BarrierStep::Replace { map, keys } => {
                let version = held.as_ref().map(|held| held.version.clone());
                replace(cx, view, &map, keys.iter(), version).await?;
                tell_opened(cx, view, &keys);
            }
            BarrierStep::Publish { map, keys } => {
                let uid = held.as_ref().map(|held| held.uid.clone()).unwrap_or_default();
                blocked = unwritten(publish(cx, view, &map, keys.iter(), &uid).await, FOREIGN_AGAIN_MS);
                if blocked.is_some() {
                    continue;
                }
                cx.metrics.publish_seconds.observe(since.elapsed().as_secs_f64());
                // The previous level took from the publication of its key, or from the pod's start, until
                // now.
                if let Some(before) = memory.published_at.or(view.started) {
                    cx.metrics.level_wait_seconds.observe(now().since(before) as f64 / 1_000.0);
                }
                cx.metrics.keys.inc_by(keys.len() as u64);
                tell_opened(cx, view, &keys);
                cx.store.update_memory(&key, |held| {
                    *held = Memory { published_at: Some(now()), ..Memory::default() };
                });
            }
            BarrierStep::Withdraw { map, keys } => {
                let uid = held.as_ref().map(|held| held.uid.clone()).unwrap_or_default();
                withdraw(cx, view, &map, keys.iter(), &uid).await?;
            }
            BarrierStep::Annotate { completed } => {
                let is_first = completed && !view.completed && memory.completed_at.is_none();
                cx.store.update_memory(&key, |held| {
                    held.wakes = if held.woken_at.is_some() { held.wakes + 1 } else { 0 };
                    held.woken_at = Some(now());
                    held.completed_at = completed.then(now);
                });
                // The wake-up is queued, so that keys of other pods do not wait for it.
                cx.wakes.add(key.clone());
                if is_first {
                    let took = view.started.map_or(0, |started| now().since(started));
                    cx.metrics.launch_seconds.observe(took as f64 / 1_000.0);
                }
            }
            BarrierStep::Fail { message } => fail(cx, view, &message).await?,
            BarrierStep::Condition { is_true, message } => condition(cx, view, is_true, &message).await?,
            BarrierStep::Event { is_warning, reason, message } => {
                if reason == "LaunchTimeout" {
                    cx.metrics.launch_timeouts.inc();
                }
                cx.events.tell(view, is_warning, reason, &message);
            }
        }
    }
    blocked.unwrap_or(Ok(again))
}

/// The result of a reconciliation that could not write the ConfigMap: an error, or a retry after this many
/// milliseconds.
fn unwritten(written: Result<bool, Error>, again_ms: u64) -> Option<Result<Option<Time>, Error>> {
    match written {
        Ok(true) => None,
        Ok(false) => Some(Ok(Some(now() + again_ms))),
        Err(error) => Some(Err(error)),
    }
}

fn tell_opened(cx: &Context, view: &ObservedPod, keys: &BTreeSet<String>) {
    for key in keys {
        // A container that has run before needs the key only for its next restart. Its start did not wait for
        // the key.
        let behind =
            view.barriers().filter(|(i, b)| b.key == *key && !view.observation.containers[*i].was_run);
        let names: Vec<String> = behind.map(|(i, _)| format!("`{}`", view.plan.containers[i].name)).collect();
        if !names.is_empty() {
            let mut message = format!("{} may start", names.join(", "));
            if let Some(next) = explain::next_start(view, keys) {
                message.push_str(&format!("; {next}"));
            }
            cx.events.tell(view, false, "BarrierOpened", &message);
        }
    }
}

fn object<'k>(view: &ObservedPod, map: &str, keys: impl Iterator<Item = &'k String>) -> ConfigMap {
    let owner = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        name: view.name.clone(),
        uid: view.uid.clone(),
        ..Default::default()
    };
    ConfigMap {
        metadata: ObjectMeta {
            name: Some(map.to_owned()),
            namespace: Some(view.namespace.clone()),
            labels: Some([(names::BARRIER_LABEL.to_owned(), OPEN.to_owned())].into()),
            owner_references: Some(vec![owner]),
            ..Default::default()
        },
        data: Some(keys.map(|key| (key.clone(), OPEN.to_owned())).collect()),
        ..Default::default()
    }
}

fn keep(cx: &Context, view: &ObservedPod, map: &ConfigMap) {
    let name = map.metadata.name.as_deref().unwrap_or_default();
    cx.store.set_map(format!("{}/{name}", view.namespace), MapView::new(map));
}

/// Creates the ConfigMap. Returns false if there already was one that the store did not have. The store has
/// it now.
async fn create<'k>(
    cx: &Context,
    view: &ObservedPod,
    map: &str,
    keys: impl Iterator<Item = &'k String>,
) -> Result<bool, Error> {
    let api: Api<ConfigMap> = Api::namespaced(cx.client.clone(), &view.namespace);
    match api.create(&PostParams::default(), &object(view, map, keys)).await {
        Ok(made) => {
            cx.metrics.keys.inc();
            keep(cx, view, &made);
            Ok(true)
        }
        Err(error) if has_code(&error, &[409]) => {
            let found = api.get_opt(map).await.map_err(Error::api("read a barrier"))?;
            if let Some(found) = found {
                keep(cx, view, &found);
            }
            Ok(false)
        }
        Err(error) => {
            if let (true, kube::Error::Api(status)) = (has_code(&error, &[403]), &error) {
                // The cause is a quota, or a namespace that is being deleted (LP-32). The pod's author can
                // fix it.
                let message = format!("the barrier cannot be made, so nothing starts: {}", status.message);
                cx.events.tell(view, true, "BarrierBlocked", &message);
            }
            Err(Error::api(format!("make ConfigMap {map}"))(error))
        }
    }
}

async fn replace<'k>(
    cx: &Context,
    view: &ObservedPod,
    map: &str,
    keys: impl Iterator<Item = &'k String>,
    version: Option<String>,
) -> Result<(), Error> {
    let api: Api<ConfigMap> = Api::namespaced(cx.client.clone(), &view.namespace);
    let mut object = object(view, map, keys);
    object.metadata.resource_version = version;
    let what = format!("replace ConfigMap {map}");
    let made = api.replace(map, &PostParams::default(), &object).await.map_err(Error::api(what))?;
    keep(cx, view, &made);
    Ok(())
}

/// Adds keys to the ConfigMap. Returns false if it cannot be changed.
async fn publish<'k>(
    cx: &Context,
    view: &ObservedPod,
    map: &str,
    keys: impl Iterator<Item = &'k String>,
    uid: &str,
) -> Result<bool, Error> {
    let data: BTreeMap<&str, &str> = keys.map(|key| (key.as_str(), OPEN)).collect();
    // The patch includes the uid, so that it never changes another object of the same name.
    let patch = json!({
        "metadata": {"uid": uid, "labels": {names::BARRIER_LABEL: OPEN}},
        "data": data,
    });
    let api: Api<ConfigMap> = Api::namespaced(cx.client.clone(), &view.namespace);
    match api.patch(map, &PatchParams::default(), &Patch::Merge(patch)).await {
        Ok(made) => {
            keep(cx, view, &made);
            Ok(true)
        }
        Err(error) => {
            if has_code(&error, &[404, 409, 422]) {
                cx.store.drop_map(&format!("{}/{map}", view.namespace));
            }
            if let (true, kube::Error::Api(status)) = (has_code(&error, &[422]), &error) {
                // A user has made the ConfigMap immutable.
                let message = format!(
                    "ConfigMap {map} cannot be written, so nothing more starts; delete it: {}",
                    status.message
                );
                cx.events.tell(view, true, "BarrierBlocked", &message);
                return Ok(false);
            }
            Err(Error::api(format!("publish in ConfigMap {map}"))(error))
        }
    }
}

/// Removes keys from the ConfigMap.
async fn withdraw<'k>(
    cx: &Context,
    view: &ObservedPod,
    map: &str,
    keys: impl Iterator<Item = &'k String>,
    uid: &str,
) -> Result<(), Error> {
    let data: BTreeMap<&str, Value> = keys.map(|key| (key.as_str(), Value::Null)).collect();
    let patch = json!({"metadata": {"uid": uid}, "data": data});
    let api: Api<ConfigMap> = Api::namespaced(cx.client.clone(), &view.namespace);
    let made = api.patch(map, &PatchParams::default(), &Patch::Merge(patch)).await;
    match made {
        Ok(made) => keep(cx, view, &made),
        // The ConfigMap was deleted, or a user has made it immutable. This must not keep a container from
        // ending.
        Err(error) if has_code(&error, &[404, 422]) => {}
        Err(error) => return Err(Error::api(format!("withdraw keys from ConfigMap {map}"))(error)),
    }
    Ok(())
}

/// Writes to a pod, so that its kubelet syncs the pod now and not in ten seconds.
pub(crate) async fn wake(cx: &Context, key: &str) -> Result<(), Error> {
    let Some(view) = cx.store.pod(key).filter(|view| !view.deleting && !view.is_over()) else {
        return Ok(());
    };
    let held = map_name(&view).and_then(|name| cx.store.map(&format!("{}/{name}", view.namespace)));
    let keys = match held.map(|held| held.seen_from(&view)) {
        Some(Map::Ours { keys }) => keys,
        _ => Default::default(),
    };
    let mut annotations = json!({names::BARRIER_OPENED: Timestamp::now().to_string()});
    if view.barriers().all(|(_, barrier)| keys.contains(&barrier.key)) {
        annotations[names::COMPLETED] = json!("true");
    }
    annotate(cx, &view, annotations).await?;
    cx.store.update_memory(key, |held| held.woken_at = Some(now()));
    Ok(())
}

/// Makes the kubelet read the result that was written for a pod, and stop the containers that still run.
pub(crate) async fn wake_for_result(cx: &Context, view: &ObservedPod) -> Result<(), Error> {
    annotate(cx, view, json!({names::RESULT_WRITTEN: Timestamp::now().to_string()})).await
}

async fn annotate(cx: &Context, view: &ObservedPod, annotations: Value) -> Result<(), Error> {
    let patch = json!({"metadata": {"uid": view.uid, "annotations": annotations}});
    let api: Api<Pod> = Api::namespaced(cx.client.clone(), &view.namespace);
    // Request only the metadata, which is smaller.
    api.patch_metadata(&view.name, &PatchParams::default(), &Patch::Merge(patch))
        .await
        .map(|_| ())
        .map_err(Error::api(format!("annotate pod {}", view.key())))
}

/// Writes a part of a pod's status. Conditions are merged by their type.
pub(crate) async fn patch_status(cx: &Context, view: &ObservedPod, status: Value) -> Result<(), Error> {
    let patch = json!({"metadata": {"uid": view.uid}, "status": status});
    let api: Api<Pod> = Api::namespaced(cx.client.clone(), &view.namespace);
    api.patch_status(&view.name, &PatchParams::default(), &Patch::Strategic(patch))
        .await
        .map(|_| ())
        .map_err(Error::api(format!("write the status of pod {}", view.key())))
}

async fn fail(cx: &Context, view: &ObservedPod, message: &str) -> Result<(), Error> {
    cx.events.tell(view, true, "GateNeverOpens", message);
    patch_status(cx, view, json!({"phase": "Failed", "reason": "GateNeverOpens", "message": message}))
        .await?;
    cx.metrics.ended.inc();
    wake_for_result(cx, view).await
}

async fn condition(cx: &Context, view: &ObservedPod, is_true: bool, message: &str) -> Result<(), Error> {
    let mut condition = json!({
        "type": names::LAUNCHED,
        "status": if is_true { "True" } else { "False" },
        "reason": if is_true { "Launched" } else { "LaunchTimeout" },
        "message": message,
    });
    // A new message alone is not a transition.
    if view.launched.as_ref().is_none_or(|(was_true, _)| *was_true != is_true) {
        condition["lastTransitionTime"] = json!(seconds());
    }
    patch_status(cx, view, json!({"conditions": [condition]})).await
}

/// The current time, with the precision of statuses.
pub(crate) fn seconds() -> String {
    let now = Timestamp::now();
    Timestamp::from_second(now.as_second()).unwrap_or(now).to_string()
}
