//! Checks restart policies and rules of containers (R8.5 to R8.13), and resize policies (R8.24, R8.25).

use k8s_openapi::api::core::v1::{ContainerRestartRule, PodSpec};

use super::{Site, words};
use crate::source::{FeatureGates, FieldPath, Finding, List};

const POLICIES: [&str; 3] = ["Always", "OnFailure", "Never"];
const OPERATORS: [&str; 2] = ["In", "NotIn"];
const RULES_MAX: usize = 20;
const VALUES_MAX: usize = 255;

pub(super) fn check(out: &mut Vec<Finding>, spec: &PodSpec, site: &Site<'_>, gates: &FeatureGates) {
    // R8.29 refuses all of this on ephemeral containers.
    if site.place.list == List::Ephemeral {
        return;
    }
    policy(out, site, gates);
    not_a_sidecar(out, site, gates);
    let rules = site.container.restart_policy_rules.as_deref().unwrap_or_default();
    if !rules.is_empty() {
        rule_list(out, site, rules, gates);
    }
    resize(out, spec, site);
}

fn policy(out: &mut Vec<Finding>, site: &Site<'_>, gates: &FeatureGates) {
    let Some(policy) = &site.container.restart_policy else { return };
    let path = site.at("restartPolicy");
    if site.is_sidecar() && !gates.sidecar_containers {
        let message = format!(
            "init container {} cannot have restartPolicy `Always`: the feature gate SidecarContainers is off",
            site.name()
        );
        out.push(Finding::error("SidecarContainers", path, message).hint(
            "pass --feature-gates SidecarContainers=true (the default) to run it as a sidecar, or remove restartPolicy",
        ));
    } else if gates.container_restart_rules {
        if !POLICIES.contains(&policy.as_str()) {
            out.push(words::not_one_of("R8.5", path, "a restart policy", policy, &POLICIES));
        }
    } else if site.place.list == List::Main {
        out.push(
            Finding::error(
                "R8.13",
                path,
                "a container of `spec.containers` cannot have its own restartPolicy",
            )
            .hint("turn the feature gate ContainerRestartRules on, or use `spec.restartPolicy`"),
        );
    } else if policy != "Always" {
        let message = format!(
            "an init container's restartPolicy is `Always` or not given, not {}",
            words::quote(policy)
        );
        out.push(
            Finding::error("R8.5", path, message)
                .hint("turn the feature gate ContainerRestartRules on, or remove the field"),
        );
    }
}

/// Warns about `Always` in `containers`: only an init container becomes a sidecar with it. A container with
/// rules must have a policy, so there it is no mistake.
fn not_a_sidecar(out: &mut Vec<Finding>, site: &Site<'_>, gates: &FeatureGates) {
    let c = &site.container;
    let has_rules = c.restart_policy_rules.as_ref().is_some_and(|rules| !rules.is_empty());
    let is_always = c.restart_policy.as_deref() == Some("Always");
    let are_on = gates.container_restart_rules && gates.sidecar_containers;
    if site.place.list != List::Main || !is_always || has_rules || !are_on {
        return;
    }
    let message = format!("`restartPolicy: Always` does not make container {} a sidecar", site.name());
    out.push(Finding::warning("sidecar", site.at("restartPolicy"), message).hint(
        "a sidecar is an init container: move it to `spec.initContainers`; to only restart it always, write \
         `restartPolicy: Always` in the pod's spec",
    ));
}

