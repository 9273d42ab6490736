//! Barriers: sections 5.1 and 5.2 of the OpenKruise specification.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{NOW, barrier_env, pod, status, view};
use crate::decide::barrier::{BarrierStep, Launch, Map, Memory, decide, earned, map_name, pending_levels};
use crate::key::{self, Opens};
use crate::names;
use crate::view::ObservedPod;

/// A pod with containers by name and level, such as `a=3 b d`. `ready` lists the ready ones, `not_ready`
/// those with a status that are not ready.
fn launching(containers: &str, ready: &str, not_ready: &str) -> ObservedPod {
    view(object(containers, ready, not_ready))
}

fn object(containers: &str, ready: &str, not_ready: &str) -> Value {
    let container = |word: &str| match word.split_once('=') {
        Some((name, level)) => json!({"name": name, "env": [barrier_env(&format!("p_{level}"))]}),
        None => json!({"name": word}),
    };
    let list: Vec<Value> = containers.split_whitespace().map(container).collect();
    let statuses = ready
        .split_whitespace()
        .map(|name| status(name, "ready"))
        .chain(not_ready.split_whitespace().map(|name| status(name, "not-ready")));
    json!({
        "metadata": {"name": "pod", "namespace": "ns", "uid": "uid-1"},
        "spec": {"nodeName": "n", "containers": list},
        "status": {"phase": "Pending", "containerStatuses": statuses.collect::<Vec<_>>()},
    })
}

fn ours(levels: &str) -> Map {
    Map::Ours { keys: levels.split_whitespace().map(|l| format!("p_{l}")).collect() }
}

fn keys(levels: &str) -> BTreeSet<String> {
    levels.split_whitespace().map(|l| format!("p_{l}")).collect()
}

fn run(view: &ObservedPod, map: &Map) -> Launch {
    decide(view, map, Memory::default(), NOW)
}

/// The keys in the ConfigMap after the steps, and whether the pod is marked as completed.
fn after(view: &ObservedPod, map: &Map) -> (BTreeSet<String>, bool) {
    let mut held = match map {
        Map::Ours { keys } => keys.clone(),
        _ => BTreeSet::new(),
    };
    let mut completed = view.completed;
    for step in run(view, map).steps {
        match step {
            BarrierStep::Create { keys, .. }
            | BarrierStep::Publish { keys, .. }
            | BarrierStep::Replace { keys, .. } => held.extend(keys),
            BarrierStep::Annotate { completed: all } => completed |= all,
            _ => {}
        }
    }
    (held, completed)
}

const P6: &str = "a=3 b=5 c=0 d e=-1 f=3";

#[test]
fn keys_are_published_level_by_level() {
    // id, containers, ready, not ready, keys before, keys after, completed
    let rows: &[(&str, &str, &str, &str, &str, &str, bool)] = &[
        ("LP-U-01", "c1=100", "", "c1", "", "100", true),
        ("LP-U-02", "c1=100 c2=1000", "", "c1 c2", "", "1000", false),
        ("LP-U-05", P6, "", "", "", "5", false),
        ("LP-U-06", P6, "b f", "a", "5 3", "5 3", false),
        ("LP-U-07", P6, "a b f", "", "5 3", "5 3 0", false),
        ("LP-U-08", P6, "a b c f", "", "5 3 0", "5 3 0 -1", true),
        ("LP-23", "a=2 b=1 c=0", "a", "b", "2 1", "2 1", false),
        ("LP-26", "a=2 b=1", "", "a", "2", "2", false),
    ];
    for (id, containers, ready, not_ready, before, after_keys, completed) in rows {
        let view = launching(containers, ready, not_ready);
        let (held, done) = after(&view, &ours(before));
        assert_eq!((&held, done), (&keys(after_keys), *completed), "{id}");
        // A second reconciliation changes nothing.
        let again = Map::Ours { keys: held.clone() };
        assert_eq!(after(&view, &again).0, held, "{id} twice");
        // LP-29: a lost ConfigMap is created again with every due key.
        let mut lost = earned(&view);
        lost.retain(|key| held.contains(key));
        assert_eq!(after(&view, &Map::Missing).0, lost, "{id} after a loss");
    }
}

