//! Workloads to pods: the part of Kubernetes' controllers that stamps pods out of templates.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::batch::v1::{CronJob, Job, JobSpec};
use k8s_openapi::api::core::v1::{
    EnvVar, EnvVarSource, ObjectFieldSelector, PersistentVolumeClaim, PersistentVolumeClaimVolumeSource, Pod,
    PodTemplateSpec, Volume,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference};
use outrigger_lifecycle::FieldPath;

use crate::names;

/// Where an Indexed Job's pod reads its index.
const COMPLETION_INDEX: &str = "batch.kubernetes.io/job-completion-index";

/// An object that pods come out of, as the user wrote it.
#[derive(Debug, Clone, PartialEq)]
pub enum Workload {
    /// `v1` Pod
    Pod(Box<Pod>),
    /// `batch/v1` Job
    Job(Box<Job>),
    /// `batch/v1` CronJob; its job template is run once.
    CronJob(Box<CronJob>),
    /// `apps/v1` Deployment
    Deployment(Box<Deployment>),
    /// `apps/v1` ReplicaSet
    ReplicaSet(Box<ReplicaSet>),
    /// `apps/v1` StatefulSet
    StatefulSet(Box<StatefulSet>),
    /// `apps/v1` DaemonSet; this machine is its one node.
    DaemonSet(Box<DaemonSet>),
}

/// Who owns the pods of a workload.
pub(crate) struct Owner {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// The pods of a workload, and claims its StatefulSet makes for them.
#[derive(Debug, Default)]
pub(crate) struct Expansion {
    pub(crate) pods: Vec<Pod>,
    pub(crate) claims: Vec<PersistentVolumeClaim>,
}

impl Workload {
    /// The kind.
    pub fn kind(&self) -> &'static str {
        match self {
            Workload::Pod(_) => "Pod",
            Workload::Job(_) => "Job",
            Workload::CronJob(_) => "CronJob",
            Workload::Deployment(_) => "Deployment",
            Workload::ReplicaSet(_) => "ReplicaSet",
            Workload::StatefulSet(_) => "StatefulSet",
            Workload::DaemonSet(_) => "DaemonSet",
        }
    }

    /// The apiVersion.
    pub fn api_version(&self) -> &'static str {
        match self {
            Workload::Pod(_) => "v1",
            Workload::Job(_) | Workload::CronJob(_) => "batch/v1",
            _ => "apps/v1",
        }
    }

    /// The object's metadata.
    pub fn metadata(&self) -> &ObjectMeta {
        match self {
            Workload::Pod(object) => &object.metadata,
            Workload::Job(object) => &object.metadata,
            Workload::CronJob(object) => &object.metadata,
            Workload::Deployment(object) => &object.metadata,
            Workload::ReplicaSet(object) => &object.metadata,
            Workload::StatefulSet(object) => &object.metadata,
            Workload::DaemonSet(object) => &object.metadata,
        }
    }

    /// The object's metadata, to fill in what is missing.
    pub(crate) fn metadata_mut(&mut self) -> &mut ObjectMeta {
        match self {
            Workload::Pod(object) => &mut object.metadata,
            Workload::Job(object) => &mut object.metadata,
            Workload::CronJob(object) => &mut object.metadata,
            Workload::Deployment(object) => &mut object.metadata,
            Workload::ReplicaSet(object) => &mut object.metadata,
            Workload::StatefulSet(object) => &mut object.metadata,
            Workload::DaemonSet(object) => &mut object.metadata,
        }
    }

    /// The Job of a Job, or the one a CronJob would make.
    pub fn job_spec(&self) -> Option<&JobSpec> {
        match self {
            Workload::Job(job) => job.spec.as_ref(),
            Workload::CronJob(cron) => cron.spec.job_template.spec.as_ref(),
            _ => None,
        }
    }

    /// The way from the object to its pod: empty for a Pod.
    pub fn template_path(&self) -> FieldPath {
        match self {
            Workload::Pod(_) => FieldPath::root(),
            Workload::CronJob(_) => FieldPath::spec("jobTemplate").field("spec").field("template"),
            _ => FieldPath::spec("template"),
        }
    }

    /// The field that says how many pods there are, if it was written.
    pub(crate) fn count_path(&self) -> FieldPath {
        match self {
            Workload::Job(_) => FieldPath::spec("parallelism"),
            Workload::CronJob(_) => FieldPath::spec("jobTemplate").field("spec").field("parallelism"),
            _ => FieldPath::spec("replicas"),
        }
    }

    /// How many pods run at once.
    pub fn pod_count(&self) -> usize {
        let count = match self {
            Workload::Pod(_) | Workload::DaemonSet(_) => 1,
            Workload::Job(_) | Workload::CronJob(_) => {
                let spec = self.job_spec();
                let parallelism = spec.and_then(|spec| spec.parallelism).unwrap_or(1);
                spec.and_then(|spec| spec.completions).map_or(parallelism, |c| c.min(parallelism))
            }
            Workload::Deployment(object) => object.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1),
            Workload::ReplicaSet(object) => object.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1),
            Workload::StatefulSet(object) => object.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1),
        };
        usize::try_from(count).unwrap_or(0)
    }

    /// The label selector and the labels of the template it must match.
    pub(crate) fn selector(&self) -> Option<(&LabelSelector, Option<&BTreeMap<String, String>>)> {
        fn labels(template: &PodTemplateSpec) -> Option<&BTreeMap<String, String>> {
            template.metadata.as_ref()?.labels.as_ref()
        }
        match self {
            Workload::Deployment(object) => {
                object.spec.as_ref().map(|spec| (&spec.selector, labels(&spec.template)))
            }
            Workload::StatefulSet(object) => {
                object.spec.as_ref().map(|spec| (&spec.selector, labels(&spec.template)))
            }
            Workload::DaemonSet(object) => {
                object.spec.as_ref().map(|spec| (&spec.selector, labels(&spec.template)))
            }
            Workload::ReplicaSet(object) => {
                object.spec.as_ref().map(|spec| (&spec.selector, spec.template.as_ref().and_then(labels)))
            }
            _ => None,
        }
    }

    /// Stamps the pods out. The owner's name and namespace have been settled.
    pub(crate) fn expand(&self, owner: &Owner) -> Expansion {
        let count = self.pod_count();
        match self {
            Workload::Pod(pod) => {
                let mut pod = (**pod).clone();
                pod.metadata.name = Some(owner.name.clone());
                settle(&mut pod.metadata, &owner.namespace);
                Expansion { pods: vec![pod], claims: Vec::new() }
            }
            Workload::Job(job) => job.spec.as_ref().map(|s| job_pods(s, owner, count)).unwrap_or_default(),
            Workload::CronJob(_) => {
                // Kubernetes puts the minute of the run here; a run by hand has none.
                let name = names::join(&owner.name, "-manual");
                let owner = Owner { name, namespace: owner.namespace.clone() };
                self.job_spec().map(|spec| job_pods(spec, &owner, count)).unwrap_or_default()
            }
            Workload::Deployment(object) => {
                let template = object.spec.as_ref().map(|spec| &spec.template);
                deployment_pods(template, owner, count)
            }
            Workload::ReplicaSet(object) => {
                let template = object.spec.as_ref().and_then(|spec| spec.template.as_ref());
                let stamp = Stamp { owner, kind: "ReplicaSet", api_version: "apps/v1" };
                stamp.many(template, count, &BTreeMap::new())
            }
            Workload::DaemonSet(object) => {
                let template = object.spec.as_ref().map(|spec| &spec.template);
                let labels = label("controller-revision-hash", names::suffix(10, &["revision", &owner.name]));
                Stamp { owner, kind: "DaemonSet", api_version: "apps/v1" }.many(template, count, &labels)
            }
            Workload::StatefulSet(object) => stateful_set_pods(object, owner, count),
        }
    }
}

