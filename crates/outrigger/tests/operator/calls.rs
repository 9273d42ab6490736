//! Least privilege: compares the calls of all earlier scenes with the granted rules.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::Stage;

/// Group, resource with subresource, verb.
type Call = (String, String, String);

fn strings(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(|v| v.as_str().map(str::to_owned)).collect()
}

pub(crate) fn calls_what_it_may_and_nothing_else(stage: &mut Stage) {
    let cluster = &stage.cluster;
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
    // An API server that has just started refuses everything for a moment: it has not read the rules yet.
    let never: Vec<&Call> = refused.difference(&made).collect();
    assert!(never.is_empty(), "calls that were never allowed: {never:?}");
    let forbidden: Vec<&Call> = made.difference(&granted).collect();
    assert!(forbidden.is_empty(), "calls without a rule: {forbidden:?}");
    let unused: Vec<&Call> = granted.difference(&made).collect();
    assert!(unused.is_empty(), "rules without a call: {unused:?}");
}
