//! Reads sources into a manifest: objects, their defaults, and the checks of the Kubernetes API around a pod.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use outrigger_lifecycle::annotations::{self, Place as AnnotationPlace};
use outrigger_lifecycle::{
    Companions, ContainerRef, FieldPath, List, PodInput, Segment, Severity, check_schedule,
    validate_job_fields,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::decode;
use crate::defaults::apply_defaults;
use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::limits::Limits;
use crate::not_run::{self, NotRun};
use crate::pod::{Origin, PodManifest};
use crate::span::{SourceFile, Span};
use crate::tree::{Document, Node, Value};
use crate::workload::{Owner, Workload};
use crate::yaml::Parsed;
use crate::{json, keys, kruise, names, owned, yaml};

/// How to treat unknown fields and duplicate keys, like kubectl's `--validate`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Validate {
    /// Report them as errors.
    #[default]
    Strict,
    /// Report them as warnings.
    Warn,
    /// Ignore them.
    Ignore,
}

/// Options for reading.
#[derive(Debug, Clone, Default)]
pub struct ReadOptions {
    /// How to treat unknown fields.
    pub validate: Validate,
    /// The namespace of objects that do not set one. If it is not set, `default`.
    pub namespace: Option<String>,
    /// Overrides the number of pods of a Deployment, ReplicaSet, StatefulSet or DaemonSet.
    pub replicas: Option<u32>,
    /// Whether to list every object that is not run, instead of only the number of each kind.
    pub list_skipped: bool,
    /// Whether the manifest was accepted before, perhaps by an older version that did not read every kind. Its pods
    /// may be running, so mistakes in objects that older versions skipped are not errors.
    pub was_accepted: bool,
    /// The limits on a manifest.
    pub limits: Limits,
}

