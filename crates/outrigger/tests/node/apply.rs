//! Tests pods that are updated and restarted while they run.

use std::fs;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::daemon::{Daemon, Said};
use crate::rootfs;
use crate::run::{Bench, Test};

pub(crate) const ALL: [(&str, Test); 20] = [
    ("an_image_that_changes_restarts_its_container_alone", images),
    ("what_else_changes_replaces_the_pod", replaced),
    ("what_is_replaced_is_waited_for", waits),
    ("what_was_stopped_is_started_again", again),
    ("what_is_being_stopped_is_started_again_when_it_is_gone", stopping),
    ("a_pod_that_was_replaced_is_kept_like_others", kept),
    ("the_last_lines_come_before_the_end", last_lines),
    ("why_a_detached_run_failed_is_said", failures),
    ("of_a_killed_node_the_truth_is_told", truth),
    ("killed_runs_of_other_directories_are_not_shown", elsewhere),
    ("all_pods_of_an_ended_workload_are_shown", ended),
    ("without_their_node_pods_are_not_denied", unattended),
    ("detached_runs_that_start_at_the_same_time_share_a_node", at_once),
    ("a_systemd_unit_keeps_relative_paths", unit),
    ("a_change_survives_a_kill_of_the_node", survives),
    ("a_deployment_is_scaled_and_a_file_is_refused", workloads),
    ("a_changed_file_changes_its_pod_in_place", files),
    ("containers_are_restarted_in_order", restarts),
    ("an_init_container_that_is_run_once_is_not_run_again", run_once),
    ("an_ephemeral_container_is_added", ephemeral),
];

/// Logs the version of its image and runs until it is stopped.
const VERSION: &str = "cat /version; trap 'exit 0' TERM; while :; do sleep 0.05; done";

/// An image with its version in a file.
fn image(node: &Daemon<'_>, version: &str) -> String {
    let dir = node.dir.join(format!("image-{version}"));
    if !dir.exists() {
        rootfs::make(&dir);
        fs::write(dir.join("version"), format!("version {version}\n")).expect("write");
    }
    format!("rootfs:{}", dir.display())
}

/// A container with this version of the image.
fn versioned(node: &Daemon<'_>, name: &str, version: &str) -> Value {
    json!({"name": name, "image": image(node, version), "command": ["/bin/sh", "-c", VERSION]})
}

/// A pod with a sidecar and a main of these versions.
fn web(node: &Daemon<'_>, proxy: &str, app: &str) -> Value {
    let mut sidecar = versioned(node, "proxy", proxy);
    sidecar["restartPolicy"] = json!("Always");
    pod("web", json!({"initContainers": [sidecar], "containers": [versioned(node, "app", app)]}))
}

fn pod(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
}

fn list(objects: &[Value]) -> Value {
    json!({"apiVersion": "v1", "kind": "List", "items": objects})
}

fn apply(node: &Daemon<'_>, manifest: &Value, flags: &[&str]) -> Said {
    let file = node.file("apply.json", manifest);
    let state = node.state().display().to_string();
    node.say(&[&["apply", "--state-dir", &state, "--network", "none", &file][..], flags].concat())
}

/// Applies a manifest that must be accepted. Returns the message for each object.
fn applied(node: &Daemon<'_>, manifest: &Value, flags: &[&str]) -> Vec<String> {
    let said = apply(node, manifest, flags);
    assert_eq!(said.code, 0, "{said:?}\n{}", node.account());
    said.out.lines().map(str::to_owned).collect()
}

fn restarts_of(node: &Daemon<'_>, pod: &str) -> Vec<u64> {
    let pod = node.pod(pod).unwrap_or_default();
    let containers = pod["containers"].as_array().cloned().unwrap_or_default();
    containers.iter().map(|c| c["restarts"].as_u64().unwrap_or(u64::MAX)).collect()
}

/// Waits for the expected log of a container.
fn says(node: &Daemon<'_>, args: &[&str], text: &str) {
    let args = [&["logs"], args].concat();
    node.until(&format!("{args:?} is {text:?}"), |node| node.say(&args).out == text);
}

