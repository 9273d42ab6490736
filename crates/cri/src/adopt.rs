//! Adopts the pods of the node's previous process.
//!
//! The runtime keeps sandboxes, containers and their labels, but not the configuration of a sandbox. Every
//! container that is created in the sandbox needs that configuration again, so a file in the pod's directory
//! keeps it.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::client::Fault;
use super::config::{self, CONTAINER_NAME, LABEL_ID, LABEL_OWNER, POD_DIR, STOP_SIGNAL};
use super::containers::{START_ERROR, Slot, time};
use super::pod::Pod;
use super::wire::{
    CONTAINER_CREATED, CONTAINER_EXITED, Container, ContainerFilter, ListContainersRequest, PodSandbox,
    SANDBOX_READY,
};
use super::{Inner, owner, wait};
use outrigger_runtime::{Adopted, ContainerId, RuntimeError, Sandbox, SandboxId, SandboxSpec, Started};

/// The file in the pod's directory with the sandbox's configuration.
const FILE: &str = "cri-sandbox.json";
/// The file with the runtime's id of the sandbox, written when the sandbox is created. Without this file it
/// is unknown whether it was created.
const MADE: &str = "cri-sandbox.id";

/// Writes the configuration of a sandbox, before it is created.
pub(super) fn write_down(spec: &SandboxSpec) -> Result<(), RuntimeError> {
    let dir = &spec.pod_dir;
    let gone = match fs::remove_file(dir.join(MADE)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    };
    gone.and_then(|()| replace(dir, FILE, &serde_json::to_vec(spec)?))
        .map_err(|error| cannot_write(dir, &error))
}

/// Stores which sandbox is the pod's, before it is used. Another sandbox may have the same labels: a previous
/// process may have requested it and died before the answer.
pub(super) fn write_made(dir: &Path, id: &str) -> Result<(), RuntimeError> {
    replace(dir, MADE, id.as_bytes()).map_err(|error| cannot_write(dir, &error))
}

fn replace(dir: &Path, name: &str, content: &[u8]) -> io::Result<()> {
    let temporary = dir.join("cri-sandbox.tmp");
    let mut file = fs::File::create(&temporary)?;
    file.write_all(content)?;
    drop(file);
    fs::rename(&temporary, dir.join(name))
}

fn cannot_write(dir: &Path, error: &io::Error) -> RuntimeError {
    RuntimeError::Create(format!("cannot write in {}: {error}", dir.display()))
}

/// Removes the files of [`write_down`] and [`write_made`].
pub(super) fn forget(dir: &Path) {
    // Files that cannot be removed now are removed with the directory.
    for name in [MADE, FILE] {
        let _ = fs::remove_file(dir.join(name));
    }
}

/// The runtime's id of the sandbox that was created for a pod.
fn made(dir: &Path) -> Option<String> {
    fs::read_to_string(dir.join(MADE)).ok().filter(|id| !id.is_empty())
}

/// The sandbox that was requested for a pod, if it is unknown whether it was created.
pub(super) fn unfinished(dir: &Path) -> Option<SandboxSpec> {
    if made(dir).is_some() {
        return None;
    }
    read(dir).ok()
}

fn read(dir: &Path) -> Result<SandboxSpec, RuntimeError> {
    let path = dir.join(FILE);
    let read = fs::read(&path).and_then(|text| Ok(serde_json::from_slice(&text)?));
    read.map_err(|error| RuntimeError::Other(format!("{} is damaged: {error}", path.display())))
}

impl Inner {
    /// The sandboxes of this runtime's owner.
    pub(super) async fn list_owned(&self) -> Result<Vec<SandboxId>, RuntimeError> {
        let label = owner::label(self.claims.owner());
        let found = self
            .list_sandboxes(LABEL_OWNER, &label)
            .await
            .map_err(|fault| RuntimeError::Other(format!("cannot list sandboxes: {fault}")))?;
        let ids: BTreeSet<SandboxId> =
            found.iter().filter_map(|sandbox| sandbox.labels.get(LABEL_ID).cloned().map(SandboxId)).collect();
        Ok(ids.into_iter().collect())
    }

