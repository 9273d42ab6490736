//! [`EmbeddedRuntime`], the part of the runtime that runs in the agent.

use std::collections::HashMap;
use std::net::IpAddr;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::{OnceCell, watch};

use super::cgroup::{self, Hierarchies};
use super::fault::Fault;
use super::link::{ContainerLocation, Link, Phase};
use super::network::{self, Forwarders, Uplink};
use super::oci::{self, OciRuntimes};
use super::oci_runtime::OciRuntime;
use super::orphans::{self, Orphan};
use super::program::ShimProgram;
use super::protocol::{ContainerState, ProcessRecord, Request, SandboxState, ShimConfig};
use super::shim::ID_MAX;
use super::spawner::Spawner;
use super::{elsewhere, hurry, layout, reclaim, rootless, sandbox, userns};
use outrigger_images::{ImageLimits, ImageStore};
use outrigger_runtime::netns::connect_loopback;
use outrigger_runtime::ownership::Claims;
use outrigger_runtime::private;
use outrigger_runtime::stop::{join_all, stop_in_order};
use outrigger_runtime::{
    Adopted, ContainerId, ContainerSpec, ExecOutput, ExecRequest, ExecStreamsRequest, Exit, Image,
    ImageError, NetworkMode, Owner, ProcessStreams, ProgressSink, PullRequest, Runtime, RuntimeError,
    Sandbox, SandboxId, SandboxSpec, Started, Stats, UserNamespace, descriptors, signals,
};

/// The name of this runtime that users see.
const NAME: &str = "embedded";

/// How long to wait for the shims of an adopted pod to report the state of their containers.
const ADOPTION_PATIENCE: Duration = Duration::from_secs(10);

/// The configuration of an [`EmbeddedRuntime`].
#[derive(Debug, Clone)]
pub struct EmbeddedConfig {
    /// The directory for images, pods and containers.
    pub state_dir: PathBuf,
    /// The program to run as a shim, and the arguments for that, for example `/proc/self/exe shim`.
    pub shim_command: Vec<String>,
    /// Limits on pulling an image.
    pub image_limits: ImageLimits,
    /// The owner of its pods.
    pub owner: Owner,
}

/// Runs containers by itself, without a daemon and without another runtime.
pub struct EmbeddedRuntime {
    config: EmbeddedConfig,
    images: ImageStore,
    hierarchies: Hierarchies,
    shim: Arc<ShimProgram>,
    spawner: Arc<Spawner>,
    containers: Mutex<HashMap<ContainerId, Entry>>,
    sandboxes: Mutex<HashMap<SandboxId, Pod>>,
    claims: Claims,
    /// Created for the first pod that needs it, if this process runs without root.
    uplink: OnceCell<Uplink>,
    oci: OciRuntimes,
    /// The process that stops the pods if this one is killed. It is started with the first pod.
    guard: tokio::sync::Mutex<Option<Child>>,
    /// Removed sandboxes that were on the bridge. The kernel may need a moment to remove their interfaces.
    off_bridge: Mutex<Vec<SandboxId>>,
    /// Whether the bridge existed before this run's pods. If so, this run releases it when one of its pods is
    /// removed, because nobody else may need it.
    network_is_left: AtomicBool,
}

#[derive(Clone)]
struct Entry {
    link: Arc<Link>,
    sandbox: SandboxId,
    pod_dir: PathBuf,
}

/// The kind of pod that ports are opened for.
#[derive(Debug, Clone, Copy)]
enum Opening {
    /// A new pod. Without its ports, it must not start.
    New,
    /// A pod that already runs. It continues without its ports.
    Adopted,
}

struct Pod {
    dir: PathBuf,
    /// `None` until the sandbox is created.
    state: Option<SandboxState>,
    /// Published ports, open for as long as the pod exists.
    ports: Option<Forwarders>,
}

impl Pod {
    fn is_on_bridge(&self) -> bool {
        self.state.as_ref().is_some_and(|state| state.net.is_some() && !state.ips.is_empty())
    }

