//! Pods that a run publishes (`--status`) mean the same as the manifest that they were read from.
#![allow(clippy::disallowed_methods, reason = "the manifests are files")]

use std::fs;
use std::path::{Path, PathBuf};

use outrigger_lifecycle::{FeatureGates, FieldPath, PodInput, plan};
use outrigger_manifest::{PodManifest, ReadOptions, SourceFile, apply_defaults, read, to_value};
use outrigger_simulate::{Rng, random};

/// Publishes a pod and reads it again.
fn again(input: &PodInput) -> PodManifest {
    let value = to_value(&input.pod, &FieldPath::root(), &input.lifecycle_types).unwrap();
    let text = value.to_string();
    let source = SourceFile::new("published.json", text.as_str());
    let mut manifest = read(&[source], &ReadOptions::default()).unwrap_or_else(|e| panic!("{e}\n{text}"));
    assert_eq!(manifest.pods.len(), 1);
    manifest.pods.remove(0)
}

fn same(input: &PodInput, what: &str) {
    let read = again(input);
    assert_eq!(read.input.lifecycle_types, input.lifecycle_types, "{what}");
    assert_eq!(read.input.pod, input.pod, "{what}");
    let features = FeatureGates::default();
    let plans = [&read.input, input].map(|i| plan(i, &features).ok().map(|p| p.plan));
    assert_eq!(plans[0], plans[1], "{what}");
}

#[test]
fn random_pods_of_every_dialect_come_back_as_they_were() {
    for seed in 0..500 {
        let mut input = random::pod(&mut Rng::new(seed)).0;
        input.pod.metadata.namespace = Some("default".into());
        input.pod.metadata.uid = Some("5f0c2a34-1b2c-4d5e-8f90-a1b2c3d4e5f6".into());
        // A container with a `lifecycle.type` always has a `lifecycle`.
        let containers = &mut input.pod.spec.as_mut().unwrap().containers;
        for place in input.lifecycle_types.keys() {
            containers[place.index].lifecycle.get_or_insert_default();
        }
        apply_defaults(&mut input.pod);
        same(&input, &format!("seed {seed}"));
    }
}

#[test]
fn every_manifest_of_the_tests_and_examples_comes_back_as_it_was() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let dirs = ["examples", "crates/outrigger/tests/cli/pods"];
    let mut pods = 0;
    let mut typed = 0;
    for file in dirs.iter().flat_map(|dir| manifests(&root.join(dir))) {
        let text = fs::read_to_string(&file).unwrap();
        let source = SourceFile::new(file.display().to_string(), text);
        let manifest = read(&[source], &ReadOptions::default()).unwrap_or_else(|e| panic!("{e}"));
        for pod in &manifest.pods {
            same(&pod.input, &format!("{} of {}", pod.name(), file.display()));
            pods += 1;
            typed += usize::from(!pod.input.lifecycle_types.is_empty());
        }
    }
    assert!(pods > 10 && typed > 1, "{pods} pods, {typed} with `lifecycle.type`");
}

fn manifests(dir: &Path) -> Vec<PathBuf> {
    let mut out = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            out.extend(manifests(&path));
        } else if path.extension().is_some_and(|e| e == "yaml" || e == "json") {
            out.push(path);
        }
    }
    out.sort();
    out
}
