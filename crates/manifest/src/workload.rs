//! Creates the pods of workloads, like the part of Kubernetes' controllers that creates pods from templates.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet, StatefulSetSpec};
use k8s_openapi::api::batch::v1::{CronJob, Job, JobSpec};
use k8s_openapi::api::core::v1::{
    EnvVar, EnvVarSource, ObjectFieldSelector, PersistentVolumeClaim, PersistentVolumeClaimVolumeSource, Pod,
    PodTemplateSpec, Volume,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference};
use outrigger_lifecycle::FieldPath;

use crate::defaults::apply_defaults;
use crate::names;
use crate::pod::PodManifest;

/// The annotation with the index of an Indexed Job's pod.
const COMPLETION_INDEX: &str = "batch.kubernetes.io/job-completion-index";

/// An object that creates pods, as the user wrote it.
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
    /// `apps/v1` DaemonSet; this machine is its only node.
    DaemonSet(Box<DaemonSet>),
}

/// The owner of a workload's pods.
pub(crate) struct Owner {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// The pods of a workload, and the claims a StatefulSet creates for them.
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

    /// Changes the number of pods, if the object has such a field.
    pub(crate) fn set_replicas(&mut self, replicas: u32) {
        let replicas = Some(i32::try_from(replicas).unwrap_or(i32::MAX));
        match self {
            Workload::Deployment(object) => {
                object.spec.iter_mut().for_each(|spec| spec.replicas = replicas);
            }
            Workload::ReplicaSet(object) => {
                object.spec.iter_mut().for_each(|spec| spec.replicas = replicas);
            }
            Workload::StatefulSet(object) => {
                object.spec.iter_mut().for_each(|spec| spec.replicas = replicas);
            }
            _ => {}
        }
    }

    /// The spec of a Job, or of the Job a CronJob would create.
    pub fn job_spec(&self) -> Option<&JobSpec> {
        match self {
            Workload::Job(job) => job.spec.as_ref(),
            Workload::CronJob(cron) => cron.spec.job_template.spec.as_ref(),
            _ => None,
        }
    }

    /// The path from the object to its pod: empty for a Pod.
    pub fn template_path(&self) -> FieldPath {
        match self {
            Workload::Pod(_) => FieldPath::root(),
            Workload::CronJob(_) => FieldPath::spec("jobTemplate").field("spec").field("template"),
            _ => FieldPath::spec("template"),
        }
    }

    /// The path of the field with the number of pods, if it was written.
    pub(crate) fn count_path(&self) -> FieldPath {
        match self {
            Workload::Job(_) => FieldPath::spec("parallelism"),
            Workload::CronJob(_) => FieldPath::spec("jobTemplate").field("spec").field("parallelism"),
            _ => FieldPath::spec("replicas"),
        }
    }

    /// The number of pods that run at once.
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

    /// The Job itself, or the one that a manual run of a CronJob creates.
    pub fn job(&self) -> Option<Job> {
        match self {
            Workload::Job(job) => {
                let mut job = (**job).clone();
                let (namespace, name) = (owner_of(&job.metadata), job.metadata.name.as_deref());
                job.metadata.uid = Some(names::uid(&namespace.namespace, "Job", name.unwrap_or_default()));
                Some(job)
            }
            Workload::CronJob(cron) => {
                let template = &cron.spec.job_template;
                let mut metadata = template.metadata.clone().unwrap_or_default();
                let by_hand = ("cronjob.kubernetes.io/instantiate".to_owned(), "manual".to_owned());
                metadata.annotations.get_or_insert_default().extend([by_hand]);
                let owner = owner_of(&cron.metadata);
                let job = owner.by_hand();
                metadata.uid = Some(names::uid(&job.namespace, "Job", &job.name));
                metadata.owner_references = Some(vec![owner.reference("batch/v1", "CronJob")]);
                (metadata.name, metadata.namespace) = (Some(job.name), Some(job.namespace));
                Some(Job { metadata, spec: template.spec.clone(), status: None })
            }
            _ => None,
        }
    }

    /// Creates one more pod of this workload. `like` is any of its pods, `nth` its index, and `attempt` the
    /// number of pods that had this index before.
    pub fn stamp(&self, like: &PodManifest, nth: usize, attempt: u32) -> PodManifest {
        let mut made = like.clone();
        let owner = owner_of(self.metadata());
        if let Some(pod) = self.pod(&owner, nth, attempt).0 {
            made.input.pod = pod;
            apply_defaults(&mut made.input.pod);
        }
        made.origin.replica = nth;
        made
    }

