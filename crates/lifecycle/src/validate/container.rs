//! Checks the fields of a container that have no module of their own.

use k8s_openapi::api::core::v1::PodSpec;

use super::{Site, words};
use crate::source::{FeatureGates, FieldPath, Finding, List, PodInput};

const PULL_POLICIES: [&str; 3] = ["Always", "IfNotPresent", "Never"];
const MESSAGE_POLICIES: [&str; 2] = ["File", "FallbackToLogsOnError"];

pub(super) fn check(
    out: &mut Vec<Finding>,
    input: &PodInput,
    spec: &PodSpec,
    site: &Site<'_>,
    gates: &FeatureGates,
) {
    let c = &site.container;
    match c.image.as_deref() {
        None | Some("") => out.push(
            Finding::error("image", site.at("image"), format!("container {} has no image", site.name()))
                .hint("add `image`"),
        ),
        Some(image) if image.contains(char::is_whitespace) => {
            let message = format!("image {} contains white space", words::quote(image));
            let trimmed: String = image.split_whitespace().collect();
            out.push(
                Finding::error("image", site.at("image"), message)
                    .hint(format!("write {}", words::quote(&trimmed))),
            );
        }
        Some(_) => {}
    }
    if let Some(policy) = &c.image_pull_policy
        && !PULL_POLICIES.contains(&policy.as_str())
    {
        let path = site.at("imagePullPolicy");
        out.push(words::not_one_of("image", path, "a pull policy", policy, &PULL_POLICIES));
    }
    if let Some(policy) = &c.termination_message_policy
        && !MESSAGE_POLICIES.contains(&policy.as_str())
    {
        let path = site.at("terminationMessagePolicy");
        out.push(words::not_one_of("message", path, "a message policy", policy, &MESSAGE_POLICIES));
    }
    for (code, field, path) in [
        ("message", "terminationMessagePath", &c.termination_message_path),
        ("working-dir", "workingDir", &c.working_dir),
    ] {
        if let Some(value) = path
            && !value.is_empty()
            && !value.starts_with('/')
        {
            let message = format!("{field} {} is not absolute", words::quote(value));
            out.push(
                Finding::error(code, site.at(field), message)
                    .hint(format!("write {}", words::quote(&format!("/{value}")))),
            );
        }
    }
    message_path(out, site);
    match site.place.list {
        List::Ephemeral => ephemeral(out, spec, site),
        List::Init if site.is_plain_init() => plain_init(out, input, site, gates),
        List::Init | List::Main => {}
    }
}

/// Directories that hold the kernel's file systems in every container.
const KERNEL_DIRS: [&str; 6] = ["/dev", "/dev/pts", "/dev/shm", "/dev/mqueue", "/proc", "/sys"];

/// Refuses a path that cannot be a file. Kubernetes accepts it, and then retries forever to start the
/// container.
fn message_path(out: &mut Vec<Finding>, site: &Site<'_>) {
    let Some(text) = site.container.termination_message_path.as_deref().filter(|t| t.starts_with('/')) else {
        return;
    };
    let mut parts: Vec<&str> = Vec::new();
    for part in text.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    let plain = format!("/{}", parts.join("/"));
    let fault = match parts.first() {
        None => "is the root directory",
        _ if KERNEL_DIRS.contains(&plain.as_str()) => "is a directory in every container",
        Some(&("proc" | "sys")) => "is in a file system of the kernel, where no file can be created",
        Some(_) => return,
    };
    let message = format!("terminationMessagePath {} {fault}", words::quote(text));
    out.push(
        Finding::error("message", site.at("terminationMessagePath"), message)
            .hint("write the path of a file, such as `/dev/termination-log`, which is the default"),
    );
}

/// Refuses fields that an init container can only have as a sidecar (R8.3, R8.4).
fn plain_init(out: &mut Vec<Finding>, input: &PodInput, site: &Site<'_>, gates: &FeatureGates) {
    let c = &site.container;
    // The dialect refuses a `lifecycle` that contains only `type`.
    let only_type = gates.sidecar_lifecycle_type
        && input.lifecycle_types.contains_key(&site.place)
        && c.lifecycle
            .as_ref()
            .is_some_and(|l| l.post_start.is_none() && l.pre_stop.is_none() && l.stop_signal.is_none());
    let given = [
        ("R8.3", "lifecycle", c.lifecycle.is_some() && !only_type),
        ("R8.4", "livenessProbe", c.liveness_probe.is_some()),
        ("R8.4", "readinessProbe", c.readiness_probe.is_some()),
        ("R8.4", "startupProbe", c.startup_probe.is_some()),
    ];
    for (code, field, _) in given.into_iter().filter(|g| g.2) {
        let message = format!("init container {} runs to completion and cannot have a {field}", site.name());
        let finding = Finding::error(code, site.at(field), message)
            .hint("add `restartPolicy: Always` to make it a sidecar, or remove the field");
        out.push(match &c.restart_policy {
            Some(policy) => finding.related(
                site.at("restartPolicy"),
                format!("{} does not make it a sidecar", words::quote(policy)),
            ),
            None => finding,
        });
    }
}

/// Checks the target container and the fields of an ephemeral container (R8.29).
fn ephemeral(out: &mut Vec<Finding>, spec: &PodSpec, site: &Site<'_>) {
    let c = &site.container;
    let given = [
        ("lifecycle", c.lifecycle.is_some()),
        ("livenessProbe", c.liveness_probe.is_some()),
        ("readinessProbe", c.readiness_probe.is_some()),
        ("startupProbe", c.startup_probe.is_some()),
        ("ports", c.ports.as_ref().is_some_and(|p| !p.is_empty())),
        ("resources", c.resources.is_some()),
        ("resizePolicy", c.resize_policy.as_ref().is_some_and(|p| !p.is_empty())),
        ("restartPolicy", c.restart_policy.is_some()),
        ("restartPolicyRules", c.restart_policy_rules.as_ref().is_some_and(|r| !r.is_empty())),
    ];
    for (field, _) in given.into_iter().filter(|g| g.1) {
        let message = format!("ephemeral container {} cannot have {field}", site.name());
        out.push(
            Finding::error("R8.29", site.at(field), message)
                .hint("remove the field, or make it a container of `spec.containers`"),
        );
    }
    let target = spec
        .ephemeral_containers
        .iter()
        .flatten()
        .nth(site.place.index)
        .and_then(|e| e.target_container_name.as_deref())
        .filter(|t| !t.is_empty());
    if let Some(target) = target {
        let names = || {
            let all = spec.init_containers.iter().flatten().chain(&spec.containers);
            all.map(|c| c.name.as_str())
        };
        if !names().any(|n| n == target) {
            let message = format!("target container {} does not exist", words::quote(target));
            out.push(unknown(site.at("targetContainerName"), message, target, names()));
        }
    }
}

/// An error about an unknown name. Its hint is the most similar known name.
pub(super) fn unknown<'a>(
    path: FieldPath,
    message: String,
    name: &str,
    known: impl IntoIterator<Item = &'a str>,
) -> Finding {
    let finding = Finding::error("name", path, message);
    match words::nearest(name, known) {
        Some(near) => finding.hint(format!("did you mean {}?", words::quote(near))),
        None => finding,
    }
}
