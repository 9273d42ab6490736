//! The state of a pod as the live view shows it.

use std::sync::Arc;

use outrigger_lifecycle::{Observation, Plan, Time, Wait};

use crate::row::Row;

/// The state of a pod, for the view.
#[derive(Debug, Clone)]
pub struct PodView {
    /// Its name.
    pub name: Arc<str>,
    /// The workload that created it, such as `Job/report`. `None` for a pod from the manifest.
    pub workload: Option<Arc<str>>,
    /// Its plan.
    pub plan: Arc<Plan>,
    /// Its observed state.
    pub obs: Arc<Observation>,
    /// The containers that wait, and why.
    pub waits: Arc<[(usize, Wait)]>,
    /// For each container, the pulled bytes of its image and, if known, the total.
    pub pulls: Vec<Option<(u64, Option<u64>)>>,
}

impl PodView {
    /// A pod without any events yet.
    pub fn new(name: Arc<str>, plan: Arc<Plan>, now: Time) -> Self {
        PodView {
            obs: Arc::new(Observation::new(&plan, now)),
            waits: Arc::from([]),
            pulls: vec![None; plan.containers.len()],
            workload: None,
            name,
            plan,
        }
    }

    /// Whether it shows something that changes every second.
    pub fn is_moving(&self) -> bool {
        !self.obs.over && (!self.waits.is_empty() || self.obs.stop.is_some())
    }

    /// Takes the changed plan and observation of a pod that was updated while it runs.
    pub fn update(&mut self, plan: Arc<Plan>, obs: Arc<Observation>) {
        self.pulls.resize(plan.containers.len(), None);
        (self.plan, self.obs) = (plan, obs);
    }

    /// The current description of a container.
    pub fn container(&self, index: usize, now: Time) -> ContainerWords {
        let row = Row::new(self, index, now);
        ContainerWords { state: row.state, since_ms: row.ms, reason: row.reason }
    }
}

/// The description of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerWords {
    /// Its state, such as `running` or `waiting`.
    pub state: String,
    /// How long it has been in this state.
    pub since_ms: Option<u64>,
    /// The reason, if it is not obvious.
    pub reason: Option<String>,
}
