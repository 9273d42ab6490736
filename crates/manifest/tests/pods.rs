//! Valid manifests: their pods, defaults, names, companions, and positions in the text.

use outrigger_lifecycle::{ContainerRef, FieldPath, Finding, List};
use outrigger_manifest::{
    Diagnostic, Manifest, PodManifest, ReadOptions, SourceFile, Span, Workload, read, render,
};

fn manifest_of(name: &str, text: &str) -> (Manifest, SourceFile) {
    let source = SourceFile::new(name, text);
    match read(std::slice::from_ref(&source), &ReadOptions::default()) {
        Ok(manifest) => (manifest, source),
        Err(found) => panic!("{}", render(&found.0, &[source], false)),
    }
}

fn manifest(text: &str) -> (Manifest, SourceFile) {
    manifest_of("pod.yaml", text)
}

fn text_at(source: &SourceFile, span: Option<Span>) -> &str {
    source.slice(span.expect("a place"))
}

fn path(text: &str) -> FieldPath {
    text.split('.').fold(FieldPath::root(), |path, part| match part.parse::<usize>() {
        Ok(index) => path.index(index),
        Err(_) => path.field(part.to_owned()),
    })
}

fn names(manifest: &Manifest) -> Vec<String> {
    all_pods(manifest).iter().map(|pod| pod.name().to_owned()).collect()
}

/// All pods that the objects have at the same time.
fn all_pods(manifest: &Manifest) -> Vec<PodManifest> {
    let of_object = |pod: &PodManifest| {
        let workload = &manifest.workloads[pod.origin.workload];
        let made = (0..pod.origin.count).map(|nth| workload.stamp(pod, nth, 0, "")).collect::<Vec<_>>();
        for (nth, pod) in made.iter().enumerate() {
            assert_eq!(pod.name(), workload.pod_name(nth));
        }
        made
    };
    manifest.pods.iter().flat_map(of_object).collect()
}

const POD: &str = "\
# A pod with a sidecar.
apiVersion: v1
kind: Pod
metadata:
  name: web
  annotations:
    outrigger.dev/depends-on: \"app: proxy\"
spec:
  initContainers:
  - name: proxy # é
    image: envoy:1.30
    restartPolicy: Always
    startupProbe:
      httpGet: {port: 15021}
  containers:
  - name: app
    image: localhost:5000/app
    lifecycle:
      type: Standard
      preStop:
        exec:
          command: [sh, -c, 'sleep 1']
    env:
    - name: SCRIPT
      value: |
        line one
        line two
  - name: log
    image: rootfs:/srv/log
    lifecycle: {type: Sidecar}
    resources:
      limits: {cpu: 1, memory: 64Mi}
      requests: {memory: 32Mi}
    volumeMounts:
    - {name: conf, mountPath: /etc/conf}
  volumes:
  - name: conf
    configMap: {name: conf}
  - name: scratch
";

#[test]
fn a_pod_is_typed_and_defaulted() {
    let (manifest, _) = manifest(POD);
    assert!(manifest.warnings.is_empty(), "{:?}", manifest.warnings);
    let pod = &manifest.pods[0];
    assert_eq!((pod.namespace(), pod.name()), ("default", "web"));
    assert_eq!((pod.origin.kind, pod.origin.api_version), ("Pod", "v1"));
    let types = &pod.input.lifecycle_types;
    assert_eq!(types.len(), 2);
    assert_eq!(types[&ContainerRef { list: List::Main, index: 0 }], "Standard");
    assert_eq!(types[&ContainerRef { list: List::Main, index: 1 }], "Sidecar");
    assert!(matches!(&manifest.workloads[0], Workload::Pod(_)));

    let spec = pod.input.pod.spec.as_ref().unwrap();
    assert_eq!(spec.restart_policy.as_deref(), Some("Always"));
    assert_eq!(spec.termination_grace_period_seconds, Some(30));
    assert_eq!(spec.dns_policy.as_deref(), Some("ClusterFirst"));
    let proxy = &spec.init_containers.as_ref().unwrap()[0];
    let probe = proxy.startup_probe.as_ref().unwrap();
    assert_eq!((probe.period_seconds, probe.timeout_seconds), (Some(10), Some(1)));
    assert_eq!((probe.success_threshold, probe.failure_threshold), (Some(1), Some(3)));
    let get = probe.http_get.as_ref().unwrap();
    assert_eq!((get.path.as_deref(), get.scheme.as_deref()), (Some("/"), Some("HTTP")));
    assert_eq!(proxy.image_pull_policy.as_deref(), Some("IfNotPresent"));
    let [app, log] = spec.containers.as_slice() else { panic!() };
    assert_eq!(app.image_pull_policy.as_deref(), Some("Always"));
    assert_eq!(app.termination_message_path.as_deref(), Some("/dev/termination-log"));
    assert_eq!(app.env.as_ref().unwrap()[0].value.as_deref(), Some("line one\nline two\n"));
    assert_eq!(log.image_pull_policy.as_deref(), Some("IfNotPresent"));
    let requests = log.resources.as_ref().unwrap().requests.as_ref().unwrap();
    assert_eq!(requests["cpu"].0, "1");
    assert_eq!(requests["memory"].0, "32Mi");
    let volumes = spec.volumes.as_ref().unwrap();
    assert_eq!(volumes[0].config_map.as_ref().unwrap().default_mode, Some(0o644));
    assert!(volumes[1].empty_dir.is_some());
}

