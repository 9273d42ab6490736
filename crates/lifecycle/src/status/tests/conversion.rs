//! Container statuses: 12.16 and section 5.5, and the visible states from the start to the end of a pod.
//!
//! Rows 1, 3, 10 and 11 of 12.16 are about records that vanished without the kubelet's knowledge. The
//! observation loses nothing. From these rows only one thing remains: a status does not change without an
//! event.

use std::sync::Arc;

use serde_json::json;

use super::super::fixtures::*;
use crate::action::Event;
use crate::plan::Plan;

/// Two mains; `b` restarts the whole pod when it exits with 42.
fn restart_all() -> Plan {
    let mut spec = spec("Never", &["a", "b"]);
    spec["containers"][1]["restartPolicy"] = json!("Never");
    spec["containers"][1]["restartPolicyRules"] = json!([{
        "action": "RestartAllContainers",
        "exitCodes": {"operator": "In", "values": [42]},
    }]);
    plan(spec)
}

#[test]
fn a_lost_container_is_unknown_until_it_is_replaced_12_16_row_2() {
    let mut life = Life::new(plan(spec("Always", &["a"])));
    assert_eq!(line(&life.status(), "a"), "running ready started rc=0");
    life.handle(Event::Lost { container: 0, attempt: 0 });
    assert_eq!(line(&life.status(), "a"), "terminated 137/ContainerStatusUnknown rc=0");
    life.exits("a", 137);
    assert_eq!(line(&life.status(), "a"), "running ready started rc=1 last=137/Error");
}

#[test]
fn a_restart_keeps_the_state_before_it_12_16_rows_3_and_4() {
    let mut life = Life::new(plan(spec("OnFailure", &["a", "b"])));
    life.exits("a", 0);
    assert_eq!(line(&life.status(), "a"), "terminated 0/Completed rc=0");
    life.after(60_000);
    assert_eq!(line(&life.status(), "a"), "terminated 0/Completed rc=0");
    life.exits("b", 3); // the first restart is immediate
    assert_eq!(line(&life.status(), "b"), "running ready started rc=1 last=3/Error");
}

#[test]
fn restart_all_12_16_rows_5_to_9() {
    let mut life = Life::new(restart_all());
    assert!(conditions(&life.status()).contains(&"AllContainersRestarting=False".to_owned()));
    life.exits("b", 42);
    let status = life.status(); // row 5: a is still being stopped
    assert_eq!(line(&status, "a"), "running ready started rc=0");
    assert_eq!(line(&status, "b"), "terminated 42/Error rc=0");
    assert_eq!(status.phase.as_deref(), Some("Running"));
    let restarting = "AllContainersRestarting=True RestartAllContainersStarted".to_owned();
    assert!(conditions(&status).contains(&restarting));
    life.exits("a", 143); // rows 6 to 8 are one step here: when the last container has ended, all start over
    let status = life.status();
    for name in ["a", "b"] {
        assert_eq!(line(&status, name), "running ready started rc=1 last=137/RestartingAllContainers");
    }
    life.exits("b", 1); // row 9
    assert_eq!(line(&life.status(), "b"), "terminated 1/Error rc=1 last=137/RestartingAllContainers");
}

#[test]
fn restart_all_that_has_to_wait_says_so_r2_43() {
    let mut life = Life::new(restart_all());
    life.exits("b", 42).exits("a", 143);
    life.after(1_000).exits("b", 42).exits("a", 143); // the second time there is a back-off (G-43)
    let status = life.status();
    assert_eq!(line(&status, "a"), "waiting RestartingAllContainers rc=1 last=143/Error");
    assert_eq!(waiting_message(&status, "a").as_deref(), Some("restarts with the whole pod in 10 s"));
    assert_eq!(status.phase.as_deref(), Some("Running"));
}

