//! The depends-on dialect and its options, and combinations of dialects.

use crate::common::{Play, annotated, planned, pod, refused};
use outrigger_lifecycle::{Dialect, Event, FeatureGates, Need, Phase, ProbeKind, Role, Wait, plan};
use serde_json::{Value, json};

pub(crate) const PRIORITY: &str = "KRUISE_CONTAINER_PRIORITY";
pub(crate) const PROPOSED: &str = "KRUISE_CONTAINER_LAUNCH_PRIORITY";
pub(crate) const KILL: &str = "KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT";
pub(crate) const IMAGE: &str = "KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT_WITH_IMAGE";
pub(crate) const IGNORE: &str = "KRUISE_TERMINATE_SIDECAR_IGNORE_EXIT_CODE";
pub(crate) const ORDERED: &str = "apps.kruise.io/container-launch-priority";
pub(crate) const DEPENDS_ON: &str = "outrigger.dev/depends-on";

pub(crate) fn c(name: &str) -> Value {
    json!({"name": name})
}

pub(crate) fn phase_of(play: &Play) -> Phase {
    outrigger_lifecycle::phase(play.engine.plan(), play.engine.observation())
}

pub(crate) fn env(name: &str, vars: &[(&str, &str)]) -> Value {
    let vars: Vec<Value> = vars.iter().map(|(n, v)| json!({"name": n, "value": v})).collect();
    json!({"name": name, "env": vars})
}

pub(crate) fn ready(mut c: Value) -> Value {
    c["readinessProbe"] = json!({"exec": {"command": ["true"]}, "periodSeconds": 1});
    c
}

/// The same holds for mains beside a primary or a fatal one. A sidecar that counts like a main counts by its
/// last exit.
#[test]
fn helpers_in_back_off_have_no_say() {
    let kep = json!({"name": "helper", "lifecycle": {"type": "Sidecar"}});
    let rows = [
        ("kep", json!({}), kep.clone(), 0, "Succeeded"),
        ("kep counts", json!({"outrigger.dev/sidecar-phase": "Count"}), kep, 0, "Failed"),
        ("primary", json!({DEPENDS_ON: "main: primary"}), c("helper"), 0, "Succeeded"),
        ("primary fails", json!({DEPENDS_ON: "main: primary, fatal"}), c("helper"), 1, "Running"),
        ("fatal", json!({DEPENDS_ON: "main: fatal"}), c("helper"), 0, "Succeeded"),
    ];
    for (what, annotations, helper, code, expected) in rows {
        let mut play = Play::of(&annotated(
            annotations,
            json!({"restartPolicy": "OnFailure", "containers": [c("main"), helper]}),
        ));
        play.exit("helper", 1);
        play.exit("helper", 1);
        assert!(matches!(play.wait("helper"), Some(Wait::Backoff { .. })), "{what}");
        play.exit("main", code);
        assert_eq!(phase_of(&play).name(), expected, "{what}");
    }
}

/// A gate that one main has passed stays open for the others. A later exit of the sidecar does not affect
/// them.
#[test]
fn a_gate_that_was_open_once_stays_open_for_the_others() {
    let proxy = || ready(json!({"name": "proxy", "lifecycle": {"type": "Sidecar"}}));
    let late = || json!({"name": "late", "image": "slow"});
    let kep = json!({"containers": [proxy(), c("app"), late()]});
    let graph = json!({"containers": [ready(c("proxy")), c("app"), late()]});
    let level = json!({"containers": [ready(env("proxy", &[(PRIORITY, "1")])), c("app"), late()]});
    for (what, annotations, mut spec) in [
        ("kep", json!({}), kep),
        ("depends-on", json!({DEPENDS_ON: "app: proxy ready; late: proxy ready"}), graph),
        ("priority", json!({}), level),
    ] {
        for (policy, code) in [("Never", 1), ("OnFailure", 1)] {
            spec["restartPolicy"] = json!(policy);
            let mut play = Play::of_late(&annotated(annotations.clone(), spec.clone()), "late");
            play.probed("proxy", ProbeKind::Readiness, true);
            assert_eq!(play.log(), ["start proxy", "start app"], "{what} {policy}");
            play.exit("proxy", code);
            let log = play.log();
            assert!(!log.iter().any(|l| l.starts_with("stop") || l.starts_with("term")), "{what}: {log:?}");
            assert_eq!(play.wait("late"), Some(Wait::Image), "{what}: only its image is missing");
            play.image_arrives("late");
            assert_eq!(play.log(), ["start late"], "{what} {policy}");
        }
    }
}