fn images(bench: &Bench, name: &str) {
    let mut node = Daemon::start(bench, name, &[]);
    assert_eq!(applied(&node, &web(&node, "1", "1"), &["--wait"]), ["pod/web created"]);
    let changed = web(&node, "1", "2");
    let (one, two) = (image(&node, "1"), image(&node, "2"));
    let line = format!("pod/web updated: container app restarts with image {two} (was {one})");
    assert_eq!(applied(&node, &changed, &["--dry-run"]), [line.as_str()]);
    assert_eq!(restarts_of(&node, "web"), [0, 0], "a dry run changes nothing");
    assert_eq!(applied(&node, &changed, &[]), [line.as_str()]);
    says(&node, &["web", "-c", "app"], "version 2\n");
    node.ready("web");
    assert_eq!(restarts_of(&node, "web"), [0, 1], "{}", node.account());
    assert_eq!(node.must(&["logs", "-p", "web", "-c", "app"]), "version 1\n");
    assert_eq!(node.must(&["logs", "web", "-c", "proxy"]), "version 1\n");
    assert_eq!(applied(&node, &changed, &[]), ["pod/web unchanged"]);
    let json: Value =
        serde_json::from_str(&apply(&node, &web(&node, "2", "2"), &["-o", "json"]).out).expect("JSON");
    assert_eq!(json["objects"][0]["change"], "updated");
    assert_eq!(json["objects"][0]["restarted"], json!(["proxy"]));
    says(&node, &["web", "-c", "proxy"], "version 2\n");
    node.ready("web");
    assert_eq!(restarts_of(&node, "web"), [1, 1], "{}", node.account());
    node.leaves_nothing();
}

fn replaced(bench: &Bench, name: &str) {
    let mut node = Daemon::start(bench, name, &[]);
    let plain = |name: &str| {
        pod(
            name,
            json!({"containers": [bench.container("app", "trap 'exit 0' TERM; while :; do sleep 0.05; done")]}),
        )
    };
    let first = list(&[plain("stays"), plain("changes"), plain("goes")]);
    assert_eq!(
        applied(&node, &first, &["--wait"]),
        ["pod/stays created", "pod/changes created", "pod/goes created"]
    );
    let mut changes = plain("changes");
    changes["spec"]["containers"][0]["env"] = json!([{"name": "A", "value": "b"}]);
    let second = list(&[plain("stays"), changes, plain("comes")]);
    assert_eq!(
        applied(&node, &second, &[]),
        [
            "pod/stays unchanged",
            "pod/changes replaced: spec.containers[app].env changed",
            "pod/comes created",
            "pod/goes removed",
        ]
    );
    node.ready("comes");
    assert_eq!(node.over("goes"), "Succeeded");
    node.until("the new pod has its environment", |node| {
        node.say(&["exec", "changes", "--", "sh", "-c", "echo $A"]).out == "b\n"
    });
    assert_eq!(restarts_of(&node, "stays"), [0]);
    // It is the same run before and after.
    let runs: Vec<Value> =
        ["stays", "changes", "comes"].map(|pod| node.pod(pod).expect("a pod")["run"].clone()).into();
    assert!(runs.iter().all(|run| run.is_string() && *run == runs[0]), "{runs:?}");
    node.leaves_nothing();
}

fn waits(bench: &Bench, name: &str) {
    let mut node = Daemon::start(bench, name, &[]);
    let slow = |value: &str| {
        let script = "trap 'sleep 1; exit 0' TERM; while :; do sleep 0.05; done";
        let mut app = bench.container("app", script);
        app["env"] = json!([{"name": "A", "value": value}]);
        pod("slow", json!({"containers": [app]}))
    };
    for (value, change) in [("1", "created"), ("2", "replaced"), ("3", "replaced")] {
        let lines = applied(&node, &slow(value), &["--wait"]);
        assert!(lines[0].starts_with(&format!("pod/slow {change}")), "{lines:?}");
        assert_eq!(node.must(&["exec", "slow", "--", "sh", "-c", "echo $A"]), format!("{value}\n"));
    }
    node.leaves_nothing();
}

/// Runs until it is stopped.
const LASTING: &str = "trap 'exit 0' TERM; while :; do sleep 0.05; done";

fn deployment(bench: &Bench, replicas: u32) -> Value {
    let labels = json!({"app": "dx"});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "dx"},
        "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": {
            "metadata": {"labels": labels}, "spec": {"containers": [bench.container("app", LASTING)]},
        }},
    })
}

/// The number of pods of the Deployment that run.
fn running(node: &Daemon<'_>) -> usize {
    node.say(&["ps", "deploy/dx", "-o", "wide"]).out.matches(" Running ").count()
}

