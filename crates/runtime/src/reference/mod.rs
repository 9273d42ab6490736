//! Parses image references: names in registries, and paths of images on this machine.

pub mod digest;

use std::fmt;
use std::io;
use std::path::PathBuf;

use rustix::fs::Access;

use digest::{Digest, DigestError};

/// Why a text is not a reference.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    /// The text is empty.
    #[error("it is empty")]
    Empty,
    /// `rootfs:` without an absolute path.
    #[error("rootfs: needs an absolute path")]
    RelativeRootfs,
    /// `oci:` or another prefix without a path.
    #[error("a path must follow the colon")]
    NoPath,
    /// A path with a colon but without a tag, such as `oci:PATH:`.
    #[error("the tag after the last colon is empty")]
    EmptyTag,
    /// The part after `@` is not a digest.
    #[error(transparent)]
    Digest(#[from] DigestError),
    /// The part after the last colon is not a tag.
    #[error("tag {0:?} is not 1 to 128 letters, digits, '_', '.' or '-' (not '.' or '-' at first)")]
    Tag(String),
    /// The host or port of the registry is not valid.
    #[error("registry {registry:?} {fault}")]
    Registry {
        /// The registry as it was written.
        registry: String,
        /// What is wrong with it.
        fault: RegistryFault,
    },
    /// There is only a registry, without a repository.
    #[error("it has no repository name")]
    NoRepository,
    /// The repository has upper-case letters, which registries do not allow.
    #[error("repository name {0:?} must be lower case")]
    UpperCase(String),
    /// A part of the repository between slashes is not valid.
    #[error("repository name {path:?} has a part {part:?} that is not a valid name")]
    RepositoryPart {
        /// The whole repository.
        path: String,
        /// The part that is not valid.
        part: String,
    },
    /// The name is longer than registries and runtimes accept.
    #[error(
        "its name has {length} characters with its registry, {registry}/…; at most {NAME_MAX} are allowed before the tag"
    )]
    TooLong {
        /// The length of the full name.
        length: usize,
        /// Its registry.
        registry: String,
    },
}

/// What is wrong with the host or the port of a registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RegistryFault {
    /// `[` without `]`.
    #[error("has no closing bracket")]
    Bracket,
    /// The text in brackets is not an IPv6 address.
    #[error("is not an IPv6 address in brackets")]
    Ipv6,
    /// It has characters that no host name has.
    #[error("is not a host name")]
    Host,
    /// The part after the colon is not a port.
    #[error("has a port that is not a number below 65536")]
    Port,
}

/// The source of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// `rootfs:/PATH`: a directory of this machine.
    Rootfs(PathBuf),
    /// `oci:DIR[:TAG]`: an OCI image layout.
    OciDir(Local),
    /// `oci-archive:FILE[:TAG]`: an OCI image layout in a tar file.
    OciArchive(Local),
    /// `docker-archive:FILE[:TAG]`: a file that `docker save` writes.
    DockerArchive(Local),
    /// Anything else: a name in a registry.
    Registry(Name),
}

/// Whether a reference names an image on this machine's disk, which needs no registry.
pub fn is_on_disk(reference: &str) -> bool {
    ["rootfs:", "oci:", "oci-archive:", "docker-archive:"].iter().any(|prefix| reference.starts_with(prefix))
}

/// Why a text is not a reference. `None` if it can be parsed.
pub fn invalid_reference(reference: &str) -> Option<ReferenceError> {
    Source::parse(reference).err()
}

/// Why this user cannot read an existing local image. `None` if the user can, or if there is no such image.
pub fn unreadable_on_disk(reference: &str) -> Option<String> {
    let (path, rights) = match Source::parse(reference).ok()? {
        Source::Rootfs(path) => (path, Access::READ_OK | Access::EXEC_OK),
        Source::OciDir(local) => (local.path, Access::READ_OK | Access::EXEC_OK),
        Source::OciArchive(local) | Source::DockerArchive(local) => (local.path, Access::READ_OK),
        Source::Registry(_) => return None,
    };
    match rustix::fs::access(&path, rights) {
        Err(rustix::io::Errno::ACCESS) => {
            Some(format!("this user may not read {}: permission denied", path.display()))
        }
        Ok(()) | Err(_) => None,
    }
}

