//! Watches the cluster and reconciles changed objects.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::watcher::{Config, Event};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client};
use tokio::task::JoinSet;

use super::events::Events;
use super::lenient::Lenient;
use super::metrics::Metrics;
use super::queue::Queue;
use super::store::{Agents, MapView, Store};
use super::{Error, ending, launch, now, requests};
use crate::api::{Progress, RecreateState, Request};
use crate::names;
use crate::view::ObservedPod;

/// What every reconciliation needs.
pub(crate) struct Context {
    pub(crate) client: Client,
    pub(crate) store: Store,
    pub(crate) events: Events,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) queue: Queue<Key>,
    /// The pods whose kubelet must be woken. They have a queue of their own, so that no key waits for them.
    pub(crate) wakes: Queue<String>,
    /// The operator's own namespace, in which its agents run.
    namespace: String,
    synced: AtomicUsize,
}

/// An object to reconcile.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    Pod(String),
    Request(String),
}

/// The number of concurrent reconciliations.
const WORKERS: usize = 32;
/// The number of concurrent writes that wake kubelets. It is smaller, so that keys are published first when
/// the API server is busy.
const WAKERS: usize = 8;
/// A request without an answer for this long is sent again. A lost connection does not always cause an error.
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// The number of watches that must be synced before anything is written.
const WATCHES: usize = 4;
/// The page sizes of the initial list of a watch. Only one page at a time is in memory untrimmed. Users can
/// make each ConfigMap or request as large as the API server allows.
const PODS_PAGE: u32 = 50;
pub(crate) const PAGE: u32 = 10;

impl Context {
    pub(crate) fn new(client: Client, metrics: Arc<Metrics>, namespace: &str, agents: Agents) -> Arc<Self> {
        Arc::new(Context {
            events: Events::new(client.clone()),
            client,
            store: Store::new(agents, now()),
            namespace: namespace.to_owned(),
            metrics,
            queue: Queue::new(),
            wakes: Queue::new(),
            synced: AtomicUsize::new(0),
        })
    }

    pub(crate) fn is_synced(&self) -> bool {
        self.synced.load(Ordering::Relaxed) >= WATCHES
    }

    fn failed(&self, key: &impl std::fmt::Debug, error: &Error) {
        self.metrics.errors.inc();
        match error.is_stale() {
            true => tracing::debug!(?key, %error, "looking again"),
            false => tracing::warn!(?key, %error, "trying again"),
        }
    }

    pub(crate) fn count_verdict(&self, states: &[RecreateState]) {
        match states.iter().all(|s| s.phase == Progress::Succeeded) {
            true => self.metrics.succeeded.inc(),
            false => self.metrics.failed.inc(),
        };
    }
}

/// Runs until the future is dropped.
pub(crate) async fn run(cx: Arc<Context>) {
    let mut tasks = JoinSet::new();
    let all = |selector: Option<String>, page: u32| Config {
        label_selector: selector,
        page_size: Some(page),
        ..Config::default()
    };
    let (nodes, maps) =
        (format!("{}={}", names::NODE_TYPE.0, names::NODE_TYPE.1), names::BARRIER_LABEL.to_owned());
    let client = || cx.client.clone();
    tasks.spawn(follow(
        cx.clone(),
        Api::<Lenient<Node>>::all(client()),
        all(Some(nodes), PODS_PAGE),
        "nodes",
        on_node,
    ));
    tasks.spawn(follow(
        cx.clone(),
        Api::<Lenient<ConfigMap>>::all(client()),
        all(Some(maps), PAGE),
        "configmaps",
        on_map,
    ));
    tasks.spawn(follow(
        cx.clone(),
        Api::<Lenient<Request>>::all(client()),
        all(None, PAGE),
        "containerrecreaterequests",
        on_request,
    ));
    tasks.spawn(follow(cx.clone(), Api::<Lenient<Pod>>::all(client()), all(None, PODS_PAGE), "pods", on_pod));
    for _ in 0..WORKERS {
        tasks.spawn(work(cx.clone()));
    }
    for _ in 0..WAKERS {
        tasks.spawn(wake(cx.clone()));
    }
    while tasks.join_next().await.is_some() {}
}

/// A change of an object.
enum Change<K> {
    Is(K),
    Gone(K),
    /// The list is complete. These names are in the store, but not in the list.
    Listed(HashSet<String>),
}

fn name_of(metadata: &ObjectMeta) -> String {
    let name = metadata.name.as_deref().unwrap_or_default();
    match metadata.namespace.as_deref() {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name.to_owned(),
    }
}

