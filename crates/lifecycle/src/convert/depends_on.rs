//! Converts to `outrigger.dev/depends-on`, one line per container.

use serde_json::json;

use super::Edit;
use super::lists::{arrange, in_order, leave_init};
use crate::dialect::annotations::{DEPENDS_ON, FENCE};
use crate::plan::{Counts, Dialect, Need, Plan, Role};
use crate::source::{FieldPath, List, PodInput};

pub(super) fn write(input: &PodInput, plan: &Plan, edits: &mut Vec<Edit>) {
    let stays = stays(plan);
    let inits = in_order(plan, |i| stays[i]);
    let writer = Writer { plan, stays: &stays, inits: &inits, fenced: fenced(input) };
    let lines: Vec<String> = (0..plan.containers.len()).filter_map(|i| writer.line(i)).collect();
    if !lines.is_empty() {
        edits.push(Edit::Set {
            path: FieldPath::annotation(DEPENDS_ON),
            value: json!(lines.join("\n") + "\n"),
        });
    }
    for i in (0..plan.containers.len()).filter(|&i| !stays[i]) {
        leave_init(plan, i, edits);
    }
    arrange(plan, &inits, edits);
}

/// The entries of `initContainers` that stay there. Everything in `containers` waits for all of them, so a
/// native sidecar must stay if a plain init container needs it.
fn stays(plan: &Plan) -> Vec<bool> {
    let mut stays: Vec<bool> = plan.containers.iter().map(|c| c.role == Role::Init).collect();
    for i in in_order(plan, |_| true).into_iter().rev() {
        if stays[i] {
            plan.containers[i].gates.iter().for_each(|g| stays[g.on] = true);
        }
    }
    stays
}

fn fenced(input: &PodInput) -> bool {
    input.pod.metadata.annotations.as_ref().is_some_and(|a| a.contains_key(FENCE))
}

struct Writer<'a> {
    plan: &'a Plan,
    stays: &'a [bool],
    inits: &'a [usize],
    /// The pod has a fence annotation, which still applies after the conversion.
    fenced: bool,
}

impl Writer<'_> {
    fn line(&self, i: usize) -> Option<String> {
        let c = &self.plan.containers[i];
        let mut clauses = Vec::new();
        for gate in c.gates.iter().filter(|g| self.must_say(i, g.on, g.need)) {
            let on = gate.on;
            let mut words = vec![self.plan.containers[on].name.as_str(), self.need(gate.need)];
            if c.restart_with.contains(&on) {
                words.push("restart");
            }
            if c.fence.contains(&on) && !self.fenced {
                words.push("fence");
            }
            clauses.push(words.join(" "));
        }
        if c.place.list == List::Init && self.stays[i] && clauses.is_empty() && !self.is_chained(i) {
            clauses.push("none".to_owned());
        }
        if !self.stays[i] {
            clauses.extend(self.role(i));
        }
        if c.fatal {
            clauses.push("fatal".to_owned());
        }
        (!clauses.is_empty()).then(|| format!("{}: {}", c.name, clauses.join(", ")))
    }

    fn role(&self, i: usize) -> Option<String> {
        let c = &self.plan.containers[i];
        // In this dialect, only containers beside a `primary` one can count by their own exit without keeping
        // the pod alive.
        let beside_primary =
            |c: &crate::plan::ContainerPlan| !c.keeps_alive && c.counts == Counts::UnlessStopped;
        let primary = self.plan.containers.iter().any(beside_primary);
        if c.role == Role::Main && c.keeps_alive {
            return primary.then(|| "primary".to_owned());
        }
        (!beside_primary(c)).then(|| "sidecar".to_owned())
    }

    /// Whether a gate must be written to have an effect.
    fn must_say(&self, i: usize, on: usize, need: Need) -> bool {
        if need == Need::Launched {
            return false;
        }
        match (self.stays[i], self.stays[on]) {
            // Containers wait for all of `initContainers` anyway, but only until they are started, not until
            // they are ready.
            (false, true) => need == Need::Ready && !self.fenced,
            (true, _) => !self.is_chained(i),
            (false, false) => true,
        }
    }

    /// Whether an entry of `initContainers` waits for exactly the entry before it. That is the default, and
    /// needs no line.
    fn is_chained(&self, i: usize) -> bool {
        let at = self.inits.iter().position(|&c| c == i);
        let before = at.and_then(|at| at.checked_sub(1)).map(|at| self.inits[at]);
        let on: Vec<usize> = self.plan.containers[i].gates.iter().map(|g| g.on).collect();
        let plain = |g: &crate::plan::Gate| g.dialect != Some(Dialect::DependsOn);
        on == before.into_iter().collect::<Vec<_>>() && self.plan.containers[i].gates.iter().all(plain)
    }

    fn need(&self, need: Need) -> &'static str {
        match need {
            Need::Completed => "completed",
            Need::Ready => "ready",
            Need::Started | Need::Launched => "started",
        }
    }
}