    /// Creates the pods. The owner's name and namespace are already set.
    pub(crate) fn expand(&self, owner: &Owner, count: usize) -> Expansion {
        let mut expansion = Expansion::default();
        for nth in 0..count {
            let (pod, claims) = self.pod(owner, nth, 0);
            expansion.pods.extend(pod);
            expansion.claims.extend(claims);
        }
        expansion
    }

    fn pod(&self, owner: &Owner, nth: usize, attempt: u32) -> (Option<Pod>, Vec<PersistentVolumeClaim>) {
        let alone = |pod| (pod, Vec::new());
        match self {
            Workload::Pod(pod) => {
                let mut pod = (**pod).clone();
                pod.metadata.name = Some(owner.name.clone());
                settle(&mut pod.metadata, &owner.namespace, attempt);
                alone(Some(pod))
            }
            Workload::Job(_) => alone(self.job_spec().map(|spec| job_pod(spec, owner, nth, attempt))),
            Workload::CronJob(_) => {
                alone(self.job_spec().map(|spec| job_pod(spec, &owner.by_hand(), nth, attempt)))
            }
            Workload::Deployment(object) => {
                let template = object.spec.as_ref().map(|spec| &spec.template);
                alone(template.map(|template| deployment_pod(template, owner, nth, attempt)))
            }
            Workload::ReplicaSet(object) => {
                let template = object.spec.as_ref().and_then(|spec| spec.template.as_ref());
                let stamp = Stamp { owner, kind: "ReplicaSet", api_version: "apps/v1", attempt };
                alone(template.map(|template| stamp.one(template, stamp.name(nth), &BTreeMap::new())))
            }
            Workload::DaemonSet(object) => {
                let template = object.spec.as_ref().map(|spec| &spec.template);
                let labels = label("controller-revision-hash", names::suffix(10, &["revision", &owner.name]));
                let stamp = Stamp { owner, kind: "DaemonSet", api_version: "apps/v1", attempt };
                alone(template.map(|template| stamp.one(template, stamp.name(nth), &labels)))
            }
            Workload::StatefulSet(object) => match &object.spec {
                Some(spec) => {
                    let (pod, claims) = stateful_set_pod(spec, owner, nth, attempt);
                    (Some(pod), claims)
                }
                None => alone(None),
            },
        }
    }
}

impl Owner {
    /// The Job that a manual run of a CronJob creates; Kubernetes puts the minute of the run into the name.
    fn by_hand(&self) -> Owner {
        Owner { name: names::join(&self.name, "-manual"), namespace: self.namespace.clone() }
    }

    fn reference(&self, api_version: &str, kind: &str) -> OwnerReference {
        OwnerReference {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
            name: self.name.clone(),
            uid: names::uid(&self.namespace, kind, &self.name),
            controller: Some(true),
            block_owner_deletion: Some(true),
        }
    }
}

fn owner_of(metadata: &ObjectMeta) -> Owner {
    Owner {
        namespace: metadata.namespace.clone().unwrap_or_default(),
        name: metadata.name.clone().unwrap_or_default(),
    }
}

/// How a controller creates pods.
struct Stamp<'o> {
    owner: &'o Owner,
    kind: &'static str,
    api_version: &'static str,
    /// The number of pods that had this index before.
    attempt: u32,
}

impl Stamp<'_> {
    /// The owner's name and a suffix.
    fn name(&self, nth: usize) -> String {
        names::join(&self.owner.name, &format!("-{}", self.suffix(self.kind, nth)))
    }

    fn suffix(&self, kind: &str, nth: usize) -> String {
        let owner = self.owner;
        let (nth, attempt) = (nth.to_string(), self.attempt.to_string());
        let parts = [kind, &owner.namespace, &owner.name, &nth, &attempt];
        // The first pod of an index needs nothing to distinguish it.
        names::suffix(5, &parts[..if self.attempt == 0 { 4 } else { 5 }])
    }

    fn one(&self, template: &PodTemplateSpec, name: String, labels: &BTreeMap<String, String>) -> Pod {
        let mut metadata = template.metadata.clone().unwrap_or_default();
        metadata.generate_name = Some(format!("{}-", self.owner.name));
        metadata.name = Some(name);
        if !labels.is_empty() {
            metadata.labels.get_or_insert_default().extend(labels.clone());
        }
        metadata.owner_references = Some(vec![self.owner.reference(self.api_version, self.kind)]);
        settle(&mut metadata, &self.owner.namespace, self.attempt);
        Pod { metadata, spec: template.spec.clone(), status: None }
    }
}

