//! Rules for rare situations. Each test fails if one condition, number or match arm of the engine is changed.

use crate::common::{Play, annotated, exit, input, planned, pod, refused};
use outrigger_lifecycle::{
    Action, Decision, Engine, Event, FeatureGates, Gate, Hook, HookKind, Image, KillReason, Need,
    Observation, PodInput, PreStopWhen, ProbeKind, Role, SandboxState, State, Time, Wait, phase, plan, rules,
};
use serde_json::{Value, json};

const DEPENDS_ON: &str = "outrigger.dev/depends-on";
const PRIORITY: &str = "KRUISE_CONTAINER_PRIORITY";
const KILL: &str = "KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT";

fn c(name: &str) -> Value {
    json!({"name": name})
}

fn native(name: &str) -> Value {
    json!({"name": name, "restartPolicy": "Always"})
}

fn kep(name: &str) -> Value {
    json!({"name": name, "lifecycle": {"type": "Sidecar"}})
}

fn env(name: &str, variable: &str, value: &str) -> Value {
    json!({"name": name, "env": [{"name": variable, "value": value}]})
}

fn hooked(mut c: Value, hook: &str) -> Value {
    c["lifecycle"][hook] = json!({"exec": {"command": ["true"]}});
    c
}

fn probed(mut c: Value, kind: &str) -> Value {
    c[kind] = json!({"exec": {"command": ["true"]}, "periodSeconds": 1, "failureThreshold": 1});
    c
}

fn graph(text: &str, spec: Value) -> PodInput {
    annotated(json!({DEPENDS_ON: text}), spec)
}

fn phase_of(play: &Play) -> &'static str {
    phase(play.engine.plan(), play.engine.observation()).name()
}

/// The engine without a runtime: all events come from the test.
struct Bare {
    engine: Engine,
    now: Time,
    out: Decision,
}

impl Bare {
    fn of(input: &PodInput) -> Bare {
        let mut bare = Bare {
            engine: Engine::new(planned(input), Time(1_000)),
            now: Time(1_000),
            out: Decision::default(),
        };
        bare.step();
        bare
    }

    /// The actions that are requested now.
    fn step(&mut self) -> Vec<Action> {
        self.engine.step(self.now, &mut self.out);
        self.out.actions.clone()
    }

    fn tell(&mut self, event: Event) -> Vec<Action> {
        self.engine.handle(&event, self.now);
        self.step()
    }

    fn pass(&mut self, ms: u64) -> Vec<Action> {
        self.now = self.now + ms;
        self.step()
    }

    /// The pod after its sandbox and images are ready.
    fn ready(input: &PodInput) -> Bare {
        let mut bare = Bare::of(input);
        for container in 0..bare.engine.plan().containers.len() {
            bare.tell(Event::ImageReady { container });
        }
        bare.tell(Event::SandboxReady);
        bare
    }

    fn obs(&self) -> &Observation {
        self.engine.observation()
    }
}

// Failed attempts.

#[test]
fn a_sandbox_that_cannot_be_made_is_tried_again_more_and_more_slowly() {
    let failed = || Event::SandboxFailed { message: "no".into(), cause: None };
    let mut bare = Bare::of(&pod(json!({"containers": [c("a")]})));
    let created = |actions: &[Action]| actions.iter().any(|a| matches!(a, Action::CreateSandbox { .. }));
    for wait in [500, 1_000, 2_000] {
        assert!(!created(&bare.tell(failed())));
        assert_eq!(bare.out.wake, Some(bare.now + wait));
        // A repeated event changes nothing.
        bare.tell(failed());
        assert_eq!(bare.out.wake, Some(bare.now + wait));
        assert!(!created(&bare.pass(wait - 1)) && created(&bare.pass(1)), "after {wait} ms");
    }
}

#[test]
fn a_start_that_is_refused_is_tried_again_more_and_more_slowly() {
    let mut bare = Bare::ready(&pod(json!({"containers": [c("a")]})));
    let started = |actions: &[Action]| actions.iter().any(|a| matches!(a, Action::Start { .. }));
    for wait in [500, 1_000, 2_000] {
        let refused = Event::StartFailed {
            container: 0,
            attempt: 0,
            reason: "r".into(),
            message: "m".into(),
            cause: None,
        };
        assert!(!started(&bare.tell(refused)));
        assert_eq!(bare.out.wait_of(0), Some(Wait::StartRetry { at: bare.now + wait }));
        assert!(!started(&bare.pass(wait - 1)) && started(&bare.pass(1)), "after {wait} ms");
    }
}

#[test]
fn an_image_that_cannot_be_pulled_is_pulled_again_r1_69() {
    let mut bare = Bare::of(&pod(json!({"containers": [c("a")]})));
    let pulled = |actions: &[Action]| actions.contains(&Action::Pull { container: 0 });
    bare.tell(Event::ImageFailed {
        container: 0,
        reason: "ErrImagePull".into(),
        message: "m".into(),
        cause: None,
    });
    assert!(!pulled(&bare.pass(9_999)) && pulled(&bare.pass(1)));
}

