//! Random pods in random formatting, converted: a line the conversion need not touch is still there, letter by letter.

use std::collections::BTreeMap;

use outrigger_manifest::SourceFile;
use outrigger_simulate::{Rng, random};
use serde_json::{Value, json};

use super::{Failure, TARGETS, convert};
use crate::input::ReadArgs;

/// A line of a manifest.
struct Line {
    text: String,
    /// A conversion may change it.
    open: bool,
}

/// Writes a value as YAML, each time in another style.
struct Writer<'r> {
    rng: &'r mut Rng,
    lines: Vec<Line>,
    /// Comments so far: each has a number of its own.
    notes: usize,
    /// How much further lists are indented than their key.
    list_indent: usize,
    comments: f64,
    flow: f64,
}

#[test]
fn lines_that_need_not_be_touched_are_not() {
    let (mut converted, mut tried) = (0, 0);
    for seed in 0..400 {
        let (text, open) = manifest(seed);
        for target in TARGETS {
            tried += 1;
            let what = format!("seed {seed}, {target:?}");
            match convert(&text, target) {
                Ok(result) => {
                    converted += 1;
                    kept(&text, &open, &result.text, &what);
                }
                Err(Failure::Input(e)) => assert!(!e.to_string().contains("unusual"), "{what}: {e}\n{text}"),
                Err(other) => panic!("{what}: {other:?}\n{text}"),
            }
        }
    }
    assert!(converted * 100 > tried * 97, "only {converted} of {tried} could be converted");
}

/// The words of a line, wherever it stands: an entry that moves up behind a dash, or to another list, is the same.
fn words(line: &str) -> &str {
    line.trim_start_matches([' ', '-'])
}

/// Every line that is not open is there as often as before.
fn kept(before: &str, open: &[bool], after: &str, what: &str) {
    let mut left: BTreeMap<&str, usize> = BTreeMap::new();
    for line in after.split('\n') {
        *left.entry(words(line)).or_default() += 1;
    }
    for (line, open) in before.split('\n').zip(open) {
        if *open || words(line).trim().is_empty() {
            continue;
        }
        let count = left.get_mut(words(line)).filter(|count| **count > 0);
        let count = count.unwrap_or_else(|| panic!("{what}: {line:?} was touched\n{before}\n=====\n{after}"));
        *count -= 1;
    }
}