/// The result does not depend on how fast images are pulled. A container whose gates were all open starts
/// when its image is present, even if the containers it waited for have ended.
#[test]
fn a_slow_pull_changes_nothing_about_an_open_gate() {
    let proxy = || ready(json!({"name": "proxy", "lifecycle": {"type": "Sidecar"}}));
    let late = || json!({"name": "late", "image": "slow"});
    let kep = json!({"containers": [proxy(), late()]});
    let graph = json!({"containers": [ready(c("proxy")), late()]});
    let level = json!({"containers": [ready(env("proxy", &[(PRIORITY, "1")])), late()]});
    for (what, annotations, mut spec) in [
        ("kep", json!({}), kep),
        ("depends-on", json!({DEPENDS_ON: "late: proxy ready; proxy: sidecar"}), graph),
        ("priority", json!({}), level),
    ] {
        for policy in ["Never", "OnFailure"] {
            spec["restartPolicy"] = json!(policy);
            let mut play = Play::of_late(&annotated(annotations.clone(), spec.clone()), "late");
            play.probed("proxy", ProbeKind::Readiness, true);
            play.exit("proxy", 1);
            let log = play.log();
            assert!(!log.iter().any(|l| l.starts_with("stop")), "{what} {policy}: {log:?}");
            assert_eq!(play.wait("late"), Some(Wait::Image), "{what} {policy}: only its image is missing");
            play.image_arrives("late");
            assert_eq!(play.log(), ["start late"], "{what} {policy}");
        }
    }
    // The image of another sidecar is slow. The gate on the first sidecar was open too.
    let slow = json!({"name": "slow", "lifecycle": {"type": "Sidecar"}});
    let two = json!({"restartPolicy": "Never", "containers": [proxy(), slow, c("app")]});
    let mut play = Play::of_late(&pod(two), "slow");
    play.probed("proxy", ProbeKind::Readiness, true);
    play.exit("proxy", 1);
    play.log();
    play.image_arrives("slow");
    assert_eq!(play.log(), ["start slow", "start app"]);
}

/// A gate is not open before the container it waits for was ready, and a fence applies to every start.
#[test]
fn a_gate_that_was_never_open_ends_the_pod() {
    let proxy = || ready(json!({"name": "proxy", "lifecycle": {"type": "Sidecar"}}));
    let never = |containers: Vec<Value>| json!({"restartPolicy": "Never", "containers": containers});
    let late = json!({"name": "late", "image": "slow"});
    let mut play = Play::of_late(&pod(never(vec![proxy(), late.clone()])), "late");
    play.log();
    play.exit("proxy", 1);
    assert_eq!(play.log(), ["stop GateNeverOpens { container: 1, on: 0 }"]);
    let mut play = Play::of_late(
        &annotated(json!({"outrigger.dev/fence": "start"}), never(vec![proxy(), c("app"), late])),
        "late",
    );
    play.probed("proxy", ProbeKind::Readiness, true);
    play.log();
    play.exit("proxy", 1);
    assert_eq!(play.log(), ["stop GateNeverOpens { container: 2, on: 0 }", "term app"]);
}

/// A main that finished in a lost sandbox has not passed a gate in the next one.
#[test]
fn a_gate_of_a_lost_sandbox_says_nothing_of_the_next() {
    let proxy = ready(json!({"name": "proxy", "lifecycle": {"type": "Sidecar"}}));
    let late = json!({"name": "late", "image": "slow"});
    let spec = json!({"restartPolicy": "OnFailure", "containers": [proxy, c("done"), late]});
    let mut play = Play::of_late(&pod(spec), "late");
    play.probed("proxy", ProbeKind::Readiness, true);
    play.exit("done", 0);
    assert_eq!(play.log(), ["start proxy", "start done"]);
    play.engine.handle(&Event::SandboxLost, play.now);
    play.settle();
    play.exit("proxy", 1);
    play.log();
    play.image_arrives("late");
    assert!(matches!(play.wait("late"), Some(Wait::Gate { .. })), "{:?}", play.wait("late"));
    assert_eq!(play.log(), [""; 0]);
    play.probed("proxy", ProbeKind::Readiness, true);
    assert_eq!(play.log(), ["start late"]);
}

