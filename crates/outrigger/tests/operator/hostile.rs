//! Tests malicious authors of pods, and pods that other software has created.

use std::time::Duration;

use serde_json::{Value, json};

use crate::Stage;
use crate::cluster::{Cluster, eventually};
use crate::scenes::{container, create, keys, map_of, pod, report, wait_for_keys};

/// A namespace that the webhook ignores, so pods there are unchanged.
fn unseen(cluster: &mut Cluster, name: &str) -> String {
    let namespace = cluster.another_namespace(name);
    cluster.kubectl(&["label", "namespace", &namespace, "control-plane=test"]);
    namespace
}

/// A container with a barrier written by its author.
fn barred(name: &str, env: &str, map: &str, key: &str) -> Value {
    let from = json!({"configMapKeyRef": {"name": map, "key": key}});
    json!({"name": name, "image": "i", "env": [{"name": env, "valueFrom": from}]})
}

fn create_in(cluster: &Cluster, namespace: &str, manifest: &str) {
    let mut object: Value = serde_json::from_str(manifest).expect("JSON");
    object["metadata"]["namespace"] = json!(namespace);
    create(cluster, &object.to_string());
}

fn map_in(cluster: &Cluster, namespace: &str, name: &str) -> Option<Value> {
    cluster.get(&["configmap", name, "-n", namespace])
}

/// Pods that Kruise has admitted continue, because we understand its ConfigMaps and both kinds of keys.
pub(crate) fn takes_over_from_kruise(stage: &mut Stage) {
    let kruise = &unseen(&mut stage.cluster, "kruise");
    let cluster = &stage.cluster;
    for (name, env, keys) in [
        ("released", "KRUISE_CONTAINER_BARRIER", ["p_1", "p_0"]),
        ("seed", "KRUISE_CONTAINER_LAUNCH_BARRIER", ["c_1", "c_0"]),
    ] {
        let map = format!("{name}-barrier");
        let containers = json!([barred("a", env, &map, keys[0]), barred("b", env, &map, keys[1])]);
        // Kruise's ConfigMap exists before we see the pod. It does not have our label, and it has a key.
        stage_map(cluster, kruise, name, &map, containers, &[keys[0]]);
        eventually(&format!("{map} is looked after"), || {
            let held = map_in(cluster, kruise, &map)?;
            let ours = held["metadata"]["labels"]["outrigger.dev/barrier"] == "true";
            (ours && held["data"][keys[0]] == "true").then_some(())
        });
    }
    // LP-31: the ConfigMap of an earlier pod of the same name opens nothing.
    let left = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "data": {"p_1": "true", "p_0": "true"},
        "metadata": {"name": "again-barrier", "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "again", "uid": "of-before"}]},
    });
    create_in(cluster, kruise, &left.to_string());
    let env = "KRUISE_CONTAINER_BARRIER";
    let containers =
        json!([barred("a", env, "again-barrier", "p_1"), barred("b", env, "again-barrier", "p_0")]);
    create_in(cluster, kruise, &pod("again", json!({}), containers));
    eventually("the keys of the earlier pod are gone", || {
        let held = map_in(cluster, kruise, "again-barrier")?;
        let owner = held["metadata"]["ownerReferences"][0]["uid"].as_str()?;
        (owner != "of-before" && held["data"] == json!({"p_1": "true"})).then_some(())
    });
}

/// Creates a pod and the ConfigMap that Kruise would have created for it.
fn stage_map(cluster: &Cluster, namespace: &str, name: &str, map: &str, containers: Value, keys: &[&str]) {
    create_in(cluster, namespace, &pod(name, json!({}), containers));
    let uid = cluster.get(&["pod", name, "-n", namespace]).expect("the pod")["metadata"]["uid"].clone();
    let data: serde_json::Map<String, Value> =
        keys.iter().map(|k| ((*k).to_owned(), json!("true"))).collect();
    let object = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "data": data,
        "metadata": {"name": map, "namespace": namespace, "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}]},
    });
    // The operator may have created it first. Then replace it as a user would.
    cluster.kubectl(&["delete", "configmap", map, "-n", namespace]);
    let _ = cluster.apply(&object.to_string());
}

