//! One pod, translated to the runtime's types.

mod logs;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, Volume};
use outrigger_lifecycle::{
    Companions, ContainerRef, List, Plan, PodInput, Qos, StopPlan, oom_score_adj, qos,
};
use outrigger_runtime::{
    ContainerId, ContainerSpec, Image, Mount, NetworkMode, PublishedPort, PullPolicy, PullRequest, Sandbox,
    SandboxId, SandboxSpec,
};

use crate::cause::{SandboxError, SpecError};
use crate::env::Environment;
use crate::fields::{Fields, Host};
use crate::net::{PortError, Reach};
use crate::options::{NewPod, OnFailure, PodOptions, StatusUpdates};
use crate::podfiles::{PodFiles, hostname};
use crate::security::SecurityError;
use crate::uid::PodUid;
use crate::volumes::{self, Source, Volumes};
use crate::{message, security, userns};

use logs::LogReaders;
pub use logs::LogVisit;

/// Maximum length of sandbox and container names.
const ID_MAX: usize = 64;

/// Number of instances of a container whose logs are kept, including the current one.
const LOGGED_ATTEMPTS: u32 = 3;

/// A pod and everything about it that does not change while it runs.
#[derive(Debug)]
pub struct PodContext {
    pub(crate) pod: Pod,
    /// Extensions without a field in the Pod type.
    pub(crate) lifecycle_types: BTreeMap<ContainerRef, String>,
    /// In the order of the plan.
    pub(crate) containers: Vec<Container>,
    pub(crate) companions: Arc<Companions>,
    pub(crate) host: Arc<Host>,
    pub(crate) options: Arc<PodOptions>,
    /// Directory of claims and profiles.
    state_dir: PathBuf,
    uid: PodUid,
    plan: Arc<Plan>,
    pub(crate) sandbox_id: SandboxId,
    /// The pod's directory.
    pub(crate) dir: PathBuf,
    pub(crate) qos: Qos,
    network: NetworkMode,
    ports: Vec<PublishedPort>,
    oom_score_adj: Vec<i32>,
    /// Where the logs are after the pod has ended, if they are kept.
    kept_logs: Arc<OnceLock<PathBuf>>,
    log_readers: Arc<LogReaders>,
    /// How the pod is stopped if this process dies.
    stop: StopPlan,
}

/// Why a pod cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum PodError {
    /// The plan belongs to another pod.
    #[error("the plan names containers the pod does not have")]
    Plan,
    /// A port of the host is invalid.
    #[error(transparent)]
    Port(#[from] PortError),
}

/// A pod that can be run. [`crate::Agent::prepare`] creates it. It can then be checked, added, or applied as
/// an update.
#[derive(Debug)]
pub struct PreparedPod {
    pub(crate) context: PodContext,
    pub(crate) group: Arc<str>,
    pub(crate) status: StatusUpdates,
    pub(crate) on_failure: OnFailure,
}

impl PreparedPod {
    pub(crate) fn new(pod: NewPod, host: Arc<Host>, state_dir: &Path) -> Result<Self, PodError> {
        let NewPod { uid, group, input, plan, companions, options, status, on_failure } = pod;
        let context = PodContext::new(uid, input, plan, companions, options, host, state_dir)?;
        Ok(PreparedPod { context, group, status, on_failure })
    }

    /// The pod, with everything about it that does not change while it runs.
    pub fn context(&self) -> &PodContext {
        &self.context
    }
}

/// The sandbox of a pod, with its volumes and files.
pub(crate) struct PodSandbox {
    pub(crate) sandbox: Sandbox,
    pub(crate) reach: Reach,
    pub(crate) volumes: Volumes,
    files: PodFiles,
}

/// Where the log and the termination message of an instance are.
#[derive(Debug, Clone)]
pub(crate) struct InstancePaths {
    pub(crate) log: PathBuf,
    pub(crate) message: PathBuf,
}

