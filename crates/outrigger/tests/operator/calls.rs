//! Checks least privilege: compares the operator's calls with the rules that it was granted.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::cluster::Cluster;
use crate::{Scene, Stage, breaks, hostile, scenes};

/// The API group, the resource with its subresource, and the verb.
type Call = (String, String, String);

fn strings(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(|v| v.as_str().map(str::to_owned)).collect()
}

fn granted(cluster: &Cluster) -> BTreeSet<Call> {
    let mut granted = BTreeSet::new();
    for what in [
        &["clusterrole", "outrigger-operator"][..],
        &["role", "outrigger-operator", "-n", "outrigger-system"],
    ] {
        let role = cluster.get(what).expect("the role");
        for rule in role["rules"].as_array().expect("rules") {
            for group in strings(&rule["apiGroups"]) {
                for resource in strings(&rule["resources"]) {
                    for verb in strings(&rule["verbs"]) {
                        assert!(verb != "*" && resource != "*", "no wildcards");
                        granted.insert((group.clone(), resource.clone(), verb));
                    }
                }
            }
        }
    }
    granted
}

/// The calls since the cluster was started, as those that were answered and those that were refused.
fn calls(cluster: &Cluster) -> (BTreeSet<Call>, BTreeSet<Call>) {
    let (mut made, mut refused): (BTreeSet<Call>, BTreeSet<Call>) = Default::default();
    for entry in cluster.audit() {
        let who = entry["user"]["username"].as_str().unwrap_or_default();
        let what = &entry["objectRef"];
        if !who.ends_with(":outrigger-operator") || !what["resource"].is_string() {
            continue;
        }
        let text = |field: &str| what[field].as_str().unwrap_or_default().to_owned();
        let resource = match text("subresource") {
            sub if sub.is_empty() => text("resource"),
            sub => format!("{}/{sub}", text("resource")),
        };
        let call = (text("apiGroup"), resource, entry["verb"].as_str().unwrap_or_default().to_owned());
        match entry["responseStatus"]["code"].as_i64() {
            Some(403) => refused.insert(call),
            _ => made.insert(call),
        };
    }
    (made, refused)
}

/// Checks after every scene that the operator has made no call that it is not allowed to make.
pub(crate) fn assert_allowed(stage: &Stage) {
    let (made, refused) = calls(&stage.cluster);
    // An API server that has just started refuses everything for a moment, because it has not read the rules
    // yet.
    let never: Vec<&Call> = refused.difference(&made).collect();
    assert!(never.is_empty(), "calls that were never allowed: {never:?}");
    let granted = granted(&stage.cluster);
    let forbidden: Vec<&Call> = made.difference(&granted).collect();
    assert!(forbidden.is_empty(), "calls without a rule: {forbidden:?}");
}

/// Checks that every rule is needed by a call. This needs all of these scenes.
pub(crate) fn calls_all_that_it_may(stage: &mut Stage) {
    let all: [(&str, Scene); 5] = [
        ("opens_levels_in_order", scenes::opens_levels_in_order),
        ("ends_sidecars", scenes::ends_sidecars),
        ("keeps_requests_in_order", scenes::keeps_requests_in_order),
        ("takes_over_from_kruise", hostile::takes_over_from_kruise),
        ("certificates_are_renewed", breaks::certificates_are_renewed),
    ];
    for (name, scene) in all {
        stage.begin(&format!("{name}-again"));
        scene(stage);
    }
    let (made, _) = calls(&stage.cluster);
    let granted = granted(&stage.cluster);
    let unused: Vec<&Call> = granted.difference(&made).collect();
    assert!(unused.is_empty(), "rules without a call: {unused:?}");
}
