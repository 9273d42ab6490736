//! The operator's part of a request: section 5.11 of the OpenKruise specification.

use outrigger_lifecycle::Time;
use serde_json::{Value, json};

use super::{NOW, pod, status};
use crate::api::{Progress, Request};
use crate::decide::oversee::{Agent, OverseeStep, Oversight, UNSERVED, ready_entries, stops_begun};
use crate::names;
use crate::view::ObservedPod;

const CREATED: &str = "2023-11-14T22:14:50Z"; // ten seconds before NOW

fn object(change: impl Fn(&mut Value)) -> Value {
    let mut object = json!({
        "metadata": {
            "name": "r", "namespace": "ns", "creationTimestamp": CREATED,
            "labels": {names::CRR_POD_UID: "u", names::CRR_ACTIVE: "true"},
        },
        "spec": {"podName": "pod", "containers": [
            {"name": "app", "statusContext": {"containerID": "containerd://app-old", "restartCount": 0}},
            {"name": "sidecar", "statusContext": {"containerID": "containerd://sidecar-0", "restartCount": 0}},
        ]},
        "status": {"phase": "Recreating"},
    });
    change(&mut object);
    object
}

fn request(change: impl Fn(&mut Value)) -> Request {
    serde_json::from_value(object(change)).expect("a request")
}

fn view(policy: &str, app: &str, change: impl Fn(&mut Value)) -> ObservedPod {
    let mut object = json!({
        "metadata": {"name": "pod", "namespace": "ns", "uid": "u"},
        "spec": {"restartPolicy": policy, "nodeName": "n", "containers": [{"name": "app"}, {"name": "sidecar"}]},
        "status": {"phase": "Running", "containerStatuses": [status("app", app), status("sidecar", "ready")]},
    });
    change(&mut object);
    ObservedPod::always(&pod(object), NOW).expect("a pod")
}

fn decide(request: &Request, pod: Option<&ObservedPod>, now: Time) -> Oversight {
    crate::decide::oversee::decide(request, pod, Agent::Unknown, now)
}

fn steps(request: &Request, pod: Option<&ObservedPod>) -> Vec<OverseeStep> {
    decide(request, pod, NOW).steps
}

fn verdict(request: &Request, pod: Option<&ObservedPod>) -> String {
    match steps(request, pod).as_slice() {
        [OverseeStep::Complete { states, message }] => {
            // KD3, issue 2353 of Kruise: no container is left without a result.
            assert!(states.iter().all(|s| s.phase.is_final()) && states.len() == 2, "{states:?}");
            message.clone()
        }
        other => panic!("no verdict: {other:?}"),
    }
}

#[test]
fn every_request_gets_a_verdict() {
    let live = view("Always", "ready", |_| {});
    let late = request(|r| {
        r["status"]["phase"] = json!("");
        r["metadata"]["creationTimestamp"] = json!("2023-11-14T22:13:59Z");
    });
    assert_eq!(verdict(&late, Some(&live)), UNSERVED, "CRR-C-12");
    for phase in ["Pending", "Recreating"] {
        let exceeded = request(|r| {
            r["status"]["phase"] = json!(phase);
            r["spec"]["activeDeadlineSeconds"] = json!(9);
            r["status"]["containerRecreateStates"] = json!([{"name": "app", "phase": "Succeeded"}]);
        });
        assert!(verdict(&exceeded, Some(&live)).contains("activeDeadlineSeconds of 9"), "CRR-C-13");
        let OverseeStep::Complete { states, .. } = &steps(&exceeded, Some(&live))[0] else { unreachable!() };
        assert_eq!(
            (states[0].phase, states[1].phase),
            (Progress::Succeeded, Progress::Failed),
            "what was done was done"
        );
    }
    // CRR-44, KD3: there is a default deadline.
    let forgotten = request(|r| r["metadata"]["creationTimestamp"] = json!("2023-11-14T21:00:00Z"));
    assert!(verdict(&forgotten, Some(&live)).contains("not finished after"));
    assert_eq!(verdict(&request(|_| {}), None), "pod has gone", "CRR-19");
    let other = view("Always", "ready", |p| p["metadata"]["uid"] = json!("another"));
    assert_eq!(verdict(&request(|_| {}), Some(&other)), "pod has gone", "CRR-C-14");
    let deleting = view("Always", "ready", |p| p["metadata"]["deletionTimestamp"] = json!(CREATED));
    assert_eq!(verdict(&request(|_| {}), Some(&deleting)), "pod has gone", "CRR-C-14");
    // CRR-22: the request is checked again in time.
    let fresh = request(|r| r["status"]["phase"] = json!(""));
    assert_eq!(decide(&fresh, Some(&live), NOW).again, Some(NOW + 51_000));
}