/// A container whose fence can never open again ends the pod instead of waiting forever (LP-28, G-19).
#[test]
fn a_fence_around_a_sidecar_that_ended_for_good_ends_the_pod() {
    let proxy = || ready(json!({"name": "proxy", "lifecycle": {"type": "Sidecar"}}));
    let spec = |policy: &str| json!({"restartPolicy": policy, "containers": [proxy(), c("app")]});
    let stopped = "stop GateNeverOpens { container: 1, on: 0 }";
    for (what, annotations) in [
        ("fence", json!({"outrigger.dev/fence": "restart"})),
        ("graph", json!({DEPENDS_ON: "app: proxy fence"})),
    ] {
        for (policy, code) in [("Never", 1), ("Never", 0), ("OnFailure", 0)] {
            let mut play = Play::of(&annotated(annotations.clone(), spec(policy)));
            play.probed("proxy", ProbeKind::Readiness, true);
            play.log();
            play.exit("proxy", code);
            assert_eq!(play.log(), ["term app"], "{what} {policy}");
            play.exit("app", 143);
            assert_eq!(play.log(), [stopped], "{what} {policy}");
            assert!(play.over());
            assert_eq!(phase_of(&play).name(), "Failed", "{what} {policy}");
        }
    }
    // If the fence does not stop containers, the main keeps running, and only its restart can become
    // impossible.
    let start = json!({"outrigger.dev/fence": "start"});
    let mut play = Play::of(&annotated(start.clone(), spec("OnFailure")));
    play.probed("proxy", ProbeKind::Readiness, true);
    play.exit("proxy", 0);
    assert_eq!(play.log(), ["start proxy", "start app"]);
    play.exit("app", 1);
    assert_eq!(play.log(), [stopped]);
    let mut play = Play::of(&annotated(start, spec("OnFailure")));
    play.probed("proxy", ProbeKind::Readiness, true);
    play.exit("proxy", 0);
    play.exit("app", 0);
    assert_eq!(phase_of(&play).name(), "Succeeded", "finished mains wait for nothing");
}

/// Marks in places where they make no sense are refused or ignored.
#[test]
fn marks_where_they_make_no_sense() {
    let kep_init = pod(
        json!({"initContainers": [{"name": "i", "lifecycle": {"type": "Sidecar"}}], "containers": [c("a")]}),
    );
    let kep_only = pod(json!({"containers": [{"name": "a", "lifecycle": {"type": "Sidecar"}}]}));
    let marked_only = pod(json!({"restartPolicy": "Never", "containers": [env("a", &[(KILL, "true")])]}));
    let mixed_only = pod(json!({"restartPolicy": "Never", "containers": [
        env("a", &[(KILL, "true")]), {"name": "b", "lifecycle": {"type": "Sidecar"}}]}));
    let graph_only = annotated(json!({DEPENDS_ON: "a: sidecar"}), json!({"containers": [c("a")]}));
    for (what, input, code) in [
        ("a KEP sidecar among the init containers", kep_init, "kep-init"),
        ("only KEP sidecars", kep_only, "kep-standard"),
        ("only marked containers (ST-9)", marked_only, "sidecars-only"),
        ("KEP sidecars and marked containers only", mixed_only, "sidecars-only"),
        ("only sidecars of a graph", graph_only, "sidecars-only"),
    ] {
        let findings = refused(&input);
        assert!(findings.iter().any(|f| f.code == code && f.hint.is_some()), "{what}: {findings:?}");
    }
    // Marks on init containers are ignored: ST-1, LP-8.
    for (name, value, code) in [(KILL, "true", "ST-1"), (IMAGE, "x", "ST-1"), (PRIORITY, "7", "LP-8")] {
        let input = pod(json!({
            "restartPolicy": "Never", "initContainers": [env("i", &[(name, value)])], "containers": [c("a"), c("b")],
        }));
        let planned = plan(&input, &FeatureGates::default()).expect("accepted");
        assert_eq!(planned.warnings.iter().map(|f| f.code).collect::<Vec<_>>(), [code], "{name}");
        assert_eq!((planned.plan.containers[0].role, planned.plan.dialects.len()), (Role::Init, 0), "{name}");
    }
}

/// A blank mark has no effect.
#[test]
fn blank_marks_mean_nothing() {
    let plain = planned(&pod(json!({"restartPolicy": "Never", "containers": [c("a"), c("b")]})));
    for (what, input) in [
        // "Defaults to Standard", and Kubernetes treats an empty string as absent.
        (
            "type",
            pod(
                json!({"restartPolicy": "Never", "containers": [c("a"), {"name": "b", "lifecycle": {"type": ""}}]}),
            ),
        ),
        ("kill", pod(json!({"restartPolicy": "Never", "containers": [c("a"), env("b", &[(KILL, "")])]}))),
        (
            "kill, a blank",
            pod(json!({"restartPolicy": "Never", "containers": [c("a"), env("b", &[(KILL, " ")])]})),
        ),
        ("image", pod(json!({"restartPolicy": "Never", "containers": [c("a"), env("b", &[(IMAGE, "")])]}))),
        (
            "graph",
            annotated(
                json!({DEPENDS_ON: ""}),
                json!({"restartPolicy": "Never", "containers": [c("a"), c("b")]}),
            ),
        ),
        (
            "a graph of comments",
            annotated(
                json!({DEPENDS_ON: " \n# nothing\n"}),
                json!({"restartPolicy": "Never", "containers": [c("a"), c("b")]}),
            ),
        ),
    ] {
        assert_eq!(planned(&input), plain, "{what}");
    }
    // A blank number is not a number (LP-6).
    assert_eq!(refused(&pod(json!({"containers": [c("a"), env("b", &[(PRIORITY, "")])]})))[0].code, "LP-6");
}

