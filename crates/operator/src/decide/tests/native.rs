//! Containers that become native sidecars when their pod is created.

use serde_json::{Value, json};

use super::admit::{SUFFIX, admitted, barriers, keys, ordered, pod, priority};
use crate::decide::admit::{Launch, PLANS, admit};
use crate::names;

#[test]
fn sidecars_become_native() {
    let probe = json!({"httpGet": {"path": "/", "port": 80}, "periodSeconds": 5});
    let mut pod = pod(&[("main", Value::Null), ("proxy", Value::Null), ("log", Value::Null)]);
    pod["spec"]["containers"][1]["readinessProbe"] = probe;
    pod["spec"]["initContainers"] = json!([{"name": "setup", "image": "i"}]);
    pod["spec"]["hostUsers"] = json!(false);
    pod["spec"]["somethingNew"] = json!({"kept": true});
    pod["metadata"]["annotations"] = json!({names::SIDECARS: "proxy, log"});
    let out = admitted(&pod).pod;
    let names = |list: &str| -> Vec<&str> {
        out["spec"][list].as_array().expect("a list").iter().filter_map(|c| c["name"].as_str()).collect()
    };
    assert_eq!(names("containers"), ["main"]);
    assert_eq!(names("initContainers"), ["setup", "proxy", "log"]);
    let proxy = &out["spec"]["initContainers"][1];
    assert_eq!(proxy["restartPolicy"], "Always");
    assert_eq!(proxy["startupProbe"]["httpGet"]["path"], "/");
    assert_eq!(admitted(&out).pod, out, "called again after other webhooks");
    let mut copy = out.clone();
    copy["metadata"]["annotations"] = pod["metadata"]["annotations"].clone();
    assert_eq!(admitted(&copy).pod, copy, "native sidecars stay so");
    assert_eq!(out["spec"]["somethingNew"], json!({"kept": true}), "what is not known here stays");
    // As in `outrigger run`: with its own startupProbe, nothing would wait until it is ready.
    let mut both = pod.clone();
    for c in
        both["spec"]["containers"].as_array_mut().expect("a list").iter_mut().filter(|c| c["name"] == "proxy")
    {
        c["startupProbe"] = json!({"exec": {"command": ["true"]}});
    }
    let refusal = admit(&both, SUFFIX, Launch::Barrier).expect_err("the gate would be lost");
    assert!(refusal.code == 422 && refusal.message.contains("not ready"), "{refusal}");
    for (value, expected) in
        [("nobody", "there is no container `nobody`"), ("main,proxy,log", "every container is a sidecar")]
    {
        pod["metadata"]["annotations"] = json!({names::SIDECARS: value});
        let refusal = admit(&pod, SUFFIX, Launch::Barrier).expect_err(expected);
        assert_eq!(refusal.code, 422);
        assert!(refusal.message.contains(expected), "{refusal}");
    }
    // Text of an author must not control or colour the terminal.
    pod["metadata"]["annotations"] = json!({names::SIDECARS: "a\u{1b}[31m\u{202e}"});
    let refusal = admit(&pod, SUFFIX, Launch::Barrier).expect_err("no such container");
    assert!(refusal.message.contains("`a\\u001b[31m\\u202e`"), "{refusal}");
}

#[test]
fn a_pod_is_planned_once_and_twice_if_containers_move() {
    let levels = controlled(&[("main", Value::Null), ("proxy", priority("1"))]);
    let plain = controlled(&[("main", Value::Null), ("proxy", Value::Null)]);
    let mut named = plain.clone();
    named["metadata"]["annotations"] = json!({names::SIDECARS: "proxy"});
    for (pod, launch, plans) in [
        (&plain, Launch::Native, 1),
        (&levels, Launch::Barrier, 1),
        (&levels, Launch::Native, 2),
        (&named, Launch::Barrier, 2),
        (&named, Launch::Native, 2),
    ] {
        PLANS.set(0);
        let out = admit(pod, SUFFIX, launch).expect("admitted").pod;
        assert_eq!(PLANS.get(), plans, "{launch:?} {pod:#}");
        assert_eq!(names_in(&out, "initContainers").is_empty(), plans == 1, "{out:#}");
    }
}

