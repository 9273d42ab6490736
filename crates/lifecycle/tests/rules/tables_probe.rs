//! Tables of docs/internals/spec/kubelet-lifecycle.md, row by row: the grace period of a single kill (12.11),
//! the probe worker (12.12), the back-off check (12.14) and sequences (12.15).

use crate::stage::{Stage, exit, planned, probe};
use outrigger_lifecycle::{
    Action, Decision, Engine, Event, HookKind, Image, KillReason, ProbeKind, ProbeOutcome, State, Time,
    Verdict, rules,
};
use serde_json::{Value, json};

#[test]
fn table_12_11_grace_of_a_single_kill() {
    // Row 1, no grace period anywhere, cannot be expressed: the API gives every pod 30 s.
    for (row, pod, startup, liveness, reason, seconds) in [
        (2, 60, None, None, KillReason::ImageChanged, 60),
        (3, 60, None, Some(10), KillReason::Liveness, 10),
        (4, 60, Some(10), None, KillReason::Startup, 10),
        (5, 10, Some(60), None, KillReason::Startup, 60),
        (6, 10, None, Some(60), KillReason::Liveness, 60),
        (7, 60, None, Some(10), KillReason::ImageChanged, 60),
        (8, 60, Some(10), None, KillReason::ImageChanged, 60),
        (9, 60, Some(10), Some(30), KillReason::ImageChanged, 60),
        (10, 60, Some(10), Some(30), KillReason::Startup, 10),
        (11, 60, Some(10), Some(30), KillReason::Liveness, 30),
    ] {
        for sidecar in [false, true] {
            let with_grace = |grace: Option<i64>| {
                let mut p = probe();
                if let Some(grace) = grace {
                    p["terminationGracePeriodSeconds"] = json!(grace);
                }
                p
            };
            let mut c = json!({"name": "c", "startupProbe": with_grace(startup), "livenessProbe": with_grace(liveness)});
            let mut spec = json!({"terminationGracePeriodSeconds": pod, "containers": [{"name": "main"}]});
            if sidecar {
                c["restartPolicy"] = json!("Always");
                spec["initContainers"] = json!([c]);
            } else {
                spec["containers"] = json!([c]);
            }
            let mut stage = Stage::new(planned(spec));
            stage.running(&["c"]);
            match reason {
                KillReason::Liveness => stage.verdict("c", ProbeKind::Liveness, Verdict::Failure),
                KillReason::Startup => stage.verdict("c", ProbeKind::Startup, Verdict::Failure),
                _ => stage.image_changed("c"),
            };
            stage.obs.containers[0].image = Image::Present;
            let mut engine = Engine::resume(stage.plan, stage.obs);
            let mut out = Decision::default();
            engine.step(crate::stage::NOW, &mut out);
            let begun = out.actions.iter().find_map(|a| match *a {
                Action::BeginKill { container: 0, reason, deadline } => {
                    Some((reason, deadline.since(crate::stage::NOW) / 1_000))
                }
                _ => None,
            });
            assert_eq!(begun, Some((reason, seconds)), "row {row}, sidecar {sidecar}");
        }
    }
}

#[test]
fn table_12_11_pre_stop_runs_within_a_grace_and_not_without() {
    for (grace, hook) in [(30_000, true), (0, false)] {
        let c = json!({"name": "c", "lifecycle": {"preStop": {"exec": {"command": ["true"]}}}});
        let mut stage = Stage::new(planned(json!({"containers": [c]})));
        stage.running(&["c"]);
        let mut engine = Engine::resume(stage.plan, stage.obs);
        engine.handle(&Event::StopRequested { grace_ms: Some(grace) }, crate::stage::NOW);
        let mut out = Decision::default();
        engine.step(crate::stage::NOW, &mut out);
        let ran = out.actions.iter().any(|a| matches!(a, Action::RunHook { hook: HookKind::PreStop, .. }));
        assert_eq!(ran, hook, "grace {grace}");
    }
}

/// A pod of one container. The test answers its probes.
struct Prober {
    engine: Engine,
    out: Decision,
    now: Time,
}

impl Prober {
    fn new(spec: Value) -> Prober {
        let mut prober = Prober::waiting(spec);
        prober.tell(&Event::Started { container: 0, attempt: 0 });
        prober
    }

    /// The pod before its container runs.
    fn waiting(spec: Value) -> Prober {
        let mut prober =
            Prober { engine: Engine::new(planned(spec), Time(0)), out: Decision::default(), now: Time(0) };
        prober.look();
        for container in 0..prober.engine.plan().containers.len() {
            prober.engine.handle(&Event::ImageReady { container }, Time(0));
        }
        prober.tell(&Event::SandboxReady);
        prober
    }

