//! Stops pods in order without the engine, if the process that ran them was killed.
//!
//! The engine determines the order, which is stored when the pod is created ([`StopPlan`]). Hooks are not
//! run, because it is unknown which of them have already run. Nothing is started again.

use std::future::Future;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use outrigger_lifecycle::{STOP_MIN_MS, StopPlan};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use crate::{Adopted, Runtime};

/// How long to wait for the end of a killed container. A process that the kernel cannot end must not delay
/// the others.
const KILL_PATIENCE: Duration = Duration::from_secs(10);

/// Longer than any realistic grace period.
const FAR: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// A request to finish earlier than the plan says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hurry {
    /// When the grace period ends. `None` is later than any plan.
    pub by: Option<Instant>,
    /// Kill at once, without a stop signal and in no order.
    pub kill: bool,
}

/// Stops a pod's running containers, each when its turn comes.
pub async fn stop_in_order(
    runtime: &impl Runtime,
    containers: &[Adopted],
    plan: &StopPlan,
    hurry: watch::Receiver<Option<Hurry>>,
) {
    let begun = Instant::now();
    // A container that has not started yet could start soon. It must not run.
    for container in containers.iter().filter(|container| container.started.is_none()) {
        let _ = runtime.kill(&container.id).await;
    }
    let runs = |container: &&Adopted| container.started.is_some() && container.exit.is_none();
    let running: Vec<&Adopted> = containers.iter().filter(runs).collect();
    let (gone, _) = watch::channel(vec![false; running.len()]);
    let (running, gone, hurry) = (&running, &gone, &hurry);
    let end = |index: usize| async move {
        let container = running[index];
        if let Some(turn) = plan.turn(&container.name) {
            let is_before = |other: &Adopted| plan.is_after(&container.name, &other.name);
            let mut others = gone.subscribe();
            let held = others.wait_for(|gone| {
                running.iter().zip(gone).all(|(other, is_gone)| *is_gone || !is_before(other))
            });
            let free_at = turn.free_at_ms.map(|at| begun + millis(at));
            tokio::select! {
                // The sender lives at least as long as this future.
                _ = held => {}
                () = until(hurry.clone(), |hurry| earlier(free_at, hurry.by)) => {}
            }
        }
        end_container(runtime, container, plan, begun, hurry.clone()).await;
        gone.send_modify(|gone| gone[index] = true);
    };
    join_all((0..running.len()).map(end)).await;
}

async fn end_container(
    runtime: &impl Runtime,
    container: &Adopted,
    plan: &StopPlan,
    begun: Instant,
    hurry: watch::Receiver<Option<Hurry>>,
) {
    let id = &container.id;
    let mut end = std::pin::pin!(runtime.wait(id));
    let is_killed = plan.grace_ms == 0 || hurry.borrow().is_some_and(|hurry| hurry.kill);
    if let Some(turn) = plan.turn(&container.name).filter(|_| !is_killed) {
        let signalled = Instant::now();
        let own = signalled + turn.own_grace_ms.map_or(FAR, millis);
        let planned = (begun + millis(turn.kill_at_ms)).min(own);
        let reacted = (signalled + millis(STOP_MIN_MS)).min(own);
        let kill_at = planned.max(reacted);
        if let Err(error) = runtime.terminate(id, kill_at - Instant::now()).await {
            tracing::warn!(container = %id, "cannot signal a container: {error}");
        }
        let by = |hurry: Hurry| earlier(Some(planned), hurry.by).map(|at| at.max(reacted));
        tokio::select! {
            _ = &mut end => return,
            () = until(hurry, by) => {}
        }
    }
    if let Err(error) = runtime.kill(id).await {
        tracing::warn!(container = %id, "cannot kill a container: {error}");
    }
    if timeout(KILL_PATIENCE, end).await.is_err() {
        tracing::warn!(container = %id, "a container that was killed does not end");
    }
}

/// Waits for a time that a request may bring forward. A request to kill ends the wait.
async fn until(mut hurry: watch::Receiver<Option<Hurry>>, by: impl Fn(Hurry) -> Option<Instant>) {
    loop {
        let now = hurry.borrow_and_update().unwrap_or(Hurry { by: None, kill: false });
        if now.kill {
            return;
        }
        let time = async {
            match by(now) {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        let request = async {
            if hurry.changed().await.is_err() {
                std::future::pending().await
            }
        };
        tokio::select! {
            () = time => return,
            () = request => {}
        }
    }
}

/// A duration of a plan. A plan may come from a damaged file, so the duration is limited: adding it to a time
/// must not overflow.
fn millis(ms: u64) -> Duration {
    Duration::from_millis(ms).min(FAR)
}

fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    one.into_iter().chain(other).min()
}

/// Runs all futures to completion concurrently.
pub async fn join_all<T>(futures: impl IntoIterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut futures: Vec<Pin<Box<_>>> = futures.into_iter().map(Box::pin).collect();
    let mut results: Vec<Option<T>> = futures.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (future, result) in futures.iter_mut().zip(&mut results) {
            if result.is_none()
                && let Poll::Ready(done) = future.as_mut().poll(context)
            {
                *result = Some(done);
            }
        }
        match results.iter().all(Option::is_some) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    })
    .await;
    results.into_iter().flatten().collect()
}
