//! Snapshots of the view. They use the real engine and the real trace, with simulated containers.

use std::sync::Arc;

use outrigger_lifecycle::trace::{Recorder, WorkloadEvent, WorkloadRecord};
use outrigger_lifecycle::{
    Action, Decision, Engine, Event, Exit, ExitReason, FeatureGates, Plan, PodInput, ProbeKind, ProbeOutcome,
    Time, plan,
};
use serde_json::{Value, json};

use crate::PodView;
use crate::frame::Size;
use crate::frame::frame;
use crate::ledger::Ledger;
use crate::line::Look;
use crate::summary::summary;
use crate::words::{Weight, tell};

/// No Job waits before its next pod.
const NO_JOBS: std::iter::Empty<(&str, Time)> = std::iter::empty();
const LOOK: Look = Look { colors: false, unicode: true };

fn planned(spec: Value) -> Plan {
    let pod = json!({"metadata": {"name": "report-x7k2p"}, "spec": spec});
    let input = PodInput { pod: serde_json::from_value(pod).expect("a pod"), ..PodInput::default() };
    plan(&input, &FeatureGates::default()).expect("a plan").plan
}

/// A Job with a log shipper and a proxy that must start before the work.
fn job() -> Plan {
    planned(json!({
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 10,
        "initContainers": [
            {"name": "prepare", "image": "i"},
            {"name": "shipper", "image": "i", "restartPolicy": "Always"},
            {"name": "proxy", "image": "i", "restartPolicy": "Always",
                "startupProbe": {"httpGet": {"path": "/healthz", "port": 15021}, "periodSeconds": 2, "failureThreshold": 30}},
        ],
        "containers": [{"name": "work", "image": "i"}],
    }))
}

fn record(entry: Value) -> outrigger_lifecycle::trace::Record {
    outrigger_lifecycle::trace::Line::from_json(&entry).unwrap().pod().unwrap()
}

struct Play {
    engine: Engine,
    recorder: Recorder,
    now: Time,
    decision: Decision,
    view: PodView,
    ledger: Ledger,
    lines: Vec<String>,
}

impl Play {
    fn new(plan: Plan) -> Self {
        let now = Time(1_000_000);
        let name: Arc<str> = plan.pod.as_str().into();
        let mut play = Play {
            recorder: Recorder::new(&plan),
            now,
            decision: Decision::default(),
            view: PodView::new(name.clone(), Arc::new(plan.clone()), now),
            ledger: Ledger::new([(&*name, &plan)]),
            engine: Engine::new(plan, now),
            lines: Vec::new(),
        };
        play.step();
        play
    }

    fn enter(&mut self, entries: &[outrigger_lifecycle::trace::Entry]) {
        for entry in entries {
            let record = entry.clone().into_record(self.engine.plan(), &self.view.name, "t".to_owned());
            self.ledger.enter(0, entry.time.0, &record);
            if let Some(told) = tell(&record) {
                let who = record.container.as_deref().unwrap_or("pod");
                let mark = match told.weight {
                    Weight::Routine => ' ',
                    Weight::Notable => '·',
                    Weight::Trouble => '!',
                };
                self.lines.push(format!("{:>6} {mark} {who:<8}{}", entry.time.0 - 1_000_000, told.text));
            }
        }
    }

    fn step(&mut self) {
        self.engine.step(self.now, &mut self.decision);
        let mut entries = Vec::new();
        let (plan, obs) = (self.engine.plan(), self.engine.observation());
        self.recorder.on_step(plan, obs, &self.decision, self.now, &mut entries);
        self.view.obs = Arc::new(obs.clone());
        self.view.waits = self.decision.waits.as_slice().into();
        self.enter(&entries);
    }

    fn tell(&mut self, event: Event) -> Vec<Action> {
        self.engine.handle(&event, self.now);
        let mut entries = Vec::new();
        let (plan, obs) = (self.engine.plan(), self.engine.observation());
        self.recorder.on_event(plan, obs, &event, self.now, &mut entries);
        self.enter(&entries);
        self.step();
        self.decision.actions.clone()
    }

    fn pass(&mut self, ms: u64) {
        self.now = self.now + ms;
        self.step();
    }

    fn find(&self, name: &str) -> (usize, u32) {
        let container = self.engine.plan().find(name).expect(name);
        (container, self.engine.observation().containers[container].attempt)
    }

