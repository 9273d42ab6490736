//! Tests user namespaces: the users of a pod, checked from inside and from the host.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use sha2::Digest as _;

use crate::run::{Bench, Run, Test};
use crate::{LIB, check, list, pod, with};

pub(crate) const ALL: &[(&str, Test)] = &[
    (
        "pods_have_users_of_their_own_unless_told_otherwise",
        pods_have_users_of_their_own_unless_told_otherwise,
    ),
    ("pods_that_ask_for_the_host_are_named_in_one_line", pods_that_ask_for_the_host_are_named_in_one_line),
    ("probes_and_hooks_are_in_the_user_namespace", probes_and_hooks_are_in_the_user_namespace),
    ("volumes_have_the_same_owners_in_both_modes", volumes_have_the_same_owners_in_both_modes),
    ("an_unmasked_proc_opens_nothing_of_the_host", an_unmasked_proc_opens_nothing_of_the_host),
    ("images_with_ids_a_namespace_does_not_have", images_with_ids_a_namespace_does_not_have),
    ("a_killed_run_leaves_no_ids_and_no_namespace", a_killed_run_leaves_no_ids_and_no_namespace),
    ("one_line_says_why_the_machine_cannot", one_line_says_why_the_machine_cannot),
];

/// Sets `first` to the host's id for root.
const FIRST: &str = "set -- $(cat /proc/self/uid_map); first=$2\n";

/// The message about pods without a user namespace.
const LEFT_OUT: &str = "no user namespace";

fn pods_have_users_of_their_own_unless_told_otherwise(bench: &Bench, name: &str) {
    let own = "[ $first -gt 65535 ] && [ $3 = 65536 ]";
    let host = "[ $first = 0 ] && [ $3 -gt 65536 ]";
    for (case, spec, flags, expected) in [
        ("default", json!({}), &[][..], own),
        ("host", json!({}), &["--userns", "host"], host),
        ("auto", json!({}), &["--userns", "auto"], own),
        ("asks", json!({"hostUsers": false}), &["--userns", "host"], own),
        ("declines", json!({"hostUsers": true}), &[], host),
        ("shares", json!({"shareProcessNamespace": true}), &[], own),
        ("large", json!({"securityContext": {"fsGroup": 70_000}}), &[], host),
    ] {
        check(bench, &format!("{name}-{case}"), flags, json!({}), spec, &format!("{FIRST}{expected}"));
    }
}

fn pods_that_ask_for_the_host_are_named_in_one_line(bench: &Bench, name: &str) {
    let of = |pod_name: &str, spec: Value, context: Value| {
        let containers: Vec<Value> = ["a", "b"]
            .iter()
            .map(|c| with(bench.container(c, "true"), json!({"securityContext": context})))
            .collect();
        pod(pod_name, with(json!({"containers": containers}), spec))
    };
    let pods = [
        of("plain", json!({}), json!({})),
        of("pids", json!({"hostPID": true}), json!({})),
        of("mighty", json!({}), json!({"privileged": true})),
        of("clock", json!({}), json!({"capabilities": {"add": ["SYS_TIME"]}})),
        of("known", json!({"hostPID": true, "hostUsers": true}), json!({})),
    ];
    let mut run = Run::start(bench, name, &list(&pods), &[]);
    assert_eq!(run.end(), 0, "{}", run.account());
    let expected = "pods pids (hostPID), mighty (privileged) and clock (capability SYS_TIME) have no user namespace, \
                    so root in their containers is root on this machine";
    assert_eq!(run.said().matches(LEFT_OUT).count(), 1, "{}", run.said());
    assert!(run.said().contains(expected), "{}", run.said());
    let mut run = Run::start(bench, &format!("{name}-host"), &list(&pods), &["--userns", "host"]);
    assert_eq!(run.end(), 0, "{}", run.account());
    assert!(!run.said().contains(LEFT_OUT), "{}", run.said());
}

/// A directory of the host that every user may write to.
fn open_dir(bench: &Bench, name: &str) -> PathBuf {
    let dir = bench.work.join(name);
    fs::create_dir_all(&dir).expect("a directory");
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).expect("a mode");
    dir
}

