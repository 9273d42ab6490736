//! Pod phase: 12.8, 12.9, and additional rows for our roles.
//!
//! The kubelet calls a pod Succeeded or Failed as soon as its statuses say so. Here the pod must be over
//! (G-31). A row with a terminal phase is therefore checked twice: the phase is not terminal while the pod is
//! stopping, and it is terminal when the pod is over.

use serde_json::json;

use super::super::fixtures::*;
use super::super::phase::{Phase, phase};
use crate::observation::{Exit, KillReason, Observation, StopCause};
use crate::plan::{Counts, Plan};

/// `names` and `states` are separated by spaces. `·` and `W` are the same here, because every container is
/// known.
fn check(row: &str, plan: &Plan, names: &str, states: &str, terminal: bool, expect: Phase) {
    let mut obs = observed(plan);
    for (name, state) in names.split(' ').zip(states.split(' ')) {
        put(plan, &mut obs, name, state);
    }
    if !expect.is_terminal() {
        assert_eq!(phase(plan, &obs), expect, "{row}: {names} = {states}");
        return;
    }
    assert!(!phase(plan, &obs).is_terminal(), "{row}: {names} = {states} is not over yet");
    let cause = match ends_by(plan, &obs) {
        Some(cause) => cause,
        None if terminal => StopCause::Deleted,
        None => panic!("{row}: {names} = {states} does not end"),
    };
    finish(&mut obs, cause);
    assert_eq!(phase(plan, &obs), expect, "{row}: {names} = {states}");
}

fn names(list: &str) -> Vec<&str> {
    list.split(' ').collect()
}

#[test]
fn table_12_8() {
    use Phase::{Failed, Pending, Running, Succeeded};
    // (restart policy, containers, states of one row each, the kubelet's terminal flag, phase)
    let table: &[(&str, &str, &[&str], bool, Phase)] = &[
        ("Always", "a b", &["· ·"], false, Pending),
        ("Always", "a b", &["Rn Rn"], false, Running),
        ("Always", "a b", &["T0 T0"], false, Running),
        ("Always", "a b", &["T0 T0"], true, Succeeded),
        ("Always", "a b", &["T0 Tx"], true, Failed),
        ("Always", "a b", &["Rn T0"], false, Running),
        ("Always", "a b", &["Rn ·", "Rn W"], false, Pending),
        ("Always", "a b", &["Rn WL0"], false, Running),
        ("Always", "i a b", &["Rn · ·", "Tx · ·", "WL0 · ·", "WLx · ·", "W · ·"], false, Pending),
        ("Always", "i a b", &["T0 Rn Rn"], false, Running),
        ("Always", "s a b", &["Rn · ·", "T0 · ·", "WL0 · ·", "WLx · ·", "W · ·"], false, Pending),
        ("Always", "s a b", &["St Rn ·"], false, Pending),
        ("Always", "s a b", &["St Rn Rn", "Rn Rn Rn", "T0 Rn Rn", "WL0 Rn Rn"], false, Running),
        ("Always", "s a b", &["Tx T0 T0", "T0 T0 T0"], true, Succeeded),
        // The pod is in a new sandbox, so the mains of the old one wait.
        ("Always", "s a b", &["Rn Lx Lx", "Lx Lx Lx", "L0 L0 L0"], false, Pending),
        ("Always", "i s a", &["Rn Lx Lx", "Rn Lx L0", "T0 Rn L0", "L0 Lx L0"], false, Pending),
        ("Always", "i s a", &["T0 Rn T0", "T0 Rn Rn"], false, Running),
        ("Never", "a b", &["· ·", "Rn ·", "Rn W"], false, Pending),
        ("Never", "a b", &["Rn Rn", "Rn T0"], false, Running),
        ("Never", "a b", &["T0 T0"], false, Succeeded),
        ("Never", "a b", &["Tx Tx"], false, Failed),
        ("Never", "i a b", &["Rn · ·", "WL0 · ·", "W · ·"], false, Pending),
        // Under Never, a failed init container cannot wait: the pod ends and the container keeps its exit.
        ("Never", "i a b", &["Tx · ·"], false, Failed),
        ("Never", "i a b", &["T0 Rn Rn"], false, Running),
        ("Never", "s a b", &["Rn · ·", "T0 · ·", "WL0 · ·", "WLx · ·", "W · ·"], false, Pending),
        ("Never", "s a b", &["St Rn ·"], false, Pending),
        ("Never", "s a b", &["T0 T0 T0", "Tx T0 T0", "WL0 T0 T0", "WLx T0 T0"], false, Succeeded),
        ("OnFailure", "a b", &["· ·", "Rn ·", "Rn W"], false, Pending),
        ("OnFailure", "a b", &["Rn Rn", "Rn T0", "Rn WL0"], false, Running),
        ("OnFailure", "a b", &["T0 T0"], false, Succeeded),
        ("OnFailure", "a b", &["Tx Tx"], false, Running),
    ];
    for (policy, containers, rows, terminal, expect) in table {
        let plan = plan(spec(policy, &names(containers)));
        for states in *rows {
            check(&format!("12.8 {policy}"), &plan, containers, states, *terminal, *expect);
        }
    }
    // Policy Never, sidecar `St` or `Rn`, mains done: Running while the sidecar still runs (R5.12).
    let plan = plan(spec("Never", &["s", "a", "b"]));
    for state in ["St", "Rn"] {
        let mut obs = observed(&plan);
        put(&plan, &mut obs, "s", state);
        put(&plan, &mut obs, "a", "T0");
        put(&plan, &mut obs, "b", "T0");
        assert_eq!(phase(&plan, &obs), Running, "12.8 Never Y {state}");
    }
}