#[test]
fn depends_on_is_a_graph() {
    let mut play = Play::of(&annotated(
        json!({DEPENDS_ON: "app: proxy ready, migrate completed\nmigrate: none; proxy: none"}),
        json!({
            "initContainers": [{"name": "proxy", "restartPolicy": "Always", "readinessProbe": {"exec": {"command": ["true"]}}},
                {"name": "migrate"}],
            "containers": [c("app")],
        }),
    ));
    assert_eq!(play.log(), ["start proxy", "start migrate"], "side by side (G-61, G-62)");
    play.exit("migrate", 0);
    assert_eq!(play.log(), [""; 0]);
    assert_eq!(play.wait("app"), Some(Wait::Gate { on: 0, need: Need::Ready }));
    play.probed("proxy", ProbeKind::Readiness, true);
    assert_eq!(play.log(), ["start app"]);
    play.stop(None);
    play.exit("app", 0);
    assert_eq!(play.log(), ["term app", "term proxy"], "the stop is the graph backwards");
}

#[test]
fn order_numbers_order_start_and_stop_g59() {
    let mut play = Play::of(&annotated(
        json!({DEPENDS_ON: "a: start 2, stop 1\nb: start 1, stop 2\nc: start 2, stop 2"}),
        json!({"containers": [c("a"), c("b"), c("c")]}),
    ));
    assert_eq!(play.log(), ["start b", "start a", "start c"]);
    play.stop(None);
    assert_eq!(play.log(), ["term a", "term c"][..1], "stop 1 before stop 2");
    play.exit("a", 0);
    let mut log = play.log();
    log.sort();
    assert_eq!(log, ["term b", "term c"]);
}

#[test]
fn a_primary_container_completes_the_pod_g60() {
    let mut play = Play::of(&annotated(
        json!({DEPENDS_ON: "worker: primary"}),
        json!({"restartPolicy": "Never", "containers": [c("worker"), c("helper")]}),
    ));
    play.log();
    play.exit("worker", 0);
    assert_eq!(play.log()[1..], ["term helper"]);
}

#[test]
fn a_fatal_container_ends_the_pod_g60() {
    for (code, expected) in [(0, "Succeeded"), (1, "Failed")] {
        let mut play = Play::of(&annotated(
            json!({DEPENDS_ON: "guard: fatal"}),
            json!({"containers": [c("app"), c("guard")]}),
        ));
        play.log();
        play.exit("guard", code);
        assert_eq!(play.log()[1..], ["term app"]);
        play.exit("app", 143);
        let phase = outrigger_lifecycle::phase(play.engine.plan(), play.engine.observation());
        assert_eq!(phase.name(), expected, "who is stopped for the guard's sake has no say");
    }
}

#[test]
fn dependants_restart_with_what_they_depend_on_g64() {
    let mut play = Play::of(&annotated(
        json!({DEPENDS_ON: "app: proxy started restart"}),
        json!({"containers": [c("proxy"), c("app")]}),
    ));
    play.log();
    play.exit("proxy", 1);
    assert_eq!(play.log(), ["start proxy", "term app"]);
    play.exit("app", 143);
    assert_eq!(play.log(), ["start app"]);
    play.pass(60_000);
    assert_eq!(play.log(), [""; 0], "once");
}

#[test]
fn fenced_containers_run_only_while_the_sidecar_is_ready_g19_g56() {
    let proxy = json!({"name": "proxy", "restartPolicy": "Always",
        "readinessProbe": {"exec": {"command": ["true"]}, "periodSeconds": 1, "failureThreshold": 1}});
    let mut play = Play::of(&annotated(
        json!({"outrigger.dev/fence": "restart"}),
        json!({"initContainers": [proxy], "containers": [c("app")]}),
    ));
    assert_eq!(play.log(), ["start proxy"], "ready, not only started");
    play.probed("proxy", ProbeKind::Readiness, true);
    assert_eq!(play.log(), ["start app"]);
    play.pass(1_000);
    play.probed("proxy", ProbeKind::Readiness, false);
    assert_eq!(play.log(), ["term app"]);
    play.exit("app", 143);
    assert_eq!(play.log(), [""; 0]);
    play.pass(1_000);
    play.probed("proxy", ProbeKind::Readiness, true);
    assert_eq!(play.log(), ["start app"]);
}

