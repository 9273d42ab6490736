//! Why something failed, as far as a program can act on it. The text of a failure is for people; these are for hints and for
//! other programs.

use serde::{Deserialize, Serialize};

/// Whether a failure can go away while nothing is changed but time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outlook {
    /// Something outside of the pod may put it right: it is tried again.
    MayHeal,
    /// Pod, image and machine contradict each other: the same attempt gives the same answer, for ever.
    Hopeless,
}

/// Why an image cannot be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PullCause {
    /// The reference cannot be parsed.
    InvalidName,
    /// It is not here and its pull policy forbids fetching it.
    NeverPull,
    /// The registry does not have it.
    NotFound,
    /// The registry wants other credentials; it may also not exist.
    Unauthorized,
    /// No registry answers there.
    Unreachable,
    /// The path on this machine holds no such image.
    NotOnDisk,
    /// The disk is full.
    NoSpace,
}

impl PullCause {
    /// Whether waiting can help. Images are pushed, credentials renewed, files copied and disks cleared; a name stays.
    pub fn outlook(self) -> Outlook {
        match self {
            PullCause::InvalidName => Outlook::Hopeless,
            PullCause::NeverPull
            | PullCause::NotFound
            | PullCause::Unauthorized
            | PullCause::Unreachable
            | PullCause::NotOnDisk
            | PullCause::NoSpace => Outlook::MayHeal,
        }
    }
}

/// Why a sandbox cannot be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "cause", rename_all = "kebab-case")]
pub enum SandboxCause {
    /// Something else listens on a port of the host.
    HostPortInUse {
        /// Which.
        port: u16,
    },
    /// A port of the host needs more privileges.
    HostPortDenied {
        /// Which.
        port: u16,
    },
    /// A port of the host cannot be opened for another reason.
    HostPortFailed {
        /// Which.
        port: u16,
    },
    /// There is nothing at the path of a `hostPath` volume.
    HostPathMissing {
        /// Which, by its place in the pod.
        volume: usize,
    },
    /// The path of a `hostPath` volume is not what its type says.
    HostPathType {
        /// Which, by its place in the pod.
        volume: usize,
    },
    /// A volume cannot be made for another reason.
    VolumeFailed {
        /// Which, by its place in the pod.
        volume: usize,
    },
}

impl SandboxCause {
    /// Whether waiting can help. Ports become free and paths appear; a process does not get more privileges.
    pub fn outlook(self) -> Outlook {
        match self {
            SandboxCause::HostPortDenied { .. } => Outlook::Hopeless,
            SandboxCause::HostPortInUse { .. }
            | SandboxCause::HostPortFailed { .. }
            | SandboxCause::HostPathMissing { .. }
            | SandboxCause::HostPathType { .. }
            | SandboxCause::VolumeFailed { .. } => Outlook::MayHeal,
        }
    }
}

/// Why a container cannot be started, where it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StartCause {
    /// `runAsNonRoot`, and the pod or the image says root, or a name that may be root.
    RootForbidden,
    /// The user or group does not exist where the container would run.
    NoSuchId,
}

impl StartCause {
    /// Whether waiting can help. An image that is here does not change, nor do the ids of this user.
    pub fn outlook(self) -> Outlook {
        match self {
            StartCause::RootForbidden | StartCause::NoSuchId => Outlook::Hopeless,
        }
    }
}

/// Why a probe attempt failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProbeCause {
    /// Nothing listens on the port.
    Refused,
    /// It took too long.
    TimedOut,
    /// There is no connection for another reason, or it broke.
    NoConnection,
    /// It answers, but not with success.
    BadAnswer,
    /// The command ended with another code than 0.
    ExitCode,
}
