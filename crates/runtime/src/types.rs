//! The types of the interface between the agent and a runtime.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use outrigger_lifecycle::{PullCause, StopPlan};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite};

/// The id of a sandbox within a runtime.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SandboxId(pub String);

/// The id of one instance of a container within a runtime.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ContainerId(pub String);

impl fmt::Display for SandboxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for ContainerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// When an image is pulled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PullPolicy {
    /// Ask the registry every time.
    Always,
    /// Pull only if it is missing.
    IfNotPresent,
    /// Never pull; a missing image is an error ([`PullCause::NeverPull`]).
    Never,
}

/// One image to make available.
#[derive(Debug, Clone)]
pub struct PullRequest {
    /// The reference as written in the manifest: a registry name, `rootfs:/PATH`, `oci:DIR[:TAG]`,
    /// `oci-archive:FILE` or `docker-archive:FILE`.
    pub reference: String,
    /// When to pull.
    pub policy: PullPolicy,
    /// Contents of the pod's `imagePullSecrets`, each a docker config JSON, tried before the user's own auth files.
    pub auth: Vec<String>,
}

/// The progress of a pull.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PullProgress {
    /// The image being pulled.
    pub reference: String,
    /// Bytes pulled so far, over all layers.
    pub done_bytes: u64,
    /// Total bytes to pull, once known.
    pub total_bytes: Option<u64>,
}

/// Receives the progress. It is called often, and from any thread.
pub type ProgressSink = Arc<dyn Fn(PullProgress) + Send + Sync>;

/// The properties of an image, and the source of its root file system.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Image {
    /// The requested reference.
    pub reference: String,
    /// `sha256:…` of the image configuration; for `rootfs:` the reference itself.
    pub id: String,
    /// Layer directories for overlayfs, the lowest first. Empty for runtimes that keep their own layers.
    pub layers: Vec<PathBuf>,
    /// ENTRYPOINT of the image.
    pub entrypoint: Vec<String>,
    /// CMD of the image.
    pub cmd: Vec<String>,
    /// ENV of the image, `NAME=value`.
    pub env: Vec<String>,
    /// WORKDIR of the image.
    pub working_dir: Option<String>,
    /// USER of the image, unparsed: `uid`, `name`, `uid:gid` …
    pub user: Option<String>,
    /// STOPSIGNAL of the image.
    pub stop_signal: Option<String>,
    /// Whether the image was already present (nothing was pulled).
    pub was_present: bool,
}

impl Image {
    /// An image that has only layers, the lowest first, and no settings for running it.
    pub fn of_layers(name: &str, layers: Vec<PathBuf>) -> Self {
        Image {
            reference: name.to_owned(),
            id: name.to_owned(),
            layers,
            entrypoint: Vec::new(),
            cmd: Vec::new(),
            env: Vec::new(),
            working_dir: None,
            user: None,
            stop_signal: None,
            was_present: true,
        }
    }
}

/// Why an image is not available. The display text is for users; [`ImageError::reason`] is Kubernetes'
/// reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageError {
    /// The given reference.
    pub reference: String,
    /// Why, if it is known.
    pub cause: Option<PullCause>,
    /// What is wrong and, if known, how to fix it.
    pub detail: String,
}

impl std::error::Error for ImageError {}

impl fmt::Display for ImageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ImageError { reference, cause, detail } = self;
        match cause {
            Some(PullCause::InvalidName) => write!(f, "image reference {reference:?} is not valid: {detail}"),
            Some(PullCause::NeverPull) => write!(f, "image {reference:?} {detail}"),
            _ => write!(f, "{reference}: {detail}"),
        }
    }
}

impl ImageError {
    /// The reference cannot be parsed.
    pub fn invalid_name(reference: impl Into<String>, detail: impl Into<String>) -> Self {
        let cause = Some(PullCause::InvalidName);
        ImageError { reference: reference.into(), cause, detail: detail.into() }
    }

    /// The image is missing, and the pull policy is `Never` or the reference is local.
    pub fn never_pull(reference: impl Into<String>) -> Self {
        let detail = "is not present and its pull policy forbids fetching it".to_owned();
        ImageError { reference: reference.into(), cause: Some(PullCause::NeverPull), detail }
    }

    /// Kubernetes' waiting reason for this failure (R5.46).
    pub fn reason(&self) -> &'static str {
        match self.cause {
            Some(PullCause::InvalidName) => "InvalidImageName",
            Some(PullCause::NeverPull) => "ErrImageNeverPull",
            _ => "ErrImagePull",
        }
    }
}

