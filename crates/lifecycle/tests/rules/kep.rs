//! The KEP's rules, including the seven end-to-end rows of its test plan.

use crate::common::{Play, annotated, input, pod, refused};
use outrigger_lifecycle::{FeatureGates, ProbeKind, Role, Severity, phase, plan};
use serde_json::{Value, json};

fn sidecar(name: &str) -> Value {
    json!({"name": name, "lifecycle": {"type": "Sidecar"}})
}

fn ready_sidecar(name: &str) -> Value {
    let mut c = sidecar(name);
    c["readinessProbe"] = json!({"exec": {"command": ["true"]}, "periodSeconds": 1});
    c
}

fn app() -> Value {
    json!({"name": "app"})
}

#[test]
fn row_1_sidecars_start_before_non_sidecars() {
    let mut p = Play::of(&pod(json!({"containers": [app(), ready_sidecar("s1"), ready_sidecar("s2")]})));
    assert_eq!(p.log(), ["start s1", "start s2"], "all sidecars together, the main not yet");
    p.probed("s1", ProbeKind::Readiness, true);
    assert_eq!(p.log(), [""; 0], "every sidecar must be ready");
    p.probed("s2", ProbeKind::Readiness, true);
    assert_eq!(p.log(), ["start app"]);
}

#[test]
fn the_annotation_means_the_same_as_the_field() {
    let spec = |s1: Value| json!({"initContainers": [{"name": "net", "restartPolicy": "Always"}], "containers": [app(), s1]});
    let by_field = plan(&pod(spec(ready_sidecar("s1"))), &FeatureGates::default()).expect("a plan").plan;
    let mut plain = ready_sidecar("s1");
    plain.as_object_mut().expect("a container").remove("lifecycle");
    // The annotation may name a native sidecar too: the operator may have made it one.
    let named = |names: &str| annotated(json!({"outrigger.dev/sidecars": names}), spec(plain.clone()));
    let by_name = plan(&named(" s1 ,net,s1,"), &FeatureGates::default()).expect("a plan").plan;
    assert_eq!(by_name.containers, by_field.containers);
    assert_eq!(
        plan(&named(""), &FeatureGates::default()).expect("a plan").plan.containers[2].role,
        Role::Main
    );
    assert!(refused(&named("s2"))[0].message.contains("there is no container `s2`"));
    assert!(refused(&named("app,s1"))[0].message.contains("every container is a sidecar"));
    // The annotation has far more names than a pod has containers.
    assert!(refused(&named(&"x,".repeat(100_000))).len() <= 256);
}

#[test]
fn row_2_non_sidecars_terminate_before_sidecars() {
    let mut p = Play::of(&pod(json!({"containers": [app(), sidecar("s1"), sidecar("s2")]})));
    p.log();
    p.stop(None);
    assert_eq!(p.log(), ["stop Deleted", "term app"][1..], "sidecars wait");
    p.exit("app", 0);
    assert_eq!(p.log(), ["term s1", "term s2"], "then all of them");
}

#[test]
fn row_3_sidecars_start_after_init_before_non_sidecars() {
    let mut p = Play::of(&pod(json!({
        "initContainers": [{"name": "init"}],
        "containers": [app(), ready_sidecar("s1")],
    })));
    assert_eq!(p.log(), ["start init"]);
    p.exit("init", 0);
    assert_eq!(p.log(), ["start s1"]);
    p.probed("s1", ProbeKind::Readiness, true);
    assert_eq!(p.log(), ["start app"]);
}

#[test]
fn row_4_the_grace_period_is_respected() {
    let mut p = Play::of(&pod(json!({
        "terminationGracePeriodSeconds": 10,
        "containers": [app(), sidecar("s1")],
    })));
    p.log();
    p.stop(None);
    p.pass(9_999);
    assert_eq!(p.log(), ["term app"]);
    p.pass(1);
    assert_eq!(p.log(), ["kill app", "term s1"], "mains KILLed at its end, then sidecars TERM");
    p.pass(1_999);
    assert_eq!(p.log(), [""; 0]);
    p.pass(1);
    assert_eq!(p.log(), ["kill s1"], "with 2 s");
    assert!(p.over());
}

#[test]
fn row_5_sidecars_terminate_once_non_sidecars_completed() {
    for (policy, code, done) in [
        ("Never", 0, true),
        ("Never", 1, true),
        ("OnFailure", 0, true),
        ("OnFailure", 1, false),
        ("Always", 0, false),
    ] {
        let mut p = Play::of(&pod(json!({"restartPolicy": policy, "containers": [app(), sidecar("s1")]})));
        p.log();
        p.exit("app", code);
        assert_eq!(p.log().contains(&"term s1".to_owned()), done, "{policy} {code}");
    }
}

