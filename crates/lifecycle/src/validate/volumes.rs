//! Checks volumes: each has a valid name, one source, and a kind that is supported on this machine.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{
    DownwardAPIVolumeFile, EmptyDirVolumeSource, HostPathVolumeSource, KeyToPath, PodSpec, Volume,
    VolumeProjection,
};

use super::{Site, env, resources, words};
use crate::source::{FieldPath, Finding};

const SUPPORTED: &str =
    "emptyDir, hostPath, configMap, secret, downwardAPI, projected or persistentVolumeClaim";
const PROJECTIONS: &str = "configMap, secret or downwardAPI";
/// The longest file name.
const NAME_BYTES_MAX: usize = 255;
const HOST_PATH_TYPES: [&str; 8] =
    ["", "DirectoryOrCreate", "Directory", "FileOrCreate", "File", "Socket", "CharDevice", "BlockDevice"];

pub(super) fn check(out: &mut Vec<Finding>, spec: &PodSpec, sites: &[Site<'_>]) {
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for (i, volume) in spec.volumes.iter().flatten().enumerate() {
        let path = FieldPath::spec("volumes").index(i);
        name(out, &path, volume, &mut seen, i);
        kinds(out, &path, volume);
        contents(out, &path, volume, sites);
    }
    unused(out, spec, sites);
}

fn name<'v>(
    out: &mut Vec<Finding>,
    path: &FieldPath,
    volume: &'v Volume,
    seen: &mut BTreeMap<&'v str, usize>,
    index: usize,
) {
    let path = path.clone().field("name");
    if volume.name.is_empty() {
        out.push(Finding::error("volume", path, "the volume has no name").hint("add `name`"));
        return;
    }
    if let Some(fault) = words::dns_label_fault(&volume.name) {
        let message = format!("volume name {} {fault}", words::quote(&volume.name));
        out.push(Finding::error("volume", path.clone(), message));
    }
    if let Some(&first) = seen.get(volume.name.as_str()) {
        let message = format!("two volumes are named {}", words::quote(&volume.name));
        out.push(
            Finding::error("volume", path, message)
                .related(FieldPath::spec("volumes").index(first).field("name"), "the name is first used here")
                .hint("rename one"),
        );
    } else {
        seen.insert(&volume.name, index);
    }
}

