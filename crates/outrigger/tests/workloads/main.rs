//! Jobs, StatefulSets, Deployments and the like, with real containers.

mod jobs;
mod replicas;
#[path = "../conformance/rootfs.rs"]
mod rootfs;
#[allow(dead_code)]
mod run;
mod trials;

fn main() {
    trials::run("workloads", [&jobs::ALL[..], &replicas::ALL].concat());
}
