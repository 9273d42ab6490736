//! Machine-readable causes of failures. Hints and other programs use them; the message of a failure is for
//! people.

use serde::{Deserialize, Serialize};

/// Whether a failure can go away by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outlook {
    /// Something outside the pod may fix it, so it is retried.
    MayRecover,
    /// Pod, image and machine contradict each other: every retry would fail in the same way.
    Permanent,
}

/// Why a pod or one of its containers does not start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// An image is not available.
    Pull(PullCause),
    /// The sandbox cannot be created.
    Sandbox(SandboxCause),
    /// A container cannot be started.
    Start(StartCause),
}

impl Cause {
    /// Whether a retry can help. This table has a row for every cause. A failure without a known cause may
    /// heal, because nothing is known to prevent that.
    pub fn outlook(self) -> Outlook {
        match self {
            Cause::Pull(cause) => match cause {
                PullCause::InvalidName => Outlook::Permanent,
                // Images get loaded, pushed or copied, registries come back, credentials are renewed and
                // disks are cleaned up.
                PullCause::NeverPull
                | PullCause::NotFound
                | PullCause::Unauthorized
                | PullCause::Unreachable
                | PullCause::NotOnDisk
                | PullCause::NoSpace
                | PullCause::Damaged => Outlook::MayRecover,
            },
            Cause::Sandbox(cause) => match cause {
                // Ports become free. Addresses and paths appear, when the service that owns them starts.
                SandboxCause::HostPortInUse { .. }
                | SandboxCause::NoSuchHostIp { .. }
                | SandboxCause::HostPortFailed { .. }
                | SandboxCause::HostPathMissing { .. }
                | SandboxCause::VolumeFailed { .. } => Outlook::MayRecover,
                // Neither the privileges of a process nor the settings that a kernel has grow with time.
                SandboxCause::HostPortDenied { .. }
                | SandboxCause::HostPathDenied { .. }
                | SandboxCause::HostPathType { .. }
                | SandboxCause::SysctlRefused { .. }
                | SandboxCause::NoSuchFsGroup
                | SandboxCause::VolumeUnsupported { .. }
                | SandboxCause::Unsupported => Outlook::Permanent,
            },
            Cause::Start(cause) => match cause {
                // Other containers and programs change what volumes hold.
                StartCause::SubPath { .. } => Outlook::MayRecover,
                // Neither a present image nor the users of this machine change.
                StartCause::RootForbidden
                | StartCause::NoSuchId
                | StartCause::OtherUser
                | StartCause::SubPathExpr { .. }
                | StartCause::MountPoint { .. }
                | StartCause::WorkingDir
                | StartCause::BadReference
                | StartCause::UnusableImage
                | StartCause::Unsupported => Outlook::Permanent,
            },
        }
    }
}

/// Why an image is not available.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PullCause {
    /// The reference cannot be parsed.
    InvalidName,
    /// The image is not present, and its pull policy forbids pulling it.
    NeverPull,
    /// The registry does not have the image.
    NotFound,
    /// The registry requires other credentials. Many registries say the same if the image does not exist.
    Unauthorized,
    /// No registry answers at that address.
    Unreachable,
    /// The path on this machine does not contain such an image.
    NotOnDisk,
    /// The disk is full.
    NoSpace,
    /// Parts of it are missing, or are not what its documents say.
    Damaged,
}

/// Why a sandbox cannot be created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "cause", rename_all = "kebab-case")]
pub enum SandboxCause {
    /// Something else listens on a port of the host.
    HostPortInUse {
        /// The port number.
        port: u16,
    },
    /// The process lacks the privilege to use a port of the host.
    HostPortDenied {
        /// The port number.
        port: u16,
    },
    /// The address of a port of the host is none of this machine's.
    NoSuchHostIp {
        /// Which port.
        port: u16,
    },
    /// A port of the host cannot be opened for another reason.
    HostPortFailed {
        /// The port number.
        port: u16,
    },
    /// There is nothing at the path of a `hostPath` volume.
    HostPathMissing {
        /// The index of the volume in the pod.
        volume: usize,
    },
    /// The path of a `hostPath` volume has another type than `hostPath.type` requires.
    HostPathType {
        /// The index of the volume in the pod.
        volume: usize,
    },
    /// This user is not allowed to use the path of a `hostPath` volume.
    HostPathDenied {
        /// The index of the volume in the pod.
        volume: usize,
    },
    /// The kernel does not have a sysctl, or refuses its value.
    SysctlRefused {
        /// The index of the entry in the pod's `sysctls`.
        sysctl: usize,
    },
    /// A run without root does not have the group of `fsGroup`.
    NoSuchFsGroup,
    /// Volumes of this kind are not supported here.
    VolumeUnsupported {
        /// The index of the volume in the pod.
        volume: usize,
    },
    /// The pod requires something that this machine or its runtime does not have. The message says what.
    Unsupported,
    /// A volume cannot be created for another reason.
    VolumeFailed {
        /// The index of the volume in the pod.
        volume: usize,
    },
}

/// Why a container cannot be started, if that is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "cause", rename_all = "kebab-case")]
pub enum StartCause {
    /// `runAsNonRoot` is set, but the pod or the image selects root, or a user name that may be root.
    RootForbidden,
    /// The user or group does not exist in the container.
    NoSuchId,
    /// There is one id for the whole pod, and another container of it runs as another user.
    OtherUser,
    /// A volume cannot be mounted at its `mountPath`.
    MountPoint {
        /// The index of the entry in `volumeMounts`.
        mount: usize,
    },
    /// The `subPath` of a mount is not in its volume.
    SubPath {
        /// Which mount, by its place in `volumeMounts`.
        mount: usize,
    },
    /// The `subPathExpr` of a mount gives no path: a variable has no value, or one that leads out of the volume.
    SubPathExpr {
        /// Which mount, by its place in `volumeMounts`.
        mount: usize,
    },
    /// `workingDir` is not a directory.
    WorkingDir,
    /// It refers to a ConfigMap, Secret, key or volume that does not exist.
    BadReference,
    /// The image cannot be run: it has no program, or it has a file where a container needs a directory.
    UnusableImage,
    /// The container requires something that this machine or its runtime does not have. The message says
    /// what.
    Unsupported,
}

/// Why a probe attempt failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProbeCause {
    /// Nothing listens on the port.
    Refused,
    /// The attempt timed out.
    TimedOut,
    /// The connection failed for another reason, or broke.
    NoConnection,
    /// The answer does not mean success.
    BadAnswer,
    /// The command exited with a code other than 0.
    ExitCode,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page that documents every cause, with the names that the trace uses.
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
            Cause::Start(S::OtherUser),
            Cause::Start(S::MountPoint { mount: 0 }),
            Cause::Start(S::SubPathExpr { mount: 0 }),
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
            Cause::Pull(P::Damaged),
            Cause::Sandbox(B::HostPortInUse { port }),
            Cause::Sandbox(B::NoSuchHostIp { port }),
            Cause::Sandbox(B::HostPortFailed { port }),
            Cause::Start(S::SubPath { mount: 0 }),
            Cause::Sandbox(B::HostPathMissing { volume }),
            Cause::Sandbox(B::VolumeFailed { volume }),
        ];
        for (causes, outlook, word) in
            [(&hopeless[..], Outlook::Permanent, "ends"), (&may_heal, Outlook::MayRecover, "tried again")]
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
