//! Stopping sidecars: sections 5.5 to 5.8 of the OpenKruise specification.

use serde_json::{Value, json};

use super::{NOW, pod, status};
use crate::decide::terminate::{
    Class, Node, Past, ResultTime, TerminateStep, attempt_of, class, decide, delayed_until, ends_by_kubelet,
    is_of_interest, keep_result, outlook, own_grace_seconds, request_name,
};
use crate::view::ObservedPod;

/// The envs of a sidecar with these marks: `kill`, `image`, `ignore`.
fn envs(marks: &str) -> Value {
    let env = |mark: &str| match mark {
        "kill" => json!({"name": "KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT", "value": "TRUE"}),
        "image" => json!({"name": "KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT_WITH_IMAGE", "value": "exit:1"}),
        "ignore" => json!({"name": "KRUISE_TERMINATE_SIDECAR_IGNORE_EXIT_CODE", "value": "true"}),
        other => panic!("no such mark: {other}"),
    };
    marks.split_whitespace().map(env).collect()
}

/// A pod. Containers have a name, marks and a state ("" for no status).
fn object(policy: &str, phase: &str, containers: &[(&str, &str, &str)]) -> Value {
    let list: Vec<Value> = containers
        .iter()
        .map(|(name, marks, _)| json!({"name": name, "image": "i", "env": envs(marks)}))
        .collect();
    let statuses = containers.iter().filter(|(.., state)| !state.is_empty());
    let statuses: Vec<Value> = statuses.map(|(name, _, state)| status(name, state)).collect();
    json!({
        "metadata": {"name": "pod", "namespace": "ns", "uid": "u-1"},
        "spec": {"nodeName": "n", "restartPolicy": policy, "containers": list},
        "status": {"phase": phase, "containerStatuses": statuses},
    })
}

fn view(policy: &str, phase: &str, containers: &[(&str, &str, &str)]) -> ObservedPod {
    ObservedPod::always(&pod(object(policy, phase, containers)), NOW).expect("a pod")
}

fn stopped(steps: &[TerminateStep]) -> Vec<String> {
    let stops = steps.iter().find_map(|s| match s {
        TerminateStep::Stop { containers, .. } => Some(containers.clone()),
        _ => None,
    });
    stops.unwrap_or_default()
}

fn phase(steps: &[TerminateStep]) -> Option<&'static str> {
    steps.iter().find_map(|s| match s {
        TerminateStep::End { phase, .. } => Some(*phase),
        _ => None,
    })
}

const KI: &str = "kill image";

#[test]
fn the_kubelet_is_woken_only_where_it_stops_the_sidecars() {
    let done = |marks: &str| view("Never", "Running", &[("main", "", "0"), ("sidecar", marks, "running")]);
    let woken = |marks: &str, node| {
        let steps = decide(&done(marks), node, &[], NOW);
        (phase(&steps).is_some(), ends_by_kubelet(&steps, &[]))
    };
    assert_eq!(woken("kill", Node::WithoutAgent), (true, true), "it is all that ends them");
    assert_eq!(
        woken("kill ignore", Node::Machine),
        (true, false),
        "the agent is asked to, and has not run the hooks yet"
    );
    let asked = Past {
        attempt: 1,
        finished: false,
        unserved: false,
        targets: vec![],
        stopped: vec![],
        needs_result: true,
    };
    let steps = decide(&done("kill"), Node::Machine, std::slice::from_ref(&asked), NOW);
    assert_eq!(
        (phase(&steps), ends_by_kubelet(&steps, &[asked])),
        (Some("Succeeded"), false),
        "the agent is about to"
    );
}

