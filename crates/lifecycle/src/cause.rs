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

/// Why a pod, or one of its containers, does not start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// An image cannot be had.
    Pull(PullCause),
    /// The sandbox cannot be made.
    Sandbox(SandboxCause),
    /// A container cannot be started.
    Start(StartCause),
}

impl Cause {
    /// The one table that says for every cause whether waiting can help. A failure without a cause may heal: nothing is
    /// known that speaks against it.
    pub fn outlook(self) -> Outlook {
        match self {
            Cause::Pull(cause) => match cause {
                PullCause::InvalidName => Outlook::Hopeless,
                // Images are loaded, pushed and copied, registries come back, credentials are renewed and disks cleared.
                PullCause::NeverPull
                | PullCause::NotFound
                | PullCause::Unauthorized
                | PullCause::Unreachable
                | PullCause::NotOnDisk
                | PullCause::NoSpace => Outlook::MayHeal,
            },
            Cause::Sandbox(cause) => match cause {
                // Ports become free. Paths appear, when the service that owns them starts.
                SandboxCause::HostPortInUse { .. }
                | SandboxCause::HostPortFailed { .. }
                | SandboxCause::HostPathMissing { .. }
                | SandboxCause::VolumeFailed { .. } => Outlook::MayHeal,
                // A process does not get more rights, and the kernel does not get more settings.
                SandboxCause::HostPortDenied { .. }
                | SandboxCause::HostPathDenied { .. }
                | SandboxCause::HostPathType { .. }
                | SandboxCause::SysctlRefused { .. }
                | SandboxCause::NoSuchFsGroup
                | SandboxCause::VolumeUnsupported { .. }
                | SandboxCause::Unsupported => Outlook::Hopeless,
            },
            Cause::Start(cause) => match cause {
                // An image that is here does not change, nor do the users of this machine.
                StartCause::RootForbidden
                | StartCause::NoSuchId
                | StartCause::MountPoint { .. }
                | StartCause::WorkingDir
                | StartCause::BadReference
                | StartCause::UnusableImage
                | StartCause::Unsupported => Outlook::Hopeless,
            },
        }
    }
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
    /// This user may not use the path of a `hostPath` volume.
    HostPathDenied {
        /// Which, by its place in the pod.
        volume: usize,
    },
    /// The kernel does not have a sysctl, or refuses its value.
    SysctlRefused {
        /// Which, by its place in the pod's `sysctls`.
        sysctl: usize,
    },
    /// The group of `fsGroup` does not exist for a run without root.
    NoSuchFsGroup,
    /// Volumes of this kind do not exist here.
    VolumeUnsupported {
        /// Which, by its place in the pod.
        volume: usize,
    },
    /// The pod asks for something that this machine, or its runtime, does not have. The message says what.
    Unsupported,
    /// A volume cannot be made for another reason.
    VolumeFailed {
        /// Which, by its place in the pod.
        volume: usize,
    },
}

/// Why a container cannot be started, where it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "cause", rename_all = "kebab-case")]
pub enum StartCause {
    /// `runAsNonRoot`, and the pod or the image says root, or a name that may be root.
    RootForbidden,
    /// The user or group does not exist where the container would run.
    NoSuchId,
    /// A volume cannot be mounted at its place.
    MountPoint {
        /// Which, by its place in `volumeMounts`.
        mount: usize,
    },
    /// `workingDir` is not a directory.
    WorkingDir,
    /// It refers to a ConfigMap, Secret, key or variable that does not exist.
    BadReference,
    /// The image cannot be run: it has no program, or something else where a container needs a directory.
    UnusableImage,
    /// The container asks for something that this machine, or its runtime, does not have. The message says what.
    Unsupported,
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The documentation of every cause, in the same words as the trace.
    const DOCS: &str = include_str!("../../../docs/guide/everyday.md");

    fn name(cause: Cause) -> String {
        let (value, key) = match cause {
            Cause::Pull(cause) => (serde_json::to_value(cause), None),
            Cause::Sandbox(cause) => (serde_json::to_value(cause), Some("cause")),
            Cause::Start(cause) => (serde_json::to_value(cause), Some("cause")),
        };
        let value = value.unwrap();
        let name = key.map_or(&value, |key| &value[key]);
        name.as_str().unwrap().to_owned()
    }

    #[test]
    fn every_cause_says_whether_waiting_helps_and_so_do_the_docs() {
        use {PullCause as P, SandboxCause as B, StartCause as S};
        let (port, volume) = (80, 0);
        let hopeless = [
            Cause::Pull(P::InvalidName),
            Cause::Sandbox(B::HostPortDenied { port }),
            Cause::Sandbox(B::HostPathDenied { volume }),
            Cause::Sandbox(B::HostPathType { volume }),
            Cause::Sandbox(B::SysctlRefused { sysctl: 0 }),
            Cause::Sandbox(B::NoSuchFsGroup),
            Cause::Sandbox(B::VolumeUnsupported { volume }),
            Cause::Sandbox(B::Unsupported),
            Cause::Start(S::RootForbidden),
            Cause::Start(S::NoSuchId),
            Cause::Start(S::MountPoint { mount: 0 }),
            Cause::Start(S::WorkingDir),
            Cause::Start(S::BadReference),
            Cause::Start(S::UnusableImage),
            Cause::Start(S::Unsupported),
        ];
        let may_heal = [
            Cause::Pull(P::NeverPull),
            Cause::Pull(P::NotFound),
            Cause::Pull(P::Unauthorized),
            Cause::Pull(P::Unreachable),
            Cause::Pull(P::NotOnDisk),
            Cause::Pull(P::NoSpace),
            Cause::Sandbox(B::HostPortInUse { port }),
            Cause::Sandbox(B::HostPortFailed { port }),
            Cause::Sandbox(B::HostPathMissing { volume }),
            Cause::Sandbox(B::VolumeFailed { volume }),
        ];
        for (causes, outlook, word) in
            [(&hopeless[..], Outlook::Hopeless, "ends"), (&may_heal, Outlook::MayHeal, "tried again")]
        {
            for cause in causes {
                assert_eq!(cause.outlook(), outlook, "{cause:?}");
                let row = format!("| `{}` |", name(*cause));
                let row = DOCS.lines().find(|line| line.starts_with(&row));
                assert!(row.is_some_and(|row| row.ends_with(&format!("| {word} |"))), "{cause:?}: {row:?}");
            }
        }
    }
}
