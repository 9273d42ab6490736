//! Finds requirements of pods that this machine can never meet, before anything starts.

use std::path::Path;

use k8s_openapi::api::core::v1::{Container, PodSpec, SeccompProfile};
use outrigger_agent::host_path::{self, HostPathFault};
use outrigger_agent::options::OnFailure;
use outrigger_agent::security::seccomp_profile_path;
use outrigger_embedded::rootless;
use outrigger_images::{
    invalid_reference, is_on_disk, missing_on_disk, not_an_image, unreadable_on_disk, user_on_disk,
};
use outrigger_lifecycle::{ContainerRef, FieldPath, List, PullCause, parse_quantity};
use outrigger_manifest::{
    Diagnostic, Manifest, PodManifest, check_host_ports, check_references, check_services,
};

use super::{Machine, RuntimeKind};

/// Checks for ConfigMaps, Secrets and keys that are not in the manifest, host ports used twice, Services, and images on
/// disk, host paths and profiles that are not on this machine.
pub(super) fn check(manifest: &Manifest, machine: &Machine) -> Vec<Diagnostic> {
    let is_embedded = matches!(machine.runtime, Some(RuntimeKind::Embedded(_)));
    let mut out = check_host_ports(manifest);
    out.extend(check_services(manifest));
    // The pods of a workload differ only in name, so only the first is checked.
    for pod in &manifest.pods {
        out.extend(check_references(manifest, pod));
        let Some(spec) = &pod.input.pod.spec else { continue };
        out.extend(host_paths(pod, spec, machine.on_failure));
        if is_embedded {
            out.extend(different_ids(pod, spec));
        }
        for (place, container) in containers(spec) {
            out.extend(image(pod, place, container, machine.is_cri()));
            out.extend(tiny_memory(pod, place, container));
            out.extend(root_forbidden(pod, spec, place, container, machine.on_failure));
            if is_embedded {
                out.extend(unmapped_ids(pod, spec, place, container));
            }
            if let Some(state_dir) = &machine.state_dir {
                out.extend(seccomp(pod, spec, place, container, state_dir));
            }
        }
    }
    out.sort_by_key(|d| d.span);
    // A setting of the pod applies to all its containers.
    out.dedup();
    out
}

fn containers(spec: &PodSpec) -> impl Iterator<Item = (ContainerRef, &Container)> {
    let inits = spec.init_containers.iter().flatten().enumerate();
    let inits = inits.map(|(index, c)| (ContainerRef { list: List::Init, index }, c));
    let mains = spec.containers.iter().enumerate();
    inits.chain(mains.map(|(index, c)| (ContainerRef { list: List::Main, index }, c)))
}

fn error(pod: &PodManifest, path: &FieldPath, code: &'static str, text: String) -> Diagnostic {
    let mut error = Diagnostic::error(pod.point(path), text);
    error.code = Some(code);
    error
}

/// Images on disk that do not exist, or cannot be run.
fn image(pod: &PodManifest, place: ContainerRef, container: &Container, cri: bool) -> Option<Diagnostic> {
    // A container without an image was refused before.
    let reference = container.image.as_deref().filter(|image| !image.is_empty())?;
    let at = place.path().field("image");
    if let Some((fault, help)) = image_fault(reference, cri) {
        return Some(error(pod, &at, "image", format!("image `{reference}`: {fault}")).hint(help));
    }
    let is_empty = |list: &Option<Vec<String>>| list.as_ref().is_none_or(Vec::is_empty);
    if is_root_directory(reference) && is_empty(&container.command) && is_empty(&container.args) {
        let text = format!("image `{reference}` is a directory and does not say which program to run");
        return Some(error(pod, &at, "image", text).hint("set `command`"));
    }
    None
}

