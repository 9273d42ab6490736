//! Which keys of a pod's barrier to publish (LP-16 to LP-34, KD8 to KD11).
//!
//! The decision is level-triggered: it compares the current pod with its ConfigMap and returns the missing
//! steps. A key is due when the gates of its containers are open, or when one of them has run before. Due
//! keys are published whenever they are missing, even long after the launch, because the kubelet needs them
//! at every restart (LP-15). Once the mains of a pod are done, nothing new may start in it. Then no key is
//! published, and a key that no container has used yet is withdrawn.

use std::collections::BTreeSet;

use outrigger_lifecycle::{Gate, Time, rules};
use outrigger_text::HumanDuration;

use super::explain;
use crate::view::{ObservedPod, is_served_gate};

/// The barrier ConfigMap of a pod in the API server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Map {
    /// The ConfigMap does not exist.
    Missing,
    /// The ConfigMap belongs to an earlier pod of the same name (LP-31).
    OfPredecessor,
    /// The ConfigMap is not a barrier of this pod. The operator never changes it.
    Foreign,
    /// The ConfigMap belongs to this pod.
    Ours {
        /// The keys whose value is `true`.
        keys: BTreeSet<String>,
    },
}

/// State kept between two reconciliations. Losing it costs at most one extra wake-up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Memory {
    /// When the kubelet was last woken.
    pub woken_at: Option<Time>,
    /// How often it was woken since the last key was published.
    pub wakes: u32,
    /// When the last key was published.
    pub published_at: Option<Time>,
    /// When the operator last tried to mark the pod as completed.
    pub completed_at: Option<Time>,
}

/// One step of a launch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BarrierStep {
    /// Create the ConfigMap, owned by the pod, with these keys.
    Create {
        /// The name of the ConfigMap.
        map: String,
        /// The keys that are due.
        keys: BTreeSet<String>,
    },
    /// Replace the ConfigMap of an earlier pod of the same name.
    Replace {
        /// The name of the ConfigMap.
        map: String,
        /// The keys that are due.
        keys: BTreeSet<String>,
    },
    /// Add keys to the ConfigMap.
    Publish {
        /// The name of the ConfigMap.
        map: String,
        /// The keys to add.
        keys: BTreeSet<String>,
    },
    /// Remove keys of containers that must not start any more.
    Withdraw {
        /// The name of the ConfigMap.
        map: String,
        /// The keys to remove.
        keys: BTreeSet<String>,
    },
    /// Annotate the pod, which also makes the kubelet sync it.
    Annotate {
        /// Whether every key is published.
        completed: bool,
    },
    /// End the pod: a container waits for something that can no longer happen (KD10).
    Fail {
        /// Why the pod fails.
        message: String,
    },
    /// Set the launch condition.
    Condition {
        /// Whether all containers were launched.
        is_true: bool,
        /// The message of the condition.
        message: String,
    },
    /// Send an event.
    Event {
        /// Whether the event is a warning.
        is_warning: bool,
        /// The reason of the event.
        reason: &'static str,
        /// The message of the event.
        message: String,
    },
}

/// The steps for a pod's launch, and when to check again if nothing happens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Launch {
    /// The steps, in order.
    pub steps: Vec<BarrierStep>,
    /// When to check again, if nothing happens before.
    pub again: Option<Time>,
    /// The number of containers whose key is not due yet.
    pub waiting: usize,
}

/// The message for a pod whose barrier refers to an object that is not a barrier.
pub const IGNORED: &str = "the barrier of this pod names a ConfigMap that is not one of a barrier; recreate the pod, so that the webhook writes it";

/// The message for a pod whose ConfigMap's name is already taken.
pub fn foreign(map: &str) -> String {
    format!(
        "ConfigMap {map} exists and does not belong to this pod; if nothing else uses it, delete it, so that the barrier can be made"
    )
}

/// A launch without progress is reported after this long, unless the pod sets another time.
pub const TIMEOUT_MS: u64 = 10 * 60_000;
/// The kubelet is woken again after this time, which doubles with each wake-up. Its ConfigMap watch may be
/// slower than its pod watch.
const WAKE_AGAIN_MS: u64 = 500;
/// The maximum number of wake-ups for the same keys. The kubelet syncs by itself every 10 to 15 s (LP-14).
const WAKES_MAX: u32 = 6;
/// A foreign ConfigMap is checked again after this time, because ConfigMaps without our label are not
/// watched.
pub const FOREIGN_AGAIN_MS: u64 = 2_000;
/// A mark that is not visible in the pod after this time is written again.
const MARK_AGAIN_MS: u64 = 5_000;

/// The ConfigMap that the pod's first barrier names, if the name is valid for a barrier of this pod. The
/// author of a pod that no webhook has seen chooses the name. The check ensures that no other object is ever
/// created or written.
pub fn map_name(view: &ObservedPod) -> Option<&str> {
    let (_, barrier) = view.barriers().next()?;
    is_barrier_name(&barrier.map, &view.name).then_some(barrier.map.as_str())
}