/// A pod's author cannot access other objects or delay other pods.
pub(crate) fn hostile_authors_harm_only_themselves(stage: &mut Stage) {
    let (unseen, tight) = (&unseen(&mut stage.cluster, "unseen"), &stage.cluster.another_namespace("tight"));
    let cluster = &stage.cluster;
    let operator = stage.operator.as_ref().expect("an operator");
    let ordered = || json!({"apps.kruise.io/container-launch-priority": "Ordered"});
    // A huge pod without any feature: the match conditions can evaluate it (KP24).
    let many: Vec<Value> =
        (0..12_000).map(|n| json!({"name": format!("VARIABLE_WITH_A_NAME_{n}"), "value": "x"})).collect();
    let huge = json!([{"name": "a", "image": "i", "env": many}, {"name": "b", "image": "i"}]);
    create(cluster, &pod("huge", json!({}), huge.clone()));
    // A huge pod with a feature: it is answered in time.
    create(cluster, &pod("huge-ordered", ordered(), huge));
    wait_for_keys(cluster, &map_of(cluster, "huge-ordered"), &["p_0"]);
    // A graph that is as large as annotations allow, and an empty one.
    let crowd: Vec<String> = (0..120).map(|n| format!("c{n}")).collect();
    let dense: Vec<String> = crowd
        .iter()
        .enumerate()
        .skip(1)
        .map(|(n, name)| {
            format!(
                "{name}: {}",
                crowd[..n].iter().map(|on| format!("{on} ready")).collect::<Vec<_>>().join(", ")
            )
        })
        .collect();
    let containers: Vec<Value> = crowd.iter().map(|name| container(name, &[])).collect();
    let before = operator.processor_time();
    create(cluster, &pod("dense", json!({"outrigger.dev/depends-on": dense.join("\n")}), json!(containers)));
    // A debug build uses 1.5 s for the whole scene.
    let took = operator.processor_time() - before;
    assert!(took < Duration::from_secs(4), "{took:?}");
    for text in
        ["a: ".repeat(60_000), "\u{1b}[2J: \u{202e}".repeat(1_000), "[".repeat(100_000), "{".repeat(100_000)]
    {
        let annotations = json!({"outrigger.dev/depends-on": text, "outrigger.dev/launch-timeout": text});
        let (made, said) =
            cluster.apply(&pod("odd", annotations, json!([container("a", &[]), container("b", &[])])));
        assert!(!made && said.contains("pods.outrigger.dev"), "refused by us: {said:.300}");
        assert!(
            !said.contains('\u{1b}') && said.len() < 4_000,
            "a sentence, and nothing for a terminal: {} characters",
            said.len()
        );
    }
    barriers_of_others_are_left_alone(cluster, unseen);
    unmakeable_barriers_are_told(cluster, tight);
    immutable_barriers_are_told(cluster);
    // Other pods are not affected.
    let before = operator.processor_time();
    create(cluster, &pod("honest", ordered(), json!([container("a", &[]), container("b", &[])])));
    wait_for_keys(cluster, &map_of(cluster, "honest"), &["p_0"]);
    let took = operator.processor_time() - before;
    assert!(took < Duration::from_secs(1), "the operator is busy with the others: {took:?}");
    let operator = stage.operator.as_mut().expect("an operator");
    assert!(matches!(operator.0.try_wait(), Ok(None)), "the operator runs");
}

