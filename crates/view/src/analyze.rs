//! Finds what the start and the stop of a pod really waited for.
//!
//! The input is a trace. The analysis begins at the last container to become ready, or at the last to exit,
//! and goes back in time. It looks for the event that allowed this one, then for the event that allowed that,
//! and so on to the beginning. The result is the critical chain: the pod becomes faster only if one of its
//! links becomes shorter.

mod advice;
mod start;
mod stop;
#[cfg(test)]
mod tests;
mod text;
mod workload;

use outrigger_lifecycle::trace::{Kind, Record};
use serde::Serialize;

use crate::events::{Events, Group};
use crate::timed::{Line, TimelineError, lines};

pub use advice::Advice;
pub use text::text;
pub use workload::{Stretch, StretchKind, WorkloadAnalysis, WorkloadEnd, analyze_workload};

/// What a link's time was spent on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinkKind {
    /// The sandbox was created.
    Sandbox,
    /// The image was pulled.
    Pull,
    /// Waiting to retry a failed pull or start.
    Retry,
    /// The container was created and its program started.
    Start,
    /// A postStart hook ran.
    PostStart,
    /// The startup probe had not passed.
    StartupProbe,
    /// The readiness probe had not passed.
    ReadinessProbe,
    /// The container ran, while others waited for its end.
    Run,
    /// An instance ran and failed.
    Failed,
    /// Waiting to be restarted after an exit.
    BackOff,
    /// A preStop hook ran.
    PreStop,
    /// The time from TERM to the exit.
    Term,
    /// The trace does not say what was waited for.
    Wait,
}

/// A period that everything after it waited for: one link of a critical chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Link {
    /// The container. `None` for the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// What the time was spent on.
    pub kind: LinkKind,
    /// The beginning, in milliseconds since the first entry of the trace.
    pub from_ms: u64,
    /// The end, in milliseconds since the first entry of the trace.
    pub to_ms: u64,
    /// The link as text.
    pub text: String,
}

impl Link {
    /// The length of the link.
    pub fn ms(&self) -> u64 {
        self.to_ms - self.from_ms
    }
}

/// How a pod started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Start {
    /// Whether all containers became ready, or completed if they are init containers.
    pub complete: bool,
    /// The last container to do so, or the one that did not.
    pub last: String,
    /// When it did, or when the trace or the start ended.
    pub took_ms: u64,
    /// Why it did not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stuck: Option<String>,
    /// The links that it waited for, in order.
    pub chain: Vec<Link>,
}

/// How a pod stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Stop {
    /// Why it stopped.
    pub cause: String,
    /// What failed, if the pod ended by itself and failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
    /// When the stop began.
    pub at_ms: u64,
    /// The grace period.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace_ms: Option<u64>,
    /// The time from the beginning of the stop to the last exit.
    pub took_ms: u64,
    /// The containers that were killed.
    pub killed: Vec<String>,
    /// The links that used the time, in order.
    pub chain: Vec<Link>,
}

/// The analysis of a pod's trace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Analysis {
    /// The name of the pod.
    pub pod: String,
    /// The workload it is shown with, such as `Job/report`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workload: Option<String>,
    /// When its trace begins, in milliseconds since the first entry of its workload. It is 0 for a pod that
    /// is analysed alone. All other times are relative to the first entry of the pod.
    pub began_ms: u64,
    /// How it started. `None` if nothing started.
    pub start: Option<Start>,
    /// How it stopped. `None` if it did not stop.
    pub stop: Option<Stop>,
    /// What would make it faster.
    pub advice: Vec<Advice>,
}

/// Analyses the trace of the first pod in `entries`.
///
/// # Errors
/// An entry lacks a field that every entry has.
pub fn analyze(entries: &[Record]) -> Result<Analysis, TimelineError> {
    let pod = entries.first().map(|e| e.pod.clone()).unwrap_or_default();
    let trace = Trace::new(lines(entries, None)?);
    let (start, stop) = (start::critical_path(&trace), stop::stop_path(&trace));
    let advice = advice::advise(&trace, start.as_ref(), stop.as_ref());
    Ok(Analysis { pod, workload: None, began_ms: 0, start, stop, advice })
}

