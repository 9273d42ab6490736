//! Renders events of workloads as sentences without their subject, the workload.

use outrigger_lifecycle::trace::{WorkloadEvent, WorkloadRecord};
use outrigger_text::HumanDuration;

use crate::words::{Sentence, Weight};

/// The sentence of an entry.
pub fn tell(record: &WorkloadRecord) -> Sentence {
    let several = |n: u32, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    let (weight, sentence) = match &record.event {
        WorkloadEvent::JobStarted { completions, parallelism, .. } => {
            let goal = match completions {
                Some(n) => several(*n, "completion"),
                None => "one success".to_owned(),
            };
            (Weight::Routine, format!("started: {goal}, {} at a time", several(*parallelism, "pod")))
        }
        WorkloadEvent::WorkloadStarted { replicas } => {
            (Weight::Routine, format!("keeping {} running", several(*replicas, "pod")))
        }
        WorkloadEvent::PodCreated { pod, index, attempt } => {
            let index = index.map_or(String::new(), |index| format!(" for index {index}"));
            let again = match attempt {
                Some(n) if *n > 0 && record.workload.starts_with("Job/") => format!(" (try {})", n + 1),
                Some(n) if *n > 0 => " to replace one that ended".to_owned(),
                _ => String::new(),
            };
            (Weight::Routine, format!("created pod `{pod}`{index}{again}"))
        }
        WorkloadEvent::PodDeleted { pod } => (Weight::Routine, format!("deleted pod `{pod}`")),
        WorkloadEvent::PodWaiting { pod, on } => {
            (Weight::Routine, format!("creates pod `{pod}` once `{on}` is ready"))
        }
        WorkloadEvent::JobBackOff { wait_ms } => {
            let wait = HumanDuration(*wait_ms);
            (Weight::Notable, format!("waiting {wait} before the next pod: back-off after a failure"))
        }
        WorkloadEvent::JobStopped => (Weight::Routine, "stopped, creates no more pods".to_owned()),
        WorkloadEvent::JobSuspended(end) => (Weight::Notable, format!("not started: {}", end.message)),
        WorkloadEvent::SuccessCriteriaMet { message, .. } => {
            (Weight::Notable, format!("succeeded, deleting its pods: {message}"))
        }
        WorkloadEvent::FailureTarget { reason, message } => {
            (Weight::Trouble, format!("failed, deleting its pods: {reason}: {message}"))
        }
        WorkloadEvent::JobComplete(end) => (Weight::Notable, format!("complete: {}", end.message)),
        WorkloadEvent::JobFailed(end) => {
            (Weight::Trouble, format!("failed: {}: {}", end.reason, end.message))
        }
    };
    Sentence::new(weight, sentence)
}
