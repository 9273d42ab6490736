//! The agent's part of a request: section 5.13 of the OpenKruise specification.

use outrigger_lifecycle::Time;
use serde_json::{Value, json};

use super::NOW;
use crate::api::{Progress, RecreateState, Request};
use crate::decide::serve::{
    Instance, InstanceState, Seen, ServeStep, hook_begun, hook_done, hook_seconds, killed,
    killed_after_verdict, needs_result, pick, step, stop_seconds, stopped_together, stops_after_verdict,
};
use crate::names;

fn request(strategy: Value, containers: &[&str], states: Value, snapshot: Value) -> Request {
    let targets: Vec<Value> = containers
        .iter()
        .map(|name| json!({"name": name, "statusContext": {"containerID": format!("containerd://{name}-0"), "restartCount": 0}}))
        .collect();
    let object = json!({
        "metadata": {"name": "r", "namespace": "ns"},
        "spec": {"podName": "p", "containers": targets, "strategy": strategy},
        "status": {"phase": "Recreating", "containerRecreateStates": states, "containerStatusSnapshot": snapshot},
    });
    serde_json::from_value(object).expect("a request")
}

fn instance(name: &str, number: u32, state: InstanceState) -> Instance {
    Instance {
        name: name.to_owned(),
        id: format!("{name}-{number}"),
        state,
        created_at: u64::from(number),
        started_at: Some(NOW - 10_000),
        restarts: i32::try_from(number).expect("small"),
    }
}

fn running(name: &str, number: u32) -> Instance {
    instance(name, number, InstanceState::Running)
}

fn exited(name: &str, number: u32) -> Instance {
    instance(name, number, InstanceState::Exited)
}

fn next(request: &Request, instances: &[Instance]) -> ServeStep {
    let seen = Seen { result: Some(NOW - 1_000), ..Seen::default() };
    step(request, &["containerd"], instances, seen, NOW)
}

/// The states that the next step stores, or the stored ones if it stores none.
fn states(request: &Request, instances: &[Instance]) -> Vec<RecreateState> {
    match next(request, instances) {
        ServeStep::Store { states, .. } | ServeStep::Complete { states, .. } => states,
        _ => request.status.container_recreate_states.clone(),
    }
}

/// Takes steps until the agent would wait. Stops containers with `stop` and returns the stopped ones.
fn drive(
    request: &mut Request,
    instances: &mut [Instance],
    mut stop: impl FnMut(&str) -> Result<(), String>,
) -> (Vec<String>, ServeStep) {
    let mut kills = Vec::new();
    for _ in 0..50 {
        match next(request, instances) {
            ServeStep::Store { phase, states } => {
                phase.clone_into(&mut request.status.phase);
                request.status.container_recreate_states = states;
            }
            ServeStep::Hook { index, id } => {
                request.status.container_recreate_states = hook_done(request, index, &id, &Ok(()));
            }
            ServeStep::Kill { index, id } => {
                kills.push(id.clone());
                let result = stop(&id);
                if result.is_ok() {
                    instances.iter_mut().filter(|i| i.id == id).for_each(|i| i.state = InstanceState::Exited);
                }
                request.status.container_recreate_states = killed(request, index, result);
            }
            other => return (kills, other),
        }
    }
    panic!("it never rests");
}