/// The network mode of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NetworkMode {
    /// Own network namespace with loopback and an address reachable from the host.
    Private,
    /// The host's network.
    Host,
    /// Own network namespace with loopback only.
    None,
}

/// A port of the pod reachable at the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishedPort {
    /// Address and port to listen on at the host.
    pub host: SocketAddr,
    /// Port inside the pod.
    pub pod_port: u16,
    /// `true` for UDP.
    pub udp: bool,
}

/// Whether a pod gets its own user namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
pub enum UserNamespace {
    /// No. The pod's users are the host's.
    #[default]
    Host,
    /// Yes if possible, otherwise as `Host`.
    Auto,
    /// Yes, or the pod fails.
    Required,
}

/// What the containers of a pod share.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SandboxSpec {
    /// Chosen by the agent: unique, file-name safe, at most 64 characters.
    pub id: SandboxId,
    /// `metadata.name`.
    pub pod_name: String,
    /// `metadata.namespace`.
    pub pod_namespace: String,
    /// `metadata.uid`.
    pub pod_uid: String,
    /// The directory of the pod below the state directory. The runtime may create anything in it.
    pub pod_dir: PathBuf,
    /// The host name inside the pod. Ignored with [`NetworkMode::Host`].
    pub hostname: String,
    /// Network of the pod.
    pub network: NetworkMode,
    /// The pod's ports that are reachable at the host.
    pub ports: Vec<PublishedPort>,
    /// Use the host's pid namespace.
    pub host_pid: bool,
    /// Use the host's IPC namespace.
    pub host_ipc: bool,
    /// One pid namespace for all containers of the pod.
    pub share_pid: bool,
    /// Whether root in the pod is another user on the host.
    pub user_namespace: UserNamespace,
    /// The host paths that the pod uses as volumes, as far as they are known in advance. A file system that
    /// does not support id-mapped mounts rules out [`UserNamespace::Auto`]. Paths below `pod_dir` will be
    /// file systems in memory.
    pub host_paths: Vec<PathBuf>,
    /// The references of the containers' images. A `rootfs:` directory on a file system that does not support
    /// id-mapped mounts also rules out [`UserNamespace::Auto`]. The contents of other images do not.
    pub images: Vec<String>,
    /// Whether a container of the pod will be privileged. Some runtimes must know this in advance.
    pub privileged: bool,
    /// `runtimeClassName`: selects one of several runtimes.
    pub runtime_class: Option<String>,
    /// Kernel settings to write in the pod's namespaces.
    pub sysctls: BTreeMap<String, String>,
    /// Resource limits of the pod as a whole.
    pub resources: Resources,
    /// How the pod's containers are stopped if the process that owns the pod dies.
    #[serde(default)]
    pub stop: StopPlan,
    /// Labels for runtimes that keep them.
    pub labels: BTreeMap<String, String>,
    /// Annotations for runtimes that keep them.
    pub annotations: BTreeMap<String, String>,
}

impl SandboxSpec {
    /// Checks whether the pod's network supports the ports to publish.
    ///
    /// # Errors
    /// The pod has no address, or it uses the host's network and the ports differ.
    pub fn check_ports(&self) -> Result<(), RuntimeError> {
        match self.network {
            NetworkMode::None if !self.ports.is_empty() => Err(no_address(&self.ports)),
            NetworkMode::Host => match self.ports.iter().find(|port| port.host.port() != port.pod_port) {
                Some(port) => Err(RuntimeError::Config(format!(
                    "port {} cannot be published as {}: the pod uses the host's network, where its programs listen \
                     themselves; remove the port, or use --network private",
                    port.pod_port,
                    port.host.port()
                ))),
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }
}

/// The error for a pod that has ports to publish, but only loopback.
pub fn no_address(ports: &[PublishedPort]) -> RuntimeError {
    let ports: Vec<String> = ports.iter().map(|port| port.pod_port.to_string()).collect();
    RuntimeError::Config(format!(
        "port {} cannot be published: the pod has no address, only loopback; use --network private",
        ports.join(", ")
    ))
}

/// A sandbox that is ready.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Sandbox {
    /// The id of the sandbox.
    pub id: SandboxId,
    /// The addresses of the pod, the best first. Empty with [`NetworkMode::None`].
    pub ips: Vec<IpAddr>,
    /// The network namespace to open sockets in; `None` is the host's.
    pub netns: Option<PathBuf>,
    /// The name servers for its containers, instead of the host's.
    pub nameservers: Vec<IpAddr>,
}

/// CPU, memory and process limits. `None` is unlimited.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resources {
    /// CPU request in thousandths of a core: becomes shares or weight.
    pub cpu_request_milli: Option<u64>,
    /// CPU limit in thousandths of a core: becomes a quota.
    pub cpu_limit_milli: Option<u64>,
    /// Memory limit in bytes.
    pub memory_limit_bytes: Option<u64>,
    /// Limit on processes and threads.
    pub pids_limit: Option<u64>,
    /// The `oom_score_adj`. It is set if the kernel allows it.
    pub oom_score_adj: Option<i32>,
}

