//! The output of `outrigger operator status`.

use serde_json::{Value, json};

use super::{NOW, barrier_env, pod, status};
use crate::decide::barrier::Map;
use crate::decide::explain;
use crate::decide::terminate::{Node, Past};
use crate::view::ObservedPod;

fn explained(object: Value, map: &Map, past: &[Past]) -> (Vec<String>, String) {
    let view = ObservedPod::always(&pod(object), NOW).expect("a pod");
    let (lines, next) = explain::pod(&view, map, Node::Machine, past, NOW);
    let line = |l: explain::Line| format!("{}|{}|{}|{}", l.container, l.level, l.barrier, l.doing);
    (lines.into_iter().map(line).collect(), next)
}

fn levels(statuses: Value) -> Value {
    json!({
        "metadata": {"name": "pod", "namespace": "ns", "uid": "u"},
        "spec": {"nodeName": "n", "containers": [
            {"name": "main", "env": [barrier_env("p_0")]}, {"name": "sidecar", "env": [barrier_env("p_1")]},
        ]},
        "status": {"phase": "Pending", "startTime": "2023-11-14T22:12:00Z", "containerStatuses": statuses},
    })
}

#[test]
fn a_launch_says_which_level_is_open_and_who_is_waited_for_since_when() {
    let ours = Map::Ours { keys: ["p_1".to_owned()].into() };
    let mut waiting = status("sidecar", "waiting:ImagePullBackOff");
    waiting["state"]["waiting"]["message"] = json!("no such image");
    let view = ObservedPod::always(&pod(levels(json!([waiting]))), NOW).expect("a pod");
    let since = json!(explain::pod(&view, &ours, Node::Machine, &[], NOW).0[0])["since"].clone();
    assert_eq!(since, "2023-11-14T22:12:00Z");
    let (lines, next) = explained(levels(json!([waiting])), &ours, &[]);
    assert_eq!(
        lines,
        [
            "main|0|closed|waits for `sidecar` to be ready: ImagePullBackOff: no such image; waiting for 3 min",
            "sidecar|1|open|waits: ImagePullBackOff: no such image",
        ]
    );
    assert_eq!(next, "level 0 starts once `sidecar` is ready");
    let both = Map::Ours { keys: ["p_1".to_owned(), "p_0".to_owned()].into() };
    let (lines, next) =
        explained(levels(json!([status("main", "ready"), status("sidecar", "ready")])), &both, &[]);
    assert_eq!(lines[0], "main|0|open|ready, running for 1 min 40 s");
    assert_eq!(next, "nothing: every container was started");
    let (_, next) = explained(levels(json!([])), &Map::Missing, &[]);
    assert_eq!(next, "the operator creates the barrier ConfigMap");
    let (_, next) = explained(levels(json!([])), &Map::Foreign, &[]);
    assert!(next.contains("delete it"), "{next}");
}

#[test]
fn while_init_containers_run_the_next_is_one_that_waits_for_nothing_else() {
    let mut pod = levels(json!([]));
    pod["spec"]["initContainers"] = json!([{"name": "setup"}]);
    let (_, next) = explained(pod, &Map::Ours { keys: ["p_1".to_owned()].into() }, &[]);
    assert_eq!(next, "the kubelet starts `sidecar` once `setup` is complete");
}

#[test]
fn what_was_never_started_has_not_ended() {
    let mut ended = status("main", "137");
    ended["containerID"] = json!("");
    let mut pod = levels(json!([ended, status("sidecar", "1")]));
    pod["status"]["phase"] = json!("Failed");
    let (lines, _) = explained(pod, &Map::Ours { keys: ["p_1".to_owned()].into() }, &[]);
    assert_eq!(lines, ["main|0|closed|was never started", "sidecar|1|open|ended with exit code 1"]);
}

#[test]
fn a_key_that_was_just_published_is_no_longer_missed() {
    let both = Map::Ours { keys: ["p_1".to_owned(), "p_0".to_owned()].into() };
    for (message, line) in [
        ("couldn't find key p_0 in ConfigMap ns/pod-barrier", "main|0|open|about to start"),
        ("configmap \"pod-barrier\" not found", "main|0|open|about to start"),
        // Another object is missing, so its reason is still shown.
        (
            "secret \"key\" not found",
            "main|0|open|waits: CreateContainerConfigError: secret \"key\" not found",
        ),
    ] {
        let mut main = status("main", "waiting:CreateContainerConfigError");
        main["state"]["waiting"]["message"] = json!(message);
        assert_eq!(explained(levels(json!([main, status("sidecar", "ready")])), &both, &[]).0[0], line);
    }
}

#[test]
fn a_job_says_what_becomes_of_its_sidecars() {
    let kill = json!([{"name": "KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT", "value": "true"}]);
    let job = |main: &str, phase: &str| {
        json!({
            "metadata": {"name": "pod", "namespace": "ns", "uid": "u"},
            "spec": {"nodeName": "n", "restartPolicy": "Never", "containers": [{"name": "main"}, {"name": "log", "env": kill}]},
            "status": {"phase": phase, "containerStatuses": [status("main", main), status("log", "running")]},
        })
    };
    let next = |object: Value, past: &[Past]| explained(object, &Map::Missing, past).1;
    assert_eq!(next(job("running", "Running"), &[]), "`log` is stopped once `main` is done");
    assert_eq!(next(job("0", "Running"), &[]), "`log` is stopped");
    let under_way = Past {
        attempt: 1,
        finished: false,
        unserved: false,
        targets: vec![],
        stopped: vec![],
        needs_result: false,
    };
    assert_eq!(
        next(job("0", "Running"), std::slice::from_ref(&under_way)),
        "the agent of node n stops the sidecars"
    );
    let at_the_end = Past { needs_result: true, ..under_way };
    assert_eq!(next(job("0", "Running"), &[at_the_end]), "the pod becomes Succeeded");
    assert_eq!(next(job("0", "Succeeded"), &[]), "the pod is Succeeded; `log` is stopped");
}

