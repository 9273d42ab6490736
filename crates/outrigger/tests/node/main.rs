//! Tests `outrigger node` and the pods it runs, with real containers, across restarts of its process.

mod adopt;
mod apply;
mod batch;
mod daemon;
mod faults;
mod kill;
mod logind;
mod manifests;
mod random;

use outrigger_testkit::{containerd, leaks, rootfs, run, trials};

fn main() {
    let all = [&adopt::ALL[..], &apply::ALL, &logind::ALL, &manifests::ALL, &faults::ALL, &kill::ALL];
    trials::run("node", trials::RunBy::Root, all.concat());
}
