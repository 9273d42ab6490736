//! The rules for a pod that is neither stopping nor starting over: start, probe, restart.

use super::stop;
use crate::action::Action;
use crate::backoff;
use crate::decision::{Decision, Wait};
use crate::observation::{
    Container, Hook, HookKind, Image, KillReason, Observation, SandboxState, State, Verdict,
};
use crate::plan::{ContainerPlan, Plan, ProbeKind, Role};
use crate::probe;
use crate::rules;
use crate::time::Time;

pub(super) fn pod(plan: &Plan, obs: &Observation, now: Time, out: &mut Decision) {
    if obs.sandbox.state == SandboxState::Absent {
        if now >= obs.sandbox.retry_at {
            out.actions.push(Action::CreateSandbox { attempt: obs.sandbox.attempt });
        } else {
            out.wake_at(obs.sandbox.retry_at);
        }
    }
    // A liveness probe must not kill anything while everything that keeps the pod alive is already stopping
    // (E028).
    let ending = rules::all_keepers(plan, obs, rules::is_ending_for_good);
    let until = rules::sidecars_run_until(plan, obs);
    for i in 0..plan.containers.len() {
        if let Some(until) = until {
            match obs.containers[i].state {
                State::Running { .. } if plan.containers[i].role == Role::Sidecar => {
                    out.wait(i, Wait::SidecarDelay { until });
                }
                // A container that has ended in a completed pod is not started again (R4.1).
                State::Waiting | State::Exited => continue,
                _ => {}
            }
        }
        pull(&plan.containers[i], &obs.containers[i], i, now, out);
        match obs.containers[i].state {
            State::Running { since } => running(plan, obs, i, since, ending, now, out),
            State::Waiting | State::Exited => start(plan, obs, i, now, out),
            State::Unknown => {
                begin_kill(plan, obs, i, KillReason::Unknown, now, out);
                stop::one(plan, obs, i, now, out);
            }
            State::Starting { .. } => {}
        }
    }
}

/// Pulls the image. All images are pulled at once, long before they are needed (G-10).
pub(super) fn pull(plan: &ContainerPlan, c: &Container, i: usize, now: Time, out: &mut Decision) {
    let needed = match c.state {
        State::Waiting | State::Unknown => true,
        State::Exited => c.exit.as_ref().is_some_and(|e| rules::restarts_after(plan, e)),
        State::Running { .. } | State::Starting { .. } => c.image_changed,
    };
    if !needed {
        return;
    }
    match &c.image {
        Image::Unknown => out.actions.push(Action::Pull { container: i }),
        Image::Failed { retry_at, .. } if now >= *retry_at => out.actions.push(Action::Pull { container: i }),
        Image::Failed { retry_at, .. } => out.wake_at(*retry_at),
        Image::Pulling | Image::Present => {}
    }
}

/// Starts a container that is not running, if it should run and may start.
fn start(plan: &Plan, obs: &Observation, i: usize, now: Time, out: &mut Decision) {
    let (p, c) = (&plan.containers[i], &obs.containers[i]);
    if !wants_start(p, c) {
        return;
    }
    match hindrance(plan, obs, i, now) {
        None => out.actions.push(Action::Start { container: i, attempt: next_attempt(c) }),
        Some(wait) => {
            match wait {
                Wait::Backoff { until: at } | Wait::StartRetry { at } => out.wake_at(at),
                _ => {}
            }
            out.wait(i, wait);
        }
    }
}

/// Whether a container that is not running should be started.
pub(super) fn wants_start(p: &ContainerPlan, c: &Container) -> bool {
    match (&c.state, &c.exit) {
        (State::Waiting, _) => true,
        (State::Exited, Some(exit)) => {
            // A completed init container is never considered again (R1.23).
            !(p.role == Role::Init && c.was_completed) && rules::restarts_after(p, exit)
        }
        _ => false,
    }
}

/// The reason why a container cannot start now, if there is one.
pub(super) fn hindrance(plan: &Plan, obs: &Observation, i: usize, now: Time) -> Option<Wait> {
    let (p, c) = (&plan.containers[i], &obs.containers[i]);
    if obs.sandbox.state != SandboxState::Ready {
        return Some(Wait::Sandbox);
    }
    if let Some(gate) = rules::closed_gate(plan, obs, i) {
        return Some(Wait::Gate { on: gate.on, need: gate.need });
    }
    let until = backoff::restart_at(&p.restart.backoff, c);
    if now < until {
        return Some(Wait::Backoff { until });
    }
    match &c.image {
        Image::Present => {}
        Image::Failed { retry_at, .. } => return Some(Wait::ImageRetry { at: *retry_at }),
        Image::Unknown | Image::Pulling => return Some(Wait::Image),
    }
    match &c.start_failure {
        Some(failure) if now < failure.retry_at => Some(Wait::StartRetry { at: failure.retry_at }),
        _ => None,
    }
}

pub(super) fn next_attempt(c: &Container) -> u32 {
    c.attempt + u32::from(c.exit.is_some())
}

