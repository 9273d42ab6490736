//! Pods that are being created: section 5.3 of the OpenKruise specification.

use serde_json::{Value, json};

use crate::decide::Refusal;
use crate::decide::admit::{Admitted, Launch, OwnRestartPolicies, admit, job_sidecars};
use crate::names;

pub(super) const SUFFIX: &str = "abcde12345";

pub(super) fn priority(value: &str) -> Value {
    json!([{"name": "KRUISE_CONTAINER_PRIORITY", "value": value}])
}

/// A pod with these containers and their envs.
pub(super) fn pod(containers: &[(&str, Value)]) -> Value {
    let list: Vec<Value> = containers
        .iter()
        .map(|(name, env)| match env {
            Value::Null => json!({"name": name, "image": "i"}),
            env => json!({"name": name, "image": "i", "env": env}),
        })
        .collect();
    json!({"metadata": {"name": "fake", "namespace": "ns"}, "spec": {"containers": list}})
}

pub(super) fn ordered(mut pod: Value, value: &str) -> Value {
    pod["metadata"]["annotations"] = json!({names::ORDERED: value});
    pod
}

pub(super) fn admitted(pod: &Value) -> Admitted {
    admit(pod, SUFFIX, Launch::Barrier).unwrap_or_else(|refusal| panic!("{refusal:?}"))
}

/// The keys the containers wait for, in order, and their ConfigMap.
pub(super) fn barriers(pod: &Value) -> (Vec<Option<String>>, Option<String>) {
    let mut map = None;
    let keys = pod["spec"]["containers"].as_array().expect("containers").iter().map(|c| {
        let env = c["env"]
            .as_array()?
            .iter()
            .filter(|e| names::BARRIER_ENVS.contains(&e["name"].as_str().unwrap_or_default()));
        let found: Vec<&Value> = env.collect();
        assert!(found.len() <= 1, "one barrier a container: {c}");
        let reference = &found.first()?["valueFrom"]["configMapKeyRef"];
        assert!(reference.get("optional").is_none(), "LP-8");
        let name = reference["name"].as_str().expect("a name").to_owned();
        assert!(map.as_ref().is_none_or(|m| *m == name), "one map a pod");
        map = Some(name);
        Some(reference["key"].as_str()?.to_owned())
    });
    (keys.collect(), map)
}

pub(super) fn keys(pod: &Value) -> Vec<String> {
    barriers(&admitted(pod).pod).0.into_iter().map(Option::unwrap_or_default).collect()
}

#[test]
fn pods_get_the_barrier_they_ask_for() {
    let none = Value::Null;
    let three = pod(&[("a", none.clone()), ("b", none.clone()), ("c", none.clone())]);
    let rows: Vec<(&str, Value, &[&str])> = vec![
        ("LP-W-01", pod(&[("a", none.clone()), ("b", none.clone())]), &["", ""]),
        ("LP-W-02", ordered(three, "Ordered"), &["p_0", "p_-1", "p_-2"]),
        ("LP-W-03", pod(&[("a", priority("1")), ("b", none.clone())]), &["p_1", "p_0"]),
        ("LP-W-04", pod(&[("a", priority("5")), ("b", priority("5"))]), &["", ""]),
        ("LP-W-05", pod(&[("a", priority("0")), ("b", priority("0"))]), &["", ""]),
        ("LP-W-06", pod(&[("a", priority("1"))]), &[""]),
        ("LP-W-06", ordered(pod(&[("a", none.clone())]), "Ordered"), &[""]),
        (
            "LP-W-08",
            ordered(pod(&[("a", priority("abc")), ("b", none.clone())]), "Ordered"),
            &["p_0", "p_-1"],
        ),
        ("LP-W-09", ordered(pod(&[("a", none.clone()), ("b", none.clone())]), "ordered"), &["", ""]),
        (
            "LP-W-12",
            pod(&[("a", json!([priority("3")[0], priority("7")[0]])), ("b", none.clone())]),
            &["p_7", "p_0"],
        ),
        ("LP-6", pod(&[("a", priority("+4")), ("b", priority("-2"))]), &["p_4", "p_-2"]),
        (
            "the seed's spelling",
            pod(&[
                ("main", none.clone()),
                ("sidecar", json!([{"name": "KRUISE_CONTAINER_LAUNCH_PRIORITY", "value": "1"}])),
            ]),
            &["c_0", "c_1"],
        ),
    ];
    for (id, pod, expected) in rows {
        assert_eq!(keys(&pod), expected, "{id}");
        if expected.iter().all(|k| k.is_empty()) {
            assert_eq!(admitted(&pod).pod, pod, "{id}: unchanged");
        }
    }
}

