//! Edits the text of a manifest pod by pod, and reads the result again to see what became of each.

use anyhow::{Context, anyhow};
use outrigger_lifecycle::convert::{Difference, Edit, Target, compare, convert as edits_to};
use outrigger_lifecycle::{Dialect, FieldPath, Plan, Segment};
use outrigger_manifest::edit::{EditError, Editor};
use outrigger_manifest::{Diagnostic, PodManifest, Severity, SourceFile};

use crate::input::{self, Checked, ReadArgs};
use crate::outcome::Failure;

/// What a conversion comes to.
pub(super) struct Converted {
    /// The new text.
    pub(super) text: String,
    /// What is lost, where it was written.
    lost: Vec<Diagnostic>,
    /// What else is different.
    pub(super) notes: Vec<String>,
}

impl Converted {
    /// What is lost, as errors or warnings.
    pub(super) fn losses(&self, severity: Severity) -> Vec<Diagnostic> {
        let with = |d: &Diagnostic| Diagnostic { severity, ..d.clone() };
        self.lost.iter().map(with).collect()
    }
}

/// Converts every pod of a text.
pub(super) fn convert(
    text: &str,
    pods: &[Checked<'_>],
    target: Target,
    read: &ReadArgs,
) -> Result<Converted, Failure> {
    let mut text = text.to_owned();
    let mut notes = Vec::new();
    for pod in pods {
        let Some(planned) = &pod.planned else { continue };
        let edits = edits_to(&pod.pod.input, &planned.plan, target);
        notes.extend(copied_probes(&edits, &planned.plan));
        if !edits.is_empty() {
            text = edit(&text, pod.pod, &edits).map_err(|e| Failure::Input(e.into()))?;
        }
    }
    let sources = [SourceFile::new("<converted>", text.as_str())];
    let manifest = read
        .read(&sources)
        .map_err(|e| Failure::Own(anyhow!("the converted manifest cannot be read: {e}")))?;
    let after = input::check(&manifest, &read.features());
    let mut converted = Converted { text: text.clone(), lost: Vec::new(), notes };
    for (old, new) in pods.iter().zip(&after) {
        let Some(before) = &old.planned else { continue };
        let after = new.planned.as_ref().with_context(|| {
            let first = new.diagnostics.iter().find(|d| d.severity == Severity::Error);
            let why = first.map_or("", |d| d.message.as_str());
            format!("pod {} cannot be expressed in {}: {why}", old.pod.name(), target.dialect().name())
        });
        let after = &after.map_err(Failure::Input)?.plan;
        for difference in compare(&before.plan, after) {
            converted.tell(old.pod, &difference);
        }
        let others = after.dialects.iter().filter(|d| {
            **d != target.dialect() && !(target == Target::Priority && **d == Dialect::Terminator)
        });
        for dialect in others {
            let (name, other) = (old.pod.name(), dialect.name());
            converted.notes.push(format!(
                "part of {name} stays {other}: the dialect {} cannot express it",
                target.dialect().name()
            ));
        }
    }
    Ok(converted)
}

impl Converted {
    fn tell(&mut self, pod: &PodManifest, difference: &Difference) {
        if difference.loss {
            let mut lost = Diagnostic::error(pod.point(&difference.place.path()), &difference.text);
            lost.code = Some("lost");
            self.lost.push(lost);
        } else {
            self.notes.push(difference.text.clone());
        }
    }
}

/// Says so where a probe is not only moved but copied.
fn copied_probes(edits: &[Edit], plan: &Plan) -> Vec<String> {
    let copied = |edit: &Edit| match edit {
        Edit::Insert { map, key: "startupProbe", .. } => {
            let c = plan.containers.iter().find(|c| c.place.path() == *map)?;
            Some(format!(
                "the readiness probe of `{}` is now its startup probe too, so that others still wait until it is ready",
                c.name
            ))
        }
        _ => None,
    };
    edits.iter().filter_map(copied).collect()
}

/// Carries the edits of one pod out.
fn edit(text: &str, pod: &PodManifest, edits: &[Edit]) -> Result<String, EditError> {
    let mut editor = Editor::new(text, pod.origin.document_index)?;
    for edit in edits {
        apply(&mut editor, pod, edit)?;
    }
    Ok(editor.finish())
}

/// Carries one edit out.
pub(super) fn apply(editor: &mut Editor, pod: &PodManifest, edit: &Edit) -> Result<(), EditError> {
    let at = |path: &FieldPath| pod.document_path(path);
    match edit {
        Edit::Set { path, value } => {
            editor.set(&at(path), value)?;
            if let Some(text) = as_lines(editor, &at(path)) {
                *editor = Editor::new(&text, pod.origin.document_index)?;
            }
            Ok(())
        }
        Edit::Insert { map, key, value, after } => editor.insert(&at(map), key, value, Some(after)),
        Edit::Append { list, value } => editor.append_item(&at(list), value),
        Edit::Prune { path } => editor.prune(&at(path)),
        Edit::Move { from, to, index } => editor.move_item(&at(from), &at(to), *index),
    }
}

/// The text with a string of several lines written as such (`key: |`), where it was just written as a quoted one.
fn as_lines(editor: &Editor, path: &FieldPath) -> Option<String> {
    let (text, node) = (editor.text(), editor.root().at(path)?);
    let value = node.to_json();
    let (span, value) = (node.span, value.as_str()?.strip_suffix('\n')?);
    let line = &text[text[..span.start].rfind('\n').map_or(0, |i| i + 1)..span.start];
    let indent = line.len() - line.trim_start().len();
    let Some(Segment::Field(key)) = path.0.last() else { return None };
    // Only behind a key in block style; and nothing that would read differently without quotes.
    let alone = line.trim_start() == format!("{key}: ");
    let plain = value.lines().all(|l| !l.is_empty() && !l.starts_with(' ')) && !value.contains(['\t', '\r']);
    if !text[span.start..].starts_with('"') || !alone || !plain {
        return None;
    }
    let lines: String = value.lines().map(|l| format!("\n{}{l}", " ".repeat(indent + 2))).collect();
    let mut text = text.to_owned();
    text.replace_range(span.start..span.end, &format!("|{lines}"));
    Some(text)
}
