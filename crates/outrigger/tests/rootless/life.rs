//! Tests the life of a run: directories, other commands, signals and leftovers.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::run::{Bench, Run, Test};
use crate::{pod, scripted, seat, succeeds};

pub(crate) const ALL: &[(&str, Test)] = &[
    ("state_and_sockets_are_where_xdg_says", state_and_sockets_are_where_xdg_says),
    ("other_commands_find_the_run", other_commands_find_the_run),
    ("interrupts_stop_pods_in_order", interrupts_stop_pods_in_order),
    ("a_killed_run_leaves_nothing", a_killed_run_leaves_nothing),
    ("what_a_container_started_ends_with_it", what_a_container_started_ends_with_it),
    ("devices_and_kernel_files_are_there", devices_and_kernel_files_are_there),
    ("exec_joins_what_is_not_the_machine_s", exec_joins_what_is_not_the_machine_s),
    ("volumes_of_every_kind", volumes_of_every_kind),
    ("the_machine_s_own_root_is_a_root_too", the_machine_s_own_root_is_a_root_too),
    ("a_root_of_another_user_needs_no_mount_points", a_root_of_another_user_needs_no_mount_points),
    ("a_read_only_root_and_shared_processes", a_read_only_root_and_shared_processes),
];

fn home() -> std::path::PathBuf {
    std::env::var_os("HOME").expect("a home").into()
}

fn state_and_sockets_are_where_xdg_says(bench: &Bench, name: &str) {
    let manifest = bench.work.join(format!("{name}.json"));
    fs::write(&manifest, scripted(bench, "exec sleep 600", json!({}), json!({})).to_string())
        .expect("write it");
    let mut run = Command::new(&bench.binary)
        .args(["run", "--network", "none"])
        .arg(&manifest)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("start it");
    let ps = || {
        let output = Command::new(&bench.binary).args(["ps", "-o", "json"]).output().expect("run ps");
        serde_json::from_slice::<Value>(&output.stdout).unwrap_or_default()
    };
    let deadline = Instant::now() + Duration::from_secs(60);
    // It is the same process before and after it becomes root of its namespace.
    while ps()[0]["pid"] != json!(run.id()) {
        assert!(Instant::now() < deadline, "{}", ps());
        std::thread::park_timeout(Duration::from_millis(20));
    }
    let sockets = Path::new(&std::env::var_os("XDG_RUNTIME_DIR").expect("set")).join("outrigger");
    assert_eq!(fs::read_dir(sockets).expect("the directory of sockets").count(), 1);
    assert!(home().join(".local/share/outrigger/pods").is_dir());
    let pid = rustix::process::Pid::from_raw(run.id() as i32).expect("a pid");
    rustix::process::kill_process(pid, Signal::TERM).expect("send a signal");
    assert_eq!(run.wait().expect("an end").code(), Some(143));
}

/// The root directory belongs to root, and an ordinary user cannot create anything in it. It has neither
/// etc/hosts nor /proc.
fn a_root_of_another_user_needs_no_mount_points(bench: &Bench, name: &str) {
    let theirs = home().parent().expect("a directory").join("theirs");
    let script = "cat /etc/hosts; cat /etc/name; echo mine > /etc/new && cat /etc/new; echo x > /data/deep/f; \
                  test -d /proc/self && test -c /dev/null && pwd";
    let container = json!({"image": format!("rootfs:{}", theirs.display()), "command": ["/bin/sh", "-c", script],
        "workingDir": "/srv/work", "volumeMounts": [{"name": "data", "mountPath": "/data/deep"}]});
    let spec = json!({"volumes": [{"name": "data", "emptyDir": {}}]});
    let run = succeeds(bench, name, &scripted(bench, "", container, spec), &[]);
    for line in ["localhost", "main | theirs", "main | mine", "main | /srv/work"] {
        assert!(run.output().contains(line), "{line}: {}", run.account());
    }
    assert!(!theirs.join("etc/hosts").exists() && !theirs.join("proc").exists(), "it is as it was");
}

