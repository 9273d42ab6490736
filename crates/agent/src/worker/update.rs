//! How a live pod is changed where it runs, and how its containers are restarted because somebody asks for it.

use std::sync::Arc;

use outrigger_lifecycle::{Change, ContainerFacts, Event, Plan};
use outrigger_runtime::Runtime;
use tokio::sync::oneshot;

use super::{Slot, Worker};
use crate::event::PodEventKind;
use crate::pod::PodContext;

/// Something for a worker to do besides stopping its pod.
pub(crate) enum PodOrder {
    /// Become another pod where it runs.
    Update {
        /// The pod as it is to be.
        pod: Arc<PodContext>,
        /// Its plan.
        plan: Box<Plan>,
    },
    /// Restart a container, or all of them in order.
    Restart {
        /// Which; `None`: all.
        container: Option<usize>,
        /// Whether it is done. Whoever asked may have gone.
        reply: oneshot::Sender<Result<(), String>>,
    },
}

impl<R: Runtime> Worker<R> {
    /// Carries an order out.
    pub(super) fn pod_order(&mut self, order: PodOrder) {
        match order {
            PodOrder::Update { pod, plan } => self.update(pod, *plan),
            PodOrder::Restart { container, reply } => {
                let can = self.engine.can_restart(container).map_err(|e| e.to_string());
                if can.is_ok() {
                    self.handle(Event::RestartRequested { container });
                    // Whoever is told that it is done can rely on it, whatever becomes of this process.
                    self.save();
                }
                let _ = reply.send(can);
            }
        }
    }

    /// Makes the pod what a new plan says. Whoever decided that this can be done without replacing the pod asked the same
    /// question as the engine does.
    pub(crate) fn update(&mut self, pod: Arc<PodContext>, plan: Plan) {
        let changes = match self.engine.update(plan) {
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
        self.events.emit(PodEventKind::Updated { pod: self.pod.clone(), observation });
        self.write_entries(stamp);
    }

    /// What was made before its time has the old image.
    fn forget_made_ahead(&mut self, container: usize) {
        let Some(ahead) = self.slots[container].ahead.take() else { return };
        let tasks = self.tasks.clone();
        self.background.spawn(async move {
            if ahead.is_made.await.unwrap_or(true) {
                tasks.remove(&ahead.id).await;
            }
        });
    }
}
