//! The exact sentences. Users read them, so a change of wording is a visible change.

use serde_json::json;

use super::*;
use crate::action::Action;
use crate::observation::{Backoff, Kill, Probe, StartFailure};
use crate::plan::{HookPlan, ProbePlan};
use crate::status::fixtures::{T0, end, exit, kep_plan, observed, plan, pod, put, run, spec};

const NOW: Time = Time(T0.0 + 12_400);

const PROBE: ProbePlan = ProbePlan {
    initial_delay_ms: 0,
    period_ms: 10_000,
    timeout_ms: 1_000,
    success_threshold: 1,
    failure_threshold: 3,
    grace_ms: None,
};

fn gate(on: usize, need: Need) -> Wait {
    Wait::Gate { on, need }
}

fn failing(n: u32, message: Option<&str>) -> Probe {
    Probe {
        failures: n,
        run: n - 1,
        last_ok: Some(false),
        message: message.map(Into::into),
        ..Probe::default()
    }
}

#[test]
fn gates_say_what_the_other_is_doing() {
    let plan = plan(spec("Always", &["i", "s", "a"]));
    let mut obs = observed(&plan);
    let (i, s, a) = (0, 1, 2);
    let told = |obs: &Observation, c, wait| explain(&plan, obs, c, wait, NOW);
    assert_eq!(told(&obs, s, gate(i, Need::Completed)), "waits for `i` to complete: about to start");
    assert_eq!(
        told(&obs, a, gate(s, Need::Started)),
        "waits for `s` to be started: `s` waits for `i` to complete: about to start"
    );
    put(&plan, &mut obs, "i", "Rn");
    assert_eq!(told(&obs, s, gate(i, Need::Completed)), "waits for `i` to complete: running for 12.4 s");
    assert_eq!(
        told(&obs, a, gate(s, Need::Started)),
        "waits for `s` to be started: `s` waits for `i` to complete: running for 12.4 s"
    );
    obs.containers[i].state = State::Starting { since: NOW - 300 };
    assert_eq!(told(&obs, s, gate(i, Need::Completed)), "waits for `i` to complete: it is starting");
    obs.containers[i].state = State::Unknown;
    assert_eq!(
        told(&obs, s, gate(i, Need::Completed)),
        "waits for `i` to complete: the runtime has lost track of it"
    );
    end(&mut obs.containers[i], exit(1));
    assert_eq!(
        told(&obs, s, gate(i, Need::Completed)),
        "waits for `i` to complete: ended with exit code 1, about to restart"
    );
    obs.containers[i].restarts = 3;
    obs.containers[i].backoff = Backoff { wait_ms: Some(40_000), let_through: T0 };
    assert_eq!(
        told(&obs, s, gate(i, Need::Completed)),
        "waits for `i` to complete: ended with exit code 1, restarts in 32.6 s (back-off after 3 restarts)"
    );
    end(&mut obs.containers[i], Exit { killed_for: Some(KillReason::Startup), ..exit(1) });
    assert_eq!(
        told(&obs, s, gate(i, Need::Completed)),
        "waits for `i` to complete: ended with exit code 1 because its startup probe failed, about to restart"
    );
    end(&mut obs.containers[i], exit(0));
    run(&mut obs.containers[s]);
    assert_eq!(told(&obs, a, gate(s, Need::Started)), "waits for `s` to be started: startup probe pending");
    obs.containers[s].probes[0] = failing(2, Some("exit code 1"));
    assert_eq!(
        told(&obs, a, gate(s, Need::Started)),
        "waits for `s` to be started: startup probe failed (1 of 3), last: exit code 1"
    );
    obs.containers[s].kill = Some(Kill {
        reason: KillReason::Startup,
        since: T0,
        deadline: NOW,
        signalled_at: None,
        killed_at: None,
    });
    assert_eq!(
        told(&obs, a, gate(s, Need::Started)),
        "waits for `s` to be started: being stopped because its startup probe failed"
    );
}

