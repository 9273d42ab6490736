//! What to do now, when to look again, and for each container that waits, why.

use crate::action::Action;
use crate::observation::HookKind;
use crate::plan::Need;
use crate::time::Time;

/// The outcome of one look at a pod. Kept and reused by callers that look often, so that deciding does not allocate.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Decision {
    /// What to do now, in order.
    pub actions: Vec<Action>,
    /// Look again at this time, if nothing happens before.
    pub wake: Option<Time>,
    /// Why each waiting container waits, in plan order.
    pub waits: Vec<(usize, Wait)>,
    /// Per container, who holds its stop back; scratch space of the stop rules.
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
        /// What it must be.
        need: Need,
    },
    /// For its image, being fetched.
    Image,
    /// For the next try to get its image.
    ImageRetry {
        /// When.
        at: Time,
    },
    /// For the end of its crash-loop back-off.
    Backoff {
        /// When.
        until: Time,
    },
    /// For the next try to start it, the runtime having refused.
    StartRetry {
        /// When.
        at: Time,
    },
    /// It runs, but its hook does too.
    Hook {
        /// Which.
        hook: HookKind,
    },
    /// It runs, but its startup probe has not passed.
    StartupProbe,
    /// It runs, but its readiness probe does not pass.
    ReadinessProbe,
    /// To be stopped: another must be gone first.
    StopTurn {
        /// Which.
        on: usize,
    },
    /// To be stopped: another's first preStop hook runs.
    FirstPreStop {
        /// Whose.
        on: usize,
    },
    /// It was told to stop and has not gone yet.
    Stopping {
        /// When it will be killed.
        kill_at: Time,
    },
    /// For the rest of the pod to end, so that all begins again.
    Rerun {
        /// Not before this.
        not_before: Time,
    },
}
