//! What is run.

use outrigger_lifecycle::{Companions, Plan};
use outrigger_manifest::{PodManifest, SourceFile, Workload};

/// A pod with its plan.
#[derive(Debug, Clone)]
pub struct PlannedPod {
    /// The pod.
    pub manifest: PodManifest,
    /// Its plan.
    pub plan: Plan,
}

/// What is run.
#[derive(Debug, Clone, Default)]
pub struct Work {
    /// Pods, in the order written: one for each object, which stands for all it will make.
    pub pods: Vec<PlannedPod>,
    /// What they come out of, as [`outrigger_manifest::Manifest::workloads`] has it.
    pub workloads: Vec<Workload>,
    /// What they may refer to.
    pub companions: Companions,
    /// The text they were read from, so that failures can name their line.
    pub sources: Vec<SourceFile>,
}

impl Work {
    /// The number of pods that run at once.
    pub fn pod_count(&self) -> usize {
        self.pods.iter().fold(0, |sum, pod| sum.saturating_add(pod.manifest.origin.count))
    }

    /// Namespaces and names of the pods that are made first.
    pub(crate) fn pod_names(&self) -> impl Iterator<Item = (&str, String)> {
        self.pods.iter().flat_map(move |pod| {
            let workload = self.workloads.get(pod.manifest.origin.workload);
            let name = move |nth| match workload {
                Some(workload) => workload.pod_name(nth),
                None => pod.manifest.name().to_owned(),
            };
            (0..pod.manifest.origin.count).map(move |nth| (pod.manifest.namespace(), name(nth)))
        })
    }
}
