//! What the start and the stop of a pod really waited for.
//!
//! Works on traces alone. From the last container to become ready, and from the last to exit, it walks backwards: to
//! what let it happen, to what let that happen, until the beginning. What it passes is the critical chain: only
//! shortening one of its links makes the pod faster.

mod advice;
mod start;
mod stop;
#[cfg(test)]
mod tests;
mod text;

use outrigger_lifecycle::trace::{Kind, Record, TraceEvent};
use serde::Serialize;

use crate::timeline::{Line, TimelineError, lines};

pub use advice::Advice;
pub use text::text;

/// What a link of a chain was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinkKind {
    /// The sandbox was made.
    Sandbox,
    /// The image was pulled.
    Pull,
    /// A failed pull or start was not tried again yet.
    Retry,
    /// The container was made and its program begun.
    Start,
    /// A postStart hook ran.
    PostStart,
    /// The startup probe had not passed.
    StartupProbe,
    /// The readiness probe had not passed.
    ReadinessProbe,
    /// Ran to the end that others waited for.
    Run,
    /// An instance that did not last.
    Failed,
    /// Was not started again yet after an exit.
    BackOff,
    /// A preStop hook ran.
    PreStop,
    /// From TERM to the exit.
    Term,
    /// Nothing in the trace says what for.
    Wait,
}

/// A stretch of time that everything after it waited for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Link {
    /// Whose; `None` for the pod's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// What it was.
    pub kind: LinkKind,
    /// Since the first entry of the trace.
    pub from_ms: u64,
    /// Since the first entry of the trace.
    pub to_ms: u64,
    /// In words.
    pub text: String,
}

impl Link {
    /// How long it took.
    pub fn ms(&self) -> u64 {
        self.to_ms - self.from_ms
    }
}

/// How a pod started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Start {
    /// Whether everything came up.
    pub complete: bool,
    /// The container that came up last, or the one that did not.
    pub last: String,
    /// When it did, or when the trace or the start ended.
    pub took_ms: u64,
    /// Why it did not come up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stuck: Option<String>,
    /// What that waited for, in order.
    pub chain: Vec<Link>,
}

/// How a pod stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Stop {
    /// Why it stopped.
    pub cause: String,
    /// When it began.
    pub at_ms: u64,
    /// What it was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace_ms: Option<u64>,
    /// What it took, up to the last exit.
    pub took_ms: u64,
    /// Containers that were killed.
    pub killed: Vec<String>,
    /// Who used the time, in order.
    pub chain: Vec<Link>,
}

/// What there is to say about a pod's trace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Analysis {
    /// The pod.
    pub pod: String,
    /// How it started, if anything did.
    pub start: Option<Start>,
    /// How it stopped, if it did.
    pub stop: Option<Stop>,
    /// What would make it faster.
    pub advice: Vec<Advice>,
}

/// Analyses the trace of one pod, the first in `entries`.
///
/// # Errors
/// An entry lacks what every entry has.
pub fn analyze(entries: &[Record]) -> Result<Analysis, TimelineError> {
    let pod = entries.first().map(|e| e.pod.clone()).unwrap_or_default();
    let trace = Trace::new(lines(entries)?);
    let (start, stop) = (start::of(&trace), stop::of(&trace));
    let advice = advice::of(&trace, start.as_ref(), stop.as_ref());
    Ok(Analysis { pod, start, stop, advice })
}

/// A trace to look things up in.
struct Trace<'a> {
    /// What a chain can be made of.
    lines: Vec<Line<'a>>,
    /// In the order they appear.
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
        lines.retain(|l| can_be_waited_for(l.event));
        Trace { lines, containers, end }
    }

    /// What happened to a container, in order.
    fn of(&self, container: &str) -> impl DoubleEndedIterator<Item = &Line<'a>> {
        self.lines.iter().filter(move |l| l.container == Some(container))
    }

    /// The last of some events of a container, not after a moment.
    fn last(&self, container: &str, events: &[Kind], until: u64) -> Option<&Line<'a>> {
        self.of(container).rev().find(|l| l.at <= until && events.contains(&l.event.kind()))
    }

    /// What happened to the pod itself.
    fn pod(&self, event: Kind) -> impl Iterator<Item = &Line<'a>> {
        self.lines.iter().filter(move |l| l.container.is_none() && l.is(event))
    }

    fn stop_begun(&self) -> Option<&Line<'a>> {
        self.pod(Kind::StopBegun).next()
    }
}

/// Whether an event can be a link of a chain or say why there is one: what [`start`], [`stop`] and [`advice`] look up.
fn can_be_waited_for(event: &TraceEvent) -> bool {
    match event {
        TraceEvent::SandboxCreating { .. }
        | TraceEvent::SandboxReady
        | TraceEvent::StopBegun { .. }
        | TraceEvent::Pulling
        | TraceEvent::Pulled
        | TraceEvent::PullFailed { .. }
        | TraceEvent::Starting { .. }
        | TraceEvent::Started { .. }
        | TraceEvent::StartFailed { .. }
        | TraceEvent::StartupPassed
        | TraceEvent::Ready
        | TraceEvent::Exited { .. }
        | TraceEvent::Probe { .. }
        | TraceEvent::HookStarted { .. }
        | TraceEvent::HookEnded { .. }
        | TraceEvent::HookCancelled { .. }
        | TraceEvent::Waiting { .. }
        | TraceEvent::Terminating { .. }
        | TraceEvent::Killing { .. } => true,
        TraceEvent::Planned { .. }
        | TraceEvent::SandboxFailed { .. }
        | TraceEvent::SandboxLost
        | TraceEvent::Phase { .. }
        | TraceEvent::StopShortened { .. }
        | TraceEvent::RerunBegun { .. }
        | TraceEvent::Rerun
        | TraceEvent::Finished { .. }
        | TraceEvent::ImageChanged
        | TraceEvent::Unready
        | TraceEvent::Lost { .. }
        | TraceEvent::HookOutput { .. }
        | TraceEvent::KillBegun { .. }
        | TraceEvent::StopSignalIgnored { .. }
        | TraceEvent::Log { .. } => false,
    }
}

/// A chain while it is walked: latest link first, each ending where the walk stands.
struct Walk {
    links: Vec<Link>,
    /// Everything after this moment is explained.
    at: u64,
}

impl Walk {
    fn from(at: u64) -> Walk {
        Walk { links: Vec::new(), at }
    }

    /// Explains the time back to `from`.
    fn back(&mut self, container: Option<&str>, kind: LinkKind, from: u64, text: String) {
        if from < self.at {
            let container = container.map(str::to_owned);
            self.links.push(Link { container, kind, from_ms: from, to_ms: self.at, text });
            self.at = from;
        }
    }

    /// The chain, forwards; what is left before it was waiting.
    fn finish(mut self, from: u64, container: &str) -> Vec<Link> {
        self.back(Some(container), LinkKind::Wait, from, format!("`{container}` waits"));
        self.links.reverse();
        self.links
    }
}
