//! Runs pods on an existing runtime: containerd, CRI-O or another one that supports CRI v1.
//!
//! # Modules
//!
//! * `client` makes calls on a connection that is reopened when it breaks; `wire` has the messages.
//! * `config` builds the CRI configurations of sandboxes and containers, `pods` and `containers` create and
//!   remove them, `images` pulls images.
//! * `hints` listens to the runtime's events, `wait` turns them into exits.
//! * `native` and `exec_streams` use containerd's own API in addition to CRI, `leftovers` kills processes
//!   that containerd has lost track of.
//!
//! # No duplicates, no leftovers
//!
//! The agent names sandboxes and containers; the runtime assigns its own ids. The agent's name is stored as a
//! label. If a creation was not answered (the connection broke, or the call hung), the object is searched for
//! by its label before it is created again.
//!
//! Creating, starting and removing run as separate tasks, one at a time for each name. A caller that goes
//! away therefore leaves nothing half done, and a removal always follows the creation.
//!
//! Sandboxes are labelled with the process or the node that they belong to (`owner`). The next process
//! removes the sandboxes of a crashed process. The next process of a node adopts the node's sandboxes
//! (`adopt`).

mod adopt;
mod client;
mod config;
mod containers;
pub mod doctor;
mod endpoint;
mod exec_streams;
mod hints;
mod hold;
mod images;
mod info;
mod leftovers;
mod native;
mod node;
mod owner;
mod pod;
mod pods;
mod wait;
mod wire;

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::OwnedMutexGuard;
use tokio::task::AbortHandle;

use self::client::Client;
use self::containers::{Slot, missing};
use self::hints::Hints;
use self::images::Pulls;
use self::info::Signals;
use self::pod::Pod;
use outrigger_runtime::netns::connect_loopback;
use outrigger_runtime::ownership::Claims;
use outrigger_runtime::{
    Adopted, ContainerId, ContainerSpec, ExecOutput, ExecRequest, ExecStreamsRequest, Exit, Image,
    ImageError, Owner, ProcessStreams, ProgressSink, PullRequest, Runtime, RuntimeError, Sandbox, SandboxId,
    SandboxSpec, Started, Stats,
};

pub use self::client::Limits;
pub use self::hold::hold_connection;
pub use self::info::CriInfo;
pub use self::node::{NodeContainer, NodeContainerState, NodeRuntime};

/// The name of this runtime that users see.
const NAME: &str = "cri";

/// Configuration of the connection to a runtime.
#[derive(Debug, Clone, Default)]
pub struct CriConfig {
    /// `unix:///PATH`. `None` means `$CONTAINER_RUNTIME_ENDPOINT`, or one of the default sockets if that is
    /// not set.
    pub endpoint: Option<String>,
    /// Time limits of calls.
    pub limits: Limits,
    /// The owner of its pods.
    pub owner: Owner,
    /// The program and arguments of the command that runs [`hold_connection`]. If it is empty, work in
    /// progress is interrupted when this process dies.
    pub holder: Vec<std::ffi::OsString>,
}

/// Runs pods on a runtime that speaks CRI v1.
pub struct CriRuntime {
    inner: Arc<Inner>,
    info: CriInfo,
    listener: AbortHandle,
}

/// Shared by tasks that outlive the call that started them.
struct Inner {
    client: Arc<Client>,
    hints: Arc<Hints>,
    pulls: Pulls,
    signals: Signals,
    is_containerd: bool,
    /// Whether the runtime supports `supplementalGroupsPolicy`.
    strict_groups: bool,
    pods: Mutex<HashMap<SandboxId, Arc<Pod>>>,
    claims: Claims,
    slots: Mutex<HashMap<ContainerId, Arc<Slot>>>,
    turns: Mutex<HashMap<String, Weak<tokio::sync::Mutex<()>>>>,
}

impl CriRuntime {
    /// Finds the runtime and checks that it answers.
    ///
    /// # Errors
    /// Lists where a runtime was searched for, or why the one that was found cannot be used.
    pub async fn connect(config: CriConfig) -> Result<Self, RuntimeError> {
        let path = endpoint::find(config.endpoint.as_deref())
            .map_err(|error| RuntimeError::Other(error.to_string()))?;
        let client = Arc::new(Client::new(path, config.limits, config.holder));
        let info = CriInfo::query(&client).await?;
        let hints = Arc::new(Hints::default());
        // This is not awaited, because the call that opens the stream returns only with the first event.
        let listener = hints::follow(client.clone(), hints.clone(), info.is_containerd());
        let listener = tokio::spawn(listener).abort_handle();
        let inner = Arc::new(Inner {
            client,
            hints,
            pulls: Pulls::default(),
            signals: info.signals(),
            is_containerd: info.is_containerd(),
            strict_groups: info.strict_groups,
            pods: Mutex::default(),
            claims: Claims::new(config.owner, NAME),
            slots: Mutex::default(),
            turns: Mutex::default(),
        });
        Ok(CriRuntime { inner, info, listener })
    }

    /// Information about the runtime.
    pub fn info(&self) -> &CriInfo {
        &self.info
    }

    /// Features of pods that the runtime does not support, one sentence each. It takes a moment to find out.
    pub async fn lacks(&self) -> Vec<String> {
        let mut lacks = self.info.lacks.clone();
        if !self.inner.hints.come_alive().await {
            lacks.push(info::NO_EVENTS.to_owned());
        }
        lacks
    }

