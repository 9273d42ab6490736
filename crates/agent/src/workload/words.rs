//! What happens to workloads, as sentences. The workload is the unnamed subject.

use outrigger_lifecycle::Span;
use serde_json::Value;

use crate::view::{Told, Weight};

/// Tells an entry, given as the JSON object of the events file.
pub(super) fn tell(entry: &Value) -> Told {
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
            (Weight::Routine, format!("runs until {goal}, {} at a time", several(at_once, "pod")))
        }
        "workload-started" => {
            (Weight::Routine, format!("keeps {} running", several(number("replicas").unwrap_or(0), "pod")))
        }
        "pod-created" => {
            let again = match number("attempt") {
                Some(n) if n > 0 => format!(" (try {})", n + 1),
                _ => String::new(),
            };
            match number("index") {
                Some(index) => (Weight::Routine, format!("makes `{}` for index {index}{again}", text("pod"))),
                None => (Weight::Routine, format!("makes `{}`{again}", text("pod"))),
            }
        }
        "pod-deleted" => (Weight::Routine, format!("ends `{}`", text("pod"))),
        "pod-waiting" => (Weight::Routine, format!("makes `{}` when `{}` is ready", text("pod"), text("on"))),
        "job-back-off" => {
            let wait = Span(number("wait_ms").unwrap_or(0));
            (Weight::News, format!("waits {wait} before the next pod: back-off after a failure"))
        }
        "job-stopped" => (Weight::Routine, "is stopped and makes no more pods".to_owned()),
        "job-suspended" => (Weight::News, format!("is not run: {}", text("message"))),
        "success-criteria-met" => {
            (Weight::News, format!("has succeeded and ends its pods: {}", text("message")))
        }
        "failure-target" => (
            Weight::Trouble,
            format!("has failed and ends its pods: {}: {}", text("reason"), text("message")),
        ),
        "job-complete" => (Weight::News, format!("is complete: {}", text("message"))),
        "job-failed" => (Weight::Trouble, format!("has failed: {}: {}", text("reason"), text("message"))),
        other => (Weight::Routine, other.to_owned()),
    };
    Told::new(weight, sentence)
}
