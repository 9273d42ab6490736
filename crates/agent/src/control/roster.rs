//! The pods of a run as others may see them: workers write, whoever asks reads, and nobody waits for anybody.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outrigger_lifecycle::{Observation, Plan, Wait};
use tokio::sync::watch;

use super::wire::PodState;
use crate::clock::Clock;
use crate::pod::PodContext;
use crate::view::{PodView, look};

/// Pods that are over and still told of; of more, the oldest are forgotten.
const OVER_MAX: usize = 100;

/// The pods of a run. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Roster(Arc<Shared>);

struct Shared {
    pods: Mutex<BTreeMap<usize, Entry>>,
    /// Something about some pod has changed.
    changes: watch::Sender<()>,
}

struct Entry {
    context: Arc<PodContext>,
    view: PodView,
    /// Nothing of it is left.
    over: bool,
}

impl Default for Roster {
    fn default() -> Self {
        Roster(Arc::new(Shared { pods: Mutex::default(), changes: watch::Sender::new(()) }))
    }
}

impl Roster {
    /// There is another pod.
    pub(crate) fn join(&self, number: usize, context: Arc<PodContext>, plan: &Plan) {
        let now = Clock::start().now().time;
        let view = PodView::new(context.name().into(), Arc::new(plan.clone()), now);
        self.change(|pods| drop(pods.insert(number, Entry { context, view, over: false })));
    }

    /// What is known of a pod now.
    pub(crate) fn observe(&self, number: usize, obs: &Observation, waits: &[(usize, Wait)]) {
        self.change_one(number, |entry| {
            entry.view.obs.clone_from(obs);
            entry.view.waits.clear();
            entry.view.waits.extend_from_slice(waits);
        });
    }

    /// Nothing is left of a pod.
    pub(crate) fn leave(&self, number: usize) {
        self.change(|pods| {
            if let Some(entry) = pods.get_mut(&number) {
                entry.over = true;
            }
            let over: Vec<usize> = pods.iter().filter(|(_, e)| e.over).map(|(number, _)| *number).collect();
            for oldest in over.iter().take(over.len().saturating_sub(OVER_MAX)) {
                pods.remove(oldest);
            }
        });
    }

    /// All pods as they are now.
    pub(crate) fn pods(&self) -> Vec<PodState> {
        self.lock().iter().map(|(number, entry)| entry.state(*number)).collect()
    }

    /// One pod as it is now.
    pub(crate) fn pod(&self, number: usize) -> Option<PodState> {
        self.lock().get(&number).map(|entry| entry.state(number))
    }

    /// Tells of changes from now on.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.0.changes.subscribe()
    }

    fn change_one(&self, number: usize, change: impl FnOnce(&mut Entry)) {
        self.change(|pods| {
            if let Some(entry) = pods.get_mut(&number) {
                change(entry);
            }
        });
    }

    fn change(&self, change: impl FnOnce(&mut BTreeMap<usize, Entry>)) {
        change(&mut self.lock());
        self.0.changes.send_replace(());
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, Entry>> {
        // Views are only ever replaced: a panic leaves an older one at worst.
        self.0.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    fn state(&self, number: usize) -> PodState {
        let metadata = &self.context.pod.metadata;
        let owner = metadata.owner_references.iter().flatten().next();
        PodState {
            number,
            namespace: self.context.namespace().to_owned(),
            workload: owner.map(|owner| format!("{}/{}", owner.kind, owner.name)),
            over: self.over,
            ..look(&self.view, Clock::start().now().time)
        }
    }
}
