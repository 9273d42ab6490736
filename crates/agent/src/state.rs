//! The current state of a pod, and the requests that can be made to it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::event::Snapshot;

/// The current state of a pod.
#[derive(Debug, Clone, Default)]
pub struct PodState {
    /// The pod's observation and why its containers wait; `None` before the worker's first step.
    pub snapshot: Option<Snapshot>,
    /// The pod has ended and nothing of it is running.
    pub over: bool,
}

/// The latest state of a pod, written by its worker.
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
        // The value is only replaced as a whole, so it is valid even after a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a pod is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopRequest {
    /// Its deletion was requested.
    Delete {
        /// The grace period; `None` means the pod's own.
        grace_ms: Option<u64>,
    },
    /// The machine is shutting down.
    NodeShutdown {
        /// The grace period.
        grace_ms: u64,
    },
}
