//! The event log of the containers' scripts, and expectations about it.

use std::io::Write;
use std::path::PathBuf;

use serde_json::Value;

use crate::conformance::status::compare;

/// The file with lines `<seconds of uptime> <who> <what>`.
#[derive(Debug, Clone)]
pub struct Log(pub PathBuf);

/// Pairs of (seconds, `who:what`).
pub type Events = Vec<(f64, String)>;

impl Log {
    /// Adds an event of the test itself.
    pub fn add(&self, event: &str) {
        let uptime = std::fs::read_to_string("/proc/uptime").expect("the uptime");
        let uptime: f64 = uptime.split(' ').next().and_then(|t| t.parse().ok()).expect("a number");
        let mut file = std::fs::OpenOptions::new().append(true).open(&self.0).expect("the event log");
        file.write_all(format!("{uptime:.2} runner {event}\n").as_bytes()).expect("write the event log");
    }

    pub fn read(&self) -> Events {
        let text = String::from_utf8_lossy(&std::fs::read(&self.0).expect("the event log")).into_owned();
        let complete = text.rfind('\n').map_or("", |end| &text[..end]);
        let parse = |line: &str| {
            let mut words = line.split_whitespace();
            let (time, who, what) = (words.next()?, words.next()?, words.next()?);
            words.next().is_none().then_some((time.parse().ok()?, format!("{who}:{what}")))
        };
        complete.lines().filter_map(parse).collect()
    }
}

/// Index and time of the event that a selector names: `main:start`, `main:start#2`, `main:start#-1`.
pub fn find(events: &Events, selector: &str) -> Option<(usize, f64)> {
    let (name, nth) = selector.split_once('#').unwrap_or((selector, "1"));
    let hits: Vec<(usize, f64)> =
        events.iter().enumerate().filter(|(_, (_, e))| e == name).map(|(i, (t, _))| (i, *t)).collect();
    let nth: i64 = nth.parse().ok()?;
    let index = if nth > 0 { nth - 1 } else { i64::try_from(hits.len()).ok()? + nth };
    hits.get(usize::try_from(index).ok()?).copied()
}

/// The expectations that are not met.
pub fn check(expect: &Value, events: &Events) -> Vec<String> {
    let mut bad = Vec::new();
    let at = |selector: &str, what: &str, bad: &mut Vec<String>| {
        let found = find(events, selector);
        if found.is_none() {
            bad.push(format!("{what}: no event {selector}"));
        }
        found
    };
    for pair in list(expect, "before") {
        let (a, b) = (text(pair, 0), text(pair, 1));
        if let (Some(pa), Some(pb)) = (at(a, "before", &mut bad), at(b, "before", &mut bad))
            && pa.0 >= pb.0
        {
            bad.push(format!("{a} ({:.2}) not before {b} ({:.2})", pa.1, pb.1));
        }
    }
    for row in list(expect, "nolater") {
        let (a, b, most) = (text(row, 0), text(row, 1), row[2].as_f64().unwrap_or(0.0));
        if let (Some(pa), Some(pb)) = (at(a, "nolater", &mut bad), at(b, "nolater", &mut bad))
            && pa.1 > pb.1 + most
        {
            bad.push(format!("{a} is {:.2} s later than {b}, at most {most}", pa.1 - pb.1));
        }
    }
    for event in list(expect, "never") {
        if find(events, event.as_str().unwrap_or_default()).is_some() {
            bad.push(format!("{event} must never occur"));
        }
    }
    for pair in list(expect, "never_after") {
        let (a, x) = (text(pair, 0), text(pair, 1));
        if let Some((index, _)) = at(a, "never_after", &mut bad)
            && events[index + 1..].iter().any(|(_, e)| e == x)
        {
            bad.push(format!("{x} occurs after {a}"));
        }
    }
    for (event, want) in expect["count"].as_object().into_iter().flatten() {
        let count = events.iter().filter(|(_, e)| e == event).count();
        if !compare(&Value::from(count), want) {
            bad.push(format!("{event} occurs {count} times, want {want}"));
        }
    }
    for (key, within) in [("within", true), ("atleast", false)] {
        for row in list(expect, key) {
            let (a, b, seconds) = (text(row, 0), text(row, 1), row[2].as_f64().unwrap_or(0.0));
            if let (Some(pa), Some(pb)) = (at(a, key, &mut bad), at(b, key, &mut bad)) {
                let took = pb.1 - pa.1;
                if (within && took > seconds) || (!within && took < seconds) {
                    bad.push(format!("{a} -> {b} took {took:.2} s, want {key} {seconds}"));
                }
            }
        }
    }
    bad
}

fn list<'v>(expect: &'v Value, key: &str) -> &'v [Value] {
    expect[key].as_array().map_or(&[], Vec::as_slice)
}

fn text(row: &Value, index: usize) -> &str {
    row[index].as_str().unwrap_or_default()
}
