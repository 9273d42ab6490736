//! Connections to a pod from inside its network namespace but outside its containers, so that images without
//! a shell work.

pub(crate) mod grpc;
pub(crate) mod http;
#[cfg(test)]
pub(crate) mod test_server;
mod tls;

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::api::core::v1::Container;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use outrigger_lifecycle::ProbeCause;
use outrigger_runtime::Sandbox;
use outrigger_runtime::listen::{Listener, listening};
use outrigger_runtime::netns::connect_tcp;
use tokio::net::TcpStream;

/// Maximum number of open ports listed in a message.
const PORTS_NAMED_MAX: usize = 6;

/// How to reach a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reach {
    /// The network namespace to connect in; `None` is the host's.
    pub(crate) netns: Option<PathBuf>,
    /// The address to connect to when the manifest names no host.
    pub(crate) ip: IpAddr,
}

impl Reach {
    /// How to reach the pod of a sandbox.
    pub(crate) fn new(sandbox: &Sandbox) -> Self {
        let own = sandbox.ips.first().filter(|_| sandbox.netns.is_some());
        Reach { netns: sandbox.netns.clone(), ip: own.copied().unwrap_or(Ipv4Addr::LOCALHOST.into()) }
    }

    /// Connects to the host named in the manifest, or to the pod itself.
    pub(crate) async fn connect(
        &self,
        host: Option<&str>,
        port: u16,
        timeout: Duration,
    ) -> io::Result<TcpStream> {
        let addresses: Vec<SocketAddr> = match host.filter(|h| !h.is_empty()) {
            None => vec![SocketAddr::new(self.ip, port)],
            Some(host) => match host.trim_matches(['[', ']']).parse::<IpAddr>() {
                Ok(ip) => vec![SocketAddr::new(ip, port)],
                Err(_) => tokio::net::lookup_host((host, port)).await?.collect(),
            },
        };
        let mut last = io::Error::other("the name has no address");
        for address in addresses {
            match connect_tcp(self.netns.as_deref(), address, timeout).await {
                Ok(stream) => return Ok(stream),
                Err(e) => last = e,
            }
        }
        // Name the ports that the pod does listen on.
        if last.kind() == io::ErrorKind::ConnectionRefused
            && host.is_none_or(str::is_empty)
            && let Some(netns) = &self.netns
            && let Ok(open) = listening(Some(netns)).await
        {
            last = io::Error::new(last.kind(), instead(port, &open));
        }
        Err(last)
    }
}

/// What is wrong with a port in a manifest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PortError {
    /// The container has no port of this name.
    #[error("container {container:?} has no port named {name:?}")]
    Name {
        /// The container.
        container: String,
        /// The name of the port.
        name: String,
    },
    /// The number is out of range.
    #[error("{0} is not a port")]
    Number(i32),
    /// `hostIP` is not an address.
    #[error("hostIP {0:?} is not an address")]
    HostIp(String),
}

/// Resolves a port number, or a name from the container's port list.
pub(crate) fn port(container: &Container, written: &IntOrString) -> Result<u16, PortError> {
    let number = match written {
        IntOrString::Int(number) => *number,
        IntOrString::String(name) => {
            let ports = container.ports.iter().flatten();
            let named = ports.filter(|p| p.name.as_deref() == Some(name)).map(|p| p.container_port).next();
            named
                .or_else(|| name.parse().ok())
                .ok_or_else(|| PortError::Name { container: container.name.clone(), name: name.clone() })?
        }
    };
    u16::try_from(number).ok().filter(|n| *n > 0).ok_or(PortError::Number(number))
}

/// Describes where a pod listens, for a connection that its port refused.
fn instead(port: u16, open: &[Listener]) -> String {
    let mut ports: Vec<u16> = open.iter().map(|l| l.address.port()).collect();
    ports.sort_unstable();
    ports.dedup();
    if let Some(hidden) = open.iter().find(|l| l.address.port() == port) {
        return format!("the pod listens on {} only, not on its own address", hidden.address);
    }
    let named: Vec<String> = ports.iter().take(PORTS_NAMED_MAX).map(ToString::to_string).collect();
    match (named.join(", "), ports.len() > PORTS_NAMED_MAX) {
        (none, _) if none.is_empty() => "nothing in the pod listens on any port".to_owned(),
        (named, false) => format!("the pod listens on {named}"),
        (named, true) => format!("the pod listens on {named}, …"),
    }
}

