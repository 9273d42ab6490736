//! Tests of the agent's public API, with a timer-based fake runtime and a paused clock.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use outrigger_lifecycle::{FeatureGates, PodInput, plan};
use outrigger_manifest::apply_defaults;
use serde_json::json;

use super::*;
use crate::event::AgentEvent;
use crate::options::{OnFailure, PodOptions, StatusUpdates};
use outrigger_runtime::NetworkMode;
use outrigger_testkit::fake::{FakeRuntime, Script};
use tokio::sync::oneshot;

fn new_pod(uid: &str, group: &str) -> NewPod {
    let spec = json!({"restartPolicy": "Never", "containers": [{"name": "main", "image": "image:1"}]});
    let pod = json!({"metadata": {"name": "p", "namespace": "ns"}, "spec": spec});
    let mut pod: Pod = serde_json::from_value(pod).unwrap();
    apply_defaults(&mut pod);
    let input = PodInput { pod, ..PodInput::default() };
    NewPod {
        uid: PodUid::new(uid),
        group: group.into(),
        plan: plan(&input, &FeatureGates::default()).unwrap().plan,
        input,
        companions: Arc::default(),
        options: Arc::new(PodOptions::new(NetworkMode::None)),
        status: StatusUpdates::Emitted,
        on_failure: OnFailure::Retry,
    }
}

fn prepared(agent: &Agent<FakeRuntime>, uid: &str, group: &str) -> PreparedPod {
    agent.prepare(new_pod(uid, group)).unwrap()
}

fn start(runtime: &Arc<FakeRuntime>, durability: Durability, dir: &tempfile::TempDir) -> Agent<FakeRuntime> {
    let state_dir = dir.path().canonicalize().unwrap();
    let options = AgentOptions { state_dir, durability, logs: LogLines::Kept };
    Agent::start(runtime.clone(), options).unwrap()
}

