//! Tests the Debian package of `scripts/deb.sh`: its content, and that removing it leaves nothing. Needs
//! dpkg.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs a program that must succeed. Returns its output.
fn run(program: impl AsRef<Path>, args: &[&str]) -> String {
    let program = program.as_ref();
    let out = Command::new(program).args(args).output().unwrap_or_else(|e| panic!("{program:?}: {e}"));
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(
        out.status.success(),
        "{program:?} {args:?}: {}\n{text}{}",
        out.status,
        String::from_utf8_lossy(&out.stderr)
    );
    text
}

/// Creates a package below a directory.
fn package(dir: &Path) -> PathBuf {
    let ours = env!("CARGO_BIN_EXE_outrigger");
    // The binary of a test is large, and compressing it takes minutes. So a script that runs it takes its
    // place.
    let binary = dir.join("outrigger");
    fs::write(&binary, format!("#!/bin/sh\nexec {ours} \"$@\"\n")).expect("a script");
    fs::set_permissions(&binary, fs::Permissions::from_mode(0o755)).expect("a mode");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/deb.sh");
    let (binary, to) = (binary.display().to_string(), dir.join("dist").display().to_string());
    PathBuf::from(run(script, &[&binary, "x86_64", &to, ours]).trim())
}

/// All files and directories below a directory, relative to it, without dpkg's own.
fn files(root: &Path) -> BTreeSet<String> {
    let listed = run("find", &[&root.display().to_string(), "-mindepth", "1", "-printf", "%P\n"]);
    listed.lines().filter(|path| !path.starts_with("var")).map(str::to_owned).collect()
}

#[test]
fn the_debian_package_is_complete_and_leaves_nothing() {
    let dir = tempfile::Builder::new().prefix("outrigger-package-").tempdir().expect("a directory");
    let package = package(dir.path());
    let root = dir.path().join("root");
    fs::create_dir_all(root.join("var/lib/dpkg/updates")).expect("directories");
    fs::create_dir_all(root.join("var/lib/dpkg/info")).expect("directories");
    fs::write(root.join("var/lib/dpkg/status"), "").expect("a file");
    let dpkg = |args: &[&str]| {
        let at = format!("--root={}", root.display());
        let log = format!("--log={}", dir.path().join("log").display());
        let forced = "--force-script-chrootless,not-root,architecture";
        run("dpkg", &[&[&at, &log, forced][..], args].concat())
    };
    dpkg(&["--install", &package.display().to_string()]);

    let found = files(&root);
    for path in [
        "usr/bin/outrigger",
        "usr/lib/systemd/system/outrigger.service",
        "usr/share/bash-completion/completions/outrigger",
        "usr/share/doc/outrigger/copyright",
        "usr/share/fish/vendor_completions.d/outrigger.fish",
        "usr/share/zsh/vendor-completions/_outrigger",
        "usr/share/man/man1/outrigger.1.gz",
        "etc/outrigger/pods",
    ] {
        assert!(found.contains(path), "{path} is missing: {found:#?}");
    }
    let help = run(root.join("usr/bin/outrigger"), &["--help"]);
    let commands: Vec<&str> = help
        .lines()
        .filter_map(|line| line.strip_prefix("  ")?.split("  ").next())
        .filter(|word| !word.is_empty() && word.chars().all(|c| c.is_ascii_lowercase()) && *word != "help")
        .collect();
    assert!(commands.len() > 10, "{help}");
    for command in commands {
        let page = format!("usr/share/man/man1/outrigger-{command}.1.gz");
        assert!(found.contains(&page), "{page} is missing");
    }
    let unit = fs::read_to_string(root.join("usr/lib/systemd/system/outrigger.service")).expect("the unit");
    assert!(unit.contains("\nExecStart=/usr/bin/outrigger node --manifests /etc/outrigger/pods\n"), "{unit}");
    assert!(!unit.contains("Environment="), "{unit}");
    let version = dpkg(&["--status", "outrigger"]);
    assert!(version.contains(concat!("\nVersion: ", env!("CARGO_PKG_VERSION"))), "{version}");

    dpkg(&["--remove", "outrigger"]);
    assert_eq!(files(&root), BTreeSet::new());
}

#[test]
fn the_same_binary_gives_the_same_package() {
    let dir = tempfile::Builder::new().prefix("outrigger-package-").tempdir().expect("a directory");
    let first = fs::read(package(dir.path())).expect("a package");
    let second = fs::read(package(dir.path())).expect("a package");
    assert!(first == second, "{} and {} bytes", first.len(), second.len());
}
