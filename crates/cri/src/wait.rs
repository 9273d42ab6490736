//! Waits for a container's exit.
//!
//! One of the waiting tasks polls the container's status, and the others wait for its result. It polls when
//! the runtime hints at an exit, after every stop, and periodically in between. If there are hints, it polls
//! rarely. Otherwise it polls often at first, and less often the longer the container runs.

use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::Inner;
use super::client::Fault;
use super::containers::{Slot, missing, time};
use super::native;
use super::wire::{CONTAINER_EXITED, CONTAINER_UNKNOWN, ContainerStatus, StopContainerRequest};
use outrigger_runtime::{ContainerId, Exit, RuntimeError};

/// How often to poll for something that is expected at any moment. CRI's status follows an exit by tens of
/// milliseconds. Each delay is half as long again as the previous one, so polling ends soon after that.
const SOON_MIN: Duration = Duration::from_millis(2);
const SOON_MAX: Duration = Duration::from_millis(40);
/// A hint was wrong if there is no result after this time.
const SOON_FOR: Duration = Duration::from_secs(5);

/// How often to poll in case hints are lost.
const SELDOM: Duration = Duration::from_secs(2);

/// containerd's reason for an exit that it has not seen.
const UNKNOWN: &str = "Unknown";

/// Without hints, the delay is a twentieth of the time waited so far, within these limits.
const OFTEN: Duration = Duration::from_millis(20);
const RARELY: Duration = Duration::from_millis(500);

impl Inner {
    /// The exit of a container.
    pub(super) async fn wait(&self, name: &ContainerId) -> Result<Exit, RuntimeError> {
        let slot = self.slot(name)?;
        slot.exit.get_or_try_init(|| self.watch(&slot)).await.cloned()
    }

    async fn watch(&self, slot: &Slot) -> Result<Exit, RuntimeError> {
        let id = slot.id()?;
        let begun = Instant::now();
        let mut hinted: Option<Instant> = None;
        let mut soon = SOON_MIN;
        loop {
            match self.status(&id).await {
                Ok(status) if status.state == CONTAINER_EXITED => return Ok(exit(slot, &status)),
                Ok(status) if status.state == CONTAINER_UNKNOWN => {
                    if let Some(exit) = self.watch_unknown(slot, &id, &status).await {
                        return Ok(exit);
                    }
                    hinted = Some(Instant::now());
                }
                Ok(_) => {}
                Err(Fault::NotFound(_)) => return Err(missing(&slot.name)),
                Err(fault) => {
                    let text = format!("cannot get the state of container {}: {fault}", slot.name);
                    return Err(RuntimeError::Other(text));
                }
            }
            let stopping = slot.stops.load(Ordering::Relaxed) > 0;
            let pause = match hinted {
                Some(at) if at.elapsed() < SOON_FOR => {
                    soon = (soon * 3 / 2).min(SOON_MAX);
                    soon
                }
                _ => pace(begun.elapsed(), self.hints.are_alive(), stopping),
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = slot.receiver.wake.notified() => {
                    if slot.receiver.is_told.swap(false, Ordering::Relaxed) {
                        hinted = Some(Instant::now());
                        soon = SOON_MIN;
                    }
                }
            }
        }
    }
}

impl Inner {
    /// Waits for a container that CRI has lost track of, but that containerd's own API still knows. A
    /// container that is unknown there too is stopped, so that the runtime records its end.
    async fn watch_unknown(&self, slot: &Slot, id: &str, status: &ContainerStatus) -> Option<Exit> {
        if self.is_containerd {
            match native::exit(&self.client, id).await {
                Ok((code, finished_at)) => {
                    let started_at = started_at(slot, status, finished_at);
                    return Some(Exit {
                        code,
                        signal: None,
                        oom_killed: false,
                        started_at,
                        finished_at,
                        detail: None,
                    });
                }
                Err(fault) if fault.is_unclear() => {
                    if let Ok(true) = native::thaw(&self.client, id).await {
                        tracing::warn!(
                            container = %slot.name,
                            "was left frozen when the container runtime stopped while killing it; it has been resumed"
                        );
                    }
                    return None;
                }
                Err(_) => {}
            }
        }
        let request = StopContainerRequest { container_id: id.to_owned(), timeout: 0 };
        if let Err(fault) = self.client.call(request, self.client.limits().work).await {
            tracing::warn!(container = %slot.name, "the runtime lost track of it and cannot stop it: {fault}");
        }
        None
    }
}

/// How long to wait before polling a container without hints.
fn pace(waited: Duration, has_hints: bool, stopping: bool) -> Duration {
    match (has_hints, stopping) {
        (true, _) => SELDOM,
        (false, true) => OFTEN,
        (false, false) => (waited / 20).clamp(OFTEN, RARELY),
    }
}

/// How a container ended, according to the runtime.
pub(super) fn exit(slot: &Slot, status: &ContainerStatus) -> Exit {
    let (mut code, mut finished_at) =
        (status.exit_code, time(status.finished_at).unwrap_or_else(SystemTime::now));
    // The runtime knows that the container has ended, but not how. An event may have reported it.
    if status.reason == UNKNOWN {
        match slot.receiver.ended.get() {
            Some(ended) => (code, finished_at) = *ended,
            None => {
                tracing::warn!(container = %slot.name, "the container runtime does not know how the container ended");
            }
        }
    }
    Exit {
        code,
        // CRI cannot distinguish a signal from a program that exits with such a code.
        signal: None,
        detail: None,
        oom_killed: status.reason == "OOMKilled",
        started_at: started_at(slot, status, finished_at),
        finished_at,
    }
}

fn started_at(slot: &Slot, status: &ContainerStatus, finished_at: SystemTime) -> SystemTime {
    let noted = || slot.started.get().copied().filter(|at| *at < finished_at);
    time(status.started_at).or_else(noted).unwrap_or(finished_at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_are_asked_after_less_often_the_longer_they_run() {
        let ms = Duration::from_millis;
        let table = [
            (ms(0), true, false, SELDOM),
            (ms(0), true, true, SELDOM),
            (ms(0), false, false, ms(20)),
            (ms(1_000), false, false, ms(50)),
            (ms(60_000), false, false, ms(500)),
            (ms(60_000), false, true, ms(20)),
        ];
        for (waited, has_hints, stopping, expected) in table {
            assert_eq!(pace(waited, has_hints, stopping), expected, "{waited:?} {has_hints} {stopping}");
        }
    }
}