    /// The probes that are requested now.
    fn look(&mut self) -> Vec<ProbeKind> {
        self.engine.step(self.now, &mut self.out);
        let probe = |a: &Action| match *a {
            Action::Probe { container: 0, kind, .. } => Some(kind),
            _ => None,
        };
        self.out.actions.iter().filter_map(probe).collect()
    }

    fn tell(&mut self, event: &Event) -> Vec<ProbeKind> {
        self.engine.handle(event, self.now);
        self.look()
    }

    fn answer(&mut self, kind: ProbeKind, outcome: ProbeOutcome) -> Vec<ProbeKind> {
        let attempt = self.engine.observation().containers[0].attempt;
        self.tell(&Event::Probed { container: 0, attempt, kind, outcome, message: None, cause: None })
    }

    fn pass(&mut self, ms: u64) -> Vec<ProbeKind> {
        self.now = self.now + ms;
        self.look()
    }

    fn verdict(&self, kind: ProbeKind) -> Verdict {
        self.engine.observation().containers[0].probe(kind).verdict
    }

    fn is_ready(&self) -> bool {
        rules::is_ready(&self.engine.plan().containers[0], &self.engine.observation().containers[0])
    }

    fn is_started(&self) -> bool {
        rules::is_started(&self.engine.plan().containers[0], &self.engine.observation().containers[0])
    }

    fn is_killed(&self) -> Option<KillReason> {
        self.engine.observation().containers[0].kill.map(|k| k.reason)
    }
}

const KINDS: [(&str, ProbeKind); 3] = [
    ("startupProbe", ProbeKind::Startup),
    ("livenessProbe", ProbeKind::Liveness),
    ("readinessProbe", ProbeKind::Readiness),
];

fn one(field: &str, probe: Value) -> Value {
    json!({"restartPolicy": "Always", "containers": [{"name": "c", field: probe}]})
}

fn every(seconds: u64, more: Value) -> Value {
    let mut p = json!({"exec": {"command": ["true"]}, "periodSeconds": seconds});
    p.as_object_mut().expect("an object").extend(more.as_object().cloned().unwrap_or_default());
    p
}

#[test]
fn table_12_12_rows_1_to_9_when_probes_run() {
    for (field, kind) in KINDS {
        // Rows 1, 4 and 5: there is nothing to probe.
        let mut p = Prober::waiting(one(field, every(1, json!({}))));
        assert_eq!(p.pass(10_000), [], "row 5, {field}: not running");
        assert!(!p.is_ready(), "row 5, {field}");
        // Row 7.
        assert_eq!(p.tell(&Event::Started { container: 0, attempt: 0 }), [kind], "row 7, {field}");
        p.answer(kind, ProbeOutcome::Success);
        assert_eq!(p.verdict(kind), Verdict::Success, "row 7, {field}");
        assert!(p.is_ready(), "row 7, {field}");
        // Row 3: while the pod is being deleted, readiness probes continue, and liveness and startup probes
        // end.
        let mut deleted = Prober::new(one(field, every(1, json!({}))));
        deleted.answer(kind, ProbeOutcome::Success);
        deleted.tell(&Event::StopRequested { grace_ms: None });
        let expected: &[ProbeKind] = if kind == ProbeKind::Readiness { &[kind] } else { &[] };
        assert_eq!(deleted.pass(1_000), expected, "row 3, {field}");
        // Rows 8 and 9: the initial delay.
        let mut delayed = Prober::new(one(field, every(1, json!({"initialDelaySeconds": 10}))));
        assert_eq!(delayed.pass(9_999), [], "row 9, {field}");
        assert_eq!(delayed.is_ready(), kind == ProbeKind::Liveness, "row 9, {field}");
        assert_eq!(delayed.is_started(), kind != ProbeKind::Startup, "row 9, {field}");
        assert_eq!(delayed.pass(1), [kind], "row 8, {field}");
        // Rows 2 and 6: the container has ended for good.
        let mut over = Prober::new(
            json!({"restartPolicy": "Never", "containers": [{"name": "c", field: every(1, json!({}))}]}),
        );
        over.tell(&Event::Exited { container: 0, attempt: 0, exit: exit(0) });
        assert_eq!(over.pass(60_000), [], "rows 2 and 6, {field}");
    }
}