/// Analyses a pod of a workload whose first entry is at `zero_ms`.
///
/// # Errors
/// An entry lacks a field that every entry has.
pub fn analyze_since(entries: &[Record], zero_ms: u64) -> Result<Analysis, TimelineError> {
    let began_ms = lines(entries, Some(zero_ms))?.first().map_or(0, |line| line.at);
    Ok(Analysis { began_ms, ..analyze(entries)? })
}

/// The analyses of an events file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Analyses {
    /// The workloads that have several pods, or waits between them.
    pub workloads: Vec<WorkloadAnalysis>,
    /// All pods. Those of a workload are next to each other.
    pub pods: Vec<Analysis>,
}

/// Analyses all workloads and pods of a file.
///
/// # Errors
/// An entry lacks a field that every entry has.
pub fn analyze_all(events: &Events) -> Result<Analyses, TimelineError> {
    let mut all = Analyses::default();
    for group in events.groups() {
        match group {
            Group::Pod(pod) => all.pods.push(analyze(&pod.entries)?),
            Group::Workload(workload, pods) => {
                let found = analyze_workload(workload, &pods)?;
                for pod in pods {
                    let analysis = analyze_since(&pod.entries, found.zero_ms)?;
                    all.pods.push(Analysis { workload: Some(found.workload.clone()), ..analysis });
                }
                all.workloads.push(found);
            }
        }
    }
    Ok(all)
}

/// A trace, prepared for lookups.
struct Trace<'a> {
    /// All entries except output. Output is most of a long trace, and never a link.
    lines: Vec<Line<'a>>,
    /// The containers, in the order of their first entries.
    containers: Vec<&'a str>,
    /// The time of the last line.
    end: u64,
}

impl<'a> Trace<'a> {
    fn new(mut lines: Vec<Line<'a>>) -> Trace<'a> {
        let mut containers = Vec::new();
        for name in lines.iter().filter_map(|l| l.container) {
            if !containers.contains(&name) {
                containers.push(name);
            }
        }
        let end = lines.iter().map(|l| l.at).max().unwrap_or(0);
        lines.retain(|l| !l.is(Kind::Log));
        Trace { lines, containers, end }
    }

    /// The events of a container, in order.
    fn of_container(&self, container: &str) -> impl DoubleEndedIterator<Item = &Line<'a>> {
        self.lines.iter().filter(move |l| l.container == Some(container))
    }

    /// The last of some events of a container, at or before a moment.
    fn last(&self, container: &str, events: &[Kind], until: u64) -> Option<&Line<'a>> {
        self.of_container(container).rev().find(|l| l.at <= until && events.contains(&l.event.kind()))
    }

    /// The events of this kind that concern the pod as a whole.
    fn pod(&self, event: Kind) -> impl Iterator<Item = &Line<'a>> {
        self.lines.iter().filter(move |l| l.container.is_none() && l.is(event))
    }

    fn stop_begun(&self) -> Option<&Line<'a>> {
        self.pod(Kind::StopBegun).next()
    }
}

/// A chain in progress, with the latest link first. Each link ends where the next one begins.
struct Walk {
    links: Vec<Link>,
    /// The time after this moment is already explained.
    at: u64,
}

impl Walk {
    fn from(at: u64) -> Walk {
        Walk { links: Vec::new(), at }
    }

    /// Adds a link for the time back to `from`.
    fn back(&mut self, container: Option<&str>, kind: LinkKind, from: u64, text: String) {
        if from < self.at {
            let container = container.map(str::to_owned);
            self.links.push(Link { container, kind, from_ms: from, to_ms: self.at, text });
            self.at = from;
        }
    }

    /// Returns the chain in order of time. The unexplained time before it counts as waiting.
    fn finish(mut self, from: u64, container: &str) -> Vec<Link> {
        self.back(Some(container), LinkKind::Wait, from, format!("`{container}` waits"));
        self.links.reverse();
        self.links
    }
}
