//! A trace as text, JSON and pictures.

use k8s_openapi::api::core::v1::Pod;
use outrigger_lifecycle::{FeatureGates, Plan, PodInput, Time, plan, trace};
use outrigger_simulate::{Ending, Options, Outcome, Script, simulate};
use outrigger_view::analyze::{self, Analyses, StretchKind, analyze_all};
use outrigger_view::events::{Events, read_events};
use outrigger_view::text::fit_message;
use outrigger_view::timeline::{Picture, Scale, Timeline, draw};
use outrigger_view::trace::{trace_json, trace_text};
use serde_json::{Value, json};

fn job() -> (Plan, Script) {
    let pod: Pod = serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "report"},
        "spec": {
            "restartPolicy": "Never", "terminationGracePeriodSeconds": 10,
            "initContainers": [
                {"name": "migrate", "image": "app"},
                {"name": "proxy", "image": "proxy", "restartPolicy": "Always",
                 "startupProbe": {"periodSeconds": 1, "httpGet": {"port": 80}},
                 "lifecycle": {"preStop": {"sleep": {"seconds": 1}}}},
                {"name": "logs", "image": "logs", "restartPolicy": "Always"},
            ],
            "containers": [{"name": "app", "image": "app", "readinessProbe": {"periodSeconds": 1, "httpGet": {"port": 80}}}],
        },
    }))
    .expect("a pod");
    let planned = plan(&PodInput { pod, ..Default::default() }, &FeatureGates::default()).expect("a plan");
    let script = serde_json::from_value(json!({
        "containers": {
            "migrate": {"instances": [{"runs": "500ms"}]},
            "proxy": {"started_after": "1.5s"},
            "logs": {"instances": [{"runs": "2s", "exit": 1}, {}], "on_term": {"ignore": true}},
            "app": {"ready_after": 2, "runs": "8s"},
        }
    }))
    .expect("a script");
    (planned.plan, script)
}

fn played() -> (Plan, Outcome) {
    let (plan, script) = job();
    let outcome = simulate(&plan, &script, 1, &Options::default()).expect("the script fits");
    assert_eq!(outcome.ending, Ending::Finished);
    (plan, outcome)
}

#[test]
fn ascii_fits_its_width() {
    let (plan, outcome) = played();
    for scale in [Scale::Compressed, Scale::Linear] {
        for width in [60, 80, 100, 120] {
            let text = Timeline::new(&plan, &outcome.trace).ascii(width, scale);
            println!("{text}");
            assert!(text.lines().all(|l| l.chars().count() <= width), "{text}");
            assert!(text.is_ascii(), "{text}");
            for name in ["migrate", "proxy", "logs", "app", "phase"] {
                assert!(text.lines().any(|l| l.starts_with(name)), "no lane for {name}: {text}");
            }
        }
    }
}

#[test]
fn the_picture_shows_what_happened() {
    let (plan, outcome) = played();
    let text = Timeline::new(&plan, &outcome.trace).ascii(100, Scale::Compressed);
    let lane = |name: &str| text.lines().find(|l| l.starts_with(name)).unwrap_or_default().to_string();
    assert!(lane("app").contains('=') && lane("app").trim_end().ends_with('o'), "{text}");
    assert!(lane("logs").contains('x') && lane("logs").contains('K'), "{text}");
    assert!(lane("proxy").contains('T') && lane("proxy").contains('h'), "{text}");
    assert!(lane("phase").contains("Succeeded"), "{text}");
}

