//! Hints from the runtime that a container may have ended. A hint only says when to ask. Only the answer of
//! ContainerStatus counts, so hints may be lost, repeated or late.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use prost::Message as _;
use tokio::sync::{Notify, watch};

use super::client::{Client, Fault};
use super::native;
use super::wire::events::{Envelope, SubscribeRequest, TaskExit, TaskStart};
use super::wire::{ContainerEventType, GetEventsRequest, Rpc, TOPIC_EXIT, TOPIC_START, VersionRequest};

/// The runtime does not confirm a stream before its first event. A stream that has not failed after this time
/// counts as open.
const SETTLED: Duration = Duration::from_millis(100);

/// The delay before a broken stream is opened again. It doubles while streams end immediately, as CRI-O's do
/// when its events are disabled.
const AGAIN_MIN: Duration = Duration::from_millis(100);
const AGAIN_MAX: Duration = Duration::from_secs(30);

/// The receiver of a container's hints.
#[derive(Default)]
pub(super) struct HintReceiver {
    /// Something may have happened.
    pub(super) wake: Notify,
    /// Whether the runtime reported an event. The status follows a moment later.
    pub(super) is_told: AtomicBool,
    /// Whether an event reported the start of the program. A containerd that is killed before it has stored
    /// the start may not know it after a restart.
    pub(super) was_started: AtomicBool,
    /// Exit code and time, if an event reported them. containerd can lose these in the same way.
    pub(super) ended: OnceLock<(i32, SystemTime)>,
}

/// The receivers, by the runtime's container id.
#[derive(Default)]
pub(super) struct Hints {
    receivers: Mutex<HashMap<String, Arc<HintReceiver>>>,
    /// Whether a stream is open; `None` until that is known.
    alive: watch::Sender<Option<bool>>,
}

impl Hints {
    /// Sends hints about `id` to `receiver` from now on.
    pub(super) fn subscribe(&self, id: &str, receiver: Arc<HintReceiver>) {
        self.receivers().insert(id.to_owned(), receiver);
    }

    /// Stops sending hints about `id`.
    pub(super) fn forget(&self, id: &str) {
        self.receivers().remove(id);
    }

    /// Whether the runtime currently reports exits by itself.
    pub(super) fn are_alive(&self) -> bool {
        *self.alive.borrow() == Some(true)
    }

    /// Like [`Self::are_alive`], but waits until it is known.
    pub(super) async fn come_alive(&self) -> bool {
        let mut alive = self.alive.subscribe();
        alive.wait_for(Option::is_some).await.is_ok_and(|alive| *alive == Some(true))
    }

    fn tell(&self, id: &str, ended: Option<(i32, SystemTime)>) {
        if let Some(receiver) = self.receivers().get(id) {
            if let Some(ended) = ended {
                receiver.ended.get_or_init(|| ended);
            }
            receiver.is_told.store(true, Ordering::Relaxed);
            receiver.wake.notify_one();
        }
    }

    /// Handles an event of containerd's own API.
    fn take_in(&self, envelope: Envelope) -> Option<()> {
        let event = envelope.event?.value;
        if envelope.topic == TOPIC_START {
            let started = TaskStart::decode(event.as_slice()).ok()?;
            let receivers = self.receivers();
            receivers.get(&started.container_id)?.was_started.store(true, Ordering::Relaxed);
            return Some(());
        }
        let exit = TaskExit::decode(event.as_slice()).ok()?;
        let ended = native::ended(exit.exit_status, exit.exited_at);
        (exit.id == exit.container_id).then(|| self.tell(&exit.container_id, Some(ended)))
    }

    /// Wakes all receivers, because events may have been missed.
    fn tell_all(&self) {
        for receiver in self.receivers().values() {
            receiver.wake.notify_one();
        }
    }

    fn receivers(&self) -> MutexGuard<'_, HashMap<String, Arc<HintReceiver>>> {
        self.receivers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Listens for as long as the runtime sends hints.
pub(super) async fn follow(client: Arc<Client>, hints: Arc<Hints>, is_containerd: bool) {
    let mut pause = AGAIN_MIN;
    loop {
        let fault = hear(&client, &hints, is_containerd).await;
        let was_alive = hints.alive.send_replace(Some(false)) == Some(true);
        if let Fault::Unimplemented(_) = fault {
            return;
        }
        tracing::debug!(%fault, was_alive, "the runtime's events broke off");
        if was_alive {
            pause = AGAIN_MIN;
            client.note_loss();
            hints.tell_all();
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(AGAIN_MAX);
    }
}

/// Listens until the stream breaks.
async fn hear(client: &Client, hints: &Hints, is_containerd: bool) -> Fault {
    let mut renewals = client.renewals();
    // The runtime does not answer a stream before its first event. It answers this call as soon as it is up.
    if let Err(fault) = client.ask(VersionRequest { version: "v1".to_owned() }).await {
        return fault;
    }
    // containerd's own event comes with the exit. CRI's event comes only after everything is removed, and
    // containerd 1.7 sends it to only one listener, which may be a kubelet.
    let ended = async {
        match is_containerd {
            true => {
                let filters = [TOPIC_EXIT, TOPIC_START].map(|topic| format!("topic=={topic:?}")).into();
                read_stream(client, SubscribeRequest { filters }, |envelope| hints.take_in(envelope)).await
            }
            false => {
                read_stream(client, GetEventsRequest {}, |event| {
                    let is_exit = event.container_event_type() == ContainerEventType::ContainerStoppedEvent;
                    is_exit.then(|| hints.tell(&event.container_id, None))
                })
                .await
            }
        }
    };
    let settled = async {
        tokio::time::sleep(SETTLED).await;
        hints.alive.send_replace(Some(true));
        // The stream does not contain earlier events.
        hints.tell_all();
        std::future::pending().await
    };
    tokio::select! {
        fault = ended => fault,
        fault = settled => fault,
        // No answers arrive on the connection of the stream.
        _ = renewals.changed() => Fault::Lost("the connection was given up".to_owned()),
    }
}

/// Passes events on until the stream ends.
async fn read_stream<Q: Rpc>(
    client: &Client,
    request: Q,
    mut hints_of_sandbox: impl FnMut(Q::Answer) -> Option<()>,
) -> Fault {
    let mut stream = match client.stream(request).await {
        Ok(stream) => stream,
        Err(fault) => return fault,
    };
    loop {
        match stream.message().await {
            // An event without content can be ignored.
            Ok(Some(event)) => _ = hints_of_sandbox(event),
            Ok(None) => return Fault::Lost("the stream ended".to_owned()),
            Err(status) => return status.into(),
        }
    }
}
