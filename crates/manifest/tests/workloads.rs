//! Workloads while they run: creating another pod, and warnings about Jobs that do not run as written.

use std::collections::BTreeSet;

use outrigger_lifecycle::FeatureGates;
use outrigger_manifest::{Manifest, ReadOptions, Severity, SourceFile, Workload, check, read, render};

fn read_with(text: &str, options: &ReadOptions) -> Result<Manifest, String> {
    let sources = [SourceFile::new("w.yaml", text)];
    read(&sources, options).map_err(|refused| render(&refused.0, &sources, false))
}

fn manifest(text: &str) -> Manifest {
    read_with(text, &ReadOptions::default()).unwrap_or_else(|refused| panic!("{refused}"))
}

/// A workload of kind `kind`, with the lines of `spec` in its spec.
fn workload(kind: &str, spec: &str, policy: &str) -> String {
    let (group, selector) = match kind {
        "Job" => ("batch", ""),
        _ => ("apps", "  selector: {matchLabels: {app: w}}\n"),
    };
    format!(
        "apiVersion: {group}/v1\nkind: {kind}\nmetadata: {{name: w, namespace: ns}}\nspec:\n{selector}{spec}  template:\n    \
         metadata: {{labels: {{app: w}}}}\n    spec: {{restartPolicy: {policy}, containers: [{{name: c, image: i}}]}}\n"
    )
}

#[test]
fn the_first_pod_is_the_one_that_was_read() {
    for (kind, spec, policy) in [
        ("Job", "  parallelism: 2\n", "Never"),
        ("Job", "  parallelism: 2\n  completions: 2\n  completionMode: Indexed\n", "Never"),
        ("Deployment", "  replicas: 2\n", "Always"),
        ("ReplicaSet", "  replicas: 2\n", "Always"),
        ("StatefulSet", "  replicas: 2\n  serviceName: w\n", "Always"),
    ] {
        let manifest = manifest(&workload(kind, spec, policy));
        let [pod] = manifest.pods.as_slice() else { panic!("{kind}") };
        assert_eq!(pod.origin.count, 2, "{kind}");
        assert_eq!(manifest.workloads[0].stamp(pod, 0, 0, ""), *pod, "{kind}");
        let second = manifest.workloads[0].stamp(pod, 1, 0, "");
        assert_eq!(second.name(), manifest.workloads[0].pod_name(1), "{kind}");
        assert_ne!(second.name(), pod.name(), "{kind}");
    }
}

#[test]
fn further_pods_are_pods_of_their_own() {
    for (kind, spec, policy, named) in [
        ("Job", "  completions: 2\n  completionMode: Indexed\n", "Never", false),
        ("Deployment", "", "Always", false),
        ("DaemonSet", "", "Always", false),
        ("StatefulSet", "  serviceName: w\n", "Always", true),
    ] {
        let manifest = manifest(&workload(kind, spec, policy));
        let pods: Vec<_> = (0..4).map(|n| manifest.workloads[0].stamp(&manifest.pods[0], 1, n, "")).collect();
        let names: BTreeSet<&str> = pods.iter().map(|pod| pod.name()).collect();
        assert_eq!(names.len(), if named { 1 } else { 4 }, "{kind}");
        let uids: BTreeSet<_> = pods.iter().map(|pod| pod.input.pod.metadata.uid.clone()).collect();
        assert_eq!(uids.len(), 4, "{kind}: not the same pod, even under the same name");
        let specs: Vec<_> = pods.iter().map(|pod| &pod.input.pod.spec).collect();
        assert!(specs.windows(2).all(|two| two[0] == two[1]), "{kind}");
    }
}

#[test]
fn a_job_can_be_owned() {
    let manifest = manifest(&workload("Job", "", "Never"));
    let job = manifest.workloads[0].job().unwrap();
    let owner = &manifest.pods[0].input.pod.metadata.owner_references.as_ref().unwrap()[0];
    assert_eq!((&owner.kind, Some(&owner.uid)), (&"Job".to_owned(), job.metadata.uid.as_ref()));
}

