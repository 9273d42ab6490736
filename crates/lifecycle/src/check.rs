//! Checks a pod before it runs. The pod is planned once, and the plan is checked as well.

use crate::dialect::{Planned, plan};
use crate::source::{FeatureGates, Finding, PodInput};
use crate::validate::{validate, validate_job, validate_plan};

/// The kind of object that creates the pod, because that affects which settings are valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodOwner {
    /// No object, or a workload that keeps its pods running.
    Other,
    /// A Job or CronJob without a podFailurePolicy.
    Job,
    /// A Job or CronJob with a podFailurePolicy.
    JobWithFailurePolicy,
}

/// A pod that was checked.
#[derive(Debug, Clone)]
pub struct CheckedPod {
    /// The plan; `None` if the pod cannot be planned.
    pub planned: Option<Planned>,
    /// Errors, warnings and notes. Rules of pods and rules of dialects overlap, so the same finding may occur
    /// twice.
    pub findings: Vec<Finding>,
}

/// Checks a pod and makes its plan.
pub fn check(input: &PodInput, owner: PodOwner, features: &FeatureGates) -> CheckedPod {
    let mut findings = validate(input, features);
    match owner {
        PodOwner::Other => {}
        PodOwner::Job => findings.extend(validate_job(input, false)),
        PodOwner::JobWithFailurePolicy => findings.extend(validate_job(input, true)),
    }
    let planned = match plan(input, features) {
        Ok(planned) => {
            findings.extend(planned.warnings.iter().cloned());
            findings.extend(validate_plan(input, &planned.plan));
            Some(planned)
        }
        Err(problems) => {
            findings.extend(problems);
            None
        }
    };
    CheckedPod { planned, findings }
}
