//! One run of a lifecycle hook.

use std::io;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, LifecycleHandler};
use outrigger_runtime::{ContainerId, ExecRequest, Runtime, RuntimeError};

use crate::net::http::{Get, NoAnswer, RequestError};
use crate::net::{PortError, Reach, brief, port};
use crate::text::excerpt;

/// Maximum number of output bytes kept.
const OUTPUT_MAX: usize = 1 << 10;

/// Timeout of hooks without a deadline.
const LIMIT_DEFAULT: Duration = Duration::from_secs(24 * 60 * 60);

const USER_AGENT: &str = "kube-lifecycle/1.36";

/// Why a hook failed.
#[derive(Debug, thiserror::Error)]
pub enum HookError {
    /// The grace period has ended.
    #[error("no time left in the grace period")]
    NoTimeLeft,
    /// Its HTTP request is invalid.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// Its port does not exist.
    #[error(transparent)]
    Port(#[from] PortError),
    /// Nothing accepts connections at its port.
    #[error("port {port}: {}", brief(source))]
    Connect {
        /// The port.
        port: u16,
        /// The kernel's error.
        source: io::Error,
    },
    /// The server answered with an error.
    #[error("{request} answered {status}")]
    Status {
        /// The request as messages show it, such as `GET :8080/path`.
        request: String,
        /// The HTTP status, at least 400.
        status: u16,
    },
    /// The server did not answer.
    #[error("{request}: {detail}")]
    NoAnswer {
        /// The request as messages show it, such as `GET :8080/path`.
        request: String,
        /// What went wrong.
        detail: String,
    },
    /// Its command failed.
    #[error("exit code {code}{}", output.as_deref().map(|text| format!(": {text}")).unwrap_or_default())]
    ExitCode {
        /// The exit code, which is not zero.
        code: i32,
        /// The beginning of the command's output.
        output: Option<String>,
    },
    /// It took too long.
    #[error("timed out after {0:?}")]
    TimedOut(Duration),
    /// It has no handler.
    #[error("the hook has no handler; give it exec, httpGet or sleep")]
    NoHandler,
    /// The runtime cannot execute its command.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
}

/// The result of a hook.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Ended {
    /// What failed; `None` on success.
    pub(crate) error: Option<String>,
    /// The hook's output, at most 1 KiB.
    pub(crate) output: String,
}

impl Ended {
    fn failed(error: &HookError) -> Self {
        Ended { error: Some(error.to_string()), output: String::new() }
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
        return Ended::failed(&HookError::NoTimeLeft);
    }
    let wait = limit.unwrap_or(LIMIT_DEFAULT);
    if let Some(exec) = &handler.exec {
        let command = exec.command.clone().unwrap_or_default();
        return command_hook(runtime, id, command, limit).await;
    }
    match outside(container, handler, reach, wait).await {
        Ok(()) => Ended::default(),
        Err(error) => Ended::failed(&error),
    }
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
) -> Result<(), HookError> {
    let reach = Reach { netns: None, ip };
    outside(container, handler, &reach, limit).await
}

/// Runs a hook that is not a command.
async fn outside(
    container: &Container,
    handler: &LifecycleHandler,
    reach: &Reach,
    wait: Duration,
) -> Result<(), HookError> {
    if let Some(action) = &handler.http_get {
        http_hook(&Get::new(container, action, USER_AGENT)?, reach, wait).await
    } else if let Some(action) = &handler.tcp_socket {
        let port = port(container, &action.port)?;
        let connected = reach.connect(action.host.as_deref(), port, wait).await;
        connected.map(drop).map_err(|source| HookError::Connect { port, source })
    } else if let Some(sleep) = &handler.sleep {
        let time = Duration::from_secs(u64::try_from(sleep.seconds).unwrap_or(0));
        tokio::time::sleep(time.min(wait)).await;
        if time > wait { Err(HookError::TimedOut(wait)) } else { Ok(()) }
    } else {
        Err(HookError::NoHandler)
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
                (Some(code), output) => Some(HookError::ExitCode { code, output }),
                (None, _) => Some(HookError::TimedOut(limit.unwrap_or_default())),
            };
            let error = error.map(|error| error.to_string());
            Ended { error, output: String::from_utf8_lossy(&done.output).into_owned() }
        }
        Err(e) => Ended::failed(&e.into()),
    }
}

/// A status of 400 or above is a failure (G-42; differs: docs/internals/differences.md).
async fn http_hook(get: &Get, reach: &Reach, limit: Duration) -> Result<(), HookError> {
    match get.send(reach, limit).await {
        Ok(answer) if answer.status >= 400 => {
            Err(HookError::Status { request: get.shown(), status: answer.status })
        }
        Ok(_) => Ok(()),
        Err(NoAnswer::Request(e)) => Err(e.into()),
        Err(NoAnswer::Silence(silence)) => {
            Err(HookError::NoAnswer { request: get.shown(), detail: silence.text })
        }
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
