//! Checks Services and EndpointSlices as the Kubernetes API does, and whether they fit the pods of the
//! manifest.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use outrigger_lifecycle::FieldPath;
use outrigger_text::name::{as_dns_label, dns_label_fault, dns_subdomain_fault, port_name_fault};

use crate::decode::{abbreviate, nearest};
use crate::diagnostic::Diagnostic;
use crate::pod::PodManifest;
use crate::ports::host_ports;
use crate::read::Manifest;
use crate::span::Span;
use crate::tree::{Node, Value};

const TYPES: [&str; 4] = ["ClusterIP", "NodePort", "LoadBalancer", "ExternalName"];
const PROTOCOLS: [&str; 3] = ["TCP", "UDP", "SCTP"];
const ADDRESS_TYPES: [&str; 3] = ["IPv4", "IPv6", "FQDN"];
const TRAFFIC_POLICIES: [&str; 2] = ["Cluster", "Local"];

/// The default of `--service-node-port-range` of the API server.
const NODE_PORTS: std::ops::RangeInclusive<i32> = 30_000..=32_767;

/// The label that says to which Service an EndpointSlice belongs.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// Labels in which the pods of one workload differ. The manifest has only the first of them.
const POD_LABELS: [&str; 3] = [
    "statefulset.kubernetes.io/pod-name",
    "apps.kubernetes.io/pod-index",
    "batch.kubernetes.io/job-completion-index",
];

/// Reports what is wrong with the Services and EndpointSlices of a manifest.
pub fn check_services(manifest: &Manifest) -> Vec<Diagnostic> {
    let of_pod = |pod: &PodManifest| {
        let taken = |(port, _, path): (_, String, FieldPath)| (port, pod.point(&path));
        host_ports(pod).into_iter().map(taken).collect::<Vec<_>>()
    };
    let node_ports = manifest.pods.iter().flat_map(of_pod).collect();
    let mut check = Check { manifest, node_ports, addresses: BTreeMap::new(), out: Vec::new() };
    for (service, node) in manifest.services.iter().zip(&manifest.service_nodes) {
        check.service(service, node);
    }
    for (slice, node) in manifest.endpoint_slices.iter().zip(&manifest.endpoint_slice_nodes) {
        check.endpoint_slice(slice, node);
    }
    check.out
}

struct Check<'m> {
    manifest: &'m Manifest,
    /// The ports of the machine that pods and the Services so far have, by protocol.
    node_ports: BTreeMap<(i32, String), Span>,
    /// The addresses of the Services so far.
    addresses: BTreeMap<IpAddr, Span>,
    out: Vec<Diagnostic>,
}

/// The position to show for a path of an object.
fn place(node: &Node, path: &FieldPath) -> Span {
    let walk = node.walk(path);
    match (&walk.node.value, walk.key) {
        (Value::Scalar(_), _) if !walk.node.span.is_empty() => walk.node.head(),
        (_, Some(key)) => key,
        (_, None) => walk.node.head(),
    }
}

fn error(node: &Node, path: &FieldPath, code: &'static str, message: String) -> Diagnostic {
    Diagnostic { code: Some(code), ..Diagnostic::error(place(node, path), message) }
}

/// A value for a message: shortened and on one line.
fn quote(value: &str) -> String {
    format!("`{}`", abbreviate(value))
}

/// Refuses a value that is not one of a few.
fn one_of(node: &Node, path: &FieldPath, value: Option<&String>, known: &[&str]) -> Option<Diagnostic> {
    let value = value.filter(|value| !known.contains(&value.as_str()))?;
    let names = known.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    let error = error(node, path, "value", format!("`{path}` cannot be {}", quote(value)));
    Some(match nearest(value, known) {
        Some(near) => error.hint(format!("did you mean `{near}`?")),
        None => error.hint(format!("use one of {names}")),
    })
}

fn is_port(number: i32) -> bool {
    (1..=65_535).contains(&number)
}