#[test]
fn replicas_can_be_changed_where_there_are_some() {
    let options = ReadOptions { replicas: Some(3), ..ReadOptions::default() };
    for (kind, spec, policy, count) in [
        ("Deployment", "  replicas: 1\n", "Always", 3),
        ("ReplicaSet", "", "Always", 3),
        ("StatefulSet", "  serviceName: w\n", "Always", 3),
        ("DaemonSet", "", "Always", 3),
        ("Job", "", "Never", 1),
    ] {
        let manifest = read_with(&workload(kind, spec, policy), &options).unwrap();
        assert_eq!(manifest.pod_count(), count, "{kind}");
        if let Workload::Deployment(object) = &manifest.workloads[0] {
            assert_eq!(object.spec.as_ref().unwrap().replicas, Some(3));
        }
    }
}

#[test]
fn what_a_run_does_not_do_is_said() {
    let manifest = manifest(&workload("Job", "  suspend: true\n  ttlSecondsAfterFinished: 5\n", "Never"));
    let said: Vec<&str> = manifest.warnings.iter().map(|w| w.message.as_str()).collect();
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(said[0].starts_with("the Job is suspended"), "{said:?}");
    assert!(said[1].starts_with("`ttlSecondsAfterFinished` is ignored"), "{said:?}");
    assert!(manifest.warnings.iter().all(|w| w.severity == Severity::Warning && w.span.is_some()));
}

#[test]
fn what_cannot_be_is_refused_where_it_stands() {
    for (text, message, line) in [
        (workload("Job", "  backoffLimitPerIndex: 1\n", "Never"), "needs a Job with indexes", "5"),
        (workload("Job", "  completionMode: Indexed\n", "Never"), "needs `completions`", "5"),
        (workload("Deployment", "", "Never"), "its restartPolicy can only be `Always`", "8"),
    ] {
        let refused = read_with(&text, &ReadOptions::default()).unwrap_err();
        assert!(refused.contains(message) && refused.contains(&format!("w.yaml:{line}:")), "{refused}");
    }
}

/// A status file or a dump of a cluster contains a workload and the pods that it created. When it runs again,
/// the workload creates them again.
#[test]
fn pods_beside_their_workload_are_left_to_it() {
    let cron = "apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: w, namespace: ns}\nspec:\n  schedule: '* * * * *'\n  \
                jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}}\n";
    for (kind, text) in [
        ("Job", workload("Job", "  parallelism: 2\n", "Never")),
        ("CronJob", cron.to_owned()),
        ("Deployment", workload("Deployment", "  replicas: 2\n", "Always")),
        ("ReplicaSet", workload("ReplicaSet", "", "Always")),
        ("StatefulSet", workload("StatefulSet", "  serviceName: w\n", "Always")),
        ("DaemonSet", workload("DaemonSet", "", "Always")),
    ] {
        let first = manifest(&text);
        let (pod, workload) = (&first.pods[0], &first.workloads[0]);
        let made: Vec<String> = (0..pod.origin.count)
            .map(|nth| workload.stamp(pod, nth, 0, "").input.pod)
            .map(|pod| serde_json::to_string(&pod).expect("a pod is plain data"))
            .collect();
        let bystander =
            "apiVersion: v1\nkind: Pod\nmetadata: {name: other}\nspec: {containers: [{name: c, image: i}]}\n";
        let all = format!("{}\n---\n{text}\n---\n{bystander}", made.join("\n---\n"));
        let again = manifest(&all);
        let names = |m: &Manifest| m.pods.iter().map(|pod| pod.name().to_owned()).collect::<Vec<_>>();
        assert_eq!(names(&again), [names(&first), vec!["other".to_owned()]].concat(), "{kind}");
        let kinds: Vec<&str> =
            again.pods.iter().map(|pod| again.workloads[pod.origin.workload].kind()).collect();
        assert_eq!(kinds.last(), Some(&"Pod"), "{kind}: pods still know what they came out of");
        assert!(kinds[..kinds.len() - 1].iter().all(|k| *k == kind), "{kinds:?}");
        let said: Vec<&str> = again.warnings.iter().map(|w| w.message.as_str()).collect();
        let said: Vec<&str> = said.into_iter().filter(|text| !text.contains("schedule")).collect();
        let pods = if made.len() == 1 { "1 Pod" } else { "2 Pods" };
        assert_eq!(said, [format!("skipped: {pods} of {kind}/w, which creates its pods itself")], "{kind}");
        // Without their workload, the pods themselves run.
        assert_eq!(manifest(&made.join("\n---\n")).pods.len(), made.len(), "{kind}");
    }
}