#[test]
fn only_pods_with_something_to_do_are_written() {
    // id, ready, not ready, keys before, is anything published?
    let rows: &[(&str, &str, &str, &str, bool)] = &[
        ("LP-U-09", "", "", "", true),
        ("LP-U-10", "", "", "5", false),
        ("LP-U-11", "b f", "a", "5 3", false),
        ("LP-U-12", "a b f", "", "5 3", true),
        ("LP-U-13", "a b f", "", "5 3 0", false),
        ("LP-U-14", "a b c f", "", "5 3 0", true),
        ("LP-U-16", "a b c", "f", "5 3 0 -1", false),
    ];
    for (id, ready, not_ready, before, publishes) in rows {
        let launch = run(&launching(P6, ready, not_ready), &ours(before));
        let published = launch.steps.iter().any(|s| matches!(s, BarrierStep::Publish { .. }));
        assert_eq!(published, *publishes, "{id}: {launch:?}");
    }
    // LP-U-15, LP-U-16: nothing more is published once the pod is marked.
    let mut object = object(P6, "a b c f", "");
    object["metadata"]["annotations"] = json!({names::COMPLETED: "true"});
    assert_eq!(run(&view(object), &ours("5 3 0 -1")), Launch::default());
}

#[test]
fn the_pending_levels_are_those_not_ready() {
    assert_eq!(pending_levels(&launching("a=3 b=5 c=0 d e=-1 f=4", "b", "a")), [-1, 0, 3, 4], "LP-U-03");
    assert_eq!(pending_levels(&launching(P6, "b f", "a")), [-1, 0, 3], "LP-U-04");
}

#[test]
fn keys_are_written_and_read() {
    let rows = [
        ("LP-U-20", 5, "p_5"),
        ("LP-U-21", -3, "p_-3"),
        ("LP-U-22", 0, "p_0"),
        ("LP-U-23", 2_147_483_647, "p_2147483647"),
        ("LP-U-24", -2_147_483_647, "p_-2147483647"),
        ("LP-U-29", 5, "p_5"),
        ("LP-U-30", -3, "p_-3"),
        ("LP-U-31", 0, "p_0"),
        ("LP-U-38", 2_147_483_647, "p_2147483647"),
        ("LP-U-40", 42, "p_42"),
        ("LP-U-41", -15, "p_-15"),
        ("LP-U-42", 0, "p_0"),
        ("LP-U-43", 2_147_483_647, "p_2147483647"),
        ("LP-U-44", -2_147_483_647, "p_-2147483647"),
        ("LP-U-45", 123, "p_123"),
    ];
    for (id, level, text) in rows {
        assert_eq!(key::level_key(level), text, "{id}");
        assert_eq!(key::read(text, "c"), Some(Opens::Level(level)), "{id}");
        assert_eq!(
            key::read(&key::proposed_level_key(level), "c"),
            Some(Opens::Level(level)),
            "{id}, the seed's"
        );
    }
    for (id, text, read) in [
        ("LP-U-35", "p", None),
        ("LP-U-36", "x_5", Some(Opens::Level(5))),
        ("LP-U-37", "p_abc", Some(Opens::Level(0))),
        ("LP-19", "", None),
        ("LP-19 in other scripts", "\u{20ac}", None),
        ("gates", "g_c", Some(Opens::Gates)),
        ("gates of another", "g_d", Some(Opens::Level(0))),
    ] {
        assert_eq!(key::read(text, "c"), read, "{id}");
    }
}

#[test]
fn a_barrier_is_found_whatever_else_a_container_has() {
    let with = |env: Value| {
        let list = json!([{"name": "c", "env": env}, {"name": "other", "env": [barrier_env("p_1")]}]);
        let object = json!({"metadata": {"name": "pod"}, "spec": {"containers": list}});
        view(object).containers[0].barrier.as_ref().map(|b| b.opens)
    };
    let plain = json!({"name": "A", "value": "1"});
    assert_eq!(with(json!([plain])), None, "LP-U-32");
    assert_eq!(with(json!([])), None, "LP-U-33");
    assert_eq!(with(json!([plain, barrier_env("p_10"), plain])), Some(Opens::Level(10)), "LP-U-34");
    assert_eq!(with(json!([{"name": "KRUISE_CONTAINER_BARRIER", "value": "x"}])), None, "LP-U-39");
    assert_eq!(
        with(json!([{"name": "KRUISE_CONTAINER_BARRIER", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}])),
        None,
        "LP-19"
    );
    let seed = json!({"name": "KRUISE_CONTAINER_LAUNCH_BARRIER", "valueFrom": {"configMapKeyRef": {"name": "pod-barrier", "key": "c_7"}}});
    assert_eq!(with(json!([seed])), Some(Opens::Level(7)), "the seed's spelling");
}