/// R1.7 lets a main start beside one whose image cannot be pulled. That image is pulled again after a while
/// (R1.69). This does not affect a main that has run, which restarts at once (R1.60).
#[test]
fn a_main_that_has_run_does_not_wait_for_the_image_of_another_r1_7() {
    let mut p = Play::of_late(&pod(json!({"containers": [c("late"), c("second")]})), "late");
    assert_eq!(p.log(), [""; 0], "it is not its turn yet (R1.5)");
    let failed =
        Event::ImageFailed { container: 0, reason: "ErrImagePull".into(), message: "m".into(), cause: None };
    p.event(failed);
    assert_eq!(p.log(), ["start second"]);
    p.pass(10_000);
    assert_eq!(p.container("late").image, Image::Pulling);
    p.exit("second", 1);
    assert_eq!(p.log(), ["start second"]);
}

// Restarts of the whole pod.

#[test]
fn only_its_own_rule_restarts_all_r2_40() {
    let ruled = |action: &str| {
        let mut main = probed(json!({"name": "main", "restartPolicy": "Never"}), "livenessProbe");
        main["restartPolicyRules"] =
            json!([{"action": action, "exitCodes": {"operator": "In", "values": [42]}}]);
        pod(json!({"restartPolicy": "Never", "containers": [main, c("other")]}))
    };
    for (action, code, all) in
        [("Restart", 42, false), ("RestartAllContainers", 42, true), ("RestartAllContainers", 1, false)]
    {
        let mut p = Play::of(&ruled(action));
        p.exit("main", code);
        assert_eq!(p.log.contains(&"term other".to_owned()), all, "{action} {code}");
    }
    // A container that was killed did not exit by itself, even with a matching code.
    let mut p = Play::of(&ruled("RestartAllContainers"));
    p.probed("main", ProbeKind::Liveness, true);
    p.pass(1_000);
    p.probed("main", ProbeKind::Liveness, false);
    p.log();
    p.exit("main", 42);
    assert!(!p.log().contains(&"term other".to_owned()));
}

/// A container whose restart was refused before everything starts over has still run, so the next instance
/// gets a new number.
#[test]
fn numbers_are_not_used_twice_when_everything_begins_again() {
    let mut bare = Bare::ready(&pod(json!({"containers": [c("a")]})));
    bare.tell(Event::Started { container: 0, attempt: 0 });
    bare.tell(Event::Exited { container: 0, attempt: 0, exit: exit(1, bare.now) });
    bare.tell(Event::StartFailed {
        container: 0,
        attempt: 1,
        reason: "r".into(),
        message: "m".into(),
        cause: None,
    });
    let before = bare.obs().containers[0].restarts;
    bare.tell(Event::SandboxLost);
    assert_eq!((bare.obs().containers[0].attempt, bare.obs().containers[0].restarts), (2, before + 1));
}

#[test]
fn the_phase_of_a_pod_that_begins_again_is_pending_until_its_init_containers_are_done() {
    let init = json!({"name": "i", "imagePullPolicy": "Always"});
    let mut p = Play::of(&pod(
        json!({"restartPolicy": "OnFailure", "initContainers": [init], "containers": [c("a"), c("b")]}),
    ));
    p.exit("i", 0);
    p.exit("a", 0);
    assert_eq!(phase_of(&p), "Running");
    p.late = Some(0);
    p.engine.handle(&Event::SandboxLost, p.now);
    p.settle();
    assert_eq!((p.container("i").state, p.container("b").state), (State::Waiting, State::Waiting));
    assert_eq!(phase_of(&p), "Pending");
}

#[test]
fn the_phase_while_a_failed_init_container_ends_the_pod_is_pending_g31() {
    let mut main = json!({"name": "main", "restartPolicy": "Never"});
    main["restartPolicyRules"] =
        json!([{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}]);
    let mut p = Play::of(&pod(
        json!({"restartPolicy": "Never", "initContainers": [native("s"), c("i")], "containers": [main]}),
    ));
    p.exit("i", 0);
    p.exit("main", 42);
    p.exit("s", 0);
    assert!(p.log().ends_with(&["start s".to_owned(), "start i".to_owned()]));
    p.exit("i", 1);
    assert!(p.log().contains(&"term s".to_owned()));
    assert_eq!(phase_of(&p), "Pending", "the mains have run before, the init container has failed now");
}

#[test]
fn a_helper_that_never_started_keeps_the_pod_pending_r5_4() {
    let spec = json!({"restartPolicy": "Never", "containers": [c("main"), env("helper", KILL, "true")]});
    let mut p = Play::of_late(&pod(spec), "helper");
    assert!(matches!(p.container("main").state, State::Running { .. }));
    assert_eq!(phase_of(&p), "Pending");
    p.image_arrives("helper");
    assert_eq!(phase_of(&p), "Running");
    assert_eq!(outrigger_lifecycle::Phase::Failed.to_string(), "Failed");
}

// A crash of the observer.

