//! The rules for every pod, with or without a dialect: roles by list, restart policies, probes, hooks and
//! list order. Native sidecars are part of Kubernetes, so they are handled here too.

use k8s_openapi::api::core::v1::{Container, EphemeralContainer, LifecycleHandler, PodSpec, Probe, Volume};

use super::{Draft, depends_on};
use crate::plan::{
    BackoffPlan, ContainerPlan, Counts, Dialect, HookPlan, Need, Plan, PreStopWhen, ProbePlan, Restart,
    RestartPolicy, RestartRule, Role, RuleAction, VolumeLimit,
};
use crate::resources::parse_quantity;
use crate::source::{ContainerRef, FeatureGates, List, PodInput};

/// The plan of the containers, without any order between them.
pub(super) fn plan(input: &PodInput, spec: &PodSpec, features: &FeatureGates) -> Plan {
    let pod_policy = policy(spec.restart_policy.as_deref()).unwrap_or(RestartPolicy::Always);
    let mut containers = Vec::new();
    for (index, c) in spec.init_containers.iter().flatten().enumerate() {
        containers.push(container(c, ContainerRef { list: List::Init, index }, pod_policy, features));
    }
    for (index, c) in spec.containers.iter().enumerate() {
        containers.push(container(c, ContainerRef { list: List::Main, index }, pod_policy, features));
    }
    for (index, c) in spec.ephemeral_containers.iter().flatten().enumerate() {
        containers.push(ephemeral(c, index));
    }
    let dialects =
        if containers.iter().any(|c| c.role == Role::Sidecar) { vec![Dialect::Native] } else { Vec::new() };
    Plan {
        pod: input.pod.metadata.name.clone().unwrap_or_default(),
        containers,
        restart_policy: pod_policy,
        // R8.27: negative is accepted and means 1.
        grace_ms: match spec.termination_grace_period_seconds.unwrap_or(30) {
            seconds if seconds < 0 => 1_000,
            seconds => seconds.unsigned_abs().saturating_mul(1_000),
        },
        sidecar_grace_ms: 0,
        sidecar_delay_ms: 0,
        active_deadline_ms: spec
            .active_deadline_seconds
            .and_then(|s| u64::try_from(s).ok())
            .map(|s| s.saturating_mul(1_000)),
        volume_limits: spec.volumes.iter().flatten().filter_map(volume_limit).collect(),
        stop_order: Vec::new(),
        stop_stages: 0,
        dialects,
    }
}

/// The size limit of an emptyDir on disk; zero means no limit. The kernel limits an emptyDir in memory.
fn volume_limit(volume: &Volume) -> Option<VolumeLimit> {
    let dir = volume.empty_dir.as_ref().filter(|dir| dir.medium.as_deref().unwrap_or("").is_empty())?;
    let written = dir.size_limit.as_ref()?.0.clone();
    let bytes = u64::try_from(parse_quantity(&written).ok()?.value()).ok().filter(|bytes| *bytes > 0)?;
    Some(VolumeLimit { volume: volume.name.clone(), bytes, written })
}

fn container(
    c: &Container,
    place: ContainerRef,
    pod_policy: RestartPolicy,
    features: &FeatureGates,
) -> ContainerPlan {
    let own = policy(c.restart_policy.as_deref());
    let role = match (place.list, own) {
        (List::Init, Some(RestartPolicy::Always)) => Role::Sidecar,
        (List::Init, _) => Role::Init,
        _ => Role::Main,
    };
    // Without the feature gate, only `Always` on an init container has a meaning (R8.5, R8.13).
    let own = own.filter(|_| features.container_restart_rules || role == Role::Sidecar);
    let rules =
        if own.is_some() && features.container_restart_rules { rules(c, features) } else { Vec::new() };
    let lifecycle = c.lifecycle.as_ref();
    ContainerPlan {
        name: c.name.clone(),
        place,
        role,
        dialect: (role == Role::Sidecar).then_some(Dialect::Native),
        gates: Vec::new(),
        stop_after: Vec::new(),
        stop_stage: 0,
        restart: Restart { policy: own.unwrap_or(pod_policy), rules, backoff: BackoffPlan::KUBELET },
        counts: if role == Role::Main { Counts::Yes } else { Counts::No },
        job_ignores_restarts: false,
        keeps_alive: role == Role::Main,
        fatal: false,
        probes: [&c.startup_probe, &c.liveness_probe, &c.readiness_probe].map(|p| p.as_ref().map(probe)),
        started_is_ready: started_is_ready(c.startup_probe.as_ref(), c.readiness_probe.as_ref()),
        post_start: lifecycle.and_then(|l| l.post_start.as_ref()).map(hook),
        pre_stop: lifecycle.and_then(|l| l.pre_stop.as_ref()).map(hook),
        pre_stop_when: PreStopWhen::AtOnce,
        restart_with: Vec::new(),
        fence: Vec::new(),
        pull_always: c.image_pull_policy.as_deref() == Some("Always"),
        image: c.image.clone().unwrap_or_default(),
        run_once: false,
        stop_grace_ms: None,
    }
}

