//! Runs a command in a container, with its streams connected to a client.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use outrigger_runtime::{ExecStreamsRequest, Input, Output, ProcessStreams, Runtime, RuntimeError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::registry::PodRegistry;
use super::server::Client;
use super::wire::{Answer, ExecStart, Frame, Kind, WINDOW, Word};

/// How long output is sent after the end of a command. Later output comes from a child that still runs.
const QUIET: Duration = Duration::from_millis(100);

/// How long the runtime may take to report the end of a container and of the commands in it.
const MOMENT: Duration = Duration::from_secs(1);

/// Maximum number of output bytes in a frame.
const CHUNK: usize = 32 << 10;
/// Number of frames queued for a client.
const QUEUE: usize = 4;

/// Ctrl-D twice, because the first one may only end an incomplete line.
const END_OF_INPUT: &[u8] = b"\x04\x04";
/// How often Ctrl-D is sent, and the interval.
const END_PRESSED: u32 = 40;
/// An incomplete line is terminated after this many.
const UNFINISHED: u32 = 4;
const END_PAUSE: Duration = Duration::from_millis(250);

/// Exit codes of commands that could not be run, as in shells.
const NOT_FOUND: i32 = 127;
const NOT_RUN: i32 = 126;
/// Exit code of a process killed by SIGKILL.
const KILLED: i32 = 137;

/// Runs a command for a client. It is killed when the client disconnects.
pub(super) async fn run<R: Runtime>(
    runtime: &R,
    registry: &PodRegistry,
    start: ExecStart,
    mut client: Client,
) -> io::Result<()> {
    let ExecStart { pod, container, command, stdin, terminal } = start;
    let id = match registry.instance(pod, container) {
        Ok(id) => id,
        Err(e) => return client.answer(&Answer::Refused(e.to_string())).await,
    };
    let has_terminal = terminal.is_some();
    let request = ExecStreamsRequest { command, stdin, terminal };
    let attached = tokio::select! {
        attached = runtime.exec_streams(&id, request) => attached,
        () = client.frames.end() => return Ok(()),
    };
    let attached = match attached {
        Ok(attached) => attached,
        Err(e) => return client.answer(&ended(Err(e))).await,
    };
    let Client { mut frames, mut write } = client;
    let ProcessStreams { stdin, stdout, stderr, resize, done } = attached;
    let (chunks, input) = mpsc::unbounded_channel();
    let room = AtomicUsize::new(WINDOW);
    let listen = async {
        while let Ok(Some(frame)) = frames.next().await {
            match frame.kind {
                Kind::Stdin => {
                    let left = room.load(Ordering::Relaxed).checked_sub(frame.content.len());
                    // A client that exceeds the window would use up the memory.
                    let Some(left) = left else { return };
                    room.store(left, Ordering::Relaxed);
                    let _ = chunks.send(frame.content);
                }
                Kind::Message => match frame.parse() {
                    Ok(Word::Resize(size)) => resize(size),
                    Err(_) => return,
                },
                Kind::Log | Kind::Stdout | Kind::Stderr => return,
            }
        }
    };
    let (to, mut queue) = mpsc::channel::<Frame>(QUEUE);
    let write = async {
        while let Some(frame) = queue.recv().await {
            frame.write(&mut write).await?;
        }
        Ok(())
    };
    let work = async {
        let to = To { client: to, moved: AtomicUsize::new(0), sending: AtomicUsize::new(0) };
        let show = async { tokio::join!(to.pump(Some(stdout), Kind::Stdout), to.pump(stderr, Kind::Stderr)) };
        let feed = feed(input, stdin, has_terminal, &room, &to);
        tokio::pin!(show, feed, done);
        let mut shown = false;
        let code = loop {
            tokio::select! {
                code = &mut done => break code,
                _ = &mut show, if !shown => shown = true,
                () = &mut feed => {}
            }
        };
        while !shown {
            let before = to.moved.load(Ordering::Relaxed);
            shown = timeout(QUIET, &mut show).await.is_ok() || to.is_quiet_since(before);
        }
        // If the container was killed, so was the command. The container's end is reported right after.
        let is_killed = matches!(code, Ok(KILLED));
        if is_killed && timeout(MOMENT, runtime.wait(&id)).await.is_ok() {
            to.say(&Answer::Note("the container has ended, and the command with it".to_owned())).await?;
        }
        to.say(&ended(code)).await
    };
    tokio::select! {
        // The client disconnected. Dropping the command here kills it.
        () = listen => Ok(()),
        sent = async { tokio::try_join!(write, work) } => sent.map(|_| ()),
    }
}

