//! Measures the floor of a start: how long the kernel needs for the objects of a pod and nothing else.
//!
//! ```text
//! cargo build --release -p outrigger-embedded --example floor
//! floor --rootfs DIR --dir DIR a|b|e|clean
//! floor --rootfs DIR --dir DIR check PROGRAM [ARGUMENT]...
//! ```
//!
//! It needs root. `--rootfs` is a directory with busybox. `--dir` is an empty directory on the same disk as
//! Outrigger's state directory. `scripts/bench-run.py --floor PATH` runs it in turns with `outrigger run`.
//!
//! * `a`: five init containers and a main container, all `true`. Ends when everything is removed again.
//! * `b`: five sidecars one after the other, with one command executed in each, and a main container that
//!   runs for one second. Ends when everything is removed again.
//! * `e`: 100 pods of two containers. Prints the seconds until all run, then removes them.
//! * `check`: runs a program in one container, with the caller's standard output. A program that prints its
//!   mounts, capabilities and addresses shows whether this program still creates the same objects as
//!   `outrigger run`. The script compares them.
//! * `clean`: removes the bridge. The other commands leave it for the next one, as Outrigger does for a
//!   second.
//!
//! For a pod, it creates a tmpfs with its /dev/shm and its pinned user, network, ipc and uts namespaces, a
//! pair of interfaces with a packet filter, cgroups, and the files that are mounted into containers.
//!
//! For a container, it creates cgroups with limits of processes and devices, an overlay with id-mapped
//! layers, /dev, /proc, /sys, masked paths, id-mapped files, its own mount, pid and cgroup namespaces, a
//! keyring, capabilities and the system call filter. The contents of filters come from the runtime's own
//! tables.
//!
//! It leaves out everything that is not a kernel object of a container: the manifest, the engine, JSON, logs,
//! the state on disk, the shim and its socket, the final check of a container, locks, and the protection
//! against hostile images.
//!
//! All containers of a pod are built concurrently, each by its own process, while the parent connects the
//! pod. Outrigger does the same, for up to four containers. In `e`, each processor has a worker that starts
//! one pod after the other.

use std::ffi::CString;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use outrigger_embedded::floor;
use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MountPropagationFlags, MoveMountFlags,
    OpenTreeFlags, UnmountFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen, mount, mount_bind,
    mount_change, move_mount, open_tree, unmount,
};
use rustix::process::{Pid, Signal, WaitOptions, waitpid};

const USAGE: &str = "usage: floor --rootfs DIR --dir DIR a|b|e|clean, or: … check PROGRAM [ARGUMENT]...";
const BRIDGE: &str = "orfloor0";
const CGROUP: &str = "outrigger-floor";
/// The host's id of the first pod's id 0. No pod of Outrigger has these ids.
const FIRST_ID: u32 = 0x6000_0000;
const IDS: u32 = 65536;
/// The default of Docker, containerd and CRI-O.
const CAPABILITIES: u64 = 0xa804_25fb;
const CAPABILITIES_MAX: u32 = 41;
const DEVICES: [(&str, u32, u32); 6] =
    [("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0)];
const LINKS: [(&str, &str); 6] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("core", "/proc/kcore"),
    ("ptmx", "pts/ptmx"),
];
const READ_ONLY: [&str; 5] = ["proc/bus", "proc/fs", "proc/irq", "proc/sys", "proc/sysrq-trigger"];
const MASKED: [&str; 12] = [
    "proc/asound",
    "proc/acpi",
    "proc/interrupts",
    "proc/kcore",
    "proc/keys",
    "proc/latency_stats",
    "proc/timer_list",
    "proc/timer_stats",
    "proc/sched_debug",
    "proc/scsi",
    "sys/firmware",
    "sys/devices/virtual/powercap",
];
/// The pod's files that are mounted into containers: the name in the pod's directory, and the path in the
/// container.
const FILES: [(&str, &str); 3] =
    [("hosts", "etc/hosts"), ("resolv.conf", "etc/resolv.conf"), ("hostname", "etc/hostname")];
const SIDECAR: [&str; 3] =
    ["/bin/sh", "-c", "trap 'exit 0' TERM; touch /tmp/up; while :; do sleep 3600 & wait $!; done"];
const TRUE: [&str; 1] = ["/bin/true"];

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "floor: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> io::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [rootfs_flag, rootfs, dir_flag, dir, case, rest @ ..] = args.as_slice() else {
        return Err(io::Error::other(USAGE));
    };
    if (rootfs_flag.as_str(), dir_flag.as_str()) != ("--rootfs", "--dir") {
        return Err(io::Error::other(USAGE));
    }
    if case == "clean" {
        return network::remove_bridge();
    }
    let machine = Machine::new(Path::new(rootfs), Path::new(dir))?;
    match (case.as_str(), rest) {
        ("a", []) => init_containers(&machine),
        ("b", []) => sidecars(&machine),
        ("e", []) => hundred_pods(&machine),
        ("check", [_, ..]) => {
            let command: Vec<&str> = rest.iter().map(String::as_str).collect();
            let pod = Pod::create(&machine, 0)?;
            let mut container = pod.build("main", &command, Output::Inherited)?;
            pod.connect()?;
            container.start()?;
            container.wait()?;
            pod.remove(&[container])
        }
        _ => Err(io::Error::other(USAGE)),
    }
}

