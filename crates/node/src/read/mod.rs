//! Reads, checks and plans the manifests of a run.
//!
//! A run in the foreground, a run that is handed to a node, and a run that a node adopts from the previous
//! process are all read here, from the same [`RunRecord`]. They differ only in what is checked ([`Checks`]).

mod confinement;
mod limits;
mod machine;
mod publish;
mod runtime_classes;

use std::path::PathBuf;

use outrigger_agent::options::{OnFailure, UserNamespaces};
use outrigger_lifecycle::{Plan, PodSecurityLevel, Severity};
use outrigger_manifest::{
    Diagnostic, Manifest, ReadOptions, SourceFile, Workload, check, check_level, render,
};
use outrigger_runtime::NetworkMode;

pub use crate::read_options::RunReadOptions;
use crate::record::RunRecord;
use crate::work::{PlannedPod, Work};

pub use runtime_classes::{OciSettings, class_of};

/// What manifests are checked against, besides the rules of Kubernetes.
#[derive(Debug, Clone, Copy)]
pub enum Checks<'a> {
    /// A new run. It is refused if this machine lacks something that it needs.
    New(&'a Machine),
    /// A run that was already accepted. Its pods may be running, so it is refused only if it cannot be read.
    /// For example, an image that is no longer on this machine must not stop a pod.
    Accepted,
}

/// The machine that pods will run on.
#[derive(Debug, Clone)]
pub struct Machine {
    /// The runtime of the pods. `None` for a client of a node, because only the node knows it.
    pub runtime: Option<RuntimeKind>,
    /// The directory of seccomp profiles. `None` if a missing profile does not refuse a pod.
    pub state_dir: Option<PathBuf>,
    /// What a failure does to a pod. If every failure is retried, a failure that can never be resolved is
    /// only a warning.
    pub on_failure: OnFailure,
}

/// The kinds of runtimes.
#[derive(Debug, Clone)]
pub enum RuntimeKind {
    /// The embedded runtime, with the OCI runtimes it may use.
    Embedded(OciSettings),
    /// A CRI runtime.
    Cri,
}

impl Machine {
    fn is_cri(&self) -> bool {
        matches!(self.runtime, Some(RuntimeKind::Cri))
    }
}

/// Manifests that can be run.
#[derive(Debug, Clone)]
pub struct Read {
    /// The pods and workloads.
    pub work: Work,
    /// The warnings about them.
    pub warnings: Vec<Diagnostic>,
}

/// Why manifests cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The manifests are invalid, or request something that this machine does not have.
    #[error("{}", render(.diagnostics, .sources, false))]
    Manifest {
        /// The errors, and the warnings found with them.
        diagnostics: Vec<Diagnostic>,
        /// The texts they point to.
        sources: Vec<SourceFile>,
    },
    /// An option does not match the manifests.
    #[error("{0}")]
    Option(String),
}

/// Reads the manifests of a run and plans each pod.
///
/// # Errors
/// Returns all errors of the first stage that finds any.
pub fn read(record: &RunRecord, checks: Checks<'_>) -> Result<Read, ReadError> {
    let RunRecord { reading, pods: options, .. } = record;
    if reading.restricted {
        check_restricted_options(options.network, options.user_namespaces)?;
    }
    let sources = record.source_files();
    let was_accepted = matches!(checks, Checks::Accepted);
    let manifest_options = ReadOptions { was_accepted, ..reading.manifest_options() };
    let manifest = match outrigger_manifest::read(&sources, &manifest_options) {
        Ok(manifest) => manifest,
        Err(refused) => return Err(ReadError::Manifest { diagnostics: refused.0, sources }),
    };
    check_replicas(reading, &manifest)?;
    let (plans, mut diagnostics) = plan_pods(&manifest, reading);
    let is_refused = |all: &[Diagnostic]| all.iter().any(|d| d.severity == Severity::Error);
    // A pod that was started must not stop because a newer version of Outrigger refuses it.
    let mut refused = match checks {
        Checks::New(machine) => {
            diagnostics.extend(machine::check(&manifest, machine));
            is_refused(&diagnostics)
        }
        Checks::Accepted => plans.len() != manifest.pods.len(),
    };
    if reading.restricted {
        let level = check_level(&manifest, PodSecurityLevel::Restricted);
        refused |= is_refused(&level);
        diagnostics.extend(level);
    }
    if refused {
        return Err(ReadError::Manifest { diagnostics, sources });
    }
    // Every pod has a plan.
    let planned = manifest.pods.into_iter().zip(plans).map(|(manifest, plan)| PlannedPod { manifest, plan });
    let work = Work {
        pods: planned.collect(),
        workloads: manifest.workloads,
        companions: manifest.companions,
        services: manifest.services,
        endpoint_slices: manifest.endpoint_slices,
        sources,
    };
    if let Checks::New(machine) = checks {
        publish::check(&options.publish, &work)?;
        diagnostics.extend(check_runtime(&work, machine, options.network)?);
    }
    diagnostics.retain(|d| d.severity != Severity::Error);
    Ok(Read { work, warnings: diagnostics })
}

