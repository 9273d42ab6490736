//! Failures of making an image available, with messages for users.

use std::fmt::Display;
use std::io;
use std::path::Path;

use outrigger_runtime::PullCause;

/// Why an image is not available. The kind determines whether to retry or to try another server. Users see
/// only the text.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum Fault {
    /// A retry does not help.
    #[error("{0}")]
    Final(String),
    /// A temporary failure, such as a reset connection or a busy server.
    #[error("{0}")]
    Transient(String),
    /// No server answers at this endpoint, or not with this protocol. Another endpoint may work.
    #[error("{0}")]
    Unreachable(String),
    /// The server did not answer. A retry may help.
    #[error("{0}")]
    NoAnswer(String),
    /// The registry requires other credentials.
    #[error("{0}")]
    Unauthorized(String),
    /// The registry does not have the image.
    #[error("{0}")]
    NotFound(String),
    /// The disk is full.
    #[error("{0}")]
    NoSpace(String),
    /// It is there, and parts of it are missing or are not what its documents say.
    #[error("{0}")]
    Damaged(String),
}

impl Fault {
    /// A permanent failure.
    pub(super) fn new(text: impl Into<String>) -> Self {
        Fault::Final(text.into())
    }

    /// Content that cannot be read as what it should be. Other failures to read it are not the image's.
    pub(super) fn unreadable(what: impl Display, error: &io::Error) -> Self {
        use io::ErrorKind::{InvalidData, InvalidInput, Other, UnexpectedEof};
        match error.kind() {
            // zstd reports damage as `Other`.
            InvalidData | InvalidInput | Other | UnexpectedEof if error.raw_os_error().is_none() => {
                Fault::Damaged(format!("{what}: {error}"))
            }
            _ => Fault::io(what, error),
        }
    }

    /// A file system error; `doing` names the operation and its path.
    pub(super) fn io(what: impl Display, error: &io::Error) -> Self {
        if error.raw_os_error() == Some(rustix::io::Errno::NOSPC.raw_os_error())
            || error.raw_os_error() == Some(rustix::io::Errno::DQUOT.raw_os_error())
        {
            return Fault::NoSpace(format!(
                "{what}: no space left on device; free some space or choose another --state-dir"
            ));
        }
        Fault::Final(format!("{what}: {error}"))
    }

    /// Whether a retry may succeed.
    pub(super) fn may_pass(&self) -> bool {
        match self {
            Fault::Transient(_) | Fault::NoAnswer(_) => true,
            Fault::Final(_)
            | Fault::Unreachable(_)
            | Fault::Unauthorized(_)
            | Fault::NotFound(_)
            | Fault::NoSpace(_)
            | Fault::Damaged(_) => false,
        }
    }

    /// The cause that users see. A failure of an image that is not from a registry is a problem at its path.
    pub(super) fn cause(&self, is_remote: bool) -> Option<PullCause> {
        match self {
            Fault::NoSpace(_) => Some(PullCause::NoSpace),
            Fault::Damaged(_) => Some(PullCause::Damaged),
            _ if !is_remote => Some(PullCause::NotOnDisk),
            Fault::NotFound(_) => Some(PullCause::NotFound),
            Fault::Unauthorized(_) => Some(PullCause::Unauthorized),
            Fault::Unreachable(_) | Fault::NoAnswer(_) => Some(PullCause::Unreachable),
            Fault::Final(_) | Fault::Transient(_) => None,
        }
    }
}

/// The most characters of a registry's own text in a message.
const SAID_MAX: usize = 200;

/// The text of a registry, on one line and shortened. A registry must not decide how long our messages are.
pub(super) fn said(text: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match text.char_indices().nth(SAID_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

/// Adds the operation and its path to file system errors.
pub(super) trait FailedTo<T> {
    /// Adds a verb, such as `read` or `write`, and the path.
    fn failed_to(self, verb: &str, path: &Path) -> Result<T, Fault>;
}

impl<T> FailedTo<T> for io::Result<T> {
    fn failed_to(self, verb: &str, path: &Path) -> Result<T, Fault> {
        self.map_err(|error| Fault::io(format_args!("cannot {verb} {}", path.display()), &error))
    }
}

impl<T> FailedTo<T> for rustix::io::Result<T> {
    fn failed_to(self, verb: &str, path: &Path) -> Result<T, Fault> {
        self.map_err(io::Error::from).failed_to(verb, path)
    }
}
