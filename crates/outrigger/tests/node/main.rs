//! `outrigger node` and pods handed to it, with real containers, across restarts of its process.

mod adopt;
mod apply;
mod batch;
#[path = "../../../../tests/containerd/mod.rs"]
#[allow(dead_code)]
mod containerd;
mod daemon;
mod faults;
mod kill;
mod leaks;
mod logind;
mod manifests;
mod random;
#[path = "../conformance/rootfs.rs"]
mod rootfs;
#[path = "../workloads/run.rs"]
#[allow(dead_code)]
mod run;
#[path = "../workloads/trials.rs"]
mod trials;

fn main() {
    let all = [&adopt::ALL[..], &apply::ALL, &logind::ALL, &manifests::ALL, &faults::ALL, &kill::ALL];
    trials::run("node", all.concat());
}
