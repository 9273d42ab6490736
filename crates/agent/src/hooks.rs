//! One run of a lifecycle hook.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, LifecycleHandler};
use outrigger_runtime::{ContainerId, ExecRequest, Runtime};

use crate::net::http::{Get, NoAnswer};
use crate::net::{Reach, brief, port};
use crate::text::excerpt;

/// Maximum number of output bytes kept.
const OUTPUT_MAX: usize = 1 << 10;

/// Timeout of hooks without a deadline.
const LIMIT_DEFAULT: Duration = Duration::from_secs(24 * 60 * 60);

const USER_AGENT: &str = "kube-lifecycle/1.36";

/// The result of a hook.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Ended {
    /// `None` on success, otherwise what failed.
    pub(crate) error: Option<String>,
    /// The hook's output, at most 1 KiB.
    pub(crate) output: String,
}

impl Ended {
    fn failed(error: String) -> Self {
        Ended { error: Some(error), output: String::new() }
    }
}

/// Runs a hook until it ends or `limit` passes. Dropping the future cancels it.
pub(crate) async fn run<R: Runtime>(
    runtime: &R,
    id: &ContainerId,
    container: &Container,
    handler: &LifecycleHandler,
    reach: &Reach,
    limit: Option<Duration>,
) -> Ended {
    if limit == Some(Duration::ZERO) {
        return Ended::failed("no time left in the grace period".into());
    }
    let wait = limit.unwrap_or(LIMIT_DEFAULT);
    if let Some(exec) = &handler.exec {
        let command = exec.command.clone().unwrap_or_default();
        return command_hook(runtime, id, command, limit).await;
    }
    let error = outside(container, handler, reach, wait).await;
    Ended { error, output: String::new() }
}

/// Runs an HTTP, TCP or sleep hook from this process against a pod's address.
///
/// # Errors
/// Returns what failed. Exec hooks always fail: only a runtime can run them.
pub async fn hook_from_here(
    container: &Container,
    handler: &LifecycleHandler,
    ip: std::net::IpAddr,
    limit: Duration,
) -> Result<(), String> {
    let reach = Reach { netns: None, ip };
    outside(container, handler, &reach, limit).await.map_or(Ok(()), Err)
}

/// Runs a hook that is not a command and returns its error.
async fn outside(
    container: &Container,
    handler: &LifecycleHandler,
    reach: &Reach,
    wait: Duration,
) -> Option<String> {
    if let Some(action) = &handler.http_get {
        match Get::new(container, action, USER_AGENT) {
            Ok(get) => http_hook(&get, reach, wait).await,
            Err(e) => Some(e),
        }
    } else if let Some(action) = &handler.tcp_socket {
        match port(container, &action.port) {
            Ok(port) => match reach.connect(action.host.as_deref(), port, wait).await {
                Ok(_) => None,
                Err(e) => Some(format!("port {port}: {}", brief(&e))),
            },
            Err(e) => Some(e),
        }
    } else if let Some(sleep) = &handler.sleep {
        let time = Duration::from_secs(u64::try_from(sleep.seconds).unwrap_or(0));
        tokio::time::sleep(time.min(wait)).await;
        (time > wait).then(|| format!("timed out after {wait:?}"))
    } else {
        Some("the hook has no handler; give it exec, httpGet or sleep".into())
    }
}

async fn command_hook<R: Runtime>(
    runtime: &R,
    id: &ContainerId,
    command: Vec<String>,
    limit: Option<Duration>,
) -> Ended {
    let request = ExecRequest { command, timeout: limit, output_limit: OUTPUT_MAX };
    match runtime.exec(id, request).await {
        Ok(done) => {
            let error = match (done.code, excerpt(&done.output)) {
                (Some(0), _) => None,
                (Some(code), Some(text)) => Some(format!("exit code {code}: {text}")),
                (Some(code), None) => Some(format!("exit code {code}")),
                (None, _) => Some(format!("timed out after {:?}", limit.unwrap_or_default())),
            };
            Ended { error, output: String::from_utf8_lossy(&done.output).into_owned() }
        }
        Err(e) => Ended::failed(e.to_string()),
    }
}

