//! Conditions on a container, given its plan and its observation. All other modules ask here.

use crate::observation::{Container, Exit, Hook, Image, KillReason, Observation, State, Verdict};
use crate::plan::{ContainerPlan, Dialect, Gate, Need, Plan, ProbeKind, RestartPolicy, Role, RuleAction};
use crate::time::Time;

/// Whether the postStart hook has succeeded, or there is none.
pub fn post_start_done(plan: &ContainerPlan, c: &Container) -> bool {
    plan.post_start.is_none() || c.post_start == Hook::Done
}

/// Whether the current instance is running, its postStart hook is done, and its startup probe has passed
/// (R1.40, R1.41, G-38).
pub fn is_started(plan: &ContainerPlan, c: &Container) -> bool {
    matches!(c.state, State::Running { .. })
        && post_start_done(plan, c)
        && (plan.probe(ProbeKind::Startup).is_none()
            || c.probe(ProbeKind::Startup).verdict == Verdict::Success)
}

/// Whether it is started and its readiness probe passes (R5.61). An init container is ready once it has
/// completed (R5.62).
pub fn is_ready(plan: &ContainerPlan, c: &Container) -> bool {
    if plan.role == Role::Init {
        return c.was_completed;
    }
    is_started(plan, c)
        && (plan.probe(ProbeKind::Readiness).is_none()
            || c.probe(ProbeKind::Readiness).verdict == Verdict::Success)
}

/// Whether an instance that ended like this is started again, provided that the pod is not being stopped
/// (R2.1, R2.10 to R2.12).
pub fn restarts_after(plan: &ContainerPlan, exit: &Exit) -> bool {
    // Ephemeral containers run only once, with any exit (R1.10).
    if plan.role == Role::Ephemeral || (plan.role == Role::Init && !exit.failed()) {
        return false;
    }
    match exit.killed_for {
        // The reason for the kill decides, not the exit code, because there was no exit code when the kill
        // was decided.
        Some(KillReason::Liveness | KillReason::Startup) => plan.restart.policy != RestartPolicy::Never,
        Some(
            KillReason::ImageChanged
            | KillReason::Restart
            | KillReason::Dependency
            | KillReason::Fence
            | KillReason::Rerun,
        ) => true,
        // R1.30 and R2.3: lost mains are restarted under every policy, lost init containers according to
        // their policy.
        Some(KillReason::Unknown) => plan.role != Role::Init || plan.restart.policy != RestartPolicy::Never,
        Some(KillReason::PostStart | KillReason::PodStop) | None => policy_restarts(plan, exit),
    }
}

/// Whether the restart rules, or else the policy, restart the container (R2.1 steps 2 and 3).
fn policy_restarts(plan: &ContainerPlan, exit: &Exit) -> bool {
    if plan.restart.rules.iter().any(|r| r.matches(exit.code)) {
        return true;
    }
    match plan.restart.policy {
        RestartPolicy::Always => true,
        RestartPolicy::OnFailure => exit.failed(),
        RestartPolicy::Never => false,
    }
}

/// Whether this exit restarts the whole pod in place (R2.40): the first matching rule decides.
pub fn restarts_all(plan: &ContainerPlan, exit: &Exit) -> bool {
    exit.killed_for.is_none()
        && plan
            .restart
            .rules
            .iter()
            .find(|r| r.matches(exit.code))
            .is_some_and(|r| r.action == RuleAction::RestartAllContainers)
}

/// The exit of a container that has ended and will not be started again, provided that the pod is not being
/// stopped.
pub fn final_exit<'a>(plan: &ContainerPlan, c: &'a Container) -> Option<&'a Exit> {
    match (&c.state, &c.exit) {
        (State::Exited, Some(exit)) if !restarts_after(plan, exit) => Some(exit),
        _ => None,
    }
}

/// Whether a container has ended for good, or is being stopped and will not be restarted.
pub fn is_ending_for_good(plan: &ContainerPlan, c: &Container) -> bool {
    let dying = |reason| {
        plan.restart.policy == RestartPolicy::Never
            && matches!(reason, KillReason::Liveness | KillReason::Startup | KillReason::PostStart)
    };
    final_exit(plan, c).is_some() || (c.state.is_alive() && c.kill.is_some_and(|k| dying(k.reason)))
}

/// Whether every container that keeps the pod alive satisfies `test`, and there is at least one (G-20).
pub fn all_keepers(
    plan: &Plan,
    obs: &Observation,
    test: impl Fn(&ContainerPlan, &Container) -> bool,
) -> bool {
    let mut any = false;
    for (p, c) in plan.containers.iter().zip(&obs.containers).filter(|(p, _)| p.keeps_alive) {
        if !test(p, c) {
            return false;
        }
        any = true;
    }
    any
}

