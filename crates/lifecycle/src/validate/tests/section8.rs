//! The rules of docs/internals/spec/kubelet-lifecycle.md section 8, one by one.

use serde_json::{Value, json};

use super::*;
use crate::source::{ContainerRef, List};

#[test]
fn r8_1_at_least_one_container() {
    check(vec![
        (json!({"containers": []}), vec![("R8.1", "spec.containers", "no containers")]),
        (
            json!({"containers": [], "initContainers": [{"name": "s", "image": "i:1", "restartPolicy": "Always"}]}),
            vec![("R8.1", "spec.containers", "no containers")],
        ),
    ]);
    let sidecars = json!({"containers": [], "initContainers": [{"name": "s", "image": "i:1", "restartPolicy": "Always"}]});
    assert_eq!(related(sidecars), ["spec.initContainers[0]"]);
}

#[test]
fn r8_2_names_are_unique_over_all_lists() {
    let of = |name: &str| json!({"name": name, "image": "i:1"});
    check(vec![
        (
            json!({"initContainers": [of("a"), of("b")], "containers": [of("a")]}),
            vec![("R8.2", "spec.containers[0].name", "two containers are named `a`")],
        ),
        (json!({"containers": [of("a"), of("a")]}), vec![("R8.2", "spec.containers[1].name", "`a`")]),
        (
            json!({"containers": [of("a")], "ephemeralContainers": [of("a")]}),
            vec![("R8.2", "spec.ephemeralContainers[0].name", "`a`")],
        ),
    ]);
    let both = json!({"initContainers": [of("a")], "containers": [of("a")]});
    assert_eq!(related(both), ["spec.initContainers[0].name"]);
}

#[test]
fn r8_3_and_r8_4_init_containers_have_no_hooks_and_probes() {
    let at = "spec.initContainers[0].lifecycle";
    check(vec![
        (
            init(json!({"lifecycle": {"preStop": {"sleep": {"seconds": 99}}}})),
            vec![("R8.3", at, "cannot have a lifecycle")],
        ),
        // R8.3 applies with the container's own policy too, and the content of the field is not checked.
        (
            init(json!({"restartPolicy": "OnFailure", "lifecycle": {"preStop": {}}})),
            vec![("R8.3", at, "`first`")],
        ),
        (
            init(json!({"livenessProbe": {}, "readinessProbe": {}, "startupProbe": {}})),
            vec![
                ("R8.4", "spec.initContainers[0].livenessProbe", "cannot have a livenessProbe"),
                ("R8.4", "spec.initContainers[0].readinessProbe", "cannot have a readinessProbe"),
                ("R8.4", "spec.initContainers[0].startupProbe", "cannot have a startupProbe"),
            ],
        ),
        (
            init(json!({"restartPolicy": "Always", "lifecycle": {"preStop": {"sleep": {"seconds": 1}}},
                "livenessProbe": {"tcpSocket": {"port": 1}}})),
            vec![],
        ),
    ]);
    let own = init(json!({"restartPolicy": "Never", "lifecycle": {"stopSignal": "SIGINT"}}));
    assert_eq!(related(own.clone()), ["spec.initContainers[0].restartPolicy"]);
    assert!(hint(own).contains("restartPolicy: Always"));
}

#[test]
fn a_lifecycle_type_on_an_init_container_is_left_to_the_kep_dialect() {
    let mut input = pod(init(json!({"lifecycle": {}})));
    let place = ContainerRef { list: List::Init, index: 0 };
    input.lifecycle_types.insert(place, "Sidecar".to_owned());
    assert_findings("type only", &validate(&input, &FeatureGates::default()), &[]);
}

