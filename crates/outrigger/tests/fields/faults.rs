//! Tests full disks and processes that are killed.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use sha2::Digest as _;

use crate::run::{Bench, Run, Test};
use crate::{pod, with};

pub(crate) const ALL: &[(&str, Test)] = &[
    ("a_killed_shim_ends_its_container_and_is_said", a_killed_shim_ends_its_container_and_is_said),
    ("a_pod_that_loses_its_sandbox_begins_again", a_pod_that_loses_its_sandbox_begins_again),
    (
        "a_killed_agent_s_pods_are_cleared_away_by_the_next",
        a_killed_agent_s_pods_are_cleared_away_by_the_next,
    ),
    (
        "runs_that_start_together_do_not_take_each_other_s_pods",
        runs_that_start_together_do_not_take_each_other_s_pods,
    ),
    ("a_full_disk_is_said", a_full_disk_is_said),
];

/// The number of moments of a pod's life at which its agent is killed.
const TURNS: u32 = 12;

/// A pod's directories below a state directory.
fn pods(state: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(state.join("pods")).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

/// The stored states of the containers in a state directory.
fn states(state: &Path) -> Vec<Value> {
    let dirs =
        pods(state).into_iter().flat_map(|pod| fs::read_dir(pod.join("ns/containers")).into_iter().flatten());
    dirs.flatten()
        .filter_map(|dir| fs::read(dir.path().join("state.json")).ok())
        .filter_map(|text| serde_json::from_slice(&text).ok())
        .collect()
}

fn kill(pid: &Value) {
    let pid = pid.as_i64().and_then(|pid| Pid::from_raw(pid as i32)).expect("a pid");
    kill_process(pid, Signal::KILL).expect("kill it");
}

fn a_killed_shim_ends_its_container_and_is_said(bench: &Bench, name: &str) {
    let state = bench.work.join(format!("{name}-state"));
    let flags = ["--state-dir", state.to_str().expect("text")];
    let spec = json!({"containers": [bench.container("main", "exec sleep 600")]});
    let mut run = Run::start(bench, name, &pod("p", spec), &flags);
    run.wait_for("main to run", |run| run.event(json!({"event": "started"})).is_some());
    run.wait_for("the shim's notes", |_| states(&state).iter().any(|s| s["started"].is_object()));
    kill(&states(&state)[0]["shim"]["pid"]);
    assert_eq!(run.end(), 137, "{}", run.account());
    let exit = &run.events()[run.must(json!({"event": "exited", "code": 137}))];
    assert_eq!(exit["message"], "the container's shim was killed, and the container with it", "{exit}");
    assert_eq!(pods(&state), Vec::<PathBuf>::new(), "nothing is left");
}

fn a_pod_that_loses_its_sandbox_begins_again(bench: &Bench, name: &str) {
    let state = bench.work.join(format!("{name}-state"));
    let flags = ["--state-dir", state.to_str().expect("text")];
    let spec = |policy: &str| {
        json!({
            "restartPolicy": policy, "shareProcessNamespace": true,
            "initContainers": [bench.container("init", "true")],
            "containers": [bench.container("main", "exec sleep 600")],
        })
    };
    let pause = || -> Option<Value> {
        let text = fs::read(pods(&state).first()?.join("sandbox.json")).ok()?;
        let state: Value = serde_json::from_slice(&text).ok()?;
        Some(state["pause"]["pid"].clone())
    };
    let mut run = Run::start(bench, &format!("{name}-always"), &pod("p", spec("Always")), &flags);
    run.wait_for("main to run", |run| run.event(json!({"event": "started", "container": "main"})).is_some());
    kill(&pause().expect("a pause process"));
    run.wait_for("a second beginning", |run| {
        let events = run.events();
        let lost = events.iter().position(|e| e["event"] == "sandbox-lost");
        let after = |lost: usize, container: &str| {
            events[lost..].iter().any(|e| e["event"] == "started" && e["container"] == container)
        };
        lost.is_some_and(|lost| after(lost, "init") && after(lost, "main"))
    });
    run.signal(Signal::TERM);
    assert_eq!(run.end(), 143, "{}", run.account());
    assert_eq!(pods(&state), Vec::<PathBuf>::new(), "nothing is left");

    let mut run = Run::start(bench, &format!("{name}-never"), &pod("p", spec("Never")), &flags);
    run.wait_for("main to run", |run| run.event(json!({"event": "started", "container": "main"})).is_some());
    kill(&pause().expect("a pause process"));
    assert_eq!(run.end(), 137, "{}", run.account());
    assert_eq!(run.status()["status"]["phase"], "Failed", "{}", run.account());
    assert_eq!(run.events_named("starting").len(), 2, "nothing runs twice\n{}", run.account());
}

/// Everything on this machine that belongs to the pods of one state directory.
fn traces(state: &Path, ids: &[String]) -> Vec<String> {
    let mut found = Vec::new();
    let here = state.to_str().expect("text");
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
    found.extend(mounts.lines().filter(|l| l.contains(here)).map(|l| format!("mount {l}")));
    found.extend(pods(state).into_iter().map(|dir| format!("directory {}", dir.display())));
    let links = std::process::Command::new("ip").args(["-o", "link"]).output();
    let links = links.map(|l| String::from_utf8_lossy(&l.stdout).into_owned()).unwrap_or_default();
    let ours = |text: &str| ids.iter().any(|id| text.contains(id.as_str()));
    found.extend(links.lines().filter(|l| ours(l)).map(|l| format!("interface {l}")));
    for entry in fs::read_dir("/proc").expect("processes").flatten() {
        let dir = entry.path();
        let cgroup = fs::read_to_string(dir.join("cgroup")).unwrap_or_default();
        let command = fs::read_to_string(dir.join("cmdline")).unwrap_or_default();
        // A process that has ended and is not reaped yet has no command line.
        if (ours(&cgroup) || ours(&command)) && !command.is_empty() {
            found.push(format!("process {}: {}", dir.display(), command.replace('\0', " ")));
        }
    }
    let mut dirs = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|t| t.is_dir()) {
                if ours(&entry.file_name().to_string_lossy()) {
                    found.push(format!("cgroup {}", entry.path().display()));
                }
                dirs.push(entry.path());
            }
        }
    }
    found
}

