//! `outrigger operator agent`: serves the container recreate requests of one node.
//!
//! The agent reads the requests of its node and writes their status. Everything it needs to know about a pod
//! is in the request or comes from the runtime. It does not read pods, and it does not start containers: the
//! kubelet does.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Container;
use kube::runtime::watcher::{Config, Event};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client};
use outrigger_cri::{NodeContainerState, NodeRuntime};
use outrigger_lifecycle::Time;
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::lenient::Lenient;
use super::queue::Queue;
use super::requests::complete;
use super::server::{AgentPage, serve_agent_page};
use super::{Error, connect, now};
use crate::api::Request;
use crate::decide::serve::{
    Instance, InstanceState, Seen, ServeStep, hook_begun, hook_done, hook_seconds, killed,
    killed_after_verdict, needs_result, pick, queued_message, step, stop_seconds, stopped_together,
    stops_after_verdict,
};
use crate::names;

/// Options of the agent.
#[derive(Debug, Clone)]
pub struct AgentOptions {
    /// The name of the node.
    pub node: String,
    /// The runtime's socket. `None` means the default locations.
    pub endpoint: Option<String>,
    /// The address of the health page. `None` means no health page.
    pub health: Option<SocketAddr>,
}

/// The number of pods that are served at a time. It is larger than the number of pods on a node, so that a
/// pod with slow containers does not delay another pod.
const WORKERS: usize = 512;
/// The number of attempts to write after conflicts, before the write is postponed.
const WRITES_MAX: u32 = 8;
/// How often a container in progress is checked.
const POLL: Duration = Duration::from_millis(250);
/// How often every pod with a request is checked, regardless of events (KD1).
const RESYNC: Duration = Duration::from_secs(10);

struct Agent {
    client: Client,
    runtime: NodeRuntime,
    requests: Mutex<HashMap<String, Request>>,
    /// When the agent first saw that a request needs its pod unready or has a result, and when that was done.
    seen: Mutex<HashMap<String, Seen>>,
    /// The preStop hooks that have started, by the id of their instance.
    hooks: Mutex<HashMap<String, Hook>>,
    queue: Queue<(String, String)>,
    /// Sent when a request has changed.
    changes: watch::Sender<()>,
    page: Arc<AgentPage>,
}

/// A preStop hook of an instance. It runs once for all requests that stop the instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hook {
    /// The hook is running, or its instance is being stopped although the request has ended.
    Running,
    /// The hook has ended after this time.
    Done(Duration),
}

/// Runs until a signal arrives.
///
/// # Errors
/// The cluster cannot be reached.
pub async fn run_agent(options: AgentOptions) -> Result<(), Error> {
    let client = connect().await?;
    let page = Arc::new(AgentPage::default());
    let mut tasks = JoinSet::new();
    if let Some(address) = options.health {
        tasks.spawn(serve_agent_page(address, page.clone()));
    }
    let runtime = loop {
        match NodeRuntime::connect(options.endpoint.as_deref()).await {
            Ok(runtime) => break runtime,
            // The runtime may start later, because the parts of a node start in any order (KD18).
            Err(error) => tracing::warn!(%error, "no container runtime yet"),
        }
        tokio::time::sleep(Duration::from_secs(5)).await;
    };
    page.runtime.store(true, Ordering::Relaxed);
    tracing::info!(
        node = options.node,
        runtime = runtime.info().summary(),
        "serving container recreate requests"
    );
    let agent = Arc::new(Agent {
        client,
        runtime,
        requests: Mutex::default(),
        seen: Mutex::default(),
        hooks: Mutex::default(),
        queue: Queue::new(),
        changes: watch::Sender::new(()),
        page,
    });
    tasks.spawn(agent.clone().follow(options.node.clone()));
    tasks.spawn(agent.clone().resync());
    for _ in 0..WORKERS {
        tasks.spawn(agent.clone().work());
    }
    use tokio::signal::unix::{SignalKind, signal};
    let mut term = signal(SignalKind::terminate()).map_err(|error| Error::Setup(error.to_string()))?;
    tokio::select! {
        _ = term.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
        _ = tasks.join_next() => return Err(Error::Setup("a part of the agent has ended".to_owned())),
    }
    Ok(())
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // Each critical section is one map operation, so a panic cannot leave the map in a partial state.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn pod_of(request: &Request) -> (String, String) {
    (request.metadata.namespace.clone().unwrap_or_default(), request.spec.pod_name.clone())
}