/// Two pods of a Job, one after the other. Each has one container that ran for 3 s, and there are 10 s of
/// back-off between them.
fn failed_once() -> Events {
    let job = |at: &str, event: &str, details: Value| {
        let mut line = json!({"time": at, "workload": "Job/report", "event": event});
        line.as_object_mut().expect("an object").extend(details.as_object().expect("an object").clone());
        line
    };
    let pod = |from: f64, name: &str, code: i32, phase: &str| -> Vec<Value> {
        let at = |after: f64| format!("{:.3}", from + after);
        vec![
            json!({"time": at(0.0), "pod": name, "event": "planned", "containers": [{"name": "app", "role": "main"}]}),
            json!({"time": at(0.0), "pod": name, "event": "sandbox-creating"}),
            json!({"time": at(0.1), "pod": name, "event": "sandbox-ready"}),
            json!({"time": at(0.1), "pod": name, "container": "app", "event": "starting", "attempt": 0}),
            json!({"time": at(0.2), "pod": name, "container": "app", "event": "started"}),
            json!({"time": at(0.2), "pod": name, "container": "app", "event": "ready"}),
            json!({"time": at(0.2), "pod": name, "event": "phase", "from": "Pending", "to": "Running"}),
            json!({"time": at(3.0), "pod": name, "container": "app", "event": "exited", "code": code}),
            json!({"time": at(3.0), "pod": name, "event": "phase", "from": "Running", "to": phase}),
            json!({"time": at(3.0), "pod": name, "event": "finished", "phase": phase}),
        ]
    };
    let mut lines = vec![
        job("100.000", "job-started", json!({"completions": 1, "parallelism": 1, "mode": "NonIndexed"})),
        job("100.000", "pod-created", json!({"pod": "report-x7k2p"})),
    ];
    lines.extend(pod(100.0, "report-x7k2p", 3, "Failed"));
    lines.push(job("103.000", "job-back-off", json!({"wait_ms": 10_000})));
    lines.push(job("113.000", "pod-created", json!({"pod": "report-k2p9v"})));
    lines.extend(pod(113.0, "report-k2p9v", 0, "Succeeded"));
    lines.push(job(
        "116.000",
        "job-complete",
        json!({"reason": "CompletionsReached", "succeeded": 1, "failed": 1}),
    ));
    read_events(&lines.iter().map(|line| format!("{line}\n")).collect::<String>()).expect("events")
}

#[test]
fn the_pods_of_a_job_share_one_axis_and_the_back_off_between_them_is_shown() {
    let events = failed_once();
    for width in [60, 80, 120] {
        let text = draw(&events, Picture::Text(width), Scale::Linear).expect("a drawing");
        let plain = strip(&text);
        assert!(plain.lines().all(|l| l.chars().count() <= width), "{plain}");
        let lines: Vec<&str> = plain.lines().collect();
        assert_eq!(lines[0], "Job report");
        assert!(lines[1].trim_start().starts_with('0') && lines[1].ends_with("16s"), "one axis: {plain}");
        assert_eq!(plain.matches("16s").count(), 1, "{plain}");
        let at = |line: &str, what: char| line.find(what).expect("a mark") as f64;
        let back_off = lines.iter().find(|l| l.starts_with("back-off")).expect("its lane");
        assert!(back_off.contains(". 10s ."), "{plain}");
        let apps: Vec<&&str> = lines.iter().filter(|l| l.starts_with("app")).collect();
        assert_eq!(apps.len(), 2, "{plain}");
        // The scale is linear: the failure is at 3 s, and the second pod runs from 13 s to 16 s.
        let (left, cells) = (11.0, width as f64 - 11.0);
        let near = |column: f64, seconds: f64| ((column - left) / cells * 16.0 - seconds).abs() < 0.8;
        assert!(near(at(apps[0], 'x'), 3.0), "{plain}");
        assert!(near(at(apps[1], '='), 13.2) && near(at(apps[1], 'o'), 16.0), "{plain}");
    }
    let page = draw(&events, Picture::Html, Scale::Compressed).expect("a page");
    assert_eq!(page.matches("<figure>").count(), 1, "one picture for all pods");
    for part in [
        "Job report",
        "16s in total",
        "10s between pods",
        "back-off of 10 s after a failed pod",
        "report-k2p9v",
    ] {
        assert!(page.contains(part), "no {part:?} in the page");
    }
    let mut one = events;
    assert!(one.keep_pod("report-k2p9v"));
    let text = strip(&draw(&one, Picture::Text(80), Scale::Linear).expect("a drawing"));
    assert!(text.starts_with("Pod report-k2p9v\n") && text.contains("3s") && !text.contains("16s"), "{text}");
}

