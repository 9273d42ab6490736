//! Converts random pods to every dialect. Everything unrelated to order must be kept. Everything that is not
//! reported as lost must still be true when the converted pod is simulated.

mod format;

use outrigger_lifecycle::convert::{Target, compare};
use outrigger_lifecycle::{
    Action, Decision, Event, FeatureGates, Gate, Need, Observation, Plan, ProbeKind, Role, Time, rules,
};
use outrigger_manifest::convert::ConvertError;
use outrigger_manifest::{SourceFile, check};
use outrigger_simulate::{Options, Rng, Scenario, Script, ScriptDuration, Simulator, Watch, random};
use serde_json::{Value, json};

use crate::input::ReadArgs;

const TARGETS: [Target; 4] = [Target::Native, Target::Kep, Target::Priority, Target::DependsOn];

#[test]
fn what_is_not_lost_still_holds() {
    let (mut converted, mut whole) = (0, 0);
    for seed in 0..100 {
        let yaml = random_manifest(seed);
        for target in TARGETS {
            match convert(&yaml, target) {
                Ok(result) => {
                    converted += 1;
                    whole += usize::from(result.lost.is_empty());
                    keeps_the_rest(&yaml, &result.text, &format!("seed {seed}, {target:?}"));
                    holds(&result, &format!("seed {seed}, {target:?}\n{yaml}\n{}", result.text));
                }
                // The editor or the dialect may not be able to express a pod. Then the conversion must be
                // refused.
                Err(ConvertError::Edit(_) | ConvertError::NotExpressible { .. }) => {}
                Err(other) => panic!("seed {seed}, {target:?}: {other:?}\n{yaml}"),
            }
        }
    }
    assert!(converted > 390, "only {converted} of 400 conversions came to something");
    assert!(whole > 200, "only {whole} conversions lose nothing");
}

#[test]
fn sidecars_named_by_the_annotation_are_converted() {
    let pod = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: p\n  annotations:\n    outrigger.dev/sidecars: proxy\nspec:\n  containers:\n    - name: main\n      image: m\n    - name: proxy\n      image: p\n";
    let native = convert(pod, Target::Native).expect("converted").text;
    assert!(
        !native.contains("outrigger.dev/sidecars") && native.contains("restartPolicy: Always"),
        "{native}"
    );
    assert!(native.find("name: proxy") < native.find("name: main"), "{native}");
}

#[test]
fn there_and_back_again() {
    // If a conversion is lossless, converting back loses nothing of the original without reporting it.
    for seed in 0..20 {
        let yaml = random_manifest(seed);
        for target in TARGETS {
            let Ok(there) = convert(&yaml, target) else { continue };
            for target in TARGETS {
                let Ok(back) = convert(&there.text, target) else { continue };
                let direct = compare(&there.before, &back.after);
                if there.lost.is_empty() && back.lost.is_empty() {
                    let lost: Vec<_> = direct.iter().filter(|d| d.loss).collect();
                    assert!(
                        lost.is_empty(),
                        "seed {seed}, {target:?}: {lost:?}\n{yaml}\n{}\n{}",
                        there.text,
                        back.text
                    );
                }
            }
        }
    }
}

#[test]
fn a_converted_manifest_is_converted() {
    for seed in 0..20 {
        let yaml = random_manifest(seed);
        for target in TARGETS {
            let Ok(once) = convert(&yaml, target) else { continue };
            let Ok(twice) = convert(&once.text, target) else {
                panic!("seed {seed}, {target:?}: cannot be converted again\n{}", once.text)
            };
            assert!(
                twice.lost.is_empty(),
                "seed {seed}, {target:?}: {:?}\n{}\n{}",
                twice.lost,
                once.text,
                twice.text
            );
        }
    }
}

struct Converted {
    text: String,
    before: Plan,
    after: Plan,
    lost: Vec<String>,
}

fn convert(yaml: &str, target: Target) -> Result<Converted, ConvertError> {
    let args = ReadArgs::default();
    let sources = [SourceFile::new("pod.yaml", yaml)];
    let manifest = args.read(&sources).unwrap_or_else(|e| panic!("{e:?}\n{yaml}"));
    let checked = check(&manifest, &FeatureGates::default());
    let before = checked[0].planned.as_ref().expect("random pods have plans").plan.clone();
    let result =
        super::convert(yaml, &checked, target, &args.options().manifest_options(), &FeatureGates::default())?;
    let manifest =
        args.read(&[SourceFile::new("pod.yaml", result.text.as_str())]).expect("it was read before");
    let after = outrigger_lifecycle::plan(&manifest.pods[0].input, &FeatureGates::default());
    let after = after.expect("it was planned before").plan;
    let lost = compare(&before, &after).into_iter().filter(|d| d.loss).map(|d| d.text).collect();
    Ok(Converted { text: result.text, before, after, lost })
}

/// A random pod as YAML with a comment after every container's name.
fn random_manifest(seed: u64) -> String {
    let (input, _) = random::pod(&mut Rng::new(seed));
    let mut pod = serde_json::to_value(&input.pod).expect("a pod is plain data");
    for (place, value) in &input.lifecycle_types {
        pod["spec"][place.list.field()][place.index]["lifecycle"]["type"] = json!(value);
    }
    let mut text = String::new();
    emit(&pod, 0, &mut text);
    text
}

