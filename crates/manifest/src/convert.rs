//! Converts the text of a manifest to another dialect, pod by pod, and compares the plans before and after.

use outrigger_lifecycle::convert::{
    Difference, Edit, Target, compare, compare_restarts, convert as edits_to, keep_restarts,
};
use outrigger_lifecycle::{Dialect, FeatureGates, FieldPath, Plan, Segment, Severity};

use crate::check::{Checked, check};
use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::edit::{EditError, Editor};
use crate::pod::PodManifest;
use crate::read::{ReadOptions, read};
use crate::span::SourceFile;

/// The result of a conversion.
#[derive(Debug)]
pub struct Converted {
    /// The new text.
    pub text: String,
    /// The lost guarantees, at the containers that lose them.
    lost: Vec<Diagnostic>,
    /// Other differences.
    pub notes: Vec<String>,
}

/// Why a manifest cannot be converted.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    /// The text cannot be edited.
    #[error(transparent)]
    Edit(#[from] EditError),
    /// The dialect cannot express the order of a pod.
    #[error("pod {pod} cannot be expressed in {dialect}: {why}")]
    NotExpressible {
        /// The name of the pod.
        pod: String,
        /// The dialect.
        dialect: &'static str,
        /// The first error in the converted pod.
        why: String,
    },
    /// The converted text cannot be read. This is a bug.
    #[error("the converted manifest cannot be read: {0}")]
    Unreadable(Diagnostics),
}

impl Converted {
    /// The lost guarantees, as errors or warnings.
    pub fn losses(&self, severity: Severity) -> Vec<Diagnostic> {
        let with = |d: &Diagnostic| Diagnostic { severity, ..d.clone() };
        self.lost.iter().map(with).collect()
    }
}

