//! The trace: the ordered record of everything that happened to a pod.
//!
//! One format for `run --events`, `timeline`, `simulate` and tests; docs/reference/trace.md describes it for users. The
//! [`Recorder`] sees events and decisions and writes one [`Entry`] per transition (G-50); events that changed
//! nothing (late, repeated) leave no entry.
//!
//! Everything that happens is a [`TraceEvent`] or, for a workload, a [`WorkloadEvent`]. JSON is written and read at the
//! edges only: [`Record::to_json`] and [`Line::from_json`]. Code that looks at events matches all of them, so that a new
//! one cannot be forgotten anywhere.

mod event;
mod kind;
mod record;
mod recorder;
#[cfg(test)]
mod tests;
mod wait;
mod word;
mod workload;

pub use event::{
    IgnoredBecause, KillingReason, LogStream, OpenedGate, PlannedContainer, RerunReason, StopReason,
    TraceEvent, WaitReason,
};
pub use kind::{Kind, WorkloadKind};
pub use record::{Line, NoEvent, Record, WorkloadRecord};
pub use recorder::Recorder;
pub use workload::{CompletionMode, JobSummary, WorkloadEvent};

use serde_json::Value;

use crate::plan::{ContainerPlan, Plan};
use crate::time::Time;

/// One thing that happened to a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// When.
    pub time: Time,
    /// The container; `None` for the pod as a whole.
    pub container: Option<usize>,
    /// What.
    pub event: TraceEvent,
}

/// The containers of a plan with their roles, in its order: what a reader of a trace cannot see from what happened.
pub fn containers(plan: &Plan) -> Vec<PlannedContainer> {
    let named = |c: &ContainerPlan| PlannedContainer { name: c.name.clone(), role: Some(c.role) };
    plan.containers.iter().map(named).collect()
}

/// The first entry of a trace that is written to a file: the containers of the pod.
pub fn planned(plan: &Plan, time: Time) -> Entry {
    Entry { time, container: None, event: TraceEvent::Planned { containers: containers(plan) } }
}

impl Entry {
    /// For the edge: with names and a time for people.
    pub fn into_record(self, plan: &Plan, pod: &str, time: String) -> Record {
        Record {
            time,
            pod: pod.to_owned(),
            container: self.container.map(|c| plan.containers[c].name.clone()),
            event: self.event,
            manifest: None,
            hint: None,
        }
    }

    /// As one JSON object: `time`, `pod`, `container` if it is about one, `event`, then the details.
    pub fn to_json(&self, plan: &Plan, pod: &str, time: &str) -> Value {
        self.clone().into_record(plan, pod, time.to_owned()).to_json()
    }
}
