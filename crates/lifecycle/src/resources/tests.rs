//! Rows of docs/internals/spec/kubelet-lifecycle.md sections 12.18 and 12.19, and of 9.1 to 9.3.
//!
//! R9.5 (sums over resized status resources) does not apply: containers are not resized in place.

use k8s_openapi::api::core::v1::PodSpec;
use serde_json::{Value, json};

use super::*;
use crate::status::fixtures;

/// A pod of containers given as `name: request`. The first letter of a name sets its role, as in
/// [`fixtures::spec`].
fn asking(resource: &str, containers: &[(&str, &str)]) -> (PodSpec, Plan) {
    let names: Vec<&str> = containers.iter().map(|(name, _)| *name).collect();
    let mut spec = fixtures::spec("Always", &names);
    for list in ["initContainers", "containers"] {
        for c in spec[list].as_array_mut().into_iter().flatten() {
            let (_, amount) = containers.iter().find(|(name, _)| c["name"] == *name).expect("named");
            if !amount.is_empty() {
                c["resources"] = json!({"requests": {resource: amount}});
            }
        }
    }
    built(spec)
}

fn built(spec: Value) -> (PodSpec, Plan) {
    let pod = fixtures::pod(spec);
    let plan = fixtures::kep_plan(pod.clone(), &[]);
    (pod.spec.expect("a spec"), plan)
}

fn total(containers: &[(&str, &str)]) -> String {
    let (spec, plan) = asking("cpu", containers);
    effective(&spec, &plan).requests["cpu"].to_string()
}

#[test]
fn table_12_18() {
    for (row, containers, expect) in [
        (1, &[("s", "1"), ("r", "1")][..], "2"),
        (2, &[("i", "5"), ("s1", "1"), ("s2", "2"), ("s3", "3"), ("r", "1")][..], "7"),
        (3, &[("i1", "5"), ("s1", "1"), ("s2", "2"), ("i2", "5"), ("s3", "3"), ("r", "1")][..], "8"),
        (4, &[("s", "10"), ("i", "200"), ("r", "100")][..], "210"),
    ] {
        assert_eq!(total(containers), expect, "12.18 row {row}");
    }
}

#[test]
fn the_worked_example_of_9_1() {
    for (init_b, expect) in [("3", "6250m"), ("6", "7250m")] {
        let (mut spec, plan) = asking(
            "cpu",
            &[
                ("init-a", "4"),
                ("sc-1", "1"),
                ("init-b", init_b),
                ("sc-2", "2"),
                ("init-c", "1"),
                ("web", "2"),
                ("cache", "1"),
            ],
        );
        spec.overhead = Some([("cpu".to_owned(), Quantity("250m".to_owned()))].into());
        let totals = effective(&spec, &plan);
        assert_eq!(totals.requests["cpu"].to_string(), expect);
        assert!(totals.limits.is_empty(), "R9.3: no limit, none from the overhead");
    }
}

#[test]
fn limits_and_pod_level_values_r9_3_and_r9_4() {
    let (spec, plan) = built(json!({
        "overhead": {"cpu": "100m", "memory": "10Mi"},
        "resources": {"requests": {"memory": "1Gi"}},
        "containers": [
            {"name": "a", "resources": {"requests": {"cpu": "1", "memory": "64Mi"}, "limits": {"cpu": "2"}}},
            {"name": "b", "resources": {"requests": {"example.com/gpu": "1"}}},
        ],
    }));
    let totals = effective(&spec, &plan);
    let text = |amounts: &Amounts| -> Vec<String> {
        amounts.iter().map(|(name, amount)| format!("{name}={amount}")).collect()
    };
    assert_eq!(text(&totals.requests), ["cpu=1100m", "example.com/gpu=1", "memory=1034Mi"]);
    assert_eq!(text(&totals.limits), ["cpu=2100m"]);
}

#[test]
fn sidecars_among_the_containers_count_with_the_mains() {
    let (spec, _) = asking("cpu", &[("i", "4"), ("a", "1"), ("b", "2")]);
    let pod = k8s_openapi::api::core::v1::Pod { spec: Some(spec.clone()), ..Default::default() };
    let plan = fixtures::kep_plan(pod, &[1]);
    assert_eq!(effective(&spec, &plan).requests["cpu"].to_string(), "4");
    let (spec, plan) = asking("cpu", &[("i", "2"), ("a", "1"), ("b", "2")]);
    assert_eq!(effective(&spec, &plan).requests["cpu"].to_string(), "3");
}

