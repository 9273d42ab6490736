//! The pods of a manifest, checked and planned once.

use outrigger_lifecycle::{FeatureGates, Planned, PodOwner};

use crate::diagnostic::Diagnostic;
use crate::pod::PodManifest;
use crate::read::Manifest;
use crate::workload::Workload;

/// One pod of a manifest (one for all that a workload makes of it), with all there is to say about it.
#[derive(Debug)]
pub struct Checked<'m> {
    /// The pod.
    pub pod: &'m PodManifest,
    /// How many like it there are.
    pub count: usize,
    /// Its plan, unless there can be none.
    pub planned: Option<Planned>,
    /// What is wrong or odd, in the order of the text.
    pub diagnostics: Vec<Diagnostic>,
}

/// Checks the pods of a manifest.
pub fn check<'m>(manifest: &'m Manifest, features: &FeatureGates) -> Vec<Checked<'m>> {
    let workload = |pod: &PodManifest| manifest.workloads.get(pod.origin.workload);
    manifest.pods.iter().map(|pod| check_pod(pod, workload(pod), features)).collect()
}

fn check_pod<'m>(pod: &'m PodManifest, workload: Option<&Workload>, features: &FeatureGates) -> Checked<'m> {
    let owner = match workload.and_then(Workload::job_spec) {
        None => PodOwner::Other,
        Some(job) if job.pod_failure_policy.is_some() => PodOwner::JobWithFailurePolicy,
        Some(_) => PodOwner::Job,
    };
    let checked = outrigger_lifecycle::check(&pod.input, owner, features);
    let mut diagnostics: Vec<Diagnostic> = Vec::new();
    for finding in &checked.findings {
        let diagnostic = Diagnostic::from_finding(finding, pod);
        // The rules of the pod and of its dialects overlap: what both say is said once.
        let said = |d: &Diagnostic| d.span == diagnostic.span && d.code == diagnostic.code;
        if !diagnostics.iter().any(said) {
            diagnostics.push(diagnostic);
        }
    }
    diagnostics.sort_by_key(|d| d.span);
    Checked { pod, count: pod.origin.count, planned: checked.planned, diagnostics }
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
        let places: std::collections::BTreeSet<_> = found.iter().map(|d| (d.span, d.code)).collect();
        assert_eq!(places.len(), found.len(), "nothing is said twice: {found:?}");
    }
}