/// Why a local image does not exist. `None` if it does, or if it comes from a registry.
pub fn missing_on_disk(reference: &str) -> Option<String> {
    if !is_on_disk(reference) {
        return None;
    }
    let (path, wants_dir) = match Source::parse(reference) {
        Ok(Source::Rootfs(path)) => (path, true),
        Ok(Source::OciDir(local)) => (local.path, true),
        Ok(Source::OciArchive(local) | Source::DockerArchive(local)) => (local.path, false),
        Ok(Source::Registry(_)) => return None,
        Err(error) => return Some(error.to_string()),
    };
    let what = if wants_dir { "directory" } else { "file" };
    match std::fs::metadata(&path) {
        Ok(found) if found.is_dir() == wants_dir => None,
        Ok(_) => Some(format!("{} is not a {what}", path.display())),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Some(format!("{what} {} does not exist on this machine", path.display()))
        }
        // Another user may be allowed to see it.
        Err(_) => None,
    }
}

/// A file or directory with images, and the tag of one of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Local {
    /// The path of the file or directory.
    pub path: PathBuf,
    /// The tag of the image in it; `None` if there is only one image.
    pub tag: Option<String>,
}

impl Local {
    /// The first colon ends the path, as in skopeo and podman, unless a path with that colon exists.
    fn parse(rest: &str) -> Result<Self, ReferenceError> {
        let whole = PathBuf::from(rest);
        let (path, tag) = match rest.split_once(':') {
            Some((path, tag)) if !whole.exists() => (PathBuf::from(path), Some(tag.to_owned())),
            _ => (whole, None),
        };
        if path.as_os_str().is_empty() {
            return Err(ReferenceError::NoPath);
        }
        if tag.as_deref() == Some("") {
            return Err(ReferenceError::EmptyTag);
        }
        Ok(Local { path, tag })
    }
}

/// The longest name of an image with its registry, without tag and digest.
const NAME_MAX: usize = 255;

/// A name in a registry, with Kubernetes' defaults filled in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name {
    /// Host and port: `docker.io`, `localhost:5000`, `[::1]:5000`.
    pub registry: String,
    /// The path in the registry, such as `library/busybox`.
    pub repository: String,
    /// `latest` unless a tag or a digest is given.
    pub tag: Option<String>,
    /// The digest after `@`. It takes precedence over the tag.
    pub digest: Option<Digest>,
}

impl Source {
    /// Reads a reference.
    pub fn parse(reference: &str) -> Result<Self, ReferenceError> {
        if let Some(path) = reference.strip_prefix("rootfs:") {
            if !path.starts_with('/') {
                return Err(ReferenceError::RelativeRootfs);
            }
            return Ok(Source::Rootfs(path.into()));
        }
        if let Some(rest) = reference.strip_prefix("oci:") {
            return Local::parse(rest).map(Source::OciDir);
        }
        if let Some(rest) = reference.strip_prefix("oci-archive:") {
            return Local::parse(rest).map(Source::OciArchive);
        }
        if let Some(rest) = reference.strip_prefix("docker-archive:") {
            return Local::parse(rest).map(Source::DockerArchive);
        }
        Name::parse(reference).map(Source::Registry)
    }
}

impl Name {
    /// Reads a registry name: `[HOST[:PORT]/]PATH[:TAG][@sha256:…]`.
    pub fn parse(reference: &str) -> Result<Self, ReferenceError> {
        if reference.is_empty() {
            return Err(ReferenceError::Empty);
        }
        let (rest, digest) = match reference.split_once('@') {
            Some((rest, digest)) => (rest, Some(Digest::try_from(digest.to_owned())?)),
            None => (reference, None),
        };
        let (rest, tag) = match rest.rsplit_once(':') {
            // A colon before a slash belongs to a port.
            Some((rest, tag)) if !tag.contains('/') => (rest, Some(tag.to_owned())),
            _ => (rest, None),
        };
        if let Some(tag) = &tag {
            check_tag(tag)?;
        }
        let (registry, path) = match rest.split_once('/') {
            Some((host, path)) if is_host(host) => {
                // A host is recognised by its upper case here. In lower case it would be a name on Docker
                // Hub.
                let lower = host.to_ascii_lowercase();
                (if is_host(&lower) { lower } else { host.to_owned() }, path)
            }
            _ => ("docker.io".to_owned(), rest),
        };
        check_registry(&registry)?;
        check_path(path)?;
        let registry = if registry == "index.docker.io" { "docker.io".to_owned() } else { registry };
        let repository = if registry == "docker.io" && !path.contains('/') {
            format!("library/{path}")
        } else {
            path.to_owned()
        };
        // Container runtimes and registries limit the full name, even if only its end was written.
        let length = registry.len() + 1 + repository.len();
        if length > NAME_MAX {
            return Err(ReferenceError::TooLong { length, registry });
        }
        let tag = tag.or_else(|| digest.is_none().then(|| "latest".to_owned()));
        Ok(Name { registry, repository, tag, digest })
    }