#[test]
fn a_reserve_keeps_the_order_when_mains_take_all_the_grace_g24_g25() {
    let s = |n: &str| json!({"name": n, "restartPolicy": "Always"});
    let mut play = Play::of(&annotated(
        json!({"outrigger.dev/sidecar-grace": "6s"}),
        json!({"terminationGracePeriodSeconds": 10, "initContainers": [s("s0"), s("s1")], "containers": [c("app")]}),
    ));
    play.log();
    play.stop(None);
    play.pass(3_999);
    assert_eq!(play.log(), ["term app"]);
    play.pass(1);
    assert_eq!(play.log(), ["kill app", "term s1"], "mains end at 10 - 6");
    play.pass(2_999);
    assert_eq!(play.log(), [""; 0]);
    play.pass(1);
    assert_eq!(play.log(), ["kill s1", "term s0"], "still one after the other");
    play.pass(3_000);
    assert!(play.over());
}

#[test]
fn pre_stop_can_wait_for_its_turn_g26() {
    let mut s = json!({"name": "s0", "restartPolicy": "Always"});
    s["lifecycle"]["preStop"] = json!({"exec": {"command": ["true"]}});
    let mut play = Play::of(&annotated(
        json!({"outrigger.dev/pre-stop": "own-turn"}),
        json!({"initContainers": [s], "containers": [c("app")]}),
    ));
    play.log();
    play.stop(None);
    assert_eq!(play.log(), ["term app"]);
    play.exit("app", 0);
    assert_eq!(play.log(), ["preStop s0", "term s0"]);
}

#[test]
fn a_post_start_hook_can_have_a_deadline_g14() {
    let mut app = c("app");
    app["lifecycle"] = json!({"postStart": {"exec": {"command": ["true"]}}});
    let mut play =
        Play::of(&annotated(json!({"outrigger.dev/post-start-timeout": "5s"}), json!({"containers": [app]})));
    play.quick_hooks = false;
    play.engine = outrigger_lifecycle::Engine::new(play.engine.plan().clone(), play.now);
    play.settle();
    play.log();
    play.pass(5_000);
    assert_eq!(play.log(), ["term app"]);
}

#[test]
fn sidecars_can_restart_faster_g09_g63() {
    let s = json!({"name": "s0", "restartPolicy": "Always"});
    let p = planned(&annotated(
        json!({"outrigger.dev/restart-backoff": "s0=500ms..4s"}),
        json!({"initContainers": [s], "containers": [c("app")]}),
    ));
    assert_eq!(
        (p.containers[0].restart.backoff.initial_ms, p.containers[0].restart.backoff.max_ms),
        (500, 4_000)
    );
    assert_eq!(p.containers[1].restart.backoff.initial_ms, 10_000);
}

/// Launch priorities order the mains, and sidecars among each other, whichever way a sidecar is marked.
#[test]
fn sidecars_start_before_mains_of_any_priority() {
    let app = env("app", &[(PRIORITY, "1")]);
    let by_type = pod(json!({"containers": [app, {"name": "proxy", "lifecycle": {"type": "Sidecar"}}]}));
    let by_name =
        annotated(json!({"outrigger.dev/sidecars": "proxy"}), json!({"containers": [app, c("proxy")]}));
    for input in [&by_type, &by_name] {
        assert_eq!(Play::of(input).log(), ["start proxy", "start app"]);
    }
    assert_eq!(crate::common::planned(&by_type).containers, crate::common::planned(&by_name).containers);
    let sidecars = json!({"containers": [app,
        {"name": "low", "lifecycle": {"type": "Sidecar"}},
        {"name": "high", "lifecycle": {"type": "Sidecar"}, "env": [{"name": PRIORITY, "value": "1"}]}]});
    assert_eq!(Play::of(&pod(sidecars)).log(), ["start high", "start low", "start app"]);
}

#[test]
fn a_sidecar_that_is_standard_is_refused_with_both_lines() {
    let spec = json!({"containers": [c("app"), {"name": "s", "lifecycle": {"type": "Standard"}}]});
    for (annotation, value) in [("outrigger.dev/sidecars", "s"), (DEPENDS_ON, "s: sidecar")] {
        let findings = refused(&annotated(json!({annotation: value}), spec.clone()));
        assert_eq!(findings[0].code, "kep-contradiction", "{annotation}");
        assert_eq!(findings[0].path.to_string(), "spec.containers[1].lifecycle.type", "{annotation}");
        assert!(findings[0].related[0].0.to_string().contains(annotation), "{:?}", findings[0].related);
    }
}