#[test]
fn r8_5_to_r8_13_restart_policies_and_rules() {
    let rule = |codes: Value| json!([{"action": "Restart", "exitCodes": codes}]);
    let rules = "spec.containers[0].restartPolicyRules";
    let good = json!({"operator": "In", "values": [1]});
    let many: Vec<i32> = (0..256).collect();
    check(vec![
        (
            init(json!({"restartPolicy": "always"})),
            vec![("R8.5", "spec.initContainers[0].restartPolicy", "`always`")],
        ),
        (
            app(json!({"restartPolicy": "Sometimes"})),
            vec![("R8.5", "spec.containers[0].restartPolicy", "`Sometimes`")],
        ),
        (
            app(json!({"restartPolicyRules": rule(good.clone())})),
            vec![("R8.6", "spec.containers[0].restartPolicy", "no restartPolicy of its own")],
        ),
        (
            app(
                json!({"restartPolicy": "Never", "restartPolicyRules": vec![rule(good.clone())[0].clone(); 21]}),
            ),
            vec![("R8.7", rules, "21 restart rules")],
        ),
        (
            app(
                json!({"restartPolicy": "Never", "restartPolicyRules": [{"action": "Reboot", "exitCodes": good}]}),
            ),
            vec![("R8.8", &*format!("{rules}[0].action").leak(), "`Reboot`")],
        ),
        (
            app(json!({"restartPolicy": "Never", "restartPolicyRules": [{"action": "Restart"}]})),
            vec![("R8.9", &*format!("{rules}[0].exitCodes").leak(), "needs exitCodes")],
        ),
        (
            app(
                json!({"restartPolicy": "Never", "restartPolicyRules": rule(json!({"operator": "Is", "values": [1]}))}),
            ),
            vec![("R8.10", &*format!("{rules}[0].exitCodes.operator").leak(), "`Is`")],
        ),
        (
            app(
                json!({"restartPolicy": "Never", "restartPolicyRules": rule(json!({"operator": "NotIn", "values": many}))}),
            ),
            vec![("R8.11", &*format!("{rules}[0].exitCodes.values").leak(), "256 exit codes")],
        ),
        (
            app(
                json!({"restartPolicy": "Never", "restartPolicyRules": rule(json!({"operator": "In", "values": [1, 300]}))}),
            ),
            vec![("R8.11", &*format!("{rules}[0].exitCodes.values[1]").leak(), "code 300")],
        ),
    ]);
    assert_eq!(hint(init(json!({"restartPolicy": "always"}))), "did you mean `Always`?");
}

#[test]
fn r8_5_r8_8_r8_12_r8_13_with_the_gates_off() {
    let rules = json!([{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [1]}}]);
    let both_off = FeatureGates {
        container_restart_rules: false,
        restart_all_containers: false,
        ..FeatureGates::default()
    };
    let all_off = FeatureGates { restart_all_containers: false, ..FeatureGates::default() };
    let no_sidecars = FeatureGates { sidecar_containers: false, ..FeatureGates::default() };
    let table: Vec<(FeatureGates, Value, Vec<Expected>)> = vec![
        (both_off, init(json!({"restartPolicy": "Always"})), vec![]),
        (
            no_sidecars,
            init(json!({"restartPolicy": "Always"})),
            vec![(
                "SidecarContainers",
                "spec.initContainers[0].restartPolicy",
                "the feature gate SidecarContainers is off",
            )],
        ),
        (no_sidecars, init(json!({"restartPolicy": "Never"})), vec![]),
        (no_sidecars, app(json!({"restartPolicy": "Always"})), vec![]),
        (
            both_off,
            init(json!({"restartPolicy": "Never"})),
            vec![("R8.5", "spec.initContainers[0].restartPolicy", "`Never`")],
        ),
        (
            both_off,
            app(json!({"restartPolicy": "Never"})),
            vec![("R8.13", "spec.containers[0].restartPolicy", "its own")],
        ),
        (
            both_off,
            app(json!({"restartPolicyRules": rules})),
            vec![("R8.13", "spec.containers[0].restartPolicyRules", "switched off")],
        ),
        (
            all_off,
            init(json!({"restartPolicy": "Always", "restartPolicyRules": rules})),
            vec![
                ("R8.12", "spec.initContainers[0].restartPolicyRules", "sidecar `first`"),
                ("R8.8", "spec.initContainers[0].restartPolicyRules[0].action", "switched off"),
            ],
        ),
    ];
    for (gates, spec, expected) in table {
        assert_findings(&spec.to_string(), &validate(&pod(spec.clone()), &gates), &expected);
    }
}