/// A pod whose containers have their own restart policies. If `all_on_42`, they have a RestartAllContainers
/// rule for exit code 42.
fn with_policies(pod_policy: &str, own: &[(&str, &str)], all_on_42: bool) -> Plan {
    let names: Vec<&str> = own.iter().map(|(name, _)| *name).collect();
    let mut spec = spec(pod_policy, &names);
    for list in ["initContainers", "containers"] {
        for c in spec[list].as_array_mut().into_iter().flatten() {
            let (_, policy) = own.iter().find(|(name, _)| c["name"] == *name).expect("named");
            if !policy.is_empty() {
                c["restartPolicy"] = json!(policy);
            }
            if all_on_42 && !policy.is_empty() {
                c["restartPolicyRules"] = json!([{
                    "action": "RestartAllContainers",
                    "exitCodes": {"operator": "In", "values": [42]},
                }]);
            }
        }
    }
    plan(spec)
}

#[test]
fn table_12_9() {
    use Phase::{Failed, Pending, Running, Succeeded};
    let always = |own: &[(&str, &str)]| with_policies("Always", own, false);
    let never = |own: &[(&str, &str)]| with_policies("Never", own, false);
    let all = |own: &[(&str, &str)]| with_policies("Never", own, true);
    let (r, a_b) = ("r", "a b");
    // A pod must have a main. If the spec of a row has none, a waiting one is added.
    let rows: Vec<(u32, Plan, &str, &str, Phase)> = vec![
        (1, always(&[("r", "Never")]), r, "Tx", Failed),
        (2, always(&[("r", "OnFailure")]), r, "Tx", Running),
        (3, always(&[("r", "Always")]), r, "Tx", Running),
        (4, never(&[("a", "Always"), ("b", "")]), a_b, "T0 Tx", Running),
        (5, always(&[("a", "Never"), ("b", "OnFailure")]), a_b, "Tx T0", Failed),
        (6, always(&[("a", "Never"), ("b", "OnFailure")]), a_b, "T0 T0", Succeeded),
        (7, always(&[("i", "Never"), ("r", "")]), "i", "Tx", Failed),
        (8, never(&[("i", "OnFailure"), ("r", "")]), "i", "Tx", Pending),
        (9, never(&[("s", "Always"), ("r", "")]), "s", "Tx", Pending),
        (10, all(&[("r", "Never")]), r, "T42", Running),
        (11, all(&[("i", "Never"), ("r", "")]), "i", "T42", Pending),
        (12, all(&[("s", "Always"), ("r", "")]), "s r", "T42 W", Pending),
        (13, all(&[("s", "Always"), ("i", ""), ("r", "")]), "s i r", "T42 W W", Pending),
        (14, all(&[("r", "Never")]), r, "removed", Running),
        (15, all(&[("i", "Never"), ("r", "")]), "i r", "removed W", Pending),
        (16, all(&[("s", "Always"), ("r", "")]), "s r", "removed W", Pending),
        (17, all(&[("s", "Always"), ("i", ""), ("r", "")]), "s i r", "removed removed W", Pending),
        (18, all(&[("i", ""), ("r", "Never")]), "i r", "T0 removed", Running),
        (19, all(&[("i", ""), ("r", "Never")]), "i r", "Tx removed", Failed),
        (20, all(&[("i", "Never"), ("r", "")]), "i r", "T42 W", Pending),
        (21, all(&[("i", "Never"), ("r", "")]), "i r", "T0 W", Pending),
        (22, all(&[("s", "Always"), ("r", "")]), "s r", "removed removed", Running),
        (23, all(&[("s", "Always"), ("r", "")]), "s r", "St removed", Running),
        (24, all(&[("s", "Always"), ("i", ""), ("r", "")]), "s i r", "Rn removed W", Pending),
    ];
    for (row, plan, names, states, expect) in rows {
        check(&format!("12.9 #{row}"), &plan, names, states, false, expect);
    }
}

fn done(plan: &Plan, states: &[(&str, &str)], cause: StopCause) -> Observation {
    let mut obs = observed(plan);
    for (name, state) in states {
        put(plan, &mut obs, name, state);
    }
    finish(&mut obs, cause);
    obs
}

