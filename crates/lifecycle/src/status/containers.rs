//! The status of one container (section 5.5), derived from the observation.

use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus,
};

use super::{ContainerFacts, StatusFacts, k8s_time};
use crate::decision::Wait;
use crate::explain::explain;
use crate::observation::{Container, Exit, ExitReason, Hook, Image, KillReason, Observation, State};
use crate::plan::{Plan, Role};
use crate::rules;
use crate::source::List;
use crate::time::Time;

/// The state of a container as its status shows it.
#[derive(Debug, Clone, Copy)]
pub(super) enum DisplayedState<'o> {
    /// There is no instance yet, or it has ended and will be restarted.
    Waiting,
    /// It is running since this time.
    Running(Time),
    /// It ended.
    Terminated(&'o Exit),
    /// It was running, and the runtime has lost track of it.
    Lost,
}

/// The visible state of a container. An exited container is `Terminated` even if it will be restarted.
pub(super) fn face<'o>(plan: &Plan, obs: &'o Observation, i: usize) -> DisplayedState<'o> {
    let (p, c) = (&plan.containers[i], &obs.containers[i]);
    match c.state {
        // As on the kubelet, a container is shown as running only after its postStart hook has returned.
        State::Running { .. } if p.post_start.is_some() && !c.post_start.is_over() && c.kill.is_none() => {
            DisplayedState::Waiting
        }
        State::Running { since } => DisplayedState::Running(since),
        State::Exited => c.exit.as_ref().map_or(DisplayedState::Lost, DisplayedState::Terminated),
        State::Unknown if c.was_run => DisplayedState::Lost,
        // The restart was refused and will not be retried, so its last exit is its state.
        State::Waiting if obs.over && c.was_run => {
            c.last_exit.as_ref().map_or(DisplayedState::Waiting, DisplayedState::Terminated)
        }
        State::Waiting | State::Starting { .. } | State::Unknown => DisplayedState::Waiting,
    }
}

/// The status of one container. `wait` is why it waits, if it does.
pub(super) fn status(
    plan: &Plan,
    obs: &Observation,
    i: usize,
    wait: Option<Wait>,
    facts: &StatusFacts,
    previous: Option<&ContainerStatus>,
) -> ContainerStatus {
    let (p, c) = (&plan.containers[i], &obs.containers[i]);
    let unknown = ContainerFacts::default();
    let own = facts.containers.get(i).unwrap_or(&unknown);
    let before = || c.last_exit.as_ref().map(|e| terminated(e, own.last_container_id.as_deref()));
    let (state, last) = match face(plan, obs, i) {
        DisplayedState::Running(since) => (
            ContainerState {
                running: Some(ContainerStateRunning { started_at: Some(k8s_time(since)) }),
                ..Default::default()
            },
            before(),
        ),
        DisplayedState::Lost => (terminated(&lost(obs, c), own.container_id.as_deref()), before()),
        DisplayedState::Terminated(exit) => {
            let ended = terminated(exit, own.container_id.as_deref());
            if comes_back(plan, obs, i, exit, wait) {
                (waiting(plan, obs, i, wait, facts, previous), Some(ended))
            } else {
                (ended, before().filter(|_| c.exit.is_some()))
            }
        }
        DisplayedState::Waiting => (waiting(plan, obs, i, wait, facts, previous), before()),
    };
    let up = state.running.is_some();
    ContainerStatus {
        name: p.name.clone(),
        image: own.image.clone(),
        image_id: own.image_id.clone(),
        container_id: own.container_id.clone(),
        ready: if p.role == Role::Init { c.was_completed } else { up && rules::is_ready(p, c) },
        started: Some(up && rules::is_started(p, c)),
        restart_count: i32::try_from(c.restarts).unwrap_or(i32::MAX),
        state: Some(state),
        last_state: Some(last.unwrap_or_default()),
        ..Default::default()
    }
}

/// Whether an exited container will be restarted. Its state is then `waiting` and not `terminated`.
fn comes_back(plan: &Plan, obs: &Observation, i: usize, exit: &Exit, wait: Option<Wait>) -> bool {
    if obs.over {
        return false;
    }
    if obs.stop.is_some() || obs.rerun.is_some() {
        // While all containers are being stopped, only those for which the engine has a wait are started
        // again (G-18, or the whole pod).
        return wait.is_some();
    }
    let (p, c) = (&plan.containers[i], &obs.containers[i]);
    !(p.role == Role::Init && c.was_completed) && rules::restarts_after(p, exit)
}

fn waiting(
    plan: &Plan,
    obs: &Observation,
    i: usize,
    wait: Option<Wait>,
    facts: &StatusFacts,
    previous: Option<&ContainerStatus>,
) -> ContainerState {
    let (reason, message) = why(plan, obs, i, wait, facts, previous);
    ContainerState {
        waiting: Some(ContainerStateWaiting { reason: Some(reason), message }),
        ..Default::default()
    }
}

