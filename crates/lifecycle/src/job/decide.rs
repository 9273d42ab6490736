//! Decides which pods of a Job to create and delete, and when the Job is over.

use super::observation::{JobEnd, JobObservation, JobOutcome};
use super::plan::JobPlan;
use super::policy;
use super::tally::Tally;
use crate::time::Time;

/// What to do about a Job now.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct JobDecision {
    /// The pods to create.
    pub create: Vec<PodOrder>,
    /// The pods to delete, by their index in [`JobObservation::pods`].
    pub delete: Vec<usize>,
    /// How the Job will end. The caller stores it in [`JobObservation::target`].
    pub target: Option<JobEnd>,
    /// How the Job has ended: its end is decided and it has no pods left.
    pub finished: Option<JobEnd>,
    /// When the next pods may be created, if the back-off delays them.
    pub backoff_until: Option<Time>,
    /// When to decide again if nothing happens before.
    pub wake: Option<Time>,
}

/// One pod to create.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PodOrder {
    /// Its completion index, if the Job is Indexed.
    pub index: Option<u32>,
    /// How many pods were created before it, for its index, or for the Job if there are no indexes.
    pub attempt: u32,
}

/// Decides what to do about a Job now.
pub fn decide_job(plan: &JobPlan, obs: &JobObservation, now: Time) -> JobDecision {
    let tally = Tally::new(plan, obs);
    let deadline = plan.active_deadline_ms.map(|ms| obs.since + ms);
    let mut decision = JobDecision::default();
    if obs.deleted {
        decision.target = obs.target.clone();
        return decision;
    }
    let target = obs.target.clone();
    let target =
        target.or_else(|| failure(plan, &tally, deadline, now)).or_else(|| success(plan, &tally, now));
    if let Some(end) = target {
        let active = |i: &usize| obs.pods[*i].is_active();
        decision.delete = (0..obs.pods.len()).filter(active).collect();
        decision.target = Some(end.clone());
        // Kubernetes sets Complete or Failed only once all pods have ended.
        decision.finished = Some(end).filter(|_| tally.active + tally.terminating == 0);
        return decision;
    }
    decision.wake = deadline;
    surplus(plan, obs, &tally, &mut decision);
    if decision.delete.is_empty() {
        create(plan, obs, &tally, now, &mut decision);
    }
    if let Some(at) = decision.backoff_until {
        decision.wake = Some(decision.wake.map_or(at, |wake| wake.min(at)));
    }
    decision
}

fn end(outcome: JobOutcome, now: Time, reason: &str, message: impl Into<String>) -> JobEnd {
    JobEnd { outcome, decided_at: now, reason: reason.to_owned(), message: message.into() }
}

/// Why the Job has failed, if it has, in the order of the Job controller's checks.
fn failure(plan: &JobPlan, tally: &Tally, deadline: Option<Time>, now: Time) -> Option<JobEnd> {
    let failed = |reason, message: &str| Some(end(JobOutcome::Failed, now, reason, message));
    if plan.suspend {
        return None;
    }
    if let Some(message) = &tally.fail_job {
        return failed("PodFailurePolicy", message);
    }
    let restarts_spent = plan.counts_restarts && tally.restarts >= plan.backoff_limit.max(1);
    if tally.failed > plan.backoff_limit || restarts_spent {
        let mut message = "Job has reached the specified backoff limit".to_owned();
        // Its pods may have succeeded: a sidecar's restarts count, too.
        if restarts_spent && !tally.restarted.is_empty() {
            let names: Vec<String> = tally.restarted.iter().map(|name| format!("`{name}`")).collect();
            let restarts = if tally.restarts == 1 { "restart" } else { "restarts" };
            message = format!("{message}: {} {restarts} of {}", tally.restarts, names.join(", "));
        }
        return failed("BackoffLimitExceeded", &message);
    }
    if deadline.is_some_and(|at| at <= now) {
        return failed("DeadlineExceeded", "Job was active longer than specified deadline");
    }
    if plan.backoff_limit_per_index.is_some() {
        let lost = tally.failed_indexes.len();
        if plan.max_failed_indexes.is_some_and(|max| lost > max) {
            let message = "Job has exceeded the specified maximal number of failed indexes";
            return failed("MaxFailedIndexesExceeded", message);
        }
        if lost > 0 && lost + tally.succeeded_indexes.len() >= plan.completions.unwrap_or(0) {
            return failed("FailedIndexes", "Job has failed indexes");
        }
    }
    None
}

