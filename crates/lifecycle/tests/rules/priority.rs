//! OpenKruise's launch priority: levels, and which containers they order.

use crate::common::{Play, annotated, planned, pod, refused};
use crate::dialects::{KILL, ORDERED, PRIORITY, PROPOSED, c, env, ready};
use outrigger_lifecycle::convert::levels_as_sidecars;
use outrigger_lifecycle::{FeatureGates, Need, ProbeKind, Wait, plan};
use serde_json::{Value, json};

/// The levels in which containers start. Containers of one level start together.
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
    play.exit("hi", 1); // it crashed during launch
    play.log();
    play.probed("mid", ProbeKind::Readiness, true);
    assert!(!play.log().contains(&"start low".to_owned()));
    assert_eq!(play.wait("low"), Some(Wait::Gate { on: 0, need: Need::Ready }));
    play.probed("hi", ProbeKind::Readiness, true);
    assert!(play.log().contains(&"start low".to_owned()));
}

#[test]
fn a_level_that_has_done_its_work_is_passed_lp_28_kd10() {
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

#[test]
fn marked_sidecars_stop_in_reverse_order_of_their_priorities_kd7() {
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
fn priorities_order_the_others_where_sidecars_are_named() {
    // In a cluster these containers become native sidecars, so the pod must behave in the same way here.
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
fn levels_become_native_sidecars_in_their_order_kd14() {
    let p = |n: &str, v: &str| env(n, &[(PRIORITY, v)]);
    let mut hooked = p("hooked", "1");
    hooked["lifecycle"] = json!({"postStart": {"exec": {"command": ["wait"]}}});
    // (containers, sidecars in order)
    let rows: Vec<(Vec<Value>, Option<Vec<&str>>)> = vec![
        (vec![c("a"), c("b")], None),
        (vec![p("a", "1"), p("b", "1")], None),
        (vec![c("a"), p("b", "1"), p("c", "2")], Some(vec!["c", "b"])),
        (vec![ready(p("a", "1")), p("b", "1"), c("c")], Some(vec!["b", "a"])),
        (vec![ready(p("a", "2")), ready(p("b", "1")), c("c")], Some(vec!["a", "b"])),
        // These containers may need each other, and native sidecars would wait for each other.
        (vec![ready(p("a", "1")), ready(p("b", "1")), c("c")], None),
        (vec![ready(p("a", "1")), hooked, c("c")], None),
    ];
    for (containers, expected) in rows {
        let plan = planned(&pod(json!({"containers": containers})));
        let order = levels_as_sidecars(&plan);
        let names =
            order.map(|order| order.into_iter().map(|i| plan.containers[i].name.clone()).collect::<Vec<_>>());
        assert_eq!(
            names,
            expected.map(|names| names.into_iter().map(str::to_owned).collect()),
            "{containers:?}"
        );
    }
}

/// In a pod with one container priorities order nothing (LP-3), but invalid ones are reported (LP-5, LP-6).
#[test]
fn bad_priorities_of_a_single_container_are_said_lp_3() {
    for (variables, words) in [
        (vec![(PRIORITY, "high")], "\"high\" is not a whole number"),
        (vec![(PROPOSED, "9999999999")], "is out of range"),
        (vec![(PRIORITY, "1"), (PROPOSED, "2")], "have different values"),
    ] {
        let spec = json!({"containers": [env("app", &variables)]});
        let planned = plan(&pod(spec), &FeatureGates::default()).expect("it runs");
        let said: Vec<&str> = planned.warnings.iter().map(|f| f.message.as_str()).collect();
        assert!(said.len() == 1 && said[0].contains(words), "{said:?}");
    }
    let fine = json!({"containers": [env("app", &[(PRIORITY, "1")])]});
    assert!(plan(&pod(fine), &FeatureGates::default()).expect("it runs").warnings.is_empty());
}
