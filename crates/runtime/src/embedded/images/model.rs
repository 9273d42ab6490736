//! The documents of an image: index, manifest, configuration. Only the fields used here, and lenient about
//! the rest, since both OCI's and Docker's formats occur.

use std::path::PathBuf;

use serde::Deserialize;

use super::digest::Digest;
use super::fault::{Fault, said};
use crate::types::Image;

/// No real manifest comes close; registries usually refuse more than this.
pub(super) const MANIFEST_SIZE_MAX: u64 = 4 << 20;
/// Configurations contain the history of the build, so they may be larger.
pub(super) const CONFIG_SIZE_MAX: u64 = 16 << 20;
/// More than any builder creates, and than overlayfs mounts.
const LAYERS_MAX: usize = 500;

/// Accepted media types, best first.
pub(super) const MANIFEST_TYPES: &str = "application/vnd.oci.image.index.v1+json, \
     application/vnd.oci.image.manifest.v1+json, \
     application/vnd.docker.distribution.manifest.list.v2+json, \
     application/vnd.docker.distribution.manifest.v2+json";

/// Points at a blob.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Descriptor {
    #[serde(default)]
    pub(super) media_type: String,
    pub(super) digest: Digest,
    pub(super) size: u64,
    pub(super) platform: Option<Platform>,
    #[serde(default)]
    pub(super) annotations: Option<std::collections::BTreeMap<String, String>>,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Platform {
    #[serde(default)]
    pub(super) os: String,
    #[serde(default)]
    pub(super) architecture: String,
    #[serde(default)]
    pub(super) variant: Option<String>,
}

/// One image.
#[derive(Debug, Clone)]
pub(super) struct Manifest {
    pub(super) config: Descriptor,
    pub(super) layers: Vec<Descriptor>,
}

/// A manifest or a list of them.
#[derive(Debug, Clone)]
pub(super) enum Document {
    Manifest(Manifest),
    Index(Vec<Descriptor>),
}

impl Document {
    /// Parses either. The document's structure decides, not the media type it was served with.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, Fault> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Any {
            schema_version: Option<u32>,
            config: Option<Descriptor>,
            layers: Option<Vec<Descriptor>>,
            manifests: Option<Vec<Descriptor>>,
        }
        let any: Any = serde_json::from_slice(bytes)
            .map_err(|error| Fault::new(format!("the image manifest cannot be read: {error}")))?;
        match (any.config, any.manifests) {
            (_, Some(manifests)) => Ok(Document::Index(manifests)),
            (Some(config), None) => {
                let layers = any.layers.unwrap_or_default();
                if layers.len() > LAYERS_MAX {
                    return Err(too_many_layers(layers.len()));
                }
                if let Some(layer) = layers.iter().find(|layer| layer.media_type.ends_with("+encrypted")) {
                    return Err(Fault::new(format!(
                        "layer {} is encrypted, which is not supported",
                        layer.digest
                    )));
                }
                Ok(Document::Manifest(Manifest { config, layers }))
            }
            (None, None) if any.schema_version == Some(1) => Err(Fault::new(
                "the image has the Docker schema 1 format, which is no longer supported; push it again with a current tool",
            )),
            (None, None) => {
                Err(Fault::new("the document under this name is neither an image manifest nor an index"))
            }
        }
    }
}

fn too_many_layers(count: usize) -> Fault {
    Fault::new(format!("the image has {count} layers, at most {LAYERS_MAX} are supported"))
}

/// This machine's architecture by its Go name, which images use.
pub(super) fn this_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        "powerpc64" => "ppc64le",
        "loongarch64" => "loong64",
        other => other,
    }
}

/// The most platforms named in a message.
const PLATFORMS_NAMED_MAX: usize = 20;

/// The entry of an index for this machine.
pub(super) fn choose_platform(manifests: &[Descriptor]) -> Result<&Descriptor, Fault> {
    let arch = this_architecture();
    // The plainest variant first: arm64 and arm64/v8 are the same machine, but not every amd64 supports
    // amd64/v3.
    let rank = |platform: &Platform| match (arch, platform.variant.as_deref().unwrap_or("")) {
        (_, "") => Some(0),
        ("arm64", "v8") | ("amd64", "v1") => Some(1),
        ("arm", "v7") => Some(2),
        ("arm", "v6") => Some(3),
        ("arm", "v5") => Some(4),
        _ => None,
    };
    let best = manifests
        .iter()
        .filter_map(|entry| {
            let platform = entry.platform.as_ref()?;
            (platform.os == "linux" && platform.architecture == arch).then_some(())?;
            Some((rank(platform)?, entry))
        })
        .min_by_key(|(rank, _)| *rank);
    if let Some((_, entry)) = best {
        return Ok(entry);
    }
    if let [only] = manifests
        && only.platform.is_none()
    {
        return Ok(only);
    }
    let known = || {
        let platforms = manifests.iter().filter_map(|entry| entry.platform.as_ref());
        platforms.filter(|platform| platform.os != "unknown")
    };
    // The registry decides how many there are, and how long their names.
    let mut has: Vec<String> = known()
        .take(PLATFORMS_NAMED_MAX)
        .map(|p| match &p.variant {
            Some(variant) if !variant.is_empty() => format!("{}/{}/{variant}", p.os, p.architecture),
            _ => format!("{}/{}", p.os, p.architecture),
        })
        .map(|name| said(&name))
        .collect();
    let more = known().count() - has.len();
    if more > 0 {
        has.push(format!("{more} more"));
    }
    Err(Fault::new(format!(
        "no image for this machine's platform linux/{arch}; the index has {}",
        if has.is_empty() { "none with a platform".to_owned() } else { has.join(", ") }
    )))
}