fn port_range(node: &Node, path: &FieldPath, number: i32) -> Option<Diagnostic> {
    let message = || format!("`{path}` must be from 1 to 65535, it is {number}");
    (!is_port(number)).then(|| error(node, path, "port", message()))
}

/// Why traffic cannot be sent to an address (`ValidateEndpointIP` of the Kubernetes API).
fn address_fault(address: IpAddr) -> Option<&'static str> {
    let is_link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    if address.is_loopback() {
        Some("is a loopback address, which is another one in each pod")
    } else if address.is_unspecified() || address.is_multicast() || is_link_local {
        Some("is not the address of one machine or pod")
    } else {
        None
    }
}

/// The names of the ports of a pod with a protocol. Sidecars count too, but not other init containers.
fn port_names<'m>(pod: &'m PodManifest, protocol: &str) -> Vec<&'m str> {
    let Some(spec) = &pod.input.pod.spec else { return Vec::new() };
    let sidecars = spec.init_containers.iter().flatten();
    let sidecars = sidecars.filter(|container| container.restart_policy.as_deref() == Some("Always"));
    let ports = spec.containers.iter().chain(sidecars).flat_map(|container| container.ports.iter().flatten());
    let ports = ports.filter(|port| port.protocol.as_deref().unwrap_or("TCP") == protocol);
    ports.filter_map(|port| port.name.as_deref()).collect()
}

fn is_selected(selector: &BTreeMap<String, String>, namespace: &str, pod: &PodManifest) -> bool {
    let labels = pod.input.pod.metadata.labels.as_ref();
    let has = |key: &String, value: &String| match labels.and_then(|labels| labels.get(key)) {
        Some(_) if POD_LABELS.contains(&key.as_str()) => true,
        found => found == Some(value),
    };
    pod.namespace() == namespace && selector.iter().all(|(key, value)| has(key, value))
}

