//! The downward API: `fieldRef` and `resourceFieldRef`, in variables and in volumes.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Container, Pod, ResourceFieldSelector};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::quantity;
use crate::reference::ReferenceError;

/// The source of a pod's fields.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fields<'a> {
    /// The pod.
    pub(crate) pod: &'a Pod,
    /// The pod's addresses, preferred one first.
    pub(crate) pod_ips: &'a [IpAddr],
    /// The host.
    pub(crate) host: &'a Host,
}

/// Properties of the host.
#[derive(Debug, Clone)]
pub(crate) struct Host {
    /// The host's name; `spec.nodeName` of pods that do not set one.
    pub(crate) name: String,
    /// The host's address as seen by pods.
    pub(crate) ip: Option<IpAddr>,
    /// CPUs, in thousandths.
    pub(crate) cpu_milli: u64,
    /// Memory in bytes.
    pub(crate) memory_bytes: u64,
}

impl Host {
    /// The properties of this host.
    pub(crate) fn here() -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, |n| n.get());
        let uname = rustix::system::uname();
        Host {
            name: uname.nodename().to_string_lossy().into_owned(),
            ip: outward_address().ok(),
            cpu_milli: cpus as u64 * 1_000,
            memory_bytes: memory_bytes().unwrap_or(0),
        }
    }
}

/// The source address this machine uses for outgoing connections. Nothing is sent.
fn outward_address() -> std::io::Result<IpAddr> {
    let socket = std::net::UdpSocket::bind(("0.0.0.0", 0))?;
    // An address reserved for documentation: only the route lookup matters.
    socket.connect(("192.0.2.1", 9))?;
    Ok(socket.local_addr()?.ip())
}

fn memory_bytes() -> Option<u64> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find_map(|l| l.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

impl Fields<'_> {
    /// The value of a field path.
    pub(crate) fn field(&self, path: &str) -> Result<String, ReferenceError> {
        let meta = &self.pod.metadata;
        if let Some((map, key)) = subscript(path) {
            let map = match map {
                "metadata.labels" => &meta.labels,
                "metadata.annotations" => &meta.annotations,
                _ => return Err(ReferenceError::Field(path.to_owned())),
            };
            return Ok(map.as_ref().and_then(|m| m.get(key)).cloned().unwrap_or_default());
        }
        let spec = self.pod.spec.as_ref();
        let text = |value: Option<&String>| value.cloned().unwrap_or_default();
        Ok(match path {
            "metadata.name" => text(meta.name.as_ref()),
            "metadata.namespace" => text(meta.namespace.as_ref()),
            "metadata.uid" => text(meta.uid.as_ref()),
            "metadata.labels" => format_map(meta.labels.as_ref()),
            "metadata.annotations" => format_map(meta.annotations.as_ref()),
            "spec.nodeName" => {
                spec.and_then(|s| s.node_name.clone()).unwrap_or_else(|| self.host.name.clone())
            }
            "spec.serviceAccountName" => text(spec.and_then(|s| s.service_account_name.as_ref())),
            "spec.restartPolicy" => text(spec.and_then(|s| s.restart_policy.as_ref())),
            "status.hostIP" | "status.hostIPs" => self.host.ip.map(|ip| ip.to_string()).unwrap_or_default(),
            "status.podIP" => self.pod_ips.first().map(ToString::to_string).unwrap_or_default(),
            "status.podIPs" => self.pod_ips.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
            _ => return Err(ReferenceError::Field(path.to_owned())),
        })
    }

    /// The value of a container's resource. A limit that is not set defaults to the host's capacity.
    pub(crate) fn resource(
        &self,
        container: &Container,
        selector: &ResourceFieldSelector,
    ) -> Result<String, ReferenceError> {
        let resource = selector.resource.as_str();
        let resources = container.resources.as_ref();
        let (kind, name) = resource.split_once('.').unwrap_or((resource, ""));
        let list = match kind {
            "limits" => resources.and_then(|r| r.limits.as_ref()),
            "requests" => resources.and_then(|r| r.requests.as_ref()),
            _ => return Err(ReferenceError::ResourceKind(resource.to_owned())),
        };
        let written: Option<&Quantity> = list.and_then(|l| l.get(name));
        let divisor = selector.divisor.as_ref().filter(|d| !matches!(quantity::milli_value(d), Ok(0)));
        if name == "cpu" {
            let milli = match written {
                Some(q) => quantity::milli_value(q)?,
                None if kind == "limits" => self.host.cpu_milli,
                None => 0,
            };
            let by = divisor.map_or(Ok(1_000), quantity::milli_value)?;
            return Ok(milli.div_ceil(by).to_string());
        }
        let bytes = match (written, name) {
            (Some(q), _) => quantity::value(q)?,
            (None, "memory") if kind == "limits" => self.host.memory_bytes,
            (None, "memory" | "ephemeral-storage") => 0,
            (None, _) if name.starts_with("hugepages-") => 0,
            _ => return Err(ReferenceError::Resource(resource.to_owned())),
        };
        let by = divisor.map_or(Ok(1), quantity::value)?;
        Ok(bytes.div_ceil(by).to_string())
    }
}