/// The result of reading.
#[derive(Debug, Clone, Default)]
pub struct Manifest {
    /// The pods to run, in the order of the text. There is one for each object, and it represents all pods of
    /// the object ([`Origin::count`]).
    pub pods: Vec<PodManifest>,
    /// The workloads the pods belong to; see [`Origin::workload`].
    pub workloads: Vec<Workload>,
    /// The objects the pods may refer to.
    pub companions: Companions,
    /// The Services, in the order of the text, with their namespaces set.
    pub services: Vec<Service>,
    /// The EndpointSlices, in the order of the text, with their namespaces set.
    pub endpoint_slices: Vec<EndpointSlice>,
    /// The spanned tree of each Service.
    pub(crate) service_nodes: Vec<Node>,
    /// The spanned tree of each EndpointSlice.
    pub(crate) endpoint_slice_nodes: Vec<Node>,
    /// Warnings and notes about a manifest without errors.
    pub warnings: Vec<Diagnostic>,
    /// The position of each object's name, by kind, namespace and name.
    pub places: BTreeMap<(&'static str, String, String), Span>,
}

impl Manifest {
    /// The number of pods that run at once.
    pub fn pod_count(&self) -> usize {
        self.pods.iter().fold(0, |sum, pod| sum.saturating_add(pod.origin.count))
    }
}

/// The supported kinds: kind, apiVersion.
const KINDS: [(&str, &str); 13] = [
    ("Pod", "v1"),
    ("Job", "batch/v1"),
    ("CronJob", "batch/v1"),
    ("Deployment", "apps/v1"),
    ("ReplicaSet", "apps/v1"),
    ("StatefulSet", "apps/v1"),
    ("DaemonSet", "apps/v1"),
    ("ConfigMap", "v1"),
    ("Secret", "v1"),
    ("PersistentVolumeClaim", "v1"),
    ("PriorityClass", "scheduling.k8s.io/v1"),
    ("Service", "v1"),
    ("EndpointSlice", "discovery.k8s.io/v1"),
];

/// Reads a manifest.
///
/// ```
/// use outrigger_manifest::{ReadOptions, SourceFile, read};
///
/// let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, image: busybox}]}\n";
/// let manifest = read(&[SourceFile::new("pod.yaml", pod)], &ReadOptions::default()).unwrap();
/// assert_eq!(manifest.pods[0].name(), "p");
/// ```
pub fn read(sources: &[SourceFile], options: &ReadOptions) -> Result<Manifest, Diagnostics> {
    let Partial { mut manifest, diagnostics, .. } = read_partial(sources, options);
    if diagnostics.iter().any(|d| d.severity == Severity::Error) {
        return Err(Diagnostics(diagnostics));
    }
    manifest.warnings = diagnostics;
    Ok(manifest)
}

/// The readable part of sources that may have errors. It is used to look for further errors.
#[derive(Debug)]
pub struct Partial {
    /// The objects that could be read, without their invalid parts. If there are errors, they must not be
    /// run.
    pub manifest: Manifest,
    /// All errors and warnings, sorted by position.
    pub diagnostics: Vec<Diagnostic>,
    /// Whether every object could be read. If not, an object that others refer to may be missing.
    pub is_complete: bool,
}

/// The same as [`read`], but returns the readable part even if there are errors.
pub fn read_partial(sources: &[SourceFile], options: &ReadOptions) -> Partial {
    let mut reader = Reader {
        options,
        manifest: Manifest::default(),
        seen: BTreeMap::new(),
        not_run: NotRun::new(options.list_skipped),
        is_complete: true,
    };
    let mut diagnostics = Vec::new();
    for (file, source) in sources.iter().enumerate() {
        match parse_source(file, source, options) {
            Err(error) => {
                reader.is_complete = false;
                diagnostics.push(*error);
            }
            Ok(parsed) => {
                diagnostics.extend(parsed.duplicates);
                for (index, document) in parsed.documents.into_iter().enumerate() {
                    reader.document(document, index, &mut diagnostics);
                }
            }
        }
    }
    // If there is only one file, the error can name it.
    let empty = match sources {
        [one] if is_empty(&one.text) => Some(Span::new(0, 0, 0)),
        _ => None,
    };
    reader.finish(diagnostics, empty)
}

/// Whether a text has no content except comments.
fn is_empty(text: &str) -> bool {
    text.lines().map(str::trim).all(|line| line.is_empty() || line.starts_with('#') || line == "---")
}

/// Parses a source into trees without interpreting them, with the same limits as [`read`].
pub fn parse(file: usize, source: &SourceFile, options: &ReadOptions) -> Result<Vec<Document>, Diagnostics> {
    let parsed = parse_source(file, source, options).map_err(|error| Diagnostics(vec![*error]))?;
    if parsed.duplicates.iter().any(|d| d.severity == Severity::Error) {
        return Err(Diagnostics(parsed.duplicates));
    }
    Ok(parsed.documents)
}

fn parse_source(file: usize, source: &SourceFile, options: &ReadOptions) -> Result<Parsed, Box<Diagnostic>> {
    let limits = &options.limits;
    let text: &str = &source.text;
    if text.len() > limits.file_bytes_max {
        let message = format!(
            "{}: the file has {} bytes, the limit is {} MiB",
            source.name,
            text.len(),
            limits.file_bytes_max >> 20
        );
        return Err(Diagnostic::error(None, message).hint("split the file").into());
    }
    if let Some(at) = text.find('\0') {
        let message = "a NUL byte: this is not a text file";
        return Err(Diagnostic::error(Span::new(file, at, at + 1), message).into());
    }
    let parsed = if source.name.ends_with(".json") {
        json::parse(file, text, limits)
    } else if json::looks_like_json(text) {
        // A YAML flow mapping also starts with a brace.
        json::parse(file, text, limits).or_else(|_| yaml::parse(file, text, limits))
    } else {
        yaml::parse(file, text, limits)
    };
    let mut parsed = parsed?;
    match options.validate {
        Validate::Strict => {}
        Validate::Warn => parsed.duplicates.iter_mut().for_each(|d| d.severity = Severity::Warning),
        Validate::Ignore => parsed.duplicates.clear(),
    }
    Ok(parsed)
}

/// The position of an object.
struct Place {
    document: Span,
    document_index: usize,
    path: FieldPath,
    weight: usize,
}

struct Reader<'o> {
    options: &'o ReadOptions,
    manifest: Manifest,
    /// The objects read so far, by kind, namespace and name.
    seen: BTreeMap<(&'static str, String, String), Span>,
    /// The objects that are not run.
    not_run: NotRun,
    /// Whether every object could be read.
    is_complete: bool,
}

impl Reader<'_> {
    fn document(&mut self, document: Document, document_index: usize, out: &mut Vec<Diagnostic>) {
        let Document { root, weight } = document;
        if root.is_null() {
            return;
        }
        let place = Place { document: root.span, document_index, path: FieldPath::root(), weight };
        self.object(root, place, None, out);
    }