#[test]
fn the_barrier_is_the_last_env_and_of_the_pods_own_map() {
    let env = json!([{"name": "KRUISE_CONTAINER_PRIORITY", "value": "10"}, {"name": "test", "value": "foo"}]);
    let out = admitted(&pod(&[("c1", json!([{"name": "x", "value": "y"}])), ("c2", env)])).pod;
    // LP-E-01: c1 env[1], c2 env[2]
    assert_eq!(out["spec"]["containers"][0]["env"][1]["valueFrom"]["configMapKeyRef"]["key"], "p_0");
    assert_eq!(out["spec"]["containers"][1]["env"][2]["valueFrom"]["configMapKeyRef"]["key"], "p_10");
    // KD8: Kruise's name would be fake-barrier, for every pod of that name.
    assert_eq!(barriers(&out).1.as_deref(), Some("fake-barrier-abcde12345"));
    for (id, name, level, map, key) in [
        ("LP-U-25", "test-pod", "3", "test-pod-barrier-abcde12345", "p_3"),
        ("LP-U-26", "my-app-deployment-abc123", "-1", "my-app-deployment-abc123-barrier-abcde12345", "p_-1"),
        ("LP-U-27", "zero-pod", "0", "zero-pod-barrier-abcde12345", "p_0"),
        ("LP-U-28", "", "1", "pod-barrier-abcde12345", "p_1"),
    ] {
        let mut pod = pod(&[("a", priority(level)), ("b", priority("7"))]);
        pod["metadata"] = json!({"name": name});
        let (keys, of) = barriers(&admitted(&pod).pod);
        assert_eq!((keys[0].as_deref(), of.as_deref()), (Some(key), Some(map)), "{id}");
    }
    // The env of the first proposal gets the key of the first proposal.
    let seed = json!([{"name": "KRUISE_CONTAINER_LAUNCH_PRIORITY", "value": "1"}]);
    let out = admitted(&pod(&[("main", Value::Null), ("sidecar", seed)])).pod;
    assert_eq!(out["spec"]["containers"][0]["env"][0]["name"], "KRUISE_CONTAINER_LAUNCH_BARRIER");
}

#[test]
fn a_pod_whose_name_the_server_makes_keeps_that() {
    // LP-W-10, LP-9: the name is not generated here, so it cannot collide.
    let mut pod = pod(&[("a", priority("1")), ("b", Value::Null)]);
    pod["metadata"] = json!({"generateName": "web-7d9f-"});
    let out = admitted(&pod).pod;
    assert_eq!(out["metadata"], pod["metadata"]);
    assert_eq!(barriers(&out).1.as_deref(), Some("web-7d9f-barrier-abcde12345"));
    // LP-12: the name is never too long for a ConfigMap. LP-U-28: it is never empty before the suffix.
    pod["metadata"] = json!({"name": "x".repeat(253)});
    assert_eq!(barriers(&admitted(&pod).pod).1.map(|m| m.len()), Some(253));
    pod["metadata"] = json!({});
    assert_eq!(barriers(&admitted(&pod).pod).1.as_deref(), Some("pod-barrier-abcde12345"));
}

