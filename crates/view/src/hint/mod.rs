//! Hints on failures: the line of the manifest that caused a failure, and how to fix it.
//!
//! The input is the pod and a trace entry. The result is a place and a sentence. Both become fields of the
//! entry, so that the terminal, the events file and the closing summary agree.

mod image;
mod port;
mod probe;
mod program;
mod references;
mod start;
mod volume;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use outrigger_lifecycle::annotations::SIDECARS;
use outrigger_lifecycle::trace::{ContainerEvent, Entry, PodEvent, TraceEvent};
use outrigger_lifecycle::{Companions, FieldPath, HookKind, Plan, ProbeOutcome, SandboxCause, Verdict};
use outrigger_manifest::{Origin, SourceFile};

use k8s_openapi::api::core::v1::{Container, Pod};

/// A hint on one failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hint {
    /// The place in the pod. `None` if no line of the manifest causes the failure.
    path: Option<FieldPath>,
    /// How to fix it. Empty if the message already says it and only the place is missing.
    text: String,
}

impl Hint {
    fn at(path: FieldPath, text: impl Into<String>) -> Hint {
        Hint { path: Some(path), text: text.into() }
    }

    fn nowhere(text: impl Into<String>) -> Hint {
        Hint { path: None, text: text.into() }
    }
}

/// The pod a failure is about.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// Its containers, in the order of the plan.
    pub containers: &'a [Container],
    /// Its plan.
    pub plan: &'a Plan,
    /// The objects it may refer to.
    pub companions: &'a Companions,
    /// Finds the process that listens on a TCP port of this machine.
    pub port_holder: fn(u16) -> Option<PortHolder>,
}

/// A process that listens on a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PortHolder {
    /// The process that runs the pod listens for another of its pods.
    ThisProcess,
    /// Another process.
    Other {
        /// The process id.
        pid: u32,
        /// The name of its program.
        name: String,
    },
}

/// The hints of a run. Each hint is shown once, even if several pods or restarts cause it.
#[derive(Debug, Clone, Default)]
pub struct Hints {
    sources: Arc<[SourceFile]>,
    shown: Arc<Mutex<BTreeSet<(Option<String>, Option<String>)>>>,
    /// The place of the pod in the manifests.
    origin: Option<Arc<Origin>>,
}

impl Hints {
    /// Creates the hints on pods from these manifests.
    pub fn new(sources: Vec<SourceFile>) -> Hints {
        Hints { sources: sources.into(), ..Hints::default() }
    }

    /// The hints of one pod.
    pub fn of_pod(&self, origin: &Origin) -> Hints {
        Hints { origin: Some(Arc::new(origin.clone())), ..self.clone() }
    }

    /// The hint on a failure as file and line, and how to fix it. `None` if it was already shown.
    pub fn on(&self, pod: Subject<'_>, entry: &Entry) -> (Option<String>, Option<String>) {
        let Some(hint) = hint(pod, entry) else { return (None, None) };
        let place = hint.path.as_ref().and_then(|path| self.place(path));
        let text = Some(hint.text).filter(|text| !text.is_empty());
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        match shown.insert((place.clone(), text.clone())) {
            true => (place, text),
            false => (None, None),
        }
    }

    /// Why a pod cannot be created, followed by the hint.
    pub fn of_sandbox(&self, pod: Subject<'_>, message: &str, cause: Option<SandboxCause>) -> String {
        let hint = sandbox(pod, cause);
        let place = hint.path.as_ref().and_then(|path| self.place(path));
        let parts: Vec<String> =
            place.into_iter().chain(Some(hint.text)).filter(|part| !part.is_empty()).collect();
        if parts.is_empty() { message.to_owned() } else { format!("{message}\n  {}", parts.join(": ")) }
    }

    /// A place in the pod, as `FILE:LINE`.
    fn place(&self, path: &FieldPath) -> Option<String> {
        let span = self.origin.as_ref()?.point(path);
        let source = self.sources.get(span.file)?;
        Some(format!("{}:{}", source.name, source.position(span.start).line))
    }
}

/// The message for a pod whose work is done, but which sidecars without a mark keep running.
pub fn kept_running(pod: &str, sidecars: &[&str]) -> String {
    let names: Vec<String> = sidecars.iter().map(|name| format!("`{name}`")).collect();
    let (keeps, one) = if names.len() == 1 { ("keeps", "a sidecar") } else { ("keep", "sidecars") };
    format!(
        "pod `{pod}` has done its work, but {} {keeps} it running: not marked as {one}\n  \
         write `{SIDECARS}: {}` into the annotations of the pod or template,\n  \
         or move it to `initContainers` and add `restartPolicy: Always`; `outrigger stop` ends the pod now",
        names.join(" and "),
        sidecars.join(", ")
    )
}

