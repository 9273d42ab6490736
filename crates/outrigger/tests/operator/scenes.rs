//! Tests common uses of the operator.

use std::time::Instant;

use serde_json::{Value, json};

use crate::Stage;
use crate::cluster::{Cluster, eventually};
use crate::helm;

pub(crate) fn pod(name: &str, annotations: Value, containers: Value) -> String {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"nodeName": "machine", "restartPolicy": "Never", "containers": containers},
    })
    .to_string()
}

pub(crate) fn container(name: &str, env: &[(&str, &str)]) -> Value {
    let env: Vec<Value> = env.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
    json!({"name": name, "image": "localhost/busybox:1", "env": env})
}

pub(crate) fn create(cluster: &Cluster, manifest: &str) {
    let (created, said) = cluster.apply(manifest);
    assert!(created, "{said}");
}

/// Writes a status like a kubelet. States are a name and `ready`, `running` or an exit code.
pub(crate) fn report(cluster: &Cluster, pod: &str, phase: &str, states: &[(&str, &str)]) {
    let status = |(name, state): &(&str, &str)| {
        let running = json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}});
        let state_json = match *state {
            "ready" | "running" => running,
            "waiting" => json!({"waiting": {"reason": "CreateContainerConfigError"}}),
            code => {
                json!({"terminated": {"exitCode": code.parse::<i32>().expect("a code"), "containerID": format!("containerd://{name}")}})
            }
        };
        json!({
            "name": name, "image": "i", "imageID": "i", "restartCount": 0, "ready": *state == "ready", "started": *state == "ready",
            "containerID": if *state == "waiting" { String::new() } else { format!("containerd://{name}") }, "state": state_json,
        })
    };
    let patch = json!({"status": {"phase": phase, "containerStatuses": states.iter().map(status).collect::<Vec<_>>()}});
    let output = cluster.kubectl(&[
        "patch",
        "pod",
        pod,
        "--subresource=status",
        "--type=merge",
        "-p",
        &patch.to_string(),
    ]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The barrier ConfigMap that a pod waits for.
pub(crate) fn map_of(cluster: &Cluster, pod: &str) -> String {
    let pod = cluster.get(&["pod", pod]).expect("the pod");
    let env = pod["spec"]["containers"]
        .as_array()
        .expect("containers")
        .iter()
        .flat_map(|c| c["env"].as_array().cloned().unwrap_or_default());
    let names: Vec<String> =
        env.filter_map(|e| e["valueFrom"]["configMapKeyRef"]["name"].as_str().map(str::to_owned)).collect();
    names.first().expect("a barrier").clone()
}

pub(crate) fn keys(cluster: &Cluster, map: &str) -> Vec<String> {
    let map = cluster.get(&["configmap", map]);
    let data = map.and_then(|map| map["data"].as_object().cloned()).unwrap_or_default();
    data.keys().cloned().collect()
}

pub(crate) fn wait_for_keys(cluster: &Cluster, map: &str, expected: &[&str]) {
    eventually(&format!("{map} holds {expected:?}"), || {
        let mut held = keys(cluster, map);
        let mut expected: Vec<String> = expected.iter().map(|k| (*k).to_owned()).collect();
        held.sort();
        expected.sort();
        (held == expected).then_some(())
    });
}

pub(crate) fn installs(stage: &mut Stage) {
    let (printed, said) = stage.cluster.outrigger(&["operator", "install", "-o", "yaml", "--image", "a b"]);
    assert!(!printed && said.contains("--image \"a b\" is not a reference to an image"), "{said}");
    let (_, said) = stage.cluster.outrigger(&["operator", "install", "-o", "yaml"]);
    assert!(said.contains("kind: DaemonSet") && said.contains("kind: Deployment"), "{said}");
    // A second installation changes nothing.
    let url = format!("https://127.0.0.1:{}", stage.webhook);
    let (applied, said) = stage.cluster.outrigger(&["operator", "install", "--webhook-url", &url]);
    assert!(applied, "{said}");
    let (applied, said) =
        stage.cluster.outrigger(&["operator", "install", "--webhook-url", &url, "-n", "elsewhere"]);
    assert!(!applied && said.contains("installed in namespace outrigger-system"), "{said}");
    // The API server also accepts the complete output for users.
    let (_, yaml) = stage.cluster.outrigger(&["operator", "install", "-o", "yaml", "-n", "elsewhere"]);
    // These two exist already, with addresses instead of a Service. This test does not cover a change between
    // the two.
    let there = ["kind: CustomResourceDefinition", "kind: MutatingWebhookConfiguration"];
    let is_new = |document: &&str| !there.iter().any(|kind| document.contains(kind));
    let yaml = yaml.split("---\n").filter(is_new).collect::<Vec<_>>().join("---\n");
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("all.yaml");
    std::fs::write(&file, &yaml).expect("a file");
    stage.cluster.kubectl(&["create", "namespace", "elsewhere"]);
    let output = stage.cluster.kubectl(&["apply", "--dry-run=server", "-f", file.to_str().expect("a path")]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    deployments_agree(stage);
    // An existing Kruise installation is not silently accepted.
    let kruise = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration", "metadata": {"name": "kruise-mutating-webhook-configuration"}});
    create(&stage.cluster, &kruise.to_string());
    let (applied, said) = stage.cluster.outrigger(&["operator", "install", "--webhook-url", &url]);
    assert!(!applied && said.contains("OpenKruise is installed"), "{said}");
    helm::is_refused_beside_kruise(&stage.cluster);
    stage.cluster.kubectl(&[
        "delete",
        "mutatingwebhookconfiguration",
        "kruise-mutating-webhook-configuration",
    ]);
    takes_over_a_kept_definition(stage, &url);
}

/// A definition that still names Kruise's Service conflicts as long as that Service exists.
fn takes_over_a_kept_definition(stage: &Stage, url: &str) {
    let cluster = &stage.cluster;
    let name = "containerrecreaterequests.apps.kruise.io";
    let config = || {
        let held = cluster.get(&["crd", name]).expect("the definition");
        held["spec"]["conversion"]["webhook"]["clientConfig"].clone()
    };
    let mut kept = config();
    kept["url"] = Value::Null;
    kept["service"] = json!({"name": "kruise-webhook-service", "namespace": "default", "path": "/convert"});
    let patch = json!({"spec": {"conversion": {"webhook": {"clientConfig": kept}}}}).to_string();
    let patched = cluster.kubectl(&["patch", "crd", name, "--type=merge", "-p", &patch]);
    assert!(patched.status.success(), "{}", String::from_utf8_lossy(&patched.stderr));
    let service = ["service", "kruise-webhook-service", "-n", "default"];
    cluster.kubectl(&["create", "service", "clusterip", service[1], "--tcp=443", "-n", "default"]);
    let (applied, said) = cluster.outrigger(&["operator", "install", "--webhook-url", url]);
    assert!(!applied && said.contains("kruise-webhook-service"), "{said}");
    cluster.kubectl(&[&["delete"][..], &service].concat());
    let (applied, said) = cluster.outrigger(&["operator", "install", "--webhook-url", url]);
    assert!(applied, "{said}");
    let now = config();
    assert!(now["url"].is_string() && now["service"].is_null(), "{now}");
}

/// The kustomization and `install -o yaml` contain the same objects.
fn deployments_agree(stage: &Stage) {
    let cluster = &stage.cluster;
    let dir = tempfile::tempdir().expect("a directory");
    let objects = |name: &str, yaml: &[u8]| {
        let file = dir.path().join(name);
        std::fs::write(&file, yaml).expect("a file");
        let path = file.to_str().expect("a path");
        let args = ["create", "--dry-run=client", "--validate=false", "-o", "json", "-f", path];
        let output = cluster.kubectl(&args);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let documents = serde_json::Deserializer::from_slice(&output.stdout).into_iter::<Value>();
        let documents = documents.map(|document| document.expect("JSON"));
        let mut all: Vec<Value> =
            documents.flat_map(|d| d["items"].as_array().cloned().unwrap_or_else(|| vec![d])).collect();
        all.sort_by_key(|object| format!("{} {}", object["kind"], object["metadata"]["name"]));
        all
    };
    let kustomization = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/kustomize");
    let kustomized = cluster.kubectl(&["kustomize", kustomization]);
    assert!(kustomized.status.success(), "{}", String::from_utf8_lossy(&kustomized.stderr));
    let (_, printed) = cluster.outrigger(&["operator", "install", "-o", "yaml"]);
    let (one, other) = (objects("kustomized", &kustomized.stdout), objects("printed", printed.as_bytes()));
    assert!(one.len() > 12, "{} objects", one.len());
    assert_eq!(one, other);
}

pub(crate) fn admits_pods(stage: &mut Stage) {
    let cluster = &stage.cluster;
    // The example of the source document, in both spellings.
    for (name, env, key) in [
        ("seed", "KRUISE_CONTAINER_LAUNCH_PRIORITY", "c_1"),
        ("released", "KRUISE_CONTAINER_PRIORITY", "p_1"),
    ] {
        let containers = json!([container("main", &[]), container("sidecar", &[(env, "1")])]);
        create(cluster, &pod(name, json!({}), containers));
        let made = cluster.get(&["pod", name]).expect("the pod");
        let last = &made["spec"]["containers"][1]["env"][1];
        assert_eq!(last["valueFrom"]["configMapKeyRef"]["key"], key, "{made}");
    }
    let bad = pod(
        "bad",
        json!({}),
        json!([container("a", &[("KRUISE_CONTAINER_PRIORITY", "high")]), container("b", &[])]),
    );
    let (created, said) = cluster.apply(&bad);
    assert!(!created && said.contains("launch priority \"high\" is not a whole number"), "{said}");
    let circle = json!({"outrigger.dev/depends-on": "a: b ready\nb: a ready"});
    let (created, said) =
        cluster.apply(&pod("circle", circle, json!([container("a", &[]), container("b", &[])])));
    assert!(!created && said.contains("wait for each other in a circle"), "{said}");
    let (created, said) = cluster.apply(&pod(
        "warned",
        json!({"apps.kruise.io/container-launch-priority": "ordered"}),
        json!([container("a", &[]), container("b", &[])]),
    ));
    assert!(created && said.contains("Warning:") && said.contains("`Ordered`"), "{said}");
    // Without the operator, pods that do not use its features are not affected. Others are refused, so that
    // none starts without its order.
    stage.operator = None;
    let cluster = &stage.cluster;
    create(
        cluster,
        &pod("plain", json!({}), json!([container("a", &[]), container("b", &[("OTHER", "1")])])),
    );
    let (created, said) = cluster.apply(&pod(
        "asks",
        json!({"apps.kruise.io/container-launch-priority": "Ordered"}),
        json!([container("a", &[]), container("b", &[])]),
    ));
    assert!(!created && said.contains("pods.outrigger.dev"), "{said}");
    stage.start_operator();
}

/// Sidecars of pods that never restart get a restart policy of their own. If this webhook does not answer,
/// pods are still created.
pub(crate) fn admits_job_sidecars(stage: &mut Stage) {
    let cluster = &stage.cluster;
    let two = || json!([container("main", &[]), container("sidecar", &[KILL])]);
    let policy = |name: &str| {
        let made = cluster.get(&["pod", name]).expect("the pod");
        assert!(made["spec"]["containers"][0].get("restartPolicy").is_none(), "{made}");
        made["spec"]["containers"][1]["restartPolicy"].clone()
    };
    create(cluster, &pod("restarted", json!({}), two()));
    assert_eq!(policy("restarted"), "OnFailure");
    let counting = json!({"outrigger.dev/sidecar-phase": "Count"});
    create(cluster, &pod("counting", counting, two()));
    assert!(policy("counting").is_null(), "exit codes count");
    // These envs have no effect on an init container, and a warning says so.
    for (name, env) in [("terminated-init", KILL), ("launched-init", ("KRUISE_CONTAINER_PRIORITY", "1"))] {
        let text = pod(name, json!({}), json!([container("main", &[])]));
        let mut with_init: Value = serde_json::from_str(&text).expect("a pod");
        with_init["spec"]["initContainers"] = json!([container("init", &[env])]);
        let (created, said) = cluster.apply(&with_init.to_string());
        assert!(created && said.contains("Warning: spec.initContainers[0].env[0]"), "{name}: {said}");
    }
    let (created, said) = cluster.apply(&pod("typo", json!({"outrigger.dev/sidecar-phase": "count"}), two()));
    assert!(!created && said.contains("expected `Count` or `Ignore`"), "{said}");
    let (created, said) = cluster.apply(&pod("slow", json!({"outrigger.dev/sidecar-delay": "later"}), two()));
    assert!(!created && said.contains("expected a duration such as `5s`"), "{said}");
    stage.operator = None;
    let cluster = &stage.cluster;
    create(cluster, &pod("unanswered", json!({}), two()));
    let made = cluster.get(&["pod", "unanswered"]).expect("the pod");
    assert!(made["spec"]["containers"][1].get("restartPolicy").is_none(), "{made}");
    stage.start_operator();
}

pub(crate) fn opens_levels_in_order(stage: &mut Stage) {
    let cluster = &stage.cluster;
    let ordered = json!({"apps.kruise.io/container-launch-priority": "Ordered"});
    create(
        cluster,
        &pod("levels", ordered, json!([container("a", &[]), container("b", &[]), container("c", &[])])),
    );
    let map = map_of(cluster, "levels");
    assert!(map.starts_with("levels-barrier-"), "{map}");
    wait_for_keys(cluster, &map, &["p_0"]);
    let (explained, said) = cluster.outrigger(&["operator", "status", "levels"]);
    assert!(explained && said.contains("Next: level -1 starts once `a` is ready"), "{said}");
    let (explained, said) = cluster.outrigger(&["operator", "status", "-o", "json", "levels"]);
    let json: Value = serde_json::from_str(&said).expect("JSON");
    assert!(explained && json["next"] == "level -1 starts once `a` is ready", "{said}");
    assert_eq!(json["containers"][1]["barrier"], "closed", "{said}");
    // The same as a plugin of kubectl.
    let (explained, by_plugin) = cluster.kubectl_plugin(&["outrigger", "status", "levels"]);
    assert!(explained && by_plugin.contains("Next: level -1 starts once `a` is ready"), "{by_plugin}");
    report(cluster, "levels", "Pending", &[("a", "ready"), ("b", "waiting"), ("c", "waiting")]);
    wait_for_keys(cluster, &map, &["p_0", "p_-1"]);
    // The kubelet is woken.
    eventually("the pod was annotated", || {
        cluster.get(&["pod", "levels"])?["metadata"]["annotations"]["outrigger.dev/barrier-opened"]
            .as_str()
            .map(|_| ())
    });
    // If the ConfigMap is lost in between, it is created again with the due keys.
    cluster.kubectl(&["delete", "configmap", &map]);
    wait_for_keys(cluster, &map, &["p_0", "p_-1"]);
    report(cluster, "levels", "Running", &[("a", "ready"), ("b", "0"), ("c", "waiting")]);
    wait_for_keys(cluster, &map, &["p_0", "p_-1", "p_-2"]);
    eventually("the pod is marked completed", || {
        let pod = cluster.get(&["pod", "levels"])?;
        (pod["metadata"]["annotations"]["apps.kruise.io/container-launch-priority-completed"] == "true")
            .then_some(())
    });
    // LP-30: the same holds after the launch.
    cluster.kubectl(&["delete", "configmap", &map]);
    wait_for_keys(cluster, &map, &["p_0", "p_-1", "p_-2"]);
    let events = cluster.get(&["events", "--field-selector", "involvedObject.name=levels"]).expect("events");
    assert!(events.to_string().contains("`b` may start"), "{events}");
    // KD10: a condition that can no longer be met ends the pod, with a message.
    create(
        cluster,
        &pod(
            "hopeless",
            json!({}),
            json!([container("a", &[("KRUISE_CONTAINER_PRIORITY", "1")]), container("b", &[])]),
        ),
    );
    report(cluster, "hopeless", "Pending", &[("a", "3"), ("b", "waiting")]);
    eventually("the pod failed", || {
        let pod = cluster.get(&["pod", "hopeless"])?;
        (pod["status"]["phase"] == "Failed"
            && pod["status"]["message"].as_str()?.contains("`b` waits for `a`"))
        .then_some(())
    });
    // KD11: a launch that takes too long reports what it waits for.
    let hurried =
        json!({"outrigger.dev/launch-timeout": "1s", "apps.kruise.io/container-launch-priority": "Ordered"});
    create(cluster, &pod("hangs", hurried, json!([container("a", &[]), container("b", &[])])));
    let patch = json!({"status": {"phase": "Pending", "startTime": "2026-01-01T00:00:00Z"}}).to_string();
    cluster.kubectl(&["patch", "pod", "hangs", "--subresource=status", "--type=merge", "-p", &patch]);
    eventually("the condition names the container", || {
        let pod = cluster.get(&["pod", "hangs"])?;
        let found = pod["status"]["conditions"]
            .as_array()?
            .iter()
            .find(|c| c["type"] == "outrigger.dev/ContainersLaunched")
            .cloned()?;
        (found["status"] == "False" && found["message"].as_str()?.contains("`b` waits for `a`")).then_some(())
    });
}

pub(crate) fn serves_gates_and_native_sidecars(stage: &mut Stage) {
    let cluster = &stage.cluster;
    let graph = json!({"outrigger.dev/depends-on": "app: db ready, migrate completed"});
    create(
        cluster,
        &pod("graph", graph, json!([container("app", &[]), container("db", &[]), container("migrate", &[])])),
    );
    let map = map_of(cluster, "graph");
    report(cluster, "graph", "Pending", &[("db", "ready"), ("migrate", "running"), ("app", "waiting")]);
    eventually("the map is there, and empty", || cluster.get(&["configmap", &map]).map(|_| ()));
    assert!(keys(cluster, &map).is_empty());
    report(cluster, "graph", "Pending", &[("db", "ready"), ("migrate", "0"), ("app", "waiting")]);
    wait_for_keys(cluster, &map, &["g_app"]);
    let sidecars = json!({"outrigger.dev/sidecars": "proxy"});
    create(cluster, &pod("native", sidecars, json!([container("main", &[]), container("proxy", &[])])));
    let made = cluster.get(&["pod", "native"]).expect("the pod");
    assert_eq!(made["spec"]["initContainers"][0]["name"], "proxy");
    assert_eq!(made["spec"]["initContainers"][0]["restartPolicy"], "Always");
}

pub(crate) fn makes_native_sidecars_of_levels(stage: &mut Stage) {
    stage.operator.take();
    stage.start_operator_at(stage.cluster.port(), &["--launch", "native"]);
    let cluster = &stage.cluster;
    let levels = json!([container("main", &[]), container("first", &[("KRUISE_CONTAINER_PRIORITY", "1")])]);
    let never = pod("levels-of-job", json!({}), levels.clone());
    // Users other than controllers may compare the pod with their manifest later, as Helm does.
    create(cluster, &pod("levels-of-bare-pod", json!({}), levels.clone()).replace("Never", "Always"));
    map_of(cluster, "levels-of-bare-pod");
    let mut owned: Value = serde_json::from_str(&pod("native-levels", json!({}), levels)).expect("a pod");
    owned["spec"]["restartPolicy"] = json!("Always");
    owned["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u", "controller": true}]);
    create(cluster, &owned.to_string());
    let made = cluster.get(&["pod", "native-levels"]).expect("the pod");
    assert_eq!(made["spec"]["initContainers"][0]["name"], "first");
    assert_eq!(made["spec"]["initContainers"][0]["restartPolicy"], "Always");
    assert_eq!(made["spec"]["containers"].as_array().map(Vec::len), Some(1));
    assert!(made["spec"]["containers"][0].get("env").is_none(), "no barrier: {made}");
    // A container that completes is not a sidecar.
    create(cluster, &never);
    let map = map_of(cluster, "levels-of-job");
    wait_for_keys(cluster, &map, &["p_1"]);
    stage.operator.take();
    stage.start_operator();
}

