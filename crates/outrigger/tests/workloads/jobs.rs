//! Tests Jobs.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::run::{Bench, Run, Test};

pub(crate) const ALL: [(&str, Test); 14] = [
    ("a_job_runs_until_its_completions", a_job_runs_until_its_completions),
    ("an_indexed_job_tells_each_pod_its_index", an_indexed_job_tells_each_pod_its_index),
    ("a_failing_job_is_tried_again_until_its_limit", a_failing_job_is_tried_again_until_its_limit),
    ("an_exit_code_fails_the_job_at_once", an_exit_code_fails_the_job_at_once),
    ("a_deadline_ends_the_job", a_deadline_ends_the_job),
    ("a_success_policy_ends_the_job_early", a_success_policy_ends_the_job_early),
    ("a_failed_index_leaves_the_others_alone", a_failed_index_leaves_the_others_alone),
    ("a_suspended_job_is_not_run", a_suspended_job_is_not_run),
    ("a_sidecar_does_not_hold_a_job", a_sidecar_does_not_hold_a_job),
    ("restarts_count_towards_the_limit", restarts_count_towards_the_limit),
    ("a_cron_job_is_run_once_now", a_cron_job_is_run_once_now),
    ("an_interrupted_job_makes_no_more_pods", an_interrupted_job_makes_no_more_pods),
    ("a_work_queue_ends_with_its_workers", a_work_queue_ends_with_its_workers),
    ("a_job_and_a_pod_run_side_by_side", a_job_and_a_pod_run_side_by_side),
];

fn pair(kind: &str, reason: &str) -> (String, String) {
    (kind.to_owned(), reason.to_owned())
}

/// The time of an event, in milliseconds of its day.
fn at_ms(event: &Value) -> i64 {
    let time =
        event["time"].as_str().and_then(|t| t.split_once('T')).expect("a time").1.trim_end_matches('Z');
    let part = |nth: usize| time.split(':').nth(nth).and_then(|p| p.parse::<f64>().ok()).expect("a number");
    (((part(0) * 60.0 + part(1)) * 60.0 + part(2)) * 1_000.0) as i64
}

/// The maximum number of pods of a run that existed at the same time.
fn most_at_once(run: &Run) -> usize {
    let (mut now, mut most) = (0_usize, 0);
    for event in run.events() {
        match event["event"].as_str().unwrap_or_default() {
            "pod-created" => now += 1,
            "finished" => now -= 1,
            _ => {}
        }
        most = most.max(now);
    }
    most
}

fn a_job_runs_until_its_completions(bench: &Bench, name: &str) {
    let job = bench.job("j", json!({"completions": 4, "parallelism": 2}), "echo done");
    let mut run = Run::start(bench, name, &job, &[]);
    assert_eq!(run.end(), 0, "{}", run.account());
    assert_eq!(run.output().matches("done").count(), 4, "{}", run.account());
    let status = run.job()["status"].clone();
    assert_eq!((&status["succeeded"], &status["failed"]), (&json!(4), &Value::Null));
    assert!(status["completionTime"].is_string() && status["startTime"].is_string(), "{status}");
    let expected = [pair("SuccessCriteriaMet", "CompletionsReached"), pair("Complete", "CompletionsReached")];
    assert_eq!(run.conditions(), expected);
    let pods = run.objects("Pod");
    assert_eq!(pods.len(), 4);
    let uid = run.job()["metadata"]["uid"].clone();
    for pod in &pods {
        let metadata = &pod["metadata"];
        assert!(metadata["name"].as_str().is_some_and(|n| n.starts_with("j-") && n.len() == 7), "{metadata}");
        assert_eq!(metadata["ownerReferences"][0]["uid"], uid);
        for label in ["job-name", "batch.kubernetes.io/job-name"] {
            assert_eq!(metadata["labels"][label], "j");
        }
        assert_eq!(metadata["labels"]["batch.kubernetes.io/controller-uid"], uid);
    }
    assert_eq!(most_at_once(&run), 2);
    let order = ["job-started", "pod-created", "job-complete"];
    let places = order.map(|event| run.must(json!({"event": event, "workload": "Job/j"})));
    assert!(places.is_sorted(), "{places:?}");
    assert_eq!(places[2], run.events().len() - 1, "the end is the last that happens");
}

fn an_indexed_job_tells_each_pod_its_index(bench: &Bench, name: &str) {
    let spec = json!({"completions": 3, "parallelism": 3, "completionMode": "Indexed"});
    let job = bench.job("ix", spec, "echo I am $JOB_COMPLETION_INDEX on $(hostname)");
    let mut run = Run::start(bench, name, &job, &[]);
    assert_eq!(run.end(), 0, "{}", run.account());
    for index in 0..3 {
        assert!(run.output().contains(&format!("I am {index} on ix-{index}\n")), "{}", run.account());
    }
    assert_eq!(run.job()["status"]["completedIndexes"], "0-2");
    let key = "batch.kubernetes.io/job-completion-index";
    for (index, pod) in run.objects("Pod").iter().enumerate() {
        let metadata = &pod["metadata"];
        assert_eq!(metadata["labels"][key], json!(index.to_string()));
        assert_eq!(metadata["annotations"][key], json!(index.to_string()));
        let start = format!("ix-{index}-");
        assert!(metadata["name"].as_str().is_some_and(|n| n.starts_with(&start)), "{metadata}");
    }
}