/// The plan of each pod that can have one, and the errors and warnings.
fn plan_pods(manifest: &Manifest, options: &RunReadOptions) -> (Vec<Plan>, Vec<Diagnostic>) {
    let mut diagnostics = manifest.warnings.clone();
    let mut plans = Vec::new();
    for checked in check(manifest, &options.features) {
        diagnostics.extend(checked.diagnostics);
        plans.extend(checked.planned.map(|planned| planned.plan));
    }
    (plans, diagnostics)
}

/// Errors for settings that the runtime cannot apply, and warnings about those that have no effect.
fn check_runtime(work: &Work, machine: &Machine, network: NetworkMode) -> Result<Vec<Diagnostic>, ReadError> {
    let findings = match &machine.runtime {
        None => return Ok(Vec::new()),
        Some(RuntimeKind::Cri) => confinement::check_cri(work),
        Some(RuntimeKind::Embedded(oci)) => {
            let mut findings = runtime_classes::check(work.pods.iter().map(|pod| &pod.manifest), oci);
            findings.extend(confinement::check(work));
            findings.extend(confinement::check_network(work, network));
            findings
        }
    };
    if findings.iter().any(|d| d.severity == Severity::Error) {
        return Err(ReadError::Manifest { diagnostics: findings, sources: work.sources.clone() });
    }
    let mut warnings = findings;
    if !machine.is_cri() {
        warnings.extend(limits::without_effect(work));
    }
    Ok(warnings)
}

/// Refuses a number of replicas for manifests without a workload that has replicas.
fn check_replicas(options: &RunReadOptions, manifest: &Manifest) -> Result<(), ReadError> {
    let has_replicas =
        |w: &Workload| !matches!(w, Workload::Pod(_) | Workload::Job(_) | Workload::CronJob(_));
    if options.replicas.is_none() || manifest.workloads.iter().any(has_replicas) {
        return Ok(());
    }
    let text = "--replicas needs a Deployment, ReplicaSet, StatefulSet or DaemonSet; the manifest has none";
    Err(ReadError::Option(text.to_owned()))
}

/// Checks that options do not give a pod of `--restricted` what its manifest may not request.
///
/// # Errors
/// Returns the option that cannot be used, and what to use instead.
pub fn check_restricted_options(network: NetworkMode, users: UserNamespaces) -> Result<(), ReadError> {
    let (flag, instead) = match (network, users) {
        (NetworkMode::Host, _) => ("--network host", "--network private"),
        (_, UserNamespaces::Host) => ("--userns host", "--userns auto"),
        (NetworkMode::Private | NetworkMode::None, UserNamespaces::Auto) => return Ok(()),
    };
    Err(ReadError::Option(format!(
        "{flag} cannot be used with --restricted, of this command or of the node; use {instead}"
    )))
}

/// Checks a manifest for what a run on this machine would refuse. For commands that do not run it.
pub fn check_machine(manifest: &Manifest, machine: &Machine) -> Vec<Diagnostic> {
    let mut found = machine::check(manifest, machine);
    if let Some(RuntimeKind::Embedded(oci)) = &machine.runtime {
        found.extend(runtime_classes::check(manifest.pods.iter(), oci));
    }
    found
}

#[cfg(test)]
mod tests;