#[test]
fn what_was_under_way_in_a_crash_is_under_way_no_more() {
    let input = pod(json!({"containers": [hooked(c("a"), "postStart"), c("b")]}));
    let plan = planned(&input);
    let mut obs = Observation::new(&plan, Time(0));
    obs.sandbox.state = SandboxState::Creating;
    obs.containers[0].image = Image::Pulling;
    obs.containers[0].post_start = Hook::Running { since: Time(0) };
    obs.containers[1].image = Image::Present;
    obs.recover();
    assert_eq!(obs.sandbox.state, SandboxState::Absent);
    assert_eq!((&obs.containers[0].image, &obs.containers[1].image), (&Image::Unknown, &Image::Present));
    assert!(obs.containers[0].was_launched && !obs.containers[1].was_launched);
    obs.sandbox.state = SandboxState::Ready;
    obs.recover();
    assert_eq!(obs.sandbox.state, SandboxState::Ready);
}

// Starts and gates.

#[test]
fn started_is_not_ready() {
    let mut p =
        Play::of(&pod(json!({"initContainers": [c("i")], "containers": [probed(c("a"), "readinessProbe")]})));
    assert_eq!(p.wait("i"), None, "nobody waits for an init container to be ready");
    p.exit("i", 0);
    assert!(p.container("a").was_started && !p.container("a").was_ready);
    assert_eq!(p.wait("a"), Some(Wait::ReadinessProbe));
    p.probed("a", ProbeKind::Readiness, true);
    assert!(p.container("a").was_ready);
    assert_eq!(p.wait("a"), None);
}

/// A container that succeeds before it counts as started opens the gate. One that fails does not.
#[test]
fn a_gate_for_started_looks_at_how_it_ended() {
    for (code, log) in [(0, "start app"), (1, "stop GateNeverOpens { container: 1, on: 0 }")] {
        let mut p = Play::of(&graph(
            "app: setup started",
            json!({"restartPolicy": "Never", "containers": [probed(c("setup"), "startupProbe"), c("app")]}),
        ));
        p.log();
        p.exit("setup", code);
        assert_eq!(p.log()[0], log, "exit {code}");
    }
}

#[test]
fn a_gate_of_every_start_asks_for_now() {
    let mut bare = Bare::ready(&graph("b: a", json!({"containers": [c("a"), c("b")]})));
    bare.tell(Event::Started { container: 0, attempt: 0 });
    bare.tell(Event::Exited { container: 0, attempt: 0, exit: exit(1, bare.now) });
    let gate = bare.engine.plan().containers[1].gates[0];
    let open = |gate: &Gate| rules::gate_open(bare.engine.plan(), bare.obs(), 1, gate);
    assert_eq!((gate.need, open(&gate)), (Need::Started, true));
    assert!(!open(&Gate { every_start: true, ..gate }));
}

/// A gate stays open for containers that wait for the same state of the same container.
#[test]
fn a_gate_stays_open_for_those_who_wait_for_the_same() {
    let proxy = || probed(c("proxy"), "readinessProbe");
    let late = || json!({"name": "late"});
    // The container that passed the gate has already exited.
    let mut p = Play::of_late(
        &graph(
            "app: proxy ready; late: proxy ready",
            json!({"restartPolicy": "Never", "containers": [proxy(), c("app"), late()]}),
        ),
        "late",
    );
    p.probed("proxy", ProbeKind::Readiness, true);
    p.exit("app", 0);
    p.exit("proxy", 1);
    p.log();
    p.image_arrives("late");
    assert_eq!(p.log(), ["start late"]);
    // The container that passed the gate is being started.
    let input = graph(
        "app: proxy ready; late: proxy ready",
        json!({"restartPolicy": "Never", "containers": [proxy(), c("app"), late()]}),
    );
    let mut bare = Bare::ready(&input);
    bare.tell(Event::Started { container: 0, attempt: 0 });
    bare.engine.handle(&Event::ImageChanged { container: 2 }, bare.now);
    bare.tell(Event::Probed {
        container: 0,
        attempt: 0,
        kind: ProbeKind::Readiness,
        outcome: outrigger_lifecycle::ProbeOutcome::Success,
        message: None,
        cause: None,
    });
    assert!(matches!(bare.obs().containers[1].state, State::Starting { .. }));
    let actions = bare.tell(Event::Exited { container: 0, attempt: 0, exit: exit(1, bare.now) });
    assert!(!actions.iter().any(|a| matches!(a, Action::BeginStop { .. })), "{actions:?}");
    // A gate for another state of the same container is another gate.
    let mut p = Play::of_late(
        &graph(
            "app: proxy started; late: proxy ready",
            json!({"restartPolicy": "Never", "containers": [proxy(), c("app"), late()]}),
        ),
        "late",
    );
    p.exit("proxy", 1);
    assert!(p.log().contains(&"stop GateNeverOpens { container: 2, on: 0 }".to_owned()));
}

