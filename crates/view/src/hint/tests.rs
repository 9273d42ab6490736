use super::*;
use outrigger_lifecycle::trace::Line;
use outrigger_lifecycle::{FeatureGates, Time, plan};
use outrigger_manifest::{ReadOptions, SourceFile, read};
use serde_json::{Value, json};

/// A manifest with a line for every kind of failure.
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
    livenessProbe:
      exec:
        command: [nosuch, --now]
";

/// A port that another pod of the same process uses.
const OWN_PORT: u16 = 4242;

fn port_holder(port: u16) -> Option<PortHolder> {
    (port == OWN_PORT).then_some(PortHolder::ThisProcess)
}

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
        let hints = Hints::new(vec![source]).of_pod(&manifest.pods[0].origin);
        Fixture { pod, containers, companions: manifest.companions, plan: made, hints }
    }

    fn subject(&self) -> Subject<'_> {
        let Fixture { pod, containers, plan, companions, .. } = self;
        Subject { pod, containers, plan, companions, port_holder }
    }

    /// The place and the hint for an entry.
    fn of(&self, container: Option<&str>, event: &'static str, fields: Value) -> (String, String) {
        let place = |name: &str| self.plan.containers.iter().position(|c| c.name == name).unwrap();
        let mut line = json!({"event": event});
        line.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let event = Line::from_json(&line).unwrap().pod().unwrap().event;
        let entry = Entry { time: Time(0), container: container.map(place), event };
        let (manifest, hint) = self.hints.on(self.subject(), &entry);
        (manifest.unwrap_or_default(), hint.unwrap_or_default())
    }
}

/// The process that uses the port may be a node, with pods of many runs.
#[test]
fn a_port_of_another_pod_is_not_said_to_be_of_the_same_run() {
    let (_, hint) =
        Fixture::new().of(None, "sandbox-failed", json!({"cause": "host-port-in-use", "port": OWN_PORT}));
    assert_eq!(hint, "another pod has the port; this one starts when that pod is gone");
}

#[test]
fn every_failure_has_its_line_and_its_way_out() {
    let table = [
        (Some("app"), "pull-failed", json!({"cause": "not-found"}), "p.yaml:21", "that the tag exists"),
        (
            Some("app"),
            "pull-failed",
            json!({"cause": "unauthorized"}),
            "p.yaml:21",
            "`docker login registry.example`",
        ),
        (
            Some("app"),
            "pull-failed",
            json!({"cause": "unreachable"}),
            "p.yaml:21",
            "a registry this machine can reach",
        ),
        (Some("app"), "pull-failed", json!({"cause": "never-pull"}), "p.yaml:21", "--pull missing"),
        (
            Some("proxy"),
            "pull-failed",
            json!({"cause": "not-on-disk"}),
            "p.yaml:39",
            "a path that holds an image",
        ),
        (Some("app"), "pull-failed", json!({"cause": "damaged"}), "p.yaml:21", "build and push it again"),
        (
            Some("proxy"),
            "pull-failed",
            json!({"cause": "damaged"}),
            "p.yaml:39",
            "copy, save or build it again",
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
            json!({"cause": "host-port-denied", "port": 8080}),
            "p.yaml:31",
            "a hostPort of 1024 or above",
        ),
        (
            None,
            "sandbox-failed",
            json!({"message": "secret \"tls\" not found"}),
            "p.yaml:18",
            "add Secret `tls`",
        ),
        (
            Some("app"),
            "start-failed",
            json!({"error": "CreateContainerError", "message": "m", "cause": "unusable-image"}),
            "p.yaml:21",
            "",
        ),
        (
            Some("proxy"),
            "probe",
            json!({"kind": "startup", "outcome": "failure", "verdict": "failure", "cause": "refused"}),
            "p.yaml:45",
            "if it only needs more time than 30 s, raise failureThreshold. Until it passes, `app` does not start",
        ),
        (
            Some("proxy"),
            "probe",
            json!({"kind": "readiness", "outcome": "failure", "verdict": "failure", "cause": "bad-answer"}),
            "p.yaml:49",
            "check the path",
        ),
        (
            Some("proxy"),
            "probe",
            json!({"kind": "liveness", "outcome": "error", "message": "no such file"}),
            "p.yaml:54",
            "\"nosuch\" is looked for in the PATH of the container",
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
    let (missing, other) =
        (SandboxCause::HostPathMissing { volume: 0 }, SandboxCause::HostPathType { volume: 0 });
    let failed = SandboxCause::VolumeFailed { volume: 0 };
    for (volume, cause, hint) in [
        (host("Directory"), missing, "DirectoryOrCreate"),
        (host("File"), missing, "FileOrCreate"),
        (host("Socket"), missing, "start the program that creates it"),
        (host("File"), other, "another type"),
        (host(""), SandboxCause::HostPathDenied { volume: 0 }, "let this user use the path"),
        (host(""), SandboxCause::VolumeUnsupported { volume: 0 }, ""),
        (host("FileOrCreate"), failed, ""),
        (json!({"name": "host", "emptyDir": {}}), failed, ""),
    ] {
        shown.pod.spec.as_mut().unwrap().volumes = Some(vec![serde_json::from_value(volume).unwrap()]);
        let said = shown.hints.of_sandbox(shown.subject(), "volume \"host\": it failed", Some(cause));
        assert!(said.contains(hint) && !said.contains("doctor"), "{said}");
        assert!(!said.trim_end().ends_with(':'), "{said}");
    }
    let said = shown.hints.of_sandbox(shown.subject(), "cannot mount /proc", None);
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