    /// The addresses to which the kernel may forward published ports.
    fn published_at(&self) -> Vec<IpAddr> {
        match &self.state {
            Some(state) if !state.ports.is_empty() && state.net.is_some() => state.ips.clone(),
            _ => Vec::new(),
        }
    }
}

impl EmbeddedRuntime {
    /// Opens the runtime on a state directory, which is created if missing.
    ///
    /// # Errors
    /// This process is not root, there is no shim command, or the state directory cannot be accessed.
    pub fn new(config: EmbeddedConfig) -> Result<Self, RuntimeError> {
        EmbeddedRuntime::may_run()?;
        let Some(program) = config.shim_command.first() else {
            return Err(RuntimeError::Config("the shim command is empty".to_owned()));
        };
        let pods = layout::pods_dir(&config.state_dir);
        private::state_dir(&config.state_dir).and_then(|_| private::make(&pods)).map_err(|error| {
            RuntimeError::Config(format!("cannot keep pods in {}: {error}", pods.display()))
        })?;
        layout::spread(&pods);
        let hierarchies = Hierarchies::detect();
        if !config.owner.is_process() {
            elsewhere::refuse(&config.state_dir, &hierarchies)
                .map_err(|error| RuntimeError::Config(error.to_string()))?;
        }
        let shim = Arc::new(ShimProgram::open(Path::new(program))?);
        let (of_shims, arguments) = (Arc::clone(&shim), config.shim_command[1..].to_vec());
        Ok(EmbeddedRuntime {
            images: ImageStore::open_with(&config.state_dir, config.image_limits)?,
            hierarchies,
            shim,
            spawner: Spawner::new(move || of_shims.command(&arguments, "containers")),
            claims: Claims::new(config.owner.clone(), NAME),
            config,
            containers: Mutex::default(),
            sandboxes: Mutex::default(),
            uplink: OnceCell::new(),
            oci: OciRuntimes::default(),
            guard: tokio::sync::Mutex::default(),
            off_bridge: Mutex::default(),
            network_is_left: AtomicBool::new(false),
        })
    }

    /// Uses installed OCI runtimes to create the containers of some pods, or of all.
    #[must_use]
    pub fn with_oci_runtimes(mut self, runtimes: OciRuntimes) -> Self {
        self.oci = runtimes;
        self
    }

    /// The OCI runtime that creates the containers of pods of a class. `None` if the shim creates them
    /// itself.
    ///
    /// # Errors
    /// There is no such class, or its runtime is not installed.
    pub fn oci_runtime_of(&self, class: Option<&str>) -> Result<Option<OciRuntime>, RuntimeError> {
        self.oci.of_class(class)
    }

    /// Checks whether an OCI runtime can create containers here. Blocks until it has created one. The result
    /// is stored until the next boot, or until the runtime is replaced.
    ///
    /// # Errors
    /// The runtime cannot, with its own error message.
    pub fn try_oci_runtime(&self, runtime: &OciRuntime) -> Result<(), RuntimeError> {
        let shim = self.shim_command("try-oci-runtime");
        oci::try_runtime(shim, runtime, &self.config.state_dir, &self.hierarchies)
    }

    /// Whether this process may create containers: as root, or as an ordinary user who has become root of a
    /// user namespace ([`rootless::enter`]).
    ///
    /// # Errors
    /// It is neither.
    pub fn may_run() -> Result<(), RuntimeError> {
        match rootless::has_powers() {
            true => Ok(()),
            false => Err(RuntimeError::Config(format!(
                "user {} is not root, of this machine or of a user namespace (see rootless::enter)",
                rustix::process::geteuid().as_raw()
            ))),
        }
    }

    /// The directory of a pod. [`SandboxSpec::pod_dir`] must have this value, so that
    /// [`EmbeddedRuntime::clean_orphans`] finds it.
    pub fn pod_dir(&self, id: &SandboxId) -> PathBuf {
        layout::pods_dir(&self.config.state_dir).join(&id.0)
    }

