//! Why an image could not be made available, with messages for users.

use std::fmt::Display;
use std::io;
use std::path::Path;

/// A failure to get an image. The kinds matter to the code that retries or tries another place; users see the
/// text.
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
    /// The registry requires other credentials.
    #[error("{0}")]
    Unauthorized(String),
}

impl Fault {
    /// A permanent failure.
    pub(super) fn new(text: impl Into<String>) -> Self {
        Fault::Final(text.into())
    }

    /// A file system error; `doing` names the operation and its path.
    pub(super) fn io(doing: impl Display, error: &io::Error) -> Self {
        if error.raw_os_error() == Some(rustix::io::Errno::NOSPC.raw_os_error())
            || error.raw_os_error() == Some(rustix::io::Errno::DQUOT.raw_os_error())
        {
            return Fault::Final(format!(
                "{doing}: no space left on device; free some space or choose another --state-dir"
            ));
        }
        Fault::Final(format!("{doing}: {error}"))
    }
}

/// Adds the operation and its path to file system errors.
pub(super) trait Doing<T> {
    /// `read`, `write` … and the path.
    fn doing(self, verb: &str, path: &Path) -> Result<T, Fault>;
}

impl<T> Doing<T> for io::Result<T> {
    fn doing(self, verb: &str, path: &Path) -> Result<T, Fault> {
        self.map_err(|error| Fault::io(format_args!("cannot {verb} {}", path.display()), &error))
    }
}

impl<T> Doing<T> for rustix::io::Result<T> {
    fn doing(self, verb: &str, path: &Path) -> Result<T, Fault> {
        self.map_err(io::Error::from).doing(verb, path)
    }
}
