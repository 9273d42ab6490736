//! Every pod of the conformance suite runs on a real kubelet, so neither the pod nor its plan may be refused.
#![allow(clippy::disallowed_methods, reason = "the cases are files")]

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::Pod;
use outrigger_lifecycle::{FeatureGates, Finding, PodInput, Severity, plan, validate, validate_plan};
use outrigger_manifest::{ReadOptions, SourceFile, apply_defaults, parse};
use serde_json::{Value, json};

fn cases() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/conformance/cases");
    let mut files: Vec<PathBuf> = std::fs::read_dir(&folder)
        .unwrap_or_else(|e| panic!("{}: {e}", folder.display()))
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "yaml"))
        .collect();
    files.sort();
    files
}

/// The pod of a case. Its shorthands are expanded: `sh` is a shell command, `@port` a port.
fn pod(path: &Path) -> Pod {
    let name = path.file_stem().unwrap().to_string_lossy().into_owned();
    let text = std::fs::read_to_string(path).unwrap().replace("'@port'", "8080").replace("@port", "8080");
    let source = SourceFile::new(name.clone(), text);
    let documents = parse(0, &source, &ReadOptions::default()).unwrap_or_else(|e| panic!("{name}: {e:?}"));
    let mut pod = documents[0].root.get("pod").expect("a pod").to_json();
    expand(&mut pod, false);
    pod["metadata"]["name"] = json!(name);
    let mut pod: Pod = serde_json::from_value(pod).unwrap_or_else(|e| panic!("{name}: {e}"));
    let spec = pod.spec.as_mut().expect("a spec");
    for c in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
        c.image.get_or_insert_with(|| "busybox:1.36".to_owned());
    }
    apply_defaults(&mut pod);
    pod
}

/// Replaces `sh: SCRIPT` by a command in a container, and by an exec action in a probe or hook.
fn expand(value: &mut Value, is_container: bool) {
    match value {
        Value::Object(map) => {
            if let Some(script) = map.remove("sh") {
                let command = json!(["/bin/sh", "-c", script]);
                match is_container {
                    true => map.insert("command".to_owned(), command),
                    false => map.insert("exec".to_owned(), json!({ "command": command })),
                };
            }
            for (key, value) in map.iter_mut() {
                match (key.as_str(), value) {
                    ("containers" | "initContainers", Value::Array(list)) => {
                        list.iter_mut().for_each(|c| expand(c, true));
                    }
                    (_, value) => expand(value, false),
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(|v| expand(v, false)),
        _ => {}
    }
}

fn errors(findings: &[Finding]) -> Vec<String> {
    let errors = findings.iter().filter(|f| f.severity == Severity::Error);
    errors.map(|f| format!("{} {}: {}", f.code, f.path, f.message)).collect()
}

#[test]
fn no_conformance_pod_is_refused() {
    let gates = FeatureGates::default();
    let mut refused = Vec::new();
    let cases = cases();
    assert!(cases.len() > 80, "only {} cases found", cases.len());
    for case in &cases {
        let input = PodInput { pod: pod(case), ..PodInput::default() };
        let mut found = errors(&validate(&input, &gates));
        match plan(&input, &gates) {
            Ok(planned) => found.extend(errors(&validate_plan(&input, &planned.plan))),
            Err(findings) => found.extend(errors(&findings)),
        }
        refused.extend(found.into_iter().map(|f| format!("{}: {f}", case.display())));
    }
    assert!(refused.is_empty(), "{refused:#?}");
}