    /// Reads one object, or the objects of a list. `implied` is the kind that the list gives its items.
    fn object(&mut self, node: Node, place: Place, implied: Option<(&str, &str)>, out: &mut Vec<Diagnostic>) {
        if node.entries().is_none() {
            self.is_complete = false;
            out.push(Diagnostic::error(
                node.head(),
                "expected an object with `apiVersion`, `kind` and `metadata`",
            ));
            return;
        }
        let word = |field: &str| node.get(field).filter(|value| !value.is_null()).and_then(Node::text);
        let (api_version, kind) = match (word("apiVersion"), word("kind"), implied) {
            (Some(api_version), Some(kind), _) => (api_version, kind),
            (None, None, Some(implied)) => implied,
            (None, None, None) if is_compose(&node) => {
                let span = node.entry("services").map_or(node.head(), |entry| entry.key_span);
                let message = "this is a Compose file, not a Kubernetes manifest";
                let hint = "convert it first, for example with `kompose convert -f FILE`, and run the files that it writes";
                out.push(Diagnostic::error(span, message).hint(hint));
                return;
            }
            (api_version, _, _) => {
                self.is_complete = false;
                let missing = if api_version.is_none() { "apiVersion" } else { "kind" };
                let hint = "every object needs both, for example `apiVersion: v1` and `kind: Pod`";
                out.push(Diagnostic::error(node.head(), format!("missing field `{missing}`")).hint(hint));
                return;
            }
        };
        let (api_version, kind) = (api_version.to_owned(), kind.to_owned());
        if let Some(reason) = not_run::helm_reason(&node) {
            self.not_run.add(&node, &kind, &reason, out);
            return;
        }
        match KINDS.iter().find(|known| **known == (kind.as_str(), api_version.as_str())) {
            Some((kind, _)) => self.known(kind, node, &place, out),
            None if kind.ends_with("List") && node.get("items").is_some() => {
                self.list(node, &place, &api_version, &kind, out);
            }
            None => match kruise::rewrite(&api_version, &kind, node) {
                Ok(kruise::Rewritten { kind, object, note }) => {
                    out.push(note);
                    self.known(kind, object, &place, out);
                }
                Err(node) => self.other(&node, &api_version, &kind, out),
            },
        }
    }

    fn list(
        &mut self,
        mut node: Node,
        place: &Place,
        api_version: &str,
        kind: &str,
        out: &mut Vec<Diagnostic>,
    ) {
        let item_kind = kind.trim_end_matches("List");
        let implied = (!item_kind.is_empty()).then_some((api_version, item_kind));
        let Value::Map(entries) = &mut node.value else {
            return;
        };
        let Some(items) = entries.iter_mut().find(|entry| &*entry.key == "items") else {
            return;
        };
        let key_span = items.key_span;
        match std::mem::replace(&mut items.value.value, Value::Seq(Vec::new())) {
            Value::Seq(items) => {
                let weight = place.weight / items.len().max(1);
                for (index, item) in items.into_iter().enumerate() {
                    let path = place.path.clone().field("items").index(index);
                    let (document, document_index) = (place.document, place.document_index);
                    self.object(item, Place { document, document_index, path, weight }, implied, out);
                }
            }
            Value::Scalar(_) if items.value.is_null() => {}
            _ => out.push(Diagnostic::error(key_span, "`items`: expected a list of objects")),
        }
    }

    /// Accepts an object of a kind that is not run, unless its kind looks like a mistake.
    fn other(&mut self, node: &Node, api_version: &str, kind: &str, out: &mut Vec<Diagnostic>) {
        let hint = not_run::correction(api_version, kind, &KINDS);
        let Some(hint) = hint.filter(|_| !self.options.was_accepted) else {
            self.not_run.add(node, kind, not_run::reason(api_version, kind), out);
            return;
        };
        self.is_complete = false;
        let span = node.entry("kind").map_or(node.head(), |entry| entry.value.head());
        let message =
            format!("there is no kind `{kind}` in `apiVersion: {}`", decode::abbreviate(api_version));
        out.push(Diagnostic::error(span, message).hint(hint));
    }

