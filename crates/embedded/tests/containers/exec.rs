//! Tests of commands that run inside containers.

use std::time::{Duration, Instant};

use outrigger_runtime::{ExecRequest, ExecStreamsRequest, Runtime as _, RuntimeError, WindowSize};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};

use crate::streams::{self, attach};
use outrigger_testkit::embedded::{DEADLINE, Pod};

outrigger_testkit::trials![
    code_and_output_come_back,
    the_container_s_environment_holds,
    a_missing_command_is_an_error,
    output_is_cut_at_the_limit,
    the_timeout_kills,
    a_dropped_call_kills,
    commands_killed_at_any_moment_leave_nothing,
    background_children_do_not_hold_it_back,
    it_ends_with_the_container,
    many_at_once,
    streams_are_handed_over,
    a_terminal_is_the_container_s_own,
    a_command_that_is_let_go_is_killed,
    a_command_that_cannot_be_attached_says_why,
];

async fn code_and_output_come_back() {
    let pod = Pod::new().await;
    let id = pod.start(pod.script("sleep 100")).await.unwrap();
    let done = pod.exec(&id, "echo out; echo err >&2; exit 3").await;
    assert_eq!((done.code, String::from_utf8(done.output).unwrap().as_str()), (Some(3), "out\nerr\n"));
    let done = pod.exec(&id, "kill -9 $$").await;
    assert_eq!(done.code, Some(137));
    pod.finish().await;
}

async fn the_container_s_environment_holds() {
    let pod = Pod::new().await;
    let mut spec = pod.script("echo $$ > /tmp/pid; sleep 100");
    spec.env = vec![("GREETING".to_owned(), "hello".to_owned())];
    spec.working_dir = Some("/tmp".to_owned());
    let id = pod.start(spec).await.unwrap();
    let done = pod
        .exec(&id, "while [ ! -s pid ]; do sleep 0.01; done; echo $GREETING $(pwd) $(cat pid) $(hostname)")
        .await;
    assert_eq!(String::from_utf8(done.output).unwrap(), "hello /tmp 1 test-pod\n");
    pod.finish().await;
}

async fn a_missing_command_is_an_error() {
    let pod = Pod::new().await;
    let id = pod.start(pod.script("sleep 100")).await.unwrap();
    let request = ExecRequest { command: vec!["/no/such".to_owned()], timeout: None, output_limit: 100 };
    let error = pod.runtime.exec(&id, request).await.unwrap_err();
    assert!(matches!(&error, RuntimeError::Start(_)), "{error:?}");
    assert_eq!(error.to_string(), "exec \"/no/such\": no such file or directory");
    pod.runtime.kill(&id).await.unwrap();
    assert_eq!(pod.wait(&id).await.code, 137);
    let request = ExecRequest { command: vec!["true".to_owned()], timeout: None, output_limit: 100 };
    assert!(pod.runtime.exec(&id, request).await.is_err(), "the container is gone");
    pod.finish().await;
}

async fn output_is_cut_at_the_limit() {
    let pod = Pod::new().await;
    let id = pod.start(pod.script("sleep 100")).await.unwrap();
    let command = ["head", "-c", "1000000", "/dev/zero"].map(str::to_owned).to_vec();
    let request = ExecRequest { command, timeout: Some(DEADLINE), output_limit: 1000 };
    let done = pod.runtime.exec(&id, request).await.unwrap();
    assert_eq!((done.code, done.output.len()), (Some(0), 1000));
    pod.finish().await;
}

async fn the_timeout_kills() {
    let pod = Pod::new().await;
    let id = pod.start(pod.script("sleep 100")).await.unwrap();
    let command =
        ["sh", "-c", "echo begun; sleep 77 & setsid sleep 78 & sleep 79"].map(str::to_owned).to_vec();
    // An OCI runtime on a busy machine may need longer to start the command.
    for timeout in [0.3, 1.0, 4.0, 16.0].map(Duration::from_secs_f64) {
        let begun = Instant::now();
        let request = ExecRequest { command: command.clone(), timeout: Some(timeout), output_limit: 1000 };
        let done = pod.runtime.exec(&id, request).await.unwrap();
        assert_eq!(done.code, None);
        assert!(begun.elapsed() < timeout + DEADLINE / 4, "{:?}", begun.elapsed());
        no_sleepers(&pod, &id).await;
        if done.output == b"begun\n" {
            return pod.finish().await;
        }
        assert_eq!(done.output, b"");
    }
    panic!("the command never began");
}