fn key_of(request: &Request) -> String {
    let namespace = request.metadata.namespace.as_deref().unwrap_or_default();
    format!("{namespace}/{}", request.metadata.name.as_deref().unwrap_or_default())
}

impl Agent {
    /// Follows the active requests of the node. A request that is finished, deleted or no longer labelled
    /// counts as a change of its pod, because the pod's next request may be due (CRR-47).
    async fn follow(self: Arc<Self>, node: String) {
        let selector = format!("{}={node},{}=true", names::CRR_NODE, names::CRR_ACTIVE);
        let config = Config {
            label_selector: Some(selector),
            page_size: Some(super::controllers::PAGE),
            ..Config::default()
        };
        let mut events = std::pin::pin!(
            watcher(Api::<Lenient<Request>>::all(self.client.clone()), config).default_backoff()
        );
        let mut told: Option<HashMap<String, Request>> = None;
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Init) => told = Some(HashMap::new()),
                Ok(Event::InitApply(request)) => match request.read() {
                    Ok(mut request) => {
                        request.trim();
                        told.get_or_insert_default().insert(key_of(&request), request);
                    }
                    Err(fault) => tracing::warn!(%fault, "ignoring a request that cannot be read"),
                },
                Ok(Event::InitDone) => {
                    let new = told.take().unwrap_or_default();
                    let old = std::mem::replace(&mut *lock(&self.requests), new.clone());
                    old.values().chain(new.values()).for_each(|request| self.queue.add(pod_of(request)));
                    self.changes.send_replace(());
                    self.page.watching.store(true, Ordering::Relaxed);
                }
                Ok(Event::Apply(request)) => match request.read() {
                    Ok(mut request) => {
                        request.trim();
                        let pod = pod_of(&request);
                        lock(&self.requests).insert(key_of(&request), request);
                        self.changes.send_replace(());
                        self.queue.add(pod);
                    }
                    Err(fault) => {
                        tracing::warn!(%fault, "ignoring a request that cannot be read");
                        self.forget(&fault.identity);
                    }
                },
                Ok(Event::Delete(request)) => {
                    self.forget(&request.read().unwrap_or_else(|fault| fault.identity));
                }
                Err(error) => {
                    tracing::warn!(error = super::watch_reason(&error), "the watch broke, starting it again");
                }
            }
        }
    }

    /// Removes a deleted request. The pod's next request may now be due.
    fn forget(&self, request: &Request) {
        let key = key_of(request);
        lock(&self.seen).remove(&key);
        let held = lock(&self.requests).remove(&key);
        self.changes.send_replace(());
        self.queue.add(pod_of(held.as_ref().unwrap_or(request)));
    }

    async fn resync(self: Arc<Self>) {
        loop {
            tokio::time::sleep(RESYNC).await;
            let pods: Vec<_> = lock(&self.requests).values().map(pod_of).collect();
            if pods.is_empty() {
                // No other request can ask about hooks that have ended.
                lock(&self.hooks).retain(|_, hook| *hook == Hook::Running);
            }
            pods.into_iter().for_each(|pod| self.queue.add(pod));
        }
    }

    async fn work(self: Arc<Self>) {
        loop {
            let (pod, _) = self.queue.next().await;
            let result = self.serve(&pod).await;
            self.queue.done(&pod, result.is_ok());
            match result {
                Ok(Some(after)) => self.queue.add_after(pod, after),
                Ok(None) => {}
                Err(error) => {
                    if !error.is_stale() {
                        tracing::warn!(pod = format!("{}/{}", pod.0, pod.1), %error, "trying again");
                    }
                    self.queue.retry(pod);
                }
            }
        }
    }

    /// Takes one step for the pod's current request. The request may get its result (at its deadline) or be
    /// deleted during a step. A stop that has begun continues, but the pod's next request does not wait for
    /// it.
    async fn serve(self: &Arc<Self>, pod: &(String, String)) -> Result<Option<Duration>, Error> {
        let requests: Vec<Request> =
            lock(&self.requests).values().filter(|r| pod_of(r) == *pod).cloned().collect();
        let api: Api<Request> = Api::namespaced(self.client.clone(), &pod.0);
        let (turn, queued) = pick(&requests);
        for waiting in queued {
            let metadata = &requests[waiting].metadata;
            let name = metadata.name.clone().unwrap_or_default();
            let message = turn.map(|turn| queued_message(&requests[turn])).unwrap_or_default();
            // The patch includes the version, so that it does not overwrite a result that was written in the
            // meantime.
            let patch = json!({
                "metadata": {"resourceVersion": metadata.resource_version},
                "status": {"phase": "Pending", "message": message},
            });
            write(&api, &name, patch).await?;
        }
        let Some(turn) = turn else { return Ok(None) };
        // Read the request again, because one that was finished in the meantime must not be acted on.
        let name = requests[turn].metadata.name.clone().unwrap_or_default();
        let found = api.get_opt(&name).await.map_err(Error::api("read a container recreate request"))?;
        let Some(request) = found.filter(|r| !r.is_finished()) else {
            lock(&self.requests).remove(&key_of(&requests[turn]));
            return Ok(Some(Duration::ZERO));
        };
        let key = key_of(&request);
        let agent = self.clone();
        let step = tokio::spawn(async move { agent.advance(&api, request).await });
        tokio::select! {
            done = step => done.unwrap_or_else(|error| Err(Error::Setup(format!("a step has ended: {error}")))),
            () = self.closed(&key) => Ok(Some(Duration::ZERO)),
        }
    }

    /// Waits until a request has a result or is deleted.
    async fn closed(&self, key: &str) {
        let mut changes = self.changes.subscribe();
        let is_open =
            |request: &Request| !request.is_finished() && request.metadata.deletion_timestamp.is_none();
        while lock(&self.requests).get(key).is_some_and(is_open) {
            // This cannot fail, because `self` owns the sender.
            let _ = changes.changed().await;
        }
    }

    async fn advance(&self, api: &Api<Request>, mut request: Request) -> Result<Option<Duration>, Error> {
        let uid = request.label(names::CRR_POD_UID).unwrap_or_default().to_owned();
        let name = request.metadata.name.clone().unwrap_or_default();
        let runtime = self.runtime.info().name.clone();
        // Each round writes or stops something, so the loop ends.
        for _ in 0..4 * request.spec.containers.len() + 4 {
            let instances = self.instances(&request, &uid).await?;
            let next = step(&request, &[&runtime], &instances, self.seen_in(&request), now());
            match next {
                ServeStep::Store { phase, states } => {
                    let patch = json!({
                        "metadata": {"resourceVersion": request.metadata.resource_version},
                        // The message says what the request waits for. It no longer waits.
                        "status": {"phase": phase, "message": "", "containerRecreateStates": states},
                    });
                    request = write(api, &name, patch).await?;
                }
                ServeStep::Hook { index, id } => {
                    let stop = Stop { request: &request, index, id: &id, uid: &uid };
                    // An earlier request may have started the hook and ended since.
                    let begun = lock(&self.hooks).get(&id).copied();
                    match begun {
                        None => {}
                        Some(Hook::Running) => return Ok(Some(POLL)),
                        Some(Hook::Done(_)) => {
                            write_states(api, &request, |newest| hook_done(newest, index, &id, &Ok(())))
                                .await?;
                            return Ok(Some(Duration::ZERO));
                        }
                    }
                    if !write_states(api, &request, |newest| hook_begun(newest, index, &id)).await? {
                        return Ok(Some(Duration::ZERO));
                    }
                    lock(&self.hooks).insert(id.clone(), Hook::Running);
                    let (took, ran) = self.run_hook(stop).await;
                    let written =
                        write_states(api, &request, |newest| hook_done(newest, index, &id, &ran)).await;
                    if matches!(written, Ok(false)) && stops_after_verdict(&request) {
                        match self.stop(stop, took).await {
                            Ok(()) => write_killed(api, &request, index, &id).await?,
                            Err(error) => tracing::warn!(id, error, "not stopped after its hook"),
                        }
                        lock(&self.hooks).remove(&id);
                    } else {
                        lock(&self.hooks).insert(id.clone(), Hook::Done(took));
                    }
                    return written.map(|_| Some(Duration::ZERO));
                }
                ServeStep::Kill { index, id } => {
                    let stops = stopped_together(&request, index, &id).into_iter().map(|(index, id)| {
                        let took = match lock(&self.hooks).remove(&id) {
                            Some(Hook::Done(took)) => took,
                            Some(Hook::Running) | None => Duration::ZERO,
                        };
                        let (request, uid) = (&request, &uid);
                        async move {
                            let result = self.stop(Stop { request, index, id: &id, uid }, took).await;
                            (index, id, result)
                        }
                    });
                    for (index, id, result) in futures::future::join_all(stops).await {
                        match &result {
                            Ok(()) => self.page.metrics.stopped.inc(),
                            Err(_) => self.page.metrics.failed.inc(),
                        };
                        let is_written =
                            write_states(api, &request, |newest| killed(newest, index, result.clone()))
                                .await?;
                        if !is_written && result.is_ok() {
                            write_killed(api, &request, index, &id).await?;
                        }
                    }
                    return Ok(Some(Duration::ZERO));
                }
                ServeStep::Complete { states, message } => {
                    complete(api, &request, &states, &message).await?;
                    lock(&self.requests).remove(&key_of(&request));
                    return Ok(Some(Duration::ZERO));
                }
                ServeStep::Wait { ms } => {
                    let wait = ms.map_or(POLL, |ms| Duration::from_millis(ms).min(RESYNC));
                    return Ok(Some(wait));
                }
            }
        }
        Ok(Some(POLL))
    }

    fn seen_in(&self, request: &Request) -> Seen {
        let is_true = |kind: &str| request.condition(kind).is_some_and(|c| c.status == "True");
        let (unready, result) = (is_true(names::CRR_GRACE), is_true(names::CRR_RESULT_WRITTEN));
        let asked = !result && needs_result(request);
        if !unready && !asked && !result {
            return Seen::default();
        }
        let mut all = lock(&self.seen);
        let seen = all.entry(key_of(request)).or_default();
        if unready {
            seen.unready.get_or_insert_with(now);
        }
        if asked {
            seen.asked.get_or_insert_with(now);
        }
        if result {
            seen.result.get_or_insert_with(now);
        }
        *seen
    }

    async fn instances(&self, request: &Request, uid: &str) -> Result<Vec<Instance>, Error> {
        let failed = |error: outrigger_runtime::RuntimeError| Error::Setup(error.to_string());
        let found = self.runtime.containers(uid).await.map_err(failed)?;
        let timed = request.strategy().min_started_seconds > 0;
        let mut instances = Vec::new();
        for c in found.into_iter().filter(|c| request.spec.containers.iter().any(|t| t.name == c.name)) {
            let started = match timed && c.state == NodeContainerState::Running {
                true => self.runtime.started_at(&c.id).await.map_err(failed)?,
                false => None,
            };
            instances.push(Instance {
                name: c.name,
                id: c.id,
                state: match c.state {
                    NodeContainerState::Other => InstanceState::Other,
                    NodeContainerState::Running => InstanceState::Running,
                    NodeContainerState::Exited => InstanceState::Exited,
                },
                created_at: u64::try_from(c.created_at).unwrap_or(0),
                started_at: started.map(time),
                restarts: c.restarts,
            });
        }
        Ok(instances)
    }

    /// Runs the preStop hook. Returns how long it took and how it ended. The container is stopped even if the
    /// hook fails (CRR-40).
    async fn run_hook(&self, stop: Stop<'_>) -> (Duration, Result<(), String>) {
        let Stop { request, index, id, uid } = stop;
        let grace = request.strategy().termination_grace_period_seconds.unwrap_or(30);
        let target = &request.spec.containers[index];
        let Some(handler) = &target.pre_stop else { return (Duration::ZERO, Ok(())) };
        let begun = tokio::time::Instant::now();
        let limit = Duration::from_secs(hook_seconds(grace));
        let ran = tokio::time::timeout(limit, self.hook(target, handler, id, uid, limit)).await;
        let ran = ran.unwrap_or_else(|_| Err(format!("not done within {limit:?}")));
        if let Err(error) = &ran {
            let request = key_of(request);
            tracing::warn!(request, container = target.name, error, "the preStop hook failed");
        }
        (begun.elapsed(), ran)
    }

    /// Stops an instance within the rest of the grace period.
    async fn stop(&self, stop: Stop<'_>, hook_took: Duration) -> Result<(), String> {
        let Stop { request, index, id, .. } = stop;
        let grace = request.strategy().termination_grace_period_seconds.unwrap_or(30);
        let took = u64::try_from(hook_took.as_millis()).unwrap_or(u64::MAX);
        let target = &request.spec.containers[index];
        let left = Duration::from_secs(stop_seconds(grace, target.termination_grace_period_seconds, took));
        let container = target.name.as_str();
        tracing::info!(request = key_of(request), container, id, "stopping");
        self.runtime.stop(id, left).await.map_err(|error| error.to_string())
    }

    async fn hook(
        &self,
        target: &crate::api::Target,
        hook: &k8s_openapi::api::core::v1::LifecycleHandler,
        id: &str,
        uid: &str,
        limit: Duration,
    ) -> Result<(), String> {
        let text = |error: outrigger_runtime::RuntimeError| error.to_string();
        if let Some(exec) = &hook.exec {
            let command = exec.command.clone().unwrap_or_default();
            return match self.runtime.exec(id, command, limit).await.map_err(text)? {
                Some(0) => Ok(()),
                Some(code) => Err(format!("exit code {code}")),
                None => Err(format!("timed out after {limit:?}")),
            };
        }
        let sandbox = self.runtime.containers(uid).await.map_err(text)?;
        let sandbox = sandbox.into_iter().find(|c| c.id == id).map(|c| c.sandbox).unwrap_or_default();
        let address = self.runtime.address(&sandbox).await.map_err(text)?;
        // A pod on the host network has the agent's address.
        let address = address.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let container =
            Container { name: target.name.clone(), ports: Some(target.ports.clone()), ..Default::default() };
        let ran = outrigger_agent::hooks::hook_from_here(&container, hook, address, limit).await;
        ran.map_err(|error| error.to_string())
    }
}

