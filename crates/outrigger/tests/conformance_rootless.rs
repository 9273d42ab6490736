//! Runs the pod cases of `conformance` as an ordinary user: a part of them, or all with
//! `OUTRIGGER_ALL_CASES=1`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::Arguments;
use outrigger_testkit::conformance::{driver, run, trials};
use outrigger_testkit::{rootfs, seat};

/// Cases mostly wait, so more cases than cores run in parallel.
const CASES_AT_A_TIME: usize = 8;
/// By default, one in this many cases runs, because the engine is the same as for root.
const ONE_IN: usize = 8;

fn main() -> ExitCode {
    match seat::taken().as_deref() {
        // These cases need no server outside the machine.
        Some("world") => return ExitCode::SUCCESS,
        Some(_) => {}
        None if rustix::process::geteuid().is_root() => {
            let code = seat::USUAL.run();
            return ExitCode::from(u8::try_from(code).unwrap_or(1));
        }
        None => {}
    }
    let mut args = Arguments::from_args();
    args.test_threads = Some(args.test_threads.unwrap_or(CASES_AT_A_TIME));
    let work =
        tempfile::Builder::new().prefix("outrigger-conformance-").tempdir().expect("a temporary directory");
    run::open_to_all(work.path());
    let rootfs = rootfs::make(&work.path().join("rootfs"));
    let bench = Arc::new(run::Bench {
        binary: PathBuf::from(env!("CARGO_BIN_EXE_outrigger")),
        image: format!("rootfs:{}", rootfs.display()),
        work: work.path().to_owned(),
        prefix: String::new(),
        lib: trials::top().join("lib.sh"),
        extra_flags: Vec::new(),
        agent: driver::Agent::Foreground,
    });
    let all = std::env::var_os("OUTRIGGER_ALL_CASES").is_some() || args.filter.is_some();
    let mut trials = trials::all(&bench);
    if !all {
        trials = trials.into_iter().step_by(ONE_IN).collect();
    }
    libtest_mimic::run(&args, trials).exit_code()
}
