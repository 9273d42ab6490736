//! The script of a simulation: the behaviour of a pod's containers and the faults around them, as a user
//! writes it.
//!
//! Everything is optional; see [`crate::Scenario`] for the defaults.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::script_duration::ScriptDuration;

/// A script. Deserialized from JSON; YAML is converted first.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Script {
    /// By container name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub containers: BTreeMap<String, ContainerScript>,
    /// The sandbox of the pod.
    pub sandbox: SandboxScript,
    /// When the pod is told to stop; a second request may shorten the grace period.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stops: Vec<StopScript>,
    /// When a container's image changes in the spec.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub image_changes: Vec<Moment>,
    /// Faults of the environment.
    pub faults: Faults,
}

/// The behaviour of one container. Times count from the start of an instance unless noted otherwise.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ContainerScript {
    /// How long the runtime takes to start it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub starts_in: Option<ScriptDuration>,
    /// Its startup probe passes from here on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_after: Option<ScriptDuration>,
    /// Its readiness probe passes from here on …
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_after: Option<ScriptDuration>,
    /// … except in these windows, `[from, to]`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unready: Vec<(ScriptDuration, ScriptDuration)>,
    /// Its liveness probe fails from here on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub live_until: Option<ScriptDuration>,
    /// It exits by itself after this long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runs: Option<ScriptDuration>,
    /// The exit code in that case.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit: Option<i32>,
    /// It is killed at that time because it ran out of memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom: Option<bool>,
    /// Its termination message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Its reaction when told to stop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_term: Option<OnTerm>,
    /// Its hooks.
    pub hooks: Hooks,
    /// Its image. Not allowed in `instances`.
    pub pull: Tries,
    /// The runtime refuses to start it this many times. Not allowed in `instances`.
    #[serde(skip_serializing_if = "is_zero")]
    pub start_fails: u32,
    /// Differences for the first, second, … instance; the last one repeats.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub instances: Vec<ContainerScript>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature serde asks for")]
fn is_zero(n: &u32) -> bool {
    *n == 0
}

/// The reaction of a container when told to stop.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OnTerm {
    /// It exits after this long; `forever` waits for the KILL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_after: Option<ScriptDuration>,
    /// The exit code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<i32>,
    /// It ignores the signal.
    pub ignore: bool,
}

/// The hooks of a container.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub struct Hooks {
    /// Right after the start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub post_start: Option<HookScript>,
    /// Before it is told to stop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pre_stop: Option<HookScript>,
}

/// The behaviour of a hook.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HookScript {
    /// How long it takes; `forever` hangs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub takes: Option<ScriptDuration>,
    /// It fails.
    pub fails: bool,
    /// The container exits, with 0, when the hook ends.
    pub ends_container: bool,
}

/// An operation that is retried until it succeeds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tries {
    /// How long each attempt takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub takes: Option<ScriptDuration>,
    /// How many attempts fail before one succeeds.
    pub fails: u32,
}

/// The sandbox of the pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SandboxScript {
    /// How long its creation takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub takes: Option<ScriptDuration>,
    /// How many attempts fail first.
    #[serde(skip_serializing_if = "is_zero")]
    pub fails: u32,
    /// The times it dies, from the beginning.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lost_at: Vec<ScriptDuration>,
}

/// A request to stop the pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StopScript {
    /// When, from the beginning.
    pub at: ScriptDuration,
    /// The grace period; the pod's own if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace: Option<ScriptDuration>,
}

/// A moment in the life of a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Moment {
    /// Which container.
    pub container: String,
    /// When, from the beginning.
    pub at: ScriptDuration,
}

/// Faults of the environment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Faults {
    /// Probability that a runtime event is lost.
    pub lose: f64,
    /// Probability that it comes twice.
    pub duplicate: f64,
    /// Probability that it comes late.
    pub delay: f64,
    /// The maximum delay; 500 ms if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_max: Option<ScriptDuration>,
    /// After a lost event the state of the runtime is polled within this time; 1 s if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resync: Option<ScriptDuration>,
    /// Every duration varies by up to this share.
    pub jitter: f64,
    /// The agent crashes and restarts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub agent_restarts: Vec<AgentRestart>,
    /// The runtime loses track of a container.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lost_containers: Vec<Moment>,
}

/// The agent crashes and restarts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentRestart {
    /// When, from the beginning.
    pub at: ScriptDuration,
    /// How long it is down; 100 ms if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub takes: Option<ScriptDuration>,
}
