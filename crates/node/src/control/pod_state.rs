//! Builds the state of a pod for other commands.

use outrigger_lifecycle::{
    Container, ExitReason, Role, Time, Wait, explain, explain_stop, phase, rules, was_stopped,
};
use outrigger_view::PodView;

use super::wire::{ContainerState, PodState};

/// Builds the state of a pod. Fields that the view does not have stay empty.
pub(crate) fn pod_state(view: &PodView, now: Time) -> PodState {
    let (plan, obs) = (&view.plan, &view.obs);
    let stays = |i: &usize| matches!(plan.containers[*i].role, Role::Main | Role::Sidecar);
    let ready = |i: &usize| rules::is_ready(&plan.containers[*i], &obs.containers[*i]);
    let all = 0..plan.containers.len();
    let sandbox = view.waits.iter().find(|(_, wait)| *wait == Wait::Sandbox);
    let stop = obs.stop.map(|stop| explain_stop(plan, obs, stop.cause));
    PodState {
        name: view.name.to_string(),
        phase: phase(plan, obs).to_string(),
        stopping: obs.stop.is_some() && !obs.over,
        stopped: was_stopped(plan, obs),
        ready: all.clone().filter(stays).filter(ready).count(),
        total: all.clone().filter(stays).count(),
        restarts: obs.containers.iter().map(|c| c.restarts).sum(),
        age_ms: now.since(obs.since),
        reason: stop.or_else(|| sandbox.map(|(of, wait)| explain(plan, obs, *of, *wait, now))),
        containers: all.map(|i| container(view, i, now)).collect(),
        ..PodState::default()
    }
}

fn container(view: &PodView, i: usize, now: Time) -> ContainerState {
    let (p, c) = (&view.plan.containers[i], &view.obs.containers[i]);
    let words = view.container(i, now);
    ContainerState {
        name: p.name.to_string(),
        role: p.role.name().to_owned(),
        ready: rules::is_ready(p, c),
        restarts: c.restarts,
        exit_code: c.exit.as_ref().map(|exit| exit.code),
        age_ms: words.since_ms,
        state: words.state,
        reason: with_start_error(words.reason, c),
    }
}

/// Adds why the program of a container could not be started, because the container's log does not contain it.
fn with_start_error(reason: Option<String>, container: &Container) -> Option<String> {
    let Some(message) = start_error(container) else { return reason };
    Some(match reason {
        Some(reason) => format!("{reason}: {message}"),
        None => message.to_owned(),
    })
}

/// Why the last attempt to start the program of a container failed.
pub(super) fn start_error(container: &Container) -> Option<&str> {
    if container.state.is_alive() {
        return None;
    }
    let exit = container.exit.as_ref().or(container.last_exit.as_ref())?;
    exit.message.as_deref().filter(|_| exit.reason == ExitReason::StartError)
}
