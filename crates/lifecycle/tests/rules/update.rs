//! Updates of a running pod (R8.30, R2.5, R2.10, E001 to E121) and requested restarts.

use crate::common::{Play, annotated, input, planned, pod, refused};
use outrigger_lifecycle::{
    CannotRestart, CannotUpdate, Change, Event, ExitReason, KillReason, Observation, PodInput, State, Time,
    changes, phase,
};
use serde_json::{Value, json};

fn image(name: &str, image: &str) -> Value {
    json!({"name": name, "image": image})
}

fn sidecar(name: &str, image: &str) -> Value {
    json!({"name": name, "image": image, "restartPolicy": "Always"})
}

/// A pod with an init container, a sidecar and two mains, with these images.
fn web(init: &str, side: &str, one: &str, two: &str) -> PodInput {
    pod(json!({
        "restartPolicy": "Never",
        "initContainers": [image("setup", init), sidecar("proxy", side)],
        "containers": [image("one", one), image("two", two)],
    }))
}

/// The same pod, with everything running.
fn running() -> Play {
    let mut play = Play::of(&web("i:1", "s:1", "a:1", "b:1"));
    play.exit("setup", 0);
    play.log.clear();
    play
}

#[test]
fn an_image_that_changes_restarts_its_container_alone_whatever_its_policy() {
    // R2.10; E001, E051, E072, E093: the pod's policy is Never.
    for (changed, name) in
        [(web("i:1", "s:1", "a:2", "b:1"), "one"), (web("i:1", "s:2", "a:1", "b:1"), "proxy")]
    {
        let mut play = running();
        let found = play.update(&changed).unwrap();
        let container = play.engine.plan().find(name).unwrap();
        assert!(matches!(&found[..], [Change::Image { container: c, .. }] if *c == container), "{found:?}");
        assert_eq!(play.log, [format!("term {name}")]);
        assert_eq!(play.container(name).kill.unwrap().reason, KillReason::ImageChanged);
        play.exit(name, 0);
        assert_eq!(play.log, [format!("term {name}"), format!("start {name}")]);
        let restarts: Vec<u32> = play.engine.observation().containers.iter().map(|c| c.restarts).collect();
        let expected: Vec<u32> = (0..4).map(|i| u32::from(i == container)).collect();
        assert_eq!(restarts, expected, "counted as a restart, of nobody else");
    }
}

#[test]
fn the_old_container_runs_until_the_new_image_is_there() {
    let mut play = running();
    play.late = play.engine.plan().find("one");
    play.update(&web("i:1", "s:1", "a:2", "b:1")).unwrap();
    assert!(play.log.is_empty() && matches!(play.container("one").state, State::Running { .. }));
    play.image_arrives("one");
    assert_eq!(play.log, ["term one"]);
}

#[test]
fn init_containers_do_not_look_back() {
    // R2.5, E029: init containers that have completed ignore the new image. E004: one is still running, and
    // the others use the new image when they start.
    let mut play = running();
    play.update(&web("i:2", "s:1", "a:1", "b:1")).unwrap();
    assert!(play.log.is_empty(), "{:?}", play.log);
    assert_eq!(play.container("setup").restarts, 0);

    let mut play = Play::of(&web("i:1", "s:1", "a:1", "b:1"));
    play.update(&web("i:2", "s:1", "a:2", "b:1")).unwrap();
    assert_eq!(play.log, ["start setup"]);
    play.exit("setup", 0);
    assert_eq!(play.log, ["start setup", "start proxy", "start one", "start two"]);
    assert!(play.engine.observation().containers.iter().all(|c| c.restarts == 0));
}

#[test]
fn an_image_that_changes_in_a_stop_changes_nothing() {
    // E031, E121.
    let mut play = running();
    play.event(Event::StopRequested { grace_ms: None });
    assert_eq!(play.log, ["term one", "term two"]);
    play.update(&web("i:2", "s:2", "a:2", "b:2")).unwrap();
    play.exit("one", 0);
    play.exit("two", 0);
    play.exit("proxy", 0);
    assert_eq!(play.log, ["term one", "term two", "term proxy"]);
    assert!(play.engine.observation().over);
}

