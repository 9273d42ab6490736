//! Lines of an events file: the written form of the trace.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use thiserror::Error;

use super::{TraceEvent, WorkloadEvent};

/// One line about a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The time as written; empty if the line has none.
    pub time: String,
    /// The name of the pod.
    pub pod: String,
    /// The name of the container; `None` if the line is about the pod.
    pub container: Option<String>,
    /// What happened.
    pub event: TraceEvent,
    /// For a failure: `FILE:LINE` of the manifest field that caused it.
    pub manifest: Option<String>,
    /// How to fix the failure.
    pub hint: Option<String>,
}

/// One line about a workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkloadRecord {
    /// The time as written.
    pub time: String,
    /// The kind and name of the workload, such as `Job/report`.
    pub workload: String,
    /// What happened.
    pub event: WorkloadEvent,
}

/// A line that was read from an events file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line {
    /// A line about a pod.
    Pod(Box<Record>),
    /// A line about a workload.
    Workload(Box<WorkloadRecord>),
    /// An event that this version does not know, or whose details it cannot read.
    Unknown {
        /// The name of the event in the line.
        event: String,
    },
}

/// The error for a JSON value that is not a line of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("it has no \"event\"")]
pub struct NoEvent;

impl Record {
    /// The line as one JSON object: `time`, `pod`, `container` (if it is about one), `event`, the details,
    /// then the hint.
    pub fn to_json(&self) -> Value {
        let mut object = Map::new();
        object.insert("time".into(), self.time.as_str().into());
        object.insert("pod".into(), self.pod.as_str().into());
        if let Some(container) = &self.container {
            object.insert("container".into(), container.as_str().into());
        }
        object.insert("event".into(), self.event.name().into());
        object.extend(self.event.details());
        for (key, value) in [("manifest", &self.manifest), ("hint", &self.hint)] {
            if let Some(value) = value {
                object.insert(key.into(), value.as_str().into());
            }
        }
        Value::Object(object)
    }
}

impl WorkloadRecord {
    /// The line as one JSON object: `time`, `workload`, `event`, then the details.
    pub fn to_json(&self) -> Value {
        let mut object = Map::new();
        object.insert("time".into(), self.time.as_str().into());
        object.insert("workload".into(), self.workload.as_str().into());
        object.insert("event".into(), self.event.name().into());
        object.extend(self.event.details());
        Value::Object(object)
    }
}

impl Line {
    /// Reads a line. Unknown events and details are not errors, because newer versions have more of them.
    ///
    /// # Errors
    /// The value is not a JSON object with an `event`.
    pub fn from_json(line: &Value) -> Result<Line, NoEvent> {
        let event = line.get("event").and_then(Value::as_str).ok_or(NoEvent)?;
        let text = |key: &str| line.get(key).and_then(Value::as_str).map(str::to_owned);
        let unknown = || Line::Unknown { event: event.to_owned() };
        let time = text("time").unwrap_or_default();
        if let Some(workload) = text("workload") {
            let record =
                WorkloadEvent::deserialize(line).map(|event| WorkloadRecord { time, workload, event });
            return Ok(record.map_or_else(|_| unknown(), |record| Line::Workload(Box::new(record))));
        }
        let record = TraceEvent::from_json(line).map(|event| Record {
            time,
            pod: text("pod").unwrap_or_default(),
            container: text("container"),
            event,
            manifest: text("manifest"),
            hint: text("hint"),
        });
        Ok(record.map_or_else(|_| unknown(), |record| Line::Pod(Box::new(record))))
    }
}

impl Line {
    /// The line, if it is about a pod.
    pub fn pod(self) -> Option<Record> {
        match self {
            Line::Pod(record) => Some(*record),
            Line::Workload(_) | Line::Unknown { .. } => None,
        }
    }
}

/// A struct or an enum with named fields, as a JSON object.
pub(super) fn object(value: &impl Serialize) -> Map<String, Value> {
    match serde_json::to_value(value) {
        Ok(Value::Object(object)) => object,
        // This cannot happen: every event can be written as a JSON object.
        _ => Map::new(),
    }
}
