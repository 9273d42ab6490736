//! Tests network probes of real servers at the pod's address.

use serde_json::{Value, json};

use crate::run::{Bench, Run, Test};
use crate::{pod, server, with};
use rustix::process::Signal;

pub(crate) const ALL: &[(&str, Test)] = &[
    ("grpc_probes_ask_a_health_service", grpc_probes_ask_a_health_service),
    ("https_probes_take_any_certificate", https_probes_take_any_certificate),
    ("http_probes_send_what_is_written", http_probes_send_what_is_written),
    ("tcp_probes_find_named_ports", tcp_probes_find_named_ports),
];

const PRIVATE: [&str; 2] = ["--network", "private"];

/// Runs a pod of servers until each has the expected readiness, then stops it.
fn until_ready(bench: &Bench, name: &str, spec: Value, ready: &[&str], unready: &[(&str, &str)]) {
    let mut run = Run::start(bench, name, &pod("servers", spec), &PRIVATE);
    for container in ready {
        run.wait_for(&format!("{container} to be ready"), |run| {
            run.event(json!({"event": "ready", "container": container})).is_some()
        });
    }
    for (container, why) in unready {
        run.wait_for(&format!("{container} to say {why:?}"), |run| {
            run.events().iter().any(|e| {
                e["event"] == "probe"
                    && e["outcome"] == "failure"
                    && e["container"] == *container
                    && e["message"].as_str().is_some_and(|m| m.contains(why))
            })
        });
        assert_eq!(run.event(json!({"event": "ready", "container": container})), None, "{}", run.account());
    }
    run.signal(Signal::TERM);
    assert_eq!(run.end(), 143, "{}", run.account());
}

fn grpc_probes_ask_a_health_service(bench: &Bench, name: &str) {
    let server = |name: &str, port: u16, service: Option<&str>, asked: u16| {
        let probe =
            json!({"grpc": {"port": asked, "service": service}, "periodSeconds": 1, "timeoutSeconds": 5});
        with(server::container(name, "grpc", port), json!({"readinessProbe": probe}))
    };
    let spec = json!({
        "volumes": [server::volume()],
        "containers": [
            server("whole", 50051, None, 50051),
            server("one", 50052, Some(server::UP), 50052),
            server("down", 50053, Some(server::DOWN), 50053),
            server("unknown", 50054, Some("no-such-service"), 50054),
            server("deaf", 50055, None, 50056),
        ],
    });
    let unready =
        [("down", "not serving"), ("unknown", "gRPC status 5"), ("deaf", "port 50056: connection refused")];
    until_ready(bench, name, spec, &["whole", "one"], &unready);
}

fn https_probes_take_any_certificate(bench: &Bench, name: &str) {
    let key = include_str!("../../../agent/src/net/testdata/key.pem");
    let cert = include_str!("../../../agent/src/net/testdata/cert.pem");
    let server = |name: &str, port: u16, probe: Value| {
        json!({
            "name": name, "image": "rootfs:/",
            "command": ["openssl", "s_server", "-accept", port.to_string(), "-cert", "/tls/cert.pem",
                "-key", "/tls/key.pem", "-www", "-quiet"],
            "ports": [{"name": format!("{name}-tls"), "containerPort": port}],
            "volumeMounts": [{"name": "tls", "mountPath": "/tls"}],
            "readinessProbe": {"httpGet": probe, "periodSeconds": 1, "timeoutSeconds": 5},
        })
    };
    let tls = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "tls"},
        "stringData": {"cert.pem": cert, "key.pem": key}});
    let spec = json!({
        "volumes": [{"name": "tls", "secret": {"secretName": "tls"}}],
        "containers": [
            server("good", 8443, json!({"scheme": "HTTPS", "port": "good-tls", "path": "/"})),
            server("plain", 8444, json!({"scheme": "HTTP", "port": 8444, "path": "/"})),
        ],
    });
    let mut run = Run::start(bench, name, &crate::list(&[tls, pod("servers", spec)]), &PRIVATE);
    run.wait_for("good to be ready", |run| {
        run.event(json!({"event": "ready", "container": "good"})).is_some()
    });
    run.wait_for("plain to fail", |run| {
        run.event(json!({"event": "probe", "outcome": "failure", "container": "plain"})).is_some()
    });
    assert_eq!(run.event(json!({"event": "ready", "container": "plain"})), None, "{}", run.account());
    run.signal(Signal::TERM);
    assert_eq!(run.end(), 143, "{}", run.account());
}

fn http_probes_send_what_is_written(bench: &Bench, name: &str) {
    // Answers 200 to correct requests only.
    let script = r#"mkdir -p /tmp/www/cgi-bin
cat >/tmp/www/cgi-bin/ask <<'END'
#!/bin/sh
status=503
[ "$HTTP_X_TEAM" = "blue, green" ] && [ "$HTTP_USER_AGENT" = "$AGENT" ] && [ "$QUERY_STRING" = "deep=1&x=%20" ] \
  && [ "$HTTP_HOST" = "$EXPECTED_HOST" ] && status=200
echo "team=$HTTP_X_TEAM agent=$HTTP_USER_AGENT query=$QUERY_STRING host=$HTTP_HOST" >&2
printf 'Status: %s x\r\nContent-Type: text/plain\r\n\r\nbody' $status
END
chmod +x /tmp/www/cgi-bin/ask
exec httpd -f -vv -p $LISTEN -h /tmp/www"#;
    let server = |name: &str, listen: &str, host: &str, agent: &str, get: Value| {
        let get = with(json!({"path": "/cgi-bin/ask?deep=1&x=%20"}), get);
        with(
            bench.container(name, script),
            json!({
                "env": [
                    {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                    {"name": "LISTEN", "value": listen}, {"name": "EXPECTED_HOST", "value": host},
                    {"name": "AGENT", "value": agent},
                ],
                "ports": [{"name": "web", "containerPort": 8080}],
                "readinessProbe": {"httpGet": get, "periodSeconds": 1, "timeoutSeconds": 5},
            }),
        )
    };
    let team = json!({"name": "X-Team", "value": "blue, green"});
    let spec = json!({"containers": [
        server("named", "$(IP):8080", "$(IP):8080", "kube-probe/1.36", json!({"port": "web", "httpHeaders": [team]})),
        server("local", "127.0.0.1:8081", "shop.example", "me", json!({"port": 8081, "host": "127.0.0.1",
            "httpHeaders": [team, {"name": "Host", "value": "shop.example"}, {"name": "User-Agent", "value": "me"}]})),
        server("wrong", "8082", "", "", json!({"port": 8082})),
        // The server listens only on loopback, not at the pod's address.
        server("hidden", "127.0.0.1:8083", "", "", json!({"port": 8083})),
    ]});
    let unready = [("wrong", "answered 503"), ("hidden", "connection refused")];
    until_ready(bench, name, spec, &["named", "local"], &unready);
}

fn tcp_probes_find_named_ports(bench: &Bench, name: &str) {
    let server = |name: &str, port: u16, socket: Value| {
        with(
            bench.container(name, &format!("exec httpd -f -p {port}")),
            json!({
                "ports": [{"name": "in", "containerPort": port}],
                "readinessProbe": {"tcpSocket": socket, "periodSeconds": 1},
            }),
        )
    };
    let spec = json!({"containers": [
        server("named", 9001, json!({"port": "in"})),
        server("hosted", 9002, json!({"port": 9002, "host": "127.0.0.1"})),
        server("nobody", 9003, json!({"port": 9004})),
    ]});
    until_ready(bench, name, spec, &["named", "hosted"], &[("nobody", "port 9004: connection refused")]);
}
