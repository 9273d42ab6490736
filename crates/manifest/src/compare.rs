//! Compares running manifests with new ones. The result says which objects stay, which are updated in place,
//! and which are replaced and why.

use std::collections::{BTreeMap, BTreeSet};

use outrigger_lifecycle::{Change, Companions, ContainerPlan, Plan, changes};
use serde::Serialize;
use serde_json::Value;

use crate::pod::PodManifest;
use crate::workload::Workload;

/// The most differences listed as the reason for a replacement.
const REASONS_MAX: usize = 100;

/// Fields of a pod's spec that can change while it runs, in addition to the images of its containers.
const CHANGEABLE: [&str; 3] =
    ["terminationGracePeriodSeconds", "activeDeadlineSeconds", "ephemeralContainers"];

/// The objects that a set of manifests describes.
#[derive(Debug, Clone)]
pub struct Objects<'m> {
    /// Pods with their plans, those of workloads included.
    pub pods: Vec<(&'m PodManifest, &'m Plan)>,
    /// The workloads the pods belong to, in the order of [`crate::Origin::workload`].
    pub workloads: &'m [Workload],
    /// The objects that the pods refer to.
    pub companions: &'m Companions,
}

/// A Pod or a workload by its name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// The kind.
    pub kind: &'static str,
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
}

impl ObjectKey {
    /// The key of a workload whose name and namespace are set.
    pub fn of_workload(workload: &Workload) -> Self {
        let metadata = workload.metadata();
        ObjectKey {
            kind: workload.kind(),
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
        }
    }

    /// A unique text for this object: `Pod/default/web`.
    pub fn id(&self) -> String {
        format!("{}/{}/{}", self.kind, self.namespace, self.name)
    }

    /// The form shown to users: `pod/web`.
    pub fn display(&self) -> String {
        format!("{}/{}", self.kind.to_lowercase(), self.name)
    }
}

/// What happens to one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ObjectChange {
    /// It keeps running unchanged.
    Unchanged,
    /// It is updated in place.
    Updated(Vec<Change>),
    /// It gets more or fewer pods. The other pods keep running.
    Scaled {
        /// The number of pods before.
        from: usize,
        /// The number of pods after.
        to: usize,
    },
    /// It is stopped in order. Its replacement is started when it has ended.
    Replaced {
        /// The paths of the differences.
        why: Vec<String>,
    },
    /// It is started.
    New,
    /// It is stopped in order.
    Removed,
}

impl ObjectChange {
    /// The name of the change, for people and programs.
    pub fn name(&self) -> &'static str {
        match self {
            ObjectChange::Unchanged => "unchanged",
            ObjectChange::Updated(_) => "updated",
            ObjectChange::Scaled { .. } => "scaled",
            ObjectChange::Replaced { .. } => "replaced",
            ObjectChange::New => "created",
            ObjectChange::Removed => "removed",
        }
    }
}

/// Compares the running objects with the new ones. Returns the objects of both sides, first the new ones in
/// their order.
pub fn compare(old: &Objects<'_>, new: &Objects<'_>) -> Vec<(ObjectKey, ObjectChange)> {
    let before: BTreeMap<ObjectKey, usize> = old
        .workloads
        .iter()
        .enumerate()
        .map(|(at, workload)| (ObjectKey::of_workload(workload), at))
        .collect();
    let mut out: Vec<(ObjectKey, ObjectChange)> = Vec::new();
    for (at, workload) in new.workloads.iter().enumerate() {
        let key = ObjectKey::of_workload(workload);
        let change = match before.get(&key) {
            Some(&was) => compare_one(old, was, new, at),
            None => ObjectChange::New,
        };
        out.push((key, change));
    }
    let known: BTreeSet<ObjectKey> = out.iter().map(|(key, _)| key.clone()).collect();
    let removed = old.workloads.iter().map(ObjectKey::of_workload).filter(|key| !known.contains(key));
    out.extend(removed.map(|key| (key, ObjectChange::Removed)));
    out
}

