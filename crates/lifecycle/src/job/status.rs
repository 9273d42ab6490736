//! The status of a Job, as `kubectl get job -o yaml` shows it.

use k8s_openapi::api::batch::v1::{JobCondition, JobStatus, UncountedTerminatedPods};

use super::decide::JobDecision;
use super::observation::{JobEnd, JobObservation, JobOutcome};
use super::plan::JobPlan;
use super::tally::Tally;
use crate::status::k8s_time;
use crate::time::Time;

/// The complete `.status` of a Job. `decision` is the last one.
pub fn job_status(
    plan: &JobPlan,
    obs: &JobObservation,
    decision: &JobDecision,
    previous: Option<&JobStatus>,
    now: Time,
) -> JobStatus {
    let tally = Tally::new(plan, obs);
    let number = |n: u32| Some(i32::try_from(n).unwrap_or(i32::MAX)).filter(|n| *n > 0);
    let some = |n: u32| Some(number(n).unwrap_or(0));
    let conditions = conditions(decision, previous, now);
    let complete = conditions.iter().any(|c| c.type_ == "Complete");
    let finished = previous.and_then(|s| s.completion_time.clone());
    JobStatus {
        active: number(tally.active),
        ready: some(tally.ready),
        terminating: some(tally.terminating),
        succeeded: number(tally.succeeded),
        failed: number(tally.failed),
        completed_indexes: plan
            .indexed
            .then(|| tally.succeeded_indexes.to_string())
            .filter(|s| !s.is_empty()),
        failed_indexes: plan.backoff_limit_per_index.map(|_| tally.failed_indexes.to_string()),
        // A suspended Job has not started.
        start_time: (!plan.suspend).then(|| k8s_time(obs.since)),
        completion_time: complete.then(|| finished.unwrap_or_else(|| k8s_time(now))),
        conditions: Some(conditions).filter(|all| !all.is_empty()),
        uncounted_terminated_pods: Some(UncountedTerminatedPods::default()),
    }
}

/// The conditions of a Job. When its end is decided, it gets a condition that says so. The final condition
/// follows when all pods have ended.
fn conditions(decision: &JobDecision, previous: Option<&JobStatus>, now: Time) -> Vec<JobCondition> {
    let old = previous.and_then(|s| s.conditions.as_deref()).unwrap_or_default();
    let make = |kind: &str, end: &JobEnd| {
        old.iter().find(|c| c.type_ == kind).cloned().unwrap_or_else(|| JobCondition {
            type_: kind.to_owned(),
            status: "True".to_owned(),
            reason: Some(end.reason.clone()),
            message: Some(end.message.clone()),
            last_probe_time: Some(k8s_time(now)),
            last_transition_time: Some(k8s_time(now)),
        })
    };
    let Some(end) = &decision.target else { return Vec::new() };
    let (announced, last) = match end.outcome {
        JobOutcome::Complete => ("SuccessCriteriaMet", "Complete"),
        JobOutcome::Failed => ("FailureTarget", "Failed"),
        JobOutcome::Suspended => return vec![make("Suspended", end)],
    };
    let mut out = vec![make(announced, end)];
    out.extend(decision.finished.as_ref().map(|end| make(last, end)));
    out
}
