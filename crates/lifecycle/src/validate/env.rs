//! Checks environment variables and the sources of their values.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    EnvFromSource, EnvVar, EnvVarSource, ObjectFieldSelector, ResourceFieldSelector,
};

use super::{Site, container, resources, words};
use crate::source::{FieldPath, Finding};

const ENV_FIELDS: [&str; 11] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "metadata.labels['KEY']",
    "metadata.annotations['KEY']",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
const FILE_FIELDS: [&str; 7] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "metadata.labels",
    "metadata.annotations",
    "metadata.labels['KEY']",
    "metadata.annotations['KEY']",
];
const RESOURCES: [&str; 6] = [
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
];

pub(super) fn check(out: &mut Vec<Finding>, site: &Site<'_>, sites: &[Site<'_>]) {
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for (i, var) in site.container.env.iter().flatten().enumerate() {
        let path = site.at("env").index(i);
        variable(out, path.clone(), var, sites);
        if let Some(first) = seen.insert(&var.name, i)
            && !var.name.is_empty()
        {
            let message = format!("{} is set twice: the last one counts", words::quote(&var.name));
            out.push(
                Finding::warning("env", path.field("name"), message)
                    .related(site.at("env").index(first).field("name"), "this one is hidden")
                    .hint("remove one"),
            );
        }
    }
    for (i, from) in site.container.env_from.iter().flatten().enumerate() {
        env_from(out, site.at("envFrom").index(i), from);
    }
}

