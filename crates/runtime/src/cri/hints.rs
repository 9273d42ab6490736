//! Word from the runtime that a container may have ended. A hint only says when to ask: what happened is what
//! ContainerStatus answers, so hints may be lost, repeated or late.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use prost::Message as _;
use tokio::sync::Notify;

use super::client::{Client, Fault};
use super::native;
use super::wire::{EVENT_STOPPED, GetEventsRequest, Rpc, SubscribeRequest, TaskExit};

/// Pause before a broken stream is asked for again.
const AGAIN: Duration = Duration::from_millis(100);

/// Where a container's hints go.
#[derive(Default)]
pub(super) struct Ear {
    /// Something may have happened.
    pub(super) wake: Notify,
    /// Code and time of its end, where an event told them: a containerd that is killed before it has written them down
    /// does not know them any more when it comes back.
    pub(super) ended: OnceLock<(i32, SystemTime)>,
}

/// Who is woken by which container, named by the runtime's id.
#[derive(Default)]
pub(super) struct Hints {
    ears: Mutex<HashMap<String, Arc<Ear>>>,
    /// A stream is (as far as anybody knows) open.
    alive: AtomicBool,
}

impl Hints {
    /// From now on `ear` hears of `id`.
    pub(super) fn listen(&self, id: &str, ear: Arc<Ear>) {
        self.ears().insert(id.to_owned(), ear);
    }

    /// Nobody needs to hear of `id` any more.
    pub(super) fn forget(&self, id: &str) {
        self.ears().remove(id);
    }

    /// Whether the runtime tells of ends by itself at the moment.
    pub(super) fn are_alive(&self) -> bool {
        self.alive.load(Ordering::Relaxed)
    }

    fn tell(&self, id: &str, ended: Option<(i32, SystemTime)>) {
        if let Some(ear) = self.ears().get(id) {
            if let Some(ended) = ended {
                ear.ended.get_or_init(|| ended);
            }
            ear.wake.notify_one();
        }
    }

    /// Something may have been missed.
    fn tell_all(&self) {
        for ear in self.ears().values() {
            ear.wake.notify_one();
        }
    }

    fn ears(&self) -> MutexGuard<'_, HashMap<String, Arc<Ear>>> {
        self.ears.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Listens for as long as the runtime has hints to give.
pub(super) async fn follow(client: Arc<Client>, hints: Arc<Hints>, is_containerd: bool) {
    loop {
        hints.alive.store(true, Ordering::Relaxed);
        let mut renewals = client.renewals();
        // containerd's own event comes with the exit, CRI's after everything is torn down, and containerd 1.7 gives
        // CRI's to one listener only, who may be a kubelet.
        let ended = async {
            match is_containerd {
                true => {
                    let filters = vec![r#"topic=="/tasks/exit""#.to_owned()];
                    listen(&client, SubscribeRequest { filters }, |envelope| {
                        let exit = TaskExit::decode(envelope.event?.value.as_slice()).ok()?;
                        let ended = native::ended(exit.exit_status, exit.exited_at);
                        (exit.id == exit.container_id).then(|| hints.tell(&exit.container_id, Some(ended)))
                    })
                    .await
                }
                false => {
                    listen(&client, GetEventsRequest {}, |event| {
                        (event.kind == EVENT_STOPPED).then(|| hints.tell(&event.container_id, None))
                    })
                    .await
                }
            }
        };
        let fault = tokio::select! {
            fault = ended => fault,
            // Nothing comes back on the connection it is on.
            _ = renewals.changed() => Fault::Lost("the connection was given up".to_owned()),
        };
        hints.alive.store(false, Ordering::Relaxed);
        hints.tell_all();
        if let Fault::Unimplemented(_) = fault {
            return;
        }
        tracing::debug!(%fault, "the runtime's events broke off");
        tokio::time::sleep(AGAIN).await;
    }
}

/// Passes on what comes until the stream ends.
async fn listen<Q: Rpc>(
    client: &Client,
    request: Q,
    mut heard: impl FnMut(Q::Answer) -> Option<()>,
) -> Fault {
    let mut stream = match client.stream(request).await {
        Ok(stream) => stream,
        Err(fault) => return fault,
    };
    loop {
        match stream.message().await {
            // An event that says nothing is no harm.
            Ok(Some(event)) => _ = heard(event),
            Ok(None) => return Fault::Lost("the stream ended".to_owned()),
            Err(status) => return status.into(),
        }
    }
}
