//! Talking to a pod from outside its containers but inside its network, so that images without a shell work.

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
use outrigger_runtime::Sandbox;
use outrigger_runtime::embedded::network::connect_tcp;
use tokio::net::TcpStream;

/// Where a pod listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reach {
    /// The network namespace to connect in; `None` is the host's.
    pub(crate) netns: Option<PathBuf>,
    /// The address containers are asked at when the manifest names no host.
    pub(crate) ip: IpAddr,
}

impl Reach {
    /// How a pod in this sandbox is reached.
    pub(crate) fn of(sandbox: &Sandbox) -> Self {
        let own = sandbox.ips.first().filter(|_| sandbox.netns.is_some());
        Reach { netns: sandbox.netns.clone(), ip: own.copied().unwrap_or(Ipv4Addr::LOCALHOST.into()) }
    }

    /// Connects to a host of the manifest's, or to the pod itself.
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
        Err(last)
    }
}

/// The number of a port that may be written as a name of the container's port list.
pub(crate) fn port(container: &Container, written: &IntOrString) -> Result<u16, String> {
    let number = match written {
        IntOrString::Int(number) => *number,
        IntOrString::String(name) => {
            let ports = container.ports.iter().flatten();
            let named = ports.filter(|p| p.name.as_deref() == Some(name)).map(|p| p.container_port).next();
            named
                .or_else(|| name.parse().ok())
                .ok_or_else(|| format!("container {:?} has no port named {name:?}", container.name))?
        }
    };
    u16::try_from(number).ok().filter(|n| *n > 0).ok_or_else(|| format!("{number} is not a port"))
}

/// An error of the network in a few words.
pub(crate) fn brief(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused".into(),
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
    fn a_pod_without_an_address_of_its_own_is_at_loopback() {
        let sandbox = |ips: &[&str], netns: Option<&str>| Sandbox {
            id: outrigger_runtime::SandboxId("s".into()),
            ips: ips.iter().map(|ip| ip.parse().unwrap()).collect(),
            netns: netns.map(PathBuf::from),
        };
        assert_eq!(Reach::of(&sandbox(&["10.89.0.2"], Some("/n"))).ip.to_string(), "10.89.0.2");
        assert_eq!(Reach::of(&sandbox(&["192.168.1.1"], None)).ip.to_string(), "127.0.0.1");
        assert_eq!(Reach::of(&sandbox(&[], Some("/n"))).ip.to_string(), "127.0.0.1");
    }
}