#[test]
fn the_state_of_a_container_is_the_first_row_that_holds() {
    let stored = |phase: &str| json!([{"name": "a", "phase": phase}]);
    let snapshot = |ready: bool| json!([{"name": "a", "ready": ready, "restartCount": 1, "containerID": "containerd://a-1"}]);
    let state = |strategy: Value, before: Value, snapshot: Value, instances: &[Instance]| {
        let state = states(&request(strategy, &["a"], before, snapshot), instances).remove(0);
        (state.phase, state.message)
    };
    let none = || json!([]);
    for phase in ["Failed", "Succeeded"] {
        let (got, _) = state(json!({"failurePolicy": "Ignore"}), stored(phase), none(), &[running("a", 0)]);
        assert_eq!(format!("{got:?}"), phase, "CRR-D-20, row a");
    }
    let missing = state(json!({}), none(), none(), &[]);
    assert_eq!(missing, (Progress::Pending, "not found container on Node".to_owned()), "CRR-D-21, row b");
    let stop = state(json!({"action": "Stop"}), none(), none(), &[]);
    assert_eq!(stop, (Progress::Succeeded, String::new()), "KD4: nothing to stop");
    assert_eq!(
        state(json!({}), none(), none(), &[exited("a", 0)]).0,
        Progress::Recreating,
        "CRR-D-22, row c"
    );
    let force = json!({"forceRecreate": true});
    assert_eq!(
        state(force, none(), snapshot(true), &[running("a", 1)]).0,
        Progress::Pending,
        "CRR-D-23, row d"
    );
    assert_eq!(
        state(json!({}), none(), snapshot(true), &[running("a", 1)]).0,
        Progress::Succeeded,
        "CRR-D-24, row e"
    );
    assert_eq!(
        state(json!({}), none(), snapshot(false), &[running("a", 1)]).0,
        Progress::Recreating,
        "CRR-D-24, row e"
    );
    assert_eq!(
        state(json!({}), none(), none(), &[running("a", 1)]).0,
        Progress::Recreating,
        "CRR-D-24, row e"
    );
    assert_eq!(state(json!({}), none(), none(), &[running("a", 0)]).0, Progress::Pending, "CRR-D-25, row f");
    // CRR-E-01: the container must have run longer than requested. It is checked again at that time.
    let slow = request(
        json!({"minStartedSeconds": 12}),
        &["a"],
        json!([{"name": "a", "phase": "Recreating"}]),
        snapshot(true),
    );
    assert_eq!(next(&slow, &[running("a", 1)]), ServeStep::Wait { ms: Some(2_050) });
}

#[test]
fn containers_are_stopped_one_after_the_other() {
    // CRR-D-26, CRR-39: there is no wait for readiness between them.
    let mut both = request(json!({}), &["a", "b"], json!([]), json!([]));
    let (kills, rest) = drive(&mut both, &mut [running("a", 0), running("b", 0)], |_| Ok(()));
    assert_eq!((kills, rest), (vec!["a-0".to_owned(), "b-0".to_owned()], ServeStep::Wait { ms: None }));
    // CRR-D-27: with an order, the second one waits until the first has succeeded.
    let mut ordered = request(json!({"orderedRecreate": true}), &["a", "b"], json!([]), json!([]));
    let mut instances = vec![running("a", 0), running("b", 0)];
    assert_eq!(drive(&mut ordered, &mut instances, |_| Ok(())).0, ["a-0"]);
    instances.push(running("a", 1));
    assert_eq!(drive(&mut ordered, &mut instances, |_| Ok(())).0, Vec::<String>::new());
    let ready = json!([{"name": "a", "ready": true, "restartCount": 1, "containerID": "containerd://a-1"}]);
    ordered.status.container_status_snapshot = serde_json::from_value(ready).expect("a snapshot");
    assert_eq!(drive(&mut ordered, &mut instances, |_| Ok(())).0, ["b-0"]);
}

#[test]
fn a_stop_that_fails_ends_the_request_or_not() {
    // CRR-D-28
    let fails = |id: &str| if id == "a-0" { Err("no".to_owned()) } else { Ok(()) };
    let mut strict = request(json!({"failurePolicy": "Fail"}), &["a", "b"], json!([]), json!([]));
    let (kills, rest) = drive(&mut strict, &mut [running("a", 0), running("b", 0)], fails);
    assert_eq!(kills, ["a-0"]);
    let ServeStep::Complete { states, message } = rest else { panic!("{rest:?}") };
    assert_eq!((states[0].phase, message.as_str()), (Progress::Failed, "container a failed: no"));
    assert_eq!(states[1].phase, Progress::Failed, "KD3: no container is left without a result");
    let mut lax = request(json!({"failurePolicy": "Ignore"}), &["a", "b"], json!([]), json!([]));
    assert_eq!(drive(&mut lax, &mut [running("a", 0), running("b", 0)], fails).0, ["a-0", "b-0"]);
}