#[test]
fn r8_14_to_r8_17_numbers_of_probes() {
    let with = |field: &str, number: i64| {
        let mut probe = json!({"exec": {"command": ["true"]}});
        probe[field] = json!(number);
        probe
    };
    let startup = "spec.containers[0].startupProbe";
    let mut rows = vec![
        (
            app(json!({"startupProbe": with("successThreshold", 2)})),
            vec![("R8.14", "spec.containers[0].startupProbe.successThreshold", "startup probe")],
        ),
        (
            app(json!({"livenessProbe": with("successThreshold", 3)})),
            vec![("R8.14", "spec.containers[0].livenessProbe.successThreshold", "3")],
        ),
        (app(json!({"readinessProbe": with("successThreshold", 3)})), vec![]),
        (
            app(json!({"readinessProbe": with("terminationGracePeriodSeconds", 3)})),
            vec![("R8.15", "spec.containers[0].readinessProbe.terminationGracePeriodSeconds", "no grace")],
        ),
        (
            app(json!({"livenessProbe": with("terminationGracePeriodSeconds", 0)})),
            vec![("R8.16", "spec.containers[0].livenessProbe.terminationGracePeriodSeconds", "not 0")],
        ),
    ];
    for field in
        ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"]
    {
        // Zero means the default (section 6.1).
        rows.push((app(json!({"startupProbe": with(field, 0)})), vec![]));
        let path: &'static str = format!("{startup}.{field}").leak();
        rows.push((app(json!({"startupProbe": with(field, -1)})), vec![("R8.17", path, "-1 is negative")]));
    }
    check(rows);
}

#[test]
fn r8_18_exactly_one_handler() {
    let probe = "spec.containers[0].livenessProbe";
    check(vec![
        (app(json!({"livenessProbe": {}})), vec![("R8.18", probe, "no handler")]),
        (
            app(json!({"lifecycle": {"preStop": {}}})),
            vec![("R8.18", "spec.containers[0].lifecycle.preStop", "no handler")],
        ),
        (
            app(json!({"lifecycle": {"postStart": {}}})),
            vec![("R8.18", "spec.containers[0].lifecycle.postStart", "no handler")],
        ),
        (
            app(
                json!({"livenessProbe": {"grpc": {"port": 1}, "exec": {"command": ["a"]}, "tcpSocket": {"port": 1}}}),
            ),
            vec![
                ("R8.18", "spec.containers[0].livenessProbe.grpc", "two handlers, exec and grpc"),
                ("R8.18", "spec.containers[0].livenessProbe.tcpSocket", "two handlers, exec and tcpSocket"),
            ],
        ),
        (
            app(json!({"lifecycle": {"preStop": {"sleep": {"seconds": 1}, "exec": {"command": ["a"]}}}})),
            vec![("R8.18", "spec.containers[0].lifecycle.preStop.sleep", "two handlers, exec and sleep")],
        ),
    ]);
    assert!(hint(app(json!({"livenessProbe": {}}))).contains("`grpc`"));
    assert!(hint(app(json!({"lifecycle": {"preStop": {}}}))).contains("`sleep`"));
}

