//! Tests of resource limits and devices.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use outrigger_runtime::Runtime as _;

use outrigger_testkit::embedded::{Pod, cgroups, eventually};

outrigger_testkit::trials![
    too_much_memory_is_an_oom_kill,
    too_much_memory_in_a_child_is_an_oom_kill,
    a_pod_limit_counts_for_its_containers,
    too_many_processes_are_refused,
    a_fork_bomb_is_contained,
    a_flood_of_output_fills_neither_disk_nor_memory,
    cpu_limits_are_written,
    exec_is_limited_too,
    what_holds_a_shared_pid_namespace_is_limited,
    devices_cannot_be_opened,
    devices_can_be_opened_by_the_privileged,
    an_impossible_oom_score_is_no_error,
    everything_dies_with_the_container,
];

/// Fills memory, because tail keeps an endless line as a whole.
const EAT: &str = "tail /dev/zero";
const MIB: u64 = 1 << 20;

async fn too_much_memory_is_an_oom_kill() {
    let pod = Pod::new().await;
    let mut spec = pod.script(&format!("exec {EAT}"));
    spec.resources.memory_limit_bytes = Some(16 * MIB);
    let (exit, _) = pod.run(spec).await;
    assert_eq!((exit.code, exit.oom_killed), (137, true));
    let mut spec = pod.script("exit 1");
    spec.resources.memory_limit_bytes = Some(16 * MIB);
    let (exit, _) = pod.run(spec).await;
    assert_eq!((exit.code, exit.oom_killed), (1, false));
    pod.finish().await;
}

async fn too_much_memory_in_a_child_is_an_oom_kill() {
    let pod = Pod::new().await;
    let mut spec = pod.script(&format!("{EAT}; exit 3"));
    spec.resources.memory_limit_bytes = Some(16 * MIB);
    let (exit, _) = pod.run(spec).await;
    assert!(exit.oom_killed, "{exit:?}");
    pod.finish().await;
}

async fn a_pod_limit_counts_for_its_containers() {
    let pod = Pod::with(|spec| spec.resources.memory_limit_bytes = Some(16 * MIB)).await;
    let (exit, _) = pod.run(pod.script(&format!("exec {EAT}"))).await;
    assert_eq!(exit.code, 137);
    pod.finish().await;
}

async fn too_many_processes_are_refused() {
    let pod = Pod::new().await;
    let mut spec = pod.script("for i in 1 2 3 4 5 6 7 8; do sleep 100 & done; echo started all");
    spec.resources.pids_limit = Some(5);
    let (exit, log) = pod.run(spec).await;
    assert_ne!(exit.code, 0, "{log}");
    assert!(log.contains("can't fork"), "{log}");
    pod.finish().await;
}

async fn a_fork_bomb_is_contained() {
    let pod = Pod::new().await;
    let mut spec = pod.script("bomb() { (bomb) & (bomb) & wait; }; bomb 2>/dev/null & sleep 100");
    spec.resources.pids_limit = Some(60);
    let id = pod.start(spec).await.unwrap();
    let events = || limit(&pod, &id.0, "pids.events", "pids.events");
    let refused = || events().split_whitespace().nth(1).and_then(|n| n.parse().ok()).unwrap_or(0_u64);
    eventually("forks are refused", || refused() > 0).await;
    let now: u64 = limit(&pod, &id.0, "pids.current", "pids.current").parse().unwrap();
    assert!(now <= 60, "{now} processes");
    // Its neighbour is not affected, and the fork bomb ends with its pod.
    assert_eq!(pod.output(pod.script("for i in 1 2 3 4 5; do true & done; wait; echo fine")).await, "fine\n");
    pod.finish().await;
}