/// A container that is being started has passed its gates, so nothing that happens to the others matters.
#[test]
fn a_start_under_way_is_not_hopeless() {
    let input = annotated(
        json!({"outrigger.dev/fence": "start"}),
        json!({"restartPolicy": "Never", "containers": [c("app"), kep("proxy")]}),
    );
    let mut bare = Bare::ready(&input);
    bare.tell(Event::Started { container: 1, attempt: 0 });
    assert!(matches!(bare.obs().containers[0].state, State::Starting { .. }));
    let actions = bare.tell(Event::Exited { container: 1, attempt: 0, exit: exit(1, bare.now) });
    assert!(!actions.iter().any(|a| matches!(a, Action::BeginStop { .. })), "{actions:?}");
}

#[test]
fn a_deadline_of_the_pod_is_woken_for() {
    let mut p = Play::of(&pod(json!({"activeDeadlineSeconds": 60, "containers": [c("a")]})));
    p.log();
    assert_eq!(p.out.wake, Some(p.now + 60_000));
    p.pass(59_999);
    assert_eq!(p.log(), [""; 0]);
    p.pass(1);
    assert_eq!(p.log(), ["stop DeadlineExceeded", "term a"]);
}

#[test]
fn a_hook_that_is_given_up_holds_nobody() {
    let input = annotated(
        json!({"outrigger.dev/post-start-timeout": "2m"}),
        json!({"containers": [hooked(c("a"), "postStart"), c("b")]}),
    );
    let plan = planned(&input);
    assert_eq!(plan.containers[0].post_start.unwrap().timeout_ms, Some(120_000));
    let mut p = Play { quick_hooks: false, ..Play::of(&input) };
    p.engine = Engine::new(plan, p.now);
    p.settle();
    p.log();
    assert_eq!(p.out.wake, Some(p.now + 120_000));
    let deadline = Some(p.now + 120_000);
    assert!(p.actions.contains(&Action::RunHook {
        container: 0,
        attempt: 0,
        hook: HookKind::PostStart,
        deadline
    }));
    p.pass(120_000);
    assert_eq!(p.log(), ["start b", "term a"]);
}

#[test]
fn a_hook_of_a_container_that_is_gone_is_given_up_g27() {
    let mut p =
        Play { quick_hooks: false, ..Play::of(&pod(json!({"containers": [hooked(c("a"), "preStop")]}))) };
    p.stop(None);
    assert!(p.container("a").pre_stop.is_running());
    p.exit("a", 0);
    assert!(matches!(p.container("a").pre_stop, Hook::Failed { .. }));
}

/// A new instance has its own hooks.
#[test]
fn hooks_run_for_every_instance_r7_5() {
    let mut p = Play::of(&pod(json!({"containers": [hooked(c("a"), "postStart")]})));
    assert_eq!(p.log(), ["start a", "postStart a"]);
    p.exit("a", 1);
    assert_eq!(p.log(), ["start a", "postStart a"]);
}

/// E028: a liveness probe must not kill anything while everything that keeps the pod alive is already
/// stopping for good.
#[test]
fn sidecars_are_left_alone_while_the_last_main_is_killed() {
    for (policy, killed) in [("Never", false), ("OnFailure", true)] {
        let sidecar = probed(native("s"), "livenessProbe");
        let main = probed(c("main"), "livenessProbe");
        let mut p = Play::of(&pod(
            json!({"restartPolicy": policy, "initContainers": [sidecar], "containers": [main]}),
        ));
        for name in ["s", "main"] {
            p.probed(name, ProbeKind::Liveness, true);
        }
        p.pass(1_000);
        p.log();
        p.probed("main", ProbeKind::Liveness, false);
        assert_eq!(p.log(), ["term main"]);
        p.probed("s", ProbeKind::Liveness, false);
        assert_eq!(p.log() == ["term s"], killed, "{policy}");
    }
}

// Stops.

#[test]
fn an_image_that_changes_during_a_stop_is_ignored_r3_46() {
    let mut p = Play::of(&pod(json!({"containers": [c("a")]})));
    p.stop(None);
    p.engine.handle(&Event::ImageChanged { container: 0 }, p.now);
    assert_eq!(p.container("a").image, Image::Present);
}

/// `killed_for` records why an instance was stopped, unless it exited before it was told to.
#[test]
fn who_was_told_to_go_did_not_go_by_himself() {
    let killed_for = |p: &Play| p.container("a").exit.as_ref().unwrap().killed_for;
    let input = |hook: bool| {
        let a = probed(c("a"), "livenessProbe");
        pod(json!({"restartPolicy": "Never", "containers": [if hook { hooked(a, "preStop") } else { a }]}))
    };
    // It was told to stop by a signal, by its hook, or by KILL alone.
    let mut p = Play::of(&input(false));
    p.stop(None);
    p.exit("a", 0);
    assert_eq!(killed_for(&p), Some(KillReason::PodStop), "signalled");
    let mut p = Play { quick_hooks: false, ..Play::of(&input(true)) };
    p.stop(None);
    p.exit("a", 0);
    assert_eq!(killed_for(&p), Some(KillReason::PodStop), "its hook ran");
    let mut p = Play::of(&input(false));
    p.stop(Some(0));
    assert_eq!(killed_for(&p), Some(KillReason::PodStop), "killed");
    // It is stopped on its own, and exits before the signal.
    let mut p = Play { quick_hooks: false, ..Play::of(&input(true)) };
    p.probed("a", ProbeKind::Liveness, true);
    p.pass(1_000);
    p.probed("a", ProbeKind::Liveness, false);
    p.exit("a", 0);
    assert_eq!(killed_for(&p), Some(KillReason::Liveness));
    // It exits before the signal, while it waits for its turn.
    let mut p = Play::of(&graph("b: a", json!({"restartPolicy": "Never", "containers": [c("a"), c("b")]})));
    p.stop(None);
    p.exit("a", 0);
    assert_eq!(killed_for(&p), None);
}

