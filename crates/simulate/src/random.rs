//! Random pods and random scripts, for property tests and load tests.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Container, ContainerRestartRule, ContainerRestartRuleOnExitCodes, EnvVar, EphemeralContainer, ExecAction,
    Lifecycle, LifecycleHandler, Pod, PodSpec, Probe,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use outrigger_lifecycle::{ContainerRef, FeatureGates, List, Plan, PodInput, Role, annotations, plan};

use crate::rng::Rng;
use crate::script::{
    AgentRestart, ContainerScript, HookScript, Hooks, Moment, OnTerm, SandboxScript, Script, StopScript,
    Tries,
};
use crate::script_duration::ScriptDuration;

/// The maximum number of containers of a random pod.
pub const CONTAINERS_MAX: u64 = 12;

/// The faults in a random script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// There are no faults.
    None,
    /// Events are lost, repeated and delayed. The agent and the sandbox crash.
    Faults,
}

/// A random valid pod in any combination of dialects. Pods that are refused are discarded.
pub fn pod(rng: &mut Rng) -> (PodInput, Plan) {
    loop {
        let input = draft(rng);
        if let Ok(planned) = plan(&input, &FeatureGates::default()) {
            return (input, planned.plan);
        }
    }
}

/// Random updates of a running pod. Each plan includes the changes of the plans before it, and times only
/// increase.
pub fn updates(rng: &mut Rng, input: &PodInput) -> Vec<(u64, Plan)> {
    let (mut input, mut at) = (input.clone(), 0);
    let mut out = Vec::new();
    for nth in 0..rng.between(1, 4) {
        at += rng.between(1, 6_000);
        let spec = input.pod.spec.get_or_insert_default();
        for c in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
            if rng.chance(0.4) {
                c.image = Some(format!("registry.example/{}:{nth}", c.name));
            }
        }
        if rng.chance(0.4) {
            let debug = EphemeralContainer {
                name: format!("debug-{nth}"),
                image: Some("registry.example/debug:1".into()),
                ..EphemeralContainer::default()
            };
            spec.ephemeral_containers.get_or_insert_default().push(debug);
        }
        if rng.chance(0.3) {
            spec.termination_grace_period_seconds = Some(rng.between(0, 20) as i64);
        }
        if rng.chance(0.2) {
            spec.active_deadline_seconds = rng.chance(0.7).then(|| rng.between(1, 60) as i64);
        }
        // A change is dropped if the pod would be refused, for example if the reserve for sidecars exceeds
        // the new grace period.
        if let Ok(planned) = plan(&input, &FeatureGates::default()) {
            out.push((at, planned.plan));
        }
    }
    out
}

/// A random pod that is hard to stop: a short grace period, and preStop hooks on most containers.
pub fn hard_pod(rng: &mut Rng) -> (PodInput, Plan) {
    loop {
        let mut input = draft(rng);
        let grace = rng.between(0, 3);
        let annotations = input.pod.metadata.annotations.get_or_insert_default();
        let reserve = annotations::SIDECAR_GRACE;
        if annotations.remove(reserve).is_some() && grace > 0 {
            annotations.insert(reserve.into(), format!("{}ms", rng.between(1, grace * 1_000)));
        }
        let spec = input.pod.spec.get_or_insert_default();
        spec.termination_grace_period_seconds = Some(grace as i64);
        let sidecars = spec.init_containers.iter_mut().flatten();
        let sidecars = sidecars.filter(|c| c.restart_policy.as_deref() == Some("Always"));
        for c in sidecars.chain(&mut spec.containers) {
            if rng.chance(0.6) {
                c.lifecycle.get_or_insert_default().pre_stop = Some(exec());
            }
        }
        if let Ok(planned) = plan(&input, &FeatureGates::default()) {
            return (input, planned.plan);
        }
    }
}

