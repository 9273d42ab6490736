//! Starts shims: the agent's side of `shim/fork_server.rs`.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::sync::Mutex;

use super::shim::{ANSWER, room_for_id};
use super::socket;
use outrigger_runtime::ContainerId;
use outrigger_runtime::processes::Process;

/// How long a fork server may take to fork.
const PATIENCE: Duration = Duration::from_secs(10);

/// Starts shims through a fork server. The fork server is started when it is first needed, and again if it
/// has ended.
pub(crate) struct Spawner {
    /// Creates the command of the fork server.
    command: Box<dyn Fn() -> std::process::Command + Send + Sync>,
    server: Mutex<Option<ForkServer>>,
}

struct ForkServer {
    control: UnixStream,
    /// The fork server's process, which is killed and reaped when this is dropped.
    _process: Child,
}

impl Spawner {
    pub(crate) fn new(command: impl Fn() -> std::process::Command + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Spawner { command: Box::new(command), server: Mutex::default() })
    }

    /// Starts the fork server, so that the first shim does not have to wait for it.
    pub(crate) async fn prepare(&self) {
        let mut server = self.server.lock().await;
        if server.is_none() {
            // If this fails, the first shim reports the error.
            *server = self.start().ok();
        }
    }

    /// Starts a shim. Returns the connection to it, and its process.
    pub(crate) async fn spawn(&self, id: &ContainerId) -> io::Result<(UnixStream, Process)> {
        let mut server = self.server.lock().await;
        // The server is put back only after it has answered. Otherwise a late answer could be taken for the
        // answer to the next request.
        if let Some(running) = server.take() {
            match running.fork(id).await {
                Err(error) if is_gone(&error) => {}
                result => {
                    *server = Some(running);
                    return result;
                }
            }
        }
        // There was no server, or it was killed.
        let new = self.start()?;
        let result = new.fork(id).await;
        *server = Some(new);
        result
    }

    fn start(&self) -> io::Result<ForkServer> {
        let (ours, theirs) = StdStream::pair()?;
        ours.set_nonblocking(true)?;
        let mut command = Command::from((self.command)());
        command.arg(room_for_id());
        command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(Stdio::inherit());
        // A stopped fork server would not notice that nobody needs it any more.
        let process = command.kill_on_drop(true).spawn()?;
        Ok(ForkServer { control: UnixStream::from_std(ours)?, _process: process })
    }
}

impl ForkServer {
    async fn fork(&self, id: &ContainerId) -> io::Result<(UnixStream, Process)> {
        let (ours, theirs) = StdStream::pair()?;
        ours.set_nonblocking(true)?;
        let control = &self.control;
        let (mut answer, mut fds) = ([0; ANSWER], Vec::new());
        let ask = async {
            let send = || socket::send(control.as_fd(), id.0.as_bytes(), &[theirs.as_fd()]);
            control.async_io(Interest::WRITABLE, send).await?;
            let receive = || socket::receive(control.as_fd(), &mut answer, &mut fds);
            control.async_io(Interest::READABLE, receive).await
        };
        // A stopped fork server is as useless as an ended one.
        if tokio::time::timeout(PATIENCE, ask).await?? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        match (i32::from_ne_bytes(answer), fds.pop()) {
            (pid @ 1.., Some(handle)) => Ok((UnixStream::from_std(ours)?, Process::new(pid, handle))),
            (error, _) => Err(io::Error::from_raw_os_error(-error)),
        }
    }
}

/// Whether an error means that the process at the other end has ended.
fn is_gone(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, TimedOut, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | TimedOut | UnexpectedEof)
}
