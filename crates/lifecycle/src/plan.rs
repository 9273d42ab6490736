//! The plan: the dialect-independent description of a pod.
//!
//! Dialects only differ in spelling, and end here. The engine only knows plans.

use serde::{Deserialize, Serialize};

use crate::source::ContainerRef;

/// The maximum number of containers of a pod. More are refused by validation.
pub const CONTAINERS_MAX: usize = 256;

/// The role of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Runs to completion before what comes after it.
    Init,
    /// Helps the mains: up before them, outlives them, never keeps the pod alive.
    Sidecar,
    /// Does the actual work of the pod.
    Main,
    /// Added for debugging; never restarted, never waited for.
    Ephemeral,
}

impl Role {
    /// All roles.
    pub const ALL: [Role; 4] = [Role::Init, Role::Sidecar, Role::Main, Role::Ephemeral];

    /// The name users see.
    pub fn name(self) -> &'static str {
        match self {
            Role::Init => "init",
            Role::Sidecar => "sidecar",
            Role::Main => "main",
            Role::Ephemeral => "debug",
        }
    }
}

/// A way to specify the order of containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Dialect {
    /// `initContainers[].restartPolicy: Always`
    Native,
    /// `containers[].lifecycle.type: Sidecar`
    Kep,
    /// `KRUISE_CONTAINER_PRIORITY`, `KRUISE_CONTAINER_LAUNCH_PRIORITY`, `apps.kruise.io/container-launch-priority`
    Priority,
    /// `KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT`
    Terminator,
    /// `outrigger.dev/depends-on`
    DependsOn,
}

impl Dialect {
    /// The name users type.
    pub fn name(self) -> &'static str {
        match self {
            Dialect::Native => "native",
            Dialect::Kep => "kep",
            Dialect::Priority => "priority",
            Dialect::Terminator => "terminator",
            Dialect::DependsOn => "depends-on",
        }
    }
}

/// The condition of a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Need {
    /// Exited with success. Once true it stays true.
    Completed,
    /// Running, postStart done, startup probe passed. Once true it stays true (R1.43).
    Started,
    /// Started and its readiness probe passing, at the time of the check (LP-23).
    Ready,
    /// Its first start has been attempted, postStart included (R1.5 to R1.7): keeps plain mains in list
    /// order.
    Launched,
}

impl Need {
    /// The word users know.
    pub fn name(self) -> &'static str {
        match self {
            Need::Completed => "completed",
            Need::Started => "started",
            Need::Ready => "ready",
            Need::Launched => "launched",
        }
    }
}

/// "May start once `on` is …".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gate {
    /// Index of the container waited for.
    pub on: usize,
    /// The required state.
    pub need: Need,
    /// Checked at every restart too, not only before the first start.
    pub every_start: bool,
    /// The dialect that added the gate; `None` for the plain rules of a pod.
    pub dialect: Option<Dialect>,
}

/// Whether an exited container is started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RestartPolicy {
    /// Always.
    Always,
    /// When it failed.
    OnFailure,
    /// Never.
    Never,
}

/// What a matching restart rule does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RuleAction {
    /// Start this container again.
    Restart,
    /// Start the whole pod again, in place.
    RestartAllContainers,
}

/// One entry of `restartPolicyRules` (R2.2).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestartRule {
    /// What happens on a match.
    pub action: RuleAction,
    /// `In` (true) or `NotIn` (false).
    pub is_in: bool,
    /// The exit codes.
    pub values: Vec<i32>,
}

impl RestartRule {
    /// Whether an exit code matches.
    pub fn matches(&self, code: i32) -> bool {
        self.values.contains(&code) == self.is_in
    }
}

/// How a container restarts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restart {
    /// The effective policy for this container: its own, else the pod's.
    pub policy: RestartPolicy,
    /// Rules that come before the policy.
    pub rules: Vec<RestartRule>,
    /// Back-off between restarts.
    pub backoff: BackoffPlan,
}

impl Restart {
    /// Whether a container never comes back, whatever it exits with.
    pub fn is_never(&self) -> bool {
        self.policy == RestartPolicy::Never && self.rules.is_empty()
    }
}

/// Crash-loop back-off of a container (R1.60 to R1.66).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackoffPlan {
    /// Wait before the second restart; it doubles from there.
    pub initial_ms: u64,
    /// The longest wait.
    pub max_ms: u64,
    /// An instance that ran this long since the last restart resets the sequence.
    pub reset_ms: u64,
}

