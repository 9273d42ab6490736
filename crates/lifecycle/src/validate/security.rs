//! Checks security contexts and sysctls.

use k8s_openapi::api::core::v1::{
    AppArmorProfile, PodSpec, SELinuxOptions, SeccompProfile, SecurityContext, Sysctl,
};

use super::{Site, words};
use crate::confinement::{APP_ARMOR_ANNOTATION, annotated};
use crate::source::{FieldPath, Finding, PodInput};

const PROFILES: [&str; 3] = ["RuntimeDefault", "Localhost", "Unconfined"];
const CAPABILITIES: [&str; 42] = [
    "ALL",
    "AUDIT_CONTROL",
    "AUDIT_READ",
    "AUDIT_WRITE",
    "BLOCK_SUSPEND",
    "BPF",
    "CHECKPOINT_RESTORE",
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "IPC_LOCK",
    "IPC_OWNER",
    "KILL",
    "LEASE",
    "LINUX_IMMUTABLE",
    "MAC_ADMIN",
    "MAC_OVERRIDE",
    "MKNOD",
    "NET_ADMIN",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_RAW",
    "PERFMON",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYSLOG",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_CHROOT",
    "SYS_MODULE",
    "SYS_NICE",
    "SYS_PACCT",
    "SYS_PTRACE",
    "SYS_RAWIO",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "WAKE_ALARM",
];
/// The number of ids in a pod's user namespace.
pub const NAMESPACE_IDS: i64 = 65_536;
/// The longest name of a sysctl that Kubernetes accepts.
const SYSCTL_BYTES_MAX: usize = 253;