fn probes_and_hooks_are_in_the_user_namespace(bench: &Bench, name: &str) {
    let host = open_dir(bench, &format!("{name}-host"));
    let note = |who: &str| {
        format!("(id -u; id -G; cat /proc/self/uid_map) > /v/{who}.new; mv /v/{who}.new /v/{who}")
    };
    let exec = |who: &str| json!({"exec": {"command": ["/bin/sh", "-c", note(who)]}});
    let quick = json!({"periodSeconds": 1, "timeoutSeconds": 20});
    let script = format!("{}; trap 'exit 0' TERM; while :; do sleep 0.1; done", note("main"));
    let main = with(
        bench.container("main", &script),
        json!({
            "securityContext": {"runAsUser": 1000, "runAsGroup": 2000},
            "startupProbe": with(exec("startup"), quick.clone()),
            "readinessProbe": with(exec("readiness"), quick.clone()),
            "livenessProbe": with(exec("liveness"), quick),
            "lifecycle": {"postStart": exec("post-start"), "preStop": exec("pre-stop")},
            "volumeMounts": [{"name": "v", "mountPath": "/v"}],
        }),
    );
    let spec = json!({"containers": [main], "securityContext": {"fsGroup": 3000},
        "terminationGracePeriodSeconds": 20, "volumes": [{"name": "v", "hostPath": {"path": host}}]});
    let mut run = Run::start(bench, name, &pod("probed", spec), &[]);
    let before_stop = ["main", "startup", "readiness", "liveness", "post-start"];
    run.wait_for("probes and hooks", |_| before_stop.iter().all(|who| host.join(who).exists()));
    run.signal(Signal::TERM);
    run.end();
    let expected = fs::read_to_string(host.join("main")).expect("the container's");
    let lines: Vec<&str> = expected.lines().collect();
    assert_eq!(&lines[..2], ["1000", "2000 3000"], "{expected}");
    let map: Vec<u64> = lines[2].split_whitespace().map(|number| number.parse().expect("a number")).collect();
    assert!(map[1] > 65_535 && map[2] == 65_536, "{expected}");
    for who in before_stop.into_iter().chain(["pre-stop"]) {
        let path = host.join(who);
        assert_eq!(fs::read_to_string(&path).expect(who), expected, "{who}\n{}", run.account());
        let meta = fs::metadata(&path).expect(who);
        assert_eq!((meta.uid(), meta.gid()), (1000, 2000), "{who}: the same ids on the host");
    }
}

/// Checks the owners and modes of all kinds of volumes in a pod, and which are writable.
fn owners(bench: &Bench, name: &str, mode: &str) -> String {
    let host = open_dir(bench, &format!("{name}-{mode}-host"));
    fs::create_dir_all(host.join("web")).expect("a directory");
    fs::write(host.join("web/page"), "x").expect("a file");
    std::os::unix::fs::chown(host.join("web"), Some(33), Some(34)).expect("an owner");
    let script = "for f in /v/*; do for g in $f $f/*; do [ -e $g ] && stat -Lc '%n %u:%g %a' $g; done; \
                  touch $f/new 2>/dev/null && stat -c '%n %u:%g' $f/new && echo wrote $f; done; \
                  [ $(id -u) = 0 ] && chown 7:8 /v/empty/new && stat -c '%n %u:%g' /v/empty/new; true";
    let volumes = [
        ("empty", json!({"emptyDir": {}})),
        ("memory", json!({"emptyDir": {"medium": "Memory"}})),
        ("map", json!({"configMap": {"name": "m", "defaultMode": 0o440}})),
        ("secret", json!({"secret": {"secretName": "s", "defaultMode": 0o400}})),
        (
            "fields",
            json!({"downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}}),
        ),
        (
            "projected",
            json!({"projected": {"defaultMode": 0o640, "sources": [
            {"configMap": {"name": "m"}}, {"secret": {"name": "s"}}]}}),
        ),
        ("host", json!({"hostPath": {"path": host}})),
    ];
    let mounts: Vec<Value> =
        volumes.iter().map(|(name, _)| json!({"name": name, "mountPath": format!("/v/{name}")})).collect();
    let of = |name: &str, user: u32| {
        with(
            bench.container(name, script),
            json!({"securityContext": {"runAsUser": user, "runAsGroup": user}, "volumeMounts": mounts}),
        )
    };
    let volumes: Vec<Value> =
        volumes.into_iter().map(|(name, source)| with(json!({"name": name}), source)).collect();
    let spec = json!({"initContainers": [of("user", 1000)], "containers": [of("root", 0)],
        "securityContext": {"fsGroup": 2000}, "volumes": volumes});
    let objects = [
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"k": "v"}}),
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"p": "w"}}),
        pod("owners", spec),
    ];
    let mut run = Run::start(bench, &format!("{name}-{mode}"), &list(&objects), &["--userns", mode]);
    assert_eq!(run.end(), 0, "{}", run.account());
    let owner = |path: &str| {
        let meta = fs::metadata(host.join(path)).expect(path);
        (meta.uid(), meta.gid())
    };
    // The first one created the file, and the second one only touched it.
    assert_eq!((owner("new"), owner("web")), ((1000, 1000), (33, 34)), "{}", run.account());
    run.output()
}