    /// Creates a pod's directory and marks it as owned by this process, so that it is not taken for an
    /// orphan. [`Runtime::create_sandbox`] also does this. Call this first if the directory is filled before
    /// that.
    ///
    /// # Errors
    /// The directory cannot be created, or another process owns it.
    pub fn claim_pod_dir(&self, id: &SandboxId, dir: &Path) -> Result<(), RuntimeError> {
        self.claims.claim(dir)?;
        let new = || Pod { state: None, ports: None, dir: dir.to_owned() };
        lock(&self.sandboxes).entry(id.clone()).or_insert_with(new);
        Ok(())
    }

    /// Ends and removes what crashed processes have left in this state directory. Returns the removed
    /// sandboxes.
    pub async fn clean_orphans(&self) -> Vec<SandboxId> {
        let pods = layout::pods_dir(&self.config.state_dir);
        let hierarchies = self.hierarchies.clone();
        let found = blocking(move || Ok(orphans::find(&pods, &hierarchies))).await.unwrap_or_default();
        let removed = join_all(found.into_iter().map(|orphan| self.clean_orphan(orphan))).await;
        let removed: Vec<SandboxId> = removed.into_iter().flatten().collect();
        for id in &removed {
            if let Err(error) = network::detach(id).await {
                tracing::warn!(sandbox = %id, %error, "could not remove the network of an orphaned pod");
            }
        }
        let hierarchies = self.hierarchies.clone();
        let _ = tokio::task::spawn_blocking(move || reclaim::once(&hierarchies)).await;
        // This is also needed after a run that was killed when its last pod was already removed.
        if network::is_changed().await {
            let pods = lock(&self.sandboxes);
            if pods.is_empty() {
                drop(pods);
                self.release_network_aside();
            } else {
                // This run may be about to use it. It is checked again when one of its pods ends.
                self.network_is_left.store(true, Ordering::Relaxed);
            }
        }
        removed
    }

    /// Stops the containers of a pod without an owner in their order, and removes the pod.
    async fn clean_orphan(&self, orphan: Orphan) -> Option<SandboxId> {
        let (id, dir) = (orphan.id.clone(), orphan.dir.clone());
        let state = layout::read_json::<SandboxState>(&dir.join("sandbox.json"));
        if let Some(state) = state.as_ref().filter(|state| !state.ports.is_empty()) {
            network::unpublish(&state.ips).await;
        }
        if let Some(state) = state.filter(|state| !state.stop.turns.is_empty() && sandbox::is_pinned(state)) {
            let containers = self.adopt_containers(&id, &dir).await;
            let (sender, wanted) = watch::channel(None);
            tokio::select! {
                () = stop_in_order(self, &containers, &state.stop, wanted) => {}
                never = hurry::follow(&dir, &sender) => match never {},
            }
            lock(&self.containers).retain(|_, entry| entry.sandbox != id);
        }
        let hierarchies = self.hierarchies.clone();
        let removed = tokio::task::spawn_blocking(move || orphan.remove(&hierarchies)).await;
        match removed.map_err(std::io::Error::other).flatten() {
            Ok(()) => Some(id),
            Err(error) => {
                tracing::warn!(pod = %id, %error, "could not remove an orphaned pod");
                None
            }
        }
    }

    /// Makes sure that there is a process that stops the pods of this process if it is killed. A node's pods
    /// keep running.
    pub async fn ensure_guard(&self) {
        if !self.config.owner.is_process() {
            return;
        }
        let mut guard = self.guard.lock().await;
        if let Some(child) = &mut *guard
            && matches!(child.try_wait(), Ok(None))
        {
            return;
        }
        let Some(own) = ProcessRecord::of_pid(std::process::id() as i32) else { return };
        let mut command = self.shim_command("guard");
        command.args([own.pid.to_string(), own.start_ticks.to_string()]);
        command.arg(&self.config.state_dir).args(&self.config.shim_command[1..]);
        // The guard outlives the run, and a reader of the run's output would otherwise wait for the guard's
        // end.
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let spawned = tokio::task::spawn_blocking(move || command.spawn()).await;
        match spawned.map_err(std::io::Error::other).flatten() {
            Ok(child) => *guard = Some(child),
            Err(error) => {
                tracing::warn!(%error, "if this process is killed, its containers are stopped by the next run only");
            }
        }
    }