/// A random script in which hooks hang or take nearly the whole grace period, helpers crash repeatedly,
/// images are late, and most containers ignore TERM.
pub fn hard_script(rng: &mut Rng, plan: &Plan, trouble: Trouble) -> Script {
    let mut script = script(rng, plan, trouble);
    for c in &plan.containers {
        let own = script.containers.entry(c.name.clone()).or_default();
        let grace = plan.grace_ms;
        let takes = match rng.below(4) {
            0 | 1 => ScriptDuration::FOREVER,
            2 => ScriptDuration((grace * 19 / 20 + rng.below(grace / 10 + 2)).saturating_sub(1)),
            _ => span(rng, 2 * grace + 1),
        };
        own.hooks.pre_stop = Some(HookScript { takes: Some(takes), ..Default::default() });
        if rng.chance(0.6) {
            let exit_after = Some(span(rng, 3_000));
            own.on_term = Some(OnTerm { exit_after, code: None, ignore: rng.chance(0.4) });
        }
        if c.role == Role::Sidecar && rng.chance(0.5) {
            own.instances.clear();
            own.runs = Some(span(rng, 3_000));
            own.exit = Some(rng.pick(&[0, 1, 1]));
        }
        if rng.chance(0.3) {
            own.pull = Tries { takes: Some(span(rng, 60_000)), fails: rng.below(2) as u32 };
        }
    }
    script
}

/// A random pod without dialects, hooks or probes, with only the features that Kubernetes had before
/// sidecars.
pub fn plain_pod(rng: &mut Rng) -> (PodInput, Plan) {
    let policy = rng.pick(&["Always", "OnFailure", "Never"]);
    let inits = rng.below(4);
    let mains = rng.between(1, 4);
    let mut init_containers: Vec<Container> = (0..inits).map(|i| named(format!("init-{i}"))).collect();
    let mut containers: Vec<Container> = (0..mains).map(|i| named(format!("main-{i}"))).collect();
    for c in &mut init_containers {
        if rng.chance(0.1) {
            c.restart_policy = Some(rng.pick(&["OnFailure", "Never"]).into());
        }
    }
    for c in &mut containers {
        if rng.chance(0.1) {
            c.restart_policy = Some(rng.pick(&["Always", "OnFailure", "Never"]).into());
        }
    }
    let input = PodInput {
        pod: Pod {
            metadata: ObjectMeta { name: Some("plain".into()), ..Default::default() },
            spec: Some(PodSpec {
                restart_policy: Some(policy.into()),
                init_containers: Some(init_containers),
                containers,
                termination_grace_period_seconds: Some(rng.pick(&[2, 5, 30])),
                ..Default::default()
            }),
            ..Default::default()
        },
        ..Default::default()
    };
    let planned = plan(&input, &FeatureGates::default()).expect("a plain pod has a plan");
    (input, planned.plan)
}

fn named(name: String) -> Container {
    Container { name, image: Some("example.org/image".into()), ..Default::default() }
}

