//! Times of the engine. They are always passed in, and never read from a clock.

use std::ops::{Add, Sub};

use serde::{Deserialize, Serialize};

/// A time in milliseconds since the Unix epoch, as the observer counts it. Within one pod, the observer never
/// lets it go backwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Time(pub u64);

impl Time {
    /// The milliseconds from `earlier` to this time; zero if `earlier` is not earlier.
    pub fn since(self, earlier: Time) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<u64> for Time {
    type Output = Time;
    fn add(self, ms: u64) -> Time {
        Time(self.0.saturating_add(ms))
    }
}

impl Sub<u64> for Time {
    type Output = Time;
    fn sub(self, ms: u64) -> Time {
        Time(self.0.saturating_sub(ms))
    }
}
