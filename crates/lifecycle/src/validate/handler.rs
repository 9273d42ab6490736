//! Checks the handlers of probes and hooks, and the lifecycle of a container (R8.18 to R8.23).

use k8s_openapi::api::core::v1::{
    ExecAction, GRPCAction, HTTPGetAction, LifecycleHandler, PodSpec, Probe, SleepAction, TCPSocketAction,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::{Site, ports, words};
use crate::source::{FeatureGates, FieldPath, Finding, List, PodInput};

const SIGNALS: [&str; 36] = [
    "SIGABRT",
    "SIGALRM",
    "SIGBUS",
    "SIGCHLD",
    "SIGCLD",
    "SIGCONT",
    "SIGFPE",
    "SIGHUP",
    "SIGILL",
    "SIGINT",
    "SIGIO",
    "SIGIOT",
    "SIGKILL",
    "SIGPIPE",
    "SIGPOLL",
    "SIGPROF",
    "SIGPWR",
    "SIGQUIT",
    "SIGSEGV",
    "SIGSTKFLT",
    "SIGSTOP",
    "SIGSYS",
    "SIGTERM",
    "SIGTRAP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGUSR1",
    "SIGUSR2",
    "SIGVTALRM",
    "SIGWINCH",
    "SIGXCPU",
    "SIGXFSZ",
    "SIGRTMIN",
    "SIGRTMAX",
];

/// The action of a probe or of a hook. Kubernetes has a type for each.
pub(super) struct Handler<'a> {
    exec: Option<&'a ExecAction>,
    http_get: Option<&'a HTTPGetAction>,
    tcp_socket: Option<&'a TCPSocketAction>,
    grpc: Option<&'a GRPCAction>,
    sleep: Option<&'a SleepAction>,
    /// The names of the handlers that are allowed here.
    allowed: &'static [&'static str],
}

impl<'a> From<&'a Probe> for Handler<'a> {
    fn from(p: &'a Probe) -> Self {
        Handler {
            exec: p.exec.as_ref(),
            http_get: p.http_get.as_ref(),
            tcp_socket: p.tcp_socket.as_ref(),
            grpc: p.grpc.as_ref(),
            sleep: None,
            allowed: &["exec", "httpGet", "tcpSocket", "grpc"],
        }
    }
}

impl<'a> From<&'a LifecycleHandler> for Handler<'a> {
    fn from(h: &'a LifecycleHandler) -> Self {
        Handler {
            exec: h.exec.as_ref(),
            http_get: h.http_get.as_ref(),
            tcp_socket: h.tcp_socket.as_ref(),
            grpc: None,
            sleep: h.sleep.as_ref(),
            allowed: &["exec", "httpGet", "tcpSocket", "sleep"],
        }
    }
}

