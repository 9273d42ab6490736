//! Leaves out objects that another object of the same manifest creates. Examples are pods in a status file
//! beside their Job, or in a dump of a cluster beside their Deployment. Running both would do the work twice.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::diagnostic::Diagnostic;
use crate::kruise;
use crate::pod::PodManifest;
use crate::workload::Workload;

/// Removes such objects, with a warning for each owner.
pub(crate) fn leave_out(pods: &mut Vec<PodManifest>, workloads: &mut Vec<Workload>) -> Vec<Diagnostic> {
    let there: BTreeSet<Id> = workloads.iter().map(Id::of_workload).collect();
    let owners: Vec<Option<Id>> = workloads.iter().map(|w| owner(w, &there)).collect();
    if owners.iter().all(Option::is_none) {
        return Vec::new();
    }
    let mut left_out: BTreeMap<(Id, &'static str), usize> = BTreeMap::new();
    for (workload, owner) in workloads.iter().zip(&owners) {
        if let Some(owner) = owner {
            *left_out.entry((owner.clone(), workload.kind())).or_default() += 1;
        }
    }
    let mut kept = 0;
    let places: Vec<Option<usize>> = owners
        .iter()
        .map(|owner| {
            owner.is_none().then(|| {
                kept += 1;
                kept - 1
            })
        })
        .collect();
    pods.retain_mut(|pod| match places[pod.origin.workload] {
        Some(place) => {
            pod.origin.workload = place;
            true
        }
        None => false,
    });
    let mut owners = owners.iter();
    workloads.retain(|_| owners.next().is_some_and(Option::is_none));
    let told = left_out.into_iter().map(|((owner, kind), count)| {
        let several = if count == 1 { "" } else { "s" };
        let text = format!(
            "skipped: {count} {kind}{several} of {}/{}, which creates its pods itself",
            owner.kind, owner.name
        );
        Diagnostic::warning(None, text)
    });
    told.collect()
}

/// The kind, namespace and name of an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Id {
    kind: &'static str,
    namespace: String,
    name: String,
}

impl Id {
    fn of_workload(workload: &Workload) -> Id {
        let metadata = workload.metadata();
        Id {
            kind: workload.kind(),
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
        }
    }
}

/// The object of the manifest that creates this one, directly or indirectly.
fn owner(workload: &Workload, there: &BTreeSet<Id>) -> Option<Id> {
    let metadata = workload.metadata();
    let controller = metadata.owner_references.iter().flatten().find(|o| o.controller == Some(true))?;
    let namespace = metadata.namespace.clone().unwrap_or_default();
    let find = |kind: &str, is: &dyn Fn(&str) -> bool| {
        let of_kind = |id: &Id| id.kind == kind || kruise::is_read_as(kind, id.kind);
        there.iter().find(|id| of_kind(id) && id.namespace == namespace && is(&id.name)).cloned()
    };
    let name = controller.name.as_str();
    // The object between a pod and its Deployment or CronJob is often not in the manifest.
    let between = || match controller.kind.as_str() {
        "ReplicaSet" => {
            let hash = label(metadata, "pod-template-hash")?;
            find("Deployment", &|deployment| name == format!("{deployment}-{hash}"))
        }
        "Job" => find("CronJob", &|cron| name.strip_prefix(cron).is_some_and(|rest| rest.starts_with('-'))),
        _ => None,
    };
    find(&controller.kind, &|owner| owner == name).or_else(between)
}

fn label<'m>(metadata: &'m ObjectMeta, key: &str) -> Option<&'m str> {
    metadata.labels.as_ref()?.get(key).map(String::as_str)
}
