//! Converts sandboxes and containers to CRI configurations. They use the kubelet's labels and annotations, so
//! that node tools show a pod's name, namespace and restarts.

use std::collections::BTreeMap;
use std::path::Path;

use super::wire::security_profile::ProfileType;
use super::wire::{
    self, Capability, ContainerConfig, ContainerMetadata, ImageSpec, Int64Value, KeyValue,
    LinuxContainerConfig, LinuxContainerResources, LinuxContainerSecurityContext, LinuxPodSandboxConfig,
    LinuxSandboxSecurityContext, MountPropagation, NamespaceMode, NamespaceOption, PodSandboxConfig,
    PodSandboxMetadata, PortMapping, Protocol, SeLinuxOption, SecurityProfile, SupplementalGroupsPolicy,
};
use outrigger_runtime::{
    AppArmor, ContainerSpec, NetworkMode, Propagation, Resources, RuntimeError, SandboxSpec, Seccomp,
    UserFault, UserNamespace,
};

/// The agent's name for a sandbox or container. It is used to find an object whose creation was not answered.
pub(super) const LABEL_ID: &str = "outrigger.dev/id";
/// A label of every sandbox that Outrigger creates.
pub(super) const LABEL_MANAGED: (&str, &str) = ("outrigger.dev/managed", "true");
/// The process or node that a sandbox belongs to.
pub(super) const LABEL_OWNER: &str = "outrigger.dev/owner";
/// The label with the container's `name` in the manifest.
pub(super) const CONTAINER_NAME: &str = "io.kubernetes.container.name";
/// The annotation with the container's stop signal.
pub(super) const STOP_SIGNAL: &str = "outrigger.dev/stop-signal";
/// The annotation with the pod's directory on the host.
pub(super) const POD_DIR: &str = "outrigger.dev/pod-dir";

/// The period of CPU limits in microseconds.
const CPU_PERIOD_US: u64 = 100_000;
/// The kernel refuses a smaller quota.
const CPU_QUOTA_US_MIN: u64 = 1_000;
const CPU_SHARES_MIN: u64 = 2;
const CPU_SHARES_MAX: u64 = 262_144;

/// Paths in /proc and /sys that an ordinary container must not see.
const MASKED_PATHS: [&str; 10] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
];
const MASKED_SYS_PATHS: [&str; 2] = ["/sys/firmware", "/sys/devices/virtual/powercap"];

/// Paths that an ordinary container must not change.
const READ_ONLY_PATHS: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// The configuration of a sandbox. `attempt` is 0 unless the name is in use.
pub(super) fn sandbox(spec: &SandboxSpec, owner: &str) -> Result<PodSandboxConfig, RuntimeError> {
    if spec.network == NetworkMode::None {
        return Err(RuntimeError::Config(
            "CRI has no pods without a network; use --network private or host, or --runtime embedded"
                .to_owned(),
        ));
    }
    if spec.user_namespace == UserNamespace::Required {
        return Err(RuntimeError::Config(
            "hostUsers: false is not supported with --runtime cri; use --runtime embedded".to_owned(),
        ));
    }
    let mut labels = spec.labels.clone();
    labels.extend(kubelet_labels(&spec.pod_name, &spec.pod_namespace, &spec.pod_uid));
    labels.insert(LABEL_ID.to_owned(), spec.id.0.clone());
    labels.insert(LABEL_MANAGED.0.to_owned(), LABEL_MANAGED.1.to_owned());
    labels.insert(LABEL_OWNER.to_owned(), owner.to_owned());
    let mut annotations = spec.annotations.clone();
    annotations.insert("kubernetes.io/config.source".to_owned(), "file".to_owned());
    annotations.insert(POD_DIR.to_owned(), text(&spec.pod_dir)?);
    let host_network = spec.network == NetworkMode::Host;
    Ok(PodSandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: spec.pod_name.clone(),
            uid: spec.pod_uid.clone(),
            namespace: spec.pod_namespace.clone(),
            attempt: 0,
        }),
        // A pod on the host network uses the host's name.
        hostname: if host_network { String::new() } else { spec.hostname.clone() },
        log_directory: text(&spec.pod_dir)?,
        port_mappings: spec
            .ports
            .iter()
            .filter(|_| !host_network)
            .map(|port| PortMapping {
                protocol: if port.udp { Protocol::Udp } else { Protocol::Tcp }.into(),
                container_port: port.pod_port.into(),
                host_port: port.host.port().into(),
                host_ip: match port.host.ip().is_unspecified() {
                    true => String::new(),
                    false => port.host.ip().to_string(),
                },
            })
            .collect(),
        labels,
        annotations,
        linux: Some(LinuxPodSandboxConfig {
            security_context: Some(LinuxSandboxSecurityContext {
                namespace_options: Some(namespaces(spec)),
                privileged: spec.privileged,
                seccomp: Some(SecurityProfile::default()),
            }),
            sysctls: spec.sysctls.clone(),
            resources: Some(resources(&spec.resources)),
        }),
    })
}

