//! Controllers of a run's workloads: they create the pods and decide when the workload has ended.
//!
//! Controllers identify pods by numbers and run them through [`Pods`], so they can be tested without a
//! runtime.

mod bare;
mod job;
mod replicas;

#[cfg(test)]
mod tests;

use std::time::Duration;

use outrigger_lifecycle::trace::{WorkloadEvent, WorkloadRecord};
use outrigger_lifecycle::{RestartPolicy, Time};
use outrigger_manifest::Workload;
use outrigger_manifest::compare::ObjectKey;
use serde_json::Value;

use outrigger_agent::clock::{Stamp, rfc3339_nanos};
use outrigger_agent::event::{PodResult, StatusUpdate};
use outrigger_agent::options::StatusUpdates;
use outrigger_agent::{AgentError, PodError};

use crate::status_file::LifecycleTypes;
use crate::work::PlannedPod;

/// Why a controller cannot carry out a step or resume.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WorkloadError {
    /// A pod is invalid.
    #[error(transparent)]
    Pod(#[from] PodError),
    /// The agent refuses a pod.
    #[error(transparent)]
    Agent(#[from] AgentError),
    /// The saved state cannot be read.
    #[error(transparent)]
    Saved(#[from] serde_json::Error),
    /// The saved state contradicts itself.
    #[error("the pods of the {0} do not add up")]
    SavedPods(&'static str),
}

/// Runs the pods of controllers. Pods are identified by numbers.
pub(crate) trait Pods {
    /// Runs a new pod and returns its number.
    fn add(&mut self, pod: PlannedPod, status: StatusUpdates) -> Result<usize, WorkloadError>;
    /// Runs a pod with an existing number, resuming it if another process started it.
    fn resume(&mut self, number: usize, pod: PlannedPod, status: StatusUpdates) -> Result<(), WorkloadError>;
    /// Shows an ended pod, if any of its state is left.
    fn show(&mut self, number: usize, pod: PlannedPod);
    /// Updates a pod in place.
    fn update(&mut self, number: usize, pod: PlannedPod) -> Result<(), WorkloadError>;
    /// Stops a pod. `None` means its own grace period. Does nothing if the pod has ended.
    fn stop(&mut self, number: usize, grace_ms: Option<u64>);
    /// Records an event of a workload.
    fn record(&mut self, exact: Duration, record: &WorkloadRecord);
    /// Whether the status of workloads is needed.
    fn wants_status(&self) -> bool;
    /// Publishes the state of a workload. `object` is its index among the workloads.
    fn publish(&mut self, object: usize, workload: &Value, types: &LifecycleTypes);
}

/// The progress of a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It is running or is about to run.
    Active,
    /// It is being stopped.
    Stopping,
    /// It was stopped, or could not be run.
    Stopped,
    /// It has ended although it should have kept running.
    Ended,
    /// It has finished by itself and is not run again.
    Finished,
}

/// Manages the pods of one workload. It contains no rules, because the engine decides.
pub(crate) trait Controller: Send {
    /// Asks the engine for a decision and carries it out.
    fn step(&mut self, pods: &mut dyn Pods, stamp: Stamp) -> Result<(), WorkloadError>;
    /// The time of the next step, if nothing happens before.
    fn wake(&self) -> Option<Time>;
    /// The status of a pod changed. `now` is the run's time, because pods have their own clocks.
    fn status_changed(&mut self, pod: usize, update: &StatusUpdate, now: Time);
    /// A pod has ended. Its last status was reported before.
    fn ended(&mut self, pod: usize, result: PodResult, now: Time);
    /// Whether this controller created the pod.
    fn owns(&self, pod: usize) -> bool;
    /// The numbers of all pods it created.
    fn numbers(&self) -> Vec<usize>;
    /// Whether the object is a pod itself, so that stopping the pod stops the object.
    fn is_pod(&self) -> bool {
        false
    }
    /// The progress of the workload.
    fn standing(&self) -> Standing;
    /// Applies a change of the manifest that does not require a replacement.
    fn update(&mut self, to: Wanted, pods: &mut dyn Pods, stamp: Stamp) -> Result<(), WorkloadError>;
    /// Stops the workload.
    fn stop(&mut self, grace_ms: Option<u64>);
    /// The result, once there is nothing left to do.
    fn result(&self) -> Option<PodResult>;
    /// The state that another process needs to resume.
    fn save(&self) -> Value;
    /// Restores saved state and resumes the pods.
    fn restore(&mut self, saved: Value, pods: &mut dyn Pods) -> Result<(), WorkloadError>;
}

/// One object of a manifest: a Pod, or a workload and its pods.
pub(crate) struct Wanted {
    /// Its name.
    pub(crate) key: ObjectKey,
    /// Its index among the objects of the status file.
    object: usize,
    workload: Option<Workload>,
    /// Its pod. For a workload, a pod that represents all its pods.
    pod: PlannedPod,
}

impl Wanted {
    /// The objects of a manifest, in the order written.
    pub(crate) fn all(pods: Vec<PlannedPod>, workloads: &[Workload]) -> Vec<Wanted> {
        let wanted = |(object, pod): (usize, PlannedPod)| match workloads.get(pod.manifest.origin.workload) {
            None | Some(Workload::Pod(_)) => {
                let (namespace, name) = (pod.manifest.namespace().to_owned(), pod.manifest.name().to_owned());
                Wanted { key: ObjectKey { kind: "Pod", namespace, name }, object, workload: None, pod }
            }
            Some(workload) => Wanted {
                key: ObjectKey::of_workload(workload),
                object,
                workload: Some(workload.clone()),
                pod,
            },
        };
        pods.into_iter().enumerate().map(wanted).collect()
    }

    /// Whether it finishes by itself: a Job, or a pod that is not always restarted.
    pub(crate) fn is_finite(&self) -> bool {
        match &self.workload {
            Some(workload) => workload.job().is_some(),
            None => self.pod.plan.restart_policy != RestartPolicy::Always,
        }
    }

    /// Creates the controller of the object. The generated names of its pods depend on `instance`, see
    /// [`Workload::stamp`].
    pub(crate) fn controller(self, stamp: Stamp, instance: String) -> Box<dyn Controller> {
        let Some(workload) = self.workload else { return Box::new(bare::Bare::new(self.pod)) };
        let source = Source { workload, like: self.pod, object: self.object, instance };
        match source.workload.job() {
            Some(job) => Box::new(job::JobController::new(source, job, stamp)),
            None => Box::new(replicas::Replicas::new(source)),
        }
    }
}

/// The controllers of a manifest's pods, in the order written.
pub(crate) fn controllers(
    pods: Vec<PlannedPod>,
    workloads: Vec<Workload>,
    stamp: Stamp,
) -> Vec<Box<dyn Controller>> {
    Wanted::all(pods, &workloads).into_iter().map(|wanted| wanted.controller(stamp, String::new())).collect()
}

/// Creates the pods of a workload.
struct Source {
    workload: Workload,
    /// A pod of the workload, with the plan shared by all.
    like: PlannedPod,
    /// Its index among the objects of the status file.
    object: usize,
    /// Distinguishes its pods from those of other objects of the same name.
    instance: String,
}

impl Source {
    /// The number of pods that run at the same time.
    fn count(&self) -> u32 {
        u32::try_from(self.like.manifest.origin.count).unwrap_or(u32::MAX)
    }

    /// Creates the `nth` pod.
    fn pod(&self, nth: u32, attempt: u32) -> PlannedPod {
        let nth = usize::try_from(nth).unwrap_or(usize::MAX);
        let manifest = self.workload.stamp(&self.like.manifest, nth, attempt, &self.instance);
        PlannedPod { manifest, plan: self.like.plan.clone() }
    }

    /// Whether its pods use host ports, so that a successor can only start when its predecessor is gone.
    fn takes_host_ports(&self) -> bool {
        let spec = self.like.manifest.input.pod.spec.as_ref();
        let containers =
            spec.into_iter().flat_map(|s| s.init_containers.iter().flatten().chain(&s.containers));
        containers.flat_map(|c| c.ports.iter().flatten()).any(|port| port.host_port.is_some_and(|n| n > 0))
    }
}

/// Records an event of a workload.
fn record(pods: &mut dyn Pods, exact: Duration, workload: &str, event: WorkloadEvent) {
    let record = WorkloadRecord { time: rfc3339_nanos(exact), workload: workload.to_owned(), event };
    pods.record(exact, &record);
}
