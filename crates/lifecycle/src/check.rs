//! Everything there is to say about a pod before it runs, in one call: its plan is made once and checked with it.

use crate::dialect::{Planned, plan};
use crate::source::{FeatureGates, Finding, PodInput};
use crate::validate::{validate, validate_job, validate_plan};

/// What makes the pod, as far as that changes what is right for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodOwner {
    /// Nothing, or a workload that keeps its pods running.
    Other,
    /// A Job or CronJob without a podFailurePolicy.
    Job,
    /// A Job or CronJob with one.
    JobWithFailurePolicy,
}

/// A pod that was checked.
#[derive(Debug, Clone)]
pub struct CheckedPod {
    /// Its plan, unless there can be none.
    pub planned: Option<Planned>,
    /// What is wrong or odd. The rules of the pod and of its dialects overlap: some may be said twice.
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