#[test]
fn an_agent_that_does_not_answer_is_reported() {
    let live = view("Always", "ready", |_| {});
    let request = request(|r| {
        r["status"]["phase"] = json!("");
        r["metadata"]["labels"][names::CRR_NODE] = json!("n");
    });
    let note = OverseeStep::Note("waits for the agent of node n, which has not answered".to_owned());
    // The request is ten seconds old.
    assert!(decide(&request, Some(&live), NOW).steps.contains(&note));
    let early = decide(&request, Some(&live), NOW - 6_000);
    assert!(!early.steps.contains(&note) && early.again.is_some(), "{early:?}");
}

#[test]
fn an_agent_that_is_not_there_is_waited_for_in_vain_for_a_while() {
    // KD3, KD17: the request ends in every phase, and the reason for waiting is reported.
    let live = view("Always", "ready", |_| {});
    let ask = |phase: &str, since: Time| {
        let request = request(|r| {
            r["status"]["phase"] = json!(phase);
            r["metadata"]["labels"][names::CRR_NODE] = json!("n");
        });
        crate::decide::oversee::decide(&request, Some(&live), Agent::Absent { since }, NOW).steps
    };
    // The request is ten seconds old.
    let note = OverseeStep::Note("waits for the agent of node n, which is not ready".to_owned());
    assert!(ask("", NOW - 12_000).contains(&note));
    assert!(ask("Recreating", NOW - 59_000).contains(&note));
    let message = |steps: Vec<OverseeStep>| match steps.as_slice() {
        [OverseeStep::Complete { states, message }] => {
            assert!(states.iter().all(|s| s.phase == Progress::Failed), "{states:?}");
            message.clone()
        }
        other => panic!("no verdict: {other:?}"),
    };
    let old = |phase: &str| {
        let request = request(|r| {
            r["status"]["phase"] = json!(phase);
            r["metadata"]["creationTimestamp"] = json!("2023-11-14T22:12:00Z");
            r["metadata"]["labels"][names::CRR_NODE] = json!("n");
        });
        let agent = Agent::Absent { since: NOW - 61_000 };
        message(crate::decide::oversee::decide(&request, Some(&live), agent, NOW).steps)
    };
    assert_eq!(old(""), "no agent is ready on node n");
    for phase in ["Pending", "Recreating"] {
        assert_eq!(old(phase), "the agent of node n has gone", "{phase}");
    }
    // An existing agent has as much time as the request allows.
    let begun = request(|r| r["metadata"]["creationTimestamp"] = json!("2023-11-14T22:12:00Z"));
    let steps = crate::decide::oversee::decide(&begun, Some(&live), Agent::Ready, NOW).steps;
    assert!(!steps.iter().any(|s| matches!(s, OverseeStep::Complete { .. })), "{steps:?}");
}

#[test]
fn a_container_that_is_not_started_again_is_a_result() {
    // CRR-D-34, CRR-43
    let killed = request(|r| {
        r["status"]["containerRecreateStates"] = json!([
            {"name": "app", "phase": "Recreating", "isKilled": true}, {"name": "sidecar", "phase": "Succeeded", "isKilled": true},
        ]);
    });
    let ended = view("Never", "143", |_| {});
    let OverseeStep::Complete { states, .. } = &steps(&killed, Some(&ended))[0] else { panic!("no verdict") };
    assert_eq!(states[0].phase, Progress::Failed);
    assert_eq!(states[0].message, "stopped, and restartPolicy Never does not start it again");
    let restarts = view("Always", "143", |_| {});
    assert!(!steps(&killed, Some(&restarts)).iter().any(|s| matches!(s, OverseeStep::Complete { .. })));
}

#[test]
fn one_that_is_not_started_again_does_not_hold_up_those_after_it() {
    let killed = request(|r| {
        r["spec"]["strategy"] = json!({"orderedRecreate": true});
        r["status"]["containerRecreateStates"] = json!([
            {"name": "app", "phase": "Recreating", "isKilled": true}, {"name": "sidecar", "phase": "Pending"},
        ]);
    });
    let ended = view("Never", "143", |_| {});
    let OverseeStep::States(states) = &steps(&killed, Some(&ended))[0] else {
        panic!("the agent is not told")
    };
    assert_eq!((states[0].phase, states[1].phase), (Progress::Failed, Progress::Pending));
    assert_eq!(states[0].message, "stopped, and restartPolicy Never does not start it again");
}