    fn known(&mut self, kind: &'static str, node: Node, place: &Place, out: &mut Vec<Diagnostic>) {
        match kind {
            "ConfigMap" => {
                keys::check(kind, &node, out);
                if let Some((object, key)) =
                    self.companion::<ConfigMap>(kind, &node, out, |o| &mut o.metadata)
                {
                    self.manifest.companions.config_maps.insert(key, object);
                }
            }
            "Secret" => {
                keys::check(kind, &node, out);
                if let Some((mut object, key)) =
                    self.companion::<Secret>(kind, &node, out, |o| &mut o.metadata)
                {
                    for (name, text) in object.string_data.take().into_iter().flatten() {
                        object.data.get_or_insert_default().insert(name, ByteString(text.into_bytes()));
                    }
                    self.manifest.companions.secrets.insert(key, object);
                }
            }
            "PersistentVolumeClaim" => {
                let claim = self.companion::<PersistentVolumeClaim>(kind, &node, out, |o| &mut o.metadata);
                if let Some((object, key)) = claim {
                    self.manifest.companions.persistent_volume_claims.insert(key, object);
                }
            }
            "PriorityClass" => {
                let class = self.companion::<PriorityClass>(kind, &node, out, |o| &mut o.metadata);
                if let Some((object, (_, name))) = class {
                    self.manifest.companions.priority_classes.insert(name, object);
                }
            }
            "Service" => {
                self.not_run.add(&node, kind, not_run::reason("v1", kind), out);
                if let Some(object) = self.unless_accepted::<Service>(kind, &node, out, |o| &mut o.metadata) {
                    self.manifest.services.push(object);
                    self.manifest.service_nodes.push(node);
                }
            }
            "EndpointSlice" => {
                self.not_run.add(&node, kind, not_run::reason("discovery.k8s.io/v1", kind), out);
                let slice = self.unless_accepted::<EndpointSlice>(kind, &node, out, |o| &mut o.metadata);
                if let Some(object) = slice {
                    self.manifest.endpoint_slices.push(object);
                    self.manifest.endpoint_slice_nodes.push(node);
                }
            }
            "Pod" => self.workload(node, place, out, Workload::Pod),
            "Job" => self.workload(node, place, out, Workload::Job),
            "CronJob" => self.workload(node, place, out, Workload::CronJob),
            "Deployment" => self.workload(node, place, out, Workload::Deployment),
            "ReplicaSet" => self.workload(node, place, out, Workload::ReplicaSet),
            "StatefulSet" => self.workload(node, place, out, Workload::StatefulSet),
            _ => self.workload(node, place, out, Workload::DaemonSet),
        }
    }

    /// Decodes an object. If there are errors, it lacks the invalid parts; `None` if it cannot be read at
    /// all.
    fn decode<T: DeserializeOwned>(
        &mut self,
        node: &Node,
        out: &mut Vec<Diagnostic>,
    ) -> Option<(T, Vec<(FieldPath, String)>)> {
        let decoded = decode::decode::<T>(node, self.options.validate);
        out.extend(decoded.diagnostics);
        self.is_complete &= decoded.object.is_some();
        decoded.object.map(|object| (object, decoded.lifecycle_types))
    }

    /// Decodes a ConfigMap, Secret or claim, and sets its namespace and name.
    fn companion<T: DeserializeOwned>(
        &mut self,
        kind: &'static str,
        node: &Node,
        out: &mut Vec<Diagnostic>,
        metadata: impl Fn(&mut T) -> &mut k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta,
    ) -> Option<(T, (String, String))> {
        let (mut object, _) = self.decode::<T>(node, out)?;
        let metadata = metadata(&mut object);
        let namespace = self.namespace(metadata.namespace.as_deref());
        let Some(name) = metadata.name.clone().filter(|name| !name.is_empty()) else {
            self.is_complete = false;
            out.push(no_name(node, kind));
            return None;
        };
        metadata.namespace = Some(namespace.clone());
        self.first_of_its_name(kind, &namespace, &name, node, out).then_some((object, (namespace, name)))
    }

