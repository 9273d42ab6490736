//! Tests of controllers and workers together, with a timer-based fake runtime and a paused clock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use outrigger_agent::Agent;
use outrigger_agent::clock::Clock;
use outrigger_agent::options::PodOptions;
use outrigger_agent::options::{AgentOptions, Durability, LogLines, OnFailure};
use outrigger_lifecycle::trace::Line;
use outrigger_lifecycle::{FeatureGates, Phase, Role, plan};
use outrigger_manifest::{ReadOptions, SourceFile, read};
use outrigger_runtime::NetworkMode;
use outrigger_testkit::fake::{FakeRuntime, Script};
use outrigger_view::hint::Hints;
use outrigger_view::output::{Format, Output, Verbosity};
use serde_json::Value;

use super::*;
use crate::control::PodRegistry;
use crate::sinks::{Happened, Sinks};
use crate::status_file::{EventsFile, StatusContent, StatusFile};
use crate::supervisor::{Afterwards, Supervisor, SupervisorOptions};

struct Bench {
    dir: tempfile::TempDir,
    clock: Clock,
    supervisor: Supervisor<FakeRuntime>,
    controllers: Vec<Box<dyn Controller>>,
}

/// The pods of a manifest, with their plans, and its workloads.
fn planned(manifest: &str) -> (Vec<PlannedPod>, outrigger_manifest::Manifest) {
    let manifest = read(&[SourceFile::new("w.yaml", manifest)], &ReadOptions::default()).unwrap();
    let planned = manifest.pods.iter().map(|pod| {
        let plan = plan(&pod.input, &FeatureGates::default()).unwrap().plan;
        PlannedPod { manifest: pod.clone(), plan }
    });
    (planned.collect(), manifest)
}

impl Bench {
    fn new(runtime: Arc<FakeRuntime>, manifest: &str) -> Self {
        let (planned, manifest) = planned(manifest);
        let dir = tempfile::tempdir().unwrap();
        let options = AgentOptions {
            state_dir: dir.path().canonicalize().unwrap(),
            durability: Durability::Process,
            logs: LogLines::Kept,
        };
        let agent = Agent::start(runtime, options).unwrap();
        let clock = agent.clock();
        let sinks = Sinks {
            output: Output::captured(Format::Plain, Verbosity::Quiet).unwrap().0,
            events: EventsFile::create(Some(&dir.path().join("events"))).unwrap(),
            status_file: StatusFile::new(Some(&dir.path().join("status")), StatusContent::List),
            registry: PodRegistry::new(clock),
            hints: Hints::default(),
            pods: BTreeMap::new(),
        };
        let options = SupervisorOptions {
            run: "run".into(),
            files: Vec::new(),
            pods: PodOptions::new(NetworkMode::None),
            companions: manifest.companions,
            numbers: Arc::default(),
            on_failure: OnFailure::Retry,
            afterwards: Afterwards::Forget,
        };
        let controllers = controllers(planned, manifest.workloads, clock.now());
        Bench { dir, clock, supervisor: Supervisor::new(agent, options, sinks), controllers }
    }

    /// Drives the run until the test holds. Returns false if the run ends before.
    async fn until(&mut self, mut test: impl FnMut(&Bench) -> bool) -> bool {
        for _ in 0..10_000 {
            let stamp = self.clock.now();
            for controller in &mut self.controllers {
                controller.step(&mut self.supervisor, stamp).unwrap();
            }
            if test(self) {
                return true;
            }
            if self.controllers.iter().all(|c| c.result().is_some()) {
                return false;
            }
            let wake = self.controllers.iter().filter_map(|c| c.wake()).min();
            let clock = self.clock;
            tokio::select! {
                happened = self.supervisor.next() => match happened {
                    Happened::Status(pod, update) => {
                        let now = self.clock.now().time;
                        self.controllers.iter_mut().for_each(|c| c.status_changed(pod, &update, now));
                    }
                    Happened::Ended(pod, result, _) => {
                        let now = self.clock.now().time;
                        self.controllers.iter_mut().for_each(|c| c.ended(pod, result, now));
                    }
                    Happened::Failed(..) => {}
                },
                () = async { clock.reach(wake.unwrap()).await }, if wake.is_some() => {}
            }
        }
        panic!("it does not end");
    }