/// Checks the hooks and the stop signal of one container.
pub(super) fn check_lifecycle(
    out: &mut Vec<Finding>,
    input: &PodInput,
    spec: &PodSpec,
    site: &Site<'_>,
    sites: &[Site<'_>],
    gates: &FeatureGates,
) {
    // R8.3 and R8.29 have reported it already.
    if site.is_plain_init() || site.place.list == List::Ephemeral {
        return;
    }
    let Some(lifecycle) = &site.container.lifecycle else { return };
    let path = site.at("lifecycle");
    for (field, hook) in [("postStart", &lifecycle.post_start), ("preStop", &lifecycle.pre_stop)] {
        let Some(hook) = hook else { continue };
        let path = path.clone().field(field);
        check(out, path.clone(), &Handler::from(hook), site, sites);
        if let Some(sleep) = &hook.sleep {
            sleep_bounds(out, path.clone().field("sleep").field("seconds"), spec, sleep.seconds);
        }
        if hook.tcp_socket.is_some() {
            out.push(
                Finding::warning(
                    "R7.1",
                    path.field("tcpSocket"),
                    "on a kubelet a tcpSocket hook always fails",
                )
                .hint("here it connects to the port; use httpGet or exec if the pod is to run elsewhere too"),
            );
        }
    }
    if let Some(signal) = &lifecycle.stop_signal {
        stop_signal(out, path.field("stopSignal"), input, signal, gates);
    }
}

/// Checks how long a hook sleeps (R8.22).
fn sleep_bounds(out: &mut Vec<Finding>, path: FieldPath, spec: &PodSpec, seconds: i64) {
    let grace = match spec.termination_grace_period_seconds.unwrap_or(30) {
        g if g < 0 => 1,
        g => g,
    };
    if seconds < 0 {
        out.push(Finding::error("R8.22", path, format!("a hook cannot sleep {seconds} seconds")));
    } else if seconds > grace {
        out.push(
            Finding::error(
                "R8.22",
                path,
                format!("the hook sleeps {seconds} s, longer than the pod's grace period of {grace} s"),
            )
            .related(FieldPath::spec("terminationGracePeriodSeconds"), "the grace period is set here")
            .hint(format!("sleep less, or raise terminationGracePeriodSeconds above {seconds}")),
        );
    }
}

/// Checks the stop signal (R8.23).
fn stop_signal(
    out: &mut Vec<Finding>,
    path: FieldPath,
    input: &PodInput,
    signal: &str,
    gates: &FeatureGates,
) {
    if !gates.container_stop_signals {
        out.push(
            Finding::error("R8.23", path, "stopSignal is switched off")
                .hint("turn the feature gate ContainerStopSignals on, or remove the field"),
        );
    } else if !is_signal(signal) {
        out.push(words::not_one_of("R8.23", path, "a signal", signal, &SIGNALS));
    } else if input.pod.spec.as_ref().is_some_and(|s| s.os.is_none()) {
        out.push(
            Finding::warning("R8.23", path, "a cluster accepts stopSignal only in a pod that names its os")
                .hint("add `spec.os.name: linux`"),
        );
    }
}

fn is_signal(name: &str) -> bool {
    let offset = |prefix, max| {
        let n: Option<u8> = name.strip_prefix(prefix).and_then(|n: &str| n.parse().ok());
        n.is_some_and(|n| (1..=max).contains(&n))
    };
    SIGNALS.contains(&name) || offset("SIGRTMIN+", 15) || offset("SIGRTMAX-", 14)
}

/// Checks that there is exactly one handler, and that it is valid.
pub(super) fn check(
    out: &mut Vec<Finding>,
    path: FieldPath,
    handler: &Handler<'_>,
    site: &Site<'_>,
    sites: &[Site<'_>],
) {
    let given: Vec<&'static str> = [
        ("exec", handler.exec.is_some()),
        ("httpGet", handler.http_get.is_some()),
        ("tcpSocket", handler.tcp_socket.is_some()),
        ("grpc", handler.grpc.is_some()),
        ("sleep", handler.sleep.is_some()),
    ]
    .into_iter()
    .filter_map(|(name, is)| is.then_some(name))
    .collect();
    match given.as_slice() {
        [] => out.push(
            Finding::error("R8.18", path.clone(), "no handler is given: there is nothing to do")
                .hint(format!("add one of {}", words::any_of(handler.allowed))),
        ),
        [first, extra @ ..] => out.extend(extra.iter().map(|extra| {
            Finding::error(
                "R8.18",
                path.clone().field(*extra),
                format!("there are two handlers, {first} and {extra}"),
            )
            .related(path.clone().field(*first), "the other handler")
            .hint("keep exactly one handler")
        })),
    }
    if let Some(exec) = handler.exec
        && exec.command.as_ref().is_none_or(Vec::is_empty)
    {
        out.push(
            Finding::error("R8.19", path.clone().field("exec").field("command"), "the command is empty")
                .hint("give the program and its arguments as a list, for example `[cat, /tmp/ready]`"),
        );
    }
    if let Some(http) = handler.http_get {
        http_get(out, path.clone().field("httpGet"), http, site, sites);
    }
    if let Some(tcp) = handler.tcp_socket {
        let path = path.clone().field("tcpSocket").field("port");
        port(out, "R8.21", path, &tcp.port, site, sites);
    }
    if let Some(grpc) = handler.grpc {
        let path = path.field("grpc").field("port");
        port(out, "R8.21", path, &IntOrString::Int(grpc.port), site, sites);
    }
}

/// Checks an HTTP request (R8.20).
fn http_get(
    out: &mut Vec<Finding>,
    path: FieldPath,
    http: &HTTPGetAction,
    site: &Site<'_>,
    sites: &[Site<'_>],
) {
    port(out, "R8.20", path.clone().field("port"), &http.port, site, sites);
    if http.path.as_deref() == Some("") {
        // For an empty path, Kubernetes uses its default.
        let path = path.clone().field("path");
        out.push(Finding::warning("R8.20", path, "an empty path means `/`").hint("write `/`"));
    }
    if let Some(scheme) = &http.scheme
        && !["HTTP", "HTTPS"].contains(&scheme.as_str())
    {
        let path = path.clone().field("scheme");
        out.push(words::not_one_of("R8.20", path, "a scheme", scheme, &["HTTP", "HTTPS"]));
    }
    let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    for (i, header) in http.http_headers.iter().flatten().enumerate() {
        if header.name.is_empty() || !header.name.bytes().all(token) {
            let message = format!("{} is not an HTTP header name", words::quote(&header.name));
            let path = path.clone().field("httpHeaders").index(i).field("name");
            out.push(Finding::error("R8.20", path, message));
        }
    }
}

/// Checks a port number, or the name of one of the container's own ports (R6.1).
fn port(
    out: &mut Vec<Finding>,
    code: &'static str,
    path: FieldPath,
    port: &IntOrString,
    site: &Site<'_>,
    sites: &[Site<'_>],
) {
    let name = match port {
        IntOrString::Int(n) => {
            if !ports::is_port(*n) {
                let message = format!("port {n} is not between 1 and 65535");
                out.push(Finding::error(code, path, message));
            }
            return;
        }
        IntOrString::String(name) => name,
    };
    if let Some(fault) = words::port_name_fault(name) {
        let finding = Finding::error(code, path, format!("port name {} {fault}", words::quote(name)));
        out.push(match name.parse::<u16>() {
            Ok(n) => finding.hint(format!("write the number without quotes: {n}")),
            Err(_) => finding,
        });
        return;
    }
    let names = |s: &Site<'_>| -> Vec<String> {
        let ports = s.container.ports.iter().flatten();
        ports.filter_map(|p| p.name.clone()).collect()
    };
    let own = names(site);
    if own.iter().any(|n| n == name) {
        return;
    }
    let message = format!("container {} has no port named {}", site.name(), words::quote(name));
    let finding = Finding::error("R6.1", path, message);
    let other = sites.iter().find(|s| s.place != site.place && names(s).contains(name));
    out.push(match (words::nearest(name, own.iter().map(String::as_str)), other) {
        (Some(near), _) => finding.hint(format!("did you mean {}?", words::quote(near))),
        (None, Some(other)) => finding
            .related(other.at("ports"), format!("container {} has it", other.name()))
            .hint("names are looked up in the container's own ports: write the number"),
        (None, None) => finding.hint("add the port to the container's `ports`, or write its number"),
    });
}