fn now() -> String {
    let now = k8s_openapi::jiff::Timestamp::now();
    k8s_openapi::jiff::Timestamp::from_second(now.as_second()).expect("a time").to_string()
}

pub(crate) const KILL: (&str, &str) = ("KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT", "true");

/// Creates a Node, because requests are checked against the kind of their node.
pub(crate) fn make_node(cluster: &Cluster, name: &str, labels: Value) {
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}});
    let _ = cluster.apply(&node.to_string());
}

pub(crate) fn request_of(cluster: &Cluster, pod: &str) -> Option<Value> {
    let list = cluster.get(&["containerrecreaterequests"])?;
    let items = list["items"].as_array()?.clone();
    items.into_iter().find(|r| r["spec"]["podName"] == pod)
}

pub(crate) fn ends_sidecars(stage: &mut Stage) {
    let cluster = &stage.cluster;
    make_node(cluster, "machine", json!({}));
    make_node(cluster, "virtual", json!({"type": "virtual-kubelet"}));
    // The example of the source document: a request stops the sidecar, and the pod has the result of its
    // main.
    create(cluster, &pod("job", json!({}), json!([container("main", &[]), container("sidecar1", &[KILL])])));
    report(cluster, "job", "Running", &[("main", "0"), ("sidecar1", "running")]);
    let request = eventually("a request", || request_of(cluster, "job"));
    assert_eq!(request["spec"]["containers"][0]["statusContext"]["containerID"], "containerd://sidecar1");
    assert_eq!(request["spec"]["strategy"]["forceRecreate"], true);
    assert_eq!(request["metadata"]["ownerReferences"][0]["kind"], "Pod");
    let name = request["metadata"]["name"].as_str().expect("a name");
    // The test does the agent's part.
    let states = json!([{"name": "sidecar1", "phase": "Succeeded", "isKilled": true}]);
    let patch =
        json!({"status": {"phase": "Completed", "completionTime": now(), "containerRecreateStates": states}})
            .to_string();
    cluster.kubectl(&[
        "patch",
        "containerrecreaterequest",
        name,
        "--subresource=status",
        "--type=merge",
        "-p",
        &patch,
    ]);
    eventually("the pod succeeded", || {
        let pod = cluster.get(&["pod", "job"])?;
        (pod["status"]["phase"] == "Succeeded").then_some(())
    });
    eventually("the request is no longer active", || {
        cluster.get(&["containerrecreaterequest", name])?["metadata"]["labels"]
            .get("crr.apps.kruise.io/active")
            .is_none()
            .then_some(())
    });
    // If a user deletes a request and a finalizer keeps it, the operator creates another one.
    create(cluster, &pod("kept", json!({}), json!([container("main", &[]), container("sidecar", &[KILL])])));
    report(cluster, "kept", "Running", &[("main", "0"), ("sidecar", "running")]);
    let first = eventually("a request", || request_of(cluster, "kept"));
    let first = first["metadata"]["name"].as_str().expect("a name").to_owned();
    // There is no garbage collector here, so the request stays.
    cluster.kubectl(&["delete", "crr", &first, "--cascade=foreground", "--wait=false"]);
    eventually("another request", || cluster.get(&["crr", &format!("{first}-2")]));
    let without = json!({"metadata": {"finalizers": []}}).to_string();
    cluster.kubectl(&["patch", "crr", &first, "--type=merge", "-p", &without]);
    // A sidecar that never started does not keep the pod running.
    create(cluster, &pod("stuck", json!({}), json!([container("main", &[]), container("sidecar", &[KILL])])));
    report(cluster, "stuck", "Pending", &[("main", "0"), ("sidecar", "waiting")]);
    eventually("the pod succeeded", || {
        (cluster.get(&["pod", "stuck"])?["status"]["phase"] == "Succeeded").then_some(())
    });
    // Virtual nodes: the image is replaced.
    let image = ("KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT_WITH_IMAGE", "example/exit-immediately:latest");
    let on_virtual =
        pod("elsewhere", json!({}), json!([container("main", &[]), container("sidecar1", &[KILL, image])]));
    create(cluster, &on_virtual.replace("\"machine\"", "\"virtual\""));
    report(cluster, "elsewhere", "Running", &[("main", "1"), ("sidecar1", "running")]);
    eventually("the image was replaced", || {
        let pod = cluster.get(&["pod", "elsewhere"])?;
        (pod["spec"]["containers"][1]["image"] == image.1).then_some(())
    });
    assert!(request_of(cluster, "elsewhere").is_none());
}

