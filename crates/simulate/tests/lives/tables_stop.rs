//! Stop order and grace period on the virtual clock: table 12.10 and the worked cases of section 3.5 of
//! docs/internals/spec/kubelet-lifecycle.md, and what the KEP and a hand-written graph promise after the
//! grace period. Times are milliseconds since the stop began, not whole seconds (G-28).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use outrigger_lifecycle::trace::{ContainerEvent, Kind, TraceEvent};
use outrigger_lifecycle::{ContainerRef, FeatureGates, List, Plan, PodInput, plan};
use outrigger_simulate::{Ending, Options, Script, simulate};
use serde_json::{Value, json};

/// What happened to a container in a stop: when it was signalled, when it ended, and its exit code.
type Fate = (&'static str, u64, u64, i64);

/// How a container behaves: the seconds that it needs after TERM (`None`: it ignores TERM), and the seconds
/// that its preStop hook takes.
#[derive(Clone, Copy)]
struct Does {
    name: &'static str,
    needs: Option<f64>,
    hook: Option<f64>,
}

fn needs(name: &'static str, seconds: f64) -> Does {
    Does { name, needs: Some(seconds), hook: None }
}

fn ignoring(name: &'static str) -> Does {
    Does { name, needs: None, hook: None }
}

fn hooked(does: Does, seconds: f64) -> Does {
    Does { hook: Some(seconds), ..does }
}

/// The dialect of a pod.
#[derive(Clone, Copy, PartialEq)]
enum Written {
    /// A chain of sidecars with `restartPolicy: Always`.
    Native,
    /// Independent sidecars with `lifecycle.type: Sidecar`.
    Kep,
    /// A chain in `outrigger.dev/depends-on`: the main depends on the last sidecar, and each sidecar on the
    /// one before it.
    DependsOn,
}

/// Stops a native pod with sidecars and one main. If `completes`, the main completes; otherwise a stop is
/// requested at 10 s.
fn fates(grace: u64, sidecars: &[Does], main: Does, completes: bool) -> Vec<(String, u64, u64, i64)> {
    fates_of(Written::Native, grace, sidecars, main, completes)
}

fn container(d: &Does) -> Value {
    let mut c = json!({"name": d.name, "image": "i"});
    if d.hook.is_some() {
        c["lifecycle"] = json!({"preStop": {"exec": {"command": ["true"]}}});
    }
    c
}

fn pod_of(written: Written, grace: u64, sidecars: &[Does], main: Does) -> Plan {
    let mut inits = Vec::new();
    let mut mains = vec![container(&main)];
    let mut annotations = serde_json::Map::new();
    let mut lifecycle_types = BTreeMap::new();
    for (i, d) in sidecars.iter().enumerate() {
        let mut c = container(d);
        match written {
            Written::Native => {
                c["restartPolicy"] = json!("Always");
                inits.push(c);
            }
            Written::Kep => {
                lifecycle_types.insert(ContainerRef { list: List::Main, index: i + 1 }, "Sidecar".into());
                mains.push(c);
            }
            Written::DependsOn => mains.push(c),
        }
    }
    if written == Written::DependsOn {
        let names: Vec<&str> = sidecars.iter().map(|d| d.name).chain([main.name]).collect();
        let mut lines: Vec<String> = names.windows(2).map(|w| format!("{}: {}", w[1], w[0])).collect();
        lines.iter_mut().filter(|l| !l.starts_with(main.name)).for_each(|l| l.push_str(", sidecar"));
        lines.push(format!("{}: sidecar", names[0]));
        annotations.insert("outrigger.dev/depends-on".into(), json!(lines.join("\n")));
    }
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "stop", "annotations": annotations},
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": grace, "initContainers": inits, "containers": mains},
    }))
    .expect("a pod");
    plan(&PodInput { pod, lifecycle_types }, &FeatureGates::default()).expect("a plan").plan
}