/// Why an image on disk cannot be used, and what to write instead.
fn image_fault(reference: &str, cri: bool) -> Option<(String, String)> {
    if cri && is_on_disk(reference) {
        let fault = "a CRI runtime takes images from registries only";
        return Some((fault.to_owned(), "use an image of a registry, or --runtime embedded".to_owned()));
    }
    if !is_on_disk(reference)
        && let Some(error) = invalid_reference(reference)
    {
        let help = "write a name like `nginx:1.27` or `registry.example/shop/web:1.2`, in lower case";
        return Some((error.to_string(), help.to_owned()));
    }
    if let Some(fault) = unreadable_on_disk(reference) {
        let help = "let this user read it and enter the directories above it, copy it, or run it with sudo";
        return Some((fault, help.to_owned()));
    }
    if let Some(fault) = missing_on_disk(reference) {
        let help = match reference.strip_prefix("rootfs:").filter(|path| !path.starts_with('/')) {
            Some(path) => match std::fs::canonicalize(path).or_else(|_| std::path::absolute(path)) {
                Ok(absolute) => format!("write `rootfs:{}`", absolute.display()),
                Err(_) => "write the absolute path".to_owned(),
            },
            None => "write a path that exists on this machine".to_owned(),
        };
        return Some((fault, help));
    }
    // A path that is not an image does not become one while the pod waits.
    let fault = not_an_image(reference)?;
    let help = match fault.cause {
        Some(PullCause::Damaged) => "the image is damaged: copy, save or build it again",
        _ => {
            "write a path that holds an image: an OCI image layout (oci:), one in a tar file (oci-archive:), \
             what `docker save` writes (docker-archive:), or a directory to be used as it is (rootfs:)"
        }
    };
    Some((fault.detail, help.to_owned()))
}

/// Whether an image is a directory used as it is. Such an image has no configuration: no user and no command.
fn is_root_directory(reference: &str) -> bool {
    reference.starts_with("rootfs:")
}

/// The smallest memory limit that any process can start with.
const MEMORY_MIN: i64 = 512 << 10;

/// Memory limits that are probably a mistake: `100m` is a tenth of a byte.
fn tiny_memory(pod: &PodManifest, place: ContainerRef, container: &Container) -> Option<Diagnostic> {
    let written = &container.resources.as_ref()?.limits.as_ref()?.get("memory")?.0;
    // Invalid quantities were refused before. 0 means no limit.
    let amount = parse_quantity(written).ok().filter(|amount| !amount.is_zero() && !amount.is_negative())?;
    if amount.value() >= MEMORY_MIN && amount.is_whole() {
        return None;
    }
    let number = written.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = if written.ends_with('m') || written.ends_with('k') { "M" } else { "Mi" };
    let at = place.path().field("resources").field("limits").field("memory");
    let text =
        format!("memory limit `{written}` is too small for any process: `{}` cannot start", container.name);
    Some(error(pod, &at, "memory", text).hint(format!("did you mean `{number}{unit}`?")))
}

/// Finds `runAsNonRoot` where the container would run as root. The user of an image in a registry is known
/// only after the pull.
fn root_forbidden(
    pod: &PodManifest,
    spec: &PodSpec,
    place: ContainerRef,
    container: &Container,
    on_failure: OnFailure,
) -> Option<Diagnostic> {
    let (own, all) = (container.security_context.as_ref(), spec.security_context.as_ref());
    let of_own = own.and_then(|c| c.run_as_non_root);
    let non_root = of_own.or(all.and_then(|c| c.run_as_non_root)) == Some(true);
    let user = own.and_then(|c| c.run_as_user).or(all.and_then(|c| c.run_as_user));
    let reference = container.image.as_deref().unwrap_or_default();
    if !non_root || user.is_some() || !is_root_directory(reference) {
        return None;
    }
    let context = match of_own {
        Some(_) => place.path().field("securityContext"),
        None => FieldPath::spec("securityContext"),
    };
    let text = format!(
        "runAsNonRoot forbids root, and image `{reference}` runs as root: `{}` cannot start",
        container.name
    );
    // Only a change of the manifest helps.
    let span = pod.point(&context.field("runAsNonRoot"));
    let mut found = match on_failure {
        OnFailure::Retry => Diagnostic::warning(span, text),
        OnFailure::StopIfPermanent | OnFailure::Stop => Diagnostic::error(span, text),
    };
    found.code = Some("security");
    Some(found.hint("add `runAsUser`, for example 1000"))
}