#[test]
fn paths_lead_back_into_the_text() {
    let (manifest, source) = manifest(POD);
    let pod = &manifest.pods[0];
    let table = [
        ("metadata.name", "web"),
        ("spec.initContainers.0.name", "proxy"),
        ("spec.initContainers.0.startupProbe.httpGet", "{port: 15021}"),
        ("spec.initContainers.0.startupProbe.httpGet.port", "15021"),
        ("spec.containers.0.lifecycle.type", "Standard"),
        ("spec.containers.0.lifecycle.preStop.exec.command.2", "'sleep 1'"),
        ("spec.containers.0.env.0.value", "|\n        line one\n        line two"),
        ("spec.containers.1.lifecycle.type", "Sidecar"),
        ("spec.containers.1.volumeMounts.0", "{name: conf, mountPath: /etc/conf}"),
        ("spec.volumes.1", "name: scratch"),
        // A missing value has the position of its nearest parent.
        ("spec.initContainers.0.startupProbe.httpGet.path", "{port: 15021}"),
        ("spec.initContainers.0.startupProbe.httpGet.port.no.such", "15021"),
        ("spec.volumes.7", "- name: conf\n    configMap: {name: conf}\n  - name: scratch"),
    ];
    for (at, expected) in table {
        let found = text_at(&source, pod.locate(&path(at)));
        assert_eq!(found.trim_start_matches("- "), expected.trim_start_matches("- "), "{at}");
    }
    let keys = [
        ("spec.containers", "containers"),
        ("spec.containers.0", "containers"),
        ("spec.containers.0.image", "image"),
        ("spec.containers.0.imagePullPolicy", "containers"),
        ("metadata.labels", "metadata"),
    ];
    for (at, expected) in keys {
        assert_eq!(text_at(&source, pod.locate_key(&path(at))), expected, "{at}");
    }
    let points = [
        ("spec.containers.0", "app"),
        ("spec.containers.0.image", "localhost:5000/app"),
        ("spec.containers.0.lifecycle", "lifecycle"),
        ("spec.containers.0.readinessProbe", "app"),
        ("spec.restartPolicy", "spec"),
        ("metadata.annotations.outrigger.dev/depends-on", "annotations"),
    ];
    for (at, expected) in points {
        assert_eq!(source.slice(pod.point(&path(at))), expected, "{at}");
    }
    let annotation = FieldPath::annotation("outrigger.dev/depends-on");
    assert_eq!(source.slice(pod.point(&annotation)), "\"app: proxy\"");
}

#[test]
fn findings_are_shown_where_they_are() {
    let (manifest, source) = manifest(POD);
    let finding =
        Finding::error("R8.3", path("spec.containers.1.lifecycle.type"), "`log` is a sidecar twice")
            .related(path("spec.initContainers.0"), "the other one")
            .hint("keep one");
    let diagnostic = Diagnostic::from_finding(&finding, &manifest.pods[0]);
    assert_eq!(
        render(&[diagnostic], &[source], false),
        "\
error[init-lifecycle]: `log` is a sidecar twice
  --> pod.yaml:30:23
   |
10 |   - name: proxy # é
   |           ----- the other one
...
30 |     lifecycle: {type: Sidecar}
   |                       ^^^^^^^
   |
   = help: keep one

"
    );
}

fn workload(api_version: &str, kind: &str, spec: &str) -> String {
    format!("apiVersion: {api_version}\nkind: {kind}\nmetadata:\n  name: w\n  namespace: ns\nspec:\n{spec}")
}

const TEMPLATE: &str = "  template:
    metadata:
      labels: {app: a}
    spec:
      containers:
      - name: c
        image: busybox:1
        lifecycle:
          type: Sidecar
";