    fn images(&mut self) {
        for container in 0..self.engine.plan().containers.len() {
            self.tell(Event::ImageReady { container });
        }
    }

    fn started(&mut self, name: &str) {
        let (container, attempt) = self.find(name);
        self.tell(Event::Started { container, attempt });
    }

    fn exited(&mut self, name: &str, code: i32, signal: Option<i32>) {
        let (container, attempt) = self.find(name);
        let started_at = self.engine.observation().containers[container].running_since();
        let reason = if code == 0 { ExitReason::Completed } else { ExitReason::Error };
        let finished_at = self.now;
        let exit = Exit { code, signal, reason, started_at, finished_at, message: None, killed_for: None };
        self.tell(Event::Exited { container, attempt, exit });
    }

    fn probed(&mut self, name: &str, kind: ProbeKind, message: Option<&str>) {
        let (container, attempt) = self.find(name);
        let outcome = if message.is_none() { ProbeOutcome::Success } else { ProbeOutcome::Failure };
        self.tell(Event::Probed {
            container,
            attempt,
            kind,
            outcome,
            message: message.map(Into::into),
            cause: None,
        });
    }

    /// A `job` up to the moment its mains run.
    fn job_runs() -> Self {
        let mut play = Play::new(job());
        play.images();
        play.tell(Event::SandboxReady);
        for (name, ms) in [("prepare", 400), ("shipper", 20), ("proxy", 1_500)] {
            play.started(name);
            play.pass(ms);
            match name {
                "prepare" => play.exited(name, 0, None),
                "proxy" => play.probed(name, ProbeKind::Startup, None),
                _ => {}
            }
        }
        play.started("work");
        play
    }

    fn frames(&self) -> String {
        frames(std::slice::from_ref(&self.view), self.now, 24)
    }

    fn summary(&self) -> String {
        let written = [("timeline", "/tmp/run.svg"), ("events", "/tmp/events.jsonl")]
            .map(|(what, path)| (what.to_owned(), path.to_owned()));
        let mut text = String::new();
        for columns in [20, 80, 160] {
            text.push_str(&format!("{}\n", ruler(columns)));
            for line in summary(&self.ledger, &written, columns - 1) {
                text.push_str(&format!("{}\n", line.render(LOOK)));
            }
        }
        text
    }
}

fn ruler(columns: usize) -> String {
    format!("{columns:─<0$}", columns)
}

fn frames(pods: &[PodView], now: Time, rows: usize) -> String {
    let mut text = String::new();
    for columns in [20, 80, 160] {
        text.push_str(&format!("{}\n", ruler(columns)));
        let lines = frame(pods, NO_JOBS, now, Size { columns, rows });
        assert!(lines.len() < rows, "{} lines in {rows} rows", lines.len());
        for line in lines {
            assert!(line.width() < columns, "{columns}: {line:?}");
            text.push_str(&format!("{}\n", line.render(LOOK)));
        }
    }
    text
}

#[test]
fn at_the_beginning_all_wait() {
    let mut play = Play::new(job());
    play.pass(300);
    insta::assert_snapshot!(play.frames());
}

#[test]
fn pulls_have_bars() {
    let mut play = Play::new(job());
    play.tell(Event::SandboxReady);
    play.view.pulls[0] = Some((14 << 20, Some(20 << 20)));
    play.view.pulls[2] = Some((700 << 10, Some(70 << 20)));
    play.view.pulls[3] = Some((700 << 10, None));
    play.pass(900);
    insta::assert_snapshot!(play.frames());
}

#[test]
fn a_probe_that_fails_is_the_reason() {
    let mut play = Play::new(job());
    play.images();
    play.tell(Event::SandboxReady);
    play.started("prepare");
    play.pass(400);
    play.exited("prepare", 0, None);
    play.started("shipper");
    play.pass(20);
    play.started("proxy");
    for _ in 0..4 {
        play.probed("proxy", ProbeKind::Startup, Some("GET :15021/healthz answered 503"));
        play.pass(2_000);
    }
    insta::assert_snapshot!(play.frames());
}

#[test]
fn when_all_run_there_is_little_to_say() {
    let mut play = Play::job_runs();
    play.pass(75_000);
    insta::assert_snapshot!(play.frames());
}

