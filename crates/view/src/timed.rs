//! Reads the entries of a trace, with their times in milliseconds.

use outrigger_lifecycle::trace::{self, Record, TraceEvent};
use thiserror::Error;

/// Why a trace cannot be drawn.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum TimelineError {
    /// An entry lacks a field that every entry has.
    #[error("entry {number} of the trace has no {field:?}")]
    Missing {
        /// The number of the entry, counted from 1.
        number: usize,
        /// The name of the missing field.
        field: &'static str,
    },
    /// A time that cannot be parsed.
    #[error("entry {number} of the trace has the time {text:?}, expected seconds or a date and time in UTC")]
    Time {
        /// The number of the entry, counted from 1.
        number: usize,
        /// The time as written.
        text: String,
    },
}

/// One entry of a trace, from a file or a simulation.
pub(crate) struct Line<'a> {
    pub(crate) at: u64,
    pub(crate) container: Option<&'a str>,
    pub(crate) event: &'a TraceEvent,
}

impl Line<'_> {
    pub(crate) fn is(&self, kind: trace::Kind) -> bool {
        self.event.kind() == kind
    }
}

/// The entries of a trace's first pod, in milliseconds since `zero`. `None` means since the first of them.
pub(crate) fn lines(entries: &[Record], zero: Option<u64>) -> Result<Vec<Line<'_>>, TimelineError> {
    let pod = entries.first().map(|e| e.pod.as_str()).unwrap_or_default();
    let mut out = Vec::with_capacity(entries.len());
    let mut first = zero;
    for (i, entry) in entries.iter().enumerate().filter(|(_, entry)| entry.pod == pod) {
        let number = i + 1;
        if entry.time.is_empty() {
            return Err(TimelineError::Missing { number, field: "time" });
        }
        let at = milliseconds(&entry.time)
            .ok_or_else(|| TimelineError::Time { number, text: entry.time.clone() })?;
        let zero = *first.get_or_insert(at);
        let at = at.saturating_sub(zero);
        out.push(Line { at, container: entry.container.as_deref(), event: &entry.event });
    }
    Ok(out)
}

/// Parses `12.345`, or RFC 3339 in UTC, as milliseconds.
pub(crate) fn milliseconds(text: &str) -> Option<u64> {
    if let Some((date, time)) = text.split_once('T') {
        let mut date = date.splitn(3, '-').map(|n| n.parse::<i64>().ok());
        let (year, month, day) = (date.next()??, date.next()??, date.next()??);
        let mut time = time.strip_suffix('Z')?.splitn(3, ':');
        let (hours, minutes) = (time.next()?.parse::<i64>().ok()?, time.next()?.parse::<i64>().ok()?);
        let seconds: f64 = time.next()?.parse().ok()?;
        // Computes the days since 1970 in the Gregorian calendar. Years begin in March here, so that leap
        // days come last.
        let (y, m) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
        let days = 365 * y + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + day - 1 - 719_468;
        let whole = ((days * 24 + hours) * 60 + minutes) * 60;
        return u64::try_from(whole * 1_000 + (seconds * 1e3).round() as i64).ok();
    }
    let seconds: f64 = text.parse().ok()?;
    (0.0..1e15).contains(&seconds).then(|| (seconds * 1e3).round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_read_both_ways() {
        assert_eq!(milliseconds("1.250"), Some(1_250));
        assert_eq!(milliseconds("1970-01-01T00:00:01.5Z"), Some(1_500));
        assert_eq!(milliseconds("2000-03-01T00:00:00Z"), Some(951_868_800_000));
        assert_eq!(milliseconds("2026-02-28T23:59:59.999Z"), Some(1_772_323_199_999));
        assert_eq!(milliseconds("soon"), None);
    }
}