fn fates_of(
    written: Written,
    grace: u64,
    sidecars: &[Does],
    main: Does,
    completes: bool,
) -> Vec<(String, u64, u64, i64)> {
    let plan = pod_of(written, grace, sidecars, main);
    let mut containers = serde_json::Map::new();
    for d in sidecars.iter().chain([&main]) {
        let term = d.needs.map_or(json!({"ignore": true}), |s| json!({"exit_after": s}));
        let mut script = json!({"on_term": term});
        if let Some(takes) = d.hook {
            script["hooks"] = json!({"preStop": {"takes": takes}});
        }
        containers.insert(d.name.into(), script);
    }
    containers[main.name]["runs"] = if completes { json!(5) } else { json!("forever") };
    let stops = if completes { json!([]) } else { json!([{"at": 10}]) };
    let script: Script =
        serde_json::from_value(json!({"containers": containers, "stops": stops})).expect("a script");
    let outcome = simulate(&plan, &script, 1, &Options::default()).expect("the script fits");
    assert_eq!(outcome.ending, Ending::Finished);
    let began = outcome.trace.iter().find(|e| e.event.kind() == Kind::StopBegun).expect("it stops").time;
    let mut fates = Vec::new();
    let latest_first =
        |i: &usize| std::cmp::Reverse(sidecars.iter().position(|d| d.name == plan.containers[*i].name));
    let mut order: Vec<usize> = (0..plan.containers.len()).collect();
    order.sort_by_key(latest_first);
    // The main comes first, then the sidecars from the last to the first.
    order.rotate_right(1);
    for i in order {
        let of =
            |event: Kind| outcome.trace.iter().find(|e| e.container == Some(i) && e.event.kind() == event);
        // With a grace period of zero, KILL is the only signal.
        if let (Some(told), Some(gone)) = (of(Kind::Terminating).or(of(Kind::Killing)), of(Kind::Exited)) {
            let TraceEvent::Container(ContainerEvent::Exited { code, .. }) = gone.event else {
                panic!("an exit")
            };
            let code = i64::from(code);
            let name = plan.containers[i].name.clone();
            fates.push((name, told.time.since(began), gone.time.since(began), code));
        }
    }
    fates
}

#[track_caller]
fn check(id: &str, fates: Vec<(String, u64, u64, i64)>, expected: &[Fate]) {
    // A killed container ends one millisecond after KILL.
    let seen: Vec<(&str, u64, u64, i64)> =
        fates.iter().map(|(n, t, g, c)| (n.as_str(), *t, g - u64::from(*c == 137), *c)).collect();
    assert_eq!(seen, expected, "{id}");
}

#[test]
fn table_12_10_waiting_time_before_the_signal() {
    check(
        "12.10/1",
        fates(30, &[needs("sidecar", 1.0)], needs("main", 1.0), false),
        &[("main", 0, 1_000, 0), ("sidecar", 1_000, 2_000, 0)],
    );
    let three = |s: f64| [needs("sc1", s), needs("sc2", s), needs("sc3", s)];
    check(
        "12.10/2",
        fates(30, &three(1.25), needs("main", 1.25), false),
        &[
            ("main", 0, 1_250, 0),
            ("sc3", 1_250, 2_500, 0),
            ("sc2", 2_500, 3_750, 0),
            ("sc1", 3_750, 5_000, 0),
        ],
    );
    check(
        "12.10/3",
        fates(2, &three(1.0), needs("main", 1.0), false),
        // The grace period ends just when sc3 ends, so no container waits any longer.
        &[
            ("main", 0, 1_000, 0),
            ("sc3", 1_000, 2_000, 0),
            ("sc2", 2_000, 3_000, 0),
            ("sc1", 2_000, 3_000, 0),
        ],
    );
}

#[test]
fn section_3_5_sidecars_after_a_finished_main() {
    let five = [needs("s1", 5.0), needs("s2", 5.0), needs("s3", 5.0)];
    check(
        "E120",
        fates(30, &five, needs("main", 1.0), true),
        &[("s3", 0, 5_000, 0), ("s2", 5_000, 10_000, 0), ("s1", 10_000, 15_000, 0)],
    );
    let hooks =
        [hooked(ignoring("s1"), 3_600.0), hooked(ignoring("s2"), 3_600.0), hooked(ignoring("s3"), 3_600.0)];
    check(
        "E124",
        fates(30, &hooks, needs("main", 1.0), true),
        &[("s3", 30_000, 32_000, 137), ("s2", 30_000, 32_000, 137), ("s1", 30_000, 32_000, 137)],
    );
}

