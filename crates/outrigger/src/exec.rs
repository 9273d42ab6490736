//! `outrigger exec`: runs a command in a container of a run.

use std::io::{Read, Write};
use std::process::ExitCode;

use anyhow::anyhow;
use outrigger_node::control::{Answer, AskError, Connection, ExecStart, Request, WindowSize};
use outrigger_text::SafeStream;
use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use crate::outcome::{self, Failure};
use crate::runs::{self, ContainerArgs, PodArgs};
use crate::terminal;

/// The maximum number of bytes of standard input that are sent at once.
const CHUNK: usize = 16 << 10;

/// The exit code of a process killed by SIGKILL.
const KILLED: u8 = 137;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  outrigger exec web ls -l /srv               run a command in pod web
  outrigger exec -it web -c proxy -- sh       a shell in its proxy
  outrigger exec -i web -- tar x < files.tar  give it standard input
  outrigger exec deploy/web env               in the first pod of a Deployment

The command runs as the container does: same user, same limits, same filters. It ends when this command ends.

Exit codes: the command's own; 127 it was not found; 126 it could not be run; 137 it was killed; 2 no such pod or \
container; 125 a failure of outrigger itself.")]
pub(crate) struct Args {
    #[command(flatten)]
    pod: PodArgs,
    #[command(flatten)]
    container: ContainerArgs,
    /// Pass standard input to the command.
    #[arg(long, short = 'i')]
    stdin: bool,
    /// Allocate a terminal for the command.
    #[arg(long, short)]
    tty: bool,
    /// The command and its arguments; `--` in front of it is optional.
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Runs the command. Returns the command's own exit code.
pub(crate) fn main(args: Args) -> ExitCode {
    match runs::block_on(exec(args)) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => outcome::exit_code(Err(failure)),
    }
}

async fn exec(args: Args) -> Result<u8, Failure> {
    let found = args.pod.find().await?;
    let (run, pod) = found.pick(&args.pod.which()).map_err(|e| Failure::Input(e.into()))?;
    let container = args.container.pick(pod)?;
    let is_terminal = isatty(rustix::stdio::stdin());
    if args.tty && args.stdin && !is_terminal {
        terminal::note("standard input is not a terminal; the command still gets one");
    }
    let start = ExecStart {
        pod: pod.number,
        container,
        command: args.command,
        stdin: args.stdin,
        terminal: args.tty.then(size),
    };
    // Listen before anything starts, so that no signal is missed.
    let signals = if args.tty { Some(Signals::listen()?) } else { None };
    let mut connection = run.ask(&Request::Exec(start)).await.map_err(runs::refused)?;
    let _raw = (args.tty && args.stdin && is_terminal).then(Raw::enter).transpose()?;
    let stdin = args.stdin.then(read_stdin);
    let mut shown = Shown::new(args.tty);
    let ended = talk(&mut connection, stdin, signals, &mut shown).await;
    // If the terminal is closed, there is nothing to restore.
    let _ = shown.end();
    drop(_raw);
    match ended {
        Ok((code, why)) => {
            if let Some(why) = why {
                terminal::error(&anyhow!(why));
            }
            Ok(code)
        }
        Err(Failure::Own(e)) if matches!(e.downcast_ref(), Some(AskError::Ended)) => {
            terminal::error(&anyhow!("the run has ended, and the command with it"));
            Ok(KILLED)
        }
        Err(Failure::Own(e)) if matches!(e.downcast_ref(), Some(AskError::NodeEnded(_))) => {
            terminal::error(&anyhow!("the node has ended, and the command with it: {e}"));
            Ok(KILLED)
        }
        Err(failure) => Err(failure),
    }
}

/// Forwards the streams until the command ends. Returns its exit code, and the error if it could not be run.
async fn talk(
    connection: &mut Connection,
    mut stdin: Option<mpsc::Receiver<Vec<u8>>>,
    mut signals: Option<Signals>,
    shown: &mut Shown,
) -> Result<(u8, Option<String>), Failure> {
    loop {
        let has_room = connection.room() >= CHUNK;
        tokio::select! {
            answer = connection.next() => match answer.map_err(runs::refused)? {
                Answer::Stdout(bytes) => shown.out(&bytes)?,
                Answer::Stderr(bytes) => shown.err(&bytes)?,
                Answer::Note(text) => terminal::note(&text),
                Answer::More(_) => {}
                Answer::Exit(code, why) => return Ok((u8::try_from(code).unwrap_or(u8::MAX), why)),
                other => return Err(Failure::Own(anyhow!("unexpected answer from the run: {other:?}"))),
            },
            chunk = next_chunk(&mut stdin), if has_room => match chunk {
                Some(chunk) => connection.input(&chunk).await.map_err(runs::refused)?,
                None => {
                    stdin = None;
                    connection.input(&[]).await.map_err(runs::refused)?;
                }
            },
            signalled = next_signal(&mut signals) => match signalled {
                Signalled::Resized => connection.resize(size()).await.map_err(runs::refused)?,
                Signalled::Ended(code) => return Ok((code, None)),
            },
        }
    }
}

