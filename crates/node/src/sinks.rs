//! Destinations of pod events: the output, the events file, the status file, and the registry.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use outrigger_agent::clock::rfc3339_nanos;
use outrigger_agent::event::{AgentEvent, AgentEventKind, EndCause, Failure, PodResult, StatusUpdate};
use outrigger_agent::log::lost_text;
use outrigger_agent::{PodContext, PodUid};
use outrigger_lifecycle::trace::{self, ContainerEvent, Entry, Record, TraceEvent};
use outrigger_lifecycle::{Observation, forgotten_sidecars, only_forgotten_run};
use outrigger_view::hint::{Hints, PortHolder, Subject, kept_running};
use outrigger_view::output::Output;
use outrigger_view::words::tell;

use crate::control::{PodRegistry, StartFault};
use crate::status_file::{EventsFile, StatusFile};

/// The destinations of a run.
pub(crate) struct Sinks {
    pub(crate) output: Output,
    pub(crate) events: EventsFile,
    pub(crate) status_file: StatusFile,
    pub(crate) registry: PodRegistry,
    pub(crate) hints: Hints,
    /// The pods that have not ended.
    pub(crate) pods: BTreeMap<PodUid, Member>,
}

/// A pod of the run.
pub(crate) struct Member {
    /// The pod's number, used by other commands.
    pub(crate) number: usize,
    pub(crate) context: Arc<PodContext>,
    pub(crate) hints: Hints,
    /// Pulls in progress: when each started, and the second of the last progress message.
    pulls: BTreeMap<usize, (Instant, u64)>,
    /// Well-known sidecars that are not marked as such, until the message that they keep the pod running is
    /// shown.
    forgotten: Vec<usize>,
}

impl Member {
    pub(crate) fn new(number: usize, context: Arc<PodContext>, hints: Hints) -> Self {
        let forgotten = forgotten_sidecars(context.pod(), context.plan());
        Member { number, context, hints, pulls: BTreeMap::new(), forgotten }
    }
}

/// Events that concern the workloads of a run.
pub(crate) enum Happened {
    /// A pod's status changed.
    Status(usize, StatusUpdate),
    /// A pod has ended and was removed.
    Ended(usize, PodResult, EndCause),
    /// A retriable failure, if the run stops at failures.
    Failed(usize, Failure),
}

impl Sinks {
    /// Forwards an event to its destinations. Returns an event for the workloads, if any.
    pub(crate) fn handle(&mut self, event: AgentEvent) -> Option<Happened> {
        let member = self.pods.get_mut(&event.pod)?;
        let number = member.number;
        let name = |container: usize| member.context.containers()[container].name.as_str();
        match event.kind {
            AgentEventKind::Trace { entry, exact } => {
                self.trace(&event.pod, Arc::unwrap_or_clone(entry), exact);
                None
            }
            AgentEventKind::Observed(snapshot) => {
                if let Some(text) = member.kept_running(&snapshot.observation) {
                    self.output.warn(&text);
                }
                self.output.observe(number, &snapshot.observation, &snapshot.waits);
                self.registry.observe(number, snapshot.observation, snapshot.waits);
                None
            }
            AgentEventKind::Status(update) => {
                if self.status_file.is_wanted() {
                    let object = update.object(&member.context);
                    self.status_file.put(number, &object, member.context.lifecycle_types());
                }
                Some(Happened::Status(number, update))
            }
            AgentEventKind::Updated { pod, observation } => {
                member.context = pod.clone();
                self.registry.update(number, pod, observation);
                None
            }
            AgentEventKind::Addresses(ips) => {
                self.registry.addresses(number, ips);
                None
            }
            AgentEventKind::Instance { container, id } => {
                self.registry.runs(number, container, id);
                None
            }
            AgentEventKind::Pulling { container, reference, done_bytes, total_bytes } => {
                self.output.pull(number, container, done_bytes, total_bytes);
                if !self.output.is_live()
                    && let Some(text) = member.pulling(container, &reference, done_bytes, total_bytes)
                {
                    self.output.note(&text);
                }
                None
            }
            AgentEventKind::Log(batch) => {
                let pod = member.context.name();
                self.output.log(pod, name(batch.container), &batch.lines, batch.room);
                None
            }
            AgentEventKind::LogsLost { container, files } => {
                self.output.note(&lost_text(name(container), files));
                None
            }
            AgentEventKind::Failed(failure) => Some(Happened::Failed(number, failure)),
            AgentEventKind::Ended { result, cause } => {
                self.status_file.is_over(number);
                self.registry.leave(number);
                self.pods.remove(&event.pod);
                Some(Happened::Ended(number, result, cause))
            }
        }
    }

