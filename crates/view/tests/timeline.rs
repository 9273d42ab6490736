//! A life as text, JSON and pictures.

use k8s_openapi::api::core::v1::Pod;
use outrigger_lifecycle::{FeatureGates, Plan, PodInput, Time, plan, trace};
use outrigger_simulate::{Ending, Options, Outcome, Script, simulate};
use outrigger_view::timeline::{Scale, Timeline};
use outrigger_view::trace::{trace_json, trace_text};
use serde_json::json;

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
        for width in [60, 80, 100] {
            let text = Timeline::new(&plan, &outcome.trace).ascii(width, scale);
            println!("{text}");
            assert!(text.lines().all(|l| l.chars().count() <= width.max(70)), "{text}");
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
    // Every tag is closed, in order.
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
    let text = trace_text(&plan, &outcome.trace);
    println!("{text}");
    for line in
        ["app      starting         after logs is started", "phase            from=Running to=Succeeded"]
    {
        assert!(text.contains(line), "no {line:?} in\n{text}");
    }
}
