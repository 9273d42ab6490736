//! Inspects and stops the containers on a kubelet's node.

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use super::client::{Client, Fault, Limits};
use super::info::CriInfo;
use super::wire::{
    CONTAINER_CREATED, CONTAINER_EXITED, CONTAINER_UNKNOWN, ContainerFilter, ContainerStatusRequest,
    ExecSyncRequest, ListContainersRequest, PodSandboxStatusRequest, StopContainerRequest,
};
use super::{containers, endpoint};
use outrigger_runtime::RuntimeError;

/// Labels and annotations that kubelets set on their containers.
const POD_UID: &str = "io.kubernetes.pod.uid";
const CONTAINER_NAME: &str = "io.kubernetes.container.name";
const RESTARTS: &str = "io.kubernetes.container.restartCount";

/// How much longer than the stop itself the answer to a stop may take.
const STOP_MARGIN: Duration = Duration::from_secs(5);

/// A runtime that belongs to a kubelet.
pub struct NodeRuntime {
    client: Client,
    info: CriInfo,
}

/// The state of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeContainerState {
    /// It was created but not started, or the runtime has lost track of it.
    Other,
    /// Running.
    Running,
    /// Ended.
    Exited,
}

/// One instance of a container of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeContainer {
    /// The container's name in its pod.
    pub name: String,
    /// The runtime's id of this instance.
    pub id: String,
    /// The runtime's id of the pod's sandbox.
    pub sandbox: String,
    /// Its state.
    pub state: NodeContainerState,
    /// When it was created, in nanoseconds.
    pub created_at: i64,
    /// How often the container was restarted before.
    pub restarts: i32,
}

/// The maximum output of a command. Its exit code comes in the same answer.
const OUTPUT_MAX: usize = 256 << 10;

impl NodeRuntime {
    /// Finds the runtime and checks that it answers.
    ///
    /// # Errors
    /// Lists where a runtime was searched for, or why the one that was found cannot be used.
    pub async fn connect(endpoint: Option<&str>) -> Result<Self, RuntimeError> {
        let path = endpoint::find(endpoint).map_err(|error| RuntimeError::Other(error.to_string()))?;
        let client = Client::new(path, Limits::default(), Vec::new());
        let info = CriInfo::query(&client).await?;
        Ok(NodeRuntime { client, info })
    }

    /// Information about the runtime.
    pub fn info(&self) -> &CriInfo {
        &self.info
    }

    /// Every instance of every container of a pod.
    ///
    /// # Errors
    /// The runtime cannot be reached.
    pub async fn containers(&self, pod_uid: &str) -> Result<Vec<NodeContainer>, RuntimeError> {
        let label_selector = [(POD_UID.to_owned(), pod_uid.to_owned())].into();
        let request =
            ListContainersRequest { filter: Some(ContainerFilter { label_selector, ..Default::default() }) };
        let found = self.client.ask(request).await.map_err(other)?.containers;
        Ok(found
            .into_iter()
            .map(|c| NodeContainer {
                name: c.labels.get(CONTAINER_NAME).cloned().unwrap_or_default(),
                restarts: c.annotations.get(RESTARTS).and_then(|n| n.parse().ok()).unwrap_or(0),
                id: c.id,
                sandbox: c.pod_sandbox_id,
                state: match c.state {
                    CONTAINER_EXITED => NodeContainerState::Exited,
                    CONTAINER_CREATED | CONTAINER_UNKNOWN => NodeContainerState::Other,
                    _ => NodeContainerState::Running,
                },
                created_at: c.created_at,
            })
            .collect())
    }

    /// When an instance was started.
    ///
    /// # Errors
    /// The runtime cannot be reached.
    pub async fn started_at(&self, id: &str) -> Result<Option<SystemTime>, RuntimeError> {
        let request = ContainerStatusRequest { container_id: id.to_owned() };
        match self.client.ask(request).await {
            Ok(answer) => Ok(answer.status.and_then(|status| containers::time(status.started_at))),
            Err(Fault::NotFound(_)) => Ok(None),
            Err(fault) => Err(other(fault)),
        }
    }

    /// Stops an instance: sends its stop signal, and kills it after `grace`. An instance that no longer
    /// exists counts as stopped.
    ///
    /// # Errors
    /// The runtime refuses, or does not answer in time.
    pub async fn stop(&self, id: &str, grace: Duration) -> Result<(), RuntimeError> {
        let timeout = i64::try_from(grace.as_secs()).unwrap_or(i64::MAX);
        let request = StopContainerRequest { container_id: id.to_owned(), timeout };
        match self.client.call_until_answered(request, grace.saturating_add(STOP_MARGIN)).await {
            Ok(_) | Err(Fault::NotFound(_)) => Ok(()),
            Err(fault) => Err(other(fault)),
        }
    }

    /// Runs a command in an instance. Returns its exit code, or `None` if it took longer than `limit`.
    ///
    /// # Errors
    /// It could not be run, or it printed more than 256 KiB.
    pub async fn exec(
        &self,
        id: &str,
        command: Vec<String>,
        limit: Duration,
    ) -> Result<Option<i32>, RuntimeError> {
        let timeout = i64::try_from(limit.as_secs().max(1)).unwrap_or(i64::MAX);
        let request = ExecSyncRequest { container_id: id.to_owned(), cmd: command, timeout };
        // The output is not used. Its size is limited because many commands may end at the same time.
        match self.client.call_within(request, limit, OUTPUT_MAX).await {
            Ok(answer) => Ok(Some(answer.exit_code)),
            Err(Fault::Expired | Fault::Late(_)) => Ok(None),
            Err(fault) => Err(other(fault)),
        }
    }

    /// The address of a pod; `None` on the host network.
    ///
    /// # Errors
    /// The runtime cannot be reached.
    pub async fn address(&self, sandbox: &str) -> Result<Option<IpAddr>, RuntimeError> {
        let request = PodSandboxStatusRequest { pod_sandbox_id: sandbox.to_owned(), verbose: false };
        let answer = self.client.ask(request).await.map_err(other)?;
        let network = answer.status.and_then(|status| status.network).unwrap_or_default();
        Ok(network.ip.parse().ok())
    }
}

fn other(fault: Fault) -> RuntimeError {
    RuntimeError::Other(fault.to_string())
}
