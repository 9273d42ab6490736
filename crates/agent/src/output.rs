//! What a run shows: trace entries and the containers' own output.
//!
//! Written by a thread of its own, so that a terminal that is held or a pager that waits never holds a pod up. Log
//! lines wait for room; trace entries never do.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::{Semaphore, oneshot};

use crate::logs::parse_line;

/// Log bytes that may wait to be written.
const ROOM: usize = 1 << 20;

/// How a run speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Lines for people: what happened on standard error, the containers' output on standard output.
    Plain,
    /// One JSON object a line, all on standard output.
    Json,
}

enum Chunk {
    Out(Vec<u8>, usize),
    Err(Vec<u8>),
    Done(oneshot::Sender<()>),
}

/// Where a run's output goes. Cheap to clone.
#[derive(Clone)]
pub struct Output {
    format: Format,
    quiet: bool,
    /// Several pods: lines say whose they are.
    many: bool,
    colors: bool,
    tx: mpsc::Sender<Chunk>,
    room: Arc<Semaphore>,
    /// Beginnings of lines, by pod and container.
    partial: Arc<Mutex<BTreeMap<(Arc<str>, Arc<str>), Vec<u8>>>>,
    zone: jiff::tz::TimeZone,
}

impl Output {
    /// Output to standard output and standard error. `quiet` leaves only the containers' own.
    pub fn new(format: Format, quiet: bool, many: bool) -> io::Result<Self> {
        let colors = io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
        let (mut out, mut err) = (io::stdout(), io::stderr());
        Output::with(format, quiet, many, colors, move |chunk| match chunk {
            Chunk::Out(bytes, _) => out.write_all(bytes).and_then(|()| out.flush()),
            Chunk::Err(bytes) => err.write_all(bytes),
            Chunk::Done(_) => Ok(()),
        })
    }

    fn with(
        format: Format,
        quiet: bool,
        many: bool,
        colors: bool,
        mut write: impl FnMut(&Chunk) -> io::Result<()> + Send + 'static,
    ) -> io::Result<Self> {
        let (tx, rx) = mpsc::channel::<Chunk>();
        let room = Arc::new(Semaphore::new(ROOM));
        let permits = room.clone();
        let work = move || {
            // Whoever reads our output may have seen enough; the pods go on all the same.
            let mut broken = false;
            for chunk in rx {
                if !broken {
                    broken = write(&chunk).is_err();
                }
                match chunk {
                    Chunk::Out(_, taken) => permits.add_permits(taken),
                    Chunk::Err(_) => {}
                    Chunk::Done(done) => drop(done.send(())),
                }
            }
        };
        std::thread::Builder::new().name("output".into()).stack_size(128 << 10).spawn(work)?;
        Ok(Output {
            format,
            quiet,
            many,
            colors,
            tx,
            room,
            partial: Arc::default(),
            zone: jiff::tz::TimeZone::system(),
        })
    }

    /// Shows one trace entry. `object` is the entry as JSON; `text` is made of it for people.
    pub(crate) fn entry(&self, exact: Duration, object: &Value) {
        if self.quiet {
            return;
        }
        match self.format {
            Format::Json => {
                let mut line = object.to_string().into_bytes();
                line.push(b'\n');
                self.send(Chunk::Out(line, 0));
            }
            Format::Plain => {
                let line = format!("{} {}\n", self.clock(exact), sentence(object));
                self.send(Chunk::Err(line.into_bytes()));
            }
        }
    }

    /// Shows a line about the run as a whole.
    pub(crate) fn note(&self, text: &str) {
        if !self.quiet {
            self.send(Chunk::Err(format!("{text}\n").into_bytes()));
        }
    }

    fn clock(&self, exact: Duration) -> String {
        let nanos = i128::try_from(exact.as_nanos()).unwrap_or(0);
        match jiff::Timestamp::from_nanosecond(nanos) {
            Ok(at) => at.to_zoned(self.zone.clone()).strftime("%H:%M:%S%.3f").to_string(),
            Err(_) => String::new(),
        }
    }

    /// Shows whole lines of a log in CRI format, once there is room.
    pub(crate) async fn log(&self, pod: &Arc<str>, container: &Arc<str>, lines: Vec<u8>) {
        let bytes = match self.format {
            Format::Plain => self.plain_log(pod, container, &lines),
            Format::Json => json_log(pod, container, &lines),
        };
        if bytes.is_empty() {
            return;
        }
        let wanted = bytes.len().min(ROOM);
        // The semaphore is never closed.
        if let Ok(permits) = self.room.acquire_many(u32::try_from(wanted).unwrap_or(u32::MAX)).await {
            permits.forget();
            self.send(Chunk::Out(bytes, wanted));
        }
    }

