//! The trace at its edges: lines of an events file, written and read.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use thiserror::Error;

use super::{TraceEvent, WorkloadEvent};

/// One line about a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// When, as it is written; empty if the line does not say.
    pub time: String,
    /// The name of the pod.
    pub pod: String,
    /// The name of the container; `None` for the pod as a whole.
    pub container: Option<String>,
    /// What happened.
    pub event: TraceEvent,
    /// `FILE:LINE` of what the manifest asks for there, of a failure.
    pub manifest: Option<String>,
    /// How to fix the failure.
    pub hint: Option<String>,
}

/// One line about a workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkloadRecord {
    /// When, as it is written.
    pub time: String,
    /// `Job/report`.
    pub workload: String,
    /// What happened.
    pub event: WorkloadEvent,
}

/// A line that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line {
    /// About a pod.
    Pod(Box<Record>),
    /// About a workload.
    Workload(Box<WorkloadRecord>),
    /// Of an event this version does not know, or whose details it cannot make sense of.
    Unknown {
        /// What the line calls it.
        event: String,
    },
}

/// Why a JSON value is no line of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("it has no \"event\"")]
pub struct NoEvent;

impl Record {
    /// As one JSON object: `time`, `pod`, `container` if it is about one, `event`, the details, then the hint.
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
    /// As one JSON object: `time`, `workload`, `event`, then the details.
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
    /// Reads a line. Events and details that are not known are no error: newer versions have more of them.
    ///
    /// # Errors
    /// It is not a JSON object with an `event`.
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

/// A struct or an enum with named fields as a JSON object.
pub(super) fn object(value: &impl Serialize) -> Map<String, Value> {
    match serde_json::to_value(value) {
        Ok(Value::Object(object)) => object,
        // No event has keys or numbers that JSON cannot hold.
        _ => Map::new(),
    }
}