#[test]
fn a_job_makes_pods() {
    let (manifest, source) = manifest(&workload("batch/v1", "Job", TEMPLATE));
    let [pod] = manifest.pods.as_slice() else { panic!() };
    assert_eq!(pod.name().len(), "w-".len() + 5);
    assert!(pod.name().starts_with("w-"));
    assert_eq!(pod.namespace(), "ns");
    let metadata = &pod.input.pod.metadata;
    let labels = metadata.labels.as_ref().unwrap();
    for (label, value) in [("app", "a"), ("job-name", "w"), ("batch.kubernetes.io/job-name", "w")] {
        assert_eq!(labels[label], value);
    }
    assert_eq!(labels["controller-uid"], metadata.owner_references.as_ref().unwrap()[0].uid);
    assert_eq!(metadata.owner_references.as_ref().unwrap()[0].kind, "Job");
    assert_eq!(metadata.uid.as_ref().unwrap().len(), 36);
    assert_eq!(pod.input.lifecycle_types[&ContainerRef { list: List::Main, index: 0 }], "Sidecar");

    assert_eq!(text_at(&source, pod.locate(&path("spec.containers.0.image"))), "busybox:1");
    assert_eq!(text_at(&source, pod.locate(&path("metadata.name"))), "w");
    assert_eq!(source.slice(pod.point(&path("spec.containers.0.stdin"))), "c");
    assert_eq!(pod.document_path(&path("spec.volumes")), path("spec.template.spec.volumes"));
}

#[test]
fn workloads_make_as_many_pods_as_they_say() {
    let selector = "  selector: {matchLabels: {app: a}}\n";
    let table = [
        ("batch/v1", "Job", "  parallelism: 3\n", 3),
        ("batch/v1", "Job", "  parallelism: 3\n  completions: 2\n", 2),
        ("batch/v1", "Job", "  completions: 5\n", 1),
        ("apps/v1", "Deployment", selector, 1),
        ("apps/v1", "Deployment", &format!("{selector}  replicas: 3\n"), 3),
        ("apps/v1", "ReplicaSet", &format!("{selector}  replicas: 2\n"), 2),
        ("apps/v1", "StatefulSet", &format!("{selector}  replicas: 2\n"), 2),
        ("apps/v1", "DaemonSet", selector, 1),
    ];
    for (api_version, kind, spec, count) in table {
        let (manifest, _) = manifest(&workload(api_version, kind, &format!("{spec}{TEMPLATE}")));
        assert_eq!((manifest.pods.len(), manifest.pod_count()), (1, count), "{kind} {spec}");
        let mut names = names(&manifest);
        let again = manifest_of("p", &workload(api_version, kind, &format!("{spec}{TEMPLATE}"))).0;
        assert_eq!(names, crate::names(&again));
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "{kind}: names are distinct");
    }
}

#[test]
fn a_deployment_names_its_template() {
    let spec = format!("  selector: {{matchLabels: {{app: a}}}}\n{TEMPLATE}");
    let (manifest, _) = manifest(&workload("apps/v1", "Deployment", &spec));
    let pod = &manifest.pods[0];
    let hash = &pod.input.pod.metadata.labels.as_ref().unwrap()["pod-template-hash"];
    assert!(pod.name().starts_with(&format!("w-{hash}-")), "{}", pod.name());
    assert_eq!(pod.input.pod.metadata.owner_references.as_ref().unwrap()[0].kind, "ReplicaSet");
    assert_eq!(pod.origin.name, "w");
}

#[test]
fn a_stateful_set_counts_and_claims() {
    let spec = format!(
        "  replicas: 2\n  serviceName: svc\n  selector: {{matchLabels: {{app: a}}}}\n  volumeClaimTemplates:\n  - metadata: {{name: data}}\n    spec: {{accessModes: [ReadWriteOnce], resources: {{requests: {{storage: 1Gi}}}}}}\n{TEMPLATE}"
    );
    let (manifest, _) = manifest(&workload("apps/v1", "StatefulSet", &spec));
    assert_eq!(names(&manifest), ["w-0", "w-1"]);
    let pod = &all_pods(&manifest)[1].input.pod;
    assert_eq!(pod.metadata.labels.as_ref().unwrap()["statefulset.kubernetes.io/pod-name"], "w-1");
    assert_eq!(pod.metadata.labels.as_ref().unwrap()["apps.kubernetes.io/pod-index"], "1");
    let spec = pod.spec.as_ref().unwrap();
    assert_eq!((spec.hostname.as_deref(), spec.subdomain.as_deref()), (Some("w-1"), Some("svc")));
    let claim = spec.volumes.as_ref().unwrap()[0].persistent_volume_claim.as_ref().unwrap();
    assert_eq!(claim.claim_name, "data-w-1");
    let key = ("ns".to_owned(), "data-w-1".to_owned());
    assert!(manifest.companions.persistent_volume_claims.contains_key(&key));
}