/// Requires exactly one source, of a supported kind.
fn kinds(out: &mut Vec<Finding>, path: &FieldPath, v: &Volume) {
    let supported = [
        ("emptyDir", v.empty_dir.is_some()),
        ("hostPath", v.host_path.is_some()),
        ("configMap", v.config_map.is_some()),
        ("secret", v.secret.is_some()),
        ("downwardAPI", v.downward_api.is_some()),
        ("projected", v.projected.is_some()),
        ("persistentVolumeClaim", v.persistent_volume_claim.is_some()),
    ];
    let unsupported = [
        ("awsElasticBlockStore", v.aws_elastic_block_store.is_some()),
        ("azureDisk", v.azure_disk.is_some()),
        ("azureFile", v.azure_file.is_some()),
        ("cephfs", v.cephfs.is_some()),
        ("cinder", v.cinder.is_some()),
        ("csi", v.csi.is_some()),
        ("ephemeral", v.ephemeral.is_some()),
        ("fc", v.fc.is_some()),
        ("flexVolume", v.flex_volume.is_some()),
        ("flocker", v.flocker.is_some()),
        ("gcePersistentDisk", v.gce_persistent_disk.is_some()),
        ("gitRepo", v.git_repo.is_some()),
        ("glusterfs", v.glusterfs.is_some()),
        ("image", v.image.is_some()),
        ("iscsi", v.iscsi.is_some()),
        ("nfs", v.nfs.is_some()),
        ("photonPersistentDisk", v.photon_persistent_disk.is_some()),
        ("portworxVolume", v.portworx_volume.is_some()),
        ("quobyte", v.quobyte.is_some()),
        ("rbd", v.rbd.is_some()),
        ("scaleIO", v.scale_io.is_some()),
        ("storageos", v.storageos.is_some()),
        ("vsphereVolume", v.vsphere_volume.is_some()),
    ];
    let all: Vec<(&'static str, bool)> = supported.into_iter().chain(unsupported).collect();
    env::exactly_one(out, "volume", path, &all, SUPPORTED);
    for (kind, _) in unsupported.into_iter().filter(|k| k.1) {
        let message = format!("volume {} is of kind {kind}, which is not supported", words::quote(&v.name));
        out.push(
            Finding::error("volume", path.clone().field(kind), message)
                .hint(format!("supported are {SUPPORTED}")),
        );
    }
}

fn contents(out: &mut Vec<Finding>, path: &FieldPath, volume: &Volume, sites: &[Site<'_>]) {
    if let Some(dir) = &volume.empty_dir {
        empty_dir(out, path.clone().field("emptyDir"), dir);
    }
    if let Some(host) = &volume.host_path {
        host_path(out, path.clone().field("hostPath"), host);
    }
    if let Some(map) = &volume.config_map {
        let path = path.clone().field("configMap");
        named(out, path.clone().field("name"), "ConfigMap", &map.name);
        mode(out, path.clone().field("defaultMode"), map.default_mode);
        items(out, path.field("items"), map.items.as_deref());
    }
    if let Some(secret) = &volume.secret {
        let path = path.clone().field("secret");
        named(
            out,
            path.clone().field("secretName"),
            "Secret",
            secret.secret_name.as_deref().unwrap_or_default(),
        );
        mode(out, path.clone().field("defaultMode"), secret.default_mode);
        items(out, path.field("items"), secret.items.as_deref());
    }
    if let Some(downward) = &volume.downward_api {
        let path = path.clone().field("downwardAPI");
        mode(out, path.clone().field("defaultMode"), downward.default_mode);
        downward_items(out, path.field("items"), downward.items.as_deref(), sites);
    }
    if let Some(projected) = &volume.projected {
        let path = path.clone().field("projected");
        mode(out, path.clone().field("defaultMode"), projected.default_mode);
        for (i, source) in projected.sources.iter().flatten().enumerate() {
            projection(out, path.clone().field("sources").index(i), source, sites);
        }
    }
    if let Some(claim) = &volume.persistent_volume_claim {
        let path = path.clone().field("persistentVolumeClaim").field("claimName");
        named(out, path, "PersistentVolumeClaim", &claim.claim_name);
    }
}

fn empty_dir(out: &mut Vec<Finding>, path: FieldPath, dir: &EmptyDirVolumeSource) {
    if let Some(medium) = &dir.medium
        && !["", "Memory"].contains(&medium.as_str())
    {
        let message = format!("medium {} is not supported", words::quote(medium));
        out.push(
            Finding::error("volume", path.clone().field("medium"), message)
                .hint("use `Memory`, or leave it out for a directory on disk"),
        );
    }
    if let Some(limit) = &dir.size_limit {
        resources::quantity(out, "volume", path.field("sizeLimit"), &limit.0);
    }
}

fn host_path(out: &mut Vec<Finding>, path: FieldPath, host: &HostPathVolumeSource) {
    let text = host.path.as_str();
    let fault = if text.is_empty() {
        Some("is empty")
    } else if !text.starts_with('/') {
        Some("is not absolute")
    } else if text.split('/').any(|part| part == "..") {
        Some("must not contain `..`")
    } else {
        None
    };
    if let Some(fault) = fault {
        let message = format!("path {} of the host {fault}", words::quote(text));
        out.push(
            Finding::error("volume", path.clone().field("path"), message).hint("write an absolute path"),
        );
    }
    if let Some(kind) = &host.type_
        && !HOST_PATH_TYPES.contains(&kind.as_str())
    {
        out.push(words::not_one_of(
            "volume",
            path.field("type"),
            "a type of host path",
            kind,
            &HOST_PATH_TYPES[1..],
        ));
    }
}

fn projection(out: &mut Vec<Finding>, path: FieldPath, source: &VolumeProjection, sites: &[Site<'_>]) {
    let unsupported = [
        ("clusterTrustBundle", source.cluster_trust_bundle.is_some()),
        ("podCertificate", source.pod_certificate.is_some()),
    ];
    let all: Vec<(&'static str, bool)> = [
        ("configMap", source.config_map.is_some()),
        ("secret", source.secret.is_some()),
        ("downwardAPI", source.downward_api.is_some()),
        ("serviceAccountToken", source.service_account_token.is_some()),
    ]
    .into_iter()
    .chain(unsupported)
    .collect();
    env::exactly_one(out, "volume", &path, &all, PROJECTIONS);
    for (kind, _) in unsupported.into_iter().filter(|k| k.1) {
        let message = format!("a projected {kind} is not supported: there is no cluster to issue it");
        out.push(
            Finding::error("volume", path.clone().field(kind), message)
                .hint(format!("remove it; supported are {PROJECTIONS}")),
        );
    }
    if let Some(token) = &source.service_account_token {
        // Every pod exported from a cluster has such a volume.
        let message =
            format!("there will be no {}: there is no cluster to issue a token", words::quote(&token.path));
        out.push(
            Finding::warning("ignored", path.clone().field("serviceAccountToken"), message)
                .hint("the rest of the volume is provided; for a token of your own use a Secret"),
        );
    }
    if let Some(map) = &source.config_map {
        let path = path.clone().field("configMap");
        named(out, path.clone().field("name"), "ConfigMap", &map.name);
        items(out, path.field("items"), map.items.as_deref());
    }
    if let Some(secret) = &source.secret {
        let path = path.clone().field("secret");
        named(out, path.clone().field("name"), "Secret", &secret.name);
        items(out, path.field("items"), secret.items.as_deref());
    }
    if let Some(downward) = &source.downward_api {
        downward_items(out, path.field("downwardAPI").field("items"), downward.items.as_deref(), sites);
    }
}

fn named(out: &mut Vec<Finding>, path: FieldPath, kind: &str, name: &str) {
    if name.is_empty() {
        out.push(Finding::error("volume", path, format!("the {kind} has no name")).hint("add its name"));
    } else if let Some(fault) = words::dns_subdomain_fault(name) {
        let message = format!("{kind} name {} {fault}", words::quote(name));
        out.push(Finding::error("volume", path, message));
    }
}

fn mode(out: &mut Vec<Finding>, path: FieldPath, mode: Option<i32>) {
    if let Some(mode) = mode
        && !(0..=0o777).contains(&mode)
    {
        let message = format!("file mode {mode} is not between 0 and 511 (octal 0777)");
        out.push(Finding::error("volume", path, message).hint("in YAML octal modes begin with 0: `0644`"));
    }
}

fn file_path(out: &mut Vec<Finding>, path: FieldPath, text: &str) {
    let fault = if text.is_empty() {
        Some("is empty")
    } else if text.starts_with("..") {
        Some("must not begin with `..`")
    } else if text.split('/').all(|part| matches!(part, "" | ".")) && !text.starts_with('/') {
        Some("is the volume itself, not a file in it")
    } else if text.contains('\0') || text.split('/').any(|part| part.len() > NAME_BYTES_MAX) {
        Some("cannot be the name of a file: a part has more than 255 bytes or contains a zero")
    } else {
        words::local_path_fault(text)
    };
    if let Some(fault) = fault {
        let message = format!("file path {} {fault}", words::quote(text));
        out.push(
            Finding::error("volume", path, message)
                .hint("it is a path inside the volume, such as `config.yaml`"),
        );
    }
}

fn items(out: &mut Vec<Finding>, path: FieldPath, items: Option<&[KeyToPath]>) {
    for (i, item) in items.unwrap_or_default().iter().enumerate() {
        let path = path.clone().index(i);
        if item.key.is_empty() {
            out.push(
                Finding::error("volume", path.clone().field("key"), "the key is missing").hint("add `key`"),
            );
        }
        file_path(out, path.clone().field("path"), &item.path);
        mode(out, path.field("mode"), item.mode);
    }
}

fn downward_items(
    out: &mut Vec<Finding>,
    path: FieldPath,
    items: Option<&[DownwardAPIVolumeFile]>,
    sites: &[Site<'_>],
) {
    for (i, item) in items.unwrap_or_default().iter().enumerate() {
        let path = path.clone().index(i);
        file_path(out, path.clone().field("path"), &item.path);
        mode(out, path.clone().field("mode"), item.mode);
        let fields =
            [("fieldRef", item.field_ref.is_some()), ("resourceFieldRef", item.resource_field_ref.is_some())];
        env::exactly_one(out, "volume", &path, &fields, "fieldRef or resourceFieldRef");
        if let Some(field) = &item.field_ref {
            env::file_field_ref(out, path.clone().field("fieldRef"), field);
        }
        if let Some(resource) = &item.resource_field_ref {
            let path = path.field("resourceFieldRef");
            if resource.container_name.as_deref().unwrap_or_default().is_empty() {
                out.push(
                    Finding::error(
                        "volume",
                        path.clone().field("containerName"),
                        "resourceFieldRef has no containerName",
                    )
                    .hint("add `containerName`: a volume belongs to no container"),
                );
            }
            env::resource_field_ref(out, "volume", path, resource, sites);
        }
    }
}

/// Warns about an unused volume, which usually means a forgotten mount.
fn unused(out: &mut Vec<Finding>, spec: &PodSpec, sites: &[Site<'_>]) {
    let used: BTreeSet<&str> = sites
        .iter()
        .flat_map(|s| {
            let mounts = s.container.volume_mounts.iter().flatten().map(|m| m.name.as_str());
            mounts.chain(s.container.volume_devices.iter().flatten().map(|d| d.name.as_str()))
        })
        .collect();
    for (i, volume) in spec.volumes.iter().flatten().enumerate() {
        if !volume.name.is_empty() && !used.contains(volume.name.as_str()) {
            let message = format!("no container mounts volume {}", words::quote(&volume.name));
            out.push(
                Finding::warning("volume", FieldPath::spec("volumes").index(i).field("name"), message)
                    .hint("add a volumeMount, or remove the volume"),
            );
        }
    }
}
