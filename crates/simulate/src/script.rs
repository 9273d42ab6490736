//! The script of a simulation, as a user writes it: how containers behave, and the faults around them.
//!
//! All fields are optional. [`crate::Scenario`] lists the defaults.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::script_duration::ScriptDuration;

/// A script. It is deserialized from JSON; YAML is converted first.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Script {
    /// The behaviour of each container, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub containers: BTreeMap<String, ContainerScript>,
    /// The behaviour of the sandbox.
    pub sandbox: SandboxScript,
    /// Requests to stop the pod. A second request may shorten the grace period.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stops: Vec<StopScript>,
    /// When the image of a container changes in the spec.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub image_changes: Vec<Moment>,
    /// Faults of the environment.
    pub faults: Faults,
}

/// The behaviour of one container. Times count from the start of an instance, unless noted otherwise.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ContainerScript {
    /// How long the runtime takes to start it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub starts_in: Option<ScriptDuration>,
    /// Its startup probe passes from this time on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_after: Option<ScriptDuration>,
    /// Its readiness probe passes from this time on, except in the windows of `unready`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_after: Option<ScriptDuration>,
    /// Windows `[from, to]` in which its readiness probe fails.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unready: Vec<(ScriptDuration, ScriptDuration)>,
    /// Its liveness probe fails from this time on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub live_until: Option<ScriptDuration>,
    /// It exits by itself after this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runs: Option<ScriptDuration>,
    /// The exit code when it exits by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit: Option<i32>,
    /// Instead of exiting by itself, it is killed because it ran out of memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom: Option<bool>,
    /// Its termination message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// How it reacts to the stop signal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_term: Option<OnTerm>,
    /// The behaviour of its hooks.
    pub hooks: Hooks,
    /// The pulls of its image. Not allowed in `instances`.
    pub pull: Tries,
    /// The number of starts that the runtime refuses. Not allowed in `instances`.
    #[serde(skip_serializing_if = "is_zero")]
    pub start_fails: u32,
    /// Different behaviour for the first, second, … instance. The last entry applies to all further
    /// instances.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub instances: Vec<ContainerScript>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature serde asks for")]
fn is_zero(n: &u32) -> bool {
    *n == 0
}

/// How a container reacts to the stop signal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OnTerm {
    /// It exits after this time. `forever` means that it waits for KILL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_after: Option<ScriptDuration>,
    /// The exit code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<i32>,
    /// Whether it ignores the signal.
    pub ignore: bool,
}

/// The behaviour of a container's hooks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub struct Hooks {
    /// The hook right after the start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub post_start: Option<HookScript>,
    /// The hook before the stop signal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pre_stop: Option<HookScript>,
}

/// The behaviour of a hook.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HookScript {
    /// How long it takes. `forever` means that it never ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub takes: Option<ScriptDuration>,
    /// Whether it fails.
    pub fails: bool,
    /// Whether the container exits with 0 when the hook ends.
    pub ends_container: bool,
}

/// An operation that is retried until it succeeds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tries {
    /// How long each attempt takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub takes: Option<ScriptDuration>,
    /// The number of attempts that fail before one succeeds.
    pub fails: u32,
}

/// The behaviour of the sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SandboxScript {
    /// How long its creation takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub takes: Option<ScriptDuration>,
    /// The number of attempts that fail before one succeeds.
    #[serde(skip_serializing_if = "is_zero")]
    pub fails: u32,
    /// The times at which it dies, from the beginning.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lost_at: Vec<ScriptDuration>,
}

/// A request to stop the pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StopScript {
    /// The time of the request, from the beginning.
    pub at: ScriptDuration,
    /// The grace period. The default is the pod's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace: Option<ScriptDuration>,
}

/// An event of a container at a given time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Moment {
    /// The name of the container.
    pub container: String,
    /// The time of the event, from the beginning.
    pub at: ScriptDuration,
}

/// Faults of the environment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Faults {
    /// The probability that a runtime event is lost.
    pub lose: f64,
    /// The probability that an event arrives twice.
    pub duplicate: f64,
    /// The probability that an event arrives late.
    pub delay: f64,
    /// The maximum delay. The default is 500 ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_max: Option<ScriptDuration>,
    /// After a lost event, the state of the runtime is polled within this time. The default is 1 s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resync: Option<ScriptDuration>,
    /// The share by which every duration may vary.
    pub jitter: f64,
    /// Crashes of the agent.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub agent_restarts: Vec<AgentRestart>,
    /// Containers that the runtime loses track of.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lost_containers: Vec<Moment>,
}

/// A crash and restart of the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentRestart {
    /// The time of the crash, from the beginning.
    pub at: ScriptDuration,
    /// How long the agent is down. The default is 100 ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub takes: Option<ScriptDuration>,
}
