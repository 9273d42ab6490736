//! Tests pods that outlive the process that watches them.

use std::fs;

use rustix::process::Signal;
use serde_json::json;

use crate::daemon::Daemon;
use crate::rootfs;
use crate::run::{Bench, Test};

pub(crate) const ALL: [(&str, Test); 12] = [
    ("a_pod_goes_on_when_its_node_is_killed", goes_on),
    ("an_image_that_is_gone_stops_no_pod", image_gone),
    ("a_pod_of_another_mount_namespace_is_not_started_again", other_mounts),
    ("what_happened_meanwhile_is_known", meanwhile),
    ("a_wait_is_for_what_an_object_is_for", waits),
    ("a_wait_says_what_cannot_start", cannot_start),
    ("there_is_one_node_for_a_state_directory", one_node),
    ("logs_outlive_their_pod", logs_stay),
    ("state_that_is_garbage_is_one_pod_s_trouble", garbage),
    ("jobs_and_deployments_go_on", workloads),
    ("a_shutdown_stops_less_priority_first", shutdown),
    ("a_run_can_be_followed", attach),
];

/// Logs its stop, and runs until then.
const POLITE: &str = "trap 'echo bye; exit 0' TERM; while :; do sleep 0.1; done";

fn shell(bench: &Bench, name: &str, script: &str) -> serde_json::Value {
    bench.container(name, script)
}

/// The process id and the start time of the container's program, which the program logs itself.
const WHO: &str =
    "trap 'echo bye; exit 0' TERM; echo start $(cut -d' ' -f22 /proc/self/stat); while :; do sleep 0.1; done";

fn goes_on(bench: &Bench, name: &str) {
    let mut node = Daemon::start(bench, name, &[]);
    let mut proxy = shell(bench, "proxy", WHO);
    proxy["restartPolicy"] = json!("Always");
    let spec = json!({"initContainers": [shell(bench, "init", "echo once"), proxy], "containers": [shell(bench, "app", WHO)]});
    let said = node.run("web", &spec, &["--wait"]);
    assert_eq!((said.code, said.out.as_str()), (0, "pod/web\n"), "{said:?}\n{}", node.account());
    let before = node.pod("web").expect("it is there");
    let logs = |node: &Daemon<'_>| {
        ["init", "proxy", "app"].map(|container| node.must(&["logs", "web", "-c", container]))
    };
    // A container runs a little before its program has said anything.
    node.until("all have said something", |node| logs(node).iter().all(|log| !log.is_empty()));
    let said_before = logs(&node);
    for _ in 0..3 {
        node.down(Signal::KILL);
        node.up();
    }
    node.ready("web");
    let after = node.pod("web").expect("it is there");
    assert_eq!(logs(&node), said_before, "nothing was started again\n{}", node.account());
    for at in 0..3 {
        assert_eq!(after["containers"][at]["restarts"], before["containers"][at]["restarts"]);
    }
    let count = |text: &str| node.said().matches(text).count();
    assert_eq!(count("adopted web from the previous node process"), 3, "{}", node.account());
    // What the first process has reported is no news for the others.
    assert_eq!(count("phase Running"), 1, "{}", node.account());
    assert_eq!(node.must(&["exec", "web", "-c", "app", "--", "echo", "hello"]), "hello\n");
    let stopped = node.say(&["stop", "web"]);
    assert_eq!(stopped.code, 0, "{stopped:?}");
    assert!(logs(&node)[2].ends_with("bye\n"), "{:?}", logs(&node));
    node.leaves_nothing();
}

