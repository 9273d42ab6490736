//! Launch priority, sidecar terminator and depends-on, alone and together.

use crate::common::{Play, annotated, planned, pod, refused};
use outrigger_lifecycle::{Dialect, Event, FeatureGates, Need, Phase, ProbeKind, Role, Wait, plan};
use serde_json::{Value, json};

const PRIORITY: &str = "KRUISE_CONTAINER_PRIORITY";
const PROPOSED: &str = "KRUISE_CONTAINER_LAUNCH_PRIORITY";
const KILL: &str = "KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT";
const IMAGE: &str = "KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT_WITH_IMAGE";
const IGNORE: &str = "KRUISE_TERMINATE_SIDECAR_IGNORE_EXIT_CODE";
const ORDERED: &str = "apps.kruise.io/container-launch-priority";
const DEPENDS_ON: &str = "outrigger.dev/depends-on";

fn c(name: &str) -> Value {
    json!({"name": name})
}

fn phase_of(play: &Play) -> Phase {
    outrigger_lifecycle::phase(play.engine.plan(), play.engine.observation())
}

fn env(name: &str, vars: &[(&str, &str)]) -> Value {
    let vars: Vec<Value> = vars.iter().map(|(n, v)| json!({"name": n, "value": v})).collect();
    json!({"name": name, "env": vars})
}

fn ready(mut c: Value) -> Value {
    c["readinessProbe"] = json!({"exec": {"command": ["true"]}, "periodSeconds": 1});
    c
}

/// The levels containers start in: names that started together.
fn levels(p: &mut Play, names: &[&str]) -> Vec<Vec<String>> {
    let mut levels = Vec::new();
    for _ in 0..names.len() {
        let mut level: Vec<String> =
            p.log().iter().filter_map(|l| l.strip_prefix("start ").map(str::to_owned)).collect();
        if level.is_empty() {
            break;
        }
        level.sort();
        for name in &level {
            p.probed(name, ProbeKind::Readiness, true);
        }
        levels.push(level);
    }
    levels
}