#[test]
fn a_schedule_that_a_cluster_refuses_is_refused() {
    let cron = "apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: w}\nspec:\n  schedule: \"x y\"\n  jobTemplate:\n    \
                spec:\n      template:\n        spec: {restartPolicy: Never, containers: [{name: a, image: i}]}\n";
    let sources = [SourceFile::new("cron.yaml", cron)];
    let refused = read(&sources, &ReadOptions::default()).expect_err("it has two of five fields").0;
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert!(refused[0].message.contains("it has 2 of 5 fields"), "{refused:?}");
    let span = refused[0].span.expect("a place");
    assert_eq!(sources[0].position(span.start).line, 5);
    assert!(read(&[SourceFile::new("c", cron.replace("x y", "@daily"))], &ReadOptions::default()).is_ok());
}

#[test]
fn a_schedule_that_is_not_followed_is_said() {
    let cron = "apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: w}\nspec:\n  schedule: \"@daily\"\n  jobTemplate:\n    \
                spec:\n      template:\n        spec: {restartPolicy: Never, containers: [{name: a, image: i}]}\n";
    let said = manifest(cron).warnings;
    assert_eq!(said.len(), 1, "{said:?}");
    assert_eq!(said[0].severity, Severity::Note, "there is nothing to change");
    assert_eq!(said[0].message, "the schedule is not followed: the Job of this CronJob runs once, now");
    assert_eq!(SourceFile::new("w.yaml", cron).position(said[0].span.unwrap().start).line, 5);
}

/// Annotations in a workload's own metadata do not apply to its pods, and a pod does not use annotations of a
/// Job.
#[test]
fn annotations_in_the_wrong_metadata_are_said() {
    let pod = "spec: {restartPolicy: Never, containers: [{name: a, image: i}, {name: s, image: i}]}";
    let wrong = "metadata: {name: w, annotations: {outrigger.dev/sidecars: s, a/b: c, outrigger.dev/pod-backoff: 1s..2s}}";
    let inner = "metadata: {annotations: {outrigger.dev/sidecars: s, outrigger.dev/pod-backoff: 1s..2s}}";
    let job =
        format!("apiVersion: batch/v1\nkind: Job\n{wrong}\nspec:\n  template:\n    {inner}\n    {pod}\n");
    let cron = format!(
        "apiVersion: batch/v1\nkind: CronJob\n{wrong}\nspec:\n  schedule: '@daily'\n  jobTemplate:\n    {inner}\n    \
         spec:\n      template:\n        {pod}\n"
    );
    let set = format!(
        "apiVersion: apps/v1\nkind: DaemonSet\n{wrong}\nspec:\n  selector: {{matchLabels: {{a: b}}}}\n  template:\n    \
         metadata: {{labels: {{a: b}}}}\n    {}\n",
        pod.replace("restartPolicy: Never, ", "")
    );
    let of_job = "move it to `spec.template.metadata.annotations`";
    let of_cron = "move it to `spec.jobTemplate.spec.template.metadata.annotations`";
    let tables: [(&str, &[(usize, &str, &str)]); 3] = [
        (
            &job,
            &[
                (3, "sidecars has no effect in `metadata.annotations` of a Job", of_job),
                (6, "pod-backoff has no effect on a pod", "move it to the Job's own `metadata.annotations`"),
            ],
        ),
        (
            &cron,
            &[
                (3, "sidecars has no effect in `metadata.annotations` of a CronJob", of_cron),
                (
                    3,
                    "pod-backoff has no effect in `metadata.annotations` of a CronJob",
                    "move it to `spec.jobTemplate.metadata.annotations`",
                ),
                (
                    7,
                    "sidecars has no effect in `spec.jobTemplate.metadata.annotations` of a CronJob",
                    of_cron,
                ),
            ],
        ),
        (
            &set,
            &[
                (3, "sidecars has no effect in `metadata.annotations` of a DaemonSet", of_job),
                (
                    3,
                    "pod-backoff has no effect in `metadata.annotations` of a DaemonSet",
                    "remove it: only a Job has it",
                ),
            ],
        ),
    ];
    for (text, expected) in tables {
        let source = SourceFile::new("w.yaml", text);
        let read = manifest(text);
        let mut said = read.warnings.clone();
        said.extend(check(&read, &FeatureGates::default()).into_iter().flat_map(|c| c.diagnostics));
        let said = said.iter().filter(|d| d.code == Some("option"));
        let said: Vec<_> = said
            .map(|d| {
                let line = source.position(d.span.unwrap().start).line;
                (line, d.message.strip_prefix("outrigger.dev/").unwrap(), d.hint.as_deref().unwrap())
            })
            .collect();
        assert_eq!(said, expected, "{text}");
    }
}

