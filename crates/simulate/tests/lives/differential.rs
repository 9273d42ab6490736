//! The same pod in two equivalent dialects must behave in the same way.
//!
//! The comment of each pair says what its pods must not have for the two to be equivalent. A difference is
//! printed with its seed, and `OUTRIGGER_SEED=N` plays only that seed.

use std::collections::BTreeMap;
use std::fmt::Write;

use k8s_openapi::api::core::v1::Pod;
use outrigger_lifecycle::trace::{ContainerEvent, Kind, TraceEvent};
use outrigger_lifecycle::{ContainerRef, FeatureGates, List, Plan, PodInput, Time, phase, plan};
use outrigger_simulate::random::{self, Trouble};
use outrigger_simulate::{Options, Rng, Script, ScriptDuration, simulate};
use serde_json::{Map, Value, json};

use crate::common::env_number;

/// The number of lives per pair.
const LIVES: u64 = 3_000;

/// One pod in two notations.
struct Pair {
    one: PodInput,
    other: PodInput,
    /// Whether they are also equivalent after the grace period.
    after_grace: bool,
}

fn probe(rng: &mut Rng) -> Value {
    json!({
        "exec": {"command": ["true"]},
        "periodSeconds": rng.pick(&[1, 2, 5]),
        "failureThreshold": rng.pick(&[1, 2, 3]),
    })
}

/// A container with random probes and hooks.
fn container(rng: &mut Rng, name: &str, pre_stop: bool) -> Value {
    let mut c = json!({"name": name, "image": "i"});
    for (kind, share) in [("startupProbe", 0.3), ("livenessProbe", 0.2), ("readinessProbe", 0.4)] {
        if rng.chance(share) {
            c[kind] = probe(rng);
        }
    }
    let mut hooks = Map::new();
    if rng.chance(0.2) {
        hooks.insert("postStart".into(), json!({"exec": {"command": ["true"]}}));
    }
    if pre_stop && rng.chance(0.5) {
        hooks.insert("preStop".into(), json!({"exec": {"command": ["true"]}}));
    }
    if !hooks.is_empty() {
        c["lifecycle"] = Value::Object(hooks);
    }
    c
}

fn spec(rng: &mut Rng, inits: &[Value], containers: &[Value]) -> Value {
    json!({
        "restartPolicy": rng.pick(&["Always", "OnFailure", "Never"]),
        "terminationGracePeriodSeconds": rng.pick(&[0, 1, 2, 3, 10, 30]),
        "initContainers": inits,
        "containers": containers,
    })
}

fn input(annotations: &[(&str, &str)], spec: &Value) -> PodInput {
    let annotations: BTreeMap<&str, &str> = annotations.iter().copied().collect();
    let pod: Pod =
        serde_json::from_value(json!({"metadata": {"name": "p", "annotations": annotations}, "spec": spec}))
            .expect("a pod");
    PodInput { pod, ..Default::default() }
}

const DEPENDS_ON: &str = "outrigger.dev/depends-on";

/// Native sidecars, and the same chain as a graph. There is only one main, because a graph starts mains
/// together and a list starts them one after the other.
fn native(rng: &mut Rng) -> Pair {
    let mut inits = Vec::new();
    let mut lines = Vec::new();
    let mut before: Option<String> = None;
    for i in 0..rng.between(1, 4) {
        let name = format!("i{i}");
        let sidecar = rng.chance(0.6);
        let mut c = json!({"name": name, "image": "i"});
        if sidecar {
            c = container(rng, &name, true);
            c["restartPolicy"] = json!("Always");
        }
        lines.push(format!("{name}: {}", before.as_deref().unwrap_or("none")));
        before = Some(format!("{name} {}", if sidecar { "started" } else { "completed" }));
        inits.push(c);
    }
    lines.push(format!("main: {}", before.unwrap_or_default()));
    let main = container(rng, "main", true);
    let spec = spec(rng, &inits, &[main]);
    Pair {
        one: input(&[], &spec),
        other: input(&[(DEPENDS_ON, &lines.join("\n"))], &spec),
        // R3.25 applies to the kubelet, not to the graph.
        after_grace: false,
    }
}

/// The KEP's sidecars, and the same order as a graph. Sidecars have no preStop hooks, because the KEP runs
/// them twice. There is only one main.
fn kep(rng: &mut Rng) -> Pair {
    let inits: Vec<Value> =
        (0..rng.below(2)).map(|i| json!({"name": format!("i{i}"), "image": "i"})).collect();
    let main_at = rng.below(3) as usize;
    let count = rng.between(1, 3) as usize;
    let mut containers = Vec::new();
    let (mut types, mut lines, mut needs) = (BTreeMap::new(), Vec::new(), Vec::new());
    for i in 0..=count {
        if i == main_at.min(count) {
            containers.push(container(rng, "main", true));
            continue;
        }
        let name = format!("s{i}");
        containers.push(container(rng, &name, false));
        types.insert(ContainerRef { list: List::Main, index: i }, "Sidecar".to_owned());
        lines.push(format!("{name}: sidecar"));
        needs.push(format!("{name} ready"));
    }
    lines.push(format!("main: {}", needs.join(", ")));
    let spec = spec(rng, &inits, &containers);
    Pair {
        one: PodInput { lifecycle_types: types, ..input(&[], &spec) },
        other: input(&[(DEPENDS_ON, &lines.join("; "))], &spec),
        after_grace: true,
    }
}