fn a_failing_job_is_tried_again_until_its_limit(bench: &Bench, name: &str) {
    let mut job = bench.job("f", json!({"backoffLimit": 2}), "exit 7");
    job["metadata"]["annotations"] = json!({"outrigger.dev/pod-backoff": "300ms..10s"});
    let mut run = Run::start(bench, name, &job, &[]);
    assert_eq!(run.end(), 7, "{}", run.account());
    let status = run.job()["status"].clone();
    assert_eq!((&status["failed"], &status["completionTime"]), (&json!(3), &Value::Null), "{status}");
    let expected = [pair("FailureTarget", "BackoffLimitExceeded"), pair("Failed", "BackoffLimitExceeded")];
    assert_eq!(run.conditions(), expected);
    let names: Vec<Value> = run.objects("Pod").iter().map(|p| p["metadata"]["name"].clone()).collect();
    assert!(names.len() == 3 && names[0] != names[1] && names[1] != names[2], "{names:?}");
    let (made, ended) = (run.events_named("pod-created"), run.events_named("finished"));
    for (nth, wait_ms) in [300, 600].into_iter().enumerate() {
        let waited = (at_ms(&made[nth + 1]) - at_ms(&ended[nth])).rem_euclid(86_400_000);
        // The two clocks may round to different milliseconds.
        assert!(waited + 1 >= wait_ms, "{waited} ms before pod {}\n{}", nth + 1, run.account());
    }
    run.must(json!({"event": "job-failed", "reason": "BackoffLimitExceeded"}));
}

fn an_exit_code_fails_the_job_at_once(bench: &Bench, name: &str) {
    let spec = json!({
        "completions": 2, "parallelism": 2, "completionMode": "Indexed", "backoffLimit": 6,
        "podFailurePolicy": {"rules": [{"action": "FailJob",
            "onExitCodes": {"containerName": "main", "operator": "In", "values": [42]}}]}
    });
    let script = "[ $JOB_COMPLETION_INDEX = 0 ] && exit 42; trap 'exit 3' TERM; sleep 600 & wait";
    let job = bench.job("p", spec, script);
    let mut run = Run::start(bench, name, &job, &[]);
    assert_eq!(run.end(), 42, "{}", run.account());
    assert_eq!(run.conditions()[1], pair("Failed", "PodFailurePolicy"));
    assert_eq!(run.objects("Pod").len(), 2, "nothing is tried again");
    assert_eq!(run.events_named("pod-deleted").len(), 1, "the other pod is ended");
    let failed = run.must(json!({"event": "job-failed"}));
    let message = run.events()[failed]["message"].as_str().unwrap_or_default().to_owned();
    assert!(message.contains("failed with exit code 42 matching FailJob rule at index 0"), "{message}");
}

fn a_deadline_ends_the_job(bench: &Bench, name: &str) {
    let job = bench.job("d", json!({"activeDeadlineSeconds": 1}), "trap 'exit 0' TERM; sleep 600 & wait");
    let mut run = Run::start(bench, name, &job, &[]);
    assert_eq!(run.end(), 1, "{}", run.account());
    assert_eq!(run.conditions()[1], pair("Failed", "DeadlineExceeded"));
    assert_eq!(run.job()["status"]["failed"], 1);
    let (target, failed) =
        (run.must(json!({"event": "failure-target"})), run.must(json!({"event": "job-failed"})));
    let finished = run.must(json!({"event": "finished"}));
    assert!(target < finished && finished < failed, "Failed is said when all pods have ended");
}

fn a_success_policy_ends_the_job_early(bench: &Bench, name: &str) {
    let spec = json!({
        "completions": 3, "parallelism": 3, "completionMode": "Indexed",
        "successPolicy": {"rules": [{"succeededIndexes": "0,1", "succeededCount": 1}]}
    });
    let script = "[ $JOB_COMPLETION_INDEX = 1 ] && exit 0; trap 'exit 0' TERM; sleep 600 & wait";
    let mut run = Run::start(bench, name, &bench.job("s", spec, script), &[]);
    assert_eq!(run.end(), 0, "{}", run.account());
    let expected = [pair("SuccessCriteriaMet", "SuccessPolicy"), pair("Complete", "SuccessPolicy")];
    assert_eq!(run.conditions(), expected);
    let status = run.job()["status"].clone();
    assert_eq!((&status["completedIndexes"], &status["succeeded"]), (&json!("1"), &json!(1)), "{status}");
}

