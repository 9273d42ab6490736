//! Spellings that the sidecar proposal considered and rejected. Each gets a hint with the accepted spelling,
//! as text to paste that names the containers of the user's manifest.

use outrigger_lifecycle::{FieldPath, Segment};

use crate::tree::{Entry, Node, Value};

const ANNOTATION: &str = "outrigger.dev/depends-on";

/// The replacement for a field that a type does not have; `None` if it is not one of the rejected spellings.
/// `path` leads from `root` to the map that has the field.
pub(super) fn hint(type_name: &str, entry: &Entry, path: &FieldPath, root: &Node) -> Option<String> {
    let key = entry.key.to_ascii_lowercase();
    match (type_name, key.as_str()) {
        ("Container", "sidecar" | "type" | "lifecycletype") => mark(entry, path, root),
        // One level too deep.
        ("Lifecycle", "sidecar") => {
            mark(entry, &FieldPath(path.0[..path.0.len().saturating_sub(1)].to_vec()), root)
        }
        ("PodSpec", "sidecarcontainers" | "infrastructurecontainers") => Some(separate_list(entry)),
        ("JobSpec" | "PodSpec", "primarycontainer") => Some(graph(&pod_path(type_name, path), root)),
        ("Container", "primarycontainer") if entry.value.text() == Some("false") => {
            Some("remove it: no container is the primary one unless the pod says so".to_owned())
        }
        (
            "Container",
            "primarycontainer"
            | "terminationfataltopod"
            | "dependson"
            | "depends_on"
            | "startupphase"
            | "startuporder"
            | "shutdownorder",
        ) => {
            // Several containers of the pod may have such a field. They share one annotation, which is shown
            // at the first.
            let pod = pod_path(type_name, path);
            let first = containers(&pod, root).find(|c| wishes(c));
            let here = root.at(path).map(|node| node.span);
            match first.map(|node| node.span) == here || first.is_none() {
                true => Some(graph(&pod, root)),
                false => Some(format!(
                    "the annotation shown for `{}` covers this container too",
                    name(first?).unwrap_or("the first one")
                )),
            }
        }
        _ => None,
    }
}

/// The replacement for `lifecycle: Sidecar`.
pub(super) fn lifecycle_word(text: &str) -> Option<String> {
    let word = ["Sidecar", "Standard"].into_iter().find(|w| w.eq_ignore_ascii_case(text))?;
    Some(format!("write\n    lifecycle:\n      type: {word}"))
}

/// `sidecar: true` and `type: sidecar` of a container.
fn mark(entry: &Entry, path: &FieldPath, root: &Node) -> Option<String> {
    let value = entry.value.text()?.to_ascii_lowercase();
    let said = match entry.key.eq_ignore_ascii_case("sidecar") {
        true => matches!(value.as_str(), "true" | "yes" | "on"),
        false => value == "sidecar",
    };
    if !said {
        return Some("remove it: a container that is not marked as a sidecar is a main container".to_owned());
    }
    let name = root.at(path).and_then(name).unwrap_or("NAME");
    let native = format!(
        "    initContainers:\n    - name: {name}\n      restartPolicy: Always\n      …the rest of the container"
    );
    let is_init = matches!(path.0.as_slice(), [.., Segment::Field(list), _] if list == "initContainers");
    Some(match is_init {
        true => format!("write this instead, in `{name}`:\n      restartPolicy: Always"),
        false => format!(
            "write this instead, in `{name}`:\n      lifecycle:\n        type: Sidecar\n\
             or, as Kubernetes 1.29 and later have it, move the container:\n{native}"
        ),
    })
}

/// `sidecarContainers` of a pod.
fn separate_list(entry: &Entry) -> String {
    let names: Vec<&str> = entry.value.items().unwrap_or_default().iter().filter_map(name).collect();
    let names = if names.is_empty() { vec!["NAME"] } else { names };
    let mut out = String::from("move its containers to the end of `initContainers`:\n    initContainers:");
    for name in names {
        out.push_str(&format!(
            "\n    - name: {name}\n      restartPolicy: Always\n      …the rest of `{name}`"
        ));
    }
    out
}

/// The annotation that replaces all rejected fields of a pod.
fn graph(pod: &FieldPath, root: &Node) -> String {
    let mut lines = Vec::new();
    let primary = primary(pod, root);
    let phased = containers(pod, root).any(|c| field(c, "startupphase").is_some());
    let others = Others {
        start: other_number(pod, root, "startuporder"),
        stop: other_number(pod, root, "shutdownorder"),
    };
    for container in containers(pod, root) {
        let Some(name) = name(container) else { continue };
        let is_primary = primary.as_deref() == Some(name) || says(container, "primarycontainer");
        let clauses = clauses(container, is_primary, phased, others);
        if !clauses.is_empty() {
            lines.push(format!("{name}: {}", clauses.join(", ")));
        }
    }
    if let Some(primary) = primary
        && !lines.iter().any(|line| line.starts_with(&format!("{primary}: ")))
    {
        lines.push(format!("{primary}: primary"));
    }
    let annotations = pod.clone().field("metadata").field("annotations");
    let has = root.at(&annotations.clone().field(ANNOTATION)).is_some_and(|node| !node.is_null());
    let mut out = match has {
        true => format!("add to the annotation {ANNOTATION} instead:"),
        false => {
            let place = pod.clone().field("metadata");
            format!(
                "write it into `{place}` instead:\n    metadata:\n      annotations:\n        {ANNOTATION}: |"
            )
        }
    };
    for line in lines {
        out.push_str(&format!("\n          {line}"));
    }
    out
}

