//! Conditions: 12.17 and section 5.4, and the final conditions as in the golden files of tests/conformance.
//!
//! Rows 1 and 11 of 12.17 (no statuses at all) cannot occur, because the observation has every container of
//! the plan. For the same reason, a missing status (rows 3, 5, 12) is a waiting one, and is reported as
//! incomplete or unready instead of unknown.

use k8s_openapi::api::core::v1::{PodCondition, PodStatus};

use super::super::fixtures::*;
use super::super::pod_status;
use crate::action::Event;
use crate::observation::StopCause;

fn status(names: &[&str], states: &[(&str, &str)]) -> PodStatus {
    let plan = plan(spec("Never", names));
    let mut obs = observed(&plan);
    for (name, state) in states {
        put(&plan, &mut obs, name, state);
    }
    pod_status(&plan, &obs, &[], &facts(&plan), None)
}

fn condition(status: &PodStatus, kind: &str) -> PodCondition {
    let all = status.conditions.iter().flatten();
    all.into_iter().find(|c| c.type_ == kind).unwrap_or_else(|| panic!("no {kind}")).clone()
}

/// `True`, or `False Reason: message`.
fn told(status: &PodStatus, kind: &str) -> String {
    let c = condition(status, kind);
    let part = |before: &str, text: Option<String>| text.map_or(String::new(), |t| format!("{before}{t}"));
    format!("{}{}{}", c.status, part(" ", c.reason), part(": ", c.message))
}

#[test]
fn initialized_12_17_rows_2_to_10() {
    let not =
        |names: &str| format!("False ContainersNotInitialized: containers with incomplete status: [{names}]");
    type Row<'a> = (u32, &'a [&'a str], &'a [(&'a str, &'a str)], String);
    let rows: &[Row<'_>] = &[
        (2, &["a"], &[], "True".into()),
        (3, &["i", "a"], &[], not("i")),
        (4, &["i1", "i2", "a"], &[("i1", "T0"), ("i2", "T0")], "True".into()),
        (5, &["i1", "i2", "a"], &[("i1", "T0")], not("i2")),
        (5, &["i1", "i2", "a"], &[("i1", "Tx")], not("i1 i2")),
        (7, &["s", "a"], &[("s", "Rn")], not("s")),
        (8, &["s", "a"], &[("s", "St")], "True".into()),
        (9, &["s", "a"], &[("s", "Rn"), ("a", "Rn")], "True".into()),
        (10, &["i", "a"], &[("a", "T0")], "True".into()),
    ];
    for (row, names, states, expect) in rows {
        assert_eq!(&told(&status(names, states), "Initialized"), expect, "12.17 row {row}");
    }
}

#[test]
fn containers_ready_12_17_rows_12_to_14() {
    let not = |names: &str| format!("False ContainersNotReady: containers with unready status: [{names}]");
    type Row<'a> = (u32, &'a [&'a str], &'a [(&'a str, &'a str)], String);
    let rows: &[Row<'_>] = &[
        (12, &["a"], &[], not("a")),
        (12, &["s", "a"], &[("a", "Rn")], not("s")),
        (13, &["z", "s", "a"], &[("s", "Rn")], not("s z a")),
        (14, &["s", "a", "b"], &[("s", "St"), ("a", "Rn"), ("b", "Rn")], "True".into()),
    ];
    for (row, names, states, expect) in rows {
        let status = status(names, states);
        assert_eq!(&told(&status, "ContainersReady"), expect, "12.17 row {row}");
        assert_eq!(&told(&status, "Ready"), expect, "12.17 row {row}: Ready follows");
    }
}

