//! The documents of an image: index, manifest and configuration. They contain only the fields that are used
//! here, and accept all others, because both OCI's and Docker's formats occur.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::digest::Digest;
use super::fault::{Fault, said};
use super::fields::{self, RefusedDocument};
use outrigger_runtime::Image;

/// The largest manifest. Real ones are much smaller, and most registries refuse larger ones.
pub(super) const MANIFEST_SIZE_MAX: u64 = 4 << 20;
/// The largest configuration. It may be larger because it contains the history of the build.
pub(super) const CONFIG_SIZE_MAX: u64 = 16 << 20;
/// The most layers. No builder creates more, and overlayfs does not mount more.
const LAYERS_MAX: usize = 500;

/// The `schemaVersion` of manifests and indexes.
const SCHEMA_VERSION: u32 = 2;

const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const DOCKER_INDEX: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";

/// The accepted media types, the preferred one first.
pub(super) fn manifest_types() -> String {
    [OCI_INDEX, OCI_MANIFEST, DOCKER_INDEX, DOCKER_MANIFEST].join(", ")
}

/// A reference to a blob.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Descriptor {
    #[serde(default)]
    pub(super) media_type: String,
    pub(super) digest: Digest,
    pub(super) size: u64,
    pub(super) platform: Option<Platform>,
    #[serde(default)]
    pub(super) annotations: Option<BTreeMap<String, String>>,
}

impl Descriptor {
    /// Checks the size of the manifest or configuration that this refers to. The digest is checked elsewhere.
    pub(super) fn check_size(&self, bytes: &[u8]) -> Result<(), Fault> {
        if self.size == bytes.len() as u64 {
            return Ok(());
        }
        Err(Fault::Damaged(format!(
            "the size of {} is {} bytes, but the document that names it says {}; build and push the image again",
            self.digest,
            bytes.len(),
            self.size
        )))
    }
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

/// The manifest of one image.
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

/// The source of a media type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Announcer {
    Itself,
    Index,
    Registry,
}

impl Announcer {
    fn name(self) -> &'static str {
        match self {
            Announcer::Itself => "its own mediaType",
            Announcer::Index => "the index",
            Announcer::Registry => "the registry",
        }
    }
}

/// A media type that was announced for a document: its own, a registry's `Content-Type`, or the one in an
/// index.
#[derive(Debug, Clone, Copy)]
pub(super) struct Announced<'a> {
    by: Announcer,
    media_type: &'a str,
}

impl<'a> Announced<'a> {
    /// The type that an index gives one of its entries.
    pub(super) fn by_index(entry: &'a Descriptor) -> Self {
        Announced { by: Announcer::Index, media_type: &entry.media_type }
    }

    /// The type of an HTTP response.
    pub(super) fn by_registry(content_type: &'a str) -> Self {
        Announced { by: Announcer::Registry, media_type: content_type }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    Manifest,
    Index,
}

impl Shape {
    fn name(self) -> &'static str {
        match self {
            Shape::Manifest => "an image manifest",
            Shape::Index => "an index",
        }
    }

    /// The shape that a media type means. `None` if the type does not tell.
    fn of_media_type(media_type: &str, by: Announcer) -> Result<Option<Self>, Fault> {
        match media_type {
            OCI_MANIFEST | DOCKER_MANIFEST => Ok(Some(Shape::Manifest)),
            OCI_INDEX | DOCKER_INDEX => Ok(Some(Shape::Index)),
            "" | "application/json" | "application/octet-stream" => Ok(None),
            // Web servers send these types for plain files.
            "binary/octet-stream" | "text/plain" if by == Announcer::Registry => Ok(None),
            other => Err(Fault::new(format!(
                "the document under this name has the media type {}, which is not that of an image",
                said(other)
            ))),
        }
    }
}

/// The fields that determine what a document is.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Fields {
    schema_version: Option<u32>,
    media_type: Option<String>,
    config: Option<Descriptor>,
    layers: Option<Vec<Descriptor>>,
    manifests: Option<Vec<Descriptor>>,
    #[serde(rename = "fsLayers")]
    fs_layers: Option<IgnoredAny>,
}

