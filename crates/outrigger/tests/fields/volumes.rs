//! Tests volumes of every kind.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};

use serde_json::{Value, json};

use crate::run::{Bench, Run, Test};
use crate::{check, list, pod, with};
use rustix::process::Signal;

pub(crate) const ALL: &[(&str, Test)] = &[
    ("host_paths_are_what_they_are_said_to_be", host_paths_are_what_they_are_said_to_be),
    ("host_paths_that_are_not_are_said", host_paths_that_are_not_are_said),
    ("files_of_maps_secrets_and_the_pod_are_projected", files_of_maps_secrets_and_the_pod_are_projected),
    ("sub_paths_are_found_and_made", sub_paths_are_found_and_made),
    ("sub_paths_do_not_lead_out", sub_paths_do_not_lead_out),
    ("volumes_belong_to_the_group", volumes_belong_to_the_group),
    ("claims_outlive_runs", claims_outlive_runs),
    ("a_volume_over_its_limit_evicts_the_pod", a_volume_over_its_limit_evicts_the_pod),
    ("a_volume_in_memory_ends_at_its_limit", a_volume_in_memory_ends_at_its_limit),
];

fn volume(name: &str, source: Value) -> Value {
    with(json!({"name": name}), source)
}

fn mounts(mounts: &[(&str, &str)]) -> Value {
    json!({"volumeMounts":
        mounts.iter().map(|(name, path)| json!({"name": name, "mountPath": path})).collect::<Vec<_>>()})
}

fn host_paths_are_what_they_are_said_to_be(bench: &Bench, name: &str) {
    let host = bench.work.join(format!("{name}-host"));
    fs::create_dir_all(host.join("dir")).expect("a directory");
    fs::write(host.join("dir/inside"), "inside").expect("a file");
    fs::write(host.join("file"), "content").expect("a file");
    let _socket = std::os::unix::net::UnixListener::bind(host.join("socket")).expect("a socket");
    let of = |path: &str, kind: &str| json!({"hostPath": {"path": host.join(path), "type": kind}});
    let spec = json!({"volumes": [
        volume("dir", of("dir", "Directory")), volume("made-dir", of("made/deep", "DirectoryOrCreate")),
        volume("file", of("file", "File")), volume("made-file", of("new", "FileOrCreate")),
        volume("socket", of("socket", "Socket")), volume("any", of("plain", "")),
        volume("device", json!({"hostPath": {"path": "/dev/null", "type": "CharDevice"}})),
    ]});
    let script = r#"is dir "$(cat /v/dir/inside)" inside
is file "$(cat /v/file)" content
echo 1 >/v/made-dir/x && echo 2 >/v/made-file && echo 3 >/v/any/x || exit 1
[ -S /v/socket ] || exit 2
[ -c /v/device ] || exit 3"#;
    let all = ["dir", "made-dir", "file", "made-file", "socket", "any", "device"];
    let paths: Vec<String> = all.iter().map(|name| format!("/v/{name}")).collect();
    let all: Vec<(&str, &str)> = all.iter().copied().zip(paths.iter().map(String::as_str)).collect();
    check(bench, name, &[], mounts(&all), spec, script);
    for (path, content) in [("made/deep/x", "1\n"), ("new", "2\n"), ("plain/x", "3\n")] {
        assert_eq!(fs::read_to_string(host.join(path)).expect(path), content);
    }
}

fn host_paths_that_are_not_are_said(bench: &Bench, name: &str) {
    let host = bench.work.join(format!("{name}-host"));
    fs::create_dir_all(host.join("dir")).expect("a directory");
    fs::write(host.join("file"), "").expect("a file");
    let table = [
        ("none", "Directory", "does not exist"),
        ("file", "Directory", "is not a directory"),
        ("dir", "File", "is not a file"),
        ("file", "Socket", "is not a socket"),
        ("file", "CharDevice", "is not a character device"),
        ("file", "BlockDevice", "is not a block device"),
        ("no/such/file", "FileOrCreate", "cannot create"),
    ];
    for (index, (path, kind, complaint)) in table.into_iter().enumerate() {
        let source = json!({"hostPath": {"path": host.join(path), "type": kind}});
        let main = with(bench.container("main", "true"), mounts(&[("v", "/v")]));
        let pod = pod("p", json!({"volumes": [volume("v", source)], "containers": [main]}));
        let mut run = Run::start(bench, &format!("{name}-{index}"), &pod, &["--keep-trying"]);
        run.wait_for(complaint, |run| {
            run.events_named("sandbox-failed").iter().any(|e| {
                let message = e["message"].as_str().unwrap_or_default().to_lowercase();
                message.contains("volume \"v\": ") && message.contains(complaint)
            })
        });
        run.signal(Signal::TERM);
        assert_eq!(run.end(), 143, "{}", run.account());
        assert_eq!(run.event(json!({"event": "starting"})), None, "nothing is started\n{}", run.account());
    }
}

