//! Renders a trace as text and as JSON.

use std::fmt::Write;

use outrigger_lifecycle::trace::{ContainerEvent, Entry, Record, TraceEvent};
use outrigger_lifecycle::{Need, Plan};
use serde_json::Value;

use crate::line::{columns, wrap_all};
use crate::text::shorten;

/// The time of a simulated entry, in seconds with milliseconds since the beginning.
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

/// The width of the time in front of an entry.
const TIME: usize = 9;
/// The width of the name of an event.
const EVENT: usize = 16;
/// The minimum width of a shortened container name.
const NAME_MIN: usize = 6;

/// Renders the trace as text, one line per entry: time, container, event, details. With a `width`, no line is
/// wider. Details that do not fit go below their entry, and long names lose their middle.
pub fn trace_text(plan: &Plan, entries: &[Entry], width: Option<usize>) -> String {
    let longest = entries.iter().map(|entry| entry.event.name().len()).max().unwrap_or(0).max(EVENT);
    let name_max = width.map_or(usize::MAX, |width| width.saturating_sub(TIME + longest + 4).max(NAME_MIN));
    let widest = plan.containers.iter().map(|c| c.name.len()).max().unwrap_or(1).min(24).min(name_max);
    let mut out = String::new();
    for entry in entries {
        let name = entry.container.map_or("-", |c| plan.containers[c].name.as_str());
        let name = shorten(name, name_max);
        let details = details(&entry.event);
        let head = format!("{:>TIME$}  {name:<widest$}  {:<EVENT$}", time_text(entry), entry.event.name());
        match width {
            Some(width) if columns(&head) + 1 + columns(&details) > width => {
                let indent = TIME + 2;
                let _ = writeln!(out, "{}", head.trim_end());
                for line in wrap_all(&details, width.saturating_sub(indent)) {
                    let _ = writeln!(out, "{:indent$}{line}", "");
                }
            }
            _ => {
                let _ = writeln!(out, "{}", format!("{head} {details}").trim_end());
            }
        }
    }
    out
}

/// The details of an entry on one line. Fields that the sentence already mentions are left out.
fn details(event: &TraceEvent) -> String {
    if let TraceEvent::Container(ContainerEvent::Waiting { text, .. }) = event {
        return text.clone();
    }
    let is_start = matches!(event, TraceEvent::Container(ContainerEvent::Starting { .. }));
    let is_exit = matches!(event, TraceEvent::Container(ContainerEvent::Exited { .. }));
    let mut parts = Vec::new();
    for (key, value) in &event.details() {
        match (key.as_str(), value) {
            ("after" | "opened_ms_ago" | "attempt", _) if is_start => {}
            ("opened_last", gate) => {
                let word = |field: &str| gate[field].as_str().unwrap_or_default();
                let was = if word("need") == Need::Completed.name() { "" } else { "was " };
                parts.push(format!("after {} {was}{}", word("container"), word("need")));
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
