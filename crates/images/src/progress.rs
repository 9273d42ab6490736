//! Reports the progress of a pull.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use outrigger_runtime::{ProgressSink, PullProgress};

/// The number of bytes between two reports. This is often enough for a smooth display, and costs little.
const STEP_BYTES: u64 = 256 << 10;

/// Counts the bytes of one pull, for all callers that wait for it.
pub(super) struct Progress {
    reference: String,
    sinks: Mutex<Vec<ProgressSink>>,
    done: AtomicU64,
    /// The total size; 0 while it is unknown.
    total: AtomicU64,
}

impl Progress {
    pub(super) fn new(reference: String) -> Self {
        Progress { reference, sinks: Mutex::default(), done: AtomicU64::new(0), total: AtomicU64::new(0) }
    }

    /// Adds a listener.
    pub(super) fn listen(&self, sink: ProgressSink) {
        self.sinks.lock().unwrap_or_else(PoisonError::into_inner).push(sink);
    }

    /// Sets the total and reports that the pull begins.
    pub(super) fn start(&self, total: u64) {
        self.total.store(total, Ordering::Relaxed);
        self.report(0);
    }

    /// Counts downloaded bytes.
    pub(super) fn add(&self, bytes: u64) {
        let before = self.done.fetch_add(bytes, Ordering::Relaxed);
        let done = before + bytes;
        if before / STEP_BYTES != done / STEP_BYTES || done == self.total.load(Ordering::Relaxed) {
            self.report(done);
        }
    }

    /// Subtracts bytes that must be downloaded again.
    pub(super) fn take_back(&self, bytes: u64) {
        self.done.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn report(&self, done_bytes: u64) {
        let total = self.total.load(Ordering::Relaxed);
        let sinks = self.sinks.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for sink in sinks {
            sink(PullProgress {
                reference: self.reference.clone(),
                done_bytes,
                total_bytes: (total > 0).then_some(total),
            });
        }
    }
}