pub(crate) fn keeps_requests_in_order(stage: &mut Stage) {
    let cluster = &stage.cluster;
    make_node(cluster, "machine", json!({}));
    create(cluster, &pod("app", json!({}), json!([container("app", &[]), container("new", &[])])));
    report(cluster, "app", "Running", &[("app", "ready"), ("new", "waiting")]);
    let request = |name: &str, version: &str, spec: Value| {
        json!({"apiVersion": format!("apps.kruise.io/{version}"), "kind": "ContainerRecreateRequest", "metadata": {"name": name}, "spec": spec}).to_string()
    };
    let app = json!({"podName": "app", "containers": [{"name": "app"}], "activeDeadlineSeconds": 3});
    create(cluster, &request("old", "v1alpha1", app));
    let brief = json!({"podName": "app", "containers": [{"name": "app"}], "activeDeadlineSeconds": 3, "ttlSecondsAfterFinished": 1});
    create(cluster, &request("brief", "v1beta1", brief));
    let made = cluster.get(&["containerrecreaterequests.v1beta1.apps.kruise.io", "old"]).expect("as v1beta1");
    assert_eq!(made["spec"]["strategy"]["failurePolicy"], "Fail");
    assert_eq!(made["metadata"]["labels"]["crr.apps.kruise.io/node-name"], "machine");
    assert_eq!(made["spec"]["containers"][0]["statusContext"]["containerID"], "containerd://app");
    let back =
        cluster.get(&["containerrecreaterequests.v1alpha1.apps.kruise.io", "old"]).expect("as v1alpha1");
    assert_eq!(back["apiVersion"], "apps.kruise.io/v1alpha1");
    let rows = [
        (
            json!({"podName": "nobody", "containers": [{"name": "app"}]}),
            "there is no pod nobody in the namespace",
        ),
        (json!({"podName": "app", "containers": [{"name": "x"}]}), "has no container \"x\""),
        (json!({"podName": "app", "containers": [{"name": "new"}]}), "has not been started yet"),
        (
            json!({"podName": "app", "containers": [{"name": "app"}], "activeDeadlineSeconds": 1}),
            "at least 3",
        ),
    ];
    for (spec, expected) in rows {
        let (created, said) = cluster.apply(&request("bad", "v1beta1", spec));
        assert!(!created && said.contains(expected), "{said}");
    }
    let patch = json!({"spec": {"podName": "other"}}).to_string();
    let changed = cluster.kubectl(&["patch", "crr", "old", "--type=merge", "-p", &patch]);
    assert!(String::from_utf8_lossy(&changed.stderr).contains("immutable"), "{changed:?}");
    // A manifest can be applied again although fields were filled in. Requests have a size limit, because
    // agents keep them in memory.
    let waits = json!({"podName": "app", "containers": [{"name": "app"}], "activeDeadlineSeconds": 60});
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("request.json");
    std::fs::write(&file, request("again", "v1beta1", waits)).expect("a file");
    for _ in 0..2 {
        let applied = cluster.kubectl(&["apply", "-f", file.to_str().expect("a path")]);
        assert!(applied.status.success(), "{applied:?}");
    }
    let junk = format!("junk={}", "x".repeat(40_000));
    let grown = cluster.kubectl(&["annotate", "crr", "again", &junk]);
    assert!(String::from_utf8_lossy(&grown.stderr).contains("at most 32768 are allowed"), "{grown:?}");
    cluster.kubectl(&["delete", "crr", "again"]);
    // CRR-25: a pod with the readiness gate becomes ready without a request.
    let mut gated: Value =
        serde_json::from_str(&pod("gated", json!({}), json!([container("a", &[])]))).expect("JSON");
    gated["spec"]["readinessGates"] = json!([{"conditionType": "KruisePodReady"}]);
    create(cluster, &gated.to_string());
    eventually("the readiness condition is set", || {
        let conditions = cluster.get(&["pod", "gated"])?["status"]["conditions"].as_array()?.clone();
        conditions.iter().any(|c| c["type"] == "KruisePodReady" && c["status"] == "True").then_some(())
    });
    let squatter = json!({"podName": "app", "containers": [{"name": "app"}]});
    let (created, said) = cluster.apply(&request("sidecar-termination-0", "v1beta1", squatter));
    assert!(!created && said.contains("are the operator's"), "{said}");
    // No agent serves it, but it still gets a result, in which every container has failed. The other request
    // is deleted after that.
    let done = eventually("a verdict", || {
        let request = cluster.get(&["crr", "old"])?;
        request["status"]["completionTime"].is_string().then_some(request)
    });
    assert_eq!(done["status"]["containerRecreateStates"][0]["phase"], "Failed", "{done}");
    assert_eq!(done["status"]["conditions"][0]["status"], "False", "{done}");
    eventually("it was deleted", || cluster.get(&["crr", "brief"]).is_none().then_some(()));
}

