//! A node's pods: they outlive its process, and the next one adopts them.

use std::fs;
use std::path::Path;
use std::time::Duration;

use outrigger_runtime::{ExecRequest, NetworkMode, Runtime as _, RuntimeError, SandboxId};

use crate::support::{DEADLINE, Pod, connect, endpoint, limits, node};

crate::trials![a_node_s_pods_are_adopted, a_node_s_pods_are_nobody_else_s, what_is_damaged_can_be_removed];

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
    // The process ends: its locks are free, its connection is closed.
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
    // New containers can be created in it.
    let next = runtime.create_container(&id, next).await.expect("create");
    runtime.start_container(&next).await.expect("start");
    assert_eq!(runtime.wait(&next).await.expect("wait").code, 4);
    runtime.remove_sandbox(&id).await.expect("remove");
    assert_eq!(runtime.list_sandboxes().await.expect("list"), []);
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