    fn plain_log(&self, pod: &Arc<str>, container: &Arc<str>, lines: &[u8]) -> Vec<u8> {
        let mut partial = self.partial.lock().unwrap_or_else(PoisonError::into_inner);
        let begun = partial.entry((pod.clone(), container.clone())).or_default();
        let mut out = Vec::with_capacity(lines.len());
        for line in lines.split_inclusive(|b| *b == b'\n').filter_map(parse_line) {
            begun.extend_from_slice(line.text);
            if line.partial && begun.len() < ROOM / 8 {
                continue;
            }
            if self.colors {
                let color = 31 + container.bytes().map(u32::from).sum::<u32>() % 6;
                out.extend_from_slice(format!("\x1b[{color}m").as_bytes());
            }
            if self.many {
                out.extend_from_slice(pod.as_bytes());
                out.push(b'/');
            }
            out.extend_from_slice(container.as_bytes());
            out.extend_from_slice(b" |");
            if self.colors {
                out.extend_from_slice(b"\x1b[0m");
            }
            out.push(b' ');
            out.append(begun);
            out.push(b'\n');
        }
        out
    }

    fn send(&self, chunk: Chunk) {
        // The writer ends only when nobody can send any more.
        let _ = self.tx.send(chunk);
    }

    /// Waits until everything has been written.
    pub async fn finish(&self) {
        let (done, wait) = oneshot::channel();
        self.send(Chunk::Done(done));
        let _ = wait.await;
    }
}

fn json_log(pod: &str, container: &str, lines: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(lines.len() * 2);
    for line in lines.split_inclusive(|b| *b == b'\n').filter_map(parse_line) {
        let object = json!({
            "time": line.time, "pod": pod, "container": container, "event": "log", "stream": line.stream,
            "partial": line.partial, "text": String::from_utf8_lossy(line.text),
        });
        out.extend_from_slice(object.to_string().as_bytes());
        out.push(b'\n');
    }
    out
}

/// An entry for people: `pod/container  event detail=value …: message`.
fn sentence(object: &Value) -> String {
    let text = |key: &str| object.get(key).and_then(Value::as_str);
    let mut out = text("pod").unwrap_or("").to_owned();
    if let Some(container) = text("container") {
        out.push('/');
        out.push_str(container);
    }
    out.push_str("  ");
    // Some entries bring a whole sentence.
    if let Some(said) = text("text") {
        out.push_str(said);
        return out;
    }
    let event = text("event").unwrap_or("");
    out.push_str(event);
    for (key, value) in object.as_object().into_iter().flatten() {
        let shown = match value {
            _ if ["time", "pod", "container", "event", "message"].contains(&key.as_str()) => continue,
            // The word Kubernetes has for it says more than the event only where something went wrong.
            _ if key == "reason" && !(event.ends_with("failed") || event == "exited") => continue,
            Value::Null | Value::Array(_) | Value::Object(_) => continue,
            Value::String(text) if text.contains(char::is_whitespace) => format!("{:?}", text.trim_end()),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        out.push_str(&format!(" {key}={shown}"));
    }
    if let Some(message) = text("message").filter(|m| !m.is_empty()) {
        out.push_str(": ");
        out.push_str(message.trim_end());
    }
    out
}

/// Keeps what was shown, for tests.
#[cfg(test)]
#[derive(Clone, Default)]
pub(crate) struct Shown(Arc<Mutex<Vec<u8>>>);

#[cfg(test)]
impl Shown {
    pub(crate) fn text(&self) -> String {
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

#[cfg(test)]
impl Output {
    /// Output that is kept.
    pub(crate) fn captured(format: Format, quiet: bool) -> (Self, Shown) {
        let shown = Shown::default();
        let kept = shown.clone();
        let output = Output::with(format, quiet, false, false, move |chunk| {
            let (Chunk::Out(bytes, _) | Chunk::Err(bytes)) = chunk else { return Ok(()) };
            kept.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
            Ok(())
        });
        (output.expect("a thread"), shown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_read_as_sentences() {
        let entry = json!({"time": "t", "pod": "p", "container": "c", "event": "exited", "code": 1, "reason": "Error",
            "list": [1], "message": "went wrong\n"});
        assert_eq!(sentence(&entry), "p/c  exited code=1 reason=Error: went wrong");
        assert_eq!(
            sentence(&json!({"pod": "p", "event": "started", "reason": "Started", "attempt": 0})),
            "p  started attempt=0"
        );
        assert_eq!(
            sentence(
                &json!({"pod": "p", "container": "c", "event": "waiting", "for": "gate", "text": "waits for `x`"})
            ),
            "p/c  waits for `x`"
        );
    }

    #[tokio::test]
    async fn json_has_one_object_a_line() {
        let (output, shown) = Output::captured(Format::Json, false);
        output.entry(Duration::ZERO, &json!({"event": "started"}));
        let lines = b"2024-01-01T00:00:00Z stdout F a\n2024-01-01T00:00:01Z stderr F b\n".to_vec();
        output.log(&"p".into(), &"c".into(), lines).await;
        output.finish().await;
        let text = shown.text();
        let objects: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        assert_eq!(objects.len(), 3);
        assert_eq!((&objects[1]["stream"], &objects[2]["text"]), (&json!("stdout"), &json!("b")));
    }

    #[tokio::test]
    async fn quiet_leaves_the_containers_output() {
        let (output, shown) = Output::captured(Format::Plain, true);
        output.entry(Duration::ZERO, &json!({"event": "started"}));
        output.log(&"p".into(), &"c".into(), b"2024-01-01T00:00:00Z stdout F a\n".to_vec()).await;
        output.finish().await;
        assert_eq!(shown.text(), "c | a\n");
    }
}