    fn events(&self, event: &str) -> Vec<Value> {
        let text = std::fs::read_to_string(self.dir.path().join("events")).unwrap();
        let all = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        all.filter(|e| e["event"] == event).collect()
    }

    fn ready(&self) -> usize {
        self.events("ready").len()
    }
}

const JOB: &str = "\
apiVersion: batch/v1
kind: Job
metadata: {name: j}
spec:
  backoffLimit: 2
  template:
    spec: {restartPolicy: Never, containers: [{name: main, image: i}]}
";

fn set(kind: &str) -> String {
    format!(
        "apiVersion: apps/v1\nkind: {kind}\nmetadata: {{name: w}}\nspec:\n  replicas: 2\n  serviceName: w\n  \
         selector: {{matchLabels: {{app: w}}}}\n  template:\n    metadata: {{labels: {{app: w}}}}\n    \
         spec: {{containers: [{{name: main, image: i}}]}}\n"
    )
}

#[tokio::test(start_paused = true)]
async fn a_failing_job_waits_as_long_as_kubernetes_does() {
    let runtime = FakeRuntime::new([("main", Script::job(100, 3))]);
    let mut bench = Bench::new(runtime.clone(), JOB);
    let began = bench.clock.now().time;
    assert!(!bench.until(|_| false).await);
    let result = bench.controllers[0].result().unwrap();
    assert_eq!((result.phase, result.failed.map(|(_, code)| code)), (Phase::Failed, Some(3)));
    let took = bench.clock.now().time.since(began);
    assert!((30_000..32_000).contains(&took), "10 s and 20 s between three pods, not {took} ms");
    let waits: Vec<u64> = bench.events("job-back-off").iter().filter_map(|e| e["wait_ms"].as_u64()).collect();
    assert_eq!(waits.len(), 2);
    assert_eq!((bench.events("pod-created").len(), runtime.left()), (3, 0));
}

