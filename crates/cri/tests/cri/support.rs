//! A pod on containerd for tests, and the check that nothing of it is left.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outrigger_cri::{CriConfig, CriRuntime, Limits};
use outrigger_runtime::{
    ContainerId, ContainerSpec, ExecOutput, ExecRequest, Exit, Image, ImageError, NetworkMode, NodeIdentity,
    Owner, PullPolicy, PullRequest, Runtime, RuntimeError, Sandbox, SandboxId, SandboxSpec,
};

use outrigger_testkit::containerd::{Containerd, IMAGE};
pub(crate) use outrigger_testkit::trial::{DEADLINE, eventually, log_text};

/// A containerd that is shared by all tests that do not restart or stop it.
static SHARED: Mutex<Option<Containerd>> = Mutex::new(None);

/// The endpoint of the shared containerd. The first test that needs it starts it.
pub(crate) fn endpoint() -> String {
    let mut shared = SHARED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    shared.get_or_insert_with(|| Containerd::start(Some(subnet()))).endpoint()
}

/// The number of the pods' network, different for every process.
pub(crate) fn subnet() -> u8 {
    20 + u8::try_from(std::process::id() % 200).unwrap_or_default()
}

/// The socket of the shared containerd.
pub(crate) fn socket() -> PathBuf {
    PathBuf::from(endpoint().trim_start_matches("unix://"))
}

/// Runs `ctr` on the shared containerd.
fn ctr(args: &[&str]) -> String {
    let shared = SHARED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    shared.as_ref().expect("it runs").ctr(args)
}

fn try_ctr(args: &[&str]) -> Option<String> {
    let shared = SHARED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    shared.as_ref().expect("it runs").try_ctr(args).ok()
}

/// Whether the labels contain a name, or belong to an object in a pod with that name.
fn is_of(labels: &BTreeMap<String, String>, name: &str) -> bool {
    labels
        .get("outrigger.dev/id")
        .is_some_and(|id| id.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('-')))
}

/// The ids and labels of containerd's containers or sandboxes that have one of our names, or are in a pod
/// with that name.
fn found(kind: &str, name: &str) -> Vec<(String, BTreeMap<String, String>)> {
    let filter = format!("labels.\"io.cri-containerd.kind\"=={kind}");
    let ids = ctr(&["containers", "list", "--quiet", &filter]);
    let of = |id: &str| -> Option<(String, BTreeMap<String, String>)> {
        // Containers of other tests may disappear at any moment.
        let info: serde_json::Value = serde_json::from_str(&try_ctr(&["containers", "info", id])?).ok()?;
        Some((id.to_owned(), serde_json::from_value(info["Labels"].clone()).ok()?))
    };
    ids.lines().filter_map(of).filter(|(_, labels)| is_of(labels, name)).collect()
}

/// The labels of the container or sandbox of a pod.
pub(crate) fn labels(kind: &str, pod: &str) -> BTreeMap<String, String> {
    found(kind, pod).into_iter().next().expect("a container of the pod").1
}

/// containerd's ids of the containers or sandboxes that have one of our names, or are in a pod with that
/// name.
pub(crate) fn ids(kind: &str, name: &str) -> Vec<String> {
    found(kind, name).into_iter().map(|(id, _)| id).collect()
}

/// Kills and removes a container without telling its runtime.
pub(crate) async fn remove_behind_our_back(id: &ContainerId) {
    let other = connect(endpoint(), limits()).await;
    other.kill(id).await.expect("kill");
    other.remove_container(id).await.expect("remove");
}

/// Stops the shared containerd. Fails if a test left something behind.
pub(crate) fn finish() {
    let shared = SHARED.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
    if let Some(containerd) = shared {
        containerd.finish();
    }
}

/// Limits short enough for a test.
pub(crate) fn limits() -> Limits {
    Limits {
        question: Duration::from_secs(5),
        work: Duration::from_secs(20),
        patience: Duration::from_secs(20),
    }
}

pub(crate) async fn connect(endpoint: String, limits: Limits) -> Arc<CriRuntime> {
    let config = CriConfig { endpoint: Some(endpoint), limits, ..CriConfig::default() };
    Arc::new(CriRuntime::connect(config).await.expect("these tests need root"))
}

/// A runtime whose pods belong to the node of a state directory.
pub(crate) async fn node(state_dir: &Path) -> Arc<CriRuntime> {
    node_at(state_dir, endpoint()).await
}

/// Like [`node`], at another endpoint.
pub(crate) async fn node_at(state_dir: &Path, endpoint: String) -> Arc<CriRuntime> {
    let owner = Owner::Node(NodeIdentity::open(state_dir).expect("no other node"));
    let config = CriConfig { endpoint: Some(endpoint), limits: limits(), owner, ..CriConfig::default() };
    Arc::new(CriRuntime::connect(config).await.expect("these tests need root"))
}

/// One pod with a directory of its own.
pub(crate) struct Pod {
    pub(crate) runtime: Arc<CriRuntime>,
    pub(crate) id: SandboxId,
    pub(crate) sandbox: Sandbox,
    pub(crate) image: Image,
    dir: tempfile::TempDir,
    containers: AtomicU32,
}

