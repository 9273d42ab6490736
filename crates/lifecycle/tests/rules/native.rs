//! Native sidecars and plain pods: start, restart, stop, completion.

use crate::common::{Play, pod};
use outrigger_lifecycle::{HookKind, KillReason, Need, ProbeKind, State, Wait};
use serde_json::{Value, json};

fn sidecar(name: &str) -> Value {
    json!({"name": name, "restartPolicy": "Always"})
}

fn probed(mut c: Value, kind: &str, probe: Value) -> Value {
    let mut p = json!({"exec": {"command": ["true"]}, "periodSeconds": 1, "failureThreshold": 1});
    for (k, v) in probe.as_object().unwrap() {
        p[k] = v.clone();
    }
    c[kind] = p;
    c
}

fn hooked(mut c: Value, hook: &str) -> Value {
    c["lifecycle"][hook] = json!({"exec": {"command": ["true"]}});
    c
}

fn main() -> Value {
    json!({"name": "main"})
}

#[test]
fn init_entries_start_in_order_r1_2_r1_3() {
    let mut p = Play::of(&pod(json!({
        "initContainers": [{"name": "i0"}, sidecar("s0"), {"name": "i1"}],
        "containers": [main(), {"name": "second"}],
    })));
    assert_eq!(p.log(), ["start i0"]);
    p.exit("i0", 0);
    assert_eq!(p.log(), ["start s0", "start i1"], "a sidecar without probes is passed once it runs");
    p.exit("i1", 0);
    assert_eq!(p.log(), ["start main", "start second"]);
}

#[test]
fn a_startup_probe_holds_the_next_entry_back_r1_26() {
    let mut p = Play::of(&pod(json!({
        "initContainers": [probed(sidecar("s0"), "startupProbe", json!({})), sidecar("s1")],
        "containers": [main()],
    })));
    assert_eq!(p.log(), ["start s0"]);
    assert_eq!(p.wait("s1"), Some(Wait::Gate { on: 0, need: Need::Started }));
    p.probed("s0", ProbeKind::Startup, true);
    assert_eq!(p.log(), ["start s1", "start main"]);
}

#[test]
fn post_start_holds_the_next_entry_and_the_next_main_back_r1_6_r1_41() {
    let mut p = Play::of(&pod(json!({
        "initContainers": [hooked(sidecar("s0"), "postStart")],
        "containers": [hooked(main(), "postStart"), {"name": "second"}],
    })));
    p.quick_hooks = false;
    let mut p = {
        let mut fresh = Play { quick_hooks: false, ..p };
        fresh.log.clear();
        fresh.engine = outrigger_lifecycle::Engine::new(fresh.engine.plan().clone(), fresh.now);
        fresh.settle();
        fresh
    };
    assert_eq!(p.log(), ["start s0", "postStart s0"]);
    p.hooked("s0", HookKind::PostStart, true);
    assert_eq!(p.log(), ["start main", "postStart main"]);
    assert_eq!(p.wait("second"), Some(Wait::Gate { on: 1, need: Need::Launched }));
    p.hooked("main", HookKind::PostStart, false);
    assert_eq!(p.log(), ["start second", "term main"], "a failed hook ends its container and holds nobody");
}

#[test]
fn init_failure_follows_the_restart_policy_1_4() {
    for (policy, own, restarted) in [
        ("Always", None, true),
        ("OnFailure", None, true),
        ("Never", None, false),
        ("Never", Some("OnFailure"), true),
        ("Always", Some("Never"), false),
    ] {
        let mut init = json!({"name": "i0"});
        if let Some(own) = own {
            init["restartPolicy"] = json!(own);
        }
        let mut p = Play::of(&pod(
            json!({"restartPolicy": policy, "initContainers": [sidecar("s0"), init], "containers": [main()]}),
        ));
        p.log();
        p.exit("i0", 1);
        let log = p.log();
        assert_eq!(log.contains(&"start i0".to_owned()), restarted, "{policy} {own:?}");
        assert_eq!(log.contains(&"term s0".to_owned()), !restarted, "{policy} {own:?}");
    }
}

#[test]
fn crash_loops_wait_exactly_r1_60_g08() {
    let mut p = Play::of(&pod(json!({"containers": [main()]})));
    let mut starts = Vec::new();
    let zero = p.now;
    for _ in 0..5 {
        p.exit("main", 1);
        while !p.log().contains(&"start main".to_owned()) {
            let wake = p.out.wake.expect("a timer");
            p.pass(wake.since(p.now));
        }
        starts.push(p.now.since(zero) / 1000);
    }
    assert_eq!(starts, [0, 10, 30, 70, 150], "E151");
}

