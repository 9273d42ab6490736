//! Finds the OCI runtimes that are installed on this machine, and their versions.

use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};

use outrigger_runtime::RuntimeError;

/// How long to wait for a runtime's version.
const VERSION_PATIENCE: Duration = Duration::from_secs(5);

/// The maximum length of a version text.
const VERSION_MAX: u64 = 4096;

/// The directories that are searched for runtimes in addition to `PATH`.
pub(crate) const PLACES: [&str; 6] =
    ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// An OCI runtime that is installed on this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OciRuntime {
    /// Its name in messages.
    name: String,
    path: PathBuf,
    /// Options that come before the command.
    args: Vec<String>,
    /// The first line of its `--version`.
    version: String,
}

impl OciRuntime {
    /// Finds a runtime by name or path and queries its version.
    ///
    /// # Errors
    /// It does not exist, or does not answer like a runtime.
    pub fn find(name: &str, args: &[String]) -> Result<Self, RuntimeError> {
        let path = locate(name)?;
        let version = version(&path).map_err(|why| {
            RuntimeError::Config(format!("{} is not usable as an OCI runtime: {why}", path.display()))
        })?;
        let name =
            path.file_name().map_or_else(|| name.to_owned(), |name| name.to_string_lossy().into_owned());
        Ok(OciRuntime { name, path, args: args.to_vec(), version })
    }

    /// A runtime that is not installed.
    #[cfg(test)]
    pub(crate) fn for_tests(path: &str) -> Self {
        let name = path.rsplit('/').next().unwrap_or(path).to_owned();
        OciRuntime { name, path: path.into(), args: Vec::new(), version: String::new() }
    }

    /// Its name in messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its program.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its options that come before the command.
    pub(crate) fn args(&self) -> &[String] {
        &self.args
    }

    /// The first line of its `--version`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Whether it refuses machines with both cgroup versions. On such a machine, it is shown only v1.
    pub(crate) fn refuses_hybrid_cgroups(&self) -> bool {
        self.version.starts_with("crun ")
    }
}

/// Finds the program.
fn locate(name: &str) -> Result<PathBuf, RuntimeError> {
    if name.is_empty() {
        return Err(RuntimeError::Config(
            "the OCI runtime's name is empty: give runc, crun or a path".to_owned(),
        ));
    }
    if name.contains('/') {
        let path = Path::new(name);
        let path = path.canonicalize().map_err(|error| {
            RuntimeError::Config(format!("OCI runtime {name}: {}", crate::sys::errno_text(&error)))
        })?;
        return match is_program(&path) {
            true => Ok(path),
            false => Err(RuntimeError::Config(format!("OCI runtime {name} is not an executable file"))),
        };
    }
    let own = std::env::var("PATH").unwrap_or_default();
    let places = own.split(':').filter(|dir| dir.starts_with('/')).chain(PLACES);
    places.map(|dir| Path::new(dir).join(name)).find(|path| is_program(path)).ok_or_else(|| {
        RuntimeError::Config(format!(
            "OCI runtime {name:?} is not installed: install it, or give the path of its program"
        ))
    })
}

fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// Why a program does not count as an OCI runtime.
#[derive(Debug, thiserror::Error)]
enum VersionError {
    #[error("cannot run it: {}", crate::sys::errno_text(.0))]
    Run(#[source] io::Error),
    #[error("`--version` failed")]
    Failed,
    #[error("`--version` took longer than {} seconds", VERSION_PATIENCE.as_secs())]
    Late,
    #[error("`--version` does not say a version")]
    NoVersion,
}

fn version(path: &Path) -> Result<String, VersionError> {
    let mut command = Command::new(path);
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(VersionError::Run)?;
    let output = child.stdout.take();
    match wait(&mut child, VERSION_PATIENCE).map_err(VersionError::Run)? {
        Some(status) if status.success() => {}
        Some(_) => return Err(VersionError::Failed),
        None => return Err(VersionError::Late),
    }
    let mut text = String::new();
    // Output that does not fit into the pipe is not needed.
    if let Some(output) = output {
        let _ = output.take(VERSION_MAX).read_to_string(&mut text);
    }
    match text.lines().next().map(str::trim).filter(|line| line.contains("version")) {
        Some(line) => Ok(line.to_owned()),
        None => Err(VersionError::NoVersion),
    }
}

/// Waits for a process. Kills it if it takes too long, and then returns no status.
pub(crate) fn wait(child: &mut Child, patience: Duration) -> io::Result<Option<ExitStatus>> {
    let pid = rustix::process::Pid::from_child(child);
    let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?;
    let timeout = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: i64::from(patience.subsec_nanos()) };
    let deadline = std::time::Instant::now() + patience;
    loop {
        match poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&timeout)) {
            Err(rustix::io::Errno::INTR) if std::time::Instant::now() < deadline => {}
            Ok(1..) => return child.wait().map(Some),
            _ => {
                let _ = child.kill();
                child.wait()?;
                return Ok(None);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_runtime_is_refused_in_words() {
        for (name, complaint) in [
            ("", "is empty"),
            ("no-such-runtime", "is not installed"),
            ("/no/such/runtime", "no such file"),
            ("/etc/passwd", "not an executable file"),
            ("/etc", "not an executable file"),
            ("/bin/true", "is not usable as an OCI runtime"),
            ("/bin/false", "`--version` failed"),
        ] {
            match OciRuntime::find(name, &[]) {
                // `true` of GNU coreutils has a version. The trial rejects it as a runtime.
                Ok(found) => assert!(name == "/bin/true" && found.version().contains("true"), "{found:?}"),
                Err(error) => {
                    assert!(error.to_string().contains(complaint) || name == "/bin/false", "{name}: {error}")
                }
            }
        }
    }
}