#[test]
fn containers_removed_by_restart_all_wait_for_their_turn_r2_43() {
    let mut spec = spec("Never", &["i", "a"]);
    spec["containers"][0]["restartPolicy"] = json!("Never");
    spec["containers"][0]["restartPolicyRules"] = json!([{
        "action": "RestartAllContainers",
        "exitCodes": {"operator": "In", "values": [42]},
    }]);
    let mut life = Life::new(plan(spec));
    life.exits("i", 0);
    life.status();
    life.exits("a", 42);
    let status = life.status();
    assert_eq!(line(&status, "i"), "running started rc=1 last=137/RestartingAllContainers");
    assert_eq!(line(&status, "a"), "waiting RestartingAllContainers rc=1 last=137/RestartingAllContainers");
    assert!(conditions(&status).contains(&"Initialized=True".to_owned()), "{:?}", conditions(&status));
}

#[test]
fn waiting_reasons_r5_41() {
    let mut life = Life::new(plan(spec("Always", &["i", "s", "a"])));
    let status = life.status();
    assert_eq!(line(&status, "i"), "running started rc=0"); // R5.60: a running init container is started
    assert_eq!(line(&status, "s"), "waiting PodInitializing rc=0");
    assert_eq!(line(&status, "a"), "waiting PodInitializing rc=0");
    assert_eq!(waiting_message(&status, "s").as_deref(), Some("waits for `i` to complete: it is running"));
    let obs = crate::Observation::new(&plan(spec("Always", &["a"])), T0);
    let plan = plan(spec("Always", &["a"]));
    let status = crate::pod_status(&plan, &obs, &[], &facts(&plan), None);
    assert_eq!(line(&status, "a"), "waiting ContainerCreating rc=0");
}

#[test]
fn crash_loops_show_for_every_role_and_code_g_51() {
    let crash = |names: &[&str], name: &str, code| {
        let mut life = Life::new(plan(spec("Always", names)));
        life.exits(name, code);
        life.after(1_000).exits(name, code);
        let status = life.status();
        (line(&status, name), waiting_message(&status, name).unwrap_or_default())
    };
    for (names, name, code, last) in [
        (&["a"][..], "a", 1, "1/Error"),
        (&["a"][..], "a", 0, "0/Completed"),
        (&["s", "a"][..], "s", 0, "0/Completed"),
        (&["s", "a"][..], "s", 7, "7/Error"),
        (&["i", "a"][..], "i", 7, "7/Error"),
    ] {
        let (line, message) = crash(names, name, code);
        assert_eq!(line, format!("waiting CrashLoopBackOff rc=1 last={last}"), "{name} {code}");
        let expect = format!("back-off 10s restarting failed container={name} pod=pod_default(u-1)");
        assert_eq!(message, expect);
    }
}

#[test]
fn image_failures_keep_or_change_their_reason() {
    let cases = [
        ("ErrImagePull", "ImagePullBackOff", "Back-off pulling image \"busybox:1\": ErrImagePull: no route"),
        ("InvalidImageName", "InvalidImageName", "no route"),
        ("ErrImageNeverPull", "ErrImageNeverPull", "no route"),
    ];
    for (reason, shown, message) in cases {
        let plan = plan(spec("Always", &["i", "a"]));
        let mut obs = observed(&plan);
        put(&plan, &mut obs, "i", "Rn");
        obs.apply(
            &plan,
            &Event::ImageFailed {
                container: 1,
                reason: reason.into(),
                message: "no route".into(),
                cause: None,
            },
            T0,
        );
        let mut life = Life::new(plan.clone());
        life.engine = crate::Engine::resume(plan.clone(), obs);
        life.after(0);
        // While a gate is closed, the state of the image is not reported.
        assert_eq!(line(&life.status(), "a"), "waiting PodInitializing rc=0", "{reason}");
        life.exits("i", 0);
        let status = life.status();
        assert_eq!(line(&status, "a"), format!("waiting {shown} rc=0"));
        assert_eq!(waiting_message(&status, "a").as_deref(), Some(message));
        // Another attempt in progress does not change the status.
        let mut obs = life.engine.observation().clone();
        obs.containers[1].image = crate::Image::Pulling;
        let waits = [(1, crate::Wait::Image)];
        let again = crate::pod_status(&plan, &obs, &waits, &facts(&plan), Some(&status));
        assert_eq!(line(&again, "a"), format!("waiting {shown} rc=0"));
    }
}