#[test]
fn a_stop_shows_whose_turn_it_is() {
    let mut play = Play::job_runs();
    play.pass(2_000);
    play.tell(Event::StopRequested { grace_ms: None });
    play.pass(1_700);
    play.exited("work", 143, Some(15));
    play.pass(500);
    insta::assert_snapshot!(play.frames());
}

#[test]
fn a_pod_that_is_stopping_promises_no_other_try() {
    for stop in [false, true] {
        let mut play = Play::new(planned(json!({"containers": [{"name": "db", "image": "i"}]})));
        play.images();
        play.tell(Event::SandboxReady);
        if stop {
            play.tell(Event::StopRequested { grace_ms: None });
        }
        let (container, attempt) = play.find("db");
        let (reason, message) = ("CreateContainerError".into(), "no".into());
        play.tell(Event::StartFailed { container, attempt, reason, message, cause: None });
        let said = play.lines.iter().find(|line| line.contains("could not start")).expect("the failure");
        assert_eq!(said.contains("next try in"), !stop, "{said}");
    }
}

#[test]
fn the_reason_of_a_stop_is_never_cut() {
    let mut play = Play::job_runs();
    play.pass(2_000);
    let (container, _) = play.find("work");
    play.tell(Event::CannotStart { container: Some(container), grace_ms: None });
    play.pass(1_700);
    let lines = frame(std::slice::from_ref(&play.view), NO_JOBS, play.now, Size { columns: 60, rows: 24 });
    let lines: Vec<String> = lines.iter().map(|l| l.render(LOOK)).collect();
    assert!(lines[0].contains(" stopping ") && lines[0].ends_with(" grace left"), "{lines:?}");
    assert_eq!(lines[1], "  container `work` cannot start, and trying again cannot");
    assert_eq!(lines[2], "  help");
}

/// `ps` and the summary use the same word.
#[test]
fn a_pod_that_was_stopped_is_shown_as_stopped() {
    let ended = |name: &str, stop: bool| {
        let mut play = Play::new(planned(json!({"restartPolicy": "Never",
            "containers": [{"name": "db", "image": "i"}]})));
        play.images();
        play.tell(Event::SandboxReady);
        play.started("db");
        if stop {
            play.tell(Event::StopRequested { grace_ms: None });
        }
        play.exited("db", 143, Some(15));
        assert!(play.engine.observation().over);
        (PodView { name: name.into(), ..play.view.clone() }, play.now)
    };
    let ((stopped, now), (failed, _)) = (ended("db-0", true), ended("db-1", false));
    let rows = |pods: &[PodView]| {
        let lines = frame(pods, NO_JOBS, now, Size { columns: 80, rows: 24 });
        lines.iter().map(|l| format!("{}\n", l.render(LOOK))).collect::<String>()
    };
    let both = rows(&[stopped.clone(), failed]);
    assert!(both.contains("db-0 stopped ") && both.contains("db-1 failed "), "{both}");
    assert!(both.contains("2 pods · 1 stopped · 1 failed"), "{both}");
    let one = rows(&[stopped]);
    assert!(one.contains("db-0 stopped ") && one.contains("■ db  main    exit 143 TERM"), "{one}");
}

#[test]
fn a_crash_loop_shows_code_and_pause() {
    let mut play = Play::new(planned(json!({
        "containers": [
            {"name": "app", "image": "i"},
            {"name": "metrics-exporter", "image": "i",
                "readinessProbe": {"exec": {"command": ["x"]}, "periodSeconds": 1}},
        ],
    })));
    play.images();
    play.tell(Event::SandboxReady);
    for _ in 0..2 {
        play.started("app");
        if play.engine.observation().containers[1].running_since().is_none() {
            play.started("metrics-exporter");
        }
        play.pass(30);
        play.exited("app", 1, None);
        play.pass(0);
    }
    play.pass(3_000);
    play.probed("metrics-exporter", ProbeKind::Readiness, Some("exit code 1\nno such file\x1b[2J"));
    insta::assert_snapshot!(play.frames());
}