/// A new run with such an image is refused. A run that was accepted before continues and does not affect
/// others.
fn image_gone(bench: &Bench, name: &str) {
    let mut node = Daemon::start(bench, name, &[]);
    let (image, gone) = (node.dir.join("image"), node.dir.join("gone"));
    rootfs::make(&image);
    let mut app = shell(bench, "app", WHO);
    app["image"] = json!(format!("rootfs:{}", image.display()));
    let spec = json!({"containers": [app]});
    let said = node.run("web", &spec, &["--wait"]);
    assert_eq!(said.code, 0, "{said:?}\n{}", node.account());
    let log = |node: &Daemon<'_>| node.must(&["logs", "web"]);
    node.until("it has said something", |node| !log(node).is_empty());
    let said_before = log(&node);
    node.down(Signal::KILL);
    fs::rename(&image, &gone).expect("rename");
    node.up();
    node.ready("web");
    assert_eq!(log(&node), said_before, "it was not started again\n{}", node.account());
    let refused = node.run("other", &spec, &[]);
    assert!(refused.code == 2 && refused.err.contains("does not exist"), "{refused:?}");
    let new = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "new"},
        "spec": {"containers": [shell(bench, "app", WHO)]}});
    let (file, state) = (node.file("new.json", &new), node.state().display().to_string());
    node.must(&["apply", "--wait", "--state-dir", &state, "--network", "none", &file]);
    fs::rename(&gone, &image).expect("rename");
    for pod in ["web", "new"] {
        node.must(&["stop", pod]);
    }
    node.leaves_nothing();
}

/// The state of a pod's containers is in a tmpfs. Only the mount namespace in which the node was started
/// shows it.
fn other_mounts(bench: &Bench, name: &str) {
    let mut node = Daemon::start(bench, name, &[]);
    node.down(Signal::KILL);
    node.up_by(&["unshare", "--mount", "--propagation", "private"]);
    let said = node.run("web", &json!({"containers": [shell(bench, "app", WHO)]}), &["--wait"]);
    assert_eq!(said.code, 0, "{said:?}\n{}", node.account());
    node.until("it has said something", |node| !node.must(&["logs", "web"]).is_empty());
    let before = node.must(&["logs", "web"]);
    node.down(Signal::KILL);
    let state = node.state().display().to_string();
    let ps = node.say(&["ps", "--state-dir", &state]);
    assert!(ps.err.contains("1 run has not ended and its containers keep running"), "{ps:?}");
    for _ in 0..2 {
        let said = node.refused();
        assert_eq!(said.code, 125, "{said:?}");
        let fix = said.err.split("nsenter --mount --target ").nth(1).unwrap_or_else(|| panic!("{said:?}"));
        assert!(fix.contains(&format!(" outrigger node --state-dir {state}`")), "{said:?}");
        // The proposed fix works, and the pod is not affected.
        let pid = fix.split(' ').next().expect("a pid");
        node.up_by(&["nsenter", "--mount", "--target", pid]);
        node.ready("web");
        assert_eq!(node.must(&["logs", "web"]), before, "nothing was started again\n{}", node.account());
        node.down(Signal::KILL);
    }
    // A copy of that mount namespace shows the pod, too.
    let said = node.refused();
    let fix = said.err.split("nsenter --mount --target ").nth(1).unwrap_or_else(|| panic!("{said:?}"));
    let pid = fix.split(' ').next().expect("a pid");
    node.up_by(&["nsenter", "--mount", "--target", pid, "unshare", "--mount"]);
    node.ready("web");
    assert_eq!(node.must(&["logs", "web"]), before, "{}", node.account());
    node.must(&["stop", "web"]);
    assert!(node.must(&["logs", "web"]).ends_with("bye\n"), "{}", node.account());
    node.leaves_nothing();
}

fn meanwhile(bench: &Bench, name: &str) {
    let mut node = Daemon::start(bench, name, &[]);
    let flag = node.dir.join("flag");
    fs::create_dir_all(&flag).expect("a directory");
    let script = "while [ ! -e /flag/go ]; do sleep 0.05; done; echo done; exit 7";
    let mut main = shell(bench, "main", script);
    main["volumeMounts"] = json!([{"name": "flag", "mountPath": "/flag"}]);
    let spec = json!({"restartPolicy": "Never", "containers": [main],
        "volumes": [{"name": "flag", "hostPath": {"path": flag}}]});
    assert_eq!(node.run("task", &spec, &["--wait=running"]).code, 0, "{}", node.account());
    node.down(Signal::KILL);
    fs::write(flag.join("go"), "").expect("a flag");
    // The container ends while the node is down. Its log shows when.
    let log = node.state().join("pods");
    let ended = || walk(&log).iter().any(|text| text.contains("done"));
    node.until("the container ends", |_| ended());
    node.up();
    assert_eq!(node.over("task"), "Failed");
    let pod = node.pod("task").expect("it is shown");
    assert_eq!(pod["containers"][0]["exit_code"], 7, "{pod:#}");
    node.leaves_nothing();
}