#[test]
fn an_indexed_job_tells_its_pods_their_index() {
    let spec = format!("  completionMode: Indexed\n  completions: 2\n  parallelism: 2\n{TEMPLATE}");
    let (manifest, _) = manifest(&workload("batch/v1", "Job", &spec));
    let pod = &all_pods(&manifest)[1].input.pod;
    assert!(pod.metadata.name.as_deref().unwrap().starts_with("w-1-"));
    assert_eq!(pod.metadata.annotations.as_ref().unwrap()["batch.kubernetes.io/job-completion-index"], "1");
    let spec = pod.spec.as_ref().unwrap();
    assert_eq!(spec.hostname.as_deref(), Some("w-1"));
    assert_eq!(spec.containers[0].env.as_ref().unwrap()[0].name, "JOB_COMPLETION_INDEX");
}

#[test]
fn a_cron_job_is_run_once() {
    let text = "\
apiVersion: batch/v1
kind: CronJob
metadata: {name: nightly}
spec:
  schedule: '0 3 * * *'
  jobTemplate:
    spec:
      template:
        spec:
          restartPolicy: OnFailure
          containers:
          - {name: c, image: 'busybox:1', lifecycle: {type: Standard}}
";
    let (manifest, source) = manifest(text);
    let [pod] = manifest.pods.as_slice() else { panic!() };
    assert!(pod.name().starts_with("nightly-manual-"));
    assert_eq!(text_at(&source, pod.locate(&path("spec.restartPolicy"))), "OnFailure");
    assert_eq!(pod.input.lifecycle_types.len(), 1);
    assert_eq!(manifest.workloads[0].job_spec().unwrap().completions, None);
}

#[test]
fn lists_hold_objects() {
    let text = "\
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: ConfigMap
  metadata: {name: conf}
  data: {a: b}
- apiVersion: v1
  kind: Pod
  metadata: {name: p}
  spec: {containers: [{name: c, image: x}]}
---
apiVersion: v1
kind: PodList
items:
- metadata: {name: q}
  spec: {containers: [{name: c, image: yy}]}
";
    let (manifest, source) = manifest(text);
    assert_eq!(names(&manifest), ["p", "q"]);
    assert_eq!(text_at(&source, manifest.pods[1].locate(&path("spec.containers.0.image"))), "yy");
    assert_eq!(manifest.pods[1].document_path(&path("spec")), path("items.0.spec"));
    assert_eq!(manifest.pods[1].origin.document_index, 1);
    assert_eq!(manifest.companions.config_maps.len(), 1);
}

#[test]
fn companions_are_kept_by_name() {
    let text = format!(
        "\
apiVersion: v1
kind: Secret
metadata: {{name: s, namespace: ns}}
data: {{a: aGVsbG8=}}
stringData: {{b: plain}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: data}}
spec: {{accessModes: [ReadWriteOnce], resources: {{requests: {{storage: 1Gi}}}}}}
---
{POD}"
    );
    let (manifest, _) = manifest(&text);
    let secret = &manifest.companions.secrets[&("ns".to_owned(), "s".to_owned())];
    let data = secret.data.as_ref().unwrap();
    assert_eq!(data["a"].0, b"hello");
    assert_eq!(data["b"].0, b"plain");
    let claim = ("default".to_owned(), "data".to_owned());
    assert!(manifest.companions.persistent_volume_claims.contains_key(&claim));

    let bad = "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\ndata:\n  a: plain text\n";
    let error = read(&[SourceFile::new("s.yaml", bad)], &ReadOptions::default()).unwrap_err();
    assert_eq!(error.0[0].message, "`data.a`: not base64");
}

#[test]
fn generated_names_are_stable() {
    let text = |base: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{generateName: {base}}}\nspec: {{containers: [{{name: c}}]}}\n---\n"
        )
    };
    let twice = text("p-").repeat(2);
    let (manifest, _) = manifest(&twice);
    let names = names(&manifest);
    assert!(names.iter().all(|name| name.len() == 7 && name.starts_with("p-")), "{names:?}");
    assert_ne!(names[0], names[1]);
}

