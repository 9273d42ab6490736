//! Converts to launch priorities, with the sidecar terminator for pods that end.

use serde_json::json;

use super::Edit;
use super::lists::{Kind, arrange, container, in_order, kinds, leave_init};
use super::marks;
use crate::plan::{Counts, Dialect, Need, Plan, RestartPolicy};
use crate::source::PodInput;

pub(super) fn write(input: &PodInput, plan: &Plan, edits: &mut Vec<Edit>) {
    let kinds = kinds(plan);
    let heights = heights(plan, |i| kinds[i] != Kind::First);
    for (i, c) in plan.containers.iter().enumerate().filter(|(i, _)| kinds[*i] != Kind::First) {
        let mut env = |name: &str, value: String| {
            edits.push(Edit::Append {
                list: c.place.path().field("env"),
                value: json!({ "name": name, "value": value }),
            });
        };
        if heights[i] > 0 {
            env(marks::PRIORITY, heights[i].to_string());
        }
        let marked = |name: &str| {
            let container = container(input, c.place);
            container.is_some_and(|c| c.env.iter().flatten().any(|e| e.name == name))
        };
        if !c.keeps_alive && plan.restart_policy != RestartPolicy::Always {
            if !marked(marks::TERMINATE) && !marked(marks::TERMINATE_WITH_IMAGE) {
                env(marks::TERMINATE, "true".to_owned());
            }
            // A marked sidecar that is restarted after each failure never counts, so it needs no mark for
            // that.
            let says = c.dialect == Some(Dialect::Terminator) || marked(marks::TERMINATE_IGNORE_EXIT);
            if c.counts == Counts::No && !says {
                env(marks::TERMINATE_IGNORE_EXIT, "true".to_owned());
            }
        }
        leave_init(plan, i, edits);
    }
    let inits = in_order(plan, |i| kinds[i] == Kind::First);
    arrange(plan, &inits, edits);
}

/// For each container, the longest chain of chosen containers that wait for it. The highest starts first.
fn heights(plan: &Plan, chosen: impl Fn(usize) -> bool) -> Vec<usize> {
    let mut heights = vec![0; plan.containers.len()];
    for i in in_order(plan, &chosen).into_iter().rev() {
        for gate in plan.containers[i].gates.iter().filter(|g| g.need != Need::Launched && chosen(g.on)) {
            heights[gate.on] = heights[gate.on].max(heights[i] + 1);
        }
    }
    heights
}
