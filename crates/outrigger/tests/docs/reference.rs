//! Checks that the reference pages list everything that the program has, and nothing else.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use outrigger_lifecycle::annotations::{self, Annotation, Place};

use crate::root;

#[test]
fn every_command_is_listed() {
    let mut commands = subcommands(&[]);
    assert!(commands.remove("operator"), "it has subcommands");
    commands.extend(subcommands(&["operator"]).into_iter().map(|name| format!("operator {name}")));
    assert_eq!(first_cells("commands.md"), commands);
}

/// The commands that `--help` lists.
fn subcommands(of: &[&str]) -> BTreeSet<String> {
    let out =
        Command::new(env!("CARGO_BIN_EXE_outrigger")).args(of).arg("--help").output().expect("its help");
    let help = String::from_utf8(out.stdout).expect("text");
    let list = help.split("\nCommands:\n").nth(1).and_then(|rest| rest.split("\n\n").next()).expect("a list");
    // Further lines of a description are indented more.
    let names = list.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    names.filter(|name| !["", "help"].contains(name)).map(str::to_owned).collect()
}

/// `UPDATE_EXPECT=1 cargo test -p outrigger --test docs every_annotation` rewrites the table.
#[test]
fn every_annotation_is_listed() {
    let path = root().join("docs/reference/annotations.md");
    let page = fs::read_to_string(&path).expect("the page");
    let head = "| annotation | value | effect | in a cluster |\n|---|---|---|---|\n";
    let (before, rest) = page.split_once(head).expect("the table");
    let (old, after) = rest.split_once("\n\n").expect("its end");
    let rows: Vec<String> = annotations::TABLE.iter().map(annotation_row).collect();
    let new = rows.join("\n");
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        fs::write(&path, format!("{before}{head}{new}\n\n{after}")).expect("written");
        return;
    }
    assert_eq!(old, new, "{} is not the table of the code (UPDATE_EXPECT=1 writes it anew)", path.display());
}

fn annotation_row(row: &Annotation) -> String {
    let place = match row.place {
        Place::Pod => "",
        Place::Job => ", on the Job itself",
        Place::OperatorOnly => ", written by the operator only",
    };
    let effect = row.effect.unwrap_or("no effect on this machine");
    let guide = row.guide.map(|place| format!(" ([guide](../guide/{place}))")).unwrap_or_default();
    let in_cluster = row.in_cluster.words();
    format!("| `{}` | {}{place} | {effect}{guide} | {in_cluster} |", row.name, row.value)
}

/// Outside of tests, the name of an annotation is written only in the table.
#[test]
fn annotations_are_named_once() {
    let table = "crates/lifecycle/src/dialect/annotations.rs";
    let mut found = Vec::new();
    for krate in fs::read_dir(root().join("crates")).expect("the crates") {
        named(&krate.expect("a crate").path().join("src"), &mut found);
    }
    found.retain(|place| !place.contains(table));
    assert!(found.is_empty(), "use the names in {table}:\n{}", found.join("\n"));
}

/// The lines of code that contain the name of an annotation, without comments and tests.
fn named(dir: &Path, out: &mut Vec<String>) {
    for entry in fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if path.is_dir() && name != "tests" {
            named(&path, out);
        } else if name.ends_with(".rs") && name != "tests.rs" {
            let text = fs::read_to_string(&path).expect("a file");
            let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
            let is_code = |line: &&str| !line.trim_start().starts_with("//");
            let has_name = |line: &&str| annotations::TABLE.iter().any(|row| line.contains(row.name));
            let lines = code.lines().filter(is_code).filter(has_name);
            out.extend(lines.map(|line| format!("{}: {}", path.display(), line.trim())));
        }
    }
}

/// The code in the first cells of a reference page's tables.
fn first_cells(page: &str) -> BTreeSet<String> {
    let text = fs::read_to_string(root().join("docs/reference").join(page)).expect("the page");
    let cells = text.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    cells.map(str::to_owned).collect()
}
