//! Checks the pod itself: its metadata, and the fields of its spec outside of containers.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::PodSpec;

use super::{Site, words};
use crate::plan::CONTAINERS_MAX;
use crate::source::{FieldPath, Finding, List, PodInput};

const RESTART_POLICIES: [&str; 3] = ["Always", "OnFailure", "Never"];
const DNS_POLICIES: [&str; 4] = ["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"];
const NAMESERVERS_MAX: usize = 3;
const SEARCHES_MAX: usize = 32;
const ANNOTATIONS_BYTES_MAX: usize = 256 * 1024;

pub(super) fn check(out: &mut Vec<Finding>, input: &PodInput, spec: &PodSpec) {
    metadata(out, input);
    lifecycle(out, spec);
    namespaces(out, spec);
    dns(out, spec);
}

/// Why a text is not a valid name of an object, if it is not.
pub fn validate_name(kind: &str, name: &str) -> Option<Finding> {
    let fault = words::dns_subdomain_fault(name)?;
    let kind = if kind == "Pod" { "pod" } else { kind };
    let message = format!("{kind} name {} {fault}", words::quote(name));
    let path = FieldPath::root().field("metadata").field("name");
    Some(propose_label(Finding::error("name", path, message), name))
}

fn metadata(out: &mut Vec<Finding>, input: &PodInput) {
    let meta = &input.pod.metadata;
    let root = || FieldPath::root().field("metadata");
    match &meta.name {
        None if meta.generate_name.is_none() => out.push(
            Finding::error("name", root().field("name"), "the pod has no name").hint("add `metadata.name`"),
        ),
        None => {}
        Some(name) => out.extend(validate_name("Pod", name)),
    }
    if let Some(namespace) = &meta.namespace
        && let Some(fault) = words::dns_label_fault(namespace)
    {
        let message = format!("namespace {} {fault}", words::quote(namespace));
        out.push(propose_label(Finding::error("name", root().field("namespace"), message), namespace));
    }
    for (key, value) in meta.labels.iter().flatten() {
        let path = || root().field("labels").field(key.clone());
        if let Some(fault) = words::qualified_name_fault(key) {
            let message = format!("label key {} {fault}", words::quote(key));
            out.push(Finding::error("label", path(), message));
        }
        if let Some(fault) = words::value_fault(value) {
            let message = format!("value {} of label {} {fault}", words::quote(value), words::quote(key));
            out.push(Finding::error("label", path(), message).hint("put free text into an annotation"));
        }
    }
    let mut bytes = 0;
    for (key, value) in meta.annotations.iter().flatten() {
        bytes += key.len() + value.len();
        if let Some(fault) = words::qualified_name_fault(key) {
            let message = format!("annotation key {} {fault}", words::quote(key));
            out.push(Finding::error("label", FieldPath::annotation(key.clone()), message));
        }
    }
    if bytes > ANNOTATIONS_BYTES_MAX {
        let message = format!("the annotations have {bytes} bytes, more than {ANNOTATIONS_BYTES_MAX}");
        out.push(Finding::error("limit", root().field("annotations"), message).hint("use a ConfigMap"));
    }
}

fn propose_label(finding: Finding, name: &str) -> Finding {
    match words::as_dns_label(name) {
        Some(label) if label != name => finding.hint(format!("for example {}", words::quote(&label))),
        _ => finding,
    }
}

fn lifecycle(out: &mut Vec<Finding>, spec: &PodSpec) {
    if let Some(policy) = &spec.restart_policy
        && !RESTART_POLICIES.contains(&policy.as_str())
    {
        let path = FieldPath::spec("restartPolicy");
        out.push(words::not_one_of("R8.28", path, "a restart policy", policy, &RESTART_POLICIES));
    }
    if let Some(seconds) = spec.termination_grace_period_seconds
        && seconds < 0
    {
        let message = format!("terminationGracePeriodSeconds {seconds} is negative; 1 is used instead");
        out.push(
            Finding::warning("R8.27", FieldPath::spec("terminationGracePeriodSeconds"), message)
                .hint("write 0 to stop without grace, or the seconds the containers need"),
        );
    }
    if let Some(seconds) = spec.active_deadline_seconds
        && !(1..=i64::from(i32::MAX)).contains(&seconds)
    {
        let message = format!("activeDeadlineSeconds {seconds} is not between 1 and {}", i32::MAX);
        out.push(Finding::error("deadline", FieldPath::spec("activeDeadlineSeconds"), message));
    }
    if let Some(os) = &spec.os
        && os.name != "linux"
    {
        let message = format!("operating system {} is not supported", words::quote(&os.name));
        out.push(Finding::error("os", FieldPath::spec("os").field("name"), message).hint("only `linux` is"));
    }
}

fn namespaces(out: &mut Vec<Finding>, spec: &PodSpec) {
    if spec.share_process_namespace == Some(true) && spec.host_pid == Some(true) {
        out.push(
            Finding::error(
                "namespaces",
                FieldPath::spec("shareProcessNamespace"),
                "shareProcessNamespace and hostPID cannot be combined",
            )
            .related(FieldPath::spec("hostPID"), "hostPID is set here")
            .hint("remove one: with hostPID the containers see each other anyway"),
        );
    }
    for (field, value) in [("hostname", &spec.hostname), ("subdomain", &spec.subdomain)] {
        if let Some(value) = value
            && let Some(fault) = words::dns_label_fault(value)
        {
            let message = format!("{field} {} {fault}", words::quote(value));
            out.push(propose_label(Finding::error("name", FieldPath::spec(field), message), value));
        }
    }
}

