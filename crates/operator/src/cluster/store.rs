//! The state of the cluster in memory. It has only the objects and the fields that decisions need.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::core::v1::ConfigMap;
use outrigger_lifecycle::Time;

use crate::api::Request;
use crate::decide::barrier::{Map, Memory};
use crate::decide::oversee::Agent;
use crate::decide::terminate::Node;
use crate::key::OPEN;
use crate::names;
use crate::view::ObservedPod;

/// The name of an object, as `namespace/name`.
pub(crate) type Name = String;

/// Whether the operator's agents are installed on nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Agents {
    /// Every node has one.
    #[default]
    Installed,
    /// No node has one.
    NotInstalled,
}

pub(crate) struct Store {
    state: Mutex<State>,
    agents: Agents,
    /// When the operator started. An object that was missing then counts as absent since then.
    begun: Time,
}

#[derive(Default)]
struct State {
    pods: HashMap<Name, Arc<ObservedPod>>,
    maps: HashMap<Name, Arc<MapView>>,
    requests: HashMap<Name, Arc<Request>>,
    virtual_nodes: HashSet<String>,
    /// The agent pods, with their node and whether they are ready.
    agents: HashMap<Name, (String, bool)>,
    /// The nodes whose agent is no longer ready, and since when.
    agents_lost: HashMap<String, Time>,
    memories: HashMap<Name, Memory>,
}

/// Numbers of waiting objects.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// The number of pods that use a feature of the operator.
    pub(crate) pods: usize,
    /// The number of closed levels and gates.
    pub(crate) levels: usize,
    /// The time since the start of the pod that has waited longest.
    pub(crate) longest_ms: u64,
}

/// The fields of a barrier ConfigMap that matter here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MapView {
    pub(crate) uid: String,
    pub(crate) version: String,
    /// The pods that own it, as name and uid.
    owners: Vec<(String, String)>,
    labelled: bool,
    keys: BTreeSet<String>,
}

impl MapView {
    pub(crate) fn new(map: &ConfigMap) -> Self {
        let owners = map.metadata.owner_references.iter().flatten().filter(|o| o.kind == "Pod");
        let data = map.data.iter().flatten();
        let labels = map.metadata.labels.as_ref();
        MapView {
            uid: map.metadata.uid.clone().unwrap_or_default(),
            version: map.metadata.resource_version.clone().unwrap_or_default(),
            owners: owners.map(|o| (o.name.clone(), o.uid.clone())).collect(),
            labelled: labels.is_some_and(|l| l.contains_key(names::BARRIER_LABEL)),
            keys: data.filter(|(_, value)| *value == OPEN).map(|(key, _)| key.clone()).collect(),
        }
    }

    /// Whether it belongs to this pod, to an earlier pod, or to something else.
    pub(crate) fn seen_from(&self, pod: &ObservedPod) -> Map {
        if self.owners.iter().any(|(_, uid)| *uid == pod.uid) {
            // The ConfigMaps of Kruise are not labelled. Their keys do not count as published until they are
            // written again.
            return Map::Ours { keys: if self.labelled { self.keys.clone() } else { BTreeSet::new() } };
        }
        match self.owners.iter().any(|(name, _)| *name == pod.name) {
            true => Map::OfPredecessor,
            false => Map::Foreign,
        }
    }
}

