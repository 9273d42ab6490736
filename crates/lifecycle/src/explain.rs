//! Explains in a sentence why a container waits, or why a container or pod is stopped.
//!
//! `run`, `plan`, `simulate` and the pod status show these sentences, so they are part of the user interface.

use outrigger_text::HumanDuration;

use crate::decision::{Decision, Wait};
use crate::dialect::annotations::SIDECAR_DELAY;
use crate::engine::decide;
use crate::observation::{
    Container, Exit, Hook, HookKind, Image, KillReason, Observation, SandboxState, State, StopCause,
};
use crate::plan::{Counts, Need, Plan, ProbeKind, Role};
use crate::probe;
use crate::rules;
use crate::time::Time;

/// Why a container waits. The sentence leaves out its subject, the container: "waits for `proxy` to be ready:
/// …".
pub fn explain(plan: &Plan, obs: &Observation, container: usize, wait: Wait, now: Time) -> String {
    Teller { plan, obs, now }.wait(container, wait, Depth::Chain)
}

/// Why a pod is stopped. If the sentence does not name a container, its subject is the pod: "was asked to
/// stop".
pub fn explain_stop(plan: &Plan, obs: &Observation, cause: StopCause) -> String {
    let name = |i: usize| &plan.containers[i].name;
    match cause {
        StopCause::Deleted => "was asked to stop".to_owned(),
        StopCause::Completed => match first_failed_container(plan, obs) {
            Some((container, exit)) => {
                format!("container `{}` failed with code {}", name(container), exit.code)
            }
            None => "has completed".to_owned(),
        },
        StopCause::InitFailed { container } => {
            format!("init container `{}` failed and is not restarted", name(container))
        }
        StopCause::DeadlineExceeded => match plan.active_deadline_ms {
            Some(ms) => format!("was active longer than its deadline of {}", HumanDuration(ms)),
            None => "was active longer than its deadline".to_owned(),
        },
        StopCause::Fatal { container } => {
            format!("container `{}` ended, which ends the pod", name(container))
        }
        StopCause::GateNeverOpens { container, on } => format!(
            "container `{}` waits for `{}`, which has ended and will not be restarted",
            name(container),
            name(on)
        ),
        StopCause::SandboxLost => {
            "lost its sandbox, and restartPolicy Never does not let it start again".to_owned()
        }
        StopCause::CannotStart { container: Some(container) } => {
            format!("container `{}` cannot start, and trying again cannot help", name(container))
        }
        StopCause::CannotStart { container: None } => {
            "cannot be set up, and trying again cannot help".to_owned()
        }
        StopCause::NotRetried { container: Some(container) } => {
            let c = &obs.containers[container];
            match &c.exit {
                Some(exit) if exit.failed() => {
                    format!("container `{}` failed with code {}", name(container), exit.code)
                }
                None if c.start_failure.is_some() || c.image_failures > 0 => {
                    format!("container `{}` could not start", name(container))
                }
                _ => format!("container `{}` failed", name(container)),
            }
        }
        StopCause::NotRetried { container: None } => "could not be set up".to_owned(),
        StopCause::NodeShutdown => "was stopped because the machine shuts down".to_owned(),
        StopCause::VolumeFull { volume } => {
            let limit = &plan.volume_limits[volume];
            format!("volume `{}` holds more than its limit of {}", limit.volume, limit.written)
        }
    }
}

/// The first container that failed for good, among those that count for the result.
pub(crate) fn first_failed_container<'a>(plan: &Plan, obs: &'a Observation) -> Option<(usize, &'a Exit)> {
    let ended = plan.containers.iter().zip(&obs.containers).enumerate();
    let counted = ended.filter(|(_, (p, _))| p.role != Role::Init && p.counts != Counts::No);
    let exits = counted.filter_map(|(i, (p, c))| Some((i, rules::final_exit(p, c)?)));
    exits.filter(|(_, exit)| exit.failed()).min_by_key(|(_, exit)| exit.finished_at)
}

impl KillReason {
    /// Why a container is being stopped. The text follows "because".
    pub fn why(self) -> &'static str {
        match self {
            KillReason::Liveness => "its liveness probe failed",
            KillReason::Startup => "its startup probe failed",
            KillReason::PostStart => "its postStart hook failed",
            KillReason::ImageChanged => "its image changed",
            KillReason::Restart => "its restart was requested",
            KillReason::Dependency => "a container it restarts with was restarted",
            KillReason::Fence => "a container it depends on is no longer ready",
            KillReason::Unknown => "the runtime has lost track of it",
            KillReason::PodStop => "the pod stops",
            KillReason::Rerun => "the whole pod restarts",
        }
    }
}

/// The duration of a probe attempt is shown if it is longer than this.
const SLOW_PROBE_MS: u64 = 500;

