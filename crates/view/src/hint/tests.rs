use super::*;
use outrigger_lifecycle::{FeatureGates, Time, plan};
use outrigger_manifest::{ReadOptions, SourceFile, read};
use serde_json::json;

/// A line for everything that can go wrong.
const MANIFEST: &str = "\
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {colour: blue}
---
apiVersion: v1
kind: Pod
metadata:
  name: p
  annotations:
    outrigger.dev/depends-on: |
      app: proxy ready
spec:
  restartPolicy: Never
  volumes:
  - name: certs
    secret:
      secretName: tls
  containers:
  - name: app
    image: registry.example/app:1
    command: [\"echo hi\"]
    env:
    - name: COLOR
      valueFrom:
        configMapKeyRef:
          name: settings
          key: color
    ports:
    - containerPort: 80
      hostPort: 8080
    resources:
      limits:
        memory: 64Mi
    lifecycle:
      postStart:
        exec: {command: [x]}
  - name: proxy
    image: rootfs:/no
    args: [serve]
    envFrom:
    - secretRef:
        name: token
    startupProbe:
      tcpSocket:
        port: 15001
      failureThreshold: 3
    readinessProbe:
      httpGet:
        path: /ready
        port: 15001
";

struct Fixture {
    pod: Pod,
    containers: Vec<Container>,
    companions: Companions,
    plan: Plan,
    hints: Hints,
}

impl Fixture {
    fn new() -> Fixture {
        let source = SourceFile::new("p.yaml", MANIFEST);
        let manifest = read(std::slice::from_ref(&source), &ReadOptions::default()).unwrap();
        let made = plan(&manifest.pods[0].input, &FeatureGates::default()).unwrap().plan;
        let pod = manifest.pods[0].input.pod.clone();
        let containers = pod.spec.as_ref().unwrap().containers.clone();
        let hints = Hints::new(vec![source]).of(&manifest.pods[0].origin);
        Fixture { pod, containers, companions: manifest.companions, plan: made, hints }
    }

    fn subject(&self) -> Subject<'_> {
        let Fixture { pod, containers, plan, companions, .. } = self;
        Subject { pod, containers, plan, companions }
    }

    /// The hint of an entry: the place and the hint.
    fn of(&self, container: Option<&str>, event: &'static str, fields: Value) -> (String, String) {
        let place = |name: &str| self.plan.containers.iter().position(|c| c.name == name).unwrap();
        let entry = Entry {
            time: Time(0),
            container: container.map(place),
            event,
            fields: fields.as_object().unwrap().clone(),
        };
        let mut object = json!({});
        self.hints.add_to(self.subject(), &entry, &mut object);
        let text = |key: &str| object[key].as_str().unwrap_or_default().to_owned();
        (text("manifest"), text("hint"))
    }
}

