//! Checks a pod against the Pod Security Standards of Kubernetes 1.36, for users who run manifests of others.
//!
//! It implements every control of `baseline` and `restricted`. Both levels have one more control: an image
//! `rootfs:DIR` is refused, because it is a directory of the host, like a `hostPath` volume.
//!
//! As in Kubernetes, a pod with `hostUsers: false` may use root, because that is not root on the host. There
//! are no exceptions for Windows pods.

use k8s_openapi::api::core::v1::{
    AppArmorProfile, Capabilities, Lifecycle, LifecycleHandler, PodSpec, Probe, SELinuxOptions,
    SeccompProfile, Volume,
};

use super::{Site, sites, sorted, words};
use crate::confinement::APP_ARMOR_ANNOTATION;
use crate::source::{FieldPath, Finding, PodInput};

const CODE: &str = "pod-security";

/// What a pod may request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PodSecurityLevel {
    /// Nothing that is known to give control over the host.
    Baseline,
    /// Also requires settings that harden the pod.
    Restricted,
}

impl PodSecurityLevel {
    /// Its name in Kubernetes.
    pub fn name(self) -> &'static str {
        match self {
            PodSecurityLevel::Baseline => "baseline",
            PodSecurityLevel::Restricted => "restricted",
        }
    }
}

const BASELINE_CAPABILITIES: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];
const RESTRICTED_CAPABILITIES: [&str; 1] = ["NET_BIND_SERVICE"];
const SELINUX_TYPES: [&str; 5] =
    ["", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"];
const SYSCTLS: [&str; 12] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_wmem",
];

/// Refuses everything that the level does not allow, and the lack of everything that it requires.
pub fn validate_level(input: &PodInput, level: PodSecurityLevel) -> Vec<Finding> {
    let Some(spec) = &input.pod.spec else { return Vec::new() };
    let has_own_users = spec.host_users == Some(false);
    let mut check = Check { out: Vec::new(), level, has_own_users };
    let sites = sites(spec);
    check.pod(input, spec);
    for (index, volume) in spec.volumes.iter().flatten().enumerate() {
        check.volume(index, volume);
    }
    for site in &sites {
        check.container(spec, site);
    }
    sorted(check.out)
}

struct Check {
    out: Vec<Finding>,
    level: PodSecurityLevel,
    /// Whether the pod has `hostUsers: false`.
    has_own_users: bool,
}

impl Check {
    fn refuse(&mut self, path: FieldPath, what: impl std::fmt::Display, hint: impl Into<String>) {
        let message = format!("{what}, which the level `{}` does not allow", self.level.name());
        self.out.push(Finding::error(CODE, path, message).hint(hint));
    }

    fn require(&mut self, path: FieldPath, what: impl std::fmt::Display, hint: impl Into<String>) {
        let message = format!("{what}, which the level `{}` requires", self.level.name());
        self.out.push(Finding::error(CODE, path, message).hint(hint));
    }

    fn is_restricted(&self) -> bool {
        self.level == PodSecurityLevel::Restricted
    }

    fn forbids_root(&self) -> bool {
        self.is_restricted() && !self.has_own_users
    }