#[test]
fn what_gates_let_run_together_is_added_up() {
    let (spec, mut plan) = asking("cpu", &[("i1", "2"), ("i2", "3"), ("a", "1")]);
    assert_eq!(effective(&spec, &plan).requests["cpu"].to_string(), "3");
    plan.containers[1].gates.clear(); // i2 no longer waits for i1
    plan.containers[2].gates[0].on = 1;
    let mut first = plan.containers[2].gates[0];
    first.on = 0;
    plan.containers[2].gates.push(first);
    assert_eq!(effective(&spec, &plan).requests["cpu"].to_string(), "5");
}

#[test]
fn classes_r9_10_and_r9_11() {
    let both = |cpu: &str, memory: &str| json!({"cpu": cpu, "memory": memory});
    let full = json!({"requests": both("1", "1Gi"), "limits": both("1", "1Gi")});
    let one = |resources: Value| json!({"containers": [{"name": "a", "resources": resources}]});
    for (spec, expect) in [
        (one(json!({})), Qos::BestEffort),
        (one(json!({"requests": {"example.com/gpu": "1"}})), Qos::BestEffort),
        (one(json!({"requests": both("0", "0")})), Qos::BestEffort),
        (one(full.clone()), Qos::Guaranteed),
        (one(json!({"requests": both("1000m", "1024Mi"), "limits": both("1", "1Gi")})), Qos::Guaranteed),
        (one(json!({"requests": both("500m", "1Gi"), "limits": both("1", "1Gi")})), Qos::Burstable),
        (one(json!({"requests": {"cpu": "1"}, "limits": {"cpu": "1"}})), Qos::Burstable),
        (one(json!({"limits": both("1", "1Gi")})), Qos::Burstable),
        // Every container must be limited, init entries included.
        (
            json!({"initContainers": [{"name": "i"}], "containers": [{"name": "a", "resources": full}]}),
            Qos::Burstable,
        ),
        // If there are pod-level values, only those count.
        (json!({"resources": full, "containers": [{"name": "a"}]}), Qos::Guaranteed),
        (
            json!({"resources": {"requests": {"cpu": "1"}}, "containers": [{"name": "a", "resources": full}]}),
            Qos::Burstable,
        ),
    ] {
        let pod = fixtures::pod(spec.clone());
        assert_eq!(qos(&pod.spec.expect("a spec")), expect, "{spec}");
    }
}

#[test]
fn table_12_19() {
    const NODE: u64 = 8_000_000_000;
    let of = |spec: &PodSpec, plan: &Plan, node| -> Vec<i32> {
        (0..plan.containers.len()).map(|i| oom_score_adj(spec, plan, i, qos(spec), node)).collect()
    };
    let memory = |containers: &[(&str, &str)]| {
        let (spec, plan) = asking("memory", containers);
        of(&spec, &plan, NODE)
    };
    // 1: a cpu limit only
    let (spec, plan) = built(json!({"containers": [{"name": "a", "resources": {"limits": {"cpu": "1"}}}]}));
    assert_eq!(of(&spec, &plan, NODE), [999], "12.19 row 1");
    assert_eq!(memory(&[("a", "")]), [1000], "12.19 row 2");
    let full = json!({"cpu": "1", "memory": "1Gi"});
    let (mut spec, plan) =
        built(json!({"containers": [{"name": "a", "resources": {"requests": full, "limits": full}}]}));
    assert_eq!(of(&spec, &plan, NODE), [-997], "12.19 row 3");
    spec.containers[0].resources = None;
    spec.priority_class_name = Some("system-node-critical".to_owned());
    assert_eq!(of(&spec, &plan, NODE), [-997], "12.19 row 3, node-critical");
    assert_eq!(memory(&[("a", "7999999000")]), [3], "12.19 row 4");
    let eighth = "1000000000";
    for (row, sidecar, expect) in
        [(5, "400000000", [875, 875, 875]), (6, eighth, [875, 875, 875]), (7, "4000000000", [875, 500, 875])]
    {
        let all = memory(&[("i", eighth), ("s", sidecar), ("r", eighth)]);
        assert_eq!(all, expect, "12.19 row {row}");
    }
    // 8 and 9: requests of the pod beyond those of its containers are shared (R9.24)
    let (mut spec, plan) = asking("memory", &[("s", ""), ("r", "")]);
    spec.resources = pod_memory("2000000000");
    assert_eq!(of(&spec, &plan, 4_000_000_000), [750, 750], "12.19 row 8");
    let (mut spec, plan) = asking("memory", &[("s", "200M"), ("r1", "1G"), ("r2", "500M")]);
    spec.resources = pod_memory("2000000000");
    assert_eq!(of(&spec, &plan, 4_000_000_000), [850, 725, 850], "12.19 row 9");
}

fn pod_memory(bytes: &str) -> Option<ResourceRequirements> {
    let requests = Some([("memory".to_owned(), Quantity(bytes.to_owned()))].into());
    Some(ResourceRequirements { requests, ..Default::default() })
}
