//! The turn of each container when a pod stops. The engine uses the turns at every step. They are also stored
//! beforehand, for a process that must stop the pod without the engine.

use serde::{Deserialize, Serialize};

use crate::plan::Plan;

/// The turn of one container in a pod's stop. Times are milliseconds since the stop began.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopTurn {
    /// It is signalled once none of these containers is running.
    pub after: Vec<usize>,
    /// From this time on it is signalled even if one of them is running; `None` if it always waits.
    pub free_at_ms: Option<u64>,
    /// When it is killed, if it has had [`super::STOP_MIN_MS`] to react by then. With a grace period of zero
    /// nothing is signalled, and each container is killed at its turn.
    pub kill_at_ms: u64,
    /// The time from its signal until it is killed, if that is earlier.
    pub own_grace_ms: Option<u64>,
}

/// How to stop a pod whose process has died, without its plan and the engine: in the engine's order, but
/// without hooks and restarts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopPlan {
    /// The grace period of the whole stop. With zero, each container is killed at its turn.
    pub grace_ms: u64,
    /// The name and the turn of each container. A container that is not listed is killed at once.
    pub turns: Vec<(String, StopTurn)>,
}

impl StopPlan {
    /// The stop plan of a pod, with this grace period.
    pub fn new(plan: &Plan, grace_ms: u64) -> Self {
        let names = plan.containers.iter().map(|container| container.name.clone());
        StopPlan { grace_ms, turns: names.zip(stop_turns(plan, grace_ms)).collect() }
    }

    /// The turn of a container.
    pub fn turn(&self, container: &str) -> Option<&StopTurn> {
        self.turns.iter().find(|(name, _)| name == container).map(|(_, turn)| turn)
    }

    /// Whether a container is signalled only after another one has ended.
    pub fn is_after(&self, container: &str, other: &str) -> bool {
        let is_other = |index: &usize| self.turns.get(*index).is_some_and(|(name, _)| name == other);
        self.turn(container).is_some_and(|turn| turn.after.iter().any(is_other))
    }
}

/// The turns of all containers, by their index, in a stop with this grace period.
pub fn stop_turns(plan: &Plan, grace_ms: u64) -> Vec<StopTurn> {
    let mut after: Vec<Vec<usize>> = vec![Vec::new(); plan.containers.len()];
    for &i in &plan.stop_order {
        // A container that has ended still passes on those before it (G-22).
        let mut all = plan.containers[i].stop_after.clone();
        all.extend(plan.containers[i].stop_after.iter().flat_map(|&before| after[before].clone()));
        all.sort_unstable();
        all.dedup();
        after[i] = all;
    }
    let turn = |(i, after): (usize, Vec<usize>)| {
        let own_grace_ms = plan.containers[i].stop_grace_ms;
        let kept = kept_for_later(plan, grace_ms, plan.containers[i].stop_stage);
        // Only pods without a reserve have this limit (a reserve keeps the order), and all their stages end
        // with the grace period.
        let free_at_ms = (!plan.keeps_order_after_grace()).then_some(grace_ms);
        StopTurn { after, free_at_ms, kill_at_ms: grace_ms - kept, own_grace_ms }
    };
    after.into_iter().enumerate().map(turn).collect()
}

/// Groups containers by stop stage. The first group is stopped first, and the containers of one group are
/// stopped together.
pub fn stop_stages(plan: &Plan, containers: &[usize]) -> Vec<Vec<usize>> {
    let stage = |i: &usize| plan.containers[*i].stop_stage;
    let mut order = containers.to_vec();
    order.sort_by_key(stage);
    order.chunk_by(|a, b| stage(a) == stage(b)).map(<[usize]>::to_vec).collect()
}

/// How long before the end of the grace period a stage ends. Without a reserve, every stage ends with the
/// grace period (R3.24). With one, the first stage ends early and the others share the reserve (G-24, G-25).
pub(super) fn kept_for_later(plan: &Plan, grace_ms: u64, stage: usize) -> u64 {
    let reserve = plan.sidecar_grace_ms.min(grace_ms);
    if reserve == 0 || plan.stop_stages == 0 {
        return 0;
    }
    reserve - reserve * stage as u64 / plan.stop_stages as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::fixtures::{plan, spec};

    #[test]
    fn chosen_containers_stop_stage_by_stage() {
        let plan = plan(spec("Always", &["s1", "s2", "a", "b"]));
        let [s1, s2, a, b] = ["s1", "s2", "a", "b"].map(|name| plan.find(name).expect("it is in the plan"));
        let table: [(&[usize], &[&[usize]]); 4] = [
            // Sidecars stop after the mains, the last first (R3.22).
            (&[s1, s2, a, b], &[&[a, b], &[s2], &[s1]]),
            (&[s1, s2], &[&[s2], &[s1]]),
            (&[b, a], &[&[b, a]]),
            (&[], &[]),
        ];
        for (containers, expected) in table {
            assert_eq!(stop_stages(&plan, containers), expected, "{containers:?}");
        }
    }
}