#[test]
fn section_3_5_when_the_grace_runs_out() {
    check(
        "E130",
        fates(5, &[ignoring("s1"), needs("s2", 1.0), ignoring("s3")], ignoring("main"), false),
        &[
            ("main", 0, 5_000, 137),
            ("s3", 5_000, 7_000, 137),
            ("s2", 5_000, 6_000, 0),
            ("s1", 5_000, 7_000, 137),
        ],
    );
    check(
        "E131",
        fates(5, &[needs("s1", 1.0), needs("s2", 20.0), needs("s3", 1.0)], needs("main", 1.0), false),
        &[("main", 0, 1_000, 0), ("s3", 1_000, 2_000, 0), ("s2", 2_000, 5_000, 137), ("s1", 5_000, 6_000, 0)],
    );
    check(
        "E132",
        fates(
            5,
            &[needs("s1", 1.0), ignoring("s2"), needs("s3", 1.0)],
            hooked(ignoring("main"), 20.0),
            false,
        ),
        &[
            ("main", 5_000, 7_000, 137),
            ("s3", 5_000, 6_000, 0),
            ("s2", 5_000, 7_000, 137),
            ("s1", 5_000, 6_000, 0),
        ],
    );
    check(
        "E133",
        fates(
            5,
            &[needs("s1", 1.0), hooked(ignoring("s2"), 30.0), needs("s3", 1.0)],
            needs("main", 1.0),
            false,
        ),
        &[("main", 0, 1_000, 0), ("s3", 1_000, 2_000, 0), ("s2", 5_000, 7_000, 137), ("s1", 5_000, 6_000, 0)],
    );
}

/// The KEP says: "Containers and Sidecar will share the TerminationGracePeriod. If Containers don't exit
/// before the end of the TerminationGracePeriod then they will be sent a SIGKIll as normal, Sidecars will
/// then be sent a SIGTERM with a short grace period of 2 Seconds to give them a chance to cleanly exit." "As
/// normal" means that a container that was told to stop late has 2 s to react first (R3.16, R3.26).
#[test]
fn kep_sidecars_are_told_when_the_mains_are_gone_however_late() {
    const HANGS: f64 = 3_600.0;
    let rows: [(&str, u64, Does, Does, [Fate; 2]); 9] = [
        (
            "the main does not listen",
            10,
            ignoring("app"),
            needs("proxy", 0.5),
            [("app", 0, 10_000, 137), ("proxy", 10_001, 10_501, 0)],
        ),
        (
            "nobody listens",
            10,
            ignoring("app"),
            ignoring("proxy"),
            [("app", 0, 10_000, 137), ("proxy", 10_001, 12_001, 137)],
        ),
        (
            "the sidecar's preStop hangs (`sleep infinity`)",
            10,
            needs("app", 0.5),
            hooked(needs("proxy", 0.1), HANGS),
            [("app", 10_000, 10_500, 0), ("proxy", 10_500, 10_600, 0)],
        ),
        (
            "it hangs, and the main does not listen",
            10,
            ignoring("app"),
            hooked(needs("proxy", 0.1), HANGS),
            [("app", 10_000, 12_000, 137), ("proxy", 12_001, 12_101, 0)],
        ),
        (
            "the main's preStop hangs",
            10,
            hooked(needs("app", 1.0), HANGS),
            needs("proxy", 0.1),
            [("app", 10_000, 11_000, 0), ("proxy", 11_000, 11_100, 0)],
        ),
        (
            "a hook takes 9.5 of 10 s",
            10,
            hooked(ignoring("app"), 9.5),
            needs("proxy", 0.1),
            [("app", 9_500, 11_500, 137), ("proxy", 11_501, 11_601, 0)],
        ),
        (
            "a grace of 1 s",
            1,
            needs("app", 1.5),
            needs("proxy", 0.1),
            [("app", 0, 1_500, 0), ("proxy", 1_500, 1_600, 0)],
        ),
        (
            "a grace of 1 s, and nobody listens",
            1,
            ignoring("app"),
            ignoring("proxy"),
            [("app", 0, 2_000, 137), ("proxy", 2_001, 4_001, 137)],
        ),
        // A grace period of zero means KILL (G-29), and the order still holds.
        (
            "a grace of 0",
            0,
            needs("app", 1.0),
            needs("proxy", 1.0),
            [("app", 0, 0, 137), ("proxy", 1, 1, 137)],
        ),
    ];
    for (what, grace, app, proxy, expected) in rows {
        check(what, fates_of(Written::Kep, grace, &[proxy], app, false), &expected);
    }
}

