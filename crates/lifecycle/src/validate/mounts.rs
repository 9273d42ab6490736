//! Checks the volume mounts of a container.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{PodSpec, VolumeMount};

use super::{Site, container, words};
use crate::source::{FieldPath, Finding, List};

/// The most mounts for which similar volume names are suggested. Longer lists are not written by hand.
const SUGGESTIONS_MAX: usize = 200;
const PROPAGATIONS: [&str; 3] = ["None", "HostToContainer", "Bidirectional"];
const RECURSIVE: [&str; 3] = ["Disabled", "IfPossible", "Enabled"];

pub(super) fn check(out: &mut Vec<Finding>, spec: &PodSpec, site: &Site<'_>) {
    let names: BTreeSet<&str> = spec.volumes.iter().flatten().map(|v| v.name.as_str()).collect();
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for (i, mount) in site.container.volume_mounts.iter().flatten().enumerate() {
        let path = site.at("volumeMounts").index(i);
        volume(out, &names, &path, mount, i < SUGGESTIONS_MAX);
        mount_path(out, &path, mount);
        sub_path(out, &path, mount, site);
        flags(out, &path, mount, site);
        let key = mount.mount_path.trim_end_matches('/');
        if !mount.mount_path.is_empty()
            && let Some(first) = seen.insert(key, i)
        {
            let message = format!("two volumes are mounted at {}", words::quote(&mount.mount_path));
            out.push(
                Finding::error("mount", path.field("mountPath"), message)
                    .related(site.at("volumeMounts").index(first).field("mountPath"), "the first one")
                    .hint("mount one of them elsewhere"),
            );
        }
    }
}

fn volume(
    out: &mut Vec<Finding>,
    names: &BTreeSet<&str>,
    path: &FieldPath,
    mount: &VolumeMount,
    suggest: bool,
) {
    let path = path.clone().field("name");
    if mount.name.is_empty() {
        out.push(Finding::error("mount", path, "the mount has no volume name").hint("add `name`"));
        return;
    }
    if !names.contains(mount.name.as_str()) {
        let message = format!("volume {} does not exist", words::quote(&mount.name));
        let candidates = if suggest { usize::MAX } else { 0 };
        let mut finding =
            container::unknown(path, message, &mount.name, names.iter().copied().take(candidates));
        finding.code = "mount";
        if finding.hint.is_none() {
            finding.hint =
                Some(format!("add a volume named {} to `spec.volumes`", words::quote(&mount.name)));
        }
        out.push(finding);
    }
}

fn mount_path(out: &mut Vec<Finding>, path: &FieldPath, mount: &VolumeMount) {
    let path = path.clone().field("mountPath");
    if mount.mount_path.is_empty() {
        let message = format!("the mount of {} has no mountPath", words::quote(&mount.name));
        out.push(Finding::error("mount", path, message).hint("add `mountPath`"));
    } else if !mount.mount_path.starts_with('/') {
        let message = format!("mountPath {} is not absolute", words::quote(&mount.mount_path));
        let absolute = format!("/{}", mount.mount_path);
        out.push(Finding::error("mount", path, message).hint(format!("write {}", words::quote(&absolute))));
    } else if mount.mount_path.split('/').any(|part| part == "..") {
        let message = format!("mountPath {} must not contain `..`", words::quote(&mount.mount_path));
        out.push(Finding::error("mount", path, message));
    }
}

fn sub_path(out: &mut Vec<Finding>, path: &FieldPath, mount: &VolumeMount, site: &Site<'_>) {
    let given = |value: &Option<String>| value.clone().filter(|v| !v.is_empty());
    let (plain, expr) = (given(&mount.sub_path), given(&mount.sub_path_expr));
    for (field, value) in [("subPath", &plain), ("subPathExpr", &expr)] {
        if let Some(value) = value
            && let Some(fault) = words::local_path_fault(value)
        {
            let message = format!("{field} {} {fault}", words::quote(value));
            out.push(
                Finding::error("mount", path.clone().field(field), message)
                    .hint("it is a path inside the volume, such as `data/today`"),
            );
        }
    }
    if let Some(expr) = &expr
        && let Some(name) = missing_variable(expr, site)
    {
        let message =
            format!("subPathExpr {}: there is no variable {}", words::quote(expr), words::quote(name));
        out.push(
            Finding::error("mount", path.clone().field("subPathExpr"), message)
                .hint(format!("add {} to `env` of this container, or use `subPath`", words::quote(name))),
        );
    }
    if plain.is_some() && expr.is_some() {
        out.push(
            Finding::error(
                "mount",
                path.clone().field("subPathExpr"),
                "subPath and subPathExpr cannot be combined",
            )
            .related(path.clone().field("subPath"), "the other one")
            .hint("keep one of them"),
        );
    }
    if (plain.is_some() || expr.is_some()) && site.place.list == List::Ephemeral {
        let field = if plain.is_some() { "subPath" } else { "subPathExpr" };
        out.push(Finding::error(
            "R8.29",
            path.clone().field(field),
            "an ephemeral container mounts whole volumes only",
        ));
    }
}

/// The first variable of an expression that the container cannot have. Everything may be in `envFrom`, and a
/// cluster adds the variables of its Services.
fn missing_variable<'a>(expr: &'a str, site: &Site<'_>) -> Option<&'a str> {
    if site.container.env_from.iter().flatten().next().is_some() {
        return None;
    }
    let mut rest = expr;
    while let Some(at) = rest.find('$') {
        rest = &rest[at + 1..];
        if let Some(escaped) = rest.strip_prefix('$') {
            rest = escaped;
        } else if let Some((name, after)) = rest.strip_prefix('(').and_then(|name| name.split_once(')')) {
            let is_of_a_service = name.ends_with("_SERVICE_HOST") || name.contains("_PORT");
            let is_defined = site.container.env.iter().flatten().any(|variable| variable.name == name);
            if !is_defined && !is_of_a_service {
                return Some(name);
            }
            rest = after;
        }
    }
    None
}

fn flags(out: &mut Vec<Finding>, path: &FieldPath, mount: &VolumeMount, site: &Site<'_>) {
    if let Some(value) = &mount.mount_propagation {
        let path = path.clone().field("mountPropagation");
        let security = site.container.security_context.as_ref();
        let privileged = security.and_then(|s| s.privileged) == Some(true);
        if !PROPAGATIONS.contains(&value.as_str()) {
            out.push(words::not_one_of("mount", path, "a mount propagation", value, &PROPAGATIONS));
        } else if value == "Bidirectional" && !privileged {
            out.push(
                Finding::error(
                    "mount",
                    path,
                    "mountPropagation `Bidirectional` needs a privileged container",
                )
                .hint("use `HostToContainer`, or set `securityContext.privileged: true`"),
            );
        }
    }
    if let Some(value) = &mount.recursive_read_only {
        let path = path.clone().field("recursiveReadOnly");
        if !RECURSIVE.contains(&value.as_str()) {
            out.push(words::not_one_of("mount", path, "a value of recursiveReadOnly", value, &RECURSIVE));
        } else if value != "Disabled" && mount.read_only != Some(true) {
            out.push(
                Finding::error(
                    "mount",
                    path,
                    format!("recursiveReadOnly {} needs readOnly", words::quote(value)),
                )
                .hint("add `readOnly: true`"),
            );
        }
    }
}