/// A short description of a network error.
pub(crate) fn brief(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => match error.get_ref() {
            Some(detail) => format!("connection refused, {detail}"),
            None => "connection refused".into(),
        },
        io::ErrorKind::ConnectionReset => "connection reset".into(),
        io::ErrorKind::TimedOut => "no connection in time".into(),
        io::ErrorKind::HostUnreachable => "host unreachable".into(),
        io::ErrorKind::NetworkUnreachable => "network unreachable".into(),
        _ => {
            let text = error.to_string();
            text.split(" (os error").next().unwrap_or(&text).to_lowercase()
        }
    }
}

/// The cause of a failed connection.
pub(crate) fn no_connection(error: &io::Error) -> ProbeCause {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => ProbeCause::Refused,
        io::ErrorKind::TimedOut => ProbeCause::TimedOut,
        _ => ProbeCause::NoConnection,
    }
}

/// Why a request to a container failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Silence {
    pub(crate) cause: ProbeCause,
    /// Human-readable message.
    pub(crate) text: String,
}

impl Silence {
    pub(crate) fn new(cause: ProbeCause, text: impl Into<String>) -> Self {
        Silence { cause, text: text.into() }
    }

    /// The error of a connection that failed or was broken.
    pub(crate) fn from_io(error: &io::Error) -> Self {
        Silence::new(no_connection(error), brief(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn ports_have_names() {
        let container: Container = serde_json::from_value(json!({
            "name": "c", "ports": [{"name": "web", "containerPort": 8080}, {"containerPort": 9090}]
        }))
        .unwrap();
        let text = |s: &str| IntOrString::String(s.into());
        let table = [
            (IntOrString::Int(80), Some(80)),
            (text("web"), Some(8080)),
            (text("81"), Some(81)),
            (text("nope"), None),
            (IntOrString::Int(0), None),
            (IntOrString::Int(70_000), None),
        ];
        for (written, expected) in table {
            assert_eq!(port(&container, &written).ok(), expected, "{written:?}");
        }
    }

    #[test]
    fn a_refusal_says_where_the_pod_listens() {
        let open = |all: &[&str]| -> Vec<Listener> {
            all.iter().map(|a| Listener { address: a.parse().unwrap(), inode: 1 }).collect()
        };
        let table: [(&[&str], &str); 4] = [
            (&[], "nothing in the pod listens on any port"),
            (&["0.0.0.0:9090", "[::]:8080", "0.0.0.0:8080"], "the pod listens on 8080, 9090"),
            (
                &["127.0.0.1:80", "0.0.0.0:8080"],
                "the pod listens on 127.0.0.1:80 only, not on its own address",
            ),
            (
                &["[::]:1", "[::]:2", "[::]:3", "[::]:4", "[::]:5", "[::]:6", "[::]:7"],
                "the pod listens on 1, 2, 3, 4, 5, 6, …",
            ),
        ];
        for (all, expected) in table {
            assert_eq!(instead(80, &open(all)), expected, "{all:?}");
        }
    }

    #[test]
    fn a_pod_without_an_address_of_its_own_is_at_loopback() {
        let sandbox = |ips: &[&str], netns: Option<&str>| Sandbox {
            id: outrigger_runtime::SandboxId("s".into()),
            ips: ips.iter().map(|ip| ip.parse().unwrap()).collect(),
            netns: netns.map(PathBuf::from),
            nameservers: Vec::new(),
        };
        assert_eq!(Reach::new(&sandbox(&["10.89.0.2"], Some("/n"))).ip.to_string(), "10.89.0.2");
        assert_eq!(Reach::new(&sandbox(&["192.168.1.1"], None)).ip.to_string(), "127.0.0.1");
        assert_eq!(Reach::new(&sandbox(&[], Some("/n"))).ip.to_string(), "127.0.0.1");
    }
}
