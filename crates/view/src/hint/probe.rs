//! Hints on probes that do not pass.

use k8s_openapi::api::core::v1::{Container, Probe};
use outrigger_lifecycle::{ContainerPlan, FieldPath, Need, Plan, ProbeCause, ProbeKind};
use outrigger_text::HumanDuration;

use super::Hint;

pub(super) fn hint(
    plan: &Plan,
    index: usize,
    container: &Container,
    path: FieldPath,
    kind: ProbeKind,
    cause: Option<ProbeCause>,
) -> Option<Hint> {
    let (field, probe) = written(container, kind)?;
    let (handler, hint) = handler(probe, cause);
    let mut hint = hint.to_owned();
    if kind == ProbeKind::Startup
        && let Some(times) = plan.containers[index].probe(kind)
    {
        let had = times.period_ms.saturating_mul(times.failure_threshold.into());
        hint.push_str(&format!(
            "; if it only needs more time than {}, raise failureThreshold",
            HumanDuration(had)
        ));
    }
    let waiting = waiting_for(plan, index, kind);
    if !waiting.is_empty() {
        hint.push_str(&format!(". Until it passes, {waiting}"));
    }
    Some(Hint::at(path.field(field).field(handler), hint))
}

/// The hint on an attempt that could not be made at all. For a command, the message contains only the
/// kernel's error.
pub(super) fn not_run(
    plan: &Plan,
    index: usize,
    container: &Container,
    path: FieldPath,
    kind: ProbeKind,
) -> Option<Hint> {
    let (field, probe) = written(container, kind)?;
    let path = path.field(field);
    let Some(exec) = &probe.exec else { return Some(Hint::at(path, String::new())) };
    let program = exec.command.iter().flatten().next()?;
    let mut hint = match program {
        program if program.contains(' ') => super::program::one_word(program),
        program if program.contains('/') => {
            format!("check that the image has {program:?} and that it is executable")
        }
        program => format!(
            "{program:?} is looked for in the PATH of the container: check that the image has it, write its whole \
             path, or use a shell for built-ins and pipes: [sh, -c, …]"
        ),
    };
    let waiting = waiting_for(plan, index, kind);
    if !waiting.is_empty() {
        hint.push_str(&format!(". Until it passes, {waiting}"));
    }
    Some(Hint::at(path.field("exec").field("command"), hint))
}

/// The name of a probe's field, and its value.
fn written(container: &Container, kind: ProbeKind) -> Option<(&'static str, &Probe)> {
    Some(match kind {
        ProbeKind::Startup => ("startupProbe", container.startup_probe.as_ref()?),
        ProbeKind::Liveness => ("livenessProbe", container.liveness_probe.as_ref()?),
        ProbeKind::Readiness => ("readinessProbe", container.readiness_probe.as_ref()?),
    })
}

/// The kind of probe, and what the user can check.
fn handler(probe: &Probe, cause: Option<ProbeCause>) -> (&'static str, &'static str) {
    let silent = cause == Some(ProbeCause::Refused);
    match probe {
        Probe { exec: Some(_), .. } if cause == Some(ProbeCause::TimedOut) => {
            ("exec", "the command took too long: raise timeoutSeconds or make it faster")
        }
        Probe { exec: Some(_), .. } => {
            ("exec", "the command must exit with code 0 once the container is healthy")
        }
        Probe { http_get: Some(_), .. } if cause == Some(ProbeCause::BadAnswer) => {
            ("httpGet", "the program answers with an error: check the path, and the program's log")
        }
        Probe { http_get: Some(_), .. } if silent => ("httpGet", LISTEN),
        Probe { tcp_socket: Some(_), .. } if silent => ("tcpSocket", LISTEN),
        Probe { grpc: Some(_), .. } if silent => ("grpc", LISTEN),
        Probe { http_get: Some(_), .. } => ("httpGet", "check port, scheme and timeoutSeconds"),
        Probe { tcp_socket: Some(_), .. } => ("tcpSocket", "check port and timeoutSeconds"),
        _ => ("grpc", "check port and service, and that the program serves grpc.health.v1.Health"),
    }
}

const LISTEN: &str = "use the port the program listens on, and make it listen on all addresses (0.0.0.0), not only on 127.0.0.1";

/// A text that names the containers that wait for the probe. Empty if there are none.
fn waiting_for(plan: &Plan, index: usize, kind: ProbeKind) -> String {
    let needs = |need: Need| match kind {
        ProbeKind::Startup => matches!(need, Need::Started | Need::Ready),
        ProbeKind::Readiness => need == Need::Ready,
        ProbeKind::Liveness => false,
    };
    let waits = |c: &&ContainerPlan| c.gates.iter().any(|g| g.on == index && needs(g.need));
    let names: Vec<String> = plan.containers.iter().filter(waits).map(|c| format!("`{}`", c.name)).collect();
    match names.as_slice() {
        [] => String::new(),
        [one] => format!("{one} does not start"),
        [head @ .., last] => format!("{} and {last} do not start", head.join(", ")),
    }
}