#[test]
fn only_a_barrier_of_this_pod_is_ever_written() {
    let named = |map: &str| {
        let mut object = object("a=1 b=0", "", "");
        for c in [0, 1] {
            object["spec"]["containers"][c]["env"][0]["valueFrom"]["configMapKeyRef"]["name"] = json!(map);
        }
        view(object)
    };
    for good in ["pod-barrier", "pod-barrier-abcde12345", "web-7d9f-barrier-0123456789"] {
        assert_eq!(map_name(&named(good)), Some(good));
    }
    for bad in [
        "kube-root-ca.crt",
        "other-barrier",
        "settings",
        "-barrier-abcde12345",
        "x-barrier-ABCDE12345",
        "x-barrier-short",
        "",
    ] {
        let view = named(bad);
        assert_eq!(map_name(&view), None, "{bad}");
        let steps = run(&view, &Map::Missing).steps;
        assert!(
            matches!(steps.as_slice(), [BarrierStep::Event { is_warning: true, .. }]),
            "{bad}: {steps:?}"
        );
    }
    // LP-31, KD8: the ConfigMap of an earlier pod of the same name is replaced, and a foreign one is left
    // alone.
    let view = launching("a=1 b=0", "", "");
    let replaced = run(&view, &Map::OfPredecessor).steps;
    assert!(
        replaced.contains(&BarrierStep::Replace { map: "pod-barrier".to_owned(), keys: keys("1") }),
        "{replaced:?}"
    );
    let Launch { steps: foreign, again, .. } = run(&view, &Map::Foreign);
    assert!(
        matches!(foreign.as_slice(), [BarrierStep::Event { reason: "BarrierBlocked", .. }]),
        "{foreign:?}"
    );
    assert!(again.is_some(), "it is not watched, so its deletion has to be looked for");
}

#[test]
fn publishing_wakes_the_kubelet() {
    // KD9, LP-14
    let refused = |name: &str| status(name, "waiting:CreateContainerConfigError");
    let mut object = object("a=1 b=0", "a", "");
    object["status"]["containerStatuses"] = json!([status("a", "ready"), refused("b")]);
    let view = view(object.clone());
    let launch = run(&view, &ours("1"));
    let published = BarrierStep::Publish { map: "pod-barrier".to_owned(), keys: keys("0") };
    assert_eq!(launch.steps, [published, BarrierStep::Annotate { completed: true }]);
    // The mark is not written twice, unless it does not appear in the pod.
    let marking = |ago| {
        let at = Some(NOW - ago);
        decide(&view, &ours("1 0"), Memory { woken_at: at, completed_at: at, ..Memory::default() }, NOW)
    };
    assert_eq!(marking(100).steps, []);
    assert_eq!(marking(100).again, Some(NOW + 400));
    assert_eq!(marking(5_000).steps, [BarrierStep::Annotate { completed: true }]);
    // The kubelet saw the annotation before the key. It is woken again, with increasing delays and a limit.
    object["metadata"]["annotations"] = json!({names::COMPLETED: "true"});
    let view = super::view(object.clone());
    let woken = |wakes, ago| {
        let memory = Memory { woken_at: Some(NOW - ago), wakes, ..Memory::default() };
        decide(&view, &ours("1 0"), memory, NOW)
    };
    assert_eq!(woken(0, 100).steps, []);
    assert_eq!(woken(0, 100).again, Some(NOW + 400));
    assert_eq!(woken(0, 500).steps, [BarrierStep::Annotate { completed: true }]);
    assert_eq!(woken(2, 500).steps, []);
    assert_eq!(woken(9, 1_000_000).steps, []);
    // A pod without a kubelet is not woken.
    object["spec"]["nodeName"] = json!("");
    object["metadata"]["annotations"] = json!({});
    object["status"] = json!({});
    let steps = run(&super::view(object), &Map::Missing).steps;
    assert_eq!(steps, [BarrierStep::Create { map: "pod-barrier".to_owned(), keys: keys("1") }]);
}

