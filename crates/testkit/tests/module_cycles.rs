//! Checks that no two modules of a crate depend on each other, directly or through others. So each module can
//! be read before those that use it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use regex_lite::Regex;

/// The modules that each top-level module of a crate names.
type Uses = BTreeMap<String, BTreeSet<String>>;

fn rust_files(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("a directory of sources").flatten() {
        let path = entry.path();
        if path.is_dir() {
            rust_files(&path, out);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            out.push(path);
        }
    }
}

/// The path of a file's module: `a/b.rs` and `a/b/mod.rs` are `[a, b]`, `lib.rs` is `[]`.
fn module_of(file: &Path) -> Vec<String> {
    let mut parts: Vec<String> =
        file.with_extension("").iter().map(|part| part.to_string_lossy().into_owned()).collect();
    if parts.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
        parts.pop();
    }
    parts
}

/// The code of a file without its comments and its tests.
fn code_of(text: &str) -> String {
    let tests = Regex::new(r"#\[cfg\(test\)\]\s*(?:#\[[^\]]*\]\s*)*mod tests").expect("a pattern");
    let code = tests.find(text).map_or(text, |found| &text[..found.start()]);
    code.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// The first names of the paths in a group such as `{a::b, c, d::{e, f}}`. `text` starts after the opening
/// brace.
fn group(text: &str) -> Vec<String> {
    let (mut depth, mut names, mut name) = (0, Vec::new(), Some(String::new()));
    for c in text.chars() {
        match c {
            '}' if depth == 0 => break,
            ',' if depth == 0 => names.extend(name.replace(String::new())),
            '{' => depth += 1,
            '}' => depth -= 1,
            c if c.is_whitespace() => {}
            c if depth == 0 && (c.is_alphanumeric() || c == '_') => {
                if let Some(name) = &mut name {
                    name.push(c);
                }
            }
            // The name is complete. The rest of the path does not matter.
            _ if depth == 0 => names.extend(name.take()),
            _ => {}
        }
    }
    names.extend(name);
    names
}

fn uses(src: &Path) -> Uses {
    let mut files = Vec::new();
    rust_files(src, &mut files);
    let modules: Vec<(Vec<String>, &PathBuf)> =
        files.iter().map(|file| (module_of(file.strip_prefix(src).expect("below it")), file)).collect();
    let top: BTreeSet<&String> = modules.iter().filter_map(|(module, _)| module.first()).collect();
    let path = Regex::new(r"\b(crate|super(?:::super)*)::(\w+|\{)").expect("a pattern");
    let mut all = Uses::new();
    for (module, file) in &modules {
        let Some(own) = module.first().filter(|_| !module.iter().any(|part| part == "tests")) else {
            continue;
        };
        let code = code_of(&fs::read_to_string(file).expect("a source"));
        for found in path.captures_iter(&code) {
            let is_from_root = &found[1] == "crate" || found[1].split("::").count() == module.len();
            if !is_from_root {
                continue;
            }
            let names = match &found[2] {
                "{" => group(&code[found.get(0).expect("all of it").end()..]),
                name => vec![name.to_owned()],
            };
            let others = names.into_iter().filter(|name| top.contains(name) && name != own);
            all.entry(own.clone()).or_default().extend(others);
        }
    }
    all
}

/// All modules that a module depends on, directly or through others.
fn reachable(uses: &Uses, from: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut next = vec![from.to_owned()];
    while let Some(module) = next.pop() {
        for other in uses.get(&module).into_iter().flatten() {
            if found.insert(other.clone()) {
                next.push(other.clone());
            }
        }
    }
    found
}

/// The sets of modules that depend on each other.
fn cycles(uses: &Uses) -> BTreeSet<BTreeSet<String>> {
    let reach: BTreeMap<&String, BTreeSet<String>> =
        uses.keys().map(|module| (module, reachable(uses, module))).collect();
    let cycle = |module: &String| -> BTreeSet<String> {
        reach[module]
            .iter()
            .filter(|other| reach.get(other).is_some_and(|r| r.contains(module)))
            .cloned()
            .collect()
    };
    uses.keys().map(cycle).filter(|cycle| cycle.len() > 1).collect()
}

#[test]
fn modules_do_not_depend_on_each_other() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(crates).expect("the crates").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.path().join("src").is_dir() {
            found.extend(
                cycles(&uses(&entry.path().join("src"))).into_iter().map(|cycle| (name.clone(), cycle)),
            );
        }
    }
    assert!(
        found.is_empty(),
        "these modules depend on each other: {found:?}; move what they share into a module of its own"
    );
}

#[test]
fn paths_are_found_in_groups_and_through_super() {
    let dir = tempfile::tempdir().expect("a directory");
    let write = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        fs::write(path, text).expect("a source");
    };
    write("lib.rs", "mod a; mod b; mod c;");
    write("a.rs", "use crate::{b::{X, Y}, Z};");
    write("a/deep.rs", "use super::super::c::X; use super::Own;");
    write("b.rs", "// crate::a\n#[cfg(test)]\nmod tests { use crate::a::X; }");
    write("c/mod.rs", "use super::a;");
    let all = uses(dir.path());
    let names = |all: &[&str]| all.iter().map(ToString::to_string).collect::<BTreeSet<_>>();
    assert_eq!(all["a"], names(&["b", "c"]));
    assert_eq!(all["c"], names(&["a"]));
    assert_eq!(cycles(&all), BTreeSet::from([names(&["a", "c"])]));
}