#[test]
fn no_room_is_too_small() {
    let mut play = Play::job_runs();
    for _ in 0..2 {
        for rows in 0..30 {
            for columns in 0..45 {
                let lines =
                    frame(std::slice::from_ref(&play.view), NO_JOBS, play.now, Size { columns, rows });
                assert!(lines.len() < rows.max(1), "{columns}×{rows}");
                assert!(lines.iter().all(|l| l.width() < columns), "{columns}×{rows}: {lines:?}");
            }
        }
        play.tell(Event::StopRequested { grace_ms: None });
    }
    let heights = [1, 2, 3, 4, 5, 6, 7].map(|rows| {
        let lines = frame(std::slice::from_ref(&play.view), NO_JOBS, play.now, Size { columns: 60, rows });
        lines.iter().map(|l| format!("{}\n", l.render(LOOK))).collect::<String>()
    });
    insta::assert_snapshot!(heights.join("──\n"));
}

#[test]
fn many_containers_leave_out_what_is_well() {
    let containers: Vec<Value> = (0..40).map(|i| json!({"name": format!("c{i}"), "image": "i"})).collect();
    let mut play = Play::new(planned(json!({"restartPolicy": "Never", "containers": containers})));
    play.images();
    play.tell(Event::SandboxReady);
    (0..40).for_each(|i| play.started(&format!("c{i}")));
    play.pass(100);
    (0..10).for_each(|i| play.exited(&format!("c{i}"), i32::from(i == 7), None));
    play.pass(5_000);
    insta::assert_snapshot!(play.frames());
}

#[test]
fn many_pods_are_counted() {
    let mut pods = Vec::new();
    let mut now = Time(0);
    for i in 0..100 {
        let mut play = match i {
            0 | 50..60 => Play::new(job()),
            _ => Play::job_runs(),
        };
        if i % 10 == 3 {
            play.exited("work", i % 20 / 10, None);
            for name in ["proxy", "shipper"] {
                play.exited(name, 0, None);
            }
        }
        play.pass(1_000_000 + 5_000 - play.now.0);
        play.view.name = format!("report-{i}").into();
        now = play.now;
        pods.push(play.view);
    }
    let mut text = frames(&pods, now, 24);
    text.push_str("two pods\n");
    text.push_str(&frames(&pods[..2], now, 24));
    insta::assert_snapshot!(text);
    for rows in 0..30 {
        assert!(frame(&pods, NO_JOBS, now, Size { columns: 30, rows }).len() < rows.max(1), "{rows}");
    }
}

#[test]
fn workloads_stand_above_their_pods() {
    let mut pods = Vec::new();
    let mut now = Time(0);
    for (name, workload) in [
        ("report-x7k2p", Some("Job/report")),
        ("web-0", Some("StatefulSet/web")),
        ("report-ab3de", Some("Job/report")),
        ("alone", None),
    ] {
        let mut play = if name == "web-0" { Play::new(job()) } else { Play::job_runs() };
        if name == "report-x7k2p" {
            for container in ["work", "proxy", "shipper"] {
                play.exited(container, 0, None);
            }
        }
        play.pass(1_000_000 + 5_000 - play.now.0);
        (play.view.name, play.view.workload) = (name.into(), workload.map(Into::into));
        now = play.now;
        pods.push(play.view);
    }
    let mut text = frames(&pods, now, 40);
    text.push_str("little room\n");
    text.push_str(&frames(&pods, now, 14));
    text.push_str("one pod\n");
    text.push_str(&frames(&pods[1..2], now, 24));
    insta::assert_snapshot!(text);
    for rows in 0..40 {
        for pods in [&pods[..], &pods[..1]] {
            assert!(frame(pods, NO_JOBS, now, Size { columns: 50, rows }).len() < rows.max(1), "{rows}");
        }
    }
}

