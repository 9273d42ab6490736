//! Checks ports: numbers, names and conflicts (R8.26, G-41).

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{ContainerPort, PodSpec};

use super::{Site, words};
use crate::source::{ContainerRef, FieldPath, Finding, List};

const PROTOCOLS: [&str; 3] = ["TCP", "UDP", "SCTP"];

pub(super) fn is_port(n: i32) -> bool {
    (1..=65535).contains(&n)
}

struct Port<'a> {
    site: &'a Site<'a>,
    path: FieldPath,
    port: &'a ContainerPort,
}

impl Port<'_> {
    fn protocol(&self) -> &str {
        self.port.protocol.as_deref().unwrap_or("TCP")
    }

    fn host_port(&self) -> Option<i32> {
        self.port.host_port.filter(|&n| n != 0)
    }

    /// The requested host address; `None` for all addresses.
    fn host_ip(&self) -> Option<&str> {
        let ip = self.port.host_ip.as_deref().unwrap_or_default();
        (!["", "0.0.0.0", "::"].contains(&ip)).then_some(ip)
    }

    /// Whether both ports use the same host address.
    fn same_host(&self, other: &Port<'_>) -> bool {
        self.host_ip().is_none() || other.host_ip().is_none() || self.host_ip() == other.host_ip()
    }

    /// Whether the containers of both ports can run at the same time.
    fn together(&self, other: &Port<'_>) -> bool {
        let long = |p: &Port<'_>| !p.site.is_plain_init();
        self.site.place == other.site.place || (long(self) && long(other))
    }
}

pub(super) fn check(out: &mut Vec<Finding>, spec: &PodSpec, sites: &[Site<'_>]) {
    let all: Vec<Port<'_>> = sites
        .iter()
        .filter(|s| s.place.list != List::Ephemeral)
        .flat_map(|site| {
            let ports = site.container.ports.iter().flatten().enumerate();
            ports.map(move |(i, port)| Port { site, path: site.at("ports").index(i), port })
        })
        .collect();
    // Only ports with the same number and protocol are compared, so that long lists stay fast.
    let mut by_host: BTreeMap<(i32, &str), Vec<&Port<'_>>> = BTreeMap::new();
    let mut by_number: BTreeMap<(i32, &str), Vec<&Port<'_>>> = BTreeMap::new();
    let mut by_name: BTreeMap<(ContainerRef, &str), &Port<'_>> = BTreeMap::new();
    for port in &all {
        one(out, spec, port);
        name(out, port, &mut by_name);
        let host = port.host_port().map(|n| by_host.entry((n, port.protocol())).or_default());
        let number = by_number.entry((port.port.container_port, port.protocol())).or_default();
        let clash =
            host.as_ref().and_then(|before| before.iter().find(|b| b.together(port) && b.same_host(port)));
        if let Some(first) = clash {
            out.push(host_port_clash(port, first));
        } else if let Some(first) = number.iter().find(|b| b.together(port)) {
            out.push(container_port_clash(port, first));
        }
        // One port of each kind is enough to find the next conflict.
        if clash.is_none()
            && let Some(host) = host
        {
            host.push(port);
        }
        if !number.iter().any(|b| b.together(port)) {
            number.push(port);
        }
    }
}

fn one(out: &mut Vec<Finding>, spec: &PodSpec, port: &Port<'_>) {
    let number = port.port.container_port;
    if !is_port(number) {
        let message = format!("containerPort {number} is not between 1 and 65535");
        out.push(Finding::error("port", port.path.clone().field("containerPort"), message));
    }
    if let Some(host) = port.host_port() {
        let path = port.path.clone().field("hostPort");
        if !is_port(host) {
            let message = format!("hostPort {host} is not between 1 and 65535");
            out.push(Finding::error("port", path, message));
        } else if spec.host_network == Some(true) && host != number {
            out.push(
                Finding::error(
                    "port",
                    path,
                    format!(
                        "hostPort {host} differs from containerPort {number} in a pod on the host's network"
                    ),
                )
                .related(port.path.clone().field("containerPort"), "the container listens here")
                .related(FieldPath::spec("hostNetwork"), "ports are not translated on the host's network")
                .hint(format!("write hostPort {number}, or remove it")),
            );
        }
    }
    if let Some(protocol) = &port.port.protocol
        && !PROTOCOLS.contains(&protocol.as_str())
    {
        let path = port.path.clone().field("protocol");
        out.push(words::not_one_of("port", path, "a protocol", protocol, &PROTOCOLS));
    }
    if let Some(ip) = port.host_ip()
        && ip.parse::<IpAddr>().is_err()
    {
        let message = format!("hostIP {} is not an IP address", words::quote(ip));
        out.push(Finding::error("port", port.path.clone().field("hostIP"), message));
    }
}

fn name<'p>(
    out: &mut Vec<Finding>,
    port: &'p Port<'p>,
    seen: &mut BTreeMap<(ContainerRef, &'p str), &'p Port<'p>>,
) {
    let Some(name) = &port.port.name else { return };
    let path = port.path.clone().field("name");
    if let Some(fault) = words::port_name_fault(name) {
        let message = format!("port name {} {fault}", words::quote(name));
        out.push(Finding::error("port", path.clone(), message));
    }
    let first = *seen.entry((port.site.place, name)).or_insert(port);
    if first.path != port.path {
        let message = format!("two ports of container {} are named {}", port.site.name(), words::quote(name));
        out.push(
            Finding::error("port", path, message)
                .related(first.path.clone().field("name"), "the name is first used here")
                .hint("rename one"),
        );
    }
}

fn host_port_clash(port: &Port<'_>, first: &Port<'_>) -> Finding {
    let with_sidecar = port.site.is_sidecar() != first.site.is_sidecar()
        || (port.site.is_sidecar() && port.site.place != first.site.place);
    // The API server does not detect conflicts with sidecars, but they fail on the host.
    let code = if with_sidecar { "G-41" } else { "R8.26" };
    let n = port.host_port().unwrap_or_default();
    let protocol = port.protocol();
    let message = if port.site.place == first.site.place {
        format!("container {} asks twice for host port {n}/{protocol}", port.site.name())
    } else {
        format!(
            "containers {} and {} both ask for host port {n}/{protocol}",
            first.site.name(),
            port.site.name()
        )
    };
    // With hostNetwork, the host port may be a default that is not in the manifest.
    Finding::error(code, port.path.clone().field("hostPort"), message)
        .related(first.path.clone().field("hostPort"), "the port is first taken here")
        .hint("give one of them another port")
}

fn container_port_clash(port: &Port<'_>, first: &Port<'_>) -> Finding {
    let (n, protocol) = (port.port.container_port, port.protocol());
    let message = if port.site.place == first.site.place {
        format!("port {n}/{protocol} is listed twice")
    } else {
        let (a, b) = (first.site.name(), port.site.name());
        format!(
            "containers {a} and {b} share one network and both name port {n}/{protocol}: only one can listen on it"
        )
    };
    Finding::warning("port", port.path.clone().field("containerPort"), message)
        .related(first.path.clone().field("containerPort"), "the port is first named here")
        .hint("give one of them another port")
}
