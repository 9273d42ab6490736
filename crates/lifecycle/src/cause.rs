//! Why something failed, as far as a program can act on it. The text of a failure is for people; these are for hints and for
//! other programs.

use serde::{Deserialize, Serialize};

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
