//! Why a step of making an image available failed, in words for people.

use std::fmt::Display;
use std::io;
use std::path::Path;

/// A failure on the way to an image. The kinds matter to the code that tries again or elsewhere; people see the text.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum Fault {
    /// Trying again will not help.
    #[error("{0}")]
    Final(String),
    /// May go away by itself: a reset connection, a busy server.
    #[error("{0}")]
    Transient(String),
    /// Nothing answers there, or not in this protocol: another endpoint may.
    #[error("{0}")]
    Unreachable(String),
    /// The registry wants other credentials.
    #[error("{0}")]
    Unauthorized(String),
}

impl Fault {
    /// A failure that stays.
    pub(super) fn new(text: impl Into<String>) -> Self {
        Fault::Final(text.into())
    }

    /// A failure of the file system, `doing` naming the act and its object.
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

/// Adds the act and its object to errors of the file system.
pub(super) trait Doing<T> {
    /// `read`, `write` … and the path it was done to.
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
