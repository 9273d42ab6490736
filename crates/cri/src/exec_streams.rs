//! Commands with connected streams.
//!
//! CRI's streaming server cannot close standard input over websockets, and never ends a command whose client
//! has gone away. containerd's own API can do both, so it is used instead. Other runtimes are not supported.

use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, OFlags};
use serde_json::{Value, json};
use tokio::io::AsyncWrite;
use tokio::net::unix::pipe;

use super::Inner;
use super::client::{Client, Fault};
use super::containers::missing;
use super::wire::Any;
use super::wire::containers::GetContainerRequest;
use super::wire::tasks::{
    CloseIoRequest, DeleteProcessRequest, ExecProcessRequest, KillRequest, ResizePtyRequest, StartRequest,
    WaitRequest,
};
use outrigger_runtime::processes::{Process, kill_tree};
use outrigger_runtime::{
    ContainerId, ExecStreamsRequest, Input, Output, ProcessStreams, RuntimeError, WindowSize,
};

/// The maximum time of one wait call. Commands may run for days, so the call is repeated.
const WAIT_MAX: Duration = Duration::from_secs(60 * 60);

/// The exit code of a process killed by SIGKILL.
const KILLED: i32 = 137;
const SIGKILL: u32 = 9;

/// containerd's type name of an OCI process.
const PROCESS: &str = "types.containerd.io/opencontainers/runtime-spec/1/Process";

impl Inner {
    /// Starts a command and returns its streams.
    pub(super) async fn exec_streams(
        &self,
        name: &ContainerId,
        request: ExecStreamsRequest,
    ) -> Result<ProcessStreams, RuntimeError> {
        if !self.is_containerd {
            let text = "`exec` needs containerd or the embedded runtime";
            return Err(RuntimeError::Other(text.to_owned()));
        }
        let slot = self.slot(name)?;
        let container = slot.id()?;
        let pod = self.pods().get(&slot.sandbox).cloned().ok_or_else(|| missing(name))?;
        let failed = |fault: Fault| match fault {
            Fault::NotFound(_) => missing(name),
            fault => RuntimeError::Other(format!("cannot run a command in the container: {fault}")),
        };
        let stored = self.client.ask(GetContainerRequest { id: container.clone() }).await.map_err(failed)?;
        let spec = stored.container.and_then(|container| container.spec).unwrap_or_default();
        let process = process(&spec.value, &request).ok_or_else(|| {
            RuntimeError::Other("containerd does not say how the container runs".to_owned())
        })?;
        let command = Arc::new(Command::new(self.client.clone(), container, &pod.dir).map_err(no_streams)?);
        // Kills the command on every way out of this function, also if the call is dropped.
        let kill = Kill(command.clone());
        let pipes = Pipes::open(&command.dir, &request).map_err(no_streams)?;
        let limit = self.client.limits().work;
        let exec = ExecProcessRequest {
            container_id: command.container.clone(),
            stdin: pipes.path(&command.dir, STDIN, pipes.stdin.is_some()),
            stdout: pipes.path(&command.dir, STDOUT, true),
            stderr: pipes.path(&command.dir, STDERR, pipes.stderr.is_some()),
            terminal: request.terminal.is_some(),
            spec: Some(Any { type_url: PROCESS.to_owned(), value: process }),
            exec_id: command.id.clone(),
        };
        self.client.call_once(exec, limit).await.map_err(failed)?;
        let start = StartRequest { container_id: command.container.clone(), exec_id: command.id.clone() };
        let started = self.client.call_once(start, limit).await.map_err(|fault| match fault {
            Fault::Refused(text) => RuntimeError::Start(text),
            fault => failed(fault),
        })?;
        command.pid.store(started.pid, Ordering::Relaxed);
        let Pipes { stdin, stdout, stderr, .. } = pipes;
        let resized = command.clone();
        Ok(ProcessStreams {
            stdin: stdin
                .map(|pipe| Box::new(Closing { pipe: Some(pipe), command: command.clone() }) as Input),
            stdout: Box::new(stdout),
            stderr: stderr.map(|pipe| Box::new(pipe) as Output),
            resize: Box::new(move |size| resized.resize(size)),
            done: Box::pin(async move {
                let code = command.wait().await;
                command.is_over.store(true, Ordering::Relaxed);
                drop(kill);
                code
            }),
        })
    }
}