#[test]
fn hook_and_stop_share_the_grace() {
    assert_eq!((hook_seconds(30), stop_seconds(30, None, 8_000)), (30, 22), "CRR-D-29");
    assert_eq!((hook_seconds(3), stop_seconds(3, None, 3_000)), (3, 2), "CRR-D-30");
    // Kruise allows 2 s here. KD15: a grace period of 0 means 0.
    assert_eq!((hook_seconds(0), stop_seconds(0, None, 0)), (0, 0), "CRR-D-31");
    // KD7: a container's own limit counts from its stop signal and can only shorten the time.
    assert_eq!(
        [stop_seconds(30, Some(5), 0), stop_seconds(30, Some(5), 28_000), stop_seconds(30, Some(60), 0)],
        [5, 2, 30]
    );
    assert_eq!(stop_seconds(30, Some(0), 0), 0);
}

#[test]
fn the_next_request_of_a_pod_gets_its_turn() {
    // CRR-D-32, CRR-32, CRR-47, issues 1626 and 2474 of Kruise
    let made = |name: &str, second: u32, phase: &str, finished: bool| -> Request {
        let mut request = request(json!({}), &["a"], json!([]), json!([]));
        request.metadata.name = Some(name.to_owned());
        let at = |s: u32| {
            format!("2023-11-14T22:13:{s:02}Z")
                .parse()
                .map(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time)
                .ok()
        };
        request.metadata.creation_timestamp = at(second);
        phase.clone_into(&mut request.status.phase);
        request.status.completion_time = at(30).filter(|_| finished);
        request
    };
    let first = [made("b", 1, "", false), made("a", 2, "", false), made("c", 3, "", false)];
    assert_eq!(pick(&first), (Some(0), vec![1, 2]));
    let busy = [made("b", 1, "Pending", false), made("a", 2, "Recreating", false), made("c", 3, "", false)];
    assert_eq!(pick(&busy), (Some(1), vec![0, 2]), "both are told whom they wait for");
    let mut told = busy.clone();
    told[0].status.message = "waits for request a, which is served first".to_owned();
    assert_eq!(pick(&told), (Some(1), vec![2]), "once");
    let after = [made("a", 2, "Completed", true), made("b", 1, "Pending", false)];
    assert_eq!(pick(&after), (Some(1), vec![]), "the second must start");
}

