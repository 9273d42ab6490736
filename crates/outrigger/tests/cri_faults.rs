//! `outrigger run` on a containerd that is killed and restarted while pods run, and after runs that were killed.
//!
//! `OUTRIGGER_SOAK_PODS` is the number of pods of the soak test, `OUTRIGGER_SOAK_SEED` repeats one.

#[path = "../../../tests/containerd/mod.rs"]
mod containerd;

use std::fs;
use std::hash::{BuildHasher as _, RandomState};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use libtest_mimic::{Arguments, Failed, Trial};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::containerd::{Containerd, IMAGE, eventually};

/// Enough to meet restarts in every phase of a pod; a real soak has hundreds.
const PODS_DEFAULT: usize = 12;
const PODS_AT_A_TIME: usize = 4;

fn main() -> ExitCode {
    let mut args = Arguments::from_args();
    args.test_threads = Some(1);
    let trials = vec![
        Trial::test("a_killed_run_is_cleared_away_by_the_next", || {
            killed_run();
            Ok(())
        }),
        Trial::test("every_result_is_right_whenever_containerd_restarts", soak),
    ];
    libtest_mimic::run(&args, trials).exit_code()
}

/// A containerd, and a place for pods.
struct Bench {
    containerd: Mutex<Containerd>,
    endpoint: String,
    dir: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let containerd = Containerd::start(None);
        let dir = tempfile::Builder::new().prefix("outrigger-cri-run-").tempdir().expect("a directory");
        Bench { endpoint: containerd.endpoint(), containerd: Mutex::new(containerd), dir }
    }

    fn state_dir(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    fn run(&self, name: &str, pod: &Value) -> Child {
        let manifest = self.dir.path().join(format!("{name}.json"));
        fs::write(&manifest, pod.to_string()).expect("write the manifest");
        let out = fs::File::create(self.output(name)).expect("a file");
        Command::new(env!("CARGO_BIN_EXE_outrigger"))
            .args(["run", "--runtime", "cri", "--cri-endpoint", &self.endpoint, "--network", "host"])
            .arg("--state-dir")
            .arg(self.state_dir())
            .arg(&manifest)
            .stdin(Stdio::null())
            .stdout(out.try_clone().expect("a file"))
            .stderr(out)
            .spawn()
            .expect("outrigger starts")
    }

    fn output(&self, name: &str) -> PathBuf {
        self.dir.path().join(format!("{name}.out"))
    }

    fn finish(self, was_killed: bool) {
        let left: Vec<_> = fs::read_dir(self.state_dir().join("pods"))
            .into_iter()
            .flatten()
            .flatten()
            .map(|e| e.path())
            .collect();
        assert!(left.is_empty(), "directories are left: {left:?}");
        let containerd = self.containerd.into_inner().unwrap_or_else(PoisonError::into_inner);
        containerd.finish(was_killed);
    }
}

fn pod(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
}

fn container(name: &str, script: &str) -> Value {
    json!({"name": name, "image": IMAGE, "command": ["sh", "-c", script]})
}

fn killed_run() {
    let bench = Bench::new();
    let log = bench.dir.path().join("log");
    fs::write(&log, "").expect("a log");
    let mut main = container("main", "echo up > /ev/log; sleep 1000");
    main["volumeMounts"] = json!([{"name": "ev", "mountPath": "/ev"}, {"name": "memory", "mountPath": "/m"}]);
    let volumes = json!([
        {"name": "ev", "hostPath": {"path": bench.dir.path()}},
        {"name": "memory", "emptyDir": {"medium": "Memory"}},
    ]);
    let mut run = bench.run("killed", &pod("killed", json!({"containers": [main], "volumes": volumes})));
    eventually("the pod runs", || fs::read_to_string(&log).is_ok_and(|log| log == "up\n"));
    run.kill().expect("kill");
    run.wait().expect("an end");
    let next = pod("next", json!({"restartPolicy": "Never", "containers": [container("main", "exit 3")]}));
    let code = bench.run("next", &next).wait().expect("an end").code();
    let output = fs::read_to_string(bench.output("next")).unwrap_or_default();
    assert_eq!(code, Some(3), "{output}");
    bench.finish(false);
}

/// A generator of numbers that looks like chance and can be repeated.
struct Chance(u64);

impl Chance {
    fn below(&mut self, most: u64) -> u64 {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % most
    }
}