/// Five init containers and a main.
fn init_containers(machine: &Machine) -> io::Result<()> {
    let pod = Pod::create(machine, 0)?;
    let mut containers = pod.build_all(&["i0", "i1", "i2", "i3", "i4", "main"], |_| &TRUE)?;
    pod.connect()?;
    for i in 0..containers.len() {
        containers[i].start()?;
        if i > 0 {
            pod.remove_container(&containers[i - 1])?;
        }
        containers[i].wait()?;
    }
    pod.remove(&containers[containers.len() - 1..])
}

/// Five sidecars, each with one command executed in it, and a main of one second.
fn sidecars(machine: &Machine) -> io::Result<()> {
    let pod = Pod::create(machine, 0)?;
    let sleep: &[&str] = &["/bin/sleep", "1"];
    let command = |name: &str| if name == "main" { sleep } else { &SIDECAR };
    let mut containers = pod.build_all(&["s0", "s1", "s2", "s3", "s4", "main"], command)?;
    pod.connect()?;
    let Some((main, sidecars)) = containers.split_last_mut() else { return Ok(()) };
    for sidecar in sidecars.iter_mut() {
        sidecar.start()?;
        let up = pod.layer(sidecar.name).join("upper/tmp/up");
        while !up.exists() {
            std::thread::yield_now();
        }
        sidecar.exec(machine, &["/bin/test", "-e", "/tmp/up"])?;
    }
    main.start()?;
    main.wait()?;
    for sidecar in sidecars.iter().rev() {
        sidecar.terminate()?;
        sidecar.wait()?;
    }
    pod.remove(&containers)
}

/// 100 pods of two containers, by one worker for each processor.
fn hundred_pods(machine: &Machine) -> io::Result<()> {
    let begun = Instant::now();
    let workers = std::thread::available_parallelism()?.get() as u32;
    let mut sockets = Vec::new();
    for worker in 0..workers {
        let (ours, theirs) = UnixStream::pair()?;
        match fork(0, None)? {
            Some(pid) => sockets.push((pid, ours)),
            None => {
                drop(ours);
                let result = work(machine, (worker..100).step_by(workers as usize), theirs);
                exit(result.map_err(|error| format!("worker {worker}: {error}")));
            }
        }
    }
    for (_, socket) in &mut sockets {
        socket.read_exact(&mut [0])?;
    }
    writeln!(io::stdout(), "{:.4}", begun.elapsed().as_secs_f64())?;
    for (pid, mut socket) in sockets {
        socket.write_all(&[0])?;
        reap(pid)?;
    }
    Ok(())
}

/// Starts some of the pods, reports that, and removes them when asked to.
fn work(machine: &Machine, numbers: impl Iterator<Item = u32>, mut socket: UnixStream) -> io::Result<()> {
    let mut pods = Vec::new();
    for number in numbers {
        let pod = Pod::create(machine, number)?;
        let mut containers = pod.build_all(&["s0", "main"], |_| &SIDECAR)?;
        pod.connect()?;
        for container in &mut containers {
            container.start()?;
        }
        pods.push((pod, containers));
    }
    socket.write_all(&[0])?;
    socket.read_exact(&mut [0])?;
    for container in pods.iter().flat_map(|(_, containers)| containers) {
        container.terminate()?;
    }
    for (pod, containers) in pods {
        containers.iter().try_for_each(Container::wait)?;
        pod.remove(&containers)?;
    }
    Ok(())
}

/// The directories and hierarchies that all pods share.
struct Machine {
    rootfs: PathBuf,
    dir: PathBuf,
    /// The unified hierarchy.
    unified: PathBuf,
    /// The v1 hierarchy that limits processes, if the unified one does not.
    pids: Option<PathBuf>,
    filter: Vec<libc::sock_filter>,
}

impl Machine {
    fn new(rootfs: &Path, dir: &Path) -> io::Result<Self> {
        let hybrid = Path::new("/sys/fs/cgroup/unified");
        let is_hybrid = hybrid.join("cgroup.procs").exists();
        let unified = if is_hybrid { hybrid } else { Path::new("/sys/fs/cgroup") }.join(CGROUP);
        let pids = is_hybrid.then(|| Path::new("/sys/fs/cgroup/pids").join(CGROUP));
        for top in [Some(&unified), pids.as_ref()].into_iter().flatten() {
            make_dir(top)?;
        }
        let machine = Machine {
            rootfs: fs::canonicalize(rootfs)?,
            dir: fs::canonicalize(dir)?,
            unified,
            pids,
            filter: floor::system_call_filter()?,
        };
        if machine.pids.is_none() {
            enable_pids(Path::new("/sys/fs/cgroup"))?;
            enable_pids(&machine.unified)?;
        }
        network::ensure_bridge()?;
        Ok(machine)
    }
}

struct Pod<'a> {
    machine: &'a Machine,
    dir: PathBuf,
    name: String,
    first_id: u32,
    address: Ipv4Addr,
}

