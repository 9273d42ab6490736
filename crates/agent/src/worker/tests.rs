use super::*;
use crate::clock::rfc3339_nanos;
use crate::event::{Events, Scope, Subscribers};
use crate::fields::Host;
use crate::options::{NewPod, PodOptions};
use crate::pod::PreparedPod;
use crate::uid::PodUid;
use k8s_openapi::api::core::v1::Pod;
use outrigger_lifecycle::{FeatureGates, Phase, PodInput, plan};
use outrigger_manifest::apply_defaults;
use outrigger_runtime::{NetworkMode, RuntimeError};
use outrigger_testkit::fake::{FakeRuntime, Script};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// A pod and its worker, on a paused clock.
struct Running {
    worker: JoinHandle<PodResult>,
    orders: watch::Sender<Option<StopRequest>>,
    said: Arc<Mutex<Said>>,
    dir: tempfile::TempDir,
}

/// The events of the worker.
#[derive(Default)]
struct Said {
    entries: Vec<Value>,
    status: Option<Value>,
}

/// Collects the worker's events.
async fn listen(mut events: Events, pod: Arc<PodContext>, said: Arc<Mutex<Said>>) {
    while let Some(event) = events.next().await {
        match event.kind {
            AgentEventKind::Trace { entry, exact } => {
                let entry = Arc::unwrap_or_clone(entry);
                let record = entry.into_record(pod.plan(), pod.name(), rfc3339_nanos(exact));
                said.lock().unwrap().entries.push(record.to_json());
            }
            AgentEventKind::Status(update) => {
                said.lock().unwrap().status = Some(serde_json::to_value(update.object(&pod)).unwrap());
            }
            _ => {}
        }
    }
}

impl Running {
    fn start(runtime: &Arc<FakeRuntime>, spec: Value) -> Running {
        Running::start_with(runtime, spec, None, OnFailure::Retry)
    }

    fn start_with(
        runtime: &Arc<FakeRuntime>,
        spec: Value,
        grace_ms: Option<u64>,
        on_failure: OnFailure,
    ) -> Running {
        Running::annotated(runtime, json!({}), spec, grace_ms, on_failure)
    }

    fn annotated(
        runtime: &Arc<FakeRuntime>,
        annotations: Value,
        spec: Value,
        grace_ms: Option<u64>,
        on_failure: OnFailure,
    ) -> Running {
        let metadata = json!({"name": "p", "namespace": "ns", "annotations": annotations});
        let mut pod: Pod = serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap();
        for c in
            pod.spec.iter_mut().flat_map(|s| s.init_containers.iter_mut().flatten().chain(&mut s.containers))
        {
            c.image.get_or_insert_with(|| "image:1".into());
        }
        apply_defaults(&mut pod);
        let input = PodInput { pod, ..PodInput::default() };
        let plan = plan(&input, &FeatureGates::default()).unwrap().plan;
        let dir = tempfile::tempdir().unwrap();
        let options = PodOptions { grace_ms, ..PodOptions::new(NetworkMode::Private) };
        let host = Host { name: "node".into(), ip: None, cpu_milli: 1_000, memory_bytes: 1 << 30 };
        let new = NewPod {
            uid: PodUid::new("run-0"),
            group: "run".into(),
            input,
            plan,
            companions: Arc::default(),
            options: Arc::new(options),
            status: StatusUpdates::Emitted,
            on_failure,
        };
        let prepared = PreparedPod::new(new, Arc::new(host), &dir.path().canonicalize().unwrap()).unwrap();
        let PreparedPod { context, group, status, on_failure } = prepared;
        let context = Arc::new(context);
        let subscribers: Arc<Subscribers> = Arc::default();
        let said: Arc<Mutex<Said>> = Arc::default();
        tokio::spawn(listen(subscribers.subscribe(Scope::All), context.clone(), said.clone()));
        let (orders, stop) = watch::channel(None);
        let options = WorkerOptions {
            clock: Clock::start(),
            stop,
            orders: mpsc::unbounded_channel().1,
            events: Emitter { pod: context.uid().clone(), group, subscribers },
            latest: Arc::default(),
            logs: None,
            store: None,
            status,
            on_failure,
        };
        let worker = Worker::new(runtime.clone(), context, options);
        Running { worker: tokio::spawn(worker.run()), orders, said, dir }
    }

