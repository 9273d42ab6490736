//! Resumes a pod that was started by another process.
//!
//! The saved state contains the planned actions. The runtime reports what really happened. Running containers
//! are not touched. Containers that ended meanwhile are reported with their real exit. A start that never
//! reached the runtime is performed as if it were new. Hooks are not run a second time (G-45). Back-offs,
//! probe counters, restart counts and the end of the grace period are kept (G-44, G-47). Completed init
//! containers stay completed (G-46).

use std::collections::BTreeMap;
use std::time::Duration;

use outrigger_lifecycle::trace::Recorder;
use outrigger_lifecycle::{Engine, Event, ExitReason, HookKind, Observation, SandboxState, State};
use outrigger_runtime::{Adopted, Runtime, RuntimeError, Sandbox};
use tracing::Instrument as _;

use super::tasks::Instance;
use super::{Current, Worker};
use crate::cause::SandboxError;
use crate::event::AgentEventKind;
use crate::store::{Found, SavedContainer, SavedInstance};
use crate::tasks::Task;

/// Maximum number of attempts to adopt a sandbox. The cause of a failure, such as a port that is in use, may
/// disappear.
const ADOPT_TRIES: u32 = 5;
const ADOPT_PAUSE: Duration = Duration::from_millis(500);

/// The runtime's state of a saved instance.
enum FoundInstance {
    /// It was started, and is running or has ended since.
    Started { pid: Option<u32> },
    /// It was never started: it does not exist, or can no longer be started.
    Never,
    /// It was started, and its result is unknown.
    Lost,
}

impl<R: Runtime> Worker<R> {
    /// Prepares for a pod whose state from another process is unknown: everything that exists of it is
    /// removed first.
    pub(crate) fn begin_again(&mut self) {
        self.sandbox_tried = true;
    }

    /// Prepares for a pod that ended with the machine and starts again. Completed init containers that run
    /// only once are not run again.
    pub(crate) fn begin_after_shutdown(&mut self, before: &Observation) {
        self.sandbox_tried = true;
        let plan = self.engine.plan().clone();
        let obs = Observation::after_shutdown(&plan, before, self.tasks.clock.now().time);
        self.engine = Engine::resume(plan, obs);
    }

    /// Resumes from the saved state. Must be called before [`Worker::run`].
    pub(crate) async fn resume(&mut self, found: Found) {
        self.is_resumed = true;
        self.sandbox_tried = true;
        let Found { state, rebooted } = found;
        self.is_updated = state.plan.is_some();
        let (mut obs, saved) = (state.observation, state.containers);
        if obs.over {
            self.restore(obs, &saved);
            return;
        }
        let sandbox = match obs.sandbox.state {
            SandboxState::Ready if rebooted => None,
            SandboxState::Ready => self.adopt().await,
            _ => None,
        };
        self.tell_interrupted_hooks(&obs);
        let had_sandbox = obs.sandbox.state == SandboxState::Ready;
        let adopted = sandbox.as_ref().map_or(&[][..], |(_, adopted)| adopted.as_slice());
        let mut fates = fates(&obs, &saved, adopted);
        self.finish_starts(&saved, adopted, &mut fates).await;
        obs.recover();
        for (container, fate) in fates.iter().enumerate() {
            if matches!(fate, Some(FoundInstance::Never)) {
                obs.take_back_start(container);
            }
        }
        self.restore(obs, &saved);
        let lives = match sandbox {
            Some((sandbox, adopted)) => {
                self.remove_leftovers(&saved, &fates, &adopted).await;
                self.stand_on(sandbox).await
            }
            None => false,
        };
        for (container, (fate, saved)) in fates.into_iter().zip(saved).enumerate() {
            match (fate, saved.instance) {
                (Some(FoundInstance::Started { pid }), Some(instance)) if lives => {
                    self.take_over(container, instance, pid)
                }
                (Some(FoundInstance::Started { .. } | FoundInstance::Lost), _) => self.is_lost(container),
                _ => {}
            }
        }
        if had_sandbox && !lives {
            self.handle(Event::SandboxLost);
        }
    }