impl PodContext {
    fn new(
        uid: PodUid,
        input: PodInput,
        plan: Plan,
        companions: Arc<Companions>,
        options: Arc<PodOptions>,
        host: Arc<Host>,
        state_dir: &Path,
    ) -> Result<Self, PodError> {
        let PodInput { pod, lifecycle_types } = input;
        let default = PodSpec::default();
        let spec = pod.spec.as_ref().unwrap_or(&default);
        let containers: Option<Vec<Container>> =
            plan.containers.iter().map(|c| container_at(spec, c.place.list, c.place.index)).collect();
        let containers = containers.ok_or(PodError::Plan)?;
        let network = match spec.host_network {
            Some(true) => NetworkMode::Host,
            _ => options.network,
        };
        let mut ports = match network {
            // With the host's network, programs listen on the host directly.
            NetworkMode::Host => Vec::new(),
            // Without a network, no port can be published. The runtime reports that error.
            NetworkMode::Private | NetworkMode::None => host_ports(&containers)?,
        };
        ports.extend(options.publish.iter().cloned());
        let qos = qos(spec);
        let oom = |i: usize| oom_score_adj(spec, &plan, i, qos, host.memory_bytes);
        let oom_score_adj = (0..containers.len()).map(oom).collect();
        let name = pod.metadata.name.as_deref().unwrap_or("pod");
        let sandbox_id = SandboxId(id(&[uid.as_str(), name]));
        let dir = state_dir.join("pods").join(&sandbox_id.0);
        let stop = StopPlan::new(&plan, options.grace_ms.unwrap_or(plan.grace_ms));
        Ok(PodContext {
            stop,
            containers,
            companions,
            host,
            options,
            state_dir: state_dir.to_owned(),
            uid,
            plan: Arc::new(plan),
            log_readers: Arc::default(),
            sandbox_id,
            dir,
            qos,
            network,
            ports,
            oom_score_adj,
            lifecycle_types,
            pod,
            kept_logs: Arc::default(),
        })
    }

    /// The same pod with the plan that it was started with.
    pub(crate) fn with_plan(&self, plan: Plan) -> Result<Self, PodError> {
        let input = PodInput { pod: self.pod.clone(), lifecycle_types: self.lifecycle_types.clone() };
        let (companions, options) = (self.companions.clone(), self.options.clone());
        let (uid, host) = (self.uid.clone(), self.host.clone());
        let context = PodContext::new(uid, input, plan, companions, options, host, &self.state_dir)?;
        Ok(context.with_logs_of(self))
    }

    /// Takes over the readers of the logs from the same pod before an update.
    pub(crate) fn with_logs_of(self, before: &PodContext) -> Self {
        let (kept_logs, log_readers) = (before.kept_logs.clone(), before.log_readers.clone());
        PodContext { kept_logs, log_readers, ..self }
    }

    /// The pod's UID.
    pub fn uid(&self) -> &PodUid {
        &self.uid
    }

    /// The pod as it was added.
    pub fn pod(&self) -> &Pod {
        &self.pod
    }

    /// Extensions without a field in the Pod type: `lifecycle.type` of containers.
    pub fn lifecycle_types(&self) -> &BTreeMap<ContainerRef, String> {
        &self.lifecycle_types
    }

    /// The containers, in the order of the plan.
    pub fn containers(&self) -> &[Container] {
        &self.containers
    }

    /// The plan; for a resumed pod, the one it was started with.
    pub fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    /// The objects the pod may refer to.
    pub fn companions(&self) -> &Companions {
        &self.companions
    }

    /// The name of the node.
    pub fn node_name(&self) -> &str {
        &self.host.name
    }

    /// `metadata.name`.
    pub fn name(&self) -> &str {
        self.pod.metadata.name.as_deref().unwrap_or("")
    }

    /// `metadata.namespace`.
    pub fn namespace(&self) -> &str {
        self.pod.metadata.namespace.as_deref().unwrap_or("default")
    }

    /// The pod's priority.
    pub fn priority(&self) -> i32 {
        self.companions.priority(&self.pod)
    }

    fn kubernetes_uid(&self) -> &str {
        self.pod.metadata.uid.as_deref().unwrap_or("")
    }