impl<'m> Check<'m> {
    fn service(&mut self, service: &Service, node: &Node) {
        let name = service.metadata.name.as_deref().unwrap_or_default();
        if let Some(fault) = dns_label_fault(name) {
            let path = FieldPath::root().field("metadata").field("name");
            let error = error(node, &path, "name", format!("Service name {} {fault}", quote(name)));
            self.out.push(match as_dns_label(name) {
                Some(label) => error.hint(format!("for example `{label}`")),
                None => error,
            });
        }
        let Some(spec) = &service.spec else { return };
        let values: [(&'static str, _, &[&str]); 4] = [
            ("type", &spec.type_, &TYPES),
            ("sessionAffinity", &spec.session_affinity, &["None", "ClientIP"]),
            ("externalTrafficPolicy", &spec.external_traffic_policy, &TRAFFIC_POLICIES),
            ("internalTrafficPolicy", &spec.internal_traffic_policy, &TRAFFIC_POLICIES),
        ];
        for (field, value, known) in values {
            self.out.extend(one_of(node, &FieldPath::spec(field), value.as_ref(), known));
        }
        let type_ = spec.type_.as_deref().unwrap_or("ClusterIP");
        if type_ == "ExternalName" {
            self.external_name(spec, node);
        } else {
            self.cluster_ip(spec, type_, node);
        }
        let selected = self.selected(service, spec, node);
        self.ports(spec, type_, &selected, node);
    }

    fn external_name(&mut self, spec: &ServiceSpec, node: &Node) {
        let path = FieldPath::spec("externalName");
        let name = spec.external_name.as_deref().unwrap_or_default();
        let is_address = name.parse::<IpAddr>().is_ok();
        if name.is_empty() {
            let message = "a Service with `type: ExternalName` needs `externalName`".to_owned();
            let hint = "add the name of a host, for example `externalName: db.example.com`";
            self.out.push(error(node, &path, "service", message).hint(hint));
        } else if is_address || dns_subdomain_fault(name.strip_suffix('.').unwrap_or(name)).is_some() {
            let message = format!("`externalName` must be the name of a host, it is {}", quote(name));
            let hint = "for an address, use a Service without selector and an EndpointSlice";
            self.out.push(error(node, &path, "service", message).hint(hint));
        }
        if spec.cluster_ip.as_deref().is_some_and(|address| !address.is_empty()) {
            let message = "a Service with `type: ExternalName` has no `clusterIP`".to_owned();
            let error = error(node, &FieldPath::spec("clusterIP"), "service", message);
            self.out.push(error.hint("remove it"));
        }
    }

    fn cluster_ip(&mut self, spec: &ServiceSpec, type_: &str, node: &Node) {
        let path = FieldPath::spec("clusterIP");
        match spec.cluster_ip.as_deref() {
            None | Some("") => {}
            Some("None") if ["NodePort", "LoadBalancer"].contains(&type_) => {
                let message =
                    format!("a Service with `type: {type_}` cannot be headless (`clusterIP: None`)");
                self.out.push(error(node, &path, "service", message).hint("remove `clusterIP` or `type`"));
            }
            Some("None") => {}
            Some(text) => match text.parse::<IpAddr>() {
                Err(_) => {
                    let message = format!("`clusterIP` must be an address or `None`, it is {}", quote(text));
                    self.out
                        .push(error(node, &path, "service", message).hint("remove it to get any address"));
                }
                Ok(address) => {
                    if let Some(fault) = address_fault(address) {
                        let message = format!("`clusterIP: {address}` {fault}");
                        let error = error(node, &path, "service", message);
                        self.out.push(error.hint("remove it to get any address"));
                    }
                    let here = place(node, &path);
                    if let Some(first) = self.addresses.get(&address) {
                        let message = format!("two Services have the address {address}");
                        let error = error(node, &path, "service", message).label(*first, "the first one");
                        self.out.push(error.hint("remove `clusterIP` from one of them"));
                    } else {
                        self.addresses.insert(address, here);
                    }
                }
            },
        }
    }

    /// The pods that a Service sends traffic to.
    fn selected(&mut self, service: &Service, spec: &ServiceSpec, node: &Node) -> Vec<&'m PodManifest> {
        let Some(selector) = spec.selector.as_ref().filter(|selector| !selector.is_empty()) else {
            return Vec::new();
        };
        let namespace = service.metadata.namespace.as_deref().unwrap_or_default();
        let pods = self.manifest.pods.iter();
        let selected: Vec<_> = pods.filter(|pod| is_selected(selector, namespace, pod)).collect();
        if selected.is_empty() && spec.type_.as_deref() != Some("ExternalName") {
            let labels = selector.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>();
            let labels = abbreviate(&labels.join(","));
            let message = format!("no pod in namespace `{namespace}` has the labels `{labels}`");
            let note = Diagnostic::note(place(node, &FieldPath::spec("selector")), message)
                .hint("compare the selector with the labels in `metadata` of the pod or of its template");
            self.out.push(Diagnostic { code: Some("reference"), ..note });
        }
        selected
    }