    /// The sandboxes that were on the host's bridge, if no pod of this run is on it any more. Without root
    /// there are none, because the bridge of the uplink ends with the run.
    fn network_is_free(&self) -> Option<Vec<SandboxId>> {
        if rootless::standing().is_rootless() && !rootless::owns_network() {
            return None;
        }
        let in_use = lock(&self.sandboxes).values().any(Pod::is_on_bridge);
        (!in_use).then(|| lock(&self.off_bridge).clone())
    }

    /// Starts another process that undoes the network changes on the host, if no pod needs them any more. The
    /// kernel takes about 50 ms to remove a bridge, and nobody should wait for that. The process first waits
    /// a moment, so that consecutive runs can reuse the bridge.
    fn release_network_aside(&self) {
        let Some(leaving) = self.network_is_free() else { return };
        let mut command = tokio::process::Command::from(self.shim_command("release-network"));
        // The process may need `iptables`.
        command.envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
        command
            .args(leaving.iter().map(|id| &id.0))
            // The process may outlive the run, and a signal to the run's process group must not end it.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        if let Err(error) = command.spawn() {
            tracing::warn!(%error, "IP forwarding stays on until the next run");
        }
    }

    fn entry(&self, id: &ContainerId) -> Result<Entry, RuntimeError> {
        let entry = lock(&self.containers).get(id).cloned();
        entry.ok_or_else(|| RuntimeError::NotFound { kind: "container", id: id.0.clone() })
    }

    async fn end_container(&self, entry: &Entry) {
        // This is also sent to a container that has ended. Its shim may be waiting for disk space to store
        // that.
        entry.link.send(Request::Kill);
        entry.link.gone().await;
    }

    /// The shim's program with its arguments.
    fn shim_command(&self, role: &str) -> std::process::Command {
        self.shim.command(&self.config.shim_command[1..], role)
    }

    /// Connects a new sandbox to its network, and opens its ports at the host.
    async fn connect(&self, spec: &SandboxSpec, mut state: SandboxState) -> Result<Sandbox, RuntimeError> {
        if let Some(netns) = &state.net {
            let uplink = self.uplink(spec.network).await?;
            let through = uplink.map(Uplink::path);
            state.ips = network::attach_through(through.as_deref(), netns, spec).await?.ips;
            sandbox::save(&state)?;
        }
        self.open_ports(&state, Opening::New).await?;
        let nameservers = self.uplink.get().and_then(Uplink::nameserver).into_iter().collect();
        let sandbox =
            Sandbox { id: spec.id.clone(), ips: state.ips.clone(), netns: state.net.clone(), nameservers };
        if let Some(pod) = lock(&self.sandboxes).get_mut(&spec.id) {
            pod.state = Some(state);
        }
        Ok(sandbox)
    }

    /// The uplink of the pods, if this process runs without root.
    async fn uplink(&self, mode: NetworkMode) -> Result<Option<&Uplink>, RuntimeError> {
        if mode != NetworkMode::Private || !rootless::standing().is_rootless() || rootless::owns_network() {
            return Ok(None);
        }
        let made = self.uplink.get_or_try_init(|| {
            let (program, arguments) = (self.shim.path(), self.config.shim_command[1..].to_vec());
            Uplink::open(move || {
                let mut command = std::process::Command::new(&program);
                descriptors::with_first_limit(&mut command);
                command.arg0("outrigger").args(&arguments).arg("uplink");
                command
            })
        });
        made.await.map(Some).map_err(|e| RuntimeError::Create(format!("cannot connect pods: {e}")))
    }

    async fn open_ports(&self, state: &SandboxState, opening: Opening) -> Result<(), RuntimeError> {
        // A program on the host network listens there itself.
        if !state.ports.is_empty() && state.net.is_some() {
            let Some(pod) = state.ips.first() else {
                return Err(outrigger_runtime::no_address(&state.ports));
            };
            let bridge = self.uplink.get().map(Uplink::path);
            let ports = match opening {
                Opening::New => Forwarders::start(*pod, bridge.as_deref(), &state.ports).await?,
                Opening::Adopted => Forwarders::resume(*pod, bridge.as_deref(), &state.ports).await,
            };
            if let Some(pod) = lock(&self.sandboxes).get_mut(&state.id) {
                pod.ports = Some(ports);
            }
        }
        Ok(())
    }

    /// The stored state of a sandbox that may be adopted.
    fn read_sandbox(&self, id: &SandboxId) -> Result<SandboxState, RuntimeError> {
        let not_found = || RuntimeError::NotFound { kind: "sandbox", id: id.0.clone() };
        let path = self.pod_dir(id).join("sandbox.json");
        let text = match private::read(&path, layout::JSON_MAX) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Err(not_found()),
            result => result
                .map_err(|error| RuntimeError::Other(format!("cannot read {}: {error}", path.display())))?,
        };
        let state: SandboxState = serde_json::from_slice(&text)
            .map_err(|error| RuntimeError::Other(format!("{} is damaged: {error}", path.display())))?;
        if rootless::standing().is_rootless() {
            return Err(RuntimeError::Other(format!(
                "pod {} cannot be taken over: without root, a pod's namespaces and network end with the process that \
                 made them",
                state.pod
            )));
        }
        // After a reboot, only files are left.
        match sandbox::is_pinned(&state) {
            true => Ok(state),
            false => Err(not_found()),
        }
    }

    /// Connects to the shims of all containers of a pod concurrently, and waits until each has reported the
    /// state of its container.
    async fn adopt_containers(&self, sandbox: &SandboxId, pod_dir: &Path) -> Vec<Adopted> {
        let mut links = Vec::new();
        for id in layout::containers(pod_dir) {
            let dir = layout::container_dir(pod_dir, &id.0);
            // A running shim is more reliable than a damaged file.
            let state: ContainerState = layout::read_json(&dir.join("state.json")).unwrap_or_default();
            let link = Arc::new(Link::adopt(&state, self.remains(sandbox, &id, &dir)));
            let (sandbox, pod_dir) = (sandbox.clone(), pod_dir.to_owned());
            lock(&self.containers).insert(id.clone(), Entry { link: Arc::clone(&link), sandbox, pod_dir });
            links.push((id, state.name, link));
        }
        let deadline = tokio::time::Instant::now() + ADOPTION_PATIENCE;
        let mut adopted = Vec::with_capacity(links.len());
        for (id, name, link) in links {
            let known = link.until(|phase| match phase {
                Phase::Creating => None,
                Phase::Running(started) => Some((Some(started.into()), None)),
                Phase::Exited(exit) => {
                    Some((Some(Started { at: exit.started_at, pid: 0 }), Some(exit.clone())))
                }
                Phase::Created | Phase::Failed(_) => Some((None, None)),
            });
            let known = match tokio::time::timeout_at(deadline, known).await {
                Ok(known) => known,
                Err(_) => {
                    tracing::warn!(container = %id, "its shim does not answer: it is killed, and the container with it");
                    link.give_up();
                    link.until(|phase| match phase {
                        Phase::Exited(exit) => {
                            Some((Some(Started { at: exit.started_at, pid: 0 }), Some(exit.clone())))
                        }
                        phase if phase.is_over() => Some((None, None)),
                        _ => None,
                    })
                    .await
                }
            };
            if let Ok((started, exit)) = known {
                adopted.push(Adopted { id, name, started, exit });
            }
        }
        adopted
    }

    fn remains(&self, sandbox: &SandboxId, id: &ContainerId, dir: &Path) -> ContainerLocation {
        ContainerLocation {
            dir: dir.to_owned(),
            cgroup: cgroup::container_path(&sandbox.0, &id.0),
            hierarchies: self.hierarchies.clone(),
        }
    }
}