fn again(bench: &Bench, name: &str) {
    let mut node = Daemon::start(bench, name, &[]);
    let lasting = |name: &str| pod(name, json!({"containers": [bench.container("app", LASTING)]}));
    let done =
        pod("done", json!({"restartPolicy": "Never", "containers": [bench.container("app", "echo once")]}));
    let objects = |replicas| list(&[lasting("x1"), lasting("x2"), done.clone(), deployment(bench, replicas)]);
    applied(&node, &objects(2), &["--wait"]);
    assert_eq!(node.over("done"), "Succeeded");
    node.must(&["stop", "x2"]);
    node.must(&["stop", "deploy/dx"]);
    let lines = [
        "pod/x1 unchanged",
        "pod/x2 started again: it was stopped",
        "pod/done unchanged",
        "deployment/dx started again: it was stopped",
    ];
    assert_eq!(applied(&node, &objects(2), &["--dry-run"]), lines);
    assert_eq!(applied(&node, &objects(2), &["--wait"]), lines);
    // The command waits until the pods run.
    assert_eq!(node.pod("x2").expect("a pod")["phase"], "Running");
    assert_eq!(running(&node), 2, "{}", node.account());
    // The next start includes changes that were made in the meantime.
    node.must(&["stop", "deploy/dx"]);
    let lines = applied(&node, &objects(3), &["--wait"]);
    assert_eq!(lines[3], "deployment/dx started again: it was stopped");
    assert_eq!(running(&node), 3, "{}", node.account());
    assert_eq!(restarts_of(&node, "x1"), [0]);
    assert_eq!(node.must(&["logs", "done"]), "once\n");
    node.leaves_nothing();
}

fn stopping(bench: &Bench, name: &str) {
    let mut node = Daemon::start(bench, name, &[]);
    let slow = |name: &str, word: &str| {
        let script = format!("echo {word}; trap 'sleep 1; exit 0' TERM; while :; do sleep 0.05; done");
        pod(name, json!({"containers": [bench.container("app", &script)]}))
    };
    let both = list(&[slow("a", "a"), slow("b", "b")]);
    applied(&node, &both, &["--wait"]);
    node.must(&["stop", "a", "--no-wait"]);
    let lines = applied(&node, &both, &["--wait"]);
    let again = |pod: &str| format!("pod/{pod} started again: when it is gone, it is being stopped");
    assert_eq!(lines, [again("a"), "pod/b unchanged".to_owned()]);
    assert_eq!(node.pod("a").expect("a pod")["phase"], "Running");
    // The same for a whole run. The command that waits for the end of the run does not wait for the next one.
    let state = node.state().display().to_string();
    let mut stop = node.start_command(&["stop", "--all", "--state-dir", &state]);
    node.until("both are being stopped", |node| {
        ["a", "b"].iter().all(|pod| node.pod(pod).is_some_and(|pod| pod["stopping"] == true))
    });
    assert_eq!(applied(&node, &both, &["--wait"]), [again("a"), again("b")]);
    assert!(stop.wait().expect("an end").success());
    node.ready("a");
    node.ready("b");
    node.leaves_nothing();
}

fn kept(bench: &Bench, name: &str) {
    let mut node = Daemon::start(bench, name, &[]);
    let said = |word: &str| {
        let script = format!("echo {word}; {LASTING}");
        pod("web", json!({"containers": [bench.container("app", &script)]}))
    };
    applied(&node, &said("first"), &["--wait"]);
    let first = node.sandboxes().remove(0);
    let logs = node.state().join("node/pods").join(first).join("logs");
    applied(&node, &said("second"), &["--wait"]);
    for _ in 0..2 {
        let pods = node.must(&["ps", "-a", "-o", "name"]);
        assert_eq!(pods.matches("pod/web").count(), 2, "{pods}");
        assert!(logs.is_dir(), "{}", node.account());
        node.down(Signal::TERM);
        node.up();
    }
    assert_eq!(node.must(&["logs", "web"]), "second\n");
    node.leaves_nothing();
}