#[test]
fn a_liveness_kill_restarts_even_after_exit_zero_and_runs_pre_stop_r2_11_r7_5() {
    for (policy, restarted) in [("Always", true), ("OnFailure", true), ("Never", false)] {
        let c = hooked(probed(main(), "livenessProbe", json!({})), "preStop");
        let mut p = Play::of(&pod(json!({"restartPolicy": policy, "containers": [c, {"name": "other"}]})));
        p.log();
        p.probed("main", ProbeKind::Liveness, true);
        p.pass(1_000);
        p.probed("main", ProbeKind::Liveness, false);
        assert_eq!(p.log(), ["preStop main", "term main"]);
        p.exit("main", 0);
        assert_eq!(p.log().contains(&"start main".to_owned()), restarted, "{policy}");
    }
}

#[test]
fn the_stop_is_the_start_backwards_r3_22() {
    let mut p = Play::of(&pod(json!({
        "initContainers": [sidecar("s0"), {"name": "i0"}, sidecar("s1"), {"name": "i1"}],
        "containers": [main(), {"name": "second"}],
    })));
    p.exit("i0", 0);
    p.exit("i1", 0);
    p.log();
    p.stop(None);
    assert_eq!(p.log(), ["term main", "term second"]);
    p.exit("second", 0);
    assert_eq!(p.log(), [""; 0]);
    p.exit("main", 0);
    assert_eq!(p.log(), ["term s1"]);
    p.exit("s1", 0);
    assert_eq!(p.log(), ["term s0"]);
    p.exit("s0", 0);
    assert!(p.over());
}

/// The worked timelines of section 3.5. Input: the grace period, and the seconds that R and the last, middle
/// and first sidecar take to stop. Output: the times of the signals and of KILL.
#[test]
fn one_grace_is_shared_3_5() {
    struct Case {
        id: &'static str,
        grace: u64,
        stop_takes: [u64; 4],
        signals: [u64; 4],
        kills: [Option<u64>; 4],
    }
    let cases = [
        Case {
            id: "E130",
            grace: 5,
            stop_takes: [20, 20, 1, 20],
            signals: [0, 5, 5, 5],
            kills: [Some(5), Some(7), None, Some(7)],
        },
        Case {
            id: "E131",
            grace: 5,
            stop_takes: [1, 1, 20, 1],
            signals: [0, 1, 2, 5],
            kills: [None, None, Some(5), None],
        },
    ];
    for case in cases {
        let mut p = Play::of(&pod(json!({
            "terminationGracePeriodSeconds": case.grace,
            "initContainers": [sidecar("s1"), sidecar("s2"), sidecar("s3")],
            "containers": [main()],
        })));
        let names = ["main", "s3", "s2", "s1"];
        p.log();
        let zero = p.now;
        p.stop(None);
        let mut signals = [None; 4];
        let mut kills = [None; 4];
        for second in 0..=10u64 {
            // Events at the same time are processed before time advances.
            for _ in 0..4 {
                for line in p.log() {
                    let (what, who) = line.split_once(' ').unwrap();
                    let Some(i) = names.iter().position(|n| *n == who) else {
                        continue;
                    };
                    match what {
                        "term" => signals[i] = Some(p.now.since(zero) / 1000),
                        "kill" => kills[i] = Some(p.now.since(zero) / 1000),
                        _ => {}
                    }
                }
                for (i, name) in names.iter().enumerate() {
                    let due = signals[i].is_some_and(|s| s + case.stop_takes[i] <= second);
                    if due && p.container(name).state.is_alive() {
                        p.exit(name, 0);
                    }
                }
            }
            p.pass(1_000);
        }
        assert_eq!(signals.map(Option::unwrap), case.signals, "{} signals", case.id);
        assert_eq!(kills, case.kills, "{} kills", case.id);
        assert!(p.over(), "{}", case.id);
    }
}

#[test]
fn sidecar_pre_stop_hooks_run_when_the_stop_begins_r3_23() {
    let mut p = Play::of(&pod(json!({
        "initContainers": [hooked(sidecar("s0"), "preStop")],
        "containers": [hooked(main(), "preStop")],
    })));
    p.log();
    p.stop(None);
    let mut log = p.log();
    assert_eq!(log.pop().as_deref(), Some("term main"));
    log.sort();
    assert_eq!(log, ["preStop main", "preStop s0"]);
}

