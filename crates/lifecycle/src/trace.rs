//! The trace: the ordered record of everything that happened to a pod.
//!
//! `run --events`, `timeline`, `simulate` and tests share one format; docs/reference/trace.md describes it
//! for users. The [`Recorder`] sees events and decisions, and writes one [`Entry`] per transition (G-50).
//! Late and repeated events change nothing and leave no entry.
//!
//! An event of the trace is a [`TraceEvent`], about the pod ([`PodEvent`]) or a container
//! ([`ContainerEvent`]), or a [`WorkloadEvent`]. JSON is only written by [`Record::to_json`] and read by
//! [`Line::from_json`].
//!
//! To add an event, add its variant, its name (`kind.rs`), the code that records it, its sentence and its
//! place in the picture (both in `view`). Without name, sentence and place it does not compile. All other
//! readers name the events that they look for.

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

/// One event in the trace of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// When it happened.
    pub time: Time,
    /// The container that it is about, or the container that caused an event of the pod.
    pub container: Option<usize>,
    /// What happened.
    pub event: TraceEvent,
}

/// The containers of a plan with their roles, in plan order. A reader of a trace cannot derive them from the
/// events.
pub fn containers(plan: &Plan) -> Vec<PlannedContainer> {
    let named = |c: &ContainerPlan| PlannedContainer { name: c.name.clone(), role: Some(c.role) };
    plan.containers.iter().map(named).collect()
}

/// The first entry of a trace in a file. It lists the containers of the pod.
pub fn planned(plan: &Plan, time: Time) -> Entry {
    Entry { time, container: None, event: PodEvent::Planned { containers: containers(plan) }.into() }
}

impl Entry {
    /// The entry as a line of an events file, with names instead of indices and the time as text.
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

    /// The entry as one JSON object: `time`, `pod`, `container` (if it is about one), `event`, then the
    /// details.
    pub fn to_json(&self, plan: &Plan, pod: &str, time: &str) -> Value {
        self.clone().into_record(plan, pod, time.to_owned()).to_json()
    }
}