impl BackoffPlan {
    /// The kubelet's: 10 s, doubling up to 300 s, reset after 600 s.
    pub const KUBELET: BackoffPlan = BackoffPlan { initial_ms: 10_000, max_ms: 300_000, reset_ms: 600_000 };
}

/// Whether a container's exit code is part of the pod's result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Counts {
    /// It is.
    Yes,
    /// Only its own exit; not one after it was told to stop because the mains were done.
    UnlessStopped,
    /// It is not.
    No,
}

/// One probe, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbePlan {
    /// No attempt before this long after the start.
    pub initial_delay_ms: u64,
    /// The time between attempts.
    pub period_ms: u64,
    /// How long one attempt may take.
    pub timeout_ms: u64,
    /// Successes in a row for a positive result.
    pub success_threshold: u32,
    /// Failures in a row for a negative result.
    pub failure_threshold: u32,
    /// Grace period for the kill this probe causes, instead of the pod's (R3.10).
    pub grace_ms: Option<u64>,
}

/// Which probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProbeKind {
    /// Has it started?
    Startup,
    /// Is it alive?
    Liveness,
    /// Is it ready?
    Readiness,
}

impl ProbeKind {
    /// All kinds, in the order of [`ContainerPlan::probes`].
    pub const ALL: [ProbeKind; 3] = [ProbeKind::Startup, ProbeKind::Liveness, ProbeKind::Readiness];

    /// The name users see.
    pub fn name(self) -> &'static str {
        match self {
            ProbeKind::Startup => "startup",
            ProbeKind::Liveness => "liveness",
            ProbeKind::Readiness => "readiness",
        }
    }
}

/// One lifecycle hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookPlan {
    /// Cancel it after this long; preStop is limited by the grace period as well.
    pub timeout_ms: Option<u64>,
    /// The hook only sleeps, this long.
    pub sleep_ms: Option<u64>,
}

/// When a container's preStop hook runs in a pod's stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PreStopWhen {
    /// When the stop begins (R3.23).
    AtOnce,
    /// When its turn to be signalled comes (G-26).
    OwnTurn,
    /// When the stop begins, before any main is stopped, and again at its own turn (the KEP).
    FirstAndOwnTurn,
}

/// The plan of one container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerPlan {
    /// Its name.
    pub name: String,
    /// Its place in the manifest.
    pub place: ContainerRef,
    /// Its role.
    pub role: Role,
    /// The dialect that set its role, if any.
    pub dialect: Option<Dialect>,
    /// All must be open before it starts.
    pub gates: Vec<Gate>,
    /// In a pod's stop it is signalled only once none of these, nor any that these wait for, is running.
    pub stop_after: Vec<usize>,
    /// The length of the chain of others that stop before it; 0 stops first.
    pub stop_stage: usize,
    /// How it restarts.
    pub restart: Restart,
    /// Whether its exit code is part of the pod's result.
    pub counts: Counts,
    /// Its restarts do not count towards the `backoffLimit` of its Job.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub job_ignores_restarts: bool,
    /// The pod is not complete while this one may still run.
    pub keeps_alive: bool,
    /// The pod ends when this container ends and will not be restarted.
    pub fatal: bool,
    /// Startup, liveness and readiness probe.
    pub probes: [Option<ProbePlan>; 3],
    /// Its startup probe does the same as its readiness probe, so that started means ready.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub started_is_ready: bool,
    /// Runs right after every start.
    pub post_start: Option<HookPlan>,
    /// Runs before it is told to stop.
    pub pre_stop: Option<HookPlan>,
    /// When that is, in a pod's stop.
    pub pre_stop_when: PreStopWhen,
    /// It restarts when one of these does.
    pub restart_with: Vec<usize>,
    /// It is stopped while one of these is not ready, and started again afterwards.
    pub fence: Vec<usize>,
    /// Check for a newer image at every start.
    pub pull_always: bool,
    /// Its image, as written.
    pub image: String,
    /// An init container that is not run again once it has completed, even if the pod starts over (G-48).
    #[serde(default)]
    pub run_once: bool,
    /// The longest time from its stop signal to KILL, if it is shorter than what the grace period leaves (D7).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_grace_ms: Option<u64>,
}

impl ContainerPlan {
    /// Whether it is a sidecar whose exit does not affect the result of the pod.
    pub fn is_helper(&self) -> bool {
        self.role == Role::Sidecar && self.counts != Counts::Yes
    }

    /// The plan of one probe.
    pub fn probe(&self, kind: ProbeKind) -> Option<&ProbePlan> {
        self.probes[kind as usize].as_ref()
    }
}

