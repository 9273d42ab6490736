//! Creates and removes pod sandboxes: namespaces that bind mounts keep alive, without a process.

use std::fs;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::mount::{MountFlags, mount, mount_bind};

use super::cgroup::{self, Hierarchies};
use super::fault::{Context, Fault};
use super::protocol::{ProcessRecord, SandboxState};
use super::shim::PAUSE_NOTE;
use super::userns::{Holder, Refusal, Seen, Unavailable, UserNamespace};
use super::{layout, reclaim, rootless, sys, userns, warning};
use outrigger_runtime::private;
use outrigger_runtime::processes::kill_and_wait;
use outrigger_runtime::{NetworkMode, Resources, SandboxSpec};

/// The cgroup of the process that holds a shared pid namespace. No container can have this name.
const PAUSE_CGROUP: &str = ".pause";

/// Creates the namespaces, /dev/shm and cgroup of a sandbox. Blocks; runs on a separate thread. `pause` is
/// the command that starts the process for a shared pid namespace. `owner` is the process that owns the pod.
pub(crate) fn create_sandbox(
    spec: &SandboxSpec,
    hierarchies: &Hierarchies,
    pause: Command,
    owner: Option<ProcessRecord>,
) -> Result<SandboxState, Fault> {
    let dir = &spec.pod_dir;
    let what = || format!("cannot make {}", dir.display());
    if dir.join("ns").exists() {
        // A failed attempt may have left something.
        remove(&spec.id.0, dir, hierarchies)?;
    }
    private::make_all(dir).creating(what)?;
    private::make(&layout::layers_dir(dir)).creating(what)?;
    mount_pins(&dir.join("ns")).creating(what)?;
    private::make(&layout::containers_dir(dir)).creating(what)?;
    let own_network = spec.network != NetworkMode::Host;
    let mut state = SandboxState {
        id: spec.id.clone(),
        dir: dir.clone(),
        net: own_network.then(|| dir.join("ns/net")),
        ipc: (!spec.host_ipc).then(|| dir.join("ns/ipc")),
        // A pod on the host network uses the host's name.
        uts: own_network.then(|| dir.join("ns/uts")),
        user: None,
        pid: None,
        proc: None,
        pause: None,
        host_pid: spec.host_pid,
        hostname: spec.hostname.clone(),
        shm: PathBuf::from("/dev/shm"),
        resources: spec.resources.clone(),
        ips: Vec::new(),
        ports: spec.ports.clone(),
        pod: format!("{}/{}", spec.pod_namespace, spec.pod_name),
        oci_runtime: None,
        owner,
        stop: spec.stop.clone(),
    };
    if !own_network {
        state.hostname = rustix::system::uname().nodename().to_string_lossy().into_owned();
    }
    let made = user_namespace(spec)?;
    let holder = made.map(|(holder, namespace)| {
        state.user = Some(namespace);
        holder
    });
    if !spec.host_ipc {
        state.shm = dir.join("ns/shm");
        let owner = userns::host_id(state.user.as_ref(), 0);
        mount_shm(&state.shm, owner).creating(|| "cannot make the pod's /dev/shm")?;
    }
    pin_namespaces(&state, spec, holder)?;
    reclaim::note(&spec.id.0, dir);
    for warning in cgroup::prepare_sandbox(hierarchies, &spec.id.0, &spec.resources) {
        warning::once(warning);
    }
    if spec.share_pid && !spec.host_pid {
        state.pid = Some(dir.join("ns/pid"));
        state.proc = Some(dir.join("ns/proc"));
        state.pause =
            Some(start_pause(pause, &state, hierarchies).creating(|| "cannot share a pid namespace")?);
    }
    save(&state)?;
    Ok(state)
}

/// Why a pod with namespaces of the host cannot have a user namespace. `None` if it can.
pub(crate) fn of_host_namespaces(spec: &SandboxSpec) -> Option<Refusal> {
    let of_host = [
        ("the host's network", spec.network == NetworkMode::Host),
        ("hostPID", spec.host_pid),
        ("hostIPC", spec.host_ipc),
    ];
    let (what, _) = of_host.into_iter().find(|(_, is_used)| *is_used)?;
    Some(Refusal { who: format!("pods with {what}"), why: Unavailable::HostNamespace(what) })
}

/// Creates the pod's user namespace, if it gets one.
fn user_namespace(spec: &SandboxSpec) -> Result<Option<(Holder, UserNamespace)>, Fault> {
    // Without root, everything is already in a user namespace.
    if spec.user_namespace == outrigger_runtime::UserNamespace::Host || rootless::standing().is_rootless() {
        return Ok(None);
    }
    let made = if let Some(refusal) = of_host_namespaces(spec) {
        Err(refusal)
    } else {
        let kinds = libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
        let roots = spec.images.iter().filter_map(|image| image.strip_prefix("rootfs:"));
        let roots: Vec<PathBuf> = roots.map(PathBuf::from).collect();
        userns::make(&spec.pod_dir, kinds, &Seen { volumes: &spec.host_paths, roots: &roots })
    };
    match made {
        Ok(made) => Ok(Some(made)),
        Err(refusal) => {
            refusal.settle(spec.user_namespace)?;
            Ok(None)
        }
    }
}