#[test]
fn table_12_12_rows_10_to_15_what_counts() {
    let play = |field: &str, kind: ProbeKind, more: Value, results: &str| {
        let mut p = Prober::new(one(field, every(1, more)));
        let mut verdicts = String::new();
        for result in results.chars() {
            let outcome = if result == 'S' { ProbeOutcome::Success } else { ProbeOutcome::Failure };
            p.answer(kind, outcome);
            verdicts.push(match p.verdict(kind) {
                Verdict::Success => 'S',
                Verdict::Failure => 'F',
                Verdict::Unknown => '?',
            });
            p.pass(1_000);
        }
        (verdicts, p)
    };
    let readiness = |more, results| play("readinessProbe", ProbeKind::Readiness, more, results).0;
    assert_eq!(readiness(json!({"failureThreshold": 3}), "SSSFFFSFFFF"), "SSSSSFSSSFF", "row 10");
    assert_eq!(readiness(json!({"successThreshold": 3, "failureThreshold": 1}), "SSSF"), "??SF", "row 11");

    let (verdicts, mut p) = play("startupProbe", ProbeKind::Startup, json!({}), "S");
    assert_eq!(verdicts, "S", "row 12");
    assert_eq!(p.pass(60_000), [], "row 12: on hold");
    let (verdicts, p) = play("startupProbe", ProbeKind::Startup, json!({"failureThreshold": 3}), "FFFF");
    assert_eq!(
        verdicts, "???F",
        "row 13, the first attempt being an extra one before the author's pace (G-06)"
    );
    assert_eq!(p.is_killed(), Some(KillReason::Startup), "row 13");
    let (verdicts, mut p) =
        play("livenessProbe", ProbeKind::Liveness, json!({"failureThreshold": 3}), "SFFF");
    assert_eq!(verdicts, "SSSF", "row 15");
    assert_eq!(p.is_killed(), Some(KillReason::Liveness), "row 15");

    // Row 14: the verdict stays until there is a new instance, whose count begins at zero (G-37).
    p.answer(ProbeKind::Liveness, ProbeOutcome::Success);
    assert_eq!(p.is_killed(), Some(KillReason::Liveness), "row 14");
    p.tell(&Event::Exited { container: 0, attempt: 0, exit: exit(137) });
    assert!(matches!(p.engine.observation().containers[0].state, State::Starting { .. }), "row 14");
    assert_eq!(p.tell(&Event::Started { container: 0, attempt: 1 }), [ProbeKind::Liveness], "row 14");
    p.answer(ProbeKind::Liveness, ProbeOutcome::Success);
    assert_eq!(p.verdict(ProbeKind::Liveness), Verdict::Success, "row 14");
}

#[test]
fn table_12_12_rows_16_to_23_probes_follow_restarts() {
    // A container that runs again is probed again; others are not. Rows 16, 17, 20, 21, 22.
    let rule = json!([{"action": "Restart", "exitCodes": {"operator": "In", "values": [7]}}]);
    let all = json!([{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [7]}}]);
    for (row, own, rules, code, again) in [
        (17, None, None, 0, false),
        (20, Some("OnFailure"), None, 1, true),
        (20, Some("OnFailure"), None, 0, false),
        (21, Some("Always"), None, 0, true),
        (22, Some("Never"), None, 1, false),
        (22, Some("Never"), Some(&rule), 7, true),
        (23, Some("Never"), Some(&all), 7, true),
    ] {
        let mut c = json!({"name": "c", "readinessProbe": every(1, json!({}))});
        if let Some(own) = own {
            c["restartPolicy"] = json!(own);
        }
        if let Some(rules) = rules {
            c["restartPolicyRules"] = rules.clone();
        }
        let mut p = Prober::new(json!({"restartPolicy": "Never", "containers": [c, {"name": "other"}]}));
        p.tell(&Event::Started { container: 1, attempt: 0 });
        p.tell(&Event::Exited { container: 0, attempt: 0, exit: exit(code) });
        p.tell(&Event::Exited { container: 1, attempt: 0, exit: exit(0) });
        p.pass(1_000);
        let attempt = p.engine.observation().containers[0].attempt;
        let probes = p.tell(&Event::Started { container: 0, attempt });
        assert_eq!(!probes.is_empty(), again, "row {row}, code {code}");
    }
    // Row 16: a sidecar is restarted under every policy.
    let sidecar = json!({"name": "c", "restartPolicy": "Always", "startupProbe": every(1, json!({}))});
    let mut p = Prober::new(
        json!({"restartPolicy": "Never", "initContainers": [sidecar], "containers": [{"name": "m"}]}),
    );
    p.tell(&Event::Exited { container: 0, attempt: 0, exit: exit(1) });
    assert_eq!(p.tell(&Event::Started { container: 0, attempt: 1 }), [ProbeKind::Startup], "row 16");
}

#[test]
fn table_12_12_rows_18_and_19_startup_comes_first() {
    let mut p = Prober::new(json!({"containers": [{
        "name": "c", "startupProbe": every(1, json!({})), "livenessProbe": every(1, json!({})),
    }]}));
    assert_eq!(p.answer(ProbeKind::Startup, ProbeOutcome::Failure), [], "row 18: liveness waits");
    assert_eq!(p.pass(1_000), [ProbeKind::Startup]);
    let next = p.answer(ProbeKind::Startup, ProbeOutcome::Success);
    assert_eq!(next, [ProbeKind::Liveness], "row 18: liveness begins with the start");
    p.answer(ProbeKind::Startup, ProbeOutcome::Failure);
    assert!(p.is_started(), "row 19: once started it stays so");
}