#[test]
fn a_hook_that_outlasts_the_grace_is_given_up_r3_41() {
    let mut p = Play::of(&pod(json!({
        "terminationGracePeriodSeconds": 3, "containers": [hooked(main(), "preStop")],
    })));
    p.quick_hooks = false;
    p.log();
    p.stop(None);
    p.pass(2_999);
    assert_eq!(p.log(), ["preStop main"]);
    p.pass(1);
    assert_eq!(p.log(), ["term main"]);
    p.pass(2_000);
    assert_eq!(p.log(), ["kill main"]);
}

#[test]
fn jobs_complete_and_take_their_sidecars_along_r4_1() {
    let mut p = Play::of(&pod(json!({
        "restartPolicy": "Never",
        "initContainers": [sidecar("s0"), sidecar("s1")],
        "containers": [main()],
    })));
    p.log();
    p.exit("main", 0);
    assert_eq!(p.log()[1..], ["term s1"]);
    p.exit("s1", 143);
    assert_eq!(p.log(), ["term s0"]);
    p.exit("s0", 1);
    assert!(p.over());
}

#[test]
fn completion_looks_at_mains_only_g20() {
    // D1: the last sidecar has ended and is in back-off while another one runs.
    let mut p = Play::of(&pod(json!({
        "restartPolicy": "Never",
        "initContainers": [sidecar("s0"), sidecar("s1")],
        "containers": [main()],
    })));
    p.exit("s1", 1);
    p.exit("s1", 1);
    assert!(matches!(p.wait("s1"), Some(Wait::Backoff { .. })));
    p.log();
    p.exit("main", 0);
    assert_eq!(p.log()[1..], ["term s0"]);
    // D2: the sidecar still waits for its startup probe.
    let mut p = Play::of(&pod(json!({
        "restartPolicy": "Never",
        "initContainers": [sidecar("s0"), probed(sidecar("s1"), "startupProbe", json!({"failureThreshold": 60}))],
        "containers": [main()],
    })));
    p.probed("s1", ProbeKind::Startup, true);
    p.exit("s1", 1);
    p.log();
    p.exit("main", 0);
    assert_eq!(p.log()[1..], ["term s1"]);
}

#[test]
fn mains_restart_while_the_last_sidecar_is_down_g21() {
    let mut p = Play::of(&pod(json!({"initContainers": [sidecar("s0")], "containers": [main()]})));
    p.exit("s0", 1);
    p.exit("s0", 1);
    p.log();
    p.exit("main", 0);
    assert_eq!(p.log(), ["start main"]);
}

#[test]
fn a_dead_sidecar_does_not_cut_the_chain_g22() {
    let mut p = Play::of(&pod(json!({
        "initContainers": [sidecar("s0"), sidecar("s1"), sidecar("s2")], "containers": [main()],
    })));
    p.exit("s1", 1);
    p.exit("s1", 1);
    p.log();
    p.stop(None);
    p.exit("main", 0);
    assert_eq!(p.log(), ["term main", "term s2"], "s0 waits for s2 although s1 is down");
    p.exit("s2", 0);
    assert_eq!(p.log(), ["term s0"]);
}

#[test]
fn a_running_init_container_stops_before_its_sidecars_g23() {
    let mut p = Play::of(&pod(json!({
        "initContainers": [sidecar("s0"), {"name": "i0"}], "containers": [main()],
    })));
    p.log();
    p.stop(None);
    assert_eq!(p.log(), ["term i0"]);
    p.exit("i0", 0);
    assert_eq!(p.log(), ["term s0"], "and nothing after the init container starts");
}

#[test]
fn a_sidecar_that_dies_while_mains_drain_comes_back_g18() {
    let mut p = Play::of(&pod(json!({"initContainers": [sidecar("s0")], "containers": [main()]})));
    p.log();
    p.stop(None);
    p.exit("s0", 1);
    assert_eq!(p.log(), ["term main", "start s0"]);
    p.exit("main", 0);
    assert_eq!(p.log(), ["term s0"]);
    p.exit("s0", 1);
    assert_eq!(p.log(), [""; 0], "after its turn it stays down");
    assert!(p.over());
}

#[test]
fn a_main_that_is_gone_does_not_wait_for_its_hook_g27() {
    let mut p = Play::of(&pod(json!({
        "initContainers": [sidecar("s0")], "containers": [hooked(main(), "preStop")],
    })));
    p.quick_hooks = false;
    p.log();
    p.stop(None);
    p.exit("main", 0);
    assert_eq!(p.log(), ["preStop main", "term s0"]);
}

