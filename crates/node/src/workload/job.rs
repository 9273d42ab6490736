//! A Job: creates pods until enough of them have succeeded or too many have failed.

use std::collections::BTreeMap;

use k8s_openapi::api::batch::v1::{Job, JobStatus};
use k8s_openapi::api::core::v1::PodStatus;
use outrigger_agent::clock::Stamp;
use outrigger_agent::event::{PodResult, StatusUpdate};
use outrigger_agent::options::StatusUpdates;
use outrigger_lifecycle::trace::{CompletionMode, JobSummary, WorkloadEvent};
use outrigger_lifecycle::{
    JobDecision, JobEnd, JobObservation, JobOutcome, JobPlan, JobPod, Phase, PodOrder, Time, decide_job,
    job_status,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Controller, Pods, Source, Standing, Wanted, WorkloadError, record};

/// The controller of a Job.
pub(super) struct JobController {
    source: Source,
    /// `Job/name`.
    title: String,
    object: Job,
    plan: JobPlan,
    obs: JobObservation,
    /// The index in the observation of each pod, by pod number.
    places: BTreeMap<usize, usize>,
    numbers: Vec<usize>,
    /// The completion index of each pod, and its attempt number.
    made: Vec<(u32, u32)>,
    /// The final status of pods that are being removed.
    last_words: BTreeMap<usize, (PodStatus, Time)>,
    /// The last main that failed by itself.
    failed: Option<(Time, i32)>,
    decision: JobDecision,
    status: Option<JobStatus>,
    is_begun: bool,
    told_backoff: Option<Time>,
    /// The grace period of a requested stop.
    stop: Option<Option<u64>>,
    /// Whether pods that are marked as deleted are stopped once more, as for a Deployment.
    repeats_stops: bool,
}

/// The saved state.
#[derive(Serialize, Deserialize)]
struct Saved {
    obs: JobObservation,
    numbers: Vec<usize>,
    made: Vec<(u32, u32)>,
    failed: Option<(Time, i32)>,
    is_begun: bool,
    /// The grace period of the requested stop, if any.
    stop: Vec<Option<u64>>,
}

impl JobController {
    /// `object` is the Job of the source's workload.
    pub(super) fn new(source: Source, object: Job, stamp: Stamp) -> Self {
        let mut plan = JobPlan::from(&object);
        plan.replaces_terminating &= !source.takes_host_ports();
        JobController {
            title: format!("Job/{}", plan.name),
            obs: JobObservation::new(stamp.time),
            source,
            object,
            plan,
            places: BTreeMap::new(),
            numbers: Vec::new(),
            made: Vec::new(),
            last_words: BTreeMap::new(),
            failed: None,
            decision: JobDecision::default(),
            status: None,
            is_begun: false,
            told_backoff: None,
            stop: None,
            repeats_stops: false,
        }
    }

    fn begin(&mut self, pods: &mut dyn Pods, stamp: Stamp) {
        self.obs.since = stamp.time;
        if self.plan.suspend {
            return;
        }
        let event = WorkloadEvent::JobStarted {
            completions: self.plan.completions,
            parallelism: self.plan.parallelism,
            mode: if self.plan.indexed { CompletionMode::Indexed } else { CompletionMode::NonIndexed },
        };
        record(pods, stamp.exact, &self.title, event);
    }

    fn create(&mut self, order: PodOrder, pods: &mut dyn Pods, stamp: Stamp) -> Result<(), WorkloadError> {
        let made = match order.index {
            Some(index) => (index, order.attempt),
            // Without indexes, every pod has its own number.
            None => (order.attempt, 0),
        };
        let pod = self.source.pod(made.0, made.1);
        let name = pod.manifest.name().to_owned();
        let event = WorkloadEvent::PodCreated {
            pod: name.clone(),
            index: order.index,
            // Without indexes, no pod replaces another.
            attempt: order.index.map(|_| order.attempt),
        };
        record(pods, stamp.exact, &self.title, event);
        let number = pods.add(pod, StatusUpdates::Emitted)?;
        self.places.insert(number, self.obs.pods.len());
        self.numbers.push(number);
        self.made.push(made);
        self.obs.pods.push(JobPod::new(name, order.index, stamp.time));
        Ok(())
    }

