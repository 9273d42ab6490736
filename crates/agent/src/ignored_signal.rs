//! Detects whether a process will ignore its stop signal.

use std::fs;

use outrigger_lifecycle::trace::IgnoredBecause;

/// Why the process with this host pid will ignore a signal; `None` if it will not, or if unknown.
pub(crate) fn why_ignored(pid: u32, signal: u32) -> Option<IgnoredBecause> {
    of_status(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?, signal)
}

/// The same, from the content of `/proc/PID/status`.
fn of_status(status: &str, signal: u32) -> Option<IgnoredBecause> {
    let field = |name: &str| {
        let mut lines = status.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    };
    let has = |name: &str| {
        let mask = u64::from_str_radix(field(name)?, 16).ok()?;
        Some(mask & (1 << (signal.checked_sub(1)?)) != 0)
    };
    let is_first = field("NSpid")?.split_whitespace().last()? == "1";
    match (has("SigIgn")?, has("SigCgt")?, has("SigBlk")?) {
        // A process that blocks the signal waits for it in another way, as small init programs do.
        (_, _, true) | (false, true, _) => None,
        (true, ..) => Some(IgnoredBecause::Ignored),
        (false, false, _) => is_first.then_some(IgnoredBecause::NoHandler),
    }
}

/// The number of a signal named `SIGTERM` or `TERM`.
pub(crate) fn number(name: &str) -> Option<u32> {
    outrigger_runtime::signals::number(name).and_then(|number| u32::try_from(number).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(ns: &str, [ignored, caught, blocked]: [u64; 3]) -> String {
        format!(
            "Name:\tx\nNSpid:\t{ns}\nSigBlk:\t{blocked:016x}\nSigIgn:\t{ignored:016x}\nSigCgt:\t{caught:016x}\n"
        )
    }

    #[test]
    fn first_processes_ignore_what_they_do_not_handle() {
        let term = 1 << 14;
        let table = [
            ("4711\t1", [0, 0, 0], Some(IgnoredBecause::NoHandler)),
            ("4711\t1", [0, term, 0], None),
            ("4711\t1", [0, 0, term], None),
            ("4711\t1", [term, 0, 0], Some(IgnoredBecause::Ignored)),
            ("4711\t7", [0, 0, 0], None),
            ("4711\t7", [term, 0, 0], Some(IgnoredBecause::Ignored)),
            ("4711\t1", [0, 1 << 13, 0], Some(IgnoredBecause::NoHandler)),
        ];
        for (ns, masks, expected) in table {
            assert_eq!(of_status(&status(ns, masks), 15), expected, "{ns} {masks:?}");
        }
        assert_eq!(of_status("", 15), None);
        assert_eq!(why_ignored(std::process::id(), 15), None, "a test is not the first process of anything");
    }

    #[test]
    fn signals_go_by_their_names() {
        assert_eq!((number("SIGTERM"), number("INT"), number("SIGNOTHING")), (Some(15), Some(2), None));
    }
}