impl Drop for EmbeddedRuntime {
    /// Ends the guard process of a runtime without pods.
    fn drop(&mut self) {
        let has_pods = !lock(&self.sandboxes).is_empty();
        if let Some(guard) = self.guard.get_mut()
            && !has_pods
        {
            let _ = guard.kill().and_then(|()| guard.wait());
        }
    }
}

impl Runtime for EmbeddedRuntime {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn pull_image(&self, request: PullRequest, progress: ProgressSink) -> Result<Image, ImageError> {
        self.images.ensure(request, progress).await
    }

    fn check_sandbox(&self, spec: &SandboxSpec) -> Result<(), RuntimeError> {
        // Something that can never be applied would be retried forever.
        if spec.user_namespace == UserNamespace::Required && !rootless::standing().is_rootless() {
            if let Ok(Some(oci)) = self.oci.of_class(spec.runtime_class.as_deref()) {
                userns::with_oci_runtime(spec.user_namespace, oci.name())?;
            }
            if let Some(refusal) = sandbox::of_host_namespaces(spec) {
                refusal.settle(spec.user_namespace)?;
            }
        }
        spec.check_ports()?;
        Forwarders::check(spec.network, &spec.ports)
    }

    fn gives_user_namespaces(&self) -> bool {
        // Without root, everything is already in one user namespace.
        !rootless::standing().is_rootless()
    }