#[test]
fn launch_priority_levels_lp_w() {
    let p = |n: &str, v: &str| ready(env(n, &[(PRIORITY, v)]));
    let r = |n: &str| ready(c(n));
    let old = |n: &str, v: &str| ready(env(n, &[(PROPOSED, v)]));
    // (id, annotation, containers, levels)
    let cases: Vec<(&str, Option<&str>, Vec<Value>, Vec<Vec<&str>>)> = vec![
        ("LP-W-01", None, vec![r("a"), r("b")], vec![vec!["a", "b"]]),
        ("LP-W-02", Some("Ordered"), vec![r("a"), r("b"), r("c")], vec![vec!["a"], vec!["b"], vec!["c"]]),
        ("LP-W-03", None, vec![r("b"), p("a", "1")], vec![vec!["a"], vec!["b"]]),
        ("LP-W-04", None, vec![p("a", "5"), p("b", "5")], vec![vec!["a", "b"]]),
        ("LP-W-05", None, vec![p("a", "0"), p("b", "0")], vec![vec!["a", "b"]]),
        ("LP-W-06", Some("Ordered"), vec![p("a", "1")], vec![vec!["a"]]),
        ("LP-W-08", Some("Ordered"), vec![p("a", "abc"), r("b")], vec![vec!["a"], vec!["b"]]),
        ("LP-W-09", Some("ordered"), vec![r("a"), r("b")], vec![vec!["a", "b"]]),
        ("seed", None, vec![r("main"), old("sidecar", "1")], vec![vec!["sidecar"], vec!["main"]]),
        (
            "LP-U P6",
            None,
            vec![p("a", "3"), p("b", "5"), p("c", "0"), r("d"), p("e", "-1"), p("f", "3")],
            vec![vec!["b"], vec!["a", "f"], vec!["c", "d"], vec!["e"]],
        ),
        (
            "LP-W-12",
            None,
            vec![ready(env("a", &[(PRIORITY, "3"), (PRIORITY, "7")])), p("b", "5")],
            vec![vec!["a"], vec!["b"]],
        ),
        ("range", None, vec![p("a", "-2147483647"), p("b", "+2147483647")], vec![vec!["b"], vec!["a"]]),
    ];
    for (id, annotation, containers, expected) in cases {
        let names: Vec<String> = containers.iter().map(|c| c["name"].as_str().unwrap().to_owned()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let annotations = annotation.map_or(json!({}), |a| json!({ORDERED: a}));
        let mut play = Play::of(&annotated(annotations, json!({"containers": containers})));
        assert_eq!(levels(&mut play, &names), expected, "{id}");
    }
}

#[test]
fn a_level_waits_until_every_higher_level_is_ready_at_that_moment_lp_23_lp_26() {
    let p = |n: &str, v: &str| ready(env(n, &[(PRIORITY, v)]));
    let mut play = Play::of(&pod(json!({"containers": [p("hi", "2"), p("mid", "1"), p("low", "0")]})));
    play.probed("hi", ProbeKind::Readiness, true);
    play.exit("hi", 1); // crashed during launch
    play.log();
    play.probed("mid", ProbeKind::Readiness, true);
    assert!(!play.log().contains(&"start low".to_owned()));
    assert_eq!(play.wait("low"), Some(Wait::Gate { on: 0, need: Need::Ready }));
    play.probed("hi", ProbeKind::Readiness, true);
    assert!(play.log().contains(&"start low".to_owned()));
}

#[test]
fn a_level_that_has_done_its_work_is_passed_lp_28_d10() {
    for (code, over) in [(0, false), (1, true)] {
        let mut play = Play::of(&pod(json!({
            "restartPolicy": "Never",
            "containers": [ready(env("setup", &[(PRIORITY, "1")])), c("main")],
        })));
        play.log();
        play.exit("setup", code);
        assert_eq!(play.log().contains(&"start main".to_owned()), !over, "exit {code}");
        assert_eq!(play.over(), over, "a gate that can never open ends the pod instead of hanging it");
    }
}

#[test]
fn bad_priorities_are_refused_lp_w_07() {
    for value in ["abc", "", "1.5", " 1", "2147483648", "-2147483648", "99999999999999999999"] {
        let findings = refused(&pod(json!({"containers": [env("a", &[(PRIORITY, value)]), c("b")]})));
        assert_eq!(findings[0].code, "LP-6", "{value:?}");
        assert_eq!(findings[0].path.to_string(), "spec.containers[0].env[0].value");
    }
    let from = json!({"name": "a", "env": [{"name": PRIORITY, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]});
    assert_eq!(refused(&pod(json!({"containers": [from, c("b")]})))[0].code, "LP-6");
    let both = env("a", &[(PRIORITY, "1"), (PROPOSED, "2")]);
    assert_eq!(refused(&pod(json!({"containers": [both, c("b")]})))[0].code, "LP-5");
}

#[test]
fn priorities_on_init_containers_are_not_read_lp_w_13() {
    let input =
        pod(json!({"initContainers": [env("i", &[(PRIORITY, "x")])], "containers": [c("a"), c("b")]}));
    let planned = plan(&input, &FeatureGates::default()).unwrap();
    assert_eq!(planned.warnings[0].code, "LP-8");
    assert_eq!(planned.plan.dialects, []);
}

#[test]
fn launch_priority_does_not_order_the_stop() {
    let mut play = Play::of(&pod(json!({"containers": [c("a"), env("b", &[(PRIORITY, "1")])]})));
    play.log();
    play.stop(None);
    assert_eq!(play.log(), ["term a", "term b"]);
}

/// Rows of 5.5 and 5.6: which containers are told to stop when the mains are in the state of the row. `T0`,
/// `T137` terminated, `U` still running.
#[test]
fn the_terminator_stops_marked_containers_st_u_st_v() {
    const N: &[(&str, &str)] = &[(KILL, "true"), (IMAGE, "exit:1")];
    const V: &[(&str, &str)] = &[(IMAGE, "exit:1")];
    const I: &[(&str, &str)] = &[(KILL, "TRUE"), (IGNORE, "true")];
    type Row<'a> = (
        &'a str,
        &'a str,
        &'a [(&'a str, &'a str)],
        &'a [(&'a str, &'a [(&'a str, &'a str)], &'a str)],
        &'a [&'a str],
    );
    let rows: &[Row<'_>] = &[
        ("ST-U-01", "Never", &[("m", "U")], &[("s", N, "U")], &[]),
        ("ST-U-02", "Never", &[("m", "T137")], &[("s", N, "U")], &["s"]),
        ("ST-U-03", "Never", &[("m", "T137")], &[("s", N, "T137")], &[]),
        ("ST-U-04", "Never", &[("m", "T0")], &[("s", N, "U")], &["s"]),
        ("ST-U-05", "OnFailure", &[("m", "U")], &[("s", N, "U")], &[]),
        ("ST-U-06", "OnFailure", &[("m", "T137")], &[("s", N, "T0")], &[]),
        ("ST-U-07", "OnFailure", &[("m", "T0")], &[("s", N, "T0")], &[]),
        (
            "ST-U-08",
            "OnFailure",
            &[("m1", "T0"), ("m2", "T0")],
            &[("s1", N, "U"), ("s2", N, "U")],
            &["s1", "s2"],
        ),
        ("ST-U-10", "OnFailure", &[("m1", "T0"), ("m2", "T0")], &[("s1", N, "T0"), ("s2", N, "U")], &["s2"]),
        ("ST-U-11", "OnFailure", &[("m1", "T0"), ("m2", "U")], &[("s1", N, "T0"), ("s2", N, "U")], &[]),
        // Kruise stops the ignore class in a second round; with one engine there is one round.
        (
            "ST-U-12",
            "OnFailure",
            &[("m1", "T0"), ("m2", "T0")],
            &[("s1", N, "U"), ("s2", N, "U"), ("s3", I, "U")],
            &["s1", "s2", "s3"],
        ),
        (
            "ST-U-13",
            "OnFailure",
            &[("m1", "T0"), ("m2", "T0")],
            &[("s1", N, "T0"), ("s2", N, "T0"), ("s3", I, "U")],
            &["s3"],
        ),
        // Marked by an image only: the container can always be signalled here, so no image is replaced.
        ("ST-V-01", "Never", &[("m", "U")], &[("s", V, "U")], &[]),
        ("ST-V-02", "Never", &[("m", "T137")], &[("s", V, "U")], &["s"]),
        ("ST-V-05", "OnFailure", &[("m", "T137")], &[("s", V, "U")], &[]),
        (
            "ST-V-07",
            "OnFailure",
            &[("m1", "T0"), ("m2", "T0")],
            &[("s1", V, "U"), ("s2", V, "U")],
            &["s1", "s2"],
        ),
        ("ST-C-02", "OnFailure", &[("m", "T0")], &[("s1", N, "T0"), ("s2", I, "U")], &["s2"]),
        ("ST-Q-02", "Always", &[("m", "T137")], &[("s", N, "U")], &[]),
    ];
    for (id, policy, mains, sidecars, expected) in rows {
        let mut containers: Vec<Value> = mains.iter().map(|(n, _)| c(n)).collect();
        containers.extend(sidecars.iter().map(|(n, e, _)| env(n, e)));
        let mut play = Play::of(&pod(json!({"restartPolicy": policy, "containers": containers})));
        play.log();
        let states = sidecars.iter().map(|(n, _, s)| (n, s)).chain(mains.iter().map(|(n, s)| (n, s)));
        for (name, state) in states {
            match *state {
                "T0" => play.exit(name, 0),
                "T137" => play.exit(name, 137),
                _ => {}
            }
        }
        let told: Vec<String> =
            play.log().iter().filter_map(|l| l.strip_prefix("term ").map(str::to_owned)).collect();
        assert_eq!(told, *expected, "{id}");
    }
}

