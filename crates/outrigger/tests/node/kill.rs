//! Kills the node, shims or everything with SIGKILL at random moments of random pods. Afterwards nothing may
//! be missing, duplicated or left.
//!
//! `OUTRIGGER_KILLS` is the number of kills (a few dozen by default), `OUTRIGGER_SEED` the first seed.

use std::path::Path;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::batch::Batch;
use crate::containerd::{Containerd, IMAGE};
use crate::daemon::Daemon;
use crate::leaks;
use crate::random::{Random, first_seed, number};
use crate::run::{Bench, Test};

pub(crate) const ALL: [(&str, Test); 4] = [
    ("a_node_can_be_killed_at_any_moment", any_moment),
    ("a_node_on_containerd_can_be_killed_at_any_moment", any_moment_on_containerd),
    ("shims_can_be_killed_at_any_moment", shims),
    ("everything_can_be_killed_at_any_moment", everything),
];

/// How often the node is killed during a batch of pods.
const KILLS_PER_BATCH: u64 = 8;
/// How often shims are killed during a batch. There is one per container.
const SHIMS_PER_BATCH: u64 = 4;
const PODS_PER_BATCH: usize = 4;

/// Runs batch after batch, each with its own seed.
fn batches(what: &str, kills: u64, per_batch: u64, mut play: impl FnMut(u64)) {
    let kills = number("OUTRIGGER_KILLS").unwrap_or(kills);
    for batch in 0..kills.div_ceil(per_batch) {
        let seed = first_seed() + batch;
        eprintln!("{what}: OUTRIGGER_SEED={seed} ({} of {kills} kills)", batch * per_batch);
        play(seed);
    }
}

fn any_moment(bench: &Bench, name: &str) {
    let mut node = Daemon::start(bench, name, &[]);
    batches(name, 32, KILLS_PER_BATCH, |seed| {
        // Some pods have addresses.
        let flags: &[&str] = if seed.is_multiple_of(4) { &["--network", "private"] } else { &[] };
        kill_node(bench, &mut node, seed, flags);
    });
    node.leaves_nothing();
}

fn any_moment_on_containerd(bench: &Bench, name: &str) {
    let containerd = Containerd::start(None);
    let bench = Bench { binary: bench.binary.clone(), image: IMAGE.to_owned(), work: bench.work.clone() };
    let endpoint = containerd.endpoint();
    let runtime = ["--runtime", "cri", "--cri-endpoint", &endpoint];
    let mut node =
        Daemon::start_with(&bench, name, &runtime, &[&runtime[..], &["--network", "host"]].concat());
    batches(name, 16, KILLS_PER_BATCH, |seed| kill_node(&bench, &mut node, seed, &[]));
    node.leaves_nothing();
    containerd.finish();
}

/// Kills the node repeatedly while pods start, run, end and are stopped, and while it adopts them.
fn kill_node(bench: &Bench, node: &mut Daemon<'_>, seed: u64, flags: &[&str]) {
    let mut random = Random(seed);
    let batch = Batch::new(bench, &node.dir, seed, PODS_PER_BATCH, &mut random);
    batch.run(node, flags);
    let mut told = Vec::new();
    for kill in 0..KILLS_PER_BATCH {
        std::thread::park_timeout(Duration::from_millis(random.below(500)));
        if kill == KILLS_PER_BATCH / 2 {
            // The stop is interrupted by a kill as well.
            for pod in batch.pods.iter().filter(|pod| !pod.ends) {
                if node.say(&["stop", "--no-wait", &pod.name]).code == 0 {
                    told.push(&pod.name);
                }
            }
        }
        node.down(Signal::KILL);
        match random.below(3) {
            // The node is killed during the adoption.
            0 => {
                node.spawn();
                std::thread::park_timeout(Duration::from_millis(random.below(60)));
            }
            _ => node.up(),
        }
    }
    node.down(Signal::KILL);
    node.up();
    for pod in &batch.pods {
        // An accepted request must be carried out, by any of the processes.
        if !pod.ends && !told.contains(&&pod.name) {
            node.say(&["stop", &pod.name]);
        }
        node.over(&pod.name);
    }
    batch.check(node);
}

