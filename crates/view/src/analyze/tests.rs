use outrigger_lifecycle::trace;
use serde_json::{Value, json};

use super::LinkKind::{self, *};
use super::*;

/// A trace entry as `(seconds, container or "", event, details)`.
type Row = (f64, &'static str, &'static str, Value);

fn entries(rows: &[Row]) -> Vec<Record> {
    let read = |entry: Value| trace::Line::from_json(&entry).unwrap().pod().unwrap();
    rows.iter()
        .map(|(at, container, event, details)| {
            let mut entry = json!({"time": format!("{at:.3}"), "pod": "p", "event": event});
            entry["container"] = if container.is_empty() { Value::Null } else { (*container).into() };
            for (key, value) in details.as_object().into_iter().flatten() {
                entry[key] = value.clone();
            }
            entry
        })
        .map(read)
        .collect()
}

fn analysis(rows: &[Row]) -> Analysis {
    analyze(&entries(rows)).unwrap()
}

fn links(chain: &[Link]) -> Vec<(&str, LinkKind, u64)> {
    chain.iter().map(|l| (l.container.as_deref().unwrap_or(""), l.kind, l.ms())).collect()
}

/// Checks that links follow one another and cover the whole time.
fn covers(chain: &[Link], from: u64, to: u64) {
    let mut at = from;
    for link in chain {
        assert_eq!(link.from_ms, at, "{chain:#?}");
        at = link.to_ms;
    }
    assert_eq!(at, to, "{chain:#?}");
}

fn gate(on: &str, need: &str) -> Value {
    json!({"attempt": 0, "opened_last": {"container": on, "need": need}, "opened_ms_ago": 0})
}

fn sidecar_and_main() -> Vec<Row> {
    vec![
        (0.0, "", "sandbox-creating", json!({})),
        (0.0, "s2", "pulling", json!({})),
        (0.0, "app", "pulling", json!({})),
        (0.1, "", "sandbox-ready", json!({})),
        (0.5, "s2", "pulled", json!({})),
        (0.5, "s2", "starting", json!({"attempt": 0})),
        (0.6, "s2", "started", json!({})),
        (0.6, "s2", "waiting", json!({"for": "startup-probe"})),
        (0.6, "s2", "probe", json!({"kind": "startup", "outcome": "failure", "period_ms": 10_000})),
        (0.9, "app", "pulled", json!({})),
        (1.9, "s2", "probe", json!({"kind": "startup", "outcome": "failure", "period_ms": 10_000})),
        (10.6, "s2", "probe", json!({"kind": "startup", "outcome": "success", "period_ms": 10_000})),
        (10.6, "s2", "startup-passed", json!({})),
        (10.6, "s2", "ready", json!({})),
        (10.6, "app", "starting", gate("s2", "started")),
        (10.7, "app", "started", json!({})),
        (10.7, "app", "ready", json!({})),
    ]
}

#[test]
fn a_start_is_walked_back_through_gates_and_probes() {
    let found = analysis(&sidecar_and_main());
    let start = found.start.unwrap();
    assert_eq!((start.complete, start.last.as_str(), start.took_ms), (true, "app", 10_700));
    covers(&start.chain, 0, 10_700);
    assert_eq!(
        links(&start.chain),
        [
            ("s2", Pull, 500),
            ("s2", LinkKind::Start, 100),
            ("s2", StartupProbe, 10_000),
            ("app", LinkKind::Start, 100)
        ]
    );
    assert_eq!(found.advice.len(), 1);
    assert_eq!(found.advice[0].field, "startupProbe.periodSeconds");
    assert_eq!(
        found.advice[0].text,
        "`s2`'s startupProbe period of 10 s cost 8.7 s; with 1 s it would cost at most 1 s (periodSeconds: 1)"
    );
    assert_eq!(found.stop, None);
}

#[test]
fn a_pull_that_ends_after_the_gate_opened_is_what_counts() {
    let mut rows = sidecar_and_main();
    rows.retain(|r| !(r.1 == "app" && matches!(r.2, "pulled" | "starting" | "started" | "ready")));
    rows.extend([
        (12.0, "app", "pulled", json!({})),
        (
            12.0,
            "app",
            "starting",
            json!({"opened_last": {"container": "s2", "need": "started"}, "opened_ms_ago": 1400}),
        ),
        (12.1, "app", "started", json!({})),
        (12.1, "app", "ready", json!({})),
    ]);
    let found = analysis(&rows);
    let chain = found.start.unwrap().chain;
    assert_eq!(links(&chain), [("app", Pull, 12_000), ("app", LinkKind::Start, 100)]);
    assert_eq!(found.advice[0].field, "image");
}

