//! Findings about metadata, fields of the spec, fields without effect, and Kruise's variables.

use serde_json::{Value, json};

use super::*;
use crate::plan::CONTAINERS_MAX;

fn check_metadata(metadata: Value, expected: Vec<Expected>) {
    let input = pod_of(json!({"metadata": metadata, "spec": app(json!({}))}));
    assert_findings(&metadata.to_string(), &validate(&input, &FeatureGates::default()), &expected);
}

#[test]
fn metadata() {
    check_metadata(json!({"name": "a.b-c"}), vec![]);
    check_metadata(json!({"generateName": "a-"}), vec![]);
    check_metadata(json!({}), vec![("name", "metadata.name", "no name")]);
    check_metadata(
        json!({"name": "My_Pod"}),
        vec![("name", "metadata.name", "`My_Pod` must consist of lower case")],
    );
    check_metadata(json!({"name": "x".repeat(254)}), vec![("name", "metadata.name", "longer than 253")]);
    check_metadata(json!({"name": "a", "namespace": "a.b"}), vec![("name", "metadata.namespace", "`a.b`")]);
    check_metadata(
        json!({"name": "a", "labels": {"a b": "x", "ok": "no good", "x/y/z": ""}}),
        vec![
            ("label", "metadata.labels.a b", "label key `a b`"),
            ("label", "metadata.labels.ok", "value `no good`"),
            ("label", "metadata.labels[x/y/z]", "`x/y/z`"),
        ],
    );
    check_metadata(
        json!({"name": "a", "annotations": {"-": ""}}),
        vec![("label", "metadata.annotations.-", "`-`")],
    );
    check_metadata(
        json!({"name": "a", "annotations": {"big": "x".repeat(300_000)}}),
        vec![("limit", "metadata.annotations", "300003 bytes")],
    );
}

#[test]
fn fields_of_the_spec() {
    check(vec![
        (
            spec(json!({"activeDeadlineSeconds": 0})),
            vec![("deadline", "spec.activeDeadlineSeconds", "0 is not between 1")],
        ),
        (
            spec(json!({"activeDeadlineSeconds": 1i64 << 31})),
            vec![("deadline", "spec.activeDeadlineSeconds", "2147483648")],
        ),
        (spec(json!({"os": {"name": "windows"}})), vec![("os", "spec.os.name", "`windows`")]),
        (
            spec(json!({"shareProcessNamespace": true, "hostPID": true})),
            vec![("namespaces", "spec.shareProcessNamespace", "cannot be combined")],
        ),
        (spec(json!({"shareProcessNamespace": false, "hostPID": true})), vec![]),
        (spec(json!({"hostname": "a.b"})), vec![("name", "spec.hostname", "`a.b`")]),
        (spec(json!({"subdomain": "A"})), vec![("name", "spec.subdomain", "`A`")]),
        (
            spec(json!({"dnsPolicy": "None"})),
            vec![("dns", "spec.dnsConfig.nameservers", "at least one name server")],
        ),
        (spec(json!({"dnsPolicy": "None", "dnsConfig": {"nameservers": ["1.1.1.1"]}})), vec![]),
        (spec(json!({"dnsPolicy": "clusterfirst"})), vec![("dns", "spec.dnsPolicy", "`clusterfirst`")]),
        (
            spec(
                json!({"dnsConfig": {"nameservers": ["1.1.1.1", "::1", "x", "2.2.2.2"], "options": [{"value": "1"}]}}),
            ),
            vec![
                ("dns", "spec.dnsConfig.nameservers", "4 name servers"),
                ("dns", "spec.dnsConfig.nameservers[2]", "`x` is not an IP address"),
                ("dns", "spec.dnsConfig.options[0].name", "needs a name"),
            ],
        ),
        (
            spec(json!({"hostAliases": [{"ip": "300.1.1.1", "hostnames": ["ok", "a_b"]}]})),
            vec![
                ("dns", "spec.hostAliases[0].hostnames[1]", "`a_b`"),
                ("dns", "spec.hostAliases[0].ip", "`300.1.1.1`"),
            ],
        ),
    ]);
    assert_eq!(related(spec(json!({"shareProcessNamespace": true, "hostPID": true}))), ["spec.hostPID"]);
}

