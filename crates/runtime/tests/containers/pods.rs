//! Sandboxes: what containers of a pod share, and what is left when their owner dies.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use outrigger_runtime::{
    ExecRequest, Mount, NetworkMode, Propagation, Runtime as _, RuntimeError, SandboxId,
};

use crate::support::{
    DEADLINE, Pod, ROOTFS_VARIABLE, assert_nothing_left, eventually, log_text, rootfs, runtime, sandbox_spec,
};

crate::trials![
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
    a_shim_is_small,
    orphans_are_removed,
    a_pod_survives_its_owner,
    a_living_owner_s_pods_are_left_alone,
];

/// Inodes of a container's namespaces as the container sees them.
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
    // What holds the namespace tells nothing about the host.
    let holder: Vec<&str> = seen.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(holder, ["1", "pause"], "{seen}");
    // Who may trace it can make it call the kernel: it has the filter of the others.
    assert_eq!(pod.output(pod.script("grep Seccomp: /proc/1/status")).await, "Seccomp:\t2\n");
    assert_eq!(pod.output(pod.script("[ $$ != 1 ] && echo not first")).await, "not first\n");
    assert_eq!(pod.exec(&first, "kill -0 $(pidof sleep)").await.code, Some(0));
    pod.runtime.terminate(&first, Duration::ZERO).await.unwrap();
    let exit = pod.wait(&first).await;
    assert_eq!((exit.code, exit.signal), (143, Some(15)), "not being pid 1 it dies of TERM");
    // Orphans are reaped by the process that holds the namespace.
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
        assert!(matches!(&error, RuntimeError::Config(text) if text.contains(complaint)), "{error:?}");
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

/// The shim of a container, and the container's first process, as the shim wrote them down.
fn pids(pod: &Pod, container: &str) -> (i32, i32) {
    let text = fs::read(pod.dir.join("containers").join(container).join("state.json")).unwrap();
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

/// What the process that is killed does: makes a pod with two running containers, says so, and waits.
pub(crate) fn own_a_pod(state_dir: &Path) -> ! {
    let tokio = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    tokio.block_on(async {
        let pod = Pod::in_state_dir(state_dir, |spec| spec.share_pid = true).await;
        let mut spec = pod.script("exec sleep 31337");
        spec.resources.memory_limit_bytes = Some(64 << 20);
        pod.start(spec).await.unwrap();
        let mut spec = pod.script("while [ ! -e /state/go ]; do sleep 0.01; done; echo going; exit 9");
        spec.mounts = vec![Mount {
            source: state_dir.to_owned(),
            target: "/state".into(),
            read_only: true,
            propagation: Propagation::Private,
        }];
        pod.start(spec).await.unwrap();
        fs::write(state_dir.join("owner.tmp"), &pod.id.0).unwrap();
        fs::rename(state_dir.join("owner.tmp"), state_dir.join("owner")).unwrap();
        std::future::pending::<()>().await;
    });
    unreachable!()
}

/// Starts such a process and waits until its pod runs.
async fn owner(state_dir: &Path) -> (tokio::process::Child, SandboxId) {
    let owner = tokio::process::Command::new("/proc/self/exe")
        .arg("own-a-pod")
        .arg(state_dir)
        .env(ROOTFS_VARIABLE, rootfs())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let note = state_dir.join("owner");
    eventually("the pod runs", || note.exists()).await;
    let id = SandboxId(fs::read_to_string(&note).unwrap());
    eventually("the container's program runs", || has_sleeper(&id)).await;
    (owner, id)
}

async fn orphans_are_removed() {
    let state = tempfile::tempdir().unwrap();
    let (mut owner, id) = owner(state.path()).await;
    let runtime = runtime(state.path());
    assert_eq!(runtime.clean_orphans().await, [], "its owner lives");
    assert!(has_sleeper(&id));

    owner.kill().await.unwrap();
    assert_eq!(runtime.clean_orphans().await, std::slice::from_ref(&id));
    assert!(!has_sleeper(&id));
    assert_nothing_left(state.path(), &id);
    assert!(!runtime.pod_dir(&id).exists());
    assert_eq!(runtime.clean_orphans().await, []);
}

async fn a_pod_survives_its_owner() {
    let state = tempfile::tempdir().unwrap();
    let (mut owner, id) = owner(state.path()).await;
    let runtime = runtime(state.path());
    assert!(runtime.adopt_sandbox(&id).await.unwrap_err().to_string().contains("another running outrigger"));
    owner.kill().await.unwrap();
    // One container ends while nobody is there to hear it.
    fs::write(state.path().join("go"), "").unwrap();
    let ended = runtime.pod_dir(&id).join("containers/c1/state.json");
    eventually("the exit is on disk", || {
        fs::read_to_string(&ended).is_ok_and(|text| text.contains("\"code\":9"))
    })
    .await;

    let (sandbox, mut containers) = runtime.adopt_sandbox(&id).await.unwrap();
    assert_eq!(sandbox.id, id);
    containers.sort_by(|a, b| a.id.cmp(&b.id));
    let [first, second] = &containers[..] else { panic!("{containers:?}") };
    assert!(
        first.exit.is_none() && first.started.as_ref().is_some_and(|started| started.pid > 1),
        "{first:?}"
    );
    assert_eq!(second.exit.as_ref().map(|exit| exit.code), Some(9), "{second:?}");
    assert_eq!(log_text(&state.path().join("c1.log")), "going\n");

    assert_eq!(runtime.clean_orphans().await, [], "it has an owner again");
    let command = vec!["true".to_owned()];
    let request = ExecRequest { command, timeout: Some(DEADLINE), output_limit: 100 };
    assert_eq!(runtime.exec(&first.id, request).await.unwrap().code, Some(0));
    runtime.terminate(&first.id, Duration::ZERO).await.unwrap();
    assert_eq!(runtime.wait(&first.id).await.unwrap().code, 143);
    runtime.remove_sandbox(&id).await.unwrap();
    assert_nothing_left(state.path(), &id);
}

fn has_sleeper(sandbox: &SandboxId) -> bool {
    fs::read_dir("/proc").into_iter().flatten().flatten().any(|entry| {
        fs::read(entry.path().join("cmdline")).is_ok_and(|line| line == b"sleep\x0031337\x00")
            && fs::read_to_string(entry.path().join("cgroup")).is_ok_and(|text| text.contains(&sandbox.0))
    })
}

async fn a_living_owner_s_pods_are_left_alone() {
    let pod = Pod::new().await;
    let id = pod.start(pod.script("sleep 100")).await.unwrap();
    let other = runtime(pod.dir.parent().unwrap().parent().unwrap());
    assert_eq!(other.clean_orphans().await, []);
    let mut spec = sandbox_spec(&other);
    spec.id = pod.id.clone();
    spec.pod_dir = pod.dir.clone();
    let error = other.create_sandbox(spec).await.unwrap_err();
    assert!(error.to_string().contains("belongs to another running outrigger"), "{error}");
    assert_eq!(pod.exec(&id, "exit 0").await.code, Some(0));
    pod.finish().await;
}
