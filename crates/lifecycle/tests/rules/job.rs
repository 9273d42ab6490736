//! Jobs, compared with the Kubernetes documentation (concepts/workloads/controllers/job, and the tasks on
//! indexed Jobs, pod failure policies and success policies). Each test quotes the part it checks.

use k8s_openapi::api::batch::v1::{Job, JobStatus};
use k8s_openapi::api::core::v1::PodStatus;
use outrigger_lifecycle::{
    ContainerExit, JobDecision, JobEnd, JobObservation, JobOutcome, JobPlan, JobPod, Phase, PodOrder, Time,
    decide_job, job_status, validate_job_fields,
};
use serde_json::{Value, json};

const START: Time = Time(1_000_000_000);

/// A Job with this spec. The template is added.
fn job(spec: Value) -> Job {
    let mut spec = spec;
    let policy = spec.as_object_mut().and_then(|s| s.remove("restartPolicy")).unwrap_or(json!("Never"));
    let containers = json!([{"name": "main", "image": "i"}, {"name": "log", "image": "i"}]);
    spec["template"] = json!({"spec": {"restartPolicy": policy, "containers": containers}});
    let object = json!({"metadata": {"name": "j", "namespace": "default"}, "spec": spec});
    serde_json::from_value(object).expect("a Job")
}

/// A Job, and the pods that its decisions create and delete.
struct World {
    plan: JobPlan,
    obs: JobObservation,
    now: Time,
    last: JobDecision,
    status: Option<JobStatus>,
}

impl World {
    fn new(spec: Value) -> Self {
        let job = job(spec);
        assert_eq!(validate_job_fields(&job), [], "{job:?}");
        let plan = JobPlan::from(&job);
        let mut world = World {
            plan,
            obs: JobObservation::new(START),
            now: START,
            last: JobDecision::default(),
            status: None,
        };
        world.step();
        world
    }

    /// Makes a decision and carries it out. Returns the created pods.
    fn step(&mut self) -> Vec<PodOrder> {
        self.last = decide_job(&self.plan, &self.obs, self.now);
        for i in self.last.delete.clone() {
            self.obs.pods[i].deleted_at = Some(self.now);
        }
        for order in &self.last.create {
            let name = format!("j-{}", self.obs.pods.len());
            self.obs.pods.push(JobPod::new(name, order.index, self.now));
        }
        self.obs.target = self.last.target.clone();
        let status = job_status(&self.plan, &self.obs, &self.last, self.status.as_ref(), self.now);
        self.status = Some(status);
        self.last.create.clone()
    }

    fn end(&mut self, pod: usize, phase: Phase, code: i32) {
        let pod = &mut self.obs.pods[pod];
        pod.phase = phase;
        pod.finished_at = Some(self.now);
        pod.exits = vec![ContainerExit { container: "main".into(), code, is_helper: false }];
    }

    fn succeed(&mut self, pod: usize) -> Vec<PodOrder> {
        self.end(pod, Phase::Succeeded, 0);
        self.step()
    }

    fn fail(&mut self, pod: usize, code: i32) -> Vec<PodOrder> {
        self.end(pod, Phase::Failed, code);
        self.step()
    }

    fn wait(&mut self, ms: u64) -> Vec<PodOrder> {
        self.now = self.now + ms;
        self.step()
    }

    fn active(&self) -> usize {
        self.obs.pods.iter().filter(|p| p.is_active()).count()
    }

    fn finished(&self) -> Option<(JobOutcome, &str)> {
        self.last.finished.as_ref().map(|end| (end.outcome, end.reason.as_str()))
    }

    fn conditions(&self) -> Vec<(String, String)> {
        let conditions = self.status.as_ref().and_then(|s| s.conditions.clone()).unwrap_or_default();
        conditions.into_iter().map(|c| (c.type_, c.reason.unwrap_or_default())).collect()
    }

