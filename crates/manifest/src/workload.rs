//! Creates the pods of workloads from their templates, as Kubernetes' controllers do.

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

/// The annotation with the completion index of a pod of an Indexed Job.
const COMPLETION_INDEX: &str = "batch.kubernetes.io/job-completion-index";

/// An object that creates pods, as the user wrote it.
#[derive(Debug, Clone, PartialEq)]
pub enum Workload {
    /// `v1` Pod
    Pod(Box<Pod>),
    /// `batch/v1` Job
    Job(Box<Job>),
    /// `batch/v1` CronJob, whose job template is run once.
    CronJob(Box<CronJob>),
    /// `apps/v1` Deployment
    Deployment(Box<Deployment>),
    /// `apps/v1` ReplicaSet
    ReplicaSet(Box<ReplicaSet>),
    /// `apps/v1` StatefulSet
    StatefulSet(Box<StatefulSet>),
    /// `apps/v1` DaemonSet, with this machine as its only node.
    DaemonSet(Box<DaemonSet>),
}

/// The owner of a workload's pods.
pub(crate) struct Owner {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// Distinguishes the object from earlier and later objects with the same name. Generated names and uids
    /// depend on it.
    pub(crate) instance: String,
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

    /// The object's metadata, for filling in missing fields.
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

    /// The spec of a Job, or of the Job that a CronJob creates.
    pub fn job_spec(&self) -> Option<&JobSpec> {
        match self {
            Workload::Job(job) => job.spec.as_ref(),
            Workload::CronJob(cron) => cron.spec.job_template.spec.as_ref(),
            _ => None,
        }
    }

    /// The path from the object to its pod, which is empty for a Pod.
    pub fn template_path(&self) -> FieldPath {
        match self {
            Workload::Pod(_) => FieldPath::root(),
            Workload::CronJob(_) => FieldPath::spec("jobTemplate").field("spec").field("template"),
            _ => FieldPath::spec("template"),
        }
    }

    /// The path of the field with the number of pods.
    pub(crate) fn count_path(&self) -> FieldPath {
        match self {
            Workload::Job(_) => FieldPath::spec("parallelism"),
            Workload::CronJob(_) => FieldPath::spec("jobTemplate").field("spec").field("parallelism"),
            _ => FieldPath::spec("replicas"),
        }
    }

    /// The number of pods that run at the same time.
    pub fn pod_count(&self) -> usize {
        usize::try_from(self.wanted_count()).unwrap_or(0)
    }

