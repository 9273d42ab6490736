//! A pod as the view knows it.

use std::sync::Arc;

use outrigger_lifecycle::{Observation, Plan, Time, Wait};

use crate::row::Row;

/// A pod as the view knows it.
#[derive(Debug, Clone)]
pub struct PodView {
    /// Its name.
    pub name: Arc<str>,
    /// What it came out of, `Job/report`; `None` for a pod that was written as one.
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
    /// A pod nothing has happened to yet.
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

    /// Whether something is under way that changes by the second.
    pub fn is_moving(&self) -> bool {
        !self.obs.over && (!self.waits.is_empty() || self.obs.stop.is_some())
    }

    /// The pod has become another where it runs.
    pub fn update(&mut self, plan: Arc<Plan>, obs: Arc<Observation>) {
        self.pulls.resize(plan.containers.len(), None);
        (self.plan, self.obs) = (plan, obs);
    }

    /// What is said of a container now.
    pub fn container(&self, index: usize, now: Time) -> ContainerWords {
        let row = Row::new(self, index, now);
        ContainerWords { state: row.state, since_ms: row.ms, reason: row.reason }
    }
}

/// What is said of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerWords {
    /// What it does: `running`, `waiting`.
    pub state: String,
    /// For how long.
    pub since_ms: Option<u64>,
    /// Why, if that needs saying.
    pub reason: Option<String>,
}
