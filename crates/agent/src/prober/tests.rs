use super::*;
use crate::net::test_server::{GrpcAnswer, Server};
use outrigger_testkit::fake::{FakeRuntime, Script};
use serde_json::{Value, json};
use std::sync::Arc;

const TIMEOUT: Duration = Duration::from_millis(1_500);

async fn probe(server: &Server, probe: Value) -> Seen {
    let container = json!({"name": "c", "ports": [{"name": "web", "containerPort": server.port}]});
    let container: Container = serde_json::from_value(container).unwrap();
    let probe: Probe = serde_json::from_value(probe).unwrap();
    let runtime = FakeRuntime::new([]);
    attempt(&*runtime, &ContainerId("x".into()), &container, &probe, &server.reach(), TIMEOUT).await
}

#[tokio::test]
async fn http_answers_mean_what_section_6_2_says() {
    let server = Server::http().await;
    let port = server.port;
    let table = [
        ("/200", ProbeOutcome::Success, None),
        ("/204", ProbeOutcome::Success, None),
        ("/399", ProbeOutcome::Success, None),
        ("/404", ProbeOutcome::Failure, Some(format!("GET :{port}/404 answered 404"))),
        ("/503", ProbeOutcome::Failure, Some(format!("GET :{port}/503 answered 503"))),
        ("/redirect?to=/200", ProbeOutcome::Success, None),
        (
            "/redirect?to=503",
            ProbeOutcome::Failure,
            Some(format!("GET :{port}/redirect?to=503 answered 503")),
        ),
        ("/redirect?to=/loop", ProbeOutcome::Failure, Some("more than 10 redirects".into())),
        (
            "/redirect?to=http://elsewhere.example/",
            ProbeOutcome::Success,
            Some("leads to http://elsewhere.example/".into()),
        ),
        (
            "/redirect?to=//elsewhere.example/x",
            ProbeOutcome::Success,
            Some("leads to //elsewhere.example/x".into()),
        ),
        ("/big", ProbeOutcome::Success, None),
        ("/silent", ProbeOutcome::Failure, Some("no answer within 1.5s".into())),
        ("200", ProbeOutcome::Success, None),
        ("/bad path", ProbeOutcome::Error, Some("is not valid".into())),
    ];
    for (path, outcome, message) in table {
        let seen = probe(&server, json!({"httpGet": {"path": path, "port": "web"}})).await;
        assert_eq!(seen.outcome, outcome, "{path}: {seen:?}");
        match message {
            None => assert_eq!(seen.message, None, "{path}"),
            Some(text) => {
                let got = seen.message.unwrap();
                assert!(got.contains(&text), "{path}: {got}");
            }
        }
    }
    let same_host = format!("/redirect?to=http://127.0.0.1:{port}/200");
    assert_eq!(
        probe(&server, json!({"httpGet": {"path": same_host, "port": port}})).await.outcome,
        ProbeOutcome::Success
    );
}

#[tokio::test]
async fn headers_are_kubernetes_unless_overridden_r6_1() {
    let server = Server::http().await;
    probe(&server, json!({"httpGet": {"path": "/200", "port": server.port}})).await;
    let seen = server.last_headers();
    assert_eq!(seen["user-agent"], "kube-probe/1.36");
    assert_eq!(seen["accept"], "*/*");
    assert_eq!(seen["host"], format!("127.0.0.1:{}", server.port).as_str());
    let headers = json!([{"name": "Host", "value": "example.com"}, {"name": "X-Custom", "value": "1"}, {"name": "Accept", "value": "text/plain"}]);
    probe(&server, json!({"httpGet": {"path": "/200", "port": server.port, "httpHeaders": headers}})).await;
    let seen = server.last_headers();
    assert_eq!(
        (&seen["host"], &seen["x-custom"], &seen["accept"]),
        (&"example.com".parse().unwrap(), &"1".parse().unwrap(), &"text/plain".parse().unwrap())
    );
}

#[tokio::test]
async fn https_takes_any_certificate() {
    let server = Server::https().await;
    let port = server.port;
    let ask = |path: &str, scheme: &str| json!({"httpGet": {"path": path, "port": port, "scheme": scheme}});
    assert_eq!(probe(&server, ask("/200", "HTTPS")).await, success());
    let seen = probe(&server, ask("/500", "HTTPS")).await;
    assert_eq!(seen.message.unwrap(), format!("GET https://:{port}/500 answered 500"));
    assert_eq!(probe(&server, ask("/200", "HTTP")).await.outcome, ProbeOutcome::Failure);
}

