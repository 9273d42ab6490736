//! Decides what counts as a failure of a pod, and the result of a pod that has ended.

use serde::{Deserialize, Serialize};

use crate::action::{Action, ProbeOutcome};
use crate::decision::Decision;
use crate::engine::decide;
use crate::observation::{Exit, KillReason, Observation};
use crate::plan::{Counts, Plan, Role};
use crate::rules;
use crate::status::{Phase, fails_pod, phase};
use crate::time::Time;
use crate::trace::{ContainerEvent, Entry, PodEvent, TraceEvent};

/// A failure that would be retried, or after which the pod can only fail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The failure in human-readable form.
    pub text: String,
    /// The exit code, if a container has exited.
    pub code: Option<i64>,
}

/// How a pod ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodResult {
    /// The pod's phase.
    pub phase: Phase,
    /// The first main container that failed: when it ended, and its exit code.
    pub failed: Option<(Time, i32)>,
}

/// The failure that an entry of the trace reports, if any. While a pod is stopping, no entry is a failure.
pub fn failure(plan: &Plan, obs: &Observation, entry: &Entry) -> Option<Failure> {
    if obs.stop.is_some() {
        return None;
    }
    match (&entry.event, entry.container) {
        (TraceEvent::Pod(PodEvent::SandboxFailed { message, .. }), _) => {
            Some(Failure { text: format!("pod `{}` cannot be set up: {message}", plan.pod), code: None })
        }
        (TraceEvent::Container(event), Some(container)) => {
            container_failure(plan, obs, container, event, entry.time)
        }
        (TraceEvent::Pod(_) | TraceEvent::Container(_), _) => None,
    }
}

fn container_failure(
    plan: &Plan,
    obs: &Observation,
    container: usize,
    event: &ContainerEvent,
    at: Time,
) -> Option<Failure> {
    let name = &plan.containers[container].name;
    let text = match event {
        ContainerEvent::PullFailed { message, .. } => {
            format!("the image of `{name}` cannot be pulled: {message}")
        }
        ContainerEvent::StartFailed { message, .. } => format!("`{name}` cannot be started: {message}"),
        ContainerEvent::Exited { code, .. } => {
            let how = failed_exit(plan, obs, container, at)?;
            let text = match how {
                FailedExit::Check(reason) => format!("`{name}` was stopped because {}", reason.why()),
                FailedExit::Code => format!("`{name}` failed with exit code {code}"),
            };
            return Some(Failure { text, code: Some(i64::from(*code)) });
        }
        ContainerEvent::Probe {
            kind,
            outcome: ProbeOutcome::Error,
            counted: Some(counted),
            threshold: Some(threshold),
            message,
            ..
        } if counted >= threshold && rules::is_waited_for(plan, obs, container) => {
            let why = message.as_deref().unwrap_or_default().trim_end();
            format!("the {} probe of `{name}` cannot be run: {why}", kind.name())
        }
        _ => return None,
    };
    Some(Failure { text, code: None })
}

/// How an instance failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FailedExit {
    /// A probe or hook failed, so it was stopped. Its exit code does not matter.
    Check(KillReason),
    /// Its exit code was not 0.
    Code,
}

/// Whether the last exit of a container is a failure that matters: the container is restarted, or the pod can
/// only fail although the engine has not stopped it yet.
fn failed_exit(plan: &Plan, obs: &Observation, container: usize, at: Time) -> Option<FailedExit> {
    let (p, c) = (&plan.containers[container], &obs.containers[container]);
    // The container may already have been restarted.
    let exit = c.exit.as_ref().or(c.last_exit.as_ref())?;
    let how = failed_by_itself(exit)?;
    // Without a restart the pod can only fail, so there is no need to wait for the other containers.
    let decides = || fails_pod(plan, obs, container) && goes_on(plan, obs, at);
    (rules::restarts_after(p, exit) || decides()).then_some(how)
}