/// In most of these tries, the last pod of a Job starts and ends between two checks of the command.
fn last_lines(bench: &Bench, name: &str) {
    let mut node = Daemon::start(bench, name, &[]);
    for nth in 0..5 {
        let go = node.dir.join(format!("go{nth}"));
        fs::create_dir_all(&go).expect("a directory");
        let script = "while ! test -e /go/go; do sleep 0.02; done; echo fail $JOB_COMPLETION_INDEX; exit 4";
        let mut work = bench.container("work", script);
        work["volumeMounts"] = json!([{"name": "go", "mountPath": "/go"}]);
        let volumes = json!([{"name": "go", "hostPath": {"path": go}}]);
        let template = json!({"restartPolicy": "Never", "containers": [work], "volumes": volumes});
        let job = json!({
            "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": format!("short{nth}")},
            "spec": {"completions": 2, "completionMode": "Indexed", "backoffLimitPerIndex": 0,
                "maxFailedIndexes": 2, "template": {"spec": template}},
        });
        assert_eq!(node.run_object("short", &job, &[]).code, 0);
        let object = format!("job/short{nth}");
        node.until("it runs", |node| node.say(&["ps", &object, "-o", "wide"]).out.contains(" Running "));
        let attached = node.start_command(&["attach", &object]);
        node.until("it is connected", |node| node.clients() > 1);
        fs::write(go.join("go"), "").expect("write");
        let attached = attached.wait_with_output().expect("its output");
        let text = String::from_utf8_lossy(&attached.stdout);
        assert!(text.contains("fail 0") && text.contains("fail 1"), "try {nth}: {text}");
        assert_eq!(attached.status.code(), Some(4), "{text}");
    }
    node.leaves_nothing();
}

fn truth(bench: &Bench, name: &str) {
    let mut node = Daemon::start(bench, name, &[]);
    let go = node.dir.join("go");
    fs::create_dir_all(&go).expect("a directory");
    let script = "trap 'echo stopping; while ! test -e /go/go; do sleep 0.05; done; exit 0' TERM; while :; do sleep 0.05; done";
    let mut app = bench.container("app", script);
    app["volumeMounts"] = json!([{"name": "go", "mountPath": "/go"}]);
    let web = pod("web", json!({"containers": [app], "volumes": [{"name": "go", "hostPath": {"path": go}}]}));
    applied(&node, &web, &["--wait"]);
    let state = node.state().display().to_string();
    // These commands are in progress when the node is killed.
    let follow = ["logs", "-f", "web"];
    let commands = [&follow[..], &["attach", "web"], &["exec", "web", "--", "sleep", "100"]];
    let started: Vec<_> = commands.iter().map(|args| node.start_listening(args)).collect();
    // A command first asks for the pod on a separate connection. The last command has already done that.
    let look = "for p in /proc/[0-9]*/cmdline; do read -r c < $p; case \"$c\" in sleep*100) exit 0;; esac; done; exit 1";
    node.until("exec runs", |node| node.say(&["exec", "web", "--", "sh", "-c", look]).code == 0);
    node.until("they are connected", |node| node.clients() >= commands.len());
    node.down(Signal::KILL);
    for (command, args) in started.into_iter().zip(commands) {
        let done = command.wait_with_output().expect("its output");
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(said.contains("the node has ended; pods that were running keep running"), "{args:?}: {said}");
        assert!(said.contains(&format!("`outrigger node --state-dir {state}`")), "{args:?}: {said}");
        assert!(!done.status.success(), "{args:?}");
    }
    node.up();
    node.ready("web");
    // A shutdown of the machine is killed in the middle, in the same boot.
    node.signal(Signal::POWER);
    says(&node, &["web"], "stopping\n");
    let refused = node.run("other", &json!({"containers": [bench.container("app", LASTING)]}), &[]);
    assert!(refused.code != 0 && refused.err.contains("the machine is shutting down"), "{refused:?}");
    node.down(Signal::KILL);
    node.up();
    fs::write(go.join("go"), "").expect("write");
    node.ready("web");
    node.down(Signal::TERM);
    node.up();
    node.ready("web");
    // A shutdown that completes.
    assert_eq!(node.down(Signal::POWER), Some(0), "{}", node.said());
    for args in [["ps", "--state-dir", &state].as_slice(), &["stop", "--all", "--state-dir", &state]] {
        let said = node.say(args);
        assert!(said.err.contains("has stopped its pods for a shutdown of the machine"), "{said:?}");
        assert!(!said.err.contains("keep running"), "{said:?}");
    }
    node.up();
    node.ready("web");
    // Neither the node nor its shims remain.
    node.down(Signal::KILL);
    node.kill_shims();
    let said = node.say(&["ps", "--state-dir", &state]);
    assert!(said.err.contains("none of their containers is running"), "{said:?}");
    node.up();
    node.ready("web");
    node.leaves_nothing();
}