/// The image configuration.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct ConfigFile {
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    config: Option<ContainerConfig>,
    rootfs: Option<RootFs>,
}

#[derive(Debug, Clone, Deserialize)]
struct RootFs {
    #[serde(default)]
    diff_ids: Option<Vec<Digest>>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct ContainerConfig {
    entrypoint: Option<Vec<String>>,
    cmd: Option<Vec<String>>,
    env: Option<Vec<String>>,
    working_dir: Option<String>,
    user: Option<String>,
    stop_signal: Option<String>,
}

impl ConfigFile {
    /// Reads a configuration and checks that it belongs to a container image of `layers` layers.
    pub(super) fn parse(bytes: &[u8], layers: usize) -> Result<Self, Fault> {
        let config: ConfigFile = serde_json::from_slice(bytes)
            .map_err(|error| Fault::new(format!("the image configuration cannot be read: {error}")))?;
        let count = config.diff_ids().len();
        if count != layers {
            return Err(Fault::new(format!(
                "not a container image: the manifest lists {layers} layers, its configuration {count}"
            )));
        }
        if count > LAYERS_MAX {
            return Err(too_many_layers(count));
        }
        let here = this_architecture();
        if !config.architecture.is_empty() && config.architecture != here {
            tracing::warn!(image = config.architecture, machine = here, "image is for another architecture");
        }
        Ok(config)
    }

    /// Digests of the unpacked layers, lowest first.
    pub(super) fn diff_ids(&self) -> &[Digest] {
        self.rootfs.as_ref().and_then(|rootfs| rootfs.diff_ids.as_deref()).unwrap_or_default()
    }

    /// The properties for the runtime.
    pub(super) fn image(
        &self,
        reference: &str,
        id: &Digest,
        layers: Vec<PathBuf>,
        was_present: bool,
    ) -> Image {
        let config = self.config.clone().unwrap_or_default();
        let full = |text: Option<String>| text.filter(|text| !text.is_empty());
        Image {
            reference: reference.to_owned(),
            id: id.to_string(),
            layers,
            entrypoint: config.entrypoint.unwrap_or_default(),
            cmd: config.cmd.unwrap_or_default(),
            env: config.env.unwrap_or_default(),
            working_dir: full(config.working_dir),
            user: full(config.user),
            stop_signal: full(config.stop_signal),
            was_present,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(os: &str, arch: &str, variant: Option<&str>, mark: &str) -> Descriptor {
        Descriptor {
            media_type: String::new(),
            digest: Digest::of(mark.as_bytes()),
            size: 1,
            platform: Some(Platform {
                os: os.into(),
                architecture: arch.into(),
                variant: variant.map(str::to_owned),
            }),
            annotations: None,
        }
    }

    #[test]
    fn the_plainest_variant_of_this_architecture_is_chosen() {
        let here = this_architecture();
        let entries = [
            entry("windows", here, None, "w"),
            entry("linux", "s390x", None, "s"),
            entry("linux", here, Some("v3"), "v3"),
            entry("linux", here, None, "plain"),
            entry("unknown", "unknown", None, "attestation"),
        ];
        assert_eq!(choose_platform(&entries).unwrap().digest, Digest::of(b"plain"));
        let error = choose_platform(&entries[..2]).unwrap_err().to_string();
        assert!(error.contains(&format!("linux/{here}")) && error.contains("linux/s390x"), "{error}");
        assert!(choose_platform(&[]).is_err());
    }

    #[test]
    fn an_index_without_end_is_not_printed() {
        let many: Vec<Descriptor> =
            (0..20_000).map(|n| entry("plan9", &format!("cpu{n}"), None, "x")).collect();
        let error = choose_platform(&many).unwrap_err().to_string();
        assert!(error.contains("plan9/cpu0, ") && error.ends_with("plan9/cpu19, 19980 more"), "{error}");
        let long = [entry("linux", &"x".repeat(50_000), Some(&"y".repeat(50_000)), "x")];
        let error = choose_platform(&long).unwrap_err().to_string();
        assert!(error.len() < 500, "{}", error.len());
    }

    #[test]
    fn other_documents_are_refused_with_a_reason() {
        for (text, says) in [
            ("{", "cannot be read"),
            (r#"{"schemaVersion":1,"name":"x"}"#, "schema 1"),
            (r#"{"schemaVersion":2}"#, "neither"),
            (r#"{"config":{"digest":"sha256:x","size":1}}"#, "digest"),
        ] {
            let error = Document::parse(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
        // A Helm chart, for example, has a configuration without diff ids.
        let error = ConfigFile::parse(br#"{"name":"chart"}"#, 1).unwrap_err().to_string();
        assert!(error.contains("not a container image"), "{error}");
    }

    #[test]
    fn docker_writes_null_for_what_is_empty() {
        let text = br#"{"architecture":"","config":{"Entrypoint":null,"Cmd":["sh"],"Env":null,"User":"","WorkingDir":"/w"},
            "rootfs":{"type":"layers","diff_ids":null}}"#;
        let config = ConfigFile::parse(text, 0).unwrap();
        let image = config.image("x", &Digest::of(b""), vec![], true);
        assert_eq!(
            (image.cmd, image.user, image.working_dir),
            (vec!["sh".to_owned()], None, Some("/w".to_owned()))
        );
    }
}