#[test]
fn the_analysis_of_a_job_counts_the_back_off_between_its_pods() {
    let Analyses { workloads, pods } = analyze_all(&failed_once()).expect("an analysis");
    let job = &workloads[0];
    assert_eq!((job.took_ms, job.back_off_ms), (16_000, 10_000));
    let stretches: Vec<_> = job.stretches.iter().map(|s| (s.kind, s.from_ms, s.to_ms)).collect();
    let expected = [
        (StretchKind::Pod, 0, 3_000),
        (StretchKind::BackOff, 3_000, 13_000),
        (StretchKind::Pod, 13_000, 16_000),
    ];
    assert_eq!(stretches, expected);
    assert_eq!(pods.iter().map(|pod| pod.began_ms).collect::<Vec<_>>(), [0, 13_000]);
    assert!(job.advice[0].text.contains("took 10 s"), "{:?}", job.advice);
    for width in [60, 80, 120] {
        let text = strip(&analyze::text(&workloads, &pods, width));
        assert!(text.lines().all(|l| l.chars().count() <= width), "{text}");
        let joined = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for part in [
            "Job report: complete after 16 s, of which 10 s back-off between pods",
            "0.000 3.000 s pod `report-x7k2p` failed",
            "3.000 10.000 s back-off of 10 s after a failed pod",
            "13.000 3.000 s pod `report-k2p9v` succeeded",
            "13.000 0.100 s the pod's sandbox is created",
        ] {
            assert!(joined.contains(part), "no {part:?} in\n{text}");
        }
    }
}

/// Several moments may have the same time after rounding.
#[test]
fn no_time_stands_twice_on_an_axis() {
    let at = |ms: u64| json!({"time": format!("{:.3}", ms as f64 / 1e3), "pod": "p", "container": "a", "event": "started"});
    let moments = [0, 5, 1_231, 1_232, 1_233, 1_234, 12_301, 12_302, 12_340, 61_000, 61_400, 61_900].map(at);
    let timeline = Timeline::read(&records(&moments)).expect("a trace");
    for scale in [Scale::Compressed, Scale::Linear] {
        for width in [60, 80, 120, 200] {
            let text = timeline.ascii(width, scale);
            let mut times: Vec<&str> =
                text.lines().next().expect("an axis").split_whitespace().filter(|t| *t != "//").collect();
            let all = times.len();
            times.dedup();
            assert_eq!(times.len(), all, "{text}");
        }
        let svg = timeline.svg(scale);
        let ticks: Vec<&str> = svg
            .lines()
            .filter(|l| l.contains("class=\"tick\""))
            .filter_map(|l| l.split("\">").nth(1))
            .collect();
        let mut unique = ticks.clone();
        unique.dedup();
        assert_eq!(ticks, unique);
    }
}

/// `ps` and the summary of a run use the same word.
#[test]
fn a_pod_that_was_stopped_has_not_failed() {
    for (stopped, word, other) in [(true, "Stopped", "Failed"), (false, "Failed", "Stopped")] {
        let entries = [
            json!({"time": "0", "pod": "p", "event": "phase", "from": "Pending", "to": "Running"}),
            json!({"time": "1", "pod": "p", "event": "phase", "from": "Running", "to": "Failed"}),
            json!({"time": "1", "pod": "p", "event": "finished", "phase": "Failed", "stopped": stopped}),
        ];
        let timeline = Timeline::read(&records(&entries)).expect("a trace");
        for drawn in [timeline.ascii(80, Scale::Linear), timeline.svg(Scale::Linear)] {
            assert!(drawn.contains(word) && !drawn.contains(other), "{drawn}");
        }
    }
}

/// The text without colours.
fn strip(text: &str) -> String {
    let mut parts = text.split('\u{1b}');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |out, part| out + part.split_once('m').map_or("", |(_, rest)| rest))
}

