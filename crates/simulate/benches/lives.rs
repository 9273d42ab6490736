//! Benchmarks of single decisions and of whole simulations: `cargo bench -p outrigger-simulate`.

#![allow(missing_docs, reason = "criterion's macros make undocumented items")]

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use k8s_openapi::api::core::v1::Pod;
use outrigger_lifecycle::{Decision, Engine, Event, FeatureGates, Plan, PodInput, Time, decide, plan};
use outrigger_simulate::{Options, Scenario, Script, ScriptDuration, Simulator, TraceRecording};
use serde_json::{Value, json};

/// A job with `n` containers: one init container, sidecars with startup and readiness probes, and mains.
fn pod(n: usize) -> Plan {
    let probe = json!({"periodSeconds": 1, "httpGet": {"port": 80}});
    let sidecars = (n / 2).max(1);
    let mut init: Vec<Value> = vec![json!({"name": "init", "image": "i"})];
    for i in 0..sidecars {
        init.push(json!({"name": format!("sidecar-{i}"), "image": "i", "restartPolicy": "Always", "startupProbe": probe}));
    }
    let mains: Vec<Value> = (0..n - 1 - sidecars)
        .map(|i| json!({"name": format!("main-{i}"), "image": "i", "readinessProbe": probe}))
        .collect();
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "bench"},
        "spec": {"restartPolicy": "Never", "initContainers": init, "containers": mains},
    }))
    .expect("a pod");
    plan(&PodInput { pod, ..Default::default() }, &FeatureGates::default()).expect("a plan").plan
}

/// A pod in which all containers are running and ready.
fn running(plan: &Plan) -> Engine {
    let mut engine = Engine::new(plan.clone(), Time(0));
    let mut out = Decision::default();
    let mut tell = |engine: &mut Engine, events: &[Event]| {
        for event in events {
            engine.handle(event, Time(1));
        }
        engine.step(Time(1), &mut out);
    };
    tell(&mut engine, &[Event::SandboxReady]);
    for container in 0..plan.containers.len() {
        tell(&mut engine, &[Event::ImageReady { container }]);
    }
    for (container, c) in plan.containers.iter().enumerate() {
        let attempt = 0;
        tell(&mut engine, &[Event::Started { container, attempt }]);
        for kind in outrigger_lifecycle::ProbeKind::ALL.into_iter().filter(|&k| c.probe(k).is_some()) {
            let outcome = outrigger_lifecycle::ProbeOutcome::Success;
            tell(
                &mut engine,
                &[Event::Probed { container, attempt, kind, outcome, message: None, cause: None }],
            );
        }
        if c.role == outrigger_lifecycle::Role::Init {
            let exit = outrigger_lifecycle::Exit {
                code: 0,
                signal: None,
                reason: outrigger_lifecycle::ExitReason::Completed,
                started_at: Some(Time(1)),
                finished_at: Time(1),
                message: None,
                killed_for: None,
            };
            tell(&mut engine, &[Event::Exited { container, attempt, exit }]);
        }
    }
    assert!(engine.observation().containers.iter().all(|c| c.was_run), "everything has started");
    engine
}

fn decisions(c: &mut Criterion) {
    let mut group = c.benchmark_group("decision");
    for n in [3, 5, 10, 100] {
        let plan = pod(n);
        let fresh = Engine::new(plan.clone(), Time(0));
        let busy = running(&plan);
        let mut stopping = busy.clone();
        stopping.handle(&Event::StopRequested { grace_ms: None }, Time(2));
        stopping.step(Time(2), &mut Decision::default());
        let mut out = Decision::default();
        for (name, engine) in [("fresh", &fresh), ("running", &busy), ("stopping", &stopping)] {
            group.bench_with_input(BenchmarkId::new(name, n), engine, |b, engine| {
                b.iter(|| decide(engine.plan(), black_box(engine.observation()), Time(3), &mut out));
            });
        }
    }
    group.finish();
}

fn lives(c: &mut Criterion) {
    let mut group = c.benchmark_group("life");
    let options = Options { horizon: ScriptDuration::seconds(3_600), ..Options::default() };
    for n in [3, 5, 10, 100] {
        let plan = pod(n);
        let scenario = Scenario::new(&plan, &Script::default()).expect("an empty script fits");
        let mut simulator = Simulator::new();
        let mut seed = 0;
        group.bench_function(BenchmarkId::new("unrecorded", n), |b| {
            b.iter(|| {
                seed += 1;
                let mut engine = Engine::new(plan.clone(), Time(0));
                black_box(simulator.run(&mut engine, &scenario, seed, &options, &mut ()))
            });
        });
        group.bench_function(BenchmarkId::new("recorded", n), |b| {
            b.iter(|| {
                let mut engine = Engine::new(plan.clone(), Time(0));
                let mut tape = TraceRecording::new(&plan, 100_000);
                simulator.run(&mut engine, &scenario, 1, &options, &mut tape);
                black_box(tape.into_entries())
            });
        });
    }
    group.finish();
}

criterion_group!(benches, decisions, lives);
criterion_main!(benches);
