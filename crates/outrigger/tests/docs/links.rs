//! Checks that every relative link leads to an existing file and heading.

use std::fs;
use std::path::{Path, PathBuf};

use crate::{pages, root};

/// Pages outside docs/ whose links are checked, too.
const OTHER_PAGES: [&str; 9] = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "examples/README.md",
    "fuzz/README.md",
    "scripts/README.md",
    "tests/conformance/README.md",
];

#[test]
fn every_relative_link_resolves() {
    let mut broken = Vec::new();
    let mut checked = 0;
    for page in OTHER_PAGES.iter().map(|page| root().join(page)).chain(pages()) {
        let text = fs::read_to_string(&page).expect("a page");
        for (line, target) in links(&text) {
            checked += 1;
            if let Err(reason) = resolve(&page, &target) {
                broken.push(format!("{}:{line}: {target}: {reason}", page.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    assert!(checked > 50, "{checked} links");
}

/// docs/README.md is the index. It links to every page, and the README links to it.
#[test]
fn the_index_leads_to_every_page() {
    let readme = fs::read_to_string(root().join("README.md")).expect("the README");
    assert!(readme.contains("(docs/README.md)"), "the README does not lead to docs/README.md");
    let docs = root().join("docs");
    let index = fs::read_to_string(docs.join("README.md")).expect("the index");
    for page in pages() {
        let name = page.strip_prefix(&docs).expect("a page of docs").display().to_string();
        assert!(
            name == "README.md" || index.contains(&format!("({name})")),
            "docs/README.md does not lead to {name}"
        );
    }
}

/// The relative links outside code, with their lines.
fn links(text: &str) -> Vec<(usize, String)> {
    let pattern = regex_lite::Regex::new(r"\]\(([^)\s]+)\)").expect("a pattern");
    let mut found = Vec::new();
    for (line, text) in prose(text) {
        for capture in pattern.captures_iter(text) {
            let target = capture.get(1).map_or("", |m| m.as_str());
            if !target.contains("://") && !target.starts_with("mailto:") {
                found.push((line, target.to_owned()));
            }
        }
    }
    found
}

/// The numbered lines outside fenced code blocks.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let fence = line.trim_start().starts_with("```");
        in_code ^= fence;
        (!in_code && !fence).then_some((index + 1, line))
    })
}

fn resolve(page: &Path, target: &str) -> Result<(), String> {
    let (file, anchor) = target.split_once('#').map_or((target, None), |(f, a)| (f, Some(a)));
    let path: PathBuf = match file {
        "" => page.to_owned(),
        file => page.parent().ok_or("the page has no folder")?.join(file),
    };
    if !path.exists() {
        return Err("there is no such file".to_owned());
    }
    let Some(anchor) = anchor else { return Ok(()) };
    let text = fs::read_to_string(&path).map_err(|e| e.to_string())?;
    let mut headings = prose(&text).filter(|(_, line)| line.starts_with('#')).map(|(_, line)| slug(line));
    if headings.any(|heading| heading == anchor) {
        Ok(())
    } else {
        Err("there is no such heading".to_owned())
    }
}

/// The anchor that GitHub gives a heading: lower case, hyphens instead of spaces, and no other punctuation.
fn slug(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    text.chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

#[test]
fn headings_become_anchors_as_on_github() {
    assert_eq!(slug("## When `run` is killed: what's left"), "when-run-is-killed-whats-left");
}