#[test]
fn an_init_container_in_the_list_of_sidecars_is_called_one() {
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: p, annotations: {outrigger.dev/sidecars: setup}}\nspec:\n  \
               initContainers: [{name: setup, image: i}]\n  containers: [{name: a, image: i}]\n";
    let said = check(&manifest(pod), &FeatureGates::default()).remove(0).diagnostics;
    assert_eq!(said.len(), 1, "{said:?}");
    assert_eq!(said[0].message, "`setup` is an init container, which runs to completion");
}

#[test]
fn a_name_that_is_too_long_for_a_job_is_refused_where_it_is() {
    let job = "apiVersion: batch/v1\nkind: Job\nmetadata:\n  name: NAME\nspec:\n  template:\n    \
               spec: {restartPolicy: Never, containers: [{name: a, image: i}]}\n";
    let cron = "apiVersion: batch/v1\nkind: CronJob\nmetadata:\n  name: NAME\nspec:\n  schedule: '@daily'\n  jobTemplate:\n    \
                spec:\n      template:\n        spec: {restartPolicy: Never, containers: [{name: a, image: i}]}\n";
    for (kind, text, max) in [("Job", job, 63), ("CronJob", cron, 52)] {
        let fits = text.replace("NAME", &"a".repeat(max));
        assert!(
            check(&manifest(&fits), &FeatureGates::default()).iter().all(|c| c.planned.is_some()),
            "{kind}"
        );
        let source = SourceFile::new("w.yaml", text.replace("NAME", &"a".repeat(max + 1)));
        let refused = read(std::slice::from_ref(&source), &ReadOptions::default()).expect_err("too long").0;
        let errors: Vec<_> = refused.iter().filter(|d| d.severity == Severity::Error).collect();
        assert_eq!(errors.len(), 1, "{errors:?}");
        let message = format!("the name of this {kind} has {} characters, {max} are allowed", max + 1);
        assert_eq!(errors[0].message, message);
        assert_eq!(source.position(errors[0].span.unwrap().start).line, 4);
    }
}