#[test]
fn bad_priorities_are_refused_with_a_sentence() {
    // LP-W-07, LP-6, KD12: 422, not an internal error.
    let from = json!([{"name": "KRUISE_CONTAINER_PRIORITY", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]);
    let rows = [
        (priority("abc"), "launch priority \"abc\" is not a whole number"),
        (priority(""), "launch priority \"\" is not a whole number"),
        (priority("1.5"), "launch priority \"1.5\" is not a whole number"),
        (priority(" 1"), "launch priority \" 1\" is not a whole number"),
        (priority("2147483648"), "launch priority 2147483648 is out of range"),
        (priority("99999999999999999999"), "is out of range"),
        (from, "launch priority must be a literal value, not valueFrom"),
    ];
    for (env, expected) in rows {
        let refusal =
            admit(&pod(&[("a", env), ("b", Value::Null)]), SUFFIX, Launch::Barrier).expect_err(expected);
        assert_eq!(refusal.code, 422, "{refusal}");
        assert!(refusal.message.contains(expected), "{refusal}");
        assert!(refusal.message.contains("spec.containers[0].env[0]"), "{refusal}");
    }
}

#[test]
fn init_containers_are_not_looked_at() {
    // LP-W-13, LP-8
    let mut pod = pod(&[("a", Value::Null), ("b", Value::Null)]);
    pod["spec"]["initContainers"] = json!([{"name": "i", "env": priority("3")}]);
    let out = admitted(&pod);
    assert_eq!(out.pod, pod);
    // The other webhook (`job_sidecars`) warns about it, because this pod uses no feature of this one.
    assert_eq!(out.warnings, Vec::<String>::new());
    let warnings = |pod: &Value, launch| {
        job_sidecars(pod, OwnRestartPolicies::Taken, launch).expect("admitted").warnings
    };
    let said = warnings(&pod, Launch::Barrier);
    assert!(said.len() == 1 && said[0].contains("no effect on init containers"), "{said:?}");
    let kill = json!([{"name": "KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT", "value": "true"}]);
    pod["spec"]["initContainers"] = json!([{"name": "i", "env": kill}]);
    let said = warnings(&pod, Launch::Barrier);
    assert!(said.len() == 1 && said[0].contains("ignores init containers"), "{said:?}");
    // A native sidecar may be a container that the other webhook has moved.
    pod["spec"]["initContainers"] = json!([{"name": "i", "restartPolicy": "Always", "env": priority("3")}]);
    assert_eq!(warnings(&pod, Launch::Barrier).len(), 1);
    assert_eq!(warnings(&pod, Launch::Native), Vec::<String>::new());
}

#[test]
fn a_barrier_somebody_else_wrote_is_replaced() {
    // LP-W-14, LP-10, KD12: a pod made from the dump of a live one.
    let first = admitted(&pod(&[("a", priority("1")), ("b", Value::Null)])).pod;
    let mut dumped = first.clone();
    dumped["metadata"]["annotations"] = json!({names::COMPLETED: "true", names::BARRIER_OPENED: "x"});
    let again = admit(&dumped, "zzzzz99999", Launch::Barrier).expect("admitted").pod;
    let (keys, map) = barriers(&again);
    assert_eq!(keys, [Some("p_1".to_owned()), Some("p_0".to_owned())]);
    assert_eq!(map.as_deref(), Some("fake-barrier-zzzzz99999"));
    assert_eq!(again["metadata"]["annotations"], json!({}));
    // A second call changes only the name, so it is safe to call again after other webhooks.
    assert_eq!(admit(&first, SUFFIX, Launch::Barrier).expect("admitted").pod, first);
    // A barrier is removed if the pod needs none.
    let env = json!([{"name": "KRUISE_CONTAINER_BARRIER", "value": "x"}]);
    let out = admitted(&pod(&[("a", env), ("b", Value::Null)]));
    assert_eq!(out.pod["spec"]["containers"][0]["env"], json!([]));
    assert!(out.warnings[0].contains("removed"), "{:?}", out.warnings);
}

#[test]
fn graphs_get_keys_of_their_own() {
    let mut pod = pod(&[("app", Value::Null), ("db", Value::Null), ("web", Value::Null)]);
    pod["metadata"]["annotations"] = json!({names::DEPENDS_ON: "app: db ready\nweb: app started restart"});
    let out = admitted(&pod);
    assert_eq!(barriers(&out.pod).0, [Some("g_app".to_owned()), None, Some("g_web".to_owned())]);
    assert!(
        out.warnings.iter().any(|w| w.contains("`restart` has no effect in a cluster (web)")),
        "{:?}",
        out.warnings
    );
    // If there is a launch priority as well, one key covers both kinds of gates.
    pod["spec"]["containers"][1]["env"] = priority("5");
    let keys = barriers(&admitted(&pod).pod).0;
    assert_eq!(keys, [Some("g_app".to_owned()), None, Some("g_web".to_owned())]);
    for (text, expected) in [
        ("app: nobody ready", "there is no container `nobody`"),
        ("app: db ready\ndb: app ready", "wait for each other in a circle"),
    ] {
        pod["metadata"]["annotations"] = json!({names::DEPENDS_ON: text});
        let refusal = admit(&pod, SUFFIX, Launch::Barrier).expect_err(text);
        assert_eq!(refusal.code, 422);
        assert!(refusal.message.contains(expected), "{refusal}");
    }
    pod["spec"]["initContainers"] = json!([{"name": "first"}, {"name": "second"}]);
    for (text, is_told) in
        [("second: none", true), ("second: first completed", false), ("app: db ready", false)]
    {
        pod["metadata"]["annotations"] = json!({names::DEPENDS_ON: text});
        let told = "not waiting for the init container before has no effect in a cluster (second)";
        assert_eq!(admitted(&pod).warnings.iter().any(|w| w.ends_with(told)), is_told, "{text}");
    }
    pod["metadata"]["annotations"] = json!({names::DEPENDS_ON: "first: second completed; second: none"});
    let refusal = admit(&pod, SUFFIX, Launch::Barrier).expect_err("the wrong way round");
    assert!(refusal.message.contains("move `second` before it"), "{refusal}");
}

#[test]
fn a_pod_whose_sidecars_nothing_would_end_is_refused() {
    let mut job = pod(&[("work", Value::Null), ("proxy", Value::Null)]);
    job["metadata"]["annotations"] = json!({names::DEPENDS_ON: "proxy: sidecar; work: proxy ready"});
    for policy in ["Never", "OnFailure"] {
        job["spec"]["restartPolicy"] = json!(policy);
        let refusal = admit(&job, SUFFIX, Launch::Barrier).expect_err("it would never end");
        assert!(refusal.code == 422 && refusal.message.contains("`proxy` is a `sidecar`"), "{refusal}");
    }
    let mut marked = job.clone();
    marked["spec"]["containers"][1]["env"] =
        json!([{"name": "KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT", "value": "true"}]);
    assert!(admit(&marked, SUFFIX, Launch::Barrier).is_ok());
    job["spec"]["restartPolicy"] = json!("Always");
    assert!(admitted(&job).warnings.iter().any(|w| w.contains("`sidecar` has no effect")));
}

#[test]
fn a_timeout_that_is_none_is_refused() {
    let mut pod = pod(&[("a", priority("1")), ("b", Value::Null)]);
    pod["metadata"]["annotations"] = json!({names::LAUNCH_TIMEOUT: "soon"});
    let refusal = admit(&pod, SUFFIX, Launch::Barrier).expect_err("no duration");
    assert_eq!(refusal.code, 422);
    let message = "invalid value \"soon\"; expected a duration such as `90s`";
    assert!(refusal.message.contains(message), "{refusal}");
}

#[test]
fn what_is_asked_for_in_excess_is_answered_in_time() {
    // The API server waits five seconds, and this is a debug build. The test measures the processor time of
    // this thread, because other threads may be busy.
    let spent = || rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime).tv_sec;
    let begun = spent();
    let many: Vec<Value> =
        (0..12_000).map(|n| json!({"name": format!("VARIABLE_{n}"), "value": "x"})).collect();
    let huge = ordered(pod(&[("a", json!(many)), ("b", Value::Null)]), "Ordered");
    assert_eq!(keys(&huge), ["p_0", "p_-1"]);
    // As many dependencies as fit in an annotation, and unlimited nesting.
    let names: Vec<String> = (0..120).map(|n| format!("c{n}")).collect();
    let on = |n: usize| names[..n].iter().map(|name| format!("{name} ready")).collect::<Vec<_>>().join(", ");
    let graph: Vec<String> = (1..names.len()).map(|n| format!("{}: {}", names[n], on(n))).collect();
    let containers: Vec<(&str, Value)> = names.iter().map(|name| (name.as_str(), Value::Null)).collect();
    let mut dense = pod(&containers);
    dense["metadata"]["annotations"] = json!({names::DEPENDS_ON: graph.join("\n")});
    assert_eq!(keys(&dense).iter().filter(|key| !key.is_empty()).count(), 119);
    for text in ["a: ".repeat(60_000), "[".repeat(200_000), "{".repeat(200_000), "a\n".repeat(100_000)] {
        let mut odd = pod(&[("a", Value::Null), ("b", Value::Null)]);
        odd["metadata"]["annotations"] = json!({names::DEPENDS_ON: text, names::SIDECARS: text});
        let refusal = admit(&odd, SUFFIX, Launch::Barrier).expect_err("refused");
        assert!(refusal.message.chars().count() <= 1_100, "{} characters", refusal.message.len());
    }
    // More containers than a plan may have.
    let names: Vec<String> = (0..2_000).map(|n| format!("c{n}")).collect();
    let containers: Vec<(&str, Value)> = names.iter().map(|name| (name.as_str(), Value::Null)).collect();
    let refusal = admit(&ordered(pod(&containers), "Ordered"), SUFFIX, Launch::Barrier).expect_err("refused");
    assert_eq!(refusal.code, 422, "{refusal}");
    assert!(spent() - begun < 5, "{} s", spent() - begun);
}