#[test]
fn probes_with_the_values_an_api_server_fills_in_are_the_same() {
    let mut pod = controlled(&[("main", Value::Null), ("proxy", priority("1"))]);
    let probes = [
        json!({"httpGet": {"path": "/", "port": 80, "scheme": "HTTP"}, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3, "timeoutSeconds": 1}),
        json!({"tcpSocket": {"port": 80}, "initialDelaySeconds": 5, "successThreshold": 1}),
        json!({"grpc": {"port": 80, "service": ""}, "successThreshold": 1}),
    ];
    for probe in probes {
        pod["spec"]["containers"][1]["readinessProbe"] = probe.clone();
        let out = admit(&pod, SUFFIX, Launch::Native).expect("admitted").pod;
        assert_eq!(names_in(&out, "initContainers"), ["proxy"], "{probe}");
        let mut named = pod.clone();
        named["metadata"]["annotations"] = json!({names::SIDECARS: "proxy"});
        assert_eq!(names_in(&admitted(&named).pod, "initContainers"), ["proxy"], "{probe}");
        // A startup probe passes after one success, so it cannot replace this readiness probe.
        pod["spec"]["containers"][1]["readinessProbe"]["successThreshold"] = json!(2);
        named["spec"] = pod["spec"].clone();
        let out = admit(&pod, SUFFIX, Launch::Native).expect("admitted").pod;
        assert_eq!(names_in(&out, "initContainers"), [""; 0], "{probe}");
        let refusal = admit(&named, SUFFIX, Launch::Barrier).expect_err("it would be too early");
        assert!(refusal.message.contains("successThreshold of 1"), "{refusal}");
    }
}

#[test]
fn native_sidecars_start_in_the_order_they_depend_on_each_other() {
    let mut pod =
        pod(&[("log", Value::Null), ("main", Value::Null), ("dns", Value::Null), ("proxy", Value::Null)]);
    pod["metadata"]["annotations"] =
        json!({names::SIDECARS: "log,dns,proxy", names::DEPENDS_ON: "log: proxy started; main: log ready"});
    let out = admitted(&pod).pod;
    let names = |list: &str| -> Vec<&str> {
        out["spec"][list].as_array().expect("a list").iter().filter_map(|c| c["name"].as_str()).collect()
    };
    assert_eq!(names("initContainers"), ["dns", "proxy", "log"]);
    assert_eq!(names("containers"), ["main"]);
    // In a cycle, the message names what the author wrote.
    pod["metadata"]["annotations"][names::DEPENDS_ON] = json!("log: main ready");
    let refusal = admit(&pod, SUFFIX, Launch::Barrier).expect_err("the main waits for its sidecars");
    assert!(!refusal.message.contains("initContainers"), "{refusal}");
}

#[test]
fn native_sidecars_keep_their_hooks_and_probes() {
    let mut pod = pod(&[("main", Value::Null), ("proxy", Value::Null)]);
    pod["metadata"]["annotations"] = json!({names::SIDECARS: "proxy"});
    let hook = json!({"preStop": {"sleep": {"seconds": 1}}, "postStart": {"exec": {"command": ["true"]}}});
    pod["spec"]["containers"][1]["lifecycle"] = hook.clone();
    let probe = json!({"exec": {"command": ["test", "-e", "/ready"]}});
    pod["spec"]["containers"][1]["readinessProbe"] = probe.clone();
    let mut startup = probe;
    startup["failureThreshold"] = json!(600);
    pod["spec"]["containers"][1]["startupProbe"] = startup.clone();
    let out = admitted(&pod);
    let proxy = &out.pod["spec"]["initContainers"][0];
    assert_eq!((&proxy["lifecycle"], &proxy["startupProbe"]), (&hook, &startup));
    assert!(
        out.warnings.iter().any(|w| w.contains("preStop hooks of native sidecars")),
        "{:?}",
        out.warnings
    );
    // Moved containers are a change that kubectl apply refuses to make.
    let is_told = |pod: &Value| {
        admitted(pod).warnings.iter().any(|w| w.contains("kubectl apply cannot be called again"))
    };
    assert!(!is_told(&pod));
    let mut applied = pod.clone();
    applied["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"] = json!("{}");
    assert!(is_told(&applied));
    assert!(!is_told(&admitted(&applied).pod), "nothing is moved any more");
    // This startup probe tests less than the readiness probe, so nothing would wait until the container is
    // ready.
    pod["spec"]["containers"][1]["startupProbe"] = json!({"exec": {"command": ["true"]}});
    assert!(admit(&pod, SUFFIX, Launch::Barrier).is_err_and(|refusal| refusal.message.contains("not ready")));
}