fn volumes_have_the_same_owners_in_both_modes(bench: &Bench, name: &str) {
    let (auto, host) = (owners(bench, name, "auto"), owners(bench, name, "host"));
    assert_eq!(auto, host);
    for line in [
        "user | /v/empty 0:2000 2777",
        "user | /v/empty/new 1000:2000",
        "user | wrote /v/memory",
        "user | /v/secret/p 0:2000 440",
        "user | /v/host/web 33:34 755",
        "root | /v/empty/new 7:8",
    ] {
        assert!(auto.lines().any(|found| found == line), "{line} in\n{auto}");
    }
}

/// `procMount: Unmasked` is for pods that create containers themselves, because these need an unmasked /proc.
fn an_unmasked_proc_opens_nothing_of_the_host(bench: &Bench, name: &str) {
    let before = fs::read_to_string("/proc/sys/kernel/core_pattern").expect("a setting");
    let nested = "unshare -Urmpf sh -c 'mount -t proc none /proc' 2>/dev/null";
    // `h` only prints help, so it is harmless if it works.
    let host = "for f in sys/kernel/core_pattern sys/vm/drop_caches sysrq-trigger; do \
                (echo h > /proc/$f) 2>/dev/null && exit 3; done";
    let covers = "covers=$(awk '$5 ~ \"^/proc/\"' /proc/self/mountinfo | wc -l)";
    let context = |proc: &str| {
        json!({"securityContext": {"procMount": proc, "seccompProfile": {"type": "Unconfined"},
            "capabilities": {"add": ["SYS_ADMIN"]}}})
    };
    let script = |test: &str| format!("{covers}\n{test}\n{host}\nexit 0");
    let unmasked = script(&format!("is covers $covers 0\n{nested} || exit 2"));
    let spec = json!({"hostUsers": false});
    check(bench, &format!("{name}-unmasked"), &[], context("Unmasked"), spec.clone(), &unmasked);
    let masked = script(&format!("[ $covers -gt 5 ] || exit 1\n{nested} && exit 2"));
    check(bench, &format!("{name}-default"), &[], context("Default"), spec, &masked);
    assert_eq!(fs::read_to_string("/proc/sys/kernel/core_pattern").expect("a setting"), before);
}