#[test]
fn refusals_do_not_steer_a_terminal() {
    let mut odd = pod(&[("a", Value::Null), ("b", Value::Null)]);
    odd["metadata"]["annotations"] = json!({names::SIDECARS: "\u{1b}[2J\u{202e}x"});
    let refusal = admit(&odd, SUFFIX, Launch::Barrier).expect_err("refused");
    assert!(!refusal.message.contains(['\u{1b}', '\u{202e}']), "{refusal:?}");
}

proptest::proptest! {
    /// No input makes the webhook panic, and an admitted pod is admitted again.
    #[test]
    fn hostile_text_is_harmless(text in "\\PC{0,40}", name in "\\PC{0,8}", key in "\\PC{0,8}") {
        let mut pod = pod(&[("a", priority(&text)), ("b", json!([{"name": name, "value": text}]))]);
        pod["metadata"]["annotations"] = json!({names::DEPENDS_ON: text, names::SIDECARS: name, names::ORDERED: text});
        let _ = (admit(&pod, SUFFIX, Launch::Barrier), admit(&pod, SUFFIX, Launch::Native));
        let env = json!([{"name": "KRUISE_CONTAINER_BARRIER", "valueFrom": {"configMapKeyRef": {"name": text, "key": key}}}]);
        let mut live = super::pod(json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "a", "env": env}]}}));
        live.metadata.annotations = Some([(names::DEPENDS_ON.to_owned(), text)].into());
        if let Some(view) = crate::view::ObservedPod::of_served(&live, super::NOW) {
            let _ = crate::decide::barrier::decide(&view, &crate::decide::barrier::Map::Missing, Default::default(), super::NOW);
        }
    }
}