    pub(crate) fn spec(&self) -> &PodSpec {
        static NONE: std::sync::OnceLock<PodSpec> = std::sync::OnceLock::new();
        let none = NONE.get_or_init(PodSpec::default);
        self.pod.spec.as_ref().unwrap_or(none)
    }

    /// The spec of the pod's sandbox.
    pub(crate) fn sandbox_spec(&self) -> Result<SandboxSpec, SecurityError> {
        let spec = self.spec();
        let context = spec.security_context.as_ref();
        let sysctls = context.and_then(|c| c.sysctls.as_deref()).unwrap_or(&[]);
        Ok(SandboxSpec {
            id: self.sandbox_id.clone(),
            pod_name: self.name().to_owned(),
            pod_namespace: self.namespace().to_owned(),
            pod_uid: self.kubernetes_uid().to_owned(),
            pod_dir: self.dir.clone(),
            hostname: hostname(&self.pod),
            network: self.network,
            ports: self.ports.clone(),
            host_pid: spec.host_pid == Some(true),
            host_ipc: spec.host_ipc == Some(true),
            share_pid: spec.share_process_namespace == Some(true),
            user_namespace: self.user_namespace().wanted,
            host_paths: self.host_paths(),
            images: self.images(),
            privileged: self.containers.iter().any(security::privileged),
            runtime_class: spec.runtime_class_name.clone().filter(|name| !name.is_empty()),
            sysctls: sysctls.iter().map(|s| (s.name.clone(), s.value.clone())).collect(),
            resources: security::resources(spec.resources.as_ref())?,
            stop: self.stop.clone(),
            labels: self.pod.metadata.labels.clone().unwrap_or_default(),
            annotations: self.pod.metadata.annotations.clone().unwrap_or_default(),
        })
    }

    /// Whether the pod gets a user namespace, and if not, which of its requests prevents it.
    pub(crate) fn user_namespace(&self) -> userns::Choice {
        userns::choose(self.spec(), &self.containers, self.network, self.options.user_namespaces)
    }

    /// The request that prevents a user namespace, if the pod would get one otherwise.
    pub fn left_out_of_user_namespaces(&self) -> Option<String> {
        self.user_namespace().left_out
    }

    /// Paths of `hostPath` volumes, and of volumes that will be in memory.
    fn host_paths(&self) -> Vec<PathBuf> {
        let volumes = self.spec().volumes.iter().flatten();
        let path = |volume: &Volume| match &volume.host_path {
            Some(host) => Some(PathBuf::from(&host.path)),
            None => volumes::is_in_memory(volume).then(|| self.dir.join("volumes").join(&volume.name)),
        };
        volumes.filter_map(path).collect()
    }

    /// The images, without duplicates.
    fn images(&self) -> Vec<String> {
        let mut images: Vec<String> = self.containers.iter().filter_map(|c| c.image.clone()).collect();
        images.sort_unstable();
        images.dedup();
        images
    }

    /// Creates volumes and files for a sandbox.
    pub(crate) fn prepared(&self, mut sandbox: Sandbox) -> Result<PodSandbox, SandboxError> {
        self.address(&mut sandbox);
        let volumes = Volumes::set_up(&self.volume_source(&sandbox.ips))?;
        let host_network = self.network == NetworkMode::Host;
        let files = PodFiles::write(&self.dir.join("etc"), &self.pod, host_network, &sandbox)
            .map_err(|source| SandboxError::Files { dir: self.dir.clone(), source })?;
        Ok(PodSandbox { reach: Reach::new(&sandbox), sandbox, volumes, files })
    }

    /// Finds the volumes and files created by another process. Containers use them, so they are not changed.
    pub(crate) fn find_prepared(&self, mut sandbox: Sandbox) -> Result<PodSandbox, SandboxError> {
        self.address(&mut sandbox);
        let volumes = Volumes::found(&self.volume_source(&sandbox.ips))?;
        let files = PodFiles::found(&self.dir.join("etc"));
        Ok(PodSandbox { reach: Reach::new(&sandbox), sandbox, volumes, files })
    }

