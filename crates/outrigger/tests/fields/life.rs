//! Tests signals to containers, how containers end, and how this is reported.

use std::fs;

use rustix::process::Signal;
use serde_json::json;

use crate::run::{Bench, Run, Test};
use crate::{LIB, list, pod, with};

pub(crate) const ALL: &[(&str, Test)] = &[
    ("variables_come_from_everywhere", variables_come_from_everywhere),
    ("the_last_words_are_kept", the_last_words_are_kept),
    ("the_stop_signal_is_the_author_s", the_stop_signal_is_the_author_s),
    ("too_much_memory_is_said", too_much_memory_is_said),
    ("a_first_process_that_ignores_its_signal_is_said", a_first_process_that_ignores_its_signal_is_said),
    ("a_container_s_children_are_reaped_and_end_with_it", a_container_s_children_are_reaped_and_end_with_it),
];

fn variables_come_from_everywhere(bench: &Bench, name: &str) {
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "map"},
        "data": {"COLOR": "blue", "SIZE": "big"}});
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"},
        "stringData": {"KEY": "s3cret"}});
    let script = format!(
        r#"{LIB}is map "$CFG_COLOR $CFG_SIZE" "blue big"; is later "$COLOR" red; is secret "$KEY" s3cret
is key "$ONE" big; is none "${{NONE-unset}}" unset; is field "$NAME/$NAMESPACE/$SA" "told/ns/robot"
is label "$LABEL" web; [ -n "$NODE" ] || exit 8
is cpu "$CPU" 250; is memory "$MEM" 64; is default "$MEM_REQUEST" 67108864; is expanded "$GREETING" 'hello red $(NOPE) $$(COLOR)'
is argument "$0" 'red'"#
    );
    let main = with(
        bench.container("main", &script),
        json!({
            "args": ["$(COLOR)"],
            "envFrom": [{"prefix": "CFG_", "configMapRef": {"name": "map"}}, {"secretRef": {"name": "keys"}},
                {"configMapRef": {"name": "not-there", "optional": true}}],
            "env": [
                {"name": "COLOR", "value": "red"},
                {"name": "ONE", "valueFrom": {"configMapKeyRef": {"name": "map", "key": "SIZE"}}},
                {"name": "NONE", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "no", "optional": true}}},
                {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                {"name": "NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
                {"name": "SA", "valueFrom": {"fieldRef": {"fieldPath": "spec.serviceAccountName"}}},
                {"name": "LABEL", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}},
                {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}},
                {"name": "MEM", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}},
                {"name": "MEM_REQUEST", "valueFrom": {"resourceFieldRef": {"resource": "requests.memory"}}},
                {"name": "GREETING", "value": "hello $(COLOR) $(NOPE) $$(COLOR)"},
            ],
            "resources": {"limits": {"cpu": "250m", "memory": "64Mi"}},
        }),
    );
    let mut pod = pod("told", json!({"serviceAccountName": "robot", "containers": [main]}));
    pod["metadata"]["namespace"] = json!("ns");
    pod["metadata"]["labels"] = json!({"app": "web"});
    let in_ns = |object| {
        with(object, json!({})).as_object().map(|o| {
            let mut o = o.clone();
            o["metadata"]["namespace"] = json!("ns");
            json!(o)
        })
    };
    let objects = [in_ns(map), in_ns(secret)].map(|o| o.expect("an object"));
    let [map, secret] = objects;
    let mut run = Run::start(bench, name, &list(&[map, secret, pod]), &[]);
    assert_eq!(run.end(), 0, "{}", run.account());
}

fn the_last_words_are_kept(bench: &Bench, name: &str) {
    let container = |name: &str, policy: &str, path: &str, script: &str| {
        with(
            bench.container(name, script),
            json!({"terminationMessagePolicy": policy, "terminationMessagePath": path}),
        )
    };
    let default = "/dev/termination-log";
    let spec = json!({"containers": [
        container("file", "File", "/tmp/last", "echo log; printf words >/tmp/last; exit 3"),
        container("log", "FallbackToLogsOnError", default, "seq 1 100; exit 4"),
        container("both", "FallbackToLogsOnError", default, "echo log; printf words >/dev/termination-log; exit 5"),
        container("well", "FallbackToLogsOnError", default, "echo log"),
    ]});
    let mut run = Run::start(bench, name, &pod("talks", spec), &[]);
    run.end();
    let statuses = run.status()["status"]["containerStatuses"].as_array().cloned().unwrap_or_default();
    let message = |name: &str| {
        let status =
            statuses.iter().find(|s| s["name"] == name).unwrap_or_else(|| panic!("{}", run.account()));
        status["state"]["terminated"]["message"].as_str().map(str::to_owned)
    };
    assert_eq!(message("file").as_deref(), Some("words"));
    let log = message("log").expect("a message");
    assert!(log.starts_with("21\n") && log.ends_with("\n100\n"), "the last 80 lines: {log}");
    assert_eq!(message("both").as_deref(), Some("words"));
    assert_eq!(message("well"), None);
}

