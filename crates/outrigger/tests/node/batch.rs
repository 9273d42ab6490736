//! Creates random pods whose containers log what happens to them, and checks these logs.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::daemon::Daemon;
use crate::random::Random;
use crate::run::Bench;

/// The expectations for one container.
struct Expected {
    name: String,
    /// The exit code, if it ends by itself.
    code: Option<i64>,
}

/// A pod, and the expectations for it.
pub(crate) struct Pod {
    pub(crate) name: String,
    pub(crate) object: Value,
    containers: Vec<Expected>,
    log: PathBuf,
    /// Whether it ends by itself.
    pub(crate) ends: bool,
}

/// A few pods that run at the same time.
pub(crate) struct Batch {
    pub(crate) seed: u64,
    pub(crate) pods: Vec<Pod>,
    /// How often a container was killed with its shim, by pod and container name.
    pub(crate) killed: BTreeMap<(String, String), usize>,
}

impl Batch {
    pub(crate) fn new(bench: &Bench, dir: &Path, seed: u64, count: usize, random: &mut Random) -> Self {
        let pods = (0..count).map(|nth| {
            let log = dir.join(format!("batch-{seed}")).join(nth.to_string());
            fs::create_dir_all(&log).expect("a directory");
            random_pod(bench, random, &format!("p{seed}-{nth}"), log)
        });
        Batch { seed, pods: pods.collect(), killed: BTreeMap::new() }
    }

    /// Submits all pods at once.
    pub(crate) fn run(&self, node: &Daemon<'_>, flags: &[&str]) {
        let items: Vec<&Value> = self.pods.iter().map(|pod| &pod.object).collect();
        let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
        let said = node.run_object(&format!("batch-{}", self.seed), &list, flags);
        assert_eq!(said.code, 0, "seed {}: {said:?}\n{}", self.seed, node.account());
    }

    /// Checks that no container was lost, duplicated or restarted, no exit code was lost, and no hook ran
    /// twice. If containers of a pod were killed, not every container must have run, and the killed ones may
    /// have been started again.
    pub(crate) fn check(&self, node: &Daemon<'_>) {
        for pod in &self.pods {
            self.check_pod(node, pod);
        }
    }

    fn check_pod(&self, node: &Daemon<'_>, pod: &Pod) {
        let shown = node.pod(&pod.name).expect("it is shown");
        let shown_containers = shown["containers"].as_array().cloned().unwrap_or_default();
        let kills = |name: &str| self.killed.get(&(pod.name.clone(), name.to_owned())).copied().unwrap_or(0);
        let was_hit = pod.containers.iter().any(|c| kills(&c.name) > 0);
        for expected in &pod.containers {
            let lines = fs::read_to_string(pod.log.join(&expected.name)).unwrap_or_default();
            let count = |word: &str| lines.lines().filter(|line| *line == word).count();
            let account = |what: &str| {
                let (seed, name) = (self.seed, &expected.name);
                let killed = &self.killed;
                format!(
                    "OUTRIGGER_SEED={seed} {}/{name}: {what}: {lines:?}\nkilled: {killed:?}\n{shown:#}\n{:#}\n{}",
                    pod.name,
                    pod.object,
                    node.said()
                )
            };
            let seen = shown_containers.iter().find(|c| c["name"] == *expected.name);
            let seen = seen.unwrap_or_else(|| panic!("{}", account("not shown")));
            let (started, killed) = (count("start"), kills(&expected.name));
            for word in ["start", "postStart", "preStop", "term"] {
                assert!(count(word) <= 1 + killed, "{}", account(&format!("{word}: {} times", count(word))));
            }
            let restarts = seen["restarts"].as_u64().expect("a number");
            assert!(restarts <= killed as u64, "{}", account("restarted"));
            if pod.ends && !was_hit {
                assert_eq!(started, 1, "{}", account("never started"));
            }
            let Some(code) = expected.code.filter(|_| pod.ends && started > 0) else { continue };
            let exit = seen["exit_code"].as_i64();
            let is_right = exit == Some(code) || (killed > 0 && exit == Some(137));
            assert!(is_right, "{}", account(&format!("exit code {exit:?}, not {code}")));
        }
    }
}

/// A pod with one to five containers, some with hooks. It ends by itself or keeps running.
fn random_pod(bench: &Bench, random: &mut Random, name: &str, log: PathBuf) -> Pod {
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
    Pod { name: name.to_owned(), object, containers, log, ends }
}