#[test]
fn a_level_is_passed_by_completion_and_ended_by_failure() {
    // LP-28, KD10
    let ended = |policy: &str, code: &str| {
        let mut object = object("a=1 b=0", "", "");
        object["spec"]["restartPolicy"] = json!(policy);
        object["status"]["containerStatuses"] = json!([status("a", code)]);
        view(object)
    };
    for policy in ["Never", "OnFailure"] {
        assert_eq!(after(&ended(policy, "0"), &ours("1")), (keys("1 0"), true), "{policy}");
    }
    assert_eq!(after(&ended("OnFailure", "1"), &ours("1")).0, keys("1"), "it is restarted");
    assert_eq!(after(&ended("Always", "0"), &ours("1")).0, keys("1"), "it is restarted");
    let failed = run(&ended("Never", "3"), &ours("1"));
    let message =
        "container `b` waits for `a`, which failed with code 3 and will not be restarted".to_owned();
    assert_eq!(failed.steps, [BarrierStep::Fail { message }]);
    // The container it waits for was ready before. So its key was published, and it is about to start.
    let let_through = run(&ended("Never", "3"), &ours("1 0"));
    assert!(
        !let_through.steps.iter().any(|step| matches!(step, BarrierStep::Fail { .. })),
        "{let_through:?}"
    );
    assert_eq!(let_through.waiting, 0);
}

#[test]
fn nothing_new_starts_in_a_pod_that_cannot_be_understood() {
    let mut object = object("a b", "a", "");
    for (i, key) in ["g_a", "g_b"].into_iter().enumerate() {
        object["spec"]["containers"][i]["env"] = json!([barrier_env(key)]);
    }
    let keys_of = |text: &str| {
        let mut object = object.clone();
        object["metadata"]["annotations"] = json!({names::DEPENDS_ON: text});
        let view = view(object);
        (view.problem.is_some(), earned(&view).len())
    };
    assert_eq!(keys_of("b: a ready"), (false, 2));
    assert_eq!(keys_of("garbage"), (true, 1), "only that of the container that runs");
}

#[test]
fn keys_of_containers_that_ran_come_back_at_any_time() {
    // LP-15, LP-30, KD8: also after completion.
    let mut object = object("a=1 b=0", "b", "a");
    object["metadata"]["annotations"] = json!({names::COMPLETED: "true"});
    object["status"]["containerStatuses"][0]["restartCount"] = json!(0);
    let mut crashed = status("a", "waiting:CreateContainerConfigError");
    crashed["restartCount"] = json!(2);
    object["status"]["containerStatuses"][1] = crashed;
    let steps = run(&view(object), &Map::Missing).steps;
    assert_eq!(steps[0], BarrierStep::Create { map: "pod-barrier".to_owned(), keys: keys("1 0") });
    assert!(matches!(steps[1], BarrierStep::Annotate { completed: true }), "{steps:?}");
}

#[test]
fn a_chain_of_levels_is_followed_to_its_end() {
    // The kubelet tries the containers in list order, which differs from their waiting order.
    let view = launching("c=0 b=1 a=2", "", "a");
    let told = |name: &str| {
        let i = view.plan.containers.iter().position(|c| c.name == name).expect("a container");
        let gate = crate::decide::barrier::closed_gate(&view, i).expect("a closed gate");
        crate::decide::explain::gate(&view, i, gate, NOW)
    };
    assert!(told("b").starts_with("waits for `a` to be ready: "), "{}", told("b"));
    assert!(
        told("c").starts_with("waits for `b` to be ready: `b` waits for `a` to be ready: "),
        "{}",
        told("c")
    );
}