#[test]
fn a_container_in_back_off_is_started_at_once_with_its_new_image() {
    // R1.64.
    let crashing = |tag: &str| pod(json!({"containers": [image("app", tag)]}));
    let mut play = Play::of(&crashing("a:1"));
    play.exit("app", 1);
    play.exit("app", 1);
    assert_eq!(play.log, ["start app", "start app"], "the second restart waits");
    play.update(&crashing("a:2")).unwrap();
    assert_eq!(play.log, ["start app", "start app", "start app"]);
}

#[test]
fn ephemeral_containers_can_be_added_and_run_once() {
    // R1.10, R4.12, 12.4 rows 2 to 5.
    let with = |debug: Value| {
        let mut spec = json!({
            "restartPolicy": "Always",
            "initContainers": [image("setup", "i:1"), sidecar("proxy", "s:1")],
            "containers": [image("one", "a:1")],
        });
        spec["ephemeralContainers"] = debug;
        pod(spec)
    };
    let mut play = Play::of(&with(json!([])));
    assert_eq!(play.log, ["start setup"]);
    let found = play.update(&with(json!([image("debug", "d:1")]))).unwrap();
    assert_eq!(found, [Change::Added { container: 3 }]);
    assert_eq!(play.log, ["start setup", "start debug"], "it does not wait for the init containers");
    play.exit("debug", 1);
    assert_eq!(play.log.len(), 2, "{:?}", play.log);
    play.update(&with(json!([image("debug", "d:1"), image("more", "d:1")]))).unwrap();
    assert_eq!(play.log[2..], ["start more"]);
    play.exit("setup", 0);
    play.log.clear();
    play.event(Event::StopRequested { grace_ms: None });
    assert_eq!(play.log, ["term one", "term more"]);
    play.exit("one", 0);
    assert_eq!(play.log, ["term one", "term more", "term proxy"], "sidecars do not wait for it (R3.28)");
    play.exit("proxy", 0);
    play.exit("more", 0);
    assert!(play.engine.observation().over);
    // Its own failure does not count (R4.12).
    assert_eq!(phase(play.engine.plan(), play.engine.observation()).name(), "Succeeded");
}

#[test]
fn a_new_grace_period_holds_for_what_begins_after_it() {
    // G-16: a stop that has begun can only end sooner.
    let of = |grace: u64| {
        pod(json!({"terminationGracePeriodSeconds": grace, "containers": [image("app", "a:1")]}))
    };
    let mut play = Play::of(&of(30));
    assert_eq!(play.update(&of(5)).unwrap(), [Change::Grace { from_ms: 30_000, to_ms: 5_000 }]);
    play.event(Event::StopRequested { grace_ms: None });
    assert_eq!(play.container("app").kill.unwrap().deadline, play.now + 5_000);
    play.update(&of(60)).unwrap();
    assert_eq!(play.engine.observation().stop.unwrap().deadline, play.now + 5_000);
}

#[test]
fn a_new_deadline_counts_from_the_beginning_of_the_pod() {
    let of = |seconds: Option<u64>| {
        pod(json!({"activeDeadlineSeconds": seconds, "containers": [image("app", "a:1")]}))
    };
    let mut play = Play::of(&of(Some(100)));
    play.now = play.now + 20_000;
    assert_eq!(play.update(&of(None)).unwrap(), [Change::Deadline { from_ms: Some(100_000), to_ms: None }]);
    play.now = play.now + 200_000;
    play.settle();
    assert_eq!(play.log, ["start app"], "there is none any more");
    play.update(&of(Some(50))).unwrap();
    assert_eq!(play.log, ["start app", "stop DeadlineExceeded", "term app"], "it is over already");
}

