//! The plan of a Job, with Kubernetes' defaults filled in.

use k8s_openapi::api::batch::v1::{Job, PodFailurePolicyRule, SuccessPolicyRule};
use serde::{Deserialize, Serialize};

use super::indexes::Indexes;
use crate::backoff::backoff_range;
use crate::dialect::annotations::POD_BACKOFF;

/// Kubernetes' delay after the first failed pod, and the longest delay.
const BACKOFF_MS: (u64, u64) = (10_000, 600_000);

/// Kubernetes' default of `backoffLimit`.
const BACKOFF_LIMIT: u32 = 6;

/// The plan of a Job: its spec in the form that the decisions need.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobPlan {
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// The number of pods that must succeed. `None`: one success is enough, and no pods are created after it.
    pub completions: Option<u32>,
    /// The number of pods that may run at the same time.
    pub parallelism: u32,
    /// Each completion has an index, and every index needs a success.
    pub indexed: bool,
    /// The number of failed pods that the Job tolerates (or restarts, see [`JobPlan::counts_restarts`]).
    pub backoff_limit: u32,
    /// The number of failed pods that each index tolerates.
    pub backoff_limit_per_index: Option<u32>,
    /// The number of failed indexes that the Job tolerates; no limit if it is not set.
    pub max_failed_indexes: Option<u32>,
    /// How long the Job may take.
    pub active_deadline_ms: Option<u64>,
    /// `podFailurePolicy`: the first matching rule decides.
    pub failure_rules: Vec<FailureRule>,
    /// `successPolicy`: one matching rule is enough.
    pub success_rules: Vec<SuccessRule>,
    /// A pod that is being deleted counts as failed and is replaced immediately (`TerminatingOrFailed`).
    pub replaces_terminating: bool,
    /// The Job is suspended: no pods are created.
    pub suspend: bool,
    /// The pods restart their containers (`OnFailure`), so restarts count towards [`JobPlan::backoff_limit`].
    pub counts_restarts: bool,
    /// The delay after the first failed pod. It doubles with each further one.
    pub backoff_ms: u64,
    /// The maximum delay.
    pub backoff_ms_max: u64,
}

/// The consequence of a failed pod for its Job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FailureAction {
    /// The Job fails.
    FailJob,
    /// The pod's index fails, and is not tried again.
    FailIndex,
    /// The failure does not count.
    Ignore,
    /// The failure counts as if there were no rule.
    Count,
}

impl FailureAction {
    /// The name in a manifest.
    pub fn name(self) -> &'static str {
        match self {
            FailureAction::FailJob => "FailJob",
            FailureAction::FailIndex => "FailIndex",
            FailureAction::Ignore => "Ignore",
            FailureAction::Count => "Count",
        }
    }

    pub(super) fn from_name(name: &str) -> Option<Self> {
        let all = [Self::FailJob, Self::FailIndex, Self::Ignore, Self::Count];
        all.into_iter().find(|action| action.name() == name)
    }
}

/// One rule of a `podFailurePolicy`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailureRule {
    /// The consequence.
    pub action: FailureAction,
    /// The exit codes that it matches. Without them, it matches conditions.
    pub exit_codes: Option<ExitCodes>,
    /// The types and statuses of the conditions that it matches. One of them is enough.
    pub conditions: Vec<(String, String)>,
}

/// The exits that a rule matches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitCodes {
    /// Only exits of this container match.
    pub container: Option<String>,
    /// `In` (true) or `NotIn` (false).
    pub is_in: bool,
    /// The codes.
    pub values: Vec<i32>,
}

/// One rule of a `successPolicy`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SuccessRule {
    /// The indexes it considers.
    pub indexes: Indexes,
    /// The number of indexes that must succeed; all of them if it is not set.
    pub count: Option<u32>,
}

impl From<&Job> for JobPlan {
    /// Leaves out invalid values, such as negative numbers and empty rules: [`super::validate_job_fields`]
    /// has refused them.
    fn from(job: &Job) -> Self {
        let none = Default::default();
        let spec = job.spec.as_ref().unwrap_or(&none);
        let natural = |number: Option<i32>| number.and_then(|n| u32::try_from(n).ok());
        // Without both fields there is one pod. With `parallelism` alone, the Job is a work queue.
        let completions = match (spec.completions, spec.parallelism) {
            (None, None) => Some(1),
            (completions, _) => natural(completions),
        };
        let per_index = natural(spec.backoff_limit_per_index);
        let default_limit = if per_index.is_some() { i32::MAX as u32 } else { BACKOFF_LIMIT };
        let rules = spec.pod_failure_policy.as_ref().map_or(&[][..], |policy| &policy.rules);
        let success = spec.success_policy.as_ref().map_or(&[][..], |policy| &policy.rules);
        let restarts = spec.template.spec.as_ref().and_then(|s| s.restart_policy.as_deref());
        let replacement = spec.pod_replacement_policy.as_deref();
        let annotation = job.metadata.annotations.as_ref().and_then(|a| a.get(POD_BACKOFF));
        let (backoff_ms, backoff_ms_max) =
            annotation.and_then(|text| backoff_range(text)).unwrap_or(BACKOFF_MS);
        JobPlan {
            name: job.metadata.name.clone().unwrap_or_default(),
            namespace: job.metadata.namespace.clone().unwrap_or_default(),
            completions,
            parallelism: natural(spec.parallelism).unwrap_or(1),
            indexed: spec.completion_mode.as_deref() == Some("Indexed"),
            backoff_limit: natural(spec.backoff_limit).unwrap_or(default_limit),
            backoff_limit_per_index: per_index,
            max_failed_indexes: natural(spec.max_failed_indexes),
            active_deadline_ms: spec
                .active_deadline_seconds
                .and_then(|s| u64::try_from(s).ok())
                .map(|s| s.saturating_mul(1_000)),
            failure_rules: rules.iter().filter_map(failure_rule).collect(),
            success_rules: success.iter().filter_map(|r| success_rule(r, completions?)).collect(),
            // With a failure policy, a pod is replaced only when it has failed.
            replaces_terminating: match replacement {
                Some(policy) => policy == "TerminatingOrFailed",
                None => spec.pod_failure_policy.is_none(),
            },
            suspend: spec.suspend == Some(true),
            counts_restarts: restarts == Some("OnFailure"),
            backoff_ms,
            backoff_ms_max,
        }
    }
}

fn failure_rule(rule: &PodFailurePolicyRule) -> Option<FailureRule> {
    let codes = rule.on_exit_codes.as_ref();
    let conditions = rule.on_pod_conditions.iter().flatten();
    Some(FailureRule {
        action: FailureAction::from_name(&rule.action)?,
        exit_codes: codes.map(|codes| ExitCodes {
            container: codes.container_name.clone(),
            is_in: codes.operator == "In",
            values: codes.values.clone(),
        }),
        conditions: conditions
            .map(|c| (c.type_.clone(), c.status.clone().unwrap_or_else(|| "True".to_owned())))
            .collect(),
    })
}

fn success_rule(rule: &SuccessPolicyRule, completions: u32) -> Option<SuccessRule> {
    let indexes = match &rule.succeeded_indexes {
        Some(text) => Indexes::parse(text, completions).ok()?,
        None => Indexes::first(completions),
    };
    Some(SuccessRule { indexes, count: rule.succeeded_count.and_then(|c| u32::try_from(c).ok()) })
}
