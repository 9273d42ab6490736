//! The reference pages list what the program has, and nothing else.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use crate::{root, rust_sources};

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
    // Continued descriptions are indented further.
    let names = list.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    names.filter(|name| !["", "help"].contains(name)).map(str::to_owned).collect()
}

#[test]
fn every_metric_is_listed() {
    let mut sources = String::new();
    rust_sources(&root().join("crates/operator/src/cluster"), &mut sources);
    let pattern = regex_lite::Regex::new(r#""(outrigger_[a-z_]+)""#).expect("a pattern");
    let names = pattern.captures_iter(&sources).filter_map(|c| Some(c.get(1)?.as_str().to_owned()));
    assert_eq!(first_cells("metrics.md"), names.collect());
}

/// The code in the first cells of a reference page's tables.
fn first_cells(page: &str) -> BTreeSet<String> {
    let text = fs::read_to_string(root().join("docs/reference").join(page)).expect("the page");
    let cells = text.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    cells.map(str::to_owned).collect()
}
