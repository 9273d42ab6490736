//! Runs pod cases in real containers. Each file of `tests/conformance/cases` and `tests/conformance/dialects`
//! is its own test. The cases pass on a real kubelet 1.36.4. The dialects are not supported by any kubelet.
//!
//! Pods have user namespaces, as by default. Some are also run with `--userns host`. For all of them, or for
//! other flags, set OUTRIGGER_CONFORMANCE_FLAGS.
//!
//! `tests/conformance/README.md` describes their format. Expectations are semantic: order is checked only
//! where something gates it, and upper bounds are loose.

mod side_by_side;

use std::path::PathBuf;
use std::sync::Arc;

use libtest_mimic::{Arguments, Trial};
use outrigger_testkit::conformance::{case, driver, events, run, trials};
use outrigger_testkit::rootfs;

/// Cases that are also run with the host's users. They differ in permissions, not in timing.
const WITH_HOST_USERS: [&str; 24] = [
    "cases::env-expansion",
    "cases::hook-poststart-every-start",
    "cases::hook-prestop-sidecar-at-completion",
    "cases::init-emptydir",
    "cases::init-order",
    "cases::job-never-sidecar-exit-137",
    "cases::message-default",
    "cases::message-fallback",
    "cases::native-liveness-prestop",
    "cases::native-startup-gates-chain",
    "cases::phase-bad-command",
    "cases::probe-liveness-exec",
    "cases::probe-liveness-http",
    "cases::probe-liveness-tcp",
    "cases::probe-readiness-timeout",
    "cases::security-non-root",
    "cases::security-run-as",
    "cases::stop-exit-code-status",
    "cases::stop-grace-main-deaf",
    "cases::volume-survives-restart",
    "dialects::depends-on-graph",
    "dialects::kep-2-sidecars-stop-last",
    "e2e::http-prestop-of-sidecar",
    "e2e::prestop-of-sidecars-together",
];

/// Cases mostly wait, so more cases than cores run in parallel.
const CASES_AT_A_TIME: usize = 8;

fn main() {
    let mut args = Arguments::from_args();
    args.test_threads = Some(args.test_threads.unwrap_or(CASES_AT_A_TIME));
    let work =
        tempfile::Builder::new().prefix("outrigger-conformance-").tempdir().expect("a temporary directory");
    run::open_to_all(work.path());
    let rootfs = rootfs::make(&work.path().join("rootfs"));
    let bench = |prefix: &str, flags: &[&str]| {
        let given = std::env::var("OUTRIGGER_CONFORMANCE_FLAGS").unwrap_or_default();
        Arc::new(run::Bench {
            prefix: prefix.to_owned(),
            binary: PathBuf::from(env!("CARGO_BIN_EXE_outrigger")),
            image: format!("rootfs:{}", rootfs.display()),
            work: work.path().to_owned(),
            lib: trials::top().join("lib.sh"),
            extra_flags: given.split_whitespace().chain(flags.iter().copied()).map(str::to_owned).collect(),
            agent: driver::Agent::Foreground,
        })
    };
    let mut trials = trials::all(&bench("", &[]));
    trials.extend(side_by_side::all(&bench("kubelet-", &[])));
    // If flags are given, only these are used.
    if std::env::var_os("OUTRIGGER_CONFORMANCE_FLAGS").is_none() {
        let of_host = trials::all(&bench("host-", &["--userns", "host"]));
        let chosen = of_host.into_iter().filter(|case| WITH_HOST_USERS.contains(&case.name()));
        let chosen: Vec<Trial> = chosen.map(|case| case.with_kind("host users")).collect();
        assert_eq!(chosen.len(), WITH_HOST_USERS.len(), "a chosen case is missing");
        trials.extend(chosen);
    }
    let conclusion = libtest_mimic::run(&args, trials);
    drop(work);
    conclusion.exit();
}
