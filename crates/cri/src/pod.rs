//! What this process knows about one of its sandboxes.

use std::path::PathBuf;
use std::sync::Mutex;

use super::lock;
use super::wire::PodSandboxConfig;

/// A sandbox of this process.
pub(super) struct Pod {
    /// Its configuration; needed again for every container in it.
    pub(super) config: PodSandboxConfig,
    /// The runtime's id.
    pub(super) id: String,
    pub(super) dir: PathBuf,
    /// The runtime's ids of everything that was created for it, gone or not.
    made: Mutex<Vec<String>>,
}

impl Pod {
    pub(super) fn new(config: PodSandboxConfig, id: String, dir: PathBuf) -> Self {
        Pod { config, id, dir, made: Mutex::default() }
    }

    /// Records an object that was created for the pod.
    pub(super) fn note(&self, id: &str) {
        lock(&self.made).push(id.to_owned());
    }

    /// The ids of everything that was recorded.
    pub(super) fn take_made(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.made))
    }
}