    fn pod(&mut self, input: &PodInput, spec: &PodSpec) {
        for (field, value) in
            [("hostNetwork", spec.host_network), ("hostPID", spec.host_pid), ("hostIPC", spec.host_ipc)]
        {
            if value == Some(true) {
                let what = format!("the pod uses {field}, a namespace of the host");
                self.refuse(FieldPath::spec(field), what, format!("remove `{field}: true`"));
            }
        }
        for (name, value) in input.pod.metadata.annotations.iter().flatten() {
            let is_allowed =
                value == "runtime/default" || value.starts_with("localhost/") || value.is_empty();
            if name.starts_with(APP_ARMOR_ANNOTATION) && !is_allowed {
                let what = format!("the AppArmor profile is {}", words::quote(value));
                let hint = "remove the annotation, or use `runtime/default`";
                self.refuse(FieldPath::annotation(name.clone()), what, hint);
            }
        }
        let Some(context) = &spec.security_context else { return };
        let at = |field: &'static str| FieldPath::spec("securityContext").field(field);
        if context.windows_options.as_ref().and_then(|options| options.host_process) == Some(true) {
            self.host_process(at("windowsOptions"));
        }
        self.app_armor(at("appArmorProfile"), context.app_armor_profile.as_ref());
        self.selinux(at("seLinuxOptions"), context.se_linux_options.as_ref());
        self.seccomp(at("seccompProfile"), context.seccomp_profile.as_ref());
        self.user(at("runAsUser"), context.run_as_user);
        if self.forbids_root() && context.run_as_non_root == Some(false) {
            let what = "the pod has `runAsNonRoot: false`";
            self.refuse(at("runAsNonRoot"), what, "write `runAsNonRoot: true`");
        }
        for (index, sysctl) in context.sysctls.iter().flatten().enumerate() {
            // Kubernetes accepts both separators.
            if !SYSCTLS.contains(&sysctl.name.replace('/', ".").as_str()) {
                let what = format!("the pod sets the sysctl {}", words::quote(&sysctl.name));
                let hint = format!("remove it; allowed: {}", SYSCTLS.join(", "));
                self.refuse(at("sysctls").index(index).field("name"), what, hint);
            }
        }
    }

    fn volume(&mut self, index: usize, volume: &Volume) {
        let path = FieldPath::spec("volumes").index(index);
        let name = words::quote(&volume.name);
        if let Some(host_path) = &volume.host_path {
            let what = format!("volume {name} is {} of the host", words::quote(&host_path.path));
            let hint = "use an emptyDir, a ConfigMap, a Secret or a persistentVolumeClaim";
            return self.refuse(path.field("hostPath"), what, hint);
        }
        if let Some(reference) = volume.image.as_ref().and_then(|image| image.reference.as_deref()) {
            self.image(path.clone().field("image").field("reference"), reference);
        }
        if self.is_restricted() && !is_allowed_volume(volume) {
            let what = format!("volume {name} is of another type than those of a pod's own data");
            let hint = "use configMap, csi, downwardAPI, emptyDir, ephemeral, image, persistentVolumeClaim, projected or secret";
            self.refuse(path, what, hint);
        }
    }

    fn image(&mut self, path: FieldPath, reference: &str) {
        if let Some(dir) = reference.strip_prefix("rootfs:") {
            let what = format!("the image is the directory {} of the host", words::quote(dir));
            self.refuse(
                path,
                what,
                "use an image of a registry, or one in a file (oci-archive:, docker-archive:)",
            );
        }
    }

    fn container(&mut self, spec: &PodSpec, site: &Site<'_>) {
        let container = &*site.container;
        let name = site.name();
        self.image(site.at("image"), container.image.as_deref().unwrap_or_default());
        for (index, port) in container.ports.iter().flatten().enumerate() {
            if port.host_port.is_some_and(|port| port != 0) {
                let what = format!("container {name} uses a port of the host");
                self.refuse(site.at("ports").index(index).field("hostPort"), what, "remove `hostPort`");
            }
        }
        self.hosts(site);
        let context = container.security_context.clone().unwrap_or_default();
        let at = |field: &'static str| site.at("securityContext").field(field);
        if context.windows_options.as_ref().and_then(|options| options.host_process) == Some(true) {
            self.host_process(at("windowsOptions"));
        }
        if context.privileged == Some(true) {
            let what = format!("container {name} is privileged");
            self.refuse(at("privileged"), what, "remove `privileged: true`");
        }
        let masks_proc = self.is_restricted() || !self.has_own_users;
        if let Some(mount) =
            context.proc_mount.as_deref().filter(|mount| masks_proc && !["", "Default"].contains(mount))
        {
            let what = format!("container {name} has procMount {}", words::quote(mount));
            self.refuse(at("procMount"), what, "remove `procMount`");
        }
        self.app_armor(at("appArmorProfile"), context.app_armor_profile.as_ref());
        self.selinux(at("seLinuxOptions"), context.se_linux_options.as_ref());
        self.seccomp(at("seccompProfile"), context.seccomp_profile.as_ref());
        self.capabilities(site, context.capabilities.as_ref());
        self.user(at("runAsUser"), context.run_as_user);
        if self.is_restricted() {
            self.hardening(spec, site, &context);
        }
    }