#[test]
fn a_launch_that_hangs_says_for_whom() {
    // KD11, issue 1422 of Kruise
    let mut object = object("a=1 b=0", "", "");
    object["status"]["startTime"] = json!("2023-11-14T22:13:20Z");
    object["status"]["containerStatuses"] = json!([{
        "name": "a", "image": "i", "imageID": "", "restartCount": 0, "ready": false,
        "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}},
    }]);
    object["metadata"]["annotations"] = json!({names::LAUNCH_TIMEOUT: "90s"});
    let launch = run(&view(object.clone()), &ours("1"));
    let message = "container `b` waits for `a` to be ready: ImagePullBackOff: no such image, longer than the launch timeout of 1 min 30 s";
    assert!(
        launch.steps.contains(&BarrierStep::Condition { is_true: false, message: message.to_owned() }),
        "{launch:?}"
    );
    assert!(launch.steps.iter().any(|s| matches!(s, BarrierStep::Event { reason: "LaunchTimeout", .. })));
    // The delay is reported once.
    object["status"]["conditions"] =
        json!([{"type": names::LAUNCHED, "status": "False", "message": message}]);
    assert_eq!(run(&view(object.clone()), &ours("1")).steps, []);
    // A new reason is written without another event. A new number is not written.
    let waiting = |reason: &str| {
        let mut other = object.clone();
        other["status"]["containerStatuses"][0]["state"] =
            json!({"waiting": {"reason": reason, "message": "in 10s"}});
        other
    };
    let steps = run(&view(waiting("CrashLoopBackOff")), &ours("1")).steps;
    let [BarrierStep::Condition { is_true: false, message }] = steps.as_slice() else { panic!("{steps:?}") };
    assert!(message.contains("CrashLoopBackOff"), "{message}");
    let mut again = waiting("CrashLoopBackOff");
    again["status"]["conditions"] =
        json!([{"type": names::LAUNCHED, "status": "False", "message": message.replace("10s", "20s")}]);
    assert_eq!(run(&view(again), &ours("1")).steps, []);
    // The delay is also reported if the barrier cannot be created.
    let mut blocked = object.clone();
    blocked["status"]["conditions"] = json!([]);
    for map in [Map::Missing, Map::Foreign] {
        let steps = run(&view(blocked.clone()), &map).steps;
        assert!(
            steps.iter().any(|s| matches!(s, BarrierStep::Event { reason: "LaunchTimeout", .. })),
            "{map:?}: {steps:?}"
        );
    }
    // The report is withdrawn when the wait is over.
    object["status"]["containerStatuses"] = json!([status("a", "ready")]);
    let steps = run(&view(object.clone()), &ours("1")).steps;
    assert!(steps.iter().any(|s| matches!(s, BarrierStep::Condition { is_true: true, .. })), "{steps:?}");
    object["metadata"]["annotations"] = json!({});
    object["status"]["conditions"] = json!([]);
    object["status"]["containerStatuses"] = json!([]);
    assert_eq!(
        run(&view(object), &ours("1")).again,
        Some(outrigger_lifecycle::Time(1_700_000_600_000)),
        "ten minutes"
    );
}

#[test]
fn pods_that_are_over_or_going_are_left_alone() {
    // LP-34
    for change in [json!({"phase": "Failed"}), json!({"phase": "Succeeded"})] {
        let mut object = object("a=1 b=0", "", "");
        object["status"] = change;
        assert_eq!(run(&view(object), &Map::Missing), Launch::default());
    }
    let mut object = object("a=1 b=0", "", "");
    object["metadata"]["deletionTimestamp"] = json!("2023-11-14T22:13:20Z");
    assert_eq!(run(&view(object), &Map::Missing), Launch::default());
}