/// Final conditions by how a pod ended (12.17 rows 6 and 15).
#[test]
fn final_conditions_follow_the_golden_files() {
    let finals = |mut life: Life| {
        let status = life.status();
        (status.phase.clone().unwrap(), conditions(&status)[..4].join(", "), status)
    };
    let done = |initialized: &str, ready: &str| {
        format!(
            "PodReadyToStartContainers=False, Initialized={initialized}, Ready=False {ready}, \
             ContainersReady=False {ready}"
        )
    };
    // job-never-sidecar-exit-143
    let mut life = Life::new(plan(spec("Never", &["i", "a"])));
    life.exits("i", 0).exits("a", 0);
    let (phase, all, _) = finals(life);
    assert_eq!((phase.as_str(), all), ("Succeeded", done("True PodCompleted", "PodCompleted")));
    // rules-mismatch-fails
    let mut life = Life::new(plan(spec("Never", &["a"])));
    life.exits("a", 1);
    let (phase, all, _) = finals(life);
    assert_eq!((phase.as_str(), all), ("Failed", done("True", "PodFailed")));
    // init-fail-never
    let mut life = Life::new(plan(spec("Never", &["i0", "i1", "i2", "main"])));
    life.exits("i0", 0).exits("i1", 3);
    let (phase, all, status) = finals(life);
    assert_eq!((phase.as_str(), all), ("Failed", done("False ContainersNotInitialized", "PodFailed")));
    assert_eq!(line(&status, "i0"), "terminated 0/Completed ready rc=0");
    assert_eq!(line(&status, "i1"), "terminated 3/Error rc=0");
    assert_eq!(line(&status, "i2"), "waiting PodInitializing rc=0");
    assert_eq!(line(&status, "main"), "waiting PodInitializing rc=0");
    assert_eq!((status.reason, status.message), (None, None));
    // stop-during-init
    let mut life = Life::new(plan(spec("Always", &["i0", "i1", "main"])));
    life.delete().exits("i0", 0);
    let (phase, all, status) = finals(life);
    assert_eq!(
        (phase.as_str(), all),
        ("Failed", done("False ContainersNotInitialized", "ContainersNotReady"))
    );
    assert_eq!(line(&status, "i1"), "waiting PodInitializing rc=0");
    // deadline-init
    let mut spec = spec("OnFailure", &["i0", "main"]);
    spec["activeDeadlineSeconds"] = 3.into();
    let mut life = Life::new(plan(spec));
    life.after(3_000).exits("i0", 0);
    let (phase, all, status) = finals(life);
    assert_eq!((phase.as_str(), all), ("Failed", done("True", "PodFailed")));
    assert_eq!(status.reason.as_deref(), Some("DeadlineExceeded"));
    assert_eq!(
        status.message.as_deref(),
        Some("Pod was active on the node longer than the specified deadline")
    );
}

#[test]
fn transition_times_change_with_the_status_only_r5_30() {
    let mut life = Life::new(plan(spec("Always", &["i", "a"])));
    let first = life.status();
    life.after(7_000);
    assert_eq!(condition(&life.status(), "Ready"), condition(&first, "Ready"));
    life.exits("i", 0);
    let running = life.status();
    let at = |s: &PodStatus, kind: &str| condition(s, kind).last_transition_time.unwrap().0.as_second();
    assert_eq!(at(&running, "Ready") - at(&first, "Ready"), 7);
    assert_eq!(at(&running, "PodScheduled"), at(&first, "PodScheduled"));
    assert_eq!(running.start_time, first.start_time);
}

#[test]
fn initialized_is_kept_once_true() {
    let mut life = Life::new(plan(spec("Always", &["i", "a"])));
    life.exits("i", 0);
    life.status();
    life.handle(Event::SandboxLost).exits("a", 137);
    let status = life.status();
    assert_eq!(status.phase.as_deref(), Some("Pending"), "R2.55");
    assert_eq!(line(&status, "i"), "running started rc=1 last=0/Completed");
    assert_eq!(told(&status, "Initialized"), "True");
}

#[test]
fn readiness_gates_are_asked_of_other_owners_r5_31() {
    let plan = plan(spec("Always", &["a"]));
    let mut obs = observed(&plan);
    put(&plan, &mut obs, "a", "Rn");
    let mut facts = facts(&plan);
    facts.readiness_gates = vec!["example.com/lb".to_owned()];
    let status = pod_status(&plan, &obs, &[], &facts, None);
    assert_eq!(
        told(&status, "Ready"),
        "False ReadinessGatesNotReady: corresponding condition of pod readiness gate \"example.com/lb\" does not \
         exist."
    );
    let mut previous = status;
    let gate =
        PodCondition { type_: "example.com/lb".to_owned(), status: "False".to_owned(), ..Default::default() };
    previous.conditions.as_mut().unwrap().push(gate);
    let status = pod_status(&plan, &obs, &[], &facts, Some(&previous));
    assert!(
        told(&status, "Ready").starts_with("False ReadinessGatesNotReady: the status of pod readiness gate")
    );
    previous.conditions.as_mut().unwrap().last_mut().unwrap().status = "True".to_owned();
    let status = pod_status(&plan, &obs, &[], &facts, Some(&previous));
    assert_eq!(told(&status, "Ready"), "True");
    assert_eq!(told(&status, "example.com/lb"), "True");
    assert_eq!(told(&status, "ContainersReady"), "True");
}