/// A status of 400 or above is a failure (G-42; differs: docs/internals/differences.md).
async fn http_hook(get: &Get, reach: &Reach, limit: Duration) -> Option<String> {
    match get.send(reach, limit).await {
        Ok(answer) if answer.status >= 400 => Some(format!("{} answered {}", get.shown(), answer.status)),
        Ok(_) => None,
        Err(NoAnswer::Question(e)) => Some(e),
        Err(NoAnswer::Silence(silence)) => Some(format!("{}: {}", get.shown(), silence.text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::test_server::Server;
    use outrigger_testkit::fake::{FakeRuntime, Script};
    use serde_json::{Value, json};
    use tokio::time::Instant;

    async fn hook(script: Script, port: u16, handler: Value, limit: Option<Duration>) -> Ended {
        let runtime = FakeRuntime::new([("c", script)]);
        let id = runtime.make("c").await;
        let container: Container =
            serde_json::from_value(json!({"name": "c", "ports": [{"name": "web", "containerPort": port}]}))
                .unwrap();
        let handler: LifecycleHandler = serde_json::from_value(handler).unwrap();
        let reach = Reach { netns: None, ip: std::net::Ipv4Addr::LOCALHOST.into() };
        run(&*runtime, &id, &container, &handler, &reach, limit).await
    }

    #[tokio::test]
    async fn http_hooks_must_be_answered_well_g42() {
        let server = Server::http().await;
        let port = server.port;
        let table = [
            ("/200", None),
            ("/302", None),
            ("/404", Some(format!("GET :{port}/404 answered 404"))),
            ("/500", Some(format!("GET :{port}/500 answered 500"))),
        ];
        for (path, error) in table {
            let handler = json!({"httpGet": {"path": path, "port": "web"}});
            let ended = hook(Script::default(), port, handler, None).await;
            assert_eq!(ended.error, error, "{path}");
        }
        assert_eq!(server.last_headers()["user-agent"], "kube-lifecycle/1.36");
        let silent = json!({"httpGet": {"path": "/silent", "port": "web"}});
        let ended = hook(Script::default(), port, silent, Some(Duration::from_millis(50))).await;
        assert_eq!(ended.error.unwrap(), format!("GET :{port}/silent: no answer within 50ms"));
        let tcp = json!({"tcpSocket": {"port": "web"}});
        assert_eq!(hook(Script::default(), port, tcp, None).await.error, None);
    }

    #[tokio::test(start_paused = true)]
    async fn commands_and_sleeps_end_in_time() {
        let script = |code, ms| Script { exec: (code, Duration::from_millis(ms)), ..Script::default() };
        let command = json!({"exec": {"command": ["some", "words"]}});
        let ended = hook(script(0, 5), 1, command.clone(), None).await;
        assert_eq!((ended.error, ended.output.as_str()), (None, "some words"));
        let ended = hook(script(2, 5), 1, command.clone(), None).await;
        assert_eq!(ended.error.unwrap(), "exit code 2: some words");
        let limit = Some(Duration::from_secs(3));
        assert_eq!(
            hook(script(0, 9_000), 1, command.clone(), limit).await.error.unwrap(),
            "timed out after 3s"
        );
        assert!(hook(script(0, 0), 1, command, Some(Duration::ZERO)).await.error.is_some());

        let began = Instant::now();
        assert_eq!(hook(Script::default(), 1, json!({"sleep": {"seconds": 2}}), None).await.error, None);
        assert_eq!(began.elapsed().as_secs(), 2);
        let late = hook(Script::default(), 1, json!({"sleep": {"seconds": 20}}), limit).await;
        assert_eq!(late.error.unwrap(), "timed out after 3s");
        assert_eq!(began.elapsed().as_secs(), 5);
        assert!(hook(Script::default(), 1, json!({}), None).await.error.is_some());
    }
}
