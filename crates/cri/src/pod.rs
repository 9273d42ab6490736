//! The data of this process about one of its sandboxes.

use std::path::PathBuf;
use std::sync::Mutex;

use super::lock;
use super::wire::PodSandboxConfig;

/// A sandbox of this process.
pub(super) struct Pod {
    /// Its configuration, which every container in it needs again.
    pub(super) config: PodSandboxConfig,
    /// The runtime's id.
    pub(super) id: String,
    pub(super) dir: PathBuf,
    /// The runtime's ids of everything that was created for it, including what no longer exists.
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

    /// Takes the ids of everything that was recorded.
    pub(super) fn take_made(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.made))
    }
}
