//! Reads events files (the output of `run --events` and `simulate -o json`) and splits them by pod and
//! workload.

use outrigger_lifecycle::trace::{Line, Record, WorkloadEvent, WorkloadRecord};
use serde_json::{Value, json};
use thiserror::Error;

/// The trace of one pod.
#[derive(Debug, Clone, PartialEq)]
pub struct PodEvents {
    /// The name of the pod.
    pub pod: String,
    /// Its entries, in order.
    pub entries: Vec<Record>,
}

/// The trace of one workload.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkloadEvents {
    /// The kind and name, such as `Job/report`.
    pub workload: String,
    /// Its entries, in order.
    pub entries: Vec<WorkloadRecord>,
}

impl WorkloadEvents {
    /// The heading of the workload, such as `Job report`.
    pub fn title(&self) -> String {
        self.workload.replacen('/', " ", 1)
    }

    fn created(&self, name: &str) -> bool {
        let is_it = |record: &WorkloadRecord| matches!(&record.event, WorkloadEvent::PodCreated { pod, .. } if pod == name);
        self.entries.iter().any(is_it)
    }

    fn waits(&self) -> bool {
        self.entries.iter().any(|record| matches!(record.event, WorkloadEvent::JobBackOff { .. }))
    }
}

/// All events of a file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Events {
    /// The pods, in the order of their first events.
    pub pods: Vec<PodEvents>,
    /// The workloads, in the order of their first events.
    pub workloads: Vec<WorkloadEvents>,
}

/// Pods that are shown together.
#[derive(Debug, Clone, PartialEq)]
pub enum Group<'a> {
    /// A pod without a workload, or the only pod of a workload that never waited.
    Pod(&'a PodEvents),
    /// A workload and its pods, which share one time axis.
    Workload(&'a WorkloadEvents, Vec<&'a PodEvents>),
}

impl Events {
    /// Groups the pods of each workload. Other pods are alone.
    pub fn groups(&self) -> Vec<Group<'_>> {
        let mut groups: Vec<Group<'_>> = Vec::new();
        for pod in &self.pods {
            let Some(owner) = self.workloads.iter().find(|workload| workload.created(&pod.pod)) else {
                groups.push(Group::Pod(pod));
                continue;
            };
            let same = groups.iter_mut().find_map(|group| match group {
                Group::Workload(workload, pods) if std::ptr::eq(*workload, owner) => Some(pods),
                _ => None,
            });
            match same {
                Some(pods) => pods.push(pod),
                None => groups.push(Group::Workload(owner, vec![pod])),
            }
        }
        for group in &mut groups {
            if let Group::Workload(workload, pods) = group
                && let [only] = pods.as_slice()
                && !workload.waits()
            {
                *group = Group::Pod(only);
            }
        }
        groups
    }

    /// Keeps only this pod, without its workload. Returns false if there is no pod of this name.
    pub fn keep_pod(&mut self, name: &str) -> bool {
        self.pods.retain(|pod| pod.pod == name);
        self.workloads.clear();
        !self.pods.is_empty()
    }
}

/// Why an events file cannot be used.
#[derive(Debug, Error)]
pub enum EventsError {
    /// A line that is not a JSON object.
    #[error(
        "line {line} is not an event; expected one JSON object per line, as `outrigger run --events` writes: {why}"
    )]
    Line {
        /// The number of the line, counted from 1.
        line: usize,
        /// What is wrong with it.
        why: String,
    },
    /// The file has no events.
    #[error("there are no events in it")]
    Empty,
}

/// Splits an events file by pod and workload. Unknown events are left out. An incomplete last line is also
/// left out, because a run may still write to the file.
///
/// # Errors
/// A line is not an event, or no event is about a pod.
pub fn read_events(text: &str) -> Result<Events, EventsError> {
    let mut events = Events::default();
    let mut add = |line: Line| match line {
        Line::Pod(record) => {
            // Entries of one pod are usually next to each other.
            match events.pods.iter_mut().rev().find(|p| p.pod == record.pod) {
                Some(found) => found.entries.push(*record),
                None => events.pods.push(PodEvents { pod: record.pod.clone(), entries: vec![*record] }),
            }
        }
        Line::Workload(record) => match events.workloads.iter_mut().find(|w| w.workload == record.workload) {
            Some(found) => found.entries.push(*record),
            None => {
                let workload = record.workload.clone();
                events.workloads.push(WorkloadEvents { workload, entries: vec![*record] });
            }
        },
        Line::Unknown { .. } => {}
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
    if events.pods.is_empty() { Err(EventsError::Empty) } else { Ok(events) }
}

/// The entries of a file, if it is output of `simulate -o json`.
fn simulated(text: &str) -> Option<Vec<Value>> {
    let mut all: Value = serde_json::from_str(text).ok()?;
    let pods = all.get_mut("pods")?.as_array_mut()?;
    let traces = pods.iter_mut().filter_map(|pod| match pod.get_mut("trace").map(Value::take) {
        Some(Value::Array(mut entries)) => {
            // Add the plan, which `run --events` writes before the trace.
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
        let pods = read_events(text).unwrap().pods;
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
    fn pods_of_a_workload_are_shown_together_if_there_is_more_to_see_than_one_pod() {
        let created = |job: &str, pod: &str| {
            json!({"time": "0", "workload": job, "event": "pod-created", "pod": pod}).to_string() + "\n"
        };
        let ready = |pod: &str| json!({"time": "0", "pod": pod, "event": "ready"}).to_string() + "\n";
        let text = [
            created("Job/a", "a-1"),
            created("Job/b", "b-1"),
            ready("a-1"),
            ready("alone"),
            ready("b-1"),
            created("Job/a", "a-2"),
            ready("a-2"),
        ];
        let shown = |events: &Events| -> Vec<String> {
            let name = |group: &Group<'_>| match group {
                Group::Pod(pod) => pod.pod.clone(),
                Group::Workload(workload, pods) => format!("{} of {}", pods.len(), workload.title()),
            };
            events.groups().iter().map(name).collect()
        };
        let mut events = read_events(&text.concat()).unwrap();
        assert_eq!(shown(&events), ["2 of Job a", "alone", "b-1"]);
        let waits =
            json!({"time": "0", "workload": "Job/b", "event": "job-back-off", "wait_ms": 10}).to_string();
        let waiting = read_events(&(text.concat() + &waits + "\n")).unwrap();
        assert_eq!(shown(&waiting), ["2 of Job a", "alone", "1 of Job b"]);
        assert!(events.keep_pod("a-2"));
        assert_eq!(shown(&events), ["a-2"]);
        assert!(!events.keep_pod("nope"));
    }

    #[test]
    fn simulations_are_events_too() {
        let text = "{\"version\":1,\"pods\":[{\"trace\":[{\"pod\":\"a\",\"event\":\"ready\"}]}]}";
        assert_eq!(read_events(text).unwrap().pods[0].pod, "a");
    }
}