/// How a controller stamps pods.
struct Stamp<'o> {
    owner: &'o Owner,
    kind: &'static str,
    api_version: &'static str,
}

impl Stamp<'_> {
    /// `count` pods named after the owner with a suffix each.
    fn many(
        &self,
        template: Option<&PodTemplateSpec>,
        count: usize,
        labels: &BTreeMap<String, String>,
    ) -> Expansion {
        let Some(template) = template else {
            return Expansion::default();
        };
        let pods = (0..count).map(|index| self.one(template, self.name(index), labels)).collect();
        Expansion { pods, claims: Vec::new() }
    }

    fn name(&self, index: usize) -> String {
        let owner = self.owner;
        let suffix = names::suffix(5, &[self.kind, &owner.namespace, &owner.name, &index.to_string()]);
        names::join(&owner.name, &format!("-{suffix}"))
    }

    fn one(&self, template: &PodTemplateSpec, name: String, labels: &BTreeMap<String, String>) -> Pod {
        let mut metadata = template.metadata.clone().unwrap_or_default();
        metadata.generate_name = Some(format!("{}-", self.owner.name));
        metadata.name = Some(name);
        metadata.namespace = Some(self.owner.namespace.clone());
        if !labels.is_empty() {
            metadata.labels.get_or_insert_default().extend(labels.clone());
        }
        metadata.owner_references = Some(vec![OwnerReference {
            api_version: self.api_version.to_owned(),
            kind: self.kind.to_owned(),
            name: self.owner.name.clone(),
            uid: names::uid(&self.owner.namespace, self.kind, &self.owner.name),
            controller: Some(true),
            block_owner_deletion: Some(true),
        }]);
        settle(&mut metadata, &self.owner.namespace);
        Pod { metadata, spec: template.spec.clone(), status: None }
    }
}

/// Gives a pod its namespace and uid.
fn settle(metadata: &mut ObjectMeta, namespace: &str) {
    metadata.namespace = Some(namespace.to_owned());
    let name = metadata.name.clone().unwrap_or_default();
    metadata.uid.get_or_insert_with(|| names::uid(namespace, "Pod", &name));
}