    fn counts(&self) -> (i32, i32, i32) {
        let status = self.status.as_ref().expect("a status");
        let number = |n: Option<i32>| n.unwrap_or(0);
        (number(status.active), number(status.succeeded), number(status.failed))
    }
}

fn indexes(orders: &[PodOrder]) -> Vec<u32> {
    orders.iter().filter_map(|o| o.index).collect()
}

const COMPLETE: Option<(JobOutcome, &str)> = Some((JobOutcome::Complete, "CompletionsReached"));

// "Non-parallel Jobs: only one Pod is started, unless the Pod fails; complete as soon as its Pod terminates
// successfully."
#[test]
fn a_plain_job_runs_one_pod() {
    let mut world = World::new(json!({}));
    assert_eq!(world.obs.pods.len(), 1);
    assert_eq!(world.counts(), (1, 0, 0));
    assert_eq!(world.step(), []);
    assert_eq!(world.succeed(0), []);
    assert_eq!(world.finished(), COMPLETE);
    assert_eq!(world.counts(), (0, 1, 0));
    let conditions = world.conditions();
    let kinds: Vec<&str> = conditions.iter().map(|(kind, _)| kind.as_str()).collect();
    assert_eq!(kinds, ["SuccessCriteriaMet", "Complete"]);
    assert!(world.status.as_ref().is_some_and(|s| s.completion_time.is_some()));
}

// "Fixed completion count: complete when there are .spec.completions successful Pods"; "the actual number of pods
// running in parallel will not exceed the number of remaining completions".
#[test]
fn a_fixed_count_runs_as_many_as_are_missing() {
    let mut world = World::new(json!({"completions": 5, "parallelism": 2}));
    assert_eq!(world.active(), 2);
    for pod in 0..5 {
        assert_eq!(world.finished(), None);
        world.succeed(pod);
        assert_eq!(world.active(), (5 - pod - 1).min(2));
    }
    assert_eq!(world.obs.pods.len(), 5);
    assert_eq!(world.finished(), COMPLETE);
}

// "Work queue: when any Pod from the Job terminates with success, no new Pods are created; once at least one Pod has
// terminated with success and all Pods are terminated, the Job is completed with success."
#[test]
fn a_work_queue_ends_with_its_last_worker() {
    let mut world = World::new(json!({"parallelism": 3}));
    assert_eq!(world.active(), 3);
    world.succeed(1);
    assert_eq!((world.active(), world.finished()), (2, None));
    world.fail(0, 1);
    world.wait(600_000);
    assert_eq!((world.active(), world.finished()), (1, None), "no new pods after a success");
    world.succeed(2);
    assert_eq!(world.finished(), COMPLETE);
}

// "Failed Pods are recreated with an exponential back-off delay (10s, 20s, 40s ...) capped at six minutes" — ten in
// the controller (MaxJobPodFailureBackOff); "back-off limit is set by default to 6".
#[test]
fn failed_pods_come_back_more_and_more_slowly_until_the_limit() {
    let mut world = World::new(json!({}));
    for pod in 0..7 {
        world.fail(pod, 1);
        let Some(at) = world.last.backoff_until else { break };
        assert_eq!(world.last.wake, Some(at));
        let wait_ms = at.since(world.now);
        assert_eq!(world.wait(wait_ms - 1), [], "not a moment too early");
        assert_eq!(world.wait(1).len(), 1);
    }
    let pauses = world.obs.pods.windows(2).map(|w| w[1].created_at.since(w[0].finished_at.unwrap()) / 1_000);
    assert_eq!(pauses.collect::<Vec<u64>>(), [10, 20, 40, 80, 160, 320]);
    assert_eq!(world.finished(), Some((JobOutcome::Failed, "BackoffLimitExceeded")));
    assert_eq!(world.counts(), (0, 0, 7));
    let conditions = world.conditions();
    assert_eq!(conditions[0], ("FailureTarget".to_owned(), "BackoffLimitExceeded".to_owned()));
    assert_eq!(conditions[1], ("Failed".to_owned(), "BackoffLimitExceeded".to_owned()));
    assert!(world.status.as_ref().is_some_and(|s| s.completion_time.is_none()), "only on success");
}

