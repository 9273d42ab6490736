//! What is known of the cluster: of few objects, and of those only what decisions ask for.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::core::v1::ConfigMap;

use crate::api::Request;
use crate::decide::barrier::{Map, Memory};
use crate::decide::terminate::Node;
use crate::key::OPEN;
use crate::names;
use crate::view::PodView;

/// `namespace/name`.
pub(crate) type Name = String;

#[derive(Default)]
pub(crate) struct Store {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    pods: HashMap<Name, Arc<PodView>>,
    maps: HashMap<Name, Arc<MapView>>,
    requests: HashMap<Name, Arc<Request>>,
    virtual_nodes: HashSet<String>,
    memories: HashMap<Name, Memory>,
}

/// What matters of a barrier ConfigMap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MapView {
    pub(crate) uid: String,
    pub(crate) version: String,
    /// Pods that own it: name and uid.
    owners: Vec<(String, String)>,
    labelled: bool,
    keys: BTreeSet<String>,
}

impl MapView {
    pub(crate) fn of(map: &ConfigMap) -> Self {
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

    /// Whose it is, seen from a pod.
    pub(crate) fn seen_from(&self, pod: &PodView) -> Map {
        if self.owners.iter().any(|(_, uid)| *uid == pod.uid) {
            // Kruise's own are not labelled: nothing is held to be published there before it is written again.
            return Map::Ours { keys: if self.labelled { self.keys.clone() } else { BTreeSet::new() } };
        }
        match self.owners.iter().any(|(name, _)| *name == pod.name) {
            true => Map::OfPredecessor,
            false => Map::Foreign,
        }
    }
}

impl Store {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Each critical section is a single map operation: a panic cannot leave it half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn pod(&self, name: &str) -> Option<Arc<PodView>> {
        self.lock().pods.get(name).cloned()
    }

    pub(crate) fn set_pod(&self, view: PodView) {
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

    /// Keeps the newest: what was written here may be newer than what a watch tells.
    pub(crate) fn set_map(&self, name: Name, map: MapView) {
        let mut state = self.lock();
        let number = |version: &str| version.parse::<u64>().unwrap_or(0);
        let is_older =
            |held: &Arc<MapView>| held.uid == map.uid && number(&held.version) > number(&map.version);
        if !state.maps.get(&name).is_some_and(is_older) {
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

    pub(crate) fn set_request(&self, name: Name, request: Request) {
        self.lock().requests.insert(name, Arc::new(request));
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
        match self.lock().virtual_nodes.contains(name) {
            true => Node::Virtual,
            false => Node::Machine,
        }
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

    pub(crate) fn remember(&self, name: &str, memory: Memory) {
        self.lock().memories.insert(name.to_owned(), memory);
    }

    /// Pods and levels that wait, for the metrics.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let state = self.lock();
        let waiting = |view: &Arc<PodView>| {
            let closed = |(i, _): &(usize, &crate::view::Barrier)| {
                crate::decide::barrier::closed_gate(view, *i).is_some()
            };
            view.barriers().filter(closed).count()
        };
        (state.pods.len(), state.pods.values().map(waiting).sum())
    }
}