pub(crate) fn goes_on_after_crashes(stage: &mut Stage) {
    let ordered = || json!({"apps.kruise.io/container-launch-priority": "Ordered"});
    let three = || json!([container("a", &[]), container("b", &[]), container("c", &[])]);
    create(&stage.cluster, &pod("crash", ordered(), three()));
    let map = map_of(&stage.cluster, "crash");
    wait_for_keys(&stage.cluster, &map, &["p_0"]);
    // The operator is killed between two levels, and a level becomes ready in the meantime.
    stage.operator = None;
    report(&stage.cluster, "crash", "Pending", &[("a", "ready"), ("b", "waiting"), ("c", "waiting")]);
    stage.start_operator();
    wait_for_keys(&stage.cluster, &map, &["p_0", "p_-1"]);
    // The API server is killed and restarted; watches resume.
    stage.cluster.stop_api();
    stage.cluster.start_api();
    report(&stage.cluster, "crash", "Pending", &[("a", "ready"), ("b", "ready"), ("c", "waiting")]);
    wait_for_keys(&stage.cluster, &map, &["p_0", "p_-1", "p_-2"]);
    // Objects that are deleted while nothing watches them are forgotten. A new pod of the same name starts
    // from the beginning.
    stage.operator = None;
    stage.cluster.kubectl(&["delete", "pod", "crash", "--grace-period=0", "--force"]);
    stage.start_operator();
    create(&stage.cluster, &pod("crash", ordered(), three()));
    let second = map_of(&stage.cluster, "crash");
    assert_ne!(second, map);
    wait_for_keys(&stage.cluster, &second, &["p_0"]);
}