#[test]
fn the_longest_wait_is_ten_minutes() {
    let mut world = World::new(json!({"backoffLimit": 20}));
    for pod in 0..12 {
        world.fail(pod, 1);
        world.wait(600_000);
    }
    assert_eq!(world.obs.pods.len(), 13, "ten minutes are always enough");
    world.fail(12, 1);
    assert_eq!(world.last.backoff_until, Some(world.now + 600_000));
}

// "The back-off count is reset when a Job's Pod ... succeeds" (backoff_utils: failuresAfterLastSuccess).
#[test]
fn a_success_starts_the_waits_anew() {
    let mut world = World::new(json!({"completions": 4, "parallelism": 1}));
    world.fail(0, 1);
    world.wait(10_000);
    world.fail(1, 1);
    assert_eq!(world.last.backoff_until, Some(world.now + 20_000));
    world.wait(20_000);
    world.wait(1);
    assert_eq!(world.succeed(2).len(), 1, "no wait after a success");
    world.wait(1);
    world.fail(3, 1);
    assert_eq!(world.last.backoff_until, Some(world.now + 10_000));
}

// "backoffLimit: 0": the first failure is the last.
#[test]
fn no_retries_means_none() {
    let mut world = World::new(json!({"backoffLimit": 0, "completions": 2, "parallelism": 2}));
    assert_eq!(world.fail(0, 3), []);
    assert_eq!(world.last.delete, [1], "pods that still run are ended");
    assert_eq!(world.finished(), None, "Failed is said when all pods have ended");
    assert_eq!(world.conditions(), [("FailureTarget".to_owned(), "BackoffLimitExceeded".to_owned())]);
    world.fail(1, 143);
    assert_eq!(world.finished(), Some((JobOutcome::Failed, "BackoffLimitExceeded")));
}

// "For restartPolicy OnFailure: the number of retries in all the containers of Pods with .status.phase equal to
// Pending or Running"; pastBackoffLimitOnFailure: reached, not exceeded, and at least one.
#[test]
fn restarts_of_containers_count_towards_the_limit() {
    for (limit, restarts, over) in [(0, 0, false), (0, 1, true), (2, 1, false), (2, 2, true)] {
        let mut world = World::new(json!({"backoffLimit": limit, "restartPolicy": "OnFailure"}));
        world.obs.pods[0].restarts = restarts;
        world.step();
        assert_eq!(world.last.target.is_some(), over, "limit {limit}, {restarts} restarts");
        world.obs.pods[0].restarted = vec!["proxy".to_owned()];
        world.obs.target = None;
        world.step();
        let told = world.last.target.as_ref().map_or("", |end| &end.message);
        assert_eq!(told.contains(" of `proxy`"), over, "the container is named: {told}");
        let mut world = World::new(json!({"backoffLimit": limit, "restartPolicy": "Never"}));
        world.obs.pods[0].restarts = restarts;
        world.step();
        assert_eq!(world.last.target, None, "they do not with Never");
    }
}

// "The activeDeadlineSeconds applies to the duration of the job, no matter how many Pods are created. Once a Job
// reaches it, all of its running Pods are terminated and the Job status becomes type: Failed with reason:
// DeadlineExceeded"; "takes precedence over its .spec.backoffLimit".
#[test]
fn a_deadline_ends_everything() {
    let mut world = World::new(json!({"activeDeadlineSeconds": 15, "parallelism": 2, "completions": 3}));
    assert_eq!(world.last.wake, Some(START + 15_000));
    world.fail(0, 1);
    assert_eq!(world.last.wake, Some(START + 10_000), "the back-off ends before the deadline");
    world.wait(14_999);
    assert_eq!(world.last.target, None);
    world.wait(1);
    assert_eq!(world.last.delete, [1, 2]);
    assert_eq!(world.finished(), None);
    world.fail(1, 143);
    world.fail(2, 143);
    assert_eq!(world.finished(), Some((JobOutcome::Failed, "DeadlineExceeded")));
    assert_eq!(
        world.last.target.as_ref().map(|e| e.message.as_str()),
        Some("Job was active longer than specified deadline")
    );
}

