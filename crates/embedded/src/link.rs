//! The agent's connection to a shim, one for each container.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::pipe::PipeFlags;
use rustix::termios::{Winsize, tcsetwinsize};
use tokio::io::{AsyncReadExt, Interest};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, oneshot, watch};

use super::cgroup::Hierarchies;
use super::fault::Fault;
use super::protocol::{
    ContainerState, Reply, Request, StartedRecord, Streams, attached_to, decode, encode, time,
};
use super::spawner::Spawner;
use super::{layout, socket, sys, warning};
use outrigger_runtime::processes::Process;
use outrigger_runtime::{
    ContainerId, ExecOutput, ExecRequest, ExecStreamsRequest, Exit, Input, Output, ProcessStreams,
    RuntimeError, WindowSize,
};

/// The exit code of a process killed by SIGKILL.
const KILLED: i32 = 137;

/// The maximum number of reads after a command's end. This is more than a pipe holds, and limited in case the
/// command's children never stop writing.
const DRAIN_READS_MAX: usize = 32;

/// The state of a container.
#[derive(Debug, Clone)]
pub(crate) enum Phase {
    /// The shim has not answered yet.
    Creating,
    /// It is ready to be started.
    Created,
    /// The user's program runs.
    Running(StartedRecord),
    /// It has ended.
    Exited(Exit),
    /// It could not be created or started.
    Failed(Fault),
}

impl Phase {
    pub(crate) fn is_over(&self) -> bool {
        matches!(self, Phase::Exited(_) | Phase::Failed(_))
    }
}

/// The agent's view of one container.
pub(crate) struct Link {
    pub(crate) stop_signal: i32,
    outgoing: mpsc::UnboundedSender<Outgoing>,
    phase: watch::Receiver<Phase>,
    /// Becomes `true` when the shim has no visible work left.
    gone: watch::Receiver<bool>,
    shared: Arc<Shared>,
}

/// A message to send, with its descriptors.
struct Outgoing {
    request: Request,
    fds: Vec<OwnedFd>,
}

#[derive(Default)]
struct Shared {
    execs: Mutex<Execs>,
    /// The shim's process, when it is known.
    shim: Mutex<Option<Process>>,
}

#[derive(Default)]
struct Execs {
    next: u64,
    waiting: HashMap<u64, oneshot::Sender<Result<i32, Fault>>>,
    /// Whether no more answers will come.
    closed: bool,
}

/// The location of a container, used to find what is left of it if its shim does not answer.
pub(crate) struct ContainerLocation {
    pub(crate) dir: PathBuf,
    pub(crate) cgroup: String,
    pub(crate) hierarchies: Hierarchies,
}

impl Link {
    /// Starts a shim and lets it create a container. The phase shows the result.
    pub(crate) fn spawn(
        spawner: Arc<Spawner>,
        id: ContainerId,
        create: Request,
        stop_signal: i32,
        remains: ContainerLocation,
    ) -> Self {
        let link = Self::new(Shim::New(spawner, id), stop_signal, remains);
        link.send(create);
        link
    }

    /// Connects to the shim of a container that another process created. If the shim has ended, the phase
    /// shows that.
    pub(crate) fn adopt(state: &ContainerState, remains: ContainerLocation) -> Self {
        let shim = connect(&remains.dir).map_or(Shim::Gone, Shim::Running);
        // A missing signal means that the state is lost.
        let stop_signal = if state.stop_signal > 0 { state.stop_signal } else { libc::SIGTERM };
        let link = Self::new(shim, stop_signal, remains);
        *lock(&link.shared.shim) = state.shim.and_then(|shim| shim.open());
        link
    }

    /// Kills a shim that does not answer, and its container.
    pub(crate) fn give_up(&self) {
        if let Some(shim) = &*lock(&self.shared.shim) {
            shim.kill();
        }
    }