    fn delete(&mut self, place: usize, pods: &mut dyn Pods, stamp: Stamp) {
        let pod = &mut self.obs.pods[place];
        pod.deleted_at.get_or_insert(stamp.time);
        let event = WorkloadEvent::PodDeleted { pod: pod.name.clone() };
        record(pods, stamp.exact, &self.title, event);
        pods.stop(self.numbers[place], self.stop.flatten());
    }

    /// Records each decision about the whole Job once.
    fn tell(&mut self, decision: &JobDecision, pods: &mut dyn Pods, stamp: Stamp) {
        if let Some(until) = decision.backoff_until.filter(|until| Some(*until) != self.told_backoff) {
            self.told_backoff = Some(until);
            let event = WorkloadEvent::JobBackOff { wait_ms: until.since(stamp.time) };
            record(pods, stamp.exact, &self.title, event);
        }
        let announced = decision.target.as_ref().filter(|_| self.obs.target.is_none());
        let over = decision.finished.as_ref().filter(|_| self.decision.finished.is_none());
        // If the Job ends in the same step, only the end is recorded.
        if let Some(JobEnd { outcome, reason, message, .. }) = announced.filter(|_| over.is_none()).cloned() {
            let event = match outcome {
                JobOutcome::Failed => WorkloadEvent::FailureTarget { reason, message },
                JobOutcome::Complete | JobOutcome::Suspended => {
                    WorkloadEvent::SuccessCriteriaMet { reason, message }
                }
            };
            record(pods, stamp.exact, &self.title, event);
        }
        if let Some(over) = over {
            let count = |phase| self.obs.pods.iter().filter(|pod| pod.phase == phase).count();
            let summary = JobSummary {
                reason: over.reason.clone(),
                message: over.message.clone(),
                succeeded: count(Phase::Succeeded),
                failed: count(Phase::Failed),
                took_ms: stamp.time.since(self.obs.since),
            };
            let event = match over.outcome {
                JobOutcome::Complete => WorkloadEvent::JobComplete(summary),
                JobOutcome::Failed => WorkloadEvent::JobFailed(summary),
                JobOutcome::Suspended => WorkloadEvent::JobSuspended(summary),
            };
            record(pods, stamp.exact, &self.title, event);
        }
    }

    /// Publishes the Job's status if it changed.
    fn publish(&mut self, pods: &mut dyn Pods, now: Time) {
        if !pods.wants_status() {
            return;
        }
        let status = job_status(&self.plan, &self.obs, &self.decision, self.status.as_ref(), now);
        if self.status.as_ref() != Some(&status) {
            self.object.status = Some(status.clone());
            self.status = Some(status);
            let types = &self.source.like.manifest.input.lifecycle_types;
            match serde_json::to_value(&self.object) {
                Ok(object) => pods.publish(self.source.object, &object, types),
                Err(e) => tracing::warn!("cannot write the status of {}: {e}", self.title),
            }
        }
    }
}

impl Controller for JobController {
    fn step(&mut self, pods: &mut dyn Pods, stamp: Stamp) -> Result<(), WorkloadError> {
        if !std::mem::replace(&mut self.is_begun, true) {
            self.begin(pods, stamp);
        }
        if std::mem::take(&mut self.repeats_stops) {
            for (pod, number) in self.obs.pods.iter().zip(&self.numbers) {
                if pod.deleted_at.is_some() && !pod.phase.is_terminal() {
                    pods.stop(*number, self.stop.flatten());
                }
            }
        }
        if self.stop.is_some() && !std::mem::replace(&mut self.obs.deleted, true) {
            record(pods, stamp.exact, &self.title, WorkloadEvent::JobStopped);
            let left = |place: &usize| !self.obs.pods[*place].phase.is_terminal();
            for place in (0..self.obs.pods.len()).filter(left).collect::<Vec<_>>() {
                self.delete(place, pods, stamp);
            }
        }
        let decision = decide_job(&self.plan, &self.obs, stamp.time);
        self.tell(&decision, pods, stamp);
        self.obs.target.clone_from(&decision.target);
        for &place in &decision.delete {
            self.delete(place, pods, stamp);
        }
        for &order in &decision.create {
            self.create(order, pods, stamp)?;
        }
        self.decision = decision;
        self.publish(pods, stamp.time);
        Ok(())
    }

    fn wake(&self) -> Option<Time> {
        self.decision.wake.filter(|_| !self.obs.deleted)
    }

