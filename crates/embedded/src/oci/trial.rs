//! Checks whether a runtime can run containers here, before any pod is started.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use serde::{Deserialize, Serialize};

use crate::cgroup::{self, Hierarchies};
use crate::fault::Fault;
use crate::layout;
use crate::oci_runtime::OciRuntime;
use crate::protocol::{ProcessRecord, SandboxState, ShimConfig};
use outrigger_runtime::{ContainerId, ContainerSpec, Image, Resources, RuntimeError, SandboxId};

/// What was tried. The result is valid until one of these changes.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Stamp {
    runtime: OciRuntime,
    modified_ns: i128,
    size: u64,
    boot: String,
}

impl Stamp {
    fn of_runtime(runtime: &OciRuntime) -> io::Result<Self> {
        let meta = fs::metadata(runtime.path())?;
        Ok(Stamp {
            runtime: runtime.clone(),
            modified_ns: i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec()),
            size: meta.len(),
            boot: fs::read_to_string("/proc/sys/kernel/random/boot_id")?,
        })
    }
}

/// Lets the runtime create a container that is never started, unless it has already done so. Blocks. `shim`
/// is the command of the shim.
pub(crate) fn try_runtime(
    shim: Command,
    runtime: &OciRuntime,
    state_dir: &Path,
    cgroups: &Hierarchies,
) -> Result<(), RuntimeError> {
    let refused = |why: String| {
        let path = runtime.path().display();
        RuntimeError::Config(format!("OCI runtime {path} cannot run containers on this machine: {why}"))
    };
    let stamp = Stamp::of_runtime(runtime).map_err(|error| refused(error.to_string()))?;
    let known = state_dir.join("oci-runtimes").join(format!("{}.json", runtime.name()));
    if layout::read_json::<Stamp>(&known).is_some_and(|before| before == stamp) {
        return Ok(());
    }
    // Several trials may run at the same time, and ending one must not end another.
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("try-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let dir = state_dir.join(format!(".{name}"));
    remove_interrupted(state_dir, cgroups);
    let result = attempt(shim, runtime, &name, &dir, cgroups);
    cgroups.remove(&cgroup::sandbox_path(&name));
    let _ = layout::remove_tree(&dir);
    match result.map_err(|error| refused(error.to_string()))? {
        Some(fault) => Err(refused(fault.text)),
        None => {
            // If this fails, the trial is repeated the next time.
            let _ = fs::create_dir_all(known.parent().unwrap_or(state_dir))
                .and_then(|()| layout::write_json(&known, &stamp));
            Ok(())
        }
    }
}

/// Removes what the trials of killed processes have left.
fn remove_interrupted(state_dir: &Path, cgroups: &Hierarchies) {
    for entry in fs::read_dir(state_dir).into_iter().flatten().flatten() {
        let file = entry.file_name();
        let Some(name) = file.to_str().and_then(|file| file.strip_prefix('.')) else { continue };
        let process = name.strip_prefix("try-").and_then(|rest| rest.split('-').next()?.parse().ok());
        if process.is_some_and(|process| ProcessRecord::of_pid(process).is_none()) {
            cgroups.remove(&cgroup::sandbox_path(name));
            let _ = layout::remove_tree(&entry.path());
        }
    }
}

fn attempt(
    mut shim: Command,
    runtime: &OciRuntime,
    name: &str,
    dir: &Path,
    cgroups: &Hierarchies,
) -> io::Result<Option<Fault>> {
    let layer = dir.join("layer");
    fs::create_dir_all(&layer)?;
    // The program is never executed. Runtimes only check that it exists.
    fs::write(layer.join("program"), "")?;
    fs::set_permissions(layer.join("program"), fs::Permissions::from_mode(0o755))?;
    let container = dir.join("container");
    fs::create_dir(&container)?;
    let config = ShimConfig {
        spec: ContainerSpec::new(
            ContainerId("try".to_owned()),
            Image::of_layers("try", vec![layer]),
            &["/program"],
            dir.join("log"),
        ),
        stop_signal: libc::SIGTERM,
        dir: container,
        sandbox: sandbox(runtime, name, dir),
        cgroups: cgroups.clone(),
    };
    let (mut ours, theirs) = UnixStream::pair()?;
    let mut child = shim.stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).spawn()?;
    drop(shim);
    ours.write_all(&serde_json::to_vec(&config)?)?;
    ours.shutdown(std::net::Shutdown::Write)?;
    let mut answer = Vec::new();
    ours.read_to_end(&mut answer)?;
    let status = child.wait()?;
    match (answer.is_empty(), status.success()) {
        (true, true) => Ok(None),
        (true, false) => Err(io::Error::other("the trial ended without an answer")),
        (false, _) => Ok(Some(serde_json::from_slice(&answer)?)),
    }
}

fn sandbox(runtime: &OciRuntime, name: &str, dir: &Path) -> SandboxState {
    SandboxState {
        id: SandboxId(name.to_owned()),
        dir: dir.to_owned(),
        user: None,
        net: None,
        ipc: None,
        uts: None,
        pid: None,
        proc: None,
        pause: None,
        host_pid: false,
        hostname: "try".to_owned(),
        shm: PathBuf::from("/dev/shm"),
        resources: Resources::default(),
        ips: Vec::new(),
        ports: Vec::new(),
        pod: name.to_owned(),
        oci_runtime: Some(runtime.clone()),
        owner: None,
        stop: Default::default(),
    }
}