#[test]
fn a_second_request_only_shortens_g16() {
    let mut p = Play::of(&pod(json!({"terminationGracePeriodSeconds": 10, "containers": [c("a")]})));
    p.stop(None);
    p.pass(5_000);
    let before = p.engine.observation().stop;
    p.stop(Some(5_000));
    assert_eq!(p.engine.observation().stop, before, "the same end");
    p.stop(Some(60_000));
    assert_eq!(p.engine.observation().stop, before, "a later end");
    // A grace period of zero kills even when the old grace period has just ended and only the 2 s are left.
    let mut p = Play::of(&pod(json!({"terminationGracePeriodSeconds": 1, "containers": [c("a")]})));
    p.stop(None);
    p.pass(1_000);
    assert_eq!(p.log(), ["start a", "term a"]);
    p.stop(Some(0));
    assert_eq!(p.log(), ["kill a"]);
}

/// Only sidecars are restarted while others are stopping (G-18).
#[test]
fn a_main_that_others_need_is_not_restarted_in_a_stop() {
    let mut p = Play::of(&graph("app: db", json!({"containers": [c("db"), c("app")]})));
    p.stop(None);
    p.log();
    p.exit("db", 1);
    assert_eq!(p.log(), [""; 0]);
}

#[test]
fn a_reserve_for_nobody_changes_nothing() {
    let mut p = Play::of(&annotated(
        json!({"outrigger.dev/sidecar-grace": "2s"}),
        json!({"terminationGracePeriodSeconds": 5, "containers": [c("a")]}),
    ));
    p.stop(None);
    p.pass(4_999);
    assert_eq!(p.log(), ["start a", "term a"]);
    p.pass(1);
    assert_eq!(p.log(), ["kill a"]);
}

/// If the runtime never answers a start, KILL follows 2 s after the end of the grace period.
#[test]
fn a_start_without_an_answer_does_not_outlive_the_stop() {
    let mut bare = Bare::ready(&pod(json!({"terminationGracePeriodSeconds": 5, "containers": [c("a")]})));
    bare.tell(Event::StopRequested { grace_ms: None });
    let kill = Action::Kill { container: 0, attempt: 0 };
    assert_eq!(bare.out.wait_of(0), Some(Wait::Stopping { kill_at: bare.now + 7_000 }));
    assert!(!bare.pass(6_999).contains(&kill) && bare.pass(1).contains(&kill));
}

/// The runtime is told when KILL follows, which is at least 2 s after the signal.
#[test]
fn a_late_signal_leaves_two_seconds_r3_16() {
    let mut p = Play {
        quick_hooks: false,
        ..Play::of(&pod(
            json!({"terminationGracePeriodSeconds": 5, "containers": [hooked(c("a"), "preStop")]}),
        ))
    };
    p.stop(None);
    p.pass(5_000);
    let kill_at = p.actions.iter().find_map(|a| match a {
        Action::Terminate { kill_at, .. } => Some(*kill_at),
        _ => None,
    });
    assert_eq!(kill_at, Some(p.now + 2_000));
}

#[test]
fn first_hooks_hold_the_mains_no_longer_than_the_grace() {
    let input = pod(
        json!({"terminationGracePeriodSeconds": 5, "containers": [c("app"), hooked(kep("s"), "preStop")]}),
    );
    let mut p = Play { quick_hooks: false, ..Play::of(&input) };
    p.log();
    p.stop(None);
    p.pass(4_999);
    assert_eq!(p.log(), ["firstPreStop s"]);
    p.pass(1);
    assert_eq!(p.log(), ["term app"]);
    // The mains exit by themselves. The running hook is awaited, and then the second one runs.
    let mut p = Play { quick_hooks: false, ..Play::of(&input) };
    p.stop(None);
    p.log();
    p.exit("app", 0);
    assert_eq!(p.log(), [""; 0]);
    p.hooked("s", HookKind::FirstPreStop, true);
    assert_eq!(p.log(), ["preStop s"]);
    // No hook starts after the end of the grace period.
    let mut p = Play::of(&input);
    p.stop(None);
    p.log();
    p.pass(5_000);
    assert_eq!(p.log(), ["kill app", "term s"]);
}