/// Writes `sandbox.json`.
pub(crate) fn save(state: &SandboxState) -> Result<(), Fault> {
    layout::write_json(&state.dir.join("sandbox.json"), state)
        .creating(|| format!("cannot write in {}", state.dir.display()))
}

/// Whether the namespaces of a sandbox that another process created still exist.
pub(crate) fn is_pinned(state: &SandboxState) -> bool {
    let user = state.user.as_ref().map(|_| state.dir.join("ns/user"));
    let paths = [&state.net, &state.ipc, &state.uts, &state.pid, &user];
    let is_namespace =
        |path: &PathBuf| rustix::fs::statfs(path).is_ok_and(|found| found.f_type == libc::NSFS_MAGIC);
    let device = |path: &Path| rustix::fs::stat(path).map(|found| found.st_dev).ok();
    let ns = device(&state.dir.join("ns"));
    ns.is_some() && ns != device(&state.dir) && paths.into_iter().flatten().all(is_namespace)
}

/// The limits of the process that holds a shared pid namespace, which only waits. A container that may trace
/// it can make it do more. It must not exceed its own limits in that way.
fn pause_resources() -> Resources {
    Resources {
        // The process itself, and the process that forks it.
        pids_limit: Some(2),
        memory_limit_bytes: Some(16 << 20),
        ..Resources::default()
    }
}

/// Starts a process that holds the pod's pid namespace.
fn start_pause(
    mut command: Command,
    state: &SandboxState,
    hierarchies: &Hierarchies,
) -> io::Result<ProcessRecord> {
    let (mut ours, theirs) = UnixStream::pair()?;
    command.arg(&state.dir).stdin(OwnedFd::from(theirs)).stdout(Stdio::null());
    let limits = cgroup::Prepared::new(
        hierarchies,
        &state.id.0,
        PAUSE_CGROUP,
        &state.resources,
        &pause_resources(),
        false,
    );
    if let (Some(_), Some(root)) = (limits.unified(), &hierarchies.unified) {
        command.arg(root.join(cgroup::container_path(&state.id.0, PAUSE_CGROUP)));
    }
    let mut child = command.spawn()?;
    drop(command);
    let mut pid = String::new();
    ours.read_to_string(&mut pid)?;
    child.wait()?;
    let pid = pid.parse().map_err(|_| io::Error::other("its first process did not start"))?;
    // This comes before there is a container that could reach the process. Missing limits are reported for
    // the containers.
    limits.adopt_first(pid)?;
    ProcessRecord::of_pid(pid).ok_or_else(|| io::Error::other("its first process ended"))
}

/// Mounts the directory for all mounts of the sandbox, so that one call removes all of them. Each removal
/// makes the kernel wait for a grace period.
fn mount_pins(path: &Path) -> io::Result<()> {
    fs::create_dir_all(path)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    Ok(mount("pod", path, "tmpfs", flags, c"mode=700,size=64m")?)
}

fn mount_shm(path: &Path, owner: u32) -> io::Result<()> {
    fs::create_dir_all(path)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    let options = std::ffi::CString::new(format!("mode=1777,size=65536k,uid={owner},gid={owner}"))?;
    Ok(mount("shm", path, "tmpfs", flags, options.as_c_str())?)
}

/// Creates the namespaces on a thread that then ends, or takes those of `holder`, and pins them.
fn pin_namespaces(state: &SandboxState, spec: &SandboxSpec, holder: Option<Holder>) -> Result<(), Fault> {
    let mut kinds = 0;
    for (path, kind) in
        [(&state.net, libc::CLONE_NEWNET), (&state.ipc, libc::CLONE_NEWIPC), (&state.uts, libc::CLONE_NEWUTS)]
    {
        if path.is_some() {
            kinds |= kind;
        }
    }
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| -> Result<(), Fault> {
            let what = || "cannot make the pod's namespaces";
            match &holder {
                Some(holder) => sys::setns(holder.pidfd(), kinds).creating(what)?,
                None if kinds != 0 => sys::unshare(kinds).creating(what)?,
                None => {}
            }
            if state.uts.is_some() {
                rustix::system::sethostname(state.hostname.as_bytes())
                    .configuring(|| format!("cannot set hostname {:?}", state.hostname))?;
            }
            if state.net.is_some() {
                bring_loopback_up().creating(|| "cannot bring the pod's loopback up")?;
            }
            for (name, value) in &spec.sysctls {
                check_sysctl(name, state)?;
                let path = Path::new("/proc/sys").join(name.replace('.', "/"));
                // /proc/sys shows the namespaces of the thread that opens the file.
                let what = || format!("cannot set sysctl {name} to {value:?}");
                // Only root of its user namespace can write the settings of an ipc namespace.
                let root = state.user.as_ref().filter(|_| !name.starts_with("net."));
                match root {
                    Some(user) => sys::as_user(user.first_id, || fs::write(&path, value)),
                    None => fs::write(&path, value),
                }
                // Waiting does not change which settings the kernel has and which values it accepts.
                .map_err(|error| Fault::sysctl(name, format!("{}: {}", what(), sys::errno_text(&error))))?;
            }
            for (path, name) in [(&state.net, "net"), (&state.ipc, "ipc"), (&state.uts, "uts")] {
                let Some(path) = path else { continue };
                let what = || format!("cannot pin {}", path.display());
                fs::File::create(path).creating(what)?;
                mount_bind(format!("/proc/thread-self/ns/{name}"), path).creating(what)?;
            }
            Ok(())
        });
        worker.join().unwrap_or_else(|_| Err(Fault::create("making the pod's namespaces panicked")))
    })
}

