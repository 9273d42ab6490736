//! The state of a pod, for the view.

use std::sync::Arc;

use outrigger_lifecycle::{Observation, Plan, Time, Wait};

use crate::row::Row;

/// The state of a pod, for the view.
#[derive(Debug, Clone)]
pub struct PodView {
    /// Its name.
    pub name: Arc<str>,
    /// The workload that created it, such as `Job/report`; `None` for a pod from the manifest.
    pub workload: Option<Arc<str>>,
    /// Its plan.
    pub plan: Arc<Plan>,
    /// What is known of it.
    pub obs: Arc<Observation>,
    /// Why containers wait.
    pub waits: Arc<[(usize, Wait)]>,
    /// Per container, bytes of its image that are here and, if known, all of them.
    pub pulls: Vec<Option<(u64, Option<u64>)>>,
}

impl PodView {
    /// A pod to which nothing has happened yet.
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

    /// Whether something is in progress that changes every second.
    pub fn is_moving(&self) -> bool {
        !self.obs.over && (!self.waits.is_empty() || self.obs.stop.is_some())
    }

    /// The pod has become another where it runs.
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
    /// Its state: `running`, `waiting`.
    pub state: String,
    /// How long it has been in it.
    pub since_ms: Option<u64>,
    /// Why, if that is not obvious.
    pub reason: Option<String>,
}
