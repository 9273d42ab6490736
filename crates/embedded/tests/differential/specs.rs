//! The pods that are compared.

use std::path::{Path, PathBuf};

use outrigger_runtime::{ContainerSpec, Mount, NetworkMode, Propagation, SandboxSpec, Seccomp};

/// One pod with one container.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// Whether every system call is tried too, which takes the most time.
    pub(crate) calls: bool,
    pub(crate) change: fn(&mut Wish<'_>),
}

/// The parts of a pod that a case may change.
pub(crate) struct Wish<'a> {
    pub(crate) pod: &'a mut SandboxSpec,
    pub(crate) container: &'a mut ContainerSpec,
    /// Files of the host for volumes.
    pub(crate) files: &'a Path,
}

impl Wish<'_> {
    fn add(&mut self, capabilities: &[&str]) {
        self.container.identity.add_capabilities =
            capabilities.iter().map(|name| (*name).to_owned()).collect();
    }

    fn drop(&mut self, capabilities: &[&str]) {
        self.container.identity.drop_capabilities =
            capabilities.iter().map(|name| (*name).to_owned()).collect();
    }

    fn user(&mut self, uid: i64) {
        self.container.identity.run_as_user = Some(uid);
    }

    fn image_user(&mut self, user: &str) {
        self.container.image.user = Some(user.to_owned());
    }

    fn volume(&mut self, source: &str, target: &str, read_only: bool) {
        self.mount(self.files.join(source), target, read_only, Propagation::Private);
    }

    fn mount(&mut self, source: PathBuf, target: &str, read_only: bool, propagation: Propagation) {
        self.container.mounts.push(Mount { source, target: target.into(), read_only, propagation });
    }

    fn profile(&mut self, name: &str) {
        self.container.identity.seccomp = Seccomp::Localhost(self.files.join(name));
    }

    fn sysctl(&mut self, name: &str, value: &str) {
        self.pod.sysctls.insert(name.to_owned(), value.to_owned());
    }
}

const fn case(name: &'static str, change: fn(&mut Wish<'_>)) -> Case {
    Case { name, calls: false, change }
}

const fn calls(name: &'static str, change: fn(&mut Wish<'_>)) -> Case {
    Case { name, calls: true, change }
}