fn draft(rng: &mut Rng) -> PodInput {
    let most = if rng.chance(0.2) { CONTAINERS_MAX } else { 6 };
    let total = rng.between(1, most);
    let inits = if rng.chance(0.7) { rng.below(total) } else { 0 };
    let [native, kep, priority, terminator, depends] = [0.5, 0.3, 0.3, 0.25, 0.3].map(|p| rng.chance(p));
    let policy = rng.pick(&["Always", "OnFailure", "Never", "Never"]);
    let mut lifecycle_types = BTreeMap::new();
    let mut init_containers = Vec::new();
    for i in 0..inits {
        let mut c = named(format!("i{i}"));
        let sidecar = native && rng.chance(0.6);
        if sidecar {
            c.restart_policy = Some("Always".into());
            furnish(rng, &mut c);
        } else if rng.chance(0.1) {
            c.restart_policy = Some(rng.pick(&["OnFailure", "Never"]).into());
        }
        rules(rng, &mut c);
        init_containers.push(c);
    }
    let mut containers = Vec::new();
    for i in 0..total - inits {
        let mut c = named(format!("m{i}"));
        furnish(rng, &mut c);
        if rng.chance(0.1) {
            c.restart_policy = Some(rng.pick(&["Always", "OnFailure", "Never"]).into());
        }
        rules(rng, &mut c);
        if kep && rng.chance(0.4) {
            let place = ContainerRef { list: List::Main, index: i as usize };
            lifecycle_types.insert(place, rng.pick(&["Sidecar", "Sidecar", "Standard"]).into());
        }
        let mut env = |name: &str, value: String| {
            c.env.get_or_insert_default().push(EnvVar {
                name: name.into(),
                value: Some(value),
                ..Default::default()
            });
        };
        if priority && rng.chance(0.5) {
            env("KRUISE_CONTAINER_PRIORITY", rng.between(0, 3).to_string());
        }
        if terminator && rng.chance(0.4) {
            env("KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT", "true".into());
            if rng.chance(0.3) {
                env("KRUISE_TERMINATE_SIDECAR_IGNORE_EXIT_CODE", "true".into());
            }
        }
        containers.push(c);
    }
    let grace: i64 = rng.pick(&[0, 1, 2, 5, 10, 30, 30]);
    let mut annotations = options(rng, grace);
    if depends {
        annotations.insert(annotations::DEPENDS_ON.into(), graph(rng, inits, total - inits));
    }
    if priority && rng.chance(0.2) {
        annotations.insert("apps.kruise.io/container-launch-priority".into(), "Ordered".into());
    }
    PodInput {
        pod: Pod {
            metadata: ObjectMeta {
                name: Some("random".into()),
                annotations: Some(annotations),
                ..Default::default()
            },
            spec: Some(PodSpec {
                restart_policy: Some(policy.into()),
                init_containers: Some(init_containers),
                containers,
                termination_grace_period_seconds: Some(grace),
                active_deadline_seconds: rng.chance(0.05).then(|| rng.between(1, 60) as i64),
                ..Default::default()
            }),
            ..Default::default()
        },
        lifecycle_types,
    }
}

fn exec() -> LifecycleHandler {
    LifecycleHandler { exec: Some(ExecAction { command: Some(vec!["true".into()]) }), ..Default::default() }
}

fn probe(rng: &mut Rng, grace: bool) -> Probe {
    Probe {
        exec: Some(ExecAction { command: Some(vec!["true".into()]) }),
        period_seconds: Some(rng.pick(&[1, 2, 5, 10])),
        initial_delay_seconds: rng.chance(0.2).then(|| rng.pick(&[1, 3])),
        failure_threshold: Some(rng.pick(&[1, 2, 3])),
        termination_grace_period_seconds: (grace && rng.chance(0.2)).then(|| rng.pick(&[1, 5, 60])),
        ..Default::default()
    }
}

/// Adds random probes, hooks and a pull policy.
fn furnish(rng: &mut Rng, c: &mut Container) {
    if rng.chance(0.25) {
        c.startup_probe = Some(probe(rng, true));
    }
    if rng.chance(0.2) {
        c.liveness_probe = Some(probe(rng, true));
    }
    if rng.chance(0.25) {
        let mut readiness = probe(rng, false);
        readiness.success_threshold = rng.chance(0.3).then_some(2);
        c.readiness_probe = Some(readiness);
    }
    let [post, pre] = [0.15, 0.25].map(|p| rng.chance(p));
    if post || pre {
        c.lifecycle =
            Some(Lifecycle { post_start: post.then(exec), pre_stop: pre.then(exec), ..Default::default() });
    }
    if rng.chance(0.2) {
        c.image_pull_policy = Some("Always".into());
    }
}

fn rules(rng: &mut Rng, c: &mut Container) {
    if c.restart_policy.is_some() && rng.chance(0.2) {
        c.restart_policy_rules = Some(vec![ContainerRestartRule {
            action: rng.pick(&["Restart", "RestartAllContainers"]).into(),
            exit_codes: Some(ContainerRestartRuleOnExitCodes {
                operator: rng.pick(&["In", "NotIn"]).into(),
                values: Some(vec![rng.pick(&[0, 1, 42]), 42]),
            }),
        }]);
    }
}