#[test]
fn sidecars_are_stopped_when_the_mains_are_done() {
    // id, policy, phase, containers, stopped, phase written
    type Row<'a> =
        (&'a str, &'a str, &'a str, &'a [(&'a str, &'a str, &'a str)], &'a [&'a str], Option<&'a str>);
    let rows: &[Row<'_>] = &[
        ("ST-U-01", "Never", "Running", &[("main", "", "unknown"), ("sidecar", KI, "running")], &[], None),
        (
            "ST-U-02",
            "Never",
            "Running",
            &[("main", "", "137"), ("sidecar", KI, "running")],
            &["sidecar"],
            None,
        ),
        ("ST-U-03", "Never", "Failed", &[("main", "", "137"), ("sidecar", KI, "137")], &[], None),
        ("ST-U-04", "Never", "Running", &[("main", "", "0"), ("sidecar", KI, "running")], &["sidecar"], None),
        (
            "ST-U-05",
            "OnFailure",
            "Running",
            &[("main", "", "unknown"), ("sidecar", KI, "running")],
            &[],
            None,
        ),
        ("ST-U-06", "OnFailure", "Running", &[("main", "", "137"), ("sidecar", KI, "0")], &[], None),
        ("ST-U-07", "OnFailure", "Succeeded", &[("main", "", "0"), ("sidecar", KI, "0")], &[], None),
        (
            "ST-U-08",
            "OnFailure",
            "Running",
            &[("m1", "", "0"), ("m2", "", "0"), ("s1", KI, "unknown"), ("s2", KI, "unknown")],
            &["s1", "s2"],
            None,
        ),
        (
            "ST-U-09",
            "OnFailure",
            "Running",
            &[("m1", "", "0"), ("m2", "", "0"), ("s1", KI, "running"), ("s2", KI, "running")],
            &["s1", "s2"],
            None,
        ),
        (
            "ST-U-10",
            "OnFailure",
            "Running",
            &[("m1", "", "0"), ("m2", "", "0"), ("s1", KI, "0"), ("s2", KI, "unknown")],
            &["s2"],
            None,
        ),
        (
            "ST-U-11, ST-V-09",
            "OnFailure",
            "Running",
            &[("m1", "", "0"), ("m2", "", "unknown"), ("s1", KI, "0"), ("s2", KI, "unknown")],
            &[],
            None,
        ),
        (
            "ST-U-12",
            "OnFailure",
            "Running",
            &[
                ("m1", "", "0"),
                ("m2", "", "0"),
                ("s1", KI, "unknown"),
                ("s2", KI, "unknown"),
                ("s3", "kill ignore", "unknown"),
            ],
            &["s1", "s2"],
            None,
        ),
        (
            "ST-U-13",
            "OnFailure",
            "Running",
            &[
                ("m1", "", "0"),
                ("m2", "", "0"),
                ("s1", KI, "0"),
                ("s2", KI, "0"),
                ("s3", "kill ignore", "unknown"),
            ],
            &["s3"],
            Some("Succeeded"),
        ),
        ("ST-6", "Always", "Running", &[("main", "", "0"), ("sidecar", KI, "running")], &[], None),
        ("ST-9", "Never", "Running", &[("s1", KI, "running"), ("s2", KI, "running")], &[], None),
        ("ST-4", "Never", "Running", &[("main", "", "0"), ("other", "ignore", "running")], &[], None),
        // KD6, ST-25, ST-29: the pod is Pending because one sidecar never started. The others are stopped.
        (
            "KD6",
            "Never",
            "Pending",
            &[("main", "", "0"), ("s1", "kill", "running"), ("s2", "kill", "waiting:ImagePullBackOff")],
            &["s1"],
            None,
        ),
    ];
    for (id, policy, before, containers, stops, written) in rows {
        let steps = decide(&view(policy, before, containers), Node::Machine, &[], NOW);
        assert_eq!(stopped(&steps), *stops, "{id}: {steps:?}");
        assert_eq!(phase(&steps), *written, "{id}: {steps:?}");
    }
}

#[test]
fn images_are_replaced_on_virtual_nodes() {
    type Row<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str, &'a str)], usize);
    let rows: &[Row<'_>] = &[
        ("ST-V-01", "Never", &[("main", "", "unknown"), ("s", KI, "unknown")], 0),
        ("ST-V-02", "Never", &[("main", "", "137"), ("s", "image", "unknown")], 1),
        ("ST-V-03", "Never", &[("main", "", "0"), ("s", KI, "unknown")], 1),
        ("ST-V-04", "OnFailure", &[("main", "", "unknown"), ("s", KI, "unknown")], 0),
        ("ST-V-05", "OnFailure", &[("main", "", "137"), ("s", KI, "unknown")], 0),
        ("ST-V-06", "OnFailure", &[("main", "", "0"), ("s", KI, "unknown")], 1),
        (
            "ST-V-07",
            "OnFailure",
            &[("m1", "", "0"), ("m2", "", "0"), ("s1", KI, "unknown"), ("s2", KI, "unknown")],
            2,
        ),
        (
            "ST-V-08",
            "OnFailure",
            &[("m1", "", "0"), ("m2", "", "0"), ("s1", KI, "0"), ("s2", KI, "unknown")],
            1,
        ),
    ];
    for (id, policy, containers, swaps) in rows {
        let steps = decide(&view(policy, "Running", containers), Node::Virtual, &[], NOW);
        let swapped = steps.iter().find_map(|s| match s {
            TerminateStep::Swap(list) => Some(list.len()),
            _ => None,
        });
        assert_eq!(swapped.unwrap_or(0), *swaps, "{id}: {steps:?}");
        assert_eq!(stopped(&steps), Vec::<String>::new(), "{id}: no request on a virtual node");
    }
    // After its image was replaced, it is waited for and not replaced again.
    let mut object = object("Never", "Running", &[("main", "", "0"), ("s", "image", "running")]);
    object["spec"]["containers"][1]["image"] = json!("exit:1");
    let view = ObservedPod::always(&pod(object), NOW).expect("a pod");
    assert_eq!(decide(&view, Node::Virtual, &[], NOW), []);
}

#[test]
fn only_pods_whose_mains_are_done_are_of_interest() {
    type Row<'a> = (&'a str, &'a str, &'a str, &'a str, &'a str, bool);
    let rows: &[Row<'_>] = &[
        // id, policy, phase, main, sidecar, whether the pod matches
        ("ST-Q-02, ST-Q-13", "Always", "Running", "137", "unknown", false),
        ("ST-Q-03, ST-Q-14", "Never", "Running", "137", "unknown", true),
        ("ST-Q-04", "Never", "Running", "0", "unknown", true),
        ("ST-Q-05, ST-Q-06", "Never", "Running", "0", "0", false),
        ("ST-Q-07, ST-Q-15", "Never", "Succeeded", "0", "0", false),
        ("ST-Q-08, ST-Q-16", "Never", "Succeeded", "0", "137", false),
        ("ST-Q-09, ST-Q-11, ST-Q-17", "Never", "Running", "unknown", "0", false),
        ("ST-Q-10, ST-Q-18", "Never", "Running", "unknown", "unknown", false),
        // Kruise skips Pending pods; KD6: here mains that have finished count.
        ("ST-Q-01, ST-Q-12", "Never", "Pending", "unknown", "unknown", false),
        ("ST-Q-01 with KD6", "Never", "Pending", "0", "unknown", true),
        ("ST-C-01", "Never", "Running", "127", "running", true),
    ];
    for (id, policy, phase, main, sidecar, expected) in rows {
        let view = view(policy, phase, &[("main", "", main), ("sidecar", KI, sidecar)]);
        assert_eq!(is_of_interest(&view), *expected, "{id}");
    }
    for (id, last) in [("ST-C-02", "kill ignore"), ("ST-C-03", "image")] {
        let containers = [("main", "", "0"), ("normal", "kill", "0"), ("last", last, "running")];
        assert!(is_of_interest(&view("OnFailure", "", &containers)), "{id}");
    }
    let mut deleting = object("Never", "Running", &[("main", "", "0"), ("s", KI, "running")]);
    deleting["metadata"]["deletionTimestamp"] = json!("2023-11-14T22:13:20Z");
    assert!(!is_of_interest(&ObservedPod::always(&pod(deleting), NOW).expect("a pod")), "ST-6");
}

#[test]
fn marks_decide_how_a_sidecar_is_ended() {
    let view = view(
        "Never",
        "Running",
        &[
            ("main", "", "0"),
            ("s1", KI, "running"),
            ("s2", "kill ignore", "running"),
            ("s3", "image", "running"),
        ],
    );
    let classes = |node| -> Vec<Class> { (0..4).map(|i| class(&view, i, node)).collect() };
    use Class::{IgnoreExitCode, InPlace, Main, Normal, Stuck};
    assert_eq!(classes(Node::Machine), [Main, Normal, IgnoreExitCode, Normal], "ST-C-04");
    assert_eq!(classes(Node::WithoutAgent), [Main, Normal, IgnoreExitCode, InPlace]);
    assert_eq!(classes(Node::Virtual), [Main, InPlace, Stuck, InPlace], "ST-C-05");
}

#[test]
fn sidecars_with_an_image_only_are_stopped_by_an_agent() {
    // If the image of one is replaced while another is stopped, the exit code of one of them can become the
    // pod's result.
    let containers = [("main", "", "0"), ("s", "kill", "running"), ("w", "image", "running")];
    for policy in ["Never", "OnFailure"] {
        let steps = decide(&view(policy, "Running", &containers), Node::Machine, &[], NOW);
        assert_eq!(stopped(&steps), ["s", "w"], "{steps:?}");
        assert!(
            !steps.iter().any(|s| matches!(s, TerminateStep::Swap(_) | TerminateStep::End { .. })),
            "{steps:?}"
        );
    }
}

fn past(attempt: u32, finished: bool, stopped: &[(&str, &str)]) -> Past {
    let stopped = stopped.iter().map(|(n, id)| ((*n).to_owned(), (*id).to_owned())).collect();
    Past { attempt, finished, unserved: false, targets: vec![], stopped, needs_result: false }
}

#[test]
fn a_sidecar_that_comes_back_is_stopped_again() {
    // ST-23, KD4, issue 1366 of Kruise: restarted by the kubelet under OnFailure.
    let mut object = object("OnFailure", "Running", &[("main", "", "0"), ("s", "kill", "running")]);
    object["status"]["containerStatuses"][1]["containerID"] = json!("containerd://s-1");
    object["status"]["containerStatuses"][1]["restartCount"] = json!(1);
    let view = ObservedPod::always(&pod(object), NOW).expect("a pod");
    let first = past(1, true, &[("s", "containerd://s-0")]);
    let steps = decide(&view, Node::Machine, std::slice::from_ref(&first), NOW);
    assert!(matches!(&steps[0], TerminateStep::Stop { attempt: 2, .. }), "{steps:?}");
    // No new request is made while one is in progress.
    assert_eq!(decide(&view, Node::Machine, &[first.clone(), past(2, false, &[])], NOW), []);
    // The number of attempts is limited. Setting the phase then ends the pod.
    let tried: Vec<Past> = (1..=5).map(|n| past(n, true, &[("s", "containerd://s-0")])).collect();
    assert_eq!(phase(&decide(&view, Node::Machine, &tried, NOW)), Some("Succeeded"));
}

#[test]
fn the_result_is_that_of_the_mains() {
    let done = [past(1, true, &[("s", "containerd://s-0")])];
    // KD5: the sidecar was stopped, and the kubelet has not seen it yet.
    let view_of = |policy: &str, main: &str, sidecar: &str| {
        view(policy, "Running", &[("main", "", main), ("s", "kill", sidecar)])
    };
    assert_eq!(
        phase(&decide(&view_of("Never", "0", "running"), Node::Machine, &done, NOW)),
        Some("Succeeded")
    );
    assert_eq!(phase(&decide(&view_of("Never", "3", "running"), Node::Machine, &done, NOW)), Some("Failed"));
    // OnFailure: the kubelet would restart a sidecar that exited with an error (ST-23).
    assert_eq!(
        phase(&decide(&view_of("OnFailure", "0", "143"), Node::Machine, &done, NOW)),
        Some("Succeeded")
    );
    // There is nothing to do, because the kubelet sets the same result.
    assert_eq!(decide(&view_of("Never", "0", "0"), Node::Machine, &done, NOW), []);
    assert_eq!(decide(&view_of("Never", "3", "143"), Node::Machine, &done, NOW), []);
    // A sidecar that never started, or is in back-off, does not keep the pod running (ST-25).
    for reason in
        ["waiting:ImagePullBackOff", "waiting:CrashLoopBackOff", "waiting:CreateContainerConfigError"]
    {
        let steps = decide(&view_of("OnFailure", "0", reason), Node::Machine, &[], NOW);
        assert_eq!(phase(&steps), Some("Succeeded"), "{reason}");
    }
    // The agent is about to stop the sidecar. The result is written first, so that the exit code cannot
    // become the result.
    let waiting = [Past { needs_result: true, ..past(1, false, &[]) }];
    for (main, expected) in [("0", "Succeeded"), ("3", "Failed")] {
        let steps = decide(&view_of("Never", main, "running"), Node::Machine, &waiting, NOW);
        assert_eq!(phase(&steps), Some(expected));
        assert_eq!(stopped(&steps), Vec::<String>::new());
    }
    let steps = decide(&view_of("Never", "0", "running"), Node::Machine, &[], NOW);
    assert!(matches!(&steps[0], TerminateStep::Stop { result: ResultTime::BeforeLastStop, .. }), "{steps:?}");
    // This does not apply if the author wants exit codes to count (ST-18).
    let mut counting = object("Never", "Running", &[("main", "", "0"), ("s", "kill", "143")]);
    counting["metadata"]["annotations"] = json!({"outrigger.dev/sidecar-phase": "Count"});
    let view = ObservedPod::always(&pod(counting), NOW).expect("a pod");
    assert_eq!(decide(&view, Node::Machine, &done, NOW), []);
    let mut counting = object("Never", "Running", &[("main", "", "0"), ("s", "kill", "running")]);
    counting["metadata"]["annotations"] = json!({"outrigger.dev/sidecar-phase": "Count"});
    let steps = decide(&ObservedPod::always(&pod(counting), NOW).expect("a pod"), Node::Machine, &[], NOW);
    assert!(matches!(&steps[0], TerminateStep::Stop { result: ResultTime::ByKubelet, .. }), "{steps:?}");
}

#[test]
fn a_sidecar_that_has_failed_by_itself_counts_as_everywhere_else() {
    // ST-18, KD5: the same rules as in `outrigger run` apply, and the kubelet decides the same.
    let view_of = |marks: &str| {
        let containers = [("main", "", "0"), ("s", marks, "3"), ("other", "kill", "running")];
        view("Never", "Running", &containers)
    };
    let ending = |targets: &[(&str, &str)]| {
        let targets = targets.iter().map(|(n, id)| ((*n).to_owned(), (*id).to_owned())).collect();
        [Past { needs_result: true, targets, ..past(1, false, &[]) }]
    };
    let other = [("other", "containerd://other-0")];
    let steps = decide(&view_of("kill"), Node::Machine, &ending(&other), NOW);
    assert!(
        matches!(&steps[..], [TerminateStep::End { phase: "Failed", message }] if message.contains("`s` had failed by itself")),
        "{steps:?}"
    );
    // Its exit code is ignored, or it was being stopped. This holds even before its request says so.
    assert_eq!(
        phase(&decide(&view_of("kill ignore"), Node::Machine, &ending(&other), NOW)),
        Some("Succeeded")
    );
    let both = [("s", "containerd://s-0"), other[0]];
    assert_eq!(phase(&decide(&view_of("kill"), Node::Machine, &ending(&both), NOW)), Some("Succeeded"));
    // An earlier instance was being stopped, but not this one.
    let earlier = [("s", "containerd://s-before"), other[0]];
    assert_eq!(phase(&decide(&view_of("kill"), Node::Machine, &ending(&earlier), NOW)), Some("Failed"));
    // Nothing is left to stop, so the kubelet sets the result.
    let over = view("Never", "Running", &[("main", "", "0"), ("s", "kill", "3")]);
    assert_eq!(decide(&over, Node::Machine, &[], NOW), []);
    // A sidecar that would be restarted has not failed for good.
    let mut ruled =
        object("Never", "Running", &[("main", "", "0"), ("s", "kill", "3"), ("other", "kill", "running")]);
    ruled = crate::decide::admit::job_sidecars(
        &ruled,
        crate::decide::admit::OwnRestartPolicies::Taken,
        crate::decide::admit::Launch::Barrier,
    )
    .expect("admitted")
    .pod;
    let ruled = ObservedPod::always(&pod(ruled), NOW).expect("a pod");
    assert_eq!(phase(&decide(&ruled, Node::Machine, &ending(&other), NOW)), Some("Succeeded"));
    // The replacing image may exit with any code.
    let mut swapped = object("Never", "Running", &[("main", "", "0"), ("s", "image", "3")]);
    swapped["spec"]["containers"][1]["image"] = json!("exit:1");
    let swapped = ObservedPod::always(&pod(swapped), NOW).expect("a pod");
    assert_eq!(phase(&decide(&swapped, Node::Virtual, &[], NOW)), Some("Succeeded"));
}

#[test]
fn a_node_without_an_agent_does_not_keep_the_pod() {
    // ST-28, KD17, KP7
    let unserved = [Past { unserved: true, ..past(1, true, &[]) }];
    let view_of = |marks| view("Never", "Running", &[("main", "", "0"), ("s", marks, "running")]);
    assert_eq!(phase(&decide(&view_of("kill"), Node::Machine, &unserved, NOW)), Some("Succeeded"));
    let steps = decide(&view_of("kill image"), Node::Machine, &unserved, NOW);
    assert!(matches!(&steps[0], TerminateStep::Swap(_)), "{steps:?}");
    // If no agent is installed, no request is made first.
    assert_eq!(phase(&decide(&view_of("kill"), Node::WithoutAgent, &[], NOW)), Some("Succeeded"));
    let steps = decide(&view_of("kill image"), Node::WithoutAgent, &[], NOW);
    assert!(matches!(&steps[0], TerminateStep::Swap(_)), "{steps:?}");
    assert_eq!(stopped(&steps), Vec::<String>::new());
}

#[test]
fn what_started_last_stops_first() {
    // KD7
    let mut object = object(
        "Never",
        "Running",
        &[("main", "", "0"), ("mesh", "kill", "running"), ("log", "kill", "running")],
    );
    for (c, level) in [(0, 0), (1, 2), (2, 1)] {
        let env = object["spec"]["containers"][c]["env"].as_array_mut().expect("envs");
        env.push(super::barrier_env(&format!("p_{level}")));
    }
    let steps = decide(&ObservedPod::always(&pod(object), NOW).expect("a pod"), Node::Machine, &[], NOW);
    let TerminateStep::Stop { containers, ordered, .. } = &steps[0] else { panic!("{steps:?}") };
    assert_eq!((containers.as_slice(), *ordered), (["log".to_owned(), "mesh".to_owned()].as_slice(), true));
}

#[test]
fn sidecars_that_would_be_restarted_are_stopped_together() {
    // KD4: a Job counts the restarts of a sidecar that is stopped before the others.
    let of = |policy: &str, count: bool, own: Option<usize>| {
        let mut object = object(
            policy,
            "Running",
            &[("main", "", "0"), ("mesh", "kill", "running"), ("log", "kill", "running")],
        );
        for (c, level) in [(1, 2), (2, 1)] {
            let env = object["spec"]["containers"][c]["env"].as_array_mut().expect("envs");
            env.push(super::barrier_env(&format!("p_{level}")));
        }
        if count {
            object["metadata"]["annotations"] = json!({"outrigger.dev/sidecar-phase": "Count"});
        }
        if let Some(c) = own {
            object["spec"]["containers"][c]["restartPolicy"] = json!("OnFailure");
        }
        let steps = decide(&ObservedPod::always(&pod(object), NOW).expect("a pod"), Node::Machine, &[], NOW);
        let TerminateStep::Stop { containers, ordered, .. } = &steps[0] else { panic!("{steps:?}") };
        assert_eq!(containers, &["log", "mesh"], "their hooks run in this order");
        *ordered
    };
    assert!(of("Never", false, None), "KD7");
    assert!(!of("OnFailure", false, None));
    assert!(of("OnFailure", true, None), "the result is the kubelet's");
    assert!(of("Never", false, Some(1)), "the last one is stopped after the result");
    assert!(!of("Never", false, Some(2)), "the first one would come back");
}

#[test]
fn mixed_classes_have_requests_of_their_own() {
    // ST-27, KD6
    let view = view(
        "Never",
        "Running",
        &[("main", "", "0"), ("s1", "kill", "running"), ("s2", "kill ignore", "running")],
    );
    let done = [past(1, true, &[("s1", "containerd://s1-0")])];
    let steps = decide(&view, Node::Machine, &done, NOW);
    assert_eq!(phase(&steps), Some("Succeeded"));
    assert!(
        steps.iter().any(
            |s| matches!(s, TerminateStep::Stop { attempt: 2, containers, .. } if *containers == ["s2"])
        ),
        "{steps:?}"
    );
    assert_eq!(request_name("u-1", 1), "sidecar-termination-u-1", "ST-13");
    for n in 1..4 {
        assert_eq!(attempt_of(&request_name("u-1", n), "u-1"), Some(n));
    }
    assert_eq!(attempt_of("sidecar-termination-u-2", "u-1"), None);
    assert_eq!(attempt_of("mine", "u-1"), None);
}

#[test]
fn sidecars_can_run_on_after_the_mains_and_have_a_grace_of_their_own_kd7() {
    let view = |sidecar: &str| {
        let mut object = object("Never", "Running", &[("main", "", "0"), ("s", "kill", sidecar)]);
        object["metadata"]["annotations"] =
            json!({"outrigger.dev/sidecar-delay": "10s", "outrigger.dev/stop-grace": "s=1500ms"});
        ObservedPod::always(&pod(object), NOW).expect("a pod")
    };
    let ended: outrigger_lifecycle::Time = outrigger_lifecycle::Time(1_700_000_040_000);
    let running = view("running");
    // The kubelet's times are full seconds, so the time is rounded up.
    assert_eq!(delayed_until(&running), Some(ended + 11_000));
    assert_eq!(decide(&running, Node::Machine, &[], ended + 10_999), []);
    assert_eq!(decide(&running, Node::Virtual, &[], ended), []);
    let next = outlook(&running, Node::Machine, &[], ended + 1_000).expect("a sentence");
    assert_eq!(next, "`s` is stopped in 10 s (outrigger.dev/sidecar-delay)");
    assert_eq!(stopped(&decide(&running, Node::Machine, &[], ended + 11_000)), ["s"]);
    assert_eq!(own_grace_seconds(&running, "s"), Some(2), "rounded up");
    assert_eq!(own_grace_seconds(&running, "main"), None);
    // A sidecar that is not running is not waited for.
    let crashed = view("waiting:CrashLoopBackOff");
    assert_eq!(delayed_until(&crashed), None);
    assert_eq!(phase(&decide(&crashed, Node::Machine, &[], ended)), Some("Succeeded"));
}

#[test]
fn the_result_comes_after_the_kubelet_has_reported_the_earlier_stops() {
    // KD5, KD7: `b` was stopped first. Until the kubelet has seen that, the time of its next check is
    // unknown. That check may see the exit of `a` before the result.
    let view = |b: &str| {
        let containers = [("main", "", "0"), ("a", "kill", "running"), ("b", "kill", b)];
        let mut object = object("Never", "Running", &containers);
        object["metadata"]["annotations"] = json!({"outrigger.dev/depends-on": "b: a started"});
        ObservedPod::always(&pod(object), NOW).expect("a pod")
    };
    let stopped_b = [("b", "containerd://b-0")].map(|(name, id)| (name.to_owned(), id.to_owned())).to_vec();
    let waiting = [Past { needs_result: true, stopped: stopped_b, ..past(1, false, &[]) }];
    assert_eq!(decide(&view("running"), Node::Machine, &waiting, NOW), []);
    assert_eq!(phase(&decide(&view("143"), Node::Machine, &waiting, NOW)), Some("Succeeded"));
}

#[test]
fn a_result_that_was_written_stays() {
    // A kubelet on a busy node reports that main is done and `b` waits. The result is written. The kubelet's
    // next status was computed before that.
    let ended = |phase: &str, is_true: &str| {
        let condition = json!({"type": "SidecarTerminated", "status": is_true});
        json!({"metadata": {"name": "pod"}, "status": {"phase": phase, "conditions": [condition]}})
    };
    let late =
        |phase: &str| json!({"metadata": {"name": "pod"}, "status": {"phase": phase, "message": "new"}});
    for written in ["Succeeded", "Failed"] {
        for phase in ["Pending", "Running", "Failed", "Succeeded"] {
            let kept = keep_result(&ended(written, "True"), &late(phase));
            assert_eq!(
                (&kept["status"]["phase"], &kept["status"]["message"]),
                (&json!(written), &json!("new"))
            );
        }
    }
    assert_eq!(keep_result(&ended("Running", "True"), &late("Failed")), late("Failed"), "there is none yet");
    assert_eq!(
        keep_result(&ended("Succeeded", "False"), &late("Failed")),
        late("Failed"),
        "it is not the operator's"
    );
    assert_eq!(keep_result(&json!({}), &late("Failed")), late("Failed"));
}
