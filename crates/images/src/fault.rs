//! Why an image could not be made available, with messages for users.

use std::fmt::Display;
use std::io;
use std::path::Path;

use outrigger_runtime::PullCause;

/// A failure on the way to an image. The kinds matter to the code that tries again or elsewhere; people see the text.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum Fault {
    /// A retry will not help.
    #[error("{0}")]
    Final(String),
    /// Temporary: a reset connection, a busy server.
    #[error("{0}")]
    Transient(String),
    /// Nothing answers there, or not with this protocol: another endpoint may.
    #[error("{0}")]
    Unreachable(String),
    /// No answer came; one may the next time.
    #[error("{0}")]
    NoAnswer(String),
    /// The registry wants other credentials.
    #[error("{0}")]
    Unauthorized(String),
    /// The registry does not have it.
    #[error("{0}")]
    NotFound(String),
    /// The disk is full.
    #[error("{0}")]
    NoSpace(String),
}

impl Fault {
    /// A permanent failure.
    pub(super) fn new(text: impl Into<String>) -> Self {
        Fault::Final(text.into())
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

    /// Whether the same may succeed a moment later.
    pub(super) fn may_pass(&self) -> bool {
        match self {
            Fault::Transient(_) | Fault::NoAnswer(_) => true,
            Fault::Final(_)
            | Fault::Unreachable(_)
            | Fault::Unauthorized(_)
            | Fault::NotFound(_)
            | Fault::NoSpace(_) => false,
        }
    }

    /// The cause that users see. What is wrong with an image that is not from a registry is wrong at its path.
    pub(super) fn cause(&self, is_remote: bool) -> Option<PullCause> {
        match self {
            Fault::NoSpace(_) => Some(PullCause::NoSpace),
            _ if !is_remote => Some(PullCause::NotOnDisk),
            Fault::NotFound(_) => Some(PullCause::NotFound),
            Fault::Unauthorized(_) => Some(PullCause::Unauthorized),
            Fault::Unreachable(_) | Fault::NoAnswer(_) => Some(PullCause::Unreachable),
            Fault::Final(_) | Fault::Transient(_) => None,
        }
    }
}

/// The most characters of a registry's own words in a message.
const SAID_MAX: usize = 200;

/// What a registry says, on one line and cut: it does not decide how long our messages are.
pub(super) fn said(text: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match text.char_indices().nth(SAID_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

/// Adds the operation and its path to file system errors.
pub(super) trait Doing<T> {
    /// `read`, `write` … and the path.
    fn failed_to(self, verb: &str, path: &Path) -> Result<T, Fault>;
}

impl<T> Doing<T> for io::Result<T> {
    fn failed_to(self, verb: &str, path: &Path) -> Result<T, Fault> {
        self.map_err(|error| Fault::io(format_args!("cannot {verb} {}", path.display()), &error))
    }
}

impl<T> Doing<T> for rustix::io::Result<T> {
    fn failed_to(self, verb: &str, path: &Path) -> Result<T, Fault> {
        self.map_err(io::Error::from).failed_to(verb, path)
    }
}