#[test]
fn chains_are_followed_one_step() {
    let plan = plan(spec("Always", &["i1", "i2", "i3", "a"]));
    let obs = observed(&plan);
    assert_eq!(
        explain(&plan, &obs, 3, gate(2, Need::Completed), NOW),
        "waits for `i3` to complete: `i3` waits for `i2` to complete: not started yet"
    );
}

#[test]
fn ready_gates_name_probe_and_hook() {
    let mut plan = kep_plan(pod(spec("Always", &["proxy", "a"])), &[0]);
    plan.containers[0].probes[ProbeKind::Readiness as usize] = Some(PROBE);
    let mut obs = observed(&plan);
    run(&mut obs.containers[0]);
    let ready = gate(0, Need::Ready);
    obs.containers[0].probes[2] = failing(3, Some("connection refused"));
    assert_eq!(
        explain(&plan, &obs, 1, ready, NOW),
        "waits for `proxy` to be ready: readiness probe failed (2 of 3), last: connection refused"
    );
    obs.containers[0].probes[2] = failing(1, None);
    let once = "waits for `proxy` to be ready: readiness probe failed";
    assert_eq!(explain(&plan, &obs, 1, ready, NOW), once);
    obs.containers[0].probes[2] = failing(30, None);
    let long = "waits for `proxy` to be ready: readiness probe failed (3 of 3)";
    assert_eq!(explain(&plan, &obs, 1, ready, NOW), long);
    obs.containers[0].probes[2] = Probe { in_flight: Some(NOW - 800), ..Probe::default() };
    let silent = "waits for `proxy` to be ready: readiness probe pending for 0.8 s";
    assert_eq!(explain(&plan, &obs, 1, ready, NOW), silent);
    obs.containers[0].probes[2] = Probe { next_at: NOW + 3_000, ..Probe::default() };
    let first = "waits for `proxy` to be ready: first readiness probe in 3 s";
    assert_eq!(explain(&plan, &obs, 1, ready, NOW), first);
    obs.containers[0].probes[2] = Probe { message: Some("no such port".into()), ..Probe::default() };
    let error = "waits for `proxy` to be ready: readiness probe could not run: no such port";
    assert_eq!(explain(&plan, &obs, 1, ready, NOW), error);
    plan.containers[0].probes[2] = Some(ProbePlan { success_threshold: 3, ..PROBE });
    obs.containers[0].probes[2] = Probe { last_ok: Some(true), run: 1, ..Probe::default() };
    let part = "waits for `proxy` to be ready: readiness probe succeeded 1 of 3 times";
    assert_eq!(explain(&plan, &obs, 1, ready, NOW), part);
    plan.containers[0].post_start = Some(HookPlan { timeout_ms: None, sleep_ms: None });
    obs.containers[0].post_start = Hook::Running { since: NOW - 2_000 };
    let hook = "waits for `proxy` to be ready: in its postStart hook, running for 2 s";
    assert_eq!(explain(&plan, &obs, 1, ready, NOW), hook);
}

#[test]
fn a_gate_on_one_that_has_ended_for_good() {
    let plan = kep_plan(pod(spec("Never", &["proxy", "a"])), &[0]);
    let mut obs = observed(&plan);
    end(&mut obs.containers[0], exit(2));
    let told = explain(&plan, &obs, 1, gate(0, Need::Ready), NOW);
    assert!(told.starts_with("waits for `proxy` to be ready: ended with exit code 2"), "{told}");
    let launched = explain(&plan, &obs, 1, gate(0, Need::Launched), NOW);
    assert!(launched.starts_with("waits for `proxy` to be launched: "), "{launched}");
}

