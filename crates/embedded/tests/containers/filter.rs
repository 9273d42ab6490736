//! Tests of the default system call filter from inside a container: every number, both architectures, and the
//! relevant arguments.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use outrigger_runtime::{ContainerSpec, Mount, Propagation, Seccomp};

use outrigger_testkit::embedded::{OCI_RUNTIME_VARIABLE, Pod};

outrigger_testkit::trials![
    every_call_does_what_the_table_says,
    arguments_decide_where_they_should,
    common_programs_run_under_the_filter,
];

/// The list from which the filter is made.
const TABLE: &str = include_str!("../../src/seccomp/syscalls.tsv");

/// The variable with the directory of the program below, if it cannot be compiled.
const PROBE_VARIABLE: &str = "OUTRIGGER_TEST_PROBE";

/// The directory of a program that makes calls and prints the result of each.
static PROBE: LazyLock<PathBuf> = LazyLock::new(|| match std::env::var_os(PROBE_VARIABLE) {
    Some(given) => given.into(),
    None => COMPILED.path().to_owned(),
});

static COMPILED: LazyLock<tempfile::TempDir> = LazyLock::new(|| {
    let dir = tempfile::Builder::new().prefix("outrigger-test-probe-").tempdir().expect("directory");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/containers/syscalls.c");
    let built = Command::new("gcc")
        .args(["-static", "-O1", "-o"])
        .arg(dir.path().join("probe"))
        .arg(source)
        .status()
        .expect("install gcc");
    assert!(built.success());
    dir
});

fn probing(pod: &Pod, what: &str) -> ContainerSpec {
    let mut spec = pod.script("");
    spec.command = Some(vec!["/probe/probe".to_owned(), what.to_owned()]);
    spec.mounts = vec![Mount {
        source: PROBE.clone(),
        target: "/probe".into(),
        read_only: true,
        propagation: Propagation::Private,
    }];
    spec
}

/// The result of each call: `ok`, an error number, `signal`, `exit` or `hang`.
async fn outcomes(pod: &Pod, what: &str, seccomp: Seccomp) -> BTreeMap<(String, u32), String> {
    let mut spec = probing(pod, what);
    spec.identity.seccomp = seccomp;
    let text = pod.output(spec).await;
    text.lines()
        .map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            let [arch, number, result] = words[..] else { panic!("{line:?}") };
            ((arch.to_owned(), number.parse().expect("a number")), result.to_owned())
        })
        .collect()
}

/// The table's column for an architecture, as a map from number to name and access.
fn column(arch: &str) -> BTreeMap<u32, (&'static str, &'static str)> {
    let at = match arch {
        "64" if cfg!(target_arch = "aarch64") => 3,
        "64" => 1,
        _ => 2,
    };
    let entries = TABLE.lines().filter_map(|line| {
        let columns: Vec<&str> = line.split('\t').collect();
        Some((columns[at].parse().ok()?, (columns[0], columns[5])))
    });
    entries.collect()
}

const EPERM: &str = "1";
const ENOSYS: &str = "38";
/// The newest call in the list. Later calls do not exist for a container.
const NEWEST: u32 = 467;
/// The conditions in the table that apply to a container by default: a capability and a kernel version.
const OPEN_BY_DEFAULT: [&str; 2] = ["SYS_CHROOT", "kernel4.8"];