fn elsewhere(bench: &Bench, name: &str) {
    let mut node = Daemon::start(bench, name, &[]);
    let go = node.dir.join("go");
    fs::create_dir_all(&go).expect("a directory");
    let script = "echo up; trap 'while ! test -e /go/go; do sleep 0.05; done; exit 0' TERM; while :; do sleep 0.05; done";
    let mut app = bench.container("app", script);
    app["volumeMounts"] = json!([{"name": "go", "mountPath": "/go"}]);
    let slow =
        pod("slow", json!({"containers": [app], "volumes": [{"name": "go", "hostPath": {"path": go}}]}));
    let file = node.file("slow.json", &slow);
    let (other, own) = (node.dir.join("other").display().to_string(), node.state().display().to_string());
    let mut run = node.start_command(&["run", "--state-dir", &other, "--network", "none", &file]);
    node.ready("slow");
    run.kill().expect("kill");
    run.wait().expect("its end");
    let note = format!("run {} was killed", run.id());
    node.until("it is shown", |node| node.say(&["ps", "--state-dir", &other]).err.contains(&note));
    let said = node.say(&["ps", "--state-dir", &own]);
    assert!(!said.err.contains("was killed"), "{said:?}");
    fs::write(go.join("go"), "").expect("write");
    node.until("it is gone", |node| !node.say(&["ps"]).err.contains(&note));
    node.leaves_nothing();
}

fn ended(bench: &Bench, name: &str) {
    let mut node = Daemon::start(bench, name, &[]);
    let template = json!({"spec": {
        "restartPolicy": "Never",
        "containers": [bench.container("work", "echo index $JOB_COMPLETION_INDEX")],
    }});
    let job = json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "idx"},
        "spec": {"completions": 2, "completionMode": "Indexed", "template": template},
    });
    let said = node.run_object("idx", &job, &[]);
    assert_eq!(said.code, 0, "{said:?}");
    node.until("both have ended", |node| {
        node.say(&["ps", "job/idx", "-o", "wide"]).out.matches("Succeeded").count() == 2
    });
    let log = node.must(&["logs", "job/idx"]);
    assert!(log.contains("index 0\n") && log.contains("index 1\n"), "{log}");
    let pods = node.must(&["ps", "job/idx", "-o", "name"]);
    assert_eq!(pods.lines().count(), 2, "{pods}");
    node.leaves_nothing();
}

fn unattended(bench: &Bench, name: &str) {
    let mut node = Daemon::start(bench, name, &[]);
    let sleeper = "trap 'exit 0' TERM; while :; do sleep 0.05; done";
    let stays = pod("stays", json!({"containers": [bench.container("app", sleeper)]}));
    assert_eq!(applied(&node, &stays, &["--wait"]), ["pod/stays created"]);
    node.down(Signal::KILL);
    let state = node.state().display().to_string();
    let hint = format!(
        "1 run has not ended and its containers keep running; start a node with `outrigger node --state-dir {state}`"
    );
    let stopped = node.say(&["stop", "--all", "--state-dir", &state]);
    assert_eq!(stopped.code, 2, "{stopped:?}");
    let dry = apply(&node, &stays, &["--dry-run"]);
    assert_eq!(dry.code, 2, "{dry:?}");
    let listed = node.say(&["ps", "--state-dir", &state]);
    for said in [&stopped, &dry, &listed] {
        assert!(said.err.contains(&hint), "{said:?}");
    }
    assert!(!listed.err.contains("no pods are running"), "{listed:?}");
    node.up();
    node.ready("stays");
    node.leaves_nothing();
}

