//! Failures of a step inside a shim or a container's first process, in a form that can be sent to the agent.

use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::sys::errno_text;
use outrigger_runtime::{RuntimeError, UserFault};

/// The kind of [`RuntimeError`] that a fault becomes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FaultKind {
    /// This machine does not have what the pod requires.
    Config,
    /// The container cannot run as its user.
    User(UserFault),
    /// A volume cannot be mounted at this path.
    MountPoint(PathBuf),
    /// The working directory is not a directory.
    WorkingDir,
    /// The kernel refuses the sysctl with this name.
    Sysctl(String),
    /// The image cannot be run.
    Image,
    /// Creating the container failed.
    Create,
    /// The program could not be exec'd.
    Start,
    /// Anything else.
    Other,
}

/// A failure with its message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Fault {
    pub(crate) kind: FaultKind,
    pub(crate) text: String,
}

/// The maximum length of a message. Names in it come from the image and the manifest. A message that is too
/// long to be sent would look like success.
const TEXT_MAX: usize = 4096;

impl Fault {
    /// Creates a fault. If its message is too long, its beginning and its end are kept, because the end says
    /// what went wrong.
    fn new(kind: FaultKind, text: String) -> Self {
        if text.len() <= TEXT_MAX {
            return Fault { kind, text };
        }
        let (start, end) = text.split_at(text.floor_char_boundary(TEXT_MAX / 2));
        let end = &end[end.ceil_char_boundary(end.len() - TEXT_MAX / 2)..];
        Fault { kind, text: format!("{start}…{end}") }
    }

    pub(crate) fn config(text: impl Into<String>) -> Self {
        Fault::new(FaultKind::Config, text.into())
    }

    pub(crate) fn user(cause: UserFault, text: impl Into<String>) -> Self {
        Fault::new(FaultKind::User(cause), text.into())
    }

    pub(crate) fn mount_point(target: &Path, text: impl Into<String>) -> Self {
        Fault::new(FaultKind::MountPoint(target.to_owned()), text.into())
    }

    pub(crate) fn working_dir(text: impl Into<String>) -> Self {
        Fault::new(FaultKind::WorkingDir, text.into())
    }

    pub(crate) fn sysctl(name: &str, text: impl Into<String>) -> Self {
        Fault::new(FaultKind::Sysctl(name.to_owned()), text.into())
    }

    pub(crate) fn image(text: impl Into<String>) -> Self {
        Fault::new(FaultKind::Image, text.into())
    }

    pub(crate) fn create(text: impl Into<String>) -> Self {
        Fault::new(FaultKind::Create, text.into())
    }

    pub(crate) fn start(text: impl Into<String>) -> Self {
        Fault::new(FaultKind::Start, text.into())
    }

    pub(crate) fn other(text: impl Into<String>) -> Self {
        Fault::new(FaultKind::Other, text.into())
    }
}

impl From<Fault> for RuntimeError {
    fn from(fault: Fault) -> Self {
        match fault.kind {
            FaultKind::Config => RuntimeError::Config(fault.text),
            FaultKind::User(cause) => RuntimeError::User { cause, detail: fault.text },
            FaultKind::MountPoint(target) => RuntimeError::MountPoint { target, detail: fault.text },
            FaultKind::WorkingDir => RuntimeError::WorkingDir(fault.text),
            FaultKind::Sysctl(name) => RuntimeError::Sysctl { name, detail: fault.text },
            FaultKind::Image => RuntimeError::Image(fault.text),
            FaultKind::Create => RuntimeError::Create(fault.text),
            FaultKind::Start => RuntimeError::Start(fault.text),
            FaultKind::Other => RuntimeError::Other(fault.text),
        }
    }
}

/// Adds to an error what was being done.
pub(crate) trait Context<T> {
    /// Fails as [`FaultKind::Create`] with `what: cause`.
    fn creating<D: Display>(self, what: impl FnOnce() -> D) -> Result<T, Fault>;
    /// Fails as [`FaultKind::Config`] with `what: cause`.
    fn configuring<D: Display>(self, what: impl FnOnce() -> D) -> Result<T, Fault>;
}

impl<T, E: Into<io::Error>> Context<T> for Result<T, E> {
    fn creating<D: Display>(self, what: impl FnOnce() -> D) -> Result<T, Fault> {
        self.map_err(|error| Fault::create(format!("{}: {}", what(), errno_text(&error.into()))))
    }

    fn configuring<D: Display>(self, what: impl FnOnce() -> D) -> Result<T, Fault> {
        self.map_err(|error| Fault::config(format!("{}: {}", what(), errno_text(&error.into()))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_messages_keep_their_ends() {
        let fault = Fault::start(format!("exec {:?}: no such file", "ü".repeat(100_000)));
        assert!(fault.text.len() <= TEXT_MAX + "…".len(), "{}", fault.text.len());
        assert!(
            fault.text.starts_with("exec \"ü") && fault.text.ends_with("ü\": no such file"),
            "{}",
            fault.text
        );
        assert_eq!(Fault::other("short").text, "short");
    }
}