/// Commands that are killed at any moment, most of them while they are being started, leave nothing behind
/// and affect nothing else.
async fn commands_killed_at_any_moment_leave_nothing() {
    let pod = Pod::new().await;
    let id = pod.start(pod.script("sleep 100")).await.unwrap();
    let begun = Instant::now();
    assert_eq!(pod.exec(&id, "true").await.code, Some(0));
    // The steps cover twice the time that one command takes to start.
    let step = begun.elapsed() / 12;
    for round in 0..8 {
        let calls: Vec<_> = (0..3)
            .map(|number| {
                let (runtime, id) = (pod.runtime.clone(), id.clone());
                let command =
                    ["sh", "-c", "setsid sleep 74 & sleep 75 & sleep 76"].map(str::to_owned).to_vec();
                let timeout = Some(step * (round * 3 + number));
                tokio::spawn(async move {
                    runtime.exec(&id, ExecRequest { command, timeout, output_limit: 100 }).await
                })
            })
            .collect();
        // Other containers start and end in the meantime.
        assert_eq!(pod.output(pod.script("echo fine")).await, "fine\n");
        for call in calls {
            assert_eq!(call.await.unwrap().unwrap().code, None);
        }
        assert_eq!(pod.exec(&id, "exit 5").await.code, Some(5));
    }
    no_sleepers(&pod, &id).await;
    pod.finish().await;
}

async fn a_dropped_call_kills() {
    let pod = Pod::new().await;
    let id = pod.start(pod.script("sleep 100")).await.unwrap();
    let command = ["sh", "-c", "touch /tmp/begun; sleep 77"].map(str::to_owned).to_vec();
    let (runtime, container) = (pod.runtime.clone(), id.clone());
    let call = tokio::spawn(async move {
        runtime.exec(&container, ExecRequest { command, timeout: None, output_limit: 1000 }).await
    });
    loop {
        if pod.exec(&id, "test -e /tmp/begun").await.code == Some(0) {
            break;
        }
    }
    call.abort();
    no_sleepers(&pod, &id).await;
    pod.finish().await;
}

/// Waits until none of the commands above is left in the container.
async fn no_sleepers(pod: &Pod, id: &outrigger_runtime::ContainerId) {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let done = pod.exec(id, "ps -o args | grep -c 'sleep 7[0-9]'").await;
        if done.output == b"1\n" || done.output == b"0\n" {
            // The list may contain grep itself.
            return;
        }
        assert!(Instant::now() < deadline, "{}", String::from_utf8_lossy(&pod.exec(id, "ps").await.output));
    }
}

async fn background_children_do_not_hold_it_back() {
    let pod = Pod::new().await;
    let id = pod.start(pod.script("sleep 100")).await.unwrap();
    let begun = Instant::now();
    let done = pod.exec(&id, "sleep 50 & echo done").await;
    assert_eq!((done.code, done.output.as_slice()), (Some(0), b"done\n".as_slice()));
    assert!(begun.elapsed() < Duration::from_secs(5));
    pod.finish().await;
}

async fn it_ends_with_the_container() {
    let pod = Pod::new().await;
    let id = pod.start(pod.script("sleep 100")).await.unwrap();
    let (runtime, container) = (pod.runtime.clone(), id.clone());
    let call = tokio::spawn(async move {
        let command = vec!["sleep".to_owned(), "100".to_owned()];
        runtime.exec(&container, ExecRequest { command, timeout: None, output_limit: 1000 }).await
    });
    loop {
        if pod.exec(&id, "[ $(ps -o args | grep -c 'sleep 10[0]') = 2 ]").await.code == Some(0) {
            break;
        }
    }
    pod.runtime.kill(&id).await.unwrap();
    assert_eq!(pod.wait(&id).await.code, 137);
    match call.await.unwrap() {
        Ok(done) => assert_eq!(done.code, Some(137)),
        Err(error) => assert!(matches!(error, RuntimeError::Other(_)), "{error:?}"),
    }
    pod.finish().await;
}

