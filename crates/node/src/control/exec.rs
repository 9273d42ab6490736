//! A command in a container, its streams at whoever asked for it.

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

/// Output that has not come this long after a command's end is somebody else's: a child it left behind.
const QUIET: Duration = Duration::from_millis(100);

/// The end of a container and those of the commands in it are told within this time.
const MOMENT: Duration = Duration::from_secs(1);

/// Most bytes of output in a frame.
const CHUNK: usize = 32 << 10;
/// Frames that wait for a client.
const QUEUE: usize = 4;

/// Ctrl-D, twice: the first may end an unfinished line.
const END_OF_INPUT: &[u8] = b"\x04\x04";
/// How often it is pressed, and the pause in between.
const END_PRESSED: u32 = 40;
/// After so many a line that has no end is given one.
const UNFINISHED: u32 = 4;
const END_PAUSE: Duration = Duration::from_millis(250);

/// Exit codes of commands that could not be run, as shells have them.
const NOT_FOUND: i32 = 127;
const NOT_RUN: i32 = 126;
/// That of what SIGKILL ended.
const KILLED: i32 = 137;

/// Runs a command for a client. It ends with the client.
pub(super) async fn run<R: Runtime>(
    runtime: &R,
    registry: &PodRegistry,
    start: ExecStart,
    mut client: Client,
) -> io::Result<()> {
    let ExecStart { pod, container, command, stdin, terminal } = start;
    let id = match registry.instance(pod, container) {
        Ok(id) => id,
        Err(text) => return client.answer(&Answer::Refused(text)).await,
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
                    // Whoever sends more than there is room for would fill the memory.
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
        // Whoever was killed may have been killed with the container, whose end is told right after.
        let is_killed = matches!(code, Ok(KILLED));
        if is_killed && timeout(MOMENT, runtime.wait(&id)).await.is_ok() {
            to.say(&Answer::Note("the container has ended, and the command with it".to_owned())).await?;
        }
        to.say(&ended(code)).await
    };
    tokio::select! {
        // Whatever it was doing: what runs for it is dropped here, and killed.
        () = listen => Ok(()),
        sent = async { tokio::try_join!(write, work) } => sent.map(|_| ()),
    }
}

/// How a command ended, or why it did not begin.
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

/// Gives a command its input, and the client room for more. Never ends.
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
        // What a command does not want to read is thrown away, as by a pipe nobody reads.
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

/// Tells whatever reads from a terminal that its input is over. A terminal cannot be closed from one side: it has a key
/// for that, which ends the line it stands in and, at the beginning of a line, the input. It is pressed again for a while
/// because shells lose what was typed before they were ready to read, and a shell that edits lines itself takes it for
/// the end of its input only on an empty line: an unfinished one is finished first.
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

/// The way to the client, for all streams of a command.
struct To {
    client: mpsc::Sender<Frame>,
    /// Bytes of output that went.
    moved: AtomicUsize,
    /// Outputs that wait for the client.
    sending: AtomicUsize,
}

impl To {
    /// Whether nothing was sent since that much had been, and nothing is on its way.
    fn is_quiet_since(&self, moved: usize) -> bool {
        self.moved.load(Ordering::Relaxed) == moved && self.sending.load(Ordering::Relaxed) == 0
    }

    async fn say(&self, answer: &Answer) -> io::Result<()> {
        self.send(Frame::message(answer)?).await
    }

    async fn send(&self, frame: Frame) -> io::Result<()> {
        self.client.send(frame).await.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    /// Sends all of an output. A client that is slow makes the command wait.
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
