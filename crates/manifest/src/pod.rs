//! A pod from a manifest, and the text positions of its fields.

use std::sync::Arc;

use outrigger_lifecycle::{FieldPath, Finding, PodInput, Segment};

use crate::diagnostic::Diagnostic;
use crate::span::Span;
use crate::tree::{Node, Value, Walk};

/// One pod to run, and where it was written.
#[derive(Debug, Clone, PartialEq)]
pub struct PodManifest {
    /// The pod, with Kubernetes' defaults applied.
    pub input: PodInput,
    /// The object it comes from.
    pub origin: Origin,
}

/// Where a pod comes from.
#[derive(Debug, Clone, PartialEq)]
pub struct Origin {
    /// The kind of the object that the user wrote: `Pod`, `Job`, `Deployment`, ….
    pub kind: &'static str,
    /// Its apiVersion.
    pub api_version: &'static str,
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// How many pods the object has at the same time. This pod represents all of them, because they differ
    /// only in name and index.
    pub count: usize,
    /// The index of the object in [`Manifest::workloads`](crate::Manifest::workloads).
    pub workload: usize,
    /// The position of the document.
    pub document: Span,
    /// The index of the document in its file, from 0. [`edit`](crate::edit) needs it.
    pub document_index: usize,
    /// The path from the document to the object: empty, or `items[3]` in a List.
    pub object_path: FieldPath,
    /// The path from the object to the pod: empty for a Pod, `spec.template` for a Deployment.
    pub template_path: FieldPath,
    /// The spanned tree of the object.
    pub(crate) object: Arc<Node>,
}

impl PodManifest {
    /// The pod's name.
    pub fn name(&self) -> &str {
        self.input.pod.metadata.name.as_deref().unwrap_or_default()
    }

    /// The pod's namespace.
    pub fn namespace(&self) -> &str {
        self.input.pod.metadata.namespace.as_deref().unwrap_or_default()
    }

    /// The position of the value at a path of the pod. If there is no value, the position of its nearest
    /// existing parent. `None` only if the pod's template was not written at all.
    pub fn locate(&self, path: &FieldPath) -> Option<Span> {
        let walk = self.walk(path)?;
        Some(walk.node.alias.unwrap_or(walk.node.span))
    }

    /// The position of the key at a path of the pod. For a list entry, or if there is no value, the nearest
    /// key around it.
    pub fn locate_key(&self, path: &FieldPath) -> Option<Span> {
        for len in (0..=path.0.len()).rev() {
            let prefix = FieldPath(path.0[..len].to_vec());
            if let Some(walk) = self.walk(&prefix)
                && walk.steps == len
                && let Some(key) = walk.key
            {
                return Some(key);
            }
        }
        None
    }

    /// The position to show for a message about a path of the pod; see [`Origin::point`].
    pub fn point(&self, path: &FieldPath) -> Span {
        self.origin.point(path)
    }

    /// The path from the document's root to a path of the pod. The editor needs it.
    pub fn document_path(&self, path: &FieldPath) -> FieldPath {
        let parts = [&self.origin.object_path, &self.origin.template_path, path];
        FieldPath(parts.iter().flat_map(|part| part.0.iter().cloned()).collect())
    }

    /// The node at a path of the pod.
    pub fn node(&self, path: &FieldPath) -> Option<&Node> {
        let walk = self.walk(path)?;
        (walk.steps == path.0.len()).then_some(walk.node)
    }

    fn walk(&self, path: &FieldPath) -> Option<Walk<'_>> {
        self.origin.walk(path)
    }
}

/// The only piece of a text that is not empty. In a block with one line, this is that line and not the `|`
/// above it.
fn only_line(pieces: &[Span]) -> Option<Span> {
    let mut lines = pieces.iter().filter(|piece| !piece.is_empty());
    lines.next().copied().filter(|_| lines.next().is_none())
}

impl Origin {
    /// The position to show for a message about a path of the pod. This is the scalar itself. For a map, a
    /// list or a missing value, it is the key or the first line.
    pub fn point(&self, path: &FieldPath) -> Span {
        let Some(walk) = self.walk(path) else {
            return self.object.head();
        };
        if let (Value::Scalar(scalar), Some(Segment::Index(piece))) = (&walk.node.value, path.0.last())
            && walk.steps + 1 == path.0.len()
        {
            // One piece of a text, if the position of each piece is known.
            let place = scalar.pieces.get(*piece).filter(|_| walk.node.alias.is_none());
            return place.copied().unwrap_or_else(|| walk.node.head());
        }
        if let Value::Scalar(scalar) = &walk.node.value
            && walk.steps == path.0.len()
            && walk.node.alias.is_none()
            && let Some(line) = only_line(&scalar.pieces)
        {
            return line;
        }
        match (&walk.node.value, walk.key) {
            (Value::Scalar(_), _) if walk.steps == path.0.len() && !walk.node.span.is_empty() => {
                walk.node.head()
            }
            (_, Some(key)) => key,
            // For a list entry with several lines, the name is shown.
            _ => match walk.node.entry("name") {
                Some(name) if walk.node.alias.is_none() => name.value.head(),
                _ => walk.node.head(),
            },
        }
    }

    fn walk(&self, path: &FieldPath) -> Option<Walk<'_>> {
        let template = self.object.at(&self.template_path);
        // A pod of a Job takes its name and namespace from the Job. The template has none, so the Job's are
        // shown.
        let of_owner = matches!(
            path.0.as_slice(),
            [Segment::Field(meta), Segment::Field(name)]
                if meta == "metadata" && ["name", "generateName", "namespace"].contains(&&**name)
        );
        match template {
            Some(template) if of_owner && template.at(path).is_none() => Some(self.object.walk(path)),
            Some(template) => {
                let walk = template.walk(path);
                if walk.steps > 0 || path.0.is_empty() {
                    return Some(walk);
                }
                // There is no `spec`, so the template's own key is the nearest.
                let whole = self.object.walk(&self.template_path);
                Some(Walk { node: whole.node, key: whole.key, steps: 0 })
            }
            None => None,
        }
    }
}

impl Diagnostic {
    /// A diagnostic from a finding. The finding's paths become positions in the pod's manifest.
    pub fn from_finding(finding: &Finding, pod: &PodManifest) -> Self {
        Diagnostic {
            severity: finding.severity,
            code: Some(finding.name()),
            message: finding.message.clone(),
            span: Some(pod.point(&finding.path)),
            labels: finding.related.iter().map(|(path, label)| (pod.point(path), label.clone())).collect(),
            hint: finding.hint.clone(),
        }
    }
}
