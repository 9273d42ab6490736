use super::*;
use serde_json::json;

/// A line of every kind of event, as versions before the typed trace wrote it.
fn lines() -> Vec<Value> {
    [
        json!({"event": "planned", "containers": [{"name": "a", "role": "init"}, {"name": "b", "role": "debug"}]}),
        json!({"event": "sandbox-creating", "attempt": 1, "reason": "SandboxChanged"}),
        json!({"event": "sandbox-ready"}),
        json!({"event": "sandbox-failed", "reason": "FailedCreatePodSandBox", "message": "no", "retry_in_ms": 5}),
        json!({"event": "sandbox-lost"}),
        json!({"event": "phase", "from": "Pending", "to": "Running"}),
        json!({"event": "stop-begun", "cause": "gate-never-opens", "because_of": "a", "waited_for": "b",
               "grace_ms": 1, "running": 2, "message": "m"}),
        json!({"event": "stop-shortened", "left_ms": 3}),
        json!({"event": "rerun-begun", "cause": "rule", "grace_ms": 1, "not_before_ms": 0}),
        json!({"event": "rerun"}),
        json!({"event": "finished", "phase": "Failed"}),
        json!({"event": "pulling", "reason": "Pulling"}),
        json!({"event": "pulled", "reason": "Pulled"}),
        json!({"event": "pull-failed", "reason": "Failed", "error": "ErrImagePull", "message": "m",
               "retry_in_ms": 10}),
        json!({"event": "image-changed"}),
        json!({"event": "starting", "attempt": 2, "restarts": 2, "after": [{"container": "a", "need": "launched"}],
               "opened_last": {"container": "a", "need": "launched"}, "opened_ms_ago": 0}),
        json!({"event": "started", "attempt": 0, "reason": "Started"}),
        json!({"event": "start-failed", "attempt": 0, "reason": "Failed", "error": "RunContainerError",
               "message": "m", "retry_in_ms": 1}),
        json!({"event": "startup-passed"}),
        json!({"event": "ready"}),
        json!({"event": "unready"}),
        json!({"event": "exited", "attempt": 0, "code": 137, "signal": 9, "reason": "OOMKilled", "message": "m",
               "ran_ms": 7, "killed_for": "pod-stop"}),
        json!({"event": "lost", "attempt": 0}),
        json!({"event": "probe", "kind": "startup", "outcome": "failure", "reason": "Unhealthy", "message": "m",
               "failures": 1, "counted": 1, "threshold": 3, "period_ms": 10, "verdict": "failure"}),
        json!({"event": "hook-started", "hook": "first preStop", "attempt": 0, "limit_ms": 30}),
        json!({"event": "hook-ended", "hook": "postStart", "attempt": 0, "reason": "FailedPostStartHook",
               "error": "exit code 1"}),
        json!({"event": "hook-cancelled", "hook": "preStop", "attempt": 0}),
        json!({"event": "hook-output", "hook": "preStop", "output": "bye"}),
        json!({"event": "waiting", "for": "back-off", "reason": "BackOff", "in_ms": 10, "text": "t"}),
        json!({"event": "kill-begun", "attempt": 0, "reason": "Killing", "cause": "image-changed", "message": "m",
               "grace_ms": 3}),
        json!({"event": "terminating", "attempt": 0, "kill_in_ms": 30}),
        json!({"event": "stop-signal-ignored", "signal": "TERM", "why": "no-handler", "kill_in_ms": 30}),
        json!({"event": "killing", "attempt": 0, "reason": "ExceededGracePeriod"}),
        json!({"event": "log", "stream": "stderr", "partial": false, "text": "t"}),
    ]
    .into_iter()
    .map(|details| line(json!({"time": "t", "pod": "p", "container": "c"}), details))
    .collect()
}

fn workload_lines() -> Vec<Value> {
    let end = json!({"reason": "r", "message": "m", "succeeded": 1, "failed": 2, "took_ms": 3});
    [
        json!({"event": "job-started", "completions": 3, "parallelism": 2, "mode": "Indexed"}),
        json!({"event": "workload-started", "replicas": 2}),
        json!({"event": "pod-created", "pod": "p", "index": 0, "attempt": 1}),
        json!({"event": "pod-waiting", "pod": "p", "on": "q"}),
        json!({"event": "pod-deleted", "pod": "p"}),
        json!({"event": "job-back-off", "wait_ms": 10}),
        json!({"event": "success-criteria-met", "reason": "r", "message": "m"}),
        json!({"event": "failure-target", "reason": "r", "message": "m"}),
        line(json!({"event": "job-complete"}), end.clone()),
        line(json!({"event": "job-failed"}), end.clone()),
        line(json!({"event": "job-suspended"}), end),
        json!({"event": "job-stopped"}),
    ]
    .into_iter()
    .map(|details| line(json!({"time": "t", "workload": "Job/j"}), details))
    .collect()
}

fn line(head: Value, details: Value) -> Value {
    let (Value::Object(mut head), Value::Object(details)) = (head, details) else { panic!("two objects") };
    head.extend(details);
    Value::Object(head)
}