/// One container to stop.
#[derive(Clone, Copy)]
struct Stop<'a> {
    request: &'a Request,
    /// The index of the container in the request.
    index: usize,
    /// The id of the instance.
    id: &'a str,
    /// The uid of the pod.
    uid: &'a str,
}

async fn write(api: &Api<Request>, name: &str, patch: serde_json::Value) -> Result<Request, Error> {
    let patch = kube::api::Patch::Merge(patch);
    api.patch_status(name, &kube::api::PatchParams::default(), &patch)
        .await
        .map_err(Error::api(format!("write container recreate request {name}")))
}

/// Writes the state of a container into the newest version of a request, so that conflicting changes do not
/// matter. Returns false, without writing, if the request already has a result or was replaced by another one
/// of the same name.
async fn write_states(
    api: &Api<Request>,
    request: &Request,
    states: impl Fn(&Request) -> Vec<crate::api::RecreateState>,
) -> Result<bool, Error> {
    let name = request.metadata.name.as_deref().unwrap_or_default();
    let is_open = |newest: &Request| !newest.is_finished() && newest.metadata.uid == request.metadata.uid;
    let mut tries = 0;
    loop {
        let found = api.get_opt(name).await.map_err(Error::api("read a container recreate request"))?;
        let Some(newest) = found.filter(is_open) else { return Ok(false) };
        let patch = json!({
            "metadata": {"resourceVersion": newest.metadata.resource_version},
            "status": {"containerRecreateStates": states(&newest)},
        });
        tries += 1;
        match write(api, name, patch).await {
            Err(error) if error.is_stale() && tries < WRITES_MAX => {}
            other => return other.map(|_| true),
        }
    }
}

/// Records that an instance was stopped, in a request that got its result in the meantime.
async fn write_killed(api: &Api<Request>, request: &Request, index: usize, id: &str) -> Result<(), Error> {
    let name = request.metadata.name.as_deref().unwrap_or_default();
    let mut tries = 0;
    loop {
        let found = api.get_opt(name).await.map_err(Error::api("read a container recreate request"))?;
        let found = found.filter(|newest| newest.metadata.uid == request.metadata.uid);
        let Some(newest) = found else { return Ok(()) };
        let Some(states) = killed_after_verdict(&newest, index, id) else { return Ok(()) };
        let patch = json!({
            "metadata": {"resourceVersion": newest.metadata.resource_version},
            "status": {"containerRecreateStates": states},
        });
        tries += 1;
        match write(api, name, patch).await {
            Err(error) if error.is_stale() && tries < WRITES_MAX => {}
            other => return other.map(|_| ()),
        }
    }
}

fn time(time: SystemTime) -> Time {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    Time(u64::try_from(since.as_millis()).unwrap_or(0))
}
