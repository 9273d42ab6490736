//! Creates a pod to run containers in, and checks that nothing of it is left.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock};

use crate::trial::sandbox_spec as sandbox_spec_of;
pub use crate::trial::{DEADLINE, eventually, log_text};
use outrigger_embedded::{EmbeddedConfig, EmbeddedRuntime, OciRuntime, OciRuntimes};
use outrigger_runtime::{
    ContainerId, ContainerSpec, ExecOutput, ExecRequest, Exit, Image, NodeIdentity, Owner, Runtime,
    RuntimeError, SandboxId, SandboxSpec, UserNamespace,
};

/// The variable that passes the root file system to helper processes.
pub const ROOTFS_VARIABLE: &str = "OUTRIGGER_TEST_ROOTFS";

/// The variable that, set to `host`, runs the pods of all these tests with the host's users, to check
/// differences manually.
const USERNS_VARIABLE: &str = "OUTRIGGER_TEST_USERNS";

/// With a user namespace and with the host's users. The user namespace alone may cause a refusal, which would
/// hide that another check is missing.
pub const BOTH_USERS: [UserNamespace; 2] = [UserNamespace::Auto, UserNamespace::Host];

/// A root file system with one busybox.
static ROOTFS: LazyLock<PathBuf> = LazyLock::new(|| {
    // A helper process uses the root file system of the test, which outlives it.
    if let Some(given) = std::env::var_os(ROOTFS_VARIABLE) {
        return given.into();
    }
    // It is kept for the whole run and named after the process. A later run removes it.
    let base = std::env::temp_dir().join("outrigger-test-rootfs");
    fs::create_dir_all(&base).expect("temporary directory");
    for old in fs::read_dir(&base).into_iter().flatten().flatten() {
        let pid = old.file_name().to_string_lossy().into_owned();
        // An earlier process may have had the same pid.
        let is_stale = pid == std::process::id().to_string() || !Path::new("/proc").join(pid).exists();
        if is_stale {
            let _ = fs::remove_dir_all(old.path());
        }
    }
    let root = base.join(std::process::id().to_string());
    for dir in ["bin", "etc", "tmp", "root", "home/web"] {
        fs::create_dir_all(root.join(dir)).expect("rootfs");
    }
    fs::copy("/bin/busybox", root.join("bin/busybox")).expect("install busybox-static");
    let applets = Command::new("/bin/busybox").arg("--list").output().expect("busybox").stdout;
    for applet in String::from_utf8(applets).expect("names").lines().filter(|name| *name != "busybox") {
        symlink("busybox", root.join("bin").join(applet)).expect("applet");
    }
    fs::write(root.join("etc/passwd"), "root:x:0:0::/root:/bin/sh\nweb:x:33:34::/home/web:/bin/sh\n")
        .expect("passwd");
    fs::write(root.join("etc/group"), "root:x:0:\nweb:x:34:\nlog:x:70:web\n").expect("group");
    root
});

/// The root file system of the images in these tests.
pub fn rootfs() -> &'static Path {
    &ROOTFS
}

/// One pod with its own state directory.
pub struct Pod {
    pub runtime: Arc<EmbeddedRuntime>,
    pub id: SandboxId,
    pub sandbox: outrigger_runtime::Sandbox,
    pub dir: PathBuf,
    state: PathBuf,
    _temporary: Option<tempfile::TempDir>,
    containers: AtomicU32,
}

/// The variable that selects the OCI runtime for the containers.
pub const OCI_RUNTIME_VARIABLE: &str = "OUTRIGGER_TEST_OCI_RUNTIME";

/// A runtime on a new state directory.
pub fn runtime(state_dir: &Path) -> Arc<EmbeddedRuntime> {
    runtime_of(Owner::Process, state_dir)
}

/// A runtime whose pods belong to the node.
pub async fn node(state_dir: &Path) -> Arc<EmbeddedRuntime> {
    // The tasks of a dropped node may end a little later.
    let mut node = None;
    eventually("no other node", || {
        node = NodeIdentity::open(state_dir).ok();
        node.is_some()
    })
    .await;
    runtime_of(Owner::Node(node.expect("no other node")), state_dir)
}