/// Between two pods of a Job, the view counts down to the next one.
#[test]
fn a_job_that_backs_off_counts_down_to_its_next_pod() {
    let workload = |event: WorkloadEvent| WorkloadRecord {
        time: String::new(),
        workload: "Job/report".to_owned(),
        event,
    };
    let mode = outrigger_lifecycle::trace::CompletionMode::NonIndexed;
    let started = WorkloadEvent::JobStarted { completions: Some(1), parallelism: 1, mode };
    let mut play = Play::job_runs();
    for (name, code) in [("work", 1), ("proxy", 0), ("shipper", 0)] {
        play.exited(name, code, None);
    }
    let ended = play.now.0;
    play.ledger.enter_workload(1_000_000, &workload(started));
    play.ledger.enter_workload(ended, &workload(WorkloadEvent::JobBackOff { wait_ms: 10_000 }));
    let shown = |play: &Play, now: u64, columns: usize, rows: usize| {
        let pods = std::slice::from_ref(&play.view);
        let lines = frame(pods, play.ledger.next_pods(), Time(now), Size { columns, rows });
        assert!(lines.len() < rows.max(1) && lines.iter().all(|l| l.width() < columns.max(1)), "{lines:?}");
        lines.iter().map(|l| format!("{}\n", l.render(LOOK))).collect::<String>()
    };
    let text = shown(&play, ended + 1_500, 60, 24);
    assert!(text.ends_with("\nJob/report next pod in 8.5 s · back-off after a failure\n"), "{text}");
    let text = shown(&play, ended + 12_000, 60, 24);
    assert!(text.contains("next pod in 0 s"), "it is late: {text}");
    for (columns, rows) in [(1, 1), (10, 3), (30, 2), (30, 4), (160, 5)] {
        shown(&play, ended + 1_500, columns, rows);
    }
    let created = WorkloadEvent::PodCreated { pod: "report-ab3de".to_owned(), index: None, attempt: None };
    play.ledger.enter_workload(ended + 10_000, &workload(created));
    let text = shown(&play, ended + 10_000, 60, 24);
    assert!(!text.contains("next pod"), "{text}");
}

#[test]
fn the_summary_repeats_what_was_to_be_learned() {
    let mut play = Play::new(job());
    play.pass(2_000);
    let failed = record(
        json!({"container": "proxy", "event": "pull-failed", "error": "ErrImagePull", "message": "not found",
        "manifest": "job.yaml:12", "hint": "check the spelling of the name and that the tag exists"}),
    );
    play.ledger.enter(0, play.now.0, &failed);
    let told = tell(&failed).expect("it is told");
    assert_eq!(told.weight, Weight::Trouble);
    assert_eq!(
        told.hint.as_deref(),
        Some("job.yaml:12: check the spelling of the name and that the tag exists")
    );
    play.tell(Event::StopRequested { grace_ms: None });
    insta::assert_snapshot!(play.summary());
}

#[test]
fn the_summary_says_who_took_the_time() {
    let mut play = Play::job_runs();
    play.pass(2_000);
    play.exited("work", 0, None);
    play.pass(14);
    play.exited("proxy", 0, None);
    play.pass(222);
    play.exited("shipper", 0, None);
    assert!(play.engine.observation().over);
    insta::assert_snapshot!(play.summary());
    insta::assert_snapshot!("entries_as_lines", play.lines.join("\n"));
}

#[test]
fn the_summary_of_a_failure_names_its_cause() {
    let mut play = Play::job_runs();
    play.pass(2_000);
    play.exited("work", 3, None);
    play.pass(9_000);
    play.pass(2_000);
    play.exited("proxy", 137, Some(9));
    play.pass(100);
    play.exited("shipper", 137, Some(9));
    assert!(play.engine.observation().over);
    insta::assert_snapshot!(play.summary());
}

#[test]
fn the_summary_of_many_tells_the_failed() {
    let plan = job();
    let names: Vec<String> = (0..20).map(|i| format!("report-{i}")).collect();
    let mut ledger = Ledger::new(names.iter().map(|name| (name.as_str(), &plan)));
    for i in 0..20 {
        let phase = if i == 13 { "Failed" } else { "Succeeded" };
        let code = i32::from(i == 13);
        ledger.enter(i, 0, &record(json!({"event": "sandbox-creating"})));
        ledger.enter(i, 10, &record(json!({"container": "work", "event": "started"})));
        ledger.enter(
            i,
            1_000,
            &record(json!({"container": "work", "event": "exited", "code": code, "ran_ms": 990})),
        );
        ledger.enter(i, 1_200 + i as u64, &record(json!({"event": "finished", "phase": phase})));
    }
    let lines = summary(&ledger, &[], 79);
    insta::assert_snapshot!(lines.iter().map(|l| format!("{}\n", l.render(LOOK))).collect::<String>());
}

