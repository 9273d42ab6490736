//! Creates a test for every case.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use libtest_mimic::{Failed, Trial};

use crate::conformance::case::{self, Kubelet};
use crate::conformance::run::{self, Bench};

/// All cases, to be run on a bench.
pub fn all(bench: &Arc<Bench>) -> Vec<Trial> {
    let mut trials = Vec::new();
    for folder in ["cases", "e2e", "dialects"] {
        for path in yaml_files(&top().join(folder)) {
            let name = format!("{folder}::{}", path.file_stem().expect("a name").to_string_lossy());
            let bench = Arc::clone(bench);
            trials.push(Trial::test(name, move || {
                let case = case::read(&path).map_err(failed)?;
                let wanted = if folder == "cases" { Kubelet::Held } else { Kubelet::NotRun };
                if case.kubelet != wanted {
                    return Err(Failed::from(format!("a case in {folder} must say `kubelet: {wanted}`")));
                }
                run::case(&bench, &case, &|_, _| Vec::new()).map_err(failed)
            }));
        }
    }
    assert!(!trials.is_empty(), "no cases found below {}", top().display());
    trials
}

/// An error with its causes, on one line.
pub fn failed(error: anyhow::Error) -> Failed {
    Failed::from(format!("{error:#}"))
}

/// The directory of the cases.
pub fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/conformance")
}

fn yaml_files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut files: Vec<PathBuf> = entries.filter_map(|e| Some(e.ok()?.path())).collect();
    files.retain(|p| p.extension().is_some_and(|e| e == "yaml"));
    files.sort();
    files
}
