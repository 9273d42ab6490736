//! Pods on a real containerd, which these tests start themselves.

mod attach;
mod calls;
mod faults;
mod lifecycle;
mod ownership;
mod pods;
mod proxy;
mod pulls;
mod relay;
mod support;

use std::process::ExitCode;

use outrigger_testkit::{containerd, streams};

fn main() -> ExitCode {
    let mut args = libtest_mimic::Arguments::from_args();
    // Two at a time on every machine: most of a test is waiting for containerd.
    args.test_threads = args.test_threads.or(Some(2));
    let trials = [
        lifecycle::trials(),
        pods::trials(),
        ownership::trials(),
        faults::trials(),
        calls::trials(),
        pulls::trials(),
        attach::trials(),
    ]
    .into_iter()
    .flatten()
    .collect();
    let conclusion = libtest_mimic::run(&args, trials);
    support::finish();
    conclusion.exit_code()
}