    /// The number of pods as written, which may be negative.
    pub(crate) fn wanted_count(&self) -> i32 {
        match self {
            Workload::Pod(_) | Workload::DaemonSet(_) => 1,
            Workload::Job(_) | Workload::CronJob(_) => {
                let spec = self.job_spec();
                let parallelism = spec.and_then(|spec| spec.parallelism).unwrap_or(1);
                spec.and_then(|spec| spec.completions).map_or(parallelism, |c| c.min(parallelism))
            }
            Workload::Deployment(object) => object.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1),
            Workload::ReplicaSet(object) => object.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1),
            Workload::StatefulSet(object) => object.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1),
        }
    }

    /// The label selector, and the labels of the template that it must match.
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

    /// The Job itself, or the Job that a manual run of a CronJob creates.
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

    /// Creates another pod of this workload. `like` is any of its pods, `nth` is the index of the new pod,
    /// and `attempt` is the number of earlier pods with that index. Pods of another `instance` of the
    /// workload get other generated names. If `instance` is empty, names depend only on the manifest.
    pub fn stamp(&self, like: &PodManifest, nth: usize, attempt: u32, instance: &str) -> PodManifest {
        let mut made = like.clone();
        let owner = Owner { instance: instance.to_owned(), ..owner_of(self.metadata()) };
        if let Some(pod) = self.pod(&owner, nth, attempt) {
            made.input.pod = pod;
            apply_defaults(&mut made.input.pod);
        }
        made
    }

    /// The name of the first pod with this index.
    pub fn pod_name(&self, nth: usize) -> String {
        let owner = owner_of(self.metadata());
        let stamped = |owner: &Owner, kind| Stamp { owner, kind, api_version: "", attempt: 0 }.name(nth);
        match self {
            Workload::Pod(_) => owner.name,
            Workload::Job(_) | Workload::CronJob(_) => {
                let owner = if matches!(self, Workload::CronJob(_)) { owner.by_hand() } else { owner };
                let stamp = Stamp { owner: &owner, kind: "Job", api_version: "", attempt: 0 };
                stamp.job_name(self.job_spec(), nth)
            }
            Workload::Deployment(object) => match &object.spec {
                Some(spec) => stamped(&replica_set(&spec.template, &owner).0, "ReplicaSet"),
                None => owner.name,
            },
            Workload::ReplicaSet(_) => stamped(&owner, "ReplicaSet"),
            Workload::DaemonSet(_) => stamped(&owner, "DaemonSet"),
            Workload::StatefulSet(object) => match &object.spec {
                Some(spec) => format!("{}-{}", owner.name, ordinal(spec, nth)),
                None => owner.name,
            },
        }
    }

    /// The claims that a StatefulSet creates for its pods. The owner's name and namespace are already set.
    pub(crate) fn claims(&self, owner: &Owner, count: usize) -> Vec<PersistentVolumeClaim> {
        let Workload::StatefulSet(object) = self else { return Vec::new() };
        let Some(spec) = &object.spec else { return Vec::new() };
        let of_pod = |nth: usize| {
            let pod = format!("{}-{}", owner.name, ordinal(spec, nth));
            let claim = move |template: &PersistentVolumeClaim| {
                let mut claim = template.clone();
                let volume = template.metadata.name.as_deref().unwrap_or_default();
                claim.metadata.name = Some(format!("{volume}-{pod}"));
                claim.metadata.namespace = Some(owner.namespace.clone());
                claim
            };
            spec.volume_claim_templates.iter().flatten().map(claim)
        };
        (0..count).flat_map(of_pod).collect()
    }

    /// Creates a pod. The owner's name and namespace are already set.
    pub(crate) fn pod(&self, owner: &Owner, nth: usize, attempt: u32) -> Option<Pod> {
        match self {
            Workload::Pod(pod) => {
                let mut pod = (**pod).clone();
                pod.metadata.name = Some(owner.name.clone());
                settle(&mut pod.metadata, owner, attempt);
                Some(pod)
            }
            Workload::Job(_) => self.job_spec().map(|spec| job_pod(spec, owner, nth, attempt)),
            Workload::CronJob(_) => self.job_spec().map(|spec| job_pod(spec, &owner.by_hand(), nth, attempt)),
            Workload::Deployment(object) => {
                let template = object.spec.as_ref().map(|spec| &spec.template);
                template.map(|template| deployment_pod(template, owner, nth, attempt))
            }
            Workload::ReplicaSet(object) => {
                let template = object.spec.as_ref().and_then(|spec| spec.template.as_ref());
                let stamp = Stamp { owner, kind: "ReplicaSet", api_version: "apps/v1", attempt };
                template.map(|template| stamp.one(template, stamp.name(nth), &BTreeMap::new()))
            }
            Workload::DaemonSet(object) => {
                let template = object.spec.as_ref().map(|spec| &spec.template);
                let labels = label("controller-revision-hash", names::suffix(10, &["revision", &owner.name]));
                let stamp = Stamp { owner, kind: "DaemonSet", api_version: "apps/v1", attempt };
                template.map(|template| stamp.one(template, stamp.name(nth), &labels))
            }
            Workload::StatefulSet(object) => {
                object.spec.as_ref().map(|spec| stateful_set_pod(spec, owner, nth, attempt))
            }
        }
    }
}

impl Owner {
    /// The owner for the Job that a manual run of a CronJob creates. Kubernetes puts the minute of the run
    /// into its name.
    fn by_hand(&self) -> Owner {
        self.named(names::join(&self.name, "-manual"))
    }

    /// An owner with another name that belongs to this one.
    fn named(&self, name: String) -> Owner {
        Owner { name, namespace: self.namespace.clone(), instance: self.instance.clone() }
    }

    fn uid(&self, kind: &str) -> String {
        match self.instance.as_str() {
            "" => names::uid(&self.namespace, kind, &self.name),
            instance => names::uid(&self.namespace, kind, &format!("{}/{instance}", self.name)),
        }
    }

    fn reference(&self, api_version: &str, kind: &str) -> OwnerReference {
        OwnerReference {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
            name: self.name.clone(),
            uid: self.uid(kind),
            controller: Some(true),
            block_owner_deletion: Some(true),
        }
    }
}

fn owner_of(metadata: &ObjectMeta) -> Owner {
    Owner {
        namespace: metadata.namespace.clone().unwrap_or_default(),
        name: metadata.name.clone().unwrap_or_default(),
        instance: String::new(),
    }
}

/// What a controller needs to create a pod.
struct Stamp<'o> {
    owner: &'o Owner,
    kind: &'static str,
    api_version: &'static str,
    /// The number of earlier pods with this index.
    attempt: u32,
}

impl Stamp<'_> {
    /// The name of a pod: the owner's name and a suffix.
    fn name(&self, nth: usize) -> String {
        names::join(&self.owner.name, &format!("-{}", self.suffix(self.kind, nth)))
    }

    /// The name of a pod of a Job, with its index if it has one.
    fn job_name(&self, spec: Option<&JobSpec>, nth: usize) -> String {
        match is_indexed(spec) {
            true => names::join(&self.owner.name, &format!("-{nth}-{}", self.suffix("Indexed", nth))),
            false => self.name(nth),
        }
    }

    fn suffix(&self, kind: &str, nth: usize) -> String {
        let owner = self.owner;
        let (nth, attempt) = (nth.to_string(), self.attempt.to_string());
        let mut parts = vec![kind, &owner.namespace, &owner.name, &nth];
        // The first pod of an index needs no further distinction, and neither does the only instance of an
        // owner.
        if self.attempt > 0 || !owner.instance.is_empty() {
            parts.push(&attempt);
        }
        if !owner.instance.is_empty() {
            parts.push(&owner.instance);
        }
        names::suffix(5, &parts)
    }

    fn one(&self, template: &PodTemplateSpec, name: String, labels: &BTreeMap<String, String>) -> Pod {
        let mut metadata = template.metadata.clone().unwrap_or_default();
        metadata.generate_name = Some(format!("{}-", self.owner.name));
        metadata.name = Some(name);
        if !labels.is_empty() {
            metadata.labels.get_or_insert_default().extend(labels.clone());
        }
        metadata.owner_references = Some(vec![self.owner.reference(self.api_version, self.kind)]);
        settle(&mut metadata, self.owner, self.attempt);
        Pod { metadata, spec: template.spec.clone(), status: None }
    }
}

