//! One run of a node: its workloads, driven until they are done or told to stop.

use std::sync::Arc;

use outrigger_lifecycle::Time;
use outrigger_runtime::Runtime;
use serde_json::Value;
use tokio::sync::mpsc;

use super::record::RunEnd;
use crate::clock::Clock;
use crate::store::Store;
use crate::supervisor::{Happened, Supervisor};
use crate::worker::PodResult;
use crate::workload::Controller;

/// The name of the file that holds what the workloads know.
pub(super) const WORKLOADS: &str = "workloads.json";
/// The name of the file that says how the run ended.
pub(super) const END: &str = "end.json";

/// Something for a run to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RunOrder {
    /// Stop a pod; with its workload, if it has one and that is meant.
    Stop { pod: usize, workload: bool, grace_ms: Option<u64> },
    /// Stop everything.
    StopAll { grace_ms: Option<u64> },
    /// Make no more pods: the machine shuts down. What was known before is what the next node goes on with.
    Freeze,
    /// Stop a pod because the machine shuts down.
    ShutDown { pod: usize, grace_ms: u64 },
}

/// A run on its way.
pub(super) struct Driven<R: Runtime> {
    pub(super) id: String,
    pub(super) supervisor: Supervisor<R>,
    pub(super) controllers: Vec<Box<dyn Controller<R>>>,
    pub(super) store: Store,
    pub(super) clock: Clock,
    pub(super) orders: mpsc::UnboundedReceiver<RunOrder>,
    /// What was written down last.
    pub(super) saved: Arc<Vec<Value>>,
    /// The machine shuts down.
    pub(super) is_frozen: bool,
}

impl<R: Runtime> Driven<R> {
    /// Takes over what another process knew of the workloads.
    pub(super) fn restore(&mut self, saved: Vec<Value>) {
        if saved.len() != self.controllers.len() {
            tracing::error!(run = self.id, "starting its workloads again: there were {} before", saved.len());
            return;
        }
        for (controller, saved) in self.controllers.iter_mut().zip(saved) {
            if let Err(e) = controller.restore(saved, &mut self.supervisor) {
                tracing::error!(run = self.id, "cannot read the state of a workload, starting it again: {e}");
            }
        }
    }

    /// Drives the run to its end.
    pub(super) async fn run(mut self) -> String {
        let end = loop {
            let wake = if self.is_frozen { None } else { self.step() };
            let results: Vec<PodResult> = self.controllers.iter().filter_map(|c| c.result()).collect();
            let now_ms = self.clock.now().time.0;
            if results.len() == self.controllers.len() && !self.is_frozen {
                break match self.supervisor.broken {
                    true => RunEnd::broken(now_ms),
                    false => RunEnd::new(&results, now_ms),
                };
            }
            let clock = self.clock;
            let wake = async {
                match wake {
                    Some(at) => clock.reach(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                happened = self.supervisor.next() => self.take_in(happened),
                order = self.orders.recv() => match order {
                    Some(order) => self.carry_out(order),
                    None => std::future::pending().await,
                },
                () = wake => {}
            }
        };
        self.supervisor.sinks.status_file.finish();
        if let Err(e) = self.store.save_run(&self.id, END, &end) {
            tracing::warn!(run = self.id, "cannot save how it ended: {e}");
        }
        self.id
    }

    /// Lets every workload do what it decides, and writes down what they know then.
    fn step(&mut self) -> Option<Time> {
        let mut wake: Option<Time> = None;
        for controller in &mut self.controllers {
            if let Err(e) = controller.step(&mut self.supervisor, self.clock.now()) {
                tracing::error!(run = self.id, "cannot run a pod: {e}");
                self.supervisor.broken = true;
                controller.stop(None);
            }
            wake = wake.into_iter().chain(controller.wake()).min();
        }
        let saved: Vec<Value> = self.controllers.iter().map(|c| c.save()).collect();
        if saved != *self.saved {
            if let Err(e) = self.store.save_run(&self.id, WORKLOADS, &saved) {
                tracing::warn!(run = self.id, "cannot save the state of its workloads: {e}");
            }
            self.saved = Arc::new(saved);
        }
        wake
    }

    fn take_in(&mut self, happened: Happened) {
        let now = self.clock.now().time;
        match happened {
            Happened::Status(update) => {
                self.controllers.iter_mut().for_each(|c| c.status_changed(&update, now))
            }
            Happened::Ended(pod, result) => {
                self.controllers.iter_mut().for_each(|c| c.ended(pod, result, now));
            }
            // Nobody stops at the first failure here.
            Happened::Failed(_) => {}
        }
    }

    fn carry_out(&mut self, order: RunOrder) {
        match order {
            RunOrder::Stop { pod, workload, grace_ms } => {
                let owner = self.controllers.iter_mut().find(|c| workload && c.owns(pod));
                match owner {
                    Some(controller) => controller.stop(grace_ms),
                    None => self.supervisor.stop(pod, grace_ms),
                }
            }
            RunOrder::StopAll { grace_ms } => {
                let grace_ms = grace_ms.or(self.supervisor.grace_ms());
                self.controllers.iter_mut().for_each(|c| c.stop(grace_ms));
            }
            RunOrder::Freeze => self.is_frozen = true,
            RunOrder::ShutDown { pod, grace_ms } => self.supervisor.shut_down(pod, grace_ms),
        }
    }
}