    fn stop(&self, grace_ms: Option<u64>) {
        self.orders.send_replace(Some(StopRequest::Delete { grace_ms }));
    }

    fn status(&self) -> Value {
        self.said.lock().unwrap().status.clone().unwrap_or_default()
    }

    fn events(&self) -> Vec<Value> {
        self.said.lock().unwrap().entries.clone()
    }

    /// Waits until the status matches, on the paused clock.
    async fn until(&self, what: impl Fn(&Value) -> bool) {
        for _ in 0..20_000 {
            if what(&self.status()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("never came true: {:#}", self.status()["status"]);
    }

    async fn end(self) -> (PodResult, tempfile::TempDir) {
        (self.worker.await.unwrap(), self.dir)
    }
}

fn position(calls: &[String], call: &str) -> usize {
    calls.iter().position(|c| c == call).unwrap_or_else(|| panic!("no {call:?} in {calls:?}"))
}

fn waiting(status: &Value, container: usize) -> Option<&str> {
    status["status"]["containerStatuses"][container]["state"]["waiting"]["reason"].as_str()
}

#[tokio::test(start_paused = true)]
async fn a_job_with_a_sidecar_runs_in_order_and_leaves_nothing() {
    let runtime = FakeRuntime::new([
        ("init", Script::job(100, 0)),
        ("main", Script { message: "well done", ..Script::job(500, 0) }),
    ]);
    let running = Running::start(
        &runtime,
        json!({"restartPolicy": "Never",
            "initContainers": [{"name": "init"}, {"name": "side", "restartPolicy": "Always",
                "startupProbe": {"exec": {"command": ["true"]}}, "lifecycle": {"preStop": {"exec": {"command": ["x"]}}}}],
            "containers": [{"name": "main"}]}),
    );
    running.until(|s| s["status"]["phase"] == "Succeeded").await;
    let (status, events) = (running.status(), running.events());
    let (result, dir) = running.end().await;
    assert_eq!(result, PodResult { phase: Phase::Succeeded, failed: None });
    let calls = runtime.calls();
    let order = [
        "sandbox p",
        "start init#0",
        "create side",
        "start side#0",
        "exec side",
        "start main#0",
        "term side",
        "remove sandbox",
    ];
    assert!(order.windows(2).all(|w| position(&calls, w[0]) < position(&calls, w[1])), "{calls:?}");
    assert_eq!(runtime.left(), 0, "every record is removed");
    assert_eq!(std::fs::read_dir(dir.path().join("pods")).unwrap().count(), 0, "the pod's directory is gone");
    let main = &status["status"]["containerStatuses"][0];
    assert_eq!(main["state"]["terminated"]["message"], "well done");
    assert!(main["containerID"].as_str().unwrap().starts_with("fake://run-0-2-0-main"), "{main}");
    assert_eq!(status["status"]["podIP"], "10.0.0.7");
    assert_eq!(status["spec"]["nodeName"], "node");
    for event in &events {
        assert_eq!(event["pod"], "p");
        assert!(event["time"].as_str().unwrap().ends_with('Z') && event["event"].is_string(), "{event}");
        assert!(event.get("container").is_none_or(Value::is_string), "{event}");
    }
    let output = events.iter().find(|e| e["event"] == "hook-output").unwrap();
    assert_eq!((&output["hook"], &output["output"]), (&json!("preStop"), &json!("x")));
}

#[tokio::test(start_paused = true)]
async fn the_next_container_is_made_while_its_gate_is_closed() {
    let runtime = FakeRuntime::new([("init", Script::job(5_000, 0)), ("main", Script::job(10, 0))]);
    let running = Running::start(
        &runtime,
        json!({"restartPolicy": "Never", "initContainers": [{"name": "init"}], "containers": [{"name": "main"}]}),
    );
    let init = |s: &Value| s["status"]["initContainerStatuses"][0]["state"]["running"].is_object();
    running.until(|s| init(s) && runtime.calls().contains(&"create main".to_owned())).await;
    assert!(!runtime.calls().contains(&"start main#0".to_owned()), "its gate is closed");
    running.until(|s| s["status"]["phase"] == "Succeeded").await;
    running.end().await;
    let calls = runtime.calls();
    assert_eq!(calls.iter().filter(|c| *c == "create main").count(), 1, "{calls:?}");
    assert_eq!(runtime.left(), 0);
}

#[tokio::test(start_paused = true)]
async fn what_was_made_ahead_goes_with_a_pod_that_ends_first() {
    let runtime = FakeRuntime::new([("init", Script::job(5_000, 1))]);
    let running = Running::start(
        &runtime,
        json!({"restartPolicy": "Never", "initContainers": [{"name": "init"}], "containers": [{"name": "main"}]}),
    );
    running.until(|_| runtime.calls().contains(&"create main".to_owned())).await;
    assert_eq!(running.end().await.0.phase, Phase::Failed);
    let calls = runtime.calls();
    assert!(!calls.contains(&"start main#0".to_owned()), "{calls:?}");
    assert_eq!(calls.last().map(String::as_str), Some("remove sandbox"), "with everything in it");
}

#[tokio::test(start_paused = true)]
async fn a_container_that_cannot_be_made_ahead_is_made_at_its_time() {
    let refusal: fn() -> RuntimeError = || RuntimeError::Create("no space".into());
    let runtime = FakeRuntime::new([
        ("init", Script::job(5_000, 0)),
        ("main", Script { refusals: vec![refusal], ..Script::job(10, 0) }),
    ]);
    let running = Running::start(
        &runtime,
        json!({"restartPolicy": "Never", "initContainers": [{"name": "init"}], "containers": [{"name": "main"}]}),
    );
    running.until(|s| s["status"]["phase"] == "Succeeded").await;
    assert!(!running.events().iter().any(|e| e["event"] == "start-failed"), "nothing went wrong at its time");
    running.end().await;
}

#[tokio::test(start_paused = true)]
async fn what_others_would_notice_is_not_done_ahead_as_root() {
    let v = |mount: Value| json!([{"name": "v", "mountPath": "/v"}, mount]);
    let table = [
        (
            "a plain volume",
            true,
            json!({"volumeMounts": v(json!({"name": "w", "mountPath": "/w"}))}),
            json!({}),
        ),
        (
            "a path in a volume",
            false,
            json!({"volumeMounts": v(json!({"name": "w", "mountPath": "/w", "subPath": "made-by-init"}))}),
            json!({}),
        ),
        (
            "a mount in a volume",
            false,
            json!({"volumeMounts": v(json!({"name": "w", "mountPath": "/v/made"}))}),
            json!({}),
        ),
        (
            "a directory of the host",
            false,
            json!({"volumeMounts": v(json!({"name": "h", "mountPath": "/h"}))}),
            json!({}),
        ),
        (
            "a working directory in a volume",
            false,
            json!({"workingDir": "/v/made", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}),
            json!({}),
        ),
        ("shared processes", false, json!({}), json!({"shareProcessNamespace": true})),
    ];
    for (what, ahead, container, pod) in table {
        let runtime = FakeRuntime::new([("init", Script::job(5_000, 0)), ("main", Script::job(10, 0))]);
        let mut spec = json!({"restartPolicy": "Never", "initContainers": [{"name": "init"}],
            "containers": [{"name": "main"}],
            "volumes": [{"name": "v", "emptyDir": {}}, {"name": "w", "emptyDir": {}},
                {"name": "h", "hostPath": {"path": "/"}}]});
        spec["containers"][0].as_object_mut().unwrap().extend(container.as_object().unwrap().clone());
        spec.as_object_mut().unwrap().extend(pod.as_object().unwrap().clone());
        let running = Running::start(&runtime, spec);
        running.until(|s| s["status"]["phase"] == "Succeeded").await;
        running.end().await;
        let calls = runtime.calls();
        assert_eq!(
            position(&calls, "create main") < position(&calls, "exit init"),
            ahead,
            "{what}: {calls:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_program_that_cannot_be_started_is_an_exit_with_128() {
    let refusal: fn() -> RuntimeError = || RuntimeError::Start("no such file".into());
    let runtime = FakeRuntime::new([("main", Script { refusals: vec![refusal], ..Script::default() })]);
    let running =
        Running::start(&runtime, json!({"restartPolicy": "Never", "containers": [{"name": "main"}]}));
    running.until(|s| s["status"]["phase"] == "Failed").await;
    let ended = &running.status()["status"]["containerStatuses"][0]["state"]["terminated"];
    assert_eq!(
        (&ended["exitCode"], &ended["reason"], &ended["message"]),
        (&json!(128), &json!("StartError"), &json!("no such file"))
    );
    assert_eq!(running.end().await.0.failed.map(|(_, code)| code), Some(128));
}

#[tokio::test(start_paused = true)]
async fn refusals_are_shown_and_tried_again() {
    let refusal: fn() -> RuntimeError = || RuntimeError::Create("no space".into());
    let runtime = FakeRuntime::new([("main", Script { refusals: vec![refusal; 2], ..Script::job(10, 3) })]);
    let running =
        Running::start(&runtime, json!({"restartPolicy": "Never", "containers": [{"name": "main"}]}));
    running.until(|s| waiting(s, 0) == Some("CreateContainerError")).await;
    running.until(|s| s["status"]["phase"] == "Failed").await;
    let calls = runtime.calls();
    assert_eq!(calls.iter().filter(|c| *c == "create main").count(), 3, "{calls:?}");
    assert_eq!(running.end().await.0.failed.map(|(_, code)| code), Some(3));
}

#[tokio::test(start_paused = true)]
async fn a_lost_sandbox_is_made_again_unless_something_ran_that_must_not_run_twice() {
    let refusal: fn() -> RuntimeError = || RuntimeError::NotFound { kind: "sandbox", id: "s".into() };
    for (policy, code, sandboxes) in [("OnFailure", None, 2), ("Never", Some(137), 1)] {
        let runtime = FakeRuntime::new([
            ("init", Script::job(10, 0)),
            // The runtime refuses to create it ahead, and refuses again when it is started.
            ("main", Script { refusals: vec![refusal; 2], ..Script::job(10, 0) }),
        ]);
        let running = Running::start(
            &runtime,
            json!({"restartPolicy": policy, "initContainers": [{"name": "init"}], "containers": [{"name": "main"}]}),
        );
        let phase = if code.is_none() { "Succeeded" } else { "Failed" };
        running.until(|s| s["status"]["phase"] == phase).await;
        let reason = running.status()["status"]["reason"].clone();
        assert_eq!(reason, if code.is_none() { Value::Null } else { json!("SandboxLost") });
        running.end().await;
        let calls = runtime.calls();
        let count = |call: &str| calls.iter().filter(|c| *c == call).count();
        assert_eq!(
            (count("sandbox p"), count("start init#0") + count("start init#1")),
            (sandboxes, sandboxes),
            "{calls:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_bad_reference_never_reaches_the_runtime() {
    let runtime = FakeRuntime::new([]);
    let from = json!({"configMapKeyRef": {"name": "no", "key": "k"}});
    let running = Running::start(
        &runtime,
        json!({"containers": [{"name": "main", "env": [{"name": "V", "valueFrom": from}]}, {"name": "other"}]}),
    );
    running.until(|s| waiting(s, 0) == Some("CreateContainerConfigError")).await;
    running.until(|s| s["status"]["containerStatuses"][1]["ready"] == true).await;
    running.stop(None);
    let (result, _dir) = running.end().await;
    assert_eq!(result.phase, Phase::Failed);
    let calls = runtime.calls();
    assert!(
        !calls.contains(&"create main".to_owned()) && calls.contains(&"term other".to_owned()),
        "{calls:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn an_image_that_is_not_there_is_shown() {
    let runtime = FakeRuntime::new([]);
    let running = Running::start(&runtime, json!({"containers": [{"name": "main", "image": "none"}]}));
    running.until(|s| waiting(s, 0) == Some("ErrImageNeverPull")).await;
    running.stop(None);
    running.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_slow_hook_of_one_container_holds_no_other_up_g13() {
    let runtime = FakeRuntime::new([
        ("sick", Script { exec: (1, Duration::from_secs(60)), ..Script::default() }),
        ("crash", Script::job(3_000, 1)),
    ]);
    let running = Running::start(
        &runtime,
        json!({"terminationGracePeriodSeconds": 120, "containers": [
            {"name": "sick", "livenessProbe": {"tcpSocket": {"port": 1}, "periodSeconds": 1, "failureThreshold": 1},
             "lifecycle": {"preStop": {"exec": {"command": ["slow"]}}}},
            {"name": "crash"}]}),
    );
    // The probe has failed and the hook is running. The other container restarts meanwhile.
    let restarts = |s: &Value| s["status"]["containerStatuses"][1]["restartCount"].clone();
    running.until(|s| restarts(s) == 1).await;
    let calls = runtime.calls();
    assert_eq!(calls.iter().filter(|c| *c == "exec sick").count(), 1);
    let hook = position(&calls, "exec sick");
    assert!(
        hook < position(&calls, "start crash#1")
            && position(&calls, "start crash#1") < position(&calls, "term sick"),
        "{calls:?}"
    );
    running.stop(Some(0));
    running.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_stop_does_not_wait_for_a_start_that_hangs_g15() {
    let runtime =
        FakeRuntime::new([("main", Script { creation: Duration::from_secs(3_600), ..Script::default() })]);
    let began = Instant::now();
    let running = Running::start(
        &runtime,
        json!({"terminationGracePeriodSeconds": 5, "containers": [{"name": "main"}]}),
    );
    running.until(|_| runtime.calls().contains(&"create main".to_owned())).await;
    running.stop(None);
    running.end().await;
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_stop_does_not_wait_for_an_image_g15() {
    let runtime = FakeRuntime::new([]);
    let running = Running::start(&runtime, json!({"containers": [{"name": "main", "image": "slow"}]}));
    running.until(|_| runtime.calls().contains(&"sandbox p".to_owned())).await;
    let began = Instant::now();
    running.stop(None);
    running.end().await;
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn later_orders_shorten_the_grace_g16() {
    let ignores_signals = || Script { stops_in: None, ..Script::default() };
    for (times, grace, least, most) in [(1, None, 30.0, 30.5), (2, Some(1), 2.0, 2.5), (3, Some(0), 0.0, 0.5)]
    {
        let runtime = FakeRuntime::new([("main", ignores_signals())]);
        let running = Running::start(&runtime, json!({"containers": [{"name": "main"}]}));
        running.until(|s| s["status"]["phase"] == "Running").await;
        let began = Instant::now();
        running.stop(None);
        running.until(|_| runtime.calls().contains(&"term main".to_owned())).await;
        if times > 1 {
            running.stop(grace);
        }
        running.end().await;
        let took = began.elapsed().as_secs_f64();
        assert!((least..most).contains(&took), "order {times}: {took}");
        assert!(runtime.calls().contains(&"kill main".to_owned()));
    }
}

#[tokio::test(start_paused = true)]
async fn an_order_given_before_the_start_counts() {
    let runtime = FakeRuntime::new([]);
    let running = Running::start(&runtime, json!({"containers": [{"name": "main"}]}));
    running.stop(None);
    assert_eq!(running.end().await.0.phase, Phase::Failed);
    assert!(!runtime.calls().iter().any(|c| c.starts_with("start")));
}

#[tokio::test(start_paused = true)]
async fn missing_volumes_hold_the_pod_back_with_a_reason() {
    let runtime = FakeRuntime::new([]);
    let running = Running::start(
        &runtime,
        json!({"containers": [{"name": "main"}],
            "volumes": [{"name": "v", "hostPath": {"path": "/no/such", "type": "Directory"}}]}),
    );
    let failed = |r: &Running| {
        r.events().iter().any(|e| {
            e["event"] == "sandbox-failed"
                && e["message"].as_str().is_some_and(|m| m.contains("volume \"v\""))
        })
    };
    running.until(|_| failed(&running)).await;
    running.stop(None);
    let (_, dir) = running.end().await;
    assert!(!Path::new(&dir.path().join("pods")).read_dir().unwrap().any(|_| true));
}

/// The events of the pod, each with its container: `main exited`.
fn told(events: &[Value]) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    events.iter().map(|e| format!("{} {}", text(&e["container"]), text(&e["event"]))).collect()
}

#[tokio::test(start_paused = true)]
async fn a_failure_that_stops_the_pod_is_a_stop_like_any_other() {
    let ignores = Script { stops_in: None, ..Script::default() };
    let runtime = FakeRuntime::new([("bad", Script::job(500, 3)), ("ok", ignores)]);
    let running = Running::start_with(
        &runtime,
        json!({"terminationGracePeriodSeconds": 20, "containers": [{"name": "bad"}, {"name": "ok"}]}),
        Some(3_000),
        OnFailure::Stop,
    );
    running.until(|s| s["status"]["phase"] == "Failed").await;
    let events = running.events();
    running.end().await;
    let told = told(&events);
    let order = ["bad exited", " stop-begun", "ok terminating", "ok killing", "ok exited"];
    assert!(order.windows(2).all(|w| position(&told, w[0]) < position(&told, w[1])), "{told:?}");
    let event = |name: &str| &events[position(&told, name)];
    assert_eq!(event(" stop-begun")["grace_ms"], 3_000);
    assert_eq!(event("ok terminating")["kill_in_ms"], 3_000, "not the pod's own grace period");
    assert_eq!(told.iter().filter(|t| *t == "bad starting").count(), 1, "it is not started again");
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_can_only_fail_is_stopped_unless_it_stops_by_itself() {
    let graph = json!({"outrigger.dev/depends-on": "ok: bad ready"});
    for (annotations, cause) in [(json!({}), "not-retried"), (graph, "gate-never-opens")] {
        let runtime = FakeRuntime::new([("bad", Script::job(500, 3)), ("ok", Script::job(600_000, 0))]);
        let spec = json!({"restartPolicy": "Never", "containers": [
            {"name": "bad", "readinessProbe": {"tcpSocket": {"port": 1}}}, {"name": "ok"}]});
        let running = Running::annotated(&runtime, annotations, spec, None, OnFailure::Stop);
        running.until(|s| s["status"]["phase"] == "Failed").await;
        let events = running.events();
        running.end().await;
        let stop = &events[position(&told(&events), " stop-begun")];
        assert_eq!(stop["cause"], cause, "{stop}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_container_whose_probe_failed_has_failed_whatever_it_exits_with() {
    let polite = Script { exec: (1, Duration::ZERO), ..Script::default() };
    let runtime = FakeRuntime::new([("main", polite)]);
    let spec = json!({"containers": [{"name": "main", "livenessProbe":
        {"exec": {"command": ["false"]}, "periodSeconds": 1, "failureThreshold": 1}}]});
    let running = Running::start_with(&runtime, spec, None, OnFailure::Stop);
    running.until(|s| s["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 0).await;
    let told = told(&running.events());
    running.end().await;
    assert!(told.contains(&" stop-begun".to_owned()), "{told:?}");
    assert_eq!(told.iter().filter(|t| *t == "main starting").count(), 1, "it is not started again");
}