#[test]
fn a_pod_that_has_ended_is_a_result() {
    let over = view("Never", "143", |pod| pod["status"]["phase"] = json!("Succeeded"));
    for states in [json!([]), json!([{"name": "sidecar", "phase": "Recreating", "isKilled": true}])] {
        let open = request(|r| r["status"]["containerRecreateStates"] = states.clone());
        assert_eq!(verdict(&open, Some(&over)), "pod pod is over: its phase is Succeeded");
    }
    // A container that must only be stopped may still run in such a pod.
    let stop = request(|r| r["spec"]["strategy"] = json!({"action": "Stop"}));
    assert!(!steps(&stop, Some(&over)).iter().any(|s| matches!(s, OverseeStep::Complete { .. })));
}

#[test]
fn a_request_that_waits_for_the_result_is_told() {
    // KD5
    let waiting = request(|r| {
        r["metadata"]["annotations"] = json!({names::CRR_RESULT_FIRST: "true"});
        r["spec"]["strategy"] = json!({"action": "Stop"});
    });
    let running = view("Never", "unknown", |_| {});
    assert!(!steps(&waiting, Some(&running)).contains(&OverseeStep::ResultWritten));
    let over = view("Never", "unknown", |p| p["status"]["phase"] = json!("Succeeded"));
    assert!(steps(&waiting, Some(&over)).contains(&OverseeStep::ResultWritten));
    let told = request(|r| {
        r["metadata"]["annotations"] = json!({names::CRR_RESULT_FIRST: "true"});
        r["status"]["conditions"] = json!([{"type": names::CRR_RESULT_WRITTEN, "status": "True", "lastTransitionTime": CREATED, "reason": "", "message": ""}]);
    });
    assert!(!steps(&told, Some(&over)).contains(&OverseeStep::ResultWritten));
}

#[test]
fn the_snapshot_is_of_new_instances_only() {
    // CRR-C-09: instances are compared, so a slow clock does not matter (issue 895 of Kruise).
    let live = view("Always", "ready", |p| p["status"]["containerStatuses"][0]["restartCount"] = json!(1));
    let found = steps(&request(|_| {}), Some(&live));
    let [OverseeStep::Snapshot(snapshot)] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!(snapshot.len(), 1);
    assert_eq!(
        (snapshot[0].name.as_str(), snapshot[0].container_id.as_str(), snapshot[0].ready),
        ("app", "containerd://app-0", true)
    );
    // The snapshot is written only if it differs, and an empty one does not clear it.
    let holding = |held: Value| request(move |r| r["status"]["containerStatusSnapshot"] = held.clone());
    let stored = holding(serde_json::to_value(snapshot).expect("json"));
    assert_eq!(steps(&stored, Some(&live)), [], "CRR-C-02");
    let none = view("Always", "waiting:x", |_| {});
    assert_eq!(steps(&holding(json!([])), Some(&none)), [], "CRR-C-01");
    let mut other = snapshot.clone();
    other[0].ready = false;
    let differs = holding(serde_json::to_value(&other).expect("json"));
    assert_eq!(steps(&differs, Some(&live)), [OverseeStep::Snapshot(snapshot.clone())], "CRR-C-03");
    let longer = holding(json!([snapshot[0], snapshot[0]]));
    assert_eq!(steps(&longer, Some(&live)), [OverseeStep::Snapshot(snapshot.clone())], "CRR-C-04");
    let waiting = view("Always", "waiting:CrashLoopBackOff", |_| {});
    assert_eq!(steps(&stored, Some(&waiting)), []);
}

#[test]
fn the_unready_grace_begins_once() {
    let graceful = |status: &str, kind: &str| {
        request(|r| {
            r["spec"]["strategy"] = json!({"unreadyGracePeriodSeconds": 30});
            if !status.is_empty() {
                r["status"]["conditions"] = json!([{"type": kind, "status": status, "lastTransitionTime": CREATED, "reason": "", "message": ""}]);
            }
        })
    };
    let plain = view("Always", "waiting:x", |_| {});
    let grace = names::CRR_GRACE;
    let begins =
        |request: &Request| steps(request, Some(&plain)).contains(&OverseeStep::Grace { gated: false });
    assert!(begins(&graceful("", "")), "CRR-C-05, CRR-C-10");
    assert!(!begins(&graceful("True", grace)), "CRR-C-06, CRR-C-10");
    assert!(begins(&graceful("False", grace)), "CRR-C-07");
    assert!(begins(&graceful("True", "Other")), "CRR-C-08");
    let gated = view("Always", "waiting:x", |p| {
        p["spec"]["readinessGates"] = json!([{"conditionType": names::POD_READY}])
    });
    assert_eq!(
        steps(&graceful("", ""), Some(&gated)),
        [OverseeStep::Lock, OverseeStep::Acquire, OverseeStep::Grace { gated: true }],
        "CRR-23"
    );
    assert_eq!(
        steps(&graceful("", ""), Some(&plain)),
        [OverseeStep::Grace { gated: false }],
        "CRR-23: without the gate the wait remains"
    );
}

