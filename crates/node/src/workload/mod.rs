//! Workloads of a run: who makes its pods, and when they are over.
//!
//! Controllers know pods by numbers and have them run through [`Pods`]: they are tested without any runtime.

mod bare;
mod job;
mod replicas;

#[cfg(test)]
mod tests;

use std::time::Duration;

use outrigger_lifecycle::trace::{WorkloadEvent, WorkloadRecord};
use outrigger_lifecycle::{Counts, Role, Time};
use outrigger_manifest::Workload;
use outrigger_manifest::compare::ObjectKey;
use serde_json::Value;

use outrigger_agent::clock::{Stamp, rfc3339_nanos};
use outrigger_agent::event::{PodResult, StatusUpdate};
use outrigger_agent::options::StatusUpdates;

use crate::status_file::LifecycleTypes;
use crate::work::PlannedPod;

/// Where controllers have their pods run. Pods go by numbers.
pub(crate) trait Pods {
    /// Runs one more pod; its number is returned.
    fn add(&mut self, pod: PlannedPod, status: StatusUpdates) -> Result<usize, String>;
    /// Runs a pod that has a number. If another process began with it, this one goes on.
    fn resume(&mut self, number: usize, pod: PlannedPod, status: StatusUpdates) -> Result<(), String>;
    /// Shows a pod that is over, if there still is anything of it.
    fn show(&mut self, number: usize, pod: PlannedPod);
    /// Makes a pod another, where it runs.
    fn update(&mut self, number: usize, pod: PlannedPod) -> Result<(), String>;
    /// Tells a pod to go; `None` is its own grace. A pod that is over does not mind.
    fn stop(&mut self, number: usize, grace_ms: Option<u64>);
    /// Puts on record what happened to a workload.
    fn record(&mut self, exact: Duration, record: &WorkloadRecord);
    /// Whether anybody wants to know the status of workloads.
    fn wants_status(&self) -> bool;
    /// Shows a workload as it is now. `object` is its place among the workloads.
    fn publish(&mut self, object: usize, workload: &Value, types: &LifecycleTypes);
}

/// Looks after the pods of one workload. It holds no rule of its own: it asks the engine.
pub(crate) trait Controller: Send {
    /// Decides, and does what was decided.
    fn step(&mut self, pods: &mut dyn Pods, stamp: Stamp) -> Result<(), String>;
    /// When to look again, if nothing happens.
    fn wake(&self) -> Option<Time>;
    /// The status of a pod has changed. The time is the run's own: pods have clocks of theirs.
    fn status_changed(&mut self, pod: usize, update: &StatusUpdate, now: Time);
    /// A pod is over. What it last told has been told before.
    fn ended(&mut self, pod: usize, result: PodResult, now: Time);
    /// Whether it made this pod.
    fn owns(&self, pod: usize) -> bool;
    /// The manifest says something else of it that can be had without replacing it.
    fn update(&mut self, to: Wanted, pods: &mut dyn Pods, stamp: Stamp) -> Result<(), String>;
    /// Somebody wants it all gone.
    fn stop(&mut self, grace_ms: Option<u64>);
    /// What it came to, once nothing is left to do.
    fn result(&self) -> Option<PodResult>;
    /// All that another process has to know to go on.
    fn save(&self) -> Value;
    /// Goes on where another process ended: takes over what it knew, and its pods.
    fn restore(&mut self, saved: Value, pods: &mut dyn Pods) -> Result<(), String>;
}

/// What a manifest says of one object: a Pod, or a workload and its pods.
pub(crate) struct Wanted {
    /// Its name.
    pub(crate) key: ObjectKey,
    /// Its place among the objects of the status file.
    object: usize,
    workload: Option<Workload>,
    /// Its pod, or one that stands for all it has.
    pod: PlannedPod,
}

impl Wanted {
    /// The objects of a manifest, in the order they were written.
    pub(crate) fn all(pods: Vec<PlannedPod>, workloads: &[Workload]) -> Vec<Wanted> {
        let wanted = |(object, pod): (usize, PlannedPod)| match workloads.get(pod.manifest.origin.workload) {
            None | Some(Workload::Pod(_)) => {
                let (namespace, name) = (pod.manifest.namespace().to_owned(), pod.manifest.name().to_owned());
                Wanted { key: ObjectKey { kind: "Pod", namespace, name }, object, workload: None, pod }
            }
            Some(workload) => {
                Wanted { key: ObjectKey::of(workload), object, workload: Some(workload.clone()), pod }
            }
        };
        pods.into_iter().enumerate().map(wanted).collect()
    }

    /// The controller that makes it so.
    pub(crate) fn controller(self, stamp: Stamp) -> Box<dyn Controller> {
        let Some(workload) = self.workload else { return Box::new(bare::Bare::new(self.pod)) };
        let source = Source { workload, like: self.pod, object: self.object };
        match source.workload.job() {
            Some(job) => Box::new(job::JobController::new(source, job, stamp)),
            None => Box::new(replicas::Replicas::new(source)),
        }
    }
}

/// The controllers of a manifest's pods, in the order they were written.
pub(crate) fn controllers(
    pods: Vec<PlannedPod>,
    workloads: Vec<Workload>,
    stamp: Stamp,
) -> Vec<Box<dyn Controller>> {
    Wanted::all(pods, &workloads).into_iter().map(|wanted| wanted.controller(stamp)).collect()
}

/// Where the pods of a workload come from.
struct Source {
    workload: Workload,
    /// Any of its pods, with the plan they share.
    like: PlannedPod,
    /// Its place among the objects of the status file.
    object: usize,
}

impl Source {
    /// How many pods there are to be at once.
    fn count(&self) -> u32 {
        u32::try_from(self.like.manifest.origin.count).unwrap_or(u32::MAX)
    }

    /// One more pod.
    fn pod(&self, nth: u32, attempt: u32) -> PlannedPod {
        let nth = usize::try_from(nth).unwrap_or(usize::MAX);
        let manifest = self.workload.stamp(&self.like.manifest, nth, attempt);
        PlannedPod { manifest, plan: self.like.plan.clone() }
    }

    /// Whether its pods take ports of this machine, which the next one can only have when the one before it is gone.
    fn takes_host_ports(&self) -> bool {
        let spec = self.like.manifest.input.pod.spec.as_ref();
        let containers =
            spec.into_iter().flat_map(|s| s.init_containers.iter().flatten().chain(&s.containers));
        containers.flat_map(|c| c.ports.iter().flatten()).any(|port| port.host_port.is_some_and(|n| n > 0))
    }

    /// Whether a container is a sidecar whose end says nothing about the pod's.
    fn is_helper(&self, container: &str) -> bool {
        let mut containers = self.like.plan.containers.iter();
        containers.any(|c| c.name == container && c.role == Role::Sidecar && c.counts != Counts::Yes)
    }
}

/// Puts something that happened to a workload on record.
fn record(pods: &mut dyn Pods, exact: Duration, workload: &str, event: WorkloadEvent) {
    let record = WorkloadRecord { time: rfc3339_nanos(exact), workload: workload.to_owned(), event };
    pods.record(exact, &record);
}
