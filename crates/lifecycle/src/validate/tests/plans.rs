//! Findings about plans.

use serde_json::{Value, json};

use super::*;
use crate::dialect::plan;
use crate::validate::validate_plan;

fn check_plan(annotations: Value, spec: Value, expected: &[Expected]) -> Vec<Finding> {
    let input = pod_of(json!({"metadata": {"name": "p", "annotations": annotations}, "spec": spec}));
    let planned = plan(&input, &FeatureGates::default()).expect("a plan");
    let found = validate_plan(&input, &planned.plan);
    assert_findings(&format!("{annotations} {spec}"), &found, expected);
    found
}

fn depends(text: &str) -> Value {
    json!({"outrigger.dev/depends-on": text})
}

fn c(name: &str) -> Value {
    json!({"name": name, "image": "i:1"})
}

fn with(name: &str, fields: Value) -> Value {
    let mut container = c(name);
    merge(&mut container, fields);
    container
}

const DEPENDS_ON: &str = "metadata.annotations[outrigger.dev/depends-on]";

#[test]
fn plain_pods_and_good_orders_have_no_findings() {
    let none = json!({});
    check_plan(none.clone(), json!({"containers": [c("a"), c("b")]}), &[]);
    check_plan(
        none,
        json!({"initContainers": [c("i"), with("s", json!({"restartPolicy": "Always"}))], "containers": [c("a")]}),
        &[],
    );
    let jobs = json!({"restartPolicy": "OnFailure", "containers": [c("a"), c("b")]});
    check_plan(depends("a: b completed"), jobs, &[]);
    check_plan(depends("a: b ready"), json!({"containers": [c("a"), c("b")]}), &[]);
}

#[test]
fn waiting_for_the_end_of_what_never_ends_is_refused() {
    let sidecar =
        json!({"initContainers": [with("s", json!({"restartPolicy": "Always"}))], "containers": [c("a")]});
    let found = check_plan(
        depends("a: s completed"),
        sidecar,
        &[("deadlock", DEPENDS_ON, "`a` waits for `s` to complete, but `s` is a sidecar")],
    );
    assert_eq!(found[0].severity, Severity::Error);
    assert_eq!(found[0].related[0].0.to_string(), "spec.initContainers[0]");
    let always = json!({"containers": [c("a"), c("b")]});
    let found = check_plan(
        depends("a: b completed"),
        always,
        &[("deadlock", DEPENDS_ON, "restarted whenever it ends")],
    );
    assert_eq!(found[0].related[0].0.to_string(), "spec.restartPolicy");
    let own = json!({"restartPolicy": "Never", "containers": [c("a"), with("b", json!({"restartPolicy": "Always"}))]});
    let found = check_plan(depends("a: b completed"), own, &[("deadlock", DEPENDS_ON, "`b`")]);
    assert_eq!(found[0].related[0].0.to_string(), "spec.containers[1].restartPolicy");
}

#[test]
fn an_init_container_is_completed_not_ready() {
    let spec = json!({"initContainers": [c("i")], "containers": [c("a")]});
    let found =
        check_plan(depends("a: i ready"), spec, &[("deadlock", DEPENDS_ON, "completes and is never ready")]);
    assert_eq!(found[0].severity, Severity::Warning);
}

#[test]
fn lp_28_readiness_of_what_obviously_ends() {
    let priority = |n: &str| json!([{"name": "KRUISE_CONTAINER_PRIORITY", "value": n}]);
    let level = |policy: &str, command: Value| {
        json!({"restartPolicy": policy, "containers": [
            with("first", json!({"env": priority("1"), "command": command})), c("then")]})
    };
    let at = "spec.containers[1]";
    for ends in [
        json!(["true"]),
        json!(["/bin/true"]),
        json!(["sh", "-c", "exit 0"]),
        json!(["/bin/sh", "-c", "mkdir /a && touch /a/b; exit 0"]),
    ] {
        let found =
            check_plan(json!({}), level("Never", ends.clone()), &[("LP-28", at, "`first` ends by itself")]);
        assert_eq!(found[0].severity, Severity::Warning);
        assert_eq!(found[0].related[0].0.to_string(), "spec.containers[0].command");
        check_plan(json!({}), level("Always", ends), &[("deadlock", at, "started again and again")]);
    }
    for stays in [
        json!(["sleep", "9"]),
        json!(["sh", "-c", "echo hi; serve"]),
        json!(["sh", "-c", "true | cat"]),
        json!([]),
    ] {
        check_plan(json!({}), level("Never", stays), &[]);
    }
    // With a fence, the dependent container could run only while the other one runs.
    let jobs =
        json!({"restartPolicy": "Never", "containers": [c("a"), with("b", json!({"command": ["true"]}))]});
    let found = check_plan(
        depends("a: b ready fence"),
        jobs,
        &[("deadlock", DEPENDS_ON, "runs only while `b` is ready")],
    );
    assert_eq!(found[0].severity, Severity::Error);
}