fn running(
    plan: &Plan,
    obs: &Observation,
    i: usize,
    since: Time,
    ending: bool,
    now: Time,
    out: &mut Decision,
) {
    let (p, c) = (&plan.containers[i], &obs.containers[i]);
    if c.kill.is_some() {
        // Only this container is being stopped: readiness probes continue, and the others are not affected
        // (G-13, G-17, R3.52).
        stop::one(plan, obs, i, now, out);
        probe_one(p, c, i, ProbeKind::Readiness, since, now, out);
        return;
    }
    post_start(p, c, i, now, out);
    if let Some(reason) = reason_to_kill(plan, obs, i, ending) {
        begin_kill(plan, obs, i, reason, now, out);
        return;
    }
    if !rules::post_start_done(p, c) {
        return;
    }
    if !rules::is_started(p, c) {
        if !ending {
            probe_one(p, c, i, ProbeKind::Startup, since, now, out);
        }
        out.wait(i, Wait::StartupProbe);
        return;
    }
    if !ending {
        probe_one(p, c, i, ProbeKind::Liveness, since, now, out);
    }
    probe_one(p, c, i, ProbeKind::Readiness, since, now, out);
    if !rules::is_ready(p, c) && p.role != Role::Init {
        out.wait(i, Wait::ReadinessProbe);
    }
}

fn post_start(p: &ContainerPlan, c: &Container, i: usize, now: Time, out: &mut Decision) {
    let Some(hook) = p.post_start else { return };
    let kind = HookKind::PostStart;
    match c.post_start {
        Hook::Idle => {
            let deadline = hook.timeout_ms.map(|ms| now + ms);
            out.actions.push(Action::RunHook { container: i, attempt: c.attempt, hook: kind, deadline });
        }
        Hook::Running { since } => {
            out.wait(i, Wait::Hook { hook: kind });
            // A hook that never ends must not block the pod (G-14).
            if let Some(limit) = hook.timeout_ms {
                if now >= since + limit {
                    out.actions.push(Action::CancelHook { container: i, attempt: c.attempt, hook: kind });
                } else {
                    out.wake_at(since + limit);
                }
            }
        }
        Hook::Done | Hook::Failed { .. } => {}
    }
}

/// Why a running container must be stopped and started again, if it must.
fn reason_to_kill(plan: &Plan, obs: &Observation, i: usize, ending: bool) -> Option<KillReason> {
    let (p, c) = (&plan.containers[i], &obs.containers[i]);
    if matches!(c.post_start, Hook::Failed { .. }) {
        return Some(KillReason::PostStart);
    }
    if c.restart_requested {
        return Some(KillReason::Restart);
    }
    // A new image takes effect immediately, even before the startup probe has passed (G-36), but only once it
    // is present.
    if c.image_changed && c.image == Image::Present {
        return Some(KillReason::ImageChanged);
    }
    if ending {
        return None;
    }
    if c.probe(ProbeKind::Startup).verdict == Verdict::Failure {
        return Some(KillReason::Startup);
    }
    if c.probe(ProbeKind::Liveness).verdict == Verdict::Failure {
        return Some(KillReason::Liveness);
    }
    if !p.restart_with.is_empty() {
        let attempts: u32 = p.restart_with.iter().map(|&on| obs.containers[on].attempt).sum();
        let back = p.restart_with.iter().all(|&on| matches!(obs.containers[on].state, State::Running { .. }));
        if back && attempts > c.started_with {
            return Some(KillReason::Dependency);
        }
    }
    let unready = |&on: &usize| !rules::is_ready(&plan.containers[on], &obs.containers[on]);
    (c.fence_was_open && p.fence.iter().any(unready)).then_some(KillReason::Fence)
}

fn begin_kill(plan: &Plan, obs: &Observation, i: usize, reason: KillReason, now: Time, out: &mut Decision) {
    if obs.containers[i].kill.is_none() {
        let deadline = now + kill_grace_ms(plan, i, reason);
        out.actions.push(Action::BeginKill { container: i, reason, deadline });
    }
}

/// The grace period for stopping one container while the pod keeps running (R3.10).
pub(crate) fn kill_grace_ms(plan: &Plan, i: usize, reason: KillReason) -> u64 {
    let own = |kind| plan.containers[i].probe(kind).and_then(|p| p.grace_ms);
    match reason {
        KillReason::Liveness => own(ProbeKind::Liveness),
        KillReason::Startup => own(ProbeKind::Startup),
        _ => None,
    }
    .unwrap_or(plan.grace_ms)
}

/// Starts an attempt of one probe if it is due.
pub(super) fn probe_one(
    p: &ContainerPlan,
    c: &Container,
    i: usize,
    kind: ProbeKind,
    since: Time,
    now: Time,
    out: &mut Decision,
) {
    let Some(plan) = p.probe(kind) else { return };
    let state = c.probe(kind);
    let settled = match kind {
        ProbeKind::Startup => state.verdict != Verdict::Unknown,
        ProbeKind::Liveness => state.verdict == Verdict::Failure,
        ProbeKind::Readiness => !rules::is_started(p, c),
    };
    if settled || state.in_flight.is_some() {
        return;
    }
    let due = probe::due(plan, state, since);
    if now >= due {
        out.actions.push(Action::Probe { container: i, attempt: c.attempt, kind });
    } else {
        out.wake_at(due);
    }
}