    async fn create_sandbox(&self, spec: SandboxSpec) -> Result<Sandbox, RuntimeError> {
        check_id(&spec.id.0)?;
        let oci_runtime = self.oci.of_class(spec.runtime_class.as_deref())?;
        let spawner = Arc::clone(&self.spawner);
        tokio::spawn(async move { spawner.prepare().await });
        self.ensure_guard().await;
        self.claim_pod_dir(&spec.id, &spec.pod_dir)?;
        let (mut making, hierarchies) = (spec.clone(), self.hierarchies.clone());
        if let Some(oci) = &oci_runtime {
            making.user_namespace = userns::with_oci_runtime(spec.user_namespace, oci.name())?;
        }
        let pause = self.shim_command("pause");
        let owner = match &self.config.owner {
            Owner::Process => ProcessRecord::of_pid(std::process::id() as i32),
            Owner::Node(_) => None,
        };
        let mut state =
            blocking(move || sandbox::create_sandbox(&making, &hierarchies, pause, owner)).await?;
        if oci_runtime.is_some() {
            state.oci_runtime = oci_runtime;
            sandbox::save(&state)?;
        }
        self.connect(&spec, state).await
    }

    async fn remove_sandbox(&self, id: &SandboxId) -> Result<(), RuntimeError> {
        let entries: Vec<(ContainerId, Entry)> = {
            let containers = lock(&self.containers);
            let own = containers.iter().filter(|(_, entry)| entry.sandbox == *id);
            own.map(|(id, entry)| (id.clone(), entry.clone())).collect()
        };
        for (_, entry) in &entries {
            if !entry.link.is_over() {
                entry.link.send(Request::Kill);
            }
        }
        for (container, _) in &entries {
            self.remove_container(container).await?;
        }
        if !lock(&self.sandboxes).contains_key(id) {
            check_id(&id.0)?;
            let dir = self.pod_dir(id);
            if !dir.exists() {
                return Ok(());
            }
            self.claim_pod_dir(id, &dir)?;
        }
        let (dir, is_known, published) = match lock(&self.sandboxes).get_mut(id) {
            Some(pod) => {
                pod.ports = None;
                (pod.dir.clone(), pod.state.is_some(), pod.published_at())
            }
            None => return Ok(()),
        };
        network::unpublish(&published).await;
        let (name, hierarchies) = (id.0.clone(), self.hierarchies.clone());
        let left = blocking(move || {
            // The sandbox was not adopted, or could not be.
            let left =
                if is_known { None } else { layout::read_json::<SandboxState>(&dir.join("sandbox.json")) };
            if !is_known {
                orphans::end_processes(&dir);
            }
            sandbox::remove(&name, &dir, &hierarchies)?;
            if !is_known {
                // The record of its ids may be unreadable.
                userns::release_all(&dir);
            }
            Ok(left)
        });
        let left = left.await?;
        if let (Some(left), Some(pod)) = (left, lock(&self.sandboxes).get_mut(id)) {
            pod.state = Some(left);
        }
        let removed = lock(&self.sandboxes).remove(id);
        if let Some(pod) = removed {
            if !is_known {
                network::unpublish(&pod.published_at()).await;
            }
            self.claims.release(&pod.dir);
            let was_on_bridge = pod.is_on_bridge();
            if was_on_bridge {
                lock(&self.off_bridge).push(id.clone());
            }
            if self.network_is_left.swap(false, Ordering::Relaxed) || was_on_bridge {
                self.release_network_aside();
            }
        }
        Ok(())
    }