/// CloneSet and the advanced sets of OpenKruise. They are often used with its launch priorities.
#[test]
fn workloads_of_kruise_run_as_those_they_extend() {
    let claims = "  volumeClaimTemplates: [{metadata: {name: data}, spec: {accessModes: [ReadWriteOnce], \
                  resources: {requests: {storage: 1Gi}}}}]\n";
    let strategy = "  updateStrategy: {type: InPlaceIfPossible, partition: 1, maxUnavailable: 20%}\n  scaleStrategy: {podsToDelete: [w-x]}\n  \
                    lifecycle: {preDelete: {finalizersHandler: [a]}}\n  minReadySeconds: 2\n";
    let advanced = "  serviceName: w\n  reserveOrdinals: [1]\n  updateStrategy:\n    rollingUpdate: {partition: 0, podUpdatePolicy: InPlaceIfPossible, \
                    paused: false}\n";
    let ignored = "`spec.scaleStrategy`, `spec.updateStrategy`, `spec.lifecycle` are ignored";
    for (kind, version, spec, runs_as, note, hint) in [
        (
            "CloneSet",
            "v1alpha1",
            "  replicas: 2\n",
            "Deployment",
            "apps.kruise.io CloneSet `w` runs as an apps/v1 Deployment",
            None,
        ),
        (
            "CloneSet",
            "v1beta1",
            strategy,
            "Deployment",
            "apps.kruise.io CloneSet `w` runs as an apps/v1 Deployment",
            Some(ignored),
        ),
        (
            "CloneSet",
            "v1alpha1",
            claims,
            "StatefulSet",
            "apps.kruise.io CloneSet `w` runs as an apps/v1 StatefulSet, because its pods have claims of their own",
            None,
        ),
        (
            "StatefulSet",
            "v1beta1",
            advanced,
            "StatefulSet",
            "apps.kruise.io StatefulSet `w` runs as an apps/v1 StatefulSet",
            Some(
                "`spec.reserveOrdinals`, `spec.updateStrategy.rollingUpdate.podUpdatePolicy`, \
                  `spec.updateStrategy.rollingUpdate.paused` are ignored",
            ),
        ),
        (
            "StatefulSet",
            "v1beta1",
            "  serviceName: w\n  updateStrategy: {type: InPlaceIfPossible}\n",
            "StatefulSet",
            "apps.kruise.io StatefulSet `w` runs as an apps/v1 StatefulSet",
            Some("`spec.updateStrategy.type` is ignored"),
        ),
        (
            "DaemonSet",
            "v1alpha1",
            "  burstReplicas: 2\n",
            "DaemonSet",
            "apps.kruise.io DaemonSet `w` runs as an apps/v1 DaemonSet",
            Some("`spec.burstReplicas` is ignored"),
        ),
    ] {
        let text = workload(kind, spec, "Always").replace("apps/v1", &format!("apps.kruise.io/{version}"));
        let text = format!("{text}status: {{updatedReadyReplicas: 1, labelSelector: a}}\n");
        let manifest = manifest(&text);
        assert_eq!(manifest.workloads[0].kind(), runs_as, "{text}");
        assert_eq!(manifest.pods.len(), 1, "{text}");
        let said: Vec<_> =
            manifest.warnings.iter().map(|w| (w.message.as_str(), w.hint.as_deref())).collect();
        assert_eq!(said, [(note, hint)], "{text}");
        // If fields have no effect, the message is a warning and not only a note.
        let severity = if hint.is_some() { Severity::Warning } else { Severity::Note };
        assert_eq!(manifest.warnings[0].severity, severity, "{text}");
        if let Workload::StatefulSet(set) = &manifest.workloads[0] {
            let policy = set.spec.as_ref().and_then(|spec| spec.pod_management_policy.as_deref());
            assert_eq!(policy, (kind == "CloneSet").then_some("Parallel"), "{text}");
        }
        // A pod that a cluster created from it is not run a second time.
        let pod = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: w-x, namespace: ns, ownerReferences: [{{apiVersion: a, kind: {kind}, \
             name: w, uid: u, controller: true}}]}}\nspec: {{containers: [{{name: c, image: i}}]}}\n---\n{text}"
        );
        assert_eq!(read_with(&pod, &ReadOptions::default()).unwrap().pods.len(), 1, "{pod}");
    }
    // A field that neither kind has is still an error.
    let typo =
        workload("CloneSet", "  replicsa: 2\n", "Always").replace("apps/v1", "apps.kruise.io/v1alpha1");
    assert!(read_with(&typo, &ReadOptions::default()).unwrap_err().contains("unknown field `replicsa`"));
}

#[test]
fn counts_are_not_negative() {
    for kind in ["Deployment", "ReplicaSet", "StatefulSet"] {
        let spec =
            if kind == "StatefulSet" { "  replicas: -1\n  serviceName: w\n" } else { "  replicas: -1\n" };
        let refused = read_with(&workload(kind, spec, "Always"), &ReadOptions::default()).unwrap_err();
        assert!(refused.contains("`spec.replicas` must not be negative, it is -1"), "{refused}");
        assert!(!refused.contains("has no pods"), "{refused}");
    }
    let job = read_with(&workload("Job", "  parallelism: -2\n", "Never"), &ReadOptions::default());
    assert!(!job.err().unwrap_or_default().contains("has no pods"));
}
