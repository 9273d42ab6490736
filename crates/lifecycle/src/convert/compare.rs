//! Guarantees that a conversion keeps or loses.

use crate::dialect::annotations::SIDECAR_GRACE;
use crate::plan::{Counts, Need, Plan, PreStopWhen, ProbeKind, RestartPolicy, Role, topological};
use crate::source::ContainerRef;

/// A difference between two plans.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Whether the pod has lost a guarantee. Otherwise the difference is only a note.
    pub loss: bool,
    /// The container that the difference is about, by its place before the conversion.
    pub place: ContainerRef,
    /// The difference, in one sentence.
    pub text: String,
}

/// The differences between two plans of a pod. Containers are matched by name.
pub fn compare(before: &Plan, after: &Plan) -> Vec<Difference> {
    let mut pairs = Vec::new();
    for (old, c) in before.containers.iter().enumerate() {
        if let Some(new) = after.find(&c.name) {
            pairs.push((old, new));
        }
    }
    let mut comparison = Comparison { before, after, pairs, out: Vec::new() };
    comparison.starts();
    comparison.stops();
    comparison.end_of_grace();
    comparison.roles();
    comparison.out
}

/// The states that a container is guaranteed to have reached when another one starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct ReachedStates {
    started: bool,
    ready: bool,
    completed: bool,
}

impl ReachedStates {
    /// The word for the state. Without a readiness probe, a started container is ready.
    fn word(self, probed: bool) -> &'static str {
        match self {
            ReachedStates { completed: true, .. } => "completed",
            ReachedStates { ready: true, .. } if probed => "ready",
            _ => "started",
        }
    }

    fn any(self) -> bool {
        self.started || self.ready || self.completed
    }
}

struct Comparison<'p> {
    before: &'p Plan,
    after: &'p Plan,
    /// (index before, index after)
    pairs: Vec<(usize, usize)>,
    out: Vec<Difference>,
}