#[test]
fn every_event_of_a_pod_is_written_as_it_was_read() {
    let mut kinds = Vec::new();
    for line in lines() {
        let Ok(Line::Pod(record)) = Line::from_json(&line) else { panic!("{line} is not known") };
        assert_eq!(record.to_json().to_string(), line.to_string());
        kinds.push(record.event.kind());
    }
    let missing: Vec<_> = Kind::ALL.iter().filter(|kind| !kinds.contains(kind)).collect();
    assert_eq!(missing, [] as [&Kind; 0], "every kind stands in the list above");
}

#[test]
fn every_event_of_a_workload_is_written_as_it_was_read() {
    let mut kinds = Vec::new();
    for line in workload_lines() {
        let Ok(Line::Workload(record)) = Line::from_json(&line) else { panic!("{line} is not known") };
        assert_eq!(record.to_json().to_string(), line.to_string());
        kinds.push(record.event.kind());
    }
    let missing: Vec<_> = WorkloadKind::ALL.iter().filter(|kind| !kinds.contains(kind)).collect();
    assert_eq!(missing, [] as [&WorkloadKind; 0], "every kind stands in the list above");
}

#[test]
fn every_wait_is_written_as_it_was_read() {
    for details in [
        json!({"for": "sandbox"}),
        json!({"for": "gate", "on": "a", "need": "ready"}),
        json!({"for": "image"}),
        json!({"for": "image-retry", "reason": "BackOff", "in_ms": 1}),
        json!({"for": "back-off", "reason": "BackOff", "in_ms": 1}),
        json!({"for": "start-retry", "in_ms": 1}),
        json!({"for": "startup-probe"}),
        json!({"for": "readiness-probe"}),
        json!({"for": "stop-turn", "on": "a"}),
        json!({"for": "first-pre-stop", "on": "a"}),
        json!({"for": "rerun", "in_ms": 1}),
    ] {
        let wait = line(json!({"time": "t", "pod": "p", "container": "c", "event": "waiting"}), details);
        let wait = line(wait, json!({"text": "waits"}));
        let Ok(Line::Pod(record)) = Line::from_json(&wait) else { panic!("{wait} is not known") };
        assert_eq!(record.to_json().to_string(), wait.to_string());
    }
}

#[test]
fn causes_are_written_as_they_were_read() {
    for line in [
        json!({"time": "t", "pod": "p", "event": "sandbox-failed", "reason": "FailedCreatePodSandBox",
               "message": "m", "retry_in_ms": 1, "cause": "host-port-in-use", "port": 80}),
        json!({"time": "t", "pod": "p", "event": "pull-failed", "reason": "Failed", "error": "ErrImagePull",
               "message": "m", "retry_in_ms": 1, "cause": "not-found"}),
        json!({"time": "t", "pod": "p", "event": "probe", "kind": "startup", "outcome": "failure",
               "reason": "Unhealthy", "cause": "timed-out"}),
    ] {
        let record = Line::from_json(&line).unwrap().pod().expect("it is known");
        assert_eq!(record.to_json().to_string(), line.to_string());
        let mut newer = line;
        newer["cause"] = "of-a-newer-version".into();
        let record = Line::from_json(&newer).unwrap().pod().expect("it is known");
        assert_eq!(record.to_json().get("cause"), None);
    }
}

#[test]
fn hints_follow_the_details() {
    let written = line(lines()[13].clone(), json!({"manifest": "p.yaml:3", "hint": "check the name"}));
    let Ok(Line::Pod(record)) = Line::from_json(&written) else { panic!("it is known") };
    assert_eq!(record.hint.as_deref(), Some("check the name"));
    assert_eq!(record.to_json().to_string(), written.to_string());
}

#[test]
fn lines_of_other_versions_are_read() {
    let read = |line: Value| Line::from_json(&line);
    let unknown = |event: &str| Ok(Line::Unknown { event: event.to_owned() });
    assert_eq!(read(json!({"event": "teleported", "pod": "p"})), unknown("teleported"));
    assert_eq!(read(json!({"event": "job-teleported", "workload": "Job/j"})), unknown("job-teleported"));
    assert_eq!(read(json!({"event": "probe", "kind": "smell", "outcome": "success"})), unknown("probe"));
    assert_eq!(read(json!({"event": "exited", "code": "none"})), unknown("exited"), "a hostile file");
    assert_eq!(read(json!({"pod": "p"})), Err(NoEvent));
    assert_eq!(read(json!([1])), Err(NoEvent));

    let event = |line: Value| match Line::from_json(&line) {
        Ok(Line::Pod(record)) => record.event,
        other => panic!("{other:?}"),
    };
    let exited = event(json!({"event": "exited", "code": 3, "reason": "NewReason", "colour": "blue"}));
    assert!(
        matches!(exited, TraceEvent::Container(ContainerEvent::Exited { code: 3, reason: None, .. })),
        "{exited:?}"
    );
    assert_eq!(
        event(json!({"event": "started"})),
        TraceEvent::Container(ContainerEvent::Started { attempt: 0 })
    );
    let planned = event(json!({"event": "planned", "containers": [{"name": "a", "role": "pilot"}]}));
    let pilot = PlannedContainer { name: "a".to_owned(), role: None };
    assert_eq!(planned, TraceEvent::Pod(PodEvent::Planned { containers: vec![pilot] }));
}
