//! Volumes made of files: configMap, secret, downwardAPI, projected.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use k8s_openapi::api::core::v1::{ConfigMap, DownwardAPIVolumeFile, KeyToPath, Secret, Volume};
use outrigger_lifecycle::ROOT_CA;

use super::Source;
use crate::reference::ReferenceError;
use crate::volume_error::VolumeError;

/// The default mode of files.
const MODE_DEFAULT: i32 = 0o644;

/// Files to be written, by their path relative to the volume.
#[derive(Debug, Default)]
pub(super) struct Payload {
    files: BTreeMap<PathBuf, (Vec<u8>, u32)>,
    /// Whether some of the content must not be written to disk.
    pub(super) secret: bool,
}

impl Payload {
    fn add(&mut self, path: &str, content: Vec<u8>, mode: i32) -> Result<(), VolumeError> {
        let path = relative(path)?;
        let Some(valid) = u32::try_from(mode).ok().filter(|m| *m <= 0o777) else {
            return Err(VolumeError::FileMode { mode, path });
        };
        self.files.insert(path, (content, valid));
        Ok(())
    }

    /// Writes all files. Each file appears under its name only when it is complete.
    pub(super) fn write(&self, dir: &Path) -> Result<(), VolumeError> {
        for (path, (content, mode)) in &self.files {
            let at = dir.join(path);
            write_file(&at, content, *mode).map_err(|source| VolumeError::Write { path: at, source })?;
        }
        Ok(())
    }
}

fn write_file(at: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    if let Some(parent) = at.parent() {
        fs::create_dir_all(parent)?;
    }
    let mut temporary = at.as_os_str().to_owned();
    temporary.push(".new");
    fs::write(&temporary, content)?;
    fs::set_permissions(&temporary, fs::Permissions::from_mode(mode))?;
    fs::rename(&temporary, at)
}

fn relative(path: &str) -> Result<PathBuf, VolumeError> {
    let plain = |p: &Path| p.components().all(|c| matches!(c, Component::Normal(_) | Component::CurDir));
    let path = Path::new(path);
    // Kubernetes treats `./a//b/` as `a/b`, too.
    let parts = path.components().filter(|part| matches!(part, Component::Normal(_)));
    let clean: PathBuf = parts.collect();
    match !clean.as_os_str().is_empty() && plain(path) {
        true => Ok(clean),
        false => Err(VolumeError::FilePath(path.to_owned())),
    }
}

/// Checks that a name is a single path component.
pub(super) fn safe_name(name: &str) -> Result<&str, VolumeError> {
    let mut components = Path::new(name).components();
    match (components.next(), components.next()) {
        (Some(Component::Normal(only)), None) if only == name => Ok(name),
        _ => Err(VolumeError::ClaimName(name.to_owned())),
    }
}

/// A set of keys, and whether it may be missing.
struct Keys<'a> {
    kind: &'static str,
    name: &'a str,
    items: Option<&'a [KeyToPath]>,
    mode: i32,
    optional: bool,
}