/// Nobody reads the log, and the container never pauses.
async fn a_flood_of_output_fills_neither_disk_nor_memory() {
    let pod = Pod::new().await;
    let logs = pod.scratch("logs");
    let mut spec = pod.script("yes 'a line of output that is repeated without end' | head -c 60000000");
    spec.log_path = logs.join("0.log");
    spec.log_limits = outrigger_runtime::LogLimits { max_bytes: 4 * MIB, max_files: 3 };
    let used = || {
        // A file that is being renamed may be listed under both names.
        let files = fs::read_dir(&logs).unwrap().flatten().filter_map(|entry| entry.metadata().ok());
        let sizes: BTreeMap<u64, u64> = files.map(|metadata| (metadata.ino(), metadata.len())).collect();
        sizes.values().sum::<u64>()
    };
    let id = pod.start(spec).await.unwrap();
    let shim = limit_shim(&pod, &id.0);
    let (mut most, mut memory) = (0, 0);
    let exit = tokio::select! {
        exit = pod.runtime.wait(&id) => exit.unwrap(),
        () = async {
            loop {
                most = most.max(used());
                memory = memory.max(resident_kib(shim));
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        } => unreachable!(),
    };
    assert_eq!(exit.code, 0);
    assert!(most > 4 * MIB && most <= 12 * MIB + MIB, "{most} bytes of logs");
    assert!(used() > 8 * MIB, "the newest output is kept");
    assert!(memory > 0 && memory < 64 << 10, "the shim took {memory} KiB");
    pod.finish().await;
}

/// The pid of the process that writes a container's log.
fn limit_shim(pod: &Pod, container: &str) -> u32 {
    let text = fs::read_to_string(pod.container_dir(container).join("state.json"));
    let state: serde_json::Value = serde_json::from_str(&text.expect("a state")).expect("JSON");
    u32::try_from(state["shim"]["pid"].as_u64().expect("a process")).expect("a process")
}

fn resident_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// The content of a file in a container's cgroup, in the hierarchy that has its controller.
fn limit(pod: &Pod, container: &str, v1: &str, v2: &str) -> String {
    let dirs: Vec<PathBuf> = cgroups(&pod.id.0).iter().map(|dir| dir.join(container)).collect();
    let found =
        [v1, v2].iter().find_map(|name| dirs.iter().find_map(|dir| fs::read_to_string(dir.join(name)).ok()));
    found.unwrap_or_else(|| panic!("neither {v1} nor {v2} in {dirs:?}")).trim().to_owned()
}

async fn cpu_limits_are_written() {
    let pod = Pod::new().await;
    let mut spec = pod.script("sleep 100");
    spec.resources.cpu_request_milli = Some(250);
    spec.resources.cpu_limit_milli = Some(500);
    let id = pod.start(spec).await.unwrap();
    assert!(["256", "10"].contains(&limit(&pod, &id.0, "cpu.shares", "cpu.weight").as_str()));
    assert!(["50000", "50000 100000"].contains(&limit(&pod, &id.0, "cpu.cfs_quota_us", "cpu.max").as_str()));
    pod.finish().await;
}

async fn exec_is_limited_too() {
    let pod = Pod::new().await;
    let mut spec = pod.script("sleep 100");
    spec.resources.memory_limit_bytes = Some(16 * MIB);
    spec.resources.pids_limit = Some(20);
    let id = pod.start(spec).await.unwrap();
    let exec = pod.exec(&id, EAT).await;
    assert_eq!(exec.code, Some(137));
    pod.finish().await;
}

/// A process that may trace the process that holds the namespace could make it fork and allocate endlessly.
async fn what_holds_a_shared_pid_namespace_is_limited() {
    let pod = Pod::with(|spec| spec.share_pid = true).await;
    let text = fs::read_to_string(pod.dir.join("sandbox.json")).unwrap();
    let state: serde_json::Value = serde_json::from_str(&text).unwrap();
    let pause = state["pause"]["pid"].to_string();
    for (file, v2, most) in [("pids.max", "pids.max", 2), ("memory.limit_in_bytes", "memory.max", 16 * MIB)] {
        assert_eq!(limit(&pod, ".pause", file, v2).parse::<u64>().unwrap(), most, "{file}");
    }
    let dirs = cgroups(&pod.id.0).into_iter().map(|dir| dir.join(".pause")).filter(|dir| dir.exists());
    for dir in dirs {
        let there = fs::read_to_string(dir.join("cgroup.procs")).unwrap();
        assert_eq!(there.trim(), pause, "{}", dir.display());
    }
    pod.finish().await;
}

const OPEN_DISK: &str = "exec 2>&1; mknod /tmp/mem c 1 1 && head -c 1 /tmp/mem; mknod /tmp/fuse c 10 229 && head -c 0 /tmp/fuse; \
                         mknod /tmp/null c 1 3 && echo x > /tmp/null && echo null works";

async fn devices_cannot_be_opened() {
    let pod = Pod::with_host_users().await;
    let log = pod.output(pod.script(OPEN_DISK)).await;
    let refused = log.lines().filter(|line| line.ends_with("Operation not permitted")).count();
    assert_eq!((refused, log.ends_with("null works\n")), (2, true), "{log}");
    let id = pod.start(pod.script("sleep 100")).await.unwrap();
    let exec = String::from_utf8(pod.exec(&id, OPEN_DISK).await.output).unwrap();
    assert_eq!(exec.lines().filter(|line| line.ends_with("Operation not permitted")).count(), 2, "{exec}");
    pod.finish().await;
}

async fn devices_can_be_opened_by_the_privileged() {
    let pod = Pod::with_host_users().await;
    let mut spec = pod.script("mknod /tmp/kmsg c 1 11 && head -c 0 /tmp/kmsg && echo open");
    spec.identity.privileged = true;
    assert_eq!(pod.output(spec).await, "open\n");
    pod.finish().await;
}

async fn an_impossible_oom_score_is_no_error() {
    let pod = Pod::new().await;
    let mut spec = pod.script("exit 0");
    spec.resources.oom_score_adj = Some(-998);
    assert_eq!(pod.run(spec).await.0.code, 0);
    let mut spec = pod.script("cat /proc/self/oom_score_adj");
    spec.resources.oom_score_adj = Some(1000);
    assert_eq!(pod.output(spec).await, "1000\n");
    pod.finish().await;
}

async fn everything_dies_with_the_container() {
    // This is tried in each kind of pid namespace, because an orphan in its own session escapes most easily.
    for (host_pid, share_pid) in [(false, false), (true, false), (false, true)] {
        let pod = Pod::with(|spec| (spec.host_pid, spec.share_pid) = (host_pid, share_pid)).await;
        let mark = pod.scratch("mark");
        let mut spec = pod.script("setsid sh -c 'sh -c \"touch /mark/up; exec sleep 4242\" &' ; while [ ! -e /mark/up ]; do sleep 0.01; done; exit 0");
        spec.mounts = vec![outrigger_runtime::Mount {
            source: mark,
            target: "/mark".into(),
            read_only: false,
            propagation: outrigger_runtime::Propagation::Private,
        }];
        let root = pod.id.0.to_string();
        let (exit, log) = pod.run(spec).await;
        assert_eq!(exit.code, 0, "{log}");
        eventually("the orphan is gone", || !processes_in(&root)).await;
        pod.runtime.remove_sandbox(&pod.id).await.unwrap();
        pod.finish().await;
    }
}

/// Whether a process with the marked command line is in one of the cgroups of the sandbox's containers.
fn processes_in(sandbox: &str) -> bool {
    let found = fs::read_dir("/proc").into_iter().flatten().flatten().any(|entry| {
        let path = entry.path();
        let is_marked = fs::read(path.join("cmdline")).is_ok_and(|line| line == b"sleep\x004242\x00");
        is_marked && fs::read_to_string(path.join("cgroup")).is_ok_and(|text| text.contains(sandbox))
    });
    found && Path::new("/proc").exists()
}