#[tokio::test(start_paused = true)]
async fn a_pod_somebody_stops_counts_as_failed_and_is_replaced() {
    let runtime = FakeRuntime::new([("main", Script::default())]);
    let mut bench = Bench::new(runtime, JOB);
    assert!(bench.until(|b| b.ready() == 1).await);
    bench.supervisor.stop(0, None);
    assert!(bench.until(|b| b.events("pod-created").len() == 2).await, "after its back-off");
    assert_eq!(bench.events("job-back-off").len(), 1);
    bench.controllers[0].stop(None);
    assert!(!bench.until(|_| false).await);
    assert_eq!(bench.events("pod-deleted").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_set_replaces_a_pod_that_was_stopped() {
    for (kind, same_name) in [("StatefulSet", true), ("ReplicaSet", false)] {
        let runtime = FakeRuntime::new([("main", Script::default())]);
        let text = match kind {
            "StatefulSet" => set(kind),
            _ => set(kind).replace("  serviceName: w\n", ""),
        };
        let mut bench = Bench::new(runtime.clone(), &text);
        assert!(bench.until(|b| b.ready() == 2).await);
        let began = bench.clock.now().time;
        bench.supervisor.stop(0, None);
        assert!(bench.until(|b| b.ready() == 3).await);
        assert!(bench.clock.now().time.since(began) < 1_000, "{kind}: at once");
        let made = bench.events("pod-created");
        assert_eq!(made[0]["pod"] == made[2]["pod"], same_name, "{kind}: {made:?}");
        // Only pods with a stable identity have an index.
        assert_eq!(made[0]["index"].is_u64(), same_name, "{kind}: {made:?}");
        let Ok(Line::Workload(record)) = Line::from_json(&made[0]) else { panic!("{made:?}") };
        let told = outrigger_view::workload_words::tell(&record).text;
        assert_eq!(told.contains(" for index 0"), same_name, "{kind}: {told}");
        bench.controllers[0].stop(None);
        assert!(!bench.until(|_| false).await);
        assert_eq!((bench.events("pod-created").len(), runtime.left()), (3, 0), "{kind}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_ordered_set_that_is_told_twice_cares_for_no_order() {
    let ignores_signals = Script { stops_in: None, ..Script::default() };
    let mut bench = Bench::new(FakeRuntime::new([("main", ignores_signals)]), &set("StatefulSet"));
    assert!(bench.until(|b| b.ready() == 2).await);
    let began = bench.clock.now().time;
    bench.controllers[0].stop(None);
    assert!(bench.until(|b| b.events("pod-deleted").len() == 1).await);
    bench.supervisor.stop_all(Some(1));
    assert!(!bench.until(|_| false).await);
    let took = Duration::from_millis(bench.clock.now().time.since(began));
    assert!(took < Duration::from_secs(10), "{took:?}, with 30 s of grace each");
}

#[tokio::test(start_paused = true)]
async fn what_is_published_plans_as_what_was_read() {
    let of = |kind: &str, more: &str| {
        let version = if kind == "Job" { "batch/v1" } else { "apps/v1" };
        format!(
            "---\napiVersion: {version}\nkind: {kind}\nmetadata: {{name: w-{}}}\nspec:\n{more}  template:\n    \
             metadata: {{labels: {{app: w}}}}\n    spec:\n      containers:\n      - {{name: main, image: i}}\n      \
             - {{name: proxy, image: i, lifecycle: {{type: Sidecar, preStop: {{exec: {{command: [x]}}}}}}}}\n",
            kind.to_lowercase()
        )
    };
    let selector = "  selector: {matchLabels: {app: w}}\n";
    let mut text = of("Job", "")
        .replace("    spec:\n      containers", "    spec:\n      restartPolicy: Never\n      containers");
    for kind in ["Deployment", "StatefulSet", "DaemonSet", "ReplicaSet"] {
        text.push_str(&of(kind, selector));
    }
    text.push_str("---\napiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n  - {name: main, image: i}\n  \
                   - {name: proxy, image: i, lifecycle: {type: Sidecar}}\n");
    let runtime = FakeRuntime::new([("main", Script::default()), ("proxy", Script::default())]);
    let mut bench = Bench::new(runtime, &text);
    assert!(bench.until(|b| b.ready() >= 12).await);
    bench.supervisor.sinks.status_file.finish();
    let written = std::fs::read_to_string(bench.dir.path().join("status")).unwrap();
    let again = read(&[SourceFile::new("status.json", written)], &ReadOptions::default()).unwrap();
    // There is one pod for each workload, and the bare pod. Pods of a workload are skipped, because the
    // workload creates them again.
    assert_eq!(again.pods.len(), 6);
    for pod in &again.pods {
        let plan = plan(&pod.input, &FeatureGates::default()).unwrap().plan;
        let proxy = plan.containers.iter().find(|c| c.name == "proxy").unwrap();
        assert_eq!(proxy.role, Role::Sidecar, "{} {}", pod.origin.kind, pod.name());
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_with_a_host_port_is_replaced_when_the_port_is_free() {
    // The container takes 5 s to stop. Its port is in use until then.
    let slow = Script { stops_in: Some(Duration::from_secs(5)), ..Script::default() };
    let text = set("ReplicaSet").replace("  serviceName: w\n", "").replace("replicas: 2", "replicas: 1");
    let text = text.replace("image: i}", "image: i, ports: [{containerPort: 80, hostPort: 8080}]}");
    let mut bench = Bench::new(FakeRuntime::new([("main", slow)]), &text);
    assert!(bench.until(|b| b.ready() == 1).await);
    let began = bench.clock.now().time;
    bench.supervisor.stop(0, None);
    assert!(bench.until(|b| b.events("pod-created").len() == 2).await);
    assert!(bench.clock.now().time.since(began) >= 5_000, "made while the first one still had the port");
    bench.controllers[0].stop(None);
    assert!(!bench.until(|_| false).await);
}

/// A fake that only records the pods.
#[derive(Default)]
struct FakePods {
    names: Vec<String>,
    stopped: Vec<(usize, Option<u64>)>,
    updated: Vec<usize>,
    events: Vec<Value>,
}

impl Pods for FakePods {
    fn add(&mut self, pod: PlannedPod, _: StatusUpdates) -> Result<usize, WorkloadError> {
        self.names.push(pod.manifest.name().to_owned());
        Ok(self.names.len() - 1)
    }

    fn resume(&mut self, number: usize, pod: PlannedPod, _: StatusUpdates) -> Result<(), WorkloadError> {
        assert_eq!(self.names[number], pod.manifest.name(), "the same pod as before");
        Ok(())
    }

    fn show(&mut self, number: usize, pod: PlannedPod) {
        assert_eq!(self.names[number], pod.manifest.name(), "the same pod as before");
    }

    fn update(&mut self, number: usize, pod: PlannedPod) -> Result<(), WorkloadError> {
        assert_eq!(self.names[number], pod.manifest.name(), "the same pod as before");
        self.updated.push(number);
        Ok(())
    }

    fn stop(&mut self, number: usize, grace_ms: Option<u64>) {
        self.stopped.push((number, grace_ms));
    }

    fn record(&mut self, _: Duration, record: &WorkloadRecord) {
        self.events.push(record.to_json());
    }

    fn wants_status(&self) -> bool {
        false
    }

    fn publish(&mut self, _: usize, _: &Value, _: &LifecycleTypes) {
        panic!("not called");
    }
}

fn stamp(ms: u64) -> Stamp {
    Stamp { time: Time(ms), exact: Duration::from_millis(ms) }
}

#[test]
fn a_job_is_decided_without_a_runtime_and_goes_on_from_what_it_saved() {
    let make = || {
        let (pods, manifest) = planned(JOB);
        controllers(pods, manifest.workloads, stamp(0)).remove(0)
    };
    let (mut pods, mut job) = (FakePods::default(), make());
    job.step(&mut pods, stamp(0)).unwrap();
    assert_eq!(pods.names.len(), 1);
    let failed = PodResult { phase: Phase::Failed, failed: Some((Time(5), 3)) };
    job.ended(0, failed, Time(5));
    job.step(&mut pods, stamp(5)).unwrap();
    assert_eq!((pods.names.len(), job.wake()), (1, Some(Time(10_005))), "it waits for its back-off");
    let saved = job.save();
    let mut job = make();
    job.restore(saved, &mut pods).unwrap();
    job.step(&mut pods, stamp(10_005)).unwrap();
    assert_eq!(pods.names.len(), 2);
    assert_ne!(pods.names[0], pods.names[1]);
    job.ended(1, PodResult { phase: Phase::Succeeded, failed: None }, Time(10_010));
    job.step(&mut pods, stamp(10_010)).unwrap();
    assert_eq!(job.result().map(|result| result.phase), Some(Phase::Succeeded));
    let events: Vec<&str> = pods.events.iter().filter_map(|e| e["event"].as_str()).collect();
    let expected = ["job-started", "pod-created", "job-back-off", "pod-created", "job-complete"];
    assert_eq!(events, expected);
}

#[test]
fn a_set_that_is_stopped_stops_its_pods_and_makes_no_more() {
    let (pods, manifest) = planned(&set("ReplicaSet").replace("  serviceName: w\n", ""));
    let mut set = controllers(pods, manifest.workloads, stamp(0)).remove(0);
    let mut pods = FakePods::default();
    set.step(&mut pods, stamp(0)).unwrap();
    assert_eq!(pods.names.len(), 2);
    set.stop(None);
    set.step(&mut pods, stamp(1)).unwrap();
    pods.stopped.sort_unstable();
    assert_eq!(pods.stopped, [(0, None), (1, None)]);
    for pod in [0, 1] {
        set.ended(pod, PodResult { phase: Phase::Failed, failed: None }, Time(2));
    }
    set.step(&mut pods, stamp(2)).unwrap();
    assert_eq!(pods.names.len(), 2, "none is replaced");
    assert!(set.result().is_some());
}

#[test]
fn a_pod_is_changed_where_it_runs_and_a_set_by_its_number() {
    let wanted = |text: &str| {
        let (pods, manifest) = planned(text);
        Wanted::all(pods, &manifest.workloads).remove(0)
    };
    let pod =
        "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: main, image: i}]}\n";
    let (mut pods, mut bare) = (FakePods::default(), wanted(pod).controller(stamp(0), String::new()));
    bare.step(&mut pods, stamp(0)).unwrap();
    bare.update(wanted(&pod.replace("image: i", "image: other")), &mut pods, stamp(1)).unwrap();
    assert_eq!(pods.updated, [0]);
    bare.ended(0, PodResult { phase: Phase::Succeeded, failed: None }, Time(2));
    bare.update(wanted(pod), &mut pods, stamp(3)).unwrap();
    assert_eq!(pods.updated, [0], "one that is over stays as it was");
    let text = set("ReplicaSet").replace("  serviceName: w\n", "");
    let (mut pods, mut set) = (FakePods::default(), wanted(&text).controller(stamp(0), String::new()));
    set.step(&mut pods, stamp(0)).unwrap();
    set.update(wanted(&text.replace("replicas: 2", "replicas: 3")), &mut pods, stamp(1)).unwrap();
    set.step(&mut pods, stamp(1)).unwrap();
    assert_eq!((pods.names.len(), pods.updated.len()), (3, 0));
}

#[tokio::test(start_paused = true)]
async fn a_stop_that_a_killed_process_had_only_noted_is_carried_out_by_the_next() {
    let template =
        "{metadata: {labels: {a: b}}, spec: {restartPolicy: POLICY, containers: [{name: c, image: i}]}}";
    let set = format!(
        "{{apiVersion: apps/v1, kind: Deployment, metadata: {{name: w}}, \
         spec: {{replicas: 3, selector: {{matchLabels: {{a: b}}}}, template: {}}}}}",
        template.replace("POLICY", "Always")
    );
    let job = format!(
        "{{apiVersion: batch/v1, kind: Job, metadata: {{name: w}}, spec: {{completions: 3, parallelism: 3, template: {}}}}}",
        template.replace("POLICY", "Never")
    );
    for manifest in [set, job] {
        let stamp = Clock::start().now();
        let make = || {
            let (planned, manifest) = planned(&manifest);
            controllers(planned, manifest.workloads, stamp).remove(0)
        };
        let (mut pods, mut first, mut next) = (FakePods::default(), make(), make());
        first.step(&mut pods, stamp).unwrap();
        first.stop(None);
        first.step(&mut pods, stamp).unwrap();
        assert_eq!(pods.stopped, [(0, None), (1, None), (2, None)], "{manifest}");

        // The first process was killed before the pods noticed the stop.
        next.restore(first.save(), &mut pods).unwrap();
        pods.stopped.clear();
        next.step(&mut pods, stamp).unwrap();
        assert_eq!(pods.stopped, [(0, None), (1, None), (2, None)], "{manifest}");
        pods.stopped.clear();
        next.step(&mut pods, stamp).unwrap();
        assert_eq!(pods.stopped, [], "{manifest}");

        // A shorter grace period reaches the pods, too.
        next.stop(Some(0));
        next.step(&mut pods, stamp).unwrap();
        assert_eq!(pods.stopped, [(0, Some(0)), (1, Some(0)), (2, Some(0))], "{manifest}");
    }
}