fn dns(out: &mut Vec<Finding>, spec: &PodSpec) {
    let config = spec.dns_config.as_ref();
    let nameservers: &[String] = config.and_then(|c| c.nameservers.as_deref()).unwrap_or_default();
    let at = |field| FieldPath::spec("dnsConfig").field(field);
    match spec.dns_policy.as_deref() {
        Some("None") if nameservers.is_empty() => out.push(
            Finding::error("dns", at("nameservers"), "dnsPolicy `None` needs at least one name server")
                .related(FieldPath::spec("dnsPolicy"), "the policy is set here")
                .hint("add `dnsConfig.nameservers`, or use dnsPolicy `Default`"),
        ),
        Some(policy) if !DNS_POLICIES.contains(&policy) => {
            let path = FieldPath::spec("dnsPolicy");
            out.push(words::not_one_of("dns", path, "a DNS policy", policy, &DNS_POLICIES));
        }
        _ => {}
    }
    if nameservers.len() > NAMESERVERS_MAX {
        let message = format!("{} name servers, more than {NAMESERVERS_MAX}", nameservers.len());
        out.push(Finding::error("dns", at("nameservers"), message));
    }
    for (i, server) in nameservers.iter().enumerate() {
        if server.parse::<IpAddr>().is_err() {
            let message = format!("name server {} is not an IP address", words::quote(server));
            out.push(Finding::error("dns", at("nameservers").index(i), message));
        }
    }
    let searches: &[String] = config.and_then(|c| c.searches.as_deref()).unwrap_or_default();
    if searches.len() > SEARCHES_MAX {
        let message = format!("{} search domains, more than {SEARCHES_MAX}", searches.len());
        out.push(Finding::error("dns", at("searches"), message));
    }
    let options = config.and_then(|c| c.options.as_deref()).unwrap_or_default();
    for (i, option) in options.iter().enumerate() {
        if option.name.as_deref().unwrap_or_default().is_empty() {
            out.push(Finding::error(
                "dns",
                at("options").index(i).field("name"),
                "a DNS option needs a name",
            ));
        }
    }
    for (i, alias) in spec.host_aliases.iter().flatten().enumerate() {
        let path = FieldPath::spec("hostAliases").index(i);
        if alias.ip.parse::<IpAddr>().is_err() {
            let message = format!("{} is not an IP address", words::quote(&alias.ip));
            out.push(Finding::error("dns", path.clone().field("ip"), message));
        }
        for (j, name) in alias.hostnames.iter().flatten().enumerate() {
            if let Some(fault) = words::dns_subdomain_fault(name) {
                let message = format!("host name {} {fault}", words::quote(name));
                out.push(Finding::error("dns", path.clone().field("hostnames").index(j), message));
            }
        }
    }
}

/// Checks the number of containers, and that their names are unique (R8.1, R8.2).
pub(super) fn check_lists(out: &mut Vec<Finding>, spec: &PodSpec, sites: &[Site<'_>]) {
    if spec.containers.is_empty() {
        let finding = Finding::error("R8.1", FieldPath::spec("containers"), "the pod has no containers");
        out.push(match sites.iter().find(|s| s.is_sidecar()) {
            Some(sidecar) => finding
                .related(sidecar.place.path(), "sidecars alone are not a pod")
                .hint("move the main container to `spec.containers`"),
            None => finding.hint("add at least one container to `spec.containers`"),
        });
    }
    if sites.len() > CONTAINERS_MAX {
        let message = format!("the pod has {} containers, more than {CONTAINERS_MAX}", sites.len());
        let list = |list: List| sites.iter().filter(|s| s.place.list == list).count();
        let longest = [List::Init, List::Main, List::Ephemeral]
            .into_iter()
            .max_by_key(|&l| list(l))
            .unwrap_or(List::Main);
        out.push(Finding::error("limit", FieldPath::spec(longest.field()), message).hint("split the pod"));
    }
    let mut seen: BTreeMap<&str, &Site<'_>> = BTreeMap::new();
    for site in sites {
        let name = site.container.name.as_str();
        let path = site.at("name");
        if name.is_empty() {
            out.push(
                Finding::error("name", path, "the container has no name")
                    .hint("add `name`, a short lower case word"),
            );
            continue;
        }
        if let Some(fault) = words::dns_label_fault(name) {
            let message = format!("container name {} {fault}", words::quote(name));
            out.push(propose_label(Finding::error("name", path.clone(), message), name));
        }
        match seen.get(name) {
            Some(first) => out.push(
                Finding::error("R8.2", path, format!("two containers are named {}", words::quote(name)))
                    .related(first.at("name"), "the name is first used here")
                    .hint("names are unique in a pod, over init, main and ephemeral containers: rename one"),
            ),
            None => {
                seen.insert(name, site);
            }
        }
    }
}