    fn new(shim: Shim, stop_signal: i32, remains: ContainerLocation) -> Self {
        let (outgoing, queue) = mpsc::unbounded_channel();
        let (phase_tx, phase) = watch::channel(Phase::Creating);
        let (gone_tx, gone) = watch::channel(false);
        let shared = Arc::new(Shared::default());
        let driver = Driver { phase: phase_tx, shared: Arc::clone(&shared), remains };
        tokio::spawn(async move {
            driver.drive(shim, queue).await;
            gone_tx.send_replace(true);
        });
        Link { stop_signal, outgoing, phase, gone, shared }
    }

    pub(crate) fn send(&self, request: Request) {
        // It does not matter if the shim has already ended.
        let _ = self.outgoing.send(Outgoing { request, fds: Vec::new() });
    }

    /// Waits until `wanted` accepts the phase.
    pub(crate) async fn until<T>(
        &self,
        mut wanted: impl FnMut(&Phase) -> Option<T>,
    ) -> Result<T, RuntimeError> {
        let mut phase = self.phase.clone();
        let mut found = None;
        let waited = phase
            .wait_for(|phase| {
                found = wanted(phase);
                found.is_some()
            })
            .await;
        drop(waited);
        found.ok_or_else(|| RuntimeError::Other("the container's shim is gone".to_owned()))
    }

    pub(crate) fn is_over(&self) -> bool {
        self.phase.borrow().is_over()
    }

    /// Waits until the shim is done. Kills it if it takes too long.
    pub(crate) async fn gone(&self) {
        let mut gone = self.gone.clone();
        let patience = std::time::Duration::from_secs(10);
        if tokio::time::timeout(patience, gone.wait_for(|gone| *gone)).await.is_err() {
            if let Some(shim) = &*lock(&self.shared.shim) {
                tracing::warn!(pid = shim.pid(), "a container's shim does not end: killing it");
                shim.kill();
            }
            let _ = gone.wait_for(|gone| *gone).await;
        }
    }