/// The default sandbox spec of a pod.
pub(crate) fn sandbox_spec(dir: &Path) -> SandboxSpec {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let id = SandboxId(format!("t{}-{number}", std::process::id()));
    let mut spec = outrigger_testkit::trial::sandbox_spec(id, dir.to_owned());
    spec.pod_name = format!("pod-{number}");
    spec.pod_uid = format!("uid-{number}");
    spec.network = NetworkMode::Host;
    spec
}

/// Looks up an existing image.
pub(crate) async fn image(runtime: &CriRuntime, reference: &str) -> Result<Image, ImageError> {
    let request =
        PullRequest { reference: reference.to_owned(), policy: PullPolicy::Never, auth: Vec::new() };
    runtime.pull_image(request, Arc::new(|_| {})).await
}

impl Pod {
    pub(crate) async fn new() -> Self {
        Self::with(|_| {}).await
    }

    pub(crate) async fn with(change: impl FnOnce(&mut SandboxSpec)) -> Self {
        Self::on(connect(endpoint(), limits()).await, change).await
    }

    pub(crate) async fn on(runtime: Arc<CriRuntime>, change: impl FnOnce(&mut SandboxSpec)) -> Self {
        let dir = tempfile::Builder::new().prefix("outrigger-test-").tempdir().expect("temporary directory");
        let mut spec = sandbox_spec(dir.path());
        change(&mut spec);
        let id = spec.id.clone();
        let image = image(&runtime, IMAGE).await.expect("image");
        let sandbox = runtime.create_sandbox(spec).await.expect("sandbox");
        Pod { runtime, id, sandbox, image, dir, containers: AtomicU32::new(0) }
    }

    /// A container that runs a shell script.
    pub(crate) fn script(&self, script: &str) -> ContainerSpec {
        let number = self.containers.fetch_add(1, Ordering::Relaxed);
        let id = ContainerId(format!("{}-c{number}", self.id));
        let log = self.dir.path().join(format!("{number}.log"));
        let mut spec = ContainerSpec::new(id, self.image.clone(), &["sh", "-c", script], log);
        spec.name = format!("c{number}");
        spec
    }

    /// A directory of the host for this test only.
    pub(crate) fn scratch(&self, name: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        fs::create_dir_all(&path).expect("scratch");
        path
    }

    /// Creates and starts a container.
    pub(crate) async fn start(&self, spec: ContainerSpec) -> Result<ContainerId, RuntimeError> {
        let id = self.runtime.create_container(&self.id, spec).await?;
        self.runtime.start_container(&id).await?;
        Ok(id)
    }

    pub(crate) async fn wait(&self, id: &ContainerId) -> Exit {
        tokio::time::timeout(DEADLINE, self.runtime.wait(id)).await.expect("an end").expect("exit")
    }

    /// Runs a container until it ends. Returns its exit, and its log without time and stream.
    pub(crate) async fn run(&self, spec: ContainerSpec) -> (Exit, String) {
        let log = spec.log_path.clone();
        let id = self.start(spec).await.expect("start");
        let exit = self.wait(&id).await;
        (exit, log_text(&log))
    }

    /// Runs a script until it ends successfully, and returns its output.
    pub(crate) async fn output(&self, spec: ContainerSpec) -> String {
        let (exit, log) = self.run(spec).await;
        assert_eq!(exit.code, 0, "log: {log}");
        log
    }

    pub(crate) async fn exec(&self, id: &ContainerId, script: &str) -> ExecOutput {
        self.try_exec(id, script, DEADLINE).await.expect("exec")
    }

    pub(crate) async fn try_exec(
        &self,
        id: &ContainerId,
        script: &str,
        timeout: Duration,
    ) -> Result<ExecOutput, RuntimeError> {
        let command = vec!["sh".to_owned(), "-c".to_owned(), script.to_owned()];
        let request = ExecRequest { command, timeout: Some(timeout), output_limit: 10_000 };
        self.runtime.exec(id, request).await
    }

    /// Waits until the container's log has a line.
    pub(crate) async fn saw(&self, log: &Path, line: &str) {
        eventually(line, || log_text(log).lines().any(|l| l == line)).await;
    }

    /// Leaves the pod as if this process had ended. Returns the pod's directory.
    pub(crate) fn leave(self) -> tempfile::TempDir {
        self.dir
    }

    /// Removes the pod.
    pub(crate) async fn finish(self) {
        self.runtime.remove_sandbox(&self.id).await.expect("remove");
        self.runtime.remove_sandbox(&self.id).await.expect("remove twice");
    }
}

/// Whether a process runs whose arguments contain a text.
pub(crate) fn runs_with(text: &str) -> bool {
    let processes = fs::read_dir("/proc").expect("/proc").filter_map(Result::ok);
    processes
        .filter_map(|process| fs::read(process.path().join("cmdline")).ok())
        .any(|arguments| String::from_utf8_lossy(&arguments).contains(text))
}
