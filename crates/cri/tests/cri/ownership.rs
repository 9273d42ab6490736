//! Tests of a node's pods. They outlive the node's process, and its next process adopts them.

use std::fs;
use std::path::Path;
use std::time::Duration;

use outrigger_runtime::{ExecRequest, NetworkMode, Runtime as _, RuntimeError, SandboxId};

use crate::relay::{Relay, Rule};
use crate::support::{
    DEADLINE, Pod, connect, endpoint, ids, limits, log_text, node, node_at, sandbox_spec, socket,
};

outrigger_testkit::trials![
    a_node_s_pods_are_adopted,
    a_start_that_is_under_way_is_waited_for,
    a_sandbox_that_was_made_in_vain_is_not_adopted,
    a_node_s_pods_are_nobody_else_s,
    what_is_damaged_can_be_removed,
];

/// The pod's directory, as in the tests' pods.
fn pod_dir(pod: &Pod) -> std::path::PathBuf {
    pod.scratch("x").parent().expect("a directory").to_owned()
}

async fn a_node_s_pods_are_adopted() {
    let state = tempfile::tempdir().expect("temporary directory");
    let pod = Pod::on(node(state.path()).await, |spec| spec.network = NetworkMode::Private).await;
    let mut spec = pod.script("trap 'exit 7' INT; while :; do sleep 0.05; done");
    spec.stop_signal = Some("SIGINT".to_owned());
    let runs = pod.start(spec).await.expect("start");
    let ended = pod.start(pod.script("exit 5")).await.expect("start");
    pod.wait(&ended).await;
    let waits = pod.runtime.create_container(&pod.id, pod.script("exit 3")).await.expect("create");
    let (id, before) = (pod.id.clone(), pod.sandbox.clone());
    let next = pod.script("exit 4");
    // The process ends: its locks are released and its connection is closed.
    let dir = pod.leave();

    let runtime = node(state.path()).await;
    assert_eq!(runtime.list_sandboxes().await.expect("list"), std::slice::from_ref(&id));
    assert_eq!(runtime.clean_orphans().await.expect("clean"), []);
    let (sandbox, containers) = runtime.adopt_sandbox(&id).await.expect("adopt");
    assert_eq!((sandbox.ips, sandbox.netns), (before.ips, before.netns));
    assert_eq!(containers.len(), 3, "{containers:?}");
    let of = |name| containers.iter().find(|container| container.id == name).expect("it is there");
    assert!(of(runs.clone()).started.is_some() && of(runs.clone()).exit.is_none(), "{containers:?}");
    assert_eq!(of(ended.clone()).exit.as_ref().map(|exit| exit.code), Some(5), "{containers:?}");
    assert!(of(waits.clone()).started.is_none() && of(waits).exit.is_none(), "{containers:?}");

    let command = vec!["true".to_owned()];
    let request = ExecRequest { command, timeout: Some(DEADLINE), output_limit: 100 };
    assert_eq!(runtime.exec(&runs, request).await.expect("exec").code, Some(0));
    assert_eq!(runtime.wait(&ended).await.expect("wait").code, 5);
    runtime.terminate(&runs, Duration::from_secs(20)).await.expect("terminate");
    assert_eq!(runtime.wait(&runs).await.expect("wait").code, 7, "its own signal was sent");
    // New containers can be created in the adopted sandbox.
    let next = runtime.create_container(&id, next).await.expect("create");
    runtime.start_container(&next).await.expect("start");
    assert_eq!(runtime.wait(&next).await.expect("wait").code, 4);
    runtime.remove_sandbox(&id).await.expect("remove");
    assert_eq!(runtime.list_sandboxes().await.expect("list"), []);
    drop(dir);
}

/// A previous process requested the start. The program runs, but the container's state does not show it yet.
async fn a_start_that_is_under_way_is_waited_for() {
    let state = tempfile::tempdir().expect("temporary directory");
    let pod = Pod::on(node(state.path()).await, |_| {}).await;
    let spec = pod.script("echo ran; exit 3");
    let log = spec.log_path.clone();
    let container = pod.runtime.create_container(&pod.id, spec).await.expect("create");
    let id = pod.id.clone();
    let dir = pod.leave();

    let sockets = tempfile::tempdir().expect("temporary directory");
    let relay = Relay::start(sockets.path(), socket());
    let runtime = node_at(state.path(), relay.endpoint()).await;
    assert!(runtime.lacks().await.iter().all(|lack| !lack.contains("report when containers end")));
    relay.once("ContainerStatus", Rule::Keep);
    let (_, adopted) = runtime.adopt_sandbox(&id).await.expect("adopt");
    assert!(adopted[0].started.is_none(), "{adopted:?}");
    relay.once("StartContainer", Rule::UnderWay);
    relay.once("ContainerStatus", Rule::Recall);
    let started = runtime.finish_start(&container).await.expect("it is known");
    assert!(started.is_some());
    assert_eq!(relay.count("StartContainer"), 2);
    assert_eq!(runtime.wait(&container).await.expect("wait").code, 3);
    assert_eq!(log_text(&log), "ran\n");
    runtime.remove_sandbox(&id).await.expect("remove");
    drop(dir);
}