/// The contents of all logs below a directory.
fn walk(dir: &std::path::Path) -> Vec<String> {
    let mut out = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        match path.is_dir() && !path.is_symlink() {
            true => out.extend(walk(&path)),
            false if path.extension().is_some_and(|e| e == "log") => {
                out.extend(fs::read_to_string(&path));
            }
            false => {}
        }
    }
    out
}

/// `--wait` waits until a Job has finished, even beside a pod that keeps running. `--wait=running` waits only
/// until they run.
fn waits(bench: &Bench, name: &str) {
    let mut node = Daemon::start(bench, name, &[]);
    let flag = node.dir.join("flag");
    fs::create_dir_all(&flag).expect("a directory");
    let script = "while [ ! -e /flag/go ]; do sleep 0.05; done; exit 7";
    let mut work = shell(bench, "work", script);
    work["volumeMounts"] = json!([{"name": "flag", "mountPath": "/flag"}]);
    let template = json!({"spec": {"restartPolicy": "Never", "containers": [work],
        "volumes": [{"name": "flag", "hostPath": {"path": flag}}]}});
    let job = |name: &str| {
        json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name},
            "spec": {"backoffLimit": 0, "template": template}})
    };
    let said = node.run_object("early", &job("early"), &["--wait=running"]);
    assert_eq!((said.code, node.say(&["ps", "job/early"]).out.contains("Running")), (0, true), "{said:?}");
    let stays = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "stays"},
        "spec": {"containers": [shell(bench, "app", POLITE)]}});
    let both = json!({"apiVersion": "v1", "kind": "List", "items": [job("late"), stays]});
    let file = node.file("both", &both);
    let state = node.state().display().to_string();
    let args = ["run", "-d", "--wait", "--network", "none", "--state-dir", &state, &file];
    let mut waiting = node.start_command(&args);
    node.ready("stays");
    node.until("the Job's pod is running", |node| node.say(&["ps", "job/late"]).out.contains("Running"));
    assert_eq!(waiting.try_wait().expect("a status"), None, "the Job is still at work");
    fs::write(flag.join("go"), "").expect("a flag");
    let code = waiting.wait().expect("it ends").code();
    assert_eq!(code, Some(7), "the result of the Job while the other pod keeps running: {}", node.account());
    node.ready("stays");
    node.must(&["stop", "stays"]);
    node.leaves_nothing();
}

fn cannot_start(bench: &Bench, name: &str) {
    let mut node = Daemon::start(bench, name, &[]);
    let mut app = shell(bench, "app", POLITE);
    app["workingDir"] = json!("/bin/busybox");
    let said = node.run("stuck", &json!({"containers": [app]}), &["--wait"]);
    assert_eq!(said.code, 1, "it is not waited for what can never start: {said:?}");
    for part in [
        "stuck app could not start: CreateContainerError: cannot make working directory /bin/busybox: not a directory",
        "use a directory of the image, or a path that does not exist: it is created",
        "trying again cannot help, but the node goes on: end it with `outrigger stop run/",
    ] {
        assert!(said.err.contains(part), "{part}: {said:?}");
    }
    node.must(&["stop", "stuck"]);
    // Something that can still be fixed is waited for, and reported in the meantime.
    let place = bench.work.join(format!("{name}-made-later"));
    let volumes = json!([{"name": "v", "hostPath": {"path": place, "type": "Directory"}}]);
    let later = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "later"},
        "spec": {"containers": [shell(bench, "app", POLITE)], "volumes": volumes}});
    let (file, state) = (node.file("later", &later), node.state().display().to_string());
    let args = ["run", "-d", "--wait", "--network", "none", "--state-dir", &state, &file];
    let mut waiting = node.start_listening(&args);
    node.until("it is known why", |node| node.say(&["ps", "-o", "json"]).out.contains("does not exist"));
    assert_eq!(waiting.try_wait().expect("a status"), None, "{}", node.account());
    fs::create_dir(&place).expect("a directory");
    let ended = waiting.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(0), "{said}\n{}", node.account());
    assert!(
        said.contains("later could not create sandbox: volume \"v\": hostPath type check failed"),
        "{said}"
    );
    node.must(&["stop", "later"]);
    node.leaves_nothing();
}

