//! What happens to workloads, as sentences. The workload is the unnamed subject.

use outrigger_lifecycle::Span;
use serde_json::Value;

use crate::words::{Told, Weight};

/// Tells an entry, given as the JSON object of the events file.
pub fn tell(entry: &Value) -> Told {
    let text = |key: &str| entry[key].as_str().unwrap_or_default();
    let number = |key: &str| entry[key].as_u64();
    let several = |n: u64, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    let (weight, sentence) = match text("event") {
        "job-started" => {
            let at_once = number("parallelism").unwrap_or(0);
            let goal = match number("completions") {
                Some(n) => several(n, "completion"),
                None => "one success".to_owned(),
            };
            (Weight::Routine, format!("started: {goal}, {} at a time", several(at_once, "pod")))
        }
        "workload-started" => {
            (Weight::Routine, format!("keeping {} running", several(number("replicas").unwrap_or(0), "pod")))
        }
        "pod-created" => {
            let index = number("index").map_or(String::new(), |index| format!(" for index {index}"));
            let again = match number("attempt") {
                Some(n) if n > 0 && text("workload").starts_with("Job/") => format!(" (try {})", n + 1),
                Some(n) if n > 0 => " to replace one that ended".to_owned(),
                _ => String::new(),
            };
            (Weight::Routine, format!("created pod `{}`{index}{again}", text("pod")))
        }
        "pod-deleted" => (Weight::Routine, format!("deleted pod `{}`", text("pod"))),
        "pod-waiting" => {
            (Weight::Routine, format!("creates pod `{}` once `{}` is ready", text("pod"), text("on")))
        }
        "job-back-off" => {
            let wait = Span(number("wait_ms").unwrap_or(0));
            (Weight::Notable, format!("waiting {wait} before the next pod: back-off after a failure"))
        }
        "job-stopped" => (Weight::Routine, "stopped, creates no more pods".to_owned()),
        "job-suspended" => (Weight::Notable, format!("not started: {}", text("message"))),
        "success-criteria-met" => {
            (Weight::Notable, format!("succeeded, deleting its pods: {}", text("message")))
        }
        "failure-target" => {
            (Weight::Trouble, format!("failed, deleting its pods: {}: {}", text("reason"), text("message")))
        }
        "job-complete" => (Weight::Notable, format!("complete: {}", text("message"))),
        "job-failed" => (Weight::Trouble, format!("failed: {}: {}", text("reason"), text("message"))),
        other => (Weight::Routine, other.to_owned()),
    };
    Told::new(weight, sentence)
}