async fn many_at_once() {
    let pod = Pod::new().await;
    let id = pod.start(pod.script("sleep 100")).await.unwrap();
    let calls: Vec<_> = (0..20)
        .map(|number| {
            let (runtime, id) = (pod.runtime.clone(), id.clone());
            tokio::spawn(async move {
                let command = vec!["sh".to_owned(), "-c".to_owned(), format!("echo {number}; exit {number}")];
                let request = ExecRequest { command, timeout: Some(DEADLINE), output_limit: 100 };
                let done = runtime.exec(&id, request).await.unwrap();
                assert_eq!(done.code, Some(number));
                assert_eq!(done.output, format!("{number}\n").into_bytes());
            })
        })
        .collect();
    for call in calls {
        call.await.unwrap();
    }
    pod.finish().await;
}

async fn streams_are_handed_over() {
    let pod = Pod::new().await;
    let id = pod.start(pod.script("sleep 100")).await.unwrap();
    streams::are_handed_over(&*pod.runtime, &id).await;
    pod.finish().await;
}

async fn a_terminal_is_the_container_s_own() {
    let pod = Pod::new().await;
    let mut spec = pod.script("sleep 100");
    spec.identity.run_as_user = Some(33);
    let id = pod.start(spec).await.unwrap();
    let size = WindowSize { columns: 91, rows: 17 };
    // A signal would interrupt a `read`, which looks like the end of the input. The script therefore waits
    // for the signal first.
    let script = "trap 'stty size; resized=1' WINCH; stty size; tty; echo to $TERM >/dev/tty; id -u; \
        echo to $(tty) > $(tty); while [ -z \"$resized\" ]; do sleep 0.05; done; \
        while read line; do echo got $line; done";
    let mut attached = pod.runtime.exec_streams(&id, attach(script, true, Some(size))).await.unwrap();
    assert!(attached.stderr.is_none());
    let mut lines = BufReader::new(attached.stdout).lines();
    for expected in ["17 91", "/dev/pts/0", "to xterm", "33", "to /dev/pts/0"] {
        assert_eq!(lines.next_line().await.unwrap().as_deref(), Some(expected));
    }
    (attached.resize)(WindowSize { columns: 40, rows: 5 });
    let stdin = attached.stdin.as_mut().unwrap();
    stdin.write_all(b"word\n").await.unwrap();
    let mut seen = Vec::new();
    while !(seen.iter().any(|l| l == "5 40") && seen.iter().any(|l| l == "got word")) {
        seen.push(lines.next_line().await.unwrap().unwrap());
    }
    // Ctrl-D at the beginning of a line.
    stdin.write_all(b"\x04").await.unwrap();
    assert_eq!(attached.done.await.unwrap(), 0);
    pod.finish().await;
}

async fn a_command_that_is_let_go_is_killed() {
    let pod = Pod::new().await;
    let id = pod.start(pod.script("sleep 100")).await.unwrap();
    for terminal in [None, Some(WindowSize { columns: 80, rows: 24 })] {
        let request = attach("setsid sleep 71 & echo begun; sleep 72", true, terminal);
        let mut attached = pod.runtime.exec_streams(&id, request).await.unwrap();
        let mut begun = [0; 5];
        attached.stdout.read_exact(&mut begun).await.unwrap();
        drop(attached);
        no_sleepers(&pod, &id).await;
    }
    let mut attached =
        pod.runtime.exec_streams(&id, attach("echo begun; sleep 73", false, None)).await.unwrap();
    attached.stdout.read_exact(&mut [0; 5]).await.unwrap();
    pod.runtime.kill(&id).await.unwrap();
    assert_eq!(attached.done.await.unwrap(), 137, "it goes with the container");
    pod.finish().await;
}

async fn a_command_that_cannot_be_attached_says_why() {
    let pod = Pod::new().await;
    let id = pod.start(pod.script("sleep 100")).await.unwrap();
    for terminal in [None, Some(WindowSize { columns: 80, rows: 24 })] {
        let request = ExecStreamsRequest { command: vec!["nothing".to_owned()], stdin: true, terminal };
        let error = match pod.runtime.exec_streams(&id, request).await {
            Ok(attached) => attached.done.await.unwrap_err(),
            Err(error) => error,
        };
        assert!(matches!(&error, RuntimeError::Start(_)), "{error:?}");
        assert_eq!(error.to_string(), "exec \"nothing\": executable file not found in $PATH");
    }
    pod.finish().await;
}
