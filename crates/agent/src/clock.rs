//! The clock of a run: the wall clock at the start, advanced by the monotonic clock plus the time the machine
//! was suspended. All pods of a run share it, so their timestamps can be compared.
//!
//! The engine needs a time that never goes backwards, which the wall clock does not guarantee. Deadlines keep
//! running while a laptop is suspended, so suspended time counts (`CLOCK_BOOTTIME`).

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use outrigger_lifecycle::Time;
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::Instant;

/// Waits shorter than this use no kernel timer. They may be late after a suspension, which does not matter.
const SHORT_WAIT: Duration = Duration::from_secs(2);

/// The two clocks are read one after the other; only a larger difference counts as a suspension.
const READING_ERROR: Duration = Duration::from_millis(100);

/// The longest single wait. Tokio's timer wheel has an upper limit.
const WAIT_MAX: Duration = Duration::from_secs(60 * 60 * 24 * 365);

/// The source of time for all pods of a run.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    wall: Duration,
    start: Instant,
    /// How long the machine had been suspended when the clock started.
    suspended_at_start: Duration,
    /// How long the machine has been suspended so far.
    suspended: fn() -> Duration,
}

/// One reading: the engine's time, and the exact time for the trace.
#[derive(Debug, Clone, Copy)]
pub struct Stamp {
    /// The engine's time.
    pub time: Time,
    /// The same moment, since the Unix epoch.
    pub exact: Duration,
}

impl Clock {
    /// Starts a clock now.
    pub fn start() -> Self {
        Clock::with(suspended)
    }

    fn with(suspended: fn() -> Duration) -> Self {
        Clock {
            wall: since_epoch(SystemTime::now()),
            start: Instant::now(),
            suspended_at_start: suspended(),
            suspended,
        }
    }

    /// A clock that shows the same time as another one, given that clock's time at boot
    /// ([`Clock::wall_at_boot`]).
    pub fn since_boot(wall_at_boot: Duration) -> Self {
        Clock { wall: wall_at_boot + duration(clock_gettime(ClockId::Boottime)), ..Clock::start() }
    }

    /// The time this clock would have shown when the machine booted.
    pub fn wall_at_boot(&self) -> Duration {
        self.now().exact.saturating_sub(duration(clock_gettime(ClockId::Boottime)))
    }

    /// The current time.
    pub fn now(&self) -> Stamp {
        let asleep = (self.suspended)().saturating_sub(self.suspended_at_start);
        let exact = self.wall + self.start.elapsed() + asleep;
        Stamp { time: Time(millis(exact)), exact }
    }

    /// Waits until `time` is reached. If the machine was suspended meanwhile, this is noticed as soon as it
    /// resumes.
    pub async fn reach(&self, time: Time) {
        loop {
            let left = Duration::from_millis(time.0).saturating_sub(self.now().exact);
            if left.is_zero() {
                return;
            }
            let wait = tokio::time::sleep(left.min(WAIT_MAX));
            match (left > SHORT_WAIT).then(|| boot_timer(left)) {
                Some(Ok(timer)) => tokio::select! {
                    () = wait => {}
                    _ = timer.readable() => {}
                },
                // Without a kernel timer a suspension only delays the wake-up.
                Some(Err(_)) | None => wait.await,
            }
        }
    }

    /// Converts a wall-clock time reported by the runtime to this clock's time; never later than `now`.
    pub fn noted(&self, at: SystemTime, now: Time) -> Time {
        noted(since_epoch(at), since_epoch(SystemTime::now()), now)
    }
}

/// Converts by the age: the difference of two readings of the wall clock. The wall clock may have been set
/// since the run started, and this clock does not follow such changes.
fn noted(at: Duration, wall: Duration, now: Time) -> Time {
    Time(now.0.saturating_sub(millis(wall.saturating_sub(at))))
}

/// A timer that keeps running while the machine is suspended.
fn boot_timer(after: Duration) -> std::io::Result<AsyncFd<OwnedFd>> {
    let fd = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
    let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
    let it_value = Timespec {
        tv_sec: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: after.subsec_nanos().into(),
    };
    timerfd_settime(&fd, TimerfdTimerFlags::empty(), &Itimerspec { it_interval: zero, it_value })?;
    // SAFETY: the registered object owns the timer's descriptor, and nothing closes or replaces it.
    Ok(unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE)? })
}