/// Compares two objects of the same name.
fn compare_one(old: &Objects<'_>, was: usize, new: &Objects<'_>, is: usize) -> ObjectChange {
    let (was_pod, is_pod) = (first_pod(old, was), first_pod(new, is));
    let (before, after) = (&old.workloads[was], &new.workloads[is]);
    let differ = |fields: Fields| {
        let mut why = Vec::new();
        match (before, after, was_pod, is_pod) {
            (Workload::Pod(_), Workload::Pod(_), Some(was_pod), Some(is_pod)) => {
                differences(&pod_parts(was_pod.0, fields), &pod_parts(is_pod.0, fields), "", &mut why);
            }
            _ => {
                differences(&workload_parts(before, fields), &workload_parts(after, fields), "", &mut why);
            }
        }
        why
    };
    let mut why = differ(Fields::Fixed);
    if let (Some(was_pod), Some(is_pod)) = (was_pod, is_pod) {
        if was_pod.0.input.lifecycle_types != is_pod.0.input.lifecycle_types {
            why.push("spec.containers[].lifecycle.type".to_owned());
        }
        why.extend(changed_companions(old.companions, new.companions, is_pod.0));
    }
    if !why.is_empty() {
        // The replacement also has what could have changed in place.
        let all = differ(Fields::All).into_iter().filter(|path| !why.contains(path));
        let all: Vec<String> = all.collect();
        why.extend(all);
        let more = why.len().saturating_sub(REASONS_MAX);
        why.truncate(REASONS_MAX);
        if more > 0 {
            why.push(format!("{more} more fields changed"));
        }
        return ObjectChange::Replaced { why };
    }
    if !matches!(after, Workload::Pod(_)) {
        let (from, to) = (before.pod_count(), after.pod_count());
        return if from == to { ObjectChange::Unchanged } else { ObjectChange::Scaled { from, to } };
    }
    match (was_pod, is_pod) {
        (Some((_, was)), Some((_, is))) => compare_plans(was, is),
        _ => ObjectChange::Unchanged,
    }
}

/// Compares the plan of a running pod with a new plan. Everything outside the plans must be equal.
pub fn compare_plans(was: &Plan, is: &Plan) -> ObjectChange {
    match changes(was, is) {
        Ok(changes) if changes.is_empty() => ObjectChange::Unchanged,
        Ok(changes) => ObjectChange::Updated(changes),
        Err(e) => ObjectChange::Replaced { why: vec![e.to_string()] },
    }
}

fn first_pod<'m>(objects: &Objects<'m>, workload: usize) -> Option<(&'m PodManifest, &'m Plan)> {
    objects.pods.iter().find(|(pod, _)| pod.origin.workload == workload).copied()
}

/// Which fields of an object are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fields {
    /// Those that cannot change while it is running.
    Fixed,
    /// All.
    All,
}

/// The fields of a pod.
fn pod_parts(pod: &PodManifest, fields: Fields) -> Value {
    let mut value = to_json(&pod.input.pod);
    let Some(spec) = value.get_mut("spec").and_then(Value::as_object_mut) else { return value };
    if fields == Fields::Fixed {
        for field in CHANGEABLE {
            spec.remove(field);
        }
    }
    for list in ["initContainers", "containers"] {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            if let Some(container) = container.as_object_mut() {
                if fields == Fields::Fixed {
                    container.remove("image");
                }
                // The default depends on the image tag. Any other difference shows in the plans.
                container.remove("imagePullPolicy");
            }
        }
    }
    value
}

/// The fields of a workload, without its status. Its replica count is fixed unless it can be scaled.
fn workload_parts(workload: &Workload, fields: Fields) -> Value {
    let mut value = match workload {
        Workload::Pod(object) => to_json(object),
        Workload::Job(object) => to_json(object),
        Workload::CronJob(object) => to_json(object),
        Workload::Deployment(object) => to_json(object),
        Workload::ReplicaSet(object) => to_json(object),
        Workload::StatefulSet(object) => to_json(object),
        Workload::DaemonSet(object) => to_json(object),
    };
    if let Some(object) = value.as_object_mut() {
        object.remove("status");
        let is_scalable =
            matches!(workload, Workload::Deployment(_) | Workload::ReplicaSet(_) | Workload::StatefulSet(_));
        if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut)
            && is_scalable
            && fields == Fields::Fixed
        {
            spec.remove("replicas");
        }
    }
    value
}

fn to_json(object: &impl Serialize) -> Value {
    serde_json::to_value(object).unwrap_or_default()
}