/// A fence applies to containers that wait for a sidecar. A level of launch priority is not a sidecar.
#[test]
fn a_fence_without_effect_is_reported() {
    let fence = json!({"outrigger.dev/fence": "restart"});
    let warned = |annotations: Value, spec: Value| {
        let planned = plan(&annotated(annotations, spec), &FeatureGates::default()).expect("a plan");
        planned.warnings.iter().any(|w| w.code == "fence" && w.hint.is_some())
    };
    let levels = json!({"containers": [env("high", &[(PRIORITY, "1")]), c("low")]});
    assert!(warned(fence.clone(), levels));
    let sidecar = json!({"containers": [c("app"), {"name": "s", "lifecycle": {"type": "Sidecar"}}]});
    assert!(!warned(fence, sidecar));
}

/// Whether a Job counts the restarts of a sidecar as failures. By default it counts those of native sidecars,
/// as Kubernetes does, and not those of the other dialects.
#[test]
fn jobs_count_restarts_of_native_sidecars_only_unless_told() {
    let native =
        json!({"initContainers": [{"name": "s", "restartPolicy": "Always"}], "containers": [c("app")]});
    let kep = json!({"containers": [c("app"), {"name": "s", "lifecycle": {"type": "Sidecar"}}]});
    let terminator =
        json!({"restartPolicy": "OnFailure", "containers": [c("app"), env("s", &[(KILL, "true")])]});
    let graph = json!({"containers": [c("app"), c("s")]});
    for (what, mut annotations, spec, ignored) in [
        ("native", json!({}), native, false),
        ("kep", json!({}), kep, true),
        ("terminator", json!({}), terminator, true),
        ("depends-on", json!({DEPENDS_ON: "s: sidecar"}), graph, true),
    ] {
        for (value, expected) in [(None, ignored), (Some("Ignore"), true), (Some("Count"), false)] {
            if let Some(value) = value {
                annotations["outrigger.dev/sidecar-restarts"] = json!(value);
            }
            let plan = crate::common::planned(&annotated(annotations.clone(), spec.clone()));
            let of = |name: &str| plan.containers[plan.find(name).unwrap()].job_ignores_restarts;
            assert_eq!((of("s"), of("app")), (expected, false), "{what} {value:?}");
        }
        annotations["outrigger.dev/sidecar-restarts"] = json!("count");
        let findings = refused(&annotated(annotations, spec));
        assert!(findings[0].path.to_string().contains("sidecar-restarts"), "{what}: {findings:?}");
    }
}

#[test]
fn circles_are_refused_with_both_sides() {
    let two = annotated(json!({DEPENDS_ON: "a: b; b: a"}), json!({"containers": [c("a"), c("b")]}));
    let kep = annotated(
        json!({DEPENDS_ON: "proxy: app"}),
        json!({"containers": [c("app"), {"name": "proxy", "lifecycle": {"type": "Sidecar"}}]}),
    );
    let native = annotated(
        json!({DEPENDS_ON: "proxy: app"}),
        json!({"initContainers": [{"name": "proxy", "restartPolicy": "Always"}], "containers": [c("app")]}),
    );
    for (what, input) in [("two", two), ("kep and depends-on", kep), ("native and depends-on", native)] {
        let findings = refused(&input);
        assert_eq!(findings[0].code, "cycle", "{what}");
        assert!(!findings[0].related.is_empty(), "{what}: both sides are shown");
        assert!(findings[0].hint.is_some());
    }
}

/// The latest time of a signal takes into account what is known about hooks and about the grace periods
/// before it.
#[test]
fn the_latest_stop_counts_hooks_that_sleep_and_own_grace_periods() {
    let window = |annotations: Value, spec: Value, name: &str| {
        let plan = plan(&annotated(annotations, spec), &FeatureGates::default()).unwrap().plan;
        let window = plan.stop_window(plan.find(name).unwrap(), 30_000);
        (window.signal_ms_max, window.kill_ms_max)
    };
    let with_hook =
        |hook: Value| json!({"containers": [c("app"), {"name": "proxy", "lifecycle": {"preStop": hook}}]});
    let kep = || json!({"outrigger.dev/sidecars": "proxy"});
    let sleeps = with_hook(json!({"sleep": {"seconds": 5}}));
    assert_eq!(window(kep(), sleeps, "app"), (5_000, 30_000));
    let unknown = with_hook(json!({"exec": {"command": ["drain"]}}));
    assert_eq!(window(kep(), unknown, "app"), (30_000, 32_000));
    let native =
        json!({"initContainers": [{"name": "proxy", "restartPolicy": "Always"}], "containers": [c("app")]});
    assert_eq!(
        window(json!({"outrigger.dev/stop-grace": "app=5s"}), native.clone(), "proxy"),
        (5_000, 30_000)
    );
    assert_eq!(window(json!({}), native, "proxy"), (30_000, 32_000));
}

