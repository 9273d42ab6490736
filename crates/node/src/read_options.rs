//! Options for reading the manifests of a run.

use outrigger_lifecycle::FeatureGates;
use outrigger_manifest::Validate;
use serde::{Deserialize, Serialize};

/// Options for reading the manifests of a run. A node saves them with the run, so that the manifests always
/// result in the same pods.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunReadOptions {
    /// How to treat unknown and repeated fields.
    pub validate: Validate,
    /// The feature gates.
    pub features: FeatureGates,
    /// The namespace of objects that do not set one.
    pub namespace: String,
    /// List every object that is not run, not only the number of each kind.
    pub list_skipped: bool,
    /// The number of pods of a Deployment, ReplicaSet, StatefulSet or DaemonSet; overrides the manifest.
    pub replicas: Option<u32>,
    /// Refuse pods that the Pod Security Standard `restricted` does not allow.
    pub restricted: bool,
}

impl Default for RunReadOptions {
    fn default() -> Self {
        RunReadOptions {
            validate: Validate::Strict,
            features: FeatureGates::default(),
            namespace: "default".to_owned(),
            list_skipped: false,
            replicas: None,
            restricted: false,
        }
    }
}

impl RunReadOptions {
    /// The options that concern only the text.
    pub fn manifest_options(&self) -> outrigger_manifest::ReadOptions {
        outrigger_manifest::ReadOptions {
            validate: self.validate,
            namespace: Some(self.namespace.clone()),
            replicas: self.replicas,
            list_skipped: self.list_skipped,
            ..outrigger_manifest::ReadOptions::default()
        }
    }
}