#[test]
fn names_and_number_of_containers() {
    let of = |name: &str| json!({"name": name, "image": "i:1"});
    check(vec![
        (json!({"containers": [of("")]}), vec![("name", "spec.containers[0].name", "has no name")]),
        (json!({"containers": [of("My App")]}), vec![("name", "spec.containers[0].name", "`My App`")]),
        (json!({"containers": [of(&"x".repeat(63))]}), vec![]),
        (
            json!({"containers": [of(&"x".repeat(64))]}),
            vec![("name", "spec.containers[0].name", "longer than 63")],
        ),
    ]);
    assert_eq!(hint(json!({"containers": [of("My App")]})), "for example `my-app`");
    let many = |n: usize| json!({"containers": (0..n).map(|i| of(&format!("c{i}"))).collect::<Vec<_>>()});
    check(vec![
        (many(CONTAINERS_MAX), vec![]),
        (many(CONTAINERS_MAX + 1), vec![("limit", "spec.containers", "257 containers, more than 256")]),
    ]);
}

#[test]
fn what_has_no_effect_is_said() {
    let rows = [
        ("affinity", json!({"nodeAffinity": {}}), "no scheduler"),
        ("nodeSelector", json!({"a": "b"}), "no scheduler"),
        ("preemptionPolicy", json!("Never"), "no scheduler"),
        ("priority", json!(5), "no scheduler"),
        ("priorityClassName", json!("high"), "no scheduler"),
        ("schedulerName", json!("mine"), "no scheduler"),
        ("schedulingGates", json!([{"name": "a"}]), "no scheduler"),
        ("tolerations", json!([{"operator": "Exists"}]), "no scheduler"),
        (
            "topologySpreadConstraints",
            json!([{"maxSkew": 1, "topologyKey": "a", "whenUnsatisfiable": "DoNotSchedule"}]),
            "no scheduler",
        ),
        ("automountServiceAccountToken", json!(true), "no API server"),
        ("serviceAccountName", json!("robot"), "no API server"),
        ("resourceClaims", json!([{"name": "gpu"}]), "device drivers"),
        ("readinessGates", json!([{"conditionType": "x"}]), "never be Ready"),
    ];
    for (field, value, part) in rows {
        let mut fields = json!({});
        fields[field] = value;
        let found = validate(&pod(spec(fields)), &FeatureGates::default());
        assert_findings(field, &found, &[("ignored", format!("spec.{field}").leak(), part)]);
        assert_eq!(found[0].severity, Severity::Warning);
    }
    let given_to_all = json!([
        {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"},
        {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"},
    ]);
    check(vec![
        (spec(json!({"nodeSelector": {}, "tolerations": [], "hostUsers": true, "priority": 0})), vec![]),
        (spec(json!({"hostUsers": true, "hostNetwork": true, "hostPID": true, "hostIPC": true})), vec![]),
        (spec(json!({"hostUsers": false, "hostNetwork": false})), vec![]),
        (spec(json!({"hostUsers": false, "securityContext": {"runAsUser": 65_535}})), vec![]),
        (spec(json!({"securityContext": {"runAsUser": 65_536}})), vec![]),
        (
            spec(json!({"hostUsers": false, "securityContext":
                {"runAsUser": 65_536, "fsGroup": 70_000, "supplementalGroups": [1, 80_000]}})),
            vec![
                ("security", "spec.securityContext.fsGroup", "0 to 65535"),
                ("security", "spec.securityContext.runAsUser", "runAsUser 65536 does not exist"),
                ("security", "spec.securityContext.supplementalGroups[1]", "80000"),
            ],
        ),
        (
            spec(json!({"hostUsers": false, "hostNetwork": true})),
            vec![("security", "spec.hostUsers", "with hostNetwork")],
        ),
        (
            spec(json!({"hostUsers": false, "hostPID": true})),
            vec![("security", "spec.hostUsers", "with hostPID")],
        ),
        (
            spec(json!({"hostUsers": false, "hostIPC": true})),
            vec![("security", "spec.hostUsers", "with hostIPC")],
        ),
        (spec(json!({"tolerations": given_to_all, "preemptionPolicy": "PreemptLowerPriority"})), vec![]),
        // The pod was exported from a cluster.
        (
            spec(
                json!({"nodeName": "node-7", "nodeSelector": {"a": "b"}, "tolerations": [{"operator": "Exists"}],
                "priority": 5, "serviceAccountName": "robot", "hostUsers": false}),
            ),
            vec![],
        ),
        (
            app(json!({"resources": {"limits": {"ephemeral-storage": "1Gi"}}})),
            vec![("ignored", "spec.containers[0].resources.limits.ephemeral-storage", "only cpu and memory")],
        ),
        (
            app(json!({"resources": {"limits": {"nvidia.com/gpu": "1"}, "claims": [{"name": "a"}]}})),
            vec![
                ("ignored", "spec.containers[0].resources.claims", "no effect"),
                ("ignored", "spec.containers[0].resources.limits[nvidia.com/gpu]", "only cpu and memory"),
            ],
        ),
        (
            app(json!({"volumeDevices": [{"name": "x", "devicePath": "/dev/x"}]})),
            vec![("volume", "spec.containers[0].volumeDevices", "no block volumes")],
        ),
    ]);
}

#[test]
fn kruise_variables_without_effect() {
    let of = |name: &str, env: Value| json!({"name": name, "image": "i:1", "env": env});
    let priority = |n: &str| json!([{"name": "KRUISE_CONTAINER_PRIORITY", "value": n}]);
    check(vec![
        (
            json!({"containers": [of("a", priority("5"))]}),
            vec![("LP-3", "spec.containers[0].env[0].value", "one container")],
        ),
        (json!({"containers": [of("a", priority("5")), of("b", json!([]))]}), vec![]),
        (
            json!({"containers": [of("a", priority("5")), of("b", priority("5"))]}),
            vec![("LP-7", "spec.containers[0].env[0].value", "priority 5: nothing is ordered")],
        ),
        (
            json!({"containers": [of("a", priority("0")), of("b", json!([]))]}),
            vec![("LP-7", "spec.containers[0].env[0].value", "priority 0")],
        ),
        (
            json!({"containers": [of("a", json!([{"name": "KRUISE_CONTAINER_BARRIER", "value": "x"}]))]}),
            vec![("LP-10", "spec.containers[0].env[0].name", "left out here")],
        ),
        (
            json!({"containers": [of("a", json!([{"name": "KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT", "value": "yes"}]))]}),
            vec![("ST-1", "spec.containers[0].env[0].value", "`yes`")],
        ),
        (
            json!({"containers": [of("a", json!([{"name": "KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT", "value": "TRUE"}]))]}),
            vec![],
        ),
        (
            json!({"containers": [of("a", json!([{"name": "KRUISE_CONTAINER_PRIORTY", "value": "5"}])), of("b", json!([]))]}),
            vec![("kruise-variable", "spec.containers[0].env[0].name", "not a variable of Kruise")],
        ),
        (
            json!({"containers": [of("a", json!([{"name": "kruise_terminate_sidecar_when_job_exit", "value": "true"}]))]}),
            vec![("kruise-variable", "spec.containers[0].env[0].name", "has no effect")],
        ),
        (json!({"containers": [of("a", json!([{"name": "KRUISE_WORKSPACE", "value": "x"}]))]}), vec![]),
    ]);
    let typo = of("a", json!([{"name": "KRUISE_CONTAINER_PRIORTY", "value": "5"}]));
    assert_eq!(hint(json!({"containers": [typo]})), "did you mean KRUISE_CONTAINER_PRIORITY?");
    let ordered = pod_of(json!({
        "metadata": {"name": "p", "annotations": {"apps.kruise.io/container-launch-priority": "Ordered"}},
        "spec": app(json!({})),
    }));
    let found = validate(&ordered, &FeatureGates::default());
    let at = "metadata.annotations[apps.kruise.io/container-launch-priority]";
    assert_findings("ordered", &found, &[("LP-3", at, "one container")]);
}
