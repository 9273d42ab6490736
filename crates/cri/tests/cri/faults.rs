//! Tests in which containerd goes away, hangs, or is used by someone else.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use outrigger_cri::Limits;
use outrigger_runtime::{Runtime, RuntimeError};
use rustix::process::Signal;

use crate::containerd::Containerd;
use crate::proxy::Proxy;
use crate::relay::{Relay, Rule};
use crate::support::{Pod, connect, eventually, limits, log_text, runs_with};
use outrigger_testkit::trials;

trials!(
    a_restart_in_the_middle_of_a_pod_changes_nothing,
    calls_made_while_it_is_down_wait_for_it,
    what_is_removed_behind_our_back_is_told,
    a_call_that_hangs_is_cut,
    events_that_are_lost_do_no_harm,
    a_start_without_an_answer_is_not_made_twice,
);

async fn a_restart_in_the_middle_of_a_pod_changes_nothing() {
    let mut containerd = Containerd::start(None);
    let pod = Pod::on(connect(containerd.endpoint(), limits()).await, |_| {}).await;
    let mark = format!("short-{}", pod.id.0);
    let short = pod.start(pod.script(&format!("sleep 1; exit 6 # {mark}"))).await.expect("start");
    let spec = pod.script("trap 'exit 8' TERM; echo up; while :; do sleep 0.05; done");
    let log = spec.log_path.clone();
    let long = pod.start(spec).await.expect("start");
    pod.saw(&log, "up").await;
    let wait = tokio::spawn({
        let (runtime, id) = (pod.runtime.clone(), short.clone());
        async move { runtime.wait(&id).await }
    });
    containerd.halt(Signal::KILL);
    eventually("the short one ends while nobody looks", || !runs_with(&mark)).await;
    tokio::task::block_in_place(|| containerd.go_on());
    assert_eq!(wait.await.expect("a task").expect("exit").code, 6);
    assert_eq!(pod.exec(&long, "echo alive").await.output, b"alive\n");
    // Existing and new containers keep working, hints included.
    let begun = Instant::now();
    pod.runtime.terminate(&long, Duration::from_secs(30)).await.expect("terminate");
    assert_eq!(pod.wait(&long).await.code, 8);
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    assert_eq!(pod.output(pod.script("echo new")).await, "new\n");
    pod.finish().await;
    containerd.finish();
}

async fn calls_made_while_it_is_down_wait_for_it() {
    let mut containerd = Containerd::start(None);
    let dir = tempfile::tempdir().expect("a directory");
    let socket = PathBuf::from(containerd.endpoint().trim_start_matches("unix://"));
    let proxy = Proxy::start(dir.path(), socket);
    let pod = Pod::on(connect(proxy.endpoint(), limits()).await, |_| {}).await;
    containerd.halt(Signal::TERM);
    let refused = proxy.refused();
    let spec = pod.script("echo ran; exit 3");
    let log = spec.log_path.clone();
    let begin = async { pod.start(spec).await.expect("start") };
    let come_back = async {
        eventually("it is called while it is down", || proxy.refused() > refused).await;
        tokio::task::block_in_place(|| containerd.go_on());
    };
    let (id, ()) = tokio::join!(begin, come_back);
    assert_eq!(pod.wait(&id).await.code, 3);
    assert_eq!(log_text(&log), "ran\n", "once");
    // A probe that cannot be run is not a failure of the container.
    let id = pod.start(pod.script("sleep 1000")).await.expect("start");
    containerd.halt(Signal::TERM);
    match pod.try_exec(&id, "true", Duration::from_secs(1)).await {
        Err(RuntimeError::Other(text)) => assert!(text.contains("container runtime"), "{text}"),
        other => panic!("{other:?}"),
    }
    tokio::task::block_in_place(|| containerd.go_on());
    pod.finish().await;
    containerd.finish();
}

async fn what_is_removed_behind_our_back_is_told() {
    let pod = Pod::new().await;
    let id = pod.start(pod.script("sleep 1000")).await.expect("start");
    crate::support::remove_behind_our_back(&id).await;
    match pod.runtime.wait(&id).await {
        // It is random whether the kill or the removal is noticed first.
        Err(RuntimeError::NotFound { .. }) => {}
        Ok(exit) if exit.code == 137 => {}
        other => panic!("{other:?}"),
    }
    pod.runtime.terminate(&id, Duration::from_secs(1)).await.expect("terminate");
    pod.runtime.kill(&id).await.expect("kill");
    pod.runtime.remove_container(&id).await.expect("remove");
    pod.finish().await;
}