// "Indexed: the Job is considered complete when there is one successfully completed Pod for each index";
// completedIndexes "1,3-5,7".
#[test]
fn each_index_needs_a_success_of_its_own() {
    let mut world = World::new(json!({"completionMode": "Indexed", "completions": 4, "parallelism": 3}));
    let made: Vec<Option<u32>> = world.obs.pods.iter().map(|p| p.index).collect();
    assert_eq!(made, [Some(0), Some(1), Some(2)]);
    assert_eq!(indexes(&world.succeed(1)), [3]);
    world.wait(1);
    assert_eq!(world.fail(0, 1), []);
    assert_eq!(world.wait(10_000), [PodOrder { index: Some(0), attempt: 1 }]);
    assert_eq!(world.succeed(2), []);
    assert_eq!(world.status.as_ref().and_then(|s| s.completed_indexes.as_deref()), Some("1,2"));
    world.succeed(3);
    world.succeed(4);
    assert_eq!(world.finished(), COMPLETE);
    assert_eq!(world.status.as_ref().and_then(|s| s.completed_indexes.as_deref()), Some("0-3"));
    assert_eq!(world.counts(), (0, 4, 1));
}

// "Backoff limit per index": an index whose failures exceed it is failed and not tried again; the others go on; "the
// Job is marked Failed when all indexes are done and some failed" (FailedIndexes).
#[test]
fn an_index_fails_alone() {
    let mut world = World::new(json!({
        "completionMode": "Indexed", "completions": 3, "parallelism": 3, "backoffLimitPerIndex": 1
    }));
    world.fail(0, 1);
    assert_eq!(world.last.backoff_until, Some(world.now + 10_000));
    world.fail(1, 1);
    assert_eq!(indexes(&world.wait(10_000)), [0, 1]);
    world.fail(3, 1);
    assert_eq!(world.status.as_ref().and_then(|s| s.failed_indexes.as_deref()), Some("0"));
    assert_eq!(world.wait(600_000), [], "index 0 is not tried again");
    world.succeed(4);
    world.succeed(2);
    assert_eq!(world.finished(), Some((JobOutcome::Failed, "FailedIndexes")));
    assert_eq!(world.status.as_ref().and_then(|s| s.completed_indexes.as_deref()), Some("1,2"));
}

// "When the number of failed indexes exceeds maxFailedIndexes, the Job controller triggers termination of all
// remaining running Pods".
#[test]
fn too_many_failed_indexes_end_the_job() {
    let mut world = World::new(json!({
        "completionMode": "Indexed", "completions": 4, "parallelism": 4, "backoffLimitPerIndex": 0,
        "maxFailedIndexes": 1
    }));
    world.fail(0, 1);
    assert_eq!(world.last.target, None);
    world.fail(1, 1);
    assert_eq!(world.last.target.as_ref().map(|e| e.reason.as_str()), Some("MaxFailedIndexesExceeded"));
    assert_eq!(world.last.delete, [2, 3]);
}

fn policy(rules: Value) -> Value {
    json!({"backoffLimit": 6, "parallelism": 2, "completions": 2, "podFailurePolicy": {"rules": rules}})
}

