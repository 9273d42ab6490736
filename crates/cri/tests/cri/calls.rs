//! Tests of single calls that fail, hang or lose their answer, and of runtimes that report less than
//! containerd does.

use std::sync::Arc;
use std::time::{Duration, Instant};

use outrigger_cri::{CriRuntime, Limits};
use outrigger_runtime::{ContainerId, ExecRequest, Exit, Runtime, RuntimeError};
use tokio::task::JoinHandle;

use crate::relay::{REFUSAL, Relay, Rule};
use crate::support::{
    DEADLINE, Pod, connect, eventually, ids, limits, log_text, runs_with, sandbox_spec, socket,
};
use outrigger_testkit::trials;

trials!(
    nothing_is_made_twice_when_an_answer_is_lost,
    a_call_that_hangs_is_made_again_and_nothing_twice,
    refusals_are_told,
    a_removal_that_is_refused_can_be_made_again,
    without_events_containers_are_asked_after,
    events_that_are_switched_off_are_not_begged_for,
    events_may_be_false_repeated_or_missing,
);

fn relay() -> (tempfile::TempDir, Relay) {
    let dir = tempfile::tempdir().expect("a directory");
    let relay = Relay::start(dir.path(), socket());
    (dir, relay)
}

const CALLS: [&str; 7] = [
    "RunPodSandbox",
    "CreateContainer",
    "StartContainer",
    "StopContainer",
    "RemoveContainer",
    "StopPodSandbox",
    "RemovePodSandbox",
];

/// Runs a pod from its creation to its removal. Everything in it is created only once.
async fn live(relay: &Relay, limits: Limits, what: &str) {
    let pod = Pod::on(connect(relay.endpoint(), limits).await, |_| {}).await;
    let spec = pod.script("trap 'exit 3' TERM; echo ran; while :; do sleep 0.05; done");
    let log = spec.log_path.clone();
    let id = pod.start(spec).await.expect(what);
    pod.saw(&log, "ran").await;
    let count = |kind: &str| tokio::task::block_in_place(|| ids(kind, &pod.id.0).len());
    assert_eq!((count("sandbox"), count("container")), (1, 1), "{what}");
    pod.runtime.terminate(&id, Duration::from_secs(30)).await.expect(what);
    assert_eq!(pod.wait(&id).await.code, 3, "{what}");
    assert_eq!(log_text(&log), "ran\n", "{what}");
    pod.runtime.remove_container(&id).await.expect(what);
    assert_eq!(count("container"), 0, "{what}");
    let name = pod.id.0.clone();
    pod.finish().await;
    assert_eq!(tokio::task::block_in_place(|| ids("sandbox", &name)), Vec::<String>::new(), "{what}");
}

async fn nothing_is_made_twice_when_an_answer_is_lost() {
    let (_dir, relay) = relay();
    for method in CALLS {
        relay.once(method, Rule::Lose);
        let before = relay.count(method);
        live(&relay, limits(), method).await;
        assert!(relay.count(method) > before, "{method} is not called");
    }
}

async fn a_call_that_hangs_is_made_again_and_nothing_twice() {
    let (_dir, relay) = relay();
    let limits = Limits { work: Duration::from_secs(3), ..limits() };
    let lives = ["RunPodSandbox", "CreateContainer", "StartContainer"].map(|method| {
        relay.once(method, Rule::Hang);
        method
    });
    live(&relay, limits, &lives.join(", ")).await;
    relay.once("RemovePodSandbox", Rule::Hang);
    live(&relay, limits, "RemovePodSandbox").await;
}

async fn refusals_are_told() {
    let (_dir, relay) = relay();
    let runtime = connect(relay.endpoint(), limits()).await;
    let dir = tempfile::tempdir().expect("a directory");
    relay.once("RunPodSandbox", Rule::Refuse);
    match runtime.create_sandbox(sandbox_spec(dir.path())).await {
        Err(RuntimeError::Create(text)) => assert!(text.contains(REFUSAL), "{text}"),
        other => panic!("{other:?}"),
    }
    let pod = Pod::on(runtime, |_| {}).await;
    relay.once("CreateContainer", Rule::Refuse);
    match pod.start(pod.script("true")).await {
        Err(RuntimeError::Create(text)) => assert!(text.contains(REFUSAL), "{text}"),
        other => panic!("{other:?}"),
    }
    relay.once("StartContainer", Rule::Refuse);
    match pod.start(pod.script("true")).await {
        Err(RuntimeError::Start(text)) => assert!(text.contains(REFUSAL), "{text}"),
        other => panic!("{other:?}"),
    }
    let id = pod.start(pod.script("sleep 1000")).await.expect("start");
    relay.once("ExecSync", Rule::Refuse);
    let command = vec!["true".to_owned()];
    let request = ExecRequest { command, timeout: Some(DEADLINE), output_limit: 10 };
    let error = pod.runtime.exec(&id, request).await.expect_err("refused");
    assert!(error.to_string().contains(REFUSAL), "{error}");
    relay.once("StopContainer", Rule::Refuse);
    let error = pod.runtime.kill(&id).await.expect_err("refused");
    assert!(error.to_string().contains(REFUSAL), "{error}");
    pod.runtime.kill(&id).await.expect("kill");
    assert_eq!(pod.wait(&id).await.code, 137);
    pod.finish().await;
}

