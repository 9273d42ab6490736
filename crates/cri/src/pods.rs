//! Creates, inspects and removes sandboxes.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::client::Fault;
use super::config::{self, LABEL_ID, LABEL_MANAGED, LABEL_OWNER, POD_DIR};
use super::hints::{HintReceiver, Hints};
use super::pod::Pod;
use super::wire::{
    ListPodSandboxRequest, NamespaceMode, PodSandbox, PodSandboxConfig, PodSandboxFilter,
    PodSandboxStatusRequest, RemovePodSandboxRequest, RunPodSandboxRequest, SANDBOX_READY,
    StopPodSandboxRequest,
};
use super::{Inner, adopt, leftovers, owner};
use outrigger_runtime::ownership;
use outrigger_runtime::{NetworkMode, Owner, RuntimeError, Sandbox, SandboxId, SandboxSpec};

/// How often a name that is in use is retried with another attempt number.
const NUMBERS_MAX: u32 = 100;

/// No runtime class has this handler.
const NO_HANDLER: &str = "outrigger-no-such-handler";

/// How often to check for a sandbox that is being created.
const MAKING_PAUSE: Duration = Duration::from_millis(50);

/// How often to check a sandbox: after a reported exit and for how long, without events, and with events.
const LOST_SOON: Duration = Duration::from_millis(20);
const LOST_FOR: Duration = Duration::from_secs(5);
const LOST_OFTEN: Duration = Duration::from_secs(2);
const LOST_SELDOM: Duration = Duration::from_secs(30);

/// Receives hints about a sandbox until this is dropped.
struct SandboxHints<'a> {
    hints: &'a Hints,
    id: &'a str,
    receiver: Arc<HintReceiver>,
}

impl Drop for SandboxHints<'_> {
    fn drop(&mut self) {
        self.hints.forget(self.id);
    }
}

impl Inner {
    /// Creates a sandbox. Runs to completion even if the caller goes away.
    pub(super) async fn create_sandbox(self: Arc<Self>, spec: SandboxSpec) -> Result<Sandbox, RuntimeError> {
        let _turn = self.turn(&spec.id.0).await;
        let mut config = config::sandbox(&spec, &owner::label(self.claims.owner()))?;
        let dir = spec.pod_dir.clone();
        self.claims.claim(&dir)?;
        if !self.claims.owner().is_process() {
            adopt::write_down(&spec)?;
        }
        let id = match self.run_sandbox(&spec, &mut config).await {
            Ok(id) => id,
            Err(error) => {
                if self.client.was_lost() {
                    end_leftovers(Vec::new(), dir).await;
                }
                return Err(error);
            }
        };
        if !self.claims.owner().is_process() {
            adopt::write_made(&dir, &id)?;
        }
        self.pods().insert(spec.id.clone(), Arc::new(Pod::new(config, id.clone(), dir)));
        self.inspect_sandbox(spec, id).await
    }

    /// The runtime's status of an existing sandbox.
    pub(super) async fn inspect_sandbox(
        &self,
        spec: SandboxSpec,
        id: String,
    ) -> Result<Sandbox, RuntimeError> {
        let mut sandbox = Sandbox { id: spec.id, ips: Vec::new(), netns: None, nameservers: Vec::new() };
        if spec.network != NetworkMode::Host {
            let request = PodSandboxStatusRequest { pod_sandbox_id: id, verbose: true };
            let answer =
                self.client.ask(request).await.map_err(|fault| cannot("look at", &spec.pod_name, &fault))?;
            let network = answer.status.and_then(|status| status.network).unwrap_or_default();
            let others = network.additional_ips.iter().map(|other| other.ip.as_str());
            let ips = [network.ip.as_str()].into_iter().chain(others);
            sandbox.ips = ips.filter_map(|ip| ip.parse::<IpAddr>().ok()).collect();
            sandbox.netns = answer.info.values().find_map(|info| network_namespace(info));
        }
        Ok(sandbox)
    }

    async fn run_sandbox(
        &self,
        spec: &SandboxSpec,
        config: &mut PodSandboxConfig,
    ) -> Result<String, RuntimeError> {
        let mut retry = self.client.retry();
        loop {
            let request = RunPodSandboxRequest {
                config: Some(config.clone()),
                runtime_handler: spec.runtime_class.clone().unwrap_or_default(),
            };
            let fault = match self.client.call(request, self.client.limits().work).await {
                Ok(answer) => return Ok(answer.pod_sandbox_id),
                Err(fault) => fault,
            };
            // Another pod with the same name is running.
            if fault.is_name_taken()
                && let Some(metadata) = &mut config.metadata
                && metadata.attempt < NUMBERS_MAX
            {
                metadata.attempt += 1;
                continue;
            }
            if fault.is_unclear() && retry.pause().await {
                let left = self
                    .sandboxes_of(&spec.id)
                    .await
                    .map_err(|fault| cannot("make", &spec.pod_name, &fault))?;
                if let Some(made) = left.iter().find(|sandbox| sandbox.state == SANDBOX_READY) {
                    return Ok(made.id.clone());
                }
                for sandbox in left {
                    self.remove_by_id(&sandbox.id)
                        .await
                        .map_err(|fault| cannot("make", &spec.pod_name, &fault))?;
                }
                continue;
            }
            let refused = spec.sysctls.keys().find(|name| fault.is_about_sysctl(name));
            return Err(match (cannot("make", &spec.pod_name, &fault), refused) {
                (RuntimeError::Create(detail), Some(name)) => {
                    RuntimeError::Sysctl { name: name.clone(), detail }
                }
                (error, _) => error,
            });
        }
    }

