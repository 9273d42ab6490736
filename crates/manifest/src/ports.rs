//! Finds host ports that two pods of a manifest need at the same time.

use std::collections::BTreeMap;

use outrigger_lifecycle::{ContainerRef, FieldPath, List};

use crate::diagnostic::Diagnostic;
use crate::pod::PodManifest;
use crate::read::Manifest;

/// A host port, by number and protocol.
type HostPort = (i32, String);

/// Reports host ports that more than one pod needs. Only one of these pods could ever start.
pub fn check_host_ports(manifest: &Manifest) -> Vec<Diagnostic> {
    let mut out = Vec::new();
    let mut taken: BTreeMap<HostPort, Vec<(&PodManifest, FieldPath, String)>> = BTreeMap::new();
    for pod in &manifest.pods {
        for (port, ip, path) in host_ports(pod) {
            let before = taken.entry(port.clone()).or_default();
            let clash = before.iter().find(|(_, _, other)| other.is_empty() || ip.is_empty() || *other == ip);
            match clash {
                // Another rule checks the containers of one pod.
                Some((first, ..)) if first.origin.workload == pod.origin.workload => {}
                Some((first, first_path, _)) => {
                    let message = format!(
                        "pods `{}` and `{}` both ask for host port {}/{}",
                        first.name(),
                        pod.name(),
                        port.0,
                        port.1
                    );
                    let error = Diagnostic::error(pod.point(&path), message)
                        .label(first.point(first_path), "the port is first taken here")
                        .hint("give one of them another hostPort");
                    out.push(Diagnostic { code: Some("port"), ..error });
                }
                None => {
                    if pod.origin.count > 1 {
                        out.push(of_one_workload(pod, &port, &path));
                    }
                    before.push((pod, path, ip));
                }
            }
        }
    }
    out
}

fn of_one_workload(pod: &PodManifest, (number, protocol): &HostPort, path: &FieldPath) -> Diagnostic {
    let origin = &pod.origin;
    let count = origin.count;
    let message = format!(
        "the {count} pods of {} `{}` all ask for host port {number}/{protocol}: only one can have it",
        origin.kind, origin.name
    );
    let field = match origin.kind {
        "Job" | "CronJob" => "parallelism",
        _ => "replicas",
    };
    let hint = format!("remove hostPort, or write `{field}: 1`");
    Diagnostic { code: Some("port"), ..Diagnostic::error(pod.point(path), message).hint(hint) }
}

/// The host ports of a pod: port, address (empty for all) and path. Pods on the host network have none,
/// because no port is forwarded for them.
pub(crate) fn host_ports(pod: &PodManifest) -> Vec<(HostPort, String, FieldPath)> {
    let Some(spec) = pod.input.pod.spec.as_ref().filter(|s| s.host_network != Some(true)) else {
        return Vec::new();
    };
    let inits = spec.init_containers.iter().flatten().enumerate().map(|(i, c)| (List::Init, i, c));
    let mains = spec.containers.iter().enumerate().map(|(i, c)| (List::Main, i, c));
    let mut out = Vec::new();
    for (list, index, container) in inits.chain(mains) {
        for (n, port) in container.ports.iter().flatten().enumerate() {
            let Some(number) = port.host_port.filter(|n| *n > 0) else { continue };
            let protocol = port.protocol.clone().unwrap_or_else(|| "TCP".to_owned());
            let ip = port.host_ip.clone().filter(|ip| !["0.0.0.0", "::"].contains(&ip.as_str()));
            let path = ContainerRef { list, index }.path().field("ports").index(n).field("hostPort");
            out.push(((number, protocol), ip.unwrap_or_default(), path));
        }
    }
    out
}