/// With a reserve the hook may continue, but the mains wait for it only during their own part of the grace
/// period.
#[test]
fn first_hooks_hold_the_mains_no_longer_than_their_part_of_the_grace() {
    let input = annotated(
        json!({"outrigger.dev/sidecar-grace": "2s"}),
        json!({"terminationGracePeriodSeconds": 5, "containers": [c("app"), hooked(kep("s"), "preStop")]}),
    );
    let mut p = Play { quick_hooks: false, ..Play::of(&input) };
    p.log();
    p.stop(None);
    p.pass(2_999);
    assert_eq!(p.log(), ["firstPreStop s"]);
    p.pass(1);
    assert_eq!(p.log(), ["term app"]);
}

#[test]
fn zero_grace_gives_up_the_hook_that_runs() {
    let mut p =
        Play { quick_hooks: false, ..Play::of(&pod(json!({"containers": [hooked(c("a"), "preStop")]}))) };
    p.stop(None);
    p.actions.clear();
    p.stop(Some(0));
    let cancel = Action::CancelHook { container: 0, attempt: 0, hook: HookKind::PreStop };
    assert_eq!(p.actions[..2], [cancel, Action::Kill { container: 0, attempt: 0 }]);
}

// Dialects.

/// In a graph, a helper outlives a main that does not depend on it, unless the helper depends on the main.
#[test]
fn helpers_of_a_graph_outlive_the_mains() {
    for (text, stops) in [
        ("helper: sidecar", [["term app"], ["term helper"]]),
        ("helper: app started, sidecar", [["term helper"], ["term app"]]),
        ("helper: mid, sidecar; mid: app", [["term helper"], ["term mid"]]),
    ] {
        let mut p = Play::of(&graph(text, json!({"containers": [c("app"), c("helper"), c("mid")]})));
        p.log();
        p.stop(None);
        if !text.contains("mid") {
            p.exit("mid", 0);
            p.log.retain(|l| l != "term mid");
        }
        let first = p.log();
        assert_eq!(first, stops[0], "{text}");
        p.exit(first[0].strip_prefix("term ").unwrap(), 0);
        assert_eq!(p.log(), stops[1], "{text}");
    }
}

#[test]
fn a_circle_shows_where_each_order_was_written() {
    let depends = "outrigger.dev/depends-on";
    let app = env("app", PRIORITY, "5");
    let mut proxy = c("proxy");
    proxy["env"] = json!([{"name": "OTHER", "value": "x"}, {"name": PRIORITY, "value": "0"}]);
    let by_env = graph("app: proxy", json!({"containers": [app, proxy]}));
    let ordered = annotated(
        json!({"apps.kruise.io/container-launch-priority": "Ordered", depends: "app: proxy"}),
        json!({"containers": [c("app"), c("proxy")]}),
    );
    let unmarked = graph("app: proxy", json!({"containers": [app, c("proxy")]}));
    for (what, input, written, by) in [
        ("an env", by_env, "spec.containers[1].env[1].value", "(priority)"),
        ("Ordered", ordered, "container-launch-priority", "(priority)"),
        ("no env of its own", unmarked, "spec.containers[0].env[0].value", "(priority)"),
    ] {
        let findings = refused(&input);
        let circle = findings.iter().find(|f| f.code == "cycle").expect("a circle");
        let mut places = vec![circle.path.to_string()];
        places.extend(circle.related.iter().map(|(path, _)| path.to_string()));
        let texts: String = circle.related.iter().map(|(_, text)| text.as_str()).collect();
        assert!(
            places.iter().any(|p| p.ends_with(written)
                || p.contains("launch-priority") && written == "container-launch-priority"),
            "{what}: {places:?}"
        );
        assert!(places.iter().any(|p| p.contains(depends)), "{what}: the other side too: {places:?}");
        assert!(texts.contains(by) && texts.contains("(depends-on)"), "{what}: {texts}");
    }
    let findings = refused(&graph("proxy: app", json!({"containers": [c("app"), kep("proxy")]})));
    let circle = findings.iter().find(|f| f.code == "cycle").expect("a circle");
    let at = |path: &str| circle.related.iter().any(|(place, _)| place.to_string() == path);
    assert!(at("spec.containers[1].lifecycle.type"), "{:?}", circle.related);
    let findings = refused(&graph("a: b; b: a", json!({"containers": [c("a"), c("b")]})));
    let circle = findings.iter().find(|f| f.code == "cycle").expect("a circle");
    assert!(circle.path.to_string().contains("depends-on"), "{}", circle.path);
    assert!(circle.related.iter().all(|(_, text)| text.contains("(depends-on)")), "{:?}", circle.related);
}

/// A name is suggested only if it is similar: one letter may differ, and one more for every four letters of
/// the name.
#[test]
fn only_near_names_are_suggested() {
    for (name, written, near) in [
        ("proxy", "prax", true),
        ("proxy", "pra", false),
        ("gateways", "gateabc", true),
        ("gateways", "zzz", false),
        ("abc", "abd", true),
        ("abc", "add", false),
        // Words of two letters are too short to guess from.
        ("ab", "ac", false),
        ("ab", "abc", true),
    ] {
        let text = format!("app: {written}");
        let findings = refused(&graph(&text, json!({"containers": [c("app"), c(name)]})));
        let hint = findings[0].hint.clone().unwrap_or_default();
        assert_eq!(hint.contains(&format!("did you mean `{name}`")), near, "{written}: {hint}");
    }
}