/// A pod, what it must come to, and how often each of its containers must have been started.
struct Task {
    name: String,
    pod: Value,
    code: i32,
    starts: Vec<(&'static str, usize)>,
}

/// Containers say when they start, so that one that was started twice is found out.
fn task(number: usize, chance: &mut Chance, dir: &Path) -> Task {
    let name = format!("soak-{number}");
    let events = dir.join(&name);
    fs::create_dir(&events).expect("a directory");
    let pause = chance.below(20) as f64 / 10.0;
    let with = |container: &str, script: &str| {
        let mut made = self::container(container, &format!("echo {container} >> /ev/log; {script}"));
        made["volumeMounts"] = json!([{"name": "ev", "mountPath": "/ev"}]);
        made
    };
    let code = i32::try_from(chance.below(3)).unwrap_or(0) * 7;
    let (spec, code, starts) = match chance.below(4) {
        0 => (
            json!({"restartPolicy": "Never", "containers": [with("main", &format!("sleep {pause}; exit {code}"))]}),
            code,
            vec![("main", 1)],
        ),
        1 => (
            json!({
                "restartPolicy": "Never",
                "initContainers": [with("one", "true"), with("two", "sleep 0.3")],
                "containers": [with("main", &format!("sleep {pause}; exit {code}")), with("other", "sleep 0.5")],
            }),
            code,
            vec![("one", 1), ("two", 1), ("main", 1), ("other", 1)],
        ),
        2 => {
            let mut sidecar = with("sidecar", "trap 'exit 0' TERM; while :; do sleep 0.05; done");
            sidecar["restartPolicy"] = json!("Always");
            sidecar["readinessProbe"] = json!({"exec": {"command": ["true"]}, "periodSeconds": 1});
            (
                json!({
                    "restartPolicy": "Never",
                    "initContainers": [sidecar],
                    "containers": [with("main", &format!("sleep {pause}; exit {code}"))],
                }),
                code,
                vec![("sidecar", 1), ("main", 1)],
            )
        }
        _ => (
            json!({
                "restartPolicy": "OnFailure",
                "containers": [with("main", &format!("sleep {pause}; [ -e /ev/again ] || {{ touch /ev/again; exit 1; }}"))],
            }),
            0,
            vec![("main", 2)],
        ),
    };
    let mut pod = pod(&name, spec);
    pod["spec"]["volumes"] = json!([{"name": "ev", "hostPath": {"path": events}}]);
    pod["spec"]["terminationGracePeriodSeconds"] = json!(5);
    Task { name, pod, code, starts }
}

fn soak() -> Result<(), Failed> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seed = number("OUTRIGGER_SOAK_SEED").unwrap_or_else(|| RandomState::new().hash_one(0));
    let pods = number("OUTRIGGER_SOAK_PODS").and_then(|n| usize::try_from(n).ok()).unwrap_or(PODS_DEFAULT);
    println!("OUTRIGGER_SOAK_SEED={seed} OUTRIGGER_SOAK_PODS={pods}");
    let mut chance = Chance(seed | 1);
    let bench = Bench::new();
    let tasks: Vec<Task> = (0..pods).map(|number| task(number, &mut chance, bench.dir.path())).collect();
    let (next, over, wrong) = (AtomicUsize::new(0), AtomicBool::new(false), Mutex::new(Vec::new()));
    let restarts = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..PODS_AT_A_TIME)
            .map(|_| {
                scope.spawn(|| {
                    while let Some(task) = tasks.get(next.fetch_add(1, Ordering::Relaxed)) {
                        if let Err(error) = carry_out(&bench, task) {
                            wrong.lock().unwrap_or_else(PoisonError::into_inner).push(error);
                        }
                    }
                })
            })
            .collect();
        let restarter = scope.spawn(|| restart_now_and_then(&bench, &mut chance, &over));
        for worker in workers {
            worker.join().expect("a worker");
        }
        over.store(true, Ordering::Relaxed);
        restarter.thread().unpark();
        restarter.join().expect("the restarter")
    });
    let wrong = wrong.into_inner().unwrap_or_else(PoisonError::into_inner);
    if !wrong.is_empty() {
        return Err(format!("seed {seed}, {restarts} restarts:\n{}", wrong.join("\n")).into());
    }
    assert!(restarts > 0, "containerd was never restarted");
    bench.finish(true);
    Ok(())
}

fn restart_now_and_then(bench: &Bench, chance: &mut Chance, over: &AtomicBool) -> usize {
    let mut restarts = 0;
    loop {
        std::thread::park_timeout(Duration::from_millis(500 + chance.below(3_000)));
        if over.load(Ordering::Relaxed) {
            return restarts;
        }
        let mut containerd = bench.containerd.lock().unwrap_or_else(PoisonError::into_inner);
        containerd.halt(if chance.below(2) == 0 { Signal::KILL } else { Signal::TERM });
        std::thread::park_timeout(Duration::from_millis(chance.below(800)));
        containerd.go_on();
        restarts += 1;
    }
}

fn carry_out(bench: &Bench, task: &Task) -> Result<(), String> {
    let (mut code, mut output) = (None, String::new());
    // A run does not begin without a runtime; that is the only thing done again.
    for _ in 0..100 {
        code = bench.run(&task.name, &task.pod).wait().expect("an end").code();
        output = fs::read_to_string(bench.output(&task.name)).unwrap_or_default();
        if !output.contains("no container runtime at") {
            break;
        }
        std::thread::park_timeout(Duration::from_millis(100));
    }
    let log = fs::read_to_string(bench.dir.path().join(&task.name).join("log")).unwrap_or_default();
    let mut bad = Vec::new();
    if code != Some(task.code) {
        bad.push(format!("ended with {code:?}, not {}", task.code));
    }
    // containerd undoes a start during which it is told to stop. The program has run then, so it is not started again,
    // and the pod says why it failed.
    let undone = output.contains("was stopped while it started the container");
    if undone {
        bad.clear();
    }
    for (name, expected) in &task.starts {
        let starts = log.lines().filter(|line| line == name).count();
        if starts > *expected || (starts < *expected && !undone) {
            bad.push(format!("{name} was started {starts} times, not {expected}"));
        }
    }
    match bad.is_empty() {
        true => Ok(()),
        false => Err(format!("{}: {}\n{log}{output}", task.name, bad.join(", "))),
    }
}