    fn ports(&mut self, spec: &ServiceSpec, type_: &str, selected: &[&PodManifest], node: &Node) {
        let ports = spec.ports.as_deref().unwrap_or_default();
        let is_headless = spec.cluster_ip.as_deref() == Some("None");
        let path = FieldPath::spec("ports");
        if ports.is_empty() && type_ != "ExternalName" && !is_headless {
            let hint = "add for example `ports: [{port: 80}]`";
            self.out.push(error(node, &path, "port", "this Service has no `ports`".to_owned()).hint(hint));
        }
        let mut numbers: BTreeMap<(i32, &str), Span> = BTreeMap::new();
        let mut names: BTreeMap<&str, Span> = BTreeMap::new();
        for (nth, port) in ports.iter().enumerate() {
            let at = |field: &'static str| path.clone().index(nth).field(field);
            let protocol = port.protocol.as_deref().unwrap_or("TCP");
            self.out.extend(one_of(node, &at("protocol"), port.protocol.as_ref(), &PROTOCOLS));
            self.out.extend(port_range(node, &at("port"), port.port));
            let here = place(node, &at("port"));
            if let Some(first) = numbers.get(&(port.port, protocol)) {
                let message = format!("port {}/{protocol} is in this Service twice", port.port);
                let error = error(node, &at("port"), "port", message).label(*first, "the first one");
                self.out.push(error.hint("change or remove one of them"));
            } else {
                numbers.insert((port.port, protocol), here);
            }
            match port.name.as_deref().filter(|name| !name.is_empty()) {
                None if ports.len() > 1 => {
                    let message = "each port of a Service with several ports needs a name".to_owned();
                    let hint = "add for example `name: http`";
                    self.out.push(error(node, &at("port"), "port", message).hint(hint));
                }
                None => {}
                Some(name) => {
                    let here = place(node, &at("name"));
                    if let Some(fault) = dns_label_fault(name) {
                        let message = format!("port name {} {fault}", quote(name));
                        self.out.push(error(node, &at("name"), "name", message));
                    } else if let Some(first) = names.insert(name, here) {
                        let message = format!("two ports of this Service have the name `{name}`");
                        let error = error(node, &at("name"), "port", message).label(first, "the first one");
                        self.out.push(error.hint("rename one"));
                    }
                }
            }
            self.node_port(port, protocol, type_, &at("nodePort"), node);
            self.target_port(port, protocol, selected, &at("targetPort"), node);
        }
    }

    fn node_port(&mut self, port: &ServicePort, protocol: &str, type_: &str, path: &FieldPath, node: &Node) {
        let Some(number) = port.node_port.filter(|number| *number != 0) else { return };
        if !["NodePort", "LoadBalancer"].contains(&type_) {
            let message = format!("a Service with `type: {type_}` has no node ports");
            self.out.push(error(node, path, "port", message).hint("write `type: NodePort`, or remove it"));
            return;
        }
        if let Some(error) = port_range(node, path, number) {
            self.out.push(error);
            return;
        }
        if !NODE_PORTS.contains(&number) {
            let (first, last) = NODE_PORTS.into_inner();
            let message =
                format!("a cluster refuses nodePort {number}: its node ports are {first} to {last}");
            let warning = Diagnostic::warning(place(node, path), message);
            self.out.push(Diagnostic { code: Some("port"), ..warning });
        }
        let here = place(node, path);
        if let Some(first) = self.node_ports.get(&(number, protocol.to_owned())) {
            let message = format!("nodePort {number}/{protocol} is used twice");
            let error = error(node, path, "port", message).label(*first, "the port is first taken here");
            self.out.push(error.hint("give one of them another nodePort, or leave it out"));
        } else {
            self.node_ports.insert((number, protocol.to_owned()), here);
        }
    }

    fn target_port(
        &mut self,
        port: &ServicePort,
        protocol: &str,
        selected: &[&PodManifest],
        path: &FieldPath,
        node: &Node,
    ) {
        let name = match &port.target_port {
            None => return,
            Some(IntOrString::Int(number)) => {
                self.out.extend(port_range(node, path, *number));
                return;
            }
            Some(IntOrString::String(name)) => name,
        };
        if let Some(fault) = port_name_fault(name) {
            let error = error(node, path, "name", format!("port name {} {fault}", quote(name)));
            let is_number = name.parse::<u16>().is_ok();
            self.out.push(if is_number { error.hint("remove the quotes") } else { error });
            return;
        }
        let names: Vec<&str> = selected.iter().flat_map(|pod| port_names(pod, protocol)).collect();
        let Some(pod) = selected.first().filter(|_| !names.contains(&name.as_str())) else { return };
        let message =
            format!("no container of the selected pods has a {protocol} port with the name `{name}`");
        let hint = match (nearest(name, &names), names.is_empty()) {
            (Some(near), _) => format!("did you mean `{near}`?"),
            (None, true) => format!("add `name: {name}` to a port of a container, or write the number"),
            (None, false) => format!("they have {}; or write the number", list(&names)),
        };
        let of_pod = pod.point(&FieldPath::spec("containers"));
        let error = error(node, path, "reference", message).label(of_pod, "of this pod");
        self.out.push(error.hint(hint));
    }