#[test]
fn some_causes_fail_whatever_the_exit_codes() {
    let plan = plan(spec("Never", &["a"]));
    for (cause, expect) in [
        (StopCause::Deleted, Phase::Succeeded),
        (StopCause::Completed, Phase::Succeeded),
        (StopCause::Fatal { container: 0 }, Phase::Succeeded),
        (StopCause::DeadlineExceeded, Phase::Failed),
        (StopCause::NodeShutdown, Phase::Failed),
        (StopCause::SandboxLost, Phase::Failed),
        (StopCause::CannotStart { container: Some(0) }, Phase::Failed),
        (StopCause::NotRetried { container: Some(0) }, Phase::Failed),
        (StopCause::InitFailed { container: 0 }, Phase::Failed),
        (StopCause::GateNeverOpens { container: 0, on: 0 }, Phase::Failed),
    ] {
        assert_eq!(phase(&plan, &done(&plan, &[("a", "T0")], cause)), expect, "{cause:?}");
    }
}

#[test]
fn a_pod_deleted_before_its_mains_ran_has_failed_r5_23() {
    let plan = plan(spec("Always", &["i", "a"]));
    let obs = done(&plan, &[("i", "Rn")], StopCause::Deleted);
    assert_eq!(phase(&plan, &obs), Phase::Failed);
    // Nor does an exit in a lost sandbox count for the new one.
    let obs = done(&plan, &[("i", "Rn"), ("a", "L0")], StopCause::Deleted);
    assert_eq!(phase(&plan, &obs), Phase::Failed);
}

#[test]
fn out_of_memory_is_a_failure_whatever_the_code_g_33() {
    let plan = plan(spec("Never", &["a"]));
    let mut obs = done(&plan, &[("a", "T0")], StopCause::Completed);
    obs.containers[0].exit.as_mut().unwrap().reason = crate::ExitReason::OomKilled;
    assert_eq!(phase(&plan, &obs), Phase::Failed);
}

#[test]
fn sidecars_count_as_the_plan_says() {
    let mut plan = kep_plan(pod(spec("Never", &["a", "b"])), &[1]);
    assert_eq!(plan.containers[1].role, crate::Role::Sidecar);
    let stopped = Exit { killed_for: Some(KillReason::PodStop), ..exit(143) };
    for (counts, own_exit, expect) in [
        (Counts::No, exit(1), Phase::Succeeded),
        (Counts::Yes, exit(1), Phase::Failed),
        (Counts::Yes, exit(0), Phase::Succeeded),
        (Counts::Yes, stopped.clone(), Phase::Failed),
        (Counts::UnlessStopped, exit(1), Phase::Failed),
        (Counts::UnlessStopped, exit(0), Phase::Succeeded),
        (Counts::UnlessStopped, stopped, Phase::Succeeded),
    ] {
        plan.containers[1].counts = counts;
        let mut obs = observed(&plan);
        put(&plan, &mut obs, "a", "T0");
        end(&mut obs.containers[1], own_exit.clone());
        assert_eq!(phase(&plan, &obs), Phase::Running, "not over: {counts:?}");
        finish(&mut obs, StopCause::Completed);
        assert_eq!(phase(&plan, &obs), expect, "{counts:?} {own_exit:?}");
    }
    // A container that never ran has no exit to count.
    plan.containers[1].counts = Counts::Yes;
    let obs = done(&plan, &[("a", "T0")], StopCause::Completed);
    assert_eq!(phase(&plan, &obs), Phase::Succeeded);
}

#[test]
fn a_main_whose_hook_runs_is_pending_at_first_and_restarting_after() {
    let mut spec = spec("Always", &["a"]);
    spec["containers"][0]["lifecycle"] = json!({"postStart": {"exec": {"command": ["true"]}}});
    let plan = plan(spec);
    let mut obs = observed(&plan);
    run(&mut obs.containers[0]);
    assert_eq!(phase(&plan, &obs), Phase::Pending);
    obs.containers[0].last_exit = Some(exit(1));
    assert_eq!(phase(&plan, &obs), Phase::Running);
    obs.containers[0].last_exit = None;
    obs.containers[0].post_start = crate::Hook::Done;
    assert_eq!(phase(&plan, &obs), Phase::Running);
}

#[test]
fn mains_that_do_not_keep_the_pod_alive_need_not_have_run() {
    let mut plan = plan(spec("Never", &["a", "b"]));
    (plan.containers[1].keeps_alive, plan.containers[1].counts) = (false, Counts::UnlessStopped);
    let obs = done(&plan, &[("a", "T0")], StopCause::Completed);
    assert_eq!(phase(&plan, &obs), Phase::Succeeded);
    let obs = done(&plan, &[("a", "T0"), ("b", "Tx")], StopCause::Completed);
    assert_eq!(phase(&plan, &obs), Phase::Failed);
}

#[test]
fn a_restart_refused_at_the_end_is_judged_by_the_instance_before() {
    let plan = plan(spec("Always", &["a"]));
    for (state, expect) in [("WL0", Phase::Succeeded), ("WLx", Phase::Failed)] {
        let obs = done(&plan, &[("a", state)], StopCause::Deleted);
        assert_eq!(phase(&plan, &obs), expect, "{state}");
    }
}