/// How an instance failed; `None` if it did not fail, or was stopped for a reason other than its own failure.
fn failed_by_itself(exit: &Exit) -> Option<FailedExit> {
    match exit.killed_for {
        Some(reason @ (KillReason::Liveness | KillReason::Startup | KillReason::PostStart)) => {
            Some(FailedExit::Check(reason))
        }
        Some(
            KillReason::ImageChanged
            | KillReason::Restart
            | KillReason::Dependency
            | KillReason::Fence
            | KillReason::Rerun
            | KillReason::PodStop,
        ) => None,
        Some(KillReason::Unknown) | None => exit.failed().then_some(FailedExit::Code),
    }
}

/// Whether the engine would keep the pod running. If it is about to stop the pod itself, the engine knows the
/// cause better.
fn goes_on(plan: &Plan, obs: &Observation, now: Time) -> bool {
    let mut decision = Decision::default();
    decide(plan, obs, now, &mut decision);
    !decision.actions.iter().any(|action| matches!(action, Action::BeginStop { .. }))
}

/// The result of a pod that has ended.
pub fn result(plan: &Plan, obs: &Observation) -> PodResult {
    let failed = plan
        .containers
        .iter()
        .zip(&obs.containers)
        .filter(|(p, _)| p.role == Role::Main && p.counts != Counts::No)
        .filter_map(|(_, c)| c.exit.as_ref().filter(|exit| exit.failed()))
        .map(|exit| (exit.finished_at, exit.code))
        .min_by_key(|(at, _)| *at);
    PodResult { phase: phase(plan, obs), failed }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::{ExitReason, StopCause};
    use crate::plan::ProbeKind;
    use crate::status::fixtures::{T0, end, exit, finish, observed, plan, put, run, spec, stop};

    fn entry(container: usize, event: ContainerEvent) -> Entry {
        Entry { time: T0 + 5_000, container: Some(container), event: event.into() }
    }

    fn exited(code: i32) -> ContainerEvent {
        ContainerEvent::Exited {
            attempt: 0,
            code,
            signal: None,
            reason: Some(ExitReason::Error),
            message: None,
            ran_ms: None,
            killed_for: None,
        }
    }

    fn text(plan: &Plan, obs: &Observation, entry: &Entry) -> Option<String> {
        failure(plan, obs, entry).map(|failure| failure.text)
    }

    #[test]
    fn an_exit_is_a_failure_if_it_is_retried_or_decides_the_pod() {
        let by_code = Some("`a` failed with exit code 3");
        let by_probe = Some("`a` was stopped because its liveness probe failed");
        // (policy, exit code of `a`, why it was stopped, failure). `b` keeps running.
        let rows: &[(&str, i32, Option<KillReason>, Option<&str>)] = &[
            ("Always", 3, None, by_code),
            ("OnFailure", 3, None, by_code),
            ("Never", 3, None, by_code),
            ("Always", 0, None, None),
            ("OnFailure", 0, None, None),
            ("Never", 0, None, None),
            ("Always", 3, Some(KillReason::Liveness), by_probe),
            ("Always", 0, Some(KillReason::Liveness), by_probe),
            ("Always", 3, Some(KillReason::Unknown), by_code),
            ("Always", 3, Some(KillReason::ImageChanged), None),
            ("Always", 3, Some(KillReason::Restart), None),
            ("Always", 3, Some(KillReason::Dependency), None),
            ("Always", 3, Some(KillReason::Fence), None),
            ("Always", 3, Some(KillReason::Rerun), None),
            ("Always", 3, Some(KillReason::PodStop), None),
        ];
        for &(policy, code, killed_for, expected) in rows {
            let plan = plan(spec(policy, &["a", "b"]));
            let mut obs = observed(&plan);
            end(&mut obs.containers[0], Exit { killed_for, ..exit(code) });
            run(&mut obs.containers[1]);
            let told = text(&plan, &obs, &entry(0, exited(code)));
            assert_eq!(told.as_deref(), expected, "{policy}, code {code}, {killed_for:?}");
        }
    }

    #[test]
    fn a_pod_that_the_engine_ends_itself_has_no_failure_to_report() {
        let table = [
            // The init container fails for good, and the engine reports that.
            (&["i", "a"][..], "i", "Tx"),
            // The last main has ended, so the pod is over anyway.
            (&["a"], "a", "Tx"),
        ];
        for (names, name, state) in table {
            let plan = plan(spec("Never", names));
            let mut obs = observed(&plan);
            put(&plan, &mut obs, name, state);
            let container = plan.find(name).expect("it is in the plan");
            assert_eq!(text(&plan, &obs, &entry(container, exited(1))), None, "{names:?}");
        }
    }

    #[test]
    fn nothing_is_a_failure_of_a_pod_that_stops() {
        let plan = plan(spec("Always", &["a", "b"]));
        let mut obs = observed(&plan);
        put(&plan, &mut obs, "a", "Tx");
        run(&mut obs.containers[1]);
        assert!(text(&plan, &obs, &entry(0, exited(1))).is_some());
        stop(&mut obs, StopCause::Deleted);
        assert_eq!(text(&plan, &obs, &entry(0, exited(1))), None);
    }

    #[test]
    fn what_cannot_start_is_a_failure() {
        let plan = plan(spec("Always", &["a"]));
        let obs = observed(&plan);
        let refused = PodEvent::SandboxFailed { message: "no".into(), retry_in_ms: None, cause: None };
        let refused = Entry { time: T0, container: None, event: refused.into() };
        assert_eq!(text(&plan, &obs, &refused).as_deref(), Some("pod `pod` cannot be set up: no"));
        let pull = ContainerEvent::PullFailed {
            error: "ErrImagePull".into(),
            message: "no".into(),
            retry_in_ms: None,
            cause: None,
        };
        let told = text(&plan, &obs, &entry(0, pull));
        assert_eq!(told.as_deref(), Some("the image of `a` cannot be pulled: no"));
        let start = ContainerEvent::StartFailed {
            attempt: 0,
            error: "RunContainerError".into(),
            message: "no".into(),
            retry_in_ms: None,
            cause: None,
        };
        assert_eq!(text(&plan, &obs, &entry(0, start)).as_deref(), Some("`a` cannot be started: no"));
    }

    #[test]
    fn a_probe_that_cannot_run_is_a_failure_once_others_wait_for_it() {
        let probe = |counted: u32| ContainerEvent::Probe {
            kind: ProbeKind::Startup,
            outcome: ProbeOutcome::Error,
            message: Some("no such file\n".into()),
            failures: Some(0),
            counted: Some(counted),
            threshold: Some(3),
            period_ms: None,
            verdict: None,
            cause: None,
        };
        let plan = plan(spec("Always", &["s", "a"]));
        let mut obs = observed(&plan);
        put(&plan, &mut obs, "s", "Rn");
        assert_eq!(text(&plan, &obs, &entry(0, probe(2))), None);
        let told = text(&plan, &obs, &entry(0, probe(3)));
        assert_eq!(told.as_deref(), Some("the startup probe of `s` cannot be run: no such file"));
        put(&plan, &mut obs, "s", "St");
        assert_eq!(text(&plan, &obs, &entry(0, probe(3))), None, "nothing waits for it any more");
    }

    #[test]
    fn the_result_names_the_first_main_that_failed() {
        let plan = plan(spec("Never", &["s", "a", "b", "c"]));
        let mut obs = observed(&plan);
        // The sidecar failed first, but it does not count.
        for (name, code, after) in [("s", 9, 1_000), ("a", 2, 4_000), ("b", 3, 2_000), ("c", 0, 500)] {
            let container = plan.find(name).expect("it is in the plan");
            end(&mut obs.containers[container], Exit { finished_at: T0 + after, ..exit(code) });
        }
        finish(&mut obs, StopCause::Completed);
        let failed = Some((T0 + 2_000, 3));
        assert_eq!(result(&plan, &obs), PodResult { phase: Phase::Failed, failed });
        for c in &mut obs.containers {
            c.exit = Some(exit(0));
        }
        assert_eq!(result(&plan, &obs), PodResult { phase: Phase::Succeeded, failed: None });
    }
}
