//! What a run looks like to people: the live view, its closing summary, and sentences for every entry of the trace.
//!
//! Everything here is pure: what is known of the pods goes in, styled lines come out. [`live`] alone meets a terminal.

mod frame;
mod ledger;
mod line;
pub(crate) mod live;
mod look;
mod painter;
mod row;
mod scrub;
mod summary;
mod words;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use outrigger_lifecycle::{Observation, Plan, Time, Wait};

pub(crate) use frame::Size;
pub(crate) use ledger::Ledger;
pub(crate) use line::{Line, Look, Paint, columns, wrap};
pub(crate) use look::look;
pub(crate) use scrub::scrub;
pub use scrub::{safe_log, safe_text};
pub(crate) use summary::{summary, was_stopped};
pub(crate) use words::{Told, Weight, signal, tell};

/// A pod as the view knows it.
#[derive(Debug, Clone)]
pub(crate) struct PodView {
    pub(crate) name: Arc<str>,
    /// What it came out of, `Job/report`; `None` for a pod that was written as one.
    pub(crate) workload: Option<Arc<str>>,
    pub(crate) plan: Arc<Plan>,
    pub(crate) obs: Observation,
    /// Why containers wait.
    pub(crate) waits: Vec<(usize, Wait)>,
    /// Per container, bytes of its image that are here and, if known, all of them.
    pub(crate) pulls: Vec<Option<(u64, Option<u64>)>>,
}

impl PodView {
    /// A pod nothing has happened to yet.
    pub(crate) fn new(name: Arc<str>, plan: Arc<Plan>, now: Time) -> Self {
        PodView {
            obs: Observation::new(&plan, now),
            waits: Vec::new(),
            pulls: vec![None; plan.containers.len()],
            workload: None,
            name,
            plan,
        }
    }

    /// The pod has become another where it runs.
    pub(crate) fn update(&mut self, plan: Arc<Plan>, obs: Observation) {
        self.pulls.resize(plan.containers.len(), None);
        (self.plan, self.obs) = (plan, obs);
    }

    /// Whether something is under way that changes by the second.
    pub(crate) fn is_moving(&self) -> bool {
        !self.obs.over && (!self.waits.is_empty() || self.obs.stop.is_some())
    }
}
