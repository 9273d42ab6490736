//! Waiting for a container's end.
//!
//! One of those who wait asks for the container's status; the others wait for what it learns. It asks when the runtime
//! hints at an end, after every stop, and now and then in between: seldom where there are hints, else often at first
//! and less often the longer the container runs.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::Inner;
use super::client::Fault;
use super::containers::{Slot, missing, time};
use super::wire::{CONTAINER_EXITED, CONTAINER_UNKNOWN, ContainerStatus, StopContainerRequest};
use crate::{ContainerId, Exit, RuntimeError};

/// How often something is asked for that must come at any moment.
const SOON_MIN: Duration = Duration::from_millis(5);
const SOON_MAX: Duration = Duration::from_millis(40);
/// A hint that nothing came of in this time was none.
const SOON_FOR: Duration = Duration::from_secs(5);

/// The safety net under the hints.
const SELDOM: Duration = Duration::from_secs(2);

/// Without hints: a twentieth of the time waited so far, within these.
const OFTEN: Duration = Duration::from_millis(20);
const RARELY: Duration = Duration::from_millis(500);

impl Inner {
    /// The end of a container.
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
                Ok(status) if status.state == CONTAINER_EXITED => return Ok(exit(&status)),
                // What it does nobody can say any more; the runtime makes an end of it when it is told to.
                Ok(status) if status.state == CONTAINER_UNKNOWN => {
                    let request = StopContainerRequest { container_id: id.clone(), timeout: 0 };
                    if let Err(fault) = self.client.call(request, self.client.limits().work).await {
                        tracing::warn!(container = %slot.name, "its state is unknown, and it cannot be stopped: {fault}");
                    }
                    hinted = Some(Instant::now());
                }
                Ok(_) => {}
                Err(Fault::NotFound(_)) => return Err(missing(&slot.name)),
                Err(fault) => {
                    let text = format!("cannot tell how container {} is: {fault}", slot.name);
                    return Err(RuntimeError::Other(text));
                }
            }
            let stopping = slot.stops.load(Ordering::Relaxed) > 0;
            let pause = match hinted {
                Some(at) if at.elapsed() < SOON_FOR => {
                    soon = (soon * 2).min(SOON_MAX);
                    soon
                }
                _ => pace(begun.elapsed(), self.hints.are_alive(), stopping),
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = slot.ear.notified() => {
                    hinted = Some(Instant::now());
                    soon = SOON_MIN;
                }
            }
        }
    }
}

/// How long to let a container be that nothing is known of.
fn pace(waited: Duration, has_hints: bool, stopping: bool) -> Duration {
    match (has_hints, stopping) {
        (true, _) => SELDOM,
        (false, true) => OFTEN,
        (false, false) => (waited / 20).clamp(OFTEN, RARELY),
    }
}

fn exit(status: &ContainerStatus) -> Exit {
    Exit {
        code: status.exit_code,
        // CRI does not tell a signal from a program that exits with such a code.
        signal: None,
        oom_killed: status.reason == "OOMKilled",
        started_at: time(status.started_at),
        finished_at: time(status.finished_at),
    }
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
