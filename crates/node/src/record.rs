//! The input of a run on a node.

use std::collections::BTreeMap;
use std::path::PathBuf;

use outrigger_agent::event::PodResult;
use outrigger_agent::files::Saved;
use outrigger_agent::options::PodOptions;
use outrigger_lifecycle::Phase;
use outrigger_manifest::SourceFile;
use outrigger_manifest::compare::ObjectKey;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::outcome::exit_code;
use crate::read_options::RunReadOptions;
use crate::work::Work;

/// The input of a run: the text of manifests, and the options to read and run them. The text is saved. A
/// process that resumes the run reads it again and gets the same pods with the same names.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RunRecord {
    /// Names of the manifests, for display.
    pub files: Vec<String>,
    /// Name and text of each manifest.
    pub sources: Vec<(String, String)>,
    /// How they are read.
    pub reading: RunReadOptions,
    /// Options of their pods.
    pub pods: PodOptions,
    /// The seed of generated pod names. It is the id of the run, so that another run of the same manifests
    /// has other names. Empty until a node accepts the run.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub names: String,
    /// How often an object of this name was replaced or removed, by object id.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub generations: BTreeMap<String, u32>,
    /// Objects that were replaced or removed and may still exist.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub retired: Vec<Retired>,
    /// The file of the manifest directory that it came from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifest: Option<PathBuf>,
    /// The status file of the run's pods. Absolute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<PathBuf>,
}

/// An object that was removed from the manifests of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Retired {
    /// Its key, see [`RunRecord::key`].
    pub(crate) key: String,
    /// Name and text of the manifests that it was in.
    pub(crate) sources: Vec<(String, String)>,
    /// How they were read.
    pub(crate) reading: RunReadOptions,
}

impl Retired {
    /// The id of the object.
    pub(crate) fn object(&self) -> &str {
        self.key.split_once('#').map_or(&self.key, |(object, _)| object)
    }
}

impl Saved for RunRecord {
    const VERSION: u32 = 1;
}

impl RunRecord {
    /// A new run of manifests.
    pub fn new(
        files: Vec<String>,
        sources: &[SourceFile],
        reading: RunReadOptions,
        pods: PodOptions,
    ) -> Self {
        RunRecord {
            files,
            sources: sources.iter().map(|s| (s.name.clone(), s.text.to_string())).collect(),
            reading,
            pods,
            names: String::new(),
            generations: BTreeMap::new(),
            retired: Vec::new(),
            manifest: None,
            status: None,
        }
    }

    /// The manifests.
    pub(crate) fn source_files(&self) -> Vec<SourceFile> {
        self.sources.iter().map(|(name, text)| SourceFile::new(name, text.as_str())).collect()
    }

    /// Distinguishes an object from earlier ones of the same name.
    pub(crate) fn key(&self, object: &ObjectKey) -> String {
        let id = object.id();
        match self.generations.get(&id) {
            Some(generation) => format!("{id}#{generation}"),
            None => id,
        }
    }

    /// The seed of the generated names of the object with this key.
    pub(crate) fn instance(names: &str, key: &str) -> String {
        match key.split_once('#') {
            Some((_, generation)) if !names.is_empty() => format!("{names}#{generation}"),
            _ => names.to_owned(),
        }
    }

    /// The keys of all objects, by their ids.
    pub(crate) fn keys(&self, work: &Work) -> BTreeMap<String, String> {
        work.workloads
            .iter()
            .map(ObjectKey::of_workload)
            .map(|object| (object.id(), self.key(&object)))
            .collect()
    }

    /// The record that contained a retired object.
    pub(crate) fn before(&self, retired: &Retired) -> RunRecord {
        let (sources, reading) = (retired.sources.clone(), retired.reading.clone());
        RunRecord { sources, reading, ..self.clone() }
    }
}

/// The state of a run's workloads, by key.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct SavedWorkloads {
    /// The state of each controller.
    pub(crate) workloads: Map<String, Value>,
}

impl Saved for SavedWorkloads {
    const VERSION: u32 = 1;
}

impl Saved for RunEnd {
    const VERSION: u32 = 1;
}

/// The result of a node's run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RunEnd {
    /// The exit code of `run --wait`.
    pub(crate) exit_code: u8,
    /// When it ended, in milliseconds since 1970.
    pub(crate) at_ms: u64,
}

impl RunEnd {
    pub(crate) fn new(results: &[PodResult], at_ms: u64) -> Self {
        RunEnd { exit_code: exit_code(results), at_ms }
    }

    /// The result if something could not be run at all.
    pub(crate) fn broken(at_ms: u64) -> Self {
        let failed = PodResult { phase: Phase::Failed, failed: None };
        RunEnd::new(&[failed], at_ms)
    }
}
