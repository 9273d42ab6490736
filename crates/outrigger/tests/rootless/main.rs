//! Tests `outrigger` for ordinary users: with and without subordinate ids, pasta, slirp4netns and cgroups.
//!
//! Root starts the tests. For each group of them, it prepares an environment (a seat, `seat.sh`) and runs
//! this program there again as an ordinary user.

mod identity;
mod life;
mod limits;
mod network;
mod world;

use std::process::ExitCode;

use outrigger_testkit::{run, seat, trials};
use run::{Bench, Run, Test};
use seat::{Cgroups, Seat, USUAL};
use serde_json::{Value, json};

/// The seats, and their tests.
fn seats() -> Vec<(Seat, Vec<(&'static str, Test)>)> {
    let seat = |name, ids, hidden, cgroups| Seat { name, ids, hidden, cgroups };
    vec![
        (USUAL, [identity::WITH_IDS, life::ALL, network::PASTA, limits::NONE].concat()),
        (
            seat("own-id", None, "pasta", Cgroups::None),
            [identity::OWN_ID, life::ALL, network::SLIRP].concat(),
        ),
        (
            seat("bare", Some(65_536), "newuidmap pasta slirp4netns", Cgroups::None),
            [identity::BARE, network::NEITHER].concat(),
        ),
        (seat("cgroups", Some(65_536), "", Cgroups::Own), limits::OWN.to_vec()),
        (seat("v2", Some(65_536), "", Cgroups::OwnV2), network::V2.to_vec()),
    ]
}

fn main() -> ExitCode {
    let taken = seat::taken();
    match taken.as_deref() {
        Some("world") => world::serve(),
        Some(name) => {
            let (_, tests) = seats().into_iter().find(|(seat, _)| seat.name == name).expect("a seat");
            trials::run(&format!("rootless-{name}"), trials::RunBy::Anybody, tests);
        }
        None => {}
    }
    if !rustix::process::geteuid().is_root() {
        eprintln!("these tests need root: they give themselves users");
        return ExitCode::FAILURE;
    }
    let codes: Vec<i32> = seats().into_iter().map(|(seat, _)| seat.run()).collect();
    match codes.iter().all(|code| *code == 0) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// A pod that runs once.
fn pod(spec: Value) -> Value {
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec});
    let spec = pod["spec"].as_object_mut().expect("a spec");
    spec.entry("restartPolicy").or_insert(json!("Never"));
    spec.entry("terminationGracePeriodSeconds").or_insert(json!(1));
    pod
}

/// A pod with one container that runs a script, with more fields.
fn scripted(bench: &Bench, script: &str, container: Value, spec: Value) -> Value {
    let mut main = bench.container("main", script);
    main.as_object_mut().expect("fields").extend(container.as_object().expect("fields").clone());
    let mut all = json!({"containers": [main]});
    all.as_object_mut().expect("fields").extend(spec.as_object().expect("fields").clone());
    pod(all)
}

/// Runs a pod to completion, which must succeed.
fn succeeds(bench: &Bench, name: &str, pod: &Value, flags: &[&str]) -> Run {
    let mut run = Run::start(bench, name, pod, flags);
    assert_eq!(run.end(), 0, "{}", run.account());
    run
}
