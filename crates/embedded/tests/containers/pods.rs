//! Tests of sandboxes: what the containers of a pod share.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use outrigger_runtime::{NetworkMode, Runtime as _, RuntimeError, SandboxId};

use outrigger_testkit::embedded::{
    DEADLINE, Pod, assert_nothing_left, eventually, log_text, runtime, sandbox_spec,
};

outrigger_testkit::trials![
    namespaces_are_shared_within_the_pod,
    hosts_namespaces_when_asked,
    pids_can_be_shared,
    shared_memory_is_shared,
    loopback_is_up,
    a_private_network_has_an_address,
    sysctls_are_the_pod_s_own,
    bad_sysctls_are_refused,
    bad_ids_are_refused,
    a_missing_sandbox_is_not_found,
    a_killed_shim_ends_its_container,
    shims_do_not_depend_on_their_fork_server,
    a_shim_is_small,
];

/// Prints the inodes of a container's namespaces as the container sees them.
const NAMESPACES: &str = "for n in net ipc uts pid mnt cgroup; do readlink /proc/self/ns/$n; done";

async fn namespaces_are_shared_within_the_pod() {
    let pod = Pod::new().await;
    let first = pod.output(pod.script(NAMESPACES)).await;
    let second = pod.output(pod.script(NAMESPACES)).await;
    let host: Vec<String> = ["net", "ipc", "uts", "pid", "mnt", "cgroup"]
        .iter()
        .map(|name| fs::read_link(format!("/proc/self/ns/{name}")).unwrap().to_string_lossy().into_owned())
        .collect();
    let (first, second): (Vec<&str>, Vec<&str>) = (first.lines().collect(), second.lines().collect());
    assert_eq!(first[..3], second[..3]);
    for index in 0..6 {
        assert_ne!(first[index], host[index]);
    }
    let netns = pod.sandbox.netns.as_ref().expect("a network namespace");
    assert_eq!(format!("net:[{}]", fs::metadata(netns).unwrap().ino()), first[0]);
    assert_eq!(pod.output(pod.script("hostname; echo $$")).await, "test-pod\n1\n");
    pod.finish().await;
}

async fn hosts_namespaces_when_asked() {
    let pod = Pod::with(|spec| {
        spec.network = NetworkMode::Host;
        spec.host_ipc = true;
        spec.host_pid = true;
    })
    .await;
    assert!(pod.sandbox.netns.is_none() && pod.sandbox.ips.is_empty());
    let seen = pod
        .output(pod.script(&format!("{NAMESPACES}; cat /proc/{}/comm; echo $HOSTNAME", std::process::id())))
        .await;
    let seen: Vec<&str> = seen.lines().collect();
    for (index, name) in ["net", "ipc", "uts", "pid"].iter().enumerate() {
        assert_eq!(seen[index], fs::read_link(format!("/proc/self/ns/{name}")).unwrap().to_string_lossy());
    }
    assert_eq!(seen[7], fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim());
    let id = pod.start(pod.script("sleep 100")).await.unwrap();
    assert_eq!(pod.exec(&id, "exit 4").await.code, Some(4));
    pod.runtime.kill(&id).await.unwrap();
    assert_eq!(pod.wait(&id).await.code, 137);
    pod.finish().await;
}

async fn pids_can_be_shared() {
    let pod = Pod::with(|spec| spec.share_pid = true).await;
    let first = pod.start(pod.script("exec sleep 1234")).await.unwrap();
    let seen = pod.output(pod.script("ps -o pid,args; ls /proc/1/root/ 2>&1; sh -c 'sleep 0.01 &'")).await;
    assert!(seen.contains("sleep 1234"), "{seen}");
    // The process that holds the namespace reveals nothing about the host.
    let holder: Vec<&str> = seen.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(holder, ["1", "pause"], "{seen}");
    // A process that may trace it can make it call the kernel, so it has the same filter as the others.
    assert_eq!(pod.output(pod.script("grep Seccomp: /proc/1/status")).await, "Seccomp:\t2\n");
    assert_eq!(pod.output(pod.script("[ $$ != 1 ] && echo not first")).await, "not first\n");
    assert_eq!(pod.exec(&first, "kill -0 $(pidof sleep)").await.code, Some(0));
    pod.runtime.terminate(&first, Duration::ZERO).await.unwrap();
    let exit = pod.wait(&first).await;
    assert_eq!((exit.code, exit.signal), (143, Some(15)), "not being pid 1 it dies of TERM");
    // The process that holds the namespace reaps orphans.
    let log = pod
        .output(pod.script("sh -c 'true & exec true'; sleep 0.2; ps -o stat,args | grep -c '^Z' || true"))
        .await;
    assert_eq!(log, "0\n");
    pod.finish().await;
}