/// A volume on disk with a size limit: `emptyDir.sizeLimit`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeLimit {
    /// The volume's name.
    pub volume: String,
    /// The limit.
    pub bytes: u64,
    /// The same, as the author wrote it.
    pub written: String,
}

/// The dialect-independent description of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// `metadata.name`.
    pub pod: String,
    /// In the order of the manifest: init containers, containers, ephemeral containers.
    pub containers: Vec<ContainerPlan>,
    /// The pod's restart policy.
    pub restart_policy: RestartPolicy,
    /// `terminationGracePeriodSeconds`.
    pub grace_ms: u64,
    /// Part of the grace period that is reserved for the containers that stop after the mains (G-24, G-25).
    pub sidecar_grace_ms: u64,
    /// How long sidecars run on after the mains are done (D7).
    #[serde(default)]
    pub sidecar_delay_ms: u64,
    /// `activeDeadlineSeconds`.
    pub active_deadline_ms: Option<u64>,
    /// Volumes whose size is limited and has to be measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volume_limits: Vec<VolumeLimit>,
    /// Indices such that everything a container stops after comes before it.
    pub stop_order: Vec<usize>,
    /// The highest [`ContainerPlan::stop_stage`].
    pub stop_stages: usize,
    /// Dialects in use, sorted.
    pub dialects: Vec<Dialect>,
}

impl Plan {
    /// Index of a container by name.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.containers.iter().position(|c| c.name == name)
    }

    /// Whether some rule may restart the whole pod in place.
    pub fn may_restart_all(&self) -> bool {
        let all = |r: &RestartRule| r.action == RuleAction::RestartAllContainers;
        self.containers.iter().any(|c| c.restart.rules.iter().any(all))
    }

    /// Whether each stop stage waits until the one before it is gone, however late it is killed.
    ///
    /// The KEP promises it: mains are killed at the end of the grace period, sidecars *then* get TERM with 2
    /// s. So does a hand-written graph, and a reserve has no other purpose. A pod that uses only Kubernetes'
    /// own features behaves as on the kubelet: everything that still waits at the end of the grace period is
    /// signalled together (R3.25).
    pub fn keeps_order_after_grace(&self) -> bool {
        self.sidecar_grace_ms > 0
            || self.dialects.iter().any(|d| matches!(d, Dialect::Kep | Dialect::DependsOn))
    }

    /// Fills [`Plan::stop_order`] and the stages from `stop_after`. A cycle is an error; returns its
    /// containers.
    pub(crate) fn order_stops(&mut self) -> Result<(), Vec<usize>> {
        let edges: Vec<&[usize]> = self.containers.iter().map(|c| c.stop_after.as_slice()).collect();
        let order = topological(&edges)?;
        let mut stage = vec![0; self.containers.len()];
        for &c in &order {
            stage[c] = self.containers[c].stop_after.iter().map(|&b| stage[b] + 1).max().unwrap_or(0);
        }
        self.stop_stages = stage.iter().copied().max().unwrap_or(0);
        for (c, stage) in self.containers.iter_mut().zip(stage) {
            c.stop_stage = stage;
        }
        self.stop_order = order;
        Ok(())
    }
}

/// Orders nodes so that everything in `before[n]` comes before `n`; ties keep index order. On a cycle,
/// returns its nodes, in the direction of the edges.
pub(crate) fn topological(before: &[&[usize]]) -> Result<Vec<usize>, Vec<usize>> {
    #[derive(Clone, Copy, PartialEq)]
    enum Mark {
        New,
        Open,
        Done,
    }
    let mut marks = vec![Mark::New; before.len()];
    let mut order = Vec::with_capacity(before.len());
    for root in 0..before.len() {
        // An explicit stack: a chain of 256 must not depend on the thread's stack size.
        let mut stack = vec![(root, 0)];
        while let Some(&mut (node, ref mut next)) = stack.last_mut() {
            if marks[node] == Mark::Done {
                stack.pop();
                continue;
            }
            marks[node] = Mark::Open;
            if let Some(&child) = before[node].get(*next) {
                *next += 1;
                match marks[child] {
                    Mark::New => stack.push((child, 0)),
                    Mark::Done => {}
                    Mark::Open => {
                        let from = stack.iter().position(|&(n, _)| n == child).unwrap_or(0);
                        return Err(stack[from..].iter().map(|&(n, _)| n).collect());
                    }
                }
            } else {
                marks[node] = Mark::Done;
                order.push(node);
                stack.pop();
            }
        }
    }
    Ok(order)
}
