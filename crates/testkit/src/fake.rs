//! A timer-based fake runtime for tests of the agent.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use outrigger_runtime::{
    Adopted, ContainerId, ContainerSpec, ExecOutput, ExecRequest, ExecStreamsRequest, Exit, Image,
    ImageError, ProcessStreams, ProgressSink, PullRequest, Runtime, RuntimeError, Sandbox, SandboxId,
    SandboxSpec, Started, Stats,
};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::Instant;

/// How a container behaves.
#[derive(Debug, Clone)]
pub struct Script {
    /// How long it runs before it exits; `None` means until it is stopped.
    pub runs: Option<Duration>,
    /// Exit codes, one per instance; the last one is repeated.
    pub codes: Vec<i32>,
    /// Time from the stop signal to the exit; `None` means the signal is ignored.
    pub stops_in: Option<Duration>,
    /// Errors returned on creation, one per instance. Later instances are created.
    pub refusals: Vec<fn() -> RuntimeError>,
    /// How long creation takes.
    pub creation: Duration,
    /// Exit code and duration of commands run in the container.
    pub exec: (i32, Duration),
    /// The termination message.
    pub message: &'static str,
}

impl Default for Script {
    fn default() -> Self {
        Script {
            runs: None,
            codes: vec![0],
            stops_in: Some(Duration::ZERO),
            refusals: Vec::new(),
            creation: Duration::ZERO,
            exec: (0, Duration::ZERO),
            message: "",
        }
    }
}

impl Script {
    /// Runs for some time, then exits.
    pub fn job(ms: u64, code: i32) -> Self {
        Script { runs: Some(Duration::from_millis(ms)), codes: vec![code], ..Script::default() }
    }
}

struct Made {
    sandbox: Option<SandboxId>,
    name: String,
    script: Script,
    attempt: u32,
    message_file: Option<std::path::PathBuf>,
    /// When it was started.
    started: Mutex<Option<SystemTime>>,
    exit: watch::Sender<Option<Exit>>,
}

