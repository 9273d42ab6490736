//! Messages to the thread that writes the output of a run.

use std::sync::Arc;

use outrigger_lifecycle::Time;
use tokio::sync::oneshot;

/// Returns the current time of a run.
pub type Now = Arc<dyn Fn() -> Time + Send + Sync>;

/// A message to the writing thread.
pub(crate) enum Chunk {
    /// Bytes for standard output, and a value that is dropped after they are written.
    Out(Vec<u8>, Option<Box<dyn Send>>),
    /// Bytes for standard error.
    Err(Vec<u8>),
    /// The view must be redrawn.
    Changed,
    /// The process was stopped and continued. Another process may have used the terminal.
    Continued,
    /// The closing summary, for standard error.
    Close(Vec<u8>, oneshot::Sender<()>),
}
