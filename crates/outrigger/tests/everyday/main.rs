//! Commands that talk to a run in another terminal, with real containers.

mod command;
mod exec;
mod logs;
mod ps;
#[path = "../terminal/pty.rs"]
#[allow(dead_code)]
mod pty;
#[path = "../conformance/rootfs.rs"]
mod rootfs;
#[path = "../workloads/run.rs"]
#[allow(dead_code)]
mod run;
#[path = "../terminal/screen.rs"]
#[allow(dead_code)]
mod screen;
mod socket;
mod stop;

use std::path::PathBuf;
use std::sync::Arc;

use libtest_mimic::{Arguments, Trial};

/// They mostly wait, so more of them than cores run side by side.
const AT_A_TIME: usize = 6;

fn main() {
    let mut args = Arguments::from_args();
    args.test_threads = Some(args.test_threads.unwrap_or(AT_A_TIME));
    let work =
        tempfile::Builder::new().prefix("outrigger-everyday-").tempdir().expect("a temporary directory");
    let rootfs = rootfs::make(&work.path().join("rootfs"));
    let bench = Arc::new(run::Bench {
        binary: PathBuf::from(env!("CARGO_BIN_EXE_outrigger")),
        image: format!("rootfs:{}", rootfs.display()),
        work: work.path().to_owned(),
    });
    let all: [&[(&str, run::Test)]; 5] = [&ps::ALL, &logs::ALL, &exec::ALL, &stop::ALL, &socket::ALL];
    let trials = all.into_iter().flatten().map(|(name, test)| {
        let bench = Arc::clone(&bench);
        Trial::test(*name, move || {
            test(&bench, name);
            Ok(())
        })
    });
    let conclusion = libtest_mimic::run(&args, trials.collect());
    drop(bench);
    drop(work);
    conclusion.exit();
}
