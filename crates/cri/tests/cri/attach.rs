//! Tests of commands with connected streams.

use outrigger_runtime::{
    ContainerId, ExecStreamsRequest, NetworkMode, Runtime as _, RuntimeError, WindowSize,
};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::time::Instant;

use crate::streams::{self, attach};
use crate::support::{DEADLINE, Pod};

outrigger_testkit::trials![
    streams_are_handed_over,
    a_terminal_is_the_container_s_own,
    a_command_that_is_let_go_is_killed,
    a_command_that_cannot_be_run_says_why,
    use_and_ports_are_told,
];

const SIZE: WindowSize = WindowSize { columns: 91, rows: 17 };

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
    let script = "stty size; tty; echo to $TERM > /dev/tty; id -u; \
        while [ \"$(stty size)\" != '5 40' ]; do sleep 0.05; done; echo resized; \
        while read line; do echo got $line; done; exit 4";
    let mut attached = pod.runtime.exec_streams(&id, attach(script, true, Some(SIZE))).await.unwrap();
    assert!(attached.stderr.is_none());
    let mut lines = BufReader::new(attached.stdout).lines();
    for expected in ["17 91", "/dev/pts/0", "to xterm", "33"] {
        assert_eq!(lines.next_line().await.unwrap().as_deref(), Some(expected));
    }
    (attached.resize)(WindowSize { columns: 40, rows: 5 });
    assert_eq!(lines.next_line().await.unwrap().as_deref(), Some("resized"));
    let stdin = attached.stdin.as_mut().unwrap();
    stdin.write_all(b"word\n").await.unwrap();
    while lines.next_line().await.unwrap().unwrap() != "got word" {}
    // Ctrl-D at the beginning of a line.
    stdin.write_all(b"\x04").await.unwrap();
    assert_eq!(attached.done.await.unwrap(), 4);
    pod.finish().await;
}

async fn a_command_that_is_let_go_is_killed() {
    let pod = Pod::new().await;
    let id = pod.start(pod.script("sleep 100")).await.unwrap();
    for terminal in [None, Some(SIZE)] {
        let request = attach("setsid sleep 71 & echo begun; sleep 72", true, terminal);
        let mut attached = pod.runtime.exec_streams(&id, request).await.unwrap();
        attached.stdout.read_exact(&mut [0; 5]).await.unwrap();
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

/// Waits until none of the commands above is left in the container.
async fn no_sleepers(pod: &Pod, id: &ContainerId) {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let done = pod.exec(id, "ps -o args | grep -c '^sleep 7[0-9]'").await;
        if done.output == b"0\n" {
            return;
        }
        assert!(Instant::now() < deadline, "{}", String::from_utf8_lossy(&done.output));
    }
}

async fn a_command_that_cannot_be_run_says_why() {
    let pod = Pod::new().await;
    let id = pod.start(pod.script("sleep 100")).await.unwrap();
    for terminal in [None, Some(SIZE)] {
        let request = ExecStreamsRequest { command: vec!["nothing".to_owned()], stdin: true, terminal };
        let error = match pod.runtime.exec_streams(&id, request).await {
            Ok(attached) => attached.done.await.unwrap_err(),
            Err(error) => error,
        };
        assert!(matches!(&error, RuntimeError::Start(_)), "{error:?}");
        assert!(error.to_string().contains("executable file not found in $PATH"), "{error}");
    }
    pod.runtime.kill(&id).await.unwrap();
    pod.wait(&id).await;
    assert!(
        pod.runtime.exec_streams(&id, attach("true", false, None)).await.is_err(),
        "the container is gone"
    );
    pod.finish().await;
}

async fn use_and_ports_are_told() {
    let pod = Pod::with(|spec| spec.network = NetworkMode::Private).await;
    let id = pod.start(pod.script(streams::BUSY_SERVER)).await.unwrap();
    streams::use_and_ports_are_told(&*pod.runtime, &pod.id, &id).await;
    pod.finish().await;
}
