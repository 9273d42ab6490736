//! Hints on failures: where the manifest asks for what went wrong, and what to do about it.
//!
//! The pod and a trace entry go in, a place and a sentence come out; both become fields of the entry, so that the
//! terminal, the events file and the closing summary say the same.

mod image;
mod port;
mod probe;
mod program;
mod references;
mod volume;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use outrigger_lifecycle::trace::Entry;
use outrigger_lifecycle::{FieldPath, Plan};
use outrigger_manifest::{Companions, Origin, SourceFile};
use serde_json::Value;

use k8s_openapi::api::core::v1::{Container, Pod};

/// What is to be learned from one failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hint {
    /// The place in the pod; `None` if no line of the manifest is behind it.
    path: Option<FieldPath>,
    /// What to do. Empty where the message says it all and only the place is missing.
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
    /// What it may refer to.
    pub companions: &'a Companions,
}

/// The hints of a run: each is shown once, however many pods and restarts meet the failure.
#[derive(Debug, Clone, Default)]
pub struct Hints {
    sources: Arc<[SourceFile]>,
    shown: Arc<Mutex<BTreeSet<(String, String)>>>,
    /// Where the pod was written.
    origin: Option<Arc<Origin>>,
}

impl Hints {
    /// Hints on pods of these manifests.
    pub fn new(sources: Vec<SourceFile>) -> Hints {
        Hints { sources: sources.into(), ..Hints::default() }
    }

    /// The hints of one pod.
    pub fn of(&self, origin: &Origin) -> Hints {
        Hints { origin: Some(Arc::new(origin.clone())), ..self.clone() }
    }

    /// Adds to an entry the hint on its failure, if there is one that was not shown yet: `manifest`, the file and line, and
    /// `hint`.
    pub fn add_to(&self, pod: Subject<'_>, entry: &Entry, object: &mut Value) {
        let Some(hint) = hint(pod, entry) else { return };
        let place = hint.path.as_ref().and_then(|path| self.place(path)).unwrap_or_default();
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        if (place.is_empty() && hint.text.is_empty()) || !shown.insert((place.clone(), hint.text.clone())) {
            return;
        }
        for (key, value) in [("manifest", place), ("hint", hint.text)] {
            if !value.is_empty() {
                object[key] = value.into();
            }
        }
    }

    /// Why a pod cannot be made, with the hint on it below.
    pub fn of_sandbox(&self, pod: Subject<'_>, message: &str) -> String {
        let Some(hint) = sandbox(pod, message) else { return message.to_owned() };
        let place = hint.path.as_ref().and_then(|path| self.place(path));
        let parts: Vec<String> =
            place.into_iter().chain(Some(hint.text)).filter(|part| !part.is_empty()).collect();
        if parts.is_empty() { message.to_owned() } else { format!("{message}\n  {}", parts.join(": ")) }
    }

    /// `FILE:LINE` of a place in the pod.
    fn place(&self, path: &FieldPath) -> Option<String> {
        let span = self.origin.as_ref()?.point(path);
        let source = self.sources.get(span.file)?;
        Some(format!("{}:{}", source.name, source.position(span.start).line))
    }
}

fn hint(pod: Subject<'_>, entry: &Entry) -> Option<Hint> {
    let plan = pod.plan;
    let Some(index) = entry.container else {
        return match entry.event {
            "sandbox-failed" => sandbox(pod, entry.text("message")?),
            _ => None,
        };
    };
    let (container, path) = (&pod.containers[index], plan.containers[index].place.path());
    match entry.event {
        "pull-failed" => Some(image::hint(pod, container, path, entry.text("message")?)),
        "start-failed" => {
            Some(references::below(pod, &path).unwrap_or_else(|| Hint::at(path, String::new())))
        }
        "exited" => program::hint(container, path, entry),
        "probe" if entry.text("verdict") == Some("failure") => {
            probe::hint(plan, index, container, path, entry)
        }
        "stop-signal-ignored" => {
            let signal = entry.text("signal").unwrap_or("TERM");
            Some(Hint::at(
                path,
                format!(
                    "handle SIG{signal} in the program (in a shell script: `trap 'exit 0' {signal}`, or start the \
                     program with `exec`), set lifecycle.stopSignal to a signal it handles, or lower \
                     terminationGracePeriodSeconds"
                ),
            ))
        }
        "hook-ended" if entry.text("error").is_some() => {
            let hook = if entry.text("hook") == Some("postStart") { "postStart" } else { "preStop" };
            let means = match hook {
                "postStart" => {
                    "a container whose postStart hook fails is killed; make the hook exit with code 0"
                }
                _ => "the container is stopped anyway",
            };
            Some(Hint::at(path.field("lifecycle").field(hook), means))
        }
        _ => None,
    }
}

/// What keeps a whole pod from being made.
fn sandbox(pod: Subject<'_>, message: &str) -> Option<Hint> {
    if message.starts_with("host port ") {
        return Some(port::hint(pod, message));
    }
    let doctor =
        || Hint::nowhere("run `outrigger doctor` to see what this machine is missing and how to fix it");
    let reference = references::below(pod, &FieldPath::spec("volumes"));
    Some(reference.or_else(|| volume::hint(pod, message)).unwrap_or_else(doctor))
}

#[cfg(test)]
mod tests;