/// Users and groups that do not exist for a run without root.
fn unmapped_ids(
    pod: &PodManifest,
    spec: &PodSpec,
    place: ContainerRef,
    container: &Container,
) -> Vec<Diagnostic> {
    let standing = rootless::standing();
    // If there is only one id, it can have any number.
    if !standing.is_rootless() || standing.has_one_id() {
        return Vec::new();
    }
    let mut out = Vec::new();
    for (kind, map) in [(IdKind::User, standing.uids()), (IdKind::Group, standing.gids())] {
        let Some((id, at)) = kind.wanted(spec, place, container) else { continue };
        // Numbers that are not ids were refused before.
        if u32::try_from(id).is_ok_and(|id| map.contains(id)) {
            continue;
        }
        let field = kind.field();
        let why = rootless::why_not_mapped(standing, map);
        let text = format!("{field} {id} does not exist here: {why}");
        out.push(
            error(pod, &at, "security", text).hint(format!(
                "do that, run it with sudo, or remove `{field}`: root in the container is you"
            )),
        );
    }
    out
}

/// Containers with different users or groups, where the whole pod can only have one id. Users of images in
/// registries are known only after the pull. Names of users are known only when their image is unpacked.
fn different_ids(pod: &PodManifest, spec: &PodSpec) -> Vec<Diagnostic> {
    let standing = rootless::standing();
    if !standing.is_rootless() || !standing.has_one_id() {
        return Vec::new();
    }
    let mut out = Vec::new();
    for kind in [IdKind::User, IdKind::Group] {
        let known = containers(spec).filter_map(|(place, container)| {
            let (id, at) = match kind.wanted(spec, place, container) {
                Some((id, at)) => (id, Some(at)),
                None => (image_id(kind, container.image.as_deref()?)?, None),
            };
            Some((&container.name, place, id, at))
        });
        let known: Vec<_> = known.collect();
        let Some((first, _, first_id, first_at)) = known.first() else { continue };
        for (name, place, id, at) in known.iter().filter(|(_, _, id, _)| id != first_id) {
            // The line of an id is more helpful than the line of an image.
            let at = at.as_ref().or(first_at.as_ref()).cloned();
            let at = at.unwrap_or_else(|| place.path().field("image"));
            let (noun, field) = (kind.noun(), kind.field());
            let why = rootless::why_one_id();
            let text = format!("`{first}` runs as {noun} {first_id}, and `{name}` as {noun} {id}: {why}");
            let help = format!("do that, run it with sudo, or set the same `{field}` for the whole pod");
            out.push(error(pod, &at, "security", text).hint(help));
        }
    }
    out
}

/// The id that an image on this disk sets, if it is a number. The group of a user without a group is unknown
/// here, because it is in the image's own files.
fn image_id(kind: IdKind, reference: &str) -> Option<i64> {
    let written = if is_root_directory(reference) { String::new() } else { user_on_disk(reference)? };
    let (user, group) = written.split_once(':').unwrap_or((&written, ""));
    match (kind, user, group) {
        (IdKind::User, "" | "root", _) => Some(0),
        (IdKind::User, user, _) => user.parse::<u32>().ok().map(i64::from),
        (IdKind::Group, _, group) => group.parse::<u32>().ok().map(i64::from),
    }
}

/// The two kinds of ids that a container runs with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum IdKind {
    User,
    Group,
}