/// Valid names are `POD-barrier`, as in Kruise, and the name our webhook generates: `…barrier-` and ten
/// letters and digits.
fn is_barrier_name(map: &str, pod: &str) -> bool {
    let ours = |suffix: &str| {
        suffix.len() == super::admit::SUFFIX_LEN
            && suffix.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
    };
    let is_of_pod = map.strip_suffix("-barrier") == Some(pod)
        || map.rsplit_once("-barrier-").is_some_and(|(base, suffix)| !base.is_empty() && ours(suffix));
    is_of_pod && outrigger_text::name::is_object_name(map)
}

/// The closed gates a container is waiting for.
pub fn closed_gates(view: &ObservedPod, container: usize) -> impl Iterator<Item = &Gate> {
    let (plan, obs) = (&view.plan, &view.observation);
    let has_run = obs.containers[container].was_run;
    let gates = plan.containers[container].gates.iter().filter(|g| is_served_gate(g.dialect));
    gates.filter(move |g| !has_run && !rules::gate_open(plan, obs, container, g))
}

/// The first closed gate of a container, if any.
pub fn closed_gate(view: &ObservedPod, container: usize) -> Option<&Gate> {
    closed_gates(view, container).next()
}

/// The keys that are due now (LP-21, LP-23). Two kinds of pods get no new keys. In a pod that cannot be
/// planned, the unreadable part may be its gates. In a pod whose mains are done, a sidecar would start after
/// the pod's result, and its exit code could become the result.
pub fn earned(view: &ObservedPod) -> BTreeSet<String> {
    let starts_nothing_new = view.problem.is_some() || view.mains_are_done();
    let may_start = |i: usize| match starts_nothing_new {
        false => closed_gate(view, i).is_none(),
        true => view.observation.containers[i].was_run,
    };
    let open = view.barriers().filter(|(i, _)| may_start(*i));
    open.map(|(_, barrier)| barrier.key.clone()).collect()
}

/// The levels of containers that are not ready, lowest first (LP-18).
pub fn pending_levels(view: &ObservedPod) -> Vec<i64> {
    let pending = (0..view.containers.len()).filter(|&i| !view.containers[i].ready);
    let mut levels: Vec<i64> = pending.filter_map(|i| view.level(i)).collect();
    levels.sort_unstable();
    levels
}

/// The steps for a pod's launch now.
pub fn decide(view: &ObservedPod, map: &Map, memory: Memory, now: Time) -> Launch {
    let mut launch = Launch::default();
    if view.deleting || view.is_over() || view.barriers().next().is_none() {
        return launch;
    }
    let Some(name) = map_name(view) else {
        launch.warn("BarrierIgnored", IGNORED.to_owned());
        return launch;
    };
    // Once its key is published, a container starts, even if the containers it has waited for change.
    let is_published = |key: &String| matches!(map, Map::Ours { keys } if keys.contains(key));
    let closed = view.barriers().filter(|(_, barrier)| !is_published(&barrier.key));
    let mut waiting: Vec<(usize, &Gate)> =
        closed.filter_map(|(i, _)| Some((i, closed_gate(view, i)?))).collect();
    let mains_are_done = view.mains_are_done();
    if mains_are_done {
        // The waiting containers never start.
        waiting.clear();
    }
    launch.waiting = waiting.len();
    if let Some(message) = hopeless(view, &waiting) {
        launch.steps.push(BarrierStep::Fail { message });
        return launch;
    }
    let earned = earned(view);
    let (held, news) = match map {
        Map::Foreign => {
            launch.warn("BarrierBlocked", foreign(name));
            launch.wake_at(now + FOREIGN_AGAIN_MS);
            launch.report(view, &waiting, now);
            return launch;
        }
        Map::Missing if mains_are_done && earned.is_empty() => return launch,
        Map::Missing => {
            launch.steps.push(BarrierStep::Create { map: name.to_owned(), keys: earned.clone() });
            (BTreeSet::new(), earned)
        }
        Map::OfPredecessor => {
            launch.steps.push(BarrierStep::Replace { map: name.to_owned(), keys: earned.clone() });
            (BTreeSet::new(), earned)
        }
        Map::Ours { keys } => {
            let news: BTreeSet<String> = earned.difference(keys).cloned().collect();
            if !news.is_empty() {
                launch.steps.push(BarrierStep::Publish { map: name.to_owned(), keys: news.clone() });
            }
            let unused = unused(view, keys, &earned);
            if mains_are_done && !unused.is_empty() {
                launch.steps.push(BarrierStep::Withdraw { map: name.to_owned(), keys: unused.clone() });
                return launch;
            }
            (keys.clone(), news)
        }
    };
    if !mains_are_done {
        launch.wake(view, &held, &news, memory, now);
        launch.report(view, &waiting, now);
    }
    launch
}