#[test]
fn refused_starts_show_the_runtimes_word() {
    let plan = plan(spec("Never", &["a"]));
    let mut obs = observed(&plan);
    obs.mark(&plan, &crate::Action::Start { container: 0, attempt: 0 }, T0);
    let reason: Arc<str> = "CreateContainerConfigError".into();
    let failed =
        Event::StartFailed { container: 0, attempt: 0, reason, message: "runs as root".into(), cause: None };
    obs.apply(&plan, &failed, T0);
    let status = crate::pod_status(&plan, &obs, &[], &facts(&plan), None);
    assert_eq!(line(&status, "a"), "waiting CreateContainerConfigError rc=0");
    assert_eq!(waiting_message(&status, "a").as_deref(), Some("runs as root"));
    assert_eq!(status.phase.as_deref(), Some("Pending"));
}

#[test]
fn a_container_is_up_when_its_hook_is_done_and_names_a_failed_one() {
    let mut spec = spec("Always", &["a"]);
    spec["containers"][0]["lifecycle"] = json!({"postStart": {"exec": {"command": ["true"]}}});
    let mut life = Life::new(plan(spec));
    let status = life.status();
    assert_eq!(line(&status, "a"), "waiting ContainerCreating rc=0");
    assert_eq!(status.phase.as_deref(), Some("Pending"));
    let hook = crate::HookKind::PostStart;
    life.handle(Event::HookEnded { container: 0, attempt: 0, hook, error: Some("exit code 1".into()) });
    life.exits("a", 143); // it was stopped for that, and the first restart is immediate
    life.handle(Event::HookEnded { container: 0, attempt: 1, hook, error: Some("exit code 1".into()) });
    life.exits("a", 143);
    let status = life.status();
    assert_eq!(line(&status, "a"), "waiting PostStartHookError rc=1 last=143/Error");
    assert_eq!(waiting_message(&status, "a").as_deref(), Some("exit code 1"));
}

#[test]
fn statuses_stay_live_during_a_stop_g_49() {
    let mut life = Life::new(plan(spec("Always", &["a", "b"])));
    life.delete().exits("b", 0);
    let status = life.status();
    assert_eq!(line(&status, "a"), "running ready started rc=0");
    assert_eq!(line(&status, "b"), "terminated 0/Completed rc=0");
    assert_eq!(status.phase.as_deref(), Some("Running")); // G-31
    life.exits("a", 0);
    assert_eq!(life.status().phase.as_deref(), Some("Succeeded"));
}

#[test]
fn a_crash_loop_cut_off_ends_terminated_as_on_the_kubelet() {
    let mut life = Life::new(plan(spec("Always", &["s", "a"])));
    life.handle(Event::Probed {
        container: 0,
        attempt: 0,
        kind: crate::ProbeKind::Startup,
        outcome: crate::ProbeOutcome::Success,
        message: None,
        cause: None,
    });
    life.exits("s", 1).exits("s", 1);
    assert_eq!(line(&life.status(), "s"), "waiting CrashLoopBackOff rc=1 last=1/Error");
    life.delete().exits("a", 0);
    let status = life.status(); // tests/conformance/golden/stop-during-crashloop.json
    assert_eq!(line(&status, "s"), "terminated 1/Error rc=1 last=1/Error");
    assert_eq!(status.phase.as_deref(), Some("Succeeded"));
    assert!(conditions(&status).contains(&"outrigger.dev/SidecarsSucceeded=False SidecarFailed".to_owned()));
}

#[test]
fn lists_are_ordered_as_kubernetes_orders_them_r5_51() {
    let mut life = Life::new(plan(spec("Always", &["i2", "s9", "i1", "z", "b", "a"])));
    let status = life.status();
    let names = |list: &Option<Vec<k8s_openapi::api::core::v1::ContainerStatus>>| -> Vec<String> {
        list.iter().flatten().map(|s| s.name.clone()).collect()
    };
    assert_eq!(names(&status.init_container_statuses), ["i2", "s9", "i1"]);
    assert_eq!(names(&status.container_statuses), ["a", "b", "z"]);
}