impl<'a> Pod<'a> {
    /// Creates the directories, namespaces and cgroups.
    fn create(machine: &'a Machine, number: u32) -> io::Result<Self> {
        let name = format!("{}-{number}", std::process::id());
        let pod = Pod {
            machine,
            dir: machine.dir.join(&name),
            name,
            first_id: FIRST_ID + number * IDS,
            address: Ipv4Addr::from_bits(network::GATEWAY.to_bits() + 1 + number),
        };
        for dir in ["", "layers", "etc", "messages", "ns"] {
            make_dir(&pod.dir.join(dir))?;
        }
        for (name, _) in FILES {
            fs::write(pod.dir.join("etc").join(name), "127.0.0.1 localhost\n")?;
        }
        let ns = pod.dir.join("ns");
        let quiet = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        mount("pod", &ns, "tmpfs", quiet, c"mode=700,size=64m")?;
        make_dir(&ns.join("containers"))?;
        make_dir(&ns.join("shm"))?;
        let options = format!("mode=1777,size=65536k,uid={0},gid={0}", pod.first_id);
        mount("shm", ns.join("shm"), "tmpfs", quiet, CString::new(options)?.as_c_str())?;
        pod.pin_namespaces()?;
        make_dir(&machine.unified.join(&pod.name))?;
        match &machine.pids {
            Some(pids) => make_dir(&pids.join(&pod.name))?,
            None => enable_pids(&machine.unified.join(&pod.name))?,
        }
        Ok(pod)
    }

    /// Creates the namespaces with a process that ends as soon as they are mounted.
    fn pin_namespaces(&self) -> io::Result<()> {
        let kinds = libc::CLONE_NEWUSER | libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
        let (mut ours, mut theirs) = UnixStream::pair()?;
        let Some(pid) = fork(kinds as u64, None)? else {
            drop(ours);
            let prepared = rustix::system::sethostname(b"floor").map_err(io::Error::from).and_then(|()| {
                network::Links::open()?.up(1)?;
                theirs.write_all(&[0])?;
                theirs.read(&mut [0])
            });
            exit(prepared.map(drop).map_err(|error| format!("cannot prepare the pod's namespaces: {error}")));
        };
        drop(theirs);
        for map in ["uid_map", "gid_map"] {
            fs::write(format!("/proc/{pid}/{map}"), format!("0 {} {IDS}\n", self.first_id))?;
        }
        ours.read_exact(&mut [0])?;
        for name in ["user", "net", "ipc", "uts"] {
            let path = self.dir.join("ns").join(name);
            fs::File::create(&path)?;
            mount_bind(format!("/proc/{pid}/ns/{name}"), &path)?;
        }
        drop(ours);
        reap(pid)
    }

    fn open_namespace(&self, name: &str) -> io::Result<OwnedFd> {
        open(&self.dir.join("ns").join(name), OFlags::RDONLY)
    }

    /// Connects the pod to the bridge.
    fn connect(&self) -> io::Result<()> {
        network::connect(self.address, &self.open_namespace("net")?)
    }

    fn layer(&self, container: &str) -> PathBuf {
        self.dir.join("layers").join(container)
    }

    fn cgroups(&self, container: &str) -> impl Iterator<Item = PathBuf> {
        let tops = [Some(&self.machine.unified), self.machine.pids.as_ref()];
        let path = Path::new(&self.name).join(container);
        tops.into_iter().flatten().map(move |top| top.join(&path))
    }

    fn build_all<'n>(
        &self,
        names: &[&'n str],
        command: impl Fn(&str) -> &'static [&'static str],
    ) -> io::Result<Vec<Container<'n>>> {
        names.iter().map(|name| self.build(name, command(name), Output::Pipes)).collect()
    }

    /// Creates a container's cgroups and forks the process that builds the rest.
    fn build<'n>(&self, name: &'n str, command: &[&str], output: Output) -> io::Result<Container<'n>> {
        let message = fs::File::create(self.dir.join("messages").join(name))?;
        rustix::fs::fchmod(&message, Mode::from_raw_mode(0o666))?;
        for dir in self.cgroups(name) {
            make_dir(&dir)?;
        }
        let unified = self.machine.unified.join(&self.name).join(name);
        let limited = self.machine.pids.as_ref().map(|pids| pids.join(&self.name).join(name));
        fs::write(limited.as_ref().unwrap_or(&unified).join("pids.max"), "2048")?;
        let cgroup = open(&unified, OFlags::PATH | OFlags::DIRECTORY)?;
        floor::limit_devices(cgroup.as_fd())?;
        let slot = PidSlot::new()?;
        let (socket, theirs) = UnixStream::pair()?;
        let (stdout, stderr) = (io::pipe()?, io::pipe()?);
        match fork(libc::CLONE_NEWNS as u64, Some(cgroup.as_fd()))? {
            Some(builder) => {
                let tasks = limited.map(|dir| dir.join("tasks"));
                let output = [stdout.0.into(), stderr.0.into()];
                Ok(Container { name, builder, slot, socket, pid: None, cgroup, tasks, _output: output })
            }
            None => {
                // Without the parent's end of the socket, this process ends if its parent does.
                drop(socket);
                let streams = match output {
                    Output::Pipes => [stdout.1.as_fd(), stderr.1.as_fd()],
                    Output::Inherited => [rustix::stdio::stdout(), rustix::stdio::stderr()],
                };
                let tasks = limited.map(|dir| dir.join("tasks"));
                let builder =
                    Builder { pod: self, name, command, streams, slot: &slot, tasks: tasks.as_deref() };
                exit(builder.run(theirs).map_err(|error| format!("container {name}: {error}")));
            }
        }
    }

    fn remove_container(&self, container: &Container<'_>) -> io::Result<()> {
        for dir in self.cgroups(container.name) {
            fs::remove_dir(dir)?;
        }
        fs::remove_dir_all(self.layer(container.name))
    }

    /// Removes the pod and its remaining containers.
    fn remove(self, containers: &[Container<'_>]) -> io::Result<()> {
        containers.iter().try_for_each(|container| self.remove_container(container))?;
        unmount(self.dir.join("ns"), UnmountFlags::DETACH)?;
        for dir in self.cgroups("") {
            fs::remove_dir(dir)?;
        }
        fs::remove_dir_all(&self.dir)?;
        network::forget(self.address)
    }
}

