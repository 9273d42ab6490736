//! `outrigger logs`.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::process::Child;

use serde_json::{Value, json};

use crate::command::{is_up, must, outrigger, pod, say, start};
use crate::run::{Bench, Run, Test};

pub(crate) const ALL: [(&str, Test); 8] = [
    ("logs_are_followed_through_restarts_to_the_end", follow),
    ("logs_are_what_was_asked_for", pieces),
    ("logs_of_a_container_that_waits_say_why", waiting),
    ("a_reader_that_hangs_does_not_hold_the_pod", held),
    ("a_run_whose_output_nobody_reads_ends_its_pod", stalled),
    ("long_lines_arrive_whole", long),
    ("no_line_is_lost_between_log_files", rotated),
    ("output_that_nobody_reads_is_bounded", bounded),
];

fn follow(bench: &Bench, name: &str) {
    let name = &name.replace('_', "-");
    // There are two instances: the first fails, and the second runs until it is stopped.
    let script = "if [ -e /state/again ]; then trap 'echo bye; exit 0' TERM; echo second; \
        while :; do sleep 0.1; done; fi; \
        echo first; while [ ! -e /state/go ]; do sleep 0.1; done; echo last of first; touch /state/again; exit 1";
    let (state, volumes) = shared(bench, name);
    let mut app = bench.container("app", script);
    app["volumeMounts"] = json!([{"name": "state", "mountPath": "/state"}]);
    let spec = json!({"restartPolicy": "OnFailure", "terminationGracePeriodSeconds": 5, "volumes": volumes,
        "containers": [app]});
    let mut run = start(bench, name, spec, is_up);
    let (mut child, mut lines) = following(bench, name);
    assert_eq!(lines(), Some("first".to_owned()));
    std::fs::write(state.join("go"), "").expect("a file");
    assert_eq!(lines(), Some("last of first".to_owned()));
    assert_eq!(lines(), Some("second".to_owned()));
    assert_eq!(must(bench, &["logs", name]), "second\n");
    assert_eq!(must(bench, &["logs", "-p", name]), "first\nlast of first\n");
    must(bench, &["stop", name]);
    assert_eq!(lines(), Some("bye".to_owned()));
    assert_eq!(lines(), None, "the end");
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
    assert_eq!(run.end(), 0, "{}", run.account());
}

/// A directory that pods and tests share, and the volumes of a pod that uses it.
fn shared(bench: &Bench, name: &str) -> (PathBuf, Value) {
    let state = bench.work.join(format!("{name}-state"));
    std::fs::create_dir_all(&state).expect("a directory");
    let volumes = json!([{"name": "state", "hostPath": {"path": state}}]);
    (state, volumes)
}

/// Starts `logs -f`. Returns the process and its lines.
fn following(bench: &Bench, pod: &str) -> (Child, impl FnMut() -> Option<String> + use<>) {
    let mut child = outrigger(bench, &["logs", "-f", pod]).spawn().expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    (child, move || lines.next().map(|line| line.expect("text")))
}

fn pieces(bench: &Bench, name: &str) {
    let name = &name.replace('_', "-");
    let setup = bench.container("setup", "echo prepared");
    let app = bench.container("app", "for i in 1 2 3 4 5; do echo line $i; done; echo err >&2; sleep 600");
    let spec = json!({"terminationGracePeriodSeconds": 1, "initContainers": [setup],
        "containers": [app, bench.container("other", "echo hello; sleep 600")]});
    let mut run = start(bench, name, spec, is_up);
    run.wait_for("all output", |run| run.output().contains("app | err") && run.output().contains("hello"));
    let logs = |args: &[&str]| must(bench, &[&["logs", name, "-c", "app"], args].concat());
    assert_eq!(logs(&["--tail", "2"]), "line 5\nerr\n");
    assert_eq!(logs(&["--tail", "0"]), "");
    assert_eq!(logs(&["--since", "1h"]).lines().count(), 6);
    assert_eq!(logs(&["--since", "0s"]), "");
    let stamped = logs(&["--tail", "1", "--timestamps", "--prefix"]);
    let (stamp, rest) = stamped.strip_prefix("app | ").expect("a name").split_once(' ').expect("a time");
    assert!(stamp.ends_with('Z') && stamp.len() == 30 && rest == "err\n", "{stamped}");
    assert_eq!(must(bench, &["logs", name, "-c", "setup", "-f"]), "prepared\n", "it is over for good");
    let all = must(bench, &["logs", name, "--all-containers", "--tail", "1"]);
    assert_eq!(all, "setup | prepared\napp | err\nother | hello\n");
    let said = say(bench, &["logs", name, "--tail", "1"]);
    let defaulted = "Defaulted container \"app\" out of: setup (init), app, other\n";
    assert!(said.out == "err\n" && said.err.ends_with(defaulted), "{said:?}");
    for (args, expected) in [
        (&["logs", name, "-c", "ap"][..], "has no container \"ap\"; its containers: setup, app, other"),
        (&["logs", name, "-c", "app", "-p"], "container \"app\" has no previous instance"),
        (&["logs", name, "--since", "soon"], "expected a duration"),
    ] {
        let said = say(bench, args);
        assert_eq!(said.code, 2, "{args:?}: {said:?}");
        assert!(said.err.contains(expected), "{args:?}: {said:?}");
    }
}

