//! Events files: the output of `run --events` and `simulate -o json`, split by pod.

use outrigger_lifecycle::trace::{Line, Record};
use serde_json::{Value, json};
use thiserror::Error;

/// The trace of one pod.
#[derive(Debug, Clone, PartialEq)]
pub struct PodEvents {
    /// Its name.
    pub pod: String,
    /// Its entries, in order.
    pub entries: Vec<Record>,
}

/// Why an events file cannot be used.
#[derive(Debug, Error)]
pub enum EventsError {
    /// A line that is no JSON object.
    #[error(
        "line {line} is not an event, expected a JSON object a line as `outrigger run --events` writes: {why}"
    )]
    Line {
        /// Counted from 1.
        line: usize,
        /// What is wrong with it.
        why: String,
    },
    /// The file has no events.
    #[error("there are no events in it")]
    Empty,
}

/// Splits an events file by pod, in the order of their first events. Unknown events are left out, and so is
/// an incomplete last line: the file may still be written to.
///
/// # Errors
/// A line is not an event, or there is none.
pub fn read_events(text: &str) -> Result<Vec<PodEvents>, EventsError> {
    let mut pods: Vec<PodEvents> = Vec::new();
    let mut add = |line: Line| {
        // Events of a workload do not belong to any pod.
        let Some(record) = line.pod() else { return };
        // Entries of one pod mostly follow one another.
        match pods.iter_mut().rev().find(|p| p.pod == record.pod) {
            Some(found) => found.entries.push(record),
            None => pods.push(PodEvents { pod: record.pod.clone(), entries: vec![record] }),
        }
    };
    if let Some(played) = simulated(text) {
        for (i, entry) in played.iter().enumerate() {
            let line = Line::from_json(entry);
            add(line.map_err(|why| EventsError::Line { line: i + 1, why: why.to_string() })?);
        }
    } else {
        let lines = text.lines().count();
        for (i, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            match serde_json::from_str::<Value>(line) {
                Ok(entry) => {
                    let line = Line::from_json(&entry);
                    add(line.map_err(|why| EventsError::Line { line: i + 1, why: why.to_string() })?);
                }
                Err(_) if i + 1 == lines && !text.ends_with('\n') => {}
                Err(error) => return Err(EventsError::Line { line: i + 1, why: error.to_string() }),
            }
        }
    }
    if pods.is_empty() { Err(EventsError::Empty) } else { Ok(pods) }
}

/// The entries of the output of `simulate -o json`, if it is that.
fn simulated(text: &str) -> Option<Vec<Value>> {
    let mut all: Value = serde_json::from_str(text).ok()?;
    let pods = all.get_mut("pods")?.as_array_mut()?;
    let traces = pods.iter_mut().filter_map(|pod| match pod.get_mut("trace").map(Value::take) {
        Some(Value::Array(mut entries)) => {
            // The plan, which `run --events` writes before the trace.
            if let Some(containers) = pod.get_mut("containers").map(Value::take) {
                let planned = json!({"time": "0.000", "pod": pod["name"], "event": "planned", "containers": containers});
                entries.insert(0, planned);
            }
            Some(entries)
        }
        _ => None,
    });
    Some(traces.flatten().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_are_taken_apart_and_a_cut_line_is_left_out() {
        let text = "{\"pod\":\"a\",\"event\":\"ready\"}\n{\"pod\":\"b\",\"event\":\"ready\"}\n\n{\"pod\":\"a\",\"event\":\"unready\"}\n{\"pod\":\"a\",\"event\":\"of-a-newer-version\"}\n{\"pod\":";
        let pods = read_events(text).unwrap();
        let found: Vec<_> = pods.iter().map(|p| (p.pod.as_str(), p.entries.len())).collect();
        assert_eq!(found, [("a", 2), ("b", 1)]);
    }

    #[test]
    fn what_is_no_event_is_named() {
        for (text, expected) in [
            ("{\"event\":\"x\"}\nhello\n", "line 2 is not an event"),
            ("{}\n", "line 1 is not an event"),
            ("", "there are no events"),
            ("{\"version\":1,\"pods\":[]}", "there are no events"),
        ] {
            let error = read_events(text).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{text:?}: {error}");
        }
    }

    #[test]
    fn simulations_are_events_too() {
        let text = "{\"version\":1,\"pods\":[{\"trace\":[{\"pod\":\"a\",\"event\":\"ready\"}]}]}";
        assert_eq!(read_events(text).unwrap()[0].pod, "a");
    }
}
