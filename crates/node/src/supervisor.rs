//! Manages the pods of one run: creates them for its workloads and runs them on the agent.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use outrigger_agent::event::{EndCause, Events, Scope};
use outrigger_agent::options::{NewPod, OnFailure, PodOptions, StatusUpdates};
use outrigger_agent::state::StopRequest;
use outrigger_agent::{Agent, PodContext, PodUid, SandboxError};
use outrigger_lifecycle::trace::WorkloadRecord;
use outrigger_lifecycle::{CannotRestart, Companions};
use outrigger_runtime::Runtime;
use outrigger_view::hint::Hints;
use serde_json::Value;

use crate::control::{OfRun, OrderError, RestartOrder};
use crate::pod_check::CheckError;
use crate::sinks::{Happened, Member, Sinks, subject};
use crate::status_file::LifecycleTypes;
use crate::work::PlannedPod;
use crate::workload::{Pods, WorkloadError};

/// What happens to a run's pods after they have ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Afterwards {
    /// They are removed, for a run in the foreground.
    Forget,
    /// Their status and logs are kept until they are removed, for a run on a node.
    Keep,
}

/// Options of a supervisor.
pub(crate) struct SupervisorOptions {
    /// The run's id.
    pub(crate) run: String,
    /// The names of its manifests.
    pub(crate) files: Vec<String>,
    pub(crate) pods: PodOptions,
    pub(crate) companions: Companions,
    /// The number of the next pod; shared by all runs of a node.
    pub(crate) numbers: Arc<AtomicUsize>,
    pub(crate) on_failure: OnFailure,
    pub(crate) afterwards: Afterwards,
}

/// The pods of one run.
pub(crate) struct Supervisor<R> {
    agent: Agent<R>,
    events: Events,
    run: Arc<str>,
    files: Vec<String>,
    options: Arc<PodOptions>,
    companions: Arc<Companions>,
    numbers: Arc<AtomicUsize>,
    on_failure: OnFailure,
    afterwards: Afterwards,
    pub(crate) sinks: Sinks,
    /// Whether an internal error occurred.
    pub(crate) broken: bool,
}

/// The UID of a run's pod.
fn pod_uid(run: &str, number: usize) -> PodUid {
    PodUid::new(format!("{run}-{number}"))
}

/// The number in a pod's UID.
pub(crate) fn pod_number(uid: &PodUid) -> Option<usize> {
    uid.as_str().rsplit_once('-')?.1.parse().ok()
}

impl<R: Runtime> Supervisor<R> {
    pub(crate) fn new(agent: Agent<R>, options: SupervisorOptions, sinks: Sinks) -> Self {
        let SupervisorOptions { run, files, pods, companions, numbers, on_failure, afterwards } = options;
        let run: Arc<str> = run.into();
        Supervisor {
            events: agent.subscribe(Scope::Group(run.clone())),
            agent,
            run,
            files,
            options: Arc::new(pods),
            companions: Arc::new(companions),
            numbers,
            on_failure,
            afterwards,
            sinks,
            broken: false,
        }
    }

    fn new_pod(&self, number: usize, pod: &PlannedPod, status: StatusUpdates) -> NewPod {
        let status = match self.sinks.status_file.is_wanted() {
            true => StatusUpdates::Emitted,
            false => status,
        };
        NewPod {
            uid: pod_uid(&self.run, number),
            group: self.run.clone(),
            input: pod.manifest.input.clone(),
            plan: pod.plan.clone(),
            companions: self.companions.clone(),
            options: self.options.clone(),
            status,
            on_failure: self.on_failure,
        }
    }

    /// Checks whether a pod can be run at all, as if it were the next one. If the pod gets no user namespace
    /// although the run enables them, returns the reason, with a name for this pod and all similar ones.
    pub(crate) fn check(&self, pod: &PlannedPod) -> Result<Option<(String, String)>, CheckError> {
        let number = self.numbers.load(Ordering::Relaxed);
        let prepared = self.agent.prepare(self.new_pod(number, pod, StatusUpdates::Omitted))?;
        let context = prepared.context();
        let hints = self.sinks.hints.of_pod(&pod.manifest.origin);
        let failed = |error: SandboxError| {
            let explained = hints.of_sandbox(subject(context), &error.to_string(), error.cause());
            CheckError::Sandbox { explained, error: Box::new(error) }
        };
        self.agent.check(&prepared).map_err(failed)?;
        if !self.agent.runtime().gives_user_namespaces() {
            return Ok(None);
        }
        let origin = &pod.manifest.origin;
        let name = match origin.kind {
            "Pod" => origin.name.clone(),
            kind => format!("{kind}/{}", origin.name),
        };
        Ok(context.left_out_of_user_namespaces().map(|why| (name, why)))
    }

    /// Runs a pod. The agent resumes it if another process has left its state.
    fn run_pod(
        &mut self,
        number: usize,
        pod: &PlannedPod,
        status: StatusUpdates,
    ) -> Result<(), WorkloadError> {
        let context = self.agent.add(self.agent.prepare(self.new_pod(number, pod, status))?)?;
        self.join(number, &context, pod);
        let hints = self.sinks.hints.of_pod(&pod.manifest.origin);
        self.sinks.pods.insert(context.uid().clone(), Member::new(number, context, hints));
        Ok(())
    }

