//! One run of a node: drives its workloads until they are done or stopped.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use outrigger_agent::clock::Clock;
use outrigger_agent::event::PodResult;
use outrigger_lifecycle::Time;
use outrigger_runtime::Runtime;
use outrigger_view::hint::Hints;
use serde_json::{Map, Value};
use tokio::sync::mpsc;

use super::run_store::{END, RunStore, WORKLOADS};
use crate::control::{Progress, RestartOrder};
use crate::outcome::exit_code;
use crate::record::{RunEnd, RunRecord, SavedWorkloads};
use crate::sinks::Happened;
use crate::supervisor::Supervisor;
use crate::work::Work;
use crate::workload::{Controller, Pods as _, Standing, Wanted};

/// The number of replaced and removed workloads of a run whose ended pods are shown. The manifests of each
/// are kept until then, so their number must have a limit.
const GONE_MAX: usize = 64;

/// The progress of each workload of a run, by its key. The run writes it, and the node reads it.
#[derive(Debug, Clone, Default)]
pub(super) struct Standings(Arc<Mutex<BTreeMap<String, Standing>>>);

impl Standings {
    /// The progress of a workload.
    pub(super) fn get(&self, key: &str) -> Standing {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(key).copied().unwrap_or(Standing::Active)
    }

    /// Whether a workload of this object is running, is about to run or is being stopped.
    pub(super) fn has_live(&self, object: &str) -> bool {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_it = |key: &str| key.split_once('#').map_or(key, |(object, _)| object) == object;
        let is_live = |standing: Standing| matches!(standing, Standing::Active | Standing::Stopping);
        all.iter().any(|(key, standing)| is_it(key) && is_live(*standing))
    }

    fn replace(&self, all: BTreeMap<String, Standing>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = all;
    }
}

/// A replaced or removed workload without running pods. Its state is kept as long as one of its ended pods.
pub(super) struct Gone {
    key: String,
    state: Value,
    pods: Vec<usize>,
}

/// An order to a run.
pub(super) enum RunOrder {
    /// Stop a pod, or its workload if requested and there is one.
    Stop { pod: usize, workload: bool, grace_ms: Option<u64> },
    /// Stop everything.
    StopAll { grace_ms: Option<u64> },
    /// Restart one container of a pod, or all of them.
    Restart(RestartOrder),
    /// Apply changed manifests.
    Update(Box<Update>),
    /// Create no more pods because the machine is shutting down. The next node resumes from the state before
    /// this order.
    Freeze,
    /// Stop a pod because the machine is shutting down.
    ShutDown { pod: usize, grace_ms: u64 },
}

/// The new content of a run.
pub(super) struct Update {
    pub(super) work: Work,
    /// The keys of the workloads, by object.
    pub(super) keys: BTreeMap<String, String>,
    /// The names of the manifests.
    pub(super) files: Vec<String>,
}

/// A workload of a run.
pub(super) struct Managed {
    /// Distinguishes it from replaced workloads of the same name.
    pub(super) key: String,
    /// The id of the object, which does not depend on the key.
    pub(super) object: String,
    pub(super) controller: Box<dyn Controller>,
    /// Whether it finishes by itself: a Job, or a pod that is not restarted.
    pub(super) is_finite: bool,
    /// Whether it was removed from the manifests.
    pub(super) is_retired: bool,
}

/// A run being driven.
pub(super) struct Driven<R: Runtime> {
    pub(super) id: String,
    /// The seed of generated names, see [`crate::record::RunRecord::names`].
    pub(super) names: String,
    pub(super) supervisor: Supervisor<R>,
    pub(super) workloads: Vec<Managed>,
    pub(super) store: RunStore,
    pub(super) clock: Clock,
    pub(super) orders: mpsc::UnboundedReceiver<RunOrder>,
    /// The last saved state.
    pub(super) saved: SavedWorkloads,
    /// Whether the machine is shutting down.
    pub(super) is_frozen: bool,
    /// The number of changes of the manifests whose replaced workloads are not all gone.
    pub(super) changes: usize,
    /// Replaced and removed workloads whose ended pods are still shown.
    pub(super) gone: Vec<Gone>,
    pub(super) standings: Standings,
}

impl From<Managed> for Gone {
    fn from(workload: Managed) -> Self {
        let controller = &workload.controller;
        Gone { state: controller.save(), pods: controller.numbers(), key: workload.key }
    }
}

