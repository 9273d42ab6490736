//! The input of a run: pods and workloads with their plans.

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
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

/// The input of a run.
#[derive(Debug, Clone, Default)]
pub struct Work {
    /// Pods in manifest order, one per object. For a workload, it represents all its pods.
    pub pods: Vec<PlannedPod>,
    /// The workloads, as in [`outrigger_manifest::Manifest::workloads`].
    pub workloads: Vec<Workload>,
    /// Objects that the pods may refer to.
    pub companions: Companions,
    /// The Services of the pods.
    pub services: Vec<Service>,
    /// Endpoints of Services that do not select pods.
    pub endpoint_slices: Vec<EndpointSlice>,
    /// The source text, so that errors can show line numbers.
    pub sources: Vec<SourceFile>,
}

impl Work {
    /// The number of pods that run at the same time.
    pub fn pod_count(&self) -> usize {
        self.pods.iter().fold(0, |sum, pod| sum.saturating_add(pod.manifest.origin.count))
    }

    /// Namespaces and names of the pods whose names are not generated: bare pods and those of StatefulSets.
    pub(crate) fn fixed_pod_names(&self) -> impl Iterator<Item = (&str, String)> {
        let is_fixed = |pod: &&PlannedPod| {
            let workload = self.workloads.get(pod.manifest.origin.workload);
            matches!(workload, None | Some(Workload::Pod(_) | Workload::StatefulSet(_)))
        };
        self.pods.iter().filter(is_fixed).flat_map(move |pod| {
            let workload = self.workloads.get(pod.manifest.origin.workload);
            let name = move |nth| match workload {
                Some(workload) => workload.pod_name(nth),
                None => pod.manifest.name().to_owned(),
            };
            (0..pod.manifest.origin.count).map(move |nth| (pod.manifest.namespace(), name(nth)))
        })
    }
}