    /// The same for a kind that older versions skipped.
    fn unless_accepted<T: DeserializeOwned>(
        &mut self,
        kind: &'static str,
        node: &Node,
        out: &mut Vec<Diagnostic>,
        metadata: impl Fn(&mut T) -> &mut k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta,
    ) -> Option<T> {
        let before = out.len();
        let object = self.companion::<T>(kind, node, out, metadata);
        if self.options.was_accepted {
            out[before..].iter_mut().for_each(|d| d.severity = d.severity.min(Severity::Warning));
        }
        object.map(|(object, _)| object)
    }

    fn namespace(&self, written: Option<&str>) -> String {
        let fallback = self.options.namespace.as_deref().unwrap_or("default");
        written.filter(|namespace| !namespace.is_empty()).unwrap_or(fallback).to_owned()
    }

    fn first_of_its_name(
        &mut self,
        kind: &'static str,
        namespace: &str,
        name: &str,
        node: &Node,
        out: &mut Vec<Diagnostic>,
    ) -> bool {
        let name_path = FieldPath::root().field("metadata").field("name");
        let span = node.at(&name_path).map_or(node.head(), Node::head);
        match self.seen.get(&(kind, namespace.to_owned(), name.to_owned())) {
            None => {
                self.seen.insert((kind, namespace.to_owned(), name.to_owned()), span);
                true
            }
            Some(first) => {
                let message = format!("{kind} `{name}` is defined twice in namespace `{namespace}`");
                out.push(
                    Diagnostic::error(span, message)
                        .label(*first, "the first one")
                        .hint("give one of them another name"),
                );
                false
            }
        }
    }

    fn workload<T: DeserializeOwned>(
        &mut self,
        node: Node,
        place: &Place,
        out: &mut Vec<Diagnostic>,
        wrap: impl Fn(Box<T>) -> Workload,
    ) {
        let before = out.len();
        let Some((object, lifecycle_types)) = self.decode::<T>(&node, out) else {
            return;
        };
        let mut workload = wrap(Box::new(object));
        if let Some(replicas) = self.options.replicas {
            workload.set_replicas(replicas);
        }
        let mut more = Vec::new();
        let owner = self.settle_name(&mut workload, &node, &mut more);
        let is_first =
            self.first_of_its_name(workload.kind(), &owner.namespace, &owner.name, &node, &mut more);
        let has_template = check_template(&workload, &node, &mut more);
        check_job(&workload, &node, &mut more);
        check_annotations(&workload, &node, &mut more);
        let fits = self.check_count(&workload, &node, place, &mut more);
        more.retain(|d| !d.follows_from(&out[before..]));
        out.extend(more);
        let failed = out[before..].iter().any(|d| d.severity == Severity::Error);
        if !(is_first && has_template && fits) {
            return;
        }
        let template_path = workload.template_path();
        let lifecycle_types = by_container(&template_path, lifecycle_types);
        // If the number of pods could not be read, it is not 0, so that the pod is still checked.
        let count = self.count(&workload).max(usize::from(failed));
        for claim in workload.claims(&owner, count) {
            let key = (owner.namespace.clone(), claim.metadata.name.clone().unwrap_or_default());
            // A claim in the manifest overrides the generated one.
            self.manifest.companions.persistent_volume_claims.entry(key).or_insert(claim);
        }
        let (kind, api_version) = (workload.kind(), workload.api_version());
        let workload_index = self.manifest.workloads.len();
        if let Some(mut pod) = workload.pod(&owner, 0, 0).filter(|_| count > 0) {
            apply_defaults(&mut pod);
            self.manifest.pods.push(PodManifest {
                input: PodInput { pod, lifecycle_types },
                origin: Origin {
                    kind,
                    api_version,
                    name: owner.name.clone(),
                    namespace: owner.namespace.clone(),
                    count,
                    workload: workload_index,
                    document: place.document,
                    document_index: place.document_index,
                    object_path: place.path.clone(),
                    template_path,
                    object: Arc::new(node),
                },
            });
        }
        self.manifest.workloads.push(workload);
    }

