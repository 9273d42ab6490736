//! The conditions of a pod (section 5.4).

use k8s_openapi::api::core::v1::{PodCondition, PodStatus};

use super::containers::{DisplayedState, face};
use super::phase::Phase;
use super::{StatusFacts, k8s_time};
use crate::observation::{Exit, Observation, RerunCause, SandboxState, StopCause};
use crate::plan::{Counts, Dialect, Plan, Role};
use crate::rules;
use crate::source::List;

/// The condition that is false when the pod is over and a sidecar that does not count has failed (G-52).
pub(super) const SIDECARS_SUCCEEDED: &str = "outrigger.dev/SidecarsSucceeded";

/// The conditions that Outrigger manages. All others belong to other writers and are kept (R5.31).
const OWNED: [&str; 7] = [
    "PodReadyToStartContainers",
    "Initialized",
    "Ready",
    "ContainersReady",
    "PodScheduled",
    "AllContainersRestarting",
    SIDECARS_SUCCEEDED,
];

/// One condition, before it is compared with the published one.
struct Verdict {
    kind: &'static str,
    holds: bool,
    reason: Option<&'static str>,
    message: Option<String>,
}

impl Verdict {
    fn new(kind: &'static str, holds: bool) -> Verdict {
        Verdict { kind, holds, reason: None, message: None }
    }

    fn because(mut self, reason: &'static str, message: Option<String>) -> Verdict {
        (self.reason, self.message) = (Some(reason), message);
        self
    }
}

/// All conditions of a pod. `phase` is derived from its containers, and may still be Pending for a pod that
/// was stopped early.
pub(super) fn conditions(
    plan: &Plan,
    obs: &Observation,
    phase: Phase,
    facts: &StatusFacts,
    previous: Option<&PodStatus>,
) -> Vec<PodCondition> {
    let old: &[PodCondition] = previous.and_then(|s| s.conditions.as_deref()).unwrap_or_default();
    let sandbox = !obs.over && obs.sandbox.state == SandboxState::Ready;
    let containers_ready = containers_ready(plan, obs, phase);
    let ready = ready(&containers_ready, facts, old);
    let mut verdicts = vec![
        Verdict::new("PodReadyToStartContainers", sandbox),
        initialized(plan, obs, phase, old),
        ready,
        containers_ready,
        Verdict::new("PodScheduled", true),
    ];
    verdicts.extend(restarting(plan, obs, phase));
    verdicts.extend(sidecars_succeeded(plan, obs));
    verdicts.extend(disrupted(plan, obs));
    let published = |v: Verdict| {
        let status = if v.holds { "True" } else { "False" };
        let same = find(old, v.kind).filter(|c| c.status == status);
        PodCondition {
            type_: v.kind.to_owned(),
            status: status.to_owned(),
            reason: v.reason.map(str::to_owned),
            message: v.message,
            last_transition_time: same
                .and_then(|c| c.last_transition_time.clone())
                .or_else(|| Some(k8s_time(facts.now))), // R5.30
            observed_generation: facts.generation,
            last_probe_time: None,
        }
    };
    let mut all: Vec<PodCondition> = verdicts.into_iter().map(published).collect();
    let others = old.iter().filter(|c| !OWNED.contains(&c.type_.as_str()) && find(&all, &c.type_).is_none());
    let others: Vec<PodCondition> = others.cloned().collect();
    all.extend(others);
    all
}

fn find<'c>(conditions: &'c [PodCondition], kind: &str) -> Option<&'c PodCondition> {
    conditions.iter().find(|c| c.type_ == kind)
}

fn initialized(plan: &Plan, obs: &Observation, phase: Phase, old: &[PodCondition]) -> Verdict {
    let verdict = |holds| Verdict::new("Initialized", holds);
    if phase == Phase::Succeeded {
        return verdict(true).because("PodCompleted", None);
    }
    let in_list = |list| move |&i: &usize| plan.containers[i].place.list == list;
    let all = 0..plan.containers.len();
    // If a main has started, initialization is complete, unless the author wrote the gates.
    let seen = |i| !matches!(face(plan, obs, i), DisplayedState::Waiting);
    let main_seen =
        !plan.dialects.contains(&Dialect::DependsOn) && all.clone().filter(in_list(List::Main)).any(seen);
    if main_seen || find(old, "Initialized").is_some_and(|c| c.status == "True") {
        return verdict(true);
    }
    let incomplete = |&i: &usize| {
        let (p, c) = (&plan.containers[i], &obs.containers[i]);
        match p.role {
            Role::Init => !c.was_completed,
            _ => !c.was_started,
        }
    };
    match names(plan, all.filter(in_list(List::Init)).filter(incomplete)) {
        None => verdict(true),
        Some(names) => verdict(false).because(
            "ContainersNotInitialized",
            Some(format!("containers with incomplete status: [{names}]")),
        ),
    }
}