/// An image with busybox and a file of the user `owner`, which runs as `user`.
fn image(path: &Path, owner: u64, user: &str) {
    let append = |archive: &mut tar::Builder<Vec<u8>>, name: &str, content: &[u8], mode: u32, owner: u64| {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(mode);
        header.set_uid(owner);
        header.set_gid(owner);
        header.set_mtime(0);
        archive.append_data(&mut header, name, content).expect("append");
    };
    let mut layer = tar::Builder::new(Vec::new());
    let busybox = fs::read("/bin/busybox").expect("install busybox-static");
    append(&mut layer, "bin/busybox", &busybox, 0o755, 0);
    append(&mut layer, "owned", b"x", 0o644, owner);
    let layer = layer.into_inner().expect("a layer");
    let digest: String = sha2::Sha256::digest(&layer).iter().map(|byte| format!("{byte:02x}")).collect();
    let config = json!({"architecture": "", "os": "linux", "config": {"User": user},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{digest}")]}});
    let manifest = json!([{"Config": "config.json", "RepoTags": ["large:1"], "Layers": ["layer.tar"]}]);
    let mut image = tar::Builder::new(Vec::new());
    append(&mut image, "manifest.json", manifest.to_string().as_bytes(), 0o644, 0);
    append(&mut image, "config.json", config.to_string().as_bytes(), 0o644, 0);
    append(&mut image, "layer.tar", &layer, 0o644, 0);
    fs::write(path, image.into_inner().expect("an image")).expect("write the image");
}

/// An image does not decide whether its pod has a user namespace. Files with ids outside the namespace belong
/// to `nobody`. A `USER` outside it is refused, unless the pod or the command line asks for the host's users.
fn images_with_ids_a_namespace_does_not_have(bench: &Bench, name: &str) {
    for (case, owner, user, seen, refused) in [
        ("fits", 65_535, "65534:65535", 65_535, None),
        ("files", 100_000, "", 65_534, None),
        ("user", 0, "100000", 0, Some("user 100000")),
        ("group", 0, "5:70000", 0, Some("group 70000")),
    ] {
        let name = format!("{name}-{case}");
        let archive = bench.work.join(format!("{name}.tar"));
        image(&archive, owner, user);
        let reference = format!("docker-archive:{}", archive.display());
        let script = "b=/bin/busybox; $b stat -c '%u:%g' /owned; set -- $($b cat /proc/self/uid_map); \
                      [ $2 = 0 ] && $b echo users of the host || $b echo own users";
        let main =
            json!({"name": "main", "image": reference, "command": ["/bin/busybox", "sh", "-c", script]});
        // There are two containers, and no message is repeated.
        let of = |spec: Value| {
            let other = with(main.clone(), json!({"name": "other"}));
            pod("large", with(json!({"containers": [main, other]}), spec))
        };
        let warned = format!("image {reference} has files of user or group {owner}");
        for (mode, spec) in [("auto", json!({})), ("insists", json!({"hostUsers": false}))] {
            let mut run = Run::start(bench, &format!("{name}-{mode}"), &of(spec), &["--fail-fast"]);
            let code = run.end();
            assert!(!run.output().contains("users of the host"), "{}", run.account());
            assert!(!run.said().contains(LEFT_OUT), "{}", run.account());
            if let Some(who) = refused {
                assert_ne!(code, 0, "{}", run.account());
                for part in [&*format!("runs as {who}"), "hostUsers: true", "--userns host"] {
                    assert!(run.said().contains(part), "{part}: {}", run.account());
                }
                assert!(run.events_named("started").is_empty(), "{}", run.account());
            } else {
                assert_eq!(code, 0, "{}", run.account());
                assert!(run.output().contains(&format!("main | {seen}:{seen}")), "{}", run.account());
                assert!(run.output().contains("main | own users"), "{}", run.account());
                let expected = usize::from(owner != seen);
                assert_eq!(run.said().matches(&warned).count(), expected, "{}", run.account());
            }
        }
        // These are the fixes that the messages propose.
        for (mode, spec, flags) in
            [("pod", json!({"hostUsers": true}), &[][..]), ("run", json!({}), &["--userns", "host"])]
        {
            let mut run = Run::start(bench, &format!("{name}-host-{mode}"), &of(spec), flags);
            assert_eq!(run.end(), 0, "{}", run.account());
            assert!(run.output().contains(&format!("main | {owner}:{owner}")), "{}", run.account());
            assert!(run.output().contains("main | users of the host"), "{}", run.account());
            assert!(!run.said().contains(&warned), "{}", run.account());
        }
    }
}

/// The allocated id ranges of the pods below a directory.
fn ranges(state: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir("/run/outrigger/ids").into_iter().flatten().flatten();
    let owner = |path: &Path| fs::read_to_string(path).unwrap_or_default();
    entries
        .map(|entry| entry.path())
        .filter(|path| owner(path).starts_with(&*state.to_string_lossy()))
        .collect()
}

fn a_killed_run_leaves_no_ids_and_no_namespace(bench: &Bench, name: &str) {
    let state = bench.work.join(format!("{name}-state"));
    let flags = ["--state-dir", state.to_str().expect("text")];
    let script = format!("{FIRST}echo first $first; echo up; sleep 600");
    let spec = json!({"shareProcessNamespace": true, "containers": [bench.container("main", &script)]});
    let mut run = Run::start(bench, name, &pod("killed", spec), &flags);
    run.wait_for("the pod", |run| run.output().contains("main | up"));
    assert_eq!(ranges(&state).len(), 1, "{}", run.account());
    let output = run.output();
    let first =
        output.lines().find_map(|line| line.strip_prefix("main | first ")?.parse().ok()).expect("an id");
    assert!(inhabitants(first) >= 2, "the container and the one that holds its processes");
    run.signal(Signal::KILL);
    run.end();
    // The next run cleans up after it.
    let next = pod("next", json!({"containers": [bench.container("main", "true")]}));
    let mut run = Run::start(bench, &format!("{name}-next"), &next, &flags);
    assert_eq!(run.end(), 0, "{}", run.account());
    assert_eq!(ranges(&state), Vec::<PathBuf>::new());
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
    assert!(!mounts.contains(state.to_str().expect("text")), "{mounts}");
    // A killed process exists until its parent has reaped it.
    let deadline = Instant::now() + Duration::from_secs(30);
    while inhabitants(first) > 0 {
        assert!(Instant::now() < deadline, "{} processes are left", inhabitants(first));
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

/// The number of processes in the user namespace whose root is `first` on the host. Numbers of namespaces are
/// reused immediately.
fn inhabitants(first: u32) -> usize {
    let processes = fs::read_dir("/proc").expect("processes").flatten();
    let maps = processes.filter_map(|entry| fs::read_to_string(entry.path().join("uid_map")).ok());
    maps.filter(|map| map.split_whitespace().nth(1) == Some(&first.to_string())).count()
}

fn one_line_says_why_the_machine_cannot(bench: &Bench, name: &str) {
    let dir = bench.work.join(name);
    for part in ["low", "up", "work", "state", "readonly"] {
        fs::create_dir_all(dir.join(part)).expect("a directory");
    }
    fs::set_permissions(dir.join("state"), fs::Permissions::from_mode(0o700)).expect("a mode");
    fs::set_permissions(dir.join("up"), fs::Permissions::from_mode(0o700)).expect("a mode");
    let script = format!("{LIB}{FIRST}is first $first 0; id -u");
    let containers = ["a", "b"].map(|name| bench.container(name, &script));
    let two = list(&["one", "two"].map(|name| pod(name, json!({"containers": containers}))));
    fs::write(dir.join("two.json"), two.to_string()).expect("a manifest");
    let insists = pod("insists", json!({"hostUsers": false, "containers": containers}));
    fs::write(dir.join("insists.json"), insists.to_string()).expect("a manifest");
    // This runs in a separate mount namespace. An overlay cannot be id-mapped, and on a read-only file system
    // no ids can be reserved.
    let overlay = "mount -t overlay -o lowerdir=low,upperdir=up,workdir=work none state";
    let read_only =
        "mkdir -p /run/outrigger && mount -t tmpfs -o ro none /run/outrigger && mount -t tmpfs none state";
    for (set_up, why) in
        [(overlay, "cannot be mounted with other ids"), (read_only, "no user ids can be set aside")]
    {
        let outrigger = |command: &str| {
            let script = format!(
                "cd {} && {set_up} && chmod 700 state && exec {} {command}",
                dir.display(),
                bench.binary.display()
            );
            let output = Command::new("unshare")
                .args(["-m", "sh", "-c", &script])
                .env("OUTRIGGER_RUNTIME_DIR", bench.sockets())
                .output()
                .expect("unshare runs");
            let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
            (output.status.code(), text(output.stdout), text(output.stderr))
        };
        let run = "run -o plain --network none --state-dir $PWD/state";
        let (code, _, said) = outrigger(&format!("{run} two.json"));
        assert_eq!(code, Some(0), "{said}");
        assert_eq!(said.matches(LEFT_OUT).count(), 1, "{said}");
        let line = said.lines().find(|line| line.contains(LEFT_OUT)).unwrap_or_default();
        assert!(line.contains("pods have no user namespace") && line.contains(why), "{line}");
        let (code, _, said) = outrigger(&format!("{run} --fail-fast insists.json"));
        assert!(
            code != Some(0) && said.contains("hostUsers: false is refused") && said.contains(why),
            "{said}"
        );
        let (_, found, said) = outrigger("doctor --state-dir $PWD/state");
        let here = found.lines().find(|line| line.contains("user namespaces")).unwrap_or_default();
        let expected = if why.contains("mounted") { why } else { "available" };
        assert!(here.contains(expected), "{found}{said}");
    }
}