/// How mounts propagate between host and container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
pub enum Propagation {
    /// Mounts do not propagate.
    #[default]
    Private,
    /// From host to container.
    HostToContainer,
    /// In both directions, for privileged containers only.
    Bidirectional,
}

/// A directory or file of the host mounted in the container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// Source on the host; must exist.
    pub source: PathBuf,
    /// Absolute path in the container; created if missing.
    pub target: PathBuf,
    /// Mount it read-only.
    pub read_only: bool,
    /// Propagation of mounts that are made later.
    pub propagation: Propagation,
}

/// Which system calls the container may make.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub enum Seccomp {
    /// The runtime's own profile.
    #[default]
    Default,
    /// No filter.
    Unconfined,
    /// A profile file in Docker/OCI JSON form.
    Localhost(PathBuf),
}

/// The AppArmor profile of a container's processes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum AppArmor {
    /// The runtime's own profile.
    Default,
    /// No profile.
    Unconfined,
    /// A profile that is loaded on this machine.
    Localhost(String),
}

/// The SELinux label of a container's processes. The runtime chooses the parts that are `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SelinuxLabel {
    /// The SELinux user.
    pub user: Option<String>,
    /// The SELinux role.
    pub role: Option<String>,
    /// The SELinux type.
    pub kind: Option<String>,
    /// The SELinux level.
    pub level: Option<String>,
}

/// The size limits of a container's log. The current log is `PATH`. Older output is in `PATH.1`, `PATH.2` and
/// so on; the highest number is the newest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLimits {
    /// The maximum size of a file in bytes. A new file is started before a file would exceed it.
    pub max_bytes: u64,
    /// The number of files to keep, including the current one. At least 2.
    pub max_files: u32,
}

impl Default for LogLimits {
    /// The kubelet's defaults: 10 MiB and 5 files.
    fn default() -> Self {
        LogLimits { max_bytes: 10 << 20, max_files: 5 }
    }
}

/// The identity of the container's processes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The numeric user, if the manifest sets one. Otherwise the image's USER applies.
    pub run_as_user: Option<i64>,
    /// Numeric group.
    pub run_as_group: Option<i64>,
    /// Refuse to run as uid 0 ([`RuntimeError::Config`]).
    pub run_as_non_root: bool,
    /// Supplementary groups, including fsGroup.
    pub supplemental_groups: Vec<u32>,
    /// Do not add the groups of the user in the image's /etc/group (`supplementalGroupsPolicy: Strict`).
    #[serde(default)]
    pub strict_groups: bool,
    /// Capabilities to add to the default set, without `CAP_`. `ALL` means all.
    pub add_capabilities: Vec<String>,
    /// Capabilities to drop, without `CAP_`. `ALL` means all.
    pub drop_capabilities: Vec<String>,
    /// All capabilities, all devices, no masks, no filter.
    pub privileged: bool,
    /// Set `no_new_privs`.
    pub no_new_privileges: bool,
    /// System call filter.
    pub seccomp: Seccomp,
    /// The AppArmor profile. `None` if not specified.
    #[serde(default)]
    pub apparmor: Option<AppArmor>,
    /// The SELinux label. `None` if not specified.
    #[serde(default)]
    pub selinux: Option<SelinuxLabel>,
}