    /// Runs a command in the container.
    pub(crate) async fn exec(self: &Arc<Self>, request: ExecRequest) -> Result<ExecOutput, RuntimeError> {
        let (mut output, theirs) = output_pipe().map_err(no_streams)?;
        let (running, mut done) = Running::start(self, request.command, Streams::Output, vec![theirs])?;
        let deadline = async {
            match request.timeout {
                Some(timeout) => tokio::time::sleep(timeout).await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(deadline);
        let mut collected = Collected { bytes: Vec::new(), limit: request.output_limit };
        let mut open = true;
        let mut chunk = [0; 4096];
        let code = loop {
            tokio::select! {
                biased;
                result = &mut done => {
                    let result = result.unwrap_or_else(|_| Err(Fault::other("the container ended before the command did")));
                    break Some(result.map_err(RuntimeError::from)?);
                }
                () = &mut deadline => break None,
                read = output.read(&mut chunk), if open => match read {
                    Ok(0) | Err(_) => open = false,
                    Ok(count) => collected.take(&chunk[..count]),
                },
            }
        };
        // All of the command's own output has arrived by now. The output of its children is not waited for.
        // This reads without tokio, which would report nothing until it has noticed that there is data.
        for _ in 0..DRAIN_READS_MAX {
            match rustix::io::read(&output, &mut chunk) {
                Ok(count @ 1..) => collected.take(&chunk[..count]),
                _ => break,
            }
        }
        drop(running);
        Ok(ExecOutput { code, output: collected.bytes })
    }

    /// Starts a command in the container and returns its streams.
    pub(crate) async fn exec_streams(
        self: &Arc<Self>,
        request: ExecStreamsRequest,
    ) -> Result<ProcessStreams, RuntimeError> {
        match request.terminal {
            Some(size) => self.exec_terminal(request, size).await,
            None => self.exec_pipes(request).map_err(no_streams)?,
        }
    }

    fn exec_pipes(
        self: &Arc<Self>,
        request: ExecStreamsRequest,
    ) -> io::Result<Result<ProcessStreams, RuntimeError>> {
        let (stdout, their_stdout) = output_pipe()?;
        let (stderr, their_stderr) = output_pipe()?;
        let mut theirs = vec![their_stdout, their_stderr];
        let mut stdin = None;
        if request.stdin {
            let (their_stdin, ours) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
            rustix::io::ioctl_fionbio(&ours, true)?;
            stdin = Some(Box::new(pipe::Sender::from_owned_fd(ours)?) as Input);
            theirs.push(their_stdin);
        }
        let streams = Streams::Pipes { stdin: request.stdin };
        Ok(Running::start(self, request.command, streams, theirs).map(|(running, done)| ProcessStreams {
            stdin,
            stdout: Box::new(stdout),
            stderr: Some(Box::new(stderr)),
            resize: Box::new(|_| {}),
            done: Box::pin(end(running, done)),
        }))
    }

    async fn exec_terminal(
        self: &Arc<Self>,
        request: ExecStreamsRequest,
        size: WindowSize,
    ) -> Result<ProcessStreams, RuntimeError> {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(no_streams)?;
        ours.set_nonblocking(true).map_err(no_streams)?;
        let ours = UnixStream::from_std(ours).map_err(no_streams)?;
        let streams = Streams::Terminal(size);
        let (running, mut done) = Running::start(self, request.command, streams, vec![theirs.into()])?;
        let mut fds = Vec::new();
        let received =
            ours.async_io(Interest::READABLE, || socket::receive(ours.as_fd(), &mut [0], &mut fds)).await;
        let Some(terminal) = received.ok().and_then(|_| fds.pop()) else {
            // The command failed before its terminal was sent. The result says why.
            let fault = match (&mut done).await {
                Ok(Err(fault)) => fault,
                _ => Fault::other("the container ended before the command was started"),
            };
            return Err(fault.into());
        };
        let streams = || -> io::Result<_> {
            rustix::io::ioctl_fionbio(&terminal, true)?;
            let (input, output) = (terminal.try_clone()?, terminal.try_clone()?);
            // A terminal is read and written like a pipe.
            Ok((
                pipe::Sender::from_owned_fd_unchecked(input)?,
                pipe::Receiver::from_owned_fd_unchecked(output)?,
            ))
        };
        let (stdin, stdout) = streams().map_err(no_streams)?;
        Ok(ProcessStreams {
            stdin: request.stdin.then(|| Box::new(stdin) as Input),
            stdout: Box::new(stdout),
            stderr: None,
            resize: Box::new(move |size| {
                // A terminal that is no longer used has no size.
                let _ = tcsetwinsize(&terminal, window(size));
            }),
            done: Box::pin(end(running, done)),
        })
    }
}

impl Link {
    /// Connects to the streams of the container's own program.
    pub(crate) async fn attach(&self) -> Result<ProcessStreams, RuntimeError> {
        let failed =
            |error: io::Error| RuntimeError::Other(format!("cannot attach to the container: {error}"));
        let (stdout, their_stdout) = output_pipe().map_err(failed)?;
        let (stderr, their_stderr) = output_pipe().map_err(failed)?;
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(failed)?;
        ours.set_nonblocking(true).map_err(failed)?;
        let ours = UnixStream::from_std(ours).map_err(failed)?;
        let fds = vec![their_stdout, their_stderr, theirs.into()];
        let _ = self.outgoing.send(Outgoing { request: Request::Attach, fds });
        let (mut word, mut fds) = ([0], Vec::new());
        let received =
            ours.async_io(Interest::READABLE, || socket::receive(ours.as_fd(), &mut word, &mut fds)).await;
        if received.map_err(failed)? == 0 {
            return Err(RuntimeError::Other("the container is not running".to_owned()));
        }
        let fd = fds.pop();
        let has_terminal = matches!(word[0], attached_to::SCREEN | attached_to::TERMINAL);
        let stdin = match (word[0], &fd) {
            (attached_to::PIPES | attached_to::TERMINAL, Some(fd)) => Some(input(fd).map_err(failed)?),
            _ => None,
        };
        let terminal = fd.filter(|_| has_terminal);
        let mut phase = self.phase.clone();
        Ok(ProcessStreams {
            stdin,
            stdout: Box::new(stdout),
            stderr: (!has_terminal).then(|| Box::new(stderr) as Output),
            resize: Box::new(move |size| {
                if let Some(terminal) = &terminal {
                    // A terminal that is no longer used has no size.
                    let _ = tcsetwinsize(terminal, window(size));
                }
            }),
            done: Box::pin(async move {
                let over = phase.wait_for(Phase::is_over).await.map(|phase| phase.clone());
                match over {
                    Ok(Phase::Exited(exit)) => Ok(exit.code),
                    Ok(Phase::Failed(fault)) => Err(fault.into()),
                    _ => Err(RuntimeError::Other("the container's shim is gone".to_owned())),
                }
            }),
        })
    }
}

/// The writing end of a pipe or terminal. The shim holds it as well, and its blocking mode does not matter.
fn input(fd: &OwnedFd) -> io::Result<Input> {
    let fd = fd.try_clone()?;
    rustix::io::ioctl_fionbio(&fd, true)?;
    Ok(Box::new(pipe::Sender::from_owned_fd_unchecked(fd)?))
}

fn window(size: WindowSize) -> Winsize {
    Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 }
}

/// Creates a pipe whose inner end is for another process.
fn output_pipe() -> io::Result<(pipe::Receiver, OwnedFd)> {
    let (ours, theirs) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&ours, true)?;
    Ok((pipe::Receiver::from_owned_fd(ours)?, theirs))
}

