//! Analyses how the time of a workload was spent, in its pods and between them.

use outrigger_lifecycle::trace::{PodEvent, TraceEvent, WorkloadEvent, WorkloadRecord};
use outrigger_text::HumanDuration;
use serde::Serialize;

use super::advice::{Advice, WORTH_MS};
use crate::events::{PodEvents, WorkloadEvents};
use crate::timed::{TimelineError, lines, milliseconds};
use crate::words::finished;

/// What a part of a workload's time was spent on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum StretchKind {
    /// A pod ran.
    Pod,
    /// The next pod had to wait for the back-off after a failure.
    BackOff,
}

/// A part of the life of a workload. Pods that run at the same time overlap.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Stretch {
    /// What the time was spent on.
    pub kind: StretchKind,
    /// The pod, if the kind is `Pod`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// The beginning, in milliseconds since the first entry of the workload.
    pub from_ms: u64,
    /// The end, in milliseconds since the first entry of the workload.
    pub to_ms: u64,
    /// The stretch as text.
    pub text: String,
}

impl Stretch {
    /// The length of the stretch.
    pub fn ms(&self) -> u64 {
        self.to_ms - self.from_ms
    }
}

/// How a workload ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadEnd {
    /// Whether the workload succeeded.
    pub is_success: bool,
    /// The end as text, such as `complete` or `failed: BackoffLimitExceeded`.
    pub text: String,
}

/// The analysis of a workload's trace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadAnalysis {
    /// The kind and name, such as `Job/report`.
    pub workload: String,
    /// The time of its first entry, in milliseconds of the trace's own clock.
    #[serde(skip)]
    pub zero_ms: u64,
    /// How it ended. `None` if it did not end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end: Option<WorkloadEnd>,
    /// The time from its first entry to its end, or to the last entry.
    pub took_ms: u64,
    /// How long it waited for a back-off while none of its pods ran.
    pub back_off_ms: u64,
    /// Its pods and waits, sorted by their beginning.
    pub stretches: Vec<Stretch>,
    /// What would make it faster.
    pub advice: Vec<Advice>,
}

/// Analyses the trace of a workload and its pods.
///
/// # Errors
/// An entry lacks a field that every entry has.
pub fn analyze_workload(
    workload: &WorkloadEvents,
    pods: &[&PodEvents],
) -> Result<WorkloadAnalysis, TimelineError> {
    let mut times = Vec::with_capacity(workload.entries.len());
    for (i, entry) in workload.entries.iter().enumerate() {
        times.push(time(i, entry)?);
    }
    let mut zero_ms = times.first().copied().unwrap_or(u64::MAX);
    for pod in pods {
        let first = lines(&pod.entries, Some(0))?.first().map_or(u64::MAX, |line| line.at);
        zero_ms = zero_ms.min(first);
    }
    let mut stretches = Vec::new();
    let mut end_ms = times.last().map_or(0, |at| at.saturating_sub(zero_ms));
    for pod in pods {
        let own = pod_stretch(pod, zero_ms)?;
        end_ms = end_ms.max(own.to_ms);
        stretches.push(own);
    }
    let entries = workload.entries.iter().zip(times.iter().map(|at| at.saturating_sub(zero_ms)));
    let mut end = None;
    let mut took_ms = end_ms;
    for (i, (entry, at)) in entries.clone().enumerate() {
        match &entry.event {
            WorkloadEvent::JobBackOff { wait_ms } => {
                let next = |(entry, _): &(&WorkloadRecord, u64)| {
                    matches!(entry.event, WorkloadEvent::PodCreated { .. } | WorkloadEvent::JobBackOff { .. })
                };
                let next = entries.clone().skip(i + 1).find(next).map_or(end_ms, |(_, at)| at);
                let to_ms = at.saturating_add(*wait_ms).min(next.max(at)).min(end_ms.max(at));
                // The pod is created a moment after the wait. That moment counts as part of the wait.
                let to_ms = if next > to_ms && next - to_ms < MOMENT_MS { next } else { to_ms };
                let text = format!("back-off of {} after a failed pod", HumanDuration(*wait_ms));
                let kind = StretchKind::BackOff;
                stretches.push(Stretch { kind, pod: None, from_ms: at, to_ms, text });
            }
            WorkloadEvent::JobComplete(_) => {
                end = Some(WorkloadEnd { is_success: true, text: "complete".to_owned() });
                took_ms = at;
            }
            WorkloadEvent::JobFailed(how) => {
                end = Some(WorkloadEnd { is_success: false, text: format!("failed: {}", how.reason) });
                took_ms = at;
            }
            WorkloadEvent::JobStopped => {
                end.get_or_insert(WorkloadEnd { is_success: false, text: "stopped".to_owned() });
            }
            WorkloadEvent::JobStarted { .. }
            | WorkloadEvent::WorkloadStarted { .. }
            | WorkloadEvent::PodCreated { .. }
            | WorkloadEvent::PodWaiting { .. }
            | WorkloadEvent::PodDeleted { .. }
            | WorkloadEvent::SuccessCriteriaMet { .. }
            | WorkloadEvent::FailureTarget { .. }
            | WorkloadEvent::JobSuspended(_) => {}
        }
    }
    stretches.sort_by_key(|stretch| (stretch.from_ms, stretch.to_ms));
    let back_off_ms = idle(&stretches);
    let advice = advice(&stretches, back_off_ms);
    let workload = workload.workload.clone();
    Ok(WorkloadAnalysis { workload, zero_ms, end, took_ms, back_off_ms, stretches, advice })
}