/// One container to create.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ContainerSpec {
    /// Chosen by the agent: unique, file-name safe, at most 64 characters.
    pub id: ContainerId,
    /// `name` in the manifest.
    pub name: String,
    /// How many instances of this container there were before.
    pub attempt: u32,
    /// The image, as [`Runtime::pull_image`] returned it.
    pub image: Image,
    /// `command` of the manifest with variables expanded. It replaces ENTRYPOINT and drops CMD. `None` means
    /// the image's.
    pub command: Option<Vec<String>>,
    /// `args` of the manifest with variables expanded. It replaces CMD.
    pub args: Option<Vec<String>>,
    /// The complete environment from the manifest, in order. It overrides the image's.
    pub env: Vec<(String, String)>,
    /// The working directory; created if missing. `None` means the image's, or `/` if the image has none.
    pub working_dir: Option<String>,
    /// Mounts, in the order in which they must be made. They include the file at the terminationMessagePath.
    pub mounts: Vec<Mount>,
    /// Read-only root file system.
    pub read_only_rootfs: bool,
    /// Keep the default masked and read-only paths of /proc and /sys.
    pub mask_paths: bool,
    /// The identity of the container's processes.
    pub identity: Identity,
    /// Limits of this container.
    pub resources: Resources,
    /// The path of the log, in CRI format. The directory exists.
    pub log_path: PathBuf,
    /// The size limits of the log. Runtimes that write their own logs ignore them.
    #[serde(default)]
    pub log_limits: LogLimits,
    /// The signal that [`crate::Runtime::terminate`] sends, for example `SIGTERM`. `None` means the image's
    /// signal, or SIGTERM if the image has none.
    pub stop_signal: Option<String>,
    /// Keep stdin open.
    pub stdin: bool,
    /// Give the container a terminal.
    pub tty: bool,
    /// Labels for runtimes that keep them.
    pub labels: BTreeMap<String, String>,
    /// Annotations for runtimes that keep them.
    pub annotations: BTreeMap<String, String>,
}

impl ContainerSpec {
    /// A container with Kubernetes' defaults.
    pub fn new(id: ContainerId, image: Image, command: &[&str], log_path: PathBuf) -> Self {
        ContainerSpec {
            name: id.0.clone(),
            id,
            attempt: 0,
            image,
            command: Some(command.iter().map(|part| (*part).to_owned()).collect()),
            args: None,
            env: Vec::new(),
            working_dir: None,
            mounts: Vec::new(),
            read_only_rootfs: false,
            mask_paths: true,
            identity: Identity::default(),
            resources: Resources::default(),
            log_path,
            log_limits: LogLimits::default(),
            stop_signal: None,
            stdin: false,
            tty: false,
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
        }
    }
}

/// A running container.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Started {
    /// When the user's program was exec'd.
    pub at: SystemTime,
    /// Its first process, as seen from the host; 0 if unknown.
    pub pid: u32,
}

/// How a container ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// The exit code; 128 + signal if a signal ended it.
    pub code: i32,
    /// The signal, if one ended it.
    pub signal: Option<i32>,
    /// Whether the kernel killed it because it was out of memory.
    pub oom_killed: bool,
    /// When the user's program was started.
    pub started_at: SystemTime,
    /// When it ended.
    pub finished_at: SystemTime,
    /// Further information for users, if the exit was not caused by the program.
    pub detail: Option<String>,
}

/// A container of an adopted sandbox.
#[derive(Debug, Clone)]
pub struct Adopted {
    /// Its id.
    pub id: ContainerId,
    /// `name` in the manifest; empty if it is not known any more.
    pub name: String,
    /// When its program was started. `None` if it never was. Remove such a container, because the embedded
    /// runtime can no longer start it.
    pub started: Option<Started>,
    /// How it ended, if it has ended.
    pub exit: Option<Exit>,
}

/// A command to run in a container.
#[derive(Debug, Clone)]
pub struct ExecRequest {
    /// Program and arguments.
    pub command: Vec<String>,
    /// Kill the command after this time.
    pub timeout: Option<Duration>,
    /// The maximum number of bytes of stdout and stderr together that are kept.
    pub output_limit: usize,
}

/// The result of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecOutput {
    /// The exit code; 128 + signal if a signal ended it. `None` if it timed out.
    pub code: Option<i32>,
    /// stdout and stderr in the order of arrival, truncated at the limit.
    pub output: Vec<u8>,
}

/// A command to run in a container with connected streams.
#[derive(Debug, Clone)]
pub struct ExecStreamsRequest {
    /// Program and arguments.
    pub command: Vec<String>,
    /// Connect standard input. Otherwise it is empty.
    pub stdin: bool,
    /// Give the command a terminal of this size for all its streams.
    pub terminal: Option<WindowSize>,
}

/// The size of a terminal in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowSize {
    /// Characters in a line.
    pub columns: u16,
    /// The number of lines.
    pub rows: u16,
}

/// The standard input of a command.
pub type Input = Box<dyn AsyncWrite + Send + Unpin>;
/// The output of a command. An error also means its end, because a terminal ends with an error.
pub type Output = Box<dyn AsyncRead + Send + Unpin>;