fn hint(pod: Subject<'_>, entry: &Entry) -> Option<Hint> {
    let plan = pod.plan;
    let event = match &entry.event {
        TraceEvent::Pod(PodEvent::SandboxFailed { cause, .. }) => return Some(sandbox(pod, *cause)),
        TraceEvent::Pod(_) => return None,
        TraceEvent::Container(event) => event,
    };
    let index = entry.container?;
    let (container, path) = (&pod.containers[index], plan.containers[index].place.path());
    match event {
        ContainerEvent::PullFailed { cause, .. } => Some(image::hint(pod, container, path, *cause)),
        ContainerEvent::StartFailed { cause, .. } => Some(
            start::hint(pod, container, &path, *cause)
                .or_else(|| references::below(pod, &path))
                .unwrap_or_else(|| Hint::at(path, String::new())),
        ),
        ContainerEvent::Exited { code, reason, killed_for, .. } => {
            program::hint(container, path, *code, *reason, *killed_for)
        }
        ContainerEvent::Probe { kind, cause, verdict: Some(Verdict::Failure), .. } => {
            probe::hint(plan, index, container, path, *kind, *cause)
        }
        ContainerEvent::Probe { kind, outcome: ProbeOutcome::Error, .. } => {
            probe::not_run(plan, index, container, path, *kind)
        }
        ContainerEvent::StopSignalIgnored { signal, .. } => Some(Hint::at(
            path,
            format!(
                "the first process of a container ignores SIG{signal} unless it handles it: handle it in the program (in a \
                 shell script: `trap 'exit 0' {signal}`), set lifecycle.stopSignal to a signal it handles, or lower \
                 terminationGracePeriodSeconds"
            ),
        )),
        ContainerEvent::HookEnded { hook, error: Some(_), .. } => {
            let (field, means) = match hook {
                HookKind::PostStart => (
                    "postStart",
                    "a container whose postStart hook fails is killed; make the hook exit with code 0",
                ),
                HookKind::PreStop | HookKind::FirstPreStop => ("preStop", "the container is stopped anyway"),
            };
            Some(Hint::at(path.field("lifecycle").field(field), means))
        }
        // These are not failures, or another entry reports them.
        _ => None,
    }
}

/// The hint on a pod that cannot be created.
fn sandbox(pod: Subject<'_>, cause: Option<SandboxCause>) -> Hint {
    match cause {
        Some(SandboxCause::HostPortInUse { port }) => port::in_use(pod, port),
        Some(SandboxCause::NoSuchHostIp { port }) => port::not_of_this_machine(pod, port),
        Some(SandboxCause::HostPortDenied { port }) => port::denied(pod, port),
        Some(SandboxCause::HostPortFailed { port }) => port::refused(pod, port),
        Some(SandboxCause::HostPathMissing { volume }) => volume::missing(pod, volume),
        Some(SandboxCause::HostPathDenied { volume }) => volume::denied(volume),
        Some(SandboxCause::SysctlRefused { sysctl }) => Hint::at(
            FieldPath::spec("securityContext").field("sysctls").index(sysctl),
            "use a sysctl that this machine has below /proc/sys, and a value that it accepts",
        ),
        Some(SandboxCause::NoSuchFsGroup) => Hint::at(
            FieldPath::spec("securityContext").field("fsGroup"),
            "use a group that exists, remove it, or run with sudo",
        ),
        Some(SandboxCause::VolumeUnsupported { volume }) => volume::unsupported(volume),
        // The message already says what is missing and how to get it.
        Some(SandboxCause::Unsupported) => Hint::nowhere(""),
        Some(SandboxCause::HostPathType { volume }) => volume::of_another_type(volume),
        Some(SandboxCause::VolumeFailed { volume }) => {
            references::below(pod, &FieldPath::spec("volumes")).unwrap_or_else(|| volume::failed(pod, volume))
        }
        None => references::below(pod, &FieldPath::spec("volumes")).unwrap_or_else(|| {
            Hint::nowhere("run `outrigger doctor` to see what this machine is missing and how to fix it")
        }),
    }
}

#[cfg(test)]
mod tests;