// The task "Handling retriable and non-retriable pod failures": a FailJob rule for the exit code of a named
// container ends the Job with exactly this message, and does not use up the back-off limit.
#[test]
fn an_exit_code_can_fail_the_job() {
    let rules = json!([
        {"action": "FailJob", "onExitCodes": {"containerName": "main", "operator": "In", "values": [42]}}
    ]);
    let mut world = World::new(policy(rules.clone()));
    world.fail(0, 41);
    assert_eq!(world.last.target, None);
    world.fail(1, 42);
    let end = world.last.finished.as_ref().expect("an end");
    assert_eq!(end.reason, "PodFailurePolicy");
    assert_eq!(
        end.message,
        "Container main for pod default/j-1 failed with exit code 42 matching FailJob rule at index 0"
    );
    // Another container's exit does not match a rule that names one.
    let mut world = World::new(policy(rules));
    world.obs.pods[0].exits = Vec::new();
    world.end(0, Phase::Failed, 42);
    world.obs.pods[0].exits[0].container = "log".into();
    world.step();
    assert_eq!(world.last.target, None);
}

// "Rules are evaluated in order; once a rule matches, the rest are ignored"; Ignore: "the counter towards the
// .spec.backoffLimit is not incremented and a replacement Pod is created"; Count: "handled in the default way".
#[test]
fn the_first_rule_that_matches_decides() {
    let rules = json!([
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]},
        {"action": "Count", "onExitCodes": {"operator": "In", "values": [7]}},
        {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [1]}}
    ]);
    let fail = |code: i32, conditions: &[(&str, &str)]| {
        let mut world = World::new(json!({"podFailurePolicy": {"rules": rules}}));
        let all = conditions.iter().map(|(k, s)| ((*k).to_owned(), (*s).to_owned()));
        world.obs.pods[0].conditions = all.collect();
        world.fail(0, code);
        (world.counts().2, world.last.target.is_some())
    };
    assert_eq!(fail(9, &[("DisruptionTarget", "True")]), (0, false), "ignored");
    assert_eq!(fail(9, &[("DisruptionTarget", "False")]), (1, true));
    assert_eq!(fail(7, &[]), (1, false), "counted");
    assert_eq!(fail(1, &[]), (1, false), "no rule matches");
    assert_eq!(fail(9, &[]), (1, true));
    // A pod can fail with every container at 0 (a deadline): "exit code 0 is never matched".
    assert_eq!(fail(0, &[]), (1, false));
}

// FailIndex: "the index is marked as failed without using up its back-off limit".
#[test]
fn an_exit_code_can_fail_its_index() {
    let mut world = World::new(json!({
        "completionMode": "Indexed", "completions": 2, "parallelism": 2, "backoffLimitPerIndex": 5,
        "podFailurePolicy": {"rules": [
            {"action": "FailIndex", "onExitCodes": {"operator": "In", "values": [42]}}]}
    }));
    world.fail(0, 42);
    assert_eq!(world.wait(600_000), []);
    assert_eq!(world.status.as_ref().and_then(|s| s.failed_indexes.as_deref()), Some("0"));
    world.succeed(1);
    assert_eq!(world.finished(), Some((JobOutcome::Failed, "FailedIndexes")));
}

// The exit code of a sidecar results from being stopped. Only a rule that names the sidecar considers it.
#[test]
fn rules_for_any_container_look_past_helpers() {
    let helper = |code| ContainerExit { container: "log".into(), code, is_helper: true };
    for (name, over) in [(None, false), (Some("log"), true)] {
        let mut codes = json!({"operator": "NotIn", "values": [1]});
        if let Some(name) = name {
            codes["containerName"] = json!(name);
        }
        let mut world = World::new(policy(json!([{"action": "FailJob", "onExitCodes": codes}])));
        world.end(0, Phase::Failed, 1);
        world.obs.pods[0].exits.push(helper(143));
        world.step();
        assert_eq!(world.last.target.is_some(), over, "{name:?}");
    }
}

