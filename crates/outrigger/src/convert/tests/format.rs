//! Converts random pods in random formatting, one edit at a time. An edit must change only the lines of the
//! value that it sets or removes.

use std::collections::{BTreeMap, BTreeSet};

use outrigger_lifecycle::convert::{Edit, convert as edits_to};
use outrigger_lifecycle::{FeatureGates, FieldPath, Segment};
use outrigger_manifest::convert::apply;
use outrigger_manifest::edit::Editor;
use outrigger_manifest::{Entry, Node, SourceFile, Value as NodeValue, check};
use outrigger_simulate::{Rng, random};
use serde_json::{Value, json};

use super::TARGETS;
use crate::input::ReadArgs;

/// Writes a value as YAML, in a different style each time.
struct Writer<'r> {
    rng: &'r mut Rng,
    lines: Vec<String>,
    /// The number of comments so far, which makes each unique.
    notes: usize,
    /// How much lists are indented below their key.
    list_indent: usize,
    comments: f64,
    flow: f64,
}

#[test]
fn an_edit_changes_its_own_lines_only() {
    let (mut carried_out, mut tried) = (0, 0);
    for seed in 0..400 {
        let text = manifest(seed);
        let sources = [SourceFile::new("pod.yaml", text.as_str())];
        let manifest =
            ReadArgs::default().read(&sources).unwrap_or_else(|e| panic!("seed {seed}: {e:?}\n{text}"));
        let checked = check(&manifest, &FeatureGates::default());
        let pod = checked[0].pod;
        let plan = &checked[0].planned.as_ref().expect("random pods have plans").plan;
        for target in TARGETS {
            let mut editor = Editor::new(&text, 0).unwrap();
            for edit in edits_to(&pod.input, plan, target) {
                tried += 1;
                let what = format!("seed {seed}, {target:?}, {edit:?}");
                let (before, open) = (editor.text().to_owned(), may_change(&editor, &edit));
                match apply(&mut editor, pod, &edit) {
                    Ok(()) => {
                        carried_out += 1;
                        assert_kept(&before, &open, editor.text(), &what);
                    }
                    Err(e) => panic!("{what}: {e}\n{before}"),
                }
            }
        }
    }
    assert_eq!(carried_out, tried);
    assert!(tried > 2_000, "only {tried} edits");
}

/// The content of a line without indentation and dash. An entry that moves to another list still has the same
/// content.
fn words(line: &str) -> &str {
    line.trim_start_matches([' ', '-'])
}

/// Checks that every line that must not change occurs as often as before.
fn assert_kept(before: &str, open: &BTreeSet<usize>, after: &str, what: &str) {
    let mut left: BTreeMap<&str, usize> = BTreeMap::new();
    for line in after.split('\n') {
        *left.entry(words(line)).or_default() += 1;
    }
    for (i, line) in before.split('\n').enumerate() {
        if open.contains(&i) || words(line).trim().is_empty() {
            continue;
        }
        let count = left.get_mut(words(line)).filter(|count| **count > 0);
        let count = count.unwrap_or_else(|| panic!("{what}: {line:?} was touched\n{before}\n=====\n{after}"));
        *count -= 1;
    }
}

/// The lines that an edit may change. These are the lines of the value it sets or removes, and a one-line
/// list or map that it adds to.
fn may_change(editor: &Editor, edit: &Edit) -> BTreeSet<usize> {
    let root = editor.root();
    let text = editor.text();
    match edit {
        Edit::Set { path, .. } => adds_or_sets(root, text, path),
        Edit::Insert { map, key, .. } => adds_or_sets(root, text, &map.clone().field(*key)),
        Edit::Append { list, .. } => match root.at(list) {
            Some(node) if node.flow => lines(text, node.span.start, node.span.end),
            Some(_) => BTreeSet::new(),
            None => adds_or_sets(root, text, list),
        },
        Edit::Prune { path } => {
            let mut path = path.clone();
            while let Some((parent, _)) = split(&path).filter(|(parent, _)| !parent.0.is_empty()) {
                let alone = match &root.at(&parent).expect("it has a child").value {
                    NodeValue::Map(entries) => entries.len() == 1,
                    NodeValue::Seq(items) => items.len() == 1,
                    NodeValue::Scalar(_) => false,
                };
                if !alone {
                    break;
                }
                path = parent;
            }
            let own = own_lines(root, text, &path);
            match path.0.last() {
                Some(Segment::Index(_)) => with_comments_above(text, own),
                _ => own,
            }
        }
        Edit::Move { from, to, .. } => {
            let (list, _) = split(from).expect("an entry of a list");
            let mut open = match root.at(to) {
                Some(node) if node.flow => lines(text, node.span.start, node.span.end),
                _ => BTreeSet::new(),
            };
            // A list that becomes empty is removed with its key.
            if root.at(&list).and_then(Node::items).is_some_and(|items| items.len() == 1) && list != *to {
                let key = entry(root, &list).expect("a list has a key").key_span;
                open.extend(lines(text, key.start, key.end));
            }
            open
        }
    }
}