/// A random pod in random formatting, and which of its lines a conversion may change.
fn manifest(seed: u64) -> (String, Vec<bool>) {
    let mut rng = Rng::new(seed);
    let (input, _) = random::pod(&mut rng);
    let mut pod = serde_json::to_value(&input.pod).expect("a pod is plain data");
    for (place, value) in &input.lifecycle_types {
        pod["spec"][place.list.field()][place.index]["lifecycle"]["type"] = json!(value);
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
    let (mut text, mut open) = (String::new(), Vec::new());
    for line in writer.lines {
        text.push_str(&line.text);
        text.push_str(end);
        open.push(line.open);
    }
    open.push(true);
    let sources = [SourceFile::new("pod.yaml", text.as_str())];
    let read = ReadArgs::default().read(&sources);
    let read = read.unwrap_or_else(|e| panic!("seed {seed}: {e:?}\n{text}"));
    assert_eq!(read.pods[0].input.lifecycle_types, input.lifecycle_types, "seed {seed}\n{text}");
    (text, open)
}

impl Writer<'_> {
    fn push(&mut self, text: String, open: bool) {
        self.lines.push(Line { text, open });
    }

    /// A comment behind a line, or nothing.
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

    /// A comment on a line of its own, or a blank line.
    fn between(&mut self, indent: usize, open: bool) {
        if self.rng.chance(self.comments / 3.0) {
            self.notes += 1;
            let text = format!("{}# about {}", " ".repeat(indent), self.notes);
            self.push(text, open);
        } else if self.rng.chance(0.05) {
            self.push(String::new(), true);
        }
    }

    /// The entries of a map; `first` stands before the first of them in place of its indentation.
    fn map(&mut self, map: &Value, indent: usize, first: &str, path: &mut Vec<String>) {
        let Value::Object(entries) = map else { panic!("expected an object") };
        for (i, (key, value)) in entries.iter().enumerate() {
            path.push(key.clone());
            let open = is_open(path, value);
            let mut lead = " ".repeat(indent);
            if i == 0 && !first.is_empty() {
                first.clone_into(&mut lead);
            } else {
                // A comment above something that is removed stays; one inside of it goes.
                self.between(indent, open);
            }
            self.entry(&format!("{lead}{key}:"), value, indent, path, open);
            path.pop();
        }
    }

    fn entry(&mut self, head: &str, value: &Value, indent: usize, path: &mut Vec<String>, open: bool) {
        let is_list = path.last().is_some_and(|key| key.ends_with("ontainers"));
        let block = match value {
            Value::Object(map) => !map.is_empty() && (path.len() < 2 || !self.rng.chance(self.flow)),
            // A whole pod on one line is not what anybody writes.
            Value::Array(items) => !items.is_empty() && (is_list || !self.rng.chance(self.flow)),
            _ => false,
        };
        if !block {
            let note = self.note();
            let inline = self.inline(value);
            // What is on one line is touched as a whole.
            let is = |key: &str| path.last().is_some_and(|last| last == key);
            let gets_more = is("env") || (is("metadata") && path.len() == 1);
            let open = open || gets_more || is_list || holds_marks(value);
            return self.push(format!("{head} {inline}{note}"), open);
        }
        let note = self.note();
        // A list whose last entry goes, goes with it. Mains never do.
        let all_go = match path.last().map(String::as_str) {
            Some("initContainers") => true,
            Some("env") => value.as_array().is_some_and(|items| items.iter().all(holds_marks)),
            _ => false,
        };
        self.push(format!("{head}{note}"), open || all_go);
        match value {
            Value::Object(_) => self.map(value, indent + 2, "", path),
            Value::Array(items) => {
                let indent = indent + self.list_indent;
                for (i, item) in items.iter().enumerate() {
                    path.push(i.to_string());
                    self.item(item, indent, path);
                    path.pop();
                }
            }
            _ => {}
        }
    }

    fn item(&mut self, item: &Value, indent: usize, path: &mut Vec<String>) {
        let lead = " ".repeat(indent);
        let open = is_open(path, item);
        self.between(indent, open);
        let gap = self.rng.pick(&[" ", " ", "   "]);
        match item {
            Value::Object(map) if !map.is_empty() && !self.rng.chance(self.flow) => {
                let start = self.lines.len();
                self.map(item, indent + 1 + gap.len(), &format!("{lead}-{gap}"), path);
                // All of an entry that is removed goes with it.
                if open {
                    self.lines[start..].iter_mut().for_each(|line| line.open = true);
                }
            }
            _ => {
                let (inline, note) = (self.inline(item), self.note());
                // A container on one line gets its new fields there.
                let is_container = path.len() == 3;
                self.push(format!("{lead}-{gap}{inline}{note}"), open || is_container || holds_marks(item));
            }
        }
    }

    /// A value on one line, with all the spaces YAML allows.
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

/// Whether a value says something about order somewhere.
fn holds_marks(value: &Value) -> bool {
    match value {
        Value::Object(map) => map.iter().any(|(key, value)| {
            ["lifecycle", "restartPolicy", "type", "annotations"].contains(&key.as_str())
                || holds_marks(value)
        }),
        Value::Array(items) => items.iter().any(holds_marks),
        Value::String(text) => text.starts_with("KRUISE_"),
        _ => false,
    }
}

/// Whether a conversion may change or remove what stands at a path.
fn is_open(path: &[String], value: &Value) -> bool {
    let has = |key: &str| path.iter().any(|part| part == key);
    let is = |key: &str| path.last().is_some_and(|part| part == key);
    let in_container = path.len() > 2;
    has("annotations")
        || (in_container && is("restartPolicy"))
        // `type` is all there is in some.
        || (in_container && (is("lifecycle") || (has("lifecycle") && is("type"))))
        || (has("env") && in_container && holds_marks(value))
}