fn no_streams(error: io::Error) -> RuntimeError {
    RuntimeError::Other(format!("cannot run a command in the container: {error}"))
}

/// The settings of the container's own process, with another command.
fn process(spec: &[u8], request: &ExecStreamsRequest) -> Option<Vec<u8>> {
    let mut spec: Value = serde_json::from_slice(spec).ok()?;
    let process = spec.get_mut("process")?.as_object_mut()?;
    process.insert("args".to_owned(), json!(request.command));
    process.insert("terminal".to_owned(), json!(request.terminal.is_some()));
    process.remove("commandLine");
    process.remove("consoleSize");
    if let Some(size) = request.terminal {
        process.insert("consoleSize".to_owned(), json!({"height": size.rows, "width": size.columns}));
        let env = process.entry("env").or_insert_with(|| json!([])).as_array_mut()?;
        if !env.iter().any(|pair| pair.as_str().is_some_and(|pair| pair.starts_with("TERM="))) {
            env.push(json!("TERM=xterm"));
        }
    }
    serde_json::to_vec(process).ok()
}

const STDIN: &str = "stdin";
const STDOUT: &str = "stdout";
const STDERR: &str = "stderr";

/// Our ends of a command's streams.
struct Pipes {
    stdin: Option<pipe::Sender>,
    stdout: pipe::Receiver,
    stderr: Option<pipe::Receiver>,
    /// Kept open until containerd has opened its ends, because a pipe without a writer is at end of file.
    _kept: Vec<rustix::fd::OwnedFd>,
}

impl Pipes {
    fn open(dir: &Path, request: &ExecStreamsRequest) -> io::Result<Self> {
        let make = |name: &str| {
            let path = dir.join(name);
            rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
            Ok::<PathBuf, io::Error>(path)
        };
        let mut kept = Vec::new();
        let mut output = |name: &str| {
            let path = make(name)?;
            let receiver = pipe::OpenOptions::new().open_receiver(&path)?;
            kept.push(rustix::fs::open(&path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?);
            Ok::<pipe::Receiver, io::Error>(receiver)
        };
        let stdout = output(STDOUT)?;
        let stderr = if request.terminal.is_none() { Some(output(STDERR)?) } else { None };
        let stdin = match request.stdin {
            // Opened for reading too. Otherwise opening would block until the other end is open.
            true => Some(pipe::OpenOptions::new().read_write(true).open_sender(make(STDIN)?)?),
            false => None,
        };
        Ok(Pipes { stdin, stdout, stderr, _kept: kept })
    }

    fn path(&self, dir: &Path, name: &str, is_there: bool) -> String {
        match is_there {
            true => dir.join(name).display().to_string(),
            false => String::new(),
        }
    }
}

/// A command that containerd runs or is about to run.
struct Command {
    client: Arc<Client>,
    container: String,
    id: String,
    /// The directory of its pipes.
    dir: PathBuf,
    /// The pid of its process, set when the process exists.
    pid: AtomicU32,
    /// Whether it has ended.
    is_over: AtomicBool,
}

impl Command {
    fn new(client: Arc<Client>, container: String, pod_dir: &Path) -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let id = format!("outrigger-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let dir = pod_dir.join("exec").join(&id);
        std::fs::create_dir_all(&dir)?;
        Ok(Command { client, container, id, dir, pid: AtomicU32::new(0), is_over: AtomicBool::new(false) })
    }