async fn shared_memory_is_shared() {
    let pod = Pod::new().await;
    pod.output(pod.script("echo hello > /dev/shm/x")).await;
    assert_eq!(
        pod.output(pod.script("cat /dev/shm/x; mount | grep -c '/dev/shm type tmpfs.*size=65536k'")).await,
        "hello\n1\n"
    );
    pod.finish().await;
}

async fn loopback_is_up() {
    let pod = Pod::new().await;
    let script = "ip -o addr show lo | grep -c 127.0.0.1; ip -o link | grep -c .; (echo hi | nc -l -p 8080 &) ; \
                  while ! nc 127.0.0.1 8080 2>/dev/null; do sleep 0.01; done";
    assert_eq!(pod.output(pod.script(script)).await, "1\n1\nhi\n");
    pod.finish().await;
}

async fn a_private_network_has_an_address() {
    let pod = Pod::with(|spec| spec.network = NetworkMode::Private).await;
    let ip = *pod.sandbox.ips.first().expect("an address");
    let mut spec = pod.script("(echo served | nc -l -p 8080) ; echo over");
    let log = spec.log_path.clone();
    spec.env.push(("X".to_owned(), "y".to_owned()));
    let id = pod.start(spec).await.unwrap();
    let deadline = tokio::time::Instant::now() + DEADLINE;
    loop {
        use tokio::io::AsyncReadExt as _;
        if let Ok(mut stream) = tokio::net::TcpStream::connect((ip, 8080)).await {
            let mut text = String::new();
            stream.read_to_string(&mut text).await.unwrap();
            assert_eq!(text, "served\n");
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "nobody answers at {ip}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    pod.runtime.kill(&id).await.unwrap();
    pod.wait(&id).await;
    assert!(!log_text(&log).contains("error"));
    pod.finish().await;
}

async fn sysctls_are_the_pod_s_own() {
    let before = fs::read_to_string("/proc/sys/kernel/shm_rmid_forced").unwrap();
    let pod = Pod::with(|spec| {
        spec.sysctls = BTreeMap::from([
            ("kernel.shm_rmid_forced".to_owned(), "1".to_owned()),
            ("net.ipv4.ip_unprivileged_port_start".to_owned(), "80".to_owned()),
        ]);
    })
    .await;
    let script = "cat /proc/sys/kernel/shm_rmid_forced /proc/sys/net/ipv4/ip_unprivileged_port_start";
    assert_eq!(pod.output(pod.script(script)).await, "1\n80\n");
    assert_eq!(fs::read_to_string("/proc/sys/kernel/shm_rmid_forced").unwrap(), before);
    pod.finish().await;
}

async fn bad_sysctls_are_refused() {
    let state = tempfile::tempdir().unwrap();
    let runtime = runtime(state.path());
    for (name, network, complaint) in [
        ("vm.swappiness", NetworkMode::None, "not namespaced"),
        ("net.../../vm/swappiness", NetworkMode::None, "is not a name"),
        ("net.ipv4.no_such_thing", NetworkMode::None, "no such file"),
        ("net.ipv4.ip_forward", NetworkMode::Host, "hostNetwork"),
    ] {
        let mut spec = sandbox_spec(&runtime);
        spec.network = network;
        spec.sysctls = BTreeMap::from([(name.to_owned(), "1".to_owned())]);
        let id = spec.id.clone();
        let error = runtime.create_sandbox(spec).await.unwrap_err();
        let is_said = matches!(&error, RuntimeError::Sysctl { name: of, detail } if of == name && detail.contains(complaint));
        assert!(is_said, "{error:?}");
        runtime.remove_sandbox(&id).await.unwrap();
        assert_nothing_left(state.path(), &id);
    }
}

async fn bad_ids_are_refused() {
    let state = tempfile::tempdir().unwrap();
    let runtime = runtime(state.path());
    let long = "x".repeat(65);
    for id in ["", ".", "..", "a/b", ".hidden", "a b", long.as_str()] {
        let mut spec = sandbox_spec(&runtime);
        spec.id = SandboxId(id.to_owned());
        assert!(matches!(runtime.create_sandbox(spec).await, Err(RuntimeError::Config(_))), "{id:?}");
    }
}

async fn a_missing_sandbox_is_not_found() {
    let pod = Pod::new().await;
    let nowhere = SandboxId("nowhere".to_owned());
    let error = pod.runtime.create_container(&nowhere, pod.script("true")).await.unwrap_err();
    assert!(matches!(error, RuntimeError::NotFound { kind: "sandbox", .. }), "{error:?}");
    pod.runtime.remove_sandbox(&nowhere).await.unwrap();
    pod.finish().await;
}

/// The pids of a container's shim and first process, as the shim stores them.
pub(crate) fn pids(pod: &Pod, container: &str) -> (i32, i32) {
    let text = fs::read(pod.container_dir(container).join("state.json")).unwrap();
    let state: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let pid = |who: &str| state[who]["pid"].as_i64().unwrap() as i32;
    (pid("shim"), pid("init"))
}

fn kill(pid: i32) {
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

async fn a_killed_shim_ends_its_container() {
    let pod = Pod::new().await;
    let id = pod.start(pod.script("sleep 100")).await.unwrap();
    let (shim, init) = pids(&pod, &id.0);
    kill(shim);
    let exit = pod.wait(&id).await;
    assert_eq!((exit.code, exit.signal), (137, Some(9)));
    eventually("the container is gone", || !Path::new(&format!("/proc/{init}")).exists()).await;
    pod.finish().await;
}

/// The parent of a process.
fn parent(pid: i32) -> i32 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    status.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap().trim().parse().unwrap()
}

async fn shims_do_not_depend_on_their_fork_server() {
    let state = tempfile::tempdir().unwrap();
    let pod = Pod::on(runtime(state.path()), state.path(), |_| {}).await;
    let first = pod.start(pod.script("sleep 100")).await.unwrap();
    let (shim, _) = pids(&pod, &first.0);
    let server = parent(shim);
    let line = fs::read(format!("/proc/{server}/cmdline")).unwrap();
    assert!(line.starts_with(b"outrigger\0shim\0containers\0"), "{}", String::from_utf8_lossy(&line));
    let line = fs::read_to_string(format!("/proc/{shim}/cmdline")).unwrap();
    assert_eq!(line.trim_end_matches('\0'), format!("outrigger\0shim\0container\0{first}"));
    let second = pod.start(pod.script("sleep 100")).await.unwrap();
    assert_eq!(parent(pids(&pod, &second.0).0), server);
    // Each has its own session.
    let session = |pid| rustix::process::getsid(rustix::process::Pid::from_raw(pid)).unwrap();
    assert_eq!(session(shim).as_raw_nonzero().get(), shim);

    kill(server);
    let third = pod.start(pod.script("exit 3")).await.unwrap();
    assert_eq!(pod.wait(&third).await.code, 3);
    assert_eq!(pod.exec(&first, "echo still there").await.output, b"still there\n");

    // A stopped fork server is abandoned.
    let fourth = pod.start(pod.script("sleep 100")).await.unwrap();
    let stopped = parent(pids(&pod, &fourth.0).0);
    assert_ne!(stopped, server);
    let handle = rustix::process::Pid::from_raw(stopped).unwrap();
    rustix::process::kill_process(handle, rustix::process::Signal::STOP).unwrap();
    let fifth = pod.start(pod.script("exit 5")).await.unwrap();
    assert_eq!(pod.wait(&fifth).await.code, 5);
    eventually("it is killed", || !Path::new(&format!("/proc/{stopped}")).exists()).await;
    for id in [&first, &second, &fourth] {
        pod.runtime.kill(id).await.unwrap();
        assert_eq!(pod.wait(id).await.signal, Some(9));
    }
    pod.finish().await;
}

async fn a_shim_is_small() {
    let pod = Pod::new().await;
    let id = pod.start(pod.script("seq 1 100000; echo done; sleep 100")).await.unwrap();
    let log = pod.dir.parent().unwrap().parent().unwrap().join(format!("{id}.log"));
    pod.saw(&log, "done").await;
    pod.exec(&id, "seq 1 10000").await;
    let (shim, _) = pids(&pod, &id.0);
    let status = fs::read_to_string(format!("/proc/{shim}/status")).unwrap();
    let number = |name: &str| -> u64 {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim_start_matches(':').trim().trim_end_matches(" kB").parse().unwrap()
    };
    assert!(number("RssAnon") <= 1500, "{status}");
    assert_eq!(number("Threads"), 1);
    pod.finish().await;
}