impl IdKind {
    fn noun(self) -> &'static str {
        match self {
            IdKind::User => "user",
            IdKind::Group => "group",
        }
    }

    fn field(self) -> &'static str {
        match self {
            IdKind::User => "runAsUser",
            IdKind::Group => "runAsGroup",
        }
    }

    /// The id that the manifest sets for a container, and where.
    fn wanted(self, spec: &PodSpec, place: ContainerRef, container: &Container) -> Option<(i64, FieldPath)> {
        let (own, all) = (container.security_context.as_ref(), spec.security_context.as_ref());
        let (of_own, of_pod) = match self {
            IdKind::User => (own.and_then(|c| c.run_as_user), all.and_then(|c| c.run_as_user)),
            IdKind::Group => (own.and_then(|c| c.run_as_group), all.and_then(|c| c.run_as_group)),
        };
        let of_own = of_own.map(|id| (id, place.path()));
        let (id, owner) = of_own.or(of_pod.map(|id| (id, FieldPath::root().field("spec"))))?;
        Some((id, owner.field("securityContext").field(self.field())))
    }
}

/// Seccomp profiles that do not exist.
fn seccomp(
    pod: &PodManifest,
    spec: &PodSpec,
    place: ContainerRef,
    container: &Container,
    state_dir: &Path,
) -> Option<Diagnostic> {
    let own = container.security_context.as_ref();
    // A privileged container has no seccomp filter.
    if own.is_some_and(|c| c.privileged == Some(true)) {
        return None;
    }
    let of_own = own.and_then(|c| c.seccomp_profile.as_ref());
    let of_pod = || spec.security_context.as_ref().and_then(|c| c.seccomp_profile.as_ref());
    let (profile, context): (&SeccompProfile, FieldPath) = match of_own {
        Some(profile) => (profile, place.path()),
        None => (of_pod()?, FieldPath::root().field("spec")),
    };
    let name = profile.localhost_profile.as_deref().filter(|_| profile.type_ == "Localhost")?;
    // Paths that are not relative were refused before.
    let path = seccomp_profile_path(state_dir, name).ok()?;
    if path.is_file() {
        return None;
    }
    let at = context.field("securityContext").field("seccompProfile").field("localhostProfile");
    let text = format!("there is no seccomp profile {}", path.display());
    Some(error(pod, &at, "seccomp", text).hint("put the profile there, or use type `RuntimeDefault`"))
}

/// Host paths that do not exist yet, so that the pod waits for them, and those that can never be mounted.
fn host_paths(pod: &PodManifest, spec: &PodSpec, on_failure: OnFailure) -> Vec<Diagnostic> {
    let mut out = Vec::new();
    for (index, volume) in spec.volumes.iter().flatten().enumerate() {
        let Some(host_path) = &volume.host_path else { continue };
        let kind = host_path.type_.as_deref().unwrap_or_default();
        let path = &host_path.path;
        let Some(fault) = host_path::fault(Path::new(path), kind) else { continue };
        let (text, until, help) = match fault {
            HostPathFault::Other(wanted) => {
                let says = if kind.is_empty() { String::new() } else { format!(", as its type {kind} says") };
                let text = format!("hostPath `{path}` is not {wanted}{says}");
                (text, "until it is", "write another path, or another type")
            }
            HostPathFault::Denied => (
                format!("hostPath `{path}` cannot be used by this user"),
                "until it can",
                "let this user use the path, run it with sudo, or write another path",
            ),
            HostPathFault::Missing => (
                format!("hostPath `{path}` does not exist"),
                "until it does",
                match kind {
                    "Directory" => "create it, or use type `DirectoryOrCreate`",
                    "File" => "create it, or use type `FileOrCreate`",
                    _ => "start what creates it",
                },
            ),
        };
        let span = pod.point(&FieldPath::spec("volumes").index(index).field("hostPath").field("path"));
        // A missing path may still be created by a service that starts later. Other faults are errors, unless
        // failures are always retried.
        let mut found = match fault == HostPathFault::Missing || on_failure == OnFailure::Retry {
            true => Diagnostic::warning(span, format!("{text}: the pod waits {until}")),
            false => Diagnostic::error(span, text),
        };
        found.code = Some("host-path");
        out.push(found.hint(help));
    }
    out
}