fn kubelet_labels(name: &str, namespace: &str, uid: &str) -> BTreeMap<String, String> {
    [
        ("io.kubernetes.pod.name", name),
        ("io.kubernetes.pod.namespace", namespace),
        ("io.kubernetes.pod.uid", uid),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into()
}

fn namespaces(spec: &SandboxSpec) -> NamespaceOption {
    let node =
        |host: bool, otherwise: NamespaceMode| if host { NamespaceMode::Node } else { otherwise }.into();
    let own_pid = if spec.share_pid { NamespaceMode::Pod } else { NamespaceMode::Container };
    NamespaceOption {
        network: node(spec.network == NetworkMode::Host, NamespaceMode::Pod),
        pid: node(spec.host_pid, own_pid),
        ipc: node(spec.host_ipc, NamespaceMode::Pod),
    }
}

/// The configuration of a container of a sandbox.
pub(super) fn container(
    spec: &ContainerSpec,
    sandbox: &PodSandboxConfig,
) -> Result<ContainerConfig, RuntimeError> {
    let metadata = sandbox.metadata.clone().unwrap_or_default();
    refuse_root(spec, &metadata)?;
    let log_path = spec.log_path.strip_prefix(&sandbox.log_directory).map_err(|_| {
        RuntimeError::Config(format!(
            "log file {} is not below the pod's directory {}",
            spec.log_path.display(),
            sandbox.log_directory
        ))
    })?;
    let mut labels = spec.labels.clone();
    labels.extend(kubelet_labels(&metadata.name, &metadata.namespace, &metadata.uid));
    labels.insert(CONTAINER_NAME.to_owned(), spec.name.clone());
    labels.insert(LABEL_ID.to_owned(), spec.id.0.clone());
    let mut annotations = spec.annotations.clone();
    annotations.insert("io.kubernetes.container.restartCount".to_owned(), spec.attempt.to_string());
    annotations.extend(spec.stop_signal.clone().map(|signal| (STOP_SIGNAL.to_owned(), signal)));
    Ok(ContainerConfig {
        metadata: Some(ContainerMetadata { name: spec.name.clone(), attempt: spec.attempt }),
        image: Some(ImageSpec {
            image: spec.image.id.clone(),
            user_specified_image: spec.image.reference.clone(),
        }),
        command: spec.command.clone().unwrap_or_default(),
        args: spec.args.clone().unwrap_or_default(),
        working_dir: spec.working_dir.clone().unwrap_or_default(),
        envs: spec
            .env
            .iter()
            .map(|(key, value)| KeyValue { key: key.clone(), value: value.clone() })
            .collect(),
        mounts: spec.mounts.iter().map(mount).collect::<Result<_, _>>()?,
        labels,
        annotations,
        log_path: text(log_path)?,
        stdin: spec.stdin,
        tty: spec.tty,
        linux: Some(LinuxContainerConfig {
            resources: Some(resources(&spec.resources)),
            security_context: Some(security(spec, sandbox)?),
        }),
        stop_signal: match spec.stop_signal.as_deref() {
            Some(name) => signal(name).ok_or_else(|| {
                RuntimeError::Config(format!("stop signal {name:?} is not the name of a signal"))
            })?,
            None => 0,
        },
    })
}

/// The kubelet's checks for a container with `runAsNonRoot`, with its messages.
fn refuse_root(spec: &ContainerSpec, pod: &PodSandboxMetadata) -> Result<(), RuntimeError> {
    if !spec.identity.run_as_non_root {
        return Ok(());
    }
    let refused = |what: &str| {
        let (namespace, name) = (&pod.namespace, &pod.name);
        let detail = format!("{what} (pod: \"{namespace}/{name}\", container: {})", spec.name);
        Err(RuntimeError::User { cause: UserFault::RootForbidden, detail })
    };
    let user = image_user(spec);
    match (spec.identity.run_as_user, user.parse::<i64>()) {
        (Some(0), _) => refused("container's runAsUser breaks non-root policy"),
        (Some(_), _) => Ok(()),
        (None, Ok(0)) => refused("container has runAsNonRoot and image will run as root"),
        (None, Ok(_)) => Ok(()),
        (None, Err(_)) if user.is_empty() => refused("container has runAsNonRoot and image will run as root"),
        (None, Err(_)) => refused(&format!(
            "container has runAsNonRoot and image has non-numeric user ({user}), cannot verify user is non-root"
        )),
    }
}

/// The user of the image's USER, without the group.
fn image_user(spec: &ContainerSpec) -> &str {
    spec.image.user.as_deref().unwrap_or("").split(':').next().unwrap_or("")
}

fn mount(mount: &outrigger_runtime::Mount) -> Result<wire::Mount, RuntimeError> {
    // containerd would create a missing source as a directory, and nobody would notice.
    if !mount.source.exists() {
        return Err(RuntimeError::Create(format!("mount source {} does not exist", mount.source.display())));
    }
    Ok(wire::Mount {
        container_path: text(&mount.target)?,
        host_path: text(&mount.source)?,
        readonly: mount.read_only,
        propagation: match mount.propagation {
            Propagation::Private => MountPropagation::PropagationPrivate,
            Propagation::HostToContainer => MountPropagation::PropagationHostToContainer,
            Propagation::Bidirectional => MountPropagation::PropagationBidirectional,
        }
        .into(),
    })
}

fn text(path: &Path) -> Result<String, RuntimeError> {
    path.to_str()
        .map(str::to_owned)
        .ok_or_else(|| RuntimeError::Config(format!("path {path:?} is not UTF-8, which CRI requires")))
}

fn security(
    spec: &ContainerSpec,
    sandbox: &PodSandboxConfig,
) -> Result<LinuxContainerSecurityContext, RuntimeError> {
    let identity = &spec.identity;
    let number = |value: i64| Int64Value { value };
    // CRI accepts a group only together with a user, so the image's user is set too.
    let mut run_as_user = identity.run_as_user;
    let mut run_as_username = String::new();
    if identity.run_as_group.is_some() && run_as_user.is_none() {
        match (image_user(spec), image_user(spec).parse()) {
            (_, Ok(uid)) => run_as_user = Some(uid),
            ("", _) => run_as_user = Some(0),
            (name, _) => run_as_username = name.to_owned(),
        }
    }
    let paths = |paths: &[&str]| match spec.mask_paths && !identity.privileged {
        true => paths.iter().map(|&path| path.to_owned()).collect(),
        false => Vec::new(),
    };
    Ok(LinuxContainerSecurityContext {
        capabilities: Some(Capability {
            add_capabilities: identity.add_capabilities.clone(),
            drop_capabilities: identity.drop_capabilities.clone(),
        }),
        privileged: identity.privileged,
        namespace_options: sandbox
            .linux
            .as_ref()
            .and_then(|linux| linux.security_context.as_ref())
            .and_then(|context| context.namespace_options),
        run_as_user: run_as_user.map(number),
        run_as_username,
        run_as_group: identity.run_as_group.map(number),
        readonly_rootfs: spec.read_only_rootfs,
        supplemental_groups: identity.supplemental_groups.iter().map(|&group| group.into()).collect(),
        no_new_privs: identity.no_new_privileges,
        masked_paths: [paths(&MASKED_PATHS), paths(&MASKED_SYS_PATHS)].concat(),
        readonly_paths: paths(&READ_ONLY_PATHS),
        supplemental_groups_policy: match identity.strict_groups {
            true => SupplementalGroupsPolicy::Strict,
            false => SupplementalGroupsPolicy::Merge,
        }
        .into(),
        selinux_options: identity.selinux.as_ref().map(|label| SeLinuxOption {
            user: label.user.clone().unwrap_or_default(),
            role: label.role.clone().unwrap_or_default(),
            r#type: label.kind.clone().unwrap_or_default(),
            level: label.level.clone().unwrap_or_default(),
        }),
        apparmor: identity.apparmor.as_ref().map(|apparmor| match apparmor {
            AppArmor::Default => SecurityProfile::default(),
            AppArmor::Unconfined => profile(ProfileType::Unconfined, String::new()),
            AppArmor::Localhost(name) => profile(ProfileType::Localhost, name.clone()),
        }),
        seccomp: Some(match &identity.seccomp {
            Seccomp::Default => SecurityProfile::default(),
            Seccomp::Unconfined => profile(ProfileType::Unconfined, String::new()),
            Seccomp::Localhost(path) => profile(ProfileType::Localhost, text(path)?),
        }),
    })
}

fn profile(profile_type: ProfileType, localhost_ref: String) -> SecurityProfile {
    SecurityProfile { profile_type: profile_type.into(), localhost_ref }
}

fn resources(resources: &Resources) -> LinuxContainerResources {
    let signed = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let quota = resources.cpu_limit_milli.map(|milli| (milli * CPU_PERIOD_US / 1000).max(CPU_QUOTA_US_MIN));
    let shares = resources.cpu_request_milli.or(resources.cpu_limit_milli);
    let shares = shares.map(|milli| (milli * 1024 / 1000).clamp(CPU_SHARES_MIN, CPU_SHARES_MAX));
    let mut unified = BTreeMap::new();
    // CRI has no other field for it, and this one only works with cgroup v2.
    if let Some(limit) = resources.pids_limit
        && Path::new("/sys/fs/cgroup/cgroup.controllers").exists()
    {
        unified.insert("pids.max".to_owned(), limit.to_string());
    }
    LinuxContainerResources {
        cpu_period: quota.map_or(0, |_| signed(CPU_PERIOD_US)),
        cpu_quota: quota.map_or(0, signed),
        cpu_shares: shares.map_or(0, signed),
        memory_limit_in_bytes: resources.memory_limit_bytes.map_or(0, signed),
        oom_score_adj: resources.oom_score_adj.unwrap_or(0).into(),
        unified,
    }
}

/// CRI's number of a signal. It is the index in CRI's list, and differs from the kernel's number.
fn signal(name: &str) -> Option<i32> {
    const NAMES: [&str; 34] = [
        "ABRT", "ALRM", "BUS", "CHLD", "CLD", "CONT", "FPE", "HUP", "ILL", "INT", "IO", "IOT", "KILL",
        "PIPE", "POLL", "PROF", "PWR", "QUIT", "SEGV", "STKFLT", "STOP", "SYS", "TERM", "TRAP", "TSTP",
        "TTIN", "TTOU", "URG", "USR1", "USR2", "VTALRM", "WINCH", "XCPU", "XFSZ",
    ];
    let name = name.strip_prefix("SIG").unwrap_or(name);
    let number = |base: i32, offset: i32, most: i32| (0..=most).contains(&offset).then_some(base + offset);
    if let Some(rest) = name.strip_prefix("RTMIN") {
        let offset = if rest.is_empty() { 0 } else { rest.strip_prefix('+')?.parse().ok()? };
        return number(35, offset, 15);
    }
    if let Some(rest) = name.strip_prefix("RTMAX") {
        let offset: i32 = if rest.is_empty() { 0 } else { rest.strip_prefix('-')?.parse().ok()? };
        return number(51, 14 - offset, 14);
    }
    let index = NAMES.iter().position(|known| *known == name)?;
    i32::try_from(index + 1).ok()
}

#[cfg(test)]
mod tests;
