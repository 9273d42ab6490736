//! Performs one probe attempt. The engine decides when to probe and how to interpret the result.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Probe};
use outrigger_lifecycle::{ProbeCause, ProbeOutcome};
use outrigger_runtime::{ContainerId, ExecRequest, Runtime};

use crate::env::expand_literals;
use crate::net::http::{Get, NoAnswer};
use crate::net::{Reach, brief, grpc, no_connection, port};
use crate::text::excerpt;

/// Maximum number of output bytes read from a probe command (R6.1).
const OUTPUT_MAX: usize = 10 << 10;

/// Maximum number of tries of an attempt that could not be performed; after that it is ignored (R6.12).
const TRIES_MAX: usize = 3;

const USER_AGENT: &str = "kube-probe/1.36";

/// The result of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) outcome: ProbeOutcome,
    /// Human-readable message.
    pub(crate) message: Option<String>,
    /// Machine-readable cause of a failure.
    pub(crate) cause: Option<ProbeCause>,
}

/// Performs one attempt.
pub(crate) async fn attempt<R: Runtime>(
    runtime: &R,
    id: &ContainerId,
    container: &Container,
    probe: &Probe,
    reach: &Reach,
    timeout: Duration,
) -> Seen {
    let mut seen = once(runtime, id, container, probe, reach, timeout).await;
    for _ in 1..TRIES_MAX {
        if seen.outcome != ProbeOutcome::Error {
            break;
        }
        seen = once(runtime, id, container, probe, reach, timeout).await;
    }
    seen
}

async fn once<R: Runtime>(
    runtime: &R,
    id: &ContainerId,
    container: &Container,
    probe: &Probe,
    reach: &Reach,
    timeout: Duration,
) -> Seen {
    if let Some(exec) = &probe.exec {
        let command = expand_literals(container, exec.command.as_deref().unwrap_or(&[]));
        return command_attempt(runtime, id, command, timeout).await;
    }
    if let Some(action) = &probe.http_get {
        return match Get::new(container, action, USER_AGENT) {
            Ok(get) => http_attempt(&get, reach, timeout).await,
            Err(e) => error(e.to_string()),
        };
    }
    if let Some(action) = &probe.tcp_socket {
        let port = match port(container, &action.port) {
            Ok(port) => port,
            Err(e) => return error(e.to_string()),
        };
        let connect = reach.connect(action.host.as_deref(), port, timeout);
        return match tokio::time::timeout(timeout, connect).await {
            Ok(Ok(_)) => success(),
            Ok(Err(e)) => failure(no_connection(&e), format!("port {port}: {}", brief(&e))),
            Err(_) => failure(ProbeCause::TimedOut, format!("port {port}: no connection within {timeout:?}")),
        };
    }
    if let Some(action) = &probe.grpc {
        let Ok(port) = u16::try_from(action.port) else {
            return error(format!("{} is not a port", action.port));
        };
        let service = action.service.as_deref().unwrap_or("");
        return match grpc::check(reach, port, service, timeout).await {
            Ok(()) => success(),
            Err(e) => failure(e.cause, format!("gRPC health check on port {port}: {}", e.text)),
        };
    }
    error("the probe has no handler; give it exec, httpGet, tcpSocket or grpc".into())
}

async fn command_attempt<R: Runtime>(
    runtime: &R,
    id: &ContainerId,
    command: Vec<String>,
    timeout: Duration,
) -> Seen {
    let request = ExecRequest { command, timeout: Some(timeout), output_limit: OUTPUT_MAX };
    match runtime.exec(id, request).await {
        Ok(done) => match done.code {
            Some(0) => success(),
            Some(code) => {
                let text = match excerpt(&done.output) {
                    Some(text) => format!("exit code {code}: {text}"),
                    None => format!("exit code {code}"),
                };
                failure(ProbeCause::ExitCode, text)
            }
            None => failure(ProbeCause::TimedOut, format!("timed out after {timeout:?}")),
        },
        Err(e) => error(e.to_string()),
    }
}

async fn http_attempt(get: &Get, reach: &Reach, timeout: Duration) -> Seen {
    match get.send(reach, timeout).await {
        Ok(answer) => match (answer.leads_to, answer.status) {
            // Success with a warning: the redirect target was not checked (section 6.2).
            (Some(to), status) => Seen {
                message: Some(format!("{} answered {status} and leads to {to}", get.shown())),
                ..success()
            },
            (None, 200..400) => success(),
            (None, status) => failure(ProbeCause::BadAnswer, format!("{} answered {status}", get.shown())),
        },
        Err(NoAnswer::Request(e)) => error(e.to_string()),
        Err(NoAnswer::Silence(silence)) => {
            failure(silence.cause, format!("{}: {}", get.shown(), silence.text))
        }
    }
}

fn success() -> Seen {
    Seen { outcome: ProbeOutcome::Success, message: None, cause: None }
}

fn failure(cause: ProbeCause, message: String) -> Seen {
    Seen { outcome: ProbeOutcome::Failure, message: Some(message), cause: Some(cause) }
}

fn error(message: String) -> Seen {
    Seen { outcome: ProbeOutcome::Error, message: Some(message), cause: None }
}

#[cfg(test)]
mod tests;