/// Refuses settings that would affect more than the pod.
fn check_sysctl(name: &str, state: &SandboxState) -> Result<(), Fault> {
    if name.contains("..") || name.contains('/') {
        return Err(Fault::sysctl(name, format!("sysctl {name:?} is not a name like net.ipv4.ip_forward")));
    }
    let ipc = ["kernel.shm", "kernel.msg", "kernel.sem", "fs.mqueue."];
    let (own, field) = if name.starts_with("net.") {
        (state.net.is_some(), "hostNetwork")
    } else if ipc.iter().any(|prefix| name.starts_with(prefix)) {
        (state.ipc.is_some(), "hostIPC")
    } else {
        return Err(Fault::sysctl(
            name,
            format!("sysctl {name:?} is not namespaced: it would change the whole machine"),
        ));
    };
    if own {
        Ok(())
    } else {
        Err(Fault::sysctl(
            name,
            format!("sysctl {name:?} is not allowed with {field}: it would change the whole machine"),
        ))
    }
}

fn bring_loopback_up() -> io::Result<()> {
    use std::os::fd::AsRawFd as _;
    let socket = rustix::net::socket_with(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::DGRAM,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )?;
    // SAFETY: an all-zero ifreq is valid. The name fits and stays NUL-terminated. The structure outlives the
    // call.
    let result = unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
            *to = *from as libc::c_char;
        }
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
        libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Removes everything that [`create_sandbox`] created, with everything that still runs in it. Blocks.
/// Idempotent.
pub(crate) fn remove(id: &str, dir: &Path, hierarchies: &Hierarchies) -> Result<(), Fault> {
    let path = cgroup::sandbox_path(id);
    hierarchies.kill(&path);
    let user = layout::read_json::<SandboxState>(&dir.join("sandbox.json")).and_then(|state| state.user);
    let pause = layout::read_json::<ProcessRecord>(&dir.join(PAUSE_NOTE));
    if let Some(pause) = pause.and_then(|pause| pause.open()) {
        kill_and_wait(&[pause], Duration::from_secs(2));
    }
    layout::unmount_all(&dir.join("ns"));
    remove_cgroup(hierarchies, &path);
    if !hierarchies.exists(&path) {
        reclaim::forget(id);
    }
    for path in [dir.join("ns"), layout::containers_dir(dir), layout::layers_dir(dir)] {
        layout::remove_tree(&path)
            .map_err(|error| Fault::other(format!("cannot remove {}: {error}", path.display())))?;
    }
    if let Some(user) = user {
        userns::release(user.first_id, dir);
    }
    for name in ["sandbox.json", "sandbox.tmp", PAUSE_NOTE] {
        let _ = fs::remove_file(dir.join(name));
    }
    Ok(())
}

/// Frees a container's id: removes its cgroup and moves its directory elsewhere. Returns the new path of the
/// directory, which the caller must remove later. Blocks. Idempotent.
pub(crate) fn discard_container(
    sandbox: &str,
    id: &str,
    pod_dir: &Path,
    hierarchies: &Hierarchies,
) -> Result<Option<PathBuf>, Fault> {
    let path = cgroup::container_path(sandbox, id);
    if hierarchies.exists(&path) {
        remove_cgroup(hierarchies, &path);
    }
    layout::discard_container(pod_dir, id)
        .map_err(|error| Fault::other(format!("cannot remove container {id:?}: {}", sys::errno_text(&error))))
}

/// Removes a cgroup with the processes in it.
fn remove_cgroup(hierarchies: &Hierarchies, path: &str) {
    let deadline = Instant::now() + Duration::from_secs(2);
    hierarchies.kill(path);
    while !hierarchies.remove(path).is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || !kill_and_wait(&hierarchies.processes(path), left) {
            tracing::warn!(path, "a cgroup is still in use");
            return;
        }
        std::thread::yield_now();
    }
}
