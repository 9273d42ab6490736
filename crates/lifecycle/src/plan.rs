//! The plan: what a pod means, independent of the dialect it is written in.
//!
//! Dialects are different notations for plans. The engine knows only plans.

use serde::{Deserialize, Serialize};

use crate::source::ContainerRef;

/// The maximum number of containers of a pod. Validation refuses more.
pub const CONTAINERS_MAX: usize = 256;

/// The role of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Runs to completion before the containers after it start.
    Init,
    /// Helps the mains: it starts before them, outlives them, and never keeps the pod alive.
    Sidecar,
    /// Does the actual work of the pod.
    Main,
    /// Added for debugging. It is never restarted, and no container waits for it.
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

/// A notation for the order of containers.
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
    /// It exited with success. Once true, this stays true.
    Completed,
    /// It is running, its postStart hook is done, and its startup probe has passed. Once true, this stays
    /// true (R1.43).
    Started,
    /// It is started, and its readiness probe passes at the time of the check (LP-23).
    Ready,
    /// Its first start was attempted, including its postStart hook (R1.5 to R1.7). This keeps plain
    /// mains in list order.
    Launched,
}

impl Need {
    /// The word that users know.
    pub fn name(self) -> &'static str {
        match self {
            Need::Completed => "completed",
            Need::Started => "started",
            Need::Ready => "ready",
            Need::Launched => "launched",
        }
    }
}

/// A condition for the start of a container: "may start once `on` is …".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gate {
    /// The index of the container that it waits for.
    pub on: usize,
    /// The required state.
    pub need: Need,
    /// Whether it applies to every restart too, not only to the first start.
    pub every_start: bool,
    /// The dialect that added the gate; `None` for the rules of a plain pod.
    pub dialect: Option<Dialect>,
}

/// Whether a container that exited is started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RestartPolicy {
    /// It is started again after every exit.
    Always,
    /// It is started again after a failure.
    OnFailure,
    /// It is not started again.
    Never,
}

/// What a restart rule does if it matches.
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
    /// What happens if the rule matches.
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

/// How a container is restarted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restart {
    /// The effective policy of this container: its own, or else the pod's.
    pub policy: RestartPolicy,
    /// Rules that take precedence over the policy.
    pub rules: Vec<RestartRule>,
    /// Back-off between restarts.
    pub backoff: BackoffPlan,
}

impl Restart {
    /// Whether a container is never restarted, with any exit code.
    pub fn is_never(&self) -> bool {
        self.policy == RestartPolicy::Never && self.rules.is_empty()
    }
}

/// Crash-loop back-off of a container (R1.60 to R1.66).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackoffPlan {
    /// The wait before the second restart. It doubles from there.
    pub initial_ms: u64,
    /// The longest wait.
    pub max_ms: u64,
    /// An instance that ran this long after the last restart resets the wait.
    pub reset_ms: u64,
}

impl BackoffPlan {
    /// The kubelet's values: 10 s, doubling up to 300 s, reset after 600 s.
    pub const KUBELET: BackoffPlan = BackoffPlan { initial_ms: 10_000, max_ms: 300_000, reset_ms: 600_000 };
}

/// Whether a container's exit code is part of the pod's result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Counts {
    /// It always counts.
    Yes,
    /// It counts, unless the container was told to stop because the mains had ended.
    UnlessStopped,
    /// It never counts.
    No,
}

/// One probe. All times are in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbePlan {
    /// The delay from the start to the first attempt.
    pub initial_delay_ms: u64,
    /// The time between attempts.
    pub period_ms: u64,
    /// How long one attempt may take.
    pub timeout_ms: u64,
    /// The number of successes in a row that make a positive result.
    pub success_threshold: u32,
    /// The number of failures in a row that make a negative result.
    pub failure_threshold: u32,
    /// The grace period if this probe kills the container, instead of the pod's (R3.10).
    pub grace_ms: Option<u64>,
}

