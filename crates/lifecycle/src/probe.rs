//! Probe arithmetic: when to probe, which results count, and what the overall result is.
//!
//! The first attempt follows the start immediately. Until the first success, the intervals grow from 20 ms,
//! doubling up to the author's period, so that a started container is detected early (G-06).
//!
//! Failures count only once per period, from the end of the first period on. A container therefore really has
//! `failureThreshold x periodSeconds`, however often it is probed in between. Counters belong to one instance
//! (G-37).

use crate::action::ProbeOutcome;
use crate::observation::{Probe, Verdict};
use crate::plan::ProbePlan;
use crate::time::Time;

/// The first interval between attempts.
const RAMP_FIRST_MS: u64 = 20;

/// When the next attempt is due, for an instance running since `since`.
pub(crate) fn due(plan: &ProbePlan, probe: &Probe, since: Time) -> Time {
    probe.next_at.max(since + plan.initial_delay_ms)
}

/// Records the result of an attempt.
pub(crate) fn record(plan: &ProbePlan, probe: &mut Probe, since: Time, outcome: ProbeOutcome, now: Time) {
    let began = probe.in_flight.take().unwrap_or(now);
    let ok = match outcome {
        ProbeOutcome::Success => true,
        ProbeOutcome::Failure => false,
        ProbeOutcome::Error => {
            // Errors count once per period, like failures: the thing that is missing may be created in the
            // meantime.
            let paced_from = probe.error_at.unwrap_or(since + plan.initial_delay_ms);
            if probe.was_ok || now.since(paced_from) >= plan.period_ms {
                probe.errors += 1;
                probe.error_at = Some(now);
            }
            schedule(plan, probe, since, began, now);
            return;
        }
    };
    (probe.errors, probe.error_at) = (0, None);
    if probe.last_ok != Some(ok) {
        probe.run = 0;
    }
    probe.last_ok = Some(ok);
    probe.failures = if ok { 0 } else { probe.failures + 1 };
    // After the first success, attempts follow the author's period and every result counts. Before it, a
    // failure counts only when a whole period has passed.
    let paced_from = probe.counted_at.unwrap_or(since + plan.initial_delay_ms);
    if ok || probe.was_ok || now.since(paced_from) >= plan.period_ms {
        probe.run += 1;
        probe.counted_at = Some(now);
    }
    probe.was_ok |= ok;
    if ok && probe.run >= plan.success_threshold {
        probe.verdict = Verdict::Success;
    } else if !ok && probe.run >= plan.failure_threshold {
        probe.verdict = Verdict::Failure;
    }
    schedule(plan, probe, since, began, now);
}

fn schedule(plan: &ProbePlan, probe: &mut Probe, since: Time, began: Time, now: Time) {
    probe.next_at = if probe.was_ok {
        (began + plan.period_ms).max(now)
    } else {
        let step = RAMP_FIRST_MS.saturating_mul(1 << probe.ramp.min(20)).min(plan.period_ms);
        probe.ramp += 1;
        // An attempt is made no later than the time at which the next failure counts.
        let counts_at = probe.counted_at.unwrap_or(since + plan.initial_delay_ms) + plan.period_ms;
        if counts_at > now { (now + step).min(counts_at) } else { now + step }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: ProbePlan = ProbePlan {
        initial_delay_ms: 0,
        period_ms: 1_000,
        timeout_ms: 1_000,
        success_threshold: 1,
        failure_threshold: 3,
        grace_ms: None,
    };

    /// Makes attempts when they are due, until there is a result or `until` has passed. Returns their times.
    fn play(plan: &ProbePlan, result: impl Fn(u64) -> ProbeOutcome, until: u64) -> (Vec<u64>, Probe) {
        let mut probe = Probe::default();
        let mut times = Vec::new();
        loop {
            let at = due(plan, &probe, Time(0));
            if at.0 > until {
                return (times, probe);
            }
            probe.in_flight = Some(at);
            times.push(at.0);
            record(plan, &mut probe, Time(0), result(at.0), at);
            if probe.verdict == Verdict::Failure {
                return (times, probe);
            }
        }
    }

    #[test]
    fn attempts_ramp_up_and_failures_count_at_the_authors_pace_g06() {
        let (times, probe) = play(&PLAN, |_| ProbeOutcome::Failure, 100_000);
        assert_eq!(&times[..6], [0, 20, 60, 140, 300, 620]);
        assert_eq!(*times.last().unwrap(), 3_000, "threshold x period is the time it has");
        assert_eq!(probe.verdict, Verdict::Failure);
    }

    #[test]
    fn initial_delay_is_a_minimum_and_shifts_the_count() {
        let plan = ProbePlan { initial_delay_ms: 5_000, failure_threshold: 1, ..PLAN };
        let (times, _) = play(&plan, |_| ProbeOutcome::Failure, 100_000);
        assert_eq!(times[0], 5_000);
        assert_eq!(*times.last().unwrap(), 6_000);
    }

    #[test]
    fn after_a_success_every_attempt_counts_12_12_row_10() {
        let (times, _) = play(
            &PLAN,
            |t| {
                if t < 2_500 { ProbeOutcome::Success } else { ProbeOutcome::Failure }
            },
            60_000,
        );
        assert_eq!(times, [0, 1_000, 2_000, 3_000, 4_000, 5_000]);
    }

    #[test]
    fn success_threshold_needs_successes_a_period_apart_12_12_row_11() {
        let plan = ProbePlan { success_threshold: 3, failure_threshold: 1, ..PLAN };
        let mut probe = Probe::default();
        for (at, ok, verdict) in [
            (0, true, Verdict::Unknown),
            (1_000, true, Verdict::Unknown),
            (2_000, true, Verdict::Success),
            (3_000, false, Verdict::Failure),
        ] {
            let outcome = if ok { ProbeOutcome::Success } else { ProbeOutcome::Failure };
            record(&plan, &mut probe, Time(0), outcome, Time(at));
            assert_eq!(probe.verdict, verdict, "at {at}");
        }
    }

    #[test]
    fn an_error_counts_for_nothing_r6_12() {
        let (times, probe) = play(&PLAN, |_| ProbeOutcome::Error, 20_000);
        assert!(times.len() > 5);
        assert_eq!((probe.verdict, probe.run, probe.last_ok), (Verdict::Unknown, 0, None));
    }

    #[test]
    fn errors_in_a_row_are_counted_at_the_authors_pace() {
        for (until, errors) in [(900, 0), (3_500, 3), (10_500, 10)] {
            assert_eq!(play(&PLAN, |_| ProbeOutcome::Error, until).1.errors, errors, "after {until} ms");
        }
        let healed = |at: u64| if at < 5_000 { ProbeOutcome::Error } else { ProbeOutcome::Success };
        assert_eq!(play(&PLAN, healed, 6_000).1.errors, 0, "they are no longer in a row");
    }
}