fn at_once(bench: &Bench, name: &str) {
    let mut node = Daemon::start(bench, name, &[]);
    node.down(Signal::TERM);
    let state = node.state().display().to_string();
    let sleeper = "trap 'exit 0' TERM; while :; do sleep 0.05; done";
    let started: Vec<_> = (0..5)
        .map(|nth| {
            let object = pod(&format!("p{nth}"), json!({"containers": [bench.container("app", sleeper)]}));
            let file = node.file(&format!("p{nth}.json"), &object);
            node.start_command(&["run", "-d", "--state-dir", &state, "--network", "none", &file])
        })
        .collect();
    for run in started {
        let done = run.wait_with_output().expect("an end");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }
    (0..5).for_each(|nth| node.ready(&format!("p{nth}")));
    // The node that they started ends in favour of the test's node.
    let pid = fs::read_to_string(node.state().join("node/lock")).expect("its pid").parse().expect("a pid");
    let pid = rustix::process::Pid::from_raw(pid).expect("a pid");
    rustix::process::kill_process(pid, Signal::TERM).expect("signal");
    let stat = format!("/proc/{pid}/stat");
    // A zombie counts as ended, too.
    node.until("it has ended", |_| fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z ")));
    node.up();
    (0..5).for_each(|nth| node.ready(&format!("p{nth}")));
    node.leaves_nothing();
}

fn unit(bench: &Bench, name: &str) {
    let mut node = Daemon::start(bench, name, &[]);
    let here = std::env::current_dir().expect("a directory").display().to_string();
    let unit = node.must(&["node", "--systemd-unit", "--manifests", "pods"]);
    assert!(unit.contains(&format!("\nWorkingDirectory={here}\n")), "{unit}");
    assert!(unit.contains(" node --manifests pods\n"), "{unit}");
    let unit = node.must(&["node", "--systemd-unit", "--manifests", "/pods"]);
    assert!(!unit.contains("WorkingDirectory"), "{unit}");
    let sockets = node.dir.join("sockets");
    let variable = format!("\nEnvironment=\"OUTRIGGER_RUNTIME_DIR={}\"\n", sockets.display());
    assert!(unit.contains(&variable), "{unit}");
    node.leaves_nothing();
}

fn survives(bench: &Bench, name: &str) {
    let mut node = Daemon::start(bench, name, &[]);
    let polite = |name: &str, words: &str| {
        let script = format!("echo {words}; trap 'sleep 0.3; exit 0' TERM; while :; do sleep 0.05; done");
        pod(name, json!({"containers": [bench.container("app", &script)]}))
    };
    let first = list(&[web(&node, "1", "1"), polite("other", "one"), polite("gone", "one")]);
    applied(&node, &first, &["--wait"]);
    let second = list(&[web(&node, "1", "2"), polite("other", "two")]);
    let lines = applied(&node, &second, &[]);
    assert_eq!(lines.len(), 3, "{lines:?}");
    // The node is killed at an arbitrary stage of the work.
    node.down(Signal::KILL);
    node.up();
    says(&node, &["web", "-c", "app"], "version 2\n");
    says(&node, &["other"], "two\n");
    assert_eq!(node.over("gone"), "Succeeded");
    node.ready("web");
    node.ready("other");
    assert_eq!(restarts_of(&node, "web"), [0, 1], "{}", node.account());
    node.down(Signal::KILL);
    node.up();
    node.ready("web");
    assert_eq!(restarts_of(&node, "web"), [0, 1], "done once\n{}", node.account());
    assert_eq!(applied(&node, &second, &[]), ["pod/web unchanged", "pod/other unchanged"]);
    node.leaves_nothing();
}

fn workloads(bench: &Bench, name: &str) {
    let mut node = Daemon::start(bench, name, &[]);
    let deployment = |replicas: u32, words: &str| {
        let script = format!("echo {words}; trap 'exit 0' TERM; while :; do sleep 0.05; done");
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
            "spec": {"replicas": replicas, "selector": {"matchLabels": {"a": "b"}},
                "template": {"metadata": {"labels": {"a": "b"}},
                    "spec": {"containers": [bench.container("app", &script)]}}}})
    };
    let count = |node: &Daemon<'_>| {
        let runs: Value = serde_json::from_str(&node.say(&["ps", "-o", "json"]).out).unwrap_or_default();
        let pods = runs[0]["pods"].as_array().cloned().unwrap_or_default();
        pods.iter()
            .filter(|p| p["over"] == false && p["ready"] == p["total"] && p["phase"] == "Running")
            .count()
    };
    assert_eq!(applied(&node, &deployment(2, "one"), &["--wait"]), ["deployment/web created"]);
    assert_eq!(applied(&node, &deployment(3, "one"), &[]), ["deployment/web scaled: 3 pods (were 2)"]);
    node.until("there are three", |node| count(node) == 3);
    assert_eq!(applied(&node, &deployment(1, "one"), &[]), ["deployment/web scaled: 1 pod (were 3)"]);
    node.until("there is one", |node| count(node) == 1);
    let line = "deployment/web replaced: spec.template.spec.containers[app].command[2] changed";
    assert_eq!(applied(&node, &deployment(1, "two"), &[]), [line]);
    // The earlier pods have ended, and their logs still exist.
    node.until("the new pod has begun", |node| node.say(&["logs", "deploy/web"]).out.contains("two\n"));
    node.until("there is one again", |node| count(node) == 1);
    // A manifest that cannot be applied changes nothing, and the reason is reported.
    let taken = node.run("alone", &json!({"containers": [bench.container("app", "sleep 100")]}), &[]);
    assert_eq!(taken.code, 0, "{taken:?}");
    node.until("both run", |node| count(node) == 2);
    let both = list(&[
        deployment(1, "two"),
        pod("alone", json!({"containers": [bench.container("app", "sleep 200")]})),
    ]);
    let said = apply(&node, &both, &[]);
    assert!(said.code == 2 && said.err.contains("belongs to run"), "{said:?}");
    let said = apply(&node, &pod("bad", json!({"containers": []})), &[]);
    assert!(said.code == 2 && said.err.contains("at least one container"), "{said:?}");
    assert_eq!(count(&node), 2, "{}", node.account());
    node.must(&["stop", "alone", "--grace-period", "0"]);
    node.leaves_nothing();
}