/// A shim, and the names of its pod and container.
pub(crate) struct Shim {
    pub(crate) pid: Pid,
    pub(crate) pod: String,
    container: String,
}

/// The shims of a node's containers.
pub(crate) fn shims_of(node: &Daemon<'_>) -> Vec<Shim> {
    let sandboxes = node.sandboxes();
    let is_number = |name: &String| name.bytes().all(|b| b.is_ascii_digit());
    let processes = leaks::names(Path::new("/proc")).into_iter().filter(is_number);
    let shim = |process: String| {
        let line = leaks::command_line(&Path::new("/proc").join(&process));
        let id = line.trim_end().split_once(" shim container ")?.1.to_owned();
        // The id is RUN-POD-CONTAINER-TRY-NAME, and that of the sandbox is RUN-POD-NAME.
        let sandbox =
            sandboxes.iter().find(|s| id.starts_with(&format!("{}-", leaks::container_prefix(s))))?;
        let name = |id: &str, at: usize| id.splitn(at + 1, '-').nth(at).map(str::to_owned);
        let pid = process.parse().ok().and_then(Pid::from_raw)?;
        Some(Shim { pid, pod: name(sandbox, 2)?, container: name(&id, 4)? })
    };
    processes.filter_map(shim).collect()
}

fn kill_shim(batch: &mut Batch, shim: &Shim) {
    // It may have ended in the meantime, and its container may have another shim by now.
    if kill_process(shim.pid, Signal::KILL).is_ok() {
        *batch.killed.entry((shim.pod.clone(), shim.container.clone())).or_default() += 1;
    }
}

/// Shims are killed, some of them while the node is down.
fn shims(bench: &Bench, name: &str) {
    let mut node = Daemon::start(bench, name, &[]);
    let mut killed = 0;
    batches(name, 8, SHIMS_PER_BATCH, |seed| {
        let mut random = Random(seed);
        let mut batch = Batch::new(bench, &node.dir, seed, PODS_PER_BATCH, &mut random);
        batch.run(&node, &[]);
        for _ in 0..SHIMS_PER_BATCH {
            std::thread::park_timeout(Duration::from_millis(random.below(400)));
            let is_down = random.below(2) == 0;
            if is_down {
                node.down(Signal::KILL);
            }
            let shims = shims_of(&node);
            if !shims.is_empty() {
                let at = random.below(shims.len() as u64) as usize;
                kill_shim(&mut batch, &shims[at]);
            }
            if is_down {
                node.up();
            }
        }
        killed += batch.killed.len();
        end(&mut node, &batch);
    });
    // On a busy machine the pods of a batch may start after its last kill.
    assert!(killed > 0, "no shim was there to be killed");
    node.leaves_nothing();
}

/// The node and all shims are killed at the same time. The containers are gone, and their leftovers are
/// removed.
fn everything(bench: &Bench, name: &str) {
    let mut node = Daemon::start(bench, name, &[]);
    batches(name, 4, 1, |seed| {
        let mut random = Random(seed);
        let mut batch = Batch::new(bench, &node.dir, seed, PODS_PER_BATCH, &mut random);
        batch.run(&node, if seed.is_multiple_of(2) { &["--network", "private"] } else { &[] });
        std::thread::park_timeout(Duration::from_millis(random.below(1_200)));
        let shims = shims_of(&node);
        let node_first = random.below(2) == 0;
        if node_first {
            node.down(Signal::KILL);
        }
        shims.iter().for_each(|shim| kill_shim(&mut batch, shim));
        if !node_first {
            node.down(Signal::KILL);
        }
        // Also kill shims that were created in the meantime.
        for shim in shims_of(&node) {
            if !shims.iter().any(|known| known.pid == shim.pid) {
                kill_shim(&mut batch, &shim);
            }
        }
        node.up();
        end(&mut node, &batch);
    });
    node.leaves_nothing();
}

/// Waits for the end of all pods of a batch.
fn end(node: &mut Daemon<'_>, batch: &Batch) {
    for pod in &batch.pods {
        if !pod.ends {
            node.say(&["stop", &pod.name]);
        }
        node.over(&pod.name);
    }
    batch.check(node);
}