#[test]
fn probes_that_never_pass_hold_up_others() {
    let probed = |field: &str, command: Value| {
        let mut sidecar = with("s", json!({"restartPolicy": "Always"}));
        sidecar[field] = json!({"exec": {"command": command}});
        json!({"initContainers": [sidecar], "containers": [c("a")]})
    };
    let none = json!({});
    let at = "spec.initContainers[0].startupProbe";
    check_plan(
        none.clone(),
        probed("startupProbe", json!(["false"])),
        &[("deadlock", at, "`a` waits for `s`")],
    );
    check_plan(
        none.clone(),
        probed("startupProbe", json!(["sh", "-c", "exit 1"])),
        &[("deadlock", at, "never passes")],
    );
    check_plan(none.clone(), probed("startupProbe", json!(["true"])), &[]);
    // Containers wait only for the startup of a native sidecar, never for its readiness.
    let alone =
        [("sidecar-probe", "spec.initContainers[0].readinessProbe", "do not wait for its readinessProbe")];
    check_plan(none.clone(), probed("readinessProbe", json!(["false"])), &alone);
    check_plan(depends("a: s ready"), probed("readinessProbe", json!(["x"])), &[]);
    let mut both = probed("readinessProbe", json!(["x"]));
    both["initContainers"][0]["startupProbe"] = json!({"exec": {"command": ["x"]}});
    check_plan(none, both, &[]);
    let at = "spec.initContainers[0].readinessProbe";
    check_plan(depends("a: s ready"), probed("readinessProbe", json!(["false"])), &[("deadlock", at, "`a`")]);
}

#[test]
fn restarts_and_ends_that_never_come() {
    let spec = json!({"initContainers": [c("i")], "containers": [c("a")]});
    check_plan(
        depends("a: i completed restart"),
        spec,
        &[("restart", DEPENDS_ON, "does not restart once it has completed")],
    );
    let own = json!({"containers": [c("a"), with("b", json!({"restartPolicy": "Always"}))]});
    check_plan(
        depends("b: fatal"),
        own,
        &[(
            "restart",
            "spec.containers[1].restartPolicy",
            "`b` is `fatal`, but it is restarted whenever it ends",
        )],
    );
    let two = |policy: &str| json!({"restartPolicy": policy, "containers": [c("a"), c("b")]});
    check_plan(
        depends("a: primary"),
        two("Always"),
        &[("restart", DEPENDS_ON, "`a` is `primary`, but it is restarted")],
    );
    check_plan(depends("a: primary"), two("Never"), &[]);
}

#[test]
fn a_deadline_before_the_first_start() {
    let delayed = |deadline: i64| {
        let probe = json!({"exec": {"command": ["x"]}, "initialDelaySeconds": 20});
        let slow = with("s", json!({"restartPolicy": "Always", "startupProbe": probe}));
        let hook = json!({"postStart": {"sleep": {"seconds": 10}}});
        let slower = with("t", json!({"restartPolicy": "Always", "lifecycle": hook}));
        json!({"activeDeadlineSeconds": deadline, "initContainers": [slow, slower], "containers": [c("a")]})
    };
    let at = "spec.activeDeadlineSeconds";
    check_plan(json!({}), delayed(31), &[]);
    check_plan(json!({}), delayed(30), &[("deadline", at, "`a` cannot start before 30 s have passed")]);
    check_plan(json!({}), delayed(15), &[("deadline", at, "`t` cannot start before 20 s")]);
}