    /// Writes an entry of a pod's trace, with a hint if it is a failure.
    fn trace(&self, pod: &PodUid, entry: Entry, exact: Duration) {
        let Some(Member { number, context, hints, .. }) = self.pods.get(pod) else { return };
        let container = entry.container;
        let hint = hints.on(subject(context), &entry);
        let mut record = entry.into_record(context.plan(), context.name(), rfc3339_nanos(exact));
        (record.manifest, record.hint) = hint;
        match &record.event {
            TraceEvent::Pod(trace::PodEvent::SandboxReady)
            | TraceEvent::Container(ContainerEvent::Started { .. }) => {
                self.registry.start_fault(*number, container, None);
            }
            event => {
                if let Some(outlook) = event.outlook() {
                    let text = start_fault(record.clone());
                    self.registry.start_fault(*number, container, Some(StartFault { text, outlook }));
                }
            }
        }
        if self.events.is_wanted() {
            self.events.append(&format!("{}\n", record.to_json()));
        }
        self.output.entry(*number, exact, &record);
    }
}

/// Why a pod cannot start. The time of the next attempt is left out, so that the text is always the same.
fn start_fault(mut record: Record) -> String {
    record.event.remove_retry();
    let container = record.container.as_ref().map(|name| format!(" {name}")).unwrap_or_default();
    let who = format!("{}{container}", record.pod);
    let Some(told) = tell(&record) else { return who };
    let hint = told.hint.map(|hint| format!("\n  {hint}")).unwrap_or_default();
    format!("{who} {}{hint}", told.text)
}

impl Member {
    /// Returns a message, once, if only a well-known sidecar that is not marked as such keeps the pod
    /// running.
    fn kept_running(&mut self, observation: &Observation) -> Option<String> {
        let plan = self.context.plan();
        if self.forgotten.is_empty() || !only_forgotten_run(plan, observation, &self.forgotten) {
            return None;
        }
        let forgotten = std::mem::take(&mut self.forgotten);
        let names: Vec<&str> = forgotten.iter().map(|&i| plan.containers[i].name.as_str()).collect();
        Some(kept_running(self.context.name(), &names))
    }

    /// Reports the progress of a pull, once per second.
    fn pulling(
        &mut self,
        container: usize,
        reference: &str,
        done_bytes: u64,
        total_bytes: Option<u64>,
    ) -> Option<String> {
        let (began, told) = self.pulls.entry(container).or_insert_with(|| (Instant::now(), 0));
        let second = began.elapsed().as_secs();
        if std::mem::replace(told, second) >= second {
            return None;
        }
        let mib = |bytes: u64| bytes >> 20;
        let total = total_bytes.map(|total| format!(" of {}", mib(total))).unwrap_or_default();
        Some(format!("pulling {reference}: {}{total} MiB", mib(done_bytes)))
    }
}

/// The input for hints about a pod's failures.
pub(crate) fn subject(pod: &PodContext) -> Subject<'_> {
    Subject {
        pod: pod.pod(),
        containers: pod.containers(),
        plan: pod.plan(),
        companions: pod.companions(),
        port_holder,
    }
}

fn port_holder(port: u16) -> Option<PortHolder> {
    let (pid, name) = outrigger_runtime::listen::holder(port)?;
    let is_this = pid == std::process::id();
    Some(if is_this { PortHolder::ThisProcess } else { PortHolder::Other { pid, name } })
}
