//! Checks and plans the pods of a manifest, each of them once.

use std::collections::BTreeSet;

use outrigger_lifecycle::{
    FeatureGates, FieldPath, Finding, Planned, PodOwner, PodSecurityLevel, validate_level, validate_name,
};

use crate::diagnostic::Diagnostic;
use crate::pod::PodManifest;
use crate::read::Manifest;
use crate::references::check_references;
use crate::span::Span;
use crate::tree::Node;
use crate::workload::Workload;

/// A pod of a manifest with the result of its check. One pod represents all pods of a workload.
#[derive(Debug)]
pub struct Checked<'m> {
    /// The pod.
    pub pod: &'m PodManifest,
    /// The number of pods that it represents.
    pub count: usize,
    /// Its plan; `None` if it cannot be planned.
    pub planned: Option<Planned>,
    /// Errors, warnings and notes, in the order of the text.
    pub diagnostics: Vec<Diagnostic>,
}

/// Checks the pods of a manifest.
pub fn check<'m>(manifest: &'m Manifest, features: &FeatureGates) -> Vec<Checked<'m>> {
    let workload = |pod: &PodManifest| manifest.workloads.get(pod.origin.workload);
    manifest.pods.iter().map(|pod| check_pod(pod, workload(pod), features)).collect()
}

/// Checks the pods of a manifest, and that the manifest contains everything that they refer to. This is for
/// commands that do not run the pods.
pub fn check_with_references<'m>(manifest: &'m Manifest, features: &FeatureGates) -> Vec<Checked<'m>> {
    let mut checked = check(manifest, features);
    for one in &mut checked {
        one.diagnostics.extend(check_references(manifest, one.pod));
        one.diagnostics.sort_by_key(|d| d.span);
    }
    checked
}

/// What a Pod Security Standard does not allow in the pods of a manifest, in the order of the text.
pub fn check_level(manifest: &Manifest, level: PodSecurityLevel) -> Vec<Diagnostic> {
    let of_pod = |pod: &PodManifest| {
        let findings = validate_level(&pod.input, level);
        findings.iter().map(|finding| Diagnostic::from_finding(finding, pod)).collect::<Vec<_>>()
    };
    let mut all: Vec<Diagnostic> = manifest.pods.iter().flat_map(of_pod).collect();
    all.sort_by_key(|d| d.span);
    all
}

fn check_pod<'m>(pod: &'m PodManifest, workload: Option<&Workload>, features: &FeatureGates) -> Checked<'m> {
    let owner = match workload.and_then(Workload::job_spec) {
        None => PodOwner::Other,
        Some(job) if job.pod_failure_policy.is_some() => PodOwner::JobWithFailurePolicy,
        Some(_) => PodOwner::Job,
    };
    let checked = outrigger_lifecycle::check(&pod.input, owner, features);
    let mut said: BTreeSet<(Span, &str)> = BTreeSet::new();
    let mut diagnostics: Vec<Diagnostic> = Vec::new();
    for finding in &checked.findings {
        // Rules of pods and rules of dialects overlap. A finding of both is reported once.
        if !follows_from_name(finding, pod) && said.insert((pod.point(&finding.path), finding.code)) {
            diagnostics.push(Diagnostic::from_finding(finding, pod));
        }
    }
    diagnostics.extend(name(pod));
    diagnostics.sort_by_key(|d| d.span);
    Checked { pod, count: pod.origin.count, planned: checked.planned, diagnostics }
}

/// Whether a finding is about a name that is derived from the object's name. [`name`] checks the object's
/// name itself.
fn follows_from_name(finding: &Finding, pod: &PodManifest) -> bool {
    let name = FieldPath::root().field("metadata").field("name");
    finding.path == name || (finding.path == FieldPath::spec("hostname") && pod.node(&finding.path).is_none())
}

/// The problem with the object's name, as its author wrote it.
fn name(pod: &PodManifest) -> Option<Diagnostic> {
    let path = |field: &'static str| FieldPath::root().field("metadata").field(field);
    let written = |field| {
        let text = pod.origin.object.at(&path(field)).and_then(Node::text);
        text.filter(|text| !text.is_empty()).map(|text| (field, text))
    };
    let (field, text) = written("name").or_else(|| written("generateName"))?;
    // The generated suffix makes a trailing dash valid.
    let text = if field == "generateName" { text.trim_end_matches('-') } else { text };
    let mut finding = validate_name(pod.origin.kind, text)?;
    finding.path = path(field);
    Some(Diagnostic::from_finding(&finding, pod))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::{ReadOptions, read};
    use crate::span::SourceFile;

    #[test]
    fn pods_of_one_workload_are_checked_once() {
        let text = r#"{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {
            "replicas": 3, "selector": {"matchLabels": {"app": "w"}}, "template": {
            "metadata": {"labels": {"app": "w"}, "annotations": {"outrigger.dev/depends-on": "a: nobody ready"}},
            "spec": {"containers": [{"name": "a", "image": "i"}]}}}}"#;
        let manifest = read(&[SourceFile::new("web.json", text)], &ReadOptions::default()).unwrap();
        let checked = check(&manifest, &FeatureGates::default());
        assert_eq!((checked.len(), checked[0].count), (1, 3));
        assert!(checked[0].planned.is_none());
        let found = &checked[0].diagnostics;
        assert!(found.iter().any(|d| d.message.contains("nobody") && d.span.is_some()), "{found:?}");
        let places: BTreeSet<_> = found.iter().map(|d| (d.span, d.code)).collect();
        assert_eq!(places.len(), found.len(), "nothing is said twice: {found:?}");
    }
}
