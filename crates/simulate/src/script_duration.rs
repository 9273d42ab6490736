//! Durations as users write them in a script.

use std::fmt;

use outrigger_text::duration_ms;
use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A duration in milliseconds. In a script it is a number of seconds (`1.5`), a text with units (`1m30s`,
/// `250ms`), or `forever`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ScriptDuration(pub u64);

impl ScriptDuration {
    /// Longer than any simulation.
    pub const FOREVER: ScriptDuration = ScriptDuration(u64::MAX);

    /// A duration from milliseconds.
    pub const fn ms(ms: u64) -> ScriptDuration {
        ScriptDuration(ms)
    }

    /// A duration from seconds.
    pub const fn seconds(seconds: u64) -> ScriptDuration {
        ScriptDuration(seconds * 1_000)
    }

    /// Parses a duration such as `1m30s`, or `forever`.
    pub fn parse(text: &str) -> Option<ScriptDuration> {
        if text == "forever" {
            return Some(ScriptDuration::FOREVER);
        }
        duration_ms(text).map(ScriptDuration)
    }

    fn from_ms(ms: f64) -> Option<ScriptDuration> {
        // The limit of a hundred years is longer than any simulation, and prevents overflow of sums.
        (0.0..3.2e12).contains(&ms).then(|| ScriptDuration(ms.round() as u64))
    }
}

impl fmt::Display for ScriptDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            u64::MAX => f.write_str("forever"),
            ms if ms % 1_000 == 0 => write!(f, "{}s", ms / 1_000),
            ms => write!(f, "{ms}ms"),
        }
    }
}

impl Serialize for ScriptDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ScriptDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl Visitor<'_> for Reader {
            type Value = ScriptDuration;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("seconds as a number, text such as \"1m30s\" or \"250ms\", or \"forever\"")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<ScriptDuration, E> {
                ScriptDuration::parse(text).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
            }

            fn visit_f64<E: Error>(self, s: f64) -> Result<ScriptDuration, E> {
                ScriptDuration::from_ms(s * 1e3).ok_or_else(|| E::invalid_value(Unexpected::Float(s), &self))
            }

            fn visit_u64<E: Error>(self, s: u64) -> Result<ScriptDuration, E> {
                ScriptDuration::from_ms(s as f64 * 1e3)
                    .ok_or_else(|| E::invalid_value(Unexpected::Unsigned(s), &self))
            }

            fn visit_i64<E: Error>(self, s: i64) -> Result<ScriptDuration, E> {
                ScriptDuration::from_ms(s as f64 * 1e3)
                    .ok_or_else(|| E::invalid_value(Unexpected::Signed(s), &self))
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_read_as_people_write_them() {
        for (text, ms) in [
            ("1s", Some(1_000)),
            ("1m30s", Some(90_000)),
            ("250ms", Some(250)),
            ("1.5s", Some(1_500)),
            ("2h", Some(7_200_000)),
            ("forever", Some(u64::MAX)),
            ("", None),
            ("5", Some(5_000)),
            ("5 parsecs", None),
            ("s", None),
            ("-1s", None),
        ] {
            assert_eq!(ScriptDuration::parse(text).map(|s| s.0), ms, "{text}");
        }
        let read = |json| serde_json::from_str::<ScriptDuration>(json).map(|s| s.0).ok();
        assert_eq!(
            (read("2"), read("0.25"), read("-1"), read("\"3s\"")),
            (Some(2_000), Some(250), None, Some(3_000))
        );
    }
}
