//! Tests of starting, waiting, stopping and commands.

use std::time::{Duration, Instant, SystemTime};

use outrigger_runtime::{ContainerId, Runtime, RuntimeError};

use crate::support::{DEADLINE, Pod, eventually, log_text};
use outrigger_testkit::trials;

trials!(
    an_exit_is_reported_with_code_times_and_log,
    an_exit_is_seen_at_once,
    the_stop_signal_comes_first,
    a_pod_may_choose_the_stop_signal,
    a_kill_does_not_wait_for_a_stop_under_way,
    what_cannot_be_run_is_a_start_error,
    calls_that_are_given_up_leave_nothing,
    commands_run_inside_and_end_in_time,
    a_given_up_command_is_killed,
    several_wait_for_one_end,
    names_are_free_again_after_removal,
);

async fn an_exit_is_reported_with_code_times_and_log() {
    let pod = Pod::new().await;
    let before = SystemTime::now();
    let (exit, log) = pod.run(pod.script("echo out; echo err >&2; sleep 0.2; exit 7")).await;
    assert_eq!((exit.code, exit.oom_killed), (7, false));
    assert!(exit.started_at >= before && exit.started_at < exit.finished_at, "{exit:?}");
    assert!(exit.finished_at <= SystemTime::now(), "{exit:?}");
    // The order of the two streams is random.
    assert!(["out\nerr\n", "err\nout\n"].contains(&log.as_str()), "{log}");
    pod.finish().await;
}

/// G-01: no polling interval between an exit and its consequences.
async fn an_exit_is_seen_at_once() {
    let pod = Pod::new().await;
    let mut late = Vec::new();
    for _ in 0..5 {
        let id = pod.start(pod.script("sleep 0.3")).await.expect("start");
        let exit = pod.wait(&id).await;
        late.push(SystemTime::now().duration_since(exit.finished_at).unwrap_or_default());
    }
    late.sort();
    assert!(late[2] < Duration::from_millis(500), "half of the exits were seen later than {:?}", late[2]);
    pod.finish().await;
}

async fn the_stop_signal_comes_first() {
    let pod = Pod::new().await;
    let spec = pod.script("trap 'echo asked; exit 3' TERM; echo ready; while :; do sleep 0.05; done");
    let log = spec.log_path.clone();
    let id = pod.start(spec).await.expect("start");
    pod.saw(&log, "ready").await;
    pod.runtime.terminate(&id, Duration::from_secs(30)).await.expect("terminate");
    assert_eq!(pod.wait(&id).await.code, 3);
    assert_eq!(log_text(&log), "ready\nasked\n");
    // A container that has already ended is not an error.
    pod.runtime.terminate(&id, Duration::from_secs(1)).await.expect("terminate again");
    pod.runtime.kill(&id).await.expect("kill again");
    pod.finish().await;
}

async fn a_pod_may_choose_the_stop_signal() {
    let pod = Pod::new().await;
    let mut spec = pod.script("trap 'echo one; exit 4' USR1; echo ready; while :; do sleep 0.05; done");
    spec.stop_signal = Some("SIGUSR1".to_owned());
    let log = spec.log_path.clone();
    let id = pod.start(spec).await.expect("start");
    pod.saw(&log, "ready").await;
    pod.runtime.terminate(&id, Duration::from_secs(30)).await.expect("terminate");
    assert_eq!(pod.wait(&id).await.code, 4);
    assert_eq!(log_text(&log), "ready\none\n");
    let mut spec = pod.script("true");
    spec.stop_signal = Some("SIGNOT".to_owned());
    assert!(matches!(pod.start(spec).await, Err(RuntimeError::Config(_))));
    pod.finish().await;
}

async fn a_kill_does_not_wait_for_a_stop_under_way() {
    let pod = Pod::new().await;
    let spec = pod.script("trap 'echo no' TERM; echo ready; while :; do sleep 0.05; done");
    let log = spec.log_path.clone();
    let id = pod.start(spec).await.expect("start");
    pod.saw(&log, "ready").await;
    pod.runtime.terminate(&id, Duration::from_secs(600)).await.expect("terminate");
    pod.saw(&log, "no").await;
    let begun = Instant::now();
    pod.runtime.kill(&id).await.expect("kill");
    assert_eq!(pod.wait(&id).await.code, 137);
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    pod.finish().await;
}

/// R5.47: exit 128, `StartError`.
async fn what_cannot_be_run_is_a_start_error() {
    let pod = Pod::new().await;
    for program in ["/no/such/program", "nosuchprogram", "/etc/passwd"] {
        let mut spec = pod.script("");
        spec.command = Some(vec![program.to_owned()]);
        let id = spec.id.clone();
        match pod.start(spec).await {
            Err(RuntimeError::Start(text)) => assert!(text.contains(program), "{text}"),
            other => panic!("{program}: {other:?}"),
        }
        pod.runtime.remove_container(&id).await.expect("remove");
    }
    pod.finish().await;
}

