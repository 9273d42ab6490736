//! Maps runtime errors to causes used by the engine, the trace and hints.

use std::io;

use outrigger_lifecycle::{PullCause, SandboxCause, StartCause};
use outrigger_runtime::{ImageError, PullError, RuntimeError, UserFault};

/// Why an image cannot be pulled; `None` if only the error text is known.
pub(crate) fn of_pull(error: &ImageError) -> Option<PullCause> {
    match error {
        ImageError::InvalidName { .. } => Some(PullCause::InvalidName),
        ImageError::NeverPull { .. } => Some(PullCause::NeverPull),
        ImageError::Pull { source, .. } => match source {
            PullError::NotFound(_) => Some(PullCause::NotFound),
            PullError::Unauthorized(_) => Some(PullCause::Unauthorized),
            PullError::Unreachable(_) => Some(PullCause::Unreachable),
            PullError::NotOnDisk(_) => Some(PullCause::NotOnDisk),
            PullError::NoSpace(_) => Some(PullCause::NoSpace),
            PullError::Other(_) => None,
        },
    }
}

/// Why a sandbox cannot be created; `None` if only the error text is known.
pub(crate) fn of_sandbox(error: &RuntimeError) -> Option<SandboxCause> {
    match error {
        RuntimeError::HostPort { port, source, .. } => {
            let port = *port;
            Some(match source.kind() {
                io::ErrorKind::AddrInUse => SandboxCause::HostPortInUse { port },
                io::ErrorKind::PermissionDenied => SandboxCause::HostPortDenied { port },
                _ => SandboxCause::HostPortFailed { port },
            })
        }
        RuntimeError::Config(_)
        | RuntimeError::User { .. }
        | RuntimeError::Create(_)
        | RuntimeError::Start(_)
        | RuntimeError::NotFound { .. }
        | RuntimeError::Other(_) => None,
    }
}

/// Why a container cannot be started; `None` if only the error text is known.
pub(crate) fn of_start(error: &RuntimeError) -> Option<StartCause> {
    match error {
        RuntimeError::User { cause: UserFault::RootForbidden, .. } => Some(StartCause::RootForbidden),
        RuntimeError::User { cause: UserFault::NoSuchId | UserFault::NoSuchName, .. } => {
            Some(StartCause::NoSuchId)
        }
        RuntimeError::Config(_)
        | RuntimeError::Create(_)
        | RuntimeError::HostPort { .. }
        | RuntimeError::Start(_)
        | RuntimeError::NotFound { .. }
        | RuntimeError::Other(_) => None,
    }
}

/// Why a pod's sandbox, or its volumes and files, could not be created.
#[derive(Debug)]
pub struct SandboxFailure {
    /// Human-readable message.
    pub message: String,
    /// Machine-readable cause, if known.
    pub cause: Option<SandboxCause>,
}

impl From<RuntimeError> for SandboxFailure {
    fn from(error: RuntimeError) -> Self {
        SandboxFailure { message: error.to_string(), cause: of_sandbox(&error) }
    }
}

impl From<String> for SandboxFailure {
    fn from(message: String) -> Self {
        SandboxFailure { message, cause: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_that_cannot_be_opened_say_which_and_why() {
        let cause = |kind: io::ErrorKind| {
            of_sandbox(&RuntimeError::HostPort { port: 80, detail: "d".to_owned(), source: kind.into() })
        };
        assert_eq!(cause(io::ErrorKind::AddrInUse), Some(SandboxCause::HostPortInUse { port: 80 }));
        assert_eq!(cause(io::ErrorKind::PermissionDenied), Some(SandboxCause::HostPortDenied { port: 80 }));
        assert_eq!(cause(io::ErrorKind::TimedOut), Some(SandboxCause::HostPortFailed { port: 80 }));
        assert_eq!(of_sandbox(&RuntimeError::Create("host port 80".to_owned())), None);
    }
}
