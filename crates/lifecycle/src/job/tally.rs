//! Counts the pods of a Job by their states and results.

use std::collections::{BTreeMap, BTreeSet};

use super::indexes::Indexes;
use super::observation::{JobEnd, JobObservation, JobPod};
use super::plan::{FailureAction, JobPlan};
use super::policy;
use crate::status::Phase;
use crate::time::Time;

/// The counts over the pods of a Job.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// Pods that have neither ended nor been told to stop.
    pub(super) active: u32,
    /// Active pods that are ready.
    pub(super) ready: u32,
    /// Pods that were told to stop and have not ended.
    pub(super) terminating: u32,
    /// Pods that succeeded; for an Indexed Job, indexes that succeeded.
    pub(super) succeeded: u32,
    /// Pods that failed, without those that the failure policy ignores.
    pub(super) failed: u32,
    /// Restarts of containers in pods that have not ended.
    pub(super) restarts: u32,
    /// The containers whose restarts those are.
    pub(super) restarted: BTreeSet<String>,
    pub(super) succeeded_indexes: Indexes,
    pub(super) failed_indexes: Indexes,
    /// Failures since the last success, including ignored ones.
    pub(super) failures_in_a_row: u32,
    pub(super) last_failure: Option<Time>,
    /// The state of each index.
    pub(super) indexes: BTreeMap<u32, IndexTally>,
    /// The message of the first pod for which the policy fails the Job.
    pub(super) fail_job: Option<String>,
}

/// The state of one index.
#[derive(Debug, Default)]
pub(super) struct IndexTally {
    /// The number of pods that were created for it.
    pub(super) pods: u32,
    pub(super) active: bool,
    pub(super) terminating: bool,
    succeeded: bool,
    failed: bool,
    /// Failures without those that the policy ignores.
    counted: u32,
    pub(super) failures: u32,
    pub(super) last_failure: Option<Time>,
}

impl Tally {
    pub(super) fn new(plan: &JobPlan, obs: &JobObservation) -> Self {
        let mut tally = Tally::default();
        let mut last_success = None;
        for pod in &obs.pods {
            tally.add_pod(plan, obs, pod, &mut last_success);
        }
        let failures = obs.pods.iter().filter(|pod| failed(plan, obs, pod));
        let in_a_row = failures.filter(|pod| Some(failed_at(pod)) > last_success).count();
        tally.failures_in_a_row = u32::try_from(in_a_row).unwrap_or(u32::MAX);
        let having = |test: fn(&IndexTally) -> bool| {
            tally.indexes.iter().filter(|(_, t)| test(t)).map(|(index, _)| *index).collect::<Indexes>()
        };
        tally.succeeded_indexes = having(|t| t.succeeded);
        tally.failed_indexes = having(|t| t.failed && !t.succeeded);
        if plan.indexed {
            tally.succeeded = tally.succeeded_indexes.len();
        }
        tally
    }

    fn add_pod(
        &mut self,
        plan: &JobPlan,
        obs: &JobObservation,
        pod: &JobPod,
        last_success: &mut Option<Time>,
    ) {
        let ended = pod.phase.is_terminal();
        let mut unindexed = IndexTally::default();
        let index = match pod.index.filter(|_| plan.indexed) {
            Some(index) => self.indexes.entry(index).or_default(),
            None => &mut unindexed,
        };
        index.pods += 1;
        if pod.is_active() {
            self.active += 1;
            self.ready += u32::from(pod.ready);
            index.active = true;
        } else if !ended {
            self.terminating += 1;
            index.terminating = true;
        }
        if !ended {
            self.restarts = self.restarts.saturating_add(pod.restarts);
            self.restarted.extend(pod.restarted.iter().cloned());
        }
        if failed(plan, obs, pod) {
            let at = failed_at(pod);
            self.last_failure = self.last_failure.max(Some(at));
            index.last_failure = index.last_failure.max(Some(at));
            index.failures += 1;
            let verdict = policy::failure_policy_action(plan, pod);
            match verdict.action {
                FailureAction::Ignore => {}
                FailureAction::Count => index.counted += 1,
                FailureAction::FailIndex => {
                    index.counted += 1;
                    index.failed = true;
                }
                FailureAction::FailJob => {
                    index.counted += 1;
                    self.fail_job.get_or_insert_with(|| verdict.message(plan, pod));
                }
            }
            self.failed += u32::from(verdict.action != FailureAction::Ignore);
            index.failed |= plan.backoff_limit_per_index.is_some_and(|limit| index.counted > limit);
        } else if pod.phase == Phase::Succeeded {
            self.succeeded += 1;
            index.succeeded = true;
            *last_success = (*last_success).max(pod.finished_at);
        }
    }
}

/// Whether a pod counts as failed: it has failed, or it was told to stop and is not waited for. Once the
/// Job's end is decided, every pod that was told to stop before it had ended counts as failed, even if it
/// exits with success.
fn failed(plan: &JobPlan, obs: &JobObservation, pod: &JobPod) -> bool {
    let ended_for = |end: &JobEnd| pod.finished_at.is_none_or(|at| at > end.decided_at);
    let gone = pod.deleted_at.is_some();
    pod.phase == Phase::Failed
        || gone && (plan.replaces_terminating || obs.target.as_ref().is_some_and(ended_for))
}

/// When a failed pod failed. If it is still stopping, this is when it was told to stop.
fn failed_at(pod: &JobPod) -> Time {
    pod.finished_at.or(pod.deleted_at).unwrap_or(pod.created_at)
}
