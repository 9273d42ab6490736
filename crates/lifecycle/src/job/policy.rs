//! Evaluates `podFailurePolicy` and `successPolicy`.

use super::indexes::Indexes;
use super::observation::{ContainerExit, JobPod};
use super::plan::{ExitCodes, FailureAction, JobPlan};

/// The policy's verdict on a failed pod.
pub(super) struct Verdict<'p> {
    /// The consequence. If no rule matches, the failure counts.
    pub(super) action: FailureAction,
    /// The matching rule, and what it matched.
    matched: Option<(usize, Match<'p>)>,
}

enum Match<'p> {
    Exit(&'p ContainerExit),
    Condition(&'p str),
}

/// Applies the failure policy to a failed pod.
pub(super) fn failure_policy_action<'p>(plan: &'p JobPlan, pod: &'p JobPod) -> Verdict<'p> {
    for (index, rule) in plan.failure_rules.iter().enumerate() {
        let matched = match &rule.exit_codes {
            Some(codes) => pod.exits.iter().find(|exit| codes.matches(exit)).map(Match::Exit),
            None => {
                let has = |wanted: &&(String, String)| pod.conditions.contains(wanted);
                rule.conditions.iter().find(has).map(|(kind, _)| Match::Condition(kind))
            }
        };
        if let Some(matched) = matched {
            return Verdict { action: rule.action, matched: Some((index, matched)) };
        }
    }
    Verdict { action: FailureAction::Count, matched: None }
}

impl ExitCodes {
    /// Whether a rule matches an exit. Code 0 never matches. A rule without a container name ignores helpers:
    /// their exit codes result from being stopped, which must not fail a Job.
    fn matches(&self, exit: &ContainerExit) -> bool {
        let looks_at = match &self.container {
            Some(name) => *name == exit.container,
            None => !exit.is_helper,
        };
        looks_at && exit.code != 0 && self.values.contains(&exit.code) == self.is_in
    }
}

impl Verdict<'_> {
    /// The message, in Kubernetes' wording.
    pub(super) fn message(&self, plan: &JobPlan, pod: &JobPod) -> String {
        let (action, pod) = (self.action.name(), format!("{}/{}", plan.namespace, pod.name));
        match &self.matched {
            Some((rule, Match::Exit(exit))) => format!(
                "Container {} for pod {pod} failed with exit code {} matching {action} rule at index {rule}",
                exit.container, exit.code
            ),
            Some((rule, Match::Condition(kind))) => {
                format!("Pod {pod} has condition {kind} matching {action} rule at index {rule}")
            }
            None => format!("Pod {pod} failed"),
        }
    }
}

/// The first rule of the success policy that is fulfilled.
pub(super) fn success(plan: &JobPlan, succeeded: &Indexes) -> Option<usize> {
    plan.success_rules.iter().position(|rule| {
        let wanted = rule.count.unwrap_or(rule.indexes.len());
        !succeeded.is_empty() && rule.indexes.count_in(succeeded) >= wanted
    })
}