/// Where a container's output goes.
#[derive(Clone, Copy)]
enum Output {
    Pipes,
    Inherited,
}

struct Container<'a> {
    name: &'a str,
    builder: i32,
    slot: PidSlot,
    /// Receives a byte when the container is built, sends one to start it, and closes when it runs.
    socket: UnixStream,
    pid: Option<Pid>,
    cgroup: OwnedFd,
    tasks: Option<PathBuf>,
    _output: [OwnedFd; 2],
}

impl Container<'_> {
    /// Starts the program when the container is built, and returns when it runs.
    fn start(&mut self) -> io::Result<()> {
        self.socket.read_exact(&mut [0])?;
        reap(self.builder)?;
        self.pid = Pid::from_raw(self.slot.get());
        self.socket.write_all(&[0])?;
        self.socket.read(&mut [0]).map(drop)
    }

    fn wait(&self) -> io::Result<()> {
        reap(self.pid.map_or(0, Pid::as_raw_pid))
    }

    fn terminate(&self) -> io::Result<()> {
        let pid = self.pid.ok_or(Errno::SRCH)?;
        Ok(rustix::process::kill_process(pid, Signal::TERM)?)
    }

    /// Executes a command in the container and waits for its end.
    fn exec(&self, machine: &Machine, command: &[&str]) -> io::Result<()> {
        let pid = self.pid.ok_or(Errno::SRCH)?;
        let container = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?;
        let slot = PidSlot::new()?;
        let output = io::pipe()?;
        let Some(joining) = fork(0, Some(self.cgroup.as_fd()))? else {
            let run = || -> io::Result<()> {
                settle()?;
                self.tasks.as_ref().map_or(Ok(()), |tasks| fs::write(tasks, "0"))?;
                fs::write("/proc/self/oom_score_adj", "1000")?;
                let own = libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWCGROUP;
                let shared = libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
                setns(container.as_fd(), libc::CLONE_NEWUSER | own | shared)?;
                become_root()?;
                settle()?;
                let null = open(Path::new("/dev/null"), OFlags::RDWR)?;
                connect_streams(&null, [output.1.as_fd(), output.1.as_fd()])?;
                if fork_sibling(&slot)? {
                    settle()?;
                    return confine_and_exec(machine, command);
                }
                Ok(())
            };
            exit(run().map_err(|error| format!("exec: {error}")));
        };
        reap(joining)?;
        reap(slot.get())
    }
}

/// The process that builds a container and then executes its program.
struct Builder<'a> {
    pod: &'a Pod<'a>,
    name: &'a str,
    command: &'a [&'a str],
    streams: [BorrowedFd<'a>; 2],
    slot: &'a PidSlot,
    tasks: Option<&'a Path>,
}

/// The parts of the host that go into a container: open, but not mounted yet.
struct Parts {
    root: OwnedFd,
    shm: OwnedFd,
    dev: OwnedFd,
    /// The files, with their paths in the container.
    files: Vec<(OwnedFd, &'static str)>,
}

impl Builder<'_> {
    fn run(&self, mut socket: UnixStream) -> io::Result<()> {
        settle()?;
        if let Some(tasks) = self.tasks {
            fs::write(tasks, "0")?;
        }
        fs::write("/proc/self/oom_score_adj", "1000")?;
        rustix::process::umask(Mode::empty());
        let user = self.pod.open_namespace("user")?;
        let others = ["net", "ipc", "uts"].map(|name| self.pod.open_namespace(name));
        let parts = self.open_parts(user.as_fd())?;
        setns(user.as_fd(), libc::CLONE_NEWUSER)?;
        become_root()?;
        for namespace in others {
            setns(namespace?.as_fd(), 0)?;
        }
        unshare(libc::CLONE_NEWNS | libc::CLONE_NEWCGROUP)?;
        settle()?;
        unshare(libc::CLONE_NEWPID)?;
        if !fork_sibling(self.slot)? {
            return Ok(());
        }
        settle()?;
        let null = self.mount_all(parts)?;
        connect_streams(&null, self.streams)?;
        rustix::process::umask(Mode::from_raw_mode(0o022));
        socket.write_all(&[0])?;
        socket.read_exact(&mut [0])?;
        confine_and_exec(self.pod.machine, self.command)
    }