fn no_streams(error: io::Error) -> RuntimeError {
    RuntimeError::Other(format!("cannot run a command in the container: {error}"))
}

/// Waits for a command's end.
async fn end(running: Running, done: Done) -> Result<i32, RuntimeError> {
    // Processes in the container end with the container.
    let result = done.await.unwrap_or(Ok(KILLED));
    drop(running);
    Ok(result?)
}

struct Collected {
    bytes: Vec<u8>,
    limit: usize,
}

impl Collected {
    fn take(&mut self, bytes: &[u8]) {
        let room = self.limit.saturating_sub(self.bytes.len());
        self.bytes.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }
}

/// The future result of a command.
type Done = oneshot::Receiver<Result<i32, Fault>>;

/// A running command. It is killed if this is dropped before its end.
struct Running {
    link: Arc<Link>,
    id: u64,
}

impl Running {
    fn start(
        link: &Arc<Link>,
        command: Vec<String>,
        streams: Streams,
        fds: Vec<OwnedFd>,
    ) -> Result<(Self, Done), RuntimeError> {
        let (tx, rx) = oneshot::channel();
        let id = {
            let mut execs = lock(&link.shared.execs);
            if execs.closed {
                return Err(RuntimeError::Other("the container is not running".to_owned()));
            }
            execs.next += 1;
            let id = execs.next;
            execs.waiting.insert(id, tx);
            id
        };
        let _ = link.outgoing.send(Outgoing { request: Request::Exec { id, command, streams }, fds });
        Ok((Running { link: Arc::clone(link), id }, rx))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if lock(&self.link.shared.execs).waiting.remove(&self.id).is_some() {
            self.link.send(Request::CancelExec { id: self.id });
        }
    }
}

/// The shim that a link belongs to.
enum Shim {
    New(Arc<Spawner>, ContainerId),
    Running(UnixStream),
    Gone,
}

/// The task behind a [`Link`].
struct Driver {
    phase: watch::Sender<Phase>,
    shared: Arc<Shared>,
    remains: ContainerLocation,
}

impl Driver {
    async fn drive(self, shim: Shim, queue: mpsc::UnboundedReceiver<Outgoing>) {
        match shim {
            Shim::New(spawner, id) => match spawner.spawn(&id).await {
                Ok((stream, process)) => {
                    *lock(&self.shared.shim) = Some(process);
                    self.talk(stream, queue).await;
                    *lock(&self.shared.shim) = None;
                }
                Err(error) => {
                    let fault = Fault::create(format!("cannot start a shim: {}", sys::errno_text(&error)));
                    self.phase.send_replace(Phase::Failed(fault));
                }
            },
            Shim::Running(stream) => {
                self.talk(stream, queue).await;
                *lock(&self.shared.shim) = None;
            }
            Shim::Gone => {}
        }
        {
            let mut execs = lock(&self.shared.execs);
            execs.closed = true;
            execs.waiting.clear();
        }
        if !self.phase.borrow().is_over() {
            self.bury();
        }
    }

