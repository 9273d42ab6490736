//! Why a volume cannot be created or mounted.

use std::fmt;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use outrigger_lifecycle::{QuantityError, SandboxCause, StartCause};
use rustix::io::Errno;

use crate::reference::ReferenceError;

/// Why a volume cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// It refers to something that does not exist.
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    /// The size limit of an `emptyDir` in memory is invalid.
    #[error(transparent)]
    Size(#[from] QuantityError),
    /// The mode of a file is out of range.
    #[error("mode {mode} of {path:?} must be between 0 and 0777")]
    FileMode {
        /// The mode as written.
        mode: i32,
        /// The file.
        path: PathBuf,
    },
    /// The path of a file leads out of the volume.
    #[error("path {0:?} must be relative and must not contain `..`")]
    FilePath(PathBuf),
    /// A file of a `downwardAPI` volume has no content.
    #[error("{0:?} has neither fieldRef nor resourceFieldRef")]
    FileSource(String),
    /// The name of a namespace or a claim cannot be used as a directory name.
    #[error("{0:?} is not a name")]
    ClaimName(String),
    /// A projected source that only a cluster can serve.
    #[error("a projected source of this kind needs a cluster; remove it")]
    ProjectedSource,
    /// Volumes of this kind are not supported.
    #[error("volumes of type {0} are not supported here; use hostPath, emptyDir or persistentVolumeClaim")]
    Kind(String),
    /// The medium of an `emptyDir` is unknown.
    #[error("emptyDir.medium {0:?} is not supported; use Memory")]
    Medium(String),
    /// A host path that is not absolute.
    #[error("hostPath {} must be absolute", .0.display())]
    HostPathRelative(PathBuf),
    /// A host path that contains `..`.
    #[error("hostPath {} must not contain `..`", .0.display())]
    HostPathParent(PathBuf),
    /// The type of a `hostPath` is unknown.
    #[error(
        "hostPath.type {0:?} is not known; use Directory, DirectoryOrCreate, File, FileOrCreate, Socket, \
         CharDevice or BlockDevice"
    )]
    HostPathKind(String),
    /// The host path does not match its type.
    #[error("hostPath type check failed: {} {fault}", path.display())]
    HostPathType {
        /// The path.
        path: PathBuf,
        /// Why it does not match.
        fault: HostPathFault,
    },
    /// The host path cannot be examined.
    #[error("hostPath type check failed: {}: {source}", path.display())]
    HostPathCheck {
        /// The path.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The host path cannot be created.
    #[error("cannot create {}: {source}", path.display())]
    HostPathCreate {
        /// The path.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The directory of the volume cannot be created.
    #[error("cannot create {}: {source}", path.display())]
    Create {
        /// The directory.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// A file of the volume cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// A volume in memory cannot be mounted.
    #[error("cannot mount a memory file system at {}: {source}; this needs root", path.display())]
    Memory {
        /// The directory.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// `fsGroup` is not the number of a group.
    #[error("fsGroup {0} is out of range")]
    FsGroupRange(i64),
    /// A run without root does not have the group of `fsGroup`.
    #[error(
        "fsGroup {group} does not exist here: without root there are only {count} groups, by /etc/subgid"
    )]
    FsGroup {
        /// The group.
        group: u32,
        /// The number of available groups.
        count: u64,
    },
    /// The files of the volume cannot be given to the group of `fsGroup`.
    #[error("cannot give {} to group {group}: {source}", path.display())]
    Ownership {
        /// The volume.
        path: PathBuf,
        /// The group.
        group: u32,
        /// The kernel's error.
        source: io::Error,
    },
}

impl VolumeError {
    /// The cause for the engine and for hints. `volume` is the index in the pod's `volumes`.
    pub(crate) fn cause(&self, volume: usize) -> SandboxCause {
        let fault = match self {
            VolumeError::HostPathType { fault, .. } => Some(*fault),
            VolumeError::HostPathCheck { source, .. } | VolumeError::HostPathCreate { source, .. } => {
                out_of_reach(source)
            }
            VolumeError::FsGroup { .. } => return SandboxCause::NoSuchFsGroup,
            VolumeError::Kind(_) | VolumeError::Medium(_) => {
                return SandboxCause::VolumeUnsupported { volume };
            }
            _ => None,
        };
        match fault {
            Some(HostPathFault::Missing) => SandboxCause::HostPathMissing { volume },
            Some(HostPathFault::Denied) => SandboxCause::HostPathDenied { volume },
            Some(HostPathFault::Other(_)) => SandboxCause::HostPathType { volume },
            None => SandboxCause::VolumeFailed { volume },
        }
    }
}

/// Why a volume cannot be mounted into a container.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MountError {
    /// The pod has no such volume.
    #[error("there is no volume {0:?}")]
    NoVolume(String),
    /// A variable in `subPathExpr` is not set.
    #[error("subPathExpr {expr:?}: variable {variable:?} has no value")]
    NoVariable { expr: String, variable: String },
    /// `subPath` leads out of the volume.
    #[error("subPath {0:?} must be relative and must not contain `..`")]
    SubPathEscapes(String),
    /// `subPath` cannot be opened or created in the volume.
    #[error("subPath {path:?} {source}")]
    SubPath { path: String, source: SubPathError },
    /// The mount propagation is unknown.
    #[error("mountPropagation {0:?} is not known; use None, HostToContainer or Bidirectional")]
    Propagation(String),
}