fn waiting(bench: &Bench, name: &str) {
    let name = &name.replace('_', "-");
    let (state, volumes) = shared(bench, name);
    let mut setup = bench.container("setup", "echo prepared; while [ ! -e /state/go ]; do sleep 0.1; done");
    setup["volumeMounts"] = json!([{"name": "state", "mountPath": "/state"}]);
    let spec = json!({"terminationGracePeriodSeconds": 1, "restartPolicy": "Never", "volumes": volumes,
        "initContainers": [setup],
        "containers": [bench.container("app", "echo at last")]});
    let running = |pod: &Value| pod["containers"][0]["state"] == "running";
    let mut run = start(bench, name, spec, running);
    let why = &format!("container \"app\" of pod {name:?} has not started: waits for `setup` to complete");
    let said = say(bench, &["logs", name]);
    assert_eq!(said.code, 2, "{said:?}");
    assert!(said.err.contains(why.as_str()), "{said:?}");
    let mut child = outrigger(bench, &["logs", "-f", name, "-c", "app"]).spawn().expect("it starts");
    let mut err = BufReader::new(child.stderr.take().expect("piped"));
    let mut note = String::new();
    // Notes about runs of other tests may come first.
    while !note.contains(why.as_str()) && err.read_line(&mut note).expect("text") > 0 {}
    assert!(note.contains(why.as_str()), "{note}");
    std::fs::write(state.join("go"), "").expect("a file");
    let mut text = String::new();
    child.stdout.take().expect("piped").read_to_string(&mut text).expect("text");
    assert_eq!((text.as_str(), child.wait().expect("it ends").code()), ("at last\n", Some(0)));
    assert_eq!(run.end(), 0, "{}", run.account());
}

fn held(bench: &Bench, name: &str) {
    let name = &name.replace('_', "-");
    let script = "trap 'exit 0' TERM; while :; do seq 1 20000; sleep 0.1; done";
    let spec = json!({"restartPolicy": "Never", "terminationGracePeriodSeconds": 30,
        "containers": [bench.container("app", script)]});
    let mut run = start(bench, name, spec, is_up);
    // Its output is never read.
    let mut child = outrigger(bench, &["logs", "-f", name]).spawn().expect("it starts");
    run.wait_for("more than anybody keeps", |run| run.output().len() > 2 << 20);
    must(bench, &["stop", name]);
    assert_eq!(run.end(), 0, "{}", run.account());
    assert_eq!(pod(bench, name), None);
    child.kill().expect("it is there");
    child.wait().expect("it ends");
}

/// The pod ends and its sandbox is removed, although nobody reads the output yet.
fn stalled(bench: &Bench, name: &str) {
    let name = &name.replace('_', "-");
    const LINES: usize = 400_000;
    let spec = json!({"restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
        "containers": [bench.container("app", &format!("seq 1 {LINES}"))]});
    let manifest = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec});
    let dir = bench.work.join(name);
    std::fs::create_dir_all(&dir).expect("a directory");
    let file = dir.join("manifest.json");
    std::fs::write(&file, manifest.to_string()).expect("a manifest");
    let state = dir.join("state");
    let mut run = outrigger(bench, &["run", "--output", "plain", "--network", "none", "--state-dir"])
        .arg(&state)
        .arg(&file)
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("it starts");
    let sandboxes = || {
        let pods = std::fs::read_dir(state.join("pods")).into_iter().flatten().flatten();
        pods.filter(|pod| pod.path().join("sandbox.json").exists()).count()
    };
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    for expected in [1, 0] {
        while sandboxes() != expected {
            assert!(std::time::Instant::now() < deadline, "not {expected} sandboxes in time");
            std::thread::park_timeout(std::time::Duration::from_millis(5));
        }
    }
    assert!(run.try_wait().expect("a child").is_none(), "its output was not read");
    let mut text = String::new();
    run.stdout.take().expect("piped").read_to_string(&mut text).expect("text");
    assert_eq!(text.lines().count(), LINES);
    assert!(text.ends_with(&format!("app | {LINES}\n")));
    assert_eq!(run.wait().expect("it ends").code(), Some(0));
}