/// Vault's agent runs with these settings.
fn a_read_only_root_and_shared_processes(bench: &Bench, name: &str) {
    let container = json!({"securityContext": {"readOnlyRootFilesystem": true}});
    let spec = json!({"shareProcessNamespace": true});
    let script = "if touch /made 2>/dev/null; then exit 9; fi; echo read-only";
    let run = succeeds(bench, name, &scripted(bench, script, container.clone(), spec.clone()), &[]);
    assert!(run.output().contains("read-only"), "{}", run.account());
    // In this case, the root consists of several mounts.
    let mut host = container;
    host["image"] = json!("rootfs:/");
    let name = format!("{name}-host");
    let script = "if touch /made /usr/made 2>/dev/null; then exit 9; fi; echo read-only";
    let run = succeeds(bench, &name, &scripted(bench, script, host, spec), &[]);
    assert!(run.output().contains("read-only"), "{}", run.account());
}

fn other_commands_find_the_run(bench: &Bench, name: &str) {
    let script = "echo said; trap 'exit 0' TERM; while :; do sleep 0.1; done";
    let mut manifest = scripted(bench, script, json!({}), json!({"terminationGracePeriodSeconds": 30}));
    manifest["metadata"]["name"] = json!("found");
    let mut run = Run::start(bench, name, &manifest, &[]);
    run.wait_for("its output", |run| run.output().contains("said"));
    let say = |args: &[&str]| {
        let output = Command::new(&bench.binary)
            .args(args)
            .env("OUTRIGGER_RUNTIME_DIR", bench.sockets())
            .stdin(Stdio::null())
            .output()
            .expect("run it");
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    assert_eq!(say(&["logs", "found"]), (Some(0), "said\n".to_owned()));
    assert_eq!(say(&["exec", "found", "--", "sh", "-c", "id -u; exit 7"]), (Some(7), "0\n".to_owned()));
    assert!(say(&["ps"]).1.contains("found"));
    assert_eq!(say(&["stop", "found"]).0, Some(0));
    run.end();
}

fn interrupts_stop_pods_in_order(bench: &Bench, name: &str) {
    let loop_until = |code: u8| format!("trap 'exit {code}' TERM; echo up; while :; do sleep 0.1; done");
    let mut sidecar = bench.container("sidecar", &loop_until(0));
    sidecar["restartPolicy"] = json!("Always");
    let spec = json!({"initContainers": [sidecar], "containers": [bench.container("main", &loop_until(0))],
        "terminationGracePeriodSeconds": 30});
    let mut run = Run::start(bench, name, &pod(spec), &[]);
    run.wait_for("both", |run| run.output().matches("up").count() == 2);
    run.signal(Signal::INT);
    assert_eq!(run.end(), 130, "{}", run.account());
    let exited = |container: &str| run.must(json!({"event": "exited", "container": container}));
    assert!(exited("main") < exited("sidecar"), "{}", run.account());
}

/// The processes of this user and of its ids in containers that have a text in their command line.
fn processes(mark: &str) -> Vec<String> {
    let lines = fs::read_dir("/proc").expect("processes").flatten().filter_map(|entry| {
        entry.file_name().to_str()?.parse::<u32>().ok()?;
        let line = fs::read(entry.path().join("cmdline")).ok()?;
        Some(String::from_utf8_lossy(&line).replace('\0', " "))
    });
    lines.filter(|line| line.contains(mark)).collect()
}

fn a_killed_run_leaves_nothing(bench: &Bench, name: &str) {
    let state = bench.work.join(format!("{name}-state"));
    let flags = ["--state-dir", state.to_str().expect("text"), "--network", "private"];
    let mark = "sleep 7654";
    let spec = json!({"shareProcessNamespace": true, "containers": [
        bench.container("main", "sleep 7654 & echo up; wait"),
    ]});
    for turn in 0..3 {
        let mut run = Run::start(bench, &format!("{name}-{turn}"), &pod(spec.clone()), &flags);
        run.wait_for("its output", |run| run.output().contains("up"));
        // This process ends the uplink of the pods' network, which is in its pid namespace.
        let helper = format!("shim uplink /proc/{}/fd/", run.pid());
        let program = if seat::taken().as_deref() == Some("usual") { "/pasta " } else { "/slirp4netns " };
        let found = processes(&helper);
        assert!(
            found.len() == 1 && found[0].contains(program),
            "what leads out: {found:?}\n{}",
            run.account()
        );
        run.signal(Signal::KILL);
        run.end();
        gone(&helper);
    }
    succeeds(bench, &format!("{name}-last"), &scripted(bench, "true", json!({}), json!({})), &flags[..2]);
    gone(mark);
    gone(state.to_str().expect("text"));
    assert_eq!(fs::read_dir(state.join("pods")).expect("the pods").count(), 0);
}

/// Waits until there are no such processes.
fn gone(mark: &str) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !processes(mark).is_empty() {
        assert!(Instant::now() < deadline, "left: {:?}", processes(mark));
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

/// The processes are found without cgroups and with a shared pid namespace.
fn what_a_container_started_ends_with_it(bench: &Bench, name: &str) {
    let seconds = std::process::id() + 100_000;
    for (turn, fields) in
        [json!({"shareProcessNamespace": true}), json!({"hostPID": true})].into_iter().enumerate()
    {
        let mark = format!("sleep {}", seconds + turn as u32);
        let leaver = format!("setsid sh -c '{mark} & exit' ; sleep 0.2; exit 0");
        let watcher = "i=0; while [ $i -lt 200 ]; do [ -e /shared/done ] && exit 0; i=$((i+1)); sleep 0.1; done; exit 4";
        let mounts = json!([{"name": "shared", "mountPath": "/shared"}]);
        let mut containers = [bench.container("leaver", &leaver), bench.container("watcher", watcher)];
        for container in &mut containers {
            container["volumeMounts"] = mounts.clone();
        }
        let mut spec = json!({"containers": containers, "volumes": [{"name": "shared", "emptyDir": {}}]});
        spec.as_object_mut().expect("fields").extend(fields.as_object().expect("fields").clone());
        let state = bench.work.join(format!("{name}-{turn}-state"));
        let flags = ["--state-dir", state.to_str().expect("text")];
        let mut run = Run::start(bench, &format!("{name}-{turn}"), &pod(spec), &flags);
        run.wait_for("the leaver's end", |run| {
            run.event(json!({"event": "exited", "container": "leaver"})).is_some()
        });
        gone(&mark);
        let pods = fs::read_dir(state.join("pods")).expect("pods").flatten().next().expect("a pod").path();
        fs::write(pods.join("volumes/shared/done"), "").expect("tell the watcher");
        assert_eq!(run.end(), 0, "{}", run.account());
    }
}

fn devices_and_kernel_files_are_there(bench: &Bench, name: &str) {
    let script = "set -e; echo x > /dev/null; (echo x > /dev/full) 2> /dev/null && exit 3; head -c 8 /dev/urandom \
                  > /tmp/r; test -c /dev/tty; test -d /proc/self; ls /sys/class > /tmp/s; \
                  mknod /tmp/n c 1 3 2>/dev/null && exit 4; test -e /proc/sys/kernel/hostname; \
                  hostname other 2>/dev/null && exit 5; echo fine";
    let private = succeeds(bench, name, &scripted(bench, script, json!({}), json!({})), &[]);
    assert!(private.output().contains("fine"), "{}", private.account());
    let spec = json!({"hostNetwork": true, "hostPID": true, "hostIPC": true});
    let host = succeeds(bench, &format!("{name}-host"), &scripted(bench, script, json!({}), spec), &[]);
    assert!(host.output().contains("fine"), "{}", host.account());
    let privileged = json!({"securityContext": {"privileged": true}});
    succeeds(
        bench,
        &format!("{name}-all"),
        &scripted(bench, "echo x > /dev/null", privileged, json!({})),
        &[],
    );
}

fn exec_joins_what_is_not_the_machine_s(bench: &Bench, name: &str) {
    let script = "touch /tmp/up; while [ ! -e /tmp/probed ]; do sleep 0.1; done; exit 0";
    let probe = json!({"startupProbe": {"exec": {"command": ["sh", "-c", "test -e /tmp/up && touch /tmp/probed"]},
        "periodSeconds": 1, "failureThreshold": 60}});
    let spec = json!({"hostNetwork": true, "hostPID": true, "hostIPC": true});
    succeeds(bench, name, &scripted(bench, script, probe, spec), &[]);
}

fn volumes_of_every_kind(bench: &Bench, name: &str) {
    let script = "set -e; echo x > /empty/f; echo x > /memory/f; grep -q ' /memory tmpfs' /proc/mounts; \
                  test \"$(cat /config/key)\" = value; test \"$(cat /secret/pass)\" = word; echo 1 >> /claim/f; \
                  test \"$(cat /sub/f)\" = x; test \"$(cat /api/name)\" = p; echo fine";
    let mounts: Vec<Value> = ["empty", "memory", "config", "secret", "claim", "api"]
        .map(|name| json!({"name": name, "mountPath": format!("/{name}")}))
        .to_vec();
    let mut mounts = mounts;
    mounts.push(json!({"name": "tree", "mountPath": "/sub", "subPath": "a/b"}));
    let tree = bench.work.join(format!("{name}-tree"));
    fs::create_dir_all(tree.join("a/b")).expect("directories");
    fs::write(tree.join("a/b/f"), "x").expect("a file");
    let spec = json!({"volumes": [
        {"name": "empty", "emptyDir": {}},
        {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        {"name": "config", "configMap": {"name": "c"}},
        {"name": "secret", "secret": {"secretName": "s"}},
        {"name": "claim", "persistentVolumeClaim": {"claimName": "kept"}},
        {"name": "tree", "hostPath": {"path": tree}},
        {"name": "api", "downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
    ]});
    let pod = scripted(bench, script, json!({"volumeMounts": mounts}), spec);
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"key": "value"}},
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"pass": "word"}},
        pod,
    ]});
    let state = bench.work.join(format!("{name}-state"));
    let flags = ["--state-dir", state.to_str().expect("text")];
    for turn in 1..=2 {
        let run = succeeds(bench, &format!("{name}-{turn}"), &list, &flags);
        assert!(run.output().contains("fine"), "{}", run.account());
        let kept = fs::read_to_string(state.join("volumes/default/kept/f")).expect("the claim");
        assert_eq!(kept.lines().count(), turn);
    }
    assert_eq!(fs::read_dir(state.join("pods")).expect("the pods").count(), 0, "nothing is left");
}

