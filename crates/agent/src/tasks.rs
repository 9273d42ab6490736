//! Tasks that end with what they serve.

use std::future::Future;

use tokio::task::AbortHandle;
use tracing::Instrument as _;

/// A task that is aborted when this is dropped.
#[derive(Debug)]
pub struct Task(AbortHandle);

impl Task {
    /// Starts a task. What it logs is in the span this is called in.
    pub fn spawn<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> Self {
        Task(tokio::spawn(work.in_current_span()).abort_handle())
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}