/// Sets the namespace and uid of a pod. Two pods that use one name after each other get different uids.
fn settle(metadata: &mut ObjectMeta, namespace: &str, attempt: u32) {
    metadata.namespace = Some(namespace.to_owned());
    let name = metadata.name.clone().unwrap_or_default();
    let unique = if attempt == 0 { name } else { format!("{name}/{attempt}") };
    metadata.uid.get_or_insert_with(|| names::uid(namespace, "Pod", &unique));
}

fn label(key: &str, value: String) -> BTreeMap<String, String> {
    BTreeMap::from([(key.to_owned(), value)])
}

fn job_pod(spec: &JobSpec, owner: &Owner, nth: usize, attempt: u32) -> Pod {
    let uid = names::uid(&owner.namespace, "Job", &owner.name);
    let labels = BTreeMap::from([
        ("batch.kubernetes.io/job-name".to_owned(), owner.name.clone()),
        ("job-name".to_owned(), owner.name.clone()),
        ("batch.kubernetes.io/controller-uid".to_owned(), uid.clone()),
        ("controller-uid".to_owned(), uid),
    ]);
    let stamp = Stamp { owner, kind: "Job", api_version: "batch/v1", attempt };
    if spec.completion_mode.as_deref() != Some("Indexed") {
        return stamp.one(&spec.template, stamp.name(nth), &labels);
    }
    let name = names::join(&owner.name, &format!("-{nth}-{}", stamp.suffix("Indexed", nth)));
    let mut pod = stamp.one(&spec.template, name, &labels);
    indexed(&mut pod, owner, nth);
    pod
}

/// An Indexed Job gives each pod its index: in the name, host name, label, annotation and environment.
fn indexed(pod: &mut Pod, owner: &Owner, index: usize) {
    let metadata = &mut pod.metadata;
    metadata.generate_name = Some(format!("{}-{index}-", owner.name));
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

fn deployment_pod(template: &PodTemplateSpec, owner: &Owner, nth: usize, attempt: u32) -> Pod {
    // The hash identifies this version of the template, as in a real ReplicaSet.
    let text = serde_json::to_string(template).unwrap_or_default();
    let hash = names::suffix(10, &["template", &text]);
    let owner =
        Owner { name: names::join(&owner.name, &format!("-{hash}")), namespace: owner.namespace.clone() };
    let stamp = Stamp { owner: &owner, kind: "ReplicaSet", api_version: "apps/v1", attempt };
    stamp.one(template, stamp.name(nth), &label("pod-template-hash", hash))
}

fn stateful_set_pod(
    spec: &StatefulSetSpec,
    owner: &Owner,
    nth: usize,
    attempt: u32,
) -> (Pod, Vec<PersistentVolumeClaim>) {
    let stamp = Stamp { owner, kind: "StatefulSet", api_version: "apps/v1", attempt };
    let first = spec.ordinals.as_ref().and_then(|ordinals| ordinals.start).unwrap_or(0).max(0) as usize;
    let revision = names::join(&owner.name, &format!("-{}", names::suffix(10, &["revision", &owner.name])));
    let ordinal = first + nth;
    let name = format!("{}-{ordinal}", owner.name);
    let labels = BTreeMap::from([
        ("statefulset.kubernetes.io/pod-name".to_owned(), name.clone()),
        ("apps.kubernetes.io/pod-index".to_owned(), ordinal.to_string()),
        ("controller-revision-hash".to_owned(), revision),
    ]);
    let mut pod = stamp.one(&spec.template, name.clone(), &labels);
    let mut claims = Vec::new();
    let Some(pod_spec) = &mut pod.spec else { return (pod, claims) };
    pod_spec.hostname = Some(name.clone());
    pod_spec.subdomain = spec.service_name.clone();
    for template in spec.volume_claim_templates.iter().flatten() {
        let volume_name = template.metadata.name.clone().unwrap_or_default();
        let mut claim = template.clone();
        let claim_name = format!("{volume_name}-{name}");
        claim.metadata.name = Some(claim_name.clone());
        claim.metadata.namespace = Some(owner.namespace.clone());
        claims.push(claim);
        // A claim replaces a volume of the same name.
        let volumes = pod_spec.volumes.get_or_insert_default();
        volumes.retain(|volume| volume.name != volume_name);
        volumes.push(Volume {
            name: volume_name,
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource { claim_name, read_only: None }),
            ..Volume::default()
        });
    }
    (pod, claims)
}