impl<R: Runtime> Driven<R> {
    /// Restores the saved state of the workloads. Retired workloads without saved state are gone.
    pub(super) fn restore(&mut self, saved: SavedWorkloads) {
        let mut saved = saved.workloads;
        self.workloads.retain(|workload| !workload.is_retired || saved.contains_key(&workload.key));
        for workload in &mut self.workloads {
            let Some(saved) = saved.remove(&workload.key) else { continue };
            if let Err(e) = workload.controller.restore(saved, &mut self.supervisor) {
                tracing::error!(run = self.id, "cannot read the state of a workload, starting it again: {e}");
            }
            if workload.is_retired {
                workload.controller.stop(None);
            }
        }
        let registry = &self.supervisor.sinks.registry;
        let is_gone = |workload: &mut Managed| {
            let is_over = |number| registry.pod(number).is_none_or(|pod| pod.over);
            workload.is_retired && workload.controller.numbers().into_iter().all(is_over)
        };
        self.gone = self.workloads.extract_if(.., is_gone).map(Gone::from).collect();
        self.tell_standings();
    }

    /// Drives the run until all its workloads have ended. The node decides whether the run has ended, because
    /// it may have given an order meanwhile ([`Driven::has_orders`]).
    pub(super) async fn run(mut self) -> (Self, RunEnd) {
        loop {
            let wake = if self.is_frozen { None } else { self.step() };
            let results: Vec<PodResult> =
                self.workloads.iter().filter_map(|workload| workload.controller.result()).collect();
            let progress = self.progress();
            self.supervisor.sinks.registry.run_progresses(&self.id, progress);
            let now_ms = self.clock.now().time.0;
            if results.len() == self.workloads.len() && !self.is_frozen {
                if let Ok(order) = self.orders.try_recv() {
                    self.carry_out(order);
                    continue;
                }
                let end = match self.supervisor.broken {
                    true => RunEnd::broken(now_ms),
                    false => RunEnd::new(&results, now_ms),
                };
                return (self, end);
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
        }
    }

    /// Whether orders arrived after all workloads had ended.
    pub(super) fn has_orders(&self) -> bool {
        !self.orders.is_empty()
    }

    /// Saves the end of the run.
    pub(super) fn finish(&self, end: RunEnd) {
        self.supervisor.sinks.status_file.finish();
        if let Err(e) = self.store.save_run(&self.id, END, &end) {
            tracing::warn!(run = self.id, "cannot save how it ended: {e}");
        }
    }

    /// The progress of the objects that finish by themselves.
    fn progress(&self) -> Progress {
        let finite = self.workloads.iter().filter(|workload| workload.is_finite && !workload.is_retired);
        let results: Vec<Option<PodResult>> = finite.map(|workload| workload.controller.result()).collect();
        let done: Vec<PodResult> = results.iter().copied().flatten().collect();
        Progress {
            is_working: done.len() < results.len(),
            result: (!done.is_empty()).then(|| exit_code(&done)),
        }
    }

    /// Steps all workloads and saves their state.
    pub(super) fn step(&mut self) -> Option<Time> {
        let retired = self.step_those(|workload| workload.is_retired);
        // Once an object is gone, its successor may start.
        let is_gone = |w: &mut Managed| w.is_retired && w.controller.result().is_some();
        self.gone.extend(self.workloads.extract_if(.., is_gone).map(Gone::from));
        let surplus = self.gone.len().saturating_sub(GONE_MAX);
        self.gone.drain(..surplus);
        let leaving: Vec<String> =
            self.workloads.iter().filter(|w| w.is_retired).map(|w| w.object.clone()).collect();
        let others = self.step_those(|w| !w.is_retired && !leaving.contains(&w.object));
        self.save();
        if leaving.is_empty() && self.changes > 0 {
            self.supervisor.sinks.registry.run_changed(&self.id, std::mem::take(&mut self.changes));
        }
        retired.into_iter().chain(others).min()
    }

    /// Steps the selected workloads. Returns the time of the next step.
    fn step_those(&mut self, are_meant: impl Fn(&Managed) -> bool) -> Option<Time> {
        let mut wake: Option<Time> = None;
        for workload in self.workloads.iter_mut().filter(|workload| are_meant(workload)) {
            let controller = &mut workload.controller;
            if let Err(e) = controller.step(&mut self.supervisor, self.clock.now()) {
                tracing::error!(run = self.id, "cannot run a pod: {e}");
                self.supervisor.broken = true;
                controller.stop(None);
            }
            wake = wake.into_iter().chain(controller.wake()).min();
        }
        wake
    }

    fn tell_standings(&self) {
        let current = self.workloads.iter().filter(|w| !w.is_retired);
        self.standings.replace(current.map(|w| (w.key.clone(), w.controller.standing())).collect());
    }

    fn save(&mut self) {
        self.tell_standings();
        let registry = &self.supervisor.sinks.registry;
        self.gone.retain(|gone| gone.pods.iter().any(|pod| registry.has(*pod)));
        let mut workloads: Map<String, Value> =
            self.workloads.iter().map(|w| (w.key.clone(), w.controller.save())).collect();
        workloads.extend(self.gone.iter().map(|gone| (gone.key.clone(), gone.state.clone())));
        let saved = SavedWorkloads { workloads };
        if saved == self.saved {
            return;
        }
        if let Err(e) = self.store.save_run(&self.id, WORKLOADS, &saved) {
            tracing::warn!(run = self.id, "a restart of the node would not know its workloads: {e}");
        }
        self.saved = saved;
    }

    fn take_in(&mut self, happened: Happened) {
        let now = self.clock.now().time;
        match happened {
            Happened::Status(pod, update) => {
                self.workloads.iter_mut().for_each(|w| w.controller.status_changed(pod, &update, now));
            }
            Happened::Ended(pod, result, _) => {
                self.workloads.iter_mut().for_each(|w| w.controller.ended(pod, result, now));
            }
            // A node does not stop at the first failure.
            Happened::Failed(..) => {}
        }
    }

    /// Carries out an order. A stop is saved first, so that the next process repeats it if this one is killed.
    fn carry_out(&mut self, order: RunOrder) {
        match order {
            RunOrder::Stop { pod, workload, grace_ms } => {
                let is_owner =
                    |w: &&mut Managed| w.controller.owns(pod) && (workload || w.controller.is_pod());
                let owner = self.workloads.iter_mut().find(is_owner);
                match owner {
                    Some(owner) => {
                        owner.controller.stop(grace_ms);
                        self.save();
                    }
                    None => self.supervisor.stop(pod, grace_ms),
                }
            }
            RunOrder::StopAll { grace_ms } => {
                let grace_ms = grace_ms.or(self.supervisor.grace_ms());
                self.workloads.iter_mut().for_each(|w| w.controller.stop(grace_ms));
                self.save();
            }
            RunOrder::Restart(order) => self.supervisor.restart(order),
            RunOrder::Update(update) => self.update(*update),
            RunOrder::Freeze => self.is_frozen = true,
            RunOrder::ShutDown { pod, grace_ms } => self.supervisor.shut_down(pod, grace_ms),
        }
    }

    /// Applies changed manifests. Replaced workloads are stopped first, and their successors wait for that.
    fn update(&mut self, update: Update) {
        let Update { work: Work { pods, workloads, companions, sources, .. }, keys, files } = update;
        self.changes += 1;
        self.supervisor.now_reads(companions, Hints::new(sources), files);
        let stamp = self.clock.now();
        let wanted: Vec<(String, Wanted)> = Wanted::all(pods, &workloads)
            .into_iter()
            .filter_map(|wanted| Some((keys.get(&wanted.key.id())?.clone(), wanted)))
            .collect();
        for workload in self.workloads.iter_mut().filter(|w| !w.is_retired) {
            if !wanted.iter().any(|(key, _)| *key == workload.key) {
                workload.is_retired = true;
                workload.controller.stop(None);
            }
        }
        for (key, wanted) in wanted {
            let instance = RunRecord::instance(&self.names, &key);
            let there = self.workloads.iter_mut().find(|w| w.key == key && !w.is_retired);
            match there {
                Some(workload) => {
                    if let Err(e) = workload.controller.update(wanted, &mut self.supervisor, stamp) {
                        tracing::error!(run = self.id, "{} cannot be changed: {e}", workload.object);
                    }
                }
                None => self.workloads.push(Managed {
                    key,
                    object: wanted.key.id(),
                    is_finite: wanted.is_finite(),
                    controller: wanted.controller(stamp, instance),
                    is_retired: false,
                }),
            }
        }
    }
}
