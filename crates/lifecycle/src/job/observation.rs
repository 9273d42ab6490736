//! The observation of a Job: its pods so far, and whether its end is decided.

use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};
use serde::{Deserialize, Serialize};

use crate::plan::{ContainerPlan, Plan};
use crate::status::Phase;
use crate::time::Time;

/// The observation of a Job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobObservation {
    /// When it began; its deadline counts from here.
    pub since: Time,
    /// All its pods so far, in the order of their creation.
    pub pods: Vec<JobPod>,
    /// How it will end, once that is decided ([`crate::JobDecision::target`]). Later events do not change it.
    pub target: Option<JobEnd>,
    /// The Job is being deleted, so no more pods are created.
    pub deleted: bool,
}

/// One pod of a Job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobPod {
    /// Its name.
    pub name: String,
    /// Its completion index.
    pub index: Option<u32>,
    /// Its phase.
    pub phase: Phase,
    /// When it was told to stop, if it had not ended before.
    pub deleted_at: Option<Time>,
    /// Whether it is ready.
    pub ready: bool,
    /// How often its containers were restarted, without the restarts that the Job ignores.
    pub restarts: u32,
    /// The containers whose restarts those are.
    #[serde(default)]
    pub restarted: Vec<String>,
    /// How its containers ended, mains first.
    pub exits: Vec<ContainerExit>,
    /// The types and statuses of its conditions.
    pub conditions: Vec<(String, String)>,
    /// When it was created.
    pub created_at: Time,
    /// When it ended.
    pub finished_at: Option<Time>,
}

/// How a container of a pod ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerExit {
    /// Its name.
    pub container: String,
    /// Its exit code.
    pub code: i32,
    /// Whether its exit does not affect the pod's result. Such an exit is only considered by a rule that
    /// names the container.
    pub is_helper: bool,
}

/// The possible ends of a Job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobOutcome {
    /// It is complete.
    Complete,
    /// It failed.
    Failed,
    /// It was suspended.
    Suspended,
}

/// How a Job ends, in Kubernetes' terms.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobEnd {
    /// The outcome.
    pub outcome: JobOutcome,
    /// When the end was decided.
    pub decided_at: Time,
    /// The reason of the condition: `CompletionsReached`, `BackoffLimitExceeded` …
    pub reason: String,
    /// The message of the condition.
    pub message: String,
}

impl JobObservation {
    /// The observation of a Job without pods.
    pub fn new(now: Time) -> Self {
        JobObservation { since: now, pods: Vec::new(), target: None, deleted: false }
    }
}

impl JobPod {
    /// A new pod.
    pub fn new(name: impl Into<String>, index: Option<u32>, now: Time) -> Self {
        JobPod {
            name: name.into(),
            index,
            phase: Phase::Pending,
            deleted_at: None,
            ready: false,
            restarts: 0,
            restarted: Vec::new(),
            exits: Vec::new(),
            conditions: Vec::new(),
            created_at: now,
            finished_at: None,
        }
    }

    /// Whether it has neither ended nor been told to stop.
    pub fn is_active(&self) -> bool {
        !self.phase.is_terminal() && self.deleted_at.is_none()
    }

    /// Updates it from its status. The pod's plan tells which sidecars do not count, and whose restarts are
    /// ignored.
    pub fn observe(&mut self, status: &PodStatus, plan: &Plan) {
        let is = |test: fn(&ContainerPlan) -> bool| {
            move |name: &str| plan.find(name).is_some_and(|i| test(&plan.containers[i]))
        };
        let is_helper = is(ContainerPlan::is_helper);
        let is_ignored = is(|c| c.job_ignores_restarts);
        let phase = status.phase.as_deref().and_then(Phase::from_name);
        self.phase = phase.unwrap_or(self.phase);
        let conditions = status.conditions.iter().flatten();
        self.conditions = conditions.map(|c| (c.type_.clone(), c.status.clone())).collect();
        self.ready = self.conditions.iter().any(|(kind, status)| kind == "Ready" && status == "True");
        // Kubernetes considers the mains first.
        let lists = [&status.container_statuses, &status.init_container_statuses];
        let all = || lists.into_iter().flatten().flatten();
        let counted = || all().filter(|c| c.restart_count > 0 && !is_ignored(&c.name));
        self.restarts = counted().map(|c| u32::try_from(c.restart_count).unwrap_or(0)).sum();
        self.restarted = counted().map(|c| c.name.clone()).collect();
        self.exits = all().filter_map(|c| exit(c, is_helper)).collect();
    }
}

fn exit(status: &ContainerStatus, is_helper: impl Fn(&str) -> bool) -> Option<ContainerExit> {
    let ended = status.state.as_ref()?.terminated.as_ref()?;
    Some(ContainerExit {
        container: status.name.clone(),
        code: ended.exit_code,
        is_helper: is_helper(&status.name),
    })
}