#[tokio::test]
async fn nobody_there_is_a_failure() {
    let mut server = Server::http().await;
    server.close().await;
    let port = server.port;
    let table = [
        (json!({"httpGet": {"port": port}}), format!("GET :{port}/: connection refused")),
        (json!({"tcpSocket": {"port": port}}), format!("port {port}: connection refused")),
        (json!({"grpc": {"port": port}}), format!("gRPC health check on port {port}: connection refused")),
    ];
    for (handler, message) in table {
        assert_eq!(probe(&server, handler).await, failure(ProbeCause::Refused, message));
    }
}

#[tokio::test]
async fn a_port_that_listens_is_enough_for_tcp() {
    let server = Server::http().await;
    assert_eq!(probe(&server, json!({"tcpSocket": {"port": "web"}})).await, success());
    let host = json!({"tcpSocket": {"host": "localhost", "port": "web"}});
    assert_eq!(probe(&server, host).await.outcome, ProbeOutcome::Success);
    assert_eq!(probe(&server, json!({"tcpSocket": {"port": "nope"}})).await.outcome, ProbeOutcome::Error);
    assert_eq!(probe(&server, json!({})).await.outcome, ProbeOutcome::Error);
}

#[tokio::test]
async fn grpc_must_be_serving() {
    let table = [
        (GrpcAnswer::Status(1), ProbeOutcome::Success, ""),
        (GrpcAnswer::Status(2), ProbeOutcome::Failure, "not serving"),
        (GrpcAnswer::Status(3), ProbeOutcome::Failure, "service unknown"),
        (GrpcAnswer::Error(12), ProbeOutcome::Failure, "gRPC status 12"),
        (GrpcAnswer::Http(404), ProbeOutcome::Failure, "HTTP status 404"),
    ];
    for (answer, outcome, text) in table {
        let server = Server::grpc(answer).await;
        let seen = probe(&server, json!({"grpc": {"port": server.port, "service": "my.service"}})).await;
        assert_eq!(seen.outcome, outcome, "{answer:?}: {seen:?}");
        assert!(seen.message.unwrap_or_default().contains(text), "{answer:?}");
        assert_eq!(server.last_body(), b"\0\0\0\0\x0c\x0a\x0amy.service", "{answer:?}");
    }
}

async fn exec(script: Script, timeout: Duration) -> Seen {
    let runtime: Arc<FakeRuntime> = FakeRuntime::new([("c", script)]);
    let id = runtime.make("c").await;
    let container: Container =
        serde_json::from_value(json!({"name": "c", "env": [{"name": "V", "value": "expanded"}]})).unwrap();
    let probe: Probe = serde_json::from_value(json!({"exec": {"command": ["say", "$(V)"]}})).unwrap();
    let reach = Reach { netns: None, ip: std::net::Ipv4Addr::LOCALHOST.into() };
    attempt(&*runtime, &id, &container, &probe, &reach, timeout).await
}

#[tokio::test(start_paused = true)]
async fn commands_answer_with_their_exit_code() {
    let script = |code, ms| Script { exec: (code, Duration::from_millis(ms)), ..Script::default() };
    assert_eq!(exec(script(0, 10), TIMEOUT).await, success());
    let failed = failure(ProbeCause::ExitCode, "exit code 3: say expanded".to_owned());
    assert_eq!(exec(script(3, 10), TIMEOUT).await, failed);
    let late = failure(ProbeCause::TimedOut, "timed out after 1.5s".to_owned());
    assert_eq!(exec(script(0, 5_000), TIMEOUT).await, late);
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_cannot_be_made_is_an_error_after_three_tries_r6_12() {
    let runtime = FakeRuntime::new([]);
    let container: Container = serde_json::from_value(json!({"name": "c"})).unwrap();
    let probe: Probe = serde_json::from_value(json!({"exec": {"command": ["x"]}})).unwrap();
    let reach = Reach { netns: None, ip: std::net::Ipv4Addr::LOCALHOST.into() };
    let seen = attempt(&*runtime, &ContainerId("gone".into()), &container, &probe, &reach, TIMEOUT).await;
    assert_eq!(seen.outcome, ProbeOutcome::Error);
}