    /// Sets the name and namespace of a workload. `generateName` gets a suffix, as from an API server.
    fn settle_name(&self, workload: &mut Workload, node: &Node, out: &mut Vec<Diagnostic>) -> Owner {
        let kind = workload.kind();
        let nth = self.manifest.workloads.len().to_string();
        let metadata = workload.metadata_mut();
        let namespace = self.namespace(metadata.namespace.as_deref());
        let written = metadata.name.as_deref().filter(|name| !name.is_empty());
        let generate = metadata.generate_name.as_deref().filter(|name| !name.is_empty());
        let name = match (written, generate) {
            (Some(name), _) => match job_name_bytes_max(kind).filter(|max| name.len() > *max) {
                Some(max) => {
                    let name_path = FieldPath::root().field("metadata").field("name");
                    let span = node.at(&name_path).map_or(node.head(), Node::head);
                    let message =
                        format!("the name of this {kind} has {} characters, {max} are allowed", name.len());
                    out.push(
                        Diagnostic::error(span, message).hint("pods get the name of their Job as a label"),
                    );
                    // This name is only used to find further errors.
                    names::join("unnamed-", &nth)
                }
                None => name.to_owned(),
            },
            (None, Some(base)) => {
                names::join(base, &names::suffix(5, &["generateName", kind, &namespace, base, &nth]))
            }
            (None, None) => {
                out.push(no_name(node, kind));
                // This name is only used to find further errors.
                names::join("unnamed-", &nth)
            }
        };
        metadata.name = Some(name.clone());
        metadata.namespace = Some(namespace.clone());
        Owner { namespace, name, instance: String::new() }
    }

    /// Checks the number of pods. Returns whether it is within the limits.
    fn check_count(
        &self,
        workload: &Workload,
        node: &Node,
        place: &Place,
        out: &mut Vec<Diagnostic>,
    ) -> bool {
        let limits = &self.options.limits;
        let count = self.count(workload);
        let path = workload.count_path();
        let span = node.at(&path).map_or(node.head(), Node::head);
        let all = self.manifest.pod_count().saturating_add(count);
        if all > limits.pods_max || count.saturating_mul(place.weight) > limits.pod_bytes_max {
            let message =
                format!("{count} pods of this {} are more than a manifest may have", workload.kind());
            out.push(Diagnostic::error(span, message).hint(format!("lower `{path}`")));
            return false;
        }
        if workload.wanted_count() < 0 {
            // A Job's number is reported with its other fields.
            if workload.job_spec().is_none() {
                let message = format!("`{path}` must not be negative, it is {}", workload.wanted_count());
                out.push(Diagnostic::error(span, message));
            }
        } else if count == 0 {
            out.push(Diagnostic::warning(
                span,
                format!("`{path}` is 0: this {} has no pods", workload.kind()),
            ));
        }
        true
    }

    /// The number of pods of a workload that run at the same time.
    fn count(&self, workload: &Workload) -> usize {
        match (workload, self.options.replicas) {
            (Workload::DaemonSet(_), Some(replicas)) => usize::try_from(replicas).unwrap_or(usize::MAX),
            _ => workload.pod_count(),
        }
    }

    fn finish(mut self, mut diagnostics: Vec<Diagnostic>, empty: Option<Span>) -> Partial {
        diagnostics.extend(self.not_run.summary());
        diagnostics.extend(owned::leave_out(&mut self.manifest.pods, &mut self.manifest.workloads));
        let failed = diagnostics.iter().any(|d| d.severity == Severity::Error);
        if !failed && self.manifest.pods.is_empty() {
            let message = if !self.not_run.is_empty() || !self.manifest.workloads.is_empty() {
                "nothing is left to run"
            } else if empty.is_some() {
                "nothing to run: the file is empty"
            } else {
                "nothing to run"
            };
            let kinds = "a Pod, Job, CronJob, Deployment, ReplicaSet, StatefulSet or DaemonSet is needed";
            diagnostics.push(Diagnostic::error(empty, message).hint(kinds));
        }
        let failed = diagnostics.iter().any(|d| d.severity == Severity::Error);
        diagnostics.sort_by_key(|d| (d.span.is_none(), d.span));
        let max = self.options.limits.diagnostics_max;
        if diagnostics.len() > max {
            // Errors come first, because the user must see them.
            diagnostics.sort_by_key(|d| d.severity != Severity::Error);
            let more = diagnostics.len() - max;
            let severity = if failed { Severity::Error } else { Severity::Warning };
            diagnostics.truncate(max);
            let mut rest = Diagnostic::error(None, format!("and {more} more"));
            rest.severity = severity;
            diagnostics.push(rest);
        }
        self.manifest.places = self.seen;
        Partial { manifest: self.manifest, diagnostics, is_complete: self.is_complete }
    }
}