#[test]
fn r8_19_to_r8_21_handlers() {
    let http = |field: &str, value: Value| {
        let mut get = json!({"port": 80, "path": "/"});
        get[field] = value;
        app(json!({"livenessProbe": {"httpGet": get}}))
    };
    check(vec![
        (
            app(json!({"livenessProbe": {"exec": {"command": []}}})),
            vec![("R8.19", "spec.containers[0].livenessProbe.exec.command", "empty")],
        ),
        (
            app(json!({"lifecycle": {"postStart": {"exec": {}}}})),
            vec![("R8.19", "spec.containers[0].lifecycle.postStart.exec.command", "empty")],
        ),
        (
            http("path", json!("")),
            vec![("R8.20", "spec.containers[0].livenessProbe.httpGet.path", "means `/`")],
        ),
        (http("port", json!(0)), vec![("R8.20", "spec.containers[0].livenessProbe.httpGet.port", "port 0")]),
        (
            http("port", json!(65536)),
            vec![("R8.20", "spec.containers[0].livenessProbe.httpGet.port", "65536")],
        ),
        (
            http("port", json!("80")),
            vec![("R8.20", "spec.containers[0].livenessProbe.httpGet.port", "must contain a letter")],
        ),
        (
            http("scheme", json!("http")),
            vec![("R8.20", "spec.containers[0].livenessProbe.httpGet.scheme", "`http`")],
        ),
        (
            http("httpHeaders", json!([{"name": "Host", "value": "x"}, {"name": "a b", "value": "x"}])),
            vec![("R8.20", "spec.containers[0].livenessProbe.httpGet.httpHeaders[1].name", "`a b`")],
        ),
        (
            app(json!({"livenessProbe": {"tcpSocket": {"port": -1}}})),
            vec![("R8.21", "spec.containers[0].livenessProbe.tcpSocket.port", "-1")],
        ),
        (
            app(json!({"livenessProbe": {"grpc": {"port": 70000}}})),
            vec![("R8.21", "spec.containers[0].livenessProbe.grpc.port", "70000")],
        ),
    ]);
    assert_eq!(hint(http("port", json!("80"))), "write the number without quotes: 80");
    assert_eq!(hint(http("scheme", json!("http"))), "did you mean `HTTP`?");
}

#[test]
fn r6_1_named_ports_are_the_containers_own() {
    let probe = |port: &str| json!({"readinessProbe": {"tcpSocket": {"port": port}}, "ports": [{"name": "http", "containerPort": 80}]});
    check(vec![
        (app(probe("http")), vec![]),
        (
            app(probe("htpp")),
            vec![("R6.1", "spec.containers[0].readinessProbe.tcpSocket.port", "no port named `htpp`")],
        ),
    ]);
    assert_eq!(hint(app(probe("htpp"))), "did you mean `http`?");
    assert!(hint(app(probe("metrics"))).contains("add the port"));
    let mut elsewhere = app(probe("metrics"));
    elsewhere["initContainers"] = json!([{"name": "s", "image": "i:1", "restartPolicy": "Always", "ports": [{"name": "metrics", "containerPort": 90}]}]);
    assert_eq!(related(elsewhere.clone()), ["spec.initContainers[0].ports"]);
    assert!(hint(elsewhere).contains("write the number"));
}

#[test]
fn r8_22_sleep_fits_the_grace() {
    let sleep = |hook: &str, seconds: i64, grace: Option<i64>| {
        let mut lifecycle = json!({});
        lifecycle[hook] = json!({"sleep": {"seconds": seconds}});
        let mut spec = app(json!({"lifecycle": lifecycle}));
        if let Some(grace) = grace {
            spec["terminationGracePeriodSeconds"] = json!(grace);
        }
        spec
    };
    let at = "spec.containers[0].lifecycle.preStop.sleep.seconds";
    check(vec![
        (sleep("preStop", 0, Some(5)), vec![]),
        (sleep("preStop", 5, Some(5)), vec![]),
        (
            sleep("preStop", 6, Some(5)),
            vec![("R8.22", at, "sleeps 6 s, longer than the pod's grace period of 5 s")],
        ),
        (sleep("preStop", 31, None), vec![("R8.22", at, "grace period of 30 s")]),
        (sleep("preStop", -1, None), vec![("R8.22", at, "-1")]),
        (
            sleep("postStart", 31, None),
            vec![("R8.22", "spec.containers[0].lifecycle.postStart.sleep.seconds", "31 s")],
        ),
    ]);
    assert_eq!(related(sleep("preStop", 6, Some(5))), ["spec.terminationGracePeriodSeconds"]);
}