    /// Sends and receives until the shim closes the connection.
    async fn talk(&self, stream: UnixStream, queue: mpsc::UnboundedReceiver<Outgoing>) {
        let stream = Arc::new(stream);
        let writer = tokio::spawn(write_all(Arc::clone(&stream), queue));
        let mut received = Vec::new();
        let mut chunk = [0; 4096];
        'talk: loop {
            let count = match stream.readable().await.and_then(|()| stream.try_read(&mut chunk)) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(_) => break,
            };
            received.extend_from_slice(&chunk[..count]);
            loop {
                match decode::<Reply>(&mut received) {
                    Ok(Some(reply)) => self.take(reply),
                    Ok(None) => break,
                    Err(error) => {
                        tracing::warn!(%error, "a shim does not speak the protocol");
                        break 'talk;
                    }
                }
            }
        }
        writer.abort();
    }

    fn take(&self, reply: Reply) {
        match reply {
            Reply::Created => drop(self.phase.send_replace(Phase::Created)),
            Reply::Started(started) => drop(self.phase.send_replace(Phase::Running(started))),
            Reply::Failed(fault) => drop(self.phase.send_replace(Phase::Failed(fault))),
            Reply::Exited(exit) => drop(self.phase.send_replace(Phase::Exited(exit))),
            Reply::ExecDone { id, result } => {
                let waiting = lock(&self.shared.execs).waiting.remove(&id);
                if let Some(waiting) = waiting {
                    let _ = waiting.send(result);
                }
            }
            Reply::Warning(text) => warning::once(text),
        }
    }

    /// Called when the shim ended without a message. Makes sure that the container has ended, and reports
    /// what is known.
    fn bury(&self) {
        let state =
            layout::read_json::<ContainerState>(&self.remains.dir.join("state.json")).unwrap_or_default();
        if let Some(init) = state.init.and_then(|init| init.open()) {
            init.kill();
        }
        self.remains.hierarchies.kill(&self.remains.cgroup);
        // The shim reports a start before it stores it, and an exit after it stores it.
        let started = match &*self.phase.borrow() {
            Phase::Running(started) => Some(*started),
            _ => state.started,
        };
        let over = match (state.exit, started) {
            (Some(exit), _) => Phase::Exited(exit),
            (None, Some(started)) => {
                let detail = "the container's shim was killed, and the container with it";
                Phase::Exited(Exit {
                    code: KILLED,
                    signal: Some(libc::SIGKILL),
                    oom_killed: false,
                    started_at: time(started.at_ns),
                    finished_at: time(sys::now_ns()),
                    detail: Some(detail.to_owned()),
                })
            }
            (None, None) => Phase::Failed(Fault::create("the container's shim ended unexpectedly")),
        };
        self.phase.send_replace(over);
    }
}

/// Connects to the socket in a container's directory.
fn connect(dir: &Path) -> io::Result<UnixStream> {
    let dir = layout::open_dir(dir)?;
    let stream = std::os::unix::net::UnixStream::connect(layout::socket_path(&dir))?;
    if !socket::is_own(&stream) {
        return Err(io::Error::other("the socket of the container's shim is another user's"));
    }
    stream.set_nonblocking(true)?;
    UnixStream::from_std(stream)
}

async fn write_all(stream: Arc<UnixStream>, mut queue: mpsc::UnboundedReceiver<Outgoing>) {
    while let Some(Outgoing { request, mut fds }) = queue.recv().await {
        let Ok(frame) = encode(&request) else { continue };
        let mut rest = &frame[..];
        while !rest.is_empty() {
            let sent = stream
                .async_io(Interest::WRITABLE, || {
                    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
                    socket::send(stream.as_fd(), rest, &fds)
                })
                .await;
            let Ok(count) = sent else { return };
            rest = &rest[count..];
            fds.clear();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // A panic cannot leave the data under these locks in a partly changed state.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
