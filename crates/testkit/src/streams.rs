//! Tests of commands with connected streams, for every runtime.

use outrigger_runtime::{ContainerId, ExecStreamsRequest, Runtime, RuntimeError, SandboxId, WindowSize};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};

/// A request to run a script with its streams connected.
pub fn attach(script: &str, stdin: bool, terminal: Option<WindowSize>) -> ExecStreamsRequest {
    ExecStreamsRequest { command: ["sh", "-c", script].map(str::to_owned).to_vec(), stdin, terminal }
}

/// Checks that input, output and errors are complete and separate, and that the end of the input is passed
/// on.
pub async fn are_handed_over(runtime: &impl Runtime, id: &ContainerId) {
    // `tee` keeps reading while it writes.
    let request = attach("echo ready >&2; tee /tmp/copy; exit 5", true, None);
    let mut attached = runtime.exec_streams(id, request).await.unwrap();
    let (mut stdin, mut stderr) = (attached.stdin.unwrap(), BufReader::new(attached.stderr.unwrap()));
    let mut line = String::new();
    stderr.read_line(&mut line).await.unwrap();
    assert_eq!(line, "ready\n");
    let sent: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    let copy = sent.clone();
    let writer = tokio::spawn(async move {
        stdin.write_all(&copy).await.unwrap();
        // The input is dropped here, which ends it.
    });
    let mut received = Vec::new();
    attached.stdout.read_to_end(&mut received).await.unwrap();
    writer.await.unwrap();
    assert!(received == sent, "{} bytes of {}", received.len(), sent.len());
    assert_eq!(attached.done.await.unwrap(), 5);
    // Without input, `cat` ends immediately. A command does not wait for a reader of its output.
    let attached = runtime.exec_streams(id, attach("cat; exit 6", false, None)).await.unwrap();
    assert!(attached.stdin.is_none());
    assert_eq!(attached.done.await.unwrap(), 6);
}

/// Checks that a container reports its usage, and that a port of its pod can be reached. Its program serves
/// `hello` on port 8080 and uses CPU.
pub async fn use_and_ports_are_told(runtime: &impl Runtime, sandbox: &SandboxId, id: &ContainerId) {
    let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(20);
    loop {
        let stats = runtime.stats(id).await.unwrap();
        let uses_cpu = stats.cpu.is_some_and(|cpu| cpu > std::time::Duration::from_millis(20));
        if uses_cpu && stats.memory_bytes.is_some_and(|bytes| bytes > 1000) {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "{stats:?}");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let mut said = String::new();
    while said != "hello\n" {
        assert!(tokio::time::Instant::now() < deadline, "{said:?}");
        said.clear();
        if let Ok(mut stream) = runtime.port_forward(sandbox, 8080).await {
            stream.write_all(b"\n").await.unwrap();
            let _ = stream.read_to_string(&mut said).await;
        }
    }
    let error = runtime.port_forward(sandbox, 8081).await.unwrap_err();
    assert!(error.to_string().contains("port 8081 of the pod: connection refused"), "{error}");
    let nobody = SandboxId("nobody".to_owned());
    assert!(matches!(runtime.port_forward(&nobody, 80).await, Err(RuntimeError::NotFound { .. })));
    assert!(runtime.stats(&ContainerId("nobody".to_owned())).await.is_err());
}

/// The program of [`use_and_ports_are_told`].
pub const BUSY_SERVER: &str =
    "while :; do echo hello | nc -l -p 8080; done & i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; wait";