/// Kills runs at moments spread over a pod's whole life. After one more run, nothing of them may be left.
fn a_killed_agent_s_pods_are_cleared_away_by_the_next(bench: &Bench, name: &str) {
    let state = bench.work.join(format!("{name}-state"));
    let flags = ["--network", "private", "--state-dir", state.to_str().expect("text")];
    let spec = json!({
        "shareProcessNamespace": true,
        "volumes": [{"name": "mem", "emptyDir": {"medium": "Memory"}}, {"name": "disk", "emptyDir": {}}],
        "initContainers": [bench.container("init", "true"),
            with(bench.container("side", "sleep 600"), json!({"restartPolicy": "Always"}))],
        "containers": [with(bench.container("main", "sleep 0.1"), json!({
            "resources": {"limits": {"memory": "64Mi"}},
            "volumeMounts": [{"name": "mem", "mountPath": "/mem"},
                {"name": "disk", "mountPath": "/sub", "subPath": "a/b"}],
        }))],
    });
    let names = |ids: &mut Vec<String>| {
        ids.extend(pods(&state).iter().filter_map(|dir| Some(dir.file_name()?.to_str()?.to_owned())));
    };
    let began = Instant::now();
    let mut whole = Run::start(bench, &format!("{name}-whole"), &pod("victim", spec.clone()), &flags);
    assert_eq!(whole.end(), 0, "{}", whole.account());
    let life = began.elapsed();
    let mut ids = Vec::new();
    for turn in 0..TURNS {
        let moment = Instant::now() + life * turn / TURNS;
        let mut run = Run::start(bench, &format!("{name}-{turn}"), &pod("victim", spec.clone()), &flags);
        run.wait_for("its moment", |run| {
            names(&mut ids);
            Instant::now() >= moment || run.event(json!({"event": "finished"})).is_some()
        });
        run.signal(Signal::KILL);
        run.end();
        names(&mut ids);
    }
    ids.sort();
    ids.dedup();
    assert!(!ids.is_empty(), "some of them got as far as a pod");
    let last = pod("last", json!({"containers": [bench.container("main", "true")]}));
    let mut run = Run::start(bench, &format!("{name}-last"), &last, &flags);
    assert_eq!(run.end(), 0, "{}", run.account());
    // The kernel removes interfaces with a delay.
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut left = traces(&state, &ids);
    while !left.is_empty() && Instant::now() < deadline {
        std::thread::park_timeout(Duration::from_millis(50));
        left = traces(&state, &ids);
    }
    assert_eq!(left, Vec::<String>::new(), "{}", run.account());
}

fn runs_that_start_together_do_not_take_each_other_s_pods(bench: &Bench, name: &str) {
    let state = bench.work.join(format!("{name}-state"));
    let flags = ["--state-dir", state.to_str().expect("text")];
    let one = pod("one", json!({"containers": [bench.container("main", "true")]}));
    for turn in 0..4 {
        let start = |n| Run::start(bench, &format!("{name}-{turn}-{n}"), &one, &flags);
        let mut runs: Vec<Run> = (0..4).map(start).collect();
        for run in &mut runs {
            assert_eq!(run.end(), 0, "{}", run.account());
            assert_eq!(run.event(json!({"event": "sandbox-failed"})), None, "{}", run.account());
            assert!(!run.said().contains("another running"), "{}", run.account());
        }
    }
    assert_eq!(pods(&state), Vec::<PathBuf>::new(), "nothing is left");
}

/// A small file system. Dropping the value removes it.
struct Small(PathBuf);

