//! A decision: what to do now, when to decide again, and why each waiting container waits.

use crate::action::Action;
use crate::observation::HookKind;
use crate::plan::Need;
use crate::time::Time;

/// The result of one decision. Reused by callers that decide often, so that deciding does not allocate.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Decision {
    /// What to do now, in order.
    pub actions: Vec<Action>,
    /// Decide again at this time, if nothing happens before.
    pub wake: Option<Time>,
    /// Why each waiting container waits, in plan order.
    pub waits: Vec<(usize, Wait)>,
    /// For each container, which one delays its stop; scratch space of the stop rules.
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

/// Why a container waits. [`crate::explain`] makes a sentence of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// For the pod's sandbox.
    Sandbox,
    /// For another container.
    Gate {
        /// Which.
        on: usize,
        /// The required state.
        need: Need,
    },
    /// For its image, which is being pulled.
    Image,
    /// For the next attempt to pull its image.
    ImageRetry {
        /// When.
        at: Time,
    },
    /// For the end of its crash-loop back-off.
    Backoff {
        /// When.
        until: Time,
    },
    /// For the next attempt to start it, after the runtime refused.
    StartRetry {
        /// When.
        at: Time,
    },
    /// It is running, and its hook has not ended.
    Hook {
        /// Which.
        hook: HookKind,
    },
    /// It is running, but its startup probe has not passed.
    StartupProbe,
    /// It is running, but its readiness probe does not pass.
    ReadinessProbe,
    /// Being stopped: another container must be gone first.
    StopTurn {
        /// Which.
        on: usize,
    },
    /// Being stopped: the first preStop hook of another container is running.
    FirstPreStop {
        /// Which container.
        on: usize,
    },
    /// It was told to stop and is still running.
    Stopping {
        /// When it will be killed.
        kill_at: Time,
    },
    /// The mains are done, and it runs on for a while.
    SidecarDelay {
        /// Until when.
        until: Time,
    },
    /// For the rest of the pod to end, before everything starts over.
    Rerun {
        /// Not before this time.
        not_before: Time,
    },
}