/// Why the Job is complete, if it is.
fn success(plan: &JobPlan, tally: &Tally, now: Time) -> Option<JobEnd> {
    let complete = |reason, message: String| Some(end(JobOutcome::Complete, now, reason, message));
    if let Some(rule) = policy::success(plan, &tally.succeeded_indexes).filter(|_| plan.indexed) {
        return complete("SuccessPolicy", format!("Matched rules at index {rule}"));
    }
    let enough = match plan.completions {
        Some(completions) => tally.succeeded >= completions,
        // In a work queue, the pods that are still running may finish.
        None => tally.succeeded > 0,
    };
    if enough && tally.active == 0 {
        return complete("CompletionsReached", "Reached expected number of succeeded pods".to_owned());
    }
    if plan.suspend && tally.active == 0 {
        return Some(end(JobOutcome::Suspended, now, "JobSuspended", "Job suspended"));
    }
    if plan.parallelism == 0 && tally.active == 0 {
        return Some(end(JobOutcome::Suspended, now, "NoParallelism", "parallelism is 0: no pods are made"));
    }
    None
}

fn wanted(plan: &JobPlan, tally: &Tally) -> u32 {
    match plan.completions {
        _ if plan.suspend => 0,
        Some(completions) => completions.saturating_sub(tally.succeeded).min(plan.parallelism),
        None if tally.succeeded > 0 => tally.active,
        None => plan.parallelism,
    }
}

/// Deletes surplus pods, the youngest first.
fn surplus(plan: &JobPlan, obs: &JobObservation, tally: &Tally, decision: &mut JobDecision) {
    let surplus = tally.active.saturating_sub(wanted(plan, tally)) as usize;
    let active = |i: &usize| obs.pods[*i].is_active();
    decision.delete = (0..obs.pods.len()).rev().filter(active).take(surplus).collect();
}

fn create(plan: &JobPlan, obs: &JobObservation, tally: &Tally, now: Time, decision: &mut JobDecision) {
    let waited_for = if plan.replaces_terminating { 0 } else { tally.terminating };
    let missing = wanted(plan, tally).saturating_sub(tally.active).saturating_sub(waited_for);
    if missing == 0 {
        return;
    }
    if plan.backoff_limit_per_index.is_none() {
        let at = tally.last_failure.map_or(Time(0), |at| at + wait_ms(plan, tally.failures_in_a_row));
        if tally.failures_in_a_row > 0 && at > now {
            decision.backoff_until = Some(at);
            return;
        }
    }
    if !plan.indexed {
        let made = u32::try_from(obs.pods.len()).unwrap_or(u32::MAX);
        let order = |i| PodOrder { index: None, attempt: made.saturating_add(i) };
        decision.create = (0..missing).map(order).collect();
        return;
    }
    // Kubernetes chooses the first free indexes before it checks their back-off. The other indexes wait.
    let free = |index: &u32| {
        let busy = tally
            .indexes
            .get(index)
            .is_some_and(|t| t.active || (t.terminating && !plan.replaces_terminating));
        let failed = plan.backoff_limit_per_index.is_some() && tally.failed_indexes.contains(*index);
        !busy && !failed && !tally.succeeded_indexes.contains(*index)
    };
    let mut next_try: Option<Time> = None;
    for index in (0..plan.completions.unwrap_or(0)).filter(free).take(missing as usize) {
        let known = tally.indexes.get(&index);
        let retry = known.filter(|t| t.failures > 0 && plan.backoff_limit_per_index.is_some());
        let at = retry.and_then(|t| Some(t.last_failure? + wait_ms(plan, t.failures)));
        match at {
            Some(at) if at > now => next_try = Some(next_try.map_or(at, |next| next.min(at))),
            _ => {
                let attempt = known.map_or(0, |t| t.pods);
                decision.create.push(PodOrder { index: Some(index), attempt });
            }
        }
    }
    decision.backoff_until = next_try;
}

/// The wait after the n-th failure in a row, n from 1.
fn wait_ms(plan: &JobPlan, failures: u32) -> u64 {
    let doubled = plan.backoff_ms.saturating_mul(1 << failures.saturating_sub(1).min(30));
    doubled.min(plan.backoff_ms_max)
}