/// Launch priority with two levels, and the same order as a graph without a stop order.
fn priority(rng: &mut Rng) -> Pair {
    let count = rng.between(2, 5);
    let plain: Vec<Value> = (0..count).map(|i| container(rng, &format!("c{i}"), true)).collect();
    let high: Vec<bool> = (0..count).map(|i| i == 0 || (i > 1 && rng.chance(0.5))).collect();
    let needs: Vec<String> =
        (0..count).filter(|i| high[*i as usize]).map(|i| format!("c{i} ready")).collect();
    let mut lines = Vec::new();
    for (i, &high) in high.iter().enumerate() {
        let clauses = if high { String::new() } else { format!("{}, ", needs.join(", ")) };
        lines.push(format!("c{i}: {clauses}stop 1"));
    }
    let marked: Vec<Value> = plain
        .iter()
        .zip(&high)
        .map(|(c, &high)| {
            let mut c = c.clone();
            if high {
                c["env"] = json!([{"name": "KRUISE_CONTAINER_PRIORITY", "value": "1"}]);
            }
            c
        })
        .collect();
    let inits: Vec<Value> =
        (0..rng.below(2)).map(|i| json!({"name": format!("i{i}"), "image": "i"})).collect();
    let with = spec(rng, &inits, &marked);
    let mut without = with.clone();
    without["containers"] = json!(plain);
    Pair {
        one: input(&[], &with),
        other: input(&[(DEPENDS_ON, &lines.join("; "))], &without),
        after_grace: true,
    }
}

/// The visible events of a life, and its result.
fn life(plan: &Plan, script: &Script, seed: u64, until: Option<Time>) -> (Vec<String>, String) {
    const SEEN: [Kind; 9] = [
        Kind::Starting,
        Kind::Started,
        Kind::Ready,
        Kind::Unready,
        Kind::Terminating,
        Kind::Killing,
        Kind::Exited,
        Kind::HookStarted,
        Kind::StopBegun,
    ];
    let options =
        Options { horizon: ScriptDuration::seconds(3_600), stop_endless_at: None, ..Options::default() };
    let outcome = simulate(plan, script, seed, &options).expect("the script fits");
    let mut lines = Vec::new();
    for entry in outcome.trace.iter().filter(|e| SEEN.contains(&e.event.kind())) {
        if until.is_some_and(|until| entry.time >= until) {
            break;
        }
        let name = entry.container.map_or("the pod", |c| plan.containers[c].name.as_str());
        let mut line = format!("{:>8} {name} {}", entry.time.0, entry.event.name());
        if let TraceEvent::Container(ContainerEvent::Exited { code, .. }) = entry.event {
            let _ = write!(line, " {code}");
        }
        lines.push(line);
    }
    let result = if until.is_none() { phase(plan, &outcome.observation).name() } else { "" };
    (lines, result.to_owned())
}

/// The end of the grace period of the first stop.
fn spent(plan: &Plan, script: &Script, seed: u64) -> Option<Time> {
    let options =
        Options { horizon: ScriptDuration::seconds(3_600), stop_endless_at: None, ..Options::default() };
    let outcome = simulate(plan, script, seed, &options).expect("the script fits");
    outcome.observation.stop.map(|stop| stop.deadline)
}

fn compare(seed: u64, make: fn(&mut Rng) -> Pair) -> Result<usize, String> {
    let mut rng = Rng::new(seed);
    let pair = make(&mut rng);
    let planned = |input: &PodInput| plan(input, &FeatureGates::default()).expect("a plan").plan;
    let (one, other) = (planned(&pair.one), planned(&pair.other));
    assert_ne!(one.dialects, other.dialects, "seed {seed}");
    let script = if rng.chance(0.5) {
        random::script(&mut rng, &one, Trouble::None)
    } else {
        random::hard_script(&mut rng, &one, Trouble::None)
    };
    let until = if pair.after_grace { None } else { spent(&one, &script, seed) };
    let (first, second) = (life(&one, &script, seed, until), life(&other, &script, seed, until));
    if first == second {
        return Ok(first.0.len());
    }
    let at = first.0.iter().zip(&second.0).take_while(|(a, b)| a == b).count();
    let side = |lines: &[String]| lines.iter().skip(at).take(3).cloned().collect::<Vec<_>>().join(" | ");
    Err(format!(
        "seed {seed}: {:?} and {:?} differ\n  one:   {} -> {}\n  other: {} -> {}\nreplay: OUTRIGGER_SEED={seed} cargo test -p outrigger-simulate --test lives differential\n{}\n{}",
        one.dialects,
        other.dialects,
        side(&first.0),
        first.1,
        side(&second.0),
        second.1,
        serde_json::to_string(&pair.one.pod).expect("a pod is plain data"),
        serde_json::to_string(&script).expect("a script is plain data"),
    ))
}

fn all(make: fn(&mut Rng) -> Pair) {
    let seeds = match env_number("OUTRIGGER_SEED") {
        Some(seed) => seed..seed + 1,
        None => 1..env_number("OUTRIGGER_SOAK").unwrap_or(LIVES) + 1,
    };
    let mut lines = 0;
    let mut failed = Vec::new();
    for seed in seeds {
        match compare(seed, make) {
            Ok(seen) => lines += seen,
            Err(report) => failed.push(report),
        }
    }
    assert!(
        failed.is_empty(),
        "{} differ, the first three:\n{}",
        failed.len(),
        failed[..failed.len().min(3)].join("\n\n")
    );
    assert!(lines > 5, "nothing was compared");
}

#[test]
fn native_sidecars_and_their_graph() {
    all(native);
}

#[test]
fn kep_sidecars_and_their_graph() {
    all(kep);
}

#[test]
fn launch_priority_and_its_graph() {
    all(priority);
}