/// A hand-written graph orders any two containers, and each of them gets 2 s.
#[test]
fn every_stage_of_a_graph_is_gone_before_the_next_is_told() {
    let three = [ignoring("a"), needs("b", 5.0), ignoring("c")];
    check(
        "nobody is gone in time",
        fates_of(Written::DependsOn, 3, &three, ignoring("main"), false),
        &[
            ("main", 0, 3_000, 137),
            ("c", 3_001, 5_001, 137),
            ("b", 5_002, 7_002, 137),
            ("a", 7_003, 9_003, 137),
        ],
    );
    check(
        "hooks that hang are given up at the end of the grace",
        fates_of(
            Written::DependsOn,
            3,
            &[hooked(needs("a", 0.1), 60.0), hooked(needs("b", 0.1), 60.0)],
            hooked(needs("main", 0.1), 60.0),
            false,
        ),
        &[("main", 3_000, 3_100, 0), ("b", 3_100, 3_200, 0), ("a", 3_200, 3_300, 0)],
    );
    check(
        "a grace of zero",
        fates_of(Written::DependsOn, 0, &[needs("a", 1.0), needs("b", 1.0)], needs("main", 1.0), false),
        &[("main", 0, 0, 137), ("b", 1, 1, 137), ("a", 2, 2, 137)],
    );
}

/// R3.25: with native sidecars, the kubelet signals everything that still waits at the end of the grace
/// period, and so does Outrigger.
#[test]
fn native_sidecars_are_told_together_when_the_grace_is_spent_r3_25() {
    check(
        "a grace of 1 s",
        fates(1, &[needs("s1", 0.1), needs("s2", 0.1)], ignoring("main"), false),
        &[("main", 0, 2_000, 137), ("s2", 1_000, 1_100, 0), ("s1", 1_000, 1_100, 0)],
    );
    check(
        "a hook of the main takes 9.5 of 10 s",
        fates(10, &[needs("s1", 0.1)], hooked(ignoring("main"), 9.5), false),
        &[("main", 9_500, 11_500, 137), ("s1", 10_000, 10_100, 0)],
    );
}

/// A sidecar that pulls its image at every start is also restarted while mains are stopping.
#[test]
fn a_sidecar_that_always_pulls_comes_back_while_mains_drain_g18() {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "drain"},
        "spec": {
            "initContainers": [{"name": "proxy", "image": "i", "imagePullPolicy": "Always", "restartPolicy": "Always"}],
            "containers": [{"name": "main", "image": "i"}],
        },
    }))
    .expect("a pod");
    let plan = plan(&PodInput { pod, ..Default::default() }, &FeatureGates::default()).expect("a plan").plan;
    let script: Script = serde_json::from_value(json!({
        "containers": {"proxy": {"instances": [{"runs": 12, "exit": 1}, {}]}, "main": {"on_term": {"exit_after": 20}}},
        "stops": [{"at": 10}],
    }))
    .expect("a script");
    let outcome = simulate(&plan, &script, 1, &Options::default()).expect("the script fits");
    let proxy = |event: Kind| -> Vec<u64> {
        let of = |e: &&outrigger_lifecycle::trace::Entry| e.container == Some(0) && e.event.kind() == event;
        outcome.trace.iter().filter(of).map(|e| e.time.0).collect()
    };
    assert_eq!(proxy(Kind::Exited).len(), 2);
    assert_eq!(proxy(Kind::Pulling).len(), 2);
    assert_eq!(proxy(Kind::Starting)[1], proxy(Kind::Exited)[0] + 100, "as soon as the image is there");
}
