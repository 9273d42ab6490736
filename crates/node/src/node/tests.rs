//! Tests of a node on a timer-based fake runtime.

use outrigger_agent::options::PodOptions;
use outrigger_manifest::SourceFile;
use outrigger_runtime::NetworkMode;
use outrigger_testkit::fake::{FakeRuntime, Script};
use outrigger_view::output::{Format, Verbosity};

use super::*;

#[test]
fn ids_differ() {
    assert_eq!(new_id().len(), 8);
    assert_ne!(new_id(), new_id());
}

/// Manifests with a pod that runs its container with an argument.
fn record(argument: &str) -> RunRecord {
    let text = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec:\n  restartPolicy: Never\n  \
         containers: [{{name: main, image: i, args: [{argument}]}}]\n"
    );
    let source = SourceFile::new("p.yaml", text);
    let pods = PodOptions::new(NetworkMode::None);
    RunRecord::new(vec!["p.yaml".to_owned()], &[source], RunReadOptions::default(), pods)
}

impl Node<FakeRuntime> {
    fn start_run(&mut self, record: RunRecord) -> Result<Accepted, OrderError> {
        let work = self.read_new(&record)?;
        self.add(record, work)
    }
}

async fn node(runtime: &Arc<FakeRuntime>, dir: &tempfile::TempDir) -> Node<FakeRuntime> {
    let options = NodeOptions {
        state_dir: dir.path().canonicalize().unwrap(),
        manifests: None,
        machine: Machine { runtime: None, state_dir: None, on_failure: OnFailure::Retry },
        restricted: false,
        at_exit: AtExit::LeavePods,
        shutdown: ShutdownGrace::default(),
        keep: Keep::default(),
    };
    let output = Output::captured(Format::Plain, Verbosity::Quiet).unwrap().0;
    Node::start(runtime.clone(), options, output).await.unwrap()
}

fn exit_code(node: &Node<FakeRuntime>, run: &str) -> Option<u8> {
    node.runs[run].ended.as_ref().map(|ended| ended.result.exit_code)
}

#[tokio::test(start_paused = true)]
async fn what_is_applied_in_the_moment_a_run_ends_is_not_lost() {
    let dir = tempfile::tempdir().unwrap();
    let runtime = FakeRuntime::new([("main", Script::job(100, 0))]);
    let mut node = node(&runtime, &dir).await;
    let run = node.start_run(record("first")).unwrap().run;
    let starts = || runtime.calls().iter().filter(|call| call.starts_with("start main")).count();

    // All pods of the run have ended, but the node does not know this yet.
    let ended = node.tasks.join_next().await.unwrap();
    let applied = node.apply(record("second"), false).unwrap();
    assert_eq!(applied.run.as_ref(), Some(&run));
    assert_eq!(applied.objects[0].change, "replaced");
    node.run_ended(ended);
    assert!(node.runs[&run].ended.is_none());
    assert_eq!(starts(), 1);

    let ended = node.tasks.join_next().await.unwrap();
    node.run_ended(ended);
    assert_eq!(starts(), 2);
    assert_eq!(exit_code(&node, &run), Some(0));
    assert!(node.store.load_run::<RunEnd>(&run, END).unwrap().is_some());
    assert!(node.tasks.is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_has_finished_is_not_run_again_by_apply() {
    let dir = tempfile::tempdir().unwrap();
    let runtime = FakeRuntime::new([("main", Script::job(100, 0))]);
    let starts = || runtime.calls().iter().filter(|call| call.starts_with("start main")).count();
    let mut first = node(&runtime, &dir).await;
    let run = first.start_run(record("same")).unwrap().run;
    let ended = first.tasks.join_next().await.unwrap();
    first.run_ended(ended);
    // An order for a run that has ended is not kept for later.
    first.stop_runs(None, None);

    // The next node does not carry it out either.
    drop(first);
    let mut node = node(&runtime, &dir).await;
    for (argument, change, started) in
        [("same", "unchanged", 1), ("other", "replaced", 2), ("other", "unchanged", 2)]
    {
        let applied = node.apply(record(argument), false).unwrap();
        assert_eq!(applied.run.as_ref(), Some(&run), "{argument}");
        assert_eq!(applied.objects[0].change, change, "{argument}");
        assert!(node.runs[&run].ended.is_none(), "it is continued");
        let ended = node.tasks.join_next().await.unwrap();
        node.run_ended(ended);
        assert_eq!(starts(), started, "{argument}");
        assert_eq!(exit_code(&node, &run), Some(0));
    }
}

/// The names of all pods, in the order they were created.
fn names(node: &Node<FakeRuntime>) -> Vec<String> {
    node.registry.pods().into_iter().map(|pod| pod.name).collect()
}

#[tokio::test(start_paused = true)]
async fn each_run_of_a_job_has_names_of_its_own_which_the_next_node_knows() {
    let dir = tempfile::tempdir().unwrap();
    let runtime = FakeRuntime::new([("main", Script::job(100, 0))]);
    let job = || {
        let text = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: report}\nspec:\n  completions: 2\n  template:\n    spec:\n      \
                    restartPolicy: Never\n      containers: [{name: main, image: i}]\n";
        RunRecord { sources: vec![("job.yaml".to_owned(), text.to_owned())], ..record("") }
    };
    let mut first = node(&runtime, &dir).await;
    let mut runs = Vec::new();
    for _ in 0..2 {
        runs.push(first.start_run(job()).unwrap().run);
        // Only one Job of a name can exist, even between two of its pods.
        let refused = first.start_run(job()).unwrap_err().to_string();
        assert!(refused.starts_with("job/report is already there, in run "), "{refused}");
        let ended = first.tasks.join_next().await.unwrap();
        first.run_ended(ended);
    }
    let before = names(&first);
    let unique: BTreeSet<&String> = before.iter().collect();
    assert_eq!((before.len(), unique.len()), (4, 4), "{before:?}");
    assert!(before.iter().all(|name| name.starts_with("report-")), "{before:?}");
    let pods = first.registry.pods();
    assert_eq!(
        pods.iter().map(|pod| pod.run.clone().unwrap()).collect::<BTreeSet<_>>(),
        runs.into_iter().collect()
    );
    assert!(pods.iter().all(|pod| pod.files == ["p.yaml"]), "the manifests of a node's pods are known");
    drop(first);
    assert_eq!(names(&node(&runtime, &dir).await), before, "the next node knows them by the same names");
}

#[tokio::test(start_paused = true)]
async fn pods_of_a_run_that_goes_on_keep_their_names() {
    let dir = tempfile::tempdir().unwrap();
    let runtime = FakeRuntime::new([("main", Script::job(100_000, 0))]);
    let deployment = |argument: &str| {
        let text = format!(
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: web}}\nspec:\n  selector: {{matchLabels: {{a: b}}}}\n  template:\n    \
             metadata: {{labels: {{a: b}}}}\n    spec:\n      containers: [{{name: main, image: i, args: [{argument}]}}]\n"
        );
        RunRecord { sources: vec![("web.yaml".to_owned(), text)], ..record("") }
    };
    let mut first = node(&runtime, &dir).await;
    first.start_run(deployment("one")).unwrap();
    let before = names(&first);
    let fixed = first.read_accepted(&deployment("one")).unwrap().pods[0].manifest.name().to_owned();
    assert_eq!(before.len(), 1);
    assert_ne!(before[0], fixed, "names depend on the run");
    drop(first);
    assert_eq!(names(&node(&runtime, &dir).await), before);
}