#[test]
fn a_slow_probe_is_blamed_only_when_the_trace_proves_it() {
    let table: [(&str, u64, &[f64], f64, Option<(&str, u64)>); 7] = [
        // kind, period, failures, success, (field, cost)
        ("startup", 1, &[1.0, 2.0, 3.0], 4.0, None),
        ("startup", 5, &[1.0, 6.0], 11.0, Some(("startupProbe.periodSeconds", 5_000))),
        ("startup", 10, &[0.2, 0.3, 0.5, 0.9], 1.3, None),
        ("startup", 10, &[], 8.0, Some(("startupProbe.initialDelaySeconds", 7_900))),
        // Once a probe has failed, further failures are not in the trace.
        ("readiness", 10, &[0.2], 32.0, Some(("readinessProbe.periodSeconds", 10_000))),
        ("readiness", 10, &[0.2, 10.2], 20.2, Some(("readinessProbe.periodSeconds", 10_000))),
        ("readiness", 10, &[], 0.3, None),
    ];
    for (kind, period, failures, success, expected) in table {
        let mut rows = vec![
            (0.0, "a", "starting", json!({"attempt": 0})),
            (0.1, "a", "started", json!({})),
            (0.1, "a", "waiting", json!({"for": format!("{kind}-probe")})),
        ];
        let failed = json!({"kind": kind, "outcome": "failure", "period_ms": period * 1_000});
        rows.extend(failures.iter().map(|&at| (at, "a", "probe", failed.clone())));
        rows.push((success, "a", "probe", json!({"kind": kind, "outcome": "success"})));
        if kind == "startup" {
            rows.push((success, "a", "startup-passed", json!({})));
        }
        rows.push((success, "a", "ready", json!({})));
        let found = analysis(&rows);
        let advice = found.advice.first().map(|a| (a.field, a.cost_ms));
        assert_eq!(advice, expected, "{kind} {failures:?} {success}");
        covers(&found.start.unwrap().chain, 0, (success * 1e3) as u64);
    }
}

#[test]
fn failures_and_back_off_are_part_of_the_chain() {
    let found = analysis(&[
        (0.0, "a", "starting", json!({"attempt": 0})),
        (0.1, "a", "started", json!({})),
        (0.2, "a", "exited", json!({"code": 3})),
        (0.2, "a", "waiting", json!({"for": "back-off", "in_ms": 10_000})),
        (10.2, "a", "starting", json!({"attempt": 1})),
        (10.3, "a", "started", json!({})),
        (10.3, "a", "hook-started", json!({"hook": "postStart"})),
        (11.5, "a", "hook-ended", json!({"hook": "postStart"})),
        (11.5, "a", "ready", json!({})),
    ]);
    let start = found.start.unwrap();
    covers(&start.chain, 0, 11_500);
    assert_eq!(
        links(&start.chain),
        [
            ("a", LinkKind::Start, 100),
            ("a", Failed, 100),
            ("a", BackOff, 10_000),
            ("a", LinkKind::Start, 100),
            ("a", PostStart, 1_200)
        ]
    );
    let fields: Vec<_> = found.advice.iter().map(|a| a.field).collect();
    assert_eq!(fields, ["command", "lifecycle.postStart"]);
}

#[test]
fn an_init_container_is_waited_for_to_its_end_and_a_failed_pull_is_seen() {
    let found = analysis(&[
        (0.0, "init", "pulling", json!({})),
        (0.0, "", "sandbox-creating", json!({})),
        (0.1, "", "sandbox-ready", json!({})),
        (0.5, "init", "pull-failed", json!({"message": "no route"})),
        (10.5, "init", "pulling", json!({})),
        (11.0, "init", "pulled", json!({})),
        (11.0, "init", "starting", json!({"attempt": 0})),
        (11.1, "init", "started", json!({})),
        (14.1, "init", "exited", json!({"code": 0})),
        (14.1, "app", "starting", gate("init", "completed")),
        (14.2, "app", "started", json!({})),
        (14.2, "app", "ready", json!({})),
    ]);
    let chain = found.start.unwrap().chain;
    covers(&chain, 0, 14_200);
    assert_eq!(
        links(&chain),
        [
            ("init", Pull, 500),
            ("init", Retry, 10_000),
            ("init", Pull, 500),
            ("init", LinkKind::Start, 100),
            ("init", Run, 3_000),
            ("app", LinkKind::Start, 100)
        ]
    );
}