    /// The tag or digest for requests to the registry.
    pub fn tag_or_digest(&self) -> String {
        match (&self.digest, &self.tag) {
            (Some(digest), _) => digest.to_string(),
            (None, Some(tag)) => tag.clone(),
            (None, None) => "latest".to_owned(),
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.repository)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}

/// Docker's rule: the part before the first slash is a host if it could not be part of a path on Docker Hub.
fn is_host(part: &str) -> bool {
    part == "localhost"
        || part.contains(['.', ':', '['])
        || (!part.is_empty() && part.bytes().any(|b| b.is_ascii_uppercase()))
}

fn check_registry(registry: &str) -> Result<(), ReferenceError> {
    let refused = |fault| ReferenceError::Registry { registry: registry.to_owned(), fault };
    let (host, port) = match registry.strip_prefix('[') {
        Some(v6) => {
            let Some((address, port)) = v6.split_once(']') else {
                return Err(refused(RegistryFault::Bracket));
            };
            if address.parse::<std::net::Ipv6Addr>().is_err() {
                return Err(refused(RegistryFault::Ipv6));
            }
            ("v6", port.strip_prefix(':'))
        }
        None => match registry.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (registry, None),
        },
    };
    let labels_good = host.split('.').all(|label| {
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    });
    if !labels_good {
        return Err(refused(RegistryFault::Host));
    }
    if port.is_some_and(|port| port.parse::<u16>().is_err()) {
        return Err(refused(RegistryFault::Port));
    }
    Ok(())
}

fn check_path(path: &str) -> Result<(), ReferenceError> {
    if path.is_empty() {
        return Err(ReferenceError::NoRepository);
    }
    for part in path.split('/') {
        if part.bytes().any(|b| b.is_ascii_uppercase()) {
            return Err(ReferenceError::UpperCase(path.to_owned()));
        }
        let edges = [part.bytes().next(), part.bytes().next_back()];
        let good = part.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'-'))
            && edges.iter().all(|b| b.is_some_and(|b| b.is_ascii_alphanumeric()))
            && !["..", "___", "._", "_.", ".-", "-."].iter().any(|s| part.contains(s));
        if !good {
            return Err(ReferenceError::RepositoryPart { path: path.to_owned(), part: part.to_owned() });
        }
    }
    Ok(())
}