/// The published keys of the pod that no container has used to start.
fn unused(view: &ObservedPod, held: &BTreeSet<String>, earned: &BTreeSet<String>) -> BTreeSet<String> {
    let keys = view.barriers().map(|(_, barrier)| &barrier.key);
    keys.filter(|key| held.contains(*key) && !earned.contains(*key)).cloned().collect()
}

/// A container that waits for something that can no longer happen (LP-28, KD10).
fn hopeless(view: &ObservedPod, waiting: &[(usize, &Gate)]) -> Option<String> {
    let (plan, obs) = (&view.plan, &view.observation);
    let (i, gate) = waiting.iter().find(|(i, gate)| rules::gate_can_never_open(plan, obs, *i, gate))?;
    let code = obs.containers[gate.on].exit.as_ref().map_or(0, |exit| exit.code);
    Some(format!(
        "container `{}` waits for `{}`, which failed with code {code} and will not be restarted",
        plan.containers[*i].name, plan.containers[gate.on].name
    ))
}

impl Launch {
    fn warn(&mut self, reason: &'static str, message: String) {
        self.steps.push(BarrierStep::Event { is_warning: true, reason, message });
    }

    fn wake_at(&mut self, at: Time) {
        self.again = Some(self.again.map_or(at, |again| again.min(at)));
    }

    /// Annotates the pod when every key is published. Also annotates it when a container's key exists and the
    /// kubelet may not have seen it (KD9).
    fn wake(
        &mut self,
        view: &ObservedPod,
        held: &BTreeSet<String>,
        news: &BTreeSet<String>,
        memory: Memory,
        now: Time,
    ) {
        let all = view.barriers().all(|(_, b)| held.contains(&b.key) || news.contains(&b.key));
        let mut completes = all && !view.completed;
        if let (true, Some(at)) = (completes, memory.completed_at)
            && now < at + MARK_AGAIN_MS
        {
            // The mark is being written, or the watch is behind.
            completes = false;
            self.wake_at(at + MARK_AGAIN_MS);
        }
        let refused = |keys: &BTreeSet<String>| {
            view.barriers().any(|(i, b)| view.containers[i].is_refused() && keys.contains(&b.key))
        };
        // A pod without a node has no kubelet yet. The kubelet it gets will find the key.
        let is_news = !news.is_empty() && view.node.is_some();
        if completes || is_news || refused(news) {
            self.steps.push(BarrierStep::Annotate { completed: all });
            if is_news {
                self.wake_at(now + WAKE_AGAIN_MS);
            }
            return;
        }
        if refused(held) && memory.wakes < WAKES_MAX {
            let at = memory.woken_at.map_or(now, |at| at + (WAKE_AGAIN_MS << memory.wakes.min(8)));
            if at <= now {
                self.steps.push(BarrierStep::Annotate { completed: all });
            } else {
                self.wake_at(at);
            }
        }
    }

    /// Reports which containers are waited for when the launch takes too long, and when that is over (KD11).
    fn report(&mut self, view: &ObservedPod, waiting: &[(usize, &Gate)], now: Time) {
        if view.problem.is_some() {
            // The plan is unknown, so it is not known who waits for whom.
            return;
        }
        let was_late = view.launched.as_ref().is_some_and(|(is_true, _)| !is_true);
        let Some((container, gate)) = waiting.first() else {
            if was_late {
                let message = "every container was launched".to_owned();
                self.steps.push(BarrierStep::Condition { is_true: true, message });
            }
            return;
        };
        let Some(started) = view.started else { return };
        let limit = view.launch_timeout_ms.unwrap_or(TIMEOUT_MS);
        if now < started + limit {
            return self.wake_at(started + limit);
        }
        let waited = explain::gate(view, *container, gate, now);
        let name = &view.plan.containers[*container].name;
        let message = format!(
            "container `{name}` {waited}, longer than the launch timeout of {}",
            HumanDuration(limit)
        );
        let said = view.launched.as_ref().filter(|(is_true, _)| !is_true).map(|(_, said)| said.as_str());
        if said.is_some_and(|said| is_same(said, &message)) {
            return;
        }
        self.steps.push(BarrierStep::Condition { is_true: false, message: message.clone() });
        let on = &view.plan.containers[gate.on].name;
        if !said.is_some_and(|said| said.contains(&format!("`{name}` waits for `{on}`"))) {
            self.warn("LaunchTimeout", message);
        }
    }
}

/// Whether two messages differ only in numbers. A message with only a new time is not written, because the
/// write would change the pod and cause another reconciliation.
fn is_same(one: &str, other: &str) -> bool {
    let words = |text: &str| -> String { text.chars().filter(|c| !c.is_ascii_digit()).collect() };
    words(one) == words(other)
}