#[test]
fn sidecars_of_pods_that_never_restart_are_restarted_when_they_crash() {
    // KD5: otherwise the kubelet fails the pod when its mains are done.
    let kill = json!([{"name": "KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT", "value": "true"}]);
    let mut job = pod(&[("main", Value::Null), ("proxy", kill.clone()), ("own", kill)]);
    job["spec"]["restartPolicy"] = json!("Never");
    job["spec"]["containers"][2]["restartPolicy"] = json!("Never");
    let out = job_sidecars(&job, OwnRestartPolicies::Taken, Launch::Barrier).expect("admitted");
    assert_eq!(out.pod["spec"]["containers"][1]["restartPolicy"], "OnFailure");
    for index in [0, 2] {
        assert_eq!(out.pod["spec"]["containers"][index], job["spec"]["containers"][index], "left alone");
    }
    assert_eq!(
        job_sidecars(&out.pod, OwnRestartPolicies::Taken, Launch::Barrier).expect("admitted").pod,
        out.pod,
        "twice is once"
    );
    // This does not apply if the API server would refuse the pod, if nothing may change, or if exit codes
    // count.
    assert_eq!(job_sidecars(&job, OwnRestartPolicies::Refused, Launch::Barrier).expect("admitted").pod, job);
    assert_eq!(
        [33, 34, 35, 40].map(OwnRestartPolicies::of_minor),
        [
            OwnRestartPolicies::Refused,
            OwnRestartPolicies::Refused,
            OwnRestartPolicies::Taken,
            OwnRestartPolicies::Taken
        ]
    );
    let mut on_failure = job.clone();
    on_failure["spec"]["restartPolicy"] = json!("OnFailure");
    assert_eq!(
        job_sidecars(&on_failure, OwnRestartPolicies::Taken, Launch::Barrier).expect("admitted").pod,
        on_failure
    );
    // If sidecars stop in an order, only the last one gets a policy. Others would start again and break the
    // order.
    let mut in_order = job.clone();
    in_order["metadata"]["annotations"] = json!({names::ORDERED: "Ordered"});
    let out = job_sidecars(&in_order, OwnRestartPolicies::Taken, Launch::Barrier).expect("admitted").pod;
    in_order["spec"]["containers"][1]["restartPolicy"] = json!("OnFailure");
    assert_eq!(out, in_order, "`own` started after `proxy`, so it stops first");
    in_order["spec"]["containers"][2]["restartPolicy"] = Value::Null;
    let out = job_sidecars(&in_order, OwnRestartPolicies::Taken, Launch::Barrier).expect("admitted").pod;
    assert_eq!(out["spec"]["containers"][2]["restartPolicy"], Value::Null, "not the first");
    job["metadata"]["annotations"] = json!({names::SIDECAR_PHASE: "Count"});
    assert_eq!(job_sidecars(&job, OwnRestartPolicies::Taken, Launch::Barrier).expect("admitted").pod, job);
    job["metadata"]["annotations"] = json!({names::SIDECAR_PHASE: "count"});
    let refusal = job_sidecars(&job, OwnRestartPolicies::Taken, Launch::Barrier).expect_err("a typo");
    assert_eq!(refusal.code, 422);
    assert!(refusal.message.contains("\"count\"; expected `Count` or `Ignore`"), "{refusal}");
}