/// Writes the command's output. Without `-t`, control sequences other than colours are removed before they
/// reach a terminal, as in `run` and `logs`. Files and pipes get the output unchanged.
struct Shown {
    out: Option<SafeStream>,
    err: Option<SafeStream>,
}

impl Shown {
    fn new(is_terminal_s: bool) -> Self {
        let colors = terminal::colors();
        let filter = |is_terminal: bool, colors: bool| {
            (is_terminal && !is_terminal_s).then(|| SafeStream::new(colors))
        };
        Shown {
            out: filter(isatty(rustix::stdio::stdout()), colors.out),
            err: filter(isatty(rustix::stdio::stderr()), colors.err),
        }
    }

    fn out(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        let safe = self.out.as_mut().map(|stream| stream.next(bytes));
        let mut out = std::io::stdout();
        out.write_all(safe.as_deref().unwrap_or(bytes))?;
        out.flush()
    }

    fn err(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        let safe = self.err.as_mut().map(|stream| stream.next(bytes));
        std::io::stderr().write_all(safe.as_deref().unwrap_or(bytes))
    }

    fn end(&mut self) -> std::io::Result<()> {
        if let Some(stream) = &mut self.out {
            let mut out = std::io::stdout();
            out.write_all(&stream.end())?;
            out.flush()?;
        }
        match &mut self.err {
            Some(stream) => std::io::stderr().write_all(&stream.end()),
            None => Ok(()),
        }
    }
}

/// The next input. Returns `None` once, at its end.
async fn next_chunk(stdin: &mut Option<mpsc::Receiver<Vec<u8>>>) -> Option<Vec<u8>> {
    match stdin {
        Some(chunks) => chunks.recv().await,
        None => std::future::pending().await,
    }
}

/// Reads standard input in its own thread. A blocked read cannot be cancelled, but the process can end
/// without it.
fn read_stdin() -> mpsc::Receiver<Vec<u8>> {
    let (tx, rx) = mpsc::channel(1);
    std::thread::spawn(move || {
        let mut stdin = std::io::stdin().lock();
        let mut chunk = vec![0; CHUNK];
        loop {
            match stdin.read(&mut chunk) {
                Ok(read @ 1..) if tx.blocking_send(chunk[..read].to_vec()).is_ok() => {}
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                _ => return,
            }
        }
    });
    rx
}

/// What a signal asks for.
enum Signalled {
    /// The terminal was resized.
    Resized,
    /// The command must end with this exit code.
    Ended(u8),
}

/// The signals that concern the terminal: it was resized, or it must be restored before the end.
struct Signals {
    resized: Signal,
    ends: [(Signal, u8); 3],
}

impl Signals {
    fn listen() -> std::io::Result<Self> {
        Ok(Signals {
            resized: signal(SignalKind::window_change())?,
            ends: [
                (signal(SignalKind::terminate())?, 143),
                (signal(SignalKind::interrupt())?, 130),
                (signal(SignalKind::hangup())?, 129),
            ],
        })
    }
}

async fn next_signal(signals: &mut Option<Signals>) -> Signalled {
    let Some(Signals { resized, ends: [term, int, hup] }) = signals else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = resized.recv() => Signalled::Resized,
        _ = term.0.recv() => Signalled::Ended(term.1),
        _ = int.0.recv() => Signalled::Ended(int.1),
        _ = hup.0.recv() => Signalled::Ended(hup.1),
    }
}

/// The size of the terminal, or a default.
fn size() -> WindowSize {
    let of_output = tcgetwinsize(rustix::stdio::stdout());
    let found = of_output.or_else(|_| tcgetwinsize(rustix::stdio::stdin())).ok();
    match found.filter(|size| size.ws_col > 0 && size.ws_row > 0) {
        Some(size) => WindowSize { columns: size.ws_col, rows: size.ws_row },
        None => WindowSize { columns: 80, rows: 24 },
    }
}

/// A terminal in raw mode, so that all keys go to the command. Dropping it restores the terminal.
struct Raw(Termios);

impl Raw {
    fn enter() -> std::io::Result<Self> {
        let before = tcgetattr(rustix::stdio::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(rustix::stdio::stdin(), OptionalActions::Drain, &raw)?;
        terminal::set_raw(true);
        Ok(Raw(before))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // If the terminal is closed, there is nothing to restore.
        let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Drain, &self.0);
        terminal::set_raw(false);
    }
}
