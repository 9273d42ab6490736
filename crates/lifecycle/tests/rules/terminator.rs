//! OpenKruise's sidecar terminator: which containers it stops, when, and what that means for the result.

use crate::common::{Play, annotated, pod};
use crate::dialects::{IGNORE, IMAGE, KILL, c, env, phase_of};
use outrigger_lifecycle::Wait;
use serde_json::{Value, json};

/// Rows of 5.5 and 5.6: which containers are told to stop when the mains are in the state of the row. `T0`
/// and `T137` mean terminated, `U` means still running.
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
        // A sidecar that failed by itself has been restarted.
        ("ST-U-03", "Never", &[("m", "T137")], &[("s", N, "T137")], &["s"]),
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
        // Kruise stops sidecars with ignored exit codes in a second round. The engine stops all in one round.
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
        // These are marked by an image only. Here a container can always be signalled, so its image is not
        // replaced.
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

/// ST-18: a sidecar's own exit counts, unless the policy would have retried it. If the sidecar had been
/// restarted a moment earlier, it would have been stopped, and the Job would have succeeded.
#[test]
fn a_sidecar_in_back_off_does_not_fail_a_finished_job() {
    let marked = || env("s", &[(KILL, "true")]);
    // (policy, own policy, exit code of the sidecar, phase once main has exited with 0)
    for (policy, own, code, expected) in [
        ("OnFailure", None, 1, "Succeeded"),
        ("OnFailure", None, 0, "Succeeded"),
        ("OnFailure", Some("Never"), 1, "Failed"),
        ("Never", None, 1, "Succeeded"),
        ("Never", Some("Never"), 1, "Failed"),
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

/// With restartPolicy Never, a marked sidecar that crashes is restarted. The operator's webhook arranges the
/// same in a cluster, with the same exceptions.
#[test]
fn a_crashed_sidecar_of_a_never_pod_is_restarted() {
    use outrigger_lifecycle::{FeatureGates, RestartPolicy, plan};
    let count = json!({"outrigger.dev/sidecar-phase": "Count"});
    let none = json!({});
    let marked = |n: &str, level: &str| env(n, &[(KILL, "true"), ("KRUISE_CONTAINER_PRIORITY", level)]);
    let mut own = marked("s", "0");
    own["restartPolicy"] = json!("Never");
    let off = FeatureGates { container_restart_rules: false, ..FeatureGates::default() };
    let on = FeatureGates::default();
    for (what, gates, annotations, containers, restarted) in [
        ("alone", on, &none, vec![c("m"), marked("s", "0")], vec!["s"]),
        ("two", on, &none, vec![c("m"), marked("s", "0"), marked("t", "0")], vec!["s", "t"]),
        ("in an order", on, &none, vec![c("m"), marked("first", "1"), marked("second", "0")], vec!["first"]),
        ("its own policy", on, &none, vec![c("m"), own], vec![]),
        ("they count", on, &count, vec![c("m"), marked("s", "0")], vec![]),
        ("the gate is off", off, &none, vec![c("m"), marked("s", "0")], vec![]),
    ] {
        let input =
            annotated(annotations.clone(), json!({"restartPolicy": "Never", "containers": containers}));
        let plan = plan(&input, &gates).expect("a plan").plan;
        let comes_back = plan.containers.iter().filter(|c| c.restart.policy == RestartPolicy::OnFailure);
        assert_eq!(comes_back.map(|c| c.name.as_str()).collect::<Vec<_>>(), restarted, "{what}");
    }
}

/// ST-4: an exit code that its author ignores never counts, even if sidecars count.
#[test]
fn an_ignored_exit_code_does_not_count_even_if_sidecars_do() {
    let count = json!({"outrigger.dev/sidecar-phase": "Count"});
    let marks: &[(&str, &str)] = &[(KILL, "true"), (IGNORE, "true")];
    let mut kep = env("s", marks);
    kep["lifecycle"] = json!({"type": "Sidecar"});
    for (what, sidecar, expected) in [
        ("ignored", env("s", marks), "Succeeded"),
        ("ignored, KEP", kep, "Succeeded"),
        ("counted", env("s", &[(KILL, "true")]), "Failed"),
        ("not marked", json!({"name": "s", "lifecycle": {"type": "Sidecar"}}), "Failed"),
    ] {
        let spec = json!({"restartPolicy": "Never", "containers": [c("main"), sidecar]});
        let mut play = Play::of(&annotated(count.clone(), spec));
        play.log();
        play.exit("s", 1);
        assert!(!play.log().contains(&"start s".to_owned()), "{what}: none is restarted with Count");
        play.exit("main", 0);
        assert!(play.over(), "{what}");
        assert_eq!(phase_of(&play).name(), expected, "{what}");
    }
}

/// ST-18: in the plan, the exit code of a sidecar counts only if a crash is not retried.
#[test]
fn an_exit_code_that_is_always_retried_does_not_count_in_the_plan() {
    use outrigger_lifecycle::Counts;
    let marked = |own: Option<&str>| {
        let mut sidecar = env("s", &[(KILL, "true")]);
        if let Some(own) = own {
            sidecar["restartPolicy"] = json!(own);
        }
        sidecar
    };
    for (policy, own, expected) in [
        ("Never", None, Counts::No),
        ("OnFailure", None, Counts::No),
        ("Never", Some("OnFailure"), Counts::No),
        ("Never", Some("Never"), Counts::UnlessStopped),
        ("OnFailure", Some("Never"), Counts::UnlessStopped),
    ] {
        let spec = json!({"restartPolicy": policy, "containers": [c("main"), marked(own)]});
        let plan = crate::common::planned(&pod(spec));
        assert_eq!(plan.containers[plan.find("s").unwrap()].counts, expected, "{policy}, own {own:?}");
    }
}

#[test]
fn sidecars_can_run_on_after_the_mains_kd7() {
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
    // If no sidecar is running, there is nothing to wait for.
    let mut play = Play::of(&input);
    for name in ["s0", "s0", "s1", "s1"] {
        play.exit(name, 1);
    }
    play.exit("app", 0);
    assert!(play.over());
    // Deleting the pod does not wait for the delay either.
    let mut play = Play::of(&input);
    play.exit("app", 0);
    play.log();
    play.stop(None);
    assert_eq!(play.log(), ["term s1"]);
}

#[test]
fn a_container_can_have_a_shorter_grace_of_its_own_kd7() {
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