impl MountError {
    /// The cause for the engine and for hints, if waiting does not help. `mount` is the index in
    /// `volumeMounts`.
    pub(crate) fn cause(&self, mount: usize) -> Option<StartCause> {
        match self {
            MountError::NoVolume(_) => Some(StartCause::BadReference),
            // The variables of a container do not change, so waiting does not help.
            MountError::NoVariable { .. } | MountError::SubPathEscapes(_) => {
                Some(StartCause::SubPathExpr { mount })
            }
            MountError::SubPath { source: SubPathError::Content { .. }, .. } => {
                Some(StartCause::SubPath { mount })
            }
            MountError::SubPath { source: SubPathError::Io(_), .. } | MountError::Propagation(_) => None,
        }
    }
}

/// Why a `subPath` cannot be mounted. The text continues after the path.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SubPathError {
    /// The content of the volume, or the access to it, prevents the mount.
    #[error("cannot be used: {at:?} in the volume {what}")]
    Content {
        /// The part of the path that prevents it.
        at: PathBuf,
        /// The reason, as a continuation of the sentence.
        what: &'static str,
    },
    /// A system call failed for another reason.
    #[error("cannot be mounted: {0}")]
    Io(#[from] io::Error),
}

impl SubPathError {
    /// The error for a `path` in a volume that cannot be opened.
    pub(crate) fn opening(path: &Path, error: Errno) -> Self {
        let content = |at: &Path, what| SubPathError::Content { at: at.to_owned(), what };
        match error {
            Errno::XDEV => content(path, "is a symbolic link that leads out of the volume"),
            Errno::LOOP => content(path, "is a symbolic link that leads back to itself, or into /proc"),
            Errno::NOENT => content(path, "is a symbolic link to nothing"),
            Errno::ROFS => content(path, "does not exist, and the volume is read-only"),
            Errno::ACCESS | Errno::PERM => content(path, "cannot be reached or created by this user"),
            Errno::NOTDIR => content(path.parent().unwrap_or(path), "is not a directory"),
            other => SubPathError::Io(other.into()),
        }
    }
}

impl From<Errno> for SubPathError {
    fn from(error: Errno) -> Self {
        SubPathError::Io(error.into())
    }
}

/// Why a path cannot be reached, if waiting does not change that.
pub(crate) fn out_of_reach(error: &io::Error) -> Option<HostPathFault> {
    match error.kind() {
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => Some(HostPathFault::Denied),
        ErrorKind::NotADirectory => Some(HostPathFault::Other("below a directory")),
        _ => None,
    }
}

/// Why a host path does not match its type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostPathFault {
    /// It does not exist.
    Missing,
    /// This user may not use it.
    Denied,
    /// The path or one of its parents is something else. Contains what was expected, such as `a directory`.
    Other(&'static str),
}

impl fmt::Display for HostPathFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HostPathFault::Missing => f.write_str("does not exist"),
            HostPathFault::Denied => f.write_str("cannot be used by this user"),
            HostPathFault::Other(wanted) => write!(f, "is not {wanted}"),
        }
    }
}