#[test]
fn more_stages_than_the_grace_can_serve() {
    let chain = |grace: i64| {
        let sidecars: Vec<Value> =
            (0..3).map(|i| with(&format!("s{i}"), json!({"restartPolicy": "Always"}))).collect();
        let mut entries = vec![c("i0"), c("i1")];
        entries.extend(sidecars);
        json!({"terminationGracePeriodSeconds": grace, "initContainers": entries, "containers": [c("a")]})
    };
    let at = "spec.terminationGracePeriodSeconds";
    check_plan(json!({}), chain(8), &[]);
    let found = check_plan(
        json!({}),
        chain(7),
        &[("stop", at, "4 stages stop one after another within a grace period of 7 s")],
    );
    assert_eq!(found[0].hint.as_deref(), Some("raise terminationGracePeriodSeconds to 8 or more"));
    assert_eq!(found[0].related[0].0.to_string(), "spec.initContainers[2]");
    // With a grace period of zero everything is killed at once. A single stage always has enough time.
    check_plan(json!({}), chain(0), &[]);
    check_plan(json!({}), json!({"terminationGracePeriodSeconds": 1, "containers": [c("a")]}), &[]);
}

/// A Job's pod with its own work and these containers.
fn job_with(others: &[Value]) -> Value {
    let mut containers = vec![c("work")];
    containers.extend(others.iter().cloned());
    json!({"restartPolicy": "Never", "containers": containers})
}

#[test]
fn well_known_sidecars_that_are_not_marked_are_named() {
    let image = |name: &str, image: &str| json!({"name": name, "image": image});
    let positive = [
        c("istio-proxy"),
        c("linkerd-proxy"),
        c("cloud-sql-proxy"),
        c("vault-agent"),
        c("fluent-bit"),
        c("daprd"),
        c("envoy"),
        c("datadog-agent"),
        c("oauth2-proxy"),
        c("tailscale"),
        c("promtail"),
        c("telegraf"),
        c("jaeger-agent"),
        c("consul-dataplane"),
        c("otel-collector"),
        c("alloy"),
        c("amazon-cloudwatch-agent"),
        c("aws-otel-collector"),
        c("gke-gcsfuse-sidecar"),
        c("grafana-agent"),
        c("vector"),
        c("openvpn"),
        image("vpn", "qmcgaw/gluetun:v3"),
        image("proxy", "docker.io/istio/proxyv2:1.22"),
        image("mesh", "cr.l5d.io/linkerd/proxy@sha256:00"),
        image("sql", "gcr.io/cloudsql-docker/gce-proxy:1.33"),
        image("sql", "gcr.io/cloud-sql-connectors/cloud-sql-proxy:2"),
        image("logs", "localhost:5000/mirror/fluent/fluent-bit"),
        image("logs", "timberio/vector:0.40.0-debian"),
        image("agent", "datadog/agent:7"),
        image("collector", "otel/opentelemetry-collector-contrib:0.100.0"),
        image("bouncer", "bitnami/pgbouncer"),
        image("docker", "docker:dind"),
        image("daemon", "docker.io/library/docker:27.1-dind-rootless@sha256:00"),
        with(
            "secrets",
            json!({"image": "hashicorp/vault:1.17", "args": ["agent", "-config=/etc/vault.hcl"]}),
        ),
        with("secrets", json!({"image": "vault", "command": ["/bin/vault", "agent"]})),
        // The sidecar's own program, also in a script, makes it a sidecar.
        with(
            "vault-agent",
            json!({"command": ["/bin/sh", "-ec"], "args": ["echo $C | base64 -d > /c && vault agent -config=/c"]}),
        ),
        with(
            "mesh",
            json!({"image": "istio/proxyv2", "command": ["sh", "-c", "exec /usr/local/bin/pilot-agent proxy sidecar"]}),
        ),
        with("envoy", json!({"args": ["-c", "/etc/envoy.yaml", "--mode", "serve"]})),
        with("git-sync", json!({"env": [{"name": "GITSYNC_ONE_TIME", "value": "false"}]})),
        with("git-sync", json!({"args": ["--one-time=false"]})),
    ];
    for sidecar in positive {
        let name = sidecar["name"].as_str().unwrap().to_owned();
        for policy in ["Never", "OnFailure"] {
            let mut spec = job_with(std::slice::from_ref(&sidecar));
            spec["restartPolicy"] = json!(policy);
            let found = check_plan(
                json!({}),
                spec,
                &[(
                    "forgotten-sidecar",
                    "spec.containers[1].name",
                    "looks like a sidecar, but is not marked as one",
                )],
            );
            assert!(found[0].message.starts_with(&format!("`{name}` ")), "{}", found[0].message);
            let hint = found[0].hint.as_deref().unwrap();
            let line = format!("\n    outrigger.dev/sidecars: {name}\n");
            assert!(hint.contains(&line) && hint.ends_with("\n      restartPolicy: Always"), "{hint}");
        }
        // Either line of the hint fixes the finding.
        check_plan(json!({"outrigger.dev/sidecars": name}), job_with(std::slice::from_ref(&sidecar)), &[]);
        let mut native = sidecar.clone();
        native["restartPolicy"] = json!("Always");
        check_plan(
            json!({}),
            json!({"restartPolicy": "Never", "initContainers": [native], "containers": [c("work")]}),
            &[],
        );
    }
    let found = check_plan(
        json!({"outrigger.dev/sidecars": "other, "}),
        job_with(&[c("envoy"), c("other"), c("daprd")]),
        &[("forgotten-sidecar", "spec.containers[1].name", "`envoy` and `daprd` look like sidecars")],
    );
    assert!(found[0].hint.as_deref().unwrap().contains("outrigger.dev/sidecars: other, envoy, daprd\n"));
}