#[test]
fn clauses_that_no_kubelet_can_serve_are_warned_about() {
    for (clause, word) in [
        ("a: sidecar", "`sidecar`"),
        ("a: primary", "`primary`"),
        ("b: a ready restart", "`restart`"),
        ("a: stop 2; b: start 1, stop 1", "`stop`"),
    ] {
        let mut pod = pod(&[("a", Value::Null), ("b", Value::Null)]);
        pod["metadata"]["annotations"] = json!({names::DEPENDS_ON: clause});
        let warnings = admitted(&pod).warnings;
        assert!(
            warnings.iter().any(|w| w.contains(&format!("{word} has no effect in a cluster"))),
            "{clause}: {warnings:?}"
        );
    }
}

#[test]
fn a_container_that_would_never_start_is_refused() {
    let mut pod = pod(&[("a", Value::Null), ("b", Value::Null)]);
    pod["metadata"]["annotations"] = json!({names::DEPENDS_ON: "a: b completed"});
    let refusal = admit(&pod, SUFFIX, Launch::Barrier).expect_err("a deadlock");
    assert!(refusal.message.contains("`b` is restarted whenever it ends"), "{refusal}");
    pod["spec"]["restartPolicy"] = json!("OnFailure");
    assert!(admit(&pod, SUFFIX, Launch::Barrier).is_ok());
}