#[test]
fn row_6_a_failed_sidecar_fails_the_pod_when_sidecars_count() {
    for (annotation, expected) in [("Count", "Failed"), ("Ignore", "Succeeded")] {
        let mut p = Play::of(&annotated(
            json!({"outrigger.dev/sidecar-phase": annotation}),
            json!({"restartPolicy": "Never", "containers": [app(), sidecar("s1")]}),
        ));
        p.exit("app", 0);
        p.exit("s1", 1);
        assert!(p.over());
        assert_eq!(phase(p.engine.plan(), p.engine.observation()).name(), expected, "{annotation}");
    }
}

/// Row 6 of the test plan, with every restart policy it names. A sidecar that counts does so like a main, by
/// its last exit. An exit that is retried is not the last one, unless the pod ends before the retry.
#[test]
fn row_6_the_last_exit_of_a_sidecar_counts() {
    enum Life {
        AfterTerm,
        ByItself,
        ThenWell,
    }
    for (policy, life, what, expected) in [
        ("Never", Life::AfterTerm, "exit 9 after TERM", "Failed"),
        ("OnFailure", Life::AfterTerm, "exit 9 after TERM", "Failed"),
        ("Never", Life::ByItself, "exit 9 by itself", "Failed"),
        ("OnFailure", Life::ByItself, "exit 9 by itself, in back-off at the end", "Failed"),
        ("OnFailure", Life::ThenWell, "exit 9 by itself, restarted, exit 0 after TERM", "Succeeded"),
    ] {
        for (annotation, expected) in [("Count", expected), ("Ignore", "Succeeded")] {
            let mut p = Play::of(&annotated(
                json!({"outrigger.dev/sidecar-phase": annotation}),
                json!({"restartPolicy": policy, "containers": [app(), sidecar("s1")]}),
            ));
            match life {
                Life::AfterTerm => {
                    p.exit("app", 0);
                    p.exit("s1", 9);
                }
                Life::ByItself => {
                    p.exit("s1", 9);
                    p.exit("s1", 9); // The first restart is immediate; now it waits for the second.
                    p.exit("app", 0);
                }
                Life::ThenWell => {
                    p.exit("s1", 9);
                    p.exit("app", 0);
                    p.exit("s1", 0);
                }
            }
            assert!(p.over(), "{policy}, {what}");
            let phase = phase(p.engine.plan(), p.engine.observation());
            assert_eq!(phase.name(), expected, "{policy}, {what}, {annotation}");
        }
    }
}

#[test]
fn row_7_all_success_is_success_either_way() {
    for annotation in ["Count", "Ignore"] {
        let mut p = Play::of(&annotated(
            json!({"outrigger.dev/sidecar-phase": annotation}),
            json!({"restartPolicy": "Never", "containers": [app(), sidecar("s1")]}),
        ));
        p.exit("app", 0);
        p.exit("s1", 0);
        assert!(p.over());
        assert_eq!(phase(p.engine.plan(), p.engine.observation()).name(), "Succeeded", "{annotation}");
    }
}

#[test]
fn sidecar_pre_stop_hooks_run_first_and_again() {
    let mut s = sidecar("s1");
    s["lifecycle"]["preStop"] = json!({"exec": {"command": ["true"]}});
    let mut a = app();
    a["lifecycle"] = json!({"preStop": {"exec": {"command": ["true"]}}});
    let mut p = Play::of(&pod(json!({"containers": [a, s]})));
    p.quick_hooks = false;
    p.log();
    p.stop(None);
    assert_eq!(p.log(), ["firstPreStop s1"], "before anything happens to the mains");
    p.hooked("s1", outrigger_lifecycle::HookKind::FirstPreStop, true);
    assert_eq!(p.log(), ["preStop app"]);
    p.hooked("app", outrigger_lifecycle::HookKind::PreStop, true);
    assert_eq!(p.log(), ["term app"]);
    p.exit("app", 0);
    assert_eq!(p.log(), ["preStop s1"], "the hook again, as the KEP says");
    p.hooked("s1", outrigger_lifecycle::HookKind::PreStop, true);
    assert_eq!(p.log(), ["term s1"]);
}