fn label(key: &str, value: String) -> BTreeMap<String, String> {
    BTreeMap::from([(key.to_owned(), value)])
}

fn job_pods(spec: &JobSpec, owner: &Owner, count: usize) -> Expansion {
    let uid = names::uid(&owner.namespace, "Job", &owner.name);
    let labels = BTreeMap::from([
        ("batch.kubernetes.io/job-name".to_owned(), owner.name.clone()),
        ("job-name".to_owned(), owner.name.clone()),
        ("batch.kubernetes.io/controller-uid".to_owned(), uid.clone()),
        ("controller-uid".to_owned(), uid),
    ]);
    let stamp = Stamp { owner, kind: "Job", api_version: "batch/v1" };
    let mut expansion = stamp.many(Some(&spec.template), count, &labels);
    if spec.completion_mode.as_deref() == Some("Indexed") {
        for (index, pod) in expansion.pods.iter_mut().enumerate() {
            indexed(pod, owner, index);
        }
    }
    expansion
}

/// An Indexed Job tells each pod its index: by name, host name, label, annotation and environment.
fn indexed(pod: &mut Pod, owner: &Owner, index: usize) {
    let suffix = names::suffix(5, &["Indexed", &owner.namespace, &owner.name, &index.to_string()]);
    let metadata = &mut pod.metadata;
    metadata.name = Some(names::join(&owner.name, &format!("-{index}-{suffix}")));
    metadata.uid = None;
    settle(metadata, &owner.namespace);
    metadata.labels.get_or_insert_default().insert(COMPLETION_INDEX.to_owned(), index.to_string());
    metadata.annotations.get_or_insert_default().insert(COMPLETION_INDEX.to_owned(), index.to_string());
    let Some(spec) = &mut pod.spec else { return };
    spec.hostname.get_or_insert_with(|| names::join(&owner.name, &format!("-{index}")));
    let field = ObjectFieldSelector {
        api_version: Some("v1".to_owned()),
        field_path: format!("metadata.labels['{COMPLETION_INDEX}']"),
    };
    let var = EnvVar {
        name: "JOB_COMPLETION_INDEX".to_owned(),
        value_from: Some(EnvVarSource { field_ref: Some(field), ..EnvVarSource::default() }),
        ..EnvVar::default()
    };
    for container in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
        let env = container.env.get_or_insert_default();
        if env.iter().all(|v| v.name != var.name) {
            env.push(var.clone());
        }
    }
}

fn deployment_pods(template: Option<&PodTemplateSpec>, owner: &Owner, count: usize) -> Expansion {
    let Some(template) = template else {
        return Expansion::default();
    };
    // The hash stands for this version of the template, as with a real ReplicaSet.
    let text = serde_json::to_string(template).unwrap_or_default();
    let hash = names::suffix(10, &["template", &text]);
    let owner =
        Owner { name: names::join(&owner.name, &format!("-{hash}")), namespace: owner.namespace.clone() };
    let stamp = Stamp { owner: &owner, kind: "ReplicaSet", api_version: "apps/v1" };
    stamp.many(Some(template), count, &label("pod-template-hash", hash))
}

fn stateful_set_pods(object: &StatefulSet, owner: &Owner, count: usize) -> Expansion {
    let Some(spec) = &object.spec else {
        return Expansion::default();
    };
    let stamp = Stamp { owner, kind: "StatefulSet", api_version: "apps/v1" };
    let first = spec.ordinals.as_ref().and_then(|ordinals| ordinals.start).unwrap_or(0).max(0) as usize;
    let revision = names::join(&owner.name, &format!("-{}", names::suffix(10, &["revision", &owner.name])));
    let mut expansion = Expansion::default();
    for ordinal in first..first + count {
        let name = format!("{}-{ordinal}", owner.name);
        let labels = BTreeMap::from([
            ("statefulset.kubernetes.io/pod-name".to_owned(), name.clone()),
            ("apps.kubernetes.io/pod-index".to_owned(), ordinal.to_string()),
            ("controller-revision-hash".to_owned(), revision.clone()),
        ]);
        let mut pod = stamp.one(&spec.template, name.clone(), &labels);
        if let Some(pod_spec) = &mut pod.spec {
            pod_spec.hostname = Some(name.clone());
            pod_spec.subdomain = spec.service_name.clone();
            for template in spec.volume_claim_templates.iter().flatten() {
                let volume_name = template.metadata.name.clone().unwrap_or_default();
                let mut claim = template.clone();
                let claim_name = format!("{volume_name}-{name}");
                claim.metadata.name = Some(claim_name.clone());
                claim.metadata.namespace = Some(owner.namespace.clone());
                expansion.claims.push(claim);
                // A claim takes the place of a volume of the same name.
                let volumes = pod_spec.volumes.get_or_insert_default();
                volumes.retain(|volume| volume.name != volume_name);
                volumes.push(Volume {
                    name: volume_name,
                    persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                        claim_name,
                        read_only: None,
                    }),
                    ..Volume::default()
                });
            }
        }
        expansion.pods.push(pod);
    }
    expansion
}