#[test]
fn bad_depends_on_lines_say_what_is_wrong() {
    for (text, part) in [
        ("app proxy", "there is no `:`"),
        ("app: proxi", "did you mean `proxy`?"),
        ("app: proxy running", "unknown word \"running\""),
        ("proxy: primary, sidecar", "contradict each other"),
        ("app: app", "cannot wait for itself"),
        ("app: proxy; app: none", "has a line already"),
        ("app: start x", "not a whole number"),
        ("app: proxy,", "an empty clause"),
    ] {
        let findings =
            refused(&annotated(json!({DEPENDS_ON: text}), json!({"containers": [c("app"), c("proxy")]})));
        let all = format!("{} {}", findings[0].message, findings[0].hint.clone().unwrap_or_default());
        assert!(all.contains(part), "{text:?}: {all}");
    }
    // Only a main can be primary, whichever dialect changed the container's role.
    let primary = json!({DEPENDS_ON: "app: none\nproxy: primary"});
    let native =
        json!({"initContainers": [{"name": "proxy", "restartPolicy": "Always"}], "containers": [c("app")]});
    let init = json!({"initContainers": [c("proxy")], "containers": [c("app")]});
    let mut named = primary.clone();
    named["outrigger.dev/sidecars"] = json!("proxy");
    let two = json!({"containers": [c("app"), c("proxy")]});
    for (what, input, mark) in [
        ("a sidecar", annotated(named, two), "metadata.annotations[outrigger.dev/sidecars]"),
        ("a sidecar", annotated(primary.clone(), native), "spec.initContainers[0].restartPolicy"),
        ("an init container", annotated(primary, init), "spec.initContainers[0]"),
    ] {
        let findings = refused(&input);
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert!(
            findings[0].message.starts_with(&format!("`proxy` is `primary`, but it is {what}: ")),
            "{findings:?}"
        );
        assert!(findings[0].path.to_string().ends_with("depends-on][1]"), "{findings:?}");
        assert_eq!(findings[0].related[0].0.to_string(), mark, "{findings:?}");
    }
    // Names of one letter are too short to guess from.
    let letters = annotated(json!({DEPENDS_ON: "a: b"}), json!({"containers": [c("a"), c("c")]}));
    assert_eq!(refused(&letters)[0].hint.as_deref(), Some("the containers are a, c"));
    // Each entry has its own position.
    let places =
        annotated(json!({DEPENDS_ON: "a: c; # a; b\nx: y; c: z"}), json!({"containers": [c("a"), c("c")]}));
    let found: Vec<String> = refused(&places).iter().map(|f| f.path.to_string()).collect();
    assert!(found[0].ends_with("[3]") && found[1].ends_with("[4]"), "{found:?}");
}

#[test]
fn unknown_and_bad_options_are_reported() {
    let warned = plan(
        &annotated(json!({"outrigger.dev/depend-on": "x"}), json!({"containers": [c("a")]})),
        &FeatureGates::default(),
    )
    .unwrap();
    assert!(warned.warnings[0].hint.as_ref().unwrap().contains("outrigger.dev/depends-on"));
    for (name, value) in [
        ("sidecar-phase", "count"),
        ("pre-stop", "later"),
        ("sidecar-grace", "31s"),
        ("sidecar-grace", "fast"),
        ("sidecar-delay", "soon"),
        ("sidecar-delay", "25h"),
        ("stop-grace", "5s"),
        ("stop-grace", "a=31s"),
        ("stop-grace", "nobody=1s"),
        ("stop-grace", "a=1s,"),
        ("stop-grace", "a=1s, a=2s"),
        ("launch-timeout", "soon"),
        ("fence", "yes"),
        ("restart-backoff", "10s"),
        ("restart-backoff", "nobody=1s..2s"),
        ("post-start-timeout", "-1"),
    ] {
        let annotation = format!("outrigger.dev/{name}");
        let findings = refused(&annotated(json!({annotation: value}), json!({"containers": [c("a")]})));
        assert!(findings[0].path.to_string().contains(name), "{name}={value}");
    }
}

