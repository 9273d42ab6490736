//! Tests `outrigger run` on a containerd that is killed and restarted while pods run, loses containers or has
//! no space, and after runs that were killed.
//!
//! `OUTRIGGER_SOAK_PODS` is the number of pods of the soak test (`make soak-cri`). Without it, the soak test
//! is skipped. `OUTRIGGER_SOAK_SEED` repeats a soak test.

use std::fs;
use std::hash::{BuildHasher as _, RandomState};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Failed, Trial};
use outrigger_cri::{CriConfig, CriRuntime};
use outrigger_runtime::{ContainerId, Runtime as _, SandboxId};
use outrigger_testkit::containerd;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::containerd::{Containerd, IMAGE, eventually};

const PODS_AT_A_TIME: usize = 4;

fn main() -> ExitCode {
    let mut args = Arguments::from_args();
    args.test_threads = Some(1);
    let trials = vec![
        Trial::test("what_pods_run_on_is_told", || {
            told();
            Ok(())
        }),
        Trial::test("a_killed_run_is_cleared_away_by_the_next", || {
            killed_run();
            Ok(())
        }),
        Trial::test("a_container_removed_behind_our_back_has_failed", || {
            removed_container();
            Ok(())
        }),
        Trial::test("a_sandbox_removed_behind_our_back_is_made_again", || {
            removed_sandbox();
            Ok(())
        }),
        Trial::test("a_sandbox_whose_first_process_dies_is_made_again_at_once", || {
            killed_pause();
            Ok(())
        }),
        Trial::test("a_pod_waits_for_room_and_says_so", || {
            full_disk();
            Ok(())
        }),
        Trial::test("a_restart_in_the_middle_of_a_pod_changes_nothing", || {
            restart();
            Ok(())
        }),
        Trial::test("every_result_is_right_whenever_containerd_restarts", soak)
            .with_ignored_flag(number("OUTRIGGER_SOAK_PODS").is_none()),
    ];
    libtest_mimic::run(&args, trials).exit_code()
}

/// A containerd, and a directory for pods.
struct Bench {
    containerd: Mutex<Containerd>,
    endpoint: String,
    dir: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        Self::on(Containerd::start(None))
    }

    fn on(containerd: Containerd) -> Self {
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

    fn said(&self, name: &str) -> String {
        fs::read_to_string(self.output(name)).unwrap_or_default()
    }

    fn finish(self) {
        let left: Vec<_> = fs::read_dir(self.state_dir().join("pods"))
            .into_iter()
            .flatten()
            .flatten()
            .map(|e| e.path())
            .collect();
        assert!(left.is_empty(), "directories are left: {left:?}");
        let containerd = self.containerd.into_inner().unwrap_or_else(PoisonError::into_inner);
        containerd.finish();
    }
}

fn pod(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
}

fn container(name: &str, script: &str) -> Value {
    json!({"name": name, "image": IMAGE, "command": ["sh", "-c", script]})
}

fn told() {
    let bench = Bench::new();
    let spec = json!({"restartPolicy": "Never", "containers": [container("main", "exit 3")]});
    let code = bench.run("told", &pod("told", spec)).wait().expect("an end").code();
    let output = bench.said("told");
    assert_eq!(code, Some(3), "{output}");
    // It is reported once, with the features that this containerd lacks, because no network is set up.
    let count = |text: &str| output.matches(text).count();
    assert_eq!(
        (count("runs on containerd 1."), count("only pods with hostNetwork can run")),
        (1, 1),
        "{output}"
    );
    let doctor = Command::new(env!("CARGO_BIN_EXE_outrigger"))
        .args(["doctor", "-o", "json", "--state-dir"])
        .arg(bench.state_dir())
        .env("CONTAINER_RUNTIME_ENDPOINT", &bench.endpoint)
        .output()
        .expect("outrigger starts");
    let found: Value = serde_json::from_slice(&doctor.stdout).expect("JSON");
    let findings = found["findings"].as_array().expect("findings");
    let finding = findings.iter().find(|finding| finding["check"] == "container runtime").expect("a finding");
    let says = |field: &str, text: &str| finding[field].as_str().is_some_and(|said| said.contains(text));
    assert!(says("found", "containerd 1.") && says("found", &bench.endpoint), "{finding}");
    assert!(says("means", "only pods with hostNetwork can run"), "{finding}");
    bench.finish();
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
    assert_eq!(code, Some(3), "{}", bench.said("next"));
    bench.finish();
}