#[test]
fn every_failure_has_its_line_and_its_way_out() {
    let table = [
        (
            Some("app"),
            "pull-failed",
            json!({"message": "not found: registry.example/app has no 1"}),
            "p.yaml:21",
            "that the tag exists",
        ),
        (
            Some("app"),
            "pull-failed",
            json!({"message": "unauthorized (no credentials found, …)"}),
            "p.yaml:21",
            "`docker login registry.example`",
        ),
        (
            Some("app"),
            "pull-failed",
            json!({"message": "cannot connect to registry.example"}),
            "p.yaml:21",
            "a registry this machine can reach",
        ),
        (
            Some("app"),
            "pull-failed",
            json!({"message": "its pull policy forbids fetching it"}),
            "p.yaml:21",
            "--pull missing",
        ),
        (
            Some("proxy"),
            "pull-failed",
            json!({"message": "directory /no does not exist"}),
            "p.yaml:39",
            "a path that exists",
        ),
        (Some("app"), "exited", json!({"reason": "StartError", "code": 128}), "p.yaml:22", "[echo, hi]"),
        (Some("proxy"), "exited", json!({"reason": "Error", "code": 127}), "p.yaml:40", "did not find"),
        (Some("app"), "exited", json!({"reason": "OOMKilled", "code": 137}), "p.yaml:34", "raise the limit"),
        (
            Some("app"),
            "start-failed",
            json!({"message": "couldn't find key color"}),
            "p.yaml:28",
            "did you mean `colour`?",
        ),
        (
            Some("proxy"),
            "start-failed",
            json!({"message": "secret not found"}),
            "p.yaml:43",
            "add Secret `token`",
        ),
        (
            None,
            "sandbox-failed",
            json!({"message": "host port 8080 needs more privileges"}),
            "p.yaml:31",
            "another hostPort",
        ),
        (
            None,
            "sandbox-failed",
            json!({"message": "secret \"tls\" not found"}),
            "p.yaml:18",
            "add Secret `tls`",
        ),
        (
            Some("proxy"),
            "probe",
            json!({"kind": "startup", "verdict": "failure", "message": "port 15001: connection refused"}),
            "p.yaml:45",
            "if it just needs more than 30 s, raise failureThreshold. Until it passes `app` does not start",
        ),
        (
            Some("proxy"),
            "probe",
            json!({"kind": "readiness", "verdict": "failure", "message": "GET :15001/ready answered 503"}),
            "p.yaml:49",
            "check the path",
        ),
        (
            Some("app"),
            "hook-ended",
            json!({"hook": "postStart", "error": "exit code 1"}),
            "p.yaml:36",
            "is killed",
        ),
    ];
    let shown = Fixture::new();
    for (container, event, fields, place, hint) in table {
        let (at, said) = shown.of(container, event, fields.clone());
        assert_eq!(at, place, "{event} {fields}: {said}");
        assert!(said.contains(hint), "{event} {fields}: {said}");
    }
}

#[test]
fn a_volume_that_cannot_be_made_is_not_a_fault_of_the_machine() {
    let mut shown = Fixture::new();
    let host = |kind: &str| json!({"name": "host", "hostPath": {"path": "/srv/x", "type": kind}});
    for (volume, fault, hint) in [
        (host("Directory"), "hostPath type check failed: /srv/x does not exist", "DirectoryOrCreate"),
        (host("File"), "hostPath type check failed: /srv/x does not exist", "FileOrCreate"),
        (host("Socket"), "hostPath type check failed: /srv/x does not exist", "start what makes it"),
        (host("File"), "hostPath type check failed: /srv/x is not a file", "another type"),
        (host("FileOrCreate"), "cannot create /srv/x: No such file or directory", ""),
        (json!({"name": "host", "emptyDir": {}}), "cannot create it", ""),
    ] {
        shown.pod.spec.as_mut().unwrap().volumes = Some(vec![serde_json::from_value(volume).unwrap()]);
        let said = shown.hints.of_sandbox(shown.subject(), &format!("volume \"host\": {fault}"));
        assert!(said.contains(hint) && !said.contains("doctor"), "{said}");
        assert!(!said.trim_end().ends_with(':'), "{said}");
    }
    let said = shown.hints.of_sandbox(shown.subject(), "cannot mount /proc");
    assert!(said.contains("doctor"), "{said}");
}

#[test]
fn what_is_no_failure_has_no_hint() {
    let shown = Fixture::new();
    for (event, fields) in [
        ("exited", json!({"reason": "Completed", "code": 0})),
        ("exited", json!({"reason": "Error", "code": 127, "killed_for": "pod-stop"})),
        ("probe", json!({"kind": "startup", "outcome": "failure", "message": "connection refused"})),
        ("hook-ended", json!({"hook": "preStop"})),
        ("started", json!({})),
    ] {
        assert_eq!(shown.of(Some("proxy"), event, fields), (String::new(), String::new()), "{event}");
    }
}

#[test]
fn a_hint_is_shown_once() {
    let shown = Fixture::new();
    let failed = || shown.of(Some("app"), "exited", json!({"reason": "StartError", "code": 128}));
    assert_eq!(failed().0, "p.yaml:22");
    assert_eq!(failed().0, "");
}
