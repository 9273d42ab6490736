//! Workloads that keep a number of pods running: Deployment, ReplicaSet, StatefulSet, DaemonSet.
//!
//! The structure is that of the engines for pods and Jobs: the wanted state, the current state and the time
//! become a decision.

use serde::{Deserialize, Serialize};

use crate::status::Phase;
use crate::time::Time;

/// The first and the longest delay before a pod that ended by itself is replaced. Kubernetes replaces it
/// immediately, any number of times.
const BACKOFF_MS: (u64, u64) = (10_000, 300_000);

/// The number of pods, and the order in which they start and stop.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaPlan {
    /// Pods to keep running.
    pub replicas: u32,
    /// Pods start one after another: each waits until those before it are available. They stop in reverse
    /// order.
    pub ordered: bool,
    /// Pods have names: a pod must have ended before another can take its place.
    pub named: bool,
    /// A pod is available once it has been ready for this long.
    pub min_ready_ms: u64,
}

/// The current state of the pods.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ReplicaObservation {
    /// All pods so far, in the order of their creation.
    pub pods: Vec<Replica>,
    /// Whether all of them are being stopped.
    pub stopping: bool,
}

/// One pod of a workload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replica {
    /// Its place, from 0.
    pub place: u32,
    /// Its phase.
    pub phase: Phase,
    /// Whether it was told to stop.
    pub deleted: bool,
    /// Since when it has been ready.
    pub ready_since: Option<Time>,
    /// When it ended.
    pub finished_at: Option<Time>,
}

/// What to do now.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReplicaDecision {
    /// The pods to create: the place of each, and how many pods the place had before.
    pub create: Vec<(u32, u32)>,
    /// The pods to delete, by their index in [`ReplicaObservation::pods`].
    pub delete: Vec<usize>,
    /// The place that waits, and the earlier place that must become available first.
    pub waits: Option<(u32, u32)>,
    /// All pods have been stopped.
    pub finished: bool,
    /// When to decide again if nothing happens before.
    pub wake: Option<Time>,
}

impl Replica {
    /// A new pod.
    pub fn new(place: u32) -> Self {
        Replica { place, phase: Phase::Pending, deleted: false, ready_since: None, finished_at: None }
    }

    /// Whether it has neither ended nor been told to stop.
    pub fn is_active(&self) -> bool {
        !self.phase.is_terminal() && !self.deleted
    }

    /// When it will have been ready for long enough.
    pub fn available_at(&self, plan: &ReplicaPlan) -> Option<Time> {
        self.ready_since.filter(|_| self.is_active()).map(|since| since + plan.min_ready_ms)
    }
}

/// Decides what to do now.
pub fn decide_replicas(plan: &ReplicaPlan, obs: &ReplicaObservation, now: Time) -> ReplicaDecision {
    let mut decision = ReplicaDecision::default();
    if obs.stopping {
        decision.finished = stop(plan, obs, 0, &mut decision);
        return decision;
    }
    stop(plan, obs, plan.replicas, &mut decision);
    for place in 0..plan.replicas {
        let pods = || obs.pods.iter().filter(|pod| pod.place == place);
        let alive = pods().any(Replica::is_active);
        let gone = plan.named && pods().any(|pod| !pod.phase.is_terminal());
        if !alive && !gone {
            match retry_at(obs, place).filter(|at| *at > now) {
                Some(at) => wake(&mut decision, at),
                None => {
                    let before = u32::try_from(pods().count()).unwrap_or(u32::MAX);
                    decision.create.push((place, before));
                }
            }
        }
        if !plan.ordered || place + 1 == plan.replicas {
            continue;
        }
        match pods().filter_map(|pod| pod.available_at(plan)).min() {
            Some(at) if at <= now => {}
            at => {
                at.into_iter().for_each(|at| wake(&mut decision, at));
                let next = (place + 1..plan.replicas)
                    .find(|p| !obs.pods.iter().any(|pod| pod.place == *p && pod.is_active()));
                decision.waits = next.map(|next| (next, place));
                break;
            }
        }
    }
    decision
}

fn wake(decision: &mut ReplicaDecision, at: Time) {
    decision.wake = Some(decision.wake.map_or(at, |wake| wake.min(at)));
}

/// Stops the pods in the places from `first` on: all at once, or one after the other from the last place on.
/// Returns whether all have ended.
fn stop(plan: &ReplicaPlan, obs: &ReplicaObservation, first: u32, decision: &mut ReplicaDecision) -> bool {
    let left = |i: &usize| obs.pods[*i].place >= first && !obs.pods[*i].phase.is_terminal();
    let last = (0..obs.pods.len()).filter(left).map(|i| obs.pods[i].place).max();
    let turn = |i: &usize| !plan.ordered || Some(obs.pods[*i].place) == last;
    decision.delete =
        (0..obs.pods.len()).filter(left).filter(|i| obs.pods[*i].is_active()).filter(turn).collect();
    last.is_none()
}