    /// Gives the pod the host's address if it uses the host's network.
    fn address(&self, sandbox: &mut Sandbox) {
        if self.network == NetworkMode::Host && sandbox.ips.is_empty() {
            sandbox.ips.extend(self.host.ip);
        }
    }

    fn volume_source<'a>(&'a self, ips: &'a [IpAddr]) -> Source<'a> {
        Source {
            fields: self.fields(ips),
            containers: &self.containers,
            objects: &self.companions,
            pod_dir: &self.dir,
            state_dir: &self.state_dir,
        }
    }

    fn fields<'a>(&'a self, ips: &'a [IpAddr]) -> Fields<'a> {
        Fields { pod: &self.pod, pod_ips: ips, host: &self.host }
    }

    /// The pull request for a container's image.
    pub(crate) fn pull_request(&self, container: usize) -> PullRequest {
        let container = &self.containers[container];
        let written = match container.image_pull_policy.as_deref() {
            Some("Always") => PullPolicy::Always,
            Some("Never") => PullPolicy::Never,
            _ => PullPolicy::IfNotPresent,
        };
        PullRequest {
            reference: container.image.clone().unwrap_or_default(),
            policy: self.options.pull.unwrap_or(written),
            auth: self.pull_secrets(),
        }
    }

    fn pull_secrets(&self) -> Vec<String> {
        let names = self.spec().image_pull_secrets.iter().flatten();
        let secret = |name: &str| {
            let key = (self.namespace().to_owned(), name.to_owned());
            let data = self.companions.secrets.get(&key)?.data.as_ref()?;
            let config = data.get(".dockerconfigjson").or_else(|| data.get(".dockercfg"))?;
            String::from_utf8(config.0.clone()).ok()
        };
        names.filter_map(|reference| secret(&reference.name)).collect()
    }

    /// The pod's ports for display: `80/TCP`, or `8080->80/TCP` if published on the host.
    pub fn ports(&self) -> Vec<String> {
        let host = |p: &PublishedPort| {
            let at = match p.host.ip().is_unspecified() {
                true => p.host.port().to_string(),
                false => p.host.to_string(),
            };
            format!("{at}->{}/{}", p.pod_port, if p.udp { "UDP" } else { "TCP" })
        };
        let mut out: Vec<String> = self.ports.iter().map(host).collect();
        for port in self.containers.iter().flat_map(|c| c.ports.iter().flatten()) {
            let protocol = port.protocol.as_deref().unwrap_or("TCP");
            let is_published = |p: &PublishedPort| {
                i32::from(p.pod_port) == port.container_port && p.udp == (protocol == "UDP")
            };
            if !self.ports.iter().any(is_published) {
                out.push(format!("{}/{protocol}", port.container_port));
            }
        }
        out
    }

    /// Directory of a container's logs.
    pub(crate) fn log_dir(&self, container: usize) -> PathBuf {
        let name = &self.containers[container].name;
        match self.kept_logs.get() {
            Some(kept) => kept.join(name),
            None => self.dir.join("logs").join(name),
        }
    }

    /// Sets where the logs are kept after the pod has ended.
    pub(crate) fn logs_are_at(&self, dir: PathBuf) {
        // The logs are moved only once.
        let _ = self.kept_logs.set(dir);
    }

    /// Whether the pod has ended and its logs can still be read.
    pub fn keeps_logs(&self) -> bool {
        self.kept_logs.get().is_some()
    }

    /// Where the log and the termination message of an instance are.
    pub(crate) fn instance_paths(&self, container: usize, attempt: u32) -> InstancePaths {
        let name = &self.containers[container].name;
        InstancePaths {
            log: self.log_dir(container).join(format!("{attempt}.log")),
            message: self.dir.join("messages").join(format!("{name}.{attempt}")),
        }
    }

    /// The name for the `nth` attempt to start a container.
    pub(crate) fn container_id(&self, container: usize, nth: u32) -> ContainerId {
        let place = format!("{container}-{nth}");
        ContainerId(id(&[self.uid.as_str(), &place, &self.containers[container].name]))
    }