/// The streams of a running command, or of a container's own program.
pub struct ProcessStreams {
    /// Resolves to the exit code (128 + signal if a signal ended it), also if the container ended. Not all
    /// output may have been read by then. If this is dropped early, a command and its children are killed,
    /// but a container's own program keeps running.
    ///
    /// This is the first field, so that it is dropped first. Closing a terminal's input first would hang up
    /// the command, and its children could no longer be found.
    pub done: Pin<Box<dyn Future<Output = Result<i32, RuntimeError>> + Send>>,
    /// Its standard input, if it was requested and the program has one.
    pub stdin: Option<Input>,
    /// Its standard output. With a terminal, this is all its output.
    pub stdout: Output,
    /// Its standard error. `None` with a terminal.
    pub stderr: Option<Output>,
    /// Changes the size of its terminal. Does nothing if there is no terminal.
    pub resize: Box<dyn Fn(WindowSize) + Send + Sync>,
}

/// The resource usage of a container. `None` if unknown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// CPU time since its start.
    pub cpu: Option<Duration>,
    /// The kubelet's working set in bytes: memory that cannot be reclaimed easily.
    pub memory_bytes: Option<u64>,
}

/// Why a runtime operation failed. [`RuntimeError::reason`] is Kubernetes' reason.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// The pod requires something that this machine or the runtime does not have
    /// (`CreateContainerConfigError`). Waiting does not change this.
    #[error("{0}")]
    Config(String),
    /// A container must not or cannot run as its user (`CreateContainerConfigError`). Waiting changes neither
    /// the image nor the machine.
    #[error("{detail}")]
    User {
        /// Why the user is refused.
        cause: UserFault,
        /// What is wrong, and how to fix it.
        detail: String,
    },
    /// A volume cannot be mounted at its path in the container (`CreateContainerError`), because of the image
    /// or of the path on this machine.
    #[error("{detail}")]
    MountPoint {
        /// The path in the container.
        target: PathBuf,
        /// What is wrong.
        detail: String,
    },
    /// The working directory is not a directory (`CreateContainerError`).
    #[error("{0}")]
    WorkingDir(String),
    /// The kernel does not have a sysctl, or refuses its value (`CreateContainerConfigError`).
    #[error("{detail}")]
    Sysctl {
        /// The name of the sysctl.
        name: String,
        /// What is wrong.
        detail: String,
    },
    /// The image cannot be run (`CreateContainerError`). It has no program, or it has something else where a
    /// container needs a directory.
    #[error("{0}")]
    Image(String),
    /// Creating the container or sandbox failed (`CreateContainerError`).
    #[error("{0}")]
    Create(String),
    /// A port of the host cannot be opened for the pod (`CreateContainerError`).
    #[error("{detail}")]
    HostPort {
        /// The port of the host.
        port: u16,
        /// What cannot be done, and how to fix it.
        detail: String,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// The program could not be exec'd (`StartError`, exit code 128). Exit code 127 for a missing program is
    /// never used.
    #[error("{0}")]
    Start(String),
    /// No such container or sandbox.
    #[error("no {kind} {id:?}")]
    NotFound {
        /// `container` or `sandbox`.
        kind: &'static str,
        /// The requested id.
        id: String,
    },
    /// Any other failure.
    #[error("{0}")]
    Other(String),
}

/// Why a container cannot run as its user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum UserFault {
    /// The user is root, or could be, and the pod forbids that.
    RootForbidden,
    /// The user or group does not exist where the container would run.
    NoSuchId,
    /// The whole pod has only one id, and another container already uses it as a different user.
    OtherUser,
    /// The image names a user or group that its own tables do not contain.
    NoSuchName,
}

impl RuntimeError {
    /// Kubernetes' waiting or terminated reason for this failure (R5.46, R5.47).
    pub fn reason(&self) -> &'static str {
        match self {
            // The kubelet leaves the lookup of names to the container runtime.
            RuntimeError::User { cause: UserFault::NoSuchName, .. } => "CreateContainerError",
            RuntimeError::Config(_) | RuntimeError::User { .. } | RuntimeError::Sysctl { .. } => {
                "CreateContainerConfigError"
            }
            RuntimeError::Create(_)
            | RuntimeError::MountPoint { .. }
            | RuntimeError::WorkingDir(_)
            | RuntimeError::Image(_)
            | RuntimeError::HostPort { .. }
            | RuntimeError::NotFound { .. } => "CreateContainerError",
            RuntimeError::Start(_) => "StartError",
            RuntimeError::Other(_) => "RunContainerError",
        }
    }
}
