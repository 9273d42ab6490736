//! `outrigger node` and what is handed to it, with real containers, through the end of its process.

mod adopt;
mod daemon;
mod kill;
mod manifests;
#[path = "../conformance/rootfs.rs"]
mod rootfs;
#[path = "../workloads/run.rs"]
#[allow(dead_code)]
mod run;
#[path = "../workloads/trials.rs"]
mod trials;

fn main() {
    trials::run("node", [&adopt::ALL[..], &manifests::ALL, &kill::ALL].concat());
}
