//! Combines the results of pods.

use outrigger_agent::event::PodResult;
use outrigger_lifecycle::Phase;

/// The exit code for the results of pods. It is 0 if all succeeded, else the exit code of the main that
/// failed first, or 1 if no main failed.
pub(crate) fn exit_code(results: &[PodResult]) -> u8 {
    let failed = results.iter().filter(|r| r.phase != Phase::Succeeded);
    let codes = failed.clone().filter_map(|r| r.failed);
    match codes.min_by_key(|(at, _)| *at) {
        Some((_, code)) => u8::try_from(code).ok().filter(|c| *c > 0).unwrap_or(1),
        None => u8::from(failed.count() > 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_lifecycle::Time;

    #[test]
    fn the_first_failure_is_the_result() {
        let ok = PodResult { phase: Phase::Succeeded, failed: None };
        let failed = |at: u64, code: i32| PodResult { phase: Phase::Failed, failed: Some((Time(at), code)) };
        let without = PodResult { phase: Phase::Failed, failed: None };
        let table = [
            (vec![ok], 0),
            (vec![], 0),
            (vec![ok, failed(5, 7)], 7),
            (vec![failed(5, 7), failed(3, 9)], 9),
            (vec![without], 1),
            (vec![without, failed(5, 7)], 7),
            (vec![failed(1, 300)], 1),
        ];
        for (results, expected) in table {
            assert_eq!(exit_code(&results), expected, "{results:?}");
        }
    }
}
