//! Tasks that are aborted with their owner.

use std::future::Future;

use tokio::task::AbortHandle;
use tracing::Instrument as _;

/// A task that is aborted when this is dropped.
#[derive(Debug)]
pub struct Task(AbortHandle);

impl Task {
    /// Spawns a task. It logs in the caller's current span.
    pub fn spawn<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> Self {
        Task(tokio::spawn(work.in_current_span()).abort_handle())
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}