#[test]
fn of_several_that_wait_the_first_to_start_is_next() {
    let gate = |name: &str| json!([barrier_env(&format!("g_{name}"))]);
    let chain = json!({
        "metadata": {"name": "pod", "namespace": "ns", "uid": "u", "annotations": {
            "outrigger.dev/depends-on": "app: db ready; db: net ready",
        }},
        "spec": {"nodeName": "n", "containers": [
            {"name": "app", "env": gate("app")}, {"name": "db", "env": gate("db")}, {"name": "net"},
        ]},
        "status": {"phase": "Pending", "containerStatuses": [status("net", "not-ready")]},
    });
    let none = Map::Ours { keys: Default::default() };
    let view = ObservedPod::always(&pod(chain.clone()), NOW).expect("a pod");
    assert_eq!(
        explain::next_start(&view, &Default::default()).as_deref(),
        Some("`db` starts once `net` is ready")
    );
    assert_eq!(explain::next_start(&view, &["g_db".to_owned(), "g_app".to_owned()].into()), None);
    assert_eq!(explained(chain, &none, &[]).1, "`db` starts once `net` is ready");
    // A pod's status does not say whether a probe has failed or was not tried yet.
    let mut running = levels(json!([status("sidecar", "running")]));
    running["status"]["containerStatuses"][0]["ready"] = json!(false);
    running["spec"]["containers"][1]["readinessProbe"] = json!({"exec": {"command": ["true"]}});
    let first = explained(running, &Map::Ours { keys: ["p_1".to_owned()].into() }, &[]).0[0].clone();
    assert!(
        first.contains("`sidecar` to be ready: readiness probe has not succeeded yet; waiting"),
        "{first}"
    );
    // A published key stays published. Its container starts even if the one it has waited for is no longer
    // ready.
    let both = Map::Ours { keys: ["p_1".to_owned(), "p_0".to_owned()].into() };
    let (lines, next) = explained(
        levels(json!([status("main", "waiting:ContainerCreating"), status("sidecar", "not-ready")])),
        &both,
        &[],
    );
    assert_eq!(lines[0], "main|0|open|waits: ContainerCreating");
    assert_eq!(next, "nothing: every container may start");
    // A key is due and cannot be published.
    let one = Map::Ours { keys: ["p_1".to_owned()].into() };
    let ready =
        levels(json!([status("main", "waiting:CreateContainerConfigError"), status("sidecar", "ready")]));
    assert_eq!(
        explained(ready, &one, &[]).1,
        "the operator publishes the key p_0 of `main` in ConfigMap pod-barrier"
    );
    assert_eq!(
        explained(levels(json!([])), &Map::Foreign, &[]).1,
        "nothing: ConfigMap pod-barrier exists and does not belong to this pod; if nothing else uses it, delete it, so that the barrier can be made"
    );
    let mut unscheduled = levels(json!([]));
    unscheduled["spec"]["nodeName"] = json!("");
    let (lines, next) = explained(unscheduled, &one, &[]);
    assert_eq!(
        (lines[1].as_str(), next.as_str()),
        ("sidecar|1|open|waits for a node", "the pod waits for a node")
    );
}

#[test]
fn what_the_kubelet_itself_waits_for_is_told() {
    let pod = json!({
        "metadata": {"name": "pod", "namespace": "ns", "uid": "u"},
        "spec": {"nodeName": "n", "containers": [{"name": "main"}], "initContainers": [{
            "name": "proxy", "restartPolicy": "Always", "startupProbe": {"exec": {"command": ["true"]}},
        }]},
        "status": {
            "phase": "Pending", "containerStatuses": [status("main", "waiting:PodInitializing")],
            "initContainerStatuses": [{
                "name": "proxy", "image": "i", "imageID": "", "restartCount": 0, "ready": false, "started": false,
                "containerID": "containerd://proxy-0", "state": {"running": {"startedAt": "2023-11-14T22:13:20Z"}},
            }],
        },
    });
    let (lines, next) = explained(pod, &Map::Missing, &[]);
    assert!(lines[1].contains("waits for `proxy` to be started"), "{lines:?}");
    assert_eq!(next, "the kubelet starts `main` once `proxy` is started");
}

#[test]
fn hooks_are_told_from_startup_probes() {
    let hook = json!({"postStart": {"exec": {"command": ["x"]}}});
    let probe = json!({"exec": {"command": ["y"]}});
    let first = json!({"name": "first", "restartPolicy": "Always", "lifecycle": hook, "startupProbe": probe});
    let of = |status: Value| {
        explained(
            json!({
                "metadata": {"name": "pod", "namespace": "ns", "uid": "u"},
                "spec": {"nodeName": "n", "initContainers": [first], "containers": [{"name": "main"}]},
                "status": {"phase": "Pending", "startTime": "2023-11-14T22:12:00Z", "initContainerStatuses": [status]},
            }),
            &Map::Missing,
            &[],
        )
        .0
    };
    // The kubelet reports a container as running when its hook has ended.
    assert_eq!(
        of(status("first", "waiting:PodInitializing"))[0],
        "first|||about to start, or in its postStart hook"
    );
    let mut running = status("first", "running");
    (running["ready"], running["started"]) = (json!(false), json!(false));
    let lines = of(running);
    assert!(lines[1].contains("startup probe") && !lines[1].contains("hook"), "{lines:?}");
}
