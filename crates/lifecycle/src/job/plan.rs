//! The plan of a Job, with Kubernetes' defaults filled in.

use k8s_openapi::api::batch::v1::{Job, PodFailurePolicyRule, SuccessPolicyRule};
use outrigger_text::duration_ms;
use serde::{Deserialize, Serialize};

use super::indexes::Indexes;
use crate::dialect::annotations::POD_BACKOFF;

/// Kubernetes' first delay after a failed pod, and the maximum.
const BACKOFF_MS: (u64, u64) = (10_000, 600_000);

/// Kubernetes' `backoffLimit`.
const BACKOFF_LIMIT: u32 = 6;

/// The plan of a Job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobPlan {
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Pods that must succeed; `None`: the first success is enough, and no further pods are created after it.
    pub completions: Option<u32>,
    /// Pods that may run at the same time.
    pub parallelism: u32,
    /// Each completion has an index, and needs a success of its own.
    pub indexed: bool,
    /// Failed pods (or restarts, see [`JobPlan::counts_restarts`]) the Job tolerates.
    pub backoff_limit: u32,
    /// Failed pods an index tolerates.
    pub backoff_limit_per_index: Option<u32>,
    /// Failed indexes the Job tolerates; unlimited unless given.
    pub max_failed_indexes: Option<u32>,
    /// How long the Job may take.
    pub active_deadline_ms: Option<u64>,
    /// `podFailurePolicy`: the first rule that matches decides.
    pub failure_rules: Vec<FailureRule>,
    /// `successPolicy`: any rule that is met is enough.
    pub success_rules: Vec<SuccessRule>,
    /// A pod that is being deleted counts as failed, and is replaced, immediately (`TerminatingOrFailed`).
    pub replaces_terminating: bool,
    /// No pods are created.
    pub suspend: bool,
    /// The pods restart their containers (`OnFailure`): restarts count towards [`JobPlan::backoff_limit`].
    pub counts_restarts: bool,
    /// The delay after the first failed pod; it doubles from there.
    pub backoff_ms: u64,
    /// The maximum delay.
    pub backoff_ms_max: u64,
}

/// The consequence of a failed pod for its Job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FailureAction {
    /// The Job fails.
    FailJob,
    /// Its index fails, without further attempts.
    FailIndex,
    /// It does not count.
    Ignore,
    /// It counts as if there were no rule.
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
    /// The exit codes it matches; without them, it matches conditions.
    pub exit_codes: Option<ExitCodes>,
    /// Type and status of the conditions it matches: one of them is enough.
    pub conditions: Vec<(String, String)>,
}

/// Which exits a rule matches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitCodes {
    /// Of this container only.
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
    /// How many of them must have succeeded; all unless given.
    pub count: Option<u32>,
}

impl From<&Job> for JobPlan {
    /// Invalid values (negative numbers, empty rules) are left out: [`super::validate_job_fields`] has
    /// refused them.
    fn from(job: &Job) -> Self {
        let none = Default::default();
        let spec = job.spec.as_ref().unwrap_or(&none);
        let natural = |number: Option<i32>| number.and_then(|n| u32::try_from(n).ok());
        // Without either, there is one pod; with parallelism alone, the Job is a work queue.
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
            // With a failure policy, a pod must have failed before it is replaced.
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

/// `1s..60s`.
pub(crate) fn backoff_range(text: &str) -> Option<(u64, u64)> {
    let (first, longest) = text.split_once("..")?;
    Some((duration_ms(first)?, duration_ms(longest)?)).filter(|(first, longest)| first <= longest)
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
