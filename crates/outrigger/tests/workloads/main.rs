//! Tests Jobs, StatefulSets, Deployments and other workloads with real containers.

mod jobs;
mod replicas;

use outrigger_testkit::{run, trials};

fn main() {
    trials::run("workloads", trials::RunBy::Root, [&jobs::ALL[..], &replicas::ALL].concat());
}