    fn status_changed(&mut self, pod: usize, update: &StatusUpdate, now: Time) {
        let Some(&place) = self.places.get(&pod) else { return };
        let (source, number, status) = (&self.source, pod, &*update.status);
        let pod = &mut self.obs.pods[place];
        if update.deletion.is_some() {
            pod.deleted_at.get_or_insert(now);
        }
        if status.phase.as_deref().is_some_and(|phase| phase == "Succeeded" || phase == "Failed") {
            // It counts as ended only when it is removed, because only then another pod can use its ports.
            self.last_words.insert(number, (status.clone(), now));
            return;
        }
        pod.observe(status, &source.like.plan);
        let plan = &source.like.plan;
        let is_helper = |name: &str| plan.find(name).is_some_and(|i| plan.containers[i].is_helper());
        // If containers are restarted until the Job is done, their pod does not fail. So the last failed
        // instance counts.
        let mains = status.container_statuses.iter().flatten().filter(|c| !is_helper(&c.name));
        let mut codes = mains.filter_map(|c| Some(c.last_state.as_ref()?.terminated.as_ref()?.exit_code));
        if let Some(code) = codes.rfind(|code| *code != 0).filter(|_| pod.deleted_at.is_none()) {
            self.failed = Some((now, code));
        }
    }

    fn ended(&mut self, pod: usize, result: PodResult, now: Time) {
        let Some(&place) = self.places.get(&pod) else { return };
        let (source, words) = (&self.source, self.last_words.remove(&pod));
        let pod = &mut self.obs.pods[place];
        pod.finished_at = Some(words.as_ref().map_or(now, |(_, at)| *at));
        if let Some((status, _)) = &words {
            pod.observe(status, &source.like.plan);
        }
        pod.phase = result.phase;
        if pod.deleted_at.is_none() && result.phase == Phase::Failed {
            self.failed = result.failed.or(self.failed);
        }
    }

    fn owns(&self, pod: usize) -> bool {
        self.places.contains_key(&pod)
    }

    fn numbers(&self) -> Vec<usize> {
        self.numbers.clone()
    }

    fn standing(&self) -> Standing {
        match (&self.decision.finished, self.stop.is_some()) {
            (Some(_), _) => Standing::Finished,
            (None, true) if self.result().is_some() => Standing::Stopped,
            (None, true) => Standing::Stopping,
            (None, false) => Standing::Active,
        }
    }

    /// A changed Job is always replaced.
    fn update(&mut self, _: Wanted, _: &mut dyn Pods, _: Stamp) -> Result<(), WorkloadError> {
        Ok(())
    }

    fn stop(&mut self, grace_ms: Option<u64>) {
        self.stop = Some(grace_ms);
        self.repeats_stops = true;
    }

    fn result(&self) -> Option<PodResult> {
        let gone = self.obs.deleted && self.obs.pods.iter().all(|pod| pod.phase.is_terminal());
        match &self.decision.finished {
            Some(end) if end.outcome == JobOutcome::Failed => {
                Some(PodResult { phase: Phase::Failed, failed: self.failed })
            }
            Some(_) => Some(PodResult { phase: Phase::Succeeded, failed: None }),
            None => gone.then_some(PodResult { phase: Phase::Failed, failed: self.failed }),
        }
    }

    fn save(&self) -> Value {
        json!(Saved {
            obs: self.obs.clone(),
            numbers: self.numbers.clone(),
            made: self.made.clone(),
            failed: self.failed,
            is_begun: self.is_begun,
            stop: self.stop.into_iter().collect(),
        })
    }

    fn restore(&mut self, saved: Value, pods: &mut dyn Pods) -> Result<(), WorkloadError> {
        let Saved { obs, numbers, made, failed, is_begun, stop } = serde_json::from_value(saved)?;
        if obs.pods.len() != numbers.len() || numbers.len() != made.len() {
            return Err(WorkloadError::SavedPods("Job"));
        }
        (self.obs, self.numbers, self.made) = (obs, numbers, made);
        (self.failed, self.is_begun, self.stop) = (failed, is_begun, stop.into_iter().next());
        self.repeats_stops = true;
        self.places = self.numbers.iter().enumerate().map(|(at, number)| (*number, at)).collect();
        for (at, &(nth, attempt)) in self.made.iter().enumerate() {
            let (number, pod) = (self.numbers[at], self.source.pod(nth, attempt));
            match self.obs.pods[at].phase.is_terminal() {
                true => pods.show(number, pod),
                false => pods.resume(number, pod, StatusUpdates::Emitted)?,
            }
        }
        Ok(())
    }
}