fn long(bench: &Bench, name: &str) {
    let name = &name.replace('_', "-");
    let script = "head -c 300000 /dev/zero | tr '\\0' x; echo; echo end; sleep 600";
    let spec = json!({"terminationGracePeriodSeconds": 1, "containers": [bench.container("app", script)]});
    let mut run = start(bench, name, spec, is_up);
    run.wait_for("end", |run| run.output().contains("app | end"));
    let text = must(bench, &["logs", name]);
    assert_eq!((text.len(), text.lines().count()), (300_005, 2));
    assert_eq!(must(bench, &["logs", name, "--tail", "2"]).len(), 300_005);
}

/// With many small files, the run's own output, `logs` and `logs -f` show each line once and in order.
fn rotated(bench: &Bench, name: &str) {
    let name = &name.replace('_', "-");
    const LINES: usize = 30_000;
    let (state, volumes) = shared(bench, name);
    let script = format!(
        "seq 1 {}; while [ ! -e /state/go ]; do sleep 0.1; done; seq {} {LINES}; sleep 600",
        LINES / 2,
        LINES / 2 + 1
    );
    let mut app = bench.container("app", &script);
    app["volumeMounts"] = json!([{"name": "state", "mountPath": "/state"}]);
    let manifest = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
        "terminationGracePeriodSeconds": 1, "volumes": volumes, "containers": [app]}});
    let flags = ["--log-max-size", "64Ki", "--log-max-files", "100"];
    let mut run = Run::start(bench, name, &manifest, &flags);
    let half = format!("app | {}\n", LINES / 2);
    run.wait_for("half of the output", |run| run.output().contains(&half));
    let (mut child, mut lines) = following(bench, name);
    std::fs::write(state.join("go"), "").expect("a file");
    for expected in 1..=LINES {
        assert_eq!(lines(), Some(expected.to_string()));
    }
    child.kill().expect("it is there");
    child.wait().expect("it ends");
    let all: String = (1..=LINES).map(|line| format!("{line}\n")).collect();
    assert!(must(bench, &["logs", name]) == all, "logs from the beginning");
    assert_eq!(must(bench, &["logs", name, "--tail", "9000"]).lines().next(), Some("21001"));
    let last = format!("app | {LINES}\n");
    run.wait_for("all of the output", |run| run.output().contains(&last));
    let shown: Vec<String> =
        run.output().lines().filter_map(|l| l.strip_prefix("app | ")).map(str::to_owned).collect();
    assert!(shown.iter().map(String::as_str).eq(all.lines()), "{} lines", shown.len());
    let logs = log_files(bench, name);
    assert!(logs.len() > 5 && logs.iter().all(|size| *size <= 64 << 10), "{logs:?}");
}

/// The run's output is not read, and the container writes without a pause.
fn bounded(bench: &Bench, name: &str) {
    let name = &name.replace('_', "-");
    let app = bench.container("app", "yes 'a line of output that is repeated without end'");
    let manifest = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
        "terminationGracePeriodSeconds": 1, "containers": [app]}});
    let path = bench.work.join(format!("{name}.json"));
    std::fs::write(&path, manifest.to_string()).expect("a manifest");
    let state = bench.work.join("state");
    let args = ["run", "--log-max-size", "1Mi", "--log-max-files", "3", "--state-dir"];
    let mut command = outrigger(bench, &args);
    let mut child = command.arg(&state).arg(&path).spawn().expect("it starts");
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let (mut most, mut rotations, mut before) = (0, 0, Vec::new());
    while rotations < 30 {
        assert!(std::time::Instant::now() < deadline, "only {rotations} changes seen");
        std::thread::park_timeout(std::time::Duration::from_millis(10));
        let now = log_files(bench, name);
        most = most.max(now.iter().sum::<u64>());
        if now != before {
            rotations += 1;
            before = now;
        }
    }
    assert!(most > 1 << 20 && most <= (3 << 20) + (128 << 10), "{most} bytes of logs");
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).expect("a status");
    let memory =
        status.lines().find_map(|l| l.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse::<u64>().ok());
    assert!(memory.is_some_and(|kib| kib < 128 << 10), "{memory:?} KiB");
    // Close the reader's side.
    drop((child.stdout.take(), child.stderr.take()));
    must(bench, &["stop", name]);
    child.wait().expect("it ends");
}

/// The sizes of the log files of a pod's container `app`.
fn log_files(bench: &Bench, pod: &str) -> Vec<u64> {
    let pods = std::fs::read_dir(bench.work.join("state/pods")).into_iter().flatten().flatten();
    let own = pods.filter(|entry| entry.file_name().to_string_lossy().ends_with(pod));
    let files = own
        .flat_map(|entry| std::fs::read_dir(entry.path().join("logs/app")).into_iter().flatten().flatten());
    // A file that is being renamed may be seen under both names.
    let sizes: BTreeMap<u64, u64> =
        files.filter_map(|file| file.metadata().ok()).map(|file| (file.ino(), file.len())).collect();
    sizes.into_values().collect()
}