fn files(bench: &Bench, name: &str) {
    let dir = bench.work.join(format!("{name}-manifests"));
    fs::create_dir_all(&dir).expect("a directory");
    let manifests = dir.display().to_string();
    let mut node = Daemon::start(bench, name, &["--manifests", &manifests, "--network", "none"]);
    let write = |manifest: &str| {
        fs::write(dir.join(".web.tmp"), manifest).expect("write");
        fs::rename(dir.join(".web.tmp"), dir.join("web.yaml")).expect("rename");
    };
    write(&web(&node, "1", "1").to_string());
    node.ready("web");
    write(&web(&node, "1", "2").to_string());
    says(&node, &["web", "-c", "app"], "version 2\n");
    node.ready("web");
    assert_eq!(restarts_of(&node, "web"), [0, 1], "{}", node.account());
    // A file that cannot be run changes nothing.
    write("kind: Pod\nspec: [");
    node.until("it is reported", |node| node.said().contains("its pods go on as they are"));
    assert_eq!(restarts_of(&node, "web"), [0, 1], "{}", node.account());
    let said = apply(&node, &web(&node, "2", "2"), &[]);
    assert!(said.code == 2 && said.err.contains("change that file instead"), "{said:?}");
    write(&web(&node, "2", "2").to_string());
    says(&node, &["web", "-c", "proxy"], "version 2\n");
    fs::remove_file(dir.join("web.yaml")).expect("remove");
    assert_eq!(node.over("web"), "Succeeded");
    node.leaves_nothing();
}

fn restarts(bench: &Bench, name: &str) {
    let mut node = Daemon::start(bench, name, &[]);
    let log = node.dir.join("log");
    fs::create_dir_all(&log).expect("a directory");
    let logged = |name: &str, script: &str| {
        let mut container = bench.container(name, script);
        container["volumeMounts"] = json!([{"name": "log", "mountPath": "/log"}]);
        container
    };
    let polite = |name: &str| {
        let script = format!(
            "trap 'echo -{name} >> /log/order; exit 0' TERM; echo +{name} >> /log/order; while :; do sleep 0.05; done"
        );
        logged(name, &script)
    };
    let mut proxy = polite("proxy");
    proxy["restartPolicy"] = json!("Always");
    let spec = json!({"initContainers": [logged("init", "echo +init >> /log/order"), proxy],
        "containers": [polite("app")], "volumes": [{"name": "log", "hostPath": {"path": log}}]});
    assert_eq!(node.run("web", &spec, &["--wait"]).code, 0, "{}", node.account());
    let order = || fs::read_to_string(log.join("order")).unwrap_or_default().replace('\n', " ");
    // A container runs for a moment before its program does anything.
    let comes_to = |expected: &str| node.until(expected, |_| order().len() >= expected.len());
    comes_to("+init +proxy +app ");
    node.must(&["restart", "web", "-c", "app"]);
    node.until("the app is back", |node| restarts_of(node, "web") == [0, 0, 1]);
    node.ready("web");
    let expected = "+init +proxy +app -app +app ";
    comes_to(expected);
    assert_eq!(order(), expected);
    node.must(&["restart", "web"]);
    node.until("all are back", |node| restarts_of(node, "web") == [1, 1, 2]);
    node.ready("web");
    let expected = "+init +proxy +app -app +app -app -proxy +init +proxy +app ";
    comes_to(expected);
    assert_eq!(order(), expected);
    for (args, text) in [
        (&["restart", "web", "-c", "init"][..], "runs once"),
        (&["restart", "web", "-c", "nobody"], "nobody"),
        (&["restart", "nothing"], "nothing"),
    ] {
        let said = node.say(args);
        assert!(said.code == 2 && said.err.contains(text), "{args:?}: {said:?}");
    }
    node.must(&["stop", "web"]);
    let said = node.say(&["restart", "web"]);
    assert!(said.code == 2 && said.err.contains("has ended"), "{said:?}");
    node.leaves_nothing();
}