/// Converts every pod of a text to another dialect. `pods` are the checked pods of the text. `options` and
/// `features` are those with which the text was read and checked.
///
/// # Errors
/// The text cannot be edited, or the dialect cannot express a pod.
pub fn convert(
    text: &str,
    pods: &[Checked<'_>],
    target: Target,
    options: &ReadOptions,
    features: &FeatureGates,
) -> Result<Converted, ConvertError> {
    let mut text = text.to_owned();
    let mut notes = Vec::new();
    for pod in pods {
        let Some(planned) = &pod.planned else { continue };
        let edits = edits_to(&pod.pod.input, &planned.plan, target);
        notes.extend(copied_probes(&edits, &planned.plan));
        if !edits.is_empty() {
            text = edit(&text, pod.pod, &edits)?;
        }
    }
    text = with_restarts_kept(text, pods, options, features)?;
    let sources = [SourceFile::new("<converted>", text.as_str())];
    let manifest = read(&sources, options).map_err(ConvertError::Unreadable)?;
    let after = check(&manifest, features);
    let mut converted = Converted { text: text.clone(), lost: Vec::new(), notes };
    for (old, new) in pods.iter().zip(&after) {
        let Some(before) = &old.planned else { continue };
        let after = new.planned.as_ref().ok_or_else(|| {
            let first = new.diagnostics.iter().find(|d| d.severity == Severity::Error);
            ConvertError::NotExpressible {
                pod: old.pod.name().to_owned(),
                dialect: target.dialect().name(),
                why: first.map_or(String::new(), |d| d.message.clone()),
            }
        });
        let after = &after?.plan;
        let mut differences = compare(&before.plan, after);
        if is_of_job(old.pod) {
            differences.extend(compare_restarts(&before.plan, after));
        }
        for difference in &differences {
            converted.tell(old.pod, difference);
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

fn is_of_job(pod: &PodManifest) -> bool {
    matches!(pod.origin.kind, "Job" | "CronJob")
}

/// The converted text with annotations that keep which restarts Jobs count, because the defaults of the
/// dialects differ.
fn with_restarts_kept(
    text: String,
    pods: &[Checked<'_>],
    options: &ReadOptions,
    features: &FeatureGates,
) -> Result<String, ConvertError> {
    let sources = [SourceFile::new("<converted>", text.as_str())];
    let manifest = read(&sources, options).map_err(ConvertError::Unreadable)?;
    let mut kept = text.clone();
    for (old, new) in pods.iter().zip(&check(&manifest, features)).filter(|(old, _)| is_of_job(old.pod)) {
        let (Some(before), Some(after)) = (&old.planned, &new.planned) else { continue };
        if let Some(annotation) = keep_restarts(&before.plan, &after.plan) {
            kept = edit(&kept, new.pod, &[annotation])?;
        }
    }
    Ok(kept)
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

/// Notes about probes that were copied and not only moved.
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

/// Applies the edits of one pod to a text.
fn edit(text: &str, pod: &PodManifest, edits: &[Edit]) -> Result<String, EditError> {
    let mut editor = Editor::new(text, pod.origin.document_index)?;
    for edit in edits {
        apply(&mut editor, pod, edit)?;
    }
    Ok(editor.finish())
}

/// Applies one edit of a pod to its text.
///
/// # Errors
/// The text cannot be edited at this path.
pub fn apply(editor: &mut Editor, pod: &PodManifest, edit: &Edit) -> Result<(), EditError> {
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

/// The text with the string at `path` as a block (`key: |`), if it has several lines. The editor writes such
/// strings in quotes.
fn as_lines(editor: &Editor, path: &FieldPath) -> Option<String> {
    let (text, node) = (editor.text(), editor.root().at(path)?);
    let value = node.to_json();
    let (span, value) = (node.span, value.as_str()?.strip_suffix('\n')?);
    let line = &text[text[..span.start].rfind('\n').map_or(0, |i| i + 1)..span.start];
    let indent = line.len() - line.trim_start().len();
    let Some(Segment::Field(key)) = path.0.last() else { return None };
    // This works only after a key in block style, and for text that reads the same without quotes.
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

#[cfg(test)]
mod tests {
    use super::*;

    const YAML: &str = "\
apiVersion: v1
kind: Pod
metadata: {name: p} # ours
spec:
  restartPolicy: Never
  containers:
  - name: app # the work
    image: i
  - name: proxy
    image: i
    lifecycle:
      type: Sidecar
";

    fn converted(text: &str, target: Target) -> Result<Converted, ConvertError> {
        let (options, features) = (ReadOptions::default(), FeatureGates::default());
        let manifest = read(&[SourceFile::new("p", text)], &options).unwrap();
        convert(text, &check(&manifest, &features), target, &options, &features)
    }

    #[test]
    fn text_goes_in_and_text_comes_out() {
        let native = converted(YAML, Target::Native).unwrap();
        assert!(native.text.contains("restartPolicy: Always"), "{}", native.text);
        assert!(!native.text.contains("type: Sidecar"), "{}", native.text);
        assert!(native.text.contains("# ours") && native.text.contains("# the work"), "{}", native.text);
        let json = r#"{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [
            {"name": "app", "image": "i"}, {"name": "s", "image": "i", "lifecycle": {"type": "Sidecar"}}]}}"#;
        let native = converted(json, Target::Native).unwrap();
        let object: serde_json::Value = serde_json::from_str(&native.text).unwrap();
        assert_eq!(object["spec"]["initContainers"][0]["restartPolicy"], "Always", "{}", native.text);
    }

    #[test]
    fn what_is_lost_is_named_with_its_place() {
        let priority = converted(YAML, Target::Priority).unwrap();
        let losses = priority.losses(Severity::Warning);
        assert!(losses.iter().all(|d| d.code == Some("lost") && d.span.is_some()), "{losses:?}");
        assert!(losses.iter().all(|d| d.severity == Severity::Warning), "{losses:?}");
        assert!(!losses.is_empty() || !priority.notes.is_empty(), "launch priorities order starts only");
    }
}