/// When the next pod of a place may be created. After a pod that was told to stop, this is immediately.
fn retry_at(obs: &ReplicaObservation, place: u32) -> Option<Time> {
    let ended = obs.pods.iter().rev().filter(|pod| pod.place == place);
    let in_a_row = ended.clone().take_while(|pod| !pod.deleted).count();
    let last = ended.clone().next().filter(|pod| !pod.deleted)?.finished_at?;
    let doubled = BACKOFF_MS.0.saturating_mul(1 << (in_a_row - 1).min(20));
    Some(last + doubled.min(BACKOFF_MS.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time(1_000_000);

    fn plan(replicas: u32, ordered: bool) -> ReplicaPlan {
        ReplicaPlan { replicas, ordered, named: ordered, min_ready_ms: 0 }
    }

    fn pod(place: u32, phase: Phase) -> Replica {
        let finished_at = phase.is_terminal().then_some(NOW);
        Replica { phase, finished_at, ..Replica::new(place) }
    }

    fn ready(place: u32) -> Replica {
        Replica { ready_since: Some(NOW), ..pod(place, Phase::Running) }
    }

    fn deleted(pod: Replica) -> Replica {
        Replica { deleted: true, ..pod }
    }

    fn decided(plan: &ReplicaPlan, pods: &[Replica], stopping: bool) -> ReplicaDecision {
        decide_replicas(plan, &ReplicaObservation { pods: pods.to_vec(), stopping }, NOW)
    }

    #[test]
    fn fewer_replicas_end_the_last_places_and_in_order_where_there_is_one() {
        let pods = [ready(0), ready(1), ready(2)];
        let decision = decided(&plan(1, false), &pods, false);
        assert_eq!((decision.delete, decision.create, decision.finished), (vec![1, 2], vec![], false));
        let ordered = plan(1, true);
        assert_eq!(decided(&ordered, &pods, false).delete, [2]);
        // The last pod is stopping, so the one before it waits.
        let going = [ready(0), ready(1), deleted(ready(2))];
        assert!(decided(&ordered, &going, false).delete.is_empty());
        let gone = [ready(0), ready(1), deleted(pod(2, Phase::Succeeded))];
        assert_eq!(decided(&ordered, &gone, false).delete, [1]);
    }

    #[test]
    fn a_set_makes_all_at_once_and_an_ordered_one_waits_for_each() {
        let set = plan(3, false);
        assert_eq!(decided(&set, &[], false).create, [(0, 0), (1, 0), (2, 0)]);
        let ordered = plan(3, true);
        let table = [
            (vec![], vec![(0, 0)], Some((1, 0))),
            (vec![pod(0, Phase::Running)], vec![], Some((1, 0))),
            (vec![ready(0)], vec![(1, 0)], Some((2, 1))),
            (vec![ready(0), ready(1)], vec![(2, 0)], None),
            (vec![pod(0, Phase::Running), ready(1)], vec![], Some((2, 0))),
        ];
        for (pods, create, waits) in table {
            let decision = decided(&ordered, &pods, false);
            assert_eq!((decision.create, decision.waits), (create, waits), "{pods:?}");
        }
    }

    #[test]
    fn the_next_waits_until_the_one_before_is_available() {
        let plan = ReplicaPlan { min_ready_ms: 5_000, ..plan(2, true) };
        let decision = decided(&plan, &[ready(0)], false);
        assert_eq!((decision.create.len(), decision.wake), (0, Some(NOW + 5_000)));
        let obs = ReplicaObservation { pods: vec![ready(0)], stopping: false };
        assert_eq!(decide_replicas(&plan, &obs, NOW + 5_000).create, [(1, 0)]);
    }

    #[test]
    fn a_pod_that_was_deleted_is_replaced_at_once_and_a_named_one_when_it_is_gone() {
        let going = deleted(pod(0, Phase::Running));
        assert_eq!(decided(&plan(1, false), std::slice::from_ref(&going), false).create, [(0, 1)]);
        assert_eq!(decided(&plan(1, true), std::slice::from_ref(&going), false).create.len(), 0);
        let gone = deleted(pod(0, Phase::Failed));
        assert_eq!(decided(&plan(1, true), &[gone], false).create, [(0, 1)]);
    }

    #[test]
    fn pods_that_end_by_themselves_come_back_more_and_more_slowly() {
        for (ended, wait_ms) in [(1, 10_000), (2, 20_000), (5, 160_000), (9, 300_000)] {
            let pods = vec![pod(0, Phase::Failed); ended];
            let decision = decided(&plan(1, false), &pods, false);
            assert_eq!((decision.create.len(), decision.wake), (0, Some(NOW + wait_ms)), "{ended}");
        }
    }

    #[test]
    fn an_ordered_set_stops_in_reverse_and_the_others_at_once() {
        let three = [ready(0), ready(1), ready(2)];
        assert_eq!(decided(&plan(3, false), &three, true).delete, [0, 1, 2]);
        let ordered = plan(3, true);
        assert_eq!(decided(&ordered, &three, true).delete, [2]);
        let going = [ready(0), ready(1), deleted(ready(2))];
        assert_eq!(decided(&ordered, &going, true).delete.len(), 0);
        let gone = [ready(0), ready(1), deleted(pod(2, Phase::Succeeded))];
        assert_eq!(decided(&ordered, &gone, true).delete, [1]);
        let all = [pod(0, Phase::Failed), pod(1, Phase::Failed)];
        assert!(decided(&ordered, &all, true).finished);
    }
}