#[test]
fn svg_is_well_formed_and_complete() {
    let (plan, outcome) = played();
    let svg = Timeline::new(&plan, &outcome.trace).svg(Scale::Compressed);
    for part in [
        "class=\"ready\"",
        "class=\"term\"",
        "class=\"kill\"",
        "class=\"gate\"",
        "class=\"hook\"",
        "prefers-color-scheme",
    ] {
        assert!(svg.contains(part), "no {part}");
    }
    // Every tag is closed, in the right order.
    let mut open = Vec::new();
    for tag in svg.split('<').skip(1) {
        let tag = tag.split('>').next().unwrap_or_default();
        let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap_or_default();
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "in {tag}");
        } else if !tag.ends_with('/') {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "{open:?} left open");
}

fn records(entries: &[serde_json::Value]) -> Vec<trace::Record> {
    entries.iter().map(|e| trace::Line::from_json(e).expect("a line").pod().expect("of a pod")).collect()
}

#[test]
fn names_cannot_break_out_of_the_picture() {
    let entries =
        [json!({"time": "0", "pod": "<script>&\"", "container": "</text>\u{1}", "event": "starting"})];
    let svg = Timeline::read(&records(&entries)).expect("a trace").svg(Scale::Linear);
    assert!(!svg.contains("<script>") && !svg.contains("</text>\u{1}"), "{svg}");
}

#[test]
fn json_reads_back_into_the_same_picture() {
    let (plan, outcome) = played();
    let json = trace_json(&plan, &outcome.trace);
    let keys =
        |i: usize| json[i].as_object().expect("an object").keys().take(4).cloned().collect::<Vec<String>>();
    assert_eq!(keys(0)[..3], ["time", "pod", "event"], "about the pod");
    assert_eq!(keys(1), ["time", "pod", "container", "event"], "about a container");
    let planned = trace::planned(&plan, Time(0)).to_json(&plan, &plan.pod, "0.000");
    let again = Timeline::read(&records(&[&[planned], &json[..]].concat())).expect("our own trace");
    let first = Timeline::new(&plan, &outcome.trace);
    assert_eq!(again.ascii(100, Scale::Compressed), first.ascii(100, Scale::Compressed));
}

#[test]
fn a_bad_trace_is_refused_with_its_place() {
    let error = |entry| Timeline::read(&records(&[entry])).expect_err("a bad trace").to_string();
    assert_eq!(error(json!({"event": "starting"})), "entry 1 of the trace has no \"time\"");
    assert_eq!(
        error(json!({"time": "soon", "event": "starting"})),
        "entry 1 of the trace has the time \"soon\", expected seconds or a date and time in UTC"
    );
}

#[test]
fn the_text_trace_tells_the_story() {
    let (plan, outcome) = played();
    let text = trace_text(&plan, &outcome.trace, None);
    println!("{text}");
    for line in
        ["app      starting         after logs was started", "phase            from=Running to=Succeeded"]
    {
        assert!(text.contains(line), "no {line:?} in\n{text}");
    }
}

/// The analysis of a trace of `(milliseconds, container or "", event, details)`, as text.
fn analysed(rows: &[(u64, &str, &str, Value)]) -> String {
    let record = |(ms, container, event, details): &(u64, &str, &str, Value)| {
        let mut entry = details.clone();
        entry["time"] = format!("{:.3}", *ms as f64 / 1e3).into();
        entry["pod"] = "p".into();
        entry["event"] = (*event).into();
        entry["container"] = if container.is_empty() { Value::Null } else { (*container).into() };
        trace::Line::from_json(&entry).expect("a line").pod().expect("an entry of a pod")
    };
    let entries: Vec<_> = rows.iter().map(record).collect();
    let text = analyze::text(&[], &[analyze::analyze(&entries).expect("an analysis")], 500);
    ["\x1b[0m", "\x1b[1m", "\x1b[2m"].iter().fold(text, |text, paint| text.replace(paint, ""))
}

/// The mains of a pod that failed are done, but it did not complete.
#[test]
fn a_pod_that_failed_did_not_complete() {
    let ended = |phase: &str, code: i32| {
        analysed(&[
            (0, "m", "starting", json!({"attempt": 0})),
            (100, "m", "started", json!({})),
            (100, "m", "ready", json!({})),
            (1_000, "m", "exited", json!({"code": code})),
            (1_000, "", "stop-begun", json!({"cause": "completed"})),
            (1_000, "s", "terminating", json!({})),
            (1_200, "s", "exited", json!({"code": 143, "killed_for": "pod-stop"})),
            (1_200, "", "finished", json!({"phase": phase})),
        ])
    };
    let failed = ended("Failed", 3);
    assert!(failed.contains("Stop (`m` failed with exit code 3): "), "{failed}");
    let complete = ended("Succeeded", 0);
    assert!(complete.contains("Stop (completed): "), "{complete}");
}