impl Comparison<'_> {
    fn say(&mut self, loss: bool, container: usize, text: String) {
        self.out.push(Difference { loss, place: self.before.containers[container].place, text });
    }

    fn starts(&mut self) {
        let (was, is) = (reach(self.before), reach(self.after));
        for &(c, new_c) in &self.pairs.clone() {
            let mut more = Vec::new();
            for &(on, new_on) in &self.pairs.clone() {
                let (old, new) = (was[c][on], is[new_c][new_on]);
                let name = format!("`{}`", self.before.containers[on].name);
                let probed = self.before.containers[on].probe(ProbeKind::Readiness).is_some();
                let weaker = (old.completed && !new.completed)
                    || (old.ready && !new.ready)
                    || (old.started && !new.started);
                let me = &self.before.containers[c].name;
                if weaker && new.any() {
                    let text = format!(
                        "`{me}` waits for {name} to be {} only, not {}",
                        new.word(probed),
                        old.word(probed)
                    );
                    self.say(true, c, text);
                } else if weaker {
                    self.say(
                        true,
                        c,
                        format!("`{me}` no longer waits for {name} to be {}", old.word(probed)),
                    );
                } else if new != old && new.any() {
                    more.push(format!("{name} to be {}", new.word(probed)));
                }
            }
            if !more.is_empty() {
                let me = &self.before.containers[c].name;
                self.say(false, c, format!("`{me}` now waits for {}", more.join(", ")));
            }
            self.restarts(c, new_c);
        }
    }

    /// Compares what still applies after the first start: fences, common restarts, and gates that apply to
    /// every start.
    fn restarts(&mut self, c: usize, new_c: usize) {
        let (old, new) = (&self.before.containers[c], &self.after.containers[new_c]);
        let has = |list: &[usize], on: &str| list.iter().any(|&i| self.after.containers[i].name == on);
        let mut lost = Vec::new();
        for &on in &old.fence {
            let on = &self.before.containers[on].name;
            if !has(&new.fence, on) {
                lost.push(format!("`{}` is no longer stopped while `{on}` is not ready", old.name));
            }
        }
        for &on in &old.restart_with {
            let on = &self.before.containers[on].name;
            if !has(&new.restart_with, on) {
                lost.push(format!("`{}` is no longer restarted when `{on}` is", old.name));
            }
        }
        for gate in old.gates.iter().filter(|g| g.every_start) {
            let on = &self.before.containers[gate.on].name;
            let again = |g: &&crate::plan::Gate| g.every_start && self.after.containers[g.on].name == *on;
            if !new.gates.iter().any(|g| again(&g)) {
                lost.push(format!("`{}` no longer waits for `{on}` when it restarts", old.name));
            }
        }
        lost.into_iter().for_each(|text| self.say(true, c, text));
    }

    fn stops(&mut self) {
        let was = stop_reach(self.before);
        let is = stop_reach(self.after);
        for &(c, new_c) in &self.pairs.clone() {
            let mut more = Vec::new();
            for &(on, new_on) in &self.pairs.clone() {
                let done = |plan: &Plan, i: usize| plan.containers[i].role == Role::Init;
                if [(self.before, c), (self.before, on), (self.after, new_c), (self.after, new_on)]
                    .iter()
                    .any(|&(plan, i)| done(plan, i))
                {
                    continue;
                }
                let (me, name) = (&self.before.containers[c].name, &self.before.containers[on].name);
                match (was[c][on], is[new_c][new_on]) {
                    (true, false) => {
                        self.say(
                            true,
                            c,
                            format!("`{me}` is stopped without waiting for `{name}` to be gone"),
                        );
                    }
                    (false, true) => more.push(format!("`{name}`")),
                    _ => {}
                }
            }
            if !more.is_empty() {
                let me = &self.before.containers[c].name;
                let gone = if more.len() == 1 { "is gone" } else { "are gone" };
                self.say(false, c, format!("`{me}` is now stopped once {} {gone}", more.join(", ")));
            }
        }
    }

    /// Compares what happens to the stop order when the grace period ends. This is only a note, because an
    /// annotation can change it in every dialect.
    fn end_of_grace(&mut self) {
        let (kept, keeps) = (self.before.keeps_order_after_grace(), self.after.keeps_order_after_grace());
        if kept == keeps {
            return;
        }
        let (was, is) = (stop_reach(self.before), stop_reach(self.after));
        // Init containers have completed by then.
        let stays = |(c, new_c): (usize, usize)| {
            self.before.containers[c].role != Role::Init && self.after.containers[new_c].role != Role::Init
        };
        let ordered = |c: usize, new_c: usize| {
            let before = |&&(on, new_on): &&(usize, usize)| was[c][on] && is[new_c][new_on];
            stays((c, new_c)) && self.pairs.iter().filter(before).any(|&pair| stays(pair))
        };
        let late: Vec<usize> =
            self.pairs.iter().filter(|&&(c, new_c)| ordered(c, new_c)).map(|&(c, _)| c).collect();
        let Some(&first) = late.first() else { return };
        let names: Vec<String> =
            late.iter().map(|&c| format!("`{}`", self.before.containers[c].name)).collect();
        let (names, verb) = (names.join(", "), if late.len() == 1 { "is" } else { "are" });
        let text = if keeps {
            format!(
                "when the grace period runs out, {names} {verb} now still stopped in order, which can take 2 s more per step"
            )
        } else {
            format!(
                "when the grace period runs out, {names} {verb} stopped at once instead of in order; the annotation \
                 {SIDECAR_GRACE} keeps the order"
            )
        };
        self.say(false, first, text);
    }

    fn roles(&mut self) {
        let ends = ends(self.before) || ends(self.after);
        for &(c, new_c) in &self.pairs.clone() {
            let (old, new) = (&self.before.containers[c], &self.after.containers[new_c]);
            let me = &old.name;
            let mut said: Vec<(bool, String)> = Vec::new();
            // A container that now runs to completion before the others still matters: if it fails, the pod
            // fails.
            let now_init = new.role == Role::Init;
            if ends && !now_init && old.keeps_alive != new.keeps_alive {
                let how = if new.keeps_alive { "now keeps" } else { "no longer keeps" };
                said.push((true, format!("`{me}` {how} the pod alive")));
            }
            if ends && !now_init && old.counts != new.counts {
                said.push((true, format!("the exit code of `{me}` {}", counts(new.counts))));
            }
            if old.fatal != new.fatal {
                let how = if new.fatal { "now ends" } else { "no longer ends" };
                said.push((true, format!("the end of `{me}` {how} the pod")));
            }
            let rank = |p: RestartPolicy| match p {
                RestartPolicy::Never => 0,
                RestartPolicy::OnFailure => 1,
                RestartPolicy::Always => 2,
            };
            let (had, has) = (rank(old.restart.policy), rank(new.restart.policy));
            if had != has && !(now_init && old.role == Role::Init) {
                let how = match new.restart.policy {
                    RestartPolicy::Always => "is now always restarted",
                    RestartPolicy::OnFailure => "is now restarted when it fails",
                    RestartPolicy::Never => "is no longer restarted",
                };
                said.push((has < had, format!("`{me}` {how}")));
            }
            if old.pre_stop.is_some() && old.pre_stop_when != new.pre_stop_when {
                let first = PreStopWhen::FirstAndOwnTurn;
                let how = match new.pre_stop_when {
                    PreStopWhen::AtOnce => "runs once, when the stop begins",
                    PreStopWhen::OwnTurn => "runs once, when its turn comes",
                    PreStopWhen::FirstAndOwnTurn => {
                        "runs twice: before any container is stopped, and when its turn comes"
                    }
                };
                said.push((old.pre_stop_when == first, format!("the preStop hook of `{me}` {how}")));
            }
            said.into_iter().for_each(|(loss, text)| self.say(loss, c, text));
        }
    }
}