fn files_of_maps_secrets_and_the_pod_are_projected(bench: &Bench, name: &str) {
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "map"},
        "data": {"a": "1", "b": "2"}, "binaryData": {"bin": "AAEC"}});
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"},
        "data": {"key": "czNjcmV0"}});
    let volumes = json!([
        {"name": "all", "projected": {"defaultMode": 0o440, "sources": [
            {"configMap": {"name": "map", "items": [{"key": "a", "path": "deep/a", "mode": 0o400}]}},
            {"secret": {"name": "keys"}},
            {"downwardAPI": {"items": [
                {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}},
                {"path": "label", "fieldRef": {"fieldPath": "metadata.labels['app']"}},
                {"path": "memory", "resourceFieldRef": {"containerName": "main", "resource": "limits.memory", "divisor": "1Mi"}},
            ]}},
            {"configMap": {"name": "not-there", "optional": true}},
        ]}},
        {"name": "map", "configMap": {"name": "map"}},
        {"name": "about", "downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
        {"name": "keys", "secret": {"secretName": "keys", "optional": false}},
    ]);
    let script = r#"is() { [ "$2" = "$3" ] || { echo "WRONG $1: <$2> instead of <$3>"; exit 9; }; }
cd /all; is files "$(find . -type f | sort | tr '\n' ' ')" "./deep/a ./key ./label ./memory ./name "
is a "$(cat deep/a)" 1; is key "$(cat key)" s3cret; is name "$(cat name)" told
is label "$(cat label)" web; is memory "$(cat memory)" 64
is modes "$(stat -c %a deep/a key name | tr '\n' ' ')" "400 440 440 "
is map "$(cat /map/a /map/b)" 12; is binary "$(od -An -tx1 /map/bin | tr -d ' ')" 000102
is labels "$(cat /about/labels)" 'app="web"'
is medium "$(stat -f -c %T /keys)" tmpfs; is medium "$(stat -f -c %T /all)" tmpfs
(echo x >/map/a) 2>/dev/null && exit 3; exit 0"#;
    let main = with(
        with(bench.container("main", script), json!({"resources": {"limits": {"memory": "64Mi"}}})),
        mounts(&[("all", "/all"), ("map", "/map"), ("about", "/about"), ("keys", "/keys")]),
    );
    let mut pod = pod("told", json!({"volumes": volumes, "containers": [main]}));
    pod["metadata"]["labels"] = json!({"app": "web"});
    let mut run = Run::start(bench, name, &list(&[map, secret, pod]), &[]);
    assert_eq!(run.end(), 0, "{}", run.account());
}

fn sub_paths_are_found_and_made(bench: &Bench, name: &str) {
    let map =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "map"}, "data": {"conf": "c"}});
    let init = with(
        bench.container("init", "mkdir -p /data/a/b && echo found >/data/a/b/f && ln -s a/b /data/link"),
        mounts(&[("data", "/data")]),
    );
    let script = r#"is() { [ "$2" = "$3" ] || { echo "WRONG $1: <$2> instead of <$3>"; exit 9; }; }