#[test]
fn priorities_order_the_others_and_sidecars_among_each_other() {
    let mut pod =
        pod(&[("main", Value::Null), ("db", priority("1")), ("log", Value::Null), ("proxy", priority("-5"))]);
    pod["metadata"]["annotations"] = json!({names::SIDECARS: "log,proxy"});
    assert_eq!(keys(&pod), ["p_0", "p_1"]);
    assert_eq!(names_in(&admitted(&pod).pod, "initContainers"), ["log", "proxy"]);
    pod["spec"]["containers"][3]["env"] = priority("5");
    assert_eq!(names_in(&admitted(&pod).pod, "initContainers"), ["proxy", "log"]);
}

/// A pod that a controller has created.
fn controlled(containers: &[(&str, Value)]) -> Value {
    let mut pod = pod(containers);
    pod["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u", "controller": true}]);
    pod
}

/// The names in a list of containers.
fn names_in(pod: &Value, list: &str) -> Vec<String> {
    let list = pod["spec"][list].as_array().cloned().unwrap_or_default();
    list.iter().filter_map(|c| c["name"].as_str()).map(str::to_owned).collect()
}

#[test]
fn higher_levels_become_native_sidecars_where_the_operator_was_told_to() {
    let none = Value::Null;
    let native = |pod: &Value| admit(pod, SUFFIX, Launch::Native).unwrap_or_else(|r| panic!("{r:?}"));
    let probe = json!({"exec": {"command": ["test", "-e", "/ready"]}});
    let pod = controlled;
    let three = pod(&[("main", none.clone()), ("log", priority("1")), ("proxy", priority("2"))]);
    let mut probed = pod(&[("main", none.clone()), ("proxy", priority("1")), ("log", priority("1"))]);
    probed["spec"]["containers"][1]["readinessProbe"] = probe.clone();
    let falling = pod(&[("low", priority("1")), ("high", priority("2")), ("main", none.clone())]);
    let mut init = three.clone();
    init["spec"]["initContainers"] = json!([{"name": "setup", "image": "i"}]);
    let rows: Vec<(&str, Value, &[&str], &[&str])> = vec![
        ("by priority", three.clone(), &["proxy", "log"], &["main"]),
        ("by list", ordered(three.clone(), "Ordered"), &["main", "log"], &["proxy"]),
        ("by list, whatever the envs say", ordered(falling, "Ordered"), &["low", "high"], &["main"]),
        ("after init containers", init, &["setup", "proxy", "log"], &["main"]),
        ("in a level, one with a probe comes last", probed.clone(), &["log", "proxy"], &["main"]),
        ("one level", pod(&[("a", priority("1")), ("b", priority("1"))]), &[], &["a", "b"]),
        ("no priorities", pod(&[("a", none.clone()), ("b", none.clone())]), &[], &["a", "b"]),
    ];
    for (what, pod, inits, mains) in rows {
        let out = native(&pod);
        assert_eq!(names_in(&out.pod, "initContainers"), inits, "{what}");
        assert_eq!(names_in(&out.pod, "containers"), mains, "{what}");
        assert!(barriers(&out.pod).0.iter().all(Option::is_none), "{what}");
        // LP-4: under `Ordered`, a priority is ignored in every list.
        let is_expected = |warning: &String| warning.contains("this priority is ignored");
        let is_ordered = pod["metadata"]["annotations"][names::ORDERED] == "Ordered";
        assert!(inits.is_empty() || out.warnings.iter().all(is_expected), "{what}: {:?}", out.warnings);
        assert_eq!(
            out.warnings.iter().filter(|w| is_expected(w)).count(),
            if is_ordered { 2 } else { 0 },
            "{what}"
        );
        assert_eq!(native(&out.pod).pod, out.pod, "{what}: called again after other webhooks");
        for c in out.pod["spec"]["initContainers"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|c| c["name"] != "setup")
        {
            assert_eq!(c["restartPolicy"], "Always", "{what}");
        }
    }
    // The next level waits until the sidecar is ready. The kubelet runs a startup probe only after one
    // period, so the period is short.
    let out = native(&probed).pod;
    let startup = json!({"exec": probe["exec"], "periodSeconds": 1, "failureThreshold": 600});
    assert_eq!(out["spec"]["initContainers"][1]["startupProbe"], startup);
    assert_eq!(out["spec"]["initContainers"][1]["env"], priority("1"));
}