    /// Whether a container may be created before the preceding ones have run. Its creation must neither
    /// affect them nor depend on them. Check `follows_files` first.
    pub(crate) fn can_be_made_ahead(&self, spec: &ContainerSpec) -> bool {
        let pod = self.spec();
        let is_seen = pod.host_pid == Some(true) || pod.share_process_namespace == Some(true);
        !is_seen && leaves_volumes_alone(spec)
    }

    /// Whether building a container's spec depends on files that preceding containers may still write.
    pub(crate) fn follows_files(&self, container: usize) -> bool {
        let volumes = self.spec().volumes.as_deref().unwrap_or(&[]);
        let is_host_path = |name: &str| volumes.iter().any(|v| v.name == name && v.host_path.is_some());
        self.containers[container]
            .volume_mounts
            .iter()
            .flatten()
            .any(|m| m.sub_path.is_some() || m.sub_path_expr.is_some() || is_host_path(&m.name))
    }

    /// The spec of one instance of a container. The error is the message of a `CreateContainerConfigError`.
    pub(crate) fn container_spec(
        &self,
        container: usize,
        attempt: u32,
        id: ContainerId,
        image: Image,
        prepared: &PodSandbox,
    ) -> Result<ContainerSpec, SpecError> {
        let index = container;
        let container = &self.containers[index];
        let spec = self.spec();
        let paths = self.instance_paths(index, attempt);
        let line = Environment {
            fields: self.fields(&prepared.sandbox.ips),
            objects: &self.companions,
            containers: &self.containers,
        }
        .command_line(container)?;
        let variable = |name: &str| line.env.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str());
        let mut mounts = prepared.files.mounts(container);
        let own = prepared.volumes.mounts(container, variable)?;
        let message = self.make_instance_files(index, attempt, &own);
        mounts.extend(message.map_err(|source| SpecError::Files { dir: self.dir.clone(), source })?);
        mounts.extend(own);
        // Outer mounts come first, because a later mount hides those below its target.
        mounts.sort_by_key(|m| m.target.components().count());
        let mut env = line.env;
        if !env.iter().any(|(name, _)| name == "HOSTNAME") {
            env.insert(0, ("HOSTNAME".into(), self.env_hostname()));
        }
        let mut resources = security::resources(container.resources.as_ref())?;
        resources.oom_score_adj = Some(self.oom_score_adj[index]);
        resources.pids_limit = self.options.pids_limit;
        Ok(ContainerSpec {
            id,
            name: container.name.clone(),
            attempt,
            image,
            command: line.command,
            args: line.args,
            env,
            working_dir: container.working_dir.clone().filter(|w| !w.is_empty()),
            mounts,
            read_only_rootfs: security::read_only_rootfs(container),
            mask_paths: security::mask_paths(container),
            identity: security::identity(
                self.pod.metadata.annotations.as_ref(),
                spec,
                container,
                &self.state_dir,
            )?,
            resources,
            log_path: paths.log,
            log_limits: self.options.log_limits,
            stop_signal: container.lifecycle.as_ref().and_then(|l| l.stop_signal.clone()),
            stdin: container.stdin == Some(true),
            tty: container.tty == Some(true),
            labels: [
                ("io.kubernetes.pod.name", self.name()),
                ("io.kubernetes.pod.namespace", self.namespace()),
                ("io.kubernetes.pod.uid", self.kubernetes_uid()),
                ("io.kubernetes.container.name", container.name.as_str()),
            ]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
            annotations: self.annotations(container),
        })
    }

    /// Creates the log directory and termination message file of an instance. Returns the mount of the
    /// message file, unless one of the container's `own` mounts covers it.
    fn make_instance_files(
        &self,
        container: usize,
        attempt: u32,
        own: &[Mount],
    ) -> io::Result<Option<Mount>> {
        fs::create_dir_all(self.log_dir(container))?;
        forget_logs(&self.log_dir(container), attempt);
        let target = self.containers[container].termination_message_path.as_deref();
        let target = Path::new("/").join(target.unwrap_or("/dev/termination-log"));
        if own.iter().any(|m| m.target == target) {
            return Ok(None);
        }
        let source = self.instance_paths(container, attempt).message;
        message::make(&source)?;
        Ok(Some(Mount { source, target, read_only: false, propagation: Default::default() }))
    }

    /// The annotations the kubelet sets on containers for node tools.
    fn annotations(&self, container: &Container) -> BTreeMap<String, String> {
        let path = container.termination_message_path.as_deref().unwrap_or("/dev/termination-log");
        let policy = container.termination_message_policy.as_deref().unwrap_or("File");
        let grace = self.spec().termination_grace_period_seconds.unwrap_or(30).to_string();
        [
            ("io.kubernetes.container.terminationMessagePath", path),
            ("io.kubernetes.container.terminationMessagePolicy", policy),
            ("io.kubernetes.pod.terminationGracePeriod", &grace),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
    }

    fn env_hostname(&self) -> String {
        match self.network {
            NetworkMode::Host => self.host.name.clone(),
            _ => hostname(&self.pod),
        }
    }
}

