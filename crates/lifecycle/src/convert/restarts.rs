//! Whether a Job counts the restarts of sidecars as failures. The defaults of the dialects differ, so a
//! conversion may have to state the previous behaviour in an annotation.

use serde_json::json;

use super::{Difference, Edit};
use crate::dialect::annotations::SIDECAR_RESTARTS;
use crate::plan::{Plan, RestartPolicy, Role};
use crate::source::FieldPath;

/// The edit that keeps what the restarts of sidecars mean for the pod's Job. `None` if no edit is needed, or
/// if one annotation cannot say it for all sidecars.
pub fn keep_restarts(before: &Plan, after: &Plan) -> Option<Edit> {
    if compare_restarts(before, after).is_empty() {
        return None;
    }
    let sidecars = after.containers.iter().filter(|c| c.role == Role::Sidecar);
    let wanted = |name: &str| before.find(name).map(|i| before.containers[i].job_ignores_restarts);
    let mut wanted = sidecars.filter_map(|c| wanted(&c.name));
    let first = wanted.next()?;
    let value = if first { "Ignore" } else { "Count" };
    wanted
        .all(|other| other == first)
        .then(|| Edit::Set { path: FieldPath::annotation(SIDECAR_RESTARTS), value: json!(value) })
}

/// The containers of a Job's pod whose restarts count only before or only after the conversion. Jobs count
/// restarts only with restartPolicy OnFailure.
pub fn compare_restarts(before: &Plan, after: &Plan) -> Vec<Difference> {
    if before.restart_policy != RestartPolicy::OnFailure {
        return Vec::new();
    }
    let differs = |c: &&crate::plan::ContainerPlan| {
        let new = after.find(&c.name).map(|i| after.containers[i].job_ignores_restarts);
        new.is_some_and(|new| new != c.job_ignores_restarts)
    };
    let tell = |c: &crate::plan::ContainerPlan| {
        let how = if c.job_ignores_restarts { "now count" } else { "no longer count" };
        let text = format!("restarts of `{}` {how} against the Job's backoffLimit", c.name);
        Difference { loss: true, place: c.place, text }
    };
    before.containers.iter().filter(differs).map(tell).collect()
}
