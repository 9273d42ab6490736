//! Checks the ports that a run publishes on this machine.

use std::net::Ipv4Addr;

use outrigger_agent::host_ports;
use outrigger_runtime::PublishedPort;

use super::ReadError;
use crate::work::Work;

/// Refuses host ports that can never be used. Otherwise they would be retried forever.
pub(super) fn check(publish: &[PublishedPort], work: &Work) -> Result<(), ReadError> {
    if !publish.is_empty() && work.pod_count() > 1 {
        let text = format!("--publish needs one pod, the manifest has {}; use hostPort", work.pod_count());
        return Err(ReadError::Option(text));
    }
    let specs = work.pods.iter().filter_map(|pod| pod.manifest.input.pod.spec.as_ref());
    let containers = specs.flat_map(|spec| spec.init_containers.iter().flatten().chain(&spec.containers));
    // Invalid ports are reported elsewhere.
    match published_twice(publish, &host_ports(containers).unwrap_or_default()) {
        Some((one, other)) => Err(ReadError::Option(format!(
            "{one} and {other} ask for the same port of this machine; use another port for one of them"
        ))),
        None => Ok(()),
    }
}

/// Two ports that cannot be used at the same time, as the user would write them.
fn published_twice(publish: &[PublishedPort], of_pod: &[PublishedPort]) -> Option<(String, String)> {
    let clash = |a: &PublishedPort, b: &PublishedPort| {
        let (one, other) = (a.host.ip(), b.host.ip());
        let overlap = one == other
            || (one.is_ipv4() == other.is_ipv4() && (one.is_unspecified() || other.is_unspecified()));
        a.udp == b.udp && a.host.port() == b.host.port() && overlap
    };
    let written = |p: &PublishedPort| {
        let host = match p.host.ip() == Ipv4Addr::LOCALHOST {
            true => p.host.port().to_string(),
            false => p.host.to_string(),
        };
        format!("--publish {host}:{}{}", p.pod_port, if p.udp { "/udp" } else { "" })
    };
    publish.iter().enumerate().find_map(|(i, a)| {
        let twice = publish[i + 1..].iter().find(|b| clash(a, b)).map(written);
        let own =
            || of_pod.iter().find(|b| clash(a, b)).map(|b| format!("the pod's hostPort {}", b.host.port()));
        Some((written(a), twice.or_else(own)?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A port as it is written on the command line, always with its address.
    fn port(text: &str) -> PublishedPort {
        let (ports, udp) = text.strip_suffix("/udp").map_or((text, false), |ports| (ports, true));
        let (host, pod_port) = ports.rsplit_once(':').unwrap();
        let host = if host.contains(':') { host.to_owned() } else { format!("127.0.0.1:{host}") };
        PublishedPort { host: host.parse().unwrap(), pod_port: pod_port.parse().unwrap(), udp }
    }

    #[test]
    fn a_port_of_the_machine_is_published_once() {
        let containers: Vec<k8s_openapi::api::core::v1::Container> = serde_json::from_value(serde_json::json!([
            {"name": "proxy", "ports": [{"containerPort": 90, "hostPort": 9090, "hostIP": "127.0.0.1"}]},
            {"name": "app", "ports": [{"containerPort": 70}, {"containerPort": 53, "hostPort": 53, "protocol": "UDP"}]},
        ]))
        .expect("containers");
        let of_pod = host_ports(&containers).expect("ports");
        for (ports, clash) in [
            (&["8080:80", "8080:81"][..], Some(("--publish 8080:80", "--publish 8080:81"))),
            (&["1:1", "127.0.0.1:8080:80", "8080:80"], Some(("--publish 8080:80", "--publish 8080:80"))),
            (&["54:53/udp", "54:53/udp"], Some(("--publish 54:53/udp", "--publish 54:53/udp"))),
            (&["54:53", "54:53/udp"], None),
            (&["127.0.0.1:80:80", "127.0.0.2:80:80", "[::1]:80:80"], None),
            (&["8080:80", "8081:80"], None),
            (&["0.0.0.0:8080:80", "8080:80"], Some(("--publish 0.0.0.0:8080:80", "--publish 8080:80"))),
            (&["70:70", "9090:80"], Some(("--publish 9090:80", "the pod's hostPort 9090"))),
            (&["127.0.0.2:9090:80", "53:53"], None),
            (&["53:5353/udp"], Some(("--publish 53:5353/udp", "the pod's hostPort 53"))),
        ] {
            let ports: Vec<PublishedPort> = ports.iter().map(|p| port(p)).collect();
            let found = published_twice(&ports, &of_pod);
            assert_eq!(found.as_ref().map(|(a, b)| (a.as_str(), b.as_str())), clash, "{ports:?}");
        }
    }
}