/// A pod that is created this soon after a wait was created because the wait ended.
const MOMENT_MS: u64 = 1_000;

fn time(index: usize, entry: &WorkloadRecord) -> Result<u64, TimelineError> {
    milliseconds(&entry.time)
        .ok_or_else(|| TimelineError::Time { number: index + 1, text: entry.time.clone() })
}

fn pod_stretch(pod: &PodEvents, zero_ms: u64) -> Result<Stretch, TimelineError> {
    let lines = lines(&pod.entries, Some(zero_ms))?;
    let (from_ms, to_ms) =
        (lines.first().map_or(0, |line| line.at), lines.iter().map(|line| line.at).max().unwrap_or(0));
    let ended = lines.iter().rev().find_map(|line| match line.event {
        TraceEvent::Pod(PodEvent::Finished { phase, stopped }) => Some(finished(*phase, *stopped)),
        _ => None,
    });
    let text = format!("pod `{}` {}", pod.pod, ended.unwrap_or("runs"));
    Ok(Stretch { kind: StretchKind::Pod, pod: Some(pod.pod.clone()), from_ms, to_ms, text })
}

/// How long there was a back-off and no pod. `stretches` are sorted by their beginning.
fn idle(stretches: &[Stretch]) -> u64 {
    let (mut idle, mut busy_to, mut counted_to) = (0, 0, 0);
    // A pod that begins during a wait ends it.
    let next_pod = |at: u64| {
        let pods = stretches.iter().filter(|s| s.kind == StretchKind::Pod);
        pods.map(|s| s.from_ms).find(|from| *from >= at).unwrap_or(u64::MAX)
    };
    for stretch in stretches {
        match stretch.kind {
            StretchKind::Pod => busy_to = busy_to.max(stretch.to_ms),
            StretchKind::BackOff => {
                let from = stretch.from_ms.max(busy_to).max(counted_to);
                let to = stretch.to_ms.min(next_pod(from));
                idle += to.saturating_sub(from);
                counted_to = counted_to.max(to);
            }
        }
    }
    idle
}

fn advice(stretches: &[Stretch], back_off_ms: u64) -> Vec<Advice> {
    if back_off_ms < WORTH_MS {
        return Vec::new();
    }
    let waits = stretches.iter().filter(|s| s.kind == StretchKind::BackOff).count();
    let pods = if waits == 1 { "1 failed pod" } else { "failed pods" };
    let text = format!(
        "the back-off after {pods} took {}; it begins at 10 s and doubles with every failure. If a pod fails because \
         something is not up yet, make it wait for that instead of failing",
        HumanDuration(back_off_ms)
    );
    vec![Advice { container: None, field: "template", cost_ms: back_off_ms, text }]
}
