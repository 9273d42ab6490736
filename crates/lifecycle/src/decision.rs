//! The decision of the engine: what to do now, when to decide again, and why each waiting container waits.

use crate::action::Action;
use crate::observation::HookKind;
use crate::plan::Need;
use crate::time::Time;

/// The result of one decision. Callers that decide often reuse it, so that deciding does not allocate.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Decision {
    /// What to do now, in order.
    pub actions: Vec<Action>,
    /// When to decide again if nothing happens before.
    pub wake: Option<Time>,
    /// Why each waiting container waits, in plan order.
    pub waits: Vec<(usize, Wait)>,
    /// For each container, the one that delays its stop. Working memory of the stop rules.
    pub(crate) held_by: Vec<Option<usize>>,
}

impl Decision {
    pub(crate) fn clear(&mut self) {
        self.actions.clear();
        self.waits.clear();
        self.wake = None;
    }

    pub(crate) fn wake_at(&mut self, at: Time) {
        self.wake = Some(self.wake.map_or(at, |w| w.min(at)));
    }

    pub(crate) fn wait(&mut self, container: usize, wait: Wait) {
        self.waits.push((container, wait));
    }

    /// Why a container waits, if it does.
    pub fn wait_of(&self, container: usize) -> Option<Wait> {
        self.waits.iter().find(|(c, _)| *c == container).map(|(_, w)| *w)
    }
}

/// Why a container waits. [`crate::explain()`] turns it into a sentence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// It waits for the pod's sandbox.
    Sandbox,
    /// It waits for another container.
    Gate {
        /// The index of the other container in the plan.
        on: usize,
        /// The required state.
        need: Need,
    },
    /// It waits for its image, which is being pulled.
    Image,
    /// It waits for the next attempt to pull its image.
    ImageRetry {
        /// The time of the next attempt.
        at: Time,
    },
    /// It waits for the end of its crash-loop back-off.
    Backoff {
        /// The end of the back-off.
        until: Time,
    },
    /// It waits for the next attempt to start it, because the runtime refused the last one.
    StartRetry {
        /// The time of the next attempt.
        at: Time,
    },
    /// It is running, but its hook has not ended.
    Hook {
        /// The kind of the hook.
        hook: HookKind,
    },
    /// It is running, but its startup probe has not passed.
    StartupProbe,
    /// It is running, but its readiness probe does not pass.
    ReadinessProbe,
    /// It is being stopped, but another container must end first.
    StopTurn {
        /// The index of the other container in the plan.
        on: usize,
    },
    /// It is being stopped, but the first preStop hook of another container is still running.
    FirstPreStop {
        /// The index of the other container in the plan.
        on: usize,
    },
    /// It was told to stop and is still running.
    Stopping {
        /// When it will be killed.
        kill_at: Time,
    },
    /// The mains have ended, and the sidecar keeps running for its delay.
    SidecarDelay {
        /// The end of the delay.
        until: Time,
    },
    /// It waits for the rest of the pod to end, before the whole pod starts over.
    Rerun {
        /// The earliest time of the new start.
        not_before: Time,
    },
}
