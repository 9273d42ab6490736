//! A bare Pod, which is run once.

use outrigger_agent::clock::Stamp;
use outrigger_agent::event::{PodResult, StatusUpdate};
use outrigger_agent::options::StatusUpdates;
use outrigger_lifecycle::{Phase, RestartPolicy, Time};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Controller, Pods, Standing, Wanted, WorkloadError};
use crate::work::PlannedPod;

/// A bare Pod.
pub(super) struct Bare {
    pod: Option<PlannedPod>,
    number: Option<usize>,
    /// The grace period of a requested stop.
    stop: Option<Option<u64>>,
    /// Whether the stop still has to be passed to the pod.
    is_stop_due: bool,
    result: Option<PodResult>,
    /// Whether its containers are always restarted, so that it does not end by itself.
    is_lasting: bool,
}

/// The saved state.
#[derive(Serialize, Deserialize)]
struct Saved {
    number: Option<usize>,
    result: Option<PodResult>,
    /// The grace period of the requested stop, if any.
    #[serde(default)]
    stop: Vec<Option<u64>>,
}

impl Bare {
    pub(super) fn new(pod: PlannedPod) -> Self {
        let is_lasting = pod.plan.restart_policy == RestartPolicy::Always;
        Bare { pod: Some(pod), number: None, stop: None, is_stop_due: false, result: None, is_lasting }
    }
}

impl Controller for Bare {
    fn step(&mut self, pods: &mut dyn Pods, _: Stamp) -> Result<(), WorkloadError> {
        if let Some(pod) = self.pod.take() {
            let added = pods.add(pod, StatusUpdates::Omitted);
            // A pod that was not added never reports its end.
            if added.is_err() {
                self.result = Some(PodResult { phase: Phase::Failed, failed: None });
                // The pod has not ended by itself, so it counts as stopped.
                self.stop = Some(None);
            }
            self.number = Some(added?);
        }
        if let (Some(number), Some(grace_ms)) = (self.number, self.stop)
            && std::mem::take(&mut self.is_stop_due)
        {
            pods.stop(number, grace_ms);
        }
        Ok(())
    }

    fn wake(&self) -> Option<Time> {
        None
    }

    fn status_changed(&mut self, _: usize, _: &StatusUpdate, _: Time) {}

    fn ended(&mut self, pod: usize, result: PodResult, _: Time) {
        if self.number == Some(pod) {
            self.result = Some(result);
        }
    }

    fn owns(&self, pod: usize) -> bool {
        self.number == Some(pod)
    }

    fn numbers(&self) -> Vec<usize> {
        self.number.into_iter().collect()
    }

    fn is_pod(&self) -> bool {
        true
    }

    fn standing(&self) -> Standing {
        match (self.result.is_some(), self.stop.is_some()) {
            (false, false) => Standing::Active,
            (false, true) => Standing::Stopping,
            (true, true) => Standing::Stopped,
            (true, false) if self.is_lasting => Standing::Ended,
            (true, false) => Standing::Finished,
        }
    }

    fn update(&mut self, to: Wanted, pods: &mut dyn Pods, _: Stamp) -> Result<(), WorkloadError> {
        let pod = to.pod;
        match self.number {
            Some(number) if self.result.is_none() => pods.update(number, pod),
            Some(_) => Ok(()),
            None => {
                self.pod = Some(pod);
                Ok(())
            }
        }
    }

    fn stop(&mut self, grace_ms: Option<u64>) {
        if self.result.is_some() {
            return;
        }
        if self.pod.take().is_some() {
            // The pod was not started, because an earlier pod of the same name still exists.
            self.result = Some(PodResult { phase: Phase::Failed, failed: None });
        }
        (self.stop, self.is_stop_due) = (Some(grace_ms), true);
    }

    fn result(&self) -> Option<PodResult> {
        self.result
    }

    fn save(&self) -> Value {
        json!(Saved { number: self.number, result: self.result, stop: self.stop.into_iter().collect() })
    }

    fn restore(&mut self, saved: Value, pods: &mut dyn Pods) -> Result<(), WorkloadError> {
        let Saved { number, result, stop } = serde_json::from_value(saved)?;
        (self.number, self.result) = (number, result);
        (self.stop, self.is_stop_due) = (stop.into_iter().next(), true);
        let (Some(number), Some(pod)) = (number, self.pod.take_if(|_| number.is_some())) else {
            return Ok(());
        };
        match result {
            Some(_) => pods.show(number, pod),
            None => pods.resume(number, pod, StatusUpdates::Omitted)?,
        }
        Ok(())
    }
}