/// Splits `metadata.labels['key']` into (`metadata.labels`, `key`).
fn subscript(path: &str) -> Option<(&str, &str)> {
    path.strip_suffix("']")?.split_once("['")
}

/// One `key="value"` per line, sorted.
fn format_map(map: Option<&BTreeMap<String, String>>) -> String {
    let lines: Vec<String> =
        map.into_iter().flatten().map(|(key, value)| format!("{key}={}", quote(value))).collect();
    lines.join("\n")
}

/// Quotes like Go's `%q`, the format that readers of these files expect.
fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{b}' => out.push_str("\\v"),
            // Writing to a string cannot fail.
            c if c.is_control() && u32::from(c) < 0x80 => drop(write!(out, "\\x{:02x}", u32::from(c))),
            c if c.is_control() => drop(write!(out, "\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn host() -> Host {
        Host {
            name: "node".into(),
            ip: Some("10.0.0.1".parse().unwrap()),
            cpu_milli: 2_000,
            memory_bytes: 1 << 30,
        }
    }

    #[test]
    fn fields_of_the_pod() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u",
                "labels": {"app": "x", "a.b/c": "line\n\"two\""},
                "annotations": {"note": "n"}},
            "spec": {"containers": [], "serviceAccountName": "sa"}
        }))
        .unwrap();
        let ips: Vec<IpAddr> = vec!["10.89.0.2".parse().unwrap(), "fd00::2".parse().unwrap()];
        let host = host();
        let fields = Fields { pod: &pod, pod_ips: &ips, host: &host };
        let table = [
            ("metadata.name", Some("p")),
            ("metadata.namespace", Some("ns")),
            ("metadata.uid", Some("u")),
            ("metadata.labels['app']", Some("x")),
            ("metadata.labels['nope']", Some("")),
            ("metadata.annotations['note']", Some("n")),
            ("metadata.labels", Some("a.b/c=\"line\\n\\\"two\\\"\"\napp=\"x\"")),
            ("spec.nodeName", Some("node")),
            ("spec.serviceAccountName", Some("sa")),
            ("status.podIP", Some("10.89.0.2")),
            ("status.podIPs", Some("10.89.0.2,fd00::2")),
            ("status.hostIP", Some("10.0.0.1")),
            ("status.phase", None),
            ("spec.labels['x']", None),
        ];
        for (path, expected) in table {
            assert_eq!(fields.field(path).ok().as_deref(), expected, "{path}");
        }
    }

    #[test]
    fn resources_of_a_container_are_divided_and_rounded_up() {
        let pod = Pod::default();
        let host = host();
        let fields = Fields { pod: &pod, pod_ips: &[], host: &host };
        let container: Container = serde_json::from_value(json!({
            "name": "c", "resources": {"limits": {"cpu": "1500m"}, "requests": {"cpu": "250m", "memory": "65Mi"}}
        }))
        .unwrap();
        let table = [
            ("limits.cpu", None, Some("2")),
            ("limits.cpu", Some("1m"), Some("1500")),
            ("requests.cpu", None, Some("1")),
            ("requests.memory", None, Some("68157440")),
            ("requests.memory", Some("1Mi"), Some("65")),
            ("requests.memory", Some("1Gi"), Some("1")),
            ("limits.memory", None, Some("1073741824")),
            ("limits.memory", Some("0"), Some("1073741824")),
            ("requests.ephemeral-storage", None, Some("0")),
            ("limits.bananas", None, None),
            ("cpu", None, None),
        ];
        for (resource, divisor, expected) in table {
            let selector = ResourceFieldSelector {
                container_name: None,
                divisor: divisor.map(|d| Quantity(d.to_owned())),
                resource: resource.to_owned(),
            };
            let got = fields.resource(&container, &selector).ok();
            assert_eq!(got.as_deref(), expected, "{resource} {divisor:?}");
        }
    }
}