fn containers_ready(plan: &Plan, obs: &Observation, phase: Phase) -> Verdict {
    let verdict = |holds| Verdict::new("ContainersReady", holds);
    match phase {
        Phase::Succeeded => return verdict(false).because("PodCompleted", None),
        Phase::Failed => return verdict(false).because("PodFailed", None),
        Phase::Pending | Phase::Running => {}
    }
    let unready = |&i: &usize| {
        let (p, c) = (&plan.containers[i], &obs.containers[i]);
        matches!(p.role, Role::Sidecar | Role::Main) && !rules::is_ready(p, c)
    };
    // In plan order, `initContainers` come first, so its sidecars are listed before the others (12.17).
    match names(plan, (0..plan.containers.len()).filter(unready)) {
        None => verdict(true),
        Some(names) => verdict(false)
            .because("ContainersNotReady", Some(format!("containers with unready status: [{names}]"))),
    }
}

fn ready(containers: &Verdict, facts: &StatusFacts, all: &[PodCondition]) -> Verdict {
    let verdict = |holds| Verdict::new("Ready", holds);
    if !containers.holds {
        let mut ready = verdict(false);
        (ready.reason, ready.message) = (containers.reason, containers.message.clone());
        return ready;
    }
    let mut missing = Vec::new();
    for gate in &facts.readiness_gates {
        match find(all, gate) {
            Some(c) if c.status == "True" => {}
            Some(c) => missing.push(format!(
                "the status of pod readiness gate \"{gate}\" is not \"True\", but {}",
                c.status
            )),
            None => missing
                .push(format!("corresponding condition of pod readiness gate \"{gate}\" does not exist.")),
        }
    }
    if missing.is_empty() {
        verdict(true)
    } else {
        verdict(false).because("ReadinessGatesNotReady", Some(missing.join(", ")))
    }
}

/// The condition for an in-place restart. Only pods that can restart in place have it (R2.40).
fn restarting(plan: &Plan, obs: &Observation, phase: Phase) -> Option<Verdict> {
    if !plan.may_restart_all() {
        return None;
    }
    let verdict = |holds| Verdict::new("AllContainersRestarting", holds);
    let by_rule = obs.rerun.is_some_and(|r| matches!(r.cause, RerunCause::Rule { .. }));
    Some(match phase {
        Phase::Succeeded => verdict(false).because("PodCompleted", None),
        Phase::Failed => verdict(false).because("PodFailed", None),
        _ if by_rule => verdict(true).because("RestartAllContainersStarted", None),
        _ => verdict(false),
    })
}

/// The condition for sidecars that do not count. The phase does not show their failures.
fn sidecars_succeeded(plan: &Plan, obs: &Observation) -> Option<Verdict> {
    if !obs.over {
        return None;
    }
    let failed = |&i: &usize| {
        let (p, c) = (&plan.containers[i], &obs.containers[i]);
        let exit = c.exit.as_ref();
        p.role == Role::Sidecar && p.counts != Counts::Yes && exit.is_some_and(ended_badly)
    };
    let names = names(plan, (0..plan.containers.len()).filter(failed))?;
    Some(
        Verdict::new(SIDECARS_SUCCEEDED, false)
            .because("SidecarFailed", Some(format!("sidecars that failed: [{names}]"))),
    )
}

/// The condition for a pod that was ended by the node, not by its own programs. Jobs with a
/// `podFailurePolicy` expect it. If another writer has set it, it is kept.
fn disrupted(plan: &Plan, obs: &Observation) -> Option<Verdict> {
    let is_by_node = matches!(obs.stop?.cause, StopCause::NodeShutdown | StopCause::VolumeFull { .. });
    let (_, message) = super::reason(plan, obs).filter(|_| is_by_node)?;
    Some(Verdict::new("DisruptionTarget", true).because("TerminationByKubelet", Some(message)))
}

/// Whether a sidecar's exit is a failure. Many programs are ended by the stop signal, which is not a failure.
fn ended_badly(exit: &Exit) -> bool {
    const KILL: i32 = 9;
    const TERM_CODE: i32 = 143;
    let as_told = exit.killed_for.is_some()
        && (exit.code == TERM_CODE || exit.signal.is_some_and(|signal| signal != KILL));
    exit.failed() && !as_told
}

/// Container names in plan order, separated by spaces as Go prints a list; `None` if there are none.
fn names(plan: &Plan, containers: impl Iterator<Item = usize>) -> Option<String> {
    let names: Vec<&str> = containers.map(|i| plan.containers[i].name.as_str()).collect();
    (!names.is_empty()).then(|| names.join(" "))
}