// Success policy: "succeededIndexes only: once all indexes succeed", "succeededCount only: once this many succeed",
// "both: once this many of the indexes succeed"; "the controller terminates the lingering Pods".
#[test]
fn a_success_policy_ends_the_job_early() {
    let table = [
        (json!({"succeededIndexes": "0,2-3"}), vec![0, 1, 3], vec![2]),
        (json!({"succeededCount": 2}), vec![4], vec![1]),
        (json!({"succeededIndexes": "0,2-3", "succeededCount": 1}), vec![1, 4], vec![3]),
    ];
    for (rule, before, last) in table {
        let mut world = World::new(json!({
            "completionMode": "Indexed", "completions": 5, "parallelism": 5, "successPolicy": {"rules": [rule]}
        }));
        for pod in before {
            world.succeed(pod);
            assert_eq!(world.last.target, None, "{rule}");
        }
        world.succeed(last[0]);
        let end = world.last.target.clone().expect("an end");
        assert_eq!(
            (end.reason.as_str(), end.message.as_str()),
            ("SuccessPolicy", "Matched rules at index 0")
        );
        assert_eq!(world.last.finished, None, "lingering pods are ended first");
        assert_eq!(world.conditions(), [("SuccessCriteriaMet".to_owned(), "SuccessPolicy".to_owned())]);
        for pod in world.last.delete.clone() {
            world.fail(pod, 143);
        }
        assert_eq!(world.finished(), Some((JobOutcome::Complete, "SuccessPolicy")), "{rule}");
    }
}

// "Suspending a Job": "the Job controller creates no Pods"; condition Suspended, no startTime.
#[test]
fn a_suspended_job_makes_no_pods() {
    let world = World::new(json!({"suspend": true, "activeDeadlineSeconds": 1}));
    assert_eq!((world.obs.pods.len(), world.finished()), (0, Some((JobOutcome::Suspended, "JobSuspended"))));
    assert_eq!(world.conditions(), [("Suspended".to_owned(), "JobSuspended".to_owned())]);
    assert!(world.status.as_ref().is_some_and(|s| s.start_time.is_none()));
}

// podReplacementPolicy: "TerminatingOrFailed recreates pods as soon as they are terminating; Failed waits
// until they are fully terminated". A terminating pod counts as failed at once with the first policy, and
// when it has failed with the second.
#[test]
fn a_deleted_pod_is_replaced_as_the_policy_says() {
    for (policy, at_once) in [(None, true), (Some("TerminatingOrFailed"), true), (Some("Failed"), false)] {
        let mut spec = json!({"backoffLimit": 3});
        if let Some(policy) = policy {
            spec["podReplacementPolicy"] = json!(policy);
        }
        let mut world = World::new(spec);
        world.obs.pods[0].deleted_at = Some(world.now);
        world.step();
        assert_eq!(world.counts().2, i32::from(at_once), "{policy:?}");
        assert_eq!(world.wait(10_000).len(), usize::from(at_once), "{policy:?}");
        let terminating = world.status.as_ref().and_then(|s| s.terminating);
        assert_eq!(terminating, Some(1));
        world.fail(0, 143);
        world.wait(10_000);
        assert_eq!((world.obs.pods.len(), world.active()), (2, 1), "{policy:?}");
        assert_eq!(world.counts().2, 1, "it counts once");
    }
}

#[test]
fn a_job_that_is_to_go_makes_nothing_more() {
    let mut world = World::new(json!({"completions": 5}));
    world.obs.deleted = true;
    world.succeed(0);
    assert_eq!((world.active(), world.last.wake), (0, None));
}