pub(crate) fn another_replica_takes_over(stage: &mut Stage) {
    let (webhook, health) = (crate::cluster::free_port(), crate::cluster::free_port());
    let mut second = stage.cluster.operator("second", webhook, health);
    let leads = |port: u16| {
        crate::many::page(port, "/metrics").is_some_and(|text| text.contains("outrigger_leader 1"))
    };
    eventually("the second replica serves", || (crate::many::page(health, "/readyz")? == "ok").then_some(()));
    assert!(leads(stage.health) && !leads(health), "one leads");
    let ordered = json!({"apps.kruise.io/container-launch-priority": "Ordered"});
    create(&stage.cluster, &pod("handed", ordered, json!([container("a", &[]), container("b", &[])])));
    let map = map_of(&stage.cluster, "handed");
    wait_for_keys(&stage.cluster, &map, &["p_0"]);
    // The operator is killed, so it does not release the Lease.
    stage.operator = None;
    let begun = Instant::now();
    report(&stage.cluster, "handed", "Pending", &[("a", "ready"), ("b", "waiting")]);
    wait_for_keys(&stage.cluster, &map, &["p_0", "p_-1"]);
    println!("another replica has taken over after {:.1} s", begun.elapsed().as_secs_f64());
    assert!(leads(health));
    // A replica that is asked to stop releases the Lease, so the next one need not wait.
    second.terminate();
    let lease =
        stage.cluster.get(&["lease", "-n", "outrigger-system", "outrigger-operator"]).expect("a Lease");
    assert_eq!(lease["spec"]["holderIdentity"].as_str().unwrap_or_default(), "", "{lease}");
    stage.start_operator();
}
