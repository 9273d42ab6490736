//! A script resolved against a plan: the behaviour of every instance of every container.

use std::sync::Arc;

use outrigger_lifecycle::{Plan, RestartPolicy, Role};
use thiserror::Error;

use crate::script::{AgentRestart, ContainerScript, HookScript, Moment, Script, StopScript};
use crate::script_duration::ScriptDuration;

/// Why a script does not fit a pod.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ScriptError {
    /// The script names a container the pod does not have.
    #[error("the script names the container {name:?}, the pod has {known}")]
    UnknownContainer {
        /// The name in the script.
        name: String,
        /// The containers of the pod.
        known: String,
    },
    /// An entry of `instances` has a field that only a container may have.
    #[error("instances of {name:?} may not have {field:?}: write it one level up")]
    Nested {
        /// The container.
        name: String,
        /// The field.
        field: &'static str,
    },
    /// A probability or share is not between 0 and 1.
    #[error("faults.{field} is {value}, it must be between 0 and 1")]
    Share {
        /// The field.
        field: &'static str,
        /// The value in the script.
        value: String,
    },
}

/// The behaviour of one instance.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Instance {
    pub(crate) starts_in: u64,
    pub(crate) started_after: u64,
    pub(crate) ready_after: u64,
    pub(crate) unready: Vec<(u64, u64)>,
    pub(crate) live_until: u64,
    pub(crate) runs: u64,
    pub(crate) exit: i32,
    pub(crate) oom: bool,
    pub(crate) message: Option<Arc<str>>,
    /// `u64::MAX` means that it ignores the signal.
    pub(crate) term_after: u64,
    pub(crate) term_code: i32,
    pub(crate) post_start: Hooked,
    pub(crate) pre_stop: Hooked,
}

/// The behaviour of a hook.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Hooked {
    pub(crate) takes: u64,
    pub(crate) fails: bool,
    pub(crate) ends_container: bool,
}

/// The behaviour of one container.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ContainerScenario {
    pub(crate) instances: Vec<Instance>,
    pub(crate) pull_takes: u64,
    pub(crate) pull_fails: u32,
    pub(crate) start_fails: u32,
}

impl ContainerScenario {
    pub(crate) fn instance(&self, attempt: u32) -> &Instance {
        &self.instances[(attempt as usize).min(self.instances.len() - 1)]
    }
}

/// A script resolved against a plan.
///
/// Defaults: a pull takes 100 ms; creating the sandbox and starting a container take 50 ms each. An init
/// container exits with 0 after 100 ms, and a main after 1 s unless it always restarts. Every other container
/// runs until it is told to stop, and then exits with 0 after 100 ms. Probes pass. Hooks succeed after 50 ms,
/// or after the time that they sleep.
#[derive(Debug, Clone, PartialEq)]
pub struct Scenario {
    pub(crate) cast: Vec<ContainerScenario>,
    pub(crate) sandbox_takes: u64,
    pub(crate) sandbox_fails: u32,
    pub(crate) sandbox_lost_at: Vec<u64>,
    pub(crate) stops: Vec<(u64, Option<u64>)>,
    pub(crate) image_changes: Vec<(usize, u64)>,
    pub(crate) lost: Vec<(usize, u64)>,
    /// The updates: time and plan.
    pub(crate) updates: Vec<(u64, Plan)>,
    /// The restart requests: time and container.
    pub(crate) restarts: Vec<(u64, Option<usize>)>,
    /// The crashes of the agent: time and duration.
    pub(crate) agent_restarts: Vec<(u64, u64)>,
    pub(crate) lose: f64,
    pub(crate) duplicate: f64,
    pub(crate) delay: f64,
    pub(crate) delay_max: u64,
    pub(crate) resync: u64,
    pub(crate) jitter: f64,
}

impl Scenario {
    /// Resolves a script.
    pub fn new(plan: &Plan, script: &Script) -> Result<Scenario, ScriptError> {
        let find = |name: &str| {
            plan.find(name).ok_or_else(|| ScriptError::UnknownContainer {
                name: name.to_string(),
                known: plan.containers.iter().map(|c| c.name.as_str()).collect::<Vec<_>>().join(", "),
            })
        };
        let moments = |list: &[Moment]| -> Result<Vec<(usize, u64)>, ScriptError> {
            list.iter().map(|m| Ok((find(&m.container)?, m.at.0))).collect()
        };
        let faults = &script.faults;
        for (field, value) in [
            ("lose", faults.lose),
            ("duplicate", faults.duplicate),
            ("delay", faults.delay),
            ("jitter", faults.jitter),
        ] {
            if !(0.0..=1.0).contains(&value) {
                return Err(ScriptError::Share { field, value: value.to_string() });
            }
        }
        for (name, container) in &script.containers {
            find(name)?;
            check_nested(name, container)?;
        }
        let none = ContainerScript::default();
        let cast = (0..plan.containers.len())
            .map(|i| cast(plan, i, script.containers.get(&plan.containers[i].name).unwrap_or(&none)))
            .collect();
        let ms = |span: Option<ScriptDuration>, default: u64| span.map_or(default, |s| s.0);
        Ok(Scenario {
            cast,
            sandbox_takes: ms(script.sandbox.takes, 50),
            sandbox_fails: script.sandbox.fails,
            sandbox_lost_at: script.sandbox.lost_at.iter().map(|at| at.0).collect(),
            stops: script.stops.iter().map(|s: &StopScript| (s.at.0, s.grace.map(|g| g.0))).collect(),
            image_changes: moments(&script.image_changes)?,
            lost: moments(&faults.lost_containers)?,
            updates: Vec::new(),
            restarts: Vec::new(),
            agent_restarts: faults
                .agent_restarts
                .iter()
                .map(|r: &AgentRestart| (r.at.0, ms(r.takes, 100)))
                .collect(),
            lose: faults.lose,
            duplicate: faults.duplicate,
            delay: faults.delay,
            delay_max: ms(faults.delay_max, 500).max(1),
            resync: ms(faults.resync, 1_000).max(1),
            jitter: faults.jitter,
        })
    }