async fn a_removal_that_is_refused_can_be_made_again() {
    let (_dir, relay) = relay();
    let pod = Pod::on(connect(relay.endpoint(), limits()).await, |_| {}).await;
    let id = pod.start(pod.script("true")).await.expect("start");
    pod.wait(&id).await;
    // Sometimes containerd refuses a request that it accepts a moment later.
    relay.once("RemoveContainer", Rule::Refuse);
    pod.runtime.remove_container(&id).await.expect("remove");
    relay.always("RemovePodSandbox", Rule::Refuse);
    let error = pod.runtime.remove_sandbox(&pod.id).await.expect_err("refused");
    assert!(error.to_string().contains(REFUSAL), "{error}");
    relay.lift("RemovePodSandbox");
    pod.finish().await;
}

/// Waits for a container's exit in another task.
fn waiting(runtime: &Arc<CriRuntime>, id: &ContainerId) -> JoinHandle<Result<Exit, RuntimeError>> {
    let (runtime, id) = (runtime.clone(), id.clone());
    tokio::spawn(async move { runtime.wait(&id).await })
}

/// Whether a runtime is known not to report exits.
async fn tells_nothing(runtime: &CriRuntime) -> bool {
    runtime.lacks().await.iter().any(|lack| lack.contains("does not report when containers end"))
}

/// Waits until a runtime is known not to report exits.
async fn is_known_to_tell_nothing(runtime: &CriRuntime) {
    let deadline = Instant::now() + DEADLINE;
    while !tells_nothing(runtime).await {
        assert!(Instant::now() < deadline, "the runtime is thought to tell when containers end");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A container of a runtime without events is polled, neither too often nor too rarely.
async fn is_asked_after(pod: &Pod, relay: &Relay) {
    let id = pod.start(pod.script("sleep 3; exit 4")).await.expect("start");
    let before = relay.count("ContainerStatus");
    assert_eq!(pod.wait(&id).await.code, 4);
    let asked = relay.count("ContainerStatus") - before;
    // Every 20 ms at first, every 150 ms in the end.
    assert!((5..=100).contains(&asked), "asked {asked} times");
}

async fn without_events_containers_are_asked_after() {
    let (_dir, relay) = relay();
    relay.always("Version", Rule::Rename);
    let pod = Pod::on(connect(relay.endpoint(), limits()).await, |_| {}).await;
    assert_eq!(pod.runtime.info().name, "some-other");
    // containerd 1.6 does not support CRI's events.
    eventually("events are asked for", || relay.count("GetContainerEvents") > 0).await;
    is_known_to_tell_nothing(&pod.runtime).await;
    is_asked_after(&pod, &relay).await;
    assert_eq!((relay.count("GetContainerEvents"), relay.count("Subscribe")), (1, 0));
    let spec = pod.script("trap 'exit 8' TERM; echo up; while :; do sleep 0.05; done");
    let log = spec.log_path.clone();
    let id = pod.start(spec).await.expect("start");
    pod.saw(&log, "up").await;
    let end = waiting(&pod.runtime, &id);
    pod.runtime.terminate(&id, Duration::from_secs(30)).await.expect("terminate");
    assert_eq!(end.await.expect("a task").expect("exit").code, 8);
    pod.finish().await;
}

/// CRI-O's answer when its events are disabled.
async fn events_that_are_switched_off_are_not_begged_for() {
    let (_dir, relay) = relay();
    relay.always("Version", Rule::Rename);
    relay.always("GetContainerEvents", Rule::End);
    let pod = Pod::on(connect(relay.endpoint(), limits()).await, |_| {}).await;
    is_known_to_tell_nothing(&pod.runtime).await;
    is_asked_after(&pod, &relay).await;
    let begged = relay.count("GetContainerEvents");
    assert!(begged <= 8, "begged {begged} times");
    pod.finish().await;
}

async fn events_may_be_false_repeated_or_missing() {
    let (_dir, relay) = relay();
    relay.always("Version", Rule::Rename);
    relay.always("GetContainerEvents", Rule::Tell);
    let pod = Pod::on(connect(relay.endpoint(), limits()).await, |_| {}).await;
    assert!(!tells_nothing(&pod.runtime).await);
    let spec = pod.script("trap 'exit 5' TERM; echo up; while :; do sleep 0.05; done");
    let (log, name) = (spec.log_path.clone(), spec.id.0.clone());
    let id = pod.start(spec).await.expect("start");
    pod.saw(&log, "up").await;
    let own = tokio::task::block_in_place(|| ids("container", &name)).pop().expect("it is there");
    let end = waiting(&pod.runtime, &id);
    for told in [&own, "nobody's", &own, ""] {
        relay.tell(told);
    }
    let before = relay.count("ContainerStatus");
    eventually("it is looked at", || relay.count("ContainerStatus") > before).await;
    assert!(!end.is_finished(), "it runs");
    // The exit is not reported.
    pod.exec(&id, "kill -TERM 1").await;
    assert_eq!(end.await.expect("a task").expect("exit").code, 5);
    relay.tell(&own);
    relay.tell(&own);
    assert_eq!(pod.wait(&id).await.code, 5, "once and for all");
    // After a report, the exit is noticed as soon as the runtime has stored it.
    let mark = format!("told-{}", pod.id.0);
    let spec = pod.script(&format!("sleep 0.3; exit 6 # {mark}"));
    let name = spec.id.0.clone();
    let id = pod.start(spec).await.expect("start");
    let own = tokio::task::block_in_place(|| ids("container", &name)).pop().expect("it is there");
    let end = waiting(&pod.runtime, &id);
    eventually("it ends", || !runs_with(&mark)).await;
    relay.tell(&own);
    assert_eq!(end.await.expect("a task").expect("exit").code, 6);
    pod.finish().await;
}