#[test]
fn a_container_that_another_webhook_adds_later_gets_its_place() {
    let native = |pod: &Value| admit(pod, SUFFIX, Launch::Native).unwrap_or_else(|r| panic!("{r:?}")).pod;
    let mut pod =
        native(&controlled(&[("main", Value::Null), ("low", priority("1")), ("high", priority("9"))]));
    assert_eq!(names_in(&pod, "initContainers"), ["high", "low"]);
    let added = json!({"name": "added", "image": "i", "env": priority("5")});
    pod["spec"]["containers"].as_array_mut().expect("a list").push(added);
    let own = json!({"name": "own", "image": "i", "restartPolicy": "Always"});
    pod["spec"]["initContainers"].as_array_mut().expect("a list").insert(0, own);
    let pod = native(&pod);
    assert_eq!(names_in(&pod, "initContainers"), ["own", "high", "added", "low"]);
    assert_eq!(names_in(&pod, "containers"), ["main"]);
    assert_eq!(pod["spec"]["initContainers"][3]["env"], priority("1"), "what its author wrote stays");
    // A probe that another webhook adds is waited for as well.
    let mut pod = pod;
    let probe = json!({"exec": {"command": ["test", "-e", "/ready"]}});
    pod["spec"]["initContainers"][0]["readinessProbe"] = probe.clone();
    pod["spec"]["initContainers"][3]["readinessProbe"] = probe.clone();
    let pod = native(&pod);
    assert_eq!(pod["spec"]["initContainers"][3]["startupProbe"]["exec"], probe["exec"]);
    assert_eq!(pod["spec"]["initContainers"][0].get("startupProbe"), None, "this one was always native");
}