    /// Stops and removes the pods of crashed processes. Returns their sandboxes.
    ///
    /// # Errors
    /// The runtime could not be reached or refused a removal.
    pub async fn clean_orphans(&self) -> Result<Vec<SandboxId>, RuntimeError> {
        self.inner.clean_orphans().await
    }
}

impl Drop for CriRuntime {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

impl Inner {
    fn pods(&self) -> MutexGuard<'_, HashMap<SandboxId, Arc<Pod>>> {
        lock(&self.pods)
    }

    fn slots(&self) -> MutexGuard<'_, HashMap<ContainerId, Arc<Slot>>> {
        lock(&self.slots)
    }

    fn slot(&self, name: &ContainerId) -> Result<Arc<Slot>, RuntimeError> {
        self.slots().get(name).cloned().ok_or_else(|| missing(name))
    }

    /// Locks a name, for creating, starting or removing the object with that name.
    async fn turn(&self, name: &str) -> OwnedMutexGuard<()> {
        let turn = {
            let mut turns = lock(&self.turns);
            turns.retain(|_, turn| turn.strong_count() > 0);
            let turn = turns.get(name).and_then(Weak::upgrade).unwrap_or_default();
            turns.insert(name.to_owned(), Arc::downgrade(&turn));
            turn
        };
        turn.lock_owned().await
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each critical section is a single map operation, so a panic cannot leave the map in a partly changed
    // state.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs work to completion, even if the caller goes away.
async fn to_the_end<T: Send + 'static>(
    work: impl Future<Output = Result<T, RuntimeError>> + Send + 'static,
) -> Result<T, RuntimeError> {
    match tokio::spawn(work).await {
        Ok(result) => result,
        Err(error) => Err(RuntimeError::Other(error.to_string())),
    }
}

impl Runtime for CriRuntime {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn pull_image(&self, request: PullRequest, _: ProgressSink) -> Result<Image, ImageError> {
        self.inner.pull_image(request).await
    }

    fn check_sandbox(&self, spec: &SandboxSpec) -> Result<(), RuntimeError> {
        spec.check_ports()
    }

    async fn create_sandbox(&self, spec: SandboxSpec) -> Result<Sandbox, RuntimeError> {
        to_the_end(self.inner.clone().create_sandbox(spec)).await
    }

    async fn remove_sandbox(&self, id: &SandboxId) -> Result<(), RuntimeError> {
        to_the_end(self.inner.clone().remove_sandbox(id.clone())).await
    }

    async fn list_sandboxes(&self) -> Result<Vec<SandboxId>, RuntimeError> {
        self.inner.list_owned().await
    }

    async fn adopt_sandbox(&self, id: &SandboxId) -> Result<(Sandbox, Vec<Adopted>), RuntimeError> {
        to_the_end(self.inner.clone().adopt_sandbox(id.clone())).await
    }

    async fn sandbox_lost(&self, id: &SandboxId) {
        self.inner.sandbox_lost(id).await;
    }

    async fn create_container(
        &self,
        sandbox: &SandboxId,
        spec: ContainerSpec,
    ) -> Result<ContainerId, RuntimeError> {
        to_the_end(self.inner.clone().create_container(sandbox.clone(), spec)).await
    }

    async fn finish_start(&self, id: &ContainerId) -> Result<Option<Started>, RuntimeError> {
        to_the_end(self.inner.clone().finish_start(id.clone())).await
    }

    async fn start_container(&self, id: &ContainerId) -> Result<Started, RuntimeError> {
        to_the_end(self.inner.clone().start_container(id.clone())).await
    }

    async fn terminate(&self, id: &ContainerId, grace: Duration) -> Result<(), RuntimeError> {
        let (stop, id) = (self.inner.clone().stop(id.clone(), Some(grace)), id.clone());
        // CRI answers when the container has ended, but the caller only wants the signal to be sent.
        tokio::spawn(async move {
            if let Err(error) = stop.await {
                tracing::warn!(container = %id, "{error}");
            }
        });
        Ok(())
    }

    async fn kill(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        to_the_end(self.inner.clone().stop(id.clone(), None)).await
    }

    async fn wait(&self, id: &ContainerId) -> Result<Exit, RuntimeError> {
        self.inner.wait(id).await
    }

    async fn exec_streams(
        &self,
        id: &ContainerId,
        request: ExecStreamsRequest,
    ) -> Result<ProcessStreams, RuntimeError> {
        self.inner.exec_streams(id, request).await
    }

    async fn exec(&self, id: &ContainerId, request: ExecRequest) -> Result<ExecOutput, RuntimeError> {
        self.inner.exec(id, request).await
    }

    async fn stats(&self, id: &ContainerId) -> Result<Stats, RuntimeError> {
        self.inner.stats(id).await
    }

    async fn port_forward(&self, id: &SandboxId, port: u16) -> Result<TcpStream, RuntimeError> {
        let pod = self.inner.pods().get(id).cloned();
        let pod = pod.ok_or_else(|| RuntimeError::NotFound { kind: "sandbox", id: id.0.clone() })?;
        let netns = self.inner.network_namespace_of(&pod).await?;
        connect_loopback(netns.as_deref(), port).await
    }

    async fn remove_container(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        to_the_end(self.inner.clone().remove_container(id.clone())).await
    }
}
