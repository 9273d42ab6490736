//! Prepares a plan for display, in the order in which it is shown.

use outrigger_lifecycle::{
    Gate, Need, Plan, Qos, ResourceTotals, Role, StopRule, effective, qos, stop_turns,
};
use outrigger_manifest::{Checked, PodManifest};

/// The input of all formats of a plan.
pub struct View<'a> {
    /// The pod.
    pub(super) pod: &'a PodManifest,
    /// The number of identical pods.
    pub(super) count: usize,
    /// Its plan.
    pub(super) plan: &'a Plan,
    /// Containers by start stage.
    pub(super) start: Vec<Vec<usize>>,
    /// Containers by stop stage. Init containers are left out, because they have ended by then.
    pub(super) stop: Vec<Vec<usize>>,
    /// What each container waits for in a stop.
    pub(super) stop_rules: Vec<StopRule>,
    /// Its requests and limits.
    pub(super) resources: ResourceTotals,
    /// Its QoS class.
    pub(super) qos: Qos,
}

impl<'a> View<'a> {
    /// The view of a pod and the pods identical to it. `None` if it is empty or has no plan.
    pub fn new(checked: &'a Checked<'_>) -> Option<Self> {
        let Checked { pod, count, planned, .. } = checked;
        let (plan, spec) = (&planned.as_ref()?.plan, pod.input.pod.spec.as_ref()?);
        let all = 0..plan.containers.len();
        let runs = |c: &usize| plan.containers[*c].role != Role::Init;
        let stop_rules = plan.stop_rules();
        Some(View {
            pod,
            count: *count,
            plan,
            start: by_stage(all.clone(), &plan.start_stages()),
            stop: by_stage(all.filter(runs), &stop_rules.iter().map(|r| r.stage).collect::<Vec<_>>()),
            stop_rules,
            resources: effective(spec, plan),
            qos: qos(spec),
        })
    }

    /// The gates to show. Gates that always open before another gate of the same container are left out.
    pub(super) fn gates(&self, container: usize) -> Vec<&'a Gate> {
        let gates = &self.plan.containers[container].gates;
        let implied = |gate: &Gate| {
            let lasting = matches!(gate.need, Need::Completed | Need::Started) && !gate.every_start;
            let by = |other: &&Gate| other.on != gate.on && other.need != Need::Launched;
            lasting && gates.iter().filter(by).any(|other| self.waits(other.on, gate))
        };
        gates.iter().filter(|g| !implied(g)).collect()
    }

    /// Whether a container starts only after a gate has opened.
    fn waits(&self, container: usize, gate: &Gate) -> bool {
        let mut seen = vec![false; self.plan.containers.len()];
        let mut stack = vec![container];
        while let Some(c) = stack.pop() {
            if std::mem::replace(&mut seen[c], true) {
                continue;
            }
            for g in self.plan.containers[c].gates.iter().filter(|g| g.need != Need::Launched) {
                if g.on == gate.on && g.need == gate.need {
                    return true;
                }
                stack.push(g.on);
            }
        }
        false
    }

    /// All containers that have ended when it is a container's turn to stop, without init containers.
    pub(super) fn stops_after_all(&self, container: usize) -> Vec<usize> {
        let mut after = stop_turns(self.plan, self.plan.grace_ms).swap_remove(container).after;
        after.retain(|&c| self.plan.containers[c].role != Role::Init);
        after
    }

    /// A container's name.
    pub(super) fn name(&self, container: usize) -> &'a str {
        &self.plan.containers[container].name
    }
}

/// Groups containers by stage, without gaps.
fn by_stage(containers: impl Iterator<Item = usize>, stage: &[usize]) -> Vec<Vec<usize>> {
    let mut stages: Vec<Vec<usize>> = vec![Vec::new(); stage.iter().max().map_or(0, |m| m + 1)];
    containers.for_each(|c| stages[stage[c]].push(c));
    stages.retain(|s| !s.is_empty());
    stages
}
