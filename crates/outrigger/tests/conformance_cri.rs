//! Runs the pod cases of `conformance` on a real containerd that this test starts itself.
//!
//! containerd gives pods their own network only if CNI is set up. The cases do not test networks, so all of
//! them use the host network.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::Arguments;
use outrigger_testkit::conformance::{driver, run, trials};
use outrigger_testkit::containerd;

/// containerd works in every step of a case, so fewer cases run in parallel than without it.
const CASES_AT_A_TIME: usize = 4;

fn main() -> ExitCode {
    let mut args = Arguments::from_args();
    args.test_threads = Some(args.test_threads.unwrap_or(CASES_AT_A_TIME));
    let work =
        tempfile::Builder::new().prefix("outrigger-conformance-").tempdir().expect("a temporary directory");
    run::open_to_all(work.path());
    let containerd = (!args.list).then(|| containerd::Containerd::start(None));
    let endpoint = containerd.as_ref().map(containerd::Containerd::endpoint).unwrap_or_default();
    let flags = ["--runtime", "cri", "--cri-endpoint", &endpoint, "--network", "host"];
    let bench = Arc::new(run::Bench {
        binary: PathBuf::from(env!("CARGO_BIN_EXE_outrigger")),
        image: containerd::IMAGE.to_owned(),
        work: work.path().to_owned(),
        prefix: String::new(),
        lib: trials::top().join("lib.sh"),
        extra_flags: flags.map(str::to_owned).into(),
        agent: driver::Agent::Foreground,
    });
    let conclusion = libtest_mimic::run(&args, trials::all(&bench));
    if let Some(containerd) = containerd {
        containerd.finish();
    }
    conclusion.exit_code()
}
