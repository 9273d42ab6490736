//! `outrigger operator status`: what a pod in the cluster is waiting for.

use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use kube::api::ListParams;
use kube::{Api, Client};
use serde::Serialize;

use super::ending::past_of;
use super::store::MapView;
use super::{Error, has_code, now};
use crate::api::Request;
use crate::decide::barrier::{self, Map};
use crate::decide::{explain, terminate};
use crate::names;
use crate::view::ObservedPod;

/// What a pod is waiting for.
#[derive(Debug, Serialize)]
pub struct PodStatus {
    namespace: String,
    pod: String,
    phase: String,
    containers: Vec<explain::Line>,
    /// The next step, in one sentence.
    next: String,
}

/// Explains a pod with a line for each container and the next step.
///
/// # Errors
/// There is no such pod, or the cluster cannot be reached.
pub async fn status(client: &Client, namespace: Option<&str>, name: &str) -> Result<PodStatus, Error> {
    let namespace = namespace.unwrap_or(client.default_namespace()).to_owned();
    // kubectl and the other commands accept these prefixes, too.
    let name = ["pod/", "pods/"].iter().find_map(|kind| name.strip_prefix(kind)).unwrap_or(name);
    if let Some((kind, _)) = name.split_once('/') {
        return Err(Error::Setup(format!("{name} is not a pod but a {kind}; name one of its pods")));
    }
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let pod = pods.get_opt(name).await.map_err(Error::api(format!("pod {namespace}/{name}")))?;
    let missing = || Error::Setup(format!("there is no pod {name} in namespace {namespace}"));
    let pod = pod.ok_or_else(missing)?;
    let view = ObservedPod::always(&pod, now()).ok_or_else(missing)?;
    let (map, is_writable) = map_of(client, &view).await?;
    let node = node_of(client, &view).await?;
    let requests: Api<Request> = Api::namespaced(client.clone(), &namespace);
    let requests = match requests.list(&ListParams::default()).await {
        Ok(list) => list.items,
        // The operator is not installed.
        Err(error) if has_code(&error, &[404]) => Vec::new(),
        Err(error) => return Err(Error::api("container recreate requests")(error)),
    };
    let past: Vec<_> = requests.iter().filter_map(|request| past_of(request, &view.uid)).collect();
    let (containers, mut next) = explain::pod(&view, &map, node, &past, now());
    let waits = containers.iter().any(|line| line.barrier == explain::CLOSED);
    let waits = waits && !view.is_over() && !view.deleting;
    if let (false, true, Some(map)) = (is_writable, waits, barrier::map_name(&view)) {
        next = format!("nothing: ConfigMap {map} is immutable, so no key can be published; delete it");
    }
    // The sentence about the next step already covers the terminator's own requests.
    let is_other =
        |r: &&Request| r.spec.pod_name == view.name && !r.is_finished() && past_of(r, &view.uid).is_none();
    if let Some(request) = requests.iter().find(is_other) {
        let targets: Vec<&str> = request.spec.containers.iter().map(|t| t.name.as_str()).collect();
        let name = request.metadata.name.as_deref().unwrap_or_default();
        let verb = if request.only_stops() { "stops" } else { "recreates" };
        next = format!("container recreate request {name} {verb} {}", targets.join(", "));
        let grace = request.strategy().unready_grace_period_seconds.unwrap_or(0);
        if !request.status.message.is_empty() {
            next = format!("{next}: it {}", request.status.message);
        } else if grace > 0 && request.status.container_recreate_states.is_empty() {
            next = format!("{next}, {grace} s after the pod was made unready");
        }
    }
    if let Some(message) = pod.status.and_then(|status| status.message).filter(|_| view.is_over()) {
        next = format!("{next}: {message}");
    }
    let phase = if view.phase.is_empty() { "Pending".to_owned() } else { view.phase };
    Ok(PodStatus { namespace, pod: view.name, phase, containers, next })
}

/// The barrier ConfigMap of a pod, and whether it can be written.
async fn map_of(client: &Client, view: &ObservedPod) -> Result<(Map, bool), Error> {
    let Some(name) = barrier::map_name(view) else { return Ok((Map::Missing, true)) };
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), &view.namespace);
    let found = maps.get_opt(name).await.map_err(Error::api(format!("ConfigMap {name}")))?;
    let is_writable = found.as_ref().is_none_or(|map| map.immutable != Some(true));
    Ok((found.map_or(Map::Missing, |map| MapView::new(&map).seen_from(view)), is_writable))
}

async fn node_of(client: &Client, view: &ObservedPod) -> Result<terminate::Node, Error> {
    let Some(name) = &view.node else { return Ok(terminate::Node::Machine) };
    let nodes: Api<Node> = Api::all(client.clone());
    // Some users who can read pods cannot read nodes.
    let node = nodes.get_opt(name).await.ok().flatten();
    let labels = node.and_then(|node| node.metadata.labels).unwrap_or_default();
    Ok(match labels.get(names::NODE_TYPE.0).is_some_and(|value| value == names::NODE_TYPE.1) {
        true => terminate::Node::Virtual,
        false => terminate::Node::Machine,
    })
}

impl PodStatus {
    /// Renders the status as a table.
    pub fn table(&self) -> String {
        let lines = self.containers.iter();
        let rows: Vec<[&str; 4]> = std::iter::once(["CONTAINER", "LEVEL", "BARRIER", "STATE"])
            .chain(lines.map(|l| [l.container.as_str(), l.level.as_str(), l.barrier, l.doing.as_str()]))
            .collect();
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..3).map(width).collect();
        let mut out = format!("{}/{} is {}\n\n", self.namespace, self.pod, safe(&self.phase));
        for row in &rows {
            for (cell, width) in row.iter().zip(&widths) {
                out.push_str(&format!("{cell:width$}  "));
            }
            out.push_str(&safe(row[3]));
            out.push('\n');
        }
        out.push_str(&format!("\nNext: {}\n", safe(&self.next)));
        out
    }
}

/// Removes control characters: messages of kubelets and images must not control the terminal.
fn safe(text: &str) -> String {
    outrigger_text::terminal::safe_text(text).to_string()
}
