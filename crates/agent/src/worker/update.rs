//! In-place updates of a running pod, and requested restarts of its containers.

use std::sync::Arc;

use outrigger_lifecycle::{CannotRestart, Change, ContainerFacts, Event};
use outrigger_runtime::Runtime;

use super::{Slot, Worker};
use crate::event::AgentEventKind;
use crate::pod::PodContext;

/// A function that is called with the result of a restart request.
pub type RestartReply = Box<dyn FnOnce(Result<(), CannotRestart>) + Send>;

/// A request to a worker, other than stopping its pod.
pub(crate) enum PodOrder {
    /// Update the pod in place to this one.
    Update(Arc<PodContext>),
    /// Restart one container, or all of them in order.
    Restart {
        /// The container's index; `None` means all.
        container: Option<usize>,
        /// Called with the result. It is dropped without a call if the pod ends first.
        reply: RestartReply,
    },
}

impl<R: Runtime> Worker<R> {
    /// Executes a request.
    pub(super) fn pod_order(&mut self, order: PodOrder) {
        match order {
            PodOrder::Update(pod) => self.update(pod),
            PodOrder::Restart { container, reply } => {
                let can = self.engine.can_restart(container);
                if can.is_ok() {
                    self.handle(Event::RestartRequested { container });
                    // Saved before replying, so that the restart happens even if this process ends.
                    self.save();
                }
                reply(can);
            }
        }
    }

    /// Applies a new plan. The caller has already checked with the engine's rules that the pod does not have
    /// to be replaced.
    pub(crate) fn update(&mut self, pod: Arc<PodContext>) {
        let changes = match self.engine.update((**pod.plan()).clone()) {
            Ok(changes) => changes,
            Err(e) => return tracing::error!(pod = self.pod.name(), "the pod cannot be changed: {e}"),
        };
        self.is_updated = true;
        self.pod = pod.clone();
        self.tasks.pod = pod;
        for change in &changes {
            match *change {
                Change::Image { container, .. } => self.forget_made_ahead(container),
                Change::Added { container } => {
                    let image = self.pod.containers[container].image.clone().unwrap_or_default();
                    self.slots.push(Slot::default());
                    self.facts.containers.push(ContainerFacts { image, ..ContainerFacts::default() });
                }
                Change::Grace { .. } | Change::Deadline { .. } => {}
            }
        }
        let stamp = self.tasks.clock.now();
        let (plan, obs) = (self.engine.plan(), self.engine.observation());
        self.recorder.on_update(plan, obs, &changes, stamp.time, &mut self.entries);
        let observation = Arc::new(obs.clone());
        self.events.emit(AgentEventKind::Updated { pod: self.pod.clone(), observation });
        self.write_entries(stamp);
    }

    /// Removes an instance that was created ahead, because it has the old image.
    fn forget_made_ahead(&mut self, container: usize) {
        let Some(ahead) = self.slots[container].ahead.take() else { return };
        let tasks = self.tasks.clone();
        self.in_background(async move {
            if ahead.is_made.await.unwrap_or(true) {
                tasks.remove(&ahead.id).await;
            }
        });
    }
}