    fn open_parts(&self, user: BorrowedFd<'_>) -> io::Result<Parts> {
        let (pod, first) = (self.pod, self.pod.first_id);
        let mut files = Vec::new();
        for (name, target) in FILES {
            files.push((mapped(&pod.dir.join("etc").join(name), user)?, target));
        }
        files.push((mapped(&pod.dir.join("messages").join(self.name), user)?, "dev/termination-log"));
        mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?;

        let own = pod.layer(self.name);
        let (upper, work) = (own.join("upper"), own.join("work"));
        for dir in [&own, &work, &upper] {
            rustix::fs::mkdir(dir, Mode::from_raw_mode(0o700))?;
        }
        let (uid, gid) = (Uid::from_raw(first), Gid::from_raw(first));
        rustix::fs::chown(&upper, Some(uid), Some(gid))?;
        rustix::fs::chmod(&upper, Mode::from_raw_mode(0o755))?;
        let rootfs = &pod.machine.rootfs;
        move_mount(mapped(rootfs, user)?, "", CWD, rootfs, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
        let options = format!(
            "lowerdir={},upperdir={},workdir={},volatile",
            rootfs.display(),
            upper.display(),
            work.display()
        );
        let place = pod.dir.join("ns/containers").join(self.name);
        make_dir(&place)?;
        mount("overlay", &place, "overlay", MountFlags::empty(), CString::new(options)?.as_c_str())?;
        let root = clone_mount(&place)?;
        let shm = clone_mount(&pod.dir.join("ns/shm"))?;

        let id = first.to_string();
        let options = [("mode", "755"), ("size", "65536k"), ("uid", id.as_str()), ("gid", id.as_str())];
        let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_STRICTATIME;
        let dev = new_filesystem("tmpfs", &options, attributes)?;
        for (name, major, minor) in DEVICES {
            let mode = Mode::from_raw_mode(0o666);
            rustix::fs::mknodat(&dev, name, FileType::CharacterDevice, mode, libc::makedev(major, minor))?;
            rustix::fs::chownat(&dev, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
        }
        for stream in self.streams {
            rustix::fs::fchown(stream, Some(uid), Some(gid))?;
        }
        Ok(Parts { root, shm, dev, files })
    }

    /// Mounts everything and enters the new root. Returns the container's /dev/null.
    fn mount_all(&self, parts: Parts) -> io::Result<OwnedFd> {
        let quiet = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        let no_devices = quiet | MountAttrFlags::MOUNT_ATTR_NODEV;
        let read_only = no_devices | MountAttrFlags::MOUNT_ATTR_RDONLY;
        attach(parts.root.as_fd(), "/")?;
        rustix::process::fchdir(&parts.root)?;
        attach(new_filesystem("proc", &[], no_devices)?.as_fd(), "proc")?;
        attach(new_filesystem("sysfs", &[], read_only)?.as_fd(), "sys")?;
        attach(parts.dev.as_fd(), "dev")?;
        for (name, target) in LINKS {
            rustix::fs::symlinkat(target, &parts.dev, name)?;
        }
        for name in ["pts", "mqueue", "shm"] {
            rustix::fs::mkdirat(&parts.dev, name, Mode::from_raw_mode(0o755))?;
        }
        let options = [("newinstance", ""), ("ptmxmode", "0666"), ("mode", "0620"), ("gid", "5")];
        attach(new_filesystem("devpts", &options, quiet)?.as_fd(), "dev/pts")?;
        attach(new_filesystem("mqueue", &[], no_devices)?.as_fd(), "dev/mqueue")?;
        let attributes = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV | libc::MOUNT_ATTR_NOEXEC;
        set_attributes(parts.shm.as_fd(), false, attributes, 0, None)?;
        attach(parts.shm.as_fd(), "dev/shm")?;
        let null = open(Path::new("dev/null"), OFlags::RDWR)?;
        for path in READ_ONLY.into_iter().filter(|path| Path::new(path).exists()) {
            let tree = open_tree(CWD, path, CLONE | OpenTreeFlags::AT_RECURSIVE)?;
            set_attributes(tree.as_fd(), true, libc::MOUNT_ATTR_RDONLY, 0, None)?;
            attach(tree.as_fd(), path)?;
        }
        for path in MASKED {
            let Ok(kind) = fs::metadata(path) else { continue };
            let cover = match kind.is_dir() {
                true => new_filesystem("tmpfs", &[("size", "0k")], MountAttrFlags::MOUNT_ATTR_RDONLY)?,
                false => open_tree(&null, "", CLONE | OpenTreeFlags::AT_EMPTY_PATH)?,
            };
            attach(cover.as_fd(), path)?;
        }
        for (file, target) in &parts.files {
            match rustix::fs::mknodat(CWD, *target, FileType::RegularFile, Mode::from_raw_mode(0o644), 0) {
                Ok(()) | Err(Errno::EXIST) => attach(file.as_fd(), target)?,
                Err(error) => return Err(error.into()),
            }
        }
        if self.pod.machine.pids.is_none() {
            attach(new_filesystem("cgroup2", &[], read_only)?.as_fd(), "sys/fs/cgroup")?;
        }
        rustix::process::pivot_root(".", ".")?;
        unmount(".", UnmountFlags::DETACH)?;
        rustix::process::chdir("/")?;
        Ok(null)
    }
}

/// The last steps of every program in a container.
fn confine_and_exec(machine: &Machine, command: &[&str]) -> io::Result<()> {
    for number in (0..CAPABILITIES_MAX).filter(|number| CAPABILITIES & (1 << number) == 0) {
        // SAFETY: plain system call.
        check(unsafe { libc::prctl(libc::PR_CAPBSET_DROP, number, 0, 0, 0) }.into())?;
    }
    const JOIN_SESSION_KEYRING: libc::c_long = 1;
    // SAFETY: no name is passed, so nothing is read.
    check(unsafe {
        libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, std::ptr::null::<libc::c_char>())
    })?;
    // SAFETY: one group is passed, and one is there.
    check(unsafe { libc::setgroups(1, [0].as_ptr()) }.into())?;
    let program = libc::sock_fprog {
        len: machine.filter.len() as libc::c_ushort,
        filter: machine.filter.as_ptr().cast_mut(),
    };
    const SET_MODE_FILTER: libc::c_long = 1;
    // SAFETY: the kernel copies the program, which lives until the call returns.
    check(unsafe { libc::syscall(libc::SYS_seccomp, SET_MODE_FILTER, 0, &raw const program) })?;
    let set = rustix::thread::CapabilitySet::from_bits_retain(CAPABILITIES);
    let inheritable = rustix::thread::CapabilitySet::empty();
    let sets = rustix::thread::CapabilitySets { effective: set, permitted: set, inheritable };
    rustix::thread::set_capabilities(None, sets)?;

    let strings =
        |texts: &[&str]| texts.iter().map(|text| CString::new(*text)).collect::<Result<Vec<_>, _>>();
    let env = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    let (args, env) = (strings(command)?, strings(&[env, "HOSTNAME=floor", "HOME=/"])?);
    let pointers = |texts: &[CString]| -> Vec<*const libc::c_char> {
        texts.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect()
    };
    // SAFETY: both lists end with a null pointer and live until the call returns.
    unsafe { libc::execve(args[0].as_ptr(), pointers(&args).as_ptr(), pointers(&env).as_ptr()) };
    Err(io::Error::last_os_error())
}

const CLONE: OpenTreeFlags = OpenTreeFlags::OPEN_TREE_CLONE.union(OpenTreeFlags::OPEN_TREE_CLOEXEC);

fn clone_mount(path: &Path) -> io::Result<OwnedFd> {
    Ok(open_tree(CWD, path, CLONE)?)
}

/// A private mount of a path, with the ids of a user namespace.
fn mapped(path: &Path, user: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let tree = clone_mount(path)?;
    set_attributes(tree.as_fd(), false, libc::MOUNT_ATTR_IDMAP, libc::MS_PRIVATE, Some(user))?;
    Ok(tree)
}

fn attach(tree: BorrowedFd<'_>, target: &str) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    move_mount(tree, "", CWD, target, flags)
        .map_err(|error| io::Error::other(format!("cannot mount {target}: {error}")))
}

fn new_filesystem(kind: &str, options: &[(&str, &str)], attributes: MountAttrFlags) -> io::Result<OwnedFd> {
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (name, value) in options {
        match value.is_empty() {
            true => rustix::mount::fsconfig_set_flag(&context, *name)?,
            false => fsconfig_set_string(&context, *name, *value)?,
        }
    }
    fsconfig_create(&context)?;
    Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

fn set_attributes(
    tree: BorrowedFd<'_>,
    recursive: bool,
    set: u64,
    propagation: u64,
    user: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let userns_fd = user.map_or(0, |fd| fd.as_raw_fd() as u64);
    let attributes = libc::mount_attr { attr_set: set, attr_clr: 0, propagation, userns_fd };
    let flags = libc::AT_EMPTY_PATH | if recursive { libc::AT_RECURSIVE } else { 0 };
    let size = size_of::<libc::mount_attr>();
    // SAFETY: the path is a NUL-terminated constant and the structure lives until the call returns.
    check(unsafe {
        let path = c"".as_ptr();
        libc::syscall(libc::SYS_mount_setattr, tree.as_raw_fd(), path, flags, &raw const attributes, size)
    })
}

fn open(path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty())?)
}