/// Whether a document is a Docker Compose file: a map of services, each with an image or a build.
fn is_compose(node: &Node) -> bool {
    let services = node.get("services").and_then(Node::entries).unwrap_or_default();
    services.iter().any(|service| service.value.get("image").or(service.value.get("build")).is_some())
}

/// The longest name of a Job. Its pods have it as a label. The Jobs of a CronJob have a suffix after its
/// name.
fn job_name_bytes_max(kind: &str) -> Option<usize> {
    match kind {
        "Job" => Some(63),
        "CronJob" => Some(52),
        _ => None,
    }
}

fn no_name(node: &Node, kind: &str) -> Diagnostic {
    let span = node.entry("metadata").map_or(node.head(), |entry| entry.key_span);
    Diagnostic::error(span, format!("missing field `metadata.name` of this {kind}"))
}

/// Makes the checks of Kubernetes on a workload around its pod. Returns whether there is a pod.
fn check_template(workload: &Workload, node: &Node, out: &mut Vec<Diagnostic>) -> bool {
    let template = node.walk(&workload.template_path());
    let has_spec = template.node.get("spec").is_some_and(|spec| !spec.is_null());
    if !has_spec {
        let span = template.key.unwrap_or_else(|| template.node.head());
        let path = workload.template_path().field("spec");
        out.push(Diagnostic::error(span, format!("missing field `{path}`")));
    }
    let Some((selector, labels)) = workload.selector() else {
        return has_spec;
    };
    let policy = template.node.get("spec").and_then(|spec| spec.get("restartPolicy"));
    if let Some(policy) = policy.filter(|policy| policy.text().is_some_and(|text| text != "Always")) {
        let message =
            format!("a {} keeps its pods running: its restartPolicy can only be `Always`", workload.kind());
        out.push(Diagnostic::error(policy.head(), message).hint("leave it out, or make it a Job"));
    }
    for (key, value) in selector.match_labels.iter().flatten() {
        if labels.and_then(|labels| labels.get(key)) != Some(value) {
            let path = FieldPath::spec("selector").field("matchLabels").field(key.clone());
            let span = node.at(&path).map_or(node.head(), Node::head);
            let message =
                format!("the selector asks for `{key}: {value}`, which the template's labels do not have");
            let mut diagnostic = Diagnostic::error(span, message)
                .hint("make `spec.template.metadata.labels` contain all of `spec.selector.matchLabels`");
            let labels = node.walk(&FieldPath::spec("template").field("metadata").field("labels"));
            if let Some(key_span) = labels.key {
                diagnostic = diagnostic.label(key_span, "not found here");
            }
            out.push(diagnostic);
        }
    }
    has_spec
}

