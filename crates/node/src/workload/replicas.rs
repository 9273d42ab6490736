//! A Deployment, ReplicaSet, StatefulSet or DaemonSet: keeps its pods running until it is stopped.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{DaemonSetStatus, DeploymentStatus, ReplicaSetStatus, StatefulSetStatus};
use outrigger_agent::clock::Stamp;
use outrigger_agent::event::{PodResult, StatusUpdate};
use outrigger_agent::options::StatusUpdates;
use outrigger_lifecycle::trace::WorkloadEvent;
use outrigger_lifecycle::{
    Phase, Replica, ReplicaDecision, ReplicaObservation, ReplicaPlan, Time, decide_replicas,
};
use outrigger_manifest::Workload;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Controller, Pods, Source, Standing, Wanted, WorkloadError, record};

/// The controller of a workload whose pods keep running.
pub(super) struct Replicas {
    source: Source,
    /// `Deployment/name`.
    title: String,
    plan: ReplicaPlan,
    /// Whether its pods have an index.
    is_indexed: bool,
    obs: ReplicaObservation,
    /// The index in the observation of each pod, by pod number.
    places: BTreeMap<usize, usize>,
    /// Number and name of each pod, by index in the observation.
    pods: Vec<(usize, String)>,
    /// The replica index of each pod, and its attempt number.
    made: Vec<(u32, u32)>,
    ended: BTreeMap<usize, Time>,
    decision: ReplicaDecision,
    counts: Option<Counts>,
    is_begun: bool,
    told_wait: Option<(u32, u32)>,
    stop: Option<Option<u64>>,
    /// Whether pods that are marked as deleted are stopped once more. Another process may have been killed
    /// before it stopped them, or a shorter grace period was requested.
    repeats_stops: bool,
}

/// The saved state.
#[derive(Serialize, Deserialize)]
struct Saved {
    obs: ReplicaObservation,
    pods: Vec<(usize, String)>,
    made: Vec<(u32, u32)>,
    is_begun: bool,
    /// The grace period of the requested stop, if any.
    stop: Vec<Option<u64>>,
}

/// The replica counts of a status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Counts {
    wanted: i32,
    there: i32,
    ready: i32,
    available: i32,
}

impl Replicas {
    pub(super) fn new(source: Source) -> Self {
        let title = format!("{}/{}", source.workload.kind(), source.like.manifest.origin.name);
        let (stateful, min_ready) = match &source.workload {
            Workload::StatefulSet(object) => {
                let spec = object.spec.as_ref();
                let policy = spec.and_then(|s| s.pod_management_policy.as_deref());
                (Some(policy != Some("Parallel")), spec.and_then(|s| s.min_ready_seconds))
            }
            Workload::Deployment(object) => (None, object.spec.as_ref().and_then(|s| s.min_ready_seconds)),
            Workload::ReplicaSet(object) => (None, object.spec.as_ref().and_then(|s| s.min_ready_seconds)),
            Workload::DaemonSet(object) => (None, object.spec.as_ref().and_then(|s| s.min_ready_seconds)),
            _ => (None, None),
        };
        let min_ready_ms = u64::try_from(min_ready.unwrap_or(0)).unwrap_or(0).saturating_mul(1_000);
        let plan = ReplicaPlan {
            replicas: source.count(),
            ordered: stateful == Some(true),
            // A host port is like a fixed name: it is available only when the previous pod is gone.
            named: stateful.is_some() || source.takes_host_ports(),
            min_ready_ms,
        };
        let is_indexed = stateful.is_some();
        Replicas {
            source,
            title,
            plan,
            is_indexed,
            obs: ReplicaObservation::default(),
            places: BTreeMap::new(),
            pods: Vec::new(),
            made: Vec::new(),
            ended: BTreeMap::new(),
            decision: ReplicaDecision::default(),
            counts: None,
            is_begun: false,
            told_wait: None,
            stop: None,
            repeats_stops: false,
        }
    }

    fn create(
        &mut self,
        (place, attempt): (u32, u32),
        pods: &mut dyn Pods,
        stamp: Stamp,
    ) -> Result<(), WorkloadError> {
        let pod = self.source.pod(place, attempt);
        let name = pod.manifest.name().to_owned();
        let index = self.is_indexed.then_some(place);
        let event = WorkloadEvent::PodCreated { pod: name.clone(), index, attempt: Some(attempt) };
        record(pods, stamp.exact, &self.title, event);
        let number = pods.add(pod, StatusUpdates::Emitted)?;
        self.places.insert(number, self.obs.pods.len());
        self.pods.push((number, name));
        self.made.push((place, attempt));
        self.obs.pods.push(Replica::new(place));
        Ok(())
    }

