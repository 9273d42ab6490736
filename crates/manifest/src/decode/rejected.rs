//! Hints for spellings that the sidecar proposal considered and rejected. Each hint has the accepted spelling
//! as text to paste, with the container names of the user's manifest.
//!
//! A hint fits the manifest: it does not repeat keys, and suggests nothing that the manifest already has.

mod graph;

use outrigger_lifecycle::annotations::SIDECARS;
use outrigger_lifecycle::{FieldPath, Segment};

use crate::tree::{Entry, Node};

/// The replacement for a field that a type does not have; `None` if it is not one of the rejected spellings.
/// `path` leads from `root` to the map that has the field.
pub(super) fn rejected_field_hint(
    type_name: &str,
    entry: &Entry,
    path: &FieldPath,
    root: &Node,
) -> Option<String> {
    let key = entry.key.to_ascii_lowercase();
    match (type_name, key.as_str()) {
        ("Container", "sidecar" | "type" | "lifecycletype") => mark(entry, path, root),
        // The field is one level too deep.
        ("Lifecycle", "sidecar") => mark(entry, &parent(path), root),
        ("PodSpec", "sidecarcontainers" | "infrastructurecontainers") => {
            Some(separate_list(entry, root.at(path)?))
        }
        ("JobSpec" | "PodSpec" | "Container", key) if graph::FIELDS.contains(&key) => {
            Some(graph::hint(&pod_path(type_name, path), entry, root))
        }
        _ => None,
    }
}

/// The replacement for `lifecycle: Sidecar`.
pub(super) fn lifecycle_word(text: &str) -> Option<String> {
    let word = ["Sidecar", "Standard"].into_iter().find(|w| w.eq_ignore_ascii_case(text))?;
    Some(format!("write\n    lifecycle:\n      type: {word}"))
}

/// Whether a field marks its container as a sidecar; `None` if the field is not such a mark.
fn is_mark(entry: &Entry) -> Option<bool> {
    let value = entry.value.text()?.to_ascii_lowercase();
    match entry.key.to_ascii_lowercase().as_str() {
        "sidecar" => Some(is_true(&value)),
        "type" | "lifecycletype" => Some(is_sidecar_word(&value)),
        _ => None,
    }
}

fn is_true(value: &str) -> bool {
    ["true", "yes", "on"].iter().any(|word| value.eq_ignore_ascii_case(word))
}

/// The hint for `sidecar: true` or `type: sidecar` in a container at `path`.
fn mark(entry: &Entry, path: &FieldPath, root: &Node) -> Option<String> {
    if !is_mark(entry)? {
        return Some("remove it: a container that is not marked as a sidecar is a main container".to_owned());
    }
    let container = root.at(path)?;
    let name = name(container).unwrap_or("NAME");
    let is_first = |other: &Entry| other.key_span == entry.key_span;
    let marks = container.entries().unwrap_or_default().iter().find(|e| is_mark(e) == Some(true));
    if let Some(first) = marks.filter(|first| !is_first(first)) {
        return Some(format!("remove it: what is suggested for `{}` covers it", first.key));
    }
    let init_list = root.at(&parent(&parent(path)).field("initContainers")).filter(|list| !list.is_null());
    if matches!(path.0.as_slice(), [.., Segment::Field(list), _] if list == "initContainers") {
        return Some(match container.get("restartPolicy").and_then(Node::text) {
            None => format!("write this instead, in `{name}`:\n      restartPolicy: Always"),
            Some("Always") => {
                format!("remove it: `{name}` is a sidecar already, by its `restartPolicy: Always`")
            }
            Some(other) => format!(
                "write this instead, in place of `restartPolicy: {other}` of `{name}`:\n      restartPolicy: Always"
            ),
        });
    }
    if is_named(name, &parent(&parent(&parent(path))), root) {
        return Some(format!("remove it: `{name}` is a sidecar already, by the annotation {SIDECARS}"));
    }
    let lifecycle = container.get("lifecycle");
    let kep = match (lifecycle, lifecycle_type(container)) {
        (_, Some(word)) if is_sidecar_word(word) => {
            return Some(format!("remove it: `{name}` is a sidecar already, by its `lifecycle`"));
        }
        (_, Some(word)) => {
            // An init container cannot have a type.
            return Some(format!(
                "write this instead, in place of `type: {word}` in the `lifecycle` of `{name}`:\n      type: Sidecar"
            ));
        }
        (Some(_), None) => {
            format!("write this instead, in the `lifecycle` of `{name}`:\n      type: Sidecar")
        }
        (None, None) => {
            format!("write this instead, in `{name}`:\n      lifecycle:\n        type: Sidecar")
        }
    };
    let native = moved(&[container], init_list.is_some());
    Some(format!("{kep}\nor, as Kubernetes 1.29 and later have it, move the container{native}"))
}

/// The hint for `sidecarContainers` in a pod.
fn separate_list(entry: &Entry, spec: &Node) -> String {
    let containers: Vec<&Node> = entry.value.items().unwrap_or_default().iter().collect();
    if entry.value.is_null() || entry.value.items().is_some_and(<[Node]>::is_empty) {
        return "remove it: it has no containers".to_owned();
    }
    let has_list = spec.get("initContainers").is_some_and(|list| !list.is_null());
    format!("move its containers{}", moved(&containers, has_list))
}

/// Text to paste with the containers as native sidecars. If the list exists, they are added at its end.
fn moved(containers: &[&Node], has_list: bool) -> String {
    let mut out = match has_list {
        true => " to the end of `initContainers`:".to_owned(),
        false => " to `initContainers`:\n    initContainers:".to_owned(),
    };
    for container in containers {
        let name = name(container).unwrap_or("NAME");
        // A map must not have the same key twice.
        let without = container.get("restartPolicy").map_or("", |_| ", without its `restartPolicy`");
        out.push_str(&format!(
            "\n    - name: {name}\n      restartPolicy: Always\n      …the rest of `{name}`{without}"
        ));
    }
    out
}

/// The path of the pod (or pod template) that contains a rejected field.
fn pod_path(type_name: &str, path: &FieldPath) -> FieldPath {
    match type_name {
        "JobSpec" => path.clone().field("template"),
        // `….spec`
        "PodSpec" => parent(path),
        // `….spec.containers[0]`
        _ => parent(&parent(&parent(path))),
    }
}

fn parent(path: &FieldPath) -> FieldPath {
    FieldPath(path.0[..path.0.len().saturating_sub(1)].to_vec())
}

fn name(container: &Node) -> Option<&str> {
    container.get("name").and_then(Node::text).filter(|name| !name.is_empty())
}

/// Whether the annotation of the pod at `pod` names a container as a sidecar.
fn is_named(container: &str, pod: &FieldPath, root: &Node) -> bool {
    let annotation = root.at(&pod.clone().field("metadata").field("annotations").field(SIDECARS));
    let names = annotation.and_then(Node::text).unwrap_or_default();
    names.split(',').any(|name| name.trim() == container)
}

/// The value in `lifecycle: VALUE` or `lifecycle: {type: VALUE}` of a container.
fn lifecycle_type(container: &Node) -> Option<&str> {
    let lifecycle = container.get("lifecycle").filter(|node| !node.is_null())?;
    lifecycle.text().or_else(|| lifecycle.get("type").and_then(Node::text))
}

fn is_sidecar_word(word: &str) -> bool {
    word.eq_ignore_ascii_case("sidecar")
}

/// A field by its lower-case name.
fn field<'n>(map: &'n Node, key: &str) -> Option<&'n Entry> {
    map.entries()?.iter().find(|entry| entry.key.eq_ignore_ascii_case(key))
}
