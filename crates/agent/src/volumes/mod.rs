//! A pod's volumes: host directories that are mounted into containers.
//!
//! Volumes are set up before the first container and exist until the pod has ended, so they survive restarts.
//! Setting up again does not change existing volumes. Secrets are kept in memory only.

mod files;
pub mod host_path;
mod mounts;
mod ownership;
mod subpath;
mod usage;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{Container, Volume as VolumeSpec, VolumeMount};
use outrigger_lifecycle::Companions;
use outrigger_runtime::rootless;
use outrigger_runtime::{Mount, Propagation};

use crate::cause::{SandboxError, SpecError};
use crate::expand::expand;
use crate::fields::Fields;
use crate::quantity;
use crate::volume_error::{MountError, VolumeError};
pub(crate) use mounts::remove_tree;
use ownership::{Access, ChangePolicy};

/// The input for creating volumes.
pub(crate) struct Source<'a> {
    /// The pod's own fields.
    pub(crate) fields: Fields<'a>,
    /// All containers of the pod.
    pub(crate) containers: &'a [Container],
    /// ConfigMaps, Secrets, claims.
    pub(crate) objects: &'a Companions,
    /// The pod's directory.
    pub(crate) pod_dir: &'a Path,
    /// The directory of claims.
    pub(crate) state_dir: &'a Path,
}

/// The volumes of a pod, ready to mount.
#[derive(Debug, Clone, Default)]
pub(crate) struct Volumes {
    by_name: BTreeMap<String, Volume>,
    subpath_dir: PathBuf,
}

#[derive(Debug, Clone)]
struct Volume {
    path: PathBuf,
    /// Whether the volume itself is read-only, regardless of the mount.
    read_only: bool,
}

impl Volumes {
    /// Creates all volumes of the pod. The error names the volume.
    pub(crate) fn set_up(source: &Source<'_>) -> Result<Volumes, SandboxError> {
        let spec = source.fields.pod.spec.as_ref();
        let mut by_name = BTreeMap::new();
        for (place, volume) in spec.and_then(|s| s.volumes.as_deref()).unwrap_or(&[]).iter().enumerate() {
            let made = source.set_up_one(volume).map_err(|e| SandboxError::volume(place, &volume.name, e))?;
            by_name.insert(volume.name.clone(), made);
        }
        Ok(Volumes { by_name, subpath_dir: source.pod_dir.join("subpaths") })
    }

    /// The volumes of a pod whose containers already use them: existing ones are not changed, missing ones
    /// are created.
    pub(crate) fn found(source: &Source<'_>) -> Result<Volumes, SandboxError> {
        let spec = source.fields.pod.spec.as_ref();
        let mut by_name = BTreeMap::new();
        for (place, volume) in spec.and_then(|s| s.volumes.as_deref()).unwrap_or(&[]).iter().enumerate() {
            let found = match source.found_one(volume) {
                Some(found) if found.path.exists() => Ok(found),
                _ => source.set_up_one(volume),
            };
            by_name.insert(
                volume.name.clone(),
                found.map_err(|e| SandboxError::volume(place, &volume.name, e))?,
            );
        }
        Ok(Volumes { by_name, subpath_dir: source.pod_dir.join("subpaths") })
    }

    /// Disk space used by a volume. Walks the directory tree.
    pub(crate) fn bytes(&self, volume: &str) -> io::Result<u64> {
        let volume = self.by_name.get(volume).ok_or(io::ErrorKind::NotFound)?;
        usage::disk_usage(&volume.path)
    }

