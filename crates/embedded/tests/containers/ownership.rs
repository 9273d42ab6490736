//! Tests of the ownership of pods: what a process leaves when it dies, and adoption by a node that restarts.

use std::ffi::OsStr;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use outrigger_embedded::EmbeddedRuntime;
use outrigger_runtime::{
    Adopted, ContainerId, ExecRequest, Mount, NetworkMode, Propagation, PublishedPort, Runtime as _,
    RuntimeError, SandboxId,
};

use outrigger_testkit::embedded::{
    DEADLINE, Pod, ROOTFS_VARIABLE, assert_nothing_left, eventually, log_text, node, rootfs, runtime,
    sandbox_spec,
};

outrigger_testkit::trials![
    orphans_are_removed,
    a_killed_process_s_pods_are_gone_with_it,
    a_living_owner_s_pods_are_left_alone,
    a_node_s_pods_survive_it,
    a_node_s_pods_are_nobody_else_s,
    what_a_node_does_not_adopt_it_removes,
    published_ports_are_opened_again,
    damaged_files_cost_no_other_pod,
    a_shim_that_does_not_answer_is_given_up,
    a_machine_that_was_started_again_has_no_sandboxes,
    many_pods_are_adopted_at_once,
];

/// The process that is killed: creates a pod with two running containers, reports it, and waits.
pub(crate) fn own_a_pod(owner: &OsStr, state_dir: &Path) -> ! {
    let tokio = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    tokio.block_on(async {
        let runtime = if owner == "node" { node(state_dir).await } else { runtime(state_dir) };
        let pod = Pod::on(runtime, state_dir, |spec| spec.share_pid = true).await;
        let mut spec = pod.script("exec sleep 31337");
        spec.resources.memory_limit_bytes = Some(64 << 20);
        pod.start(spec).await.unwrap();
        // This is not the state directory itself, because its mounts cannot be id-mapped.
        let sign = state_dir.join("sign");
        fs::create_dir(&sign).unwrap();
        let mut spec = pod.script("while [ ! -e /state/go ]; do sleep 0.01; done; echo going; exit 9");
        spec.mounts = vec![Mount {
            source: sign,
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
async fn owner(kind: &str, state_dir: &Path) -> (tokio::process::Child, SandboxId) {
    let owner = tokio::process::Command::new("/proc/self/exe")
        .args(["own-a-pod", kind])
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

fn has_sleeper(sandbox: &SandboxId) -> bool {
    fs::read_dir("/proc").into_iter().flatten().flatten().any(|entry| {
        fs::read(entry.path().join("cmdline")).is_ok_and(|line| line == b"sleep\x0031337\x00")
            && fs::read_to_string(entry.path().join("cgroup")).is_ok_and(|text| text.contains(&sandbox.0))
    })
}

async fn orphans_are_removed() {
    let state = tempfile::tempdir().unwrap();
    let (mut owner, id) = owner("process", state.path()).await;
    let runtime = runtime(state.path());
    assert_eq!(runtime.clean_orphans().await, [], "its owner lives");
    assert!(has_sleeper(&id));

    kill_guards(state.path());
    owner.kill().await.unwrap();
    assert_eq!(runtime.clean_orphans().await, std::slice::from_ref(&id));
    assert!(!has_sleeper(&id));
    assert_nothing_left(state.path(), &id);
    assert!(!runtime.pod_dir(&id).exists());
    assert_eq!(runtime.clean_orphans().await, []);
}

/// The processes that would stop the pods of killed processes in a state directory.
fn guards(state_dir: &Path) -> Vec<i32> {
    let state_dir = state_dir.to_str().unwrap();
    let is_guard = |line: &str| line.contains("\0guard\0") && line.contains(state_dir);
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter(|process| {
            fs::read_to_string(process.path().join("cmdline")).is_ok_and(|line| is_guard(&line))
        })
        .filter_map(|process| process.file_name().to_str()?.parse().ok())
        .collect()
}

fn kill_guards(state_dir: &Path) {
    let guards = guards(state_dir);
    assert!(!guards.is_empty());
    for guard in guards {
        let guard = rustix::process::Pid::from_raw(guard).unwrap();
        rustix::process::kill_process(guard, rustix::process::Signal::KILL).unwrap();
    }
}

async fn a_killed_process_s_pods_are_gone_with_it() {
    let state = tempfile::tempdir().unwrap();
    let (mut owner, id) = owner("process", state.path()).await;
    owner.kill().await.unwrap();
    let dir = state.path().join("pods").join(&id.0);
    eventually("nothing is left of the pod", || !dir.exists()).await;
    assert!(!has_sleeper(&id));
    assert_nothing_left(state.path(), &id);
    eventually("nobody waits for anything", || guards(state.path()).is_empty()).await;
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
    for error in [other.adopt_sandbox(&pod.id).await.map(drop), other.remove_sandbox(&pod.id).await] {
        assert!(error.unwrap_err().to_string().contains("belongs to another running outrigger"));
    }
    assert_eq!(other.list_sandboxes().await.unwrap(), []);
    assert_eq!(pod.runtime.list_sandboxes().await.unwrap(), std::slice::from_ref(&pod.id));
    assert_eq!(pod.exec(&id, "exit 0").await.code, Some(0));
    pod.finish().await;
}

async fn a_node_s_pods_survive_it() {
    let state = tempfile::tempdir().unwrap();
    let (mut owner, id) = owner("node", state.path()).await;
    owner.kill().await.unwrap();
    // One container ends while no process is watching.
    fs::write(state.path().join("sign/go"), "").unwrap();
    let runtime = node(state.path()).await;
    let ended = runtime.pod_dir(&id).join("ns/containers/c1/state.json");
    eventually("the exit is on disk", || {
        fs::read_to_string(&ended).is_ok_and(|text| text.contains("\"code\":9"))
    })
    .await;

    assert_eq!(runtime.list_sandboxes().await.unwrap(), std::slice::from_ref(&id));
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
    let command = vec!["sh".to_owned(), "-c".to_owned(), "ps | grep -c 31337".to_owned()];
    let request = ExecRequest { command, timeout: Some(DEADLINE), output_limit: 100 };
    assert_eq!(runtime.exec(&first.id, request).await.unwrap().code, Some(0));
    let lost = tokio::time::timeout(Duration::from_millis(50), runtime.sandbox_lost(&id));
    assert!(lost.await.is_err(), "the pause process lives");
    runtime.terminate(&first.id, Duration::ZERO).await.unwrap();
    assert_eq!(runtime.wait(&first.id).await.unwrap().code, 143);
    runtime.remove_container(&first.id).await.unwrap();
    runtime.remove_sandbox(&id).await.unwrap();
    assert_nothing_left(state.path(), &id);
    assert!(!runtime.pod_dir(&id).exists());
    assert_eq!(runtime.list_sandboxes().await.unwrap(), []);
}

async fn a_node_s_pods_are_nobody_else_s() {
    let state = tempfile::tempdir().unwrap();
    let (mut owner, id) = owner("node", state.path()).await;
    let taken = outrigger_runtime::NodeIdentity::open(state.path()).unwrap_err();
    assert!(taken.to_string().contains(&format!("process {}", owner.id().unwrap())), "{taken}");
    let other = runtime(state.path());
    for is_up in [true, false] {
        if !is_up {
            owner.kill().await.unwrap();
        }
        assert_eq!(other.clean_orphans().await, [], "up: {is_up}");
        let refused = [other.adopt_sandbox(&id).await.map(drop), other.remove_sandbox(&id).await];
        for error in refused {
            assert!(error.unwrap_err().to_string().contains("belongs to"), "up: {is_up}");
        }
        assert!(has_sleeper(&id), "up: {is_up}");
    }
    let runtime = node(state.path()).await;
    assert_eq!(runtime.clean_orphans().await, [], "it is for the node to say what becomes of its pods");
    assert!(has_sleeper(&id));
    runtime.remove_sandbox(&id).await.unwrap();
    assert_nothing_left(state.path(), &id);
}

async fn what_a_node_does_not_adopt_it_removes() {
    let state = tempfile::tempdir().unwrap();
    let (mut owner, id) = owner("node", state.path()).await;
    owner.kill().await.unwrap();
    let runtime = node(state.path()).await;
    // The directory of an incomplete pod, and one that is not a pod.
    let half = SandboxId("half".to_owned());
    runtime.claim_pod_dir(&half, &runtime.pod_dir(&half)).unwrap();
    fs::create_dir(state.path().join("pods/no-pod")).unwrap();
    let mut listed = runtime.list_sandboxes().await.unwrap();
    listed.sort();
    let mut expected = [half.clone(), id.clone()];
    expected.sort();
    assert_eq!(listed, expected);
    let lost = runtime.adopt_sandbox(&half).await.unwrap_err();
    assert!(matches!(lost, RuntimeError::NotFound { kind: "sandbox", .. }), "{lost}");
    for id in &expected {
        runtime.remove_sandbox(id).await.unwrap();
        assert!(!runtime.pod_dir(id).exists(), "{id}");
    }
    assert!(!has_sleeper(&id));
    assert_nothing_left(state.path(), &id);
    let lost = runtime.adopt_sandbox(&SandboxId("../x".to_owned())).await.unwrap_err();
    assert!(matches!(lost, RuntimeError::Config(_)), "{lost}");
}

/// A pod that a node has left. The runtime is dropped as if its process had ended, and nothing is stopped.
async fn left_by_a_node(
    state: &Path,
    script: &str,
    change: impl FnOnce(&mut outrigger_runtime::SandboxSpec),
) -> SandboxId {
    let pod = Pod::on(node(state).await, state, change).await;
    let mut spec = pod.script(script);
    spec.id = container(&pod.id, 0);
    pod.start(spec).await.unwrap();
    let id = pod.id.clone();
    drop(pod);
    id
}

/// The id of a container. No two containers of a runtime have the same one.
fn container(pod: &SandboxId, number: usize) -> ContainerId {
    ContainerId(format!("{pod}-{number}"))
}

async fn adopt(runtime: &EmbeddedRuntime, id: &SandboxId) -> Vec<Adopted> {
    runtime.adopt_sandbox(id).await.unwrap().1
}

fn answer(address: SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(DEADLINE))?;
    stream.write_all(b"\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

async fn published_ports_are_opened_again() {
    let state = tempfile::tempdir().unwrap();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let host = free.local_addr().unwrap();
    drop(free);
    let script = "while true; do echo hello | nc -l -p 80; done";
    let id = left_by_a_node(state.path(), script, |spec| {
        spec.ports = vec![PublishedPort { host, pod_port: 80, udp: false }];
        spec.network = NetworkMode::Private;
    })
    .await;
    eventually("the port is closed with its node", || TcpStream::connect(host).is_err()).await;

    // The port is in use. The pod is adopted anyway, and answers as soon as the port is free.
    let thief = std::net::TcpListener::bind(host).unwrap();
    let runtime = node(state.path()).await;
    adopt(&runtime, &id).await;
    drop(thief);
    let runs = tokio::task::spawn_blocking(move || {
        let deadline = Instant::now() + DEADLINE;
        while answer(host).ok().as_deref() != Some("hello\n") {
            assert!(Instant::now() < deadline, "the pod does not answer");
        }
    });
    runs.await.unwrap();
    runtime.remove_sandbox(&id).await.unwrap();
    assert_nothing_left(state.path(), &id);
}

async fn damaged_files_cost_no_other_pod() {
    let state = tempfile::tempdir().unwrap();
    let mut pods = Vec::new();
    for _ in 0..4 {
        pods.push(left_by_a_node(state.path(), "exec sleep 31337", |_| {}).await);
    }
    let [whole, no_sandbox, no_state, no_mark] = &pods[..] else { unreachable!() };
    let runtime = node(state.path()).await;
    fs::write(runtime.pod_dir(no_sandbox).join("sandbox.json"), "{\"id\":").unwrap();
    let name = container(no_state, 0).0;
    fs::write(runtime.pod_dir(no_state).join("ns/containers").join(name).join("state.json"), "").unwrap();
    fs::write(runtime.pod_dir(no_mark).join("node.json"), "\0\0\0").unwrap();
    assert_eq!(runtime.list_sandboxes().await.unwrap().len(), 4);

    let error = runtime.adopt_sandbox(no_sandbox).await.unwrap_err();
    assert!(error.to_string().contains("sandbox.json is damaged"), "{error}");
    for id in [whole, no_state, no_mark] {
        let containers = adopt(&runtime, id).await;
        let [only] = &containers[..] else { panic!("{containers:?}") };
        assert!(only.started.is_some() && only.exit.is_none(), "{only:?}");
        assert!(has_sleeper(id));
    }
    for id in &pods {
        runtime.remove_sandbox(id).await.unwrap();
        assert!(!has_sleeper(id));
    }
    pods.iter().for_each(|id| assert_nothing_left(state.path(), id));
}

async fn a_shim_that_does_not_answer_is_given_up() {
    let state = tempfile::tempdir().unwrap();
    let id = left_by_a_node(state.path(), "exec sleep 31337", |_| {}).await;
    let runtime = node(state.path()).await;
    let dir = runtime.pod_dir(&id).join("ns/containers").join(container(&id, 0).0);
    let state_json = || -> serde_json::Value {
        serde_json::from_slice(&fs::read(dir.join("state.json")).unwrap()).unwrap()
    };
    // The shim reports a start before it writes it to disk.
    eventually("the start is written down", || state_json()["started"].is_object()).await;
    let shim = state_json()["shim"]["pid"].as_i64().unwrap() as i32;
    let shim = rustix::process::Pid::from_raw(shim).unwrap();
    rustix::process::kill_process(shim, rustix::process::Signal::STOP).unwrap();
    let containers = adopt(&runtime, &id).await;
    let [only] = &containers[..] else { panic!("{containers:?}") };
    assert_eq!(only.exit.as_ref().map(|exit| exit.code), Some(137), "{only:?}");
    eventually("the container is gone", || !has_sleeper(&id)).await;
    runtime.remove_sandbox(&id).await.unwrap();
    assert_nothing_left(state.path(), &id);
}

async fn a_machine_that_was_started_again_has_no_sandboxes() {
    let state = tempfile::tempdir().unwrap();
    for network in [NetworkMode::None, NetworkMode::Host] {
        let pod = Pod::on(node(state.path()).await, state.path(), |spec| {
            spec.network = network;
            spec.host_ipc = network == NetworkMode::Host;
        })
        .await;
        let id = pod.id.clone();
        drop(pod);
        // The state after a reboot: files without mounts.
        let runtime = node(state.path()).await;
        let ns = runtime.pod_dir(&id).join("ns");
        rustix::mount::unmount(&ns, rustix::mount::UnmountFlags::DETACH).unwrap();
        let lost = runtime.adopt_sandbox(&id).await.unwrap_err();
        assert!(matches!(lost, RuntimeError::NotFound { kind: "sandbox", .. }), "{lost}");
        runtime.remove_sandbox(&id).await.unwrap();
        assert_nothing_left(state.path(), &id);
    }
}

/// The variable with the number of pods, for manual measurements.
const PODS_VARIABLE: &str = "OUTRIGGER_TEST_PODS";

async fn many_pods_are_adopted_at_once() {
    let many = std::env::var(PODS_VARIABLE).ok().map(|text| text.parse::<usize>().unwrap());
    let state = tempfile::tempdir().unwrap();
    let runtime = node(state.path()).await;
    let mut pods = Vec::new();
    for _ in 0..many.unwrap_or(8) {
        let pod = Pod::on(runtime.clone(), state.path(), |_| {}).await;
        for (number, script) in ["exec sleep 31337", "sleep 1000"].into_iter().enumerate() {
            let mut spec = pod.script(script);
            spec.id = container(&pod.id, number);
            pod.start(spec).await.unwrap();
        }
        pods.push(pod.id.clone());
    }
    drop(runtime);
    let runtime = node(state.path()).await;
    let began = Instant::now();
    let mut adoptions = tokio::task::JoinSet::new();
    for id in runtime.list_sandboxes().await.unwrap() {
        let runtime = runtime.clone();
        adoptions.spawn(async move { runtime.adopt_sandbox(&id).await.unwrap().1 });
    }
    let adopted = adoptions.join_all().await;
    let took = began.elapsed();
    assert_eq!(adopted.len(), pods.len());
    assert!(adopted.iter().flatten().all(|container| container.exit.is_none()));
    if many.is_some() {
        println!("{} pods of two containers were adopted in {took:?}", pods.len());
        assert!(took < Duration::from_secs(1), "{took:?}");
    }
    for id in &pods {
        runtime.remove_sandbox(id).await.unwrap();
    }
    pods.iter().for_each(|id| assert_nothing_left(state.path(), id));
}