/// Follows all objects of a kind. A broken watch is restarted, and comparing the list with the store finds
/// missed changes. An object that cannot be read counts as deleted.
async fn follow<K>(
    cx: Arc<Context>,
    api: Api<Lenient<K>>,
    config: Config,
    what: &'static str,
    on: fn(&Context, Change<K>),
) where
    K: kube::Resource<DynamicType = ()>
        + Clone
        + serde::de::DeserializeOwned
        + std::fmt::Debug
        + Send
        + 'static,
{
    let mut events = std::pin::pin!(watcher(api, config).default_backoff());
    let mut told = HashSet::new();
    let mut first = true;
    let change = |object: Lenient<K>| match object.read() {
        Ok(object) => Change::Is(object),
        Err(fault) => {
            tracing::warn!(what, %fault, "ignoring an object that cannot be read");
            Change::Gone(fault.identity)
        }
    };
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => told.clear(),
            Ok(Event::InitApply(object)) => {
                told.insert(name_of(kube::Resource::meta(&object)));
                on(&cx, change(object));
            }
            Ok(Event::InitDone) => {
                on(&cx, Change::Listed(std::mem::take(&mut told)));
                if std::mem::take(&mut first) {
                    cx.synced.fetch_add(1, Ordering::Relaxed);
                }
            }
            Ok(Event::Apply(object)) => on(&cx, change(object)),
            Ok(Event::Delete(object)) => {
                on(&cx, Change::Gone(object.read().unwrap_or_else(|fault| fault.identity)));
            }
            Err(error) => {
                tracing::warn!(what, error = super::watch_reason(&error), "a watch broke, starting it again");
            }
        }
    }
}

fn on_node(cx: &Context, change: Change<Node>) {
    match change {
        Change::Is(node) => cx.store.set_virtual_node(name_of(&node.metadata), true),
        Change::Gone(node) => cx.store.set_virtual_node(name_of(&node.metadata), false),
        Change::Listed(names) => cx.store.keep_virtual_nodes(&names),
    }
}

fn on_map(cx: &Context, change: Change<ConfigMap>) {
    let owners = |map: &ConfigMap| {
        let namespace = map.metadata.namespace.clone().unwrap_or_default();
        for owner in map.metadata.owner_references.iter().flatten().filter(|o| o.kind == "Pod") {
            cx.queue.add(Key::Pod(format!("{namespace}/{}", owner.name)));
        }
    };
    match change {
        Change::Is(map) => {
            cx.store.set_map(name_of(&map.metadata), MapView::new(&map));
            owners(&map);
        }
        Change::Gone(map) => {
            cx.store.drop_map(&name_of(&map.metadata));
            owners(&map);
        }
        Change::Listed(names) => {
            for name in cx.store.map_names().into_iter().filter(|name| !names.contains(name)) {
                cx.store.drop_map(&name);
            }
            // The owners are no longer known, so check every pod.
            cx.store.pod_names().into_iter().for_each(|name| cx.queue.add(Key::Pod(name)));
        }
    }
}

fn on_request(cx: &Context, change: Change<Request>) {
    let pod = |request: &Request| {
        let namespace = request.metadata.namespace.as_deref().unwrap_or_default();
        cx.queue.add(Key::Pod(format!("{namespace}/{}", request.spec.pod_name)));
    };
    match change {
        Change::Is(request) => {
            let name = name_of(&request.metadata);
            let was_finished = cx.store.request(&name).is_some_and(|held| held.is_finished());
            if request.is_finished() && !was_finished && cx.is_synced() {
                cx.count_verdict(&request.status.container_recreate_states);
            }
            // Update the store before the queue, because a worker may read the store immediately.
            cx.store.set_request(name.clone(), request.clone());
            pod(&request);
            cx.queue.add(Key::Request(name));
        }
        Change::Gone(request) => {
            let held = cx.store.drop_request(&name_of(&request.metadata));
            pod(held.as_deref().unwrap_or(&request));
        }
        Change::Listed(names) => {
            for name in cx.store.request_names().into_iter().filter(|name| !names.contains(name)) {
                if let Some(request) = cx.store.drop_request(&name) {
                    pod(&request);
                }
            }
        }
    }
}

fn on_pod(cx: &Context, change: Change<Pod>) {
    let requests = |namespace: &str, name: &str| {
        for request in cx.store.requests_of(namespace, name).iter().filter(|r| !r.is_finished()) {
            cx.queue.add(Key::Request(name_of(&request.metadata)));
        }
    };
    match change {
        Change::Is(pod) => {
            let (namespace, name) = (
                pod.metadata.namespace.clone().unwrap_or_default(),
                pod.metadata.name.clone().unwrap_or_default(),
            );
            on_agent(cx, &pod);
            match ObservedPod::of_served(&pod, now()) {
                Some(view) => {
                    let key = view.key();
                    cx.store.set_pod(view);
                    cx.queue.add(Key::Pod(key));
                }
                None => {
                    cx.store.drop_pod(&format!("{namespace}/{name}"));
                }
            }
            requests(&namespace, &name);
        }
        Change::Gone(pod) => {
            let name = name_of(&pod.metadata);
            cx.store.drop_pod(&name);
            agent_gone(cx, &name);
            if let Some((namespace, name)) = name.split_once('/') {
                requests(namespace, name);
            }
        }
        Change::Listed(names) => {
            for name in cx.store.pod_names().into_iter().filter(|name| !names.contains(name)) {
                cx.store.drop_pod(&name);
            }
            for name in cx.store.agent_names().into_iter().filter(|name| !names.contains(name)) {
                agent_gone(cx, &name);
            }
            // Their pods may have been deleted or ended while the watch was interrupted.
            cx.store.request_names().into_iter().for_each(|name| cx.queue.add(Key::Request(name)));
        }
    }
}

