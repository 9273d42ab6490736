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
    // containerd interrupts its work for a node that dies: an exit code can still be lost there
    // (docs/reliability.md).
    trials::run_but("node", all.concat(), &["a_node_on_containerd_can_be_killed_at_any_moment"]);
}