#[test]
fn sidecars_that_are_marked_or_are_the_work_itself_are_not_named() {
    let none = json!({});
    let mark = json!([{"name": "KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT", "value": "true"}]);
    check_plan(none.clone(), job_with(&[with("istio-proxy", json!({"env": mark}))]), &[]);
    check_plan(depends("istio-proxy: sidecar"), job_with(&[c("istio-proxy")]), &[]);
    check_plan(depends("work: primary"), job_with(&[c("istio-proxy")]), &[]);
    // A word of a script is not always a program.
    let script = json!({"command": ["sh", "-c", "python3 -m search --index vector"]});
    check_plan(none.clone(), job_with(&[with("vector", script)]), &[]);
    // The program is the pod's own work.
    check_plan(none.clone(), json!({"restartPolicy": "Never", "containers": [c("vault-agent")]}), &[]);
    check_plan(
        none.clone(),
        json!({"restartPolicy": "Never", "containers": [c("envoy"), c("fluentd")]}),
        &[],
    );
    // The pod does not complete.
    check_plan(none.clone(), json!({"containers": [c("web"), c("istio-proxy")]}), &[]);
    check_plan(
        none.clone(),
        json!({"restartPolicy": "Never", "containers": [with("web", json!({"restartPolicy": "Always"})), c("envoy")]}),
        &[],
    );
    // Another container ends the sidecar.
    let quits = json!({"command": ["sh", "-c", "work; curl -X POST localhost:15020/quitquitquit"]});
    let spec = json!({"restartPolicy": "Never", "containers": [with("work", quits), c("istio-proxy")]});
    check_plan(none.clone(), spec, &[]);
    check_plan(
        none.clone(),
        job_with(&[with("vault-agent", json!({"args": ["agent", "-exit-after-auth"]}))]),
        &[],
    );
    // The sidecar ends by itself.
    for (name, how) in [
        ("git-sync", json!({"args": ["--repo=r", "--one-time"]})),
        ("git-sync", json!({"args": ["--one-time=true"]})),
        ("git-sync", json!({"env": [{"name": "GITSYNC_ONE_TIME", "value": "true"}]})),
        ("git-sync", json!({"env": [{"name": "GIT_SYNC_ONE_TIME", "value": "1"}]})),
        ("envoy", json!({"args": ["--mode", "validate", "-c", "/etc/envoy.yaml"]})),
        ("envoy", json!({"command": ["envoy", "--mode=validate"]})),
        ("a", json!({"image": "vault", "args": ["agent", "-exit-after-auth"]})),
        ("a", json!({"image": "vault", "args": ["kv", "get", "agent"]})),
    ] {
        check_plan(none.clone(), job_with(&[with(name, how)]), &[]);
    }
    // One sidecar ends by itself, but another one does not.
    let once = with("git-sync", json!({"args": ["--one-time"]}));
    let found = [("forgotten-sidecar", "spec.containers[2].name", "`istio-proxy` looks like a sidecar")];
    check_plan(none.clone(), job_with(&[once, c("istio-proxy")]), &found);
    // A script replaces the program of the image.
    for script in ["envoy-config-test.sh", "apk add git; git clone r", "echo istio-proxy-is-up"] {
        let runs = json!({"image": "envoyproxy/envoy:v1.30", "command": ["sh", "-c", script]});
        check_plan(none.clone(), job_with(&[with("envoy", runs)]), &[]);
    }
    let builds = json!({"image": "docker:dind", "command": ["sh", "-c", "dockerd & docker build ."]});
    check_plan(none.clone(), job_with(&[with("build", builds)]), &[]);
    check_plan(none.clone(), job_with(&[json!({"name": "build", "image": "docker:27-cli"})]), &[]);
    // These names only look similar.
    for other in ["proxy", "agent", "my-envoy", "istio-proxy2"] {
        check_plan(none.clone(), job_with(&[c(other)]), &[]);
    }
    for image in ["vault", "me/proxy:1", "agent", "me/not-envoy", "localhost:5000/app:envoy", "nginx"] {
        check_plan(none.clone(), job_with(&[json!({"name": "a", "image": image})]), &[]);
    }
}