#[test]
fn a_plan_says_whose_image_is_looked_up_at_every_start() {
    for (policy, always) in
        [(Some("Always"), true), (Some("IfNotPresent"), false), (Some("Never"), false), (None, false)]
    {
        let written = |name: &str| json!({"name": name, "image": "i", "imagePullPolicy": policy});
        let plan = planned(&pod(json!({
            "initContainers": [written("init")],
            "containers": [written("main")],
            "ephemeralContainers": [written("debug")],
        })));
        for c in &plan.containers {
            assert_eq!(c.pull_always, always, "{}: {policy:?}", c.name);
        }
    }
}

#[test]
fn numbers_of_a_spec_are_what_they_say() {
    for (written, ms) in [(json!(-5), 1_000), (json!(0), 0), (json!(1), 1_000), (Value::Null, 30_000)] {
        let mut spec = json!({"containers": [c("a")]});
        if !written.is_null() {
            spec["terminationGracePeriodSeconds"] = written.clone();
        }
        assert_eq!(planned(&pod(spec)).grace_ms, ms, "{written}");
    }
    let mut a = c("a");
    a["livenessProbe"] = json!({"exec": {"command": ["true"]}, "periodSeconds": 0, "timeoutSeconds": 3, "failureThreshold": -1, "initialDelaySeconds": 7});
    let probe = *planned(&pod(json!({"containers": [a]}))).containers[0].probe(ProbeKind::Liveness).unwrap();
    assert_eq!(
        (probe.period_ms, probe.timeout_ms, probe.failure_threshold, probe.initial_delay_ms),
        (10_000, 3_000, 3, 7_000)
    );
    for (text, ms) in [("1500ms", 1_500), ("3s", 3_000), ("2m", 120_000), ("1h", 3_600_000), ("4", 4_000)] {
        let input = annotated(
            json!({"outrigger.dev/post-start-timeout": text}),
            json!({"containers": [hooked(c("a"), "postStart")]}),
        );
        assert_eq!(planned(&input).containers[0].post_start.unwrap().timeout_ms, Some(ms), "{text}");
    }
    let findings =
        refused(&annotated(json!({"outrigger.dev/sidecar-grace": "31s"}), json!({"containers": [c("a")]})));
    assert!(findings[0].message.contains("30 s"), "{}", findings[0].message);
}

#[test]
fn gates_decide_which_policies_and_rules_are_read() {
    let rule = |action: &str| json!([{"action": action, "exitCodes": {"operator": "In", "values": [1]}}]);
    let spec = json!({
        "restartPolicy": "OnFailure",
        "initContainers": [native("s")],
        "containers": [
            {"name": "a", "restartPolicy": "Never", "restartPolicyRules": rule("Restart")},
            {"name": "b", "restartPolicy": "Never", "restartPolicyRules": rule("RestartAllContainers")},
            {"name": "c", "restartPolicyRules": rule("Restart")},
        ],
    });
    let read = |gates: FeatureGates| {
        let plan = plan(&pod(spec.clone()), &gates).expect("accepted").plan;
        let of = |c: &outrigger_lifecycle::ContainerPlan| {
            (format!("{:?}", c.restart.policy), c.restart.rules.len())
        };
        plan.containers.iter().map(of).collect::<Vec<_>>()
    };
    let row = |policy: &str, rules: usize| (policy.to_owned(), rules);
    let on = FeatureGates::default();
    assert_eq!(read(on), [row("Always", 0), row("Never", 1), row("Never", 1), row("OnFailure", 0)]);
    let no_all = FeatureGates { restart_all_containers: false, ..on };
    assert_eq!(read(no_all), [row("Always", 0), row("Never", 1), row("Never", 0), row("OnFailure", 0)]);
    let off = FeatureGates { container_restart_rules: false, ..on };
    assert_eq!(read(off), [row("Always", 0), row("OnFailure", 0), row("OnFailure", 0), row("OnFailure", 0)]);
    // An init container with `restartPolicy: Always` uses the native dialect.
    let plan = planned(&pod(json!({"initContainers": [native("s"), c("i")], "containers": [c("m")]})));
    let dialects: Vec<bool> = plan.containers.iter().map(|c| c.dialect.is_some()).collect();
    assert_eq!(dialects, [true, false, false]);
}

