//! Checks which crates of the workspace depend on which. ARCHITECTURE.md gives the reasons.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The workspace crates that each crate may depend on, without dev-dependencies.
const ALLOWED: [(&str, &[&str]); 15] = [
    ("text", &[]),
    ("lifecycle", &["text"]),
    ("manifest", &["lifecycle", "text"]),
    ("simulate", &["lifecycle", "text"]),
    ("runtime", &["lifecycle", "text"]),
    ("images", &["runtime", "text"]),
    ("embedded", &["images", "lifecycle", "runtime", "text"]),
    ("cri", &["lifecycle", "runtime", "text"]),
    ("agent", &["lifecycle", "runtime", "text"]),
    ("view", &["lifecycle", "manifest", "text"]),
    ("node", &["agent", "cri", "embedded", "images", "lifecycle", "manifest", "runtime", "text", "view"]),
    ("operator", &["agent", "cri", "lifecycle", "runtime", "text"]),
    (
        "outrigger",
        &[
            "agent",
            "cri",
            "embedded",
            "images",
            "lifecycle",
            "manifest",
            "node",
            "operator",
            "runtime",
            "simulate",
            "text",
            "view",
        ],
    ),
    ("testkit", &["cri", "embedded", "images", "lifecycle", "manifest", "runtime", "text"]),
    ("xtask", &[]),
];

/// The workspace crates in `[dependencies]` of each crate.
fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(crates).expect("the crates").flatten() {
        let Ok(text) = fs::read_to_string(entry.path().join("Cargo.toml")) else { continue };
        let mut section = String::new();
        let mut found = BTreeSet::new();
        for line in text.lines().map(str::trim) {
            if line.starts_with('[') {
                section = line.to_owned();
                continue;
            }
            let is_for_users = section.ends_with("dependencies]") && !section.contains("dev-");
            let name = line.split(['.', '=', ' ']).next().unwrap_or_default();
            if is_for_users && let Some(name) = name.strip_prefix("outrigger-") {
                found.insert(name.to_owned());
            }
        }
        all.insert(entry.file_name().to_string_lossy().into_owned(), found);
    }
    all
}

#[test]
fn crates_depend_only_on_what_they_may() {
    let found = dependencies();
    assert_eq!(
        found.keys().map(String::as_str).collect::<BTreeSet<_>>(),
        ALLOWED.iter().map(|(name, _)| *name).collect(),
        "every crate has a row in this table"
    );
    for (name, allowed) in ALLOWED {
        let forbidden: Vec<_> =
            found[name].iter().filter(|other| !allowed.contains(&other.as_str())).collect();
        assert!(
            forbidden.is_empty(),
            "crates/{name} must not depend on {forbidden:?}; if it should, say why in ARCHITECTURE.md"
        );
    }
    let users: Vec<_> = found.iter().filter(|(_, of)| of.contains("testkit")).collect();
    assert!(users.is_empty(), "outrigger-testkit is for tests: make it a dev-dependency of {users:?}");
}