#[test]
fn zero_grace_kills_at_once_g29() {
    let mut p = Play::of(&pod(json!({"initContainers": [sidecar("s0")], "containers": [main()]})));
    p.log();
    p.stop(Some(0));
    assert_eq!(p.log(), ["kill main", "kill s0"]);
    assert!(p.over());
}

#[test]
fn a_shorter_grace_counts_at_once_g16() {
    let mut p = Play::of(&pod(json!({"containers": [main()]})));
    p.log();
    p.stop(Some(60_000));
    p.pass(5_000);
    p.stop(Some(1_000));
    p.pass(1_000);
    assert_eq!(p.log(), ["term main", "kill main"]);
    let mut p = Play::of(&pod(json!({"containers": [main()]})));
    p.stop(Some(3_000));
    p.stop(Some(60_000));
    p.pass(3_000);
    assert!(p.over(), "a longer one does not");
}

#[test]
fn a_hanging_post_start_hook_does_not_hold_a_deletion_g14_g15() {
    let mut p = Play::of(&pod(json!({"containers": [hooked(main(), "postStart")]})));
    p.quick_hooks = false;
    p.engine = outrigger_lifecycle::Engine::new(p.engine.plan().clone(), p.now);
    p.settle();
    p.log();
    p.stop(None);
    assert_eq!(p.log(), ["term main"]);
}

#[test]
fn one_slow_kill_disturbs_nobody_g13_g17() {
    let c = |name: &str| probed(json!({"name": name}), "livenessProbe", json!({}));
    let mut p = Play::of(&pod(json!({"containers": [hooked(c("a"), "preStop"), c("b"), {"name": "other"}]})));
    p.quick_hooks = false;
    p.log();
    for name in ["a", "b"] {
        p.probed(name, ProbeKind::Liveness, true);
    }
    p.pass(1_000);
    p.probed("a", ProbeKind::Liveness, false);
    p.probed("b", ProbeKind::Liveness, false);
    assert_eq!(p.log(), ["preStop a", "term b"]);
    p.exit("other", 1);
    assert_eq!(p.log(), ["start other"]);
}

#[test]
fn a_quick_sidecar_counts_as_started_g34() {
    let mut p = Play::of(&pod(json!({"initContainers": [sidecar("s0")], "containers": [main()]})));
    assert_eq!(p.log(), ["start s0", "start main"], "the start was seen, whatever came after it");
    p.exit("s0", 0);
    assert_eq!(p.log(), ["start s0"]);
}

#[test]
fn probe_counts_belong_to_one_instance_g37_g38() {
    let c = probed(main(), "startupProbe", json!({"failureThreshold": 3}));
    let mut p = Play::of(&pod(json!({"containers": [c]})));
    for _ in 0..2 {
        p.pass(1_000);
        p.probed("main", ProbeKind::Startup, false);
    }
    p.exit("main", 1);
    assert!(matches!(p.container("main").state, State::Running { .. }));
    p.log();
    p.pass(1_000);
    p.probed("main", ProbeKind::Startup, false);
    assert_eq!(p.log(), [""; 0], "one failure of the new instance is one failure");
    assert_eq!(p.container("main").probe(ProbeKind::Startup).run, 1);
}

#[test]
fn an_image_change_acts_at_once_g36_r2_5() {
    let c = probed(sidecar("s0"), "startupProbe", json!({"failureThreshold": 600}));
    let mut p =
        Play::of(&pod(json!({"restartPolicy": "Never", "initContainers": [c], "containers": [main()]})));
    p.log();
    p.engine.handle(&outrigger_lifecycle::Event::ImageChanged { container: 0 }, p.now);
    p.settle();
    assert_eq!(p.log(), ["term s0"]);
    assert_eq!(p.container("s0").kill.unwrap().reason, KillReason::ImageChanged);
    p.exit("s0", 143);
    assert_eq!(p.log(), ["start s0"]);
}

