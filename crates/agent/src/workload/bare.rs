//! A Pod of its own: it is run once.

use k8s_openapi::api::core::v1::PodStatus;
use outrigger_lifecycle::Time;
use outrigger_runtime::Runtime;

use super::Controller;
use crate::clock::Stamp;
use crate::crew::Crew;
use crate::run::PlannedPod;
use crate::worker::PodResult;

/// A Pod of its own.
pub(super) struct Bare {
    pod: Option<PlannedPod>,
    number: Option<usize>,
    stop: Option<Option<u64>>,
    result: Option<PodResult>,
}

impl Bare {
    pub(super) fn new(pod: PlannedPod) -> Self {
        Bare { pod: Some(pod), number: None, stop: None, result: None }
    }
}

impl<R: Runtime> Controller<R> for Bare {
    fn step(&mut self, crew: &mut Crew<R>, _: Stamp) -> Result<(), String> {
        if let Some(pod) = self.pod.take() {
            self.number = Some(crew.hire(pod, false)?);
        }
        if let (Some(number), Some(grace_ms)) = (self.number, self.stop.take()) {
            crew.stop(number, grace_ms);
        }
        Ok(())
    }

    fn wake(&self) -> Option<Time> {
        None
    }

    fn news(&mut self, _: usize, _: &PodStatus, _: Time) {}

    fn ended(&mut self, pod: usize, result: PodResult, _: Time) {
        if self.number == Some(pod) {
            self.result = Some(result);
        }
    }

    fn stop(&mut self, grace_ms: Option<u64>) {
        self.stop = Some(grace_ms);
    }

    fn result(&self) -> Option<PodResult> {
        self.result
    }
}