impl Document {
    /// Parses a manifest or an index. The document's fields, its own media type and the types that others
    /// announced must agree. Otherwise two programs could see two images under one digest (CVE-2021-41190).
    pub(super) fn parse(bytes: &[u8], announced: &[Announced<'_>]) -> Result<Self, Fault> {
        let unreadable = |error| Fault::Damaged(format!("the image manifest cannot be read: {error}"));
        clear(bytes, &fields::DOCUMENT, "manifest")?;
        let fields: Fields = serde_json::from_slice(bytes).map_err(unreadable)?;
        let shape = fields.shape()?;
        let own = fields.media_type.as_deref().unwrap_or_default();
        let own = Announced { by: Announcer::Itself, media_type: own };
        let mut said_types: Vec<(Announced<'_>, String)> = Vec::new();
        for one in [own].iter().chain(announced) {
            let media_type = bare(one.media_type);
            // A registry sent several types, and programs differ in which one they use.
            if one.media_type.contains(',') {
                return Err(ambiguous(&format!("{} says {}", one.by.name(), said(one.media_type))));
            }
            let Some(meant) = Shape::of_media_type(&media_type, one.by)? else { continue };
            if meant != shape {
                let (is, says) = (shape.name(), meant.name());
                return Err(ambiguous(&format!(
                    "its fields are those of {is}, but {} says {says}",
                    one.by.name()
                )));
            }
            if let Some((other, different)) = said_types.iter().find(|(_, other)| *other != media_type) {
                return Err(ambiguous(&format!(
                    "{} says {different}, but {} says {media_type}",
                    other.by.name(),
                    one.by.name()
                )));
            }
            said_types.push((*one, media_type));
        }
        fields.document(shape)
    }
}

impl Fields {
    fn shape(&self) -> Result<Shape, Fault> {
        let is_manifest = self.config.is_some() || self.layers.is_some();
        match (is_manifest, self.manifests.is_some(), self.fs_layers.is_some()) {
            (true, true, _) => Err(ambiguous(
                "it has the fields of an image manifest (config, layers) and of an index (manifests)",
            )),
            (true, _, true) | (_, true, true) => {
                Err(ambiguous("it has fields of the Docker schema 1 format (fsLayers) and of a newer one"))
            }
            (true, false, false) => Ok(Shape::Manifest),
            (false, true, false) => Ok(Shape::Index),
            (false, false, _) if self.schema_version == Some(1) => Err(Fault::new(
                "the image has the Docker schema 1 format, which is no longer supported; push it again with a current tool",
            )),
            (false, false, _) => Err(neither()),
        }
    }

    fn document(self, shape: Shape) -> Result<Document, Fault> {
        if let Some(version) = self.schema_version.filter(|version| *version != SCHEMA_VERSION) {
            let is = shape.name();
            return Err(ambiguous(&format!(
                "its fields are those of {is}, whose schemaVersion is {SCHEMA_VERSION}, but it says {version}"
            )));
        }
        if shape == Shape::Index {
            return Ok(Document::Index(self.manifests.unwrap_or_default()));
        }
        let config = self.config.ok_or_else(neither)?;
        let layers = self.layers.unwrap_or_default();
        // Programs that rely on the type would take this part for another image.
        for part in layers.iter().chain([&config]) {
            if let Ok(Some(shape)) = Shape::of_media_type(&bare(&part.media_type), Announcer::Itself) {
                let (digest, is) = (&part.digest, shape.name());
                return Err(ambiguous(&format!(
                    "it uses {digest} as a part of the image, and says that it is {is}"
                )));
            }
        }
        if layers.len() > LAYERS_MAX {
            return Err(too_many_layers(layers.len()));
        }
        if let Some(layer) = layers.iter().find(|layer| layer.media_type.ends_with("+encrypted")) {
            return Err(Fault::new(format!("layer {} is encrypted, which is not supported", layer.digest)));
        }
        Ok(Document::Manifest(Manifest { config, layers }))
    }
}

/// A media type without its parameters.
fn bare(media_type: &str) -> String {
    media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

fn neither() -> Fault {
    Fault::new("the document under this name is neither an image manifest nor an index")
}

/// Checks that every program reads the same fields.
pub(super) fn clear(bytes: &[u8], object: &'static fields::Object, document: &str) -> Result<(), Fault> {
    fields::check(bytes, object).map_err(|unclear| match unclear {
        RefusedDocument::Unreadable(error) => {
            Fault::Damaged(format!("the image {document} cannot be read: {error}"))
        }
        RefusedDocument::Ambiguous(why) => ambiguous_document(document, &why),
    })
}

fn ambiguous(why: &str) -> Fault {
    ambiguous_document("manifest", why)
}

fn ambiguous_document(document: &str, why: &str) -> Fault {
    Fault::new(format!(
        "the image {document} is ambiguous, and was refused: {why}; other programs could see another image in it. \
         Build and push the image again"
    ))
}

fn too_many_layers(count: usize) -> Fault {
    Fault::new(format!("the image has {count} layers, at most {LAYERS_MAX} are supported"))
}

/// This machine's architecture, by its Go name, which images use.
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

/// The most platforms that a message names.
const PLATFORMS_NAMED_MAX: usize = 20;

/// The entry of an index that fits this machine.
pub(super) fn choose_platform(manifests: &[Descriptor]) -> Result<&Descriptor, Fault> {
    let arch = this_architecture();
    // The basic variant comes first. arm64 and arm64/v8 are the same, but not every amd64 machine supports
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
    // The registry determines how many there are and how long their names are.
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
    /// `USER`: a user or a user and a group, each a number or a name.
    pub(super) fn user(&self) -> &str {
        self.config.as_ref().and_then(|config| config.user.as_deref()).unwrap_or_default()
    }

    /// Reads a configuration and checks that it belongs to a container image of `layers` layers.
    pub(super) fn parse(bytes: &[u8], layers: usize) -> Result<Self, Fault> {
        clear(bytes, &fields::CONFIGURATION, "configuration")?;
        let config: ConfigFile = serde_json::from_slice(bytes)
            .map_err(|error| Fault::Damaged(format!("the image configuration cannot be read: {error}")))?;
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

    /// The digests of the unpacked layers, the lowest first.
    pub(super) fn diff_ids(&self) -> &[Digest] {
        self.rootfs.as_ref().and_then(|rootfs| rootfs.diff_ids.as_deref()).unwrap_or_default()
    }

    /// The image's properties for a runtime.
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
            digest: Digest::of_bytes(mark.as_bytes()),
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
        assert_eq!(choose_platform(&entries).unwrap().digest, Digest::of_bytes(b"plain"));
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
            let error = Document::parse(text.as_bytes(), &[]).unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
        // A Helm chart, for example, has a configuration without diff ids.
        let error = ConfigFile::parse(br#"{"name":"chart"}"#, 1).unwrap_err().to_string();
        assert!(error.contains("not a container image"), "{error}");
    }

    fn parsed(text: &str, announced: &[Announced<'_>]) -> Result<&'static str, String> {
        match Document::parse(text.as_bytes(), announced) {
            Ok(Document::Manifest(_)) => Ok("manifest"),
            Ok(Document::Index(_)) => Ok("index"),
            Err(fault) => Err(fault.to_string()),
        }
    }

    /// CVE-2021-41190.
    #[test]
    fn a_document_is_one_thing_whoever_reads_it() {
        let blob = format!(r#"{{"digest":"{}","size":1}}"#, Digest::of_bytes(b""));
        let of_type = |media_type: &str| blob.replace('}', &format!(r#","mediaType":"{media_type}"}}"#));
        let manifest = format!(r#""config":{blob},"layers":[]"#);
        let index = r#""manifests":[]"#;
        let typed = |media_type: &str, fields: &str| format!(r#"{{"mediaType":"{media_type}",{fields}}}"#);
        for text in [
            format!("{{{manifest},{index}}}"),
            format!(r#"{{"layers":[],{index}}}"#),
            format!(r#"{{"config":{blob},{index}}}"#),
            format!(r#"{{{manifest},"Manifests":[]}}"#),
            format!(r#"{{{manifest},"fsLayers":[]}}"#),
            format!(r#"{{"schemaVersion":1,"fsLayers":[],{index}}}"#),
            format!(r#"{{"mediatype":"{OCI_INDEX}",{manifest}}}"#),
            format!(r#"{{"schemaVersion":1,{manifest}}}"#),
            format!(r#"{{"schemaVersion":3,{index}}}"#),
            format!(r#"{{"config":{},"layers":[]}}"#, of_type(OCI_INDEX)),
            format!(r#"{{"config":{blob},"layers":[{blob},{}]}}"#, of_type(DOCKER_MANIFEST)),
            typed(OCI_INDEX, &manifest),
            typed(DOCKER_INDEX, &manifest),
            typed(OCI_MANIFEST, index),
            typed(DOCKER_MANIFEST, index),
        ] {
            let error = parsed(&text, &[]).unwrap_err();
            assert!(error.contains("ambiguous"), "{text}: {error}");
        }
        // Other programs would use the last of two fields with the same name.
        let error = parsed(&format!(r#"{{{index},"manifests":[]}}"#), &[]).unwrap_err();
        assert!(error.contains("the field manifests twice"), "{error}");
        let error = parsed(&typed("application/vnd.example+json", &manifest), &[]).unwrap_err();
        assert!(error.contains("not that of an image"), "{error}");

        let (plain_manifest, plain_index) = (format!("{{{manifest}}}"), format!("{{{index}}}"));
        for (text, content_type, is) in [
            (&plain_manifest, OCI_MANIFEST, Some("manifest")),
            (&plain_manifest, "Application/vnd.oci.image.manifest.v1+JSON; charset=utf-8", Some("manifest")),
            (&plain_manifest, "application/json", Some("manifest")),
            (&plain_manifest, "", Some("manifest")),
            (&plain_manifest, DOCKER_INDEX, None),
            (&plain_index, DOCKER_INDEX, Some("index")),
            (&plain_index, "text/plain", Some("index")),
            (&plain_index, OCI_MANIFEST, None),
            (&typed(OCI_INDEX, index), OCI_INDEX, Some("index")),
            (&typed(OCI_INDEX, index), DOCKER_INDEX, None),
            (&typed(DOCKER_MANIFEST, &manifest), OCI_MANIFEST, None),
        ] {
            let result = parsed(text, &[Announced::by_registry(content_type)]);
            assert_eq!(result.as_ref().ok().copied(), is, "{text} as {content_type}: {result:?}");
        }
        let named = Descriptor { media_type: OCI_INDEX.to_owned(), ..entry("linux", "amd64", None, "x") };
        let error = parsed(&plain_manifest, &[Announced::by_index(&named)]).unwrap_err();
        assert!(error.contains("but the index says an index"), "{error}");
        let error =
            parsed(&plain_index, &[Announced::by_index(&named), Announced::by_registry(DOCKER_INDEX)]);
        assert!(error.as_ref().is_err_and(|text| text.contains("but the registry says")), "{error:?}");
    }

    #[test]
    fn docker_writes_null_for_what_is_empty() {
        let text = br#"{"architecture":"","config":{"Entrypoint":null,"Cmd":["sh"],"Env":null,"User":"","WorkingDir":"/w"},
            "rootfs":{"type":"layers","diff_ids":null}}"#;
        let config = ConfigFile::parse(text, 0).unwrap();
        let image = config.image("x", &Digest::of_bytes(b""), vec![], true);
        assert_eq!(
            (image.cmd, image.user, image.working_dir),
            (vec!["sh".to_owned()], None, Some("/w".to_owned()))
        );
    }
}
