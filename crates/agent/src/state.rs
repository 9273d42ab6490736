//! What is known of a pod, for those who ask, and what it can be asked to do.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::event::Snapshot;

/// What is known of a pod.
#[derive(Debug, Clone, Default)]
pub struct PodState {
    /// Its observation and why its containers wait; `None` before its worker has looked at it.
    pub snapshot: Option<Snapshot>,
    /// Nothing of it runs any more.
    pub over: bool,
}

/// The latest state of a pod: its worker writes it, whoever asks reads it.
#[derive(Debug, Default)]
pub(crate) struct Latest(Mutex<PodState>);

impl Latest {
    pub(crate) fn new(state: PodState) -> Self {
        Latest(Mutex::new(state))
    }

    pub(crate) fn observe(&self, snapshot: Snapshot) {
        self.lock().snapshot = Some(snapshot);
    }

    pub(crate) fn end(&self) {
        self.lock().over = true;
    }

    pub(crate) fn get(&self) -> PodState {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, PodState> {
        // It is replaced, never half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a pod is told to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopRequest {
    /// Somebody wants it gone.
    Delete {
        /// The grace; `None` is the pod's own.
        grace_ms: Option<u64>,
    },
    /// The machine shuts down.
    NodeShutdown {
        /// The grace.
        grace_ms: u64,
    },
}
