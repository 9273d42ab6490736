//! The trace: the ordered record of everything that happened to a pod.
//!
//! One format for `run --events`, `timeline`, `simulate` and tests; docs/reference/trace.md describes it for users. The
//! [`Recorder`] sees events and decisions and writes one [`Entry`] per transition (G-50); events that changed
//! nothing (late, repeated) leave no entry.
//!
//! Everything that happens is a [`TraceEvent`] of the pod ([`PodEvent`]) or of a container ([`ContainerEvent`]) or, for a
//! workload, a [`WorkloadEvent`]. JSON is written and read at the edges only: [`Record::to_json`] and
//! [`Line::from_json`]. A new event needs its variant, its name (`kind.rs`), whoever records it, its sentence and its
//! place in the picture (`view`); without a name, a sentence and a place it does not compile. All other readers name
//! the events that they look for.

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
    ContainerEvent, IgnoredBecause, KillingReason, LogStream, OpenedGate, PlannedContainer, PodEvent,
    RerunReason, StopReason, TraceEvent, WaitReason,
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
    /// The container it is about, or the one that caused an event of the pod.
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
    Entry { time, container: None, event: PodEvent::Planned { containers: containers(plan) }.into() }
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