pub(crate) const CASES: [Case; 78] = [
    calls("plain", |_| {}),
    // Users and groups.
    calls("user", |w| w.user(1000)),
    case("user-and-group", |w| {
        w.user(1000);
        w.container.identity.run_as_group = Some(2000);
    }),
    case("group-only", |w| w.container.identity.run_as_group = Some(2000)),
    case("user-of-the-image-s-table", |w| w.user(33)),
    case("image-user", |w| w.image_user("web")),
    case("image-user-and-group", |w| w.image_user("web:log")),
    case("image-user-numeric", |w| w.image_user("33:0")),
    case("supplemental-groups", |w| w.container.identity.supplemental_groups = vec![5, 70, 4000]),
    case("user-supplemental-groups", |w| {
        w.user(1000);
        w.container.identity.supplemental_groups = vec![2000, 3000];
    }),
    case("many-groups", |w| w.container.identity.supplemental_groups = (5000..5100).collect()),
    case("non-root", |w| {
        w.user(1000);
        w.container.identity.run_as_non_root = true;
    }),
    case("highest-user", |w| w.user(2_147_483_647)),
    // Capabilities, which also permit system calls.
    calls("drop-all", |w| w.drop(&["ALL"])),
    case("drop-mknod", |w| w.drop(&["MKNOD"])),
    calls("drop-chroot", |w| w.drop(&["SYS_CHROOT"])),
    case("only-net-bind", |w| {
        w.drop(&["ALL"]);
        w.add(&["NET_BIND_SERVICE"]);
    }),
    case("net-admin", |w| w.add(&["NET_ADMIN"])),
    calls("sys-admin", |w| w.add(&["SYS_ADMIN"])),
    calls("sys-ptrace", |w| w.add(&["SYS_PTRACE"])),
    calls("sys-time", |w| w.add(&["SYS_TIME"])),
    calls("sys-module", |w| w.add(&["SYS_MODULE"])),
    calls("bpf-and-perfmon", |w| w.add(&["BPF", "PERFMON"])),
    calls("syslog-and-nice", |w| w.add(&["SYSLOG", "SYS_NICE"])),
    calls("dac-read-search-and-pacct", |w| w.add(&["DAC_READ_SEARCH", "SYS_PACCT"])),
    calls("boot-rawio-tty", |w| w.add(&["SYS_BOOT", "SYS_RAWIO", "SYS_TTY_CONFIG"])),
    calls("all-capabilities", |w| w.add(&["ALL"])),
    case("all-but-admin", |w| {
        w.add(&["ALL"]);
        w.drop(&["SYS_ADMIN"]);
    }),
    case("user-with-capability", |w| {
        w.user(1000);
        w.add(&["NET_ADMIN"]);
    }),
    case("user-drop-all", |w| {
        w.user(1000);
        w.drop(&["ALL"]);
    }),
    // no_new_privs.
    calls("no-new-privileges", |w| w.container.identity.no_new_privileges = true),
    case("restricted", |w| {
        w.user(1000);
        w.drop(&["ALL"]);
        w.container.identity.no_new_privileges = true;
        w.container.identity.run_as_non_root = true;
        w.container.read_only_rootfs = true;
    }),
    // Privileged.
    calls("privileged", privileged),
    case("privileged-user", |w| {
        privileged(w);
        w.user(1000);
    }),
    case("privileged-read-only-root", |w| {
        privileged(w);
        w.container.read_only_rootfs = true;
    }),
    case("privileged-host-namespaces", |w| {
        privileged(w);
        w.pod.host_pid = true;
        w.pod.host_ipc = true;
        w.pod.network = NetworkMode::Host;
    }),
    // The root file system and /proc.
    case("read-only-root", |w| w.container.read_only_rootfs = true),
    case("read-only-root-user", |w| {
        w.container.read_only_rootfs = true;
        w.user(1000);
    }),
    case("read-only-root-volume", |w| {
        w.container.read_only_rootfs = true;
        w.volume("dir", "/vol", false);
    }),
    case("unmasked-proc", |w| w.container.mask_paths = false),
    case("unmasked-proc-user", |w| {
        w.container.mask_paths = false;
        w.user(1000);
    }),
    // System call filters.
    calls("unconfined", |w| w.container.identity.seccomp = Seccomp::Unconfined),
    case("unconfined-user", |w| {
        w.container.identity.seccomp = Seccomp::Unconfined;
        w.user(1000);
    }),
    case("unconfined-no-new-privileges", |w| {
        w.container.identity.seccomp = Seccomp::Unconfined;
        w.container.identity.no_new_privileges = true;
    }),
    calls("profile-that-denies", |w| w.profile("deny.json")),
    calls("profile-that-looks-at-arguments", |w| w.profile("arguments.json")),
    case("profile-user-no-new-privileges", |w| {
        w.profile("deny.json");
        w.user(1000);
        w.container.identity.no_new_privileges = true;
    }),
    // Volumes.
    case("volume", |w| w.volume("dir", "/vol", false)),
    case("volume-user", |w| {
        w.volume("dir", "/vol", false);
        w.user(1000);
    }),
    case("volume-read-only", |w| w.volume("dir", "/vol", true)),
    case("volume-file", |w| w.volume("file", "/vol", false)),
    case("volume-file-read-only", |w| w.volume("file", "/vol", true)),
    case("volume-deep", |w| w.volume("dir", "/deep/a/b", false)),
    case("volume-in-volume", |w| {
        w.volume("dir", "/vol", false);
        w.volume("other", "/vol/sub", true);
    }),
    case("volume-over-image", |w| w.volume("dir", "/etc", true)),
    case("volume-in-memory", |w| w.mount("/dev/shm".into(), "/vol", false, Propagation::Private)),
    case("volume-socket", |w| w.volume("socket", "/vol", false)),
    case("volume-device", |w| w.mount("/dev/zero".into(), "/vol", false, Propagation::Private)),
    case("volume-through-link", |w| w.volume("dir", "/link/vol", false)),
    case("volume-from-host", |w| {
        w.mount(w.files.join("dir"), "/vol", false, Propagation::HostToContainer);
    }),
    case("volume-both-ways", |w| {
        privileged(w);
        w.mount(w.files.join("dir"), "/vol", false, Propagation::Bidirectional);
    }),
    case("volume-over-shm", |w| w.volume("dir", "/dev/shm", false)),
    // Kernel settings.
    case("sysctl-network", |w| {
        w.sysctl("net.ipv4.ip_unprivileged_port_start", "0");
        w.sysctl("net.core.somaxconn", "77");
    }),
    case("sysctl-ipc", |w| {
        w.sysctl("kernel.shmmax", "123456");
        w.sysctl("fs.mqueue.msg_max", "9");
    }),
    // Namespaces.
    case("shared-processes", |w| w.pod.share_pid = true),
    case("host-processes", |w| w.pod.host_pid = true),
    case("host-ipc", |w| w.pod.host_ipc = true),
    case("host-network", |w| w.pod.network = NetworkMode::Host),
    case("host-everything", |w| {
        w.pod.host_pid = true;
        w.pod.host_ipc = true;
        w.pod.network = NetworkMode::Host;
    }),
    // Streams, paths and environment.
    case("terminal", |w| w.container.tty = true),
    case("terminal-user", |w| {
        w.container.tty = true;
        w.user(1000);
    }),
    case("standard-input", |w| w.container.stdin = true),
    case("working-directory", |w| w.container.working_dir = Some("/home/web".to_owned())),
    case("new-working-directory", |w| w.container.working_dir = Some("/not/there/yet".to_owned())),
    case("environment", |w| {
        w.container.env =
            vec![("A".into(), "1 2".into()), ("PATH".into(), "/bin".into()), ("HOME".into(), "/x".into())];
        w.container.image.env = vec!["A=0".into(), "B=image".into()];
    }),
    // Limits.
    case("memory-and-processes", |w| {
        w.container.resources.memory_limit_bytes = Some(256 << 20);
        w.container.resources.pids_limit = Some(500);
    }),
    case("cpu", |w| {
        w.container.resources.cpu_request_milli = Some(100);
        w.container.resources.cpu_limit_milli = Some(1500);
    }),
    case("oom-score", |w| w.container.resources.oom_score_adj = Some(900)),
];

fn privileged(w: &mut Wish<'_>) {
    w.container.identity.privileged = true;
    w.pod.privileged = true;
}