#[test]
fn r8_23_stop_signals() {
    let signal = |name: &str| {
        let mut spec = app(json!({"lifecycle": {"stopSignal": name}}));
        spec["os"] = json!({"name": "linux"});
        spec
    };
    let at = "spec.containers[0].lifecycle.stopSignal";
    let mut rows: Vec<(Value, Vec<Expected>)> =
        ["SIGUSR1", "SIGRTMIN", "SIGRTMIN+15", "SIGRTMAX-14", "SIGRTMAX"]
            .into_iter()
            .map(|good| (signal(good), vec![]))
            .collect();
    for bad in ["TERM", "SIGRTMIN+16", "SIGRTMAX-15", "SIGRTMIN+0", "9", ""] {
        rows.push((signal(bad), vec![("R8.23", at, "is not a signal")]));
    }
    rows.push((app(json!({"lifecycle": {"stopSignal": "SIGINT"}})), vec![("R8.23", at, "names its os")]));
    check(rows);
    assert_eq!(hint(signal("SIGUSR3")), "did you mean `SIGUSR1`?");
    let off = FeatureGates { container_stop_signals: false, ..FeatureGates::default() };
    assert_findings("gate off", &validate(&pod(signal("SIGINT")), &off), &[("R8.23", at, "switched off")]);
}

#[test]
fn r8_24_and_r8_25_resize_policies() {
    let resize = |policy: &str| json!([{"resourceName": "cpu", "restartPolicy": policy}]);
    let mut never = app(json!({"resizePolicy": resize("RestartContainer")}));
    never["restartPolicy"] = json!("Never");
    check(vec![
        (
            init(json!({"resizePolicy": resize("RestartContainer")})),
            vec![
                ("ignored", "spec.initContainers[0].resizePolicy", "no effect"),
                ("R8.24", "spec.initContainers[0].resizePolicy[0].restartPolicy", "init container"),
            ],
        ),
        (
            init(json!({"restartPolicy": "Always", "resizePolicy": resize("RestartContainer")})),
            vec![("ignored", "spec.initContainers[0].resizePolicy", "no effect")],
        ),
        (
            never,
            vec![
                ("ignored", "spec.containers[0].resizePolicy", "no effect"),
                ("R8.25", "spec.containers[0].resizePolicy[0].restartPolicy", "never restarts"),
            ],
        ),
    ]);
}

#[test]
fn r8_26_and_g_41_host_ports() {
    let of = |name: &str, ports: Value| json!({"name": name, "image": "i:1", "ports": ports});
    let sidecar = |name: &str, ports: Value| {
        let mut c = of(name, ports);
        c["restartPolicy"] = json!("Always");
        c
    };
    let host = |container: i32, host: i32| json!([{"containerPort": container, "hostPort": host}]);
    check(vec![
        (
            json!({"containers": [of("a", host(1, 80)), of("b", host(2, 80))]}),
            vec![(
                "R8.26",
                "spec.containers[1].ports[0].hostPort",
                "containers `a` and `b` both ask for host port 80/TCP",
            )],
        ),
        // The API server does not detect these three.
        (
            json!({"initContainers": [sidecar("s", host(1, 80))], "containers": [of("a", host(2, 80))]}),
            vec![("G-41", "spec.containers[0].ports[0].hostPort", "`s` and `a`")],
        ),
        (
            json!({"initContainers": [sidecar("s", host(1, 80)), sidecar("t", host(2, 80))], "containers": [of("a", json!([]))]}),
            vec![("G-41", "spec.initContainers[1].ports[0].hostPort", "`s` and `t`")],
        ),
        // The init container has exited before the others listen.
        (json!({"initContainers": [of("i", host(1, 80))], "containers": [of("a", host(2, 80))]}), vec![]),
        (
            json!({"containers": [of("a", json!([{"containerPort": 1, "hostPort": 80}, {"containerPort": 2, "hostPort": 80}]))]}),
            vec![("R8.26", "spec.containers[0].ports[1].hostPort", "asks twice")],
        ),
        // Ports with different protocols or addresses do not conflict.
        (
            json!({"containers": [of("a", json!([
                {"containerPort": 1, "hostPort": 80}, {"containerPort": 2, "hostPort": 80, "protocol": "UDP"}]))]}),
            vec![],
        ),
        (
            json!({"containers": [of("a", json!([
                {"containerPort": 1, "hostPort": 80, "hostIP": "10.0.0.1"}, {"containerPort": 2, "hostPort": 80, "hostIP": "10.0.0.2"}]))]}),
            vec![],
        ),
        (
            json!({"containers": [of("a", json!([
                {"containerPort": 1, "hostPort": 80, "hostIP": "0.0.0.0"}, {"containerPort": 2, "hostPort": 80, "hostIP": "10.0.0.2"}]))]}),
            vec![("R8.26", "spec.containers[0].ports[1].hostPort", "asks twice")],
        ),
        // The ports are not on the host, but in the same pod network.
        (
            json!({"containers": [of("a", json!([{"containerPort": 80}])), of("b", json!([{"containerPort": 80}]))]}),
            vec![("port", "spec.containers[1].ports[0].containerPort", "only one can listen")],
        ),
    ]);
    let clash = json!({"containers": [of("a", host(1, 80)), of("b", host(2, 80))]});
    assert_eq!(related(clash), ["spec.containers[0].ports[0].hostPort"]);
}