fn removed_container() {
    let bench = Bench::new();
    let log = bench.dir.path().join("log");
    // The second instance ends by itself.
    for (policy, starts, says) in [("Never", 1, " failed"), ("OnFailure", 2, "starting again")] {
        let _ = fs::remove_file(&log);
        let script = "echo up >> /ev/log; [ $(wc -l < /ev/log) -gt 1 ] || exec sleep 1000";
        let mut main = container("main", script);
        main["volumeMounts"] = json!([{"name": "ev", "mountPath": "/ev"}]);
        let volumes = json!([{"name": "ev", "hostPath": {"path": bench.dir.path()}}]);
        let spec = json!({"restartPolicy": policy, "containers": [main], "volumes": volumes});
        let name = format!("removed-{}", policy.to_lowercase());
        let mut run = bench.run(&name, &pod(&name, spec));
        eventually("the pod runs", || fs::read_to_string(&log).is_ok_and(|log| log == "up\n"));
        remove_all(&bench, "container");
        let code = run.wait().expect("an end").code();
        let output = bench.said(&name);
        assert_eq!(code == Some(0), policy == "OnFailure", "{code:?}\n{output}");
        assert!(output.contains(says), "{output}");
        assert_eq!(fs::read_to_string(&log).expect("a log").lines().count(), starts, "{output}");
    }
    bench.finish();
}

/// Removes all existing containers or sandboxes without the knowledge of their owner.
fn remove_all(bench: &Bench, kind: &str) {
    let containerd = bench.containerd.lock().unwrap_or_else(PoisonError::into_inner);
    let names: Vec<String> = containerd
        .ctr(&["containers", "list", "--quiet", &format!("labels.\"io.cri-containerd.kind\"=={kind}")])
        .lines()
        .map(|id| {
            let info = containerd.ctr(&["containers", "info", id]);
            let info: Value = serde_json::from_str(&info).expect("JSON");
            info["Labels"]["outrigger.dev/id"].as_str().expect("a name").to_owned()
        })
        .collect();
    assert!(!names.is_empty(), "nothing to remove");
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    tokio.block_on(async {
        let config = CriConfig { endpoint: Some(containerd.endpoint()), ..CriConfig::default() };
        let other = CriRuntime::connect(config).await.expect("containerd answers");
        for name in names {
            if kind == "sandbox" {
                other.remove_sandbox(&SandboxId(name)).await.expect("remove");
                continue;
            }
            let name = ContainerId(name);
            other.kill(&name).await.expect("kill");
            other.remove_container(&name).await.expect("remove");
        }
    });
}

fn removed_sandbox() {
    let bench = Bench::new();
    let log = bench.dir.path().join("log");
    // The pod starts again, with the contents of its volumes.
    let script = "echo $0 >> /ev/log; echo $0 >> /m/log; [ $(wc -l < /m/log) -gt 2 ] || exec sleep 1000";
    let with_volumes = |name: &str, script: &str| {
        let mut made = container(name, script);
        made["command"].as_array_mut().expect("a command").push(json!(name));
        made["volumeMounts"] = json!([{"name": "ev", "mountPath": "/ev"}, {"name": "m", "mountPath": "/m"}]);
        made
    };
    let spec = json!({
        "restartPolicy": "OnFailure",
        "initContainers": [with_volumes("init", "echo $0 >> /ev/log; echo $0 >> /m/log")],
        "containers": [with_volumes("main", script)],
        "volumes": [
            {"name": "ev", "hostPath": {"path": bench.dir.path()}},
            {"name": "m", "emptyDir": {"medium": "Memory"}},
        ],
    });
    let mut run = bench.run("lost", &pod("lost", spec));
    eventually("the pod runs", || fs::read_to_string(&log).is_ok_and(|log| log.contains("main")));
    remove_all(&bench, "sandbox");
    let code = run.wait().expect("an end").code();
    assert_eq!(code, Some(0), "{}", bench.said("lost"));
    assert_eq!(
        fs::read_to_string(&log).expect("a log"),
        "init\nmain\ninit\nmain\n",
        "{}",
        bench.said("lost")
    );
    bench.finish();
}