impl Store {
    pub(crate) fn new(agents: Agents, now: Time) -> Self {
        Store { state: Mutex::default(), agents, begun: now }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Each critical section is a single map operation, so a panic cannot leave it in a partial state.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn pod(&self, name: &str) -> Option<Arc<ObservedPod>> {
        self.lock().pods.get(name).cloned()
    }

    pub(crate) fn set_pod(&self, view: ObservedPod) {
        let name = view.key();
        self.lock().pods.insert(name, Arc::new(view));
    }

    pub(crate) fn drop_pod(&self, name: &str) -> bool {
        let mut state = self.lock();
        state.memories.remove(name);
        state.pods.remove(name).is_some()
    }

    pub(crate) fn pod_names(&self) -> Vec<Name> {
        self.lock().pods.keys().cloned().collect()
    }

    pub(crate) fn map(&self, name: &str) -> Option<Arc<MapView>> {
        self.lock().maps.get(name).cloned()
    }

    /// Stores a ConfigMap unless the store has a newer version. A version that this process wrote may be
    /// newer than the one the watch reports.
    pub(crate) fn set_map(&self, name: Name, map: MapView) {
        let mut state = self.lock();
        let is_newer =
            |held: &Arc<MapView>| held.uid == map.uid && number(&held.version) > number(&map.version);
        if !state.maps.get(&name).is_some_and(is_newer) {
            state.maps.insert(name, Arc::new(map));
        }
    }

    pub(crate) fn drop_map(&self, name: &str) {
        self.lock().maps.remove(name);
    }

    pub(crate) fn map_names(&self) -> Vec<Name> {
        self.lock().maps.keys().cloned().collect()
    }

    pub(crate) fn request(&self, name: &str) -> Option<Arc<Request>> {
        self.lock().requests.get(name).cloned()
    }

    /// Stores a request unless the store has a newer version. The watch may report the agent's changes before
    /// the answer to the creation is read here. Storing the older version would hide that the agent waits,
    /// until the request's deadline.
    pub(crate) fn set_request(&self, name: Name, mut request: Request) {
        request.trim();
        let mut state = self.lock();
        let version =
            |request: &Request| number(request.metadata.resource_version.as_deref().unwrap_or_default());
        let is_newer = |held: &Arc<Request>| {
            held.metadata.uid == request.metadata.uid && version(held) > version(&request)
        };
        if !state.requests.get(&name).is_some_and(is_newer) {
            state.requests.insert(name, Arc::new(request));
        }
    }

    pub(crate) fn drop_request(&self, name: &str) -> Option<Arc<Request>> {
        self.lock().requests.remove(name)
    }

    pub(crate) fn request_names(&self) -> Vec<Name> {
        self.lock().requests.keys().cloned().collect()
    }

    /// The requests for a pod.
    pub(crate) fn requests_of(&self, namespace: &str, pod: &str) -> Vec<Arc<Request>> {
        let state = self.lock();
        let of =
            |r: &&Arc<Request>| r.metadata.namespace.as_deref() == Some(namespace) && r.spec.pod_name == pod;
        state.requests.values().filter(of).cloned().collect()
    }

    pub(crate) fn node(&self, name: &str) -> Node {
        match (self.lock().virtual_nodes.contains(name), self.agents) {
            (true, _) => Node::Virtual,
            (false, Agents::Installed) => Node::Machine,
            (false, Agents::NotInstalled) => Node::WithoutAgent,
        }
    }

    /// Removes all virtual nodes that are not in this list.
    pub(crate) fn keep_virtual_nodes(&self, names: &HashSet<String>) {
        self.lock().virtual_nodes.retain(|name| names.contains(name));
    }

    /// Whether a node has an agent. `Unknown` if there are no agent pods, because agents may run in another
    /// way.
    pub(crate) fn agent(&self, node: &str) -> Agent {
        let state = self.lock();
        if state.agents.is_empty() && !state.agents_lost.contains_key(node) {
            return Agent::Unknown;
        }
        match state.agents.values().any(|(of, ready)| of == node && *ready) {
            true => Agent::Ready,
            false => Agent::Absent { since: state.agents_lost.get(node).copied().unwrap_or(self.begun) },
        }
    }

    pub(crate) fn set_agent(&self, pod: Name, node: &str, is_ready: bool, now: Time) {
        let mut state = self.lock();
        state.agents.insert(pod, (node.to_owned(), is_ready));
        match is_ready {
            true => state.agents_lost.remove(node),
            false => Some(*state.agents_lost.entry(node.to_owned()).or_insert(now)),
        };
    }

    /// Removes an agent pod. Returns the node it was on.
    pub(crate) fn drop_agent(&self, pod: &str, now: Time) -> Option<String> {
        let mut state = self.lock();
        let (node, _) = state.agents.remove(pod)?;
        if !state.agents.values().any(|(of, ready)| *of == node && *ready) {
            state.agents_lost.entry(node.clone()).or_insert(now);
        }
        Some(node)
    }

    pub(crate) fn agent_names(&self) -> Vec<Name> {
        self.lock().agents.keys().cloned().collect()
    }

    /// The requests of a node that have no result yet.
    pub(crate) fn open_requests_of_node(&self, node: &str) -> Vec<Name> {
        let state = self.lock();
        let of = |(_, r): &(&Name, &Arc<Request>)| !r.is_finished() && r.label(names::CRR_NODE) == Some(node);
        state.requests.iter().filter(of).map(|(name, _)| name.clone()).collect()
    }

    pub(crate) fn set_virtual_node(&self, name: String, is_virtual: bool) {
        let mut state = self.lock();
        match is_virtual {
            true => state.virtual_nodes.insert(name),
            false => state.virtual_nodes.remove(&name),
        };
    }

    pub(crate) fn memory(&self, name: &str) -> Memory {
        self.lock().memories.get(name).copied().unwrap_or_default()
    }

    /// Changes the memory of a pod, if the pod still exists.
    pub(crate) fn update_memory(&self, name: &str, change: impl FnOnce(&mut Memory)) {
        let mut state = self.lock();
        if state.pods.contains_key(name) {
            change(state.memories.entry(name.to_owned()).or_default());
        }
    }

    /// Counts waiting objects for the metrics.
    pub(crate) fn counts(&self, now: Time) -> Counts {
        // The views are shared, so counting does not hold the lock.
        let pods: Vec<Arc<ObservedPod>> = self.lock().pods.values().cloned().collect();
        let mut counts = Counts { pods: pods.len(), ..Counts::default() };
        for view in pods.iter().filter(|view| !view.is_over() && !view.deleting) {
            let closed =
                view.barriers().filter(|(i, _)| crate::decide::barrier::closed_gate(view, *i).is_some());
            let levels: HashSet<&str> = closed.map(|(_, barrier)| barrier.key.as_str()).collect();
            counts.levels += levels.len();
            if let (false, Some(started)) = (levels.is_empty(), view.started) {
                counts.longest_ms = counts.longest_ms.max(now.since(started));
            }
        }
        counts
    }
}

/// The version of an object as a number. It grows with each change.
fn number(version: &str) -> u64 {
    version.parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_version_does_not_replace_a_newer_one() {
        let store = Store::new(Agents::Installed, Time(0));
        let request = |uid: &str, version: &str, phase: &str| -> Request {
            let object = serde_json::json!({
                "metadata": {"name": "r", "namespace": "n", "uid": uid, "resourceVersion": version},
                "spec": {"podName": "p"}, "status": {"phase": phase},
            });
            serde_json::from_value(object).expect("a request")
        };
        let set = |uid: &str, version: &str, phase: &str| {
            store.set_request("n/r".to_owned(), request(uid, version, phase));
            store.request("n/r").map(|held| held.status.phase.clone()).unwrap_or_default()
        };
        assert_eq!(set("a", "9", "Recreating"), "Recreating");
        assert_eq!(set("a", "8", ""), "Recreating", "the answer to the creation");
        assert_eq!(set("a", "10", "Completed"), "Completed");
        assert_eq!(set("b", "4", "Pending"), "Pending", "another request of that name");
    }
}