/// Limits short enough for a test.
fn hasty() -> Limits {
    Limits {
        question: Duration::from_millis(500),
        work: Duration::from_secs(1),
        patience: Duration::from_secs(2),
    }
}

async fn a_call_that_hangs_is_cut() {
    let dir = tempfile::tempdir().expect("a directory");
    let proxy = Proxy::start(dir.path(), crate::support::socket());
    let pod = Pod::on(connect(proxy.endpoint(), hasty()).await, |_| {}).await;
    let id = pod.start(pod.script("sleep 3; exit 2")).await.expect("start");
    proxy.stall(true);
    let begun = Instant::now();
    let error = pod.start(pod.script("true")).await.expect_err("nothing comes back");
    assert!(error.to_string().contains("no answer"), "{error}");
    let error = pod.runtime.kill(&id).await.expect_err("nothing comes back");
    assert!(error.to_string().contains("no answer"), "{error}");
    let done = pod.try_exec(&id, "true", Duration::from_secs(1)).await.expect("cut");
    assert_eq!(done.code, None);
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    // After the hang everything works again.
    proxy.stall(false);
    let code = pod.wait(&id).await.code;
    assert!([2, 137].contains(&code), "{code}");
    pod.finish().await;
}

async fn events_that_are_lost_do_no_harm() {
    let dir = tempfile::tempdir().expect("a directory");
    let proxy = Proxy::start(dir.path(), crate::support::socket());
    let limits = Limits { question: Duration::from_millis(500), ..limits() };
    let pod = Pod::on(connect(proxy.endpoint(), limits).await, |_| {}).await;
    let mark = format!("lost-{}", pod.id.0);
    let id = pod.start(pod.script(&format!("sleep 1; exit 9 # {mark}"))).await.expect("start");
    // The connection is silent while the container ends, and is abandoned. The next connection does not get
    // the event.
    proxy.stall(true);
    eventually("it ends", || !runs_with(&mark)).await;
    let connections = proxy.accepted();
    let wait = tokio::spawn({
        let (runtime, id) = (pod.runtime.clone(), id.clone());
        async move { runtime.wait(&id).await }
    });
    eventually("the silent connection is given up", || proxy.accepted() > connections).await;
    proxy.stall(false);
    assert_eq!(wait.await.expect("a task").expect("exit").code, 9);
    pod.finish().await;
}

/// The connection breaks in the middle of a start, before the runtime has received a call or after it has
/// carried it out. Nothing runs twice, and calls that can be retried are retried.
async fn a_start_without_an_answer_is_not_made_twice() {
    let dir = tempfile::tempdir().expect("a directory");
    let relay = Relay::start(dir.path(), crate::support::socket());
    let proxy = Proxy::start(dir.path(), relay.socket());
    let pod = Pod::on(connect(proxy.endpoint(), limits()).await, |_| {}).await;
    for (method, rule) in [
        ("CreateContainer", Rule::Hang),
        ("CreateContainer", Rule::Withhold),
        ("StartContainer", Rule::Hang),
        ("StartContainer", Rule::Withhold),
    ] {
        let what = format!("{method}, {rule:?}");
        let mut spec = pod.script("echo ran; sleep 0.1");
        let log = spec.log_path.clone();
        relay.once(method, rule);
        let (called, withheld) = (relay.count(method), relay.withheld(method));
        let begin = pod.start(spec.clone());
        let cut = async {
            let is_there = || match rule {
                Rule::Withhold => relay.withheld(method) > withheld,
                _ => relay.count(method) > called,
            };
            eventually("the call is under way", is_there).await;
            proxy.cut();
        };
        let (mut begun, ()) = tokio::join!(begin, cut);
        if let Err(RuntimeError::Other(text)) = &begun {
            assert!(text.contains("interrupted"), "{what}: {text}");
            pod.runtime.remove_container(&spec.id).await.expect("remove");
            spec.id.0 += "-again";
            begun = pod.start(spec).await;
        }
        match begun {
            Ok(id) => {
                assert_eq!(pod.wait(&id).await.code, 0, "{what}");
                eventually("its log", || log_text(&log) == "ran\n").await;
            }
            // There was already a process, so it must not be started again.
            Err(RuntimeError::Start(text)) => {
                assert_eq!((method, rule), ("StartContainer", Rule::Withhold), "{text}");
                assert!(text.contains("failed to start"), "{what}: {text}");
                assert!(log_text(&log).lines().count() <= 1, "{what}: {}", log_text(&log));
            }
            Err(error) => panic!("{what}: {error}"),
        }
    }
    pod.finish().await;
}
