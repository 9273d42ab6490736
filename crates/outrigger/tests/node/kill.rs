//! kill -9 of the node at random moments of random pods: containers write down what happens to them, and afterwards
//! nothing may be missing, doubled or left.
//!
//! `OUTRIGGER_KILLS` says how often the node is killed (a few dozen times unless given), `OUTRIGGER_SEED` where to begin.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::daemon::Daemon;
use crate::run::{Bench, Test};

pub(crate) const ALL: [(&str, Test); 1] = [("a_node_can_be_killed_at_any_moment", any_moment)];

const KILLS: u64 = 32;
/// How often the node is killed while a batch of pods lives.
const KILLS_PER_BATCH: u64 = 8;
const PODS_PER_BATCH: usize = 4;

/// Numbers that look random and are the same for the same seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// What is expected of one container.
struct Expected {
    name: String,
    /// The exit code of one that ends by itself.
    code: Option<i64>,
}

/// A pod, and what is expected of it.
struct Pod {
    name: String,
    object: Value,
    containers: Vec<Expected>,
    /// It ends by itself.
    ends: bool,
}

fn any_moment(bench: &Bench, name: &str) {
    let number = |variable: &str| std::env::var(variable).ok().and_then(|text| text.parse::<u64>().ok());
    let kills = number("OUTRIGGER_KILLS").unwrap_or(KILLS);
    let seed = number("OUTRIGGER_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    let mut node = Daemon::start(bench, name, &[]);
    for batch in 0..kills.div_ceil(KILLS_PER_BATCH) {
        let seed = seed + batch;
        eprintln!("OUTRIGGER_SEED={seed} ({} of {kills} kills)", batch * KILLS_PER_BATCH);
        one_batch(bench, &mut node, seed);
    }
    node.leaves_nothing();
}

fn one_batch(bench: &Bench, node: &mut Daemon<'_>, seed: u64) {
    let mut random = Random(seed);
    let dir = node.dir.join(format!("batch-{seed}"));
    let pods: Vec<Pod> = (0..PODS_PER_BATCH)
        .map(|nth| {
            let log = dir.join(nth.to_string());
            fs::create_dir_all(&log).expect("a directory");
            random_pod(bench, &mut random, &format!("p{seed}-{nth}"), &log)
        })
        .collect();
    let items: Vec<&Value> = pods.iter().map(|pod| &pod.object).collect();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
    let said = node.run_object(&format!("batch-{seed}"), &list, &[]);
    assert_eq!(said.code, 0, "seed {seed}: {said:?}\n{}", node.account());
    for kill in 0..KILLS_PER_BATCH {
        std::thread::park_timeout(Duration::from_millis(random.below(500)));
        if kill == KILLS_PER_BATCH / 2 {
            // The stop is cut short as well. It goes on whether or not anybody waits for it.
            for pod in pods.iter().filter(|pod| !pod.ends) {
                node.say(&["stop", "--no-wait", &pod.name]);
            }
        }
        node.down(Signal::KILL);
        match random.below(3) {
            // Killed while it takes over.
            0 => {
                node.spawn();
                std::thread::park_timeout(Duration::from_millis(random.below(60)));
            }
            _ => node.up(),
        }
    }
    node.down(Signal::KILL);
    node.up();
    for (nth, pod) in pods.iter().enumerate() {
        if !pod.ends {
            node.say(&["stop", &pod.name]);
        }
        node.over(&pod.name);
        check(node, pod, &dir.join(nth.to_string()), seed);
    }
}

/// A pod of one to five containers, some with hooks, that ends by itself or stays.
fn random_pod(bench: &Bench, random: &mut Random, name: &str, log: &Path) -> Pod {
    let ends = random.below(2) == 0;
    let mut containers = Vec::new();
    let mut container = |random: &mut Random, name: String, script: &str, code: Option<i64>| {
        let mut object = bench.container(&name, &format!("echo start >> /log/{name}; {script}"));
        object["volumeMounts"] = json!([{"name": "log", "mountPath": "/log"}]);
        // Init containers have no hooks.
        if !name.starts_with("init") && random.below(2) == 0 {
            let hook = |kind: &str| {
                let script = format!("echo {kind} >> /log/{name}; sleep 0.2");
                json!({"exec": {"command": ["/bin/sh", "-c", script]}})
            };
            object["lifecycle"] = json!({"postStart": hook("postStart"), "preStop": hook("preStop")});
        }
        containers.push(Expected { name, code });
        object
    };
    let stays = "trap 'echo term >> /log/$0; exit 0' TERM; while :; do sleep 0.05; done";
    let mut inits = Vec::new();
    for nth in 0..random.below(3) {
        let script = format!("sleep 0.{}; exit 0", random.below(4));
        inits.push(container(random, format!("init{nth}"), &script, Some(0)));
    }
    if random.below(2) == 0 {
        let name = "sidecar".to_owned();
        let mut sidecar = container(random, name.clone(), &stays.replace("$0", &name), None);
        sidecar["restartPolicy"] = json!("Always");
        inits.push(sidecar);
    }
    let mut mains = Vec::new();
    for nth in 0..=random.below(2) {
        let name = format!("main{nth}");
        let (script, code) = match ends {
            true => {
                let code = i64::try_from(random.below(4) * 3).expect("a code");
                (format!("sleep {}.{}; exit {code}", random.below(2), random.below(10)), Some(code))
            }
            false => (stays.replace("$0", &name), None),
        };
        mains.push(container(random, name, &script, code));
    }
    let object = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
        "restartPolicy": "Never", "terminationGracePeriodSeconds": 20,
        "initContainers": inits, "containers": mains,
        "volumes": [{"name": "log", "hostPath": {"path": log}}]}});
    Pod { name: name.to_owned(), object, containers, ends }
}

/// No container lost, doubled or started again; no exit code lost; no hook run twice.
fn check(node: &Daemon<'_>, pod: &Pod, log: &Path, seed: u64) {
    let shown = node.pod(&pod.name).expect("it is shown");
    let account =
        || format!("OUTRIGGER_SEED={seed} {}\n{shown:#}\n{:#}\n{}", pod.name, pod.object, node.said());
    for (at, expected) in pod.containers.iter().enumerate() {
        let lines = fs::read_to_string(log.join(&expected.name)).unwrap_or_default();
        let count = |word: &str| lines.lines().filter(|line| *line == word).count();
        let what = format!("{}: {lines:?}", expected.name);
        let order = |name: &str| {
            shown["containers"].as_array().into_iter().flatten().find(|c| c["name"] == name).cloned()
        };
        let seen = order(&expected.name).unwrap_or_else(|| shown["containers"][at].clone());
        let started = count("start");
        assert!(started <= 1, "started {started} times: {what}\n{}", account());
        for hook in ["postStart", "preStop", "term"] {
            assert!(count(hook) <= 1, "{hook} more than once: {what}\n{}", account());
        }
        // Of a pod that was stopped not every container has run.
        if pod.ends || started == 1 {
            assert_eq!(started, 1, "never started: {what}\n{}", account());
            assert_eq!(seen["restarts"], 0, "{what}\n{}", account());
        }
        match expected.code {
            Some(code) if pod.ends => assert_eq!(seen["exit_code"], code, "{what}\n{}", account()),
            _ => {}
        }
    }
}