    /// Adopts a sandbox with its containers. Runs to completion even if the caller goes away.
    pub(super) async fn adopt_sandbox(
        self: Arc<Self>,
        id: SandboxId,
    ) -> Result<(Sandbox, Vec<Adopted>), RuntimeError> {
        let _turn = self.turn(&id.0).await;
        let failed = |fault: Fault| RuntimeError::Other(format!("cannot adopt sandbox {:?}: {fault}", id.0));
        let label = owner::label(self.claims.owner());
        let is_ours = |value: &String| *value == label;
        let mut found = self.sandboxes_of(&id).await.map_err(failed)?;
        found.retain(|found| found.labels.get(LABEL_OWNER).is_some_and(is_ours));
        let lost = || RuntimeError::NotFound { kind: "sandbox", id: id.0.clone() };
        let dir = found.first().ok_or_else(lost)?.annotations.get(POD_DIR).map(PathBuf::from);
        let dir = dir.ok_or_else(|| {
            RuntimeError::Other(format!("sandbox {:?} does not say where its pod's directory is", id.0))
        })?;
        let made = made(&dir);
        let is_it = |found: &PodSandbox| made.as_ref().is_none_or(|made| *made == found.id);
        let at = found.iter().position(|found| found.state == SANDBOX_READY && is_it(found));
        let ready = found.swap_remove(at.ok_or_else(lost)?);
        self.claims.claim(&dir)?;
        let spec = read(&dir)?;
        let mut config = config::sandbox(&spec, &label)?;
        if let (Some(own), Some(theirs)) = (&mut config.metadata, &ready.metadata) {
            own.attempt = theirs.attempt;
        }
        let pod = Arc::new(Pod::new(config, ready.id.clone(), dir));
        self.pods().insert(id.clone(), pod.clone());
        let sandbox = self.inspect_sandbox(spec, ready.id).await?;
        let adopted = self.adopt_containers(&id, &pod).await.map_err(failed)?;
        for other in found {
            if let Err(fault) = self.remove_by_id(&other.id).await {
                tracing::warn!(sandbox = %id, "cannot remove a sandbox that was made in vain: {fault}");
            }
        }
        Ok((sandbox, adopted))
    }

    async fn adopt_containers(&self, sandbox: &SandboxId, pod: &Pod) -> Result<Vec<Adopted>, Fault> {
        let filter = ContainerFilter { pod_sandbox_id: pod.id.clone(), ..ContainerFilter::default() };
        let mut found = self.client.ask(ListContainersRequest { filter: Some(filter) }).await?.containers;
        // If the creation of a container was not answered, there may be another container of the same name,
        // which never ran.
        found.sort_by_key(|container| container.state == CONTAINER_CREATED);
        let mut adopted: Vec<Adopted> = Vec::new();
        for container in found {
            pod.note(&container.id);
            let Some(name) = container.labels.get(LABEL_ID).cloned().map(ContainerId) else { continue };
            if adopted.iter().any(|other| other.id == name) {
                continue;
            }
            match self.adopt_container(name, sandbox, &container).await {
                Ok(container) => adopted.push(container),
                // Someone else removed it in the meantime.
                Err(Fault::NotFound(_)) => {}
                Err(fault) => return Err(fault),
            }
        }
        Ok(adopted)
    }

    async fn adopt_container(
        &self,
        name: ContainerId,
        sandbox: &SandboxId,
        container: &Container,
    ) -> Result<Adopted, Fault> {
        let signal = container.annotations.get(STOP_SIGNAL).map(String::as_str);
        // The signal was valid when the container was created.
        let signal = self.own_signal(&name.0, signal).unwrap_or_default();
        let slot = Arc::new(Slot::new(name.clone(), sandbox.clone(), signal));
        slot.id.get_or_init(|| container.id.clone());
        // Subscribe before reading the status, so that no exit is missed.
        self.hints.subscribe(&container.id, slot.receiver.clone());
        let status = self.status(&container.id).await?;
        let was_run = status.state != CONTAINER_CREATED && status.reason != START_ERROR;
        let started = time(status.started_at).filter(|_| was_run).map(|at| Started { at, pid: 0 });
        if let Some(started) = &started {
            slot.started.get_or_init(|| started.at);
        }
        let exit = (status.state == CONTAINER_EXITED && was_run).then(|| wait::exit(&slot, &status));
        self.slots().insert(name.clone(), slot);
        let shown = container.labels.get(CONTAINER_NAME).cloned().unwrap_or_default();
        Ok(Adopted { id: name, name: shown, started, exit })
    }
}
