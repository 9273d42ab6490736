//! Numbers that are derived from a plan for each container: its stage of the start, and its part of the grace
//! period.

use crate::engine::{STOP_MIN_MS, stop_turns};
use crate::plan::{ContainerPlan, HookPlan, Need, Plan, PreStopWhen, Role, topological};

/// The latest times at which a container is signalled and killed, from the moment the pod is told to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopWindow {
    /// The latest time of the stop signal. It is sent earlier if everything that stops before this container
    /// has ended, and its own preStop hook too.
    pub signal_ms_max: u64,
    /// The latest time of KILL.
    pub kill_ms_max: u64,
}

/// What a container waits for when a pod stops, before it is told to stop. Init containers are left out: they
/// have ended by then, or are stopped like the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StopRule {
    /// Containers that must have ended, without those that must have ended earlier anyway.
    pub after: Vec<usize>,
    /// Sidecars whose preStop hooks run before this container is stopped, as in the KEP.
    pub first_hooks: Vec<usize>,
    /// The length of the chain of containers that stop before it; 0 stops first.
    pub stage: usize,
}

impl Plan {
    /// What each container waits for when the pod stops, from the same turns that the engine uses.
    pub fn stop_rules(&self) -> Vec<StopRule> {
        let runs = |c: &usize| self.containers[*c].role != Role::Init;
        let turns = stop_turns(self, self.grace_ms);
        let all: Vec<Vec<usize>> =
            turns.iter().map(|turn| turn.after.iter().copied().filter(runs).collect()).collect();
        let is_first = |c: usize| {
            let p = &self.containers[c];
            // A sidecar that waits for no container runs its hook only at its own turn.
            p.pre_stop.is_some() && p.pre_stop_when == PreStopWhen::FirstAndOwnTurn && !all[c].is_empty()
        };
        let first: Vec<usize> = (0..all.len()).filter(|&c| is_first(c)).collect();
        let mut stages = vec![0; all.len()];
        for &c in &self.stop_order {
            stages[c] = all[c].iter().map(|&before| stages[before] + 1).max().unwrap_or(0);
        }
        let rule = |c: usize| {
            let gone_earlier = |b: &usize| all[c].iter().any(|&other| all[other].contains(b));
            let after: Vec<usize> = all[c].iter().copied().filter(|b| !gone_earlier(b)).collect();
            let p = &self.containers[c];
            let has_first_hook = p.pre_stop.is_some() && p.pre_stop_when == PreStopWhen::FirstAndOwnTurn;
            let first_hooks = if has_first_hook { Vec::new() } else { first.clone() };
            StopRule { after, first_hooks, stage: stages[c] }
        };
        (0..all.len()).map(rule).collect()
    }

    /// For each container, the length of the chain of containers that must have started or completed before
    /// it starts; 0 starts first. Containers that only follow each other in list order are in one stage.
    pub fn start_stages(&self) -> Vec<usize> {
        let edges: Vec<Vec<usize>> =
            self.containers.iter().map(|c| c.gates.iter().map(|g| g.on).collect()).collect();
        let edges: Vec<&[usize]> = edges.iter().map(Vec::as_slice).collect();
        let mut stages = vec![0; self.containers.len()];
        // A plan has no cycle. One that was built by hand may have, and then has no stages.
        for c in topological(&edges).unwrap_or_default() {
            let after = |stage: usize, need| if need == Need::Launched { stage } else { stage + 1 };
            let gates = self.containers[c].gates.iter();
            stages[c] = gates.map(|g| after(stages[g.on], g.need)).max().unwrap_or(0);
        }
        stages
    }

    /// How much of a grace period a container may use. Without a reserve, every stage ends with the grace
    /// period (R3.24). With one, the first stage ends early and the others share the reserve (G-24, G-25). A
    /// signalled container has a moment to react, even after the grace period (R3.16), unless the grace
    /// period is zero (G-29).
    pub fn stop_window(&self, container: usize, grace_ms: u64) -> StopWindow {
        let none = StopWindow { signal_ms_max: 0, kill_ms_max: 0 };
        let mut windows = vec![none; self.containers.len()];
        if grace_ms > 0 {
            for &c in &self.stop_order {
                windows[c] = self.window_after(c, grace_ms, &windows);
            }
        }
        windows[container]
    }

    /// The window of a container, given the windows of all containers that stop before it.
    fn window_after(&self, container: usize, grace_ms: u64, windows: &[StopWindow]) -> StopWindow {
        let reserve = self.sidecar_grace_ms.min(grace_ms);
        let end = |stage: usize| match self.stop_stages {
            0 => grace_ms,
            stages => grace_ms - reserve + reserve * stage as u64 / stages as u64,
        };
        let c = &self.containers[container];
        let first_hook =
            |c: &ContainerPlan| c.pre_stop.is_some() && c.pre_stop_when == PreStopWhen::FirstAndOwnTurn;
        // In the KEP, the sidecars' hooks run before any signal and before the hooks of other containers.
        let hooks_first = !first_hook(c) && self.containers.iter().any(first_hook);
        // Only a hook that sleeps, or that has a timeout, takes a known time.
        let takes = |hook: &HookPlan| hook.sleep_ms.into_iter().chain(hook.timeout_ms).min();
        let first_hooks = || {
            let hooks = self.containers.iter().filter(|c| first_hook(c)).filter_map(|c| c.pre_stop.as_ref());
            hooks.map(|hook| takes(hook).unwrap_or(u64::MAX)).max().unwrap_or(0)
        };
        let those_before =
            || c.stop_after.iter().map(|&before| windows[before].kill_ms_max).max().unwrap_or(0);
        let turn_ms = match c.stop_stage {
            0 if hooks_first => end(0).min(first_hooks()),
            0 => 0,
            _ if self.keeps_order_after_grace() => those_before(),
            stage => end(stage - 1).min(those_before()),
        };
        let end_ms = end(c.stop_stage).max(turn_ms);
        let signal_ms_max = match &c.pre_stop {
            None => turn_ms,
            Some(hook) => {
                let from = if c.pre_stop_when == PreStopWhen::AtOnce && !hooks_first { 0 } else { turn_ms };
                // A hook whose time is not known may use up the rest of the stage.
                takes(hook).map_or(end_ms, |ms| from.saturating_add(ms).clamp(turn_ms, end_ms))
            }
        };
        let kill_ms_max = end_ms.max(signal_ms_max + STOP_MIN_MS);
        let own = c.stop_grace_ms.map(|own| signal_ms_max.saturating_add(own));
        StopWindow { signal_ms_max, kill_ms_max: own.map_or(kill_ms_max, |own| kill_ms_max.min(own)) }
    }
}
