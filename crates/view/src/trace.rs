//! A trace as text and as JSON.

use std::fmt::Write;

use outrigger_lifecycle::Plan;
use outrigger_lifecycle::trace::{Entry, Record, TraceEvent};
use serde_json::Value;

/// The time of a simulated entry: seconds since the beginning, with milliseconds.
pub fn time_text(entry: &Entry) -> String {
    format!("{}.{:03}", entry.time.0 / 1_000, entry.time.0 % 1_000)
}

/// The trace with names, and times in seconds since the beginning.
pub fn trace_records(plan: &Plan, entries: &[Entry]) -> Vec<Record> {
    entries.iter().map(|e| e.clone().into_record(plan, &plan.pod, time_text(e))).collect()
}

/// The trace as JSON objects, one per entry.
pub fn trace_json(plan: &Plan, entries: &[Entry]) -> Vec<Value> {
    trace_records(plan, entries).iter().map(Record::to_json).collect()
}

/// The trace as text, one line per entry: time, container, event, details.
pub fn trace_text(plan: &Plan, entries: &[Entry]) -> String {
    let widest = plan.containers.iter().map(|c| c.name.len()).max().unwrap_or(1).min(24);
    let mut out = String::new();
    for entry in entries {
        let name = entry.container.map_or("-", |c| plan.containers[c].name.as_str());
        let line = format!(
            "{:>9}  {name:<widest$}  {:<16} {}",
            time_text(entry),
            entry.event.name(),
            details(&entry.event)
        );
        let _ = writeln!(out, "{}", line.trim_end());
    }
    out
}

/// The details of an entry on one line. What the sentence says is not repeated as fields.
fn details(event: &TraceEvent) -> String {
    if let TraceEvent::Waiting { text, .. } = event {
        return text.clone();
    }
    let is_start = matches!(event, TraceEvent::Starting { .. });
    let is_exit = matches!(event, TraceEvent::Exited { .. });
    let mut parts = Vec::new();
    for (key, value) in &event.details() {
        match (key.as_str(), value) {
            ("after" | "opened_ms_ago" | "attempt", _) if is_start => {}
            ("opened_last", gate) => {
                let word = |field: &str| gate[field].as_str().unwrap_or_default();
                parts.push(format!("after {} is {}", word("container"), word("need")));
            }
            ("reason", _) if !is_exit => {}
            ("message", Value::String(text)) => parts.push(text.clone()),
            (key, Value::String(text)) if text.contains(' ') => parts.push(format!("{key}={text:?}")),
            (key, Value::String(text)) => parts.push(format!("{key}={text}")),
            (key, value) => parts.push(format!("{key}={value}")),
        }
    }
    parts.join(" ")
}