#[test]
fn ids_that_are_not_ours_end_the_request() {
    // CRR-D-33, CRR-35
    let with = |ids: &[&str]| {
        let names: Vec<String> = (0..ids.len()).map(|i| format!("c{i}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut request = request(json!({}), &names, json!([]), json!([]));
        for (target, id) in request.spec.containers.iter_mut().zip(ids) {
            target.status_context.as_mut().expect("a context").container_id = (*id).to_owned();
        }
        match next(&request, &[]) {
            ServeStep::Complete { message, .. } => message,
            other => panic!("{ids:?}: {other:?}"),
        }
    };
    assert!(with(&["containerd://a", "cri-o://b"]).contains("different runtimes"));
    for malformed in ["", "a", "://a", "containerd://", "containerd:/a"] {
        assert!(with(&[malformed]).contains("no valid id"), "{malformed}");
    }
    assert!(with(&["docker://a"]).contains("no runtime \"docker\""));
}

#[test]
fn force_stops_once_whatever_happens_to_the_agent() {
    // CRR-D-35, CRR-46
    let mut forced = request(json!({"forceRecreate": true}), &["a"], json!([]), json!([]));
    let mut instances = vec![exited("a", 0), running("a", 1)];
    let (kills, _) = drive(&mut forced, &mut instances, |_| Ok(()));
    assert_eq!(kills, ["a-1"], "killed, though its id has changed");
    instances.push(running("a", 2));
    assert_eq!(drive(&mut forced, &mut instances, |_| Ok(())).0, Vec::<String>::new(), "once");
    // The agent crashes between the stop and its record. The id was recorded before.
    let mut crashed = request(json!({"forceRecreate": true}), &["a"], json!([]), json!([]));
    let before = [running("a", 0)];
    while let ServeStep::Store { states, .. } = next(&crashed, &before) {
        crashed.status.container_recreate_states = states;
    }
    assert_eq!(next(&crashed, &before), ServeStep::Kill { index: 0, id: "a-0".to_owned() });
    let (kills, _) = drive(&mut crashed, &mut [exited("a", 0), running("a", 1)], |_| Ok(()));
    assert_eq!(kills, Vec::<String>::new());
}

#[test]
fn a_hook_is_run_once_whatever_happens_to_the_agent() {
    let mut hooked = request(json!({}), &["a"], json!([]), json!([]));
    hooked.spec.containers[0].pre_stop = serde_json::from_value(json!({"sleep": {"seconds": 1}})).ok();
    let instances = [running("a", 0)];
    while let ServeStep::Store { states, .. } = next(&hooked, &instances) {
        hooked.status.container_recreate_states = states;
    }
    let id = "a-0".to_owned();
    assert_eq!(next(&hooked, &instances), ServeStep::Hook { index: 0, id: id.clone() });
    // The hook is recorded before it runs. An agent that takes over does not know how far it got, so it does
    // not run it again.
    let mut killed_in_it = hooked.clone();
    killed_in_it.status.container_recreate_states = hook_begun(&hooked, 0, &id);
    let ServeStep::Store { states, .. } = next(&killed_in_it, &instances) else { panic!("run again") };
    assert!(states[0].pre_stop_error.contains("not known"), "which is said: {states:?}");
    killed_in_it.status.container_recreate_states = states;
    assert_eq!(next(&killed_in_it, &instances), ServeStep::Kill { index: 0, id: id.clone() });
    // The end of the hook is recorded before the stop. An agent that takes over continues from there.
    let failed = hook_done(&hooked, 0, &id, &Err("exit code 7".to_owned()));
    assert!(
        failed[0].pre_stop_done && failed[0].pre_stop_error == "exit code 7",
        "CRR-40: it is reported, and stopped"
    );
    // The cause is at the end of a long message.
    let long = format!("failed to exec: {}: no such file", "runc: ".repeat(100));
    let error = &hook_done(&hooked, 0, &id, &Err(long))[0].pre_stop_error;
    assert!(error.starts_with("failed to exec: ") && error.ends_with(": no such file"), "{error}");
    assert_eq!(error.chars().count(), 200);
    hooked.status.container_recreate_states = hook_done(&hooked, 0, &id, &Ok(()));
    assert_eq!(next(&hooked, &instances), ServeStep::Kill { index: 0, id });
    // A record about another instance does not apply to this one.
    assert_eq!(hook_done(&hooked, 0, "a-1", &Ok(())), hooked.status.container_recreate_states);
    let mut without_grace = hooked.clone();
    without_grace.status.container_recreate_states[0].pre_stop_done = false;
    without_grace.spec.strategy = serde_json::from_value(json!({"terminationGracePeriodSeconds": 0})).ok();
    assert!(matches!(next(&without_grace, &instances), ServeStep::Kill { .. }), "CRR-40: no grace, no hook");
}

#[test]
fn the_last_container_waits_for_the_pods_result() {
    // KD5: its exit code must not become the result.
    let mut stop =
        request(json!({"action": "Stop", "orderedRecreate": true}), &["a", "b"], json!([]), json!([]));
    stop.metadata.annotations = Some([(names::CRR_RESULT_FIRST.to_owned(), "true".to_owned())].into());
    stop.spec.containers[1].pre_stop = serde_json::from_value(json!({"sleep": {"seconds": 1}})).ok();
    let mut instances = [running("a", 0), running("b", 0)];
    assert!(!needs_result(&stop));
    let (kills, rest) = drive(&mut stop, &mut instances, |_| Ok(()));
    assert_eq!((kills, rest), (vec!["a-0".to_owned()], ServeStep::Wait { ms: None }));
    assert!(needs_result(&stop), "its hook has run, and it is about to be stopped");
    let condition = json!([{"type": names::CRR_RESULT_WRITTEN, "status": "True", "reason": "", "message": "", "lastTransitionTime": "2023-11-14T22:13:20Z"}]);
    stop.status.conditions = serde_json::from_value(condition).expect("a condition");
    assert!(needs_result(&stop), "it is written again if a kubelet takes it away");
    let (kills, rest) = drive(&mut stop, &mut instances, |_| Ok(()));
    assert_eq!(kills, ["b-0"]);
    assert!(matches!(rest, ServeStep::Complete { .. }), "{rest:?}");
    assert!(!needs_result(&stop), "it is stopped");
}

#[test]
fn containers_without_an_order_wait_for_the_result_together() {
    // KD4: the kubelet would restart the first one while the hook of the second runs, and a Job counts
    // restarts.
    let mut stop = request(json!({"action": "Stop"}), &["a", "b"], json!([]), json!([]));
    stop.metadata.annotations = Some([(names::CRR_RESULT_FIRST.to_owned(), "true".to_owned())].into());
    for c in &mut stop.spec.containers {
        c.pre_stop = serde_json::from_value(json!({"sleep": {"seconds": 1}})).ok();
    }
    let mut instances = [running("a", 0), running("b", 0)];
    let (kills, rest) = drive(&mut stop, &mut instances, |_| Ok(()));
    assert_eq!(
        (kills, rest),
        (vec![], ServeStep::Wait { ms: None }),
        "every hook has run, and nothing is stopped"
    );
    assert!(stop.status.container_recreate_states.iter().all(|s| s.pre_stop_done));
    assert!(needs_result(&stop));
    let condition = json!([{"type": names::CRR_RESULT_WRITTEN, "status": "True", "reason": "", "message": "", "lastTransitionTime": "2023-11-14T22:13:20Z"}]);
    stop.status.conditions = serde_json::from_value(condition).expect("a condition");
    assert_eq!(stopped_together(&stop, 0, "a-0"), [(0, "a-0".to_owned()), (1, "b-0".to_owned())]);
    let (kills, rest) = drive(&mut stop, &mut instances, |_| Ok(()));
    assert_eq!(kills, ["a-0", "b-0"]);
    assert!(matches!(rest, ServeStep::Complete { .. }), "{rest:?}");
    // A user's request stops one container at a time.
    let user = request(json!({}), &["a", "b"], json!([]), json!([]));
    assert_eq!(stopped_together(&user, 0, "a-0"), [(0, "a-0".to_owned())]);
}

#[test]
fn a_stop_is_done_when_the_container_is_gone() {
    // KD4
    let mut stop = request(json!({"action": "Stop"}), &["a", "b"], json!([]), json!([]));
    let (kills, rest) = drive(&mut stop, &mut [running("a", 3), exited("b", 0)], |_| Ok(()));
    assert_eq!(kills, ["a-3"], "what runs now is stopped, whichever instance it is");
    let ServeStep::Complete { states, .. } = rest else { panic!("{rest:?}") };
    assert!(states.iter().all(|s| s.phase == Progress::Succeeded), "{states:?}");
}

#[test]
fn the_unready_grace_is_waited_for() {
    // CRR-34, CRR-E-07: only the agent's own clock counts (KD2).
    let mut request = request(json!({"unreadyGracePeriodSeconds": 5}), &["a"], json!([]), json!([]));
    assert_eq!(next(&request, &[running("a", 0)]), ServeStep::Wait { ms: None });
    let condition = json!([{"type": "PreRecreateGrace", "status": "True", "reason": "", "message": "", "lastTransitionTime": "1999-01-01T00:00:00Z"}]);
    request.status.conditions = serde_json::from_value(condition).expect("a condition");
    let seen = |at: Time| {
        step(
            &request,
            &["containerd"],
            &[running("a", 0)],
            Seen { unready: Some(at), ..Seen::default() },
            NOW,
        )
    };
    assert_eq!(seen(NOW - 1_000), ServeStep::Wait { ms: Some(4_000) });
    assert!(matches!(seen(NOW - 5_000), ServeStep::Store { .. }));
}

#[test]
fn work_begins_with_saying_so() {
    // CRR-33
    let mut request = request(json!({}), &["a"], json!([]), json!([]));
    request.status.phase.clear();
    let ServeStep::Store { phase: "Recreating", states } = next(&request, &[running("a", 0)]) else {
        panic!("it must be said")
    };
    // The same write records what is stopped first, so that the container waits for one write, not for three.
    assert_eq!((states[0].phase, states[0].killed_container_id.as_str()), (Progress::Pending, "a-0"));
    request.status.phase = "Recreating".to_owned();
    request.status.container_recreate_states = states;
    assert_eq!(next(&request, &[running("a", 0)]), ServeStep::Kill { index: 0, id: "a-0".to_owned() });
    // The operator makes the pod unready first.
    request.spec.strategy = serde_json::from_value(json!({"unreadyGracePeriodSeconds": 5})).ok();
    request.status.phase.clear();
    request.status.container_recreate_states.clear();
    assert_eq!(next(&request, &[running("a", 0)]), ServeStep::Store { phase: "Recreating", states: vec![] });
}

#[test]
fn a_stop_whose_hook_has_run_is_finished_after_a_verdict() {
    // CRR-E-05. KD5: this does not apply if the exit code could become the result of the pod.
    let mut request = request(json!({}), &["app"], json!([]), json!([]));
    assert!(stops_after_verdict(&request));
    request.metadata.annotations = Some([(names::CRR_RESULT_FIRST.to_owned(), "true".to_owned())].into());
    assert!(!stops_after_verdict(&request));
}

#[test]
fn the_kubelet_has_time_to_see_the_result_before_the_last_stop() {
    for strategy in [json!({"action": "Stop"}), json!({"action": "Stop", "orderedRecreate": true})] {
        let states = json!([{"name": "a", "phase": "Pending", "killedContainerID": "a-0"}]);
        let mut request = request(strategy, &["a"], states, json!([]));
        request.metadata.annotations = Some([(names::CRR_RESULT_FIRST.to_owned(), "true".to_owned())].into());
        let at = |request: &Request, result: Option<Time>| {
            step(request, &["containerd"], &[running("a", 0)], Seen { result, ..Seen::default() }, NOW)
        };
        assert_eq!(at(&request, None), ServeStep::Wait { ms: None }, "there is no result yet");
        let condition = json!([{"type": names::CRR_RESULT_WRITTEN, "status": "True", "reason": "", "message": "", "lastTransitionTime": "2023-11-14T22:13:20Z"}]);
        request.status.conditions = serde_json::from_value(condition).expect("a condition");
        assert_eq!(at(&request, Some(NOW - 100)), ServeStep::Wait { ms: Some(900) });
        assert_eq!(at(&request, Some(NOW - 1_000)), ServeStep::Kill { index: 0, id: "a-0".to_owned() });
        // If the result came at once, the kubelet knows it too, and the sidecar is stopped now.
        let after = |ms: u64| {
            let seen = Seen { asked: Some(NOW - ms), result: Some(NOW), ..Seen::default() };
            step(&request, &["containerd"], &[running("a", 0)], seen, NOW)
        };
        assert_eq!(after(300), ServeStep::Kill { index: 0, id: "a-0".to_owned() });
        assert_eq!(after(301), ServeStep::Wait { ms: Some(1_000) });
    }
}

#[test]
fn a_stop_after_the_verdict_is_recorded_and_changes_no_verdict() {
    let states = json!([{"name": "app", "phase": "Failed", "message": "late", "killedContainerID": "app-0"}]);
    let mut request = request(json!({}), &["app"], states, json!([]));
    let told = killed_after_verdict(&request, 0, "app-0").expect("it was stopped");
    assert!(told[0].is_killed);
    assert_eq!((told[0].phase, told[0].message.as_str()), (Progress::Failed, "late"));
    assert_eq!(killed_after_verdict(&request, 0, "app-1"), None, "another instance");
    assert_eq!(killed_after_verdict(&request, 1, "app-0"), None, "another container");
    request.status.container_recreate_states = told;
    assert_eq!(killed_after_verdict(&request, 0, "app-0"), None, "once");
}