async fn every_call_does_what_the_table_says() {
    // Each container runs in a separate pod, because what the first one leaves in the IPC namespace would
    // affect the second one.
    let (first, pod) = (Pod::new().await, Pod::new().await);
    let free = outcomes(&first, "all", Seccomp::Unconfined).await;
    let filtered = outcomes(&pod, "all", Seccomp::Default).await;
    let mut wrong = Vec::new();
    for arch in ["64", "32", "x32"] {
        let table = column(arch);
        let tried = filtered.iter().filter(|((tried, _), _)| tried == arch);
        let mut count = 0;
        for (key, result) in tried {
            count += 1;
            let known = table.get(&key.1).filter(|_| arch != "x32");
            let expected = match known {
                // Without valid arguments, the call does nothing. It fails as it would without a filter.
                Some((_, "allow")) => free[key].as_str(),
                Some((_, words)) if words.split(',').any(|word| OPEN_BY_DEFAULT.contains(&word)) => {
                    free[key].as_str()
                }
                Some((_, "rule")) => continue,
                _ if arch == "x32" || key.1 > NEWEST => ENOSYS,
                _ => EPERM,
            };
            if result != expected {
                wrong.push(format!("{arch} {} {known:?}: {result}, not {expected}", key.1));
            }
        }
        assert!(count == 600 || (arch != "64" && count == 0), "{arch}: {count} calls were tried");
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    first.finish().await;
    pod.finish().await;
}

async fn arguments_decide_where_they_should() {
    let pod = Pod::new().await;
    let text = pod.output(probing(&pod, "arguments")).await;
    let results: BTreeMap<&str, &str> = text.lines().filter_map(|line| line.split_once(' ')).collect();
    let mut expected = vec![
        ("socket-unix", "ok"),
        ("socket-vsock", EPERM),
        ("socket-vsock-high", EPERM),
        ("socket-alg", EPERM),
        ("socket-alg-high", EPERM),
        ("socketpair-unix", "ok"),
        ("socketpair-vsock", EPERM),
        ("socketpair-vsock-high", EPERM),
        ("clone-newuser", EPERM),
        ("clone-newuser-high", EPERM),
        ("clone3-newuser", ENOSYS),
        ("personality-ask", "ok"),
        ("personality-read-implies-exec", EPERM),
    ];
    if results.contains_key("i386-socket-unix") {
        // An OCI runtime cannot distinguish the calls in it.
        let is_oci = std::env::var_os(OCI_RUNTIME_VARIABLE).is_some();
        let socketcall = if is_oci { ENOSYS } else { EPERM };
        expected.extend([
            ("i386-socket-unix", "ok"),
            ("i386-socket-vsock", EPERM),
            ("i386-socket-alg", EPERM),
            ("i386-socketcall-vsock", socketcall),
            ("i386-socketcall-alg", socketcall),
            ("i386-socketcall-vsock-pair", socketcall),
            ("i386-clone-newuser", EPERM),
        ]);
    }
    for (name, outcome) in expected {
        assert_eq!(results.get(name), Some(&outcome), "{name}: {text}");
    }
    pod.finish().await;
}

/// Common programs run with the libc of this machine.
async fn common_programs_run_under_the_filter() {
    let pod = Pod::new().await;
    let python = "import threading, subprocess, socket, tempfile, multiprocessing, os, time, select, mmap, signal
threads = [threading.Thread(target=time.sleep, args=(0.001,)) for _ in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
assert subprocess.run(['true']).returncode == 0
server = socket.create_server(('127.0.0.1', 0)); client = socket.create_connection(server.getsockname())
with tempfile.NamedTemporaryFile() as f: f.write(b'x'); os.fsync(f.fileno()); os.sendfile(client.fileno(), f.fileno(), 0, 1)
multiprocessing.Process(target=int).start(); select.epoll(); mmap.mmap(-1, 4096); os.memfd_create('x')
print('python works')";
    for (program, arguments, says) in [
        (
            "/bin/busybox",
            &["sh", "-c", "echo busybox works; ls -lR /etc > /dev/null; ps > /dev/null"][..],
            "busybox works",
        ),
        (
            "/bin/bash",
            &["-c", "cat <(echo bash) <<< x | tr b B; (sleep 0.01 &); wait; echo bash works"],
            "bash works",
        ),
        ("/usr/bin/python3", &["-c", python], "python works"),
        (
            "/usr/bin/perl",
            &["-e", "print `echo perl works`; my $p = fork; exit unless $p; waitpid $p, 0"],
            "perl works",
        ),
        ("/usr/bin/tar", &["-cf", "/dev/null", "--totals", "/etc"], "Total bytes written"),
    ] {
        if !Path::new(program).exists() {
            continue;
        }
        let mut spec = pod.script("");
        spec.image.layers = vec![PathBuf::from("/")];
        spec.command =
            Some(std::iter::once(program).chain(arguments.iter().copied()).map(str::to_owned).collect());
        let (exit, log) = pod.run(spec).await;
        assert!(log.contains(says), "{program}: {exit:?} {log}");
        assert!(exit.code == 0 && !log.contains("not permitted"), "{program}: {exit:?} {log}");
    }
    pod.finish().await;
}