/// The reason and message of a waiting container.
fn why(
    plan: &Plan,
    obs: &Observation,
    i: usize,
    wait: Option<Wait>,
    facts: &StatusFacts,
    previous: Option<&ContainerStatus>,
) -> (String, Option<String>) {
    let c = &obs.containers[i];
    let sentence = || wait.map(|w| explain(plan, obs, i, w, facts.now));
    if matches!(wait, Some(Wait::Rerun { .. })) {
        return (ExitReason::RestartingAllContainers.name().to_owned(), sentence());
    }
    let held = matches!(wait, Some(Wait::Gate { .. } | Wait::Sandbox));
    if held || matches!(c.state, State::Running { .. }) || rules::closed_gate(plan, obs, i).is_some() {
        return (idle_reason(plan, c), sentence().filter(|_| held));
    }
    if c.state == State::Exited {
        if let Some(Exit { killed_for: Some(KillReason::PostStart), .. }) = c.exit
            && let Hook::Failed { message } = &c.post_start
        {
            return ("PostStartHookError".to_owned(), Some(message.to_string()));
        }
        if !matches!(wait, Some(Wait::ImageRetry { .. } | Wait::Image)) {
            return ("CrashLoopBackOff".to_owned(), Some(back_off(plan, c, i, facts)));
        }
    }
    if let Some(failure) = &c.start_failure {
        return (failure.reason.to_string(), Some(failure.message.to_string()));
    }
    if let Image::Failed { reason, message, .. } = &c.image {
        return image_reason(reason, message, facts.containers.get(i));
    }
    // While the image is being pulled again, the last pull error stays visible.
    if c.image == Image::Pulling
        && c.image_failures > 0
        && let Some(before) = previous.and_then(|s| s.state.as_ref()?.waiting.as_ref())
        && let Some(reason) = &before.reason
    {
        return (reason.clone(), before.message.clone());
    }
    (idle_reason(plan, c), None)
}

/// The reason of a waiting container that has no problem (R5.41, R2.43).
fn idle_reason(plan: &Plan, c: &Container) -> String {
    let removed = |e: &Exit| e.reason == ExitReason::RestartingAllContainers;
    if !c.was_run && c.last_exit.as_ref().is_some_and(removed) {
        ExitReason::RestartingAllContainers.name()
    } else if plan.containers.iter().any(|c| c.place.list == List::Init) {
        "PodInitializing"
    } else {
        "ContainerCreating"
    }
    .to_owned()
}

fn back_off(plan: &Plan, c: &Container, i: usize, facts: &StatusFacts) -> String {
    let wait = c.backoff.wait_ms.map_or(String::new(), |ms| format!("{} ", go_duration(ms)));
    format!(
        "back-off {wait}restarting failed container={} pod={}_{}({})",
        plan.containers[i].name, plan.pod, facts.namespace, facts.uid
    )
}

fn image_reason(reason: &str, message: &str, own: Option<&ContainerFacts>) -> (String, Option<String>) {
    match reason {
        // These errors are not retried with a back-off, so the reason never becomes `ImagePullBackOff`.
        "ErrImageNeverPull" | "InvalidImageName" => (reason.to_owned(), Some(message.to_owned())),
        _ => {
            let image = own.map_or("", |f| f.image.as_str());
            (
                "ImagePullBackOff".to_owned(),
                Some(format!("Back-off pulling image \"{image}\": {reason}: {message}")),
            )
        }
    }
}

fn terminated(exit: &Exit, container_id: Option<&str>) -> ContainerState {
    ContainerState {
        terminated: Some(ContainerStateTerminated {
            container_id: container_id.map(str::to_owned),
            exit_code: exit.code,
            reason: Some(exit.reason.name().to_owned()),
            message: exit.message.as_deref().map(str::to_owned),
            started_at: exit.started_at.map(k8s_time),
            finished_at: Some(k8s_time(exit.finished_at)),
            // The kubelet never fills `signal`. If it is set, kubectl prints it instead of the exit code.
            signal: None,
        }),
        ..Default::default()
    }
}

/// The exit of a container that the runtime cannot find (R5.40).
fn lost(obs: &Observation, c: &Container) -> Exit {
    Exit {
        code: 137,
        signal: None,
        reason: ExitReason::ContainerStatusUnknown,
        started_at: None,
        finished_at: c.kill.map_or(obs.since, |k| k.since),
        message: Some("the runtime has lost track of the container".into()),
        killed_for: Some(KillReason::Unknown),
    }
}

/// Whole seconds as Go prints them: `10s`, `1m20s`, `5m0s`.
fn go_duration(ms: u64) -> String {
    let s = ms / 1000;
    match (s / 3600, s / 60 % 60, s % 60) {
        (0, 0, s) if s == 0 && ms > 0 => format!("{ms}ms"),
        (0, 0, s) => format!("{s}s"),
        (0, m, s) => format!("{m}m{s}s"),
        (h, m, s) => format!("{h}h{m}m{s}s"),
    }
}