/// The order is the same when the whole pod restarts, on request or because of a rule (R2.40).
#[test]
fn sidecar_pre_stop_hooks_run_first_when_the_whole_pod_restarts() {
    let mut s = sidecar("s1");
    s["lifecycle"]["preStop"] = json!({"exec": {"command": ["true"]}});
    let starter = json!({"name": "starter", "restartPolicy": "Never", "restartPolicyRules": [
        {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}]});
    for by_rule in [false, true] {
        let mut p = Play::of(&pod(json!({"containers": [app(), starter, s]})));
        p.quick_hooks = false;
        if by_rule {
            p.exit("starter", 42);
        } else {
            p.exit("starter", 0);
            p.restart(None).expect("it runs");
        }
        let log = p.log();
        assert_eq!(log.last().map(String::as_str), Some("firstPreStop s1"), "{log:?}");
        assert!(!log.iter().any(|l| l.starts_with("term")), "{log:?}");
        p.hooked("s1", outrigger_lifecycle::HookKind::FirstPreStop, true);
        assert_eq!(p.log(), ["term app"]);
        p.exit("app", 143);
        assert_eq!(p.log(), ["preStop s1"], "once more at its own turn");
        p.hooked("s1", outrigger_lifecycle::HookKind::PreStop, true);
        assert_eq!(p.log(), ["term s1"]);
        p.exit("s1", 143);
        assert!(p.log().contains(&"start s1".to_owned()));
    }
}

/// A sidecar that is already being stopped on its own does not run its hook again, and mains do not wait for
/// a hook that will not run.
#[test]
fn a_sidecar_that_is_already_stopping_holds_no_main_back() {
    let mut s = sidecar("s1");
    s["lifecycle"]["preStop"] = json!({"exec": {"command": ["true"]}});
    for hook_done in [false, true] {
        let mut p = Play::of(&pod(json!({"containers": [app(), s]})));
        p.quick_hooks = false;
        p.log();
        p.restart(Some("s1")).expect("it runs");
        assert_eq!(p.log(), ["preStop s1"]);
        if hook_done {
            p.hooked("s1", outrigger_lifecycle::HookKind::PreStop, true);
            assert_eq!(p.log(), ["term s1"]);
            p.stop(None);
        } else {
            p.stop(None);
            assert_eq!(p.log(), [""; 0], "its hook runs before the main is stopped");
            p.hooked("s1", outrigger_lifecycle::HookKind::PreStop, true);
        }
        assert_eq!(p.log(), ["term app"]);
    }
}

#[test]
fn at_completion_sidecars_stop_together_and_their_hooks_run_once() {
    let mut hooked = sidecar("s1");
    hooked["lifecycle"]["preStop"] = json!({"exec": {"command": ["true"]}});
    let mut p =
        Play::of(&pod(json!({"restartPolicy": "Never", "containers": [app(), hooked, sidecar("s2")]})));
    p.quick_hooks = false;
    p.log();
    p.exit("app", 0);
    assert_eq!(p.log()[1..], ["preStop s1", "term s2"], "nobody waits for a hook that serves no main");
}

#[test]
fn readiness_gates_only_the_start() {
    let mut p = Play::of(&pod(json!({"containers": [app(), ready_sidecar("s1")]})));
    p.probed("s1", ProbeKind::Readiness, true);
    p.log();
    for _ in 0..5 {
        p.pass(1_000);
        p.probed("s1", ProbeKind::Readiness, false);
    }
    p.exit("app", 1);
    assert_eq!(p.log(), ["start app"], "a restart does not wait for readiness again");
}

#[test]
fn what_does_not_fit_is_refused() {
    let init = input(json!({"metadata": {"name": "p"}, "spec": {
        "initContainers": [sidecar("i")], "containers": [app()]}}));
    let all = pod(json!({"containers": [sidecar("a"), sidecar("b")]}));
    let typo = pod(json!({"containers": [app(), {"name": "s", "lifecycle": {"type": "sidecar"}}]}));
    for (input, code, path) in [
        (init, "kep-init", "spec.initContainers[0].lifecycle.type"),
        (all, "kep-standard", "spec.containers"),
        (typo, "kep-type", "spec.containers[1].lifecycle.type"),
    ] {
        let findings = refused(&input);
        let found: Vec<_> = findings.iter().map(|f| (f.code, f.path.to_string())).collect();
        assert!(found.contains(&(code, path.to_owned())), "{found:?}");
        assert!(findings.iter().all(|f| f.severity == Severity::Warning || f.hint.is_some()));
    }
    for (value, hint) in
        [("sidecar", "write `type: Sidecar`"), ("helper", "the values are `Standard` and `Sidecar`")]
    {
        let input = pod(json!({"containers": [app(), {"name": "s", "lifecycle": {"type": value}}]}));
        assert_eq!(refused(&input)[0].hint.as_deref(), Some(hint), "{value}");
    }
}

#[test]
fn with_the_gate_off_every_container_is_standard() {
    let input = pod(json!({"containers": [app(), sidecar("s1")]}));
    let gates = FeatureGates { sidecar_lifecycle_type: false, ..FeatureGates::default() };
    let planned = plan(&input, &gates).expect("accepted");
    assert_eq!(planned.warnings.len(), 1);
    assert!(planned.plan.containers.iter().all(|c| c.keeps_alive));
    assert_eq!(planned.plan.dialects, []);
}