fn runtime_of(owner: Owner, state_dir: &Path) -> Arc<EmbeddedRuntime> {
    let shim_command = vec!["/proc/self/exe".to_owned(), "shim".to_owned()];
    let config = EmbeddedConfig {
        state_dir: state_dir.to_owned(),
        shim_command,
        image_limits: outrigger_images::ImageLimits::default(),
        owner,
    };
    let runtime = EmbeddedRuntime::new(config).expect("these tests need root");
    Arc::new(match std::env::var(OCI_RUNTIME_VARIABLE) {
        Ok(name) => {
            let default = OciRuntime::find(&name, &[]).expect("the OCI runtime");
            runtime.with_oci_runtimes(OciRuntimes::all_by(default))
        }
        Err(_) => runtime,
    })
}

/// The default sandbox spec of a pod.
pub fn sandbox_spec(runtime: &EmbeddedRuntime) -> SandboxSpec {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let id = SandboxId(format!("t{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
    let mut spec = sandbox_spec_of(id.clone(), runtime.pod_dir(&id));
    // Pods of the product have a user namespace, too.
    let is_host = std::env::var(USERNS_VARIABLE).is_ok_and(|users| users == "host");
    spec.user_namespace = if is_host { UserNamespace::Host } else { UserNamespace::Auto };
    spec
}

impl Pod {
    pub async fn new() -> Self {
        Self::with(|_| {}).await
    }

    /// A pod that uses the host's users.
    pub async fn with_host_users() -> Self {
        Self::with(|spec| spec.user_namespace = UserNamespace::Host).await
    }

    pub async fn with(change: impl FnOnce(&mut SandboxSpec)) -> Self {
        let state =
            tempfile::Builder::new().prefix("outrigger-test-").tempdir().expect("temporary directory");
        let mut pod = Self::in_state_dir(state.path(), change).await;
        pod._temporary = Some(state);
        pod
    }

    pub async fn in_state_dir(state: &Path, change: impl FnOnce(&mut SandboxSpec)) -> Self {
        Self::on(runtime(state), state, change).await
    }

    /// A pod on an existing runtime.
    pub async fn on(
        runtime: Arc<EmbeddedRuntime>,
        state: &Path,
        change: impl FnOnce(&mut SandboxSpec),
    ) -> Self {
        let mut spec = sandbox_spec(&runtime);
        change(&mut spec);
        let (id, dir) = (spec.id.clone(), spec.pod_dir.clone());
        let sandbox = runtime.create_sandbox(spec).await.expect("sandbox");
        Pod {
            runtime,
            id,
            sandbox,
            dir,
            state: state.to_owned(),
            containers: AtomicU32::new(0),
            _temporary: None,
        }
    }

    /// A container that runs a shell script.
    pub fn script(&self, script: &str) -> ContainerSpec {
        let number = self.containers.fetch_add(1, Ordering::Relaxed);
        let id = ContainerId(format!("c{number}"));
        let (image, log) = (Image::of_layers("test", vec![rootfs().to_owned()]), format!("{id}.log"));
        let mut spec = ContainerSpec::new(id, image, &["sh", "-c", script], self.state.join(log));
        spec.name = "main".to_owned();
        spec
    }

    /// A directory of the host that only this test uses.
    pub fn scratch(&self, name: &str) -> PathBuf {
        let path = self.state.join(name);
        fs::create_dir_all(&path).expect("scratch");
        path
    }

    /// Creates and starts a container.
    pub async fn start(&self, spec: ContainerSpec) -> Result<ContainerId, RuntimeError> {
        let id = self.runtime.create_container(&self.id, spec).await?;
        self.runtime.start_container(&id).await?;
        Ok(id)
    }

    pub async fn wait(&self, id: &ContainerId) -> Exit {
        tokio::time::timeout(DEADLINE, self.runtime.wait(id)).await.expect("an end").expect("exit")
    }

    /// Runs a container to its end. Returns its exit, and its log without time and stream.
    pub async fn run(&self, spec: ContainerSpec) -> (Exit, String) {
        let log = spec.log_path.clone();
        let id = self.start(spec).await.expect("start");
        let exit = self.wait(&id).await;
        (exit, log_text(&log))
    }

    /// Runs a script to its successful end and returns its output.
    pub async fn output(&self, spec: ContainerSpec) -> String {
        let (exit, log) = self.run(spec).await;
        assert_eq!(exit.code, 0, "log: {log}");
        log
    }

    pub async fn exec(&self, id: &ContainerId, script: &str) -> ExecOutput {
        let command = vec!["sh".to_owned(), "-c".to_owned(), script.to_owned()];
        let request = ExecRequest { command, timeout: Some(DEADLINE), output_limit: 10_000 };
        self.runtime.exec(id, request).await.expect("exec")
    }

    /// The directory of a container's state.
    pub fn container_dir(&self, id: &str) -> PathBuf {
        self.dir.join("ns/containers").join(id)
    }

    /// The directory of a container's own layer.
    pub fn layer_dir(&self, id: &str) -> PathBuf {
        self.dir.join("layers").join(id)
    }

    /// The pid of the container's shim.
    pub fn shim(&self, id: &ContainerId) -> u64 {
        self.process(id, "shim")
    }

    /// The pid of the container's first process.
    pub fn first_process(&self, id: &ContainerId) -> u64 {
        self.process(id, "init")
    }

    fn process(&self, id: &ContainerId, which: &str) -> u64 {
        let state = fs::read(self.container_dir(&id.0).join("state.json")).expect("state");
        let state: serde_json::Value = serde_json::from_slice(&state).expect("state");
        state[which]["pid"].as_u64().expect("a process")
    }

    /// Waits until the container's log contains a line.
    pub async fn saw(&self, log: &Path, line: &str) {
        eventually(line, || log_text(log).lines().any(|l| l == line)).await;
    }

    /// Removes the pod and checks that nothing is left of it.
    pub async fn finish(self) {
        self.runtime.remove_sandbox(&self.id).await.expect("remove");
        self.runtime.remove_sandbox(&self.id).await.expect("remove twice");
        assert_nothing_left(&self.state, &self.id);
        assert!(!self.dir.exists(), "{} is left", self.dir.display());
    }
}

impl Drop for Pod {
    /// After a failure, removes the pod as the next run of the product would.
    fn drop(&mut self) {
        if self.dir.join("sandbox.json").exists() && std::thread::panicking() {
            let state = self.state.clone();
            let id = self.id.clone();
            let mine = self.runtime.clone();
            let cleaner = std::thread::spawn(move || {
                let tokio =
                    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("tokio");
                tokio.block_on(async {
                    let _ = mine.remove_sandbox(&id).await;
                    runtime(&state).clean_orphans().await;
                });
            });
            let _ = cleaner.join();
        }
    }
}

/// Checks that a pod has no mounts, cgroups or processes left.
pub fn assert_nothing_left(state_dir: &Path, id: &SandboxId) {
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
    let left: Vec<&str> =
        mounts.lines().filter(|line| line.contains(&*state_dir.to_string_lossy())).collect();
    assert!(left.is_empty(), "mounts are left: {left:?}");
    let cgroups = cgroups(&id.0);
    assert!(cgroups.is_empty(), "cgroups are left: {cgroups:?}");
}

/// Directories of a sandbox in all cgroup hierarchies.
pub fn cgroups(sandbox: &str) -> Vec<PathBuf> {
    let base = Path::new("/sys/fs/cgroup");
    let roots =
        fs::read_dir(base).expect("cgroups").flatten().map(|entry| entry.path()).chain([base.to_owned()]);
    roots.map(|root| root.join("outrigger").join(sandbox)).filter(|dir| dir.exists()).collect()
}