fn the_stop_signal_is_the_author_s(bench: &Bench, name: &str) {
    let script = "trap 'echo heard USR1; exit 0' USR1; trap 'echo heard TERM; exit 1' TERM; touch /tmp/ready; sleep 600 & wait";
    let main = with(
        bench.container("main", script),
        json!({
            "lifecycle": {"stopSignal": "SIGUSR1"},
            "readinessProbe": {"exec": {"command": ["/bin/test", "-f", "/tmp/ready"]}, "periodSeconds": 1},
        }),
    );
    let spec = json!({"os": {"name": "linux"}, "terminationGracePeriodSeconds": 30, "containers": [main]});
    let mut run = Run::start(bench, name, &pod("signalled", spec), &[]);
    run.wait_for("main to be ready", |run| run.event(json!({"event": "ready"})).is_some());
    run.signal(Signal::TERM);
    assert_eq!(run.end(), 143, "{}", run.account());
    assert!(run.output().contains("heard USR1") && !run.output().contains("heard TERM"), "{}", run.account());
}

fn too_much_memory_is_said(bench: &Bench, name: &str) {
    // In one case the whole container is killed, in the other a child whose parent survives and reports it.
    let eat = "tail -c 200000000 /dev/zero";
    let limited = |name: &str, script: &str| {
        with(bench.container(name, script), json!({"resources": {"limits": {"memory": "32Mi"}}}))
    };
    let spec = json!({"containers": [
        limited("main", &format!("exec {eat}")),
        limited("child", &format!("{eat} >/dev/null; exit 137")),
        limited("modest", "echo fine"),
    ]});
    let mut run = Run::start(bench, name, &pod("hungry", spec), &[]);
    assert_eq!(run.end(), 137, "{}", run.account());
    for container in ["main", "child"] {
        run.must(json!({"event": "exited", "container": container, "code": 137, "reason": "OOMKilled"}));
    }
    run.must(json!({"event": "exited", "container": "modest", "code": 0, "reason": "Completed"}));
}

fn a_container_s_children_are_reaped_and_end_with_it(bench: &Bench, name: &str) {
    // Orphans of a shell that does not wait for them become children of the first process, which does not
    // know them.
    let number = 40_000 + std::process::id() % 10_000;
    let script = format!(
        "for i in 1 2 3 4 5; do (sleep 0.05 & exec true); done; (setsid sleep {number} & exec true)
(trap '' TERM INT HUP; setsid sleep {number}1 &)
WAIT; until ! ps -o stat,comm | grep -q '^Z'; do sleep 0.05; done; echo reaped"
    );
    // The first process of a pid namespace inherits the orphans. It is the shell itself, ours, or the
    // machine's.
    for (share, host, waits) in
        [(false, false, "wait"), (true, false, "true"), (false, true, "ps() { true; }")]
    {
        let main = bench.container("main", &script.replace("WAIT", waits));
        let spec = json!({"shareProcessNamespace": share, "hostPID": host, "containers": [main]});
        let mut run = Run::start(bench, &format!("{name}-{share}-{host}"), &pod("parents", spec), &[]);
        assert_eq!(run.end(), 0, "{}", run.account());
        assert!(run.output().contains("reaped"), "{}", run.account());
        let left: Vec<String> = fs::read_dir("/proc")
            .expect("processes")
            .flatten()
            .filter_map(|entry| fs::read(entry.path().join("cmdline")).ok())
            .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
            .filter(|line| line.starts_with(&format!("sleep {number}")))
            .collect();
        assert_eq!(left, Vec::<String>::new(), "share {share}, host {host}");
    }
}

fn a_first_process_that_ignores_its_signal_is_said(bench: &Bench, name: &str) {
    let (deaf, polite) = ("exec sleep 600", "trap 'exit 0' TERM; echo up; while :; do sleep 0.1; done");
    let spec = json!({"containers": [bench.container("deaf", deaf), bench.container("polite", polite)]});
    let mut run = Run::start(bench, name, &pod("deaf", spec), &[]);
    run.wait_for("both", |run| run.output().contains("up") && run.events_named("started").len() == 2);
    run.signal(Signal::TERM);
    assert_eq!(run.end(), 143, "{}", run.account());
    let said = run.events_named("stop-signal-ignored");
    assert_eq!(said.len(), 1, "{}", run.account());
    assert_eq!((&said[0]["container"], &said[0]["signal"]), (&json!("deaf"), &json!("TERM")));
    assert!(said[0]["hint"].as_str().is_some_and(|hint| hint.contains("trap 'exit 0' TERM")), "{said:?}");
    let text = "is process 1 without a SIGTERM handler, so it will be killed in ";
    assert!(run.said().contains(text), "{}", run.account());
}
