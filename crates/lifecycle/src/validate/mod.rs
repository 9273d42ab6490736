//! Validates a pod before anything runs.
//!
//! [`validate`] checks the pod as written: the rules of the Kubernetes API
//! (docs/internals/spec/kubelet-lifecycle.md section 8), and features that this machine does not support.
//! [`validate_plan`] checks the plan for orders that can never work. A dialect itself reports what it cannot
//! parse, such as a priority that is not a number, or a cycle.
//!
//! Input is not trusted: no value of any field may cause a panic.

mod container;
mod endless;
mod env;
mod handler;
mod ignored;
mod kruise;
mod level;
mod mounts;
mod plan;
mod pod;
mod ports;
mod probe;
mod resources;
mod restart;
mod security;
mod volumes;
mod words;

#[cfg(test)]
mod tests;

use std::borrow::Cow;

use k8s_openapi::api::core::v1::{Container, EphemeralContainer, PodSpec};

use crate::plan::CONTAINERS_MAX;
use crate::source::{ContainerRef, FeatureGates, FieldPath, Finding, List, PodInput};

pub use kruise::is_launch_barrier;
pub use level::{PodSecurityLevel, validate_level};
pub use plan::validate_plan;
pub use pod::validate_name;
pub use security::NAMESPACE_IDS;

/// All findings about a pod, sorted by position.
pub fn validate(input: &PodInput, gates: &FeatureGates) -> Vec<Finding> {
    let mut out = Vec::new();
    let Some(spec) = &input.pod.spec else {
        return vec![
            Finding::error("spec", FieldPath::root().field("spec"), "the pod has no spec")
                .hint("add `spec.containers` with at least one container"),
        ];
    };
    let sites = sites(spec);
    pod::check(&mut out, input, spec);
    pod::check_lists(&mut out, spec, &sites);
    // With more containers, the other checks would take too long.
    if sites.len() > CONTAINERS_MAX {
        return sorted(out);
    }
    ignored::check(&mut out, spec, &sites);
    volumes::check(&mut out, spec, &sites);
    ports::check(&mut out, spec, &sites);
    security::check_pod(&mut out, input, spec, &sites);
    kruise::check(&mut out, input, &sites);
    for site in &sites {
        container::check(&mut out, input, spec, site, gates);
        restart::check(&mut out, spec, site, gates);
        probe::check(&mut out, site, &sites);
        handler::check_lifecycle(&mut out, input, spec, site, &sites, gates);
        env::check(&mut out, site, &sites);
        mounts::check(&mut out, spec, site);
        resources::check(&mut out, site);
        security::check(&mut out, spec, site);
    }
    sorted(out)
}

/// Only the findings about Kruise's environment variables and annotations.
pub fn validate_kruise(input: &PodInput) -> Vec<Finding> {
    let mut out = Vec::new();
    if let Some(spec) = &input.pod.spec {
        kruise::check(&mut out, input, &sites(spec));
    }
    sorted(out)
}

/// Checks what a Job requires of its template, in addition to [`validate`] (R8.32).
pub fn validate_job(input: &PodInput, pod_failure_policy: bool) -> Vec<Finding> {
    let policy = input.pod.spec.as_ref().and_then(|s| s.restart_policy.as_deref());
    let allowed: &[&str] = if pod_failure_policy { &["Never"] } else { &["OnFailure", "Never"] };
    match policy {
        Some(policy) if allowed.contains(&policy) => Vec::new(),
        _ => {
            let policy = policy.unwrap_or("Always");
            let why = if pod_failure_policy { "a Job with a podFailurePolicy" } else { "a Job" };
            let message = format!("{why} cannot have restartPolicy {}", words::quote(policy));
            vec![Finding::error("R8.32", FieldPath::spec("restartPolicy"), message).hint(format!(
                "write `restartPolicy: {}` in the template's spec",
                allowed.join("` or `restartPolicy: ")
            ))]
        }
    }
}

/// Sorts findings by position. For one position, errors come first.
fn sorted(mut findings: Vec<Finding>) -> Vec<Finding> {
    findings.sort_by(|a, b| {
        let key = |f: &Finding| (std::cmp::Reverse(f.severity), f.code);
        a.path.cmp(&b.path).then_with(|| key(a).cmp(&key(b)))
    });
    findings
}

/// A container and its position. Ephemeral containers are converted, because their type has the same fields.
struct Site<'a> {
    place: ContainerRef,
    container: Cow<'a, Container>,
}

impl Site<'_> {
    /// The path of a field of the container.
    fn at(&self, field: &'static str) -> FieldPath {
        self.place.path().field(field)
    }

    /// Whether it is a native sidecar.
    fn is_sidecar(&self) -> bool {
        self.place.list == List::Init && self.container.restart_policy.as_deref() == Some("Always")
    }

    /// Whether it is an init container that runs to completion.
    fn is_plain_init(&self) -> bool {
        self.place.list == List::Init && !self.is_sidecar()
    }

    /// Its name as quoted in a sentence.
    fn name(&self) -> String {
        words::quote(&self.container.name)
    }
}

fn sites(spec: &PodSpec) -> Vec<Site<'_>> {
    let site = |list, index, container| Site { place: ContainerRef { list, index }, container };
    let init = spec.init_containers.iter().flatten().enumerate();
    let main = spec.containers.iter().enumerate();
    let ephemeral = spec.ephemeral_containers.iter().flatten().enumerate();
    init.map(|(i, c)| site(List::Init, i, Cow::Borrowed(c)))
        .chain(main.map(|(i, c)| site(List::Main, i, Cow::Borrowed(c))))
        .chain(ephemeral.map(|(i, c)| site(List::Ephemeral, i, Cow::Owned(as_container(c)))))
        .collect()
}

fn as_container(e: &EphemeralContainer) -> Container {
    let e = e.clone();
    Container {
        args: e.args,
        command: e.command,
        env: e.env,
        env_from: e.env_from,
        image: e.image,
        image_pull_policy: e.image_pull_policy,
        lifecycle: e.lifecycle,
        liveness_probe: e.liveness_probe,
        name: e.name,
        ports: e.ports,
        readiness_probe: e.readiness_probe,
        resize_policy: e.resize_policy,
        resources: e.resources,
        restart_policy: e.restart_policy,
        restart_policy_rules: e.restart_policy_rules,
        security_context: e.security_context,
        startup_probe: e.startup_probe,
        stdin: e.stdin,
        stdin_once: e.stdin_once,
        termination_message_path: e.termination_message_path,
        termination_message_policy: e.termination_message_policy,
        tty: e.tty,
        volume_devices: e.volume_devices,
        volume_mounts: e.volume_mounts,
        working_dir: e.working_dir,
    }
}