#[test]
fn everything_else_is_another_pod() {
    let old = planned(&web("i:1", "s:1", "a:1", "b:1"));
    let spec = |mains: Value| {
        let inits = json!([image("setup", "i:1"), sidecar("proxy", "s:1")]);
        pod(json!({"restartPolicy": "Never", "initContainers": inits, "containers": mains}))
    };
    let probed = json!({"name": "one", "image": "a:2", "readinessProbe": {"exec": {"command": ["true"]}}});
    for (new, expected) in [
        (spec(json!([image("one", "a:1")])), CannotUpdate::Containers),
        (spec(json!([image("two", "b:1"), image("one", "a:1")])), CannotUpdate::Containers),
        (
            spec(json!([image("one", "a:1"), image("two", "b:1"), image("three", "c:1")])),
            CannotUpdate::Containers,
        ),
        (spec(json!([probed, image("two", "b:1")])), CannotUpdate::Container { name: "one".into() }),
    ] {
        assert_eq!(changes(&old, &planned(&new)), Err(expected));
    }
    let limited = pod(json!({
        "containers": [image("app", "a:1")], "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Mi"}}],
    }));
    let plain = planned(&pod(json!({"containers": [image("app", "a:1")]})));
    assert_eq!(changes(&plain, &planned(&limited)), Err(CannotUpdate::Pod));
    let debug = pod(json!({"containers": [image("app", "a:1")], "ephemeralContainers": [image("d", "d:1")]}));
    assert_eq!(changes(&planned(&debug), &plain), Err(CannotUpdate::Containers), "one cannot be removed");
    assert_eq!(changes(&old, &old), Ok(Vec::new()));
}

#[test]
fn a_tag_that_is_looked_for_at_every_start_can_replace_one_that_is_not() {
    let of = |tag: &str, pull: &str| {
        pod(json!({"containers": [{"name": "app", "image": tag, "imagePullPolicy": pull}]}))
    };
    let old = planned(&of("a:1", "IfNotPresent"));
    assert_eq!(changes(&old, &planned(&of("a:latest", "Always"))).unwrap().len(), 1);
    let alone = changes(&old, &planned(&of("a:1", "Always")));
    assert_eq!(alone, Err(CannotUpdate::Container { name: "app".into() }));
}

// Restarts.

#[test]
fn one_container_is_restarted_whatever_its_policy() {
    let mut play = running();
    assert_eq!(play.restart(Some("one")), Ok(()));
    assert_eq!(play.log, ["term one"]);
    assert_eq!(play.container("one").kill.unwrap().reason, KillReason::Restart);
    play.exit("one", 0);
    assert_eq!(play.log, ["term one", "start one"]);
    assert_eq!((play.container("one").restarts, play.container("two").restarts), (1, 0));
    play.exit("one", 0);
    assert_eq!(play.log.len(), 2, "its policy holds again");
}

#[test]
fn a_restart_ends_the_wait_for_a_crashing_container() {
    let mut play = Play::of(&pod(json!({"containers": [image("app", "a:1")]})));
    play.exit("app", 1);
    play.exit("app", 1);
    assert_eq!(play.log, ["start app", "start app"]);
    play.restart(Some("app")).unwrap();
    assert_eq!(play.log, ["start app", "start app", "start app"]);
}

#[test]
fn all_containers_are_restarted_in_order_from_the_first_init_container() {
    let mut play = running();
    play.exit("two", 0);
    assert_eq!(play.restart(None), Ok(()));
    assert_eq!(play.log, ["term one"]);
    play.exit("one", 0);
    assert_eq!(play.log, ["term one", "term proxy"]);
    play.exit("proxy", 0);
    assert_eq!(play.log, ["term one", "term proxy", "start setup"]);
    play.exit("setup", 0);
    assert_eq!(play.log[3..], ["start proxy", "start one", "start two"]);
    let restarts: Vec<u32> = play.engine.observation().containers.iter().map(|c| c.restarts).collect();
    assert_eq!(restarts, [1, 1, 1, 1]);
    // The actual exit is reported, not the text of a restart rule.
    assert_eq!(play.container("one").last_exit.as_ref().unwrap().reason, ExitReason::Completed);
    assert!(!play.engine.observation().restart_requested);
}