#[test]
fn readiness_is_given_back_by_the_last() {
    // CRR-C-11
    let named = |name: &str| {
        let mut request = request(|_| {});
        request.metadata.name = Some(name.to_owned());
        request
    };
    let (one, ready) = ready_entries("", &named("foo"), true);
    assert!(!ready && one.contains("ns/foo"));
    let (both, ready) = ready_entries(&one, &named("bar"), true);
    assert!(!ready && both.contains("ns/foo") && both.contains("ns/bar"));
    assert_eq!(ready_entries(&both, &named("bar"), true).0.matches("ns/bar").count(), 1, "once");
    let (left, ready) = ready_entries(&both, &named("foo"), false);
    assert!(!ready && !left.contains("ns/foo"));
    assert_eq!(ready_entries(&left, &named("bar"), false), (String::new(), true));
    assert_eq!(ready_entries("not json", &named("bar"), false), (String::new(), true));
}

#[test]
fn finished_requests_are_tidied_away() {
    // CRR-C-15
    let finished = |label: bool, ago: u64| {
        let mut request = request(|r| {
            r["spec"]["ttlSecondsAfterFinished"] = json!(3);
            r["status"]["completionTime"] = json!("2023-11-14T22:15:00Z");
            if !label {
                r["metadata"]["labels"] = json!({});
            }
        });
        request.status.phase = "Completed".to_owned();
        decide(&request, None, NOW + ago)
    };
    assert_eq!(
        finished(true, 0),
        Oversight { steps: vec![OverseeStep::Deactivate], again: Some(Time(NOW.0 + 3_000)) }
    );
    assert_eq!(finished(false, 2_000), Oversight { steps: vec![], again: Some(Time(NOW.0 + 3_000)) });
    assert_eq!(finished(false, 3_000), Oversight { steps: vec![OverseeStep::Delete], again: None });
    // CRR-C-16
    let deleting = request(|r| {
        r["metadata"]["deletionTimestamp"] = json!(CREATED);
        r["metadata"]["finalizers"] = json!([names::CRR_UNREADY]);
    });
    assert_eq!(steps(&deleting, None), [OverseeStep::Release, OverseeStep::Unlock]);
}

#[test]
fn a_request_that_is_no_longer_active_gets_a_verdict() {
    // KD1: an agent no longer watches it.
    let pod = view("Always", "ready", |_| {});
    let request = request(|object| object["metadata"]["labels"] = json!({names::CRR_POD_UID: "u"}));
    assert!(verdict(&request, Some(&pod)).contains("was removed, so no agent serves it"));
}

#[test]
fn a_deadline_never_ends_early() {
    // The API server stores full seconds, so the request may be up to a second younger than its creation time
    // says.
    let live = view("Always", "ready", |_| {});
    let request = request(|r| r["spec"]["activeDeadlineSeconds"] = json!(4));
    let created = NOW - 10_000;
    let ends = |ms: u64| {
        let steps = decide(&request, Some(&live), created + ms).steps;
        steps.iter().any(|s| matches!(s, OverseeStep::Complete { .. }))
    };
    assert!(!ends(4_999));
    assert!(ends(5_000));
    assert_eq!(decide(&request, Some(&live), created + 4_000).again, Some(created + 5_000));
}

#[test]
fn sidecars_that_end_with_their_pod_have_not_failed() {
    // A Job is deleted at completion, or has a short TTL.
    let of_terminator = request(|r| {
        r["metadata"]["name"] = json!("sidecar-termination-u");
        r["spec"]["strategy"] = json!({"action": "Stop"});
        r["status"]["containerRecreateStates"] = json!([{"name": "app", "phase": "Pending"}]);
    });
    let found = steps(&of_terminator, None);
    let [OverseeStep::Complete { states, message }] = found.as_slice() else { panic!("{found:?}") };
    assert!(states.len() == 2 && states.iter().all(|s| s.phase == Progress::Succeeded), "{states:?}");
    assert_eq!(message, "");
    // A user's request asked for something that did not happen.
    let of_user = request(|r| r["spec"]["strategy"] = json!({"action": "Stop"}));
    assert_eq!(verdict(&of_user, None), "pod has gone", "CRR-19");
}

#[test]
fn a_stop_that_begins_is_told() {
    let names = |states: Value| {
        let request = request(|r| r["status"]["containerRecreateStates"] = states.clone());
        stops_begun(&request).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(names(json!([{"name": "app", "phase": "Pending"}])), Vec::<String>::new());
    let hook_runs = json!([{"name": "app", "phase": "Pending", "killedContainerID": "1"}, {"name": "sidecar", "phase": "Pending"}]);
    assert_eq!(names(hook_runs), ["app"]);
    assert_eq!(names(json!([{"name": "app", "phase": "Succeeded", "isKilled": true}])), ["app"]);
}
