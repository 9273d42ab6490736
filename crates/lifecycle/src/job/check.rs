//! The API server's checks of a Job, without its pod template. Paths are relative to the Job.

use k8s_openapi::api::batch::v1::{Job, JobSpec, PodFailurePolicyRule};

use super::indexes::Indexes;
use super::plan::FailureAction;
use crate::dialect::annotations;
use crate::source::{FieldPath, Finding};

const INDEXED_MAX: i32 = 100_000;
const RULES_MAX: usize = 20;
const VALUES_MAX: usize = 255;

/// All findings about the fields of a Job except its template.
pub fn validate_job_fields(job: &Job) -> Vec<Finding> {
    let Some(spec) = &job.spec else { return Vec::new() };
    let mut check = Check { spec, out: Vec::new() };
    for (row, text) in job.metadata.annotations.iter().flat_map(annotations::invalid_on_job) {
        let message = format!("invalid value {text:?}");
        check.refuse(FieldPath::annotation(row.name), message, &format!("expected {}", row.value));
    }
    check.numbers();
    check.mode();
    check.per_index();
    check.failure_policy();
    check.success_policy();
    check.out
}

struct Check<'s> {
    spec: &'s JobSpec,
    out: Vec<Finding>,
}

impl Check<'_> {
    fn refuse(&mut self, path: FieldPath, message: impl Into<String>, hint: &str) {
        self.out.push(Finding::error("job", path, message.into()).hint(hint));
    }

    fn is_indexed(&self) -> bool {
        self.spec.completion_mode.as_deref() == Some("Indexed")
    }

    fn numbers(&mut self) {
        let spec = self.spec;
        let fields = [
            ("completions", spec.completions.map(i64::from)),
            ("parallelism", spec.parallelism.map(i64::from)),
            ("backoffLimit", spec.backoff_limit.map(i64::from)),
            ("backoffLimitPerIndex", spec.backoff_limit_per_index.map(i64::from)),
            ("maxFailedIndexes", spec.max_failed_indexes.map(i64::from)),
            ("activeDeadlineSeconds", spec.active_deadline_seconds),
            ("ttlSecondsAfterFinished", spec.ttl_seconds_after_finished.map(i64::from)),
        ];
        for (field, value) in fields {
            if let Some(value) = value.filter(|v| *v < 0) {
                let message = format!("{field} cannot be negative, it is {value}");
                self.refuse(FieldPath::spec(field), message, "write 0 or more");
            }
        }
    }

    fn mode(&mut self) {
        let spec = self.spec;
        match spec.completion_mode.as_deref() {
            None | Some("NonIndexed" | "Indexed") => {}
            Some(other) => {
                let message = format!("there is no completionMode {other:?}");
                self.refuse(FieldPath::spec("completionMode"), message, "write `NonIndexed` or `Indexed`");
            }
        }
        let replacement = spec.pod_replacement_policy.as_deref();
        match replacement {
            None | Some("Failed") => {}
            Some("TerminatingOrFailed") if spec.pod_failure_policy.is_none() => {}
            Some(other) => {
                let path = FieldPath::spec("podReplacementPolicy");
                let message = match other {
                    "TerminatingOrFailed" => {
                        "a Job with a podFailurePolicy replaces only pods that failed".to_owned()
                    }
                    _ => format!("there is no podReplacementPolicy {other:?}"),
                };
                self.refuse(path, message, "write `podReplacementPolicy: Failed`");
            }
        }
        if !self.is_indexed() {
            return;
        }
        match spec.completions {
            None => {
                let message = "an Indexed Job needs `completions`";
                self.refuse(FieldPath::spec("completionMode"), message, "write `completions`");
            }
            Some(_) if spec.parallelism.is_some_and(|p| p > INDEXED_MAX) => {
                let message = format!("an Indexed Job cannot run more than {INDEXED_MAX} pods at once");
                self.refuse(FieldPath::spec("parallelism"), message, "lower it");
            }
            Some(_) => {}
        }
    }

    fn per_index(&mut self) {
        let spec = self.spec;
        if spec.backoff_limit_per_index.is_some() && !self.is_indexed() {
            let message = "backoffLimitPerIndex needs a Job with indexes";
            let path = FieldPath::spec("backoffLimitPerIndex");
            self.refuse(path, message, "write `completionMode: Indexed`");
        }
        if let Some(max) = spec.max_failed_indexes {
            let path = FieldPath::spec("maxFailedIndexes");
            if spec.backoff_limit_per_index.is_none() {
                let message = "maxFailedIndexes needs backoffLimitPerIndex";
                self.refuse(path, message, "add `backoffLimitPerIndex`");
            } else if spec.completions.is_some_and(|c| max > c) {
                let message = format!("maxFailedIndexes is {max}, more than there are completions");
                self.refuse(path, message, "lower it, or raise `completions`");
            }
        }
        let template = spec.template.spec.as_ref();
        let policy = template.and_then(|s| s.restart_policy.as_deref());
        if spec.backoff_limit_per_index.is_some() && policy == Some("OnFailure") {
            let message = "a Job with backoffLimitPerIndex cannot have restartPolicy OnFailure";
            let path = FieldPath::spec("template").field("spec").field("restartPolicy");
            self.refuse(path, message, "write `restartPolicy: Never`");
        }
    }

    fn failure_policy(&mut self) {
        let Some(policy) = &self.spec.pod_failure_policy else { return };
        let rules = FieldPath::spec("podFailurePolicy").field("rules");
        if policy.rules.len() > RULES_MAX {
            let message =
                format!("{} rules are more than a policy may have ({RULES_MAX})", policy.rules.len());
            self.refuse(rules, message, "leave some out");
            return;
        }
        for (index, rule) in policy.rules.iter().enumerate() {
            self.failure_rule(rule, &rules.clone().index(index));
        }
    }

    fn failure_rule(&mut self, rule: &PodFailurePolicyRule, path: &FieldPath) {
        match FailureAction::from_name(&rule.action) {
            None => {
                let message = format!("there is no action {:?}", rule.action);
                let hint = "write `FailJob`, `FailIndex`, `Ignore` or `Count`";
                self.refuse(path.clone().field("action"), message, hint);
            }
            Some(FailureAction::FailIndex) if self.spec.backoff_limit_per_index.is_none() => {
                let message = "FailIndex needs backoffLimitPerIndex";
                self.refuse(path.clone().field("action"), message, "add `backoffLimitPerIndex`");
            }
            Some(_) => {}
        }
        let conditions = rule.on_pod_conditions.as_deref().unwrap_or_default();
        let Some(codes) = &rule.on_exit_codes else {
            if conditions.is_empty() {
                let message = "this rule matches nothing";
                self.refuse(path.clone(), message, "add `onExitCodes` or `onPodConditions`");
            }
            return;
        };
        let at = path.clone().field("onExitCodes");
        if !conditions.is_empty() {
            let message = "a rule looks for exit codes or for conditions, not for both";
            self.refuse(path.clone(), message, "split it into two rules");
        }
        if !["In", "NotIn"].contains(&codes.operator.as_str()) {
            let message = format!("there is no operator {:?}", codes.operator);
            self.refuse(at.clone().field("operator"), message, "write `In` or `NotIn`");
        }
        if codes.values.is_empty() || codes.values.len() > VALUES_MAX {
            let message = format!("{} exit codes; there must be 1 to {VALUES_MAX}", codes.values.len());
            self.refuse(at.clone().field("values"), message, "list the exit codes meant");
        }
        if codes.operator == "In" && codes.values.contains(&0) {
            let message = "0 is success and never matches";
            self.refuse(at.clone().field("values"), message, "leave 0 out");
        }
        let template = self.spec.template.spec.as_ref();
        if let (Some(name), Some(pod)) = (&codes.container_name, template) {
            let init = pod.init_containers.iter().flatten();
            if !pod.containers.iter().chain(init).any(|c| c.name == *name) {
                let message = format!("there is no container {name:?} in the template");
                self.refuse(at.field("containerName"), message, "name one of the template's containers");
            }
        }
    }

    fn success_policy(&mut self) {
        let Some(policy) = &self.spec.success_policy else { return };
        let path = FieldPath::spec("successPolicy");
        if !self.is_indexed() {
            let message = "a successPolicy needs a Job with indexes";
            self.refuse(path, message, "write `completionMode: Indexed`");
            return;
        }
        let rules = path.field("rules");
        if policy.rules.is_empty() || policy.rules.len() > RULES_MAX {
            let message = format!("{} rules; there must be 1 to {RULES_MAX}", policy.rules.len());
            self.refuse(rules, message, "say when the Job has succeeded");
            return;
        }
        let completions = u32::try_from(self.spec.completions.unwrap_or(0)).unwrap_or(0);
        for (index, rule) in policy.rules.iter().enumerate() {
            let at = rules.clone().index(index);
            let mut most = completions;
            match rule.succeeded_indexes.as_deref().map(|text| Indexes::parse(text, completions)) {
                Some(Ok(indexes)) => most = indexes.len(),
                Some(Err(error)) => {
                    let hint = "write numbers and ranges in ascending order, such as `1,3-5,7`";
                    self.refuse(at.field("succeededIndexes"), error.to_string(), hint);
                    continue;
                }
                None if rule.succeeded_count.is_none() => {
                    let message = "this rule requires nothing";
                    self.refuse(at, message, "add `succeededIndexes` or `succeededCount`");
                    continue;
                }
                None => {}
            }
            let count = rule.succeeded_count.map(i64::from);
            if let Some(count) = count.filter(|c| *c < 1 || *c > i64::from(most)) {
                let message = format!("succeededCount is {count}; it must be 1 to {most}");
                self.refuse(
                    at.field("succeededCount"),
                    message,
                    "ask for as many as there are indexes, or fewer",
                );
            }
        }
    }
}