/// The kinds of probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProbeKind {
    /// Tests whether the container has started.
    Startup,
    /// Tests whether the container is alive.
    Liveness,
    /// Tests whether the container is ready.
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
    /// The time after which it is cancelled. The grace period also limits preStop.
    pub timeout_ms: Option<u64>,
    /// The duration, if the hook only sleeps.
    pub sleep_ms: Option<u64>,
}

/// When the preStop hook of a container runs while the pod stops.
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
    /// The gates. All must be open before it starts.
    pub gates: Vec<Gate>,
    /// When the pod stops, it is signalled only once none of these is running, nor any that these wait for.
    pub stop_after: Vec<usize>,
    /// The length of the chain of containers that stop before it; 0 stops first.
    pub stop_stage: usize,
    /// How it restarts.
    pub restart: Restart,
    /// Whether its exit code is part of the pod's result.
    pub counts: Counts,
    /// Its restarts do not count towards the `backoffLimit` of its Job.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub job_ignores_restarts: bool,
    /// The pod is not complete while this container is running or may be restarted.
    pub keeps_alive: bool,
    /// The pod ends when this container ends and will not be restarted.
    pub fatal: bool,
    /// The startup, liveness and readiness probes.
    pub probes: [Option<ProbePlan>; 3],
    /// Its startup probe tests the same as its readiness probe, so a started container is ready.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub started_is_ready: bool,
    /// The hook that runs right after every start.
    pub post_start: Option<HookPlan>,
    /// The hook that runs before it is told to stop.
    pub pre_stop: Option<HookPlan>,
    /// When the preStop hook runs while the pod stops.
    pub pre_stop_when: PreStopWhen,
    /// It is restarted when one of these is.
    pub restart_with: Vec<usize>,
    /// It is stopped while one of these is not ready, and started again afterwards.
    pub fence: Vec<usize>,
    /// Whether its image is checked for a newer version at every start.
    pub pull_always: bool,
    /// Its image, as written.
    pub image: String,
    /// Whether it is an init container that does not run again once it has completed, even if the pod starts
    /// over (G-48).
    #[serde(default)]
    pub run_once: bool,
    /// The longest time from its stop signal to KILL, if it is shorter than what the grace period leaves (KD7).
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
    /// The limit in bytes.
    pub bytes: u64,
    /// The limit as the author wrote it.
    pub written: String,
}

/// What a pod means, independent of the dialect it is written in.
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
    /// The part of the grace period that is reserved for the containers that stop after the mains (G-24,
    /// G-25).
    pub sidecar_grace_ms: u64,
    /// How long sidecars run on after the mains are done (KD7).
    #[serde(default)]
    pub sidecar_delay_ms: u64,
    /// `activeDeadlineSeconds`.
    pub active_deadline_ms: Option<u64>,
    /// Volumes whose size is limited and must be measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volume_limits: Vec<VolumeLimit>,
    /// The indices in stop order: a container comes after everything that it stops after.
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

    /// Whether a rule may restart the whole pod in place.
    pub fn may_restart_all(&self) -> bool {
        let all = |r: &RestartRule| r.action == RuleAction::RestartAllContainers;
        self.containers.iter().any(|c| c.restart.rules.iter().any(all))
    }

    /// Whether each stop stage waits until the stage before it has ended, even after the grace period.
    ///
    /// The KEP promises this: mains are killed at the end of the grace period, and *then* sidecars get TERM
    /// with 2 s. A hand-written graph promises it too, and it is the only purpose of a reserve. A pod that
    /// uses only Kubernetes' own features behaves as on the kubelet: everything that still waits at the end
    /// of the grace period is signalled together (R3.25).
    pub fn keeps_order_after_grace(&self) -> bool {
        self.sidecar_grace_ms > 0
            || self.dialects.iter().any(|d| matches!(d, Dialect::Kep | Dialect::DependsOn))
    }

    /// Fills [`Plan::stop_order`] and the stages from `stop_after`. If there is a cycle, returns its
    /// containers as the error.
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

/// Orders nodes so that everything in `before[n]` comes before `n`. Otherwise the index order is kept. On a
/// cycle, returns its nodes as the error, in the direction of the edges.
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
        // This stack is explicit, so that a chain of 256 does not depend on the stack size of the thread.
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