fn make_dir(path: &Path) -> io::Result<()> {
    match rustix::fs::mkdir(path, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(io::Error::other(format!("cannot make {}: {error}", path.display()))),
    }
}

fn enable_pids(cgroup: &Path) -> io::Result<()> {
    fs::write(cgroup.join("cgroup.subtree_control"), "+pids")
}

fn connect_streams(null: &OwnedFd, [stdout, stderr]: [BorrowedFd<'_>; 2]) -> io::Result<()> {
    rustix::stdio::dup2_stdin(null)?;
    rustix::stdio::dup2_stdout(stdout)?;
    Ok(rustix::stdio::dup2_stderr(stderr)?)
}

/// Makes the process end with its parent, forbids its inspection, and gives it its own session. Changing the
/// user undoes the first two.
fn settle() -> io::Result<()> {
    // SAFETY: plain system calls.
    unsafe {
        check(libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0).into())?;
        check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0).into())?;
    }
    match rustix::process::setsid() {
        Ok(_) | Err(Errno::PERM) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn become_root() -> io::Result<()> {
    // SAFETY: plain system calls.
    unsafe {
        check(libc::setresgid(0, 0, 0).into())?;
        check(libc::setresuid(0, 0, 0).into())
    }
}

fn setns(fd: BorrowedFd<'_>, kinds: i32) -> io::Result<()> {
    // SAFETY: plain system call on an open descriptor.
    check(unsafe { libc::setns(fd.as_raw_fd(), kinds) }.into())
}

fn unshare(kinds: i32) -> io::Result<()> {
    // SAFETY: plain system call; this process has one thread.
    check(unsafe { libc::unshare(kinds) }.into())
}

/// Forks with new namespaces and into a cgroup. Returns the child's pid in the parent, and `None` in the
/// child.
fn fork(namespaces: u64, cgroup: Option<BorrowedFd<'_>>) -> io::Result<Option<i32>> {
    const INTO_CGROUP: u64 = 0x2_0000_0000;
    /// Indexes of fields in `struct clone_args`.
    const FLAGS: usize = 0;
    const SIGNAL: usize = 4;
    const GROUP: usize = 10;
    let mut args = [0_u64; 11];
    args[FLAGS] = namespaces | if cgroup.is_some() { INTO_CGROUP } else { 0 };
    args[SIGNAL] = libc::SIGCHLD as u64;
    args[GROUP] = cgroup.map_or(0, |fd| fd.as_raw_fd() as u64);
    // SAFETY: the arguments live until the call returns. The child has a copy of everything, and this process
    // has one thread.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, args.as_ptr(), size_of_val(&args)) };
    check(pid)?;
    Ok(i32::try_from(pid).ok().filter(|pid| *pid != 0))
}

/// A pid that another process writes, in shared memory.
struct PidSlot(*mut libc::pid_t);

impl PidSlot {
    fn new() -> io::Result<Self> {
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh mapping that nothing else refers to. It stays until this short program ends.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), size_of::<libc::pid_t>(), access, kind, -1, 0) };
        if page == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(PidSlot(page.cast())) }
    }

    fn get(&self) -> i32 {
        // SAFETY: the mapping is never removed; the process that writes it has ended or reported before this is called.
        unsafe { self.0.read_volatile() }
    }
}