/// The test makes no calls to the runtime while the pod runs, because the run must receive the runtime's
/// events.
fn killed_pause() {
    let bench = Bench::new();
    let log = bench.dir.path().join("log");
    let mut main = container("main", "echo main >> /ev/log; [ $(wc -l < /ev/log) -gt 1 ] || exec sleep 1000");
    main["volumeMounts"] = json!([{"name": "ev", "mountPath": "/ev"}]);
    let spec = json!({"restartPolicy": "OnFailure", "containers": [main], "terminationGracePeriodSeconds": 1,
        "volumes": [{"name": "ev", "hostPath": {"path": bench.dir.path()}}]});
    let mut run = bench.run("orphaned", &pod("orphaned", spec));
    eventually("the pod runs", || fs::read_to_string(&log).is_ok_and(|log| log.contains("main")));
    {
        let containerd = bench.containerd.lock().unwrap_or_else(PoisonError::into_inner);
        let sandbox = "labels.\"io.cri-containerd.kind\"==sandbox";
        let listed = containerd.ctr(&["containers", "list", "--quiet", sandbox]);
        let id = listed.lines().next().expect("a sandbox");
        containerd.ctr(&["tasks", "kill", "--signal", "KILL", id]);
    }
    let begun = Instant::now();
    let code = run.wait().expect("an end").code();
    let said = bench.said("orphaned");
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(fs::read_to_string(&log).expect("a log"), "main\nmain\n", "{said}");
    assert!(
        begun.elapsed() < Duration::from_secs(25),
        "it was noticed by chance: {:?}\n{said}",
        begun.elapsed()
    );
    bench.finish();
}

fn full_disk() {
    let small = |dir: &Path| {
        let root = dir.join("root");
        fs::create_dir(&root).expect("a directory");
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("small", &root, "tmpfs", flags, c"size=48m").expect("a file system");
    };
    let containerd = Containerd::start_in(None, small);
    let ballast = containerd.dir().join("root/ballast");
    let bench = Bench::on(containerd);
    let spec = |code: i32| json!({"restartPolicy": "Never", "containers": [container("main", &format!("exit {code}"))]});
    // First with enough space, so that the image is unpacked.
    let code = bench.run("first", &pod("first", spec(4))).wait().expect("an end").code();
    assert_eq!(code, Some(4), "{}", bench.said("first"));
    let mut file = fs::File::create(&ballast).expect("a file");
    let full = std::io::copy(&mut std::io::repeat(0), &mut file).expect_err("it is full");
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull, "{full}");
    drop(file);
    let mut run = bench.run("second", &pod("second", spec(5)));
    eventually("it says why", || bench.said("second").contains("no space left on device"));
    fs::remove_file(&ballast).expect("remove");
    assert_eq!(run.wait().expect("an end").code(), Some(5), "{}", bench.said("second"));
    bench.finish();
}