fn a_failed_index_leaves_the_others_alone(bench: &Bench, name: &str) {
    let spec = json!({
        "completions": 3, "parallelism": 3, "completionMode": "Indexed", "backoffLimitPerIndex": 1
    });
    let mut job = bench.job("pi", spec, "[ $JOB_COMPLETION_INDEX = 1 ] && exit 9; exit 0");
    job["metadata"]["annotations"] = json!({"outrigger.dev/pod-backoff": "100ms..10s"});
    let mut run = Run::start(bench, name, &job, &[]);
    assert_eq!(run.end(), 9, "{}", run.account());
    assert_eq!(run.conditions()[1], pair("Failed", "FailedIndexes"));
    let status = run.job()["status"].clone();
    assert_eq!((&status["completedIndexes"], &status["failedIndexes"]), (&json!("0,2"), &json!("1")));
    assert_eq!(status["failed"], 2, "{status}");
}

fn a_suspended_job_is_not_run(bench: &Bench, name: &str) {
    let job = bench.job("z", json!({"suspend": true, "ttlSecondsAfterFinished": 10}), "echo never");
    let mut run = Run::start(bench, name, &job, &[]);
    assert_eq!(run.end(), 0, "{}", run.account());
    assert_eq!(run.conditions(), [pair("Suspended", "JobSuspended")]);
    assert!(run.objects("Pod").is_empty() && run.output().is_empty(), "{}", run.account());
    for note in ["the Job is suspended: no pods are run", "`ttlSecondsAfterFinished` is ignored"] {
        assert!(run.said().contains(note), "{}", run.account());
    }
}

fn a_sidecar_does_not_hold_a_job(bench: &Bench, name: &str) {
    let mut job = bench.job("sc", json!({"completions": 2, "parallelism": 1}), "echo main");
    let mut sidecar = bench.container("log", "trap 'echo bye; exit 0' TERM; echo up; sleep 600 & wait");
    sidecar["restartPolicy"] = json!("Always");
    job["spec"]["template"]["spec"]["initContainers"] = json!([sidecar]);
    let mut run = Run::start(bench, name, &job, &[]);
    assert_eq!(run.end(), 0, "{}", run.account());
    for text in ["up", "main", "bye"] {
        assert_eq!(run.output().matches(&format!("| {text}\n")).count(), 2, "{text}\n{}", run.account());
    }
    assert_eq!(run.conditions()[1], pair("Complete", "CompletionsReached"));
}

fn restarts_count_towards_the_limit(bench: &Bench, name: &str) {
    let mut job = bench.job("r", json!({"backoffLimit": 1}), "exit 5");
    job["spec"]["template"]["spec"]["restartPolicy"] = json!("OnFailure");
    let mut run = Run::start(bench, name, &job, &[]);
    assert_eq!(run.end(), 5, "{}", run.account());
    assert_eq!(run.conditions()[1], pair("Failed", "BackoffLimitExceeded"));
    assert_eq!(run.objects("Pod").len(), 1);
}

fn a_cron_job_is_run_once_now(bench: &Bench, name: &str) {
    let job = bench.job("c", json!({"completions": 1}), "echo now");
    let cron = json!({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "c"},
        "spec": {"schedule": "0 0 1 1 *", "suspend": true, "jobTemplate": {"spec": job["spec"]}}});
    let mut run = Run::start(bench, name, &cron, &[]);
    assert_eq!(run.end(), 0, "{}", run.account());
    assert_eq!(run.output(), "main | now\n");
    let metadata = run.job()["metadata"].clone();
    assert_eq!(
        (&metadata["name"], &metadata["ownerReferences"][0]["kind"]),
        (&json!("c-manual"), &json!("CronJob"))
    );
}

fn an_interrupted_job_makes_no_more_pods(bench: &Bench, name: &str) {
    let script = "trap 'echo bye; exit 0' TERM; echo up; sleep 600 & wait";
    let job = bench.job("i", json!({"completions": 5, "parallelism": 2}), script);
    let mut run = Run::start(bench, name, &job, &[]);
    run.wait_for("both pods", |run| run.output().matches("up").count() == 2);
    run.signal(Signal::INT);
    assert_eq!(run.end(), 130, "{}", run.account());
    assert_eq!(run.output().matches("bye").count(), 2, "{}", run.account());
    assert_eq!(run.objects("Pod").len(), 2);
    run.must(json!({"event": "job-stopped"}));
}

fn a_work_queue_ends_with_its_workers(bench: &Bench, name: &str) {
    let job = bench.job("w", json!({"parallelism": 3}), "echo worked");
    let mut run = Run::start(bench, name, &job, &[]);
    assert_eq!(run.end(), 0, "{}", run.account());
    assert_eq!(run.job()["status"]["succeeded"], 3, "{}", run.account());
}

fn a_job_and_a_pod_run_side_by_side(bench: &Bench, name: &str) {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "alone"},
        "spec": {"restartPolicy": "Never", "containers": [bench.container("main", "echo pod; exit 4")]}});
    let job = bench.job("together", json!({}), "echo job");
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [pod, job]});
    let mut run = Run::start(bench, name, &list, &[]);
    assert_eq!(run.end(), 4, "{}", run.account());
    assert_eq!(run.conditions()[1], pair("Complete", "CompletionsReached"));
    assert_eq!(run.objects("Pod").len(), 2);
}