#[test]
fn a_graph_replaces_list_order_only_where_it_speaks() {
    let inits = json!({"initContainers": [c("i0"), c("i1")], "containers": [c("a")]});
    let mut p = Play::of(&graph("i1: none", inits.clone()));
    assert_eq!(p.log(), ["start i0", "start i1"], "its place in the list no longer matters");
    let mut p = Play::of(&graph("a: none", inits.clone()));
    assert_eq!(p.log(), ["start i0"], "that of the others does");
    for text in ["i1: i0", "i0: start 1; i1: start 2"] {
        let mut p = Play::of(&graph(text, inits.clone()));
        assert_eq!(p.log(), ["start i0"], "{text}: an init container is waited for until it has completed");
        p.exit("i0", 0);
        assert_eq!(p.log(), ["start i1"], "{text}");
    }
    // If only one of two has a number, the start order decides.
    let mut p = Play::of(&graph("a: b, stop 1", json!({"containers": [c("a"), c("b")]})));
    p.log();
    p.stop(None);
    assert_eq!(p.log(), ["term a"]);
}

#[test]
fn mains_around_a_kep_sidecar_keep_their_order() {
    let plan = planned(&pod(json!({"containers": [c("m0"), kep("s"), c("m1"), c("m2")]})));
    let launched = |i: usize| -> Vec<usize> {
        plan.containers[i].gates.iter().filter(|g| g.need == Need::Launched).map(|g| g.on).collect()
    };
    assert_eq!([launched(0), launched(1), launched(2), launched(3)], [vec![], vec![], vec![0], vec![2]]);
    let mut own = kep("s");
    own["restartPolicy"] = json!("Never");
    let planned = plan_with_warnings(&pod(json!({"containers": [c("m"), own]})));
    assert_eq!(planned, ["kep-restart"]);
    assert_eq!(plan_with_warnings(&pod(json!({"containers": [c("m"), kep("s")]}))), [""; 0]);
    let at_once = annotated(
        json!({"outrigger.dev/pre-stop": "at-once"}),
        json!({"containers": [c("m"), hooked(kep("s"), "preStop")]}),
    );
    assert_eq!(self::planned(&at_once).containers[1].pre_stop_when, PreStopWhen::AtOnce);
}

fn plan_with_warnings(input: &PodInput) -> Vec<&'static str> {
    plan(input, &FeatureGates::default()).expect("accepted").warnings.iter().map(|f| f.code).collect()
}

/// Which containers a fence covers, and which it does not.
#[test]
fn a_fence_stands_around_sidecars_only() {
    let gates = |input: &PodInput, i: usize| -> Vec<(usize, Need, bool)> {
        planned(input).containers[i].gates.iter().map(|g| (g.on, g.need, g.every_start)).collect()
    };
    let fenced = |kind: &str, spec: Value| annotated(json!({"outrigger.dev/fence": kind}), spec);
    // A chain: s0, i1, s2, then the main, which is fenced by both sidecars.
    let chain = json!({"initContainers": [native("s0"), c("i1"), native("s2")], "containers": [c("m")]});
    let input = fenced("start", chain.clone());
    assert_eq!(gates(&input, 1), [(0, Need::Ready, true)]);
    assert_eq!(gates(&input, 2), [(1, Need::Completed, false)]);
    assert_eq!(gates(&input, 3), [(2, Need::Ready, true), (0, Need::Ready, true)]);
    assert_eq!(planned(&input).containers[3].fence, [0; 0], "only `restart` stops what is behind it");
    let input = fenced("restart", chain);
    assert_eq!(planned(&input).containers[3].fence, [0, 2]);
    assert_eq!(planned(&input).containers[1].fence, [0; 0], "init containers are not stopped");
    // A fence in a graph covers only its own dependency.
    let one = graph("app: proxy fence, db", json!({"containers": [c("proxy"), c("db"), c("app")]}));
    assert_eq!(gates(&one, 2), [(0, Need::Ready, true), (1, Need::Started, false)]);
    assert_eq!(planned(&one).containers[2].fence, [0]);
    // Launch priority orders only mains, so a container with a priority is not a sidecar for a fence.
    let mains = fenced("start", json!({"containers": [env("hi", PRIORITY, "1"), c("lo")]}));
    assert_eq!(gates(&mains, 1), [(0, Need::Ready, false)]);
    let mut marked = annotated(
        json!({"outrigger.dev/fence": "start", DEPENDS_ON: "app: t ready"}),
        json!({"restartPolicy": "Never", "containers": [env("t", KILL, "true"), c("app")]}),
    );
    assert_eq!(gates(&marked, 1), [(0, Need::Ready, false)]);
    marked.lifecycle_types.clear();
    assert_eq!(planned(&marked).containers[0].role, Role::Sidecar);
}

#[test]
fn a_priority_that_is_no_literal_says_so() {
    let from = json!({"name": "a", "env": [{"name": PRIORITY, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]});
    let message = |a: Value| {
        refused(&input(json!({"metadata": {"name": "p"}, "spec": {"containers": [a, c("b")]}})))[0]
            .message
            .clone()
    };
    assert!(message(from).contains("literal"));
    assert!(message(env("a", PRIORITY, "x")).contains("whole number"));
}

#[test]
fn probe_failures_are_counted_one_by_one() {
    let mut p = Play::of(&pod(json!({"containers": [probed(c("a"), "readinessProbe")]})));
    for n in 1..4 {
        p.probed("a", ProbeKind::Readiness, false);
        assert_eq!(p.container("a").probe(ProbeKind::Readiness).failures, n);
    }
}
