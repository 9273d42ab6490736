//! Stops and resumes a pod after the process that ran it has ended, with stored stop turns and a corrected
//! observation.

use crate::common::{annotated, planned, pod};
use outrigger_lifecycle::{Image, Observation, PodInput, State, Time, stop_turns};
use serde_json::{Value, json};

/// Name, `after`, `free_at_ms` and `kill_at_ms` of each container.
type Turn = (String, Vec<String>, Option<u64>, u64);

fn turns(input: &PodInput, grace_ms: u64) -> Vec<Turn> {
    let plan = planned(input);
    let name = |i: usize| plan.containers[i].name.clone();
    let turn = |(i, turn): (usize, outrigger_lifecycle::StopTurn)| {
        (name(i), turn.after.into_iter().map(name).collect(), turn.free_at_ms, turn.kill_at_ms)
    };
    stop_turns(&plan, grace_ms).into_iter().enumerate().map(turn).collect()
}

fn turn(name: &str, after: &[&str], free_at_ms: Option<u64>, kill_at_ms: u64) -> Turn {
    (name.to_owned(), after.iter().map(|n| (*n).to_owned()).collect(), free_at_ms, kill_at_ms)
}

fn sidecars(names: &[&str]) -> Value {
    names.iter().map(|name| json!({"name": name, "restartPolicy": "Always"})).collect()
}

#[test]
fn native_sidecars_wait_for_all_before_them_until_the_grace_ends_r3_22_r3_25() {
    let spec = json!({"initContainers": sidecars(&["s0", "s1"]), "containers": [{"name": "app"}]});
    let end = Some(10_000);
    assert_eq!(
        turns(&pod(spec), 10_000),
        [
            turn("s0", &["s1", "app"], end, 10_000),
            turn("s1", &["app"], end, 10_000),
            turn("app", &[], end, 10_000),
        ]
    );
}

#[test]
fn kep_sidecars_wait_for_the_mains_however_late() {
    let spec = json!({"containers": [
        {"name": "app"},
        {"name": "proxy", "lifecycle": {"type": "Sidecar"}},
    ]});
    assert_eq!(
        turns(&pod(spec), 10_000),
        [turn("app", &[], None, 10_000), turn("proxy", &["app"], None, 10_000)]
    );
}

#[test]
fn a_reserve_is_shared_among_the_later_stages_g24_g25() {
    let spec = json!({"initContainers": sidecars(&["s0", "s1", "s2"]), "containers": [{"name": "app"}]});
    let input = annotated(json!({"outrigger.dev/sidecar-grace": "6s"}), spec);
    let shared = |grace: u64, ends: [u64; 4]| {
        let [app, s2, s1, s0] = ends;
        assert_eq!(
            turns(&input, grace),
            [
                turn("s0", &["s1", "s2", "app"], None, s0),
                turn("s1", &["s2", "app"], None, s1),
                turn("s2", &["app"], None, s2),
                turn("app", &[], None, app),
            ],
            "grace {grace}"
        );
    };
    shared(10_000, [4_000, 6_000, 8_000, 10_000]);
    // With a shorter grace period, the mains have no time at all.
    shared(3_000, [0, 1_000, 2_000, 3_000]);
    shared(0, [0, 0, 0, 0]);
}

#[test]
fn a_grace_of_its_own_is_stored_with_the_turn_kd7() {
    let spec = json!({"initContainers": sidecars(&["s0"]), "containers": [{"name": "app"}]});
    let plan = planned(&annotated(json!({"outrigger.dev/stop-grace": "s0=1s"}), spec));
    let own: Vec<Option<u64>> = stop_turns(&plan, 10_000).iter().map(|turn| turn.own_grace_ms).collect();
    assert_eq!(own, [Some(1_000), None]);
    assert_eq!(plan.stop_window(0, 10_000).kill_ms_max, 11_000, "a second after the latest signal");
}

#[test]
fn a_start_that_never_happened_is_taken_back() {
    let plan = planned(&pod(json!({"containers": [{"name": "app"}]})));
    let fresh = Observation::new(&plan, Time(0));
    let with = |state: State| {
        let mut obs = fresh.clone();
        obs.containers[0].state = state;
        obs.take_back_start(0);
        obs.take_back_start(1);
        obs.containers[0].state
    };
    let running = State::Running { since: Time(5) };
    assert_eq!(with(State::Starting { since: Time(5) }), State::Waiting);
    assert_eq!(with(State::Unknown), State::Waiting);
    assert_eq!(with(running), running, "one that runs did start");
    assert_eq!(with(State::Exited), State::Exited);
}

#[test]
fn an_image_that_is_gone_is_looked_up_again() {
    let plan = planned(&pod(json!({"containers": [{"name": "app"}]})));
    let with = |image: Image| {
        let mut obs = Observation::new(&plan, Time(0));
        obs.containers[0].image = image;
        obs.forget_image(0);
        obs.forget_image(1);
        obs.containers[0].image.clone()
    };
    assert_eq!(with(Image::Present), Image::Unknown);
    assert_eq!(with(Image::Pulling), Image::Pulling, "it is being looked up");
}