/// The engine decides how a stopped pod is called, and all outputs use this word.
#[test]
fn a_pod_that_was_stopped_is_not_called_failed() {
    let plan = job();
    for (stopped, word) in [(true, "stopped"), (false, "failed")] {
        let end = record(json!({"event": "finished", "phase": "Failed", "stopped": stopped}));
        assert_eq!(crate::words::tell(&end).map(|told| told.text).as_deref(), Some(word));
        let mut ledger = Ledger::new([("report", &plan)]);
        ledger.enter(0, 0, &record(json!({"event": "sandbox-creating"})));
        ledger.enter(
            0,
            1_100,
            &record(json!({"event": "stop-begun", "cause": "deleted", "grace_ms": 10_000})),
        );
        ledger.enter(0, 1_200, &end);
        let said = summary(&ledger, &[], 79)[0].render(LOOK);
        assert!(said.contains(&format!("report {word} after")), "{said}");
    }
}

/// The lines of a summary after these entries: `(ms, container or "", event, details)`.
fn summed(plan: &Plan, entries: &[(u64, &str, &str, Value)]) -> Vec<String> {
    let mut ledger = Ledger::new([("report", plan)]);
    for (at, container, event, details) in entries {
        let mut entry = json!({"event": event});
        if !container.is_empty() {
            entry["container"] = (*container).into();
        }
        entry.as_object_mut().unwrap().extend(details.as_object().unwrap().clone());
        ledger.enter(0, *at, &record(entry));
    }
    summary(&ledger, &[], 119).iter().map(|line| line.render(LOOK)).collect()
}

/// A KEP sidecar runs its preStop hook before the mains get their signal, and waits for them before its own.
#[test]
fn a_container_is_not_charged_for_the_time_it_waits_for_its_turn_to_stop() {
    let hook = |hook: &str| json!({"hook": hook});
    let said = summed(
        &job(),
        &[
            (0, "", "stop-begun", json!({"cause": "deleted", "grace_ms": 30_000})),
            (0, "proxy", "hook-started", hook("first preStop")),
            (200, "proxy", "hook-ended", hook("first preStop")),
            (200, "work", "terminating", json!({})),
            (5_000, "work", "exited", json!({"code": 0, "killed_for": "pod-stop"})),
            (5_000, "proxy", "hook-started", hook("preStop")),
            (5_100, "proxy", "hook-ended", hook("preStop")),
            (5_100, "proxy", "terminating", json!({})),
            (5_104, "proxy", "exited", json!({"code": 0, "killed_for": "pod-stop"})),
            (5_104, "", "finished", json!({"phase": "Succeeded"})),
        ],
    );
    let stop = said.iter().find(|line| line.contains("stopping took")).expect("the stop");
    assert_eq!(
        stop.trim(),
        "stopping took 5.1 s (grace period 30 s): work 4.8 s, proxy 304 ms (300 ms of it in its preStop hook)"
    );
}

#[test]
fn a_grace_period_below_the_minimum_says_what_containers_really_get() {
    let said = summed(
        &job(),
        &[
            (0, "", "stop-begun", json!({"cause": "deleted", "grace_ms": 1_000})),
            (0, "work", "terminating", json!({"kill_in_ms": 2_000})),
            (2_000, "work", "killing", json!({})),
            (2_000, "work", "exited", json!({"code": 137, "killed_for": "pod-stop"})),
            (2_000, "", "finished", json!({"phase": "Failed", "stopped": true})),
        ],
    );
    let stop = said.iter().find(|line| line.contains("stopping took")).expect("the stop");
    assert_eq!(
        stop.trim(),
        "stopping took 2 s (grace period 1 s, but at least 2 s for each container): work 2 s, then killed"
    );
    let told = |entry: Value| crate::words::tell(&record(entry)).expect("a sentence").text;
    let begun =
        json!({"event": "stop-begun", "cause": "deleted", "grace_ms": 1_000, "message": "was asked to stop"});
    assert_eq!(
        told(begun),
        "stopping: was asked to stop (grace period 1 s, but at least 2 s for each container)"
    );
    let term = json!({"event": "terminating", "container": "work", "kill_in_ms": 2_000});
    assert_eq!(told(term), "sent stop signal; SIGKILL in 2 s");
}

