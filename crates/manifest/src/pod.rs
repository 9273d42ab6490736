//! A pod that came out of a manifest, and the way back from it into the text.

use std::sync::Arc;

use outrigger_lifecycle::{FieldPath, PodInput, Segment};

use crate::span::Span;
use crate::tree::{Node, Value, Walk};

/// One pod to run, and where it was written.
#[derive(Debug, Clone, PartialEq)]
pub struct PodManifest {
    /// The pod, Kubernetes' defaults applied.
    pub input: PodInput,
    /// What it came out of.
    pub origin: Origin,
}

/// Where a pod comes from.
#[derive(Debug, Clone, PartialEq)]
pub struct Origin {
    /// The kind the user wrote: `Pod`, `Job`, `Deployment`, ….
    pub kind: &'static str,
    /// Its apiVersion.
    pub api_version: &'static str,
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Which of its pods this is, from 0.
    pub replica: usize,
    /// Which of [`Manifest::workloads`](crate::Manifest::workloads) it is.
    pub workload: usize,
    /// Where the document stands.
    pub document: Span,
    /// Which document of its file the object stands in, from 0; what [`edit`](crate::edit) asks for.
    pub document_index: usize,
    /// The way from the document to the object: empty, or `items[3]` in a List.
    pub object_path: FieldPath,
    /// The way from the object to the pod: empty for a Pod, `spec.template` for a Deployment.
    pub template_path: FieldPath,
    /// The object's tree.
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

    /// Where the value at a path of the pod stands; if nothing stands there, the nearest thing around it that does.
    /// `None` only if not even the pod's template was written.
    pub fn locate(&self, path: &FieldPath) -> Option<Span> {
        let walk = self.walk(path)?;
        Some(walk.node.alias.unwrap_or(walk.node.span))
    }

    /// Where the key of a path of the pod stands; for a list entry, or if nothing stands there, the nearest key around
    /// it.
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

    /// The place to show for a message about a path of the pod; see [`Origin::point`].
    pub fn point(&self, path: &FieldPath) -> Span {
        self.origin.point(path)
    }

    /// The path from the document's root to a place in the pod, as the editor needs it.
    pub fn document_path(&self, path: &FieldPath) -> FieldPath {
        let parts = [&self.origin.object_path, &self.origin.template_path, path];
        FieldPath(parts.iter().flat_map(|part| part.0.iter().cloned()).collect())
    }

    /// What was written at a path of the pod.
    pub fn node(&self, path: &FieldPath) -> Option<&Node> {
        let walk = self.walk(path)?;
        (walk.steps == path.0.len()).then_some(walk.node)
    }

    fn walk(&self, path: &FieldPath) -> Option<Walk<'_>> {
        self.origin.walk(path)
    }
}

impl Origin {
    /// The place to show for a message about a path of the pod: a scalar itself; of anything bigger, or anything that
    /// is missing, the key or first line that stands for it.
    pub fn point(&self, path: &FieldPath) -> Span {
        let Some(walk) = self.walk(path) else {
            return self.object.head();
        };
        if let (Value::Scalar(scalar), Some(Segment::Index(piece))) = (&walk.node.value, path.0.last())
            && walk.steps + 1 == path.0.len()
        {
            // A piece of a text, if each of them has a place.
            let place = scalar.pieces.get(*piece).filter(|_| walk.node.alias.is_none());
            return place.copied().unwrap_or_else(|| walk.node.head());
        }
        match (&walk.node.value, walk.key) {
            (Value::Scalar(_), _) if walk.steps == path.0.len() && !walk.node.span.is_empty() => {
                walk.node.head()
            }
            (_, Some(key)) => key,
            // A list entry of many lines is best known by its name.
            _ => match walk.node.entry("name") {
                Some(name) if walk.node.alias.is_none() => name.value.head(),
                _ => walk.node.head(),
            },
        }
    }

    fn walk(&self, path: &FieldPath) -> Option<Walk<'_>> {
        let template = self.object.at(&self.template_path);
        // A pod of a Job has the Job's name and namespace: point there, the template has none.
        let of_owner = matches!(
            path.0.as_slice(),
            [Segment::Field(meta), Segment::Field(name)] if meta == "metadata" && (name == "name" || name == "namespace")
        );
        match template {
            Some(template) if of_owner && template.at(path).is_none() => Some(self.object.walk(path)),
            Some(template) => {
                let walk = template.walk(path);
                if walk.steps > 0 || path.0.is_empty() {
                    return Some(walk);
                }
                // Not even `spec` is there: the template's own key is the nearest thing.
                let whole = self.object.walk(&self.template_path);
                Some(Walk { node: whole.node, key: whole.key, steps: 0 })
            }
            None => None,
        }
    }
}
