//! Tests of attaching to a container's own program, of its resource usage, and of the ports of its pod.

use std::time::Duration;

use outrigger_runtime::{Runtime as _, WindowSize};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};

use crate::streams;
use outrigger_testkit::embedded::{DEADLINE, Pod, eventually, log_text};

outrigger_testkit::trials![
    input_and_output_are_the_program_s,
    a_terminal_can_be_attached_to,
    whoever_does_not_read_is_cut_off,
    letting_go_leaves_the_program_alone,
    use_and_ports_are_told,
];

async fn input_and_output_are_the_program_s() {
    let pod = Pod::new().await;
    let mut spec = pod.script("read a; echo got $a; echo oh >&2; read b; echo last $b; exit 6");
    spec.stdin = true;
    let log = spec.log_path.clone();
    let id = pod.start(spec).await.unwrap();
    let mut attached = pod.runtime.attach(&id).await.unwrap();
    let mut stdin = attached.stdin.take().unwrap();
    stdin.write_all(b"one\n").await.unwrap();
    let mut stdout = BufReader::new(attached.stdout);
    let mut line = String::new();
    stdout.read_line(&mut line).await.unwrap();
    assert_eq!(line, "got one\n");
    // Another client sees the output from now on.
    let mut other = pod.runtime.attach(&id).await.unwrap();
    drop(stdin);
    other.stdin.take().unwrap().write_all(b"two\n").await.unwrap();
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).await.unwrap();
    assert_eq!(rest, "last two\n");
    rest.clear();
    other.stdout.read_to_string(&mut rest).await.unwrap();
    assert_eq!(rest, "last two\n");
    rest.clear();
    attached.stderr.unwrap().read_to_string(&mut rest).await.unwrap();
    assert_eq!(rest, "oh\n");
    assert_eq!((attached.done.await.unwrap(), other.done.await.unwrap()), (6, 6));
    assert_eq!(log_text(&log).lines().count(), 3, "the log has it all");
    assert!(pod.runtime.attach(&id).await.is_err(), "it has ended");
    pod.finish().await;
}

async fn a_terminal_can_be_attached_to() {
    let pod = Pod::new().await;
    let mut spec = pod.script(
        "while [ \"$(stty size 2>/dev/null)\" != '5 40' ]; do sleep 0.02; done; echo resized; read a; echo got $a; exit 2",
    );
    (spec.stdin, spec.tty) = (true, true);
    let id = pod.start(spec).await.unwrap();
    let mut attached = pod.runtime.attach(&id).await.unwrap();
    assert!(attached.stderr.is_none());
    (attached.resize)(WindowSize { columns: 40, rows: 5 });
    let mut lines = BufReader::new(attached.stdout).lines();
    assert_eq!(lines.next_line().await.unwrap().as_deref(), Some("resized"));
    attached.stdin.as_mut().unwrap().write_all(b"it\n").await.unwrap();
    while lines.next_line().await.unwrap().unwrap() != "got it" {}
    assert_eq!(attached.done.await.unwrap(), 2);
    // A container without input has no input to connect to.
    let mut spec = pod.script("sleep 1000");
    spec.tty = true;
    let id = pod.start(spec).await.unwrap();
    assert!(pod.runtime.attach(&id).await.unwrap().stdin.is_none());
    pod.finish().await;
}

async fn whoever_does_not_read_is_cut_off() {
    let pod = Pod::new().await;
    let spec = pod.script(
        "while [ ! -e /tmp/go ]; do sleep 0.01; done; head -c 8000000 /dev/zero; echo; echo done; sleep 1000",
    );
    let log = spec.log_path.clone();
    let id = pod.start(spec).await.unwrap();
    let mut attached = pod.runtime.attach(&id).await.unwrap();
    pod.exec(&id, "touch /tmp/go").await;
    // The program is not blocked.
    eventually("the program goes on", || log_text(&log).lines().next_back() == Some("done")).await;
    let mut received = Vec::new();
    attached.stdout.read_to_end(&mut received).await.unwrap();
    assert!(received.len() < 3_000_000, "{} bytes were kept", received.len());
    pod.finish().await;
}

async fn letting_go_leaves_the_program_alone() {
    let pod = Pod::new().await;
    let mut spec = pod.script("read a; echo still there; exit 3");
    spec.stdin = true;
    let id = pod.start(spec).await.unwrap();
    drop(pod.runtime.attach(&id).await.unwrap());
    let early = tokio::time::timeout(Duration::from_millis(200), pod.runtime.wait(&id)).await;
    assert!(early.is_err(), "its input has not ended");
    let attached = pod.runtime.attach(&id).await.unwrap();
    attached.stdin.unwrap().write_all(b"go\n").await.unwrap();
    let exit = tokio::time::timeout(DEADLINE, pod.runtime.wait(&id)).await.unwrap().unwrap();
    assert_eq!(exit.code, 3);
    pod.finish().await;
}

async fn use_and_ports_are_told() {
    let pod = Pod::new().await;
    for limited in [false, true] {
        let mut spec = pod.script(streams::BUSY_SERVER);
        spec.resources.memory_limit_bytes = limited.then_some(256 << 20);
        let id = pod.start(spec).await.unwrap();
        streams::use_and_ports_are_told(&*pod.runtime, &pod.id, &id).await;
        pod.runtime.kill(&id).await.unwrap();
        pod.wait(&id).await;
    }
    pod.finish().await;
}