fn adds_or_sets(root: &Node, text: &str, path: &FieldPath) -> BTreeSet<usize> {
    if root.at(path).is_some() {
        return own_lines(root, text, path);
    }
    // A missing value is added to the last existing map on the path. If that map is on one line, its line
    // changes.
    let mut known = path.clone();
    while root.at(&known).is_none() {
        known.0.pop();
    }
    let node = root.at(&known).expect("it was found");
    match node.flow || node.is_null() {
        true => own_lines(root, text, &known),
        false => BTreeSet::new(),
    }
}

/// The lines of a value, from its key to its end. In flow style, also those of everything on the same line.
fn own_lines(root: &Node, text: &str, path: &FieldPath) -> BTreeSet<usize> {
    let Some((parent, _)) = split(path) else { return lines(text, 0, text.len()) };
    if root.at(&parent).is_some_and(|node| node.flow) {
        return own_lines(root, text, &parent);
    }
    let node = root.at(path).expect("it was found");
    let start = entry(root, path).map_or(node.span.start, |entry| entry.key_span.start);
    lines(text, start, end(node).max(start))
}

/// Adds the comments right above an entry of a list. They belong to the entry and are moved with it.
fn with_comments_above(text: &str, mut own: BTreeSet<usize>) -> BTreeSet<usize> {
    let all: Vec<&str> = text.split('\n').collect();
    let indent = |line: &str| line.len() - line.trim_start_matches(' ').len();
    let Some(&first) = own.first() else { return own };
    let above = (0..first)
        .rev()
        .take_while(|&i| all[i].trim_start().starts_with('#') && indent(all[i]) == indent(all[first]));
    own.extend(above);
    own
}

fn entry<'n>(root: &'n Node, path: &FieldPath) -> Option<&'n Entry> {
    let (parent, Segment::Field(key)) = split(path)? else { return None };
    root.at(&parent)?.entry(&key)
}

fn split(path: &FieldPath) -> Option<(FieldPath, Segment)> {
    let (last, parent) = path.0.split_last()?;
    Some((FieldPath(parent.to_vec()), last.clone()))
}

/// The position where the text of a value ends, without trailing comments.
fn end(node: &Node) -> usize {
    match &node.value {
        _ if node.flow => node.span.end,
        NodeValue::Map(entries) => {
            entries.iter().map(|e| end(&e.value).max(e.key_span.end)).max().unwrap_or(0)
        }
        NodeValue::Seq(items) => items.iter().map(end).max().unwrap_or(0),
        NodeValue::Scalar(_) => node.span.end,
    }
}

fn lines(text: &str, start: usize, end: usize) -> BTreeSet<usize> {
    let line = |at: usize| text[..at].matches('\n').count();
    // A block of several lines ends after its last line break.
    let end = if end > start && text[..end].ends_with('\n') { end - 1 } else { end };
    (line(start)..=line(end)).collect()
}

/// A random pod in random formatting.
fn manifest(seed: u64) -> String {
    let mut rng = Rng::new(seed);
    let (input, _) = random::pod(&mut rng);
    let mut pod = serde_json::to_value(&input.pod).expect("a pod is plain data");
    for (place, value) in &input.lifecycle_types {
        pod["spec"][place.list.field()][place.index]["lifecycle"]["type"] = json!(value);
    }
    if rng.chance(0.5) {
        pod["metadata"]["annotations"]["example.com/team"] = json!("blue: [1]");
        pod["metadata"]["labels"]["app"] = json!("web");
    }
    for list in ["initContainers", "containers"] {
        for container in pod["spec"][list].as_array_mut().into_iter().flatten() {
            container["command"] = json!(["sh", "-c", "while true; do sleep 1; done", "a: b #c"]);
            if rng.chance(0.5) {
                let env = container["env"].take();
                let mut env = env.as_array().cloned().unwrap_or_default();
                let at = rng.index(env.len() + 1);
                env.insert(at, json!({"name": "COLOUR", "value": "blue [1]"}));
                container["env"] = json!(env);
            }
            if rng.chance(0.3) {
                container["args"] = json!(["one", "if true\n  # two\nthree\n"]);
            }
        }
    }
    let mut writer = Writer {
        list_indent: rng.pick(&[0, 2, 4]),
        comments: rng.pick(&[0.0, 0.2, 0.6]),
        flow: rng.pick(&[0.1, 0.4, 0.8]),
        rng: &mut rng,
        lines: Vec::new(),
        notes: 0,
    };
    writer.map(&pod, 0, "", &mut Vec::new());
    let end = writer.rng.pick(&["\n", "\n", "\r\n"]);
    let text: String = writer.lines.iter().flat_map(|line| [line.as_str(), end]).collect();
    let sources = [SourceFile::new("pod.yaml", text.as_str())];
    let read = ReadArgs::default().read(&sources);
    let read = read.unwrap_or_else(|e| panic!("seed {seed}: {e:?}\n{text}"));
    assert_eq!(read.pods[0].input.lifecycle_types, input.lifecycle_types, "seed {seed}\n{text}");
    text
}

