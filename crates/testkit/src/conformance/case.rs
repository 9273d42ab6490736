//! Reads a case and creates its pod.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, anyhow};
use outrigger_manifest::{ReadOptions, SourceFile, parse};
use serde_json::{Map, Value, json};

/// One case, as in its file.
#[derive(Debug)]
pub struct Case {
    pub name: String,
    pub pod: Value,
    pub actions: Vec<Value>,
    pub until: Value,
    pub expect: Value,
    pub timeout: f64,
    pub settle: f64,
    pub kubelet: Kubelet,
}

/// Whether a case was checked on a real kubelet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kubelet {
    /// It passed in three of three runs.
    Held,
    /// It was not run there.
    NotRun,
}

impl std::fmt::Display for Kubelet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Kubelet::Held => "v1.36.4",
            Kubelet::NotRun => "not run",
        })
    }
}

/// # Errors
/// Returns an error if the file is not a case.
pub fn read(path: &Path) -> anyhow::Result<Case> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let source = SourceFile { name: path.display().to_string(), text: Arc::from(text) };
    let documents = parse(0, &source, &ReadOptions::default()).map_err(|e| anyhow!("{e:?}"))?;
    let case = documents.first().context("an empty case")?.root.to_json();
    let text = |key: &str| case[key].as_str().unwrap_or_default().to_owned();
    let kubelet = [Kubelet::Held, Kubelet::NotRun]
        .into_iter()
        .find(|k| k.to_string() == text("kubelet"))
        .context("the case does not say whether it was run on a kubelet (`kubelet: v1.36.4` or `not run`)")?;
    Ok(Case {
        kubelet,
        name: text("name"),
        pod: case["pod"].clone(),
        actions: case["actions"].as_array().cloned().unwrap_or_default(),
        until: case.get("until").cloned().unwrap_or_else(|| json!("terminal")),
        expect: case["expect"].clone(),
        timeout: case["timeout"].as_f64().unwrap_or(90.0),
        settle: case["settle"].as_f64().unwrap_or(20.0),
    })
}

/// The pod to run. Ports are filled in, scripts are expanded, and all containers mount the event directory.
pub fn pod(case: &Case, name: &str, event_dir: &Path, image: &str) -> Value {
    let mut ports = BTreeMap::new();
    let mut pod = substitute(&case.pod, name, &mut ports);
    pod["apiVersion"] = json!("v1");
    pod["kind"] = json!("Pod");
    pod["metadata"]["name"] = json!(name);
    let spec = &mut pod["spec"];
    for list in ["initContainers", "containers"] {
        let Some(containers) = spec[list].as_array_mut() else { continue };
        for container in containers {
            let name = container["name"].as_str().unwrap_or_default().to_owned();
            *container = expand_scripts(container, &name);
            let given = container["image"].as_str().unwrap_or("busybox");
            container["image"] = json!(if given == "busybox" { image } else { given });
            push(container, "volumeMounts", json!({"name": "ev", "mountPath": "/ev"}));
        }
    }
    push(spec, "volumes", json!({"name": "ev", "hostPath": {"path": event_dir, "type": "Directory"}}));
    if let Some(spec) = spec.as_object_mut() {
        spec.retain(|_, v| !v.is_null());
    }
    pod
}

fn push(object: &mut Value, field: &str, item: Value) {
    match object[field].as_array_mut() {
        Some(items) => items.push(item),
        None => object[field] = json!([item]),
    }
}

/// Replaces `@port`, `@port2` and so on by free ports, the same one for the same name, and `@pod` by the
/// pod's name.
fn substitute(value: &Value, pod: &str, ports: &mut BTreeMap<String, u16>) -> Value {
    match value {
        Value::Object(map) => map.iter().map(|(k, v)| (k.clone(), substitute(v, pod, ports))).collect(),
        Value::Array(items) => items.iter().map(|v| substitute(v, pod, ports)).collect(),
        Value::String(text) => {
            let mut out = String::new();
            let mut rest = text.as_str();
            while let Some(at) = rest.find("@port") {
                let digits =
                    rest[at + 5..].find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len() - at - 5);
                let token = &rest[at..at + 5 + digits];
                let port = *ports.entry(token.to_owned()).or_insert_with(free_port);
                if token == text {
                    return json!(port);
                }
                out.push_str(&rest[..at]);
                out.push_str(&port.to_string());
                rest = &rest[at + token.len()..];
            }
            out.push_str(rest);
            json!(out.replace("@pod", pod))
        }
        other => other.clone(),
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("its number").port()
}

/// Replaces `sh: SCRIPT` on a container, probe or hook by a shell with the helpers of lib.sh.
fn expand_scripts(value: &Value, container: &str) -> Value {
    match value {
        Value::Object(map) => {
            let mut out: Map<String, Value> =
                map.iter().map(|(k, v)| (k.clone(), expand_scripts(v, container))).collect();
            if let Some(script) = out.remove("sh") {
                let script = format!("C={container}; . /ev/lib.sh; {}", script.as_str().unwrap_or_default());
                let command = json!(["/bin/sh", "-c", script]);
                if out.contains_key("name") {
                    out.insert("command".into(), command);
                } else {
                    out.insert("exec".into(), json!({"command": command}));
                }
            }
            Value::Object(out)
        }
        Value::Array(items) => items.iter().map(|v| expand_scripts(v, container)).collect(),
        other => other.clone(),
    }
}