/// How long the running sidecars of a pod whose mains are done run on (KD7); `None`: not at all.
pub fn sidecars_run_until(plan: &Plan, obs: &Observation) -> Option<Time> {
    let containers = || plan.containers.iter().zip(&obs.containers);
    let runs = containers().any(|(p, c)| p.role == Role::Sidecar && c.state.is_alive());
    let is_done = plan.sidecar_delay_ms > 0 && all_keepers(plan, obs, |p, c| final_exit(p, c).is_some());
    let mains = containers().filter(|(p, _)| p.keeps_alive);
    let last = mains.filter_map(|(p, c)| final_exit(p, c)).map(|exit| exit.finished_at).max();
    last.filter(|_| is_done && runs).map(|at| at + plan.sidecar_delay_ms)
}

/// A volume that exceeds its limit.
pub fn full_volume(plan: &Plan, obs: &Observation) -> Option<usize> {
    plan.volume_limits.iter().zip(&obs.volume_bytes).position(|(limit, held)| *held > limit.bytes)
}

/// Whether a gate of the container `index` is open now.
pub fn gate_open(plan: &Plan, obs: &Observation, index: usize, gate: &Gate) -> bool {
    let (p, c) = (&plan.containers[gate.on], &obs.containers[gate.on]);
    match gate.need {
        Need::Completed => c.was_completed,
        Need::Started if gate.every_start => is_started(p, c),
        // It is also evaluated now, because a hook that ended while the observer was away causes no event
        // (see `Observation::recover`).
        Need::Started => c.was_started || is_started(p, c) || final_exit(p, c).is_some_and(|e| !e.failed()),
        Need::Ready if gate.every_start => is_ready(p, c),
        // A container that will not be restarted does not block others if it has succeeded (LP-28, KD10) or
        // was ready: had their images, or what else they wait for, come sooner, they would be running.
        Need::Ready => {
            is_ready(p, c)
                || final_exit(p, c).is_some_and(|e| !e.failed() || c.was_ready)
                || ((c.was_ready || c.was_completed) && others_passed(plan, obs, index, gate))
        }
        // A container whose image cannot be pulled does not block others (R1.7), once its own gates are open
        // (R1.5).
        Need::Launched => {
            let no_image = || matches!(c.image, Image::Failed { .. });
            c.was_launched || (no_image() && closed_gate(plan, obs, gate.on).is_none())
        }
    }
}

/// Whether another container has already passed the same gate. The gate then stays open for the others, which
/// may only be late because of their images. Otherwise the end of a helper that is needed only at the start
/// would end the pod.
///
/// A level of launch priority opens as a whole, and only for its own containers (LP-23, LP-26). A main that
/// finished in a lost sandbox has not passed a gate in the new one.
fn others_passed(plan: &Plan, obs: &Observation, index: usize, gate: &Gate) -> bool {
    let level = |p: &ContainerPlan| -> Vec<usize> {
        p.gates.iter().filter(|g| g.dialect == Some(Dialect::Priority)).map(|g| g.on).collect()
    };
    plan.containers.iter().zip(&obs.containers).any(|(p, c)| {
        (c.was_run || c.state.is_alive())
            && c.sandbox == obs.sandbox.attempt
            && p.gates.iter().any(|g| g.on == gate.on && g.need == gate.need)
            && (gate.dialect != Some(Dialect::Priority) || level(p) == level(&plan.containers[index]))
    })
}

/// Whether a closed gate can never open: the container it waits for has ended for good, did not succeed and
/// never was ready.
pub fn gate_can_never_open(plan: &Plan, obs: &Observation, index: usize, gate: &Gate) -> bool {
    let (p, c) = (&plan.containers[gate.on], &obs.containers[gate.on]);
    gate.need != Need::Launched && final_exit(p, c).is_some() && !gate_open(plan, obs, index, gate)
}

/// Whether a gate waits for a state of another container, and stays open for its own container once all such
/// gates were open at the same time.
pub fn opens_once(gate: &Gate) -> bool {
    !gate.every_start && gate.need != Need::Launched
}

/// Whether a gate applies to the next start of its container.
pub fn gate_is_asked(gate: &Gate, c: &Container) -> bool {
    gate.every_start || !(c.was_run || (c.gates_were_open && opens_once(gate)))
}

/// The first closed gate for a container's next start.
pub fn closed_gate<'p>(plan: &'p Plan, obs: &Observation, index: usize) -> Option<&'p Gate> {
    let c = &obs.containers[index];
    plan.containers[index].gates.iter().find(|g| gate_is_asked(g, c) && !gate_open(plan, obs, index, g))
}

/// Whether another container cannot start because its gate on this one is closed.
pub fn is_waited_for(plan: &Plan, obs: &Observation, index: usize) -> bool {
    (0..plan.containers.len()).any(|i| {
        let c = &obs.containers[i];
        let closed = |g: &Gate| g.on == index && gate_is_asked(g, c) && !gate_open(plan, obs, i, g);
        !c.state.is_alive() && plan.containers[i].gates.iter().any(closed)
    })
}
