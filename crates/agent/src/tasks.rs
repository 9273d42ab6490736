//! Tasks that end with what they serve.

use std::future::Future;

use tokio::task::AbortHandle;

/// A task that is aborted when this is dropped.
#[derive(Debug)]
pub(crate) struct Task(AbortHandle);

impl Task {
    /// Starts a task.
    pub(crate) fn spawn<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> Self {
        Task(tokio::spawn(work).abort_handle())
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}
