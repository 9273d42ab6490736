//! Checks the six invariants of the engine on random pods in every dialect, with random scripts and random
//! faults.
//!
//! A failing seed is printed with the command that replays it. `regressions.txt` lists seeds that once
//! failed, and every test run replays them.

use crate::common::env_number;
use crate::common::life::{self, Kind};
use outrigger_simulate::random::{self, Trouble};
use outrigger_simulate::{Options, Rng, simulate};

/// The number of lives in a normal test run. `OUTRIGGER_SOAK=N` plays N instead.
const LIVES: u64 = 20_000;

#[test]
fn random_pods_keep_the_promises() {
    play(Kind::Any);
}

/// Hooks hang or take nearly the whole grace period of 0 to 3 s, helpers of every dialect crash repeatedly,
/// and images are late.
#[test]
fn pods_that_are_hard_to_stop_keep_the_promises() {
    play(Kind::Hard);
}

/// Images, grace periods and deadlines change while the pod runs, ephemeral containers are added, and one or
/// all containers are restarted.
#[test]
fn pods_that_are_changed_and_restarted_keep_the_promises() {
    play(Kind::Changed);
}

/// A pod that restarts as a whole stops in the same order as one that stops for good, whatever its hooks do.
#[test]
fn pods_that_are_restarted_as_a_whole_keep_the_promises() {
    play(Kind::Restarted);
}

fn play(kind: Kind) {
    let lives = env_number("OUTRIGGER_SOAK").unwrap_or(LIVES);
    let first = env_number("OUTRIGGER_FIRST_SEED").unwrap_or(1);
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let failed: Vec<String> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|worker| {
                scope.spawn(move || {
                    let seeds = (first..first + lives).skip(worker as usize).step_by(threads as usize);
                    seeds.filter_map(|seed| life::check(kind, seed).err()).take(3).collect::<Vec<_>>()
                })
            })
            .collect();
        workers.into_iter().flat_map(|w| w.join().expect("a worker panicked")).collect()
    });
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
}

#[test]
fn seeds_that_once_failed_do_not_fail_again() {
    let list = include_str!("regressions.txt");
    for line in list.lines().map(|l| l.split('#').next().unwrap_or_default().trim()).filter(|l| !l.is_empty())
    {
        let (kind, seed) = match line.split_once(' ') {
            Some(("hard", seed)) => (Kind::Hard, seed),
            Some(("changed", seed)) => (Kind::Changed, seed),
            Some(("restarted", seed)) => (Kind::Restarted, seed),
            _ => (Kind::Any, line),
        };
        let seed = seed.parse().unwrap_or_else(|_| panic!("{line:?} in regressions.txt is not a seed"));
        if let Err(report) = life::check(kind, seed) {
            panic!("{report}");
        }
    }
}

/// `OUTRIGGER_SEED=N cargo test -p outrigger-simulate --test lives one_seed -- --ignored --nocapture`
#[test]
#[ignore = "replays the life of OUTRIGGER_SEED"]
fn one_seed() {
    replay(Kind::Any);
}

/// The same for a pod that is hard to stop.
#[test]
#[ignore = "replays the life of OUTRIGGER_SEED"]
fn one_hard_seed() {
    replay(Kind::Hard);
}

/// The same for a pod that is updated while it runs.
#[test]
#[ignore = "replays the life of OUTRIGGER_SEED"]
fn one_changed_seed() {
    replay(Kind::Changed);
}

/// The same for a pod that is restarted as a whole.
#[test]
#[ignore = "replays the life of OUTRIGGER_SEED"]
fn one_restarted_seed() {
    replay(Kind::Restarted);
}

fn replay(kind: Kind) {
    let seed = env_number("OUTRIGGER_SEED").expect("OUTRIGGER_SEED says which life to replay");
    println!("{}", life::tell(kind, seed));
    if let Err(report) = life::check(kind, seed) {
        panic!("{report}");
    }
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    for seed in 1..200 {
        assert_eq!(life::tell(Kind::Any, seed), life::tell(Kind::Any, seed), "seed {seed}");
    }
}

/// Events that arrive twice, the second time up to half a second late, change nothing and add nothing to the
/// trace.
#[test]
fn repeated_events_leave_no_trace() {
    let mut repeated = 0;
    for seed in 1..2_000 {
        let mut rng = Rng::new(seed);
        let (_, plan) = random::pod(&mut rng);
        let mut script = random::script(&mut rng, &plan, Trouble::None);
        let options = Options { stop_endless_at: None, ..Options::default() };
        let once = simulate(&plan, &script, seed, &options).expect("the script fits");
        script.faults.duplicate = 1.0;
        let twice = simulate(&plan, &script, seed, &options).expect("the script fits");
        assert!(once.trace.len() > 5, "seed {seed}");
        // Some pods are stopped before any event happens.
        let repeats = twice.counters.faults.duplicated;
        assert!(repeats > 0 || once.counters.events <= 1, "seed {seed}: {} events", once.counters.events);
        repeated += usize::from(repeats > 0);
        let differ = once.trace.iter().zip(&twice.trace).find(|(a, b)| a != b);
        assert_eq!(differ, None, "seed {seed}");
        assert_eq!(once.trace.len(), twice.trace.len(), "seed {seed}");
    }
    assert!(repeated > 1_990, "events were repeated in {repeated} lives only");
}