/// Makes the checks of Kubernetes on a Job, and warns about Job fields that a run ignores.
fn check_job(workload: &Workload, node: &Node, out: &mut Vec<Diagnostic>) {
    if let Workload::CronJob(cron) = workload
        && let Err(fault) = check_schedule(&cron.spec.schedule)
    {
        let span = node.at(&FieldPath::spec("schedule")).map_or(node.head(), Node::head);
        let message = format!("`schedule: {:?}`: {fault}", cron.spec.schedule);
        let hint = "write minute, hour, day of the month, month and day of the week, such as `0 3 * * *`";
        out.push(Diagnostic::error(span, message).hint(hint));
    } else if let Workload::CronJob(_) = workload {
        let span = node.at(&FieldPath::spec("schedule")).map_or(node.head(), Node::head);
        let message = "the schedule is not followed: the Job of this CronJob runs once, now";
        out.push(Diagnostic::note(span, message));
    }
    let Some(job) = workload.job() else { return };
    // A CronJob contains the Job.
    let root = match workload {
        Workload::CronJob(_) => FieldPath::spec("jobTemplate"),
        _ => FieldPath::root(),
    };
    let place = |path: FieldPath| {
        let whole = FieldPath(root.0.iter().cloned().chain(path.0).collect());
        let walk = node.walk(&whole);
        match walk.node.value {
            Value::Scalar(_) => walk.node.head(),
            _ => walk.key.unwrap_or_else(|| walk.node.head()),
        }
    };
    for finding in validate_job_fields(&job) {
        let mut diagnostic = Diagnostic::error(place(finding.path), finding.message);
        diagnostic.severity = finding.severity;
        diagnostic.hint = finding.hint;
        out.push(diagnostic);
    }
    let Some(spec) = &job.spec else { return };
    if spec.suspend == Some(true) {
        let message = "the Job is suspended: no pods are run";
        let hint = "write `suspend: false` to run it";
        out.push(Diagnostic::warning(place(FieldPath::spec("suspend")), message).hint(hint));
    }
    if spec.ttl_seconds_after_finished.is_some() {
        let message = "`ttlSecondsAfterFinished` is ignored: nothing of the Job is left when the run ends";
        out.push(Diagnostic::warning(place(FieldPath::spec("ttlSecondsAfterFinished")), message));
    }
}

/// Warns about annotations of Outrigger in the metadata of a workload. Nearly all of them belong to pods.
fn check_annotations(workload: &Workload, node: &Node, out: &mut Vec<Diagnostic>) {
    let metadata = |path: FieldPath| path.field("metadata").field("annotations");
    let template = workload.template_path();
    if template.0.is_empty() {
        return;
    }
    let own = metadata(FieldPath::root());
    // A CronJob contains the Job.
    let of_job = match workload {
        Workload::Job(_) => Some(own.clone()),
        Workload::CronJob(_) => Some(metadata(FieldPath::spec("jobTemplate"))),
        _ => None,
    };
    let pods = metadata(template);
    for place in BTreeSet::from([own.clone(), of_job.clone().unwrap_or(own)]) {
        for entry in node.at(&place).and_then(Node::entries).unwrap_or_default() {
            let name = &*entry.key;
            if !name.starts_with(annotations::PREFIX) {
                continue;
            }
            let unknown = || format!("unknown annotation {name}");
            let no_effect = || format!("{name} has no effect in `{place}` of a {}", workload.kind());
            let to = |place: &FieldPath| format!("move it to `{place}`");
            let (message, hint) = match (annotations::find(name).map(|row| row.place), &of_job) {
                (Some(AnnotationPlace::Job), Some(of_job)) if *of_job == place => continue,
                (Some(AnnotationPlace::Job), Some(of_job)) => (no_effect(), to(of_job)),
                (Some(AnnotationPlace::Job), None) => {
                    (no_effect(), "remove it: only a Job has it".to_owned())
                }
                (Some(AnnotationPlace::Pod), _) => (no_effect(), to(&pods)),
                (Some(AnnotationPlace::OperatorOnly), _) => {
                    (no_effect(), "remove it: only the operator writes it, to pods".to_owned())
                }
                (None, _) => match annotations::meant(name) {
                    Some(near) => (unknown(), format!("did you mean {near}?")),
                    None => (unknown(), "remove it: it has no effect".to_owned()),
                },
            };
            let mut diagnostic = Diagnostic::warning(entry.key_span, message).hint(hint);
            diagnostic.code = Some("option");
            out.push(diagnostic);
        }
    }
}

/// Converts paths of `lifecycle.type` inside the object to containers of the pod.
fn by_container(
    template_path: &FieldPath,
    lifecycle_types: Vec<(FieldPath, String)>,
) -> BTreeMap<ContainerRef, String> {
    let mut out = BTreeMap::new();
    for (path, text) in lifecycle_types {
        let Some(rest) = path.0.strip_prefix(template_path.0.as_slice()) else {
            continue;
        };
        let [Segment::Field(spec), Segment::Field(list), Segment::Index(index), ..] = rest else {
            continue;
        };
        let lists = [List::Init, List::Main, List::Ephemeral];
        if let Some(list) = lists.into_iter().find(|l| spec == "spec" && l.field() == list) {
            out.insert(ContainerRef { list, index: *index }, text);
        }
    }
    out
}
