//! The time of a run: the wall clock when it began, carried on by the monotonic clock. One for all its pods and whoever
//! makes them, so that their times can be compared.
//!
//! The engine is promised a time that never goes backwards; the wall clock makes no such promise.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use outrigger_lifecycle::Time;
use tokio::time::Instant;

/// Where the time comes from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    wall: Duration,
    start: Instant,
}

/// One reading: what the engine is told, and the rest of the nanoseconds for the record.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stamp {
    /// The engine's time.
    pub(crate) time: Time,
    /// The same moment, since the Unix epoch.
    pub(crate) exact: Duration,
}

impl Clock {
    /// A clock that starts now.
    pub(crate) fn start() -> Self {
        Clock { wall: since_epoch(SystemTime::now()), start: Instant::now() }
    }

    /// Now.
    pub(crate) fn now(&self) -> Stamp {
        let exact = self.wall + self.start.elapsed();
        Stamp { time: Time(millis(exact)), exact }
    }

    /// When a time will have come. Rounded up, so that a timer that fires has really reached it.
    pub(crate) fn instant(&self, time: Time) -> Instant {
        let wait = Duration::from_millis(time.0).saturating_sub(self.wall);
        // Far away is as good as never, and the timer wheel has its own limit.
        self.start + wait.min(Duration::from_secs(60 * 60 * 24 * 365))
    }

    /// A moment the runtime noted by the wall clock, in this clock's time; never later than `now`.
    pub(crate) fn noted(&self, at: SystemTime, now: Time) -> Time {
        Time(millis(since_epoch(at)).min(now.0))
    }
}

fn since_epoch(at: SystemTime) -> Duration {
    at.duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// RFC 3339 with nanoseconds, in UTC.
pub(crate) fn rfc3339_nanos(exact: Duration) -> String {
    let nanos = i128::try_from(exact.as_nanos()).unwrap_or(i128::MAX);
    match jiff::Timestamp::from_nanosecond(nanos) {
        Ok(at) => format!("{at:.9}"),
        Err(_) => format!("{}s", exact.as_secs()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_timer_that_fires_has_reached_its_time() {
        let clock = Clock::start();
        for ms in [1, 7, 1_000, 90_000] {
            let at = clock.now().time + ms;
            tokio::time::sleep_until(clock.instant(at)).await;
            assert!(clock.now().time >= at, "{ms}");
        }
    }

    #[test]
    fn the_record_has_nine_digits() {
        assert_eq!(rfc3339_nanos(Duration::new(1_700_000_000, 12_345_678)), "2023-11-14T22:13:20.012345678Z");
        assert_eq!(rfc3339_nanos(Duration::from_secs(1_700_000_000)), "2023-11-14T22:13:20.000000000Z");
    }

    #[tokio::test(start_paused = true)]
    async fn the_runtime_cannot_note_the_future() {
        let clock = Clock::start();
        let now = clock.now().time;
        let noted = clock.noted(SystemTime::now() + Duration::from_secs(3600), now);
        assert_eq!(noted, now);
    }
}
