//! Runs pod cases of `conformance` with runc and with crun. A few of each kind are enough, because the code
//! that orders containers does not depend on the runtime. OUTRIGGER_CONFORMANCE_ALL=1 runs all of them.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::{Arguments, Trial};
use outrigger_testkit::conformance::{driver, run, trials};
use outrigger_testkit::rootfs;

/// Cases mostly wait, so more cases than cores run in parallel.
const CASES_AT_A_TIME: usize = 8;

/// The cases that run by default.
const CHOSEN: [&str; 20] = [
    "cases::env-expansion",
    "cases::hook-poststart-every-start",
    "cases::hook-prestop-sidecar-at-completion",
    "cases::init-emptydir",
    "cases::init-order",
    "cases::job-never-sidecar-exit-137",
    "cases::message-fallback",
    "cases::native-liveness-prestop",
    "cases::native-startup-gates-chain",
    "cases::phase-bad-command",
    "cases::probe-liveness-exec",
    "cases::probe-liveness-timeout",
    "cases::probe-readiness-timeout",
    "cases::security-non-root",
    "cases::security-run-as",
    "cases::stop-grace-main-deaf",
    "cases::stop-exit-code-status",
    "dialects::depends-on-graph",
    "dialects::kep-2-sidecars-stop-last",
    "e2e::prestop-of-sidecars-together",
];

fn main() -> ExitCode {
    let mut args = Arguments::from_args();
    args.test_threads = Some(args.test_threads.unwrap_or(CASES_AT_A_TIME));
    let work =
        tempfile::Builder::new().prefix("outrigger-conformance-").tempdir().expect("a temporary directory");
    run::open_to_all(work.path());
    let rootfs = rootfs::make(&work.path().join("rootfs"));
    let all = std::env::var_os("OUTRIGGER_CONFORMANCE_ALL").is_some();
    let mut chosen = Vec::new();
    for runtime in ["runc", "crun"] {
        let bench = Arc::new(run::Bench {
            binary: PathBuf::from(env!("CARGO_BIN_EXE_outrigger")),
            image: format!("rootfs:{}", rootfs.display()),
            work: work.path().join(runtime),
            lib: trials::top().join("lib.sh"),
            prefix: String::new(),
            extra_flags: vec!["--oci-runtime".to_owned(), runtime.to_owned()],
            agent: driver::Agent::Foreground,
        });
        std::fs::create_dir(&bench.work).expect("a directory for each runtime");
        run::open_to_all(&bench.work);
        let cases = trials::all(&bench).into_iter().filter(|case| all || CHOSEN.contains(&case.name()));
        let before = chosen.len();
        chosen.extend(cases.map(|case| named(runtime, case)));
        assert!(chosen.len() - before >= CHOSEN.len(), "a chosen case is missing");
    }
    libtest_mimic::run(&args, chosen).exit_code()
}

/// A case under the name of its runtime.
fn named(runtime: &str, case: Trial) -> Trial {
    case.with_kind(runtime)
}