impl Source<'_> {
    /// The files of a volume; `None` if it is not made of files.
    pub(super) fn payload(&self, volume: &Volume) -> Result<Option<Payload>, VolumeError> {
        let mut payload = Payload::default();
        if let Some(source) = &volume.config_map {
            let keys = Keys {
                kind: "configmap",
                name: &source.name,
                items: source.items.as_deref(),
                mode: source.default_mode.unwrap_or(MODE_DEFAULT),
                optional: source.optional == Some(true),
            };
            let data = self.config_map(&source.name).map(config_map_data);
            take(&mut payload, data, &keys)?;
        } else if let Some(source) = &volume.secret {
            let name = source.secret_name.as_deref().unwrap_or("");
            let keys = Keys {
                kind: "secret",
                name,
                items: source.items.as_deref(),
                mode: source.default_mode.unwrap_or(MODE_DEFAULT),
                optional: source.optional == Some(true),
            };
            payload.secret = true;
            take(&mut payload, self.secret(name).map(secret_data), &keys)?;
        } else if let Some(source) = &volume.downward_api {
            let mode = source.default_mode.unwrap_or(MODE_DEFAULT);
            self.downward(&mut payload, source.items.as_deref().unwrap_or(&[]), mode)?;
        } else if let Some(source) = &volume.projected {
            let mode = source.default_mode.unwrap_or(MODE_DEFAULT);
            for part in source.sources.iter().flatten() {
                if let Some(map) = &part.config_map {
                    let keys = Keys {
                        kind: "configmap",
                        name: &map.name,
                        items: map.items.as_deref(),
                        mode,
                        optional: map.optional == Some(true) || map.name == ROOT_CA,
                    };
                    take(&mut payload, self.config_map(&map.name).map(config_map_data), &keys)?;
                } else if let Some(secret) = &part.secret {
                    let keys = Keys {
                        kind: "secret",
                        name: &secret.name,
                        items: secret.items.as_deref(),
                        mode,
                        optional: secret.optional == Some(true),
                    };
                    payload.secret = true;
                    take(&mut payload, self.secret(&secret.name).map(secret_data), &keys)?;
                } else if let Some(downward) = &part.downward_api {
                    self.downward(&mut payload, downward.items.as_deref().unwrap_or(&[]), mode)?;
                } else if part.service_account_token.is_some() {
                    // No service account tokens are issued; validation has reported this.
                } else {
                    return Err(VolumeError::ProjectedSource);
                }
            }
        } else {
            return Ok(None);
        }
        Ok(Some(payload))
    }

    fn downward(
        &self,
        payload: &mut Payload,
        files: &[DownwardAPIVolumeFile],
        default: i32,
    ) -> Result<(), VolumeError> {
        for file in files {
            let text = if let Some(field) = &file.field_ref {
                self.fields.field(&field.field_path)?
            } else if let Some(resource) = &file.resource_field_ref {
                let name = resource.container_name.as_deref().unwrap_or("");
                let container = self
                    .containers
                    .iter()
                    .find(|c| c.name == name)
                    .ok_or_else(|| ReferenceError::Container(name.to_owned()))?;
                self.fields.resource(container, resource)?
            } else {
                return Err(VolumeError::FileSource(file.path.clone()));
            };
            payload.add(&file.path, text.into_bytes(), file.mode.unwrap_or(default))?;
        }
        Ok(())
    }

    fn config_map(&self, name: &str) -> Option<&ConfigMap> {
        let key = (self.namespace().to_owned(), name.to_owned());
        self.objects.config_maps.get(&key)
    }

    fn secret(&self, name: &str) -> Option<&Secret> {
        let key = (self.namespace().to_owned(), name.to_owned());
        self.objects.secrets.get(&key)
    }
}

type Data = BTreeMap<String, Vec<u8>>;

fn config_map_data(map: &ConfigMap) -> Data {
    let text = map.data.iter().flatten();
    let binary = map.binary_data.iter().flatten();
    text.map(|(k, v)| (k.clone(), v.clone().into_bytes()))
        .chain(binary.map(|(k, v)| (k.clone(), v.0.clone())))
        .collect()
}

fn secret_data(secret: &Secret) -> Data {
    let data = secret.data.iter().flatten();
    data.map(|(k, v)| (k.clone(), v.0.clone())).collect()
}

fn take(payload: &mut Payload, data: Option<Data>, keys: &Keys<'_>) -> Result<(), VolumeError> {
    let Some(data) = data else {
        return match keys.optional {
            true => Ok(()),
            false => Err(ReferenceError::Object { kind: keys.kind, name: keys.name.to_owned() }.into()),
        };
    };
    match keys.items {
        None | Some([]) => {
            for (key, content) in data {
                payload.add(&key, content, keys.mode)?;
            }
        }
        Some(items) => {
            for item in items {
                match data.get(&item.key) {
                    Some(content) => {
                        payload.add(&item.path, content.clone(), item.mode.unwrap_or(keys.mode))?;
                    }
                    None if keys.optional => {}
                    None => {
                        let (kind, name) = (keys.kind, keys.name.to_owned());
                        return Err(ReferenceError::FileKey { kind, name, key: item.key.clone() }.into());
                    }
                }
            }
        }
    }
    Ok(())
}