    /// Adds a request to stop the pod.
    pub fn stop_at(&mut self, at: ScriptDuration, grace: Option<ScriptDuration>) {
        self.stops.push((at.0, grace.map(|g| g.0)));
    }

    /// Updates the pod to a plan at this time. The scenario must be built from the last of these plans,
    /// because it must know all containers from the beginning.
    pub fn update_at(&mut self, at: ScriptDuration, plan: Plan) {
        self.updates.push((at.0, plan));
    }

    /// The updates, in the order they were added.
    pub fn updates(&self) -> &[(u64, Plan)] {
        &self.updates
    }

    /// Adds a request to restart a container, or all of them.
    pub fn restart_at(&mut self, at: ScriptDuration, container: Option<usize>) {
        self.restarts.push((at.0, container));
    }

    /// Whether the pod is told to stop at some time.
    pub fn has_stop(&self) -> bool {
        !self.stops.is_empty()
    }

    /// The longest time for which an event can be hidden from the engine, or which a container can take to
    /// end after KILL.
    pub fn slack_ms(&self) -> u64 {
        let starts = self.cast.iter().flat_map(|c| &c.instances).map(|i| i.starts_in).max().unwrap_or(0);
        let away: u64 = self.agent_restarts.iter().map(|r| r.1).sum();
        let stretch = |ms: u64| ms + (ms as f64 * self.jitter) as u64;
        stretch(starts) + away + stretch(self.delay_max + self.resync) * 2 + 100
    }
}

fn check_nested(name: &str, container: &ContainerScript) -> Result<(), ScriptError> {
    for instance in &container.instances {
        let field = if !instance.instances.is_empty() {
            "instances"
        } else if instance.start_fails != 0 {
            "start_fails"
        } else if instance.pull != Default::default() {
            "pull"
        } else {
            continue;
        };
        return Err(ScriptError::Nested { name: name.to_string(), field });
    }
    Ok(())
}

fn cast(plan: &Plan, i: usize, script: &ContainerScript) -> ContainerScenario {
    let instances = if script.instances.is_empty() {
        vec![instance(plan, i, script, script)]
    } else {
        script.instances.iter().map(|own| instance(plan, i, script, own)).collect()
    };
    ContainerScenario {
        instances,
        pull_takes: script.pull.takes.map_or(100, |s| s.0),
        pull_fails: script.pull.fails,
        start_fails: script.start_fails,
    }
}

fn instance(plan: &Plan, i: usize, base: &ContainerScript, own: &ContainerScript) -> Instance {
    let p = &plan.containers[i];
    let ms = |own: Option<ScriptDuration>, base: Option<ScriptDuration>, default: u64| {
        own.or(base).map_or(default, |s| s.0)
    };
    let runs = match p.role {
        Role::Init => 100,
        Role::Main if p.restart.policy != RestartPolicy::Always => 1_000,
        _ => u64::MAX,
    };
    let hooked = |own: Option<HookScript>, base: Option<HookScript>, sleep: Option<u64>| {
        let script = own.or(base).unwrap_or_default();
        Hooked {
            takes: script.takes.map_or(sleep.unwrap_or(50), |s| s.0),
            fails: script.fails,
            ends_container: script.ends_container,
        }
    };
    let term = own.on_term.or(base.on_term).unwrap_or_default();
    Instance {
        starts_in: ms(own.starts_in, base.starts_in, 50),
        started_after: ms(own.started_after, base.started_after, 0),
        ready_after: ms(own.ready_after, base.ready_after, 0),
        unready: if own.unready.is_empty() { &base.unready } else { &own.unready }
            .iter()
            .map(|(from, to)| (from.0, to.0))
            .collect(),
        live_until: ms(own.live_until, base.live_until, u64::MAX),
        runs: ms(own.runs, base.runs, runs),
        exit: own.exit.or(base.exit).unwrap_or(0),
        oom: own.oom.or(base.oom).unwrap_or(false),
        message: own.message.as_deref().or(base.message.as_deref()).map(Arc::from),
        term_after: if term.ignore { u64::MAX } else { ms(term.exit_after, None, 100) },
        term_code: term.code.unwrap_or(0),
        post_start: hooked(
            own.hooks.post_start,
            base.hooks.post_start,
            p.post_start.and_then(|h| h.sleep_ms),
        ),
        pre_stop: hooked(own.hooks.pre_stop, base.hooks.pre_stop, p.pre_stop.and_then(|h| h.sleep_ms)),
    }
}
