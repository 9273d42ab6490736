//! Tests cgroups, delegated to the user or not.

use serde_json::json;

use crate::run::{Bench, Run, Test};
use crate::{scripted, succeeds};

pub(crate) const NONE: &[(&str, Test)] =
    &[("limits_that_do_not_apply_are_said", limits_that_do_not_apply_are_said)];
pub(crate) const OWN: &[(&str, Test)] =
    &[("limits_apply_in_cgroups_of_its_own", limits_apply_in_cgroups_of_its_own)];

fn limits_that_do_not_apply_are_said(bench: &Bench, name: &str) {
    let container = json!({"resources": {"limits": {"memory": "64Mi"}}});
    let run = succeeds(bench, name, &scripted(bench, "true", container, json!({})), &[]);
    let said = run.said();
    assert_eq!(said.matches("the limits of `main` do not apply on this machine").count(), 1, "{said}");
    assert_eq!(said.matches("no memory cgroup is delegated to this user").count(), 1, "{said}");
}

fn limits_apply_in_cgroups_of_its_own(bench: &Bench, name: &str) {
    let container = json!({"resources": {"limits": {"memory": "32Mi"}}});
    let script = "exec tail -c 200000000 /dev/zero";
    let mut run = Run::start(bench, name, &scripted(bench, script, container, json!({})), &[]);
    assert_eq!(run.end(), 137, "{}", run.account());
    let status = run.status();
    let state = &status["status"]["containerStatuses"][0]["state"]["terminated"];
    assert_eq!(state["reason"], "OOMKilled", "{}", run.account());
    assert!(!run.said().contains("do not apply"), "{}", run.said());
}