/// Every pair of dialects in one pod: the order of starts and of stops.
#[test]
fn dialects_meet() {
    let native = || json!({"name": "native", "restartPolicy": "Always"});
    let kep = || ready(json!({"name": "kep", "lifecycle": {"type": "Sidecar"}}));
    let term = || env("term", &[(KILL, "true")]);
    let prio = || ready(env("prio", &[(PRIORITY, "9")]));
    let dep = json!({DEPENDS_ON: "late: app started"});
    type Pair = (&'static str, Value, Value, Vec<Dialect>, Vec<&'static str>, Vec<&'static str>);
    let pairs: Vec<Pair> = vec![
        (
            "native+kep",
            json!({}),
            json!({"initContainers": [native()], "containers": [c("app"), kep()]}),
            vec![Dialect::Native, Dialect::Kep],
            vec!["native", "kep", "app"],
            vec!["app", "kep", "native"],
        ),
        (
            "native+priority",
            json!({}),
            json!({"initContainers": [native()], "containers": [c("app"), prio()]}),
            vec![Dialect::Native, Dialect::Priority],
            vec!["native", "prio", "app"],
            vec!["app", "prio", "native"],
        ),
        (
            "native+terminator",
            json!({}),
            json!({"restartPolicy": "Never", "initContainers": [native()], "containers": [c("app"), term()]}),
            vec![Dialect::Native, Dialect::Terminator],
            vec!["native", "app", "term"],
            vec!["app", "term", "native"],
        ),
        (
            "native+depends-on",
            dep.clone(),
            json!({"initContainers": [native()], "containers": [c("late"), c("app")]}),
            vec![Dialect::Native, Dialect::DependsOn],
            vec!["native", "app", "late"],
            vec!["late", "app", "native"],
        ),
        (
            "kep+priority",
            json!({}),
            json!({"containers": [c("app"), ready(json!({"name": "kep", "lifecycle": {"type": "Sidecar"}, "env": [{"name": PRIORITY, "value": "1"}]}))]}),
            vec![Dialect::Kep, Dialect::Priority],
            vec!["kep", "app"],
            vec!["app", "kep"],
        ),
        (
            "kep+terminator",
            json!({}),
            json!({"restartPolicy": "Never", "containers": [c("app"), kep(), term()]}),
            vec![Dialect::Kep, Dialect::Terminator],
            vec!["kep", "app", "term"],
            vec!["app", "term", "kep"],
        ),
        (
            "kep+depends-on",
            dep.clone(),
            json!({"containers": [c("late"), c("app"), kep()]}),
            vec![Dialect::Kep, Dialect::DependsOn],
            vec!["kep", "app", "late"],
            vec!["late", "app", "kep"],
        ),
        (
            "priority+terminator",
            json!({}),
            json!({"restartPolicy": "Never", "containers": [c("app"), ready(env("term", &[(KILL, "true"), (PRIORITY, "1")]))]}),
            vec![Dialect::Priority, Dialect::Terminator],
            vec!["term", "app"],
            vec!["app", "term"],
        ),
        (
            "priority+depends-on",
            dep.clone(),
            json!({"containers": [c("late"), c("app"), prio()]}),
            vec![Dialect::Priority, Dialect::DependsOn],
            vec!["prio", "app", "late"],
            vec!["late", "prio", "app"],
        ),
        (
            "terminator+depends-on",
            dep,
            json!({"restartPolicy": "Never", "containers": [c("late"), c("app"), term()]}),
            vec![Dialect::Terminator, Dialect::DependsOn],
            vec!["app", "term", "late"],
            vec!["late", "term", "app"],
        ),
    ];
    for (what, annotations, spec, dialects, starts, stops) in pairs {
        let input = annotated(annotations, spec);
        let plan = planned(&input);
        let mut expected = dialects.clone();
        expected.sort();
        assert_eq!(plan.dialects, expected, "{what}");
        let mut play = Play::new(plan);
        let mut started = Vec::new();
        for _ in 0..6 {
            for line in play.log() {
                if let Some(name) = line.strip_prefix("start ") {
                    started.push(name.to_owned());
                    play.probed(name, ProbeKind::Readiness, true);
                }
            }
        }
        assert_eq!(started, starts, "{what} starts");
        play.stop(None);
        let mut stopped = Vec::new();
        for _ in 0..6 {
            let mut wave: Vec<String> =
                play.log().iter().filter_map(|l| l.strip_prefix("term ").map(str::to_owned)).collect();
            wave.sort_by_key(|n| stops.iter().position(|s| s == n));
            for name in wave {
                play.exit(&name, 0);
                stopped.push(name);
            }
        }
        assert_eq!(stopped, stops, "{what} stops");
        assert!(play.over(), "{what}");
    }
}

#[test]
fn roles_are_what_the_dialect_says() {
    let p = planned(&pod(json!({
        "restartPolicy": "Never",
        "initContainers": [c("i"), {"name": "n", "restartPolicy": "Always"}],
        "containers": [c("m"), {"name": "k", "lifecycle": {"type": "Sidecar"}}, env("t", &[(KILL, "true")])],
    })));
    let roles: Vec<Role> = p.containers.iter().map(|c| c.role).collect();
    assert_eq!(roles, [Role::Init, Role::Sidecar, Role::Main, Role::Sidecar, Role::Sidecar]);
}
