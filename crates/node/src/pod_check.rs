//! The result of checking a pod before anything is started.

use outrigger_agent::{PodError, SandboxError};

/// Why a pod of a manifest cannot be run at all.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// The pod is invalid.
    #[error(transparent)]
    Pod(#[from] PodError),
    /// Its sandbox cannot be created on this machine.
    #[error("{explained}")]
    Sandbox {
        /// What failed, with the line of the manifest and how to fix it.
        explained: String,
        /// The error. It is not a `source`, because the explanation contains it.
        error: Box<SandboxError>,
    },
}

impl CheckError {
    /// Whether the manifest or the machine must be changed. Otherwise, an unexpected error occurred.
    pub(crate) fn is_refusal(&self) -> bool {
        match self {
            CheckError::Pod(_) => false,
            CheckError::Sandbox { error, .. } => error.cause().is_some(),
        }
    }
}