    async fn list_sandboxes(&self) -> Result<Vec<SandboxId>, RuntimeError> {
        if self.config.owner.is_process() {
            return Ok(lock(&self.sandboxes).keys().cloned().collect());
        }
        let pods = layout::pods_dir(&self.config.state_dir);
        self.claims
            .marked(&pods)
            .map_err(|error| RuntimeError::Other(format!("cannot list {}: {error}", pods.display())))
    }

    async fn adopt_sandbox(&self, id: &SandboxId) -> Result<(Sandbox, Vec<Adopted>), RuntimeError> {
        check_id(&id.0)?;
        let dir = self.pod_dir(id);
        if !dir.exists() {
            return Err(RuntimeError::NotFound { kind: "sandbox", id: id.0.clone() });
        }
        self.claim_pod_dir(id, &dir)?;
        let state = self.read_sandbox(id)?;
        self.open_ports(&state, Opening::Adopted).await?;
        let adopted = self.adopt_containers(id, &dir).await;
        let (ips, netns) = (state.ips.clone(), state.net.clone());
        let sandbox = Sandbox { id: id.clone(), ips, netns, nameservers: Vec::new() };
        if let Some(pod) = lock(&self.sandboxes).get_mut(id) {
            pod.state = Some(state);
        }
        Ok((sandbox, adopted))
    }

    async fn sandbox_lost(&self, id: &SandboxId) {
        let pause = lock(&self.sandboxes).get(id).and_then(|pod| pod.state.as_ref()?.pause);
        match pause {
            Some(pause) => pause.ended().await,
            // Namespaces that are pinned by mounts do not end.
            None => std::future::pending().await,
        }
    }

    async fn create_container(
        &self,
        sandbox: &SandboxId,
        spec: ContainerSpec,
    ) -> Result<ContainerId, RuntimeError> {
        check_id(&spec.id.0)?;
        let id = spec.id.clone();
        let state = lock(&self.sandboxes).get(sandbox).and_then(|pod| pod.state.clone());
        let state = state.ok_or_else(|| RuntimeError::NotFound { kind: "sandbox", id: sandbox.0.clone() })?;
        if state.user.is_some() {
            userns::warn_of_owners(&self.images, &spec.image);
        }
        let stop_signal = spec.stop_signal.as_ref().or(spec.image.stop_signal.as_ref());
        let stop_signal = match stop_signal {
            Some(name) => signals::number(name).ok_or_else(|| {
                RuntimeError::Config(format!("stop signal {name:?} is not the name of a signal"))
            })?,
            None => libc::SIGTERM,
        };
        let (pod_dir, dir) = (state.dir.clone(), layout::container_dir(&state.dir, &id.0));
        let remains = self.remains(sandbox, &id, &dir);
        let entry = {
            let mut containers = lock(&self.containers);
            if containers.contains_key(&id) {
                return Err(RuntimeError::Create(format!("container {:?} already exists", id.0)));
            }
            let cgroups = self.hierarchies.clone();
            let create = Request::Create(Box::new(ShimConfig {
                spec,
                stop_signal,
                dir: dir.clone(),
                sandbox: state,
                cgroups,
            }));
            let link = Link::spawn(Arc::clone(&self.spawner), id.clone(), create, stop_signal, remains);
            let entry = Entry { link: Arc::new(link), sandbox: sandbox.clone(), pod_dir };
            containers.insert(id.clone(), entry.clone());
            entry
        };
        let created = entry.link.until(|phase| match phase {
            Phase::Creating => None,
            Phase::Failed(fault) => Some(Err(fault.clone())),
            _ => Some(Ok(())),
        });
        match created.await? {
            Ok(()) => Ok(id),
            Err(fault) => {
                self.remove_container(&id).await?;
                Err(fault.into())
            }
        }
    }

