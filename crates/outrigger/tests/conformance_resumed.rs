//! Runs the pod cases of `conformance` with a node that is killed with SIGKILL at random moments of each case
//! and restarted. It uses the embedded runtime and a separate containerd.
//!
//! By default, a few cases run. `OUTRIGGER_RESUMED=all` runs all of them. `OUTRIGGER_SEED` repeats the
//! moments of a run, which depend only on the seed and the name of the case. A hook that is interrupted by
//! the end of the node is not run again. A case that fails because of this is run again, with kills at
//! moments at which no hook runs.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::{Arguments, Trial};
use outrigger_testkit::conformance::{driver, run, trials};
use outrigger_testkit::{containerd, rootfs};

/// The cases that run by default on the embedded runtime.
const SAMPLE: [&str; 12] = [
    "cases::hook-poststart-blocks-second-main",
    "cases::init-order",
    "cases::job-never-sidecar-exit-137",
    "cases::message-default",
    "cases::native-poststart-gates",
    "cases::native-start-order",
    "cases::native-startup-gates-chain",
    "cases::probe-liveness-exec",
    "cases::rules-exit-code-match",
    "cases::stop-exit-code-status",
    "dialects::depends-on-graph",
    "dialects::kep-2-sidecars-stop-last",
];

/// The cases that also run on containerd.
const SAMPLE_CRI: [&str; 4] = [
    "cases::init-order",
    "cases::job-never-sidecar-exit-137",
    "cases::native-startup-gates-chain",
    "dialects::kep-2-sidecars-stop-last",
];

/// Cases mostly wait, so more cases than cores run in parallel.
const CASES_AT_A_TIME: usize = 6;

fn main() -> ExitCode {
    let mut args = Arguments::from_args();
    args.test_threads = Some(args.test_threads.unwrap_or(CASES_AT_A_TIME));
    let work =
        tempfile::Builder::new().prefix("outrigger-resumed-").tempdir().expect("a temporary directory");
    run::open_to_all(work.path());
    let rootfs = rootfs::make(&work.path().join("rootfs"));
    let seed = std::env::var("OUTRIGGER_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or_else(|| u64::from(std::process::id()));
    eprintln!("OUTRIGGER_SEED={seed}");
    let containerd = (!args.list).then(|| containerd::Containerd::start(None));
    let endpoint = containerd.as_ref().map(containerd::Containerd::endpoint).unwrap_or_default();
    let bench = |prefix: &str, image: String, flags: &[&str]| {
        Arc::new(run::Bench {
            binary: PathBuf::from(env!("CARGO_BIN_EXE_outrigger")),
            image,
            work: work.path().to_owned(),
            prefix: prefix.to_owned(),
            lib: trials::top().join("lib.sh"),
            extra_flags: flags.iter().map(ToString::to_string).collect(),
            agent: driver::Agent::KilledNode { seed },
        })
    };
    let embedded = bench("", format!("rootfs:{}", rootfs.display()), &[]);
    let flags = ["--runtime", "cri", "--cri-endpoint", &endpoint, "--network", "host"];
    let cri = bench("cri-", containerd::IMAGE.to_owned(), &flags);
    let mut trials = chosen(&embedded, &SAMPLE, "embedded");
    trials.extend(chosen(&cri, &SAMPLE_CRI, "containerd"));
    let conclusion = libtest_mimic::run(&args, trials);
    if let Some(containerd) = containerd {
        containerd.finish();
    }
    conclusion.exit_code()
}

/// The cases to run.
fn chosen(bench: &Arc<run::Bench>, sample: &[&str], kind: &str) -> Vec<Trial> {
    let all = trials::all(bench);
    let is_all = std::env::var("OUTRIGGER_RESUMED").is_ok_and(|text| text == "all");
    let count = all.len();
    let chosen: Vec<Trial> = all
        .into_iter()
        .filter(|case| is_all || sample.contains(&case.name()))
        .map(|c| c.with_kind(kind))
        .collect();
    assert_eq!(chosen.len(), if is_all { count } else { sample.len() }, "a chosen case is missing");
    chosen
}