#[test]
fn a_terminated_sidecar_is_not_restarted_st_23() {
    let mut play = Play::of(&pod(
        json!({"restartPolicy": "OnFailure", "containers": [c("m"), env("s", &[(KILL, "true")])]}),
    ));
    play.exit("m", 0);
    play.log();
    play.exit("s", 143);
    assert_eq!(play.log(), [""; 0]);
    assert!(play.over());
}

/// ST-18: its own exit counts. An exit that the policy would have retried does not: had the sidecar been
/// restarted a moment sooner, it would have been stopped and the Job would have succeeded.
#[test]
fn a_sidecar_in_back_off_does_not_fail_a_finished_job() {
    let marked = || env("s", &[(KILL, "true")]);
    // (policy, own policy, code of the sidecar, phase once main has exited with 0)
    for (policy, own, code, expected) in [
        ("OnFailure", None, 1, "Succeeded"),
        ("OnFailure", None, 0, "Succeeded"),
        ("OnFailure", Some("Never"), 1, "Failed"),
        ("Never", None, 1, "Failed"),
        ("Never", Some("OnFailure"), 1, "Succeeded"),
        ("Never", None, 0, "Succeeded"),
    ] {
        let mut sidecar = marked();
        if let Some(own) = own {
            sidecar["restartPolicy"] = json!(own);
        }
        let mut play = Play::of(&pod(json!({"restartPolicy": policy, "containers": [c("main"), sidecar]})));
        play.exit("s", code);
        if code != 0 && policy == "OnFailure" && own.is_none() {
            play.exit("s", code); // The first restart is immediate; now it is in back-off.
            assert!(matches!(play.wait("s"), Some(Wait::Backoff { .. })));
        }
        play.exit("main", 0);
        if !play.over() {
            play.exit("s", 143); // It was started again and is told to stop.
        }
        assert!(play.over(), "{policy} {own:?} {code}");
        assert_eq!(phase_of(&play).name(), expected, "{policy}, own {own:?}, exit {code}");
    }
    // If it is running at that moment, the Job succeeds.
    let mut play = Play::of(&pod(json!({"restartPolicy": "OnFailure", "containers": [c("main"), marked()]})));
    play.exit("main", 0);
    play.exit("s", 1);
    assert_eq!(phase_of(&play).name(), "Succeeded");
    // The last exit of a main counts, even if it would have been restarted (R5.23).
    let mut play = Play::of(&pod(json!({"restartPolicy": "OnFailure", "containers": [c("main"), c("b")]})));
    play.exit("main", 1);
    play.exit("main", 1);
    play.exit("b", 0);
    play.stop(None);
    assert!(play.over());
    assert_eq!(phase_of(&play).name(), "Failed");
}