    /// Checks what `restricted` requires of a container. The setting can be the container's own or the pod's.
    fn hardening(
        &mut self,
        spec: &PodSpec,
        site: &Site<'_>,
        context: &k8s_openapi::api::core::v1::SecurityContext,
    ) {
        let (name, pod) = (site.name(), spec.security_context.as_ref());
        // A missing field is reported at the place where it would be written.
        let here = |field: &'static str, is_there: bool| match (is_there, &site.container.security_context) {
            (true, _) => site.at("securityContext").field(field),
            (false, Some(_)) => site.at("securityContext"),
            (false, None) => site.place.path(),
        };
        // A key must not be there twice.
        let own = |line: &str| missing_line(line, site.container.security_context.is_some(), "the container");
        let all = |line: &str| missing_line(line, pod.is_some(), "the pod's spec");
        if context.allow_privilege_escalation != Some(false) {
            let at = here("allowPrivilegeEscalation", context.allow_privilege_escalation.is_some());
            let what = format!("container {name} has no `allowPrivilegeEscalation: false`");
            let hint = match context.allow_privilege_escalation {
                Some(_) => "write `allowPrivilegeEscalation: false`".to_owned(),
                None => own("allowPrivilegeEscalation: false"),
            };
            self.require(at, what, hint);
        }
        let non_root = context.run_as_non_root.or(pod.and_then(|pod| pod.run_as_non_root));
        if self.forbids_root() && non_root != Some(true) {
            let at = here("runAsNonRoot", context.run_as_non_root.is_some());
            let what = format!("container {name} has no `runAsNonRoot: true`");
            let hint = match context.run_as_non_root {
                Some(_) => "write `runAsNonRoot: true`".to_owned(),
                None => all("runAsNonRoot: true"),
            };
            self.require(at, what, hint);
        }
        let profile = context.seccomp_profile.as_ref().or(pod.and_then(|pod| pod.seccomp_profile.as_ref()));
        if profile.is_none() {
            let what = format!("container {name} has no seccompProfile");
            let hint = all("seccompProfile: {type: RuntimeDefault}");
            self.require(here("seccompProfile", false), what, hint);
        }
        let drops = context.capabilities.as_ref().and_then(|all| all.drop.as_ref());
        if !drops.into_iter().flatten().any(|name| name == "ALL") {
            let what = format!("container {name} does not drop all capabilities");
            let hint = match context.capabilities.as_ref().map(|all| all.drop.is_some()) {
                Some(true) => "add `ALL` to `drop`".to_owned(),
                Some(false) => "add `drop: [ALL]` to the `capabilities` of the container".to_owned(),
                None => own("capabilities: {drop: [ALL]}"),
            };
            self.require(here("capabilities", context.capabilities.is_some()), what, hint);
        }
    }

    fn capabilities(&mut self, site: &Site<'_>, capabilities: Option<&Capabilities>) {
        let allowed: &[&str] =
            if self.is_restricted() { &RESTRICTED_CAPABILITIES } else { &BASELINE_CAPABILITIES };
        for (index, added) in capabilities.and_then(|all| all.add.as_ref()).into_iter().flatten().enumerate()
        {
            if !allowed.contains(&added.as_str()) {
                let path = site.at("securityContext").field("capabilities").field("add").index(index);
                let what = format!("container {} adds the capability {}", site.name(), words::quote(added));
                self.refuse(path, what, format!("remove it; allowed: {}", allowed.join(", ")));
            }
        }
    }

    fn host_process(&mut self, options: FieldPath) {
        self.refuse(
            options.field("hostProcess"),
            "it is a process of the host",
            "remove `hostProcess: true`",
        );
    }

    fn app_armor(&mut self, path: FieldPath, profile: Option<&AppArmorProfile>) {
        let Some(profile) = profile else { return };
        if !["RuntimeDefault", "Localhost"].contains(&profile.type_.as_str()) {
            let what = format!("the AppArmor profile has type {}", words::quote(&profile.type_));
            self.refuse(path.field("type"), what, "remove it, or use type `RuntimeDefault`");
        }
    }

    fn seccomp(&mut self, path: FieldPath, profile: Option<&SeccompProfile>) {
        let Some(profile) = profile else { return };
        if !["RuntimeDefault", "Localhost"].contains(&profile.type_.as_str()) {
            let what = format!("the seccomp profile has type {}", words::quote(&profile.type_));
            self.refuse(path.field("type"), what, "use type `RuntimeDefault`");
        }
    }

    fn selinux(&mut self, path: FieldPath, options: Option<&SELinuxOptions>) {
        let Some(options) = options else { return };
        let kind = options.type_.as_deref().unwrap_or_default();
        if !SELINUX_TYPES.contains(&kind) {
            let hint = format!("remove it; allowed:{}", SELINUX_TYPES.join(" "));
            self.refuse(
                path.clone().field("type"),
                format!("the SELinux type is {}", words::quote(kind)),
                hint,
            );
        }
        for (field, value) in [("user", &options.user), ("role", &options.role)] {
            if value.as_ref().is_some_and(|value| !value.is_empty()) {
                let what = format!("seLinuxOptions sets a {field}");
                self.refuse(path.clone().field(field), what, "remove it");
            }
        }
    }

    fn user(&mut self, path: FieldPath, user: Option<i64>) {
        if self.forbids_root() && user == Some(0) {
            self.refuse(path, "runAsUser is 0, which is root", "use another user, for example 1000");
        }
    }

    /// Probes and hooks connect from the host, so they must not reach other machines.
    fn hosts(&mut self, site: &Site<'_>) {
        let container = &*site.container;
        for (field, probe) in [
            ("livenessProbe", &container.liveness_probe),
            ("readinessProbe", &container.readiness_probe),
            ("startupProbe", &container.startup_probe),
        ] {
            if let Some(probe) = probe {
                self.handler_host(site.at(field), &of_probe(probe));
            }
        }
        let Some(Lifecycle { post_start, pre_stop, .. }) = &container.lifecycle else { return };
        for (field, handler) in [("postStart", post_start), ("preStop", pre_stop)] {
            if let Some(handler) = handler {
                self.handler_host(site.at("lifecycle").field(field), handler);
            }
        }
    }

    fn handler_host(&mut self, path: FieldPath, handler: &LifecycleHandler) {
        let http = handler.http_get.as_ref().and_then(|get| get.host.as_deref());
        let tcp = handler.tcp_socket.as_ref().and_then(|socket| socket.host.as_deref());
        for (field, host) in [("httpGet", http), ("tcpSocket", tcp)] {
            if let Some(host) = host.filter(|host| !host.is_empty()) {
                let what = format!("it connects to the host {}", words::quote(host));
                self.refuse(
                    path.clone().field(field).field("host"),
                    what,
                    "remove `host`: the pod itself is meant",
                );
            }
        }
    }
}

/// How to add a line to a `securityContext`, which may not be there.
fn missing_line(line: &str, has_context: bool, owner: &str) -> String {
    match has_context {
        true => format!("add `{line}` to the `securityContext` of {owner}"),
        false => format!("add `securityContext: {{{line}}}` to {owner}"),
    }
}

fn of_probe(probe: &Probe) -> LifecycleHandler {
    LifecycleHandler {
        http_get: probe.http_get.clone(),
        tcp_socket: probe.tcp_socket.clone(),
        ..LifecycleHandler::default()
    }
}

fn is_allowed_volume(volume: &Volume) -> bool {
    volume.config_map.is_some()
        || volume.csi.is_some()
        || volume.downward_api.is_some()
        || volume.empty_dir.is_some()
        || volume.ephemeral.is_some()
        || volume.image.is_some()
        || volume.persistent_volume_claim.is_some()
        || volume.projected.is_some()
        || volume.secret.is_some()
        // A volume without a source is an emptyDir.
        || *volume == (Volume { name: volume.name.clone(), ..Volume::default() })
}