    /// Restores the saved state.
    fn restore(&mut self, mut obs: Observation, saved: &[SavedContainer]) {
        for (i, saved) in saved.iter().enumerate().take(self.slots.len()) {
            let slot = &mut self.slots[i];
            // An instance may have got its name after the last write, and names must not be reused.
            slot.tries = saved.tries.saturating_add(1);
            slot.image.clone_from(&saved.image);
            let facts = &mut self.facts.containers[i];
            facts.container_id.clone_from(&saved.container_id);
            facts.last_container_id.clone_from(&saved.last_container_id);
            match &saved.image {
                Some(image) => facts.image_id.clone_from(&image.id),
                // The image must be resolved again.
                None => obs.forget_image(i),
            }
        }
        self.engine = Engine::resume(self.engine.plan().clone(), obs);
        // The previous process has already reported this state, so it is not reported again.
        self.recorder = Recorder::resume(self.engine.plan(), self.engine.observation());
    }

    /// Adopts the sandbox; `None` if it no longer exists.
    async fn adopt(&mut self) -> Option<(Sandbox, Vec<Adopted>)> {
        for tried in 1.. {
            match self.tasks.runtime.adopt_sandbox(&self.pod.sandbox_id).await {
                Ok(adopted) => return Some(adopted),
                Err(RuntimeError::NotFound { .. }) => return None,
                Err(e) if tried >= ADOPT_TRIES => {
                    tracing::warn!(pod = self.pod.name(), "cannot take over the pod, starting it again: {e}");
                    return None;
                }
                Err(e) => {
                    tracing::debug!(pod = self.pod.name(), "cannot take over the pod yet: {e}");
                    tokio::time::sleep(ADOPT_PAUSE).await;
                }
            }
        }
        None
    }

    /// Finishes interrupted starts. The runtime may have completed them already; otherwise it tries again.
    async fn finish_starts(
        &self,
        saved: &[SavedContainer],
        adopted: &[Adopted],
        fates: &mut [Option<FoundInstance>],
    ) {
        for (saved, fate) in saved.iter().zip(fates) {
            let Some(instance) =
                saved.instance.as_ref().filter(|_| matches!(fate, Some(FoundInstance::Never)))
            else {
                continue;
            };
            if !adopted.iter().any(|found| found.id == instance.id) {
                continue;
            }
            *fate = Some(match self.tasks.runtime.finish_start(&instance.id).await {
                Ok(Some(started)) => FoundInstance::Started { pid: Some(started.pid).filter(|pid| *pid > 0) },
                Ok(None) => FoundInstance::Never,
                Err(e) => {
                    tracing::warn!(pod = self.pod.name(), container = %instance.id, "nobody knows whether it was started: {e}");
                    FoundInstance::Lost
                }
            });
        }
    }

    /// Finds the pod's volumes and files. Returns whether they exist.
    async fn stand_on(&mut self, sandbox: Sandbox) -> bool {
        let pod = self.pod.clone();
        let found = tokio::task::spawn_blocking(move || pod.find_prepared(sandbox)).await;
        match found.map_err(SandboxError::from).flatten() {
            Ok(prepared) => {
                self.facts.pod_ips = prepared.sandbox.ips.iter().map(ToString::to_string).collect();
                self.events.emit(AgentEventKind::Addresses(self.facts.pod_ips.clone()));
                let prepared = std::sync::Arc::new(prepared);
                self.watchers = self.watch(&prepared);
                self.prepared = Some(prepared);
                true
            }
            Err(e) => {
                tracing::warn!(
                    pod = self.pod.name(),
                    "cannot find the pod's volumes, starting it again: {e}"
                );
                false
            }
        }
    }

