//! Crash-loop back-off arithmetic (R1.60 to R1.66), exact to the millisecond (G-08).

use crate::observation::{Backoff, Container, KillReason};
use crate::plan::BackoffPlan;
use crate::time::Time;
use outrigger_text::duration_ms;

/// The wait after failed pulls: 10 s, doubling up to 300 s (R1.69).
const IMAGE: BackoffPlan = BackoffPlan::KUBELET;

/// The range of an annotation: `1s..60s`.
pub(crate) fn backoff_range(text: &str) -> Option<(u64, u64)> {
    let (first, longest) = text.split_once("..")?;
    Some((duration_ms(first)?, duration_ms(longest)?)).filter(|(first, longest)| first <= longest)
}

/// When the next instance of `c` may be started.
pub(crate) fn restart_at(plan: &BackoffPlan, c: &Container) -> Time {
    match reference(c) {
        Some(finished) => ready_at(plan, &c.backoff, finished),
        None => Time(0),
    }
}

/// The end of the instance that the wait is measured from. A container that we stopped ourselves has not
/// crashed: as on the kubelet, its wait is measured from the instance before it (R2.16). A container that was
/// stopped because of another container does not wait at all.
fn reference(c: &Container) -> Option<Time> {
    let exit = c.exit.as_ref()?;
    match exit.killed_for {
        None | Some(KillReason::PostStart | KillReason::PodStop) => Some(exit.finished_at),
        Some(KillReason::Liveness | KillReason::Startup | KillReason::Unknown) => {
            c.last_exit.as_ref().map(|e| e.finished_at)
        }
        Some(
            KillReason::ImageChanged
            | KillReason::Restart
            | KillReason::Dependency
            | KillReason::Fence
            | KillReason::Rerun,
        ) => None,
    }
}

/// When the next attempt is allowed, for an instance that ended at `finished`.
pub(crate) fn ready_at(plan: &BackoffPlan, state: &Backoff, finished: Time) -> Time {
    match state.wait_ms {
        Some(wait) if finished.since(state.let_through) <= plan.reset_ms => finished + wait,
        _ => Time(0),
    }
}

/// Allows one attempt at `now`. The next one waits longer.
pub(crate) fn let_through(plan: &BackoffPlan, state: &mut Backoff, finished: Time, now: Time) {
    let wait = match state.wait_ms {
        Some(wait) if finished.since(state.let_through) <= plan.reset_ms => wait.saturating_mul(2),
        _ => plan.initial_ms,
    };
    *state = Backoff { wait_ms: Some(wait.min(plan.max_ms)), let_through: now };
}

/// The wait after the n-th failed pull in a row, n from 1.
pub(crate) fn image_wait_ms(failures: u32) -> u64 {
    doubled(IMAGE.initial_ms, failures, IMAGE.max_ms)
}

/// The wait after the n-th refused start in a row, n from 1. It is short: there was no crash to back off
/// from, and the cause (a missing mount source, a port in use) may go away at any moment.
pub(crate) fn start_wait_ms(failures: u32) -> u64 {
    doubled(500, failures, 10_000)
}

fn doubled(initial_ms: u64, failures: u32, max_ms: u64) -> u64 {
    initial_ms.saturating_mul(1 << failures.saturating_sub(1).min(20)).min(max_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_starts_are_tried_again_soon() {
        assert_eq!([1, 2, 3, 5, 6, 40].map(start_wait_ms), [500, 1_000, 2_000, 8_000, 10_000, 10_000]);
    }

    #[test]
    fn waits_follow_the_kubelet_r1_60() {
        let plan = BackoffPlan::KUBELET;
        let mut state = Backoff::default();
        let mut now = Time(1_000_000);
        let mut waits = Vec::new();
        for _ in 0..8 {
            let at = ready_at(&plan, &state, now);
            waits.push(at.since(now) / 1000);
            let start = at.max(now);
            let_through(&plan, &mut state, now, start);
            now = start;
        }
        assert_eq!(waits, [0, 10, 20, 40, 80, 160, 300, 300]);
    }

    #[test]
    fn a_long_life_starts_the_sequence_anew_r1_63() {
        let plan = BackoffPlan::KUBELET;
        let mut state = Backoff { wait_ms: Some(160_000), let_through: Time(0) };
        assert_eq!(ready_at(&plan, &state, Time(600_000)), Time(760_000));
        assert_eq!(ready_at(&plan, &state, Time(600_001)), Time(0));
        let_through(&plan, &mut state, Time(600_001), Time(600_001));
        assert_eq!(state.wait_ms, Some(10_000));
    }

    #[test]
    fn image_waits_double_to_their_cap_r1_69() {
        let waits: Vec<u64> = (1..8).map(|n| image_wait_ms(n) / 1000).collect();
        assert_eq!(waits, [10, 20, 40, 80, 160, 300, 300]);
    }
}