fn restart() {
    let bench = Bench::new();
    for signal in [Signal::TERM, Signal::KILL] {
        let log = bench.dir.path().join("log");
        let _ = fs::remove_file(&log);
        let with_log = |name: &str, script: &str| {
            let mut made = container(name, &format!("echo {name} >> /ev/log; {script}"));
            made["volumeMounts"] = json!([{"name": "ev", "mountPath": "/ev"}]);
            made
        };
        let mut sidecar =
            with_log("sidecar", "trap 'echo gone >> /ev/log; exit 0' TERM; while :; do sleep 0.05; done");
        sidecar["restartPolicy"] = json!("Always");
        let spec = json!({
            "restartPolicy": "Never",
            "initContainers": [with_log("init", "true"), sidecar],
            // One container ends while the node is down, the other one afterwards.
            "containers": [with_log("short", "sleep 1"), with_log("main", "sleep 4; exit 6")],
            "volumes": [{"name": "ev", "hostPath": {"path": bench.dir.path()}}],
        });
        let name = format!("restart-{}", signal.as_raw());
        let mut run = bench.run(&name, &pod(&name, spec));
        eventually("the pod runs", || bench.said(&name).contains("phase Running"));
        let mut containerd = bench.containerd.lock().unwrap_or_else(PoisonError::into_inner);
        containerd.halt(signal);
        std::thread::park_timeout(Duration::from_secs(2));
        containerd.go_on();
        drop(containerd);
        let code = run.wait().expect("an end").code();
        let (output, log) = (bench.said(&name), fs::read_to_string(&log).unwrap_or_default());
        assert_eq!(code, Some(6), "{output}");
        assert_eq!(log, "init\nsidecar\nshort\nmain\ngone\n", "{output}");
    }
    bench.finish();
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// A repeatable pseudo-random generator.
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

/// A pod, its expected result, and how often each of its containers must have been started.
struct Task {
    name: String,
    pod: Value,
    code: i32,
    starts: Vec<(&'static str, usize)>,
}

/// Containers log their start, so that a second start is detected.
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
    let seed = number("OUTRIGGER_SOAK_SEED").unwrap_or_else(|| RandomState::new().hash_one(0));
    let pods = number("OUTRIGGER_SOAK_PODS").and_then(|n| usize::try_from(n).ok()).unwrap_or(PODS_AT_A_TIME);
    println!("OUTRIGGER_SOAK_SEED={seed} OUTRIGGER_SOAK_PODS={pods}");
    let mut chance = Chance(seed | 1);
    let bench = Bench::new();
    let tasks: Vec<Task> = (0..pods).map(|number| task(number, &mut chance, bench.dir.path())).collect();
    let (next, over, wrong) = (AtomicUsize::new(0), AtomicBool::new(false), Mutex::new(Vec::new()));
    let (begun, spoiled) = (Instant::now(), AtomicUsize::new(0));
    let restarts = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..PODS_AT_A_TIME)
            .map(|_| {
                scope.spawn(|| {
                    while let Some(task) = tasks.get(next.fetch_add(1, Ordering::Relaxed)) {
                        match carry_out(&bench, task) {
                            Ok(true) => {}
                            Ok(false) => _ = spoiled.fetch_add(1, Ordering::Relaxed),
                            Err(error) => wrong.lock().unwrap_or_else(PoisonError::into_inner).push(error),
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
    let (seconds, spoiled) = (begun.elapsed().as_secs(), spoiled.into_inner());
    println!("{pods} pods, {restarts} restarts, {seconds} s; of {spoiled} pods containerd spoiled something");
    let wrong = wrong.into_inner().unwrap_or_else(PoisonError::into_inner);
    if !wrong.is_empty() {
        let containerd = bench.containerd.lock().unwrap_or_else(PoisonError::into_inner);
        let log = containerd.log();
        return Err(format!("seed {seed}, {restarts} restarts:\n{}\n{log}", wrong.join("\n")).into());
    }
    assert!(restarts > 0, "containerd was never restarted");
    // A restarted containerd removes objects that it was creating when it was stopped.
    let mut containerd = bench.containerd.lock().unwrap_or_else(PoisonError::into_inner);
    containerd.halt(Signal::TERM);
    containerd.go_on();
    drop(containerd);
    bench.finish();
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

/// Runs a pod and checks its result. Returns false if containerd caused a failure and the pod reported it.
fn carry_out(bench: &Bench, task: &Task) -> Result<bool, String> {
    let (mut code, mut output) = (None, String::new());
    // A run does not begin without a runtime. Only this error is retried.
    for _ in 0..100 {
        code = bench.run(&task.name, &task.pod).wait().expect("an end").code();
        output = bench.said(&task.name);
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
    // containerd undoes a start during which it is stopped, and sometimes loses an exit code or a sandbox.
    // This is a failure, and the pod reports why. Containers are started again only if the pod's policy says
    // so.
    let said = |text: &str| output.matches(text).count();
    let undone = said("was stopped while it started the container")
        + said("was frozen when the container runtime was stopped")
        + said("does not know how the container ended")
        + said("lost its sandbox");
    let restarts = task.pod["spec"]["restartPolicy"] == "OnFailure";
    if undone > 0 && !restarts {
        bad.clear();
    }
    for (name, expected) in &task.starts {
        let starts = log.lines().filter(|line| line == name).count();
        let most = if restarts || *name == "sidecar" { expected + undone } else { *expected };
        if starts > most || (starts < *expected && undone == 0) {
            bad.push(format!("{name} was started {starts} times, not {expected}"));
        }
    }
    match bad.is_empty() {
        true => Ok(undone == 0),
        false => Err(format!("{}: {}\n{log}{output}", task.name, bad.join(", "))),
    }
}
