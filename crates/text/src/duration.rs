//! Durations as users write them and as messages show them. All flags, annotations and scripts use this
//! grammar.

use std::fmt;

/// The longest duration, a hundred years. It is longer than anyone waits, and prevents overflow of sums.
const MS_MAX: u64 = 100 * 365 * 86_400_000;
/// The number of fraction digits that can affect the milliseconds.
const FRACTION_DIGITS_MAX: usize = 9;

/// Parses a duration into milliseconds: `1500ms`, `5s`, `1.5s`, `2m`, `1h`, `1m30s`. A number without a unit is in
/// seconds. Parts of a millisecond are rounded.
pub fn duration_ms(text: &str) -> Option<u64> {
    let mut rest = text.trim();
    if rest.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
        return in_range(scaled(rest, 1_000)?);
    }
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let (number, after) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit() && c != '.')?);
        let (unit, after) = after.split_at(after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len()));
        let unit = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            _ => return None,
        };
        total = total.checked_add(scaled(number, unit)?)?;
        rest = after;
    }
    in_range(total)
}

fn in_range(ms: u64) -> Option<u64> {
    (ms <= MS_MAX).then_some(ms)
}

/// Converts a decimal number of units to milliseconds.
fn scaled(number: &str, unit_ms: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let is_number = |digits: &str| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    if !is_number(whole) || !is_number(fraction) || fraction.len() > FRACTION_DIGITS_MAX {
        return None;
    }
    let parts = 10_u64.pow(fraction.len() as u32);
    let part = (fraction.parse::<u64>().ok()?.checked_mul(unit_ms)? + parts / 2) / parts;
    whole.parse::<u64>().ok()?.checked_mul(unit_ms)?.checked_add(part)
}

/// A duration in the form for people: `0.4 s`, `12.4 s`, `2 min 5 s`, `3 h 20 min`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HumanDuration(
    /// The duration in milliseconds.
    pub u64,
);

impl fmt::Display for HumanDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenths = self.0.saturating_add(50) / 100;
        let s = tenths / 10;
        match (s / 3600, s / 60 % 60, s % 60) {
            (0, 0, s) if !tenths.is_multiple_of(10) => write!(f, "{s}.{} s", tenths % 10),
            (0, 0, s) => write!(f, "{s} s"),
            (0, m, 0) => write!(f, "{m} min"),
            (0, m, s) => write!(f, "{m} min {s} s"),
            (h, 0, _) => write!(f, "{h} h"),
            (h, m, _) => write!(f, "{h} h {m} min"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_written_as_elsewhere_in_kubernetes() {
        for (text, ms) in [
            ("1500ms", 1_500),
            ("5", 5_000),
            (" 5s ", 5_000),
            ("2m", 120_000),
            ("1m30s", 90_000),
            ("1h0m1s500ms", 3_601_500),
            ("0", 0),
            ("0s", 0),
            ("1.5s", 1_500),
            ("0.25", 250),
            ("1.5h", 5_400_000),
            ("0.1239s", 124),
            ("876000h", MS_MAX),
        ] {
            assert_eq!(duration_ms(text), Some(ms), "{text:?}");
        }
        for text in [
            "",
            " ",
            "s",
            "5x",
            "+5",
            "-5s",
            "1m30",
            ".5s",
            "1.s",
            "1.2.3s",
            ".",
            "5 s",
            "5s,",
            "876001h",
            "0.1234567890s",
            "18446744073709551615h",
            "99999999999999999999",
        ] {
            assert_eq!(duration_ms(text), None, "{text:?}");
        }
    }

    #[test]
    fn durations_as_people_read_them() {
        for (ms, expect) in [
            (0, "0 s"),
            (40, "0 s"),
            (50, "0.1 s"),
            (400, "0.4 s"),
            (999, "1 s"),
            (12_400, "12.4 s"),
            (20_000, "20 s"),
            (59_960, "1 min"),
            (65_300, "1 min 5 s"),
            (3_600_000, "1 h"),
            (12_000_000, "3 h 20 min"),
        ] {
            assert_eq!(HumanDuration(ms).to_string(), expect, "{ms}");
        }
    }
}
