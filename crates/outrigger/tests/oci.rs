//! Tests `--oci-runtime` and runtime classes on the command line. Needs root.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

const POD: &str = "\
apiVersion: v1
kind: Pod
metadata:
  name: p
spec:
  restartPolicy: Never
  runtimeClassName: CLASS
  containers:
  - name: c
    image: rootfs:/
    command: [sh, -c, 'cat /proc/self/cgroup; exit 7']
";

fn run(dir: &Path, class: &str, flags: &[&str]) -> Output {
    let file = dir.join("pod.yaml");
    fs::write(&file, POD.replace("CLASS", class)).unwrap();
    Command::new(env!("CARGO_BIN_EXE_outrigger"))
        .args(["run", "--network", "none", "--state-dir"])
        .arg(dir.join("state"))
        .args(flags)
        .arg(&file)
        .env_remove("OUTRIGGER_OCI_RUNTIME")
        .env_remove("OUTRIGGER_RUNTIMES")
        .output()
        .unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn classes(dir: &Path, text: &str) -> String {
    let file = dir.join("runtimes.toml");
    fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}

#[test]
fn an_unknown_class_is_refused_with_its_line_and_the_known_ones() {
    let dir = tempfile::tempdir().unwrap();
    let file = classes(dir.path(), "[classes.one]\npath = \"runc\"\n[classes.two]\npath = \"runc\"\n");
    let refused = run(dir.path(), "gvisor", &["--runtimes", &file]);
    let text = stderr(&refused);
    assert_eq!(refused.status.code(), Some(2), "{text}");
    assert!(text.contains("runtime class \"gvisor\" is not configured; configured: one, two"), "{text}");
    assert!(text.contains("pod.yaml:7"), "{text}");
    // The run is refused before anything is set up.
    let refused = run(dir.path(), "gvisor", &[]);
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
}

#[test]
fn a_class_runs_the_pod_on_its_runtime() {
    let dir = tempfile::tempdir().unwrap();
    let file = classes(dir.path(), "[classes.vetted]\npath = \"runc\"\n");
    let ran = run(dir.path(), "vetted", &["--runtimes", &file]);
    assert_eq!(ran.status.code(), Some(7), "{}", stderr(&ran));
    assert!(dir.path().join("state/oci-runtimes/runc.json").exists(), "runc was tried first");
}

#[test]
fn runtimes_that_cannot_be_used_are_refused_before_anything_starts() {
    let dir = tempfile::tempdir().unwrap();
    for (flags, complaint) in [
        (&["--oci-runtime", "no-such"][..], "\"no-such\" is not installed"),
        (&["--oci-runtime", "/bin/false"][..], "not usable as an OCI runtime"),
        (&["--runtimes", "/no/such/file"][..], "/no/such/file: no such file"),
        (&["--oci-runtime", "runc", "--runtime", "cri"][..], "--oci-runtime needs --runtime embedded"),
    ] {
        let refused = run(dir.path(), "\"\"", flags);
        let text = stderr(&refused);
        assert!(text.contains(complaint), "{flags:?}: {text}");
        assert!(matches!(refused.status.code(), Some(2 | 125)), "{flags:?}: {text}");
    }
}
