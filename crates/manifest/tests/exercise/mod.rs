//! Checks that must hold for any bytes: no panic, no unbounded work, and correct edits. The mutation test and
//! the fuzz targets use them.

use outrigger_lifecycle::convert::{Target, convert as edits_to};
use outrigger_lifecycle::{FeatureGates, FieldPath, Finding, plan};
use outrigger_manifest::convert::apply;
use outrigger_manifest::edit::Editor;
use outrigger_manifest::{
    Diagnostic, Node, ReadOptions, SourceFile, Validate, Value, check_services, read, render, to_json,
};

/// Reads the bytes in every mode, and uses every part of the result.
pub(crate) fn manifest(bytes: &[u8]) {
    let Ok(source) = SourceFile::from_bytes("fuzz.yaml", bytes.to_vec()) else { return };
    let sources = [source];
    for validate in [Validate::Strict, Validate::Warn, Validate::Ignore] {
        let options = ReadOptions { validate, ..ReadOptions::default() };
        match read(&sources, &options) {
            Err(found) => {
                assert!(!found.0.is_empty());
                show(&found.0, &sources);
            }
            Ok(manifest) => {
                assert!(!manifest.pods.is_empty());
                show(&manifest.warnings, &sources);
                show(&check_services(&manifest), &sources);
                for pod in &manifest.pods {
                    let missing = FieldPath::spec("containers").index(0).field("nothing");
                    for path in [FieldPath::root(), FieldPath::annotation("a/b"), missing] {
                        if let Some(span) = pod.locate(&path) {
                            sources[span.file].slice(span);
                        }
                        pod.locate_key(&path);
                        let finding = Finding::error("fuzz", path.clone(), "x").related(path, "y");
                        show(&[Diagnostic::from_finding(&finding, pod)], &sources);
                    }
                }
            }
        }
    }
}

fn show(diagnostics: &[Diagnostic], sources: &[SourceFile]) {
    let few = &diagnostics[..diagnostics.len().min(5)];
    render(few, sources, true);
    to_json(few, sources);
}

/// Edits a text at places derived from the text itself, so that a seed can be an ordinary manifest.
pub(crate) fn edit_anywhere(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let choice = bytes.iter().fold(7_u64, |hash, &byte| hash.wrapping_mul(31).wrapping_add(u64::from(byte)));
    edit(text, choice);
}

/// Converts a pod to every dialect. Either the edit is refused, or the text can be read afterwards.
pub(crate) fn convert(bytes: &[u8]) {
    let Ok(source) = SourceFile::from_bytes("fuzz.yaml", bytes.to_vec()) else { return };
    let options = ReadOptions::default();
    let Ok(manifest) = read(std::slice::from_ref(&source), &options) else { return };
    let pod = &manifest.pods[0];
    let Ok(planned) = plan(&pod.input, &FeatureGates::default()) else { return };
    for target in [Target::Native, Target::Kep, Target::Priority, Target::DependsOn] {
        let Ok(mut editor) = Editor::new(&source.text, pod.origin.document_index) else { return };
        let edits = edits_to(&pod.input, &planned.plan, target);
        if edits.iter().all(|edit| apply(&mut editor, pod, edit).is_ok()) {
            let text = editor.finish();
            let again = read(&[SourceFile::new("fuzz.yaml", text.as_str())], &options);
            assert!(again.is_ok(), "{target:?}: {again:?}\n{text}");
        }
    }
}

/// Edits the text at places chosen by `choice`. An edit is either refused and changes nothing, or makes
/// exactly the requested change. The editor checks that itself, so only its results are checked here.
pub(crate) fn edit(text: &str, choice: u64) {
    let Ok(mut editor) = Editor::new(text, (choice % 2) as usize) else { return };
    let mut choice = choice / 2;
    let mut pick = |among: usize| {
        // SplitMix64: the same choice leads to the same edits.
        choice = choice.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = choice;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) % among.max(1) as u64) as usize
    };
    for _ in 0..4 {
        let mut paths = Vec::new();
        collect(editor.root(), &FieldPath::root(), &mut paths);
        let path = paths[pick(paths.len())].clone();
        let other = paths[pick(paths.len())].clone();
        let value = match pick(4) {
            0 => serde_json::json!("text: é"),
            1 => serde_json::json!(7),
            2 => serde_json::json!({"a": [1, {"b": "c"}], "d": {}}),
            _ => serde_json::json!(["x", ["y"], {"z": null}]),
        };
        let before = editor.text().to_owned();
        let done = match pick(6) {
            0 => editor.set(&path, &value),
            1 => editor.insert(&path, "new", &value, Some("name")),
            2 => editor.remove(&path),
            3 => editor.append_item(&path, &value),
            4 => editor.prune(&path),
            _ => editor.move_item(&path, &other, pick(3)),
        };
        match done {
            Err(_) => assert_eq!(editor.text(), before, "a refused edit changes nothing"),
            Ok(()) => {
                Editor::new(editor.text(), 0).expect("an edited text can be read");
            }
        }
    }
}

/// The paths of a tree to try.
fn collect(node: &Node, path: &FieldPath, out: &mut Vec<FieldPath>) {
    const PATHS_MAX: usize = 2_000;
    if out.len() >= PATHS_MAX {
        return;
    }
    out.push(path.clone());
    match &node.value {
        Value::Scalar(_) => {}
        Value::Seq(items) => {
            for (index, item) in items.iter().enumerate() {
                collect(item, &path.clone().index(index), out);
            }
        }
        Value::Map(entries) => {
            for entry in entries {
                collect(&entry.value, &path.clone().field(entry.key.to_string()), out);
            }
        }
    }
}