/// How far to follow a chain of waiting containers.
#[derive(Clone, Copy, PartialEq)]
enum Depth {
    /// Also say what the other container is waiting for.
    Chain,
    /// Stop here.
    Last,
}

struct Teller<'a> {
    plan: &'a Plan,
    obs: &'a Observation,
    now: Time,
}

impl Teller<'_> {
    fn name(&self, i: usize) -> &str {
        &self.plan.containers[i].name
    }

    /// What a container is doing, and for how long, if that is long enough to mention.
    fn lasting(&self, activity: &str, since: Time) -> String {
        match self.now.since(since) < 1_000 {
            true => format!("it is {activity}"),
            false => format!("{activity} for {}", self.ago(since)),
        }
    }

    fn ago(&self, since: Time) -> HumanDuration {
        HumanDuration(self.now.since(since))
    }

    fn until(&self, at: Time) -> HumanDuration {
        HumanDuration(at.since(self.now))
    }

    fn wait(&self, i: usize, wait: Wait, depth: Depth) -> String {
        let c = &self.obs.containers[i];
        match wait {
            Wait::Sandbox => self.sandbox(),
            Wait::Gate { on, need } => {
                let activity = self.activity(on, need, depth);
                format!("waits for `{}` {}: {activity}", self.name(on), need_words(need))
            }
            Wait::Image => match c.image_failures {
                0 => "waits for its image: being pulled".to_owned(),
                n => format!(
                    "waits for its image: being pulled, after {}",
                    times(n, "failed try", "failed tries")
                ),
            },
            Wait::ImageRetry { at } => match &c.image {
                Image::Failed { reason, message, .. } => {
                    format!("waits for its image: {reason}: {message}, next try in {}", self.until(at))
                }
                _ => format!("waits for its image: next try in {}", self.until(at)),
            },
            Wait::Backoff { until } => format!(
                "restarts in {} (back-off after {}{})",
                self.until(until),
                times(c.restarts, "restart", "restarts"),
                c.exit.as_ref().map_or(String::new(), |e| format!(", last {}", exit_words(e)))
            ),
            Wait::StartRetry { at } => match &c.start_failure {
                Some(f) => format!(
                    "could not be started: {}: {}, next try in {}",
                    f.reason,
                    f.message,
                    self.until(at)
                ),
                None => format!("could not be started, next try in {}", self.until(at)),
            },
            Wait::Hook { hook } => format!("waits for {}", self.hook(c, hook, "its")),
            Wait::StartupProbe => format!("running, {}", self.probe(i, ProbeKind::Startup)),
            Wait::ReadinessProbe => format!("running, not ready: {}", self.probe(i, ProbeKind::Readiness)),
            Wait::StopTurn { on } => {
                format!("stops after `{}`, which is still running", self.name(on))
            }
            Wait::FirstPreStop { on } => {
                let whose = format!("the preStop hook of `{}`", self.name(on));
                match self.obs.containers[on].first_pre_stop {
                    Hook::Running { since } => {
                        format!("stops after {whose}, running for {}", self.ago(since))
                    }
                    _ => format!("stops after {whose}"),
                }
            }
            Wait::Stopping { kill_at } => self.stopping(c, kill_at),
            Wait::SidecarDelay { until } => {
                format!(
                    "stops in {}: the mains are done, and {SIDECAR_DELAY} keeps it running",
                    self.until(until)
                )
            }
            Wait::Rerun { not_before } => {
                format!("restarts with the whole pod in {}", self.until(not_before))
            }
        }
    }

    fn sandbox(&self) -> String {
        let sandbox = &self.obs.sandbox;
        let what = match (sandbox.state, &sandbox.message) {
            (SandboxState::Absent, Some(message)) => format!(
                "could not be created ({}), last: {message}, next try in {}",
                times(sandbox.failures, "try", "tries"),
                self.until(sandbox.retry_at)
            ),
            (SandboxState::Absent, None) => "not created yet".to_owned(),
            (SandboxState::Creating, _) => "being created".to_owned(),
            (SandboxState::Lost, _) => "lost".to_owned(),
            (SandboxState::Ready, _) => "just created".to_owned(),
        };
        format!("waits for the pod's sandbox: {what}")
    }

    fn hook(&self, c: &Container, hook: HookKind, whose: &str) -> String {
        let name = hook.name();
        match c.hook(hook) {
            Hook::Running { since } => format!("{whose} {name} hook, running for {}", self.ago(*since)),
            _ => format!("{whose} {name} hook"),
        }
    }

    fn stopping(&self, c: &Container, kill_at: Time) -> String {
        let because = match c.kill {
            Some(kill) if kill.reason != KillReason::PodStop => format!(" because {}", kill.reason.why()),
            _ => String::new(),
        };
        match c.kill.and_then(|k| k.signalled_at) {
            Some(at) => {
                let ago = match self.now.since(at) {
                    // It would read "0 s ago".
                    0..100 => String::new(),
                    _ => format!(" {} ago", self.ago(at)),
                };
                format!("told to stop{ago}{because}; KILL in {}", self.until(kill_at))
            }
            None => {
                format!(
                    "will be told to stop as soon as it has started{because}; KILL in {}",
                    self.until(kill_at)
                )
            }
        }
    }

    /// What a container is doing now that another one waits for.
    fn activity(&self, i: usize, need: Need, depth: Depth) -> String {
        let (p, c) = (&self.plan.containers[i], &self.obs.containers[i]);
        match c.state {
            State::Waiting => match self.wait_of(i) {
                Some(wait) if depth == Depth::Chain => {
                    format!("`{}` {}", self.name(i), self.wait(i, wait, Depth::Last))
                }
                Some(_) => "not started yet".to_owned(),
                None => "about to start".to_owned(),
            },
            State::Starting { since } => self.lasting("starting", since),
            State::Unknown => "the runtime has lost track of it".to_owned(),
            State::Exited => self.exited(i, depth),
            State::Running { since } => {
                if let Some(kill) = c.kill {
                    return format!("being stopped because {}", kill.reason.why());
                }
                let hook_due = p.post_start.is_some() && !c.post_start.is_over();
                match need {
                    Need::Completed => self.lasting("running", since),
                    _ if hook_due => self.hook(c, HookKind::PostStart, "in its"),
                    Need::Launched => self.lasting("running", since),
                    _ if !rules::is_started(p, c) => self.probe(i, ProbeKind::Startup),
                    _ => self.probe(i, ProbeKind::Readiness),
                }
            }
        }
    }

    fn exited(&self, i: usize, depth: Depth) -> String {
        let (p, c) = (&self.plan.containers[i], &self.obs.containers[i]);
        let Some(exit) = &c.exit else {
            return "exited".to_owned();
        };
        let how = format!("ended with {}", exit_words(exit));
        if rules::final_exit(p, c).is_some() {
            return format!("{how} and is not restarted");
        }
        match self.wait_of(i) {
            Some(Wait::Backoff { until }) => format!(
                "{how}, restarts in {} (back-off after {})",
                self.until(until),
                times(c.restarts, "restart", "restarts")
            ),
            Some(wait) if depth == Depth::Chain => format!("{how}, {}", self.wait(i, wait, Depth::Last)),
            _ => format!("{how}, about to restart"),
        }
    }

    /// Why another container waits. The engine is asked, so that there is only one answer.
    fn wait_of(&self, i: usize) -> Option<Wait> {
        let mut decision = Decision::default();
        decide(self.plan, self.obs, self.now, &mut decision);
        decision.wait_of(i)
    }

    fn probe(&self, i: usize, kind: ProbeKind) -> String {
        let (p, c) = (&self.plan.containers[i], &self.obs.containers[i]);
        let name = kind.name();
        let (Some(plan), State::Running { since }) = (p.probe(kind), c.state) else {
            return format!("{name} probe pending");
        };
        let state = c.probe(kind);
        if state.failures > 0 {
            let last = state.message.as_ref().map_or(String::new(), |m| format!(", last: {m}"));
            // As in the log, early attempts do not count.
            let counted = match state.run.min(plan.failure_threshold) {
                0 => String::new(),
                n => format!(" ({n} of {})", plan.failure_threshold),
            };
            return format!("{name} probe failed{counted}{last}");
        }
        if state.last_ok == Some(true) {
            return format!(
                "{name} probe succeeded {} of {}",
                state.run,
                times(plan.success_threshold, "time", "times")
            );
        }
        if let Some(message) = &state.message {
            return format!("{name} probe could not run: {message}");
        }
        match (state.in_flight, probe::due(plan, state, since)) {
            (Some(began), _) if self.now.since(began) >= SLOW_PROBE_MS => {
                format!("{name} probe pending for {}", self.ago(began))
            }
            (None, due) if due > self.now => format!("first {name} probe in {}", self.until(due)),
            _ => format!("{name} probe pending"),
        }
    }
}

fn need_words(need: Need) -> &'static str {
    match need {
        Need::Completed => "to complete",
        Need::Started => "to be started",
        Need::Ready => "to be ready",
        Need::Launched => "to be launched",
    }
}

fn exit_words(exit: &Exit) -> String {
    let code = exit.code;
    match (exit.killed_for, exit.reason) {
        // A program that was told to stop may exit with 0, so the reason of the stop is more useful than its
        // own.
        (Some(kill), _) => format!("exit code {code} because {}", kill.why()),
        (None, crate::ExitReason::OomKilled) => format!("exit code {code}, out of memory"),
        (None, _) => format!("exit code {code}"),
    }
}

fn times(n: u32, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

#[cfg(test)]
mod tests;
