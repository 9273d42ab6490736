//! What is run.

use outrigger_lifecycle::Plan;
use outrigger_manifest::{Companions, PodManifest, SourceFile, Workload};

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
    /// Pods, in the order written. Those of one workload are alike: the first stands for all it will make.
    pub pods: Vec<PlannedPod>,
    /// What they come out of, as [`outrigger_manifest::Manifest::workloads`] has it.
    pub workloads: Vec<Workload>,
    /// What they may refer to.
    pub companions: Companions,
    /// The text they were read from, so that failures can name their line.
    pub sources: Vec<SourceFile>,
}