/// Forks a child of the caller's parent and stores its pid. Returns whether this is the child.
fn fork_sibling(slot: &PidSlot) -> io::Result<bool> {
    let flags = libc::CLONE_PARENT | libc::CLONE_PARENT_SETTID | libc::SIGCHLD;
    // SAFETY: the child has a copy of everything, its stack included; the slot is never removed.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0, slot.0, 0, 0) };
    check(pid)?;
    Ok(pid == 0)
}

/// Waits for the end of a child, which must succeed.
fn reap(pid: i32) -> io::Result<()> {
    let status = waitpid(Pid::from_raw(pid), WaitOptions::empty())?.map(|(_, status)| status);
    match status.and_then(|status| status.exit_status()) {
        Some(0) => Ok(()),
        code => Err(io::Error::other(format!("process {pid} ended with {code:?}"))),
    }
}

/// Ends a forked process.
fn exit(result: Result<(), String>) -> ! {
    if let Err(error) = &result {
        let _ = writeln!(io::stderr(), "floor: {error}");
    }
    // SAFETY: ends the process without running what its parent has registered.
    unsafe { libc::_exit(i32::from(result.is_err())) }
}

fn check(result: i64) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The network of the pods, created over netlink.
mod network {
    use super::*;
    use rustix::net::netlink::SocketAddrNetlink;
    use rustix::net::{
        AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with,
    };