/// The next event that matches.
async fn until(events: &mut Events, test: impl Fn(&AgentEventKind) -> bool) -> AgentEvent {
    let found = async {
        loop {
            let event = events.next().await.expect("the agent is there");
            if test(&event.kind) {
                return event;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(600), found).await.expect("it comes true")
}

fn is_end(kind: &AgentEventKind) -> bool {
    matches!(kind, AgentEventKind::Ended { .. })
}

#[tokio::test(start_paused = true)]
async fn a_pod_goes_by_its_uid() {
    let dir = tempfile::tempdir().unwrap();
    let runtime = FakeRuntime::new([("main", Script::default())]);
    let agent = start(&runtime, Durability::Process, &dir);
    let mut events = agent.subscribe(Scope::All);
    let uid = PodUid::new("u-1");
    assert!(agent.state(&uid).is_none());
    agent.add(prepared(&agent, "u-1", "g")).unwrap();
    let refused = agent.add(prepared(&agent, "u-1", "g")).map(drop).unwrap_err();
    assert!(refused.to_string().contains("u-1"), "{refused}");
    until(&mut events, |kind| matches!(kind, AgentEventKind::Instance { id: Some(_), .. })).await;
    agent.remove(&uid);
    let state = agent.state(&uid).expect("one that runs is not removed");
    assert!(!state.over && state.snapshot.is_some());
    agent.stop(&uid, StopRequest::Delete { grace_ms: None });
    let end = until(&mut events, is_end).await;
    assert_eq!(end.pod, uid);
    assert!(matches!(end.kind, AgentEventKind::Ended { cause: EndCause::Finished, .. }), "{end:?}");
    assert!(agent.state(&uid).is_some_and(|state| state.over), "over and removed are two states");
    assert_eq!((agent.states().len(), agent.finished().len()), (1, 1));
    agent.remove(&uid);
    assert!(agent.state(&uid).is_none() && events.try_next().is_none(), "the end is the last event");
    assert_eq!(runtime.left(), 0);
}

/// A task that panics never reports its result. Its pod must not wait for it forever.
#[tokio::test(start_paused = true)]
async fn a_task_that_panics_ends_its_pod_and_no_other() {
    let dir = tempfile::tempdir().unwrap();
    // The panic happens once, while the first container is created.
    let broken = Script { refusals: vec![|| panic!("a fault of our own")], ..Script::job(100, 0) };
    let runtime = FakeRuntime::new([("main", broken)]);
    let agent = start(&runtime, Durability::Process, &dir);
    let mut events = agent.subscribe(Scope::All);
    agent.add(prepared(&agent, "u-1", "g")).unwrap();
    let end = until(&mut events, is_end).await;
    assert!(matches!(end.kind, AgentEventKind::Ended { cause: EndCause::WorkerFailed, .. }), "{end:?}");
    assert_eq!(runtime.left(), 0);
    assert!(runtime.calls().contains(&"remove sandbox".to_owned()), "{:?}", runtime.calls());
    agent.add(prepared(&agent, "u-2", "g")).unwrap();
    let end = until(&mut events, is_end).await;
    assert!(matches!(end.kind, AgentEventKind::Ended { cause: EndCause::Finished, .. }), "{end:?}");
}

#[tokio::test(start_paused = true)]
async fn a_subscription_is_about_its_group() {
    let dir = tempfile::tempdir().unwrap();
    let runtime = FakeRuntime::new([("main", Script::job(100, 0))]);
    let agent = start(&runtime, Durability::Process, &dir);
    let (mut all, mut one) = (agent.subscribe(Scope::All), agent.subscribe(Scope::Group("a".into())));
    agent.add(prepared(&agent, "a-1", "a")).unwrap();
    agent.add(prepared(&agent, "b-1", "b")).unwrap();
    until(&mut all, is_end).await;
    until(&mut all, is_end).await;
    let mut seen = Vec::new();
    while let Some(event) = one.try_next() {
        seen.push(event.pod);
    }
    assert!(!seen.is_empty() && seen.iter().all(|pod| *pod == PodUid::new("a-1")), "{seen:?}");
}

#[tokio::test(start_paused = true)]
async fn another_agent_goes_on_with_what_was_written_down() {
    let dir = tempfile::tempdir().unwrap();
    let runtime = FakeRuntime::new([("main", Script::default())]);
    let first = start(&runtime, Durability::StateDir, &dir);
    let mut events = first.subscribe(Scope::All);
    first.add(prepared(&first, "u-1", "g")).unwrap();
    until(&mut events, |kind| matches!(kind, AgentEventKind::Instance { id: Some(_), .. })).await;
    drop(first);
    // The stream ends once the workers are gone.
    while events.next().await.is_some() {}
    let second = start(&runtime, Durability::StateDir, &dir);
    assert_eq!(second.saved(), [PodUid::new("u-1")]);
    let mut events = second.subscribe(Scope::All);
    second.add(prepared(&second, "u-1", "g")).unwrap();
    second.resumed().await;
    second.remove_unknown().await;
    let count = |call: &str| runtime.calls().iter().filter(|c| *c == call).count();
    assert_eq!((count("sandbox p"), count("start main#0")), (1, 1), "{:?}", runtime.calls());
    second.stop(&PodUid::new("u-1"), StopRequest::Delete { grace_ms: None });
    until(&mut events, is_end).await;
    assert_eq!(runtime.left(), 0);
    let third = start(&runtime, Durability::StateDir, &dir);
    assert!(third.add_finished(prepared(&third, "u-1", "g")).is_ok(), "its end can still be read");
    assert!(third.state(&PodUid::new("u-1")).is_some_and(|state| state.over));
    third.remove(&PodUid::new("u-1"));
    assert_eq!(third.saved(), []);
}

/// An agent is killed while it stops its pods for a shutdown of the machine, and the machine keeps running.
#[tokio::test(start_paused = true)]
async fn a_shutdown_that_another_agent_began_is_finished_and_the_pod_starts_again() {
    let dir = tempfile::tempdir().unwrap();
    let script = Script { stops_in: Some(Duration::from_secs(5)), ..Script::default() };
    let runtime = FakeRuntime::new([("main", script)]);
    let first = start(&runtime, Durability::StateDir, &dir);
    let mut events = first.subscribe(Scope::All);
    let is_running = |kind: &AgentEventKind| matches!(kind, AgentEventKind::Instance { id: Some(_), .. });
    first.add(prepared(&first, "u-1", "g")).unwrap();
    until(&mut events, is_running).await;
    first.stop(&PodUid::new("u-1"), StopRequest::NodeShutdown { grace_ms: 30_000 });
    let is_stopping = |kind: &AgentEventKind| match kind {
        AgentEventKind::Observed(snapshot) => snapshot.observation.stop.is_some(),
        _ => false,
    };
    until(&mut events, is_stopping).await;
    drop(first);
    while events.next().await.is_some() {}
    let second = start(&runtime, Durability::StateDir, &dir);
    let mut events = second.subscribe(Scope::All);
    second.add(prepared(&second, "u-1", "g")).unwrap();
    second.resumed().await;
    second.remove_unknown().await;
    until(&mut events, |kind| {
        assert!(!is_end(kind), "its workload must not take it for ended");
        is_running(kind)
    })
    .await;
    let calls = runtime.calls();
    let at = |call: &str| calls.iter().position(|c| c == call);
    let second_sandbox = calls.iter().rposition(|c| c == "sandbox p");
    assert!(at("exit main") < second_sandbox && at("exit main").is_some(), "{calls:?}");
    assert_eq!(calls.iter().filter(|c| *c == "sandbox p").count(), 2, "{calls:?}");
    second.stop(&PodUid::new("u-1"), StopRequest::Delete { grace_ms: None });
    until(&mut events, is_end).await;
    assert_eq!(runtime.left(), 0);
    let third = start(&runtime, Durability::StateDir, &dir);
    assert!(third.add_finished(prepared(&third, "u-1", "g")).is_ok(), "its end can be read");
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_changed_where_it_runs() {
    let dir = tempfile::tempdir().unwrap();
    let runtime = FakeRuntime::new([("main", Script::default())]);
    let agent = start(&runtime, Durability::Process, &dir);
    let mut events = agent.subscribe(Scope::All);
    let uid = PodUid::new("u-1");
    let with = |change: fn(&mut Pod)| {
        let mut new = new_pod("u-1", "g");
        change(&mut new.input.pod);
        new.plan = plan(&new.input, &FeatureGates::default()).unwrap().plan;
        new
    };
    assert!(agent.update(prepared(&agent, "u-1", "g")).is_err(), "there is no such pod yet");
    agent.add(prepared(&agent, "u-1", "g")).unwrap();
    let is_running = |kind: &AgentEventKind| matches!(kind, AgentEventKind::Instance { id: Some(_), .. });
    until(&mut events, is_running).await;
    let other_image = with(|pod| {
        pod.spec.iter_mut().for_each(|spec| spec.containers[0].image = Some("image:2".into()));
    });
    agent.update(agent.prepare(other_image).unwrap()).unwrap();
    let updated = until(&mut events, |kind| matches!(kind, AgentEventKind::Updated { .. })).await;
    let AgentEventKind::Updated { pod, .. } = updated.kind else { unreachable!() };
    assert_eq!(pod.containers()[0].image.as_deref(), Some("image:2"));
    until(&mut events, is_running).await;
    let other_name = with(|pod| {
        pod.spec.iter_mut().for_each(|spec| spec.containers[0].name = "other".into());
    });
    assert!(agent.update(agent.prepare(other_name).unwrap()).is_err(), "that would be another pod");
    let (reply, answer) = oneshot::channel();
    agent.restart(&uid, Some(0), Box::new(|result| reply.send(result).unwrap()));
    assert_eq!(answer.await, Ok(Ok(())));
    until(&mut events, is_running).await;
    let (reply, answer) = oneshot::channel();
    agent.restart(&PodUid::new("u-2"), None, Box::new(|result| reply.send(result).unwrap()));
    assert!(answer.await.is_err(), "there is no such pod");
    agent.stop(&uid, StopRequest::Delete { grace_ms: None });
    until(&mut events, is_end).await;
    let count = |call: &str| runtime.calls().iter().filter(|c| *c == call).count();
    assert_eq!((count("sandbox p"), runtime.left()), (1, 0), "{:?}", runtime.calls());
}