/// How long the machine has been suspended since boot. Never decreases.
fn suspended() -> Duration {
    static KNOWN: AtomicU64 = AtomicU64::new(0);
    let boot = duration(clock_gettime(ClockId::Boottime));
    // Read second, so that a pause between the two readings makes the difference smaller, never larger.
    let monotonic = duration(clock_gettime(ClockId::Monotonic));
    let now = boot.saturating_sub(monotonic);
    let known = Duration::from_nanos(KNOWN.load(Ordering::Relaxed));
    if now <= known + READING_ERROR {
        return known;
    }
    let nanos = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
    Duration::from_nanos(KNOWN.fetch_max(nanos, Ordering::Relaxed).max(nanos))
}

fn duration(at: Timespec) -> Duration {
    Duration::new(u64::try_from(at.tv_sec).unwrap_or(0), u32::try_from(at.tv_nsec).unwrap_or(0))
}

fn since_epoch(at: SystemTime) -> Duration {
    at.duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// RFC 3339 with nanoseconds, in UTC.
pub fn rfc3339_nanos(exact: Duration) -> String {
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
            clock.reach(at).await;
            assert!(clock.now().time >= at, "{ms}");
        }
    }

    /// The machine is suspended for an hour. A deadline in half an hour has passed when it resumes.
    #[tokio::test(start_paused = true)]
    async fn suspended_time_counts() {
        static ASLEEP: AtomicU64 = AtomicU64::new(7_000);
        let clock = Clock::with(|| Duration::from_secs(ASLEEP.load(Ordering::Relaxed)));
        let before = clock.now().time;
        let deadline = before + 1_800_000;
        ASLEEP.fetch_add(3_600, Ordering::Relaxed);
        assert_eq!(clock.now().time.since(before), 3_600_000);
        let waited = Instant::now();
        clock.reach(deadline).await;
        assert_eq!(waited.elapsed(), Duration::ZERO);
    }

    #[test]
    fn the_reading_of_suspended_time_never_shrinks() {
        let mut last = suspended();
        for _ in 0..10_000 {
            let now = suspended();
            assert!(now >= last);
            last = now;
        }
    }

    /// The kernel timer wakes a run after a suspension.
    #[tokio::test]
    async fn the_boot_timer_fires() {
        let timer = boot_timer(Duration::from_millis(20)).expect("a timer");
        let _ = timer.readable().await.expect("it fires");
    }

    #[test]
    fn the_record_has_nine_digits() {
        assert_eq!(rfc3339_nanos(Duration::new(1_700_000_000, 12_345_678)), "2023-11-14T22:13:20.012345678Z");
        assert_eq!(rfc3339_nanos(Duration::from_secs(1_700_000_000)), "2023-11-14T22:13:20.000000000Z");
    }

    /// A container ended two seconds ago. Earlier changes of the wall clock have no effect.
    #[test]
    fn a_time_of_day_that_was_set_does_not_move_what_is_noted() {
        let now = Time(1_700_000_000_000);
        let hours = Duration::from_secs(5 * 3_600);
        let wall = Duration::from_millis(now.0);
        for wall in [wall, wall + hours, wall - hours, Duration::from_secs(3)] {
            let ended = wall.saturating_sub(Duration::from_secs(2));
            assert_eq!(noted(ended, wall, now), Time(now.0 - 2_000), "{wall:?}");
        }
        // The wall clock was set back since then. The result is not in the future.
        assert_eq!(noted(wall, wall - hours, now), now);
    }

    /// The clock of a node is based on the boot time, independent of the wall clock at restart.
    #[test]
    fn a_clock_that_goes_on_does_not_ask_for_the_time_of_day() {
        let (first, told) = (Clock::start(), Duration::from_secs(1_000_000_000));
        let boot = told.saturating_sub(duration(clock_gettime(ClockId::Boottime)));
        let second = Clock::since_boot(boot);
        assert!(second.now().exact.abs_diff(told) < Duration::from_secs(5), "{:?}", second.now());
        assert!(second.wall_at_boot().abs_diff(boot) < Duration::from_secs(5));
        assert!(first.now().exact.abs_diff(second.now().exact) > Duration::from_secs(3_600));
    }

    #[tokio::test(start_paused = true)]
    async fn the_runtime_cannot_note_the_future() {
        let clock = Clock::start();
        let now = clock.now().time;
        let noted = clock.noted(SystemTime::now() + Duration::from_secs(3600), now);
        assert_eq!(noted, now);
    }
}
