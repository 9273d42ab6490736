//! Tests pods from `kubectl get pod -o yaml`.

use std::process::Command;

use serde_json::Value;

use crate::run::{Bench, Run, Test};

pub(crate) const ALL: &[(&str, Test)] =
    &[("a_pod_taken_from_a_cluster_runs", a_pod_taken_from_a_cluster_runs)];

fn a_pod_taken_from_a_cluster_runs(bench: &Bench, name: &str) {
    let text = include_str!("dumped.yaml").replace("IMAGE", &bench.image);
    let dir = bench.work.join(name);
    std::fs::create_dir_all(&dir).expect("a directory");
    let file = dir.join("dumped.yaml");
    std::fs::write(&file, text).expect("write the manifest");
    let status = dir.join("status.json");
    let run = Command::new(&bench.binary)
        .args(["run", "--network", "none", "--output", "plain", "--state-dir"])
        .arg(bench.work.join("state"))
        .arg("--status")
        .arg(&status)
        .arg(&file)
        .output()
        .expect("run it");
    let (out, err) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert_eq!(run.status.code(), Some(0), "{out}{err}");
    for line in ["web | files: namespace", "web | namespace: shop", "web | node: worker-3"] {
        assert!(out.contains(line), "{line}\n{out}{err}");
    }
    // Only one thing differs from the cluster, so there is only one warning.
    assert_eq!(err.matches("warning[").count(), 1, "{err}");
    assert!(err.contains("there will be no `token`: there is no cluster to issue a token"), "{err}");
    let pod: Value = serde_json::from_str(&std::fs::read_to_string(status).expect("a status")).expect("JSON");
    assert_eq!(pod["status"]["phase"], "Succeeded");
    assert_eq!(
        pod["status"]["containerStatuses"].as_array().map(Vec::len),
        Some(1),
        "the old status is gone: {pod}"
    );
    assert_eq!(pod["metadata"]["uid"], "5f0c2a34-1b2c-4d5e-8f90-a1b2c3d4e5f6");

    // The same pod as an item of a List, as in `kubectl get pods -o json`.
    let list = crate::list(&[pod]);
    let mut run = Run::start(bench, &format!("{name}-list"), &list, &[]);
    assert_eq!(run.end(), 0, "what --status wrote can be run again\n{}", run.account());
}