/// The runtime.
pub struct FakeRuntime {
    scripts: BTreeMap<String, Script>,
    made: Mutex<BTreeMap<ContainerId, Arc<Made>>>,
    sandboxes: Mutex<BTreeMap<SandboxId, Sandbox>>,
    calls: Mutex<Vec<String>>,
    wall: SystemTime,
    began: Instant,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl FakeRuntime {
    /// A runtime whose containers follow scripts by name. Containers without a script run until they are
    /// stopped.
    pub fn new(scripts: impl IntoIterator<Item = (&'static str, Script)>) -> Arc<Self> {
        Arc::new(FakeRuntime {
            scripts: scripts.into_iter().map(|(n, s)| (n.to_owned(), s)).collect(),
            made: Mutex::default(),
            sandboxes: Mutex::default(),
            calls: Mutex::default(),
            wall: SystemTime::now(),
            began: Instant::now(),
        })
    }

    /// All calls so far, as `verb container`.
    pub fn calls(&self) -> Vec<String> {
        lock(&self.calls).clone()
    }

    /// The number of containers created and not removed.
    pub fn left(&self) -> usize {
        lock(&self.made).len()
    }

    /// Creates a container to run commands in.
    pub async fn make(&self, name: &str) -> ContainerId {
        let id = ContainerId(name.to_owned());
        let script = self.scripts.get(name).cloned().unwrap_or_default();
        let made = Made {
            sandbox: None,
            name: name.to_owned(),
            script,
            attempt: 0,
            message_file: None,
            started: Mutex::default(),
            exit: watch::channel(None).0,
        };
        lock(&self.made).insert(id.clone(), Arc::new(made));
        id
    }

    fn note(&self, verb: &str, name: &str) {
        lock(&self.calls).push(format!("{verb} {name}"));
    }

    fn time(&self) -> SystemTime {
        self.wall + self.began.elapsed()
    }

    fn find(&self, id: &ContainerId) -> Result<Arc<Made>, RuntimeError> {
        lock(&self.made)
            .get(id)
            .cloned()
            .ok_or(RuntimeError::NotFound { kind: "container", id: id.0.clone() })
    }

    fn end(&self, made: &Made, code: i32, signal: Option<i32>) {
        let now = self.time();
        made.exit.send_if_modified(|exit| {
            if exit.is_some() {
                return false;
            }
            self.note("exit", &made.name);
            if let Some(file) = &made.message_file {
                std::fs::write(file, made.script.message).unwrap();
            }
            *exit = Some(Exit {
                code,
                signal,
                oom_killed: false,
                started_at: now,
                finished_at: now,
                detail: None,
            });
            true
        });
    }
}

impl Runtime for FakeRuntime {
    fn name(&self) -> &'static str {
        "fake"
    }

    async fn pull_image(&self, request: PullRequest, _: ProgressSink) -> Result<Image, ImageError> {
        if request.reference == "none" {
            return Err(ImageError::never_pull(request.reference));
        }
        if request.reference == "slow" {
            std::future::pending::<()>().await;
        }
        Ok(Image {
            id: format!("sha256:{}", request.reference),
            reference: request.reference,
            layers: Vec::new(),
            entrypoint: Vec::new(),
            cmd: Vec::new(),
            env: Vec::new(),
            working_dir: None,
            user: None,
            stop_signal: None,
            was_present: true,
        })
    }

    async fn create_sandbox(&self, spec: SandboxSpec) -> Result<Sandbox, RuntimeError> {
        self.note("sandbox", &spec.pod_name);
        std::fs::create_dir_all(&spec.pod_dir).unwrap();
        let sandbox = Sandbox {
            id: spec.id.clone(),
            ips: vec!["10.0.0.7".parse().unwrap()],
            netns: None,
            nameservers: Vec::new(),
        };
        lock(&self.sandboxes).insert(spec.id, sandbox.clone());
        Ok(sandbox)
    }

    async fn remove_sandbox(&self, id: &SandboxId) -> Result<(), RuntimeError> {
        self.note("remove", "sandbox");
        lock(&self.sandboxes).remove(id);
        Ok(())
    }

    async fn list_sandboxes(&self) -> Result<Vec<SandboxId>, RuntimeError> {
        Ok(lock(&self.sandboxes).keys().cloned().collect())
    }

    async fn adopt_sandbox(&self, id: &SandboxId) -> Result<(Sandbox, Vec<Adopted>), RuntimeError> {
        self.note("adopt", "sandbox");
        let sandbox = lock(&self.sandboxes).get(id).cloned();
        let sandbox = sandbox.ok_or_else(|| RuntimeError::NotFound { kind: "sandbox", id: id.0.clone() })?;
        let made = lock(&self.made);
        let own = made.iter().filter(|(_, made)| made.sandbox.as_ref() == Some(id));
        let adopted = own.map(|(id, made)| Adopted {
            id: id.clone(),
            name: made.name.clone(),
            started: lock(&made.started).map(|at| Started { at, pid: 1 }),
            exit: made.exit.borrow().clone(),
        });
        Ok((sandbox, adopted.collect()))
    }

    async fn create_container(
        &self,
        sandbox: &SandboxId,
        spec: ContainerSpec,
    ) -> Result<ContainerId, RuntimeError> {
        self.note("create", &spec.name);
        let mut script = self.scripts.get(&spec.name).cloned().unwrap_or_default();
        tokio::time::sleep(script.creation).await;
        let nth = self.calls().iter().filter(|c| **c == format!("create {}", spec.name)).count() - 1;
        if let Some(refusal) = script.refusals.get(nth) {
            return Err(refusal());
        }
        let code = script.codes.get(spec.attempt as usize).or(script.codes.last()).copied();
        script.codes = code.into_iter().collect();
        let log = spec.mounts.iter().find(|m| m.target == std::path::Path::new("/dev/termination-log"));
        let made = Made {
            sandbox: Some(sandbox.clone()),
            name: spec.name,
            script,
            attempt: spec.attempt,
            message_file: log.map(|m| m.source.clone()),
            started: Mutex::default(),
            exit: watch::channel(None).0,
        };
        lock(&self.made).insert(spec.id.clone(), Arc::new(made));
        Ok(spec.id)
    }

    async fn start_container(&self, id: &ContainerId) -> Result<Started, RuntimeError> {
        let made = self.find(id)?;
        self.note("start", &format!("{}#{}", made.name, made.attempt));
        let at = self.time();
        *lock(&made.started) = Some(at);
        Ok(Started { at, pid: 1 })
    }

    async fn terminate(&self, id: &ContainerId, _: Duration) -> Result<(), RuntimeError> {
        let made = self.find(id)?;
        self.note("term", &made.name);
        if let Some(wait) = made.script.stops_in {
            tokio::time::sleep(wait).await;
            self.end(&made, made.script.codes[0], None);
        }
        Ok(())
    }

    async fn kill(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        if let Ok(made) = self.find(id) {
            self.note("kill", &made.name);
            self.end(&made, 137, Some(9));
        }
        Ok(())
    }

    async fn wait(&self, id: &ContainerId) -> Result<Exit, RuntimeError> {
        let made = self.find(id)?;
        let mut exit = made.exit.subscribe();
        if let Some(runs) = made.script.runs {
            tokio::select! {
                () = tokio::time::sleep(runs) => self.end(&made, made.script.codes[0], None),
                _ = exit.wait_for(Option::is_some) => {}
            }
        }
        let exit = exit.wait_for(Option::is_some).await.map(|e| e.clone());
        exit.ok().flatten().ok_or(RuntimeError::Other("gone".into()))
    }

    async fn exec(&self, id: &ContainerId, request: ExecRequest) -> Result<ExecOutput, RuntimeError> {
        let made = self.find(id)?;
        let (code, time) = made.script.exec;
        self.note("exec", &made.name);
        let work = tokio::time::sleep(time);
        let output = request.command.join(" ").into_bytes();
        match tokio::time::timeout(request.timeout.unwrap_or(Duration::MAX), work).await {
            Ok(()) => Ok(ExecOutput { code: Some(code), output }),
            Err(_) => Ok(ExecOutput { code: None, output }),
        }
    }

    async fn exec_streams(
        &self,
        _: &ContainerId,
        _: ExecStreamsRequest,
    ) -> Result<ProcessStreams, RuntimeError> {
        Err(RuntimeError::Other("timers have no streams".into()))
    }

    async fn stats(&self, id: &ContainerId) -> Result<Stats, RuntimeError> {
        self.find(id).map(|_| Stats::default())
    }

    async fn port_forward(&self, _: &SandboxId, _: u16) -> Result<TcpStream, RuntimeError> {
        Err(RuntimeError::Other("timers have no network".into()))
    }

    async fn remove_container(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        lock(&self.made).remove(id);
        Ok(())
    }
}
