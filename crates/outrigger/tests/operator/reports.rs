//! Tests reports of kubelets that are late or out of order, and how requests report the result.

use serde_json::{Value, json};

use crate::Stage;
use crate::cluster::{Cluster, eventually};
use crate::scenes::{
    KILL, container, create, keys, make_node, map_of, pod, report, request_of, wait_for_keys,
};

fn phase(cluster: &Cluster, pod: &str) -> String {
    let pod = cluster.get(&["pod", pod]).expect("the pod");
    pod["status"]["phase"].as_str().unwrap_or_default().to_owned()
}

/// Events of a pod: type, reason, message.
fn events(cluster: &Cluster, pod: &str) -> Vec<(String, String, String)> {
    let selector = format!("involvedObject.name={pod}");
    let found = cluster.get(&["events", "--field-selector", &selector]).expect("events");
    let text = |event: &Value, field: &str| event[field].as_str().unwrap_or_default().to_owned();
    let events = found["items"].as_array().expect("a list").iter();
    events.map(|e| (text(e, "type"), text(e, "reason"), text(e, "message"))).collect()
}

/// A Job's pod with the sidecars `a` and `b`. `b` starts once `a` has started.
fn create_job(cluster: &Cluster, name: &str) {
    let containers = json!([container("main", &[]), container("a", &[KILL]), container("b", &[KILL])]);
    create(cluster, &pod(name, json!({"outrigger.dev/depends-on": "b: a started"}), containers));
}

/// Writes the agent's part of a request: the instance of its only container is about to be stopped.
fn prepare_stop(cluster: &Cluster, request: &str, container: &str) {
    let states = json!([{"name": container, "phase": "Pending", "killedContainerID": container}]);
    let patch = json!({"status": {"phase": "Recreating", "containerRecreateStates": states}}).to_string();
    let patched =
        cluster.kubectl(&["patch", "crr", request, "--subresource=status", "--type=merge", "-p", &patch]);
    assert!(patched.status.success(), "{}", String::from_utf8_lossy(&patched.stderr));
}

/// On a busy node, the kubelet reports in one update that the mains are done and that `a` has started. `b`
/// must never start. The result must stay, even if the kubelet writes a status before it has seen the result.
pub(crate) fn late_reports_start_nothing(stage: &mut Stage) {
    let cluster = &stage.cluster;
    make_node(cluster, "machine", json!({}));
    create_job(cluster, "late");
    let map = map_of(cluster, "late");
    eventually("the map is there", || cluster.get(&["configmap", &map]).map(|_| ()));
    report(cluster, "late", "Pending", &[("main", "0"), ("a", "ready"), ("b", "waiting")]);
    let request = eventually("a request for `a`", || request_of(cluster, "late"));
    assert_eq!(request["spec"]["containers"].as_array().map(Vec::len), Some(1), "{request}");
    let request = request["metadata"]["name"].as_str().expect("a name").to_owned();
    prepare_stop(cluster, &request, "a");
    eventually("the pod has its result", || (phase(cluster, "late") == "Succeeded").then_some(()));
    assert_eq!(keys(cluster, &map), Vec::<String>::new(), "the key of `b` was published");
    // The kubelet has computed this status before it saw the result.
    report(cluster, "late", "Pending", &[("main", "0"), ("a", "ready"), ("b", "waiting")]);
    assert_eq!(phase(cluster, "late"), "Succeeded");
    report(cluster, "late", "Failed", &[("main", "0"), ("a", "143"), ("b", "143")]);
    assert_eq!(phase(cluster, "late"), "Succeeded");
    let late = cluster.get(&["pod", "late"]).expect("the pod");
    let code = &late["status"]["containerStatuses"][1]["state"]["terminated"]["exitCode"];
    assert_eq!(*code, 143, "the rest of what it reports is taken");
    let killing = format!("Stopping container a by ContainerRecreateRequest {request}");
    eventually("the stop is told", || {
        let found = events(cluster, "late");
        found.iter().any(|(_, reason, message)| reason == "Killing" && *message == killing).then_some(())
    });
    // A key was published in time, and the kubelet has not used it.
    create_job(cluster, "withdrawn");
    let map = map_of(cluster, "withdrawn");
    report(cluster, "withdrawn", "Pending", &[("main", "running"), ("a", "ready"), ("b", "waiting")]);
    wait_for_keys(cluster, &map, &["g_b"]);
    report(cluster, "withdrawn", "Pending", &[("main", "0"), ("a", "ready"), ("b", "waiting")]);
    wait_for_keys(cluster, &map, &[]);
    let (explained, said) = cluster.outrigger(&["operator", "status", "withdrawn"]);
    assert!(explained && said.contains("is not started any more: the mains are done"), "{said}");
}