/// The kernel does not allow an overlay of the root as a whole.
fn the_machine_s_own_root_is_a_root_too(bench: &Bench, name: &str) {
    let script = "set -e; ls /usr/bin/env > /dev/null; echo x > /new; echo x > /etc/new; rm /etc/new; \
                  echo x > /tmp/new-file-of-a-test; touch /usr/new; cat /etc/hostname";
    let image = json!({"image": "rootfs:/", "volumeMounts": [{"name": "v", "mountPath": "/some/where"}]});
    let volumes = json!({"volumes": [{"name": "v", "emptyDir": {}}]});
    let run = succeeds(bench, name, &scripted(bench, script, image.clone(), volumes.clone()), &[]);
    assert_eq!(run.output(), "main | p\n", "{}", run.account());
    assert!(!Path::new("/new").exists() && !Path::new("/usr/new").exists());
    let script = "for f in /new /etc/new /usr/new; do touch $f 2> /dev/null && echo WRITTEN $f; done; \
                  touch /some/where/f";
    let mut container = image;
    container["securityContext"] = json!({"readOnlyRootFilesystem": true});
    let run = succeeds(bench, &format!("{name}-ro"), &scripted(bench, script, container, volumes), &[]);
    assert_eq!(run.output(), "", "{}", run.account());
}