#[test]
fn a_start_that_never_ended_names_who_is_stuck() {
    let found = analysis(&[
        (0.0, "proxy", "starting", json!({"attempt": 0})),
        (0.1, "proxy", "started", json!({})),
        (0.1, "proxy", "waiting", json!({"for": "readiness-probe", "text": "runs but is not ready"})),
        (0.1, "app", "waiting", json!({"for": "gate", "on": "proxy", "need": "ready"})),
        (30.0, "", "stop-begun", json!({"cause": "deleted", "grace_ms": 5_000})),
    ]);
    let start = found.start.unwrap();
    assert_eq!((start.complete, start.last.as_str()), (false, "proxy"));
    assert_eq!(start.stuck.as_deref(), Some("runs but is not ready"));
    covers(&start.chain, 0, 30_000);
    assert_eq!(links(&start.chain), [("proxy", LinkKind::Start, 100), ("proxy", ReadinessProbe, 29_900)]);
}

#[test]
fn a_stop_is_walked_back_through_turns_and_hooks() {
    let found = analysis(&[
        (0.0, "", "stop-begun", json!({"cause": "deleted", "grace_ms": 30_000})),
        (0.0, "app", "hook-started", json!({"hook": "preStop"})),
        (0.0, "proxy", "waiting", json!({"for": "stop-turn", "on": "app"})),
        (3.0, "app", "hook-ended", json!({"hook": "preStop"})),
        (3.0, "app", "terminating", json!({})),
        (3.1, "app", "exited", json!({"code": 0})),
        (3.1, "proxy", "terminating", json!({})),
        (13.1, "proxy", "killing", json!({})),
        (13.2, "proxy", "exited", json!({"code": 137})),
        (13.2, "", "finished", json!({"phase": "Failed"})),
    ]);
    let stop = found.stop.unwrap();
    assert_eq!(
        (stop.took_ms, stop.grace_ms, stop.killed.as_slice()),
        (13_200, Some(30_000), &["proxy".to_owned()][..])
    );
    covers(&stop.chain, 0, 13_200);
    assert_eq!(links(&stop.chain), [("app", PreStop, 3_000), ("app", Term, 100), ("proxy", Term, 10_100)]);
    let fields: Vec<_> = found.advice.iter().map(|a| a.field).collect();
    assert_eq!(fields, ["lifecycle.stopSignal", "lifecycle.preStop"]);
}

/// The main of a native pod ignores TERM. So the sidecar gets its signal at the end of the grace period,
/// while the main is being killed. The main has used the time.
#[test]
fn who_uses_up_the_grace_is_named_even_if_it_ends_after_others_were_told() {
    for (first_exit, sidecar_exit) in [(30.1, 30.2), (30.1, 32.1)] {
        let found = analysis(&[
            (0.0, "app", "started", json!({})),
            (0.1, "app", "exited", json!({"code": 1})),
            (0.2, "app", "started", json!({})),
            (1.0, "", "stop-begun", json!({"cause": "deleted", "grace_ms": 29_000})),
            (1.0, "app", "terminating", json!({})),
            (1.0, "proxy", "waiting", json!({"for": "stop-turn", "on": "app"})),
            (30.0, "app", "killing", json!({})),
            (30.0, "proxy", "terminating", json!({})),
            (first_exit, "app", "exited", json!({"code": 137})),
            (sidecar_exit, "proxy", "exited", json!({"code": 143})),
            (sidecar_exit, "", "finished", json!({"phase": "Failed"})),
        ]);
        let stop = found.stop.unwrap();
        covers(&stop.chain, 1_000, (sidecar_exit * 1e3) as u64);
        assert_eq!(links(&stop.chain)[0], ("app", Term, 29_000));
        assert_eq!(found.advice.len(), 1, "{:?}", found.advice);
        assert_eq!(found.advice[0].container.as_deref(), Some("app"));
    }
}