#[test]
fn gates_of_a_graph_are_keys_of_their_own() {
    let gated = |statuses: Value| {
        let gate = |name: &str| json!({"name": name, "env": [barrier_env(&format!("g_{name}"))]});
        view(json!({
            "metadata": {"name": "pod", "namespace": "ns", "uid": "u", "annotations": {
                names::DEPENDS_ON: "app: db ready, migrate completed\nweb: app started",
            }},
            "spec": {"nodeName": "n", "restartPolicy": "OnFailure", "containers": [
                gate("app"), {"name": "db"}, {"name": "migrate"}, gate("web"),
            ]},
            "status": {"phase": "Pending", "containerStatuses": statuses},
        }))
    };
    let set = |names: &[&str]| -> BTreeSet<String> { names.iter().map(|n| format!("g_{n}")).collect() };
    assert_eq!(earned(&gated(json!([]))), set(&[]));
    assert_eq!(earned(&gated(json!([status("db", "ready")]))), set(&[]));
    assert_eq!(earned(&gated(json!([status("db", "ready"), status("migrate", "0")]))), set(&["app"]));
    assert_eq!(earned(&gated(json!([status("app", "ready"), status("migrate", "0")]))), set(&["app", "web"]));
}

#[test]
fn what_does_not_use_the_operator_is_not_even_kept() {
    let plain =
        pod(json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a"}, {"name": "b"}]}}));
    assert!(ObservedPod::of_served(&plain, NOW).is_none(), "LP-E-03");
    let always = json!({"name": "KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT", "value": "true"});
    let marked = pod(
        json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a"}, {"name": "b", "env": [always]}]}}),
    );
    assert!(ObservedPod::of_served(&marked, NOW).is_none(), "ST-6: restartPolicy Always");
}

/// A Job with the sidecars `a` and `b`. `b` starts once `a` has started. The arguments are states that the
/// kubelet reports.
fn job_with_sidecars(main: &str, a: &str, b: &str) -> ObservedPod {
    let marked = |name: &str, key: &str| {
        let kill = json!({"name": "KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT", "value": "true"});
        json!({"name": name, "env": [kill, barrier_env(key)]})
    };
    let states = [("main", main), ("a", a), ("b", b)];
    view(json!({
        "metadata": {
            "name": "pod", "namespace": "ns", "uid": "uid-1",
            "annotations": {"outrigger.dev/depends-on": "b: a started"},
        },
        "spec": {
            "nodeName": "n", "restartPolicy": "Never",
            "containers": [{"name": "main", "env": [barrier_env("g_main")]}, marked("a", "g_a"), marked("b", "g_b")],
        },
        "status": {"phase": "Pending", "containerStatuses": states.map(|(name, state)| status(name, state))},
    }))
}

#[test]
fn no_sidecar_starts_once_the_mains_are_done() {
    let held = |names: &str| Map::Ours { keys: names.split_whitespace().map(|n| format!("g_{n}")).collect() };
    let refused = "waiting:CreateContainerConfigError";
    // The kubelet's reports in the order of a busy node: the start of `a` is reported together with the end
    // of `main`.
    let early = job_with_sidecars("waiting:ContainerCreating", "waiting:ContainerCreating", refused);
    assert_eq!(run(&early, &held("main a")).steps, []);
    let late = job_with_sidecars("0", "running", refused);
    assert_eq!(run(&late, &held("main a")), Launch::default(), "the key of `b` is not published");
    // The key was published while `main` was running, and the kubelet has not used it.
    let launch = run(&late, &held("main a b"));
    let keys = BTreeSet::from(["g_b".to_owned()]);
    assert_eq!(launch.steps, [BarrierStep::Withdraw { map: "pod-barrier".to_owned(), keys }]);
    assert_eq!(run(&late, &held("main a")), Launch::default(), "once");
    // Containers that have run keep their keys, because a crash restarts them. This also holds if the
    // ConfigMap is lost.
    let both = job_with_sidecars("0", "running", "143");
    assert_eq!(run(&both, &held("main a b")), Launch::default());
    let keys: BTreeSet<String> = ["g_a", "g_b", "g_main"].map(str::to_owned).into();
    assert_eq!(
        run(&both, &Map::Missing).steps,
        [BarrierStep::Create { map: "pod-barrier".to_owned(), keys }]
    );
    // `b` waits for something that can no longer happen. This no longer matters, and the pod has not failed.
    let hopeless = job_with_sidecars("0", "3", refused);
    assert_eq!(run(&hopeless, &held("main a")), Launch::default());
    // While a main runs, `b` starts.
    let running = job_with_sidecars("running", "running", refused);
    assert!(matches!(&run(&running, &held("main a")).steps[0], BarrierStep::Publish { .. }));
}