fn variable(out: &mut Vec<Finding>, path: FieldPath, var: &EnvVar, sites: &[Site<'_>]) {
    if var.name.is_empty() {
        let path = path.clone().field("name");
        out.push(Finding::error("env", path, "an environment variable has no name").hint("add `name`"));
    } else if let Some(fault) = words::env_name_fault(&var.name) {
        let message = format!("environment variable name {} {fault}", words::quote(&var.name));
        out.push(Finding::error("env", path.clone().field("name"), message));
    }
    let Some(from) = &var.value_from else { return };
    if var.value.as_ref().is_some_and(|v| !v.is_empty()) {
        let message = format!("{} has both a value and a valueFrom", words::quote(&var.name));
        out.push(
            Finding::error("env", path.clone().field("valueFrom"), message)
                .related(path.clone().field("value"), "the value is here")
                .hint("keep one of them"),
        );
    }
    source(out, path.field("valueFrom"), from, sites);
}

fn source(out: &mut Vec<Finding>, path: FieldPath, from: &EnvVarSource, sites: &[Site<'_>]) {
    exactly_one(
        out,
        "env",
        &path,
        &[
            ("configMapKeyRef", from.config_map_key_ref.is_some()),
            ("fieldRef", from.field_ref.is_some()),
            ("fileKeyRef", from.file_key_ref.is_some()),
            ("resourceFieldRef", from.resource_field_ref.is_some()),
            ("secretKeyRef", from.secret_key_ref.is_some()),
        ],
        "configMapKeyRef, secretKeyRef, fieldRef or resourceFieldRef",
    );
    if from.file_key_ref.is_some() {
        out.push(
            Finding::error("env", path.clone().field("fileKeyRef"), "fileKeyRef is not supported")
                .hint("use configMapKeyRef or secretKeyRef, or read the file in the container's command"),
        );
    }
    let refs = [
        ("configMapKeyRef", "ConfigMap", from.config_map_key_ref.as_ref().map(|r| (&r.name, &r.key))),
        ("secretKeyRef", "Secret", from.secret_key_ref.as_ref().map(|r| (&r.name, &r.key))),
    ];
    for (field, kind, key_ref) in refs {
        let Some((name, key)) = key_ref else { continue };
        let path = path.clone().field(field);
        if name.is_empty() {
            let message = format!("the {kind} has no name");
            out.push(Finding::error("env", path.clone().field("name"), message).hint("add `name`"));
        }
        if key.is_empty() {
            let message = format!("the key of the {kind} is missing");
            out.push(Finding::error("env", path.field("key"), message).hint("add `key`"));
        }
    }
    if let Some(field) = &from.field_ref {
        field_ref(out, "env", path.clone().field("fieldRef"), field, &ENV_FIELDS);
    }
    if let Some(resource) = &from.resource_field_ref {
        resource_field_ref(out, "env", path.field("resourceFieldRef"), resource, sites);
    }
}

fn env_from(out: &mut Vec<Finding>, path: FieldPath, from: &EnvFromSource) {
    exactly_one(
        out,
        "env",
        &path,
        &[("configMapRef", from.config_map_ref.is_some()), ("secretRef", from.secret_ref.is_some())],
        "configMapRef or secretRef",
    );
    if let Some(prefix) = &from.prefix
        && let Some(fault) = words::env_name_fault(prefix)
    {
        let message = format!("prefix {} {fault}", words::quote(prefix));
        out.push(Finding::error("env", path.clone().field("prefix"), message));
    }
    let refs = [
        ("configMapRef", "ConfigMap", from.config_map_ref.as_ref().map(|r| &r.name)),
        ("secretRef", "Secret", from.secret_ref.as_ref().map(|r| &r.name)),
    ];
    for (field, kind, name) in refs {
        if name.is_some_and(String::is_empty) {
            let message = format!("the {kind} has no name");
            let path = path.clone().field(field).field("name");
            out.push(Finding::error("env", path, message).hint("add `name`"));
        }
    }
}

/// Requires that exactly one of several fields is set.
pub(super) fn exactly_one(
    out: &mut Vec<Finding>,
    code: &'static str,
    path: &FieldPath,
    fields: &[(&'static str, bool)],
    expected: &str,
) {
    let given: Vec<&'static str> = fields.iter().filter_map(|&(name, is)| is.then_some(name)).collect();
    match given.as_slice() {
        [] => out.push(
            Finding::error(code, path.clone(), "no source is given").hint(format!("add one of {expected}")),
        ),
        [first, extra @ ..] => out.extend(extra.iter().map(|extra| {
            Finding::error(
                code,
                path.clone().field(*extra),
                format!("a second source, {extra}, after {first}"),
            )
            .related(path.clone().field(*first), "the first source")
            .hint("keep exactly one source")
        })),
    }
}

/// Checks a field of the pod that becomes a file.
pub(super) fn file_field_ref(out: &mut Vec<Finding>, path: FieldPath, field: &ObjectFieldSelector) {
    field_ref(out, "volume", path, field, &FILE_FIELDS);
}

fn field_ref(
    out: &mut Vec<Finding>,
    code: &'static str,
    path: FieldPath,
    field: &ObjectFieldSelector,
    allowed: &[&str],
) {
    if let Some(version) = &field.api_version
        && version != "v1"
    {
        let path = path.clone().field("apiVersion");
        out.push(words::not_one_of(code, path, "the API version of a pod", version, &["v1"]));
    }
    let path = path.field("fieldPath");
    let text = field.field_path.as_str();
    let key = ["metadata.labels", "metadata.annotations"]
        .into_iter()
        .find_map(|map| text.strip_prefix(map)?.strip_prefix("['")?.strip_suffix("']"));
    match key {
        Some(key) => {
            if let Some(fault) = words::qualified_name_fault(key) {
                out.push(Finding::error(code, path, format!("key {} {fault}", words::quote(key))));
            }
        }
        None if allowed.contains(&text) && !text.contains('[') => {}
        None => {
            let message = format!("field {} cannot be used here", words::quote(text));
            let finding = Finding::error(code, path, message);
            out.push(match words::nearest(text, allowed.iter().copied()) {
                Some(near) => finding.hint(format!("did you mean {}?", words::quote(near))),
                None => finding.hint(format!("use one of {}", allowed.join(", "))),
            });
        }
    }
}

/// Checks a resource of a container that becomes a variable or a file.
pub(super) fn resource_field_ref(
    out: &mut Vec<Finding>,
    code: &'static str,
    path: FieldPath,
    resource: &ResourceFieldSelector,
    sites: &[Site<'_>],
) {
    let name = resource.resource.as_str();
    let huge = name
        .split_once('.')
        .is_some_and(|(kind, rest)| ["limits", "requests"].contains(&kind) && rest.starts_with("hugepages-"));
    if !RESOURCES.contains(&name) && !huge {
        out.push(words::not_one_of(
            code,
            path.clone().field("resource"),
            "a resource of a container",
            name,
            &RESOURCES,
        ));
    }
    if let Some(container) = resource.container_name.as_ref().filter(|n| !n.is_empty())
        && !sites.iter().any(|s| s.container.name == *container)
    {
        let message = format!("container {} does not exist", words::quote(container));
        let names = sites.iter().map(|s| s.container.name.as_str());
        out.push(container::unknown(path.clone().field("containerName"), message, container, names));
    }
    if let Some(divisor) = &resource.divisor {
        resources::quantity(out, code, path.field("divisor"), &divisor.0);
    }
}
