//! Checks whether the embedded runtime can apply the AppArmor and SELinux settings of pods on this machine.

use outrigger_agent::security::app_armor;
use outrigger_lifecycle::{ContainerRef, FieldPath, List, SettingOrigin, app_armor_profile, selinux_options};
use outrigger_manifest::Diagnostic;
use outrigger_runtime::{AppArmor, NetworkMode};

use crate::work::{PlannedPod, Work};

/// Errors for settings that cannot be applied, each with its line, and one warning if AppArmor is not active.
pub(super) fn check(work: &Work) -> Vec<Diagnostic> {
    let mut findings = Vec::new();
    let mut is_idle = None;
    for pod in &work.pods {
        check_pod(pod, &mut findings, &mut is_idle);
    }
    findings.extend(is_idle);
    findings
}

/// Errors for pods that require their own user namespace, in a run on the host's network.
pub(super) fn check_network(work: &Work, network: NetworkMode) -> Vec<Diagnostic> {
    // Without root, everything is already in a user namespace.
    if network != NetworkMode::Host || outrigger_embedded::rootless::standing().is_rootless() {
        return Vec::new();
    }
    let insists = |pod: &&PlannedPod| {
        pod.manifest.input.pod.spec.as_ref().is_some_and(|spec| spec.host_users == Some(false))
    };
    let refused = work.pods.iter().filter(insists).map(|pod| {
        let text = "`hostUsers: false` cannot be applied with --network host: that network belongs to the host's users, \
                    and the pod's own users have no rights in it";
        Diagnostic::error(pod.manifest.point(&FieldPath::spec("hostUsers")), text)
            .hint("remove `hostUsers: false`, or use another --network")
    });
    refused.collect()
}

/// The same for a CRI runtime.
pub(super) fn check_cri(work: &Work) -> Vec<Diagnostic> {
    let mut findings = Vec::new();
    for pod in &work.pods {
        let Some(spec) = &pod.manifest.input.pod.spec else { continue };
        if spec.host_users == Some(false) {
            let span = pod.manifest.point(&FieldPath::spec("hostUsers"));
            let text = "`hostUsers: false` is not supported with --runtime cri";
            findings.push(Diagnostic::error(span, text).hint("remove it, or use --runtime embedded"));
        }
        let inits = spec.init_containers.iter().flatten().enumerate().map(|(i, c)| (List::Init, i, c));
        let mains = spec.containers.iter().enumerate().map(|(i, c)| (List::Main, i, c));
        for (list, index, container) in inits.chain(mains) {
            for (at, mount) in container.volume_mounts.iter().flatten().enumerate() {
                if mount.recursive_read_only.as_deref() == Some("Enabled") {
                    let path = ContainerRef { list, index }.path().field("volumeMounts").index(at);
                    let span = pod.manifest.point(&path.field("recursiveReadOnly"));
                    let text = "recursiveReadOnly `Enabled` is not supported with --runtime cri";
                    let hint = "use `IfPossible`, or --runtime embedded, where read-only mounts are always recursive";
                    findings.push(Diagnostic::error(span, text).hint(hint));
                }
            }
        }
    }
    findings
}

fn check_pod(pod: &PlannedPod, findings: &mut Vec<Diagnostic>, is_idle: &mut Option<Diagnostic>) {
    let object = &pod.manifest.input.pod;
    let Some(spec) = &object.spec else { return };
    let inits = spec.init_containers.iter().flatten().enumerate().map(|(i, c)| (List::Init, i, c));
    let mains = spec.containers.iter().enumerate().map(|(i, c)| (List::Main, i, c));
    for (list, index, container) in inits.chain(mains) {
        let context = |origin: SettingOrigin, field: &'static str| match origin {
            SettingOrigin::Container => {
                ContainerRef { list, index }.path().field("securityContext").field(field)
            }
            SettingOrigin::Pod => FieldPath::spec("securityContext").field(field),
            SettingOrigin::Annotation(name) => FieldPath::annotation(name),
        };
        let mut refuse = |path: &FieldPath, text: String, hint: &str| {
            let finding = Diagnostic::error(pod.manifest.point(path), text).hint(hint);
            // A setting of the pod applies to all its containers.
            if !findings.contains(&finding) {
                findings.push(finding);
            }
        };
        if let Some((_, origin)) = selinux_options(spec, container) {
            let text =
                "seLinuxOptions cannot be applied: the embedded runtime does not label files".to_owned();
            refuse(
                &context(origin, "seLinuxOptions"),
                text,
                "remove them, or use `--runtime cri` with SELinux",
            );
        }
        let annotations = object.metadata.annotations.as_ref();
        let Some((profile, origin)) = app_armor_profile(annotations, spec, container) else { continue };
        let path = context(origin, "appArmorProfile");
        // Invalid profiles were refused before.
        let Ok(wanted) = app_armor(&profile) else { continue };
        match outrigger_embedded::app_armor_fault(&wanted) {
            Some(error) => refuse(&path, error.to_string(), "remove the profile, or use type `Unconfined`"),
            None if wanted == AppArmor::Default && !outrigger_embedded::app_armor_is_active() => {
                is_idle.get_or_insert_with(|| {
                    let text = "AppArmor is not active on this machine: this profile has no effect";
                    Diagnostic::warning(pod.manifest.point(&path), text.to_owned())
                });
            }
            None => {}
        }
    }
}