/// If a Job is deleted at completion or has a short TTL, its sidecars have not failed.
pub(crate) fn a_pod_that_goes_is_no_failure(stage: &mut Stage) {
    let cluster = &stage.cluster;
    make_node(cluster, "machine", json!({}));
    create(cluster, &pod("goes", json!({}), json!([container("main", &[]), container("side", &[KILL])])));
    report(cluster, "goes", "Running", &[("main", "0"), ("side", "running")]);
    let request = eventually("a request", || request_of(cluster, "goes"));
    let name = request["metadata"]["name"].as_str().expect("a name").to_owned();
    cluster.kubectl(&["delete", "pod", "goes", "--grace-period=0", "--force"]);
    let done = eventually("a verdict", || {
        let request = cluster.get(&["crr", &name])?;
        request["status"]["completionTime"].is_string().then_some(request)
    });
    assert_eq!(done["status"]["containerRecreateStates"][0]["phase"], "Succeeded", "{done}");
    eventually("the verdict is told", || {
        let found = events(cluster, "goes");
        found.iter().any(|(_, reason, _)| reason == "ContainerRecreateRequest").then_some(())
    });
    let warnings: Vec<_> =
        events(cluster, "goes").into_iter().filter(|(kind, ..)| kind == "Warning").collect();
    assert_eq!(warnings, []);
}

/// If the operator was installed with the option, every new pod gets the readiness gate, and its condition is
/// set.
pub(crate) fn gives_pods_the_readiness_gate(stage: &mut Stage) {
    let cluster = &stage.cluster;
    let url = format!("https://127.0.0.1:{}", stage.webhook);
    let install = |more: &[&str]| {
        let args = [&["operator", "install", "--webhook-url", &url][..], more].concat();
        let (applied, said) = cluster.outrigger(&args);
        assert!(applied, "{said}");
    };
    let plain = |name: &str| pod(name, json!({}), json!([container("main", &[])]));
    let gates = |name: &str| cluster.get(&["pod", name]).expect("the pod")["spec"]["readinessGates"].clone();
    create(cluster, &plain("ungated"));
    assert_eq!(gates("ungated"), Value::Null);
    install(&["--readiness-gate"]);
    // The API server takes a moment to see a changed webhook.
    let mut number = 0;
    let name = eventually("a pod gets the gate", || {
        number += 1;
        let name = format!("given-{number}");
        create(cluster, &plain(&name));
        (gates(&name) == json!([{"conditionType": "KruisePodReady"}])).then_some(name)
    });
    eventually("its condition is set", || {
        let conditions = cluster.get(&["pod", &name])?["status"]["conditions"].as_array()?.clone();
        conditions.iter().any(|c| c["type"] == "KruisePodReady" && c["status"] == "True").then_some(())
    });
    let mut own: Value = serde_json::from_str(&plain("own-gate")).expect("a pod");
    own["spec"]["readinessGates"] =
        json!([{"conditionType": "KruisePodReady"}, {"conditionType": "x/other"}]);
    create(cluster, &own.to_string());
    assert_eq!(gates("own-gate"), own["spec"]["readinessGates"], "once");
    install(&[]);
    eventually("new pods go without", || {
        number += 1;
        let name = format!("given-{number}");
        create(cluster, &plain(&name));
        (gates(&name) == Value::Null).then_some(())
    });
}