fn run_once(bench: &Bench, name: &str) {
    let mut node = Daemon::start(bench, name, &[]);
    let log = node.dir.join("log");
    fs::create_dir_all(&log).expect("a directory");
    let init = |name: &str| {
        let mut container = bench.container(name, &format!("echo {name} >> /log/order"));
        container["volumeMounts"] = json!([{"name": "log", "mountPath": "/log"}]);
        container
    };
    let app = bench.container("app", "trap 'exit 0' TERM; while :; do sleep 0.05; done");
    let mut web = pod(
        "web",
        json!({"initContainers": [init("migrate"), init("setup")], "containers": [app],
        "volumes": [{"name": "log", "hostPath": {"path": log}}]}),
    );
    web["metadata"]["annotations"] = json!({"outrigger.dev/run-once": "migrate"});
    assert_eq!(node.run_object("web", &web, &["--wait"]).code, 0, "{}", node.account());
    let order = || fs::read_to_string(log.join("order")).unwrap_or_default().replace('\n', " ");
    // The machine is shut down in order.
    assert_eq!(node.down(Signal::POWER), Some(0), "{}", node.account());
    node.up();
    node.ready("web");
    assert_eq!(order(), "migrate setup setup ", "{}", node.account());
    // The machine is rebooted without a shutdown, so all stored state is from another boot.
    node.down(Signal::KILL);
    let pods = node.state().join("node/pods");
    for pod in crate::leaks::names(&pods) {
        let path = pods.join(pod).join("observation.json");
        let mut state: Value = serde_json::from_slice(&fs::read(&path).expect("a state")).expect("JSON");
        state["boot"] = json!("another");
        fs::write(&path, state.to_string()).expect("write");
    }
    node.up();
    node.until("it began again", |_| order() == "migrate setup setup setup ");
    node.ready("web");
    node.must(&["restart", "web"]);
    node.until("it began again", |_| order() == "migrate setup setup setup setup ");
    node.leaves_nothing();
}

fn ephemeral(bench: &Bench, name: &str) {
    let mut node = Daemon::start(bench, name, &[]);
    let app = || bench.container("app", "trap 'exit 0' TERM; while :; do sleep 0.05; done");
    applied(&node, &pod("web", json!({"containers": [app()]})), &["--wait"]);
    let with = pod(
        "web",
        json!({"containers": [app()], "ephemeralContainers": [bench.container("debug", "echo hello; exit 3")]}),
    );
    assert_eq!(applied(&node, &with, &[]), ["pod/web updated: ephemeral container debug is added"]);
    says(&node, &["web", "-c", "debug"], "hello\n");
    node.down(Signal::KILL);
    node.up();
    node.ready("web");
    assert_eq!(restarts_of(&node, "web"), [0, 0], "{}", node.account());
    assert_eq!(node.must(&["logs", "web", "-c", "debug"]), "hello\n");
    node.leaves_nothing();
}

/// The log of a container that has never run does not contain it.
fn failures(bench: &Bench, name: &str) {
    let mut node = Daemon::start(bench, name, &[]);
    let mut missing = bench.container("app", "");
    missing["command"] = json!(["nosuchprogram"]);
    let why = "exec \"nosuchprogram\": executable file not found in $PATH";
    let spec = json!({"restartPolicy": "Never", "containers": [missing]});
    let said = node.run("missing", &spec, &["--wait"]);
    assert_eq!(said.code, 128, "{said:?}");
    let line = format!("missing failed: container `app` failed with code 128; app: {why}\n");
    assert!(said.err.ends_with(&line), "{said:?}");
    assert!(node.say(&["attach", "missing"]).err.ends_with(&line));
    assert!(node.say(&["logs", "missing"]).err.contains(why), "{:?}", node.say(&["logs", "missing"]));
    assert!(node.must(&["ps", "-a"]).contains("nosuchprogram"), "{}", node.must(&["ps", "-a"]));
    // A pod that has ended is shown on request or by its name.
    for (args, shown) in [(&["ps"][..], false), (&["ps", "-a"], true), (&["ps", "missing"], true)] {
        let said = node.say(args);
        assert_eq!(said.out.contains("missing"), shown, "{said:?}");
        assert_eq!(said.err.contains("ended pod not shown; use -a"), !shown, "{said:?}");
        let json = node.must(&[args, &["-o", "json"]].concat());
        assert_eq!(json.contains("\"missing\""), shown, "{json}");
    }

    let said = node.run(
        "bad",
        &json!({"restartPolicy": "Never", "containers": [bench.container("app", "exit 7")]}),
        &["--wait"],
    );
    assert_eq!(said.code, 7, "{said:?}");
    assert!(said.err.ends_with("bad failed: container `app` failed with code 7\n"), "{said:?}");
    node.leaves_nothing();
}
