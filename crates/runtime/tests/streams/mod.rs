//! What commands with connected streams do on every runtime.

use outrigger_runtime::{AttachRequest, ContainerId, Runtime, WindowSize};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};

/// A script to be run with its streams connected.
pub(crate) fn attach(script: &str, stdin: bool, terminal: Option<WindowSize>) -> AttachRequest {
    AttachRequest { command: ["sh", "-c", script].map(str::to_owned).to_vec(), stdin, terminal }
}

/// Input, output and errors go their ways whole, and so does the end of the input.
pub(crate) async fn are_handed_over(runtime: &impl Runtime, id: &ContainerId) {
    // `tee` reads on while it writes.
    let request = attach("echo ready >&2; tee /tmp/copy; exit 5", true, None);
    let mut attached = runtime.attach(id, request).await.unwrap();
    let (mut stdin, mut stderr) = (attached.stdin.unwrap(), BufReader::new(attached.stderr.unwrap()));
    let mut line = String::new();
    stderr.read_line(&mut line).await.unwrap();
    assert_eq!(line, "ready\n");
    let sent: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    let copy = sent.clone();
    let writer = tokio::spawn(async move {
        stdin.write_all(&copy).await.unwrap();
        // Dropped here: the end.
    });
    let mut received = Vec::new();
    attached.stdout.read_to_end(&mut received).await.unwrap();
    writer.await.unwrap();
    assert!(received == sent, "{} bytes of {}", received.len(), sent.len());
    assert_eq!(attached.done.await.unwrap(), 5);
    // Without input there is nothing to read, and without a reader nothing to wait for.
    let attached = runtime.attach(id, attach("cat; exit 6", false, None)).await.unwrap();
    assert!(attached.stdin.is_none());
    assert_eq!(attached.done.await.unwrap(), 6);
}