/// The startup probe ended two instances. Each ran, and the time after the last is back-off.
#[test]
fn a_startup_probe_that_ends_containers_is_named() {
    let failure = || json!({"kind": "startup", "outcome": "failure", "period_ms": 1_000});
    let waits = || json!({"for": "startup-probe", "text": "running, startup probe failed"});
    let ended = || json!({"code": 0, "killed_for": "startup"});
    let found = analysed(&[
        (0, "proxy", "starting", json!({"attempt": 0})),
        (100, "proxy", "started", json!({})),
        (100, "proxy", "waiting", waits()),
        (100, "app", "waiting", json!({"for": "gate", "on": "proxy", "need": "started"})),
        (1_100, "proxy", "probe", failure()),
        (2_100, "proxy", "probe", failure()),
        (2_100, "proxy", "exited", ended()),
        (2_100, "proxy", "starting", json!({"attempt": 1})),
        (2_200, "proxy", "started", json!({})),
        (2_200, "proxy", "waiting", waits()),
        (4_200, "proxy", "probe", failure()),
        (4_200, "proxy", "exited", ended()),
        (4_200, "proxy", "waiting", json!({"for": "back-off", "in_ms": 10_000})),
        (8_000, "", "stop-begun", json!({"cause": "deleted", "grace_ms": 30_000})),
    ]);
    let rows: Vec<&str> = found.lines().map(str::trim).filter(|line| line.contains("`proxy`")).collect();
    assert_eq!(
        rows[1..],
        [
            "0.000   0.100 s  `proxy` is started",
            "0.100   2.000 s  `proxy` runs until its startup probe has failed",
            "2.100   0.100 s  `proxy` is started",
            "2.200   2.000 s  `proxy` runs until its startup probe has failed",
            "4.200   3.800 s  `proxy` waits for its restart after it was stopped because its startup probe failed",
            "`proxy` was stopped after 2 s because its startupProbe kept failing; if it needs longer to start, raise failureThreshold, else correct the probe or the program",
        ],
        "{found}"
    );
}

/// At the minimum, a shorter grace period changes nothing.
#[test]
fn a_grace_period_at_the_minimum_is_not_to_be_lowered() {
    for (grace_ms, lower) in [(1_000, false), (2_000, false), (30_000, true)] {
        let found = analysed(&[
            (0, "", "stop-begun", json!({"cause": "deleted", "grace_ms": grace_ms})),
            (0, "a", "terminating", json!({})),
            (2_000, "a", "killing", json!({})),
            (2_000, "a", "exited", json!({"code": 137})),
        ]);
        assert!(found.contains("`a` ignored TERM for 2 s"), "{found}");
        assert_eq!(found.contains("or lower terminationGracePeriodSeconds"), lower, "{found}");
    }
}

/// Messages of a run on a narrow terminal are broken between words, with their colours.
#[test]
fn messages_are_wrapped_between_words() {
    let table = [
        ("short\n", "short\n"),
        (
            "SIGINT: stopping in order; press Ctrl-C again\n",
            "SIGINT: stopping in order;\n  press Ctrl-C again\n",
        ),
        (
            "\x1b[33m WARN\x1b[0m pods can reach only each other here\n",
            "\x1b[33m WARN\x1b[0m pods can reach only each\n        other here\n",
        ),
        (
            "\x1b[33m WARN\x1b[0m \x1b[3mname\x1b[0m=a word and another one\n",
            "\x1b[33m WARN\x1b[0m \x1b[3mname\x1b[0m=a word and another one\n",
        ),
    ];
    for (message, fitted) in table {
        assert_eq!(fit_message(message, 30), fitted);
    }
}