/// Sets the namespace and uid of a pod. Pods that use the same name one after the other get different uids.
fn settle(metadata: &mut ObjectMeta, owner: &Owner, attempt: u32) {
    metadata.namespace = Some(owner.namespace.clone());
    let mut unique = metadata.name.clone().unwrap_or_default();
    if attempt > 0 {
        unique = format!("{unique}/{attempt}");
    }
    if !owner.instance.is_empty() {
        unique = format!("{unique}/{}", owner.instance);
    }
    metadata.uid.get_or_insert_with(|| names::uid(&owner.namespace, "Pod", &unique));
}

fn label(key: &str, value: String) -> BTreeMap<String, String> {
    BTreeMap::from([(key.to_owned(), value)])
}

fn job_pod(spec: &JobSpec, owner: &Owner, nth: usize, attempt: u32) -> Pod {
    let uid = owner.uid("Job");
    let labels = BTreeMap::from([
        ("batch.kubernetes.io/job-name".to_owned(), owner.name.clone()),
        ("job-name".to_owned(), owner.name.clone()),
        ("batch.kubernetes.io/controller-uid".to_owned(), uid.clone()),
        ("controller-uid".to_owned(), uid),
    ]);
    let stamp = Stamp { owner, kind: "Job", api_version: "batch/v1", attempt };
    let mut pod = stamp.one(&spec.template, stamp.job_name(Some(spec), nth), &labels);
    if is_indexed(Some(spec)) {
        indexed(&mut pod, owner, nth);
    }
    pod
}

fn is_indexed(spec: Option<&JobSpec>) -> bool {
    spec.is_some_and(|spec| spec.completion_mode.as_deref() == Some("Indexed"))
}

/// Gives a pod of an Indexed Job its index, in its name, host name, label, annotation and environment.
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

/// The ReplicaSet of a Deployment, and the hash that identifies this version of the template.
fn replica_set(template: &PodTemplateSpec, deployment: &Owner) -> (Owner, String) {
    let text = serde_json::to_string(template).unwrap_or_default();
    let hash = names::suffix(10, &["template", &text]);
    let name = names::join(&deployment.name, &format!("-{hash}"));
    (deployment.named(name), hash)
}

fn deployment_pod(template: &PodTemplateSpec, owner: &Owner, nth: usize, attempt: u32) -> Pod {
    let (owner, hash) = replica_set(template, owner);
    let stamp = Stamp { owner: &owner, kind: "ReplicaSet", api_version: "apps/v1", attempt };
    stamp.one(template, stamp.name(nth), &label("pod-template-hash", hash))
}

/// The ordinal in the name of a StatefulSet's pod.
fn ordinal(spec: &StatefulSetSpec, nth: usize) -> usize {
    let first = spec.ordinals.as_ref().and_then(|ordinals| ordinals.start).unwrap_or(0).max(0) as usize;
    first + nth
}

fn stateful_set_pod(spec: &StatefulSetSpec, owner: &Owner, nth: usize, attempt: u32) -> Pod {
    let stamp = Stamp { owner, kind: "StatefulSet", api_version: "apps/v1", attempt };
    let revision = names::join(&owner.name, &format!("-{}", names::suffix(10, &["revision", &owner.name])));
    let ordinal = ordinal(spec, nth);
    let name = format!("{}-{ordinal}", owner.name);
    let labels = BTreeMap::from([
        ("statefulset.kubernetes.io/pod-name".to_owned(), name.clone()),
        ("apps.kubernetes.io/pod-index".to_owned(), ordinal.to_string()),
        ("controller-revision-hash".to_owned(), revision),
    ]);
    let mut pod = stamp.one(&spec.template, name.clone(), &labels);
    let Some(pod_spec) = &mut pod.spec else { return pod };
    pod_spec.hostname = Some(name.clone());
    pod_spec.subdomain = spec.service_name.clone();
    for template in spec.volume_claim_templates.iter().flatten() {
        let volume_name = template.metadata.name.clone().unwrap_or_default();
        let claim_name = format!("{volume_name}-{name}");
        // A claim replaces a volume of the same name.
        let volumes = pod_spec.volumes.get_or_insert_default();
        volumes.retain(|volume| volume.name != volume_name);
        volumes.push(Volume {
            name: volume_name,
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource { claim_name, read_only: None }),
            ..Volume::default()
        });
    }
    pod
}