#[test]
fn what_cannot_be_restarted_says_why() {
    let mut play = running();
    play.exit("two", 0);
    for (name, expected) in [
        ("setup", CannotRestart::RunsOnce { name: "setup".into(), role: "an init container" }),
        ("two", CannotRestart::Ended { name: "two".into() }),
    ] {
        assert_eq!(play.restart(Some(name)), Err(expected));
    }
    assert_eq!(play.engine.can_restart(Some(99)), Err(CannotRestart::Unknown));
    assert!(play.log.is_empty(), "{:?}", play.log);
    play.event(Event::StopRequested { grace_ms: None });
    assert_eq!(play.restart(None), Err(CannotRestart::Stopping));
    assert_eq!(play.log, ["term one"]);
}

// Init containers that are run once (G-48).

fn migrated() -> PodInput {
    annotated(
        json!({"outrigger.dev/run-once": "migrate"}),
        json!({"initContainers": [image("migrate", "m:1"), image("setup", "i:1")], "containers": [image("app", "a:1")]}),
    )
}

#[test]
fn an_init_container_that_is_run_once_is_not_run_again_with_a_new_sandbox() {
    let mut play = Play::of(&migrated());
    play.exit("migrate", 0);
    play.exit("setup", 0);
    assert_eq!(play.log, ["start migrate", "start setup", "start app"]);
    play.exit("app", 137);
    play.event(Event::SandboxLost);
    assert_eq!(play.log[3..], ["start app", "kill app", "start setup"], "R2.53 for all the others");
    play.exit("setup", 0);
    assert_eq!(play.log[6..], ["start app"]);
    assert_eq!(play.container("migrate").restarts, 0);
}

#[test]
fn one_that_has_not_completed_is_run_again() {
    let mut play = Play::of(&migrated());
    play.exit("migrate", 1);
    play.event(Event::SandboxLost);
    assert_eq!(play.log, ["start migrate", "start migrate", "kill migrate", "start migrate"]);
}

#[test]
fn a_pod_that_begins_after_a_shutdown_knows_what_was_run_once() {
    let plan = planned(&migrated());
    let mut before = Play::new(plan.clone());
    before.exit("migrate", 0);
    before.exit("setup", 0);
    before.event(Event::NodeShutdown { grace_ms: 1_000 });
    before.exit("app", 0);
    let obs = Observation::after_shutdown(&plan, before.engine.observation(), Time(5));
    let fresh = Observation::new(&plan, Time(5));
    assert_eq!(obs.containers[1..], fresh.containers[1..]);
    assert!(obs.containers[0].was_completed && obs.stop.is_none() && !obs.over);
    // An observation of another pod is not reused.
    let other = planned(&pod(json!({"containers": [image("app", "a:1")]})));
    assert_eq!(Observation::after_shutdown(&other, before.engine.observation(), Time(5)).containers.len(), 1);
}

#[test]
fn only_init_containers_can_be_run_once() {
    for name in ["app", "proxy", "nobody"] {
        let input = input(json!({
            "metadata": {"name": "p", "annotations": {"outrigger.dev/run-once": format!("setup, {name}")}},
            "spec": {
                "initContainers": [image("setup", "i:1"), sidecar("proxy", "s:1")],
                "containers": [image("app", "a:1")],
            },
        }));
        let found = refused(&input);
        assert_eq!(found.len(), 1);
        assert!(
            found[0].message.contains(name) && found[0].hint.as_deref().unwrap().contains("setup"),
            "{found:?}"
        );
    }
    // Without init containers there is no name to suggest, so the hint is a different one.
    let without = annotated(
        json!({"outrigger.dev/run-once": "app"}),
        json!({"initContainers": [sidecar("proxy", "s:1")], "containers": [image("app", "a:1")]}),
    );
    let found = refused(&without);
    assert_eq!(found.len(), 1);
    assert!(found[0].hint.as_deref().unwrap().ends_with("remove the annotation"), "{found:?}");
}
