//! Tests users and privileges of containers, and of commands inside them.

use std::fs;

use serde_json::{Value, json};

use crate::run::{Bench, Run, Test};
use crate::{LIB, check, pod, with};

pub(crate) const ALL: &[(&str, Test)] = &[
    ("a_container_has_few_capabilities", a_container_has_few_capabilities),
    ("a_root_that_cannot_be_written", a_root_that_cannot_be_written),
    ("the_privileged_may_do_all", the_privileged_may_do_all),
    ("system_calls_are_filtered_in_probes_too", system_calls_are_filtered_in_probes_too),
    ("host_namespaces_when_asked_for", host_namespaces_when_asked_for),
    ("processes_can_be_shared", processes_can_be_shared),
    ("processes_are_limited", processes_are_limited),
    ("what_cannot_be_applied_is_refused_with_its_line", what_cannot_be_applied_is_refused_with_its_line),
];

const DEFAULT_CAPS: u64 = 0xa804_25fb;

fn a_container_has_few_capabilities(bench: &Bench, name: &str) {
    let script = |effective: u64| {
        format!(
            "{LIB}is caps \"$(awk '/CapEff/ {{print $2}}' /proc/self/status)\" {effective:016x}\n\
                 is new-privileges \"$(awk '/NoNewPrivs/ {{print $2}}' /proc/self/status)\" $NNP\n\
                 is masked \"$(cat /proc/keys /proc/timer_list /sys/firmware/x 2>/dev/null)\" ''\n\
                 (echo 1 >/proc/sys/kernel/panic) 2>/dev/null && exit 4; exit 0"
        )
    };
    let of = |name: &str, context: Value, effective: u64, no_new_privileges: u8| {
        with(
            bench.container(name, &script(effective)),
            json!({"securityContext": context, "env": [{"name": "NNP", "value": no_new_privileges.to_string()}]}),
        )
    };
    let bind = 1 << 10;
    let containers = [
        of("plain", json!({}), DEFAULT_CAPS, 0),
        of("none", json!({"capabilities": {"drop": ["ALL"]}}), 0, 0),
        of("one", json!({"capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}}), bind, 0),
        of("more", json!({"capabilities": {"add": ["SYS_TIME"]}}), DEFAULT_CAPS | 1 << 25, 0),
        of("user", json!({"runAsUser": 1000, "allowPrivilegeEscalation": false}), 0, 1),
    ];
    let mut run = Run::start(bench, name, &pod("caps", json!({"containers": containers})), &[]);
    assert_eq!(run.end(), 0, "{}", run.account());
}

fn a_root_that_cannot_be_written(bench: &Bench, name: &str) {
    let container = json!({
        "securityContext": {"readOnlyRootFilesystem": true},
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    });
    let spec = json!({"volumes": [{"name": "tmp", "emptyDir": {}}]});
    let script = "(echo x >/x) 2>/dev/null && exit 1; (echo x >/etc/x) 2>/dev/null && exit 2; echo x >/tmp/x || exit 3\n\
                  echo said >/dev/termination-log; echo x >/dev/null; echo x >/dev/shm/x";
    check(bench, name, &[], container, spec, script);
}

fn the_privileged_may_do_all(bench: &Bench, name: &str) {
    let container = json!({"securityContext": {"privileged": true}});
    let all = fs::read_to_string("/proc/self/status").expect("a status");
    let all = all.lines().find_map(|l| l.strip_prefix("CapBnd:")).expect("capabilities").trim().to_owned();
    let script = format!(
        "is caps \"$(awk '/CapEff/ {{print $2}}' /proc/self/status)\" {all}\nis filter \"$(awk '/^Seccomp:/ {{print $2}}' /proc/self/status)\" 0\n\
         mkdir /tmp/m; mount -t tmpfs none /tmp/m || exit 2; mknod /tmp/full c 1 7 && (echo x >/tmp/full) 2>/tmp/err\n\
         grep -q 'No space' /tmp/err || exit 3\ntest -w /proc/sys/kernel/panic"
    );
    check(bench, name, &[], container, json!({}), &script);
}

/// Each container runs until its probe has checked the filter.
fn system_calls_are_filtered_in_probes_too(bench: &Bench, name: &str) {
    let dir = bench.work.join("state/seccomp");
    fs::create_dir_all(&dir).expect("a directory");
    let profile = json!({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [
        {"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1}]});
    fs::write(dir.join("no-dirs.json"), profile.to_string()).expect("a profile");
    // Prints the mode of the filter, whether namespaces can be created, and whether directories can.
    let look = "f=$(awk '/^Seccomp:/ {print $2}' /proc/self/status); n=no; unshare -n true 2>/dev/null && n=yes; \
                d=no; mktemp -d >/dev/null 2>&1 && d=yes; echo $f $n $d";
    let of = |name: &str, profile: Value, expected: &str| {
        let ask = format!("[ \"$({look})\" = '{expected}' ]");
        with(
            bench.container(name, &format!("{LIB}is main \"$({look})\" '{expected}'; sleep 600")),
            json!({
                "securityContext": {"seccompProfile": profile, "capabilities": {"add": ["SYS_ADMIN"]}},
                "readinessProbe": {"exec": {"command": ["/bin/sh", "-c", ask]}, "periodSeconds": 1, "timeoutSeconds": 10},
            }),
        )
    };
    let containers = [
        of("unconfined", json!({"type": "Unconfined"}), "0 yes yes"),
        of("local", json!({"type": "Localhost", "localhostProfile": "no-dirs.json"}), "2 yes no"),
        with(
            of("default", json!({"type": "RuntimeDefault"}), "2 no yes"),
            json!({"securityContext": {"seccompProfile": {"type": "RuntimeDefault"}}}),
        ),
    ];
    let mut run = Run::start(bench, name, &pod("filtered", json!({"containers": containers})), &[]);
    run.wait_for("all to be ready", |run| run.events_named("ready").len() == 3);
    run.signal(rustix::process::Signal::TERM);
    assert_eq!(run.end(), 143, "{}", run.account());
}

fn host_namespaces_when_asked_for(bench: &Bench, name: &str) {
    let own = |ns: &str| fs::read_link(format!("/proc/self/ns/{ns}")).expect("a link").display().to_string();
    let script = format!(
        "is pid \"$(readlink /proc/self/ns/pid)\" '{}'\nis ipc \"$(readlink /proc/self/ns/ipc)\" '{}'\n\
         is self \"$(cat /proc/{}/comm)\" '{}'",
        own("pid"),
        own("ipc"),
        std::process::id(),
        fs::read_to_string("/proc/self/comm").expect("a name").trim(),
    );
    check(bench, name, &[], json!({}), json!({"hostPID": true, "hostIPC": true}), &script);
    let script = format!(
        "[ \"$(readlink /proc/self/ns/pid)\" != '{}' ] && [ \"$(readlink /proc/self/ns/ipc)\" != '{}' ] && [ $$$$ = 1 ]",
        own("pid"),
        own("ipc")
    );
    check(bench, &format!("{name}-not"), &[], json!({}), json!({}), &script);
}

fn processes_can_be_shared(bench: &Bench, name: &str) {
    let one = bench.container("one", "exec sleep 31");
    let two = bench.container("two", "until pid=$(pidof sleep); do true; done; kill $pid; [ $$$$ != 1 ]");
    let spec = json!({"shareProcessNamespace": true, "containers": [one, two]});
    let mut run = Run::start(bench, name, &pod("shared", spec), &[]);
    assert_eq!(run.end(), 143, "{}", run.account());
    run.must(json!({"event": "exited", "container": "two", "code": 0}));
}

fn processes_are_limited(bench: &Bench, name: &str) {
    let many = "for i in $(seq 40); do sleep 600 & done; exit 0";
    check(bench, &format!("{name}-default"), &[], json!({}), json!({}), many);
    check(bench, &format!("{name}-off"), &["--pids-limit", "0"], json!({}), json!({}), many);
    let limited = pod("limited", json!({"containers": [bench.container("main", many)]}));
    let mut run = Run::start(bench, &format!("{name}-few"), &limited, &["--pids-limit", "20"]);
    assert_ne!(run.end(), 0, "{}", run.account());
    assert!(run.output().contains("fork"), "{}", run.account());
    // This is the kernel's default.
    let waiting = pod("counted", json!({"containers": [bench.container("main", "echo up; sleep 600")]}));
    let mut run = Run::start(bench, &format!("{name}-count"), &waiting, &[]);
    run.wait_for("output", |run| run.output().contains("main | up"));
    let mut limits = Vec::new();
    for root in ["/sys/fs/cgroup", "/sys/fs/cgroup/pids"] {
        let pods = fs::read_dir(format!("{root}/outrigger")).into_iter().flatten().flatten();
        for pod in pods.filter(|entry| entry.file_name().to_string_lossy().ends_with("-counted")) {
            let containers = fs::read_dir(pod.path()).into_iter().flatten().flatten();
            limits.extend(containers.filter_map(|c| fs::read_to_string(c.path().join("pids.max")).ok()));
        }
    }
    assert!(limits.iter().any(|limit| limit.trim() == "2048"), "{limits:?}");
}

fn what_cannot_be_applied_is_refused_with_its_line(bench: &Bench, name: &str) {
    let path = bench.work.join(format!("{name}.yaml"));
    let has_apparmor =
        fs::read_to_string("/sys/module/apparmor/parameters/enabled").is_ok_and(|t| t.trim() == "Y");
    let say = |verb: &str, pod: &str, container: &str, flags: &[&str]| {
        let text = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: refused}}\nspec:\n  restartPolicy: Never\n  {pod}\n  containers:\n    \
             - name: main\n      image: rootfs:/\n      command: [\"true\"]\n      securityContext: {container}\n"
        );
        fs::write(&path, text).expect("a manifest");
        let mut command = std::process::Command::new(&bench.binary);
        command.arg(verb).args(flags).arg(&path);
        if verb == "run" {
            command.arg("--state-dir").arg(bench.work.join("state"));
        }
        let output = command.output().expect("outrigger runs");
        // `validate` prints its findings on standard output.
        let said = if verb == "run" { output.stderr } else { output.stdout };
        (output.status.code(), String::from_utf8_lossy(&said).into_owned())
    };
    let none = "enableServiceLinks: false";
    for (pod, container, words, line) in [
        (none, "{seLinuxOptions: {level: s0}}", "seLinuxOptions cannot be applied", 11),
        ("securityContext: {seLinuxOptions: {level: s0}}", "{}", "seLinuxOptions cannot be applied", 6),
        (none, "{appArmorProfile: {type: Localhost, localhostProfile: no-such}}", "no-such", 11),
        (none, "{procMount: Unmasked}", "needs `hostUsers: false`", 11),
        (none, "{appArmorProfile: {type: Localhost}}", "needs a localhostProfile", 11),
        (none, "{capabilities: {add: [BOGUS]}}", "capability `BOGUS` is not known", 11),
        (none, "{capabilities: {drop: [BOGUS]}}", "capability `BOGUS` is not known", 11),
        ("hostUsers: false\n  hostPID: true", "{}", "`hostUsers: false` cannot be applied with hostPID", 6),
        ("hostUsers: false\n  hostIPC: true", "{}", "`hostUsers: false` cannot be applied with hostIPC", 6),
        ("hostUsers: false\n  hostNetwork: true", "{}", "cannot be applied with hostNetwork", 6),
    ] {
        let (code, text) = say("run", pod, container, &[]);
        assert_eq!(code, Some(2), "{container}: {text}");
        assert!(text.contains(words) && text.contains(&format!(":{line}:")), "{container}: {text}");
        let is_of_machine = text.contains("seLinuxOptions") || text.contains("no-such");
        if !is_of_machine {
            let (code, text) = say("validate", pod, container, &[]);
            assert_eq!(code, Some(1), "{container}: {text}");
            assert!(text.contains(words) && text.contains(&format!(":{line}:")), "{container}: {text}");
        }
    }
    for flags in [&["--network", "host"][..], &["--oci-runtime", "runc"]] {
        let (code, text) = say("run", "hostUsers: false", "{}", flags);
        assert_eq!(code, Some(2), "{flags:?}: {text}");
        let words = format!("`hostUsers: false` cannot be applied with {}", flags.join(" "));
        assert!(text.contains(&words) && text.contains(":6:"), "{flags:?}: {text}");
    }
    if !has_apparmor {
        let (code, text) = say("run", none, "{appArmorProfile: {type: RuntimeDefault}}", &[]);
        assert_eq!(code, Some(0), "{text}");
        assert_eq!(text.matches("AppArmor is not active").count(), 1, "{text}");
    }
}