#[test]
fn every_other_wait() {
    let plan = plan(spec("Always", &["a", "b"]));
    let base = observed(&plan);
    let with = |change: &dyn Fn(&mut Observation), wait| {
        let mut obs = base.clone();
        change(&mut obs);
        explain(&plan, &obs, 0, wait, NOW)
    };
    let same = |_: &mut Observation| {};
    let sandbox = |state, failures, message: Option<&'static str>| {
        with(
            &move |o: &mut Observation| {
                o.sandbox.state = state;
                o.sandbox.failures = failures;
                o.sandbox.retry_at = NOW + 3_000;
                o.sandbox.message = message.map(Into::into);
            },
            Wait::Sandbox,
        )
    };
    assert_eq!(sandbox(SandboxState::Absent, 0, None), "waits for the pod's sandbox: not created yet");
    assert_eq!(sandbox(SandboxState::Creating, 0, None), "waits for the pod's sandbox: being created");
    assert_eq!(sandbox(SandboxState::Lost, 0, None), "waits for the pod's sandbox: lost");
    assert_eq!(
        sandbox(SandboxState::Absent, 2, Some("no address left")),
        "waits for the pod's sandbox: could not be created (2 tries), last: no address left, next try in 3 s"
    );
    assert_eq!(with(&same, Wait::Image), "waits for its image: being pulled");
    let failed_once = |o: &mut Observation| o.containers[0].image_failures = 1;
    assert_eq!(with(&failed_once, Wait::Image), "waits for its image: being pulled, after 1 failed try");
    let at = NOW + 20_000;
    let pull_failed = |o: &mut Observation| {
        o.containers[0].image =
            Image::Failed { reason: "ErrImagePull".into(), message: "no route to host".into(), retry_at: at };
    };
    assert_eq!(
        with(&pull_failed, Wait::ImageRetry { at }),
        "waits for its image: ErrImagePull: no route to host, next try in 20 s"
    );
    let crashed = |o: &mut Observation| {
        end(&mut o.containers[0], exit(1));
        o.containers[0].restarts = 3;
    };
    assert_eq!(
        with(&crashed, Wait::Backoff { until: NOW + 8_200 }),
        "restarts in 8.2 s (back-off after 3 restarts, last exit code 1)"
    );
    let starved = |o: &mut Observation| {
        end(&mut o.containers[0], Exit { reason: crate::ExitReason::OomKilled, ..exit(137) });
        o.containers[0].restarts = 1;
    };
    assert_eq!(
        with(&starved, Wait::Backoff { until: NOW + 100_000 }),
        "restarts in 1 min 40 s (back-off after 1 restart, last exit code 137, out of memory)"
    );
    let refused = |o: &mut Observation| {
        o.containers[0].start_failure = Some(StartFailure {
            reason: "CreateContainerConfigError".into(),
            message: "secret `x` not found".into(),
            retry_at: NOW + 1_000,
            failures: 1,
        });
    };
    assert_eq!(
        with(&refused, Wait::StartRetry { at: NOW + 1_000 }),
        "could not be started: CreateContainerConfigError: secret `x` not found, next try in 1 s"
    );
    for (hook, expect) in [
        (HookKind::PostStart, "waits for its postStart hook, running for 3 s"),
        (HookKind::PreStop, "waits for its preStop hook, running for 3 s"),
        (HookKind::FirstPreStop, "waits for its first preStop hook, running for 3 s"),
    ] {
        let action = Action::RunHook { container: 0, attempt: 0, hook, deadline: None };
        let hooked = |o: &mut Observation| o.mark(&plan, &action, NOW - 3_000);
        assert_eq!(with(&hooked, Wait::Hook { hook }), expect);
    }
    assert_eq!(with(&same, Wait::StopTurn { on: 1 }), "stops after `b`, which is still running");
    let first_hook = |o: &mut Observation| {
        o.containers[1].first_pre_stop = Hook::Running { since: NOW - 2_000 };
    };
    assert_eq!(
        with(&first_hook, Wait::FirstPreStop { on: 1 }),
        "stops after the preStop hook of `b`, running for 2 s"
    );
    assert_eq!(with(&same, Wait::FirstPreStop { on: 1 }), "stops after the preStop hook of `b`");
    assert_eq!(
        with(&same, Wait::SidecarDelay { until: NOW + 2_000 }),
        "stops in 2 s: the mains are done, and outrigger.dev/sidecar-delay keeps it running"
    );
    assert_eq!(with(&same, Wait::Rerun { not_before: NOW + 8_000 }), "restarts with the whole pod in 8 s");
    let told = |reason, signalled_at| {
        with(
            &move |o: &mut Observation| {
                let kill = Kill { reason, since: T0, deadline: NOW, signalled_at, killed_at: None };
                o.containers[0].kill = Some(kill);
            },
            Wait::Stopping { kill_at: NOW + 28_800 },
        )
    };
    assert_eq!(told(KillReason::PodStop, Some(NOW)), "told to stop; KILL in 28.8 s");
    assert_eq!(told(KillReason::PodStop, Some(NOW - 1_200)), "told to stop 1.2 s ago; KILL in 28.8 s");
    assert_eq!(
        told(KillReason::Liveness, Some(NOW - 1_200)),
        "told to stop 1.2 s ago because its liveness probe failed; KILL in 28.8 s"
    );
    assert_eq!(
        told(KillReason::PodStop, None),
        "will be told to stop as soon as it has started; KILL in 28.8 s"
    );
}