fn one_node(bench: &Bench, name: &str) {
    let mut node = Daemon::start(bench, name, &[]);
    let state = node.state().display().to_string();
    let said = node.say(&["node", "--state-dir", &state]);
    assert_eq!(said.code, 125, "{said:?}");
    assert!(said.err.contains("another outrigger node (process "), "{said:?}");
    node.leaves_nothing();
}

fn logs_stay(bench: &Bench, name: &str) {
    let mut node = Daemon::start(bench, name, &[]);
    let spec =
        json!({"restartPolicy": "Never", "containers": [shell(bench, "main", "echo out; echo err >&2")]});
    let said = node.run("task", &spec, &["--wait"]);
    assert_eq!(said.code, 0, "{said:?}");
    assert_eq!(node.over("task"), "Succeeded");
    let logs = node.must(&["logs", "task"]);
    assert!(logs.contains("out\n") && logs.contains("err\n"), "{logs}");
    node.down(Signal::KILL);
    node.up();
    assert_eq!(node.over("task"), "Succeeded");
    assert_eq!(node.must(&["logs", "task"]), logs);
    // The name of the pod can be used again.
    let said = node.run("task", &spec, &["--wait"]);
    assert_eq!(said.code, 0, "{said:?}");
    node.leaves_nothing();
}

fn garbage(bench: &Bench, name: &str) {
    let mut node = Daemon::start(bench, name, &[]);
    for pod in ["good", "bad", "lost"] {
        let said = node.run(pod, &json!({"containers": [shell(bench, "app", POLITE)]}), &["--wait"]);
        assert_eq!(said.code, 0, "{said:?}");
    }
    node.down(Signal::KILL);
    let pods = node.state().join("node/pods");
    let bad = crate::leaks::names(&pods).into_iter().find(|id| id.ends_with("-bad")).expect("its files");
    fs::write(pods.join(bad).join("observation.json"), "{\"version\":1,\"obs").expect("damage");
    let runs = node.state().join("node/runs");
    let records = crate::leaks::names(&runs).into_iter().map(|run| runs.join(run).join("run.json"));
    let is_lost =
        |path: &std::path::PathBuf| fs::read_to_string(path).is_ok_and(|text| text.contains("lost.json"));
    let lost: Vec<_> = records.filter(is_lost).collect();
    assert_eq!(lost.len(), 1, "{lost:?}");
    fs::write(&lost[0], "\0\0\0").expect("damage");
    node.up();
    node.ready("bad");
    node.ready("good");
    assert!(node.said().contains("the run cannot be resumed"), "{}", node.said());
    assert!(node.said().contains("the pod belongs to no run, removing it"), "{}", node.said());
    let there = crate::leaks::names(&node.state().join("pods"));
    assert!(!there.iter().any(|id| id.ends_with("-lost")), "{there:?}");
    assert!(node.said().contains("cannot read the pod's state, starting it again"), "{}", node.said());
    assert_eq!(node.pod("good").expect("it is there")["restarts"], 0);
    node.leaves_nothing();
}

fn workloads(bench: &Bench, name: &str) {
    let mut node = Daemon::start(bench, name, &[]);
    let job = bench.job("report", json!({"completions": 3, "backoffLimit": 0}), "sleep 0.3");
    let web = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": {
            "metadata": {"labels": {"app": "web"}}, "spec": {"containers": [shell(bench, "app", POLITE)]}}}});
    let said = node.run_object("web", &web, &["--wait"]);
    assert_eq!((said.code, said.out.as_str()), (0, "deployment/web\n"), "{said:?}\n{}", node.account());
    let said = node.run_object("report", &job, &[]);
    assert_eq!(said.code, 0, "{said:?}");
    let before = node.must(&["ps", "-o", "name", "deploy/web"]);
    node.down(Signal::KILL);
    node.up();
    let runs = || -> serde_json::Value {
        serde_json::from_str(&node.must(&["ps", "-a", "-o", "json"])).expect("JSON")
    };
    let succeeded = || {
        let pods = runs()[0]["pods"].as_array().cloned().unwrap_or_default();
        pods.iter().filter(|pod| pod["workload"] == "Job/report" && pod["phase"] == "Succeeded").count()
    };
    node.until("the Job is complete", |_| succeeded() == 3);
    assert_eq!(node.must(&["ps", "-o", "name", "deploy/web"]), before);
    node.must(&["stop", "deploy/web"]);
    node.leaves_nothing();
}