#[test]
fn failed_sidecars_are_named_when_the_pod_is_over_g_52() {
    use crate::observation::{Exit, KillReason};
    let plan = plan(spec("Never", &["s1", "s2", "s3", "s4", "a"]));
    let mut obs = observed(&plan);
    put(&plan, &mut obs, "a", "T0");
    let told_to = |code, signal| Exit { killed_for: Some(KillReason::PodStop), signal, ..exit(code) };
    end(&mut obs.containers[0], told_to(143, Some(15))); // many programs end like this
    end(&mut obs.containers[1], told_to(137, Some(9))); // ignores TERM
    end(&mut obs.containers[2], told_to(1, None));
    end(&mut obs.containers[3], exit(0));
    let before = pod_status(&plan, &obs, &[], &facts(&plan), None);
    assert!(!conditions(&before).iter().any(|c| c.contains("Sidecars")));
    finish(&mut obs, StopCause::Completed);
    let status = pod_status(&plan, &obs, &[], &facts(&plan), None);
    assert_eq!(
        told(&status, "outrigger.dev/SidecarsSucceeded"),
        "False SidecarFailed: sidecars that failed: [s2 s3]"
    );
    assert_eq!(status.phase.as_deref(), Some("Succeeded"));
}

#[test]
fn a_published_result_stands_r5_20() {
    let plan = plan(spec("Never", &["a"]));
    let mut obs = observed(&plan);
    put(&plan, &mut obs, "a", "Rn");
    let previous = PodStatus { phase: Some("Failed".to_owned()), ..Default::default() };
    let status = pod_status(&plan, &obs, &[], &facts(&plan), Some(&previous));
    assert_eq!(status.phase.as_deref(), Some("Failed"));
}

#[test]
fn addresses_and_class_come_from_the_facts() {
    let status = status(&["a"], &[("a", "Rn")]);
    assert_eq!(status.pod_ip.as_deref(), Some("10.0.0.2"));
    assert_eq!(status.pod_ips.map(|ips| ips.len()), Some(2));
    assert_eq!(status.host_ip.as_deref(), Some("192.0.2.1"));
    assert_eq!(status.qos_class.as_deref(), Some("BestEffort"));
    assert_eq!(status.observed_generation, Some(1));
    let started = status.start_time.expect("a start time");
    assert_eq!(started.0.as_second(), 1_700_000_000);
    let a = &status.container_statuses.expect("statuses")[0];
    assert_eq!(a.container_id.as_deref(), Some("embedded://a"));
    assert_eq!((a.image.as_str(), a.image_id.as_str()), ("busybox:1", "sha256:1"));
}

#[test]
fn a_pod_ended_by_its_node_says_so_once() {
    let plan = plan(spec("Never", &["a"]));
    let mut obs = observed(&plan);
    put(&plan, &mut obs, "a", "T0");
    finish(&mut obs, StopCause::NodeShutdown);
    let first = pod_status(&plan, &obs, &[], &facts(&plan), None);
    let expect = "True TerminationByKubelet: Pod was terminated in response to imminent node shutdown.";
    assert_eq!(told(&first, "DisruptionTarget"), expect);
    let again = pod_status(&plan, &obs, &[], &facts(&plan), Some(&first));
    assert_eq!(again.conditions, first.conditions);

    // A condition that another writer has set is kept.
    finish(&mut obs, StopCause::Deleted);
    let gone = pod_status(&plan, &obs, &[], &facts(&plan), None);
    assert!(!gone.conditions.iter().flatten().any(|c| c.type_ == "DisruptionTarget"));
    let kept = pod_status(&plan, &obs, &[], &facts(&plan), Some(&first));
    assert_eq!(told(&kept, "DisruptionTarget"), expect);
}
