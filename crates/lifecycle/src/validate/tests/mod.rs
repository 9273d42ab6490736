//! Tests of validation, one table per subject. A row has a spec and exactly the findings about it.

mod containers;
mod levels;
mod plans;
mod pods;
mod section8;
mod volumes;

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::{validate, validate_job};
use crate::source::{FeatureGates, Finding, PodInput, Severity};

/// (code, path, part of the message)
type Expected = (&'static str, &'static str, &'static str);

fn pod_of(value: Value) -> PodInput {
    let pod: Pod = serde_json::from_value(value).expect("a pod");
    PodInput { pod, ..PodInput::default() }
}

fn pod(spec: Value) -> PodInput {
    pod_of(json!({"metadata": {"name": "p"}, "spec": spec}))
}

/// A pod of one container with additional fields.
fn app(fields: Value) -> Value {
    let mut container = json!({"name": "app", "image": "i:1"});
    merge(&mut container, fields);
    json!({"containers": [container]})
}

/// A pod of one valid container and an init entry with additional fields.
fn init(fields: Value) -> Value {
    let mut container = json!({"name": "first", "image": "i:1"});
    merge(&mut container, fields);
    json!({"initContainers": [container], "containers": [{"name": "app", "image": "i:1"}]})
}

/// A pod of one valid container, with additional fields in the spec.
fn spec(fields: Value) -> Value {
    let mut spec = app(json!({}));
    merge(&mut spec, fields);
    spec
}

fn merge(into: &mut Value, from: Value) {
    let (Value::Object(into), Value::Object(from)) = (into, from) else { panic!("only objects merge") };
    into.extend(from);
}

fn assert_findings(what: &str, found: &[Finding], expected: &[Expected]) {
    let shown: Vec<String> = found.iter().map(|f| format!("{} {} {}", f.code, f.path, f.message)).collect();
    assert_eq!(found.len(), expected.len(), "{what}: {shown:#?}");
    for (finding, (code, path, part)) in found.iter().zip(expected) {
        let same =
            finding.code == *code && finding.path.to_string() == *path && finding.message.contains(part);
        assert!(same, "{what}: expected {code} {path} …{part}…, got {shown:#?}");
        // Messages are one sentence in lower case. Hints and related paths are never empty.
        assert!(!finding.message.ends_with('.'), "{what}: {}", finding.message);
        assert!(finding.hint.as_deref() != Some(""), "{what}");
        assert!(finding.related.iter().all(|(_, label)| !label.is_empty()), "{what}");
    }
}

/// Checks rows of a spec and its exact findings, in order.
fn check(rows: Vec<(Value, Vec<Expected>)>) {
    for (spec, expected) in rows {
        let found = validate(&pod(spec.clone()), &FeatureGates::default());
        assert_findings(&spec.to_string(), &found, &expected);
    }
}

/// The hint of the only finding about a spec.
fn hint(spec: Value) -> String {
    let found = validate(&pod(spec), &FeatureGates::default());
    assert_eq!(found.len(), 1, "{found:#?}");
    found[0].hint.clone().unwrap_or_default()
}

/// The related paths of the only finding about a spec.
fn related(spec: Value) -> Vec<String> {
    let found = validate(&pod(spec), &FeatureGates::default());
    assert_eq!(found.len(), 1, "{found:#?}");
    found[0].related.iter().map(|(path, _)| path.to_string()).collect()
}

#[test]
fn a_good_pod_has_no_findings() {
    let probe = json!({"httpGet": {"path": "/", "port": "web", "scheme": "HTTP"}, "periodSeconds": 5});
    let good = pod_of(json!({
        "metadata": {
            "name": "good.pod", "namespace": "default",
            "labels": {"app.kubernetes.io/name": "Good_1", "empty": ""}, "annotations": {"note": "any Text!"},
        },
        "spec": {
            "restartPolicy": "OnFailure", "terminationGracePeriodSeconds": 30, "dnsPolicy": "ClusterFirst",
            "schedulerName": "default-scheduler", "serviceAccountName": "default", "enableServiceLinks": true,
            "securityContext": {
                "runAsUser": 1000, "runAsNonRoot": true, "fsGroup": 5, "seccompProfile": {"type": "RuntimeDefault"},
                "sysctls": [{"name": "net.core.somaxconn", "value": "1024"}, {"name": "kernel/shm_rmid_forced", "value": "1"}],
            },
            "hostAliases": [{"ip": "127.0.0.1", "hostnames": ["a.local"]}, {"ip": "::1", "hostnames": ["b"]}],
            "initContainers": [
                {"name": "setup", "image": "i:1", "command": ["true"], "volumeMounts": [{"name": "data", "mountPath": "/data"}]},
                {
                    "name": "proxy", "image": "reg.example:5000/proxy@sha256:01", "restartPolicy": "Always",
                    "startupProbe": {"tcpSocket": {"port": 9000}, "successThreshold": 1, "terminationGracePeriodSeconds": 3},
                    "lifecycle": {"preStop": {"sleep": {"seconds": 30}}, "postStart": {"exec": {"command": ["true"]}}},
                    "ports": [{"containerPort": 9000, "hostPort": 9000}],
                    "restartPolicyRules": [{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}],
                },
            ],
            "containers": [{
                "name": "app", "image": "i:1", "imagePullPolicy": "IfNotPresent", "workingDir": "/srv",
                "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
                "env": [
                    {"name": "A"}, {"name": "B.c-d", "value": "$(A)"},
                    {"name": "POD_IP", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.podIP"}}},
                    {"name": "L", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app.kubernetes.io/name']"}}},
                    {"name": "M", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}},
                    {"name": "K", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                ],
                "envFrom": [{"prefix": "X_", "configMapRef": {"name": "c"}}],
                "ports": [{"name": "web", "containerPort": 80, "protocol": "TCP"}, {"containerPort": 80, "protocol": "UDP"}],
                "livenessProbe": probe, "readinessProbe": {"grpc": {"port": 5000}, "successThreshold": 3},
                "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"cpu": "1", "memory": "64Mi"}},
                "securityContext": {"capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}, "allowPrivilegeEscalation": false},
                "volumeMounts": [
                    {"name": "data", "mountPath": "/data", "subPath": "today"}, {"name": "host", "mountPath": "/host"},
                    {"name": "config", "mountPath": "/etc/app", "readOnly": true}, {"name": "all", "mountPath": "/all"},
                    {"name": "claim", "mountPath": "/claim"},
                ],
            }],
            "ephemeralContainers": [{"name": "debug", "image": "i:1", "targetContainerName": "app"}],
            "volumes": [
                {"name": "data", "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}},
                {"name": "host", "hostPath": {"path": "/srv", "type": "Directory"}},
                {"name": "config", "configMap": {"name": "c", "defaultMode": 420, "items": [{"key": "a", "path": "b/c"}]}},
                {"name": "claim", "persistentVolumeClaim": {"claimName": "c"}},
                {"name": "all", "projected": {"sources": [
                    {"secret": {"name": "s"}},
                    {"downwardAPI": {"items": [
                        {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
                        {"path": "cpu", "resourceFieldRef": {"containerName": "app", "resource": "requests.cpu"}},
                    ]}},
                ]}},
            ],
        },
    }));
    assert_findings("good", &validate(&good, &FeatureGates::default()), &[]);
    assert_findings("good job", &validate_job(&good, false), &[]);
}

#[test]
fn findings_are_sorted_by_place_and_errors_come_first() {
    let found = validate(
        &pod(json!({
            "containers": [{"name": "b", "image": ""}, {"name": "b", "image": "i:1"}],
            "activeDeadlineSeconds": 0,
            "nodeSelector": {"a": "b"},
        })),
        &FeatureGates::default(),
    );
    let shown: Vec<String> = found.iter().map(|f| f.path.to_string()).collect();
    assert_eq!(
        shown,
        [
            "spec.activeDeadlineSeconds",
            "spec.containers[0].image",
            "spec.containers[1].name",
            "spec.nodeSelector"
        ]
    );
    assert_eq!(found[3].severity, Severity::Warning);
}

#[test]
fn nothing_makes_it_panic() {
    assert_findings(
        "no spec",
        &validate(&PodInput::default(), &FeatureGates::default()),
        &[("spec", "spec", "no spec")],
    );
    // Replaces every text and number of a rich pod, one after the other, by hostile values.
    let rich = json!({
        "metadata": {"name": "p", "annotations": {"outrigger.dev/depends-on": "app: s ready"}},
        "spec": {
            "terminationGracePeriodSeconds": 5, "activeDeadlineSeconds": 5, "restartPolicy": "Never",
            "initContainers": [{"name": "s", "image": "i", "restartPolicy": "Always", "ports": [{"containerPort": 1, "hostPort": 1}]}],
            "containers": [{
                "name": "app", "image": "i",
                "env": [{"name": "KRUISE_CONTAINER_PRIORITY", "value": "1"}],
                "resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}},
                "lifecycle": {"preStop": {"sleep": {"seconds": 1}}, "stopSignal": "SIGTERM"},
                "readinessProbe": {"httpGet": {"port": 80, "path": "/"}, "initialDelaySeconds": 1, "periodSeconds": 1,
                    "successThreshold": 1, "failureThreshold": 1, "timeoutSeconds": 1},
                "securityContext": {"runAsUser": 1, "capabilities": {"add": ["CHOWN"]}},
                "volumeMounts": [{"name": "v", "mountPath": "/v", "subPath": "a"}],
                "restartPolicy": "Never",
                "restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "In", "values": [1]}}],
            }],
            "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Gi"}}],
        },
    });
    let mut places = Vec::new();
    leaves(&rich, String::new(), &mut places);
    let long = "x".repeat(100_000);
    let texts =
        ["", " ", "-", "--", "/", "..", "\0", "é", "\u{202e}", "1e9999", "-9223372036854775808", &long];
    let numbers = [0, -1, i64::from(i32::MIN), i64::from(i32::MAX), i64::MIN, i64::MAX];
    let mut checked = 0;
    for place in &places {
        let hostile = texts.iter().map(|t| json!(t)).chain(numbers.iter().map(|n| json!(n)));
        for value in hostile {
            let mut changed = rich.clone();
            *changed.pointer_mut(place).unwrap() = value;
            // The manifest reader has already refused values that do not fit the types.
            let Ok(pod) = serde_json::from_value::<Pod>(changed) else { continue };
            let input = PodInput { pod, ..PodInput::default() };
            for finding in validate(&input, &FeatureGates::default()) {
                assert!(
                    finding.message.len() < 1_000,
                    "{place}: a message of {} bytes",
                    finding.message.len()
                );
                assert!(!finding.message.contains(['\0', '\n']), "{place}: {}", finding.message);
            }
            validate_job(&input, true);
            checked += 1;
        }
    }
    assert!(checked > 300, "{checked}");
}

#[test]
fn long_lists_take_no_longer_than_their_length() {
    // If a check takes quadratic time, this test does not finish.
    let n = 30_000;
    let ports: Vec<Value> =
        (0..n).map(|i| json!({"containerPort": i % 60_000 + 1, "hostPort": i % 60_000 + 1, "name": format!("p-{i}")})).collect();
    let volumes: Vec<Value> = (0..n).map(|i| json!({"name": format!("v-{i}"), "emptyDir": {}})).collect();
    let mounts: Vec<Value> =
        (0..n).map(|i| json!({"name": format!("w-{i}"), "mountPath": format!("/{i}")})).collect();
    let env: Vec<Value> = (0..n).map(|i| json!({"name": "A", "value": i.to_string()})).collect();
    let mut big = app(json!({"ports": ports, "volumeMounts": mounts, "env": env}));
    big["volumes"] = json!(volumes);
    let found = validate(&pod(big), &FeatureGates::default());
    assert_eq!(found.len(), n + n + (n - 1), "mounts of nothing, volumes of nobody, hidden variables");
}

fn leaves(value: &Value, at: String, out: &mut Vec<String>) {
    match value {
        Value::Object(map) => map.iter().for_each(|(key, v)| {
            leaves(v, format!("{at}/{}", key.replace('~', "~0").replace('/', "~1")), out);
        }),
        Value::Array(list) => list.iter().enumerate().for_each(|(i, v)| leaves(v, format!("{at}/{i}"), out)),
        _ => out.push(at),
    }
}