/// The plan of an ephemeral container. It runs once, beside all the others, and blocks nothing (R1.10,
/// R4.12). Kubernetes gives it no probes and no hooks (R8.29).
fn ephemeral(c: &EphemeralContainer, index: usize) -> ContainerPlan {
    ContainerPlan {
        name: c.name.clone(),
        place: ContainerRef { list: List::Ephemeral, index },
        role: Role::Ephemeral,
        dialect: None,
        gates: Vec::new(),
        stop_after: Vec::new(),
        stop_stage: 0,
        restart: Restart { policy: RestartPolicy::Never, rules: Vec::new(), backoff: BackoffPlan::KUBELET },
        counts: Counts::No,
        job_ignores_restarts: false,
        keeps_alive: false,
        fatal: false,
        probes: [None; 3],
        started_is_ready: false,
        post_start: None,
        pre_stop: None,
        pre_stop_when: PreStopWhen::AtOnce,
        restart_with: Vec::new(),
        fence: Vec::new(),
        pull_always: c.image_pull_policy.as_deref() == Some("Always"),
        image: c.image.clone().unwrap_or_default(),
        run_once: false,
        stop_grace_ms: None,
    }
}

fn policy(text: Option<&str>) -> Option<RestartPolicy> {
    match text? {
        "Always" => Some(RestartPolicy::Always),
        "OnFailure" => Some(RestartPolicy::OnFailure),
        "Never" => Some(RestartPolicy::Never),
        // Validation reports an unknown policy. The plan uses the default.
        _ => None,
    }
}

fn rules(c: &Container, features: &FeatureGates) -> Vec<RestartRule> {
    let rule = |r: &k8s_openapi::api::core::v1::ContainerRestartRule| {
        let codes = r.exit_codes.as_ref()?;
        let action = match r.action.as_str() {
            "RestartAllContainers" if features.restart_all_containers => RuleAction::RestartAllContainers,
            "RestartAllContainers" => return None,
            _ => RuleAction::Restart,
        };
        let is_in = codes.operator == "In";
        Some(RestartRule { action, is_in, values: codes.values.clone().unwrap_or_default() })
    };
    c.restart_policy_rules.iter().flatten().filter_map(rule).collect()
}

/// Whether a started container is always ready: its startup probe tests the same as its readiness probe, and
/// both need only one success.
fn started_is_ready(startup: Option<&Probe>, readiness: Option<&Probe>) -> bool {
    let once = |p: &Probe| p.success_threshold.is_none_or(|n| n <= 1);
    matches!((startup, readiness), (Some(startup), Some(readiness)) if once(readiness) && tests(startup) == tests(readiness))
}

/// The test that a probe makes, with the values that an API server fills in.
fn tests(p: &Probe) -> impl PartialEq + use<> {
    let or = |value: &Option<String>, default: &str| {
        value.clone().filter(|text| !text.is_empty()).unwrap_or_else(|| default.to_owned())
    };
    let http = p.http_get.as_ref().map(|http| {
        let headers = http.http_headers.clone().unwrap_or_default();
        (or(&http.scheme, "HTTP"), or(&http.host, ""), http.port.clone(), or(&http.path, "/"), headers)
    });
    let tcp = p.tcp_socket.as_ref().map(|tcp| (or(&tcp.host, ""), tcp.port.clone()));
    let grpc = p.grpc.as_ref().map(|grpc| (grpc.port, or(&grpc.service, "")));
    (p.exec.clone(), http, tcp, grpc)
}

/// The plan of a probe. Kubernetes' defaults apply here too: zero and absent mean the same (section 6.1).
fn probe(p: &Probe) -> ProbePlan {
    let or = |value: Option<i32>, default: u32| match value {
        Some(v) if v > 0 => v.unsigned_abs(),
        _ => default,
    };
    ProbePlan {
        initial_delay_ms: u64::from(or(p.initial_delay_seconds, 0)) * 1_000,
        period_ms: u64::from(or(p.period_seconds, 10)) * 1_000,
        timeout_ms: u64::from(or(p.timeout_seconds, 1)) * 1_000,
        success_threshold: or(p.success_threshold, 1),
        failure_threshold: or(p.failure_threshold, 3),
        grace_ms: p
            .termination_grace_period_seconds
            .and_then(|s| u64::try_from(s).ok())
            .map(|s| s.saturating_mul(1_000)),
    }
}

fn hook(h: &LifecycleHandler) -> HookPlan {
    let sleep_ms = h.sleep.as_ref().map(|s| s.seconds.max(0).unsigned_abs().saturating_mul(1_000));
    HookPlan { timeout_ms: None, sleep_ms }
}

/// Adds the gates of list order (R1.2 to R1.7). Init entries start one after the other, then the mains, each
/// after the one before it was launched. A container with explicit gates gets no others.
pub(super) fn gates(draft: &mut Draft<'_>, explicit: &depends_on::Graph) {
    let inits = draft.inits();
    let need = |draft: &Draft<'_>, on: usize| match draft.plan.containers[on].role {
        Role::Sidecar => (Need::Started, Some(Dialect::Native)),
        _ => (Need::Completed, None),
    };
    for pair in inits.windows(2) {
        if !explicit.replaces(pair[1]) {
            let (need, dialect) = need(draft, pair[0]);
            draft.gate(pair[1], pair[0], need, dialect);
        }
    }
    let mut before: Option<usize> = None;
    for main in draft.mains() {
        if !explicit.replaces(main) {
            // In a chain, it is enough to wait for the last entry. A graph can have several last entries.
            let from = if explicit.is_empty() { inits.len().saturating_sub(1) } else { 0 };
            for &on in &inits[from..] {
                let (need, dialect) = need(draft, on);
                draft.gate(main, on, need, dialect);
            }
            if let Some(before) = before {
                draft.gate(main, before, Need::Launched, None);
            }
        }
        before = Some(main);
    }
}
