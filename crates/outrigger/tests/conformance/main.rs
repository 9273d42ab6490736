//! Pod cases in real containers: every file of `tests/conformance/cases` (they hold on a real kubelet 1.36.4) and of
//! `tests/conformance/dialects` (the dialects no kubelet speaks), each its own test, several at a time.
//!
//! Their format is described in `tests/conformance/README.md`. Expectations are semantic: order is asserted only where
//! something gates it, upper bounds are loose.

mod case;
mod events;
mod rootfs;
mod run;
mod side_by_side;
mod status;
mod trials;

use std::path::PathBuf;
use std::sync::Arc;

use libtest_mimic::Arguments;

/// Cases mostly wait, so more of them than cores run side by side.
const CASES_AT_A_TIME: usize = 8;

fn main() {
    let mut args = Arguments::from_args();
    args.test_threads = Some(args.test_threads.unwrap_or(CASES_AT_A_TIME));
    let work =
        tempfile::Builder::new().prefix("outrigger-conformance-").tempdir().expect("a temporary directory");
    run::open_to_all(work.path());
    let rootfs = rootfs::make(&work.path().join("rootfs"));
    let bench = |prefix: &str| {
        Arc::new(run::Bench {
            prefix: prefix.to_owned(),
            binary: PathBuf::from(env!("CARGO_BIN_EXE_outrigger")),
            image: format!("rootfs:{}", rootfs.display()),
            work: work.path().to_owned(),
            lib: trials::top().join("lib.sh"),
            extra_flags: std::env::var("OUTRIGGER_CONFORMANCE_FLAGS")
                .map(|flags| flags.split_whitespace().map(str::to_owned).collect())
                .unwrap_or_default(),
        })
    };
    let mut trials = trials::all(&bench(""));
    trials.extend(side_by_side::all(&bench("kubelet-")));
    let conclusion = libtest_mimic::run(&args, trials);
    drop(work);
    conclusion.exit();
}