    pub(super) const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 211, 0, 1);
    const PREFIX: u8 = 16;
    /// The index of a pod's interface inside the pod. Loopback has index 1.
    const POD_INDEX: u32 = 2;
    const UP: u32 = 1;

    const NEWLINK: u16 = 16;
    const DELLINK: u16 = 17;
    const SETLINK: u16 = 19;
    const NEWADDR: u16 = 20;
    const NEWROUTE: u16 = 24;
    const REQUEST_ACK: u16 = 0x5;
    const CREATE_NEW: u16 = REQUEST_ACK | 0x600;

    const LINK_ADDRESS: u16 = 1;
    const LINK_NAME: u16 = 3;
    const LINK_MASTER: u16 = 10;
    const LINK_INFO: u16 = 18;
    const LINK_ALIAS: u16 = 20;
    const LINK_NET_NS: u16 = 28;
    const INFO_KIND: u16 = 1;
    const INFO_DATA: u16 = 2;
    const VETH_PEER: u16 = 1;

    /// A netlink socket of one network namespace.
    pub(super) struct Links(OwnedFd);

    impl Links {
        pub(super) fn open() -> io::Result<Self> {
            Ok(Links(socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?))
        }

        pub(super) fn up(&self, index: u32) -> io::Result<()> {
            self.request(SETLINK, REQUEST_ACK, &link(index, UP))
        }

        fn add_address(&self, index: u32, address: Ipv4Addr) -> io::Result<()> {
            let fixed = [&[libc::AF_INET as u8, PREFIX, 0, 0][..], &index.to_ne_bytes()].concat();
            let body = [fixed, attribute(2, &address.octets()), attribute(1, &address.octets())].concat();
            self.request(NEWADDR, CREATE_NEW, &body)
        }

        /// Sends one message and waits for the answer.
        fn request(&self, kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
            let length = (16 + body.len()) as u32;
            let mut message = [length.to_ne_bytes(), [0; 4], 1_u32.to_ne_bytes(), [0; 4]].concat();
            message[4..6].copy_from_slice(&kind.to_ne_bytes());
            message[6..8].copy_from_slice(&flags.to_ne_bytes());
            message.extend(body);
            sendto(&self.0, &message, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
            let mut answer = [0_u8; 1024];
            recv(&self.0, &mut answer[..], RecvFlags::empty())?;
            match i32::from_ne_bytes([answer[16], answer[17], answer[18], answer[19]]) {
                0 => Ok(()),
                code => Err(io::Error::from_raw_os_error(-code)),
            }
        }
    }

    /// Creates the bridge, unless it exists.
    pub(super) fn ensure_bridge() -> io::Result<()> {
        let links = Links::open()?;
        let info = attribute(LINK_INFO, &attribute(INFO_KIND, b"bridge"));
        let hardware = attribute(LINK_ADDRESS, &floor::mac_of(GATEWAY));
        let body = [link(0, 0), attribute(LINK_NAME, name(BRIDGE).as_bytes()), hardware, info].concat();
        match links.request(NEWLINK, CREATE_NEW, &body) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
            result => result?,
        }
        disable_ipv6(BRIDGE)?;
        let index = index(BRIDGE)?;
        links.add_address(index, GATEWAY)?;
        links.up(index)
    }

    pub(super) fn remove_bridge() -> io::Result<()> {
        match index(BRIDGE) {
            Ok(index) => Links::open()?.request(DELLINK, REQUEST_ACK, &link(index, 0)),
            Err(_) => Ok(()),
        }
    }

    /// Connects the network namespace of a pod.
    pub(super) fn connect(address: Ipv4Addr, pod: &OwnedFd) -> io::Result<()> {
        let host = Links::open()?;
        let own = open(Path::new("/proc/self/ns/net"), OFlags::RDONLY)?;
        setns(pod.as_fd(), libc::CLONE_NEWNET)?;
        let inside = Links::open()?;
        setns(own.as_fd(), libc::CLONE_NEWNET)?;

        let port = port(address);
        let peer = [
            link(POD_INDEX, 0),
            attribute(LINK_NAME, name("eth0").as_bytes()),
            attribute(LINK_ADDRESS, &floor::mac_of(address)),
            attribute(LINK_NET_NS, &pod.as_raw_fd().to_ne_bytes()),
        ];
        let data = attribute(INFO_DATA, &attribute(VETH_PEER, &peer.concat()));
        let body = [
            link(0, 0),
            attribute(LINK_NAME, name(&port).as_bytes()),
            attribute(LINK_MASTER, &index(BRIDGE)?.to_ne_bytes()),
            attribute(LINK_INFO, &[attribute(INFO_KIND, b"veth"), data].concat()),
        ];
        host.request(NEWLINK, CREATE_NEW, &body.concat())?;
        disable_ipv6(&port)?;
        floor::filter_port(address)?;
        let alias = attribute(LINK_ALIAS, b"floor");
        let body = [link(0, UP), attribute(LINK_NAME, name(&port).as_bytes()), alias].concat();
        host.request(SETLINK, REQUEST_ACK, &body)?;
        inside.add_address(POD_INDEX, address)?;
        inside.up(POD_INDEX)?;
        let (main, boot, unicast) = (254, 3, 1);
        let fixed = vec![libc::AF_INET as u8, 0, 0, 0, main, boot, 0, unicast, 0, 0, 0, 0];
        let route = [fixed, attribute(5, &GATEWAY.octets()), attribute(4, &POD_INDEX.to_ne_bytes())].concat();
        inside.request(NEWROUTE, CREATE_NEW, &route)?;
        // Packets are lost until the kernel has noticed that both ends are up.
        while !is_operational(&host, &port)? {
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Removes the filter of a port after the kernel has removed the port, in a process that nobody waits
    /// for. Outrigger does this a second after the run. If the filter were removed while the port exists, the
    /// kernel would wait for a grace period.
    pub(super) fn forget(address: Ipv4Addr) -> io::Result<()> {
        if fork(0, None)?.is_none() {
            let pause = rustix::time::Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
            while index(&port(address)).is_ok() {
                let _ = rustix::event::poll(&mut [], Some(&pause));
            }
            exit(floor::unfilter_port(address).map_err(|error| error.to_string()));
        }
        Ok(())
    }

    /// The name of the host's end of a pod's interface.
    fn port(address: Ipv4Addr) -> String {
        format!("or{:08x}", address.to_bits())
    }

    fn is_operational(links: &Links, interface: &str) -> io::Result<bool> {
        // SAFETY: an all-zero ifreq is valid; the name is shorter than its field; the kernel fills in the flags.
        let flags = unsafe {
            let mut request: libc::ifreq = std::mem::zeroed();
            for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
                *to = from as libc::c_char;
            }
            check(libc::ioctl(links.0.as_raw_fd(), libc::SIOCGIFFLAGS, &raw mut request).into())?;
            request.ifr_ifru.ifru_flags
        };
        Ok(libc::c_int::from(flags) & libc::IFF_RUNNING != 0)
    }

    /// `struct ifinfomsg`.
    fn link(index: u32, flags: u32) -> Vec<u8> {
        [[0; 4], index.to_ne_bytes(), flags.to_ne_bytes(), flags.to_ne_bytes()].concat()
    }

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = [(value.len() as u16 + 4).to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn name(name: &str) -> String {
        format!("{name}\0")
    }

    fn index(name: &str) -> io::Result<u32> {
        let name = CString::new(name)?;
        // SAFETY: the name is NUL-terminated and lives until the call returns.
        match unsafe { libc::if_nametoindex(name.as_ptr()) } {
            0 => Err(io::Error::last_os_error()),
            index => Ok(index),
        }
    }

    fn disable_ipv6(interface: &str) -> io::Result<()> {
        match fs::write(format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6"), "1") {
            // A kernel without IPv6.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }
}
