//! Hints for common mistakes of beginners, often fields from Compose or a Dockerfile. Each hint says what to
//! write instead.

use outrigger_lifecycle::{FieldPath, Segment};

use crate::emit::flow_list;
use crate::scalar::{Resolved, resolve};
use crate::tree::{Entry, Node, Value};

/// Fields of a container that a pod's spec does not have.
const OF_CONTAINER: [&str; 16] = [
    "args",
    "command",
    "env",
    "envFrom",
    "image",
    "imagePullPolicy",
    "lifecycle",
    "livenessProbe",
    "ports",
    "readinessProbe",
    "startupProbe",
    "stdin",
    "tty",
    "volumeDevices",
    "volumeMounts",
    "workingDir",
];

/// The hint for a field that a type does not have.
pub(super) fn unknown_field(type_name: &str, entry: &Entry, path: &FieldPath) -> Option<String> {
    match (type_name, &*entry.key) {
        ("Container", "environment") => Some(environment(&entry.value)),
        ("Container", "entrypoint") => Some("write `command`".to_owned()),
        ("Container", "cmd") => Some("write `args`".to_owned()),
        (
            "DeploymentSpec" | "ReplicaSetSpec" | "StatefulSetSpec" | "DaemonSetSpec" | "JobSpec",
            "containers" | "initContainers" | "volumes",
        ) => Some(format!("move it to `{path}.template.spec`")),
        ("CronJobSpec", "containers" | "initContainers" | "volumes") => {
            Some(format!("move it to `{path}.jobTemplate.spec.template.spec`"))
        }
        ("PodSpec", key) if OF_CONTAINER.contains(&key) => {
            Some(format!("`{key}` is a field of a container: check the indentation"))
        }
        _ => None,
    }
}

/// The hint for another value in place of a list.
pub(super) fn no_list(path: &FieldPath, found: &Node) -> Option<String> {
    match path.0.last()? {
        Segment::Field(name) if name == "command" || name == "args" => {
            let words: Vec<&str> = found.text()?.split_whitespace().collect();
            let quoted: Vec<String> = words.iter().map(|word| format!("{word:?}")).collect();
            (!words.is_empty()).then(|| format!("write each word as its own entry: [{}]", quoted.join(", ")))
        }
        _ => None,
    }
}

/// The hint for another value in place of a map.
pub(super) fn no_map(path: &FieldPath, found: &Node) -> Option<String> {
    let Value::Scalar(scalar) = &found.value else { return None };
    let [.., Segment::Field(list), Segment::Index(_)] = path.0.as_slice() else { return None };
    match list.as_ref() {
        "ports" => {
            // In Compose, the last of several ports is the container's.
            let port = scalar.text.rsplit(':').next()?;
            port.parse::<u16>().is_ok().then(|| format!("write `- containerPort: {port}`"))
        }
        "env" => {
            let (name, value) = scalar.text.split_once('=')?;
            Some(format!("write\n    - name: {name}\n      value: {}", word(value)))
        }
        "containers" | "initContainers" if resolve(scalar) == Resolved::Str => {
            Some(format!("write\n    - name: {}\n      image: …", word(&scalar.text)))
        }
        _ => None,
    }
}

/// Compose's `environment`, written as `env`.
fn environment(value: &Node) -> String {
    let pairs: Vec<(String, String)> = match &value.value {
        Value::Map(entries) => entries
            .iter()
            .filter_map(|entry| Some((entry.key.to_string(), entry.value.text()?.to_owned())))
            .collect(),
        Value::Seq(items) => items
            .iter()
            .filter_map(|item| item.text()?.split_once('=').map(|(k, v)| (k.to_owned(), v.to_owned())))
            .collect(),
        Value::Scalar(_) => Vec::new(),
    };
    let pairs = if pairs.is_empty() { vec![("NAME".to_owned(), "value".to_owned())] } else { pairs };
    let mut out = String::from("write `env`, a list:\n    env:");
    for (name, value) in pairs {
        out.push_str(&format!("\n    - name: {}\n      value: {}", word(&name), word(&value)));
    }
    out
}

/// Quotes a word if YAML would otherwise not read it as text.
fn word(text: &str) -> String {
    let list = flow_list([text]);
    list[1..list.len() - 1].to_owned()
}
