//! Turns a published pod status back into an observation.
//!
//! This is for callers that see a pod only through the API server. A status has less information than a
//! runtime: what is missing (back-offs, hook results) gets its initial value. Everything that the rules need
//! (ran, started, ready, completed, exit) is there.

use k8s_openapi::api::core::v1::{ContainerState, ContainerStateTerminated, ContainerStatus, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1;

use crate::observation::{
    Container, Exit, ExitReason, Hook, Image, Observation, SandboxState, State, Verdict,
};
use crate::plan::{ContainerPlan, Plan, ProbeKind};
use crate::source::List;
use crate::time::Time;

/// The observation of a pod, according to its status.
pub fn observe(plan: &Plan, status: &PodStatus, now: Time) -> Observation {
    let since = status.start_time.as_ref().map_or(now, time);
    let mut obs = Observation::new(plan, since);
    obs.sandbox.state = SandboxState::Ready;
    for (c, p) in obs.containers.iter_mut().zip(&plan.containers) {
        let statuses = match p.place.list {
            List::Init => &status.init_container_statuses,
            List::Main => &status.container_statuses,
            List::Ephemeral => &status.ephemeral_container_statuses,
        };
        let found = statuses.iter().flatten().find(|s| s.name == p.name);
        if let Some(status) = found {
            container(c, p, status, now);
        }
    }
    obs
}

fn container(c: &mut Container, p: &ContainerPlan, status: &ContainerStatus, now: Time) {
    let restarts = u32::try_from(status.restart_count).unwrap_or(0);
    let last = status.last_state.as_ref().and_then(|s| s.terminated.as_ref());
    (c.attempt, c.restarts) = (restarts, restarts);
    c.image = Image::Present;
    c.last_exit = last.map(exit);
    c.was_run = restarts > 0 || last.is_some();
    c.was_completed = c.last_exit.as_ref().is_some_and(|e| !e.failed());
    match status.state.as_ref() {
        Some(ContainerState { running: Some(running), .. }) => {
            c.state = State::Running { since: running.started_at.as_ref().map_or(now, time) };
            c.was_run = true;
        }
        Some(ContainerState { terminated: Some(terminated), .. }) => {
            let exit = exit(terminated);
            c.state = State::Exited;
            c.was_run = true;
            c.was_completed |= !exit.failed();
            c.exit = Some(exit);
        }
        _ => c.state = State::Waiting,
    }
    c.was_launched = c.was_run;
    // Virtual kubelets leave out `started`.
    let is_alive = c.state.is_alive() || (status.state.is_none() && status.ready);
    let is_started = is_alive && (status.ready || status.started.unwrap_or(false));
    if is_started {
        (c.was_run, c.was_launched, c.was_started) = (true, true, true);
        c.post_start = Hook::Done;
        c.probes[ProbeKind::Startup as usize].verdict = Verdict::Success;
    }
    if is_alive && status.ready {
        let since = c.running_since().unwrap_or(now);
        c.state = State::Running { since };
        c.was_ready = true;
        c.probes[ProbeKind::Readiness as usize].verdict = Verdict::Success;
    } else if let State::Running { since } = c.state {
        // The kubelet's status is used even if no probe of the plan explains it: a postStart hook may be
        // running.
        let probe = if is_started { ProbeKind::Readiness } else { ProbeKind::Startup };
        if p.probe(probe).is_none() {
            c.state = State::Starting { since };
        } else {
            // The kubelet probes only after the hook has ended.
            c.post_start = Hook::Done;
        }
    }
}

fn exit(terminated: &ContainerStateTerminated) -> Exit {
    let reason = match terminated.reason.as_deref() {
        Some("OOMKilled") => ExitReason::OomKilled,
        Some("StartError" | "ContainerCannotRun") => ExitReason::StartError,
        Some("ContainerStatusUnknown") => ExitReason::ContainerStatusUnknown,
        _ if terminated.exit_code == 0 => ExitReason::Completed,
        _ => ExitReason::Error,
    };
    Exit {
        code: terminated.exit_code,
        signal: terminated.signal.filter(|signal| *signal != 0),
        reason,
        started_at: terminated.started_at.as_ref().map(time),
        finished_at: terminated.finished_at.as_ref().map_or(Time(0), time),
        message: None,
        killed_for: None,
    }
}

fn time(time: &v1::Time) -> Time {
    Time(u64::try_from(time.0.as_millisecond()).unwrap_or(0))
}