/// Handles a change of an agent pod. Whether it is ready affects the requests of its node.
fn on_agent(cx: &Context, pod: &Pod) {
    let is_agent = pod.metadata.namespace.as_deref() == Some(&cx.namespace)
        && pod.metadata.labels.as_ref().and_then(|l| l.get("app")).is_some_and(|app| app == names::AGENT);
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default();
    if !is_agent || node.is_empty() {
        return;
    }
    let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default();
    let is_ready = pod.metadata.deletion_timestamp.is_none()
        && conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True");
    cx.store.set_agent(name_of(&pod.metadata), node, is_ready, now());
    reconcile_requests_of(cx, node);
}

fn agent_gone(cx: &Context, pod: &str) {
    if let Some(node) = cx.store.drop_agent(pod, now()) {
        reconcile_requests_of(cx, &node);
    }
}

fn reconcile_requests_of(cx: &Context, node: &str) {
    for name in cx.store.open_requests_of_node(node) {
        cx.queue.add(Key::Request(name));
    }
}

async fn work(cx: Arc<Context>) {
    // Until everything is synced, "not found" only means "not seen yet".
    while !cx.is_synced() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    loop {
        let (key, since) = cx.queue.next().await;
        let result = answered(reconcile(&cx, &key, since.into_std())).await;
        cx.queue.done(&key, result.is_ok());
        match result {
            Ok(Some(at)) => cx.queue.add_after(key, Duration::from_millis(at.since(now()))),
            Ok(None) => {}
            Err(error) => {
                cx.failed(&key, &error);
                cx.queue.retry(key);
            }
        }
    }
}

/// Fails if the API server does not answer in time. The next reconciliation finds what was written before.
async fn answered<T>(work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let late = |_| Err(Error::Setup(format!("the API server has not answered within {ANSWER_MAX:?}")));
    tokio::time::timeout(ANSWER_MAX, work).await.unwrap_or_else(late)
}

/// Wakes kubelets of pods, one at a time.
async fn wake(cx: Arc<Context>) {
    loop {
        let (pod, _) = cx.wakes.next().await;
        let result = answered(launch::wake(&cx, &pod)).await;
        cx.wakes.done(&pod, result.is_ok());
        if let Err(error) = result {
            cx.failed(&pod, &error);
            cx.wakes.retry(pod);
        }
    }
}

/// Reconciles an object. `since` is when it became due.
async fn reconcile(
    cx: &Context,
    key: &Key,
    since: Instant,
) -> Result<Option<outrigger_lifecycle::Time>, Error> {
    match key {
        Key::Pod(name) => {
            let Some(view) = cx.store.pod(name) else { return Ok(None) };
            if let Some(problem) = view.problem.as_ref().filter(|_| !view.is_over()) {
                let message = format!(
                    "the pod cannot be understood, so its sidecars and levels are left alone: {problem}"
                );
                cx.events.tell(&view, true, "PodIgnored", &message);
            }
            // A launch that fails, for example because of a quota, does not block the sidecars.
            let (again, ended) =
                (launch::reconcile(cx, &view, since).await, ending::reconcile(cx, &view).await);
            let ready = requests::set_first_ready(cx, &view).await;
            let ended = ended.and_then(|at| ready.map(|()| at))?;
            Ok(again?.into_iter().chain(ended).min())
        }
        Key::Request(name) => {
            let Some(request) = cx.store.request(name) else { return Ok(None) };
            requests::reconcile(cx, &request).await
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A request is stored before its pod is queued. Otherwise a worker may reconcile the pod with the
    /// previous state, and nothing would queue the pod again.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_pod_is_looked_at_with_what_was_told_of_its_request() {
        super::super::install_crypto();
        let config = kube::Config::new("http://127.0.0.1:1".parse().expect("an address"));
        let client = Client::try_from(config).expect("a client");
        let cx = Context::new(client, Arc::default(), "ns", Agents::Installed);
        let (seen, mut looks) = tokio::sync::mpsc::unbounded_channel();
        let worker = cx.clone();
        tokio::spawn(async move {
            loop {
                let (key, _) = worker.queue.next().await;
                if let (Key::Pod(_), Some(request)) = (&key, worker.store.request("n/r")) {
                    let _ = seen.send(request.metadata.resource_version.clone());
                }
                worker.queue.done(&key, true);
            }
        });
        for version in 1..20_000 {
            let version = Some(version.to_string());
            let metadata = json!({"name": "r", "namespace": "n", "uid": "u", "resourceVersion": version});
            let object = json!({"metadata": metadata, "spec": {"podName": "p"}});
            on_request(&cx, Change::Is(serde_json::from_value(object).expect("a request")));
            let last = async { while looks.recv().await.flatten() != version {} };
            let waited = tokio::time::timeout(Duration::from_secs(10), last).await;
            assert!(waited.is_ok(), "no look at the pod has seen version {version:?}");
        }
    }
}