    /// Stops and removes a sandbox with everything in it.
    pub(super) async fn remove_sandbox(self: Arc<Self>, id: SandboxId) -> Result<(), RuntimeError> {
        let _turn = self.turn(&id.0).await;
        let failed =
            |fault: Fault| RuntimeError::Other(format!("cannot remove the sandbox of {:?}: {fault}", id.0));
        let mut made = Vec::new();
        self.await_unfinished(&id).await.map_err(failed)?;
        // Remove all sandboxes with this name: a creation that was not answered may have left another one.
        let mut unclaimed = None;
        for sandbox in self.sandboxes_of(&id).await.map_err(failed)? {
            self.remove_by_id(&sandbox.id).await.map_err(failed)?;
            unclaimed = sandbox.annotations.get(POD_DIR).map(PathBuf::from);
            made.push(sandbox.id);
        }
        self.forget_containers_of(&id);
        let pod = self.pods().remove(&id);
        // This process has neither created nor adopted the sandbox.
        if let Some(dir) = unclaimed.filter(|dir| pod.is_none() && dir.exists())
            && self.claims.claim(&dir).is_ok()
        {
            adopt::forget(&dir);
            self.claims.release(&dir);
        }
        if let Some(pod) = pod {
            adopt::forget(&pod.dir);
            self.claims.release(&pod.dir);
            made.push(pod.id.clone());
            made.append(&mut pod.take_made());
            if self.client.was_lost() {
                end_leftovers(made, pod.dir.clone()).await;
            }
        }
        Ok(())
    }

    /// Waits for a sandbox that a previous process of the node requested. The runtime may still be creating
    /// it: it lists a sandbox only when it is complete, but its name is in use from the beginning.
    async fn await_unfinished(&self, id: &SandboxId) -> Result<(), Fault> {
        let Owner::Node(node) = self.claims.owner() else { return Ok(()) };
        if !self.is_containerd || self.pods().contains_key(id) {
            return Ok(());
        }
        let Some(spec) = adopt::unfinished(&node.pod_dir(id)) else { return Ok(()) };
        let Ok(config) = config::sandbox(&spec, &owner::label(self.claims.owner())) else { return Ok(()) };
        let deadline = Instant::now() + self.client.limits().work;
        while Instant::now() < deadline {
            // The runtime refuses this request in any case. It first checks whether the name is in use.
            let request =
                RunPodSandboxRequest { config: Some(config.clone()), runtime_handler: NO_HANDLER.to_owned() };
            let answer = self.client.call(request, self.client.limits().work).await;
            let is_taken = answer.is_err_and(|fault| fault.is_name_taken());
            if !is_taken || !self.sandboxes_of(id).await?.is_empty() {
                break;
            }
            tokio::time::sleep(MAKING_PAUSE).await;
        }
        Ok(())
    }

    /// The network namespace of a sandbox; `None` is the host's.
    pub(super) async fn network_namespace_of(&self, pod: &Pod) -> Result<Option<PathBuf>, RuntimeError> {
        let linux = pod.config.linux.as_ref().and_then(|linux| linux.security_context.as_ref());
        if linux
            .and_then(|context| context.namespace_options)
            .is_some_and(|o| o.network() == NamespaceMode::Node)
        {
            return Ok(None);
        }
        let request = PodSandboxStatusRequest { pod_sandbox_id: pod.id.clone(), verbose: true };
        let answer =
            self.client.ask(request).await.map_err(|fault| RuntimeError::Other(fault.to_string()))?;
        match answer.info.values().find_map(|info| network_namespace(info)) {
            Some(path) => Ok(Some(path)),
            None => {
                Err(RuntimeError::Other("the runtime does not say where the pod's network is".to_owned()))
            }
        }
    }

    /// The actual cause of a failed step in a sandbox. If the sandbox is lost, that is the cause, and not the
    /// runtime's error.
    pub(super) async fn unless_lost(
        &self,
        id: &SandboxId,
        pod: Option<&Pod>,
        error: RuntimeError,
    ) -> RuntimeError {
        let Some(pod) = pod else { return error };
        match self.is_lost(pod).await {
            true => {
                tracing::debug!(sandbox = %id, "lost: {error}");
                RuntimeError::NotFound { kind: "sandbox", id: id.0.clone() }
            }
            false => error,
        }
    }