fn options(rng: &mut Rng, grace: i64) -> BTreeMap<String, String> {
    let mut written = BTreeMap::new();
    let mut set = |name: &str, value: String| written.insert(name.to_owned(), value);
    if rng.chance(0.1) {
        set(annotations::SIDECAR_PHASE, "Count".into());
    }
    if rng.chance(0.15) {
        set(annotations::PRE_STOP, rng.pick(&["own-turn", "at-once"]).into());
    }
    if grace > 0 && rng.chance(0.2) {
        set(annotations::SIDECAR_GRACE, format!("{}ms", rng.between(1, grace as u64 * 1_000)));
    }
    if rng.chance(0.1) {
        set(annotations::SIDECAR_DELAY, format!("{}ms", rng.between(1, 4_000)));
    }
    if rng.chance(0.1) {
        set(annotations::STOP_GRACE, format!("m0={}ms", rng.between(0, grace.unsigned_abs() * 1_000)));
    }
    if rng.chance(0.1) {
        set(annotations::FENCE, rng.pick(&["start", "restart"]).into());
    }
    if rng.chance(0.1) {
        set(annotations::POST_START_TIMEOUT, "3s".into());
    }
    written
}

/// A random graph without cycles. Containers are put in a random order that keeps init entries before mains,
/// and each depends only on those before it.
fn graph(rng: &mut Rng, inits: u64, mains: u64) -> String {
    let mut order: Vec<String> = (0..inits).map(|i| format!("i{i}")).collect();
    let mut rest: Vec<String> = (0..mains).map(|i| format!("m{i}")).collect();
    while !rest.is_empty() {
        order.push(rest.swap_remove(rng.index(rest.len())));
    }
    let mut lines = Vec::new();
    for (i, name) in order.iter().enumerate() {
        if rng.chance(0.4) {
            continue;
        }
        let mut clauses = Vec::new();
        for on in &order[..i] {
            if rng.chance(0.3) {
                let need = rng.pick(&["", " started", " ready", " completed"]);
                let more = rng.pick(&["", "", "", " restart", " fence"]);
                clauses.push(format!("{on}{need}{more}"));
            }
        }
        let chosen = [0.05, 0.05, 0.15, 0.1, 0.1].map(|p| rng.chance(p));
        if chosen[0] {
            clauses.push("primary".into());
        }
        if chosen[1] {
            clauses.push("fatal".into());
        }
        if chosen[2] && name.starts_with('m') {
            clauses.push("sidecar".into());
        }
        if chosen[3] {
            clauses.push(format!("start {}", i));
        }
        if chosen[4] {
            clauses.push(format!("stop {}", rng.between(1, 3)));
        }
        if clauses.is_empty() {
            clauses.push("none".into());
        }
        lines.push(format!("{name}: {}", clauses.join(", ")));
    }
    lines.join("\n")
}

/// A random script for a pod. It always tells the pod to stop at some time, so that every life ends.
pub fn script(rng: &mut Rng, plan: &Plan, trouble: Trouble) -> Script {
    let mut script = Script::default();
    for c in &plan.containers {
        if rng.chance(0.8) {
            let mut container = instance(rng);
            container.start_fails = if rng.chance(0.1) { rng.between(1, 3) as u32 } else { 0 };
            if rng.chance(0.3) {
                container.pull = Tries {
                    takes: Some(span(rng, 5_000)),
                    fails: if rng.chance(0.3) { rng.between(1, 3) as u32 } else { 0 },
                };
            }
            container.instances =
                (0..if rng.chance(0.4) { rng.between(1, 3) } else { 0 }).map(|_| instance(rng)).collect();
            script.containers.insert(c.name.clone(), container);
        }
    }
    let end = if rng.chance(0.5) { rng.below(20_000) } else { rng.below(600_000) };
    script
        .stops
        .push(StopScript { at: ScriptDuration(end), grace: rng.chance(0.3).then(|| span(rng, 20_000)) });
    if rng.chance(0.2) {
        let at = ScriptDuration(end + rng.below(10_000));
        script.stops.push(StopScript {
            at,
            grace: rng
                .chance(0.8)
                .then(|| rng.pick(&[ScriptDuration(0), ScriptDuration(1_000), ScriptDuration(5_000)])),
        });
    }
    if rng.chance(0.1) {
        let container = plan.containers[rng.index(plan.containers.len())].name.clone();
        script.image_changes.push(Moment { container, at: ScriptDuration(rng.below(end + 1)) });
    }
    if trouble == Trouble::Faults {
        faults(rng, plan, &mut script, end);
    }
    script
}

