//! Writes `config.json` of the OCI runtime specification. It describes the same container that the embedded
//! runtime would create.

use std::path::{Path, PathBuf};

use rustix::process::{Resource, getrlimit};
use serde_json::{Map, Value, json};

use crate::caps::CapSet;
use crate::cgroup::{self, Hierarchies};
use crate::container::process::Profile;
use crate::container::user::User;
use crate::container::{dev, mounts};
use crate::protocol::SandboxState;
use outrigger_runtime::{ContainerSpec, Mount, Propagation, Resources};

/// The version of the specification of the fields below. Runtimes refuse versions that are newer than they
/// know.
const OCI_VERSION: &str = "1.0.2";

/// The location of a volume for the runtime.
pub(crate) struct Place {
    pub(crate) path: PathBuf,
    /// Whether mounts that are made in it propagate to the host.
    pub(crate) is_shared: bool,
}

/// The inputs of a `config.json`.
pub(crate) struct Contents<'a> {
    pub(crate) spec: &'a ContainerSpec,
    pub(crate) sandbox: &'a SandboxState,
    pub(crate) profile: &'a Profile,
    pub(crate) user: &'a User,
    pub(crate) command: &'a [String],
    /// `linux.seccomp`.
    pub(crate) seccomp: Option<Value>,
    /// The location of each of the container's volumes.
    pub(crate) volumes: &'a [Place],
    pub(crate) cgroups: &'a Hierarchies,
}

impl Contents<'_> {
    /// The whole file.
    pub(crate) fn config(&self) -> Value {
        let spec = self.spec;
        json!({
            "ociVersion": OCI_VERSION,
            "root": { "path": "rootfs", "readonly": spec.read_only_rootfs },
            "process": process(self.profile, self.user, self.command, spec.tty),
            "mounts": self.mounts(),
            "linux": self.linux(),
        })
    }

    fn mounts(&self) -> Vec<Value> {
        let privileged = self.spec.identity.privileged;
        let mount = |target: &str, kind: &str, source: &str, options: &[&str]| json!({ "destination": target, "type": kind, "source": source, "options": options });
        let sys: &[&str] = match privileged {
            true => &["nosuid", "noexec", "nodev", "rw"],
            false => &["nosuid", "noexec", "nodev", "ro"],
        };
        let mut all = vec![
            mount("/proc", "proc", "proc", &["nosuid", "noexec", "nodev"]),
            mount("/sys", "sysfs", "sysfs", sys),
            mount("/dev", "tmpfs", "tmpfs", &["nosuid", "strictatime", "mode=755", "size=65536k"]),
            mount(
                "/dev/pts",
                "devpts",
                "devpts",
                &["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"],
            ),
            mount("/dev/mqueue", "mqueue", "mqueue", &["nosuid", "noexec", "nodev"]),
            mount(
                "/dev/shm",
                "bind",
                &self.sandbox.shm.to_string_lossy(),
                &["bind", "nosuid", "noexec", "nodev"],
            ),
        ];
        if self.cgroups.is_unified() {
            all.push(mount("/sys/fs/cgroup", "cgroup", "cgroup", sys));
        }
        let own = self.spec.mounts.iter().zip(self.volumes);
        all.extend(own.map(|(volume, place)| bind(volume, place)));
        all
    }

    fn linux(&self) -> Value {
        let spec = self.spec;
        let privileged = spec.identity.privileged;
        let mut linux = Map::new();
        let mut set = |key: &str, value: Value| linux.insert(key.to_owned(), value);
        set("cgroupsPath", json!(format!("/{}", cgroup::container_path(&self.sandbox.id.0, &spec.id.0))));
        set("namespaces", json!(self.namespaces()));
        set("resources", self.resources());
        if spec.mask_paths && !privileged {
            let paths = |base: &str, list: &[&str]| {
                list.iter().map(|path| format!("{base}/{path}")).collect::<Vec<_>>()
            };
            let masked = [paths("/proc", &mounts::MASKED_PROC), paths("/sys", &mounts::MASKED_SYS)].concat();
            set("maskedPaths", json!(masked));
            set("readonlyPaths", json!(paths("/proc", &mounts::READ_ONLY_PROC)));
        }
        if privileged {
            let devices = dev::host_devices(Path::new("/dev"));
            set("devices", devices.iter().map(|(path, mode, number)| device(path, *mode, *number)).collect());
        }
        if let Some(seccomp) = &self.seccomp {
            set("seccomp", seccomp.clone());
        }
        if self.volumes.iter().zip(&spec.mounts).any(|(place, mount)| goes_both_ways(mount, place)) {
            // Otherwise the runtime detaches the host's mounts before it handles the volumes.
            set("rootfsPropagation", json!("rshared"));
        }
        linux.into()
    }

    fn namespaces(&self) -> Vec<Value> {
        let sandbox = self.sandbox;
        let mut all = vec![json!({ "type": "mount" }), json!({ "type": "cgroup" })];
        for (kind, path) in [("network", &sandbox.net), ("ipc", &sandbox.ipc), ("uts", &sandbox.uts)] {
            all.extend(path.as_ref().map(|path| json!({ "type": kind, "path": path })));
        }
        match &sandbox.pid {
            Some(path) => all.push(json!({ "type": "pid", "path": path })),
            None if !sandbox.host_pid => all.push(json!({ "type": "pid" })),
            None => {}
        }
        all
    }

    fn resources(&self) -> Value {
        let mut resources = limits(&self.spec.resources, self.cgroups);
        let rules = cgroup::device_rules(self.spec.identity.privileged);
        resources.insert("devices".to_owned(), rules.iter().map(device_rule).collect());
        resources.into()
    }
}