/// Pods that no webhook has seen, whose barriers name foreign ConfigMaps.
fn barriers_of_others_are_left_alone(cluster: &Cluster, unseen: &str) {
    let victim = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"a": "b"}});
    create_in(cluster, unseen, &victim.to_string());
    let barrier = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "victim-barrier-abcde12345", "labels": {"outrigger.dev/barrier": "true"}},
    });
    create_in(cluster, unseen, &barrier.to_string());
    let env = "KRUISE_CONTAINER_BARRIER";
    for (name, map, key) in [
        ("thief", "settings", "p_0"),
        ("opener", "victim-barrier-abcde12345", "p_0"),
        ("inventor", "other-pod-barrier", "p_5"),
        ("long", "long-barrier", &format!("p_{}", "9".repeat(200))[..]),
        ("empty", "empty-barrier", "-"),
        ("minus", "minus-barrier", "p_--5"),
    ] {
        let containers = json!([barred("a", env, map, key), {"name": "b", "image": "i"}]);
        create_in(cluster, unseen, &pod(name, json!({}), containers));
    }
    for name in ["long", "minus"] {
        let map = format!("{name}-barrier");
        eventually("a key that is no number is level 0, of this pod only", || map_in(cluster, unseen, &map));
    }
    eventually("the author is told", || {
        let events = cluster.get(&["events", "-n", unseen])?;
        let reasons: Vec<String> = events["items"]
            .as_array()?
            .iter()
            .map(|e| {
                format!(
                    "{} {}",
                    e["involvedObject"]["name"].as_str().unwrap_or(""),
                    e["reason"].as_str().unwrap_or("")
                )
            })
            .collect();
        let has = |text: &str| reasons.iter().any(|reason| reason == text);
        (has("thief BarrierIgnored") && has("opener BarrierBlocked") && has("inventor BarrierIgnored"))
            .then_some(())
    });
    assert_eq!(map_in(cluster, unseen, "settings").expect("it is there")["data"], json!({"a": "b"}));
    assert_eq!(map_in(cluster, unseen, "victim-barrier-abcde12345").expect("it is there").get("data"), None);
    assert_eq!(map_in(cluster, unseen, "other-pod-barrier"), None);
}

/// LP-32: if a quota prevents the creation of the barrier, the pod reports it.
fn unmakeable_barriers_are_told(cluster: &Cluster, tight: &str) {
    cluster.kubectl(&["create", "quota", "none", "-n", tight, "--hard=configmaps=0"]);
    // The API server uses the quota's status, which a controller writes. That controller does not run here.
    let status = json!({"status": {"hard": {"configmaps": "0"}, "used": {"configmaps": "0"}}}).to_string();
    let args = ["patch", "quota", "none", "-n", tight, "--subresource=status", "--type=merge", "-p", &status];
    assert!(cluster.kubectl(&args).status.success());
    let annotations = json!({"apps.kruise.io/container-launch-priority": "Ordered"});
    create_in(cluster, tight, &pod("poor", annotations, json!([container("a", &[]), container("b", &[])])));
    eventually("the pod's author is told why nothing starts", || {
        let events = cluster.get(&["events", "-n", tight])?.to_string();
        (events.contains("BarrierBlocked") && events.contains("the barrier cannot be made")).then_some(())
    });
    assert!(keys(cluster, "poor").is_empty());
}

/// If a user has made a barrier immutable, the pod reports it, and the operator does not retry all the time.
fn immutable_barriers_are_told(cluster: &Cluster) {
    let annotations = json!({"apps.kruise.io/container-launch-priority": "Ordered"});
    create(cluster, &pod("immutable", annotations, json!([container("a", &[]), container("b", &[])])));
    let map = map_of(cluster, "immutable");
    wait_for_keys(cluster, &map, &["p_0"]);
    let args = ["patch", "configmap", &map, "--type=merge", "-p", "{\"immutable\": true}"];
    assert!(cluster.kubectl(&args).status.success());
    report(cluster, "immutable", "Running", &[("a", "ready")]);
    eventually("the pod's author is told why nothing more starts", || {
        let events = cluster.get(&["events"])?.to_string();
        (events.contains("BarrierBlocked") && events.contains("cannot be written")).then_some(())
    });
    let (_, status) = cluster.outrigger(&["operator", "status", "immutable"]);
    assert!(status.contains(&format!("Next: nothing: ConfigMap {map} is immutable")), "{status}");
    let tries = eventually("it is tried again", || {
        let audit = cluster.audit();
        let is_try = |call: &&Value| {
            call["verb"] == "patch"
                && call["objectRef"]["name"] == *map
                && call["responseStatus"]["code"] == 422
        };
        let times: Vec<String> = audit
            .iter()
            .filter(is_try)
            .filter_map(|call| Some(call["requestReceivedTimestamp"].as_str()?.to_owned()))
            .collect();
        (times.len() >= 3).then_some(times)
    });
    let at = |text: &String| text.parse::<k8s_openapi::jiff::Timestamp>().expect("a time").as_millisecond();
    let (first, last) = (at(&tries[0]), at(&tries[2]));
    assert!(last - first >= 2_000, "three tries within {} ms", last - first);
    assert_eq!(keys(cluster, &map), ["p_0"]);
}