#[test]
fn a_pod_status_says_what_a_job_asks() {
    let status: PodStatus = serde_json::from_value(json!({
        "phase": "Failed",
        "conditions": [{"type": "Ready", "status": "False"}],
        "initContainerStatuses": [{"name": "proxy", "image": "i", "imageID": "", "ready": false, "restartCount": 2,
            "state": {"terminated": {"exitCode": 143}}}],
        "containerStatuses": [{"name": "main", "image": "i", "imageID": "", "ready": false, "restartCount": 1,
            "state": {"terminated": {"exitCode": 7}}}],
    }))
    .expect("a status");
    let mut pod = JobPod::new("p", None, START);
    let with = |restarts: &str| {
        crate::common::planned(&crate::common::annotated(
            json!({"outrigger.dev/sidecar-restarts": restarts}),
            json!({"initContainers": [{"name": "proxy", "restartPolicy": "Always"}], "containers": [{"name": "main"}]}),
        ))
    };
    pod.observe(&status, &with("Ignore"));
    assert_eq!(pod.restarts, 1, "only those of the main");
    pod.observe(&status, &with("Count"));
    assert_eq!((pod.phase, pod.restarts, pod.ready), (Phase::Failed, 3, false));
    assert_eq!(pod.restarted, ["main", "proxy"]);
    let exits: Vec<(&str, i32, bool)> =
        pod.exits.iter().map(|e| (e.container.as_str(), e.code, e.is_helper)).collect();
    assert_eq!(exits, [("main", 7, false), ("proxy", 143, true)]);
}

#[test]
fn waits_between_pods_can_be_shorter() {
    let mut job = job(json!({}));
    let annotations = job.metadata.annotations.get_or_insert_default();
    annotations.insert("outrigger.dev/pod-backoff".into(), "200ms..1s".into());
    let plan = JobPlan::from(&job);
    assert_eq!((plan.backoff_ms, plan.backoff_ms_max), (200, 1_000));
    job.metadata
        .annotations
        .get_or_insert_default()
        .insert("outrigger.dev/pod-backoff".into(), "soon".into());
    assert_eq!(validate_job_fields(&job).len(), 1);
}

// What the API server refuses (pkg/apis/batch/validation).
#[test]
fn what_cannot_be_is_refused() {
    let rule = |rule: Value| json!({"podFailurePolicy": {"rules": [rule]}});
    let codes = |codes: Value| rule(json!({"action": "FailJob", "onExitCodes": codes}));
    let table = [
        (json!({"completions": -1}), "spec.completions"),
        (json!({"completionMode": "Sorted"}), "spec.completionMode"),
        (json!({"completionMode": "Indexed"}), "spec.completionMode"),
        (json!({"backoffLimitPerIndex": 1}), "spec.backoffLimitPerIndex"),
        (json!({"maxFailedIndexes": 1}), "spec.maxFailedIndexes"),
        (json!({"podReplacementPolicy": "Never"}), "spec.podReplacementPolicy"),
        (
            rule(json!({"action": "Fail", "onPodConditions": [{"type": "X"}]})),
            "spec.podFailurePolicy.rules[0].action",
        ),
        (
            rule(json!({"action": "FailIndex", "onPodConditions": [{"type": "X"}]})),
            "spec.podFailurePolicy.rules[0].action",
        ),
        (rule(json!({"action": "FailJob"})), "spec.podFailurePolicy.rules[0]"),
        (
            codes(json!({"operator": "Is", "values": [1]})),
            "spec.podFailurePolicy.rules[0].onExitCodes.operator",
        ),
        (codes(json!({"operator": "In", "values": []})), "spec.podFailurePolicy.rules[0].onExitCodes.values"),
        (
            codes(json!({"operator": "In", "values": [0]})),
            "spec.podFailurePolicy.rules[0].onExitCodes.values",
        ),
        (
            codes(json!({"operator": "In", "values": [1], "containerName": "mian"})),
            "spec.podFailurePolicy.rules[0].onExitCodes.containerName",
        ),
        (json!({"successPolicy": {"rules": [{"succeededCount": 1}]}}), "spec.successPolicy"),
        (
            json!({"completionMode": "Indexed", "completions": 2, "successPolicy": {"rules": [{"succeededIndexes": "0-2"}]}}),
            "spec.successPolicy.rules[0].succeededIndexes",
        ),
        (
            json!({"completionMode": "Indexed", "completions": 2, "successPolicy": {"rules": [{"succeededCount": 3}]}}),
            "spec.successPolicy.rules[0].succeededCount",
        ),
    ];
    for (spec, path) in table {
        let findings = validate_job_fields(&job(spec.clone()));
        let paths: Vec<String> = findings.iter().map(|f| f.path.to_string()).collect();
        assert_eq!(paths, [path], "{spec}");
    }
}

