//! Stopping a pod in order without the engine: what happens to the pods of a process that was killed.
//!
//! The order is the engine's, written down when the pod was made ([`StopPlan`]). Hooks are not run, since nobody knows which
//! have been, and nothing is started again.

use std::future::Future;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};

use crate::{Adopted, Runtime, StopPlan};

/// How long a container that was killed may take to be gone. What the kernel cannot end must not hold the others back.
const KILL_PATIENCE: Duration = Duration::from_secs(10);

/// Longer than any grace that is meant.
const FAR: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Ends what runs of a pod's containers, each when its turn comes.
pub(crate) async fn stop_in_order(runtime: &impl Runtime, containers: &[Adopted], plan: &StopPlan) {
    let begun = Instant::now();
    // The word to start may be on its way to one that has not been: it is not let run.
    for container in containers.iter().filter(|container| container.started.is_none()) {
        let _ = runtime.kill(&container.id).await;
    }
    let runs = |container: &&Adopted| container.started.is_some() && container.exit.is_none();
    let running: Vec<&Adopted> = containers.iter().filter(runs).collect();
    let (gone, _) = watch::channel(vec![false; running.len()]);
    let (running, gone) = (&running, &gone);
    let end = |index: usize| async move {
        let container = running[index];
        if let Some(turn) = plan.turns.get(&container.name) {
            let is_before = |other: &Adopted| turn.after.contains(&other.name);
            let mut others = gone.subscribe();
            let held = others.wait_for(|gone| {
                running.iter().zip(gone).all(|(other, is_gone)| *is_gone || !is_before(other))
            });
            // The sender lives for as long as this does.
            let _ = match turn.free_at {
                Some(at) => timeout_at(begun + at.min(FAR), held).await.is_ok(),
                None => held.await.is_ok(),
            };
        }
        end_container(runtime, container, plan, begun).await;
        gone.send_modify(|gone| gone[index] = true);
    };
    join_all((0..running.len()).map(end)).await;
}

async fn end_container(runtime: &impl Runtime, container: &Adopted, plan: &StopPlan, begun: Instant) {
    let id = &container.id;
    let mut end = std::pin::pin!(runtime.wait(id));
    if let Some(turn) = plan.turns.get(&container.name).filter(|_| !plan.grace.is_zero()) {
        let kill_at = (begun + turn.kill_at.min(FAR)).max(Instant::now() + plan.reaction.min(FAR));
        if let Err(error) = runtime.terminate(id, kill_at - Instant::now()).await {
            tracing::warn!(container = %id, "cannot signal a container: {error}");
        }
        if timeout_at(kill_at, &mut end).await.is_ok() {
            return;
        }
    }
    if let Err(error) = runtime.kill(id).await {
        tracing::warn!(container = %id, "cannot kill a container: {error}");
    }
    if timeout(KILL_PATIENCE, end).await.is_err() {
        tracing::warn!(container = %id, "a container that was killed does not end");
    }
}

/// Drives all futures to their ends at once.
pub(crate) async fn join_all<T>(futures: impl IntoIterator<Item = impl Future<Output = T>>) -> Vec<T> {
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