    /// The mounts of a container, in manifest order. `variable` resolves `subPathExpr`.
    pub(crate) fn mounts<'v>(
        &self,
        container: &Container,
        variable: impl Fn(&str) -> Option<&'v str>,
    ) -> Result<Vec<Mount>, SpecError> {
        if container.volume_devices.iter().flatten().next().is_some() {
            return Err(SpecError::VolumeDevices);
        }
        let mut mounts = Vec::new();
        for (index, mount) in container.volume_mounts.iter().flatten().enumerate() {
            let subpath_at = self.subpath_dir.join(&container.name).join(index.to_string());
            let made = self.mount(mount, &subpath_at, &variable);
            mounts.push(made.map_err(|source| SpecError::Mount {
                index,
                path: mount.mount_path.clone(),
                source,
            })?);
        }
        Ok(mounts)
    }

    /// One mount. Its `subPath` is bound at `subpath_at`.
    fn mount<'v>(
        &self,
        mount: &VolumeMount,
        subpath_at: &Path,
        variable: impl Fn(&str) -> Option<&'v str>,
    ) -> Result<Mount, MountError> {
        let volume = self.by_name.get(&mount.name).ok_or_else(|| MountError::NoVolume(mount.name.clone()))?;
        let source = match sub_path(mount, variable)? {
            None => volume.path.clone(),
            Some(path) => {
                subpath::bind(&volume.path, Path::new(&path), subpath_at)
                    .map_err(|source| MountError::SubPath { path, source })?;
                subpath_at.to_owned()
            }
        };
        Ok(Mount {
            source,
            target: Path::new("/").join(&mount.mount_path),
            read_only: volume.read_only || mount.read_only == Some(true),
            propagation: propagation(mount.mount_propagation.as_deref())?,
        })
    }
}

fn propagation(written: Option<&str>) -> Result<Propagation, MountError> {
    match written {
        None | Some("None") => Ok(Propagation::Private),
        Some("HostToContainer") => Ok(Propagation::HostToContainer),
        Some("Bidirectional") => Ok(Propagation::Bidirectional),
        Some(other) => Err(MountError::Propagation(other.to_owned())),
    }
}

/// The path within the volume, if the mount has one.
fn sub_path<'v>(
    mount: &VolumeMount,
    variable: impl Fn(&str) -> Option<&'v str>,
) -> Result<Option<String>, MountError> {
    let path = match (&mount.sub_path_expr, &mount.sub_path) {
        (Some(expr), _) if !expr.is_empty() => {
            let unknown = std::cell::RefCell::new(None);
            let path = expand(expr, |name| {
                let value = variable(name);
                if value.is_none() {
                    *unknown.borrow_mut() = Some(name.to_owned());
                }
                value
            });
            if let Some(variable) = unknown.into_inner() {
                return Err(MountError::NoVariable { expr: expr.clone(), variable });
            }
            path
        }
        (_, Some(path)) if !path.is_empty() => path.clone(),
        _ => return Ok(None),
    };
    let escapes = Path::new(&path).components().any(|c| matches!(c, std::path::Component::ParentDir));
    if path.starts_with('/') || escapes {
        return Err(MountError::SubPathEscapes(path));
    }
    Ok(Some(path))
}

