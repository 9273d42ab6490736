//! Tests of a node on a timer-based fake runtime.

use outrigger_agent::fake::{FakeRuntime, Script, pod_options};
use outrigger_lifecycle::{FeatureGates, plan};
use outrigger_manifest::{ReadOptions, SourceFile};
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
    RunRecord {
        files: vec!["p.yaml".to_owned()],
        sources: vec![("p.yaml".to_owned(), text)],
        reading: Value::Null,
        pods: pod_options(),
        generations: BTreeMap::new(),
        retired: Vec::new(),
        manifest: None,
        status: None,
    }
}

fn read(record: &RunRecord) -> Result<Work, String> {
    let files: Vec<SourceFile> =
        record.sources.iter().map(|(name, text)| SourceFile::new(name.clone(), text.clone())).collect();
    let manifest = outrigger_manifest::read(&files, &ReadOptions::default()).map_err(|_| "unreadable")?;
    let planned = |pod: &outrigger_manifest::PodManifest| {
        let plan = plan(&pod.input, &FeatureGates::default()).unwrap().plan;
        PlannedPod { manifest: pod.clone(), plan }
    };
    Ok(Work {
        pods: manifest.pods.iter().map(planned).collect(),
        workloads: manifest.workloads,
        companions: manifest.companions,
        sources: files,
    })
}

async fn node(runtime: &Arc<FakeRuntime>, dir: &tempfile::TempDir) -> Node<FakeRuntime> {
    let options = NodeOptions {
        state_dir: dir.path().canonicalize().unwrap(),
        manifests: None,
        read: Arc::new(read),
        read_file: Arc::new(|_, _| unreachable!("there is no manifest directory")),
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
    let run = node.add(record("first")).unwrap().run;
    let starts = || runtime.calls().iter().filter(|call| call.starts_with("start main")).count();

    // All its pods have ended, which the node has not been told yet.
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
    let run = first.add(record("same")).unwrap().run;
    let ended = first.tasks.join_next().await.unwrap();
    first.run_ended(ended);
    // An order for a run that has ended is not kept for later.
    first.stop_runs(None, None);

    // Also by the next node.
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
