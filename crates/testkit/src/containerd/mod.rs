//! A separate containerd for a test. Its root, state and socket are in a temporary directory, so that no
//! other containerd of the machine is affected.

pub mod image;

use std::fs;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use outrigger_cri::{CriConfig, CriRuntime};
use outrigger_runtime::{PullPolicy, PullRequest, Runtime as _};
use rustix::process::{Pid, Signal, kill_process};

/// The image of the pods: busybox with links for all its commands.
pub const IMAGE: &str = "localhost/busybox:1";

/// A step that takes longer than this hangs.
const DEADLINE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(10);

/// A running containerd.
pub struct Containerd {
    dir: tempfile::TempDir,
    child: Option<Child>,
    subnet: Option<u8>,
    was_killed: bool,
}

impl Containerd {
    /// Starts containerd and imports the images. Pods with their own network get it from a bridge named after
    /// `subnet`, the third number of 10.244.x.0/24. Without `subnet` there is no network.
    pub fn start(subnet: Option<u8>) -> Self {
        Self::start_in(subnet, |_| {})
    }

    /// Starts containerd in a directory that `prepare` sets up first. The data of containerd is in `root`
    /// below it.
    pub fn start_in(subnet: Option<u8>, prepare: impl FnOnce(&Path)) -> Self {
        let dir = tempfile::Builder::new().prefix("outrigger-cri-").tempdir().expect("a temporary directory");
        prepare(dir.path());
        let mut containerd = Containerd { dir, child: None, subnet, was_killed: false };
        containerd.write_config();
        containerd.go_on();
        let archive = containerd.dir().join("images.tar");
        image::write_archive(&archive);
        containerd.ctr(&["images", "import", "--no-unpack", archive.to_str().expect("a path")]);
        fs::remove_file(archive).expect("remove the archive");
        // This needs a separate thread, because the caller may be an async task.
        std::thread::scope(|scope| scope.spawn(|| containerd.wait_for_images()).join()).expect("the images");
        containerd
    }

    /// Waits until CRI lists the imported images, which happens a little later.
    fn wait_for_images(&self) {
        let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let config = CriConfig { endpoint: Some(self.endpoint()), ..CriConfig::default() };
        let runtime = tokio.block_on(CriRuntime::connect(config)).expect("containerd answers");
        for name in image::NAMES {
            eventually(name, || {
                let (reference, policy) = (name.to_owned(), PullPolicy::Never);
                let request = PullRequest { reference, policy, auth: Vec::new() };
                tokio.block_on(runtime.pull_image(request, Arc::new(|_| {}))).is_ok()
            });
        }
    }

    /// The directory that contains everything.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn socket(&self) -> PathBuf {
        self.dir().join("c.sock")
    }

    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    fn write_config(&self) {
        let dir = self.dir().display();
        let config = format!(
            r#"version = 2
root = "{dir}/root"
state = "{dir}/state"
disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper"]
[grpc]
  address = "{dir}/c.sock"
[debug]
  address = ""
  level = "warn"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  # Raising priority over others is more than root of a container may do.
  restrict_oom_score_adj = true
  stream_server_port = "0"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{dir}/cni"
[plugins."io.containerd.internal.v1.opt"]
  path = "{dir}/opt"
"#
        );
        fs::write(self.dir().join("config.toml"), config).expect("write the configuration");
        if let Some(number) = self.subnet {
            let bridge = bridge(number);
            let network = format!(
                r#"{{"cniVersion":"0.4.0","name":"outrigger-{number}","plugins":[{{"type":"bridge","bridge":"{bridge}","isGateway":true,
                "ipam":{{"type":"host-local","dataDir":"{dir}/ipam","ranges":[[{{"subnet":"10.244.{number}.0/24"}}]]}}}}]}}"#
            );
            fs::create_dir_all(self.dir().join("cni")).expect("a directory");
            fs::write(self.dir().join("cni/10.conflist"), network)
                .expect("write the network's configuration");
        }
    }

    /// Starts containerd again after [`Containerd::halt`].
    pub fn go_on(&mut self) {
        assert!(self.child.is_none(), "it runs");
        let log = fs::File::options().create(true).append(true).open(self.dir().join("log")).expect("a log");
        let child = Command::new("containerd")
            .arg("--config")
            .arg(self.dir().join("config.toml"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a log"))
            .stderr(log)
            .process_group(0)
            .spawn()
            .expect("containerd is installed");
        self.child = Some(child);
        eventually("containerd listens", || UnixStream::connect(self.socket()).is_ok());
    }

    /// Stops containerd with a signal. Its containers keep running.
    pub fn halt(&mut self, signal: Signal) {
        self.was_killed |= signal == Signal::KILL;
        if let Some(mut child) = self.child.take() {
            kill_process(pid(child.id()), signal).expect("signal containerd");
            child.wait().expect("containerd ends");
        }
    }

    /// Runs `ctr` in the namespace of Kubernetes.
    pub fn ctr(&self, args: &[&str]) -> String {
        self.try_ctr(args).unwrap_or_else(|error| panic!("ctr {args:?}: {error}\n{}", self.log()))
    }

    /// Runs `ctr` when it may fail.
    ///
    /// # Errors
    /// Returns the error text of `ctr`.
    pub fn try_ctr(&self, args: &[&str]) -> anyhow::Result<String> {
        let mut command = Command::new("ctr");
        command.arg("-a").arg(self.socket()).args(["-n", "k8s.io"]).args(args);
        let output = command.output().expect("ctr is installed");
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(anyhow!("{}", String::from_utf8_lossy(&output.stderr))),
        }
    }

    /// Existing containers and sandboxes.
    pub fn containers(&self) -> Vec<String> {
        self.ctr(&["containers", "list", "--quiet"]).lines().map(str::to_owned).collect()
    }

    /// The log of containerd.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir().join("log")).unwrap_or_default()
    }

    /// Stops containerd and checks that nothing of any pod is left. A killed containerd may have lost track
    /// of a shim that it was about to use. Such a shim has no child processes.
    pub fn finish(mut self) {
        let left = self.containers();
        assert!(left.is_empty(), "containers are left: {left:?}");
        let held = || -> Vec<String> {
            let shims = self.shims();
            let held = shims.iter().flat_map(|shim| descendants(*shim));
            let own = shims.iter().copied().filter(|_| !self.was_killed);
            held.chain(own).map(command_line).collect()
        };
        let end = Instant::now() + DEADLINE;
        while !held().is_empty() {
            assert!(Instant::now() < end, "processes are left: {:#?}\n{}", held(), self.log());
            std::thread::park_timeout(POLL);
        }
        self.halt(Signal::TERM);
        let mut left = self.mounts();
        left.retain(|point| *point != self.dir().join("root"));
        assert!(left.is_empty(), "mounts are left: {left:?}");
    }

    /// The shims of this containerd: their arguments contain its socket.
    fn shims(&self) -> Vec<Pid> {
        let socket = self.socket();
        let processes = fs::read_dir("/proc").expect("/proc").flatten();
        let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let own = pids.filter(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
            words[0].ends_with(b"containerd-shim-runc-v2")
                && words.contains(&socket.as_os_str().as_encoded_bytes())
        });
        own.map(pid).collect()
    }

    /// Mount points below the directory, the latest first.
    fn mounts(&self) -> Vec<PathBuf> {
        let prefix = format!("{}/", self.dir().display());
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
        let points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
        let mut own: Vec<PathBuf> =
            points.filter(|point| point.starts_with(&prefix)).map(PathBuf::from).collect();
        own.reverse();
        own
    }
}