is dir "$(cat /one/f)" found; is link "$(cat /link/f)" found; is file "$(cat /etc/app.conf)" c
is made "$(ls -A /made)" ""; echo x >/expr/x; is expanded "$(cat /data/logs/main-pod/x)" x"#;
    let main = with(
        bench.container("main", script),
        json!({
            "env": [{"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
            "volumeMounts": [
                {"name": "data", "mountPath": "/data"},
                {"name": "data", "mountPath": "/one", "subPath": "a/b"},
                {"name": "data", "mountPath": "/link", "subPath": "link"},
                {"name": "data", "mountPath": "/made", "subPath": "new/dir"},
                {"name": "data", "mountPath": "/expr", "subPathExpr": "logs/main-$(POD)"},
                {"name": "map", "mountPath": "/etc/app.conf", "subPath": "conf"},
            ],
        }),
    );
    let spec = json!({"volumes": [volume("data", json!({"emptyDir": {}})), volume("map", json!({"configMap": {"name": "map"}}))],
        "initContainers": [init], "containers": [main]});
    let mut run = Run::start(bench, name, &list(&[map, pod("pod", spec)]), &[]);
    assert_eq!(run.end(), 0, "{}", run.account());
}

fn sub_paths_do_not_lead_out(bench: &Bench, name: &str) {
    let outside = bench.work.join(format!("{name}-outside"));
    fs::create_dir_all(&outside).expect("a directory");
    fs::write(outside.join("secret"), "s").expect("a file");
    let volume_dir = bench.work.join(format!("{name}-volume"));
    fs::create_dir_all(&volume_dir).expect("a directory");
    symlink(&outside, volume_dir.join("absolute")).expect("a link");
    symlink(format!("../{name}-outside"), volume_dir.join("up")).expect("a link");
    symlink("/proc/self/root/etc", volume_dir.join("magic")).expect("a link");
    symlink(outside.join("new"), volume_dir.join("dangling")).expect("a link");
    for (index, path) in ["absolute", "absolute/secret", "up", "magic", "dangling"].into_iter().enumerate() {
        let main = with(
            bench.container("main", "true"),
            json!({"volumeMounts": [{"name": "v", "mountPath": "/v", "subPath": path}]}),
        );
        let source = json!({"hostPath": {"path": volume_dir}});
        let spec = json!({"volumes": [volume("v", source)], "containers": [main]});
        let mut run = Run::start(bench, &format!("{name}-{index}"), &pod("p", spec), &[]);
        run.wait_for(path, |run| {
            run.event(json!({"event": "start-failed", "error": "CreateContainerConfigError"})).is_some()
        });
        run.signal(Signal::TERM);
        assert_eq!(run.end(), 143, "{}", run.account());
    }
    assert!(!outside.join("new").exists());
}

fn volumes_belong_to_the_group(bench: &Bench, name: &str) {
    let spec = json!({
        "securityContext": {"runAsUser": 1234, "runAsGroup": 1234, "fsGroup": 4321, "supplementalGroups": [5, 6]},
        "volumes": [volume("data", json!({"emptyDir": {}})), volume("mem", json!({"emptyDir": {"medium": "Memory"}}))],
    });
    let script = r#"is id "$(id -u):$(id -g)" 1234:1234
is groups "$(id -G | tr ' ' '\n' | sort -n | tr '\n' ' ')" "5 6 1234 4321 "
for dir in /data /mem; do
  is owner "$(stat -c %g:%a $dir)" 4321:2777; echo x >$dir/f || exit 1; mkdir $dir/d
  is file "$(stat -c %u:%g $dir/f)" 1234:4321; is inherited "$(stat -c %g $dir/d)" 4321
done"#;
    check(bench, name, &[], mounts(&[("data", "/data"), ("mem", "/mem")]), spec, script);
}

fn claims_outlive_runs(bench: &Bench, name: &str) {
    let spec = |read_only: bool| {
        json!({"volumes": [volume("data",
            json!({"persistentVolumeClaim": {"claimName": "kept", "readOnly": read_only}}))]})
    };
    let at = mounts(&[("data", "/data")]);
    check(bench, &format!("{name}-1"), &[], at.clone(), spec(false), "echo first >/data/f");
    let script = "is kept \"$(cat /data/f)\" first; echo second >>/data/f";
    check(bench, &format!("{name}-2"), &[], at.clone(), spec(false), script);
    let script = "is both \"$(cat /data/f | tr '\\n' ' ')\" 'first second '; (echo x >/data/f) 2>/dev/null && exit 3; exit 0";
    check(bench, &format!("{name}-3"), &[], at, spec(true), script);
    let kept = bench.work.join("state/volumes/default/kept/f");
    assert_eq!(fs::metadata(&kept).expect("a file").uid(), 0);
    assert_eq!(fs::read_to_string(kept).expect("a file"), "first\nsecond\n");
}

fn a_volume_over_its_limit_evicts_the_pod(bench: &Bench, name: &str) {
    let script = "trap 'echo asked to go; exit 0' TERM; head -c 3000000 /dev/zero >/data/big; echo written; sleep 600 & wait";
    let main = with(bench.container("main", script), mounts(&[("data", "/data"), ("free", "/free")]));
    let spec = json!({"restartPolicy": "Always", "terminationGracePeriodSeconds": 30, "containers": [main],
        "volumes": [volume("data", json!({"emptyDir": {"sizeLimit": "2Mi"}})), volume("free", json!({"emptyDir": {}}))]});
    let mut run = Run::start(bench, name, &pod("greedy", spec), &[]);
    assert_ne!(run.end(), 0, "{}", run.account());
    let status = run.status()["status"].clone();
    assert_eq!(status["phase"], "Failed", "{}", run.account());
    assert_eq!(status["reason"], "Evicted");
    assert_eq!(status["message"], "Usage of EmptyDir volume \"data\" exceeds the limit \"2Mi\". ");
    assert!(run.output().contains("asked to go"), "{}", run.account());
    assert_eq!(run.events_named("starting").len(), 1, "it is not started again\n{}", run.account());
    let stop = run.events().into_iter().find(|e| e["event"] == "stop-begun").expect("a stop");
    assert_eq!((&stop["cause"], &stop["grace_ms"]), (&json!("volume-full"), &json!(1000)));
}

fn a_volume_in_memory_ends_at_its_limit(bench: &Bench, name: &str) {
    let spec =
        json!({"volumes": [volume("mem", json!({"emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}))]});
    let script = "is type \"$(stat -f -c %T /mem)\" tmpfs\ndd if=/dev/zero of=/mem/big bs=1M count=3 2>/tmp/err && exit 3\n\
                  grep -q 'No space left' /tmp/err";
    check(bench, name, &[], mounts(&[("mem", "/mem")]), spec, script);
}