    async fn start_container(&self, id: &ContainerId) -> Result<Started, RuntimeError> {
        let entry = self.entry(id)?;
        entry.link.send(Request::Start);
        let started = entry.link.until(|phase| match phase {
            Phase::Creating | Phase::Created => None,
            Phase::Running(started) => Some(Ok(started.into())),
            // The container ran and has already exited.
            Phase::Exited(exit) => Some(Ok(Started { at: exit.started_at, pid: 0 })),
            Phase::Failed(fault) => Some(Err(fault.clone())),
        });
        Ok(started.await??)
    }

    async fn terminate(&self, id: &ContainerId, _grace: Duration) -> Result<(), RuntimeError> {
        if let Ok(entry) = self.entry(id) {
            entry.link.send(Request::Signal(entry.link.stop_signal));
        }
        Ok(())
    }

    async fn kill(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        if let Ok(entry) = self.entry(id) {
            entry.link.send(Request::Kill);
        }
        Ok(())
    }

    async fn wait(&self, id: &ContainerId) -> Result<Exit, RuntimeError> {
        let entry = self.entry(id)?;
        let exit = entry.link.until(|phase| match phase {
            Phase::Exited(exit) => Some(Ok(exit.clone())),
            Phase::Failed(fault) => Some(Err(fault.clone())),
            _ => None,
        });
        Ok(exit.await??)
    }

    async fn exec(&self, id: &ContainerId, request: ExecRequest) -> Result<ExecOutput, RuntimeError> {
        self.entry(id)?.link.exec(request).await
    }

    async fn exec_streams(
        &self,
        id: &ContainerId,
        request: ExecStreamsRequest,
    ) -> Result<ProcessStreams, RuntimeError> {
        self.entry(id)?.link.exec_streams(request).await
    }

    async fn attach(&self, id: &ContainerId) -> Result<ProcessStreams, RuntimeError> {
        self.entry(id)?.link.attach().await
    }

    async fn stats(&self, id: &ContainerId) -> Result<Stats, RuntimeError> {
        let entry = self.entry(id)?;
        let (path, hierarchies) = (cgroup::container_path(&entry.sandbox.0, &id.0), self.hierarchies.clone());
        // Reading a large container's processes may take a moment.
        blocking(move || Ok(hierarchies.usage(&path))).await
    }

    async fn port_forward(&self, id: &SandboxId, port: u16) -> Result<TcpStream, RuntimeError> {
        let netns = lock(&self.sandboxes).get(id).and_then(|pod| Some(pod.state.as_ref()?.net.clone()));
        let netns = netns.ok_or_else(|| RuntimeError::NotFound { kind: "sandbox", id: id.0.clone() })?;
        connect_loopback(netns.as_deref(), port).await
    }

    async fn remove_container(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        let Ok(entry) = self.entry(id) else { return Ok(()) };
        self.end_container(&entry).await;
        let (container, hierarchies) = (id.0.clone(), self.hierarchies.clone());
        let discarded = blocking(move || {
            sandbox::discard_container(&entry.sandbox.0, &container, &entry.pod_dir, &hierarchies)
        });
        if let Some(waste) = discarded.await? {
            // What remains is removed with the sandbox.
            tokio::task::spawn_blocking(move || layout::remove_tree(&waste));
        }
        lock(&self.containers).remove(id);
        Ok(())
    }
}

/// Checks an id, because it becomes the name of files and cgroups.
fn check_id(id: &str) -> Result<(), RuntimeError> {
    let safe = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if id.is_empty() || id.len() > ID_MAX || id.starts_with('.') || !id.bytes().all(safe) {
        return Err(RuntimeError::Config(format!(
            "id {id:?} is not made of at most {ID_MAX} letters, digits, '-', '_' and '.', not beginning with '.'"
        )));
    }
    Ok(())
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Fault> + Send + 'static,
) -> Result<T, RuntimeError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result.map_err(RuntimeError::from),
        Err(error) => Err(RuntimeError::Other(error.to_string())),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each critical section is a single map operation, so a panic cannot leave the map in a partly changed
    // state.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