/// A process of the container: its first one, or a command that is executed in it.
pub(crate) fn process(profile: &Profile, user: &User, command: &[String], terminal: bool) -> Value {
    let mut env: Vec<String> = profile.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
    if !profile.env.iter().any(|(name, _)| name == "HOME") {
        env.push(format!("HOME={}", user.home));
    }
    // This process cannot give more capabilities than it has, and runtimes fail if they cannot set one.
    let own = rustix::thread::capabilities(None).map_or(0, |own| own.permitted.bits());
    let caps = names(CapSet(profile.caps.0 & own));
    let mut process = json!({
        "terminal": terminal,
        "user": { "uid": user.uid, "gid": user.gid, "additionalGids": user.groups, "umask": 0o022 },
        "args": command,
        "env": env,
        "cwd": profile.cwd,
        "capabilities": { "bounding": caps, "effective": caps, "permitted": caps, "inheritable": [], "ambient": [] },
        "noNewPrivileges": profile.no_new_privileges,
        "rlimits": rlimits(),
    });
    if let Some(profile) = &profile.apparmor {
        process["apparmorProfile"] = json!(profile);
    }
    process
}

fn names(caps: CapSet) -> Vec<String> {
    let held = caps.numbers().filter(|(_, held)| *held);
    held.filter_map(|(number, _)| CapSet::name(number)).map(|name| format!("CAP_{name}")).collect()
}

/// The limits of this process, for runtimes that change their own limits and would pass those on.
fn rlimits() -> Vec<Value> {
    let kinds = [
        ("RLIMIT_AS", Resource::As),
        ("RLIMIT_CORE", Resource::Core),
        ("RLIMIT_CPU", Resource::Cpu),
        ("RLIMIT_DATA", Resource::Data),
        ("RLIMIT_FSIZE", Resource::Fsize),
        ("RLIMIT_LOCKS", Resource::Locks),
        ("RLIMIT_MEMLOCK", Resource::Memlock),
        ("RLIMIT_MSGQUEUE", Resource::Msgqueue),
        ("RLIMIT_NICE", Resource::Nice),
        ("RLIMIT_NOFILE", Resource::Nofile),
        ("RLIMIT_NPROC", Resource::Nproc),
        ("RLIMIT_RSS", Resource::Rss),
        ("RLIMIT_RTPRIO", Resource::Rtprio),
        ("RLIMIT_RTTIME", Resource::Rttime),
        ("RLIMIT_SIGPENDING", Resource::Sigpending),
        ("RLIMIT_STACK", Resource::Stack),
    ];
    let number = |limit: Option<u64>| limit.unwrap_or(u64::MAX);
    let limit = |(name, kind)| {
        let limit = getrlimit(kind);
        json!({ "type": name, "soft": number(limit.current), "hard": number(limit.maximum) })
    };
    kinds.into_iter().map(limit).collect()
}

/// Whether mounts propagate in both directions. They do not if the host's mounts are private.
fn goes_both_ways(volume: &Mount, place: &Place) -> bool {
    volume.propagation == Propagation::Bidirectional && place.is_shared
}

fn bind(volume: &Mount, place: &Place) -> Value {
    let propagation = match volume.propagation {
        Propagation::Bidirectional if !goes_both_ways(volume, place) => "rprivate",
        Propagation::Private => "rprivate",
        Propagation::HostToContainer => "rslave",
        Propagation::Bidirectional => "rshared",
    };
    let mut options = vec!["rbind", propagation];
    if volume.read_only {
        // The mounts below it are read-only already.
        options.push("ro");
    }
    json!({ "destination": volume.target, "type": "bind", "source": place.path, "options": options })
}

fn limits(wanted: &Resources, cgroups: &Hierarchies) -> Map<String, Value> {
    let mut resources = Map::new();
    if let Some(bytes) = wanted.memory_limit_bytes {
        let mut memory = json!({ "limit": bytes });
        if cgroups.counts_swap() {
            // This limits memory and swap together, so that swapping does not get around the limit.
            memory["swap"] = json!(bytes);
        }
        resources.insert("memory".to_owned(), memory);
        if cgroups.is_unified() {
            resources.insert("unified".to_owned(), json!({ "memory.oom.group": "1" }));
        }
    }
    let cpu = cgroup::cpu_amounts(wanted);
    let mut values = Map::new();
    let named = [
        ("shares", cpu.shares),
        ("quota", cpu.quota_us),
        ("period", cpu.quota_us.map(|_| cgroup::CPU_PERIOD_US)),
    ];
    values.extend(named.into_iter().filter_map(|(name, value)| Some((name.to_owned(), json!(value?)))));
    if !values.is_empty() {
        resources.insert("cpu".to_owned(), values.into());
    }
    if let Some(limit) = wanted.pids_limit {
        resources.insert("pids".to_owned(), json!({ "limit": limit }));
    }
    resources
}

fn device_rule(rule: &cgroup::DeviceRule) -> Value {
    let mut value = json!({ "allow": rule.allow, "access": rule.access });
    if let Some(kind) = rule.kind {
        value["type"] = json!(kind);
    }
    for (name, number) in [("major", rule.major), ("minor", rule.minor)] {
        if let Some(number) = number {
            value[name] = json!(number);
        }
    }
    value
}

fn device(path: &Path, mode: u32, number: u64) -> Value {
    let kind = if mode & libc::S_IFMT == libc::S_IFBLK { "b" } else { "c" };
    json!({
        "path": Path::new("/dev").join(path),
        "type": kind,
        "major": libc::major(number),
        "minor": libc::minor(number),
        "fileMode": mode & 0o7777,
        "uid": 0,
        "gid": 0,
    })
}
