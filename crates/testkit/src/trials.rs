//! Runs the tests of a program in parallel.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use libtest_mimic::{Arguments, Trial};

use crate::rootfs;
use crate::run::{Bench, Test};

/// How many tests run in parallel. They mostly wait, so this is more than the number of cores.
const AT_A_TIME: usize = 6;

/// Who can run the tests of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunBy {
    /// Only root. For other users, the tests count as ignored.
    Root,
    /// Every user.
    Anybody,
}

/// Runs tests and ends the program. Each test has its own directory below one that is named after `name`.
pub fn run(name: &str, by: RunBy, tests: Vec<(&'static str, Test)>) -> ! {
    let mut args = Arguments::from_args();
    if by == RunBy::Root && !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: the tests of `{name}` need root");
        let trials = tests.into_iter().map(|(name, _)| Trial::test(name, || Ok(())).with_ignored_flag(true));
        // This applies to `--include-ignored`, too: no test may count as passed.
        (args.ignored, args.include_ignored) = (false, false);
        libtest_mimic::run(&args, trials.collect()).exit();
    }
    args.test_threads = Some(args.test_threads.unwrap_or(AT_A_TIME));
    let work = tempfile::Builder::new().prefix(&format!("outrigger-{name}-")).tempdir().expect("a directory");
    // Containers that do not run as root must be able to read it.
    fs::set_permissions(work.path(), PermissionsExt::from_mode(0o755)).expect("a mode");
    let rootfs = rootfs::make(&work.path().join("rootfs"));
    let bench = Arc::new(Bench {
        binary: crate::binary(),
        image: format!("rootfs:{}", rootfs.display()),
        work: work.path().to_owned(),
    });
    let trials = tests.into_iter().map(|(name, test)| {
        let bench = Arc::clone(&bench);
        Trial::test(name, move || {
            test(&bench, name);
            Ok(())
        })
    });
    let conclusion = libtest_mimic::run(&args, trials.collect());
    drop(bench);
    drop(work);
    conclusion.exit();
}
