//! Time in the engine: always passed in, never read from a clock.

use std::ops::{Add, Sub};

use serde::{Deserialize, Serialize};

/// A time in milliseconds since the Unix epoch, as counted by the observer. The observer guarantees that it
/// never goes backwards within one pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Time(pub u64);

impl Time {
    /// Milliseconds from `earlier` to here; zero if it is not earlier.
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