fn shutdown(bench: &Bench, name: &str) {
    let grace = ["--shutdown-grace", "0=20s,1000=20s"];
    let mut node = Daemon::start(bench, name, &grace);
    let log = node.dir.join("log");
    fs::create_dir_all(&log).expect("a directory");
    for (pod, priority, script) in [("high", 5_000, "sleep 0"), ("low", 0, "sleep 1")] {
        let script =
            format!("trap '{script}; echo {pod} >> /log/order; exit 0' TERM; while :; do sleep 0.05; done");
        let mut main = shell(bench, "app", &script);
        main["volumeMounts"] = json!([{"name": "log", "mountPath": "/log"}]);
        let spec = json!({"priority": priority, "containers": [main],
            "volumes": [{"name": "log", "hostPath": {"path": log}}]});
        let said = node.run(pod, &spec, &["--wait"]);
        assert_eq!(said.code, 0, "{said:?}\n{}", node.account());
    }
    assert_eq!(node.down(Signal::POWER), Some(0), "{}", node.account());
    assert_eq!(fs::read_to_string(log.join("order")).expect("a log"), "low\nhigh\n");
    // The pods were not stopped for good.
    node.up();
    node.ready("low");
    node.ready("high");
    node.leaves_nothing();
}

/// Whether a process has a handler for SIGINT.
fn catches_interrupt(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:\t"));
    caught.and_then(|mask| u64::from_str_radix(mask, 16).ok()).is_some_and(|mask| mask & 0b10 != 0)
}

fn attach(bench: &Bench, name: &str) {
    let mut node = Daemon::start(bench, name, &[]);
    let spec = json!({"restartPolicy": "Never", "containers": [shell(bench, "main", "echo one; sleep 0.5; echo two; exit 3")]});
    let said = node.run("task", &spec, &[]);
    assert_eq!(said.code, 0, "{said:?}");
    let said = node.say(&["attach", "task"]);
    assert_eq!((said.code, said.out.as_str()), (3, "task/main | one\ntask/main | two\n"), "{said:?}");
    let said = node.say(&["attach", "task"]);
    assert_eq!(said.code, 3, "{said:?}");
    // Ctrl-C ends only the command, which says so.
    let said = node.run("web", &json!({"containers": [shell(bench, "main", POLITE)]}), &["--wait"]);
    assert_eq!(said.code, 0, "{said:?}");
    let run = node.pod("web").expect("it is there")["run"].as_str().expect("an id").to_owned();
    let attached = node.start_listening(&["attach", "web"]);
    node.until("it is attached", |node| node.clients() > 0);
    let pid = i32::try_from(attached.id()).ok().and_then(rustix::process::Pid::from_raw).expect("a pid");
    node.until("it listens for Ctrl-C", |_| catches_interrupt(attached.id()));
    rustix::process::kill_process(pid, Signal::INT).expect("send a signal");
    let output = attached.wait_with_output().expect("its end");
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{err}");
    assert!(
        err.contains(&format!("the pods keep running; stop them with `outrigger stop run/{run}`")),
        "{err}"
    );
    assert_eq!(node.pod("web").expect("it is there")["phase"], "Running");
    // `ps` shows the run and the file of a node's pods, and `--run` accepts that name.
    let table = node.must(&["ps"]);
    let line = table.lines().find(|line| line.starts_with("web ")).expect("a line");
    assert!(line.contains(&format!(" {run} ")) && line.contains("web.json"), "{table}");
    assert_eq!(node.must(&["ps", "-o", "name", "--run", &run]), "pod/web\n");
    let said = node.say(&["logs", "wbe"]);
    assert_eq!((said.code, said.err.contains("no pod \"wbe\"; did you mean web?")), (2, true), "{said:?}");
    node.must(&["stop", "--run", &run, "web"]);
    node.leaves_nothing();
}
