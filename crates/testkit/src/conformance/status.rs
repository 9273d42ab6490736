//! Expectations about a pod's status.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// Compares a value. `want` is a value, a list of values, or a comparison such as `>=1`.
pub fn compare(value: &Value, want: &Value) -> bool {
    if let Some(any) = want.as_array() {
        return any.contains(value);
    }
    let comparison = want.as_str().and_then(|text| {
        let text = text.trim();
        let (op, number) =
            ["==", "!=", ">=", "<=", ">", "<"].iter().find_map(|op| Some((*op, text.strip_prefix(op)?)))?;
        Some((op, number.trim().parse::<i64>().ok()?))
    });
    match (comparison, value.as_i64()) {
        (Some((op, want)), Some(value)) => match op {
            "==" => value == want,
            "!=" => value != want,
            ">=" => value >= want,
            "<=" => value <= want,
            ">" => value > want,
            _ => value < want,
        },
        _ => value == want,
    }
}

/// The expectations that are not met. `phases` has all phases that were seen.
pub fn check(expect: &Value, status: Option<&Value>, phases: &[String]) -> Vec<String> {
    let keys = [
        "phase",
        "phases_never",
        "pod_reason",
        "exit",
        "restarts",
        "reason",
        "last_exit",
        "state",
        "waiting",
        "message",
        "ready",
        "started",
        "conditions",
        "qos",
    ];
    let Some(status) = status else {
        let asked = keys.iter().any(|k| expect.get(k).is_some());
        return if asked { vec!["there is no pod status".to_owned()] } else { Vec::new() };
    };
    let mut bad = Vec::new();
    let mut same = |what: &str, value: &Value, want: &Value| {
        if !compare(value, want) {
            bad.push(format!("{what} is {value}, want {want}"));
        }
    };
    for (key, field) in [("phase", "phase"), ("pod_reason", "reason"), ("qos", "qosClass")] {
        if let Some(want) = expect.get(key) {
            same(key, &status[field], want);
        }
    }
    let containers = containers(status);
    let empty = json!({});
    let of = |name: &str| containers.get(name).copied().unwrap_or(&empty);
    for (name, want) in each(expect, "state") {
        same(&format!("state of {name}"), &json!(state(of(name), "state").0), want);
    }
    for (key, field, which) in
        [("exit", "exitCode", "state"), ("reason", "reason", "state"), ("last_exit", "exitCode", "lastState")]
    {
        for (name, want) in each(expect, key) {
            let (kind, state) = state(of(name), which);
            let value =
                if kind == "terminated" { state[field].clone() } else { json!(format!("not there: {kind}")) };
            same(&format!("{key} of {name}"), &value, want);
        }
    }
    for (name, want) in each(expect, "waiting") {
        let (kind, state) = state(of(name), "state");
        let value =
            if kind == "waiting" { state["reason"].clone() } else { json!(format!("not there: {kind}")) };
        same(&format!("waiting reason of {name}"), &value, want);
    }
    for (name, want) in each(expect, "restarts") {
        let count = of(name)["restartCount"].as_i64().unwrap_or(0);
        same(&format!("restartCount of {name}"), &json!(count), want);
    }
    for key in ["ready", "started"] {
        for (name, want) in each(expect, key) {
            let value = of(name)[key].as_bool().unwrap_or(false);
            same(&format!("{key} of {name}"), &json!(value), want);
        }
    }
    for (kind, want) in each(expect, "conditions") {
        let conditions = status["conditions"].as_array().map_or(&[][..], Vec::as_slice);
        let condition = conditions.iter().find(|c| c["type"] == json!(kind));
        let value = condition.map_or(json!("False"), |c| c["status"].clone());
        same(&format!("condition {kind}"), &value, want);
    }
    for never in expect["phases_never"].as_array().into_iter().flatten() {
        if phases.iter().any(|p| json!(p) == *never) || status["phase"] == *never {
            bad.push(format!("phase {never} was seen"));
        }
    }
    for (name, want) in each(expect, "message") {
        let message = message(of(name));
        let want = want.as_str().unwrap_or_default();
        let fits = match (&message, want.strip_prefix('~')) {
            (Some(message), Some(pattern)) => {
                regex_lite::Regex::new(&format!("(?s){pattern}")).expect("a pattern").is_match(message)
            }
            (Some(message), None) => message.trim() == want,
            (None, _) => false,
        };
        if !fits {
            bad.push(format!("message of {name} is {message:?}, want {want:?}"));
        }
    }
    bad
}

fn each<'v>(expect: &'v Value, key: &str) -> impl Iterator<Item = (&'v str, &'v Value)> {
    expect[key].as_object().into_iter().flatten().map(|(k, v)| (k.as_str(), v))
}

fn containers(status: &Value) -> BTreeMap<&str, &Value> {
    ["initContainerStatuses", "containerStatuses"]
        .iter()
        .flat_map(|list| status[list].as_array().into_iter().flatten())
        .map(|c| (c["name"].as_str().unwrap_or_default(), c))
        .collect()
}

fn state<'v>(container: &'v Value, which: &str) -> (&'static str, &'v Value) {
    for kind in ["terminated", "running", "waiting"] {
        let state = &container[which][kind];
        if !state.is_null() {
            return (kind, state);
        }
    }
    (if which == "state" { "waiting" } else { "absent" }, &Value::Null)
}

/// The termination message of this instance, or of the previous one.
fn message(container: &Value) -> Option<String> {
    for which in ["state", "lastState"] {
        let (kind, state) = state(container, which);
        if kind == "terminated" {
            return Some(state["message"].as_str().unwrap_or_default().to_owned());
        }
    }
    None
}