impl Writer<'_> {
    /// A trailing comment, or an empty text.
    fn note(&mut self) -> String {
        if !self.rng.chance(self.comments) {
            return self.rng.pick(&["", "", "", " ", "  "]).to_owned();
        }
        self.notes += 1;
        let n = self.notes;
        match self.rng.below(3) {
            0 => format!("  # note {n}"),
            1 => format!("\t#\tnote {n}: [ {{"),
            _ => format!(" #note {n} é ]"),
        }
    }

    /// A comment on its own line, or a blank line.
    fn between(&mut self, indent: usize) {
        if self.rng.chance(self.comments / 3.0) {
            self.notes += 1;
            self.lines.push(format!("{}# about {}", " ".repeat(indent), self.notes));
        } else if self.rng.chance(0.05) {
            self.lines.push(String::new());
        }
    }

    /// The entries of a map; `first` replaces the indentation of the first one.
    fn map(&mut self, map: &Value, indent: usize, first: &str, path: &mut Vec<String>) {
        let Value::Object(entries) = map else { panic!("expected an object") };
        for (i, (key, value)) in entries.iter().enumerate() {
            path.push(key.clone());
            let mut lead = " ".repeat(indent);
            if i == 0 && !first.is_empty() {
                first.clone_into(&mut lead);
            } else {
                self.between(indent);
            }
            self.entry(&format!("{lead}{key}:"), value, indent, path);
            path.pop();
        }
    }

    fn entry(&mut self, head: &str, value: &Value, indent: usize, path: &mut Vec<String>) {
        let is_list = path.last().is_some_and(|key| key.ends_with("ontainers"));
        let block = match value {
            Value::Object(map) => !map.is_empty() && (path.len() < 2 || !self.rng.chance(self.flow)),
            // A whole pod on one line is not realistic.
            Value::Array(items) => !items.is_empty() && (is_list || !self.rng.chance(self.flow)),
            _ => false,
        };
        let note = self.note();
        if !block {
            let inline = self.inline(value);
            return self.lines.push(format!("{head} {inline}{note}"));
        }
        self.lines.push(format!("{head}{note}"));
        match value {
            Value::Object(_) => self.map(value, indent + 2, "", path),
            Value::Array(items) => items.iter().for_each(|item| {
                path.push(String::new());
                self.item(item, indent + self.list_indent, path);
                path.pop();
            }),
            _ => {}
        }
    }

    fn item(&mut self, item: &Value, indent: usize, path: &mut Vec<String>) {
        let lead = " ".repeat(indent);
        self.between(indent);
        let gap = self.rng.pick(&[" ", " ", "   "]);
        match item {
            Value::Object(map) if !map.is_empty() && !self.rng.chance(self.flow) => {
                let inner = indent + 1 + gap.len();
                self.map(item, inner, &format!("{lead}-{gap}"), path);
                // Usually an entry that an author has commented out.
                let deeper = self.rng.pick(&[0, 2, 6]);
                self.between(inner + deeper);
            }
            Value::String(text) if text.ends_with('\n') => {
                self.lines.push(format!("{lead}-{gap}|"));
                self.lines.extend(text.lines().map(|line| format!("{lead}    {line}")));
            }
            _ => {
                let (inline, note) = (self.inline(item), self.note());
                self.lines.push(format!("{lead}-{gap}{inline}{note}"));
            }
        }
    }

    /// A value on one line, with random spaces where YAML allows them.
    fn inline(&mut self, value: &Value) -> String {
        let space = |rng: &mut Rng| rng.pick(&["", "", " ", "  "]);
        match value {
            Value::String(text) => {
                let plain = text.chars().all(|c| c.is_ascii_alphabetic() || c == '/' || c == '-')
                    && text.starts_with(|c: char| c.is_ascii_alphabetic())
                    && !["true", "false", "null", "yes", "no", "on", "off", "y", "n"]
                        .contains(&text.to_lowercase().as_str());
                match self.rng.below(3) {
                    0 if plain => text.clone(),
                    1 if !text.contains(['\n', '\'']) => format!("'{text}'"),
                    _ => Value::String(text.clone()).to_string(),
                }
            }
            Value::Array(items) => {
                let (open, close) = (space(self.rng), space(self.rng));
                let items: Vec<String> = items.iter().map(|item| self.inline(item)).collect();
                let comma = if self.rng.chance(0.3) { " , " } else { ", " };
                let last = if !items.is_empty() && self.rng.chance(0.2) { "," } else { "" };
                format!("[{open}{}{last}{close}]", items.join(comma))
            }
            Value::Object(entries) => {
                let (open, close) = (space(self.rng), space(self.rng));
                let entries: Vec<String> =
                    entries.iter().map(|(key, value)| format!("{key}: {}", self.inline(value))).collect();
                let last = if !entries.is_empty() && self.rng.chance(0.2) { " ," } else { "" };
                format!("{{{open}{}{last}{close}}}", entries.join(", "))
            }
            other => other.to_string(),
        }
    }
}