#[test]
fn table_12_12_rows_24_and_25_a_crash_of_the_agent() {
    let mut p = Prober::new(json!({"containers": [{
        "name": "c", "startupProbe": every(1, json!({})), "readinessProbe": every(1, json!({})),
    }]}));
    p.answer(ProbeKind::Startup, ProbeOutcome::Success);
    p.answer(ProbeKind::Readiness, ProbeOutcome::Success);
    assert!(p.is_ready());
    let written = serde_json::to_string(p.engine.observation()).expect("plain data");
    let mut obs: outrigger_lifecycle::Observation = serde_json::from_str(&written).expect("as written");
    obs.recover();
    p.engine = Engine::resume(p.engine.plan().clone(), obs);
    assert!(p.is_ready(), "row 24, G-39: what was known is known, however young the instance (row 25)");
    assert_eq!(p.pass(1_000), [ProbeKind::Readiness], "the pace goes on (G-07)");
}

#[test]
fn table_12_12_row_26_an_attempt_that_says_nothing() {
    let mut p = Prober::new(one("livenessProbe", every(1, json!({"failureThreshold": 1}))));
    for _ in 0..5 {
        p.answer(ProbeKind::Liveness, ProbeOutcome::Error);
        p.pass(1_000);
    }
    assert_eq!((p.verdict(ProbeKind::Liveness), p.is_killed()), (Verdict::Unknown, None));
}

#[test]
fn table_12_14_back_off() {
    let mut p = Prober::new(json!({"restartPolicy": "Always", "containers": [{"name": "c"}]}));
    let state = |p: &Prober| p.engine.observation().containers[0].state;
    p.pass(1_000);
    assert!(matches!(state(&p), State::Running { .. }), "row 1: runs, no back-off");
    let ended = |at: Time| outrigger_lifecycle::Exit { finished_at: at, ..exit(1) };
    p.tell(&Event::Exited { container: 0, attempt: 0, exit: ended(p.now) });
    assert!(matches!(state(&p), State::Starting { .. }), "row 2: the first restart is immediate");
    p.tell(&Event::Started { container: 0, attempt: 1 });
    p.tell(&Event::Exited { container: 0, attempt: 1, exit: ended(p.now) });
    assert!(matches!(state(&p), State::Exited), "row 3: in back-off");
    assert_eq!(
        p.out.wake,
        Some(p.now + 10_000),
        "row 3: until finish + 10 s (R1.60), to the millisecond (G-08)"
    );
    p.pass(9_999);
    assert!(matches!(state(&p), State::Exited), "row 3");
    p.pass(1);
    assert!(matches!(state(&p), State::Starting { .. }), "row 3");
}

#[test]
fn table_12_15_sequences() {
    let rule = json!([{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}]);
    let spec = json!({
        "initContainers": [{"name": "init"}],
        "containers": [{"name": "f1"}, {"name": "f2", "restartPolicy": "Always", "restartPolicyRules": rule}],
    });
    // Row 1.
    let mut stage = Stage::new(planned(spec.clone()));
    assert_eq!(stage.look().to_string(), "I:[0]", "row 1: only the init container");
    assert_eq!(stage.look().to_string(), "–", "row 1: unchanged");
    stage.exited("init", 0);
    assert_eq!(stage.look().to_string(), "C:[0,1]", "row 1: both mains");
    stage.sandbox_lost(0);
    let done = stage.look();
    assert_eq!(done.to_string(), "kill-pod, new-sb(1), I:[0]", "row 1: the init container again");
    assert_eq!(stage.obs.containers[0].attempt, 1, "row 1: as attempt 1");

    // Row 2: the rule restarts everything from the first init container.
    let mut stage = Stage::new(planned(spec.clone()));
    stage.exited("init", 0).running(&["f1"]).exited("f2", 42);
    let done = stage.look();
    assert_eq!(
        (done.to_string().as_str(), done.stopped.as_slice()),
        ("kill-pod, I:[0]", &["f1".to_owned()][..]),
        "row 2"
    );

    // Row 3: a sandbox that fails because the pod was deleted in the meantime is not an error. The pod is
    // over.
    let mut engine = Engine::new(planned(spec), Time(0));
    let mut out = Decision::default();
    engine.step(Time(0), &mut out);
    engine.handle(&Event::StopRequested { grace_ms: None }, Time(1));
    engine.handle(&Event::SandboxFailed { message: "the pod is gone".into(), cause: None }, Time(2));
    engine.step(Time(2), &mut out);
    assert!(engine.observation().over, "row 3");
}