/// The order number for containers that have none.
#[derive(Clone, Copy)]
struct Others {
    start: Option<i64>,
    stop: Option<i64>,
}

/// The number for containers without one, when only one container is numbered: a single number orders
/// nothing. If that container is first, the others come after it; otherwise they come before it.
fn other_number(pod: &FieldPath, root: &Node, key: &str) -> Option<i64> {
    let mut numbers = containers(pod, root).filter_map(|c| number(c, key));
    let only = numbers.next().filter(|_| numbers.next().is_none())?;
    Some(if only > 1 { 1 } else { only.saturating_add(1) })
}

fn number(container: &Node, key: &str) -> Option<i64> {
    field(container, key).and_then(Node::text).and_then(|n| n.parse().ok())
}

/// The clauses of the annotation for one container.
fn clauses(container: &Node, primary: bool, phased: bool, others: Others) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    if let Some(node) = field(container, "dependson").or_else(|| field(container, "depends_on")) {
        out.extend(dependencies(node));
    }
    if let Some(n) = number(container, "startuporder").or(others.start) {
        out.push(format!("start {n}"));
    } else if phased {
        // Of the proposed phases, only `default` is for main containers.
        let phase = field(container, "startupphase").and_then(Node::text).unwrap_or("default");
        out.push(format!("start {}", if phase.eq_ignore_ascii_case("default") { 2 } else { 1 }));
    }
    if let Some(n) = number(container, "shutdownorder").or(others.stop) {
        out.push(format!("stop {n}"));
    }
    if primary {
        out.push("primary".to_owned());
    }
    if says(container, "terminationfataltopod") {
        out.push("fatal".to_owned());
    }
    out
}

/// The names in `dependsOn`: one name, a list, or a map as in Compose.
fn dependencies(node: &Node) -> Vec<String> {
    match &node.value {
        Value::Scalar(_) => node.text().into_iter().map(str::to_owned).collect(),
        Value::Seq(items) => {
            items.iter().filter_map(|i| i.text().or_else(|| name(i))).map(str::to_owned).collect()
        }
        Value::Map(entries) => {
            let need = |entry: &Entry| match entry.value.get("condition").and_then(Node::text) {
                Some("service_healthy") => " ready",
                Some("service_completed_successfully") => " completed",
                _ => "",
            };
            entries.iter().map(|entry| format!("{}{}", entry.key, need(entry))).collect()
        }
    }
}

/// Whether a field of a container is `true`.
fn says(container: &Node, key: &str) -> bool {
    field(container, key).and_then(Node::text) == Some("true")
}

/// Whether a container has a field that the annotation replaces.
fn wishes(container: &Node) -> bool {
    let keys = [
        "primarycontainer",
        "terminationfataltopod",
        "dependson",
        "depends_on",
        "startupphase",
        "startuporder",
        "shutdownorder",
    ];
    keys.into_iter().any(|key| field(container, key).is_some())
}

fn primary(pod: &FieldPath, root: &Node) -> Option<String> {
    let spec = pod.clone().field("spec");
    // In a Job, the annotation is beside the template.
    let job = FieldPath(pod.0[..pod.0.len().saturating_sub(1)].to_vec());
    let at = |path: &FieldPath| field(root.at(path)?, "primarycontainer")?.text().map(str::to_owned);
    at(&spec).or_else(|| at(&job))
}

fn containers<'n>(pod: &FieldPath, root: &'n Node) -> impl Iterator<Item = &'n Node> {
    let list = |name: &'static str| {
        root.at(&pod.clone().field("spec").field(name)).and_then(Node::items).unwrap_or_default()
    };
    list("initContainers").iter().chain(list("containers"))
}

/// The path of the pod (or pod template) that a rejected field is about.
fn pod_path(type_name: &str, path: &FieldPath) -> FieldPath {
    match type_name {
        "JobSpec" => path.clone().field("template"),
        // `….spec`
        "PodSpec" => FieldPath(path.0[..path.0.len().saturating_sub(1)].to_vec()),
        // `….spec.containers[0]`
        _ => FieldPath(path.0[..path.0.len().saturating_sub(3)].to_vec()),
    }
}

fn name(container: &Node) -> Option<&str> {
    container.get("name").and_then(Node::text).filter(|name| !name.is_empty())
}

/// A field by its lower-case name.
fn field<'n>(map: &'n Node, key: &str) -> Option<&'n Node> {
    let entries = map.entries()?;
    entries.iter().find(|entry| entry.key.eq_ignore_ascii_case(key)).map(|entry| &entry.value)
}