#[test]
fn levels_that_native_sidecars_cannot_have_get_a_barrier() {
    let probe = json!({"exec": {"command": ["true"]}});
    let two = controlled(&[("main", Value::Null), ("proxy", priority("1"))]);
    let with = |change: fn(&mut Value, &Value)| {
        let mut pod = two.clone();
        change(&mut pod, &probe);
        pod
    };
    let rows = [
        ("no controller: Helm or others", pod(&[("main", Value::Null), ("proxy", priority("1"))])),
        (
            "an owner that is no controller",
            with(|pod, _| pod["metadata"]["ownerReferences"][0]["controller"] = json!(false)),
        ),
        ("Job", with(|pod, _| pod["spec"]["restartPolicy"] = json!("OnFailure"))),
        ("Job", with(|pod, _| pod["spec"]["restartPolicy"] = json!("Never"))),
        (
            "a policy of its own",
            with(|pod, _| pod["spec"]["containers"][1]["restartPolicy"] = json!("Never")),
        ),
        (
            "a startup probe that tests less",
            with(|pod, probe| {
                pod["spec"]["containers"][1]["startupProbe"] = probe.clone();
                pod["spec"]["containers"][1]["readinessProbe"] =
                    json!({"exec": {"command": ["test", "-e", "/x"]}});
            }),
        ),
        (
            "two that would wait for each other",
            with(|pod, probe| {
                pod["spec"]["containers"][1]["readinessProbe"] = probe.clone();
                let mut second = pod["spec"]["containers"][1].clone();
                second["name"] = json!("second");
                pod["spec"]["containers"].as_array_mut().expect("a list").push(second);
            }),
        ),
        ("a timeout", with(|pod, _| pod["metadata"]["annotations"] = json!({names::LAUNCH_TIMEOUT: "1m"}))),
        (
            "a graph",
            with(|pod, _| pod["metadata"]["annotations"] = json!({names::DEPENDS_ON: "main: proxy ready"})),
        ),
        (
            "a hook that may wait for the other one",
            with(|pod, probe| {
                pod["spec"]["containers"][1]["readinessProbe"] = probe.clone();
                let hook = json!({"postStart": {"exec": {"command": ["wait"]}}});
                let second = json!({"name": "second", "env": priority("1"), "lifecycle": hook});
                pod["spec"]["containers"].as_array_mut().expect("a list").push(second);
            }),
        ),
        (
            "a main that may end the pod",
            with(|pod, _| pod["spec"]["containers"][0]["restartPolicy"] = json!("OnFailure")),
        ),
        (
            "kubectl apply",
            with(|pod, _| {
                pod["metadata"]["annotations"] =
                    json!({"kubectl.kubernetes.io/last-applied-configuration": "{}"});
            }),
        ),
        (
            "kubectl apply --server-side",
            with(|pod, _| {
                pod["metadata"]["managedFields"] = json!([{"manager": "kubectl", "operation": "Apply"}])
            }),
        ),
        (
            "two that want one port of the node, which the API server refuses",
            with(|pod, _| {
                for c in pod["spec"]["containers"].as_array_mut().expect("a list") {
                    c["ports"] = json!([{"containerPort": 80, "hostPort": 80, "protocol": "TCP"}]);
                }
            }),
        ),
        (
            "two ports of one name, of which a Service takes the first",
            with(|pod, _| {
                for (i, c) in pod["spec"]["containers"].as_array_mut().expect("a list").iter_mut().enumerate()
                {
                    c["ports"] = json!([{"containerPort": 80 + i, "name": "http"}]);
                }
            }),
        ),
        // The author's choice for a single pod.
        ("no sidecars", with(|pod, _| pod["metadata"]["annotations"] = json!({names::SIDECARS: ""}))),
    ];
    for (what, pod) in rows {
        let barrier = admitted(&pod);
        assert!(barriers(&barrier.pod).1.is_some(), "{what}");
        assert_eq!(admit(&pod, SUFFIX, Launch::Native), Ok(barrier), "{what}");
    }
    // A refused pod gets the same message.
    let bad = pod(&[("main", Value::Null), ("proxy", priority("x"))]);
    assert_eq!(admit(&bad, SUFFIX, Launch::Native), admit(&bad, SUFFIX, Launch::Barrier));
}

#[test]
fn warnings_and_refusals_name_the_place_an_author_has_written() {
    let mut pod = pod(&[("first", Value::Null), ("main", Value::Null), ("proxy", priority("x"))]);
    pod["metadata"]["annotations"] = json!({names::SIDECARS: "first"});
    let refusal = admit(&pod, SUFFIX, Launch::Barrier).expect_err("not a number");
    assert!(refusal.message.contains("spec.containers[2].env[0]"), "{refusal}");
    pod["spec"]["containers"][2]["env"] = Value::Null;
    pod["spec"]["containers"][0]["readinessProbe"] = json!({"exec": {"command": ["false"]}});
    let warnings = admitted(&pod).warnings;
    assert!(
        warnings[0].starts_with("spec.containers[0].readinessProbe: this probe never passes"),
        "{warnings:?}"
    );
}