#[test]
fn what_has_no_effect_in_a_cluster_is_warned_about() {
    let kill = |value: &str| json!([{"name": "KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT", "value": value}]);
    let job = |value: &str, annotations: Value| {
        let mut pod = pod(&[("main", Value::Null), ("s", kill(value))]);
        pod["spec"]["restartPolicy"] = json!("OnFailure");
        pod["metadata"]["annotations"] = annotations;
        job_sidecars(&pod, OwnRestartPolicies::Taken, Launch::Barrier).expect("admitted").warnings.join("\n")
    };
    assert_eq!(
        job("true", json!({"outrigger.dev/stop-grace": "s=1s", "outrigger.dev/sidecar-delay": "1s"})),
        ""
    );
    for (annotations, expected) in [
        (json!({"outrigger.dev/stop-grace": "main=1s"}), "stop-grace has no effect in a cluster on main"),
        (json!({"outrigger.dev/sidecar-phase": "Count"}), "Count has no effect"),
        (json!({"outrigger.dev/fence": "start"}), "fence has no effect in a cluster"),
        (json!({"outrigger.dev/sidecars-delay": "1s"}), "did you mean outrigger.dev/sidecar-delay?"),
    ] {
        let warnings = job("true", annotations);
        assert!(warnings.contains(expected), "{warnings}");
    }
    assert!(job("yes", json!({})).contains("neither `true` nor `false`"));
    let mut native = pod(&[("main", Value::Null), ("proxy", Value::Null)]);
    native["metadata"]["annotations"] =
        json!({names::SIDECARS: "proxy", "outrigger.dev/sidecar-delay": "8s", names::SIDECAR_PHASE: "Count"});
    let warnings = admitted(&native).warnings.join("\n");
    for name in ["sidecar-delay has no effect", "sidecar-phase has no effect"] {
        assert!(warnings.contains(name), "{warnings}");
    }
    let zero = pod(&[("a", priority("0")), ("b", priority("0"))]);
    assert!(admitted(&zero).warnings[0].contains("nothing is ordered"));
}

#[test]
fn a_job_with_more_containers_than_can_be_handled_is_refused() {
    let names: Vec<String> = (0..300).map(|i| format!("c{i}")).collect();
    let kill = json!([{"name": "KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT", "value": "true"}]);
    let mut containers: Vec<(&str, Value)> = names.iter().map(|name| (name.as_str(), kill.clone())).collect();
    containers[0].1 = Value::Null;
    let mut pod = pod(&containers);
    pod["spec"]["restartPolicy"] = json!("Never");
    let refusal =
        job_sidecars(&pod, OwnRestartPolicies::Taken, Launch::Barrier).expect_err("it would never end");
    assert!(refusal.message.contains("300"), "{refusal}");
}

#[test]
fn both_sides_of_a_circle_are_named() {
    let mut pod = pod(&[("a", Value::Null), ("b", Value::Null)]);
    pod["metadata"]["annotations"] = json!({names::DEPENDS_ON: "a: b; b: a"});
    let refusal = admit(&pod, SUFFIX, Launch::Barrier).expect_err("a circle");
    for entry in ["`a` waits for `b`", "`b` waits for `a`"] {
        assert!(refusal.message.contains(entry), "{refusal}");
    }
}

#[test]
fn refusals_quote_the_beginning_of_long_values_only() {
    let refusal = |text: String| Refusal::new(422, text).message;
    let long = "x".repeat(500);
    assert_eq!(
        refusal(format!("a {long:?} and `{long}`; do this")),
        format!("a \"{0}…\" and `{0}…`; do this", "x".repeat(63))
    );
    assert_eq!(refusal(r#"a "b\"c" d"#.to_owned()), r#"a "b\"c" d"#);
    let pod = pod(&[("a", priority(&"9".repeat(3_000))), ("b", Value::Null)]);
    let refused = admit(&pod, SUFFIX, Launch::Barrier).expect_err("not a number");
    assert!(refused.message.len() < 400, "{refused}");
}

#[test]
fn a_pod_of_sidecars_only_is_refused() {
    // ST-9: with levels, none of the containers would ever start. Without levels, the pod would never end.
    let kill = json!([{"name": "KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT", "value": "true"}]);
    let mut all = ordered(pod(&[("a", kill.clone()), ("b", kill.clone())]), "Ordered");
    for policy in ["Never", "OnFailure"] {
        all["spec"]["restartPolicy"] = json!(policy);
        for refused in [
            admit(&all, SUFFIX, Launch::Barrier),
            job_sidecars(&all, OwnRestartPolicies::Taken, Launch::Barrier),
        ] {
            let refusal = refused.expect_err("no main");
            assert!(refusal.code == 422 && refusal.message.contains("there is no main"), "{refusal}");
        }
    }
    all["spec"]["restartPolicy"] = json!("Always");
    assert_eq!(keys(&all), ["p_0", "p_-1"], "the marks have no effect");
    let warnings = job_sidecars(&all, OwnRestartPolicies::Taken, Launch::Barrier).expect("admitted").warnings;
    assert!(warnings.iter().any(|w| w.contains("no effect with restartPolicy Always")), "{warnings:?}");
}