/// A small random generator. A failing test prints its seed, which repeats the same run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides
    }

    fn one_in(&mut self, sides: u64) -> bool {
        self.roll(sides) == 0
    }
}

fn random_spec(dice: &mut Dice) -> Value {
    let mut spec = json!({"parallelism": dice.roll(5) + 1, "backoffLimit": dice.roll(5)});
    let completions = dice.roll(7);
    if !dice.one_in(4) {
        spec["completions"] = json!(completions);
    }
    if dice.one_in(2) && completions > 0 {
        spec["completions"] = json!(completions);
        spec["completionMode"] = json!("Indexed");
        if dice.one_in(2) {
            spec["backoffLimitPerIndex"] = json!(dice.roll(3));
            spec.as_object_mut().expect("an object").remove("backoffLimit");
            if dice.one_in(2) {
                spec["maxFailedIndexes"] = json!(dice.roll(completions));
            }
        }
        if dice.one_in(3) {
            spec["successPolicy"] = json!({"rules": [{"succeededCount": dice.roll(completions) + 1}]});
        }
    }
    if dice.one_in(4) {
        spec["activeDeadlineSeconds"] = json!(dice.roll(300) + 1);
    }
    match dice.roll(4) {
        0 => spec["restartPolicy"] = json!("Never"),
        1 => {
            spec["podFailurePolicy"] = json!({"rules": [
                {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [3]}},
                {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [4]}}]});
        }
        2 => spec["podReplacementPolicy"] = json!("Failed"),
        _ => {}
    }
    spec
}

/// Runs a random Job with random outcomes, and checks the invariants at every step.
fn live(seed: u64) {
    let mut dice = Dice(seed);
    let spec = random_spec(&mut dice);
    let mut world = World::new(spec.clone());
    let mut decided: Option<JobEnd> = None;
    for step in 0.. {
        let told = |what: &str| panic!("seed {seed}, step {step}: {what}: {spec} {:?}", world.obs);
        if world.active() as u32 > world.plan.parallelism {
            told("more pods than may run at once");
        }
        let succeeded = world.counts().1;
        if world.plan.completions.is_some_and(|c| succeeded > c as i32) {
            told("more successes than were asked for");
        }
        if decided.is_some() && world.obs.target != decided {
            told("a decided end was changed");
        }
        decided.clone_from(&world.obs.target);
        if let Some(end) = &world.last.finished {
            if world.obs.pods.iter().any(|p| !p.phase.is_terminal()) {
                told("pods are left after the end");
            }
            let enough = world.plan.completions.is_none_or(|c| succeeded >= c as i32);
            if end.reason == "CompletionsReached" && !enough {
                told("complete without its completions");
            }
            return;
        }
        if step > 2_000 {
            told("it does not end");
        }
        let alive: Vec<usize> =
            (0..world.obs.pods.len()).filter(|i| !world.obs.pods[*i].phase.is_terminal()).collect();
        world.now = world.now + dice.roll(5_000);
        if alive.is_empty() {
            match world.last.wake {
                Some(wake) => world.now = world.now.max(wake),
                None => told("nothing runs, and nothing will"),
            }
        } else {
            let pod = alive[dice.roll(alive.len() as u64) as usize];
            match dice.roll(6) {
                0 if world.obs.pods[pod].is_active() => world.obs.pods[pod].deleted_at = Some(world.now),
                1..=3 => world.end(pod, Phase::Succeeded, 0),
                _ => world.end(pod, Phase::Failed, dice.roll(4) as i32 + 1),
            }
        }
        world.step();
    }
}

#[test]
fn any_sequence_of_outcomes_ends() {
    for seed in 0..10_000 {
        live(seed);
    }
}
