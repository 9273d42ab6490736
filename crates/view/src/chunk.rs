//! Messages to the thread that writes the output of a run.

use std::sync::Arc;

use outrigger_lifecycle::Time;
use tokio::sync::oneshot;

/// Tells the time of a run.
pub type Now = Arc<dyn Fn() -> Time + Send + Sync>;

/// A message to the writing thread.
pub(crate) enum Chunk {
    /// For standard output, and what is dropped when it has been written.
    Out(Vec<u8>, Option<Box<dyn Send>>),
    /// For standard error.
    Err(Vec<u8>),
    /// The view has to be redrawn.
    Changed,
    /// The process was stopped and continued: another one may have used the terminal.
    Continued,
    /// The closing summary, for standard error.
    Close(Vec<u8>, oneshot::Sender<()>),
}