fn counts(counts: Counts) -> &'static str {
    match counts {
        Counts::Yes => "now counts for the pod's result",
        Counts::UnlessStopped => "counts for the pod's result only if it ends by itself",
        Counts::No => "no longer counts for the pod's result",
    }
}

/// Whether a pod can complete. Only then does it matter which containers count.
fn ends(plan: &Plan) -> bool {
    plan.containers.iter().any(|c| c.fatal || (c.keeps_alive && c.restart.policy != RestartPolicy::Always))
}

/// For each container, the states that every other one is guaranteed to have reached when it first starts.
fn reach(plan: &Plan) -> Vec<Vec<ReachedStates>> {
    let n = plan.containers.len();
    let mut far = vec![vec![ReachedStates::default(); n]; n];
    let edges: Vec<Vec<usize>> = plan
        .containers
        .iter()
        .map(|c| c.gates.iter().filter(|g| g.need != Need::Launched).map(|g| g.on).collect())
        .collect();
    let edges: Vec<&[usize]> = edges.iter().map(Vec::as_slice).collect();
    for c in topological(&edges).unwrap_or_default() {
        for gate in plan.containers[c].gates.iter().filter(|g| g.need != Need::Launched) {
            let before = far[gate.on].clone();
            for (mine, theirs) in far[c].iter_mut().zip(before) {
                mine.started |= theirs.started;
                mine.ready |= theirs.ready;
                mine.completed |= theirs.completed;
            }
            let on = &mut far[c][gate.on];
            on.started = true;
            on.completed |= gate.need == Need::Completed;
            let waited = &plan.containers[gate.on];
            let same = waited.probe(ProbeKind::Readiness).is_none() || waited.started_is_ready;
            on.ready |= gate.need == Need::Ready || (gate.need == Need::Started && same);
        }
    }
    far
}

/// For each container, whether every other one is guaranteed to have ended when it is told to stop.
fn stop_reach(plan: &Plan) -> Vec<Vec<bool>> {
    let n = plan.containers.len();
    let mut gone = vec![vec![false; n]; n];
    for &c in &plan.stop_order {
        for &on in &plan.containers[c].stop_after {
            let before = gone[on].clone();
            gone[c].iter_mut().zip(before).for_each(|(mine, theirs)| *mine |= theirs);
            gone[c][on] = true;
        }
    }
    gone
}