#[test]
fn waits_for_its_own_probes() {
    let mut plan = plan(spec("Always", &["a"]));
    plan.containers[0].probes = [Some(PROBE), None, Some(PROBE)];
    let mut obs = observed(&plan);
    run(&mut obs.containers[0]);
    obs.containers[0].probes[0] = failing(1, Some("exit code 1"));
    assert_eq!(
        explain(&plan, &obs, 0, Wait::StartupProbe, NOW),
        "running, startup probe failed, last: exit code 1"
    );
    assert_eq!(
        explain(&plan, &obs, 0, Wait::ReadinessProbe, NOW),
        "running, not ready: readiness probe pending"
    );
}

#[test]
fn what_ends_a_pod() {
    let mut spec = spec("Always", &["i", "a"]);
    spec["activeDeadlineSeconds"] = json!(90);
    spec["volumes"] = json!([{"name": "data", "emptyDir": {"sizeLimit": "1Mi"}}]);
    let plan = plan(spec);
    let obs = observed(&plan);
    for (cause, expect) in [
        (StopCause::Deleted, "was asked to stop"),
        (StopCause::Completed, "has completed"),
        (StopCause::InitFailed { container: 0 }, "init container `i` failed and is not restarted"),
        (StopCause::DeadlineExceeded, "was active longer than its deadline of 1 min 30 s"),
        (StopCause::Fatal { container: 1 }, "container `a` ended, which ends the pod"),
        (
            StopCause::GateNeverOpens { container: 1, on: 0 },
            "container `a` waits for `i`, which has ended and will not be restarted",
        ),
        (StopCause::NodeShutdown, "was stopped because the machine shuts down"),
        (
            StopCause::CannotStart { container: Some(1) },
            "container `a` cannot start, and trying again cannot help",
        ),
        (StopCause::CannotStart { container: None }, "cannot be set up, and trying again cannot help"),
        (StopCause::NotRetried { container: Some(1) }, "container `a` failed"),
        (StopCause::NotRetried { container: None }, "could not be set up"),
        (StopCause::SandboxLost, "lost its sandbox, and restartPolicy Never does not let it start again"),
        (StopCause::VolumeFull { volume: 0 }, "volume `data` holds more than its limit of 1Mi"),
    ] {
        assert_eq!(explain_stop(&plan, &obs, cause), expect);
    }
    // Mains that have ended for good have not necessarily succeeded.
    let plan = self::plan(self::spec("Never", &["i", "a"]));
    let mut obs = observed(&plan);
    end(&mut obs.containers[1], exit(3));
    for cause in [StopCause::Completed, StopCause::NotRetried { container: Some(1) }] {
        assert_eq!(explain_stop(&plan, &obs, cause), "container `a` failed with code 3");
    }
}