fn emit(value: &Value, indent: usize, out: &mut String) {
    let Value::Object(map) = value else { panic!("expected an object") };
    for (i, (key, value)) in map.iter().enumerate() {
        if i > 0 || indent == 0 || !out.ends_with("- ") {
            out.push_str(&" ".repeat(indent));
        }
        match value {
            Value::Object(inner) if !inner.is_empty() => {
                out.push_str(&format!("{key}:\n"));
                emit(value, indent + 2, out);
            }
            Value::Array(items) if items.iter().all(Value::is_object) && !items.is_empty() => {
                out.push_str(&format!("{key}:\n"));
                for item in items {
                    out.push_str(&format!("{}- ", " ".repeat(indent)));
                    emit(item, indent + 2, out);
                }
            }
            Value::String(name) if key == "name" && indent == 4 => {
                out.push_str(&format!("{key}: {name} # this is {name}\n"));
            }
            other => out.push_str(&format!("{key}: {other}\n")),
        }
    }
}

/// Checks that everything unrelated to order is still there, including comments.
fn keeps_the_rest(before: &str, after: &str, what: &str) {
    let comments = |text: &str| {
        let mut lines: Vec<String> =
            text.lines().filter_map(|l| Some(l.split_once("# this is ")?.1.to_owned())).collect();
        lines.sort();
        lines
    };
    assert_eq!(comments(before), comments(after), "{what}: comments\n{before}\n{after}");
    let rest = |text: &str| {
        let manifest =
            ReadArgs::default().read(&[SourceFile::new("pod.yaml", text)]).expect("it can be read");
        let spec = manifest.pods[0].input.pod.spec.clone().expect("it has a spec");
        let mut containers: Vec<_> =
            spec.init_containers.into_iter().flatten().chain(spec.containers).collect();
        containers.sort_by(|a, b| a.name.cmp(&b.name));
        for c in &mut containers {
            c.restart_policy = None;
            c.startup_probe = None;
            c.lifecycle = c.lifecycle.take().filter(|l| *l != Default::default());
            c.env.iter_mut().for_each(|e| e.retain(|e| !e.name.starts_with("KRUISE_")));
            c.env = c.env.take().filter(|e| !e.is_empty());
        }
        (containers, spec.volumes, spec.restart_policy, spec.termination_grace_period_seconds)
    };
    assert_eq!(rest(before), rest(after), "{what}\n{before}\n{after}");
}

/// Simulates the converted pod and checks it against the original plan.
fn holds(result: &Converted, what: &str) {
    if !result.lost.is_empty() {
        return;
    }
    let mut scenario = Scenario::new(&result.after, &Script::default()).expect("an empty script fits");
    scenario.stop_at(ScriptDuration::seconds(60), None);
    let mut engine = outrigger_lifecycle::Engine::new(result.after.clone(), Time(0));
    let mut judge = Judge { before: &result.before, what };
    Simulator::new().run(&mut engine, &scenario, 1, &Options::default(), &mut judge);
}

struct Judge<'a> {
    before: &'a Plan,
    what: &'a str,
}

impl Judge<'_> {
    fn check_start(&self, plan: &Plan, obs: &Observation, container: usize) {
        let name = &plan.containers[container].name;
        let old = &self.before.containers[self.before.find(name).expect("the same containers")];
        for gate in old.gates.iter().filter(|g| g.need != Need::Launched) {
            let on_name = &self.before.containers[gate.on].name;
            let on = plan.find(on_name).expect("the same containers");
            let gate = Gate { on, every_start: false, ..*gate };
            // If the readiness probe became a startup probe, it has passed when the container is started.
            let copied = plan.containers[on].probe(ProbeKind::Startup).is_some()
                && self.before.containers[self.before.find(on_name).expect("found above")]
                    .probe(ProbeKind::Startup)
                    .is_none();
            // A gate that was open counts as open, however late the container starts.
            let was_open = gate.need == Need::Ready && obs.containers[on].was_ready;
            let open = rules::gate_open(plan, obs, container, &gate)
                || was_open
                || (copied && obs.containers[on].was_started);
            assert!(open, "`{name}` starts although `{on_name}` is not {:?}\n{}", gate.need, self.what);
        }
    }

    fn check_stop(&self, plan: &Plan, obs: &Observation, container: usize, now: Time) {
        let Some(stop) = &obs.stop else { return };
        let name = &plan.containers[container].name;
        let old = &self.before.containers[self.before.find(name).expect("the same containers")];
        // At the end of the grace period, nothing waits any more.
        let reserve = plan.sidecar_grace_ms;
        if plan.containers[container].role == Role::Init || now + reserve >= stop.deadline {
            return;
        }
        for &before in &old.stop_after {
            let before = &self.before.containers[before];
            let is = plan.find(&before.name).expect("the same containers");
            let first = before.role == Role::Init || plan.containers[is].role == Role::Init;
            let alive = obs.containers[is].state.is_alive();
            assert!(
                first || !alive,
                "`{name}` is told to stop before `{}` is gone\n{}",
                before.name,
                self.what
            );
        }
    }
}

impl Watch for Judge<'_> {
    fn event(&mut self, _: &Plan, _: &Observation, _: &Event, _: Time) {}
    fn updated(&mut self, _: usize, _: &Plan, _: &Observation, _: &[outrigger_lifecycle::Change], _: Time) {}
    fn restarted(&mut self, _: &Plan, _: &Observation, _: Time) {}
    fn over(&mut self, _: &Plan, _: &Observation, _: &[usize], _: Time) {}

    fn step(&mut self, plan: &Plan, obs: &Observation, decision: &Decision, now: Time) {
        for action in &decision.actions {
            match action {
                Action::Start { container, .. } if !obs.containers[*container].was_launched => {
                    self.check_start(plan, obs, *container);
                }
                Action::Terminate { container, .. } => self.check_stop(plan, obs, *container, now),
                _ => {}
            }
        }
    }
}