    /// Whether a sandbox certainly no longer exists.
    async fn is_lost(&self, pod: &Pod) -> bool {
        let request = PodSandboxStatusRequest { pod_sandbox_id: pod.id.clone(), verbose: false };
        match self.client.ask(request).await {
            Ok(answer) => answer.status.is_some_and(|status| status.state != SANDBOX_READY),
            Err(Fault::NotFound(_)) => true,
            Err(_) => false,
        }
    }

    /// Waits until a sandbox has ended by itself: its first process died, or someone removed it. This is
    /// checked when the runtime reports an exit or restarts, and periodically in between.
    pub(super) async fn sandbox_lost(&self, id: &SandboxId) {
        let Some(pod) = self.pods().get(id).cloned() else { return std::future::pending().await };
        let hints_of_sandbox = SandboxHints { hints: &self.hints, id: &pod.id, receiver: Arc::default() };
        self.hints.subscribe(hints_of_sandbox.id, hints_of_sandbox.receiver.clone());
        let mut hinted: Option<Instant> = None;
        loop {
            let pause = match (hinted, self.hints.are_alive()) {
                // The runtime stores an exit a moment after it has reported it.
                (Some(at), _) if at.elapsed() < LOST_FOR => LOST_SOON,
                (_, true) => LOST_SELDOM,
                (_, false) => LOST_OFTEN,
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = hints_of_sandbox.receiver.wake.notified() => {
                    if hints_of_sandbox.receiver.is_told.swap(false, Ordering::Relaxed) {
                        hinted = Some(Instant::now());
                    }
                }
            }
            if self.is_lost(&pod).await {
                return;
            }
        }
    }

    pub(super) async fn remove_by_id(&self, id: &str) -> Result<(), Fault> {
        self.settle(StopPodSandboxRequest { pod_sandbox_id: id.to_owned() }).await?;
        self.settle(RemovePodSandboxRequest { pod_sandbox_id: id.to_owned() }).await
    }

    /// The runtime's sandboxes with our name.
    pub(super) async fn sandboxes_of(&self, id: &SandboxId) -> Result<Vec<PodSandbox>, Fault> {
        self.list_sandboxes(LABEL_ID, &id.0).await
    }

    pub(super) async fn list_sandboxes(&self, label: &str, value: &str) -> Result<Vec<PodSandbox>, Fault> {
        let label_selector = [(label.to_owned(), value.to_owned())].into();
        let request = ListPodSandboxRequest { filter: Some(PodSandboxFilter { label_selector }) };
        Ok(self.client.ask(request).await?.items)
    }

    /// Removes the sandboxes of crashed processes.
    pub(super) async fn clean_orphans(&self) -> Result<Vec<SandboxId>, RuntimeError> {
        let failed = |fault: Fault| {
            RuntimeError::Other(format!("cannot remove what earlier runs left behind: {fault}"))
        };
        let (label, value) = LABEL_MANAGED;
        let mut removed = Vec::new();
        for sandbox in self.list_sandboxes(label, value).await.map_err(failed)? {
            let is_orphan = sandbox.labels.get(LABEL_OWNER).is_some_and(|label| owner::is_dead(label));
            if is_orphan {
                self.remove_by_id(&sandbox.id).await.map_err(failed)?;
                if let Some(dir) = sandbox.annotations.get(POD_DIR).map(PathBuf::from) {
                    end_leftovers(vec![sandbox.id.clone()], dir.clone()).await;
                    let gone = tokio::task::spawn_blocking(move || ownership::remove_dir(&dir)).await;
                    if let Ok(Err(error)) = gone {
                        tracing::warn!(sandbox = sandbox.id, %error, "could not remove the directory of an orphaned pod");
                    }
                }
                removed.extend(sandbox.labels.get(LABEL_ID).map(|id| SandboxId(id.clone())));
            }
        }
        Ok(removed)
    }
}

/// Kills the processes of removed objects that a restarted runtime has lost track of.
async fn end_leftovers(ids: Vec<String>, dir: PathBuf) {
    let ended = tokio::task::spawn_blocking(move || leftovers::end(&ids, &dir)).await.unwrap_or(0);
    if ended > 0 {
        tracing::debug!("the runtime has lost track of {ended} processes; they are killed");
    }
}

fn cannot(what: &str, pod: &str, fault: &Fault) -> RuntimeError {
    RuntimeError::Create(format!("cannot {what} the sandbox of pod {pod:?}: {fault}"))
}

/// The network namespace in a sandbox's verbose information: the file that pins it, or the one of its process
/// if there is no such file.
fn network_namespace(info: &str) -> Option<PathBuf> {
    let info: Value = serde_json::from_str(info).ok()?;
    let namespaces = info.pointer("/runtimeSpec/linux/namespaces").and_then(Value::as_array);
    let pinned = namespaces.into_iter().flatten().find(|namespace| namespace["type"] == "network");
    let pinned = pinned.and_then(|namespace| namespace["path"].as_str()).filter(|path| !path.is_empty());
    match pinned {
        Some(path) if Path::new(path).exists() => Some(path.into()),
        _ => {
            let pid = info["pid"].as_u64().filter(|pid| *pid > 0)?;
            Some(format!("/proc/{pid}/ns/net").into())
        }
    }
}