/// Deletes logs of old instances, so that a crash-looping container does not fill the disk.
fn forget_logs(dir: &Path, attempt: u32) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let of =
            name.to_str().and_then(|name| name.split_once(".log")).and_then(|(n, _)| n.parse::<u32>().ok());
        if of.is_some_and(|of| of.saturating_add(LOGGED_ATTEMPTS) <= attempt) {
            // Files that cannot be deleted now are deleted with the pod.
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn container_at(spec: &PodSpec, list: List, index: usize) -> Option<Container> {
    match list {
        List::Init => spec.init_containers.as_ref()?.get(index).cloned(),
        List::Main => spec.containers.get(index).cloned(),
        List::Ephemeral => {
            // An ephemeral container has the same fields, but another type.
            let container = spec.ephemeral_containers.as_ref()?.get(index)?;
            let mut object = serde_json::to_value(container).ok()?;
            object.as_object_mut()?.remove("targetContainerName");
            serde_json::from_value(object).ok()
        }
    }
}

/// Whether the creation of a container leaves its volumes unchanged, because no mount point or working
/// directory has to be created.
fn leaves_volumes_alone(spec: &ContainerSpec) -> bool {
    let in_a_volume =
        |path: &Path| spec.mounts.iter().any(|m| path != m.target && path.starts_with(&m.target));
    let working_dir = spec.working_dir.as_ref().or(spec.image.working_dir.as_ref());
    !spec.mounts.iter().any(|m| in_a_volume(&m.target))
        && !working_dir.is_some_and(|dir| in_a_volume(Path::new(dir)))
}

/// The host ports that containers request.
///
/// # Errors
/// Returns an error if a port or an address is invalid.
pub fn host_ports<'a>(
    containers: impl IntoIterator<Item = &'a Container>,
) -> Result<Vec<PublishedPort>, PortError> {
    let mut out = Vec::new();
    for port in containers.into_iter().flat_map(|c| c.ports.iter().flatten()) {
        let Some(host_port) = port.host_port.filter(|p| *p > 0) else {
            continue;
        };
        let number = |n: i32| u16::try_from(n).map_err(|_| PortError::Number(n));
        let ip: IpAddr = match port.host_ip.as_deref().filter(|ip| !ip.is_empty()) {
            Some(ip) => ip.parse().map_err(|_| PortError::HostIp(ip.to_owned()))?,
            None => Ipv4Addr::UNSPECIFIED.into(),
        };
        out.push(PublishedPort {
            host: SocketAddr::new(ip, number(host_port)?),
            pod_port: number(port.container_port)?,
            udp: port.protocol.as_deref() == Some("UDP"),
        });
    }
    Ok(out)
}

/// A name built from parts, truncated to the maximum length.
fn id(parts: &[&str]) -> String {
    let mut id = parts.join("-");
    id.truncate(id.floor_char_boundary(ID_MAX));
    id.trim_end_matches(['-', '.']).to_owned()
}