    /// Waits for the end of the command.
    async fn wait(&self) -> Result<i32, RuntimeError> {
        let mut retry = self.client.retry();
        loop {
            let request = WaitRequest { container_id: self.container.clone(), exec_id: self.id.clone() };
            match self.client.call_once(request, WAIT_MAX).await {
                Ok(answer) => return Ok(i32::try_from(answer.exit_status).unwrap_or(255)),
                // The command ended with its container.
                Err(Fault::NotFound(_)) => return Ok(KILLED),
                Err(Fault::Late(_)) => {}
                Err(fault) if fault.is_unclear() && retry.pause().await => {}
                Err(fault) => return Err(RuntimeError::Other(fault.to_string())),
            }
        }
    }

    fn resize(&self, size: WindowSize) {
        self.later(ResizePtyRequest {
            container_id: self.container.clone(),
            exec_id: self.id.clone(),
            width: size.columns.into(),
            height: size.rows.into(),
        });
    }

    /// Makes a call in the background.
    fn later<Q: super::wire::Rpc>(&self, request: Q)
    where
        Q::Answer: Send,
    {
        let client = self.client.clone();
        tokio::spawn(async move {
            // This does not affect a command that has ended.
            let _ = client.call_once(request, client.limits().question).await;
        });
    }
}

impl Drop for Command {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
        self.later(DeleteProcessRequest { container_id: self.container.clone(), exec_id: self.id.clone() });
    }
}

/// Kills the command when this is dropped, unless it has ended.
struct Kill(Arc<Command>);

impl Drop for Kill {
    fn drop(&mut self) {
        let command = &self.0;
        if command.is_over.load(Ordering::Relaxed) {
            return;
        }
        // The command's children can only be reached from here, and only if the process really belongs to the
        // container.
        let pid = command.pid.load(Ordering::Relaxed);
        let is_in_container = || {
            let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
            groups.contains(&command.container)
        };
        let process = i32::try_from(pid).ok().and_then(|pid| Process::find(pid, is_in_container));
        process.iter().for_each(kill_tree);
        let (container_id, exec_id) = (command.container.clone(), command.id.clone());
        command.later(KillRequest { container_id, exec_id, signal: SIGKILL });
    }
}

/// Standard input of a command. Tells containerd when it is closed.
struct Closing {
    pipe: Option<pipe::Sender>,
    command: Arc<Command>,
}

impl Drop for Closing {
    fn drop(&mut self) {
        self.pipe = None;
        let (container_id, exec_id) = (self.command.container.clone(), self.command.id.clone());
        self.command.later(CloseIoRequest { container_id, exec_id, stdin: true });
    }
}

impl AsyncWrite for Closing {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.pipe {
            Some(pipe) => Pin::new(pipe).poll_write(cx, bytes),
            None => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_runs_as_the_container_does() {
        let spec = json!({"process": {"args": ["app"], "cwd": "/srv", "user": {"uid": 7}, "env": ["A=b"],
            "capabilities": {"bounding": ["CAP_CHOWN"]}, "consoleSize": {"height": 1, "width": 1}}});
        let spec = serde_json::to_vec(&spec).unwrap();
        let command = vec!["ls".to_owned()];
        let plain = ExecStreamsRequest { command: command.clone(), stdin: true, terminal: None };
        let made: Value = serde_json::from_slice(&process(&spec, &plain).unwrap()).unwrap();
        assert_eq!(
            made,
            json!({"args": ["ls"], "cwd": "/srv", "user": {"uid": 7}, "env": ["A=b"], "terminal": false,
                "capabilities": {"bounding": ["CAP_CHOWN"]}})
        );
        let size = WindowSize { columns: 80, rows: 24 };
        let terminal = ExecStreamsRequest { command, stdin: true, terminal: Some(size) };
        let made: Value = serde_json::from_slice(&process(&spec, &terminal).unwrap()).unwrap();
        assert_eq!(made["consoleSize"], json!({"height": 24, "width": 80}));
        assert_eq!(made["env"], json!(["A=b", "TERM=xterm"]));
        assert!(process(b"{}", &plain).is_none());
    }
}
