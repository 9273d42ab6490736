//! Adopts the pods of the node's previous process.
//!
//! The runtime keeps sandboxes, containers and their labels, but not the configuration of a sandbox, which is
//! needed again for every container in it: that is kept in a file in the pod's directory.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::client::Fault;
use super::config::{self, CONTAINER_NAME, LABEL_ID, LABEL_OWNER, POD_DIR, STOP_SIGNAL};
use super::containers::{START_ERROR, Slot, time};
use super::pods::Pod;
use super::wire::{
    CONTAINER_CREATED, CONTAINER_EXITED, Container, ContainerFilter, ListContainersRequest, SANDBOX_READY,
};
use super::{Inner, owner, wait};
use crate::{Adopted, ContainerId, RuntimeError, Sandbox, SandboxId, SandboxSpec, Started};

/// The sandbox's configuration, in its pod's directory.
const FILE: &str = "cri-sandbox.json";

/// Writes the configuration of a sandbox, before it is created.
pub(super) fn write_down(spec: &SandboxSpec) -> Result<(), RuntimeError> {
    let write = || -> io::Result<()> {
        let temporary = spec.pod_dir.join("cri-sandbox.tmp");
        let mut file = fs::File::create(&temporary)?;
        file.write_all(&serde_json::to_vec(spec)?)?;
        drop(file);
        fs::rename(&temporary, spec.pod_dir.join(FILE))
    };
    write()
        .map_err(|error| RuntimeError::Create(format!("cannot write in {}: {error}", spec.pod_dir.display())))
}

/// Removes what [`write_down`] wrote.
pub(super) fn forget(dir: &Path) {
    // If it cannot be removed now, it is removed with the directory.
    let _ = fs::remove_file(dir.join(FILE));
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

    /// Adopts a sandbox with its containers. Runs to completion even if the caller is gone.
    pub(super) async fn adopt_sandbox(
        self: Arc<Self>,
        id: SandboxId,
    ) -> Result<(Sandbox, Vec<Adopted>), RuntimeError> {
        let _turn = self.turn(&id.0).await;
        let failed = |fault: Fault| RuntimeError::Other(format!("cannot adopt sandbox {:?}: {fault}", id.0));
        let label = owner::label(self.claims.owner());
        let is_ours = |value: &String| *value == label;
        let found = self.sandboxes_of(&id).await.map_err(failed)?;
        let ready = found
            .into_iter()
            .find(|found| found.state == SANDBOX_READY && found.labels.get(LABEL_OWNER).is_some_and(is_ours))
            .ok_or_else(|| RuntimeError::NotFound { kind: "sandbox", id: id.0.clone() })?;
        let dir = ready.annotations.get(POD_DIR).map(PathBuf::from).ok_or_else(|| {
            RuntimeError::Other(format!("sandbox {:?} does not say where its pod's directory is", id.0))
        })?;
        self.claims.claim(&dir)?;
        let spec = read(&dir)?;
        let mut config = config::sandbox(&spec, &label)?;
        if let (Some(own), Some(theirs)) = (&mut config.metadata, &ready.metadata) {
            own.attempt = theirs.attempt;
        }
        let pod = Arc::new(Pod::new(config, ready.id.clone(), dir));
        self.pods().insert(id.clone(), pod.clone());
        let sandbox = self.look_at(spec, ready.id).await?;
        let adopted = self.adopt_containers(&id, &pod).await.map_err(failed)?;
        Ok((sandbox, adopted))
    }

    async fn adopt_containers(&self, sandbox: &SandboxId, pod: &Pod) -> Result<Vec<Adopted>, Fault> {
        let filter = ContainerFilter { pod_sandbox_id: pod.id.clone(), ..ContainerFilter::default() };
        let mut found = self.client.ask(ListContainersRequest { filter: Some(filter) }).await?.containers;
        // An attempt to create a container that was not answered may have left another one of the same name,
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
                // Removed by someone else in the meantime.
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
        // It was valid when the container was created.
        let signal = self.own_signal(&name.0, signal).unwrap_or_default();
        let slot = Arc::new(Slot::new(name.clone(), sandbox.clone(), signal));
        slot.id.get_or_init(|| container.id.clone());
        // Before the status is read: its exit is noticed from here on.
        self.hints.listen(&container.id, slot.ear.clone());
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