/// The answer for a command that ended or could not be started.
fn ended(result: Result<i32, RuntimeError>) -> Answer {
    match result {
        Ok(code) => Answer::Exit(code, None),
        Err(RuntimeError::Start(text)) => {
            let is_missing = ["not found", "no such file"].iter().any(|words| text.contains(words));
            Answer::Exit(if is_missing { NOT_FOUND } else { NOT_RUN }, Some(text))
        }
        Err(e) => Answer::Refused(e.to_string()),
    }
}

/// Passes input to a command and grants the client more room. Never returns.
async fn feed(
    mut input: mpsc::UnboundedReceiver<Vec<u8>>,
    mut stdin: Option<Input>,
    has_terminal: bool,
    room: &AtomicUsize,
    to: &To,
) {
    let mut is_unfinished = false;
    while let Some(chunk) = input.recv().await {
        if chunk.is_empty() {
            match stdin.take() {
                Some(terminal) if has_terminal => end_of_input(terminal, is_unfinished).await,
                _ => {}
            }
            continue;
        }
        is_unfinished = !chunk.ends_with(b"\n");
        // Input that a command does not read is discarded.
        if let Some(pipe) = &mut stdin
            && pipe.write_all(&chunk).await.is_err()
        {
            stdin = None;
        }
        room.fetch_add(chunk.len(), Ordering::Relaxed);
        let _ = to.say(&Answer::More(chunk.len())).await;
    }
    std::future::pending().await
}

/// Signals the end of input to the program that reads from a terminal. A terminal cannot be closed from one
/// side. Ctrl-D ends the current line and, at the start of a line, the input. It is sent repeatedly, because
/// shells lose input that was sent before they were ready to read. A shell with line editing treats it as the
/// end of input only on an empty line, so an incomplete line is terminated first.
async fn end_of_input(mut terminal: Input, is_unfinished: bool) {
    for pressed in 0..END_PRESSED {
        if is_unfinished && pressed == UNFINISHED && terminal.write_all(b"\r").await.is_err() {
            return;
        }
        if terminal.write_all(END_OF_INPUT).await.is_err() {
            return;
        }
        tokio::time::sleep(END_PAUSE).await;
    }
}

/// Sends frames to the client, for all streams of a command.
struct To {
    client: mpsc::Sender<Frame>,
    /// Bytes of output sent.
    moved: AtomicUsize,
    /// Number of outputs waiting for the client.
    sending: AtomicUsize,
}

impl To {
    /// Whether nothing was sent since the counter was `moved`, and nothing is being sent.
    fn is_quiet_since(&self, moved: usize) -> bool {
        self.moved.load(Ordering::Relaxed) == moved && self.sending.load(Ordering::Relaxed) == 0
    }

    async fn say(&self, answer: &Answer) -> io::Result<()> {
        self.send(Frame::message(answer)?).await
    }

    async fn send(&self, frame: Frame) -> io::Result<()> {
        self.client.send(frame).await.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    /// Sends all of an output. A slow client blocks the command.
    async fn pump(&self, from: Option<Output>, kind: Kind) {
        let Some(mut from) = from else { return };
        let mut chunk = vec![0; CHUNK];
        while let Ok(read @ 1..) = from.read(&mut chunk).await {
            self.sending.fetch_add(1, Ordering::Relaxed);
            let sent = self.send(Frame { kind, content: chunk[..read].to_vec() }).await;
            self.moved.fetch_add(read, Ordering::Relaxed);
            self.sending.fetch_sub(1, Ordering::Relaxed);
            if sent.is_err() {
                return;
            }
        }
    }
}