pub(super) fn check_pod(out: &mut Vec<Finding>, input: &PodInput, spec: &PodSpec, sites: &[Site<'_>]) {
    annotated_profiles(out, input, sites);
    host_namespaces(out, spec);
    let Some(context) = &spec.security_context else { return };
    let path = FieldPath::spec("securityContext");
    ids(
        out,
        spec,
        &path,
        &[
            ("runAsUser", context.run_as_user),
            ("runAsGroup", context.run_as_group),
            ("fsGroup", context.fs_group),
        ],
    );
    for (i, &group) in context.supplemental_groups.iter().flatten().enumerate() {
        id(out, spec, path.clone().field("supplementalGroups").index(i), "supplemental group", group);
    }
    for (field, value, allowed) in [
        ("fsGroupChangePolicy", &context.fs_group_change_policy, ["Always", "OnRootMismatch"]),
        ("supplementalGroupsPolicy", &context.supplemental_groups_policy, ["Merge", "Strict"]),
    ] {
        if let Some(value) = value
            && !allowed.contains(&value.as_str())
        {
            let what = format!("a value of {field}");
            out.push(words::not_one_of("security", path.clone().field(field), &what, value, &allowed));
        }
    }
    seccomp(out, &path, context.seccomp_profile.as_ref());
    app_armor(out, &path, context.app_armor_profile.as_ref());
    selinux(out, &path, context.se_linux_options.as_ref());
    if context.windows_options.is_some() {
        let message = "windowsOptions has no effect here: this is not Windows";
        out.push(Finding::warning("ignored", path.clone().field("windowsOptions"), message));
    }
    for (i, sysctl) in context.sysctls.iter().flatten().enumerate() {
        check_sysctl(out, path.clone().field("sysctls").index(i).field("name"), spec, sysctl);
    }
}

pub(super) fn check(out: &mut Vec<Finding>, spec: &PodSpec, site: &Site<'_>) {
    let path = site.at("securityContext");
    let context = site.container.security_context.clone().unwrap_or_default();
    ids(out, spec, &path, &[("runAsUser", context.run_as_user), ("runAsGroup", context.run_as_group)]);
    root(out, spec, &path, &context);
    escalation(out, &path, &context);
    for (field, names) in [
        ("add", context.capabilities.as_ref().and_then(|c| c.add.as_ref())),
        ("drop", context.capabilities.as_ref().and_then(|c| c.drop.as_ref())),
    ] {
        for (i, name) in names.into_iter().flatten().enumerate() {
            capability(out, path.clone().field("capabilities").field(field).index(i), name);
        }
    }
    seccomp(out, &path, context.seccomp_profile.as_ref());
    app_armor(out, &path, context.app_armor_profile.as_ref());
    selinux(out, &path, context.se_linux_options.as_ref());
    if context.proc_mount.as_deref() == Some("Unmasked") && spec.host_users != Some(false) {
        out.push(
            Finding::error(
                "security",
                path.clone().field("procMount"),
                "procMount `Unmasked` needs `hostUsers: false`: without a user namespace it opens the host's /proc",
            )
            .hint("add `hostUsers: false` to the pod's spec, or remove procMount"),
        );
    }
    if let Some(mount) = &context.proc_mount
        && !["Default", "Unmasked"].contains(&mount.as_str())
    {
        let path = path.clone().field("procMount");
        out.push(words::not_one_of(
            "security",
            path,
            "a kind of /proc mount",
            mount,
            &["Default", "Unmasked"],
        ));
    }
}

/// Refuses a user namespace together with namespaces of the host, over which it has no power. The API server
/// refuses this too.
fn host_namespaces(out: &mut Vec<Finding>, spec: &PodSpec) {
    if spec.host_users != Some(false) {
        return;
    }
    for (field, value) in
        [("hostNetwork", spec.host_network), ("hostPID", spec.host_pid), ("hostIPC", spec.host_ipc)]
    {
        if value == Some(true) {
            let message = format!(
                "`hostUsers: false` cannot be applied with {field}: that namespace belongs to the host's users, and the \
                 pod's own users have no rights in it"
            );
            out.push(
                Finding::error("security", FieldPath::spec("hostUsers"), message)
                    .related(FieldPath::spec(field), "the host's namespace is requested here")
                    .hint(format!("remove `{field}: true`, or `hostUsers: false`")),
            );
        }
    }
}

fn ids(out: &mut Vec<Finding>, spec: &PodSpec, path: &FieldPath, fields: &[(&'static str, Option<i64>)]) {
    for &(field, value) in fields {
        if let Some(value) = value {
            id(out, spec, path.clone().field(field), field, value);
        }
    }
}

fn id(out: &mut Vec<Finding>, spec: &PodSpec, path: FieldPath, what: &str, value: i64) {
    if !(0..=i64::from(i32::MAX)).contains(&value) {
        let message = format!("{what} {value} is not between 0 and {}", i32::MAX);
        out.push(Finding::error("security", path, message));
    } else if spec.host_users == Some(false) && value >= NAMESPACE_IDS {
        let last = NAMESPACE_IDS - 1;
        let message =
            format!("{what} {value} does not exist in the pod's user namespace, which has 0 to {last}");
        out.push(
            Finding::error("security", path, message)
                .related(FieldPath::spec("hostUsers"), "the user namespace is requested here")
                .hint(format!("use an id up to {last}, or remove `hostUsers: false`")),
        );
    }
}

/// Refuses `runAsNonRoot` with `runAsUser: 0`. Both can be set in the pod or in the container; the
/// container's value takes precedence.
fn root(out: &mut Vec<Finding>, spec: &PodSpec, path: &FieldPath, context: &SecurityContext) {
    let pod = spec.security_context.as_ref();
    let pod_path = FieldPath::spec("securityContext");
    let (non_root, non_root_at) = match context.run_as_non_root {
        Some(own) => (own, path),
        None => (pod.and_then(|p| p.run_as_non_root) == Some(true), &pod_path),
    };
    let (user, user_at) = match context.run_as_user {
        Some(own) => (Some(own), path),
        None => (pod.and_then(|p| p.run_as_user), &pod_path),
    };
    if non_root && user == Some(0) {
        let finding = Finding::error(
            "security",
            user_at.clone().field("runAsUser"),
            "runAsUser 0 is root, and runAsNonRoot forbids root: the container could never start",
        )
        .related(non_root_at.clone().field("runAsNonRoot"), "root is forbidden here")
        .hint("give another user, or remove runAsNonRoot");
        // A conflict in the pod's own context affects every container, but is reported once.
        if !out.contains(&finding) {
            out.push(finding);
        }
    }
}

fn escalation(out: &mut Vec<Finding>, path: &FieldPath, context: &SecurityContext) {
    if context.allow_privilege_escalation != Some(false) {
        return;
    }
    let at = path.clone().field("allowPrivilegeEscalation");
    if context.privileged == Some(true) {
        out.push(
            Finding::error(
                "security",
                at,
                "a privileged container cannot be kept from escalating its privileges",
            )
            .related(path.clone().field("privileged"), "it is privileged here")
            .hint("remove `privileged: true`, or `allowPrivilegeEscalation: false`"),
        );
        return;
    }
    let added = context.capabilities.as_ref().and_then(|c| c.add.as_deref()).unwrap_or_default();
    if let Some(i) = added.iter().position(|c| ["SYS_ADMIN", "CAP_SYS_ADMIN"].contains(&c.as_str())) {
        out.push(
            Finding::error(
                "security",
                at,
                "a container with SYS_ADMIN cannot be kept from escalating its privileges",
            )
            .related(path.clone().field("capabilities").field("add").index(i), "SYS_ADMIN is added here")
            .hint("drop SYS_ADMIN, or remove `allowPrivilegeEscalation: false`"),
        );
    }
}

fn capability(out: &mut Vec<Finding>, path: FieldPath, name: &str) {
    if CAPABILITIES.contains(&name) {
        return;
    }
    let upper = name.to_ascii_uppercase();
    let bare = upper.strip_prefix("CAP_").unwrap_or(&upper);
    let text = format!("capability {} is not known", words::quote(name));
    let finding = match CAPABILITIES.contains(&bare) {
        // It works here, but not in every cluster.
        true => Finding::warning("security", path, text),
        false => Finding::error("security", path, text),
    };
    out.push(match words::nearest(bare, CAPABILITIES) {
        Some(near) => finding.hint(format!("did you mean {}?", words::quote(near))),
        None => finding,
    });
}

fn seccomp(out: &mut Vec<Finding>, path: &FieldPath, profile: Option<&SeccompProfile>) {
    if let Some(p) = profile {
        confinement(
            out,
            path.clone().field("seccompProfile"),
            &p.type_,
            p.localhost_profile.as_deref(),
            true,
        );
    }
}

fn app_armor(out: &mut Vec<Finding>, path: &FieldPath, profile: Option<&AppArmorProfile>) {
    if let Some(p) = profile {
        confinement(
            out,
            path.clone().field("appArmorProfile"),
            &p.type_,
            p.localhost_profile.as_deref(),
            false,
        );
    }
}

/// Refuses SELinux labels. The embedded runtime does not label files, and a process label without file labels
/// would only break the container.
fn selinux(out: &mut Vec<Finding>, path: &FieldPath, options: Option<&SELinuxOptions>) {
    if options.is_some() {
        let message = "seLinuxOptions is applied with `--runtime cri` only; the embedded runtime refuses it";
        out.push(Finding::warning("security", path.clone().field("seLinuxOptions"), message));
    }
}

/// Checks AppArmor profiles that are set by the old annotation.
fn annotated_profiles(out: &mut Vec<Finding>, input: &PodInput, sites: &[Site<'_>]) {
    for (key, value) in input.pod.metadata.annotations.iter().flatten() {
        let Some(name) = key.strip_prefix(APP_ARMOR_ANNOTATION) else { continue };
        let at = FieldPath::annotation(key.clone());
        let Some(site) = sites.iter().find(|site| site.container.name == name) else {
            let message = format!("there is no container {} for this AppArmor profile", words::quote(name));
            out.push(Finding::error("security", at, message));
            continue;
        };
        let Some(profile) = annotated(value) else {
            out.push(
                Finding::error("security", at, format!("{} is not an AppArmor profile", words::quote(value)))
                    .hint("write `runtime/default`, `unconfined` or `localhost/NAME`"),
            );
            continue;
        };
        let own = site.container.security_context.as_ref().and_then(|c| c.app_armor_profile.as_ref());
        if let Some(own) = own.filter(|own| **own != profile) {
            let message =
                format!("the annotation says {}, appArmorProfile says `{}`", words::quote(value), own.type_);
            let field = site.at("securityContext").field("appArmorProfile");
            out.push(
                Finding::error("security", at, message)
                    .related(field, "the profile is also given here")
                    .hint("remove the annotation"),
            );
        }
    }
}

fn confinement(out: &mut Vec<Finding>, path: FieldPath, kind: &str, local: Option<&str>, is_file: bool) {
    let at = path.clone().field("localhostProfile");
    match (kind, local) {
        ("Localhost", None | Some("")) => out.push(
            Finding::error("security", at, "type `Localhost` needs a localhostProfile")
                .related(path.field("type"), "the type is set here")
                .hint("add `localhostProfile`, or use type `RuntimeDefault`"),
        ),
        ("Localhost", Some(local)) => {
            if is_file && let Some(fault) = words::local_path_fault(local) {
                let message = format!("localhostProfile {} {fault}", words::quote(local));
                out.push(Finding::error("security", at, message));
            }
        }
        ("RuntimeDefault" | "Unconfined", Some(local)) => {
            let message =
                format!("localhostProfile {} has no effect with type `{kind}`", words::quote(local));
            out.push(
                Finding::error("security", at, message)
                    .related(path.field("type"), "the type is set here")
                    .hint("use type `Localhost`, or remove localhostProfile"),
            );
        }
        ("RuntimeDefault" | "Unconfined", None) => {}
        (other, _) => {
            out.push(words::not_one_of(
                "security",
                path.field("type"),
                "a type of profile",
                other,
                &PROFILES,
            ));
        }
    }
}

fn check_sysctl(out: &mut Vec<Finding>, path: FieldPath, spec: &PodSpec, sysctl: &Sysctl) {
    let name = sysctl.name.as_str();
    let part = |p: &str| {
        let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_');
        !p.is_empty() && p.bytes().all(inner)
    };
    if name.is_empty() || name.len() > SYSCTL_BYTES_MAX || !name.split(['.', '/']).all(part) {
        let message = format!("{} is not a valid sysctl name", words::quote(name));
        out.push(Finding::error("sysctl", path, message).hint("for example `net.core.somaxconn`"));
        return;
    }
    let dotted = name.replace('/', ".");
    let starts = |prefixes: &[&str]| prefixes.iter().any(|p| dotted.starts_with(p));
    let net = starts(&["net."]);
    let ipc = starts(&["kernel.shm", "kernel.msg", "kernel.sem", "fs.mqueue."]);
    let uts = ["kernel.domainname", "kernel.hostname"].contains(&dotted.as_str());
    let host = |field: &'static str| {
        Finding::error(
            "sysctl",
            path.clone(),
            format!("sysctl {} would change the host: the pod uses its namespace", words::quote(name)),
        )
        .related(FieldPath::spec(field), "the host's namespace is requested here")
        .hint("remove one of them")
    };
    if net && spec.host_network == Some(true) {
        out.push(host("hostNetwork"));
    } else if ipc && spec.host_ipc == Some(true) {
        out.push(host("hostIPC"));
    } else if !net && !ipc && !uts {
        let message =
            format!("sysctl {} is not namespaced: it would change the whole host", words::quote(name));
        out.push(
            Finding::error("sysctl", path, message)
                .hint("a pod can set net.*, kernel.shm*, kernel.msg*, kernel.sem and fs.mqueue.*"),
        );
    }
}
