//! Jobs, StatefulSets, Deployments and the like, with real containers.

mod jobs;
mod replicas;

use outrigger_testkit::{run, trials};

fn main() {
    trials::run("workloads", [&jobs::ALL[..], &replicas::ALL].concat());
}