impl Drop for Containerd {
    /// Removes what a failed test left behind.
    fn drop(&mut self) {
        self.halt(Signal::KILL);
        for shim in self.shims() {
            // The container is killed first, because a shim does not always end its container when it is told
            // to stop.
            for child in descendants(shim) {
                let _ = kill_process(child, Signal::KILL);
            }
            let _ = kill_process(shim, Signal::KILL);
        }
        let end = Instant::now() + DEADLINE;
        while !self.shims().is_empty() && Instant::now() < end {
            std::thread::park_timeout(POLL);
        }
        self.clear_traces();
        for point in self.mounts() {
            let _ = rustix::mount::unmount(&point, rustix::mount::UnmountFlags::DETACH);
        }
        if let Some(number) = self.subnet {
            let _ =
                Command::new("ip").args(["link", "delete", &bridge(number)]).stderr(Stdio::null()).status();
        }
    }
}

impl Containerd {
    /// Removes what killed shims left outside the directory.
    fn clear_traces(&self) {
        let hierarchies: Vec<PathBuf> = entries(Path::new("/sys/fs/cgroup"));
        for bundle in entries(&self.dir().join("state/io.containerd.runtime.v2.task/k8s.io")) {
            let Some(id) = bundle.file_name() else { continue };
            for hierarchy in &hierarchies {
                let _ = fs::remove_dir(hierarchy.join("k8s.io").join(id));
            }
            let _ = fs::remove_dir_all(Path::new("/run/containerd/runc/k8s.io").join(id));
            if let Ok(address) = fs::read_to_string(bundle.join("address")) {
                let _ = fs::remove_file(address.trim_start_matches("unix://"));
            }
        }
        // This fails if another containerd uses the directory, which is fine.
        for hierarchy in hierarchies {
            let _ = fs::remove_dir(hierarchy.join("k8s.io"));
        }
    }
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

fn bridge(number: u8) -> String {
    format!("orcri{number}")
}

fn pid(number: u32) -> Pid {
    Pid::from_raw(i32::try_from(number).expect("a pid")).expect("not zero")
}

fn command_line(of: Pid) -> String {
    let line = fs::read(format!("/proc/{}/cmdline", of.as_raw_nonzero())).unwrap_or_default();
    String::from_utf8_lossy(&line).replace('\0', " ")
}

fn descendants(of: Pid) -> Vec<Pid> {
    let mut found = Vec::new();
    let mut pending = vec![of.as_raw_nonzero().get()];
    while let Some(next) = pending.pop() {
        let children = fs::read_to_string(format!("/proc/{next}/task/{next}/children")).unwrap_or_default();
        for child in children.split_whitespace().filter_map(|child| child.parse().ok()) {
            found.extend(Pid::from_raw(child));
            pending.push(child);
        }
    }
    found
}

/// Waits until a condition holds.
pub fn eventually(what: &str, mut check: impl FnMut() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !check() {
        assert!(Instant::now() < end, "not in time: {what}");
        std::thread::park_timeout(POLL);
    }
}
