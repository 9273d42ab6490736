//! A converted Job counts the same restarts of sidecars, although the defaults of the dialects differ.

use outrigger_lifecycle::convert::Target;
use outrigger_lifecycle::{FeatureGates, Severity};
use outrigger_manifest::convert::{Converted, convert};
use outrigger_manifest::{ReadOptions, SourceFile, check, read};

const KEP: &str = "  - {name: side, image: i, lifecycle: {type: Sidecar}}\n";
const MARKED: &str =
    "  - {name: side, image: i, env: [{name: KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT, value: 'true'}]}\n";
const NATIVE: &str = "  initContainers:\n  - {name: side, image: i, restartPolicy: Always}\n";

fn spec(policy: &str, inits: &str, sidecar: &str) -> String {
    format!("spec:\n  restartPolicy: {policy}\n{inits}  containers:\n  - {{name: main, image: i}}\n{sidecar}")
}

fn pod(spec: &str) -> String {
    format!("apiVersion: v1\nkind: Pod\nmetadata:\n  name: p\n{spec}")
}

fn job(spec: &str) -> String {
    let spec = spec.trim_end().replace('\n', "\n    ");
    format!(
        "apiVersion: batch/v1\nkind: Job\nmetadata:\n  name: j\nspec:\n  backoffLimit: 1\n  template:\n    {spec}\n"
    )
}

fn converted(text: &str, target: Target) -> Converted {
    let (options, features) = (ReadOptions::default(), FeatureGates::default());
    let manifest = read(&[SourceFile::new("j", text)], &options).unwrap_or_else(|e| panic!("{e}\n{text}"));
    convert(text, &check(&manifest, &features), target, &options, &features).unwrap()
}

/// The losses that are about restarts.
fn lost(converted: &Converted) -> Vec<String> {
    let losses = converted.losses(Severity::Error).into_iter().map(|d| d.message);
    losses.filter(|text| text.contains("backoffLimit")).collect()
}

#[test]
fn the_annotation_is_written_where_a_default_would_change_what_counts() {
    let kep = spec("OnFailure", "", KEP);
    let native = spec("OnFailure", NATIVE, "");
    let marked = spec("OnFailure", "", MARKED);
    for (what, text, target, expected) in [
        ("KEP", job(&kep), Target::Native, Some("Ignore")),
        ("KEP", job(&kep), Target::DependsOn, None),
        ("KEP", job(&kep), Target::Kep, None),
        ("native", job(&native), Target::Kep, Some("Count")),
        ("native", job(&native), Target::DependsOn, Some("Count")),
        ("native", job(&native), Target::Native, None),
        ("terminator", job(&marked), Target::Native, Some("Ignore")),
        ("terminator", job(&marked), Target::DependsOn, None),
        // Only Jobs count restarts, and only with OnFailure.
        ("KEP, Never", job(&spec("Never", "", KEP)), Target::Native, None),
        ("KEP in a Pod", pod(&kep), Target::Native, None),
    ] {
        let converted = converted(&text, target);
        let line = converted.text.lines().find(|l| l.contains("outrigger.dev/sidecar-restarts"));
        let value = line.and_then(|l| l.split_once("restarts: ")).map(|(_, value)| value.trim());
        assert_eq!(value, expected, "{what} to {target:?}\n{}", converted.text);
        assert_eq!(lost(&converted), [""; 0], "{what} to {target:?}");
    }
}

#[test]
fn what_one_annotation_cannot_say_is_lost() {
    let both = job(&spec("OnFailure", &NATIVE.replace("side", "proxy"), KEP));
    let native = converted(&both, Target::Native);
    assert_eq!(lost(&native), ["restarts of `side` now count against the Job's backoffLimit"]);
    assert!(!native.text.contains("sidecar-restarts"), "{}", native.text);
}

/// A marked sidecar that is restarted on failure never counts, so converting it to a native sidecar loses
/// nothing.
#[test]
fn a_marked_sidecar_that_is_retried_can_become_native() {
    for policy in ["Never", "OnFailure"] {
        let native = converted(&job(&spec(policy, "", MARKED)), Target::Native);
        let losses = native.losses(Severity::Error);
        assert!(losses.is_empty(), "{policy}: {losses:?}");
    }
}