fn rule_list(out: &mut Vec<Finding>, site: &Site<'_>, rules: &[ContainerRestartRule], gates: &FeatureGates) {
    let path = site.at("restartPolicyRules");
    if !gates.container_restart_rules {
        out.push(
            Finding::error("R8.13", path, "restartPolicyRules are switched off")
                .hint("turn the feature gate ContainerRestartRules on"),
        );
        return;
    }
    if site.is_sidecar() && !gates.restart_all_containers {
        out.push(
            Finding::error(
                "R8.12",
                path.clone(),
                format!("sidecar {} cannot have restartPolicyRules", site.name()),
            )
            .related(site.at("restartPolicy"), "this makes it a sidecar")
            .hint("turn the feature gate RestartAllContainersOnContainerExits on, or remove the rules"),
        );
    }
    if site.container.restart_policy.is_none() {
        let message =
            format!("container {} has restartPolicyRules and no restartPolicy of its own", site.name());
        out.push(
            Finding::error("R8.6", site.at("restartPolicy"), message)
                .related(path.clone(), "the rules are here")
                .hint("add `restartPolicy` to the container: it decides when no rule matches"),
        );
    }
    if rules.len() > RULES_MAX {
        let message = format!("{} restart rules, more than {RULES_MAX}", rules.len());
        out.push(Finding::error("R8.7", path.clone(), message));
    }
    for (i, r) in rules.iter().take(RULES_MAX).enumerate() {
        rule(out, path.clone().index(i), r, gates);
    }
}

fn rule(out: &mut Vec<Finding>, path: FieldPath, rule: &ContainerRestartRule, gates: &FeatureGates) {
    let action = path.clone().field("action");
    match rule.action.as_str() {
        "Restart" => {}
        "RestartAllContainers" if gates.restart_all_containers => {}
        "RestartAllContainers" => out.push(
            Finding::error("R8.8", action, "the action `RestartAllContainers` is switched off")
                .hint("turn the feature gate RestartAllContainersOnContainerExits on"),
        ),
        other => out.push(words::not_one_of(
            "R8.8",
            action,
            "an action of a restart rule",
            other,
            &["Restart", "RestartAllContainers"],
        )),
    }
    let path = path.field("exitCodes");
    let Some(codes) = &rule.exit_codes else {
        out.push(
            Finding::error("R8.9", path, "a restart rule needs exitCodes")
                .hint("for example `exitCodes: {operator: In, values: [42]}`"),
        );
        return;
    };
    if !OPERATORS.contains(&codes.operator.as_str()) {
        let path = path.clone().field("operator");
        out.push(words::not_one_of("R8.10", path, "an operator", &codes.operator, &OPERATORS));
    }
    let values = codes.values.as_deref().unwrap_or_default();
    let path = path.field("values");
    if values.len() > VALUES_MAX {
        let message = format!("{} exit codes, more than {VALUES_MAX}", values.len());
        out.push(Finding::error("R8.11", path.clone(), message));
    }
    if values.is_empty() && codes.operator == "In" {
        out.push(Finding::warning("R8.11", path.clone(), "a rule without exit codes never matches"));
    }
    if let Some((i, code)) = values.iter().enumerate().find(|(_, v)| !(0..=255).contains(*v)) {
        let message = format!("no process exits with code {code}");
        out.push(Finding::warning("R8.11", path.index(i), message).hint("exit codes lie between 0 and 255"));
    }
}

fn resize(out: &mut Vec<Finding>, spec: &PodSpec, site: &Site<'_>) {
    for (i, policy) in site.container.resize_policy.iter().flatten().enumerate() {
        let path = site.at("resizePolicy").index(i).field("restartPolicy");
        match policy.restart_policy.as_str() {
            "NotRequired" => {}
            "RestartContainer" if site.is_plain_init() => out.push(
                Finding::error("R8.24", path, "an init container cannot be restarted to resize it")
                    .hint("use `NotRequired`; only sidecars and containers can say `RestartContainer`"),
            ),
            "RestartContainer" if spec.restart_policy.as_deref() == Some("Never") && !site.is_sidecar() => {
                out.push(
                    Finding::error(
                        "R8.25",
                        path,
                        "a pod that never restarts cannot restart a container to resize it",
                    )
                    .related(FieldPath::spec("restartPolicy"), "the pod never restarts its containers")
                    .hint("use `NotRequired`"),
                )
            }
            "RestartContainer" => {}
            other => out.push(words::not_one_of(
                "R8.24",
                path,
                "a resize policy",
                other,
                &["NotRequired", "RestartContainer"],
            )),
        }
    }
}