    /// Removes unused instances: those whose end is saved, and those that were created but not started.
    async fn remove_leftovers(
        &mut self,
        saved: &[SavedContainer],
        fates: &[Option<FoundInstance>],
        adopted: &[Adopted],
    ) {
        let is_current = |found: &Adopted| {
            saved.iter().zip(fates).any(|(saved, fate)| {
                matches!(fate, Some(FoundInstance::Started { .. }))
                    && saved.instance.as_ref().is_some_and(|instance| instance.id == found.id)
            })
        };
        for found in adopted.iter().filter(|found| !is_current(found)) {
            self.tasks.remove(&found.id).await;
        }
    }

    /// Takes over an instance that was started.
    fn take_over(&mut self, container: usize, saved: SavedInstance, pid: Option<u32>) {
        let instance = Instance { container, attempt: saved.attempt, id: saved.id };
        let (attempt, id) = (instance.attempt, instance.id.clone());
        if !matches!(self.engine.observation().containers[container].state, State::Running { .. }) {
            self.handle(Event::Started { container, attempt });
        }
        self.events.emit(AgentEventKind::Instance { container, id: Some(id.clone()) });
        let span = self.container_span(container);
        let see_end = self.tasks.guarded(self.tasks.clone().see_end(instance.clone()));
        let life = Task::spawn(see_end.instrument(span));
        self.slots[container].current = Some(Current {
            instance: instance.clone(),
            life: Some(life),
            is_running: true,
            signalled: saved.signalled,
            pid,
            probes: BTreeMap::new(),
            hooks: Vec::new(),
        });
        let Some(kill) = self.engine.observation().containers[container].kill else { return };
        if kill.killed_at.is_some() {
            self.in_background(self.tasks.clone().kill(id));
        } else if kill.signalled_at.is_some() && !saved.signalled {
            // The stop signal may not have been sent.
            let grace = Duration::from_millis(kill.deadline.since(self.tasks.clock.now().time));
            let signal = self.stop_signal(container);
            self.in_background(self.tasks.clone().terminate(instance, signal, pid, grace));
        }
    }

    /// Reports the end of an instance whose result is unknown.
    fn is_lost(&mut self, container: usize) {
        let attempt = self.engine.observation().containers[container].attempt;
        let exit = self.tasks.exit(137, ExitReason::ContainerStatusUnknown, None);
        self.handle(Event::Exited { container, attempt, exit });
    }

    /// Warns about interrupted hooks. They count as done: they are not run again, and their containers are
    /// not killed because of them.
    fn tell_interrupted_hooks(&self, obs: &Observation) {
        for (plan, c) in self.engine.plan().containers.iter().zip(&obs.containers) {
            for hook in [HookKind::PostStart, HookKind::PreStop, HookKind::FirstPreStop] {
                if c.hook(hook).is_running() {
                    let name = hook.name();
                    tracing::warn!(
                        pod = self.pod.name(),
                        container = plan.name,
                        "its {name} hook was running when the node ended; it is not run again"
                    );
                }
            }
        }
    }
}

/// The state of the instances that were saved as alive.
fn fates(obs: &Observation, saved: &[SavedContainer], adopted: &[Adopted]) -> Vec<Option<FoundInstance>> {
    let fate = |(c, saved): (&outrigger_lifecycle::Container, &SavedContainer)| {
        if !c.state.is_alive() {
            return None;
        }
        let instance = saved.instance.as_ref().filter(|instance| instance.attempt == c.attempt);
        let found = instance.and_then(|instance| adopted.iter().find(|found| found.id == instance.id));
        Some(match (found, c.state) {
            (Some(Adopted { started: Some(started), .. }), _) => {
                FoundInstance::Started { pid: Some(started.pid).filter(|pid| *pid > 0) }
            }
            (_, State::Starting { .. }) => FoundInstance::Never,
            _ => FoundInstance::Lost,
        })
    };
    obs.containers.iter().zip(saved).map(fate).collect()
}