/// A process is killed while its sandbox is being created, so it never gets the answer. The next process
/// creates another sandbox.
async fn a_sandbox_that_was_made_in_vain_is_not_adopted() {
    let state = tempfile::tempdir().expect("temporary directory");
    let unseen = Pod::on(node(state.path()).await, |_| {}).await;
    let (id, path) = (unseen.id.clone(), pod_dir(&unseen));
    let spec = unseen.script("sleep 1000");
    let dir = unseen.leave();
    fs::remove_file(path.join("cri-sandbox.id")).expect("it is written down");
    let ids = |kind: &str| tokio::task::block_in_place(|| ids(kind, &id.0));
    let unseen = ids("sandbox");

    let runtime = node(state.path()).await;
    let mut again = sandbox_spec(&path);
    again.id = id.clone();
    again.pod_uid = format!("uid-{}", id.0);
    runtime.create_sandbox(again).await.expect("create");
    let container = runtime.create_container(&id, spec).await.expect("create");
    runtime.start_container(&container).await.expect("start");
    assert_eq!((unseen.len(), ids("sandbox").len()), (1, 2));
    drop(runtime);

    let runtime = node(state.path()).await;
    let (_, adopted) = runtime.adopt_sandbox(&id).await.expect("adopt");
    assert_eq!(adopted.len(), 1);
    assert!(adopted[0].id == container && adopted[0].started.is_some(), "{adopted:?}");
    let left = ids("sandbox");
    assert!(left.len() == 1 && left != unseen, "{left:?}, not {unseen:?}");
    runtime.remove_sandbox(&id).await.expect("remove");
    assert_eq!(ids("sandbox"), Vec::<String>::new());
    drop(dir);
}

async fn a_node_s_pods_are_nobody_else_s() {
    let states = [(); 2].map(|()| tempfile::tempdir().expect("temporary directory"));
    let pod = Pod::on(node(states[0].path()).await, |_| {}).await;
    pod.start(pod.script("sleep 1000")).await.expect("start");
    let id = pod.id.clone();
    let _dir = pod.leave();
    let process = connect(endpoint(), limits()).await;
    let other = node(states[1].path()).await;
    for runtime in [&process, &other] {
        let removed = runtime.clean_orphans().await.expect("clean");
        assert!(!removed.contains(&id), "{removed:?}");
        assert!(!runtime.list_sandboxes().await.expect("list").contains(&id));
        let error = runtime.adopt_sandbox(&id).await.map(drop).expect_err("it is not theirs");
        assert!(matches!(error, RuntimeError::NotFound { kind: "sandbox", .. }), "{error}");
    }
    let runtime = node(states[0].path()).await;
    assert_eq!(runtime.adopt_sandbox(&id).await.expect("adopt").1.len(), 1);
    runtime.remove_sandbox(&id).await.expect("remove");
}

async fn what_is_damaged_can_be_removed() {
    let state = tempfile::tempdir().expect("temporary directory");
    let pod = Pod::on(node(state.path()).await, |_| {}).await;
    pod.start(pod.script("sleep 1000")).await.expect("start");
    let (id, path) = (pod.id.clone(), pod_dir(&pod));
    let _dir = pod.leave();
    fs::write(path.join("cri-sandbox.json"), "{").expect("write");
    let runtime = node(state.path()).await;
    let error = runtime.adopt_sandbox(&id).await.map(drop).expect_err("it is damaged");
    assert!(error.to_string().contains("cri-sandbox.json is damaged"), "{error}");
    runtime.remove_sandbox(&id).await.expect("remove");
    assert_eq!(runtime.list_sandboxes().await.expect("list"), []);
    let lost = SandboxId("never-made".to_owned());
    assert!(runtime.adopt_sandbox(&lost).await.is_err() && Path::new(&path).exists());
}