    fn delete(&mut self, at: usize, pods: &mut dyn Pods, stamp: Stamp) {
        self.obs.pods[at].deleted = true;
        let (number, name) = &self.pods[at];
        let event = WorkloadEvent::PodDeleted { pod: name.clone() };
        record(pods, stamp.exact, &self.title, event);
        pods.stop(*number, self.stop.flatten());
    }

    fn publish(&mut self, pods: &mut dyn Pods, now: Time) {
        if !pods.wants_status() {
            return;
        }
        let count = |test: &dyn Fn(&Replica) -> bool| {
            i32::try_from(self.obs.pods.iter().filter(|pod| test(pod)).count()).unwrap_or(i32::MAX)
        };
        let counts = Counts {
            wanted: i32::try_from(self.plan.replicas).unwrap_or(i32::MAX),
            there: count(&|pod| !pod.phase.is_terminal()),
            ready: count(&|pod| pod.is_active() && pod.ready_since.is_some()),
            available: count(&|pod| pod.available_at(&self.plan).is_some_and(|at| at <= now)),
        };
        if self.counts.replace(counts) == Some(counts) {
            return;
        }
        let types = &self.source.like.manifest.input.lifecycle_types;
        let shown = match counts.in_status_of(&self.source.workload) {
            Workload::Deployment(shown) => serde_json::to_value(shown),
            Workload::ReplicaSet(shown) => serde_json::to_value(shown),
            Workload::StatefulSet(shown) => serde_json::to_value(shown),
            Workload::DaemonSet(shown) => serde_json::to_value(shown),
            Workload::Pod(_) | Workload::Job(_) | Workload::CronJob(_) => return,
        };
        match shown {
            Ok(shown) => pods.publish(self.source.object, &shown, types),
            Err(e) => tracing::warn!("cannot write the status of {}: {e}", self.title),
        }
    }
}

impl Counts {
    /// The workload with these counts as its status.
    fn in_status_of(self, workload: &Workload) -> Workload {
        let Counts { wanted, there, ready, available } = self;
        let mut workload = workload.clone();
        match &mut workload {
            Workload::Deployment(object) => {
                object.status = Some(DeploymentStatus {
                    replicas: Some(there),
                    updated_replicas: Some(there),
                    ready_replicas: Some(ready),
                    available_replicas: Some(available),
                    unavailable_replicas: Some((wanted - available).max(0)).filter(|n| *n > 0),
                    ..DeploymentStatus::default()
                });
            }
            Workload::ReplicaSet(object) => {
                object.status = Some(ReplicaSetStatus {
                    replicas: there,
                    fully_labeled_replicas: Some(there),
                    ready_replicas: Some(ready),
                    available_replicas: Some(available),
                    ..ReplicaSetStatus::default()
                });
            }
            Workload::StatefulSet(object) => {
                object.status = Some(StatefulSetStatus {
                    replicas: there,
                    current_replicas: Some(there),
                    updated_replicas: Some(there),
                    ready_replicas: Some(ready),
                    available_replicas: Some(available),
                    ..StatefulSetStatus::default()
                });
            }
            Workload::DaemonSet(object) => {
                object.status = Some(DaemonSetStatus {
                    desired_number_scheduled: wanted,
                    current_number_scheduled: there,
                    updated_number_scheduled: Some(there),
                    number_ready: ready,
                    number_available: Some(available),
                    number_unavailable: Some((wanted - available).max(0)).filter(|n| *n > 0),
                    ..DaemonSetStatus::default()
                });
            }
            Workload::Pod(_) | Workload::Job(_) | Workload::CronJob(_) => {}
        }
        workload
    }
}