/// The same for other helpers: sidecars that count, and mains beside a primary or a fatal one.
#[test]
fn helpers_in_back_off_have_no_say() {
    let kep = json!({"name": "helper", "lifecycle": {"type": "Sidecar"}});
    let rows = [
        ("kep", json!({"outrigger.dev/sidecar-phase": "Count"}), kep, 0, "Succeeded"),
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

/// A gate that one main has passed stays open for the others: a later exit of the sidecar does not affect
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

/// It does not stay open for containers that wait for something else, with a fence, or before any container
/// has passed it.
#[test]
fn a_gate_that_let_nobody_through_is_not_open() {
    let proxy = || ready(json!({"name": "proxy", "lifecycle": {"type": "Sidecar"}}));
    let never = |containers: Vec<Value>| json!({"restartPolicy": "Never", "containers": containers});
    // Ready once, but every main was late.
    let late = json!({"name": "late", "image": "slow"});
    let mut play = Play::of_late(&pod(never(vec![proxy(), late.clone()])), "late");
    play.probed("proxy", ProbeKind::Readiness, true);
    play.log();
    play.exit("proxy", 1);
    assert_eq!(play.log(), ["stop GateNeverOpens { container: 1, on: 0 }"]);
    // A fence applies to every start.
    let mut play = Play::of_late(
        &annotated(json!({"outrigger.dev/fence": "start"}), never(vec![proxy(), c("app"), late])),
        "late",
    );
    play.probed("proxy", ProbeKind::Readiness, true);
    play.log();
    play.exit("proxy", 1);
    assert_eq!(play.log(), ["stop GateNeverOpens { container: 2, on: 0 }", "term app"]);
}

/// A main that finished in a lost sandbox has not passed a gate of the next one.
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
    play.probed("proxy", ProbeKind::Readiness, true);
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
    // Where the fence does not stop containers, the main keeps running, and only its restart can become
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

/// Rejected and ignored marks: their meaning in places where they make no sense.
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
    // Marks on init containers that are just ignored: ST-1, LP-8.
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
fn sidecars_can_run_on_after_the_mains_d7() {
    let s = |n: &str| json!({"name": n, "restartPolicy": "Always"});
    let input = annotated(
        json!({"outrigger.dev/sidecar-delay": "3s"}),
        json!({"restartPolicy": "Never", "initContainers": [s("s0"), s("s1")], "containers": [c("app")]}),
    );
    let mut play = Play::of(&input);
    play.log();
    play.pass(1_000);
    play.exit("app", 0);
    play.exit("s1", 1);
    play.pass(2_999);
    assert_eq!(play.log(), [""; 0], "what is down stays down");
    play.pass(1);
    assert_eq!(play.log(), ["stop Completed", "term s0"]);
    play.exit("s0", 0);
    assert!(play.over());
    // Without a running sidecar there is nothing to wait for.
    let mut play = Play::of(&input);
    for name in ["s0", "s0", "s1", "s1"] {
        play.exit(name, 1);
    }
    play.exit("app", 0);
    assert!(play.over());
    // Deleting the pod does not wait either.
    let mut play = Play::of(&input);
    play.exit("app", 0);
    play.log();
    play.stop(None);
    assert_eq!(play.log(), ["term s1"]);
}

#[test]
fn a_container_can_have_a_shorter_grace_of_its_own_d7() {
    let s = |n: &str| json!({"name": n, "restartPolicy": "Always"});
    let mut play = Play::of(&annotated(
        json!({"outrigger.dev/stop-grace": "s1=1s, app=5s"}),
        json!({"terminationGracePeriodSeconds": 10, "initContainers": [s("s0"), s("s1")], "containers": [c("app")]}),
    ));
    play.log();
    play.stop(None);
    play.pass(4_999);
    assert_eq!(play.log(), ["term app"]);
    play.pass(1);
    assert_eq!(play.log(), ["kill app", "term s1"]);
    play.pass(1_000);
    assert_eq!(play.log(), ["kill s1", "term s0"], "less than the two seconds everyone has");
    play.pass(3_999);
    assert_eq!(play.log(), [""; 0]);
    play.pass(1);
    assert_eq!(play.log(), ["kill s0"], "the pod's grace period");
}

#[test]
fn marked_sidecars_stop_in_reverse_order_of_their_priorities_d7() {
    let marked = |n: &str, level: &str| env(n, &[(KILL, "true"), (PRIORITY, level)]);
    let spec =
        json!({"restartPolicy": "Never", "containers": [c("app"), marked("s1", "10"), marked("s2", "5")]});
    let mut play = Play::of(&pod(spec));
    play.log();
    play.exit("app", 0);
    assert_eq!(play.log(), ["stop Completed", "term s2"]);
    play.exit("s2", 143);
    assert_eq!(play.log(), ["term s1"]);
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

#[test]
fn priorities_order_the_others_where_sidecars_are_named() {
    // In a cluster these become native sidecars, so the same pod means the same here.
    let input = annotated(
        json!({"outrigger.dev/sidecars": "log,proxy"}),
        json!({"containers": [c("app"), env("db", &[(PRIORITY, "1")]), c("log"), env("proxy", &[(PRIORITY, "5")])]}),
    );
    let plan = planned(&input);
    let on = |name: &str| -> Vec<&str> {
        let gates = plan.containers[plan.find(name).expect("planned")].gates.iter();
        let mut on: Vec<&str> = gates.map(|g| plan.containers[g.on].name.as_str()).collect();
        on.sort_unstable();
        on
    };
    assert_eq!(on("proxy"), Vec::<&str>::new());
    assert_eq!(on("log"), ["proxy"]);
    assert_eq!(on("db"), ["log", "proxy"]);
    assert_eq!(on("app"), ["db", "log", "proxy"]);
}

#[test]
fn circles_are_refused_with_both_sides() {
    let two = annotated(json!({DEPENDS_ON: "a: b; b: a"}), json!({"containers": [c("a"), c("b")]}));
    let kep_priority = pod(json!({"containers": [
        env("app", &[(PRIORITY, "5")]), {"name": "proxy", "lifecycle": {"type": "Sidecar"}}]}));
    let native = annotated(
        json!({DEPENDS_ON: "proxy: app"}),
        json!({"initContainers": [{"name": "proxy", "restartPolicy": "Always"}], "containers": [c("app")]}),
    );
    for (what, input) in [("two", two), ("kep and priority", kep_priority), ("native and depends-on", native)]
    {
        let findings = refused(&input);
        assert_eq!(findings[0].code, "cycle", "{what}");
        assert!(!findings[0].related.is_empty(), "{what}: both sides are shown");
        assert!(findings[0].hint.is_some());
    }
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
    // With two similar letters there is no way to guess.
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

/// Every pair of dialects in one pod: the waves of starts and stops.
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