    /// Registers an added pod in the outputs.
    fn join(&mut self, number: usize, context: &Arc<PodContext>, pod: &PlannedPod) {
        let origin = &pod.manifest.origin;
        let workload = (origin.kind != "Pod").then(|| format!("{}/{}", origin.kind, origin.name));
        let run = match self.afterwards {
            Afterwards::Forget => None,
            Afterwards::Keep => Some(OfRun { id: self.run.to_string(), files: self.files.clone() }),
        };
        self.sinks.output.join(context.name(), workload.clone(), context.plan());
        self.sinks.registry.join(number, context.clone(), workload, run);
    }

    /// Stops a pod because the machine is shutting down.
    pub(crate) fn shut_down(&self, number: usize, grace_ms: u64) {
        self.agent.stop(&pod_uid(&self.run, number), StopRequest::NodeShutdown { grace_ms });
    }

    /// Restarts one container of a pod, or all of them in order. If the pod does not exist, the order is
    /// dropped, which the client sees as an error.
    pub(crate) fn restart(&self, order: RestartOrder) {
        let RestartOrder { pod, container, reply } = order;
        let reply = move |result: Result<(), CannotRestart>| {
            // The client may be gone.
            let _ = reply.send(result.map_err(OrderError::from));
        };
        self.agent.restart(&pod_uid(&self.run, pod), container, Box::new(reply));
    }

    /// Replaces the companions and sources of future pods after the manifests have changed.
    pub(crate) fn now_reads(&mut self, companions: Companions, hints: Hints, files: Vec<String>) {
        self.files = files;
        self.companions = Arc::new(companions);
        self.sinks.hints = hints;
    }

    /// The grace period of a requested stop; `None` means each pod's own.
    pub(crate) fn grace_ms(&self) -> Option<u64> {
        self.options.grace_ms
    }

    /// Stops all pods.
    pub(crate) fn stop_all(&self, grace_ms: Option<u64>) {
        for uid in self.sinks.pods.keys() {
            self.agent.stop(uid, StopRequest::Delete { grace_ms });
        }
    }

    /// Forwards events to their destinations until one concerns the workloads. Waits forever if none does.
    pub(crate) async fn next(&mut self) -> Happened {
        loop {
            let Some(event) = self.events.next().await else { return std::future::pending().await };
            let uid = event.pod.clone();
            let Some(happened) = self.sinks.handle(event) else { continue };
            if let Happened::Ended(_, _, cause) = &happened {
                self.broken |= *cause == EndCause::WorkerFailed;
                if self.afterwards == Afterwards::Forget {
                    self.agent.remove(&uid);
                }
            }
            return happened;
        }
    }
}

impl<R: Runtime> Pods for Supervisor<R> {
    fn add(&mut self, pod: PlannedPod, status: StatusUpdates) -> Result<usize, WorkloadError> {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        self.run_pod(number, &pod, status)?;
        Ok(number)
    }

    fn resume(&mut self, number: usize, pod: PlannedPod, status: StatusUpdates) -> Result<(), WorkloadError> {
        self.run_pod(number, &pod, status)?;
        // This is the only line about the state before. Later changes are reported as usual.
        self.sinks.output.note(&format!("adopted {} from the previous node process", pod.manifest.name()));
        Ok(())
    }

    fn show(&mut self, number: usize, pod: PlannedPod) {
        let new = self.new_pod(number, &pod, StatusUpdates::Omitted);
        // If no state is left, there is nothing to show.
        let Ok(prepared) = self.agent.prepare(new) else { return };
        let Ok(context) = self.agent.add_finished(prepared) else { return };
        self.join(number, &context, &pod);
        if let Some(snapshot) = self.agent.state(context.uid()).and_then(|state| state.snapshot) {
            self.sinks.registry.observe(number, snapshot.observation, snapshot.waits);
        }
        self.sinks.registry.leave(number);
    }

    fn update(&mut self, number: usize, pod: PlannedPod) -> Result<(), WorkloadError> {
        let new = self.new_pod(number, &pod, StatusUpdates::Omitted);
        let uid = new.uid.clone();
        self.agent.update(self.agent.prepare(new)?)?;
        if let Some(member) = self.sinks.pods.get_mut(&uid) {
            member.hints = self.sinks.hints.of_pod(&pod.manifest.origin);
        }
        Ok(())
    }

    fn stop(&mut self, number: usize, grace_ms: Option<u64>) {
        self.agent.stop(&pod_uid(&self.run, number), StopRequest::Delete { grace_ms });
    }

    fn record(&mut self, exact: Duration, record: &WorkloadRecord) {
        if self.sinks.events.is_wanted() {
            self.sinks.events.append(&format!("{}\n", record.to_json()));
        }
        self.sinks.output.workload_entry(exact, record);
    }

    fn wants_status(&self) -> bool {
        self.sinks.status_file.is_wanted()
    }

    fn publish(&mut self, object: usize, workload: &Value, types: &LifecycleTypes) {
        self.sinks.status_file.put_object(object, workload, types);
    }
}