async fn calls_that_are_given_up_leave_nothing() {
    let pod = Pod::new().await;
    for patience in [0, 2, 10, 30, 80, 150] {
        let spec = pod.script("sleep 1000");
        let id = spec.id.clone();
        let given_up = tokio::time::timeout(Duration::from_millis(patience), pod.start(spec)).await;
        pod.runtime.kill(&id).await.expect("kill");
        pod.runtime.remove_container(&id).await.expect("remove");
        match pod.runtime.wait(&id).await {
            Err(RuntimeError::NotFound { .. }) => {}
            other => panic!("after {patience} ms ({given_up:?}): {other:?}"),
        }
    }
    pod.finish().await;
}

async fn commands_run_inside_and_end_in_time() {
    let pod = Pod::new().await;
    let mut spec = pod.script("sleep 1000");
    spec.env = vec![("WHO".to_owned(), "me".to_owned())];
    let id = pod.start(spec).await.expect("start");
    let done = pod.exec(&id, "echo $WHO; echo bad >&2; exit 5").await;
    assert_eq!((done.code, &done.output[..]), (Some(5), &b"me\nbad\n"[..]));
    let long = pod.exec(&id, "yes | head -c 100000").await;
    assert_eq!(long.output.len(), 10_000, "the rest is cut off");
    for timeout in [Duration::from_millis(300), Duration::from_secs(1)] {
        let begun = Instant::now();
        let done = pod.try_exec(&id, "sleep 500", timeout).await.expect("exec");
        assert_eq!(done.code, None, "it did not end by itself");
        assert!(begun.elapsed() < timeout + Duration::from_secs(5), "{:?}", begun.elapsed());
    }
    eventually_alone(&pod, &id).await;
    let command = vec!["/no/such/program".to_owned()];
    let request = outrigger_runtime::ExecRequest { command, timeout: Some(DEADLINE), output_limit: 10 };
    let error = pod.runtime.exec(&id, request).await.expect_err("no such program");
    assert!(error.to_string().contains("/no/such/program"), "{error}");
    pod.finish().await;
}

/// Waits until only the container's own process is running in it.
async fn eventually_alone(pod: &Pod, id: &ContainerId) {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let processes = pod.exec(id, "ps | grep 'sleep 500' | grep -v grep | wc -l").await;
        if processes.output == b"0\n" {
            return;
        }
        assert!(Instant::now() < deadline, "commands are left: {processes:?}");
    }
}

async fn a_given_up_command_is_killed() {
    let pod = Pod::new().await;
    let id = pod.start(pod.script("sleep 1000")).await.expect("start");
    let exec = pod.try_exec(&id, "touch /tmp/begun; sleep 500", DEADLINE);
    let begun = async {
        loop {
            if pod.exec(&id, "ls /tmp").await.output == b"begun\n" {
                return;
            }
        }
    };
    tokio::select! {
        done = exec => panic!("{done:?}"),
        () = begun => {}
    }
    eventually_alone(&pod, &id).await;
    pod.finish().await;
}

async fn several_wait_for_one_end() {
    let pod = Pod::new().await;
    let spec = pod.script("sleep 0.5; exit 4");
    let id = pod.runtime.create_container(&pod.id, spec).await.expect("create");
    // Two tasks wait before the start, and one of them is dropped.
    let runtime = pod.runtime.clone();
    let first = tokio::spawn({
        let (runtime, id) = (runtime.clone(), id.clone());
        async move { runtime.wait(&id).await }
    });
    let second = tokio::spawn({
        let id = id.clone();
        async move { runtime.wait(&id).await }
    });
    pod.runtime.start_container(&id).await.expect("start");
    first.abort();
    let exit = second.await.expect("a task").expect("exit");
    assert_eq!(exit.code, 4);
    assert_eq!(pod.wait(&id).await, exit, "and again, long after");
    pod.finish().await;
}

async fn names_are_free_again_after_removal() {
    let pod = Pod::new().await;
    let log = {
        let spec = pod.script("echo 1");
        let (id, log) = (spec.id.clone(), spec.log_path.clone());
        for _ in 0..2 {
            pod.output(spec.clone()).await;
            pod.runtime.remove_container(&id).await.expect("remove");
            pod.runtime.remove_container(&id).await.expect("remove twice");
        }
        log
    };
    eventually("the log stays", || log_text(&log) == "1\n1\n").await;
    pod.finish().await;
}