#[test]
fn endless_pre_stop_hooks_of_kep_sidecars() {
    let kep = json!({"outrigger.dev/sidecars": "mesh"});
    let hook = |hook: Value| json!({"lifecycle": {"preStop": hook}});
    let exec = |words: &[&str]| hook(json!({"exec": {"command": words}}));
    let pod = |hook: Value, grace: i64| json!({"terminationGracePeriodSeconds": grace, "containers": [c("app"), with("mesh", hook)]});
    let at = "spec.containers[1].lifecycle.preStop.exec.command";
    let slept = "spec.containers[1].lifecycle.preStop.sleep.seconds";
    let forever = "the preStop hook of sidecar `mesh` never ends";
    for (hook, path, says) in [
        (exec(&["sleep", "infinity"]), at, forever),
        (exec(&["/bin/sh", "-c", "sleep infinity"]), at, forever),
        (exec(&["tail", "-f", "/dev/null"]), at, forever),
        (exec(&["sh", "-c", "while true; do sleep 1; done"]), at, forever),
        (exec(&["sleep", "3600"]), at, "takes 3600 s"),
        (
            exec(&[
                "sh",
                "-c",
                "while [ $(netstat -plunt | grep tcp | grep -v envoy | wc -l | xargs) -ne 0 ]; do sleep 1; done",
            ]),
            at,
            "the preStop hook of sidecar `mesh` waits until the other containers have ended",
        ),
        (hook(json!({"sleep": {"seconds": 30}})), slept, "takes 30 s"),
    ] {
        let found = check_plan(kep.clone(), pod(hook.clone(), 30), &[("pre-stop", path, says)]);
        assert_eq!(found[0].severity, Severity::Warning);
        assert!(found[0].message.ends_with("uses up their grace period of 30 s"), "{}", found[0].message);
        // A hook that runs at its own turn delays no other container, and neither does a main's hook.
        let own = json!({"outrigger.dev/sidecars": "mesh", "outrigger.dev/pre-stop": "own-turn"});
        check_plan(own, pod(hook.clone(), 30), &[]);
        check_plan(json!({}), pod(hook, 30), &[]);
    }
    check_plan(kep.clone(), pod(exec(&["sleep", "5"]), 30), &[]);
    check_plan(kep, pod(exec(&["drain"]), 30), &[]);
}