#[test]
fn anchors_aliases_and_merges() {
    let text = "\
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  containers:
  - &base
    name: a
    image: busybox:1
    env: &env
    - {name: A, value: b}
  - <<: *base
    name: b
    env: *env
";
    let (manifest, source) = manifest(text);
    let pod = &manifest.pods[0];
    let containers = &pod.input.pod.spec.as_ref().unwrap().containers;
    assert_eq!(containers[1].name, "b");
    assert_eq!(containers[1].image, containers[0].image);
    assert_eq!(containers[1].env, containers[0].env);
    assert_eq!(text_at(&source, pod.locate(&path("spec.containers.1.env"))), "*env");
    assert_eq!(text_at(&source, pod.locate(&path("spec.containers.1.image"))), "busybox:1");
    assert_eq!(source.slice(pod.point(&path("spec.containers.1"))), "b");
}

#[test]
fn json_is_read_with_tabs_and_escapes() {
    let text = "{\n\t\"apiVersion\": \"v1\",\n\t\"kind\": \"Pod\",\n\t\"metadata\": {\"name\": \"p\"},\n\t\"spec\": {\"containers\": [{\"name\": \"c\", \"args\": [\"\\ud83d\\ude00\\/\\t\", \"yes\"], \"stdin\": true}]}\n}\n";
    for name in ["pod.json", "-"] {
        let (manifest, source) = manifest_of(name, text);
        let spec = manifest.pods[0].input.pod.spec.as_ref().unwrap();
        assert_eq!(spec.containers[0].args.as_deref().unwrap(), ["😀/\t", "yes"]);
        let at = manifest.pods[0].locate(&path("spec.containers.0.name"));
        assert_eq!(text_at(&source, at), "\"c\"");
    }
    // A YAML flow mapping also starts with a brace.
    let (manifest, _) = manifest_of(
        "-",
        "{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{name: c,}]}}",
    );
    assert_eq!(names(&manifest), ["p"]);
}

#[test]
fn numbers_and_booleans_are_read_as_kubernetes_reads_them() {
    let text = "\
apiVersion: v1
kind: Pod
metadata: {name: p, creationTimestamp: null}
spec:
  hostNetwork: yes
  terminationGracePeriodSeconds: 1e1
  containers:
  - name: c
    ports: [{containerPort: 0x50}]
    args: [!!str 1, \"2\", 'yes']
    resources: {limits: {cpu: 0.5, memory: 128974848, ephemeral-storage: 1e3}}
  volumes:
  - name: s
    secret: {secretName: s, defaultMode: 0400}
";
    let (manifest, _) = manifest(text);
    let spec = manifest.pods[0].input.pod.spec.as_ref().unwrap();
    assert_eq!(spec.host_network, Some(true));
    assert_eq!(spec.termination_grace_period_seconds, Some(10));
    assert_eq!(spec.volumes.as_ref().unwrap()[0].secret.as_ref().unwrap().default_mode, Some(0o400));
    let container = &spec.containers[0];
    assert_eq!(container.args.as_deref().unwrap(), ["1", "2", "yes"]);
    let port = &container.ports.as_ref().unwrap()[0];
    assert_eq!((port.container_port, port.host_port, port.protocol.as_deref()), (80, Some(80), Some("TCP")));
    let limits = container.resources.as_ref().unwrap().limits.as_ref().unwrap();
    assert_eq!(
        ["cpu", "memory", "ephemeral-storage"].map(|name| limits[name].0.as_str()),
        ["0.5", "128974848", "1000"]
    );
}

#[test]
fn windows_line_ends_and_a_byte_order_mark_do_no_harm() {
    let text = format!("\u{feff}{}", POD.replace('\n', "\r\n"));
    let (manifest, source) = manifest(&text);
    let at = manifest.pods[0].locate(&path("spec.containers.0.image"));
    assert_eq!(text_at(&source, at), "localhost:5000/app");
    let position = source.position(at.unwrap().start);
    assert_eq!((position.line, position.column), (17, 12));
    let one = "\u{feff}apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c}]}\n";
    let (manifest, source) = manifest_of("p", one);
    assert!(source.slice(manifest.pods[0].origin.document).starts_with("apiVersion"));
}

#[test]
fn several_files_make_one_manifest() {
    let sources = [
        SourceFile::new("conf.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: conf}\n"),
        SourceFile::new("pod.yaml", POD),
    ];
    let manifest =
        read(&sources, &ReadOptions { namespace: Some("team".to_owned()), ..ReadOptions::default() })
            .unwrap();
    assert!(manifest.companions.config_maps.contains_key(&("team".to_owned(), "conf".to_owned())));
    assert_eq!(manifest.pods[0].namespace(), "team");
    assert_eq!(manifest.pods[0].locate(&path("metadata.name")).unwrap().file, 1);
}