#[test]
fn r8_27_and_r8_28_grace_and_policy_of_the_pod() {
    check(vec![
        (spec(json!({"terminationGracePeriodSeconds": 0})), vec![]),
        (
            spec(json!({"terminationGracePeriodSeconds": -5})),
            vec![("R8.27", "spec.terminationGracePeriodSeconds", "-5 is negative; 1 is used instead")],
        ),
        (spec(json!({"restartPolicy": "Onfailure"})), vec![("R8.28", "spec.restartPolicy", "`Onfailure`")]),
    ]);
    assert_eq!(hint(spec(json!({"restartPolicy": "Onfailure"}))), "did you mean `OnFailure`?");
    assert_eq!(hint(spec(json!({"restartPolicy": "Maybe"}))), "use `Always`, `OnFailure` or `Never`");
}

#[test]
fn r8_29_ephemeral_containers() {
    let mut with = app(json!({}));
    with["ephemeralContainers"] = json!([{
        "name": "d", "image": "i:1", "lifecycle": {"preStop": {}}, "livenessProbe": {}, "readinessProbe": {}, "startupProbe": {},
        "ports": [{"containerPort": 0}], "resources": {"limits": {"bad": "x"}}, "restartPolicy": "Sometimes",
        "restartPolicyRules": [{"action": "x"}],
    }]);
    let fields = [
        "lifecycle",
        "livenessProbe",
        "ports",
        "readinessProbe",
        "resources",
        "restartPolicy",
        "restartPolicyRules",
        "startupProbe",
    ];
    let expected: Vec<Expected> =
        fields.iter().map(|f| ("R8.29", &*format!("spec.ephemeralContainers[0].{f}").leak(), *f)).collect();
    let mut target = app(json!({}));
    target["ephemeralContainers"] = json!([{"name": "d", "image": "i:1", "targetContainerName": "ap"}]);
    check(vec![
        (with, expected),
        (
            target.clone(),
            vec![("name", "spec.ephemeralContainers[0].targetContainerName", "`ap` does not exist")],
        ),
    ]);
    assert_eq!(hint(target), "did you mean `app`?");
}

#[test]
fn r8_32_jobs() {
    let job = |policy: Option<&str>| {
        let mut spec = app(json!({}));
        if let Some(policy) = policy {
            spec["restartPolicy"] = json!(policy);
        }
        pod(spec)
    };
    let at = "spec.restartPolicy";
    assert_findings("never", &validate_job(&job(Some("Never")), false), &[]);
    assert_findings("on failure", &validate_job(&job(Some("OnFailure")), false), &[]);
    assert_findings("always", &validate_job(&job(Some("Always")), false), &[("R8.32", at, "`Always`")]);
    assert_findings("default", &validate_job(&job(None), false), &[("R8.32", at, "`Always`")]);
    assert_findings(
        "policy",
        &validate_job(&job(Some("OnFailure")), true),
        &[("R8.32", at, "podFailurePolicy")],
    );
    assert_findings("policy never", &validate_job(&job(Some("Never")), true), &[]);
}

#[test]
fn r7_1_tcp_hooks_work_here_only() {
    let hook = app(json!({"lifecycle": {"preStop": {"tcpSocket": {"port": 1}}}}));
    check(vec![(hook, vec![("R7.1", "spec.containers[0].lifecycle.preStop.tcpSocket", "on a kubelet")])]);
}
