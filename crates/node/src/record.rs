//! What a node is given to run.

use std::collections::BTreeMap;
use std::path::PathBuf;

use outrigger_agent::event::PodResult;
use outrigger_agent::options::PodOptions;
use outrigger_lifecycle::Phase;
use outrigger_manifest::compare::ObjectKey;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::outcome::exit_code;
use crate::work::Work;

/// What a node is given to run: the text of manifests, and how they are read and run. The text is what is kept: whoever
/// goes on with the run reads it again, and gets the same pods with the same names.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RunRecord {
    /// What the manifests are called, for people.
    pub files: Vec<String>,
    /// Name and text of each manifest.
    pub sources: Vec<(String, String)>,
    /// How they are read; the reader's own.
    pub reading: Value,
    /// How their pods are run.
    pub pods: PodOptions,
    /// How often an object of this name was replaced or removed before, by its id.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub generations: BTreeMap<String, u32>,
    /// What was replaced or removed and may not be gone yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub retired: Vec<Retired>,
    /// The file of the manifest directory it came from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifest: Option<PathBuf>,
    /// Where the status of the run's pods is kept for others, as of now. Absolute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<PathBuf>,
}

/// An object that is no longer in the manifests of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Retired {
    /// Its key, see [`RunRecord::key`].
    pub(crate) key: String,
    /// Name and text of the manifests it was in.
    pub(crate) sources: Vec<(String, String)>,
    /// How they were read.
    pub(crate) reading: Value,
}

impl Retired {
    /// The id of the object.
    pub(crate) fn object(&self) -> &str {
        self.key.split_once('#').map_or(&self.key, |(object, _)| object)
    }
}

impl RunRecord {
    /// What tells an object from others that had its name before.
    pub(crate) fn key(&self, object: &ObjectKey) -> String {
        let id = object.id();
        match self.generations.get(&id) {
            Some(generation) => format!("{id}#{generation}"),
            None => id,
        }
    }

    /// The keys of all objects, by their ids.
    pub(crate) fn keys(&self, work: &Work) -> BTreeMap<String, String> {
        work.workloads.iter().map(ObjectKey::of).map(|object| (object.id(), self.key(&object))).collect()
    }

    /// The record as it was when a retired object was in it.
    pub(crate) fn before(&self, retired: &Retired) -> RunRecord {
        let (sources, reading) = (retired.sources.clone(), retired.reading.clone());
        RunRecord { sources, reading, ..self.clone() }
    }
}

/// How a run of a node ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RunEnd {
    /// What `run --wait` exits with.
    pub(crate) exit_code: u8,
    /// When, in milliseconds since 1970.
    pub(crate) at_ms: u64,
}

impl RunEnd {
    pub(crate) fn new(results: &[PodResult], at_ms: u64) -> Self {
        RunEnd { exit_code: exit_code(results), at_ms }
    }

    /// Something could not be run at all.
    pub(crate) fn broken(at_ms: u64) -> Self {
        let failed = PodResult { phase: Phase::Failed, failed: None };
        RunEnd::new(&[failed], at_ms)
    }
}
