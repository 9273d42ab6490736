//! Compares the Helm chart, rendered by a real Helm, with the output of `outrigger operator install`.
//!
//! Helm is on the PATH, or in target/tools, where `make deps` puts it. If it is missing, these tests are
//! shown as ignored.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use libtest_mimic::Trial;
use serde_json::Value;

use super::cluster::Cluster;

const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/helm/outrigger");
const TOOLS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/tools/bin");

/// The path of Helm, if it is installed.
fn program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain([PathBuf::from(TOOLS)]);
    places.map(|dir| dir.join("helm")).find(|file| file.exists())
}

/// The tests that need no cluster.
pub(crate) fn trials() -> Vec<Trial> {
    let is_missing = program().is_none();
    if is_missing {
        eprintln!("SKIPPED: the tests of the chart need helm, on the PATH or in target/tools/bin");
    }
    let trial = |name: &str, test: fn()| {
        let run = move || {
            test();
            Ok(())
        };
        Trial::test(name, run).with_ignored_flag(is_missing)
    };
    vec![
        trial("the_chart_renders_what_install_prints", the_chart_renders_what_install_prints),
        trial("the_chart_refuses_bad_values", the_chart_refuses_bad_values),
    ]
}

/// Runs Helm. Returns whether it succeeds, and its output.
fn helm(args: &[&str], kubeconfig: &Path) -> (bool, String) {
    let mut command = Command::new(program().expect("helm"));
    let output = command.args(args).env("KUBECONFIG", kubeconfig).output().expect("helm runs");
    let text = if output.status.success() { output.stdout } else { output.stderr };
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

fn template(namespace: &str, values: &[&str]) -> (bool, String) {
    let set: Vec<&str> = values.iter().flat_map(|value| ["--set", value]).collect();
    helm(&[&["template", "outrigger", CHART, "-n", namespace][..], &set].concat(), Path::new("/dev/null"))
}

/// Objects by kind and name. The namespace is left out, because Helm creates it.
fn objects(yaml: &str) -> BTreeMap<String, Value> {
    let all: Vec<Value> = serde_saphyr::from_multiple(yaml).expect("YAML");
    let named = all.into_iter().filter(|object| object["kind"] != "Namespace");
    named.map(|object| (format!("{} {}", object["kind"], object["metadata"]["name"]), object)).collect()
}

fn the_chart_renders_what_install_prints() {
    let socket = "unix:///var/run/crio/crio.sock";
    let with_socket = format!("agent.criEndpoint={socket}");
    let rows: [(&str, &[&str], &[&str]); 9] = [
        ("outrigger-system", &[], &[]),
        ("platform", &["image=registry.example/o:1"], &["--image", "registry.example/o:1"]),
        ("platform", &["failurePolicy=Ignore"], &["--failure-policy", "ignore"]),
        ("platform", &["agent.enabled=false"], &["--without-agent"]),
        // Both paths name the same directory. The one that is mounted is used.
        ("platform", &[&with_socket], &["--cri-endpoint", socket]),
        ("platform", &["anyRequester=true"], &["--any-requester"]),
        ("platform", &["readinessGate=true"], &["--readiness-gate"]),
        ("platform", &["launch=native"], &["--launch", "native"]),
        ("platform", &["logFormat=json"], &["--log-format", "json"]),
    ];
    for (namespace, values, options) in rows {
        let (rendered, chart) = template(namespace, values);
        assert!(rendered, "{values:?}: {chart}");
        let printed = Command::new(env!("CARGO_BIN_EXE_outrigger"))
            .args(["operator", "install", "-o", "yaml", "-n", namespace])
            .args(options)
            .env("KUBECONFIG", "/dev/null")
            .output()
            .expect("outrigger runs");
        let printed = objects(&String::from_utf8_lossy(&printed.stdout));
        assert!(printed.len() > 8, "{options:?}: {printed:?}");
        assert_eq!(objects(&chart), printed, "{values:?} and {options:?}");
    }
}

fn the_chart_refuses_bad_values() {
    for (value, named) in [
        ("failurePolicy=ignore", "failurePolicy"),
        ("launch=fast", "launch"),
        ("logFormat=xml", "logFormat"),
        ("replicas=0", "replicas"),
        ("image=", "image"),
        ("image=a b", "image"),
        ("image=a:", "image"),
        ("image=null", "image"),
        ("image=123", "image"),
        ("agent=null", "agent"),
        ("agent.enabled=null", "enabled"),
        ("agent.criEndpoint=tcp://a:1", "agent.criEndpoint"),
        ("agent.criEndpoint=unix:///run/../etc/x", "agent.criEndpoint"),
        ("agent.enabled=no", "agent.enabled"),
        ("agnet.enabled=false", "agnet"),
    ] {
        let (rendered, said) = template("platform", &[value]);
        assert!(!rendered && said.contains(named), "{value}: {said}");
    }
    let (rendered, said) = template("default", &[]);
    assert!(!rendered && said.contains("namespace \"default\" cannot be used"), "{said}");
}

/// The chart is refused if OpenKruise is installed, like `outrigger operator install`.
pub(crate) fn is_refused_beside_kruise(cluster: &Cluster) {
    if program().is_none() {
        return;
    }
    let args = ["install", "outrigger", CHART, "-n", "helm", "--create-namespace", "--dry-run=server"];
    let (installed, said) = helm(&args, &cluster.config("admin"));
    assert!(!installed && said.contains("OpenKruise is installed"), "{said}");
}