    fn endpoint_slice(&mut self, slice: &EndpointSlice, node: &Node) {
        let name = slice.metadata.name.as_deref().unwrap_or_default();
        let metadata = FieldPath::root().field("metadata");
        if let Some(fault) = dns_subdomain_fault(name) {
            let message = format!("EndpointSlice name {} {fault}", quote(name));
            self.out.push(error(node, &metadata.clone().field("name"), "name", message));
        }
        self.owner(slice, &metadata, node);
        let type_path = FieldPath::root().field("addressType");
        self.out.extend(one_of(node, &type_path, Some(&slice.address_type), &ADDRESS_TYPES));
        for (nth, endpoint) in slice.endpoints.iter().flatten().enumerate() {
            let path = FieldPath::root().field("endpoints").index(nth).field("addresses");
            if endpoint.addresses.is_empty() {
                let message = "this endpoint has no `addresses`".to_owned();
                self.out.push(error(node, &path, "service", message).hint("add one, or remove the endpoint"));
            }
            for (which, address) in endpoint.addresses.iter().enumerate() {
                self.address(&slice.address_type, address, &path.clone().index(which), node);
            }
        }
        for (nth, port) in slice.ports.iter().flatten().enumerate() {
            let at = |field: &'static str| FieldPath::root().field("ports").index(nth).field(field);
            self.out.extend(one_of(node, &at("protocol"), port.protocol.as_ref(), &PROTOCOLS));
            self.out.extend(port.port.and_then(|number| port_range(node, &at("port"), number)));
        }
    }

    fn owner(&mut self, slice: &EndpointSlice, metadata: &FieldPath, node: &Node) {
        let of = slice.metadata.labels.as_ref().and_then(|labels| labels.get(SERVICE_NAME));
        let is_it = |service: &Service| {
            service.metadata.name.as_ref() == of && service.metadata.namespace == slice.metadata.namespace
        };
        let labels = metadata.clone().field("labels");
        let (path, message, hint) = match of {
            None => {
                let message = "this EndpointSlice belongs to no Service".to_owned();
                (labels, message, format!("add the label `{SERVICE_NAME}: NAME`"))
            }
            Some(name) if !self.manifest.services.iter().any(is_it) => {
                let message = format!("no Service {} in the namespace of this EndpointSlice", quote(name));
                let names = self.manifest.services.iter().filter_map(|s| s.metadata.name.as_deref());
                let hint = match nearest(name, &names.collect::<Vec<_>>()) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => "add the Service, or correct the label".to_owned(),
                };
                (labels.field(SERVICE_NAME), message, hint)
            }
            Some(_) => return,
        };
        let note = Diagnostic::note(place(node, &path), message).hint(hint);
        self.out.push(Diagnostic { code: Some("reference"), ..note });
    }

    fn address(&mut self, address_type: &str, text: &str, path: &FieldPath, node: &Node) {
        let fault = match (address_type, text.parse::<IpAddr>()) {
            ("IPv4", Ok(address @ IpAddr::V4(_))) | ("IPv6", Ok(address @ IpAddr::V6(_))) => {
                match address_fault(address) {
                    Some(fault) => format!("the address {address} {fault}"),
                    None => return,
                }
            }
            ("IPv4" | "IPv6", _) => format!("expected an {address_type} address, found {}", quote(text)),
            ("FQDN", _) => match dns_subdomain_fault(text.strip_suffix('.').unwrap_or(text)) {
                Some(fault) => format!("the name {} {fault}", quote(text)),
                None => return,
            },
            // The type itself was refused.
            _ => return,
        };
        self.out.push(error(node, path, "service", fault));
    }
}

fn list(names: &[&str]) -> String {
    let mut names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    names.sort();
    names.dedup();
    names.join(", ")
}