impl Source<'_> {
    /// The location of a volume that was already set up.
    fn found_one(&self, volume: &VolumeSpec) -> Option<Volume> {
        let at = |path, read_only| Some(Volume { path, read_only });
        if let Some(host) = &volume.host_path {
            return at(PathBuf::from(&host.path), false);
        }
        if let Some(claim) = &volume.persistent_volume_claim {
            return at(self.claim_path(&claim.claim_name).ok()?, claim.read_only == Some(true));
        }
        let is_writable = volume.empty_dir.is_some() || volume.ephemeral.is_some();
        at(self.pod_dir.join("volumes").join(&volume.name), !is_writable)
    }

    /// The directory of a claim. It outlives the pod and is shared by all pods that use the claim.
    fn claim_path(&self, claim: &str) -> Result<PathBuf, VolumeError> {
        let namespace = files::safe_name(self.namespace())?;
        Ok(self.state_dir.join("volumes").join(namespace).join(files::safe_name(claim)?))
    }

    fn set_up_one(&self, volume: &VolumeSpec) -> Result<Volume, VolumeError> {
        let path = self.pod_dir.join("volumes").join(&volume.name);
        let writable = |path: PathBuf| Volume { path, read_only: false };
        if let Some(host) = &volume.host_path {
            let path = PathBuf::from(&host.path);
            host_path::check(&path, host.type_.as_deref().unwrap_or(""))?;
            return Ok(writable(path));
        }
        if let Some(empty) = &volume.empty_dir {
            let medium = empty.medium.as_deref().unwrap_or("");
            match medium {
                // A size limit on disk is enforced by measuring: see [`Volumes::bytes`].
                "" => shared_directory(&path)?,
                "Memory" => {
                    let size = empty.size_limit.as_ref().map(quantity::value).transpose()?;
                    in_memory(&path, size, 0o777)?;
                }
                other => return Err(VolumeError::Medium(other.to_owned())),
            }
            self.own(&path, Access::ReadWrite)?;
            return Ok(writable(path));
        }
        if let Some(claim) = &volume.persistent_volume_claim {
            let path = self.claim_path(&claim.claim_name)?;
            shared_directory(&path)?;
            self.own(&path, Access::ReadWrite)?;
            return Ok(Volume { path, read_only: claim.read_only == Some(true) });
        }
        if volume.ephemeral.is_some() {
            shared_directory(&path)?;
            self.own(&path, Access::ReadWrite)?;
            return Ok(writable(path));
        }
        let Some(payload) = self.payload(volume)? else {
            return Err(VolumeError::Kind(kind(volume)));
        };
        if payload.secret {
            in_memory(&path, None, 0o755)?;
        } else {
            directory(&path, 0o755)?;
        }
        payload.write(&path)?;
        self.own(&path, Access::ReadOnly)?;
        Ok(Volume { path, read_only: true })
    }

    fn namespace(&self) -> &str {
        self.fields.pod.metadata.namespace.as_deref().unwrap_or("default")
    }

    /// Applies the pod's fsGroup to the volume.
    fn own(&self, path: &Path, access: Access) -> Result<(), VolumeError> {
        let context = self.fields.pod.spec.as_ref().and_then(|s| s.security_context.as_ref());
        let Some(group) = context.and_then(|c| c.fs_group) else {
            return Ok(());
        };
        let group = u32::try_from(group).map_err(|_| VolumeError::FsGroupRange(group))?;
        let standing = rootless::standing();
        if standing.is_rootless() && standing.has_one_id() {
            // This user has only one group. It owns all files, and all processes run with it.
            return Ok(());
        }
        if !standing.gids().contains(group) {
            return Err(VolumeError::FsGroup { group, count: standing.gids().count() });
        }
        let policy = context.and_then(|c| c.fs_group_change_policy.as_deref());
        let policy = match policy {
            Some("OnRootMismatch") => ChangePolicy::OnRootMismatch,
            _ => ChangePolicy::Always,
        };
        ownership::chown_to_group(path, group, access, policy).map_err(|source| VolumeError::Ownership {
            path: path.to_owned(),
            group,
            source,
        })
    }
}

/// Whether a volume is kept in memory.
pub(crate) fn is_in_memory(volume: &VolumeSpec) -> bool {
    let sources = volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten());
    let medium = volume.empty_dir.as_ref().and_then(|empty| empty.medium.as_deref());
    medium == Some("Memory")
        || volume.secret.is_some()
        || sources.into_iter().any(|part| part.secret.is_some())
}

/// The name of the field that sets the kind of a volume.
fn kind(volume: &VolumeSpec) -> String {
    let object = serde_json::to_value(volume).unwrap_or_default();
    let fields = object.as_object();
    fields.and_then(|o| o.keys().find(|k| *k != "name").cloned()).unwrap_or_else(|| "of this kind".into())
}

/// A world-writable directory, as in Kubernetes.
fn shared_directory(path: &Path) -> Result<(), VolumeError> {
    // An existing directory keeps its mode: someone may have changed that of a claim on purpose.
    match path.is_dir() {
        true => Ok(()),
        false => directory(path, 0o777),
    }
}

fn directory(path: &Path, mode: u32) -> Result<(), VolumeError> {
    fs::create_dir_all(path)
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(mode)))
        .map_err(|source| VolumeError::Create { path: path.to_owned(), source })
}

/// A directory whose content is never written to disk.
fn in_memory(path: &Path, size: Option<u64>, mode: u32) -> Result<(), VolumeError> {
    directory(path, mode)?;
    mounts::tmpfs(path, size, mode).map_err(|source| VolumeError::Memory { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests;
