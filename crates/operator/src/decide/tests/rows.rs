//! Every row of section 5 of the specification is cited by a test, or left out with a reason.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Rows that cannot be tested here.
const LEFT_OUT: [(&str, &str); 7] = [
    ("LP-E-05", "in-place update of a CloneSet, a workload that is not served"),
    ("LP-E-06", "in-place update of a CloneSet"),
    ("LP-E-07", "in-place update of a CloneSet"),
    ("ST-E-05", "BroadcastJob, a workload that is not served; ST-20: its pods are pods like any other"),
    ("ST-E-06", "BroadcastJob"),
    ("ST-E-07", "BroadcastJob"),
    ("CRR-D-10", "Windows"),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The ids at the beginning of a table row: `LP-U-01 reconcile`, `LP-U-20..24 key`, `CRR-W-01/06`.
fn ids(row: &str) -> Vec<String> {
    let Some(word) = row.strip_prefix("| ").and_then(|row| row.split_whitespace().next()) else {
        return Vec::new();
    };
    let Some((prefix, numbers)) = word.rsplit_once('-') else { return Vec::new() };
    if !["LP-", "ST-", "CRR-"].iter().any(|kind| prefix.starts_with(kind)) {
        return Vec::new();
    }
    let number = |text: &str| text.parse::<u32>().unwrap_or_else(|_| panic!("no row id: {word}"));
    let numbers: Vec<u32> = match (numbers.split_once(".."), numbers.split_once('/')) {
        (Some((from, to)), _) => (number(from)..=number(to)).collect(),
        (_, Some((one, other))) => vec![number(one), number(other)],
        _ => vec![number(numbers)],
    };
    numbers.into_iter().map(|n| format!("{prefix}-{n:02}")).collect()
}

fn read_all(path: &Path, text: &mut String) {
    if path.is_dir() {
        for entry in fs::read_dir(path).expect("a directory") {
            read_all(&entry.expect("an entry").path(), text);
        }
    } else if path.file_name().is_none_or(|name| name != "rows.rs") {
        text.push_str(&fs::read_to_string(path).expect("text"));
    }
}

#[test]
fn every_row_of_the_specification_is_cited() {
    let spec = fs::read_to_string(root().join("docs/internals/spec/kruise.md")).expect("the specification");
    let from = spec.find("## 5. Test cases").expect("section 5");
    let to = spec.find("## 6. ").expect("section 6");
    let rows: BTreeSet<String> = spec[from..to].lines().flat_map(ids).collect();
    assert!(rows.len() >= 200, "only {} rows were read", rows.len());
    let mut tests = String::new();
    for path in [
        "crates/operator/src",
        "crates/outrigger/tests/operator",
        "crates/cri/src/endpoint.rs",
        "scripts/operator-node.py",
    ] {
        read_all(&root().join(path), &mut tests);
    }
    let left_out: BTreeSet<&str> = LEFT_OUT.iter().map(|(id, _)| *id).collect();
    let is_missing = |id: &&String| !tests.contains(id.as_str()) && !left_out.contains(id.as_str());
    let missing: Vec<&String> = rows.iter().filter(is_missing).collect();
    assert!(missing.is_empty(), "rows no test cites: {missing:?}");
}
