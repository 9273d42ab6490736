//! Maps runtime errors to causes used by the engine, the trace and hints.

use std::io;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{Container, PodSpec, Sysctl};
use outrigger_lifecycle::{SandboxCause, StartCause};
use outrigger_runtime::{RuntimeError, UserFault};

use crate::reference::ReferenceError;
use crate::security::SecurityError;
use crate::volume_error::{MountError, VolumeError};

/// Why the sandbox of a pod with these sysctls cannot be created; `None` if only the error text is known.
fn of_sandbox(error: &RuntimeError, sysctls: &[Sysctl]) -> Option<SandboxCause> {
    match error {
        RuntimeError::HostPort { port, source, .. } => {
            let port = *port;
            Some(match source.kind() {
                io::ErrorKind::AddrInUse => SandboxCause::HostPortInUse { port },
                io::ErrorKind::AddrNotAvailable => SandboxCause::NoSuchHostIp { port },
                io::ErrorKind::PermissionDenied => SandboxCause::HostPortDenied { port },
                _ => SandboxCause::HostPortFailed { port },
            })
        }
        RuntimeError::Sysctl { name, .. } => {
            let sysctl = sysctls.iter().position(|sysctl| sysctl.name == *name)?;
            Some(SandboxCause::SysctlRefused { sysctl })
        }
        RuntimeError::Config(_) => Some(SandboxCause::Unsupported),
        // Errors of containers, and errors without a known cause.
        RuntimeError::User { .. }
        | RuntimeError::MountPoint { .. }
        | RuntimeError::WorkingDir(_)
        | RuntimeError::Image(_)
        | RuntimeError::Create(_)
        | RuntimeError::Start(_)
        | RuntimeError::NotFound { .. }
        | RuntimeError::Other(_) => None,
    }
}

/// Why a container cannot be started; `None` if only the error text is known.
pub(crate) fn of_start(error: &RuntimeError, container: &Container) -> Option<StartCause> {
    match error {
        RuntimeError::User { cause: UserFault::RootForbidden, .. } => Some(StartCause::RootForbidden),
        RuntimeError::User { cause: UserFault::NoSuchId | UserFault::NoSuchName, .. } => {
            Some(StartCause::NoSuchId)
        }
        RuntimeError::User { cause: UserFault::OtherUser, .. } => Some(StartCause::OtherUser),
        RuntimeError::MountPoint { target, .. } => match mounted_at(container, target) {
            _ if is_inside_volume(container, target) => None,
            Some(mount) => Some(StartCause::MountPoint { mount }),
            // The target belongs to a file that every container gets, such as `/etc/hosts`.
            None => Some(StartCause::UnusableImage),
        },
        RuntimeError::WorkingDir(_) => {
            let dir = Path::new("/").join(container.working_dir.as_deref().unwrap_or_default());
            (!is_inside_volume(container, &dir)).then_some(StartCause::WorkingDir)
        }
        RuntimeError::Image(_) => Some(StartCause::UnusableImage),
        RuntimeError::Config(_) => Some(StartCause::Unsupported),
        // Errors of sandboxes, and errors without a known cause. A program that cannot be executed counts as
        // an exit.
        RuntimeError::Sysctl { .. }
        | RuntimeError::Create(_)
        | RuntimeError::HostPort { .. }
        | RuntimeError::Start(_)
        | RuntimeError::NotFound { .. }
        | RuntimeError::Other(_) => None,
    }
}

fn mount_points(container: &Container) -> impl Iterator<Item = PathBuf> {
    container.volume_mounts.iter().flatten().map(|mount| Path::new("/").join(&mount.mount_path))
}

/// The index in `volumeMounts` of the mount at `target`.
fn mounted_at(container: &Container, target: &Path) -> Option<usize> {
    mount_points(container).position(|at| at == target)
}

/// Whether a path is inside a volume. Such a failure may be temporary, because other containers can change
/// the volume's content.
fn is_inside_volume(container: &Container, path: &Path) -> bool {
    mount_points(container).any(|at| path.starts_with(&at) && path != at)
}

/// Why the spec of a container cannot be built.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SpecError {
    /// Its environment refers to something that does not exist.
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    /// It uses `volumeDevices`.
    #[error("volumeDevices are not supported; mount the device with a hostPath volume")]
    VolumeDevices,
    /// A volume cannot be mounted.
    #[error("volumeMounts[{index}] ({path}): {source}")]
    Mount { index: usize, path: String, source: MountError },
    /// Its log directory or termination message cannot be created.
    #[error("cannot write below {}: {source}", dir.display())]
    Files { dir: PathBuf, source: io::Error },
    /// Its security context or its resources are invalid.
    #[error(transparent)]
    Security(#[from] SecurityError),
}