impl Controller for Replicas {
    fn step(&mut self, pods: &mut dyn Pods, stamp: Stamp) -> Result<(), WorkloadError> {
        if !std::mem::replace(&mut self.is_begun, true) {
            let event = WorkloadEvent::WorkloadStarted { replicas: self.plan.replicas };
            record(pods, stamp.exact, &self.title, event);
        }
        if std::mem::take(&mut self.repeats_stops) {
            for (pod, (number, _)) in self.obs.pods.iter().zip(&self.pods) {
                if pod.deleted && !pod.phase.is_terminal() {
                    pods.stop(*number, self.stop.flatten());
                }
            }
        }
        let decision = decide_replicas(&self.plan, &self.obs, stamp.time);
        for &at in &decision.delete {
            self.delete(at, pods, stamp);
        }
        for &order in &decision.create {
            self.create(order, pods, stamp)?;
        }
        if let Some((place, on)) = decision.waits.filter(|waits| Some(*waits) != self.told_wait) {
            let name = |nth| self.source.pod(nth, 0).manifest.name().to_owned();
            let event = WorkloadEvent::PodWaiting { pod: name(place), on: name(on) };
            record(pods, stamp.exact, &self.title, event);
        }
        self.told_wait = decision.waits;
        self.decision = decision;
        self.publish(pods, stamp.time);
        Ok(())
    }

    fn wake(&self) -> Option<Time> {
        self.decision.wake
    }

    fn status_changed(&mut self, pod: usize, update: &StatusUpdate, now: Time) {
        let Some(&place) = self.places.get(&pod) else { return };
        let (pod, status) = (&mut self.obs.pods[place], &update.status);
        pod.deleted |= update.deletion.is_some();
        let conditions = status.conditions.iter().flatten();
        let ready = conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True");
        pod.ready_since = ready.then(|| pod.ready_since.unwrap_or(now));
        match status.phase.as_deref() {
            // It counts as ended only when it is removed.
            Some("Succeeded" | "Failed") => drop(self.ended.insert(place, now)),
            Some("Running") => pod.phase = Phase::Running,
            _ => {}
        }
    }

    fn ended(&mut self, pod: usize, result: PodResult, now: Time) {
        let Some(&place) = self.places.get(&pod) else { return };
        let pod = &mut self.obs.pods[place];
        pod.phase = result.phase;
        pod.ready_since = None;
        pod.finished_at = Some(self.ended.remove(&place).unwrap_or(now));
    }

    fn owns(&self, pod: usize) -> bool {
        self.places.contains_key(&pod)
    }

    fn numbers(&self) -> Vec<usize> {
        self.pods.iter().map(|(number, _)| *number).collect()
    }

    fn standing(&self) -> Standing {
        match (self.decision.finished, self.stop.is_some()) {
            (true, _) => Standing::Stopped,
            (false, true) => Standing::Stopping,
            (false, false) => Standing::Active,
        }
    }

    /// Only the number of replicas can be changed.
    fn update(&mut self, to: Wanted, pods: &mut dyn Pods, stamp: Stamp) -> Result<(), WorkloadError> {
        let Some(workload) = to.workload else { return Ok(()) };
        (self.source.workload, self.source.like) = (workload, to.pod);
        let replicas = self.source.count();
        if std::mem::replace(&mut self.plan.replicas, replicas) != replicas {
            let event = WorkloadEvent::WorkloadStarted { replicas };
            record(pods, stamp.exact, &self.title, event);
        }
        Ok(())
    }

    fn stop(&mut self, grace_ms: Option<u64>) {
        self.stop = Some(grace_ms);
        self.obs.stopping = true;
        self.repeats_stops = true;
    }

    fn result(&self) -> Option<PodResult> {
        // A workload without an end has succeeded when it is stopped.
        self.decision.finished.then_some(PodResult { phase: Phase::Succeeded, failed: None })
    }

    fn save(&self) -> Value {
        json!(Saved {
            obs: self.obs.clone(),
            pods: self.pods.clone(),
            made: self.made.clone(),
            is_begun: self.is_begun,
            stop: self.stop.into_iter().collect(),
        })
    }

    fn restore(&mut self, saved: Value, pods: &mut dyn Pods) -> Result<(), WorkloadError> {
        let Saved { obs, pods: known, made, is_begun, stop } = serde_json::from_value(saved)?;
        if obs.pods.len() != known.len() || known.len() != made.len() {
            return Err(WorkloadError::SavedPods("workload"));
        }
        (self.obs, self.pods, self.made) = (obs, known, made);
        (self.is_begun, self.stop) = (is_begun, stop.into_iter().next());
        self.repeats_stops = true;
        self.places = self.pods.iter().enumerate().map(|(at, (number, _))| (*number, at)).collect();
        for (at, &(nth, attempt)) in self.made.iter().enumerate() {
            let (number, pod) = (self.pods[at].0, self.source.pod(nth, attempt));
            match self.obs.pods[at].phase.is_terminal() {
                true => pods.show(number, pod),
                false => pods.resume(number, pod, StatusUpdates::Emitted)?,
            }
        }
        Ok(())
    }
}