fn faults(rng: &mut Rng, plan: &Plan, script: &mut Script, end: u64) {
    let faults = &mut script.faults;
    for share in [&mut faults.lose, &mut faults.duplicate, &mut faults.delay] {
        if rng.chance(0.6) {
            *share = rng.below(40) as f64 / 100.0;
        }
    }
    if rng.chance(0.3) {
        faults.jitter = 0.2;
    }
    for _ in 0..rng.below(3) {
        let at = ScriptDuration(rng.below(end + 15_000));
        faults.agent_restarts.push(AgentRestart { at, takes: Some(span(rng, 3_000)) });
    }
    if rng.chance(0.1) {
        let container = plan.containers[rng.index(plan.containers.len())].name.clone();
        faults.lost_containers.push(Moment { container, at: ScriptDuration(rng.below(end + 1)) });
    }
    script.sandbox = SandboxScript {
        takes: rng.chance(0.3).then(|| span(rng, 2_000)),
        fails: if rng.chance(0.1) { 2 } else { 0 },
        lost_at: (0..if rng.chance(0.15) { rng.between(1, 2) } else { 0 })
            .map(|_| ScriptDuration(rng.below(end + 5_000)))
            .collect(),
    };
}

fn span(rng: &mut Rng, max: u64) -> ScriptDuration {
    // Half of the times are short, because races need events at about the same time.
    ScriptDuration(if rng.chance(0.5) { rng.below(max / 10 + 1) } else { rng.below(max + 1) })
}

fn hook(rng: &mut Rng) -> HookScript {
    HookScript {
        takes: Some(if rng.chance(0.1) { ScriptDuration::FOREVER } else { span(rng, 5_000) }),
        fails: rng.chance(0.15),
        ends_container: rng.chance(0.1),
    }
}

fn instance(rng: &mut Rng) -> ContainerScript {
    let mut script = ContainerScript { starts_in: Some(span(rng, 2_000)), ..Default::default() };
    if rng.chance(0.5) {
        script.started_after = Some(span(rng, 20_000));
    }
    if rng.chance(0.5) {
        script.ready_after = Some(span(rng, 20_000));
    }
    if rng.chance(0.2) {
        let from = rng.below(20_000);
        script.unready = vec![(ScriptDuration(from), ScriptDuration(from + rng.below(20_000)))];
    }
    if rng.chance(0.2) {
        script.live_until = Some(span(rng, 40_000));
    }
    if rng.chance(0.6) {
        script.runs = Some(span(rng, 30_000));
        script.exit = Some(rng.pick(&[0, 0, 0, 1, 42]));
        script.oom = rng.chance(0.05).then_some(true);
    }
    if rng.chance(0.5) {
        script.on_term = Some(OnTerm {
            exit_after: Some(span(rng, 10_000)),
            code: rng.chance(0.3).then_some(143),
            ignore: rng.chance(0.2),
        });
    }
    if rng.chance(0.4) {
        script.hooks = Hooks {
            post_start: rng.chance(0.7).then(|| hook(rng)),
            pre_stop: rng.chance(0.7).then(|| hook(rng)),
        };
    }
    script
}