impl SpecError {
    /// The cause for the engine and for hints, if one is known.
    pub(crate) fn cause(&self) -> Option<StartCause> {
        match self {
            SpecError::Reference(_) => Some(StartCause::BadReference),
            SpecError::VolumeDevices => Some(StartCause::Unsupported),
            SpecError::Mount { index, source, .. } => source.cause(*index),
            SpecError::Files { .. } | SpecError::Security(_) => None,
        }
    }
}

/// Why a pod's sandbox, or its volumes and files, could not be created.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The runtime could not create the sandbox.
    #[error("{source}")]
    Runtime {
        /// The runtime's error.
        source: RuntimeError,
        /// The cause for the engine and for hints, if it is known.
        cause: Option<SandboxCause>,
    },
    /// A volume could not be created.
    #[error("volume {name:?}: {source}")]
    Volume {
        /// The index in the pod's `volumes`.
        index: usize,
        /// The name of the volume.
        name: String,
        /// What failed.
        source: VolumeError,
    },
    /// `/etc/hosts` or another file for all containers could not be written.
    #[error("cannot write the pod's files below {}: {source}", dir.display())]
    Files {
        /// The directory of the pod.
        dir: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The resources of the pod are invalid.
    #[error(transparent)]
    Resources(#[from] SecurityError),
    /// The task that creates volumes ended early.
    #[error(transparent)]
    Task(#[from] tokio::task::JoinError),
}

impl SandboxError {
    /// The error of a runtime that could not create the sandbox of this pod.
    pub(crate) fn runtime(source: RuntimeError, pod: &PodSpec) -> Self {
        let sysctls = pod.security_context.as_ref().and_then(|context| context.sysctls.as_deref());
        let cause = of_sandbox(&source, sysctls.unwrap_or_default());
        SandboxError::Runtime { source, cause }
    }

    pub(crate) fn volume(index: usize, name: &str, source: VolumeError) -> Self {
        SandboxError::Volume { index, name: name.to_owned(), source }
    }

    /// The cause for the engine and for hints, if one is known.
    pub fn cause(&self) -> Option<SandboxCause> {
        match self {
            SandboxError::Runtime { cause, .. } => *cause,
            SandboxError::Volume { index, source, .. } => Some(source.cause(*index)),
            SandboxError::Files { .. } | SandboxError::Resources(_) | SandboxError::Task(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::VolumeMount;

    use super::*;

    #[test]
    fn ports_that_cannot_be_opened_say_which_and_why() {
        let cause = |kind: io::ErrorKind| {
            of_sandbox(&RuntimeError::HostPort { port: 80, detail: "d".to_owned(), source: kind.into() }, &[])
        };
        assert_eq!(cause(io::ErrorKind::AddrInUse), Some(SandboxCause::HostPortInUse { port: 80 }));
        assert_eq!(cause(io::ErrorKind::PermissionDenied), Some(SandboxCause::HostPortDenied { port: 80 }));
        assert_eq!(cause(io::ErrorKind::AddrNotAvailable), Some(SandboxCause::NoSuchHostIp { port: 80 }));
        assert_eq!(cause(io::ErrorKind::TimedOut), Some(SandboxCause::HostPortFailed { port: 80 }));
        assert_eq!(of_sandbox(&RuntimeError::Create("host port 80".to_owned()), &[]), None);
    }

    #[test]
    fn sysctls_are_found_in_the_pod() {
        let sysctl = |name: &str| Sysctl { name: name.to_owned(), value: "1".to_owned() };
        let sysctls = [sysctl("net.b"), sysctl("net.a")];
        let cause = |name: &str| {
            of_sandbox(&RuntimeError::Sysctl { name: name.to_owned(), detail: String::new() }, &sysctls)
        };
        assert_eq!(cause("net.a"), Some(SandboxCause::SysctlRefused { sysctl: 1 }));
        assert_eq!(cause("net.c"), None);
    }

    #[test]
    fn what_is_in_a_volume_may_change_and_the_image_does_not() {
        let mount = |path: &str| VolumeMount { mount_path: path.to_owned(), ..VolumeMount::default() };
        let container = |dir: &str| Container {
            working_dir: Some(dir.to_owned()),
            volume_mounts: Some(vec![mount("/data"), mount("etc/passwd"), mount("/data/sub")]),
            ..Container::default()
        };
        let at = |target: &str| RuntimeError::MountPoint { target: target.into(), detail: String::new() };
        let dir = || RuntimeError::WorkingDir(String::new());
        let table = [
            (at("/data"), "", Some(StartCause::MountPoint { mount: 0 })),
            (at("/etc/passwd"), "", Some(StartCause::MountPoint { mount: 1 })),
            (at("/data/sub"), "", None),
            (at("/etc/hosts"), "", Some(StartCause::UnusableImage)),
            (dir(), "/etc/hosts", Some(StartCause::WorkingDir)),
            (dir(), "/data/file", None),
        ];
        for (error, working_dir, expected) in table {
            assert_eq!(of_start(&error, &container(working_dir)), expected, "{error:?}");
        }
    }
}