fn check_tag(tag: &str) -> Result<(), ReferenceError> {
    let good = !tag.is_empty()
        && tag.len() <= 128
        && !tag.starts_with(['.', '-'])
        && tag.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-'));
    if good { Ok(()) } else { Err(ReferenceError::Tag(tag.to_owned())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHA: &str = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn names_get_the_defaults_kubernetes_gives_them() {
        for (given, full) in [
            ("busybox", "docker.io/library/busybox:latest"),
            ("busybox:1.36", "docker.io/library/busybox:1.36"),
            ("team/app", "docker.io/team/app:latest"),
            ("docker.io/busybox", "docker.io/library/busybox:latest"),
            ("index.docker.io/busybox:1", "docker.io/library/busybox:1"),
            ("localhost/app", "localhost/app:latest"),
            ("localhost:5000/app", "localhost:5000/app:latest"),
            ("127.0.0.1:5000/a/b/c:v1", "127.0.0.1:5000/a/b/c:v1"),
            ("[::1]:5000/app:v1", "[::1]:5000/app:v1"),
            ("quay.io/x/y_z--w:V1.0_x", "quay.io/x/y_z--w:V1.0_x"),
        ] {
            assert_eq!(Name::parse(given).map(|n| n.to_string()), Ok(full.to_owned()), "{given}");
        }
        let name = Name::parse(&format!("quay.io/a/b:v1@{SHA}")).unwrap();
        assert_eq!(name.tag_or_digest(), SHA);
        assert_eq!(
            Name::parse(&format!("b@{SHA}")).unwrap().to_string(),
            format!("docker.io/library/b@{SHA}")
        );
    }

    #[test]
    fn bad_references_say_what_is_wrong() {
        for (given, says) in [
            ("", "empty"),
            ("Busybox", "lower case"),
            ("a//b", "valid name"),
            ("a/../b", "valid name"),
            ("a:b:c", "valid name"),
            ("a: b", "tag"),
            ("a@sha256:12", "64"),
            ("a@md5:12", "sha256"),
            ("x.io:port/a", "port"),
            ("[::g]/a", "IPv6"),
            ("rootfs:relative", "absolute"),
            ("oci:", "path"),
            ("oci-archive::tag", "path"),
        ] {
            match Source::parse(given) {
                Err(error) => {
                    assert!(error.to_string().contains(says), "{given}: \"{error}\" lacks {says:?}")
                }
                Ok(source) => panic!("{given} passed as {source:?}"),
            }
        }
    }

    #[test]
    fn a_name_is_measured_with_what_is_added_to_it() {
        let longest = NAME_MAX - "docker.io/library/".len();
        for (name, fits) in [
            ("a".repeat(longest), true),
            ("a".repeat(longest + 1), false),
            (format!("{}:v1", "a".repeat(longest)), true),
            (format!("docker.io/library/{}", "a".repeat(longest + 1)), false),
            (format!("x.io/{}", "a".repeat(NAME_MAX - 5)), true),
            (format!("x.io/{}", "a".repeat(NAME_MAX - 4)), false),
        ] {
            let parsed = Name::parse(&name);
            assert_eq!(parsed.is_ok(), fits, "{} characters: {parsed:?}", name.len());
            if let Err(error) = parsed {
                assert!(error.to_string().contains("at most 255"), "{error}");
            }
        }
    }

    #[test]
    fn local_references() {
        let local = |path: &str, tag: Option<&str>| Local { path: path.into(), tag: tag.map(str::to_owned) };
        assert_eq!(Source::parse("rootfs:/"), Ok(Source::Rootfs("/".into())));
        assert_eq!(Source::parse("oci:no/such"), Ok(Source::OciDir(local("no/such", None))));
        assert_eq!(Source::parse("oci:/a:v1"), Ok(Source::OciDir(local("/a", Some("v1")))));
        assert_eq!(
            Source::parse("docker-archive:/a.tar:quay.io/x:1"),
            Ok(Source::DockerArchive(local("/a.tar", Some("quay.io/x:1"))))
        );
        assert_eq!(Source::parse("oci-archive:a.tar"), Ok(Source::OciArchive(local("a.tar", None))));
    }

    #[test]
    fn images_on_disk_are_missed_before_they_are_needed() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("image.tar");
        std::fs::write(&file, "").unwrap();
        let (dir, file) = (dir.path().display(), file.display());
        let table = [
            (format!("rootfs:{dir}"), None),
            (format!("oci:{dir}:v1"), None),
            (format!("docker-archive:{file}"), None),
            (format!("oci-archive:{file}:v1"), None),
            ("registry.example/app:1".to_owned(), None),
            ("rootfs:relative".to_owned(), Some("absolute")),
            (format!("rootfs:{dir}/no"), Some("does not exist")),
            (format!("rootfs:{file}"), Some("is not a directory")),
            (format!("rootfs:{file}/below"), Some("does not exist")),
            (format!("oci:{file}"), Some("is not a directory")),
            (format!("docker-archive:{dir}"), Some("is not a file")),
            (format!("oci-archive:{dir}/no.tar"), Some("file ")),
        ];
        for (reference, expected) in table {
            let got = missing_on_disk(&reference);
            match expected {
                None => assert_eq!(got, None, "{reference}"),
                Some(text) => assert!(got.as_ref().is_some_and(|g| g.contains(text)), "{reference}: {got:?}"),
            }
        }
    }
}