/// With --fail-fast, the pod ends before it has a sandbox, although its containers wait for the sandbox, too.
#[test]
fn a_pod_that_ends_because_of_an_image_says_so() {
    let said = summed(
        &job(),
        &[
            (0, "", "sandbox-creating", json!({})),
            (0, "work", "waiting", json!({"for": "sandbox"})),
            (0, "work", "pulling", json!({})),
            (50, "work", "pull-failed", json!({"error": "ErrImagePull", "message": "not found"})),
            (50, "", "stop-begun", json!({"cause": "deleted", "grace_ms": 30_000, "running": 0})),
            (50, "", "finished", json!({"phase": "Failed", "stopped": true})),
        ],
    );
    assert_eq!(said[0], "report stopped after 50 ms: the image of `work` could not be pulled");
    let work = said.iter().find(|line| line.trim_start().starts_with("work")).expect("its line");
    assert!(work.ends_with("never ran  its image could not be pulled"), "{work}");
}

/// A wait for the sandbox is not the cause if a volume, a setting or the container itself is wrong.
#[test]
fn a_container_that_never_ran_says_why() {
    let begin = [
        (0, "", "sandbox-creating", json!({})),
        (0, "work", "waiting", json!({"for": "sandbox"})),
        (0, "proxy", "waiting", json!({"for": "sandbox"})),
    ];
    let end = |at| (at, "", "finished", json!({"phase": "Failed", "stopped": false}));
    let of = |said: &[String], name: &str| {
        said.iter().find(|line| line.trim_start().starts_with(name)).cloned().expect("its line")
    };
    let no_volume = (60, "", "sandbox-failed", json!({"message": "volume \"v\": /x does not exist"}));
    let said = summed(&job(), &[&begin[..], &[no_volume.clone(), end(60)]].concat());
    assert_eq!(said[0], "report failed after 60 ms: could not be set up: volume \"v\": /x does not exist");
    assert!(of(&said, "work").ends_with("never ran"), "{said:?}");

    // The missing object appeared later.
    let later = [
        no_volume,
        (560, "", "sandbox-ready", json!({})),
        (560, "work", "starting", json!({"attempt": 0})),
        (560, "work", "started", json!({"attempt": 0})),
        end(900),
    ];
    let said = summed(&job(), &[&begin[..], &later].concat());
    assert!(of(&said, "work").contains("500 ms for the pod to be set up, 60 ms for the sandbox"), "{said:?}");

    let failed = [
        (60, "", "sandbox-ready", json!({})),
        (60, "work", "starting", json!({"attempt": 0})),
        (
            70,
            "work",
            "start-failed",
            json!({"attempt": 0, "error": "CreateContainerError", "message": "no such directory"}),
        ),
        end(70),
    ];
    let said = summed(&job(), &[&begin[..], &failed].concat());
    assert!(of(&said, "work").ends_with("never ran  could not start: no such directory"), "{said:?}");
}

/// A container that was killed once, for example by a liveness probe, may still stop by itself at the end.
#[test]
fn only_the_last_instance_of_a_container_is_called_killed() {
    let plan = job();
    let of_work = |fields: Value| {
        let mut entry = json!({"container": "work"});
        entry.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        record(entry)
    };
    for (is_killed_again, expected) in [(false, false), (true, true)] {
        let mut ledger = Ledger::new([("report", &plan)]);
        let mut enter = |at: u64, entry: &outrigger_lifecycle::trace::Record| ledger.enter(0, at, entry);
        enter(0, &of_work(json!({"event": "starting", "attempt": 0})));
        enter(500, &of_work(json!({"event": "killing"})));
        enter(510, &of_work(json!({"event": "exited", "code": 137, "ran_ms": 500})));
        enter(600, &of_work(json!({"event": "starting", "attempt": 1, "restarts": 1})));
        enter(900, &record(json!({"event": "stop-begun", "cause": "deleted", "grace_ms": 10_000})));
        enter(900, &of_work(json!({"event": "terminating"})));
        if is_killed_again {
            enter(950, &of_work(json!({"event": "killing"})));
        }
        enter(995, &of_work(json!({"event": "exited", "code": 0, "ran_ms": 400})));
        enter(996, &record(json!({"event": "finished", "phase": "Succeeded"})));
        let said: Vec<String> = summary(&ledger, &[], 99).iter().map(|line| line.render(LOOK)).collect();
        let stop = said.iter().find(|line| line.contains("stopping took")).expect("the stop");
        assert_eq!(stop.contains("then killed"), expected, "{stop}");
    }
}