#[test]
fn restart_all_is_graceful_ordered_and_backs_off_g43() {
    let rules = json!([{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}]);
    let mut p = Play::of(&pod(json!({
        "restartPolicy": "Never",
        "initContainers": [{"name": "i0"}, hooked(sidecar("s0"), "preStop")],
        "containers": [{"name": "main", "restartPolicy": "Never", "restartPolicyRules": rules}, {"name": "other"}],
    })));
    p.exit("i0", 0);
    p.log();
    p.exit("main", 42);
    let mut log = p.log();
    log.sort();
    assert_eq!(log, ["preStop s0", "term other"]);
    p.exit("other", 143);
    assert_eq!(p.log(), ["term s0"]);
    p.exit("s0", 0);
    assert_eq!(p.log(), ["start i0"], "init runs again");
    assert_eq!(p.container("main").restarts, 1);
    assert_eq!(p.container("main").last_exit.as_ref().unwrap().code, 137);
    p.exit("i0", 0);
    p.log();
    p.exit("main", 42);
    p.exit("other", 143);
    p.exit("s0", 0);
    assert!(!p.log().contains(&"start i0".to_owned()));
    p.pass(10_000);
    assert_eq!(p.log(), ["start i0"], "the second time after 10 s");
}

#[test]
fn a_lost_sandbox_begins_again_or_fails_g32_r2_53() {
    let spec = |policy: &str| json!({"restartPolicy": policy, "initContainers": [{"name": "i0"}], "containers": [main()]});
    let mut p = Play::of(&pod(spec("Always")));
    p.exit("i0", 0);
    p.log();
    p.engine.handle(&outrigger_lifecycle::Event::SandboxLost, p.now);
    p.settle();
    assert_eq!(p.log(), ["kill main", "start i0"]);
    let mut p = Play::of(&pod(spec("Never")));
    p.log();
    p.engine.handle(&outrigger_lifecycle::Event::SandboxLost, p.now);
    p.settle();
    assert!(p.log().contains(&"stop SandboxLost".to_owned()));
}

#[test]
fn a_volume_over_its_limit_ends_the_pod_r3_3_r5_21() {
    let spec = json!({
        "terminationGracePeriodSeconds": 30, "containers": [main()],
        "volumes": [
            {"name": "free", "emptyDir": {}},
            {"name": "none", "emptyDir": {"sizeLimit": "0"}},
            {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
            {"name": "data", "emptyDir": {"sizeLimit": "1Mi"}},
        ],
    });
    let mut p = Play::of(&pod(spec));
    let limits = &p.engine.plan().volume_limits;
    assert_eq!(limits.len(), 1, "what is in memory is limited by the kernel: {limits:?}");
    assert_eq!((limits[0].volume.as_str(), limits[0].bytes), ("data", 1 << 20));
    p.log();
    let measured = |bytes| outrigger_lifecycle::Event::VolumeMeasured { volume: 0, bytes };
    p.engine.handle(&measured(1 << 20), p.now);
    p.engine.handle(&outrigger_lifecycle::Event::VolumeMeasured { volume: 7, bytes: u64::MAX }, p.now);
    p.settle();
    assert!(p.log().is_empty(), "up to the limit is fine");
    p.engine.handle(&measured((1 << 20) + 1), p.now);
    p.settle();
    assert_eq!(p.log(), ["stop VolumeFull { volume: 0 }", "term main"]);
    assert_eq!(p.engine.observation().stop.map(|s| s.grace_ms), Some(1_000));
    // Deleting data again does not prevent the eviction.
    p.engine.handle(&measured(0), p.now);
    p.exit("main", 0);
    assert!(p.over());
    let (plan, obs) = (p.engine.plan(), p.engine.observation());
    let facts = outrigger_lifecycle::StatusFacts {
        containers: vec![outrigger_lifecycle::ContainerFacts::default()],
        ..Default::default()
    };
    let status = outrigger_lifecycle::pod_status(plan, obs, &[], &facts, None);
    assert_eq!(status.phase.as_deref(), Some("Failed"));
    assert_eq!(status.reason.as_deref(), Some("Evicted"));
    assert_eq!(
        status.message.as_deref(),
        Some("Usage of EmptyDir volume \"data\" exceeds the limit \"1Mi\". ")
    );
}

#[test]
fn an_observation_survives_its_observer_g44_g45() {
    let mut p = Play::of(&pod(json!({
        "terminationGracePeriodSeconds": 30, "containers": [hooked(main(), "preStop")],
    })));
    p.quick_hooks = false;
    p.stop(None);
    p.pass(10_000);
    let kept = serde_json::to_string(p.engine.observation()).unwrap();
    let mut obs: outrigger_lifecycle::Observation = serde_json::from_str(&kept).unwrap();
    obs.recover();
    p.engine = outrigger_lifecycle::Engine::resume(p.engine.plan().clone(), obs);
    p.log();
    p.settle();
    assert_eq!(p.log(), ["term main"], "the hook is not run again");
    p.pass(19_999);
    assert!(!p.over());
    p.pass(1);
    assert!(p.over(), "and the grace is not given twice");
}