/// The paths of the differences. List entries are matched by their names, if they have names.
fn differences(was: &Value, is: &Value, path: &str, out: &mut Vec<String>) {
    if was == is {
        return;
    }
    match (was, is) {
        (Value::Object(was), Value::Object(is)) => {
            let keys: BTreeSet<&String> = was.keys().chain(is.keys()).collect();
            for key in keys {
                let below = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                differences(
                    was.get(key).unwrap_or(&Value::Null),
                    is.get(key).unwrap_or(&Value::Null),
                    &below,
                    out,
                );
            }
        }
        (Value::Array(was), Value::Array(is)) if was.len() == is.len() => {
            for (at, (was, is)) in was.iter().zip(is).enumerate() {
                let name = |entry: &Value| entry.get("name").and_then(Value::as_str).map(str::to_owned);
                let entry = name(was).filter(|was| name(is).as_ref() == Some(was));
                let entry = entry.unwrap_or_else(|| at.to_string());
                differences(was, is, &format!("{path}[{entry}]"), out);
            }
        }
        _ => out.push(path.to_owned()),
    }
}

/// The ConfigMaps, Secrets and claims of a pod that have changed.
fn changed_companions(old: &Companions, new: &Companions, pod: &PodManifest) -> Vec<String> {
    let namespace = pod.namespace();
    let mut used = BTreeSet::new();
    references(&to_json(&pod.input.pod.spec), &mut used);
    let changed = used.into_iter().filter(|(kind, name)| {
        let key = (namespace.to_owned(), name.clone());
        match *kind {
            "ConfigMap" => old.config_maps.get(&key) != new.config_maps.get(&key),
            "Secret" => old.secrets.get(&key) != new.secrets.get(&key),
            _ => old.persistent_volume_claims.get(&key) != new.persistent_volume_claims.get(&key),
        }
    });
    changed.map(|(kind, name)| format!("{kind}/{name}")).collect()
}

/// The kinds and names of everything a pod's spec refers to.
fn references(value: &Value, out: &mut BTreeSet<(&'static str, String)>) {
    match value {
        Value::Array(entries) => entries.iter().for_each(|entry| references(entry, out)),
        Value::Object(fields) => {
            for (field, below) in fields {
                let (kind, name) = match field.as_str() {
                    "configMap" | "configMapRef" | "configMapKeyRef" => ("ConfigMap", "name"),
                    "secretRef" | "secretKeyRef" => ("Secret", "name"),
                    // Volumes use the field `secretName` for this, but entries of a projected volume do not.
                    "secret" if below.get("secretName").is_some() => ("Secret", "secretName"),
                    "secret" => ("Secret", "name"),
                    "persistentVolumeClaim" => ("PersistentVolumeClaim", "claimName"),
                    "imagePullSecrets" => {
                        let names =
                            below.as_array().into_iter().flatten().filter_map(|s| s.get("name")?.as_str());
                        out.extend(names.map(|name| ("Secret", name.to_owned())));
                        continue;
                    }
                    _ => {
                        references(below, out);
                        continue;
                    }
                };
                if let Some(name) = below.get(name).and_then(Value::as_str) {
                    out.insert((kind, name.to_owned()));
                }
            }
        }
        _ => {}
    }
}

/// Describes a change in one line, for people to read.
pub fn describe(change: &Change, plan: &Plan) -> String {
    let name = |at: usize| plan.containers.get(at).map_or("?", |c: &ContainerPlan| c.name.as_str());
    let seconds = |ms: u64| format!("{} s", ms / 1_000);
    match change {
        Change::Image { container, from, to } => {
            format!("container {} restarts with image {to} (was {from})", name(*container))
        }
        Change::Added { container } => format!("ephemeral container {} is added", name(*container)),
        Change::Grace { from_ms, to_ms } => {
            format!("grace period is {} (was {})", seconds(*to_ms), seconds(*from_ms))
        }
        Change::Deadline { from_ms, to_ms } => {
            let shown = |ms: &Option<u64>| ms.map_or_else(|| "none".to_owned(), seconds);
            format!("deadline is {} (was {})", shown(to_ms), shown(from_ms))
        }
    }
}

#[cfg(test)]
mod tests;