impl Small {
    fn new(path: PathBuf, size: &str) -> Self {
        fs::create_dir_all(&path).expect("a directory");
        let options = std::ffi::CString::new(format!("size={size},mode=700")).expect("options");
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("small", &path, "tmpfs", flags, options.as_c_str()).expect("mount it");
        Small(path)
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

/// An image of two mebibytes, in the format of `docker save`.
fn big_image(path: &Path) {
    let append = |archive: &mut tar::Builder<Vec<u8>>, name: &str, content: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o755);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        archive.append_data(&mut header, name, content).expect("append");
    };
    let mut layer = tar::Builder::new(Vec::new());
    append(&mut layer, "big", &vec![1; 2 << 20]);
    let layer = layer.into_inner().expect("a layer");
    let digest: String = sha2::Sha256::digest(&layer).iter().map(|byte| format!("{byte:02x}")).collect();
    let config = json!({"architecture": "amd64", "os": "linux", "config": {"Cmd": ["/big"]},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{digest}")]}});
    let manifest = json!([{"Config": "config.json", "RepoTags": ["big:1"], "Layers": ["layer.tar"]}]);
    let mut image = tar::Builder::new(Vec::new());
    append(&mut image, "manifest.json", manifest.to_string().as_bytes());
    append(&mut image, "config.json", config.to_string().as_bytes());
    append(&mut image, "layer.tar", &layer);
    fs::write(path, image.into_inner().expect("an image")).expect("write the image");
}

/// Runs a pod until a message appears, then stops it. Nothing of it may be left.
fn until_said(bench: &Bench, name: &str, disk: &Small, container: Value, said: &[&str]) {
    let flags = ["--state-dir", disk.0.to_str().expect("text")];
    let mut run = Run::start(bench, name, &pod("p", json!({"containers": [container]})), &flags);
    run.wait_for(&format!("{said:?}"), |run| said.iter().all(|text| run.said().contains(text)));
    run.signal(Signal::TERM);
    assert_eq!(run.end(), 143, "{}", run.account());
    assert_eq!(pods(&disk.0), Vec::<PathBuf>::new(), "nothing is left\n{}", run.account());
    let waste = fs::read_dir(disk.0.join("images/tmp")).into_iter().flatten().count();
    assert_eq!(waste, 0, "nothing half done is left\n{}", run.account());
}

fn a_full_disk_is_said(bench: &Bench, name: &str) {
    let disk = |kind: &str, size: &str| Small::new(bench.work.join(format!("{name}-{kind}-disk")), size);
    let no_space = "no space left on device";

    let small = disk("pod", "4k");
    let main = bench.container("main", "true");
    until_said(bench, &format!("{name}-pod"), &small, main, &["could not create sandbox", no_space]);

    let small = disk("image", "1m");
    let archive = bench.work.join(format!("{name}.tar"));
    big_image(&archive);
    let main = json!({"name": "main", "image": format!("docker-archive:{}", archive.display())});
    until_said(bench, &format!("{name}-image"), &small, main, &["could not pull image", no_space]);

    // A container keeps running when its log cannot be written, and its result counts.
    let small = disk("log", "64k");
    let flags = ["--state-dir", small.0.to_str().expect("text")];
    let spec = json!({"containers": [bench.container("main", "seq 1 20000; exit 5")]});
    let mut run = Run::start(bench, &format!("{name}-log"), &pod("p", spec), &flags);
    assert_eq!(run.end(), 5, "{}", run.account());
    let lost = format!("output of container \"main\" is lost: its log: {no_space}");
    assert_eq!(run.said().matches(&lost).count(), 1, "{}", run.said());
    let whole = |(n, line): (usize, &str)| line == format!("main | {}", n + 1);
    assert!(run.output().lines().enumerate().all(whole), "what is shown is whole: {}", run.output());
    assert_eq!(pods(&small.0), Vec::<PathBuf>::new(), "nothing is left");

    // The same holds for a pod whose events cannot be written.
    let small = disk("events", "4k");
    let crowd: Vec<Value> = (0..8).map(|n| bench.container(&format!("main{n}"), "exit 5")).collect();
    let manifest = bench.work.join(format!("{name}-events.json"));
    fs::write(&manifest, pod("p", json!({"containers": crowd})).to_string()).expect("write the manifest");
    let run = std::process::Command::new(&bench.binary)
        .args(["run", "--network", "none", "--output", "plain", "--state-dir"])
        .arg(bench.work.join("state"))
        .arg("--events")
        .arg(small.0.join("events.jsonl"))
        .arg("--status")
        .arg(small.0.join("status.json"))
        .arg(manifest)
        .output()
        .expect("run it");
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    assert_eq!(run.status.code(), Some(5), "{said}");
    assert_eq!(said.matches("events are lost").count(), 1, "{said}");
    assert_eq!(said.matches("status.json: No space left").count(), 1, "{said}");
    let events = fs::read_to_string(small.0.join("events.jsonl")).expect("events");
    for line in events.lines().filter(|_| events.ends_with('\n')) {
        assert!(serde_json::from_str::<Value>(line).is_ok(), "half an event: {line}");
    }
    let left: Vec<_> =
        fs::read_dir(&small.0).expect("a directory").flatten().map(|e| e.file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().ends_with(".tmp")), "{left:?}");
}
